//! The target: opening and refusing, writing in order, reading back, sealing. All kernel knowledge.
//!
//! *Refusals*, all before any download: a missing path below /dev (nothing is ever created there),
//! directories, character devices (raw flash, UBI), FIFOs, sockets, read-only devices, and block
//! devices that are mounted, hold swap, or are held by another device or program (opened with
//! `O_EXCL`, which the kernel refuses for those).
//!
//! *Hold-back.* The target never looks complete until it is: the first blocks (at least 4 KiB) are
//! kept in memory; their place is zeroed and synced before anything else is written, and they are
//! written and synced last ([`Target::seal`]), when the caller knows that the rest is right.
//!
//! *Writing.* Blocks come in order and end anywhere; they are gathered and written in aligned
//! pieces of 1 MiB, so that the kernel never has to read a sector to change a part of it, but for
//! the last one. Not one byte behind the payload changes. Every 32 MiB the data
//! are synced: dirty memory stays bounded, errors show early, and the last sync is short.
//!
//! Offsets are `u64` everywhere. No `unsafe`: the size of a block device is a seek to its end.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::hash::Verified;

/// Least number of bytes that are held back: boot loaders and `blkid` look for more than a sector.
const HOLD_BACK: usize = 4 << 10;

/// Size and alignment of writes.
const WRITE_SIZE: u64 = 1 << 20;

/// Bytes written between two syncs.
const SYNC_INTERVAL: u64 = 32 << 20;

/// `O_EXCL` of Linux, the same on all architectures: on a block device, fail if it is in use.
const O_EXCL: i32 = 0o200;

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
    file: Option<File>,
    /// Size of a block device in bytes; a regular file has none.
    capacity: Option<u64>,
    created: bool,
    /// The first bytes, not on the medium yet.
    held: Vec<u8>,
    holding: bool,
    /// Bytes behind those on the medium.
    buffer: Vec<u8>,
    /// Offset of the first byte in `buffer`.
    buffer_at: u64,
    unsynced: u64,
    /// Set before the first byte changes; shared with whoever has to tell of it in a hurry.
    touched: Arc<AtomicBool>,
}

/// Tells files and devices apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    /// A file, by file system and inode.
    File(u64, u64),
    /// A block device, by its number: it may have several nodes.
    Device(u64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Device(metadata.rdev())
        } else {
            Self::File(metadata.dev(), metadata.ino())
        }
    }
}

/// How to treat the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Care {
    /// Write to a device that is mounted or held.
    pub force: bool,
    /// Hold the first blocks back until all is verified.
    pub hold_back: bool,
}

impl Target {
    /// Checks and opens a target. Changes nothing; a regular file that does not exist is created
    /// with the first write.
    pub fn open(path: &Path, care: Care) -> Result<Self> {
        let refuse = |reason: String| Error::Target {
            path: path.to_owned(),
            reason,
        };
        let mut target = Self {
            path: path.to_owned(),
            resolved: path.to_owned(),
            identity: None,
            file: None,
            capacity: None,
            created: false,
            held: Vec::new(),
            holding: care.hold_back,
            buffer: Vec::new(),
            buffer_at: 0,
            unsynced: 0,
            touched: Arc::default(),
        };
        match fs::canonicalize(path) {
            Ok(resolved) => target.resolved = resolved,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                target.resolved = check_creatable(path).map_err(refuse)?;
                return Ok(target);
            }
            Err(error) => return Err(refuse(error.to_string())),
        }
        let metadata = fs::metadata(&target.resolved).map_err(|e| refuse(e.to_string()))?;
        target.identity = Some(Identity::of(&metadata));
        let kind = metadata.file_type();
        let mut options = OpenOptions::new();
        options.read(true).write(true);
        if kind.is_block_device() {
            if let Some(holder) = holder(metadata.rdev()).filter(|_| !care.force) {
                return Err(refuse(format!("it is in use: {holder}")));
            }
            if is_read_only(metadata.rdev()) {
                return Err(refuse(
                    "the device is read-only (see its force_ro attribute and blockdev --setrw)"
                        .into(),
                ));
            }
            if !care.force {
                options.custom_flags(O_EXCL);
            }
        } else if !kind.is_file() {
            return Err(refuse(unusable(kind).to_owned()));
        }
        let mut file = options.open(&target.resolved).map_err(|error| {
            refuse(match error.kind() {
                io::ErrorKind::ResourceBusy => "it is in use by another program or device".into(),
                io::ErrorKind::ReadOnlyFilesystem => "it is read-only".into(),
                _ => error.to_string(),
            })
        })?;
        if kind.is_block_device() {
            let size = file.seek(SeekFrom::End(0));
            let size = size.map_err(|e| refuse(format!("its size is unknown: {e}")))?;
            if size == 0 {
                return Err(refuse("the device has no medium, its size is 0".into()));
            }
            target.capacity = Some(size);
        }
        target.file = Some(file);
        Ok(target)
    }

    /// Its path as the user named it.
    pub fn path(&self) -> &Path {
        &self.path
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

    /// Refuses a target that has fewer bytes than `needed`.
    pub fn require(&self, needed: u64) -> Result<()> {
        match self.capacity {
            Some(size) if size < needed => Err(Error::TargetTooSmall {
                path: self.path.clone(),
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

    /// Bytes taken in so far: where the next block goes.
    pub fn position(&self) -> u64 {
        if self.holding {
            self.held.len() as u64
        } else {
            self.buffer_at + self.buffer.len() as u64
        }
    }

    /// Takes the next block.
    pub fn append(&mut self, block: Verified<'_>) -> Result<()> {
        let mut bytes = block.bytes();
        self.require(self.position() + bytes.len() as u64)?;
        if self.holding {
            self.held.extend_from_slice(bytes);
            if self.held.len() >= HOLD_BACK {
                self.hold()?;
            }
            return Ok(());
        }
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
            self.file()?
                .read_exact_at(part, on_medium.start)
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
            self.hold()?;
        }
        self.flush()?;
        self.create()?;
        self.touched.store(true, Ordering::Relaxed);
        if self.capacity.is_none() {
            self.file()?
                .set_len(size)
                .map_err(|e| self.io("set the size of", size, e))?;
        }
        self.file()?
            .sync_all()
            .map_err(|e| self.io("sync", size, e))
    }

    /// Writes and syncs what was held back: from now on the target is the image.
    pub fn seal(&mut self) -> Result<()> {
        if !self.held.is_empty() {
            self.write(&self.held, 0)?;
            self.file()?.sync_all().map_err(|e| self.io("sync", 0, e))?;
        }
        if self.created {
            // The name of a new file must survive a power cut too.
            let folder = self.path.parent().filter(|p| !p.as_os_str().is_empty());
            File::open(folder.unwrap_or(Path::new(".")))
                .and_then(|folder| folder.sync_all())
                .map_err(|e| self.io("sync the folder of", 0, e))?;
        }
        Ok(())
    }

    /// The first blocks are complete: wipes their place.
    fn hold(&mut self) -> Result<()> {
        self.create()?;
        let zeros = vec![0; self.held.len()];
        self.write(&zeros, 0)?;
        self.file()?.sync_all().map_err(|e| self.io("sync", 0, e))?;
        self.holding = false;
        self.buffer_at = self.held.len() as u64;
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.create()?;
        self.write(&self.buffer, self.buffer_at)?;
        let written = self.buffer.len() as u64;
        self.buffer_at += written;
        self.buffer.clear();
        self.unsynced += written;
        if self.unsynced >= SYNC_INTERVAL {
            self.file()?
                .sync_data()
                .map_err(|e| self.io("sync", self.buffer_at, e))?;
            self.unsynced = 0;
        }
        Ok(())
    }

    fn create(&mut self) -> Result<()> {
        if self.file.is_none() {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .open(&self.path)
                .map_err(|e| Error::Target {
                    path: self.path.clone(),
                    reason: format!("it cannot be created: {e}"),
                })?;
            self.touched.store(true, Ordering::Relaxed);
            self.file = Some(file);
            self.created = true;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.touched.store(true, Ordering::Relaxed);
        self.file()?
            .write_all_at(bytes, offset)
            .map_err(|e| self.io("write", offset, e))
    }

    fn file(&self) -> Result<&File> {
        self.file
            .as_ref()
            .ok_or(Error::Internal("the target is not open"))
    }

    fn io(&self, operation: &'static str, offset: u64, source: io::Error) -> Error {
        Error::TargetIo {
            path: self.path.clone(),
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

/// The full name of a regular file that may be made under this name, which does not exist.
fn check_creatable(path: &Path) -> Result<PathBuf, String> {
    if fs::symlink_metadata(path).is_ok() {
        return Err("the link leads nowhere".into());
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let folder = fs::canonicalize(folder)
        .map_err(|error| format!("its folder {}: {error}", folder.display()))?;
    if folder.starts_with("/dev") && !folder.starts_with("/dev/shm") {
        return Err("there is no such device".into());
    }
    // `file_name` looks through a slash at the end.
    match path.file_name() {
        Some(name) if path.as_os_str().as_bytes().ends_with(name.as_bytes()) => {
            Ok(folder.join(name))
        }
        _ => Err("this is no file name".into()),
    }
}

fn unusable(kind: fs::FileType) -> &'static str {
    if kind.is_dir() {
        "it is a directory"
    } else if kind.is_char_device() {
        "it is a character device; raw flash (MTD) and UBI are not supported"
    } else if kind.is_fifo() {
        "it is a FIFO"
    } else {
        "it is neither a block device nor a regular file"
    }
}

/// Major and minor number as /proc and /sys write them.
fn numbers(device: u64) -> String {
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & 0xffff_f000);
    let minor = (device & 0xff) | ((device >> 12) & 0xffff_ff00);
    format!("{major}:{minor}")
}

fn is_read_only(device: u64) -> bool {
    fs::read_to_string(format!("/sys/dev/block/{}/ro", numbers(device)))
        .is_ok_and(|ro| ro.trim() == "1")
}

/// Who uses a block device or one of its partitions, as far as /proc and /sys tell. Without them,
/// the exclusive open still notices, it only cannot say who.
fn holder(device: u64) -> Option<String> {
    let folder = PathBuf::from(format!("/sys/dev/block/{}", numbers(device)));
    let mut parts = vec![(numbers(device), folder.clone())];
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        if entry.path().join("partition").exists() {
            if let Ok(part) = fs::read_to_string(entry.path().join("dev")) {
                parts.push((part.trim().to_owned(), entry.path()));
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for line in mounts.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        if let [_, _, dev, _, point, ..] = fields[..] {
            if parts.iter().any(|(part, _)| part == dev) {
                return Some(format!("mounted at {}", unescaped(point)));
            }
        }
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for swap in swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
    {
        if fs::metadata(swap).is_ok_and(|m| parts.iter().any(|(p, _)| *p == numbers(m.rdev()))) {
            return Some(format!("swap on {swap}"));
        }
    }
    for (_, folder) in parts {
        let mut holders = fs::read_dir(folder.join("holders")).into_iter().flatten();
        if let Some(Ok(holder)) = holders.next() {
            return Some(format!("held by {}", holder.file_name().to_string_lossy()));
        }
    }
    None
}

/// A path from /proc, where space, tab, line feed and backslash stand in octal (`\\040`).
fn unescaped(path: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let replace = |path: String, (octal, plain): (&str, &str)| path.replace(octal, plain);
    escapes.into_iter().fold(path.to_owned(), replace)
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
    fn unusable_targets_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("nowhere", folder.path().join("link")).expect("a link");
        for (path, reason) in [
            (Path::new("/dev/reflash-no-such-device"), "no such device"),
            (Path::new("/dev/null"), "character device"),
            (folder.path(), "directory"),
            (&folder.path().join("link"), "leads nowhere"),
            (&folder.path().join("none/target"), "its folder"),
            (&folder.path().join("new/"), "no file name"),
        ] {
            let error = Target::open(path, CARE).expect_err("refused");
            assert_eq!(error.class().exit_code(), 5);
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn paths_from_proc_are_readable() {
        assert_eq!(unescaped("/a\\040b\\134c"), "/a b\\c");
    }

    #[test]
    fn device_numbers_are_taken_apart() {
        assert_eq!(numbers(0x0801), "8:1");
        assert_eq!(numbers(0x10_0000 | (259 << 8) | 5), "259:261");
    }
}
