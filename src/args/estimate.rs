//! The options of `reflash estimate`.
//!
//! What they mean is in [`crate::estimate`]; here they are checked.

use std::path::PathBuf;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};

use super::values::{Compressed, Count, Cutting, Seconds, Size};
use super::{Command, Estimate};
use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::estimate::{Options, CHUNKERS};
use crate::install::{check_workers, WORKERS};
use crate::link::Link;

/// Tell what an update from one image to another would cost: bytes, requests and seconds, by
/// chunking, against a full download.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "estimate",
    example = "reflash estimate old.img new.img --limit-rate 500k --rtt 80ms --svg cost.svg",
    note = "Each new image is compared with the old one. What is assumed is told with the result."
)]
pub(super) struct Arguments {
    /// what the device holds: an image
    #[argh(positional)]
    old: PathBuf,

    /// what it is to be updated to; several are estimated each by itself
    #[argh(positional)]
    new: Vec<PathBuf>,

    /// casync-K or fixed-K, K in KiB; repeatable; default casync-8 to casync-128, fixed-4, fixed-64
    #[argh(option)]
    chunker: Vec<Cutting>,

    /// xz:LEVEL with level 0 to 9, or none; default xz:6
    #[argh(option, default = "Compressed(Some(6))")]
    compression: Compressed,

    /// bytes a second of the link; default 1M
    #[argh(option, default = "Size(1 << 20)")]
    limit_rate: Size,

    /// round trip of the link; default 50ms
    #[argh(option, default = "Seconds(Duration::from_millis(50))")]
    rtt: Seconds,

    /// connections, default 8
    #[argh(option, default = "Count(WORKERS)")]
    workers: Count,

    /// one JSON object in place of a table
    #[argh(switch)]
    json: bool,

    /// draw a bar chart into this file
    #[argh(option)]
    svg: Option<PathBuf>,
}

pub(super) fn estimate(arguments: Arguments) -> Result<Command> {
    let usage = |message: &str| Err(Error::Usage(message.to_owned()));
    if arguments.new.is_empty() {
        return usage("an update to what? give the old image, and at least one new one");
    }
    if arguments.limit_rate.0 == 0 {
        return usage("--limit-rate of zero never ends");
    }
    check_workers(arguments.workers.0)?;
    let mut chunkers: Vec<Chunker> = arguments.chunker.iter().map(|cutting| cutting.0).collect();
    if chunkers.is_empty() {
        chunkers = CHUNKERS
            .iter()
            .filter_map(|name| Chunker::parse(name))
            .collect();
    }
    Ok(Command::Estimate(Box::new(Estimate {
        options: Options {
            old: arguments.old,
            new: arguments.new,
            chunkers,
            compression: arguments.compression.0,
            link: Link {
                rate: Some(arguments.limit_rate.0),
                round_trip: arguments.rtt.0,
                workers: arguments.workers.0,
            },
            svg: arguments.svg,
        },
        json: arguments.json,
    })))
}
