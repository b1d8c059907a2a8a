//! The pass over the words of a command line before argh sees them, and the environment.
//!
//! argh knows `--name value` and `-n value`. Here the other spellings become those, what the
//! environment says is added, and the options that several subcommands share are set apart from
//! those of the subcommand, since argh has no groups of options.

use std::ffi::OsString;

use argh::{FlagInfo, FlagInfoKind, Optionality};

use super::NOT_YET;
use crate::error::{Error, Result};

pub(super) enum Prepared {
    Version,
    Arguments {
        /// The subcommand, its own options, and what is no option.
        own: Vec<String>,
        /// The options that it shares with others.
        common: Vec<String>,
    },
}

/// Prepares the words of a subcommand that has these options of its own, and shares those.
pub(super) fn prepare(
    typed: Vec<String>,
    own: &[FlagInfo<'_>],
    common: &[FlagInfo<'_>],
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Prepared> {
    let flags = || own.iter().chain(common);
    let flag = |name: &str| flags().find(|flag| flag.long == name);
    let takes_value = |word: &str| {
        flags().any(|flag| is_named(flag, word) && matches!(flag.kind, FlagInfoKind::Option { .. }))
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
        } else if word.len() > 2 && is_group(&word, flags()) {
            expanded.extend(word.chars().skip(1).map(|short| format!("-{short}")));
        } else {
            expanded.push(word);
        }
    }
    let help = expanded.iter().any(|word| word == "--help");
    for flag in flags().filter(|_| !help) {
        if !expanded.iter().any(|word| is_named(flag, word)) {
            expanded.extend(from_environment(flag, variable)?);
        }
    }
    let (mut own, common) = split(expanded, own, common);
    if !positionals_only.is_empty() {
        own.push("--".to_owned());
        own.append(&mut positionals_only);
    }
    Ok(Prepared::Arguments { own, common })
}

fn is_named(flag: &FlagInfo<'_>, word: &str) -> bool {
    let short = flag.short.map(|short| format!("-{short}"));
    flag.long == word || short.as_deref() == Some(word)
}

/// Sets the words of common options apart. Values stand behind their options by now.
fn split(
    words: Vec<String>,
    own: &[FlagInfo<'_>],
    common: &[FlagInfo<'_>],
) -> (Vec<String>, Vec<String>) {
    let mut split = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let find = |flags: &[FlagInfo<'_>]| {
            let flag = flags.iter().find(|flag| is_named(flag, &word));
            flag.map(|flag| matches!(flag.kind, FlagInfoKind::Option { .. }))
        };
        let (list, value) = match (find(own), find(common)) {
            (Some(value), _) => (&mut split.0, value),
            (None, Some(value)) => (&mut split.1, value),
            (None, None) => (&mut split.0, false),
        };
        list.push(word);
        if value {
            list.extend(words.next());
        }
    }
    split
}

/// Several switches in one word, such as `-vv`.
fn is_group<'a>(word: &str, flags: impl Iterator<Item = &'a FlagInfo<'a>> + Clone) -> bool {
    let is_switch = |short: char| {
        flags
            .clone()
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
