//! Spans to bytes: worker threads with one connection each.
//!
//! ```text
//!   calling thread = writer                N workers (scoped), each with its own Client
//!   ┌───────────────────────────┐  jobs    ┌──────────────────────┐
//!   │ hand out spans while      │─────────▶│ receive a job        │
//!   │ their bytes fit the budget│  urgent  │ get range, retry,    │
//!   │ take span k, in order     │─────────▶│ ask for missing tail │
//!   │ (early arrivals wait)     │◀─────────│ send bytes or error  │
//!   └───────────────────────────┘ arrivals └──────────────────────┘
//! ```
//!
//! The writer owns submission: a span is handed out only when its bytes fit into what is left of
//! the memory budget, so early arrivals are bounded by it, whatever order they come in. The
//! channels are unbounded in type and bounded by that rule: no send ever blocks, nothing can
//! deadlock. One block may always be under way, also when it is larger than the budget.
//!
//! Shutdown is disconnection: dropping [`Workers`] ends the jobs channel, on which workers wait,
//! and the stop channel, on which they sleep between retries; their sockets are shut down, so that
//! a blocked read ends too.
//!
//! *Bad connections.* A worker that gets no byte, twice in a row, while others do, is one too many
//! for the server: it hands its job back and ends (`Crew`), down to a single one. Workers that have
//! nothing left to do count among the others, once for each job. A body that comes far slower than
//! the others did is dropped, and its tail asked for over a new connection (`Pace`). Neither counts
//! as a retry. A trickle of a few bytes in the stall timeout is silence.
//!
//! *Short spans.* Where answers are shorter than a round trip, a worker takes further jobs while it
//! has one, so that its connection can ask for them early (`ahead.rs`). It takes none that another
//! worker could begin with at once, and a single worker asks for one thing at a time.
//!
//! This file knows nothing of blocks, digests and compression.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{never, select_biased, unbounded, Receiver, Sender};

use crate::error::{Error, Result};
use crate::http::{Body, Client, Failure, Kind, Stopper, MAX_AHEAD, MIN_BYTES, WINDOW};
use crate::retry::{admit, given_up, is_over, Attempts, Policy, Stop, Trickle};

/// Stack of a worker. A TLS handshake takes 24 KB of it (measured; unoptimised some times that), and the
/// C library looks names up on it; the default of 2 MiB is much on a small board.
const STACK_SIZE: usize = 512 << 10;

/// Bytes asked of a body at once.
const PIECE: usize = 16 << 10;

/// Time over which the pace of a body is measured.
const PACE_WINDOW: Duration = Duration::from_secs(2);

/// A body this many times slower than the workers have been on the average is not waited for.
const PACE_FACTOR: f64 = 16.0;

/// Bodies of one range that are dropped for being slow. After that the link itself is.
const MAX_SLOW: u32 = 2;

/// Bodies without a byte after which a worker is one too many, if others get bytes.
const MAX_EMPTY: u32 = 2;

/// The first bytes of an object that nothing is known of: at most `range`, fewer if it is smaller.
/// `None` if the server has no ranges that are of use: it answers with the whole object, or does not
/// tell its size.
pub fn first(client: &mut Client, range: &Range<u64>, policy: &Policy) -> Result<Option<Vec<u8>>> {
    let stop = never();
    let mut attempts = Attempts::default();
    let mut bytes = Vec::new();
    while bytes.is_empty() {
        match client.get(range) {
            Ok(body) => {
                if let Err(failure) = receive(body, &mut bytes, client, policy, &stop, None) {
                    attempts.failed(failure, client, Some(range.clone()), policy, &stop)?;
                }
            }
            Err(Failure {
                kind: Kind::RangeIgnored,
                ..
            }) => return Ok(None),
            Err(failure) => attempts.failed(failure, client, Some(range.clone()), policy, &stop)?,
        }
    }
    // Without a size there is no telling where the bundle ends.
    if client.size().is_none() {
        return Ok(None);
    }
    // Now it is known, and what broke off is completed as any other range.
    complete(client, range, &mut bytes, policy)?;
    Ok(Some(bytes))
}

/// Completes `bytes`, which hold the beginning of `range`, asking only for what is missing.
///
/// Ends early, without error, where the object turns out to end before the range does.
pub fn complete(
    client: &mut Client,
    range: &Range<u64>,
    bytes: &mut Vec<u8>,
    policy: &Policy,
) -> Result<()> {
    complete_in(client, range, bytes, policy, &never(), None).map(|_| ())
}

/// How a range ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// It is complete.
    Complete,
    /// This worker is one too many: another one is to go on.
    Surplus,
}

fn complete_in(
    client: &mut Client,
    range: &Range<u64>,
    bytes: &mut Vec<u8>,
    policy: &Policy,
    stop: &Stop,
    crew: Option<(&Crew, bool)>,
) -> Result<Ended> {
    let mut attempts = Attempts::default();
    let mut slow = 0;
    let mut empty = 0;
    let mut received_by_all = client.counters().bytes();
    loop {
        let end = client.size().map_or(range.end, |size| range.end.min(size));
        let missing = missing(&(range.start..end), bytes);
        if missing.is_empty() {
            return Ok(Ended::Complete);
        }
        if is_over(stop) {
            return Err(given_up());
        }
        let before = bytes.len();
        let watched = crew.map(|(crew, _)| crew).filter(|_| slow < MAX_SLOW);
        // The span is planned from a trusted index: its size may be allocated.
        bytes.reserve_exact(usize::try_from(missing.end - missing.start).unwrap_or(0));
        let result = client
            .get(&missing)
            .and_then(|body| receive(body, bytes, client, policy, stop, watched));
        let gained = bytes.len() - before;
        if gained as u64 >= MIN_BYTES || result.is_ok() {
            attempts.progress(gained);
            empty = 0;
            received_by_all = client.counters().bytes();
        }
        let Err(failure) = result else { continue };
        if failure.kind == Kind::Slow {
            log::info!("a slow connection is replaced, range={missing:?} {failure}");
            slow += 1;
            continue;
        }
        if bytes.len() == before && failure.kind == Kind::Transient {
            empty += 1;
            let received = client.counters().bytes() > received_by_all;
            let leaves = |(crew, returned): (&Crew, bool)| {
                let others = received || !returned && crew.idle.load(Ordering::Relaxed) > 0;
                others && crew.leave()
            };
            if empty >= MAX_EMPTY && crew.is_some_and(leaves) {
                log::warn!("one connection fewer: it gets nothing while others do, {failure}");
                return Ok(Ended::Surplus);
            }
        }
        attempts.failed(failure, client, Some(missing), policy, stop)?;
    }
}

/// Reads a body to its end, at the allowed rate and watching its pace.
fn receive(
    mut body: Body,
    bytes: &mut Vec<u8>,
    client: &Client,
    policy: &Policy,
    stop: &Stop,
    crew: Option<&Crew>,
) -> Result<(), Failure> {
    let mut pace = Pace::new(policy);
    loop {
        let got = body.read_some(bytes, PIECE)?;
        if got == 0 {
            break;
        }
        admit(client, policy, stop, got)?;
        pace.count(got, crew, client)?;
    }
    Ok(())
}

/// What is left to ask for.
fn missing(range: &Range<u64>, bytes: &[u8]) -> Range<u64> {
    range.start.saturating_add(bytes.len() as u64)..range.end
}

/// What the workers of a run know of each other.
#[derive(Debug)]
struct Crew {
    /// Workers that still take jobs.
    working: AtomicUsize,
    /// Workers that did a job and wait for the next one.
    idle: AtomicUsize,
    /// When they began, and the bytes received before.
    began: (Instant, u64),
}

impl Crew {
    /// Leaves it, unless nobody would be left. True if so.
    fn leave(&self) -> bool {
        let fewer = |working: usize| working.checked_sub(1).filter(|left| *left > 0);
        self.working
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer)
            .is_ok()
    }

    /// Workers that still take jobs.
    fn working(&self) -> usize {
        self.working.load(Ordering::Relaxed).max(1)
    }

    /// Bytes a second that each worker got on the average, idle times included: what a body that
    /// is not much slower is never blamed for.
    fn usual_pace(&self, client: &Client) -> f64 {
        let (start, before) = self.began;
        let bytes = client.counters().bytes().saturating_sub(before);
        bytes as f64 / start.elapsed().as_secs_f64().max(0.001) / self.working() as f64
    }
}

/// Watches the pace of one body.
struct Pace {
    trickle: Trickle,
    /// Start of the present window, and the bytes in it.
    window: (Instant, u64),
}

impl Pace {
    fn new(policy: &Policy) -> Self {
        Self {
            trickle: Trickle::new(policy),
            window: (Instant::now(), 0),
        }
    }

    fn count(&mut self, bytes: usize, crew: Option<&Crew>, client: &Client) -> Result<(), Failure> {
        self.trickle.count(bytes)?;
        self.window.1 += bytes as u64;
        let elapsed = self.window.0.elapsed();
        if elapsed < PACE_WINDOW {
            return Ok(());
        }
        let pace = self.window.1 as f64 / elapsed.as_secs_f64();
        self.window = (Instant::now(), 0);
        let usual = crew.map_or(0.0, |crew| crew.usual_pace(client));
        if pace * PACE_FACTOR < usual {
            return Err(Failure::new(
                Kind::Slow,
                format!("pace={pace:.0} usual={usual:.0} bytes a second"),
            ));
        }
        Ok(())
    }
}

/// What a worker is asked for.
struct Job {
    id: u32,
    range: Range<u64>,
    /// The beginning of the range where it is in hand already.
    bytes: Vec<u8>,
    /// Another worker could not do it.
    returned: bool,
}

/// What comes back.
struct Arrival<T> {
    id: u32,
    result: Result<T>,
}

/// What workers make of the bytes of spans before they hand them over.
pub trait Prepare<T>: Sync {
    /// Takes the number of a span (none for a range outside of the plan), its place, and its bytes.
    /// It must not wait for the writer, who may wait for another range.
    fn prepare(&self, number: Option<usize>, range: &Range<u64>, bytes: Vec<u8>) -> T;
}

/// Identifies the one urgent job under way.
const URGENT: u32 = u32::MAX;

/// The writer's end: hands out the spans of a plan and takes their bytes in order.
pub struct Workers<'a, T> {
    jobs: Sender<Job>,
    urgent: Sender<Job>,
    arrivals: Receiver<Arrival<T>>,
    /// Held only to be dropped.
    _stop: Sender<Vec<u8>>,
    /// Arrivals that came before their turn, in any order.
    early: Vec<(u32, T)>,
    spans: &'a [Range<u64>],
    /// Next span to hand out.
    next: usize,
    /// Bytes of spans handed out and not given back by [`Workers::take`] before the present one.
    outstanding: u64,
    /// Bytes of the span taken last, which the writer still holds.
    held: u64,
    budget: u64,
    /// Bytes of the bundle that are in hand: their offset, and they.
    in_hand: (u64, &'a [u8]),
}

/// Runs `writer` with workers at its side that fetch `spans` (ascending). At most
/// `clients.len()` workers run, and never more than there are spans.
pub fn with_workers<T: Send, R>(
    clients: &mut [Client],
    spans: &[Range<u64>],
    in_hand: (u64, &[u8]),
    budget: u64,
    policy: &Policy,
    prepare: &dyn Prepare<T>,
    writer: impl FnOnce(&mut Workers<'_, T>) -> Result<R>,
) -> Result<R> {
    let (jobs, job_queue) = unbounded::<Job>();
    let (urgent, urgent_queue) = unbounded::<Job>();
    let (give_back, given_back) = unbounded::<Job>();
    let (arrive, arrivals) = unbounded::<Arrival<T>>();
    let (stop, stopped): (_, Stop) = unbounded();
    let count = spans.len().max(1);
    let crew = Crew {
        working: AtomicUsize::new(count.min(clients.len())),
        idle: AtomicUsize::new(0),
        began: (
            Instant::now(),
            clients
                .first()
                .map_or(0, |client| client.counters().bytes()),
        ),
    };
    let mut stopped_clients = false;
    let stoppers: Vec<_> = clients.iter().take(count).map(Client::stopper).collect();
    let result = std::thread::scope(|scope| {
        for client in clients.iter_mut().take(count) {
            let queues = Queues {
                urgent: urgent_queue.clone(),
                given_back: given_back.clone(),
                jobs: job_queue.clone(),
            };
            let (arrive, stopped) = (arrive.clone(), stopped.clone());
            let (give_back, crew) = (give_back.clone(), &crew);
            std::thread::Builder::new()
                .name("fetch".to_owned())
                .stack_size(STACK_SIZE)
                .spawn_scoped(scope, move || {
                    let worker = Worker {
                        client,
                        waiting: VecDeque::new(),
                        worked: false,
                        queues,
                        give_back: &give_back,
                        arrive: &arrive,
                        stop: &stopped,
                        policy,
                        crew,
                        prepare,
                    };
                    worker.work();
                })
                .map_err(|_| Error::Internal("a worker thread cannot be started"))?;
        }
        // Only the workers hold these now: when all have ended, so has `arrivals`.
        drop((arrive, job_queue, urgent_queue, given_back, stopped));
        let mut workers = Workers {
            jobs,
            urgent,
            arrivals,
            _stop: stop,
            early: Vec::new(),
            spans,
            next: 0,
            outstanding: 0,
            held: 0,
            budget,
            in_hand,
        };
        // The download begins now, whatever the writer does first.
        workers.fill();
        let result = writer(&mut workers);
        let busy = workers.outstanding > workers.held || result.is_err();
        drop(workers);
        if busy {
            // Somebody may be in the middle of a body that nobody wants any more. Reading it to its
            // end would cost more than a new connection.
            stoppers.into_iter().for_each(Stopper::stop);
            stopped_clients = true;
        }
        result
    });
    if stopped_clients {
        for client in clients.iter_mut().take(count) {
            *client = client.sibling();
        }
    }
    result
}

/// One more is idle, as long as this lives.
struct Idle<'a>(&'a AtomicUsize);

impl<'a> Idle<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Idle<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where workers take jobs from.
struct Queues {
    /// Jobs that go before all others.
    urgent: Receiver<Job>,
    /// Jobs that another worker could not do.
    given_back: Receiver<Job>,
    jobs: Receiver<Job>,
}

impl Queues {
    /// Waits for the next job; none when the run is over, which disconnects `jobs`.
    ///
    /// What was given back is for a worker that has done a job: others may be no better off than the
    /// one that could not, and nobody would take it from them once more.
    fn take(&self, worked: bool) -> Option<Job> {
        let nothing = never();
        let given_back = if worked { &self.given_back } else { &nothing };
        let job = select_biased! {
            recv(self.urgent) -> job => job,
            recv(given_back) -> job => job,
            recv(self.jobs) -> job => job,
        };
        job.ok()
    }
}

/// One worker thread.
struct Worker<'a, T> {
    client: &'a mut Client,
    /// Jobs that it has taken and not begun.
    waiting: VecDeque<Job>,
    /// It did a job.
    worked: bool,
    queues: Queues,
    /// Where a job goes that this worker cannot do.
    give_back: &'a Sender<Job>,
    arrive: &'a Sender<Arrival<T>>,
    stop: &'a Stop,
    policy: &'a Policy,
    crew: &'a Crew,
    prepare: &'a dyn Prepare<T>,
}

impl<T> Worker<'_, T> {
    /// The next job; none when the run is over.
    fn next(&mut self) -> Option<Job> {
        if is_over(self.stop) {
            // Jobs that still wait are not begun any more.
            return None;
        }
        // First what may have been asked for already.
        if let Some(job) = self.waiting.pop_front() {
            return Some(job);
        }
        // One that did nothing yet may be no better off than one that gets nothing.
        let _idle = self.worked.then(|| Idle::new(&self.crew.idle));
        self.queues.take(self.worked)
    }

    /// Takes jobs that wait, as many as are worth asking for while `present` is under way.
    fn look_ahead(&mut self, present: &Job) {
        let working = self.crew.working();
        if working > 1 && self.client.asks_ahead() {
            let size = |job: &Job| job.range.end - job.range.start;
            let mut bytes = size(present) + self.waiting.iter().map(size).sum::<u64>();
            while self.waiting.len() < MAX_AHEAD
                && bytes < WINDOW
                && self.queues.urgent.is_empty()
                // Enough is left for all others.
                && self.queues.jobs.len() > self.waiting.len() * (working - 1)
            {
                let Ok(job) = self.queues.jobs.try_recv() else {
                    break;
                };
                bytes += size(&job);
                self.waiting.push_back(job);
            }
        }
        let ranges = self.waiting.iter();
        let ranges = ranges.map(|job| missing(&job.range, &job.bytes));
        self.client
            .will_ask(ranges.filter(|range| !range.is_empty()));
    }

    fn work(mut self) {
        while let Some(job) = self.next() {
            self.look_ahead(&job);
            let Job {
                id,
                range,
                mut bytes,
                returned,
            } = job;
            let _given_up = GivenUp(self.arrive, id);
            let ended = complete_in(
                self.client,
                &range,
                &mut bytes,
                self.policy,
                self.stop,
                Some((self.crew, returned)),
            );
            let result = match ended {
                Ok(Ended::Surplus) => {
                    // The others take them next; if they are gone, so is the writer.
                    self.waiting.push_front(Job {
                        id,
                        range,
                        bytes,
                        returned: true,
                    });
                    for job in self.waiting {
                        drop(self.give_back.send(job));
                    }
                    return;
                }
                Ok(Ended::Complete) if bytes.len() as u64 == range.end - range.start => {
                    let number = usize::try_from(id).ok().filter(|_| id != URGENT);
                    Ok(self.prepare.prepare(number, &range, bytes))
                }
                Ok(Ended::Complete) => Err(Error::Refused {
                    url: self.client.url(),
                    cause: format!("the bundle ends before offset {}", range.end),
                }),
                Err(error) => Err(error),
            };
            self.worked = true;
            // An error ends the run: asking for more would only delay that.
            let failed = result.is_err();
            if self.arrive.send(Arrival { id, result }).is_err() || failed {
                return;
            }
        }
    }
}

/// A panic while this lives loses the job, and the writer is not to wait for it for ever.
struct GivenUp<'a, T>(&'a Sender<Arrival<T>>, u32);

impl<T> Drop for GivenUp<'_, T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let result = Err(given_up());
            drop(self.0.send(Arrival { id: self.1, result }));
        }
    }
}

impl<T> std::fmt::Debug for Workers<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers")
            .field("next", &self.next)
            .field("outstanding", &self.outstanding)
            .finish_non_exhaustive()
    }
}

impl<T> Workers<'_, T> {
    /// Span `number`; spans must be taken in ascending order, none twice.
    pub fn take(&mut self, number: usize) -> Result<T> {
        self.outstanding -= self.held;
        self.held = 0;
        self.fill();
        let id = u32::try_from(number).map_err(|_| Error::Internal("more than 2^32 spans"))?;
        if number >= self.next {
            return Err(Error::Internal("a span was not handed out in order"));
        }
        let span = self.wait_for(id)?;
        self.held = self.spans.get(number).map_or(0, |s| s.end - s.start);
        Ok(span)
    }

    /// A range outside of the plan, ahead of all spans that wait.
    pub fn take_urgent(&mut self, range: Range<u64>) -> Result<T> {
        self.send(URGENT, range)?;
        self.wait_for(URGENT)
    }

    fn wait_for(&mut self, id: u32) -> Result<T> {
        loop {
            if let Some(at) = self.early.iter().position(|(early, _)| *early == id) {
                return Ok(self.early.swap_remove(at).1);
            }
            let arrival = self
                .arrivals
                .recv()
                .map_err(|_| Error::Internal("all workers ended with spans under way"))?;
            self.early.push((arrival.id, arrival.result?));
        }
    }

    /// Hands out spans as the budget allows, at least one.
    fn fill(&mut self) {
        while let Some(span) = self.spans.get(self.next) {
            let size = span.end - span.start;
            if self.outstanding > 0 && self.outstanding + size > self.budget {
                return;
            }
            let Ok(id) = u32::try_from(self.next) else {
                return;
            };
            if self.send(id, span.clone()).is_err() {
                return;
            }
            self.outstanding += size;
            self.next += 1;
        }
    }

    fn send(&self, id: u32, range: Range<u64>) -> Result<()> {
        let (offset, held) = self.in_hand;
        let size = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        // Made here and not by the worker: glibc gives each thread that allocates a heap of its own,
        // and eight of them with their leftovers cost 10 MiB. The span is from a trusted index.
        let mut bytes = Vec::with_capacity(size);
        let known = range.start.checked_sub(offset).and_then(|skip| {
            let held = held.get(usize::try_from(skip).ok()?..)?;
            Some(held.get(..size).unwrap_or(held))
        });
        bytes.extend_from_slice(known.unwrap_or_default());
        let queue = if id == URGENT {
            &self.urgent
        } else {
            &self.jobs
        };
        queue
            .send(Job {
                id,
                range,
                bytes,
                returned: false,
            })
            .map_err(|_| Error::Internal("all workers ended before the plan did"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_back_is_for_those_who_can() {
        let (urgent, urgent_queue) = unbounded();
        let (give_back, given_back) = unbounded();
        let (jobs, job_queue) = unbounded();
        let queues = Queues {
            urgent: urgent_queue,
            given_back,
            jobs: job_queue,
        };
        let send = |queue: &Sender<Job>, ids: [u32; 2]| {
            for id in ids {
                let job = Job {
                    id,
                    range: 0..1,
                    bytes: Vec::new(),
                    returned: false,
                };
                queue.send(job).expect("the queue is there");
            }
        };
        send(&jobs, [1, 2]);
        send(&give_back, [3, 4]);
        send(&urgent, [5, 6]);
        let take = |worked| queues.take(worked).map(|job| job.id);
        let new = [take(false), take(false), take(false)];
        assert_eq!(new, [Some(5), Some(6), Some(1)]);
        let proven = [take(true), take(true), take(true)];
        assert_eq!(proven, [Some(3), Some(4), Some(2)]);
        drop((jobs, urgent));
        assert_eq!((take(false), take(true)), (None, None));
        drop(give_back);
    }
}
