//! `reflash estimate`: what an update from one image to another would cost, by chunking and link.
//!
//! ```text
//!   old, new ─▶ cut by each chunker ─▶ index of new, blocks of old ─▶ plan ─▶ bytes, requests
//!                                      (as `pack` would write it)            ─▶ seconds on the link
//! ```
//!
//! Bytes and requests are those of [`crate::plan`]: the index is what `pack` would make, blocks of
//! the old image are had, and the plan is that of an install by way of ranges. The blocks that are
//! to be fetched are compressed to find their sizes. Those that are there are not: their place in
//! the bundle only matters for gaps, and is reckoned with the average. What else is taken for
//! granted is told along with the result ([`ASSUMPTIONS`]).

mod chart;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
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
use crate::pack;
use crate::plan::{self, Standing};
use crate::remote::FIRST_READ;
use crate::scan::Found;
use crate::seed::{Have, Place};
use crate::terminal;

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

/// Bytes of the bundle header, and of the heads and fields of a payload header besides its lists.
const HEADS: u64 = 800;

/// What to estimate.
#[derive(Clone, Debug)]
pub struct Options {
    /// What the device holds: an image.
    pub old: PathBuf,
    /// What it is to be updated to, each by itself.
    pub new: Vec<PathBuf>,
    /// How to cut.
    pub chunkers: Vec<Chunker>,
    /// The xz preset, or `None` for blocks that are stored as they are.
    pub compression: Option<u32>,
    /// The link.
    pub link: Link,
    /// Where a chart goes.
    pub svg: Option<PathBuf>,
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
    pub size: u64,
    /// All of it, compressed as one.
    pub full: Cost,
    pub chunkings: Vec<Chunking>,
}

/// One chunking of an [`Update`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Chunking {
    pub chunker: String,
    pub blocks: u64,
    pub blocks_fetched: u64,
    /// Bytes of the headers, which are fetched in any case.
    pub index: u64,
    #[serde(flatten)]
    pub cost: Cost,
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

/// Estimates, and draws the chart if one is asked for.
pub fn estimate(options: &Options) -> Result<Estimate> {
    options
        .chunkers
        .iter()
        .try_for_each(|chunker| check_chunker(*chunker))?;
    let svg = options.svg.as_deref().map(Output::new).transpose()?;
    let old = open(&options.old)?;
    let new = options
        .new
        .iter()
        .map(|path| Ok((path, open(path)?)))
        .collect::<Result<Vec<_>>>()?;
    if let Some(svg) = &svg {
        std::iter::once(&options.old)
            .chain(&options.new)
            .try_for_each(|input| svg.must_not_be(input))?;
    }
    let had = options
        .chunkers
        .iter()
        .map(|chunker| {
            let blocks = old.blocks(*chunker, HASH, &|_| {})?;
            Ok(blocks.iter().map(|block| block.kept).collect())
        })
        .collect::<Result<Vec<HashSet<Digest>>>>()?;
    let updates = new
        .iter()
        .map(|(path, image)| update(path, image, &had, options))
        .collect::<Result<_>>()?;
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
        updates,
        assumptions: ASSUMPTIONS.to_vec(),
    };
    if let Some(svg) = svg {
        let text = chart::svg(&estimate);
        svg.store(|file| file.write_all(text.as_bytes()))?;
    }
    Ok(estimate)
}

/// Algorithm of the digests.
const HASH: HashAlgorithm = HashAlgorithm::Sha512_256;

fn update(
    path: &Path,
    image: &Image,
    had: &[HashSet<Digest>],
    options: &Options,
) -> Result<Update> {
    // One long stream takes one core as long as all the blocks take the others.
    let (full, chunkings) = thread::scope(|scope| {
        let full = thread::Builder::new().spawn_scoped(scope, || full_size(image, options));
        let chunkings = options
            .chunkers
            .iter()
            .zip(had)
            .map(|(chunker, had)| chunking(image, *chunker, had, options))
            .collect::<Result<Vec<_>>>();
        let full = match full {
            Ok(running) => running
                .join()
                .map_err(|_| Error::Internal("compressing does not panic"))?,
            Err(_) => full_size(image, options),
        };
        Ok((full?, chunkings?))
    })?;
    image.check_size()?;
    Ok(Update {
        new: path.display().to_string(),
        size: image.size(),
        full: Cost::new(&options.link, full, 1),
        chunkings,
    })
}

/// Bytes of the whole image as one download.
fn full_size(image: &Image, options: &Options) -> Result<u64> {
    match options.compression {
        None => Ok(image.size()),
        Some(level) => pack::compressed_size(image, level),
    }
}

fn chunking(
    image: &Image,
    chunker: Chunker,
    had: &HashSet<Digest>,
    options: &Options,
) -> Result<Chunking> {
    let blocks = image.blocks(chunker, HASH, &|_| {})?;
    let sizes = stored_sizes(image, &blocks, had, options.compression)?;
    let digests: Vec<u8> = blocks
        .iter()
        .flat_map(|b| b.kept.as_bytes().to_vec())
        .collect();
    let listed: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
    let header = HEADS + list_size(&digests, options)? + list_size(&listed, options)?;
    let stored: u64 = sizes.iter().map(|size| u64::from(*size)).sum();
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
        header..header + stored,
        0,
    )?;
    let mut have = Have::nothing(&index);
    for (number, block) in (0..).zip(&blocks).filter(|(_, b)| had.contains(&b.kept)) {
        // Which seed and where is all the same to a plan.
        let place = Place {
            seed: 0,
            offset: 0,
            size: block.size,
        };
        have.add(number, place);
    }
    let shape = install::shape(install::MEMORY, options.link.workers, true, true);
    // Nothing of it stands on the target: that is written anew.
    let (old, survival) = (Old::default(), Survival::new(0));
    let plan = plan::plan(&index, &have, &Standing::start(&old, &survival), &shape);
    // What comes with the headers need not be asked for again.
    let opening = header.max(FIRST_READ.min(header + stored));
    let behind = plan.spans.iter().filter(|span| span.end > opening).count();
    // The end of the bundle is looked at too, unless nothing is fetched.
    let ends = plan
        .spans
        .last()
        .is_some_and(|last| last.end < header + stored);
    let requests = 1 + u64::from(header > FIRST_READ) + behind as u64 + u64::from(ends);
    Ok(Chunking {
        chunker: chunker.to_string(),
        blocks: blocks.len() as u64,
        blocks_fetched: plan.fetched,
        index: header,
        cost: Cost::new(
            &options.link,
            opening + plan.bytes_behind(opening),
            requests,
        ),
    })
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

/// The stored size of each block that is stored, in order: measured for blocks that are to be
/// fetched, on all cores, and reckoned for the others.
fn stored_sizes(
    image: &Image,
    blocks: &[Found<Digest>],
    had: &HashSet<Digest>,
    compression: Option<u32>,
) -> Result<Vec<u32>> {
    let mut seen = HashSet::new();
    let stored: Vec<&Found<Digest>> = blocks.iter().filter(|b| seen.insert(b.kept)).collect();
    let Some(level) = compression else {
        return Ok(stored.iter().map(|block| block.size).collect());
    };
    let missing: Vec<_> = stored.iter().filter(|b| !had.contains(&b.kept)).collect();
    let next = AtomicUsize::new(0);
    let measured = Mutex::new(Ok(HashMap::new()));
    let work = || {
        while let Some(block) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
            let size = image.read(block).and_then(|plain| {
                let stored = pack::compress(&plain, level).map_err(|source| image.fail(source))?;
                u32::try_from(stored.len()).map_err(|_| Error::Internal("blocks are small"))
            });
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
    let plain: u64 = missing.iter().map(|block| u64::from(block.size)).sum();
    let packed: u64 = measured.values().map(|size| u64::from(*size)).sum();
    let reckoned = |size: u32| {
        let share = u64::from(size) * packed.max(1) / plain.max(1);
        u32::try_from(share.clamp(1, u64::from(size))).unwrap_or(size)
    };
    Ok(stored
        .iter()
        .map(|block| {
            let size = measured.get(&block.kept).copied();
            size.unwrap_or_else(|| reckoned(block.size))
        })
        .collect())
}

/// A table for people.
impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for update in &self.updates {
            writeln!(
                f,
                "{} to {} ({})",
                self.old,
                update.new,
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
                row(f, &chunking.chunker, &blocks, &chunking.cost)?;
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

/// Opens an image, and refuses what is none.
fn open(path: &Path) -> Result<Image> {
    Image::open(path)
}
