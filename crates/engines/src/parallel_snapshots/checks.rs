//! Invariants of the versions and marks of a participant, held after every event of a simulated run, and when nothing is under way.

use std::collections::BTreeMap;

use ordain_commit::{AttemptId, Seen, Target};
use ordain_store::{MemoryStore, RecordId};

use super::ParallelSnapshots;
use super::marks::{Kept, Marks, Versions};
use crate::marked_records::OfRecord;
use crate::two_phase_locking::{Counts, Modes};

impl ParallelSnapshots {
    /// Checks what must hold between two events.
    pub(super) fn check_all(
        &self,
        store: &MemoryStore,
        is_live: &dyn Fn(AttemptId) -> bool,
    ) -> Result<(), String> {
        let mut known: BTreeMap<RecordId, Marks> = BTreeMap::new();
        let mut locks = Counts::default();
        for at in self.attempts.places() {
            let attempt = &self.attempts[at as usize];
            attempt.check(is_live)?;
            let locked = self.locked(at as usize);
            for (record, _) in attempt.held.iter() {
                known.entry(record).or_default().holders += 1;
            }
            if attempt.kept.is_validated {
                locks.add(self.table_lock(at as usize));
                for (record, writes) in locked {
                    self.check_follows(store, at as usize, (record, writes))?;
                    let marks = known.entry(record).or_default();
                    match writes {
                        true if marks.writer.is_some() => {
                            return Err(format!(
                                "attempt {} writes what another does: {record:?}",
                                attempt.id
                            ));
                        }
                        true => marks.writer = Some(at),
                        false => marks.checkers += 1,
                    }
                }
            }
        }
        if self.table.locks != locks {
            return Err(format!("the table has {:?}, and attempts know of {locks:?}", self.table));
        }
        let is_barred = |barrier| match barrier {
            Target::Record(record) => {
                self.records.get(store, record).is_some_and(|marks| marks.writer.is_some())
            }
            Target::Table => self.table.locks.conflict(Modes::NONE, Modes::SHARED),
        };
        let queued: usize = self.records.iter().map(|of| of.marks.queued as usize).sum();
        if queued != self.installed.len() {
            return Err(format!(
                "{queued} versions are to be forgotten, and {} are queued",
                self.installed.len()
            ));
        }
        self.records.check(store, known, |OfRecord { record, marks, .. }, known| {
            if marks.are_idle() {
                return Err(format!("{record:?} has marks that nobody needs: {marks:?}"));
            }
            let of = |marks: &Marks| (marks.holders, marks.writer, marks.checkers);
            if of(marks) != of(&known) {
                return Err(format!("{record:?} has {marks:?}, and attempts know of {known:?}"));
            }
            check_readers(marks, |at| self.attempts[at as usize].held.get(*record).is_some())
                .and_then(|()| check_versions(&marks.versions))
                .map_err(|reason| format!("{record:?}: {reason}: {marks:?}"))
        })?;
        self.waiting.check(|access| self.attempts.holds(access.by, access.target), is_barred)
    }

    /// Checks that no reader is named.
    pub(super) fn check_names(&self) -> Result<(), String> {
        let names = |seen: &Seen| !seen.anti.is_empty();
        if names(&self.floor) || !self.table.readers.is_empty() {
            return Err(format!("readers that are over are named: {:?}, {:?}", self.floor, self.table));
        }
        let is_kept = |marks: &Marks| {
            let older = marks.versions.older.iter().filter_map(|older| older.seen.as_ref());
            !marks.readers.is_empty() || marks.versions.newest.iter().chain(older).any(names)
        };
        match self.records.iter().find(|of| is_kept(&of.marks)) {
            Some(of) => Err(format!("{:?} names readers that are over: {:?}", of.record, of.marks)),
            None => Ok(()),
        }
    }

    /// Checks that a validated attempt follows what it overwrites (invariant I2), and must be seen by nobody who must not see that (I3). Of one that
    /// was restored the log has that.
    fn check_follows(
        &self,
        store: &MemoryStore,
        at: usize,
        (record, writes): (RecordId, bool),
    ) -> Result<(), String> {
        let Kept { seen, has_come, .. } = &self.attempts[at].kept;
        // What is not remembered follows the floor, which may have risen since it was validated.
        let marks = self.records.get(store, record);
        let Some(newest) = marks.and_then(|marks| marks.versions.newest.as_ref()) else { return Ok(()) };
        let names = |reader: AttemptId| {
            let mut named = seen.anti.iter();
            named.any(|who| who.transaction == reader.transaction && who >= reader)
        };
        let misses = |reader: &AttemptId| self.living.has(*reader) && !names(*reader);
        let is_after =
            seen.vector.covers(&newest.vector) && !newest.anti.iter().any(|reader| misses(&reader));
        match is_after || !writes || !has_come {
            true => Ok(()),
            false => Err(format!(
                "attempt {} does not follow what it overwrites, {record:?}: {seen:?}, {newest:?}",
                self.attempts[at].id
            )),
        }
    }
}

/// Checks that readers of a record hold it, each once.
fn check_readers(marks: &Marks, holds: impl Fn(u32) -> bool) -> Result<(), &'static str> {
    let mut readers = marks.readers.clone();
    readers.sort_unstable();
    match readers.windows(2).any(|two| two[0] == two[1]) || !readers.iter().all(|at| holds(*at)) {
        true => Err("it has readers that do not hold it, or twice"),
        false => Ok(()),
    }
}

/// Checks that the newest version follows the one before it (invariant I1). Those before it were the newest once.
fn check_versions(versions: &Versions) -> Result<(), &'static str> {
    let before = versions.older.last().and_then(|older| older.seen.as_ref());
    let follows = |(before, newest): (&Seen, &Seen)| {
        newest.vector.covers(&before.vector) && newest.vector != before.vector
    };
    match before.zip(versions.newest.as_ref()).is_none_or(follows) {
        true => Ok(()),
        false => Err("a version does not follow the one before it"),
    }
}
