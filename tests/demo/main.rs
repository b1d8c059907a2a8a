//! `make demo`: an update from its image to the board, on this machine alone.
//!
//! Makes two releases of an image, packs the new one, serves it over loopback as a slow and distant
//! server would, and installs it with the old release as the seed. It runs the commands a user
//! would, shows them, and says what the update cost. Succeeds only if the result is the new release
//! to the last byte.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use it::server::{Fault, Server, When};

/// The server of the integration tests; under this path its own modules are found too.
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
    pub mod server;
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Size of the old release.
const IMAGE_SIZE: usize = 48 * MIB;

/// What each request waits, and how fast each connection is: 16 KiB a pause is about 1 MiB/s.
const LATENCY: Duration = Duration::from_millis(40);
const PIECE: u64 = 16 * KIB as u64;
const PAUSE: Duration = Duration::from_millis(15);

fn main() -> ExitCode {
    match demo() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("demo: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn demo() -> Result<(), String> {
    let reflash = binary()?;
    let folder = tempfile::Builder::new()
        .prefix("reflash-demo-")
        .tempdir()
        .map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    let dir = folder.path();

    println!("An update of one image, all on this machine; nothing leaves it.\n");
    println!("1. Two releases of an image. The new one has some changed pages, one insertion that");
    println!("   shifts all that follows, a part that moved, and a new end.");
    let old = old_release();
    let new = new_release(&old);
    write(dir, "old.img", &old)?;
    write(dir, "new.img", &new)?;
    println!(
        "   old.img {}, new.img {}\n",
        mib(old.len() as f64),
        mib(new.len() as f64)
    );

    println!("2. Make a bundle of the new release. It prints the hash that installing asks for.");
    let started = Instant::now();
    let words = ["pack", "new.img", "--output", "new.rugixb"];
    let hash = run(&reflash, dir, &words)?;
    let hash = hash.trim();
    let bundle = dir.join("new.rugixb");
    let bundle_size = fs::metadata(&bundle)
        .map_err(|error| format!("cannot find the bundle: {error}"))?
        .len() as f64;
    println!("   {hash}");
    println!(
        "   new.rugixb {}, in {:.1} s\n",
        mib(bundle_size),
        started.elapsed().as_secs_f64()
    );

    println!(
        "3. Serve it from {} ms away, about 1 MiB/s a connection, and install it into slot-b.img.",
        LATENCY.as_millis()
    );
    let server = Server::start([("/new.rugixb", bundle)]);
    server.fault(When::Always, Fault::Delay(LATENCY));
    server.fault(
        When::Always,
        Fault::Drip {
            bytes: PIECE,
            every: PAUSE,
        },
    );
    let url = server.url("/new.rugixb");
    run(
        &reflash,
        dir,
        &[
            "install",
            &url,
            "--target",
            "slot-b.img",
            "--seed",
            "old.img",
            "--bundle-hash",
            hash,
            "--report",
            "report.json",
        ],
    )?;
    drop(server);

    let report = read(dir, "report.json")?;
    let report: Value = serde_json::from_slice(&report)
        .map_err(|error| format!("the report is no JSON: {error}"))?;
    let fact = |pointer: &str| {
        let value = report.pointer(pointer).and_then(Value::as_f64);
        value.ok_or_else(|| format!("the report has no number {pointer}: {report}"))
    };
    let fetched = fact("/bytes/fetched")?;
    println!("\n4. What it took, from the report:");
    println!(
        "   blocks       {} in all: {} fetched, {} from old.img, {} repeated",
        fact("/blocks/total")?,
        fact("/blocks/fetched")?,
        fact("/blocks/seeded")?,
        fact("/blocks/copied")?,
    );
    println!(
        "   fetched      {} of the {} of the bundle, {:.1} %",
        mib(fetched),
        mib(bundle_size),
        fetched * 100.0 / bundle_size
    );
    println!(
        "   over HTTP    {} requests on {} connections",
        fact("/http/requests")?,
        fact("/http/connections")?
    );
    println!("   time         {:.1} s", fact("/seconds/total")?);

    if read(dir, "slot-b.img")? != new {
        return Err("slot-b.img is not new.img: this is a bug, please report it".into());
    }
    println!("\nslot-b.img is new.img, byte for byte.");
    Ok(())
}

/// The program, which cargo puts one folder above its examples.
fn binary() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let beside = own.parent().and_then(Path::parent);
    let path = beside.unwrap_or(Path::new(".")).join("reflash");
    if path.is_file() {
        Ok(path)
    } else {
        Err(format!("{} is not there; run `make demo`", path.display()))
    }
}

/// Shows and runs a command in `dir`; what it says on standard output.
fn run(reflash: &Path, dir: &Path, words: &[&str]) -> Result<String, String> {
    let mut shown = format!("   $ reflash {}", words.join(" "));
    if shown.len() > 80 {
        // One option a line.
        shown = shown.replace(" --", " \\\n       --");
    }
    println!("{shown}");
    let mut command = Command::new(reflash);
    // Neither options nor proxies from outside: the demo is to be the same everywhere.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy().to_lowercase();
        if text.starts_with("reflash_") || text.ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    let output = command
        .args(words)
        .current_dir(dir)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cannot run {}: {error}", reflash.display()))?;
    if !output.status.success() {
        return Err(format!("reflash {} failed: {}", words[0], output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), String> {
    fs::write(dir.join(name), bytes).map_err(|error| format!("cannot write {name}: {error}"))
}

fn read(dir: &Path, name: &str) -> Result<Vec<u8>, String> {
    fs::read(dir.join(name)).map_err(|error| format!("cannot read {name}: {error}"))
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / MIB as f64)
}

/// A number that is the same on each run and machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit as u64).expect("below a usize")
    }

    /// Bytes as they are in compressed files.
    fn noise(&mut self, len: usize) -> Vec<u8> {
        let words = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes());
        words.take(len).collect()
    }

    /// Bytes as they are in text: words of a small vocabulary.
    fn text(&mut self, len: usize) -> Vec<u8> {
        let mut text = Vec::with_capacity(len + 16);
        while text.len() < len {
            let word = self.below(4000) as u64 * self.below(8) as u64;
            text.extend_from_slice(format!("{:x} ", word.wrapping_mul(0x9e37_79b9)).as_bytes());
        }
        text.truncate(len);
        text
    }
}

/// Files of all sizes, packed ones, texts and empty space.
fn old_release() -> Vec<u8> {
    let mut random = Random(0x7265_666c_6173_6801);
    let mut image = Vec::with_capacity(IMAGE_SIZE);
    while image.len() < IMAGE_SIZE {
        let len = (4 + random.below(300)) * KIB;
        match random.below(6) {
            0 => image.resize(image.len() + len, 0),
            1 | 2 => image.extend(random.noise(len)),
            _ => image.extend(random.text(len)),
        }
    }
    image.truncate(IMAGE_SIZE);
    image
}

fn new_release(old: &[u8]) -> Vec<u8> {
    let mut random = Random(0x7265_666c_6173_6802);
    let mut image = old.to_vec();
    // Pages that changed.
    for _ in 0..40 {
        let at = random.below(IMAGE_SIZE / (4 * KIB)) * 4 * KIB;
        image[at..at + 4 * KIB].copy_from_slice(&random.text(4 * KIB));
    }
    // A part that moved towards the end.
    let moved: Vec<u8> = image.drain(20 * MIB..23 * MIB).collect();
    let at = 36 * MIB + 1234;
    image.splice(at..at, moved);
    // An insertion of an odd size; all behind it lies elsewhere now.
    let at = 12 * MIB + 777;
    image.splice(at..at, random.noise(100_123));
    // A new end.
    image.truncate(image.len() - MIB);
    image.extend(random.text(2 * MIB));
    image
}
