//! What is on a target against the blocks that should be there: comparing, naming, mending.
//!
//! For `install --verify`, after the last sync and with the caches dropped: blocks that the medium
//! does not give back are made again from a seed or the bundle and written once more; what is wrong
//! after that fails the install. Only reads count here, nothing that was in memory before.

use std::ops::Range;

use crate::bundle::{Block, Compression, Index};
use crate::device::Target;
use crate::error::{Error, Result, Subject};
use crate::hash::{Digest, Hasher};
use crate::seed::{Have, Seed};
use crate::write::Supply;
use crate::xz;

/// Bytes read at once where there are no blocks.
const READ_SIZE: usize = 1 << 20;

/// The numbers of the blocks inside of `within` that are not on the target. `offsets` says where
/// each begins, and where the last one ends.
pub(crate) fn wrong_blocks(
    target: &Target,
    index: &Index,
    offsets: &[u64],
    within: &Range<u64>,
    progress: &dyn Fn(u64),
) -> Vec<u32> {
    let mut bytes = Vec::new();
    let mut wrong = Vec::new();
    for (block, range) in index.blocks().zip(ranges(offsets)) {
        if range.start >= within.start && range.end <= within.end {
            progress(range.end);
            if !is_at(target, &block.digest, &range, &mut bytes) {
                wrong.push(block.number);
            }
        }
    }
    wrong
}

fn ranges(offsets: &[u64]) -> impl Iterator<Item = Range<u64>> + '_ {
    offsets.windows(2).filter_map(|pair| match pair {
        [start, end] => Some(*start..*end),
        _ => None,
    })
}

/// Whether the bytes of a place have this digest; unreadable ones have not.
fn is_at(target: &Target, digest: &Digest, range: &Range<u64>, bytes: &mut Vec<u8>) -> bool {
    let Ok(len) = usize::try_from(range.end - range.start) else {
        return false;
    };
    bytes.clear();
    bytes.resize(len, 0);
    target.read_medium(bytes, range.start).is_ok() && digest.verify(bytes).is_ok()
}

/// The digest of the first `size` bytes of a target, if they can be read.
pub(crate) fn digest_of(target: &Target, size: u64, expected: &Digest) -> Option<Digest> {
    let mut hasher = Hasher::new(expected.algorithm());
    let mut bytes = vec![0; READ_SIZE];
    let mut at = 0;
    while at < size {
        let len = usize::try_from(size - at).map_or(READ_SIZE, |left| left.min(READ_SIZE));
        let piece = bytes.get_mut(..len)?;
        target.read_medium(piece, at).ok()?;
        hasher.update(piece);
        at += len as u64;
    }
    Some(hasher.finish())
}

/// The places of blocks, neighbours as one.
pub(crate) fn regions(offsets: &[u64], blocks: &[u32]) -> Vec<Range<u64>> {
    let mut regions: Vec<Range<u64>> = Vec::new();
    for number in blocks {
        let place = offsets.get(*number as usize..).unwrap_or_default();
        if let [start, end, ..] = *place {
            match regions.last_mut() {
                Some(region) if region.end == start => region.end = end,
                _ => regions.push(start..end),
            }
        }
    }
    regions
}

/// Where blocks can be made from once more.
#[derive(Debug)]
pub(crate) struct Sources<'a> {
    /// Number of the payload, for errors.
    pub payload: usize,
    /// Its blocks.
    pub index: &'a Index,
    /// Which of them seeds have.
    pub have: &'a Have,
    /// The seeds.
    pub seeds: &'a [Seed],
}

impl Sources<'_> {
    /// Makes blocks again, from a seed or the bundle, and writes them to their places.
    pub(crate) fn mend(
        &self,
        target: &Target,
        offsets: &[u64],
        blocks: &[u32],
        supply: &mut Supply<'_, '_>,
    ) -> Result<()> {
        for number in blocks {
            let lost = Error::Internal("a block to mend has no place");
            let (Some(block), Some(offset)) =
                (self.index.block(*number), offsets.get(*number as usize))
            else {
                return Err(lost);
            };
            let plain = match self.seeded(&block) {
                Some(plain) => plain,
                None => self.fetched(&block, supply)?,
            };
            let verified = block.digest.verify(&plain).map_err(|found| {
                let subject = self.subject(&block);
                Error::mismatch(subject, &block.digest, &found)
            })?;
            target.rewrite(verified, *offset)?;
        }
        target.sync_medium(0)
    }

    fn subject(&self, block: &Block) -> Subject {
        Subject::Block {
            payload: self.payload,
            block: block.number as usize,
        }
    }

    fn seeded(&self, block: &Block) -> Option<Vec<u8>> {
        let place = self.have.place(block.first)?;
        let mut plain = Vec::new();
        let seed = self.seeds.get(usize::from(place.seed))?;
        seed.read(place, &mut plain).ok()?;
        block.digest.verify(&plain).is_ok().then_some(plain)
    }

    fn fetched(&self, block: &Block, supply: &mut Supply<'_, '_>) -> Result<Vec<u8>> {
        let first = self.index.block(block.first);
        let range = first
            .and_then(|first| first.stored())
            .ok_or(Error::Internal("a first block is not stored"))?;
        let stored = supply.take_urgent(range)?;
        unpacked(&stored, block, self.index, self.subject(block))
    }
}

/// The plain bytes of a stored block, not verified.
pub(crate) fn unpacked(
    stored: &[u8],
    block: &Block,
    index: &Index,
    subject: Subject,
) -> Result<Vec<u8>> {
    match index.compression() {
        Compression::None => Ok(stored.to_vec()),
        Compression::Xz => {
            let mut plain = Vec::new();
            let bound = block.size.bound() as usize;
            xz::Decoder::new()
                .decompress(stored, bound, &mut plain)
                .map_err(|refused| Error::Corrupt {
                    subject,
                    range: block.stored().unwrap_or_default(),
                    reason: refused.to_string(),
                })?;
            Ok(plain)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_region() {
        let offsets = [0, 10, 15, 30, 31];
        assert_eq!(regions(&offsets, &[0, 1, 3]), [0..15, 30..31]);
        assert!(regions(&offsets, &[]).is_empty());
        assert!(regions(&offsets, &[4]).is_empty());
    }
}
