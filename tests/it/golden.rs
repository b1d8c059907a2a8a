//! The golden vectors: bundles and indexes of the reference's own tools, with the facts that an
//! independent reader found in them, and damaged bundles with the verdict of a careful reader.
//!
//! Each JSON file states what its bundle holds; nothing is repeated here but what it means.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reflash::internal::bundle::{Compression, Delivery, Entry, Index, Payload, Size};
use reflash::internal::chunker::Chunker;
use reflash::internal::hash::{Digest, HashAlgorithm};
use reflash::internal::http::Counters;
use reflash::internal::open::{self, Opening, Trust};
use reflash::internal::plan::{self, Shape, Standing};
use reflash::internal::remote::{Access, Cursor, Location};
use reflash::internal::report::Reporter;
use reflash::internal::rugix::{self, BlockIndex};
use reflash::internal::scan::Scan;
use reflash::internal::{seed, xz};
use serde_json::Value;

use crate::make_bundle::{hex, Hash};
use crate::server::Server;
use crate::util::{assert_file, data, number, read_json, temp_dir, text, vector, Outcome, Run};

const SKIP_TRUST: &str = "--insecure-skip-bundle-verification";
const ALLOW_PLAIN: &str = "--insecure-allow-missing-block-index";

/// Longer than any image here: what a target holds before the install.
static OLD: [u8; 1_100_000] = [0xa5; 1_100_000];

/// Peak memory of an install of a bundle that wants too much of it.
const MEMORY_LIMIT: u64 = 64 << 20;

/// A golden bundle and its facts.
struct Golden {
    name: String,
    path: PathBuf,
    facts: Value,
}

impl Golden {
    /// All of them, in order.
    fn all() -> Vec<Self> {
        let mut all: Vec<_> = fs::read_dir(data("vectors/bundles"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "rugixb"))
            .map(|path| Self {
                name: path.file_stem().unwrap().to_str().unwrap().to_owned(),
                facts: read_json(path.with_extension("json")),
                path,
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert_eq!(all.len(), 47, "a bundle came or went");
        all
    }

    fn payloads(&self) -> &[Value] {
        self.facts["payloads"].as_array().unwrap()
    }

    /// The names of its slots, if slots are all that it has, and images are what goes there.
    fn slots(&self) -> Option<Vec<&str>> {
        let slot = |payload: &'_ Value| payload.get("delta").is_none();
        let names = self.payloads().iter().map(|payload| {
            let name = payload.pointer("/delivery/slot/slot")?.as_str()?;
            slot(payload).then_some(name)
        });
        names.collect()
    }

    /// Every payload says which blocks it has.
    fn indexed(&self) -> bool {
        let mut payloads = self.payloads().iter();
        payloads.all(|payload| payload["block-encoding"].is_object())
    }

    fn bundle_hash(&self) -> &str {
        text(&self.facts, "/bundle-hash")
    }

    /// The bundle hash with one digit changed.
    fn wrong_hash(&self) -> String {
        let mut hash = self.bundle_hash().to_owned();
        let last = hash.pop().unwrap();
        hash.push(if last == '0' { '1' } else { '0' });
        hash
    }

    fn hash(&self) -> Hash {
        hash_named(text(&self.facts, "/hash-algorithm"))
    }
}

fn hash_named(name: &str) -> Hash {
    [Hash::Sha256, Hash::Sha512, Hash::Sha512_256]
        .into_iter()
        .find(|hash| hash.name() == name)
        .unwrap()
}

/// The targets of a run, one a slot.
struct Targets {
    args: Vec<String>,
    paths: Vec<PathBuf>,
}

impl Targets {
    fn new(slots: &[&str], folder: &Path, name: &str) -> Self {
        let paths: Vec<_> = slots
            .iter()
            .map(|slot| folder.join(format!("{name}-{slot}")))
            .collect();
        let args = match &paths[..] {
            [one] => vec!["--target".to_owned(), one.display().to_string()],
            several => several
                .iter()
                .zip(slots)
                .flat_map(|(path, slot)| {
                    ["--slot".to_owned(), format!("{slot}={}", path.display())]
                })
                .collect(),
        };
        Self { args, paths }
    }
}

// ---- facts, through the library --------------------------------------------------------------

fn open_golden(golden: &Golden) -> Opening {
    let counters = Arc::new(Counters::default());
    let location = Location::File(golden.path.clone());
    let cursor = Cursor::open(&location, &Access::default(), &counters).unwrap();
    let trust = Trust::Hash(Digest::parse(golden.bundle_hash()).unwrap());
    open::open(cursor, &trust).unwrap_or_else(|e| panic!("{}: {e}", golden.name))
}

#[test]
fn every_bundle_holds_the_facts_that_are_told_of_it() {
    for golden in Golden::all() {
        let (name, facts) = (&golden.name, &golden.facts);
        let bytes = fs::read(&golden.path).unwrap();
        assert_eq!(number(facts, "/bundle-size"), bytes.len() as u64, "{name}");
        let mut opening = open_golden(&golden);
        assert_eq!(opening.cursor().size(), Some(bytes.len() as u64), "{name}");
        assert!(opening.cursor().jumps(), "{name}");

        let header = opening.header().clone();
        assert_eq!(header.hash.to_string(), golden.bundle_hash(), "{name}");
        assert_eq!(facts["hash-algorithm"], header.algorithm.name(), "{name}");
        assert_eq!(facts["is-incremental"], header.incremental, "{name}");
        let (raw, offset) = part(&bytes, facts);
        let parsed = rugix::parse_header(raw, offset).unwrap();
        assert_eq!(parsed.hash, header.hash, "{name}: the place of the header");

        assert_eq!(header.entries.len(), golden.payloads().len(), "{name}");
        let mut data_end = 0;
        for (entry, facts) in header.entries.iter().zip(golden.payloads()) {
            check_entry(name, entry, facts);
            let opened = opening.next_payload().unwrap().unwrap();
            let payload = opened.payload;
            check_payload(name, &bytes, entry, &payload, facts);
            // All that is not data: the bundle header counts with the first payload.
            assert_eq!(payload.header_size, payload.data.start - data_end, "{name}");
            data_end = payload.data.end;
        }
        assert!(opening.next_payload().unwrap().is_none(), "{name}");
        opening.close().unwrap_or_else(|e| panic!("{name}: {e}"));
    }
}

/// The raw header at the place that the facts name, and that place.
fn part<'a>(bytes: &'a [u8], facts: &Value) -> (&'a [u8], u64) {
    let offset = number(facts, "/header-offset");
    let end = offset + number(facts, "/header-size");
    (&bytes[offset as usize..end as usize], offset)
}

fn check_entry(name: &str, entry: &Entry, facts: &Value) {
    let delivery = match &entry.delivery {
        Delivery::Slot(slot) => serde_json::json!({ "slot": { "slot": slot } }),
        Delivery::Execute(handler) => serde_json::json!({ "execute": { "handler": handler } }),
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(facts["delivery"], delivery, "{name}");
    let delta = facts.pointer("/delta/format").and_then(Value::as_str);
    assert_eq!(entry.delta.as_deref(), delta, "{name}");
    let digest = |digest: &Digest| hex(digest.as_bytes());
    assert_eq!(
        facts["header-hash"],
        digest(&entry.header_digest),
        "{name}: header hash"
    );
    assert_eq!(
        facts["file-hash"],
        digest(&entry.digest),
        "{name}: file hash"
    );
}

fn check_payload(name: &str, bytes: &[u8], entry: &Entry, payload: &Payload, facts: &Value) {
    assert_eq!(number(facts, "/payload"), payload.number as u64, "{name}");
    assert_eq!(number(facts, "/data-offset"), payload.data.start, "{name}");
    let size = payload.data.end - payload.data.start;
    assert_eq!(number(facts, "/data-size"), size, "{name}");
    let (raw, offset) = part(bytes, facts);
    let digest = entry.header_digest;
    assert!(digest.verify(raw).is_ok(), "{name}: place of the header");
    let again = rugix::parse_payload_header(raw, offset, payload.data.clone()).unwrap();
    assert_eq!(again.is_some(), payload.index.is_some(), "{name}");

    match (&payload.index, facts.get("block-encoding")) {
        (Some(index), Some(facts)) => check_index(name, bytes, index, facts),
        (None, None | Some(Value::Null)) => {
            let data = &bytes[payload.data.start as usize..payload.data.end as usize];
            assert!(entry.digest.verify(data).is_ok(), "{name}");
        }
        _ => panic!("{name}: one reader sees a block encoding, the other none"),
    }
}

fn check_index(name: &str, bytes: &[u8], index: &Index, facts: &Value) {
    assert_eq!(facts["chunker"], index.chunker().to_string(), "{name}");
    assert_eq!(facts["hash-algorithm"], index.algorithm().name(), "{name}");
    assert_eq!(facts["deduplicated"], index.deduplicated(), "{name}");
    let compression = match index.compression() {
        Compression::None => Value::Null,
        Compression::Xz => "xz".into(),
    };
    assert_eq!(facts["compression"], compression, "{name}");
    assert_eq!(number(facts, "/blocks"), index.len() as u64, "{name}");
    let blocks: Vec<_> = index.blocks().collect();
    assert_eq!(blocks.len(), index.len(), "{name}");
    let stored = blocks.iter().filter(|b| b.stored().is_some()).count();
    assert_eq!(number(facts, "/stored-blocks"), stored as u64, "{name}");
    let distinct = blocks.iter().filter(|b| b.first == b.number).count();
    assert_eq!(number(facts, "/distinct-blocks"), distinct as u64, "{name}");

    // Every block in turn, as an installer makes it: that gives the plain sizes and places.
    let mut plain: Vec<Vec<u8>> = Vec::new();
    let mut offsets = vec![0];
    for block in &blocks {
        assert_eq!(index.find(&block.digest), Some(block.first), "{name}");
        let made = match block.stored() {
            None => plain[block.first as usize].clone(),
            Some(range) => {
                let stored = &bytes[range.start as usize..range.end as usize];
                match index.compression() {
                    Compression::None => stored.to_vec(),
                    Compression::Xz => unpack(stored, block.size),
                }
            }
        };
        assert!(block.digest.verify(&made).is_ok(), "{name}: {block:?}");
        assert!(block.size.allows(made.len()), "{name}: {block:?}");
        offsets.push(offsets.last().unwrap() + made.len() as u64);
        plain.push(made);
    }
    let sizes = || plain.iter().map(|made| made.len() as u64);
    // Null for an empty payload.
    assert_eq!(
        facts["smallest-block"].as_u64().unwrap_or(0),
        sizes().min().unwrap_or(0),
        "{name}"
    );
    assert_eq!(
        facts["largest-block"].as_u64().unwrap_or(0),
        sizes().max().unwrap_or(0),
        "{name}"
    );
    let (least, most) = index.size_bounds();
    let total: u64 = sizes().sum();
    assert!(least <= total && total <= most, "{name}");

    for (block, facts) in [
        (blocks.first(), &facts["first-block"]),
        (blocks.last(), &facts["last-block"]),
    ] {
        let Some(block) = block else {
            assert!(facts.is_null(), "{name}");
            continue;
        };
        let i = block.number as usize;
        assert_eq!(number(facts, "/block"), i as u64, "{name}");
        assert_eq!(facts["hash"], hex(block.digest.as_bytes()), "{name}");
        assert_eq!(number(facts, "/raw-offset"), offsets[i], "{name}");
        assert_eq!(number(facts, "/raw-size"), plain[i].len() as u64, "{name}");
        match block.stored() {
            Some(stored) => {
                assert_eq!(number(facts, "/offset"), stored.start, "{name}");
                assert_eq!(number(facts, "/size"), stored.end - stored.start, "{name}");
            }
            None => assert_eq!(number(facts, "/same-as"), u64::from(block.first), "{name}"),
        }
    }
}

fn unpack(stored: &[u8], size: Size) -> Vec<u8> {
    let mut plain = Vec::new();
    let bound = size.bound() as usize;
    xz::Decoder::new()
        .decompress(stored, bound, &mut plain)
        .unwrap_or_else(|e| panic!("{e}"));
    plain
}

// ---- installs, through the binary ------------------------------------------------------------

/// The ways to a bundle.
#[derive(Clone, Copy, Debug)]
enum Way {
    File,
    Stdin,
    Ranges,
    FullDownload,
}

/// A run that installs a golden bundle this way.
fn install(golden: &Golden, way: Way, server: &Server) -> Run {
    let path = golden.path.display().to_string();
    let url = server.url(&format!("/{}", golden.name));
    match way {
        Way::File => Run::new(["install", &path]),
        Way::Stdin => Run::new(["install", "-"]).stdin(fs::read(&golden.path).unwrap()),
        Way::Ranges => Run::new(["install", &url]),
        Way::FullDownload => Run::new(["install", &url, "--disable-range-queries"]),
    }
}

fn serve(goldens: &[Golden]) -> Server {
    Server::start(goldens.iter().map(|g| (format!("/{}", g.name), &*g.path)))
}

fn every_slot_bundle_installs(way: Way) {
    let goldens = Golden::all();
    let server = serve(&goldens);
    let folder = temp_dir();
    let mut installed = 0;
    for golden in &goldens {
        let (Some(slots), name) = (golden.slots(), &golden.name) else {
            continue;
        };
        // A new file for the first half of the names, an old and longer one for the others.
        let targets = Targets::new(&slots, folder.path(), name);
        if installed % 2 == 0 {
            for path in &targets.paths {
                fs::write(path, OLD).unwrap();
            }
        }
        let mut run = install(golden, way, &server)
            .args(["--bundle-hash", golden.bundle_hash()])
            .args(&targets.args);
        if !golden.indexed() {
            run = run.arg(ALLOW_PLAIN);
        }
        run.run().expect_exit(0);
        for (path, facts) in targets.paths.iter().zip(golden.payloads()) {
            let image = fs::read(path).unwrap();
            assert_eq!(
                number(facts, "/file-size"),
                image.len() as u64,
                "{name} {way:?}"
            );
            let digests = [
                (golden.hash(), "/file-hash"),
                (Hash::Sha256, "/file-sha256"),
            ];
            for (hash, fact) in digests {
                assert_eq!(
                    text(facts, fact),
                    hex(&hash.digest(&image)),
                    "{name} {way:?}"
                );
            }
        }
        installed += 1;
    }
    assert_eq!(installed, 44);
    server.assert_well_behaved_client();
}

#[test]
fn every_slot_bundle_installs_from_a_file() {
    every_slot_bundle_installs(Way::File);
}

#[test]
fn every_slot_bundle_installs_from_standard_input() {
    every_slot_bundle_installs(Way::Stdin);
}

#[test]
fn every_slot_bundle_installs_from_a_server() {
    every_slot_bundle_installs(Way::Ranges);
}

#[test]
fn every_slot_bundle_installs_from_a_server_without_range_queries() {
    every_slot_bundle_installs(Way::FullDownload);
}

/// Runs that end with exit 4 leave an old target as it was and create no new one.
fn expect_refused(golden: &Golden, slots: &[&str], run: impl Fn() -> Run) -> Outcome {
    let folder = temp_dir();
    let new = Targets::new(slots, folder.path(), "new");
    run().args(&new.args).run().expect_exit(4);
    let old = Targets::new(slots, folder.path(), "old");
    for path in &old.paths {
        fs::write(path, OLD).unwrap();
    }
    let outcome = run().args(&old.args).run();
    outcome.expect_exit(4).expect_stderr("reflash: ");
    for path in &old.paths {
        assert_file(path, &OLD);
    }
    for path in &new.paths {
        assert!(!path.exists(), "{}: created", golden.name);
    }
    outcome
}

#[test]
fn one_wrong_digit_in_the_bundle_hash_is_enough_to_touch_nothing() {
    let goldens = Golden::all();
    let server = serve(&goldens);
    // The ways take turns: what is refused is the same header.
    let ways = [Way::File, Way::Stdin, Way::Ranges, Way::FullDownload];
    for (golden, way) in goldens.iter().zip(ways.iter().cycle()) {
        let slots = golden.slots().unwrap_or_else(|| vec!["system"]);
        let hash = golden.wrong_hash();
        let run = || install(golden, *way, &server).args(["--bundle-hash", &hash, ALLOW_PLAIN]);
        let outcome = expect_refused(golden, &slots, run);
        outcome
            .expect_stderr("digest of bundle header does not match")
            .expect_stderr(golden.bundle_hash())
            .expect_stderr("hint: ");
    }
}

#[test]
fn what_is_no_image_for_a_slot_is_refused_by_name() {
    let goldens = Golden::all();
    let server = serve(&goldens);
    let mut refused = 0;
    for golden in goldens.iter().filter(|golden| golden.slots().is_none()) {
        let expected = match golden.name.as_str() {
            "xdelta" => "static delta (xdelta)",
            _ => "is to be executed, by [\"/bin/sh\"",
        };
        for way in [Way::File, Way::Stdin, Way::Ranges, Way::FullDownload] {
            let run = || {
                let hash = ["--bundle-hash", golden.bundle_hash()];
                install(golden, way, &server).args(hash).arg(ALLOW_PLAIN)
            };
            expect_refused(golden, &["boot"], run).expect_stderr(expected);
        }
        refused += 1;
    }
    assert_eq!(refused, 3);
}

#[test]
fn payloads_without_block_index_need_a_word_of_the_user() {
    let goldens = Golden::all();
    let server = serve(&goldens);
    let mut refused = 0;
    for golden in goldens.iter().filter(|golden| !golden.indexed()) {
        let Some(slots) = golden.slots() else {
            continue;
        };
        for way in [Way::File, Way::Stdin, Way::Ranges, Way::FullDownload] {
            let hash = ["--bundle-hash", golden.bundle_hash()];
            let run = || install(golden, way, &server).args(hash);
            expect_refused(golden, &slots, run).expect_stderr(ALLOW_PLAIN);
        }
        refused += 1;
    }
    assert_eq!(refused, 3);
}

// ---- damaged bundles -------------------------------------------------------------------------

fn hostile_bundles_get_their_verdict(way: Way) {
    let expected = read_json(data("vectors/hostile/expected.json"));
    let image = vector(text(&expected, "/payload"));
    let cases = expected["cases"].as_object().unwrap();
    assert_eq!(cases.len(), 50, "a case came or went");
    let folder = temp_dir();
    for (name, case) in cases {
        let path = data(&format!("vectors/hostile/{name}.rugixb"));
        let golden = Golden {
            name: name.clone(),
            path,
            facts: Value::Null,
        };
        let server = serve(std::slice::from_ref(&golden));
        let target = folder.path().join(name);
        let old = &OLD[..image.len() + 1000];
        fs::write(&target, old).unwrap();
        let report = folder.path().join(format!("{name}.json"));
        let mut run = install(&golden, way, &server);
        run = run.args([SKIP_TRUST.as_ref(), "--target".as_ref(), target.as_os_str()]);
        // Enough for any of them: they are a few KiB.
        run = run.limit(Duration::from_secs(20));
        let outcome = run.args(["--report".as_ref(), report.as_os_str()]).run();
        let found = fs::read(&target).unwrap();
        match (text(case, "/expect"), outcome.code()) {
            ("accept" | "either", Some(0)) => assert_file(&target, &image),
            ("reject" | "reject-on-install" | "either", Some(4)) => {
                let right = found != image && !found.starts_with(&image);
                outcome.expect(right, &format!("{name}: a rejected image is in place"));
                outcome.expect_stderr("reflash: ");
            }
            (verdict, _) => {
                let why = text(case, "/why");
                outcome.fail(&format!("{name} {way:?}: expected {verdict}: {why}"))
            }
        }
        let report = read_json(&report);
        let exit = outcome.code().unwrap();
        assert_eq!(report["exit"], exit, "{name}");
        if !report["target_touched"].as_bool().unwrap() {
            assert_file(&target, old);
        }
        if let Some(peak) = report["peak_memory"].as_u64() {
            assert!(peak < MEMORY_LIMIT, "{name}: {peak} bytes of memory");
        }
        server.assert_well_behaved_client();
    }
}

#[test]
fn hostile_bundles_get_their_verdict_from_a_file() {
    hostile_bundles_get_their_verdict(Way::File);
}

#[test]
fn hostile_bundles_get_their_verdict_from_standard_input() {
    hostile_bundles_get_their_verdict(Way::Stdin);
}

#[test]
fn hostile_bundles_get_their_verdict_from_a_server() {
    hostile_bundles_get_their_verdict(Way::Ranges);
}

#[test]
fn hostile_bundles_get_their_verdict_in_a_full_download() {
    hostile_bundles_get_their_verdict(Way::FullDownload);
}

// ---- block indexes ---------------------------------------------------------------------------

const INDEXES: [&str; 3] = [
    "old.casync-64_sha512-256",
    "old.casync-8_sha512-256",
    "old.fixed-4_sha256",
];

fn golden_index(name: &str) -> BlockIndex {
    let bytes = vector(&format!("index/{name}.rugix-block-index"));
    rugix::parse_block_index(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"))
}

#[test]
fn every_block_index_holds_its_facts_and_is_what_a_scan_finds() {
    let image = vector("images/old.img");
    for name in INDEXES {
        let facts = read_json(data(&format!("vectors/index/{name}.json")));
        let index = golden_index(name);
        assert_eq!(facts["chunker"], index.chunker.to_string(), "{name}");
        assert_eq!(facts["hash-algorithm"], index.algorithm.name(), "{name}");
        let blocks: Vec<_> = index.blocks().collect();
        assert_eq!(number(&facts, "/blocks"), blocks.len() as u64, "{name}");
        for (block, facts) in [
            (blocks.first(), &facts["first-block"]),
            (blocks.last(), &facts["last-block"]),
        ] {
            let (digest, offset, size) = block.unwrap();
            assert_eq!(number(facts, "/offset"), *offset, "{name}");
            assert_eq!(number(facts, "/size"), u64::from(*size), "{name}");
            assert_eq!(facts["hash"], hex(digest.as_bytes()), "{name}");
        }
        let size: u64 = index.sizes.iter().map(|size| u64::from(*size)).sum();
        assert_eq!(number(&facts, "/image-size"), size, "{name}");

        let found = scan(&image, index.chunker, index.algorithm);
        assert!(found == blocks, "{name}: the scan cuts elsewhere");
    }
}

fn scan(image: &[u8], chunker: Chunker, algorithm: HashAlgorithm) -> Vec<(Digest, u64, u32)> {
    let scan = Scan {
        read_at: &|buffer, offset| {
            let offset = offset as usize;
            buffer.copy_from_slice(&image[offset..offset + buffer.len()]);
            Ok(())
        },
        size: image.len() as u64,
        chunker,
        progress: &|_| {},
    };
    let (found, error) = scan.run(&|bytes| Some(algorithm.digest(bytes)));
    assert!(error.is_none());
    let found = found.into_iter();
    found.map(|b| (b.kept, b.offset, b.size)).collect()
}

#[test]
fn the_golden_plans_are_made() {
    let plans = read_json(data("vectors/bundles/delta-plan.json"));
    let goldens = Golden::all();
    let plans = plans.as_object().unwrap();
    assert_eq!(plans.len(), INDEXES.len());
    for ((bundle, expected), index_name) in plans.iter().zip(INDEXES) {
        let golden = goldens.iter().find(|g| g.name == *bundle).unwrap();
        let mut opening = open_golden(golden);
        let opened = opening.next_payload().unwrap().unwrap();
        let index = opened.payload.index.unwrap();
        let reporter = Reporter::silent();
        let block_index = format!("vectors/index/{index_name}.rugix-block-index");
        // Looked up in the prepared index, and found by scanning.
        for prepared in [Some(data(&block_index)), None] {
            let seeds = seed::open(
                &[seed::Spec {
                    path: data("vectors/images/old.img"),
                    index: prepared,
                }],
                &[],
            );
            let (have, _) = seed::find(&seeds, None, &index, &reporter);
            let shape = Shape {
                max_span: u64::MAX,
                merge: true,
                gaps: false,
            };
            let (old, survival) = Default::default();
            let plan = plan::plan(&index, &have, &Standing::start(&old, &survival), &shape);
            let count = |pointer: &str| number(expected, pointer);
            assert_eq!(count("/blocks"), plan.steps.len() as u64, "{bundle}");
            assert_eq!(count("/fetch-blocks"), plan.fetched, "{bundle}");
            assert_eq!(count("/fetch-bytes"), plan.missing, "{bundle}");
            assert_eq!(count("/contiguous-runs"), plan.runs, "{bundle}");
            let runs: Vec<_> = plan.spans.iter().map(|s| [s.start, s.end]).collect();
            assert_eq!(expected["runs"], serde_json::json!(runs), "{bundle}");
            assert_eq!((plan.gaps, plan.bytes()), (0, plan.missing), "{bundle}");
        }
    }
}
