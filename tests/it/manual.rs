//! The manual page and the completions of shells: that every option of the help is in them, and
//! that their own programs take them.

use std::fs;
use std::process::Command;

use reflash::internal::args::manual::{completion, man, Shell};

use crate::util::{reflash, temp_dir};

/// The subcommands, and the long options of each, by its help.
fn options() -> Vec<(String, Vec<String>)> {
    let help = reflash(["--help"]);
    let commands = help.stdout.lines().skip_while(|line| *line != "Commands:");
    let names = commands.skip(1).take_while(|line| line.starts_with("  "));
    let names = names.filter(|line| !line.starts_with("   "));
    let all: Vec<(String, Vec<String>)> = names
        .filter_map(|line| line.split_whitespace().next())
        .map(|name| {
            let help = reflash([name, "--help"]);
            help.expect_exit(0);
            let lines = help.stdout.lines().map(str::trim_start);
            let long = lines.filter_map(|line| {
                let words = line.split_whitespace().take(2);
                words
                    .map(|word| word.trim_end_matches(','))
                    .find(|w| w.starts_with("--"))
            });
            let long = long.filter(|word| *word != "--help").map(str::to_owned);
            (name.to_owned(), long.collect())
        })
        .collect();
    assert!(all
        .iter()
        .any(|(name, list)| name == "install" && list.len() > 30));
    all
}

#[test]
fn every_option_is_in_all_of_them() {
    let page = man();
    let (bash, zsh, fish) = (
        completion(Shell::Bash),
        completion(Shell::Zsh),
        completion(Shell::Fish),
    );
    for (command, options) in options() {
        assert!(
            page.contains(&format!(".B reflash {command}\n")),
            "{command}"
        );
        let words = bash.lines().find(|line| {
            let line = line.trim_start();
            line.starts_with(&format!("{command}) words="))
        });
        let words: Vec<_> = words.unwrap().split([' ', '"']).collect();
        let block = zsh.split(&format!("\n    {command})\n")).nth(1).unwrap();
        let block = block.split(";;").next().unwrap();
        for option in options {
            assert!(
                page.contains(&format!("\\fB{}\\fR", option.replace('-', "\\-"))),
                "{option}"
            );
            assert!(words.contains(&option.as_str()), "bash: {command} {option}");
            assert!(
                block.contains(&format!("{option}[")),
                "zsh: {command} {option}"
            );
            let name = option.trim_start_matches('-');
            let line = format!("__fish_seen_subcommand_from {command}' -l {name} ");
            assert!(fish.contains(&line), "fish: {command} {option}");
        }
    }
    for code in ["0", "1", "2", "3", "4", "5", "130"] {
        assert!(page.contains(&format!(".TP\n{code}\n")), "exit {code}");
    }
}

/// What bash makes of it.
#[test]
fn bash_completes_subcommands_options_and_files() {
    let folder = temp_dir();
    fs::write(folder.path().join("reflash.bash"), completion(Shell::Bash)).unwrap();
    fs::write(folder.path().join("bundle.rugixb"), "").unwrap();
    for (line, expected) in [
        ("reflash ins", "inspect install"),
        ("reflash install --resol", "--resolve"),
        ("reflash install --progress j", "json"),
        ("reflash install --target bun", "bundle.rugixb"),
        ("reflash install bun", "bundle.rugixb"),
        ("reflash index --res", ""),
    ] {
        let script = format!(
            "source ./reflash.bash; COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); \
             _reflash; printf '%s\\n' \"${{COMPREPLY[@]}}\" | sort | xargs"
        );
        let run = Command::new("bash")
            .args(["-c", &script])
            .current_dir(folder.path())
            .output();
        let Ok(output) = run else {
            eprintln!("skipped: there is no bash");
            return;
        };
        let found = String::from_utf8_lossy(&output.stdout);
        assert_eq!(found.trim(), expected, "{line}");
        assert!(output.stderr.is_empty(), "{output:?}");
    }
}

/// What the other programs make of them, where there are any.
#[test]
fn their_programs_have_nothing_to_complain_about() {
    let folder = temp_dir();
    for (name, text, program) in [
        ("reflash.1", man(), &["man", "--warnings", "-l"][..]),
        ("reflash.1", man(), &["groff", "-man", "-ww", "-z"]),
        (
            "reflash.1",
            man(),
            &["mandoc", "-T", "lint", "-W", "warning"],
        ),
        ("_reflash", completion(Shell::Zsh), &["zsh", "-n"]),
        ("reflash.fish", completion(Shell::Fish), &["fish", "-n"]),
    ] {
        fs::write(folder.path().join(name), text).unwrap();
        let run = Command::new(program[0])
            .args(&program[1..])
            .arg(name)
            .current_dir(folder.path())
            .output();
        match run {
            Ok(output) => {
                // Some complain on standard output.
                let all = [output.stderr, output.stdout];
                let said = String::from_utf8_lossy(&all[usize::from(program[0] == "mandoc")]);
                assert!(
                    output.status.success() && said.is_empty(),
                    "{program:?}: {said}"
                );
            }
            Err(error) => eprintln!("skipped: {}: {error}", program[0]),
        }
    }
}
