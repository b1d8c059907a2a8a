//! A medium in memory that loses power, fails and lies; and installs onto it through the library.
//!
//! What is written is in a cache until it is synced. At a power cut each sector that was not synced
//! is lost or not, by chance, and one of them may be torn. Every operation is counted, so that a
//! test can cut at each.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use reflash::internal::device::{Care, Medium, Target};
use reflash::{Digest, Error, Location, Report, Reporter, Result, Targets, Trust};

use crate::make_bundle::{Made, Random};

const SECTOR: usize = 512;

/// Bytes between two syncs.
const SYNC_INTERVAL: u64 = 64 << 10;

#[derive(Debug)]
struct State {
    /// What a reader sees.
    bytes: Vec<u8>,
    /// What survives a power cut for sure.
    durable: Vec<u8>,
    /// Sectors that were written since the last sync.
    dirty: BTreeSet<usize>,
    /// Writes, syncs and changes of size so far.
    operations: usize,
    /// After so many of them all fail.
    power: usize,
    /// Error of writes and syncs from then on.
    error: io::ErrorKind,
    /// Bytes that were ever written.
    written: Vec<Range<u64>>,
    /// Reads that touch this fail.
    unreadable: Range<u64>,
    /// After a sync, a byte here has lost a bit, so many times.
    rotting: Option<(usize, usize)>,
    /// The cache has this byte right, the medium has not.
    stale: Option<usize>,
}

/// A block device in memory. Its clones are the same device.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<State>>);

impl Disk {
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(State {
            durable: bytes.clone(),
            bytes,
            dirty: BTreeSet::new(),
            operations: 0,
            power: usize::MAX,
            error: io::ErrorKind::Other,
            written: Vec::new(),
            unreadable: 0..0,
            rotting: None,
            stale: None,
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// All operations after so many fail.
    pub fn fails_after(&self, operations: usize, error: io::ErrorKind) {
        let mut state = self.state();
        state.power = state.operations + operations;
        state.error = error;
    }

    pub fn unreadable(&self, range: Range<u64>) {
        self.state().unreadable = range;
    }

    pub fn rots(&self, offset: usize, times: usize) {
        self.state().rotting = Some((offset, times));
    }

    /// Reads give this byte right only until the cache is dropped.
    pub fn stale(&self, offset: usize) {
        self.state().stale = Some(offset);
    }

    pub fn operations(&self) -> usize {
        self.state().operations
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Bytes that were written, those twice that were so.
    pub fn written(&self) -> u64 {
        let state = self.state();
        state
            .written
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// The device after a power cut.
    pub fn after_power_cut(&self, random: &mut Random) -> Self {
        let state = self.state();
        let mut bytes = state.durable.clone();
        let torn = random.below(state.dirty.len().max(1) * 2);
        for (number, sector) in state.dirty.iter().enumerate() {
            let range = sector * SECTOR..((sector + 1) * SECTOR).min(bytes.len());
            if number == torn {
                let garbage = random.bytes(range.len());
                bytes[range].copy_from_slice(&garbage);
            } else if random.below(2) == 0 {
                bytes[range.clone()].copy_from_slice(&state.bytes[range]);
            }
        }
        Self::new(bytes)
    }
}

impl State {
    fn operation(&mut self) -> io::Result<()> {
        if self.operations >= self.power {
            return Err(io::Error::new(self.error, "the medium fails"));
        }
        self.operations += 1;
        Ok(())
    }
}

fn place(range: &Range<u64>) -> Range<usize> {
    range.start as usize..range.end as usize
}

impl Medium for Disk {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.state();
        let end = offset + bytes.len() as u64;
        if offset < state.unreadable.end && end > state.unreadable.start {
            return Err(io::Error::other("unreadable"));
        }
        bytes.copy_from_slice(&state.bytes[place(&(offset..end))]);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        let range = offset..offset + bytes.len() as u64;
        state.bytes[place(&range)].copy_from_slice(bytes);
        let place = place(&range);
        state
            .dirty
            .extend(place.start / SECTOR..place.end.div_ceil(SECTOR));
        state.written.push(range);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        if let Some((offset, times)) = state.rotting.filter(|(_, times)| *times > 0) {
            let bad = state.dirty.contains(&(offset / SECTOR));
            if bad {
                state.bytes[offset] ^= 4;
                state.rotting = Some((offset, times - 1));
            }
        }
        state.durable = state.bytes.clone();
        state.dirty.clear();
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn set_size(&self, _: u64) -> io::Result<()> {
        panic!("a device has the size it has");
    }

    fn forget(&self) -> io::Result<()> {
        let mut state = self.state();
        if let Some(offset) = state.stale.take() {
            state.bytes[offset] ^= 4;
            state.durable[offset] ^= 4;
        }
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        let mut state = self.state();
        state.operation()?;
        assert_eq!(range.end % 4096, 0, "a device refuses a part of a sector");
        // What a medium gives for it is its own business.
        let place = place(&range);
        state.bytes[place.clone()].fill(0xdc);
        state.durable[place].fill(0xdc);
        Ok(())
    }
}

/// How to install onto a [`Disk`].
pub struct Install<'a> {
    pub made: &'a Made,
    options: reflash::Install,
}

impl<'a> Install<'a> {
    /// From a file that holds the bundle.
    pub fn new(made: &'a Made, bundle: &Path) -> Self {
        let hash = Digest::parse(&made.bundle_hash).unwrap();
        Self {
            made,
            options: reflash::Install::new(
                Location::File(bundle.to_owned()),
                Trust::Hash(hash),
                Targets::One("disk".into()),
            )
            .workers(4)
            .memory(8 << 20),
        }
    }

    /// Changes the options.
    pub fn set(&mut self, change: impl FnOnce(reflash::Install) -> reflash::Install) {
        self.options = change(self.options.clone());
    }

    pub fn memory(mut self, bytes: u64) -> Self {
        self.set(|options| options.memory(bytes));
        self
    }

    pub fn seed(mut self, path: &Path) -> Self {
        self.set(|options| options.seed(path));
        self
    }

    pub fn run(&self, disk: &Disk) -> (Report, Result<()>) {
        let open = |path: &Path| {
            let care = Care::default();
            let target = Target::on(Box::new(disk.clone()), true, care);
            // Syncs are to be under way, too, when the power fails.
            let target = target.map(|target| target.syncing_every(SYNC_INTERVAL));
            target.map_err(|e| Error::Target {
                path: path.to_owned(),
                reason: e.to_string(),
            })
        };
        match self.options.run_on(&Reporter::silent(), &open) {
            Ok(report) => (report, Ok(())),
            Err(failed) => (failed.report, Err(failed.error)),
        }
    }

    /// Runs it; the disk must hold the image then, and behind it what it held before.
    #[track_caller]
    pub fn installs(&self, disk: &Disk, what: &str) -> Report {
        let before = disk.bytes();
        let (report, result) = self.run(disk);
        if let Err(error) = result {
            panic!("{what}: {error}");
        }
        let image = &self.made.payloads[0].image;
        let after = disk.bytes();
        if let Some(at) = (0..image.len()).find(|at| after[*at] != image[*at]) {
            panic!("{what}: the first wrong byte is {at} of {}", image.len());
        }
        assert!(
            after[image.len()..] == before[image.len()..],
            "{what}: bytes behind the payload changed"
        );
        let blocks = &report.blocks;
        assert_eq!(
            blocks.fetched + blocks.seeded + blocks.kept + blocks.copied,
            blocks.total,
            "{what}"
        );
        let current = before[..image.len()] == image[..];
        assert_eq!(report.result == "current", current, "{what} {report:?}");
        assert_eq!(report.target_touched, !current, "{what}");
        if current {
            assert_eq!(disk.written(), 0, "{what}");
        }
        report
    }
}
