//! Bundles that want to hurt: every bit of a signed one flipped, every length cut, sizes that are
//! promised and not kept, streams that unpack to more than they should.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;

use reflash::internal::clock::{Clock, Time};
use reflash::{Class, Install, Location, Reporter, Roots, Targets, Trust};
use tempfile::TempDir;

use crate::make_bundle::{random_image, value_head, xz, Bundle, Made, Payload, Place};
use crate::make_signature::{cms, metadata, Twist, Wanted};
use crate::util::{number, read_json, temp_dir, Run};

/// Peak memory of a run, whatever the bundle says.
const MEMORY_LIMIT: u64 = 64 << 20;

/// In memory where that is possible: there are tens of thousands of files to write and sync.
fn fast_dir() -> TempDir {
    let mut builder = tempfile::Builder::new();
    let builder = builder.prefix("reflash-test-");
    let memory = Path::new("/dev/shm");
    builder.tempdir_in(memory).unwrap_or_else(|_| temp_dir())
}

/// A bundle, and the roots that one must have signed it.
fn signed() -> (Made, Roots) {
    let payload = Payload::slot("s", random_image(300, 1)).chunker("fixed-1");
    let bundle = Bundle::of(payload).manifest(None);
    let unsigned = bundle.make();
    let header = &unsigned.bytes[unsigned.header.start as usize..unsigned.header.end as usize];
    let root = Wanted::authority("r").root();
    // The faster of the two kinds of key.
    let signer = Wanted::signer("s").ed25519().by(&root);
    let signature = cms(&metadata(header), &signer, &[&signer], Twist::None);
    let clock = Clock::standing(Time::parse("2027-01-01").unwrap(), Time(0));
    let roots = Roots::of([("root".into(), root.der.clone())], clock);
    (bundle.signatures(vec![signature]).make(), roots.unwrap())
}

/// Installs these bytes over `old`; the exit class of a failure, and what the target holds.
fn install_bytes(
    folder: &Path,
    bytes: &[u8],
    old: &[u8],
    roots: &Roots,
) -> (Option<Class>, Vec<u8>) {
    let (bundle, target) = (folder.join("b"), folder.join("t"));
    fs::write(&bundle, bytes).unwrap();
    fs::write(&target, old).unwrap();
    let install = Install::new(
        Location::File(bundle),
        Trust::Signed(Arc::new(roots.clone())),
        Targets::One(target.clone()),
    );
    let result = install.workers(1).memory(8 << 20).run(&Reporter::silent());
    (
        result.err().map(|failed| failed.error.class()),
        fs::read(target).unwrap(),
    )
}

/// None panics; those that are refused are refused as bad bundles and leave no image; those that
/// are not leave exactly the image.
#[test]
fn no_flipped_bit_and_no_cut_of_a_signed_bundle_does_harm() {
    let (made, roots) = signed();
    let image = &made.payloads[0].image;
    let old = vec![0xa5; image.len() + 100];
    let size = made.bytes.len();
    let (next, accepted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let folder = fast_dir();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let mut bytes = made.bytes.clone();
            if number < size * 8 {
                bytes[number / 8] ^= 1 << (number % 8);
            } else if number < size * 9 {
                bytes.truncate(number - size * 8);
            } else {
                break;
            }
            let (failure, found) = install_bytes(folder.path(), &bytes, &old, &roots);
            match failure {
                None => {
                    assert_eq!(&found, image, "case {number}");
                    accepted.fetch_add(1, Ordering::Relaxed);
                }
                Some(class) => {
                    assert_eq!(class, Class::Bundle, "case {number}");
                    assert!(!found.starts_with(image), "case {number}");
                }
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get());
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .for_each(|worker| worker.join().unwrap());
    });
    // What no signature covers: CMS fields that nobody looks at, such as versions, the closing
    // tags behind the last payload, an optional tag that turns into another.
    let accepted = accepted.into_inner();
    assert!((1..400).contains(&accepted), "{accepted} of {size} bytes");
    let folder = fast_dir();
    let (failure, found) = install_bytes(folder.path(), &made.bytes, &old, &roots);
    assert_eq!((failure, &found), (None, image));
}

/// Lengths that are promised and not kept, at every place where a reader has to look.
#[test]
fn promises_of_gigabytes_cost_nothing() {
    let folder = temp_dir();
    let refuse = |bytes: &[u8], what: &str| {
        let report = folder.path().join("report");
        let run = Run::new(["install", "-", "--target", "t", "--report", "report"])
            .arg("--insecure-skip-bundle-verification")
            .dir(folder.path())
            .stdin(bytes);
        let outcome = run.run();
        outcome
            .expect_exit(4)
            .expect(outcome.elapsed.as_secs() < 20, what);
        let peak = number(&read_json(&report), "/peak_memory");
        assert!(peak < MEMORY_LIMIT, "{what}: {peak} bytes");
    };
    let payload = || Payload::slot("s", random_image(3000, 2)).chunker("casync-1");
    for place in Place::OPTIONAL_ATOMS {
        for size in [1 << 20, 4u64 << 30, 1 << 62] {
            // An optional atom and a required one, and nothing behind the promise.
            for tag in [0x8000_0001, 0x1613_0001] {
                let head = value_head(tag, size);
                let whole = Bundle::of(payload())
                    .signatures(Vec::new())
                    .extra(place, head.clone())
                    .make()
                    .bytes;
                let at = whole.windows(head.len()).position(|window| window == head);
                refuse(
                    &whole[..at.unwrap_or_else(|| panic!("nothing is put {place:?}")) + head.len()],
                    &format!("{place:?} {size}"),
                );
                // And with what there is behind it.
                refuse(&whole, &format!("{place:?} {size} with more"));
            }
        }
    }
}

/// Lists of hashes and sizes that unpack to more than there can be blocks for.
#[test]
fn lists_that_are_bombs_are_stopped_early() {
    let folder = temp_dir();
    let zeros = |size| {
        let bomb = xz(0, &vec![0; size]);
        move |bytes: &mut Vec<u8>| bytes.clone_from(&bomb)
    };
    let image = random_image(3000, 3);
    let payload = || Payload::slot("s", &image[..]).chunker("casync-1").xz(6);
    for (name, payload) in [
        ("hashes", payload().edit_stored_hashes(zeros(80 << 20))),
        ("sizes", payload().edit_stored_sizes(zeros(17 << 20))),
        (
            "repeats",
            payload().dedup().edit_stored_hashes(zeros(257 << 20)),
        ),
    ] {
        let made = Bundle::of(payload).make();
        let report = folder.path().join("report");
        let hash = ["--bundle-hash", &made.bundle_hash];
        let run = Run::new(["install", "-", "--target", "t", "--report", "report"]).args(hash);
        let outcome = run.dir(folder.path()).stdin(made.bytes).run();
        outcome
            .expect_exit(4)
            .expect_stderr("cannot be decompressed");
        let peak = number(&read_json(&report), "/peak_memory");
        assert!(peak < MEMORY_LIMIT, "{name}: {peak} bytes");
    }
}
