//! Optimistic reads and validation, as a part of the engines that have them: an attempt reads without locks, and is validated when it is to
//! commit.
//!
//! A read takes note of the record's version. When the attempt is to commit, each of its participants locks what it writes there, without
//! waiting, and refuses it if a record that it has read has another version by then, or is locked. How long others are kept from changing what it has
//! read is the engine's: [`Marks`](Marked).

mod marks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use ordain_commit::options::BACKOFF;
use ordain_commit::{
    Age, AttemptId, Bounds, Commitment, ConcurrencyControl, Ended, Ending, Mode, Target, Verdict,
};
use ordain_execution::TableChange;
use ordain_model::{Cell, Gsn, Offer};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::marked_records::{OfRecord, Places};
use crate::two_phase_locking::gate::{Gate, by_id};
use crate::two_phase_locking::{Attempts, Counts, Modes};
use crate::waiting::{Access, Waiting};
use marks::{Kept, Marks, Table};

/// How long others are kept from changing what a validated attempt has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Marked {
    /// Until it is over.
    #[default]
    ToTheEnd,
    /// While it is validated and not decided. What only reads marks nothing, nor does what one participant decides.
    Undecided,
}

/// The options of engines that validate what they have read.
pub(crate) static OPTIONS: [Offer; 1] = [Offer::of(&BACKOFF)];

/// The versions that attempts have read at one participant, and the locks of those that are validated.
#[derive(Debug, Default)]
pub(crate) struct Optimistic {
    marked: Marked,
    /// The modes of what an attempt holds say what it reads and writes. They are locks once it is validated.
    attempts: Attempts<Kept>,
    records: Places<Marks>,
    table: Table,
    waiting: Waiting,
    gate: Gate,
    counts: Figures,
    bugs: Bugs,
}

/// Attempts that were refused, by reason, and those that were validated.
#[derive(Debug, Default)]
struct Figures {
    /// Something that it has read is not as it was.
    by_version: u64,
    /// Another attempt is validated that reads what it writes, or writes what it reads or writes.
    by_lock: u64,
    /// The gate is closed.
    by_gate: u64,
    validated: u64,
    /// Validated attempts of which no read is marked.
    unmarked: u64,
}

impl Optimistic {
    /// The control of a participant. `bugs` are those that a test has planted.
    pub(crate) fn new(marked: Marked, bugs: Bugs) -> Optimistic {
        Optimistic { marked, bugs, ..Optimistic::default() }
    }

    /// Adds a target to what an attempt has accessed.
    fn enlist(&mut self, store: &mut MemoryStore, at: usize, target: Target, mode: Mode) {
        if let Some(record) = self.attempts.enlist(at, target, mode) {
            let (place, _) = self.records.find_or_add(store, record);
            self.records.at_mut(place).holders += 1;
        }
    }

    /// The target whose lock an access waits for: a validated attempt writes what it would read (rule O1).
    fn barred_by(&self, store: &MemoryStore, target: Target, mode: Mode) -> Option<Target> {
        // Planted, FIFO-LOCKS: the read does not look at writes that are on their way.
        if mode == Mode::Blind || self.bugs.has(Bug::GrantLockEarly) {
            return None;
        }
        let (wanted, record) = match target {
            Target::Table => (Modes::SHARED, None),
            Target::Record(record) => (Modes::INTENTION_SHARED, self.records.get(store, record)),
        };
        if self.table.locks.conflict(Modes::NONE, wanted) {
            return Some(Target::Table);
        }
        record.and_then(|marks| marks.writer).map(|_| target)
    }

    /// True if an attempt that other regions decide about too has locked a record.
    fn is_promised(&self, store: &MemoryStore, barrier: Target) -> bool {
        let Target::Record(record) = barrier else { return false };
        let writer = self.records.get(store, record).and_then(|marks| marks.writer);
        // Planted, NO-DEADLOCK.
        let looks = !self.bugs.has(Bug::DirectWaitsOnly);
        looks && writer.is_some_and(|by| self.attempts[by as usize].kept.is_promised)
    }

    /// Takes note of what an access reads (rule O2). Returns whether it is as the attempt has seen it before.
    fn read(&mut self, store: &MemoryStore, at: usize, target: Target, mode: Mode) -> bool {
        let kept = &mut self.attempts[at].kept;
        if kept.came != Some(self.table.changed) {
            return false;
        }
        match target {
            Target::Record(_) if mode == Mode::Blind => true,
            Target::Record(record) => {
                let version = self.records.get(store, record).map(|marks| marks.version(store, record));
                let before = kept.read.get(record);
                if let (None, Some(version)) = (before, version) {
                    kept.read.insert(record, version);
                }
                before.is_none_or(|before| version == Some(before))
            }
            Target::Table => *kept.read_table.get_or_insert(self.table.installed) == self.table.installed,
        }
    }

    /// Runs an access that is not barred, or lets it wait; one to the whole table is refused.
    fn go_on(&mut self, store: &mut MemoryStore, at: usize, target: Target, mode: Mode) -> Verdict {
        match self.barred_by(store, target, mode) {
            // Others would come before it for ever: the gate keeps them out.
            Some(_) if target == Target::Table => self.counts.by_lock += 1,
            Some(barrier) if self.attempts[at].kept.is_part && self.is_promised(store, barrier) => {
                self.counts.by_lock += 1;
            }
            Some(barrier) => {
                self.waiting.add(Access { by: at as u32, target, mode }, barrier);
                return Verdict::Waits;
            }
            None if self.read(store, at, target, mode) => return Verdict::Granted,
            None => self.counts.by_version += 1,
        }
        if target == Target::Table {
            self.gate.note_refused(by_id(self.attempts[at].id), Modes::of(mode));
        }
        Verdict::Refused
    }

    /// True if all that an attempt has read here is as it was (rule O3).
    fn is_current(&self, store: &MemoryStore, at: usize) -> bool {
        let Kept { read, read_table, came, .. } = &self.attempts[at].kept;
        // Planted, VALIDATED.
        self.bugs.has(Bug::SkipValidation)
            || read.iter().all(|(record, version)| {
                self.records.get(store, record).is_some_and(|marks| marks.version(store, record) == version)
            }) && read_table.is_none_or(|installed| installed == self.table.installed)
                && came.is_none_or(|changed| changed == self.table.changed)
    }

    /// True if no validated attempt has a lock that conflicts with those that an attempt would have (rule O3).
    fn may_lock(&self, store: &MemoryStore, at: usize) -> bool {
        let attempt = &self.attempts[at];
        let has_table = !self.table.locks.conflict(Modes::NONE, attempt.table);
        // Planted, HELD-ALONE: a write does not look at reads. FIFO-LOCKS: a read does not look at a write.
        let (looks, reads) = (!self.bugs.has(Bug::UpgradeShared), !self.bugs.has(Bug::GrantLockEarly));
        has_table
            && attempt.held.iter().all(|(record, mode)| {
                let marks = self.records.get(store, record);
                marks.is_none_or(|marks| match mode {
                    Mode::Shared => marks.writer.is_none() || !reads,
                    Mode::Exclusive | Mode::Blind => marks.writer.is_none() && (marks.readers == 0 || !looks),
                })
            })
    }

    /// The lock on the table that an attempt has once it is validated.
    fn table_lock(&self, at: usize) -> Modes {
        let attempt = &self.attempts[at];
        let modes = if attempt.kept.lets_reads_go { attempt.table.written() } else { attempt.table };
        // Planted, WHOLE-TABLE.
        match self.bugs.has(Bug::ForgetIntention) {
            true => modes.whole().map_or(Modes::NONE, Modes::of),
            false => modes,
        }
    }

    /// Gives an attempt the locks of all that it has accessed.
    fn lock(&mut self, store: &MemoryStore, at: usize) {
        self.table.locks.add(self.table_lock(at));
        let attempt = &mut self.attempts[at];
        attempt.kept.is_validated = true;
        for (record, mode) in attempt.held.iter().filter(|(_, mode)| attempt.kept.locks(*mode)) {
            if let Some(marks) = self.records.get_mut(store, record) {
                marks.lock(at as u32, mode);
            }
        }
    }
}

impl ConcurrencyControl for Optimistic {
    fn validates(&self) -> bool {
        true
    }

    fn keeps_reads(&self) -> bool {
        false
    }

    fn tells_blind(&self) -> bool {
        true
    }

    fn access(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        age: Age,
        target: Target,
        mode: Mode,
    ) -> Verdict {
        // A change of the whole table always reads it.
        let mode = if target == Target::Table && mode == Mode::Blind { Mode::Exclusive } else { mode };
        let at = self.attempts.find_or_add(who, age);
        let kept = &mut self.attempts[at].kept;
        kept.came.get_or_insert(self.table.changed);
        if kept.is_validated {
            return Verdict::Refused;
        }
        if !self.gate.lets_in(&mut self.attempts[at], target, mode, self.bugs) {
            self.counts.by_gate += 1;
            return Verdict::Refused;
        }
        self.enlist(store, at, target, mode);
        self.go_on(store, at, target, mode)
    }

    fn note_part(&mut self, who: AttemptId, age: Age) {
        let at = self.attempts.find_or_add(who, age);
        self.attempts[at].kept.is_part = true;
    }

    fn keep_reads(&mut self, who: AttemptId) {
        if let Some(at) = self.attempts.find(who) {
            self.attempts[at].kept.is_promised = true;
        }
    }

    fn let_reads_go(&mut self, who: AttemptId) {
        if let Some(at) = self.attempts.find(who)
            && self.marked == Marked::Undecided
            && !self.attempts[at].kept.is_validated
        {
            self.attempts[at].kept.lets_reads_go = true;
        }
    }

    fn validate(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        bounds: Bounds,
        _given: Bounds,
    ) -> Bounds {
        // An attempt that is not known here has asked for nothing.
        let Some(at) = self.attempts.find(who).filter(|at| !self.attempts[*at].kept.is_validated) else {
            return bounds;
        };
        let (is_current, may_lock) = (self.is_current(store, at), self.may_lock(store, at));
        if is_current && may_lock {
            self.counts.validated += 1;
            // Planted, VALIDATED: nothing that it has read is marked, though others are to validate it yet.
            self.attempts[at].kept.lets_reads_go |= self.bugs.has(Bug::UnmarkReads);
            self.counts.unmarked += u64::from(self.attempts[at].kept.lets_reads_go);
            self.lock(store, at);
            return bounds;
        }
        match is_current {
            true => self.counts.by_lock += 1,
            false => self.counts.by_version += 1,
        }
        self.gate.note_invalid(&self.attempts[at]);
        Bounds { until: Age(0), ..bounds }
    }

    fn change(&mut self, store: &mut MemoryStore, change: TableChange, _with: &Commitment, version: Gsn) {
        self.table.changed += 1;
        change.apply(&mut store.table(version));
    }

    fn install(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        cell: Cell,
        _with: &Commitment,
        version: Gsn,
    ) {
        self.table.installed += 1;
        store.put_back(record, cell, version);
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, ending: Ending, ended: &mut Ended) {
        let Some(at) = self.attempts.take_out(who, self.bugs) else { return };
        self.waiting.remove(at as u32);
        let table = self.table_lock(at);
        let attempt = &mut self.attempts[at];
        let is_validated = attempt.kept.is_validated;
        // It may have found a record expired that it has not changed, or have written a part of it that has no version of its own.
        let has_changed = is_validated && ending != Ending::Aborted;
        let mut woken = Vec::new();
        for (record, mode) in attempt.held.iter() {
            let (place, _) = self.records.find_or_add(store, record);
            let marks = self.records.at_mut(place);
            marks.holders -= 1;
            if is_validated && attempt.kept.locks(mode) {
                marks.unlock(mode);
            }
            // Planted, TIME-RISES.
            if has_changed && mode != Mode::Shared && !self.bugs.has(Bug::LookBack) {
                marks.changed += 1;
                self.table.installed += 1;
            }
            if marks.writer.is_none() {
                self.waiting.wake(Target::Record(record), &mut woken);
            }
            if marks.holders == 0 {
                self.records.free(store, place);
            }
        }
        if is_validated {
            self.table.locks.remove(table);
            self.waiting.wake(Target::Table, &mut woken);
        }
        if let Some(mode) = attempt.table.whole().filter(|_| has_changed) {
            self.gate.note_granted(by_id(who));
            self.table.changed += u64::from(mode == Mode::Exclusive);
        }
        self.attempts.reuse(at);
        for Access { by, target, mode } in woken {
            let verdict = self.go_on(store, by as usize, target, mode);
            ended.add(self.attempts[by as usize].id, verdict);
        }
    }

    fn restore(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        bounds: Bounds,
        target: Target,
        mode: Mode,
    ) {
        let at = self.attempts.find_or_add(who, bounds.from);
        let before = self.table_lock(at);
        self.enlist(store, at, target, mode);
        let attempt = &mut self.attempts[at];
        if let Target::Record(_) = target {
            attempt.table = attempt.table.with(Modes::intention(mode));
        }
        attempt.kept.came.get_or_insert(self.table.changed);
        (attempt.kept.is_validated, attempt.kept.is_promised) = (true, true);
        let after = self.table_lock(at);
        let is_alone = !self.table.locks.conflict(before, after);
        self.table.locks.remove(before);
        self.table.locks.add(after);
        let is_free = match target {
            Target::Record(record) => self.records.get_mut(store, record).is_some_and(|marks| {
                let is_free = marks.writer.is_none() && (mode == Mode::Shared || marks.readers == 0);
                marks.lock(at as u32, mode);
                is_free
            }),
            Target::Table => true,
        };
        assert!(is_alone && is_free, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn is_held(&self, store: &MemoryStore, record: RecordId) -> bool {
        self.records.get(store, record).is_some_and(|marks| marks.writer.is_some())
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].show(show);
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        self.records.clear(store);
        self.attempts.clear();
        self.table.clear();
        self.waiting.clear();
        self.gate = Gate::default();
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        let mut known: BTreeMap<RecordId, Marks> = BTreeMap::new();
        let mut locks = Counts::default();
        for at in self.attempts.places() {
            let attempt = &self.attempts[at as usize];
            attempt.check(is_live)?;
            let Kept { is_validated, lets_reads_go, .. } = attempt.kept;
            if is_validated
                && !lets_reads_go
                && self.bugs == Bugs::NONE
                && !self.is_current(store, at as usize)
            {
                return Err(format!(
                    "attempt {} is validated, and what it has read is not as it was",
                    attempt.id
                ));
            }
            for (record, mode) in attempt.held.iter() {
                let marks = known.entry(record).or_default();
                marks.holders += 1;
                let is_locked = is_validated && attempt.kept.locks(mode);
                if is_locked && marks.writer.is_some_and(|_| self.bugs == Bugs::NONE) {
                    return Err(format!("attempt {} shares what another writes: {record:?}", attempt.id));
                }
                if is_locked {
                    marks.lock(at, mode);
                }
            }
            if is_validated {
                locks.add(self.table_lock(at as usize));
            }
        }
        if self.table.locks != locks {
            return Err(format!("the table has {:?}, and attempts know of {locks:?}", self.table));
        }
        let is_barred = |barrier| match barrier {
            Target::Record(record) => self.is_held(store, record),
            Target::Table => self.table.locks.conflict(Modes::NONE, Modes::INTENTION_SHARED),
        };
        self.records.check(store, known, |OfRecord { record, marks, .. }, known| {
            if marks.holders == 0 {
                return Err(format!("{record:?} has marks that nobody needs: {marks:?}"));
            }
            if *marks != (Marks { changed: marks.changed, ..known }) {
                return Err(format!("{record:?} has {marks:?}, and attempts know of {known:?}"));
            }
            match marks.writer.is_some() && marks.readers > 0 && self.bugs == Bugs::NONE {
                true => Err(format!("{record:?} is read and written by validated attempts: {marks:?}")),
                false => Ok(()),
            }
        })?;
        self.waiting.check(|access| self.attempts.holds(access.by, access.target), is_barred)
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Figures { by_version, by_lock, by_gate, validated, unmarked } = self.counts;
        report("ordain_optimistic_attempts", self.attempts.len() as f64);
        report("ordain_optimistic_records", self.records.len() as f64);
        report("ordain_optimistic_validated_total", validated as f64);
        report("ordain_optimistic_unmarked_total", unmarked as f64);
        report("ordain_optimistic_refused_total{reason=\"version\"}", by_version as f64);
        report("ordain_optimistic_refused_total{reason=\"lock\"}", by_lock as f64);
        report("ordain_optimistic_refused_total{reason=\"gate\"}", by_gate as f64);
        report("ordain_optimistic_gate_closed_total", self.gate.closings() as f64);
    }
}
