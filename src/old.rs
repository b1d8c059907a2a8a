//! What stands on the target before it is written, and what of it is still there.
//!
//! The target's old content is a seed that the writer destroys as it goes. Blocks are written in
//! order, so all that is gone lies before one position, the *frontier*:
//!
//! ```text
//!   written, kept            old content
//!   ────────────────────────┼─────[C]──[A]─────[F]──   [A] is block 7's only place:
//!                       frontier          it is there as long as the frontier has not come to it
//! ```
//!
//! A block that is wanted from a place before its own (data moved towards the end) would be gone
//! when its turn comes: it is *saved* into memory before its place is written over, as long as the
//! budget for that lasts; what does not fit is lost, and fetched.
//!
//! Bookkeeping only, no bytes: the plan runs it with the sizes it knows or estimates, the writer
//! with the real ones, so both come to the same decisions wherever the sizes are known.

use std::collections::HashMap;

use crate::scan::Found;

/// The blocks of a payload that stand somewhere on the target.
#[derive(Clone, Debug, Default)]
pub struct Old {
    /// By offset, none overlaps the next. `kept` is the block's number, that of its first
    /// occurrence in the payload.
    found: Vec<Found<u32>>,
    /// Positions in `found`, by block, then by offset.
    by_block: Vec<u32>,
}

impl Old {
    /// From what a scan found, in any order; of two that overlap the first one counts.
    pub fn new(mut found: Vec<Found<u32>>) -> Self {
        found.sort_by_key(|block| block.offset);
        let mut end = 0;
        found.retain(|block| {
            let apart = block.offset >= end && block.size > 0;
            if apart {
                end = end_of(block);
            }
            apart
        });
        // Of more blocks than that nobody has the memory for an index.
        found.truncate(u32::MAX as usize);
        let mut by_block: Vec<u32> = (0u32..).take(found.len()).collect();
        let block = |at: &u32| found.get(*at as usize).map(|block| block.kept);
        // Stable: of one block, the offsets still ascend.
        by_block.sort_by_key(block);
        Self { found, by_block }
    }

    /// Nothing of the payload stands there.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Number of places.
    pub fn len(&self) -> usize {
        self.found.len()
    }

    /// The size of a block, if it stands exactly at `offset`.
    pub fn stands_at(&self, block: u32, offset: u64) -> Option<u32> {
        let at = self
            .found
            .binary_search_by_key(&offset, |found| found.offset)
            .ok()?;
        let found = self.found.get(at)?;
        (found.kept == block).then_some(found.size)
    }

    /// The first place of a block at `offset` or behind.
    pub fn next_place(&self, block: u32, offset: u64) -> Option<Found<u32>> {
        let at = self
            .by_block
            .partition_point(|at| self.key(*at) < (block, offset));
        self.place(at).filter(|found| found.kept == block)
    }

    /// The last place of a block, the one that is there longest.
    pub fn last_place(&self, block: u32) -> Option<Found<u32>> {
        let behind = self
            .by_block
            .partition_point(|at| self.key(*at) <= (block, u64::MAX));
        self.place(behind.checked_sub(1)?)
            .filter(|found| found.kept == block)
    }

    fn place(&self, at: usize) -> Option<Found<u32>> {
        self.found.get(*self.by_block.get(at)? as usize).copied()
    }

    fn key(&self, at: u32) -> (u32, u64) {
        self.found
            .get(at as usize)
            .map_or((u32::MAX, u64::MAX), |found| (found.kept, found.offset))
    }
}

fn end_of(block: &Found<u32>) -> u64 {
    block.offset + u64::from(block.size)
}

/// How far the old content is written over, and what of it was saved.
#[derive(Clone, Debug, Default)]
pub struct Survival {
    /// All before it is gone.
    frontier: u64,
    /// Number of places that begin before the frontier.
    passed: usize,
    /// Blocks in memory, and their sizes.
    saved: HashMap<u32, u32>,
    /// Bytes of them.
    used: u64,
    /// Most bytes of them.
    budget: u64,
}

impl Survival {
    /// All is there still; `budget` bytes may be saved at a time.
    pub fn new(budget: u64) -> Self {
        Self {
            budget,
            ..Self::default()
        }
    }

    /// The same with another budget.
    pub fn with_budget(&self, budget: u64) -> Self {
        Self {
            budget,
            ..self.clone()
        }
    }

    /// Bytes that may be saved.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// All before it is written over or passed.
    pub fn frontier(&self) -> u64 {
        self.frontier
    }

    /// Whether a block can still be had.
    pub fn has(&self, old: &Old, block: u32) -> bool {
        self.saved.contains_key(&block) || self.place(old, block).is_some()
    }

    /// Where a block still stands.
    pub fn place(&self, old: &Old, block: u32) -> Option<Found<u32>> {
        old.last_place(block)
            .filter(|found| found.offset >= self.frontier)
    }

    /// A block is not needed any more.
    pub fn release(&mut self, block: u32) {
        if let Some(size) = self.saved.remove(&block) {
            self.used -= u64::from(size);
        }
    }

    /// All up to `end` is to be written over. Each block that is `wanted` and stands nowhere else
    /// is handed to `save`, which says whether it could, if the budget allows.
    pub fn advance(
        &mut self,
        old: &Old,
        end: u64,
        mut wanted: impl FnMut(u32) -> bool,
        mut save: impl FnMut(Found<u32>) -> bool,
    ) {
        self.frontier = self.frontier.max(end);
        while let Some(found) = old.found.get(self.passed) {
            if found.offset >= end {
                break;
            }
            self.passed += 1;
            let block = found.kept;
            if wanted(block)
                && !self.saved.contains_key(&block)
                && old.last_place(block) == Some(*found)
                && self.used + u64::from(found.size) <= self.budget
                && save(*found)
            {
                self.saved.insert(block, found.size);
                self.used += u64::from(found.size);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(offset: u64, size: u32, kept: u32) -> Found<u32> {
        Found { offset, size, kept }
    }

    #[test]
    fn places_are_found_by_offset_and_by_block() {
        let old = Old::new(vec![
            found(30, 5, 1),
            found(0, 10, 2),
            found(10, 10, 1),
            // Overlaps the one before.
            found(15, 10, 3),
        ]);
        assert_eq!(old.len(), 3);
        assert_eq!(old.stands_at(1, 10), Some(10));
        assert_eq!(old.stands_at(2, 10), None);
        assert_eq!(old.stands_at(1, 11), None);
        assert_eq!(old.next_place(1, 11), Some(found(30, 5, 1)));
        assert_eq!(old.next_place(1, 31), None);
        assert_eq!(old.last_place(1), Some(found(30, 5, 1)));
        assert_eq!(old.last_place(2), Some(found(0, 10, 2)));
        assert_eq!(old.last_place(3), None);
        assert!(Old::default().last_place(0).is_none() && Old::default().is_empty());
    }

    #[test]
    fn what_is_wanted_is_saved_as_the_budget_allows() {
        let old = Old::new(vec![
            found(0, 10, 4),
            found(10, 10, 5),
            found(20, 10, 6),
            found(30, 10, 4),
        ]);
        let mut survival = Survival::new(15);
        let mut saved = Vec::new();
        // Block 4 stands behind too.
        survival.advance(
            &old,
            11,
            |_| true,
            |block| {
                saved.push(block.kept);
                true
            },
        );
        assert_eq!(saved, [5]);
        assert!(survival.has(&old, 5) && survival.has(&old, 4));
        // No room for block 6.
        survival.advance(&old, 25, |_| true, |_| panic!("over the budget"));
        assert!(!survival.has(&old, 6));
        survival.release(5);
        assert!(!survival.has(&old, 5));
        // Now there is, but nobody wants it.
        survival.advance(&old, 35, |_| false, |_| panic!("not wanted"));
        assert!(!survival.has(&old, 4));
        assert_eq!(survival.frontier(), 35);
    }
}
