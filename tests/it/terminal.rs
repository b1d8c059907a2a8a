//! Progress as it looks on a terminal of any width, in a log, to the service manager; and the log
//! file.
//!
//! `script` makes the terminal; where there is none, the tests about it say so and pass.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::make_bundle::{random_image, Bundle, Made, Payload};
use crate::server::{Fault, Server, When};
use crate::util::{temp_dir, Run};

struct Site {
    folder: TempDir,
    server: Server,
    made: Made,
}

impl Site {
    fn new() -> Self {
        let payload = Payload::slot("system", random_image(600_000, 5)).chunker("fixed-8");
        let made = Bundle::of(payload).make();
        Self {
            folder: temp_dir(),
            server: Server::start([("/b", made.bytes.clone())]),
            made,
        }
    }

    /// An install that takes two seconds and a half.
    fn words(&self) -> Vec<String> {
        let url = self.server.url("/b");
        let hash = &self.made.bundle_hash;
        let words = ["install", &url, "--bundle-hash", hash, "--target", "target"];
        let slow = ["--limit-rate", "240k"];
        words
            .iter()
            .chain(&slow)
            .map(|word| (*word).to_owned())
            .collect()
    }

    fn run(&self) -> Run {
        Run::new(self.words()).dir(self.folder.path())
    }

    /// The same in a terminal of so many columns: what that shows, or nothing without `script`.
    fn in_terminal(&self, columns: usize, term: &str, more: &str) -> Option<String> {
        let line = format!(
            "stty cols {columns}; exec '{}' {} {more}",
            env!("CARGO_BIN_EXE_reflash"),
            self.words().join(" ")
        );
        let run = Command::new("script")
            .args(["-qec", &line, "/dev/null"])
            .current_dir(self.folder.path())
            .env("TERM", term)
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .output();
        let Ok(output) = run else {
            eprintln!("skipped: there is no script");
            return None;
        };
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{shown}");
        fs::remove_file(self.folder.path().join("target")).unwrap();
        Some(shown)
    }
}

/// The percentages at the beginning of lines: none may be lower than the one before.
fn assert_rising<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<u32> {
    let percent = |line: &str| {
        let (number, _) = line.split_once(" %")?;
        number.trim().parse().ok()
    };
    let all: Vec<u32> = lines.filter_map(percent).collect();
    assert!(all.is_sorted(), "{all:?}");
    // What is not done yet is not 100 %.
    assert!(all.iter().all(|percent| *percent < 100), "{all:?}");
    all
}

#[test]
fn a_bar_is_rewritten_and_fits() {
    let site = Site::new();
    for columns in [20, 40, 80, 132] {
        let Some(shown) = site.in_terminal(columns, "linux", "") else {
            return;
        };
        let bars: Vec<_> = shown
            .split('\r')
            .filter_map(|part| part.strip_suffix("\x1b[K"))
            .collect();
        assert!(bars.len() > 5, "{columns}: {shown:?}");
        for bar in &bars {
            assert!(bar.len() < columns, "{columns}: {bar:?}");
            assert!(!bar.contains(['\n', '\x1b']), "{bar:?}");
        }
        let percent = assert_rising(bars.iter().copied());
        assert!(percent.iter().any(|p| (20..90).contains(p)), "{percent:?}");
        // The bar goes, the summary stays.
        let (_, after) = shown.rsplit_once("\x1b[K").unwrap();
        assert!(after.starts_with("installed "), "{after:?}");
        let has = |part: &str| bars.iter().any(|bar| bar.contains(part));
        assert_eq!(has("[="), columns >= 40, "{columns}: {bars:?}");
        assert_eq!(has("fetched"), columns >= 80, "{columns}: {bars:?}");
        assert_eq!(has("KiB/s"), columns >= 40, "{columns}: {bars:?}");
        assert!(has("install"), "{columns}: {bars:?}");
    }
}

#[test]
fn what_is_no_such_terminal_gets_whole_lines_once_a_second() {
    let site = Site::new();
    let dumb = site.in_terminal(80, "dumb", "");
    let asked = site.in_terminal(80, "linux", "--progress lines");
    let log = site.run().run();
    log.expect_exit(0);
    // A bar that was asked for is none in a log either.
    fs::remove_file(site.folder.path().join("target")).unwrap();
    let bar = site.run().args(["--progress", "bar"]).run();
    bar.expect_exit(0);
    for shown in [dumb, asked, Some(log.stderr), Some(bar.stderr)] {
        let Some(shown) = shown else { continue };
        assert!(!shown.contains('\x1b'), "{shown:?}");
        let lines: Vec<_> = shown
            .lines()
            .map(|line| line.trim_end_matches('\r'))
            .collect();
        assert!(!lines.iter().any(|line| line.contains('\r')), "{shown:?}");
        let percent = assert_rising(lines.iter().copied());
        assert!((2..=6).contains(&percent.len()), "{shown}");
        assert!(shown.contains("blocks, "), "{shown}");
    }
}

/// Whole runs of the protocol, also one whose server is gone.
#[test]
fn the_service_manager_is_told() {
    let site = Site::new();
    let path = site.folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let told = || {
        let mut told = Vec::new();
        let mut buffer = [0; 4096];
        while let Ok(len) = manager.recv(&mut buffer) {
            told.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
        }
        told
    };
    let run = || site.run().env("NOTIFY_SOCKET", &path).arg("--quiet").run();
    run().expect_exit(0);
    let all = told();
    assert!((2..=6).contains(&all.len()), "{all:?}");
    let statuses = all.iter().filter_map(|text| text.strip_prefix("STATUS="));
    assert_rising(statuses);
    assert_eq!(all.last().unwrap(), "READY=1\nSTATUS=installed\n");
    site.server
        .fault(When::Always, Fault::Status(404, Vec::new()));
    run().expect_exit(4);
    let all = told();
    assert!(all.last().unwrap().contains("404"), "{all:?}");
    assert!(all.iter().all(|text| !text.contains("READY")), "{all:?}");
    // A manager that is not there hurts nobody.
    site.server.clear_rules();
    drop(manager);
    run().expect_exit(0);
}

#[test]
fn messages_can_go_to_a_file_too() {
    let site = Site::new();
    let log = site.folder.path().join("log");
    fs::write(&log, "before\n").unwrap();
    let outcome = site.run().args(["--quiet", "--log", "log"]).run();
    outcome.expect_exit(0);
    outcome.expect(outcome.stderr.is_empty(), "quiet is quiet");
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.starts_with("before\nreflash: "), "{text}");
    assert!(text.contains("reflash: plan payload=0"), "{text}");
    assert!(!text.contains(" % "), "progress is not for a log:\n{text}");
    site.server
        .fault(When::Always, Fault::Status(404, Vec::new()));
    let failed = site.run().args(["--log", "log"]).run();
    failed.expect_exit(4).expect_stderr("404");
    let text = fs::read_to_string(&log).unwrap();
    assert!(
        text.lines()
            .any(|line| line.starts_with("reflash: cannot get")),
        "{text}"
    );
    let refused = site.run().args(["--log", "no/such/log"]).run();
    refused.expect_exit(2).expect_stderr("no/such/log");
}
