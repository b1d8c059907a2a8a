//! The stages in order for one bundle: the only file that sees them all.
//!
//! All that can be refused is refused before anything is written: every target is opened and
//! checked before the first request; every destination, payload header and size before the first
//! write, where the bundle can be read out of order. Each payload is written but for its held-back
//! beginning; only when all of them are verified and synced are the targets sealed.

mod after;
mod options;
pub mod planned;
mod shares;
mod targets;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use crate::bundle::{Entry, Header, Payload};
use crate::device::Target;
use crate::error::{Error, Result};
use crate::fetch;
use crate::hash::Digest;
use crate::http::{Client, Counters};
use crate::old::{Old, Survival};
use crate::open::{self, Opened, Opening};
use crate::plan::{self, Plan, Shape, Standing};
use crate::readback::Sources;
use crate::remote::{Cursor, Location};
use crate::report::{
    self, BundleReport, Counts, Failed, HttpReport, PayloadReport, Phase, Report, Reporter,
    SecondsReport,
};
use crate::retry::Policy;
use crate::seed::{self, Have, Seed};
use crate::unpack::{Ahead, Unpacker};
use crate::write::{InOrder, Outcome, Parts, Supply, Writer};

#[cfg(feature = "pack")]
pub(crate) use options::check_workers;
pub use options::{Install, MAX_WORKERS, MEMORY, WORKERS};
pub use shares::shape;
pub(crate) use targets::check_names;
pub use targets::{destinations, Targets};

use self::shares::Shares;

/// Connections are opened ahead unless more than this is to be looked through first, which on a small
/// board would take longer than servers wait for a first request.
const QUICK_SCAN: u64 = 64 << 20;

/// With `--discard`, the part of a payload's blocks that a target must hold for its old content not
/// to be discarded: this fraction.
const MIN_REUSED: u64 = 4;

/// Opens a target by the path that the user gave.
pub type OpenTarget<'a> = &'a dyn Fn(&Path) -> Result<Target>;

impl Install {
    /// Installs. What happens on the way is told to `reporter`, and at the end in the report, also after
    /// a failure.
    ///
    /// It returns when the targets are synced and complete, or not at all what they should be: a run that
    /// failed, or whose process was killed, leaves what nothing takes for an image, and can be repeated
    /// to go on from there. Threads that it starts end with it, or a moment later.
    pub fn run(&self, reporter: &Reporter) -> Result<Report, Box<Failed>> {
        self.run_checked(self.check(), reporter, &|path| {
            Target::open(path, self.care)
        })
    }

    /// The same with targets on other media than the kernel's, and with any budget.
    #[doc(hidden)]
    pub fn run_on(&self, reporter: &Reporter, open: OpenTarget<'_>) -> Result<Report, Box<Failed>> {
        self.run_checked(Ok(()), reporter, open)
    }

    fn run_checked(
        &self,
        checked: Result<()>,
        reporter: &Reporter,
        open: OpenTarget<'_>,
    ) -> Result<Report, Box<Failed>> {
        let started = Instant::now();
        reporter.start(&self.bundle.shown(), self.verify);
        let mut run = Run::new(self, open, reporter);
        let result = checked.and_then(|()| reporter.ticking(|| run.run()));
        run.seconds.total = started.elapsed().as_secs_f64();
        let report = run.report(result.as_ref().err());
        reporter.finish(&report);
        Failed::unless(result, report)
    }
}

struct Run<'a> {
    options: &'a Install,
    open: OpenTarget<'a>,
    reporter: &'a Reporter,
    counters: Arc<Counters>,
    counts: Counts,
    seconds: SecondsReport,
    bundle: BundleReport,
    payloads: Vec<PayloadReport>,
    /// What was written so far.
    written: Vec<Written>,
    touched: bool,
}

/// How the bundle's data are got once its headers are read.
enum Source<'a> {
    /// Workers fetch ranges, by this policy.
    Ranges(&'a mut [Client], &'a Policy),
    /// One read position.
    Cursor(&'a mut Cursor),
}

impl Source<'_> {
    /// Runs `writer` with `spans` at hand, of which `budget` bytes may be in memory. `in_hand` is what
    /// came with the headers: its offset in the bundle, and its bytes.
    fn supply<R>(
        &mut self,
        spans: &[Range<u64>],
        in_hand: (u64, &[u8]),
        unpacker: &Unpacker<'_>,
        budget: u64,
        writer: impl FnOnce(&mut Supply<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        unpacker.run(|| match self {
            Self::Ranges(clients, policy) => fetch::with_workers(
                clients,
                spans,
                in_hand,
                budget,
                policy,
                unpacker,
                |workers| writer(&mut Supply::Workers(workers, unpacker)),
            ),
            Self::Cursor(cursor) => {
                let in_order = InOrder::new(cursor, spans, unpacker, budget);
                writer(&mut Supply::Cursor(in_order))
            }
        })
    }

    /// What was passed can be read again.
    fn goes_back(&self) -> bool {
        match self {
            Self::Ranges(..) => true,
            Self::Cursor(cursor) => cursor.jumps(),
        }
    }

    /// Ranges can be fetched out of order and ahead.
    fn has_workers(&self) -> bool {
        matches!(self, Self::Ranges(..))
    }
}

/// A payload of which is known what there is and what to fetch.
struct Decided {
    opened: Opened,
    have: Have,
    /// What stood on the target, and how much of it may be saved.
    old: Old,
    shares: Shares,
    plan: Plan,
}

/// What it takes to install a payload, besides the payload.
struct Job<'a> {
    entry: &'a Entry,
    target: &'a mut Target,
    /// Number of the target.
    destination: usize,
    shape: &'a Shape,
    /// The end of the last payload is fetched together with its data.
    is_last: bool,
}

/// A payload on its target.
struct Written {
    payload: Payload,
    digest: Digest,
    /// Where each block begins, and where the last one ends.
    offsets: Vec<u64>,
    /// Number of its target.
    target: usize,
}

/// Everything that is known before anything is written.
struct Prepared {
    opening: Opening,
    /// The workers' clients; none where the bundle is read by one read position.
    clients: Vec<Client>,
    seeds: Vec<Seed>,
    shape: Shape,
    /// What is decided of each payload, where the bundle can be read out of order.
    decided: VecDeque<Decided>,
}

impl<'a> Run<'a> {
    fn new(options: &'a Install, open: OpenTarget<'a>, reporter: &'a Reporter) -> Self {
        Self {
            options,
            open,
            reporter,
            counters: reporter.counters(),
            counts: Counts::default(),
            seconds: SecondsReport::default(),
            bundle: BundleReport::default(),
            payloads: Vec::new(),
            written: Vec::new(),
            touched: false,
        }
    }
}

impl Run<'_> {
    fn run(&mut self) -> Result<()> {
        let mut targets = targets::open(self.options, self.open, self.reporter)?;
        let result = self.run_with(&mut targets);
        self.touched = targets.iter().any(Target::touched);
        if result.is_ok() {
            targets.into_iter().for_each(Target::finish);
        }
        result
    }

    fn run_with(&mut self, targets: &mut [Target]) -> Result<()> {
        let start = Instant::now();
        let opened = self.open_bundle();
        self.seconds.open = start.elapsed().as_secs_f64();
        let (mut opening, destinations) = opened?;
        if self.looks_through(targets) <= QUICK_SCAN {
            let more = self.options.workers.saturating_sub(1);
            opening.cursor().open_ahead(more);
        }
        self.install_all(opening, &destinations, targets)?;
        let start = Instant::now();
        let sealed = targets.iter_mut().try_for_each(Target::seal);
        self.seconds.sync += start.elapsed().as_secs_f64();
        sealed?;
        if self.options.verify {
            self.reporter.phase(Phase::Verify);
            let start = Instant::now();
            let right = self.written.iter().try_for_each(|written| {
                let target = targets.get_mut(written.target);
                let lost = Error::Internal("a target is lost");
                self.check_beginning(written, target.ok_or(lost)?)
            });
            self.seconds.sync += start.elapsed().as_secs_f64();
            right?;
        }
        self.touched = targets.iter().any(Target::touched);
        self.reporter.sealed(self.report(None));
        self.store_indexes();
        Ok(())
    }

    /// Bytes that are scanned before the first block is asked for, at most.
    fn looks_through(&self, targets: &[Target]) -> u64 {
        let seeds = self.options.seeds.iter();
        let scanned = seeds.filter(|seed| seed.index.is_none());
        let targets = targets.iter().filter(|_| self.options.target_seed);
        scanned
            .map(seed::Spec::most_bytes)
            .chain(targets.map(Target::old_size))
            .fold(0, u64::saturating_add)
    }

    /// Opens the bundle and finds the target of each payload.
    fn open_bundle(&mut self) -> Result<(Opening, Vec<usize>)> {
        self.reporter.phase(Phase::Open);
        let options = self.options;
        let cursor = Cursor::open(&options.bundle, &options.access, &self.counters)?;
        let mut opening = open::open(cursor, &options.trust)?;
        // Without ranges the size is known only once the bundle is being read.
        self.bundle.size = opening.cursor().size();
        self.bundle.hash = Some(opening.header().hash.to_string());
        self.reporter.bundle(&self.bundle);
        let destinations = destinations(opening.header(), &options.targets)?;
        self.payloads = payloads(opening.header(), &destinations, &options.targets);
        self.reporter.payloads(&self.payloads);
        Ok((opening, destinations))
    }

    /// Reads all headers, finds out what is there, and decides what to do; refuses what can be
    /// refused. Nothing is written.
    fn prepare(
        &mut self,
        mut opening: Opening,
        destinations: &[usize],
        targets: &mut [Target],
    ) -> Result<Prepared> {
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
        let seeds = seed::open(&self.options.seeds, targets);
        let shape = self.shape(!clients.is_empty());
        // Where everything is known ahead, all is decided before anything is written.
        let mut decided = VecDeque::new();
        for (opened, destination) in ahead.into_iter().zip(destinations) {
            let target = targets.get(*destination);
            decided.push_back(self.decide(opened, &seeds, target, &shape));
        }
        self.check_download(&decided)?;
        for (decided, destination) in decided.iter().zip(destinations) {
            if let Some(target) = targets.get(*destination) {
                target.require(decided.plan.least_size)?;
            }
        }
        Ok(Prepared {
            opening,
            clients,
            seeds,
            shape,
            decided,
        })
    }

    fn install_all(
        &mut self,
        opening: Opening,
        destinations: &[usize],
        targets: &mut [Target],
    ) -> Result<()> {
        let Prepared {
            mut opening,
            mut clients,
            seeds,
            shape,
            mut decided,
        } = self.prepare(opening, destinations, targets)?;
        let entries = opening.header().entries.clone();
        for (entry, destination) in entries.iter().zip(destinations) {
            let next = match decided.pop_front() {
                Some(decided) => Some(decided),
                None => self
                    .next_payload(&mut opening, destinations, targets)?
                    .map(|opened| self.decide(opened, &seeds, targets.get(*destination), &shape)),
            };
            let (Some(decided), Some(target)) = (next, targets.get_mut(*destination)) else {
                return Err(Error::Internal("a payload or its target is lost"));
            };
            let mut source = if clients.is_empty() {
                Source::Cursor(opening.cursor())
            } else {
                Source::Ranges(&mut clients, &self.options.access.policy)
            };
            let job = Job {
                entry,
                target,
                destination: *destination,
                shape: &shape,
                is_last: decided.opened.payload.number + 1 == entries.len(),
            };
            self.install_payload(job, decided, &mut source, &seeds)?;
        }
        // If nothing had to be fetched, nothing is.
        if clients.is_empty() && targets.iter().any(Target::touched) {
            opening.close()?;
        }
        Ok(())
    }

    /// Finds out what is there of a payload, and plans the rest.
    fn decide(
        &mut self,
        opened: Opened,
        seeds: &[Seed],
        target: Option<&Target>,
        shape: &Shape,
    ) -> Decided {
        let Payload {
            number,
            index,
            data,
            ..
        } = &opened.payload;
        let start = Instant::now();
        self.reporter.phase(Phase::Seed);
        let target = target.filter(|_| self.options.target_seed);
        let (have, mut old) = index.as_ref().map_or_else(Default::default, |index| {
            seed::find(seeds, target, index, self.reporter)
        });
        self.seconds.seed += start.elapsed().as_secs_f64();
        self.reporter.phase(Phase::Plan);
        let mut shares = Shares::new(self.options.memory, &old);
        let decide = |old: &Old, shares: &Shares| match index {
            Some(index) => {
                let survival = Survival::new(shares.saved);
                plan::plan(index, &have, &Standing::start(old, &survival), shape)
            }
            None => Plan::whole(data, shape),
        };
        let mut plan = decide(&old, &shares);
        if self.options.discard && plan.reused() < plan.steps.len() as u64 / MIN_REUSED {
            old = Old::default();
            shares = Shares::new(self.options.memory, &old);
            plan = decide(&old, &shares);
        }
        self.counts.to_fetch += plan.fetched;
        log::info!(
            "plan payload={number} blocks={} kept={} fetch={} bytes={} runs={} spans={}",
            plan.steps.len(),
            plan.kept,
            plan.fetched,
            plan.bytes(),
            plan.runs,
            plan.spans.len()
        );
        Decided {
            opened,
            have,
            old,
            shares,
            plan,
        }
    }

    /// Adds up what is to be received in all, and refuses to begin if the user allows less.
    fn check_download(&mut self, decided: &VecDeque<Decided>) -> Result<()> {
        let last = decided.len().saturating_sub(1);
        let planned: u64 = decided
            .iter()
            .enumerate()
            .map(|(number, decided)| {
                // With its last data the end of the bundle is read, one way or another.
                let wanted = number == last && !decided.plan.spans.is_empty();
                let closing = self.closing(&decided.opened.payload, wanted);
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

    /// Puts a payload onto its target, but for the beginning that is held back.
    fn install_payload(
        &mut self,
        mut job: Job<'_>,
        mut decided: Decided,
        source: &mut Source<'_>,
        seeds: &[Seed],
    ) -> Result<()> {
        let start = Instant::now();
        let written = self.write_payload(&mut job, &mut decided, source, seeds);
        self.seconds.install += start.elapsed().as_secs_f64();
        let offsets = written?;

        let Job { entry, target, .. } = job;
        let payload = decided.opened.payload;
        let start = Instant::now();
        self.reporter.phase(Phase::Sync);
        let synced = target.sync();
        self.seconds.sync += start.elapsed().as_secs_f64();
        synced?;
        if let Some(index) = payload.index.as_ref().filter(|_| self.options.verify) {
            let sources = Sources {
                payload: payload.number,
                index,
                have: &decided.have,
                seeds,
            };
            let start = Instant::now();
            let right = self.read_back(&sources, target, &offsets, source);
            self.seconds.sync += start.elapsed().as_secs_f64();
            right?;
        }
        if let Some(known) = self.payloads.get_mut(payload.number) {
            known.size = target.position();
        }
        if self.options.verify || self.options.write_index.is_some() {
            self.written.push(Written {
                payload,
                digest: entry.digest,
                offsets,
                target: job.destination,
            });
        }
        Ok(())
    }

    /// Carries out the plan, and new ones where it turns out wrong; gives where each block begins.
    fn write_payload(
        &mut self,
        job: &mut Job<'_>,
        decided: &mut Decided,
        source: &mut Source<'_>,
        seeds: &[Seed],
    ) -> Result<Vec<u64>> {
        let Decided {
            opened: Opened { payload, in_hand },
            have,
            old,
            shares,
            plan,
        } = decided;
        let blocks = payload.index.as_ref().map_or(0, |i| i.len() as u64);
        self.reporter.payload(payload.number, blocks, &self.counts);
        self.reporter.phase(Phase::Install);
        // What is all there needs no look at the bundle's end.
        let wanted = job.is_last && source.has_workers() && !plan.spans.is_empty();
        let closing = self.closing(payload, wanted);
        let ahead = Ahead::new(shares.unpacked, !seeds.is_empty());
        if self.options.discard && old.is_empty() {
            job.target.discard_first(plan.least_size);
        }
        let parts = Parts {
            payload,
            digest: job.entry.digest,
            old,
            seeds,
            saved: shares.saved,
            trailing: shares.digest,
        };
        let mut writer = Writer::new(parts, job.target, self.reporter, &mut self.counts);
        loop {
            let spans = with_closing(&plan.spans, closing.as_ref());
            let in_hand = (payload.data.start, in_hand.as_slice());
            let unpacker = Unpacker::new(payload.index.as_ref(), plan, seeds, Arc::clone(&ahead));
            let outcome = source.supply(&spans, in_hand, &unpacker, shares.stored, |supply| {
                let outcome = writer.run(plan, supply)?;
                if let (Outcome::Done, Some(closing)) = (outcome, &closing) {
                    let bytes = writer.take_tail(&spans, closing.start, supply)?;
                    open::check_closing(&bytes, closing.start)?;
                }
                Ok(outcome)
            })?;
            match outcome {
                Outcome::Done => return writer.finish(),
                Outcome::Without(seed) => have.forget(seed),
                Outcome::Replan => {}
            }
            let Some(index) = &payload.index else {
                return Err(Error::Internal("a payload without index has no seeds"));
            };
            *plan = plan::plan(index, have, &writer.standing(), job.shape);
            writer.planned(self.counters.bytes() + plan.bytes());
        }
    }

    fn shape(&self, has_workers: bool) -> Shape {
        let options = self.options;
        shape(options.memory, options.workers, options.merge, has_workers)
    }

    fn report(&self, error: Option<&Error>) -> Report {
        let counts = self.counts;
        let target_size = self.payloads.iter().map(|payload| payload.size).sum();
        Report {
            schema: report::SCHEMA,
            result: match error {
                Some(_) => "failed",
                None if self.touched => "installed",
                None => "current",
            },
            exit: error.map_or(0, |error| error.class().exit_code()),
            error: error.map(ToString::to_string),
            blocks: counts.blocks(),
            bytes: counts.bytes(target_size, &self.counters),
            bundle: self.bundle.clone(),
            payloads: self.payloads.clone(),
            http: HttpReport::of(&self.counters),
            seconds: self.seconds,
            peak_memory: report::peak_memory(),
            target_touched: self.touched,
        }
    }
}

/// The payloads of a bundle and where they go, as the report has them. Their sizes are known later.
fn payloads(header: &Header, destinations: &[usize], targets: &Targets) -> Vec<PayloadReport> {
    let paths = targets.paths();
    header
        .entries
        .iter()
        .zip(destinations)
        .map(|(entry, number)| PayloadReport {
            // Payloads for other places were refused before.
            slot: entry.delivery.slot().unwrap_or_default().to_owned(),
            target: paths
                .get(*number)
                .map_or(String::new(), |path| path.display().to_string()),
            size: 0,
            digest: entry.digest.to_string(),
        })
        .collect()
}

/// Bytes of spans that did not come along with the payload's header.
fn missing(spans: &[Range<u64>], opened: &Opened) -> u64 {
    let in_hand = opened.payload.data.start + opened.in_hand.len() as u64;
    spans
        .iter()
        .map(|span| span.end.saturating_sub(span.start.max(in_hand)))
        .sum()
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
