//! Emulated machines: what they boot, how they are started, what their consoles say.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::images::read;
use crate::Result;

/// What the initramfs needs of the kernel's modules; what they depend on comes with them. Those that
/// are built in are not missed.
const MODULES: [&str; 6] = [
    "virtio_pci",
    "virtio_mmio",
    "virtio_net",
    "virtio_blk",
    // ext4 needs it, but does not say so as it does of others.
    "crc32c_generic",
    "ext4",
];

/// A kind of machine, the binary to test on it, and the distribution's parts for it.
pub struct Machine {
    pub name: String,
    binary: PathBuf,
    debian: PathBuf,
    kind: &'static Kind,
}

struct Kind {
    name: &'static str,
    emulator: &'static [&'static str],
    /// The least with which the distribution's kernel unpacks itself; half of it is left.
    memory: &'static str,
    console: &'static str,
    /// How a virtio device is attached.
    bus: &'static str,
}

const KINDS: [Kind; 3] = [
    Kind {
        name: "x86_64",
        emulator: &["qemu-system-x86_64", "-M", "q35,accel=tcg", "-cpu", "max"],
        memory: "96M",
        console: "ttyS0",
        bus: "pci",
    },
    Kind {
        name: "aarch64",
        emulator: &["qemu-system-aarch64", "-M", "virt", "-cpu", "cortex-a57"],
        memory: "64M",
        console: "ttyAMA0",
        bus: "device",
    },
    Kind {
        name: "armv7",
        emulator: &["qemu-system-arm", "-M", "virt", "-cpu", "cortex-a15"],
        memory: "64M",
        console: "ttyAMA0",
        bus: "device",
    },
];

impl Machine {
    /// MACHINE=BINARY=DEBIAN.
    pub fn parse(word: &str) -> Result<Self> {
        let parts: Vec<&str> = word.split('=').collect();
        let [name, binary, debian] = parts[..] else {
            return Err(format!("{word:?} is not MACHINE=BINARY=DEBIAN"));
        };
        let kind = KINDS.iter().find(|kind| kind.name == name);
        Ok(Self {
            name: name.to_owned(),
            binary: binary.into(),
            debian: debian.into(),
            kind: kind.ok_or_else(|| format!("there is no machine {name:?}"))?,
        })
    }

    pub fn busybox(&self) -> PathBuf {
        self.debian.join("bin/busybox")
    }

    /// The initramfs that a tool of the distribution's has made, if it has.
    pub fn packaged(&self, tool: &str) -> Option<PathBuf> {
        Some(self.debian.join(format!("initramfs.{tool}"))).filter(|path| path.exists())
    }

    fn kernel(&self) -> Result<PathBuf> {
        let found = walk(&self.debian.join("boot"))?;
        let kernel = found
            .into_iter()
            .find(|path| file_name(path).starts_with("vmlinuz"));
        kernel.ok_or_else(|| format!("no kernel in {}", self.debian.display()))
    }
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// All files below a folder.
fn walk(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let fail = |error| format!("cannot list {}: {error}", folder.display());
        for entry in fs::read_dir(&folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            match entry.file_type().map_err(fail)? {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// A cpio archive as kernels unpack it ("newc"), in memory.
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    const FOLDER: u32 = 0o040_755;
    const FILE: u32 = 0o100_644;
    const PROGRAM: u32 = 0o100_755;
    const LINK: u32 = 0o120_777;

    fn add(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let sizes = [content.len() as u64, 0, 0, 0, 0, name.len() as u64 + 1, 0];
        self.bytes.extend(b"070701");
        // Inode, mode, owner, group, links, time; the size, four device numbers, the name's, a sum.
        let head = [u64::from(self.entries), u64::from(mode), 0, 0, 1, 0];
        for field in head.iter().chain(&sizes) {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Makes the file of an initramfs: busybox, the binary, `reflash-boot`, modules, and `extra` files.
pub fn make_initramfs(path: &Path, machine: &Machine, extra: &[(&str, &[u8])]) -> Result<()> {
    let mut archive = Archive {
        bytes: Vec::new(),
        entries: 0,
    };
    for folder in ["bin", "dev", "etc", "lib", "proc", "run", "sys", "sysroot"] {
        archive.add(folder, Archive::FOLDER, b"");
    }
    let init = include_bytes!("init");
    let boot = include_bytes!("../../cross/boot/reflash-boot");
    archive.add("init", Archive::PROGRAM, init);
    archive.add("bin/busybox", Archive::PROGRAM, &read(&machine.busybox())?);
    archive.add("bin/sh", Archive::LINK, b"busybox");
    archive.add("bin/sleep", Archive::LINK, b"busybox");
    archive.add("bin/reflash", Archive::PROGRAM, &read(&machine.binary)?);
    archive.add("bin/reflash-boot", Archive::PROGRAM, boot);
    let mut order = String::new();
    for (name, path) in modules(&machine.debian)? {
        archive.add(&format!("lib/{name}.ko"), Archive::FILE, &read(&path)?);
        order += &name;
        order.push('\n');
    }
    archive.add("lib/order", Archive::FILE, order.as_bytes());
    for (name, content) in extra {
        archive.add(name, Archive::FILE, content);
    }
    archive.add("TRAILER!!!", 0, b"");
    crate::images::write(path, &archive.bytes)
}

/// The modules in the order in which they can be loaded.
fn modules(debian: &Path) -> Result<Vec<(String, PathBuf)>> {
    let files = walk(&debian.join("lib/modules"))?;
    let mut order: Vec<(String, PathBuf)> = Vec::new();
    // A module is taken when all that it depends on has been.
    let mut waiting: Vec<String> = MODULES
        .iter()
        .rev()
        .map(|name| (*name).to_owned())
        .collect();
    while let Some(name) = waiting.pop() {
        let known = order.iter().any(|(known, _)| *known == name);
        let file = files.iter().find(|path| {
            path.extension().is_some_and(|end| end == "ko")
                && path
                    .file_stem()
                    .is_some_and(|stem| stem.to_string_lossy().replace('-', "_") == name)
        });
        let (false, Some(file)) = (known, file) else {
            continue;
        };
        let missing: Vec<String> = depends(&read(file)?)
            .into_iter()
            .filter(|needed| !order.iter().any(|(known, _)| known == needed))
            .collect();
        if missing.is_empty() {
            order.push((name, file.clone()));
        } else {
            waiting.push(name);
            waiting.extend(missing);
        }
    }
    Ok(order)
}

/// What a module says that it depends on.
fn depends(module: &[u8]) -> Vec<String> {
    let key = b"\0depends=";
    let at = module.windows(key.len()).position(|bytes| bytes == key);
    let value = at.map_or(&[][..], |at| &module[at + key.len()..]);
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(0);
    let text = String::from_utf8_lossy(&value[..end]);
    let names = text.split(',').filter(|name| !name.is_empty());
    names.map(|name| name.replace('-', "_")).collect()
}

/// What a machine is started with.
pub struct Boot<'a> {
    pub initramfs: &'a Path,
    pub disk: &'a Path,
    /// As the emulator's option says it; else what its kind has.
    pub memory: Option<&'a str>,
    pub processors: u32,
    /// For the kernel.
    pub arguments: &'a str,
}

/// A machine that runs. Dropping it cuts its power.
pub struct Guest {
    emulator: Child,
    console: Option<JoinHandle<Vec<u8>>>,
    started: Instant,
}

impl Guest {
    pub fn start(machine: &Machine, boot: &Boot<'_>) -> Result<Self> {
        let kind = machine.kind;
        let mut command = Command::new(kind.emulator[0]);
        command
            .args(&kind.emulator[1..])
            .args(["-m", boot.memory.unwrap_or(kind.memory)])
            .args(["-smp", &boot.processors.to_string()])
            .args(["-nodefaults", "-no-reboot"])
            .args([
                "-display",
                "none",
                "-serial",
                "stdio",
                "-rtc",
                "base=1970-01-02",
            ])
            .arg("-kernel")
            .arg(machine.kernel()?)
            .arg("-initrd")
            .arg(boot.initramfs)
            .arg("-append")
            .arg(format!(
                "console={} quiet panic=-1 {}",
                kind.console, boot.arguments
            ))
            .arg("-drive")
            .arg(format!(
                "file={},format=raw,if=none,id=disk",
                boot.disk.display()
            ))
            .args(["-device", &format!("virtio-blk-{},drive=disk", kind.bus)])
            .args(["-netdev", "user,id=net"])
            .args(["-device", &format!("virtio-net-{},netdev=net", kind.bus)])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut emulator = command
            .spawn()
            .map_err(|error| format!("{}: {error}", kind.emulator[0]))?;
        let mut stream = emulator.stdout.take().ok_or("the console has no pipe")?;
        let console = thread::spawn(move || {
            let mut bytes = Vec::new();
            // After a kill there is no proper end; what came is what counts.
            drop(stream.read_to_end(&mut bytes));
            bytes
        });
        Ok(Self {
            emulator,
            console: Some(console),
            started: Instant::now(),
        })
    }

    /// Whether it has not turned itself off yet.
    pub fn is_running(&mut self) -> bool {
        matches!(self.emulator.try_wait(), Ok(None))
    }

    /// Waits until it turns itself off, at most so long. Returns what the console said.
    pub fn finish(mut self, limit: Duration) -> Result<Console> {
        while self.is_running() && self.started.elapsed() < limit {
            thread::sleep(Duration::from_millis(50));
        }
        let in_time = !self.is_running();
        let console = self.cut();
        if in_time {
            Ok(console)
        } else {
            Err(format!(
                "still on after {limit:?}\n--- console\n{}---",
                console.text()
            ))
        }
    }

    /// Cuts the power, now. What the guest had not written to the disk is lost.
    pub fn cut(&mut self) -> Console {
        // It may have ended by itself.
        drop(self.emulator.kill());
        drop(self.emulator.wait());
        let bytes = self.console.take().and_then(|thread| thread.join().ok());
        Console(String::from_utf8_lossy(&bytes.unwrap_or_default()).replace('\r', ""))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if self.console.is_some() {
            drop(self.cut());
        }
    }
}

/// What a machine said.
pub struct Console(String);

impl Console {
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What follows `BOOT name` on a line, the first time.
    pub fn fact(&self, name: &str) -> Option<&str> {
        let mut lines = self.0.lines().filter_map(|line| line.strip_prefix("BOOT "));
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    }
}
