//! What the program says: progress for people and programs, log lines, the summary.
//!
//! The only file that writes to the terminal, so that a progress line and a log line never run
//! into each other: standard error is for people, standard output for machines. A [`Console`] listens
//! to a [`Reporter`]; the library knows nothing of it. Saying something never fails a run: what cannot
//! be written is dropped, but for a result that a command was asked for. How a line looks is in
//! `terminal.rs`, who else is told in `notify.rs`.

mod task;

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::notify::{LogFile, Manager};
use crate::report::{Event, Phase, Progress, Report, Reporter, SCHEMA};
use crate::terminal::{self, Blocks, Seen};

/// Pause between two progress lines: a serial console is slow, a log file is kept.
const LINE_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before a line is said again that has nothing new.
const SAME_INTERVAL: Duration = Duration::from_secs(10);

/// Columns of a terminal that does not tell how many it has.
const COLUMNS: usize = 80;

/// The log that takes all lines for people, too.
static LOG: OnceLock<LogFile> = OnceLock::new();

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
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

/// A line of JSON.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line<'a> {
    Start {
        schema: u32,
        version: &'static str,
        bundle: &'a str,
    },
    Phase {
        phase: Phase,
    },
    Progress(&'a Progress),
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

/// Says what it hears.
#[derive(Debug)]
pub struct Console {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    mode: Mode,
    /// When progress was shown last, and with which line.
    shown: Option<Instant>,
    line: String,
    /// The service manager, and when it was told last.
    manager: Option<Manager>,
    told: Option<Instant>,
    /// A bar stands on the terminal's last line.
    bar: bool,
}

impl Console {
    /// Shows progress in the given way, and tells a service manager, too.
    pub fn new(mode: Mode, manager: Option<Manager>) -> Arc<Self> {
        let mode = match mode {
            Mode::Auto if can_rewrite() => Mode::Bar,
            Mode::Bar if io::stderr().is_terminal() => Mode::Bar,
            Mode::Auto | Mode::Bar => Mode::Lines,
            other => other,
        };
        Arc::new(Self {
            inner: Mutex::new(Inner {
                mode,
                shown: None,
                line: String::new(),
                manager,
                told: None,
                bar: false,
            }),
        })
    }

    /// Makes this the backend of `log`, showing messages up to `level`, and writing them to the log
    /// file if there is one. Only the first call counts.
    pub fn install_logger(self: &Arc<Self>, level: log::LevelFilter) {
        let logger = Logger {
            console: self.clone(),
            level,
        };
        let logged = LOG
            .get()
            .map_or(level, |_| level.max(log::LevelFilter::Info));
        if log::set_boxed_logger(Box::new(logger)).is_ok() {
            log::set_max_level(logged);
        }
    }

    /// One that tells this console.
    pub fn reporter(self: &Arc<Self>) -> Reporter {
        let console = self.clone();
        Reporter::new(move |event: &Event<'_>| console.inner().hear(event))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        // A panic while one line was said must not silence the next.
        self.inner.lock().unwrap_or_else(|lock| lock.into_inner())
    }
}

impl Inner {
    fn hear(&mut self, event: &Event<'_>) {
        match event {
            Event::Progress(progress) => return self.progress(progress),
            Event::Done(report) => self.end(report),
            Event::Failed(report) => self.end(report),
            // A phase that begins is worth a line of progress, for programs.
            Event::Phase(_) if self.mode == Mode::Json => self.shown = None,
            _ => {}
        }
        if self.mode == Mode::Json {
            say(&match *event {
                Event::Start(bundle) => Line::Start {
                    schema: SCHEMA,
                    version: env!("CARGO_PKG_VERSION"),
                    bundle,
                },
                Event::Phase(phase) => Line::Phase { phase },
                Event::Done(report) => Line::Done { report },
                Event::Failed(report) => Line::Failed { report },
                Event::Progress(_) => return,
            });
        }
    }

    /// The last words for people and the service manager.
    fn end(&mut self, report: &Report) {
        if let Some(manager) = &self.manager {
            match &report.error {
                Some(error) => manager.status(error),
                None => manager.ready(report.result),
            }
        }
        self.clear_bar();
        if report.exit == 0 && !matches!(self.mode, Mode::Json | Mode::None) {
            print_err(&report.to_string());
        }
    }

    fn progress(&mut self, progress: &Progress) {
        let seen = seen(progress);
        let due = |last: Option<Instant>| last.is_none_or(|l| l.elapsed() >= LINE_INTERVAL);
        let is_last = progress.percent >= 100.0;
        if let Some(manager) = self.manager.as_ref().filter(|_| due(self.told)) {
            if !is_last {
                manager.status(terminal::line(&seen).trim_start());
                self.told = Some(Instant::now());
            }
        }
        match self.mode {
            Mode::Bar if !is_last => {
                let text = terminal::bar(&seen, columns());
                let mut err = io::stderr().lock();
                self.bar = write!(err, "\r{text}\x1b[K")
                    .and_then(|()| err.flush())
                    .is_ok();
            }
            Mode::Lines if !is_last && due(self.shown) => {
                let line = terminal::line(&seen);
                let is_old = |last: Instant| last.elapsed() >= SAME_INTERVAL;
                if line != self.line || self.shown.is_none_or(is_old) {
                    show_line(&line);
                    (self.shown, self.line) = (Some(Instant::now()), line);
                }
            }
            Mode::Json if is_last || due(self.shown) => {
                say(&Line::Progress(progress));
                self.shown = Some(Instant::now());
            }
            _ => {}
        }
    }

    fn clear_bar(&mut self) {
        if std::mem::take(&mut self.bar) {
            // A terminal that is gone needs no clearing.
            drop(write!(io::stderr(), "\r\x1b[K"));
        }
    }
}

#[derive(Debug)]
struct Logger {
    console: Arc<Console>,
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
        let mut inner = self.console.inner();
        inner.clear_bar();
        let is_json = inner.mode == Mode::Json;
        if is_json && record.level() == log::Level::Warn {
            say(&Line::Warning { message: &message });
        }
        // Else there may be a bar to keep away. With JSON there is none, and who tells events is not
        // to wait for a standard error that is stopped.
        let _no_bar = (!is_json).then_some(inner);
        match record.level() {
            log::Level::Warn => {
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

/// What people are to see of it.
fn seen(progress: &Progress) -> Seen {
    Seen {
        percent: progress.percent,
        phase: progress.phase.name(),
        blocks: (progress.phase == Phase::Install).then_some(Blocks {
            done: progress.blocks,
            total: progress.blocks_total,
            fetched: progress.bytes_fetched,
            to_fetch: progress.bytes_to_fetch,
            reused: progress.bytes_reused,
            rate: progress.bytes_per_second,
            left: progress.left,
        }),
        retries: progress.retries,
    }
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
pub fn print_error(error: &Error, bundle: Option<&str>, target_touched: bool, hint: Option<&str>) {
    log_line(log::Level::Error, &error.to_string());
    show_line(&format!("reflash: {error}"));
    if let Some(bundle) = bundle.filter(|_| error.is_of_bytes()) {
        print_err(&format!("the bundle is {bundle}"));
    }
    if target_touched {
        print_target_state(true);
    }
    if let Some(hint) = hint {
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

/// Writes one JSON object to standard output, as [`print_out`] does.
pub fn print_json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    print_out(&format!("{}\n", text.map_err(|e| unwritten(e.into()))?))
}

/// A text for machines, or one that was asked for: a result, so it is an error if it cannot be
/// written. A reader that closed the pipe has seen enough.
pub fn print_out(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritten(error)),
        _ => Ok(()),
    }
}

fn unwritten(source: io::Error) -> Error {
    let path = "standard output".into();
    Error::Output { path, source }
}

/// Writes a line of JSON.
fn json(line: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string(line);
    print_out(&format!("{}\n", text.map_err(|e| unwritten(e.into()))?))
}

/// The same of one that is for somebody's convenience.
fn say(line: &impl Serialize) {
    drop(json(line));
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
}
