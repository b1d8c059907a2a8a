//! `reflash index`: the block index of a local image, for its use as a seed.
//!
//! Scanning a seed takes the time to read and hash all of it. An index that was made before, on the
//! host that made the image or when the device had nothing else to do, saves that: `--seed
//! PATH=INDEX`. It holds the digest and size of each block, and is the file that the reference's
//! `slots create-index` makes, byte for byte. A seed's index may be out of date without harm: each
//! block that is read by way of it is hashed.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::AtomicU64;

use serde::Serialize;

use crate::chunker::Chunker;
use crate::error::Result;
use crate::hash::HashAlgorithm;
use crate::image::Image;
use crate::output::Output;
use crate::rugix;
use crate::work::{Tell, Work, READ};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// What to index, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The image: a file or block device.
    pub image: PathBuf,
    /// The index to write; replaced if it exists.
    pub output: PathBuf,
    /// How to cut the image: as the bundles do for which it is to be a seed.
    pub chunker: Chunker,
    /// Algorithm of the digests: that of these bundles.
    pub hash: HashAlgorithm,
}

/// What was indexed, schema 1.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are the schema's own
pub struct Indexed {
    pub schema: u32,
    pub image: String,
    /// Bytes of the image.
    pub size: u64,
    pub blocks: usize,
    pub chunker: String,
    pub hash_algorithm: &'static str,
    pub output: String,
    /// Bytes of the index.
    pub index_size: usize,
}

/// A line for people.
impl fmt::Display for Indexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: {} bytes, {} blocks of {} with {}, {} bytes of index in {}",
            self.image,
            self.size,
            self.blocks,
            self.chunker,
            self.hash_algorithm,
            self.index_size,
            self.output
        )
    }
}

/// Writes the block index of an image, and tells how far it is.
pub fn index(options: &Options, tell: Tell<'_>) -> Result<Indexed> {
    let image = Image::open(&options.image)?;
    let output = Output::new(&options.output)?;
    output.must_not_be(&options.image)?;
    let done = AtomicU64::new(0);
    let work = Work::new(tell, &done, image.size() * READ);
    let part = work.part("cut", image.size(), READ);
    let blocks = image.blocks(options.chunker, options.hash, &|bytes| part.add(bytes))?;
    image.check_size()?;
    let listed = blocks.iter().map(|b| (b.kept.as_bytes(), b.size));
    let bytes = rugix::write_block_index(options.chunker, options.hash, listed);
    output.store(|file| file.write_all(&bytes))?;
    Ok(Indexed {
        schema: SCHEMA,
        image: options.image.display().to_string(),
        size: image.size(),
        blocks: blocks.len(),
        chunker: options.chunker.to_string(),
        hash_algorithm: options.hash.name(),
        output: options.output.display().to_string(),
        index_size: bytes.len(),
    })
}
