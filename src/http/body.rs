//! The body of an answer, as it comes.
//!
//! It must be read until a read returns zero, or ureq will not use the connection again: all that
//! reads here sees to that, but where the rest is too much.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use ureq::BodyReader;

use super::{timeout, Counters, Failure, Response};

/// Bytes of an unwanted body (of a redirect or an error) that are read to keep the connection.
const MAX_DRAIN: u64 = 64 << 10;

/// The body of an answer.
pub struct Body {
    reader: BodyReader<'static>,
    /// Bytes before the first one that was asked for.
    skip: u64,
    /// Bytes asked for that did not arrive yet.
    wanted: u64,
    /// Bytes asked for that arrived.
    got: u64,
    /// Bytes the head announced from the first one asked for on (from the very first on, as long
    /// as `skip` is not zero).
    announced: Option<u64>,
    /// All bytes received.
    received: u64,
    counters: Arc<Counters>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("wanted", &self.wanted)
            .field("received", &self.received)
            .finish_non_exhaustive()
    }
}

impl Body {
    /// The body of `response`. Its head announced `announced` bytes, the first `skip` of which are not
    /// wanted; of the others `wanted` are.
    pub(super) fn new(
        response: Response,
        announced: Option<u64>,
        skip: u64,
        wanted: u64,
        counters: &Arc<Counters>,
    ) -> Self {
        Self {
            reader: response.into_body().into_reader(),
            skip,
            wanted,
            got: 0,
            announced,
            received: 0,
            counters: counters.clone(),
        }
    }

    /// Appends the next bytes of what was asked for to `bytes`, as they come, at most `max`. Zero
    /// at its end, which was then read and lets the connection be used again. On failure `bytes`
    /// keeps what arrived.
    ///
    /// A body that is longer than asked for costs its connection: the rest is not read.
    pub fn read_some(&mut self, bytes: &mut Vec<u8>, max: usize) -> Result<usize, Failure> {
        self.skip_start()?;
        let left = usize::try_from(self.wanted).map_or(max, |wanted| wanted.min(max));
        let start = bytes.len();
        bytes.resize(start + left, 0);
        let read = self.reader.read(bytes.get_mut(start..).unwrap_or_default());
        let got = *read.as_ref().unwrap_or(&0);
        bytes.truncate(start + got);
        read.map_err(|error| in_body(error, self.received, self.announced))?;
        self.count(got as u64);
        self.wanted -= got as u64;
        self.got += got as u64;
        if got > 0 {
            return Ok(got);
        }
        if self.wanted > 0 && self.announced.is_none_or(|announced| self.got < announced) {
            return Err(short(self.received, self.announced));
        }
        // The read that returns zero.
        if !matches!(self.reader.read(&mut [0]), Ok(0)) {
            log::debug!("body longer than asked for, connection dropped");
        }
        Ok(0)
    }

    /// Passes over what stands before the range that was asked for.
    fn skip_start(&mut self) -> Result<(), Failure> {
        if self.skip > 0 {
            let skipped = io::copy(&mut (&mut self.reader).take(self.skip), &mut io::sink());
            let skipped = skipped.map_err(|error| in_body(error, 0, self.announced))?;
            self.count(skipped);
            self.announced = self.announced.map(|size| size.saturating_sub(self.skip));
            self.skip = 0;
        }
        Ok(())
    }

    /// Reads the next bytes of a body that is wanted whole. Zero at its end.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<usize, Failure> {
        self.skip_start()?;
        match self.reader.read(buffer) {
            Ok(0) if self.announced.is_some_and(|size| self.got < size) => {
                Err(short(self.received, self.announced))
            }
            Ok(n) => {
                self.count(n as u64);
                self.got += n as u64;
                Ok(n)
            }
            Err(error) => Err(in_body(error, self.received, self.announced)),
        }
    }

    fn count(&mut self, bytes: u64) {
        self.received += bytes;
        self.counters.count_bytes(bytes);
    }
}

fn short(received: u64, announced: Option<u64>) -> Failure {
    Failure::transient(match announced {
        Some(size) => format!("short body: {received} of {size} bytes"),
        None => format!("short body: {received} bytes"),
    })
}

fn in_body(error: io::Error, received: u64, announced: Option<u64>) -> Failure {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return short(received, announced);
    }
    // ureq wraps its own errors, a stall among them, in an I/O error.
    let cause = match error.get_ref().and_then(|inner| inner.downcast_ref()) {
        Some(ureq::Error::Timeout(what)) => timeout(*what),
        Some(ureq::Error::Other(trouble)) => trouble.to_string(),
        Some(inner) => inner.to_string(),
        None => error.to_string(),
    };
    Failure::transient(format!("{cause} after {received} bytes of the body"))
}

/// Reads a small unwanted body to its end, so that its connection can be used again.
pub(super) fn drain(response: Response) {
    let mut reader = response.into_body().into_reader();
    if let Err(error) = io::copy(&mut (&mut reader).take(MAX_DRAIN), &mut io::sink()) {
        log::debug!("unwanted body: {error}");
    }
}
