//! The options of `reflash install`.
//!
//! What they mean is in [`crate::install`]; here they are checked.

use std::ffi::OsString;
use std::path::PathBuf;

use argh::{ArgsInfo, FromArgs};

use super::common::Common;
use super::values::{Count, Shown, Size};
use super::{access, Command, Install};
use crate::error::{Error, Result};
use crate::install::{check_names, Targets, MEMORY, WORKERS};
use crate::seed;

/// Install a bundle onto block devices or files.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "install",
    example = "reflash install http://host/update.rugixb --target /dev/mmcblk0p3 \\\n    --seed /dev/mmcblk0p2 --bundle-hash sha512-256:…",
    note = "Benchmarking: --workers 1 --no-merge works as sequential installers do, one block\na request; --no-merge is good for nothing else."
)]
pub(super) struct Arguments {
    /// the bundle: an http or https URL, a path, or - for standard input
    #[argh(positional)]
    bundle: String,

    /// where the one slot payload of the bundle goes: a block device or file
    #[argh(option)]
    target: Option<PathBuf>,

    /// NAME=PATH: where the payload for a slot goes; repeat for several
    #[argh(option)]
    slot: Vec<String>,

    /// PATH or PATH=INDEX: device or file whose blocks may be reused, with a prepared block index
    /// (.rugix-block-index) or scanned; repeatable
    #[argh(option)]
    seed: Vec<String>,

    /// do not reuse what the target itself holds
    #[argh(switch)]
    no_target_seed: bool,

    /// read the target back from the medium after the last sync, and compare it
    #[argh(switch)]
    verify: bool,

    /// FILE, or NAME=FILE with --slot: where the block index of what was installed goes, for the next
    /// --seed PATH=INDEX; repeatable
    #[argh(option)]
    write_index: Vec<String>,

    /// discard what stands where the image goes before the first write, unless it can be reused
    #[argh(switch)]
    discard: bool,

    /// trust: none; one of the trust options is required
    #[argh(switch)]
    insecure_skip_bundle_verification: bool,

    /// accept a payload without block index: nothing can be reused, nothing is checked before the
    /// end
    #[argh(switch)]
    insecure_allow_missing_block_index: bool,

    /// connections, default 8
    #[argh(option, default = "Count(WORKERS)")]
    workers: Count,

    /// budget for bytes in flight, default 32M
    #[argh(option, default = "Size(MEMORY)")]
    memory: Size,

    /// write to a device that is mounted or held; skips no integrity check
    #[argh(switch)]
    force: bool,

    /// write the first block in its turn, not last
    #[argh(switch)]
    no_hold_back: bool,

    /// benchmarking: ask for each block by itself
    #[argh(switch)]
    no_merge: bool,

    /// auto, bar, lines, json or none; json goes to standard output; default auto
    #[argh(option, default = "Shown::Auto")]
    progress: Shown,

    /// write the final report to this file as one JSON object
    #[argh(option)]
    report: Option<PathBuf>,
}

pub(super) fn install(
    arguments: Arguments,
    common: &Common,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let usage = |message: &str| Err(Error::Usage(message.to_owned()));
    let targets = match (arguments.target.clone(), arguments.slot.is_empty()) {
        (Some(target), true) => Targets::One(target),
        (None, false) => Targets::Slots(parse_named("--slot", &arguments.slot)?),
        (Some(_), false) => return usage("give either --target or --slot, not both"),
        (None, true) => return usage("where to? give --target PATH, or --slot NAME=PATH"),
    };
    let write_index = match (&targets, arguments.write_index.as_slice()) {
        (_, []) => None,
        (Targets::One(_), [path]) => Some(Targets::One(path.into())),
        (Targets::One(_), _) => return usage("--write-index: there is one target, so one index"),
        (Targets::Slots(_), indexes) => {
            Some(Targets::Slots(parse_named("--write-index", indexes)?))
        }
    };
    let trust = common.trust(arguments.insecure_skip_bundle_verification)?;
    let bundle = access::location(&arguments.bundle)?;
    let access = access::access(common, &bundle, variable)?;
    let mut install = crate::install::Install::new(bundle, trust, targets)
        .access(access)
        .seeds(arguments.seed.iter().map(|text| parse_seed(text)))
        .target_seed(!arguments.no_target_seed)
        .verify(arguments.verify)
        .discard(arguments.discard)
        .allow_missing_index(arguments.insecure_allow_missing_block_index)
        .workers(arguments.workers.0)
        .memory(arguments.memory.0)
        .force(arguments.force)
        .hold_back(!arguments.no_hold_back)
        .merge(!arguments.no_merge);
    if let Some(files) = write_index {
        install = install.write_index(files);
    }
    install.check()?;
    for (option, path) in [("--report", &arguments.report), ("--log", &common.log)] {
        if let Some(path) = path {
            install.check_output(option, path)?;
        }
    }
    Ok(Command::Install(Box::new(Install {
        install,
        report: arguments.report,
        progress: arguments.progress.mode(common.quiet),
        level: common.level(),
        log: common.log.clone(),
    })))
}

/// Values of the form `NAME=PATH`, each name once.
pub(super) fn parse_named(option: &str, slots: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let mut parsed: Vec<(String, PathBuf)> = Vec::new();
    for slot in slots {
        let (name, path) = match slot.split_once('=') {
            Some((name, path)) if !name.is_empty() && !path.is_empty() => (name, path),
            _ => return Err(Error::Usage(format!("{option} {slot:?} is not NAME=PATH"))),
        };
        parsed.push((name.to_owned(), PathBuf::from(path)));
    }
    check_names(option, &parsed)?;
    Ok(parsed)
}

/// `PATH` or `PATH=INDEX`. A path may hold a `=` itself: what exists as a whole is a path.
fn parse_seed(text: &str) -> seed::Spec {
    let whole = PathBuf::from(text);
    match text.rsplit_once('=') {
        Some((path, index)) if !index.is_empty() && !whole.exists() => seed::Spec {
            path: PathBuf::from(path),
            index: Some(PathBuf::from(index)),
        },
        _ => seed::Spec {
            path: whole,
            index: None,
        },
    }
}
