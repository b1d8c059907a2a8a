//! The stored bytes of spans to verified blocks, ahead of the writer.
//!
//! Decompressing is most of the work of an install, and one thread cannot keep up with a usual
//! link. So a thread for each core but the writer's makes blocks ahead: the next one in order of the
//! spans that have arrived is decompressed and its digest compared, or, where there is none, the next
//! one that a seed has is read and its digest compared. What the writer takes are [`VerifiedBuf`]s,
//! proofs that no one can make without that comparison. Order and writing stay with the writer.
//!
//! The writer takes part: what nobody has begun when it needs it, it makes itself, and while another
//! thread has that block in hand, it makes one of the next. So all cores work on blocks right before the
//! writer, in the same span or the next ones, and little need be in memory for that. With one core there
//! is no other thread, and the writer does it all. A block that is corrupt, or not what a seed was to have,
//! is left to the writer, who meets the same error, in order.
//!
//! The threads that hold connections do not unpack. They would have to wait for room when the writer
//! is far behind, and their connections with them, just when bytes could be got for later.
//!
//! Plain bytes are taken from a budget of their own ([`Ahead`]) before a block is made, by the size that
//! its xz stream states; a block that turns out larger is refused by that bound. Where the budget is
//! used up the threads wait; nobody ever waits for them but the writer, for the one block that one of
//! them has in hand. The stored bytes of a span are given back as soon as its last block is ready.
//!
//! # Where the time of an install goes
//!
//! Instructions for each byte: x86_64 as `make bench-cpu` counts them anew; aarch64 (with its SHA-512
//! instructions) and armv7 as qemu counts them, from the difference of two sizes (machine code, profile
//! `small`). Nanoseconds on one core of a server processor.
//!
//! | what | of which bytes | x86_64 | aarch64 | armv7 | ns | where |
//! |---|---|---|---|---|---|---|
//! | LZMA2 with its checks | fetched | 235 | 182 | 211 | 16 to 27 | these threads, or the writer |
//! | digest of the block | all | 24 | 4 | 24 | 1.6 to 2.4 | these threads, or the writer |
//! | payload digest | all | 24 | 4 | 24 | 1.6 to 2.4 | [`hash::Trailing`](crate::hash::Trailing) |
//! | digest of a seed's block | seed without index | 24 | 4 | 24 | 1.6 to 2.4 | [`scan`](crate::scan), all cores |
//! | cutting a seed | seed without index | 9 | | | 0.7 | the same |
//! | reading a seed, writing | all | 0.3 | | | 0.4 | who verifies; the writer; the kernel's copies |
//!
//! Digests are counted with `ring-hash`. Without SHA-512 instructions they take aarch64 19 a byte, and
//! without NEON, as on ARMv6, ARM 70. `sha2`, without that feature, takes 11 or 20 on aarch64, and 74 on
//! armv7.
//!
//! So a fetched byte costs as much as ten from a seed, and is decompressed wherever a core is free.
//! In stretches that come from seeds the digests take the time, and all cores share in them; on armv7
//! without NEON they are most of all there is to do.

mod pool;
mod room;

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::bundle::{Compression, Index};
use crate::fetch::Prepare;
use crate::hash::VerifiedBuf;
use crate::plan::Plan;
use crate::seed::Seed;
use crate::xz::Decoder;

use self::pool::{Blocks, Pool, Source, State, Task};
pub use self::room::Ahead;

/// Stack of a thread that unpacks, of which it takes 10 KB (measured; unoptimised some times that).
const STACK_SIZE: usize = 256 << 10;

/// The bytes of a span as in the bundle: the writer and the threads at its side read them at once.
pub type Stored = Arc<Vec<u8>>;

/// Unpacks the spans of one plan.
#[derive(Debug)]
pub struct Unpacker<'p> {
    blocks: Blocks<'p>,
    seeds: &'p [Seed],
    ahead: Arc<Ahead>,
    pool: Mutex<Pool>,
    /// A block is in hand no more.
    done: Condvar,
    threads: usize,
    /// The blocks in spans have to be unpacked.
    is_packed: bool,
}

impl<'p> Unpacker<'p> {
    /// An unpacker for the spans of `plan`, and for the blocks that come from `seeds`.
    pub fn new(
        index: Option<&'p Index>,
        plan: &'p Plan,
        seeds: &'p [Seed],
        ahead: Arc<Ahead>,
    ) -> Self {
        let is_packed = index.is_some_and(|index| index.compression() == Compression::Xz);
        // What of the plan there is to do here.
        let spans = if is_packed { plan.spans.len() } else { 0 };
        let blocks = usize::try_from(plan.seeded).unwrap_or(usize::MAX);
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            blocks: Blocks { index, plan },
            seeds,
            ahead,
            pool: Mutex::default(),
            done: Condvar::new(),
            // The writer has a core.
            threads: (cores - 1).min(spans.saturating_add(blocks)),
            is_packed,
        }
    }

    /// Runs `writer` with the threads at its side that unpack.
    pub fn run<R>(&self, writer: impl FnOnce() -> R) -> R {
        thread::scope(|scope| {
            for _ in 0..self.threads {
                let thread = thread::Builder::new()
                    .name("unpack".to_owned())
                    .stack_size(STACK_SIZE)
                    .spawn_scoped(scope, || self.work());
                // With fewer of them more is left to the writer.
                drop(thread);
            }
            let _end = End(self);
            writer()
        })
    }

    /// Whether spans that are handed in before the writer wants them are unpacked.
    pub fn is_of_use(&self) -> bool {
        self.threads > 0 && self.is_packed
    }

    /// The bytes of span `number`, if it was handed in and not all of its blocks are ready. Spans are
    /// claimed in ascending order.
    pub fn claim(&self, number: usize) -> Option<Stored> {
        self.pool().claim(number)
    }

    /// Block `number`, if it was made ahead. Blocks are asked for in ascending order, those of a span
    /// once it is claimed. While a thread has it in hand, others are made here, with `decoder`.
    pub fn take(&self, number: u32, decoder: &mut Decoder) -> Option<VerifiedBuf> {
        if self.threads == 0 {
            return None;
        }
        let mut pool = self.pool();
        while pool.state(number) == State::InHand {
            let task = pool.next(self.blocks, &self.ahead);
            pool = match task {
                Some(task) => {
                    drop(pool);
                    self.carry_out(task, decoder);
                    self.pool()
                }
                None => {
                    let waited = self.done.wait(pool);
                    waited.unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
        let made = pool.take(number, self.blocks);
        drop(pool);
        if made.is_none() {
            // A block that there was no room for may have kept the threads from smaller ones behind it.
            self.ahead.stir();
        }
        made
    }

    fn work(&self) {
        let mut decoder = Decoder::new();
        loop {
            let seen = self.ahead.events();
            let mut pool = self.pool();
            if pool.ended {
                return;
            }
            let task = pool.next(self.blocks, &self.ahead);
            drop(pool);
            match task {
                Some(task) => self.carry_out(task, &mut decoder),
                None => self.ahead.wait(seen),
            }
        }
    }

    /// Makes a block and puts it into the pool.
    fn carry_out(&self, task: Task, decoder: &mut Decoder) {
        let mut finished = Finished {
            unpacker: self,
            task: Some(task),
            made: None,
        };
        finished.made = finished
            .task
            .as_ref()
            .and_then(|task| self.make(task, decoder));
    }

    /// A block with its digest compared; `None` if it is not what it should be.
    fn make(&self, task: &Task, decoder: &mut Decoder) -> Option<VerifiedBuf> {
        let block = self.blocks.index?.block(task.number)?;
        let mut plain = Vec::new();
        match &task.source {
            Source::Span {
                stored,
                range,
                bound,
                ..
            } => {
                let stored = stored.get(range.clone())?;
                decoder.decompress(stored, *bound, &mut plain).ok()?;
                if !block.size.allows(plain.len()) {
                    return None;
                }
            }
            Source::Seed(place) => {
                let seed = self.seeds.get(usize::from(place.seed))?;
                seed.read(*place, &mut plain).ok()?;
            }
        }
        block.digest.verify_owned(plain)
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Gives a task back, also after a panic: the writer is not to wait for it for ever.
struct Finished<'a, 'p> {
    unpacker: &'a Unpacker<'p>,
    task: Option<Task>,
    made: Option<VerifiedBuf>,
}

impl Drop for Finished<'_, '_> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.unpacker.pool().finish(task, self.made.take());
            self.unpacker.done.notify_all();
        }
    }
}

/// Ends the threads, also when the writer panics.
struct End<'a, 'p>(&'a Unpacker<'p>);

impl Drop for End<'_, '_> {
    fn drop(&mut self) {
        self.0.pool().ended = true;
        self.0.ahead.stir();
    }
}

impl Prepare<Stored> for Unpacker<'_> {
    fn prepare(&self, number: Option<usize>, range: &Range<u64>, bytes: Vec<u8>) -> Stored {
        let starts = &self.blocks.plan.span_starts;
        let first = |number: usize| starts.get(number).copied();
        let place = number.and_then(|number| Some((number, first(number)?)));
        let Some((number, first)) = place.filter(|_| self.is_of_use()) else {
            return Arc::new(bytes);
        };
        self.pool()
            .arrive(number, range.clone(), Arc::new(bytes), first);
        self.ahead.stir();
        // The writer claims it by its number.
        Stored::default()
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // made-up bytes
mod tests {
    use super::room::SEEDED_SHARE;
    use super::*;
    use crate::bundle::Encoding;
    use crate::chunker::Chunker;
    use crate::hash::HashAlgorithm;
    use crate::plan::Step;
    use crate::seed::{self, Place, Spec};
    use std::io::Write;
    use std::time::{Duration, Instant};

    const DATA_AT: u64 = 1000;
    const SIZE: usize = 1024;

    struct Bundle {
        index: Index,
        plan: Plan,
        /// The bytes of each span.
        spans: Vec<Vec<u8>>,
    }

    /// Block `number`; the last of every ten repeats the one before.
    fn plain(number: u32) -> Vec<u8> {
        let content = if number % 10 == 9 { number - 1 } else { number };
        (0..SIZE as u32)
            .map(|i| (i * i / 7 + content * 31) as u8)
            .collect()
    }

    /// Blocks in spans of four, of which the third is read through as a gap.
    fn bundle(blocks: u32) -> Bundle {
        let algorithm = HashAlgorithm::Sha256;
        let xz = |number| {
            let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 6);
            encoder.write_all(&plain(number)).expect("memory");
            encoder.finish().expect("memory")
        };
        let stored: Vec<_> = (0..blocks)
            .map(|n| if n % 10 == 9 { Vec::new() } else { xz(n) })
            .collect();
        let sizes = stored.iter().filter(|stored| !stored.is_empty());
        let sizes = sizes.flat_map(|stored| (stored.len() as u32).to_be_bytes());
        let digests = (0..blocks).flat_map(|n| algorithm.digest(&plain(n)).as_bytes().to_vec());
        let encoding = Encoding {
            chunker: Chunker::parse("fixed-1").expect("a chunker"),
            algorithm,
            deduplicated: true,
            compression: Compression::Xz,
            digests: digests.collect(),
            sizes: Some(sizes.collect()),
        };
        let bytes: u64 = stored.iter().map(|stored| stored.len() as u64).sum();
        let index = Index::new(encoding, DATA_AT..DATA_AT + bytes, 0).expect("consistent");
        let mut plan = Plan::default();
        let mut spans = Vec::new();
        for number in 0..blocks {
            let block = index.block(number).expect("a block");
            let span = number / 4;
            if number % 4 == 0 {
                plan.span_starts.push(number);
                plan.spans.push(block.stored_at..block.stored_at);
                spans.push(Vec::new());
            }
            plan.steps.push(match number {
                _ if block.first != number => Step::Copy(block.first),
                _ if number % 4 == 2 => Step::Copy(0),
                _ => Step::Fetch(span),
            });
            spans[span as usize].extend(&stored[number as usize]);
            plan.spans[span as usize].end += u64::from(block.stored_size);
        }
        Bundle { index, plan, spans }
    }

    fn unpacker<'a>(bundle: &'a Bundle, ahead: &Arc<Ahead>) -> Unpacker<'a> {
        let ahead = Arc::clone(ahead);
        let mut unpacker = Unpacker::new(Some(&bundle.index), &bundle.plan, &[], ahead);
        unpacker.threads = 3;
        unpacker
    }

    fn hand_in(bundle: &Bundle, unpacker: &Unpacker<'_>, number: usize) {
        let span = bundle.spans[number].clone();
        unpacker.prepare(Some(number), &bundle.plan.spans[number], span);
    }

    fn wait_until(what: &str, done: impl Fn() -> bool) {
        let started = Instant::now();
        while !done() {
            assert!(started.elapsed() < Duration::from_secs(20), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks for all blocks as the writer does; the number of those that were made ahead.
    fn take_all(bundle: &Bundle, unpacker: &Unpacker<'_>) -> usize {
        let mut decoder = Decoder::new();
        let mut made = 0;
        for (number, stored) in bundle.spans.iter().enumerate() {
            let claimed = unpacker.claim(number);
            assert!(claimed.as_ref().is_none_or(|claimed| **claimed == *stored));
            let fetched = Step::Fetch(number as u32);
            let blocks = (0..).zip(&bundle.plan.steps);
            for (block, _) in blocks.filter(|(_, step)| **step == fetched) {
                match unpacker.take(block, &mut decoder) {
                    Some(found) => {
                        assert_eq!(found.verified().bytes(), plain(block));
                        made += 1;
                    }
                    None => assert!(claimed.is_some(), "the bytes of block {block} are lost"),
                }
            }
        }
        made
    }

    #[test]
    fn any_budget_and_order_of_arrival_gives_the_blocks() {
        let bundle = bundle(60);
        let count = bundle.spans.len();
        for budget in [0, SIZE - 1, SIZE, 5 * SIZE, 1000 * SIZE] {
            for step in [1, 7, count - 1] {
                let ahead = Ahead::new(budget as u64, false);
                let unpacker = unpacker(&bundle, &ahead);
                let made = unpacker.run(|| {
                    (0..count).for_each(|i| hand_in(&bundle, &unpacker, i * step % count));
                    take_all(&bundle, &unpacker)
                });
                assert!(budget >= SIZE || made == 0);
                drop(unpacker);
                assert_eq!(ahead.left().0, budget as u64, "all shares are back");
            }
        }
    }

    #[test]
    fn all_is_unpacked_when_the_writer_is_late() {
        let bundle = bundle(60);
        let ahead = Ahead::new(1 << 20, false);
        let unpacker = unpacker(&bundle, &ahead);
        unpacker.run(|| {
            (0..bundle.spans.len()).for_each(|number| hand_in(&bundle, &unpacker, number));
            let is_fetched = |step: &&Step| matches!(step, Step::Fetch(_));
            let fetched = bundle.plan.steps.iter().filter(is_fetched).count();
            wait_until("nobody unpacks", || unpacker.pool().ready() == fetched);
            // Spans that end with a block that is fetched need their stored bytes no more.
            assert_eq!(unpacker.pool().spans(), [4, 9, 14]);
            assert_eq!(take_all(&bundle, &unpacker), fetched);
        });
    }

    #[test]
    fn the_writer_makes_other_blocks_while_it_waits() {
        let bundle = bundle(20);
        let ahead = Ahead::new(1 << 20, false);
        let unpacker = unpacker(&bundle, &ahead);
        (0..2).for_each(|number| hand_in(&bundle, &unpacker, number));
        let task = unpacker.pool().next(unpacker.blocks, &unpacker.ahead);
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                unpacker.claim(0).expect("it has blocks to unpack");
                unpacker.take(0, &mut Decoder::new())
            });
            // All of the two spans but the one in hand.
            wait_until("it waits", || unpacker.pool().ready() == 5);
            assert!(!writer.is_finished());
            unpacker.carry_out(task.expect("a block to unpack"), &mut Decoder::new());
            let block = writer.join().expect("no panic").expect("made by the other");
            assert_eq!(block.verified().bytes(), plain(0));
        });
    }

    #[test]
    fn a_corrupt_block_is_left_to_the_writer() {
        let mut bundle = bundle(20);
        let at = bundle.index.block(5).expect("there").stored_at - bundle.plan.spans[1].start;
        bundle.spans[1][at as usize + 30] ^= 1;
        let ahead = Ahead::new(1 << 20, false);
        let unpacker = unpacker(&bundle, &ahead);
        unpacker.run(|| {
            (0..bundle.spans.len()).for_each(|number| hand_in(&bundle, &unpacker, number));
            // Of 13 that are fetched.
            wait_until("nobody unpacks", || unpacker.pool().ready() == 12);
            assert_eq!(unpacker.claim(1).as_deref(), Some(&bundle.spans[1]));
            let mut decoder = Decoder::new();
            let taken = [4, 5, 7].map(|number| unpacker.take(number, &mut decoder).is_some());
            assert_eq!(taken, [true, false, true]);
        });
    }

    /// All blocks are in the seed, but for every fifth, which is to be fetched, and number 8, which is
    /// not what it should be.
    #[test]
    fn what_a_seed_has_is_made_ahead_if_it_is_right() {
        const BLOCKS: u32 = 40;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("seed");
        let plain = |number: u32| -> Vec<u8> {
            let bytes = (0..SIZE as u32).map(|i| (i * 7 + number * 13) as u8);
            bytes.collect()
        };
        let mut bytes: Vec<u8> = (0..BLOCKS).flat_map(plain).collect();
        bytes[8 * SIZE + 5] ^= 1;
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
        let index = Index::new(encoding, 0..u64::from(BLOCKS) * SIZE as u64, 0);
        let index = index.expect("consistent");
        // As after a new plan in the middle.
        let from = 3;
        let step = |number: u32| match number {
            _ if number.is_multiple_of(5) => Step::Fetch(0),
            _ => Step::Seed(Place {
                seed: 0,
                offset: u64::from(number) * SIZE as u64,
                size: SIZE as u32,
            }),
        };
        let plan = Plan {
            from,
            steps: (from..BLOCKS).map(step).collect(),
            seeded: 30,
            ..Plan::default()
        };
        let mut decoder = Decoder::new();
        for (room, late) in [(0, false), (1, false), (1, true), (7, true), (100, true)] {
            let budget = room * SIZE as u64;
            let ahead = Ahead::new(budget * SEEDED_SHARE, true);
            let mut unpacker = Unpacker::new(Some(&index), &plan, &seeds, Arc::clone(&ahead));
            unpacker.threads = 3;
            let all = (from..BLOCKS).filter(|n| !n.is_multiple_of(5) && *n != 8);
            let taken: Vec<u32> = unpacker.run(|| {
                let most = room.min(all.clone().count() as u64) as usize;
                wait_until("nobody reads", || !late || unpacker.pool().ready() >= most);
                // One of them stood at its place, and was not asked for.
                let mut take = |number| {
                    let block = unpacker.take(number, &mut decoder)?;
                    assert_eq!(block.verified().bytes(), plain(number));
                    Some(number)
                };
                let asked = (from..BLOCKS).filter(|number| *number != 11);
                asked.filter_map(&mut take).collect()
            });
            match room {
                0 => assert!(taken.is_empty()),
                100 => assert_eq!(taken, all.filter(|n| *n != 11).collect::<Vec<_>>()),
                _ => assert!(taken.iter().all(|n| !n.is_multiple_of(5) && *n != 8)),
            }
            drop(unpacker);
            assert_eq!(ahead.left().1, budget, "all shares are back");
        }
    }
}
