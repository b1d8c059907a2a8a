//! `reflash plan`: what it promises is what `install` does; and it writes nothing.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::make_bundle::{
    edit_in_place, mixed_image, random_image, repeating_image, Bundle, Made, Payload,
};
use crate::server::{Fault, Server, When};
use crate::util::{assert_file, number, read_json, temp_dir, text, Run};

struct Site {
    folder: TempDir,
    server: Server,
    made: Made,
}

impl Site {
    fn new(bundle: &Bundle) -> Self {
        let made = bundle.make();
        let server = Server::start([("/b", made.bytes.clone())]);
        let folder = temp_dir();
        fs::write(folder.path().join("bundle"), &made.bytes).unwrap();
        Self {
            folder,
            server,
            made,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A subcommand about the bundle at this place, trusted by its hash.
    fn run(&self, subcommand: &str, bundle: &str, options: &[&str]) -> Run {
        Run::new([subcommand, bundle, "--bundle-hash", &self.made.bundle_hash])
            .args(options.iter().copied())
            .dir(self.folder.path())
    }

    /// All files and their contents.
    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let files = fs::read_dir(self.folder.path()).unwrap();
        let paths = files.map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = paths.map(|p| (p.clone(), fs::read(p).unwrap())).collect();
        files.sort();
        files
    }

    /// Plans, then installs, and compares what was promised with what was done.
    fn keeps_its_word(&self, bundle: &str, options: &[&str], what: &str) -> Value {
        let before = self.files();
        let plan = self.run("plan", bundle, options).arg("--json").run();
        plan.expect_exit(0);
        assert!(self.files() == before, "{what}: something was written");
        let plan = plan.json();
        assert_eq!(text(&plan, "/result"), "planned", "{what}");
        assert_eq!(plan["target_touched"], false, "{what}");
        self.server.reset_log();
        let install = self.run("install", bundle, options);
        install.args(["--report", "report"]).run().expect_exit(0);
        let report = read_json(self.path("report"));
        fs::remove_file(self.path("report")).unwrap();
        for pointer in [
            "/blocks/total",
            "/blocks/fetched",
            "/blocks/seeded",
            "/blocks/kept",
            "/blocks/copied",
            "/bytes/fetched",
            "/bytes/index",
            "/bytes/seeded",
            "/bytes/kept",
            "/http/requests",
        ] {
            let (promised, done) = (number(&plan, pointer), number(&report, pointer));
            assert_eq!(promised, done, "{what}: {pointer}\n{plan:#}\n{report:#}");
        }
        for pointer in ["/bundle", "/payloads/0/digest", "/payloads/0/target"] {
            assert_eq!(plan.pointer(pointer), report.pointer(pointer), "{what}");
        }
        for pointer in ["/bytes/written", "/payloads/0/size"] {
            assert!(number(&plan, pointer) <= number(&report, pointer), "{what}");
        }
        plan
    }

    fn url(&self) -> String {
        self.server.url("/b")
    }
}

/// Every span of the plan is a request of the install, and there are no others but for the headers.
fn assert_spans(site: &Site, plan: &Value, what: &str) {
    let mut asked = site.server.ranges();
    asked.sort_by_key(|range| range.start);
    for span in plan["spans"].as_array().unwrap() {
        let (start, end) = (number(span, "/start"), number(span, "/end"));
        // The first may begin with what came along with the headers.
        let found = asked.iter().position(|r| r.end == end && r.start >= start);
        let found = found.unwrap_or_else(|| panic!("{what}: {start}..{end} not in {asked:?}"));
        asked.remove(found);
    }
    let headers = number(plan, "/http/requests") as usize - plan["spans"].as_array().unwrap().len();
    assert_eq!(asked.len(), headers, "{what}: {asked:?}");
}

#[test]
fn what_is_promised_is_what_is_done() {
    let image = mixed_image(900_000, 7);
    let old = edit_in_place(&image, 3);
    let repeating = repeating_image(600_000, 4);
    type Target<'a> = Option<&'a [u8]>;
    let payload = |image: &[u8], chunker: &str| Payload::slot("system", image).chunker(chunker);
    for (what, payload, seed, target) in [
        ("fresh", payload(&image, "casync-8").dedup(), None, None),
        (
            "a seed",
            payload(&image, "casync-8").dedup(),
            Some(&old),
            None,
        ),
        (
            "xz",
            payload(&image, "casync-16").dedup().xz(1),
            Some(&old),
            None,
        ),
        (
            "fixed",
            payload(&image, "fixed-4").dedup(),
            Some(&old),
            None,
        ),
        ("in place", payload(&image, "fixed-8"), None, Some(&old[..])),
        (
            "in place, xz",
            payload(&image, "fixed-8").xz(1),
            None,
            Some(&old[..]),
        ),
        (
            "nothing to do",
            payload(&image, "casync-8"),
            None,
            Some(&image[..]),
        ),
        (
            "repeats",
            payload(&repeating, "casync-8").dedup(),
            None,
            None,
        ),
        ("stored repeats", payload(&repeating, "fixed-4"), None, None),
        ("empty", payload(b"", "fixed-4"), None, None),
    ]
        as [(&str, Payload, Option<&Vec<u8>>, Target<'_>); 10]
    {
        let site = Site::new(&Bundle::of(payload));
        let mut options = vec!["--target", "target"];
        if let Some(seed) = seed {
            fs::write(site.path("seed"), seed).unwrap();
            options.extend(["--seed", "seed"]);
        }
        if let Some(target) = target {
            fs::write(site.path("target"), target).unwrap();
        }
        let plan = site.keeps_its_word(&site.url(), &options, what);
        assert_spans(&site, &plan, what);
        assert_file(site.path("target"), &site.made.payloads[0].image);
        // And what is there now needs nothing.
        let again = site.keeps_its_word(&site.url(), &options, what);
        assert_eq!(number(&again, "/blocks/fetched"), 0, "{what}");
    }
}

#[test]
fn other_ways_to_the_bundle_are_planned_too() {
    let image = mixed_image(700_000, 9);
    let payload = || {
        Payload::slot("system", &image[..])
            .chunker("casync-8")
            .dedup()
    };
    let target = ["--target", "target"];
    // A file, and what is no more than one long stream.
    let site = Site::new(&Bundle::of(payload()));
    site.keeps_its_word("bundle", &target, "a file");
    fs::remove_file(site.path("target")).unwrap();
    let whole = [&target[..], &["--disable-range-queries"]].concat();
    let plan = site.keeps_its_word(&site.url(), &whole, "no ranges wanted");
    assert_eq!(
        number(&plan, "/bytes/fetched"),
        site.made.bytes.len() as u64
    );
    // A payload without an index.
    let site = Site::new(&Bundle::of(Payload::slot("system", &image[..]).plain()));
    let missing = [&target[..], &["--insecure-allow-missing-block-index"]].concat();
    site.keeps_its_word(&site.url(), &missing, "no index");
    // Several payloads, one of which is there.
    let second = random_image(200_000, 2);
    let bundle = Bundle::of(payload()).payload(Payload::slot("boot", &second[..]));
    let site = Site::new(&bundle);
    fs::write(site.path("b"), &second).unwrap();
    let slots = ["--slot", "system=a", "--slot", "boot=b"];
    let plan = site.keeps_its_word(&site.url(), &slots, "two slots");
    assert_spans(&site, &plan, "two slots");
    assert_eq!(text(&plan, "/payloads/1/slot"), "boot");
    let whole = [&slots[..], &["--disable-range-queries"]].concat();
    let refused = site.run("plan", &site.url(), &whole).run();
    refused.expect_exit(4).expect_stderr("without byte ranges");
}

#[test]
fn time_is_told_for_a_link() {
    let payload = Payload::slot("system", random_image(400_000, 5)).chunker("fixed-8");
    let site = Site::new(&Bundle::of(payload));
    let plan = |options: &[&str]| {
        let options = [&["--target", "target"], options].concat();
        site.run("plan", &site.url(), &options)
    };
    let told = plan(&["--limit-rate", "100k", "--rtt", "250ms", "--json"])
        .run()
        .json();
    let expected = 4.0 * 0.25 + number(&told, "/bytes/fetched") as f64 / 102_400.0;
    let seconds = told["expected"]["seconds"].as_f64().unwrap();
    assert!(
        (seconds - expected).abs() < 1e-6,
        "{seconds}, not {expected}"
    );
    assert_eq!(number(&told, "/expected/bytes_per_second"), 102_400);
    // Measured, and without a rate no time is told.
    let told = plan(&["--json"]).run().json();
    assert!(told["expected"]["round_trip"].as_f64().unwrap() < 5.0);
    assert_eq!(told["expected"]["seconds"], Value::Null);
    assert_eq!(told["expected"]["fits"], true);
    let table = plan(&["--limit-rate", "100k", "--memory", "8M"]).run();
    table.expect_exit(0).expect_stdout("nothing was written");
    for part in [
        "slot \"system\" to target",
        "49 fetched",
        "at 100.0 KiB/s",
        "8.0 MiB in flight",
    ] {
        table.expect_stdout(part);
    }
    assert!(!site.path("target").exists());
}

/// What an install would refuse, for the same reason and with the same exit.
#[test]
fn what_would_be_refused_is_refused() {
    let payload = Payload::slot("system", random_image(60_000, 5)).chunker("fixed-8");
    let site = Site::new(&Bundle::of(payload));
    fs::create_dir(site.path("folder")).unwrap();
    let url = site.url();
    for (options, exit, said) in [
        (&["--target", "folder"][..], 5, "folder"),
        (&["--target", "/dev/null"], 5, "character device"),
        (&["--slot", "boot=t"], 2, "\"boot\""),
        (
            &["--target", "t", "--max-download", "20k"],
            3,
            "--max-download",
        ),
        (&["--target", "t", "--rtt", "soon"], 2, "--rtt"),
        (&["--target", "t", "--worker", "4"], 2, "is it --workers?"),
    ] {
        let plan = site.run("plan", &url, options).run();
        plan.expect_exit(exit).expect_stderr(said);
        assert!(!site.path("t").exists());
    }
    site.server
        .fault(When::Always, Fault::Status(404, Vec::new()));
    let plan = site.run("plan", &url, &["--target", "t", "--json"]).run();
    plan.expect_exit(4).expect_stderr("404");
    assert_eq!(text(&plan.json(), "/result"), "failed");
}
