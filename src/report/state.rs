//! How far a run is, and what its report would say at any moment.
//!
//! `percent` covers the whole run, never falls, and is 100 only after success. Looking through seeds
//! is a tenth of it, the blocks are the rest; of that, reading back takes a third if it is asked for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Instant;

use super::schema::{
    peak_memory, BundleReport, Counts, HttpReport, PayloadReport, Report, SecondsReport, SCHEMA,
};
use super::{Phase, Progress, MOST};
use crate::http::Counters;
use crate::terminal::{self, Rate};

/// The part of a run that looks through seeds.
const SEED_SHARE: f64 = 0.1;

/// The part of a run that reads the target back, if that is asked for.
const VERIFY_SHARE: f64 = 0.3;

/// The part of a fetched block that is done when it is received, and not yet made and written.
const RECEIVED_SHARE: f64 = 0.8;

/// Where a run is, and what its report would say.
#[derive(Debug)]
pub(super) struct State {
    pub(super) counters: Arc<Counters>,
    pub(super) phase: Phase,
    /// Reading back comes at the end.
    verifies: bool,
    /// Payloads in all.
    payloads: usize,
    /// Number of the present payload.
    payload: usize,
    /// Blocks made before the present payload.
    blocks_before: u64,
    /// Blocks of the present payload.
    blocks: u64,
    /// The blocks of all payloads were known when the first of them began.
    all_known: bool,
    /// Payloads for which seeds were looked through.
    seeded: usize,
    /// The part of the seeds that was looked through for the present payload.
    seeding: f64,
    /// Payloads that were read back.
    verified: usize,
    /// The part of the present payload that was read back.
    verifying: f64,
    percent: f64,
    pub(super) counts: Counts,
    started: Instant,
    /// When the first block could be made, and at which percentage.
    installing: Option<(Instant, f64)>,
    rate: Rate,
    pub(super) bundle: BundleReport,
    /// The payloads, and where they go.
    payload_reports: Vec<PayloadReport>,
    /// Of each target: whether it was written to.
    pub(super) touched: Vec<Arc<AtomicBool>>,
    /// All targets are complete: what the run will say, if nothing more can be said.
    pub(super) sealed: Option<Report>,
    /// How the run ended. The first end counts.
    pub(super) end: Option<Report>,
}

impl State {
    pub(super) fn new(verifies: bool) -> Self {
        Self {
            counters: Arc::default(),
            phase: Phase::Open,
            verifies,
            payloads: 1,
            payload: 0,
            blocks_before: 0,
            blocks: 0,
            all_known: false,
            seeded: 0,
            seeding: 0.0,
            verified: 0,
            verifying: 0.0,
            percent: 0.0,
            counts: Counts::default(),
            started: Instant::now(),
            installing: None,
            rate: Rate::default(),
            bundle: BundleReport::default(),
            payload_reports: Vec::new(),
            touched: Vec::new(),
            sealed: None,
            end: None,
        }
    }

    /// These payloads are to be installed.
    pub(super) fn set_payloads(&mut self, payloads: &[PayloadReport]) {
        self.payloads = payloads.len().max(1);
        self.payload_reports = payloads.to_vec();
    }

    /// Payload `number` begins; it has so many blocks.
    pub(super) fn begin_payload(&mut self, number: usize, blocks: u64, counts: &Counts) {
        self.counts = *counts;
        self.blocks = blocks;
        self.payload = number;
        self.blocks_before = counts.done();
        if number == 0 {
            self.all_known = self.payloads == 1 || counts.total > blocks;
        }
    }

    /// So many bytes of the seeds were looked through.
    pub(super) fn looked_through(&mut self, done: u64, total: u64) {
        self.seeding = fraction(done, total);
    }

    /// So many bytes of a target were read back.
    pub(super) fn read_back(&mut self, done: u64, total: u64) {
        self.verifying = fraction(done, total);
    }

    /// The run went well.
    pub(super) fn succeed(&mut self) -> Progress {
        self.percent = 100.0;
        self.progress()
    }

    /// A phase begins.
    pub(super) fn enter(&mut self, phase: Phase) -> Progress {
        // A phase that is left is done, for this payload.
        match self.phase {
            Phase::Seed => (self.seeded, self.seeding) = (self.seeded + 1, 0.0),
            // What is read back at the very end is little, and was counted before.
            Phase::Verify if self.verified < self.payloads => {
                (self.verified, self.verifying) = (self.verified + 1, 0.0);
            }
            _ => {}
        }
        self.phase = phase;
        let progress = self.progress();
        if phase == Phase::Install {
            self.installing
                .get_or_insert((Instant::now(), self.percent));
        }
        progress
    }

    /// The part of the run that is done, 0 to 1.
    fn done(&self) -> f64 {
        let payloads = self.payloads as f64;
        let part = |whole: usize, rest: f64| ((whole as f64 + rest) / payloads).min(1.0);
        let verify_share = if self.verifies { VERIFY_SHARE } else { 0.0 };
        SEED_SHARE * part(self.seeded, self.seeding)
            + (1.0 - SEED_SHARE - verify_share) * self.made()
            + verify_share * part(self.verified, self.verifying)
    }

    /// The part of what is to be fetched and made that is done, 0 to 1.
    fn made(&self) -> f64 {
        if self.installing.is_none() {
            return 0.0;
        }
        let fetched = (self.counts.bytes_to_fetch > 0)
            .then(|| fraction(self.counters.bytes(), self.counts.bytes_to_fetch));
        let done = self.counts.done();
        if let (Some(received), true) = (fetched, self.all_known && self.counts.total > 0) {
            let Counts {
                total, to_fetch, ..
            } = self.counts;
            // Blocks that are there already are as fast as the writer. Of the others many can have
            // come before the writer gets to the first, and on a slow link to come is what takes time.
            let local = fraction(done - self.counts.fetched, total.saturating_sub(to_fetch));
            let written = fraction(self.counts.fetched, to_fetch);
            let remote = RECEIVED_SHARE * received + (1.0 - RECEIVED_SHARE) * written;
            let share = fraction(to_fetch, total);
            return share * remote + (1.0 - share) * local;
        }
        let made = (self.blocks > 0).then(|| {
            let of_this = fraction(done.saturating_sub(self.blocks_before), self.blocks);
            (self.payload as f64 + of_this) / self.payloads as f64
        });
        match (fetched, made) {
            // All of the bundle comes, in order.
            (Some(fetched), Some(made)) => (fetched + made) / 2.0,
            (Some(part), None) | (None, Some(part)) => part,
            // Of a stream without index and of unknown size nothing can be told.
            (None, None) => 0.0,
        }
    }

    pub(super) fn progress(&mut self) -> Progress {
        // 100 is for success alone, which is known only at the very end.
        self.percent = self.percent.max(MOST * self.done());
        let bytes = self.counters.bytes();
        let installing = self.installing.filter(|_| self.phase == Phase::Install);
        Progress {
            phase: self.phase,
            percent: (self.percent * 10.0).round() / 10.0,
            blocks: self.counts.done(),
            blocks_total: self.counts.total,
            bytes_fetched: bytes,
            bytes_to_fetch: self.counts.bytes_to_fetch,
            bytes_written: self.counts.bytes_written,
            bytes_per_second: self.rate.at(self.started.elapsed(), bytes),
            retries: self.counters.retries(),
            bytes_reused: self.counts.bytes_seeded + self.counts.bytes_kept,
            left: installing.and_then(|(since, before)| {
                terminal::left(since.elapsed(), (self.percent - before) / (MOST - before))
            }),
        }
    }

    pub(super) fn interrupted(&mut self, exit: u8, reason: &str) -> Report {
        if let Some(report) = &self.end {
            return report.clone();
        }
        let total = self.started.elapsed().as_secs_f64();
        if let Some(mut report) = self.sealed.clone() {
            report.seconds.total = total;
            return report;
        }
        self.end.insert(self.failed(total, exit, reason)).clone()
    }

    /// What a run has to say that ends here.
    pub(super) fn failed(&self, total: f64, exit: u8, reason: &str) -> Report {
        let counts = self.counts;
        Report {
            schema: SCHEMA,
            result: "failed",
            exit,
            error: Some(reason.to_owned()),
            bundle: self.bundle.clone(),
            payloads: self.payload_reports.clone(),
            blocks: counts.blocks(),
            bytes: counts.bytes(0, &self.counters),
            http: HttpReport::of(&self.counters),
            seconds: SecondsReport {
                total,
                ..SecondsReport::default()
            },
            peak_memory: peak_memory(),
            target_touched: self.touched.iter().any(|t| t.load(Ordering::Relaxed)),
        }
    }
}

fn fraction(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        1.0
    } else {
        (part as f64 / whole as f64).min(1.0)
    }
}
