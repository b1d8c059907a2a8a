//! What a run tells while it works: events, progress among them, and a report at the end.
//!
//! Stages hand in facts and know nothing of who listens, of terminals or JSON. The [`Reporter`] makes
//! [`Event`]s of them, a few a second at most, and hands these to one listener, one after the other.
//! It also knows at every moment what a run that is ended from outside has to say.

mod schema;
mod state;

use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::http::Counters;

use self::state::State;
pub use schema::{
    peak_memory, BlocksReport, BundleReport, BytesReport, ComparedReport, Counts, HttpReport,
    PayloadReport, Report, SecondsReport, VerifyReport, SCHEMA,
};

/// Pause between two events of progress.
pub(crate) const INTERVAL: Duration = Duration::from_millis(200);

/// Stack of the thread that tells progress meanwhile, a listener's needs included; the default of
/// 2 MiB is much on a small board.
const STACK_SIZE: usize = 256 << 10;

/// The most that is told before all is done.
pub(crate) const MOST: f64 = 99.0;

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Header and indexes are fetched and checked.
    Open,
    /// Seeds are looked through.
    Seed,
    /// Decisions are made.
    Plan,
    /// Blocks are fetched and written.
    Install,
    /// The target is synced.
    Sync,
    /// The target is read and compared.
    Verify,
}

impl Phase {
    /// As messages and JSON spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Seed => "seed",
            Self::Plan => "plan",
            Self::Install => "install",
            Self::Sync => "sync",
            Self::Verify => "verify",
        }
    }
}

/// What happens in a run. More kinds may come.
///
/// Warnings (a retry, a seed that is dropped) are not among them: they go through the `log` crate, as
/// all messages of this library do.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The run begins; the bundle as it is shown, without secrets.
    Start(&'a str),
    /// A phase begins. With several payloads they come again for each.
    Phase(Phase),
    /// How far it is: when a phase begins, and five times a second at most.
    Progress(Progress),
    /// An install is done. The progress before is 100 %.
    Done(&'a Report),
    /// An install ended early.
    Failed(&'a Report),
}

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Progress {
    /// Where it is.
    pub phase: Phase,
    /// Of the whole run, in tenths; never falls, and is 100 only at the end of a run that went well.
    pub percent: f64,
    /// Blocks that are made.
    pub blocks: u64,
    /// Blocks in all, as far as they are known.
    pub blocks_total: u64,
    /// Bytes received.
    pub bytes_fetched: u64,
    /// Bytes to be received in all; 0 as long as that is not known.
    pub bytes_to_fetch: u64,
    /// Plain bytes written to targets.
    pub bytes_written: u64,
    /// Bytes received a second, of late.
    pub bytes_per_second: u64,
    /// Requests that were made again.
    pub retries: u64,
    /// Plain bytes that were there already, on the target or in seeds.
    #[serde(skip)]
    pub bytes_reused: u64,
    /// Time left, where it can be told.
    #[serde(skip)]
    pub left: Option<Duration>,
}

/// Is handed the events.
type Listener = Box<dyn FnMut(&Event<'_>) + Send>;

/// Takes in what happens in a run and tells it to a listener.
///
/// It can be asked from other threads while the run goes on, and be used for several runs, one after
/// the other.
pub struct Reporter {
    /// Taken before the state, so that events come in order.
    told: Mutex<Told>,
    state: Mutex<State>,
}

/// Whom the events go to, and what was told last.
struct Told {
    /// `None` if nobody wants to know.
    listener: Option<Listener>,
    /// When the last progress was told.
    progress: Option<Instant>,
    /// The end was told: nothing may follow.
    over: bool,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("state", &*self.state())
            .finish_non_exhaustive()
    }
}

impl Reporter {
    /// Tells `listener`. It is called by whatever thread has something to tell, never by two at a
    /// time, and the run waits for it. Some of these threads have a stack of 256 KiB. It may ask for
    /// [`progress`](Self::progress) and [`interrupted`](Self::interrupted); all else of this reporter,
    /// and a run that it is given to, would wait for the listener to return.
    pub fn new(listener: impl FnMut(&Event<'_>) + Send + 'static) -> Self {
        Self::of(Some(Box::new(listener)))
    }

    /// Tells nobody.
    pub fn silent() -> Self {
        Self::of(None)
    }

    fn of(listener: Option<Listener>) -> Self {
        Self {
            told: Mutex::new(Told {
                listener,
                progress: None,
                over: false,
            }),
            state: Mutex::new(State::new(false)),
        }
    }

    /// How far the run is.
    pub fn progress(&self) -> Progress {
        self.state().progress()
    }

    /// The report of a run that is ended from outside, by a signal for instance: that it failed, with
    /// the exit code `exit` and the reason, and what it did so far. From then on that is how the run
    /// ended, whatever it does yet. A run that ended before keeps its own report; and if all targets
    /// are complete, it went well, whatever happens to it now, and the report says so (`exit` 0).
    ///
    /// Nothing is told, and nobody is waited for, not even a listener that hangs: so what matters can
    /// be saved first. [`finish`](Self::finish) tells it.
    pub fn interrupted(&self, exit: u8, reason: &str) -> Report {
        self.state().interrupted(exit, reason)
    }

    /// Tells that the run is over, with this report unless it ended with another before; nothing is
    /// told after that. It waits for a listener that is at work, so it must not be called by one.
    pub fn finish(&self, report: &Report) {
        let report = &self
            .state()
            .end
            .get_or_insert_with(|| report.clone())
            .clone();
        let mut told = self.told();
        if report.exit == 0 {
            let progress = self.state().succeed();
            told.tell(&Event::Progress(progress));
            told.tell(&Event::Done(report));
        } else {
            told.tell(&Event::Failed(report));
        }
        // Whatever still ticks.
        told.over = true;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while reporting must not take the install down too.
        self.state.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(|lock| lock.into_inner())
    }

    /// What all clients of the run count.
    pub(crate) fn counters(&self) -> Arc<Counters> {
        self.state().counters.clone()
    }

    /// What the bundle is.
    pub(crate) fn bundle(&self, bundle: &BundleReport) {
        self.state().bundle = bundle.clone();
    }

    /// What the payloads are and where they go.
    pub(crate) fn payloads(&self, payloads: &[PayloadReport]) {
        self.state().set_payloads(payloads);
    }

    /// A target, and the flag that tells whether it was written to.
    pub(crate) fn target(&self, touched: Arc<AtomicBool>) {
        self.state().touched.push(touched);
    }

    /// All targets are complete, and this is what there is to say, but for the time it took.
    pub(crate) fn sealed(&self, report: Report) {
        self.state().sealed = Some(report);
    }

    /// Does something, and tells meanwhile what was received, also while nothing else happens: so a
    /// slow link looks different from a dead one.
    pub(crate) fn ticking<T>(&self, work: impl FnOnce() -> T) -> T {
        if self.told().listener.is_none() {
            return work();
        }
        std::thread::scope(|scope| {
            let (working, done) = mpsc::channel::<()>();
            let tick = move || {
                while done.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    self.show();
                }
            };
            let ticker = std::thread::Builder::new()
                .name("tick".to_owned())
                .stack_size(STACK_SIZE)
                .spawn_scoped(scope, tick);
            if let Err(error) = ticker {
                log::warn!("progress is told now and then only: no thread for it: {error}");
            }
            let result = work();
            drop(working);
            result
        })
    }

    /// A run begins; `verifies`: it will read back what it wrote.
    pub(crate) fn start(&self, bundle: &str, verifies: bool) {
        let mut told = self.told();
        (told.progress, told.over) = (None, false);
        *self.state() = State::new(verifies);
        told.tell(&Event::Start(bundle));
    }

    /// A phase begins.
    pub(crate) fn phase(&self, phase: Phase) {
        let mut told = self.told();
        let progress = self.state().enter(phase);
        told.tell(&Event::Phase(phase));
        told.tell(&Event::Progress(progress));
    }

    /// Payload `number` begins; it has so many blocks.
    pub(crate) fn payload(&self, number: usize, blocks: u64, counts: &Counts) {
        self.state().begin_payload(number, blocks, counts);
    }

    /// So many bytes of the seeds were looked through.
    pub(crate) fn seed_progress(&self, done: u64, total: u64) {
        self.state().looked_through(done, total);
        self.show();
    }

    /// A block was made.
    pub(crate) fn install_progress(&self, counts: &Counts) {
        self.state().counts = *counts;
        self.show();
    }

    /// So many bytes of a target were read back.
    pub(crate) fn verify_progress(&self, done: u64, total: u64) {
        self.state().read_back(done, total);
        self.show();
    }

    /// Tells how far the run is, if it is time for that.
    fn show(&self) {
        let mut told = self.told();
        let due = |last: Instant| last.elapsed() >= INTERVAL;
        if told.listener.is_some() && !told.over && told.progress.is_none_or(due) {
            let progress = self.state().progress();
            told.tell(&Event::Progress(progress));
        }
    }
}

impl Told {
    fn tell(&mut self, event: &Event<'_>) {
        if matches!(event, Event::Progress(_)) {
            self.progress = Some(Instant::now());
        }
        if let Some(listener) = self.listener.as_mut().filter(|_| !self.over) {
            listener(event);
        }
    }
}

/// A run that failed, and the report of what it did before that.
#[derive(Debug)]
pub struct Failed<R = Report> {
    /// Why.
    pub error: Error,
    /// What was done.
    pub report: R,
}

impl<R> Failed<R> {
    pub(crate) fn unless(result: Result<()>, report: R) -> Result<R, Box<Self>> {
        match result {
            Ok(()) => Ok(report),
            Err(error) => Err(Box::new(Self { error, report })),
        }
    }
}

impl<R> fmt::Display for Failed<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<R: fmt::Debug> std::error::Error for Failed<R> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory() {
        assert!(peak_memory().is_some_and(|bytes| bytes > 100_000));
    }

    /// A run with `payloads` of so many blocks each, `ahead`: with all their headers read before the
    /// first block, every third of them fetched, in a burst if `ahead`. The percentages that were
    /// told, by phase.
    fn percentages(payloads: &[u64], ahead: bool, verifies: bool) -> Vec<(Phase, f64)> {
        let (sender, told) = mpsc::channel();
        let reporter = Reporter::new(move |event: &Event<'_>| {
            if let Event::Progress(progress) = event {
                sender
                    .send((progress.phase, progress.percent))
                    .expect("the test made it");
            }
        });
        // Not only when it is time.
        let now = || {
            let phase = reporter.state().phase;
            reporter.told().progress = None;
            phase
        };
        let one = PayloadReport {
            slot: String::new(),
            target: String::new(),
            size: 0,
            digest: String::new(),
        };
        reporter.start("bundle", verifies);
        reporter.phase(Phase::Open);
        reporter.payloads(&vec![one; payloads.len()]);
        let look_through = || {
            reporter.phase(Phase::Seed);
            for done in 0..=10 {
                now();
                reporter.seed_progress(done, 10);
            }
            reporter.phase(Phase::Plan);
        };
        let mut counts = Counts::default();
        if ahead {
            counts.total = payloads.iter().sum();
            counts.to_fetch = payloads.iter().map(|blocks| blocks / 3).sum();
            counts.bytes_to_fetch = 100 * counts.to_fetch;
            payloads.iter().for_each(|_| look_through());
        }
        for (number, blocks) in payloads.iter().enumerate() {
            if !ahead {
                counts.total += blocks;
                look_through();
            }
            reporter.payload(number, *blocks, &counts);
            reporter.phase(Phase::Install);
            for _ in 0..counts.bytes_to_fetch / 10 * u64::from(number == 0) {
                reporter.counters().count_bytes(10);
                now();
                reporter.install_progress(&counts);
            }
            for block in 1..=*blocks {
                if ahead && block % 3 == 0 {
                    counts.fetched += 1;
                } else {
                    counts.kept += 1;
                }
                now();
                reporter.install_progress(&counts);
            }
            reporter.phase(Phase::Sync);
            if verifies {
                reporter.phase(Phase::Verify);
                for done in 0..=20 {
                    now();
                    reporter.verify_progress(done, 20);
                }
            }
        }
        if verifies {
            reporter.phase(Phase::Verify);
        }
        let report = reporter.state().failed(1.0, 0, "");
        reporter.finish(&report);
        drop(reporter);
        told.iter().collect()
    }

    /// Of any run, percentages rise from 0 to 99 in small steps, and end at 100.
    #[test]
    fn percentages_rise_steadily() {
        for payloads in [&[50][..], &[50, 50], &[10, 200, 30]] {
            for ahead in [true, false] {
                for verifies in [true, false] {
                    let all = percentages(payloads, ahead, verifies);
                    let run = format!("{payloads:?} {ahead} {verifies}: {all:?}");
                    let (first, last) = (all[0].1, all[all.len() - 1].1);
                    assert_eq!((first, last), (0.0, 100.0), "{run}");
                    for pair in all.windows(2) {
                        let step = pair[1].1 - pair[0].1;
                        assert!((0.0..5.0).contains(&step), "{step}: {run}");
                    }
                    let all = &all[..all.len() - 1];
                    let before = all[all.len() - 1].1;
                    assert!((98.9..=99.0).contains(&before), "{run}");
                    // What follows the writing has its share.
                    let sync = all.iter().rfind(|(phase, _)| *phase == Phase::Sync);
                    let expected = if verifies { 60.0..91.0 } else { 98.9..99.1 };
                    assert!(
                        expected.contains(&sync.expect("the test made it").1),
                        "{run}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_first_end_counts() {
        let (sender, told) = mpsc::channel();
        let reporter = Reporter::new(move |event: &Event<'_>| {
            let end = match event {
                Event::Done(report) | Event::Failed(report) => Some(report.exit),
                _ => None,
            };
            sender.send(end).expect("the test made it");
        });
        reporter.start("interrupted", false);
        let report = reporter.interrupted(130, "interrupted by SIGINT");
        assert_eq!((report.exit, report.target_touched), (130, false));
        // The run does not know of it, and nobody told yet.
        let mut own = report.clone();
        own.exit = 0;
        reporter.finish(&own);
        reporter.phase(Phase::Install);
        reporter.finish(&report);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [None, Some(130)]);

        reporter.start("complete", false);
        reporter.sealed(own.clone());
        assert_eq!(reporter.interrupted(130, "too late").exit, 0);
        own.exit = 5;
        reporter.finish(&own);
        assert_eq!(reporter.interrupted(130, "too late").exit, 5);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [None, Some(5)]);
    }

    /// Who hangs in the listener, or is it, keeps nobody from the report.
    #[test]
    fn the_report_waits_for_no_listener() {
        let (sender, asked) = mpsc::channel();
        let reporter = Arc::new(std::sync::OnceLock::<Reporter>::new());
        let inner = reporter.clone();
        let listening = Reporter::new(move |_: &Event<'_>| {
            if let Some(reporter) = inner.get() {
                let exit = reporter.interrupted(143, "from within").exit;
                sender.send(exit).expect("the test made it");
            }
        });
        let reporter = reporter.get_or_init(|| listening);
        reporter.start("b", false);
        assert_eq!(asked.try_recv(), Ok(143));
    }
}
