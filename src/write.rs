//! The steps of a plan, carried out in order: bytes from seeds, earlier blocks and spans to
//! verified blocks on the target.
//!
//! Runs on the calling thread. Per block: get the bytes, decompress them if need be, compare the
//! digest, take them into the payload digest, hand them to the target. A block reaches the target
//! only as [`Verified`]. The payload digest is checked by [`Writer::finish`], before the target is
//! sealed.
//!
//! *Each digest once.* The digest of a block is compared where its bytes are made: here, or by the
//! thread that unpacked it, whose proof ([`VerifiedBuf`](crate::hash::VerifiedBuf)) is enough, for
//! nothing can change the bytes in between. What comes from a seed or back from the target is always
//! hashed here. The payload digest holds back nothing but the seal, so it may trail behind the
//! writer on another core ([`Trailing`]); it is taken from the very bytes that go to the target.
//!
//! A seed's block that is not what was claimed is fetched instead, ahead of the spans that wait.
//! When a seed keeps failing, [`Writer::run`] ends early with [`Outcome::Replan`]: one new plan
//! without that seed is cheaper than a round trip for each of its blocks.

use std::ops::Range;

use crate::bundle::{Block, Compression, Entry, Index, Payload};
use crate::device::Target;
use crate::error::{Error, Result, Subject};
use crate::fetch::Workers;
use crate::hash::{Digest, Trailing, Verified};
use crate::plan::{Plan, Step};
use crate::remote::Cursor;
use crate::report::{Counts, Reporter};
use crate::seed::{Place, Seed};
use crate::unpack::{Span, Unpacker};
use crate::xz;

/// Where the bytes of spans come from.
#[derive(Debug)]
pub enum Supply<'a, 'b, 's> {
    /// Workers fetch them ahead, and they may be unpacked ahead too.
    Workers(&'a mut Workers<'b, Span<'s>>, &'a Unpacker<'a, 's>),
    /// They are read when they are needed: from a file, or from what comes only in order.
    Cursor(&'a mut Cursor, &'a [Range<u64>]),
}

impl<'s> Supply<'_, '_, 's> {
    /// Span `number`; in ascending order.
    pub fn take(&mut self, number: usize) -> Result<Span<'s>> {
        match self {
            Self::Workers(workers, unpacker) => {
                let span = workers.take(number)?;
                Ok(unpacker.claim(number).unwrap_or(span))
            }
            Self::Cursor(cursor, spans) => match spans.get(number) {
                Some(span) => cursor.take(span.clone()).map(Span::new),
                None => Err(Error::Internal("a step names a span that is not there")),
            },
        }
    }

    /// The bytes of a block that no span holds.
    ///
    /// With a cursor this never goes backwards: plans for it read through no gaps, so what was
    /// read ends before the block that is being made.
    fn take_urgent(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        match self {
            Self::Workers(workers, _) => Ok(workers.take_urgent(range)?.stored),
            Self::Cursor(cursor, _) => cursor.take(range),
        }
    }
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All steps are done.
    Done,
    /// A seed was dropped: plan again without it.
    Replan {
        /// The dropped seed.
        without: u16,
        /// The first block that is still to be made.
        from: u32,
    },
}

/// Writes one payload.
#[derive(Debug)]
pub struct Writer<'a> {
    payload: &'a Payload,
    /// Digest of all plain bytes.
    digest: Digest,
    target: &'a mut Target,
    seeds: &'a mut [Seed],
    reporter: &'a Reporter,
    counts: &'a mut Counts,
    /// The payload digest, which is wanted only at the end.
    hasher: Trailing,
    decoder: xz::Decoder,
    /// Where each block begins on the target, as far as they are made.
    offsets: Vec<u64>,
    /// Plain bytes of the present block.
    plain: Vec<u8>,
    /// The span in hand, and its number.
    span: Option<(u32, Span<'a>)>,
}

impl<'a> Writer<'a> {
    /// A writer at the beginning of a payload and of its target.
    pub fn new(
        payload: &'a Payload,
        entry: &Entry,
        target: &'a mut Target,
        seeds: &'a mut [Seed],
        reporter: &'a Reporter,
        counts: &'a mut Counts,
    ) -> Self {
        let blocks = payload.index.as_ref().map_or(0, Index::len);
        Self {
            payload,
            digest: entry.digest,
            target,
            seeds,
            reporter,
            counts,
            hasher: Trailing::new(entry.digest.algorithm()),
            decoder: xz::Decoder::new(),
            offsets: Vec::with_capacity(blocks + 1),
            plain: Vec::new(),
            span: None,
        }
    }

    /// Notes that a new plan brings what is to be received to so many bytes in all.
    pub fn planned(&mut self, bytes: u64) {
        self.counts.bytes_to_fetch = bytes;
    }

    /// Carries out a plan from its first step on.
    ///
    /// `spans` are those of the plan, which `supply` gives the bytes of.
    pub fn run(
        &mut self,
        plan: &Plan,
        spans: &[Range<u64>],
        supply: &mut Supply<'_, '_, 'a>,
    ) -> Result<Outcome> {
        self.span = None;
        let Some(index) = &self.payload.index else {
            return self.run_unindexed(plan.spans.len(), supply);
        };
        for (number, step) in (plan.from..).zip(&plan.steps) {
            let block = index
                .block(number)
                .ok_or(Error::Internal("a step is about no block"))?;
            self.offsets.push(self.target.position());
            match *step {
                Step::Copy(first) => self.copy(&block, first)?,
                Step::Fetch(span) => self.fetch(&block, span, spans, supply)?,
                Step::Seed(place) => {
                    if !self.reuse(&block, place)? {
                        self.fetch_instead(&block, supply)?;
                        let seed = self.seeds.get_mut(usize::from(place.seed));
                        if seed.is_some_and(Seed::failed) {
                            log::warn!("seed {} is dropped: too many of its blocks are not what they should be", self.seed_name(place));
                            return Ok(Outcome::Replan {
                                without: place.seed,
                                from: number + 1,
                            });
                        }
                    }
                }
            }
            self.reporter.install_progress(self.counts);
        }
        Ok(Outcome::Done)
    }

    /// Writes a payload that has no block index, as it comes. The caller has the user's word for it;
    /// the payload digest is compared before the target is sealed, as always.
    fn run_unindexed(&mut self, spans: usize, supply: &mut Supply<'_, '_, 'a>) -> Result<Outcome> {
        for number in 0..spans {
            let span = supply.take(number)?;
            let bytes = &span.stored;
            let data = self.payload.data.end - self.payload.data.start - self.target.position();
            // The last span may go on with the end of the payload.
            let data = usize::try_from(data).map_or(bytes.len(), |data| data.min(bytes.len()));
            self.put(Verified::unchecked(bytes.get(..data).unwrap_or_default()))?;
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
        supply: &mut Supply<'_, '_, 'a>,
    ) -> Result<Vec<u8>> {
        let lost = Error::Internal("the end of the payload was not fetched");
        let Some((number, span)) = spans.len().checked_sub(1).zip(spans.last()) else {
            return Err(lost);
        };
        let bytes = match self.span.take() {
            Some((held, span)) if held as usize == number => span.stored,
            _ => supply.take(number)?.stored,
        };
        offset
            .checked_sub(span.start)
            .and_then(|skip| bytes.get(usize::try_from(skip).ok()?..))
            .map_or(Err(lost), |tail| Ok(tail.to_vec()))
    }

    /// Compares the payload digest once all blocks are made.
    pub fn finish(self) -> Result<()> {
        let found = self.hasher.finish();
        if found == self.digest {
            Ok(())
        } else {
            let subject = Subject::Payload(self.payload.number);
            Err(Error::mismatch(subject, &self.digest, &found))
        }
    }

    /// Makes a repeat from the block on the target, which was verified when it was made; hashed
    /// again, for the medium may lie.
    fn copy(&mut self, block: &Block, first: u32) -> Result<()> {
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
        self.put(verified)?;
        self.plain = plain;
        self.counts.copied += 1;
        Ok(())
    }

    /// Tries to make a block from a seed; false if it is not there.
    fn reuse(&mut self, block: &Block, place: Place) -> Result<bool> {
        let Some(seed) = self.seeds.get(usize::from(place.seed)) else {
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
                self.put(verified)?;
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
        spans: &[Range<u64>],
        supply: &mut Supply<'_, '_, 'a>,
    ) -> Result<()> {
        let lost = Error::Internal("a block lies outside of its span");
        if self.span.as_ref().is_none_or(|(held, _)| *held != number) {
            // Free the old one before the new one is waited for.
            self.span = None;
            self.span = Some((number, supply.take(number as usize)?));
        }
        let (Some(range), Some((_, mut span))) = (spans.get(number as usize), self.span.take())
        else {
            return Err(lost);
        };
        if let Some(plain) = span.take(block.number) {
            self.put(plain.verified())?;
            self.counts.fetched += 1;
            self.span = Some((number, span));
            return Ok(());
        }
        let stored = block
            .stored_at
            .checked_sub(range.start)
            .and_then(|at| usize::try_from(at).ok())
            .and_then(|at| {
                span.stored
                    .get(at..at.checked_add(block.stored_size as usize)?)
            });
        let result = match stored {
            Some(stored) => self.unpack(block, stored),
            None => Err(lost),
        };
        self.span = Some((number, span));
        result
    }

    /// Fetches a block that a seed turned out not to have.
    fn fetch_instead(&mut self, block: &Block, supply: &mut Supply<'_, '_, 'a>) -> Result<()> {
        let range = block
            .stored()
            .ok_or(Error::Internal("a first block is not stored"))?;
        let stored = supply.take_urgent(range)?;
        self.unpack(block, &stored)
    }

    /// Stored bytes to a block on the target.
    fn unpack(&mut self, block: &Block, stored: &[u8]) -> Result<()> {
        let subject = Subject::Block {
            payload: self.payload.number,
            block: block.number as usize,
        };
        let mut buffer = std::mem::take(&mut self.plain);
        let compression = self.payload.index.as_ref().map(Index::compression);
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
        self.put(verified)?;
        self.plain = buffer;
        self.counts.fetched += 1;
        Ok(())
    }

    fn put(&mut self, block: Verified<'_>) -> Result<()> {
        self.hasher.update(block.bytes());
        self.target.append(block)?;
        self.counts.bytes_written += block.bytes().len() as u64;
        Ok(())
    }

    fn seed_name(&self, place: Place) -> String {
        self.seeds
            .get(usize::from(place.seed))
            .map_or_else(String::new, |seed| seed.path().display().to_string())
    }
}
