//! The tables of the README that say what happens when something is wrong, against the tests.
//!
//! Each row names, in a comment that a reader does not see, the tests that hold it; each such test has
//! the line [`MARK`] above it. So no row is without a test, and none of these tests can be renamed,
//! taken away or left out of the tables unnoticed. The commands that the README tells fleets to use
//! are run here as they stand there.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::make_bundle::{random_image, Payload};
use crate::site::Site;
use crate::tidy::files;

/// Above the `#[test]` of a test that holds a row.
const MARK: &str = "// A row of README.md.";

/// The head of such a table.
const HEAD: &str = "| what happens | what `reflash` does |";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn readme() -> String {
    fs::read_to_string(root().join("README.md")).unwrap()
}

/// The tests in a source, and whether they are marked.
fn tests_in(module: &str, source: &str) -> Vec<(String, bool)> {
    let lines: Vec<_> = source.lines().map(str::trim).collect();
    let mut found = Vec::new();
    for (at, _) in lines
        .iter()
        .enumerate()
        .filter(|(_, line)| **line == "#[test]")
    {
        let name = lines[at..].iter().find_map(|line| line.strip_prefix("fn "));
        let (name, _) = name.and_then(|name| name.split_once('(')).unwrap();
        let marked = at > 0 && lines[at - 1] == MARK;
        found.push((format!("{module}::{name}"), marked));
    }
    found
}

/// The rows of the tables: each as it is shown, and the tests that it names.
fn rows_in(readme: &str) -> Vec<(String, Vec<String>)> {
    let mut rows = Vec::new();
    let mut lines = readme.lines();
    while lines.by_ref().any(|line| line == HEAD) {
        let table = lines.by_ref().skip(1).take_while(|l| l.starts_with('|'));
        rows.extend(table.map(|row| {
            let comment = row.split_once("<!-- ").and_then(|r| r.1.split_once(" -->"));
            let names = comment.map_or("", |(names, _)| names).split(' ');
            let names = names.filter(|name| !name.is_empty()).map(str::to_owned);
            (row.to_owned(), names.collect())
        }));
    }
    rows
}

/// What is wrong between the tables and the tests.
fn differences(rows: &[(String, Vec<String>)], tests: &[(String, bool)]) -> Vec<String> {
    let mut wrong = Vec::new();
    let named: BTreeSet<_> = rows.iter().flat_map(|(_, names)| names).collect();
    for (row, names) in rows {
        if names.is_empty() {
            wrong.push(format!("no test holds {row}"));
        }
    }
    for name in &named {
        match tests.iter().find(|(test, _)| test == *name) {
            None => wrong.push(format!("there is no test {name}")),
            Some((_, false)) => wrong.push(format!("{name} lacks the line {MARK:?}")),
            Some((_, true)) => {}
        }
    }
    let left_out = tests
        .iter()
        .filter(|(test, marked)| *marked && !named.contains(test));
    wrong.extend(left_out.map(|(test, _)| format!("no row names {test}")));
    wrong
}

#[test]
fn tables_and_tests_are_one() {
    let folder = root().join("tests/it");
    let mut tests = Vec::new();
    for path in files(&folder) {
        // A file in a folder is a part of the module of that name.
        let module = path.strip_prefix(&folder).unwrap().with_extension("");
        let module = module.iter().next().unwrap().to_str().unwrap();
        tests.extend(tests_in(module, &fs::read_to_string(&path).unwrap()));
    }
    assert!(tests.len() > 200, "where are the others?");
    let rows = rows_in(&readme());
    assert!(rows.len() > 25, "where are the others?");
    let wrong = differences(&rows, &tests);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Each way in which tables and tests can differ is seen.
#[test]
fn what_differs_is_seen() {
    let source = format!(
        "{MARK}\n#[test]\nfn held() {{}}\n\n    #[test]\n    #[cfg(x)]\n    fn free() {{}}\n"
    );
    let tests = tests_in("m", &source);
    let of = |rows: &str| {
        rows_in(&format!(
            "text\n{HEAD}\n|---|---|\n{rows}\n\n| other | table |\n"
        ))
    };
    assert_eq!(
        differences(&of("| a | b <!-- m::held --> |"), &tests),
        [""; 0]
    );
    for (rows, expected) in [
        (
            "| a | b <!-- m::held --> |\n| c | d |",
            "no test holds | c | d |",
        ),
        (
            "| a | b <!-- m::held m::gone --> |",
            "there is no test m::gone",
        ),
        (
            "| a | b <!-- m::held m::free --> |",
            "m::free lacks the line",
        ),
        ("", "no row names m::held"),
    ] {
        let wrong = differences(&of(rows), &tests);
        assert!(
            wrong.len() == 1 && wrong[0].starts_with(expected),
            "{rows}: {wrong:?}"
        );
    }
}

/// The picture shows what the table beside it says, and no other figure.
#[test]
fn the_plot_has_the_figures_of_its_table() {
    let picture = fs::read_to_string(root().join("tests/bench/update.svg")).unwrap();
    let readme = readme();
    let (_, table) = readme.split_once("| | 0 ms | 10 ms | 40 ms |").unwrap();
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let seconds: Vec<_> = rows
        .flat_map(|row| row.split(" | ").skip(1).take(3))
        .map(|cell| (cell, cell.parse::<f64>().unwrap()))
        .collect();
    assert_eq!(seconds.len(), 9);
    // The points of the lines: 40 pixels are ten seconds, and 244 is none.
    let points = picture.lines().filter(|line| line.starts_with("<circle"));
    let drawn: Vec<f64> = points
        .map(|point| {
            let (_, y) = point.split_once("cy=\"").unwrap();
            (244.0 - y.split('"').next().unwrap().parse::<f64>().unwrap()) / 4.0
        })
        .collect();
    assert_eq!(drawn.len(), seconds.len());
    for ((cell, expected), drawn) in seconds.iter().zip(drawn) {
        assert!((expected - drawn).abs() < 0.05, "{expected} {drawn}");
        assert!(picture.contains(&format!(">{cell}")), "{cell} is not told");
    }
}

/// The block of code in the README that has these words.
fn block_with(language: &str, words: &str) -> String {
    let readme = readme();
    let mut blocks = readme
        .split("\n```")
        .filter_map(|block| block.strip_prefix(language));
    let block = blocks.find(|block| block.contains(words));
    block
        .unwrap_or_else(|| panic!("no {language} with {words}"))
        .to_owned()
}

/// What each class of end makes the examples do: the bundle's path, the target, what they say.
const ENDS: [(&str, &str, &str); 5] = [
    ("/b", "slot", "boot_into slot"),
    // Once more: there is nothing to do.
    ("/b", "slot", ""),
    ("/none", "slot", "ask_for_another_bundle"),
    ("/b", "folder", "mark_bad folder"),
    ("", "slot", "retry_later"),
];

/// An example, given the values of its variables.
type Script<'a> = &'a dyn Fn(&[(&str, &str)]) -> String;

/// Runs an example with what it leaves to others said on standard output.
fn assert_acts(interpreter: &str, script: Script<'_>) {
    let site = Site::of(Payload::slot("system", random_image(100_000, 9)));
    let program = site.path("reflash");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_reflash"), program).unwrap();
    site.file("current", &random_image(50_000, 9));
    fs::create_dir(site.path("folder")).unwrap();
    let others = std::env::var("PATH").unwrap();
    let path = format!("{}:{others}", site.folder.path().display());
    for (bundle, target, expected) in ENDS {
        let url = match bundle {
            "" => "http://127.0.0.1:1/b".to_owned(),
            path => site.server.url(path),
        };
        let variables = [
            ("url", url.as_str()),
            ("slot", target),
            ("current", "current"),
            ("hash", &site.made.bundle_hash),
            ("report", "report"),
        ];
        let run = Command::new(interpreter)
            .args(["-c", &script(&variables)])
            .current_dir(site.folder.path())
            .env("PATH", &path)
            .env("REFLASH_HTTP_MAX_RETRIES", "0")
            .output();
        let Ok(output) = run else {
            return eprintln!("skipped: there is no {interpreter}");
        };
        let said = String::from_utf8_lossy(&output.stdout);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            said.trim(),
            expected,
            "{interpreter} {bundle} {target}: {errors}"
        );
    }
}

/// Words that the examples call and leave to others.
const CALLS: [&str; 6] = [
    "boot_into",
    "retry_later",
    "retry_now",
    "ask_for_another_bundle",
    "mark_bad",
    "report_bug",
];

#[test]
fn the_shell_example_acts_on_every_end() {
    let example = block_with("sh\n", "case $?");
    assert_acts("sh", &|variables| {
        let values = variables
            .iter()
            .map(|(name, value)| format!("{name}='{value}'\n"));
        let calls = CALLS
            .iter()
            .map(|name| format!("{name}() {{ echo {name} \"$@\"; }}\n"));
        values.chain(calls).chain([example.clone()]).collect()
    });
}

#[test]
fn the_python_example_acts_on_every_end() {
    let example = block_with("python\n", "subprocess");
    assert_acts("python3", &|variables| {
        let values = variables
            .iter()
            .map(|(name, value)| format!("{name} = {value:?}\n"));
        let calls = CALLS
            .iter()
            .map(|name| format!("def {name}(*words): print('{name}', *words)\n"));
        let shown = "def show(phase, percent): assert 0 <= percent <= 100\n".to_owned();
        values
            .chain(calls)
            .chain([shown, example.clone()])
            .collect()
    });
}
