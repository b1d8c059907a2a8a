//! What comes behind the writing of an install: reading back, mending, storing block indexes.
//!
//! A target that does not give back what was written, twice, is left without its beginning. Block
//! indexes are stored last: the targets are what counts, and an index that cannot be stored costs the
//! next update a scan.

use super::shares::STORED_SHARE;
use super::{Run, Source, Targets, Written};
use crate::device::Target;
use crate::error::{Error, Result};
use crate::plan::Plan;
use crate::readback::{self, Sources};
use crate::report::Phase;
use crate::seed;
use crate::unpack::{Ahead, Unpacker};

impl Run<'_> {
    /// Reads back what was written last.
    pub(super) fn check_beginning(&self, written: &Written, target: &mut Target) -> Result<()> {
        let size = target.position();
        let beginning = 0..target.unsealed();
        let mut again = false;
        loop {
            target.forget_cache()?;
            let regions = match &written.payload.index {
                Some(index) => {
                    let offsets = &written.offsets;
                    let wrong = readback::wrong_blocks(target, index, offsets, &beginning, &|_| {});
                    readback::regions(offsets, &wrong)
                }
                None if readback::digest_of(target, size, &written.digest)
                    == Some(written.digest) =>
                {
                    Vec::new()
                }
                // Where is not known, and what is in memory is only the beginning.
                None => std::iter::once(0..size).collect(),
            };
            if regions.is_empty() {
                return Ok(());
            }
            let error = Error::Differs {
                path: target.named(),
                regions,
                written: true,
            };
            if again || written.payload.index.is_none() {
                target.unseal()?;
                return Err(error);
            }
            log::warn!("{error}: writing it again");
            again = true;
            target.seal()?;
        }
    }

    /// Stores the block indexes that the user wants. The targets are what counts: what cannot be
    /// stored is a warning.
    pub(super) fn store_indexes(&self) {
        for written in &self.written {
            let path = match &self.options.write_index {
                Some(Targets::One(path)) => Some(path),
                Some(Targets::Slots(slots)) => {
                    let slot = self.payloads.get(written.payload.number).map(|p| &p.slot);
                    let found = slots.iter().find(|(name, _)| Some(name) == slot);
                    found.map(|(_, path)| path)
                }
                None => None,
            };
            let Some(path) = path else { continue };
            let stored = match &written.payload.index {
                Some(index) => seed::store_index(path, index, &written.offsets),
                None => {
                    log::warn!(
                        "{} is not written: the payload has no blocks",
                        path.display()
                    );
                    continue;
                }
            };
            if let Err(error) = stored {
                log::warn!("{error}");
            }
        }
    }

    /// Compares a target with its payload, but for what is held back, and mends it once.
    pub(super) fn read_back(
        &self,
        sources: &Sources<'_>,
        target: &mut Target,
        offsets: &[u64],
        source: &mut Source<'_>,
    ) -> Result<()> {
        self.reporter.phase(Phase::Verify);
        let mut wrong = self.compare(sources, target, offsets)?;
        if wrong.is_empty() {
            return Ok(());
        }
        let error = |target: &Target, wrong: &[u32]| Error::Differs {
            path: target.named(),
            regions: readback::regions(offsets, wrong),
            written: true,
        };
        log::warn!(
            "{} blocks are not on the target as they were written, writing them again: {}",
            wrong.len(),
            error(target, &wrong)
        );
        // If all seemed to stand there already, nothing was held back so far.
        target.wipe()?;
        let sealed_later = |block: &u32| {
            let place = offsets.get(*block as usize);
            place.is_some_and(|offset| *offset < target.unsealed())
        };
        wrong.retain(|block| !sealed_later(block));
        if !wrong.is_empty() {
            if !source.goes_back() {
                return Err(error(target, &wrong));
            }
            let (ahead, none) = (Ahead::new(0, false), Plan::default());
            let unpacker = Unpacker::new(None, &none, &[], ahead);
            let budget = self.options.memory / STORED_SHARE;
            source.supply(&[], (0, &[]), &unpacker, budget, |supply| {
                sources.mend(target, offsets, &wrong, supply)
            })?;
        }
        let wrong = self.compare(sources, target, offsets)?;
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(error(target, &wrong))
        }
    }

    /// The blocks that the medium does not give back, but for those held back.
    fn compare(&self, sources: &Sources<'_>, target: &Target, offsets: &[u64]) -> Result<Vec<u32>> {
        target.forget_cache()?;
        let within = target.unsealed()..target.position();
        let progress = |done: u64| {
            let read = done.saturating_sub(within.start);
            self.reporter
                .verify_progress(read, within.end - within.start);
        };
        Ok(readback::wrong_blocks(
            target,
            sources.index,
            offsets,
            &within,
            &progress,
        ))
    }
}
