//! `reflash sign`: what is to be signed of a bundle, and a bundle with signatures that openssl made.
//!
//! ```text
//!   bundle ─▶ signed metadata ─▶ openssl cms -sign ─▶ CMS signature ─▶ bundle, signed
//! ```
//!
//! Keys stay where they are, in a file, a token or a signing service: nothing here ever sees one. The
//! bundle hash stays the same, for signatures are not covered by it, and so does all else; a
//! bundle that has signatures keeps them. What does not hold the metadata of this bundle is
//! refused, so that a signature of another one, or a detached one, is noticed at once and not by the
//! fleet.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::hash::Digest;
use crate::http::Counters;
use crate::open::{self, Raw, Trust};
use crate::output::Output;
use crate::remote::{Access, Cursor, Location};
use crate::rugix::{tag, MAX_SIGNATURES, MAX_SIGNATURES_SIZE};
use crate::stlv::Writer;
use crate::trust::{describe, Roots};

/// What to do with a bundle.
#[derive(Clone, Debug)]
pub enum Task {
    /// Write what is to be signed to this file.
    Prepare(PathBuf),
    /// Write the bundle with these CMS signatures, in DER, added.
    Attach {
        /// The signatures.
        signatures: Vec<PathBuf>,
        /// Where the bundle goes; it may be where it came from.
        output: PathBuf,
    },
}

/// What to sign, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bundle, a file.
    pub bundle: PathBuf,
    /// What to do.
    pub task: Task,
    /// One of them must accept the result.
    pub roots: Option<Arc<Roots>>,
}

/// Does it; returns the bundle hash.
pub fn sign(options: &Options) -> Result<Digest> {
    let location = Location::File(options.bundle.clone());
    let counters = Arc::new(Counters::default());
    let cursor = Cursor::open(&location, &Access::default(), &counters)?;
    let opening = open::open(cursor, &Trust::Insecure)?;
    let (hash, raw) = (opening.header().hash, opening.raw());
    match &options.task {
        Task::Prepare(output) => {
            let metadata = metadata(&hash);
            Output::new(output)?.store(|file| file.write_all(&metadata))?;
        }
        Task::Attach { signatures, output } => {
            let read = signatures.iter().map(|path| read(path, &hash));
            attach(options, raw, &read.collect::<Result<Vec<_>>>()?, output)?;
        }
    }
    Ok(hash)
}

/// What is signed of a bundle.
fn metadata(hash: &Digest) -> Vec<u8> {
    let mut metadata = Writer::default();
    metadata
        .start(tag::SIGNED_METADATA)
        .value(tag::SIGNED_HEADER_HASH, hash.to_string().as_bytes())
        .end(tag::SIGNED_METADATA);
    metadata.into_bytes()
}

/// Reads a signature of the bundle that has this hash.
fn read(path: &Path, hash: &Digest) -> Result<Vec<u8>> {
    let fail = |source| Error::Input {
        path: path.to_owned(),
        source,
    };
    let size = fs::metadata(path).map_err(fail)?.len();
    if size > MAX_SIGNATURES_SIZE as u64 {
        return Err(fail(io::Error::other("it is too large for a signature")));
    }
    let signature = fs::read(path).map_err(fail)?;
    let metadata = metadata(hash);
    if !signature
        .windows(metadata.len())
        .any(|part| part == metadata)
    {
        return Err(fail(io::Error::other(
            "it does not hold what is to be signed of this bundle: sign what --metadata writes, with \
             openssl cms -sign -binary -nodetach -outform DER",
        )));
    }
    if let Err(reason) = describe(&signature, &[], None) {
        return Err(fail(io::Error::other(format!(
            "it is no signature: {reason}"
        ))));
    }
    Ok(signature)
}

fn attach(options: &Options, raw: &Raw, added: &[Vec<u8>], output: &Path) -> Result<()> {
    let mut all = raw.signatures()?;
    all.extend(added.iter().map(Vec::as_slice));
    if all.len() > MAX_SIGNATURES {
        return Err(Error::Usage(format!(
            "the bundle would have {} signatures, more than the {MAX_SIGNATURES} that are read",
            all.len()
        )));
    }
    if let Some(roots) = &options.roots {
        roots.check(&all, &raw.header)?;
    }
    let mut segment = Writer::default();
    segment.start(tag::SIGNATURES);
    for signature in all {
        segment.value(tag::CMS_SIGNATURE, signature);
    }
    segment.end(tag::SIGNATURES);
    let segment = segment.into_bytes();
    let (before, after) = match &raw.signatures {
        Some((old, offset)) => (*offset, offset + old.len() as u64),
        None => {
            let end = raw.header_at + raw.header.len() as u64;
            (end, end)
        }
    };
    let mut bundle = File::open(&options.bundle).map_err(|source| Error::Input {
        path: options.bundle.clone(),
        source,
    })?;
    Output::new(output)?.store(|file| {
        let copied = io::copy(&mut Read::by_ref(&mut bundle).take(before), file)?;
        if copied != before {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_all(&segment)?;
        bundle.seek(SeekFrom::Start(after))?;
        io::copy(&mut bundle, file).map(drop)
    })
}
