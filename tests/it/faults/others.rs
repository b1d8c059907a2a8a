//! Something else than the bundle behind the URL, and answers no proper server gives.

use std::time::Duration;

use super::scripted::Scripted;
use super::State::{Incomplete, Untouched};
use super::{bad, plain_requests, Done, Try, RETRIES, SCENE};
use crate::server::{Fault, Server, When};
use crate::util::{number, vector};

// A row of README.md.
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
