//! The stored bytes of a span to verified blocks, ahead of the writer.
//!
//! Decompressing is most of the work of an install, and one thread cannot keep up with a usual
//! link. So a worker that has its span's bytes while the writer is still busy with an earlier span
//! unpacks them itself: it decompresses the blocks and compares their digests. What it hands over
//! is [`VerifiedBuf`]s, proofs that no one can make without that comparison. Order, the payload
//! digest and writing stay with the writer, and so does every block that was not unpacked: where
//! the writer has nothing else to do, where there is one core only, and where a block is corrupt
//! (the writer then meets the same error, in order).
//!
//! Plain bytes are taken from a budget of their own ([`Ahead`]) before a block is unpacked, by the
//! size that its xz stream states; a block that turns out larger is refused by that bound. When the
//! budget is used up, a worker waits for the writer to write some, and so do the spans behind it.
//! It does not wait once the writer wants its very span, nor while an urgent job waits for any
//! worker at all, or all would wait for ever.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bundle::{Compression, Index};
use crate::fetch::Prepare;
use crate::hash::VerifiedBuf;
use crate::plan::{Plan, Step};
use crate::xz::{self, Decoder};

/// Longest wait for the writer to write something. After that the bytes go on as they are.
const MAX_WAIT: Duration = Duration::from_secs(5);

/// The bytes of a span, and what was made of them ahead.
#[derive(Debug)]
pub struct Span<'a> {
    /// Its bytes as in the bundle.
    pub stored: Vec<u8>,
    /// Its first blocks, with their numbers.
    unpacked: VecDeque<(u32, Plain<'a>)>,
}

#[derive(Debug)]
struct Plain<'a> {
    block: VerifiedBuf,
    _share: Share<'a>,
}

impl Span<'_> {
    /// A span as it came.
    pub fn new(stored: Vec<u8>) -> Self {
        Self {
            stored,
            unpacked: VecDeque::new(),
        }
    }

    /// Block `number`, if it was unpacked ahead. Blocks are asked for in ascending order.
    pub fn take(&mut self, number: u32) -> Option<VerifiedBuf> {
        while self.unpacked.front().is_some_and(|(n, _)| *n < number) {
            self.unpacked.pop_front();
        }
        if self.unpacked.front()?.0 != number {
            return None;
        }
        self.unpacked.pop_front().map(|(_, plain)| plain.block)
    }
}

/// How far the writer is, and how many bytes may be unpacked ahead of it.
#[derive(Debug)]
pub struct Ahead {
    /// Plain bytes that may be unpacked at a time.
    budget: u64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// Plain bytes that may still be unpacked.
    left: u64,
    /// The span that the writer works on or waits for.
    wanted: usize,
    /// Jobs that wait for a worker, whoever it is, and the end of the run: no worker is to wait
    /// for the writer meanwhile.
    urgent: usize,
}

impl State {
    /// Whether `span` is still ahead of the writer.
    fn is_ahead(&self, span: usize) -> bool {
        self.wanted < span && self.urgent == 0
    }
}

impl Ahead {
    /// A budget of so many bytes, with the writer at the first span.
    pub fn new(bytes: u64) -> Self {
        Self {
            budget: bytes,
            state: Mutex::new(State {
                left: bytes,
                wanted: 0,
                urgent: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// The writer wants this span now.
    pub fn want(&self, span: usize) {
        self.state().wanted = span;
        self.changed.notify_all();
    }

    /// One more urgent job waits for a worker, or the writer has come to its end.
    pub fn hurry(&self) {
        self.state().urgent += 1;
        self.changed.notify_all();
    }

    /// A worker has taken an urgent job.
    pub fn calm(&self) {
        let mut state = self.state();
        state.urgent = state.urgent.saturating_sub(1);
    }

    /// The writer begins with a new plan.
    pub fn begin(&self) {
        let mut state = self.state();
        (state.wanted, state.urgent) = (0, 0);
    }

    /// Takes a share for a block of `span`, waiting for one to become free. `None` as soon as the
    /// writer is not to be waited for, and at once for more than the whole budget.
    fn take(&self, bytes: u64, span: usize) -> Option<Share<'_>> {
        if bytes > self.budget {
            return None;
        }
        let waits = |state: &mut State| state.left < bytes && state.is_ahead(span);
        let waited = self
            .changed
            .wait_timeout_while(self.state(), MAX_WAIT, waits);
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() || !state.is_ahead(span) {
            return None;
        }
        state.left -= bytes;
        Some(Share { ahead: self, bytes })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A share of the budget, given back when it is dropped.
#[derive(Debug)]
struct Share<'a> {
    ahead: &'a Ahead,
    bytes: u64,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.ahead.state().left += self.bytes;
        self.ahead.changed.notify_all();
    }
}

/// Unpacks the spans of one plan, on any thread.
#[derive(Debug)]
pub struct Unpacker<'p, 'b> {
    index: Option<&'p Index>,
    plan: &'p Plan,
    ahead: &'b Ahead,
    /// Decoders that no thread is using.
    decoders: Mutex<Vec<Decoder>>,
    /// One core has nothing to gain.
    several_cores: bool,
}

impl<'p, 'b> Unpacker<'p, 'b> {
    /// An unpacker for the spans of `plan`.
    pub fn new(index: Option<&'p Index>, plan: &'p Plan, ahead: &'b Ahead) -> Self {
        Self {
            index,
            plan,
            ahead,
            decoders: Mutex::new(Vec::new()),
            several_cores: std::thread::available_parallelism().is_ok_and(|n| n.get() > 1),
        }
    }

    /// How far the writer is.
    pub fn ahead(&self) -> &'b Ahead {
        self.ahead
    }

    /// Unpacks the blocks of span `number`, which lies at `range`, until the writer wants it.
    pub fn unpack(&self, number: usize, range: &Range<u64>, stored: Vec<u8>) -> Span<'b> {
        let mut span = Span::new(stored);
        let compressed = |index: &&Index| index.compression() == Compression::Xz;
        let (Some(index), Some(first)) = (
            self.index.filter(compressed),
            self.plan.span_starts.get(number).copied(),
        ) else {
            return span;
        };
        let mut decoder = self.decoders().pop().unwrap_or_default();
        let steps = self.plan.steps.get((first - self.plan.from) as usize..);
        for (block, step) in (first..).zip(steps.unwrap_or_default()) {
            match step {
                Step::Fetch(of) if *of as usize == number => {}
                Step::Fetch(_) => break,
                // In a gap that was read through, or a repeat.
                _ => continue,
            }
            match self.unpack_block(index, block, (number, range), &span.stored, &mut decoder) {
                Some(plain) => span.unpacked.push_back((block, plain)),
                None => break,
            }
        }
        self.decoders().push(decoder);
        span
    }

    fn unpack_block(
        &self,
        index: &Index,
        number: u32,
        (span, range): (usize, &Range<u64>),
        stored: &[u8],
        decoder: &mut Decoder,
    ) -> Option<Plain<'b>> {
        let block = index.block(number)?;
        let at = usize::try_from(block.stored_at.checked_sub(range.start)?).ok()?;
        let stored = stored.get(at..at.checked_add(block.stored_size as usize)?)?;
        let stated = xz::stated_size(stored).ok()?;
        let bound = usize::try_from(stated.min(u64::from(block.size.bound()))).ok()?;
        let share = self.ahead.take(bound as u64, span)?;
        let mut plain = Vec::new();
        decoder.decompress(stored, bound, &mut plain).ok()?;
        let block = Some(plain)
            .filter(|plain| block.size.allows(plain.len()))
            .and_then(|plain| block.digest.verify_owned(plain))?;
        Some(Plain {
            block,
            _share: share,
        })
    }

    fn decoders(&self) -> MutexGuard<'_, Vec<Decoder>> {
        self.decoders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<'b> Prepare<Span<'b>> for Unpacker<'_, 'b> {
    fn prepare(&self, number: Option<usize>, range: &Range<u64>, bytes: Vec<u8>) -> Span<'b> {
        match number.filter(|_| self.several_cores) {
            Some(number) => self.unpack(number, range, bytes),
            None => Span::new(bytes),
        }
    }

    fn hurry(&self) {
        self.ahead.hurry();
    }

    fn calm(&self) {
        self.ahead.calm();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_given_back() {
        let ahead = Ahead::new(100);
        let most = ahead.take(70, 1).expect("there is enough");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| ahead.take(31, 2).is_some());
            drop(most);
            assert!(waiting.join().expect("no panic"));
        });
        assert!(ahead.take(100, 1).is_some());
    }

    #[test]
    fn nobody_waits_for_what_the_writer_wants() {
        let ahead = Ahead::new(10);
        assert!(ahead.take(11, 5).is_none(), "there will never be so much");
        let all = ahead.take(10, 5).expect("there is enough");
        assert!(ahead.take(1, 0).is_none());
        std::thread::scope(|scope| {
            let next = scope.spawn(|| ahead.take(1, 3).is_none());
            let last = scope.spawn(|| ahead.take(1, 9).is_none());
            ahead.want(3);
            assert!(next.join().expect("no panic"));
            ahead.hurry();
            assert!(last.join().expect("no panic"));
        });
        drop(all);
    }

    #[test]
    fn blocks_are_taken_by_number() {
        let ahead = Ahead::new(100);
        let algorithm = crate::hash::HashAlgorithm::Sha256;
        let mut span = Span::new(Vec::new());
        for number in [3, 4, 7] {
            let bytes = vec![7; 5];
            let digest = algorithm.digest(&bytes);
            let plain = Plain {
                block: digest.verify_owned(bytes).expect("its own digest"),
                _share: ahead.take(5, 1).expect("there is enough"),
            };
            span.unpacked.push_back((number, plain));
        }
        assert!(span.take(3).is_some());
        assert!(span.take(5).is_none());
        let seven = span.take(7).expect("it was unpacked");
        assert_eq!(seven.verified().bytes(), [7; 5]);
        assert!(span.take(8).is_none());
        assert!(ahead.take(100, 1).is_some());
    }
}
