//! Where the bytes of a bundle come from: a server with ranges, a server without, a local file,
//! standard input. One read position over all of them.
//!
//! [`Cursor`] is what `open` parses from, and what the writer reads from when there are no workers
//! to fetch for it. With ranges or a file it jumps, else it moves forward only, reading over what
//! is passed. The first request already asks for a range: the answer shows whether the server has
//! them, and how large the bundle is, without a probe of its own.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::fetch;
use crate::http::{self, Client, Counters};
use crate::ordered::Ordered;
use crate::retry::Policy;

/// Bytes that the first request, and one at a later payload, asks for at least. They fit the first
/// flight of a new TCP connection (ten segments, response head included), and hold the header, the
/// usual signatures and the index of a small payload.
pub const FIRST_READ: u64 = 13 << 10;

/// Bytes of unknown optional atoms that are passed over in one bundle: some signatures, and room
/// for what a newer bundler may add.
const MAX_PASSED_OVER: usize = 4 << 20;

/// Bytes read at once from a stream or file.
const READ_SIZE: usize = 64 << 10;

/// Where a bundle is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    /// An http or https URL.
    Url(String),
    /// A local file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Location {
    /// What the user calls a bundle: a URL, a path, or `-`.
    pub fn parse(text: &str) -> Self {
        if text == "-" {
            Self::Stdin
        } else if http::is_http_url(text) {
            Self::Url(text.to_owned())
        } else {
            Self::File(PathBuf::from(text))
        }
    }

    /// Its path, if it is a local file.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::File(path) => Some(path),
            _ => None,
        }
    }

    /// For messages and reports, without secrets.
    pub fn shown(&self) -> String {
        match self {
            Self::Url(url) => http::shown(url),
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "-".to_owned(),
        }
    }
}

/// Bytes to read for which one more connection is worth opening.
const WORTH_A_CONNECTION: u64 = 64 << 10;

/// How to get at a bundle.
#[derive(Clone, Debug)]
pub struct Access {
    /// How to reach the server.
    pub http: http::Settings,
    /// How patient to be, and what to keep to.
    pub policy: Policy,
    /// Ask for ranges at all; else one ordered full download.
    pub ranges: bool,
    /// Accept one ordered full download when the server turns out to have no ranges.
    pub full_download: bool,
}

impl Default for Access {
    fn default() -> Self {
        Self {
            http: http::Settings::default(),
            policy: Policy::default(),
            ranges: true,
            full_download: true,
        }
    }
}

enum Remote {
    /// A server with ranges. The first client has an open connection.
    Ranges(Client),
    /// A server without.
    Ordered(Box<Ordered>),
    File(File),
    /// Standard input, or a pipe given by its path.
    Stream(Box<dyn Read>),
}

impl Remote {
    fn exhausted() -> Self {
        Self::Stream(Box::new(io::empty()))
    }
}

/// A read position in a bundle.
pub struct Cursor {
    remote: Remote,
    /// For errors.
    location: Location,
    policy: Policy,
    /// Bytes read are counted here, as those of a server are.
    counters: Arc<Counters>,
    /// Bytes from the read position on, as far as they are in hand.
    buffer: Vec<u8>,
    /// The read position.
    at: u64,
    /// Size of the bundle, where it is known.
    size: Option<u64>,
    /// Bytes of unknown atoms that were passed over.
    skipped: usize,
}

impl std::fmt::Debug for Cursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cursor")
            .field("location", &self.location.shown())
            .field("at", &self.at)
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

impl Cursor {
    /// Opens the bundle and reads its first bytes.
    pub fn open(location: &Location, access: &Access, counters: &Arc<Counters>) -> Result<Self> {
        let mut cursor = Self {
            remote: Remote::exhausted(),
            location: location.clone(),
            policy: access.policy.clone(),
            counters: counters.clone(),
            buffer: Vec::new(),
            at: 0,
            size: None,
            skipped: 0,
        };
        match location {
            Location::Stdin => cursor.remote = Remote::Stream(Box::new(io::stdin())),
            Location::File(path) => cursor.open_file(path)?,
            Location::Url(url) => cursor.open_url(url, access, counters)?,
        }
        Ok(cursor)
    }

    fn open_file(&mut self, path: &Path) -> Result<()> {
        let fail = |source| Error::BundleFile {
            path: path.to_owned(),
            operation: "open",
            source,
        };
        let file = File::open(path).map_err(fail)?;
        let kind = file.metadata().map_err(fail)?.file_type();
        if kind.is_dir() {
            return Err(fail(io::ErrorKind::IsADirectory.into()));
        }
        if kind.is_file() || kind.is_block_device() {
            let size = io::Seek::seek(&mut &file, io::SeekFrom::End(0)).map_err(fail)?;
            self.size = Some(size);
            self.remote = Remote::File(file);
        } else {
            self.remote = Remote::Stream(Box::new(file));
        }
        Ok(())
    }

    fn open_url(&mut self, url: &str, access: &Access, counters: &Arc<Counters>) -> Result<()> {
        let mut client = Client::new(url, &access.http, counters);
        if access.ranges {
            let first = fetch::first(&mut client, &(0..FIRST_READ), &access.policy)?;
            if let Some(bytes) = first {
                self.buffer = bytes;
                self.size = client.size();
                self.remote = Remote::Ranges(client);
                return Ok(());
            }
            if !access.full_download {
                return Err(Error::Refused {
                    url: client.url(),
                    cause: "the server ignores ranges, and a full download is refused".to_owned(),
                });
            }
            log::warn!("the server ignores ranges: blocks of seeds save no download, everything is fetched in order");
        }
        self.remote = Remote::Ordered(Box::new(Ordered::new(client, &access.policy)));
        Ok(())
    }

    /// The read position.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Size of the bundle in bytes, where it is known.
    pub fn size(&self) -> Option<u64> {
        match &self.remote {
            Remote::Ordered(ordered) => ordered.size(),
            _ => self.size,
        }
    }

    /// False if bytes can only be had in order, each once.
    pub fn jumps(&self) -> bool {
        matches!(self.remote, Remote::Ranges(_) | Remote::File(_))
    }

    /// The bytes from the read position on that are in hand.
    pub fn in_hand(&self) -> &[u8] {
        &self.buffer
    }

    /// Where the bundle is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// At least `len` bytes from the read position on, or all up to the end of the bundle.
    ///
    /// What is missing is asked for with one eighth on top: behind the block hashes lie the block
    /// sizes, at most an eighth of them, and the whole index then takes one request.
    pub fn want(&mut self, len: usize) -> Result<&[u8]> {
        if self.buffer.len() < len {
            self.read_more(len)?;
        }
        Ok(&self.buffer)
    }

    fn read_more(&mut self, len: usize) -> Result<()> {
        let want = len as u64;
        let at = self.at;
        match &mut self.remote {
            Remote::Ranges(client) => {
                let end = at.saturating_add((want + want / 8 + 1024).max(FIRST_READ));
                fetch::complete(client, &(at..end), &mut self.buffer, &self.policy)
            }
            Remote::File(file) => {
                let fail = |source| Error::BundleFile {
                    path: PathBuf::from(self.location.shown()),
                    operation: "read",
                    source,
                };
                let start = self.buffer.len();
                let left = self.size.unwrap_or(0).saturating_sub(at + start as u64);
                let more = (want - start as u64).max(FIRST_READ).min(left);
                let more = usize::try_from(more).unwrap_or(usize::MAX - start);
                self.buffer.resize(start + more, 0);
                let missing = self.buffer.get_mut(start..).unwrap_or_default();
                self.counters.count_bytes(missing.len() as u64);
                let read = file.read_exact_at(missing, at + start as u64);
                if read.is_err() {
                    // It may be asked for again, and zeros are not what it is.
                    self.buffer.truncate(start);
                }
                read.map_err(fail)
            }
            Remote::Ordered(ordered) => fill(&mut self.buffer, len, |b| ordered.read(b)),
            Remote::Stream(stream) => {
                let fail = |source| Error::BundleFile {
                    path: PathBuf::from(self.location.shown()),
                    operation: "read",
                    source,
                };
                fill(&mut self.buffer, len, |buffer| loop {
                    match stream.read(buffer) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        result => {
                            self.counters
                                .count_bytes(result.as_ref().map_or(0, |n| *n as u64));
                            return result.map_err(fail);
                        }
                    }
                })
            }
        }
    }

    /// Moves the read position forward by `len` bytes, which must be in hand.
    pub fn advance(&mut self, len: usize) {
        let len = len.min(self.buffer.len());
        self.buffer.drain(..len);
        self.at += len as u64;
    }

    /// Moves the read position forward over an unknown atom of `len` bytes. False if there were too
    /// many of them.
    pub fn pass_over(&mut self, len: usize) -> bool {
        self.skipped = self.skipped.saturating_add(len);
        self.advance(len);
        self.skipped <= MAX_PASSED_OVER
    }

    /// Moves the read position to `offset`; forward only, unless it jumps.
    pub fn seek(&mut self, offset: u64) -> Result<()> {
        let Some(mut ahead) = offset.checked_sub(self.at) else {
            if self.jumps() {
                self.buffer.clear();
                self.at = offset;
                return Ok(());
            }
            return Err(Error::Internal("a stream is not read backwards"));
        };
        loop {
            let step =
                usize::try_from(ahead).map_or(self.buffer.len(), |n| n.min(self.buffer.len()));
            self.advance(step);
            ahead -= step as u64;
            if ahead == 0 {
                return Ok(());
            }
            if self.jumps() {
                self.at = offset;
                return Ok(());
            }
            let next = usize::try_from(ahead).map_or(READ_SIZE, |n| n.min(READ_SIZE));
            if self.want(next)?.is_empty() {
                return Err(Error::Malformed {
                    offset: self.at,
                    reason: "the bundle is cut short",
                });
            }
        }
    }

    /// The bytes of `range`, which must not lie behind the read position; moves it to their end.
    pub fn take(&mut self, range: Range<u64>) -> Result<Vec<u8>> {
        self.seek(range.start)?;
        let len = usize::try_from(range.end - range.start)
            .map_err(|_| Error::Internal("a range is larger than memory"))?;
        let mut bytes = self.want(len)?.get(..len).map(<[u8]>::to_vec);
        let bytes = bytes.take().ok_or(Error::Malformed {
            offset: self.at,
            reason: "the bundle is cut short",
        })?;
        self.advance(len);
        Ok(bytes)
    }

    /// Begins to open connections for `count` further clients, as far as what was not read yet may
    /// need them. It is not waited for.
    pub fn open_ahead(&self, count: usize) {
        if let Remote::Ranges(client) = &self.remote {
            let left = self.size.unwrap_or(0).saturating_sub(self.at);
            let useful = usize::try_from(left / WORTH_A_CONNECTION).unwrap_or(usize::MAX);
            client.open_ahead(count.min(useful));
        }
    }

    /// The client to fetch ranges with, if the server has them. Nothing more can be read here then.
    pub fn take_client(&mut self) -> Option<Client> {
        match std::mem::replace(&mut self.remote, Remote::exhausted()) {
            Remote::Ranges(client) => Some(client),
            other => {
                self.remote = other;
                None
            }
        }
    }
}

/// Reads until `buffer` holds `len` bytes or the end is reached.
fn fill(
    buffer: &mut Vec<u8>,
    len: usize,
    mut read: impl FnMut(&mut [u8]) -> Result<usize>,
) -> Result<()> {
    // In steps: `len` may come from a length field, and memory follows what was received.
    while buffer.len() < len {
        let start = buffer.len();
        buffer.resize(start + READ_SIZE, 0);
        let result = read(buffer.get_mut(start..).unwrap_or_default());
        buffer.truncate(start + result.as_ref().copied().unwrap_or(0));
        if result? == 0 {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_read_is_not_taken_for_zeros() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bundle");
        std::fs::write(&path, vec![1; 200_000]).expect("written");
        let location = Location::File(path.clone());
        let mut cursor =
            Cursor::open(&location, &Access::default(), &Arc::default()).expect("opened");
        // The medium fails from here on.
        let file = File::options().write(true).open(path).expect("opened");
        file.set_len(100_000).expect("cut");
        for _ in 0..2 {
            let failed = cursor.take(90_000..190_000).expect_err("it is not there");
            assert!(matches!(failed, Error::BundleFile { .. }), "{failed}");
        }
        let bytes = cursor.take(10_000..15_000).expect("it is there");
        assert_eq!(bytes, vec![1; 5000]);
    }
}
