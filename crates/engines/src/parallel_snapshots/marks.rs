//! Versions of a record, and the marks of an attempt, of a record and of the whole table.

use ordain_commit::{AttemptId, Reads, Seen, Vector};
use ordain_model::{Cell, Gsn};
use ordain_store::{MemoryStore, RecordId};

use crate::marked_records::replace;
use crate::two_phase_locking::{Counts, Held};

/// The most older versions of a record. A reader that needs one beyond them begins anew.
const VERSIONS_MAX: usize = 1_024;

/// An attempt as it reads.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The versions that it reads.
    pub(super) reads: Reads,
    /// Its snapshot, or what that begins with.
    pub(super) snapshot: Vector,
    /// It has come with a snapshot.
    pub(super) has_come: bool,
    /// What it has seen here, and who must not see what it writes.
    pub(super) seen: Seen,
    /// The records that it has read.
    pub(super) read: Held<()>,
    /// The records of those that have to be the newest when it commits.
    pub(super) checked: Held<()>,
    /// It is validated: what it writes is locked.
    pub(super) is_validated: bool,
}

/// The version that an attempt reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// The newest.
    Newest,
    /// An older one, by its place.
    Older(usize),
    /// One that is not kept any more.
    Gone,
}

impl Kept {
    /// True if the attempt may see a version that follows this.
    #[inline]
    fn may_see(&self, who: AttemptId, version: &Seen) -> bool {
        match self.reads {
            Reads::Newest => !version.anti.has(who),
            Reads::First => true,
            Reads::Fixed | Reads::Resolved => self.snapshot.covers(&version.vector),
        }
    }

    /// The version of a record that the attempt reads. Of what is not remembered the floor is known.
    pub(super) fn shown(&self, who: AttemptId, versions: Option<&Versions>, floor: &Seen) -> Shown {
        let newest = versions.and_then(|versions| versions.newest.as_ref()).unwrap_or(floor);
        if self.may_see(who, newest) {
            return Shown::Newest;
        }
        let older = versions.map_or(&[][..], |versions| &versions.older);
        let at = older.iter().rposition(|older| self.may_see(who, older.seen.as_ref().unwrap_or(floor)));
        at.map_or(Shown::Gone, Shown::Older)
    }
}

/// The versions of a record that are remembered.
#[derive(Debug, Default)]
pub(super) struct Versions {
    /// What the newest one follows, and who must not see it; `None` if that is forgotten.
    pub(super) newest: Option<Seen>,
    /// Those before it, which were overwritten lately, the latest last.
    pub(super) older: Vec<Older>,
}

/// A version that was overwritten.
#[derive(Debug)]
pub(super) struct Older {
    pub(super) seen: Option<Seen>,
    pub(super) cell: Cell,
    pub(super) version: Gsn,
}

impl Versions {
    /// Installs the next version.
    pub(super) fn install(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        content: (Cell, Gsn),
        seen: Seen,
    ) {
        let (cell, version) = replace(store, record, content);
        self.older.push(Older { seen: self.newest.replace(seen), cell, version });
        if self.older.len() > VERSIONS_MAX {
            self.older.remove(0);
        }
    }

    /// What the newest version follows.
    pub(super) fn newest<'a>(&'a self, floor: &'a Seen) -> &'a Seen {
        self.newest.as_ref().unwrap_or(floor)
    }
}

/// Marks of one record. Attempts are named by their places in the table of attempts.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// They follow from the log.
    pub(super) versions: Versions,
    /// How often it stands in the queue of what is to be forgotten.
    pub(super) queued: u32,
    /// The number of attempts that have accessed it.
    pub(super) holders: u32,
    /// Attempts that only read, and have read the newest version.
    pub(super) readers: Vec<u32>,
    /// The validated attempt that writes it.
    pub(super) writer: Option<u32>,
    /// The number of validated attempts that need it to be as it is.
    pub(super) checkers: u32,
}

impl Marks {
    /// True if nobody needs them.
    pub(super) fn are_idle(&self) -> bool {
        self.holders == 0 && self.queued == 0
    }

    /// Drops what does not follow from the log.
    pub(super) fn clear(&mut self) {
        let Marks { versions, queued, .. } = std::mem::take(self);
        *self = Marks { versions, queued, ..Marks::default() };
    }
}

/// Marks of the whole table.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Locks of validated attempts.
    pub(super) locks: Counts,
    /// Attempts that only read, and have read all of it.
    pub(super) readers: Vec<u32>,
}
