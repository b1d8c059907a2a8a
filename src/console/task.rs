//! Progress of the tools around an install: `pack`, `index`, `estimate`.
//!
//! They tell of steps ([`Step`]); here these become a bar, lines, or JSON. As for an install, percent
//! never falls and is 100 only after success; a JSON listener gets the result as its last line.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;
use std::time::Instant;

use serde::Serialize;

use super::{columns, json, say, show_line, Console, Line, Mode, LINE_INTERVAL};
use crate::error::{Error, Result};
use crate::report::{INTERVAL, MOST, SCHEMA};
use crate::terminal::{self, Rate, Task};
use crate::work::{Step, Tell};

/// What is told of work that had no steps, such as that on an empty image.
const NOTHING: Task = Task {
    percent: 0.0,
    phase: "done",
    done: 0,
    total: 0,
    rate: 0,
    left: None,
};

/// A line of JSON; what begins and warns is as for an install.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum TaskLine<'a, T> {
    Progress {
        phase: &'static str,
        percent: f64,
        bytes: u64,
        bytes_total: u64,
        bytes_per_second: u64,
    },
    Done {
        report: &'a T,
    },
    Failed {
        report: Failure,
    },
}

#[derive(Serialize)]
struct Failure {
    exit: u8,
    error: String,
}

/// What was told so far.
struct Told {
    started: Instant,
    percent: f64,
    rate: Rate,
    last: Option<Task>,
}

impl Told {
    fn task(&mut self, step: &Step) -> Task {
        self.percent = self.percent.max((100.0 * step.share).min(MOST));
        if self
            .last
            .as_ref()
            .is_some_and(|last| last.phase != step.phase)
        {
            // What another part did a second says nothing of this one.
            self.rate = Rate::default();
        }
        let now = self.started.elapsed();
        let task = Task {
            percent: self.percent,
            phase: step.phase,
            done: step.done,
            total: step.total,
            rate: self.rate.at(now, step.done),
            left: terminal::left(now, step.share),
        };
        self.last = Some(task.clone());
        task
    }
}

impl Console {
    /// Runs a tool on a file and shows how far it is. `None` if the result is told already, because a
    /// program listens.
    pub fn tool<T: Serialize>(
        &self,
        file: &Path,
        run: impl FnOnce(Tell<'_>) -> Result<T>,
    ) -> Result<Option<T>> {
        let is_json = self.inner().mode == Mode::Json;
        if is_json {
            say(&Line::Start {
                schema: SCHEMA,
                version: env!("CARGO_PKG_VERSION"),
                bundle: &file.display().to_string(),
            });
        }
        let told = Mutex::new(Told {
            started: Instant::now(),
            percent: 0.0,
            rate: Rate::default(),
            last: None,
        });
        let result = run(&|step| {
            // It only fails if another thread panicked while it told, and then the run ends.
            if let Ok(mut told) = told.lock() {
                let task = told.task(step);
                self.show_task(&task);
            }
        });
        self.inner().clear_bar();
        if !is_json {
            return result.map(Some);
        }
        let report = result.inspect_err(|error| say(&failed(error)))?;
        let last = told.into_inner().ok().and_then(|told| told.last);
        let mut task = last.unwrap_or(NOTHING);
        (task.percent, task.done) = (100.0, task.total);
        say(&progress(&task));
        // This one is the result.
        json(&TaskLine::Done { report: &report })?;
        Ok(None)
    }

    fn show_task(&self, task: &Task) {
        let mut inner = self.inner();
        let passed = inner.shown.map(|shown| shown.elapsed());
        let due = passed.is_none_or(|passed| match inner.mode {
            // Steps come as fast as blocks do.
            Mode::Bar => passed >= INTERVAL,
            _ => passed >= LINE_INTERVAL,
        });
        if !due {
            return;
        }
        inner.shown = Some(Instant::now());
        match inner.mode {
            Mode::Json => say(&progress(task)),
            Mode::Bar => {
                let text = terminal::task_bar(task, columns());
                let mut err = io::stderr().lock();
                inner.bar = write!(err, "\r{text}\x1b[K")
                    .and_then(|()| err.flush())
                    .is_ok();
            }
            Mode::Lines => show_line(&terminal::task_line(task)),
            // Auto is one of the others by now.
            Mode::None | Mode::Auto => {}
        }
    }
}

fn progress(task: &Task) -> TaskLine<'static, ()> {
    TaskLine::Progress {
        phase: task.phase,
        percent: (task.percent * 10.0).round() / 10.0,
        bytes: task.done,
        bytes_total: task.total,
        bytes_per_second: task.rate,
    }
}

fn failed(error: &Error) -> TaskLine<'static, ()> {
    TaskLine::Failed {
        report: Failure {
            exit: error.class().exit_code(),
            error: error.to_string(),
        },
    }
}
