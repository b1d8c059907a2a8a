//! Digests: the three hash algorithms of the format, computing, parsing, printing, and the proof
//! that some bytes match one.
//!
//! A digest is written `algorithm:hex` (`sha512-256:0a1b…`). The reference separates with `:` or
//! `_` and spells SHA-512/256 with either `-` or `_`, so a string is split at its last separator.
//! SHA-512/256 has initial values of its own; it is not a truncated SHA-512.
//!
//! [`Verified`] is the only form in which the device layer takes block bytes, and the only way to
//! get one is a comparison that succeeded ([`Digest::verify`]), or a user's explicit wish to do
//! without ([`Verified::unchecked`]).
//!
//! The digests are those of `sha2`, or with the cargo feature `ring-hash` those of ring, which a build
//! with signatures or TLS holds anyway: on ARMv7 with NEON a third of the instructions.
//!
//! This file knows nothing of the other modules.

#[cfg(feature = "ring-hash")]
mod with_ring;
// The tests compare the two.
#[cfg(any(test, not(feature = "ring-hash")))]
mod with_sha2;

use std::fmt;
use std::thread::{self, JoinHandle};

use crossbeam_channel::{bounded, unbounded, Receiver, Sender};

#[cfg(feature = "ring-hash")]
use with_ring::State;
#[cfg(not(feature = "ring-hash"))]
use with_sha2::State;

/// Size in bytes of the largest digest (SHA-512).
pub const MAX_DIGEST_SIZE: usize = 64;

/// Stack of the thread of a [`Trailing`], of which it takes 3 KB (measured); the default of 2 MiB is much
/// on a small board.
const STACK_SIZE: usize = 64 << 10;

/// A hash algorithm a bundle may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum HashAlgorithm {
    /// SHA-256, 32 bytes.
    Sha256,
    /// SHA-512, 64 bytes.
    Sha512,
    /// SHA-512/256, 32 bytes; the default of the reference.
    #[default]
    Sha512_256,
}

impl HashAlgorithm {
    /// The algorithm of a name as bundles, indexes and digest strings spell it.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "sha256" => Some(Self::Sha256),
            "sha512" => Some(Self::Sha512),
            "sha512-256" | "sha512_256" => Some(Self::Sha512_256),
            _ => None,
        }
    }

    /// The canonical name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
            Self::Sha512_256 => "sha512-256",
        }
    }

    /// Digest size in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Sha256 | Self::Sha512_256 => 32,
            Self::Sha512 => 64,
        }
    }

    /// Hashes `bytes` at once.
    pub fn digest(self, bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::new(self);
        hasher.update(bytes);
        hasher.finish()
    }
}

impl fmt::Display for HashAlgorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A hash value together with its algorithm.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: HashAlgorithm,
    /// The first `algorithm.size()` bytes; the rest is zero, so that comparing is a plain `==`.
    bytes: [u8; MAX_DIGEST_SIZE],
}

impl Digest {
    /// A digest from its raw bytes, or `None` when their number does not fit the algorithm.
    pub fn from_bytes(algorithm: HashAlgorithm, raw: &[u8]) -> Option<Self> {
        if raw.len() != algorithm.size() {
            return None;
        }
        let mut bytes = [0; MAX_DIGEST_SIZE];
        bytes.get_mut(..raw.len())?.copy_from_slice(raw);
        Some(Self { algorithm, bytes })
    }

    /// A digest from `algorithm:hex` (or `algorithm_hex`), in upper or lower case.
    pub fn parse(text: &str) -> Option<Self> {
        let at = text.rfind([':', '_'])?;
        let algorithm = HashAlgorithm::parse(text.get(..at)?)?;
        let hex = text.get(at + 1..)?.as_bytes();
        let mut raw = [0; MAX_DIGEST_SIZE];
        if hex.len() != algorithm.size() * 2 {
            return None;
        }
        for (byte, pair) in raw.iter_mut().zip(hex.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = (hex_value(*high)? << 4) | hex_value(*low)?;
        }
        Some(Self {
            algorithm,
            bytes: raw,
        })
    }

    /// The algorithm that made it.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.algorithm
    }

    /// The raw value, `algorithm().size()` bytes.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.algorithm.size()).unwrap_or_default()
    }

    /// Hashes `bytes` and returns the proof that they have this digest, or else what they have.
    pub fn verify<'a>(&self, bytes: &'a [u8]) -> Result<Verified<'a>, Digest> {
        let found = self.algorithm.digest(bytes);
        if found == *self {
            Ok(Verified(bytes))
        } else {
            Err(found)
        }
    }

    /// The same for bytes that go on as one piece; `None` if they have another digest.
    pub(crate) fn verify_owned(&self, bytes: Vec<u8>) -> Option<VerifiedBuf> {
        self.verify(&bytes).is_ok().then_some(VerifiedBuf(bytes))
    }
}

fn hex_value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        b'A'..=b'F' => Some(digit - b'A' + 10),
        _ => None,
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.algorithm)?;
        self.as_bytes()
            .iter()
            .try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A hash in the making.
#[derive(Clone)]
pub struct Hasher {
    algorithm: HashAlgorithm,
    state: State,
}

impl Hasher {
    /// A hasher that has seen no byte yet.
    pub fn new(algorithm: HashAlgorithm) -> Self {
        Self {
            algorithm,
            state: State::new(algorithm),
        }
    }

    /// Takes in the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.state.update(bytes);
    }

    /// The digest of everything taken in.
    pub fn finish(self) -> Digest {
        let mut bytes = [0; MAX_DIGEST_SIZE];
        self.state.finish(|raw| {
            for (to, from) in bytes.iter_mut().zip(raw) {
                *to = *from;
            }
        });
        Digest {
            algorithm: self.algorithm,
            bytes,
        }
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hasher({})", self.algorithm)
    }
}

/// Bytes that are handed to the thread of a [`Trailing`] at once.
const PIECE: usize = 128 << 10;

/// Pieces that wait for nothing: the one that is filled and the one that is taken in.
const BUSY_PIECES: usize = 2;

/// A hash in the making, on a thread of its own behind the caller; with one core, at once.
///
/// For a digest that is wanted only at the end. The caller waits when it is too far ahead.
#[derive(Debug)]
pub struct Trailing(Place);

#[derive(Debug)]
enum Place {
    Here(Hasher),
    Behind {
        full: Sender<Vec<u8>>,
        /// Pieces that were taken in, to be filled again.
        empty: Receiver<Vec<u8>>,
        piece: Vec<u8>,
        thread: JoinHandle<Hasher>,
    },
}

impl Trailing {
    /// One that has seen no byte yet, and may hold so many of them.
    pub fn new(algorithm: HashAlgorithm, room: u64) -> Self {
        let several_cores = thread::available_parallelism().is_ok_and(|n| n.get() > 1);
        let place = several_cores.then(|| Self::behind(algorithm, room));
        let here = || Place::Here(Hasher::new(algorithm));
        Self(place.flatten().unwrap_or_else(here))
    }

    fn behind(algorithm: HashAlgorithm, room: u64) -> Option<Place> {
        let pieces = usize::try_from(room).unwrap_or(usize::MAX) / PIECE;
        let waiting = pieces.checked_sub(BUSY_PIECES).filter(|n| *n > 0)?;
        let (full, to_hash) = bounded::<Vec<u8>>(waiting);
        let (give_back, empty) = unbounded();
        let thread = thread::Builder::new()
            .name("digest".to_owned())
            .stack_size(STACK_SIZE)
            .spawn(move || {
                let mut hasher = Hasher::new(algorithm);
                for mut piece in to_hash {
                    hasher.update(&piece);
                    piece.clear();
                    // Nobody wants it any more once the last ones are on their way.
                    drop(give_back.send(piece));
                }
                hasher
            });
        // Without a thread more it is done here.
        Some(Place::Behind {
            full,
            empty,
            piece: Vec::with_capacity(PIECE),
            thread: thread.ok()?,
        })
    }

    /// Takes in the next bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        let (full, empty, piece) = match &mut self.0 {
            Place::Here(hasher) => return hasher.update(bytes),
            Place::Behind {
                full, empty, piece, ..
            } => (full, empty, piece),
        };
        while !bytes.is_empty() {
            let room = PIECE.saturating_sub(piece.len()).min(bytes.len());
            let (now, later) = bytes.split_at(room);
            piece.extend_from_slice(now);
            bytes = later;
            if piece.len() >= PIECE {
                let next = empty.try_recv();
                let next = next.unwrap_or_else(|_| Vec::with_capacity(PIECE));
                // It fails only after a panic of the thread, which `finish` passes on.
                drop(full.send(std::mem::replace(piece, next)));
            }
        }
    }

    /// The digest of everything taken in.
    pub fn finish(self) -> Digest {
        match self.0 {
            Place::Here(hasher) => hasher.finish(),
            Place::Behind {
                full,
                piece,
                thread,
                ..
            } => {
                drop(full.send(piece));
                drop(full);
                match thread.join() {
                    Ok(hasher) => hasher.finish(),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
        }
    }
}

/// Bytes that may be written to a target: their digest was compared and matched.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'a>(&'a [u8]);

impl<'a> Verified<'a> {
    /// Bytes of a payload that has no block digests, accepted because the user said so
    /// (`--insecure-allow-missing-block-index`). The payload digest is still checked at the end.
    pub fn unchecked(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// [`Verified`] bytes that own their memory, to be handed from thread to thread.
#[derive(Debug)]
pub struct VerifiedBuf(Vec<u8>);

impl VerifiedBuf {
    /// The proof.
    pub fn verified(&self) -> Verified<'_> {
        Verified(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_published_values() {
        let abc = |algorithm: HashAlgorithm| algorithm.digest(b"abc").to_string();
        assert_eq!(
            abc(HashAlgorithm::Sha256),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            abc(HashAlgorithm::Sha512_256),
            "sha512-256:53048e2681941ef99b2e29b76b4c7dabe4c2d0c634fc6d46e0e2f13107e7af23"
        );
        assert!(abc(HashAlgorithm::Sha512).starts_with("sha512:ddaf35a193617abacc417349ae204131"));
    }

    /// Of every length around the ends of blocks, from places that are not aligned, in pieces.
    #[test]
    fn agrees_with_the_other_implementation() {
        let bytes: Vec<u8> = (0..1000_u32)
            .map(|i| (i * i / 8).to_le_bytes()[0])
            .collect();
        for algorithm in [
            HashAlgorithm::Sha256,
            HashAlgorithm::Sha512,
            HashAlgorithm::Sha512_256,
        ] {
            for length in 0..600 {
                let bytes = &bytes[length % 17..][..length];
                let mut whole = with_sha2::State::new(algorithm);
                whole.update(bytes);
                let mut pieces = Hasher::new(algorithm);
                bytes
                    .chunks(length / 3 + 1)
                    .for_each(|piece| pieces.update(piece));
                let copy = pieces.clone();
                pieces.update(b"not in the copy");
                whole.finish(|raw| assert_eq!(raw, copy.finish().as_bytes(), "{length}"));
            }
        }
    }

    #[test]
    fn parses_every_accepted_spelling() {
        let digest = HashAlgorithm::Sha512_256.digest(b"x");
        let hex = digest.to_string().split_off("sha512-256:".len());
        for text in [
            format!("sha512-256:{hex}"),
            format!("sha512_256:{hex}"),
            format!("sha512_256_{hex}"),
            format!("sha512-256_{hex}"),
            format!("sha512-256:{}", hex.to_uppercase()),
        ] {
            assert_eq!(Digest::parse(&text), Some(digest), "{text}");
        }
        for text in [
            "",
            ":",
            "sha256",
            "sha256:",
            "sha256:zz",
            &hex,
            &format!("sha512:{hex}"),
            &format!("md5:{hex}"),
            &format!("sha256:{hex}0"),
            &format!("sha256:é{}", &hex[2..]),
        ] {
            assert_eq!(Digest::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_trailing_digest_is_that_of_all_bytes_in_order() {
        let algorithm = HashAlgorithm::Sha512_256;
        let bytes: Vec<u8> = (0..20 * PIECE)
            .map(|i| u8::try_from(i % 251).expect("small"))
            .collect();
        for size in [1000, PIECE - 1, PIECE, PIECE + 1, bytes.len()] {
            for place in [
                Some(Place::Here(Hasher::new(algorithm))),
                Trailing::behind(algorithm, 3 * PIECE as u64),
                Trailing::behind(algorithm, 10 * PIECE as u64),
            ] {
                let mut trailing = Trailing(place.expect("a thread"));
                bytes.chunks(size).for_each(|piece| trailing.update(piece));
                assert_eq!(
                    trailing.finish(),
                    algorithm.digest(&bytes),
                    "pieces of {size}"
                );
            }
        }
        for room in [0, 1 << 20] {
            let trailing = Trailing::new(algorithm, room);
            assert_eq!(trailing.finish(), algorithm.digest(&[]));
        }
        let room = BUSY_PIECES * PIECE;
        assert!(
            Trailing::behind(algorithm, room as u64).is_none(),
            "too little"
        );
    }

    #[test]
    fn verifies_only_the_right_bytes() {
        let digest = HashAlgorithm::Sha256.digest(b"right");
        assert_eq!(
            digest.verify(b"right").map(Verified::bytes),
            Ok(&b"right"[..])
        );
        assert!(digest.verify(b"wrong").is_err());
    }
}
