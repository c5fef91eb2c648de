//! Versions of a record, and the marks of an attempt, of a record and of the whole table. Attempts are named by their places in the table of attempts.

use std::collections::BTreeMap;

use ordain_commit::{Age, Reads};
use ordain_model::{Cell, Gsn};
use ordain_store::{MemoryStore, RecordId};

use crate::marked_records::replace;
use crate::two_phase_locking::Held;

/// The most older versions of a record. A reader that needs one beyond them begins anew.
const VERSIONS_MAX: usize = 1_024;

/// The state of an attempt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum State {
    /// The attempt runs.
    #[default]
    Active,
    /// The attempt is validated with this stamp, and what it writes may be read. The outcome is not known here.
    Prepared(Age),
    /// The attempt is validated with this stamp, and has no effect.
    Reading(Age),
}

/// An attempt as it reads and writes.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) state: State,
    /// The versions that it reads.
    pub(super) reads: Reads,
    /// An access is refused that would wait for a part of a transaction of several regions.
    pub(super) resolves: bool,
    /// The attempt has come with a stamp.
    pub(super) has_come: bool,
    /// The stamp at which it reads.
    pub(super) at: Age,
    /// The number of changes of whole databases that had been made when it came.
    pub(super) came: u64,
    /// The begin of each version that it has read. That of one which is not decided is its writer's stamp.
    pub(super) read: Held<Age>,
    /// The stamp at which it has read the whole table.
    pub(super) read_table: Option<Age>,
    /// The records that it leaves another version of; none if that is not known.
    pub(super) leaves: Option<Vec<RecordId>>,
    /// Prepared attempts whose writes it has read: it commits only if they do.
    pub(super) stands_on: Vec<u32>,
    /// Attempts that stand on it.
    pub(super) carries: Vec<u32>,
    /// One that it has stood on has come to nothing.
    pub(super) is_doomed: bool,
    /// The attempt has no effect, whatever it has written.
    pub(super) forgoes: bool,
    /// What it has read must not change from its validation on: it is one region's part of a transaction of several.
    pub(super) keeps_reads: bool,
    /// It is a region's part of a transaction that another one has initiated.
    pub(super) is_part: bool,
    /// The records that nobody may write for that reason.
    pub(super) protects: Vec<RecordId>,
}

impl Kept {
    /// The stamp with which it may commit and write, once it is validated.
    pub(super) const fn prepared(&self) -> Option<Age> {
        match self.state {
            State::Prepared(stamp) => Some(stamp),
            State::Active | State::Reading(_) => None,
        }
    }

    /// The stamp with which it is validated.
    pub(super) const fn validated(&self) -> Option<Age> {
        match self.state {
            State::Prepared(stamp) | State::Reading(stamp) => Some(stamp),
            State::Active => None,
        }
    }
}

/// A version that was replaced. It ends where the next one begins.
#[derive(Debug)]
pub(super) struct Older {
    pub(super) begin: Age,
    cell: Cell,
    version: Gsn,
}

/// A version that an attempt will leave.
#[derive(Debug)]
pub(super) struct Next {
    pub(super) by: u32,
    /// The content; none if that stays as it is, and a child record changes.
    pub(super) cell: Option<Cell>,
}

/// The version of a record that a stamp sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    /// The newest.
    Newest,
    /// An older one, by its place.
    Older(usize),
    /// One that is not kept any more.
    Gone,
}

/// Marks of one record.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The stamp with which the newest version begins, which is in the store; 0 if it is not remembered.
    pub(super) begin: Age,
    /// The versions before it, ascending.
    pub(super) older: Vec<Older>,
    /// The number of times that it stands in the queue of what is to be forgotten.
    pub(super) queued: u32,
    /// The number of attempts that have accessed it.
    pub(super) holders: u32,
    /// The owner of the newest version's end: the attempt that writes the next one.
    pub(super) claim: Option<u32>,
    /// The version after the newest, once its writer has handed it over.
    pub(super) next: Option<Next>,
    /// The number of validated attempts for which nobody may write it.
    pub(super) protected: u32,
}

impl Marks {
    /// True if nobody needs them.
    pub(super) fn are_idle(&self) -> bool {
        self.holders == 0 && self.queued == 0 && self.next.is_none()
    }

    /// The version that a stamp sees. None from before a change of all records is kept, and that has this stamp.
    pub(super) fn shown(&self, at: Age, changed: Age) -> Shown {
        if at < changed {
            // What began before the change shows what that has left.
            return Shown::Gone;
        }
        if at >= self.begin {
            return Shown::Newest;
        }
        self.older.iter().rposition(|older| older.begin <= at).map_or(Shown::Gone, Shown::Older)
    }

    /// The begin of the version that a stamp sees, which is not before a change of all records.
    pub(super) fn begin_of(&self, shown: Shown, changed: Age) -> Age {
        let begin = match shown {
            Shown::Older(place) => self.older[place].begin,
            Shown::Newest | Shown::Gone => self.begin,
        };
        begin.max(changed)
    }

    /// The content and version at a place.
    pub(super) fn older(&self, place: usize) -> (&Cell, Gsn) {
        let Older { cell, version, .. } = &self.older[place];
        (cell, *version)
    }

    /// Installs the next version.
    pub(super) fn install(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        content: (Cell, Gsn),
        stamp: Age,
    ) {
        let (cell, version) = replace(store, record, content);
        self.older.push(Older { begin: self.begin, cell, version });
        self.begin = stamp;
        if self.older.len() > VERSIONS_MAX {
            self.older.remove(0);
        }
    }

    /// Drops the versions that no stamp from this one on sees.
    pub(super) fn forget(&mut self, before: Age) {
        let begin = |at: usize| self.older.get(at).map_or(self.begin, |older| older.begin);
        let gone = (0..self.older.len()).take_while(|at| begin(at + 1) <= before).count();
        self.older.drain(..gone);
    }
}

/// Marks of the whole table.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Changes of whole databases so far: a record may stand in another one after each.
    pub(super) changes: u64,
    /// The stamp of the last one.
    pub(super) changed: Age,
    /// The latest stamp of what was installed.
    pub(super) newest: Age,
    /// The prepared attempt that changes whole databases.
    pub(super) changing: Option<u32>,
    /// The prepared attempts that write something, by their stamps.
    pub(super) writing: BTreeMap<Age, u32>,
}
