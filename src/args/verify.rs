//! The options of `reflash verify`.
//!
//! What they mean is in [`crate::verify`]; here they are checked.

use std::ffi::OsString;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::common::Common;
use super::install::parse_named;
use super::{access, Command, Verify};
use crate::error::{Error, Result};
use crate::install::Targets;
use crate::verify::Options;

/// Compare block devices or files with a bundle; exit 5 if they differ.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "verify",
    example = "reflash verify http://host/update.rugixb --target /dev/mmcblk0p3 \\\n    --bundle-hash sha512-256:…"
)]
pub(super) struct Arguments {
    /// the bundle: an http or https URL, a path, or - for standard input
    #[argh(positional)]
    bundle: String,

    /// what should hold the one slot payload of the bundle: a block device or file
    #[argh(option)]
    target: Option<PathBuf>,

    /// NAME=PATH: what should hold the payload for a slot; repeat for several
    #[argh(option)]
    slot: Vec<String>,

    /// print what was found as one JSON object
    #[argh(switch)]
    json: bool,

    /// trust: none; one of the trust options is required
    #[argh(switch)]
    insecure_skip_bundle_verification: bool,
}

pub(super) fn verify(
    arguments: Arguments,
    common: &Common,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let usage = |message: &str| Err(Error::Usage(message.to_owned()));
    let targets = match (arguments.target.clone(), arguments.slot.is_empty()) {
        (Some(target), true) => Targets::One(target),
        (None, false) => Targets::Slots(parse_named("--slot", &arguments.slot)?),
        (Some(_), false) => return usage("give either --target or --slot, not both"),
        (None, true) => return usage("with what? give --target PATH, or --slot NAME=PATH"),
    };
    let trust = common.trust(arguments.insecure_skip_bundle_verification)?;
    let bundle = access::location(&arguments.bundle)?;
    let targets_and = targets.paths().into_iter().map(|path| ("target", path));
    common.check_log(targets_and.chain(bundle.file().map(|path| ("bundle", path))))?;
    Ok(Command::Verify(Box::new(Verify {
        level: common.level(),
        log: common.log.clone(),
        options: Options {
            access: access::access(common, &bundle, variable)?,
            bundle,
            trust,
            targets,
        },
        json: arguments.json,
    })))
}
