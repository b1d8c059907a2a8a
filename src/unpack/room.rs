//! The plain bytes that may be in memory ahead of the writer.
//!
//! A share is taken before a block is made and given back when the writer has taken it. Threads that
//! find no room, or nothing to do, wait here: whatever may change that is an event.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The part of the budget for blocks from seeds: this fraction.
pub(super) const SEEDED_SHARE: u64 = 4;

/// Plain bytes that may be made ahead of the writer.
///
/// Blocks from seeds have a budget of their own, a small one, or they would take the room of what has
/// to be unpacked while the network is slow.
#[derive(Debug)]
pub struct Ahead {
    room: Mutex<Room>,
    changed: Condvar,
}

#[derive(Debug)]
struct Room {
    fetched: u64,
    seeded: u64,
    /// Counts all that may give a waiting thread something to do.
    events: u64,
}

impl Room {
    fn left(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Fetched => &mut self.fetched,
            Kind::Seeded => &mut self.seeded,
        }
    }
}

/// Where plain bytes come from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Fetched,
    Seeded,
}

impl Ahead {
    /// A budget of so many bytes; part of it is set aside for blocks from seeds, if there are seeds.
    pub fn new(bytes: u64, any_seeds: bool) -> Arc<Self> {
        let seeded = if any_seeds { bytes / SEEDED_SHARE } else { 0 };
        Arc::new(Self {
            room: Mutex::new(Room {
                fetched: bytes - seeded,
                seeded,
                events: 0,
            }),
            changed: Condvar::new(),
        })
    }

    /// A share of so many bytes, if they are left.
    pub(super) fn take(self: &Arc<Self>, kind: Kind, bytes: u64) -> Option<Share> {
        let mut room = self.room();
        let left = room.left(kind);
        *left = left.checked_sub(bytes)?;
        drop(room);
        Some(Share {
            ahead: Arc::clone(self),
            kind,
            bytes,
        })
    }

    /// There may be something to do.
    pub(super) fn stir(&self) {
        self.give_back(Kind::Fetched, 0);
    }

    fn give_back(&self, kind: Kind, bytes: u64) {
        let mut room = self.room();
        *room.left(kind) += bytes;
        room.events += 1;
        drop(room);
        self.changed.notify_all();
    }

    /// What has happened so far; see [`wait`](Self::wait).
    pub(super) fn events(&self) -> u64 {
        self.room().events
    }

    /// Waits until more has happened than was `seen`.
    pub(super) fn wait(&self, seen: u64) {
        let waits = |room: &mut Room| room.events == seen;
        drop(self.changed.wait_while(self.room(), waits));
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are left, of each kind.
    #[cfg(test)]
    pub(super) fn left(&self) -> (u64, u64) {
        let room = self.room();
        (room.fetched, room.seeded)
    }
}

/// A share of the budget, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    ahead: Arc<Ahead>,
    kind: Kind,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.ahead.give_back(self.kind, self.bytes);
    }
}
