//! What every test needs: a temp dir, a runner for the binary, and assertions that say enough.
//!
//! The runner starts `reflash` with an environment free of its own options and of proxies, so that
//! a test means the same on every machine, and with a time limit: a hang is a failed test, not a
//! hung test run.

use std::ffi::OsString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// Longer than any healthy run here, also under an emulator.
const LIMIT: Duration = Duration::from_secs(60);

/// How much of a stream a failure message shows.
const SHOWN: usize = 8 * 1024;

pub fn temp_dir() -> TempDir {
    tempfile::Builder::new()
        .prefix("reflash-test-")
        .tempdir()
        .unwrap()
}

/// A file below `tests/data`.
pub fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(path)
}

/// The bytes of a golden vector, by its path below `tests/data/vectors`.
#[track_caller]
pub fn vector(path: &str) -> Vec<u8> {
    let path = data("vectors").join(path);
    fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A command line in the making.
#[derive(Debug)]
pub struct Run {
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    dir: Option<PathBuf>,
    stdin: Option<Vec<u8>>,
    stdout: Option<Stdio>,
    stderr: Option<Stdio>,
    limit: Duration,
}

/// `reflash` with these arguments, run to its end.
#[track_caller]
pub fn reflash<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Outcome {
    Run::new(args).run()
}

impl Run {
    pub fn new<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Self {
        Self {
            args: args.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            dir: None,
            stdin: None,
            stdout: None,
            stderr: None,
            limit: LIMIT,
        }
    }

    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub fn args<A: Into<OsString>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.dir = Some(dir.into());
        self
    }

    /// What the run reads from standard input; without it, nothing.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Some(bytes.into());
        self
    }

    /// Where standard output goes instead of into the outcome.
    pub fn stdout(mut self, stdout: impl Into<Stdio>) -> Self {
        self.stdout = Some(stdout.into());
        self
    }

    /// Where standard error goes instead of into the outcome.
    pub fn stderr(mut self, stderr: impl Into<Stdio>) -> Self {
        self.stderr = Some(stderr.into());
        self
    }

    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    #[track_caller]
    pub fn run(self) -> Outcome {
        self.spawn().finish()
    }

    /// Starts it and goes on: for tests that kill it or look at the target meanwhile.
    #[track_caller]
    pub fn spawn(self) -> Running {
        // `make test-cross`: a binary of another architecture, the emulator and its options.
        let other = std::env::var("REFLASH_TEST_BINARY").ok();
        let runner = std::env::var("REFLASH_TEST_RUNNER").unwrap_or_default();
        let binary = other.as_deref().unwrap_or(env!("CARGO_BIN_EXE_reflash"));
        let mut words = runner.split_whitespace().chain([binary]);
        let mut command = Command::new(words.next().unwrap());
        command.args(words).args(&self.args);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy().to_lowercase();
            if text.starts_with("reflash_") || text.ends_with("_proxy") {
                command.env_remove(&name);
            }
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &self.dir {
            command.current_dir(dir);
        }
        let shown = self.env.iter().map(|(name, value)| {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
            format!("{name}={value} ")
        });
        let mut line: String = shown.collect::<String>() + "reflash";
        for arg in &self.args {
            line += " ";
            line += &arg.to_string_lossy();
        }
        command.stdout(self.stdout.unwrap_or_else(Stdio::piped));
        command.stderr(self.stderr.unwrap_or_else(Stdio::piped));
        start(command, line, self.stdin, self.limit)
    }
}

/// Starts any command, whose output streams may be pipes.
#[track_caller]
fn start(mut command: Command, line: String, stdin: Option<Vec<u8>>, limit: Duration) -> Running {
    command.stdin(match stdin {
        Some(_) => Stdio::piped(),
        None => Stdio::null(),
    });
    let mut child = command.spawn().unwrap_or_else(|e| panic!("{line}: {e}"));
    if let Some(bytes) = stdin {
        let mut pipe = child.stdin.take().unwrap();
        thread::spawn(move || {
            // It need not read to the end: a broken pipe is the run's own business.
            drop(pipe.write_all(&bytes));
        });
    }
    Running {
        line,
        stdout: child.stdout.take().map(collect),
        stderr: child.stderr.take().map(collect),
        child,
        started: Instant::now(),
        limit,
    }
}

/// Reads a stream on its own thread: a full pipe must not stop the run.
fn collect(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // After a kill there may be no proper end; what came is what counts.
        drop(stream.read_to_end(&mut bytes));
        bytes
    })
}

/// A run that goes on. Finish it: only then its time limit is looked at.
#[derive(Debug)]
pub struct Running {
    line: String,
    child: Child,
    stdout: Option<JoinHandle<Vec<u8>>>,
    stderr: Option<JoinHandle<Vec<u8>>>,
    started: Instant,
    limit: Duration,
}

impl Running {
    /// SIGKILL: power failure, as far as the process can tell.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Any signal by name, for example `TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([format!("-{name}"), self.child.id().to_string()])
            .status();
        assert!(status.unwrap().success(), "kill -{name}");
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for the end and fails the test if that takes longer than the limit.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        let mut in_time = true;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if self.started.elapsed() > self.limit {
                in_time = false;
                self.child.kill().unwrap();
                break self.child.wait().unwrap();
            }
            // Waiting with a limit is not in std; this is fine enough for tests that take seconds.
            thread::sleep(Duration::from_millis(2));
        };
        let elapsed = self.started.elapsed();
        let text = |stream: &mut Option<JoinHandle<Vec<u8>>>| {
            let bytes = stream.take().map(|s| s.join().unwrap());
            let bytes = bytes.unwrap_or_default();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let outcome = Outcome {
            line: std::mem::take(&mut self.line),
            status,
            stdout: text(&mut self.stdout),
            stderr: text(&mut self.stderr),
            elapsed,
        };
        if !in_time {
            outcome.fail(&format!("still running after {:?}", self.limit));
        }
        outcome
    }
}

impl Drop for Running {
    /// A test that failed meanwhile leaves no process behind.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // It may have ended just now; then there is nothing to do.
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

/// A run that ended.
#[derive(Debug)]
pub struct Outcome {
    /// The command line, for messages.
    pub line: String,
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub elapsed: Duration,
}

impl Outcome {
    /// Fails the test with everything that is known of the run.
    #[track_caller]
    pub fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\n  command: {}\n  status:  {} after {:?}\n--- stdout\n{}\n--- stderr\n{}\n---",
            self.line,
            self.status,
            self.elapsed,
            shortened(&self.stdout),
            shortened(&self.stderr),
        );
    }

    #[track_caller]
    pub fn expect(&self, right: bool, what: &str) -> &Self {
        if !right {
            self.fail(what);
        }
        self
    }

    /// None: ended by a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    #[track_caller]
    pub fn expect_exit(&self, code: i32) -> &Self {
        self.expect(self.code() == Some(code), &format!("expected exit {code}"))
    }

    /// It did not handle the signal but died of it.
    #[track_caller]
    pub fn expect_killed_by(&self, signal: i32) -> &Self {
        let right = self.status.signal() == Some(signal);
        self.expect(right, &format!("expected death by signal {signal}"))
    }

    #[track_caller]
    pub fn expect_stdout(&self, part: &str) -> &Self {
        let right = self.stdout.contains(part);
        self.expect(right, &format!("expected on standard output: {part:?}"))
    }

    #[track_caller]
    pub fn expect_stderr(&self, part: &str) -> &Self {
        let right = self.stderr.contains(part);
        self.expect(right, &format!("expected on standard error: {part:?}"))
    }

    #[track_caller]
    pub fn expect_not_in_output(&self, part: &str) -> &Self {
        let right = !self.stdout.contains(part) && !self.stderr.contains(part);
        self.expect(right, &format!("must not be in the output: {part:?}"))
    }

    /// Standard output as JSON, one value a line.
    #[track_caller]
    pub fn json_lines(&self) -> Vec<Value> {
        let lines = self.stdout.lines();
        lines
            .map(|line| match serde_json::from_str(line) {
                Ok(value) => value,
                Err(e) => self.fail(&format!("not a line of JSON ({e}): {line:?}")),
            })
            .collect()
    }

    /// Standard output as one JSON value.
    #[track_caller]
    pub fn json(&self) -> Value {
        match serde_json::from_str(&self.stdout) {
            Ok(value) => value,
            Err(e) => self.fail(&format!("standard output is not JSON: {e}")),
        }
    }
}

fn shortened(text: &str) -> &str {
    let mut start = text.len().saturating_sub(SHOWN);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

/// A JSON file, for example that of `--report`.
#[track_caller]
pub fn read_json(path: impl AsRef<Path>) -> Value {
    let path = path.as_ref();
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{}: {e}: {text}", path.display()))
}

/// The number at a path such as `/bytes/fetched` (a JSON pointer).
#[track_caller]
pub fn number(value: &Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(Value::as_u64);
    found.unwrap_or_else(|| panic!("no number at {pointer} in {value:#}"))
}

/// The text at a path such as `/result`.
#[track_caller]
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_else(|| panic!("no text at {pointer} in {value:#}"))
}

/// Compares images without printing them.
#[track_caller]
pub fn assert_same_bytes(found: &[u8], expected: &[u8], what: &str) {
    if found == expected {
        return;
    }
    let pairs = found.iter().zip(expected);
    let at = pairs.take_while(|(a, b)| a == b).count();
    panic!(
        "{what}: {} bytes, expected {}; first difference at {at} ({:?}, expected {:?})",
        found.len(),
        expected.len(),
        found.get(at),
        expected.get(at),
    );
}

/// The same for a file, such as the target after an install.
#[track_caller]
pub fn assert_file(path: impl AsRef<Path>, expected: &[u8]) {
    let path = path.as_ref();
    let found = fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert_same_bytes(&found, expected, &path.display().to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, stdin: Option<Vec<u8>>, limit: Duration) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        start(command, format!("sh -c {script:?}"), stdin, limit)
    }

    #[test]
    fn streams_larger_than_a_pipe_arrive() {
        let input = vec![b'x'; 1 << 20];
        let outcome = shell("cat; echo done >&2; exit 3", Some(input), LIMIT).finish();
        outcome.expect_exit(3).expect_stderr("done");
        assert_eq!(outcome.stdout.len(), 1 << 20);
    }

    #[test]
    #[should_panic(expected = "still running")]
    fn a_hang_is_a_failure() {
        shell("exec sleep 600", None, Duration::from_millis(50)).finish();
    }

    #[test]
    fn a_run_can_be_killed() {
        let mut killed = shell("exec sleep 600", None, LIMIT);
        assert!(killed.is_running());
        killed.kill();
        killed.finish().expect_killed_by(9);
        let stopped = shell("exec sleep 600", None, LIMIT);
        stopped.signal("TERM");
        stopped.finish().expect_killed_by(15);
    }

    #[test]
    #[should_panic(expected = "spoken")]
    fn a_failure_shows_the_streams() {
        shell("echo spoken", None, LIMIT).finish().expect_exit(1);
    }

    #[test]
    fn the_binary_runs() {
        let outcome = reflash(["--version"]);
        outcome.expect_exit(0);
        assert!(outcome.line.ends_with("reflash --version"));
    }
}
