//! The options of `reflash index`.
//!
//! What they mean is in [`crate::index`]; here they are checked.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::values::{Algorithm, Cutting, Shown};
use super::{Command, Index};
use crate::error::Result;
use crate::index::Options;

/// Make the block index of an image, for --seed PATH=INDEX: a seed that has one need not be scanned.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "index",
    example = "reflash index /dev/mmcblk0p2 --output p2.rugix-block-index",
    note = "It is of use for bundles that were made with the same chunker and hash; an index that is\nout of date does no harm."
)]
pub(super) struct Arguments {
    /// the image: a file or block device
    #[argh(positional)]
    path: PathBuf,

    /// the index to write
    #[argh(option, short = 'o')]
    output: PathBuf,

    /// casync-K or fixed-K, K in KiB; default casync-64
    #[argh(option, default = "Cutting::default()")]
    chunker: Cutting,

    /// sha512-256, sha512 or sha256; default sha512-256
    #[argh(option, default = "Algorithm::default()")]
    hash: Algorithm,

    /// say on standard output what was made, as one JSON object
    #[argh(switch)]
    json: bool,

    /// auto, bar, lines, json or none; json goes to standard output; default auto
    #[argh(option, default = "Shown::Auto")]
    progress: Shown,

    /// say nothing but errors
    #[argh(switch, short = 'q')]
    quiet: bool,
}

pub(super) fn index(arguments: Arguments) -> Result<Command> {
    Ok(Command::Index(Box::new(Index {
        options: Options {
            image: arguments.path,
            output: arguments.output,
            chunker: arguments.chunker.0,
            hash: arguments.hash.0,
        },
        json: arguments.json,
        telling: arguments.progress.telling(arguments.quiet),
    })))
}
