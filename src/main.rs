//! The `reflash` command: parse, start the reporter, run, turn the result into an exit code.

use std::process::ExitCode;
use std::sync::Arc;

use reflash::args::{self, Command, Install};
use reflash::error::Error;
use reflash::http::Counters;
use reflash::report::{self, Reporter};

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    let result = match args::parse(arguments, &|name| std::env::var_os(name)) {
        Ok(Command::Print(text)) => {
            // A reader that closed the pipe has seen enough.
            report::print_out(&text);
            return ExitCode::SUCCESS;
        }
        Ok(Command::Install(install)) => return run_install(&install),
        #[cfg(feature = "pack")]
        Ok(Command::Pack(options)) => run_pack(&options),
        Err(error) => Err(error),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, false),
    }
}

fn run_install(install: &Install) -> ExitCode {
    let counters = Arc::new(Counters::default());
    let reporter = Arc::new(Reporter::new(install.progress, counters.clone()));
    reporter.install_logger(install.level);
    let (report, result) = reflash::install::install(&install.options, &reporter, &counters);
    reporter.finish(&report);
    let written = match &install.report {
        Some(path) => report.write(path),
        None => Ok(()),
    };
    match result.and(written) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error, report.target_touched && report.exit != 0),
    }
}

#[cfg(feature = "pack")]
fn run_pack(options: &reflash::pack::Options) -> Result<(), Error> {
    let packed = reflash::pack::pack(options)?;
    report::print_out(&format!("{}\n", packed.hash));
    Ok(())
}

fn fail(error: &Error, target_incomplete: bool) -> ExitCode {
    report::print_error(error, target_incomplete);
    ExitCode::from(error.class().exit_code())
}
