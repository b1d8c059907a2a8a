//! Offsets past 4 GiB, in the bundle and on the target: where a 32-bit machine would wrap around.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use crate::make_bundle::random_image;
use crate::server::Server;
use crate::util::{number, read_json, temp_dir, Run};

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// Two machine words more than 4 GiB, and no multiple of a sector.
const SIZE: u64 = 4 * GIB + 5 * MIB + 12_345;

/// Where there is something else than zeros, so many bytes each: at the beginning, across the border,
/// behind it.
const PLACES: [u64; 3] = [0, 4 * GIB - 100_000, 4 * GIB + 5 * MIB];
const PIECE: usize = 12_345 + 200_000;

fn pieces() -> impl Iterator<Item = (u64, Vec<u8>)> {
    let numbered = PLACES.into_iter().zip(1..);
    numbered.map(|(at, seed)| {
        let size = PIECE.min((SIZE - at) as usize);
        (at, random_image(size, seed))
    })
}

#[test]
#[ignore = "writes 8 GiB; make test-cross runs it"]
fn nothing_wraps_at_4_gib() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let image = File::create(path("image")).unwrap();
    image.set_len(SIZE).unwrap();
    for (at, bytes) in pieces() {
        image.write_all_at(&bytes, at).unwrap();
    }
    // By the host's own binary, whichever is under test; all zeros are stored.
    let packed = Command::new(env!("CARGO_BIN_EXE_reflash"))
        .args([
            "pack",
            "image",
            "--output",
            "bundle",
            "--compression",
            "none",
        ])
        .args([
            "--chunker",
            "fixed-1024",
            "--hash",
            "sha256",
            "--no-deduplicate",
        ])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(packed.status.success(), "{packed:?}");
    let hash = String::from_utf8(packed.stdout).unwrap();
    assert!(fs::metadata(path("bundle")).unwrap().len() > SIZE);

    // All the zeros come from one block.
    fs::write(path("zeros"), vec![0; MIB as usize]).unwrap();
    let server = Server::start([("/b", path("bundle"))]);
    let outcome = Run::new(["install", &server.url("/b"), "--target", "target"])
        .args([
            "--seed",
            "zeros",
            "--bundle-hash",
            hash.trim(),
            "--report",
            "report",
        ])
        .dir(folder.path())
        .limit(Duration::from_secs(900))
        .run();
    outcome.expect_exit(0);

    let target = File::open(path("target")).unwrap();
    assert_eq!(target.metadata().unwrap().len(), SIZE);
    for (at, bytes) in pieces() {
        let mut found = vec![0; bytes.len()];
        target.read_exact_at(&mut found, at).unwrap();
        assert!(found == bytes, "the piece at {at} is wrong");
    }
    let report = read_json(path("report"));
    assert!(number(&report, "/bytes/fetched") < 8 * MIB, "{report}");
    let beyond = |range: &std::ops::Range<u64>| range.start > 4 * GIB;
    assert!(server.ranges().iter().any(beyond), "{:?}", server.ranges());
}
