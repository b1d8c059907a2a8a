//! The options of `reflash pack`.
//!
//! What they mean is in [`crate::pack`]; here they are checked.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::Command;
use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::hash::HashAlgorithm;
use crate::pack;

/// Make a bundle of one image.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "pack",
    example = "reflash pack root.img --output update.rugixb"
)]
pub(super) struct Arguments {
    /// the image: a file or block device
    #[argh(positional)]
    image: PathBuf,

    /// the bundle to write
    #[argh(option, short = 'o')]
    output: PathBuf,

    /// slot that the payload is for, default system
    #[argh(option, default = "\"system\".to_owned()")]
    slot: String,

    /// casync-K or fixed-K, K in KiB; default casync-64
    #[argh(option, default = "\"casync-64\".to_owned()")]
    chunker: String,

    /// sha512-256, sha512 or sha256; default sha512-256
    #[argh(option, default = "\"sha512-256\".to_owned()")]
    hash: String,

    /// xz:LEVEL with level 0 to 9, or none; default xz:6
    #[argh(option, default = "\"xz:6\".to_owned()")]
    compression: String,

    /// store repeated blocks again
    #[argh(switch)]
    no_deduplicate: bool,
}

pub(super) fn pack(arguments: Arguments) -> Result<Command> {
    let usage = |option: &str, value: &str, what: &str| {
        Error::Usage(format!("--{option} {value:?} is not {what}"))
    };
    let compression = match arguments.compression.as_str() {
        "none" => None,
        text => {
            let level = text
                .strip_prefix("xz:")
                .and_then(|level| level.parse().ok());
            let known = level.filter(|level| *level <= 9);
            Some(known.ok_or_else(|| {
                usage(
                    "compression",
                    text,
                    "none or xz:LEVEL with a level from 0 to 9",
                )
            })?)
        }
    };
    Ok(Command::Pack(Box::new(pack::Options {
        chunker: Chunker::parse(&arguments.chunker)
            .ok_or_else(|| usage("chunker", &arguments.chunker, "casync-K or fixed-K"))?,
        hash: HashAlgorithm::parse(&arguments.hash)
            .ok_or_else(|| usage("hash", &arguments.hash, "sha512-256, sha512 or sha256"))?,
        image: arguments.image,
        output: arguments.output,
        slot: arguments.slot,
        compression,
        deduplicate: !arguments.no_deduplicate,
        incremental: false,
    })))
}
