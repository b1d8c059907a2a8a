//! One complete `.xz` stream to its plain bytes, under a bound that holds before the first byte.
//!
//! ```text
//! stream  = header block* index footer, and then nothing
//! ```
//!
//! | part | bytes |
//! |---|---|
//! | header | `fd 37 7a 58 5a 00`, flags (2: zero, check), CRC32 of the flags |
//! | xz block | size byte (real size is (n + 1) × 4), flags, \[packed size\], \[plain size\], filters, zeros, CRC32 of all that; LZMA2 chunks; zeros up to a multiple of four; check |
//! | index | `00`, number of blocks, per block its unpadded size and its plain size, zeros up to a multiple of four, CRC32 |
//! | footer | CRC32 of the next six, index size / 4 − 1 (4), the header's flags (2), `59 5a` |
//!
//! | LZMA2 chunk | bytes |
//! |---|---|
//! | end | `00` |
//! | stored | `01` (dictionary reset) or `02`, plain size − 1 (2, big-endian), the plain bytes |
//! | packed | `80` + reset × `20` + bits 16–20 of plain size − 1, its low 16 bits (2, big-endian), packed size − 1 (2, big-endian), properties if reset ≥ 2, the packed bytes |
//!
//! Fixed numbers are little-endian, numbers in block headers and index are varints of at most nine
//! bytes in their shortest form. Checks none, CRC32, CRC64, SHA-256; the filter LZMA2 alone.
//!
//! # The bound
//!
//! Remote bytes must not choose memory, and the digest of a block is known only after
//! decompression. A sink that stops at the bound would not help: lzma-rs collects the whole output
//! in a buffer of its own and has no limit. Two steps together are one:
//!
//! 1. *Walk.* Every LZMA2 chunk states its plain size in the clear. They are added up over all xz
//!    blocks, together with every rule of the container, before anything is unpacked; a sum over
//!    the bound is refused there.
//! 2. *Gate.* lzma-rs does not insist that a chunk uses up its packed bytes, it reads the next
//!    chunk header wherever its range decoder stopped. Chunks hidden behind a chunk that is
//!    shorter than it says would be unpacked though the walk never saw them. So lzma-rs reads
//!    through a `Gate`, which hands out chunk headers only where the walk found them.
//!
//! With the feature `lzma-rust2` that decoder takes the place of lzma-rs. It refuses such streams
//! itself, and exactly the walked size is read from it, so that the walk is enough.
//!
//! The stated dictionary size is checked for form and otherwise unused: all output is the window,
//! and a distance beyond the stated size goes unnoticed (the digest of the block decides). What is
//! allocated: `plain` to exactly the walked sum, and in lzma-rs a vector that grows by doubling to
//! less than twice that, at most 64 KiB for a stored chunk, and some 50 KiB of state.
//!
//! # Limits and choices
//!
//! - Exactly one stream. A second one, or stream padding, is legal `.xz` and refused: each stored
//!   block of a bundle is one stream, and concatenation would only be a place to hide bytes.
//! - Several xz blocks in a stream are read, since encoders with threads write them.
//! - Work is linear in stored bytes plus plain bytes; the dearest stored byte is one in packed
//!   chunks of a byte each, which all reset the state (some 30 KiB of tables for eleven bytes).
//!   Memory for structure is constant: nothing is kept per xz block or chunk, they are walked again
//!   instead.

#![deny(clippy::indexing_slicing)]

mod lzma2;

use std::fmt;
use std::sync::LazyLock;

use crc::{Crc, Table};

use self::lzma2::{Lzma2, Walk};

// Bundles use CRC64, and CRC32 only for the few bytes of headers: its table may be small.
static CRC32: Crc<u32, Table<1>> = Crc::<u32, Table<1>>::new(&crc::CRC_32_ISO_HDLC);
// Sixteen columns: one column works through 374 MB/s and would take a tenth of the time. Made when
// first used, in microseconds, and on the heap: else they are 32 KiB of the binary.
static CRC64: LazyLock<Box<Crc<u64, Table<16>>>> =
    LazyLock::new(|| Box::new(Crc::<u64, Table<16>>::new(&crc::CRC_64_XZ)));

const HEADER_MAGIC: &[u8] = b"\xfd7zXZ\0";
const FOOTER_MAGIC: &[u8] = b"YZ";
const FOOTER_SIZE: usize = 12;

const FILTER_LZMA2: u64 = 0x21;
/// Filter numbers from here on are reserved for private use within a program.
const FILTER_RESERVED: u64 = 1 << 62;
/// The largest dictionary property: 4 GiB − 1.
const MAX_DICTIONARY: u8 = 40;

/// The most a packed chunk can state as its plain size: 21 bits.
const MAX_CHUNK: u64 = 1 << 21;
/// The least a packed chunk can take: a header of five bytes, and five to start the range decoder.
const MIN_CHUNK: u64 = 10;
const ENDS_EARLY: Refused = Refused::Corrupt("ends early");
/// Something legal in `.xz` that is not read here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A filter other than LZMA2, or in front of it.
    Filter(u64),
    /// A check that is not none, CRC32, CRC64 or SHA-256.
    Check(u8),
    /// Reserved bits in the stream flags.
    StreamFlags(u8),
    /// Reserved bits in the flags of an xz block.
    BlockFlags(u8),
    /// Bytes other than zero where the header of an xz block is padded.
    BlockHeaderPadding,
    /// Another stream behind the first.
    SecondStream,
    /// Zeros behind the stream.
    StreamPadding,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Filter(id) => write!(f, "filter {id:#x}"),
            Self::Check(id) => write!(f, "check {id:#x}"),
            Self::StreamFlags(bits) => write!(f, "stream flags {bits:#04x}"),
            Self::BlockFlags(bits) => write!(f, "block flags {bits:#04x}"),
            Self::BlockHeaderPadding => f.write_str("block header padding other than zero"),
            Self::SecondStream => f.write_str("a second stream"),
            Self::StreamPadding => f.write_str("stream padding"),
        }
    }
}

/// Why a stream was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Not an `.xz` stream, or damaged, or made to mislead.
    Corrupt(&'static str),
    /// In order as far as can be told, but with something that is not read here.
    Unsupported(Feature),
    /// Unpacks to more than `bound` bytes.
    TooLarge {
        /// The bound that was given.
        bound: usize,
    },
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Corrupt(what) => write!(f, "corrupt xz stream: {what}"),
            Self::Unsupported(feature) => write!(f, "unsupported in an xz stream: {feature}"),
            Self::TooLarge { bound } => write!(f, "xz stream unpacks to more than {bound} bytes"),
        }
    }
}

impl std::error::Error for Refused {}

type Result<T, E = Refused> = std::result::Result<T, E>;

/// A decoder that is kept and used for many streams, one after the other.
#[derive(Debug)]
pub struct Decoder {
    lzma2: Lzma2,
}

impl Default for Decoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Decoder {
    /// A decoder with its tables allocated.
    pub fn new() -> Self {
        Self {
            lzma2: Lzma2::new(),
        }
    }

    /// Decompresses one complete `.xz` stream of at most `bound` plain bytes into `plain`, which is
    /// cleared first and empty after a refusal. Keep it between calls: it is grown, to the plain
    /// size exactly, only when it is too small.
    pub fn decompress(&mut self, stored: &[u8], bound: usize, plain: &mut Vec<u8>) -> Result<()> {
        plain.clear();
        let stream = Stream::walk(stored, bound)?;
        plain.reserve_exact(stream.plain);
        let unpacked = self.unpack(stream.blocks, plain);
        if unpacked.is_err() {
            plain.clear();
            self.lzma2 = Lzma2::new();
        }
        unpacked
    }

    fn unpack(&mut self, mut blocks: Blocks<'_>, plain: &mut Vec<u8>) -> Result<()> {
        while let Some(block) = blocks.next()? {
            let start = plain.len();
            self.lzma2.unpack(block.chunks, block.plain, plain)?;
            let made = plain.get(start..).unwrap_or_default();
            if !blocks.check.matches(made, block.check) {
                return Err(Refused::Corrupt("check does not match the data"));
            }
        }
        Ok(())
    }
}

/// The plain size that a stream states in its index, without decompressing.
///
/// What stands between header and footer is checked only so far: the index is whole, its blocks
/// fill exactly the bytes in front of it, and none says more than its chunks could hold. Good for
/// learning sizes early; [`Decoder::decompress`] believes none of it.
pub fn stated_size(stored: &[u8]) -> Result<u64> {
    let mut front = Cursor { rest: stored };
    let flags = header(&mut front)?;
    Check::of(flags)?;
    let (front, foot) = front
        .rest
        .split_last_chunk::<FOOTER_SIZE>()
        .ok_or(ENDS_EARLY)?;
    let index_size = footer(&mut Cursor { rest: foot }, flags)?;
    let index_size = usize::try_from(index_size).map_err(|_| ENDS_EARLY)?;
    let index_start = front.len().checked_sub(index_size).ok_or(ENDS_EARLY)?;
    let (blocks, rest) = front.split_at_checked(index_start).ok_or(ENDS_EARLY)?;

    let misfit = Refused::Corrupt("index does not fit the stream");
    let (mut unpadded_sum, mut plain_sum) = (0_u64, 0_u64);
    let mut rest = Cursor { rest };
    index(&mut rest, |unpadded, plain| {
        if plain.div_ceil(MAX_CHUNK) > unpadded / MIN_CHUNK {
            return Err(misfit);
        }
        let padded = unpadded.checked_next_multiple_of(4).ok_or(misfit)?;
        unpadded_sum = unpadded_sum.checked_add(padded).ok_or(misfit)?;
        plain_sum = plain_sum.checked_add(plain).ok_or(misfit)?;
        Ok(())
    })?;
    if !rest.rest.is_empty() || unpadded_sum != blocks.len() as u64 {
        return Err(misfit);
    }
    Ok(plain_sum)
}

/// A stream whose container is in order and whose plain size is within the bound.
struct Stream<'a> {
    blocks: Blocks<'a>,
    plain: usize,
}

impl<'a> Stream<'a> {
    fn walk(stored: &'a [u8], bound: usize) -> Result<Self> {
        let mut cursor = Cursor { rest: stored };
        let flags = header(&mut cursor)?;
        let check = Check::of(flags)?;
        let blocks = Blocks {
            cursor,
            check,
            room: bound,
            bound,
        };

        // Where the index begins is known only after the last block. Walking a second time to
        // compare the two costs less than a list whose length the stream would choose.
        let mut last = blocks.clone();
        while last.next()?.is_some() {}
        let mut cursor = last.cursor;
        let index_start = cursor.rest.len();
        let mut again = blocks.clone();
        index(&mut cursor, |unpadded, plain| match again.next()? {
            None => Err(Refused::Corrupt("index has more blocks than the stream")),
            Some(block) if block.unpadded as u64 != unpadded || block.plain as u64 != plain => Err(
                Refused::Corrupt("index states other sizes than the blocks have"),
            ),
            Some(_) => Ok(()),
        })?;
        if again.next()?.is_some() {
            return Err(Refused::Corrupt("index has fewer blocks than the stream"));
        }
        let index_size = index_start - cursor.rest.len();
        if footer(&mut cursor, flags)? != index_size as u64 {
            return Err(Refused::Corrupt("footer states another index size"));
        }
        nothing_after(cursor.rest)?;
        Ok(Self {
            blocks,
            plain: bound - last.room,
        })
    }
}

/// Says of bytes after a stream what they are.
fn nothing_after(rest: &[u8]) -> Result<()> {
    let zeros = rest.iter().take_while(|byte| **byte == 0).count();
    let behind = rest.get(zeros..).unwrap_or_default();
    if rest.is_empty() {
        Ok(())
    } else if behind.starts_with(HEADER_MAGIC) && zeros % 4 == 0 {
        Err(Refused::Unsupported(Feature::SecondStream))
    } else if behind.is_empty() && zeros % 4 == 0 {
        Err(Refused::Unsupported(Feature::StreamPadding))
    } else {
        Err(Refused::Corrupt("bytes after the stream"))
    }
}

/// Reads the stream header; its flags must come again in the footer.
fn header(cursor: &mut Cursor<'_>) -> Result<[u8; 2]> {
    if cursor.take(HEADER_MAGIC.len())? != HEADER_MAGIC {
        return Err(Refused::Corrupt("does not begin as an xz stream"));
    }
    let flags = cursor.array::<2>()?;
    if cursor.u32()? != CRC32.checksum(&flags) {
        return Err(Refused::Corrupt("header check"));
    }
    Ok(flags)
}

/// Reads the stream footer and gives the size of the index.
fn footer(cursor: &mut Cursor<'_>, flags: [u8; 2]) -> Result<u64> {
    let check = cursor.u32()?;
    let sum = CRC32.checksum(cursor.rest.get(..6).ok_or(ENDS_EARLY)?);
    let backward = cursor.u32()?;
    let same = cursor.array::<2>()? == flags;
    if cursor.take(FOOTER_MAGIC.len())? != FOOTER_MAGIC {
        return Err(Refused::Corrupt("does not end as an xz stream"));
    }
    if check != sum {
        return Err(Refused::Corrupt("footer check"));
    }
    if !same {
        return Err(Refused::Corrupt("flags differ between header and footer"));
    }
    Ok((u64::from(backward) + 1) * 4)
}

/// Reads the index and shows each record, unpadded size and plain size, to `each`.
fn index(cursor: &mut Cursor<'_>, mut each: impl FnMut(u64, u64) -> Result<()>) -> Result<()> {
    let whole = cursor.rest;
    if cursor.byte()? != 0 {
        return Err(Refused::Corrupt("no index where one should be"));
    }
    // As many as are stated: each takes two bytes at least, so the input is the limit.
    for _ in 0..cursor.varint()? {
        let unpadded = cursor.varint()?;
        each(unpadded, cursor.varint()?)?;
    }
    cursor.padding(whole.len() - cursor.rest.len())?;
    let size = whole.len() - cursor.rest.len();
    if cursor.u32()? != CRC32.checksum(whole.get(..size).unwrap_or_default()) {
        return Err(Refused::Corrupt("index check"));
    }
    Ok(())
}

/// What is stored behind each xz block to check its plain bytes.
#[derive(Clone, Copy, Debug)]
enum Check {
    None,
    Crc32,
    Crc64,
    Sha256,
}

impl Check {
    fn of(flags: [u8; 2]) -> Result<Self> {
        let [zero, check] = flags;
        match check {
            _ if zero != 0 => Err(Refused::Unsupported(Feature::StreamFlags(zero))),
            0x0 => Ok(Self::None),
            0x1 => Ok(Self::Crc32),
            0x4 => Ok(Self::Crc64),
            0xa => Ok(Self::Sha256),
            0x10.. => Err(Refused::Unsupported(Feature::StreamFlags(check))),
            _ => Err(Refused::Unsupported(Feature::Check(check))),
        }
    }

    fn size(self) -> usize {
        match self {
            Self::None => 0,
            Self::Crc32 => 4,
            Self::Crc64 => 8,
            Self::Sha256 => 32,
        }
    }

    fn matches(self, plain: &[u8], stored: &[u8]) -> bool {
        match self {
            Self::None => stored.is_empty(),
            Self::Crc32 => CRC32.checksum(plain).to_le_bytes() == *stored,
            Self::Crc64 => CRC64.checksum(plain).to_le_bytes() == *stored,
            Self::Sha256 => is_sha256(plain, stored),
        }
    }
}

#[cfg(feature = "ring-hash")]
fn is_sha256(plain: &[u8], stored: &[u8]) -> bool {
    ring::digest::digest(&ring::digest::SHA256, plain).as_ref() == stored
}

#[cfg(not(feature = "ring-hash"))]
fn is_sha256(plain: &[u8], stored: &[u8]) -> bool {
    use sha2::Digest as _;
    *sha2::Sha256::digest(plain) == *stored
}

/// An xz block whose header and chunk headers are in order.
struct Block<'a> {
    /// All its LZMA2 chunks, the end marker included.
    chunks: &'a [u8],
    check: &'a [u8],
    /// Size of header, chunks and check: what the index states.
    unpadded: usize,
    plain: usize,
}

/// The xz blocks of a stream, up to the index. What they hold comes out of `room`.
#[derive(Clone)]
struct Blocks<'a> {
    cursor: Cursor<'a>,
    check: Check,
    room: usize,
    bound: usize,
}

impl<'a> Blocks<'a> {
    fn next(&mut self) -> Result<Option<Block<'a>>> {
        let cursor = &mut self.cursor;
        let whole = cursor.rest;
        let header_size = match *whole.first().ok_or(ENDS_EARLY)? {
            0 => return Ok(None),
            size => (usize::from(size) + 1) * 4,
        };
        let (packed, plain) = block_header(cursor.take(header_size)?)?;

        let mut walk = Walk::new(cursor.rest);
        while let Some(made) = walk.next()? {
            let full = Refused::TooLarge { bound: self.bound };
            self.room = self.room.checked_sub(made).ok_or(full)?;
        }
        let chunks = cursor.take(cursor.rest.len() - walk.rest.len())?;
        let differs = |stated: Option<u64>, size: usize| stated.is_some_and(|s| s != size as u64);
        if differs(packed, chunks.len()) || differs(plain, walk.plain) {
            return Err(Refused::Corrupt(
                "block header states other sizes than the block has",
            ));
        }
        cursor.padding(header_size + chunks.len())?;
        let check = cursor.take(self.check.size())?;
        let unpadded = header_size + chunks.len() + check.len();
        Ok(Some(Block {
            chunks,
            check,
            unpadded,
            plain: walk.plain,
        }))
    }
}

/// Checks the header of an xz block and gives the packed and the plain size it may state.
fn block_header(whole: &[u8]) -> Result<(Option<u64>, Option<u64>)> {
    let (header, check) = whole.split_last_chunk::<4>().ok_or(ENDS_EARLY)?;
    if CRC32.checksum(header) != u32::from_le_bytes(*check) {
        return Err(Refused::Corrupt("block header check"));
    }
    let mut cursor = Cursor { rest: header };
    let [_, flags] = cursor.array::<2>()?;
    if flags & 0x3c != 0 {
        return Err(Refused::Unsupported(Feature::BlockFlags(flags & 0x3c)));
    }
    let packed = if flags & 0x40 != 0 {
        Some(cursor.varint()?)
    } else {
        None
    };
    let plain = if flags & 0x80 != 0 {
        Some(cursor.varint()?)
    } else {
        None
    };

    // A chain is refused by its first filter; the last one of a chain may well be LZMA2.
    let filter = cursor.varint()?;
    if filter >= FILTER_RESERVED {
        return Err(Refused::Corrupt("reserved filter"));
    }
    if filter != FILTER_LZMA2 {
        return Err(Refused::Unsupported(Feature::Filter(filter)));
    }
    if flags & 0x03 != 0 {
        return Err(Refused::Corrupt("lzma2 in front of another filter"));
    }
    if cursor.varint()? != 1 || cursor.byte()? > MAX_DICTIONARY {
        return Err(Refused::Corrupt("invalid dictionary size"));
    }
    if cursor.rest.iter().any(|byte| *byte != 0) {
        return Err(Refused::Unsupported(Feature::BlockHeaderPadding));
    }
    Ok((packed, plain))
}

/// The bytes not yet read.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    fn take(&mut self, size: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(size).ok_or(ENDS_EARLY)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(ENDS_EARLY)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn byte(&mut self) -> Result<u8> {
        self.array().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                if byte == 0 && shift > 0 {
                    return Err(Refused::Corrupt("number not in its shortest form"));
                }
                return Ok(value);
            }
        }
        Err(Refused::Corrupt("number of more than nine bytes"))
    }

    /// Steps over the zeros after `size` bytes of something that fills a multiple of four.
    fn padding(&mut self, size: usize) -> Result<()> {
        if self
            .take(size.wrapping_neg() % 4)?
            .iter()
            .any(|byte| *byte != 0)
        {
            return Err(Refused::Corrupt("padding is not zero"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::indexing_slicing,
        clippy::cast_possible_truncation,
        reason = "tests fail by panic, on numbers they made themselves"
    )]

    use std::fmt::Write as _;

    use liblzma::stream::{Action, Status, Stream as Reference};

    use super::*;

    macro_rules! fixture {
        ($name:literal) => {
            include_bytes!(concat!("../../tests/data/xz/", $name))
        };
    }

    const MIB: usize = 1 << 20;

    /// Accepted streams that hold the first so many bytes of `lines`.
    const LINES: [(&[u8], usize); 17] = [
        (fixture!("empty.xz"), 0),
        (fixture!("plain-1.xz"), 1),
        (fixture!("plain-4095.xz"), 4095),
        (fixture!("plain-4096.xz"), 4096),
        (fixture!("plain-4097.xz"), 4097),
        (fixture!("plain-65535.xz"), 65535),
        (fixture!("plain-65536.xz"), 65536),
        (fixture!("plain-65537.xz"), 65537),
        (fixture!("level-0.xz"), 200_000),
        (fixture!("level-6.xz"), 200_000),
        (fixture!("level-9.xz"), 200_000),
        (fixture!("check-none.xz"), 4097),
        (fixture!("check-crc32.xz"), 4097),
        (fixture!("check-crc64.xz"), 4097),
        (fixture!("check-sha256.xz"), 4097),
        (fixture!("literal-position.xz"), 4097),
        (fixture!("blocks.xz"), 200_000),
    ];
    const BLOCKS_SIZED: &[u8] = fixture!("blocks-sized.xz");
    const RANDOM: &[u8] = fixture!("random.xz");
    const MIXED: &[u8] = fixture!("mixed.xz");
    const BOMB: &[u8] = fixture!("bomb.xz");
    const HIDDEN: &[u8] = fixture!("hidden-chunk.xz");

    /// What `seq 1 200000 | head -c size` prints.
    fn lines(size: usize) -> Vec<u8> {
        let mut text = String::new();
        for line in 1.. {
            if text.len() >= size {
                break;
            }
            writeln!(text, "{line}").unwrap();
        }
        text.truncate(size);
        text.into_bytes()
    }

    fn unpack(stored: &[u8], bound: usize) -> Result<Vec<u8>> {
        let mut plain = Vec::new();
        let done = Decoder::new().decompress(stored, bound, &mut plain);
        assert!(plain.len() <= bound && plain.capacity() <= bound);
        done.map(|()| plain)
            .inspect_err(|refused| assert!(!refused.to_string().contains('\n')))
    }

    /// The reference implementation: one stream, nothing after it.
    fn reference(stored: &[u8], bound: usize) -> Option<Vec<u8>> {
        let mut plain = vec![0; bound + 1];
        let mut stream = Reference::new_stream_decoder(256 << 20, 0).unwrap();
        let mut ended = false;
        while !ended {
            let before = (stream.total_in() as usize, stream.total_out() as usize);
            match stream.process(&stored[before.0..], &mut plain[before.1..], Action::Finish) {
                Ok(Status::StreamEnd) => ended = true,
                Ok(_) if before != (stream.total_in() as usize, stream.total_out() as usize) => {}
                _ => return None,
            }
        }
        plain.truncate(stream.total_out() as usize);
        (stream.total_in() == stored.len() as u64 && plain.len() <= bound).then_some(plain)
    }

    /// xorshift64*, good enough to pick places and bytes.
    struct Random(u64);

    impl Random {
        fn below(&mut self, limit: usize) -> usize {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
        }
    }

    fn varint(mut value: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
        bytes
    }

    fn pad(bytes: &mut Vec<u8>) {
        bytes.resize(bytes.len().next_multiple_of(4), 0);
    }

    /// Makes an xz block header of `fields`: everything from the flags on.
    fn block_head(fields: &[u8]) -> Vec<u8> {
        let mut head = vec![0];
        head.extend(fields);
        pad(&mut head);
        head[0] = (head.len() / 4) as u8;
        let sum = CRC32.checksum(&head);
        head.extend(sum.to_le_bytes());
        head
    }

    /// An index of `records`, stating `count` of them.
    fn make_index(count: u64, records: &[(u64, u64)]) -> Vec<u8> {
        let mut index = vec![0];
        index.extend(varint(count));
        for (unpadded, plain) in records {
            index.extend(varint(*unpadded));
            index.extend(varint(*plain));
        }
        pad(&mut index);
        let sum = CRC32.checksum(&index);
        index.extend(sum.to_le_bytes());
        index
    }

    /// A stream of finished xz blocks and index.
    fn seal(check: u8, blocks: &[u8], index: &[u8]) -> Vec<u8> {
        let mut stream = HEADER_MAGIC.to_vec();
        let flags = [0, check];
        stream.extend(flags);
        stream.extend(CRC32.checksum(&flags).to_le_bytes());
        stream.extend(blocks);
        stream.extend(index);
        let mut foot = ((index.len() / 4 - 1) as u32).to_le_bytes().to_vec();
        foot.extend(flags);
        stream.extend(CRC32.checksum(&foot).to_le_bytes());
        stream.extend(foot);
        stream.extend(FOOTER_MAGIC);
        stream
    }

    /// A stream of one xz block with check none that holds these chunks.
    fn stream_of(chunks: &[u8], plain: usize) -> Vec<u8> {
        stream_with(&[0, 0x21, 1, 22], chunks, plain)
    }

    fn stream_with(fields: &[u8], chunks: &[u8], plain: usize) -> Vec<u8> {
        let mut block = block_head(fields);
        block.extend(chunks);
        let record = (block.len() as u64, plain as u64);
        pad(&mut block);
        seal(0, &block, &make_index(1, &[record]))
    }

    /// The chunks of a stream of one xz block whose header takes twelve bytes.
    fn chunks_of(stored: &[u8]) -> &[u8] {
        let mut walk = Walk::new(&stored[24..]);
        while walk.next().unwrap().is_some() {}
        &stored[24..stored.len() - walk.rest.len()]
    }

    /// A packed chunk with reset 3 and its plain bytes, without end marker.
    fn packed_chunk() -> (Vec<u8>, Vec<u8>) {
        let chunks = chunks_of(fixture!("plain-4096.xz"));
        (chunks[..chunks.len() - 1].to_vec(), lines(4096))
    }

    const CHUNK_CHECKS: [(&[u8], &str); 14] = [
        (&[], "ends early"),
        (&[1, 0], "ends early"),
        (&[1, 0, 0], "ends early"),
        (&[1, 0, 1, 65], "ends early"),
        (&[1, 0, 0, 65], "ends early"),
        (&[3], "invalid chunk"),
        (&[0x7f], "invalid chunk"),
        (
            &[2, 0, 0, 65, 0],
            "first chunk does not reset the dictionary",
        ),
        (
            &[0xc0, 0, 0, 0, 4, 93, 0, 0, 0, 0, 0, 0],
            "first chunk does not reset the dictionary",
        ),
        (
            &[1, 0, 0, 65, 0x80, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0],
            "packed chunk without properties",
        ),
        (
            &[1, 0, 0, 65, 0xa0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0],
            "packed chunk without properties",
        ),
        (
            &[0xe0, 0, 0, 0, 4, 225, 0, 0, 0, 0, 0, 0],
            "invalid properties",
        ),
        (
            &[0xe0, 0, 0, 0, 4, 13, 0, 0, 0, 0, 0, 0],
            "invalid properties",
        ),
        (
            &[0xe0, 0, 0, 0, 3, 93, 0, 0, 0, 0, 0],
            "packed data does not begin as such",
        ),
    ];

    #[test]
    fn accepts_what_xz_makes() {
        let mut kept = (Decoder::new(), Vec::new());
        for (stored, size) in LINES.into_iter().chain([(BLOCKS_SIZED, 200_000)]) {
            let plain = lines(size);
            assert_eq!(unpack(stored, size).unwrap(), plain);
            assert_eq!(unpack(stored, usize::MAX >> 1).unwrap(), plain);
            assert_eq!(stated_size(stored), Ok(size as u64));
            if size > 0 {
                assert_eq!(
                    unpack(stored, size - 1),
                    Err(Refused::TooLarge { bound: size - 1 })
                );
                assert_eq!(unpack(stored, 0), Err(Refused::TooLarge { bound: 0 }));
            }
            kept.0.decompress(stored, MIB, &mut kept.1).unwrap();
            assert_eq!(kept.1, plain);
        }
        for (stored, size) in [(RANDOM, 70_000), (MIXED, 130_000)] {
            assert_eq!(
                unpack(stored, size).unwrap(),
                reference(stored, size).unwrap()
            );
            assert_eq!(stated_size(stored), Ok(size as u64));
        }
        assert!(unpack(MIXED, MIB).unwrap().starts_with(&lines(30_000)));
    }

    #[test]
    fn refuses_what_is_not_one_plain_stream() {
        let unsupported = |feature| Err(Refused::Unsupported(feature));
        let refused: [(&[u8], Result<Vec<u8>>); 7] = [
            (
                fixture!("two-streams.xz"),
                unsupported(Feature::SecondStream),
            ),
            (fixture!("padded.xz"), unsupported(Feature::StreamPadding)),
            (
                fixture!("padded-second.xz"),
                unsupported(Feature::SecondStream),
            ),
            (fixture!("filter-x86.xz"), unsupported(Feature::Filter(4))),
            (fixture!("filter-arm.xz"), unsupported(Feature::Filter(7))),
            (fixture!("filter-delta.xz"), unsupported(Feature::Filter(3))),
            (
                fixture!("alone.lzma"),
                Err(Refused::Corrupt("does not begin as an xz stream")),
            ),
        ];
        for (stored, refusal) in refused {
            assert_eq!(unpack(stored, MIB), refusal);
        }
        for tail in [&b"\0"[..], b"\0\0\0", b"x", b"\0\0\0\0x", b"\0\xfd7zXZ\0"] {
            let stored = [fixture!("plain-1.xz"), tail].concat();
            assert_eq!(
                unpack(&stored, MIB),
                Err(Refused::Corrupt("bytes after the stream"))
            );
        }
        for check in [2, 3, 5, 9, 11, 15] {
            let stored = seal(check, &[], &make_index(0, &[]));
            assert_eq!(unpack(&stored, MIB), unsupported(Feature::Check(check)));
            assert_eq!(
                stated_size(&stored),
                Err(Refused::Unsupported(Feature::Check(check)))
            );
        }
        let stored = seal(0x14, &[], &make_index(0, &[]));
        assert_eq!(
            unpack(&stored, MIB),
            unsupported(Feature::StreamFlags(0x14))
        );
    }

    #[test]
    fn refuses_wrong_block_headers() {
        let chunks = [1, 0, 0, 65, 0];
        let with = |fields: &[u8]| unpack(&stream_with(fields, &chunks, 1), MIB);
        let corrupt = |what| Err(Refused::Corrupt(what));
        let unsupported = |feature| Err(Refused::Unsupported(feature));
        let sizes = "block header states other sizes than the block has";
        let dictionary = "invalid dictionary size";
        for fine in [
            &[0, 0x21, 1, 0][..],
            &[0, 0x21, 1, 40],
            &[0xc0, 5, 1, 0x21, 1, 22],
        ] {
            assert_eq!(with(fine), Ok(b"A".to_vec()));
        }
        assert_eq!(with(&[0x40, 5, 0x21, 1, 22]), Ok(b"A".to_vec()));
        assert_eq!(with(&[0x80, 1, 0x21, 1, 22]), Ok(b"A".to_vec()));
        assert_eq!(with(&[0x40, 4, 0x21, 1, 22]), corrupt(sizes));
        assert_eq!(with(&[0x40, 0, 0x21, 1, 22]), corrupt(sizes));
        assert_eq!(with(&[0x80, 2, 0x21, 1, 22]), corrupt(sizes));
        assert_eq!(
            with(&[0x80, 0x81, 0, 0x21, 1, 22]),
            corrupt("number not in its shortest form")
        );
        let long = [&[0x80][..], &[0x81; 9], &[1, 0x21, 1, 22]].concat();
        assert_eq!(with(&long), corrupt("number of more than nine bytes"));
        assert_eq!(with(&[0, 0x21, 1, 41]), corrupt(dictionary));
        assert_eq!(with(&[0, 0x21, 1, 22 | 0x40]), corrupt(dictionary));
        assert_eq!(with(&[0, 0x21, 2, 22, 22]), corrupt(dictionary));
        assert_eq!(with(&[0, 0x21, 0]), corrupt(dictionary));
        assert_eq!(with(&[0, 0x20, 1, 22]), unsupported(Feature::Filter(0x20)));
        assert_eq!(
            with(&[1, 0x21, 1, 22, 0x21, 1, 22]),
            corrupt("lzma2 in front of another filter")
        );
        let reserved = [&[0][..], &[0x80; 8], &[0x40, 1, 22]].concat();
        assert_eq!(with(&reserved), corrupt("reserved filter"));
        assert_eq!(
            with(&[0x04, 0x21, 1, 22]),
            unsupported(Feature::BlockFlags(4))
        );
        assert_eq!(
            with(&[0, 0x21, 1, 22, 0, 0, 1]),
            unsupported(Feature::BlockHeaderPadding)
        );
        assert_eq!(with(&[0xc0]), corrupt("ends early"));
    }

    #[test]
    fn refuses_wrong_chunks() {
        for (chunks, what) in CHUNK_CHECKS {
            let mut walk = Walk::new(chunks);
            let refused = loop {
                match walk.next() {
                    Ok(step) => assert!(step.is_some(), "{chunks:02x?}"),
                    Err(refused) => break refused,
                }
            };
            assert_eq!(refused, Refused::Corrupt(what), "{chunks:02x?}");
            assert!(unpack(&stream_of(chunks, 1), MIB).is_err(), "{chunks:02x?}");
        }
        let (mut chunk, _) = packed_chunk();
        chunk[6] = 1;
        chunk.push(0);
        let begins = Err(Refused::Corrupt("packed data does not begin as such"));
        assert_eq!(unpack(&stream_of(&chunk, 4096), MIB), begins);
    }

    #[test]
    fn accepts_every_kind_of_chunk() {
        // Nothing at all, in an xz block.
        assert_eq!(unpack(&stream_of(&[0], 0), 0), Ok(Vec::new()));
        // Stored, with and without a reset; the largest a stored chunk can be.
        let stored = [
            &[1, 0, 0, 65, 2, 0, 1, 66, 67, 1, 0xff, 0xff][..],
            &[68; 65536],
            &[0],
        ]
        .concat();
        let plain = [&b"ABC"[..], &[68; 65536]].concat();
        assert_eq!(unpack(&stream_of(&stored, plain.len()), MIB), Ok(plain));
        // Packed: new dictionary, new properties, new state; stored ones between.
        let (chunk, lines) = packed_chunk();
        let mut chunks = Vec::new();
        let mut plain = Vec::new();
        for control in [0xe0, 0xc0, 0xe0, 0xa0, 0xa0] {
            chunks.extend([control | chunk[0] & 0x1f]);
            chunks.extend(&chunk[1..5]);
            chunks.extend(chunk[5..6].iter().filter(|_| control >= 0xc0));
            chunks.extend(&chunk[6..]);
            chunks.extend([2, 0, 0, 0]);
            plain.extend(&lines);
            plain.push(0);
        }
        chunks.push(0);
        let stream = stream_of(&chunks, plain.len());
        let unpacked = unpack(&stream, MIB);
        assert_eq!(unpacked.as_ref().ok(), reference(&stream, MIB).as_ref());
        // Behind other bytes the same packed bytes mean others, the reference agrees in which.
        assert!(unpacked.unwrap().starts_with(&lines));
    }

    #[test]
    fn refuses_wrong_index_and_footer() {
        let mut block = block_head(&[0, 0x21, 1, 22]);
        block.extend([1, 0, 0, 65, 0]);
        let unpadded = block.len() as u64;
        pad(&mut block);
        let with = |index: &[u8]| unpack(&seal(0, &block, index), MIB);
        let corrupt = |what| Err(Refused::Corrupt(what));
        let sizes = "index states other sizes than the blocks have";
        let fine = make_index(1, &[(unpadded, 1)]);
        assert_eq!(with(&fine), Ok(b"A".to_vec()));
        assert_eq!(with(&make_index(1, &[(unpadded, 2)])), corrupt(sizes));
        assert_eq!(with(&make_index(1, &[(unpadded + 1, 1)])), corrupt(sizes));
        assert_eq!(
            with(&make_index(1, &[(unpadded, 1 << 32 | 1)])),
            corrupt(sizes)
        );
        let fewer = "index has fewer blocks than the stream";
        assert_eq!(with(&make_index(0, &[])), corrupt(fewer));
        let more = "index has more blocks than the stream";
        assert_eq!(
            with(&make_index(2, &[(unpadded, 1), (unpadded, 1)])),
            corrupt(more)
        );
        assert_eq!(
            with(&make_index(u64::MAX >> 1, &[(unpadded, 1)])),
            corrupt(more)
        );

        let mut index = fine[..fine.len() - 4].to_vec();
        assert_eq!(index.len(), 4);
        index[1] = 0x81;
        index.insert(2, 0);
        pad(&mut index);
        index.extend(CRC32.checksum(&index).to_le_bytes());
        assert_eq!(with(&index), corrupt("number not in its shortest form"));

        let wide = [fine.as_slice(), &[0; 4]].concat();
        assert!(with(&wide).is_err());
        let mut stream = seal(0, &block, &fine);
        let end = stream.len();
        stream[end - 8] += 1;
        let sum = CRC32.checksum(&stream[end - 8..end - 2]);
        stream[end - 12..end - 8].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(
            unpack(&stream, MIB),
            corrupt("footer states another index size")
        );
        stream[end - 8] -= 1;
        stream[end - 3] = 4;
        let sum = CRC32.checksum(&stream[end - 8..end - 2]);
        stream[end - 12..end - 8].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(
            unpack(&stream, MIB),
            corrupt("flags differ between header and footer")
        );

        let mut padded = block.clone();
        *padded.last_mut().unwrap() = 1;
        assert_eq!(
            unpack(&seal(0, &padded, &fine), MIB),
            corrupt("padding is not zero")
        );
    }

    #[test]
    fn stated_size_is_plausible_or_refused() {
        let misfit = Err(Refused::Corrupt("index does not fit the stream"));
        let blocks = [0; 24];
        let with = |records: &[(u64, u64)]| {
            stated_size(&seal(
                4,
                &blocks,
                &make_index(records.len() as u64, records),
            ))
        };
        assert_eq!(with(&[(21, 4096)]), Ok(4096));
        assert_eq!(with(&[(12, 1), (9, 0)]), Ok(1));
        assert_eq!(with(&[(24, 2 * MAX_CHUNK)]), Ok(2 * MAX_CHUNK));
        assert_eq!(with(&[(24, 2 * MAX_CHUNK + 1)]), misfit);
        assert_eq!(with(&[(20, 1)]), misfit);
        assert_eq!(with(&[(25, 1)]), misfit);
        assert_eq!(with(&[]), misfit);
        assert_eq!(with(&[(u64::MAX >> 1, 1), (u64::MAX >> 1, 1)]), misfit);
        assert_eq!(
            with(&[(u64::MAX >> 1, 1), (u64::MAX >> 1, 1), (28, 1)]),
            misfit
        );
        assert_eq!(stated_size(fixture!("padded.xz")).ok(), None);
        assert_eq!(stated_size(fixture!("two-streams.xz")), misfit);
        assert_eq!(stated_size(BOMB), Ok(281_018_368));
        for cut in 0..BLOCKS_SIZED.len() {
            assert!(stated_size(&BLOCKS_SIZED[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn refuses_every_truncation() {
        for (stored, size) in LINES.into_iter().take(16).chain([(BLOCKS_SIZED, 200_000)]) {
            // All places for the small ones, a spread for the rest.
            for cut in (0..stored.len()).step_by(1 + stored.len() / 1000) {
                let refused = unpack(&stored[..cut], size).unwrap_err();
                assert!(matches!(refused, Refused::Corrupt(_)), "{cut}: {refused}");
            }
        }
    }

    #[test]
    fn bit_flips_change_nothing_unseen() {
        let mut decoder = Decoder::new();
        let mut plain = Vec::new();
        let small = [0, 1, 12, 13, 14, 15].map(|i| LINES[i]);
        for (stored, size) in small {
            let mut flipped = stored.to_vec();
            for bit in 0..stored.len() * 8 {
                flipped[bit / 8] ^= 1 << (bit % 8);
                if decoder.decompress(&flipped, size, &mut plain).is_ok() {
                    assert_eq!(plain, lines(size), "bit {bit}");
                }
                assert!(plain.capacity() <= 4097);
                flipped[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }

    #[test]
    fn a_bomb_is_refused_before_anything_is_allocated() {
        let mut plain = Vec::new();
        for bound in [0, 65536, MIB, 281_018_367] {
            let done = Decoder::new().decompress(BOMB, bound, &mut plain);
            assert_eq!(done, Err(Refused::TooLarge { bound }));
            assert_eq!(plain.capacity(), 0);
        }
        // An index that plays it down is not what the bound is taken from.
        let chunks = chunks_of(BOMB);
        let lying = stream_of(chunks, 4096);
        assert_eq!(stated_size(&lying), Ok(4096));
        assert_eq!(
            unpack(&lying, 65536),
            Err(Refused::TooLarge { bound: 65536 })
        );
        let lying = stream_with(&[0x80, 1, 0x21, 1, 28], chunks, 1);
        assert_eq!(
            unpack(&lying, 65536),
            Err(Refused::TooLarge { bound: 65536 })
        );
    }

    #[test]
    fn hidden_chunks_are_refused() {
        let chunks = chunks_of(HIDDEN);
        let mut walk = Walk::new(chunks);
        while walk.next().unwrap().is_some() {}
        assert_eq!(walk.plain, 65536);
        #[cfg(not(feature = "lzma-rust2"))]
        let refusal = {
            // Without the gate: more than the walk saw, and success.
            let mut plain = Vec::new();
            lzma_rs::decompress::raw::Lzma2Decoder::new()
                .decompress(&mut &chunks[..], &mut plain)
                .unwrap();
            assert_eq!(plain.len(), 69536);
            Err(Refused::Corrupt("chunk does not use up its packed data"))
        };
        #[cfg(feature = "lzma-rust2")]
        let refusal = Err(Refused::Corrupt("packed data does not unpack"));
        assert_eq!(stated_size(HIDDEN), Ok(65536));
        assert_eq!(unpack(HIDDEN, 65536), refusal);
        assert_eq!(unpack(HIDDEN, 2 * 65536), refusal);

        // The same chunk with its own size, and the hidden one in the open, are in order.
        let hidden = chunks.len() - 4003 - 1;
        let mut honest = chunks.to_vec();
        honest[3..5].copy_from_slice(&((hidden - 6 - 1) as u16).to_be_bytes());
        let plain = [lines(65536), vec![0xaa; 4000]].concat();
        assert_eq!(unpack(&stream_of(&honest, 69536), 69536), Ok(plain));
        let bound = 69535;
        assert_eq!(
            unpack(&stream_of(&honest, 69536), bound),
            Err(Refused::TooLarge { bound })
        );
    }

    #[test]
    fn a_chunk_holds_exactly_what_it_says() {
        let (chunk, _) = packed_chunk();
        // One more of both can be a chunk of its own, so it is left to check and digest.
        for (by, packed) in [(-1, 0), (1, 0), (0, -1), (0, 1), (-1, -1)] {
            let mut chunks = chunk.clone();
            chunks.extend([0, 0]);
            let field = |at: usize| i32::from(u16::from_be_bytes([chunk[at], chunk[at + 1]]));
            chunks[1..3].copy_from_slice(&((field(1) + by) as u16).to_be_bytes());
            chunks[3..5].copy_from_slice(&((field(3) + packed) as u16).to_be_bytes());
            let len = chunk.len() as i32 + 1 + packed;
            let stream = stream_of(&chunks[..len as usize], (4096 + by) as usize);
            assert!(unpack(&stream, MIB).is_err(), "{by} {packed}");
        }
    }

    #[test]
    fn a_refused_stream_leaves_no_trace() {
        let (good, size) = (fixture!("check-none.xz"), 4097);
        let mut decoder = Decoder::new();
        let mut plain = Vec::new();
        let mut random = Random(0x5eed);
        for _ in 0..500 {
            let (stored, _) = LINES[11 + random.below(5)];
            let mut bad = stored.to_vec();
            let at = 30 + random.below(stored.len() - 70);
            bad[at] ^= 1 + random.below(255) as u8;
            let refused = decoder.decompress(&bad, MIB, &mut plain).is_err();
            assert!(!refused || plain.is_empty());
            decoder.decompress(good, size, &mut plain).unwrap();
            assert_eq!(plain, lines(size), "byte {at}");
        }
    }

    /// Puts all CRC32 of the container right again, as far as they can still be found.
    fn reseal(stream: &mut [u8], index: usize) {
        let end = stream.len();
        let head = (usize::from(stream[12]) + 1) * 4 - 4;
        let mut fix = |from: usize, to: usize, at: usize| {
            if stream[12] != 0 && at + 4 <= end {
                let sum = CRC32.checksum(&stream[from..to]).to_le_bytes();
                stream[at..at + 4].copy_from_slice(&sum);
            }
        };
        fix(6, 8, 8);
        fix(12, 12 + head, 12 + head);
        fix(index, end - 16, end - 16);
        fix(end - 8, end - 2, end - 12);
    }

    #[test]
    fn agrees_with_the_reference_on_damaged_streams() {
        const SEED: u64 = 0x1234_5678_9abc_def1;
        let mut random = Random(SEED);
        let mut decoder = Decoder::new();
        let mut plain = Vec::new();
        let (chunk, _) = packed_chunk();
        let several = [&chunk[..], &[2, 0, 3, 1, 2, 3, 4], &chunk, &[1, 0, 0, 9, 0]].concat();
        let several = stream_of(&several, 2 * 4096 + 5);
        let bases: [&[u8]; 5] = [
            fixture!("check-none.xz"),
            fixture!("check-crc64.xz"),
            fixture!("literal-position.xz"),
            fixture!("plain-1.xz"),
            &several,
        ];
        let mut accepted = 0;
        for round in 0..6000 {
            let base = bases[round % bases.len()];
            let end = base.len();
            let backward = u32::from_le_bytes(base[end - 8..end - 4].try_into().unwrap());
            let index = end - 12 - (backward as usize + 1) * 4;
            let mut stream = base.to_vec();
            for _ in 0..=random.below(3) {
                let at = match random.below(4) {
                    0 => random.below(end.min(48)),
                    1 => end - 1 - random.below(end.min(32)),
                    _ => random.below(end),
                };
                stream[at] = match random.below(3) {
                    0 => stream[at] ^ (1 << random.below(8)),
                    1 => stream[at].wrapping_add(1),
                    _ => random.below(256) as u8,
                };
            }
            reseal(&mut stream, index);
            let bound = 20_000;
            let ours = decoder.decompress(&stream, bound, &mut plain);
            assert!(plain.capacity() <= bound, "seed {SEED:#x} round {round}");
            let theirs = reference(&stream, bound);
            accepted += usize::from(ours.is_ok());
            match (ours, theirs) {
                (Ok(()), Some(theirs)) => assert_eq!(plain, theirs, "seed {SEED:#x} round {round}"),
                // It lets a check that it does not know pass unchecked.
                (Err(Refused::Unsupported(Feature::Check(_))), Some(_)) => {}
                (Err(refused), Some(_)) => panic!("seed {SEED:#x} round {round}: {refused}"),
                // It also looks at the last state of the range decoder and at the dictionary size.
                (_, None) => {}
            }
        }
        assert!(accepted > 100, "{accepted} accepted: too few reach the end");
    }
}
