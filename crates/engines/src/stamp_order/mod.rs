//! The order of stamps, as engines share it that hold attempts to it: `timestamp` and `mvcc`.
//!
//! An access that comes too late for its stamp is refused, and the next attempt has a later stamp. A read of something that an attempt with
//! a smaller stamp may write waits for the end of that. Every wait goes from a larger stamp to a smaller one, so there is no
//! deadlock. The engines differ in what they remember of a record's contents ([`History`]). The rules stand in
//! `docs/protocols/timestamp.md` and `mvcc.md`.
//!
//! [`Mode::Exclusive`] is a prewrite and a read, [`Mode::Blind`] a prewrite alone. So several prewrites of a record may be granted, and
//! writes are installed in another order than that of stamps: of two the later one stays.

mod marks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::{
    Age, AttemptId, Bounds, Commitment, ConcurrencyControl, Ended, Ending, Mode, Stamps, Target, Verdict,
};
use ordain_execution::TableChange;
use ordain_model::{Cell, Gsn};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::marked_records::{Marks, OfRecord, Records};
use crate::two_phase_locking::gate::{Gate, by_id};
use crate::two_phase_locking::{Attempts, Modes};
pub(crate) use marks::{Content, History, Latest};
use marks::{Place, Stamped, put, take};

/// The marks of one participant.
#[derive(Debug, Default)]
pub(crate) struct StampOrder<H> {
    /// An attempt holds its prewrites: on records, and the table in the mode X. Other modes of the table tell what it was let in for.
    attempts: Attempts<Option<Wanted>>,
    table: Stamped<Latest>,
    gate: Gate,
    records: Records<Stamped<H>>,
    /// The latest stamps of any record.
    newest: Latest,
    /// Attempts with a prewrite, on a record or on the table.
    prewriting: BTreeSet<Place>,
    /// Attempts whose access waits.
    waiting: BTreeSet<Place>,
    /// An access with a smaller stamp is refused: what is forgotten, or of an earlier term, may have had any stamp below.
    floor: Age,
    /// Stamps before this one are forgotten, as the log has it.
    forgotten: Age,
    /// A term has begun: there may be readers.
    serves: bool,
    /// Writes that look at nothing are let in below later writes (Thomas's rule).
    thomas: bool,
    counts: Figures,
    bugs: Bugs,
}

/// An access that was asked for. While it waits its prewrite is there, if it has one.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    target: Target,
    mode: Mode,
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

impl<H: History> StampOrder<H> {
    /// No marks. `bugs` are those that a test has planted.
    pub(crate) fn new(thomas: bool, bugs: Bugs) -> StampOrder<H> {
        StampOrder { thomas, bugs, ..StampOrder::default() }
    }

    /// Decides about an access, its prewrite being there if it has one, as it stands now (rules T1 and T2).
    fn judge(&self, store: &MemoryStore, place: Place, Wanted { target, mode }: Wanted) -> Verdict {
        let below = match target {
            // A blind write looks at nothing but changes of the whole table.
            _ if mode == Mode::Blind => Verdict::Granted,
            Target::Record(record) => {
                let marks = self.records.get(store, record);
                match marks.map_or(Verdict::Granted, |marks| marks.judge(place)) {
                    // Planted, STAMP-ORDER (sheet B-5).
                    Verdict::Refused if H::KEEPS && self.bugs.has(Bug::ShowNewest) => Verdict::Granted,
                    verdict => verdict,
                }
            }
            Target::Table => {
                let waits = self.prewriting.first().is_some_and(|first| *first < place);
                let is_late = !H::KEEPS || mode != Mode::Shared;
                match place.0 < self.newest.written {
                    true if is_late => Verdict::Refused,
                    _ if waits => Verdict::Waits,
                    _ => Verdict::Granted,
                }
            }
        };
        match (below, self.table.judge(place)) {
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
    fn prewrite(&mut self, store: &mut MemoryStore, at: usize, place: Place, wanted: Wanted) -> bool {
        let Wanted { target, mode } = wanted;
        let attempt = &mut self.attempts[at];
        let held = match target {
            Target::Record(record) => attempt.held.get(record),
            Target::Table => (attempt.table == Modes::EXCLUSIVE).then_some(Mode::Exclusive),
        };
        if held == Some(Mode::Exclusive) || held == Some(mode) {
            return true;
        }
        let stamp = place.0;
        let looks = mode != Mode::Blind || !self.thomas;
        let is_late = match target {
            Target::Record(record) => {
                self.records.get(store, record).is_some_and(|marks| marks.history.is_too_late(stamp, looks))
            }
            // Afterwards nothing is left of what others have written.
            Target::Table => {
                self.newest.is_too_late(stamp, true)
                    || self.prewriting.last().is_some_and(|last| *last > place)
            }
        };
        // Planted, HELD-ALONE: a write does not look at later reads.
        let passes_reads = self.bugs.has(Bug::UpgradeShared);
        let is_late = is_late || self.table.history.is_too_late(stamp, true);
        if stamp < self.floor || is_late && !passes_reads {
            return false;
        }
        match target {
            Target::Record(record) => {
                put(&mut self.records.find_or_add(store, record, stamp).prewrites, place);
                attempt.held.insert(record, mode);
            }
            Target::Table => {
                put(&mut self.table.prewrites, place);
                attempt.table = Modes::EXCLUSIVE;
            }
        }
        self.prewriting.insert(place);
        true
    }

    /// Tells the gate what has become of an access to the whole table.
    fn note_table(&mut self, who: AttemptId, mode: Mode, verdict: Verdict) {
        match verdict {
            Verdict::Granted => self.gate.note_granted(by_id(who)),
            Verdict::Waits => {}
            Verdict::Refused => self.gate.note_refused(by_id(who), Modes::of(mode)),
        }
    }

    /// Marks a read that is granted.
    fn mark_read(&mut self, store: &mut MemoryStore, stamp: Age, Wanted { target, mode }: Wanted) {
        // Planted, STRICT-2PL: a read leaves no mark.
        if mode == Mode::Blind || self.bugs.has(Bug::ForgetIntention) {
            return;
        }
        match target {
            Target::Record(record) => {
                self.records.find_or_add(store, record, stamp).history.mark_read(stamp);
                self.newest.mark_read(stamp);
            }
            Target::Table => self.table.history.mark_read(stamp),
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
            let Some(wanted) = self.attempts[at].kept else { continue };
            let Wanted { target, mode } = wanted;
            let verdict = self.judge(store, place, wanted);
            if verdict == Verdict::Waits {
                continue;
            }
            self.attempts[at].kept = None;
            self.stop_waiting(store, place, target);
            if target == Target::Table {
                self.note_table(place.1, mode, verdict);
            }
            if verdict == Verdict::Granted {
                self.mark_read(store, place.0, wanted);
                ended.granted.push(place.1);
            } else {
                self.counts.by_write += 1;
                ended.refused.push(place.1);
            }
        }
    }
}

impl<H: History> ConcurrencyControl for StampOrder<H> {
    fn stamps(&self) -> Stamps {
        Stamps::OfAttempt
    }

    fn keeps_reads(&self) -> bool {
        false
    }

    fn tells_blind(&self) -> bool {
        true
    }

    fn latest(&self) -> Age {
        self.floor.max(self.newest.latest()).max(self.table.history.latest())
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
        debug_assert!(self.attempts[at].kept.is_none(), "attempt {who} waits, and asks for {target:?}");
        if !self.gate.lets_in(&mut self.attempts[at], target, mode, self.bugs) {
            self.counts.by_gate += 1;
            return Verdict::Refused;
        }
        let (place, wanted) = ((age, who), Wanted { target, mode });
        let is_late = mode != Mode::Shared && !self.prewrite(store, at, place, wanted);
        let verdict = if is_late { Verdict::Refused } else { self.judge(store, place, wanted) };
        if target == Target::Table {
            self.note_table(who, mode, verdict);
        }
        match verdict {
            Verdict::Granted => self.mark_read(store, age, wanted),
            Verdict::Waits => {
                self.counts.waited += 1;
                self.attempts[at].kept = Some(wanted);
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

    fn change(&mut self, store: &mut MemoryStore, change: TableChange, with: &Commitment, version: Gsn) {
        let stamp = with.stamp;
        self.table.history.remember(stamp);
        self.newest.remember(stamp);
        // Accesses with earlier stamps are refused from now on.
        self.records.iter_mut().for_each(|marks| marks.history.forget_term());
        change.apply(&mut store.table(version));
    }

    fn install(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        cell: Cell,
        with: &Commitment,
        version: Gsn,
    ) {
        let stamp = with.stamp;
        self.newest.remember(stamp);
        let keeps = self.serves;
        let history = &mut self.records.find_or_add(store, record, stamp).history;
        // Planted, STAMP-ORDER (sheet B-4): a write replaces a later one.
        if self.bugs.has(Bug::InstallLate) && history.written() > stamp {
            return store.put_back(record, cell, version);
        }
        history.install(store, record, Content { cell, stamp, version }, keeps);
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, _ending: Ending, ended: &mut Ended) {
        let Some(at) = self.attempts.take_out(who, self.bugs) else { return };
        let attempt = &mut self.attempts[at];
        let place = (attempt.age, who);
        let (waiting, has_table) = (attempt.kept.take(), attempt.table == Modes::EXCLUSIVE);
        let held: Vec<RecordId> = attempt.held.iter().map(|(record, _)| record).collect();
        if let Some(Wanted { target, .. }) = waiting {
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
        self.serves = true;
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
        let (at, place) = (self.attempts.find_or_add(who, age), (age, who));
        self.mark_read(store, age, Wanted { target, mode });
        if mode == Mode::Shared {
            return;
        }
        let attempt = &mut self.attempts[at];
        let is_first = match target {
            Target::Record(record) => {
                let marks = self.records.find_or_add(store, record, age);
                put(&mut marks.prewrites, place);
                attempt.held.insert(record, mode);
                // What it has read nobody may write before it any more.
                (mode == Mode::Blind || marks.judge(place) != Verdict::Waits)
                    && self.table.prewrites.iter().all(|other| *other == place)
            }
            Target::Table => {
                attempt.table = Modes::EXCLUSIVE;
                put(&mut self.table.prewrites, place);
                self.prewriting.iter().all(|other| *other == place)
            }
        };
        self.prewriting.insert(place);
        assert!(is_first, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn is_held(&self, store: &MemoryStore, record: RecordId) -> bool {
        self.records.get(store, record).is_some_and(|marks| !marks.prewrites.is_empty())
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].show(show);
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        self.serves = false;
        self.records.clear(store);
        self.attempts.clear();
        self.table.clear();
        self.newest.forget_term();
        self.gate = Gate::default();
        self.prewriting.clear();
        self.waiting.clear();
    }

    fn advance(&mut self, store: &mut MemoryStore, to: Age) {
        self.forgotten = self.forgotten.max(to);
        let forgotten = self.records.forget(store, to);
        // Of contents only those are there that accesses from now on see.
        let loses = H::KEEPS && !self.bugs.has(Bug::ShowNewest);
        self.floor = self.floor.max(if loses { to } else { forgotten });
    }

    fn remembers(&self) -> bool {
        self.records.len() > 0
    }

    fn remembered(&self, show: &mut dyn FnMut(RecordId, Age)) {
        self.records.written_since(self.forgotten, show);
    }

    fn remember(&mut self, store: &mut MemoryStore, record: RecordId, stamp: Age) {
        self.newest.remember(stamp);
        self.records.find_or_add(store, record, stamp).history.remember(stamp);
    }

    fn seen<'a>(
        &'a self,
        store: &MemoryStore,
        record: RecordId,
        (_, stamp): (AttemptId, Age),
    ) -> Option<(&'a Cell, Gsn)> {
        self.records.get(store, record)?.history.replaced(stamp)
    }

    fn replaced<'a>(&'a self, (_, stamp): (AttemptId, Age)) -> Vec<(RecordId, &'a Cell)> {
        let of = |of: &'a OfRecord<Stamped<H>>| Some((of.record, of.marks.history.replaced(stamp)?.0));
        if H::KEEPS { self.records.iter().filter_map(of).collect() } else { Vec::new() }
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
            if let Some(waiting) = attempt.kept {
                let target = waiting.target;
                // The floor may have risen above it: then it is refused when it is judged next.
                let may_wait = self.judge(store, place, waiting) == Verdict::Waits || place.0 < self.floor;
                if !may_wait {
                    return Err(format!("attempt {} waits for nobody at {target:?}", attempt.id));
                }
                match target {
                    Target::Record(record) => known.entry(record).or_default().1.push(place),
                    Target::Table => table.1.push(place),
                }
            }
        }
        if !self.table.is_as(&mut table) || prewriting != self.prewriting {
            return Err(format!("the table has {:?}, and attempts know of {table:?}", self.table));
        }
        self.records.check(store, known, |OfRecord { record, marks, .. }, mut known| {
            if !marks.is_as(&mut known) {
                return Err(format!("{record:?} has {marks:?}, and attempts know of {known:?}"));
            }
            let (read, written) = (marks.history.read(), marks.history.written());
            match read > self.newest.read || written > self.newest.written {
                true => Err(format!("{record:?} has {marks:?}, later than {:?}", self.newest)),
                false => Ok(()),
            }
        })
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Figures { by_write, by_read, by_floor, by_gate, waited } = self.counts;
        report("ordain_stamps_attempts", self.attempts.len() as f64);
        report("ordain_stamps_waiting", self.waiting.len() as f64);
        report("ordain_stamps_remembered", self.records.len() as f64);
        let contents: usize = self.records.iter().map(|of| of.marks.history.kept()).sum();
        report("ordain_stamps_contents", contents as f64);
        report("ordain_stamps_waited_total", waited as f64);
        report("ordain_stamps_refused_total{reason=\"read\"}", by_write as f64);
        report("ordain_stamps_refused_total{reason=\"write\"}", by_read as f64);
        report("ordain_stamps_refused_total{reason=\"floor\"}", by_floor as f64);
        report("ordain_stamps_refused_total{reason=\"gate\"}", by_gate as f64);
        report("ordain_stamps_gate_closed_total", self.gate.closings() as f64);
    }
}
