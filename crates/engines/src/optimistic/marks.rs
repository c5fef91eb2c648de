//! Marks of an attempt, of a record and of the whole table.

use ordain_commit::Mode;
use ordain_model::Gsn;
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::two_phase_locking::{Counts, Held};

/// A version of a record: its writer, and the attempts since then that may have changed what others see of it.
pub(super) type Version = (Gsn, u64);

/// The reads of an attempt, and how far it is.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The version that each record had when the attempt read it first.
    pub(super) read: Held<Version>,
    /// The number of records that had been installed when the attempt read the whole table.
    pub(super) read_table: Option<u64>,
    /// The number of changes of whole databases that had been made when the attempt came.
    pub(super) came: Option<u64>,
    /// It is validated: what it has accessed is locked.
    pub(super) is_validated: bool,
    /// Once it is validated, what it has read may change.
    pub(super) lets_reads_go: bool,
    /// It is a region's part of a transaction that another one has initiated.
    pub(super) is_part: bool,
    /// Once it is validated, other regions decide about it too.
    pub(super) is_promised: bool,
}

impl Kept {
    /// True if a record that it has accessed in this mode is locked once it is validated.
    pub(super) fn locks(&self, mode: Mode) -> bool {
        mode != Mode::Shared || !self.lets_reads_go
    }
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
    /// The number of attempts that have ended as its writers since it has marks. Some install nothing: they have found it expired, or have
    /// written one of its children.
    pub(super) changed: u64,
}

impl Marks {
    /// The version that an attempt reads which has accessed the record.
    pub(super) fn version(&self, store: &MemoryStore, record: RecordId) -> Version {
        (store.version(record), self.changed)
    }

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
}

/// Marks of the whole table.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Locks of validated attempts.
    pub(super) locks: Counts,
    /// Records that were installed so far: what has read the whole table has missed none.
    pub(super) installed: u64,
    /// Changes of whole databases so far: a record may stand in another one after each.
    pub(super) changed: u64,
}

impl Table {
    /// Drops what does not follow from the log.
    pub(super) fn clear(&mut self) {
        self.locks = Counts::default();
    }
}
