//! What a bundle is to be made of: `rugix-bundle.toml`, the input of the reference's bundler, and the
//! manifest, the same as JSON in the bundle's header.
//!
//! ```toml
//! update-type = "full"                    # or "incremental"
//! hash-algorithm = "sha512-256"           # default
//!
//! [[payloads]]
//! filename = "system.img"                 # below payloads/
//! [payloads.delivery]
//! type = "slot"                           # or "execute", with handler = ["/bin/sh", "-"]
//! slot = "system"
//! [payloads.block-encoding]               # without it no block is reused
//! chunker = "casync-64"
//! hash-algorithm = "sha512-256"           # default, whatever stands above
//! deduplicate = true                      # default: false
//! compression = { type = "xz", level = 6 } # default: none; level 6
//! ```
//!
//! What is left out of the one is left out of the other. The order of fields here is that of the keys
//! of the JSON, which are a part of what the bundle hash covers. A key that is not known is refused:
//! the reference passes over it, and a bundle is made that is not what was meant (its own manual once
//! spelled `deduplicate` in another way).

use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::HashAlgorithm;
use crate::image::check_chunker;
use crate::rugix::{MAX_PAYLOADS, MAX_TEXT_SIZE};

/// Name of the file in a folder.
pub const FILE: &str = "rugix-bundle.toml";

/// Highest xz preset, and the one that is taken if none is named.
const MAX_LEVEL: u32 = 9;
const LEVEL: u32 = 6;

/// What a bundle is to be made of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Manifest {
    /// What is updated.
    pub update_type: UpdateType,
    /// Algorithm of the digests of headers and payloads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_algorithm: Option<Algorithm>,
    /// The payloads, in the order of the bundle.
    pub payloads: Vec<Payload>,
}

/// What is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateType {
    /// The system.
    Full,
    /// Only what the payloads are delivered to.
    Incremental,
}

/// A payload of a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Payload {
    /// Where it goes.
    pub delivery: Delivery,
    /// Name of its file.
    pub filename: String,
    /// How it is cut and stored; without one it is stored as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_encoding: Option<BlockEncoding>,
}

/// Where a payload goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Delivery {
    /// It is written to a slot.
    Slot {
        /// The slot's name.
        slot: String,
    },
    /// It is what a command reads.
    Execute {
        /// The command and its arguments.
        handler: Vec<String>,
    },
}

/// How a payload is cut and stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct BlockEncoding {
    /// How it is cut.
    pub chunker: Cutting,
    /// Algorithm of the digests of blocks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_algorithm: Option<Algorithm>,
    /// Whether a block that occurs several times is stored once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deduplicate: Option<bool>,
    /// How blocks are compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

impl BlockEncoding {
    /// The algorithm of the digests of blocks.
    pub fn hash(&self) -> HashAlgorithm {
        algorithm(self.hash_algorithm)
    }

    /// Whether a block that occurs several times is stored once.
    pub fn deduplicates(&self) -> bool {
        self.deduplicate.unwrap_or(false)
    }

    /// The xz preset, if blocks are compressed.
    pub fn level(&self) -> Option<u32> {
        let Compression::Xz { level } = self.compression?;
        Some(level.unwrap_or(LEVEL))
    }
}

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Compression {
    /// Each by itself with xz.
    Xz {
        /// The preset, 0 to 9.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        level: Option<u32>,
    },
}

/// A hash algorithm as the manifest spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Algorithm(pub HashAlgorithm);

impl TryFrom<String> for Algorithm {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let known = HashAlgorithm::parse(&name).map(Self);
        known.ok_or_else(|| format!("there is no hash algorithm {name:?}"))
    }
}

impl From<Algorithm> for String {
    fn from(Algorithm(hash): Algorithm) -> Self {
        // The manifest has an underscore where all other fields have a hyphen.
        hash.name().replace('-', "_")
    }
}

/// A chunker as the manifest spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cutting(pub Chunker);

impl TryFrom<String> for Cutting {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        let known = Chunker::parse(&name).map(Self);
        known.ok_or_else(|| format!("chunker {name:?} is not casync-K or fixed-K, K in KiB"))
    }
}

impl From<Cutting> for String {
    fn from(Cutting(chunker): Cutting) -> Self {
        chunker.to_string()
    }
}

/// Largest manifest.
const MAX_SIZE: u64 = 1 << 20;

/// The text of a file, and of nothing else.
fn read(path: &Path) -> io::Result<String> {
    // Looked at before it is opened: opening a FIFO would wait for a writer.
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("it is no file"));
    }
    let mut text = String::new();
    File::open(path)?
        .take(MAX_SIZE + 1)
        .read_to_string(&mut text)?;
    match text.len() as u64 {
        ..=MAX_SIZE => Ok(text),
        _ => Err(io::Error::other("it is too large to be a manifest")),
    }
}

fn algorithm(named: Option<Algorithm>) -> HashAlgorithm {
    named.map(|Algorithm(hash)| hash).unwrap_or_default()
}

impl Manifest {
    /// Reads that of a folder. The second value are the files of its payloads, in the same order.
    pub fn of_folder(folder: &Path) -> Result<(Self, Vec<PathBuf>)> {
        let path = folder.join(FILE);
        let text = read(&path).map_err(|source| Error::Input {
            path: path.clone(),
            source: match source.kind() {
                io::ErrorKind::NotFound => io::Error::new(
                    io::ErrorKind::NotFound,
                    "there is no such file: a folder is packed by what it says",
                ),
                _ => source,
            },
        })?;
        let wrong = |message: String| Error::Usage(format!("{}: {message}", path.display()));
        let manifest = Self::parse(&text).map_err(wrong)?;
        if folder.join("components").exists() {
            return Err(Error::Usage(format!(
                "{}: bundles of this program cannot hold components",
                folder.join("components").display()
            )));
        }
        let below = folder.join("payloads");
        let files = manifest.payloads.iter().map(|payload| {
            let name = &payload.filename;
            match is_below(name) {
                true => Ok(below.join(name)),
                false => Err(wrong(format!(
                    "filename {name:?} does not name a file below payloads/"
                ))),
            }
        });
        let files = files.collect::<Result<_>>()?;
        manifest.check().map_err(|error| match error {
            Error::Usage(message) => wrong(message),
            error => error,
        })?;
        Ok((manifest, files))
    }

    fn parse(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| {
            let message = error.message().lines().collect::<Vec<_>>().join(", ");
            let hint = match message.contains("`deduplication`") {
                true => "\nhint: the key is deduplicate; Rugix's bundler passes over the other one",
                false => "",
            };
            match error.span() {
                Some(at) if at != (Range { start: 0, end: 0 }) => {
                    let before = text.get(..at.start).unwrap_or_default();
                    let line = before.matches('\n').count() + 1;
                    format!("line {line}: {message}{hint}")
                }
                _ => format!("{message}{hint}"),
            }
        })
    }

    /// The algorithm of the digests of headers and payloads.
    pub fn hash(&self) -> HashAlgorithm {
        algorithm(self.hash_algorithm)
    }

    /// The text that goes into the bundle.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self).map_err(|_| Error::Internal("a manifest can be written"))
    }

    /// Refuses what no reader of ours would take.
    pub fn check(&self) -> Result<()> {
        let refuse = |message: String| Err(Error::Usage(message));
        if self.payloads.is_empty() {
            return refuse("there is no payload".to_owned());
        }
        if self.payloads.len() > MAX_PAYLOADS {
            return refuse(format!(
                "there are {} payloads, more than the {MAX_PAYLOADS} that can be installed",
                self.payloads.len()
            ));
        }
        let mut slots = Vec::new();
        let is_text = |text: &str| text.len() <= MAX_TEXT_SIZE && !text.contains('\0');
        for payload in &self.payloads {
            match &payload.delivery {
                Delivery::Slot { slot } if slot.is_empty() || !is_text(slot) => {
                    return refuse(format!("{slot:?} is no name for a slot"));
                }
                Delivery::Slot { slot } if slots.contains(&slot) => {
                    return refuse(format!("there are two payloads for slot {slot:?}"));
                }
                Delivery::Slot { slot } => slots.push(slot),
                Delivery::Execute { handler } if handler.is_empty() => {
                    return refuse(format!("no handler executes {:?}", payload.filename));
                }
                Delivery::Execute { handler } => {
                    if let Some(bad) = handler.iter().find(|text| !is_text(text)) {
                        return refuse(format!("{bad:?} is no argument of a handler"));
                    }
                }
            }
            if let Some(encoding) = &payload.block_encoding {
                check_chunker(encoding.chunker.0)?;
                if let Some(level) = encoding.level().filter(|level| *level > MAX_LEVEL) {
                    return refuse(format!(
                        "there is no xz level {level}, only 0 to {MAX_LEVEL}"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether a path stays below the folder that it is relative to.
fn is_below(path: &str) -> bool {
    let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.split('/').all(is_name) && !path.contains(['\0', '\\'])
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAYLOAD: &str = "update-type = 'full'\n[[payloads]]\nfilename = 'a'\n";

    #[test]
    fn what_is_left_out_stays_out() {
        for (toml, json) in [
            (
                "[payloads.delivery]\ntype = 'slot'\nslot = 'é\"\\n'\n",
                r#""delivery":{"type":"slot","slot":"é\"\\n"},"filename":"a""#,
            ),
            (
                "delivery = { type = 'execute', handler = ['sh', ''] }\n\
                 block-encoding = { compression = { type = 'xz' }, chunker = 'fixed-04' }\n",
                r#""delivery":{"type":"execute","handler":["sh",""]},"filename":"a","block-encoding":{"chunker":"fixed-4","compression":{"type":"xz"}}"#,
            ),
        ] {
            let manifest = Manifest::parse(&format!("{PAYLOAD}{toml}")).expect("a manifest");
            manifest.check().expect("a good one");
            assert_eq!(
                manifest.to_json().expect("JSON"),
                format!(r#"{{"update-type":"full","payloads":[{{{json}}}]}}"#)
            );
        }
        let manifest = "update-type='incremental'\nhash-algorithm='sha512_256'\npayloads=[]";
        let manifest = Manifest::parse(manifest).expect("a manifest");
        assert_eq!(
            manifest.to_json().expect("JSON"),
            r#"{"update-type":"incremental","hash-algorithm":"sha512_256","payloads":[]}"#
        );
    }

    #[test]
    fn paths_stay_below() {
        for good in ["a", "a.img", "sub/a", "...", "a..b"] {
            assert!(is_below(good), "{good}");
        }
        for bad in [
            "", "/", "/a", "..", "../a", "a/../b", "./a", "a//b", "a/", "a\\b", "a\0",
        ] {
            assert!(!is_below(bad), "{bad}");
        }
    }

    #[test]
    fn says_what_it_does_not_know() {
        let slot = "delivery = { type = 'slot', slot = 's' }\n";
        for (toml, said) in [
            ("x = 1\n", "line 4: unknown field `x`"),
            (
                "delta-encoding = { format = 'xdelta' }\n",
                "unknown field `delta-encoding`",
            ),
            (
                "delivery = { type = 'app-file', app = 'a', path = 'p' }\n",
                "line 4: unknown variant `app-file`, expected `slot` or `execute`",
            ),
            (
                "delivery = { type = 'slot', slot = 's', x = 1 }\n",
                "unknown field `x`",
            ),
            ("delivery = { type = 'slot' }\n", "missing field `slot`"),
            ("delivery = 3\n", "line 4: "),
            ("= 3\n", "line 4: "),
        ] {
            let error = Manifest::parse(&format!("{PAYLOAD}{toml}")).expect_err(toml);
            assert!(error.contains(said), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        for (encoding, said) in [
            (
                "chunker = 'casync-8', deduplication = true",
                "hint: the key is deduplicate",
            ),
            ("chunker = 'rabin-8'", "\"rabin-8\" is not casync-K"),
            ("chunker = 'casync-65535'", "casync-65535"),
            ("deduplicate = true", "missing field `chunker`"),
            (
                "chunker = 'fixed-4', hash-algorithm = 'md5'",
                "no hash algorithm \"md5\"",
            ),
            (
                "chunker = 'fixed-4', compression = { type = 'zstd' }",
                "unknown variant `zstd`, expected `xz`",
            ),
            (
                "chunker = 'fixed-4', compression = { type = 'xz', level = 10 }",
                "no xz level 10",
            ),
            (
                "chunker = 'fixed-4', compression = { type = 'xz', threads = 2 }",
                "unknown field `threads`",
            ),
        ] {
            let toml = format!("{PAYLOAD}{slot}block-encoding = {{ {encoding} }}\n");
            let checked = Manifest::parse(&toml)
                .and_then(|manifest| manifest.check().map_err(|error| error.to_string()));
            let error = checked.expect_err(encoding);
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn payloads_are_of_one_bundle() {
        let slot = |slot: &str| Payload {
            delivery: Delivery::Slot { slot: slot.into() },
            filename: "a".into(),
            block_encoding: None,
        };
        let of = |payloads: Vec<Payload>| {
            let manifest = Manifest {
                update_type: UpdateType::Full,
                hash_algorithm: None,
                payloads,
            };
            manifest.check().map_err(|error| error.to_string())
        };
        assert_eq!(of(vec![slot("a"), slot("b")]), Ok(()));
        let most: Vec<_> = (0..=MAX_PAYLOADS).map(|n| slot(&n.to_string())).collect();
        assert_eq!(of(most[1..].to_vec()), Ok(()));
        let handler = |handler: &[&str]| Payload {
            delivery: Delivery::Execute {
                handler: handler.iter().map(|&word| word.into()).collect(),
            },
            ..slot("")
        };
        for (payloads, said) in [
            (vec![], "no payload"),
            (most, "more than the 64"),
            (vec![slot("a"), slot("a")], "two payloads for slot \"a\""),
            (vec![slot("")], "no name for a slot"),
            (vec![slot(&"x".repeat(MAX_TEXT_SIZE + 1))], "no name"),
            (vec![handler(&[])], "no handler"),
            (vec![handler(&["sh", "\0"])], "no argument"),
        ] {
            let error = of(payloads).expect_err(said);
            assert!(error.contains(said), "{error}");
        }
    }
}
