//! One slot only: the old image is on the target itself and shifts under the writer. Whatever the
//! layouts, the image is exact; and what survives is not fetched.

use std::collections::HashSet;
use std::fs;

use crate::make_bundle::{
    block_digests, mixed_image, random_image, repeating_image, zeros, Bundle, Hash, Made, Payload,
    Random,
};
use crate::medium::{Disk, Install};
use crate::util::temp_dir;

/// An image made of sections of an old one and new ones, in any order.
fn rearranged(old: &[u8], random: &mut Random) -> Vec<u8> {
    let mut new = old.to_vec();
    for _ in 0..1 + random.below(4) {
        let len = new.len().max(1);
        let (a, b) = (random.below(len), random.below(len));
        let (a, b) = (a.min(b), a.max(b));
        let most = [60, 5000, 60_000][random.below(3)];
        let piece = 1 + random.below(most);
        match random.below(9) {
            // Shift right: by a few bytes, by whole pages.
            0 => drop(new.splice(a..a, random.bytes(piece))),
            1 => drop(new.splice(a..a, random.bytes(piece.next_multiple_of(4096)))),
            // Shift left.
            2 => drop(new.drain(a..b.min(a + piece))),
            // Swap what is before and behind.
            3 => new.rotate_left(a),
            // Reverse the pages.
            4 => {
                let pages: Vec<_> = new.chunks(4096).map(<[u8]>::to_vec).collect();
                new = pages.into_iter().rev().collect::<Vec<_>>().concat();
            }
            // The same again, elsewhere.
            5 => {
                let again = new[a..b].to_vec();
                let at = random.below(len);
                drop(new.splice(at..at, again));
            }
            6 => new[a..b].fill(0),
            // Other content at the same place.
            7 => {
                let end = b.min(a + piece);
                let bytes = random.bytes(end - a);
                new[a..end].copy_from_slice(&bytes);
            }
            _ => new.truncate(b),
        }
        new.truncate(700_000);
    }
    new
}

fn payload(image: &[u8], random: &mut Random) -> (Payload, &'static str) {
    let chunker = ["fixed-4", "fixed-1", "casync-1", "casync-4", "casync-16"][random.below(5)];
    let mut payload = Payload::slot("system", image).chunker(chunker);
    if random.below(2) == 0 {
        payload = payload.xz(0);
    }
    if random.below(3) > 0 {
        payload = payload.dedup();
    }
    (payload, chunker)
}

// A row of README.md.
#[test]
fn any_layout_gives_the_exact_image() {
    let folder = temp_dir();
    let (mut kept, mut moved, mut fetched) = (0, 0, 0);
    for seed in 0..250 {
        let mut random = Random::new(seed);
        let size = [0, 3000, 40_000, 300_000][random.below(4)] + random.below(5000);
        let old = match random.below(4) {
            0 => random_image(size, seed),
            1 => repeating_image(size, seed),
            _ => mixed_image(size, seed),
        };
        let new = rearranged(&old, &mut random);
        let (payload, chunker) = payload(&new, &mut random);
        let made = Bundle::of(payload).make();
        let bundle = folder.path().join("bundle");
        fs::write(&bundle, &made.bytes).unwrap();
        // From far too little memory to enough.
        let memory = 1 << (12 + random.below(12));
        let what = format!("seed {seed}: {chunker}, memory {memory}");
        let install = Install::new(&made, &bundle).memory(memory);
        let behind = random.below(9000);
        let room = new.len().max(old.len()) + behind;
        let mut content = old.clone();
        content.extend(vec![0xa5; room - old.len()]);
        let disk = Disk::new(content);
        let report = install.installs(&disk, &what);
        kept += report.blocks.kept;
        moved += report.blocks.seeded;
        fetched += report.blocks.fetched;
        // And once more: nothing is to be done.
        let again = install.installs(&Disk::new(disk.bytes()), &what);
        assert_eq!(again.result, "current", "{what}");
        assert_eq!(again.blocks.kept, again.blocks.total, "{what}");
        assert!(
            again.bytes.fetched <= again.bytes.index + (13 << 10),
            "{what}"
        );
    }
    // All three happen a lot.
    assert!(
        kept > 2000 && moved > 1000 && fetched > 3000,
        "{kept} {moved} {fetched}"
    );
}

/// A bundle of `new`, and a disk with `old` on it and room for both.
fn case(old: &[u8], payload: Payload) -> (Made, Disk) {
    let made = Bundle::of(payload).make();
    let room = old.len().max(made.payloads[0].image.len()) + 10_000;
    let mut content = old.to_vec();
    content.resize(room, 0xa5);
    (made, Disk::new(content))
}

/// Stored bytes of the blocks that `old` has not.
fn missing(made: &Made, old: &[u8], chunker: &str) -> u64 {
    let have = block_digests(old, chunker, Hash::Sha512_256);
    let missing = made.payloads[0].missing(&have);
    missing.iter().map(|range| range.end - range.start).sum()
}

#[test]
fn what_survives_or_can_be_saved_is_not_fetched() {
    let folder = temp_dir();
    let old = mixed_image(4_000_000, 3);
    let noise = random_image(300_000, 4);
    let insert = |at: usize, size: usize| [&old[..at], &noise[..size], &old[at..]].concat();
    let layouts = [
        ("shift right by a few bytes", insert(100_000, 37)),
        ("shift right by pages", insert(8192, 40 * 4096)),
        // A target is looked through an eighth farther than the payload goes.
        ("shift left", [&old[..50_000], &old[350_000..]].concat()),
        ("other content in the middle", {
            let mut new = old.clone();
            new[1_000_000..1_200_000].copy_from_slice(&noise[..200_000]);
            new
        }),
        (
            "halves swapped",
            [&old[2_000_000..], &old[..2_000_000]].concat(),
        ),
    ];
    for (what, new) in &layouts {
        for chunker in ["casync-8", "fixed-4"] {
            for xz in [false, true] {
                let mut payload = Payload::slot("system", &new[..]).chunker(chunker).dedup();
                if xz {
                    payload = payload.xz(0);
                }
                let (made, disk) = case(&old, payload);
                let bundle = folder.path().join("bundle");
                fs::write(&bundle, &made.bytes).unwrap();
                let what = format!("{what}, {chunker}, xz {xz}");
                // A quarter of it is for what is saved.
                let install = Install::new(&made, &bundle).memory(16 << 20);
                let report = install.installs(&disk, &what);
                let least = missing(&made, &old, chunker) + report.bytes.index;
                // The last old block ends elsewhere on a disk; what is read around headers.
                let most = least + (64 << 10);
                assert!(
                    report.bytes.fetched <= most,
                    "{what}: {} fetched, {least} missing",
                    report.bytes.fetched
                );
            }
        }
    }
}

/// More is written over than can be saved: the plan knows, and asks for it from the start.
#[test]
fn what_is_lost_for_sure_is_planned() {
    let folder = temp_dir();
    let old = random_image(3 << 20, 5);
    let new = [&random_image(1 << 20, 6)[..], &old].concat();
    let (made, disk) = case(&old, Payload::slot("system", &new[..]).chunker("fixed-4"));
    let bundle = folder.path().join("bundle");
    fs::write(&bundle, &made.bytes).unwrap();
    // 256 KiB can be saved of the 1 MiB that is always needed.
    let install = Install::new(&made, &bundle).memory(1 << 20);
    let report = install.installs(&disk, "shift by more than memory");
    let moved = report.blocks.seeded * 4096;
    // A quarter of each MiB.
    assert!(
        (512 << 10..=1 << 20).contains(&moved),
        "{moved} bytes moved"
    );
    let fetched = report.blocks.fetched * 4096;
    assert_eq!(moved + fetched, new.len() as u64);
}

/// Another seed does not go away: what it has is not taken from the target.
#[test]
fn other_seeds_come_first() {
    let folder = temp_dir();
    let old = random_image(2 << 20, 7);
    let new = [&random_image(512 << 10, 8)[..], &old].concat();
    let (made, disk) = case(&old, Payload::slot("system", &new[..]).chunker("fixed-4"));
    let path = |name: &str| folder.path().join(name);
    fs::write(path("bundle"), &made.bytes).unwrap();
    fs::write(path("seed"), &old).unwrap();
    let install = Install::new(&made, &path("bundle"))
        .memory(256 << 10)
        .seed(&path("seed"));
    let report = install.installs(&disk, "another seed");
    assert_eq!(report.blocks.fetched, 128);
    assert_eq!(report.blocks.seeded, 512);
}

/// The old content is not what the scan saw, or cannot be read any more.
#[test]
fn a_target_that_fails_as_a_seed_is_written_all_the_same() {
    let folder = temp_dir();
    let old = mixed_image(1_000_000, 9);
    let new = [&old[300_000..], &old[..300_000]].concat();
    for chunker in ["casync-4", "fixed-4"] {
        let (made, disk) = case(
            &old,
            Payload::slot("system", &new[..]).chunker(chunker).xz(0),
        );
        let bundle = folder.path().join("bundle");
        fs::write(&bundle, &made.bytes).unwrap();
        disk.unreadable(700_000..704_096);
        let (report, result) = Install::new(&made, &bundle).run(&disk);
        disk.unreadable(0..0);
        // Repeats are copied from the target: then it has to be readable.
        if result.is_ok() {
            assert!(disk.bytes().starts_with(&new), "{chunker}");
        } else {
            assert_eq!(report.exit, 5);
        }
    }
}

/// Long runs of one block are kept where they stand, and copied where they do not.
#[test]
fn repeats_stand_where_they_stood() {
    let folder = temp_dir();
    let front = random_image(100_000, 10);
    let old = [&front[..], &zeros(900_000), &front].concat();
    let new = [
        &front[..],
        &zeros(700_000),
        &front[..50_000],
        &zeros(300_000),
    ]
    .concat();
    let (made, disk) = case(
        &old,
        Payload::slot("system", &new[..]).chunker("fixed-4").dedup(),
    );
    let bundle = folder.path().join("bundle");
    fs::write(&bundle, &made.bytes).unwrap();
    let report = Install::new(&made, &bundle).installs(&disk, "repeats");
    let distinct: HashSet<_> = made.payloads[0].blocks.iter().map(|b| &b.digest).collect();
    assert!(report.blocks.fetched <= 16, "of {}", distinct.len());
    assert!(report.blocks.kept > 180, "{:?}", report.blocks);
    assert!(report.blocks.copied > 20, "{:?}", report.blocks);
}

/// Blocks are much larger than usual, and their sizes are not known: the target is looked through to
/// its end all the same.
#[test]
fn a_payload_of_the_largest_blocks_is_recognized() {
    let folder = temp_dir();
    let image: Vec<u8> = (1..=40).flat_map(|n| vec![n; 64 << 10]).collect();
    let payload = Payload::slot("system", &image[..]).chunker("casync-16");
    let (made, disk) = case(&image, payload.xz(0));
    let bundle = folder.path().join("bundle");
    fs::write(&bundle, &made.bytes).unwrap();
    let report = Install::new(&made, &bundle).installs(&disk, "largest blocks");
    assert_eq!(report.result, "current");
}
