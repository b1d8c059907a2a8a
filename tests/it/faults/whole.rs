//! One ordered download, asked for or as a fallback.

use std::fs;

use super::State::Incomplete;
use super::{always, good, ordered, rule, status, Done, Try, BLOCK, RETRIES, RUNS, SCENE};
use crate::make_bundle::{block_index, Hash};
use crate::server::{Fault, Server, When};

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
