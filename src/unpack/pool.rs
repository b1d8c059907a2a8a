//! What waits to be made into blocks, what is being made, and what is ready.
//!
//! Bookkeeping alone: the lock around it, the threads and the work are the parent's.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use super::room::{Ahead, Kind, Share};
use super::Stored;
use crate::bundle::Index;
use crate::hash::VerifiedBuf;
use crate::plan::{Plan, Step};
use crate::seed::Place;
use crate::xz;

/// The blocks of a plan: what there is to do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks<'p> {
    pub(super) index: Option<&'p Index>,
    pub(super) plan: &'p Plan,
}

impl Blocks<'_> {
    /// The first block from block `from` on that is to be fetched, if it is in span `span`: others may
    /// be in a gap that is read through, or repeats.
    fn of_span(&self, span: usize, from: u32) -> Option<u32> {
        let at = from.checked_sub(self.plan.from)? as usize;
        let steps = self.plan.steps.get(at..)?;
        let fetched = (from..).zip(steps).find_map(|(block, step)| match step {
            Step::Fetch(span) => Some((block, *span as usize)),
            _ => None,
        });
        fetched
            .filter(|(_, its)| *its == span)
            .map(|(block, _)| block)
    }

    /// The first block from position `from` of the plan's steps on that comes from a seed, and its
    /// position.
    fn of_seeds(&self, from: usize) -> Option<(usize, u32, Place)> {
        let mut steps = self.plan.steps.iter().enumerate().skip(from);
        let (at, place) = steps.find_map(|(at, step)| match step {
            Step::Seed(place) => Some((at, *place)),
            _ => None,
        })?;
        let number = self.plan.from.checked_add(u32::try_from(at).ok()?)?;
        Some((at, number, place))
    }
}

/// A block that was made ahead.
#[derive(Debug)]
struct Plain {
    block: VerifiedBuf,
    _share: Share,
}

/// A block to make.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) number: u32,
    pub(super) source: Source,
    share: Share,
}

/// Where a block is to come from.
#[derive(Debug)]
pub(super) enum Source {
    /// Bytes `range` of what span `span` stores; the block has `bound` plain bytes at most.
    Span {
        span: usize,
        stored: Stored,
        range: Range<usize>,
        bound: usize,
    },
    /// A place in a seed.
    Seed(Place),
}

/// A span that has arrived.
#[derive(Debug)]
struct Arrived {
    range: Range<u64>,
    stored: Stored,
    /// The block to unpack next, if there is one.
    next: Option<u32>,
    /// Blocks of it that are in hand.
    in_hand: usize,
    /// The writer needs its bytes.
    needed: bool,
}

/// Who has a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It is made.
    Ready,
    /// A thread is making it.
    InHand,
    /// Nobody, or it could not be made.
    Open,
}

/// What all threads share: who makes which block, and what is made.
#[derive(Debug, Default)]
pub(super) struct Pool {
    /// The spans that have arrived and still have blocks that are not ready.
    spans: BTreeMap<usize, Arrived>,
    /// Position in the plan's steps from which on nobody has looked for a block from a seed.
    seeds_from: usize,
    in_hand: BTreeSet<u32>,
    ready: BTreeMap<u32, Plain>,
    pub(super) ended: bool,
}

impl Pool {
    /// Takes in a span, whose first block is `first`.
    pub(super) fn arrive(&mut self, span: usize, range: Range<u64>, stored: Stored, first: u32) {
        let arrived = Arrived {
            range,
            stored,
            next: Some(first),
            in_hand: 0,
            needed: false,
        };
        self.spans.insert(span, arrived);
    }

    /// The bytes of a span that has arrived, for the writer, who has no use for earlier ones any more;
    /// `None` if all of its blocks are ready.
    pub(super) fn claim(&mut self, span: usize) -> Option<Stored> {
        self.spans = self.spans.split_off(&span);
        self.spans
            .get(&span)
            .map(|arrived| Arc::clone(&arrived.stored))
    }

    /// The first block in order that nobody has begun and there is room for: one to unpack, or else
    /// one from a seed.
    pub(super) fn next(&mut self, blocks: Blocks<'_>, ahead: &Arc<Ahead>) -> Option<Task> {
        self.next_of_spans(blocks, ahead)
            .or_else(|| self.next_of_seeds(blocks, ahead))
    }

    fn next_of_spans(&mut self, blocks: Blocks<'_>, ahead: &Arc<Ahead>) -> Option<Task> {
        for (span, arrived) in &mut self.spans {
            let Some(number) = arrived.next else { continue };
            let Some((range, bound)) = arrived.locate(number, blocks.index) else {
                // The writer will find out why.
                arrived.next = None;
                arrived.needed = true;
                continue;
            };
            let share = ahead.take(Kind::Fetched, bound as u64)?;
            arrived.next = blocks.of_span(*span, number + 1);
            arrived.in_hand += 1;
            // Something may come behind the last block: the end of the payload.
            let ends = range.end == arrived.stored.len();
            arrived.needed |= arrived.next.is_none() && !ends;
            self.in_hand.insert(number);
            let source = Source::Span {
                span: *span,
                stored: Arc::clone(&arrived.stored),
                range,
                bound,
            };
            return Some(Task {
                number,
                source,
                share,
            });
        }
        None
    }

    fn next_of_seeds(&mut self, blocks: Blocks<'_>, ahead: &Arc<Ahead>) -> Option<Task> {
        let Some((at, number, place)) = blocks.of_seeds(self.seeds_from) else {
            self.seeds_from = blocks.plan.steps.len();
            return None;
        };
        self.seeds_from = at;
        let share = ahead.take(Kind::Seeded, place.size.into())?;
        self.seeds_from += 1;
        self.in_hand.insert(number);
        Some(Task {
            number,
            source: Source::Seed(place),
            share,
        })
    }

    /// Takes back a task, with the block if it could be made.
    pub(super) fn finish(&mut self, task: Task, made: Option<VerifiedBuf>) {
        let Task {
            number,
            source,
            share,
        } = task;
        self.in_hand.remove(&number);
        if let Source::Span { span, .. } = source {
            if let Some(arrived) = self.spans.get_mut(&span) {
                arrived.in_hand -= 1;
                // Of what is corrupt the writer says so.
                arrived.needed |= made.is_none();
                if arrived.is_used_up() {
                    self.spans.remove(&span);
                }
            }
        }
        self.ready.extend(made.map(|block| {
            let plain = Plain {
                block,
                _share: share,
            };
            (number, plain)
        }));
    }

    pub(super) fn state(&self, number: u32) -> State {
        if self.ready.contains_key(&number) {
            State::Ready
        } else if self.in_hand.contains(&number) {
            State::InHand
        } else {
            State::Open
        }
    }

    /// Block `number` if it is ready. If nobody has begun it, nobody will: the writer does. Blocks
    /// are asked for in ascending order.
    pub(super) fn take(&mut self, number: u32, blocks: Blocks<'_>) -> Option<VerifiedBuf> {
        // Some may have turned out not to be needed.
        while self
            .ready
            .first_key_value()
            .is_some_and(|(n, _)| *n < number)
        {
            self.ready.pop_first();
        }
        if let Some(plain) = self.ready.remove(&number) {
            return Some(plain.block);
        }
        if let Some(at) = number.checked_sub(blocks.plan.from) {
            self.seeds_from = self.seeds_from.max(at as usize + 1);
        }
        if let Some((span, arrived)) = self.spans.iter_mut().next() {
            if arrived.next.is_some_and(|next| next <= number) {
                arrived.next = blocks.of_span(*span, number + 1);
            }
        }
        None
    }

    /// Blocks that are ready.
    #[cfg(test)]
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The spans whose bytes are still there.
    #[cfg(test)]
    pub(super) fn spans(&self) -> Vec<usize> {
        self.spans.keys().copied().collect()
    }
}

impl Arrived {
    /// Where a block is in the bytes, and how large it may be; `None` if it is not as the index says.
    fn locate(&self, number: u32, index: Option<&Index>) -> Option<(Range<usize>, usize)> {
        let block = index?.block(number)?;
        let at = usize::try_from(block.stored_at.checked_sub(self.range.start)?).ok()?;
        let range = at..at.checked_add(block.stored_size as usize)?;
        let stated = xz::stated_size(self.stored.get(range.clone())?).ok()?;
        let bound = usize::try_from(stated.min(u64::from(block.size.bound()))).ok()?;
        Some((range, bound))
    }

    fn is_used_up(&self) -> bool {
        self.next.is_none() && self.in_hand == 0 && !self.needed
    }
}
