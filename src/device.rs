//! The target: opening, writing in order, keeping what is right, reading back, sealing.
//!
//! *Hold-back.* The target never looks complete until it is: the first blocks (at least 4 KiB) are
//! kept in memory; their place is zeroed and synced before anything else is written, and they are
//! written and synced last ([`Target::seal`]), when the caller knows that the rest is right. As long
//! as every block stands at its place already ([`Target::keep`]), nothing is written at all: a
//! target that is right is left alone.
//!
//! *Writing.* Blocks come in order and end anywhere; they are gathered and written in aligned
//! pieces of 1 MiB, so that the kernel never has to read a sector to change a part of it, but for
//! the last one and beside blocks that are kept. Not one byte behind the payload changes. No more
//! than 32 MiB wait to be synced, and none for more than some five seconds of a slow download: dirty
//! memory stays bounded, errors show early, a power cut costs little, and the last sync is short. With
//! more than one core the writer does not wait for that (`behind`).
//!
//! Offsets are `u64` everywhere. No `unsafe`: the size of a block device is a seek to its end.

mod behind;
mod medium;
mod opening;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::behind::Behind;
pub use self::medium::Medium;
pub use self::opening::Identity;
use crate::busy;
use crate::error::{Error, Result};
use crate::hash::Verified;

/// Least number of bytes that are held back: boot loaders and `blkid` look for more than a sector.
const HOLD_BACK: usize = 4 << 10;

/// Size and alignment of writes.
const WRITE_SIZE: u64 = 1 << 20;

/// Sectors are no larger.
const LARGEST_SECTOR: u64 = 4 << 10;

/// Bytes that are written and not synced, at most.
const SYNC_INTERVAL: u64 = 32 << 20;

/// Most time between two syncs, as long as pieces are written: what a power cut may cost of a slow
/// download.
const SYNC_PAUSE: Duration = Duration::from_secs(5);

/// A device or file that is written.
#[derive(Debug)]
pub struct Target {
    /// As the user named it.
    path: PathBuf,
    /// With all links resolved.
    resolved: PathBuf,
    /// What it is, whatever its name; `None` for a file that did not exist.
    identity: Option<Identity>,
    /// `None` for a regular file that does not exist yet.
    medium: Option<Arc<dyn Medium>>,
    /// Size of a block device in bytes; a regular file has none.
    capacity: Option<u64>,
    /// Bytes of it before anything was written.
    old_size: u64,
    created: bool,
    /// The first bytes, not on the medium yet.
    held: Vec<u8>,
    /// They are not all known yet.
    holding: bool,
    /// A block so far was not at its place.
    changed: bool,
    /// The place of the first bytes was zeroed, if it is to be.
    wiped: bool,
    /// Bytes at the start to discard before the first write.
    discard: u64,
    /// Bytes behind those on the medium.
    buffer: Vec<u8>,
    /// Offset of the first byte in `buffer`.
    buffer_at: u64,
    unsynced: u64,
    /// Most of them.
    sync_interval: u64,
    behind: Behind,
    /// When the last sync was.
    synced: Instant,
    /// Set before the first byte changes; shared with whoever has to tell of it in a hurry.
    touched: Arc<AtomicBool>,
}

/// How to treat the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Care {
    /// Write to a device that is mounted or held.
    pub force: bool,
    /// Hold the first blocks back until all is verified.
    pub hold_back: bool,
}

impl Default for Care {
    /// All of it.
    fn default() -> Self {
        Self {
            force: false,
            hold_back: true,
        }
    }
}

impl Target {
    /// A target on any medium, for tests: a block device if `is_device`, else a file.
    pub fn on(medium: Box<dyn Medium>, is_device: bool, care: Care) -> io::Result<Self> {
        let size = medium.size()?;
        let mut target = Self::unopened(Path::new("medium"), care);
        target.capacity = is_device.then_some(size);
        target.old_size = size;
        target.medium = Some(medium.into());
        Ok(target)
    }

    /// The same with no more bytes than these between two syncs, for tests with small images.
    pub fn syncing_every(mut self, bytes: u64) -> Self {
        self.sync_interval = bytes;
        self
    }

    fn unopened(path: &Path, care: Care) -> Self {
        Self {
            path: path.to_owned(),
            resolved: path.to_owned(),
            identity: None,
            medium: None,
            capacity: None,
            old_size: 0,
            created: false,
            held: Vec::new(),
            holding: care.hold_back,
            changed: false,
            wiped: false,
            discard: 0,
            buffer: Vec::new(),
            buffer_at: 0,
            unsynced: 0,
            sync_interval: SYNC_INTERVAL,
            behind: Behind::new(),
            synced: Instant::now(),
            touched: Arc::default(),
        }
    }

    /// Its path as the user named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path for messages, and where its links lead.
    pub fn named(&self) -> PathBuf {
        match std::path::absolute(&self.path) {
            Ok(path) if path != self.resolved && self.resolved != self.path => {
                format!("{} ({})", self.path.display(), self.resolved.display()).into()
            }
            _ => self.path.clone(),
        }
    }

    fn refusal(&self, reason: String) -> Error {
        Error::Target {
            path: self.named(),
            reason,
        }
    }

    /// True if both names lead to the same place, by links, hard links or device nodes.
    pub fn is_same(&self, other: &Self) -> bool {
        self.resolved == other.resolved
            || (self.identity.is_some() && self.identity == other.identity)
    }

    /// True if `path` leads to this target.
    pub fn is_at(&self, path: &Path) -> bool {
        let identity = fs::metadata(path).ok().map(|found| Identity::of(&found));
        identity.is_some() && identity == self.identity
    }

    /// The number of a block device.
    pub fn device(&self) -> Option<u64> {
        match self.identity {
            Some(Identity::Device(number)) => Some(number),
            _ => None,
        }
    }

    /// Refuses a target that has fewer bytes than `needed`.
    pub fn require(&self, needed: u64) -> Result<()> {
        match self.capacity {
            Some(size) if size < needed => Err(Error::TargetTooSmall {
                path: self.named(),
                size,
                needed,
            }),
            _ => Ok(()),
        }
    }

    /// True once a byte of it may have changed.
    pub fn touched(&self) -> bool {
        self.touched.load(Ordering::Relaxed)
    }

    /// Becomes true just before the first byte changes.
    pub fn touched_flag(&self) -> Arc<AtomicBool> {
        self.touched.clone()
    }

    /// Size of its content before anything was written: of the device, or of the file.
    pub fn old_size(&self) -> u64 {
        self.old_size
    }

    /// True for a block device.
    pub fn is_device(&self) -> bool {
        self.capacity.is_some()
    }

    /// Reads what is on the medium, whether or not it was written by us.
    pub fn read_medium(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        match &self.medium {
            Some(medium) => medium.read_at(bytes, offset),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Has the first `bytes` discarded before the first write. Nothing in there is needed.
    pub fn discard_first(&mut self, bytes: u64) {
        // A device refuses to discard parts of a sector.
        self.discard = self.old_size.min(bytes) / LARGEST_SECTOR * LARGEST_SECTOR;
    }

    /// Bytes taken in so far: where the next block goes.
    pub fn position(&self) -> u64 {
        if self.holding {
            self.held.len() as u64
        } else {
            self.buffer_at + self.buffer.len() as u64
        }
    }

    /// Takes the next block, which is not at its place.
    ///
    /// Nothing of the old content behind it is written over.
    pub fn append(&mut self, block: Verified<'_>) -> Result<()> {
        let mut bytes = block.bytes();
        self.require(self.position() + bytes.len() as u64)?;
        self.changed = true;
        if self.holding {
            return self.hold(bytes);
        }
        self.wipe()?;
        while !bytes.is_empty() {
            let room = WRITE_SIZE - self.position() % WRITE_SIZE;
            let now = usize::try_from(room).map_or(bytes.len(), |room| room.min(bytes.len()));
            let (now, later) = bytes.split_at(now);
            self.buffer.extend_from_slice(now);
            bytes = later;
            if now.len() as u64 == room {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Takes the next block, which was read from its place on this target.
    pub fn keep(&mut self, block: Verified<'_>) -> Result<()> {
        if self.holding {
            return self.hold(block.bytes());
        }
        self.flush()?;
        self.buffer_at += block.bytes().len() as u64;
        Ok(())
    }

    /// Reads back `len` bytes that were taken in before.
    pub fn read(&self, offset: u64, len: usize, bytes: &mut Vec<u8>) -> Result<()> {
        bytes.clear();
        bytes.resize(len, 0);
        let end = offset + len as u64;
        if end > self.position() {
            return Err(Error::Internal("a block is read before it was written"));
        }
        let held = self.held.len() as u64;
        let on_medium = offset.max(held)..end.min(self.buffer_at);
        if on_medium.start < on_medium.end {
            let part = slice(bytes, on_medium.start - offset, on_medium.end - offset);
            self.medium()?
                .read_at(part, on_medium.start)
                .map_err(|e| self.io("read", on_medium.start, e))?;
        }
        for (source, at) in [(&self.held, 0), (&self.buffer, self.buffer_at)] {
            let common = offset.max(at)..end.min(at + source.len() as u64);
            if common.start < common.end {
                let from = usize::try_from(common.start - at).unwrap_or(usize::MAX);
                let part = slice(bytes, common.start - offset, common.end - offset);
                if let Some(from) = source.get(from..).and_then(|s| s.get(..part.len())) {
                    part.copy_from_slice(from);
                }
            }
        }
        Ok(())
    }

    /// Brings everything but what is held back onto the medium. The payload ends here: a regular
    /// file gets exactly its size.
    pub fn sync(&mut self) -> Result<()> {
        let size = self.position();
        if self.holding {
            self.begin()?;
        }
        self.flush()?;
        self.settle()?;
        self.create()?;
        let fail = |e| self.io("set the size of", size, e);
        if self.capacity.is_none() && self.medium()?.size().map_err(fail)? != size {
            self.touched.store(true, Ordering::Relaxed);
            self.medium()?.set_size(size).map_err(fail)?;
        }
        if self.touched() {
            self.sync_medium(size)?;
        }
        Ok(())
    }

    /// Writes and syncs what was held back: from now on the target is the image.
    pub fn seal(&mut self) -> Result<()> {
        if self.wiped && !self.held.is_empty() {
            // Held back may be a block of any size, of which a power cut leaves any part: what makes
            // it look complete comes after the rest of it.
            let (first, rest) = self.held.split_at(self.held.len().min(HOLD_BACK));
            if !rest.is_empty() {
                self.write(rest, HOLD_BACK as u64)?;
                self.sync_medium(HOLD_BACK as u64)?;
            }
            self.write(first, 0)?;
            self.sync_medium(0)?;
        }
        if self.created {
            // The name of a new file must survive a power cut too.
            let folder = self.resolved.parent().filter(|p| !p.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))
                .and_then(|folder| folder.sync_all())
                .map_err(|e| self.io("sync the folder of", 0, e))?;
        }
        Ok(())
    }

    /// Bytes at the beginning that only [`Target::seal`] brings onto the medium.
    pub fn unsealed(&self) -> u64 {
        if self.wiped {
            self.held.len() as u64
        } else {
            0
        }
    }

    /// Takes the beginning away again: the medium turned out not to hold what was written.
    pub fn unseal(&self) -> Result<()> {
        // A payload may be smaller than what is held back at least.
        let held = usize::try_from(self.position()).map_or(HOLD_BACK, |size| size.min(HOLD_BACK));
        self.write(&vec![0; held], 0)?;
        self.sync_medium(0)
    }

    /// Makes the next reads come from the medium, as far as the kernel can be told to.
    pub fn forget_cache(&self) -> Result<()> {
        self.medium()?
            .forget()
            .map_err(|e| self.io("drop the cache of", 0, e))
    }

    /// Writes a block once more that is not on the medium as it should be.
    pub fn rewrite(&self, block: Verified<'_>, offset: u64) -> Result<()> {
        self.write(block.bytes(), offset)
    }

    /// Brings rewritten blocks onto the medium.
    pub fn sync_medium(&self, offset: u64) -> Result<()> {
        self.medium()?
            .sync()
            .map_err(|e| self.io("sync", offset, e))
    }

    /// Closes the target and lets the kernel look at the partition table, if it is a whole disk
    /// that has one. Only for convenience: what fails is a warning.
    pub fn finish(self) {
        let Some(disk) = self.device().filter(|_| self.touched()) else {
            return;
        };
        let mut start = [0; busy::TABLE_SIZE];
        let read = self.read_medium(&mut start, 0).is_ok();
        // The kernel refuses while anybody holds the disk, us included.
        drop(self.medium);
        if !read || !busy::wants_partitions(disk, &start) {
            return;
        }
        // The ioctl for it (BLKRRPART) has no safe wrapper in a small crate; initramfs tools and
        // recovery systems have this program. Where udev runs, it does the same on its own.
        let run = Command::new("blockdev")
            .arg("--rereadpt")
            .arg(&self.resolved)
            .stdin(Stdio::null())
            .output();
        let reason = match run {
            Ok(output) if output.status.success() => return,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => format!("blockdev: {error}"),
        };
        log::warn!(
            "the kernel may still have the old partition table of {}: {reason}",
            self.resolved.display()
        );
    }

    /// Takes in bytes of the beginning.
    fn hold(&mut self, bytes: &[u8]) -> Result<()> {
        self.held.extend_from_slice(bytes);
        if self.held.len() >= HOLD_BACK {
            self.begin()?;
        }
        Ok(())
    }

    /// The beginning is complete.
    fn begin(&mut self) -> Result<()> {
        self.holding = false;
        self.buffer_at = self.held.len() as u64;
        if self.changed {
            self.wipe()?;
        }
        Ok(())
    }

    /// Before the first change: wipes the place of what is held back. [`Target::seal`] writes it again.
    pub fn wipe(&mut self) -> Result<()> {
        if self.wiped {
            return Ok(());
        }
        self.create()?;
        self.wiped = true;
        if self.discard > 0 {
            self.touched.store(true, Ordering::Relaxed);
            if let Err(error) = self.medium()?.discard(0..self.discard) {
                log::warn!("{} cannot be discarded: {error}", self.named().display());
            }
        }
        if !self.held.is_empty() {
            let zeros = vec![0; self.held.len()];
            self.write(&zeros, 0)?;
            self.sync_medium(0)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.write(&self.buffer, self.buffer_at)?;
        let written = self.buffer.len() as u64;
        self.buffer_at += written;
        self.buffer.clear();
        self.unsynced += written;
        // As much again is written while it goes on.
        let parts = 1 + u64::from(self.behind.is_possible());
        if self.unsynced >= self.sync_interval / parts || self.synced.elapsed() >= SYNC_PAUSE {
            self.settle()?;
            self.unsynced = 0;
            let medium = self.medium.as_ref();
            if !medium.is_some_and(|medium| self.behind.begin(medium, self.buffer_at)) {
                self.sync_medium(self.buffer_at)?;
            }
            self.synced = Instant::now();
        }
        Ok(())
    }

    /// Waits for the sync that is under way.
    fn settle(&mut self) -> Result<()> {
        let ended = self.behind.wait();
        ended.map_err(|(offset, error)| self.io("sync", offset, error))
    }

    fn create(&mut self) -> Result<()> {
        if self.medium.is_none() {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&self.resolved)
                .map_err(|e| self.refusal(format!("it cannot be created: {e}")))?;
            self.touched.store(true, Ordering::Relaxed);
            self.medium = Some(Arc::new(file));
            self.created = true;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.touched.store(true, Ordering::Relaxed);
        self.medium()?
            .write_at(bytes, offset)
            .map_err(|e| self.io("write", offset, e))
    }

    fn medium(&self) -> Result<&dyn Medium> {
        self.medium
            .as_deref()
            .ok_or(Error::Internal("the target is not open"))
    }

    fn io(&self, operation: &'static str, offset: u64, source: io::Error) -> Error {
        let full = matches!(
            source.kind(),
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
        );
        let source = match (full, self.is_device()) {
            (true, true) => io::Error::other(format!(
                "{source}: the device has less room than its size says (a thin volume whose pool is full?)"
            )),
            (true, false) => io::Error::new(
                source.kind(),
                format!("the file system that it is on is full ({source})"),
            ),
            (false, _) => source,
        };
        Error::TargetIo {
            path: self.named(),
            operation,
            offset,
            source,
        }
    }
}

fn slice(bytes: &mut [u8], start: u64, end: u64) -> &mut [u8] {
    let at = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    bytes.get_mut(at(start)..at(end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashAlgorithm;

    const CARE: Care = Care {
        force: false,
        hold_back: true,
    };

    fn append(target: &mut Target, bytes: &[u8]) {
        let digest = HashAlgorithm::Sha256.digest(bytes);
        let block = digest.verify(bytes).expect("its own digest");
        target.append(block).expect("taken");
    }

    #[test]
    fn the_first_blocks_come_last() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("target");
        fs::write(&path, vec![9; 10_000]).expect("written");
        let mut target = Target::open(&path, CARE).expect("usable");
        append(&mut target, &[1; 3000]);
        assert!(!target.touched(), "nothing is known to be right yet");
        append(&mut target, &[2; 3000]);
        assert!(target.touched());
        append(&mut target, &[3; 1000]);
        let mut back = Vec::new();
        target.read(2999, 4001, &mut back).expect("read back");
        let expected = [&[1][..], &[2; 3000], &[3; 1000]].concat();
        assert!(back == expected);
        target.sync().expect("synced");
        let unsealed = fs::read(&path).expect("read");
        assert!(unsealed == [&[0; 6000][..], &[3; 1000]].concat());
        target.read(2999, 4001, &mut back).expect("read back");
        assert!(back == expected);
        target.seal().expect("sealed");
        let sealed = fs::read(&path).expect("read");
        assert!(sealed == [&[1; 3000][..], &[2; 3000], &[3; 1000]].concat());
    }

    #[test]
    fn large_payloads_are_read_back_across_all_places() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("target");
        let mut target = Target::open(&path, CARE).expect("usable");
        assert!(!path.exists(), "created only with the first write");
        let image: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
        for block in image.chunks(77_777) {
            append(&mut target, block);
        }
        let mut back = Vec::new();
        for (offset, len) in [
            (0, 5_000_000),
            (77_776, 2),
            (4_190_000, 800_000),
            (4_999_999, 1),
        ] {
            target.read(offset, len, &mut back).expect("read back");
            let start = usize::try_from(offset).expect("small");
            assert!(back == image[start..start + len], "{offset} {len}");
        }
        assert!(target.read(4_999_999, 2, &mut back).is_err());
        target.sync().expect("synced");
        target.seal().expect("sealed");
        assert!(fs::read(&path).expect("read") == image);
    }

    #[test]
    fn an_empty_payload_makes_an_empty_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("target");
        fs::write(&path, b"old").expect("written");
        let mut target = Target::open(&path, CARE).expect("usable");
        target.sync().expect("synced");
        target.seal().expect("sealed");
        assert_eq!(fs::read(&path).expect("read"), b"");
    }

    #[test]
    fn what_stands_at_its_place_is_not_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("target");
        let keep = |target: &mut Target, bytes: &[u8]| {
            let digest = HashAlgorithm::Sha256.digest(bytes);
            let block = digest.verify(bytes).expect("its own digest");
            target.keep(block).expect("kept");
        };
        let image = [&[1; 5000][..], &[2; 3000]].concat();
        fs::write(&path, &image).expect("written");
        let mut target = Target::open(&path, CARE).expect("usable");
        keep(&mut target, &image[..5000]);
        keep(&mut target, &image[5000..]);
        target.sync().expect("nothing to do");
        target.seal().expect("nothing to do");
        assert!(!target.touched() && target.unsealed() == 0);
        // One change behind the beginning is enough for hold-back.
        drop(target);
        let mut target = Target::open(&path, CARE).expect("usable");
        keep(&mut target, &image[..5000]);
        assert!(!target.touched());
        append(&mut target, &[3; 1000]);
        keep(&mut target, &image[6000..]);
        target.sync().expect("synced");
        let unsealed = fs::read(&path).expect("read");
        assert!(unsealed == [&[0; 5000][..], &[3; 1000], &[2; 2000]].concat());
        target.seal().expect("sealed");
        let sealed = fs::read(&path).expect("read");
        assert!(sealed == [&[1; 5000][..], &[3; 1000], &[2; 2000]].concat());
    }
}
