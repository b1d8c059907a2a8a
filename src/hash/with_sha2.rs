//! The hash algorithms as sha2 has them: portable Rust.
//!
//! On x86_64 and aarch64 it finds the processor's own instructions at run time.

use sha2::{Digest as _, Sha256, Sha512, Sha512_256};

use super::HashAlgorithm;

/// A hash in the making.
#[derive(Clone)]
pub(super) enum State {
    Sha256(Sha256),
    Sha512(Sha512),
    Sha512_256(Sha512_256),
}

impl State {
    pub(super) fn new(algorithm: HashAlgorithm) -> Self {
        match algorithm {
            HashAlgorithm::Sha256 => Self::Sha256(Sha256::new()),
            HashAlgorithm::Sha512 => Self::Sha512(Sha512::new()),
            HashAlgorithm::Sha512_256 => Self::Sha512_256(Sha512_256::new()),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Sha256(state) => state.update(bytes),
            Self::Sha512(state) => state.update(bytes),
            Self::Sha512_256(state) => state.update(bytes),
        }
    }

    pub(super) fn finish(self, put: impl FnOnce(&[u8])) {
        match self {
            Self::Sha256(state) => put(&state.finalize()),
            Self::Sha512(state) => put(&state.finalize()),
            Self::Sha512_256(state) => put(&state.finalize()),
        }
    }
}
