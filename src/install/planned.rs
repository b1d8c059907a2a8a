//! What an install would do, and cost, with nothing written.
//!
//! The targets are opened and refused, the headers read, the seeds looked through and everything
//! decided by the very code of an install (`Run::prepare`); then, in place of a first write, it is
//! told. So what is promised is what is done, as long as seeds, targets and server stay as they
//! are.
//!
//! Plain sizes are known as far as the index tells them: of compressed `casync` blocks that are to
//! be fetched it does not. There sizes are the least that is possible.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::{missing, targets, with_closing, Decided, Install, Prepared, Run};
use crate::device::Target;
use crate::error::{Error, Result};
use crate::fetch;
use crate::link::Link;
use crate::remote::Location;
use crate::report::{peak_memory, Failed, HttpReport, Report, Reporter};
use crate::terminal::size;

/// The link that the time of a download is told for.
#[derive(Clone, Copy, Debug, Default)]
pub struct OnLink {
    /// Bytes a second; without it no time is told.
    pub rate: Option<u64>,
    /// A round trip; without it, it is measured.
    pub round_trip: Option<Duration>,
}

/// The plan of an install: its report with the numbers that are expected, and more.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are the schema's own
pub struct PlanReport {
    #[serde(flatten)]
    pub report: Report,
    pub spans: Vec<SpanReport>,
    pub expected: Expected,
}

/// A range of the bundle that would be asked for.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct SpanReport {
    pub payload: usize,
    pub start: u64,
    pub end: u64,
}

/// What an install would take besides bytes and requests.
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct Expected {
    /// Of the download, on this link; `null` without a rate.
    pub seconds: Option<f64>,
    pub bytes_per_second: Option<u64>,
    /// As given or measured, in seconds; `null` if neither.
    pub round_trip: Option<f64>,
    /// Most bytes in flight.
    pub memory: u64,
    /// Each target holds the least that its payload can have.
    pub fits: bool,
}

/// A table for people.
impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report {
            payloads,
            blocks,
            bytes,
            http,
            ..
        } = &self.report;
        for payload in payloads {
            let size = size(payload.size);
            writeln!(
                f,
                "slot {:?} to {}: {size} at least",
                payload.slot, payload.target
            )?;
        }
        writeln!(
            f,
            "blocks: {} total, {} fetched, {} seeded, {} copied, {} kept",
            blocks.total, blocks.fetched, blocks.seeded, blocks.copied, blocks.kept
        )?;
        writeln!(
            f,
            "bytes: {} fetched ({} of them index), {} seeded, {} kept, {} written at least",
            size(bytes.fetched),
            size(bytes.index),
            size(bytes.seeded),
            size(bytes.kept),
            size(bytes.written)
        )?;
        if http.requests > 0 {
            writeln!(
                f,
                "http: {} requests, {} connections",
                http.requests, http.connections
            )?;
        }
        let Expected {
            seconds,
            bytes_per_second,
            round_trip,
            memory,
            ..
        } = self.expected;
        if let Some(round_trip) = round_trip {
            writeln!(f, "round trip: {:.1} ms", round_trip * 1000.0)?;
        }
        if let (Some(seconds), Some(rate)) = (seconds, bytes_per_second) {
            writeln!(f, "time: {seconds:.1} s to download at {}/s", size(rate))?;
        }
        writeln!(f, "memory: {} in flight at most", size(memory))?;
        writeln!(f, "nothing was written")
    }
}

impl Install {
    /// Decides everything that [`run`](Self::run) would, and tells it; nothing is written. The report
    /// tells how far it came, also after a failure. `reporter` is told of the start, phases and progress;
    /// the end is what is returned, and no event.
    pub fn plan(
        &self,
        link: &OnLink,
        reporter: &Reporter,
    ) -> Result<PlanReport, Box<Failed<PlanReport>>> {
        let started = Instant::now();
        let open = |path: &Path| Target::open(path, self.care);
        reporter.start(&self.bundle.shown(), false);
        let mut run = Run::new(self, &open, reporter);
        let mut planned = Planned {
            spans: Vec::new(),
            expected: Expected {
                bytes_per_second: link.rate,
                memory: self.memory,
                ..Expected::default()
            },
            requests: 0,
        };
        let result = self
            .check()
            .and_then(|()| reporter.ticking(|| run.plan(link, &mut planned)));
        run.seconds.total = started.elapsed().as_secs_f64();
        let (bytes, requests) = (run.counts.bytes_to_fetch, planned.requests);
        let mut report = run.report(result.as_ref().err());
        if result.is_ok() {
            report.result = "planned";
            report.bytes.fetched = bytes;
            report.http = HttpReport {
                requests,
                connections: match requests {
                    0 => 0,
                    _ => self.workers as u64,
                },
                retries: 0,
            };
            report.peak_memory = peak_memory();
        }
        let report = PlanReport {
            report,
            spans: planned.spans,
            expected: planned.expected,
        };
        Failed::unless(result, report)
    }
}

/// What is gathered on the way.
struct Planned {
    spans: Vec<SpanReport>,
    expected: Expected,
    /// Requests in all, those for the headers included.
    requests: u64,
}

impl Run<'_> {
    fn plan(&mut self, link: &OnLink, planned: &mut Planned) -> Result<()> {
        let mut targets = targets::open(self.options, self.open, self.reporter)?;
        let start = Instant::now();
        let opened = self.open_bundle();
        self.seconds.open = start.elapsed().as_secs_f64();
        let (opening, destinations) = opened?;
        let mut prepared = self.prepare(opening, &destinations, &mut targets)?;
        planned.requests = self.counters.requests();
        if prepared.decided.is_empty() {
            self.plan_in_order(&mut prepared, &destinations, &targets)?;
        }
        planned.expected.fits = true;
        let has_workers = !prepared.clients.is_empty();
        let last = prepared.decided.len().saturating_sub(1);
        for (number, decided) in prepared.decided.iter().enumerate() {
            self.count(decided);
            let wanted = number == last && has_workers && !decided.plan.spans.is_empty();
            let closing = self.closing(&decided.opened.payload, wanted);
            let spans = with_closing(&decided.plan.spans, closing.as_ref());
            // What came with the headers is not asked for again.
            let asked = |span: &&Range<u64>| missing(&[(*span).clone()], &decided.opened) > 0;
            planned
                .spans
                .extend(spans.iter().filter(asked).map(|span| SpanReport {
                    payload: number,
                    start: span.start,
                    end: span.end,
                }));
        }
        if has_workers {
            planned.requests += planned.spans.len() as u64;
        }
        planned.expected.round_trip = match link.round_trip {
            Some(given) => Some(given.as_secs_f64()),
            None => self.measure(&mut prepared)?,
        };
        let link = Link {
            rate: link.rate,
            round_trip: Duration::try_from_secs_f64(planned.expected.round_trip.unwrap_or(0.0))
                .unwrap_or_default(),
            workers: self.options.workers,
        };
        planned.expected.seconds = link.seconds(self.counts.bytes_to_fetch, planned.requests);
        Ok(())
    }

    /// The one payload of a bundle that can only be read in order.
    fn plan_in_order(
        &mut self,
        prepared: &mut Prepared,
        destinations: &[usize],
        targets: &[Target],
    ) -> Result<()> {
        if destinations.len() > 1 {
            return Err(Error::Unsupported(
                "without byte ranges what is to be done for a later payload is not known before \
                 the first is read"
                    .to_owned(),
            ));
        }
        let (Some(opened), Some(number)) = (
            self.next_payload(&mut prepared.opening, destinations, targets)?,
            destinations.first(),
        ) else {
            return Ok(());
        };
        let target = targets.get(*number);
        let decided = self.decide(opened, &prepared.seeds, target, &prepared.shape);
        if let Some(target) = target {
            target.require(decided.plan.least_size)?;
        }
        if decided.plan.spans.is_empty() {
            // Then it is left as it is.
            self.counts.bytes_to_fetch = self.counters.bytes();
        }
        prepared.decided.push_back(decided);
        Ok(())
    }

    /// Adds what is expected of a payload's blocks to the counts.
    fn count(&mut self, decided: &Decided) {
        let (plan, counts) = (&decided.plan, &mut self.counts);
        counts.fetched += plan.fetched;
        counts.kept += plan.kept;
        counts.bytes_kept += plan.bytes_kept;
        counts.seeded += plan.seeded;
        counts.bytes_seeded += plan.bytes_seeded;
        counts.copied += plan.copied;
        let size = match &decided.opened.payload.index {
            Some(_) => plan.least_size,
            None => plan.bytes(),
        };
        counts.bytes_written += size.saturating_sub(plan.bytes_kept);
        let number = decided.opened.payload.number;
        if let Some(payload) = self.payloads.get_mut(number) {
            payload.size = size;
        }
    }

    /// A round trip to the server, in seconds, over a connection that is there; `None` without one.
    fn measure(&self, prepared: &mut Prepared) -> Result<Option<f64>> {
        let url = matches!(self.options.bundle, Location::Url(_));
        let Some(client) = prepared.clients.first_mut().filter(|_| url) else {
            return Ok(None);
        };
        let start = Instant::now();
        fetch::first(client, &(0..1), &self.options.access.policy)?;
        Ok(Some(start.elapsed().as_secs_f64()))
    }
}
