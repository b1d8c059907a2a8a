//! The command line as typed, and what it means: all validation is here, the rest of the program
//! never sees a flag.
//!
//! argh parses, and its definitions are the only list of options. A pass before it (`words`) adds what
//! people expect and argh leaves out: `--name=value`, `-h`, `-V`, `-vv`, `-` for standard input,
//! and `REFLASH_<OPTION>` in the environment for every option that is not on the command line (a
//! repeatable option takes one value a line; a switch is on for `1`, `true`, `yes`).
//!
//! This module and `main.rs` are the only ones that know of argh, the environment and exit codes.

mod access;
mod common;
#[cfg(feature = "pack")]
mod estimate;
mod index;
mod inspect;
mod install;
pub mod manual;
#[cfg(feature = "pack")]
mod pack;
mod plan;
#[cfg(feature = "pack")]
mod sign;
mod values;
mod verify;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;

use argh::{ArgsInfo, EarlyExit, FlagInfo, FromArgs};

use self::common::Common;
use self::words::Prepared;
use crate::console::Mode;
use crate::error::{Error, Result};

/// Subcommands of this version.
const SUBCOMMANDS: &[&str] = &[
    "install", "plan", "inspect", "verify", "index", "pack", "sign", "estimate",
];

/// What the program is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Install a bundle.
    Install(Box<Install>),
    /// Tell what an install would do.
    Plan(Box<Plan>),
    /// Tell what a bundle is.
    Inspect(Box<Inspect>),
    /// Compare targets with a bundle.
    Verify(Box<Verify>),
    /// Make the block index of an image.
    Index(Box<Index>),
    /// Make a bundle.
    #[cfg(feature = "pack")]
    Pack(Box<Pack>),
    /// Prepare a bundle for a signature, or add one.
    #[cfg(feature = "pack")]
    Sign(Box<crate::sign::Options>),
    /// Tell what an update would cost.
    #[cfg(feature = "pack")]
    Estimate(Box<Estimate>),
    /// Print a text for which the user asked.
    Print(String),
}

/// A comparison, and how it is to be reported.
#[derive(Debug)]
pub struct Verify {
    /// What to compare.
    pub options: crate::verify::Options,
    /// As JSON on standard output.
    pub json: bool,
    /// Which messages are shown.
    pub level: log::LevelFilter,
    /// Where they are written to, as well.
    pub log: Option<PathBuf>,
}

/// An install, and how it is to be reported.
#[derive(Debug)]
pub struct Install {
    /// What to install.
    pub install: crate::install::Install,
    /// Where the report goes.
    pub report: Option<PathBuf>,
    /// How progress is shown.
    pub progress: Mode,
    /// Which messages are shown.
    pub level: log::LevelFilter,
    /// Where they are written to, as well.
    pub log: Option<PathBuf>,
}

/// A plan, and how it is to be shown.
#[derive(Debug)]
pub struct Plan {
    /// What would be installed.
    pub install: crate::install::Install,
    /// Over which link.
    pub link: crate::install::planned::OnLink,
    /// As JSON.
    pub json: bool,
    /// Which messages are shown.
    pub level: log::LevelFilter,
    /// Where they are written to, as well.
    pub log: Option<PathBuf>,
}

/// An inspection, and how it is to be shown.
#[derive(Debug)]
pub struct Inspect {
    /// What to inspect.
    pub options: crate::inspect::Options,
    /// As JSON.
    pub json: bool,
    /// Which messages are shown.
    pub level: log::LevelFilter,
    /// Where they are written to, as well.
    pub log: Option<PathBuf>,
}

/// How a tool tells how far it is, and what came of it.
#[derive(Clone, Copy, Debug)]
pub struct Telling {
    /// How progress is shown.
    pub progress: Mode,
    /// Which messages are shown.
    pub level: log::LevelFilter,
}

impl Telling {
    /// A line or two for people at the end, unless they want none.
    pub fn sum_up(&self, result: &impl std::fmt::Display) {
        if self.level > log::LevelFilter::Off {
            crate::console::print_err(&result.to_string());
        }
    }
}

/// Making a block index, and how that is told.
#[derive(Debug)]
pub struct Index {
    /// What to index.
    pub options: crate::index::Options,
    /// As JSON.
    pub json: bool,
    /// And besides.
    pub telling: Telling,
}

/// Making a bundle, and how that is told.
#[cfg(feature = "pack")]
#[derive(Debug)]
pub struct Pack {
    /// What to pack.
    pub options: crate::pack::Options,
    /// How it is told.
    pub telling: Telling,
}

/// An estimate, and how it is to be shown.
#[cfg(feature = "pack")]
#[derive(Debug)]
pub struct Estimate {
    /// What to estimate.
    pub options: crate::estimate::Options,
    /// As JSON.
    pub json: bool,
    /// And besides.
    pub telling: Telling,
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
    error_code(
        5,
        "target: missing, busy, too small, I/O error, or it differs (verify)"
    ),
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
    Install(install::Arguments),
    Plan(plan::Arguments),
    Inspect(inspect::Arguments),
    Verify(verify::Arguments),
    Index(index::Arguments),
    #[cfg(feature = "pack")]
    Pack(pack::Arguments),
    #[cfg(feature = "pack")]
    Sign(sign::Arguments),
    #[cfg(feature = "pack")]
    Estimate(estimate::Arguments),
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
    let (own, common) = flags(typed.first().map(String::as_str))?;
    let (own, common, given) = match words::prepare(typed, &own, &common, variable)? {
        Prepared::Version => {
            let version = env!("CARGO_PKG_VERSION");
            return Ok(Command::Print(format!("reflash {version}\n")));
        }
        Prepared::Arguments { own, common, given } => (own, common, given),
    };
    command(&own, &common, variable).map_err(|error| given.named(error))
}

/// What the prepared words mean.
fn command(
    own: &[String],
    common: &[String],
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let subcommand = own
        .first()
        .filter(|word| SUBCOMMANDS.contains(&word.as_str()));
    let subcommand = subcommand.map(String::as_str);
    let (own, of_install) = match subcommand {
        Some("plan") => of_plan(own),
        _ => (own.to_vec(), Vec::new()),
    };
    let (parsed, common) = match (from::<Arguments>(&own), from::<Common>(common)) {
        (Ok(parsed), Ok(common)) => (parsed, common),
        (Err(exit), _) | (_, Err(exit)) => return early(exit, subcommand),
    };
    match parsed.command {
        Subcommand::Install(arguments) => install::install(arguments, &common, variable),
        Subcommand::Plan(arguments) => {
            let bundle = ["--".to_owned(), arguments.bundle.clone()];
            match from::<Arguments>(&[of_install, bundle.to_vec()].concat()) {
                Ok(Arguments {
                    command: Subcommand::Install(install),
                }) => plan::plan(arguments, install, &common, variable),
                Ok(_) => Err(Error::Internal("the words of an install are one")),
                Err(exit) => early(exit, subcommand),
            }
        }
        Subcommand::Inspect(arguments) => inspect::inspect(arguments, &common, variable),
        Subcommand::Verify(arguments) => verify::verify(arguments, &common, variable),
        Subcommand::Index(arguments) => index::index(arguments),
        #[cfg(feature = "pack")]
        Subcommand::Pack(arguments) => pack::pack(arguments),
        #[cfg(feature = "pack")]
        Subcommand::Sign(arguments) => sign::sign(arguments),
        #[cfg(feature = "pack")]
        Subcommand::Estimate(arguments) => estimate::estimate(arguments, variable),
    }
}

/// The words of a plan in two: its own, and those of the install that it is about.
fn of_plan(words: &[String]) -> (Vec<String>, Vec<String>) {
    let end = words.iter().position(|word| word == "--");
    let (options, rest) = words.split_at(end.unwrap_or(words.len()));
    let flags = |flags: &'static [FlagInfo<'static>]| flags.iter().collect::<Flags>();
    let own = flags(plan::Arguments::get_args_info().flags);
    let install = flags(install::Arguments::get_args_info().flags);
    let (mut own, mut install) = words::split(options.to_vec(), &own, &install);
    own.extend_from_slice(rest);
    install.insert(0, "install".to_owned());
    (own, install)
}

fn from<T: FromArgs>(words: &[String]) -> Result<T, EarlyExit> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    T::from_args(&["reflash"], &words)
}

/// The help that was asked for, or what is wrong.
fn early(exit: EarlyExit, subcommand: Option<&str>) -> Result<Command> {
    let EarlyExit { mut output, status } = exit;
    if status.is_ok() {
        if subcommand == Some("plan") {
            output += &common::list::<install::Arguments>("Options of install:");
        }
        if subcommand.is_some_and(reads_bundles) {
            output += &common::list::<Common>("Options of all that read a bundle:");
        }
        return Ok(Command::Print(output));
    }
    Err(Error::Usage(format!(
        "{}\nhint: {}reflash {}--help lists what there is",
        words::refused(&output),
        likely(&output, subcommand),
        subcommand.map_or(String::new(), |word| format!("{word} ")),
    )))
}

/// What was meant by a word that there is not, if that is likely.
fn likely(output: &str, subcommand: Option<&str>) -> String {
    let Some(word) = output.trim().strip_prefix("Unrecognized argument: ") else {
        return String::new();
    };
    let (own, common) = flags(subcommand).unwrap_or_default();
    let options = own.iter().chain(&common).map(|flag| flag.long);
    let known: Vec<&str> = match subcommand {
        Some(_) => options.collect(),
        None => SUBCOMMANDS.to_vec(),
    };
    words::nearest(word, &known).map_or(String::new(), |meant| format!("is it {meant}? "))
}

/// Subcommands that read a bundle have the common options.
fn reads_bundles(subcommand: &str) -> bool {
    !["index", "pack", "sign", "estimate"].contains(&subcommand)
}

type Flags = Vec<&'static FlagInfo<'static>>;

/// The options of a subcommand: its own, and those that it shares with others.
fn flags(subcommand: Option<&str>) -> Result<(Flags, Flags)> {
    let own: &[&'static [FlagInfo<'static>]] = match subcommand {
        Some("install") => &[install::Arguments::get_args_info().flags],
        Some("plan") => &[
            plan::Arguments::get_args_info().flags,
            install::Arguments::get_args_info().flags,
        ],
        Some("inspect") => &[inspect::Arguments::get_args_info().flags],
        Some("verify") => &[verify::Arguments::get_args_info().flags],
        Some("index") => &[index::Arguments::get_args_info().flags],
        #[cfg(feature = "pack")]
        Some("pack") => &[pack::Arguments::get_args_info().flags],
        #[cfg(feature = "pack")]
        Some("sign") => &[sign::Arguments::get_args_info().flags],
        #[cfg(feature = "pack")]
        Some("estimate") => &[estimate::Arguments::get_args_info().flags],
        #[cfg(not(feature = "pack"))]
        Some(word @ ("pack" | "sign" | "estimate")) => {
            return Err(Error::Usage(format!(
                "this build has no {word}: it is for hosts, build it there"
            )))
        }
        _ => &[],
    };
    let common: Flags = match subcommand {
        Some(word) if SUBCOMMANDS.contains(&word) && reads_bundles(word) => {
            Common::get_args_info().flags.iter().collect()
        }
        _ => Vec::new(),
    };
    Ok((own.iter().copied().flatten().collect(), common))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::install::Targets;
    use crate::open::Trust;
    use crate::remote::Location;

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
        let options = install.install;
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
        assert_eq!(install.install.workers, 3);
        assert_eq!(install.install.seeds.len(), 2);
        assert!(install.install.merge);
        assert_eq!(install.install.trust, Trust::Insecure);
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
            (
                &["install", "b", "--target", "t", "--root-cert", "no-such"],
                "cannot use --root-cert no-such",
            ),
            (
                &[
                    "install",
                    "b",
                    "--target",
                    "t",
                    SKIP,
                    "--time-floor",
                    "soon",
                ],
                "not a time",
            ),
            (&["install", "b", "--no-such"], "--help lists"),
            (&["install", "b", "--target"], "target"),
            (&["install"], "bundle"),
            (&["verify", "b"], "with what?"),
            (&["plan", "b"], "where to?"),
            (&["frobnicate"], "frobnicate"),
            (&[], "--help lists"),
        ] {
            let message = refusal(words);
            assert!(message.contains(reason), "{words:?}: {message}");
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
