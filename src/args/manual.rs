//! The manual page and the completions of shells, made from the definitions that argh parses by:
//! there is no second list of options that could fall behind.
//!
//! Only values are added here that a shell can complete: choices, and what is a file.

use argh::{ArgsInfo, CommandInfoWithArgs, FlagInfo, FlagInfoKind, Optionality};

use super::common::Common;
use super::{install, reads_bundles, Arguments};
use crate::clock::BUILD_DATE;

/// Options whose value is one of a few words.
const CHOICES: [(&str, &str); 4] = [
    ("--full-download", "allow refuse"),
    ("--hash", "sha512-256 sha512 sha256"),
    ("--progress", "auto bar lines json none"),
    (
        "--chunker",
        "casync-8 casync-16 casync-32 casync-64 casync-128 fixed-4 fixed-64",
    ),
];

/// Options whose value is a file or begins with one.
const FILES: [&str; 11] = [
    "--cacert",
    "--cert",
    "--key",
    "--log",
    "--output",
    "--report",
    "--root-cert",
    "--seed",
    "--svg",
    "--target",
    "--write-index",
];

/// A shell that can complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shell {
    /// bash, 4 or later.
    Bash,
    /// zsh.
    Zsh,
    /// fish.
    Fish,
}

/// A subcommand, and all its options.
struct Entry {
    info: CommandInfoWithArgs,
    flags: Vec<&'static FlagInfo<'static>>,
}

fn entries() -> Vec<Entry> {
    let all = Arguments::get_args_info().commands;
    all.into_iter()
        .map(|subcommand| {
            let common: &'static [FlagInfo<'static>] = if reads_bundles(subcommand.name) {
                Common::get_args_info().flags
            } else {
                &[]
            };
            // What can be planned can be said of it.
            let install: &'static [FlagInfo<'static>] = match subcommand.name {
                "plan" => install::Arguments::get_args_info().flags,
                _ => &[],
            };
            let flags = subcommand.command.flags.iter().chain(install).chain(common);
            Entry {
                flags: flags.filter(|flag| !flag.hidden).collect(),
                info: subcommand.command,
            }
        })
        .collect()
}

/// What a shell offers for the value of an option.
enum Value {
    None,
    Choice(&'static str),
    File,
    Any,
}

fn value(flag: &FlagInfo<'_>) -> Value {
    let choices = CHOICES.iter().find(|(name, _)| *name == flag.long);
    match (&flag.kind, choices) {
        (FlagInfoKind::Switch, _) => Value::None,
        (_, Some((_, words))) => Value::Choice(words),
        _ if FILES.contains(&flag.long) => Value::File,
        _ => Value::Any,
    }
}

/// The manual page, section 1, in the language of man(7).
pub fn man() -> String {
    let info = Arguments::get_args_info();
    let mut out = format!(
        ".TH REFLASH 1 \"{}\" \"reflash {}\" \"User Commands\"\n.SH NAME\nreflash \\- {}\n.SH SYNOPSIS\n",
        // The day of the build, in UTC.
        BUILD_DATE.to_string().split('T').next().unwrap_or_default(),
        env!("CARGO_PKG_VERSION"),
        roff(info.description.trim_end_matches('.')).replacen('I', "i", 1),
    );
    let entries = entries();
    for (number, Entry { info, .. }) in entries.iter().enumerate() {
        let end = if number == 0 { "" } else { ".br\n" };
        let mut line = format!("{end}.B reflash {}\n", info.name);
        for positional in info.positionals {
            let name = roff(positional.name);
            let dots = match positional.optionality {
                Optionality::Repeating | Optionality::Greedy => " ...",
                _ => "",
            };
            line += &format!(".RI < {name} >{dots}\n");
        }
        out += &format!("{line}.RI [ options ]\n");
    }
    out += ".SH DESCRIPTION\n";
    let notes: Vec<_> = info.notes.iter().map(|note| roff(note)).collect();
    out += &format!("{}\n", notes.join("\n.PP\n"));
    for Entry { info, .. } in &entries {
        out += &format!(".SH REFLASH {}\n", info.name.to_uppercase());
        out += &format!("{}\n", roff(info.description));
        for positional in info.positionals {
            item(
                &mut out,
                &format!("\\fI{}\\fR", roff(positional.name)),
                positional.description,
            );
        }
        for flag in info.flags.iter().filter(|flag| !flag.hidden) {
            option(&mut out, flag);
        }
        for note in info.notes {
            out += &format!(".PP\n{}\n", roff(note));
        }
        for example in info.examples {
            out += &format!(".PP\n.EX\n{}\n.EE\n", roff(example));
        }
    }
    out += ".SH OPTIONS OF ALL THAT READ A BUNDLE\n";
    for flag in Common::get_args_info().flags {
        option(&mut out, flag);
    }
    out += ".SH EXIT STATUS\n";
    for code in info.error_codes {
        item(&mut out, &code.code.to_string(), code.description);
    }
    out
}

fn option(out: &mut String, flag: &FlagInfo<'_>) {
    let mut names = flag
        .short
        .map_or(String::new(), |short| format!("\\fB\\-{short}\\fR, "));
    names += &format!("\\fB{}\\fR", roff(flag.long));
    if let FlagInfoKind::Option { arg_name } = flag.kind {
        names += &format!(" \\fI{}\\fR", roff(arg_name));
    }
    item(out, &names, flag.description);
}

fn item(out: &mut String, head: &str, text: &str) {
    out.push_str(&format!(".TP\n{head}\n{}\n", roff(text)));
}

/// A text as the language of manual pages wants it.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // Not every device that a page is made for has it.
    let text = text.replace('…', "...");
    let lines = text.lines().map(|line| match line.chars().next() {
        // These begin a request.
        Some('.' | '\'') => format!("\\&{line}"),
        _ => line.to_owned(),
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The completions for a shell.
pub fn completion(shell: Shell) -> String {
    let entries = entries();
    match shell {
        Shell::Bash => bash(&entries),
        Shell::Zsh => zsh(&entries),
        Shell::Fish => fish(&entries),
    }
}

fn names(entries: &[Entry]) -> String {
    let names: Vec<_> = entries.iter().map(|entry| entry.info.name).collect();
    names.join(" ")
}

/// All options of a subcommand, long and short.
fn words(entry: &Entry) -> String {
    let short = |flag: &FlagInfo<'_>| flag.short.map(|short| format!("-{short}"));
    let words = entry
        .flags
        .iter()
        .flat_map(|flag| [Some(flag.long.to_owned()), short(flag)]);
    let mut words: Vec<String> = words.flatten().collect();
    words.push("--help".to_owned());
    words.join(" ")
}

fn bash(entries: &[Entry]) -> String {
    let mut out = format!(
        "# bash completion for reflash\n_reflash() {{\n    local cur=${{COMP_WORDS[COMP_CWORD]}} \
         prev=${{COMP_WORDS[COMP_CWORD-1]}}\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        \
         COMPREPLY=($(compgen -W \"{} --help --version\" -- \"$cur\"))\n        return\n    fi\n    \
         case $prev in\n",
        names(entries)
    );
    let choices = CHOICES
        .iter()
        .map(|(name, words)| (*name, format!("-W \"{words}\"")));
    let files = FILES.iter().map(|name| (*name, "-f".to_owned()));
    for (name, how) in choices.chain(files) {
        out += &format!("        {name}) COMPREPLY=($(compgen {how} -- \"$cur\")); return ;;\n");
    }
    out += "    esac\n    local words=\n    case ${COMP_WORDS[1]} in\n";
    for entry in entries {
        out += &format!(
            "        {}) words=\"{}\" ;;\n",
            entry.info.name,
            words(entry)
        );
    }
    out += "    esac\n    case $cur in\n        \
            -*) COMPREPLY=($(compgen -W \"$words\" -- \"$cur\")) ;;\n        \
            *) COMPREPLY=($(compgen -f -- \"$cur\")) ;;\n    esac\n}\n\
            complete -o filenames -F _reflash reflash\n";
    out
}

/// A text inside of single quotes, without what has a meaning in zsh's specifications.
fn quoted(text: &str) -> String {
    let text = text.replace('\n', " ").replace('\'', "'\\''");
    text.replace('[', "(").replace(']', ")").replace(':', "\\:")
}

fn zsh(entries: &[Entry]) -> String {
    let mut out = "#compdef reflash\n# zsh completion for reflash\nlocal -a commands\ncommands=(\n"
        .to_owned();
    for Entry { info, .. } in entries {
        out += &format!("    '{}:{}'\n", info.name, quoted(info.description));
    }
    out += ")\nif (( CURRENT == 2 )); then\n    _describe command commands\n    return\nfi\n\
            local command=$words[2]\nshift words\n(( CURRENT-- ))\ncase $command in\n";
    for entry in entries {
        out += &format!("    {})\n        _arguments -S \\\n", entry.info.name);
        for flag in &entry.flags {
            let repeat = if flag.optionality == Optionality::Repeating || flag.long == "--verbose" {
                "*"
            } else {
                ""
            };
            let after = match value(flag) {
                Value::None => String::new(),
                Value::Choice(words) => format!(":value:({words})"),
                Value::File => ":file:_files".to_owned(),
                Value::Any => ":value:".to_owned(),
            };
            let text = quoted(flag.description);
            let short = flag.short.map(|short| format!("-{short}"));
            for name in [Some(flag.long.to_owned()), short].into_iter().flatten() {
                out += &format!("            '{repeat}{name}[{text}]{after}' \\\n");
            }
        }
        out += "            '--help[tell what there is]' '*:file:_files'\n        ;;\n";
    }
    out += "esac\n";
    out
}

fn fish(entries: &[Entry]) -> String {
    let quoted = |text: &str| {
        let text = text.replace('\n', " ").replace('\\', "\\\\");
        text.replace('\'', "\\'")
    };
    let mut out = "# fish completion for reflash\n".to_owned();
    for Entry { info, .. } in entries {
        out += &format!(
            "complete -c reflash -n __fish_use_subcommand -f -a {} -d '{}'\n",
            info.name,
            quoted(info.description)
        );
    }
    for entry in entries {
        for flag in &entry.flags {
            let mut line = format!(
                "complete -c reflash -n '__fish_seen_subcommand_from {}' -l {}",
                entry.info.name,
                flag.long.trim_start_matches('-')
            );
            if let Some(short) = flag.short {
                line += &format!(" -s {short}");
            }
            line += match value(flag) {
                Value::None => "",
                Value::File => " -r -F",
                Value::Choice(_) | Value::Any => " -x",
            };
            if let Value::Choice(words) = value(flag) {
                line += &format!(" -a '{words}'");
            }
            out += &format!("{line} -d '{}'\n", quoted(flag.description));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_about_options_that_there_are() {
        let entries = entries();
        let known = |name: &str| {
            let mut flags = entries.iter().flat_map(|entry| &entry.flags);
            flags.any(|flag| flag.long == name && flag.kind != FlagInfoKind::Switch)
        };
        for name in CHOICES.iter().map(|(name, _)| *name).chain(FILES) {
            assert!(known(name), "{name} is no option with a value");
        }
    }

    #[test]
    fn manual_pages_have_their_own_quoting() {
        assert_eq!(roff(".so it is\n-v \\n"), "\\&.so it is\n\\-v \\en");
    }
}
