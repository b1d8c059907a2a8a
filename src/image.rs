//! A local image, cut and hashed: a file or block device that is read, and never written.
//!
//! What is made of an image must be of one and the same image. So a block that is read again must
//! still have the digest of the first time, and the size must not have changed at the end.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};

use crate::bundle::{MAX_BLOCKS, MAX_BLOCK_SIZE};
use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::{Digest, HashAlgorithm};
use crate::scan::{Found, Scan};

/// An image, open.
#[derive(Debug)]
pub struct Image {
    path: PathBuf,
    file: File,
    size: u64,
}

impl Image {
    /// Opens a file or block device.
    pub fn open(path: &Path) -> Result<Self> {
        let fail = |source| Error::Input {
            path: path.to_owned(),
            source,
        };
        // Looked at before it is opened: opening a FIFO would wait for a writer.
        let kind = std::fs::metadata(path).map_err(fail)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(fail(io::Error::other("neither a file nor a block device")));
        }
        Self::of_file(path, File::open(path).map_err(fail)?)
    }

    /// An image in an open file, called so in messages.
    pub fn of_file(path: &Path, file: File) -> Result<Self> {
        let size = size_of(&file).map_err(|source| Error::Input {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self {
            path: path.to_owned(),
            file,
            size,
        })
    }

    /// Its path as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// It cannot be read.
    pub fn fail(&self, source: io::Error) -> Error {
        Error::Input {
            path: self.path.clone(),
            source,
        }
    }

    /// Reads bytes of it.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset)
    }

    /// Cuts and hashes all of it, on all cores. `progress` is told of the bytes of each part that is
    /// done. Refuses what no reader of ours would take.
    pub fn blocks(
        &self,
        chunker: Chunker,
        hash: HashAlgorithm,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Found<Digest>>> {
        check_chunker(chunker)?;
        let (blocks, error) = Scan {
            read_at: &|buffer, offset| self.read_at(buffer, offset),
            size: self.size,
            chunker,
            progress,
        }
        .run(&|plain| Some(hash.digest(plain)));
        if let Some(source) = error {
            return Err(self.fail(source));
        }
        let end = blocks.iter().try_fold(0, |at, block| {
            (block.offset == at).then(|| at + u64::from(block.size))
        });
        if end != Some(self.size) {
            return Err(Error::Internal(
                "blocks follow one another from start to end",
            ));
        }
        if blocks.len() > MAX_BLOCKS {
            return Err(Error::Usage(format!(
                "{chunker} makes {} blocks of {}, more than the {MAX_BLOCKS} that can be installed",
                blocks.len(),
                self.path.display(),
            )));
        }
        log::info!(
            "image {} cut, chunker={chunker} bytes={} blocks={}",
            self.path.display(),
            self.size,
            blocks.len()
        );
        Ok(blocks)
    }

    /// Reads a block, which must still be what it was.
    pub fn read(&self, block: &Found<Digest>) -> Result<Vec<u8>> {
        let mut plain = vec![0; block.size as usize];
        self.read_at(&mut plain, block.offset)
            .map_err(|source| self.fail(source))?;
        match block.kept.verify(&plain) {
            Ok(_) => Ok(plain),
            Err(_) => Err(self.changed(&format!(
                "bytes {}..{} are not what they were",
                block.offset,
                block.offset + u64::from(block.size)
            ))),
        }
    }

    /// Fails if the image is longer or shorter than at the start.
    pub fn check_size(&self) -> Result<()> {
        match size_of(&self.file).map_err(|source| self.fail(source))? {
            now if now == self.size => Ok(()),
            now => Err(self.changed(&format!("it had {} bytes, now {now}", self.size))),
        }
    }

    fn changed(&self, how: &str) -> Error {
        self.fail(io::Error::other(format!(
            "it changed while it was read: {how}"
        )))
    }
}

/// Refuses a chunker whose blocks no reader of ours would take.
pub fn check_chunker(chunker: Chunker) -> Result<()> {
    if chunker.max_size() > MAX_BLOCK_SIZE {
        return Err(Error::Usage(format!(
            "chunker {chunker} makes blocks of up to {} bytes, more than the {MAX_BLOCK_SIZE} that \
             can be installed",
            chunker.max_size()
        )));
    }
    Ok(())
}

/// The size of an open file or block device.
fn size_of(mut file: &File) -> io::Result<u64> {
    // Not the metadata's size: that is zero for a block device.
    file.seek(SeekFrom::End(0))
}
