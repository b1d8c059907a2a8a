//! What people read when something is wrong: transcripts of runs, compared to the letter.
//!
//! A file of tests/data/transcripts has a run after another:
//!
//! ```text
//! # why
//! $ NAME=value reflash install page.html --target target
//! exit 4
//! | a line on standard error
//! > a line on standard output
//! ```
//!
//! Every run finds the same files (see [`Stage::new`]), and must leave `target` alone. `{server}` stands
//! for the URL of a server, `{hash}` for the hash of good.rugixb. When messages change,
//! `REFLASH_BLESS=1 cargo test messages` writes what the program says now: read the difference before
//! you commit it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::server::Server;
use crate::util::{data, read_json, temp_dir, text, vector, Outcome, Run};

/// The files and the server that runs find.
struct Stage {
    folder: TempDir,
    server: Server,
    hash: String,
}

const PAGE: &[u8] = b"\n<!DOCTYPE html>\n<html><title>Sign in to the network</title></html>\n";

/// What is to be packed, with a line more on how.
fn folder_of(encoding: &str) -> Vec<u8> {
    let manifest = "update-type = 'full'\n\n[[payloads]]\nfilename = 'system.img'\n\
                    [payloads.delivery]\ntype = 'slot'\nslot = 'system'\n\
                    [payloads.block-encoding]\nchunker = 'casync-64'\n";
    format!("{manifest}{encoding}\n").into_bytes()
}

impl Stage {
    fn new() -> Self {
        let folder = temp_dir();
        let good = vector("bundles/casync8-xz-dedup.rugixb");
        for (name, bytes) in [
            // Taken for a bundle by mistake.
            ("page.html", PAGE.to_vec()),
            ("error.xml", b"<?xml version='1.0'?><Error/>".to_vec()),
            ("answer.json", b"{\"error\": \"no such file\"}".to_vec()),
            ("empty", Vec::new()),
            ("zeros", vec![0; 70_000]),
            ("raw.img", vector("images/old.img")),
            ("image.xz", b"\xfd7zXZ\0\0\x04 and so on".to_vec()),
            ("image.gz", b"\x1f\x8b\x08\0 and so on".to_vec()),
            ("image.zst", b"\x28\xb5\x2f\xfd and so on".to_vec()),
            ("update.zip", b"PK\x03\x04 and so on".to_vec()),
            ("update.raucb", b"hsqs and so on".to_vec()),
            (
                "old.rugix-block-index",
                vector("index/old.casync-8_sha512-256.rugix-block-index"),
            ),
            // Bundles.
            ("cut.rugixb", good[..900].to_vec()),
            ("short.rugixb", good[..good.len() / 2].to_vec()),
            ("good.rugixb", good),
            ("plain.rugixb", vector("bundles/plain.rugixb")),
            ("execute.rugixb", vector("bundles/execute.rugixb")),
            ("two.rugixb", vector("bundles/two-payloads.rugixb")),
            ("delta.rugixb", vector("bundles/xdelta.rugixb")),
            // Folders that no bundle can be made of.
            ("typo/rugix-bundle.toml", folder_of("deduplication = true")),
            (
                "zstd/rugix-bundle.toml",
                folder_of("compression = { type = 'zstd' }"),
            ),
            (
                "app/rugix-bundle.toml",
                b"update-type = 'full'\n\n[[payloads]]\nfilename = 'compose.yml'\n\
                  delivery = { type = 'app-file', app = 'web', path = 'compose.yml' }\n"
                    .to_vec(),
            ),
            (
                "above/rugix-bundle.toml",
                b"update-type = 'full'\n\n[[payloads]]\nfilename = '../system.img'\n\
                  delivery = { type = 'slot', slot = 'system' }\n"
                    .to_vec(),
            ),
            ("nothing/rugix-bundle.toml", folder_of("deduplicate = true")),
            ("broken/rugix-bundle.toml", b"update-type = full\n".to_vec()),
            // Targets.
            ("target", b"as it was".to_vec()),
        ] {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        fs::create_dir(folder.path().join("folder")).unwrap();
        let pipe = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(pipe).status();
        assert!(made.unwrap().success());
        let facts = read_json(data("vectors/bundles/casync8-xz-dedup.json"));
        Self {
            server: Server::start([
                (
                    "/good",
                    fs::read(folder.path().join("good.rugixb")).unwrap(),
                ),
                ("/login", PAGE.to_vec()),
            ]),
            hash: text(&facts, "/bundle-hash").to_owned(),
            folder,
        }
    }

    fn placeholders(&self) -> [(&'static str, String); 2] {
        let url = self.server.url("/");
        [
            ("{server}", url.trim_end_matches('/').to_owned()),
            ("{hash}", self.hash.clone()),
        ]
    }

    fn run(&self, line: &str) -> Outcome {
        let mut line = line.to_owned();
        for (name, value) in self.placeholders() {
            line = line.replace(name, &value);
        }
        let mut words = line.split(' ').peekable();
        let mut environment = Vec::new();
        while let Some(word) = words.next_if(|word| *word != "reflash") {
            environment.push(word.split_once('=').expect("NAME=value"));
        }
        let run = Run::new(words.skip(1)).dir(self.folder.path());
        let run = environment
            .into_iter()
            .fold(run, |run, (name, value)| run.env(name, value));
        run.run()
    }

    /// What a transcript has of it.
    fn told(&self, outcome: &Outcome) -> String {
        let mut told = format!("exit {}\n", outcome.code().expect("an exit"));
        for (mark, stream) in [('|', &outcome.stderr), ('>', &outcome.stdout)] {
            for line in stream.lines() {
                told += format!("{mark} {line}").trim_end();
                told.push('\n');
            }
        }
        for (name, value) in self.placeholders() {
            told = told.replace(&value, name);
        }
        told
    }
}

fn transcripts() -> Vec<PathBuf> {
    let folder = fs::read_dir(data("transcripts")).unwrap();
    let mut all: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.extension().is_some_and(|extension| extension == "txt"));
    all.sort();
    assert!(!all.is_empty());
    all
}

/// The transcript as the program would write it now.
fn replay(path: &Path, stage: &Stage) -> String {
    let old = fs::read_to_string(path).unwrap();
    let mut new = String::new();
    for line in old.lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            new += &format!("{line}\n{}", stage.told(&stage.run(command)));
            let target = fs::read(stage.folder.path().join("target")).unwrap();
            assert_eq!(target, b"as it was", "{command}");
        } else if line.is_empty() || line.starts_with('#') {
            new += &format!("{line}\n");
        }
    }
    new
}

#[test]
fn messages_are_those_of_the_transcripts() {
    let stage = Stage::new();
    let bless = std::env::var_os("REFLASH_BLESS").is_some();
    let mut changed = Vec::new();
    for path in transcripts() {
        let (old, new) = (fs::read_to_string(&path).unwrap(), replay(&path, &stage));
        if bless {
            fs::write(&path, new).unwrap();
        } else if old != new {
            let pairs = old.lines().zip(new.lines().chain([""; 1]));
            let first = pairs.enumerate().find(|(_, (old, new))| old != new);
            changed.push(format!("{}: {first:#?}", path.display()));
        }
    }
    assert!(changed.is_empty(), "{}", changed.join("\n"));
}

/// What must hold of every message, whatever it says.
#[test]
fn every_message_is_one_that_helps() {
    for path in transcripts() {
        let transcript = fs::read_to_string(&path).unwrap();
        for run in transcript.split("\n$ ").skip(1) {
            let mut lines = run.lines();
            let command = lines.next().unwrap();
            let exit = lines.next().unwrap();
            let said: Vec<&str> = lines.filter_map(|line| line.strip_prefix("| ")).collect();
            if exit == "exit 0" {
                continue;
            }
            let mut messages = said
                .iter()
                .filter_map(|line| line.strip_prefix("reflash: "));
            let message = messages.next();
            let message = message.unwrap_or_else(|| panic!("{command}: nothing is said"));
            assert_eq!(messages.next(), None, "{command}: it is said twice");
            // One line, that does not end as a sentence and is not of the program's own insides.
            assert!(!message.ends_with('.'), "{command}: {message}");
            for word in ["Err(", "Some(", "panicked", "os error 0", "Error {"] {
                assert!(!run.contains(word), "{command}: {word}");
            }
            // It names what was given: a word of the command.
            let words = command.split([' ', '=', '/']);
            let names = words.filter(|word| word.len() > 2 && *word != "reflash");
            let named = names
                .into_iter()
                .any(|word| run[command.len()..].contains(word));
            // Or, where something is missing, what to give.
            let asked = message.contains("--") || command == "reflash";
            assert!(named || asked, "{command}: what is it about? {message}");
        }
    }
}

/// A result is what a command is for; a reader that went away has seen what it wanted.
#[test]
fn a_result_that_cannot_be_written_is_an_error() {
    let folder = temp_dir();
    for (name, path) in [
        ("image", "images/new.img"),
        ("bundle", "bundles/signed-base.rugixb"),
        ("signature", "certs/signed-ec.cms"),
    ] {
        fs::write(folder.path().join(name), vector(path)).unwrap();
    }
    let insecure = "--insecure-skip-bundle-verification";
    // First what the others read.
    for words in [
        "pack image -o packed",
        "pack image -o packed --progress json",
        "sign bundle --metadata to-sign",
        "sign bundle --signature signature -o signed",
        "index image -o index --json",
        "index image -o index --progress json",
        "estimate image image --chunker fixed-64",
        "estimate image image --chunker fixed-64 --json",
        "inspect packed",
        "inspect packed --json",
        &format!("plan packed --target new {insecure}"),
        &format!("plan packed --target new --json {insecure}"),
        &format!("verify packed --target image --json {insecure}"),
        "--version",
        "install --help",
    ] {
        let run = || Run::new(words.split(' ')).dir(folder.path());
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        run().stdout(writer).run().expect_exit(0);
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let outcome = run().stdout(full.unwrap()).run();
        outcome.expect_exit(2);
        outcome.expect_stderr("cannot write standard output: No space left on device");
    }
}
