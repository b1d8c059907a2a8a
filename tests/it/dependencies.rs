//! What the program is made of besides its own code: where it comes from, under which licences, and
//! nothing twice. From `Cargo.lock` and `cargo metadata`, without a network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Licences of what is linked into the program: none asks more than to be named.
const LICENCES: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-3-Clause",
    "CC0-1.0",
    "ISC",
    "MIT",
    "Unlicense",
    "Zlib",
];

/// The same for data tables.
const DATA_LICENCES: [&str; 1] = ["Unicode-3.0"];

/// Crates that are there in two versions: the parser of Rust for procedural macros, and random
/// numbers, which ring and the tests' temporary folders ask for. Neither is twice in the program.
const DUPLICATES: [&str; 2] = ["getrandom", "syn"];

/// Every package that is built for this kind of machine, with all features.
fn packages() -> Vec<Value> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .args([
            "--all-features",
            "--filter-platform",
            "x86_64-unknown-linux-gnu",
        ])
        .current_dir(root)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let used: BTreeSet<_> = nodes.iter().map(|node| node["id"].as_str()).collect();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let used = packages.filter(|package| used.contains(&package["id"].as_str()));
    let used: Vec<_> = used.cloned().collect();
    assert!(used.len() > 50, "where are the others?");
    used
}

/// `(MIT OR Apache-2.0) AND X`, where one side of each OR is enough. Precedence is that of SPDX.
fn is_allowed(licence: &str) -> bool {
    let old = licence.replace('/', " OR ");
    let inner = |text: &str| text.trim_matches(['(', ')', ' ']).to_owned();
    let known = |name: &str| {
        let name = inner(name);
        LICENCES.contains(&name.as_str()) || DATA_LICENCES.contains(&name.as_str())
    };
    let either = |text: &str| {
        text.split(" OR ")
            .any(|side| side.split(" AND ").all(known))
    };
    match old.split_once(") AND ") {
        Some((first, second)) => either(first) && either(second),
        None => either(&old),
    }
}

#[test]
fn licences_ask_for_nothing_but_their_mention() {
    for package in packages() {
        let licence = package["license"].as_str().unwrap_or("none");
        let name = &package["name"];
        assert!(is_allowed(licence), "{name}: licence {licence}");
    }
    assert!(is_allowed("MIT OR GPL-3.0"));
    assert!(is_allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(!is_allowed("GPL-3.0") && !is_allowed("MIT AND GPL-3.0") && !is_allowed("none"));
}

#[test]
fn all_crates_come_from_the_registry() {
    for package in packages() {
        let own = ["reflash", "reflash-xz"].contains(&package["name"].as_str().unwrap());
        let source = package["source"].as_str();
        let registry = "registry+https://github.com/rust-lang/crates.io-index";
        assert_eq!(source, (!own).then_some(registry), "{}", package["name"]);
    }
}

#[test]
fn no_crate_is_there_twice_but_those_that_are_known() {
    let mut versions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap().to_owned();
        let version = package["version"].as_str().unwrap().to_owned();
        versions.entry(name).or_default().insert(version);
    }
    versions.retain(|_, versions| versions.len() > 1);
    let found: Vec<_> = versions.keys().map(String::as_str).collect();
    assert_eq!(found, DUPLICATES, "{versions:?}");
}

/// What is C is known, and in none of the builds for small boards without https.
#[test]
fn what_is_not_rust_is_known() {
    let links: BTreeSet<_> = packages()
        .iter()
        .filter_map(|package| package["links"].as_str().map(str::to_owned))
        .collect();
    let expected = ["lzma", "ring_core_0_17_14_"];
    let unknown: Vec<_> = links
        .iter()
        .filter(|link| !expected.contains(&link.as_str()))
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}
