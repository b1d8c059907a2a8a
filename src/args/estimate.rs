//! The options of `reflash estimate`.
//!
//! What they mean is in [`crate::estimate`]; here they are checked.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use argh::{ArgsInfo, FromArgs};

use super::values::{Compressed, Count, Cutting, Seconds, Shown, Size};
use super::{Command, Estimate};
use crate::chunker::Chunker;
use crate::error::{Error, Result};
use crate::estimate::{Options, CHUNKERS};
use crate::install::{check_workers, WORKERS};
use crate::link::Link;
use crate::remote::Location;

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
    /// what the device holds: an image, or the bundle that was installed
    #[argh(positional)]
    old: PathBuf,

    /// what it is to be updated to, an image or a bundle; several are estimated each by itself
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

    /// auto, bar, lines, json or none; json goes to standard output; default auto
    #[argh(option, default = "Shown::Auto")]
    progress: Shown,

    /// say nothing but the estimate and errors
    #[argh(switch, short = 'q')]
    quiet: bool,
}

pub(super) fn estimate(
    arguments: Arguments,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let usage = |message: &str| Err(Error::Usage(message.to_owned()));
    if arguments.new.is_empty() {
        return Err(Error::Usage(format!(
            "an update of {} to what? give at least one new image or bundle",
            arguments.old.display()
        )));
    }
    for path in arguments.new.iter().chain([&arguments.old]) {
        if let Location::Url(url) = Location::parse(&path.to_string_lossy()) {
            return Err(Error::Usage(format!(
                "{url} is a URL, and all of the files is read: download it first, or ask reflash plan"
            )));
        }
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
            scratch: scratch(variable),
        },
        json: arguments.json,
        telling: arguments.progress.telling(arguments.quiet),
    })))
}

/// Where large files go that need not survive: what is meant for small ones is memory on many a system.
fn scratch(variable: &dyn Fn(&str) -> Option<OsString>) -> PathBuf {
    let named = variable("TMPDIR").map(PathBuf::from);
    let mut folders = named.into_iter().chain([PathBuf::from("/var/tmp")]);
    let folder = folders.find(|folder| folder.is_dir());
    folder.unwrap_or_else(std::env::temp_dir)
}
