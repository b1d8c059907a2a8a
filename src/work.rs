//! How far a tool is: what `pack`, `index` and `estimate` tell while they work.
//!
//! Work is made of parts, such as cutting an image or compressing its blocks. A part is so many bytes
//! long, and each of them costs so much against those of other parts; what all cost together is said
//! before. Who is told decides what becomes of it: nothing here knows of terminals.

use std::sync::atomic::{AtomicU64, Ordering};

/// How far a tool is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// What it is at: `cut`, `compress`.
    pub phase: &'static str,
    /// How much of the whole work is done, from 0 to 1.
    pub share: f64,
    /// Bytes of this part of the work that are done.
    pub done: u64,
    /// Bytes of this part.
    pub total: u64,
}

/// Is told of each step, from whatever thread made it: by several at a time, and in no order, so that
/// the largest share so far is what counts.
pub type Tell<'a> = &'a (dyn Fn(&Step) + Sync);

/// Cost of a byte that is read, cut and hashed: the unit of all others.
pub(crate) const READ: u64 = 1;

/// All that is to be done.
#[derive(Clone, Copy)]
pub(crate) struct Work<'a> {
    tell: Tell<'a>,
    done: &'a AtomicU64,
    cost: u64,
}

impl std::fmt::Debug for Work<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Work")
            .field("done", self.done)
            .field("cost", &self.cost)
            .finish_non_exhaustive()
    }
}

impl<'a> Work<'a> {
    /// Work that costs so much in all. `done` counts what was done of it.
    pub(crate) fn new(tell: Tell<'a>, done: &'a AtomicU64, cost: u64) -> Self {
        Self { tell, done, cost }
    }

    /// A part of it, of so many bytes that cost so much each.
    pub(crate) fn part(&self, phase: &'static str, total: u64, each: u64) -> Part<'a> {
        Part {
            work: *self,
            phase,
            total,
            each,
            done: AtomicU64::new(0),
        }
    }
}

/// A part of the work.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    work: Work<'a>,
    phase: &'static str,
    total: u64,
    each: u64,
    done: AtomicU64,
}

impl Part<'_> {
    /// So many bytes more are done.
    pub(crate) fn add(&self, bytes: u64) {
        self.add_at(bytes, self.each);
    }

    /// So many bytes turn out to cost nothing; they are to be added at no cost when their turn comes.
    #[cfg(any(feature = "pack", test))]
    pub(crate) fn spare(&self, bytes: u64) {
        let cost = bytes.saturating_mul(self.each);
        self.work.done.fetch_add(cost, Ordering::Relaxed);
    }

    /// The same as `add`, of bytes that cost more or less than the others.
    pub(crate) fn add_at(&self, bytes: u64, each: u64) {
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let cost = bytes.saturating_mul(each);
        let all = self.work.done.fetch_add(cost, Ordering::Relaxed) + cost;
        (self.work.tell)(&Step {
            phase: self.phase,
            share: (all as f64 / self.work.cost.max(1) as f64).min(1.0),
            done: done.min(self.total),
            total: self.total,
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn parts_make_a_whole() {
        let told = Mutex::new(Vec::new());
        let tell = |step: &Step| told.lock().expect("no panic").push(*step);
        let done = AtomicU64::new(0);
        let work = Work::new(&tell, &done, 100 + 3 * 100);
        let cut = work.part("cut", 100, 1);
        cut.add(60);
        cut.add(40);
        let compress = work.part("compress", 100, 3);
        compress.add(10);
        compress.spare(40);
        compress.add_at(40, 0);
        compress.add_at(50, 2);
        let told = told.into_inner().expect("no panic");
        let seen: Vec<_> = told
            .iter()
            .map(|s| (s.phase, s.share, s.done, s.total))
            .collect();
        assert_eq!(
            seen,
            [
                ("cut", 0.15, 60, 100),
                ("cut", 0.25, 100, 100),
                ("compress", 0.325, 10, 100),
                ("compress", 0.625, 50, 100),
                ("compress", 0.875, 100, 100),
            ]
        );
    }
}
