//! The LZMA2 chunks of one xz block: looked through, then unpacked. The one file that knows which
//! decoder there is: lzma-rs, or lzma-rust2 with the feature of that name.
//!
//! # What is leant on in lzma-rs 0.3.0
//!
//! - Chunk headers and stored bytes are read with `read_exact` straight from the input; packed
//!   bytes with `read` and `fill_buf` through a `Take` limited to the stated packed size. Should
//!   another version do this differently, the gate refuses good streams; it does not open.
//! - A packed chunk ends in an error unless it made exactly its stated plain size. A match may pass
//!   that size by 272 bytes inside lzma-rs before it notices.
//! - A reset of state with new properties makes all of the decoder's state new. The walk demands
//!   one before the first packed chunk of every xz block, so a decoder can be kept without
//!   `Lzma2Decoder::reset` (which would give back the literal table each time), whatever came
//!   before. After a failure it is made anew all the same.
//! - It does not look whether the range decoder ends a chunk in the state an encoder leaves, and
//!   does not show it. A chunk damaged only there unpacks to the same bytes; other damage is for
//!   the check of the xz block, and in a bundle for the digest of the block.
//! - No input panics it: table indexes are masked or bounded by lc + lp ≤ 4 and pb ≤ 4, distances
//!   are checked against the output, the longest distance fits 32 bits, and each step makes at
//!   least a byte or fails, so it ends.

use std::io::Read;
#[cfg(not(feature = "lzma-rust2"))]
use std::io::{self, BufRead};

#[cfg(not(feature = "lzma-rust2"))]
use lzma_rs::decompress::raw::Lzma2Decoder;

use super::{Refused, Result, ENDS_EARLY};

/// The range decoder starts from five bytes, of which the first is zero.
const RANGE_START: usize = 5;

const DAMAGED: Refused = Refused::Corrupt("packed data does not unpack");
const OTHER_SIZE: Refused = Refused::Corrupt("chunks do not unpack to the size they state");

/// What unpacks LZMA2 chunks: lzma-rs, which is part of the product's shape.
#[cfg(not(feature = "lzma-rust2"))]
#[derive(Debug)]
pub(super) struct Lzma2(Lzma2Decoder);

#[cfg(not(feature = "lzma-rust2"))]
impl Lzma2 {
    pub(super) fn new() -> Self {
        Self(Lzma2Decoder::new())
    }

    /// Appends what `chunks` hold, which a [`Walk`] found in order and to make `size` bytes. All of
    /// the chunks are used, and exactly so much is made, else it is refused.
    pub(super) fn unpack(&mut self, chunks: &[u8], size: usize, plain: &mut Vec<u8>) -> Result<()> {
        let start = plain.len();
        let mut gate = Gate::new(chunks);
        if self.0.decompress(&mut gate, plain).is_err() {
            return Err(gate.refused.unwrap_or(DAMAGED));
        }
        if gate.is_done() && plain.len() - start == size {
            Ok(())
        } else {
            Err(OTHER_SIZE)
        }
    }
}

/// The same by lzma-rust2: a third faster, with state of its own for each stream. It is strict
/// about the ends of chunks, so that it needs no gate; exactly the walked size is read from it.
#[cfg(feature = "lzma-rust2")]
#[derive(Debug)]
pub(super) struct Lzma2;

#[cfg(feature = "lzma-rust2")]
impl Lzma2 {
    pub(super) fn new() -> Self {
        Self
    }

    pub(super) fn unpack(&mut self, chunks: &[u8], size: usize, plain: &mut Vec<u8>) -> Result<()> {
        // All that is made is the window: a larger one is of no use, whatever the stream states.
        let window = u32::try_from(size).map_err(|_| OTHER_SIZE)?;
        let mut reader = lzma_rust2::Lzma2Reader::new(chunks, window, None);
        let start = plain.len();
        plain.resize(start + size, 0);
        let into = plain.get_mut(start..).unwrap_or_default();
        reader.read_exact(into).map_err(|_| DAMAGED)?;
        // The end marker is read with the byte that is not there.
        let ended = matches!(reader.read(&mut [0]), Ok(0));
        if ended && reader.into_inner().is_empty() {
            Ok(())
        } else {
            Err(OTHER_SIZE)
        }
    }
}

/// An LZMA2 chunk as its header states it.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    control: u8,
    /// Bytes read one header field after the other; those of a stored chunk are all such.
    head: usize,
    packed: usize,
    plain: usize,
}

impl Chunk {
    /// Reads the header at the start of `rest`.
    fn parse(rest: &[u8]) -> Result<Self> {
        match *rest {
            [0, ..] => Ok(Self {
                control: 0,
                head: 1,
                packed: 0,
                plain: 0,
            }),
            [control @ 1..=2, high, low, ..] => {
                let plain = usize::from(u16::from_be_bytes([high, low])) + 1;
                Ok(Self {
                    control,
                    head: 3 + plain,
                    packed: 0,
                    plain,
                })
            }
            [control @ 0x80..=0xff, plain_1, plain_0, packed_1, packed_0, ..] => {
                let plain = u32::from_be_bytes([0, control & 0x1f, plain_1, plain_0]);
                let packed = usize::from(u16::from_be_bytes([packed_1, packed_0])) + 1;
                // 21 bits fit any usize of the machines this runs on.
                let plain = usize::try_from(plain).map_err(|_| ENDS_EARLY)? + 1;
                let head = if control >= 0xc0 { 6 } else { 5 };
                Ok(Self {
                    control,
                    head,
                    packed,
                    plain,
                })
            }
            [3..=0x7f, ..] => Err(Refused::Corrupt("invalid chunk")),
            _ => Err(ENDS_EARLY),
        }
    }

    fn resets_dictionary(self) -> bool {
        self.control == 1 || self.control >= 0xe0
    }

    fn is_packed(self) -> bool {
        self.control >= 0x80
    }

    fn has_properties(self) -> bool {
        self.control >= 0xc0
    }
}

/// First step of the bound: the chunk headers of an xz block, without what is between them.
pub(super) struct Walk<'a> {
    pub(super) rest: &'a [u8],
    pub(super) plain: usize,
    /// A dictionary reset has been seen.
    begun: bool,
    /// Properties have been seen since then, and with them a reset of the state.
    ready: bool,
}

impl<'a> Walk<'a> {
    pub(super) fn new(rest: &'a [u8]) -> Self {
        Self {
            rest,
            plain: 0,
            begun: false,
            ready: false,
        }
    }

    /// Steps over a chunk and gives its plain size; `None` at the end marker.
    pub(super) fn next(&mut self) -> Result<Option<usize>> {
        let chunk = Chunk::parse(self.rest)?;
        let (head, rest) = self.rest.split_at_checked(chunk.head).ok_or(ENDS_EARLY)?;
        let (packed, rest) = rest.split_at_checked(chunk.packed).ok_or(ENDS_EARLY)?;
        self.rest = rest;
        if chunk.control == 0 {
            return Ok(None);
        }
        if chunk.resets_dictionary() {
            self.begun = true;
            self.ready = false;
        }
        if !self.begun {
            return Err(Refused::Corrupt(
                "first chunk does not reset the dictionary",
            ));
        }
        if chunk.is_packed() {
            if chunk.has_properties() {
                let properties = *head.last().ok_or(ENDS_EARLY)?;
                if properties >= 9 * 5 * 5 || properties % 9 + properties / 9 % 5 > 4 {
                    return Err(Refused::Corrupt("invalid properties"));
                }
                self.ready = true;
            }
            if !self.ready {
                return Err(Refused::Corrupt("packed chunk without properties"));
            }
            if packed.first() != Some(&0) || packed.len() < RANGE_START {
                return Err(Refused::Corrupt("packed data does not begin as such"));
            }
        }
        let sum = self.plain.checked_add(chunk.plain);
        self.plain = sum.ok_or(Refused::Corrupt("chunks state more than can be counted"))?;
        Ok(Some(chunk.plain))
    }
}

/// Second step of the bound: an input that gives lzma-rs each chunk only where the walk found it.
///
/// `read_exact` is for headers and stored bytes, `read` and `fill_buf` are for packed bytes. A
/// header is given out only when the chunk before it is used up to its last byte.
#[cfg(not(feature = "lzma-rust2"))]
#[derive(Debug)]
struct Gate<'a> {
    /// What `read_exact` may still take of this chunk.
    head: &'a [u8],
    /// What `read` may still take of this chunk; nothing before its head is used up.
    packed: &'a [u8],
    /// How much of `rest` becomes `packed` when the head is used up.
    pending: usize,
    /// The chunks after this one.
    rest: &'a [u8],
    ended: bool,
    refused: Option<Refused>,
}

#[cfg(not(feature = "lzma-rust2"))]
impl<'a> Gate<'a> {
    fn new(chunks: &'a [u8]) -> Self {
        Self {
            head: &[],
            packed: &[],
            pending: 0,
            rest: chunks,
            ended: false,
            refused: None,
        }
    }

    /// The end marker was read, and all there was before it.
    fn is_done(&self) -> bool {
        self.ended && self.head.is_empty() && self.packed.is_empty() && self.rest.is_empty()
    }

    fn open(&mut self) -> Result<()> {
        if self.ended || !self.packed.is_empty() {
            return Err(Refused::Corrupt("chunk does not use up its packed data"));
        }
        let chunk = Chunk::parse(self.rest)?;
        (self.head, self.rest) = self.rest.split_at_checked(chunk.head).ok_or(ENDS_EARLY)?;
        self.pending = chunk.packed;
        self.ended = chunk.control == 0;
        Ok(())
    }

    fn give(&mut self, buf: &mut [u8]) -> Result<()> {
        if self.head.is_empty() {
            self.open()?;
        }
        let split = self.head.split_at_checked(buf.len());
        let (given, head) = split.ok_or(Refused::Corrupt("chunk is read as another kind"))?;
        buf.copy_from_slice(given);
        self.head = head;
        if head.is_empty() {
            (self.packed, self.rest) =
                self.rest.split_at_checked(self.pending).ok_or(ENDS_EARLY)?;
        }
        Ok(())
    }
}

#[cfg(not(feature = "lzma-rust2"))]
impl Read for Gate<'_> {
    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // The range decoder asks for one byte at a time.
        if let ([into], [byte, rest @ ..]) = (&mut *buf, self.packed) {
            *into = *byte;
            self.packed = rest;
            return Ok(1);
        }
        self.packed.read(buf)
    }

    fn read_exact(&mut self, buf: &mut [u8]) -> io::Result<()> {
        self.give(buf).map_err(|refused| {
            self.refused = Some(refused);
            io::ErrorKind::InvalidData.into()
        })
    }
}

#[cfg(not(feature = "lzma-rust2"))]
impl BufRead for Gate<'_> {
    #[inline]
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        Ok(self.packed)
    }

    fn consume(&mut self, amount: usize) {
        self.packed = self.packed.get(amount..).unwrap_or_default();
    }
}
