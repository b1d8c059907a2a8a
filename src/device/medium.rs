//! What is below a target: a handful of operations on a [`File`].
//!
//! Tests put in its place one that fails, loses power, or lies.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{fadvise, fallocate, Advice, FallocateFlags};

/// What a target is made of: the operations below which there is only the kernel.
pub trait Medium: std::fmt::Debug + Send + Sync {
    /// Reads exactly so many bytes.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all bytes, into memory at first.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when all that was written is on the medium.
    fn sync(&self) -> io::Result<()>;

    /// Size of what there is, in bytes.
    fn size(&self) -> io::Result<u64>;

    /// Gives a regular file this size.
    fn set_size(&self, size: u64) -> io::Result<()>;

    /// Makes the next reads come from the medium, not from memory.
    fn forget(&self) -> io::Result<()>;

    /// Tells the medium that nobody needs what is in there.
    fn discard(&self, range: Range<u64>) -> io::Result<()>;
}

impl Medium for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.read_exact_at(bytes, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }

    fn size(&self) -> io::Result<u64> {
        // Not the metadata's size: that is zero for a block device.
        let mut file = self;
        file.seek(SeekFrom::End(0))
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.set_len(size)
    }

    fn forget(&self) -> io::Result<()> {
        Ok(fadvise(self, 0, None, Advice::DontNeed)?)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        // On a block device: zeroes by unmapping, or fails where the device cannot.
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(self, how, range.start, range.end - range.start)?)
    }
}
