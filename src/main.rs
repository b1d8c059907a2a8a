//! The `reflash` command: parse, start the reporter, run, turn the result into an exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{mpsc, Arc};
use std::time::Duration;

use reflash::internal::args::{self, Command};
use reflash::internal::console::{self, Console, Mode};
use reflash::internal::notify::Manager;
use reflash::{inspect, verify, Error, Location, Report, Reporter, Tell};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

/// Time for the last words after a signal.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Time for a run to end by itself whose targets are complete; the rest is for its last words.
const GRACE: Duration = Duration::from_millis(700);

/// Time for the listener to take in that the run ended, before it is said on standard error in any
/// case. On a terminal the bar goes first.
const LISTENER: Duration = Duration::from_millis(300);

/// Who sets it has the last words: the run that ended, or the signal that ends it.
static ENDING: AtomicBool = AtomicBool::new(false);

/// Stack of the threads that wait for signals; the default of 2 MiB is much on a small board.
const STACK_SIZE: usize = 128 << 10;

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    let command = args::parse(arguments, &|name| std::env::var_os(name));
    match command.map_err(Failure::from).and_then(|c| run(&c)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let Failure {
                error,
                bundle,
                touched,
                hint,
            } = failure;
            console::print_error(&error, bundle.as_deref(), touched, hint);
            ExitCode::from(error.class().exit_code())
        }
    }
}

fn run(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Print(text) => Ok(console::print_out(text)?),
        Command::Install(install) => run_install(install),
        Command::Plan(plan) => run_plan(plan),
        Command::Inspect(inspect) => run_inspect(inspect),
        Command::Verify(verify) => run_verify(verify),
        Command::Index(index) => run_index(index),
        #[cfg(feature = "pack")]
        Command::Pack(pack) => run_pack(pack),
        #[cfg(feature = "pack")]
        Command::Sign(options) => run_sign(options),
        #[cfg(feature = "pack")]
        Command::Estimate(estimate) => run_estimate(estimate),
    }
}

/// What ends the program with another code than 0.
struct Failure {
    error: Box<Error>,
    /// The bundle that it is about.
    bundle: Option<String>,
    /// The target was written to.
    touched: bool,
    /// What to do about it.
    hint: Option<&'static str>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            hint: error.hint(),
            bundle: None,
            touched: false,
            error: Box::new(error),
        }
    }
}

impl Failure {
    fn of(error: Error, bundle: &Location) -> Self {
        Self {
            bundle: Some(bundle.shown()),
            ..Self::from(error)
        }
    }
}

/// What speaks for a run, and whom it tells besides the terminal.
fn console(mode: Mode, level: log::LevelFilter, log: Option<&Path>) -> Result<Arc<Console>, Error> {
    if let Some(path) = log {
        console::log_to(path)?;
    }
    let address = std::env::var_os("NOTIFY_SOCKET").filter(|address| !address.is_empty());
    let manager = address.and_then(|address| {
        let manager = Manager::at(&address);
        manager
            .map_err(|error| console::print_err(&format!("warning: NOTIFY_SOCKET: {error}")))
            .ok()
    });
    let console = Console::new(mode, manager);
    console.install_logger(level);
    Ok(console)
}

fn run_install(install: &args::Install) -> Result<(), Failure> {
    let console = console(install.progress, install.level, install.log.as_deref())?;
    if let Some(path) = &install.report {
        Report::begin(path)?;
    }
    let reporter = Arc::new(console.reporter());
    end_on_signals(&reporter, install.report.clone());
    let result = install.install.run(&reporter);
    if ENDING.swap(true, Ordering::Relaxed) {
        // The process ends within a second.
        loop {
            std::thread::park();
        }
    }
    let report = match &result {
        Ok(report) => report,
        Err(failed) => &failed.report,
    };
    let written = install.report.as_deref().map(|path| report.write(path));
    let touched = report.target_touched;
    // The target is what counts: a script must not take it for a failure.
    if let Some(Err(error)) = written {
        console::print_err(&format!("warning: {error}"));
    }
    result.map(drop).map_err(|failed| Failure {
        touched,
        ..Failure::of(failed.error, install.install.bundle())
    })
}

fn run_plan(plan: &args::Plan) -> Result<(), Failure> {
    let console = console(Mode::None, plan.level, plan.log.as_deref())?;
    let result = plan.install.plan(&plan.link, &console.reporter());
    let printed = match &result {
        Ok(planned) if plan.json => console::print_json(planned),
        Ok(planned) => console::print_out(&planned.to_string()),
        Err(failed) if plan.json => console::print_json(&failed.report),
        Err(_) => Ok(()),
    };
    result.map_err(|failed| Failure::of(failed.error, plan.install.bundle()))?;
    Ok(printed?)
}

fn run_inspect(inspect: &args::Inspect) -> Result<(), Failure> {
    console(Mode::None, inspect.level, inspect.log.as_deref())?;
    let bundle = &inspect.options.bundle;
    let (inspection, required) =
        inspect::inspect(&inspect.options).map_err(|error| Failure::of(error, bundle))?;
    let printed = if inspect.json {
        console::print_json(&inspection)
    } else {
        console::print_out(&inspection.to_string())
    };
    required.map_err(|error| Failure {
        // Who signed it was told just now.
        hint: None,
        ..Failure::of(error, bundle)
    })?;
    Ok(printed?)
}

fn run_index(index: &args::Index) -> Result<(), Failure> {
    let (options, telling) = (&index.options, &index.telling);
    let console = console(telling.progress, telling.level, None)?;
    let run = |tell: Tell<'_>| reflash::index::index(options, tell);
    if let Some(indexed) = console.tool(&options.image, run)? {
        if index.json {
            console::print_json(&indexed)?;
        } else {
            telling.sum_up(&indexed);
        }
    }
    Ok(())
}

fn run_verify(verify: &args::Verify) -> Result<(), Failure> {
    let console = console(Mode::None, verify.level, verify.log.as_deref())?;
    let result = verify::verify(&verify.options, &console.reporter());
    let report = match &result {
        Ok(report) => report,
        Err(failed) => &failed.report,
    };
    let mut printed = Ok(());
    if verify.json {
        printed = console::print_json(report);
    } else if verify.level > log::LevelFilter::Off && !report.targets.is_empty() {
        console::print_err(report.to_string().trim_end());
    }
    result.map_err(|failed| Failure::of(failed.error, &verify.options.bundle))?;
    Ok(printed?)
}

/// Ends the program on SIGINT, SIGTERM and SIGHUP, with the last words of a run that failed.
///
/// At once, from wherever the run is: a power cut does the same, and the target is safe against
/// that at every moment. So no stage needs to know of signals, and none can delay the end, not
/// even one that waits for a dead server or a full pipe.
fn end_on_signals(reporter: &Arc<Reporter>, report: Option<PathBuf>) {
    let reporter = reporter.clone();
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let waiting = signals.and_then(|mut signals| {
        beside("signals", move || {
            if let Some(signal) = signals.forever().next() {
                end_on(signal, &reporter, report);
            }
        })
    });
    if let Err(error) = waiting {
        log::warn!("signals end the run without a word: {error}");
    }
}

/// Starts a thread that nobody waits for.
fn beside(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread.stack_size(STACK_SIZE).spawn(work)?;
    Ok(())
}

fn end_on(signal: i32, reporter: &Arc<Reporter>, report: Option<PathBuf>) {
    let code = u8::try_from(128 + signal).unwrap_or(1);
    let name = signal_name(signal).unwrap_or("a signal");
    let reason = format!("interrupted by {name}");
    let mut last = reporter.interrupted(code, &reason);
    // The last words may block, on a pipe that is full or a terminal that is stopped.
    let (limited, why) = (reporter.clone(), reason.clone());
    let limit = beside("last words", move || {
        std::thread::sleep(LAST_WORDS);
        std::process::exit(limited.interrupted(code, &why).exit.into());
    });
    let is_cut = last.exit == code;
    if !is_cut && limit.is_ok() {
        // The targets are complete, or it failed just now: most likely it ends by itself.
        std::thread::sleep(GRACE);
        last = reporter.interrupted(code, &reason);
    }
    if ENDING.swap(true, Ordering::Relaxed) {
        return;
    }
    // What is kept comes first, then whoever can be told: none of them waits for another.
    let written = report.map(|path| last.write(&path));
    let exit = i32::from(last.exit);
    if limit.is_err() {
        // It ends in any case.
        std::process::exit(exit);
    }
    let touched = last.target_touched;
    let (telling, told) = mpsc::channel::<()>();
    let reporter = reporter.clone();
    let event = beside("last event", move || {
        reporter.finish(&last);
        drop(telling);
    });
    if event.is_ok() {
        // Nothing ever comes, but it ends.
        told.recv_timeout(LISTENER).ok();
    }
    if let Some(Err(error)) = written {
        console::print_err(&format!("reflash: {error}"));
    }
    if is_cut {
        console::print_err(&format!("reflash: {reason}"));
        console::print_target_state(touched);
    }
    told.recv().ok();
    std::process::exit(exit);
}

#[cfg(feature = "pack")]
fn run_pack(pack: &args::Pack) -> Result<(), Failure> {
    let (options, telling) = (&pack.options, &pack.telling);
    let console = console(telling.progress, telling.level, None)?;
    let run = |tell: Tell<'_>| reflash::pack::pack_and_tell(options, tell);
    if let Some(packed) = console.tool(&options.output, run)? {
        telling.sum_up(&packed);
        console::print_out(&format!("{}\n", packed.hash))?;
    }
    Ok(())
}

#[cfg(feature = "pack")]
fn run_sign(options: &reflash::sign::Options) -> Result<(), Failure> {
    let hash = reflash::sign::sign(options)?;
    Ok(console::print_out(&format!("{hash}\n"))?)
}

#[cfg(feature = "pack")]
fn run_estimate(estimate: &args::Estimate) -> Result<(), Failure> {
    let (options, telling) = (&estimate.options, &estimate.telling);
    let console = console(telling.progress, telling.level, None)?;
    let run = |tell: Tell<'_>| reflash::estimate::estimate(options, tell);
    if let Some(told) = console.tool(&options.old, run)? {
        if estimate.json {
            console::print_json(&told)?;
        } else {
            console::print_out(&told.to_string())?;
        }
    }
    Ok(())
}
