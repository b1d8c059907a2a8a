//! Cutting and hashing a local image on all cores.
//!
//! A content-defined cut depends only on the bytes since the last border, so a thread may start
//! anywhere as if a border were there: after a block or two its borders are those of a scan from
//! the beginning. The image is split into segments that threads take one after another, and the
//! segments are joined where the borders of one meet those of the next; in between, the few blocks
//! up to the meeting point are cut again. The result is that of a sequential scan, whatever the
//! split. A thread that takes the segment after its last one goes on at its own border, as one thread
//! alone always does; and segments get smaller towards the end, so that all threads end together.
//!
//! A block of one byte again and again, as on a blank medium, is hashed once.
//!
//! Memory: one window of a few blocks a thread, the borders of segments that wait to be joined, and
//! the blocks that the caller keeps.

use std::io;
use std::sync::{Mutex, PoisonError};

use crate::chunker::{is_uniform, Chunker, Cutter};

/// Bytes of one segment: large against a block, or joining costs too much (three blocks or so each).
const MIN_SEGMENT: u64 = 2 << 20;
const MAX_SEGMENT: u64 = 32 << 20;

/// A segment is this part of what is left, for each thread.
const SHARE: u64 = 2;

/// Bytes read at once.
const READ_SIZE: usize = 1 << 20;

/// Bytes of windows of all threads together, which bounds their number for very large blocks.
const MAX_WINDOWS: usize = 128 << 20;

/// Stack of a thread that scans, a listener's needs included; the default of 2 MiB is much on a small
/// board.
const STACK_SIZE: usize = 256 << 10;

/// A block of a local image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<T> {
    /// Its place in the image.
    pub offset: u64,
    /// Its size in bytes.
    pub size: u32,
    /// What the caller keeps of it.
    pub kept: T,
}

/// Reads exactly so many bytes at an offset.
pub type ReadAt<'a> = &'a (dyn Fn(&mut [u8], u64) -> io::Result<()> + Sync);

/// An image to scan, and how.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// Reads the image.
    pub read_at: ReadAt<'a>,
    /// Its size in bytes.
    pub size: u64,
    /// How to cut it.
    pub chunker: Chunker,
    /// Told the bytes of each finished segment.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

impl std::fmt::Debug for Scan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan")
            .field("size", &self.size)
            .field("chunker", &self.chunker)
            .finish_non_exhaustive()
    }
}

impl Scan<'_> {
    /// The blocks of the image in order for which `keep` makes something of their bytes.
    ///
    /// Where the image cannot be read, the blocks that could be read are returned together with
    /// the first error.
    pub fn run<T: Copy + Send>(&self, keep: Keep<'_, T>) -> (Vec<Found<T>>, Option<io::Error>) {
        let mut found = Vec::new();
        let error = self.each(keep, &mut |block| found.push(block));
        (found, error)
    }

    /// The same, one by one: for an image of which the number of such blocks has no bound.
    pub fn each<T: Copy + Send>(&self, keep: Keep<'_, T>, take: Take<'_, T>) -> Option<io::Error> {
        let window = READ_SIZE.max(self.chunker.max_size() as usize * 2);
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let most = usize::try_from(self.size.div_ceil(MIN_SEGMENT)).unwrap_or(cores);
        let threads = cores.min(MAX_WINDOWS / window).min(most).max(1);
        // Fixed blocks meet those of a segment before only if it begins at one of their borders.
        let border = match self.chunker.is_fixed() {
            true => self.chunker.max_size(),
            false => 1,
        };
        let share = |left: u64| {
            let share = left / (threads as u64 * SHARE);
            share
                .clamp(MIN_SEGMENT, MAX_SEGMENT)
                .next_multiple_of(u64::from(border))
        };
        self.split(&share, threads, keep, take)
    }

    /// `share` is the size of the next segment, by what is left of the image.
    fn split<T: Copy + Send>(
        &self,
        share: &(dyn Fn(u64) -> u64 + Sync),
        threads: usize,
        keep: Keep<'_, T>,
        take: Take<'_, T>,
    ) -> Option<io::Error> {
        // Number and start of the next segment.
        let next = Mutex::new((0, 0));
        let take_next = || {
            let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
            let (number, start) = *next;
            let end = (start + share(self.size - start)).min(self.size);
            *next = (number + 1, end);
            (start < self.size).then_some((number, start, end))
        };
        let joined = Mutex::new(Joined::new(self, keep, take));
        let work = || {
            let mut window = Window::new(self, keep, READ_SIZE);
            let mut last = None;
            while let Some((number, start, end)) = take_next() {
                let from = match last {
                    Some((before, border)) if before + 1 == number => border,
                    _ => start,
                };
                let segment = window.blocks(from, end);
                let border = segment.blocks.last().map_or(from, end_of);
                last = segment.error.is_none().then_some((number, border));
                (self.progress)(end - start);
                // A poisoned lock only means that another thread's `keep` panicked; the scope
                // passes that panic on.
                if let Ok(mut joined) = joined.lock() {
                    joined.add(number, segment);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads {
                // Without a thread more, the others do its share.
                let thread = std::thread::Builder::new()
                    .name("scan".to_owned())
                    .stack_size(STACK_SIZE)
                    .spawn_scoped(scope, work);
                drop(thread);
            }
            work();
        });
        let joined = joined.into_inner().unwrap_or_else(PoisonError::into_inner);
        joined.error
    }
}

/// What a caller makes of the bytes of a block, if it wants to keep anything.
pub type Keep<'a, T> = &'a (dyn Fn(&[u8]) -> Option<T> + Sync);

/// Takes the blocks that are kept, in order.
pub type Take<'a, T> = &'a mut (dyn FnMut(Found<T>) + Send);

/// The segments that are finished, joined as far as all before them are: only then do borders no
/// longer matter, and blocks that nobody keeps are forgotten.
struct Joined<'a, T> {
    window: Window<'a, T>,
    take: Take<'a, T>,
    /// Finished, but not all before them, in any order: fewer than there are threads, unless one of
    /// these waits for a medium that fails.
    waiting: Vec<(usize, Segment<T>)>,
    /// Number of the next segment to join.
    next: usize,
    /// Border up to which all is joined.
    at: u64,
    error: Option<io::Error>,
}

impl<'a, T: Copy> Joined<'a, T> {
    fn new(scan: &Scan<'a>, keep: Keep<'a, T>, take: Take<'a, T>) -> Self {
        Self {
            // For a block or two where segments meet.
            window: Window::new(scan, keep, 0),
            take,
            waiting: Vec::new(),
            next: 0,
            at: 0,
            error: None,
        }
    }

    fn add(&mut self, number: usize, segment: Segment<T>) {
        self.waiting.push((number, segment));
        while let Some(at) = self.waiting.iter().position(|(n, _)| *n == self.next) {
            self.next += 1;
            let (_, segment) = self.waiting.swap_remove(at);
            self.join(segment);
        }
    }

    fn join(&mut self, segment: Segment<T>) {
        let end = segment.blocks.last().map_or(self.at, end_of);
        while self.at < end {
            let met = segment
                .blocks
                .binary_search_by_key(&self.at, |block| block.offset);
            if let Ok(met) = met {
                self.take(segment.blocks.get(met..).unwrap_or_default());
                self.at = end;
                break;
            }
            match self.window.block(self.at) {
                Ok(block) => {
                    self.take(&[block]);
                    self.at = end_of(&block);
                }
                Err(cause) => {
                    // Unreadable here: the segment's own blocks are still good data.
                    self.error.get_or_insert(cause);
                    let behind = segment.blocks.partition_point(|b| b.offset <= self.at);
                    self.take(segment.blocks.get(behind..).unwrap_or_default());
                    self.at = end;
                }
            }
        }
        if let Some(cause) = segment.error {
            self.error.get_or_insert(cause);
            // A block before may have passed it.
            self.at = self.at.max(segment.end);
        }
    }

    fn take(&mut self, blocks: &[Found<Option<T>>]) {
        let kept = blocks.iter().filter_map(|block| {
            Some(Found {
                offset: block.offset,
                size: block.size,
                kept: block.kept?,
            })
        });
        kept.for_each(&mut self.take);
    }
}

fn end_of<T>(block: &Found<T>) -> u64 {
    block.offset + u64::from(block.size)
}

struct Segment<T> {
    blocks: Vec<Found<Option<T>>>,
    end: u64,
    error: Option<io::Error>,
}

/// A stretch of the image in memory.
struct Window<'a, T> {
    scan: Scan<'a>,
    keep: Keep<'a, T>,
    cutter: Cutter,
    /// Bytes to read at once, or more if a block may be larger.
    read_size: usize,
    /// Room for bytes, of which the first `len` are those of the image.
    bytes: Vec<u8>,
    len: usize,
    /// Offset of the first byte in memory.
    start: u64,
    /// The last block of one byte again and again: that byte, its size, and what is kept of it.
    uniform: Option<(u8, usize, Option<T>)>,
}

impl<'a, T: Copy> Window<'a, T> {
    fn new(scan: &Scan<'a>, keep: Keep<'a, T>, read_size: usize) -> Self {
        Self {
            scan: *scan,
            keep,
            read_size,
            cutter: scan.chunker.cutter(),
            bytes: Vec::new(),
            len: 0,
            start: 0,
            uniform: None,
        }
    }

    /// The blocks of a segment, cut as if its start were a border; the last one may pass its end.
    fn blocks(&mut self, start: u64, end: u64) -> Segment<T> {
        let mut blocks = Vec::new();
        let mut at = start;
        let mut error = None;
        while at < end {
            match self.block(at) {
                Ok(block) => {
                    at = end_of(&block);
                    blocks.push(block);
                }
                Err(cause) => {
                    error = Some(cause);
                    break;
                }
            }
        }
        Segment { blocks, end, error }
    }

    /// The block that starts at `at`, which lies inside the image.
    fn block(&mut self, at: u64) -> io::Result<Found<Option<T>>> {
        let need = (self.scan.size - at).min(self.cutter.max() as u64);
        let (cutter, keep, known) = (self.cutter, self.keep, self.uniform);
        let ahead = self.ahead(at, need)?;
        let size = cutter.cut(ahead);
        let block = ahead.get(..size).unwrap_or(ahead);
        let uniform = block.first().filter(|_| is_uniform(block)).copied();
        let kept = match (uniform, known) {
            (Some(byte), Some((known, len, kept))) if (known, len) == (byte, size) => kept,
            _ => keep(block),
        };
        if let Some(byte) = uniform {
            self.uniform = Some((byte, size, kept));
        }
        Ok(Found {
            offset: at,
            size: u32::try_from(size).unwrap_or(u32::MAX),
            kept,
        })
    }

    /// `need` bytes from `at` on, or more.
    fn ahead(&mut self, at: u64, need: u64) -> io::Result<&[u8]> {
        let end = self.start + self.len as u64;
        if at < self.start || at + need > end {
            // Keep what is still wanted, read on behind it.
            let kept = if (self.start..end).contains(&at) {
                let passed = usize::try_from(at - self.start).unwrap_or(self.len);
                self.bytes.copy_within(passed..self.len, 0);
                self.len - passed
            } else {
                0
            };
            (self.start, self.len) = (at, kept);
            let read = need
                .max((kept + self.read_size) as u64)
                .min(self.scan.size - at);
            let len = usize::try_from(read).map_err(|_| io::ErrorKind::OutOfMemory)?;
            if self.bytes.len() < len {
                self.bytes.resize(len, 0);
            }
            let missing = self.bytes.get_mut(kept..len).unwrap_or_default();
            (self.scan.read_at)(missing, at + kept as u64)?;
            self.len = len;
        }
        let skip = usize::try_from(at - self.start).unwrap_or(self.len);
        Ok(self.bytes.get(skip..self.len).unwrap_or_default())
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation)] // made-up bytes
mod tests {
    use super::*;

    fn image(len: usize, mut state: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let run = 1 + (state >> 50) as usize;
            if state >> 40 & 7 == 0 {
                bytes.extend(std::iter::repeat_n(0, run));
            } else {
                for i in 0..run.min(3000) {
                    bytes.push((state >> (i % 7 * 8)) as u8 ^ (i * i) as u8);
                }
            }
        }
        bytes.truncate(len);
        bytes
    }

    fn scan<T: Copy + Send>(
        bytes: &[u8],
        chunker: &str,
        share: &(dyn Fn(u64) -> u64 + Sync),
        threads: usize,
        keep: Keep<'_, T>,
    ) -> Vec<Found<T>> {
        let mut found = Vec::new();
        let error = Scan {
            read_at: &|buffer, at| {
                let at = usize::try_from(at).expect("small");
                buffer.copy_from_slice(&bytes[at..at + buffer.len()]);
                Ok(())
            },
            size: bytes.len() as u64,
            chunker: Chunker::parse(chunker).expect("a chunker"),
            progress: &|_| {},
        }
        .split(share, threads, keep, &mut |block| found.push(block));
        assert!(error.is_none());
        found
    }

    #[test]
    fn any_split_gives_the_sequential_result() {
        let sum = |block: &[u8]| {
            let sum = |s: u32, b: &u8| s.wrapping_mul(31) ^ u32::from(*b);
            Some(block.iter().fold(1, sum))
        };
        for seed in 0..6 {
            let bytes = image(300_000 + seed * 777, seed as u64 + 1);
            for chunker in ["casync-1", "casync-4", "fixed-1", "fixed-3"] {
                let whole = scan(&bytes, chunker, &|left| left, 1, &sum);
                assert_eq!(
                    whole.iter().map(|b| b.size as usize).sum::<usize>(),
                    bytes.len()
                );
                for segment in [1000, 4096, 30_000, 100_001, 299_999] {
                    for threads in [1, 3] {
                        let split = scan(&bytes, chunker, &|_| segment, threads, &sum);
                        assert!(
                            split == whole,
                            "seed {seed} {chunker} threads={threads} segments of {segment}"
                        );
                    }
                }
                let shrinking = scan(&bytes, chunker, &|left| left / 5 + 500, 3, &sum);
                assert!(shrinking == whole, "seed {seed} {chunker}");
            }
        }
        assert!(scan(&[], "casync-1", &|_| 1000, 2, &sum).is_empty());
    }

    #[test]
    fn unreadable_stretches_cost_only_themselves() {
        let bytes = image(400_000, 9);
        let scan = |bad: std::ops::Range<u64>| {
            let mut found = Vec::new();
            let error = Scan {
                read_at: &|buffer, at| {
                    if at < bad.end && at + buffer.len() as u64 > bad.start {
                        return Err(io::ErrorKind::Other.into());
                    }
                    let at = usize::try_from(at).expect("small");
                    buffer.copy_from_slice(&bytes[at..at + buffer.len()]);
                    Ok(())
                },
                size: bytes.len() as u64,
                chunker: Chunker::parse("casync-1").expect("a chunker"),
                progress: &|_| {},
            }
            .split(&|_| 40_000, 2, &|block| Some(block.len()), &mut |block| {
                found.push(block);
            });
            (found, error)
        };
        let (all, none) = scan(0..0);
        assert!(none.is_none());
        let (found, error) = scan(200_000..200_001);
        assert!(error.is_some());
        assert!(
            found.len() > all.len() / 4,
            "{} of {}",
            found.len(),
            all.len()
        );
        assert!(found.iter().all(|b| {
            let (start, end) = (b.offset, end_of(b));
            end <= 200_000 || start > 200_000
        }));
    }
}
