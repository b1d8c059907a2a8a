//! The targets of an install: which payload goes where, and what is refused before anything is asked
//! of the network: targets that cannot be used ([`Target::open`]), that are named twice, as a seed
//! too, or that the bundle lies on.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{Install, OpenTarget};
use crate::bundle::{Delivery, Header};
use crate::busy;
use crate::device::Target;
use crate::error::{Error, Result};
use crate::output::check_apart;
use crate::remote::Location;
use crate::report::Reporter;
use crate::seed;

/// Where payloads go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The one slot payload of the bundle goes here.
    One(PathBuf),
    /// Slots by name.
    Slots(Vec<(String, PathBuf)>),
}

impl Targets {
    /// Where they are, in the order in which they were given.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        match self {
            Self::One(path) => vec![path],
            Self::Slots(slots) => slots.iter().map(|(_, path)| path.as_path()).collect(),
        }
    }

    /// Refuses a slot that is named twice: of two targets only one would get its payload.
    pub(crate) fn check(&self, option: &str) -> Result<()> {
        match self {
            Self::One(_) => Ok(()),
            Self::Slots(slots) => check_names(option, slots),
        }
    }
}

/// Refuses a name that is given twice.
pub(crate) fn check_names(option: &str, slots: &[(String, PathBuf)]) -> Result<()> {
    let mut names = HashSet::new();
    match slots.iter().find(|(name, _)| !names.insert(name)) {
        Some((name, _)) => Err(Error::Usage(format!("{option} {name} is given twice"))),
        None => Ok(()),
    }
}

/// Opens every target before anything is asked of the network, and refuses what can be refused.
pub(super) fn open(
    options: &Install,
    open: OpenTarget<'_>,
    reporter: &Reporter,
) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::new();
    for path in options.targets.paths() {
        let same = |other: &Target| other.path().display().to_string();
        // Before it is opened: a device that we hold ourselves could not be.
        let mut other = targets.iter().find(|other| other.is_at(path)).map(same);
        if other.is_none() {
            let target = open(path)?;
            reporter.target(target.touched_flag());
            other = targets
                .iter()
                .find(|other| other.is_same(&target))
                .map(same);
            targets.push(target);
        }
        if let Some(other) = other {
            return Err(Error::Usage(format!(
                "{other} and {} are the same target",
                path.display()
            )));
        }
    }
    for target in &targets {
        check_target(options, target)?;
    }
    if let Some(indexes) = &options.write_index {
        for path in indexes.paths() {
            // The index of a seed may be replaced: it was read by then.
            check_apart("--write-index", path, options.reads_or_writes())?;
            seed::check_index_path(path)?;
        }
    }
    Ok(targets)
}

impl Install {
    /// What it reads or writes, and what that is to it; but for the indexes.
    fn reads_or_writes(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let targets = self.targets.paths().into_iter();
        let seeds = self.seeds.iter().map(|seed| ("seed", seed.path.as_path()));
        targets
            .map(|path| ("target", path))
            .chain(self.bundle.file().map(|path| ("bundle", path)))
            .chain(seeds)
    }

    /// Refuses a file for its report or log, given by `option`, that is one of its own.
    pub(crate) fn check_output(&self, option: &str, path: &Path) -> Result<()> {
        let seeds = self.seeds.iter().filter_map(|seed| seed.index.as_deref());
        let written = self.write_index.iter().flat_map(Targets::paths);
        let indexes = seeds.chain(written).map(|path| ("block index", path));
        check_apart(option, path, self.reads_or_writes().chain(indexes))
    }
}

/// Refuses a target that the bundle lies on, or that is named as a seed too.
fn check_target(options: &Install, target: &Target) -> Result<()> {
    let refuse = |reason: String| {
        Err(Error::Target {
            path: target.named(),
            reason,
        })
    };
    if let Location::File(bundle) = &options.bundle {
        if target.is_at(bundle) {
            return refuse("it is the bundle itself".into());
        }
        if target
            .device()
            .is_some_and(|device| busy::lies_on(bundle, device))
        {
            return refuse(format!("the bundle {} is stored on it", bundle.display()));
        }
    }
    match options.seeds.iter().find(|seed| target.is_at(&seed.path)) {
        Some(seed) => Err(Error::Usage(format!(
            "seed {} is the target {} itself: what that holds is reused anyway, without --seed",
            seed.path.display(),
            target.path().display()
        ))),
        None => Ok(()),
    }
}

/// The number of the target of each payload, or why the bundle is not installed. Nothing is ever
/// left out silently: half an update is none.
pub fn destinations(header: &Header, targets: &Targets) -> Result<Vec<usize>> {
    let mut slots: Vec<&str> = Vec::new();
    for (number, entry) in header.entries.iter().enumerate() {
        let unsupported =
            |what: String| Err(Error::Unsupported(format!("payload {number} {what}")));
        match &entry.delivery {
            Delivery::Slot(name) if slots.contains(&name.as_str()) => {
                return unsupported(format!("is a second one for slot {name:?}"))
            }
            Delivery::Slot(name) => slots.push(name),
            Delivery::Execute(arguments) => {
                return unsupported(format!("is to be executed, by {arguments:?}"))
            }
            Delivery::AppFile { app, path } => {
                return unsupported(format!("is file {path:?} of app {app:?}"))
            }
            Delivery::AppArchive(app) => {
                return unsupported(format!("is an archive of app {app:?}"))
            }
            Delivery::None => return unsupported("does not say where it is to go".into()),
        }
        if let Some(format) = &entry.delta {
            return unsupported(format!("is a static delta ({format}), not an image"));
        }
    }
    if slots.is_empty() {
        return Err(Error::Unsupported("it has no payload".into()));
    }
    match targets {
        Targets::One(_) if slots.len() == 1 => Ok(vec![0]),
        Targets::One(_) => Err(Error::Usage(format!(
            "the bundle has payloads for slots {slots:?}: give --slot NAME=PATH for each instead of --target"
        ))),
        Targets::Slots(given) => {
            if let Some((name, _)) = given.iter().find(|(name, _)| !slots.contains(&name.as_str())) {
                return Err(Error::Usage(format!(
                    "the bundle has no payload for slot {name:?}, only for {slots:?}"
                )));
            }
            slots
                .iter()
                .map(|slot| {
                    given.iter().position(|(name, _)| name == slot).ok_or_else(|| {
                        Error::Usage(format!(
                            "the bundle has a payload for slot {slot:?}: give --slot {slot}=PATH too"
                        ))
                    })
                })
                .collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::Trust;
    use crate::remote::Access;
    use crate::report::Reporter;
    use crate::verify;

    /// Also by a program, which no command line keeps from it.
    #[test]
    fn a_slot_is_named_once() {
        let slots = |names: [&str; 2]| {
            Targets::Slots(
                names
                    .map(|name| (name.to_owned(), "/nowhere".into()))
                    .into(),
            )
        };
        let install = |targets| Install::new(Location::Stdin, Trust::Insecure, targets);
        let twice = slots(["a", "a"]);
        let error = |result: Result<()>| result.map_err(|error| error.to_string());
        let slot = Err("--slot a is given twice".to_owned());
        assert_eq!(error(install(twice.clone()).check()), slot);
        let indexed = install(slots(["a", "b"])).write_index(twice.clone());
        let index = Err("--write-index a is given twice".to_owned());
        assert_eq!(error(indexed.check()), index);
        let options = verify::Options {
            bundle: Location::Stdin,
            access: Access::default(),
            trust: Trust::Insecure,
            targets: twice,
        };
        let verified = verify::verify(&options, &Reporter::silent());
        assert_eq!(error(verified.map(drop).map_err(|f| f.error)), slot);
    }
}
