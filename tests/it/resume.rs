//! Power cuts, at every operation on the medium and at any instant: the target never looks complete
//! before it is, and the same command again fetches only the rest.

use std::fs;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use crate::make_bundle::{
    edit, mixed_image, random_image, text_image, zeros, Bundle, Made, Payload, Random,
};
use crate::medium::{Disk, Install};
use crate::server::{Fault, Server, When};
use crate::util::{assert_file, number, read_json, temp_dir, text, Run};

/// What is held back at least.
const HELD_BACK: usize = 4096;

/// Stored bytes of the blocks that do not stand at their place: what the next run may have to fetch.
fn rest(made: &Made, target: &[u8]) -> u64 {
    let payload = &made.payloads[0];
    let mut seen = std::collections::HashSet::new();
    let missing = payload.blocks.iter().filter(|block| {
        let plain = block.plain.start as usize..block.plain.end as usize;
        let wrong = target.get(plain.clone()) != Some(&payload.image[plain]);
        wrong && seen.insert(&block.digest)
    });
    let stored = missing.filter_map(|block| block.stored.clone());
    stored.map(|stored| stored.end - stored.start).sum()
}

/// After a power cut: it is as before, or complete, or it does not begin like the image.
#[track_caller]
fn assert_no_false_image(disk: &[u8], old: &[u8], image: &[u8], what: &str) {
    let held = HELD_BACK.min(image.len());
    let right = disk == old || disk.starts_with(image) || disk[..held] != image[..held];
    assert!(right, "{what}: it looks complete and is not");
    assert!(
        disk[image.len()..] == old[image.len()..],
        "{what}: bytes behind the payload changed"
    );
}

/// Cuts the power at each operation of an install, and then at one of the second.
fn cut_everywhere(old: &[u8], payload: Payload, seed: u64) {
    let folder = temp_dir();
    let made = Bundle::of(payload).make();
    let image = &made.payloads[0].image;
    let bundle = folder.path().join("bundle");
    fs::write(&bundle, &made.bytes).unwrap();
    let install = Install::new(&made, &bundle);
    let mut content = old.to_vec();
    content.resize(image.len().max(old.len()) + 5000, 0xa5);
    let disk = Disk::new(content.clone());
    install.installs(&disk, "without a cut");
    let operations = disk.operations();
    assert!(operations > 6, "only {operations} operations");
    let mut random = Random::new(seed);
    for cut in 0..operations {
        let what = format!("power cut at operation {cut} of {operations}");
        let disk = Disk::new(content.clone());
        disk.fails_after(cut, io::ErrorKind::Other);
        let (report, result) = install.run(&disk);
        let error = result.expect_err("the power is gone");
        assert_eq!(error.class().exit_code(), 5, "{what}: {error}");
        assert_eq!(report.result, "failed");
        let disk = disk.after_power_cut(&mut random);
        assert_no_false_image(&disk.bytes(), &content, image, &what);

        // Another one, in the middle of mending that.
        let second = Disk::new(disk.bytes());
        second.fails_after(random.below(operations), io::ErrorKind::Other);
        let (_, result) = install.run(&second);
        let second = match result {
            Ok(()) => Disk::new(second.bytes()),
            Err(_) => second.after_power_cut(&mut random),
        };
        assert_no_false_image(&second.bytes(), &disk.bytes(), image, &what);

        for disk in [disk, second] {
            let rest = rest(&made, &disk.bytes());
            let report = install.installs(&disk, &what);
            // Around the headers somewhat more is read than they are, and a scan takes a block or
            // two behind a damage to find the borders again.
            let most = report.bytes.index + rest + (256 << 10);
            let fetched = report.bytes.fetched;
            assert!(fetched <= most, "{what}: {fetched} fetched, rest {rest}");
            assert_eq!(disk.bytes()[image.len()..], content[image.len()..]);
        }
    }
}

// A row of README.md.
#[test]
fn a_power_cut_at_any_operation_costs_the_rest() {
    let image = [&text_image(9000, 1)[..], &mixed_image(2_600_000, 1)].concat();
    let empty = zeros(image.len());
    let payload = |chunker| Payload::slot("system", &image[..]).chunker(chunker).dedup();
    cut_everywhere(&empty, payload("casync-16").xz(0), 1);
    cut_everywhere(&empty, payload("fixed-4"), 2);
    // A first block that is larger than what is held back at least.
    cut_everywhere(&empty, payload("fixed-256"), 3);
}

// A row of README.md.
#[test]
fn a_power_cut_while_the_old_image_is_written_over_costs_the_rest() {
    let old = [&text_image(9000, 4)[..], &mixed_image(3_000_000, 4)].concat();
    let new = edit(&old, 4);
    let payload = |chunker| Payload::slot("system", &new[..]).chunker(chunker).dedup();
    cut_everywhere(&old, payload("casync-8").xz(0), 4);
    cut_everywhere(&old, payload("fixed-4"), 5);
    // The beginning stays as it is.
    let mut old = new.clone();
    old[1_500_000..1_600_000].fill(0);
    cut_everywhere(&old, payload("casync-8"), 6);
}

/// Two bundles in turn onto the same target, with whatever memory, options and power there is: what
/// is there afterwards is one of the images, what was there before, or nothing that looks like one.
// A row of README.md.
#[test]
fn power_cuts_between_several_images_never_mix_them() {
    let folder = temp_dir();
    let mut complete = 0;
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let old = [&text_image(9000, seed)[..], &mixed_image(600_000, seed)].concat();
        let size = 200_000 + random.below(500_000);
        let images = [
            edit(&old, seed),
            [&text_image(5000, seed + 100)[..], &old[9000..]].concat(),
            // Begins as the old one and repeats all of it.
            [&old[..], &old[..size.min(old.len())]].concat(),
        ];
        let installs = images.iter().enumerate().map(|(number, image)| {
            let chunker = ["fixed-4", "casync-4", "casync-16", "fixed-64"][random.below(4)];
            let mut payload = Payload::slot("system", &image[..]).chunker(chunker);
            if random.below(2) == 0 {
                payload = payload.xz(0);
            }
            if random.below(2) == 0 {
                payload = payload.dedup();
            }
            let bundle = folder.path().join(number.to_string());
            let made = Bundle::of(payload).make();
            fs::write(&bundle, &made.bytes).unwrap();
            (made, bundle)
        });
        let installs: Vec<_> = installs.collect();
        let mut content = old.clone();
        content.resize(1_500_000, 0xa5);
        let mut disk = Disk::new(content);
        for round in 0..8 {
            let what = format!("seed {seed}, round {round}");
            let (made, bundle) = &installs[random.below(installs.len())];
            let mut install = Install::new(made, bundle).memory(1 << (12 + random.below(12)));
            install.set(|options| options.verify(random.below(2) == 0));
            install.set(|options| options.discard(random.below(3) == 0));
            install.set(|options| options.target_seed(random.below(4) > 0));
            install.set(|options| options.merge(random.below(2) == 0));
            let before = disk.bytes();
            disk.fails_after(random.below(14), io::ErrorKind::Other);
            let (_, result) = install.run(&disk);
            let image = &made.payloads[0].image;
            if result.is_ok() {
                assert!(disk.bytes().starts_with(image), "{what}");
                complete += 1;
            }
            disk = match result {
                Ok(()) => Disk::new(disk.bytes()),
                Err(_) => disk.after_power_cut(&mut random),
            };
            let after = disk.bytes();
            let false_image = |image: &Vec<u8>| {
                after[..HELD_BACK] == image[..HELD_BACK] && !after.starts_with(image)
            };
            // A whole image may begin as another one.
            let whole = images.iter().chain([&old]).any(|it| after.starts_with(it));
            let none = !images.iter().chain([&old]).any(false_image);
            assert!(after == before || whole || none, "{what}");
        }
    }
    assert!(complete > 20, "only {complete} were not cut");
}

// A row of README.md.
#[test]
fn errors_of_the_medium_are_fatal_and_say_what_failed() {
    let image = random_image(2_500_000, 7);
    let made = Bundle::of(Payload::slot("system", &image[..]).chunker("fixed-64")).make();
    let folder = temp_dir();
    let bundle = folder.path().join("bundle");
    fs::write(&bundle, &made.bytes).unwrap();
    let install = Install::new(&made, &bundle);
    let disk = Disk::new(zeros(3_000_000));
    install.installs(&disk, "without an error");
    for operation in 0..disk.operations() {
        let disk = Disk::new(zeros(3_000_000));
        disk.fails_after(operation, io::ErrorKind::StorageFull);
        let (report, result) = install.run(&disk);
        let error = result.expect_err("it failed").to_string();
        assert!(
            error.contains("medium fails") && error.contains("thin volume"),
            "{error}"
        );
        assert_eq!((report.exit, report.result), (5, "failed"));
    }
}

/// A server, and a target that is killed at.
struct Site {
    folder: tempfile::TempDir,
    server: Server,
    made: Made,
}

impl Site {
    fn new(payload: Payload) -> Self {
        let made = Bundle::of(payload).make();
        Self {
            folder: temp_dir(),
            server: Server::start([("/b", made.bytes.clone())]),
            made,
        }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self) -> Run {
        let path = |name: &str| self.path(name).into_os_string();
        Run::new(["install", &self.server.url("/b")])
            .args(["--bundle-hash", &self.made.bundle_hash])
            .args(["--target".into(), path("target")])
            .args(["--report".into(), path("report")])
            .args(["--memory", "4M"])
    }

    /// The same command again: what it fetched of the bundle, and how many blocks it kept.
    #[track_caller]
    fn again(&self, what: &str) -> (u64, u64) {
        let target = fs::read(self.path("target")).unwrap_or_default();
        let rest = rest(&self.made, &target);
        self.server.reset_log();
        self.run().run().expect_exit(0);
        assert_file(self.path("target"), &self.made.payloads[0].image);
        let report = read_json(self.path("report"));
        let fetched = number(&report, "/bytes/fetched");
        let most = number(&report, "/bytes/index") + rest + (4 << 20);
        assert!(fetched <= most, "{what}: {fetched} fetched, rest {rest}");
        (fetched, number(&report, "/blocks/kept"))
    }
}

#[test]
fn a_kill_in_the_middle_keeps_what_is_there() {
    let image = random_image(12 << 20, 9);
    let site = Site::new(
        Payload::slot("system", image)
            .chunker("casync-16")
            .xz(0)
            .dedup(),
    );
    let size = site.made.payloads[0].image.len() as u64;
    fs::write(site.path("report"), "{\"result\": \"installed\"}").unwrap();
    let mut run = site.run().args(["--limit-rate", "4M"]).spawn();
    let start = Instant::now();
    let reached = || fs::metadata(site.path("target")).is_ok_and(|m| m.len() > size * 6 / 10);
    while !reached() {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "it does not get there"
        );
        thread::sleep(Duration::from_millis(1));
    }
    run.kill();
    run.finish().expect_killed_by(9);
    let report = fs::read_to_string(site.path("report")).unwrap();
    assert_eq!(report, "", "what an earlier run had to say");
    let (fetched, kept) = site.again("killed at 60 %");
    let blocks = site.made.payloads[0].blocks.len() as u64;
    assert!(kept * 2 > blocks, "{kept} of {blocks} kept");
    assert!(
        fetched * 2 < site.made.bytes.len() as u64,
        "{fetched} fetched"
    );
    // Once more, and there is nothing to do: nothing is asked for but the index.
    let before = fs::metadata(site.path("target"))
        .unwrap()
        .modified()
        .unwrap();
    site.again("complete");
    let report = read_json(site.path("report"));
    assert_eq!(text(&report, "/result"), "current");
    assert_eq!(report["target_touched"], false);
    assert_eq!(number(&report, "/blocks/kept"), blocks);
    assert_eq!(number(&report, "/bytes/written"), 0);
    let data = site.made.payloads[0].data.start;
    let beyond = site
        .server
        .ranges()
        .iter()
        .filter(|r| r.start >= data + (16 << 10))
        .count();
    assert_eq!(beyond, 0, "{:?}", site.server.ranges());
    let after = fs::metadata(site.path("target"))
        .unwrap()
        .modified()
        .unwrap();
    assert_eq!(before, after);
}

// A row of README.md.
#[test]
fn a_kill_at_any_span_costs_the_rest() {
    let image = random_image(1_200_000, 12);
    let site = Site::new(Payload::slot("system", &image[..]).chunker("fixed-4"));
    // Small spans, one after the other.
    let run = || site.run().args(["--workers", "1", "--no-merge"]);
    let step = 25;
    let blocks = site.made.payloads[0].blocks.len();
    for span in (1..blocks).step_by(step) {
        drop(fs::remove_file(site.path("target")));
        site.server.reset_log();
        site.server
            .fault(When::Nth(span), Fault::StallBeforeHeaders);
        let mut run = run().spawn();
        let start = Instant::now();
        while site.server.requests().len() <= span {
            assert!(start.elapsed() < Duration::from_secs(30), "span {span}");
            thread::yield_now();
        }
        run.kill();
        run.finish().expect_killed_by(9);
        site.server.clear_rules();
        let target = fs::read(site.path("target")).unwrap_or_default();
        let held = HELD_BACK.min(target.len());
        assert!(target[..held] == zeros(held), "span {span}");
        site.again(&format!("killed at span {span}"));
    }
}

/// At 200 instants, each time on top of what the last kill left, until it happens to be complete.
// A row of README.md.
#[test]
fn kills_at_any_instant_never_spoil_it() {
    let old = [&text_image(9000, 10)[..], &mixed_image(3 << 20, 10)].concat();
    let new = edit(&old, 10);
    let site = Site::new(
        Payload::slot("system", &new[..])
            .chunker("casync-16")
            .xz(0)
            .dedup(),
    );
    let mut random = Random::new(11);
    let mut killed = 0;
    let mut fresh = 0;
    for round in 0.. {
        if killed == 200 {
            break;
        }
        assert!(round < 2000, "{killed} of {round} were killed in time");
        let target = fs::read(site.path("target")).unwrap_or_default();
        if target == new || round == 0 {
            // From the beginning: over nothing, over the old image, over other bytes.
            fresh += 1;
            match fresh % 3 {
                0 => drop(fs::remove_file(site.path("target"))),
                1 => fs::write(site.path("target"), &old).unwrap(),
                _ => fs::write(site.path("target"), random_image(4 << 20, fresh)).unwrap(),
            }
        }
        let before = fs::read(site.path("target")).unwrap_or_default();
        let mut run = site.run().args(["--limit-rate", "60M"]).spawn();
        thread::sleep(Duration::from_micros(random.below(90_000) as u64));
        run.kill();
        let outcome = run.finish();
        killed += u32::from(outcome.code().is_none());
        let target = fs::read(site.path("target")).unwrap_or_default();
        let held = HELD_BACK.min(target.len());
        let right = target == new || target == before || target[..held] != new[..held];
        assert!(right, "round {round}: it looks complete and is not");
        if round % 10 == 0 {
            site.again(&format!("round {round}"));
        }
    }
    site.again("at the end");
}
