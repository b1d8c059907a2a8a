//! The model that every stage after `open` works on: header, payloads, and the index of blocks.
//!
//! Plain data, no I/O. An [`Index`] can only be made consistent: its stored ranges tile the
//! payload's data without gap or overlap, every offset fits `u64`, every size obeys its limit.
//! Later stages do no re-checking and no unchecked arithmetic.
//!
//! A block has up to two sizes. `stored` is what it takes in the bundle. Its plain size is known
//! when the payload is not compressed, and by rule for all but the last block of a `fixed`
//! payload; for a content-defined compressed payload it is only bounded until the block was
//! decompressed, and so is the place of every block after it ([`Size`] says which).
//!
//! The table is kept as flat arrays (about 50 bytes a block): a 1 GiB image in 4 KiB blocks has
//! 262,144 of them, and the board may have 64 MiB.

use std::ops::Range;

use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgorithm};

/// Largest plain block in bytes, whatever a chunker allows: each one is held in memory.
pub const MAX_BLOCK_SIZE: u32 = 64 << 20;

/// Most blocks of one payload: at 64 KiB a block that is 256 GiB.
pub const MAX_BLOCKS: usize = 4 << 20;

/// What the bundle header says.
#[derive(Clone, Debug)]
pub struct Header {
    /// The bundle hash: digest of the raw header.
    pub hash: Digest,
    /// Algorithm of the payload header and payload digests.
    pub algorithm: HashAlgorithm,
    /// False for a "full" update; does not change how payloads are decoded.
    pub incremental: bool,
    /// One entry a payload, in bundle order.
    pub entries: Vec<Entry>,
}

/// What the bundle header says of one payload.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Where the payload goes.
    pub delivery: Delivery,
    /// Digest of the raw payload header.
    pub header_digest: Digest,
    /// Digest of all plain bytes of the payload.
    pub digest: Digest,
    /// Format of the delta encoding, if the payload is a patch and not an image.
    pub delta: Option<String>,
}

/// Where a payload goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// Written to the slot of this name.
    Slot(String),
    /// Piped to the command with these arguments.
    Execute(Vec<String>),
    /// A file of an application.
    AppFile {
        /// The application.
        app: String,
        /// The path inside it.
        path: String,
    },
    /// An application archive.
    AppArchive(String),
    /// The entry names no delivery at all.
    None,
}

impl Delivery {
    /// The slot that a payload is written to, if it goes to one.
    pub fn slot(&self) -> Option<&str> {
        match self {
            Self::Slot(name) => Some(name),
            _ => None,
        }
    }
}

/// One payload of a bundle.
#[derive(Clone, Debug)]
pub struct Payload {
    /// Its place in the header's list.
    pub number: usize,
    /// Where its data lie in the bundle.
    pub data: Range<u64>,
    /// Bytes between the data before (or the start of the bundle) and its own: all headers.
    pub header_size: u64,
    /// Its blocks, or `None` for a payload without block encoding.
    pub index: Option<Index>,
}

/// Compression of the stored blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Stored bytes are plain bytes.
    None,
    /// Each stored block is one `.xz` stream.
    Xz,
}

/// How many plain bytes something has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Exactly so many.
    Exact(u32),
    /// At least one and at most so many.
    AtMost(u32),
}

impl Size {
    /// The largest it can be.
    pub fn bound(self) -> u32 {
        match self {
            Self::Exact(size) | Self::AtMost(size) => size,
        }
    }

    /// Whether `size` agrees with it.
    pub fn allows(self, size: usize) -> bool {
        match self {
            Self::Exact(exact) => size == exact as usize,
            Self::AtMost(bound) => (1..=bound as usize).contains(&size),
        }
    }
}

/// One block of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Its number, counted from 0 in payload order.
    pub number: u32,
    /// The first block with the same digest; itself if there is no earlier one.
    pub first: u32,
    /// Digest of its plain bytes.
    pub digest: Digest,
    /// Offset of its stored bytes in the bundle. Meaningless if `stored_size` is 0.
    pub stored_at: u64,
    /// Its stored bytes; 0 exactly if the bundle does not store it again (deduplication).
    pub stored_size: u32,
    /// Its plain size as far as it is known.
    pub size: Size,
}

impl Block {
    /// Its place in the bundle, or `None` if it is not stored again.
    pub fn stored(&self) -> Option<Range<u64>> {
        (self.stored_size > 0).then(|| self.stored_at..self.stored_at + u64::from(self.stored_size))
    }
}

/// What a payload header says, before it is checked: the input of [`Index::new`].
#[derive(Clone, Debug)]
pub struct Encoding {
    /// How the bundler cut.
    pub chunker: Chunker,
    /// Algorithm of the block digests.
    pub algorithm: HashAlgorithm,
    /// Repeats of a block are not stored.
    pub deduplicated: bool,
    /// Compression of the stored blocks.
    pub compression: Compression,
    /// Raw digests of all blocks in payload order, concatenated.
    pub digests: Vec<u8>,
    /// Stored size of each stored block, big-endian u32, if the list is there.
    pub sizes: Option<Vec<u8>>,
}

/// The table of blocks of a payload.
#[derive(Clone, Debug)]
pub struct Index {
    chunker: Chunker,
    algorithm: HashAlgorithm,
    deduplicated: bool,
    compression: Compression,
    digests: Vec<u8>,
    /// Start of block i's stored bytes; one more at the end, so that sizes are differences.
    stored_at: Vec<u64>,
    /// First block with the same digest.
    first: Vec<u32>,
    /// Block numbers sorted by digest, then number: for looking digests up. Sorting needs a
    /// fraction of the memory of a hash table, and hostile digests cannot make it slow.
    by_digest: Vec<u32>,
}

impl Index {
    /// Checks and completes the table. `data` is the place of the payload data in the bundle;
    /// `offset` that of the payload header, for messages.
    pub fn new(encoding: Encoding, data: Range<u64>, offset: u64) -> Result<Self> {
        let fail = |reason| Err(Error::Malformed { offset, reason });
        let Encoding {
            chunker,
            algorithm,
            deduplicated,
            compression,
            digests,
            sizes,
        } = encoding;
        if digests.len() % algorithm.size() != 0 {
            return fail("the block hashes are not a whole number of hashes");
        }
        let count = digests.len() / algorithm.size();
        let Some(numbers) = u32::try_from(count).ok().filter(|_| count <= MAX_BLOCKS) else {
            return fail("a payload has more blocks than allowed");
        };
        let digest = |i: u32| {
            let at = i as usize * algorithm.size();
            digests.get(at..at + algorithm.size()).unwrap_or_default()
        };
        let mut by_digest: Vec<u32> = (0..numbers).collect();
        by_digest.sort_unstable_by(|a, b| digest(*a).cmp(digest(*b)).then(a.cmp(b)));
        let mut first: Vec<u32> = (0..numbers).collect();
        for pair in by_digest.windows(2) {
            if let [before, i] = pair {
                if digest(*before) == digest(*i) {
                    let origin = first.get(*before as usize).copied().unwrap_or(*before);
                    if let Some(slot) = first.get_mut(*i as usize) {
                        *slot = origin;
                    }
                }
            }
        }

        let mut listed = match (&sizes, compression, chunker.is_fixed()) {
            (Some(sizes), ..) if sizes.len() % 4 != 0 => {
                return fail("the block sizes are not a whole number of sizes")
            }
            (Some(sizes), ..) => Some(sizes.chunks_exact(4)),
            (None, Compression::None, true) => None,
            (None, ..) => return fail("the block sizes are missing"),
        };
        let bound = chunker.max_size().min(MAX_BLOCK_SIZE);
        let stored_bound = match compression {
            Compression::None => u64::from(bound),
            // xz expands what it cannot compress only a little, plus its container.
            Compression::Xz => u64::from(bound) + u64::from(bound) / 16 + 1024,
        };
        let mut stored_at = Vec::with_capacity(count + 1);
        let mut at = data.start;
        for (i, first) in (0..numbers).zip(&first) {
            stored_at.push(at);
            if deduplicated && *first != i {
                continue;
            }
            let left = data.end - at;
            let size = match &mut listed {
                None => left.min(u64::from(bound)),
                Some(sizes) => match sizes.next().and_then(|raw| raw.try_into().ok()) {
                    Some(raw) => u64::from(u32::from_be_bytes(raw)),
                    None => return fail("there are fewer block sizes than stored blocks"),
                },
            };
            if left == 0 {
                return fail("the payload data end before the last block");
            }
            if size == 0 {
                return fail("a block is empty");
            }
            if size > left {
                return fail("a block runs past the payload data");
            }
            if size > stored_bound {
                return fail("a block is larger than its chunker allows");
            }
            let short = size < u64::from(bound) && i + 1 < numbers;
            if short && chunker.is_fixed() && compression == Compression::None {
                return fail("a block of a fixed size is shorter than the others");
            }
            at += size;
        }
        stored_at.push(at);
        if listed.is_some_and(|mut sizes| sizes.next().is_some()) {
            return fail("there are more block sizes than stored blocks");
        }
        if at != data.end {
            return fail("there are payload data that belong to no block");
        }
        Ok(Self {
            chunker,
            algorithm,
            deduplicated,
            compression,
            digests,
            stored_at,
            first,
            by_digest,
        })
    }

    /// Number of blocks, repeats included.
    pub fn len(&self) -> usize {
        self.first.len()
    }

    /// True for the index of an empty payload.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// How the bundler cut.
    pub fn chunker(&self) -> Chunker {
        self.chunker
    }

    /// Algorithm of the block digests.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// Repeats of a block are not stored.
    pub fn deduplicated(&self) -> bool {
        self.deduplicated
    }

    /// Compression of the stored blocks.
    pub fn compression(&self) -> Compression {
        self.compression
    }

    /// Block `number`, or `None` behind the last one.
    pub fn block(&self, number: u32) -> Option<Block> {
        let i = number as usize;
        let first = *self.first.get(i)?;
        let stored = |i: usize| -> Option<(u64, u32)> {
            let start = *self.stored_at.get(i)?;
            let end = *self.stored_at.get(i + 1)?;
            Some((start, u32::try_from(end - start).ok()?))
        };
        let (stored_at, stored_size) = stored(i)?;
        let size = match self.compression {
            Compression::None => Size::Exact(stored(first as usize)?.1),
            Compression::Xz if self.chunker.is_fixed() && i + 1 < self.len() => {
                Size::Exact(self.chunker.max_size())
            }
            Compression::Xz => Size::AtMost(self.chunker.max_size().min(MAX_BLOCK_SIZE)),
        };
        Some(Block {
            number,
            first,
            digest: Digest::from_bytes(self.algorithm, self.raw_digest(number))?,
            stored_at,
            stored_size,
            size,
        })
    }

    /// All blocks in payload order.
    pub fn blocks(&self) -> impl Iterator<Item = Block> + '_ {
        (0..).map_while(|number| self.block(number))
    }

    /// The first block with this digest.
    pub fn find(&self, digest: &Digest) -> Option<u32> {
        if digest.algorithm() != self.algorithm {
            return None;
        }
        let at = self
            .by_digest
            .partition_point(|i| self.raw_digest(*i) < digest.as_bytes());
        let number = *self.by_digest.get(at)?;
        (self.raw_digest(number) == digest.as_bytes()).then_some(number)
    }

    /// The payload's plain size in bytes: at least, and at most.
    pub fn size_bounds(&self) -> (u64, u64) {
        self.blocks().fold((0, 0), |(least, most), block| {
            let at_least = match block.size {
                Size::Exact(size) => size,
                Size::AtMost(_) => 1,
            };
            (
                least + u64::from(at_least),
                most + u64::from(block.size.bound()),
            )
        })
    }

    /// The raw digest of block `number`; empty behind the last one.
    pub fn raw_digest(&self, number: u32) -> &[u8] {
        let size = self.algorithm.size();
        let at = number as usize * size;
        self.digests.get(at..at + size).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoding(chunker: &str, blocks: &[&[u8]], sizes: Option<&[u32]>) -> Encoding {
        let algorithm = HashAlgorithm::Sha256;
        Encoding {
            chunker: Chunker::parse(chunker).expect("a chunker"),
            algorithm,
            deduplicated: true,
            compression: Compression::None,
            digests: blocks
                .iter()
                .flat_map(|block| algorithm.digest(block).as_bytes().to_vec())
                .collect(),
            sizes: sizes.map(|sizes| sizes.iter().flat_map(|size| size.to_be_bytes()).collect()),
        }
    }

    fn reason(result: Result<Index>) -> &'static str {
        match result {
            Err(Error::Malformed { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lays_out_a_fixed_payload_with_repeats() {
        let index = Index::new(
            encoding("fixed-1", &[b"a", b"b", b"a", b"c"], None),
            100..100 + 1024 + 1024 + 10,
            0,
        )
        .expect("consistent");
        let blocks: Vec<_> = index.blocks().collect();
        assert_eq!(blocks.len(), 4);
        assert_eq!(blocks[0].stored(), Some(100..1124));
        assert_eq!(blocks[1].stored(), Some(1124..2148));
        assert_eq!((blocks[2].stored(), blocks[2].first), (None, 0));
        assert_eq!(blocks[2].size, Size::Exact(1024));
        assert_eq!(blocks[3].stored(), Some(2148..2158));
        assert_eq!(index.size_bounds(), (3082, 3082));
        let digest = HashAlgorithm::Sha256.digest(b"a");
        assert_eq!(index.find(&digest), Some(0));
        assert_eq!(index.find(&HashAlgorithm::Sha256.digest(b"z")), None);
        assert_eq!(index.find(&HashAlgorithm::Sha512_256.digest(b"a")), None);
    }

    #[test]
    fn repeats_are_stored_again_without_deduplication() {
        let mut encoding = encoding("casync-1", &[b"a", b"a"], Some(&[5, 5]));
        encoding.deduplicated = false;
        let index = Index::new(encoding, 0..10, 0).expect("consistent");
        let second = index.block(1).expect("there");
        assert_eq!((second.stored(), second.first), (Some(5..10), 0));
    }

    #[test]
    fn plain_sizes_are_bounded_where_they_are_unknown() {
        let mut fixed = encoding("fixed-4", &[b"a", b"b"], Some(&[50, 60]));
        fixed.compression = Compression::Xz;
        let index = Index::new(fixed, 0..110, 0).expect("consistent");
        assert_eq!(index.block(0).expect("there").size, Size::Exact(4096));
        assert_eq!(index.block(1).expect("there").size, Size::AtMost(4096));
        assert_eq!(index.size_bounds(), (4097, 8192));
        assert!(Size::Exact(3).allows(3) && !Size::Exact(3).allows(2));
        assert!(Size::AtMost(3).allows(1) && !Size::AtMost(3).allows(0));
        assert!(!Size::AtMost(3).allows(4));
    }

    #[test]
    fn refuses_every_inconsistency() {
        let casync = |sizes: &[u32]| encoding("casync-1", &[b"a", b"b"], Some(sizes));
        let new = |encoding, size| reason(Index::new(encoding, 0..size, 0));
        assert!(new(casync(&[5]), 5).contains("fewer"));
        assert!(new(casync(&[5, 5, 5]), 10).contains("more block sizes"));
        assert!(new(casync(&[5, 5]), 11).contains("no block"));
        assert!(new(casync(&[5, 6]), 10).contains("runs past"));
        assert!(new(casync(&[0, 10]), 10).contains("empty"));
        assert!(new(casync(&[10, 0]), 10).contains("end before"));
        assert!(new(casync(&[4097, 1]), 4098).contains("larger than its chunker"));
        assert!(new(casync(&[u32::MAX, u32::MAX]), 10).contains("runs past"));
        assert!(new(encoding("casync-1", &[b"a"], None), 10).contains("missing"));
        assert!(new(encoding("fixed-1", &[b"a", b"b"], None), 1024).contains("end before"));
        assert!(new(encoding("fixed-1", &[b"a"], None), 1025).contains("no block"));
        assert!(new(encoding("fixed-1", &[b"a", b"b"], Some(&[9, 9])), 18).contains("shorter"));
        let mut odd = casync(&[5, 5]);
        odd.digests.push(0);
        assert!(new(odd, 10).contains("whole number of hashes"));
        let mut odd = casync(&[5, 5]);
        odd.sizes.as_mut().expect("there").push(0);
        assert!(new(odd, 10).contains("whole number of sizes"));
        let mut compressed = encoding("fixed-1", &[b"a"], None);
        compressed.compression = Compression::Xz;
        assert!(new(compressed, 10).contains("missing"));
    }

    #[test]
    fn an_empty_payload_has_no_blocks() {
        let index = Index::new(encoding("fixed-4", &[], None), 7..7, 0).expect("consistent");
        assert!(index.is_empty());
        assert_eq!(index.size_bounds(), (0, 0));
        assert!(reason(Index::new(encoding("fixed-4", &[], None), 7..8, 0)).contains("no block"));
    }
}
