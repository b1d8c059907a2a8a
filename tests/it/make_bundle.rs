//! An independent bundle maker: images and choices in, bundle bytes and all that is known of them
//! out.
//!
//! It shares no code with the product, so that a fault in the product's reading of the format
//! cannot hide behind the same fault here. Golden bundles of the reference bundler, rebuilt byte for
//! byte, show that it is right (see the tests at the end). It favours plainness over speed: all is
//! in memory, and blocks are hashed and compressed one after the other.
//!
//! By default it writes what the reference bundler writes. Everything else has to be asked for:
//! odd spellings, atoms in unusual places, lists that lie, digests that are wrong.
//!
//! ```text
//! BUNDLE                                          tags: constants below
//!   HEADER     manifest, incremental, hash, index entries (delivery, digests, delta)
//!   SIGNATURES CMS values
//!   PAYLOADS   PAYLOAD (HEADER (encoding (chunker, hash, dedup, xz, digests, sizes)), DATA)…
//! ```

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::ops::Range;
use std::rc::Rc;

use liblzma::stream::{Check, Stream};
use liblzma::write::XzEncoder;
use sha2::Digest;

pub const BUNDLE: u32 = 0x6b50_741c;
pub const BUNDLE_HEADER: u32 = 0x49af_6433;
pub const MANIFEST: u32 = 0x161a_a242;
pub const IS_INCREMENTAL: u32 = 0x20f3_d16b;
pub const HASH_ALGORITHM: u32 = 0x5cb8_0dd6;
pub const INDEX_ENTRY: u32 = 0x1373_7992;
pub const TYPE_SLOT: u32 = 0x45ca_7e7e;
pub const TYPE_EXECUTE: u32 = 0x3adf_32f5;
pub const TYPE_APP_FILE: u32 = 0x214c_6e2b;
pub const TYPE_APP_ARCHIVE: u32 = 0x40a8_8630;
pub const PAYLOAD_HEADER_HASH: u32 = 0x5f6a_60b1;
pub const PAYLOAD_FILE_HASH: u32 = 0x0c8d_1fd0;
pub const DELTA_ENCODING: u32 = 0x272c_df9f;
pub const SLOT_NAME: u32 = 0x1b23_1de7;
pub const HANDLER_ARGUMENT: u32 = 0x4b38_36a2;
pub const APP_FILE_NAME: u32 = 0x6b42_b4a2;
pub const APP_FILE_PATH: u32 = 0x2c4e_33b4;
pub const APP_ARCHIVE_NAME: u32 = 0x3fa2_21ce;
pub const DELTA_FORMAT: u32 = 0x3b8a_eb9a;
pub const DELTA_INPUT: u32 = 0x4e08_b9f1;
pub const DELTA_ORIGINAL_HASH: u32 = 0x6476_0e1c;
pub const DELTA_INPUT_HASH: u32 = 0x3a0d_1307;
pub const SIGNATURES: u32 = 0xa839_36f1;
pub const CMS_SIGNATURE: u32 = 0x9795_498f;
pub const PAYLOADS: u32 = 0x01f3_8fba;
pub const PAYLOAD: u32 = 0x490c_afaf;
pub const PAYLOAD_HEADER: u32 = 0x0959_ca75;
pub const PAYLOAD_DATA: u32 = 0x42fd_641a;
pub const BLOCK_ENCODING: u32 = 0x40ed_9314;
pub const CHUNKER: u32 = 0x5587_2cf8;
pub const BLOCK_HASH_ALGORITHM: u32 = 0x7f1f_994b;
pub const DEDUPLICATED: u32 = 0x0590_2926;
pub const COMPRESSION: u32 = 0x7832_17c6;
pub const BLOCK_HASHES: u32 = 0x76b3_d7a0;
pub const BLOCK_SIZES: u32 = 0x27e5_d3f2;
pub const BLOCK_INDEX: u32 = 0x1ae5_0c8e;
pub const INDEX_CHUNKER: u32 = 0x5cdf_21b0;
pub const INDEX_HASH_ALGORITHM: u32 = 0x1d92_a080;
pub const INDEX_BLOCK_HASHES: u32 = 0x55e5_47d8;
pub const INDEX_BLOCK_SIZES: u32 = 0x4668_c5ba;
pub const SIGNED_METADATA: u32 = 0x61d0_871e;
pub const SIGNED_HEADER_HASH: u32 = 0x1f99_2dfc;

/// Tags no reader knows: skipped, and refused.
pub const UNKNOWN_OPTIONAL: u32 = 0xf00d_0001;
pub const UNKNOWN_REQUIRED: u32 = 0x700d_0001;

// ---- atoms ---------------------------------------------------------------------------------

pub fn start(tag: u32) -> Vec<u8> {
    [&tag.to_be_bytes()[..], &[0x40]].concat()
}

pub fn end(tag: u32) -> Vec<u8> {
    [&tag.to_be_bytes()[..], &[0x00]].concat()
}

/// Tag and length of a value: one byte below 127, then a varint with its highest group first.
pub fn value_head(tag: u32, size: u64) -> Vec<u8> {
    let mut head = tag.to_be_bytes().to_vec();
    if size < 127 {
        head.push(0x80 | size as u8);
        return head;
    }
    head.push(0xff);
    let rest = size - 127;
    let groups = (u64::BITS - rest.leading_zeros()).div_ceil(7).max(1);
    for group in (0..groups).rev() {
        let more = if group > 0 { 0x80 } else { 0 };
        head.push((rest >> (7 * group)) as u8 & 0x7f | more);
    }
    head
}

pub fn value(tag: u32, bytes: impl AsRef<[u8]>) -> Vec<u8> {
    let bytes = bytes.as_ref();
    [&value_head(tag, bytes.len() as u64), bytes].concat()
}

pub fn segment(tag: u32, inside: &[Vec<u8>]) -> Vec<u8> {
    [start(tag), inside.concat(), end(tag)].concat()
}

// ---- hashes --------------------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha256,
    Sha512,
    Sha512_256,
}

impl Hash {
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Sha512_256 => "sha512-256",
        }
    }

    pub fn size(self) -> usize {
        match self {
            Self::Sha256 | Self::Sha512_256 => 32,
            Self::Sha512 => 64,
        }
    }

    pub fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => sha2::Sha256::digest(bytes).to_vec(),
            Self::Sha512 => sha2::Sha512::digest(bytes).to_vec(),
            Self::Sha512_256 => sha2::Sha512_256::digest(bytes).to_vec(),
        }
    }

    /// `algorithm:hex`
    pub fn digest_string(self, bytes: &[u8]) -> String {
        format!("{}:{}", self.name(), hex(&self.digest(bytes)))
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// ---- block borders -------------------------------------------------------------------------

/// Where an image is cut into blocks.
#[derive(Clone, Debug, PartialEq)]
pub enum Cuts {
    /// So many bytes each.
    Fixed(usize),
    /// The chunker of casync, with this average in KiB.
    Casync(u32),
    /// The ends of all blocks but the last one, whatever the chunker string says.
    At(Vec<usize>),
}

impl Cuts {
    /// What a chunker string of the format means.
    pub fn of(chunker: &str) -> Self {
        let (kind, size) = chunker.split_once('-').expect("a chunker string");
        let size: u32 = size.parse().expect("a chunker size");
        match kind {
            "fixed" => Self::Fixed(size as usize * 1024),
            "casync" => Self::Casync(size),
            _ => panic!("unknown chunker {chunker}"),
        }
    }

    /// The blocks of an image, without a gap. An empty image has none.
    pub fn blocks(&self, image: &[u8]) -> Vec<Range<usize>> {
        let mut ends = match self {
            Self::Fixed(size) => (*size..image.len()).step_by(*size).collect(),
            Self::Casync(size) => casync_ends(image, *size),
            Self::At(ends) => ends.clone(),
        };
        if ends.last().map_or(!image.is_empty(), |&e| e < image.len()) {
            ends.push(image.len());
        }
        let starts = std::iter::once(0).chain(ends.iter().copied());
        starts.zip(&ends).map(|(start, &end)| start..end).collect()
    }
}

/// Bytes the rolling hash looks at.
const WINDOW: usize = 48;

fn casync_ends(image: &[u8], kib: u32) -> Vec<usize> {
    let table = buzhash_table();
    let average = kib * 1024;
    let (min, max) = (average / 4, average * 4);
    let average = f64::from(average);
    let discriminator = (average / ((-1.428_888_52e-7 * average) + 1.332_375_15)) as u32;
    let discriminator = discriminator.max(min).min(max);
    let (min, max) = (min as usize, max as usize);
    let mut ends = Vec::new();
    let mut from = 0;
    while image.len() - from > min {
        let mut at = from + min;
        let mut hash = 0;
        for (i, &byte) in image[at - WINDOW..at].iter().enumerate() {
            hash ^= table[byte as usize].rotate_left((WINDOW - 1 - i) as u32);
        }
        while at < image.len() && at - from < max && hash % discriminator != discriminator - 1 {
            let (old, new) = (image[at - WINDOW] as usize, image[at] as usize);
            hash = hash.rotate_left(1) ^ table[old].rotate_left(WINDOW as u32 % 32) ^ table[new];
            at += 1;
        }
        ends.push(at);
        from = at;
    }
    ends
}

fn buzhash_table() -> Vec<u32> {
    let lines = include_str!("../data/buzhash.txt").lines();
    lines
        .map(|line| u32::from_str_radix(line, 16).expect("a word of the table"))
        .collect()
}

// ---- compression ---------------------------------------------------------------------------

/// One xz stream as the reference bundler makes it: one block, LZMA2, CRC64.
pub fn xz(preset: u32, bytes: &[u8]) -> Vec<u8> {
    xz_with_check(preset, Check::Crc64, bytes)
}

pub fn xz_with_check(preset: u32, check: Check, bytes: &[u8]) -> Vec<u8> {
    let stream = Stream::new_easy_encoder(preset, check).expect("an encoder");
    let mut encoder = XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(bytes).expect("write to memory");
    encoder.finish().expect("end of stream")
}

// ---- choices -------------------------------------------------------------------------------

/// A change to bytes that are about to be written. For hostile bundles.
pub type Edit = Rc<dyn Fn(&mut Vec<u8>)>;

/// A place where a reader has to look at atoms that it does not know.
///
/// Those of payloads apply to every payload of the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    BeforeHeader,
    InHeader,
    InEntry,
    InDelivery,
    InDelta,
    /// Between header and signatures.
    AfterHeader,
    InSignatures,
    BeforePayloads,
    /// Inside PAYLOADS, before each PAYLOAD. The format does not list it.
    BetweenPayloads,
    BeforePayloadHeader,
    InPayloadHeader,
    InEncoding,
    BeforeData,
    AfterData,
    /// Behind the last payload, where the reference does not look any more.
    AfterPayloads,
    AfterBundle,
}

impl Place {
    /// Those where the format allows optional atoms and a reader has to skip them.
    pub const OPTIONAL_ATOMS: [Self; 12] = [
        Self::BeforeHeader,
        Self::InHeader,
        Self::InEntry,
        Self::InDelivery,
        Self::AfterHeader,
        Self::InSignatures,
        Self::BeforePayloads,
        Self::BeforePayloadHeader,
        Self::InPayloadHeader,
        Self::InEncoding,
        Self::BeforeData,
        Self::AfterData,
    ];
}

#[derive(Clone, Debug)]
pub enum Delivery {
    Slot(String),
    Execute(Vec<String>),
    AppFile {
        app: String,
        path: String,
    },
    AppArchive(String),
    None,
    /// Atoms as they are, for several types in one entry.
    Raw(Vec<u8>),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sizes {
    /// As writers do: unless the chunker string is a fixed one and there is no compression.
    Regular,
    Present,
    Absent,
}

#[derive(Clone, Debug)]
pub enum Damage {
    /// One bit of this stored byte.
    Flip(usize),
    /// Only the first so many stored bytes stay. The sizes list says so.
    Cut(usize),
    /// Other stored bytes. The sizes list fits them.
    Replace(Vec<u8>),
}

#[derive(Clone, Debug)]
pub struct Delta {
    pub format: String,
    /// The digest strings of each input.
    pub inputs: Vec<Vec<String>>,
    pub original: String,
}

/// How a payload is cut into blocks and stored.
#[derive(Clone)]
pub struct Encoding {
    pub chunker: String,
    pub cuts: Cuts,
    pub hash: Hash,
    /// Another spelling of the hash.
    pub hash_text: Option<String>,
    pub dedup: bool,
    /// The preset.
    pub xz: Option<u32>,
    /// Another name of the compression, also where there is none.
    pub compression_text: Option<String>,
    pub sizes: Sizes,
    pub damage: Vec<(usize, Damage)>,
    /// The lists before and after their own compression.
    pub edit_hashes: Option<Edit>,
    pub edit_sizes: Option<Edit>,
    pub edit_stored_hashes: Option<Edit>,
    pub edit_stored_sizes: Option<Edit>,
}

/// A payload to be. Without further calls: `fixed-4`, SHA-512/256, every block stored as it is.
#[derive(Clone)]
pub struct Payload {
    pub image: Vec<u8>,
    pub delivery: Delivery,
    /// None: the payload data is the image.
    pub encoding: Option<Encoding>,
    pub delta: Option<Delta>,
    /// Digests to state instead of the right ones.
    pub payload_hash: Option<Vec<u8>>,
    pub header_hash: Option<Vec<u8>>,
    /// Of all stored bytes; the lists do not change with it.
    pub edit_data: Option<Edit>,
}

impl Payload {
    pub fn slot(slot: &str, image: impl Into<Vec<u8>>) -> Self {
        Self::new(Delivery::Slot(slot.to_owned()), image)
    }

    pub fn new(delivery: Delivery, image: impl Into<Vec<u8>>) -> Self {
        Self {
            image: image.into(),
            delivery,
            encoding: Some(Encoding {
                chunker: "fixed-4".to_owned(),
                cuts: Cuts::Fixed(4096),
                hash: Hash::Sha512_256,
                hash_text: None,
                dedup: false,
                xz: None,
                compression_text: None,
                sizes: Sizes::Regular,
                damage: Vec::new(),
                edit_hashes: None,
                edit_sizes: None,
                edit_stored_hashes: None,
                edit_stored_sizes: None,
            }),
            delta: None,
            payload_hash: None,
            header_hash: None,
            edit_data: None,
        }
    }

    /// No block encoding.
    pub fn plain(mut self) -> Self {
        self.encoding = None;
        self
    }

    fn encode(mut self, change: impl FnOnce(&mut Encoding)) -> Self {
        change(self.encoding.as_mut().expect("a block encoding"));
        self
    }

    /// `fixed-K` or `casync-K`: the string and the borders that it means.
    pub fn chunker(self, chunker: &str) -> Self {
        let cuts = Cuts::of(chunker);
        self.cuts(cuts).chunker_text(chunker)
    }

    /// The string only.
    pub fn chunker_text(self, text: &str) -> Self {
        self.encode(|encoding| encoding.chunker = text.to_owned())
    }

    /// The borders only.
    pub fn cuts(self, cuts: Cuts) -> Self {
        self.encode(|encoding| encoding.cuts = cuts)
    }

    pub fn hash(self, hash: Hash) -> Self {
        self.encode(|encoding| encoding.hash = hash)
    }

    pub fn hash_text(self, text: &str) -> Self {
        self.encode(|encoding| encoding.hash_text = Some(text.to_owned()))
    }

    pub fn dedup(self) -> Self {
        self.encode(|encoding| encoding.dedup = true)
    }

    pub fn xz(self, preset: u32) -> Self {
        self.encode(|encoding| encoding.xz = Some(preset))
    }

    pub fn compression_text(self, text: &str) -> Self {
        self.encode(|encoding| encoding.compression_text = Some(text.to_owned()))
    }

    pub fn sizes(self, sizes: Sizes) -> Self {
        self.encode(|encoding| encoding.sizes = sizes)
    }

    pub fn damage(self, block: usize, damage: Damage) -> Self {
        self.encode(|encoding| encoding.damage.push((block, damage)))
    }

    pub fn edit_hashes(self, edit: impl Fn(&mut Vec<u8>) + 'static) -> Self {
        self.encode(|encoding| encoding.edit_hashes = Some(Rc::new(edit)))
    }

    pub fn edit_sizes(self, edit: impl Fn(&mut Vec<u8>) + 'static) -> Self {
        self.encode(|encoding| encoding.edit_sizes = Some(Rc::new(edit)))
    }

    pub fn edit_stored_hashes(self, edit: impl Fn(&mut Vec<u8>) + 'static) -> Self {
        self.encode(|encoding| encoding.edit_stored_hashes = Some(Rc::new(edit)))
    }

    pub fn edit_stored_sizes(self, edit: impl Fn(&mut Vec<u8>) + 'static) -> Self {
        self.encode(|encoding| encoding.edit_stored_sizes = Some(Rc::new(edit)))
    }

    pub fn edit_data(mut self, edit: impl Fn(&mut Vec<u8>) + 'static) -> Self {
        self.edit_data = Some(Rc::new(edit));
        self
    }

    pub fn delta(mut self, delta: Delta) -> Self {
        self.delta = Some(delta);
        self
    }

    pub fn wrong_payload_hash(mut self, digest: impl Into<Vec<u8>>) -> Self {
        self.payload_hash = Some(digest.into());
        self
    }

    pub fn wrong_header_hash(mut self, digest: impl Into<Vec<u8>>) -> Self {
        self.header_hash = Some(digest.into());
        self
    }
}

/// A bundle to be. Without further calls: a full update, SHA-512/256, a short manifest, unsigned.
#[derive(Clone)]
pub struct Bundle {
    pub hash: Hash,
    pub hash_text: Option<String>,
    pub manifest: Option<String>,
    /// None: the field is left out.
    pub incremental: Option<bool>,
    pub payloads: Vec<Payload>,
    /// None: no signatures segment.
    pub signatures: Option<Vec<Vec<u8>>>,
    pub extra: Vec<(Place, Vec<u8>)>,
    /// Whether PAYLOADS and BUNDLE are closed.
    pub closed: bool,
}

impl Default for Bundle {
    fn default() -> Self {
        Self {
            hash: Hash::Sha512_256,
            hash_text: None,
            manifest: Some(r#"{"update-type":"full","payloads":[]}"#.to_owned()),
            incremental: Some(false),
            payloads: Vec::new(),
            signatures: None,
            extra: Vec::new(),
            closed: true,
        }
    }
}

/// What a test knows of the bundle it made. Ranges are offsets in `bytes`.
#[derive(Clone, Debug)]
pub struct Made {
    pub bytes: Vec<u8>,
    /// `algorithm:hex` over the header: the trust anchor.
    pub bundle_hash: String,
    pub header: Range<u64>,
    pub payloads: Vec<MadePayload>,
}

#[derive(Clone, Debug)]
pub struct MadePayload {
    /// Empty if it is not for a slot.
    pub slot: String,
    /// `algorithm:hex` over the image, with the header's hash.
    pub digest: String,
    pub image: Vec<u8>,
    pub header: Range<u64>,
    pub data: Range<u64>,
    /// Empty without block encoding.
    pub blocks: Vec<MadeBlock>,
}

#[derive(Clone, Debug)]
pub struct MadeBlock {
    /// Hex.
    pub digest: String,
    /// In the image.
    pub plain: Range<u64>,
    /// In the bundle; none if it repeats an earlier block.
    pub stored: Option<Range<u64>>,
}

impl MadePayload {
    /// The contiguous stored ranges of the blocks whose digests are not in `have`, in order: what
    /// an installer has to fetch at least. A block is listed once, at its first place.
    pub fn missing(&self, have: &HashSet<String>) -> Vec<Range<u64>> {
        let mut seen = have.clone();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in &self.blocks {
            let Some(stored) = &block.stored else {
                continue;
            };
            if !seen.insert(block.digest.clone()) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == stored.start => run.end = stored.end,
                _ => runs.push(stored.clone()),
            }
        }
        runs
    }
}

impl Bundle {
    pub fn new() -> Self {
        Self::default()
    }

    /// The usual case: one slot payload.
    pub fn of(payload: Payload) -> Self {
        Self::new().payload(payload)
    }

    pub fn payload(mut self, payload: Payload) -> Self {
        self.payloads.push(payload);
        self
    }

    pub fn hash(mut self, hash: Hash) -> Self {
        self.hash = hash;
        self
    }

    pub fn hash_text(mut self, text: &str) -> Self {
        self.hash_text = Some(text.to_owned());
        self
    }

    pub fn manifest(mut self, manifest: Option<&str>) -> Self {
        self.manifest = manifest.map(str::to_owned);
        self
    }

    pub fn incremental(mut self, incremental: Option<bool>) -> Self {
        self.incremental = incremental;
        self
    }

    pub fn signatures(mut self, signatures: Vec<Vec<u8>>) -> Self {
        self.signatures = Some(signatures);
        self
    }

    /// Whole atoms, for example made with [`value`] or [`segment`], at a place.
    pub fn extra(mut self, place: Place, atoms: impl Into<Vec<u8>>) -> Self {
        self.extra.push((place, atoms.into()));
        self
    }

    pub fn unclosed(mut self) -> Self {
        self.closed = false;
        self
    }

    fn extra_at(&self, place: Place) -> Vec<u8> {
        let here = self.extra.iter().filter(|(p, _)| *p == place);
        here.flat_map(|(_, atoms)| atoms.clone()).collect()
    }

    pub fn make(&self) -> Made {
        let parts: Vec<Part> = self.payloads.iter().map(|p| self.part(p)).collect();
        let header = self.header(&parts);
        let mut out = start(BUNDLE);
        out.extend(self.extra_at(Place::BeforeHeader));
        let header_range = append(&mut out, &header);
        out.extend(self.extra_at(Place::AfterHeader));
        if let Some(signatures) = &self.signatures {
            let mut inside: Vec<_> = signatures
                .iter()
                .map(|signature| value(CMS_SIGNATURE, signature))
                .collect();
            inside.push(self.extra_at(Place::InSignatures));
            out.extend(segment(SIGNATURES, &inside));
        }
        out.extend(self.extra_at(Place::BeforePayloads));
        out.extend(start(PAYLOADS));
        let mut payloads = Vec::new();
        for (payload, part) in self.payloads.iter().zip(&parts) {
            payloads.push(self.append_payload(&mut out, payload, part));
        }
        out.extend(self.extra_at(Place::AfterPayloads));
        if self.closed {
            out.extend(end(PAYLOADS));
            out.extend(end(BUNDLE));
        }
        out.extend(self.extra_at(Place::AfterBundle));
        Made {
            bytes: out,
            bundle_hash: self.hash.digest_string(&header),
            header: header_range,
            payloads,
        }
    }

    fn append_payload(&self, out: &mut Vec<u8>, payload: &Payload, part: &Part) -> MadePayload {
        out.extend(self.extra_at(Place::BetweenPayloads));
        out.extend(start(PAYLOAD));
        out.extend(self.extra_at(Place::BeforePayloadHeader));
        let header = append(out, &part.header);
        out.extend(self.extra_at(Place::BeforeData));
        out.extend(value_head(PAYLOAD_DATA, part.data.len() as u64));
        let data = append(out, &part.data);
        out.extend(self.extra_at(Place::AfterData));
        out.extend(end(PAYLOAD));
        let shift = |range: &Range<u64>| range.start + data.start..range.end + data.start;
        let blocks = part.blocks.iter().map(|block| MadeBlock {
            stored: block.stored.as_ref().map(shift),
            ..block.clone()
        });
        let slot = match &payload.delivery {
            Delivery::Slot(slot) => slot.clone(),
            _ => String::new(),
        };
        MadePayload {
            slot,
            digest: self.hash.digest_string(&payload.image),
            image: payload.image.clone(),
            header,
            blocks: blocks.collect(),
            data,
        }
    }

    fn header(&self, parts: &[Part]) -> Vec<u8> {
        let mut inside = Vec::new();
        if let Some(manifest) = &self.manifest {
            inside.push(value(MANIFEST, manifest));
        }
        if let Some(incremental) = self.incremental {
            inside.push(value(IS_INCREMENTAL, [u8::from(incremental)]));
        }
        let hash = self.hash_text.as_deref().unwrap_or(self.hash.name());
        inside.push(value(HASH_ALGORITHM, hash));
        for (payload, part) in self.payloads.iter().zip(parts) {
            inside.push(self.entry(payload, part));
        }
        inside.push(self.extra_at(Place::InHeader));
        segment(BUNDLE_HEADER, &inside)
    }

    fn entry(&self, payload: &Payload, part: &Part) -> Vec<u8> {
        let extra = self.extra_at(Place::InDelivery);
        let delivery = match &payload.delivery {
            Delivery::Slot(slot) => segment(TYPE_SLOT, &[value(SLOT_NAME, slot), extra]),
            Delivery::Execute(arguments) => {
                let mut inside: Vec<_> = arguments
                    .iter()
                    .map(|argument| value(HANDLER_ARGUMENT, argument))
                    .collect();
                inside.push(extra);
                segment(TYPE_EXECUTE, &inside)
            }
            Delivery::AppFile { app, path } => {
                let name = value(APP_FILE_NAME, app);
                segment(TYPE_APP_FILE, &[name, value(APP_FILE_PATH, path), extra])
            }
            Delivery::AppArchive(app) => {
                segment(TYPE_APP_ARCHIVE, &[value(APP_ARCHIVE_NAME, app), extra])
            }
            Delivery::None => Vec::new(),
            Delivery::Raw(atoms) => atoms.clone(),
        };
        let digest = |stated: &Option<Vec<u8>>, bytes: &[u8]| match stated {
            Some(digest) => digest.clone(),
            None => self.hash.digest(bytes),
        };
        let mut inside = vec![
            delivery,
            value(
                PAYLOAD_HEADER_HASH,
                digest(&payload.header_hash, &part.header),
            ),
            value(
                PAYLOAD_FILE_HASH,
                digest(&payload.payload_hash, &payload.image),
            ),
        ];
        if let Some(delta) = &payload.delta {
            inside.push(self.delta(delta));
        }
        inside.push(self.extra_at(Place::InEntry));
        segment(INDEX_ENTRY, &inside)
    }

    fn delta(&self, delta: &Delta) -> Vec<u8> {
        let mut inside = Vec::new();
        for hashes in &delta.inputs {
            let hashes: Vec<_> = hashes
                .iter()
                .map(|hash| value(DELTA_INPUT_HASH, hash))
                .collect();
            inside.push(segment(DELTA_INPUT, &hashes));
        }
        inside.insert(0, value(DELTA_FORMAT, &delta.format));
        inside.push(value(DELTA_ORIGINAL_HASH, &delta.original));
        inside.push(self.extra_at(Place::InDelta));
        segment(DELTA_ENCODING, &inside)
    }

    fn part(&self, payload: &Payload) -> Part {
        let (encoding, mut data, blocks) = match &payload.encoding {
            Some(encoding) => self.encode(encoding, &payload.image),
            None => (Vec::new(), payload.image.clone(), Vec::new()),
        };
        apply(&payload.edit_data, &mut data);
        let inside = [encoding, self.extra_at(Place::InPayloadHeader)];
        Part {
            header: segment(PAYLOAD_HEADER, &inside),
            data,
            blocks,
        }
    }

    /// The block encoding, the payload data, and the blocks with ranges relative to the data.
    fn encode(&self, encoding: &Encoding, image: &[u8]) -> (Vec<u8>, Vec<u8>, Vec<MadeBlock>) {
        let mut data = Vec::new();
        let mut blocks = Vec::new();
        let (mut hashes, mut sizes) = (Vec::new(), Vec::new());
        let mut seen = HashSet::new();
        // The same block compresses to the same bytes; this is what takes the time.
        let mut compressed: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for (i, range) in encoding.cuts.blocks(image).into_iter().enumerate() {
            let plain = &image[range.clone()];
            let digest = encoding.hash.digest(plain);
            hashes.extend(&digest);
            let stored = if seen.insert(digest.clone()) || !encoding.dedup {
                let mut bytes = match encoding.xz {
                    Some(preset) => compressed
                        .entry(digest.clone())
                        .or_insert_with(|| xz(preset, plain))
                        .clone(),
                    None => plain.to_vec(),
                };
                for (_, damage) in encoding.damage.iter().filter(|(block, _)| *block == i) {
                    match damage {
                        Damage::Flip(at) => bytes[*at] ^= 1,
                        Damage::Cut(size) => bytes.truncate(*size),
                        Damage::Replace(other) => bytes.clone_from(other),
                    }
                }
                sizes.extend((bytes.len() as u32).to_be_bytes());
                Some(append(&mut data, &bytes))
            } else {
                None
            };
            blocks.push(MadeBlock {
                digest: hex(&digest),
                plain: range.start as u64..range.end as u64,
                stored,
            });
        }
        apply(&encoding.edit_hashes, &mut hashes);
        apply(&encoding.edit_sizes, &mut sizes);
        if let Some(preset) = encoding.xz {
            hashes = xz(preset, &hashes);
            sizes = xz(preset, &sizes);
        }
        apply(&encoding.edit_stored_hashes, &mut hashes);
        apply(&encoding.edit_stored_sizes, &mut sizes);

        let hash = encoding.hash_text.as_deref();
        let hash = hash.unwrap_or(encoding.hash.name());
        let mut inside = vec![
            value(CHUNKER, &encoding.chunker),
            value(BLOCK_HASH_ALGORITHM, hash),
            value(DEDUPLICATED, [u8::from(encoding.dedup)]),
        ];
        let compression = encoding.compression_text.as_deref();
        if let Some(name) = compression.or(encoding.xz.map(|_| "xz")) {
            inside.push(value(COMPRESSION, name));
        }
        inside.push(value(BLOCK_HASHES, hashes));
        let present = match encoding.sizes {
            Sizes::Regular => encoding.xz.is_some() || !encoding.chunker.starts_with("fixed"),
            Sizes::Present => true,
            Sizes::Absent => false,
        };
        if present {
            inside.push(value(BLOCK_SIZES, sizes));
        }
        inside.push(self.extra_at(Place::InEncoding));
        (segment(BLOCK_ENCODING, &inside), data, blocks)
    }
}

/// A payload before its place in the bundle is known.
struct Part {
    header: Vec<u8>,
    data: Vec<u8>,
    blocks: Vec<MadeBlock>,
}

fn append(out: &mut Vec<u8>, bytes: &[u8]) -> Range<u64> {
    let offset = out.len() as u64;
    out.extend(bytes);
    offset..out.len() as u64
}

fn apply(edit: &Option<Edit>, bytes: &mut Vec<u8>) {
    if let Some(edit) = edit {
        edit(bytes);
    }
}

// ---- block index ---------------------------------------------------------------------------

/// A `.rugix-block-index` of an image.
pub fn block_index(image: &[u8], chunker: &str, hash: Hash) -> Vec<u8> {
    block_index_with(image, chunker, &Cuts::of(chunker), hash)
}

/// The same with other borders than the chunker string says.
pub fn block_index_with(image: &[u8], chunker: &str, cuts: &Cuts, hash: Hash) -> Vec<u8> {
    let (mut hashes, mut sizes) = (Vec::new(), Vec::new());
    for range in cuts.blocks(image) {
        sizes.extend((range.len() as u32).to_be_bytes());
        hashes.extend(hash.digest(&image[range]));
    }
    let inside = [
        value(INDEX_CHUNKER, chunker),
        value(INDEX_HASH_ALGORITHM, hash.name()),
        value(INDEX_BLOCK_HASHES, hashes),
        value(INDEX_BLOCK_SIZES, sizes),
    ];
    segment(BLOCK_INDEX, &inside)
}

/// The digests of the blocks of an image, in hex: what a seed offers.
pub fn block_digests(image: &[u8], chunker: &str, hash: Hash) -> HashSet<String> {
    let blocks = Cuts::of(chunker).blocks(image);
    let digests = blocks.into_iter().map(|range| hash.digest(&image[range]));
    digests.map(|digest| hex(&digest)).collect()
}

// ---- images --------------------------------------------------------------------------------

/// SplitMix64: the same seed gives the same numbers everywhere.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 up to, but not including, `limit`.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn bytes(&mut self, size: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(size + 8);
        while bytes.len() < size {
            bytes.extend(self.next().to_le_bytes());
        }
        bytes.truncate(size);
        bytes
    }
}

/// Bytes that do not compress and do not repeat.
pub fn random_image(size: usize, seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(size)
}

/// Words, which compress to about a third.
pub fn text_image(size: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "boot", "kernel", "module", "system", "config", "service", "network", "update", "library",
        "image", "root", "mount", "device", "driver", "firmware", "verify",
    ];
    let mut random = Random::new(seed);
    let mut text = Vec::with_capacity(size + 16);
    while text.len() < size {
        text.extend(WORDS[random.below(WORDS.len())].bytes());
        match random.below(8) {
            0 => text.extend(format!("={:x}\n", random.below(0x10000)).bytes()),
            _ => text.push(b' '),
        }
    }
    text.truncate(size);
    text
}

pub fn zeros(size: usize) -> Vec<u8> {
    vec![0; size]
}

/// A few different 4 KiB pages over and over, in random order.
pub fn repeating_image(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let pages: Vec<_> = (0..7).map(|_| random.bytes(4096)).collect();
    let mut image = Vec::with_capacity(size + 4096);
    while image.len() < size {
        image.extend(&pages[random.below(pages.len())]);
    }
    image.truncate(size);
    image
}

/// Like a file system: stretches of text, random bytes, zeros and repeated pages.
pub fn mixed_image(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut image = Vec::with_capacity(size);
    while image.len() < size {
        let stretch = (4096 * (1 + random.below(48))).min(size - image.len());
        let seed = random.next();
        image.extend(match random.below(8) {
            0..=2 => text_image(stretch, seed),
            3..=5 => random_image(stretch, seed),
            6 => zeros(stretch),
            _ => repeating_image(stretch, seed),
        });
    }
    image
}

/// A new image from an old one, with everything where it was: some pages have other content. What
/// an update of a file system with stable places is like.
pub fn edit_in_place(image: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut new = image.to_vec();
    let pages = new.len() / 4096;
    for _ in 0..if pages > 0 { 1 + pages / 64 } else { 0 } {
        let at = 4096 * random.below(pages);
        new[at..at + 4096].copy_from_slice(&random.bytes(4096));
    }
    new
}

/// A new image from an old one: replaced pages, two sections that changed places, a few inserted
/// bytes, a longer tail. What an update of a packed image is like.
pub fn edit(image: &[u8], seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed.wrapping_add(1));
    let mut new = edit_in_place(image, seed);
    let section = new.len() / 16;
    if section > 0 {
        // One in the first half, one in the second, so that they do not overlap.
        let first = random.below(section * 6);
        let second = section * 8 + random.below(section * 6);
        let (front, back) = new.split_at_mut(second);
        front[first..first + section].swap_with_slice(&mut back[..section]);
    }
    for _ in 0..1 + new.len() / (1 << 20) {
        let at = random.below(new.len() + 1);
        let size = 1 + random.below(97);
        new.splice(at..at, random.bytes(size));
    }
    let tail = 1 + new.len() / 64;
    new.extend(random.bytes(tail));
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::util::{assert_same_bytes, vector};

    /// The first value below the bundle header: the manifest, whose exact text is nowhere else.
    fn manifest_of(bundle: &[u8]) -> String {
        let at = start(BUNDLE).len() + start(BUNDLE_HEADER).len();
        assert_eq!(bundle[at..at + 4], MANIFEST.to_be_bytes());
        let mut from = at + 5;
        let mut size = usize::from(bundle[at + 4] & 0x7f);
        if size == 127 {
            let mut rest = 0;
            loop {
                let byte = usize::from(bundle[from]);
                from += 1;
                rest = rest << 7 | byte & 0x7f;
                if byte < 0x80 {
                    break;
                }
            }
            size += rest;
        }
        String::from_utf8(bundle[from..from + size].to_vec()).unwrap()
    }

    fn rebuild(name: &str, bundle: Bundle) {
        let expected = vector(&format!("bundles/{name}.rugixb"));
        let manifest = manifest_of(&expected);
        let made = bundle.manifest(Some(&manifest)).make();
        assert_same_bytes(&made.bytes, &expected, name);

        let facts = vector(&format!("bundles/{name}.json"));
        let facts: serde_json::Value = serde_json::from_slice(&facts).unwrap();
        assert_eq!(facts["bundle-hash"], made.bundle_hash, "{name}");
        assert_eq!(facts["header-offset"], made.header.start, "{name}");
        for (payload, facts) in made
            .payloads
            .iter()
            .zip(facts["payloads"].as_array().unwrap())
        {
            assert_eq!(facts["header-offset"], payload.header.start, "{name}");
            assert_eq!(facts["data-offset"], payload.data.start, "{name}");
            let stored = payload.blocks.iter().filter(|b| b.stored.is_some());
            let facts = &facts["block-encoding"];
            if let Some(blocks) = facts["blocks"].as_u64() {
                assert_eq!(blocks, payload.blocks.len() as u64, "{name}");
                assert_eq!(facts["stored-blocks"], stored.count() as u64, "{name}");
            }
            if let (Some(last), Some(facts)) =
                (payload.blocks.last(), facts["last-block"].as_object())
            {
                assert_eq!(facts["hash"], last.digest, "{name}");
                assert_eq!(facts["raw-offset"], last.plain.start, "{name}");
                if let (Some(stored), Some(offset)) = (&last.stored, facts.get("offset")) {
                    assert_eq!(*offset, stored.start, "{name}");
                }
            }
        }
    }

    fn payload(slot: &str, path: &str) -> Payload {
        Payload::slot(slot, vector(path))
    }

    fn incremental(payload: Payload) -> Bundle {
        Bundle::of(payload).incremental(Some(true))
    }

    #[test]
    fn golden_bundles_are_rebuilt() {
        let small = || payload("system", "payloads/small.bin");
        let cdc = || payload("system", "payloads/cdc.bin").chunker("casync-8");
        let dups = || payload("system", "payloads/dups.bin");
        rebuild(
            "plain",
            incremental(payload("system", "payloads/plain.bin").plain()),
        );
        rebuild("fixed4-none", incremental(small()));
        rebuild(
            "fixed4-empty",
            incremental(payload("system", "payloads/empty.bin")),
        );
        rebuild(
            "casync8-sha256",
            incremental(cdc().hash(Hash::Sha256)).hash(Hash::Sha256),
        );
        rebuild(
            "casync8-sha512",
            incremental(cdc().hash(Hash::Sha512)).hash(Hash::Sha512),
        );
        rebuild("casync8-sha512-256", incremental(cdc()));
        rebuild("dups-fixed4-dedup", incremental(dups().dedup()));
        rebuild("dups-fixed4-nodedup", incremental(dups()));
        let two = Bundle::of(payload("boot", "payloads/plain.bin").plain())
            .payload(payload("system", "payloads/system.bin").chunker("fixed-16"));
        rebuild("two-payloads-mixed", two);
        let new = payload("system", "images/new.img")
            .hash(Hash::Sha256)
            .dedup();
        rebuild("fixed4-none-dedup-new", Bundle::of(new).hash(Hash::Sha256));
    }

    #[test]
    fn golden_signed_bundle_is_rebuilt() {
        let signature = vector("certs/signed-ec.cms");
        let plain = || payload("system", "payloads/plain.bin");
        rebuild("signed-base", incremental(plain()));
        rebuild(
            "signed-ec",
            incremental(plain()).signatures(vec![signature]),
        );
    }

    /// Also byte for byte: the bundler uses the same encoder, and its output has been stable.
    #[test]
    fn golden_compressed_bundles_are_rebuilt() {
        let dups = || payload("system", "payloads/dups.bin");
        let new = || payload("system", "images/new.img").xz(6).dedup();
        rebuild(
            "fixed4-xz",
            incremental(payload("system", "payloads/small.bin").xz(6)),
        );
        rebuild("dups-fixed4-xz-dedup", incremental(dups().xz(9).dedup()));
        rebuild(
            "dups-casync1-xz-nodedup",
            incremental(dups().chunker("casync-1").xz(6)),
        );
        rebuild("casync64-xz-dedup", Bundle::of(new().chunker("casync-64")));
        rebuild("casync8-xz-dedup", Bundle::of(new().chunker("casync-8")));
        let empty = payload("system", "payloads/empty.bin");
        rebuild(
            "casync8-empty",
            incremental(empty.chunker("casync-8").xz(6).dedup()),
        );
    }

    #[test]
    fn golden_block_indexes_are_rebuilt() {
        let old = vector("images/old.img");
        for (chunker, hash) in [
            ("casync-64", Hash::Sha512_256),
            ("casync-8", Hash::Sha512_256),
            ("fixed-4", Hash::Sha256),
        ] {
            let name = format!("{chunker}_{}", hash.name());
            let expected = vector(&format!("index/old.{name}.rugix-block-index"));
            assert_same_bytes(&block_index(&old, chunker, hash), &expected, &name);
        }
    }

    #[test]
    fn missing_runs_are_those_of_the_golden_plan() {
        let old = vector("images/old.img");
        let plan: serde_json::Value =
            serde_json::from_slice(&vector("bundles/delta-plan.json")).unwrap();
        let new = payload("system", "images/new.img");
        let cases = [
            ("casync8-xz-dedup", "casync-8", Hash::Sha512_256, Some(6)),
            ("fixed4-none-dedup-new", "fixed-4", Hash::Sha256, None),
        ];
        for (name, chunker, hash, preset) in cases {
            let mut payload = new.clone().chunker(chunker).hash(hash).dedup();
            if let Some(preset) = preset {
                payload = payload.xz(preset);
            }
            let expected = vector(&format!("bundles/{name}.rugixb"));
            let bundle = Bundle::of(payload).hash(hash);
            let made = bundle.manifest(Some(&manifest_of(&expected))).make();
            let have = block_digests(&old, chunker, hash);
            let runs = made.payloads[0].missing(&have);
            let runs: Vec<_> = runs.iter().map(|run| [run.start, run.end]).collect();
            assert_eq!(plan[name]["runs"], serde_json::json!(runs), "{name}");
        }
    }

    #[test]
    fn lengths_are_canonical() {
        for (size, expected) in [
            (0, "80"),
            (1, "81"),
            (126, "fe"),
            (127, "ff00"),
            (254, "ff7f"),
            (255, "ff8100"),
            (372, "ff8175"),
            (16510, "ffff7f"),
            (16511, "ff818000"),
        ] {
            assert_eq!(hex(&value_head(0, size)[4..]), expected, "{size}");
        }
    }

    #[test]
    fn edited_images_keep_most_blocks() {
        let old = mixed_image(1 << 20, 1);
        assert_eq!(old, mixed_image(1 << 20, 1));
        for new in [edit(&old, 2), edit_in_place(&old, 2)] {
            let have = block_digests(&old, "casync-8", Hash::Sha256);
            let blocks = Cuts::Casync(8).blocks(&new);
            let digests = blocks.iter().map(|r| Hash::Sha256.digest(&new[r.clone()]));
            let kept = digests.filter(|d| have.contains(&hex(d))).count();
            assert!(kept < blocks.len() && 2 * kept > blocks.len(), "{kept}");
        }
        for size in [0, 1, 17, 4096] {
            assert_ne!(edit(&zeros(size), 3), zeros(size));
        }
    }
}
