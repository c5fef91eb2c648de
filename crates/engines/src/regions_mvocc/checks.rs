//! Checks of what must hold between two events.

use std::collections::BTreeMap;

use ordain_commit::{Age, AttemptId, Mode, Target};
use ordain_role::Bugs;
use ordain_store::{MemoryStore, RecordId};

use super::Mvocc;
use super::versions::{Marks, Shown};
use crate::marked_records::OfRecord;

/// Marks of a record as attempts know of them.
#[derive(Debug, Default)]
struct Known {
    holders: u32,
    claimants: Vec<u32>,
    leaves: Option<u32>,
    queued: u32,
    protected: u32,
}

impl Known {
    /// True if marks are as attempts know of them. An attempt that waits for a claim has none.
    fn is_of(&self, marks: &Marks) -> bool {
        (self.holders, self.queued, self.protected) == (marks.holders, marks.queued, marks.protected)
            && marks.claim.is_none_or(|claim| self.claimants.contains(&claim))
            && self.leaves == marks.next.as_ref().map(|next| next.by)
    }
}

impl Mvocc {
    /// Checks what attempts, records and the table know of each other.
    ///
    /// # Errors
    /// The first that is wrong.
    pub(super) fn check_all(
        &self,
        store: &MemoryStore,
        is_live: &dyn Fn(AttemptId) -> bool,
    ) -> Result<(), String> {
        let mut known: BTreeMap<RecordId, Known> = BTreeMap::new();
        for at in self.attempts.places() {
            let attempt = &self.attempts[at as usize];
            attempt.check(is_live)?;
            for (record, mode) in attempt.held.iter() {
                let known = known.entry(record).or_default();
                known.holders += 1;
                if mode != Mode::Shared {
                    known.claimants.push(at);
                }
            }
            for record in attempt.kept.leaves.iter().flatten() {
                known.entry(*record).or_default().leaves = Some(at);
            }
            for record in &attempt.kept.protects {
                known.entry(*record).or_default().protected += 1;
            }
            self.check_attempt(store, at)?;
        }
        for (_, place) in &self.installed {
            known.entry(self.records.of(*place).record).or_default().queued += 1;
        }
        let is_validated = |at: u32| self.attempts[at as usize].kept.validated().is_some();
        let is_barred = |barrier| match barrier {
            Target::Record(record) => {
                let claim = self.records.get(store, record).and_then(|marks| marks.claim);
                claim.is_some_and(is_validated)
            }
            Target::Table => !self.table.writing.is_empty(),
        };
        self.records.check(store, known, |OfRecord { record, marks, .. }, known| {
            if !known.is_of(marks) || marks.are_idle() {
                return Err(format!("{record:?} has {marks:?}, and attempts know of {known:?}"));
            }
            let begins = marks.older.iter().map(|older| older.begin).chain([marks.begin]);
            match begins.is_sorted_by(|a, b| a < b) || self.bugs != Bugs::NONE {
                true => Ok(()),
                false => Err(format!("versions of {record:?} do not begin one after the other: {marks:?}")),
            }
        })?;
        self.waiting.check(|access| self.attempts.holds(access.by, access.target), is_barred)
    }

    fn check_attempt(&self, store: &MemoryStore, at: u32) -> Result<(), String> {
        let attempt = &self.attempts[at as usize];
        let (id, kept) = (attempt.id, &attempt.kept);
        for below in &kept.stands_on {
            let other = &self.attempts[*below as usize];
            let is_below = other.kept.prepared().is_some_and(|stamp| stamp <= kept.at);
            let is_sound = is_below && other.kept.carries.contains(&at);
            if !is_sound || self.attempts.find(other.id) != Some(*below as usize) {
                return Err(format!("attempt {id} stands on {}, which carries it not", other.id));
            }
        }
        if let Some(above) = kept.carries.iter().find(|above| {
            let kept = &self.attempts[**above as usize].kept;
            !kept.stands_on.contains(&at)
        }) {
            return Err(format!("attempt {id} carries one at {above} that does not stand on it"));
        }
        let Some(stamp) = kept.validated() else { return Ok(()) };
        let writes = self.writes(at as usize);
        if stamp > self.latest || writes != (self.table.writing.get(&stamp) == Some(&at)) {
            return Err(format!(
                "attempt {id} is validated with {stamp:?}, and the table has {:?}",
                self.table
            ));
        }
        if kept.is_doomed || self.bugs != Bugs::NONE || kept.came != self.table.changes {
            return Ok(());
        }
        // Writers since then have later stamps.
        let lacks = kept.read.iter().find(|(record, begin)| {
            let marks = self.records.get(store, *record);
            marks.is_some_and(|marks| !is_seen(marks, stamp, *begin, self.table.changed))
        });
        match lacks {
            Some((record, _)) if !self.stands_on_writer(store, at, record) => Err(format!(
                "attempt {id} is validated with {stamp:?} and has read another version of {record:?}"
            )),
            _ => Ok(()),
        }
    }

    /// True if an attempt has read what is not installed yet.
    fn stands_on_writer(&self, store: &MemoryStore, at: u32, record: RecordId) -> bool {
        let next = self.records.get(store, record).and_then(|marks| marks.next.as_ref());
        next.is_some_and(|next| self.attempts[at as usize].kept.stands_on.contains(&next.by))
    }
}

/// True if a stamp sees the version with this begin.
fn is_seen(marks: &Marks, stamp: Age, begin: Age, changed: Age) -> bool {
    match marks.shown(stamp, changed) {
        // The version was dropped, as nobody needs it any more.
        Shown::Gone => true,
        shown => marks.begin_of(shown, changed) == begin,
    }
}
