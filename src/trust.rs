//! Whether the owner signed a bundle: roots that the user names, and the CMS signatures that a
//! bundle carries (format.md, section 7 of the reference; RFC 5652, RFC 5280).
//!
//! What is signed is a small structure with the bundle hash. In this order: a chain from the
//! signer's certificate to a root, the signature over the raw structure, then its contents, then
//! the hash against the raw bundle header; the header is not interpreted before. One good
//! signature suffices, bad ones do not spoil it. Which certificates and algorithms are good is a
//! table in `chain` and one in `key`.
//!
//! Parsing and rules are ours, and use no key before somebody trusted vouched for it; arithmetic on
//! keys is that of ring (RSA) and the RustCrypto crates, DER that of the crate `der`. The cargo
//! feature `signatures` brings all of it; without it, asking for it is a usage error.

use std::fmt;
use std::path::PathBuf;

use crate::clock::Time;

#[cfg(feature = "signatures")]
mod asn1;
#[cfg(feature = "signatures")]
mod chain;
#[cfg(feature = "signatures")]
mod cms;
#[cfg(feature = "signatures")]
mod config;
#[cfg(feature = "signatures")]
mod key;
#[cfg(feature = "signatures")]
mod with;
#[cfg(not(feature = "signatures"))]
mod without;
#[cfg(feature = "signatures")]
mod x509;

#[cfg(feature = "signatures")]
pub use with::{configured, describe, Roots};
#[cfg(not(feature = "signatures"))]
pub use without::{configured, describe, Roots};

/// Why a signature, a certificate or a file does not count, in words.
pub type Reason = String;

/// A file with roots that cannot be used.
#[derive(Debug)]
pub struct BadFile {
    /// Which.
    pub path: PathBuf,
    /// Why not.
    pub reason: Reason,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.reason)
    }
}

impl std::error::Error for BadFile {}

/// A certificate, for people. Nothing of it was checked unless a root accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateInfo {
    /// Whose it is.
    pub subject: String,
    /// Who issued it.
    pub issuer: String,
    /// Its number, in hex digits.
    pub serial: String,
    /// Valid from then on,
    pub not_before: Time,
    /// until then.
    pub not_after: Time,
}

/// One signer of one signature, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignerInfo {
    /// The certificate that it names, if that came along.
    pub certificate: Option<CertificateInfo>,
    /// Signature and digest algorithm.
    pub algorithm: Result<String, Reason>,
    /// The certificates above it that lead to the root that accepts it, that root last; else those
    /// that came along, as they follow from their names.
    pub chain: Vec<CertificateInfo>,
    /// The roots that accept it, by the file they stand in and their name; or why none does.
    pub verdict: Result<Vec<String>, Reason>,
}
