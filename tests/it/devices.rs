//! What is read back, mended, compared, discarded and stored, and targets that are refused. Real
//! block devices are in `tests/system`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::make_bundle::{
    block_index, edit, mixed_image, random_image, zeros, Bundle, Cuts, Hash, Payload, Random,
};
use crate::medium::{Disk, Install};
use crate::site::Site;
use crate::util::{assert_file, number, temp_dir, text, Outcome, Run};

/// What is held back at least.
const HELD_BACK: usize = 4096;

impl Site {
    fn image(&self) -> &[u8] {
        &self.made.payloads[0].image
    }

    fn command(&self, command: &str, target: &Path) -> Run {
        Run::new([command, &self.server.url("/b")])
            .args(["--bundle-hash", &self.made.bundle_hash])
            .args(["--target".as_ref(), target.as_os_str()])
    }

    fn install(&self) -> Run {
        self.command("install", &self.path("target"))
            .args(["--report".into(), self.path("report").into_os_string()])
    }

    /// Compares the target; the report, and what was said.
    fn verify(&self) -> (Value, Outcome) {
        let outcome = self
            .command("verify", &self.path("target"))
            .arg("--json")
            .run();
        (outcome.json(), outcome)
    }
}

// ---- reading back ----------------------------------------------------------------------------

// A row of README.md.
#[test]
fn what_the_medium_does_not_give_back_is_written_again() {
    let folder = temp_dir();
    let image = random_image(2_000_000, 1);
    for chunker in ["fixed-4", "casync-16"] {
        let made = Bundle::of(Payload::slot("system", &image[..]).chunker(chunker).xz(0)).make();
        let bundle = folder.path().join("bundle");
        fs::write(&bundle, &made.bytes).unwrap();
        let mut install = Install::new(&made, &bundle);
        install.set(|options| options.verify(true));
        for (offset, times) in [(1_234_567, 1), (100, 1), (1_234_567, 99), (100, 99)] {
            let what = format!("{chunker}, byte {offset} rots {times} times");
            let disk = Disk::new(random_image(2_500_000, 99));
            disk.rots(offset, times);
            if times == 1 {
                install.installs(&disk, &what);
                continue;
            }
            let (report, result) = install.run(&disk);
            let error = result.expect_err(&what).to_string();
            assert!(error.contains("does not give back"), "{error}");
            assert_eq!((report.exit, report.result), (5, "failed"), "{what}");
            assert!(disk.bytes()[..HELD_BACK] != image[..HELD_BACK], "{what}");
        }
        // Without reading back nobody notices.
        install.set(|options| options.verify(false));
        let disk = Disk::new(random_image(2_500_000, 99));
        disk.rots(1_234_567, 1);
        let (_, result) = install.run(&disk);
        result.unwrap();
        assert!(!disk.bytes().starts_with(&image));
    }
}

/// All seems to stand there, as the cache has it; the medium has something else. It is mended as any
/// other, with the beginning held back, and a target that cannot be mended has none.
// A row of README.md.
#[test]
fn what_only_the_cache_has_is_written_again() {
    let folder = temp_dir();
    let image = random_image(2_000_000, 1);
    let made = Bundle::of(Payload::slot("system", &image[..]).chunker("fixed-64")).make();
    let bundle = folder.path().join("bundle");
    fs::write(&bundle, &made.bytes).unwrap();
    let mut install = Install::new(&made, &bundle);
    install.set(|options| options.verify(true));
    for offset in [1_234_567, 100, 5000] {
        let stale = || {
            let disk = Disk::new(image.clone());
            disk.stale(offset);
            disk
        };
        let disk = stale();
        let (report, result) = install.run(&disk);
        result.unwrap();
        assert_eq!(report.result, "installed", "byte {offset}");
        assert!(disk.bytes() == image, "byte {offset}");
        for operation in 1..disk.operations() {
            let disk = stale();
            disk.fails_after(operation, std::io::ErrorKind::Other);
            install.run(&disk).1.expect_err("the medium fails");
            let bytes = disk.bytes();
            let right = bytes == image || bytes[..HELD_BACK] != image[..HELD_BACK];
            assert!(right, "byte {offset}, operation {operation}");
        }
        let disk = stale();
        disk.rots(offset, 99);
        let (report, result) = install.run(&disk);
        result.expect_err("it cannot be mended");
        assert_eq!((report.exit, report.result), (5, "failed"));
        assert!(disk.bytes()[..HELD_BACK] != image[..HELD_BACK]);
    }
}

#[test]
fn a_small_payload_that_is_taken_away_takes_nothing_else() {
    let folder = temp_dir();
    let image = random_image(1000, 1);
    for payload in [
        Payload::slot("system", &image[..]),
        Payload::slot("system", &image[..]).plain(),
    ] {
        let made = Bundle::of(payload).make();
        let bundle = folder.path().join("bundle");
        fs::write(&bundle, &made.bytes).unwrap();
        let mut install = Install::new(&made, &bundle);
        install.set(|options| options.verify(true));
        install.set(|options| options.allow_missing_index(true));
        let before = random_image(10_000, 2);
        let disk = Disk::new(before.clone());
        disk.rots(100, 99);
        install.run(&disk).1.expect_err("the medium rots");
        let after = disk.bytes();
        assert!(after[..image.len()] != image[..]);
        assert!(after[image.len()..] == before[image.len()..]);
    }
}

#[test]
fn reading_back_is_a_phase_and_costs_no_download() {
    let site = Site::of(Payload::slot("system", mixed_image(900_000, 2)).chunker("casync-8"));
    let run = site.install().args(["--verify", "--progress", "json"]);
    let outcome = run.run();
    outcome.expect_exit(0);
    let lines = outcome.json_lines();
    let verify = |line: &&Value| line["event"] == "phase" && line["phase"] == "verify";
    assert!(lines.iter().any(|line| verify(&line)));
    assert_file(site.path("target"), site.image());
    assert_eq!(
        number(&site.report(), "/bytes/fetched"),
        site.server.body_bytes()
    );
    // Nothing is written, and all of it is looked at.
    site.install().arg("--verify").run().expect_exit(0);
    assert_eq!(text(&site.report(), "/result"), "current");
    let plain = Site::of(Payload::slot("system", mixed_image(300_000, 2)).plain());
    let run = plain.install().arg("--insecure-allow-missing-block-index");
    run.arg("--verify").run().expect_exit(0);
    assert_file(plain.path("target"), plain.image());
}

// ---- reflash verify --------------------------------------------------------------------------

#[test]
fn verify_tells_the_same_from_the_different() {
    let image = mixed_image(1_200_000, 3);
    let payload = || Payload::slot("system", &image[..]);
    let odd = Cuts::At(vec![1, 300, 4000, 36_000, 600_000, 1_100_000]);
    for payload in [
        payload().chunker("fixed-4").dedup(),
        payload().chunker("fixed-16").xz(0),
        payload().chunker("casync-8").dedup(),
        payload().chunker("casync-8").xz(0).dedup(),
        payload().chunker_text("casync-512").cuts(odd).xz(0),
        payload().plain(),
    ] {
        let site = Site::of(payload);
        let target = site.file("target", &image);
        let (report, outcome) = site.verify();
        outcome.expect_exit(0);
        assert_eq!(text(&report, "/result"), "same");
        assert_eq!(number(&report, "/targets/0/size"), image.len() as u64);

        let differs = |bytes: &[u8], place: usize| {
            fs::write(&target, bytes).unwrap();
            let (report, outcome) = site.verify();
            outcome
                .expect_exit(5)
                .expect_stderr("differs from the image");
            assert_eq!(text(&report, "/result"), "differs");
            let regions = report["targets"][0]["regions"].as_array().unwrap();
            let inside = regions.iter().any(|region| {
                let (start, end) = (number(region, "/start"), number(region, "/end"));
                (start..end.max(start + 1)).contains(&(place as u64))
            });
            assert!(inside, "{place} is not in {regions:?}");
            assert_file(&target, bytes);
            regions.len()
        };
        for place in [0, 700_000, image.len() - 1] {
            let mut wrong = image.clone();
            wrong[place] ^= 1;
            assert_eq!(differs(&wrong, place), 1);
        }
        differs(&image[..900_000], 900_000);
        differs(&[&image[..], b"more"].concat(), image.len());
        differs(&random_image(image.len(), 4), 0);
        fs::remove_file(&target).unwrap();
        site.command("verify", &target).run().expect_exit(5);
    }
}

#[test]
fn verify_asks_for_little_and_obeys_the_trust_options() {
    let site = Site::of(
        Payload::slot("system", mixed_image(3_000_000, 5))
            .chunker("casync-8")
            .xz(0),
    );
    let mut wrong = site.image().to_vec();
    wrong[1_500_000] ^= 1;
    let target = site.file("target", &wrong);
    let (report, _) = site.verify();
    let fetched = number(&report, "/bytes_fetched");
    assert!(fetched < 100_000, "{fetched} bytes for one block");
    let run = Run::new(["verify", &site.server.url("/b"), "--target"]).arg(&target);
    run.args(["--bundle-hash", &format!("sha256:{}", "00".repeat(32))])
        .run()
        .expect_exit(4);
    let run = Run::new(["verify", &site.server.url("/b"), "--target"]).arg(&target);
    run.run().expect_exit(2).expect_stderr("trusted");
    // For people, on standard error.
    let outcome = site.command("verify", &target).run();
    outcome.expect_stderr("differs in 1 of");
    assert!(outcome.stdout.is_empty());
}

// ---- the block index of what was installed -----------------------------------------------------

#[test]
fn the_index_of_what_was_installed_is_stored_and_of_use() {
    let old = mixed_image(900_000, 6);
    let new = edit(&old, 6);
    for (chunker, preset) in [("fixed-4", None), ("casync-8", None), ("casync-8", Some(0))] {
        let payload = |image: &[u8]| {
            let payload = Payload::slot("system", image).chunker(chunker).dedup();
            match preset {
                Some(preset) => payload.xz(preset),
                None => payload,
            }
        };
        let site = Site::of(payload(&old));
        let index = site.path("index");
        let write = ["--write-index".into(), index.clone().into_os_string()];
        site.install().args(write.clone()).run().expect_exit(0);
        let expected = block_index(&old, chunker, Hash::Sha512_256);
        assert_file(&index, &expected);
        // Also when there is nothing to do, in place of another one.
        fs::write(&index, b"old").unwrap();
        site.install().args(write).run().expect_exit(0);
        assert_eq!(text(&site.report(), "/result"), "current");
        assert_file(&index, &expected);
        let names = fs::read_dir(site.folder.path()).unwrap();
        assert_eq!(names.count(), 3, "a temporary file is left");

        let next = Site::of(payload(&new));
        let seed = format!("{}={}", site.path("target").display(), index.display());
        let outcome = next.install().args(["--seed", &seed]).run();
        outcome.expect_exit(0);
        outcome.expect(!outcome.stderr.contains("warning"), "expected no warning");
        assert_file(next.path("target"), &new);
        assert!(number(&next.report(), "/blocks/seeded") > 0);
    }
}

/// Else a run would end well and leave a report, say, in place of what it installed.
#[test]
fn what_is_written_beside_never_replaces_what_is_in_use() {
    let site = Site::of(Payload::slot("system", mixed_image(90_000, 7)));
    let files = ["target", "seed", "seed-index", "bundle"];
    let write_all = || files.map(|name| site.file(name, &site.made.bytes));
    write_all();
    symlink("target", site.path("link")).unwrap();
    let shown = |name: &str| site.path(name).display().to_string();
    let install = |command: &str, option: &str, name: &str, target: &str| {
        let seed = format!("{}={}", shown("seed"), shown("seed-index"));
        Run::new([command, &shown("bundle"), "--target", &shown(target)])
            .args(["--bundle-hash", &site.made.bundle_hash])
            .args(if command == "verify" {
                vec![]
            } else {
                vec!["--seed".to_owned(), seed]
            })
            .args([option, &shown(name)])
    };
    for (command, option, others) in [
        ("install", "--report", &["seed", "seed-index", "bundle"][..]),
        ("install", "--log", &["seed", "seed-index", "bundle"]),
        ("install", "--write-index", &["seed", "bundle"]),
        ("plan", "--log", &["seed", "seed-index", "bundle"]),
        ("verify", "--log", &["bundle"]),
    ] {
        let own = others.iter().map(|name| (*name, "target"));
        for (name, target) in own.chain([("target", "target"), ("link", "target"), ("new", "new")])
        {
            let outcome = install(command, option, name, target).run();
            let refused = format!("{option} {} would be written over the", shown(name));
            outcome.expect_exit(2).expect_stderr(&refused);
            for file in files {
                assert_file(site.path(file), &site.made.bytes);
            }
            assert!(!site.path("new").exists());
        }
    }
    let inspect = Run::new(["inspect", &shown("bundle"), "--log", &shown("bundle")]);
    inspect.run().expect_exit(2);
    assert_file(site.path("bundle"), &site.made.bytes);
    // What a seed's index said is known by the time it is replaced.
    let renewed = install("install", "--write-index", "seed-index", "target");
    renewed.run().expect_exit(0);
}

#[test]
fn any_number_of_seeds_leaves_files_for_connections() {
    let site = Site::of(Payload::slot("system", mixed_image(2_000_000, 7)));
    let seed = site.file("seed", &random_image(10_000, 8));
    let mut run = Command::new("sh");
    run.args([
        "-c",
        "ulimit -n 50; exec \"$@\"",
        "sh",
        env!("CARGO_BIN_EXE_reflash"),
    ]);
    run.args([
        "install",
        &site.server.url("/b"),
        "--bundle-hash",
        &site.made.bundle_hash,
    ]);
    run.arg("--target").arg(site.path("target"));
    for _ in 0..100 {
        run.arg("--seed").arg(&seed);
    }
    let output = run.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("left out") && !said.contains("connection fewer"),
        "{said}"
    );
    assert_file(site.path("target"), site.image());
}

#[test]
fn pipes_that_nobody_reads_are_not_waited_for() {
    let site = Site::of(Payload::slot("system", mixed_image(90_000, 7)));
    let pipe = site.path("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let run = |option: &str| site.install().args([option.as_ref(), pipe.as_os_str()]);
    run("--log")
        .run()
        .expect_exit(2)
        .expect_stderr("nobody reads");
    run("--write-index").run().expect_exit(2);
    let reported = site.command("install", &site.path("target"));
    let reported = reported.args(["--report".as_ref(), pipe.as_os_str()]).run();
    reported.expect_exit(0).expect_stderr("nobody reads");
    // One that is read gets it whole.
    let reader = Command::new("cat")
        .arg(&pipe)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let current = site.command("install", &site.path("target"));
    current
        .args(["--report".as_ref(), pipe.as_os_str()])
        .run()
        .expect_exit(0);
    let read = reader.wait_with_output().unwrap().stdout;
    let report: Value = serde_json::from_slice(&read).unwrap();
    assert_eq!(text(&report, "/result"), "current");
}

#[test]
fn an_index_that_cannot_be_stored_is_refused_at_once() {
    let site = Site::of(Payload::slot("system", mixed_image(90_000, 7)));
    for path in [site.path("none/index"), site.folder.path().to_owned()] {
        let run = site
            .install()
            .args(["--write-index".as_ref(), path.as_os_str()]);
        run.run().expect_exit(2).expect_stderr("cannot write");
    }
    assert!(site.server.requests().is_empty());
    let slots = Site::new(
        &Bundle::of(Payload::slot("a", &b"1"[..])).payload(Payload::slot("b", &b"2"[..])),
    );
    let named = |name: &str| format!("{name}={}", slots.path(name).display());
    let run = |index: String| {
        Run::new(["install", &slots.server.url("/b")])
            .args(["--bundle-hash", &slots.made.bundle_hash])
            .args(["--slot", &named("a"), "--slot", &named("b")])
            .args(["--write-index", &index])
            .run()
    };
    run(named("c"))
        .expect_exit(2)
        .expect_stderr("no such --slot");
    let index = slots.path("index");
    run(format!("b={}", index.display())).expect_exit(0);
    assert_file(index, &block_index(b"2", "fixed-4", Hash::Sha512_256));
}

// ---- discard -----------------------------------------------------------------------------------

#[test]
fn discarding_never_stands_for_zeros_and_never_costs_what_is_of_use() {
    let folder = temp_dir();
    let image = [
        &random_image(300_000, 8)[..],
        &zeros(500_000),
        &random_image(200_000, 9),
    ]
    .concat();
    let made = Bundle::of(Payload::slot("system", &image[..]).dedup()).make();
    let bundle = folder.path().join("bundle");
    fs::write(&bundle, &made.bytes).unwrap();
    let mut install = Install::new(&made, &bundle);
    install.set(|options| options.discard(true));
    // Other content, and no zeros: all is discarded, and the medium gives something else for it.
    let disk = Disk::new(random_image(1_200_000, 10));
    let report = install.installs(&disk, "other content");
    assert_eq!(report.blocks.kept, 0);
    // Mostly right: nothing is.
    let mut damaged = disk.bytes();
    damaged[150_000..160_000].fill(7);
    let report = install.installs(&Disk::new(damaged), "mostly right");
    assert!(
        report.blocks.kept > 200 && report.blocks.fetched <= 4,
        "{:?}",
        report.blocks
    );
}

// ---- other options and refusals ------------------------------------------------------------------

#[test]
fn without_the_target_as_a_seed_all_is_written() {
    let site = Site::of(
        Payload::slot("system", mixed_image(600_000, 11))
            .chunker("casync-8")
            .dedup(),
    );
    site.file("target", site.image());
    site.install().arg("--no-target-seed").run().expect_exit(0);
    let report = site.report();
    assert_eq!(text(&report, "/result"), "installed");
    assert_eq!(number(&report, "/blocks/kept"), 0);
    assert_eq!(number(&report, "/bytes/written"), site.image().len() as u64);
    assert_file(site.path("target"), site.image());
}

// A row of README.md.
#[test]
fn a_file_that_is_longer_than_the_image_is_cut() {
    let site = Site::of(Payload::slot("system", mixed_image(300_000, 12)));
    site.file("target", &[site.image(), b"surplus"].concat());
    site.install().run().expect_exit(0);
    assert_file(site.path("target"), site.image());
    let report = site.report();
    assert_eq!(number(&report, "/blocks/fetched"), 0);
    assert_eq!(report["target_touched"], true);
}

// A row of README.md.
#[test]
fn a_seed_that_is_the_target_is_refused_by_whatever_name() {
    let site = Site::of(Payload::slot("system", mixed_image(90_000, 13)));
    let target = site.file("target", b"old");
    symlink(&target, site.path("link")).unwrap();
    fs::hard_link(&target, site.path("hard")).unwrap();
    for name in ["target", "link", "hard"] {
        let seed = site.path(name);
        let run = site.install().args(["--seed".as_ref(), seed.as_os_str()]);
        run.run().expect_exit(2).expect_stderr("is the target");
    }
    assert_file(target, b"old");
    assert!(site.server.requests().is_empty());
}

// A row of README.md.
#[test]
fn messages_name_a_link_and_where_it_leads() {
    let site = Site::of(Payload::slot("system", mixed_image(90_000, 14)));
    let folder = site.path("folder");
    fs::create_dir(&folder).unwrap();
    symlink(&folder, site.path("first")).unwrap();
    symlink("first", site.path("target")).unwrap();
    let outcome = site.install().run();
    let folder = folder.canonicalize().unwrap();
    outcome
        .expect_exit(5)
        .expect_stderr("target (")
        .expect_stderr(&folder.display().to_string())
        .expect_stderr("directory");
}

// A row of README.md.
#[test]
fn two_installs_to_one_file_exclude_each_other() {
    let site = Site::of(Payload::slot("system", random_image(900_000, 15)));
    site.file("target", b"old");
    let mut first = site.install().args(["--limit-rate", "100k"]).spawn();
    let start = std::time::Instant::now();
    while site.server.requests().is_empty() {
        assert!(start.elapsed().as_secs() < 20);
        std::thread::yield_now();
    }
    let second = site.command("install", &site.path("target")).run();
    // Under an emulator the program has another name.
    second
        .expect_exit(5)
        .expect_stderr("it is locked by ")
        .expect_stderr(&format!("(process {})", first.id()));
    first.kill();
    first.finish();
    site.install().run().expect_exit(0);
    assert_file(site.path("target"), site.image());
}

/// Seeds that change, end early or cannot be read while they are used.
// A row of README.md.
#[test]
fn seeds_that_change_or_shrink_meanwhile_cost_a_download() {
    let image = random_image(4 << 20, 16);
    let site = Site::of(Payload::slot("system", &image[..]).chunker("fixed-16"));
    let mut random = Random::new(17);
    for round in 0..4 {
        let mut seed = image.clone();
        // The first pages have to be fetched, slowly.
        seed[..400_000].fill(7);
        let path = site.file("seed", &seed);
        drop(fs::remove_file(site.path("target")));
        let index = site.file("index", &block_index(&image, "fixed-16", Hash::Sha512_256));
        let named = format!("{}={}", path.display(), index.display());
        let args = ["--seed", &named, "--limit-rate", "3M"];
        let run = site.install().args(args).spawn();
        while !site.path("target").exists() {
            std::thread::yield_now();
        }
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        match round % 2 {
            0 => file.set_len(1 + random.below(3 << 20) as u64).unwrap(),
            _ => fs::write(&path, random.bytes(4 << 20)).unwrap(),
        }
        run.finish().expect_exit(0);
        assert_file(site.path("target"), &image);
    }
}
