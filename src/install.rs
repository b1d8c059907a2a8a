//! The stages in order for one bundle: the only file that sees them all.
//!
//! All that can be refused is refused before anything is written: every target is opened and
//! checked before the first request; every destination, payload header and size before the first
//! write, where the bundle can be read out of order. Each payload is written but for its held-back
//! beginning; only when all of them are verified and synced are the targets sealed.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use crate::bundle::{Delivery, Entry, Header, Index, Payload};
use crate::device::{Care, Target};
use crate::error::{Error, Result};
use crate::fetch;
use crate::http::{Client, Counters};
use crate::open::{self, Opened, Opening, Trust};
use crate::plan::{self, Shape};
use crate::remote::{Access, Cursor, Location};
use crate::report::{
    self, BlocksReport, BundleReport, BytesReport, Counts, HttpReport, PayloadReport, Phase,
    Report, Reporter, SecondsReport,
};
use crate::seed::{self, Seed};
use crate::write::{write_unindexed, Outcome, Supply, Writer};

/// Longest span: long against a round trip at any usual rate, short enough that the workers share
/// a run and that the writer need not wait long for the first.
const MAX_SPAN: u64 = 1 << 20;

/// Shortest limit of a span, with a small memory budget.
const MIN_SPAN: u64 = 64 << 10;

/// Where payloads go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The one slot payload of the bundle goes here.
    One(PathBuf),
    /// Slots by name.
    Slots(Vec<(String, PathBuf)>),
}

/// Everything an install needs to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bundle.
    pub bundle: Location,
    /// How to get at it.
    pub access: Access,
    /// What it must prove.
    pub trust: Trust,
    /// Where its payloads go.
    pub targets: Targets,
    /// How to treat the targets.
    pub care: Care,
    /// Where blocks may be reused from.
    pub seeds: Vec<seed::Spec>,
    /// Accept payloads without block index.
    pub allow_missing_index: bool,
    /// Connections.
    pub workers: usize,
    /// Budget for bytes in flight.
    pub memory: u64,
    /// Merge blocks into spans.
    pub merge: bool,
}

/// Installs a bundle. The report tells what was done, also after a failure.
pub fn install(
    options: &Options,
    reporter: &Reporter,
    counters: &Arc<Counters>,
) -> (Report, Result<()>) {
    let started = Instant::now();
    let mut run = Run {
        options,
        reporter,
        counters,
        counts: Counts::default(),
        seconds: SecondsReport::default(),
        bundle: BundleReport::default(),
        payloads: Vec::new(),
        touched: false,
    };
    reporter.start(&options.bundle.shown());
    let result = run.run();
    run.seconds.total = started.elapsed().as_secs_f64();
    (run.report(result.as_ref().err()), result)
}

struct Run<'a> {
    options: &'a Options,
    reporter: &'a Reporter,
    counters: &'a Arc<Counters>,
    counts: Counts,
    seconds: SecondsReport,
    bundle: BundleReport,
    payloads: Vec<PayloadReport>,
    touched: bool,
}

/// How the bundle's data are got once its headers are read.
enum Source<'a> {
    /// Workers fetch ranges.
    Ranges(&'a mut [Client]),
    /// One read position.
    Cursor(&'a mut Cursor),
}

impl Source<'_> {
    /// Runs `writer` with the bytes of `spans` at hand. `in_hand` is what came with the headers:
    /// its offset in the bundle, and its bytes.
    fn supply<R>(
        &mut self,
        spans: &[Range<u64>],
        in_hand: (u64, &[u8]),
        options: &Options,
        writer: impl FnOnce(&mut Supply<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        match self {
            Self::Ranges(clients) => {
                let retry = &options.access.retry;
                fetch::with_workers(clients, spans, in_hand, options.memory, retry, |workers| {
                    writer(&mut Supply::Workers(workers))
                })
            }
            Self::Cursor(cursor) => writer(&mut Supply::Cursor(cursor, spans)),
        }
    }

    /// Ranges can be fetched out of order and ahead.
    fn has_workers(&self) -> bool {
        matches!(self, Self::Ranges(_))
    }
}

/// A payload with all that is needed to install it.
struct Job<'a> {
    payload: &'a Payload,
    in_hand: &'a [u8],
    entry: &'a Entry,
    target: &'a mut Target,
    /// Where the end of the last payload is to be fetched from, together with its data.
    closing: Option<Range<u64>>,
}

impl Run<'_> {
    fn run(&mut self) -> Result<()> {
        let mut targets = self.open_targets()?;
        let result = self.run_on(&mut targets);
        self.touched = targets.iter().any(Target::touched);
        result
    }

    fn run_on(&mut self, targets: &mut [Target]) -> Result<()> {
        let start = Instant::now();
        let opened = self.open();
        self.seconds.open = start.elapsed().as_secs_f64();
        let (opening, destinations) = opened?;
        self.install_all(opening, &destinations, targets)?;
        let start = Instant::now();
        let sealed = targets.iter_mut().try_for_each(Target::seal);
        self.seconds.sync += start.elapsed().as_secs_f64();
        sealed
    }

    /// Opens every target before anything is asked of the network.
    fn open_targets(&self) -> Result<Vec<Target>> {
        let paths: Vec<&Path> = match &self.options.targets {
            Targets::One(path) => vec![path],
            Targets::Slots(slots) => slots.iter().map(|(_, path)| path.as_path()).collect(),
        };
        let mut targets: Vec<Target> = Vec::new();
        for path in paths {
            let same = |other: &Target| other.path().display().to_string();
            // Before it is opened: a device that we hold ourselves could not be.
            let mut other = targets.iter().find(|other| other.is_at(path)).map(same);
            if other.is_none() {
                let target = Target::open(path, self.options.care)?;
                other = targets
                    .iter()
                    .find(|other| other.is_same(&target))
                    .map(same);
                targets.push(target);
            }
            if let Some(other) = other {
                return Err(Error::Usage(format!(
                    "{other} and {} are the same target",
                    path.display()
                )));
            }
        }
        if let Location::File(bundle) = &self.options.bundle {
            if let Some(target) = targets.iter().find(|target| target.is_at(bundle)) {
                return Err(Error::Target {
                    path: target.path().to_owned(),
                    reason: "it is the bundle itself".into(),
                });
            }
        }
        Ok(targets)
    }

    /// Opens the bundle and finds the target of each payload.
    fn open(&mut self) -> Result<(Opening, Vec<usize>)> {
        self.reporter.phase(Phase::Open);
        let options = self.options;
        let cursor = Cursor::open(&options.bundle, &options.access, self.counters)?;
        self.bundle.size = cursor.size();
        let opening = open::open(cursor, &options.trust)?;
        self.bundle.hash = Some(opening.header().hash.to_string());
        let destinations = destinations(opening.header(), &options.targets)?;
        Ok((opening, destinations))
    }

    fn install_all(
        &mut self,
        mut opening: Opening,
        destinations: &[usize],
        targets: &mut [Target],
    ) -> Result<()> {
        let start = Instant::now();
        let mut ahead = VecDeque::new();
        if opening.cursor().jumps() {
            while let Some(opened) = self.next_payload(&mut opening, destinations, targets)? {
                ahead.push_back(opened);
            }
        }
        self.seconds.open += start.elapsed().as_secs_f64();
        let mut clients = Vec::new();
        if let Some(client) = opening.cursor().take_client() {
            clients.extend((1..self.options.workers).map(|_| client.sibling()));
            // It has a connection already: the first worker gets it.
            clients.insert(0, client);
        }
        let mut seeds = seed::open(&self.options.seeds);
        let entries = opening.header().entries.clone();
        for (entry, destination) in entries.iter().zip(destinations) {
            let opened = match ahead.pop_front() {
                Some(opened) => Some(opened),
                None => self.next_payload(&mut opening, destinations, targets)?,
            };
            let (Some(opened), Some(target)) = (opened, targets.get_mut(*destination)) else {
                return Err(Error::Internal("a payload or its target is lost"));
            };
            let payload = &opened.payload;
            let blocks = payload.index.as_ref().map_or(0, |index| index.len() as u64);
            self.reporter.payload(payload.number, entries.len(), blocks);
            let mut source = if clients.is_empty() {
                Source::Cursor(opening.cursor())
            } else {
                Source::Ranges(&mut clients)
            };
            let is_last = payload.number + 1 == entries.len();
            let closing = open::closing_range(payload.data.end, self.bundle.size);
            if is_last && source.has_workers() {
                self.counts.bytes_to_fetch += closing.end - closing.start;
            }
            let job = Job {
                payload,
                in_hand: &opened.in_hand,
                entry,
                target,
                closing: (is_last && source.has_workers()).then_some(closing),
            };
            self.install_payload(job, &mut source, &mut seeds)?;
        }
        if clients.is_empty() {
            opening.close()?;
        }
        Ok(())
    }

    /// Reads the next payload header and refuses what can be refused by it.
    fn next_payload(
        &mut self,
        opening: &mut Opening,
        destinations: &[usize],
        targets: &[Target],
    ) -> Result<Option<Opened>> {
        let Some(opened) = opening.next_payload()? else {
            return Ok(None);
        };
        let payload = &opened.payload;
        self.counts.bytes_index += payload.header_size;
        self.counts.bytes_to_fetch += payload.header_size;
        let least = match &payload.index {
            Some(index) => {
                self.counts.total += index.len() as u64;
                index.size_bounds().0
            }
            None if self.options.allow_missing_index => payload.data.end - payload.data.start,
            None => {
                return Err(Error::Unsupported(format!(
                    "payload {} has no block index, so its bytes cannot be checked before they \
                     are written (--insecure-allow-missing-block-index accepts that)",
                    payload.number
                )))
            }
        };
        if let Some(target) = destinations
            .get(payload.number)
            .and_then(|number| targets.get(*number))
        {
            target.require(least)?;
        }
        Ok(Some(opened))
    }

    fn install_payload(
        &mut self,
        mut job: Job<'_>,
        source: &mut Source<'_>,
        seeds: &mut [Seed],
    ) -> Result<()> {
        let Job { entry, payload, .. } = job;
        let slot = match &entry.delivery {
            Delivery::Slot(name) => name.clone(),
            _ => return Err(Error::Internal("only slot payloads are installed")),
        };
        match &payload.index {
            Some(index) => self.install_indexed(&mut job, index, source, seeds)?,
            None => self.install_unindexed(&mut job, source)?,
        }
        let target = job.target;
        let start = Instant::now();
        self.reporter.phase(Phase::Sync);
        let synced = target.sync();
        self.seconds.sync += start.elapsed().as_secs_f64();
        self.payloads.push(PayloadReport {
            slot,
            target: target.path().display().to_string(),
            size: target.position(),
            digest: entry.digest.to_string(),
        });
        synced
    }

    fn install_indexed(
        &mut self,
        job: &mut Job<'_>,
        index: &Index,
        source: &mut Source<'_>,
        seeds: &mut [Seed],
    ) -> Result<()> {
        let start = Instant::now();
        self.reporter.phase(Phase::Seed);
        let mut have = seed::find(seeds, index, self.reporter);
        self.seconds.seed += start.elapsed().as_secs_f64();

        self.reporter.phase(Phase::Plan);
        let shape = self.shape(source);
        let mut plan = plan::plan(index, &have, 0, &shape);
        log::info!(
            "plan blocks={} fetch={} bytes={} runs={} spans={}",
            plan.steps.len(),
            plan.fetched,
            plan.bytes(),
            plan.runs,
            plan.spans.len()
        );

        let start = Instant::now();
        self.reporter.phase(Phase::Install);
        let mut writer = Writer::new(
            job.payload.number,
            index,
            &job.entry.digest,
            job.target,
            seeds,
            self.reporter,
            &mut self.counts,
        );
        let in_hand = (job.payload.data.start, job.in_hand);
        let result = loop {
            writer.planned(plan.bytes());
            let mut spans = std::mem::take(&mut plan.spans);
            spans.extend(job.closing.clone());
            let outcome = source.supply(&spans, in_hand, self.options, |supply| {
                let outcome = writer.run(&plan, &spans, supply)?;
                if outcome == Outcome::Done {
                    check_closing(job.closing.as_ref(), &spans, supply)?;
                }
                Ok(outcome)
            });
            match outcome {
                Ok(Outcome::Done) => break Ok(()),
                Ok(Outcome::Replan { without, from }) => {
                    have.forget(without);
                    plan = plan::plan(index, &have, from, &shape);
                }
                Err(error) => break Err(error),
            }
        };
        let result = result.and_then(|()| writer.finish(&job.entry.digest));
        self.seconds.install += start.elapsed().as_secs_f64();
        result
    }

    fn install_unindexed(&mut self, job: &mut Job<'_>, source: &mut Source<'_>) -> Result<()> {
        let start = Instant::now();
        self.reporter.phase(Phase::Install);
        let data = &job.payload.data;
        self.counts.bytes_to_fetch += data.end - data.start;
        let mut spans = plan::slices(data, self.shape(source).max_span);
        let count = spans.len();
        spans.extend(job.closing.clone());
        let written = source.supply(&spans, (data.start, job.in_hand), self.options, |supply| {
            write_unindexed(
                job.payload.number,
                count,
                &job.entry.digest,
                job.target,
                supply,
                self.reporter,
                &mut self.counts,
            )?;
            check_closing(job.closing.as_ref(), &spans, supply)
        });
        self.seconds.install += start.elapsed().as_secs_f64();
        written
    }

    fn shape(&self, source: &Source<'_>) -> Shape {
        let share = self.options.memory / (2 * self.options.workers.max(1) as u64);
        Shape {
            max_span: share.clamp(MIN_SPAN, MAX_SPAN),
            merge: self.options.merge,
            // Reading through gaps saves requests; a cursor makes none.
            gaps: source.has_workers(),
        }
    }

    fn report(self, error: Option<&Error>) -> Report {
        let counts = self.counts;
        Report {
            schema: report::SCHEMA,
            result: if error.is_some() {
                "failed"
            } else {
                "installed"
            },
            exit: error.map_or(0, |error| error.class().exit_code()),
            error: error.map(ToString::to_string),
            blocks: BlocksReport {
                total: counts.total,
                fetched: counts.fetched,
                seeded: counts.seeded,
                kept: counts.kept,
                copied: counts.copied,
            },
            bytes: BytesReport {
                target: self.payloads.iter().map(|payload| payload.size).sum(),
                fetched: self.counters.bytes(),
                index: counts.bytes_index,
                seeded: counts.bytes_seeded,
                kept: counts.bytes_kept,
                written: counts.bytes_written,
            },
            bundle: self.bundle,
            payloads: self.payloads,
            http: HttpReport {
                requests: self.counters.requests(),
                connections: self.counters.connections(),
                retries: self.counters.retries(),
            },
            seconds: self.seconds,
            peak_memory: report::peak_memory(),
            target_touched: self.touched,
        }
    }
}

/// Checks the end of the last payload, which is the last of `spans`, if it was to be fetched.
fn check_closing(
    closing: Option<&Range<u64>>,
    spans: &[Range<u64>],
    supply: &mut Supply<'_, '_>,
) -> Result<()> {
    match closing {
        Some(closing) => open::check_closing(&supply.take(spans.len() - 1)?, closing.start),
        None => Ok(()),
    }
}

/// The number of the target of each payload, or why the bundle is not installed. Nothing is ever
/// left out silently: half an update is none.
fn destinations(header: &Header, targets: &Targets) -> Result<Vec<usize>> {
    let mut slots: Vec<&str> = Vec::new();
    for (number, entry) in header.entries.iter().enumerate() {
        let unsupported =
            |what: String| Err(Error::Unsupported(format!("payload {number} {what}")));
        match &entry.delivery {
            Delivery::Slot(name) if slots.contains(&name.as_str()) => {
                return unsupported(format!("is a second one for slot {name:?}"))
            }
            Delivery::Slot(name) => slots.push(name),
            Delivery::Execute(arguments) => {
                return unsupported(format!("is to be executed, by {arguments:?}"))
            }
            Delivery::AppFile { app, path } => {
                return unsupported(format!("is file {path:?} of app {app:?}"))
            }
            Delivery::AppArchive(app) => {
                return unsupported(format!("is an archive of app {app:?}"))
            }
            Delivery::None => return unsupported("does not say where it is to go".into()),
        }
        if let Some(format) = &entry.delta {
            return unsupported(format!("is a static delta ({format}), not an image"));
        }
    }
    if slots.is_empty() {
        return Err(Error::Unsupported("it has no payload".into()));
    }
    match targets {
        Targets::One(_) if slots.len() == 1 => Ok(vec![0]),
        Targets::One(_) => Err(Error::Usage(format!(
            "the bundle has payloads for slots {slots:?}: give --slot NAME=PATH for each instead of --target"
        ))),
        Targets::Slots(given) => {
            if let Some((name, _)) = given.iter().find(|(name, _)| !slots.contains(&name.as_str())) {
                return Err(Error::Usage(format!(
                    "the bundle has no payload for slot {name:?}, only for {slots:?}"
                )));
            }
            slots
                .iter()
                .map(|slot| {
                    given.iter().position(|(name, _)| name == slot).ok_or_else(|| {
                        Error::Usage(format!(
                            "the bundle has a payload for slot {slot:?}: give --slot {slot}=PATH too"
                        ))
                    })
                })
                .collect()
        }
    }
}
