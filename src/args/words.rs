//! The pass over the words of a command line before argh sees them, and the environment.
//!
//! argh knows `--name value` and `-n value`. Here the other spellings become those, what the
//! environment says is added, and the options that several subcommands share are set apart from
//! those of the subcommand, since argh has no groups of options.

use std::ffi::OsString;

use argh::{FlagInfo, FlagInfoKind, Optionality};

use crate::error::{Error, Result};

/// Words that differ in more letters mean something else.
const MAX_DISTANCE: usize = 3;

pub(super) enum Prepared {
    Version,
    Arguments {
        /// The subcommand, its own options, and what is no option.
        own: Vec<String>,
        /// The options that it shares with others.
        common: Vec<String>,
        /// Of these, those that the environment gave.
        given: Given,
    },
}

/// Options that come from the environment, and the variables.
#[derive(Debug, Default)]
pub(super) struct Given(Vec<(String, String)>);

impl Given {
    /// Names the variable in a message about an option that nobody typed.
    pub(super) fn named(&self, error: Error) -> Error {
        let Error::Usage(message) = error else {
            return error;
        };
        let (line, hint) = match message.split_once('\n') {
            Some((line, hint)) => (line.to_owned(), format!("\n{hint}")),
            None => (message, String::new()),
        };
        let is_about = |option: &str| {
            line.split(|c: char| !c.is_alphanumeric() && c != '-')
                .any(|word| word == option)
        };
        let about = self.0.iter().filter(|(option, _)| is_about(option));
        let variables: Vec<&str> = about.map(|(_, variable)| variable.as_str()).collect();
        if variables.is_empty() {
            return Error::Usage(line + &hint);
        }
        let variables = variables.join(", ");
        Error::Usage(format!(
            "{line} (set by {variables} in the environment){hint}"
        ))
    }
}

/// Prepares the words of a subcommand that has these options of its own, and shares those.
pub(super) fn prepare(
    typed: Vec<String>,
    own: &[&FlagInfo<'_>],
    common: &[&FlagInfo<'_>],
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Prepared> {
    let flags = || own.iter().chain(common).copied();
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
    let mut given = Given::default();
    for flag in flags().filter(|_| !help) {
        if !expanded.iter().any(|word| is_named(flag, word)) {
            let name = variable_of(flag);
            let words = from_environment(flag, &name, variable)?;
            if !words.is_empty() {
                given.0.push((flag.long.to_owned(), name));
            }
            expanded.extend(words);
        }
    }
    let (mut own, common) = split(expanded, own, common);
    if !positionals_only.is_empty() {
        own.push("--".to_owned());
        own.append(&mut positionals_only);
    }
    Ok(Prepared::Arguments { own, common, given })
}

/// What argh says of an argument that it refuses, in the words and on the one line of all others.
pub(super) fn refused(output: &str) -> String {
    let line = output.split_whitespace().collect::<Vec<_>>().join(" ");
    let value = line
        .strip_prefix("Error parsing option '")
        .and_then(|rest| {
            let (option, rest) = rest.split_once("' with value '")?;
            let (value, reason) = rest.rsplit_once("': ")?;
            let colon = if reason.starts_with("is ") { "" } else { ":" };
            Some(format!("{option} {value:?}{colon} {reason}"))
        });
    let list = |start: &str, shown: &str| {
        let rest = line.strip_prefix(start)?;
        Some(format!("{shown} {}", rest.trim().replace(' ', ", ")))
    };
    value
        .or_else(|| list("Required positional arguments not provided:", "missing:"))
        .or_else(|| list("Required options not provided:", "missing:"))
        .or_else(|| {
            list(
                "One of the following subcommands must be present:",
                "what to do? there are",
            )
        })
        .or_else(|| list("Unrecognized argument:", "there is no"))
        .unwrap_or(line)
}

/// The word of a list that differs least from another, if it differs little.
pub(super) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = |known: &&'a str| {
        let distance = distance(word.as_bytes(), known.as_bytes());
        (distance <= MAX_DISTANCE && distance * 3 <= word.len()).then_some((distance, *known))
    };
    let nearest = known.iter().filter_map(near).min_by_key(|(far, _)| *far);
    nearest.map(|(_, known)| known)
}

/// Letters to change, add or leave out to make one word of another.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = i;
        let mut left = i + 1;
        for (above, y) in row.iter_mut().skip(1).zip(b) {
            let cost = before + usize::from(x != y);
            before = *above;
            left = cost.min(*above + 1).min(left + 1);
            *above = left;
        }
        if let Some(first) = row.first_mut() {
            *first = i + 1;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

fn is_named(flag: &FlagInfo<'_>, word: &str) -> bool {
    let short = flag.short.map(|short| format!("-{short}"));
    flag.long == word || short.as_deref() == Some(word)
}

/// Sets the words of common options apart. Values stand behind their options by now.
pub(super) fn split(
    words: Vec<String>,
    own: &[&FlagInfo<'_>],
    common: &[&FlagInfo<'_>],
) -> (Vec<String>, Vec<String>) {
    let mut split = (Vec::new(), Vec::new());
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let find = |flags: &[&FlagInfo<'_>]| {
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

/// The variable of the environment that gives an option.
fn variable_of(flag: &FlagInfo<'_>) -> String {
    let name = flag.long.trim_start_matches('-').replace('-', "_");
    format!("REFLASH_{}", name.to_uppercase())
}

/// What the environment says of an option, as arguments.
fn from_environment(
    flag: &FlagInfo<'_>,
    name: &str,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Vec<String>> {
    let Some(value) = variable(name) else {
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
    use super::*;

    #[test]
    fn words_that_are_near_are_found() {
        let known = [
            "--workers",
            "--memory",
            "--http-max-retries",
            "--max-download",
        ];
        for (word, meant) in [
            ("--worker", Some("--workers")),
            ("--wrokers", Some("--workers")),
            ("--memroy", Some("--memory")),
            ("--max-retries", None),
            ("--http-max-retry", Some("--http-max-retries")),
            ("--x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &known), meant, "{word}");
        }
        assert_eq!(distance(b"kitten", b"sitting"), 3);
        assert_eq!(distance(b"", b"abc"), 3);
        assert_eq!(distance(b"abc", b""), 3);
    }
}
