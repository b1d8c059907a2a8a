//! The options of `reflash plan`: those of `install`, and its own.
//!
//! What they mean is in [`crate::install::planned`]; here they are checked.

use std::ffi::OsString;

use argh::{ArgsInfo, FromArgs};

use super::common::Common;
use super::values::Seconds;
use super::{install, Command, Plan};
use crate::error::Result;
use crate::install::planned::OnLink;

/// Decide everything that install would, and tell it: what is reused, what is fetched, what it takes.
/// Nothing is written.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "plan",
    example = "reflash plan http://host/update.rugixb --target /dev/mmcblk0p3 \\\n    --seed /dev/mmcblk0p2 --bundle-hash sha512-256:… --limit-rate 500k",
    note = "All options of install can be given too, so that only the word has to be exchanged.\n--limit-rate is the rate that seconds are told for."
)]
pub(super) struct Arguments {
    /// the bundle: an http or https URL, a path, or - for standard input
    #[argh(positional)]
    pub(super) bundle: String,

    /// one JSON object in place of a table: the report of install with the numbers that are
    /// expected
    #[argh(switch)]
    json: bool,

    /// round trip of the link that seconds are told for; measured if it is not given
    #[argh(option)]
    rtt: Option<Seconds>,
}

pub(super) fn plan(
    arguments: Arguments,
    install: install::Arguments,
    common: &Common,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let Command::Install(install) = install::install(install, common, variable)? else {
        return Err(crate::error::Error::Internal("an install is one"));
    };
    let rate = common.limit_rate.map(|rate| rate.0);
    Ok(Command::Plan(Box::new(Plan {
        install: install.install,
        link: OnLink {
            rate: rate.filter(|rate| *rate > 0),
            round_trip: arguments.rtt.map(|rtt| rtt.0),
        },
        json: arguments.json,
        level: install.level,
        log: install.log,
    })))
}
