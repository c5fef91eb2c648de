//! Basic timestamp ordering (Bernstein and Goodman, 1981; the Q-Store paper, section 6): attempts take effect in the order of their
//! stamps.
//!
//! An access that comes too late for its stamp is refused, and the next attempt has a later stamp. An access to something that an attempt with
//! a smaller stamp may write waits for the end of that. Every wait goes from a larger stamp to a smaller one, so there is no
//! deadlock. The rules stand in `docs/protocols/timestamp.md`.
//!
//! A plan has no blind writes: [`Mode::Exclusive`] is a prewrite and a read. So one prewrite of a record at a time is granted, and writes of
//! a record are installed in the order of stamps.

mod marks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::options::BACKOFF;
use ordain_commit::{
    Age, AttemptId, CommitEngine, ConcurrencyControl, Ended, Mode, Seniority, Stamps, Target, Verdict,
};
use ordain_model::{Abort, Offer};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::two_phase_locking::gate::Gate;
use crate::two_phase_locking::{Attempts, Modes};
use marks::{Marks, Place, Records, put, take};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "timestamp",
    refusal: Abort::TooLate,
    is_strict: false,
    control: |bugs| Box::new(Timestamp::new(bugs)),
};

/// The options of the engine.
pub(crate) static OPTIONS: [Offer; 1] = [Offer::of(&BACKOFF)];

/// The marks of one participant.
#[derive(Debug, Default)]
pub struct Timestamp {
    /// An attempt holds its prewrites: on records, and the table in the mode X. Other modes of the table tell what it was let in for.
    attempts: Attempts<Waiting>,
    table: Marks,
    gate: Gate,
    records: Records,
    /// The latest stamps of any record.
    newest: Newest,
    /// Attempts with a prewrite, on a record or on the table.
    prewriting: BTreeSet<Place>,
    /// Attempts whose access waits.
    waiting: BTreeSet<Place>,
    /// An access with a smaller stamp is refused: what is forgotten, or of an earlier term, may have had any stamp below.
    floor: Age,
    counts: Figures,
    bugs: Bugs,
}

/// An access that waits. Its prewrite, if it has one, is there.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    target: Target,
    mode: Mode,
}

/// The place of a transaction at gates: stamps do not stay.
fn seniority(who: AttemptId) -> Seniority {
    (Age(0), who.transaction)
}

/// The latest stamps of any record.
#[derive(Debug, Default)]
struct Newest {
    read: Age,
    written: Age,
}

/// Accesses that were refused, by reason, or have waited.
#[derive(Debug, Default)]
struct Figures {
    /// A read of what has a later write.
    by_write: u64,
    /// A write of what has a later read or write.
    by_read: u64,
    /// A stamp below the floor.
    by_floor: u64,
    /// The gate is closed.
    by_gate: u64,
    waited: u64,
}

impl Timestamp {
    /// No marks. `bugs` are those that a test has planted.
    pub fn new(bugs: Bugs) -> Timestamp {
        Timestamp { bugs, ..Timestamp::default() }
    }

    /// Decides about a read, as it stands now (rules T1 and T2).
    fn judge(&self, store: &MemoryStore, place: Place, target: Target) -> Verdict {
        let (below, of_table) = match target {
            Target::Record(record) => {
                let marks = self.records.get(store, record);
                (marks.map_or(Verdict::Granted, |marks| marks.read(place)), self.table.read(place))
            }
            Target::Table => {
                let waits = self.prewriting.first().is_some_and(|first| *first < place);
                let below = match place.0 < self.newest.written {
                    true => Verdict::Refused,
                    false if waits => Verdict::Waits,
                    false => Verdict::Granted,
                };
                (below, self.table.read(place))
            }
        };
        match (below, of_table) {
            _ if place.0 < self.floor => Verdict::Refused,
            (Verdict::Refused, _) | (_, Verdict::Refused) => Verdict::Refused,
            // Planted, FIFO-LOCKS: the read goes on before the write that it should see.
            (Verdict::Waits, _) | (_, Verdict::Waits) if self.bugs.has(Bug::GrantLockEarly) => {
                Verdict::Granted
            }
            (Verdict::Waits, _) | (_, Verdict::Waits) => Verdict::Waits,
            (Verdict::Granted, Verdict::Granted) => Verdict::Granted,
        }
    }

    /// Adds a prewrite, unless it comes too late (rule T3). Returns whether the attempt has one.
    fn prewrite(&mut self, store: &mut MemoryStore, at: usize, place: Place, target: Target) -> bool {
        let attempt = &mut self.attempts[at];
        let is_held = match target {
            Target::Record(record) => attempt.held.get(record).is_some(),
            Target::Table => attempt.table == Modes::EXCLUSIVE,
        };
        if is_held {
            return true;
        }
        let stamp = place.0;
        let below = match target {
            Target::Record(record) => {
                self.records.get(store, record).is_none_or(|marks| marks.may_prewrite(stamp))
            }
            Target::Table => stamp >= self.newest.read && stamp >= self.newest.written,
        };
        // Planted, HELD-ALONE: a write does not look at later reads.
        let passes_reads = self.bugs.has(Bug::UpgradeShared);
        if stamp < self.floor || !(below && self.table.may_prewrite(stamp) || passes_reads) {
            return false;
        }
        match target {
            Target::Record(record) => {
                put(&mut self.records.find_or_add(store, record, stamp).prewrites, place);
                attempt.held.insert(record, Mode::Exclusive);
            }
            Target::Table => {
                put(&mut self.table.prewrites, place);
                attempt.table = Modes::EXCLUSIVE;
            }
        }
        self.prewriting.insert(place);
        true
    }

    /// Lets an attempt in for what it asks, unless the gate is closed for it (rule T8).
    fn enters(&mut self, at: usize, target: Target, mode: Mode) -> bool {
        let attempt = &mut self.attempts[at];
        let wanted = match target {
            Target::Table => Modes::of(mode),
            Target::Record(_) => Modes::intention(mode),
        };
        if attempt.table.covers(wanted) {
            return true;
        }
        let modes = attempt.table.with(wanted);
        // Planted, IN-TURN.
        if self.gate.stops(seniority(attempt.id), modes) && !self.bugs.has(Bug::PassTable) {
            return false;
        }
        if matches!(target, Target::Record(_)) {
            attempt.table = modes;
        }
        true
    }

    /// Tells the gate what has become of an access to the whole table.
    fn note_table(&mut self, who: AttemptId, mode: Mode, verdict: Verdict) {
        match verdict {
            Verdict::Granted => self.gate.note_granted(seniority(who)),
            Verdict::Waits => {}
            Verdict::Refused => self.gate.note_refused(seniority(who), Modes::of(mode)),
        }
    }

    /// Marks a read that is granted.
    fn mark_read(&mut self, store: &mut MemoryStore, stamp: Age, target: Target) {
        // Planted, STRICT-2PL: a read leaves no mark.
        if self.bugs.has(Bug::ForgetIntention) {
            return;
        }
        match target {
            Target::Record(record) => {
                let marks = self.records.find_or_add(store, record, stamp);
                marks.read = marks.read.max(stamp);
                self.newest.read = self.newest.read.max(stamp);
            }
            Target::Table => self.table.read = self.table.read.max(stamp),
        }
    }

    /// The accesses that wait and may be concerned by the end of an attempt's prewrites, in the order of stamps.
    fn concerned(&self, store: &MemoryStore, records: &[RecordId], has_table: bool) -> Vec<Place> {
        if has_table {
            return self.waiting.iter().copied().collect();
        }
        let of_records = records.iter().filter_map(|record| self.records.get(store, *record));
        let mut all: Vec<Place> = of_records.flat_map(|marks| &marks.waiting).copied().collect();
        all.extend(&self.table.waiting);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Takes a waiting access out of the lists.
    fn stop_waiting(&mut self, store: &MemoryStore, place: Place, target: Target) {
        self.waiting.remove(&place);
        match target {
            Target::Record(record) => {
                if let Some(marks) = self.records.get_mut(store, record) {
                    take(&mut marks.waiting, place);
                }
            }
            Target::Table => take(&mut self.table.waiting, place),
        }
    }

    /// Judges accesses that wait anew, each from scratch (rule T4).
    fn judge_again(&mut self, store: &mut MemoryStore, places: Vec<Place>, ended: &mut Ended) {
        for place in places {
            let Some(at) = self.attempts.find(place.1) else { continue };
            let Some(Waiting { target, mode }) = self.attempts[at].waiting else { continue };
            let verdict = self.judge(store, place, target);
            if verdict == Verdict::Waits {
                continue;
            }
            self.attempts[at].waiting = None;
            self.stop_waiting(store, place, target);
            if target == Target::Table {
                self.note_table(place.1, mode, verdict);
            }
            if verdict == Verdict::Granted {
                self.mark_read(store, place.0, target);
                ended.granted.push(place.1);
            } else {
                self.counts.by_write += 1;
                ended.refused.push(place.1);
            }
        }
    }
}

impl ConcurrencyControl for Timestamp {
    fn stamps(&self) -> Stamps {
        Stamps::OfAttempt
    }

    fn keeps_reads(&self) -> bool {
        false
    }

    fn latest(&self) -> Age {
        let of_records = self.newest.read.max(self.newest.written);
        self.floor.max(of_records).max(self.table.latest())
    }

    fn access(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        age: Age,
        target: Target,
        mode: Mode,
    ) -> Verdict {
        let at = self.attempts.find_or_add(who, age);
        debug_assert!(self.attempts[at].waiting.is_none(), "attempt {who} waits, and asks for {target:?}");
        if !self.enters(at, target, mode) {
            self.counts.by_gate += 1;
            return Verdict::Refused;
        }
        let place = (age, who);
        let is_late = mode == Mode::Exclusive && !self.prewrite(store, at, place, target);
        let verdict = if is_late { Verdict::Refused } else { self.judge(store, place, target) };
        if target == Target::Table {
            self.note_table(who, mode, verdict);
        }
        match verdict {
            Verdict::Granted => self.mark_read(store, age, target),
            Verdict::Waits => {
                self.counts.waited += 1;
                self.attempts[at].waiting = Some(Waiting { target, mode });
                self.waiting.insert(place);
                let waiting = match target {
                    Target::Record(record) => &mut self.records.find_or_add(store, record, age).waiting,
                    Target::Table => &mut self.table.waiting,
                };
                put(waiting, place);
            }
            Verdict::Refused => {
                let counts = &mut self.counts;
                *if age < self.floor {
                    &mut counts.by_floor
                } else if is_late {
                    &mut counts.by_read
                } else {
                    &mut counts.by_write
                } += 1;
            }
        }
        verdict
    }

    fn committed(&mut self, store: &MemoryStore, who: AttemptId) {
        let Some(at) = self.attempts.find(who) else { return };
        let attempt = &self.attempts[at];
        for (record, _) in attempt.held.iter() {
            if let Some(marks) = self.records.get_mut(store, record) {
                marks.written = marks.written.max(attempt.age);
                self.newest.written = self.newest.written.max(attempt.age);
            }
        }
        if attempt.table == Modes::EXCLUSIVE {
            self.table.written = self.table.written.max(attempt.age);
        }
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, ended: &mut Ended) {
        let Some(at) = self.attempts.take_out(who) else { return };
        let attempt = &mut self.attempts[at];
        let place = (attempt.age, who);
        // Planted, IDLE-CLEAN.
        if self.bugs.has(Bug::LeaveLock) && who.transaction.number % 31 == 7 {
            attempt.held.forget_last();
        }
        let (waiting, has_table) = (attempt.waiting.take(), attempt.table == Modes::EXCLUSIVE);
        let held: Vec<RecordId> = attempt.held.iter().map(|(record, _)| record).collect();
        if let Some(Waiting { target, .. }) = waiting {
            self.stop_waiting(store, place, target);
        }
        for record in &held {
            if let Some(marks) = self.records.get_mut(store, *record) {
                take(&mut marks.prewrites, place);
            }
        }
        if has_table {
            take(&mut self.table.prewrites, place);
        }
        self.attempts.reuse(at);
        if self.prewriting.remove(&place) && !self.waiting.is_empty() {
            let places = self.concerned(store, &held, has_table);
            self.judge_again(store, places, ended);
        }
    }

    fn begin(&mut self, floor: Age) {
        self.floor = self.floor.max(floor);
    }

    fn restore(&mut self, store: &mut MemoryStore, who: AttemptId, age: Age, target: Target, mode: Mode) {
        let (at, place) = (self.attempts.find_or_add(who, age), (age, who));
        self.mark_read(store, age, target);
        if mode == Mode::Shared {
            return;
        }
        let attempt = &mut self.attempts[at];
        let others = match target {
            Target::Record(record) => {
                let marks = self.records.find_or_add(store, record, age);
                put(&mut marks.prewrites, place);
                attempt.held.insert(record, mode);
                marks.prewrites.len() + self.table.prewrites.iter().filter(|other| **other != place).count()
            }
            Target::Table => {
                attempt.table = Modes::EXCLUSIVE;
                put(&mut self.table.prewrites, place);
                self.prewriting.iter().filter(|other| **other != place).count() + 1
            }
        };
        self.prewriting.insert(place);
        assert!(others == 1, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].show(show);
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        self.records.clear(store);
        self.attempts.clear();
        (self.table, self.newest) = (Marks::default(), Newest::default());
        self.gate = Gate::default();
        self.prewriting.clear();
        self.waiting.clear();
    }

    fn advance(&mut self, store: &mut MemoryStore, to: Age) {
        let forgotten = self.records.forget(store, to);
        self.floor = self.floor.max(forgotten);
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        let mut known: BTreeMap<RecordId, (Vec<Place>, Vec<Place>)> = BTreeMap::new();
        let (mut table, mut prewriting) = ((Vec::new(), Vec::new()), BTreeSet::new());
        for attempt in self.attempts.sorted() {
            let place = (attempt.age, attempt.id);
            if !is_live(attempt.id) {
                let count = attempt.held.len();
                return Err(format!("attempt {} is over and has {count} prewrites", attempt.id));
            }
            for (record, _) in attempt.held.iter() {
                known.entry(record).or_default().0.push(place);
                prewriting.insert(place);
            }
            if attempt.table == Modes::EXCLUSIVE {
                table.0.push(place);
                prewriting.insert(place);
            }
            if let Some(Waiting { target, .. }) = attempt.waiting {
                // The floor may have risen above it: then it is refused when it is judged next.
                let may_wait = self.judge(store, place, target) == Verdict::Waits || place.0 < self.floor;
                if !may_wait {
                    return Err(format!("attempt {} waits for nobody at {target:?}", attempt.id));
                }
                match target {
                    Target::Record(record) => known.entry(record).or_default().1.push(place),
                    Target::Table => table.1.push(place),
                }
            }
        }
        let is_as = |marks: &Marks, known: &mut (Vec<Place>, Vec<Place>)| {
            known.0.sort_unstable();
            known.1.sort_unstable();
            marks.prewrites == known.0 && marks.waiting == known.1
        };
        if !is_as(&self.table, &mut table) || prewriting != self.prewriting {
            return Err(format!("the table has {:?}, and attempts know of {table:?}", self.table));
        }
        for of in self.records.iter() {
            let (record, marks) = (of.record, &of.marks);
            if !self.records.get(store, record).is_some_and(|found| std::ptr::eq(found, marks)) {
                return Err(format!("{record:?} has marks and the lock word {}", store.lock(record)));
            }
            let known = &mut known.remove(&record).unwrap_or_default();
            if !is_as(marks, known) {
                return Err(format!("{record:?} has {marks:?}, and attempts know of {known:?}"));
            }
            if marks.read > self.newest.read || marks.written > self.newest.written {
                return Err(format!("{record:?} has {marks:?}, later than {:?}", self.newest));
            }
        }
        match known.first_key_value() {
            Some((record, known)) => Err(format!("{record:?} has no marks, and attempts know of {known:?}")),
            None => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Figures { by_write, by_read, by_floor, by_gate, waited } = self.counts;
        report("ordain_stamps_attempts", self.attempts.len() as f64);
        report("ordain_stamps_waiting", self.waiting.len() as f64);
        report("ordain_stamps_remembered", self.records.len() as f64);
        report("ordain_stamps_waited_total", waited as f64);
        report("ordain_stamps_refused_total{reason=\"read\"}", by_write as f64);
        report("ordain_stamps_refused_total{reason=\"write\"}", by_read as f64);
        report("ordain_stamps_refused_total{reason=\"floor\"}", by_floor as f64);
        report("ordain_stamps_refused_total{reason=\"gate\"}", by_gate as f64);
        report("ordain_stamps_gate_closed_total", self.gate.closings() as f64);
    }
}
