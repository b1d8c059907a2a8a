//! The stored bytes of spans to verified blocks, ahead of the writer.
//!
//! Decompressing is most of the work of an install, and one thread cannot keep up with a usual
//! link. So spans that have arrived while the writer is still busy with an earlier one wait in a
//! pool, and a thread for each core but the writer's unpacks them there, the next one in order
//! first: it decompresses a block and compares its digest. What the writer takes out of the pool are
//! [`VerifiedBuf`]s, proofs that no one can make without that comparison. Order and writing stay with
//! the writer, and so does every block that was not unpacked: where the writer has nothing else to
//! do, where there is one core only, and where a block is corrupt (the writer then meets the same
//! error, in order).
//!
//! The threads that hold connections do not unpack. They would have to wait for room when the writer
//! is far behind, and their connections with them, just when bytes could be got for later.
//!
//! A thread that has nothing to unpack reads and verifies what comes from seeds (`seeded`).
//!
//! Plain bytes are taken from a budget of their own ([`Ahead`]) before a block is unpacked, by the size that
//! its xz stream states; a block that turns out larger is refused by that bound. Where the budget is
//! used up the threads wait; nobody ever waits for them but the writer, for the one block that one of
//! them has in hand. The stored bytes of a span are given back as soon as its last block is unpacked.
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
//! | digest of the block | all | 32 | 17 | 80 | 1.6 to 2.4 | these threads, or the writer |
//! | payload digest | all | 32 | 17 | 80 | 1.6 to 2.4 | [`hash::Trailing`](crate::hash::Trailing) |
//! | digest of a seed's block | seed without index | 32 | 17 | 80 | 1.6 to 2.4 | [`scan`](crate::scan), all cores |
//! | cutting a seed | seed without index | 9 | | | 0.7 | the same |
//! | reading a seed, writing | all | 0.3 | | | 0.4 | who verifies; the writer; the kernel's copies |
//!
//! Without SHA-512 instructions a digest takes aarch64 25 a byte.
//!
//! So a fetched byte costs as much as ten from a seed, and is decompressed wherever a core is free.
//! In stretches that come from seeds the digests take the time, and all cores share in them; on armv7
//! they are most of all there is to do.

mod seeded;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::bundle::{Compression, Index};
use crate::fetch::Prepare;
use crate::hash::VerifiedBuf;
use crate::plan::{Plan, Step};
use crate::seed::Seed;
use crate::xz::{self, Decoder};

use self::seeded::{Reading, Seeded};

/// Stack of a thread that unpacks, of which it takes 10 KB (measured; unoptimised some times that).
const STACK_SIZE: usize = 256 << 10;

/// The part of the budget for blocks from seeds: this fraction.
const SEEDED_SHARE: u64 = 4;

/// The bytes of a span, and what was made of them ahead.
#[derive(Debug)]
pub struct Span<'b> {
    /// Its bytes as in the bundle; none of a span whose blocks are all unpacked.
    pub stored: Vec<u8>,
    /// Its first blocks, with their numbers.
    unpacked: VecDeque<(u32, Plain<'b>)>,
}

#[derive(Debug)]
struct Plain<'b> {
    block: VerifiedBuf,
    _share: Share<'b>,
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

/// Plain bytes that may be unpacked ahead of the writer.
#[derive(Debug)]
pub struct Ahead {
    room: Mutex<Room>,
    changed: Condvar,
}

#[derive(Debug)]
struct Room {
    fetched: u64,
    seeded: u64,
    /// Counts all that may give a waiting thread something to do.
    events: u64,
}

impl Room {
    fn left(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Fetched => &mut self.fetched,
            Kind::Seeded => &mut self.seeded,
        }
    }
}

/// Where plain bytes come from.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Fetched,
    Seeded,
}

impl Ahead {
    /// A budget of so many bytes; a part of it is for blocks from seeds, if there are any.
    pub fn new(bytes: u64, any_seeds: bool) -> Self {
        let seeded = if any_seeds { bytes / SEEDED_SHARE } else { 0 };
        Self {
            room: Mutex::new(Room {
                fetched: bytes - seeded,
                seeded,
                events: 0,
            }),
            changed: Condvar::new(),
        }
    }

    /// A share, if there is so much.
    fn take(&self, kind: Kind, bytes: u64) -> Option<Share<'_>> {
        let mut room = self.room();
        let left = room.left(kind);
        *left = left.checked_sub(bytes)?;
        Some(Share {
            ahead: self,
            kind,
            bytes,
        })
    }

    /// There may be something to do: gives back `bytes`.
    fn stir(&self, kind: Kind, bytes: u64) {
        let mut room = self.room();
        *room.left(kind) += bytes;
        room.events += 1;
        drop(room);
        self.changed.notify_all();
    }

    fn events(&self) -> u64 {
        self.room().events
    }

    /// Waits until more has happened than was `seen`.
    fn wait(&self, seen: u64) {
        let waits = |room: &mut Room| room.events == seen;
        drop(self.changed.wait_while(self.room(), waits));
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A share of the budget, given back when it is dropped.
#[derive(Debug)]
struct Share<'b> {
    ahead: &'b Ahead,
    kind: Kind,
    bytes: u64,
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.ahead.stir(self.kind, self.bytes);
    }
}

/// Unpacks the spans of one plan.
#[derive(Debug)]
pub struct Unpacker<'p, 'b> {
    index: Option<&'p Index>,
    plan: &'p Plan,
    seeds: &'p [Seed],
    ahead: &'b Ahead,
    pool: Mutex<Pool<'b>>,
    /// A span was put back.
    back: Condvar,
    threads: usize,
    /// The blocks in spans have to be unpacked.
    is_packed: bool,
}

/// The spans that have arrived and that the writer has not taken yet.
#[derive(Debug, Default)]
struct Pool<'b> {
    spans: BTreeMap<usize, Place<'b>>,
    /// The writer waits for this one.
    wanted: Option<usize>,
    seeded: Seeded<'b>,
    ended: bool,
}

/// How far a span is.
#[derive(Debug)]
enum Place<'b> {
    /// It has blocks to unpack.
    Waiting(Pending<'b>),
    /// A thread has one of them in hand.
    InHand,
    /// It has none.
    Done(Span<'b>),
}

#[derive(Debug)]
struct Pending<'b> {
    range: Range<u64>,
    span: Span<'b>,
    /// The block to unpack next, if there is one.
    next: Option<u32>,
}

/// A block to unpack, and where its stored bytes are in its span.
struct Task<'b> {
    number: usize,
    pending: Pending<'b>,
    stored: Range<usize>,
    bound: usize,
    share: Share<'b>,
}

impl<'p, 'b> Unpacker<'p, 'b> {
    /// An unpacker for the spans of `plan`, and for the blocks that come from `seeds`.
    pub fn new(
        index: Option<&'p Index>,
        plan: &'p Plan,
        seeds: &'p [Seed],
        ahead: &'b Ahead,
    ) -> Self {
        let is_packed = index.is_some_and(|index| index.compression() == Compression::Xz);
        // What of the plan there is to do here.
        let spans = if is_packed { plan.spans.len() } else { 0 };
        let blocks = usize::try_from(plan.seeded).unwrap_or(usize::MAX);
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        Self {
            index,
            plan,
            seeds,
            ahead,
            pool: Mutex::default(),
            back: Condvar::new(),
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

    /// Span `number` as far as it is unpacked, if it came through the pool. A thread that has one of
    /// its blocks in hand is waited for.
    pub fn claim(&self, number: usize) -> Option<Span<'b>> {
        let mut pool = self.pool();
        pool.wanted = Some(number);
        let in_hand = |pool: &mut Pool<'_>| matches!(pool.spans.get(&number), Some(Place::InHand));
        let waited = self.back.wait_while(pool, in_hand);
        let mut pool = waited.unwrap_or_else(PoisonError::into_inner);
        pool.wanted = None;
        match pool.spans.remove(&number)? {
            Place::Waiting(pending) => Some(pending.span),
            Place::Done(span) => Some(span),
            Place::InHand => None,
        }
    }

    fn work(&self) {
        let mut decoder = Decoder::new();
        loop {
            let seen = self.ahead.events();
            let next = match self.next() {
                Next::Wait => self.next_seeded().map_or(Next::Wait, Next::Read),
                next => next,
            };
            match next {
                Next::Task(task) => self.unpack(*task, &mut decoder),
                Next::Read(reading) => self.read_seeded(reading),
                Next::Wait => self.ahead.wait(seen),
                Next::Ended => return,
            }
        }
    }

    /// The first block in order that nobody has in hand, if there is room for it.
    fn next(&self) -> Next<'b> {
        let mut pool = self.pool();
        if pool.ended {
            return Next::Ended;
        }
        let wanted = pool.wanted;
        for (number, place) in &mut pool.spans {
            let pending = match std::mem::replace(place, Place::InHand) {
                Place::Waiting(pending) if Some(*number) != wanted => pending,
                other => {
                    *place = other;
                    continue;
                }
            };
            let Some((stored, bound)) = self.locate(&pending) else {
                *place = Place::Done(pending.span);
                continue;
            };
            let Some(share) = self.ahead.take(Kind::Fetched, bound as u64) else {
                *place = Place::Waiting(pending);
                break;
            };
            return Next::Task(Box::new(Task {
                number: *number,
                pending,
                stored,
                bound,
                share,
            }));
        }
        Next::Wait
    }

    /// Where the next block of a span is in its bytes, and how large it may be; `None` if there is
    /// none, or it is not as the index says.
    fn locate(&self, pending: &Pending<'_>) -> Option<(Range<usize>, usize)> {
        let block = self.index?.block(pending.next?)?;
        let at = usize::try_from(block.stored_at.checked_sub(pending.range.start)?).ok()?;
        let range = at..at.checked_add(block.stored_size as usize)?;
        let stated = xz::stated_size(pending.span.stored.get(range.clone())?).ok()?;
        let bound = usize::try_from(stated.min(u64::from(block.size.bound()))).ok()?;
        Some((range, bound))
    }

    /// The first block of span `number` from block `from` on.
    fn block_from(&self, number: usize, from: u32) -> Option<u32> {
        let at = from.checked_sub(self.plan.from)? as usize;
        let steps = self.plan.steps.get(at..)?;
        // Others are in a gap that is read through, or repeats.
        let fetched = (from..).zip(steps).find_map(|(block, step)| match step {
            Step::Fetch(span) => Some((block, *span as usize)),
            _ => None,
        });
        fetched
            .filter(|(_, span)| *span == number)
            .map(|(block, _)| block)
    }

    /// Unpacks a block and puts its span back.
    fn unpack(&self, task: Task<'b>, decoder: &mut Decoder) {
        let Task {
            number,
            mut pending,
            stored,
            bound,
            share,
        } = task;
        let _given_up = GivenUp(self, number);
        let plain = pending
            .next
            .zip(pending.span.stored.get(stored))
            .and_then(|(next, stored)| {
                let block = self.index?.block(next)?;
                let mut plain = Vec::new();
                decoder.decompress(stored, bound, &mut plain).ok()?;
                let plain = Some(plain).filter(|plain| block.size.allows(plain.len()))?;
                Some((block, block.digest.verify_owned(plain)?))
            });
        let last = match plain {
            Some((block, plain)) => {
                pending.next = self.block_from(number, block.number + 1);
                let plain = Plain {
                    block: plain,
                    _share: share,
                };
                pending.span.unpacked.push_back((block.number, plain));
                let end = block.stored_at + u64::from(block.stored_size);
                if pending.next.is_none() && end == pending.range.end {
                    pending.span.stored = Vec::new();
                }
                pending.next.is_none()
            }
            // The writer will find out why.
            None => true,
        };
        let place = if last {
            Place::Done(pending.span)
        } else {
            Place::Waiting(pending)
        };
        self.pool().spans.insert(number, place);
        self.back.notify_all();
    }

    fn pool(&self) -> MutexGuard<'_, Pool<'b>> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A panic while this lives loses the span, and the writer is not to wait for it for ever.
struct GivenUp<'a, 'p, 'b>(&'a Unpacker<'p, 'b>, usize);

impl Drop for GivenUp<'_, '_, '_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.pool().spans.remove(&self.1);
            self.0.back.notify_all();
        }
    }
}

/// Ends the threads, also when the writer panics.
struct End<'a, 'p, 'b>(&'a Unpacker<'p, 'b>);

impl Drop for End<'_, '_, '_> {
    fn drop(&mut self) {
        self.0.pool().ended = true;
        self.0.ahead.stir(Kind::Fetched, 0);
    }
}

enum Next<'b> {
    Task(Box<Task<'b>>),
    Read(Reading<'b>),
    Wait,
    Ended,
}

impl<'b> Prepare<Span<'b>> for Unpacker<'_, 'b> {
    fn prepare(&self, number: Option<usize>, range: &Range<u64>, bytes: Vec<u8>) -> Span<'b> {
        let first = |number: usize| self.plan.span_starts.get(number).copied();
        let place = number.and_then(|number| Some((number, first(number)?)));
        let Some((number, first)) = place.filter(|_| self.is_of_use()) else {
            return Span::new(bytes);
        };
        let pending = Pending {
            range: range.clone(),
            span: Span::new(bytes),
            next: Some(first),
        };
        let place = Place::Waiting(pending);
        self.pool().spans.insert(number, place);
        self.ahead.stir(Kind::Fetched, 0);
        // The writer claims it by its number.
        Span::new(Vec::new())
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // made-up bytes
mod tests {
    use super::*;
    use crate::bundle::Encoding;
    use crate::chunker::Chunker;
    use crate::hash::HashAlgorithm;
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

    fn unpacker<'a>(bundle: &'a Bundle, ahead: &'a Ahead) -> Unpacker<'a, 'a> {
        let mut unpacker = Unpacker::new(Some(&bundle.index), &bundle.plan, &[], ahead);
        unpacker.threads = 3;
        unpacker
    }

    /// The spans that have no blocks to unpack any more.
    fn done(unpacker: &Unpacker<'_, '_>) -> Vec<(usize, bool)> {
        let pool = unpacker.pool();
        let done = pool.spans.iter().filter_map(|(number, place)| match place {
            Place::Done(span) => Some((*number, span.stored.is_empty())),
            _ => None,
        });
        done.collect()
    }

    fn hand_in(bundle: &Bundle, unpacker: &Unpacker<'_, '_>, number: usize) {
        let span = bundle.spans[number].clone();
        unpacker.prepare(Some(number), &bundle.plan.spans[number], span);
    }

    /// Takes all spans as the writer does; the blocks of them that were unpacked.
    fn take_all(bundle: &Bundle, unpacker: &Unpacker<'_, '_>) -> usize {
        let mut unpacked = 0;
        for (number, stored) in bundle.spans.iter().enumerate() {
            let mut span = unpacker.claim(number).expect("it was handed in");
            let fetched = Step::Fetch(number as u32);
            let mut ahead = true;
            for block in (0..)
                .zip(&bundle.plan.steps)
                .filter(|(_, s)| **s == fetched)
            {
                match span.take(block.0) {
                    Some(block_plain) => {
                        assert!(ahead, "block {} but not the one before", block.0);
                        assert_eq!(block_plain.verified().bytes(), plain(block.0));
                        unpacked += 1;
                    }
                    None => ahead = false,
                }
            }
            assert!(ahead || span.stored == *stored, "span {number}");
        }
        unpacked
    }

    #[test]
    fn any_budget_and_order_of_arrival_gives_the_blocks() {
        let bundle = bundle(60);
        let count = bundle.spans.len();
        for budget in [0, SIZE - 1, SIZE, 5 * SIZE, 1000 * SIZE] {
            for step in [1, 7, count - 1] {
                let ahead = Ahead::new(budget as u64, false);
                let unpacker = unpacker(&bundle, &ahead);
                let unpacked = unpacker.run(|| {
                    (0..count).for_each(|i| hand_in(&bundle, &unpacker, i * step % count));
                    take_all(&bundle, &unpacker)
                });
                assert!(budget >= SIZE || unpacked == 0);
                assert_eq!(ahead.room().fetched, budget as u64, "all shares are back");
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
            let started = Instant::now();
            while done(&unpacker).len() < bundle.spans.len() {
                assert!(
                    started.elapsed() < Duration::from_secs(20),
                    "nobody unpacks"
                );
                thread::sleep(Duration::from_millis(1));
            }
            // Spans that end with a block that is fetched need their stored bytes no more.
            let kept = done(&unpacker).into_iter().filter(|(_, empty)| !empty);
            let kept: Vec<_> = kept.map(|(number, _)| number).collect();
            assert_eq!(kept, [4, 9, 14], "the others end with what is fetched");
            let fetched = |step: &&Step| matches!(step, Step::Fetch(_));
            let fetched = bundle.plan.steps.iter().filter(fetched).count();
            assert_eq!(take_all(&bundle, &unpacker), fetched);
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
            while done(&unpacker).len() < bundle.spans.len() {
                thread::yield_now();
            }
            let mut span = unpacker.claim(1).expect("it was handed in");
            assert!(span.take(4).is_some());
            assert!(span.take(5).is_none() && span.take(7).is_none());
            assert_eq!(span.stored, bundle.spans[1]);
        });
    }
}
