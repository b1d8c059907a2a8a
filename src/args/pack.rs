//! The options of `reflash pack`.
//!
//! What they mean is in [`crate::pack`]; here they are checked.

use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::values::{Algorithm, Compressed, Cutting};
use super::Command;
use crate::error::Result;
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
    #[argh(option, default = "Cutting::default()")]
    chunker: Cutting,

    /// sha512-256, sha512 or sha256; default sha512-256
    #[argh(option, default = "Algorithm::default()")]
    hash: Algorithm,

    /// xz:LEVEL with level 0 to 9, or none; default xz:6
    #[argh(option, default = "Compressed(Some(6))")]
    compression: Compressed,

    /// an xz dictionary no larger than a block: other installers then need less memory, and the
    /// bundle is not byte for byte that of Rugix's bundler
    #[argh(switch)]
    fit_dictionary: bool,

    /// store repeated blocks again
    #[argh(switch)]
    no_deduplicate: bool,
}

pub(super) fn pack(arguments: Arguments) -> Result<Command> {
    Ok(Command::Pack(Box::new(pack::Options {
        chunker: arguments.chunker.0,
        hash: arguments.hash.0,
        image: arguments.image,
        output: arguments.output,
        slot: arguments.slot,
        compression: arguments.compression.0,
        fit_dictionary: arguments.fit_dictionary,
        deduplicate: !arguments.no_deduplicate,
        incremental: false,
    })))
}
