//! `make bench-cpu`: what the processor takes for an install, without a network. README.md says how
//! to read it.
//!
//! ```text
//! image     copies of this program and of its sources, each changed in a way that leaves their
//!           statistics alone: machine code and text, alike on every machine
//! loops     work.rs, each in a process of its own, the best of several; on one core or two; once
//!           more in cachegrind to count instructions
//! installs  the program itself, on one core and on two: all fetched from loopback, all from a seed
//! ```
//!
//! ```text
//! bench-cpu [--smoke]             measure everything; --smoke: little data, once, to see that it works
//! bench-cpu WORK FOLDER TIMES     a loop of work.rs, on the data in a folder
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use serde_json::Value;

use it::make_bundle::{block_index_with, Cuts, Hash};
use it::server::Server;
use work::{Data, Error, CHUNKER};

/// The server of the integration tests.
#[path = "../../it"]
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
    pub mod server;
}
mod work;

const MIB: usize = 1 << 20;

/// Bytes of a copy; of the image that instructions are counted on.
const PART: usize = 2 * MIB;
const COUNTED: usize = MIB / 2;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let result = match *arguments.as_slice() {
        [] => bench(false),
        ["--smoke"] => bench(true),
        [work, folder, times] => single(work, Path::new(folder), times),
        _ => Err("bench-cpu [--smoke | WORK FOLDER TIMES]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("bench-cpu: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a loop and prints its bytes and seconds.
fn single(work: &str, folder: &Path, times: &str) -> Result<(), Error> {
    let started = Instant::now();
    let bytes = work::run(work, &Data::at(folder), times.parse()?)?;
    println!("{bytes} {}", started.elapsed().as_secs_f64());
    Ok(())
}

struct Bench {
    own: PathBuf,
    reflash: PathBuf,
    folder: tempfile::TempDir,
    /// Two cores to run on, or one.
    cores: Vec<u32>,
    /// How often each figure is taken; the best counts.
    runs: usize,
    /// Bytes of the image, and blocks.
    size: usize,
    blocks: usize,
}

fn bench(smoke: bool) -> Result<(), Error> {
    let own = std::env::current_exe()?;
    let built = own.ancestors().nth(2).ok_or("where am I?")?;
    // In memory, if that can be: the medium is not what is measured.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() {
        memory.to_owned()
    } else {
        std::env::temp_dir()
    };
    let mut bench = Bench {
        reflash: built.join("reflash"),
        folder: tempfile::Builder::new()
            .prefix("reflash-bench-cpu-")
            .tempdir_in(folder)?,
        cores: cores()?,
        runs: if smoke { 1 } else { 5 },
        size: if smoke { 4 * MIB } else { 48 * MIB },
        blocks: 0,
        own,
    };
    bench.make_data()?;
    println!(
        "image={} MiB, blocks={} of {CHUNKER}, xz 6; best of {}",
        bench.size / MIB,
        bench.blocks,
        bench.runs
    );
    println!("{:46}{:>8}{:>10}{:>9}", "", "MB/s", "blocks/s", "instr/B");
    bench.rows()
}

/// The first two processors that this program may use.
fn cores() -> Result<Vec<u32>, Error> {
    let status = fs::read_to_string("/proc/self/status")?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let mut cores = Vec::new();
    for part in list.ok_or("which processors are there?")?.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.parse()?..=last.parse::<u32>()?);
    }
    cores.truncate(2);
    Ok(cores)
}

impl Bench {
    /// An image, its bundle, its blocks and its index; and a small image with its blocks.
    fn make_data(&mut self) -> Result<(), Error> {
        let mut part = fs::read(&self.own)?;
        // After the head, and leaving room for text.
        part.truncate(PART * 3 / 4);
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut names: Vec<_> = fs::read_dir(sources)?.collect::<Result<_, _>>()?;
        names.sort_by_key(fs::DirEntry::path);
        for name in names {
            if name.file_type()?.is_file() {
                part.extend(fs::read(name.path())?);
            }
        }
        part.truncate(PART);
        for (folder, size) in [("large", self.size), ("small", COUNTED)] {
            let folder = self.path(folder);
            fs::create_dir(&folder)?;
            // With the same bits of all bytes changed, matches and the shape of the decoder's trees
            // are as before; the blocks are others.
            let copies = (0..=u8::MAX).map(|mask| part.iter().map(move |byte| byte ^ mask));
            let image: Vec<u8> = copies.flatten().take(size).collect();
            let data = Data::at(&folder);
            fs::write(&data.image, &image)?;
            let ends = work::write_blocks(&image, &mut File::create(&data.blocks)?)?;
            self.blocks = self.blocks.max(ends.len());
            let index = block_index_with(&image, CHUNKER, &Cuts::At(ends), Hash::Sha512_256);
            fs::write(folder.join("index"), index)?;
        }
        let image = Data::at(&self.path("large")).image;
        let mut pack = Command::new(&self.reflash);
        pack.arg("pack")
            .arg(image)
            .arg("--output")
            .arg(self.path("bundle"));
        fs::write(self.path("hash"), output(&mut pack)?.trim())?;
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn rows(&self) -> Result<(), Error> {
        let decode = self.work("decode: ours", "decode", 1)?;
        self.work("decode: lzma-rs, xz_decompress", "lzma-rs", 1)?;
        let rust = self.work("decode: lzma-rust2, raw", "lzma-rust2", 1)?;
        self.work("decode: liblzma (C)", "liblzma", 1)?;
        self.work("hash: SHA-512/256", "hash", 1)?;
        let scan = self.work("scan, one core", "scan", 1)?;
        let scan_2 = self.work("scan, two cores", "scan", 2)?;
        let copy = self.work("loop: read, one SHA-512/256, write", "copy", 1)?;
        let plain = self.work("loop: lzma-rs, one SHA-512/256, write", "plain loop", 1)?;

        let large = self.path("large");
        let (image, index) = (Data::at(&large).image, large.join("index"));
        let seed = format!("{}={}", image.display(), index.display());
        let seed = ["--seed", &seed];
        let copied = self.install("install: all from a seed, one core", &seed, 1)?;
        let copied_2 = self.install("install: all from a seed, two cores", &seed, 2)?;
        let fetched = self.install("install: all fetched, one core", &[], 1)?;
        let fetched_2 = self.install("install: all fetched, two cores", &[], 2)?;

        println!("\n{:46}{:>8}{:>10}", "", "ratio", "aim");
        for (name, ratio, aim) in [
            ("best decoder in Rust to ours", rust / decode, "<= 1.5"),
            ("scan: two cores to one", scan_2 / scan, ">= 1.7"),
            ("seeded, one core, to read, hash, write", copied / copy, ""),
            (
                "seeded, two cores, to read, hash, write",
                copied_2 / copy,
                ">= 0.8",
            ),
            (
                "fetched, one core, to the plain loop",
                fetched / plain,
                ">= 0.9",
            ),
            ("fetched: two cores to one", fetched_2 / fetched, ">= 1.7"),
        ] {
            println!("{name:46}{ratio:>8.2}{aim:>10}");
        }
        Ok(())
    }

    /// Prints a row and gives its MB/s.
    fn row(&self, title: &str, seconds: f64, instructions: Option<f64>) -> f64 {
        let speed = self.size as f64 / seconds / 1e6;
        let blocks = self.blocks as f64 / seconds;
        let instructions = instructions.map_or("-".to_owned(), |n| format!("{n:.1}"));
        println!("{title:46}{speed:>8.1}{blocks:>10.0}{instructions:>9}");
        speed
    }

    /// A command bound to so many cores.
    fn on(&self, cores: usize, program: &Path) -> Command {
        let cores: Vec<_> = self.cores.iter().take(cores).map(u32::to_string).collect();
        let mut command = Command::new("taskset");
        command.args(["-c", &cores.join(",")]).arg(program);
        command
    }

    /// Times a loop of work.rs.
    fn work(&self, title: &str, work: &str, cores: usize) -> Result<f64, Error> {
        let mut best = f64::MAX;
        for _ in 0..self.runs {
            let mut command = self.on(cores, &self.own);
            let printed = output(command.arg(work).arg(self.path("large")).arg("1"))?;
            let (bytes, seconds) = printed.trim().split_once(' ').ok_or("what was printed?")?;
            if bytes.parse() != Ok(self.size) {
                return Err(format!("{work}: {bytes} bytes are not all").into());
            }
            best = best.min(seconds.parse()?);
        }
        let counted = if cores == 1 { self.count(work) } else { None };
        Ok(self.row(title, best, counted))
    }

    /// Instructions for each byte: what doing it twice takes more than doing it once.
    fn count(&self, work: &str) -> Option<f64> {
        let small = self.path("small");
        let count = |times: &str| -> Option<f64> {
            let run = |head: &[&str]| {
                let (program, options) = head.split_first()?;
                let mut command = Command::new(program);
                command
                    .args(options)
                    .arg(&self.own)
                    .arg(work)
                    .arg(&small)
                    .arg(times);
                let output = command
                    .output()
                    .ok()
                    .filter(|output| output.status.success())?;
                String::from_utf8(output.stderr).ok()
            };
            let number = |text: &str| text.trim().replace(',', "").parse().ok();
            let perf = run(&["perf", "stat", "-x", ";", "-e", "instructions:u", "--"])
                .and_then(|text| number(text.split(';').next()?));
            perf.or_else(|| {
                let text = run(&[
                    "valgrind",
                    "--tool=cachegrind",
                    "--cache-sim=no",
                    "--cachegrind-out-file=/dev/null",
                ])?;
                text.lines()
                    .find_map(|line| number(line.split_once("refs:")?.1))
            })
        };
        let once = count("1")?;
        Some((count("2")? - once) / COUNTED as f64)
    }

    /// Times an install of all blocks.
    fn install(&self, title: &str, options: &[&str], cores: usize) -> Result<f64, Error> {
        let server = Server::start([("/bundle", self.path("bundle"))]);
        let hash = fs::read_to_string(self.path("hash"))?;
        let (target, report) = (self.path("target"), self.path("report"));
        let mut best = f64::MAX;
        for _ in 0..self.runs {
            if target.exists() {
                fs::remove_file(&target)?;
            }
            let mut command = self.on(cores, &self.reflash);
            command
                .arg("install")
                .arg(server.url("/bundle"))
                .arg("--target")
                .arg(&target);
            command.args(["--bundle-hash", &hash, "--progress", "none", "-q"]);
            output(command.arg("--report").arg(&report).args(options))?;
            let report: Value = serde_json::from_slice(&fs::read(&report)?)?;
            let seconds = report["seconds"]["total"].as_f64();
            best = best.min(seconds.ok_or("the report has no time")?);
        }
        if fs::read(target)? != fs::read(Data::at(&self.path("large")).image)? {
            return Err("the target is not the image".into());
        }
        Ok(self.row(title, best, None))
    }
}

fn output(command: &mut Command) -> Result<String, Error> {
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", output.status).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}
