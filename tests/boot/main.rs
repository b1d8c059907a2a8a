//! `make boot-test`: real kernels boot in an emulator, with an initramfs that holds busybox, the static
//! binary and nothing else, and install a signed bundle over HTTP onto a disk with the old image.
//!
//! For each machine: the install, looked at from outside; the installed root, booted; then the same
//! install with the power cut (the emulator killed) at a random moment, and once more, which resumes.
//! The machines have 1970 on their clocks and little memory. At last, where initramfs-tools.sh or
//! dracut.sh has made an initramfs, that one installs, and goes on to the installed root.
//!
//!     boot-test [--cut PERCENT] MACHINE=BINARY=DEBIAN …
//!     boot-test --memory MACHINE=BINARY=DEBIAN …        (memory.rs)
//!
//! MACHINE: x86_64, aarch64 or armv7; BINARY: the static binary; DEBIAN: what debian.sh made ready.

#![allow(
    clippy::cast_possible_truncation,
    unreachable_pub,
    reason = "it runs on a host, with images of some MiB, and nothing outside reads it"
)]

mod guest;
mod images;
mod memory;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use guest::{make_initramfs, Boot, Console, Guest, Machine};
use images::Images;
use it::make_bundle;
use it::make_bundle::{Bundle, Payload};
use it::make_signature::{cms, metadata, Twist, Wanted};
use it::server::{Fault, Server, When};

/// The server and the bundle maker of the integration tests; under this path their own modules are
/// found too.
#[path = "../it"]
#[allow(
    clippy::cast_possible_truncation,
    clippy::let_underscore_must_use,
    clippy::unwrap_used,
    dead_code,
    missing_docs,
    unreachable_pub,
    reason = "a toolbox of the tests, of which this needs little"
)]
mod it {
    pub mod make_bundle;
    pub mod make_signature;
    pub mod server;
}

/// Longer than any healthy boot on a machine that has more to do.
const LIMIT: Duration = Duration::from_secs(300);

/// Where the disk ends, behind the image: nothing of it may change.
const DISK_SIZE: usize = 72 << 20;
const REST: u8 = 0xa5;

/// Of what the server has sent when the power is cut, the most that may have to be fetched again: what
/// was in flight (the budget of 8 MiB), and what the guest's kernel had not written to the disk yet.
const LOST: u64 = 14 << 20;

/// What makes an initramfs where it is installed, with our parts of `cross/boot` in it.
const TOOLS: [&str; 2] = ["initramfs-tools", "dracut"];

/// How the server throttles a run whose power is cut, so that there is a middle to cut in.
const PIECE: u64 = 8 << 10;
const PAUSE: Duration = Duration::from_millis(20);

type Result<T> = std::result::Result<T, String>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("boot-test: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut words = std::env::args().skip(1).peekable();
    // Time is as random as this needs.
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut cut = 40 + u64::from(now.map_or(0, |now| now.subsec_micros())) % 55;
    if words.next_if_eq("--cut").is_some() {
        let word = words.next().unwrap_or_default();
        cut = word
            .parse()
            .map_err(|_| format!("--cut {word:?} is no number"))?;
    }
    let memory = words.next_if_eq("--memory").is_some();
    let machines: Vec<Machine> = words
        .map(|word| Machine::parse(&word))
        .collect::<Result<_>>()?;
    if machines.is_empty() {
        return Err("no machine to boot".to_owned());
    }
    for machine in &machines {
        let result = if memory {
            memory::test(machine)
        } else {
            test(machine, cut)
        };
        result.map_err(|reason| format!("{}: {reason}", machine.name))?;
    }
    Ok(())
}

fn temporary_folder() -> Result<tempfile::TempDir> {
    tempfile::Builder::new()
        .prefix("reflash-boot-")
        .tempdir()
        .map_err(|error| format!("cannot make a temporary folder: {error}"))
}

fn test(machine: &Machine, cut: u64) -> Result<()> {
    let folder = temporary_folder()?;
    let dir = folder.path();
    let images = Images::make(dir, &machine.busybox())?;
    let authority = Wanted::authority("fleet").root();
    let signer = Wanted::signer("release").by(&authority);
    let unsigned = Bundle::of(
        Payload::slot("system", images.new.clone())
            .chunker("casync-64")
            .dedup()
            .xz(1),
    );
    // The signatures stand outside of what they sign.
    let made = unsigned.make();
    let header = &made.bytes[made.header.start as usize..made.header.end as usize];
    let signature = cms(&metadata(header), &signer, &[&signer], Twist::None);
    let made = unsigned.signatures(vec![signature]).make();
    let root = ("etc/root.pem", authority.pem.as_bytes());
    make_initramfs(&dir.join("initramfs"), machine, &[root])?;
    let server = Server::start([("/new.rugixb", made.bytes.clone())]);
    let source = format!(
        "reflash.bundle=http://10.0.2.2:{}/new.rugixb reflash.target=/dev/vda reflash.progress=none",
        server.port()
    );
    let lab = Lab {
        machine,
        dir,
        images: &images,
        // Few and small buffers, all the connections: what a board with 64 MiB would be told.
        command: format!(
            "{source} reflash.root-cert=/etc/root.pem reflash.report=/run/report.json \
             reflash.workers=8 reflash.memory=8M"
        ),
        server: &server,
    };

    lab.reset_disk()?;
    let report = lab.install()?;
    lab.say(&format!(
        "installed, and right from outside: {}",
        facts(&report)
    ));
    lab.boot_installed()?;
    lab.say("the installed root booted");

    lab.reset_disk()?;
    let needed = report["bytes"]["fetched"].as_u64().unwrap_or(0);
    let sent = lab.cut_power(cut, needed)?;
    lab.say(&format!(
        "power cut at {cut} % of the install, {sent} bytes into it"
    ));
    let report = lab.install()?;
    let again = report["bytes"]["fetched"].as_u64().unwrap_or(u64::MAX);
    lab.say(&format!("the same command again: {}", facts(&report)));
    if again + sent.saturating_sub(LOST) > needed {
        return Err(format!(
            "it did not resume: {again} bytes fetched after {sent} of {needed}"
        ));
    }
    lab.boot_installed()?;
    lab.say("the installed root booted");

    for tool in TOOLS {
        let Some(initramfs) = machine.packaged(tool) else {
            continue;
        };
        lab.reset_disk()?;
        lab.boot_packaged(
            &initramfs,
            &format!("{source} reflash.hash={}", made.bundle_hash),
        )?;
        lab.say(&format!(
            "the initramfs of {tool} installed, and went on to the installed root"
        ));
    }
    Ok(())
}

/// The report of an install that went well, without anything odd in the guest.
fn installed(console: &Console) -> Result<Value> {
    let fail = |what: String| Err(format!("{what}\n--- console\n{}---", console.text()));
    // The clock is what the test says it is.
    match console
        .fact("clock")
        .and_then(|clock| clock.parse::<u64>().ok())
    {
        Some(0..=864_000) => {}
        other => return fail(format!("the clock is not in 1970: {other:?}")),
    }
    if let Some(what) = console.fact("unexpected") {
        return fail(format!("unexpected in the guest: {what}"));
    }
    if console.fact("exit") != Some("0") {
        return fail(format!(
            "reflash-boot ended with {:?}",
            console.fact("exit")
        ));
    }
    let Some(Ok(report)) = console.fact("report").map(serde_json::from_str::<Value>) else {
        return fail("no report".to_owned());
    };
    if report["result"] != "installed" {
        return fail(format!("the result is {}", report["result"]));
    }
    Ok(report)
}

/// What a report says in short.
fn facts(report: &Value) -> String {
    let number = |pointer| {
        report
            .pointer(pointer)
            .and_then(Value::as_f64)
            .unwrap_or(f64::NAN)
    };
    format!(
        "{} of {} blocks kept, {} bytes fetched, {:.1} s, peak memory {} KiB",
        number("/blocks/kept"),
        number("/blocks/total"),
        number("/bytes/fetched"),
        number("/seconds/total"),
        number("/peak_memory") / 1024.0,
    )
}

struct Lab<'a> {
    machine: &'a Machine,
    dir: &'a Path,
    images: &'a Images,
    command: String,
    server: &'a Server,
}

impl Lab<'_> {
    fn say(&self, what: &str) {
        println!("{}: {what}", self.machine.name);
    }

    /// The old image, and bytes behind it that are nobody's business.
    fn reset_disk(&self) -> Result<()> {
        let mut disk = self.images.old.clone();
        disk.resize(DISK_SIZE, REST);
        images::write(&self.disk(), &disk)
    }

    fn disk(&self) -> std::path::PathBuf {
        self.dir.join("disk")
    }

    /// Starts the machine with the test's own initramfs.
    fn start(&self, arguments: &str) -> Result<Guest> {
        let boot = Boot {
            initramfs: &self.dir.join("initramfs"),
            disk: &self.disk(),
            memory: None,
            processors: 1,
            arguments,
        };
        Guest::start(self.machine, &boot)
    }

    /// Boots, installs, turns off; then looks at the disk from outside. Returns the report.
    fn install(&self) -> Result<Value> {
        self.server.clear_rules();
        self.server.reset_log();
        let console = self.start(&self.command)?.finish(LIMIT)?;
        let report = installed(&console)?;
        self.check_disk(&console)?;
        self.server.assert_well_behaved_client();
        Ok(report)
    }

    fn check_disk(&self, console: &Console) -> Result<()> {
        let fail = |what: &str| Err(format!("{what}\n--- console\n{}---", console.text()));
        let disk = images::read(&self.disk())?;
        let (image, rest) = disk.split_at(self.images.new.len());
        if image != self.images.new {
            let at = image.iter().zip(&self.images.new).position(|(a, b)| a != b);
            return fail(&format!("the disk is not the new image, first at {at:?}"));
        }
        if rest.iter().any(|byte| *byte != REST) {
            return fail("bytes behind the image have changed");
        }
        Ok(())
    }

    /// Without a bundle the initramfs goes on to the root on the disk.
    fn boot_installed(&self) -> Result<()> {
        expect_new_root(&self.start("")?.finish(LIMIT)?)
    }

    /// One boot: its initramfs brings the network up, installs, and mounts and starts the new root.
    fn boot_packaged(&self, initramfs: &Path, arguments: &str) -> Result<()> {
        self.server.clear_rules();
        self.server.reset_log();
        let boot = Boot {
            initramfs,
            disk: &self.disk(),
            // It has all the drivers that a machine could need.
            memory: Some("256M"),
            processors: 1,
            arguments: &format!("root=/dev/vda ro ip=dhcp {arguments}"),
        };
        let console = Guest::start(self.machine, &boot)?.finish(LIMIT)?;
        expect_new_root(&console)?;
        self.check_disk(&console)
    }

    /// Kills the emulator when so much of the bundle has been sent. Returns how many bytes that was.
    fn cut_power(&self, percent: u64, needed: u64) -> Result<u64> {
        self.server.reset_log();
        self.server.fault(
            When::Always,
            Fault::Drip {
                bytes: PIECE,
                every: PAUSE,
            },
        );
        let mut guest = self.start(&self.command)?;
        while self.server.body_bytes() < needed * percent / 100 {
            if !guest.is_running() {
                let console = guest.finish(LIMIT)?;
                return Err(format!(
                    "it ended before the power was cut\n{}",
                    console.text()
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        guest.cut();
        let disk = images::read(&self.disk())?;
        if disk.iter().take(4096).any(|byte| *byte != 0) {
            return Err("after the power cut the disk has its beginning".to_owned());
        }
        Ok(self.server.body_bytes())
    }
}

fn expect_new_root(console: &Console) -> Result<()> {
    if console.fact("root") == Some(images::NEW_RELEASE) {
        return Ok(());
    }
    Err(format!(
        "the installed root did not boot\n--- console\n{}---",
        console.text()
    ))
}
