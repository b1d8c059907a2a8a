//! Where the bytes of spans come from: workers that fetch them, or one read position in a file or a
//! stream.
//!
//! Either way a block may have been made ahead; the writer does not care.

use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fetch::{Prepare, Workers};
use crate::hash::VerifiedBuf;
use crate::remote::Cursor;
use crate::unpack::{Stored, Unpacker};
use crate::xz::Decoder;

/// Where the bytes of spans come from.
#[derive(Debug)]
pub enum Supply<'a, 'b> {
    /// Workers fetch them ahead, and they may be unpacked ahead too.
    Workers(&'a mut Workers<'b, Stored>, &'a Unpacker<'a>),
    /// They are read one after another.
    Cursor(InOrder<'a>),
}

impl Supply<'_, '_> {
    /// The bytes of span `number`, empty if all of its blocks were made ahead; in ascending order.
    pub fn take(&mut self, number: usize) -> Result<Stored> {
        match self {
            Self::Workers(workers, unpacker) => {
                let span = workers.take(number)?;
                Ok(unpacker.claim(number).unwrap_or(span))
            }
            Self::Cursor(in_order) => in_order.take(number),
        }
    }

    /// Block `number`, if it was made ahead; meanwhile others are, with `decoder`.
    pub(super) fn take_made(&self, number: u32, decoder: &mut Decoder) -> Option<VerifiedBuf> {
        match self {
            Self::Workers(_, unpacker) => unpacker.take(number, decoder),
            Self::Cursor(in_order) => in_order.unpacker.take(number, decoder),
        }
    }

    /// The bytes of a block that no span holds.
    ///
    /// In what comes only in order this never goes backwards: plans for it read through no gaps, so
    /// what was read ends before the block that is being made.
    pub fn take_urgent(&mut self, range: Range<u64>) -> Result<Stored> {
        match self {
            Self::Workers(workers, _) => workers.take_urgent(range),
            Self::Cursor(in_order) => Ok(Arc::new(in_order.cursor.take(range)?)),
        }
    }
}

/// Spans by one read position: when they are needed, or, from a file, as soon as there is room for
/// them, so that they can be unpacked ahead. From what comes in order they might be waited for.
#[derive(Debug)]
pub struct InOrder<'a> {
    cursor: &'a mut Cursor,
    spans: &'a [Range<u64>],
    unpacker: &'a Unpacker<'a>,
    /// Bytes that may be read ahead.
    budget: u64,
    /// Next span to read.
    next: usize,
    /// Bytes of spans that were read and not taken.
    waiting: u64,
}

impl<'a> InOrder<'a> {
    /// At the first of `spans`, of which about `budget` bytes may be in memory.
    pub fn new(
        cursor: &'a mut Cursor,
        spans: &'a [Range<u64>],
        unpacker: &'a Unpacker<'a>,
        budget: u64,
    ) -> Self {
        Self {
            cursor,
            spans,
            unpacker,
            budget,
            next: 0,
            waiting: 0,
        }
    }

    fn take(&mut self, number: usize) -> Result<Stored> {
        let lost = Error::Internal("a step names a span that is not there");
        let range = self.spans.get(number).ok_or(lost)?.clone();
        let size = range.end - range.start;
        let stored = if number < self.next {
            self.waiting -= size;
            self.unpacker.claim(number).unwrap_or_default()
        } else {
            self.next = number + 1;
            Arc::new(self.cursor.take(range)?)
        };
        if self.unpacker.is_of_use() && self.cursor.jumps() {
            self.read_ahead(size);
        }
        Ok(stored)
    }

    /// Hands the unpacker what it may begin with, when the writer has `held` bytes.
    fn read_ahead(&mut self, held: u64) {
        while let Some(range) = self.spans.get(self.next) {
            let size = range.end - range.start;
            if held + self.waiting + size > self.budget {
                return;
            }
            // What cannot be read is read again in its turn, and the error told then.
            let Ok(bytes) = self.cursor.take(range.clone()) else {
                return;
            };
            self.unpacker.prepare(Some(self.next), range, bytes);
            self.waiting += size;
            self.next += 1;
        }
    }
}
