//! `reflash estimate`: its numbers against those of real installs, its table, JSON and chart, and
//! what is refused.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::make_bundle::{mixed_image, text_image};
use crate::server::Server;
use crate::util::{number, read_json, temp_dir, text, vector, Run};

/// An image and the next version of it: a page that changed, a few bytes inserted, a new tail.
fn versions() -> (Vec<u8>, Vec<u8>) {
    let old = mixed_image(1_200_000, 5);
    let mut new = old.clone();
    new[200_000..204_096].fill(3);
    new.splice(700_000..700_000, *b"a few bytes that were not there");
    new.extend(text_image(90_000, 8));
    (old, new)
}

fn run(folder: &Path, words: &[&str]) -> Run {
    Run::new(words.iter().copied()).dir(folder)
}

/// The report of an install of a bundle from a server, with `old` as the seed.
fn installed(folder: &Path, bundle: &str) -> Value {
    let server = Server::start([("/b", fs::read(folder.join(bundle)).unwrap())]);
    let words = ["install", &server.url("/b"), "--target", "target"];
    let install = run(folder, &words)
        .args(["--seed", "old", "--report", "report"])
        .arg("--insecure-skip-bundle-verification");
    install.run().expect_exit(0);
    fs::remove_file(folder.join("target")).unwrap();
    read_json(folder.join("report"))
}

/// What is promised is what happens: the same bundle is packed, served and installed.
#[test]
fn bytes_and_requests_are_those_of_an_install() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let (old, new) = versions();
    fs::write(path("old"), old).unwrap();
    fs::write(path("new"), &new).unwrap();
    for compression in ["xz:6", "none"] {
        let words = ["estimate", "old", "new", "--json", "--compression"];
        let estimate = run(folder.path(), &words).arg(compression).run();
        estimate.expect_exit(0);
        let told = estimate.json();
        assert_eq!(number(&told, "/schema"), 1);
        let chunkings = told.pointer("/updates/0/chunkings").unwrap();
        assert_eq!(chunkings.as_array().unwrap().len(), 7);
        for chunking in chunkings.as_array().unwrap() {
            let chunker = text(chunking, "/chunker");
            let words = ["pack", "new", "-o", "bundle", "--chunker", chunker];
            let packed = run(folder.path(), &words).args(["--compression", compression]);
            packed.run().expect_exit(0);
            let report = installed(folder.path(), "bundle");
            assert_eq!(
                number(chunking, "/blocks_fetched"),
                number(&report, "/blocks/fetched"),
                "{chunker}"
            );
            // Blocks that are at hand are reckoned, and only matter for gaps.
            let (bytes, fetched) = (
                number(chunking, "/bytes"),
                number(&report, "/bytes/fetched"),
            );
            assert!(
                bytes.abs_diff(fetched) <= 1200 + fetched / 100,
                "{chunker} {compression}: {bytes} estimated, {fetched} fetched"
            );
            let (requests, made) = (
                number(chunking, "/requests"),
                number(&report, "/http/requests"),
            );
            assert!(
                requests.abs_diff(made) <= 1,
                "{chunker} {compression}: {requests} estimated, {made} made"
            );
        }
        let full = number(&told, "/updates/0/full/bytes");
        assert!(full <= new.len() as u64 + 100_000);
        assert_eq!(compression == "none", full == new.len() as u64);
    }
}

/// A bundle is as good as the image it holds; and what it does as it is, an install of it does.
#[test]
fn bundles_are_taken_for_their_images() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let (old, new) = versions();
    fs::write(path("old"), old).unwrap();
    fs::write(path("new"), new).unwrap();
    fs::create_dir(path("scratch")).unwrap();
    for options in [
        &["--chunker=casync-16", "--compression=xz:1"][..],
        &["--chunker=fixed-24", "--hash=sha256", "--no-deduplicate"],
    ] {
        for name in ["old", "new"] {
            let bundle = format!("{name}.rugixb");
            let run = run(folder.path(), &["pack", name, "-q", "-o", &bundle]);
            run.args(options).run().expect_exit(0);
        }
        let told = |old: &str, new: &str| {
            let estimate = run(folder.path(), &["estimate", old, new, "--json", "-q"])
                .args(["--chunker=casync-16", "--chunker=fixed-4"])
                .env("TMPDIR", path("scratch"))
                .run();
            estimate.expect_exit(0);
            assert_eq!(fs::read_dir(path("scratch")).unwrap().count(), 0);
            estimate.json()["updates"][0].clone()
        };
        let images = told("old", "new");
        assert_eq!(images["slot"], Value::Null);
        let bundles = told("old.rugixb", "new.rugixb");
        assert_eq!(bundles["slot"], "system");
        let (images, rows) = (
            images["chunkings"].as_array().unwrap(),
            bundles["chunkings"].as_array().unwrap(),
        );
        let [packed, others @ ..] = rows.as_slice() else {
            panic!("{rows:?}")
        };
        assert_eq!(others, images.as_slice());
        assert_eq!(packed["as_packed"], true);
        assert!(options[0].ends_with(text(packed, "/chunker")));
        let size = fs::metadata(path("new.rugixb")).unwrap().len();
        assert!(size - number(&bundles, "/full/bytes") < 20);

        let report = installed(folder.path(), "new.rugixb");
        let fetched = number(&report, "/blocks/fetched");
        assert_eq!(number(packed, "/blocks_fetched"), fetched);
        let fetched = number(&report, "/bytes/fetched");
        assert!(
            number(packed, "/bytes").abs_diff(fetched) < 20,
            "{packed}, and {fetched} fetched"
        );
        let made = number(&report, "/http/requests");
        assert!(number(packed, "/requests").abs_diff(made) <= 1);
    }
}

#[test]
fn each_payload_of_a_bundle_is_compared_with_all_of_the_old_one() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let (old, new) = versions();
    fs::write(path("a"), old).unwrap();
    fs::write(path("b"), &new).unwrap();
    for (bundle, slots) in [
        ("old.rugixb", ["--slot=one=a", "--slot=two=b"]),
        ("new.rugixb", ["--slot=one=b", "--slot=two=a"]),
    ] {
        let run = run(folder.path(), &["pack", "-o", bundle, "--compression=none"]);
        run.args(slots).run().expect_exit(0);
    }
    let words = ["estimate", "old.rugixb", "new.rugixb", "--compression=none"];
    let table = run(folder.path(), &words).run();
    table.expect_exit(0);
    table.expect_stdout("old.rugixb to new.rugixb, slot one (1.2 MiB)");
    table.expect_stdout("\nas packed ");
    let told = run(folder.path(), &words).arg("--json").run().json();
    let updates = told["updates"].as_array().unwrap();
    let slots: Vec<_> = updates.iter().map(|update| text(update, "/slot")).collect();
    assert_eq!(slots, ["one", "two"]);
    for row in updates
        .iter()
        .flat_map(|u| u["chunkings"].as_array().unwrap())
    {
        assert_eq!(number(row, "/blocks_fetched"), 0, "{row}");
    }
}

#[test]
fn a_table_for_people_and_a_chart() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let (old, new) = versions();
    fs::write(path("old"), &old).unwrap();
    fs::write(path("a<b&c"), &new).unwrap();
    let words = ["estimate", "old", "a<b&c", "old", "--svg", "cost.svg"];
    let estimate = run(folder.path(), &words)
        .args(["--chunker", "casync-16", "--chunker", "fixed-4"])
        .args(["--compression", "xz:0", "--limit-rate", "100k", "--rtt=1s"])
        .run();
    estimate.expect_exit(0);
    for part in [
        "old to a<b&c",
        "old to old",
        "full download",
        "casync-16",
        "fixed-4",
        "100.0 KiB/s, 1000 ms round trip, 8 connections",
        "Assumed:",
    ] {
        estimate.expect_stdout(part);
    }
    estimate.expect(
        !estimate.stdout.contains("casync-64"),
        "nobody asked for it",
    );
    // What is there already costs the headers alone.
    let rows = estimate.stdout.lines();
    let rows: Vec<_> = rows.filter(|row| row.starts_with("casync-16")).collect();
    assert_eq!(rows.len(), 2);
    assert!(rows[1].contains(" 0/"), "{}", rows[1]);
    let chart = fs::read_to_string(path("cost.svg")).unwrap();
    assert!(chart.starts_with("<svg ") && chart.ends_with("</svg>\n"));
    assert!(chart.contains("a&lt;b&amp;c") && !chart.contains("a<b"));
    // A bar for each row, and the paper.
    assert_eq!(chart.matches("<rect ").count(), 1 + 2 * 3);
    assert_eq!(
        chart.matches("<text ").count(),
        chart.matches("</text>").count()
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
}

#[test]
fn what_cannot_be_estimated_is_refused() {
    let folder = temp_dir();
    fs::write(folder.path().join("old"), b"old").unwrap();
    for (words, said) in [
        (&["old"][..], "at least one new image"),
        (&["old", "no-such"], "no-such"),
        (&["old", "."], "neither a file nor a block device"),
        (&["old", "old", "--chunker", "casync-65535"], "casync-65535"),
        (&["old", "old", "--limit-rate", "0"], "never ends"),
        (&["old", "old", "--workers", "65"], "--workers"),
        (&["old", "old", "--svg", "old"], "which is read"),
        (&["old", "http://host/b"], "is a URL"),
    ] {
        let outcome = run(folder.path(), &["estimate"]).args(words).run();
        outcome.expect_exit(2).expect_stderr(said);
        assert_eq!(fs::read(folder.path().join("old")).unwrap(), b"old");
    }
    // Bundles of which there is no image to be had.
    let good = vector("bundles/casync8-xz-dedup.rugixb");
    let mut changed = good.clone();
    let middle = good.len() / 2;
    changed[middle] ^= 1;
    for (name, bytes, said) in [
        ("cut", good[..middle].to_vec(), "past the end of the bundle"),
        ("changed", changed, "of payload 0"),
        ("delta", vector("bundles/xdelta.rugixb"), "static delta"),
        (
            "execute",
            vector("bundles/execute.rugixb"),
            "no payload for a slot",
        ),
        (
            "hash",
            vector("hostile/bad-file-hash.rugixb"),
            "digest of payload 0",
        ),
        (
            "bomb",
            vector("hostile/bad-xz-bomb.rugixb"),
            "larger than its chunker allows",
        ),
    ] {
        fs::write(folder.path().join(name), bytes).unwrap();
        let outcome = run(folder.path(), &["estimate", "old", name]).run();
        outcome.expect_exit(4).expect_stderr(said);
        outcome.expect_stderr(&format!("cannot unpack bundle {name}: "));
    }
}
