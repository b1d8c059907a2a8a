//! The steps of a plan, carried out in order: bytes from seeds, earlier blocks and spans to
//! verified blocks on the target.
//!
//! Runs on the calling thread. Per block: get the bytes, decompress them if need be, compare the
//! digest, take them into the payload digest, hand them to the target. A block reaches the target
//! only as [`Verified`]. The payload digest is checked by [`Writer::finish`], before the target is
//! sealed.
//!
//! *Each digest once.* The digest of a block is compared where its bytes are made: here, or by the
//! thread that unpacked it or read it from a seed, whose proof ([`VerifiedBuf`]) is enough, for nothing
//! can change the bytes in between. What comes back from the target is always hashed here. The
//! payload digest holds back nothing but the seal, so it may trail behind the writer on another core
//! ([`Trailing`]); it is taken from the very bytes that go to the target.
//!
//! *In place.* A block that stands at its place in the target already is read, verified, and left
//! alone. Other blocks of the target's old content are moved; those whose place is written over
//! before their turn are saved in memory as far as the budget for that allows (`old`), else fetched.
//! What the plan says of positions may be a guess: here they are known.
//!
//! A seed's block that is not what was claimed is fetched instead, ahead of the spans that wait.
//! When a seed keeps failing, [`Writer::run`] ends early with [`Outcome::Without`]: one new plan
//! without that seed is cheaper than a round trip for each of its blocks.

mod supply;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::bundle::{Block, Compression, Index, Payload};
use crate::device::Target;
use crate::error::{Error, Result, Subject};
use crate::hash::{Digest, Trailing, Verified, VerifiedBuf};
use crate::old::{Old, Survival};
use crate::plan::{Plan, Standing, Step};
use crate::report::{Counts, Reporter};
use crate::scan::Found;
use crate::seed::{Place, Seed};
use crate::unpack::Stored;
use crate::xz;

pub use self::supply::{InOrder, Supply};

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Done,
    /// A seed was dropped: plan the rest again without it.
    Without(u16),
    /// Too much of the target's old content is not there any more: plan the rest again.
    Replan,
}

/// Blocks of the old content that turn out to be gone and are fetched one by one, a round trip each,
/// before the rest is planned again.
const MAX_GONE: u32 = 4;

/// What is to be written, what there is locally to make it of, and how much memory that may take.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// The payload.
    pub payload: &'a Payload,
    /// The digest of all its plain bytes.
    pub digest: Digest,
    /// What stands on the target.
    pub old: &'a Old,
    /// The seeds that the plan names.
    pub seeds: &'a [Seed],
    /// Bytes of the old content that may be saved before they are written over.
    pub saved: u64,
    /// Bytes that may wait for the payload digest.
    pub trailing: u64,
}

/// Writes one payload.
#[derive(Debug)]
pub struct Writer<'a> {
    parts: Parts<'a>,
    target: &'a mut Target,
    reporter: &'a Reporter,
    counts: &'a mut Counts,
    /// The payload digest, which is wanted only at the end.
    hasher: Trailing,
    decoder: xz::Decoder,
    /// What is still there of the target's old content.
    survival: Survival,
    /// What of it was saved before its place was written over.
    saved: HashMap<u32, VerifiedBuf>,
    /// Blocks of it that the present plan counts on and that were gone.
    gone: u32,
    /// Plans that were given up because too many were gone.
    wrong_plans: u32,
    /// Where each block begins on the target, as far as they are made, and where the next one goes.
    offsets: Vec<u64>,
    /// Plain bytes of the present block.
    plain: Vec<u8>,
    /// The span in hand: its number, and its bytes.
    span: Option<(u32, Stored)>,
}

impl<'a> Writer<'a> {
    /// A writer at the beginning of a payload and of its target.
    pub fn new(
        parts: Parts<'a>,
        target: &'a mut Target,
        reporter: &'a Reporter,
        counts: &'a mut Counts,
    ) -> Self {
        let blocks = parts.payload.index.as_ref().map_or(0, Index::len);
        let mut offsets = Vec::with_capacity(blocks + 1);
        offsets.push(0);
        Self {
            parts,
            target,
            reporter,
            counts,
            hasher: Trailing::new(parts.digest.algorithm(), parts.trailing),
            decoder: xz::Decoder::new(),
            survival: Survival::new(parts.saved),
            saved: HashMap::new(),
            gone: 0,
            wrong_plans: 0,
            offsets,
            plain: Vec::new(),
            span: None,
        }
    }

    /// Notes that a new plan brings what is to be received to so many bytes in all.
    pub fn planned(&mut self, bytes: u64) {
        self.counts.bytes_to_fetch = bytes;
    }

    /// Carries out a plan from its first step on, with the bytes of its spans from `supply`; the last
    /// one may be longer there than in the plan.
    pub fn run(&mut self, plan: &Plan, supply: &mut Supply<'_, '_>) -> Result<Outcome> {
        self.span = None;
        let Some(index) = &self.parts.payload.index else {
            return self.run_unindexed(plan.spans.len(), supply);
        };
        self.gone = 0;
        for (number, step) in (plan.from..).zip(&plan.steps) {
            let block = index
                .block(number)
                .ok_or(Error::Internal("a step is about no block"))?;
            let mut outcome = Outcome::Done;
            match *step {
                Step::Fetch(span) => self.fetch(&block, span, plan, supply)?,
                _ if self.keep(&block)? => {}
                Step::Copy(first) => self.copy(&block, first, plan)?,
                Step::Old(_) => {
                    if !self.take_old(&block, plan)? {
                        if self.gone == MAX_GONE {
                            self.wrong_plans += 1;
                            log::info!("too much of the target's old content is gone: planning the rest again, block={number}");
                            return Ok(Outcome::Replan);
                        }
                        self.gone += 1;
                        self.fetch_instead(&block, plan, supply)?;
                    }
                }
                Step::Seed(place) => {
                    if !self.reuse(&block, place, plan, supply)? {
                        if !self.take_old(&block, plan)? {
                            self.fetch_instead(&block, plan, supply)?;
                        }
                        let seed = self.parts.seeds.get(usize::from(place.seed));
                        if seed.is_some_and(Seed::failed) {
                            log::warn!("seed {} is dropped: too many of its blocks are not what they should be", self.seed_name(place));
                            outcome = Outcome::Without(place.seed);
                        }
                    }
                }
            }
            self.offsets.push(self.target.position());
            self.reporter.install_progress(self.counts);
            if outcome != Outcome::Done {
                return Ok(outcome);
            }
        }
        Ok(Outcome::Done)
    }

    /// How far the install is.
    pub fn standing(&self) -> Standing<'_> {
        Standing {
            old: self.parts.old,
            survival: &self.survival,
            offsets: &self.offsets,
            wrong: self.wrong_plans,
        }
    }

    /// Writes a payload that has no block index, as it comes. The caller has the user's word for it;
    /// the payload digest is compared before the target is sealed, as always.
    fn run_unindexed(&mut self, spans: usize, supply: &mut Supply<'_, '_>) -> Result<Outcome> {
        for number in 0..spans {
            let span = supply.take(number)?;
            let data = self.parts.payload.data.end
                - self.parts.payload.data.start
                - self.target.position();
            // The last span may go on with the end of the payload.
            let data = usize::try_from(data).map_or(span.len(), |data| data.min(span.len()));
            self.append(Verified::unchecked(span.get(..data).unwrap_or_default()))?;
            self.reporter.install_progress(self.counts);
            self.span = u32::try_from(number).ok().map(|number| (number, span));
        }
        Ok(Outcome::Done)
    }

    /// The bytes from `offset` on of the last span, once all steps are done: what lies behind the
    /// payload's data.
    pub fn take_tail(
        &mut self,
        spans: &[Range<u64>],
        offset: u64,
        supply: &mut Supply<'_, '_>,
    ) -> Result<Vec<u8>> {
        let lost = Error::Internal("the end of the payload was not fetched");
        let Some((number, span)) = spans.len().checked_sub(1).zip(spans.last()) else {
            return Err(lost);
        };
        let bytes = match self.span.take() {
            Some((held, span)) if held as usize == number => span,
            _ => supply.take(number)?,
        };
        offset
            .checked_sub(span.start)
            .and_then(|skip| bytes.get(usize::try_from(skip).ok()?..))
            .map_or(Err(lost), |tail| Ok(tail.to_vec()))
    }

    /// Compares the payload digest once all blocks are made; gives back where each begins.
    pub fn finish(self) -> Result<Vec<u64>> {
        let found = self.hasher.finish();
        if found == self.parts.digest {
            Ok(self.offsets)
        } else {
            let subject = Subject::Payload(self.parts.payload.number);
            Err(Error::mismatch(subject, &self.parts.digest, &found))
        }
    }

    /// Leaves a block alone that stands at its place; false if it does not.
    fn keep(&mut self, block: &Block) -> Result<bool> {
        let at = self.target.position();
        let Some(size) = self.parts.old.stands_at(block.first, at) else {
            return Ok(false);
        };
        self.plain.clear();
        self.plain.resize(size as usize, 0);
        let read = self.target.read_medium(&mut self.plain, at);
        // The medium may fail or lie; then it is written as any other block.
        let Some(verified) = read
            .ok()
            .and_then(|()| block.digest.verify(&self.plain).ok())
        else {
            return Ok(false);
        };
        self.hasher.update(verified.bytes());
        self.target.keep(verified)?;
        // Nothing is written over.
        self.survival
            .advance(self.parts.old, at + u64::from(size), |_| false, |_| false);
        self.saved.remove(&block.number);
        self.survival.release(block.number);
        self.counts.kept += 1;
        self.counts.bytes_kept += u64::from(size);
        Ok(true)
    }

    /// Makes a block from the target's old content, wherever it is by now; false if it is gone.
    fn take_old(&mut self, block: &Block, plan: &Plan) -> Result<bool> {
        let size = if let Some(saved) = self.saved.remove(&block.number) {
            self.survival.release(block.number);
            let verified = saved.verified();
            self.put(verified, block.number, plan)?;
            verified.bytes().len()
        } else {
            let Some(place) = self.survival.place(self.parts.old, block.number) else {
                return Ok(false);
            };
            let mut plain = std::mem::take(&mut self.plain);
            plain.clear();
            plain.resize(place.size as usize, 0);
            let read = self.target.read_medium(&mut plain, place.offset);
            let Some(verified) = read.ok().and_then(|()| block.digest.verify(&plain).ok()) else {
                return Ok(false);
            };
            self.put(verified, block.number, plan)?;
            self.plain = plain;
            place.size as usize
        };
        self.counts.seeded += 1;
        self.counts.bytes_seeded += size as u64;
        Ok(true)
    }

    /// Makes a repeat from the block on the target, which was verified when it was made; hashed
    /// again, for the medium may lie.
    fn copy(&mut self, block: &Block, first: u32, plan: &Plan) -> Result<()> {
        let at = first as usize;
        let (Some(start), Some(end)) = (self.offsets.get(at), self.offsets.get(at + 1)) else {
            return Err(Error::Internal("a block repeats one that was not made"));
        };
        let len = usize::try_from(end - start)
            .map_err(|_| Error::Internal("a block is larger than memory"))?;
        let mut plain = std::mem::take(&mut self.plain);
        self.target.read(*start, len, &mut plain)?;
        let verified = block.digest.verify(&plain).map_err(|_| Error::TargetIo {
            path: self.target.path().to_owned(),
            operation: "read back what was just written to",
            offset: *start,
            source: std::io::Error::other("the bytes are other ones"),
        })?;
        self.put(verified, block.number, plan)?;
        self.plain = plain;
        self.counts.copied += 1;
        Ok(())
    }

    /// Tries to make a block from a seed; false if it is not there.
    fn reuse(
        &mut self,
        block: &Block,
        place: Place,
        plan: &Plan,
        supply: &Supply<'_, '_>,
    ) -> Result<bool> {
        if let Some(plain) = supply.take_made(block.number, &mut self.decoder) {
            self.put(plain.verified(), block.number, plan)?;
            self.counts.seeded += 1;
            self.counts.bytes_seeded += u64::from(place.size);
            return Ok(true);
        }
        let Some(seed) = self.parts.seeds.get(usize::from(place.seed)) else {
            return Ok(false);
        };
        let mut plain = std::mem::take(&mut self.plain);
        let read = seed.read(place, &mut plain);
        let verified = match &read {
            Ok(()) => block
                .digest
                .verify(&plain)
                .map_err(|_| "is not what it should be".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let reused = match verified {
            Ok(verified) => {
                self.put(verified, block.number, plan)?;
                self.counts.seeded += 1;
                self.counts.bytes_seeded += u64::from(place.size);
                true
            }
            Err(reason) => {
                if seed.failures() == 0 {
                    log::warn!(
                        "seed {}, {} bytes at offset {}: {reason}; fetching such blocks instead",
                        self.seed_name(place),
                        place.size,
                        place.offset
                    );
                }
                false
            }
        };
        self.plain = plain;
        Ok(reused)
    }

    fn fetch(
        &mut self,
        block: &Block,
        number: u32,
        plan: &Plan,
        supply: &mut Supply<'_, '_>,
    ) -> Result<()> {
        let lost = Error::Internal("a block lies outside of its span");
        if self.span.as_ref().is_none_or(|(held, _)| *held != number) {
            // Free the old one before the new one is waited for.
            self.span = None;
            self.span = Some((number, supply.take(number as usize)?));
        }
        if let Some(plain) = supply.take_made(block.number, &mut self.decoder) {
            self.put(plain.verified(), block.number, plan)?;
            self.counts.fetched += 1;
            return Ok(());
        }
        let (Some(range), Some((_, span))) = (plan.spans.get(number as usize), &self.span) else {
            return Err(lost);
        };
        let span = Arc::clone(span);
        let stored = block
            .stored_at
            .checked_sub(range.start)
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| span.get(at..at.checked_add(block.stored_size as usize)?));
        self.unpack(block, stored.ok_or(lost)?, plan)
    }

    /// Fetches a block that a seed turned out not to have.
    fn fetch_instead(
        &mut self,
        block: &Block,
        plan: &Plan,
        supply: &mut Supply<'_, '_>,
    ) -> Result<()> {
        let range = block
            .stored()
            .ok_or(Error::Internal("a first block is not stored"))?;
        let stored = supply.take_urgent(range)?;
        self.unpack(block, &stored, plan)
    }

    /// Stored bytes to a block on the target.
    fn unpack(&mut self, block: &Block, stored: &[u8], plan: &Plan) -> Result<()> {
        let subject = Subject::Block {
            payload: self.parts.payload.number,
            block: block.number as usize,
        };
        let mut buffer = std::mem::take(&mut self.plain);
        let compression = self.parts.payload.index.as_ref().map(Index::compression);
        let plain = match compression.unwrap_or(Compression::None) {
            Compression::None => stored,
            Compression::Xz => {
                self.decoder
                    .decompress(stored, block.size.bound() as usize, &mut buffer)
                    .map_err(|refused| Error::Corrupt {
                        subject,
                        range: block.stored().unwrap_or_default(),
                        reason: refused.to_string(),
                    })?;
                &buffer
            }
        };
        let verified = block
            .digest
            .verify(plain)
            .map_err(|found| Error::mismatch(subject, &block.digest, &found))?;
        if !block.size.allows(plain.len()) {
            return Err(Error::Corrupt {
                subject,
                range: block.stored().unwrap_or_default(),
                reason: format!("{} bytes where the chunker makes another size", plain.len()),
            });
        }
        self.put(verified, block.number, plan)?;
        self.plain = buffer;
        self.counts.fetched += 1;
        Ok(())
    }

    /// Writes the bytes of block `number`, once what is needed of those that they replace is saved.
    fn put(&mut self, bytes: Verified<'_>, number: u32, plan: &Plan) -> Result<()> {
        let end = self.target.position() + bytes.bytes().len() as u64;
        let (target, index, saved) = (&*self.target, &self.parts.payload.index, &mut self.saved);
        let wanted = |block: u32| {
            let step = block
                .checked_sub(plan.from)
                .and_then(|at| plan.steps.get(at as usize));
            block > number && matches!(step, Some(Step::Old(_)))
        };
        let save = |place: Found<u32>| {
            let mut plain = vec![0; place.size as usize];
            let read = target.read_medium(&mut plain, place.offset).ok();
            let block = index.as_ref().and_then(|index| index.block(place.kept));
            let verified = read
                .zip(block)
                .and_then(|((), block)| block.digest.verify_owned(plain));
            verified
                .map(|verified| saved.insert(place.kept, verified))
                .is_some()
        };
        self.survival.advance(self.parts.old, end, wanted, save);
        self.append(bytes)
    }

    fn append(&mut self, block: Verified<'_>) -> Result<()> {
        self.hasher.update(block.bytes());
        self.target.append(block)?;
        self.counts.bytes_written += block.bytes().len() as u64;
        Ok(())
    }

    fn seed_name(&self, place: Place) -> String {
        self.parts
            .seeds
            .get(usize::from(place.seed))
            .map_or_else(String::new, |seed| seed.path().display().to_string())
    }
}
