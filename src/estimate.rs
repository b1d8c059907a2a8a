//! `reflash estimate`: what an update from one image to another would cost, by chunking and link.
//!
//! ```text
//!   old, new ─▶ cut by each chunker ─▶ index of new, blocks of old ─▶ plan ─▶ bytes, requests
//!                                      (as `pack` would write it)            ─▶ seconds on the link
//! ```
//!
//! A bundle is unpacked into the images it holds (`source.rs`); besides what other chunkings would do,
//! what it does as it is can be told of it.
//!
//! Bytes and requests are those of [`crate::plan`]: the index is what `pack` would make, blocks of
//! the old image are had, and the plan is that of an install by way of ranges. The blocks that are
//! to be fetched are compressed to find their sizes. Those that are there are not: their place in
//! the bundle only matters for gaps, and is reckoned with the average. What else is taken for
//! granted is told along with the result ([`ASSUMPTIONS`]).

mod chart;
mod source;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use serde::Serialize;

use crate::bundle::{Compression, Encoding, Index};
use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgorithm};
use crate::image::{check_chunker, Image};
use crate::install;
use crate::link::Link;
use crate::old::{Old, Survival};
use crate::output::Output;
use crate::pack::{self, COMPRESS};
use crate::plan::{self, Standing};
use crate::remote::FIRST_READ;
use crate::scan::Found;
use crate::seed::{Have, Place};
use crate::terminal;
use crate::work::{Part, Tell, Work, READ};

use source::{Given, Packed, Source};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// The chunkers that are compared unless others are asked for.
pub const CHUNKERS: [&str; 7] = [
    "casync-8",
    "casync-16",
    "casync-32",
    "casync-64",
    "casync-128",
    "fixed-4",
    "fixed-64",
];

/// What the numbers rest on.
pub const ASSUMPTIONS: [&str; 4] = [
    "the device holds all of the old image, unchanged",
    "bundles are those of reflash pack, deduplicated, with SHA-512/256",
    "the link keeps its rate and round trip: no losses, no TLS; the target is not the slower one",
    "a full download is one xz file of the whole image",
];

/// And those of a bundle that is given.
pub const ASSUMPTION_OF_BUNDLES: &str =
    "a bundle that is given: as packed is the bundle itself, and so is its full download";

/// Bytes of the bundle header, and of the heads and fields of a payload header besides its lists.
const HEADS: u64 = 800;

/// What to estimate.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the device holds: an image, or the bundle that was installed.
    pub old: PathBuf,
    /// What it is to be updated to, each by itself: images or bundles.
    pub new: Vec<PathBuf>,
    /// How to cut.
    pub chunkers: Vec<Chunker>,
    /// The xz preset, or `None` for blocks that are stored as they are.
    pub compression: Option<u32>,
    /// The link.
    pub link: Link,
    /// Where a chart goes.
    pub svg: Option<PathBuf>,
    /// The folder in which bundles are unpacked, to files without a name.
    pub scratch: PathBuf,
}

/// What updates would cost, schema 1.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are the schema's own
pub struct Estimate {
    pub schema: u32,
    pub old: String,
    pub bytes_per_second: Option<u64>,
    pub round_trip: f64,
    pub workers: usize,
    pub compression: String,
    pub updates: Vec<Update>,
    pub assumptions: Vec<&'static str>,
}

/// One update of an [`Estimate`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Update {
    pub new: String,
    /// Of a bundle: the slot that it is for.
    pub slot: Option<String>,
    pub size: u64,
    /// All of it, compressed as one; of a bundle: as it has it.
    pub full: Cost,
    pub chunkings: Vec<Chunking>,
}

/// One chunking of an [`Update`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Chunking {
    pub chunker: String,
    /// It is that of the bundle that was given.
    pub as_packed: bool,
    pub blocks: u64,
    pub blocks_fetched: u64,
    /// Bytes of the headers, which are fetched in any case.
    pub index: u64,
    #[serde(flatten)]
    pub cost: Cost,
}

impl Update {
    fn title(&self, estimate: &Estimate) -> String {
        let title = format!("{} to {}", estimate.old, self.new);
        match &self.slot {
            Some(slot) => format!("{title}, slot {slot}"),
            None => title,
        }
    }
}

impl Chunking {
    fn name(&self) -> &str {
        match self.as_packed {
            true => "as packed",
            false => &self.chunker,
        }
    }
}

/// What a download costs.
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Cost {
    pub bytes: u64,
    pub requests: u64,
    pub seconds: Option<f64>,
}

impl Cost {
    fn new(link: &Link, bytes: u64, requests: u64) -> Self {
        Self {
            bytes,
            requests,
            seconds: link.seconds(bytes, requests),
        }
    }
}

/// Estimates, draws the chart if one is asked for, and tells how far it is.
pub fn estimate(options: &Options, tell: Tell<'_>) -> Result<Estimate> {
    options
        .chunkers
        .iter()
        .try_for_each(|chunker| check_chunker(*chunker))?;
    let svg = options.svg.as_deref().map(Output::new).transpose()?;
    let old = Given::open(&options.old)?;
    let new = options.new.iter().map(|path| Given::open(path));
    let new = new.collect::<Result<Vec<_>>>()?;
    if let Some(svg) = &svg {
        std::iter::once(&options.old)
            .chain(&options.new)
            .try_for_each(|input| svg.must_not_be(input))?;
    }
    let (old, new) = unpack(old, new, options, tell)?;

    let passes = options.chunkers.len() as u64;
    let compress = options.compression.map_or(READ, |_| COMPRESS);
    let (mut bytes, mut cost) = (0, 0);
    for source in &old {
        let all = source.image.size().saturating_mul(passes);
        bytes = u64::saturating_add(bytes, all);
        cost = u64::saturating_add(cost, all.saturating_mul(READ));
    }
    for source in &new {
        let full = u64::from(source.packed.is_none());
        let size = source.image.size();
        let each = passes * (READ + compress) + full * compress;
        bytes = bytes.saturating_add(size.saturating_mul(2 * passes + full));
        cost = cost.saturating_add(size.saturating_mul(each));
    }
    let done = AtomicU64::new(cost / UNPACKING);
    let work = Work::new(tell, &done, cost.saturating_add(cost / UNPACKING));
    let comparing = Comparing {
        options,
        old: &old,
        compress,
        progress: work.part("compare", bytes, READ),
    };
    let had = options.chunkers.iter();
    let had = had.map(|chunker| comparing.had(*chunker, HASH));
    let had = had.collect::<Result<Vec<_>>>()?;
    let updates = new.iter().map(|source| comparing.update(source, &had));
    let mut assumptions = ASSUMPTIONS.to_vec();
    if new.iter().any(|source| source.packed.is_some()) {
        assumptions.push(ASSUMPTION_OF_BUNDLES);
    }
    let estimate = Estimate {
        schema: SCHEMA,
        old: options.old.display().to_string(),
        bytes_per_second: options.link.rate,
        round_trip: options.link.round_trip.as_secs_f64(),
        workers: options.link.workers,
        compression: match options.compression {
            Some(level) => format!("xz:{level}"),
            None => "none".to_owned(),
        },
        updates: updates.collect::<Result<_>>()?,
        assumptions,
    };
    if let Some(svg) = svg {
        let text = chart::svg(&estimate);
        svg.store(|file| file.write_all(text.as_bytes()))?;
    }
    Ok(estimate)
}

/// Unpacks what are bundles. It is a small part of the whole work.
fn unpack(
    old: Given,
    new: Vec<Given>,
    options: &Options,
    tell: Tell<'_>,
) -> Result<(Vec<Source>, Vec<Source>)> {
    let packed = new.iter().map(Given::packed_size).sum::<u64>() + old.packed_size();
    let done = AtomicU64::new(0);
    let work = Work::new(tell, &done, packed * (UNPACKING + 1));
    let progress = work.part("unpack", packed, READ);
    let unpack = |given: Given| given.sources(&options.scratch, &progress);
    let old = unpack(old)?;
    let new = new.into_iter().map(unpack).collect::<Result<Vec<_>>>()?;
    Ok((old, new.into_iter().flatten().collect()))
}

/// All other work is so many times that of unpacking.
const UNPACKING: u64 = 30;

/// Algorithm of the digests.
const HASH: HashAlgorithm = HashAlgorithm::Sha512_256;

/// What is the same for all that an old image is compared with.
#[derive(Debug)]
struct Comparing<'a> {
    options: &'a Options,
    old: &'a [Source],
    /// Cost of a byte that is to be fetched.
    compress: u64,
    progress: Part<'a>,
}

impl Comparing<'_> {
    /// The blocks that the device has.
    fn had(&self, chunker: Chunker, hash: HashAlgorithm) -> Result<HashSet<Digest>> {
        let mut had = HashSet::new();
        for source in self.old {
            let progress = |bytes| self.progress.add(bytes);
            let blocks = source.image.blocks(chunker, hash, &progress)?;
            had.extend(blocks.iter().map(|block| block.kept));
        }
        Ok(had)
    }

    fn update(&self, source: &Source, had: &[HashSet<Digest>]) -> Result<Update> {
        let image = &source.image;
        // One long stream takes one core as long as all the blocks take the others.
        let (full, mut chunkings) = thread::scope(|scope| {
            let full = thread::Builder::new().spawn_scoped(scope, || self.full_size(source));
            let chunkers = self.options.chunkers.iter().zip(had);
            let chunkings = chunkers.map(|(chunker, had)| self.chunking(image, *chunker, had));
            let chunkings = chunkings.collect::<Result<Vec<_>>>();
            let full = match full {
                Ok(running) => running
                    .join()
                    .map_err(|_| Error::Internal("compressing does not panic"))?,
                Err(_) => self.full_size(source),
            };
            Ok((full?, chunkings?))
        })?;
        image.check_size()?;
        if let Some((packed, index)) = source.indexed() {
            chunkings.insert(0, self.as_packed(packed, index, had)?);
        }
        Ok(Update {
            new: source.path.display().to_string(),
            slot: source.packed.as_ref().map(|packed| packed.slot.clone()),
            size: image.size(),
            full: Cost::new(&self.options.link, full, 1),
            chunkings,
        })
    }

    /// Bytes of the whole image as one download.
    fn full_size(&self, source: &Source) -> Result<u64> {
        let image = &source.image;
        match (&source.packed, self.options.compression) {
            (Some(packed), _) => {
                let payload = &packed.payload;
                Ok(payload.header_size + payload.data.end - payload.data.start)
            }
            (None, None) => {
                self.progress.add(image.size());
                Ok(image.size())
            }
            (None, Some(level)) => {
                let progress = |bytes| self.progress.add_at(bytes, self.compress);
                pack::compressed_size(image, level, &progress)
            }
        }
    }

    /// An image as `pack` would cut and store it.
    fn chunking(&self, image: &Image, chunker: Chunker, had: &HashSet<Digest>) -> Result<Chunking> {
        let options = self.options;
        let blocks = image.blocks(chunker, HASH, &|bytes| self.progress.add(bytes))?;
        let sizes = self.stored_sizes(image, &blocks, had)?;
        let digests: Vec<u8> = blocks
            .iter()
            .flat_map(|b| b.kept.as_bytes().to_vec())
            .collect();
        let listed: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
        let header = HEADS + list_size(&digests, options)? + list_size(&listed, options)?;
        let stored: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
        let data = header..header + stored;
        let index = Index::new(
            Encoding {
                chunker,
                algorithm: HASH,
                deduplicated: true,
                compression: match options.compression {
                    Some(_) => Compression::Xz,
                    None => Compression::None,
                },
                digests,
                sizes: Some(listed),
            },
            data.clone(),
            0,
        )?;
        Ok(self.download(&index, header, data, had))
    }

    /// A payload as its bundle has it.
    fn as_packed(
        &self,
        packed: &Packed,
        index: &Index,
        had: &[HashSet<Digest>],
    ) -> Result<Chunking> {
        let (chunker, hash) = (index.chunker(), index.algorithm());
        let mut known = self.options.chunkers.iter().zip(had);
        let known = known.find(|(other, _)| **other == chunker && hash == HASH);
        let found;
        let had = match known {
            Some((_, had)) => had,
            None => {
                found = self.had(chunker, hash)?;
                &found
            }
        };
        let payload = &packed.payload;
        Ok(Chunking {
            as_packed: true,
            ..self.download(index, payload.header_size, payload.data.clone(), had)
        })
    }

    /// What is fetched of a payload with these blocks, if the device has some of them.
    fn download(
        &self,
        index: &Index,
        header: u64,
        data: Range<u64>,
        had: &HashSet<Digest>,
    ) -> Chunking {
        let mut have = Have::nothing(index);
        for block in index.blocks().filter(|block| had.contains(&block.digest)) {
            // Which seed and where is all the same to a plan.
            let place = Place {
                seed: 0,
                offset: 0,
                size: block.size.bound(),
            };
            have.add(block.number, place);
        }
        let link = &self.options.link;
        let shape = install::shape(install::MEMORY, link.workers, true, true);
        // Nothing of it stands on the target: that is written anew.
        let (old, survival) = (Old::default(), Survival::new(0));
        let plan = plan::plan(index, &have, &Standing::start(&old, &survival), &shape);
        // What comes with the headers need not be asked for again.
        let start = data.start - header;
        let opening = data.start.max((start + FIRST_READ).min(data.end));
        let behind = plan.spans.iter().filter(|span| span.end > opening).count();
        // The end of the bundle is looked at too, unless nothing is fetched.
        let ends = plan.spans.last().is_some_and(|last| last.end < data.end);
        let requests = 1 + u64::from(header > FIRST_READ) + behind as u64 + u64::from(ends);
        Chunking {
            chunker: index.chunker().to_string(),
            as_packed: false,
            blocks: index.len() as u64,
            blocks_fetched: plan.fetched,
            index: header,
            cost: Cost::new(link, opening - start + plan.bytes_behind(opening), requests),
        }
    }

    /// The stored size of each block that is stored, in order: measured for blocks that are to be
    /// fetched, on all cores, and reckoned for the others.
    fn stored_sizes(
        &self,
        image: &Image,
        blocks: &[Found<Digest>],
        had: &HashSet<Digest>,
    ) -> Result<Vec<u32>> {
        let mut seen = HashSet::new();
        let stored: Vec<&Found<Digest>> = blocks.iter().filter(|b| seen.insert(b.kept)).collect();
        let Some(level) = self.options.compression else {
            self.progress.add(image.size());
            return Ok(stored.iter().map(|block| block.size).collect());
        };
        let missing: Vec<_> = stored.iter().filter(|b| !had.contains(&b.kept)).collect();
        let plain: u64 = missing.iter().map(|block| u64::from(block.size)).sum();
        self.progress.add_at(image.size() - plain, self.compress);
        let next = AtomicUsize::new(0);
        let measured = Mutex::new(Ok(HashMap::new()));
        let work = || {
            while let Some(block) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                let size = image.read(block).and_then(|plain| {
                    let stored = pack::compress(&plain, level);
                    let stored = stored.map_err(|source| image.fail(source))?;
                    u32::try_from(stored.len()).map_err(|_| Error::Internal("blocks are small"))
                });
                self.progress.add_at(block.size.into(), self.compress);
                let mut measured = measured.lock().unwrap_or_else(PoisonError::into_inner);
                match (size, measured.as_mut()) {
                    (Ok(size), Ok(sizes)) => drop(sizes.insert(block.kept, size)),
                    (Err(error), Ok(_)) => *measured = Err(error),
                    (_, Err(_)) => return,
                }
            }
        };
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        thread::scope(|scope| {
            for _ in 1..cores {
                // Without a thread more, the others do its share.
                drop(thread::Builder::new().spawn_scoped(scope, work));
            }
            work();
        });
        let measured = measured
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner)?;
        let packed: u64 = measured.values().map(|size| u64::from(*size)).sum();
        let reckoned = |size: u32| {
            let share = u128::from(size) * u128::from(packed.max(1)) / u128::from(plain.max(1));
            u32::try_from(share.clamp(1, size.into())).unwrap_or(size)
        };
        Ok(stored
            .iter()
            .map(|block| {
                let size = measured.get(&block.kept).copied();
                size.unwrap_or_else(|| reckoned(block.size))
            })
            .collect())
    }
}

/// Bytes of a list of the header as it is stored.
fn list_size(list: &[u8], options: &Options) -> Result<u64> {
    let Some(level) = options.compression else {
        return Ok(list.len() as u64);
    };
    let stored = pack::compress(list, level);
    let stored = stored.map_err(|_| Error::Internal("a list can be compressed"))?;
    Ok(stored.len() as u64)
}

/// A table for people.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for update in &self.updates {
            writeln!(
                f,
                "{} ({})",
                update.title(self),
                terminal::size(update.size)
            )?;
            writeln!(
                f,
                "{:<14} {:>12} {:>7} {:>9} {:>10} {:>9}",
                "chunks", "download", "of full", "requests", "blocks", "seconds"
            )?;
            let row = |f: &mut fmt::Formatter<'_>, name: &str, blocks: &str, cost: &Cost| {
                let share = 100.0 * cost.bytes as f64 / update.full.bytes.max(1) as f64;
                let seconds = cost.seconds.map_or("-".to_owned(), |s| format!("{s:.1}"));
                writeln!(
                    f,
                    "{name:<14} {:>12} {share:>6.1}% {:>9} {blocks:>10} {seconds:>9}",
                    terminal::size(cost.bytes),
                    cost.requests,
                )
            };
            row(f, "full download", "-", &update.full)?;
            for chunking in &update.chunkings {
                let blocks = format!("{}/{}", chunking.blocks_fetched, chunking.blocks);
                row(f, chunking.name(), &blocks, &chunking.cost)?;
            }
            writeln!(f)?;
        }
        let rate = self.bytes_per_second.map_or("-".to_owned(), terminal::size);
        writeln!(
            f,
            "Link: {rate}/s, {:.0} ms round trip, {} connections. Compression: {}.",
            self.round_trip * 1000.0,
            self.workers,
            self.compression
        )?;
        writeln!(f, "Assumed:")?;
        let mut lines = self.assumptions.iter();
        lines.try_for_each(|line| writeln!(f, "- {line}"))
    }
}
