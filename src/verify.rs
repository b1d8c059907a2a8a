//! `reflash verify`: compares targets with the index of a bundle, and changes nothing.
//!
//! The target is read from the medium as far as the kernel can be told to, and each block's bytes
//! are compared by its digest. Where a block ends is not known in advance if it is compressed and
//! cut by content: the chunker tells, for a block that is there. Where it does not, the block is
//! fetched, which says how large it is; so a target that differs in a few places costs a few
//! blocks of download, and one that is right only the index.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::bundle::{Block, Entry, Index, Size};
use crate::device::Target;
use crate::error::{Error, Result, Subject};
use crate::http::Counters;
use crate::install::{destinations, Targets};
use crate::open::{self, Opened, Trust};
use crate::readback;
use crate::remote::{Access, Cursor, Location};
use crate::report::{
    BundleReport, ComparedReport, Failed, HttpReport, Phase, Reporter, VerifyReport, SCHEMA,
};

/// Blocks that are fetched to learn how large they are. A target that differs in more is another
/// image.
const MAX_FETCHED: usize = 64;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bundle.
    pub bundle: Location,
    /// How to get at it.
    pub access: Access,
    /// What it must prove.
    pub trust: Trust,
    /// What to compare with its payloads.
    pub targets: Targets,
}

/// Compares, and changes nothing. The report tells what was found; an error of class target says that
/// something differs. `reporter` is told of the start and of phases; the end is what is returned, and no
/// event.
pub fn verify(
    options: &Options,
    reporter: &Reporter,
) -> Result<VerifyReport, Box<Failed<VerifyReport>>> {
    reporter.start(&options.bundle.shown(), false);
    let counters = reporter.counters();
    let start = Instant::now();
    let mut bundle = BundleReport::default();
    let mut compared = Vec::new();
    let result = compare_all(options, reporter, &counters, &mut bundle, &mut compared);
    let report = VerifyReport {
        schema: SCHEMA,
        result: match &result {
            Ok(()) => "same",
            Err(Error::Differs { .. }) => "differs",
            Err(_) => "failed",
        },
        exit: result
            .as_ref()
            .map_or_else(|e| e.class().exit_code(), |()| 0),
        error: result.as_ref().err().map(ToString::to_string),
        bundle,
        targets: compared,
        bytes_fetched: counters.bytes(),
        http: HttpReport::of(&counters),
        seconds: start.elapsed().as_secs_f64(),
    };
    Failed::unless(result, report)
}

fn compare_all(
    options: &Options,
    reporter: &Reporter,
    counters: &Arc<Counters>,
    bundle: &mut BundleReport,
    compared: &mut Vec<ComparedReport>,
) -> Result<()> {
    options.targets.check("--slot")?;
    let paths = options.targets.paths().into_iter();
    let targets = paths
        .map(Target::open_to_read)
        .collect::<Result<Vec<_>>>()?;
    reporter.phase(Phase::Open);
    let cursor = Cursor::open(&options.bundle, &options.access, counters)?;
    let mut opening = open::open(cursor, &options.trust)?;
    bundle.size = opening.cursor().size();
    bundle.hash = Some(opening.header().hash.to_string());
    let destinations = destinations(opening.header(), &options.targets)?;
    let entries = opening.header().entries.clone();
    let mut differs = None;
    for (entry, destination) in entries.iter().zip(destinations) {
        let Some(opened) = opening.next_payload()? else {
            return Err(Error::Internal("a payload is lost"));
        };
        let Some(target) = targets.get(destination) else {
            return Err(Error::Internal("a target is lost"));
        };
        reporter.phase(Phase::Verify);
        target.forget_cache()?;
        let found = compare(&opened, entry, target, opening.cursor())?;
        if !found.regions.is_empty() {
            differs.get_or_insert(Error::Differs {
                path: target.named(),
                regions: found.regions.clone(),
                written: false,
            });
        }
        compared.push(ComparedReport {
            slot: entry.delivery.slot().unwrap_or_default().to_owned(),
            target: target.path().display().to_string(),
            size: found.size,
            digest: entry.digest.to_string(),
            blocks: opened.payload.index.as_ref().map_or(0, Index::len) as u64,
            differing: found.differing,
            complete: found.complete,
            regions: found.regions,
        });
    }
    differs.map_or(Ok(()), Err)
}

/// What a comparison found.
#[derive(Default)]
struct Found {
    /// Plain bytes that were compared.
    size: u64,
    /// Blocks that are not there.
    differing: u64,
    /// Where, neighbours as one.
    regions: Vec<Range<u64>>,
    /// All of the payload was looked at.
    complete: bool,
}

impl Found {
    fn note(&mut self, range: Range<u64>) {
        self.differing += 1;
        match self.regions.last_mut() {
            Some(region) if region.end == range.start => region.end = range.end,
            _ => self.regions.push(range),
        }
    }
}

fn compare(opened: &Opened, entry: &Entry, target: &Target, cursor: &mut Cursor) -> Result<Found> {
    let payload = &opened.payload;
    let mut found = Found::default();
    let Some(index) = &payload.index else {
        found.size = payload.data.end - payload.data.start;
        found.complete = true;
        if readback::digest_of(target, found.size, &entry.digest) != Some(entry.digest) {
            found.note(0..found.size);
        }
        check_end(target, &mut found);
        return Ok(found);
    };
    let mut sizes: Vec<u32> = Vec::with_capacity(index.len());
    let mut fetched = 0;
    for block in index.blocks() {
        let at = found.size;
        let known = match (block.size, sizes.get(block.first as usize)) {
            (Size::Exact(size), _) => Some(size),
            (Size::AtMost(_), size) => size.copied(),
        };
        let bytes = read_up_to(target, at, known.unwrap_or(block.size.bound()));
        let (size, same) = match known {
            Some(size) => (size, block.digest.verify(&bytes).is_ok()),
            None => match cut(index, &block, &bytes) {
                Some(size) => (size, true),
                None if fetched == MAX_FETCHED => {
                    found.note(at..at + 1);
                    return Ok(found);
                }
                None => {
                    fetched += 1;
                    fetch(index, &block, payload.number, cursor, &bytes)?
                }
            },
        };
        if !same {
            found.note(at..at + u64::from(size));
        }
        sizes.push(size);
        found.size += u64::from(size);
    }
    found.complete = true;
    check_end(target, &mut found);
    Ok(found)
}

/// A file ends with the payload.
fn check_end(target: &Target, found: &mut Found) {
    if !target.is_device() && target.old_size() > found.size {
        found.note(found.size..target.old_size());
    }
}

/// The bytes at `offset`, fewer where the target ends or cannot be read.
fn read_up_to(target: &Target, offset: u64, len: u32) -> Vec<u8> {
    let left = target.old_size().saturating_sub(offset);
    let len = usize::try_from(left).map_or(len as usize, |left| left.min(len as usize));
    let mut bytes = vec![0; len];
    match target.read_medium(&mut bytes, offset) {
        Ok(()) => bytes,
        Err(_) => Vec::new(),
    }
}

/// The size of a block, if it is what the chunker cuts at the start of `bytes`.
fn cut(index: &Index, block: &Block, bytes: &[u8]) -> Option<u32> {
    let size = index.chunker().cutter().cut(bytes);
    let right = block.digest.verify(bytes.get(..size)?).is_ok();
    right.then(|| u32::try_from(size).ok()).flatten()
}

/// The size of a block, from the bundle, and whether `bytes` begin with it.
fn fetch(
    index: &Index,
    block: &Block,
    payload: usize,
    cursor: &mut Cursor,
    bytes: &[u8],
) -> Result<(u32, bool)> {
    let subject = Subject::Block {
        payload,
        block: block.number as usize,
    };
    let range = block
        .stored()
        .ok_or(Error::Internal("a first block is not stored"))?;
    let stored = cursor.take(range)?;
    let plain = readback::unpacked(&stored, block, index, subject)?;
    block
        .digest
        .verify(&plain)
        .map_err(|found| Error::mismatch(subject, &block.digest, &found))?;
    let size = u32::try_from(plain.len()).map_err(|_| Error::Internal("a block is too large"))?;
    Ok((size, bytes.starts_with(&plain)))
}
