//! When to try again, when to give up, and what else a download is held to.
//!
//! The only place that waits between requests. Failures are counted per range and in a row: a byte
//! received starts the count again, and a try that brought much is followed by the next one at
//! once, since a connection that breaks now and then is no reason to wait. Otherwise the wait is
//! doubled each time, and at least what the server asks for. What `http.rs` calls permanent ends
//! the range, and with it the run.
//!
//! Waits end early when the run is over, which the disconnection of a channel tells.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, TryRecvError};

use crate::error::{Error, Result};
use crate::http::{Client, Failure, Kind, MIN_BYTES};

/// Longest wait that a server's Retry-After can ask for.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(120);

/// A try that brought so many bytes is followed by the next at once.
const FRUITFUL: usize = 16 << 10;

/// How patient to be, and what to keep to.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Tries after the first one, in a row, without a byte received; `None` for no limit.
    pub max_retries: Option<u32>,
    /// Wait before the first of them; doubled for each further one.
    pub initial_backoff: Duration,
    /// The longest such wait.
    pub max_backoff: Duration,
    /// So long with hardly a byte ends a request. The same option as that of the settings, which ends
    /// one with none at all: whoever changes one changes both.
    pub stall_timeout: Duration,
    /// Most bytes a second, of all workers together.
    pub limit_rate: Option<Arc<Limiter>>,
    /// Most bytes that a run may receive.
    pub max_download: Option<u64>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            max_retries: Some(5),
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(30),
            limit_rate: None,
            max_download: None,
        }
    }
}

/// Keeps all workers together to a rate.
#[derive(Debug)]
pub struct Limiter {
    /// Bytes a second.
    rate: u64,
    /// When the bytes received so far are all paid for.
    paid: Mutex<Instant>,
}

impl Limiter {
    /// A limiter to `rate` bytes a second, at least one.
    pub fn new(rate: u64) -> Self {
        Self {
            rate: rate.max(1),
            paid: Mutex::new(Instant::now()),
        }
    }

    /// How long to wait after receiving so many bytes.
    fn wait(&self, bytes: usize) -> Duration {
        let now = Instant::now();
        let mut paid = self.paid.lock().unwrap_or_else(PoisonError::into_inner);
        // What was not used before is not saved up.
        let until = (*paid).max(now) + Duration::from_secs_f64(bytes as f64 / self.rate as f64);
        *paid = until;
        until - now
    }
}

/// Counts the failures of one range and decides whether, and when, to try again.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    /// Failures since the last byte.
    in_a_row: u32,
    stale: bool,
    /// The last try brought so much that the next one need not wait.
    fruitful: bool,
}

impl Attempts {
    /// So many bytes arrived: the count starts again. A connection that breaks now and then is no
    /// reason to wait.
    pub(crate) fn progress(&mut self, bytes: usize) {
        self.in_a_row = 0;
        self.stale = false;
        self.fruitful = bytes >= FRUITFUL;
    }

    /// Returns when it is time to try again, or the error to end with. `stop` is disconnected when
    /// the run is over.
    pub(crate) fn failed(
        &mut self,
        failure: Failure,
        client: &Client,
        range: Option<Range<u64>>,
        policy: &Policy,
        stop: &Stop,
    ) -> Result<()> {
        let url = client.url();
        if is_over(stop) {
            // Our own doing, and nobody waits for the result any more.
            return Err(given_up());
        }
        match failure.kind {
            Kind::Permanent => {
                return Err(Error::Refused {
                    url,
                    cause: failure.cause,
                })
            }
            Kind::Lasting => {
                return Err(Error::Network {
                    url,
                    range: None,
                    attempts: 1,
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
            Kind::Limit => {
                return Err(Error::DownloadLimit {
                    url,
                    cause: failure.cause,
                })
            }
            Kind::Stale | Kind::Transient | Kind::RangeIgnored | Kind::Slow => {}
        }
        self.in_a_row = self.in_a_row.saturating_add(1);
        if policy.max_retries.is_some_and(|max| self.in_a_row > max) {
            return Err(Error::Network {
                url,
                range,
                attempts: self.in_a_row,
                cause: failure.cause,
            });
        }
        let doubled = 2u32.saturating_pow(self.in_a_row - 1);
        let backoff = if std::mem::take(&mut self.fruitful) {
            Duration::ZERO
        } else {
            policy.initial_backoff.saturating_mul(doubled)
        };
        let wait = backoff
            .min(policy.max_backoff)
            .max(failure.retry_after.unwrap_or_default().min(MAX_RETRY_AFTER));
        client.counters().count_retry();
        let range_text = range.as_ref().map_or("all".to_owned(), |range| {
            format!("{}..{}", range.start, range.end)
        });
        // All workers meet an outage at once: one of them tells.
        let level = if client.counters().may_warn() {
            log::Level::Warn
        } else {
            log::Level::Debug
        };
        log::log!(
            level,
            "retry {} in {:.1} s, {url} range={range_text} cause={}",
            self.in_a_row,
            wait.as_secs_f64(),
            failure.cause
        );
        match stop.recv_timeout(wait) {
            Err(RecvTimeoutError::Timeout) => Ok(()),
            _ => Err(given_up()),
        }
    }
}

/// What a fetch ends with that nobody waits for any more.
pub(crate) fn given_up() -> Error {
    Error::Internal("a fetch was given up")
}

/// Disconnected when the run is over: nothing is ever sent on it. What would be is as on the channels
/// for the payload digest, since each kind of channel is 8 KB of code.
pub(crate) type Stop = Receiver<Vec<u8>>;

/// True once the run is over.
pub(crate) fn is_over(stop: &Stop) -> bool {
    matches!(stop.try_recv(), Err(TryRecvError::Disconnected))
}

/// Holds received bytes to the download limit and to the rate.
pub(crate) fn admit(
    client: &Client,
    policy: &Policy,
    stop: &Stop,
    got: usize,
) -> Result<(), Failure> {
    let all = client.counters().bytes();
    if let Some(max) = policy.max_download.filter(|max| all > *max) {
        return Err(Failure::new(
            Kind::Limit,
            format!("{all} bytes were received, more than --max-download {max}"),
        ));
    }
    if let Some(limiter) = &policy.limit_rate {
        // If the run is over, the next read finds out.
        stop.recv_timeout(limiter.wait(got)).unwrap_or_default();
    }
    Ok(())
}

/// Notices a body that trickles: a read never times out as long as single bytes come.
#[derive(Debug)]
pub(crate) struct Trickle {
    timeout: Duration,
    since: Instant,
    bytes: u64,
}

impl Trickle {
    /// For a body that begins now.
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            timeout: policy.stall_timeout,
            since: Instant::now(),
            bytes: 0,
        }
    }

    /// Counts received bytes; a failure if hardly any came within the stall timeout.
    pub(crate) fn count(&mut self, bytes: usize) -> Result<(), Failure> {
        self.bytes += bytes as u64;
        if self.since.elapsed() < self.timeout {
            return Ok(());
        }
        let counted = std::mem::take(&mut self.bytes);
        self.since = Instant::now();
        if counted < MIN_BYTES {
            return Err(Failure::new(
                Kind::Transient,
                format!("no more than {counted} bytes came in the stall timeout"),
            ));
        }
        Ok(())
    }
}
