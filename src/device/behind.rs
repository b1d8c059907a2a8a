//! A sync while more is written.
//!
//! A sync takes as long as the medium takes to write, and all that time the writer could verify and
//! write on. So where there is a core more, it is done on a thread of its own, one at a time. How it
//! ended is known when it is waited for: before the next one, and before anything that needs all to be
//! on the medium.

use std::io;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread::{available_parallelism, Builder, JoinHandle};

use super::Medium;

/// Stack of the thread.
const STACK_SIZE: usize = 64 << 10;

/// Syncs behind the writer.
#[derive(Debug)]
pub(super) struct Behind {
    possible: bool,
    /// The one that is under way, and the offset up to which things were written when it began.
    under_way: Option<(JoinHandle<io::Result<()>>, u64)>,
}

impl Behind {
    pub(super) fn new() -> Self {
        Self {
            possible: available_parallelism().is_ok_and(|cores| cores.get() > 1),
            under_way: None,
        }
    }

    /// Whether the writer goes on during a sync: then what it writes meanwhile is unsynced too.
    pub(super) fn is_possible(&self) -> bool {
        self.possible
    }

    /// Begins a sync of what was written up to `offset`; the last one was waited for. False if it has
    /// to be done here.
    pub(super) fn begin(&mut self, medium: &Arc<dyn Medium>, offset: u64) -> bool {
        if self.possible {
            let medium = medium.clone();
            let thread = Builder::new()
                .name("sync".to_owned())
                .stack_size(STACK_SIZE)
                .spawn(move || medium.sync());
            self.under_way = thread.ok().map(|thread| (thread, offset));
        }
        self.under_way.is_some()
    }

    /// Waits for the sync that is under way, if one is; with an error comes the offset that it was
    /// for.
    pub(super) fn wait(&mut self) -> Result<(), (u64, io::Error)> {
        let Some((thread, offset)) = self.under_way.take() else {
            return Ok(());
        };
        let ended = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        ended.map_err(|error| (offset, error))
    }
}

impl Drop for Behind {
    /// A target that is given up is free for others only when nobody works on it any more.
    fn drop(&mut self) {
        if let Some((thread, _)) = self.under_way.take() {
            // It failed already, and said so.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::{Mutex, PoisonError};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::device::{Care, Target, SYNC_INTERVAL, SYNC_PAUSE, WRITE_SIZE};
    use crate::hash::Verified;

    /// A medium that takes its time to sync.
    #[derive(Debug, Default)]
    struct Slow {
        state: Mutex<State>,
        /// The first sync ends only when more is written than there was when it began.
        waits: bool,
        /// The number of the sync that fails, from one on.
        failing: Option<usize>,
    }

    #[derive(Debug, Default)]
    struct State {
        unsynced: u64,
        most_unsynced: u64,
        syncing: bool,
        syncs: usize,
        written: u64,
    }

    impl Slow {
        fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
            change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
        }
    }

    impl Medium for Arc<Slow> {
        fn write_at(&self, bytes: &[u8], _: u64) -> io::Result<()> {
            let bytes = bytes.len() as u64;
            self.with(|state| {
                state.unsynced += bytes;
                state.most_unsynced = state.most_unsynced.max(state.unsynced);
                state.written += bytes;
            });
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            let (before, number) = self.with(|state| {
                assert!(!state.syncing, "one at a time");
                state.syncing = true;
                state.syncs += 1;
                (state.unsynced, state.syncs)
            });
            sleep(Duration::from_millis(20));
            let started = Instant::now();
            while self.waits && number == 1 && self.with(|state| state.written <= SYNC_INTERVAL / 2)
            {
                assert!(started.elapsed() < Duration::from_secs(20), "it waits");
                sleep(Duration::from_millis(1));
            }
            self.with(|state| {
                state.syncing = false;
                state.unsynced -= before;
            });
            match self.failing {
                Some(failing) if failing == number => Err(io::Error::other("it fails")),
                _ => Ok(()),
            }
        }

        fn read_at(&self, bytes: &mut [u8], _: u64) -> io::Result<()> {
            bytes.fill(0);
            Ok(())
        }

        fn size(&self) -> io::Result<u64> {
            Ok(1 << 40)
        }

        fn set_size(&self, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn forget(&self) -> io::Result<()> {
            Ok(())
        }

        fn discard(&self, _: Range<u64>) -> io::Result<()> {
            Ok(())
        }
    }

    /// Writes so many bytes; how far it came, and how it ended.
    fn write(medium: &Arc<Slow>, possible: bool, bytes: u64) -> (u64, crate::error::Result<()>) {
        let care = Care {
            force: false,
            hold_back: false,
        };
        let mut target = Target::on(Box::new(medium.clone()), true, care).expect("usable");
        target.behind.possible = possible;
        let block = vec![1; 100_000];
        let mut result = Ok(());
        while result.is_ok() && target.position() < bytes {
            result = target.append(Verified::unchecked(&block));
        }
        let result = result.and_then(|()| target.sync());
        (target.position(), result)
    }

    #[test]
    fn little_is_unsynced_at_a_time_and_nothing_in_the_end() {
        for possible in [false, true] {
            let medium = Arc::new(Slow {
                waits: possible,
                ..Slow::default()
            });
            let (_, result) = write(&medium, possible, 5 * SYNC_INTERVAL);
            result.expect("written");
            medium.with(|state| {
                assert_eq!(state.unsynced, 0);
                let most = SYNC_INTERVAL + WRITE_SIZE;
                assert!(state.most_unsynced <= most, "{}", state.most_unsynced);
            });
        }
    }

    #[test]
    fn a_sync_that_fails_ends_it() {
        for possible in [false, true] {
            for failing in [1, 2, 3] {
                let medium = Arc::new(Slow {
                    failing: Some(failing),
                    ..Slow::default()
                });
                let (written, result) = write(&medium, possible, 2 * SYNC_INTERVAL);
                let error = result.expect_err("it is fatal").to_string();
                assert!(
                    error.contains("sync") && error.contains("it fails"),
                    "{error}"
                );
                let most = (failing as u64 + 1) * SYNC_INTERVAL;
                assert!(written <= most, "{written} {failing}");
            }
        }
    }

    #[test]
    fn what_is_written_is_synced_by_amount_and_by_time() {
        let medium = Arc::new(Slow::default());
        let mut target =
            Target::on(Box::new(medium.clone()), true, Care::default()).expect("usable");
        target.behind.possible = false;
        let block = vec![1; 1 << 20];
        let append = |target: &mut Target, expected: usize| {
            target.append(Verified::unchecked(&block)).expect("taken");
            medium.with(|state| assert_eq!(state.syncs, expected));
        };
        append(&mut target, 1); // The place of the first block.
        for _ in 0..31 {
            append(&mut target, 1);
        }
        append(&mut target, 2); // After 32 MiB.
        target.synced -= SYNC_PAUSE;
        append(&mut target, 3); // The last one was long ago.
        append(&mut target, 3);
    }
}
