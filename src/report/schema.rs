//! What is told at the end of a run: values, as JSON and for people.
//!
//! The names are the schema's own, which scripts depend on: keys may be added, none goes or changes
//! its meaning within a schema.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};
use crate::http::Counters;
use crate::output::{is_pipe, open_unwaiting};
use crate::terminal::size;

/// Version of the report and of the progress lines.
pub const SCHEMA: u32 = 1;

/// Counts of the blocks and bytes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks of all payloads that are known so far.
    pub total: u64,
    /// Blocks that the plans fetch.
    pub to_fetch: u64,
    /// Blocks cut out of the bundle.
    pub fetched: u64,
    /// Blocks read from seeds.
    pub seeded: u64,
    /// Blocks that already stood at their place in the target.
    pub kept: u64,
    /// Blocks that repeat an earlier one.
    pub copied: u64,
    /// Plain bytes read from seeds.
    pub bytes_seeded: u64,
    /// Plain bytes that already stood at their place.
    pub bytes_kept: u64,
    /// Plain bytes written to targets.
    pub bytes_written: u64,
    /// Bytes of bundle header and payload headers.
    pub bytes_index: u64,
    /// Bytes that the plans ask for, indexes included.
    pub bytes_to_fetch: u64,
}

impl Counts {
    pub(super) fn done(&self) -> u64 {
        self.fetched + self.seeded + self.kept + self.copied
    }

    /// As the report has them.
    pub fn blocks(&self) -> BlocksReport {
        BlocksReport {
            total: self.total,
            fetched: self.fetched,
            seeded: self.seeded,
            kept: self.kept,
            copied: self.copied,
        }
    }

    /// As the report has them; `target` is the plain size of all finished payloads.
    pub fn bytes(&self, target: u64, counters: &Counters) -> BytesReport {
        BytesReport {
            target,
            fetched: counters.bytes(),
            index: self.bytes_index,
            seeded: self.bytes_seeded,
            kept: self.bytes_kept,
            written: self.bytes_written,
        }
    }
}

/// The result of a run, schema 1.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are the schema's own
pub struct Report {
    pub schema: u32,
    pub result: &'static str,
    pub exit: u8,
    pub error: Option<String>,
    pub bundle: BundleReport,
    pub payloads: Vec<PayloadReport>,
    pub blocks: BlocksReport,
    pub bytes: BytesReport,
    pub http: HttpReport,
    pub seconds: SecondsReport,
    pub peak_memory: Option<u64>,
    pub target_touched: bool,
}

/// The bundle of a [`Report`].
#[derive(Clone, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct BundleReport {
    pub hash: Option<String>,
    pub size: Option<u64>,
}

/// A payload of a [`Report`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct PayloadReport {
    pub slot: String,
    pub target: String,
    pub size: u64,
    pub digest: String,
}

/// Block counts of a [`Report`].
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct BlocksReport {
    pub total: u64,
    pub fetched: u64,
    pub seeded: u64,
    pub kept: u64,
    pub copied: u64,
}

/// Byte counts of a [`Report`].
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct BytesReport {
    pub target: u64,
    pub fetched: u64,
    pub index: u64,
    pub seeded: u64,
    pub kept: u64,
    pub written: u64,
}

/// HTTP counts of a [`Report`].
#[derive(Clone, Copy, Debug, Serialize)]
#[allow(missing_docs)]
pub struct HttpReport {
    pub requests: u64,
    pub connections: u64,
    pub retries: u64,
}

impl HttpReport {
    /// What all clients of a run did.
    pub fn of(counters: &Counters) -> Self {
        Self {
            requests: counters.requests(),
            connections: counters.connections(),
            retries: counters.retries(),
        }
    }
}

/// Times of a [`Report`], in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[allow(missing_docs)]
pub struct SecondsReport {
    pub open: f64,
    pub seed: f64,
    pub install: f64,
    pub sync: f64,
    pub total: f64,
}

impl Report {
    /// Empties the file of a report, before anything else is done: that it cannot be written is found
    /// out now, and a run that is killed leaves nobody with what an earlier one had to say.
    pub fn begin(path: &Path) -> Result<()> {
        if is_pipe(path) {
            // Who reads it would see its end now.
            return Ok(());
        }
        File::create(path)
            .map(drop)
            .map_err(|source| Error::Output {
                path: path.to_owned(),
                source,
            })
    }

    /// Writes the report to a file as one JSON object.
    pub fn write(&self, path: &Path) -> Result<()> {
        let fail = |source| Error::Output {
            path: path.to_owned(),
            source,
        };
        let mut text = serde_json::to_string_pretty(self).map_err(|e| fail(e.into()))?;
        text.push('\n');
        let mut how = OpenOptions::new();
        let how = how.create(true).write(true).truncate(true);
        open_unwaiting(path, how)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(fail)
    }
}

/// A summary for people.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            blocks,
            bytes,
            http,
            ..
        } = self;
        let targets: Vec<_> = self.payloads.iter().map(|p| p.target.as_str()).collect();
        write!(
            f,
            "{} {} to {} in {:.2} s\n\
         blocks: {} total, {} fetched, {} seeded, {} copied, {} kept\n\
         bytes: {} fetched ({} of them index), {} seeded, {} kept",
            self.result,
            size(bytes.target),
            targets.join(", "),
            self.seconds.total,
            blocks.total,
            blocks.fetched,
            blocks.seeded,
            blocks.copied,
            blocks.kept,
            size(bytes.fetched),
            size(bytes.index),
            size(bytes.seeded),
            size(bytes.kept),
        )?;
        if http.requests > 0 {
            write!(
                f,
                "\nhttp: {} requests, {} connections, {} retries",
                http.requests, http.connections, http.retries
            )?;
        }
        Ok(())
    }
}

/// What `reflash verify` found, schema 1.
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)] // the names are the schema's own
pub struct VerifyReport {
    pub schema: u32,
    pub result: &'static str,
    pub exit: u8,
    pub error: Option<String>,
    pub bundle: BundleReport,
    pub targets: Vec<ComparedReport>,
    pub bytes_fetched: u64,
    pub http: HttpReport,
    pub seconds: f64,
}

/// A target of a [`VerifyReport`].
#[derive(Clone, Debug, Serialize)]
#[allow(missing_docs)]
pub struct ComparedReport {
    pub slot: String,
    pub target: String,
    pub size: u64,
    pub digest: String,
    pub blocks: u64,
    pub differing: u64,
    pub complete: bool,
    pub regions: Vec<Range<u64>>,
}

/// A line for each target.
impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for compared in &self.targets {
            let size = size(compared.size);
            write!(f, "{} ", compared.target)?;
            match (compared.differing, compared.complete) {
                (0, _) => f.write_str("is the image")?,
                (blocks, true) => write!(f, "differs in {blocks} of {} blocks", compared.blocks)?,
                (_, false) => f.write_str("is another image")?,
            }
            writeln!(f, ", {size} compared")?;
        }
        Ok(())
    }
}

/// Most memory this process ever had in use, in bytes; `None` without /proc.
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
}
