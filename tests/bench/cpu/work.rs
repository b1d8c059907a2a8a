//! The loops that are timed and counted, each over data that are in memory or in the page cache.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use reflash::internal::chunker::Chunker;
use reflash::internal::hash::{HashAlgorithm, Hasher};
use reflash::internal::scan::Scan;
use reflash::internal::xz::Decoder;

/// How blocks are cut and hashed.
pub(crate) const CHUNKER: &str = "casync-64";
const HASH: HashAlgorithm = HashAlgorithm::Sha512_256;

/// Size of the largest block.
const BOUND: usize = 256 << 10;
const WINDOW: u32 = 256 << 10;

/// Bytes read and written at once by the loops that a copy is compared with.
const PIECE: usize = 1 << 20;

/// Files that the loops work on.
pub(crate) struct Data {
    /// The plain image.
    pub(crate) image: PathBuf,
    /// Its blocks, one xz stream each: size (4 bytes, little-endian) and stream, again and again.
    pub(crate) blocks: PathBuf,
    /// Where output goes.
    pub(crate) out: PathBuf,
}

impl Data {
    pub(crate) fn at(folder: &Path) -> Self {
        Self {
            image: folder.join("image"),
            blocks: folder.join("blocks"),
            out: folder.join("out"),
        }
    }
}

pub(crate) type Error = Box<dyn std::error::Error>;

/// A loop, by its name: works on the data `times` times and gives the plain bytes it has done.
pub(crate) fn run(name: &str, data: &Data, times: usize) -> Result<u64, Error> {
    let work = WORK.iter().find(|(known, _)| *known == name);
    let (_, work) = work.ok_or_else(|| format!("no work is called {name}"))?;
    work(data, times)
}

type Work = fn(&Data, usize) -> Result<u64, Error>;

const WORK: [(&str, Work); 8] = [
    ("decode", |data, times| {
        let mut decoder = Decoder::new();
        let mut plain = Vec::new();
        each_block(data, times, |stored| {
            decoder.decompress(stored, BOUND, &mut plain)?;
            Ok(plain.len())
        })
    }),
    ("lzma-rs", |data, times| {
        let mut plain = Vec::new();
        each_block(data, times, |mut stored| {
            plain.clear();
            lzma_rs::xz_decompress(&mut stored, &mut plain)?;
            Ok(plain.len())
        })
    }),
    // At its best: without its container, whose window is as large as the stream says.
    ("lzma-rust2", |data, times| {
        let mut plain = vec![0; BOUND];
        each_block(data, times, |stored| {
            let packed = lzma2_of(stored).ok_or("no xz stream")?;
            let mut reader = lzma_rust2::Lzma2Reader::new(packed, WINDOW, None);
            let mut size = 0;
            while let Some(room) = plain.get_mut(size..).filter(|room| !room.is_empty()) {
                match reader.read(room)? {
                    0 => break,
                    got => size += got,
                }
            }
            Ok(size)
        })
    }),
    ("liblzma", |data, times| {
        let mut plain = Vec::new();
        each_block(data, times, |stored| {
            plain.clear();
            liblzma::read::XzDecoder::new(stored).read_to_end(&mut plain)?;
            Ok(plain.len())
        })
    }),
    ("hash", |data, times| {
        let image = fs::read(&data.image)?;
        for _ in 0..times {
            std::hint::black_box(HASH.digest(&image));
        }
        Ok(image.len() as u64 * times as u64)
    }),
    ("scan", |data, times| {
        let image = File::open(&data.image)?;
        let size = image.metadata()?.len();
        let scan = Scan {
            read_at: &|buffer, offset| image.read_exact_at(buffer, offset),
            size,
            chunker: Chunker::parse(CHUNKER).ok_or("no such chunker")?,
            progress: &|_| {},
        };
        for _ in 0..times {
            let (found, error) = scan.run(&|block| Some(HASH.digest(block)));
            if let Some(error) = error {
                return Err(error.into());
            }
            std::hint::black_box(found);
        }
        Ok(size * times as u64)
    }),
    // What a copy of the image can cost at least: read, hash, write.
    ("copy", |data, times| {
        let mut total = 0;
        for _ in 0..times {
            let mut image = File::open(&data.image)?;
            let mut out = File::create(&data.out)?;
            let mut hasher = Hasher::new(HASH);
            let mut piece = vec![0; PIECE];
            loop {
                let got = image.read(&mut piece)?;
                if got == 0 {
                    break;
                }
                hasher.update(&piece[..got]);
                out.write_all(&piece[..got])?;
                total += got as u64;
            }
            std::hint::black_box(hasher.finish());
            out.sync_all()?;
        }
        Ok(total)
    }),
    // What a sequential installer does with blocks in hand: decode with lzma-rs, hash, write.
    ("plain loop", |data, times| {
        let mut plain = Vec::new();
        let mut total = 0;
        for _ in 0..times {
            let mut out = File::create(&data.out)?;
            total += each_block(data, 1, |mut stored| {
                plain.clear();
                lzma_rs::xz_decompress(&mut stored, &mut plain)?;
                std::hint::black_box(HASH.digest(&plain));
                out.write_all(&plain)?;
                Ok(plain.len())
            })?;
            out.sync_all()?;
        }
        Ok(total)
    }),
];

/// The LZMA2 chunks of the first block of an xz stream, and what follows.
fn lzma2_of(stream: &[u8]) -> Option<&[u8]> {
    let block = stream.get(12..)?;
    block.get((usize::from(*block.first()?) + 1) * 4..)
}

/// Cuts an image and writes its blocks as [`Data::blocks`] holds them; where each of them ends.
pub(crate) fn write_blocks(image: &[u8], out: &mut File) -> Result<Vec<usize>, Error> {
    let cutter = Chunker::parse(CHUNKER).ok_or("no such chunker")?.cutter();
    let mut ends = Vec::new();
    let mut rest = image;
    while !rest.is_empty() {
        let (block, behind) = rest.split_at(cutter.cut(rest));
        let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 6);
        encoder.write_all(block)?;
        let stored = encoder.finish()?;
        out.write_all(&u32::try_from(stored.len())?.to_le_bytes())?;
        out.write_all(&stored)?;
        rest = behind;
        ends.push(image.len() - rest.len());
    }
    Ok(ends)
}

fn each_block(
    data: &Data,
    times: usize,
    mut each: impl FnMut(&[u8]) -> Result<usize, Error>,
) -> Result<u64, Error> {
    let blocks = fs::read(&data.blocks)?;
    let mut total = 0;
    for _ in 0..times {
        let mut rest = blocks.as_slice();
        while let Some((size, behind)) = rest.split_first_chunk::<4>() {
            let size = u32::from_le_bytes(*size) as usize;
            let (stored, behind) = behind.split_at_checked(size).ok_or("a block is cut off")?;
            total += each(stored)? as u64;
            rest = behind;
        }
    }
    Ok(total)
}
