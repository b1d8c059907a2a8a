//! What a build without the feature `signatures` has in place of roots: nothing, and words that
//! say so.
//!
//! There is no value of the types here, so nothing is ever taken for proven.

use std::path::{Path, PathBuf};

use super::{BadFile, Reason, SignerInfo};
use crate::clock::Clock;
use crate::error::Result;

/// There are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roots {}

impl Roots {
    /// Fails.
    pub fn load(files: &[PathBuf], _: Clock) -> Result<Self, BadFile> {
        Err(BadFile {
            path: files.first().cloned().unwrap_or_default(),
            reason: "this build of reflash checks no signatures; a bundle hash it does".to_owned(),
        })
    }

    /// Never called.
    pub fn check(&self, _: &[&[u8]], _: &[u8]) -> Result<()> {
        match *self {}
    }
}

/// None are looked for, since none could be used.
pub fn configured(_: &Path, _: Clock) -> Result<Option<Roots>, BadFile> {
    Ok(None)
}

/// Says that nothing is known.
pub fn describe(_: &[u8], _: &[u8], _: Option<&Roots>) -> Result<Vec<SignerInfo>, Reason> {
    Err("this build of reflash checks no signatures".to_owned())
}
