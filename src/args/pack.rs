//! The options of `reflash pack`.
//!
//! What they mean is in [`crate::pack`]; here they are checked.

use std::path::{Path, PathBuf};

use argh::{ArgsInfo, FromArgs};

use super::install::parse_named;
use super::values::{Algorithm, Compressed, Cutting, Shown};
use super::{Command, Pack};
use crate::error::{Error, Result};
use crate::pack::{self, Options};

/// Make a bundle: of one image, of one for each slot, or of a folder as Rugix's bundler takes it.
#[derive(FromArgs, ArgsInfo, Debug)]
#[argh(
    subcommand,
    name = "pack",
    example = "reflash pack root.img --output update.rugixb\nreflash pack --slot boot=boot.img --slot system=root.img -o update.rugixb\nreflash pack folder --output update.rugixb",
    note = "A folder has rugix-bundle.toml, which says all but --fit-dictionary, and payloads/.\nThe bundle hash is printed: it is what --bundle-hash of install takes."
)]
pub(super) struct Arguments {
    /// the image, a file or block device; or a folder with rugix-bundle.toml
    #[argh(positional)]
    image: Option<PathBuf>,

    /// the bundle to write
    #[argh(option, short = 'o')]
    output: PathBuf,

    /// slot that the image is for, default system; or NAME=IMAGE in place of the image, repeatable
    #[argh(option)]
    slot: Vec<String>,

    /// casync-K or fixed-K, K in KiB; default casync-64
    #[argh(option)]
    chunker: Option<Cutting>,

    /// sha512-256, sha512 or sha256; default sha512-256
    #[argh(option)]
    hash: Option<Algorithm>,

    /// xz:LEVEL with level 0 to 9, or none; default xz:6
    #[argh(option)]
    compression: Option<Compressed>,

    /// an xz dictionary no larger than a block: other installers then need less memory, and the
    /// bundle is not byte for byte that of Rugix's bundler
    #[argh(switch)]
    fit_dictionary: bool,

    /// store repeated blocks again
    #[argh(switch)]
    no_deduplicate: bool,

    /// auto, bar, lines, json or none; json goes to standard output; default auto
    #[argh(option, default = "Shown::Auto")]
    progress: Shown,

    /// say nothing but the bundle hash and errors
    #[argh(switch, short = 'q')]
    quiet: bool,
}

pub(super) fn pack(arguments: Arguments) -> Result<Command> {
    let output = arguments.output.clone();
    let mut options = match &arguments.image {
        Some(folder) if folder.is_dir() => of_folder(&arguments, folder, output)?,
        image => Options::of_slots(
            slots(image.as_deref(), &arguments.slot)?,
            &encoding(&arguments),
            output,
        ),
    };
    options.fit_dictionary = arguments.fit_dictionary;
    Ok(Command::Pack(Box::new(Pack {
        options,
        telling: arguments.progress.telling(arguments.quiet),
    })))
}

/// What a folder says, and nothing else.
fn of_folder(arguments: &Arguments, folder: &Path, output: PathBuf) -> Result<Options> {
    let besides = [
        ("--slot", !arguments.slot.is_empty()),
        ("--chunker", arguments.chunker.is_some()),
        ("--hash", arguments.hash.is_some()),
        ("--compression", arguments.compression.is_some()),
        ("--no-deduplicate", arguments.no_deduplicate),
    ];
    if let Some((option, _)) = besides.iter().find(|(_, given)| *given) {
        return Err(Error::Usage(format!(
            "{option} is for images: of {}, rugix-bundle.toml says it",
            folder.display()
        )));
    }
    Options::of_folder(folder, output)
}

/// The slots, and the images for them.
fn slots(image: Option<&Path>, given: &[String]) -> Result<Vec<(String, PathBuf)>> {
    let usage = |message: String| Err(Error::Usage(message));
    let slots = match (image, given) {
        (Some(image), []) => vec![("system".to_owned(), image.to_owned())],
        (Some(image), [slot]) if !slot.contains('=') => vec![(slot.clone(), image.to_owned())],
        (Some(image), _) => {
            return usage(format!(
                "what is {} for? give one image and --slot NAME, or all of them as --slot NAME=IMAGE",
                image.display()
            ))
        }
        (None, []) => {
            return usage(
                "a bundle of what? give an image, --slot NAME=IMAGE for each slot, or a folder with rugix-bundle.toml"
                    .to_owned(),
            )
        }
        (None, given) => parse_named("--slot", given)?,
    };
    // They are files of one folder for who unpacks the bundle.
    for (number, (_, image)) in slots.iter().enumerate() {
        let alike = slots
            .iter()
            .take(number)
            .find(|(_, other)| other != image && other.file_name() == image.file_name());
        if let Some((_, other)) = alike {
            return usage(format!(
                "{} and {} have the same name, which the bundle would keep: rename one",
                other.display(),
                image.display()
            ));
        }
    }
    Ok(slots)
}

fn encoding(arguments: &Arguments) -> pack::manifest::BlockEncoding {
    let compression = arguments.compression.unwrap_or(Compressed(Some(6)));
    pack::encoding(
        arguments.chunker.unwrap_or_default().0,
        arguments.hash.unwrap_or_default().0,
        !arguments.no_deduplicate,
        compression.0,
    )
}
