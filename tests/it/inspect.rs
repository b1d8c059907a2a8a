//! `reflash inspect`: what it tells of every golden bundle, by every way to it, and what it asks of
//! the network.

use std::fs;

use serde_json::{json, Value};

use crate::make_bundle::{mixed_image, Bundle, Payload};
use crate::server::Server;
use crate::util::{data, read_json, text, Run};

/// All golden bundles and their facts.
fn goldens() -> Vec<(String, Value)> {
    let mut all: Vec<_> = fs::read_dir(data("vectors/bundles"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "rugixb"))
        .map(|path| {
            let facts = read_json(path.with_extension("json"));
            (path.display().to_string(), facts)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(all.len(), 47, "a bundle came or went");
    all
}

#[test]
fn every_golden_bundle_is_told_of_as_it_is() {
    for (path, facts) in goldens() {
        let outcome = Run::new(["inspect", "--json", &path]).run();
        outcome.expect_exit(0);
        let told = outcome.json();
        assert_eq!(told["schema"], 1);
        assert_eq!(told["hash"], facts["bundle-hash"], "{path}");
        assert_eq!(told["size"], facts["bundle-size"], "{path}");
        assert_eq!(told["incremental"], facts["is-incremental"], "{path}");
        assert_eq!(told["accepted"], Value::Null, "{path}");
        let signatures = facts["signatures"].as_array().cloned().unwrap_or_default();
        let told_of = told["signatures"].as_array().unwrap();
        assert_eq!(told_of.len(), signatures.len(), "{path}");
        for (told, facts) in told_of.iter().zip(&signatures) {
            assert_eq!(told["size"], facts["size"], "{path}");
        }
        let payloads = told["payloads"].as_array().unwrap();
        assert_eq!(payloads.len(), facts["payloads"].as_array().unwrap().len());
        for (told, facts) in payloads.iter().zip(facts["payloads"].as_array().unwrap()) {
            assert_eq!(told["number"], facts["payload"], "{path}");
            let digest = text(told, "/digest");
            assert!(digest.ends_with(text(facts, "/file-hash")), "{path}");
            assert_eq!(told["stored_at"], facts["data-offset"], "{path}");
            assert_eq!(told["stored_size"], facts["data-size"], "{path}");
            let size = facts["file-size"].as_u64().unwrap();
            let bound = |key: &str| told[key].as_u64().unwrap();
            assert!(bound("size_at_least") <= size && size <= bound("size_at_most"));
            assert!(
                told["size"].is_null() || told["size"] == facts["file-size"],
                "{path}"
            );
            let (blocks, facts) = (&told["blocks"], &facts["block-encoding"]);
            assert_eq!(blocks.is_null(), facts.is_null(), "{path}");
            for (key, fact) in [
                ("chunker", "chunker"),
                ("hash_algorithm", "hash-algorithm"),
                ("compression", "compression"),
                ("deduplicated", "deduplicated"),
                ("total", "blocks"),
                ("unique", "distinct-blocks"),
                ("stored", "stored-blocks"),
            ] {
                assert_eq!(blocks.get(key), facts.get(fact), "{path}: {key}");
            }
        }
        // The table has the same.
        let table = Run::new(["inspect", &path]).run();
        table.expect_exit(0);
        for part in ["/bundle-hash", "/payloads/0/delivery/slot/slot"] {
            if let Some(part) = facts.pointer(part).and_then(Value::as_str) {
                table.expect_stdout(part);
            }
        }
    }
}

/// Headers are all that is asked for; without ranges and from a pipe it says the same.
#[test]
fn every_way_tells_the_same_and_ranges_cost_little() {
    let payload = |slot, seed| {
        Payload::slot(slot, mixed_image(900_000, seed))
            .chunker("casync-8")
            .dedup()
    };
    let made = Bundle::of(payload("boot", 1))
        .payload(payload("system", 2))
        .make();
    let server = Server::start([("/b", made.bytes.clone())]);
    let url = server.url("/b");
    let of = |run: Run| {
        let mut told = run.run().expect_exit(0).json();
        told["bundle"] = Value::Null;
        // Known from a server's answer, and at the end of a pipe.
        told["size"] = Value::Null;
        told
    };
    let ranges = of(Run::new(["inspect", "--json", &url]));
    assert_eq!(ranges["hash"], made.bundle_hash);
    assert_eq!(ranges["payloads"][1]["name"], json!(["system"]));
    let asked: u64 = server
        .ranges()
        .iter()
        .map(|range| range.end - range.start)
        .sum();
    assert!(asked < 60_000, "{asked}");
    assert_eq!(
        ranges,
        of(Run::new([
            "inspect",
            "--json",
            &url,
            "--disable-range-queries"
        ]))
    );
    assert_eq!(
        ranges,
        of(Run::new(["inspect", "--json", "-"]).stdin(made.bytes.clone()))
    );
    Run::new(["inspect", &server.url("/none")])
        .run()
        .expect_exit(4);
    let wrong = made.bundle_hash.replace(':', ":0");
    Run::new(["inspect", &url, "--bundle-hash", &wrong[..wrong.len() - 1]])
        .run()
        .expect_exit(4)
        .expect_stderr("digest of bundle header");
}

#[cfg(feature = "signatures")]
#[test]
fn who_signed_is_told_and_which_root_accepts_it() {
    let root = |name: &str| {
        data(&format!("vectors/certs/{name}.crt"))
            .display()
            .to_string()
    };
    let bundle = |name: &str| {
        data(&format!("vectors/bundles/{name}.rugixb"))
            .display()
            .to_string()
    };
    let chain = bundle("signed-chain");
    let run = |roots: &[&str]| {
        let roots = roots
            .iter()
            .flat_map(|name| ["--root-cert".to_owned(), root(name)]);
        Run::new(["inspect", "--json", &chain]).args(roots).run()
    };
    let told = run(&["other", "root"]).expect_exit(0).json();
    assert_eq!(told["accepted"], true);
    let signer = &told["signatures"][0]["signers"][0];
    assert_eq!(signer["algorithm"], "RSA with SHA-256");
    assert_eq!(signer["certificate"]["subject"], "CN=Test Chain Signer");
    assert_eq!(signer["certificate"]["not_before"], "2026-11-30T15:47:56Z");
    assert_eq!(signer["certificate"]["not_after"], "2126-11-06T15:47:56Z");
    let chain = signer["chain"].as_array().unwrap();
    let subjects: Vec<_> = chain.iter().map(|c| text(c, "/subject")).collect();
    assert_eq!(subjects, ["CN=Test Intermediate CA", "CN=Test Update CA"]);
    let accepted = signer["accepted_by"].as_array().unwrap();
    assert_eq!(accepted.len(), 1);
    assert!(accepted[0].as_str().unwrap().starts_with(&root("root")));
    assert_eq!(signer["refused"], Value::Null);
    // Told all the same, but what was asked for does not hold.
    let outcome = run(&["other"]);
    outcome.expect_exit(4).expect_stderr("not trusted");
    let told = outcome.json();
    assert_eq!(told["accepted"], false);
    assert!(text(&told, "/signatures/0/signers/0/refused").contains("Test Update CA"));
    assert_eq!(told["payloads"].as_array().unwrap().len(), 1);
    // Any signature that is there is told of, however bad.
    let odd = Run::new(["inspect", &bundle("signed-garbage-then-good")]).run();
    odd.expect_exit(0)
        .expect_stdout("signature 0")
        .expect_stdout("malformed");
    odd.expect_stdout("signature 1")
        .expect_stdout("\"CN=Test Update Signer\", valid 2026-11-30");
    let expired = Run::new([
        "inspect",
        &bundle("signed-expired"),
        "--root-cert",
        &root("root"),
    ]);
    expired
        .run()
        .expect_exit(4)
        .expect_stdout("to 2021-01-01T00:00:00Z")
        .expect_stdout("expired on");
}
