//! Requests that are sent before the answers to earlier ones are in, to servers good and bad.
//!
//! One scene: an image of which every second block is missing, so that each missing one is a request
//! of its own, and a server that takes some milliseconds to answer. Whatever a server makes of
//! requests that come early, the image is right, and hardly a byte is received twice.

use std::fs;
use std::ops::RangeInclusive;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::Value;

use crate::make_bundle::{random_image, Bundle, Made, Payload, Random};
use crate::server::{Fault, Request, Rule, Server, When};
use crate::util::{assert_file, number, read_json, temp_dir, Outcome, Run};

const BLOCK: usize = 4096;
const BLOCKS: usize = 500;

/// Blocks that the seed lacks.
const MISSING: usize = BLOCKS / 2;

/// Latency: more than is needed for asking ahead to be worth it.
const WAIT: Duration = Duration::from_millis(12);

struct Scene {
    image: Vec<u8>,
    seed: Vec<u8>,
    made: Made,
}

static SCENE: LazyLock<Scene> = LazyLock::new(|| {
    let image = random_image(BLOCKS * BLOCK, 5);
    let mut seed = image.clone();
    for block in seed.chunks_mut(BLOCK).skip(1).step_by(2) {
        block.fill(0x11);
    }
    let made = Bundle::of(Payload::slot("system", image.clone())).make();
    Scene { image, seed, made }
});

struct Done {
    outcome: Outcome,
    report: Value,
    /// As the server has them, those after the opening.
    requests: Vec<Request>,
    connections: usize,
}

impl Done {
    fn http(&self, what: &str) -> u64 {
        number(&self.report, &format!("/http/{what}"))
    }

    /// Requests that were sent before the one before them was answered.
    fn ahead(&self) -> usize {
        self.requests.iter().filter(|it| it.followed).count()
    }
}

/// An install against a server with these rules, which is to go well.
#[track_caller]
fn install(rules: impl IntoIterator<Item = Rule>, args: &[&str]) -> Done {
    let server = Server::start([("/b", SCENE.made.bytes.as_slice())]);
    server.fault(When::Always, Fault::Delay(WAIT));
    rules.into_iter().for_each(|rule| server.on(rule));
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("seed"), &SCENE.seed).unwrap();
    let outcome = Run::new(["install", &server.url("/b"), "-v"])
        .args(["--bundle-hash", &SCENE.made.bundle_hash])
        .args(["--http-retry-initial-backoff", "0"])
        .args(["--stall-timeout", "20"])
        .args(args)
        .arg("--seed")
        .arg(path("seed"))
        .arg("--target")
        .arg(path("target"))
        .arg("--report")
        .arg(path("report"))
        .run();
    outcome.expect_exit(0);
    assert_file(path("target"), &SCENE.image);
    server.assert_well_behaved_client();
    Done {
        outcome,
        report: read_json(path("report")),
        requests: server.requests(),
        connections: server.connections(),
    }
}

fn when(when: When, fault: Fault) -> [Rule; 1] {
    [Rule { when, fault }]
}

#[test]
fn single_blocks_are_asked_for_ahead() {
    let done = install([], &["--workers", "4"]);
    // One for the headers, one for the end of the bundle.
    let expected = MISSING as u64 + 1..=MISSING as u64 + 2;
    assert!(expected.contains(&done.http("requests")), "{}", done.report);
    assert_eq!(done.requests.len() as u64, done.http("requests"));
    assert_eq!(done.http("retries"), 0);
    assert!((1..=4).contains(&done.connections), "{}", done.connections);
    // Most of them: not the first ones of each connection, and not the last ones.
    assert!(done.ahead() > MISSING / 2, "{}", done.ahead());
}

#[test]
fn a_single_worker_asks_for_one_thing_at_a_time() {
    let done = install([], &["--workers", "1"]);
    assert_eq!(done.ahead(), 0);
    assert_eq!(done.connections, 1);
}

/// Without latency there is nothing to gain. (A busy machine may be slow once; not always.)
#[test]
fn nothing_is_asked_ahead_through_a_proxy() {
    let server = Server::start([("/b", SCENE.made.bytes.as_slice())]);
    server.fault(When::Always, Fault::Delay(WAIT));
    let folder = temp_dir();
    let target = folder.path().join("target");
    Run::new(["install", "http://bundle.example/b", "--no-merge"])
        .args(["--bundle-hash", &SCENE.made.bundle_hash])
        .args(["--proxy", &server.url("")])
        .arg("--target")
        .arg(&target)
        .run()
        .expect_exit(0);
    assert_file(&target, &SCENE.image);
    assert!(server.requests().len() > MISSING);
    assert!(server.requests().iter().all(|it| !it.followed));
}

/// Servers that cannot do it, or do it badly, and connections that break in the middle of it:
/// how many requests are sent ahead, how many retries that costs.
#[test]
fn bad_servers_cost_little() {
    let some = 1..=MISSING;
    let table: [(&str, [Rule; 1], RangeInclusive<usize>, u64); 15] = [
        // Or answers another one, where it was not early enough to be forgotten.
        ("forgets", when(When::Always, Fault::Forget), 1..=8, 3),
        (
            "says close each time",
            when(When::Always, Fault::CloseEachTime),
            0..=0,
            0,
        ),
        (
            "closes after each answer",
            when(When::Always, Fault::CloseAfterResponseSilently),
            0..=40,
            20,
        ),
        (
            "closes after some, and says so",
            when(When::Every(40), Fault::CloseEachTime),
            some.clone(),
            0,
        ),
        (
            "closes after some",
            when(When::Every(40), Fault::CloseAfterResponseSilently),
            some.clone(),
            10,
        ),
        ("chunked", when(When::Always, Fault::Chunked), 0..=0, 0),
        (
            "chunked now and then",
            when(When::Every(50), Fault::Chunked),
            some.clone(),
            10,
        ),
        (
            "no length now and then",
            when(When::Every(50), Fault::NoContentLength),
            some.clone(),
            10,
        ),
        (
            "cuts bodies",
            when(When::Every(25), Fault::ShortBody(100)),
            some.clone(),
            30,
        ),
        (
            "resets in bodies",
            when(When::Every(25), Fault::ResetInBody(1000)),
            some.clone(),
            30,
        ),
        (
            "resets before answers",
            when(When::Every(25), Fault::ResetBeforeHeaders),
            some.clone(),
            30,
        ),
        (
            "stray bytes",
            when(When::Every(25), Fault::LongBody(b"HTTP/1.1 206 ".to_vec())),
            some.clone(),
            30,
        ),
        (
            "busy now and then",
            when(When::Every(25), Fault::Status(503, Vec::new())),
            some.clone(),
            20,
        ),
        (
            "other ranges now and then",
            when(When::Every(25), Fault::WrongRange(4096)),
            some.clone(),
            20,
        ),
        (
            "wider ranges",
            when(When::After(1), Fault::WiderRange(500)),
            0..=MISSING,
            20,
        ),
    ];
    std::thread::scope(|scope| {
        for (name, rules, ahead, retries) in table {
            scope.spawn(move || {
                let done = install(rules, &["--workers", "4"]);
                let expect = |right: bool, what: &str| {
                    if !right {
                        let what = format!("{name}: {what}, {} ahead", done.ahead());
                        done.outcome.fail(&what);
                    }
                };
                expect(ahead.contains(&done.ahead()), "sent ahead");
                expect(done.http("retries") <= retries, "retries");
                let planned = SCENE.made.bytes.len() as u64 / 2 + 40_000;
                let fetched = number(&done.report, "/bytes/fetched");
                let most = if name == "wider ranges" { 2 } else { 1 } * planned * 11 / 10;
                expect(fetched <= most, "fetched");
            });
        }
    });
}

/// More than 200 connections are cut at random places during one install.
// A row of README.md.
#[test]
fn two_hundred_cuts_cost_no_more_than_a_tenth() {
    let mut random = Random::new(11);
    let mut cuts = Vec::new();
    for number in 4..2000 {
        // The first two of three, at any place, in one of three ways.
        if number % 3 == 0 {
            continue;
        }
        let at = 1 + random.below(BLOCK - 1) as u64;
        let fault = match random.below(3) {
            0 => Fault::ShortBody(at),
            1 => Fault::ResetInBody(at),
            _ => Fault::ResetBeforeHeaders,
        };
        cuts.push(Rule {
            when: When::Nth(number),
            fault,
        });
    }
    let done = install(cuts, &["--workers", "8", "--http-max-retries", "20"]);
    assert!(done.connections > 200, "{}", done.connections);
    let planned = MISSING as u64 * BLOCK as u64 + 40_000;
    let fetched = number(&done.report, "/bytes/fetched");
    assert!(fetched <= planned * 11 / 10, "{fetched} of {planned}");
}
