//! The options of `reflash inspect`.
//!
//! What they mean is in [`crate::inspect`]; here they are checked.

use std::ffi::OsString;
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use super::common::Common;
use super::{access, Command, Inspect};
use crate::error::Result;
use crate::inspect::Options;

/// Tell what a bundle is: header, signatures, payloads, blocks. Its headers alone are fetched.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "inspect",
    example = "reflash inspect http://host/update.rugixb --root-cert root.pem",
    note = "Nothing need be proven to be told of; but what --bundle-hash and --root-cert ask for\nmust hold, else the exit is 4."
)]
pub(super) struct Arguments {
    /// the bundle: an http or https URL, a path, or - for standard input
    #[argh(positional)]
    bundle: String,

    /// one JSON object in place of a table
    #[argh(switch)]
    json: bool,
}

pub(super) fn inspect(
    arguments: Arguments,
    common: &Common,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Command> {
    let bundle = access::location(&arguments.bundle)?;
    common.check_log(bundle.file().map(|path| ("bundle", path)))?;
    let given = common.roots()?;
    let must_be_signed = given.is_some();
    let roots = match given {
        Some(roots) => Some(roots),
        None => common.configured_roots()?,
    };
    Ok(Command::Inspect(Box::new(Inspect {
        options: Options {
            access: access::access(common, &bundle, variable)?,
            bundle,
            hash: common.hash()?,
            roots: roots.map(Arc::new),
            must_be_signed,
        },
        json: arguments.json,
        level: common.level(),
        log: common.log.clone(),
    })))
}
