//! What is given to compare: images, or bundles that are unpacked into them.
//!
//! A bundle has blocks of one chunking; what others would do can only be told of its plain images. They
//! go to files without a name in a folder that is asked for: no smaller than what they hold, but for
//! zeros, and gone with the process. In memory is one block at a time. Nobody vouches for a bundle
//! here, since nothing is installed; but each block and each payload must have its digest.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bundle::{Compression, Delivery, Index, Payload};
use crate::error::{Error, Result, Subject};
use crate::hash::{Digest, Hasher};
use crate::image::Image;
use crate::open::{open, Opening, Trust};
use crate::pack;
use crate::remote::{Access, Cursor, Location};
use crate::rugix::MAGIC;
use crate::terminal::size;
use crate::work::Part;
use crate::xz;

/// Bytes read at once of a payload that has no blocks.
const PIECE: u64 = 1 << 20;

/// Bytes that every bundle begins with.
const START: usize = 5;

/// An image, and the bundle that it comes from.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    pub(super) image: Image,
    pub(super) packed: Option<Packed>,
}

impl Source {
    /// The payload and its blocks, if there are any.
    pub(super) fn indexed(&self) -> Option<(&Packed, &Index)> {
        let packed = self.packed.as_ref()?;
        Some((packed, packed.index.as_ref()?))
    }
}

/// A payload as a bundle has it.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) slot: String,
    /// Its blocks, if it has any.
    pub(super) index: Option<Index>,
    pub(super) payload: Payload,
}

/// A file that was given.
#[derive(Debug)]
pub(super) struct Given {
    path: PathBuf,
    image: Image,
    is_bundle: bool,
}

impl Given {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let image = Image::open(path)?;
        let mut start = [0; START];
        let is_read = image.size() >= START as u64 && image.read_at(&mut start, 0).is_ok();
        let is_bundle = is_read && MAGIC.starts_with(&start);
        if let Some(kind) = pack::packed_kind(&image).filter(|_| !is_bundle) {
            log::warn!(
                "{} looks like {kind}: it is compared as it is, and says little of what is in it",
                path.display()
            );
        }
        Ok(Self {
            path: path.to_owned(),
            image,
            is_bundle,
        })
    }

    /// Bytes that have to be unpacked.
    pub(super) fn packed_size(&self) -> u64 {
        match self.is_bundle {
            true => self.image.size(),
            false => 0,
        }
    }

    /// Its images: itself, or the payloads for slots, unpacked into files of a folder.
    pub(super) fn sources(self, folder: &Path, progress: &Part<'_>) -> Result<Vec<Source>> {
        if !self.is_bundle {
            return Ok(vec![Source {
                path: self.path,
                image: self.image,
                packed: None,
            }]);
        }
        let path = self.path;
        unpack(&path, folder, progress).map_err(|error| match error {
            // These say nothing of where they are.
            error if error.is_of_bytes() => Error::BundleFile {
                path,
                operation: "unpack",
                source: io::Error::other(error.to_string()),
            },
            error => error,
        })
    }
}

fn unpack(path: &Path, folder: &Path, progress: &Part<'_>) -> Result<Vec<Source>> {
    let location = Location::File(path.to_owned());
    let cursor = Cursor::open(&location, &Access::default(), &Arc::default())?;
    let mut opening = open(cursor, &Trust::Insecure)?;
    let mut sources = Vec::new();
    for entry in opening.header().entries.clone() {
        let Some(opened) = opening.next_payload()? else {
            break;
        };
        let Delivery::Slot(slot) = entry.delivery else {
            continue;
        };
        if entry.delta.is_some() {
            return Err(Error::Unsupported(format!(
                "a static delta, as slot {slot} has one"
            )));
        }
        let mut payload = opened.payload;
        let index = payload.index.take();
        let file = scratch(folder)?;
        let unpacking = Unpacking {
            number: payload.number,
            file: &file,
            folder,
            progress,
            at: 0,
            hasher: Hasher::new(entry.digest.algorithm()),
        };
        unpacking.run(&mut opening, index.as_ref(), &payload, &entry.digest)?;
        sources.push(Source {
            path: path.to_owned(),
            image: Image::of_file(path, file)?,
            packed: Some(Packed {
                slot,
                index,
                payload,
            }),
        });
    }
    if sources.is_empty() {
        return Err(Error::Unsupported("no payload for a slot".to_owned()));
    }
    Ok(sources)
}

/// A payload on its way into a file.
struct Unpacking<'a> {
    number: usize,
    file: &'a File,
    /// Where that is.
    folder: &'a Path,
    progress: &'a Part<'a>,
    at: u64,
    hasher: Hasher,
}

impl Unpacking<'_> {
    fn run(
        mut self,
        opening: &mut Opening,
        index: Option<&Index>,
        payload: &Payload,
        digest: &Digest,
    ) -> Result<()> {
        match index {
            Some(index) => self.blocks(opening.cursor(), index)?,
            None => {
                let mut rest = payload.data.clone();
                while !rest.is_empty() {
                    let end = rest.end.min(rest.start + PIECE);
                    let bytes = opening.cursor().take(rest.start..end)?;
                    self.add(&bytes)?;
                    self.progress.add(bytes.len() as u64);
                    rest.start = end;
                }
            }
        }
        // Zeros at the end were passed over.
        self.file
            .set_len(self.at)
            .map_err(|source| self.fail(source))?;
        let found = self.hasher.finish();
        if found != *digest {
            return Err(Error::mismatch(
                Subject::Payload(self.number),
                digest,
                &found,
            ));
        }
        Ok(())
    }

    fn blocks(&mut self, cursor: &mut Cursor, index: &Index) -> Result<()> {
        let mut decoder = xz::Decoder::new();
        let mut places: Vec<(u64, usize)> = Vec::new();
        let mut plain = Vec::new();
        for block in index.blocks() {
            let subject = Subject::Block {
                payload: self.number,
                block: block.number as usize,
            };
            match block.stored() {
                Some(range) => {
                    let stored = cursor.take(range.clone())?;
                    self.progress.add(stored.len() as u64);
                    match index.compression() {
                        Compression::None => plain = stored,
                        Compression::Xz => decoder
                            .decompress(&stored, block.size.bound() as usize, &mut plain)
                            .map_err(|refused| Error::Corrupt {
                                subject,
                                range,
                                reason: refused.to_string(),
                            })?,
                    }
                    block
                        .digest
                        .verify(&plain)
                        .map_err(|found| Error::mismatch(subject, &block.digest, &found))?;
                }
                None => {
                    let first = places.get(block.first as usize);
                    let (at, size) = *first.ok_or(Error::Internal("a repeat has a first"))?;
                    plain.resize(size, 0);
                    self.file
                        .read_exact_at(&mut plain, at)
                        .map_err(|source| self.fail(source))?;
                }
            }
            places.push((self.at, plain.len()));
            self.add(&plain)?;
        }
        Ok(())
    }

    fn add(&mut self, plain: &[u8]) -> Result<()> {
        let end = grown(self.at, plain.len())?;
        self.hasher.update(plain);
        if plain.iter().any(|byte| *byte != 0) {
            self.file
                .write_all_at(plain, self.at)
                .map_err(|source| self.fail(source))?;
        } else {
            // A repeat of it may be read before the end is set.
            self.file.set_len(end).map_err(|source| self.fail(source))?;
        }
        self.at = end;
        Ok(())
    }

    fn fail(&self, source: io::Error) -> Error {
        scratch_failed(self.folder, source)
    }
}

/// Most bytes of a payload unpacked: a small bundle may repeat one block millions of times.
const MAX_UNPACKED: u64 = 64 << 30;

/// The size of what is unpacked with so many bytes more.
fn grown(at: u64, more: usize) -> Result<u64> {
    let end = at.checked_add(more as u64);
    end.filter(|end| *end <= MAX_UNPACKED).ok_or_else(|| {
        let most = size(MAX_UNPACKED);
        Error::Unsupported(format!("a payload of more than {most} unpacked"))
    })
}

/// A file in `folder` that has no name and that nobody else can open.
fn scratch(folder: &Path) -> Result<File> {
    let id = std::process::id();
    let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
    for number in 0..MAX_NAMES {
        let path = folder.join(format!("reflash-estimate.{id}.{number}"));
        let mut options = File::options();
        options.read(true).write(true).create_new(true).mode(0o600);
        match options.open(&path).and_then(|file| {
            fs::remove_file(&path)?;
            Ok(file)
        }) {
            Ok(file) => return Ok(file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
            Err(error) => return Err(scratch_failed(folder, error)),
        }
    }
    Err(scratch_failed(folder, last))
}

/// Names that are tried for the file.
const MAX_NAMES: u32 = 100;

fn scratch_failed(folder: &Path, source: io::Error) -> Error {
    Error::Output {
        path: folder.to_owned(),
        source: io::Error::new(
            source.kind(),
            format!("{source}; bundles are unpacked there, TMPDIR names another place"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_bundle_makes_no_endless_file() {
        assert_eq!(grown(5, 7).expect("small"), 12);
        assert_eq!(grown(MAX_UNPACKED - 1, 1).expect("just"), MAX_UNPACKED);
        for (at, more) in [(MAX_UNPACKED, 1), (u64::MAX, 1)] {
            let error = grown(at, more).expect_err("too large");
            assert_eq!(error.class().exit_code(), 4);
        }
    }

    #[test]
    fn a_scratch_file_is_nobody_elses() {
        use std::os::unix::fs::MetadataExt;
        let folder = tempfile::tempdir().expect("a folder");
        let id = std::process::id();
        let taken = folder.path().join(format!("reflash-estimate.{id}.0"));
        fs::create_dir(&taken).expect("a folder");
        let file = scratch(folder.path()).expect("another name");
        let metadata = file.metadata().expect("there");
        assert_eq!((metadata.mode() & 0o777, metadata.nlink()), (0o600, 0));
        let error = scratch(&folder.path().join("none")).expect_err("no folder");
        assert!(error.to_string().contains("TMPDIR"), "{error}");
    }
}
