//! What `pack` makes: byte for byte what the reference's bundler made of the same folders, and what
//! our own reader installs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use reflash::internal::bundle::{Compression, Delivery, Index};
use reflash::internal::chunker::Chunker;
use reflash::internal::hash::HashAlgorithm;
use reflash::internal::http::Counters;
use reflash::internal::open::{open, Trust};
use reflash::internal::remote::{Access, Cursor, Location};
use reflash::pack::{self, manifest::FILE, pack, Options, Packed};

use crate::make_bundle::mixed_image;
use crate::util::{
    assert_file, assert_same_bytes, data, number, read_json, temp_dir, text, vector, Outcome, Run,
};

fn packed(options: &Options) -> (Packed, Vec<u8>) {
    let packed = pack(options).unwrap_or_else(|error| panic!("{error}: {options:?}"));
    let bundle = fs::read(&options.output).unwrap();
    assert_eq!(packed.size, bundle.len() as u64);
    (packed, bundle)
}

fn encoded(
    chunker: &str,
    hash: HashAlgorithm,
    deduplicate: bool,
    level: Option<u32>,
) -> pack::manifest::BlockEncoding {
    pack::encoding(Chunker::parse(chunker).unwrap(), hash, deduplicate, level)
}

/// A folder as the bundler takes it, with what a golden bundle was made of.
fn folder_of(name: &str, dir: &Path) -> PathBuf {
    let folder = dir.join(name);
    fs::create_dir(&folder).unwrap();
    // A link, as build systems like to make.
    fs::create_dir(dir.join("files")).unwrap();
    symlink("../files", folder.join("payloads")).unwrap();
    let manifest = vector(&format!("manifests/{name}.toml"));
    fs::write(folder.join(FILE), manifest).unwrap();
    let facts = read_json(data(&format!("vectors/bundles/{name}.json")));
    for payload in facts["manifest"]["payloads"].as_array().unwrap() {
        let file = text(payload, "/filename");
        let of = match file.ends_with(".img") {
            true => "images",
            false => "payloads",
        };
        let bytes = vector(&format!("{of}/{file}"));
        fs::write(dir.join("files").join(file), bytes).unwrap();
    }
    folder
}

#[test]
fn folders_make_the_same_bytes_as_the_reference() {
    let mut tried = 0;
    for manifest in fs::read_dir(data("vectors/manifests")).unwrap() {
        let path = manifest.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let dir = temp_dir();
        let folder = folder_of(name, dir.path());
        let run = Run::new(["pack", "-q"]).arg(folder);
        let run = run.arg("-o").arg(dir.path().join("out")).run();
        run.expect_exit(0);
        let golden = vector(&format!("bundles/{name}.rugixb"));
        assert_same_bytes(&fs::read(dir.path().join("out")).unwrap(), &golden, name);
        let facts = read_json(data(&format!("vectors/bundles/{name}.json")));
        assert_eq!(run.stdout.trim(), text(&facts, "/bundle-hash"), "{name}");
        run.expect(run.stderr.is_empty(), "quiet is quiet");
        tried += 1;
    }
    assert_eq!(tried, 25);
}

/// The command line says all that a folder may leave to the bundler's defaults.
#[test]
fn images_make_the_same_bytes_as_the_reference() {
    for (name, options) in [
        ("casync64-xz-dedup", &[][..]),
        ("casync8-xz-dedup", &["--chunker", "casync-8"]),
        (
            "fixed4-none-dedup-new",
            &["--chunker=fixed-4", "--compression=none", "--hash=sha256"],
        ),
    ] {
        let dir = temp_dir();
        let image = dir.path().join("new.img");
        fs::write(&image, vector("images/new.img")).unwrap();
        let out = dir.path().join("out");
        let run = Run::new(["pack"]).arg(image).arg("-o").arg(&out);
        run.args(options).run().expect_exit(0);
        let golden = vector(&format!("bundles/{name}.rugixb"));
        assert_same_bytes(&fs::read(out).unwrap(), &golden, name);
    }
}

#[test]
fn reads_back_as_it_was_packed() {
    let dir = temp_dir();
    let image = vector("payloads/dups.bin");
    let path = dir.path().join("dups.bin");
    fs::write(&path, &image).unwrap();
    let options = Options::of_slots(
        vec![("root \"a\"".into(), path)],
        &encoded("casync-1", HashAlgorithm::Sha256, true, Some(6)),
        dir.path().join("out"),
    );
    let (packed, _) = packed(&options);
    let of = &packed.payloads[0];
    let cursor = Cursor::open(
        &Location::File(options.output.clone()),
        &Access::default(),
        &Arc::new(Counters::default()),
    )
    .unwrap();
    let mut opening = open(cursor, &Trust::Hash(packed.hash)).unwrap();
    let header = opening.header().clone();
    assert!(!header.incremental);
    let [entry] = header.entries.as_slice() else {
        panic!("{header:?}")
    };
    assert_eq!(entry.delivery, Delivery::Slot("root \"a\"".into()));
    assert_eq!(entry.digest, of.digest);
    assert_eq!(entry.digest, HashAlgorithm::Sha256.digest(&image));
    let opened = opening.next_payload().unwrap().unwrap();
    let index: Index = opened.payload.index.unwrap();
    assert!(opening.next_payload().unwrap().is_none());
    assert_eq!(index.chunker(), Chunker::parse("casync-1").unwrap());
    assert_eq!(index.algorithm(), HashAlgorithm::Sha256);
    assert_eq!(index.compression(), Compression::Xz);
    assert!(index.deduplicated());
    assert_eq!(index.len() as u64, of.blocks);
    let stored: Vec<_> = index.blocks().filter_map(|block| block.stored()).collect();
    assert_eq!(stored.len() as u64, of.stored_blocks);
    let stored_size: u64 = stored.iter().map(|range| range.end - range.start).sum();
    assert_eq!(stored_size, of.stored_size);
    assert!(of.stored_blocks < of.blocks);
    assert_eq!(of.size, image.len() as u64);
}

fn install(dir: &Path, hash: &str, targets: &[&str]) -> Outcome {
    let run = Run::new(["install", "bundle", "--bundle-hash", hash.trim()]);
    run.args(targets).dir(dir).run()
}

#[test]
fn installs_what_it_packed() {
    let dir = temp_dir();
    let image = vector("images/new.img");
    fs::write(dir.path().join("new.img"), &image).unwrap();
    for options in [
        &["--chunker", "fixed-4", "--compression", "none"][..],
        &["--chunker=casync-1", "--no-deduplicate", "--hash=sha512"],
        &["--compression", "xz:0", "--slot", "other"],
    ] {
        let run = Run::new(["pack", "new.img", "--output", "bundle"]);
        let run = run.args(options).dir(dir.path()).run();
        run.expect_exit(0);
        run.expect_stderr("new.img: 1.0 MiB in ");
        run.expect_stderr("\nbundle: ");
        install(dir.path(), &run.stdout, &["--target", "target"]).expect_exit(0);
        assert_file(dir.path().join("target"), &image);
        fs::remove_file(dir.path().join("target")).unwrap();
    }
}

/// Several slots, from the command line and from a folder: packed, told of, and installed, each to its
/// place.
#[test]
fn several_payloads_go_to_their_slots() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name);
    let (boot, system) = (mixed_image(150_000, 1), mixed_image(700_000, 2));
    fs::write(path("boot.img"), &boot).unwrap();
    fs::write(path("system.img"), &system).unwrap();
    fs::create_dir(path("folder")).unwrap();
    symlink(dir.path(), path("folder/payloads")).unwrap();
    fs::write(
        path("folder").join(FILE),
        "update-type = 'full'\n\
         [[payloads]]\nfilename = 'boot.img'\n\
         delivery = { type = 'slot', slot = 'boot' }\n\
         block-encoding = { chunker = 'fixed-4' }\n\
         [[payloads]]\nfilename = 'system.img'\n\
         delivery = { type = 'slot', slot = 'system' }\n\
         [payloads.block-encoding]\nchunker = 'casync-8'\n\
         compression = { type = 'xz', level = 9 }\n",
    )
    .unwrap();
    for (words, chunkers) in [
        (
            &["--slot", "boot=boot.img", "--slot=system=system.img"][..],
            ["casync-64", "casync-64"],
        ),
        (&["folder", "--fit-dictionary"], ["fixed-4", "casync-8"]),
    ] {
        let run = Run::new(["pack", "-o", "bundle"]).args(words);
        let run = run.dir(dir.path()).run();
        run.expect_exit(0)
            .expect_stderr("system.img: 683.6 KiB in ");
        let told = Run::new(["inspect", "bundle", "--json"]).dir(dir.path());
        let told = told.run().json();
        assert_eq!(text(&told, "/hash"), run.stdout.trim());
        for (number, slot, chunker) in [(0, "boot", chunkers[0]), (1, "system", chunkers[1])] {
            let of = |field: &str| format!("/payloads/{number}/{field}");
            assert_eq!(text(&told, &of("name/0")), slot);
            assert_eq!(text(&told, &of("blocks/chunker")), chunker);
        }
        install(
            dir.path(),
            &run.stdout,
            &["--slot", "system=s", "--slot", "boot=b"],
        )
        .expect_exit(0);
        assert_file(path("s"), &system);
        assert_file(path("b"), &boot);
        fs::remove_file(path("s")).unwrap();
        fs::remove_file(path("b")).unwrap();
    }
}

#[test]
fn refuses_what_it_cannot_pack_and_leaves_nothing_behind() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("image"), vec![7; 300_000]).unwrap();
    fs::create_dir(path("folder")).unwrap();
    fs::create_dir(path("folder/payloads")).unwrap();
    fs::create_dir(path("empty")).unwrap();
    let manifest = |filename: &str| {
        format!(
            "update-type = 'full'\n[[payloads]]\nfilename = '{filename}'\n\
             delivery = {{ type = 'slot', slot = 's' }}\n"
        )
    };
    fs::write(path("folder").join(FILE), manifest("gone.img")).unwrap();
    fs::write(path("out"), "before").unwrap();
    let refuse = |words: &[&str], said: &str| {
        let run = Run::new(["pack"]).args(words).dir(dir.path()).run();
        run.expect_exit(2).expect_stderr(said);
        run.expect(run.stdout.is_empty(), "there is no hash of nothing");
        let names = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["empty", "folder", "image", "out"], "{words:?}");
        // An output that is there stays until the new one is complete.
        assert_file(path("out"), b"before");
        assert_file(path("image"), &[7; 300_000]);
    };
    for (words, said) in [
        (
            &["image", "-o", "out", "--chunker", "casync-16385"][..],
            "casync-16385",
        ),
        (&["image", "-o", "out", "--compression", "xz:10"], "xz:10"),
        (&["image", "-o", "out", "--slot", ""], "no name for a slot"),
        (
            &["image", "-o", "out", "--slot", "a=b"],
            "what is image for?",
        ),
        (
            &["image", "-o", "out", "--slot=a", "--slot=b"],
            "what is image for?",
        ),
        (&["-o", "out", "--slot", "a"], "NAME=PATH"),
        (
            &["-o", "out", "--slot=a=image", "--slot=a=x"],
            "given twice",
        ),
        (
            &["-o", "out", "--slot=a=image", "--slot=b=x/image"],
            "the same name",
        ),
        (&["-o", "out"], "a bundle of what?"),
        (&["image", "-o", "image"], "which is read"),
        (&["gone", "-o", "out"], "gone"),
        (&["/dev/null", "-o", "out"], "neither a file"),
        (&["image", "-o", "/dev/full"], "no regular file"),
        (&["image", "-o", "empty"], "no regular file"),
        (&["image", "-o", "gone/out"], "gone/out"),
        (&["empty", "-o", "out"], "empty/rugix-bundle.toml"),
        (
            &["folder", "-o", "folder/rugix-bundle.toml"],
            "which is read",
        ),
        (&["folder", "-o", "out"], "payloads/gone.img"),
        (
            &["folder", "-o", "out", "--hash=sha256"],
            "--hash is for images",
        ),
    ] {
        refuse(words, said);
    }
    // The image's own path: nothing above the folder is read.
    for filename in ["../../image", "/etc/hostname", "a/../b"] {
        fs::write(path("folder").join(FILE), manifest(filename)).unwrap();
        refuse(&["folder", "-o", "out"], "below payloads/");
    }
    fs::create_dir(path("folder/components")).unwrap();
    refuse(&["folder", "-o", "out"], "folder/components");

    // Through a link it is what the link names that is written.
    symlink("out", path("link")).unwrap();
    let run = Run::new(["pack", "image", "-o", "link"])
        .dir(dir.path())
        .run();
    run.expect_exit(0);
    assert!(fs::symlink_metadata(path("link")).unwrap().is_symlink());
    assert!(fs::read(path("out")).unwrap().starts_with(b"kPt\x1c"));
}

/// A bundle of an xz file is a good bundle, and bricks a device.
#[test]
fn warns_of_an_image_that_is_packed_already() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("root.img.xz"), b"\xfd7zXZ\0\0\x04 and so on").unwrap();
    fs::write(path("bundle"), vector("bundles/plain.rugixb")).unwrap();
    for (image, kind) in [("root.img.xz", "an xz file"), ("bundle", "a bundle")] {
        let run = Run::new(["pack", image, "-o", "out"]).dir(dir.path()).run();
        let said = format!("warning: {image} looks like {kind}, and slot system would hold it");
        run.expect_exit(0).expect_stderr(&said);
    }
}

/// Lines and JSON in turn: percent never falls, is 100 only in the last line before the end, and what
/// is done is the result.
#[test]
fn tells_how_far_it_is() {
    let dir = temp_dir();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("old"), mixed_image(2_000_000, 1)).unwrap();
    fs::write(path("new"), mixed_image(2_100_000, 1)).unwrap();
    for (words, phases) in [
        (
            &["pack", "new", "-o", "bundle"][..],
            &["cut", "compress"][..],
        ),
        (&["index", "new", "-o", "index"], &["cut"]),
        (
            &[
                "estimate",
                "old",
                "new",
                "--compression",
                "xz:0",
                "--chunker=casync-8",
                "--chunker=fixed-4",
            ],
            &["compare"],
        ),
    ] {
        let run = Run::new(words.iter().copied()).arg("--progress=json");
        let run = run.dir(dir.path()).run();
        run.expect_exit(0);
        let lines = run.json_lines();
        assert_eq!(lines[0]["event"], "start", "{words:?}");
        let [middle @ .., last] = &lines[1..] else {
            panic!("{words:?}")
        };
        assert_eq!(last["event"], "done", "{words:?}");
        assert_eq!(number(last, "/report/schema"), 1);
        let mut percent = -1.0;
        for line in middle {
            assert_eq!(line["event"], "progress", "{words:?}");
            assert!(phases.contains(&text(line, "/phase")), "{line}");
            let now = line["percent"].as_f64().unwrap();
            assert!(now >= percent && (now < 100.0) != std::ptr::eq(line, middle.last().unwrap()));
            assert!(number(line, "/bytes") <= number(line, "/bytes_total"));
            percent = now;
        }
        assert_eq!(percent, 100.0, "{words:?}");
        // The same for people, and not at all.
        let run = Run::new(words.iter().copied()).dir(dir.path()).run();
        run.expect_exit(0);
        run.expect_stderr(&format!(" % {}: ", phases[0]));
        let run = Run::new(words.iter().copied()).arg("-q");
        let run = run.dir(dir.path()).run();
        run.expect(run.stderr.is_empty(), "quiet is quiet");
    }
    // Nothing to do is all done.
    fs::write(dir.path().join("empty"), []).unwrap();
    let run = Run::new(["pack", "empty", "-o", "x", "--progress=json"]);
    let lines = run.dir(dir.path()).run().json_lines();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert_eq!(lines[1]["percent"], 100.0);
    let run = Run::new(["pack", "gone", "-o", "x", "--progress=json"]);
    let run = run.dir(dir.path()).run();
    run.expect_exit(2).expect_stderr("cannot read gone");
    let failed = run.json_lines().pop().unwrap();
    assert_eq!(failed["event"], "failed");
    assert_eq!(number(&failed, "/report/exit"), 2);
}

/// What it costs to unpack a block is told by the header of its stream.
#[test]
fn a_dictionary_can_be_fitted_to_the_blocks() {
    let dir = temp_dir();
    let plain = vector("images/new.img");
    let image = dir.path().join("image");
    fs::write(&image, &plain).unwrap();
    // The last byte of a block header is the dictionary: two or three times a power of two.
    let dictionaries = |bundle: &[u8]| {
        let starts = bundle.windows(8).enumerate();
        let starts = starts.filter(|(_, bytes)| *bytes == b"\xfd7zXZ\0\0\x04");
        let all = starts.map(|(at, _)| {
            assert_eq!(bundle[at + 14..at + 16], [0x21, 1]);
            let bits = u32::from(bundle[at + 16]);
            (2 | bits & 1) << (bits / 2 + 11)
        });
        all.collect::<Vec<u32>>()
    };
    let target = dir.path().join("target");
    for (chunker, level, of_level, most) in [
        ("casync-64", 6, 8 << 20, 256 << 10),
        ("casync-64", 9, 64 << 20, 256 << 10),
        ("fixed-20", 6, 8 << 20, 24 << 10),
        ("fixed-4", 9, 64 << 20, 16 << 10),
        // Smaller than a block already.
        ("fixed-1024", 0, 256 << 10, 256 << 10),
    ] {
        let encoding = encoded(chunker, HashAlgorithm::Sha512_256, true, Some(level));
        let slots = vec![("system".to_owned(), image.clone())];
        let mut options = Options::of_slots(slots, &encoding, dir.path().join("bundle"));
        let (usual, bundle) = packed(&options);
        let stated = dictionaries(&bundle);
        assert!(stated.iter().all(|size| *size == of_level), "{chunker}");
        options.fit_dictionary = true;
        let (fitted, bundle) = packed(&options);
        let stated = dictionaries(&bundle);
        // Every block, and the two lists.
        assert_eq!(stated.len() as u64, fitted.payloads[0].stored_blocks + 2);
        let largest = stated.iter().max().unwrap();
        assert!(*largest <= most, "{chunker}: {largest}");
        assert_eq!(fitted.payloads[0].digest, usual.payloads[0].digest);
        assert!(fitted.size.abs_diff(usual.size) < usual.size / 100);
        let hash = fitted.hash.to_string();
        install(dir.path(), &hash, &["--target", "target"]).expect_exit(0);
        assert_file(&target, &plain);
        fs::remove_file(&target).unwrap();
    }
}
