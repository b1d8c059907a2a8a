//! The command line as typed, and what it means: all validation is here, the rest of the program
//! never sees a flag.
//!
//! argh parses, and its definitions below are the only list of options. A pass before it adds what
//! people expect and argh leaves out: `--name=value`, `-h`, `-V`, `-vv`, `-` for standard input,
//! and `REFLASH_<OPTION>` in the environment for every option that is not on the command line (a
//! repeatable option takes one value a line; a switch is on for `1`, `true`, `yes`).
//!
//! This file and `main.rs` are the only ones that know of argh, the environment and exit codes.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use argh::{ArgsInfo, EarlyExit, FlagInfo, FlagInfoKind, FromArgValue, FromArgs, Optionality};

use crate::connect::{Network, Resolve};
use crate::device::Care;
use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::http::{check_url, Header, Settings};
use crate::install::{Options, Targets};
use crate::open::Trust;
#[cfg(feature = "pack")]
use crate::pack;
use crate::proxy::{Exceptions, Proxies, Proxy};
use crate::remote::{Access, Location};
use crate::report::Progress;
use crate::retry::{Limiter, Policy};
use crate::seed;
use crate::tls::{Files, Problem, Tls};

/// Options of later versions, so that a script learns that and not that it mistyped.
const NOT_YET: &[&str] = &[
    "--root-cert",
    "--no-target-seed",
    "--verify",
    "--write-index",
];

/// Subcommands of later versions.
const COMMANDS_NOT_YET: &[&str] = &["plan", "inspect", "verify", "index", "estimate"];

/// Subcommands of this version.
const SUBCOMMANDS: &[&str] = &["install", "pack"];

/// Most workers: more connections than that are an attack on the server.
const MAX_WORKERS: usize = 64;

/// Longest duration of an option: added to the clock, any would have to fit.
const MAX_DURATION: Duration = Duration::from_secs(1000 * 24 * 3600);

/// Smallest memory budget.
const MIN_MEMORY: u64 = 4 << 20;

/// What the program is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Install a bundle.
    Install(Box<Install>),
    /// Make a bundle.
    #[cfg(feature = "pack")]
    Pack(Box<pack::Options>),
    /// Print a text for which the user asked.
    Print(String),
}

/// An install, and how it is to be reported.
#[derive(Debug)]
pub struct Install {
    /// What to install.
    pub options: Options,
    /// Where the report goes.
    pub report: Option<PathBuf>,
    /// How progress is shown.
    pub progress: Progress,
    /// Which messages are shown.
    pub level: log::LevelFilter,
}

/// Install Rugix update bundles, downloading only the blocks that are not there yet.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    note = "reflash --version prints the version. Each option can also be given in the\nenvironment: --bundle-hash as REFLASH_BUNDLE_HASH and so on; of a repeatable one,\none value a line.",
    error_code(0, "installed"),
    error_code(1, "internal fault: report a bug"),
    error_code(2, "usage: fix the command"),
    error_code(3, "network, after all retries: try later"),
    error_code(
        4,
        "bundle: not there, malformed, unsupported, untrusted, changed, mismatch"
    ),
    error_code(5, "target: missing, busy, too small, I/O error"),
    error_code(130, "interrupted (SIGHUP 129, SIGTERM 143): run it again")
)]
struct Arguments {
    #[argh(subcommand)]
    command: Subcommand,
}

#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one value of it")]
enum Subcommand {
    Install(InstallArguments),
    #[cfg(feature = "pack")]
    Pack(PackArguments),
}

/// Install a bundle onto block devices or files.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "install",
    example = "reflash install http://host/update.rugixb --target /dev/mmcblk0p3 \\\n    --seed /dev/mmcblk0p2 --bundle-hash sha512-256:…",
    note = "Benchmarking: --workers 1 --no-merge works as sequential installers do, one block\na request; --no-merge is good for nothing else."
)]
struct InstallArguments {
    /// the bundle: an http or https URL, a path, or - for standard input
    #[argh(positional)]
    bundle: String,

    /// where the one slot payload of the bundle goes: a block device or file
    #[argh(option)]
    target: Option<PathBuf>,

    /// NAME=PATH: where the payload for a slot goes; repeat for several
    #[argh(option)]
    slot: Vec<String>,

    /// PATH or PATH=INDEX: device or file whose blocks may be reused, with a prepared block index
    /// (.rugix-block-index) or scanned; repeatable
    #[argh(option)]
    seed: Vec<String>,

    /// trust: ALG:HEX, the hash that the bundle header must have
    #[argh(option)]
    bundle_hash: Option<String>,

    /// trust: none; one of the trust options is required
    #[argh(switch)]
    insecure_skip_bundle_verification: bool,

    /// accept a payload without block index: nothing can be reused, nothing is checked before the
    /// end
    #[argh(switch)]
    insecure_allow_missing_block_index: bool,

    /// connections, default 8
    #[argh(option, default = "8")]
    workers: usize,

    /// budget for bytes in flight, default 32M
    #[argh(option, default = "Size(32 << 20)")]
    memory: Size,

    /// tries after a failure without a byte received, or infinite; default 5
    #[argh(option, default = "Retries(Some(5))")]
    http_max_retries: Retries,

    /// wait before the first of them, doubled for each more; default 1s
    #[argh(option, default = "Seconds(Duration::from_secs(1))")]
    http_retry_initial_backoff: Seconds,

    /// longest such wait, default 30s
    #[argh(option, default = "Seconds(Duration::from_secs(30))")]
    http_retry_max_backoff: Seconds,

    /// most bytes a second, all connections together; such as 500k
    #[argh(option)]
    limit_rate: Option<Size>,

    /// refuse before the first write when more has to be downloaded, stop when more was
    #[argh(option)]
    max_download: Option<Size>,

    /// no bytes for so long is a failure of the request, default 30s
    #[argh(option, default = "Seconds(Duration::from_secs(30))")]
    stall_timeout: Seconds,

    /// limit for looking the name up and for connecting, each; default 10s
    #[argh(option, default = "Seconds(Duration::from_secs(10))")]
    connect_timeout: Seconds,

    /// 'Name: value', a header for the bundle's server and no other that it redirects to; repeatable
    #[argh(option, short = 'H')]
    header: Vec<String>,

    /// the http proxy, in place of that of http_proxy, https_proxy or all_proxy; empty for none
    #[argh(option)]
    proxy: Option<String>,

    /// HOST:PORT:ADDR or HOST:PORT:ADDR,ADDR…: the addresses of a host, without DNS; repeatable
    #[argh(option)]
    resolve: Vec<String>,

    /// PEM file of the authorities to trust for https, in place of the system's; repeatable
    #[argh(option)]
    cacert: Vec<PathBuf>,

    /// PEM file with a client certificate for https, and its key unless --key is given
    #[argh(option)]
    cert: Option<PathBuf>,

    /// PEM file with the key of the client certificate
    #[argh(option)]
    key: Option<PathBuf>,

    /// one ordered full download
    #[argh(switch)]
    disable_range_queries: bool,

    /// allow or refuse: what to do when the server has no ranges; default allow
    #[argh(option, default = "FullDownload::Allow")]
    full_download: FullDownload,

    /// write to a device that is mounted or held; skips no integrity check
    #[argh(switch)]
    force: bool,

    /// write the first block in its turn, not last
    #[argh(switch)]
    no_hold_back: bool,

    /// benchmarking: ask for each block by itself
    #[argh(switch)]
    no_merge: bool,

    /// auto, bar, lines, json or none; json goes to standard output; default auto
    #[argh(option, default = "Shown::Auto")]
    progress: Shown,

    /// write the final report to this file as one JSON object
    #[argh(option)]
    report: Option<PathBuf>,

    /// say more; twice: each request
    #[argh(switch, short = 'v')]
    verbose: u8,

    /// say nothing but errors
    #[argh(switch, short = 'q')]
    quiet: bool,
}

/// Make a bundle of one image.
#[cfg(feature = "pack")]
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "pack",
    example = "reflash pack root.img --output update.rugixb"
)]
struct PackArguments {
    /// the image: a file or block device
    #[argh(positional)]
    image: PathBuf,

    /// the bundle to write
    #[argh(option, short = 'o')]
    output: PathBuf,

    /// slot that the payload is for, default system
    #[argh(option, default = "\"system\".to_owned()")]
    slot: String,

    /// casync-K or fixed-K, K in KiB; default casync-64
    #[argh(option, default = "\"casync-64\".to_owned()")]
    chunker: String,

    /// sha512-256, sha512 or sha256; default sha512-256
    #[argh(option, default = "\"sha512-256\".to_owned()")]
    hash: String,

    /// xz:LEVEL with level 0 to 9, or none; default xz:6
    #[argh(option, default = "\"xz:6\".to_owned()")]
    compression: String,

    /// store repeated blocks again
    #[argh(switch)]
    no_deduplicate: bool,
}

#[derive(FromArgValue, Debug)]
enum FullDownload {
    Allow,
    Refuse,
}

#[derive(FromArgValue, Debug, Clone, Copy)]
enum Shown {
    Auto,
    Bar,
    Lines,
    Json,
    None,
}

/// Bytes, written with K, M or G for powers of 1024, as curl does.
#[derive(Debug, PartialEq, Eq)]
struct Size(u64);

impl FromArgValue for Size {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let (number, unit) = match text.char_indices().last() {
            Some((at, 'k' | 'K')) => (text.get(..at), 10),
            Some((at, 'm' | 'M')) => (text.get(..at), 20),
            Some((at, 'g' | 'G')) => (text.get(..at), 30),
            _ => (Some(text), 0),
        };
        number
            .and_then(|number| number.parse::<u64>().ok())
            .and_then(|number| number.checked_mul(1 << unit))
            .map(Size)
            .ok_or_else(|| format!("{text:?} is not a size such as 8M"))
    }
}

/// A duration in seconds or with a unit: `2`, `0.5`, `500ms`, `2s`, `3m`, `1h`.
#[derive(Debug, PartialEq)]
struct Seconds(Duration);

impl FromArgValue for Seconds {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        let digits = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let factor = match unit {
            "" | "s" => Some(1.0),
            "ms" => Some(0.001),
            "m" => Some(60.0),
            "h" => Some(3600.0),
            _ => None,
        };
        number
            .parse::<f64>()
            .ok()
            .zip(factor)
            .and_then(|(number, factor)| Duration::try_from_secs_f64(number * factor).ok())
            .filter(|duration| *duration <= MAX_DURATION)
            .map(Seconds)
            .ok_or_else(|| format!("{text:?} is not a duration such as 30s or 500ms"))
    }
}

/// A number of retries, or no limit.
#[derive(Debug, PartialEq, Eq)]
struct Retries(Option<u32>);

impl FromArgValue for Retries {
    fn from_arg_value(text: &str) -> Result<Self, String> {
        match text {
            "infinite" => Ok(Self(None)),
            number => number
                .parse()
                .map(|number| Self(Some(number)))
                .map_err(|_| format!("{text:?} is neither a number nor infinite")),
        }
    }
}

/// Parses the arguments behind the program's name; `variable` looks up the environment.
pub fn parse(
    arguments: impl Iterator<Item = OsString>,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let typed = arguments
        .map(|argument| {
            argument.into_string().map_err(|bad| {
                Error::Usage(format!("argument {} is not UTF-8", bad.to_string_lossy()))
            })
        })
        .collect::<Result<Vec<_>>>()?;
    let expanded = match prepare(typed, variable)? {
        Prepared::Version => {
            return Ok(Command::Print(format!(
                "reflash {}\n",
                env!("CARGO_PKG_VERSION")
            )))
        }
        Prepared::Arguments(expanded) => expanded,
    };
    let expanded: Vec<&str> = expanded.iter().map(String::as_str).collect();
    let parsed = match Arguments::from_args(&["reflash"], &expanded) {
        Ok(parsed) => parsed,
        Err(EarlyExit {
            output,
            status: Ok(()),
        }) => return Ok(Command::Print(output)),
        Err(EarlyExit { output, .. }) => {
            let known = |word: &&&str| !word.starts_with('-') && SUBCOMMANDS.contains(*word);
            let subcommand = expanded.first().filter(known);
            return Err(Error::Usage(format!(
                "{}\nhint: reflash {}--help lists what there is",
                output.trim().replace('\n', " "),
                subcommand.map_or(String::new(), |word| format!("{word} ")),
            )));
        }
    };
    match parsed.command {
        Subcommand::Install(arguments) => install(arguments, variable),
        #[cfg(feature = "pack")]
        Subcommand::Pack(arguments) => pack(arguments),
    }
}

enum Prepared {
    Version,
    Arguments(Vec<String>),
}

/// The pass before argh.
fn prepare(typed: Vec<String>, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Prepared> {
    let flags: &[FlagInfo<'_>] = match typed.first().map(String::as_str) {
        Some("install") => InstallArguments::get_args_info().flags,
        #[cfg(feature = "pack")]
        Some("pack") => PackArguments::get_args_info().flags,
        #[cfg(not(feature = "pack"))]
        Some("pack") => {
            return Err(Error::Usage(
                "this build has no pack: it is for hosts, build it there".into(),
            ))
        }
        Some(word) if COMMANDS_NOT_YET.contains(&word) => {
            return Err(Error::Usage(format!(
                "this version has no {word} yet, only install and pack"
            )))
        }
        _ => &[],
    };
    let flag = |name: &str| flags.iter().find(|flag| flag.long == name);
    let takes_value = |word: &str| {
        flags.iter().any(|flag| {
            let short = flag.short.map(|short| format!("-{short}"));
            let named = flag.long == word || short.as_deref() == Some(word);
            named && matches!(flag.kind, FlagInfoKind::Option { .. })
        })
    };
    let mut expanded = Vec::new();
    let mut positionals_only = Vec::new();
    let mut words = typed.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            positionals_only.extend(words.by_ref());
        } else if word == "--version" || word == "-V" {
            return Ok(Prepared::Version);
        } else if word == "-h" {
            expanded.push("--help".to_owned());
        } else if word == "-" {
            // argh takes it for an option unless it stands behind `--`.
            positionals_only.push(word);
        } else if NOT_YET.contains(&word.split('=').next().unwrap_or_default()) {
            return Err(Error::Usage(format!("this version has no {word} yet")));
        } else if let Some((name, value)) = word
            .split_once('=')
            .filter(|(name, _)| name.starts_with("--"))
        {
            if flag(name).is_some() && !takes_value(name) {
                return Err(Error::Usage(format!("{name} takes no value")));
            }
            expanded.extend([name.to_owned(), value.to_owned()]);
        } else if takes_value(&word) {
            expanded.push(word);
            expanded.extend(words.next());
        } else if word.len() > 2 && is_group(&word, flags) {
            expanded.extend(word.chars().skip(1).map(|short| format!("-{short}")));
        } else {
            expanded.push(word);
        }
    }
    let help = expanded.iter().any(|word| word == "--help");
    for flag in flags.iter().filter(|_| !help) {
        let short = flag.short.map(|short| format!("-{short}"));
        if expanded
            .iter()
            .any(|word| word == flag.long || Some(word) == short.as_ref())
        {
            continue;
        }
        expanded.extend(from_environment(flag, variable)?);
    }
    if !positionals_only.is_empty() {
        expanded.push("--".to_owned());
        expanded.append(&mut positionals_only);
    }
    Ok(Prepared::Arguments(expanded))
}

/// Several switches in one word, such as `-vv`.
fn is_group(word: &str, flags: &[FlagInfo<'_>]) -> bool {
    let is_switch = |short: char| {
        flags
            .iter()
            .any(|flag| flag.short == Some(short) && flag.kind == FlagInfoKind::Switch)
    };
    word.starts_with('-') && word.chars().skip(1).all(is_switch)
}

/// What the environment says of an option, as arguments.
fn from_environment(
    flag: &FlagInfo<'_>,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<String>> {
    let name = format!(
        "REFLASH_{}",
        flag.long
            .trim_start_matches('-')
            .replace('-', "_")
            .to_uppercase()
    );
    let Some(value) = variable(&name) else {
        return Ok(Vec::new());
    };
    let value = value
        .into_string()
        .map_err(|_| Error::Usage(format!("{name} is not UTF-8")))?;
    let option = |value: &str| [flag.long.to_owned(), value.to_owned()];
    match (&flag.kind, &flag.optionality) {
        (FlagInfoKind::Switch, _) => match value.as_str() {
            "1" | "true" | "yes" => Ok(vec![flag.long.to_owned()]),
            "" | "0" | "false" | "no" => Ok(Vec::new()),
            // Such as REFLASH_VERBOSE=2.
            count => match count.parse::<usize>() {
                Ok(count) if count <= 9 && flag.long == "--verbose" => {
                    Ok(vec![flag.long.to_owned(); count])
                }
                _ => Err(Error::Usage(format!("{name} is neither true nor false"))),
            },
        },
        (FlagInfoKind::Option { .. }, Optionality::Repeating) => {
            Ok(value.lines().flat_map(option).collect())
        }
        (FlagInfoKind::Option { .. }, _) => Ok(option(&value).to_vec()),
    }
}

fn install(
    arguments: InstallArguments,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let usage = |message: &str| Err(Error::Usage(message.to_owned()));
    let targets = match (arguments.target.clone(), arguments.slot.is_empty()) {
        (Some(target), true) => Targets::One(target),
        (None, false) => Targets::Slots(parse_slots(&arguments.slot)?),
        (Some(_), false) => return usage("give either --target or --slot, not both"),
        (None, true) => return usage("where to? give --target PATH, or --slot NAME=PATH"),
    };
    let trust = match (
        arguments.bundle_hash.as_deref(),
        arguments.insecure_skip_bundle_verification,
    ) {
        (Some(text), false) => match Digest::parse(text) {
            Some(digest) => Trust::Hash(digest),
            None => {
                return Err(Error::Usage(format!(
                    "--bundle-hash {text:?} is not ALG:HEX: sha256 or sha512-256 and 64 hex digits, or \
                     sha512 and 128"
                )))
            }
        },
        (None, true) => Trust::Insecure,
        (Some(_), true) => {
            return usage(
                "--bundle-hash and --insecure-skip-bundle-verification exclude each other",
            )
        }
        (None, false) => {
            return usage(
                "what makes the bundle trusted? give --bundle-hash ALG:HEX \
                 (or --insecure-skip-bundle-verification)",
            )
        }
    };
    if !(1..=MAX_WORKERS).contains(&arguments.workers) {
        return Err(Error::Usage(format!(
            "--workers must be from 1 to {MAX_WORKERS}"
        )));
    }
    if arguments.memory.0 < MIN_MEMORY {
        return usage("--memory must be at least 4M");
    }
    if arguments.stall_timeout.0.is_zero() || arguments.connect_timeout.0.is_zero() {
        return usage("a timeout of zero leaves no time for anything");
    }
    let bundle = Location::parse(&arguments.bundle);
    if matches!(&bundle, Location::File(_)) && arguments.bundle.contains(":/") {
        return Err(Error::Usage(format!(
            "bundle {:?}: only http:// and https:// URLs can be fetched",
            bundle.shown()
        )));
    }
    if let Location::Url(url) = &bundle {
        check_url(url)
            .map_err(|reason| Error::Usage(format!("bundle URL {}: {reason}", bundle.shown())))?;
    }
    let headers = parse_headers(&arguments.header)?;
    let network = network(&arguments, &bundle, variable)?;
    Ok(Command::Install(Box::new(Install {
        options: Options {
            bundle,
            access: Access {
                http: Settings {
                    connect_timeout: arguments.connect_timeout.0,
                    stall_timeout: arguments.stall_timeout.0,
                    headers,
                    network,
                },
                policy: Policy {
                    max_retries: arguments.http_max_retries.0,
                    initial_backoff: arguments.http_retry_initial_backoff.0,
                    max_backoff: arguments.http_retry_max_backoff.0,
                    stall_timeout: arguments.stall_timeout.0,
                    // Zero is no limit, as with curl.
                    limit_rate: arguments
                        .limit_rate
                        .filter(|rate| rate.0 > 0)
                        .map(|rate| Arc::new(Limiter::new(rate.0))),
                    max_download: arguments.max_download.map(|size| size.0),
                },
                ranges: !arguments.disable_range_queries,
                full_download: matches!(arguments.full_download, FullDownload::Allow),
            },
            trust,
            targets,
            care: Care {
                force: arguments.force,
                hold_back: !arguments.no_hold_back,
            },
            seeds: arguments.seed.iter().map(|text| parse_seed(text)).collect(),
            allow_missing_index: arguments.insecure_allow_missing_block_index,
            workers: arguments.workers,
            memory: arguments.memory.0,
            merge: !arguments.no_merge,
        },
        report: arguments.report,
        progress: match arguments.progress {
            Shown::Auto if arguments.quiet => Progress::None,
            Shown::Auto => Progress::Auto,
            Shown::Bar => Progress::Bar,
            Shown::Lines => Progress::Lines,
            Shown::Json => Progress::Json,
            Shown::None => Progress::None,
        },
        level: match arguments.verbose {
            _ if arguments.quiet => log::LevelFilter::Off,
            0 => log::LevelFilter::Warn,
            1 => log::LevelFilter::Info,
            _ => log::LevelFilter::Debug,
        },
    })))
}

fn parse_headers(headers: &[String]) -> Result<Vec<Header>> {
    let parsed = headers.iter().map(|text| {
        Header::parse(text).map_err(|reason| Error::Usage(format!("--header: {reason}")))
    });
    parsed.collect()
}

/// How servers are reached. The environment counts only for a bundle that is at a URL.
fn network(
    arguments: &InstallArguments,
    bundle: &Location,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Arc<Network>> {
    let url = match bundle {
        Location::Url(url) => url.as_str(),
        _ => "",
    };
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty() && !url.is_empty());
    let resolve = arguments.resolve.iter().map(|text| {
        Resolve::parse(text)
            .ok_or_else(|| Error::Usage(format!("--resolve {text:?} is not HOST:PORT:ADDR")))
    });
    let proxies = proxies(arguments.proxy.as_deref(), &variable)?;
    if let (None, Some(key)) = (&arguments.cert, &arguments.key) {
        let key = key.display();
        return Err(Error::Usage(format!("--key {key} needs a --cert")));
    }
    let files = Files {
        authorities: arguments.cacert.clone(),
        system: variable("SSL_CERT_FILE").map(PathBuf::from),
        certificate: arguments.cert.clone(),
        key: arguments.key.clone(),
    };
    let named = !files.authorities.is_empty() || files.certificate.is_some();
    let tls = Tls::new(files);
    if named
        || url
            .get(..6)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"))
    {
        match tls.prepare() {
            Err(Problem::File { path, reason }) => {
                return Err(Error::Usage(format!(
                    "cannot use {} for https: {reason}",
                    path.display()
                )))
            }
            Err(Problem::Unsupported(reason)) => return Err(Error::Usage(reason.to_owned())),
            // A failure of the network, once that is asked.
            Ok(()) | Err(_) => {}
        }
    }
    let resolve = resolve.collect::<Result<Vec<_>>>()?;
    Ok(Arc::new(Network::new(resolve, proxies, tls)))
}

/// The proxies, by curl's rules: the option, else the variable of the scheme, else that for all.
/// `HTTP_PROXY` does not count, since a web server sets it to what a client sends.
fn proxies(option: Option<&str>, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Proxies> {
    let parse = |name: &str, text: &str| {
        Proxy::parse(text).map(Some).map_err(|reason| {
            Error::Usage(format!(
                "the proxy of {name} cannot be used: {reason}\nhint: --proxy \"\" uses none"
            ))
        })
    };
    let find = |names: &[&str]| {
        for name in names {
            if let Some(value) = variable(name) {
                return parse(name, &value.to_string_lossy());
            }
        }
        Ok(None)
    };
    let (http, https) = match option {
        Some("") => (None, None),
        Some(text) => {
            let proxy = parse("--proxy", text)?;
            (proxy.clone(), proxy)
        }
        None => (
            find(&["http_proxy", "all_proxy", "ALL_PROXY"])?,
            find(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"])?,
        ),
    };
    let except = variable("no_proxy").or_else(|| variable("NO_PROXY"));
    Ok(Proxies {
        http,
        https,
        except: Exceptions::parse(&except.unwrap_or_default().to_string_lossy()),
    })
}

fn parse_slots(slots: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let mut parsed: Vec<(String, PathBuf)> = Vec::new();
    for slot in slots {
        let (name, path) = match slot.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => (name, path),
            _ => return Err(Error::Usage(format!("--slot {slot:?} is not NAME=PATH"))),
        };
        if parsed.iter().any(|(other, _)| other == name) {
            return Err(Error::Usage(format!("--slot {name} is given twice")));
        }
        parsed.push((name.to_owned(), PathBuf::from(path)));
    }
    Ok(parsed)
}

/// `PATH` or `PATH=INDEX`. A path may hold a `=` itself: what exists as a whole is a path.
fn parse_seed(text: &str) -> seed::Spec {
    let whole = PathBuf::from(text);
    match text.rsplit_once('=') {
        Some((path, index)) if !index.is_empty() && !whole.exists() => seed::Spec {
            path: PathBuf::from(path),
            index: Some(PathBuf::from(index)),
        },
        _ => seed::Spec {
            path: whole,
            index: None,
        },
    }
}

#[cfg(feature = "pack")]
fn pack(arguments: PackArguments) -> Result<Command> {
    use crate::chunker::Chunker;
    use crate::hash::HashAlgorithm;

    let usage = |option: &str, value: &str, what: &str| {
        Error::Usage(format!("--{option} {value:?} is not {what}"))
    };
    let compression = match arguments.compression.as_str() {
        "none" => None,
        text => {
            let level = text
                .strip_prefix("xz:")
                .and_then(|level| level.parse().ok());
            let known = level.filter(|level| *level <= 9);
            Some(known.ok_or_else(|| {
                usage(
                    "compression",
                    text,
                    "none or xz:LEVEL with a level from 0 to 9",
                )
            })?)
        }
    };
    Ok(Command::Pack(Box::new(pack::Options {
        chunker: Chunker::parse(&arguments.chunker)
            .ok_or_else(|| usage("chunker", &arguments.chunker, "casync-K or fixed-K"))?,
        hash: HashAlgorithm::parse(&arguments.hash)
            .ok_or_else(|| usage("hash", &arguments.hash, "sha512-256, sha512 or sha256"))?,
        image: arguments.image,
        output: arguments.output,
        slot: arguments.slot,
        compression,
        deduplicate: !arguments.no_deduplicate,
        incremental: false,
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_words(words: &[&str], environment: &[(&str, &str)]) -> Result<Command> {
        parse(words.iter().map(OsString::from), &|name| {
            let found = environment.iter().find(|(variable, _)| *variable == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    fn install_of(words: &[&str], environment: &[(&str, &str)]) -> Install {
        match parse_words(words, environment) {
            Ok(Command::Install(install)) => *install,
            other => panic!("{other:?}"),
        }
    }

    fn refusal(words: &[&str]) -> String {
        match parse_words(words, &[]) {
            Err(Error::Usage(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    const SKIP: &str = "--insecure-skip-bundle-verification";

    #[test]
    fn accepts_what_people_type() {
        let install = install_of(
            &[
                "install",
                "-vv",
                "--target=/dev/x",
                SKIP,
                "--memory",
                "8M",
                "-",
                "--seed",
                "a",
                "--seed=b=c",
                "--http-max-retries=infinite",
                "--stall-timeout",
                "500ms",
            ],
            &[],
        );
        assert_eq!(install.level, log::LevelFilter::Debug);
        let options = install.options;
        assert_eq!(options.bundle, Location::Stdin);
        assert_eq!(options.targets, Targets::One("/dev/x".into()));
        assert_eq!(options.memory, 8 << 20);
        assert_eq!(options.seeds.len(), 2);
        assert_eq!(options.seeds[1].index, Some("c".into()));
        assert_eq!(options.access.policy.max_retries, None);
        assert_eq!(
            options.access.http.stall_timeout,
            Duration::from_millis(500)
        );
        assert_eq!(options.workers, 8);
    }

    #[test]
    fn the_environment_fills_in_what_is_not_typed() {
        let install = install_of(
            &["install", "http://h/b", "--workers", "3"],
            &[
                ("REFLASH_TARGET", "t"),
                ("REFLASH_WORKERS", "5"),
                ("REFLASH_INSECURE_SKIP_BUNDLE_VERIFICATION", "1"),
                ("REFLASH_NO_MERGE", "0"),
                ("REFLASH_SEED", "a\nb"),
                ("REFLASH_VERBOSE", "1"),
            ],
        );
        assert_eq!(install.options.workers, 3);
        assert_eq!(install.options.seeds.len(), 2);
        assert!(install.options.merge);
        assert_eq!(install.options.trust, Trust::Insecure);
        assert_eq!(install.level, log::LevelFilter::Info);
    }

    #[test]
    fn says_what_is_wrong_with_a_command() {
        for (words, reason) in [
            (&["install", "b", SKIP][..], "where to?"),
            (&["install", "b", "--target", "t"], "trusted?"),
            (
                &["install", "b", "--target", "t", "--slot", "a=b", SKIP],
                "not both",
            ),
            (&["install", "b", "--slot", "a", SKIP], "NAME=PATH"),
            (
                &["install", "b", "--slot", "a=b", "--slot", "a=c", SKIP],
                "twice",
            ),
            (
                &["install", "b", "--target", "t", "--bundle-hash", "md5:00"],
                "ALG:HEX",
            ),
            (
                &["install", "b", "--target", "t", SKIP, "--workers", "0"],
                "from 1 to",
            ),
            (
                &["install", "b", "--target", "t", SKIP, "--memory", "1"],
                "at least 4M",
            ),
            (
                &["install", "b", "--target", "t", SKIP, "--memory", "x"],
                "not a size",
            ),
            (
                &["install", "b", "--target", "t", SKIP, "--progress", "loud"],
                "progress",
            ),
            (
                &["install", "b", "--target", "t", SKIP, "--no-merge=1"],
                "takes no value",
            ),
            (
                &["install", "http://h:99999/b", "--target", "t", SKIP],
                "its port",
            ),
            (&["install", "b", "--root-cert", "x"], "no --root-cert yet"),
            (&["install", "b", "--no-such"], "--help lists"),
            (&["install", "b", "--target"], "target"),
            (&["install"], "bundle"),
            (&["verify", "b"], "no verify yet"),
            (&["frobnicate"], "frobnicate"),
            (&[], "--help lists"),
        ] {
            let message = refusal(words);
            assert!(message.contains(reason), "{words:?}: {message}");
        }
    }

    #[test]
    fn proxies_follow_curls_rules() {
        let chosen = |option, environment: &[(&str, &str)]| {
            let found = proxies(option, &|name| {
                let found = environment.iter().find(|(variable, _)| *variable == name);
                found.map(|(_, value)| OsString::from(value))
            });
            let found = found.expect("they are right");
            [false, true].map(|https| found.of(https, "h").map(|proxy| proxy.host.clone()))
        };
        let both = |http: &str, https: &str| {
            [http, https].map(|host| Some(host.to_owned()).filter(|host| !host.is_empty()))
        };
        let all = [
            ("ALL_PROXY", "a"),
            ("https_proxy", "s"),
            ("HTTP_PROXY", "x"),
        ];
        assert_eq!(chosen(None, &all), both("a", "s"));
        assert_eq!(chosen(Some("o"), &all), both("o", "o"));
        assert_eq!(chosen(Some(""), &all), both("", ""));
        assert_eq!(chosen(None, &[]), both("", ""));
        let lower_first = [
            ("HTTPS_PROXY", "S"),
            ("https_proxy", "s"),
            ("http_proxy", "p"),
        ];
        assert_eq!(chosen(None, &lower_first), both("p", "s"));
        let upper = [("HTTPS_PROXY", "S"), ("all_proxy", "a"), ("ALL_PROXY", "A")];
        assert_eq!(chosen(None, &upper), both("a", "S"));
        for list in ["no_proxy", "NO_PROXY"] {
            assert_eq!(chosen(Some("o"), &[(list, "x h")]), both("", ""));
        }
        let lists = [("no_proxy", "x"), ("NO_PROXY", "h"), ("http_proxy", "p")];
        assert_eq!(chosen(None, &lists), both("p", ""));
    }

    #[test]
    fn values_have_units() {
        assert_eq!(Size::from_arg_value("3k"), Ok(Size(3072)));
        assert_eq!(Size::from_arg_value("7"), Ok(Size(7)));
        assert!(Size::from_arg_value("99999999999999G").is_err());
        assert!(Size::from_arg_value("-1").is_err());
        let seconds = |text| Seconds::from_arg_value(text).map(|seconds| seconds.0.as_millis());
        assert_eq!(seconds("0"), Ok(0));
        assert_eq!(seconds("1.5"), Ok(1500));
        assert_eq!(seconds("250ms"), Ok(250));
        assert_eq!(seconds("2m"), Ok(120_000));
        for bad in ["", "s", "1x", "-1", "1e400", ".", "99999999h"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn help_and_version_are_printed() {
        for (words, expected) in [
            (&["--version"][..], "reflash "),
            (&["install", "-h"], "--bundle-hash"),
            (&["install", "--help"], "Benchmarking"),
            (&["--help"], "REFLASH_BUNDLE_HASH"),
        ] {
            match parse_words(words, &[]) {
                Ok(Command::Print(text)) => assert!(text.contains(expected), "{text}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
