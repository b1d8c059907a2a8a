//! From an image to a bundle with one slot payload: what the reference's bundler writes, to the
//! byte, for the same parameters and file name.
//!
//! ```text
//!   image ─▶ scan ─▶ blocks ─▶ workers ─▶ calling thread ─▶ spool ─▶ bundle
//!            cut,    digests   read,      in order: hash    stored   heads, headers,
//!            hash              verify,    of the payload,   blocks   the spool, ends
//!                              compress   write
//! ```
//!
//! The image is read twice. The second time each block must still have the digest of the first
//! time, and the payload hash is taken over exactly those bytes, so an image that changes in
//! between fails and never becomes a bundle that cannot be installed. Memory is bounded by blocks
//! in flight, not by the image.
//!
//! The headers state the size of everything, so they can only be written when all is compressed.
//! Until then the stored blocks are spooled to a file without a name in the folder of the output.
//! The bundle is put together beside the output and renamed: an output is either complete or not
//! there, and nothing is left over of a run that failed.
//!
//! The result depends on the image, its file name and the options, not on the machine: no time, no
//! user, no number of cores. What our own reader would refuse (too many blocks, too large ones) is
//! refused here.
//!
//! This file is the only user of `liblzma`, and is left out of builds without the feature `pack`.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};
use std::path::PathBuf;
use std::sync::{mpsc, Mutex};
use std::thread;

use liblzma::stream::{Action, Check, Filters, LzmaOptions, Status, Stream};

use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgorithm, Hasher};
use crate::image::{check_chunker, Image};
use crate::output::Output;
use crate::rugix::{tag, MAX_PAYLOAD_HEADER_SIZE, MAX_TEXT_SIZE};
use crate::scan::Found;
use crate::stlv::Writer;

/// Highest xz preset.
const MAX_LEVEL: u32 = 9;

/// Blocks in flight for each worker: enough that none waits while the writer waits for a slow one.
const BLOCKS_PER_WORKER: usize = 4;

/// Plain and compressed bytes in flight, which bounds the workers for very large blocks. What each
/// encoder needs (about 100 MiB at level 6) comes on top.
const MAX_IN_FLIGHT: usize = 512 << 20;

/// Smallest dictionary of the format.
const MIN_DICTIONARY: u32 = 4096;

/// Bytes that are compressed at once where it is not blocks that are.
const PIECE: usize = 1 << 20;

/// What to pack, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The image: a file or block device.
    pub image: PathBuf,
    /// The bundle to write; replaced if it exists.
    pub output: PathBuf,
    /// The slot that the payload is for.
    pub slot: String,
    /// How to cut the image.
    pub chunker: Chunker,
    /// Algorithm of all digests.
    pub hash: HashAlgorithm,
    /// The xz preset, 0 to 9, or `None` to store blocks as they are.
    pub compression: Option<u32>,
    /// Ask no more memory of who unpacks a block than its size: an xz dictionary that is no larger than
    /// a block can be. The bundle is as valid, but not byte for byte the reference's.
    pub fit_dictionary: bool,
    /// Store blocks that occur several times only once.
    pub deduplicate: bool,
    /// Mark the update as "incremental": it only delivers payloads, it is no new system.
    pub incremental: bool,
}

impl Options {
    /// The defaults: slot `system`, `casync-64`, SHA-512/256, xz at level 6, deduplicated, full.
    pub fn new(image: impl Into<PathBuf>, output: impl Into<PathBuf>) -> Self {
        Self {
            image: image.into(),
            output: output.into(),
            slot: "system".into(),
            chunker: Chunker::parse("casync-64").expect("the default is a chunker"),
            hash: HashAlgorithm::Sha512_256,
            compression: Some(6),
            fit_dictionary: false,
            deduplicate: true,
            incremental: false,
        }
    }
}

/// What was packed.
#[derive(Clone, Debug)]
pub struct Packed {
    /// The bundle hash, to install with.
    pub hash: Digest,
    /// Size of the bundle in bytes.
    pub size: u64,
    /// Digest of the image.
    pub payload: Digest,
    /// Size of the image in bytes.
    pub payload_size: u64,
    /// Blocks of the image.
    pub blocks: u64,
    /// Those that the bundle holds.
    pub stored_blocks: u64,
    /// Bytes they take.
    pub stored_size: u64,
}

/// Makes a bundle of one image.
pub fn pack(options: &Options) -> Result<Packed> {
    let cores = thread::available_parallelism().map_or(1, |n| n.get());
    pack_on(options, cores)
}

fn pack_on(options: &Options, cores: usize) -> Result<Packed> {
    check(options)?;
    let image = Image::open(&options.image)?;
    let output = Output::new(&options.output)?;
    output.must_not_be(&options.image)?;
    let mut spool = Spool::new(&output)?;

    let blocks = image.blocks(options.chunker, options.hash, &|_| {})?;
    let hashes = hashes(options, &output, &blocks)?;
    let payload = store(options, &image, &blocks, cores, &mut spool)?;
    image.check_size()?;

    let payload_header = payload_header(options, &output, &hashes, &spool.sizes)?;
    let header = bundle_header(options, &options.hash.digest(&payload_header), &payload);
    let hash = options.hash.digest(&header);
    let (stored_blocks, stored_size) = (spool.sizes.len() as u64, spool.size);
    let [mut bundle, mut payloads, mut data, mut ends] = [(); 4].map(|()| Writer::default());
    bundle.start(tag::BUNDLE);
    payloads.start(tag::PAYLOADS).start(tag::PAYLOAD);
    data.value_head(tag::PAYLOAD_DATA, stored_size);
    ends.end(tag::PAYLOAD).end(tag::PAYLOADS).end(tag::BUNDLE);
    let before = [
        bundle.into_bytes(),
        header,
        payloads.into_bytes(),
        payload_header,
        data.into_bytes(),
    ];
    let size = write(&output, &before.concat(), spool, &ends.into_bytes())?;
    Ok(Packed {
        hash,
        size,
        payload,
        payload_size: image.size(),
        blocks: blocks.len() as u64,
        stored_blocks,
        stored_size,
    })
}

/// Refuses what no reader of ours would install.
fn check(options: &Options) -> Result<()> {
    let refuse = |message: String| Err(Error::Usage(message));
    check_chunker(options.chunker)?;
    let slot = &options.slot;
    if slot.is_empty() || slot.len() > MAX_TEXT_SIZE || slot.contains('\0') {
        return refuse(format!("{slot:?} is no name for a slot"));
    }
    match options.compression {
        Some(level) if level > MAX_LEVEL => refuse(format!(
            "there is no xz level {level}, only 0 to {MAX_LEVEL}"
        )),
        _ => Ok(()),
    }
}

/// The stored blocks, one after another, in a file without a name.
#[derive(Debug)]
struct Spool {
    file: BufWriter<File>,
    /// Bytes in it.
    size: u64,
    /// Bytes of each block.
    sizes: Vec<u32>,
    /// For errors.
    path: PathBuf,
}

impl Spool {
    fn new(output: &Output) -> Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(1 << 20, output.scratch()?),
            size: 0,
            sizes: Vec::new(),
            path: output.path().to_owned(),
        })
    }

    fn fail(&self, source: io::Error) -> Error {
        Error::Output {
            path: self.path.clone(),
            source,
        }
    }

    /// The file, to be read from its start.
    fn into_file(mut self) -> Result<File> {
        let ready = self.file.flush().and_then(|()| self.file.rewind());
        ready.map_err(|source| self.fail(source))?;
        Ok(self.file.into_parts().0)
    }

    fn add(&mut self, stored: &[u8]) -> Result<()> {
        self.file
            .write_all(stored)
            .map_err(|source| self.fail(source))?;
        self.size += stored.len() as u64;
        self.sizes.push(
            u32::try_from(stored.len())
                .map_err(|_| Error::Internal("a stored block has less than 4 GiB"))?,
        );
        Ok(())
    }
}

/// Puts the bundle together; its size.
fn write(output: &Output, head: &[u8], spool: Spool, tail: &[u8]) -> Result<u64> {
    let spooled = spool.size;
    let mut stored = spool.into_file()?;
    output.store(|bundle| {
        bundle.write_all(head)?;
        // Files on both sides: the kernel copies, or shares the blocks where it can.
        let copied = io::copy(&mut stored, bundle)?;
        if copied != spooled {
            return Err(io::Error::other("the spooled blocks are not all there"));
        }
        bundle.write_all(tail)?;
        Ok(head.len() as u64 + copied + tail.len() as u64)
    })
}

/// The list of block hashes as it is stored. Made before the blocks are compressed, since it is
/// what grows too large first.
fn hashes(options: &Options, output: &Output, blocks: &[Found<Digest>]) -> Result<Vec<u8>> {
    let mut list = Vec::with_capacity(blocks.len() * options.hash.size());
    for block in blocks {
        list.extend_from_slice(block.kept.as_bytes());
    }
    let list = stored_list(options, output, list)?;
    check_header_size(options, list.len())?;
    Ok(list)
}

fn check_header_size(options: &Options, size: usize) -> Result<()> {
    if size > MAX_PAYLOAD_HEADER_SIZE {
        return Err(Error::Usage(format!(
            "the block index takes {size} bytes, more than the {MAX_PAYLOAD_HEADER_SIZE} that can be installed: {} makes too many blocks of the image",
            options.chunker
        )));
    }
    Ok(())
}

/// A list of the block encoding as it is stored.
fn stored_list(options: &Options, output: &Output, list: Vec<u8>) -> Result<Vec<u8>> {
    match options.compression {
        None => Ok(list),
        Some(level) => compress(&list, level).map_err(|source| output.fail(source)),
    }
}

/// A block on its way from a worker to the spool.
struct Ready {
    plain: Vec<u8>,
    /// What is stored, if not the plain bytes.
    compressed: Option<Vec<u8>>,
}

/// Reads, verifies, compresses and spools the blocks; the digest of the image.
///
/// The calling thread hands out blocks and takes them back in order, so that no more than a few
/// for each worker are in flight. With one core it does everything itself.
fn store(
    options: &Options,
    image: &Image,
    blocks: &[Found<Digest>],
    cores: usize,
    spool: &mut Spool,
) -> Result<Digest> {
    let mut seen = HashSet::new();
    let jobs: Vec<(&Found<Digest>, bool)> = blocks
        .iter()
        .map(|block| (block, !options.deduplicate || seen.insert(block.kept)))
        .collect();
    drop(seen);
    let path = spool.path.clone();
    let prepare = |number: usize| -> Result<Ready> {
        let &(block, stored) = jobs.get(number).ok_or(WITHIN)?;
        let plain = image.read(block)?;
        let compressed = match options.compression {
            Some(level) if stored => Some(match options.fit_dictionary {
                true => encoder(level, options.chunker.max_size())
                    .and_then(|stream| compress_by(stream, &plain)),
                false => compress(&plain, level),
            }),
            _ => None,
        };
        let compressed = compressed.transpose().map_err(|source| Error::Output {
            path: path.clone(),
            source,
        })?;
        Ok(Ready { plain, compressed })
    };
    let mut hasher = Hasher::new(options.hash);
    let mut tenths = 0;
    let mut take = |number: usize, ready: Ready| -> Result<()> {
        let &(block, stored) = jobs.get(number).ok_or(WITHIN)?;
        hasher.update(&ready.plain);
        if stored {
            spool.add(ready.compressed.as_deref().unwrap_or(&ready.plain))?;
        }
        let done = block.offset * 10 / image.size();
        if done > tenths {
            tenths = done;
            log::info!("packed {tenths}0 %, stored bytes={}", spool.size);
        }
        Ok(())
    };

    let affordable = MAX_IN_FLIGHT / (2 * options.chunker.max_size() as usize);
    let workers = match cores.min(affordable) {
        0 | 1 => 0,
        several => several,
    };
    let (hand_out, handed_out) = mpsc::channel();
    let (give_back, given_back) = mpsc::channel();
    let (prepare, handed_out) = (&prepare, &Mutex::new(handed_out));
    // The closure owns both of its ends, so an early return ends the workers.
    thread::scope(move |scope| {
        let mut running = 0;
        for _ in 0..workers {
            let give_back = give_back.clone();
            let work = move || loop {
                // Only receiving happens under the lock. It fails when there is no more to do.
                let next = handed_out.lock().map(|jobs| jobs.recv());
                let Ok(Ok(number)) = next else { return };
                if give_back.send((number, prepare(number))).is_err() {
                    return;
                }
            };
            // Without a thread more, the others do its share.
            if thread::Builder::new().spawn_scoped(scope, work).is_ok() {
                running += 1;
            }
        }
        drop(give_back);
        if running == 0 {
            return (0..blocks.len()).try_for_each(|number| take(number, prepare(number)?));
        }
        let window = (running * BLOCKS_PER_WORKER).min(affordable);
        let mut early = BTreeMap::new();
        let mut next = 0;
        for number in 0..blocks.len() {
            while next < blocks.len() && next < number + window {
                hand_out.send(next).map_err(|_| RUNNING)?;
                next += 1;
            }
            let ready = loop {
                if let Some(ready) = early.remove(&number) {
                    break ready;
                }
                let (other, ready) = given_back.recv().map_err(|_| RUNNING)?;
                early.insert(other, ready?);
            };
            take(number, ready)?;
        }
        Ok(())
    })?;
    log::info!(
        "blocks stored, blocks={} bytes={}",
        spool.sizes.len(),
        spool.size
    );
    Ok(hasher.finish())
}

const WITHIN: Error = Error::Internal("only blocks of the image are handed out");
const RUNNING: Error = Error::Internal("workers run as long as blocks are handed out");

/// One `.xz` stream of `plain`: a CRC64, and the dictionary of the level even for a block that is
/// far smaller. The reference does so, and a bundle is to be the same whoever made it; the
/// dictionary's size also decides which matches the encoder finds. It costs a reader of ours
/// nothing, since that takes the block's size for its window.
pub fn compress(plain: &[u8], level: u32) -> io::Result<Vec<u8>> {
    compress_by(Stream::new_easy_encoder(level, Check::Crc64)?, plain)
}

/// The encoder of a level, with a dictionary for blocks of so many bytes.
fn encoder(level: u32, max_size: u32) -> io::Result<Stream> {
    let mut lzma = LzmaOptions::new_preset(level)?;
    lzma.dict_size(max_size.max(MIN_DICTIONARY));
    Ok(Stream::new_stream_encoder(
        Filters::new().lzma2(&lzma),
        Check::Crc64,
    )?)
}

fn compress_by(mut stream: Stream, plain: &[u8]) -> io::Result<Vec<u8>> {
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

/// Bytes of an image as one `.xz` stream.
pub fn compressed_size(image: &Image, level: u32) -> Result<u64> {
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
    }
}

/// The payload header, both heads included.
fn payload_header(
    options: &Options,
    output: &Output,
    hashes: &[u8],
    sizes: &[u32],
) -> Result<Vec<u8>> {
    let mut header = Writer::default();
    header
        .start(tag::PAYLOAD_HEADER)
        .start(tag::BLOCK_ENCODING)
        .value(tag::CHUNKER, options.chunker.to_string().as_bytes())
        .value(tag::BLOCK_HASH_ALGORITHM, options.hash.name().as_bytes())
        .value(tag::DEDUPLICATED, &[u8::from(options.deduplicate)]);
    if options.compression.is_some() {
        header.value(tag::COMPRESSION, b"xz");
    }
    header.value(tag::BLOCK_HASHES, hashes);
    // Sizes that follow from the chunker are left out.
    if options.compression.is_some() || !options.chunker.is_fixed() {
        let list = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
        header.value(tag::BLOCK_SIZES, &stored_list(options, output, list)?);
    }
    header.end(tag::BLOCK_ENCODING).end(tag::PAYLOAD_HEADER);
    let header = header.into_bytes();
    check_header_size(options, header.len())?;
    Ok(header)
}

/// The bundle header, both heads included.
fn bundle_header(options: &Options, payload_header: &Digest, payload: &Digest) -> Vec<u8> {
    let mut header = Writer::default();
    header
        .start(tag::BUNDLE_HEADER)
        .value(tag::MANIFEST, manifest(options).as_bytes())
        .value(tag::IS_INCREMENTAL, &[u8::from(options.incremental)])
        .value(tag::HASH_ALGORITHM, options.hash.name().as_bytes())
        .start(tag::PAYLOAD_ENTRY)
        .start(tag::TYPE_SLOT)
        .value(tag::SLOT_NAME, options.slot.as_bytes())
        .end(tag::TYPE_SLOT)
        .value(tag::PAYLOAD_HEADER_HASH, payload_header.as_bytes())
        .value(tag::PAYLOAD_FILE_HASH, payload.as_bytes())
        .end(tag::PAYLOAD_ENTRY)
        .end(tag::BUNDLE_HEADER);
    header.into_bytes()
}

/// What the bundler would have been told, with nothing left to its defaults. By hand, because the
/// order of keys matters and there are only two texts that need quoting.
fn manifest(options: &Options) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let name = options.image.file_name().unwrap_or_default();
    // The manifest spells this one algorithm with an underscore, all other fields do not.
    let hash = options.hash.name().replace('-', "_");
    let compression = match options.compression {
        Some(level) => format!(r#","compression":{{"type":"xz","level":{level}}}"#),
        None => String::new(),
    };
    format!(
        concat!(
            r#"{{"update-type":"{update_type}","hash-algorithm":"{hash}","payloads":["#,
            r#"{{"delivery":{{"type":"slot","slot":{slot}}},"filename":{name},"#,
            r#""block-encoding":{{"chunker":"{chunker}","hash-algorithm":"{hash}","#,
            r#""deduplicate":{deduplicate}{compression}}}}}]}}"#
        ),
        update_type = if options.incremental {
            "incremental"
        } else {
            "full"
        },
        hash = hash,
        slot = quoted(&options.slot),
        name = quoted(&name.to_string_lossy()),
        chunker = options.chunker,
        deduplicate = options.deduplicate,
        compression = compression,
    )
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
            options.chunker = Chunker::parse("casync-1").expect("a chunker");
            options.compression = compression;
            options.deduplicate = deduplicate;
            let alone = pack_on(&options, 1).expect("a bundle");
            let bundle = fs::read(&options.output).expect("the bundle");
            assert_eq!(alone.size, bundle.len() as u64);
            for cores in [2, 7] {
                options.output = folder.0.join("b");
                let packed = pack_on(&options, cores).expect("a bundle");
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
        let mut options = Options::new(&path, folder.0.join("out"));
        options.chunker = Chunker::parse("fixed-4").expect("a chunker");
        let opened = Image::open(&path).expect("the image");
        let output = Output::new(&options.output).expect("an output");
        let blocks = opened
            .blocks(options.chunker, options.hash, &|_| {})
            .expect("blocks");
        for cores in [1, 3] {
            for deduplicate in [true, false] {
                options.deduplicate = deduplicate;
                let store = || {
                    let mut spool = Spool::new(&output).expect("a spool");
                    store(&options, &opened, &blocks, cores, &mut spool).map(|_| spool.size)
                };
                assert!(store().expect("unchanged") > 0);
                // The last byte of all, then one among repeated zeros.
                for at in [199_999, 3 << 14] {
                    bytes[at] ^= 1;
                    fs::write(&path, &bytes).expect("another image");
                    let error = store().expect_err("changed").to_string();
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
        let mut spool = Spool::new(&output).expect("a spool");
        assert!(matches!(
            store(&options, &opened, &blocks, 2, &mut spool),
            Err(Error::Input { .. })
        ));
        assert_eq!(folder.names(), [PathBuf::from("image")]);
    }

    #[test]
    fn names_are_quoted_in_the_manifest() {
        let mut options = Options::new("/x/a\"b\\.img", "out");
        options.slot = "é\n".into();
        options.compression = None;
        let text = manifest(&options);
        let parsed: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        let payload = &parsed["payloads"][0];
        assert_eq!(payload["filename"], "a\"b\\.img");
        assert_eq!(payload["delivery"]["slot"], "é\n");
        assert_eq!(payload["block-encoding"]["hash-algorithm"], "sha512_256");
        assert!(payload["block-encoding"].get("compression").is_none());
    }

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
}
