//! The xz streams of bundles, as the reference's bundler makes them: a CRC64, one block, and the
//! dictionary of the level; or, where it is asked for, one that fits what is compressed.
//!
//! This file is the only user of `liblzma`.

use std::io;

use liblzma::stream::{Action, Check, Filters, LzmaOptions, Status, Stream};

use crate::error::Result;
use crate::image::Image;

/// Dictionary of each level, in KiB.
const DICTIONARIES: [u32; 10] = [
    256,
    1 << 10,
    2 << 10,
    4 << 10,
    4 << 10,
    8 << 10,
    8 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
];

/// Smallest dictionary of the format.
const MIN_DICTIONARY: u32 = 4096;

/// Bytes that are compressed at once where it is not blocks that are.
const PIECE: usize = 1 << 20;

/// One `.xz` stream of `plain`, with the dictionary of the level even for a block that is far smaller.
/// The reference does so, and a bundle is to be the same whoever made it; the dictionary's size also
/// decides which matches the encoder finds. It costs a reader of ours nothing, since that takes the
/// block's size for its window.
pub(crate) fn compress(plain: &[u8], level: u32) -> io::Result<Vec<u8>> {
    finish(Stream::new_easy_encoder(level, Check::Crc64)?, plain)
}

/// The same, with a dictionary for no more than so many bytes. In the stream stands the next size up
/// that the format has: a power of two, or one and a half of it.
pub(super) fn compress_fitted(plain: &[u8], level: u32, largest: u32) -> io::Result<Vec<u8>> {
    let mut lzma = LzmaOptions::new_preset(level)?;
    let of_level = usize::try_from(level)
        .ok()
        .and_then(|level| DICTIONARIES.get(level))
        .map_or(u32::MAX, |kib| kib << 10);
    lzma.dict_size(largest.clamp(MIN_DICTIONARY, of_level));
    let filters = &mut Filters::new();
    finish(
        Stream::new_stream_encoder(filters.lzma2(&lzma), Check::Crc64)?,
        plain,
    )
}

fn finish(mut stream: Stream, plain: &[u8]) -> io::Result<Vec<u8>> {
    // What a block that cannot be compressed takes, so that the loop rarely runs twice.
    let mut stored = Vec::with_capacity(plain.len() + plain.len() / 64 + 256);
    let mut rest = plain;
    loop {
        let before = stream.total_in();
        let status = stream.process_vec(rest, &mut stored, Action::Finish)?;
        let taken = usize::try_from(stream.total_in() - before).unwrap_or(usize::MAX);
        rest = rest.get(taken..).unwrap_or_default();
        match status {
            Status::StreamEnd => return Ok(stored),
            _ => stored.reserve(plain.len() / 8 + 256),
        }
    }
}

/// Bytes of an image as one `.xz` stream. `progress` is told of the bytes of each piece.
pub(crate) fn compressed_size(image: &Image, level: u32, progress: &dyn Fn(u64)) -> Result<u64> {
    let encoder = Stream::new_easy_encoder(level, Check::Crc64);
    let mut stream = encoder.map_err(|error| image.fail(error.into()))?;
    let mut plain = vec![0; PIECE];
    let mut stored = Vec::with_capacity(PIECE);
    let mut at = 0;
    loop {
        let left = usize::try_from(image.size() - at).unwrap_or(usize::MAX);
        plain.truncate(left);
        image
            .read_at(&mut plain, at)
            .map_err(|source| image.fail(source))?;
        at += plain.len() as u64;
        let last = at == image.size();
        let action = if last { Action::Finish } else { Action::Run };
        let mut rest = plain.as_slice();
        loop {
            stored.clear();
            let before = stream.total_in();
            let status = stream
                .process_vec(rest, &mut stored, action)
                .map_err(|error| image.fail(error.into()))?;
            let taken = usize::try_from(stream.total_in() - before).unwrap_or(usize::MAX);
            rest = rest.get(taken..).unwrap_or_default();
            match status {
                Status::StreamEnd => return Ok(stream.total_out()),
                _ if rest.is_empty() && !last => break,
                _ => {}
            }
        }
        progress(plain.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn incompressible_blocks_grow_little() {
        let mut state = 5u64;
        for len in [0, 1, 100, 4096, 300_000] {
            let noise: Vec<u8> = (0..len)
                .map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (state >> 56) as u8
                })
                .collect();
            let stored = compress(&noise, 6).expect("a stream");
            assert!(
                stored.len() <= len + len / 1000 + 128,
                "{len}: {}",
                stored.len()
            );
        }
    }

    /// Bytes of the dictionary that a stream states, behind the filter's name and the length of it.
    fn dictionary(stream: &[u8]) -> u32 {
        assert_eq!(stream[14..16], [0x21, 1], "LZMA2 alone");
        let bits = u32::from(stream[16]);
        (2 | bits & 1) << (bits / 2 + 11)
    }

    #[test]
    fn a_dictionary_is_that_of_the_level_or_smaller() {
        for (level, of_level) in (0..).zip(DICTIONARIES) {
            let stream = compress(b"block", level).expect("a stream");
            assert_eq!(dictionary(&stream), of_level << 10, "level {level}");
            for (largest, expected) in [
                (0, 4 << 10),
                (4 << 10, 4 << 10),
                ((4 << 10) + 1, 6 << 10),
                (20 << 10, 24 << 10),
                (256 << 10, 256 << 10),
                (64 << 20, of_level << 10),
            ] {
                let stream = compress_fitted(b"block", level, largest).expect("a stream");
                assert_eq!(dictionary(&stream), expected, "level {level}, {largest}");
            }
        }
    }
}
