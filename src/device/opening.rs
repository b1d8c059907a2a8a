//! Opening a target: what it is, who uses it, and why it is refused.
//!
//! All refusals come before any download: a missing path below /dev (nothing is ever created there),
//! directories, character devices (raw flash, UBI), FIFOs, sockets, read-only devices, and devices
//! and files that somebody uses ([`busy`] says who). Links are resolved once.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{flock, FlockOperation};

use super::{Care, Medium, Target};
use crate::busy;
use crate::error::{Error, Result};

/// Time for another program to let go of a file.
const LOCK_WAIT: Duration = Duration::from_millis(400);

/// `O_EXCL` of Linux, the same on all architectures: on a block device, fail if it is in use.
const O_EXCL: i32 = 0o200;

/// Tells files and devices apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// A file, by file system and inode.
    File(u64, u64),
    /// A block device, by its number: it may have several nodes.
    Device(u64),
}

impl Identity {
    /// Of what a path leads to.
    pub fn of(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Device(metadata.rdev())
        } else {
            Self::File(metadata.dev(), metadata.ino())
        }
    }
}

impl Target {
    /// Checks and opens a target. Changes nothing; a regular file that does not exist is created
    /// with the first write.
    pub fn open(path: &Path, care: Care) -> Result<Self> {
        let mut target = Self::unopened(path, care);
        let refuse = |reason: String| Error::Target {
            path: path.to_owned(),
            reason,
        };
        match fs::canonicalize(path) {
            Ok(resolved) => target.resolved = resolved,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                target.resolved = check_creatable(path).map_err(refuse)?;
                return Ok(target);
            }
            Err(error) => return Err(refuse(error.to_string())),
        }
        let (file, metadata) = target.open_file(true, care.force)?;
        target.identity = Some(Identity::of(&metadata));
        let size = file
            .size()
            .map_err(|e| target.refusal(format!("its size is unknown: {e}")))?;
        if metadata.file_type().is_block_device() {
            if size == 0 {
                return Err(target.refusal("the device has no medium, its size is 0".into()));
            }
            target.capacity = Some(size);
            // What was written by another way (the whole disk) since somebody opened it is not in its
            // cache, and what stands there is to be kept by what the medium says.
            if let Err(error) = file.forget() {
                log::debug!("{} keeps its cache: {error}", target.named().display());
            }
        }
        target.old_size = size;
        target.medium = Some(Arc::new(file));
        Ok(target)
    }

    /// Opens a target only to look at it. It may be in use.
    pub fn open_to_read(path: &Path) -> Result<Self> {
        let care = Care {
            force: true,
            hold_back: false,
        };
        let mut target = Self::unopened(path, care);
        target.resolved = fs::canonicalize(path).map_err(|e| target.refusal(e.to_string()))?;
        let (file, metadata) = target.open_file(false, true)?;
        let size = file
            .size()
            .map_err(|e| target.refusal(format!("its size is unknown: {e}")))?;
        let is_device = metadata.file_type().is_block_device();
        target.identity = Some(Identity::of(&metadata));
        target.capacity = is_device.then_some(size);
        target.old_size = size;
        target.medium = Some(Arc::new(file));
        Ok(target)
    }

    /// Opens what the resolved path leads to, or says why not.
    fn open_file(&self, write: bool, force: bool) -> Result<(File, Metadata)> {
        let refuse = |reason: String| self.refusal(reason);
        let metadata = fs::metadata(&self.resolved).map_err(|e| refuse(e.to_string()))?;
        let kind = metadata.file_type();
        let is_device = kind.is_block_device();
        if !is_device && !kind.is_file() {
            return Err(refuse(unusable(kind).to_owned()));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(write);
        if write && !force {
            let user = if is_device {
                busy::device(metadata.rdev(), &self.resolved)
            } else {
                busy::file(&self.resolved)
            };
            if let Some(user) = user {
                return Err(refuse(format!("it is in use: {user}")));
            }
        }
        if write && is_device {
            if let Some(how) = busy::read_only(metadata.rdev()) {
                return Err(refuse(format!("the device is read-only ({how})")));
            }
            if !force {
                options.custom_flags(O_EXCL);
            }
        }
        let file = options.open(&self.resolved).map_err(|error| {
            refuse(match error.kind() {
                io::ErrorKind::ResourceBusy => match busy::program(&self.resolved) {
                    Some(program) => format!("it is in use by {program}"),
                    None => "it is in use by another program or device".into(),
                },
                io::ErrorKind::ReadOnlyFilesystem if is_device => "the device is read-only".into(),
                io::ErrorKind::ReadOnlyFilesystem => "its file system is read-only".into(),
                _ => error.to_string(),
            })
        })?;
        if write && !is_device && !force {
            // Held until the file is closed; two installs would spoil each other's work.
            // Some network file systems have no locks: any other error is none.
            // A program that this one's caller has just started holds it, too, for a moment.
            let start = Instant::now();
            let mut lock = flock(&file, FlockOperation::NonBlockingLockExclusive);
            while lock == Err(rustix::io::Errno::WOULDBLOCK) && start.elapsed() < LOCK_WAIT {
                std::thread::sleep(LOCK_WAIT / 20);
                lock = flock(&file, FlockOperation::NonBlockingLockExclusive);
            }
            if lock == Err(rustix::io::Errno::WOULDBLOCK) {
                let program = busy::program(&self.resolved);
                return Err(refuse(format!(
                    "it is locked by {}",
                    program.as_deref().unwrap_or("another program")
                )));
            }
        }
        Ok((file, metadata))
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
            let error = Target::open(path, Care::default()).expect_err("refused");
            assert_eq!(error.class().exit_code(), 5);
            assert!(error.to_string().contains(reason), "{error}");
        }
    }

    #[test]
    fn a_file_has_one_writer() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("target");
        fs::write(&path, b"old").expect("written");
        let first = Target::open(&path, Care::default()).expect("usable");
        let second = Target::open(&path, Care::default()).expect_err("locked");
        assert!(second.to_string().contains("locked by"), "{second}");
        drop(first);
        Target::open(&path, Care::default()).expect("free again");
    }
}
