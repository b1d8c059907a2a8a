//! What a run says: progress for people and programs, log lines, the final report.
//!
//! The only file that writes to the terminal, so that a progress line and a log line never run
//! into each other: standard error is for people, standard output for machines. Stages hand in
//! facts and know nothing of terminals or JSON. Reporting never fails an install: what cannot be
//! written is dropped. How a line looks is in `terminal.rs`, who else is told in `notify.rs`.
//!
//! `percent` covers the whole run, never falls, and is 100 only after success. A payload is one
//! share of it; within a share seeds take a tenth and the blocks the rest.

mod schema;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::http::Counters;
use crate::notify::{LogFile, Manager};
use crate::terminal::{self, Blocks, Rate, Seen};

use schema::summary;
pub use schema::{
    peak_memory, BlocksReport, BundleReport, BytesReport, ComparedReport, Counts, HttpReport,
    PayloadReport, Report, SecondsReport, VerifyReport, SCHEMA,
};

/// Pause between two updates of a bar.
const BAR_INTERVAL: Duration = Duration::from_millis(200);

/// Pause between two progress lines: a serial console is slow, a log file is kept.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Columns of a terminal that does not tell how many it has.
const COLUMNS: usize = 80;

/// The log that takes all lines for people, too.
static LOG: OnceLock<LogFile> = OnceLock::new();

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A bar on a terminal, else lines: on a serial console, in a log, where `TERM` is `dumb`.
    Auto,
    /// One line that is rewritten; lines where there is no terminal at all.
    Bar,
    /// Whole lines, at most one a second.
    Lines,
    /// One JSON object a line on standard output.
    Json,
    /// Nothing.
    None,
}

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Header and indexes are fetched and checked.
    Open,
    /// Seeds are looked through.
    Seed,
    /// Decisions are made.
    Plan,
    /// Blocks are fetched and written.
    Install,
    /// The target is synced.
    Sync,
    /// The target is read and compared.
    Verify,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Seed => "seed",
            Self::Plan => "plan",
            Self::Install => "install",
            Self::Sync => "sync",
            Self::Verify => "verify",
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Event<'a> {
    Start {
        schema: u32,
        version: &'static str,
        bundle: &'a str,
    },
    Phase {
        phase: Phase,
    },
    Progress {
        phase: Phase,
        percent: f64,
        blocks: u64,
        blocks_total: u64,
        bytes_fetched: u64,
        bytes_to_fetch: u64,
        bytes_written: u64,
        bytes_per_second: u64,
        retries: u64,
    },
    Warning {
        message: &'a str,
    },
    Done {
        report: &'a Report,
    },
    Failed {
        report: &'a Report,
    },
}

/// Takes in what happens and says it.
#[derive(Debug)]
pub struct Reporter {
    inner: Mutex<Inner>,
    counters: Arc<Counters>,
}

#[derive(Debug)]
struct Inner {
    progress: Progress,
    phase: Phase,
    /// Payloads in all, and the number of the present one.
    payloads: usize,
    payload: usize,
    /// Blocks made before the present payload, and blocks it has.
    blocks_before: u64,
    blocks: u64,
    /// Share of the present payload that is done, 0 to 1.
    share: f64,
    percent: f64,
    counts: Counts,
    started: Instant,
    /// When the first block could be made.
    installing: Option<Instant>,
    rate: Rate,
    shown: Option<Instant>,
    /// The service manager, and when it was told last.
    manager: Option<Manager>,
    told: Option<Instant>,
    /// A bar stands on the terminal's last line.
    bar: bool,
    bundle: BundleReport,
    /// The payloads, and where they go.
    payload_reports: Vec<PayloadReport>,
    /// Of each target: whether it was written to.
    touched: Vec<Arc<AtomicBool>>,
    /// All targets are complete.
    sealed: bool,
}

impl Reporter {
    /// A reporter that shows progress in the given way.
    pub fn new(progress: Progress, counters: Arc<Counters>) -> Self {
        let progress = match progress {
            Progress::Auto if can_rewrite() => Progress::Bar,
            Progress::Bar if io::stderr().is_terminal() => Progress::Bar,
            Progress::Auto | Progress::Bar => Progress::Lines,
            other => other,
        };
        Self {
            inner: Mutex::new(Inner {
                progress,
                phase: Phase::Open,
                payloads: 1,
                payload: 0,
                blocks_before: 0,
                blocks: 0,
                share: 0.0,
                percent: 0.0,
                counts: Counts::default(),
                started: Instant::now(),
                installing: None,
                rate: Rate::default(),
                shown: None,
                manager: None,
                told: None,
                bar: false,
                bundle: BundleReport::default(),
                payload_reports: Vec::new(),
                touched: Vec::new(),
                sealed: false,
            }),
            counters,
        }
    }

    /// Makes this the backend of `log`, showing messages up to `level`, and writing them to the log
    /// file if there is one. Only the first call counts.
    pub fn install_logger(self: &Arc<Self>, level: log::LevelFilter) {
        let logger = Logger {
            reporter: self.clone(),
            level,
        };
        let logged = LOG
            .get()
            .map_or(level, |_| level.max(log::LevelFilter::Info));
        if log::set_boxed_logger(Box::new(logger)).is_ok() {
            log::set_max_level(logged);
        }
    }

    /// Tells a service manager, too.
    pub fn tell(&self, manager: Manager) {
        self.inner().manager = Some(manager);
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic while reporting must not take the install down too.
        self.inner.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    /// What the bundle is, for a run that is interrupted.
    pub fn bundle(&self, bundle: &BundleReport) {
        self.inner().bundle = bundle.clone();
    }

    /// What the payloads are and where they go, for the same.
    pub fn payloads(&self, payloads: &[PayloadReport]) {
        self.inner().payload_reports = payloads.to_vec();
    }

    /// A target, and the flag that tells whether it was written to.
    pub fn target(&self, touched: Arc<AtomicBool>) {
        self.inner().touched.push(touched);
    }

    /// All targets are complete.
    pub fn sealed(&self) {
        self.inner().sealed = true;
    }

    /// The report of a run that a signal ends, as far as it came; `None` if all is done but for
    /// telling so.
    pub fn interrupted(&self, exit: u8, signal: &str) -> Option<Report> {
        let inner = self.inner();
        if inner.sealed {
            return None;
        }
        let counts = inner.counts;
        Some(Report {
            schema: SCHEMA,
            result: "failed",
            exit,
            error: Some(format!("interrupted by {signal}")),
            bundle: inner.bundle.clone(),
            payloads: inner.payload_reports.clone(),
            blocks: counts.blocks(),
            bytes: counts.bytes(0, &self.counters),
            http: HttpReport::of(&self.counters),
            seconds: SecondsReport {
                total: inner.started.elapsed().as_secs_f64(),
                ..SecondsReport::default()
            },
            peak_memory: peak_memory(),
            target_touched: inner.touched.iter().any(|t| t.load(Ordering::Relaxed)),
        })
    }

    /// The run begins.
    pub fn start(&self, bundle: &str) {
        let inner = self.inner();
        if inner.progress == Progress::Json {
            event(&Event::Start {
                schema: SCHEMA,
                version: env!("CARGO_PKG_VERSION"),
                bundle,
            });
        }
    }

    /// A phase begins.
    pub fn phase(&self, phase: Phase) {
        let mut inner = self.inner();
        inner.phase = phase;
        if phase == Phase::Install {
            inner.installing.get_or_insert_with(Instant::now);
        }
        if inner.progress == Progress::Json {
            event(&Event::Phase { phase });
        }
        self.show(&mut inner, true);
    }

    /// Payload `number` of `payloads` begins; it has so many blocks.
    pub fn payload(&self, number: usize, payloads: usize, blocks: u64, counts: &Counts) {
        let mut inner = self.inner();
        inner.counts = *counts;
        inner.blocks = blocks;
        inner.payload = number;
        inner.payloads = payloads.max(1);
        inner.blocks_before = inner.counts.done();
        inner.share = 0.0;
    }

    /// So many bytes of the seeds were looked through.
    pub fn seed_progress(&self, done: u64, total: u64) {
        let mut inner = self.inner();
        inner.share = 0.1 * fraction(done, total);
        self.show(&mut inner, false);
    }

    /// A block was made.
    pub fn install_progress(&self, counts: &Counts) {
        let mut inner = self.inner();
        inner.counts = *counts;
        self.show(&mut inner, false);
    }

    /// Time has passed: says what was received meanwhile, so that a slow link looks different from
    /// a dead one.
    pub fn tick(&self) {
        let mut inner = self.inner();
        if inner.phase == Phase::Install {
            self.show(&mut inner, false);
        }
    }

    /// The run is over: the last progress line, the report, and a summary for people.
    pub fn finish(&self, report: &Report) {
        let mut inner = self.inner();
        let failed = report.exit != 0;
        if !failed {
            inner.percent = 100.0;
        }
        if let Some(manager) = &inner.manager {
            match &report.error {
                Some(error) => manager.status(error),
                None => manager.ready(report.result),
            }
        }
        match inner.progress {
            Progress::Json => {
                if !failed {
                    self.show_json(&mut inner);
                }
                event(&if failed {
                    Event::Failed { report }
                } else {
                    Event::Done { report }
                });
            }
            Progress::None => {}
            _ => {
                inner.clear_bar();
                if !failed {
                    print_err(&summary(report));
                }
            }
        }
        // Nothing may follow, whatever still ticks.
        inner.progress = Progress::None;
    }

    fn show(&self, inner: &mut Inner, now: bool) {
        let interval = match inner.progress {
            Progress::None => None,
            Progress::Bar => Some(BAR_INTERVAL),
            _ => Some(LINE_INTERVAL),
        };
        let due = |last: Option<Instant>, interval| last.is_none_or(|l| l.elapsed() >= interval);
        // A phase that begins is worth a JSON line of its own; for people the pause is kept.
        let now = now && inner.progress == Progress::Json;
        let show = interval.is_some_and(|interval| now || due(inner.shown, interval));
        let tell = inner.manager.is_some() && due(inner.told, LINE_INTERVAL);
        if !show && !tell {
            return;
        }
        self.reckon(inner);
        let seen = self.seen(inner);
        if let Some(manager) = inner.manager.as_ref().filter(|_| tell) {
            manager.status(terminal::line(&seen).trim_start());
            inner.told = Some(Instant::now());
        }
        if !show {
            return;
        }
        inner.shown = Some(Instant::now());
        match inner.progress {
            Progress::Json => self.show_json(inner),
            Progress::Bar => {
                let text = terminal::bar(&seen, columns());
                let mut err = io::stderr().lock();
                inner.bar = write!(err, "\r{text}\x1b[K")
                    .and_then(|()| err.flush())
                    .is_ok();
            }
            _ => show_line(&terminal::line(&seen)),
        }
    }

    /// Works out how much of the run is done.
    fn reckon(&self, inner: &mut Inner) {
        if inner.phase == Phase::Install {
            // Half for what is received, half for what is made of it.
            let fetched = fraction(self.counters.bytes(), inner.counts.bytes_to_fetch);
            let made = match inner.blocks {
                0 => fetched,
                blocks => fraction(inner.counts.done() - inner.blocks_before, blocks),
            };
            inner.share = 0.1 + 0.9 * (fetched + made) / 2.0;
        }
        let payloads = inner.payloads as f64;
        let percent = 100.0 * (inner.payload as f64 + inner.share) / payloads;
        // 100 is for success alone, which is known only at the very end.
        inner.percent = inner.percent.max(percent.min(99.0));
    }

    /// Where the run is, for people.
    fn seen(&self, inner: &mut Inner) -> Seen {
        let installing = inner.installing.filter(|_| inner.phase == Phase::Install);
        let blocks = installing.map(|since| {
            // Of what an install has to do, a tenth was done before it began.
            let done = (inner.percent / 100.0 - 0.1) / 0.9;
            Blocks {
                done: inner.counts.done(),
                total: inner.counts.total,
                fetched: self.counters.bytes(),
                to_fetch: inner.counts.bytes_to_fetch,
                reused: inner.counts.bytes_seeded + inner.counts.bytes_kept,
                rate: self.rate(inner),
                left: terminal::left(since.elapsed(), done),
            }
        });
        Seen {
            percent: inner.percent,
            phase: inner.phase.name(),
            blocks,
            retries: self.counters.retries(),
        }
    }

    /// Bytes received a second, of late.
    fn rate(&self, inner: &mut Inner) -> u64 {
        let now = inner.started.elapsed();
        inner.rate.at(now, self.counters.bytes())
    }

    fn show_json(&self, inner: &mut Inner) {
        let rate = self.rate(inner);
        event(&Event::Progress {
            phase: inner.phase,
            percent: (inner.percent * 10.0).round() / 10.0,
            blocks: inner.counts.done(),
            blocks_total: inner.counts.total,
            bytes_fetched: self.counters.bytes(),
            bytes_to_fetch: inner.counts.bytes_to_fetch,
            bytes_written: inner.counts.bytes_written,
            bytes_per_second: rate,
            retries: self.counters.retries(),
        });
    }
}

impl Inner {
    fn clear_bar(&mut self) {
        if std::mem::take(&mut self.bar) {
            // A terminal that is gone needs no clearing.
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}

#[derive(Debug)]
struct Logger {
    reporter: Arc<Reporter>,
    /// What is shown; the log file may have more.
    level: log::LevelFilter,
}

impl log::Log for Logger {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        // ureq's own debug lines are about its insides.
        metadata.target().starts_with("reflash") || metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let message = record.args().to_string();
        if record.level() > self.level {
            return log_line(record.level(), &message);
        }
        let mut inner = self.reporter.inner();
        inner.clear_bar();
        match record.level() {
            log::Level::Warn => {
                if inner.progress == Progress::Json {
                    event(&Event::Warning { message: &message });
                }
                log_line(log::Level::Warn, &message);
                show_line(&format!("warning: {message}"));
            }
            level => {
                log_line(level, &message);
                show_line(&message);
            }
        }
    }

    fn flush(&self) {}
}

/// What a run that ended early leaves behind.
pub fn print_target_state(touched: bool) {
    print_err(if touched {
        "the target is incomplete: it was written to and is not the image yet; the same command again \
         keeps what is right and fetches the rest"
    } else {
        "the target was not touched"
    });
}

/// The last words of a run that failed.
///
/// `bundle` is named where the error is one of its bytes, and does not do so itself.
pub fn print_error(error: &Error, bundle: Option<&str>, target_touched: bool) {
    log_line(log::Level::Error, &error.to_string());
    show_line(&format!("reflash: {error}"));
    if let Some(bundle) = bundle.filter(|_| error.is_of_bytes()) {
        print_err(&format!("the bundle is {bundle}"));
    }
    if target_touched {
        print_target_state(true);
    }
    if let Some(hint) = error.hint() {
        print_err(&format!("hint: {hint}"));
    }
}

/// A line for people.
pub fn print_err(line: &str) {
    log_line(log::Level::Info, line);
    show_line(line);
}

/// A line on the terminal alone.
fn show_line(line: &str) {
    // Nobody is left to tell when standard error is closed.
    drop(writeln!(io::stderr().lock(), "{line}"));
}

/// A line in the log file alone.
fn log_line(level: log::Level, line: &str) {
    if let Some(log) = LOG.get() {
        log.write(level, line);
    }
}

/// Writes all lines for people, but for progress, to this file, too. Only the first call counts.
pub fn log_to(path: &Path) -> Result<()> {
    let log = LogFile::open(path).map_err(|source| Error::Output {
        path: path.to_owned(),
        source,
    })?;
    LOG.get_or_init(|| log);
    Ok(())
}

/// Whether standard error is a terminal on which a line can be written over, many times a second.
fn can_rewrite() -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let name = std::fs::read_link("/proc/self/fd/2").unwrap_or_default();
    io::stderr().is_terminal() && !dumb && !is_serial(&name)
}

/// Whether a terminal is a line of 11 KB a second, and perhaps recorded: `/dev/ttyS0`,
/// `/dev/ttyAMA0`, `/dev/console`; not `/dev/tty1` or `/dev/pts/0`.
fn is_serial(name: &Path) -> bool {
    let name = name.to_string_lossy();
    let tty = name.strip_prefix("/dev/tty");
    name == "/dev/console" || tty.is_some_and(|rest| rest.starts_with(|c: char| c.is_alphabetic()))
}

/// Columns of the terminal at standard error.
fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    match size.map(|size| usize::from(size.ws_col)) {
        Ok(0) | Err(_) => COLUMNS,
        Ok(columns) => columns,
    }
}

/// Writes one JSON object to standard output.
pub fn print_json(value: &impl Serialize) {
    // Values of our own always can be written.
    if let Ok(text) = schema::pretty(value) {
        print_out(&text);
    }
}

/// A text for machines, or one that was asked for. False if it could not be written.
pub fn print_out(text: &str) -> bool {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())
        .and_then(|()| out.flush())
        .is_ok()
}

fn event(event: &Event<'_>) {
    if let Ok(mut line) = serde_json::to_string(event) {
        line.push('\n');
        print_out(&line);
    }
}

fn fraction(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        (part as f64 / whole as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_consoles_are_known_by_their_names() {
        for (name, serial) in [
            ("/dev/ttyS0", true),
            ("/dev/ttyAMA0", true),
            ("/dev/ttymxc1", true),
            ("/dev/console", true),
            ("/dev/tty1", false),
            ("/dev/tty", false),
            ("/dev/pts/3", false),
            ("", false),
        ] {
            assert_eq!(is_serial(Path::new(name)), serial, "{name}");
        }
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(peak_memory().is_some_and(|bytes| bytes > 100_000));
    }
}
