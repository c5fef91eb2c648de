//! What is kept of one attempt, of one record and of the whole table.

use ordain_commit::{Mode, Target};
use ordain_model::Gsn;

use crate::two_phase_locking::{Counts, Held};

/// What an attempt has read, and how far it is.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The version that each record had when the attempt read it first.
    pub(super) read: Held<Gsn>,
    /// How many records had been installed when the attempt read the whole table.
    pub(super) read_table: Option<u64>,
    /// How many changes of whole databases had been made when the attempt came.
    pub(super) came: Option<u64>,
    /// It is validated: what it has accessed is locked.
    pub(super) is_validated: bool,
    /// Its access that waits, and the target whose lock it waits for.
    pub(super) waits: Option<(Target, Mode, Target)>,
}

/// Marks of one record. Attempts are named by their places in the table of attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    /// The number of attempts that have accessed it.
    pub(super) holders: u32,
    /// The number of validated attempts that read it and do not write it.
    pub(super) readers: u32,
    /// The validated attempt that writes it.
    pub(super) writer: Option<u32>,
    /// Attempts that wait for its writer, in the order in which they came.
    pub(super) waiters: Vec<u32>,
}

impl Marks {
    /// Locks the record for an attempt.
    pub(super) fn lock(&mut self, at: u32, mode: Mode) {
        match mode {
            Mode::Shared => self.readers += 1,
            Mode::Exclusive | Mode::Blind => self.writer = Some(at),
        }
    }

    /// Takes a lock back.
    pub(super) fn unlock(&mut self, mode: Mode) {
        match mode {
            Mode::Shared => self.readers -= 1,
            Mode::Exclusive | Mode::Blind => self.writer = None,
        }
    }

    /// True if they are those that attempts know of, who wait in any order.
    pub(super) fn is_as(&self, mut known: Marks) -> bool {
        let mut own = self.clone();
        own.waiters.sort_unstable();
        known.waiters.sort_unstable();
        own == known
    }
}

/// What concerns the whole table.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Locks of validated attempts.
    pub(super) locks: Counts,
    /// Attempts that wait for one of them, in the order in which they came.
    pub(super) waiters: Vec<u32>,
    /// Records that were installed so far: what has read the whole table has missed none.
    pub(super) installed: u64,
    /// Changes of whole databases so far: a record may stand in another one after each.
    pub(super) changed: u64,
}

impl Table {
    /// Drops what does not follow from the log.
    pub(super) fn clear(&mut self) {
        self.locks = Counts::default();
        self.waiters.clear();
    }

    /// True if it is as attempts know it, who wait in any order.
    pub(super) fn is_as(&self, known: &mut Table) -> bool {
        let mut waiters = self.waiters.clone();
        waiters.sort_unstable();
        known.waiters.sort_unstable();
        waiters == known.waiters && self.locks == known.locks
    }
}
