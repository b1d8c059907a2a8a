//! Signals end a run within a second from wherever it is, and it says what it leaves behind.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::make_bundle::{mixed_image, Bundle, Payload};
use crate::server::{Fault, Server, When};
use crate::util::{assert_file, read_json, temp_dir, text, Outcome, Run};

/// What the promise allows, and what a loaded test machine adds.
const PROMPT: Duration = Duration::from_secs(4);

fn wait_until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

struct Scene {
    server: Server,
    image: Vec<u8>,
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let image = mixed_image(3_000_000, 7);
        let bundle = Bundle::of(Payload::slot("system", image.clone()).chunker("casync-16")).make();
        Self {
            server: Server::start([("/b", bundle.bytes)]),
            image,
            folder: temp_dir(),
        }
    }

    fn run(&self, args: &[&str]) -> Run {
        Run::new(["install", &self.server.url("/b")])
            .arg("--target")
            .arg(self.target())
            .arg("--report")
            .arg(self.report())
            .arg("--insecure-skip-bundle-verification")
            .args(args)
    }

    fn target(&self) -> std::path::PathBuf {
        self.folder.path().join("target")
    }

    fn report(&self) -> std::path::PathBuf {
        self.folder.path().join("report")
    }

    /// Starts a run, sends the signal once `ready`, and checks how it ends.
    fn interrupt(
        &self,
        args: &[&str],
        signal: &str,
        exit: i32,
        ready: impl Fn() -> bool,
    ) -> Outcome {
        let running = self.run(args).spawn();
        wait_until("the run gets to where it is to be", ready);
        let sent = Instant::now();
        running.signal(signal);
        let outcome = running.finish();
        let took = sent.elapsed();
        outcome.expect(took < PROMPT, &format!("ended {took:?} after the signal"));
        outcome.expect_exit(exit);
        outcome.expect_stderr(&format!("interrupted by SIG{signal}"));
        let report = read_json(self.report());
        assert_eq!(report["exit"], exit, "{report}");
        assert_eq!(text(&report, "/result"), "failed");
        outcome
    }

    fn installs_after_all(&self) {
        self.server.clear_rules();
        self.run(&[]).run().expect_exit(0);
        assert_file(self.target(), &self.image);
    }
}

fn exists(path: &Path) -> bool {
    path.exists()
}

// A row of README.md.
#[test]
fn from_a_server_that_keeps_silent() {
    let scene = Scene::new();
    scene.server.fault(When::Always, Fault::StallBeforeHeaders);
    let asked = || !scene.server.requests().is_empty();
    let outcome = scene.interrupt(&[], "INT", 130, asked);
    outcome.expect_stderr("the target was not touched");
    assert!(!exists(&scene.target()));
    scene.installs_after_all();
}

// A row of README.md.
#[test]
fn from_the_wait_before_a_retry() {
    let scene = Scene::new();
    scene.server.fault(When::Always, Fault::Status(503, vec![]));
    let asked = || !scene.server.requests().is_empty();
    let args = [
        "--http-retry-initial-backoff",
        "1h",
        "--http-retry-max-backoff",
        "1h",
    ];
    scene.interrupt(&args, "HUP", 129, asked);
    scene.installs_after_all();
}

// A row of README.md.
#[test]
fn from_the_middle_of_writing() {
    let scene = Scene::new();
    // As slow as needed for the signal to come in the middle.
    let written = || exists(&scene.target());
    let outcome = scene.interrupt(&["--limit-rate", "200k"], "TERM", 143, written);
    outcome.expect_stderr("the target is incomplete");
    let target = std::fs::read(scene.target()).unwrap();
    let beginning = target.len().min(4096);
    assert!(target[..beginning] == [0; 4096][..beginning]);
    assert_eq!(read_json(scene.report())["target_touched"], true);
    scene.installs_after_all();
}

// A row of README.md.
#[test]
fn from_a_body_that_stops() {
    let scene = Scene::new();
    scene
        .server
        .fault(When::After(1), Fault::Stall { after: 100 });
    let asked = || scene.server.requests().len() > 1;
    scene.interrupt(&["--progress", "json"], "TERM", 143, asked);
    scene.installs_after_all();
}

/// A pipe that nobody reads. It is full once [`Stopped::fill`] returns.
struct Stopped {
    reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

impl Stopped {
    fn new() -> Self {
        let (reader, writer) = std::io::pipe().unwrap();
        Self { reader, writer }
    }

    fn end(&self) -> std::io::PipeWriter {
        self.writer.try_clone().unwrap()
    }

    /// From a thread that hangs in it from then on, until the reader is dropped.
    fn fill(self) -> std::io::PipeReader {
        let written = Arc::new(AtomicUsize::new(0));
        let (mut writer, count) = (self.writer, written.clone());
        std::thread::spawn(move || {
            while writer.write_all(b"\n").is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut before = None;
        while before != Some(written.load(Ordering::Relaxed)) {
            before = Some(written.load(Ordering::Relaxed));
            std::thread::sleep(Duration::from_millis(200));
        }
        self.reader
    }
}

#[test]
fn from_who_hangs_in_telling() {
    let scene = Scene::new();
    let progress = |mode| {
        let patience = "--http-max-retries infinite --http-retry-max-backoff 0.05 --progress";
        patience.split(' ').chain([mode]).collect::<Vec<_>>()
    };
    let (json, lines) = (progress("json"), progress("lines"));
    // Warnings go to both streams, many a second.
    scene.server.fault(When::Always, Fault::Status(503, vec![]));
    for (args, full) in [(&json, "stdout"), (&json, "stderr"), (&lines, "stderr")] {
        let seen = scene.server.requests().len();
        let pipe = Stopped::new();
        let run = scene.run(args);
        let running = match full {
            "stdout" => run.stdout(pipe.end()).spawn(),
            _ => run.stderr(pipe.end()).spawn(),
        };
        wait_until("it asks", || scene.server.requests().len() > seen + 1);
        let _reader = pipe.fill();
        let sent = Instant::now();
        running.signal("TERM");
        let outcome = running.finish();
        outcome
            .expect(sent.elapsed() < PROMPT, "prompt")
            .expect_exit(143);
        let report = read_json(scene.report());
        assert_eq!(report["exit"], 143, "{args:?} {full}: {report}");
        if full == "stdout" {
            outcome.expect_stderr("interrupted by SIGTERM");
            outcome.expect_stderr("the target was not touched");
        } else if args.contains(&"json") {
            outcome.expect_stdout("{\"event\":\"failed\"");
        }
    }
    scene.installs_after_all();
}
