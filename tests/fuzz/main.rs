//! `make fuzz-smoke`: every target a fixed number of times on stable Rust, with inputs that a small
//! loop of its own makes from the seeds. The same inputs each time; another `SEED` gives others.
//! Names of targets as arguments leave out the others; `--write-seeds FOLDER` writes the seeds.
//!
//! It has no feedback from coverage, so it is a smoke test and no more; cargo-fuzz runs the same
//! targets with it (`README.md`).

use std::fs;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[allow(dead_code, unreachable_pub, reason = "cargo-fuzz uses the rest")]
mod targets;

use targets::{Target, TARGETS};

/// Longest single run: beyond this, an input chooses how much time is spent.
const LONGEST: Duration = Duration::from_secs(5);

/// Peak memory of all of it.
const MEMORY: u64 = 64 << 20;

/// Bytes that break parsers more often than others.
const ODD: [u8; 12] = [
    0, 1, 0x30, 0x40, 0x7f, 0x80, 0x81, 0x82, 0x84, 0xa0, 0xfe, 0xff,
];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `end`; 0 if there is nothing below it.
    fn below(&mut self, end: usize) -> usize {
        (self.next() % (end.max(1) as u64)) as usize
    }
}

/// Changes an input in one to eight places.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        let at = random.below(bytes.len());
        let length = random.below(16);
        match random.below(8) {
            0 | 1 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            2 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = ODD[random.below(ODD.len())];
                }
            }
            3 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = byte.wrapping_add(if random.below(2) == 0 { 1 } else { 255 });
                }
            }
            4 => bytes.truncate(at + 1),
            5 => {
                let end = (at + length).min(bytes.len());
                drop(bytes.drain(at..end));
            }
            6 => {
                // A piece of another seed.
                let from = random.below(other.len());
                let piece = other.iter().skip(from).take(length * 4).copied();
                let piece: Vec<u8> = piece.collect();
                drop(bytes.splice(at..at, piece));
            }
            _ => {
                // A piece of itself, again.
                let end = (at + length * 4).min(bytes.len());
                let piece = bytes[at.min(end)..end].to_vec();
                let to = random.below(bytes.len());
                drop(bytes.splice(to..to, piece));
            }
        }
    }
}

/// Runs one target; returns its executions and crashes.
fn run(target: &Target, seed: u64) -> (u32, u32) {
    let seeds = (target.seeds)();
    let mut random = Random(seed | 1);
    let begin = Instant::now();
    let (mut executions, mut crashes) = (0, 0);
    let mut longest = Duration::ZERO;
    while executions < target.runs {
        let mut input = seeds[random.below(seeds.len())].clone();
        // The seeds themselves first.
        if let Some(seed) = seeds.get(executions as usize) {
            input.clone_from(seed);
        } else {
            let other = &seeds[random.below(seeds.len())];
            mutate(&mut input, other, &mut random);
        }
        let started = Instant::now();
        let result = catch_unwind(AssertUnwindSafe(|| (target.run)(&input)));
        longest = longest.max(started.elapsed());
        executions += 1;
        if result.is_err() || started.elapsed() > LONGEST {
            crashes += 1;
            let path = std::env::temp_dir().join(format!("crash-{}-{executions}", target.name));
            let saved = fs::write(&path, &input);
            println!(
                "  {}: input kept in {} ({saved:?})",
                target.name,
                path.display()
            );
        }
    }
    println!(
        "{:12} {executions:7} executions of {:3} seeds in {:4.1} s, longest {:5.1} ms: {crashes} crashes",
        target.name,
        seeds.len(),
        begin.elapsed().as_secs_f64(),
        longest.as_secs_f64() * 1000.0,
    );
    (executions, crashes)
}

/// A folder for each target, a file for each seed, as cargo-fuzz wants its corpus.
fn write_seeds(folder: &Path) -> std::io::Result<()> {
    for target in &TARGETS {
        let folder = folder.join(target.name);
        fs::create_dir_all(&folder)?;
        for (number, seed) in (target.seeds)().iter().enumerate() {
            fs::write(folder.join(number.to_string()), seed)?;
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let seed = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed: u64 = seed.unwrap_or(0x5eed_0f_4ef1_a5b1);
    let only: Vec<String> = std::env::args().skip(1).collect();
    if let [option, folder] = &only[..] {
        if option == "--write-seeds" {
            let written = write_seeds(Path::new(folder));
            println!("seeds in {folder}: {written:?}");
            return ExitCode::from(u8::from(written.is_err()));
        }
    }
    let (mut executions, mut crashes) = (0, 0);
    for target in &TARGETS {
        if only.is_empty() || only.iter().any(|name| name == target.name) {
            let (more, failed) = run(target, seed);
            executions += more;
            crashes += failed;
        }
    }
    let peak = reflash::internal::report::peak_memory().unwrap_or(0);
    println!("{executions} executions, {crashes} crashes, peak memory {peak} bytes");
    if crashes > 0 || executions == 0 || peak > MEMORY {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
