//! The hash algorithms as ring has them: assembly for each processor.
//!
//! Which instructions it has (NEON on ARMv7, those for SHA-2 on aarch64) the kernel says at run time in the
//! auxiliary vector, so `/proc` is not needed; without them there is assembly that does without.

use ring::digest::{Context, SHA256, SHA512, SHA512_256};

use super::HashAlgorithm;

/// A hash in the making.
#[derive(Clone)]
pub(super) struct State(Context);

impl State {
    pub(super) fn new(algorithm: HashAlgorithm) -> Self {
        Self(Context::new(match algorithm {
            HashAlgorithm::Sha256 => &SHA256,
            HashAlgorithm::Sha512 => &SHA512,
            HashAlgorithm::Sha512_256 => &SHA512_256,
        }))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self, put: impl FnOnce(&[u8])) {
        put(self.0.finish().as_ref());
    }
}
