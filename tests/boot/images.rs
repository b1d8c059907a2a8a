//! Two releases of a root file system with the same busybox, and files that differ in part. Made with
//! mke2fs, which needs no root for it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::it::make_bundle::{random_image, Hash};
use crate::Result;

/// What the new root says when it boots.
pub const NEW_RELEASE: &str = "release 2";

/// Of an image, in bytes.
const SIZE: u64 = 64 << 20;

/// The files of a release beside its programs: so many, of so many bytes that do not compress.
const FILES: u64 = 48;
const FILE_SIZE: usize = 1 << 20;

/// Of these, so many are the same in both releases.
const COMMON: u64 = 16;

const INIT: &str = include_str!("root-init");

/// The raw images.
pub struct Images {
    pub old: Vec<u8>,
    pub new: Vec<u8>,
}

impl Images {
    pub fn make(dir: &Path, busybox: &Path) -> Result<Self> {
        Ok(Self {
            old: image(dir, busybox, "release 1", 1)?,
            new: image(dir, busybox, NEW_RELEASE, 2)?,
        })
    }
}

fn image(dir: &Path, busybox: &Path, release: &str, number: u64) -> Result<Vec<u8>> {
    let root = dir.join(release);
    for folder in ["bin", "sbin", "dev", "etc", "proc", "run", "sys"] {
        let folder = root.join(folder);
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    write_program(&root.join("bin/busybox"), &read(busybox)?)?;
    symlink("busybox", root.join("bin/sh")).map_err(|error| format!("bin/sh: {error}"))?;
    write_program(&root.join("sbin/init"), INIT.as_bytes())?;
    write(&root.join("release"), release.as_bytes())?;
    // Without these, systemd takes it for no root: this file, and /run.
    write(&root.join("etc/os-release"), b"ID=test\n")?;
    let mut sums = format!("{}  release\n", sum(release.as_bytes()));
    for file in 0..FILES {
        let seed = if file < COMMON {
            file
        } else {
            100 * number + file
        };
        let bytes = random_image(FILE_SIZE, seed);
        write(&root.join(format!("file{file}")), &bytes)?;
        sums += &format!("{}  file{file}\n", sum(&bytes));
    }
    write(&root.join("sums"), sums.as_bytes())?;

    let image = dir.join(format!("{release}.img"));
    let mut command = Command::new("mke2fs");
    command.args([
        "-q",
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "^has_journal",
        "-m",
        "0",
        "-d",
    ]);
    command
        .arg(&root)
        .arg(&image)
        .arg(format!("{}k", SIZE >> 10));
    let output = command
        .env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin")
        .output();
    let output = output.map_err(|error| format!("mke2fs (e2fsprogs): {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "mke2fs: {}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    read(&image)
}

fn sum(bytes: &[u8]) -> String {
    let text = Hash::Sha256.digest_string(bytes);
    text.trim_start_matches("sha256:").to_owned()
}

pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn write_program(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;

    write(path, bytes)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("cannot make {} executable: {error}", path.display()))
}
