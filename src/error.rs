//! The one error type: what failed, on what, and what the caller of the program should do next.
//!
//! Variants carry data, not prose. `Display` is one lower-case line that names the operand;
//! [`Error::hint`] is a second line where there is an obvious remedy. The class, which becomes the
//! exit code, answers "what next", not "what broke":
//!
//! | exit | class | what a script should do |
//! |---|---|---|
//! | 1 | internal fault | report a bug |
//! | 2 | usage | fix the command |
//! | 3 | network, after all retries | try later |
//! | 4 | bundle: not there, malformed, unsupported, untrusted, changed, digest mismatch | get another bundle |
//! | 5 | target: missing, busy, too small, I/O error | look at the device |

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use crate::hash::Digest;

/// How a web page is called in [`Error::NotABundle`].
pub const HTML: &str = "a web page (HTML)";

/// Most regions of a target that a message names.
const MAX_REGIONS: usize = 8;

/// Result of everything that can fail here.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What the caller of the program should do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// A fault of the program itself.
    Internal,
    /// The command cannot be carried out as given.
    Usage,
    /// The network or the server failed, after all retries.
    Network,
    /// The bundle is not there, or cannot be installed.
    Bundle,
    /// The target cannot be used or failed.
    Target,
}

impl Class {
    /// The exit code of the program.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Usage => 2,
            Self::Network => 3,
            Self::Bundle => 4,
            Self::Target => 5,
        }
    }
}

/// What was hashed when a digest did not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// The raw bundle header.
    Header,
    /// The raw header of payload `.0`.
    PayloadHeader(usize),
    /// The plain bytes of a block.
    Block {
        /// Number of the payload.
        payload: usize,
        /// Number of the block in the payload.
        block: usize,
    },
    /// All plain bytes of payload `.0`.
    Payload(usize),
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("bundle header"),
            Self::PayloadHeader(payload) => write!(f, "header of payload {payload}"),
            Self::Block { payload, block } => write!(f, "block {block} of payload {payload}"),
            Self::Payload(payload) => write!(f, "payload {payload}"),
        }
    }
}

/// Why an operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A broken invariant of our own.
    Internal(&'static str),
    /// The command line, or its combination with this bundle, makes no sense.
    Usage(String),
    /// The network gave up: `attempts` tries for a range of the bundle, the last ending in `cause`.
    Network {
        /// The bundle's URL, without secrets.
        url: String,
        /// The range asked for.
        range: Option<Range<u64>>,
        /// Tries made.
        attempts: u32,
        /// How the last try ended.
        cause: String,
    },
    /// More would have to be downloaded than the user allows, or was.
    DownloadLimit {
        /// The bundle's URL, without secrets.
        url: String,
        /// The numbers.
        cause: String,
    },
    /// The server says, for good, that the bundle cannot be had.
    Refused {
        /// The bundle's URL, without secrets.
        url: String,
        /// What the server said.
        cause: String,
    },
    /// Another object is served than at the start.
    Changed {
        /// The bundle's URL, without secrets.
        url: String,
        /// What changed: `ETag`, `Last-Modified`, `size`.
        what: &'static str,
        /// Its value at the start.
        was: String,
        /// Its value now.
        now: String,
    },
    /// A bundle on a local medium cannot be read.
    BundleFile {
        /// Its path, `-` for standard input.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The bytes are something else altogether.
    NotABundle {
        /// Where they come from, without secrets.
        location: String,
        /// What they look like.
        looks_like: &'static str,
    },
    /// The bytes break the format's rules.
    Malformed {
        /// Offset in the bundle (or index file) of the offending atom.
        offset: u64,
        /// The rule they break.
        reason: &'static str,
    },
    /// The bytes ask for something that this program does not do.
    Unsupported(String),
    /// Nothing proves that the owner signed the bundle.
    Untrusted {
        /// Why each signature does not count.
        reason: String,
    },
    /// The bytes are not what a trusted digest says.
    Mismatch {
        /// What was hashed.
        subject: Subject,
        /// The trusted digest. Boxed, as the next: they would make every `Result` large.
        expected: Box<Digest>,
        /// The digest of what is there.
        found: Box<Digest>,
    },
    /// A block that has its right digest in the index cannot be decompressed.
    Corrupt {
        /// Which block.
        subject: Subject,
        /// Its place in the bundle.
        range: Range<u64>,
        /// What the decoder says.
        reason: String,
    },
    /// The target cannot be used: `reason` says why.
    Target {
        /// Its path as given.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The target ends before the payload does.
    TargetTooSmall {
        /// Its path as given.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
        /// Bytes the payload needs at least.
        needed: u64,
    },
    /// An operation on the target failed.
    TargetIo {
        /// Its path as given.
        path: PathBuf,
        /// What was tried.
        operation: &'static str,
        /// Where, in bytes from its start.
        offset: u64,
        /// Why it failed.
        source: io::Error,
    },
    /// The target does not hold the image, or does not give back what was written.
    Differs {
        /// Its path as given.
        path: PathBuf,
        /// Where, in bytes from its start.
        regions: Vec<Range<u64>>,
        /// These were written by this run, twice.
        written: bool,
    },
    /// A local file that the program was told to write cannot be written.
    Output {
        /// Its path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A local file that the program was told to read cannot be read.
    Input {
        /// Its path.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
}

impl Error {
    /// Bytes that are not what a trusted digest says.
    pub fn mismatch(subject: Subject, expected: &Digest, found: &Digest) -> Self {
        Self::Mismatch {
            subject,
            expected: Box::new(*expected),
            found: Box::new(*found),
        }
    }

    /// What the caller should do next.
    pub fn class(&self) -> Class {
        match self {
            Self::Internal(_) => Class::Internal,
            Self::Usage(_) | Self::Output { .. } | Self::Input { .. } => Class::Usage,
            Self::Network { .. } | Self::DownloadLimit { .. } => Class::Network,
            Self::Refused { .. }
            | Self::Changed { .. }
            | Self::BundleFile { .. }
            | Self::NotABundle { .. }
            | Self::Malformed { .. }
            | Self::Unsupported(_)
            | Self::Untrusted { .. }
            | Self::Mismatch { .. }
            | Self::Corrupt { .. } => Class::Bundle,
            Self::Target { .. }
            | Self::TargetTooSmall { .. }
            | Self::TargetIo { .. }
            | Self::Differs { .. } => Class::Target,
        }
    }

    /// True if it is about the bytes of the bundle, without naming it.
    pub fn is_of_bytes(&self) -> bool {
        matches!(
            self,
            Self::Malformed { .. }
                | Self::Unsupported(_)
                | Self::Untrusted { .. }
                | Self::Mismatch { .. }
                | Self::Corrupt { .. }
        )
    }

    /// A second line: what to do about it, where that is not obvious from the first.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Internal(_) => Some("this is a bug in reflash; please report it"),
            // More tries were of no use, and the cause says what would be.
            Self::Network { attempts: 1, .. } => None,
            Self::Network { .. } => Some("run the same command again when the network is better"),
            Self::Changed { .. } => Some("someone replaced the bundle while it was being read"),
            Self::DownloadLimit { .. } => Some("allow more with --max-download, or name a seed"),
            Self::NotABundle { looks_like, .. } if *looks_like == HTML => {
                Some("is there a login page in the way, or a link to a page about the file?")
            }
            Self::NotABundle { looks_like, .. } if looks_like.contains("image") => {
                Some("reflash pack makes a bundle of an image, as Rugix's bundler does")
            }
            Self::BundleFile { source, path, .. }
                if source.kind() == io::ErrorKind::NotFound && path.as_os_str() != "-" =>
            {
                Some("a URL begins with http:// or https://")
            }
            Self::Mismatch {
                subject: Subject::Header,
                ..
            } => Some("the bundle is not the one that --bundle-hash names"),
            Self::Untrusted { .. } => Some("`reflash inspect` tells who signed it"),
            Self::TargetTooSmall { .. } => Some("install to a larger partition or file"),
            Self::TargetIo { source, .. } if source.kind() == io::ErrorKind::StorageFull => {
                Some("free space where the target file lies")
            }
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Internal(invariant) => write!(f, "internal fault: {invariant}"),
            Self::Usage(message) => f.write_str(message),
            Self::Network {
                url,
                range,
                attempts,
                cause,
            } => {
                write!(f, "cannot fetch {url}")?;
                if let Some(range) = range {
                    write!(f, " bytes {}..{}", range.start, range.end)?;
                }
                let tries = if *attempts == 1 { "try" } else { "tries" };
                write!(f, " after {attempts} {tries}: {cause}")
            }
            Self::DownloadLimit { url, cause } => write!(f, "download of {url} stopped: {cause}"),
            Self::Refused { url, cause } => write!(f, "cannot get bundle {url}: {cause}"),
            Self::Changed {
                url,
                what,
                was,
                now,
            } => write!(
                f,
                "bundle changed on the server: {what} of {url} was {was}, now {now}"
            ),
            Self::BundleFile {
                path,
                operation,
                source,
            } => write!(f, "cannot {operation} bundle {}: {source}", path.display()),
            Self::NotABundle {
                location,
                looks_like,
            } => write!(
                f,
                "{location} is no Rugix bundle: it looks like {looks_like}"
            ),
            Self::Malformed { offset, reason } => {
                write!(f, "malformed bundle: {reason}, at offset {offset}")
            }
            Self::Unsupported(what) => write!(f, "unsupported bundle: {what}"),
            Self::Untrusted { reason } => write!(f, "the bundle is not trusted: {reason}"),
            Self::Mismatch {
                subject,
                expected,
                found,
            } => write!(
                f,
                "digest of {subject} does not match: expected {expected}, found {found}"
            ),
            Self::Corrupt {
                subject,
                range,
                reason,
            } => write!(
                f,
                "cannot decompress {subject}, bytes {}..{} of the bundle: {reason}",
                range.start, range.end
            ),
            Self::Target { path, reason } => {
                write!(f, "cannot use target {}: {reason}", path.display())
            }
            Self::TargetTooSmall { path, size, needed } => write!(
                f,
                "target {} is too small: it has {size} bytes, the payload needs {needed} at least",
                path.display()
            ),
            Self::TargetIo {
                path,
                operation,
                offset,
                source,
            } => write!(
                f,
                "cannot {operation} target {} at offset {offset}: {source}",
                path.display()
            ),
            Self::Differs {
                path,
                regions,
                written,
            } => {
                let path = path.display();
                if *written {
                    write!(
                        f,
                        "target {path} does not give back what was written, twice: "
                    )?;
                } else {
                    write!(f, "target {path} differs from the image: ")?;
                }
                write_regions(f, regions)
            }
            Self::Output { path, source } => {
                write!(f, "cannot write {}: {source}", path.display())
            }
            Self::Input { path, source } => write!(f, "cannot read {}: {source}", path.display()),
        }
    }
}

/// Names the first of some regions, and how many more there are.
fn write_regions(f: &mut fmt::Formatter<'_>, regions: &[Range<u64>]) -> fmt::Result {
    f.write_str("bytes ")?;
    for (number, region) in regions.iter().take(MAX_REGIONS).enumerate() {
        let comma = if number > 0 { ", " } else { "" };
        write!(f, "{comma}{}..{}", region.start, region.end)?;
    }
    match regions.len().saturating_sub(MAX_REGIONS) {
        0 => Ok(()),
        more => write!(f, " and {more} regions more"),
    }
}

// No `source()`: every cause already stands in the one line, which is all that a person sees.
impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_names_its_operand() {
        let network = Error::Network {
            url: "http://host/b".into(),
            range: Some(5..9),
            attempts: 6,
            cause: "connection refused".into(),
        };
        assert_eq!(
            network.to_string(),
            "cannot fetch http://host/b bytes 5..9 after 6 tries: connection refused"
        );
        assert_eq!(network.class().exit_code(), 3);
        let small = Error::TargetTooSmall {
            path: "/dev/mmcblk0p2".into(),
            size: 10,
            needed: 11,
        };
        assert_eq!(
            small.to_string(),
            "target /dev/mmcblk0p2 is too small: it has 10 bytes, the payload needs 11 at least"
        );
        assert_eq!(small.class().exit_code(), 5);
    }
}
