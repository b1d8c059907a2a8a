//! Bad networks and servers against the binary: fault × exit, requests, retries, bytes, target.
//!
//! One scene for all rows: an image of 4 KiB blocks stored as they are, an old image that lacks
//! four runs of them, and a target with other content in it. One worker, so that requests have
//! fixed numbers:
//!
//! ```text
//!   0  the first bytes: headers and index      1 … 4  the runs RUNS      5  the end of the bundle
//! ```
//!
//! A [`Row`] is a name, the faults, and what is expected; [`Row::check`] also asserts what holds for
//! every run: the report agrees with the server's record, the client's requests were proper, and
//! the target holds either the image, or its old content, or something that starts with zeros and
//! has nothing but old and verified blocks behind them.
//!
//! Back-off is zero and stall timeouts are short: nothing here sleeps but servers that are slow on
//! purpose.

mod answers;
mod others;
mod random;
mod scripted;
mod statuses;
mod waits;
mod whole;

use std::fmt::Write as _;
use std::fs;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::make_bundle::{random_image, Bundle, Made, Payload};
use crate::server::{Fault, Rule, Server, When};
use crate::util::{number, read_json, temp_dir, text, Outcome, Run};

const BLOCK: usize = 4096;

/// Blocks of the image, and bytes of a last one that is shorter.
const BLOCKS: usize = 160;
const TAIL: usize = 1234;

/// The blocks that the seed lacks. What lies between them is too far to be read through.
const RUNS: [Range<usize>; 4] = [20..36, 60..76, 100..116, 140..150];

/// The first request that asks for a run: the target is touched by then.
const MIDDLE: usize = 2;

/// A byte that no block consists of: the target before the run.
const OLD: u8 = 0xa5;

/// What is held back at least.
const HOLD_BACK: usize = 4096;

const RETRIES: usize = 3;

/// A short stall timeout. A loaded machine may leave the server without a processor for some tenths
/// of a second, which must not look like its silence.
const STALL: &str = "1s";
const STALL_TIME: Duration = Duration::from_secs(1);

struct Scene {
    image: Vec<u8>,
    seed: Vec<u8>,
    made: Made,
}

impl Scene {
    fn bundle(&self) -> &[u8] {
        &self.made.bytes
    }

    fn size(&self) -> u64 {
        self.made.bytes.len() as u64
    }

    fn run(&self, number: usize) -> Range<u64> {
        let blocks = &self.made.payloads[0].blocks;
        let stored = |block: usize| blocks[block].stored.clone().unwrap();
        stored(RUNS[number].start).start..stored(RUNS[number].end - 1).end
    }
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let image = random_image(BLOCKS * BLOCK + TAIL, 1);
    let mut seed = image.clone();
    for run in RUNS {
        seed[run.start * BLOCK..run.end * BLOCK].fill(0x11);
    }
    let made = Bundle::of(Payload::slot("system", image.clone())).make();
    Scene { image, seed, made }
});

/// The ranges of a run without faults.
static PLAIN: LazyLock<Vec<Range<u64>>> = LazyLock::new(|| {
    let server = Server::start([("/b", SCENE.bundle())]);
    let done = Done::of(Try::new(&server.url("/b")));
    done.outcome.expect_exit(0);
    let ranges = server.ranges();
    for (number, range) in ranges[1..=RUNS.len()].iter().enumerate() {
        assert_eq!(*range, SCENE.run(number));
    }
    assert!(ranges.len() <= RUNS.len() + 2, "{ranges:?}");
    assert_eq!(server.connections(), 1);
    ranges
});

fn plain_requests() -> usize {
    PLAIN.len()
}

fn plain_bytes() -> u64 {
    PLAIN.iter().map(|range| range.end - range.start).sum()
}

/// An install of a bundle with a seed, in the making.
struct Try<'a> {
    folder: TempDir,
    url: String,
    image: &'a [u8],
    args: Vec<String>,
}

impl<'a> Try<'a> {
    fn new(url: &str) -> Self {
        Self::with(url, &SCENE.image, &SCENE.seed, &SCENE.made.bundle_hash)
    }

    fn with(url: &str, image: &'a [u8], seed: &[u8], bundle_hash: &str) -> Self {
        let folder = temp_dir();
        fs::write(folder.path().join("seed"), seed).unwrap();
        // Longer than the payload: a regular file ends where the payload does, but only at the end.
        fs::write(folder.path().join("target"), old(image)).unwrap();
        let args = ["--bundle-hash", bundle_hash].map(str::to_owned).to_vec();
        Self {
            folder,
            url: url.to_owned(),
            image,
            args,
        }
    }

    fn args<S: ToString>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.args
            .extend(args.into_iter().map(|arg| arg.to_string()));
        self
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// The whole command. Later options win over these, none is given twice here.
    fn command(&self) -> Run {
        let mut run = Run::new(["install", &self.url]).args([
            "--target",
            &self.path("target"),
            "--seed",
            &self.path("seed"),
            "--report",
            &self.path("report"),
            "--http-retry-initial-backoff",
            "0",
            "--http-retry-max-backoff",
            "0",
            "--connect-timeout",
            "5",
        ]);
        let given = |name: &str| self.args.iter().any(|arg| arg == name);
        let retries = RETRIES.to_string();
        for (name, value) in [
            ("--workers", "1"),
            ("--http-max-retries", &retries),
            ("--stall-timeout", "10"),
        ] {
            if !given(name) {
                run = run.args([name, value]);
            }
        }
        run.args(self.args.clone())
    }
}

/// What the target is afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Installed,
    Untouched,
    /// Begins with zeros; every other block is an old one or a right one.
    Incomplete,
}

/// A run that is over.
struct Done {
    outcome: Outcome,
    report: Value,
    state: Option<State>,
}

impl Done {
    #[track_caller]
    fn of(run: Try<'_>) -> Self {
        let outcome = run.command().run();
        Self::after(run, outcome)
    }

    #[track_caller]
    fn after(run: Try<'_>, outcome: Outcome) -> Self {
        let report = match Path::new(&run.path("report")).exists() {
            true => read_json(run.path("report")),
            false => outcome.fail("no report"),
        };
        let state = state(&fs::read(run.path("target")).unwrap(), run.image);
        let done = Self {
            outcome,
            report,
            state,
        };
        done.check(run.image);
        done
    }

    /// What holds for every run.
    #[track_caller]
    fn check(&self, image: &[u8]) {
        let exit = self.outcome.code().unwrap_or(-1);
        self.expect(
            number(&self.report, "/exit") == exit as u64,
            "exit in report",
        );
        let result = text(&self.report, "/result");
        match exit {
            0 => {
                self.expect(self.state == Some(State::Installed), "not installed");
                self.expect(result == "installed", "result");
                self.expect(self.report["error"].is_null(), "an error after success");
                let size = number(&self.report, "/bytes/target");
                self.expect(size == image.len() as u64, "bytes.target");
            }
            3 | 4 => {
                let failed = matches!(self.state, Some(State::Untouched | State::Incomplete));
                self.expect(failed, "the target is neither old nor incomplete");
                self.expect(result == "failed", "result");
                let cause = text(&self.report, "/error");
                self.expect(self.outcome.stderr.contains(cause), "cause not on stderr");
            }
            _ => self.outcome.fail("neither success nor failure"),
        }
        let touched = self.report["target_touched"] == Value::Bool(true);
        self.expect(
            touched != (self.state == Some(State::Untouched)),
            "target_touched",
        );
    }

    #[track_caller]
    fn expect(&self, right: bool, what: &str) {
        if !right {
            let state = self.state;
            self.outcome.fail(&format!(
                "{what}; target {state:?}, report {:#}",
                self.report
            ));
        }
    }

    fn retries(&self) -> u64 {
        number(&self.report, "/http/retries")
    }

    fn fetched(&self) -> u64 {
        number(&self.report, "/bytes/fetched")
    }
}

fn old(image: &[u8]) -> Vec<u8> {
    vec![OLD; image.len() + 5000]
}

/// `None`: nothing a run may leave behind.
fn state(target: &[u8], image: &[u8]) -> Option<State> {
    if target == image {
        return Some(State::Installed);
    }
    if target == old(image) {
        return Some(State::Untouched);
    }
    let zeros = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    let held = target.iter().take_while(|&&byte| byte == 0).count();
    if held < HOLD_BACK.min(image.len()) || !zeros(&target[..held]) {
        return None;
    }
    // Bytes behind the zeros are right or old; they change from one to the other only once a block.
    let pairs = target[held..].iter().zip(&image[held.min(image.len())..]);
    let mut right_or_old = pairs.map(|(byte, right)| byte == right || *byte == OLD);
    right_or_old.all(|fine| fine).then_some(State::Incomplete)
}

/// Faults, and what is expected of a run against them.
struct Row {
    name: String,
    rules: Vec<Rule>,
    args: Vec<&'static str>,
    exit: i32,
    state: State,
    requests: RangeInclusive<usize>,
    retries: RangeInclusive<u64>,
    fetched: RangeInclusive<u64>,
    connections: RangeInclusive<usize>,
    /// Requests that the server may not have seen: those on connections that it had closed, or that
    /// were under way when something else ended the run.
    unseen: usize,
    says: Vec<String>,
}

/// A run that succeeds; unless told otherwise, as if there were no fault.
fn good(name: impl Into<String>, rules: impl IntoIterator<Item = Rule>) -> Row {
    Row {
        name: name.into(),
        rules: rules.into_iter().collect(),
        args: Vec::new(),
        exit: 0,
        state: State::Installed,
        requests: plain_requests()..=plain_requests(),
        retries: 0..=0,
        fetched: plain_bytes()..=plain_bytes(),
        connections: 1..=1,
        unseen: 0,
        says: Vec::new(),
    }
}

/// A run that fails.
fn bad(
    name: impl Into<String>,
    exit: i32,
    state: State,
    rules: impl IntoIterator<Item = Rule>,
) -> Row {
    Row {
        exit,
        state,
        fetched: 0..=plain_bytes(),
        connections: 1..=usize::MAX,
        ..good(name, rules)
    }
}

fn rule(when: When, fault: Fault) -> Rule {
    Rule { when, fault }
}

fn always(fault: Fault) -> [Rule; 1] {
    [rule(When::Always, fault)]
}

/// Once, at a run in the middle.
fn once(fault: Fault) -> [Rule; 1] {
    [rule(When::Nth(MIDDLE), fault)]
}

/// From a run in the middle on.
fn from_middle(fault: Fault) -> [Rule; 1] {
    [rule(When::After(MIDDLE), fault)]
}

fn on_path(path: &'static str, fault: Fault) -> Rule {
    rule(When::matching(move |r| r.path == path), fault)
}

fn status(code: u16) -> Fault {
    Fault::Status(code, Vec::new())
}

fn status_with(code: u16, name: &str, value: &str) -> Fault {
    Fault::Status(code, vec![(name.to_owned(), value.to_owned())])
}

fn redirect(to: &str) -> Fault {
    Fault::Redirect(to.to_owned(), 302)
}

impl Row {
    fn args(mut self, args: impl IntoIterator<Item = &'static str>) -> Self {
        self.args.extend(args);
        self
    }

    fn requests(mut self, requests: RangeInclusive<usize>) -> Self {
        self.requests = requests;
        self
    }

    /// So many requests more than without faults.
    fn more(self, requests: usize) -> Self {
        let requests = plain_requests() + requests;
        self.requests(requests..=requests)
    }

    fn retries(mut self, retries: RangeInclusive<u64>) -> Self {
        self.retries = retries;
        self
    }

    /// A request was repeated once, after a failure that counts.
    fn retried(self) -> Self {
        let mut row = self.more(1).retries(1..=1);
        row.connections = 1..=2;
        row
    }

    /// It gave up: one try and all retries, after so many requests without fault.
    fn gave_up(self, before: usize) -> Self {
        let requests = before + 1 + RETRIES;
        self.requests(requests..=requests)
            .retries(RETRIES as u64..=RETRIES as u64)
            .says(format!("after {} tries", RETRIES + 1))
    }

    fn fetched(mut self, fetched: RangeInclusive<u64>) -> Self {
        self.fetched = fetched;
        self
    }

    fn connections(mut self, connections: RangeInclusive<usize>) -> Self {
        self.connections = connections;
        self
    }

    fn unseen(mut self, requests: usize) -> Self {
        self.unseen = requests;
        self
    }

    fn says(mut self, part: impl Into<String>) -> Self {
        self.says.push(part.into());
        self
    }

    #[track_caller]
    fn check(self) -> (Server, Done) {
        let server = Server::start([("/b", SCENE.bundle())]);
        self.check_on(server)
    }

    #[track_caller]
    fn check_on(mut self, server: Server) -> (Server, Done) {
        for rule in std::mem::take(&mut self.rules) {
            server.on(rule);
        }
        let done = Done::of(Try::new(&server.url("/b")).args(&self.args));
        self.compare(&server, &done);
        (server, done)
    }

    #[track_caller]
    fn compare(&self, server: &Server, done: &Done) {
        let expect = |right: bool, what: &str| {
            if !right {
                let mut log = String::new();
                for r in server.requests() {
                    let (c, status, bytes) = (r.connection, r.status, r.body_bytes);
                    writeln!(
                        log,
                        "  {} {:?} on {c}: {status}, {bytes} bytes",
                        r.path,
                        r.bytes()
                    )
                    .unwrap();
                }
                done.expect(
                    false,
                    &format!("row {:?}: {what}; requests:\n{log}", self.name),
                );
            }
        };
        server.assert_well_behaved_client();
        let code = done.outcome.code();
        expect(
            code == Some(self.exit),
            &format!("expected exit {}", self.exit),
        );
        expect(
            done.state == Some(self.state),
            &format!("expected target {:?}", self.state),
        );
        for part in &self.says {
            expect(
                done.outcome.stderr.contains(part),
                &format!("expected on stderr: {part:?}"),
            );
        }
        let seen = server.requests().len();
        let range = |found: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug, what: &str| {
            format!("{found:?} {what}, expected {expected:?}")
        };
        expect(
            self.requests.contains(&seen),
            &range(&seen, &self.requests, "requests"),
        );
        let reported = number(&done.report, "/http/requests") as usize;
        let possible = seen..=seen + self.unseen;
        expect(
            possible.contains(&reported),
            &range(&reported, &possible, "requests reported"),
        );
        let retries = done.retries();
        expect(
            self.retries.contains(&retries),
            &range(&retries, &self.retries, "retries"),
        );
        let connections = server.connections();
        let reported = number(&done.report, "/http/connections") as usize;
        expect(
            self.connections.contains(&connections) && connections == reported,
            &range(
                &(connections, reported),
                &self.connections,
                "connections (reported)",
            ),
        );
        let fetched = done.fetched();
        expect(
            self.fetched.contains(&fetched),
            &range(&fetched, &self.fetched, "bytes"),
        );
        expect(fetched <= server.body_bytes(), "more bytes than were sent");
    }
}

fn check(rows: impl IntoIterator<Item = Row>) {
    for row in rows {
        row.check();
    }
}

/// One ordered download.
fn ordered(rules: impl IntoIterator<Item = Rule>) -> (Server, Done) {
    let server = Server::start([("/b", SCENE.bundle())]);
    rules.into_iter().for_each(|rule| server.on(rule));
    let done = Done::of(Try::new(&server.url("/b")).args(["--disable-range-queries"]));
    server.assert_well_behaved_client();
    assert_eq!(
        number(&done.report, "/http/requests"),
        server.requests().len() as u64
    );
    (server, done)
}

#[test]
fn without_faults() {
    let (server, _) = good("no fault", []).check();
    for request in server.requests() {
        assert_eq!(request.method, "GET");
        assert_eq!(request.header("accept-encoding"), Some("identity"));
        assert!(request.range.is_some(), "one open question: {request:?}");
    }
}
