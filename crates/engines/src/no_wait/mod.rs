//! No-wait: two-phase locking in which nobody waits for a lock (the Q-Store paper, section 5; Bernstein and Goodman, 1981).
//!
//! An access whose lock is held in a mode that conflicts is refused: its attempt aborts, and the coordinator begins another. An
//! attempt holds its locks to its end, so what commits is strictly serializable, and there is no deadlock. The rules stand in
//! `docs/protocols/no-wait.md`.
//!
//! The store's lock word of a record is 0 while nobody holds it, the number of holders of a shared lock, or [`EXCLUSIVE`]. The
//! table has a count of holders a mode, and a gate.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::{
    Age, AttemptId, Bounds, CommitEngine, ConcurrencyControl, Ended, Ending, Mode, Seniority, Target, Verdict,
};
use ordain_model::Abort;
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::two_phase_locking::{Attempts, Counts, Modes, gate};
use gate::Gate;

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "no-wait",
    refusal: Abort::LockRefused,
    is_strict: true,
    control: |_, bugs| Box::new(NoWait::new(bugs)),
};

/// The lock word of a record with an exclusive lock.
pub const EXCLUSIVE: u32 = u32::MAX;

/// The locks of one participant.
#[derive(Debug, Default)]
pub struct NoWait {
    attempts: Attempts<()>,
    /// Holders of locks on the table.
    table: Counts,
    gate: Gate,
    refused: Refused,
    bugs: Bugs,
}

/// Accesses that were refused, by reason.
#[derive(Debug, Default)]
struct Refused {
    /// Others hold the record.
    by_record: u64,
    /// Others hold the record as well, and a shared lock is to become exclusive.
    by_upgrade: u64,
    /// Others hold the table.
    by_table: u64,
    /// The gate is closed.
    by_gate: u64,
}

impl NoWait {
    /// No locks. `bugs` are those that a test has planted.
    pub fn new(bugs: Bugs) -> NoWait {
        NoWait { bugs, ..NoWait::default() }
    }

    /// Locks the table for an attempt (rules N5 to N7). Returns whether that is granted.
    #[inline]
    fn lock_table(&mut self, at: usize, wanted: Modes) -> bool {
        let attempt = &mut self.attempts[at];
        let own = attempt.table;
        if own.covers(wanted) {
            return true;
        }
        let wanted = own.with(wanted);
        let who: Seniority = (attempt.age, attempt.id.transaction);
        // Planted, IN-TURN.
        if self.gate.stops(who, wanted) && !self.bugs.has(Bug::PassTable) {
            self.refused.by_gate += 1;
            return false;
        }
        if self.table.conflict(own, wanted) {
            self.refused.by_table += 1;
            if wanted.whole().is_some() {
                self.gate.note_refused(who, wanted);
            }
            return false;
        }
        self.table.remove(own);
        self.table.add(wanted);
        attempt.table = wanted;
        if wanted.whole().is_some() {
            self.gate.note_granted(who);
        }
        true
    }

    /// Locks a record for an attempt (rules N1 and N2). Returns whether that is granted.
    #[inline]
    fn lock_record(&mut self, store: &mut MemoryStore, at: usize, record: RecordId, mode: Mode) -> bool {
        let held = &mut self.attempts[at].held;
        let word = store.lock(record);
        // Nobody holds a record whose lock word is 0, so the attempt's own locks are not searched.
        let own = if word == 0 { None } else { held.get(record) };
        if own.is_some_and(|own| own >= mode) {
            return true;
        }
        let others = word - u32::from(own == Some(Mode::Shared));
        let next = match mode {
            Mode::Shared if word != EXCLUSIVE => word + 1,
            Mode::Exclusive | Mode::Blind if others == 0 => EXCLUSIVE,
            // Planted, HELD-ALONE: a shared lock is upgraded beside a second holder.
            Mode::Exclusive | Mode::Blind if own.is_some() && self.bugs.has(Bug::UpgradeShared) => {
                return true;
            }
            // Planted, FIFO-LOCKS: the access goes on without a lock.
            _ if self.bugs.has(Bug::GrantLockEarly) => return true,
            Mode::Shared | Mode::Exclusive | Mode::Blind => {
                let upgrade = own.is_some();
                self.refused.by_upgrade += u64::from(upgrade);
                self.refused.by_record += u64::from(!upgrade);
                return false;
            }
        };
        store.set_lock(record, next);
        held.insert(record, mode);
        true
    }

    /// Locks what an access needs. Returns whether that is granted.
    #[inline]
    fn lock(&mut self, store: &mut MemoryStore, at: usize, target: Target, mode: Mode) -> bool {
        match target {
            Target::Table => self.lock_table(at, Modes::of(mode)),
            Target::Record(record) => {
                // Planted, WHOLE-TABLE.
                let has_table =
                    self.bugs.has(Bug::ForgetIntention) || self.lock_table(at, Modes::intention(mode));
                has_table && self.lock_record(store, at, record, mode)
            }
        }
    }
}

impl ConcurrencyControl for NoWait {
    fn access(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        age: Age,
        target: Target,
        mode: Mode,
    ) -> Verdict {
        let at = self.attempts.find_or_add(who, age);
        if self.lock(store, at, target, mode) { Verdict::Granted } else { Verdict::Refused }
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, _ending: Ending, ended: &mut Ended) {
        let Some(at) = self.attempts.take_out(who, self.bugs) else { return };
        let attempt = &mut self.attempts[at];
        for (record, mode) in attempt.held.iter() {
            let word = if mode == Mode::Exclusive { 0 } else { store.lock(record) - 1 };
            store.set_lock(record, word);
            if word == 0 {
                ended.released.push(record);
            }
        }
        self.table.remove(attempt.table);
        self.attempts.reuse(at);
    }

    fn restore(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        bounds: Bounds,
        target: Target,
        mode: Mode,
    ) {
        let age = bounds.from;
        let at = self.attempts.find_or_add(who, age);
        let is_granted = self.lock(store, at, target, mode);
        assert!(is_granted, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].show(show);
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        let attempts = self.attempts.sorted();
        let held: BTreeSet<RecordId> =
            attempts.iter().flat_map(|attempt| attempt.held.iter()).map(|(record, _)| record).collect();
        for record in held {
            store.set_lock(record, 0);
            store.release_if_absent(record);
        }
        self.attempts.clear();
        (self.table, self.gate) = (Counts::default(), Gate::default());
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        let mut words: BTreeMap<RecordId, u32> = BTreeMap::new();
        let mut table = Counts::default();
        for attempt in self.attempts.sorted() {
            attempt.check(is_live)?;
            table.add(attempt.table);
            for (record, mode) in attempt.held.iter() {
                let word = words.entry(record).or_default();
                *word = match mode {
                    Mode::Shared => word.saturating_add(1),
                    Mode::Exclusive | Mode::Blind if *word == 0 => EXCLUSIVE,
                    Mode::Exclusive | Mode::Blind => {
                        return Err(format!("attempt {} shares an exclusive lock", attempt.id));
                    }
                };
            }
        }
        if table != self.table {
            return Err(format!("the table counts {:?} and attempts hold {table:?}", self.table));
        }
        match words.iter().find(|(record, word)| store.lock(**record) != **word) {
            Some((record, word)) => {
                Err(format!("{record:?} has the lock word {} and holders for {word}", store.lock(*record)))
            }
            None => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Refused { by_record, by_upgrade, by_table, by_gate } = self.refused;
        report("ordain_locks_attempts", self.attempts.len() as f64);
        report("ordain_locks_refused_total{reason=\"record\"}", by_record as f64);
        report("ordain_locks_refused_total{reason=\"upgrade\"}", by_upgrade as f64);
        report("ordain_locks_refused_total{reason=\"table\"}", by_table as f64);
        report("ordain_locks_refused_total{reason=\"gate\"}", by_gate as f64);
        report("ordain_locks_gate_closed_total", self.gate.closings() as f64);
    }
}
