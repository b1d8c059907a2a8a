//! `make bench`: how close an install comes to a plain download of the same bytes, and how far it is
//! from an installer that asks for one block after the other. README.md says how to read it.
//!
//! ```text
//!   for each layout (layouts.rs)      make image, bundle, seed with index
//!     from a file                     what the work takes without a network
//!     for each round trip (lab.rs)    n × (plain download, install), then the baseline
//!   table on standard output; table, plot (plot.rs) and raw runs in the target folder
//! ```
//!
//! ```text
//! bench [--quick] [--link netem|line] [--only LAYOUT] [--round-trips MS,MS] [-- INSTALL OPTIONS]
//! ```

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use lab::{Kind, Lab, Served};
use layouts::{Layout, Scenario, BUNDLE, INDEX, LAYOUTS, SEED};

/// The bundle maker of the integration tests.
#[path = "../it"]
#[allow(
    clippy::cast_possible_truncation,
    clippy::let_underscore_must_use,
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "a toolbox of the tests, of which this needs little"
)]
mod it {
    pub mod make_bundle;
}
mod lab;
mod layouts;
mod plot;

/// How much is measured.
struct Extent {
    quick: bool,
    round_trips: Vec<u64>,
    runs: usize,
    /// A baseline expected to take longer is not run but estimated.
    longest_baseline: f64,
    /// Baselines of one cell are repeated for so long.
    baseline_time: f64,
}

impl Extent {
    fn new(quick: bool) -> Self {
        Self {
            quick,
            round_trips: if quick {
                vec![0, 40]
            } else {
                vec![0, 10, 40, 100]
            },
            runs: if quick { 3 } else { 5 },
            longest_baseline: if quick { 12.0 } else { 60.0 },
            baseline_time: if quick { 0.0 } else { 20.0 },
        }
    }
}

/// Seconds that mean nothing: processes start and are scheduled sooner or later.
const NOISE: f64 = 0.02;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("bench: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut quick = false;
    let (mut link, mut only, mut round_trips) = (None, None, None);
    let mut options = Vec::new();
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        match (name.as_str(), arguments.len()) {
            ("--quick", _) => quick = true,
            ("--link", 1..) => {
                link = match arguments.next().as_deref() {
                    Some("netem") => Some(Kind::Netem),
                    Some("line") => Some(Kind::Line),
                    _ => return Err("--link is netem or line".to_owned()),
                }
            }
            ("--only", 1..) => only = arguments.next(),
            ("--", _) => options = arguments.by_ref().collect(),
            ("--round-trips", 1..) => {
                let text = arguments.next().unwrap_or_default();
                let list: Result<_, _> = text.split(',').map(str::parse).collect();
                round_trips = Some(list.map_err(|error| format!("{text}: {error}"))?);
            }
            _ => return Err(format!("what is {name}?")),
        }
    }
    let mut extent = Extent::new(quick);
    extent.round_trips = round_trips.unwrap_or(extent.round_trips);

    let target = target_folder()?;
    let line = target.join("bench/link/release/delay-line");
    let kind = match lab::unavailable() {
        None => lab::kind(link, &line),
        Some(reason) => Err(reason),
    };
    let kind = match kind {
        Ok(kind) => kind,
        Err(reason) => {
            println!("bench: SKIPPED, nothing was measured: {reason}");
            return Ok(());
        }
    };

    let lab = Lab::new(kind, &line)?;
    let mut bench = Bench {
        folder: lab.folder().to_owned(),
        lab,
        reflash: target.join("release/reflash"),
        options,
        records: Vec::new(),
        rows: Vec::new(),
        table: String::new(),
        extent,
    };
    bench.heading(kind);
    for layout in &LAYOUTS {
        if only.as_ref().is_none_or(|only| only == layout.name) {
            bench.layout(layout)?;
        }
    }
    bench.ending();
    bench.save(&target.join("bench"))
}

/// The target folder: cargo puts examples two levels below it.
fn target_folder() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let folder = own.ancestors().nth(3).map(Path::to_owned);
    folder.ok_or_else(|| format!("{} is in no target folder", own.display()))
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// One request for as many bytes as are needed.
    Floor,
    Install,
    /// The same product, one block a request, one request at a time.
    Baseline,
    /// An install from a bundle that is a local file.
    File,
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Install => "install",
            Self::Baseline => "baseline",
            Self::File => "file",
        }
    }
}

/// What one run took.
#[derive(Clone, Debug, Default)]
struct Run {
    seconds: f64,
    /// To set the connection up; of the plain download only.
    connect: f64,
    cpu: f64,
    requests: f64,
    connections: f64,
    traffic: f64,
    peak: f64,
}

/// One line of the table.
#[derive(Clone, Debug)]
struct Row {
    scenario: &'static str,
    /// None: from a file.
    round_trip: Option<u64>,
    needed: u64,
    floor: Option<Run>,
    /// Seconds from a file.
    file: f64,
    install: Run,
    baseline: Option<Baseline>,
}

#[derive(Clone, Copy, Debug)]
struct Baseline {
    seconds: f64,
    requests: f64,
    measured: bool,
}

impl Row {
    fn ratio(&self) -> Option<f64> {
        let floor = self.floor.as_ref()?;
        Some(self.install.seconds / floor.seconds)
    }

    /// How the time stands to the aim: one tenth and five round trips above what is the limit.
    fn verdict(&self) -> &'static str {
        let Some(floor) = &self.floor else {
            return "";
        };
        let slack = 5.0 * floor.connect + NOISE;
        let within = |limit: f64| self.install.seconds <= 1.1 * limit + slack;
        if within(floor.seconds) {
            ""
        } else if within(self.file) {
            "local"
        } else {
            "slow"
        }
    }
}

struct Bench {
    lab: Lab,
    reflash: PathBuf,
    /// For the installs that are measured, not for the baseline.
    options: Vec<String>,
    folder: PathBuf,
    extent: Extent,
    /// One JSON object a run.
    records: Vec<String>,
    rows: Vec<Row>,
    table: String,
}

impl Bench {
    fn heading(&mut self, kind: Kind) {
        let link = match kind {
            Kind::Netem => "netem and tbf",
            Kind::Line => "delay line over TAP devices",
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.say(&format!(
            "{} link: {link}, {} MiB/s each way, queue {} KiB, TCP {}; nginx; files in memory",
            if self.extent.quick {
                "bench-quick,"
            } else {
                "bench,"
            },
            lab::RATE >> 20,
            lab::QUEUE >> 10,
            self.lab.congestion_control(),
        ));
        self.say(&format!(
            "{cores} cores, load average {}; medians of {} runs\n",
            load(),
            self.extent.runs
        ));
        self.say(&format!(
            "{:<16} {:>6} {:>7} {:>8} {:>11} {:>11} {:>8} {:>8} {:>5} {:>8} {:>6} {:>6}",
            "scenario",
            "rtt ms",
            "floor s",
            "reflash s",
            "ratio",
            "baseline s",
            "speed-up",
            "requests",
            "conn.",
            "traffic",
            "cpu s",
            "MiB"
        ));
    }

    fn ending(&mut self) {
        let network = self.rows.iter().filter(|row| row.floor.is_some());
        let count = |verdict| {
            network
                .clone()
                .filter(|row| row.verdict() == verdict)
                .count()
        };
        let floors = network.clone().filter_map(|row| {
            let floor = row.floor.as_ref()?;
            // Not the one small request.
            (row.needed > 1 << 20).then(|| floor.traffic / row.needed as f64)
        });
        let (all, slow, local) = (network.clone().count(), count("slow"), count("local"));
        let traffic = floors.reduce(f64::max).map_or(String::new(), |most| {
            format!("; traffic of the plain download at most {most:.3}")
        });
        self.say(&format!(
            "\nload average {} at the end; of {all} cells {slow} slow, {local} bound by local work; \
             ~ estimated{traffic}",
            load()
        ));
    }

    fn say(&mut self, line: &str) {
        println!("{line}");
        self.table.push_str(line);
        self.table.push('\n');
    }

    fn layout(&mut self, layout: &Layout) -> Result<(), String> {
        let www = self.folder.join("www");
        let scenario = layout.make(self.extent.quick, &self.folder, &www)?;
        let mut runs = Vec::new();
        for number in 0..self.extent.runs {
            runs.push(self.measure(layout, &scenario, What::File, 0, number)?);
        }
        self.row(Row {
            scenario: layout.name,
            round_trip: None,
            needed: scenario.needed,
            floor: None,
            file: medians(&runs).seconds,
            install: medians(&runs),
            baseline: None,
        });
        let mut known: Option<(u64, Baseline)> = None;
        for round_trip in self.extent.round_trips.clone() {
            self.lab.set_round_trip(Duration::from_millis(round_trip))?;
            let (mut floors, mut installs) = (Vec::new(), Vec::new());
            for number in 0..self.extent.runs {
                // In turn, so that a machine that gets busier does so for both.
                floors.push(self.measure(layout, &scenario, What::Floor, round_trip, number)?);
                installs.push(self.measure(
                    layout,
                    &scenario,
                    What::Install,
                    round_trip,
                    number,
                )?);
            }
            let baseline = self.baseline(layout, &scenario, round_trip, known)?;
            if baseline.measured {
                known = Some((round_trip, baseline));
            }
            self.row(Row {
                scenario: layout.name,
                round_trip: Some(round_trip),
                needed: scenario.needed,
                floor: Some(medians(&floors)),
                file: medians(&runs).seconds,
                install: medians(&installs),
                baseline: Some(baseline),
            });
        }
        Ok(())
    }

    /// Measures the baseline, unless one measured at a shorter round trip says that it would take
    /// too long.
    fn baseline(
        &mut self,
        layout: &Layout,
        scenario: &Scenario,
        round_trip: u64,
        known: Option<(u64, Baseline)>,
    ) -> Result<Baseline, String> {
        // Each request waits for one round trip and for its bytes.
        let (before, seconds_before, requests) = known.map_or(
            (
                0,
                scenario.needed as f64 / lab::RATE as f64,
                scenario.missing as f64,
            ),
            |(before, known)| (before, known.seconds, known.requests),
        );
        let expected = seconds_before + requests * seconds(round_trip.saturating_sub(before));
        if expected > self.extent.longest_baseline {
            return Ok(Baseline {
                seconds: expected,
                requests,
                measured: false,
            });
        }
        let mut runs = Vec::new();
        let mut spent = 0.0;
        while runs.is_empty() || runs.len() < self.extent.runs && spent < self.extent.baseline_time
        {
            let run = self.measure(layout, scenario, What::Baseline, round_trip, runs.len())?;
            spent += run.seconds;
            runs.push(run);
        }
        let run = medians(&runs);
        Ok(Baseline {
            seconds: run.seconds,
            requests: run.requests,
            measured: true,
        })
    }

    /// Runs something once, and checks what it leaves.
    fn measure(
        &mut self,
        layout: &Layout,
        scenario: &Scenario,
        what: What,
        round_trip: u64,
        number: usize,
    ) -> Result<Run, String> {
        let (target, report) = (
            self.folder.join("target.img"),
            self.folder.join("report.json"),
        );
        for path in [&target, &report] {
            // They are there from the second run on.
            fs::remove_file(path).ok();
        }
        let mut command = self.command(scenario, what, &target, &report);
        let pause = Duration::from_millis(30 + 2 * round_trip);
        // What is left of the run before must not be counted here.
        std::thread::sleep(pause);
        self.lab.lost(Duration::from_millis(round_trip))?;
        self.lab.served();
        let load = load();
        let (traffic, cpu) = (self.lab.traffic()?, children_seconds()?);
        let begin = Instant::now();
        let said = lab::output(&mut command)?;
        let seconds = begin.elapsed().as_secs_f64();
        std::thread::sleep(pause);
        let cpu = children_seconds()? - cpu;
        let (received, sent) = self.lab.traffic()?;
        let (received, sent) = (received - traffic.0, sent - traffic.1);
        let served = self.lab.served();
        let lost = self.lab.lost(Duration::from_millis(round_trip))?;

        let report: Value = match what {
            What::Floor => Value::Null,
            _ => {
                let text = fs::read(&report).map_err(|error| format!("no report: {error}"))?;
                serde_json::from_slice(&text).map_err(|error| format!("the report: {error}"))?
            }
        };
        if what != What::Floor && fs::read(&target).ok().as_ref() != Some(&scenario.image) {
            return Err(format!("{}: the target is not the image", layout.name));
        }
        let fact = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64);
        let peak = fact("/peak_memory").unwrap_or_default();
        let connect = said.trim().parse().unwrap_or_default();
        let Served {
            requests,
            connections,
        } = served;
        self.records.push(
            json!({
                "scenario": layout.name, "what": what.name(), "round_trip_ms": round_trip,
                "run": number, "seconds": seconds, "cpu_seconds": cpu, "load": load, "connect_seconds": connect,
                "requests": requests, "connections": connections,
                "received": received, "sent": sent, "needed": scenario.needed,
                "missing_blocks": scenario.missing, "missing_runs": scenario.runs,
                "frames_dropped": lost.map(|(dropped, _)| dropped),
                "frames_late": lost.map(|(_, late)| late),
                "report": report,
            })
            .to_string(),
        );
        Ok(Run {
            seconds,
            connect,
            cpu,
            requests: requests as f64,
            connections: connections as f64,
            traffic: (received + sent) as f64,
            peak,
        })
    }

    fn command(&self, scenario: &Scenario, what: What, target: &Path, report: &Path) -> Command {
        let url = self.lab.url(BUNDLE);
        if what == What::Floor {
            let mut curl = self.lab.device("curl");
            let range = format!("0-{}", scenario.needed - 1);
            curl.args(["-q", "-s", "-f", "--noproxy", "*", "-w", "%{time_connect}"]);
            curl.args(["-o", "/dev/null", "-r", &range, &url]);
            return curl;
        }
        let mut reflash = self.lab.device(&self.reflash.to_string_lossy());
        reflash.arg("install");
        match what {
            What::File => reflash.arg(self.folder.join("www").join(BUNDLE)),
            _ => reflash.arg(url),
        };
        reflash.arg("--target").arg(target);
        reflash.args(["--bundle-hash", &scenario.bundle_hash]);
        if scenario.seeded {
            let (seed, index) = (self.folder.join(SEED), self.folder.join(INDEX));
            reflash.arg("--seed");
            reflash.arg(format!("{}={}", seed.display(), index.display()));
        }
        if what == What::Baseline {
            reflash.args(["--workers", "1", "--no-merge"]);
        } else {
            reflash.args(&self.options);
        }
        reflash
            .args(["--progress", "none"])
            .arg("--report")
            .arg(report);
        reflash.stdin(Stdio::null());
        reflash
    }

    fn row(&mut self, row: Row) {
        let number = |value: Option<f64>, digits| {
            value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
        };
        let install = &row.install;
        let ratio = format!("{} {:>5}", number(row.ratio(), 2), row.verdict());
        let baseline = row.baseline.map_or("-".to_owned(), |baseline| {
            let mark = if baseline.measured { "" } else { "~" };
            format!("{mark}{:.2}", baseline.seconds)
        });
        let speed_up = row
            .baseline
            .map(|baseline| baseline.seconds / install.seconds);
        let over_network = row.round_trip.is_some();
        let line = format!(
            "{:<16} {:>6} {:>7} {:>8} {:>11} {:>11} {:>8} {:>8} {:>5} {:>8} {:>6.2} {:>6.1}",
            row.scenario,
            row.round_trip
                .map_or("file".to_owned(), |ms| ms.to_string()),
            number(row.floor.as_ref().map(|run| run.seconds), 3),
            format!("{:.3}", install.seconds),
            ratio,
            baseline,
            number(speed_up, 1),
            number(over_network.then_some(install.requests), 0),
            number(over_network.then_some(install.connections), 0),
            number(
                over_network.then_some(install.traffic / row.needed as f64),
                3
            ),
            install.cpu,
            install.peak / f64::from(1 << 20),
        );
        self.say(&line);
        self.rows.push(row);
    }

    fn save(&self, folder: &Path) -> Result<(), String> {
        let files = [
            ("table.txt", self.table.clone()),
            ("runs.jsonl", self.records.join("\n") + "\n"),
            ("plot.svg", plot::svg(&self.rows)),
        ];
        fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        for (name, text) in files {
            let path = folder.join(name);
            fs::File::create(&path)
                .and_then(|mut file| file.write_all(text.as_bytes()))
                .map_err(|error| format!("{}: {error}", path.display()))?;
            println!("{}", path.display());
        }
        Ok(())
    }
}

fn medians(runs: &[Run]) -> Run {
    let median = |of: fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
        match (values.get(low), values.get(high)) {
            (Some(low), Some(high)) => (low + high) / 2.0,
            _ => f64::NAN,
        }
    };
    Run {
        seconds: median(|run| run.seconds),
        connect: median(|run| run.connect),
        cpu: median(|run| run.cpu),
        requests: median(|run| run.requests),
        connections: median(|run| run.connections),
        traffic: median(|run| run.traffic),
        peak: median(|run| run.peak),
    }
}

fn seconds(milliseconds: u64) -> f64 {
    milliseconds as f64 / 1000.0
}

/// Processor time of all children that have ended, user and system.
fn children_seconds() -> Result<f64, String> {
    let text = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may hold anything, come the fields from the third on; the children's
    // are the 16th and 17th, in hundredths of a second on all Linux.
    let fields = text.rsplit_once(')').map_or("", |(_, fields)| fields);
    let mut fields = fields.split_whitespace().skip(13).map(str::parse::<u64>);
    match (fields.next(), fields.next()) {
        (Some(Ok(user)), Some(Ok(system))) => Ok((user + system) as f64 / 100.0),
        _ => Err("there is no processor time in /proc".to_owned()),
    }
}

/// Of the last minute.
fn load() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or("unknown").to_owned()
}
