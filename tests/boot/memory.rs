//! How much memory an install takes on a machine: measured there by the program itself, as the kernel
//! counts it (`VmHWM`), with an image of 1 GiB.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reflash::pack::manifest::{Algorithm, BlockEncoding, Compression};
use reflash::{pack, HashAlgorithm};

use crate::guest::{make_initramfs, Boot, Guest, Machine};
use crate::it::make_bundle::{text_image, Random};
use crate::it::server::Server;
use crate::{facts, installed, Result};

/// Of the image, in pages.
const PAGES: u64 = (1 << 30) / PAGE as u64;
const PAGE: usize = 4096;

/// So much of a page is its own; the rest is the same in all, so that they compress, and that it can be
/// unpacked in the time that there is.
const OWN: usize = 512;

/// The old image stands so many pages before its place in the new one: no block of it is right.
const SHIFT: u64 = 77;

/// Of the new image, the half that the old one has.
const COMMON: u64 = PAGES / 2;

/// What may be used beyond the budget, in bytes.
const BEYOND: u64 = 24 << 20;

/// The budgets: what `reflash.memory` says, and the bytes that this means.
const BUDGETS: [(&str, u64); 2] = [("8M", 8 << 20), ("32M", 32 << 20)];

/// It hashes 2.5 GiB and unpacks 512 MiB, on a slow machine.
const LIMIT: Duration = Duration::from_secs(1500);

/// Writes pages by their numbers.
fn write_pages(path: &Path, pages: impl Iterator<Item = u64>) -> Result<()> {
    let fail = |error| format!("cannot write {}: {error}", path.display());
    let mut file = BufWriter::new(File::create(path).map_err(fail)?);
    let mut page = text_image(PAGE, 1);
    for number in pages {
        page[..OWN].copy_from_slice(&Random::new(number).bytes(OWN));
        file.write_all(&page).map_err(fail)?;
    }
    file.flush().map_err(fail)
}

/// Installs onto a disk whose old image has half of the new one, elsewhere, and looks at the peak.
pub fn test(machine: &Machine) -> Result<()> {
    let folder = crate::temporary_folder()?;
    let path = |name: &str| folder.path().join(name);
    let (image, bundle, disk): (PathBuf, PathBuf, PathBuf) =
        (path("image"), path("bundle"), path("disk"));
    write_pages(&image, 0..PAGES)?;
    // The fastest there is for a 32-bit machine; the memory is the same.
    let encoding = BlockEncoding {
        hash_algorithm: Some(Algorithm(HashAlgorithm::Sha256)),
        compression: Some(Compression::Xz { level: Some(1) }),
        ..pack::default_encoding()
    };
    let slot = ("system".to_owned(), image.clone());
    let options = pack::Options::of_slots(vec![slot], &encoding, bundle.clone());
    let packed = pack::pack(&options).map_err(|error| error.to_string())?;
    let initramfs = path("initramfs");
    make_initramfs(&initramfs, machine, &[])?;
    let server = Server::start([("/new.rugixb", bundle)]);

    for (budget, bytes) in BUDGETS {
        // What stands behind the common half is of no use.
        write_pages(
            &disk,
            (SHIFT..COMMON).chain(2 * PAGES..3 * PAGES - COMMON + SHIFT),
        )?;
        let arguments = format!(
            "reflash.bundle=http://10.0.2.2:{}/new.rugixb reflash.target=/dev/vda reflash.hash={} \
             reflash.report=/run/report.json reflash.progress=none reflash.memory={budget}",
            server.port(),
            packed.hash,
        );
        let boot = Boot {
            initramfs: &initramfs,
            disk: &disk,
            // More than it may use, so that nothing but its own frugality keeps it small.
            memory: Some("192M"),
            processors: 2,
            arguments: &arguments,
        };
        let console = Guest::start(machine, &boot)?.finish(LIMIT)?;
        let report = installed(&console)?;
        let peak = report["peak_memory"].as_u64().unwrap_or(u64::MAX);
        let most = bytes + BEYOND;
        println!(
            "{}: 1 GiB with a budget of {budget}: peak memory {} KiB of {} KiB; {}",
            machine.name,
            peak >> 10,
            most >> 10,
            facts(&report),
        );
        if peak > most {
            return Err(format!("peak memory {peak} with a budget of {budget}"));
        }
    }
    Ok(())
}
