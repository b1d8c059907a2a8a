//! Ranges, bodies and encodings that are not what was asked for.

use super::State::{Incomplete, Untouched};
use super::{
    always, bad, check, from_middle, good, once, plain_bytes, plain_requests, rule, status_with,
    Done, State, Try, BLOCK, MIDDLE, PLAIN, RETRIES, RUNS, SCENE, STALL,
};
use crate::server::{Fault, Server, When};

// A row of README.md.
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

// A row of README.md.
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

// A row of README.md.
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
            &["--stall-timeout", STALL],
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

// A row of README.md.
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
// A row of README.md.
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

// A row of README.md.
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

// A row of README.md.
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
