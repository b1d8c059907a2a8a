//! Blocks from seeds, read and verified ahead of the writer.
//!
//! A thread that has nothing to unpack does the same for the next blocks in order that a seed has: in
//! a stretch of those the writer would do all of it alone. They have a budget of their own, a small one,
//! or they would take the room of what has to be unpacked while the network is slow. What is not
//! there, or is not what it should be, is left to the writer, who says so and fetches it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use super::{Kind, Plain, Unpacker};
use crate::hash::VerifiedBuf;
use crate::plan::Step;
use crate::seed::Place;

/// What is known of blocks from seeds.
#[derive(Debug, Default)]
pub(super) struct Seeded<'b> {
    /// Position in the plan's steps from which on nobody has looked for one.
    next: usize,
    /// Those that a thread has in hand.
    in_hand: BTreeSet<u32>,
    ready: BTreeMap<u32, Plain<'b>>,
}

/// A block to read, with its number and the room for it.
pub(super) struct Reading<'b> {
    number: u32,
    place: Place,
    share: super::Share<'b>,
}

impl<'b> Unpacker<'_, 'b> {
    /// The next block in order that a seed has and that nobody has looked at, if there is room for it.
    pub(super) fn next_seeded(&self) -> Option<Reading<'b>> {
        let mut pool = self.pool();
        let seeded = &mut pool.seeded;
        let steps = self.plan.steps.iter().enumerate().skip(seeded.next);
        let next = steps.filter_map(|(at, step)| match step {
            Step::Seed(place) => Some((at, *place)),
            _ => None,
        });
        let Some((at, place)) = { next }.next() else {
            seeded.next = self.plan.steps.len();
            return None;
        };
        seeded.next = at;
        let number = self.plan.from.checked_add(u32::try_from(at).ok()?)?;
        let share = self.ahead.take(Kind::Seeded, u64::from(place.size))?;
        seeded.next += 1;
        seeded.in_hand.insert(number);
        Some(Reading {
            number,
            place,
            share,
        })
    }

    /// Reads and verifies a block.
    pub(super) fn read_seeded(&self, reading: Reading<'b>) {
        let Reading {
            number,
            place,
            share,
        } = reading;
        let _given_up = GivenUp(self, number);
        let read = || {
            let seed = self.seeds.get(usize::from(place.seed))?;
            let mut bytes = Vec::new();
            seed.read(place, &mut bytes).ok()?;
            self.index?.block(number)?.digest.verify_owned(bytes)
        };
        let plain = read().map(|block| Plain {
            block,
            _share: share,
        });
        let mut pool = self.pool();
        pool.seeded.in_hand.remove(&number);
        pool.seeded.ready.extend(plain.map(|plain| (number, plain)));
        drop(pool);
        self.back.notify_all();
    }

    /// Block `number`, if it was read ahead from a seed. Blocks are asked for in ascending order; one
    /// that a thread has in hand is waited for.
    pub fn take_seeded(&self, number: u32) -> Option<VerifiedBuf> {
        if self.threads == 0 {
            return None;
        }
        let mut pool = self.pool();
        let at = number.checked_sub(self.plan.from)? as usize;
        pool.seeded.next = pool.seeded.next.max(at + 1);
        let in_hand = |pool: &mut super::Pool<'_>| pool.seeded.in_hand.contains(&number);
        let waited = self.back.wait_while(pool, in_hand);
        let mut pool = waited.unwrap_or_else(PoisonError::into_inner);
        // Some may have turned out not to be needed.
        let later = pool.seeded.ready.split_off(&number);
        let unneeded = std::mem::replace(&mut pool.seeded.ready, later);
        let found = pool.seeded.ready.remove(&number);
        // Their shares are given back without the lock.
        drop(pool);
        drop(unneeded);
        found.map(|plain| plain.block)
    }
}

/// A panic while this lives loses the block, and the writer is not to wait for it for ever.
struct GivenUp<'a, 'p, 'b>(&'a Unpacker<'p, 'b>, u32);

impl Drop for GivenUp<'_, '_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.pool().seeded.in_hand.remove(&self.1);
            self.0.back.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::bundle::{Compression, Encoding, Index};
    use crate::chunker::Chunker;
    use crate::hash::HashAlgorithm;
    use crate::plan::Plan;
    use crate::seed::{self, Spec};
    use crate::unpack::{Ahead, SEEDED_SHARE};

    const SIZE: u32 = 1024;
    const BLOCKS: u32 = 40;

    fn plain(number: u32) -> Vec<u8> {
        (0..SIZE)
            .map(|i| u8::try_from((i * 7 + number * 13) % 251).expect("small"))
            .collect()
    }

    /// All blocks are in the seed, but for every fifth, which is to be fetched, and number 8, which is
    /// not what it should be.
    #[test]
    fn the_writer_gets_the_blocks_that_are_right() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("seed");
        let mut bytes: Vec<u8> = (0..BLOCKS).flat_map(plain).collect();
        bytes[8 * SIZE as usize + 5] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        let seeds = seed::open(&[Spec { path, index: None }], &[]);
        let algorithm = HashAlgorithm::Sha512_256;
        let digests = (0..BLOCKS).flat_map(|n| algorithm.digest(&plain(n)).as_bytes().to_vec());
        let encoding = Encoding {
            chunker: Chunker::parse("fixed-1").expect("a chunker"),
            algorithm,
            deduplicated: false,
            compression: Compression::None,
            digests: digests.collect(),
            sizes: None,
        };
        let index = Index::new(encoding, 0..u64::from(BLOCKS * SIZE), 0).expect("consistent");
        // As after a new plan in the middle.
        let from = 3;
        let step = |number: u32| match number {
            _ if number.is_multiple_of(5) => Step::Fetch(0),
            _ => Step::Seed(Place {
                seed: 0,
                offset: u64::from(number * SIZE),
                size: SIZE,
            }),
        };
        let plan = Plan {
            from,
            steps: (from..BLOCKS).map(step).collect(),
            seeded: 30,
            ..Plan::default()
        };
        for (room, late) in [(0, false), (1, false), (1, true), (7, true), (100, true)] {
            let budget = room * u64::from(SIZE) * SEEDED_SHARE;
            let ahead = Ahead::new(budget, true);
            let mut unpacker = Unpacker::new(Some(&index), &plan, &seeds, &ahead);
            unpacker.threads = 3;
            let all = (from..BLOCKS).filter(|n| !n.is_multiple_of(5) && *n != 8);
            let taken = unpacker.run(|| {
                let ready = || unpacker.pool().seeded.ready.len() as u64;
                let started = Instant::now();
                while late && ready() < room.min(all.clone().count() as u64) {
                    let waited = started.elapsed();
                    assert!(waited < Duration::from_secs(20), "nobody reads ahead");
                    thread::sleep(Duration::from_millis(1));
                }
                // One of them stood at its place, and was not asked for.
                (from..BLOCKS)
                    .filter(|number| *number != 11)
                    .filter(|number| match unpacker.take_seeded(*number) {
                        Some(block) => {
                            assert_eq!(block.verified().bytes(), plain(*number));
                            true
                        }
                        None => false,
                    })
                    .collect::<Vec<_>>()
            });
            assert!(taken
                .iter()
                .all(|number| !number.is_multiple_of(5) && *number != 8));
            match room {
                0 => assert!(taken.is_empty()),
                100 => assert_eq!(taken, all.filter(|n| *n != 11).collect::<Vec<_>>()),
                _ => {}
            }
            drop(unpacker);
            let left = ahead.room().seeded;
            assert_eq!(left, budget / SEEDED_SHARE, "all shares are back");
        }
    }
}
