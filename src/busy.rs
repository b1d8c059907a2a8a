//! Who uses a device or file, as far as /proc and /sys tell: mounts, swap, other devices, programs.
//!
//! All of it is for refusing, and for saying what is in the way. Without /proc and /sys the
//! exclusive open of a block device still notices that it is in use, it only cannot say by whom.
//! Nothing here changes anything.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Bytes at the beginning of a disk that hold its partition table, for sectors up to 4 KiB.
pub(crate) const TABLE_SIZE: usize = 8192;

/// Most devices below a file system that are followed: a stack is a few levels high.
const MAX_STACK: usize = 64;

/// Major and minor number as /proc and /sys write them.
fn numbers(device: u64) -> String {
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & 0xffff_f000);
    let minor = (device & 0xff) | ((device >> 12) & 0xffff_ff00);
    format!("{major}:{minor}")
}

fn folder_of(numbers: &str) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{numbers}"))
}

/// A one-line file, such as an attribute in /sys.
fn line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim_end().to_owned())
}

fn entries(folder: impl AsRef<Path>) -> impl Iterator<Item = fs::DirEntry> {
    fs::read_dir(folder).into_iter().flatten().flatten()
}

/// The numbers of the disk that a partition is on.
fn disk_of(folder: &Path) -> Option<String> {
    folder.join("partition").exists().then_some(())?;
    line(fs::canonicalize(folder).ok()?.parent()?.join("dev"))
}

/// Numbers and folders of the partitions of a disk.
fn partitions(folder: &Path) -> Vec<(String, PathBuf)> {
    let parts = entries(folder).filter(|entry| entry.path().join("partition").exists());
    parts
        .filter_map(|part| Some((line(part.path().join("dev"))?, part.path())))
        .collect()
}

/// How a device that is read-only becomes writable, if it is.
pub(crate) fn read_only(device: u64) -> Option<String> {
    let folder = folder_of(&numbers(device));
    (line(folder.join("ro"))? == "1").then_some(())?;
    let folder = fs::canonicalize(&folder).unwrap_or(folder);
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    // The boot areas of an eMMC are protected by the driver, on top of the usual flag.
    let force = folder.join("force_ro");
    Some(if line(&force).is_some_and(|force| force == "1") {
        format!("echo 0 > {} makes it writable", force.display())
    } else {
        format!("blockdev --setrw /dev/{name} makes it writable, unless it is write-protected")
    })
}

/// Who uses a block device, one of its partitions, or the disk that it is a partition of.
pub(crate) fn device(device: u64, path: &Path) -> Option<String> {
    let own = numbers(device);
    let folder = folder_of(&own);
    let mut parts = vec![(own, folder.clone())];
    parts.extend(partitions(&folder));
    if let Some(disk) = disk_of(&folder) {
        // Of the disk itself only: the other partitions are nobody's business.
        let folder = folder_of(&disk);
        parts.push((disk, folder));
    }
    let part_of = |numbers: &str| parts.iter().any(|(part, _)| part == numbers);
    user_of(&part_of)
        .or_else(|| {
            parts.iter().find_map(|(_, folder)| {
                let holder = entries(folder.join("holders")).next()?;
                Some(held_by(&holder.file_name().to_string_lossy()))
            })
        })
        .or_else(|| loop_on(path))
}

/// A mount or swap area on one of the devices that the caller means.
fn user_of(part_of: &dyn Fn(&str) -> bool) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounts = mounts.lines().filter_map(Mount::parse);
    // Not by number alone: that of btrfs is not the device's.
    let mut mounts = mounts.filter(|mount| {
        part_of(&mount.numbers) || mount.source_numbers().is_some_and(|n| part_of(&n))
    });
    if let Some(mount) = mounts.next() {
        return Some(format!("mounted at {}", mount.point));
    }
    let swaps = swaps();
    let swap = swaps.iter().find(|swap| {
        fs::metadata(swap)
            .is_ok_and(|m| m.file_type().is_block_device() && part_of(&numbers(m.rdev())))
    });
    swap.map(|swap| format!("swap on {swap}"))
}

fn swaps() -> Vec<String> {
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let paths = swaps.lines().skip(1);
    paths
        .filter_map(|line| line.split(' ').next())
        .map(unescaped)
        .collect()
}

/// A device on top, by its kernel name, with the name that people know it by and its own user.
fn held_by(name: &str) -> String {
    let folder = Path::new("/sys/class/block").join(name);
    let known = line(folder.join("dm/name")).map_or(String::new(), |known| format!(" ({known})"));
    let numbers = line(folder.join("dev")).unwrap_or_default();
    let user = user_of(&|part| part == numbers).map_or(String::new(), |user| format!(", {user}"));
    format!("held by {name}{known}{user}")
}

/// A loop device that shows a file or device.
fn loop_on(path: &Path) -> Option<String> {
    entries("/sys/block").find_map(|entry| {
        let below = line(entry.path().join("loop/backing_file"))?;
        (Path::new(&below) == path).then(|| held_by(&entry.file_name().to_string_lossy()))
    })
}

/// Who uses a regular file in a way that does not bear its being written over.
pub(crate) fn file(path: &Path) -> Option<String> {
    let swap = swaps().iter().any(|swap| Path::new(swap) == path);
    if swap {
        return Some("it is a swap file".into());
    }
    loop_on(path)
}

/// A program that has a device or file open, other than this one.
pub(crate) fn program(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    let same = |other: &fs::Metadata| {
        if metadata.file_type().is_block_device() {
            other.file_type().is_block_device() && other.rdev() == metadata.rdev()
        } else {
            (other.dev(), other.ino()) == (metadata.dev(), metadata.ino())
        }
    };
    let own = std::process::id().to_string();
    entries("/proc").find_map(|process| {
        let number = process.file_name().to_string_lossy().into_owned();
        if number == own || !number.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        entries(process.path().join("fd"))
            .any(|file| fs::metadata(file.path()).is_ok_and(|other| same(&other)))
            .then(|| {
                let name = line(process.path().join("comm")).unwrap_or_default();
                format!("{name} (process {number})")
            })
    })
}

/// The devices that a file lies on, or that a device consists of: itself, the disk of a partition,
/// what is below a device-mapper or loop device, and so on.
pub(crate) fn below(path: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut next = vec![path.to_owned()];
    while let Some(path) = next.pop() {
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        let device = if metadata.file_type().is_block_device() {
            numbers(metadata.rdev())
        } else {
            let own = numbers(metadata.dev());
            // A file system with several devices has a number of its own.
            let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
            let mut mounts = mounts.lines().filter_map(Mount::parse);
            let mount = mounts.find(|mount| mount.numbers == own);
            mount
                .and_then(|mount| mount.source_numbers())
                .unwrap_or(own)
        };
        let mut devices = vec![device];
        while let Some(device) = devices.pop() {
            if found.len() >= MAX_STACK || found.contains(&device) {
                continue;
            }
            let folder = folder_of(&device);
            found.push(device);
            devices.extend(disk_of(&folder));
            let slaves = entries(folder.join("slaves"));
            devices.extend(slaves.filter_map(|slave| line(slave.path().join("dev"))));
            next.extend(line(folder.join("loop/backing_file")).map(PathBuf::from));
        }
    }
    found
}

/// True if `path` lies on the device, or on a part of it.
pub(crate) fn lies_on(path: &Path, device: u64) -> bool {
    below(path).contains(&numbers(device))
}

/// Where the device `part` lies in the device `whole`, in bytes, if it is a partition of it.
pub(crate) fn partition_range(part: u64, whole: u64) -> Option<std::ops::Range<u64>> {
    /// The unit of /sys, whatever the device's own.
    const SECTOR: u64 = 512;
    let folder = folder_of(&numbers(part));
    (disk_of(&folder)? == numbers(whole)).then_some(())?;
    let number = |name: &str| line(folder.join(name))?.parse::<u64>().ok();
    let start = number("start")?.checked_mul(SECTOR)?;
    let size = number("size")?.checked_mul(SECTOR)?;
    Some(start..start.checked_add(size)?)
}

/// Whether the kernel should look at the partition table of a device, which begins with `start`: it
/// is a whole disk, and has partitions now or had some before.
pub(crate) fn wants_partitions(device: u64, start: &[u8; TABLE_SIZE]) -> bool {
    let folder = folder_of(&numbers(device));
    if folder.join("partition").exists() || line(folder.join("partscan")).as_deref() == Some("0") {
        return false;
    }
    !partitions(&folder).is_empty() || has_table(start)
}

fn has_table(start: &[u8; TABLE_SIZE]) -> bool {
    let gpt = [512, 4096].iter().any(|at| {
        let magic = start.get(*at..);
        magic.is_some_and(|magic| magic.starts_with(b"EFI PART"))
    });
    let signed = start.get(510..512) == Some(&[0x55, 0xaa]);
    // A boot sector of a file system is signed too, but has code where the entries would be.
    let entries = start.get(446..510).unwrap_or_default().chunks_exact(16);
    let mut entries = entries.map(|entry| (entry.first().copied(), entry.get(4).copied()));
    let plausible = entries
        .clone()
        .all(|(status, _)| matches!(status, Some(0 | 0x80)));
    gpt || (signed && plausible && entries.any(|(_, kind)| kind != Some(0)))
}

/// A line of /proc/self/mountinfo.
struct Mount {
    numbers: String,
    point: String,
    source: String,
}

impl Mount {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(' ');
        let numbers = fields.nth(2)?.to_owned();
        let point = unescaped(fields.nth(1)?);
        // Any number of optional fields, a hyphen, the type.
        let source = fields.skip_while(|field| *field != "-").nth(2)?;
        Some(Self {
            numbers,
            point,
            source: unescaped(source),
        })
    }

    /// Numbers of the device that was mounted, where it is one.
    fn source_numbers(&self) -> Option<String> {
        // Others are names: `tmpfs`, or what a file in the working directory may be called too.
        if !self.source.starts_with('/') {
            return None;
        }
        let metadata = fs::metadata(&self.source).ok()?;
        metadata
            .file_type()
            .is_block_device()
            .then(|| numbers(metadata.rdev()))
    }
}

/// A path from /proc, where space, tab, line feed and backslash stand in octal (`\\040`).
fn unescaped(path: &str) -> String {
    let escapes = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    let replace = |path: String, (octal, plain): (&str, &str)| path.replace(octal, plain);
    escapes.into_iter().fold(path.to_owned(), replace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_taken_apart() {
        let line = "36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root\\134x rw";
        let mount = Mount::parse(line).expect("a mount");
        assert_eq!(
            (&mount.numbers[..], &mount.point[..], &mount.source[..]),
            ("98:0", "/mnt 2", "/dev/root\\x")
        );
        let short = Mount::parse("36 35 8:1 / / rw - ext4 /dev/sda1 rw").expect("a mount");
        assert_eq!(short.source, "/dev/sda1");
        assert!(Mount::parse("36 35 8:1").is_none());
    }

    #[test]
    fn device_numbers_are_taken_apart() {
        assert_eq!(numbers(0x0801), "8:1");
        assert_eq!(numbers(0x10_0000 | (259 << 8) | 5), "259:261");
    }

    #[test]
    fn partition_tables_are_known_from_boot_sectors() {
        let mut start = [0; TABLE_SIZE];
        assert!(!has_table(&start));
        start[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert!(!has_table(&start), "no entry");
        start[446 + 16 + 4] = 0x83;
        assert!(has_table(&start));
        start[446] = 0x33;
        assert!(!has_table(&start), "code of a boot sector");
        start[4096..4104].copy_from_slice(b"EFI PART");
        assert!(has_table(&start));
    }
}
