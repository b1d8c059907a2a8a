//! The Rugix bundle format (`.rugixb`) and its block index files: bytes to values.
//!
//! ```text
//! BUNDLE                                      offset 0
//!   BUNDLE_HEADER  manifest? is-incremental hash-algorithm entry*      hashed and signed
//!   [SIGNATURES    cms*]
//!   PAYLOADS
//!     PAYLOAD                                 one per entry, in the same order
//!       PAYLOAD_HEADER  [block encoding: chunker hash-algorithm deduplicated
//!                                        compression? hashes sizes?]
//!       PAYLOAD_DATA                          one long value
//! ```
//!
//! Unknown optional atoms may stand between any of these. If the blocks are compressed, so are the
//! two lists of the block encoding, each one xz stream. There is no version number: tags are the
//! only mechanism, and an unknown required tag means "newer format".
//!
//! Pure functions of byte slices. The caller has compared the raw bytes with a trusted digest
//! before it lets anything here interpret them; still nothing here panics, recurses on input, or
//! allocates by a length field.

#![deny(clippy::indexing_slicing)]

use std::ops::Range;

use crate::bundle::{Compression, Delivery, Encoding, Entry, Header, Index, MAX_BLOCKS};
use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgorithm, MAX_DIGEST_SIZE};
use crate::stlv::{Atom, Atoms, Once, Tag, Writer};
use crate::xz;

/// Largest bundle header, heads included. The reference's own limit.
pub const MAX_HEADER_SIZE: usize = 128 << 10;

/// Largest signatures segment: 16 signatures of 64 KiB.
pub const MAX_SIGNATURES_SIZE: usize = 1 << 20;

/// Most signatures of a bundle.
pub const MAX_SIGNATURES: usize = 16;

/// Largest payload header as stored. The reference's own limit.
pub const MAX_PAYLOAD_HEADER_SIZE: usize = 32 << 20;

/// Largest optional atom that is skipped where the format allows one.
pub const MAX_SKIPPED_SIZE: usize = 1 << 20;

/// Most payloads of a bundle.
pub const MAX_PAYLOADS: usize = 64;

/// Longest slot name, handler argument or other text, in bytes.
pub const MAX_TEXT_SIZE: usize = 4 << 10;

/// The ten bytes every bundle begins with: the heads of BUNDLE and BUNDLE_HEADER. Optional atoms
/// may stand between the two, so only the first five are required of a bundle.
pub const MAGIC: [u8; 10] = [0x6b, 0x50, 0x74, 0x1c, 0x40, 0x49, 0xaf, 0x64, 0x33, 0x40];

/// The tags of the format.
pub mod tag {
    #![allow(missing_docs)] // the names are the format's own
    use crate::stlv::Tag;

    pub const BUNDLE: Tag = Tag(0x6b50_741c);
    pub const BUNDLE_HEADER: Tag = Tag(0x49af_6433);
    pub const MANIFEST: Tag = Tag(0x161a_a242);
    pub const IS_INCREMENTAL: Tag = Tag(0x20f3_d16b);
    pub const HASH_ALGORITHM: Tag = Tag(0x5cb8_0dd6);
    pub const PAYLOAD_ENTRY: Tag = Tag(0x1373_7992);
    pub const TYPE_SLOT: Tag = Tag(0x45ca_7e7e);
    pub const TYPE_EXECUTE: Tag = Tag(0x3adf_32f5);
    pub const TYPE_APP_FILE: Tag = Tag(0x214c_6e2b);
    pub const TYPE_APP_ARCHIVE: Tag = Tag(0x40a8_8630);
    pub const PAYLOAD_HEADER_HASH: Tag = Tag(0x5f6a_60b1);
    pub const PAYLOAD_FILE_HASH: Tag = Tag(0x0c8d_1fd0);
    pub const DELTA_ENCODING: Tag = Tag(0x272c_df9f);
    pub const SLOT_NAME: Tag = Tag(0x1b23_1de7);
    pub const HANDLER_ARGUMENT: Tag = Tag(0x4b38_36a2);
    pub const APP_FILE_APP: Tag = Tag(0x6b42_b4a2);
    pub const APP_FILE_PATH: Tag = Tag(0x2c4e_33b4);
    pub const APP_ARCHIVE_APP: Tag = Tag(0x3fa2_21ce);
    pub const DELTA_FORMAT: Tag = Tag(0x3b8a_eb9a);
    pub const DELTA_INPUT: Tag = Tag(0x4e08_b9f1);
    pub const DELTA_ORIGINAL_HASH: Tag = Tag(0x6476_0e1c);
    pub const DELTA_INPUT_HASH: Tag = Tag(0x3a0d_1307);
    pub const SIGNATURES: Tag = Tag(0xa839_36f1);
    pub const CMS_SIGNATURE: Tag = Tag(0x9795_498f);
    pub const PAYLOADS: Tag = Tag(0x01f3_8fba);
    pub const PAYLOAD: Tag = Tag(0x490c_afaf);
    pub const PAYLOAD_HEADER: Tag = Tag(0x0959_ca75);
    pub const PAYLOAD_DATA: Tag = Tag(0x42fd_641a);
    pub const BLOCK_ENCODING: Tag = Tag(0x40ed_9314);
    pub const CHUNKER: Tag = Tag(0x5587_2cf8);
    pub const BLOCK_HASH_ALGORITHM: Tag = Tag(0x7f1f_994b);
    pub const DEDUPLICATED: Tag = Tag(0x0590_2926);
    pub const COMPRESSION: Tag = Tag(0x7832_17c6);
    pub const BLOCK_HASHES: Tag = Tag(0x76b3_d7a0);
    pub const BLOCK_SIZES: Tag = Tag(0x27e5_d3f2);
    pub const BLOCK_INDEX: Tag = Tag(0x1ae5_0c8e);
    pub const INDEX_CHUNKER: Tag = Tag(0x5cdf_21b0);
    pub const INDEX_HASH_ALGORITHM: Tag = Tag(0x1d92_a080);
    pub const INDEX_HASHES: Tag = Tag(0x55e5_47d8);
    pub const INDEX_SIZES: Tag = Tag(0x4668_c5ba);
    pub const SIGNED_METADATA: Tag = Tag(0x61d0_871e);
    pub const SIGNED_HEADER_HASH: Tag = Tag(0x1f99_2dfc);
}

fn malformed<T>(offset: u64, reason: &'static str) -> Result<T> {
    Err(Error::Malformed { offset, reason })
}

fn text(atom: &Atom<'_>) -> Result<String> {
    let text = atom.text()?;
    if text.len() > MAX_TEXT_SIZE || text.contains('\0') {
        return malformed(atom.offset, "a name is too long or holds a NUL byte");
    }
    Ok(text.to_owned())
}

fn algorithm(atom: &Atom<'_>) -> Result<HashAlgorithm> {
    let name = atom.text()?;
    HashAlgorithm::parse(name)
        .ok_or_else(|| Error::Unsupported(format!("hash algorithm {:?}", shortened(name))))
}

fn chunker(atom: &Atom<'_>) -> Result<Chunker> {
    let name = atom.text()?;
    Chunker::parse(name).ok_or_else(|| Error::Unsupported(format!("chunker {:?}", shortened(name))))
}

/// The beginning of a text from the bundle, for a message.
fn shortened(text: &str) -> String {
    text.chars().take(40).collect()
}

/// The atom that `raw` holds, which must be `tag` and nothing else.
fn only<'a>(raw: &'a [u8], offset: u64, tag: Tag, reason: &'static str) -> Result<Atoms<'a>> {
    let mut atoms = Atoms::new(raw, offset);
    match (atoms.next_atom()?, atoms.next_atom()?) {
        (Some(atom), None) if atom.tag == tag => atom.children(),
        _ => malformed(offset, reason),
    }
}

/// Parses the raw bundle header (both heads included).
pub fn parse_header(raw: &[u8], offset: u64) -> Result<Header> {
    let mut fields = only(raw, offset, tag::BUNDLE_HEADER, "this is no bundle header")?;
    let mut incremental = Once::default();
    let mut header_algorithm = Once::default();
    let mut manifest = Once::default();
    let mut entries = Vec::new();
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            // Informative only: nothing in it may decide anything.
            tag::MANIFEST => manifest.set(field.text()?, field.offset)?,
            tag::IS_INCREMENTAL => incremental.set(field.boolean()?, field.offset)?,
            tag::HASH_ALGORITHM => header_algorithm.set(algorithm(&field)?, field.offset)?,
            tag::PAYLOAD_ENTRY if entries.len() == MAX_PAYLOADS => {
                return malformed(field.offset, "there are more payloads than allowed")
            }
            tag::PAYLOAD_ENTRY => entries.push(field),
            _ => field.skip()?,
        }
    }
    let algorithm = header_algorithm.require(offset, "the header names no hash algorithm")?;
    Ok(Header {
        hash: algorithm.digest(raw),
        algorithm,
        incremental: incremental.require(offset, "the header does not say if it is incremental")?,
        entries: entries
            .iter()
            .map(|entry| parse_entry(entry, algorithm))
            .collect::<Result<_>>()?,
    })
}

/// The CMS signatures of the raw signatures segment (both heads included).
pub fn parse_signatures(raw: &[u8], offset: u64) -> Result<Vec<&[u8]>> {
    let mut fields = only(raw, offset, tag::SIGNATURES, "these are no signatures")?;
    let mut signatures = Vec::new();
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::CMS_SIGNATURE if signatures.len() == MAX_SIGNATURES => {
                return malformed(field.offset, "there are more signatures than allowed")
            }
            tag::CMS_SIGNATURE => signatures.push(field.value()?),
            _ => field.skip()?,
        }
    }
    Ok(signatures)
}

/// The bundle hash in the structure that a signature is over.
pub fn parse_signed_metadata(raw: &[u8]) -> Result<Digest> {
    let mut fields = only(raw, 0, tag::SIGNED_METADATA, "this is no signed metadata")?;
    let mut hash = Once::default();
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::SIGNED_HEADER_HASH => hash.set(field.text()?, field.offset)?,
            _ => field.skip()?,
        }
    }
    let text = hash.require(0, "the signed metadata have no header hash")?;
    Digest::parse(text)
        .ok_or_else(|| Error::Unsupported(format!("signed header hash {:?}", shortened(text))))
}

fn parse_entry(entry: &Atom<'_>, algorithm: HashAlgorithm) -> Result<Entry> {
    let at = entry.offset;
    let mut fields = entry.children()?;
    let mut delivery = Once::default();
    let mut header_digest = Once::default();
    let mut digest = Once::default();
    let mut delta = Once::default();
    let as_digest = |field: &Atom<'_>| match Digest::from_bytes(algorithm, field.value()?) {
        Some(digest) => Ok(digest),
        None => malformed(field.offset, "a payload hash has the wrong size"),
    };
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::TYPE_SLOT => delivery.set(parse_slot(&field)?, field.offset)?,
            tag::TYPE_EXECUTE => delivery.set(parse_execute(&field)?, field.offset)?,
            tag::TYPE_APP_FILE => delivery.set(parse_app_file(&field)?, field.offset)?,
            tag::TYPE_APP_ARCHIVE => delivery.set(parse_app_archive(&field)?, field.offset)?,
            tag::PAYLOAD_HEADER_HASH => header_digest.set(as_digest(&field)?, field.offset)?,
            tag::PAYLOAD_FILE_HASH => digest.set(as_digest(&field)?, field.offset)?,
            tag::DELTA_ENCODING => delta.set(parse_delta(&field)?, field.offset)?,
            _ => field.skip()?,
        }
    }
    Ok(Entry {
        delivery: delivery.get().unwrap_or(Delivery::None),
        header_digest: header_digest.require(at, "an entry has no payload header hash")?,
        digest: digest.require(at, "an entry has no payload hash")?,
        delta: delta.get(),
    })
}

fn parse_slot(slot: &Atom<'_>) -> Result<Delivery> {
    let mut name = Once::default();
    let mut fields = slot.children()?;
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::SLOT_NAME => name.set(text(&field)?, field.offset)?,
            _ => field.skip()?,
        }
    }
    Ok(Delivery::Slot(
        name.require(slot.offset, "a slot has no name")?,
    ))
}

fn parse_execute(execute: &Atom<'_>) -> Result<Delivery> {
    let mut arguments = Vec::new();
    let mut fields = execute.children()?;
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::HANDLER_ARGUMENT => arguments.push(text(&field)?),
            _ => field.skip()?,
        }
    }
    Ok(Delivery::Execute(arguments))
}

fn parse_app_file(file: &Atom<'_>) -> Result<Delivery> {
    let mut app = Once::default();
    let mut path = Once::default();
    let mut fields = file.children()?;
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::APP_FILE_APP => app.set(text(&field)?, field.offset)?,
            tag::APP_FILE_PATH => path.set(text(&field)?, field.offset)?,
            _ => field.skip()?,
        }
    }
    Ok(Delivery::AppFile {
        app: app.require(file.offset, "an app file names no app")?,
        path: path.require(file.offset, "an app file has no path")?,
    })
}

fn parse_app_archive(archive: &Atom<'_>) -> Result<Delivery> {
    let mut app = Once::default();
    let mut fields = archive.children()?;
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::APP_ARCHIVE_APP => app.set(text(&field)?, field.offset)?,
            _ => field.skip()?,
        }
    }
    Ok(Delivery::AppArchive(
        app.require(archive.offset, "an app archive names no app")?,
    ))
}

/// The delta format's name. The inputs are not needed to refuse a patch, but must be well formed.
fn parse_delta(delta: &Atom<'_>) -> Result<String> {
    let mut format = Once::default();
    let mut original = Once::default();
    let mut fields = delta.children()?;
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::DELTA_FORMAT => format.set(text(&field)?, field.offset)?,
            tag::DELTA_ORIGINAL_HASH => original.set(text(&field)?, field.offset)?,
            tag::DELTA_INPUT => {
                let mut hashes = field.children()?;
                while let Some(hash) = hashes.next_atom()? {
                    match hash.tag {
                        tag::DELTA_INPUT_HASH => drop(hash.text()?),
                        _ => hash.skip()?,
                    }
                }
            }
            _ => field.skip()?,
        }
    }
    format.require(delta.offset, "a delta encoding names no format")
}

/// Parses a raw payload header (both heads included). `data` is the place of the payload data.
///
/// `None` for a payload without block encoding.
pub fn parse_payload_header(raw: &[u8], offset: u64, data: Range<u64>) -> Result<Option<Index>> {
    let mut fields = only(
        raw,
        offset,
        tag::PAYLOAD_HEADER,
        "this is no payload header",
    )?;
    let mut encoding = Once::default();
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::BLOCK_ENCODING => encoding.set(parse_encoding(&field)?, field.offset)?,
            _ => field.skip()?,
        }
    }
    match encoding.get() {
        Some(encoding) => Index::new(encoding, data, offset).map(Some),
        None => Ok(None),
    }
}

fn parse_encoding(encoding: &Atom<'_>) -> Result<Encoding> {
    let at = encoding.offset;
    let mut fields = encoding.children()?;
    let mut block_chunker = Once::default();
    let mut block_algorithm = Once::default();
    let mut deduplicated = Once::default();
    let mut compression = Once::default();
    let mut hashes = Once::default();
    let mut sizes = Once::default();
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::CHUNKER => block_chunker.set(chunker(&field)?, field.offset)?,
            tag::BLOCK_HASH_ALGORITHM => block_algorithm.set(algorithm(&field)?, field.offset)?,
            tag::DEDUPLICATED => deduplicated.set(field.boolean()?, field.offset)?,
            tag::COMPRESSION => compression.set(
                match field.text()? {
                    "xz" => Compression::Xz,
                    other => {
                        return Err(Error::Unsupported(format!(
                            "compression {:?}",
                            shortened(other)
                        )))
                    }
                },
                field.offset,
            )?,
            tag::BLOCK_HASHES => hashes.set((field.value()?, field.offset), field.offset)?,
            tag::BLOCK_SIZES => sizes.set((field.value()?, field.offset), field.offset)?,
            _ => field.skip()?,
        }
    }
    let compression = compression.get().unwrap_or(Compression::None);
    let list = |(stored, offset): (&[u8], u64), bound: usize| match compression {
        Compression::None => Ok(stored.to_vec()),
        Compression::Xz => {
            let mut plain = Vec::new();
            match xz::Decoder::new().decompress(stored, bound, &mut plain) {
                Ok(()) => Ok(plain),
                Err(refused) => {
                    log::debug!("list at offset={offset}: {refused}");
                    malformed(
                        offset,
                        "a list of block hashes or sizes cannot be decompressed",
                    )
                }
            }
        }
    };
    let algorithm = block_algorithm.require(at, "a block encoding names no hash algorithm")?;
    let deduplicated =
        deduplicated.require(at, "a block encoding does not say if it is deduplicated")?;
    let sizes = match sizes.get() {
        Some(sizes) => Some(list(sizes, MAX_BLOCKS * 4)?),
        None => None,
    };
    // Without repeats there is one size for each hash, which bounds the longer list by the shorter.
    let most = match &sizes {
        Some(sizes) if !deduplicated => sizes.len() / 4 * algorithm.size(),
        _ => MAX_BLOCKS * MAX_DIGEST_SIZE,
    };
    let hashes = hashes.require(at, "a block encoding has no block hashes")?;
    Ok(Encoding {
        chunker: block_chunker.require(at, "a block encoding names no chunker")?,
        algorithm,
        deduplicated,
        compression,
        digests: list(hashes, most)?,
        sizes,
    })
}

/// A prepared index of a local image (`.rugix-block-index`): its blocks in order, plain sizes.
#[derive(Clone, Debug)]
pub struct BlockIndex {
    /// How the image was cut.
    pub chunker: Chunker,
    /// Algorithm of the digests.
    pub algorithm: HashAlgorithm,
    /// Raw digests of all blocks in image order, concatenated.
    pub digests: Vec<u8>,
    /// Plain size of each block in bytes.
    pub sizes: Vec<u32>,
}

impl BlockIndex {
    /// The digest, offset and size of each block.
    pub fn blocks(&self) -> impl Iterator<Item = (Digest, u64, u32)> + '_ {
        let digests = self.digests.chunks_exact(self.algorithm.size());
        digests
            .zip(&self.sizes)
            .scan(0u64, |offset, (digest, size)| {
                let at = *offset;
                *offset += u64::from(*size);
                Some((Digest::from_bytes(self.algorithm, digest)?, at, *size))
            })
    }
}

/// A block index file of blocks given by their raw digests, all of one algorithm, and plain sizes.
pub fn write_block_index<'a>(
    chunker: Chunker,
    algorithm: HashAlgorithm,
    blocks: impl Iterator<Item = (&'a [u8], u32)>,
) -> Vec<u8> {
    let (mut digests, mut sizes) = (Vec::new(), Vec::new());
    for (digest, size) in blocks {
        digests.extend_from_slice(digest);
        sizes.extend(size.to_be_bytes());
    }
    let mut writer = Writer::default();
    writer
        .start(tag::BLOCK_INDEX)
        .value(tag::INDEX_CHUNKER, chunker.to_string().as_bytes())
        .value(tag::INDEX_HASH_ALGORITHM, algorithm.to_string().as_bytes())
        .value(tag::INDEX_HASHES, &digests)
        .value(tag::INDEX_SIZES, &sizes)
        .end(tag::BLOCK_INDEX);
    writer.into_bytes()
}

/// Parses a block index file.
pub fn parse_block_index(bytes: &[u8]) -> Result<BlockIndex> {
    let mut fields = only(bytes, 0, tag::BLOCK_INDEX, "this is no block index")?;
    let mut index_chunker = Once::default();
    let mut index_algorithm = Once::default();
    let mut hashes = Once::default();
    let mut sizes = Once::default();
    while let Some(field) = fields.next_atom()? {
        match field.tag {
            tag::INDEX_CHUNKER => index_chunker.set(chunker(&field)?, field.offset)?,
            tag::INDEX_HASH_ALGORITHM => index_algorithm.set(algorithm(&field)?, field.offset)?,
            tag::INDEX_HASHES => hashes.set(field.value()?, field.offset)?,
            tag::INDEX_SIZES => sizes.set(field.value()?, field.offset)?,
            _ => field.skip()?,
        }
    }
    let algorithm = index_algorithm.require(0, "the block index names no hash algorithm")?;
    let digests = hashes.require(0, "the block index has no hashes")?;
    let sizes = sizes.require(0, "the block index has no sizes")?;
    if digests.len() % algorithm.size() != 0
        || sizes.len() % 4 != 0
        || digests.len() / algorithm.size() != sizes.len() / 4
    {
        return malformed(0, "the block index has lists of inconsistent lengths");
    }
    Ok(BlockIndex {
        chunker: index_chunker.require(0, "the block index names no chunker")?,
        algorithm,
        digests: digests.to_vec(),
        sizes: sizes
            .chunks_exact(4)
            .filter_map(|raw| raw.try_into().ok())
            .map(u32::from_be_bytes)
            .collect(),
    })
}
