//! What is told at the end of a run: values, as JSON and for people.
//!
//! The names are the schema's own, which scripts depend on: keys may be added, none goes or changes
//! its meaning within a schema.

use std::ops::Range;
use std::path::Path;

use serde::Serialize;

use super::{print_err, print_json};
use crate::error::{Error, Result};
use crate::http::Counters;
use crate::terminal::size;

/// Version of the report and of the progress lines.
pub const SCHEMA: u32 = 1;

/// Counts of the blocks and bytes of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Blocks of all payloads that are known so far.
    pub total: u64,
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
    /// Whether a report can be written to a file: found out before anything else is done.
    pub fn check(path: &Path) -> Result<()> {
        let open = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path);
        open.map(drop).map_err(|source| Error::Output {
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
        let text = pretty(self).map_err(|e| fail(e.into()))?;
        std::fs::write(path, text).map_err(fail)
    }
}

/// A JSON object that people can read as well, with the line's end.
pub(super) fn pretty(value: &impl Serialize) -> serde_json::Result<String> {
    serde_json::to_string(value).map(|json| indented(&json))
}

/// The same JSON with one value on a line, as serde_json's own pretty printer has it. That would be
/// all code that writes JSON a second time, 12 KB.
fn indented(json: &str) -> String {
    const STEP: &str = "  ";
    let mut text = String::new();
    let mut depth = 0;
    let (mut quoted, mut escaped) = (false, false);
    let mut characters = json.chars().peekable();
    while let Some(character) = characters.next() {
        if quoted {
            text.push(character);
            quoted = escaped || character != '"';
            escaped = character == '\\' && !escaped;
            continue;
        }
        let closed =
            characters.next_if(|next| matches!((character, *next), ('{', '}') | ('[', ']')));
        match character {
            _ if closed.is_some() => {
                text.push(character);
                text.extend(closed);
                continue;
            }
            '{' | '[' => depth += 1,
            '}' | ']' => {
                depth -= 1;
                text.push('\n');
                text.push_str(&STEP.repeat(depth));
            }
            _ => quoted = character == '"',
        }
        text.push(character);
        match character {
            '{' | '[' | ',' => {
                text.push('\n');
                text.push_str(&STEP.repeat(depth));
            }
            ':' => text.push(' '),
            _ => {}
        }
    }
    text.push('\n');
    text
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

impl VerifyReport {
    /// Says it, to a program or to people.
    pub fn print(&self, json: bool) {
        if json {
            return print_json(self);
        }
        for compared in &self.targets {
            let what = match (compared.differing, compared.complete) {
                (0, _) => "is the image".to_owned(),
                (blocks, true) => format!("differs in {blocks} of {} blocks", compared.blocks),
                (_, false) => "is another image".to_owned(),
            };
            let size = size(compared.size);
            print_err(&format!("{} {what}, {size} compared", compared.target));
        }
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

/// A summary for people.
pub(super) fn summary(report: &Report) -> String {
    let Report {
        blocks,
        bytes,
        http,
        ..
    } = report;
    let targets: Vec<_> = report.payloads.iter().map(|p| p.target.as_str()).collect();
    let mut text = format!(
        "{} {} to {} in {:.2} s\n\
         blocks: {} total, {} fetched, {} seeded, {} copied, {} kept\n\
         bytes: {} fetched ({} of them index), {} seeded, {} kept",
        report.result,
        size(bytes.target),
        targets.join(", "),
        report.seconds.total,
        blocks.total,
        blocks.fetched,
        blocks.seeded,
        blocks.copied,
        blocks.kept,
        size(bytes.fetched),
        size(bytes.index),
        size(bytes.seeded),
        size(bytes.kept),
    );
    if http.requests > 0 {
        text += &format!(
            "\nhttp: {} requests, {} connections, {} retries",
            http.requests, http.connections, http.retries
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pretty_json_is_serde_jsons() {
        let value = serde_json::json!({
            "empty": {}, "none": [], "nested": [[], [{}, 1, -2.5], {"a": {"b": [true, null]}}],
            "quoted \"{[,:]}\\": "a\\\"b\n: {", "\\": "\\\\",
        });
        for value in [value, serde_json::json!(["\""]), serde_json::json!({})] {
            let expected = serde_json::to_string_pretty(&value).expect("JSON");
            assert_eq!(pretty(&value).expect("JSON"), expected + "\n");
        }
    }
}
