//! From images to a bundle: what the reference's bundler writes, to the byte, for the same manifest
//! and files.
//!
//! ```text
//!   image ─▶ scan ─▶ blocks ─▶ workers ─▶ calling thread ─▶ spool ─▶ bundle
//!            cut,    digests   read,      in order: hash    stored   heads, headers,
//!            hash              verify,    of the payload,   blocks   the spool, ends
//!                              compress   write
//! ```
//!
//! An image is read twice. The second time each block must still have the digest of the first time,
//! and the payload hash is taken over exactly those bytes, so an image that changes in between fails
//! and never becomes a bundle that cannot be installed. Memory is bounded by blocks in flight, not by
//! the image.
//!
//! The headers state the size of everything, so they can only be written when all is compressed.
//! Until then the stored blocks are spooled to a file without a name in the folder of the output.
//! The bundle is put together beside the output and renamed: an output is either complete or not
//! there, and nothing is left over of a run that failed.
//!
//! The result depends on the images, their file names and the options, not on the machine: no time, no
//! user, no number of cores. What our own reader would refuse (too many blocks, too large ones) is
//! refused here.
//!
//! Left out of builds without the feature `pack`.

mod blocks;
mod encoder;
pub mod manifest;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::thread;

use serde::{Serialize, Serializer};

use self::blocks::{copy, store_plain, Spool, Storing};
pub(crate) use self::encoder::{compress, compressed_size};
use self::manifest::{
    Algorithm, BlockEncoding, Compression, Cutting, Delivery, Manifest, Payload, UpdateType,
};
use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgorithm};
use crate::image::Image;
use crate::output::Output;
use crate::rugix::{tag, MAX_HEADER_SIZE, MAX_PAYLOAD_HEADER_SIZE};
use crate::scan::Found;
use crate::stlv::Writer;
use crate::terminal;
use crate::work::{Tell, Work, READ};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// Cost of a byte that is compressed, against one that is read, cut and hashed. Measured at level 6
/// with a Debian image.
pub(crate) const COMPRESS: u64 = 24;

/// What to pack, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The payloads, and how each is stored.
    pub manifest: Manifest,
    /// Their images, in the same order: files or block devices.
    pub images: Vec<PathBuf>,
    /// The bundle to write; replaced if it exists.
    pub output: PathBuf,
    /// Ask no more memory of who unpacks a block than its size: an xz dictionary that is no larger than
    /// the largest block. The bundle is as valid, but not byte for byte the reference's.
    pub fit_dictionary: bool,
}

impl Options {
    /// One image for the slot `system`, stored as [`default_encoding`] says: a full update.
    pub fn new(image: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Self {
        Self::of_slots(
            vec![("system".to_owned(), image.into())],
            &default_encoding(),
            output.into(),
        )
    }

    /// An image for each of several slots, all stored in the same way: a full update.
    pub fn of_slots(
        slots: Vec<(String, PathBuf)>,
        encoding: &BlockEncoding,
        output: PathBuf,
    ) -> Self {
        let payload = |(slot, image): (String, PathBuf)| {
            let name = image.file_name().unwrap_or_default();
            let payload = Payload {
                delivery: Delivery::Slot { slot },
                filename: name.to_string_lossy().into_owned(),
                block_encoding: Some(encoding.clone()),
            };
            (payload, image)
        };
        let (payloads, images) = slots.into_iter().map(payload).unzip();
        Self {
            manifest: Manifest {
                update_type: UpdateType::Full,
                hash_algorithm: encoding.hash_algorithm,
                payloads,
            },
            images,
            output,
            fit_dictionary: false,
        }
    }

    /// What the `rugix-bundle.toml` of a folder says.
    pub fn of_folder(folder: &Path, output: PathBuf) -> Result<Self> {
        let (manifest, images) = Manifest::of_folder(folder)?;
        Output::new(&output)?.must_not_be(&folder.join(manifest::FILE))?;
        Ok(Self {
            manifest,
            images,
            output,
            fit_dictionary: false,
        })
    }
}

/// `casync-64`, SHA-512/256, deduplicated, xz at level 6.
pub fn default_encoding() -> BlockEncoding {
    encoding(Chunker::default(), HashAlgorithm::default(), true, Some(6))
}

/// An encoding with nothing left to the bundler's defaults.
pub fn encoding(
    chunker: Chunker,
    hash: HashAlgorithm,
    deduplicate: bool,
    level: Option<u32>,
) -> BlockEncoding {
    BlockEncoding {
        chunker: Cutting(chunker),
        hash_algorithm: Some(Algorithm(hash)),
        deduplicate: Some(deduplicate),
        compression: level.map(|level| Compression::Xz { level: Some(level) }),
    }
}

/// What was packed, schema 1.
#[derive(Clone, Debug, Serialize)]
pub struct Packed {
    /// Version of the JSON.
    pub schema: u32,
    /// The bundle hash, to install with.
    #[serde(serialize_with = "text")]
    pub hash: Digest,
    /// Where the bundle is.
    pub output: String,
    /// Size of the bundle in bytes.
    pub size: u64,
    /// Its payloads, in order.
    pub payloads: Vec<PackedPayload>,
}

/// A payload of what was packed.
#[derive(Clone, Debug, Serialize)]
pub struct PackedPayload {
    /// Its file.
    pub image: String,
    /// Size of that in bytes.
    pub size: u64,
    /// Digest of that.
    #[serde(serialize_with = "text")]
    pub digest: Digest,
    /// Blocks of it; none if it is stored as it is.
    pub blocks: u64,
    /// Those that the bundle holds.
    pub stored_blocks: u64,
    /// Bytes that the bundle holds of it.
    pub stored_size: u64,
}

fn text<S: Serializer>(digest: &Digest, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(digest)
}

/// For people: a line for each payload, and one for the bundle.
impl fmt::Display for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for payload in &self.payloads {
            let (plain, stored) = (
                terminal::size(payload.size),
                terminal::size(payload.stored_size),
            );
            write!(f, "{}: {plain}", payload.image)?;
            match payload.blocks {
                0 if payload.size > 0 => writeln!(f, ", stored as it is")?,
                blocks => writeln!(
                    f,
                    " in {blocks} block{}, {} stored in {stored}",
                    if blocks == 1 { "" } else { "s" },
                    payload.stored_blocks
                )?,
            }
        }
        write!(f, "{}: {}", self.output, terminal::size(self.size))
    }
}

/// Makes a bundle.
pub fn pack(options: &Options) -> Result<Packed> {
    pack_and_tell(options, &|_| {})
}

/// The same, and tells how far it is.
pub fn pack_and_tell(options: &Options, tell: Tell<'_>) -> Result<Packed> {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    pack_on(options, tell, cores)
}

fn pack_on(options: &Options, tell: Tell<'_>, cores: usize) -> Result<Packed> {
    let manifest = &options.manifest;
    manifest.check()?;
    if manifest.payloads.len() != options.images.len() {
        return Err(Error::Internal("each payload has an image"));
    }
    let images = options.images.iter().map(|path| Image::open(path));
    let images = images.collect::<Result<Vec<_>>>()?;
    let output = Output::new(&options.output)?;
    options
        .images
        .iter()
        .try_for_each(|image| output.must_not_be(image))?;
    let payloads = || manifest.payloads.iter().zip(&images);
    let cost = payloads()
        .map(|(payload, image)| image.size().saturating_mul(READ + cost_to_store(payload)));
    let done = AtomicU64::new(0);
    let packing = Packing {
        hash: manifest.hash(),
        fit_dictionary: options.fit_dictionary,
        cores,
        output: &output,
        work: Work::new(tell, &done, cost.fold(0, u64::saturating_add)),
    };
    let mut spool = Spool::new(&output)?;
    let parts = payloads().map(|(payload, image)| packing.payload(payload, image, &mut spool));
    let parts = parts.collect::<Result<Vec<_>>>()?;

    let header = bundle_header(manifest, &parts)?;
    let hash = manifest.hash().digest(&header);
    let size = write(&output, &header, &parts, spool)?;
    Ok(Packed {
        schema: SCHEMA,
        hash,
        output: options.output.display().to_string(),
        size,
        payloads: parts.into_iter().map(|part| part.packed).collect(),
    })
}

/// What a byte of a payload costs besides being read once.
fn cost_to_store(payload: &Payload) -> u64 {
    match &payload.block_encoding {
        None => 0,
        Some(encoding) if encoding.level().is_none() => READ,
        Some(_) => COMPRESS,
    }
}

/// What is the same for all payloads.
#[derive(Debug)]
struct Packing<'a> {
    /// Algorithm of the digests of headers and payloads.
    hash: HashAlgorithm,
    fit_dictionary: bool,
    cores: usize,
    output: &'a Output,
    work: Work<'a>,
}

/// A payload that is spooled.
struct Part {
    /// Its header, both heads included.
    header: Vec<u8>,
    packed: PackedPayload,
}

impl Packing<'_> {
    fn payload(&self, payload: &Payload, image: &Image, spool: &mut Spool) -> Result<Part> {
        warn_of(payload, image);
        let before = spool.size();
        let mut header = Writer::default();
        header.start(tag::PAYLOAD_HEADER);
        let mut packed = PackedPayload {
            image: image.path().display().to_string(),
            size: image.size(),
            digest: self.hash.digest(b""),
            blocks: 0,
            stored_blocks: 0,
            stored_size: 0,
        };
        match &payload.block_encoding {
            Some(encoding) => self.blocks(encoding, image, spool, &mut header, &mut packed)?,
            None => {
                let part = self.work.part("store", image.size(), READ);
                packed.digest = store_plain(image, self.hash, spool, &part)?;
            }
        }
        image.check_size()?;
        header.end(tag::PAYLOAD_HEADER);
        packed.stored_size = spool.size() - before;
        Ok(Part {
            header: header.into_bytes(),
            packed,
        })
    }

    /// Cuts an image, stores its blocks, and writes their encoding.
    fn blocks(
        &self,
        encoding: &BlockEncoding,
        image: &Image,
        spool: &mut Spool,
        header: &mut Writer,
        packed: &mut PackedPayload,
    ) -> Result<()> {
        let (Cutting(chunker), hash, level) = (encoding.chunker, encoding.hash(), encoding.level());
        let part = self.work.part("cut", image.size(), READ);
        let blocks = image.blocks(chunker, hash, &|bytes| part.add(bytes))?;
        // Made before the blocks are compressed, since it is what grows too large first.
        let hashes = self.list(encoding, hash_list(&blocks))?;
        check_size_of(hashes.len(), chunker)?;
        let (phase, each) = match level {
            Some(_) => ("compress", COMPRESS),
            None => ("store", READ),
        };
        let storing = Storing {
            encoding,
            fit_dictionary: self.fit_dictionary,
            hash: self.hash,
            cores: self.cores,
        };
        let part = self.work.part(phase, image.size(), each);
        let (digest, sizes) = storing.store(image, &blocks, spool, &part)?;
        header
            .start(tag::BLOCK_ENCODING)
            .value(tag::CHUNKER, chunker.to_string().as_bytes())
            .value(tag::BLOCK_HASH_ALGORITHM, hash.name().as_bytes())
            .value(tag::DEDUPLICATED, &[u8::from(encoding.deduplicates())]);
        if level.is_some() {
            header.value(tag::COMPRESSION, b"xz");
        }
        header.value(tag::BLOCK_HASHES, &hashes);
        // Sizes that follow from the chunker are left out.
        if level.is_some() || !chunker.is_fixed() {
            let list = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
            let list = self.list(encoding, list)?;
            check_size_of(hashes.len() + list.len(), chunker)?;
            header.value(tag::BLOCK_SIZES, &list);
        }
        header.end(tag::BLOCK_ENCODING);
        packed.digest = digest;
        packed.blocks = blocks.len() as u64;
        packed.stored_blocks = sizes.len() as u64;
        Ok(())
    }

    /// A list of the block encoding as it is stored.
    fn list(&self, encoding: &BlockEncoding, list: Vec<u8>) -> Result<Vec<u8>> {
        let stored = match encoding.level() {
            None => return Ok(list),
            Some(level) if self.fit_dictionary => {
                let size = u32::try_from(list.len()).unwrap_or(u32::MAX);
                encoder::compress_fitted(&list, level, size)
            }
            Some(level) => compress(&list, level),
        };
        stored.map_err(|source| self.output.fail(source))
    }
}

fn hash_list(blocks: &[Found<Digest>]) -> Vec<u8> {
    let mut list = Vec::new();
    for block in blocks {
        list.extend_from_slice(block.kept.as_bytes());
    }
    list
}

/// Refuses lists that make a payload header too large. All else in one is small.
fn check_size_of(lists: usize, chunker: Chunker) -> Result<()> {
    const REST: usize = 1 << 10;
    if lists + REST > MAX_PAYLOAD_HEADER_SIZE {
        return Err(Error::Usage(format!(
            "the block index takes {lists} bytes, more than the {MAX_PAYLOAD_HEADER_SIZE} that can be installed: {chunker} makes too many blocks of the image"
        )));
    }
    Ok(())
}

/// Warns of what is likely a mistake that a device would have to pay for.
fn warn_of(payload: &Payload, image: &Image) {
    let path = image.path().display();
    let Delivery::Slot { slot } = &payload.delivery else {
        log::warn!(
            "{path} is to be executed: reflash install refuses such a bundle, Rugix does not"
        );
        return;
    };
    if let Some(kind) = packed_kind(image) {
        log::warn!(
            "{path} looks like {kind}, and slot {slot} would hold it as it is: is it to be unpacked first?"
        );
    }
    if payload.block_encoding.is_none() {
        log::warn!(
            "{path} has no block-encoding: installers fetch all of it each time, and refuse it unless told otherwise"
        );
    }
}

/// What a file is that holds an image rather than being one.
pub(crate) fn packed_kind(image: &Image) -> Option<&'static str> {
    const SIGNS: [(&[u8], &str); 5] = [
        (b"\xfd7zXZ\0", "an xz file"),
        (b"\x1f\x8b\x08", "a gzip file"),
        (b"\x28\xb5\x2f\xfd", "a zstd file"),
        (b"PK\x03\x04", "a zip file"),
        (b"kPt\x1c\x40", "a bundle"),
    ];
    let mut start = [0; 6];
    let is_read = image.size() >= 6 && image.read_at(&mut start, 0).is_ok();
    let found = SIGNS.iter().find(|(sign, _)| start.starts_with(sign));
    found.filter(|_| is_read).map(|(_, kind)| *kind)
}

/// Puts the bundle together; its size.
fn write(output: &Output, header: &[u8], parts: &[Part], spool: Spool) -> Result<u64> {
    let mut spooled = spool.into_file()?;
    output.store(|bundle| {
        let mut size = 0;
        let mut put = |bundle: &mut std::fs::File, writer: Writer| {
            let bytes = writer.into_bytes();
            size += bytes.len() as u64;
            bundle.write_all(&bytes)
        };
        let mut head = Writer::default();
        head.start(tag::BUNDLE);
        head.append(header);
        head.start(tag::PAYLOADS);
        put(bundle, head)?;
        for part in parts {
            let mut head = Writer::default();
            head.start(tag::PAYLOAD);
            head.append(&part.header);
            head.value_head(tag::PAYLOAD_DATA, part.packed.stored_size);
            put(bundle, head)?;
            copy(&mut spooled, part.packed.stored_size, bundle)?;
            let mut end = Writer::default();
            end.end(tag::PAYLOAD);
            put(bundle, end)?;
        }
        let mut ends = Writer::default();
        ends.end(tag::PAYLOADS).end(tag::BUNDLE);
        put(bundle, ends)?;
        let stored: u64 = parts.iter().map(|part| part.packed.stored_size).sum();
        Ok(size + stored)
    })
}

/// The bundle header, both heads included.
fn bundle_header(manifest: &Manifest, parts: &[Part]) -> Result<Vec<u8>> {
    let hash = manifest.hash();
    let incremental = manifest.update_type == UpdateType::Incremental;
    let mut header = Writer::default();
    header
        .start(tag::BUNDLE_HEADER)
        .value(tag::MANIFEST, manifest.to_json()?.as_bytes())
        .value(tag::IS_INCREMENTAL, &[u8::from(incremental)])
        .value(tag::HASH_ALGORITHM, hash.name().as_bytes());
    for (payload, part) in manifest.payloads.iter().zip(parts) {
        header.start(tag::PAYLOAD_ENTRY);
        match &payload.delivery {
            Delivery::Slot { slot } => {
                header
                    .start(tag::TYPE_SLOT)
                    .value(tag::SLOT_NAME, slot.as_bytes())
                    .end(tag::TYPE_SLOT);
            }
            Delivery::Execute { handler } => {
                header.start(tag::TYPE_EXECUTE);
                for argument in handler {
                    header.value(tag::HANDLER_ARGUMENT, argument.as_bytes());
                }
                header.end(tag::TYPE_EXECUTE);
            }
        }
        header
            .value(
                tag::PAYLOAD_HEADER_HASH,
                hash.digest(&part.header).as_bytes(),
            )
            .value(tag::PAYLOAD_FILE_HASH, part.packed.digest.as_bytes())
            .end(tag::PAYLOAD_ENTRY);
    }
    header.end(tag::BUNDLE_HEADER);
    let header = header.into_bytes();
    // What is exactly as large is refused by the reference.
    if header.len() >= MAX_HEADER_SIZE {
        return Err(Error::Usage(format!(
            "the bundle header takes {} bytes, and {MAX_HEADER_SIZE} are too many to be installed: use shorter names",
            header.len()
        )));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A folder that is gone with the value.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            fs::create_dir(&path).expect("a new folder");
            Self(path)
        }

        fn names(&self) -> Vec<PathBuf> {
            let entries = fs::read_dir(&self.0).expect("the folder");
            let mut names: Vec<PathBuf> = entries
                .map(|entry| entry.expect("an entry").file_name().into())
                .collect();
            names.sort();
            names
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn image(len: usize) -> Vec<u8> {
        let mut state = 3u64;
        (0..len)
            .map(|i| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                // A stretch of noise, one of few letters, one of zeros.
                match i >> 14 & 3 {
                    0 => (state >> 56) as u8,
                    1 => b'a' + (state >> 62) as u8,
                    _ => 0,
                }
            })
            .collect()
    }

    #[test]
    fn the_machine_does_not_matter() {
        let folder = Folder::new("reflash-pack-machine");
        let input = folder.0.join("image");
        fs::write(&input, image(700_000)).expect("an image");
        for (compression, deduplicate) in [(Some(0), true), (Some(6), false), (None, true)] {
            let mut options = Options::new(&input, folder.0.join("a"));
            let chunker = Chunker::parse("casync-1").expect("a chunker");
            options.manifest.payloads[0].block_encoding = Some(encoding(
                chunker,
                HashAlgorithm::Sha256,
                deduplicate,
                compression,
            ));
            let alone = pack_on(&options, &|_| {}, 1).expect("a bundle");
            let bundle = fs::read(&options.output).expect("the bundle");
            assert_eq!(alone.size, bundle.len() as u64);
            for cores in [2, 7] {
                options.output = folder.0.join("b");
                let packed = pack_on(&options, &|_| {}, cores).expect("a bundle");
                assert_eq!(packed.hash, alone.hash);
                assert!(fs::read(&options.output).expect("the bundle") == bundle);
            }
        }
        assert_eq!(folder.names(), ["a", "b", "image"].map(PathBuf::from));
    }

    #[test]
    fn an_image_that_changes_makes_no_bundle() {
        let folder = Folder::new("reflash-pack-changes");
        let path = folder.0.join("image");
        let mut bytes = image(200_000);
        fs::write(&path, &bytes).expect("an image");
        let opened = Image::open(&path).expect("the image");
        let output = Output::new(&folder.0.join("out")).expect("an output");
        let fixed = Chunker::parse("fixed-4").expect("a chunker");
        let hash = HashAlgorithm::Sha512_256;
        let blocks = opened.blocks(fixed, hash, &|_| {}).expect("blocks");
        let done = AtomicU64::new(0);
        let store = |cores, deduplicate| {
            let storing = Storing {
                encoding: &encoding(fixed, hash, deduplicate, Some(0)),
                fit_dictionary: false,
                hash,
                cores,
            };
            let mut spool = Spool::new(&output).expect("a spool");
            let progress = Work::new(&|_| {}, &done, 1).part("compress", 1, 1);
            storing
                .store(&opened, &blocks, &mut spool, &progress)
                .map(|_| spool.size())
        };
        for cores in [1, 3] {
            for deduplicate in [true, false] {
                assert!(store(cores, deduplicate).expect("unchanged") > 0);
                // The last byte of all, then one among repeated zeros.
                for at in [199_999, 3 << 14] {
                    bytes[at] ^= 1;
                    fs::write(&path, &bytes).expect("another image");
                    let error = store(cores, deduplicate).expect_err("changed").to_string();
                    assert!(error.contains("changed while it was read"), "{error}");
                    bytes[at] ^= 1;
                    fs::write(&path, &bytes).expect("the image again");
                }
            }
        }
        assert!(opened.check_size().is_ok());
        fs::write(&path, image(200_001)).expect("a longer image");
        assert!(opened.check_size().is_err());
        fs::write(&path, image(100)).expect("a shorter image");
        assert!(matches!(store(2, true), Err(Error::Input { .. })));
        assert_eq!(folder.names(), [PathBuf::from("image")]);
    }
}
