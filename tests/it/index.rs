//! `reflash index`: the bytes of the reference, their use as a seed's index, and what is refused.

use std::fs;

use crate::make_bundle::{mixed_image, random_image, Bundle, Payload};
use crate::util::{assert_file, data, number, read_json, temp_dir, text, vector, Run};

#[test]
fn indexes_are_those_of_the_reference_to_the_byte() {
    let folder = temp_dir();
    let output = folder.path().join("index");
    let image = data("vectors/images/old.img");
    for name in [
        "casync-64_sha512-256",
        "casync-8_sha512-256",
        "fixed-4_sha256",
    ] {
        let (chunker, hash) = name.split_once('_').unwrap();
        let run = Run::new(["index", "--json"])
            .arg(&image)
            .arg("--output")
            .arg(&output)
            .args(["--chunker", chunker, "--hash", hash])
            .run();
        run.expect_exit(0);
        assert_file(
            &output,
            &vector(&format!("index/old.{name}.rugix-block-index")),
        );
        let (told, facts) = (
            run.json(),
            read_json(data(&format!("vectors/index/old.{name}.json"))),
        );
        assert_eq!(told["blocks"], facts["blocks"], "{name}");
        assert_eq!(told["size"], facts["image-size"], "{name}");
        assert_eq!(told["index_size"], facts["size"], "{name}");
    }
    // The default is the first of them, and there is nothing else left.
    let run = Run::new(["index"]).arg(&image).arg("-o").arg(&output).run();
    run.expect_exit(0).expect_stderr("10 blocks of casync-64");
    assert_file(
        &output,
        &vector("index/old.casync-64_sha512-256.rugix-block-index"),
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// A seed with an index gives the same as one that is scanned; also when the index is out of date.
#[test]
fn an_index_saves_the_scan_and_may_be_out_of_date() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let old = mixed_image(700_000, 3);
    let mut new = old.clone();
    new[300_000..310_000].fill(7);
    let payload = Payload::slot("system", new.clone()).chunker("casync-8");
    let made = Bundle::of(payload).make();
    fs::write(path("bundle"), &made.bytes).unwrap();
    fs::write(path("old"), &old).unwrap();
    let run = Run::new(["index"]).arg(path("old")).arg("-o");
    let run = run.arg(path("index")).args(["--chunker", "casync-8", "-q"]);
    let run = run.run();
    run.expect_exit(0);
    run.expect(run.stderr.is_empty(), "quiet is quiet");
    let fetched = |seed: &str| {
        let run = Run::new(["install"]).arg(path("bundle")).arg("--target");
        let run = run.arg(path("target")).args(["--seed", seed]);
        let run = run.args(["--bundle-hash", &made.bundle_hash]);
        let run = run.arg("--report").arg(path("report")).dir(folder.path());
        run.run().expect_exit(0);
        assert_file(path("target"), &new);
        fs::remove_file(path("target")).unwrap();
        let report = read_json(path("report"));
        assert_eq!(text(&report, "/result"), "installed");
        number(&report, "/blocks/fetched")
    };
    let scanned = fetched("old");
    assert!(scanned > 0);
    assert_eq!(fetched("old=index"), scanned);
    let mut changed = old;
    changed[100_000] ^= 1;
    fs::write(path("old"), &changed).unwrap();
    assert_eq!(fetched("old=index"), scanned + 1);
}

#[test]
fn what_cannot_be_indexed_leaves_the_output_alone() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("image"), random_image(10_000, 1)).unwrap();
    fs::write(path("kept"), b"as it was").unwrap();
    for (image, output, options, said) in [
        ("no-such", "kept", &[][..], "no-such"),
        (".", "kept", &[], "neither a file nor a block device"),
        ("image", "image", &[], "which is read"),
        ("image", ".", &[], "no regular file"),
        ("image", "no/such/folder", &[], "no/such/folder"),
        (
            "image",
            "kept",
            &["--chunker", "casync-65535"],
            "casync-65535",
        ),
        (
            "image",
            "kept",
            &["--chunker", "rabin-8"],
            "casync-K or fixed-K",
        ),
        ("image", "kept", &["--hash", "md5"], "md5"),
    ] {
        let run = Run::new(["index", image, "-o", output]).args(options);
        let run = run.dir(folder.path()).run();
        run.expect_exit(2).expect_stderr(said);
        assert_file(path("kept"), b"as it was");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
