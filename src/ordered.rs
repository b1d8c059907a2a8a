//! A whole object in order, where there are no ranges or the user wants none.
//!
//! One request, as long as nothing breaks; what comes is read when it is wanted, so the socket's
//! buffer is all the reading ahead there is. After a break the rest is asked for as a range. A
//! server without ranges starts over, and what was handed out already is passed over. Only bytes
//! that go beyond it count as progress, or a connection that always breaks at the same place would
//! be tried for ever.

use crossbeam_channel::never;

use crate::error::Result;
use crate::http::{Body, Client, Failure, Kind, MIN_BYTES};
use crate::retry::{admit, Attempts, Policy, Trickle};

/// The whole object in order, over one request as long as nothing breaks.
///
/// After a break it goes on with a range from where it stopped; if the server has no ranges, it
/// starts over and passes over what it has seen.
#[derive(Debug)]
pub(crate) struct Ordered {
    client: Client,
    body: Option<Body>,
    /// Offset of the next byte of `body`.
    at: u64,
    /// Offset of the next byte to hand out.
    wanted: u64,
    policy: Policy,
    attempts: Attempts,
    /// Bytes handed out since the last failure: what is received again is no progress.
    gained: usize,
    trickle: Trickle,
}

impl Ordered {
    /// Starts at the first byte.
    pub(crate) fn new(client: Client, policy: &Policy) -> Self {
        Self {
            client,
            body: None,
            at: 0,
            wanted: 0,
            policy: policy.clone(),
            attempts: Attempts::default(),
            gained: 0,
            trickle: Trickle::new(policy),
        }
    }

    /// Size of the object in bytes, as far as the server has said.
    pub(crate) fn size(&self) -> Option<u64> {
        self.client.size()
    }

    /// The next bytes; zero at the end of the object.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let stop = never();
        loop {
            let result = match &mut self.body {
                None => self.connect().map(|()| None),
                Some(body) => body.read(buffer).and_then(|n| {
                    admit(&self.client, &self.policy, &stop, n)?;
                    self.trickle.count(n)?;
                    Ok(Some(n))
                }),
            };
            let short = |at: u64, size: Option<u64>| size.is_some_and(|size| at < size);
            let result = match result {
                Ok(Some(0)) if short(self.at, self.client.size()) => {
                    if self.gained as u64 >= MIN_BYTES {
                        // A part of the object: the rest is asked for.
                        self.attempts.progress(std::mem::take(&mut self.gained));
                        self.body = None;
                        continue;
                    }
                    // One that brings nothing new may do so for ever.
                    let cause = "the body ends before the bundle does";
                    Err(Failure::new(Kind::Transient, cause))
                }
                result => result,
            };
            match result {
                Ok(Some(n)) if self.at + n as u64 > self.wanted || n == 0 => {
                    // The part of it that was not handed out before.
                    let seen = usize::try_from(self.wanted - self.at).unwrap_or(n).min(n);
                    buffer.copy_within(seen..n, 0);
                    self.at += n as u64;
                    self.wanted = self.wanted.max(self.at);
                    // Of gigabytes, on a machine of 32 bits.
                    self.gained = self.gained.saturating_add(n - seen);
                    return Ok(n - seen);
                }
                Ok(n) => self.at += n.unwrap_or(0) as u64,
                Err(failure) => {
                    self.body = None;
                    let gained = std::mem::take(&mut self.gained);
                    if gained as u64 >= MIN_BYTES {
                        self.attempts.progress(gained);
                    }
                    let rest = self.wanted..self.client.size().unwrap_or(u64::MAX);
                    let (client, policy) = (&self.client, &self.policy);
                    self.attempts
                        .failed(failure, client, Some(rest), policy, &stop)?;
                }
            }
        }
    }

    /// Asks for the rest, or for all where that is not to be had.
    fn connect(&mut self) -> Result<(), Failure> {
        let rest = match self.client.size() {
            Some(size) if self.wanted > 0 => Some(self.wanted..size.max(self.wanted + 1)),
            _ => None,
        };
        let part = rest.map(|rest| self.client.get(&rest));
        let (body, at) = match part {
            Some(Ok(body)) => (body, self.wanted),
            Some(Err(failure)) if failure.kind != Kind::RangeIgnored => return Err(failure),
            _ => (self.client.get_whole()?, 0),
        };
        self.body = Some(body);
        self.at = at;
        self.trickle = Trickle::new(&self.policy);
        Ok(())
    }
}
