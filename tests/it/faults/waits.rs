//! Silence, slowness, connections that close or are refused, limits.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc;
use std::time::Duration;

use super::scripted::{partial, Scripted};
use super::State::{Incomplete, Untouched};
use super::{
    always, bad, check, from_middle, good, once, ordered, plain_bytes, plain_requests, rule,
    status, Done, State, Try, MIDDLE, RETRIES, RUNS, SCENE, STALL, STALL_TIME,
};
use crate::make_bundle::{block_index, mixed_image, Bundle, Hash, Made, Payload};
use crate::server::{Fault, Server, When};
use crate::util::{assert_file, temp_dir, Run};

// A row of README.md.
#[test]
fn silence_is_a_failure() {
    let short = ["--stall-timeout", STALL];
    let (_, done) = good("before the head once", once(Fault::StallBeforeHeaders))
        .retried()
        .args(short)
        .check();
    assert!(done.outcome.elapsed >= STALL_TIME);
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
    assert!(done.outcome.elapsed < Duration::from_secs(20));
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
// A row of README.md.
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

// A row of README.md.
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
// A row of README.md.
#[test]
fn one_connection_at_a_time_is_enough() {
    let server = Server::start([("/b", SCENE.bundle())]);
    server.limit_connections(1);
    let args = ["--workers", "4", "--stall-timeout", STALL];
    let done = Done::of(Try::new(&server.url("/b")).args(args));
    done.outcome.expect_exit(0);
}

/// One connection crawls while its peers run: its span is not waited for. It is no failure that
/// counts. All of it would take a minute.
// A row of README.md.
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
        .args(["--workers", "4", "--stall-timeout", STALL])
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
// A row of README.md.
#[test]
fn a_byte_now_and_then_is_no_progress() {
    for args in [&[][..], &["--disable-range-queries"]] {
        let server = Server::start([("/b", SCENE.bundle())]);
        server.fault(When::After(1), Fault::Stall { after: 1 });
        server.fault(When::Nth(0), Fault::ShortBody(100_000));
        let args = [args, &["--stall-timeout", STALL, "--http-max-retries", "2"]].concat();
        let done = Done::of(Try::new(&server.url("/b")).args(args));
        done.outcome.expect_exit(3);
    }
}

/// Wherever in an answer it is that bytes come now and then, each in time.
#[test]
fn no_part_of_an_answer_trickles_for_ever() {
    const CHUNKED: &str = "Transfer-Encoding: chunked\r\n";
    // The head's lines, what comes behind it at once and then now and then; the exit code.
    for (head, begun, drip, exit) in [
        ("206 P\r\nX: ", "", "a", 3),
        (
            "103 Early Hints\r\n\r\n",
            "",
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n",
            3,
        ),
        ("404 Not Found\r\nContent-Length: 9999\r\n\r\n", "", "a", 4),
        (
            "503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n",
            "1;",
            "a",
            3,
        ),
        ("part", "", "a", 3),
        (CHUNKED, "1;", "a", 3),
        (CHUNKED, "1\r\na\r\n0\r\nX: ", "a", 3),
    ] {
        let file = SCENE.bundle();
        let server = Scripted::dripping(move |number, range| {
            if number == 0 {
                return (partial(file, range, ""), "");
            }
            // A range that begins sooner, or the one asked for.
            let start = range.start - if head == "part" { 5000 } else { 0 };
            let (last, size) = (range.end - 1, file.len());
            let part = format!("206 P\r\nContent-Range: bytes {start}-{last}/{size}\r\n");
            let head = match head {
                "part" => format!("{part}\r\n"),
                CHUNKED => format!("{part}{CHUNKED}\r\n"),
                other => other.to_owned(),
            };
            (format!("HTTP/1.1 {head}{begun}").into_bytes(), drip)
        });
        let args = ["--stall-timeout", "200ms", "--http-max-retries", "1"];
        let done = Done::of(Try::new(&server.url()).args(args));
        done.outcome.expect_exit(exit);
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

// A row of README.md.
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

// A row of README.md.
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

// A row of README.md.
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
