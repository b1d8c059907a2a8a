//! How the memory budget of an install is shared out.
//!
//! The budget bounds what is in flight: what comes, what is unpacked ahead, what waits for the payload
//! digest, what is saved of a target's old content. Code, stacks and the indexes of blocks come on top.

use crate::old::Old;
use crate::plan::Shape;

/// Longest span: long against a round trip at any usual rate, short enough that the workers share
/// a run and that the writer need not wait long for the first.
const MAX_SPAN: u64 = 1 << 20;

/// Smallest memory budget.
pub(super) const MIN_MEMORY: u64 = 4 << 20;

/// Shortest limit of a span, with a small memory budget.
const MIN_SPAN: u64 = 64 << 10;

/// The part of the memory budget for what comes: this fraction.
pub(super) const STORED_SHARE: u64 = 2;

/// The part for what is unpacked ahead: this fraction. The quarter that is left is for what an
/// allocator loses when threads hand large buffers to each other; glibc's lost more than that of a
/// half (67 MiB at the peak of a 1.4 GB install with the default budget of 32).
const UNPACKED_SHARE: u64 = 4;

/// The part for what waits for the payload digest: this fraction, taken from what is unpacked ahead.
const DIGEST_SHARE: u64 = 16;

/// The part for blocks of a target's old content that are saved before they are written over: this
/// fraction. With such content what comes and what is unpacked get less, to make room for it.
const SAVED_SHARE: u64 = 4;

/// How the memory budget is shared out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shares {
    /// For what comes.
    pub(super) stored: u64,
    /// For what is unpacked ahead.
    pub(super) unpacked: u64,
    /// For what waits for the payload digest.
    pub(super) digest: u64,
    /// For what is saved of the target's old content.
    pub(super) saved: u64,
}

impl Shares {
    pub(super) fn new(memory: u64, old: &Old) -> Self {
        let digest = memory / DIGEST_SHARE;
        let saved = if old.is_empty() {
            0
        } else {
            memory / SAVED_SHARE
        };
        Self {
            stored: memory / STORED_SHARE - saved / 2,
            unpacked: memory / UNPACKED_SHARE - digest - saved / 2,
            digest,
            saved,
        }
    }
}

/// The shape of spans under a memory budget, for so many workers.
pub fn shape(memory: u64, workers: usize, merge: bool, has_workers: bool) -> Shape {
    let stored = memory / STORED_SHARE;
    let share = stored / (2 * workers.max(1) as u64);
    Shape {
        max_span: share.clamp(MIN_SPAN, MAX_SPAN),
        merge,
        // Reading through gaps saves requests; a cursor makes none.
        gaps: has_workers,
    }
}
