//! What `pack` makes: byte for byte what the reference's bundler made of the same images, and
//! what our own reader installs.
//!
//! The golden bundles name the image's file, so a copy of the vector under that name is packed. Of
//! most of them the bundler was told less than `pack` writes into the manifest, which is
//! informative; there everything but the manifest is compared.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use reflash::internal::bundle::{Compression, Delivery};
use reflash::internal::chunker::Chunker;
use reflash::internal::error::Error;
use reflash::internal::hash::HashAlgorithm;
use reflash::internal::http::Counters;
use reflash::internal::open::{open, Trust};
use reflash::internal::remote::{Access, Cursor, Location};
use reflash::pack::{pack, Options, Packed};
use serde_json::Value;

use crate::util::{assert_same_bytes, data, read_json, reflash, temp_dir, text, vector};

/// The options of a golden bundle, read from what the vector says of it.
fn options_of(name: &str, dir: &Path) -> Options {
    let facts = read_json(data(&format!("vectors/bundles/{name}.json")));
    let filename = text(&facts, "/manifest/payloads/0/filename");
    let folder = if filename.ends_with(".img") {
        "images"
    } else {
        "payloads"
    };
    let image = dir.join(filename);
    fs::write(&image, vector(&format!("{folder}/{filename}"))).unwrap();
    let encoding = "/manifest/payloads/0/block-encoding";
    let compression = facts.pointer(&format!("{encoding}/compression"));
    Options {
        slot: text(&facts, "/payloads/0/delivery/slot/slot").to_owned(),
        chunker: Chunker::parse(text(&facts, &format!("{encoding}/chunker"))).unwrap(),
        hash: HashAlgorithm::parse(text(&facts, "/hash-algorithm")).unwrap(),
        compression: compression.map(|compression| {
            let level = compression.get("level").and_then(Value::as_u64);
            level.map_or(6, |level| level as u32)
        }),
        deduplicate: facts.pointer(&format!("{encoding}/deduplicate")) == Some(&Value::Bool(true)),
        incremental: facts["is-incremental"] == true,
        ..Options::new(image, dir.join(format!("{name}.rugixb")))
    }
}

fn packed(options: &Options) -> (Packed, Vec<u8>) {
    let packed = pack(options).unwrap_or_else(|error| panic!("{error}: {options:?}"));
    let bundle = fs::read(&options.output).unwrap();
    assert_eq!(packed.size, bundle.len() as u64);
    (packed, bundle)
}

/// A bundle in two: its manifest, and everything else.
fn without_manifest(bundle: &[u8]) -> (Value, Vec<u8>) {
    // BUNDLE and BUNDLE_HEADER, the tag of the manifest, a length of two bytes at the most.
    let at = bundle.iter().position(|byte| *byte == b'{').unwrap();
    assert_eq!(bundle[10..14], [0x16, 0x1a, 0xa2, 0x42]);
    assert!((15..=17).contains(&at));
    let mut values = serde_json::Deserializer::from_slice(&bundle[at..]).into_iter::<Value>();
    let manifest = values.next().unwrap().unwrap();
    let rest = &bundle[at + values.byte_offset()..];
    (manifest, [&bundle[..14], rest].concat())
}

#[test]
fn makes_the_same_bytes_as_the_reference() {
    for name in [
        "casync64-xz-dedup",
        "casync8-xz-dedup",
        "fixed4-none-dedup-new",
    ] {
        let dir = temp_dir();
        let (packed, bundle) = packed(&options_of(name, dir.path()));
        assert_same_bytes(&bundle, &vector(&format!("bundles/{name}.rugixb")), name);
        let facts = read_json(data(&format!("vectors/bundles/{name}.json")));
        assert_eq!(
            packed.hash.to_string(),
            text(&facts, "/bundle-hash"),
            "{name}"
        );
    }
}

#[test]
fn makes_the_same_bytes_as_the_reference_but_for_the_manifest() {
    for name in [
        "casync8-empty",
        "casync8-sha256",
        "casync8-sha512",
        "casync8-sha512-256",
        "dups-casync1-xz-dedup",
        "dups-casync1-xz-nodedup",
        "dups-fixed4-dedup",
        "dups-fixed4-nodedup",
        "dups-fixed4-xz-dedup",
        "dups-fixed4-xz-nodedup",
        "fixed4-empty",
        "fixed4-exact",
        "fixed4-none",
        "fixed4-xz",
        "signed-base",
    ] {
        let dir = temp_dir();
        let (_, bundle) = packed(&options_of(name, dir.path()));
        let (manifest, rest) = without_manifest(&bundle);
        let (golden_manifest, golden_rest) =
            without_manifest(&vector(&format!("bundles/{name}.rugixb")));
        assert_same_bytes(&rest, &golden_rest, name);
        includes(&manifest, &golden_manifest, name);
    }
}

/// Each value of the golden manifest stands in ours, which spells out the defaults too.
fn includes(ours: &Value, golden: &Value, name: &str) {
    match golden {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| includes(&ours[key], value, name)),
        Value::Array(items) => {
            assert_eq!(ours.as_array().map(Vec::len), Some(items.len()), "{name}");
            (0..items.len()).for_each(|i| includes(&ours[i], &items[i], name));
        }
        value => assert_eq!(ours, value, "{name}"),
    }
}

#[test]
fn reads_back_as_it_was_packed() {
    let dir = temp_dir();
    let mut options = options_of("dups-casync1-xz-dedup", dir.path());
    options.slot = "root \"a\"".into();
    options.hash = HashAlgorithm::Sha256;
    let (packed, _) = packed(&options);
    let image = fs::read(&options.image).unwrap();
    let cursor = Cursor::open(
        &Location::File(options.output.clone()),
        &Access::default(),
        &Arc::new(Counters::default()),
    )
    .unwrap();
    let mut opening = open(cursor, &Trust::Hash(packed.hash)).unwrap();
    let header = opening.header().clone();
    assert!(header.incremental);
    let [entry] = header.entries.as_slice() else {
        panic!("{header:?}")
    };
    assert_eq!(entry.delivery, Delivery::Slot("root \"a\"".into()));
    assert_eq!(entry.digest, packed.payload);
    assert_eq!(entry.digest, HashAlgorithm::Sha256.digest(&image));
    let index = opening
        .next_payload()
        .unwrap()
        .unwrap()
        .payload
        .index
        .unwrap();
    assert!(opening.next_payload().unwrap().is_none());
    assert_eq!(index.chunker(), options.chunker);
    assert_eq!(index.algorithm(), HashAlgorithm::Sha256);
    assert_eq!(index.compression(), Compression::Xz);
    assert!(index.deduplicated());
    assert_eq!(index.len() as u64, packed.blocks);
    let stored: Vec<_> = index.blocks().filter_map(|block| block.stored()).collect();
    assert_eq!(stored.len() as u64, packed.stored_blocks);
    let stored_size: u64 = stored.iter().map(|range| range.end - range.start).sum();
    assert_eq!(stored_size, packed.stored_size);
    assert!(packed.stored_blocks < packed.blocks);
    assert_eq!(packed.payload_size, image.len() as u64);
}

#[test]
fn installs_what_it_packed() {
    let dir = temp_dir();
    let image = vector("images/new.img");
    let path = dir.path().join("new.img");
    fs::write(&path, &image).unwrap();
    for (number, options) in [
        &[][..],
        &["--chunker", "fixed-4", "--compression", "none"],
        &[
            "--chunker",
            "casync-1",
            "--no-deduplicate",
            "--hash",
            "sha512",
        ],
        &["--compression", "xz:0", "--slot", "other"],
    ]
    .into_iter()
    .enumerate()
    {
        let bundle = dir.path().join(format!("{number}.rugixb"));
        let target = dir.path().join(format!("{number}.img"));
        let run = reflash(
            [
                "pack".as_ref(),
                path.as_os_str(),
                "--output".as_ref(),
                bundle.as_os_str(),
            ]
            .into_iter()
            .chain(options.iter().map(AsRef::as_ref)),
        );
        run.expect_exit(0);
        let hash = run.stdout.trim();
        reflash([
            "install".as_ref(),
            bundle.as_os_str(),
            "--target".as_ref(),
            target.as_os_str(),
            "--bundle-hash".as_ref(),
            hash.as_ref(),
        ])
        .expect_exit(0);
        assert_same_bytes(&fs::read(&target).unwrap(), &image, &format!("{options:?}"));
    }
}

#[test]
fn refuses_what_it_cannot_pack_and_leaves_nothing_behind() {
    let dir = temp_dir();
    let image = dir.path().join("image");
    fs::write(&image, vec![7; 300_000]).unwrap();
    let output = dir.path().join("out.rugixb");
    let fine = Options::new(&image, &output);
    let refuse = |options: &Options, exit: u8, reason: &str| {
        let error = pack(options).expect_err(reason);
        assert_eq!(error.class().exit_code(), exit, "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["image"], "{error}");
    };
    let with = |change: &dyn Fn(&mut Options)| {
        let mut options = fine.clone();
        change(&mut options);
        options
    };
    let chunker = |name: &str| Chunker::parse(name).unwrap();
    refuse(
        &with(&|o| o.chunker = chunker("casync-16385")),
        2,
        "casync-16385",
    );
    refuse(&with(&|o| o.compression = Some(10)), 2, "level 10");
    refuse(&with(&|o| o.slot = String::new()), 2, "slot");
    refuse(&with(&|o| o.output = image.clone()), 2, "image itself");
    refuse(&with(&|o| o.image = dir.path().join("gone")), 2, "gone");
    refuse(&with(&|o| o.image = dir.path().into()), 2, "neither a file");
    refuse(
        &with(&|o| o.image = "/dev/null".into()),
        2,
        "neither a file",
    );
    refuse(
        &with(&|o| o.output = "/dev/full".into()),
        2,
        "no regular file",
    );
    refuse(
        &with(&|o| o.output = dir.path().into()),
        2,
        "no regular file",
    );
    let nowhere = dir.path().join("gone/out");
    refuse(&with(&|o| o.output = nowhere.clone()), 2, "gone/out");
    assert!(matches!(
        pack(&with(&|o| o.output = nowhere.clone())),
        Err(Error::Output { .. })
    ));
    assert_eq!(fs::read(&image).unwrap(), vec![7; 300_000]);

    // And an output that is there stays until the new one is complete.
    fs::write(&output, "before").unwrap();
    pack(&with(&|o| o.slot = String::new())).expect_err("no slot");
    assert_eq!(fs::read(&output).unwrap(), b"before");
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&output, &link).unwrap();
    let packed = pack(&with(&|o| o.output = link.clone())).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&output).unwrap().len(), packed.size);
}

/// What it costs to unpack a block is told by the header of its stream.
#[test]
fn a_dictionary_can_be_fitted_to_the_blocks() {
    let dir = temp_dir();
    let image = dir.path().join("image");
    let plain = vector("images/new.img");
    fs::write(&image, &plain).unwrap();
    let mut options = Options::new(&image, dir.path().join("bundle"));
    // The last byte of a block header is the dictionary: 2 to the power of half of it and 12.
    let dictionaries = |bundle: &[u8]| {
        let starts = bundle.windows(8).enumerate();
        let starts = starts.filter(|(_, bytes)| *bytes == b"\xfd7zXZ\0\0\x04");
        let all = starts.map(|(at, _)| {
            assert_eq!(bundle[at + 14..at + 16], [0x21, 1]);
            bundle[at + 16]
        });
        all.collect::<Vec<u8>>()
    };
    let (usual, bundle) = packed(&options);
    assert!(
        dictionaries(&bundle).iter().all(|bits| *bits == 22),
        "8 MiB"
    );
    options.fit_dictionary = true;
    let (fitted, bundle) = packed(&options);
    let small = dictionaries(&bundle)
        .iter()
        .filter(|bits| **bits == 12)
        .count();
    assert_eq!(small as u64, fitted.stored_blocks, "256 KiB");
    assert_eq!(fitted.payload, usual.payload);
    assert!(fitted.size.abs_diff(usual.size) < usual.size / 100);
    let target = dir.path().join("target");
    let install = reflash(
        ["install", &options.output.display().to_string(), "--target"]
            .map(str::to_owned)
            .into_iter()
            .chain([
                target.display().to_string(),
                "--bundle-hash".to_owned(),
                fitted.hash.to_string(),
            ]),
    );
    install.expect_exit(0);
    assert_same_bytes(&fs::read(&target).unwrap(), &plain, "installed");
}
