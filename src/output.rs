//! A file that is written whole or not at all.
//!
//! The bytes go to a temporary file beside it, which is synced and takes its name at the end: an
//! output is either complete or what it was before, whatever ends the run. Nothing is left over of
//! a write that failed; of a process that was killed, at most the temporary file.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::{Error, Result};

/// Names that are tried for a temporary file: those before are of processes that were killed, or of
/// some in other containers.
const MAX_NAMES: u32 = 100;

/// A file that is to be written.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
}

impl Output {
    /// An output of this path. What is there already must be a regular file, and is replaced when
    /// all is written.
    pub fn new(path: &Path) -> Result<Self> {
        let fail = |source| Error::Output {
            path: path.to_owned(),
            source,
        };
        // Through links: renaming would replace the link, /dev/stdout say.
        let real = match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => fs::canonicalize(path).map_err(fail)?,
            _ => path.to_owned(),
        };
        if fs::metadata(&real).is_ok_and(|there| !there.is_file()) {
            return Err(fail(io::Error::other("it is there and is no regular file")));
        }
        if real.file_name().is_none() {
            return Err(fail(io::Error::other("it is no name for a file")));
        }
        // Not after all the work is done.
        fs::metadata(folder_of(&real)).map_err(fail)?;
        Ok(Self { path: real })
    }

    /// Refuses to write over what is being read.
    pub fn must_not_be(&self, input: &Path) -> Result<()> {
        if is_same_place(&self.path, input) {
            return Err(Error::Usage(format!(
                "the output {} would replace {}, which is read",
                self.path.display(),
                input.display()
            )));
        }
        Ok(())
    }

    /// Where it goes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// It cannot be written.
    pub fn fail(&self, source: io::Error) -> Error {
        Error::Output {
            path: self.path.clone(),
            source,
        }
    }

    /// A file without a name, on the same medium: it goes away with the process, however that ends.
    pub fn scratch(&self) -> Result<File> {
        let (path, file) = self.create_temporary().map_err(|e| self.fail(e))?;
        fs::remove_file(path).map_err(|e| self.fail(e))?;
        Ok(file)
    }

    /// Writes it. What `write` returns is passed on.
    pub fn store<T>(&self, write: impl FnOnce(&mut File) -> io::Result<T>) -> Result<T> {
        let (temporary, mut file) = self.create_temporary().map_err(|e| self.fail(e))?;
        let stored = write(&mut file).and_then(|written| {
            file.sync_all()?;
            fs::rename(&temporary, &self.path)?;
            // The name must survive a power cut too.
            File::open(folder_of(&self.path))?.sync_all()?;
            Ok(written)
        });
        stored.map_err(|source| {
            // The first failure is the one to report.
            drop(fs::remove_file(&temporary));
            self.fail(source)
        })
    }

    /// A new file beside the output, and its path.
    fn create_temporary(&self) -> io::Result<(PathBuf, File)> {
        let mut number = 0;
        loop {
            let mut name = self.path.file_name().unwrap_or_default().to_owned();
            name.push(format!(".tmp-{}-{number}", std::process::id()));
            let path = self.path.with_file_name(name);
            let mut how = OpenOptions::new();
            match how.read(true).write(true).create_new(true).open(&path) {
                Ok(file) => return Ok((path, file)),
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && number < MAX_NAMES =>
                {
                    number += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Opens a file that may be a pipe as well: nobody is waited for who may read that some time.
pub fn open_unwaiting(path: &Path, how: &mut OpenOptions) -> io::Result<File> {
    if is_pipe(path) {
        how.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    }
    how.open(path).map_err(|error| {
        if error.raw_os_error() == Some(Errno::NXIO.raw_os_error()) {
            io::Error::other("it is a pipe that nobody reads")
        } else {
            error
        }
    })
}

/// Whether there is a pipe under this name.
pub fn is_pipe(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| there.file_type().is_fifo())
}

/// Refuses an output, given by `option`, that would be written over one of `others`, each of which is
/// said to be something.
pub fn check_apart<'a>(
    option: &str,
    output: &Path,
    others: impl IntoIterator<Item = (&'static str, &'a Path)>,
) -> Result<()> {
    let mut others = others.into_iter();
    match others.find(|(_, other)| is_same_place(output, other)) {
        Some((what, other)) => Err(Error::Usage(format!(
            "{option} {} would be written over the {what} {}: give it a file of its own",
            output.display(),
            other.display()
        ))),
        None => Ok(()),
    }
}

/// Whether two names lead to one file or block device, or will when it is made.
fn is_same_place(a: &Path, b: &Path) -> bool {
    let place = |path: &Path| {
        Some(
            fs::canonicalize(folder_of(path))
                .ok()?
                .join(path.file_name()?),
        )
    };
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) if a.file_type().is_block_device() => {
            b.file_type().is_block_device() && a.rdev() == b.rdev()
        }
        // Others, such as terminals, hold nothing that could be lost.
        (Ok(a), Ok(b)) => a.is_file() && (a.dev(), a.ino()) == (b.dev(), b.ino()),
        (Err(_), Err(_)) => place(a).is_some_and(|a| place(b) == Some(a)),
        _ => false,
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}
