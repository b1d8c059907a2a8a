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

use crate::bundle::{Delivery, Entry, Header, Payload};
use crate::device::{Care, Target};
use crate::error::{Error, Result};
use crate::fetch;
use crate::http::{Client, Counters};
use crate::open::{self, Opened, Opening, Trust};
use crate::plan::{self, Plan, Shape};
use crate::remote::{Access, Cursor, Location};
use crate::report::{
    self, BundleReport, Counts, HttpReport, PayloadReport, Phase, Report, Reporter, SecondsReport,
};
use crate::seed::{self, Have, Seed};
use crate::unpack::{Ahead, Unpacker};
use crate::write::{Outcome, Supply, Writer};

/// Longest span: long against a round trip at any usual rate, short enough that the workers share
/// a run and that the writer need not wait long for the first.
const MAX_SPAN: u64 = 1 << 20;

/// Shortest limit of a span, with a small memory budget.
const MIN_SPAN: u64 = 64 << 10;

/// The part of the memory budget for what comes: this fraction.
const STORED_SHARE: u64 = 2;

/// The part for what is unpacked ahead: this fraction. The quarter that is left is for what an
/// allocator loses when threads hand large buffers to each other; glibc's lost more than that of a
/// half (67 MiB at the peak of a 1.4 GB install with the default budget of 32).
const UNPACKED_SHARE: u64 = 4;

/// Where payloads go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The one slot payload of the bundle goes here.
    One(PathBuf),
    /// Slots by name.
    Slots(Vec<(String, PathBuf)>),
}

/// The memory budget where none is given.
pub const MEMORY: u64 = 32 << 20;

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
        payload_count: 0,
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
    /// Payloads in all.
    payload_count: usize,
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
    /// Runs `writer` with `spans` at hand. `in_hand` is what came with the headers: its offset in
    /// the bundle, and its bytes.
    fn supply<'s, R>(
        &mut self,
        spans: &[Range<u64>],
        in_hand: (u64, &[u8]),
        unpacker: &Unpacker<'_, 's>,
        options: &Options,
        writer: impl FnOnce(&mut Supply<'_, '_, 's>) -> Result<R>,
    ) -> Result<R> {
        let clients = match self {
            Self::Ranges(clients) => clients,
            Self::Cursor(cursor) => return writer(&mut Supply::Cursor(cursor, spans)),
        };
        unpacker.run(|| {
            fetch::with_workers(
                clients,
                spans,
                in_hand,
                stored_budget(options),
                &options.access.policy,
                unpacker,
                |workers| writer(&mut Supply::Workers(workers, unpacker)),
            )
        })
    }

    /// Ranges can be fetched out of order and ahead.
    fn has_workers(&self) -> bool {
        matches!(self, Self::Ranges(_))
    }
}

/// A payload of which is known what there is and what to fetch.
struct Decided {
    opened: Opened,
    have: Have,
    plan: Plan,
}

/// What it takes to install a payload, besides the payload.
struct Job<'a> {
    entry: &'a Entry,
    target: &'a mut Target,
    shape: &'a Shape,
    /// The end of the last payload is fetched together with its data.
    is_last: bool,
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
        sealed.map(|()| self.reporter.sealed())
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
                self.reporter.target(target.touched_flag());
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
        let mut opening = open::open(cursor, &options.trust)?;
        // Without ranges the size is known only once the bundle is being read.
        self.bundle.size = opening.cursor().size();
        self.bundle.hash = Some(opening.header().hash.to_string());
        self.reporter.bundle(&self.bundle);
        opening
            .cursor()
            .open_ahead(options.workers.saturating_sub(1));
        let destinations = destinations(opening.header(), &options.targets)?;
        self.payload_count = destinations.len();
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
        let shape = self.shape(!clients.is_empty());
        // Where everything is known ahead, all is decided before anything is written.
        let mut decided: VecDeque<Decided> = ahead
            .into_iter()
            .map(|opened| self.decide(opened, &seeds, &shape))
            .collect();
        self.check_download(&decided, !clients.is_empty())?;
        for (decided, destination) in decided.iter().zip(destinations) {
            if let Some(target) = targets.get(*destination) {
                target.require(decided.plan.least_size)?;
            }
        }
        let entries = opening.header().entries.clone();
        for (entry, destination) in entries.iter().zip(destinations) {
            let next = match decided.pop_front() {
                Some(decided) => Some(decided),
                None => self
                    .next_payload(&mut opening, destinations, targets)?
                    .map(|opened| self.decide(opened, &seeds, &shape)),
            };
            let (Some(decided), Some(target)) = (next, targets.get_mut(*destination)) else {
                return Err(Error::Internal("a payload or its target is lost"));
            };
            let mut source = if clients.is_empty() {
                Source::Cursor(opening.cursor())
            } else {
                Source::Ranges(&mut clients)
            };
            let job = Job {
                entry,
                target,
                shape: &shape,
                is_last: decided.opened.payload.number + 1 == entries.len(),
            };
            self.install_payload(job, decided, &mut source, &mut seeds)?;
        }
        if clients.is_empty() {
            opening.close()?;
        }
        Ok(())
    }

    /// Finds out what is there of a payload, and plans the rest.
    fn decide(&mut self, opened: Opened, seeds: &[Seed], shape: &Shape) -> Decided {
        let Payload {
            number,
            index,
            data,
            ..
        } = &opened.payload;
        let start = Instant::now();
        self.reporter.phase(Phase::Seed);
        let have = index.as_ref().map_or_else(Have::default, |index| {
            seed::find(seeds, index, self.reporter)
        });
        self.seconds.seed += start.elapsed().as_secs_f64();
        self.reporter.phase(Phase::Plan);
        let plan = match index {
            Some(index) => plan::plan(index, &have, 0, shape),
            None => Plan::whole(data, shape),
        };
        log::info!(
            "plan payload={number} blocks={} fetch={} bytes={} runs={} spans={}",
            plan.steps.len(),
            plan.fetched,
            plan.bytes(),
            plan.runs,
            plan.spans.len()
        );
        Decided { opened, have, plan }
    }

    /// Adds up what is to be received in all, and refuses to begin if the user allows less.
    fn check_download(&mut self, decided: &VecDeque<Decided>, has_workers: bool) -> Result<()> {
        let last = decided.len().saturating_sub(1);
        let planned: u64 = decided
            .iter()
            .enumerate()
            .map(|(number, decided)| {
                let closing = self.closing(&decided.opened.payload, number == last && has_workers);
                let spans = with_closing(&decided.plan.spans, closing.as_ref());
                missing(&spans, &decided.opened)
            })
            .sum();
        let needed = if decided.is_empty() {
            // In order, all of it.
            self.bundle.size.unwrap_or(0)
        } else {
            self.counters.bytes() + planned
        };
        self.counts.bytes_to_fetch = needed;
        match self.options.access.policy.max_download {
            Some(max) if needed > max && matches!(self.options.bundle, Location::Url(_)) => {
                Err(Error::DownloadLimit {
                    url: self.options.bundle.shown(),
                    cause: format!("{needed} bytes are needed, --max-download allows {max}"),
                })
            }
            _ => Ok(()),
        }
    }

    /// Where the end of a payload is to be fetched from, if it is to be fetched.
    fn closing(&self, payload: &Payload, wanted: bool) -> Option<Range<u64>> {
        wanted.then(|| open::closing_range(payload.data.end, self.bundle.size))
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
        job: Job<'_>,
        decided: Decided,
        source: &mut Source<'_>,
        seeds: &mut [Seed],
    ) -> Result<()> {
        let Job { entry, target, .. } = job;
        let Decided {
            opened: Opened { payload, in_hand },
            mut have,
            mut plan,
        } = decided;
        let blocks = payload.index.as_ref().map_or(0, |i| i.len() as u64);
        self.reporter
            .payload(payload.number, self.payload_count, blocks, &self.counts);
        let start = Instant::now();
        self.reporter.phase(Phase::Install);
        let closing = self.closing(&payload, job.is_last && source.has_workers());
        let ahead = Ahead::new(self.options.memory / UNPACKED_SHARE);
        let mut writer = Writer::new(
            &payload,
            entry,
            target,
            seeds,
            self.reporter,
            &mut self.counts,
        );
        let result = loop {
            let spans = with_closing(&plan.spans, closing.as_ref());
            let in_hand = (payload.data.start, in_hand.as_slice());
            let unpacker = Unpacker::new(payload.index.as_ref(), &plan, &ahead);
            let outcome = source.supply(&spans, in_hand, &unpacker, self.options, |supply| {
                let outcome = writer.run(&plan, &spans, supply)?;
                if let (Outcome::Done, Some(closing)) = (outcome, &closing) {
                    let bytes = writer.take_tail(&spans, closing.start, supply)?;
                    open::check_closing(&bytes, closing.start)?;
                }
                Ok(outcome)
            });
            match (outcome, &payload.index) {
                (Ok(Outcome::Done), _) => break Ok(()),
                (Ok(Outcome::Replan { without, from }), Some(index)) => {
                    have.forget(without);
                    plan = plan::plan(index, &have, from, job.shape);
                    writer.planned(self.counters.bytes() + plan.bytes());
                }
                (Ok(Outcome::Replan { .. }), None) => {
                    break Err(Error::Internal("a payload without index has no seeds"))
                }
                (Err(error), _) => break Err(error),
            }
        };
        let result = result.and_then(|()| writer.finish());
        self.seconds.install += start.elapsed().as_secs_f64();
        result?;

        let start = Instant::now();
        self.reporter.phase(Phase::Sync);
        let synced = target.sync();
        self.seconds.sync += start.elapsed().as_secs_f64();
        synced?;
        self.payloads.push(PayloadReport {
            slot: match &entry.delivery {
                Delivery::Slot(name) => name.clone(),
                _ => return Err(Error::Internal("only slot payloads are installed")),
            },
            target: target.path().display().to_string(),
            size: target.position(),
            digest: entry.digest.to_string(),
        });
        Ok(())
    }

    fn shape(&self, has_workers: bool) -> Shape {
        let options = self.options;
        shape(options.memory, options.workers, options.merge, has_workers)
    }

    fn report(self, error: Option<&Error>) -> Report {
        let counts = self.counts;
        let target_size = self.payloads.iter().map(|payload| payload.size).sum();
        Report {
            schema: report::SCHEMA,
            result: if error.is_some() {
                "failed"
            } else {
                "installed"
            },
            exit: error.map_or(0, |error| error.class().exit_code()),
            error: error.map(ToString::to_string),
            blocks: counts.blocks(),
            bytes: counts.bytes(target_size, self.counters),
            bundle: self.bundle,
            payloads: self.payloads,
            http: HttpReport::of(self.counters),
            seconds: self.seconds,
            peak_memory: report::peak_memory(),
            target_touched: self.touched,
        }
    }
}

/// The shape of spans under a memory budget, for so many workers.
pub fn shape(memory: u64, workers: usize, merge: bool, has_workers: bool) -> Shape {
    let stored = memory / STORED_SHARE;
    let share = stored / (2 * workers.max(1) as u64);
    Shape {
        max_span: share.clamp(MIN_SPAN, MAX_SPAN),
        merge,
        // Reading through gaps saves requests; a cursor makes none.
        gaps: has_workers,
    }
}

/// Bytes of spans that did not come along with the payload's header.
fn missing(spans: &[Range<u64>], opened: &Opened) -> u64 {
    let in_hand = opened.payload.data.start + opened.in_hand.len() as u64;
    spans
        .iter()
        .map(|span| span.end.saturating_sub(span.start.max(in_hand)))
        .sum()
}

/// The part of the memory budget for stored bytes.
fn stored_budget(options: &Options) -> u64 {
    options.memory / STORED_SHARE
}

/// The spans of a plan and the end of the last payload, in one request if they touch.
fn with_closing(spans: &[Range<u64>], closing: Option<&Range<u64>>) -> Vec<Range<u64>> {
    let mut spans = spans.to_vec();
    match (closing, spans.last_mut()) {
        (Some(closing), Some(last)) if last.end == closing.start => last.end = closing.end,
        (Some(closing), _) => spans.push(closing.clone()),
        (None, _) => {}
    }
    spans
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
