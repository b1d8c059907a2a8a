//! The command line as typed, and what it means: all validation is here, the rest of the program
//! never sees a flag.
//!
//! argh parses, and its definitions below are the only list of options. A pass before it adds what
//! people expect and argh leaves out: `--name=value`, `-h`, `-V`, `-vv`, `-` for standard input,
//! and `REFLASH_<OPTION>` in the environment for every option that is not on the command line (a
//! repeatable option takes one value a line; a switch is on for `1`, `true`, `yes`).
//!
//! This module and `main.rs` are the only ones that know of argh, the environment and exit codes.

mod access;
mod common;
mod install;
#[cfg(feature = "pack")]
mod pack;
mod values;
mod verify;

use std::ffi::OsString;
use std::path::PathBuf;

use argh::{ArgsInfo, EarlyExit, FlagInfo, FlagInfoKind, FromArgs, Optionality};

use crate::error::{Error, Result};
use crate::install::Options;
use crate::report::Progress;

/// Options of later versions, so that a script learns that and not that it mistyped.
const NOT_YET: &[&str] = &["--root-cert"];

/// Subcommands of later versions.
const COMMANDS_NOT_YET: &[&str] = &["plan", "inspect", "index", "estimate"];

/// Subcommands of this version.
const SUBCOMMANDS: &[&str] = &["install", "verify", "pack"];

/// What the program is asked to do.
#[derive(Debug)]
pub enum Command {
    /// Install a bundle.
    Install(Box<Install>),
    /// Compare targets with a bundle.
    Verify(Box<Verify>),
    /// Make a bundle.
    #[cfg(feature = "pack")]
    Pack(Box<crate::pack::Options>),
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
    Install(install::Arguments),
    Verify(verify::Arguments),
    #[cfg(feature = "pack")]
    Pack(pack::Arguments),
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
        Subcommand::Install(arguments) => install::install(arguments, variable),
        Subcommand::Verify(arguments) => verify::verify(arguments, variable),
        #[cfg(feature = "pack")]
        Subcommand::Pack(arguments) => pack::pack(arguments),
    }
}

enum Prepared {
    Version,
    Arguments(Vec<String>),
}

/// The pass before argh.
fn prepare(typed: Vec<String>, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Prepared> {
    let flags: &[FlagInfo<'_>] = match typed.first().map(String::as_str) {
        Some("install") => install::Arguments::get_args_info().flags,
        Some("verify") => verify::Arguments::get_args_info().flags,
        #[cfg(feature = "pack")]
        Some("pack") => pack::Arguments::get_args_info().flags,
        #[cfg(not(feature = "pack"))]
        Some("pack") => {
            return Err(Error::Usage(
                "this build has no pack: it is for hosts, build it there".into(),
            ))
        }
        Some(word) if COMMANDS_NOT_YET.contains(&word) => {
            return Err(Error::Usage(format!(
                "this version has no {word} yet, only install, verify and pack"
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
            (&["verify", "b"], "with what?"),
            (&["estimate", "b"], "no estimate yet"),
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
