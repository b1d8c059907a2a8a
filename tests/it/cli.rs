//! What users and scripts see: exit codes, messages, help, the environment, the report and the
//! progress lines.

use std::ffi::OsString;
use std::fs;
use std::net::TcpListener;
use std::os::unix::ffi::OsStringExt;

use serde_json::Value;

use crate::make_bundle::{edit, mixed_image, random_image, text_image, Bundle, Damage, Payload};
use crate::server::{Fault, When};
use crate::site::Site;
use crate::util::{assert_file, number, reflash, temp_dir, text, Outcome, Run};

const SKIP_TRUST: &str = "--insecure-skip-bundle-verification";

/// Every option of `install`.
const OPTIONS: [&str; 37] = [
    "--target",
    "--slot",
    "--seed",
    "--no-target-seed",
    "--bundle-hash",
    "--root-cert",
    "--time-floor",
    SKIP_TRUST,
    "--insecure-allow-missing-block-index",
    "--workers",
    "--memory",
    "--http-max-retries",
    "--http-retry-initial-backoff",
    "--http-retry-max-backoff",
    "--stall-timeout",
    "--connect-timeout",
    "--limit-rate",
    "--cacert",
    "--cert",
    "--key",
    "--header",
    "--proxy",
    "--resolve",
    "--disable-range-queries",
    "--full-download",
    "--max-download",
    "--verify",
    "--write-index",
    "--discard",
    "--force",
    "--no-hold-back",
    "--no-merge",
    "--progress",
    "--report",
    "--log",
    "--verbose",
    "--quiet",
];

impl Site {
    fn usual() -> Self {
        let image = mixed_image(900_000, 1);
        let payload = Payload::slot("system", image).chunker("casync-8").dedup();
        Self::new(&Bundle::of(payload))
    }

    fn shown(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// An install of the bundle at this URL.
    fn usual_run_of(&self, url: &str) -> Run {
        Run::new(["install", url, "--target", &self.shown("target")])
            .args(["--bundle-hash", &self.made.bundle_hash])
            .args(["--http-max-retries", "1"])
            .args(["--http-retry-initial-backoff", "0"])
    }

    fn usual_run(&self) -> Run {
        self.usual_run_of(&self.server.url("/b"))
    }

    fn reporting(&self) -> Run {
        self.usual_run().args(["--report", &self.shown("report")])
    }
}

// ---- usage -----------------------------------------------------------------------------------

#[test]
fn usage_errors_exit_2_and_say_what_to_do() {
    let usual = ["install", "b", "--target", "t"];
    let with = |more: &[&'static str]| [&usual[..], more].concat();
    for (words, reason) in [
        (vec![], "hint: "),
        (vec!["install"], "bundle"),
        (vec!["frobnicate"], "frobnicate"),
        (vec!["install", "b", SKIP_TRUST], "--target"),
        (with(&[]), "--bundle-hash"),
        (with(&[SKIP_TRUST, "--no-such-option"]), "--no-such-option"),
        (with(&[SKIP_TRUST, "--no-such-option"]), "hint: "),
        (with(&[SKIP_TRUST, "more"]), "more"),
        (with(&[SKIP_TRUST, "--slot", "a=b"]), "not both"),
        (with(&["--bundle-hash", "sha256:00"]), "sha256:00"),
        (with(&["--bundle-hash", "md5:00"]), "md5:00"),
        (with(&[SKIP_TRUST, "--workers", "0"]), "--workers"),
        (with(&[SKIP_TRUST, "--workers", "many"]), "workers"),
        (with(&[SKIP_TRUST, "--memory", "1K"]), "--memory"),
        (with(&[SKIP_TRUST, "--memory"]), "memory"),
        (
            with(&[SKIP_TRUST, "--full-download", "maybe"]),
            "full-download",
        ),
        (with(&[SKIP_TRUST, "--stall-timeout", "soon"]), "soon"),
        (with(&[SKIP_TRUST, "--progress", "loud"]), "progress"),
        (with(&[SKIP_TRUST, "--force=yes"]), "takes no value"),
    ] {
        let folder = temp_dir();
        let outcome = Run::new(words).dir(folder.path()).run();
        outcome
            .expect_exit(2)
            .expect_stderr("reflash: ")
            .expect_stderr(reason);
        outcome.expect(outcome.stdout.is_empty(), "standard output is for machines");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

#[test]
fn arguments_that_are_no_text_exit_2() {
    let odd = OsString::from_vec(vec![b'b', 0xff]);
    let outcome = Run::new(["install"])
        .arg(odd)
        .args(["--target", "t", SKIP_TRUST]);
    outcome.run().expect_exit(2).expect_stderr("UTF-8");
}

#[test]
fn slots_that_do_not_fit_the_bundle_exit_2_and_change_nothing() {
    let image = random_image(30_000, 2);
    let payload = |slot| Payload::slot(slot, &image[..]);
    let site = Site::new(&Bundle::of(payload("boot")).payload(payload("system")));
    let slot = |name: &str| ["--slot".to_owned(), format!("{name}={}", site.shown(name))];
    let run = |slots: &[&str]| {
        let hash = ["--bundle-hash", &site.made.bundle_hash];
        let url = site.server.url("/b");
        let run = Run::new(["install", &url]).args(hash);
        let run = slots.iter().fold(run, |run, name| run.args(slot(name)));
        run.run()
    };
    for name in ["boot", "system", "other"] {
        fs::write(site.path(name), b"old").unwrap();
    }
    run(&["boot"])
        .expect_exit(2)
        .expect_stderr("\"system\"")
        .expect_stderr("--slot system=PATH");
    run(&["boot", "system", "other"])
        .expect_exit(2)
        .expect_stderr("\"other\"");
    run(&["boot", "boot"]).expect_exit(2).expect_stderr("twice");
    site.usual_run()
        .run()
        .expect_exit(2)
        .expect_stderr("--slot NAME=PATH");
    for name in ["boot", "system", "other"] {
        assert_file(site.path(name), b"old");
    }
    assert!(!site.path("target").exists());
    run(&["system", "boot"]).expect_exit(0);
}

#[test]
fn the_version_is_that_of_the_package() {
    for option in ["--version", "-V"] {
        let outcome = reflash([option]);
        outcome.expect_exit(0);
        let expected = format!("reflash {}\n", env!("CARGO_PKG_VERSION"));
        outcome.expect(outcome.stdout == expected, "expected the version alone");
        outcome.expect(outcome.stderr.is_empty(), "and nothing else");
    }
}

#[test]
fn help_is_on_standard_output_and_tells_the_exit_codes() {
    for option in ["--help", "-h"] {
        let outcome = reflash([option]);
        outcome.expect_exit(0).expect_stdout("install");
        for code in ["0", "1", "2", "3", "4", "5"] {
            let line = outcome.stdout.lines().map(str::trim_start);
            let mut lines = line.filter(|line| line.starts_with(code));
            outcome.expect(lines.next().is_some(), "expected all exit codes");
        }
        outcome.expect_stdout("REFLASH_BUNDLE_HASH");
        outcome.expect(outcome.stderr.is_empty(), "expected nothing else");
    }
}

#[test]
fn every_option_is_in_the_help() {
    let help = reflash(["install", "--help"]);
    help.expect_exit(0);
    for option in OPTIONS {
        let listed = |word: &str| word.trim_matches([',', '[', ']']) == option;
        let found = help.stdout.split_whitespace().any(listed);
        help.expect(found, &format!("there is no {option}"));
    }
    // The other way round: what is in the help is in the list above.
    for word in help.stdout.split_whitespace() {
        let word = word.trim_matches([',', '[', ']', '.', ';', ':']);
        if word.starts_with("--") && word.len() > 2 && word != "--help" {
            let known = OPTIONS.contains(&word);
            help.expect(known, &format!("{word} is not in the list of options"));
        }
    }
}

#[cfg(not(feature = "signatures"))]
#[test]
fn a_build_without_signatures_says_so() {
    let usual = ["install", "b", "--target", "t", "--root-cert", "r"];
    let outcome = reflash(usual);
    outcome
        .expect_exit(2)
        .expect_stderr("this build of reflash checks no signatures");
}

// ---- environment -----------------------------------------------------------------------------

#[test]
fn options_can_come_from_the_environment() {
    let site = Site::usual();
    let url = site.server.url("/b");
    let run = Run::new(["install", &url])
        .env("REFLASH_TARGET", site.path("target"))
        .env("REFLASH_BUNDLE_HASH", &site.made.bundle_hash)
        .env("REFLASH_WORKERS", "1")
        .env("REFLASH_REPORT", site.path("report"))
        .env("REFLASH_SEED", format!("{}\n", site.shown("none")))
        .env("REFLASH_DISABLE_RANGE_QUERIES", "true")
        .env("REFLASH_PROGRESS", "json");
    let outcome = run.run();
    outcome.expect_exit(0).expect_stderr("none is left out");
    assert_file(site.path("target"), &site.made.payloads[0].image);
    assert!(site.server.ranges().is_empty());
    assert_eq!(site.report()["result"], "installed");
    assert!(!outcome.json_lines().is_empty());
}

#[test]
fn the_command_line_is_stronger_than_the_environment() {
    let site = Site::usual();
    let run = site.usual_run().env("REFLASH_TARGET", site.path("other"));
    run.env("REFLASH_BUNDLE_HASH", "nonsense")
        .env("REFLASH_WORKERS", "0")
        .args(["--workers", "2"])
        .run()
        .expect_exit(0);
    assert!(!site.path("other").exists());
    let run = site.usual_run().env("REFLASH_WORKERS", "0").run();
    run.expect_exit(2).expect_stderr("--workers");
    let run = site.usual_run().env("REFLASH_FORCE", "perhaps").run();
    run.expect_exit(2).expect_stderr("REFLASH_FORCE");
}

// ---- exit codes and messages -----------------------------------------------------------------

/// One line that names the program and the operand, maybe more lines with what to do.
#[track_caller]
fn expect_message(outcome: &Outcome, code: i32, parts: &[&str]) {
    outcome.expect_exit(code);
    let mut lines = outcome.stderr.lines();
    let line = lines.find(|line| line.starts_with("reflash: "));
    let Some(line) = line else {
        outcome.fail("expected a line that begins with the program's name")
    };
    for part in parts {
        outcome.expect(
            line.contains(part),
            &format!("expected {part:?} in {line:?}"),
        );
    }
    outcome.expect(!line.ends_with('.'), "a message is no sentence");
}

#[test]
fn a_network_failure_exits_3() {
    let site = Site::usual();
    site.server
        .fault(When::Always, Fault::Status(503, Vec::new()));
    let outcome = site.reporting().run();
    expect_message(&outcome, 3, &["/b", "2 tries", "503"]);
    outcome.expect_stderr("hint: ");
    assert!(!site.path("target").exists());
    assert_eq!(number(&site.report(), "/http/retries"), 1);
    assert_eq!(site.server.requests().len(), 2);

    // Nobody listens there.
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}/b", listener.local_addr().unwrap())
    };
    expect_message(&site.usual_run_of(&url).run(), 3, &["/b", "2 tries"]);
}

#[test]
fn a_bad_bundle_exits_4() {
    let site = Site::usual();
    for (status, text) in [(401, "401"), (403, "403"), (404, "404"), (410, "410")] {
        site.server.clear_rules();
        site.server
            .fault(When::Always, Fault::Status(status, Vec::new()));
        site.server.reset_log();
        expect_message(&site.usual_run().run(), 4, &["/b", text]);
        assert_eq!(site.server.requests().len(), 1, "no use in asking again");
    }
    site.server.clear_rules();
    site.server.set_file("/b", &b"<html>It works!</html>"[..]);
    expect_message(&site.usual_run().run(), 4, &["no Rugix bundle"]);
    site.server.set_file("/b", &b""[..]);
    site.usual_run().run().expect_exit(4);
    assert!(!site.path("target").exists());
}

#[test]
fn a_bad_target_exits_5() {
    let site = Site::usual();
    fs::create_dir(site.path("target")).unwrap();
    let outcome = site.reporting().run();
    expect_message(&outcome, 5, &["target", "it is a directory"]);
    assert_eq!(number(&site.report(), "/exit"), 5);
}

#[test]
fn a_report_that_cannot_be_written_is_noticed_before_anything_else() {
    let site = Site::usual();
    let outcome = site
        .usual_run()
        .args(["--report", &site.shown("none/report")])
        .run();
    expect_message(&outcome, 2, &["none/report"]);
    assert!(!site.path("target").exists());
}

// ---- report ----------------------------------------------------------------------------------

fn is_digest(value: &Value) -> bool {
    let digest = value.as_str().and_then(|text| text.split_once(':'));
    digest.is_some_and(|(algorithm, hex)| {
        ["sha256", "sha512", "sha512-256"].contains(&algorithm)
            && hex.len() >= 64
            && hex.bytes().all(|b| b.is_ascii_hexdigit())
    })
}

/// Schema 1: these fields, of these types, in this order, and no other.
#[track_caller]
fn check_schema(report: &Value) {
    let names = |value: &Value| -> Vec<String> {
        let object = value.as_object().unwrap_or_else(|| panic!("{value:#}"));
        let mut names: Vec<_> = object.keys().cloned().collect();
        names.sort();
        names
    };
    let expect = |value: &Value, expected: &[&str]| {
        let mut expected: Vec<_> = expected.iter().map(|&name| name.to_owned()).collect();
        expected.sort();
        assert_eq!(names(value), expected, "{report:#}");
    };
    expect(
        report,
        &[
            "schema",
            "result",
            "exit",
            "error",
            "bundle",
            "payloads",
            "blocks",
            "bytes",
            "http",
            "seconds",
            "peak_memory",
            "target_touched",
        ],
    );
    assert_eq!(report["schema"], 1);
    let failed = match text(report, "/result") {
        "installed" | "current" => false,
        "failed" => true,
        other => panic!("{other}"),
    };
    assert_eq!(number(report, "/exit") != 0, failed);
    assert_eq!(report["error"].is_string(), failed, "{report:#}");
    assert_eq!(report["error"].is_null(), !failed, "{report:#}");
    expect(&report["bundle"], &["hash", "size"]);
    let hash = &report["bundle"]["hash"];
    assert!(is_digest(hash) || failed && hash.is_null(), "{report:#}");
    let size = &report["bundle"]["size"];
    assert!(size.is_u64() || size.is_null(), "{report:#}");
    for payload in report["payloads"].as_array().unwrap() {
        expect(payload, &["slot", "target", "size", "digest"]);
        assert!(payload["slot"].is_string() && payload["target"].is_string());
        assert!(payload["size"].is_u64() && is_digest(&payload["digest"]));
    }
    for (group, fields) in [
        (
            "blocks",
            &["total", "fetched", "seeded", "kept", "copied"][..],
        ),
        (
            "bytes",
            &["target", "fetched", "index", "seeded", "kept", "written"],
        ),
        ("http", &["requests", "connections", "retries"]),
    ] {
        expect(&report[group], fields);
        for field in fields {
            assert!(report[group][field].is_u64(), "{group}.{field}: {report:#}");
        }
    }
    let seconds = &["open", "seed", "install", "sync", "total"];
    expect(&report["seconds"], seconds);
    for field in seconds {
        let value = report["seconds"][field].as_f64().unwrap();
        assert!((0.0..60.0).contains(&value), "{field}: {report:#}");
    }
    let parts: f64 = seconds[..4]
        .iter()
        .map(|field| report["seconds"][field].as_f64().unwrap())
        .sum();
    let total = report["seconds"]["total"].as_f64().unwrap();
    assert!(parts <= total + 0.001, "{report:#}");
    assert!(report["peak_memory"].is_u64() || report["peak_memory"].is_null());
    assert!(report["target_touched"].is_boolean());
}

#[test]
fn the_report_of_a_success_is_complete() {
    let site = Site::usual();
    let outcome = site.reporting().run();
    outcome.expect_exit(0);
    let report = site.report();
    check_schema(&report);
    assert_eq!(report["result"], "installed");
    assert_eq!(report["bundle"]["hash"], site.made.bundle_hash);
    let payload = &site.made.payloads[0];
    assert_eq!(report["payloads"][0]["digest"], payload.digest);
    assert_eq!(report["payloads"][0]["target"], site.shown("target"));
    assert_eq!(report["target_touched"], true);
    assert!(number(&report, "/bytes/index") >= payload.header.end - payload.header.start);
    assert!(number(&report, "/bytes/index") <= payload.data.start);
    // A summary for people.
    outcome.expect_stderr("blocks").expect_stderr("requests");
}

#[test]
fn the_report_of_a_failure_is_complete() {
    // Before anything is known, before anything is written, in the middle, at the end.
    let early = Site::usual();
    early
        .server
        .fault(When::Always, Fault::Status(404, Vec::new()));
    let image = random_image(400_000, 3);
    let payload = || Payload::slot("system", &image[..]).chunker("fixed-4");
    let wrong_header = Site::new(&Bundle::of(payload().wrong_header_hash([1; 32])));
    let wrong_block = Site::new(&Bundle::of(payload().damage(50, Damage::Flip(1))));
    let wrong_payload = Site::new(&Bundle::of(payload().wrong_payload_hash([1; 32])));
    for (site, touched) in [
        (early, false),
        (wrong_header, false),
        (wrong_block, true),
        (wrong_payload, true),
    ] {
        let outcome = site.reporting().run();
        outcome.expect_exit(4);
        let report = site.report();
        check_schema(&report);
        assert_eq!(report["result"], "failed");
        assert_eq!(report["exit"], 4);
        assert_eq!(report["target_touched"], touched, "{report:#}");
        let error = text(&report, "/error");
        outcome.expect_stderr(&format!("reflash: {error}"));
        let incomplete = outcome.stderr.contains("the target is incomplete");
        outcome.expect(incomplete == touched, "the state of the target");
    }
}

// ---- progress --------------------------------------------------------------------------------

/// What must hold of all progress lines; returns the last.
#[track_caller]
fn check_progress(outcome: &Outcome) -> Value {
    let lines = outcome.json_lines();
    let name = |line: &Value| text(line, "/event").to_owned();
    assert_eq!(name(&lines[0]), "start");
    assert_eq!(lines[0]["schema"], 1);
    assert_eq!(lines[0]["version"], env!("CARGO_PKG_VERSION"));
    assert!(lines[0]["bundle"].is_string());
    let last = lines.last().unwrap();
    let succeeded = outcome.code() == Some(0);
    let expected = if succeeded { "done" } else { "failed" };
    assert_eq!(name(last), expected);
    check_schema(&last["report"]);
    assert_eq!(last["report"]["exit"], outcome.code().unwrap());

    let order = ["open", "seed", "plan", "install", "sync", "verify"];
    let (mut percent, mut phase) = (0.0, None);
    let middle = &lines[1..lines.len() - 1];
    for (i, line) in middle.iter().enumerate() {
        match name(line).as_str() {
            "phase" => {
                phase = Some(text(line, "/phase").to_owned());
                assert!(order.contains(&text(line, "/phase")), "{line}");
                assert_eq!(line.as_object().unwrap().len(), 2, "{line}");
            }
            "progress" => {
                assert_eq!(line["phase"].as_str(), phase.as_deref(), "{line}");
                let now = line["percent"].as_f64().unwrap();
                assert!(now >= percent, "fell from {percent}: {line}");
                percent = now;
                let is_last = i + 1 == middle.len();
                let full = succeeded && is_last;
                assert_eq!(now >= 100.0, full, "{line}");
                for field in [
                    "blocks",
                    "blocks_total",
                    "bytes_fetched",
                    "bytes_to_fetch",
                    "bytes_written",
                    "bytes_per_second",
                    "retries",
                ] {
                    assert!(line[field].is_u64(), "{field}: {line}");
                }
                assert_eq!(line.as_object().unwrap().len(), 10, "{line}");
                let done = number(line, "/blocks") <= number(line, "/blocks_total");
                assert!(done, "{line}");
            }
            "warning" => assert!(line["message"].is_string()),
            other => panic!("{other}"),
        }
    }
    if succeeded {
        assert!(percent >= 100.0, "{percent}");
    }
    last.clone()
}

fn phases(outcome: &Outcome) -> Vec<String> {
    let lines = outcome.json_lines();
    let phases = lines.iter().filter(|line| line["event"] == "phase");
    phases.map(|line| text(line, "/phase").to_owned()).collect()
}

#[test]
fn progress_in_json_tells_the_whole_run() {
    let site = Site::usual();
    let run = || site.reporting().args(["--progress", "json"]);
    let outcome = run().run();
    outcome.expect_exit(0);
    let last = check_progress(&outcome);
    assert_eq!(last["report"], site.report());
    assert_eq!(
        phases(&outcome),
        ["open", "seed", "plan", "install", "sync"]
    );
    outcome.expect(outcome.stderr.is_empty(), "nothing for people");

    let outcome = run().args(["--seed", &site.shown("none")]).run();
    check_progress(&outcome);
    outcome.expect_stdout("\"event\":\"warning\"");
    outcome.expect_stderr("warning: ");
}

#[test]
fn progress_in_json_of_several_payloads_never_falls() {
    let old = mixed_image(400_000, 4);
    let payload = |slot, image: Vec<u8>| Payload::slot(slot, image).chunker("casync-1").dedup();
    let site = Site::new(
        &Bundle::of(payload("a", edit(&old, 1)))
            .payload(payload("b", text_image(3000, 5)))
            .payload(Payload::slot("c", Vec::new()))
            .payload(payload("d", edit(&old, 2))),
    );
    fs::write(site.path("old"), &old).unwrap();
    let url = site.server.url("/b");
    let mut run = Run::new(["install", &url, "--bundle-hash", &site.made.bundle_hash]).args([
        "--progress",
        "json",
        "--seed",
        &site.shown("old"),
    ]);
    for slot in ["a", "b", "c", "d"] {
        run = run.args(["--slot", &format!("{slot}={}", site.shown(slot))]);
    }
    let outcome = run.run();
    outcome.expect_exit(0);
    let last = check_progress(&outcome);
    assert_eq!(last["report"]["payloads"].as_array().unwrap().len(), 4);
}

#[test]
fn progress_in_json_of_a_failure_ends_below_100() {
    let image = random_image(300_000, 6);
    let payload = || Payload::slot("system", &image[..]).chunker("fixed-4");
    for payload in [
        payload().damage(73, Damage::Flip(0)),
        payload().wrong_payload_hash([0; 32]),
        payload().wrong_header_hash([0; 32]),
    ] {
        let site = Site::new(&Bundle::of(payload));
        let outcome = site.usual_run().args(["--progress", "json"]).run();
        outcome.expect_exit(4);
        check_progress(&outcome);
        outcome.expect_stderr("reflash: ");
    }
    let site = Site::usual();
    fs::create_dir(site.path("target")).unwrap();
    let outcome = site.usual_run().args(["--progress", "json"]).run();
    outcome.expect_exit(5);
    check_progress(&outcome);
}

#[test]
fn nothing_is_said_when_nothing_is_wanted() {
    let site = Site::usual();
    for quiet in [&["--progress", "none"][..], &["-q"], &["--quiet"]] {
        let outcome = site.usual_run().args(quiet).run();
        outcome.expect_exit(0);
        outcome.expect(outcome.stdout.is_empty(), "expected no output");
        outcome.expect(outcome.stderr.is_empty(), "expected no messages");
    }
    // Errors are said all the same.
    site.server.remove_file("/b");
    let outcome = site.usual_run().arg("-q").run();
    outcome.expect_exit(4).expect_stderr("reflash: ");
}

#[test]
fn standard_output_is_for_machines() {
    let site = Site::usual();
    for mode in ["auto", "bar", "lines", "none"] {
        let outcome = site.usual_run().args(["--progress", mode, "-v"]).run();
        outcome.expect_exit(0);
        outcome.expect(outcome.stdout.is_empty(), "expected no output");
    }
    let lines = site.usual_run().args(["--progress", "lines"]).run();
    lines.expect_stderr(" % ");
    lines.expect(!lines.stderr.contains(['\r', '\x1b']), "no terminal here");
}

#[test]
fn verbose_says_more() {
    let site = Site::usual();
    let count = |options: &[&str]| {
        let outcome = site
            .usual_run()
            .args(["--progress", "none"])
            .args(options)
            .run();
        outcome.expect_exit(0);
        outcome.stderr.lines().count()
    };
    let (info, debug) = (count(&["-v"]), count(&["-vv"]));
    assert!(info > 0 && debug > info, "{info} {debug}");
    assert_eq!(count(&["-v", "-v"]), debug);
}

// ---- secrets ---------------------------------------------------------------------------------

#[test]
fn secrets_of_the_url_are_never_shown() {
    let site = Site::usual();
    let url = site.server.url("/b");
    let secret = url.replace("http://", "http://user:pass-secret@") + "?token=query-secret";
    let failures = [
        (None, 0),
        (Some(Fault::Status(404, Vec::new())), 4),
        (Some(Fault::Status(503, Vec::new())), 3),
        (Some(Fault::ResetBeforeHeaders), 3),
        (Some(Fault::IgnoreRange), 0),
        (
            Some(Fault::Redirect("/b?token=query-secret".to_owned(), 302)),
            4,
        ),
    ];
    for (fault, code) in failures {
        site.server.clear_rules();
        if let Some(fault) = fault {
            site.server.fault(When::Always, fault);
        }
        for mode in ["lines", "json"] {
            site.server.reset_log();
            let outcome = site
                .usual_run_of(&secret)
                .args(["-vv", "--progress", mode, "--report", &site.shown("report")])
                .run();
            outcome.expect_exit(code);
            let report = fs::read_to_string(site.path("report")).unwrap();
            for word in ["pass-secret", "query-secret", "user:"] {
                outcome.expect_not_in_output(word);
                assert!(!report.contains(word), "{report}");
            }
            let first = &site.server.requests()[0];
            // base64 of user:pass-secret
            assert_eq!(
                first.header("authorization"),
                Some("Basic dXNlcjpwYXNzLXNlY3JldA==")
            );
            assert_eq!(first.query.as_deref(), Some("token=query-secret"));
        }
    }
}
