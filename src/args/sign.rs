//! The options of `reflash sign`.
//!
//! What they mean is in [`crate::sign`]; here they are checked.

use std::path::PathBuf;
use std::sync::Arc;

use argh::{ArgsInfo, FromArgs};

use super::common;
use super::Command;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::sign::{Options, Task};

/// Sign a bundle, with a signature that openssl makes: no key is ever seen here.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "sign",
    example = "reflash sign update.rugixb --metadata to-sign\nopenssl cms -sign -in to-sign -signer cert.pem -inkey key.pem -outform DER \\\n    -nosmimecap -nodetach -binary -out signature\nreflash sign update.rugixb --signature signature --output signed.rugixb",
    note = "The bundle hash stays the same. Signatures that the bundle has are kept."
)]
pub(super) struct Arguments {
    /// the bundle: a file
    #[argh(positional)]
    bundle: PathBuf,

    /// write what is to be signed to this file
    #[argh(option)]
    metadata: Option<PathBuf>,

    /// a CMS signature of it, in DER, to be added; repeatable
    #[argh(option)]
    signature: Vec<PathBuf>,

    /// the signed bundle to write; it may be the bundle itself
    #[argh(option, short = 'o')]
    output: Option<PathBuf>,

    /// PEM file with roots of which one must accept the result; repeatable
    #[argh(option)]
    root_cert: Vec<PathBuf>,
}

pub(super) fn sign(arguments: Arguments) -> Result<Command> {
    let task =
        match (arguments.metadata, arguments.signature, arguments.output) {
            (Some(metadata), signatures, None) if signatures.is_empty() => Task::Prepare(metadata),
            (None, signatures, Some(output)) if !signatures.is_empty() => {
                Task::Attach { signatures, output }
            }
            _ => return Err(Error::Usage(
                "give --metadata FILE for what is to be signed, or --signature FILE and --output \
                 FILE to add what was"
                    .to_owned(),
            )),
        };
    let roots = common::load_roots(&arguments.root_cert, Clock::new(None))?;
    Ok(Command::Sign(Box::new(Options {
        bundle: arguments.bundle,
        task,
        roots: roots.map(Arc::new),
    })))
}
