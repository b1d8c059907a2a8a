//! Random schedules of faults that pass, and of one that does not.

use std::fmt::Write as _;

use super::{status, Done, Try, RETRIES};
use crate::make_bundle::{edit, mixed_image, Bundle, Payload, Random};
use crate::server::{Fault, Server, When};

/// Faults that pass, and one that does not, at random requests of a small delta.
// A row of README.md.
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
            "600ms",
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
