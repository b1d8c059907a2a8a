//! What an install is to do: the value that the command line makes, and that a program makes which
//! embeds this library.
//!
//! Nothing is opened or asked of the network before it runs; what makes no sense by itself is refused
//! by [`Install::check`], with the words of the command line.

use std::path::PathBuf;

use super::shares::MIN_MEMORY;
use super::Targets;
use crate::device::Care;
use crate::error::{Error, Result};
use crate::open::Trust;
use crate::remote::{Access, Location};
use crate::seed;

/// Connections where no number is given.
pub const WORKERS: usize = 8;

/// Most connections: more than that are an attack on the server.
pub const MAX_WORKERS: usize = 64;

/// The memory budget where none is given, in bytes.
pub const MEMORY: u64 = 32 << 20;

/// An install: which bundle, what it must prove, where it goes, and how.
///
/// [`new`](Self::new) takes what cannot be left out and does what the command line does that is told no
/// more; the other methods change that, each the option of its name. [`run`](Self::run) installs,
/// [`plan`](Self::plan) tells what it would do.
#[derive(Clone, Debug)]
pub struct Install {
    pub(crate) bundle: Location,
    pub(crate) access: Access,
    pub(crate) trust: Trust,
    pub(crate) targets: Targets,
    pub(crate) care: Care,
    pub(crate) seeds: Vec<seed::Spec>,
    pub(crate) target_seed: bool,
    pub(crate) verify: bool,
    pub(crate) discard: bool,
    pub(crate) write_index: Option<Targets>,
    pub(crate) allow_missing_index: bool,
    pub(crate) workers: usize,
    pub(crate) memory: u64,
    pub(crate) merge: bool,
}

impl Install {
    /// Installs `bundle` onto `targets`, if it proves what `trust` asks for.
    pub fn new(bundle: Location, trust: Trust, targets: Targets) -> Self {
        Self {
            bundle,
            access: Access::default(),
            trust,
            targets,
            care: Care::default(),
            seeds: Vec::new(),
            target_seed: true,
            verify: false,
            discard: false,
            write_index: None,
            allow_missing_index: false,
            workers: WORKERS,
            memory: MEMORY,
            merge: true,
        }
    }

    /// The bundle.
    pub fn bundle(&self) -> &Location {
        &self.bundle
    }

    /// How to reach the server, how patient to be, and how much to receive at most.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }

    /// Blocks may be reused from this device or file, which is scanned for them.
    pub fn seed(self, path: impl Into<PathBuf>) -> Self {
        self.seeds([seed::Spec {
            path: path.into(),
            index: None,
        }])
    }

    /// The same with a prepared block index, which saves the scan.
    pub fn seed_with_index(self, path: impl Into<PathBuf>, index: impl Into<PathBuf>) -> Self {
        self.seeds([seed::Spec {
            path: path.into(),
            index: Some(index.into()),
        }])
    }

    /// More seeds of either kind.
    pub(crate) fn seeds(mut self, seeds: impl IntoIterator<Item = seed::Spec>) -> Self {
        self.seeds.extend(seeds);
        self
    }

    /// Whether what the targets themselves hold is reused; it is.
    pub fn target_seed(mut self, reuse: bool) -> Self {
        self.target_seed = reuse;
        self
    }

    /// Whether the targets are read back from the medium after the last sync, and compared.
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Whether what stands where a payload goes is discarded before the first write, unless a quarter
    /// of the payload is there already.
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }

    /// Where the block indexes of what was installed go, for the next
    /// [`seed_with_index`](Self::seed_with_index).
    pub fn write_index(mut self, files: Targets) -> Self {
        self.write_index = Some(files);
        self
    }

    /// Whether a payload without block index is accepted: nothing of it can be reused, and nothing is
    /// checked before its end.
    pub fn allow_missing_index(mut self, allow: bool) -> Self {
        self.allow_missing_index = allow;
        self
    }

    /// Connections, 1 to [`MAX_WORKERS`].
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Budget for what is in flight, in bytes; 4 MiB at least.
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = bytes;
        self
    }

    /// Whether a device is written to that is mounted or held. Skips no integrity check.
    pub fn force(mut self, force: bool) -> Self {
        self.care.force = force;
        self
    }

    /// Whether the first block is written last, and its place is zero until then; it is.
    pub fn hold_back(mut self, hold_back: bool) -> Self {
        self.care.hold_back = hold_back;
        self
    }

    /// Whether blocks are merged into ranges; they are. For benchmarks.
    pub fn merge(mut self, merge: bool) -> Self {
        self.merge = merge;
        self
    }

    /// Refuses what makes no sense, before anything is done.
    pub(crate) fn check(&self) -> Result<()> {
        check_workers(self.workers)?;
        let usage = |message: &str| Err(Error::Usage(message.to_owned()));
        if self.memory < MIN_MEMORY {
            return usage("--memory must be at least 4M");
        }
        self.targets.check("--slot")?;
        if let Some(indexes) = &self.write_index {
            indexes.check("--write-index")?;
        }
        match (&self.targets, &self.write_index) {
            (_, None) | (Targets::One(_), Some(Targets::One(_))) => Ok(()),
            (Targets::One(_), Some(Targets::Slots(_))) => {
                usage("--write-index: there is one target, so one index")
            }
            (Targets::Slots(_), Some(Targets::One(_))) => {
                usage("--write-index: each index needs the name of its slot")
            }
            (Targets::Slots(slots), Some(Targets::Slots(indexes))) => {
                let known = |name: &String| slots.iter().any(|(slot, _)| slot == name);
                match indexes.iter().find(|(name, _)| !known(name)) {
                    Some((name, _)) => usage(&format!("--write-index {name}: no such --slot")),
                    None => Ok(()),
                }
            }
        }
    }
}

/// Refuses a number of connections that makes no sense.
pub(crate) fn check_workers(workers: usize) -> Result<()> {
    if (1..=MAX_WORKERS).contains(&workers) {
        return Ok(());
    }
    let message = format!("--workers must be from 1 to {MAX_WORKERS}");
    Err(Error::Usage(message))
}
