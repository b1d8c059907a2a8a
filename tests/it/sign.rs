//! `reflash sign`: the bytes of the reference's own tool, and what is refused.

use std::fs;
use std::path::Path;

use crate::util::{assert_file, data, temp_dir, vector, Outcome, Run};

fn sign(folder: &Path, words: &[&str]) -> Outcome {
    Run::new(["sign"])
        .args(words.iter().copied())
        .dir(folder)
        .run()
}

/// A folder with an unsigned bundle and a signature of it.
fn folder() -> tempfile::TempDir {
    let folder = temp_dir();
    for (name, path) in [
        ("bundle", "bundles/signed-base.rugixb"),
        ("other", "bundles/casync8-sha256.rugixb"),
        ("signature", "certs/signed-ec.cms"),
        ("root.pem", "certs/root.crt"),
        ("other.pem", "certs/other.crt"),
    ] {
        fs::write(folder.path().join(name), vector(path)).unwrap();
    }
    folder
}

#[test]
fn a_signed_bundle_is_that_of_the_reference_to_the_byte() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name);
    let prepared = sign(folder.path(), &["bundle", "--metadata", "to-sign"]);
    prepared
        .expect_exit(0)
        .expect_stdout("sha512-256:fd9d700f53c1");
    assert_file(
        path("to-sign"),
        &vector("certs/signed-base.signed-metadata.bin"),
    );
    let attach = ["--signature", "signature", "-o"];
    let words = [
        &["bundle"][..],
        &attach,
        &["signed", "--root-cert", "root.pem"],
    ]
    .concat();
    let signed = sign(folder.path(), &words);
    signed.expect_exit(0);
    assert_eq!(signed.stdout, prepared.stdout, "the hash stays the same");
    assert_file(path("signed"), &vector("bundles/signed-ec.rugixb"));
    // Another is added to those that are there, and the bundle may be written in its place.
    let words = [&["signed"][..], &attach, &["signed"]].concat();
    sign(folder.path(), &words).expect_exit(0);
    let inspect = Run::new(["inspect", "signed", "--json"]).dir(folder.path());
    let told = inspect.run().json();
    assert_eq!(told["signatures"].as_array().unwrap().len(), 2);
    let image = data("vectors/bundles/signed-ec.rugixb");
    let size = fs::metadata(image).unwrap().len();
    assert!(fs::metadata(path("signed")).unwrap().len() > size);
}

#[test]
fn what_would_not_be_trusted_is_not_written() {
    let folder = folder();
    fs::write(folder.path().join("noise"), b"no signature").unwrap();
    let metadata = vector("certs/signed-base.signed-metadata.bin");
    fs::write(folder.path().join("to-sign"), metadata).unwrap();
    let names = fs::read_dir(folder.path()).unwrap().count();
    for (words, exit, said) in [
        (&["bundle"][..], 2, "--metadata"),
        (&["bundle", "--signature", "signature"], 2, "--output"),
        (
            &["bundle", "--signature", "noise", "-o", "out"],
            2,
            "-nodetach",
        ),
        (
            &["bundle", "--signature", "to-sign", "-o", "out"],
            2,
            "no signature",
        ),
        (
            &["other", "--signature", "signature", "-o", "out"],
            2,
            "of this bundle",
        ),
        (&["bundle", "--signature", "none", "-o", "out"], 2, "none"),
        (&["noise", "--metadata", "out"], 4, "no Rugix bundle"),
        (
            &[
                "bundle",
                "--signature",
                "signature",
                "-o",
                "out",
                "--root-cert",
                "other.pem",
            ],
            4,
            "not trusted",
        ),
    ] {
        let outcome = sign(folder.path(), words);
        outcome.expect_exit(exit).expect_stderr(said);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), names);
    }
}
