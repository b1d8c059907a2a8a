//! Which blocks of a payload stand on local media already.
//!
//! A seed is a device or file whose bytes may be reused: through a prepared block index
//! (`.rugix-block-index`) or by scanning it with the bundle's own chunker and hash. The answer,
//! [`Have`], is only a claim: the writer hashes every block it reads from a seed and fetches it
//! instead when it is not what was claimed. So an index may be stale and a medium may lie.
//!
//! The target's own old content is a seed like the others ([`Old`]), but one that goes as it is
//! written over: it is always scanned, and of each block all places are noted.
//!
//! A seed can never make an install fail. Whatever goes wrong here is a warning and a smaller
//! set; a seed that keeps failing is dropped ([`Seed::failed`]).

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::bundle::{Block, Index, Size, MAX_BLOCKS, MAX_BLOCK_SIZE};
use crate::busy;
use crate::device::Target;
use crate::error::Result;
use crate::hash::{Hasher, MAX_DIGEST_SIZE};
use crate::old::Old;
use crate::output::Output;
use crate::report::Reporter;
use crate::rugix::{self, BlockIndex};
use crate::scan::{Found, Scan};

/// Failures after which a seed is dropped. Each costs a round trip of its own; more than a few are
/// no accident but a wrong index or a dying medium.
const MAX_FAILURES: u32 = 16;

/// Files that can still be opened when all seeds are: for connections, names, indexes and the report.
const SPARE_FILES: usize = 32;

/// Largest block index file: what the format's limits allow, and its fields.
const MAX_INDEX_FILE: u64 = (MAX_BLOCKS * (MAX_DIGEST_SIZE + 4) + 4096) as u64;

/// How far behind the payload's end a target is looked through: this fraction of its size.
const OLD_SURPLUS: u64 = 8;

/// Places behind which the last block of a payload is looked for.
const MAX_LAST_PLACES: usize = 8;

/// Sizes of a last block at which its end is likely: that of an image is a whole number of these.
const LIKELY_STEP: usize = 512;

/// Largest last block that is looked for at every size. A second of work on a slow board.
const MAX_LAST_SIZE: usize = 1 << 20;

/// A seed as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The device or file.
    pub path: PathBuf,
    /// Its prepared block index, else it is scanned.
    pub index: Option<PathBuf>,
}

impl Spec {
    /// Bytes that it may hold: those of a file; a device may hold any number.
    pub fn most_bytes(&self) -> u64 {
        let metadata = fs::metadata(&self.path).ok();
        let file = metadata.filter(fs::Metadata::is_file);
        file.map_or(u64::MAX, |metadata| metadata.len())
    }
}

/// An opened seed.
#[derive(Debug)]
pub struct Seed {
    spec: Spec,
    file: File,
    size: u64,
    failures: AtomicU32,
    /// Where targets lie in it: these bytes change.
    targets: Vec<Range<u64>>,
}

/// Where a block stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the seed.
    pub seed: u16,
    /// Offset in it.
    pub offset: u64,
    /// Plain size of the block.
    pub size: u32,
}

/// For each block of a payload, where it stands locally, if it does. Only first occurrences count.
#[derive(Clone, Debug, Default)]
pub struct Have {
    places: Vec<Option<Place>>,
}

impl Have {
    /// Nothing is there.
    pub fn nothing(index: &Index) -> Self {
        Self {
            places: vec![None; index.len()],
        }
    }

    /// Where block `number` stands.
    pub fn place(&self, number: u32) -> Option<Place> {
        self.places.get(number as usize).copied().flatten()
    }

    /// Whether block `number` stands anywhere.
    pub fn has(&self, number: u32) -> bool {
        self.place(number).is_some()
    }

    /// Notes a place for block `number`, unless one is known already.
    pub fn add(&mut self, number: u32, place: Place) {
        if let Some(slot) = self.places.get_mut(number as usize) {
            slot.get_or_insert(place);
        }
    }

    /// Forgets all places in a seed.
    pub fn forget(&mut self, seed: u16) {
        for place in &mut self.places {
            if place.is_some_and(|place| place.seed == seed) {
                *place = None;
            }
        }
    }
}

impl Seed {
    fn open(spec: &Spec, targets: &[Target]) -> io::Result<Self> {
        // Looked at before it is opened: opening a FIFO would wait for a writer.
        let metadata = fs::metadata(&spec.path)?;
        let kind = metadata.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::other("neither a file nor a block device"));
        }
        let mut inside = Vec::new();
        let devices = targets.iter().filter_map(Target::device);
        for target in devices.filter(|_| kind.is_block_device()) {
            if busy::partition_range(metadata.rdev(), target).is_some() {
                return Err(io::Error::other(
                    "it is a part of a target, whose old content is looked through anyway",
                ));
            }
            inside.extend(busy::partition_range(target, metadata.rdev()));
        }
        let mut file = File::open(&spec.path)?;
        // Not the metadata's size: that is zero for a block device.
        let size = file.seek(SeekFrom::End(0))?;
        // Else many seeds would leave no connection to fetch what they do not have.
        (0..SPARE_FILES)
            .map(|_| file.try_clone())
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            spec: spec.clone(),
            file,
            size,
            failures: AtomicU32::new(0),
            targets: inside,
        })
    }

    /// Its path as given.
    pub fn path(&self) -> &Path {
        &self.spec.path
    }

    /// Reads the bytes of a place.
    pub fn read(&self, place: Place, bytes: &mut Vec<u8>) -> io::Result<()> {
        bytes.clear();
        bytes.resize(place.size as usize, 0);
        self.file.read_exact_at(bytes, place.offset)
    }

    /// Whether a place stays as it is while targets are written.
    fn lasts(&self, offset: u64, size: u32) -> bool {
        let end = offset + u64::from(size);
        self.targets
            .iter()
            .all(|target| end <= target.start || offset >= target.end)
    }

    /// Counts a block that was not there, or could not be read. True when the seed has to be
    /// dropped now.
    pub fn failed(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_FAILURES
    }

    /// Blocks that were not there, or could not be read.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// Opens the seeds; one that cannot be opened is left out with a warning. Where a target lies inside
/// of a seed, as a partition on a disk, that part is not used.
pub fn open(specs: &[Spec], targets: &[Target]) -> Vec<Seed> {
    let mut seeds = Vec::new();
    for spec in specs.iter().take(usize::from(u16::MAX)) {
        match Seed::open(spec, targets) {
            Ok(seed) => seeds.push(seed),
            Err(error) => log::warn!("seed {} is left out: {error}", spec.path.display()),
        }
    }
    seeds
}

/// Finds out whether a block index can be stored under this name, before anything else is done.
pub fn check_index_path(path: &Path) -> Result<()> {
    Output::new(path)?.scratch().map(drop)
}

/// Stores the block index of a payload that was installed, for its use as a seed. `offsets` says
/// where each block begins, and where the last one ends. The file is there whole or not at all.
pub fn store_index(path: &Path, index: &Index, offsets: &[u64]) -> Result<()> {
    let sizes = offsets.windows(2).filter_map(|pair| match pair {
        [start, end] => u32::try_from(end - start).ok(),
        _ => None,
    });
    let blocks = (0..).map(|number| index.raw_digest(number)).zip(sizes);
    let bytes = rugix::write_block_index(index.chunker(), index.algorithm(), blocks);
    Output::new(path)?.store(|file| file.write_all(&bytes))
}

/// Looks the blocks of a payload up in the seeds, the first that has a block wins; and in the old
/// content of the target, if it may be used.
pub fn find(
    seeds: &[Seed],
    target: Option<&Target>,
    index: &Index,
    reporter: &Reporter,
) -> (Have, Old) {
    let mut have = Have::nothing(index);
    let reach = target.map_or(0, |target| reach(index).min(target.old_size()));
    let total: u64 = seeds.iter().map(|seed| seed.size).sum::<u64>() + reach;
    let done = AtomicU64::new(0);
    let progress = |bytes: u64| {
        let before = done.fetch_add(bytes, Ordering::Relaxed);
        reporter.seed_progress(before + bytes, total);
    };
    let old = match target.filter(|_| reach > 0) {
        Some(target) => find_old(target, reach, index, &progress),
        None => Old::default(),
    };
    for (number, seed) in (0u16..).zip(seeds) {
        if seed.failures() >= MAX_FAILURES {
            continue;
        }
        let known = have.places.iter().flatten().count();
        let prepared = seed
            .spec
            .index
            .as_deref()
            .and_then(|path| prepared(path, index));
        match prepared {
            Some(prepared) => {
                add_prepared(&mut have, number, seed, &prepared, index);
                progress(seed.size);
            }
            None => add_scanned(&mut have, number, seed, index, &progress),
        }
        let found = have.places.iter().flatten().count() - known;
        if found == 0 && known == 0 && !index.is_empty() {
            log::warn!("seed {} has no block of the bundle", seed.path().display());
        }
        log::info!(
            "seed {} has blocks={found} of={}",
            seed.path().display(),
            index.len()
        );
    }
    (have, old)
}

/// How far into a target blocks of the payload may be of use: its size, as far as that can be
/// known or guessed from above, and something more, for an old image may be larger than the new.
fn reach(index: &Index) -> u64 {
    let mut reach = u64::from(index.chunker().max_size());
    let mut blocks = index.blocks().peekable();
    while let Some(block) = blocks.next() {
        let repeats = block.first != block.number
            || blocks.peek().is_some_and(|next| next.first == block.first);
        reach += match block.size {
            Size::Exact(size) => u64::from(size),
            // Long runs of one byte make the largest blocks; others are a quarter on the average.
            Size::AtMost(bound) if repeats => u64::from(bound),
            Size::AtMost(bound) => u64::from(bound) * 3 / 8,
        };
    }
    reach + reach / OLD_SURPLUS
}

/// Scans the first `reach` bytes of a target.
fn find_old(target: &Target, reach: u64, index: &Index, progress: &(dyn Fn(u64) + Sync)) -> Old {
    if index.chunker().max_size() > MAX_BLOCK_SIZE {
        return Old::default();
    }
    let algorithm = index.algorithm();
    let max_size = u64::from(index.chunker().max_size());
    let most = index.size_bounds().1;
    let most = (most + most / OLD_SURPLUS).min(target.old_size());
    let mut found: Vec<Found<u32>> = Vec::new();
    let (mut from, mut to) = (0, reach);
    loop {
        let scan = Scan {
            read_at: &|buffer, offset| target.read_medium(buffer, from + offset),
            size: to - from,
            chunker: index.chunker(),
            progress: if from == 0 { progress } else { &|_| {} },
        };
        let (more, error) = scan.run(&|bytes| index.find(&algorithm.digest(bytes)));
        found.extend(more.into_iter().map(|block| Found {
            offset: from + block.offset,
            ..block
        }));
        if let Some(error) = error {
            log::warn!(
                "target {} cannot be read everywhere: {error}; using what could be read",
                target.path().display()
            );
            break;
        }
        let Some(last) = found.last() else { break };
        let end = last.offset + u64::from(last.size);
        if to >= most || end + 2 * max_size < to {
            break;
        }
        // Still as the payload: it is larger than guessed. A border is where to go on.
        (from, to) = (end, most.min(to + (to / 2).max(4 * max_size)));
    }
    for last in find_last(target, &found, index) {
        // Behind the image may stand what goes on like one of its blocks.
        let end = last.offset + u64::from(last.size);
        found.retain(|b| b.offset >= end || b.offset + u64::from(b.size) <= last.offset);
        found.push(last);
    }
    let old = Old::new(found);
    log::info!(
        "target {} has places={} blocks={}",
        target.path().display(),
        old.len(),
        index.len()
    );
    old
}

/// The last block of a payload, where other bytes follow it: there a scan does not cut.
fn find_last(target: &Target, found: &[Found<u32>], index: &Index) -> Vec<Found<u32>> {
    let block = |number: u32| index.block(number.checked_sub(1)?);
    let Some(last) = u32::try_from(index.len()).ok().and_then(block) else {
        return Vec::new();
    };
    let mut sizes = vec![None; index.len()];
    for block in found {
        if let Some(size) = sizes.get_mut(block.kept as usize) {
            *size = Some(block.size);
        }
    }
    let size = |block: Block| match block.size {
        Size::Exact(size) => Some(u64::from(size)),
        Size::AtMost(_) => sizes
            .get(block.first as usize)
            .copied()
            .flatten()
            .map(u64::from),
    };
    let before = || index.blocks().take(last.number as usize);
    if let Some(place) = before().map(size).sum::<Option<u64>>() {
        // It is known where it has to be; if it is all that is missing, it is worth a closer look.
        let there = |block: Block| sizes.get(block.first as usize).copied().flatten().is_some();
        let step = if before().all(there) { 1 } else { LIKELY_STEP };
        let found = last_at(target, place, &last, LIKELY_STEP);
        return Vec::from_iter(found.or_else(|| last_at(target, place, &last, step)));
    }
    let before = block(last.number).map(|before| before.first);
    let ends = found
        .iter()
        .rev()
        .filter(|block| Some(block.kept) == before);
    ends.map(|block| block.offset + u64::from(block.size))
        .filter(|end| {
            found
                .binary_search_by_key(end, |block| block.offset)
                .is_err()
        })
        .take(MAX_LAST_PLACES)
        .filter_map(|at| last_at(target, at, &last, LIKELY_STEP))
        .collect()
}

/// The last block at `offset`, tried at sizes that end at a multiple of `step` on the target.
fn last_at(target: &Target, offset: u64, last: &Block, step: usize) -> Option<Found<u32>> {
    let room = target.old_size().checked_sub(offset)?;
    let size = u64::from(last.size.bound()).min(room);
    let mut bytes = vec![0; usize::try_from(size).ok()?];
    target.read_medium(&mut bytes, offset).ok()?;
    let found = |size: usize| {
        Some(Found {
            offset,
            size: u32::try_from(size).ok()?,
            kept: last.first,
        })
    };
    if let Size::Exact(size) = last.size {
        let right = bytes.len() == size as usize && last.digest.verify(&bytes).is_ok();
        return right.then(|| found(bytes.len())).flatten();
    }
    if step == 1 && bytes.len() > MAX_LAST_SIZE {
        return None;
    }
    let mut hasher = Hasher::new(last.digest.algorithm());
    let first = step - usize::try_from(offset % step as u64).ok()?;
    let mut done = 0;
    let ends = (first..bytes.len()).step_by(step).chain([bytes.len()]);
    for end in ends {
        hasher.update(bytes.get(done..end)?);
        done = end;
        if hasher.clone().finish() == last.digest {
            return found(end);
        }
    }
    None
}

/// Reads a block index file, if it is one that fits the payload.
fn prepared(path: &Path, index: &Index) -> Option<BlockIndex> {
    let read = || -> io::Result<Vec<u8>> {
        if !fs::metadata(path)?.is_file() {
            return Err(io::Error::other("it is no file"));
        }
        let mut bytes = Vec::new();
        File::open(path)?
            .take(MAX_INDEX_FILE + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let parsed = match read() {
        Ok(bytes) if bytes.len() as u64 > MAX_INDEX_FILE => Err("it is too large".to_owned()),
        Ok(bytes) => rugix::parse_block_index(&bytes).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match parsed {
        Ok(prepared)
            if prepared.chunker == index.chunker() && prepared.algorithm == index.algorithm() =>
        {
            Some(prepared)
        }
        Ok(prepared) => {
            log::warn!(
                "block index {} was made with {} and {}, the bundle with {} and {}: scanning its seed instead",
                path.display(),
                prepared.chunker,
                prepared.algorithm,
                index.chunker(),
                index.algorithm()
            );
            None
        }
        Err(reason) => {
            log::warn!(
                "block index {} cannot be used: {reason}; scanning its seed instead",
                path.display()
            );
            None
        }
    }
}

fn add_prepared(have: &mut Have, number: u16, seed: &Seed, prepared: &BlockIndex, index: &Index) {
    for (digest, offset, size) in prepared.blocks() {
        let inside = offset + u64::from(size) <= seed.size
            && size <= MAX_BLOCK_SIZE
            && seed.lasts(offset, size);
        if let Some(block) = index.find(&digest).filter(|_| inside) {
            have.add(
                block,
                Place {
                    seed: number,
                    offset,
                    size,
                },
            );
        }
    }
}

fn add_scanned(
    have: &mut Have,
    number: u16,
    seed: &Seed,
    index: &Index,
    progress: &(dyn Fn(u64) + Sync),
) {
    if index.chunker().max_size() > MAX_BLOCK_SIZE {
        log::warn!(
            "seed {} is left out: blocks of {} are too large to scan for",
            seed.path().display(),
            index.chunker()
        );
        return;
    }
    let algorithm = index.algorithm();
    let scan = Scan {
        read_at: &|buffer, offset| seed.file.read_exact_at(buffer, offset),
        size: seed.size,
        chunker: index.chunker(),
        progress,
    };
    // A large one may have a block in millions of places, of which one is enough.
    let mut take = |block: Found<u32>| {
        if seed.lasts(block.offset, block.size) {
            let place = Place {
                seed: number,
                offset: block.offset,
                size: block.size,
            };
            have.add(block.kept, place);
        }
    };
    let error = scan.each(&|bytes| index.find(&algorithm.digest(bytes)), &mut take);
    if let Some(error) = error {
        log::warn!(
            "seed {} cannot be read everywhere: {error}; using what could be read",
            seed.path().display()
        );
    }
}
