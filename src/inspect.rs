//! What a bundle is: header, signatures, payloads and their blocks, as a value, for people and as
//! JSON.
//!
//! Headers alone are read, by ranges where there are any. Nothing need be proven for that: it is
//! for the person who wants to know what a bundle claims. Digests still guard against accidents,
//! and what is asked for with `--bundle-hash` and `--root-cert` must hold. A value that comes from
//! the bundle is shown quoted, so that none can pass for something else on a terminal.

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::bundle::{Compression, Delivery, Entry, Index, Payload};
use crate::error::Result;
use crate::hash::Digest;
use crate::http::Counters;
use crate::open::{self, Raw, Trust};
use crate::remote::{Access, Cursor, Location};
use crate::trust::{describe, CertificateInfo, Roots, SignerInfo};

/// Version of the JSON.
const SCHEMA: u32 = 1;

/// What to inspect, and what must hold.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bundle.
    pub bundle: Location,
    /// How to get at it.
    pub access: Access,
    /// The bundle hash that it must have.
    pub hash: Option<Digest>,
    /// The roots of which is told whether they accept it.
    pub roots: Option<Arc<Roots>>,
    /// One of them must.
    pub must_be_signed: bool,
}

/// What a bundle is, schema 1.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are the schema's own
pub struct Inspection {
    pub schema: u32,
    pub bundle: String,
    pub size: Option<u64>,
    pub hash: String,
    pub hash_algorithm: &'static str,
    pub incremental: bool,
    /// Whether a root accepts it; `null` without roots.
    pub accepted: Option<bool>,
    pub signatures: Vec<Signature>,
    pub payloads: Vec<PayloadInfo>,
}

/// One signature of an [`Inspection`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Signature {
    pub size: usize,
    /// Why it cannot be read.
    pub error: Option<String>,
    pub signers: Vec<Signer>,
}

/// One signer of a [`Signature`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Signer {
    pub algorithm: Option<String>,
    pub certificate: Option<Certificate>,
    /// The certificates above it: those that lead to the root that accepts it, else those that
    /// come along.
    pub chain: Vec<Certificate>,
    pub accepted_by: Vec<String>,
    /// Why no root accepts it.
    pub refused: Option<String>,
}

/// A certificate of a [`Signer`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Certificate {
    pub subject: String,
    pub issuer: String,
    pub serial: String,
    pub not_before: String,
    pub not_after: String,
}

/// One payload of an [`Inspection`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct PayloadInfo {
    pub number: usize,
    /// `slot`, `execute`, `app-file`, `app-archive` or `none`.
    pub delivery: &'static str,
    /// The slot, the app, or the command and its arguments.
    pub name: Vec<String>,
    /// Format of the delta encoding, of a payload that is a patch.
    pub delta: Option<String>,
    pub digest: String,
    /// Plain bytes; `null` where only bounds are known.
    pub size: Option<u64>,
    pub size_at_least: u64,
    pub size_at_most: u64,
    pub stored_size: u64,
    pub stored_at: u64,
    /// All headers between the data before and these.
    pub header_size: u64,
    pub blocks: Option<Blocks>,
}

/// The blocks of a [`PayloadInfo`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct Blocks {
    pub chunker: String,
    pub hash_algorithm: &'static str,
    pub compression: Option<&'static str>,
    pub deduplicated: bool,
    pub total: usize,
    pub unique: usize,
    pub stored: usize,
    pub largest_stored: u32,
}

/// Reads the headers of a bundle. The second result tells whether it is signed as it must be: what
/// it is can be told in any case.
pub fn inspect(options: &Options) -> Result<(Inspection, Result<()>)> {
    let cursor = Cursor::open(
        &options.bundle,
        &options.access,
        &Arc::new(Counters::default()),
    )?;
    let trust = options.hash.map_or(Trust::Insecure, Trust::Hash);
    let mut opening = open::open(cursor, &trust)?;
    let header = opening.header().clone();
    let raw = opening.raw().clone();
    let signed = match &options.roots {
        Some(roots) => roots.check(&raw.signatures()?, &raw.header),
        None => Ok(()),
    };
    let accepted = options.roots.as_ref().map(|_| signed.is_ok());
    let mut payloads = Vec::new();
    for entry in &header.entries {
        if let Some(opened) = opening.next_payload()? {
            payloads.push(PayloadInfo::new(entry, &opened.payload));
        }
    }
    let inspection = Inspection {
        schema: SCHEMA,
        bundle: options.bundle.shown(),
        size: opening.cursor().size(),
        hash: header.hash.to_string(),
        hash_algorithm: header.algorithm.name(),
        incremental: header.incremental,
        accepted,
        signatures: signatures(&raw, options.roots.as_deref())?,
        payloads,
    };
    let required = if options.must_be_signed {
        signed
    } else {
        Ok(())
    };
    Ok((inspection, required))
}

fn signatures(raw: &Raw, roots: Option<&Roots>) -> Result<Vec<Signature>> {
    let all = raw.signatures()?.into_iter().map(|signature| {
        let (signers, error) = match describe(signature, &raw.header, roots) {
            Ok(signers) => (signers, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        Signature {
            size: signature.len(),
            error,
            signers: signers.into_iter().map(Signer::from).collect(),
        }
    });
    Ok(all.collect())
}

impl From<SignerInfo> for Signer {
    fn from(signer: SignerInfo) -> Self {
        let (accepted_by, refused) = match signer.verdict {
            Ok(accepted) => (accepted, None),
            Err(reason) => (Vec::new(), Some(reason)),
        };
        Self {
            algorithm: signer.algorithm.ok(),
            certificate: signer.certificate.map(Certificate::from),
            chain: signer.chain.into_iter().map(Certificate::from).collect(),
            accepted_by,
            refused,
        }
    }
}

impl From<CertificateInfo> for Certificate {
    fn from(certificate: CertificateInfo) -> Self {
        Self {
            subject: certificate.subject,
            issuer: certificate.issuer,
            serial: certificate.serial,
            not_before: certificate.not_before.to_string(),
            not_after: certificate.not_after.to_string(),
        }
    }
}

impl PayloadInfo {
    fn new(entry: &Entry, payload: &Payload) -> Self {
        let (delivery, name) = match &entry.delivery {
            Delivery::Slot(slot) => ("slot", vec![slot.clone()]),
            Delivery::Execute(arguments) => ("execute", arguments.clone()),
            Delivery::AppFile { app, path } => ("app-file", vec![app.clone(), path.clone()]),
            Delivery::AppArchive(app) => ("app-archive", vec![app.clone()]),
            Delivery::None => ("none", Vec::new()),
        };
        let stored_size = payload.data.end - payload.data.start;
        let (least, most) = match &payload.index {
            Some(index) => index.size_bounds(),
            None => (stored_size, stored_size),
        };
        Self {
            number: payload.number,
            delivery,
            name,
            delta: entry.delta.clone(),
            digest: entry.digest.to_string(),
            size: (least == most).then_some(least),
            size_at_least: least,
            size_at_most: most,
            stored_size,
            stored_at: payload.data.start,
            header_size: payload.header_size,
            blocks: payload.index.as_ref().map(Blocks::new),
        }
    }
}

impl Blocks {
    fn new(index: &Index) -> Self {
        let (mut unique, mut stored, mut largest) = (0, 0, 0);
        for block in index.blocks() {
            unique += usize::from(block.first == block.number);
            stored += usize::from(block.stored_size > 0);
            largest = block.stored_size.max(largest);
        }
        Self {
            chunker: index.chunker().to_string(),
            hash_algorithm: index.algorithm().name(),
            compression: match index.compression() {
                Compression::None => None,
                Compression::Xz => Some("xz"),
            },
            deduplicated: index.deduplicated(),
            total: index.len(),
            unique,
            stored,
            largest_stored: largest,
        }
    }
}

/// A table for people.
impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bundle       {}", self.bundle)?;
        match self.size {
            Some(size) => writeln!(f, ", {size} bytes")?,
            None => writeln!(f)?,
        }
        writeln!(f, "bundle hash  {}", self.hash)?;
        let kind = if self.incremental {
            "incremental"
        } else {
            "full"
        };
        writeln!(f, "update type  {kind}")?;
        let verdict = match (self.accepted, self.signatures.is_empty()) {
            (_, true) => "not signed",
            (None, _) => "signed; no root is given (--root-cert) to tell by whom",
            (Some(true), _) => "signed, and accepted",
            (Some(false), _) => "signed, but NOT accepted",
        };
        writeln!(f, "trust        {verdict}")?;
        for (number, signature) in self.signatures.iter().enumerate() {
            writeln!(f, "\nsignature {number}  {} bytes", signature.size)?;
            if let Some(error) = &signature.error {
                writeln!(f, "  unreadable {error}")?;
            }
            for signer in &signature.signers {
                signer.fmt(f)?;
            }
        }
        self.payloads.iter().try_for_each(|payload| payload.fmt(f))
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.certificate {
            Some(certificate) => {
                write!(f, "  signer     {certificate}")?;
                writeln!(f, "  serial     {}", certificate.serial)?;
            }
            None => writeln!(
                f,
                "  signer     unknown: its certificate does not come along"
            )?,
        }
        if let Some(algorithm) = &self.algorithm {
            writeln!(f, "  algorithm  {algorithm}")?;
        }
        for certificate in &self.chain {
            write!(f, "  issued by  {certificate}")?;
        }
        if let (Some(certificate), true) = (&self.certificate, self.chain.is_empty()) {
            writeln!(f, "  issued by  {:?}", certificate.issuer)?;
        }
        for root in &self.accepted_by {
            writeln!(f, "  accepted   by root {root}")?;
        }
        match &self.refused {
            Some(reason) => writeln!(f, "  refused    {reason}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:?}, valid {} to {}",
            self.subject, self.not_before, self.not_after
        )
    }
}

impl fmt::Display for PayloadInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\npayload {}    {}", self.number, self.delivery)?;
        for name in &self.name {
            write!(f, " {name:?}")?;
        }
        writeln!(f)?;
        if let Some(delta) = &self.delta {
            writeln!(f, "  encoding   patch, {delta:?}")?;
        }
        writeln!(f, "  digest     {}", self.digest)?;
        match self.size {
            Some(size) => writeln!(f, "  size       {size} bytes")?,
            None => writeln!(
                f,
                "  size       {} to {} bytes; not told more exactly before it is unpacked",
                self.size_at_least, self.size_at_most
            )?,
        }
        writeln!(
            f,
            "  stored     {} bytes at offset {}, behind {} of headers",
            self.stored_size, self.stored_at, self.header_size
        )?;
        match &self.blocks {
            Some(blocks) => blocks.fmt(f),
            None => writeln!(f, "  blocks     no index: nothing can be reused"),
        }
    }
}

impl fmt::Display for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  blocks     {} of {}, {} unique, {} stored, the largest with {} bytes",
            self.total, self.chunker, self.unique, self.stored, self.largest_stored
        )?;
        writeln!(
            f,
            "  encoding   {} hashes, {}, {}",
            self.hash_algorithm,
            self.compression.unwrap_or("not compressed"),
            if self.deduplicated {
                "repeats not stored"
            } else {
                "repeats stored"
            }
        )
    }
}
