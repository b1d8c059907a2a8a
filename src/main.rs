//! The `reflash` command: parse, start the reporter, run, turn the result into an exit code.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use reflash::args::{self, Command, Index, Inspect, Install, Plan, Verify};
use reflash::error::Error;
use reflash::http::Counters;
use reflash::notify::Manager;
use reflash::report::{self, Progress, Report, Reporter};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

/// Pause between two looks at the progress.
const TICK: Duration = Duration::from_millis(200);

/// Time for the last words after a signal.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    let result = match args::parse(arguments, &|name| std::env::var_os(name)) {
        Ok(Command::Print(text)) => {
            // A reader that closed the pipe has seen enough.
            report::print_out(&text);
            return ExitCode::SUCCESS;
        }
        Ok(Command::Install(install)) => return run_install(&install),
        Ok(Command::Plan(plan)) => return run_plan(&plan),
        Ok(Command::Inspect(inspect)) => return run_inspect(&inspect),
        Ok(Command::Index(index)) => run_index(&index),
        Ok(Command::Verify(verify)) => return run_verify(&verify),
        #[cfg(feature = "pack")]
        Ok(Command::Pack(options)) => run_pack(&options),
        #[cfg(feature = "pack")]
        Ok(Command::Sign(options)) => run_sign(&options),
        #[cfg(feature = "pack")]
        Ok(Command::Estimate(estimate)) => run_estimate(&estimate),
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, None, false),
    }
}

/// The reporter, and all that it is to tell besides the terminal.
fn reporter(
    progress: Progress,
    counters: &Arc<Counters>,
    log: Option<&Path>,
) -> Result<Arc<Reporter>, Error> {
    if let Some(path) = log {
        report::log_to(path)?;
    }
    let reporter = Reporter::new(progress, counters.clone());
    if let Some(address) = std::env::var_os("NOTIFY_SOCKET").filter(|a| !a.is_empty()) {
        match Manager::at(&address) {
            Ok(manager) => reporter.tell(manager),
            Err(error) => report::print_err(&format!("warning: NOTIFY_SOCKET: {error}")),
        }
    }
    Ok(Arc::new(reporter))
}

fn run_install(install: &Install) -> ExitCode {
    let counters = Arc::new(Counters::default());
    let reporter = match reporter(install.progress, &counters, install.log.as_deref()) {
        Ok(reporter) => reporter,
        Err(error) => return fail(&error, None, false),
    };
    reporter.install_logger(install.level);
    if let Some(Err(error)) = install.report.as_deref().map(Report::check) {
        return fail(&error, None, false);
    }
    end_on_signals(&reporter, install.report.clone());
    tick(&reporter);
    let (report, result) = reflash::install::install(&install.options, &reporter, &counters);
    reporter.finish(&report);
    let written = match &install.report {
        Some(path) => report.write(path),
        None => Ok(()),
    };
    match result {
        Ok(()) => {
            // The target is what counts: a script must not take it for a failure.
            if let Err(error) = written {
                report::print_err(&format!("warning: {error}"));
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            let bundle = install.options.bundle.shown();
            fail(&error, Some(&bundle), report.target_touched)
        }
    }
}

fn run_plan(plan: &Plan) -> ExitCode {
    let counters = Arc::new(Counters::default());
    let reporter = match reporter(Progress::None, &counters, plan.log.as_deref()) {
        Ok(reporter) => reporter,
        Err(error) => return fail(&error, None, false),
    };
    reporter.install_logger(plan.level);
    let (told, result) = reflash::install::planned::plan(&plan.options, &reporter, &counters);
    if plan.json {
        report::print_json(&told);
    } else if result.is_ok() {
        report::print_out(&told.to_string());
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, Some(&plan.options.install.bundle.shown()), false),
    }
}

fn run_inspect(inspect: &Inspect) -> ExitCode {
    let counters = Arc::new(Counters::default());
    let reporter = match reporter(Progress::None, &counters, inspect.log.as_deref()) {
        Ok(reporter) => reporter,
        Err(error) => return fail(&error, None, false),
    };
    reporter.install_logger(inspect.level);
    let result = reflash::inspect::inspect(&inspect.options, &counters);
    let result = result.and_then(|(inspection, required)| {
        if inspect.json {
            report::print_json(&inspection);
        } else {
            report::print_out(&inspection.to_string());
        }
        required
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, Some(&inspect.options.bundle.shown()), false),
    }
}

fn run_index(index: &Index) -> Result<(), Error> {
    let indexed = reflash::index::index(&index.options, &|_| {})?;
    if index.json {
        report::print_json(&indexed);
    } else if !index.quiet {
        report::print_err(&indexed.to_string());
    }
    Ok(())
}

fn run_verify(verify: &Verify) -> ExitCode {
    let counters = Arc::new(Counters::default());
    let reporter = match reporter(Progress::None, &counters, verify.log.as_deref()) {
        Ok(reporter) => reporter,
        Err(error) => return fail(&error, None, false),
    };
    reporter.install_logger(verify.level);
    let (report, result) = reflash::verify::verify(&verify.options, &reporter, &counters);
    if verify.json || verify.level > log::LevelFilter::Off {
        report.print(verify.json);
    }
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, Some(&verify.options.bundle.shown()), false),
    }
}

/// Lets the reporter speak while the run waits for something.
fn tick(reporter: &Arc<Reporter>) {
    let reporter = reporter.clone();
    std::thread::spawn(move || loop {
        std::thread::sleep(TICK);
        reporter.tick();
    });
}

/// Ends the program on SIGINT, SIGTERM and SIGHUP, with the last words of a run that failed.
///
/// At once, from wherever the run is: a power cut does the same, and the target is safe against
/// that at every moment. So no stage needs to know of signals, and none can delay the end, not
/// even one that waits for a dead server or a full pipe.
fn end_on_signals(reporter: &Arc<Reporter>, report: Option<PathBuf>) {
    let reporter = reporter.clone();
    let mut signals = match Signals::new([SIGINT, SIGTERM, SIGHUP]) {
        Ok(signals) => signals,
        Err(error) => return log::warn!("signals end the run without a word: {error}"),
    };
    std::thread::spawn(move || {
        let Some(signal) = signals.forever().next() else {
            return;
        };
        let exit = u8::try_from(128 + signal).unwrap_or(1);
        std::thread::spawn(move || {
            // The last words may block too, on a terminal that is stopped.
            std::thread::sleep(LAST_WORDS);
            std::process::exit(exit.into());
        });
        let name = signal_name(signal).unwrap_or("a signal");
        // If the target is complete, the last words are those of a run that went well.
        let Some(last) = reporter.interrupted(exit, name) else {
            return;
        };
        reporter.finish(&last);
        if let Some(Err(error)) = report.map(|path| last.write(&path)) {
            report::print_err(&format!("reflash: {error}"));
        }
        report::print_err(&format!("reflash: interrupted by {name}"));
        report::print_target_state(last.target_touched);
        std::process::exit(exit.into());
    });
}

#[cfg(feature = "pack")]
fn run_pack(options: &reflash::pack::Options) -> Result<(), Error> {
    let packed = reflash::pack::pack(options)?;
    report::print_out(&format!("{}\n", packed.hash));
    Ok(())
}

#[cfg(feature = "pack")]
fn run_sign(options: &reflash::sign::Options) -> Result<(), Error> {
    let hash = reflash::sign::sign(options)?;
    report::print_out(&format!("{hash}\n"));
    Ok(())
}

#[cfg(feature = "pack")]
fn run_estimate(estimate: &args::Estimate) -> Result<(), Error> {
    let told = reflash::estimate::estimate(&estimate.options)?;
    if estimate.json {
        report::print_json(&told);
    } else {
        report::print_out(&told.to_string());
    }
    Ok(())
}

fn fail(error: &Error, bundle: Option<&str>, target_incomplete: bool) -> ExitCode {
    report::print_error(error, bundle, target_incomplete);
    ExitCode::from(error.class().exit_code())
}
