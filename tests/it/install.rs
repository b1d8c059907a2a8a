//! Installs from end to end, through the binary, from a server that records what it is asked for.
//!
//! What a bad network does belongs elsewhere; here the server does as it should, or has no ranges,
//! or is gone.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::make_bundle::{
    block_digests, block_index, edit, mixed_image, random_image, repeating_image, text_image,
    zeros, Bundle, Cuts, Damage, Hash, Made, MadePayload, Payload,
};
use crate::server::{Fault, When};
use crate::site::Site;
use crate::util::{assert_file, number, text, Outcome, Run};

/// What is held back at least.
const HELD_BACK: usize = 4096;

/// The longest span with default options.
const MAX_SPAN: u64 = 1 << 20;

impl Site {
    fn target(&self) -> PathBuf {
        self.path("target")
    }

    fn payload(&self) -> &MadePayload {
        &self.made.payloads[0]
    }

    /// An install of any bundle, without a target.
    fn run_of(&self, bundle: impl Into<OsString>) -> Run {
        Run::new(["install".into(), bundle.into()])
            .args(["--bundle-hash", &self.made.bundle_hash])
            .args(["--http-retry-initial-backoff", "0"])
            .args(["--report".into(), self.path("report").into_os_string()])
    }

    /// The usual run: from the server to the target.
    fn run(&self) -> Run {
        self.run_to(&self.target())
    }

    fn run_to(&self, target: &Path) -> Run {
        self.run_of(self.server.url("/b"))
            .args(["--target".as_ref(), target.as_os_str()])
    }

    /// Runs it; the target must be the image then. Returns the report and the run.
    #[track_caller]
    fn installs(&self, run: Run) -> (Value, Outcome) {
        let outcome = run.run();
        outcome.expect_exit(0);
        outcome.expect(outcome.stdout.is_empty(), "standard output is for machines");
        assert_file(self.target(), &self.payload().image);
        let report = self.report();
        check_report(&report, &self.made);
        self.server.assert_well_behaved_client();
        (report, outcome)
    }

    /// The same from the server, which must have been asked for each byte only once.
    #[track_caller]
    fn downloads(&self, run: Run) -> Value {
        let (report, _) = self.installs(run);
        let sent = self.server.body_bytes();
        assert_eq!(number(&report, "/bytes/fetched"), sent, "{report:#}");
        let requests = self.server.requests().len() as u64;
        assert_eq!(number(&report, "/http/requests"), requests, "{report:#}");
        let connections = self.server.connections() as u64;
        assert_eq!(
            number(&report, "/http/connections"),
            connections,
            "{report:#}"
        );
        assert_eq!(number(&report, "/http/retries"), 0);
        assert_disjoint(&self.server.ranges());
        report
    }

    /// The ranges of payload data that were asked for behind the first answer, which brought what
    /// comes before `in_hand`.
    fn data_ranges(&self) -> (u64, Vec<Range<u64>>) {
        let ranges = self.server.ranges();
        let in_hand = ranges[0].end;
        let data = &self.payload().data;
        let mut asked: Vec<_> = ranges[1..]
            .iter()
            .map(|range| range.start.max(data.start)..range.end.min(data.end))
            // What comes behind the data may be looked at.
            .filter(|range| !range.is_empty())
            .collect();
        asked.sort_by_key(|range| range.start);
        (in_hand, asked)
    }
}

/// What must hold of every successful report.
#[track_caller]
fn check_report(report: &Value, made: &Made) {
    let touched = report["target_touched"] == true;
    let result = if touched { "installed" } else { "current" };
    assert_eq!(text(report, "/result"), result, "{report:#}");
    assert_eq!(text(report, "/bundle/hash"), made.bundle_hash);
    let count = |pointer: &str| number(report, pointer);
    let blocks: usize = made.payloads.iter().map(|p| p.blocks.len()).sum();
    assert_eq!(count("/blocks/total"), blocks as u64);
    let sum = ["fetched", "seeded", "kept", "copied"].map(|kind| count(&format!("/blocks/{kind}")));
    assert_eq!(sum.iter().sum::<u64>(), blocks as u64, "{report:#}");
    let size: usize = made.payloads.iter().map(|p| p.image.len()).sum();
    assert_eq!(count("/bytes/target"), size as u64);
    assert_eq!(
        count("/bytes/written") + count("/bytes/kept"),
        size as u64,
        "{report:#}"
    );
    for (payload, told) in made
        .payloads
        .iter()
        .zip(report["payloads"].as_array().unwrap())
    {
        assert_eq!(text(told, "/slot"), payload.slot);
        assert_eq!(text(told, "/digest"), payload.digest);
        assert_eq!(number(told, "/size"), payload.image.len() as u64);
    }
}

#[track_caller]
fn assert_disjoint(ranges: &[Range<u64>]) {
    let mut sorted = ranges.to_vec();
    sorted.sort_by_key(|range| range.start);
    for pair in sorted.windows(2) {
        assert!(pair[0].end <= pair[1].start, "asked for twice: {sorted:?}");
    }
}

/// What is left of ranges behind an offset.
fn behind(ranges: impl IntoIterator<Item = Range<u64>>, offset: u64) -> Vec<Range<u64>> {
    let cut = ranges
        .into_iter()
        .map(|range| range.start.max(offset)..range.end);
    cut.filter(|range| !range.is_empty()).collect()
}

fn size_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

fn seed_of(path: &Path) -> [OsString; 2] {
    ["--seed".into(), path.into()]
}

fn seed_with_index(path: &Path, index: &Path) -> [OsString; 2] {
    let mut value = path.as_os_str().to_owned();
    value.push("=");
    value.push(index);
    ["--seed".into(), value]
}

/// The usual payload: text and noise, cut by content, compressed.
fn usual(image: &[u8]) -> Payload {
    Payload::slot("system", image)
        .chunker("casync-8")
        .xz(0)
        .dedup()
}

/// An image, and one before it of which most is the same.
fn pair(size: usize, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let old = mixed_image(size, seed);
    let new = edit(&old, seed);
    (old, new)
}

// ---- seeds -----------------------------------------------------------------------------------

#[test]
fn without_a_seed_every_stored_block_is_fetched() {
    let site = Site::of(usual(&mixed_image(600_000, 1)));
    let report = site.downloads(site.run());
    let stored = site.payload().blocks.iter().filter(|b| b.stored.is_some());
    assert_eq!(number(&report, "/blocks/fetched"), stored.count() as u64);
    assert_eq!(
        number(&report, "/bundle/size"),
        site.made.bytes.len() as u64
    );
    assert!(number(&report, "/bytes/fetched") <= site.made.bytes.len() as u64);
    assert_eq!(report["target_touched"], true);
}

#[test]
fn a_seed_is_scanned_or_looked_up_in_its_index() {
    let (old, new) = pair(1_500_000, 2);
    for prepared in [false, true] {
        let site = Site::of(usual(&new));
        let seed = site.file("old", &old);
        let index = block_index(&old, "casync-8", Hash::Sha512_256);
        let index = site.file("index", &index);
        let seed = match prepared {
            false => seed_of(&seed),
            true => seed_with_index(&seed, &index),
        };
        let report = site.downloads(site.run().args(seed));
        let have = block_digests(&old, "casync-8", Hash::Sha512_256);
        let (mut seeded, mut seen) = (0, HashSet::new());
        for block in &site.payload().blocks {
            let first = seen.insert(&block.digest);
            seeded += u64::from(first && have.contains(&block.digest));
        }
        assert_eq!(number(&report, "/blocks/seeded"), seeded);
        let missing = size_of(&site.payload().missing(&have));
        let fetched = number(&report, "/bytes/fetched");
        let all = site.made.bytes.len() as u64;
        assert!(fetched < all / 2, "{fetched} of {all}, missing {missing}");
    }
}

#[test]
fn seeds_add_up() {
    let image = random_image(400_000, 3);
    let site = Site::of(usual(&image));
    let (front, back) = image.split_at(200_000);
    let (front, back) = (site.file("front", front), site.file("back", back));
    let count = |seeds: &[&Path]| {
        let run = seeds
            .iter()
            .fold(site.run(), |run, seed| run.args(seed_of(seed)));
        let (report, _) = site.installs(run);
        fs::remove_file(site.target()).unwrap();
        number(&report, "/blocks/seeded")
    };
    let (one, other) = (count(&[&front]), count(&[&back]));
    assert!(one > 0 && other > 0);
    assert_eq!(count(&[&front, &back]), one + other);
    // A seed twice is a seed once.
    assert_eq!(count(&[&front, &front]), one);
}

/// Runs with one bad seed, which must cost nothing but a warning.
#[track_caller]
fn installs_with_a_warning(site: &Site, seed: [OsString; 2], warning: &str) -> Value {
    let (report, outcome) = site.installs(site.run().args(seed));
    outcome
        .expect_stderr("warning: ")
        .expect_stderr(warning)
        .expect_stderr("seed");
    report
}

#[test]
fn a_block_index_that_cannot_be_used_is_replaced_by_a_scan() {
    let (old, new) = pair(300_000, 4);
    let right = block_index(&old, "casync-8", Hash::Sha512_256);
    let unusable = [
        block_index(&old, "casync-16", Hash::Sha512_256),
        block_index(&old, "fixed-8", Hash::Sha512_256),
        block_index(&old, "casync-8", Hash::Sha256),
        b"garbage".to_vec(),
        Vec::new(),
        right[..right.len() / 2].to_vec(),
        [right.clone(), right.clone()].concat(),
    ];
    for index in unusable {
        let site = Site::of(usual(&new));
        let (seed, index) = (site.file("old", &old), site.file("index", &index));
        let report = installs_with_a_warning(
            &site,
            seed_with_index(&seed, &index),
            "scanning its seed instead",
        );
        assert!(number(&report, "/blocks/seeded") > 0);
    }
    let site = Site::of(usual(&new));
    let seed = seed_with_index(&site.file("old", &old), &site.path("none"));
    let report = installs_with_a_warning(&site, seed, "scanning its seed instead");
    assert!(number(&report, "/blocks/seeded") > 0);
}

// A row of README.md.
#[test]
fn a_block_index_that_lies_costs_what_it_lies_about() {
    let (old, new) = pair(300_000, 5);
    let shifted = [&zeros(3000)[..], &old].concat();
    let lies = [
        // The blocks are there, but elsewhere.
        block_index(&shifted, "casync-8", Hash::Sha512_256),
        // They are not there.
        block_index(&new, "casync-8", Hash::Sha512_256),
    ];
    for index in lies {
        let site = Site::of(usual(&new));
        let (seed, index) = (site.file("old", &old), site.file("index", &index));
        installs_with_a_warning(&site, seed_with_index(&seed, &index), "fetching");
    }
    // Of another image altogether: nothing in it is wanted, so nobody notices.
    let site = Site::of(usual(&new));
    let index = block_index(&random_image(90_000, 6), "casync-8", Hash::Sha512_256);
    let seed = seed_with_index(&site.file("old", &old), &site.file("index", &index));
    let report = site.downloads(site.run().args(seed));
    assert_eq!(number(&report, "/blocks/seeded"), 0);
}

#[test]
fn a_seed_shorter_than_its_index_is_used_as_far_as_it_goes() {
    let image = random_image(400_000, 7);
    let site = Site::of(usual(&image));
    let index = site.file("index", &block_index(&image, "casync-8", Hash::Sha512_256));
    let seed = site.file("short", &image[..150_000]);
    let (report, _) = site.installs(site.run().args(seed_with_index(&seed, &index)));
    let blocks = &site.payload().blocks;
    let inside = blocks.iter().filter(|block| block.plain.end <= 150_000);
    assert_eq!(number(&report, "/blocks/seeded"), inside.count() as u64);
}

#[test]
fn a_seed_that_cannot_be_opened_is_left_out() {
    let site = Site::of(usual(&random_image(50_000, 8)));
    let empty = site.file("empty", b"");
    for (path, reason) in [
        (site.path("none"), "left out"),
        (site.folder.path().to_owned(), "left out"),
        (PathBuf::from("/dev/null"), "left out"),
    ] {
        installs_with_a_warning(&site, seed_of(&path), reason);
    }
    site.installs(site.run().args(seed_of(&empty)));
}

/// Opening one waits for somebody who writes to it.
#[test]
fn a_pipe_is_no_seed_and_not_waited_for() {
    let site = Site::of(usual(&random_image(50_000, 39)));
    let pipe = site.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let run = site.run().args(seed_of(&pipe));
    let (_, outcome) = site.installs(run.limit(Duration::from_secs(5)));
    outcome.expect_stderr("left out");
}

/// The place of blocks that seeds do not have is known: the workers need not wait for the writer
/// to come to them.
#[test]
fn the_download_begins_before_the_writer_needs_it() {
    let image = random_image(300 * 4096, 37);
    let site = Site::of(Payload::slot("system", &image[..]));
    // All but the last page is claimed; ten pages in the middle turn out to be bad.
    let index = block_index(&image[..299 * 4096], "fixed-4", Hash::Sha512_256);
    let index = site.file("index", &index);
    let mut seed = image.clone();
    seed[100 * 4096..110 * 4096].fill(0);
    let seed = site.file("seed", &seed);
    site.installs(site.run().args(seed_with_index(&seed, &index)));
    let asked = site.server.ranges();
    let place = |block: usize| {
        let stored = site.payload().blocks[block].stored.clone().unwrap();
        let same = |range: &Range<u64>| range.start <= stored.start && range.end >= stored.end;
        asked.iter().position(same).unwrap()
    };
    // Bad pages are fetched one after the other.
    assert!(place(299) < place(109), "{asked:?}");
}

// A row of README.md.
#[test]
fn a_seed_that_keeps_failing_is_dropped() {
    // The index claims that all of it is there; nothing is.
    let image = random_image(3_000_000, 9);
    let site = Site::of(Payload::slot("system", &image[..]));
    let index = block_index(&image, "fixed-4", Hash::Sha512_256);
    let seed = seed_with_index(&site.file("zeros", &zeros(image.len())), &{
        site.file("index", &index)
    });
    let report = installs_with_a_warning(&site, seed, "dropped");
    let blocks = site.payload().blocks.len() as u64;
    assert_eq!(number(&report, "/blocks/fetched"), blocks);
    let requests = site.server.requests().len();
    assert!(requests < 40, "{requests} requests for {blocks} blocks");
}

/// Requests are under way at that moment, which are of no use to the new plan.
#[test]
fn when_a_seed_is_dropped_the_download_goes_on() {
    let image = random_image(3_000_000, 9);
    let site = Site::of(Payload::slot("system", &image[..]));
    // Some pages are fetched first, the next ones are claimed, the others are under way then.
    let claimed = [&random_image(50 * 4096, 35)[..], &image[50 * 4096..1 << 20]].concat();
    let index = block_index(&claimed, "fixed-4", Hash::Sha512_256);
    let index = site.file("index", &index);
    let seed = seed_with_index(&site.file("zeros", &zeros(image.len())), &index);
    installs_with_a_warning(&site, seed, "dropped");
    let requests = site.server.requests().len();
    assert!(requests < 40, "{requests} requests");
}

// A row of README.md.
#[test]
fn one_bad_block_of_a_seed_is_fetched_alone() {
    let image = random_image(800_000, 10);
    let site = Site::of(Payload::slot("system", &image[..]));
    let index = site.file("index", &block_index(&image, "fixed-4", Hash::Sha512_256));
    let mut seed = image.clone();
    // Block 100, behind what comes along with the index.
    seed[100 * 4096 + 5] ^= 1;
    let seed = seed_with_index(&site.file("seed", &seed), &index);
    let report = installs_with_a_warning(&site, seed, "is not what it should be");
    assert_eq!(number(&report, "/blocks/fetched"), 1);
    let (_, asked) = site.data_ranges();
    assert_eq!(asked, [site.payload().blocks[100].stored.clone().unwrap()]);
}

// ---- what bundles can be ---------------------------------------------------------------------

fn every_combination(chunkers: &[&str], size: usize) {
    let (old, new) = pair(size, 12);
    let new = [new, repeating_image(size / 4, 13)].concat();
    let hashes = [Hash::Sha256, Hash::Sha512, Hash::Sha512_256];
    for chunker in chunkers {
        for (number, hash) in hashes.into_iter().enumerate() {
            for preset in [None, Some(0)] {
                for dedup in [false, true] {
                    let mut payload = Payload::slot("system", &new[..])
                        .chunker(chunker)
                        .hash(hash);
                    if let Some(preset) = preset {
                        payload = payload.xz(preset);
                    }
                    if dedup {
                        payload = payload.dedup();
                    }
                    // The hash of the header need not be that of the blocks.
                    let header = hashes[(number + usize::from(dedup)) % hashes.len()];
                    let site = Site::new(&Bundle::of(payload).hash(header));
                    let seed = site.file("old", &old);
                    let index = site.file("index", &block_index(&old, chunker, hash));
                    site.downloads(site.run());
                    site.server.reset_log();
                    fs::remove_file(site.target()).unwrap();
                    site.downloads(site.run().args(seed_with_index(&seed, &index)));
                }
            }
        }
    }
}

#[test]
fn every_combination_of_small_blocks_installs() {
    every_combination(&["fixed-1", "casync-1"], 50_000);
}

#[test]
fn every_combination_of_medium_blocks_installs() {
    every_combination(&["fixed-4", "casync-8"], 250_000);
}

#[test]
fn every_combination_of_large_blocks_installs() {
    every_combination(&["fixed-256", "casync-64"], 700_000);
}

#[test]
fn all_usual_presets_install() {
    let image = text_image(100_000, 14);
    for preset in [0, 6, 9] {
        let site = Site::of(usual(&image).chunker("casync-64").xz(preset));
        site.downloads(site.run());
    }
}

const SIZES: [usize; 12] = [
    0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 65_536, 65_537, 131_072,
];

// A row of README.md.
#[test]
fn payloads_of_every_size_install_over_everything() {
    for size in SIZES {
        let image = random_image(size, size as u64);
        for chunker in ["fixed-4", "fixed-64", "casync-1"] {
            let site = Site::of(Payload::slot("system", &image[..]).chunker(chunker).dedup());
            let target = site.target();
            // There is none; then one of each length.
            site.downloads(site.run());
            for old in [size / 2, size, size + 5000] {
                fs::write(&target, vec![0xa5; old]).unwrap();
                site.installs(site.run());
            }
        }
    }
}

#[test]
fn compressed_payloads_of_every_size_install() {
    for size in SIZES {
        let image = text_image(size, size as u64);
        for chunker in ["fixed-4", "casync-16"] {
            let site = Site::of(
                Payload::slot("system", &image[..])
                    .chunker(chunker)
                    .xz(0)
                    .dedup(),
            );
            fs::write(site.target(), vec![0xa5; size + 700]).unwrap();
            site.installs(site.run());
        }
    }
}

#[test]
fn several_payloads_go_to_their_slots() {
    let (old, system) = pair(500_000, 15);
    let boot = text_image(60_000, 16);
    let data = random_image(4096, 17);
    let site = Site::new(
        &Bundle::of(Payload::slot("boot", &boot[..]).xz(0))
            .payload(usual(&system))
            .payload(Payload::slot("data", &data[..])),
    );
    let seed = site.file("old", &old);
    for workers in ["1", "8"] {
        let slot = |name: &str| {
            [
                "--slot".to_owned(),
                format!("{name}={}", site.path(name).display()),
            ]
        };
        site.server.reset_log();
        let run = site
            .run_of(site.server.url("/b"))
            // In another order than the bundle's.
            .args(slot("system"))
            .args(slot("data"))
            .args(slot("boot"))
            .args(seed_of(&seed))
            .args(["--workers", workers]);
        run.run().expect_exit(0);
        check_report(&site.report(), &site.made);
        for (name, image) in [("boot", &boot), ("system", &system), ("data", &data)] {
            assert_file(site.path(name), image);
            fs::remove_file(site.path(name)).unwrap();
        }
        assert_disjoint(&site.server.ranges());
        assert!(site.server.connections() <= workers.parse().unwrap());
    }
}

#[test]
fn the_bundle_hash_may_be_of_another_algorithm_and_spelling() {
    let site = Site::of(usual(&text_image(5000, 18)));
    let header = &site.made.bytes[site.made.header.start as usize..site.made.header.end as usize];
    let usual = Hash::Sha512_256.digest_string(header);
    for hash in [
        Hash::Sha256.digest_string(header),
        Hash::Sha512.digest_string(header),
        usual.replace("sha512-256:", "sha512_256:"),
        usual.replace("sha512-256:", "sha512_256_"),
        format!("sha512-256:{}", usual[11..].to_uppercase()),
    ] {
        let url = site.server.url("/b");
        let target = site.target();
        Run::new(["install", &url, "--bundle-hash", &hash])
            .args(["--target".as_ref(), target.as_os_str()])
            .run()
            .expect_exit(0);
        assert_file(target, &site.payload().image);
    }
}

// ---- what is asked for -----------------------------------------------------------------------

/// A payload of pages, and a seed that lacks some of them.
fn pages(count: usize, missing: &[Range<usize>]) -> (Site, [OsString; 2]) {
    let image = random_image(count * 4096, 19);
    let mut old = image.clone();
    for range in missing {
        old[range.start * 4096..range.end * 4096].fill(0);
    }
    let site = Site::of(Payload::slot("system", image));
    let seed = seed_of(&site.file("old", &old));
    (site, seed)
}

#[test]
fn neighbours_are_merged_and_nothing_else_is_asked_for() {
    let (site, seed) = pages(250, &[20..21, 50..60, 61..62, 100..130, 249..250]);
    let report = site.downloads(site.run().args(seed));
    let blocks = &site.payload().blocks;
    let run = |blocks: &[crate::make_bundle::MadeBlock]| {
        let stored = |block: &crate::make_bundle::MadeBlock| block.stored.clone().unwrap();
        stored(&blocks[0]).start..stored(&blocks[blocks.len() - 1]).end
    };
    let (in_hand, asked) = site.data_ranges();
    let expected = [20..21, 50..60, 61..62, 100..130, 249..250].map(|range| run(&blocks[range]));
    assert_eq!(asked, behind(expected, in_hand));
    assert_eq!(number(&report, "/blocks/fetched"), 43);
    assert!(site.server.requests().len() <= 5 + 3);
}

#[test]
fn without_merging_each_block_is_a_request() {
    let (site, seed) = pages(250, &[0..30, 100..101]);
    site.downloads(site.run().args(seed).arg("--no-merge"));
    let blocks = site.payload().blocks.iter().enumerate();
    let missing = blocks.filter(|(i, _)| *i < 30 || *i == 100);
    let missing = missing.map(|(_, block)| block.stored.clone().unwrap());
    let (in_hand, asked) = site.data_ranges();
    assert_eq!(asked, behind(missing, in_hand));
    assert!(asked.len() >= 28, "{asked:?}");
}

#[test]
fn one_worker_is_one_connection() {
    let (old, new) = pair(2_500_000, 20);
    let payload = || {
        Payload::slot("system", &new[..])
            .chunker("casync-8")
            .dedup()
    };
    for workers in [1, 2, 5] {
        let site = Site::of(payload());
        let seed = seed_of(&site.file("old", &old));
        let run = site.run().args(seed);
        site.downloads(run.args(["--workers", &workers.to_string()]));
        assert!(site.server.requests().len() > 8);
        let connections = site.server.connections();
        assert!(connections <= workers, "{connections} of {workers}");
    }
}

#[test]
fn a_large_update_costs_little_more_than_what_is_missing() {
    let (old, new) = pair(24 << 20, 21);
    let site = Site::of(
        Payload::slot("system", &new[..])
            .chunker("casync-16")
            .dedup(),
    );
    let have = block_digests(&old, "casync-16", Hash::Sha512_256);
    let missing = site.payload().missing(&have);
    let seed = seed_of(&site.file("old", &old));
    let report = site.downloads(site.run().args(seed));
    let index = site.payload().data.start;
    let floor = size_of(&missing) + index;
    let fetched = number(&report, "/bytes/fetched");
    assert!(
        fetched <= floor + floor / 50 + (16 << 10),
        "fetched {fetched}, at least {floor}"
    );
    let splits: u64 = missing.iter().map(|r| (r.end - r.start) / MAX_SPAN).sum();
    let most = missing.len() as u64 + splits + 3;
    let requests = site.server.requests().len() as u64;
    assert!(requests <= most, "{requests} requests, at most {most}");
    assert!(site.server.peak_connections() <= 8);
}

#[test]
fn a_long_run_is_shared_out_to_the_workers() {
    let site = Site::of(Payload::slot("system", random_image(9 << 20, 22)).chunker("fixed-64"));
    site.downloads(site.run());
    let (_, asked) = site.data_ranges();
    assert!(asked.iter().all(|r| r.end - r.start <= MAX_SPAN));
    assert!((9..=11).contains(&asked.len()), "{asked:?}");
    let small = Site::of(Payload::slot("system", random_image(9 << 20, 22)).chunker("fixed-64"));
    let report = small.downloads(small.run().args(["--memory", "4M", "--workers", "16"]));
    let (_, asked) = small.data_ranges();
    assert!(asked.iter().all(|r| r.end - r.start <= 4 << 20));
    assert!(small.server.connections() <= 16);
    if let Some(peak) = report["peak_memory"].as_u64() {
        assert!(peak < 32 << 20, "{peak} bytes of memory");
    }
}

#[test]
fn blocks_larger_than_their_share_of_memory_install() {
    let image = mixed_image(10 << 20, 23);
    let site = Site::of(Payload::slot("system", image).chunker("fixed-5120").dedup());
    site.downloads(site.run().args(["--memory", "4M", "--workers", "16"]));
}

#[test]
fn repeats_are_copied_and_no_content_is_fetched_twice() {
    let image = [repeating_image(300_000, 24), zeros(200_000)].concat();
    for dedup in [true, false] {
        let mut payload = Payload::slot("system", &image[..]);
        if dedup {
            payload = payload.dedup();
        }
        let site = Site::of(payload);
        let report = site.downloads(site.run());
        let blocks = &site.payload().blocks;
        let distinct: HashSet<_> = blocks.iter().map(|block| &block.digest).collect();
        let (distinct, all) = (distinct.len() as u64, blocks.len() as u64);
        assert!(distinct * 3 < all);
        assert_eq!(number(&report, "/blocks/fetched"), distinct);
        assert_eq!(number(&report, "/blocks/copied"), all - distinct);
        let fetched = number(&report, "/bytes/fetched");
        // The index, the contents, and what came along with the index.
        assert!(fetched < site.payload().data.start + distinct * 4096 + (16 << 10));
        assert!(fetched < image.len() as u64 / 3);
    }
}

#[test]
fn a_tiny_bundle_takes_one_request() {
    let site = Site::of(usual(&text_image(9000, 25)));
    assert!(site.made.bytes.len() < 12 << 10);
    site.downloads(site.run());
    assert_eq!(site.server.requests().len(), 1);
    assert_eq!(site.server.connections(), 1);
}

// ---- other ways to a bundle ------------------------------------------------------------------

#[test]
fn a_local_bundle_is_read_where_it_is_wanted() {
    let (old, new) = pair(1_500_000, 26);
    let site = Site::of(usual(&new));
    let bundle = site.file("bundle", &site.made.bytes);
    let run = || {
        let target = ["--target".into(), site.target().into_os_string()];
        site.run_of(&bundle).args(target)
    };
    let (report, _) = site.installs(run());
    assert_eq!(number(&report, "/http/requests"), 0);
    fs::remove_file(site.target()).unwrap();
    let (report, _) = site.installs(run().args(seed_of(&site.file("old", &old))));
    let read = number(&report, "/bytes/fetched");
    assert!(read < site.made.bytes.len() as u64 / 2, "{read}");
    assert!(number(&report, "/blocks/seeded") > 0);
    // A name with a colon is no URL.
    let odd = site.file("a:b", &site.made.bytes);
    let target = ["--target".into(), site.target().into_os_string()];
    site.installs(site.run_of(&odd).args(target));
}

#[test]
fn a_bundle_comes_through_standard_input() {
    let (old, new) = pair(700_000, 27);
    let site = Site::of(usual(&new));
    let seed = seed_of(&site.file("old", &old));
    let bytes = &site.made.bytes;
    let run = |bytes: &[u8]| {
        // What is right already would not be read.
        drop(fs::remove_file(site.target()));
        let target = ["--target".into(), site.target().into_os_string()];
        site.run_of("-").args(target).stdin(bytes)
    };
    site.installs(run(bytes));
    let (report, _) = site.installs(run(bytes).args(seed));
    assert!(number(&report, "/blocks/seeded") > 0);
    // What follows the bundle is nobody's business.
    site.installs(run(&[bytes, &b"more"[..]].concat()));

    for keep in [0, 3, 100, bytes.len() / 2, bytes.len() - 20] {
        let outcome = run(&bytes[..keep]).run();
        outcome.expect_exit(4).expect_stderr("reflash: ");
        let found = fs::read(site.target()).unwrap_or_default();
        assert!(found[..] != new[..] || site.report()["target_touched"] == false);
    }
}

#[test]
fn a_bundle_that_is_not_there_is_refused() {
    let site = Site::of(usual(b"x"));
    let target = ["--target".into(), site.target().into_os_string()];
    let none = site.run_of(site.path("none")).args(target.clone()).run();
    none.expect_exit(4).expect_stderr("cannot open bundle");
    let folder = site.run_of(site.folder.path()).args(target.clone()).run();
    folder.expect_exit(4);
    let gone = site.run_of(site.server.url("/none")).args(target).run();
    gone.expect_exit(4).expect_stderr("404");
    assert_eq!(site.server.requests().len(), 1, "no use in asking again");
    assert!(!site.target().exists());
}

#[test]
fn a_server_without_ranges_gives_the_whole_bundle() {
    let (old, new) = pair(700_000, 28);
    for fault in [Fault::NoRanges, Fault::IgnoreRange] {
        let site = Site::of(usual(&new));
        site.server.fault(When::Always, fault);
        let seed = seed_of(&site.file("old", &old));
        let (report, outcome) = site.installs(site.run().args(seed));
        outcome.expect_stderr("warning: the server ignores ranges");
        assert!(number(&report, "/blocks/seeded") > 0);

        let target = site.file("target", &old);
        let refuse = || site.run().args(["--full-download", "refuse"]).run();
        refuse().expect_exit(4).expect_stderr("full download");
        assert_file(&target, &old);
        fs::remove_file(&target).unwrap();
        refuse().expect_exit(4);
        assert!(!target.exists());
        assert_eq!(site.report()["target_touched"], false);
    }
}

#[test]
fn range_queries_can_be_turned_off() {
    let (old, new) = pair(700_000, 29);
    let site = Site::of(usual(&new));
    let seed = seed_of(&site.file("old", &old));
    site.downloads(site.run().args(seed).arg("--disable-range-queries"));
    assert!(site.server.ranges().is_empty());
    assert_eq!(site.server.requests().len(), 1);
}

// ---- targets ---------------------------------------------------------------------------------

// A row of README.md.
#[test]
fn unusable_targets_are_refused_before_any_request() {
    let site = Site::of(usual(b"image"));
    symlink("nowhere", site.path("link")).unwrap();
    for (target, reason) in [
        (site.folder.path().to_owned(), "directory"),
        (site.path("none/target"), "none"),
        (site.path("link"), "leads nowhere"),
        ("/dev/reflash-no-such-device".into(), "no such device"),
        ("/dev/null".into(), "character device"),
    ] {
        let outcome = site.run_to(&target).run();
        outcome.expect_exit(5).expect_stderr(reason);
        assert_eq!(site.report()["target_touched"], false);
    }
    assert!(!site.path("nowhere").exists());
    assert!(!Path::new("/dev/reflash-no-such-device").exists());
    assert!(site.server.requests().is_empty());
}

// A row of README.md.
#[test]
fn a_read_only_file_is_refused_before_any_request() {
    let site = Site::of(usual(b"image"));
    let target = site.file("target", b"old");
    fs::set_permissions(&target, fs::Permissions::from_mode(0o444)).unwrap();
    if OpenOptions::new().write(true).open(&target).is_ok() {
        eprintln!("skipped: permissions mean nothing to this user");
        return;
    }
    site.run().run().expect_exit(5).expect_stderr("target");
    assert_file(target, b"old");
    assert!(site.server.requests().is_empty());
}

// A row of README.md.
#[test]
fn a_link_is_followed_to_its_file() {
    let site = Site::of(usual(&text_image(30_000, 30)));
    let file = site.file("file", b"old");
    symlink(&file, site.target()).unwrap();
    site.installs(site.run());
    assert!(site.target().is_symlink());
    assert_file(file, &site.payload().image);
}

// A row of README.md.
#[test]
fn two_slots_never_share_a_target() {
    let site = Site::new(
        &Bundle::of(Payload::slot("a", &b"1"[..])).payload(Payload::slot("b", &b"2"[..])),
    );
    let file = site.file("file", b"old");
    symlink(&file, site.path("link")).unwrap();
    let slot = |name, path: &Path| ["--slot".to_owned(), format!("{name}={}", path.display())];
    let run = site.run_of(site.server.url("/b")).args(slot("a", &file));
    let outcome = run.args(slot("b", &site.path("link"))).run();
    outcome.expect_exit(2).expect_stderr("same target");
    assert_file(file, b"old");
}

// A row of README.md.
#[test]
fn two_names_of_one_file_are_one_target() {
    let payload = |slot, image: &'static [u8]| Payload::slot(slot, image);
    let site = Site::new(&Bundle::of(payload("a", b"1")).payload(payload("b", b"2")));
    let (file, other) = (site.file("file", b"old"), site.path("other"));
    fs::hard_link(&file, &other).unwrap();
    let slot = |name, path: &Path| ["--slot".to_owned(), format!("{name}={}", path.display())];
    let run = site.run_of(site.server.url("/b")).args(slot("a", &file));
    let outcome = run.args(slot("b", &other)).run();
    outcome.expect_exit(2).expect_stderr("same target");
    assert_file(file, b"old");
}

// A row of README.md.
#[test]
fn a_bundle_is_never_its_own_target() {
    let site = Site::of(usual(&text_image(100_000, 38)));
    let bundle = site.file("bundle", &site.made.bytes);
    let target = ["--target".as_ref(), bundle.as_os_str()];
    let outcome = site.run_of(&bundle).args(target).run();
    outcome.expect(outcome.code() != Some(0), "expected a refusal");
    assert_file(bundle, &site.made.bytes);
}

/// The target after a run that failed: nothing mistakes it for an image.
#[track_caller]
fn assert_unsealed(site: &Site) {
    let found = fs::read(site.target()).unwrap();
    assert!(
        found[..HELD_BACK] == zeros(HELD_BACK)[..],
        "the beginning is there"
    );
    assert_eq!(site.report()["target_touched"], true);
    assert_eq!(text(&site.report(), "/result"), "failed");
}

#[test]
fn when_the_server_is_gone_the_target_has_no_beginning() {
    let image = random_image(3 << 20, 31);
    // Also when the old image began with the same bytes, and when there was none.
    for old in [Some(&image[..]), None] {
        let site = Site::of(Payload::slot("system", &image[..]).chunker("fixed-64"));
        if let Some(old) = old {
            // Right but for one block.
            let mut old = old[..2 << 20].to_vec();
            old[200_000] ^= 1;
            fs::write(site.target(), old).unwrap();
        }
        let gone = site.payload().data.start + (2 << 20);
        let late = move |request: &crate::server::Request| {
            request.bytes().is_some_and(|range| range.end > gone)
        };
        site.server
            .fault(When::matching(late), Fault::ResetBeforeHeaders);
        // One worker: what comes before the break arrives before it.
        let run = || {
            site.run()
                .args(["--http-max-retries", "0", "--workers", "1"])
        };
        let outcome = run().run();
        outcome
            .expect_exit(3)
            .expect_stderr("after 1 try")
            .expect_stderr("the target is incomplete");
        assert_unsealed(&site);
        // The same command again, when the server is back.
        site.server.clear_rules();
        site.installs(run());
    }
}

#[test]
fn when_a_block_is_wrong_the_target_has_no_beginning() {
    let image = random_image(500_000, 32);
    let payload = || Payload::slot("system", &image[..]).chunker("fixed-16");
    let damaged = [
        payload().damage(20, Damage::Flip(77)),
        payload().xz(0).damage(20, Damage::Flip(1000)),
        payload().xz(0).damage(20, Damage::Replace(vec![7; 300])),
        // All blocks are right, the whole is not what it should be.
        payload().wrong_payload_hash([3; 32]),
    ];
    for payload in damaged {
        let site = Site::of(payload);
        fs::write(site.target(), random_image(image.len(), 132)).unwrap();
        site.run().run().expect_exit(4).expect_stderr("payload 0");
        assert_unsealed(&site);
    }
}

#[test]
fn without_hold_back_the_beginning_is_written_in_its_turn() {
    let image = random_image(3_000_000, 36);
    let payload = Payload::slot("system", &image[..]).chunker("fixed-64");
    let site = Site::of(payload.clone());
    site.downloads(site.run().arg("--no-hold-back"));
    let site = Site::of(payload.wrong_payload_hash([3; 32]));
    site.run().arg("--no-hold-back").run().expect_exit(4);
    // What was written before the end is there, from its beginning on.
    let found = fs::read(site.target()).unwrap();
    assert!(found.len() >= 1 << 20 && image.starts_with(&found));
}

#[test]
fn a_wrong_second_payload_leaves_the_first_without_its_beginning() {
    let image = random_image(100_000, 33);
    let wrong = Payload::slot("b", &image[..]).damage(10, Damage::Flip(0));
    let site = Site::new(&Bundle::of(Payload::slot("a", &image[..])).payload(wrong));
    let slot = |name: &str| {
        let path = site.file(name, &random_image(image.len(), 133));
        ["--slot".to_owned(), format!("{name}={}", path.display())]
    };
    let run = site.run_of(site.server.url("/b")).args(slot("a"));
    run.args(slot("b")).run().expect_exit(4);
    for name in ["a", "b"] {
        let found = fs::read(site.path(name)).unwrap();
        assert!(found[..HELD_BACK] == zeros(HELD_BACK)[..], "{name}");
    }
}

#[test]
fn blocks_of_odd_cuts_install() {
    // The borders need not be those that the chunker would give.
    let image = mixed_image(100_000, 34);
    let cuts = vec![1, 300, 4000, 4001, 36_000, 60_000, 90_000, 99_999];
    let payload = Payload::slot("system", &image[..])
        .chunker_text("casync-8")
        .cuts(Cuts::At(cuts));
    for payload in [payload.clone(), payload.xz(0).dedup()] {
        let site = Site::of(payload);
        site.downloads(site.run());
    }
}
