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

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc, LazyLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

use crate::make_bundle::{
    block_index, edit, mixed_image, random_image, Bundle, Hash, Made, Payload, Random,
};
use crate::server::{Fault, Rule, Server, When};
use crate::util::{assert_file, number, read_json, temp_dir, text, vector, Outcome, Run};

// ---- the scene -----------------------------------------------------------------------------

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

// ---- one run -------------------------------------------------------------------------------

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

// ---- the table -----------------------------------------------------------------------------

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

use State::{Incomplete, Untouched};

#[test]
fn without_faults() {
    let (server, _) = good("no fault", []).check();
    for request in server.requests() {
        assert_eq!(request.method, "GET");
        assert_eq!(request.header("accept-encoding"), Some("identity"));
        assert!(request.range.is_some(), "one open question: {request:?}");
    }
}

// ---- ranges --------------------------------------------------------------------------------

#[test]
fn ranges_are_ignored() {
    let whole = SCENE.size();
    let full = |name, fault| {
        good(name, always(fault))
            .requests(2..=2)
            .fetched(whole..=whole)
            .connections(1..=2)
            .says("ignores ranges")
    };
    check([
        full("200 from the start", Fault::IgnoreRange),
        full("HTTP/1.0 without ranges", Fault::NoRanges),
        bad("200, refused", 4, Untouched, always(Fault::IgnoreRange))
            .args(["--full-download", "refuse"])
            .requests(1..=1)
            .fetched(0..=0)
            .says("a full download is refused"),
        good("200 once in the middle", once(Fault::IgnoreRange)).retried(),
        bad(
            "200 from the middle on",
            3,
            Incomplete,
            from_middle(Fault::IgnoreRange),
        )
        .gave_up(MIDDLE)
        .says("ignores ranges"),
    ]);
}

#[test]
fn ranges_are_other_ones() {
    let first = PLAIN[0].end as usize;
    let runs = (0..RUNS.len())
        .map(|n| SCENE.run(n))
        .map(|r| (r.end - r.start) as usize);
    let pieces = runs.map(|size| size.div_ceil(5000)).sum::<usize>();
    let closings = plain_requests() - 1 - RUNS.len();
    let narrow = first.div_ceil(5000) + pieces + closings;
    let bad_range = |value: &str| status_with(206, "Content-Range", value);
    check([
        good("starts later once", once(Fault::WrongRange(100))).retried(),
        bad(
            "starts later for ever",
            3,
            Untouched,
            always(Fault::WrongRange(100)),
        )
        .gave_up(0)
        .fetched(0..=0)
        .says("instead"),
        bad(
            "starts later from the middle on",
            3,
            Incomplete,
            from_middle(Fault::WrongRange(1)),
        )
        .gave_up(MIDDLE),
        // What was not asked for but sent is paid for; the tail is asked for once more.
        good(
            "starts and ends earlier once",
            once(Fault::WrongRange(-100)),
        )
        .more(1)
        .fetched(plain_bytes() + 100..=plain_bytes() + 100)
        .connections(1..=2),
        good("wider", always(Fault::WiderRange(1000)))
            .fetched(plain_bytes()..=plain_bytes() + 1000 * plain_requests() as u64)
            .connections(1..=plain_requests()),
        good("narrow", always(Fault::NarrowRange(5000))).requests(narrow..=narrow),
        good("no Content-Range once", once(Fault::NoContentRange)).retried(),
        bad(
            "no Content-Range",
            3,
            Untouched,
            always(Fault::NoContentRange),
        )
        .gave_up(0)
        .says("without Content-Range"),
    ]);
    for value in [
        "bytes 9-5/10",
        "bytes */100",
        "bytes 0-15",
        "items 0-15/99999",
        "bytes 0-15/5",
        "bytes 0-18446744073709551615/18446744073709551615",
        "bytes 0-999/1000",
        "nonsense",
    ] {
        check([
            good(format!("{value} once"), once(bad_range(value))).retried(),
            bad(
                format!("{value} at the start"),
                3,
                Untouched,
                always(bad_range(value)),
            )
            .gave_up(0)
            .fetched(0..=0),
        ]);
    }
}

// ---- bodies --------------------------------------------------------------------------------

#[test]
fn only_the_missing_tail_is_asked_for_again() {
    let run = SCENE.run(MIDDLE - 1);
    let half = (run.end - run.start) / 2;
    for (name, fault, args, kept) in [
        ("short body", Fault::ShortBody(5000), &[][..], 5000..=5000),
        ("chunked and cut", Fault::ChunkedCut, &[], half..=half),
        (
            "silence in the body",
            Fault::Stall { after: 5000 },
            &["--stall-timeout", "300ms"],
            5000..=5000,
        ),
        // A reset may take with it what was not read yet.
        (
            "reset in the body",
            Fault::ResetInBody(50_000),
            &[],
            0..=50_000,
        ),
    ] {
        let lost = *kept.end() - *kept.start();
        let row = good(name, once(fault)).retried();
        let row = row
            .args(args.iter().copied())
            .fetched(plain_bytes()..=plain_bytes() + lost);
        let (server, _) = row.check();
        let tail = &server.ranges()[MIDDLE + 1];
        assert_eq!(tail.end, run.end, "{name}");
        assert!(
            kept.contains(&(tail.start - run.start)),
            "{name}: {tail:?} of {run:?}"
        );
    }
}

#[test]
fn bodies_break() {
    check([
        bad(
            "no byte of a body, for ever",
            3,
            Incomplete,
            from_middle(Fault::ShortBody(0)),
        )
        .gave_up(MIDDLE)
        .says("short body: 0 of 65536 bytes"),
        good("short body without length", {
            let [length, cut] = [Fault::NoContentLength, Fault::ShortBody(700)];
            [
                rule(When::Nth(MIDDLE), length),
                rule(When::Nth(MIDDLE), cut),
            ]
        })
        .retried(),
        // On a connection that had been idle, the first reset may mean that it was dead.
        good("reset before the head", once(Fault::ResetBeforeHeaders))
            .more(1)
            .retries(0..=1)
            .connections(2..=2),
        good("reset after the head", once(Fault::ResetAfterHeaders))
            .more(1)
            .retries(0..=1)
            .connections(2..=2),
        bad(
            "resets from the start",
            3,
            Untouched,
            always(Fault::ResetBeforeHeaders),
        )
        .gave_up(0),
        bad(
            "resets from the middle on",
            3,
            Incomplete,
            from_middle(Fault::ResetBeforeHeaders),
        )
        .requests(MIDDLE + 1 + RETRIES..=MIDDLE + 2 + RETRIES)
        .retries(RETRIES as u64..=RETRIES as u64),
        good("no length", always(Fault::NoContentLength)).connections(1..=plain_requests()),
        good("chunked", always(Fault::Chunked)),
    ]);
}

/// A server that is out of step with its own lengths.
#[test]
fn stray_bytes_cost_a_connection() {
    for (name, stray) in [
        ("garbage", b"garbage\r\n\r\n".to_vec()),
        ("one byte", b"x".to_vec()),
        ("many bytes", vec![b'z'; 100_000]),
    ] {
        let row = good(name, always(Fault::LongBody(stray)));
        row.requests(plain_requests()..=2 * plain_requests())
            .retries(0..=plain_requests() as u64)
            .connections(2..=2 * plain_requests())
            .check();
    }
}

/// Stray bytes that look like an answer are one if they come while a request waits: HTTP has no
/// means to tell. They may end the run, but they never reach the target.
#[test]
fn a_stray_answer_does_no_harm() {
    let body = "X".repeat(65536);
    let run = SCENE.run(1);
    let part = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 65536\r\n\
         Content-Range: bytes {}-{}/{}\r\n\r\n{body}",
        run.start,
        run.end - 1,
        SCENE.size()
    );
    let gone = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned();
    for stray in [gone, part] {
        let server = Server::start([("/b", SCENE.bundle())]);
        let stray = Fault::LongBody(stray.into_bytes());
        server.fault(When::Nth(MIDDLE - 1), stray);
        let done = Done::of(Try::new(&server.url("/b")));
        let state = match done.outcome.code() {
            Some(0) => State::Installed,
            _ => Incomplete,
        };
        done.expect(matches!(done.outcome.code(), Some(0 | 4)), "exit");
        done.expect(done.state == Some(state), "target");
    }
}

#[test]
fn wrong_bytes_are_never_written() {
    let run = SCENE.run(1);
    let expected = &SCENE.made.payloads[0].blocks[RUNS[1].start + 3].digest;
    let header = SCENE.made.header.start + 40;
    let index = SCENE.made.payloads[0].header.start + 300;
    let flip = |request, byte| [rule(When::Nth(request), Fault::FlipByte(byte))];
    check([
        bad(
            "a bit of a block",
            4,
            Incomplete,
            flip(MIDDLE, 3 * BLOCK as u64 + 5),
        )
        .requests(MIDDLE + 1..=plain_requests())
        .unseen(1)
        .says(format!(
            "digest of block {} of payload 0 does not match: expected sha512-256:{expected}, \
                 found sha512-256:",
            RUNS[1].start + 3
        )),
        bad("other bytes", 4, Incomplete, once(Fault::LyingRange))
            .requests(MIDDLE + 1..=plain_requests())
            .unseen(1)
            .says(format!(
                "digest of block {} of payload 0 does not match",
                RUNS[1].start
            )),
        bad("a bit of the header", 4, Untouched, flip(0, header))
            .requests(1..=2)
            .says("digest of bundle header does not match")
            .says(format!("expected {}", SCENE.made.bundle_hash)),
        bad("a bit of the index", 4, Untouched, flip(0, index))
            .requests(1..=1)
            .says("digest of header of payload 0 does not match"),
    ]);
    assert_eq!(run.end - run.start, 65536);
}

#[test]
fn encoded_bodies_are_refused() {
    check([
        bad("gzip", 4, Untouched, always(Fault::Gzip))
            .requests(1..=1)
            .fetched(0..=0)
            .says("gzip"),
        bad("gzip once", 4, Incomplete, once(Fault::Gzip)).requests(MIDDLE + 1..=MIDDLE + 1),
    ]);
}

// ---- statuses ------------------------------------------------------------------------------

#[test]
fn passing_statuses_are_tried_again() {
    for code in [408, 425, 429, 500, 502, 503, 504] {
        check([
            good(format!("{code} once"), once(status(code))).retried(),
            bad(
                format!("{code} from the start"),
                3,
                Untouched,
                always(status(code)),
            )
            .gave_up(0)
            .fetched(0..=0)
            .says(code.to_string()),
            bad(
                format!("{code} from the middle on"),
                3,
                Incomplete,
                from_middle(status(code)),
            )
            .gave_up(MIDDLE)
            .says(format!(
                " bytes {}..{} ",
                SCENE.run(1).start,
                SCENE.run(1).end
            )),
        ]);
    }
    let rules = [
        rule(When::Every(10), status(502)),
        rule(When::Every(15), status_with(503, "Retry-After", "0")),
        rule(When::Every(4), status(429)),
        rule(When::Always, Fault::NarrowRange(10_000)),
    ];
    let row = good("a bad day", rules).requests(30..=60).retries(8..=25);
    row.check();
}

#[test]
fn lasting_statuses_end_the_run() {
    for code in [400, 401, 403, 404, 405, 410, 416, 418, 501, 505] {
        check([
            bad(
                format!("{code} at the start"),
                4,
                Untouched,
                always(status(code)),
            )
            .requests(1..=1)
            .fetched(0..=0)
            .says(code.to_string()),
            bad(
                format!("{code} in the middle"),
                4,
                Incomplete,
                once(status(code)),
            )
            .requests(MIDDLE + 1..=MIDDLE + 1)
            .says(code.to_string()),
        ]);
    }
}

#[test]
fn retry_after_is_kept() {
    let second = Duration::from_secs(1);
    for (code, value, least, most) in [
        (503, "1", second, 10 * second),
        (429, "0", Duration::ZERO, second),
        // A date, or nonsense: as if it were not there.
        (503, "Fri, 31 Dec 2099 23:59:59 GMT", Duration::ZERO, second),
        (503, "-5", Duration::ZERO, second),
        (503, "99999999999999999999999", Duration::ZERO, second),
    ] {
        let name = format!("Retry-After: {value}");
        let fault = status_with(code, "Retry-After", value);
        let (server, _) = good(name, once(fault)).retried().check();
        let requests = server.requests();
        let waited = requests[MIDDLE + 1].at - requests[MIDDLE].at;
        assert!(waited >= least && waited < most, "{value}: {waited:?}");
    }
    let fault = status_with(404, "Retry-After", "60");
    let (_, done) = bad("404", 4, Untouched, always(fault))
        .requests(1..=1)
        .check();
    assert!(done.outcome.elapsed < 10 * second);
}

// ---- another bundle ------------------------------------------------------------------------

#[test]
fn a_changed_bundle_is_noticed() {
    let changed = "bundle changed on the server";
    check([
        bad("ETag", 4, Incomplete, from_middle(Fault::ChangedEtag))
            .requests(MIDDLE + 1..=MIDDLE + 1)
            .says(changed)
            .says("ETag"),
        bad("larger", 4, Incomplete, from_middle(Fault::ChangedSize(1)))
            .requests(MIDDLE + 1..=MIDDLE + 1)
            .says(changed)
            .says("size"),
        bad(
            "smaller",
            4,
            Incomplete,
            from_middle(Fault::ChangedSize(-1)),
        )
        .requests(MIDDLE + 1..=MIDDLE + 1)
        .says(changed),
        good("no validators", always(Fault::NoValidators)),
        bad("no validators, other size", 4, Incomplete, {
            let size = rule(When::After(MIDDLE), Fault::ChangedSize(9));
            [rule(When::Always, Fault::NoValidators), size]
        })
        .requests(MIDDLE + 1..=MIDDLE + 1)
        .says(changed),
    ]);
}

/// The file is replaced while it is being read, by one of the same size.
#[test]
fn a_replaced_bundle_is_noticed() {
    let server = Arc::new(Server::start([("/b", SCENE.bundle())]));
    let other = SCENE.bundle().iter().map(|byte| !byte).collect::<Vec<u8>>();
    let weak = Arc::downgrade(&server);
    // The request that does it still sees the old file.
    let replace = move |request: &crate::server::Request| {
        if let (1, Some(server)) = (request.number, weak.upgrade()) {
            server.set_file("/b", other.clone());
        }
        false
    };
    server.fault(When::matching(replace), Fault::IgnoreRange);
    let done = Done::of(Try::new(&server.url("/b")));
    let row = bad("replaced", 4, Incomplete, []).requests(3..=3);
    row.says("bundle changed on the server")
        .compare(&server, &done);
}

#[test]
fn last_modified_counts_where_there_is_no_etag() {
    let serve = |changing: bool| {
        Scripted::start(move |number, range| {
            let date = if changing && number >= MIDDLE { 10 } else { 9 };
            let date = format!("Last-Modified: Thu, {date} Jul 2026 10:00:00 GMT\r\n");
            partial(SCENE.bundle(), range, &date)
        })
    };
    let same = serve(false);
    Done::of(Try::new(&same.url())).outcome.expect_exit(0);
    let changing = serve(true);
    let done = Done::of(Try::new(&changing.url()));
    done.outcome
        .expect_exit(4)
        .expect_stderr("bundle changed on the server: Last-Modified");
    assert_eq!(done.state, Some(Incomplete));
    assert_eq!(number(&done.report, "/http/requests"), MIDDLE as u64 + 1);
}

// ---- redirects -----------------------------------------------------------------------------

fn redirecting(rules: impl IntoIterator<Item = Rule>) -> Server {
    let file = || SCENE.bundle();
    let server = Server::start([("/b", file()), ("/d/real", file()), ("/d/b", file())]);
    rules.into_iter().for_each(|rule| server.on(rule));
    server
}

#[test]
fn redirects_are_followed_and_remembered() {
    for code in [301, 302, 303, 307, 308] {
        let to = Fault::Redirect("/d/real".to_owned(), code);
        let row = good(format!("{code}"), []).more(1);
        let (server, _) = row.check_on(redirecting([on_path("/b", to)]));
        let first = server.requests().iter().filter(|r| r.path == "/b").count();
        assert_eq!(first, 1, "{code}: the place is remembered");
    }
    let chain = [
        on_path("/b", redirect("d/b")),
        on_path("/d/b", redirect("real?key=secret")),
    ];
    let (server, done) = good("relative", []).more(2).check_on(redirecting(chain));
    assert_eq!(server.requests()[3].query.as_deref(), Some("key=secret"));
    done.outcome.expect_not_in_output("secret");
}

#[test]
fn redirects_to_another_server_are_followed() {
    let mirror = Server::start([("/m", SCENE.bundle())]);
    let server = Server::start([("/b", SCENE.bundle())]);
    server.fault(When::Always, redirect(&mirror.url("/m")));
    let done = Done::of(Try::new(&server.url("/b")).args(["--workers", "4"]));
    done.outcome.expect_exit(0);
    assert_eq!(
        (server.requests().len(), mirror.requests().len()),
        (1, plain_requests())
    );
    // A mirror without ranges (a load balancer in front of plain servers).
    mirror.fault(When::Always, Fault::IgnoreRange);
    server.reset_log();
    mirror.reset_log();
    let done = Done::of(Try::new(&server.url("/b")));
    done.outcome.expect_exit(0);
    assert_eq!(done.fetched(), SCENE.size());
    assert_eq!(mirror.requests().len(), 2);
}

#[test]
fn redirects_have_an_end() {
    let chain = |length: usize| {
        let server = redirecting([]);
        for n in 0..length {
            let to = if n + 1 == length {
                "/d/real".to_owned()
            } else {
                format!("/{}", n + 1)
            };
            let from = if n == 0 {
                "/b".to_owned()
            } else {
                format!("/{n}")
            };
            server.fault(When::matching(move |r| r.path == from), redirect(&to));
        }
        server
    };
    good("ten", []).more(10).check_on(chain(10));
    let eleven = bad("eleven", 4, Untouched, [])
        .requests(11..=11)
        .fetched(0..=0);
    eleven.says("redirects").check_on(chain(11));
    check([
        bad("a loop", 4, Untouched, always(redirect("/b")))
            .requests(11..=11)
            .says("redirects"),
        bad("to nowhere", 4, Untouched, always(status(302))).requests(1..=1),
        bad(
            "to a file",
            4,
            Untouched,
            always(redirect("file:///etc/passwd")),
        )
        .requests(1..=1),
        bad(
            "to ftp",
            4,
            Untouched,
            always(redirect("ftp://127.0.0.1/b")),
        )
        .requests(1..=1),
    ]);
}

/// A redirect may lead to a signed URL that expires.
#[test]
fn a_refusing_place_leads_to_one_fresh_trip() {
    for code in [401, 403, 404, 410] {
        let to = || on_path("/b", redirect("/d/real"));
        let expired = rule(When::Nth(3), status(code));
        let row = good(format!("{code} once"), []).more(3);
        let (server, _) = row.check_on(redirecting([to(), expired]));
        let first = server.requests().iter().filter(|r| r.path == "/b").count();
        assert_eq!(first, 2);
        let gone = rule(
            When::matching(|r| r.number >= 3 && r.path != "/b"),
            status(code),
        );
        bad(format!("{code} for ever"), 4, Incomplete, [])
            .requests(6..=6)
            .says(code.to_string())
            .check_on(redirecting([to(), gone]));
    }
}

// ---- time ----------------------------------------------------------------------------------

#[test]
fn silence_is_a_failure() {
    let short = ["--stall-timeout", "250ms"];
    let (_, done) = good("before the head once", once(Fault::StallBeforeHeaders))
        .retried()
        .args(short)
        .check();
    assert!(done.outcome.elapsed >= Duration::from_millis(250));
    let row = bad(
        "for ever",
        3,
        Incomplete,
        from_middle(Fault::StallBeforeHeaders),
    )
    .args(short);
    let (_, done) = row
        .gave_up(MIDDLE)
        .says("silent for the stall timeout")
        .check();
    assert!(done.outcome.elapsed < Duration::from_secs(8));
    let row = bad(
        "bodies for ever",
        3,
        Untouched,
        always(Fault::Stall { after: 0 }),
    )
    .args(short);
    row.gave_up(0).check();
}

/// The limit is on silence, not on the time of a body.
#[test]
fn a_slow_but_steady_body_is_waited_for() {
    let drip = Fault::Drip {
        bytes: 4096,
        every: Duration::from_millis(60),
    };
    let row = good("drip", once(drip)).args(["--stall-timeout", "600ms"]);
    let (_, done) = row.check();
    assert!(done.outcome.elapsed > Duration::from_millis(16 * 60));
    let single = Fault::Drip {
        bytes: 1,
        every: Duration::ZERO,
    };
    good("one byte a segment", [rule(When::Nth(RUNS.len()), single)]).check();
}

// ---- connections ---------------------------------------------------------------------------

#[test]
fn connections_are_closed() {
    let n = plain_requests();
    check([
        good("announced", always(Fault::CloseEachTime)).connections(n..=n),
        // Not a failure that counts: the server never saw the request.
        good("silently", always(Fault::CloseAfterResponseSilently))
            .connections(n..=n)
            .unseen(n),
        good(
            "silently, without retries",
            always(Fault::CloseAfterResponseSilently),
        )
        .args(["--http-max-retries", "0"])
        .connections(n..=n)
        .unseen(n),
    ]);
}

#[test]
fn several_workers_share_the_faults() {
    let n = plain_requests();
    let args = ["--workers", "4"];
    check([
        good("none", []).args(args).connections(1..=4),
        good(
            "every third cut",
            [rule(When::Every(3), Fault::ShortBody(4000))],
        )
        .args(args)
        .requests(n + 1..=3 * n)
        .retries(1..=2 * n as u64)
        .connections(1..=3 * n),
        bad(
            "one of them refused",
            4,
            Incomplete,
            [rule(When::Nth(4), status(404))],
        )
        .args(args)
        .requests(5..=n)
        .unseen(3),
        bad(
            "all of them give up",
            3,
            Incomplete,
            from_middle(status(503)),
        )
        .args(args)
        .requests(MIDDLE + 1 + RETRIES..=MIDDLE + 5 * (RETRIES + 1))
        .retries(RETRIES as u64..=5 * RETRIES as u64)
        .unseen(3),
    ]);
}

/// Others are accepted and hear nothing: what a server without threads does.
#[test]
fn one_connection_at_a_time_is_enough() {
    let server = Server::start([("/b", SCENE.bundle())]);
    server.limit_connections(1);
    let args = ["--workers", "4", "--stall-timeout", "250ms"];
    let done = Done::of(Try::new(&server.url("/b")).args(args));
    done.outcome.expect_exit(0);
}

/// One connection crawls while its peers run: its span is not waited for. It is no failure that
/// counts. All of it would take a minute.
#[test]
fn a_connection_that_crawls_is_replaced() {
    let crawl = Fault::Drip {
        bytes: 50,
        every: Duration::from_millis(50),
    };
    let server = Server::start([("/b", SCENE.bundle())]);
    server.on(rule(When::Nth(MIDDLE), crawl));
    let done = Done::of(Try::new(&server.url("/b")).args(["--workers", "4"]));
    done.outcome.expect_exit(0);
    assert!(done.outcome.elapsed < Duration::from_secs(20));
    assert_eq!(done.retries(), 0);
}

#[test]
fn the_rate_is_kept() {
    let server = Server::start([("/b", SCENE.bundle())]);
    let done = Done::of(Try::new(&server.url("/b")).args(["--limit-rate", "100k"]));
    done.outcome.expect_exit(0);
    let least = server.body_bytes() as f64 / 102_400.0 * 0.9;
    assert!(done.outcome.elapsed.as_secs_f64() > least, "{least}");
}

#[test]
fn no_more_is_downloaded_than_allowed() {
    let server = Server::start([("/b", SCENE.bundle())]);
    let done = Done::of(Try::new(&server.url("/b")).args(["--max-download", "100k"]));
    done.outcome.expect_exit(3);
    done.outcome.expect_stderr("--max-download allows 102400");
    assert_eq!(server.requests().len(), 1, "refused by plan");
    done.outcome.expect_not_in_output("incomplete");

    // In order, of a size that is not told: stopped by fact.
    let server = Server::start([("/b", SCENE.bundle())]);
    server.fault(When::Always, Fault::Chunked);
    let args = ["--disable-range-queries", "--max-download", "100k"];
    let done = Done::of(Try::new(&server.url("/b")).args(args));
    done.outcome.expect_exit(3);
    done.outcome
        .expect_stderr("more than --max-download 102400");
}

/// A compressed bundle of which far more can be unpacked ahead than the memory allows.
fn compressed() -> Made {
    let image = mixed_image(6_000_000, 3);
    Bundle::of(Payload::slot("system", image).chunker("casync-16").xz(1)).make()
}

/// Workers that unpack ahead wait for the writer; the job of one that leaves must not wait for
/// them.
#[test]
fn one_connection_is_enough_for_a_compressed_bundle() {
    let made = compressed();
    let server = Server::start([("/b", made.bytes.as_slice())]);
    server.limit_connections(1);
    let folder = temp_dir();
    let target = folder.path().join("target");
    Run::new(["install", &server.url("/b")])
        .args(["--insecure-skip-bundle-verification", "--memory", "4M"])
        .args(["--workers", "4", "--stall-timeout", "250ms"])
        .args(["--http-retry-initial-backoff", "0", "--target"])
        .arg(&target)
        .run()
        .expect_exit(0);
    assert_file(&target, &made.payloads[0].image);
}

/// A seed that lies, so that blocks are fetched ahead of all others, while workers unpack.
#[test]
fn urgent_blocks_come_through_workers_that_unpack() {
    let made = compressed();
    let image = &made.payloads[0].image;
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    // Every third stretch of the seed is not what its index says.
    let mut seed = image.clone();
    for stretch in seed.chunks_mut(100_000).step_by(3) {
        stretch.fill(0x33);
    }
    std::fs::write(path("seed"), &seed).unwrap();
    let index = block_index(&image[..3_000_000], "casync-16", Hash::Sha512_256);
    std::fs::write(path("index"), index).unwrap();
    let server = Server::start([("/b", made.bytes.as_slice())]);
    Run::new(["install", &server.url("/b")])
        .args(["--insecure-skip-bundle-verification", "--memory", "4M"])
        .args(["--workers", "3", "--seed"])
        .arg(format!(
            "{}={}",
            path("seed").display(),
            path("index").display()
        ))
        .arg("--target")
        .arg(path("target"))
        .run()
        .expect_exit(0);
    assert_file(path("target"), image);
}

/// A size that is never told is no reason to fail: what has no end is read in order.
#[test]
fn a_size_that_is_not_told_is_done_without() {
    let server = Server::start([("/b", SCENE.bundle())]);
    server.fault(When::Always, Fault::UnknownSize);
    let done = Done::of(Try::new(&server.url("/b")));
    done.outcome.expect_exit(0);
    assert_eq!(done.state, Some(State::Installed));
}

/// A connection that brings a byte and falls silent, again and again, is given up.
#[test]
fn a_byte_now_and_then_is_no_progress() {
    for args in [&[][..], &["--disable-range-queries"]] {
        let server = Server::start([("/b", SCENE.bundle())]);
        server.fault(When::After(1), Fault::Stall { after: 1 });
        server.fault(When::Nth(0), Fault::ShortBody(100_000));
        let args = [
            args,
            &["--stall-timeout", "200ms", "--http-max-retries", "2"],
        ]
        .concat();
        let done = Done::of(Try::new(&server.url("/b")).args(args));
        done.outcome.expect_exit(3);
    }
}

/// Parts of the rest that begin earlier or end sooner than asked for.
#[test]
fn an_ordered_download_takes_what_it_gets() {
    for fault in [Fault::WiderRange(1000), Fault::NarrowRange(1000)] {
        let (_, done) = ordered([
            rule(When::Nth(0), Fault::ShortBody(200_000)),
            rule(When::After(1), fault),
        ]);
        done.outcome.expect_exit(0);
        assert_eq!(done.state, Some(State::Installed));
    }
}

#[test]
fn retries_are_counted_anew_when_bytes_arrive() {
    let cuts = plain_bytes() / 1000;
    let (server, _) = good("cuts", always(Fault::ShortBody(1000)))
        .args(["--http-max-retries", "1"])
        .requests(cuts as usize..=cuts as usize + 2 * plain_requests())
        .retries(cuts - plain_requests() as u64..=cuts + plain_requests() as u64)
        .connections(cuts as usize..=cuts as usize + 2 * plain_requests())
        .unseen(plain_requests())
        .check();
    assert!(server.requests().len() > 200);
    // With no retry allowed, the first cut is the last.
    bad("no retry", 3, Incomplete, once(Fault::ShortBody(1000)))
        .args(["--http-max-retries", "0"])
        .requests(MIDDLE + 1..=MIDDLE + 1)
        .says("after 1 try: short body: 1000 of 65536 bytes")
        .check();
}

#[test]
fn a_server_that_goes_away_ends_the_run() {
    let server = Server::start([("/b", SCENE.bundle())]);
    let (tell, told) = mpsc::channel();
    let third = When::matching(move |request| {
        if request.number == MIDDLE {
            tell.send(()).unwrap();
        }
        request.number == MIDDLE
    });
    server.fault(third, Fault::Stall { after: 30_000 });
    let run = Try::new(&server.url("/b"));
    let running = run.command().spawn();
    told.recv().unwrap();
    drop(server);
    let outcome = running.finish();
    outcome.expect_exit(3).expect_stderr("after 4 tries: ");
    assert!(outcome.elapsed < Duration::from_secs(10));
    let done = Done::after(run, outcome);
    assert_eq!(done.state, Some(Incomplete));
    assert_eq!(done.retries(), RETRIES as u64);
}

#[test]
fn nobody_is_there() {
    let port = {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.local_addr().unwrap().port()
    };
    let done = Done::of(Try::new(&format!("http://127.0.0.1:{port}/b")));
    done.outcome
        .expect_exit(3)
        .expect_stderr("after 4 tries: ")
        .expect_stderr("refused");
    assert_eq!(done.state, Some(Untouched));
    assert_eq!(done.retries(), RETRIES as u64);

    // A reserved name (RFC 6761): no name service may know it.
    let run = Try::new("http://no-such-host.invalid/b").args(["--http-max-retries", "1"]);
    let done = Done::of(run);
    done.outcome
        .expect_exit(3)
        .expect_stderr("http://no-such-host.invalid/b");
    assert_eq!((done.state, done.retries()), (Some(Untouched), 1));
    assert!(done.outcome.elapsed < Duration::from_secs(25));
}

// ---- something else than the bundle --------------------------------------------------------

#[test]
fn other_files_are_refused() {
    let page = |size: usize| {
        let mut page = b"<!DOCTYPE html><html><head><title>Please log in</title>".to_vec();
        page.resize(size, b' ');
        page
    };
    for (name, file) in [
        ("empty", Vec::new()),
        ("a page", page(900)),
        ("a large page", page(200_000)),
        ("JSON", br#"{"error":"no such key"}"#.to_vec()),
        ("an image", SCENE.image.clone()),
        ("zeros", vec![0; 50_000]),
        (
            "an index",
            vector("index/old.casync-8_sha512-256.rugix-block-index"),
        ),
    ] {
        for fault in [None, Some(Fault::IgnoreRange), Some(Fault::NoRanges)] {
            let requests = if fault.is_some() && file.len() > 20_000 {
                2
            } else {
                1
            };
            let server = Server::start([("/b", file.clone())]);
            let row = bad(format!("{name}, {fault:?}"), 4, Untouched, []);
            let row = if file.is_empty() {
                row
            } else {
                row.says("no Rugix bundle")
            };
            fault
                .into_iter()
                .for_each(|fault| server.fault(When::Always, fault));
            row.requests(requests..=requests)
                .fetched(0..=file.len() as u64)
                .check_on(server);
        }
    }
    let empty = Scripted::start(|_, _| b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec());
    let done = Done::of(Try::new(&empty.url()));
    done.outcome.expect_exit(4).expect_stderr("empty");
    assert_eq!(done.state, Some(Untouched));
}

/// Things no web server says.
#[test]
fn odd_answers_are_survived() {
    let endless = [b"HTTP/1.1 200 OK\r\n".to_vec(), b"A: b\r\n".repeat(100_000)].concat();
    for (name, answer) in [
        ("nothing", Vec::new()),
        ("no HTTP", b"220 mail.example ESMTP\r\n".to_vec()),
        ("half a head", b"HTTP/1.1 206 Partial Con".to_vec()),
        ("endless head", endless),
        (
            "two lengths",
            b"HTTP/1.1 206 X\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab".to_vec(),
        ),
        (
            "bad length",
            b"HTTP/1.1 206 X\r\nContent-Length: -1\r\n\r\n".to_vec(),
        ),
        ("zeros", vec![0; 300_000]),
    ] {
        let server = Scripted::start(move |_, _| answer.clone());
        let run = Try::new(&server.url()).args(["--stall-timeout", "1"]);
        let done = Done::of(run);
        done.expect(matches!(done.outcome.code(), Some(3 | 4)), name);
        done.expect(done.state == Some(Untouched), name);
        done.expect(
            number(&done.report, "/http/requests") <= RETRIES as u64 + 1,
            name,
        );
        done.expect(done.outcome.elapsed < Duration::from_secs(10), name);
    }
}

#[test]
fn a_bundle_that_is_cut_short_is_refused() {
    let size = SCENE.bundle().len();
    let data_end = SCENE.made.payloads[0].data.end as usize;
    let header_end = SCENE.made.payloads[0].header.end as usize;
    let mut lengths = vec![
        1,
        4,
        5,
        6,
        16,
        100,
        1024,
        header_end - 1,
        header_end,
        header_end + 6,
    ];
    lengths.extend((1..20).map(|n| size * n / 20));
    lengths.extend([data_end - 1, data_end, data_end + 1, data_end + 4]);
    for length in lengths {
        let cut = &SCENE.bundle()[..length];
        // Up to there the size alone tells.
        let early = length < data_end;
        let state = if early { Untouched } else { Incomplete };
        let server = Server::start([("/b", cut)]);
        let row = bad(format!("{length} bytes"), 4, state, []);
        row.requests(1..=plain_requests()).check_on(server);

        let server = Server::start([("/b", cut)]);
        let run = Try::new(&server.url("/b")).args(["--disable-range-queries"]);
        let done = Done::of(run);
        done.outcome.expect_exit(4);
        assert!(
            done.state == Some(state),
            "{length} bytes in order: {:?}",
            done.state
        );
    }
    // Behind the last payload nothing matters any more.
    let server = Server::start([("/b", &SCENE.bundle()[..data_end + 5])]);
    Done::of(Try::new(&server.url("/b"))).outcome.expect_exit(0);
}

// ---- one ordered download ------------------------------------------------------------------

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
fn an_ordered_download_resumes() {
    let size = SCENE.size();
    let nth = |n, fault| rule(When::Nth(n), fault);
    let (server, done) = ordered([]);
    done.outcome.expect_exit(0);
    assert_eq!(
        (
            server.requests().len(),
            server.ranges().len(),
            done.fetched()
        ),
        (1, 0, size)
    );

    let (server, done) = ordered([nth(0, Fault::ShortBody(200_000))]);
    done.outcome.expect_exit(0);
    assert_eq!(server.ranges(), vec![200_000..size; 1]);
    assert_eq!((done.retries(), done.fetched()), (1, size));

    let (server, done) = ordered(always(Fault::ShortBody(50_000)));
    done.outcome.expect_exit(0);
    let starts = server
        .ranges()
        .iter()
        .map(|range| range.start)
        .collect::<Vec<_>>();
    let expected = (1..size.div_ceil(50_000))
        .map(|n| n * 50_000)
        .collect::<Vec<_>>();
    assert_eq!((starts, done.fetched()), (expected, size));

    let (server, done) = ordered([nth(0, Fault::ResetInBody(300_000)), nth(1, status(503))]);
    done.outcome.expect_exit(0);
    assert_eq!(server.requests().len(), 3);

    let (_, done) = ordered([
        nth(0, Fault::ShortBody(200_000)),
        nth(1, Fault::ChangedEtag),
    ]);
    done.outcome
        .expect_exit(4)
        .expect_stderr("bundle changed on the server");
    assert_eq!(done.state, Some(Incomplete));

    let (_, done) = ordered([nth(0, Fault::ShortBody(200_000)), nth(1, status(404))]);
    done.outcome.expect_exit(4);

    let (server, done) = ordered([nth(0, Fault::FlipByte(SCENE.run(1).start + 5))]);
    done.outcome.expect_exit(4).expect_stderr("does not match");
    assert_eq!((server.requests().len(), done.state), (1, Some(Incomplete)));
}

#[test]
fn an_ordered_download_starts_over_where_there_are_no_ranges() {
    let size = SCENE.size();
    let cut = |n, bytes| rule(When::Nth(n), Fault::ShortBody(bytes));
    for fault in [Fault::IgnoreRange, Fault::NoRanges] {
        let no_ranges = || rule(When::Always, fault.clone());
        let (server, done) = ordered([no_ranges(), cut(0, 200_000)]);
        done.outcome.expect_exit(0);
        // The whole, a range that is ignored, the whole again.
        assert_eq!((server.requests().len(), server.ranges().len()), (3, 1));
        assert_eq!(done.fetched(), 200_000 + size);

        // Each time a bit further.
        let cuts = (0..4).map(|n| cut(2 * n, 100_000 * (n as u64 + 1)));
        let (_, done) = ordered(cuts.chain([no_ranges()]));
        done.outcome.expect_exit(0);

        // Never further.
        let (server, done) = ordered([no_ranges(), rule(When::Always, Fault::ShortBody(200_000))]);
        done.outcome.expect_exit(3);
        assert_eq!(done.state, Some(Incomplete));
        assert!(server.requests().len() <= 2 * (RETRIES + 1) + 1);

        // The same, where only the first answer tells how long the file is.
        let (server, done) = ordered([
            no_ranges(),
            rule(When::Always, Fault::ShortBody(200_000)),
            rule(When::After(1), Fault::NoContentLength),
        ]);
        done.outcome.expect_exit(3);
        assert_eq!(done.state, Some(Incomplete));
        assert!(server.requests().len() <= 2 * (RETRIES + 1) + 1);
    }
}

#[test]
fn an_ordered_download_of_unknown_size() {
    let size = SCENE.size();
    let (_, done) = ordered(always(Fault::Chunked));
    done.outcome.expect_exit(0);
    assert_eq!(done.fetched(), size);
    let (_, done) = ordered(always(Fault::NoContentLength));
    done.outcome.expect_exit(0);
    let (_, done) = ordered([rule(When::Nth(0), Fault::ChunkedCut)]);
    done.outcome.expect_exit(0);
    // Nothing tells an end by disconnection from a break.
    let cut = rule(When::Always, Fault::ShortBody(200_000));
    let (_, done) = ordered([rule(When::Always, Fault::NoContentLength), cut]);
    done.outcome.expect_exit(4).expect_stderr("cut short");
    assert_eq!(done.state, Some(Incomplete));
}

/// The same after a first request that showed that there are no ranges.
#[test]
fn a_full_download_as_a_fallback_resumes() {
    let first = rule(When::First(2), Fault::IgnoreRange);
    let cut = rule(When::Nth(1), Fault::ShortBody(300_000));
    let size = SCENE.size();
    let (server, _) = good("ranges come back", [first, cut])
        .requests(3..=3)
        .retries(1..=1)
        .fetched(size..=size)
        .connections(1..=3)
        .check();
    assert_eq!(server.ranges()[1], 300_000..size);
}

/// A seed whose index lies is dropped in the middle: what was under way is given up, not the run.
#[test]
fn a_seed_that_lies_costs_a_download() {
    for workers in ["1", "4"] {
        let server = Server::start([("/b", SCENE.bundle())]);
        let mut run = Try::new(&server.url("/b")).args(["--workers", workers]);
        // It tells of two runs that they are not there: they are under way when the rest of it
        // turns out to be wrong, from block 40 on.
        let mut told = SCENE.image.clone();
        for run in [&RUNS[0], &RUNS[3]] {
            told[run.start * BLOCK..run.end * BLOCK].fill(0x22);
        }
        let index = run.path("index");
        fs::write(&index, block_index(&told, "fixed-4", Hash::Sha512_256)).unwrap();
        told[40 * BLOCK..].fill(0x33);
        let liar = run.path("liar");
        fs::write(&liar, told).unwrap();
        fs::remove_file(run.path("seed")).unwrap();
        run = run.args(["--seed", &format!("{liar}={index}")]);
        let done = Done::of(run);
        done.outcome.expect_exit(0).expect_stderr("is dropped");
        assert_eq!(done.retries(), 0);
        assert!(done.fetched() < SCENE.size());
        server.assert_well_behaved_client();
    }
}

// ---- random schedules ----------------------------------------------------------------------

/// Faults that pass, and one that does not, at random requests of a small delta.
#[test]
fn random_faults_end_well_or_in_the_right_class() {
    const ROUNDS: u64 = 60;
    let old = mixed_image(200_000, 1);
    let new = edit(&edit(&old, 2), 3);
    let payload = Payload::slot("system", new.clone())
        .chunker("casync-4")
        .xz(1)
        .dedup();
    let made = Bundle::of(payload).make();
    for seed in 0..ROUNDS {
        let mut random = Random::new(seed);
        let server = Server::start([("/b", made.bytes.as_slice())]);
        let lasting = random.below(4) == 0;
        let passing = random.below(2 * RETRIES + 2);
        let mut schedule = String::new();
        let mut add = |when: usize, fault: Fault| {
            write!(schedule, " {when}:{fault:?}").unwrap();
            server.fault(When::Nth(when), fault);
        };
        for _ in 0..passing {
            add(random.below(12), passing_fault(&mut random));
        }
        if lasting {
            add(random.below(12), lasting_fault(&mut random));
        }
        let workers = 1 + random.below(4);
        let mut run = Try::with(&server.url("/b"), &new, &old, &made.bundle_hash);
        run = run.args([
            "--workers",
            &workers.to_string(),
            "--stall-timeout",
            "150ms",
        ]);
        if random.below(5) == 0 {
            run = run.args(["--disable-range-queries"]);
        }
        let what = format!("seed {seed}, {workers} workers, faults{schedule}");
        let done = Done::of(run);
        let exit = done.outcome.code();
        let allowed =
            exit == Some(0) || exit == Some(3) && passing > RETRIES || exit == Some(4) && lasting;
        done.expect(allowed, &what);
        server.assert_well_behaved_client();
    }
}

fn passing_fault(random: &mut Random) -> Fault {
    let bytes = random.below(8000) as u64;
    match random.below(14) {
        0 => Fault::ShortBody(bytes),
        1 => Fault::ResetInBody(bytes),
        2 => Fault::ResetBeforeHeaders,
        3 => Fault::ResetAfterHeaders,
        4 => status([408, 425, 429, 500, 502, 503, 504][random.below(7)]),
        5 => Fault::WrongRange(random.below(2000) as i64 - 1000),
        6 => Fault::WiderRange(bytes),
        7 => Fault::NarrowRange(bytes),
        8 => Fault::NoContentRange,
        9 => Fault::Stall { after: bytes },
        10 => Fault::StallBeforeHeaders,
        11 => Fault::ChunkedCut,
        12 => Fault::CloseAfterResponseSilently,
        _ => Fault::CloseEachTime,
    }
}

fn lasting_fault(random: &mut Random) -> Fault {
    match random.below(6) {
        0 => Fault::FlipByte(random.below(3000) as u64),
        1 => Fault::LyingRange,
        2 => Fault::Gzip,
        3 => Fault::ChangedSize(1 + random.below(5) as i64),
        4 => Fault::ChangedEtag,
        _ => status([401, 403, 404, 410, 416][random.below(5)]),
    }
}

// ---- a server without any rules ------------------------------------------------------------

/// Sends what a closure says to each request, and closes: for answers that the other server is too
/// proper for.
struct Scripted {
    port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Scripted {
    /// The closure gets the number of the request and its range.
    fn start(answer: impl Fn(usize, Range<u64>) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                if stopped.load(Ordering::SeqCst) {
                    return;
                }
                let mut stream = stream.unwrap();
                let range = read_range(&stream);
                // The client may have seen enough and be gone.
                drop(stream.write_all(&answer(number, range)));
            }
        });
        Self {
            port,
            stop,
            thread: Some(thread),
        }
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/b", self.port)
    }
}

impl Drop for Scripted {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
        // A panic there was printed already.
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// Reads a head; the range in it, or an empty one.
fn read_range(stream: &TcpStream) -> Range<u64> {
    let mut range = 0..0;
    for line in BufReader::new(stream).lines().map_while(Result::ok) {
        if line.is_empty() {
            break;
        }
        let line = line.to_ascii_lowercase();
        if let Some((first, last)) = line
            .strip_prefix("range: bytes=")
            .and_then(|r| r.split_once('-'))
        {
            range = first.parse().unwrap()..last.parse::<u64>().unwrap() + 1;
        }
    }
    range
}

/// A proper 206 with these extra header lines.
fn partial(file: &[u8], range: Range<u64>, headers: &str) -> Vec<u8> {
    let (start, end) = (range.start as usize, (range.end as usize).min(file.len()));
    let (last, size) = (end - 1, file.len());
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nConnection: close\r\nContent-Length: {}\r\n\
         Content-Range: bytes {start}-{last}/{size}\r\n{headers}\r\n",
        end - start
    );
    [head.as_bytes(), &file[start..end]].concat()
}
