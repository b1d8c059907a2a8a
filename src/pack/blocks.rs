//! The blocks of a payload on their way into the bundle: read, verified, compressed on all cores,
//! spooled in order.
//!
//! A bundle is written when the last of them is stored, since headers state sizes; the spool holds what
//! is stored until then.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::PathBuf;
use std::sync::{mpsc, Mutex};
use std::thread;

use super::encoder::{compress, compress_fitted};
use super::manifest::BlockEncoding;
use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgorithm, Hasher};
use crate::image::Image;
use crate::output::Output;
use crate::scan::Found;
use crate::work::Part;

/// Blocks in flight for each worker: enough that none waits while the writer waits for a slow one.
const BLOCKS_PER_WORKER: usize = 4;

/// Plain and compressed bytes in flight, which bounds the workers for very large blocks. What each
/// encoder needs (about 100 MiB at level 6) comes on top.
const MAX_IN_FLIGHT: usize = 512 << 20;

/// Bytes read at once of a payload that has no blocks.
const PIECE: usize = 1 << 20;

/// What is stored of all payloads, one behind the other, in a file without a name.
#[derive(Debug)]
pub(super) struct Spool {
    file: BufWriter<File>,
    /// Bytes in it.
    size: u64,
    /// For errors.
    path: PathBuf,
}

impl Spool {
    pub(super) fn new(output: &Output) -> Result<Self> {
        Ok(Self {
            file: BufWriter::with_capacity(1 << 20, output.scratch()?),
            size: 0,
            path: output.path().to_owned(),
        })
    }

    fn fail(&self, source: io::Error) -> Error {
        Error::Output {
            path: self.path.clone(),
            source,
        }
    }

    /// Bytes in it.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The file, to be read from its start.
    pub(super) fn into_file(mut self) -> Result<File> {
        let ready = self.file.flush().and_then(|()| self.file.rewind());
        ready.map_err(|source| self.fail(source))?;
        Ok(self.file.into_parts().0)
    }

    fn add(&mut self, stored: &[u8]) -> Result<()> {
        self.file
            .write_all(stored)
            .map_err(|source| self.fail(source))?;
        self.size += stored.len() as u64;
        Ok(())
    }
}

/// A block on its way from a worker to the spool.
struct Ready {
    plain: Vec<u8>,
    /// What is stored, if not the plain bytes.
    compressed: Option<Vec<u8>>,
}

/// How blocks are stored.
#[derive(Debug)]
pub(super) struct Storing<'a> {
    pub(super) encoding: &'a BlockEncoding,
    /// No larger a dictionary than the largest block.
    pub(super) fit_dictionary: bool,
    /// Algorithm of the digest of all of them.
    pub(super) hash: HashAlgorithm,
    pub(super) cores: usize,
}

impl Storing<'_> {
    /// Reads, verifies, compresses and spools the blocks; the digest of the image, and the stored size
    /// of each block that is stored.
    ///
    /// The calling thread hands out blocks and takes them back in order, so that no more than a few
    /// for each worker are in flight. With one core it does everything itself.
    pub(super) fn store(
        &self,
        image: &Image,
        blocks: &[Found<Digest>],
        spool: &mut Spool,
        progress: &Part<'_>,
    ) -> Result<(Digest, Vec<u32>)> {
        let mut seen = HashSet::new();
        let jobs: Vec<(&Found<Digest>, bool)> = blocks
            .iter()
            .map(|block| {
                let stored = !self.encoding.deduplicates() || seen.insert(block.kept);
                (block, stored)
            })
            .collect();
        drop(seen);
        let repeats = jobs.iter().filter(|(_, stored)| !stored);
        progress.spare(repeats.map(|(block, _)| u64::from(block.size)).sum());
        let largest = blocks.iter().map(|block| block.size).max().unwrap_or(0);
        let path = spool.path.clone();
        let prepare = |number: usize| -> Result<Ready> {
            let &(block, stored) = jobs.get(number).ok_or(WITHIN)?;
            let plain = image.read(block)?;
            let compressed = match self.encoding.level() {
                Some(level) if stored => Some(match self.fit_dictionary {
                    true => compress_fitted(&plain, level, largest),
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
        let mut hasher = Hasher::new(self.hash);
        let mut sizes = Vec::new();
        let mut take = |number: usize, ready: Ready| -> Result<()> {
            let &(block, stored) = jobs.get(number).ok_or(WITHIN)?;
            hasher.update(&ready.plain);
            if stored {
                let bytes = ready.compressed.as_deref().unwrap_or(&ready.plain);
                spool.add(bytes)?;
                sizes.push(
                    u32::try_from(bytes.len())
                        .map_err(|_| Error::Internal("a stored block has less than 4 GiB"))?,
                );
            }
            match stored {
                true => progress.add(block.size.into()),
                false => progress.add_at(block.size.into(), 0),
            }
            Ok(())
        };

        let max_size = self.encoding.chunker.0.max_size() as usize;
        let affordable = MAX_IN_FLIGHT / (2 * max_size);
        let workers = match self.cores.min(affordable) {
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
        Ok((hasher.finish(), sizes))
    }
}

/// Spools an image as it is; its digest.
pub(super) fn store_plain(
    image: &Image,
    hash: HashAlgorithm,
    spool: &mut Spool,
    progress: &Part<'_>,
) -> Result<Digest> {
    let mut hasher = Hasher::new(hash);
    let mut piece = vec![0; PIECE];
    let mut at = 0;
    while at < image.size() {
        let left = usize::try_from(image.size() - at).unwrap_or(usize::MAX);
        piece.truncate(left);
        image
            .read_at(&mut piece, at)
            .map_err(|source| image.fail(source))?;
        hasher.update(&piece);
        spool.add(&piece)?;
        progress.add(piece.len() as u64);
        at += piece.len() as u64;
    }
    Ok(hasher.finish())
}

/// Copies so many bytes of what was spooled.
pub(super) fn copy(spooled: &mut File, size: u64, bundle: &mut File) -> io::Result<()> {
    // Files on both sides: the kernel copies, or shares the blocks where it can.
    match io::copy(&mut spooled.take(size), bundle)? {
        copied if copied == size => Ok(()),
        _ => Err(io::Error::other("the spooled blocks are not all there")),
    }
}

const WITHIN: Error = Error::Internal("only blocks of the image are handed out");
const RUNNING: Error = Error::Internal("workers run as long as blocks are handed out");
