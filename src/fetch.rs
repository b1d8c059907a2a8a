//! Spans to bytes: worker threads with one connection each, and the only place that retries and
//! waits.
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
//! This file knows nothing of blocks, digests and compression, and is the only user of
//! crossbeam-channel.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use crossbeam_channel::{
    never, select_biased, unbounded, Receiver, RecvTimeoutError, Sender, TryRecvError,
};

use crate::error::{Error, Result};
use crate::http::{Body, Client, Failure, Kind, Stopper};

/// Longest wait that a server's Retry-After can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// Stack of a worker: ureq needs little. The default of 2 MiB a thread is much on a small board.
const STACK_SIZE: usize = 512 << 10;

/// How often and how fast to try again.
#[derive(Clone, Debug)]
pub struct Retry {
    /// Tries after the first one, in a row, without a byte received; `None` for no limit.
    pub max_retries: Option<u32>,
    /// Wait before the first of them; doubled for each further one.
    pub initial_backoff: Duration,
    /// The longest such wait.
    pub max_backoff: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max_retries: Some(5),
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
        }
    }
}

/// Counts the failures of one range and decides whether, and when, to try again.
struct Attempts<'a> {
    retry: &'a Retry,
    /// Disconnected when the run is over.
    stop: &'a Receiver<()>,
    /// Failures since the last byte.
    in_a_row: u32,
    stale: bool,
}

impl<'a> Attempts<'a> {
    fn new(retry: &'a Retry, stop: &'a Receiver<()>) -> Self {
        Self {
            retry,
            stop,
            in_a_row: 0,
            stale: false,
        }
    }

    /// Bytes arrived: the count starts again.
    fn progress(&mut self) {
        self.in_a_row = 0;
        self.stale = false;
    }

    /// Returns when it is time to try again, or the error to end with.
    fn failed(
        &mut self,
        failure: Failure,
        client: &Client,
        range: Option<Range<u64>>,
    ) -> Result<()> {
        let url = client.url();
        if is_over(self.stop) {
            // Our own doing, and nobody waits for the result any more.
            return Err(Error::Internal("a fetch was given up"));
        }
        match failure.kind {
            Kind::Permanent => {
                return Err(Error::Refused {
                    url,
                    cause: failure.cause,
                })
            }
            Kind::Changed { what, was, now } => {
                return Err(Error::Changed {
                    url,
                    what,
                    was,
                    now,
                })
            }
            // The server never saw that request: once more at once, without counting it.
            Kind::Stale if !self.stale => {
                log::debug!("idle connection was dead, url={url}");
                self.stale = true;
                return Ok(());
            }
            Kind::Stale | Kind::Transient | Kind::RangeIgnored => {}
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if self
            .retry
            .max_retries
            .is_some_and(|max| self.in_a_row > max)
        {
            return Err(Error::Network {
                url,
                range,
                attempts: self.in_a_row,
                cause: failure.cause,
            });
        }
        let doubled = 2u32.saturating_pow(self.in_a_row - 1);
        let wait = self
            .retry
            .initial_backoff
            .saturating_mul(doubled)
            .min(self.retry.max_backoff)
            .max(failure.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER));
        client.counters().count_retry();
        let range_text = range.as_ref().map_or("all".to_owned(), |range| {
            format!("{}..{}", range.start, range.end)
        });
        log::warn!(
            "retry {} in {:.1} s, range={range_text} cause={}",
            self.in_a_row,
            wait.as_secs_f64(),
            failure.cause
        );
        match self.stop.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err(Error::Internal("a fetch was given up")),
        }
    }
}

/// True once the run is over.
fn is_over(stop: &Receiver<()>) -> bool {
    matches!(stop.try_recv(), Err(TryRecvError::Disconnected))
}

/// Completes `bytes`, which hold the beginning of `range`, asking only for what is missing.
///
/// Ends early, without error, where the object turns out to end before the range does.
pub fn complete(
    client: &mut Client,
    range: &Range<u64>,
    bytes: &mut Vec<u8>,
    retry: &Retry,
) -> Result<()> {
    complete_or_stop(client, range, bytes, retry, &never())
}

/// The first bytes of an object that nothing is known of: at most `range`, fewer if it is smaller.
/// `None` if the server answers with the whole object, that is, has no ranges.
pub fn first(client: &mut Client, range: &Range<u64>, retry: &Retry) -> Result<Option<Vec<u8>>> {
    let stop = never();
    let mut attempts = Attempts::new(retry, &stop);
    let mut bytes = Vec::new();
    loop {
        match client
            .get(range)
            .and_then(|body| body.read_into(&mut bytes))
        {
            // Here a size is known, and what broke off is completed as any other range.
            _ if !bytes.is_empty() => break,
            Ok(()) => break,
            Err(Failure {
                kind: Kind::RangeIgnored,
                ..
            }) => return Ok(None),
            Err(failure) => attempts.failed(failure, client, Some(range.clone()))?,
        }
    }
    complete(client, range, &mut bytes, retry)?;
    Ok(Some(bytes))
}

fn complete_or_stop(
    client: &mut Client,
    range: &Range<u64>,
    bytes: &mut Vec<u8>,
    retry: &Retry,
    stop: &Receiver<()>,
) -> Result<()> {
    let mut attempts = Attempts::new(retry, stop);
    loop {
        let end = client.size().map_or(range.end, |size| range.end.min(size));
        let missing = range.start + bytes.len() as u64..end;
        if missing.is_empty() {
            return Ok(());
        }
        let before = bytes.len();
        let result = client.get(&missing).and_then(|body| {
            // The span is planned from a trusted index: its size may be allocated.
            bytes.reserve_exact(usize::try_from(missing.end - missing.start).unwrap_or(0));
            body.read_into(bytes)
        });
        if bytes.len() > before {
            attempts.progress();
        }
        if let Err(failure) = result {
            attempts.failed(failure, client, Some(missing))?;
        }
    }
}

/// The whole object in order, over one request as long as nothing breaks.
///
/// After a break it goes on with a range from where it stopped; if the server has no ranges, it
/// starts over and passes over what it has seen.
#[derive(Debug)]
pub struct Ordered {
    client: Client,
    body: Option<Body>,
    /// Offset of the next byte of `body`.
    at: u64,
    /// Offset of the next byte to hand out.
    wanted: u64,
    retry: Retry,
}

impl Ordered {
    /// Starts at the first byte.
    pub fn new(client: Client, retry: &Retry) -> Self {
        Self {
            client,
            body: None,
            at: 0,
            wanted: 0,
            retry: retry.clone(),
        }
    }

    /// Size of the object in bytes, as far as the server has said.
    pub fn size(&self) -> Option<u64> {
        self.client.size()
    }

    /// The next bytes; zero at the end of the object.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let stop = never();
        let mut attempts = Attempts::new(&self.retry, &stop);
        loop {
            let result = match &mut self.body {
                None => match self.client.size() {
                    Some(size) if self.wanted >= size => return Ok(0),
                    Some(size) if self.wanted > 0 => match self.client.get(&(self.wanted..size)) {
                        Err(Failure {
                            kind: Kind::RangeIgnored,
                            ..
                        }) => self.client.get_whole().map(|body| (body, 0)),
                        other => other.map(|body| (body, self.wanted)),
                    },
                    _ => self.client.get_whole().map(|body| (body, 0)),
                }
                .map(|(body, at)| {
                    self.body = Some(body);
                    self.at = at;
                }),
                Some(body) => match body.read(buffer) {
                    Ok(0) if self.at < self.wanted => Err(Failure {
                        kind: Kind::Transient,
                        cause: "the second download ended before the first".to_owned(),
                        retry_after: None,
                    }),
                    Ok(n) if self.at + n as u64 <= self.wanted && n > 0 => {
                        self.at += n as u64;
                        Ok(())
                    }
                    Ok(n) => {
                        // The part of it that was not handed out before.
                        let end = self.at + n as u64;
                        let seen = usize::try_from(self.wanted - self.at).unwrap_or(n);
                        buffer.copy_within(seen..n, 0);
                        self.at = end;
                        self.wanted = end;
                        return Ok(n - seen);
                    }
                    Err(failure) => Err(failure),
                },
            };
            if let Err(failure) = result {
                self.body = None;
                let rest = self.wanted..self.client.size().unwrap_or(u64::MAX);
                attempts.failed(failure, &self.client, Some(rest))?;
            }
        }
    }
}

/// What a worker is asked for.
struct Job {
    id: u32,
    range: Range<u64>,
    /// The beginning of the range where it is in hand already.
    bytes: Vec<u8>,
}

/// What comes back.
struct Arrival {
    id: u32,
    result: Result<Vec<u8>>,
}

/// Identifies the one urgent job under way.
const URGENT: u32 = u32::MAX;

/// The writer's end: hands out the spans of a plan and takes their bytes in order.
#[derive(Debug)]
pub struct Workers<'a> {
    jobs: Sender<Job>,
    urgent: Sender<Job>,
    arrivals: Receiver<Arrival>,
    /// Held only to be dropped.
    _stop: Sender<()>,
    early: BTreeMap<u32, Vec<u8>>,
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
pub fn with_workers<R>(
    clients: &mut [Client],
    spans: &[Range<u64>],
    in_hand: (u64, &[u8]),
    budget: u64,
    retry: &Retry,
    writer: impl FnOnce(&mut Workers<'_>) -> Result<R>,
) -> Result<R> {
    let (jobs, job_queue) = unbounded::<Job>();
    let (urgent, urgent_queue) = unbounded::<Job>();
    let (arrive, arrivals) = unbounded::<Arrival>();
    let (stop, stopped) = unbounded::<()>();
    let count = spans.len().max(1);
    let mut stopped_clients = false;
    let stoppers: Vec<_> = clients.iter().take(count).map(Client::stopper).collect();
    let result = std::thread::scope(|scope| {
        for client in clients.iter_mut().take(count) {
            let (queue, urgent) = (job_queue.clone(), urgent_queue.clone());
            let (arrive, stopped) = (arrive.clone(), stopped.clone());
            std::thread::Builder::new()
                .name("fetch".to_owned())
                .stack_size(STACK_SIZE)
                .spawn_scoped(scope, move || {
                    work(client, &queue, &urgent, &arrive, &stopped, retry);
                })
                .map_err(|_| Error::Internal("a worker thread cannot be started"))?;
        }
        // Only the workers hold these now: when all have ended, so has `arrivals`.
        drop((arrive, job_queue, urgent_queue, stopped));
        let mut workers = Workers {
            jobs,
            urgent,
            arrivals,
            _stop: stop,
            early: BTreeMap::new(),
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

fn work(
    client: &mut Client,
    jobs: &Receiver<Job>,
    urgent: &Receiver<Job>,
    arrive: &Sender<Arrival>,
    stop: &Receiver<()>,
    retry: &Retry,
) {
    loop {
        let job = select_biased! {
            // Nothing is ever sent here. Jobs that still wait are not begun any more.
            recv(stop) -> _ => return,
            recv(urgent) -> job => job,
            recv(jobs) -> job => job,
        };
        let Ok(Job {
            id,
            range,
            mut bytes,
        }) = job
        else {
            return;
        };
        let result = complete_or_stop(client, &range, &mut bytes, retry, stop).and_then(|()| {
            if bytes.len() as u64 == range.end - range.start {
                Ok(bytes)
            } else {
                Err(Error::Refused {
                    url: client.url(),
                    cause: format!("the bundle ends before offset {}", range.end),
                })
            }
        });
        // An error ends the run: asking for more would only delay that.
        let failed = result.is_err();
        if arrive.send(Arrival { id, result }).is_err() || failed {
            return;
        }
    }
}

impl Workers<'_> {
    /// The bytes of span `number`; spans must be taken in ascending order, none twice.
    pub fn take(&mut self, number: usize) -> Result<Vec<u8>> {
        self.outstanding -= self.held;
        self.held = 0;
        self.fill();
        let id = u32::try_from(number).map_err(|_| Error::Internal("more than 2^32 spans"))?;
        if number >= self.next {
            return Err(Error::Internal("a span was not handed out in order"));
        }
        let bytes = self.wait_for(id)?;
        self.held = bytes.len() as u64;
        Ok(bytes)
    }

    /// The bytes of a range outside of the plan, ahead of all spans that wait.
    pub fn take_urgent(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        self.send(true, URGENT, range)?;
        self.wait_for(URGENT)
    }

    fn wait_for(&mut self, id: u32) -> Result<Vec<u8>> {
        loop {
            if let Some(bytes) = self.early.remove(&id) {
                return Ok(bytes);
            }
            let arrival = self
                .arrivals
                .recv()
                .map_err(|_| Error::Internal("all workers ended with spans under way"))?;
            self.early.insert(arrival.id, arrival.result?);
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
            if self.send(false, id, span.clone()).is_err() {
                return;
            }
            self.outstanding += size;
            self.next += 1;
        }
    }

    fn send(&self, urgent: bool, id: u32, range: Range<u64>) -> Result<()> {
        let (offset, held) = self.in_hand;
        let bytes = range
            .start
            .checked_sub(offset)
            .and_then(|skip| held.get(usize::try_from(skip).ok()?..))
            .map(|held| {
                let size = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
                held.get(..size).unwrap_or(held).to_vec()
            })
            .unwrap_or_default();
        let queue = if urgent { &self.urgent } else { &self.jobs };
        queue
            .send(Job { id, range, bytes })
            .map_err(|_| Error::Internal("all workers ended before the plan did"))
    }
}
