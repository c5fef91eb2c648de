//! Parallel snapshots: versions with vectors, anti-dependencies of readers, and the validation of writes (sheet fwkv.md, 4.1 to 4.14).
//!
//! Each version carries the vector of decisions that its writer followed. An attempt that writes has a snapshot: a vector, and it
//! sees the newest version of each record that follows no more than that. When it is to commit, the participants lock what it writes, without
//! waiting, and refuse it if a newest version follows more than its snapshot: then another has written it meanwhile.
//!
//! With [`Snapshots::AtFirstRead`] an attempt that only reads has no snapshot. It sees the newest version of each record, is noted as its
//! reader, and who overwrites that takes along that it must not be seen by it; so does who reads or overwrites what carries such a
//! mark. An older version is shown to it then. With [`Snapshots::AtBegin`] it has a snapshot as all others.
//!
//! A read waits for a validated writer whose decision it might have to see, and for nothing else. The rules stand in `docs/protocols/fwkv.md`.

mod checks;
mod marks;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use ordain_commit::options::{BACKOFF, FRESH_BEGIN, GC_IDS, INSTALL, PROPAGATE_DELAY_US};
use ordain_commit::{
    Age, AttemptId, Bounds, Commitment, ConcurrencyControl, Ended, Ending, Living, Mode, Reads, Seen,
    Snapshot, Snapshots, Target, Vector, Verdict, View,
};
use ordain_execution::TableChange;
use ordain_model::{Cell, Gsn, Micros, Offer};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::marked_records::Places;
use crate::two_phase_locking::gate::{Gate, by_id};
use crate::two_phase_locking::{Attempts, Modes};
use crate::waiting::{Access, Waiting};
use marks::{Kept, Marks, Shown, Table};

/// The options of the engines.
pub(crate) static OPTIONS: [Offer; 4] =
    [Offer::of(&BACKOFF), Offer::of(&PROPAGATE_DELAY_US), Offer::of(&INSTALL), Offer::of(&FRESH_BEGIN)];

/// The options of an engine whose writes name readers.
pub(crate) static OPTIONS_OF_READERS: [Offer; 5] =
    [OPTIONS[0], OPTIONS[1], OPTIONS[2], OPTIONS[3], Offer::of(&GC_IDS)];

/// Versions are remembered for so long after they were overwritten.
const KEPT: Micros = Micros::from_millis(5_000);

/// See the module.
#[derive(Debug)]
pub(crate) struct ParallelSnapshots {
    takes: Snapshots,
    attempts: Attempts<Kept>,
    records: Places<Marks>,
    table: Table,
    waiting: Waiting,
    /// What is not remembered follows no more than this, and these readers may not see it.
    floor: Seen,
    /// The decisions that are known here, as far as the log is applied.
    heard: Vector,
    living: Living,
    /// Installations, by the time that the log had come to with the next one that it names, less [`KEPT`], as a stamp; 0 until it names one.
    installed: VecDeque<(Age, u32)>,
    gate: Gate,
    counts: Figures,
    bugs: Bugs,
}

/// Attempts that were refused, by reason, and others.
#[derive(Debug, Default)]
struct Figures {
    /// A newer version than those of its snapshot is there of what it writes.
    by_version: u64,
    /// Another attempt is validated that writes what it writes.
    by_lock: u64,
    /// The version that it would see is forgotten.
    by_age: u64,
    /// The gate is closed.
    by_gate: u64,
    validated: u64,
    waited: u64,
    /// Readers that must not see the writes of those that were validated.
    collected: u64,
}

/// True if a fragment in this mode looks at its target.
const fn looks(mode: Mode) -> bool {
    !matches!(mode, Mode::Blind)
}

impl ParallelSnapshots {
    /// The versions of one participant, for attempts that take their snapshots then.
    pub(crate) fn new(takes: Snapshots, bugs: Bugs) -> ParallelSnapshots {
        ParallelSnapshots {
            takes,
            attempts: Attempts::default(),
            records: Places::default(),
            table: Table::default(),
            waiting: Waiting::default(),
            floor: Seen::default(),
            heard: Vector::default(),
            living: Living::default(),
            installed: VecDeque::new(),
            gate: Gate::default(),
            counts: Figures::default(),
            bugs,
        }
    }

    /// True if the writes of others name those that only read.
    fn names_readers(&self) -> bool {
        self.takes == Snapshots::AtFirstRead
    }

    /// What the newest version of a record follows.
    fn newest(&self, store: &MemoryStore, record: RecordId) -> &Seen {
        self.records.get(store, record).map_or(&self.floor, |marks| marks.versions.newest(&self.floor))
    }

    /// What the newest versions of all records follow.
    fn newest_of_all(&self) -> Vector {
        let mut newest = self.floor.vector.clone();
        self.records.iter().for_each(|of| newest.join(&of.marks.versions.newest(&self.floor).vector));
        newest
    }

    /// The version of a record that an attempt reads.
    fn shown(&self, store: &MemoryStore, at: usize, record: RecordId) -> Shown {
        let attempt = &self.attempts[at];
        let versions = self.records.get(store, record).map(|marks| &marks.versions);
        attempt.kept.shown(attempt.id, versions, &self.floor)
    }

    /// Adds a target to what an attempt has accessed.
    fn enlist(&mut self, store: &mut MemoryStore, at: usize, target: Target, mode: Mode) {
        if let Some(record) = self.attempts.enlist(at, target, mode) {
            let (place, _) = self.records.find_or_add(store, record);
            self.records.at_mut(place).holders += 1;
        }
    }

    /// The target whose lock an access waits for (rule P3): a validated attempt writes what it would write too, or what it would read, and
    /// its decision may be one that it has to see. A read passes by who is decided later than its snapshot was taken. A write waits, as it
    /// would come to nothing now, and the next attempt with it.
    fn barred_by(&self, store: &MemoryStore, at: usize, target: Target, mode: Mode) -> Option<Target> {
        let kept = &self.attempts[at].kept;
        // Planted, FIFO-LOCKS (sheet E7): a read does not look at writes that are on their way.
        if mode == Mode::Shared && self.bugs.has(Bug::GrantLockEarly) {
            return None;
        }
        let Target::Record(record) = target else {
            return self.table.locks.conflict(Modes::NONE, Modes::SHARED).then_some(Target::Table);
        };
        if mode == Mode::Shared && kept.read.get(record).is_some() {
            return None;
        }
        if self.table.locks.conflict(Modes::NONE, Modes::INTENTION_SHARED) {
            return Some(Target::Table);
        }
        let writer = self.records.get(store, record)?.writer?;
        let home = self.attempts[writer as usize].id.home().partition;
        let is_later = kept.reads == Reads::Fixed && kept.snapshot.of(home) <= self.heard.of(home);
        (!is_later || mode != Mode::Shared).then_some(target)
    }

    /// Takes note of what an access reads (rules P1 and P2); answers whether the version is there.
    fn read(&mut self, store: &MemoryStore, at: usize, target: Target, mode: Mode) -> bool {
        if !looks(mode) {
            return true;
        }
        match target {
            // A change of whole databases has come since then, if it is gone.
            Target::Record(record) if self.attempts[at].kept.read.get(record).is_some() => {
                self.shown(store, at, record) != Shown::Gone
            }
            Target::Record(record) => {
                let shown = self.shown(store, at, record);
                let ParallelSnapshots { attempts, records, floor, living, .. } = self;
                let (kept, marks) = (&mut attempts[at].kept, records.get_mut(store, record));
                let is_there = see(kept, shown, marks.as_deref(), (floor, living, self.bugs));
                if is_there {
                    kept.read.insert(record, ());
                }
                if let (Reads::Newest, Shown::Newest, Some(marks)) = (kept.reads, shown, marks) {
                    marks.readers.push(at as u32);
                }
                is_there
            }
            Target::Table => self.read_table(at),
        }
    }

    /// Takes note of a read of all records.
    fn read_table(&mut self, at: usize) -> bool {
        let ParallelSnapshots { attempts, records, table, floor, living, .. } = self;
        let (who, kept) = (attempts[at].id, &mut attempts[at].kept);
        if kept.reads == Reads::First {
            // All of it is the newest, so the snapshot covers that.
            records.iter().for_each(|of| kept.snapshot.join(&of.marks.versions.newest(floor).vector));
            kept.snapshot.join(&floor.vector);
            kept.reads = Reads::Fixed;
        }
        let unmarked = kept.shown(who, None, floor);
        let mut is_there = see(kept, unmarked, None, (floor, living, self.bugs));
        for of in records.iter() {
            let shown = kept.shown(who, Some(&of.marks.versions), floor);
            is_there &= see(kept, shown, Some(&of.marks), (floor, living, self.bugs));
        }
        if kept.reads == Reads::Newest && is_there && !table.readers.contains(&(at as u32)) {
            table.readers.push(at as u32);
        }
        is_there
    }

    /// Runs an access that is not barred, or lets it wait.
    fn go_on(&mut self, store: &mut MemoryStore, at: usize, target: Target, mode: Mode) -> Verdict {
        if let Some(barrier) = self.barred_by(store, at, target, mode) {
            if target == Target::Table {
                // Others would come before it for ever: the gate keeps them out.
                self.gate.note_refused(by_id(self.attempts[at].id), Modes::of(mode));
            }
            self.waiting.add(Access { by: at as u32, target, mode }, barrier);
            return Verdict::Waits;
        }
        if self.is_late(store, at, target, mode) {
            self.counts.by_version += 1;
            return Verdict::Refused;
        }
        if self.read(store, at, target, mode) {
            if (target, mode) == (Target::Table, Mode::Shared) {
                self.gate.note_granted(by_id(self.attempts[at].id));
            }
            return Verdict::Granted;
        }
        // The next attempt may have what stands in its place in its snapshot.
        let newest = match target {
            Target::Record(record) => self.newest(store, record).vector.clone(),
            Target::Table => self.newest_of_all(),
        };
        self.attempts[at].kept.seen.vector.join(&newest);
        self.counts.by_age += 1;
        Verdict::Refused
    }

    /// True if a write comes to nothing: its snapshot has not the newest version. The next attempt may have.
    fn is_late(&mut self, store: &MemoryStore, at: usize, target: Target, mode: Mode) -> bool {
        let Target::Record(record) = target else { return false };
        let kept = &self.attempts[at].kept;
        let newest = &self.newest(store, record).vector;
        if mode == Mode::Shared || kept.reads != Reads::Fixed || kept.snapshot.covers(newest) {
            return false;
        }
        let newest = newest.clone();
        if self.names_readers() {
            self.attempts[at].kept.seen.vector.join(&newest);
        }
        // Planted, VALIDATED (sheet E2).
        !self.bugs.has(Bug::SkipValidation)
    }

    /// The lock on the table that an attempt has once it is validated.
    fn table_lock(&self, at: usize) -> Modes {
        let attempt = &self.attempts[at];
        if attempt.table.whole() == Some(Mode::Exclusive) {
            return Modes::EXCLUSIVE;
        }
        let writes = attempt.held.iter().any(|(_, mode)| mode != Mode::Shared);
        match writes || attempt.kept.checked.len() > 0 {
            true => Modes::INTENTION_EXCLUSIVE,
            false => Modes::NONE,
        }
    }

    /// What an attempt locks when it is validated: the records that it writes, and those that it checks.
    fn locked(&self, at: usize) -> Vec<(RecordId, bool)> {
        let Kept { checked, .. } = &self.attempts[at].kept;
        let held = self.attempts[at].held.iter().map(|(record, mode)| (record, mode != Mode::Shared));
        held.filter(|(record, writes)| *writes || checked.get(*record).is_some()).collect()
    }

    /// True if no validated attempt stands in the way of one.
    fn may_lock(&self, store: &MemoryStore, at: usize, locked: &[(RecordId, bool)]) -> bool {
        !self.table.locks.conflict(Modes::NONE, self.table_lock(at))
            && locked.iter().all(|(record, writes)| {
                let marks = self.records.get(store, *record);
                marks.is_none_or(|marks| marks.writer.is_none() && (marks.checkers == 0 || !writes))
            })
    }

    /// True if the newest versions of what an attempt writes and checks are in its snapshot (rule P4). One that has looked at nothing takes its
    /// snapshot now.
    fn is_newest(&mut self, store: &MemoryStore, at: usize, locked: &[(RecordId, bool)]) -> bool {
        let whole = self.attempts[at].table.whole() == Some(Mode::Exclusive);
        let mut newest = Vector::default();
        for (record, _) in locked {
            newest.join(&self.newest(store, *record).vector);
        }
        if whole {
            newest.join(&self.newest_of_all());
        }
        let learns = self.names_readers();
        let kept = &mut self.attempts[at].kept;
        let is_newest = kept.reads == Reads::First || kept.snapshot.covers(&newest);
        // Walter's attempts wait for their home to hear of it.
        if is_newest || learns {
            kept.seen.vector.join(&newest);
        }
        // Planted, VALIDATED (sheet E2): a version that was not seen is overwritten.
        is_newest || self.bugs.has(Bug::SkipValidation)
    }

    /// Takes along who must not see what an attempt writes (rule P5).
    fn collect(&mut self, store: &MemoryStore, at: usize, locked: &[(RecordId, bool)]) {
        if !self.names_readers() || self.table_lock(at) == Modes::NONE {
            return;
        }
        let mut seen = std::mem::take(&mut self.attempts[at].kept.seen);
        if self.attempts[at].table.whole() == Some(Mode::Exclusive) {
            self.overwrite_all(&mut seen);
        } else {
            let written = locked.iter().filter(|(_, writes)| *writes);
            written.for_each(|(record, _)| self.overwrite(store, *record, &mut seen));
            self.add_readers(&self.table.readers, &mut seen);
        }
        self.counts.collected += seen.anti.len() as u64;
        self.attempts[at].kept.seen = seen;
    }

    /// Adds who must not see what overwrites a record.
    fn overwrite(&self, store: &MemoryStore, record: RecordId, seen: &mut Seen) {
        if let Some(marks) = self.records.get(store, record) {
            self.add_readers(&marks.readers, seen);
        }
        join_living(seen, self.newest(store, record), &self.living);
    }

    /// Adds who must not see what overwrites all records.
    fn overwrite_all(&self, seen: &mut Seen) {
        for of in self.records.iter() {
            self.add_readers(&of.marks.readers, seen);
            join_living(seen, of.marks.versions.newest(&self.floor), &self.living);
        }
        self.add_readers(&self.table.readers, seen);
        join_living(seen, &self.floor, &self.living);
    }

    fn add_readers(&self, readers: &[u32], seen: &mut Seen) {
        readers.iter().for_each(|at| seen.anti.add(self.attempts[*at as usize].id));
    }

    /// Locks what a validated attempt writes and checks.
    fn lock(&mut self, store: &mut MemoryStore, at: usize, locked: &[(RecordId, bool)]) {
        let modes = self.table_lock(at);
        self.table.locks.add(modes);
        for (record, writes) in locked {
            let (place, _) = self.records.find_or_add(store, *record);
            let marks = self.records.at_mut(place);
            match writes {
                true => marks.writer = Some(at as u32),
                false => marks.checkers += 1,
            }
        }
        self.attempts[at].kept.is_validated = true;
    }

    /// Drops the marks at a place, if nobody needs them.
    fn free_if_idle(&mut self, store: &mut MemoryStore, place: u32) {
        if self.records.at_mut(place).are_idle() {
            self.records.free(store, place);
        }
    }
}

/// Adds what a version carries of readers that may be under way.
fn join_living(seen: &mut Seen, version: &Seen, living: &Living) {
    version.anti.iter().filter(|who| living.has(*who)).for_each(|who| seen.anti.add(who));
}

/// Takes note of a version that an attempt reads; answers whether it is there. The first one fixes its snapshot.
fn see(
    kept: &mut Kept,
    shown: Shown,
    marks: Option<&Marks>,
    (floor, living, bugs): (&Seen, &Living, Bugs),
) -> bool {
    let versions = marks.map(|marks| &marks.versions);
    let version = match shown {
        Shown::Newest => versions.map_or(floor, |versions| versions.newest(floor)),
        Shown::Older(at) => versions.and_then(|versions| versions.older[at].seen.as_ref()).unwrap_or(floor),
        Shown::Gone => return false,
    };
    kept.seen.vector.join(&version.vector);
    // Planted, FORK-ALONE (sheet E6): only who overwrites takes along what a version carries.
    if !bugs.has(Bug::ForgetReaders) {
        join_living(&mut kept.seen, version, living);
    }
    if kept.reads == Reads::First {
        kept.snapshot.join(&version.vector);
        kept.reads = Reads::Fixed;
    }
    true
}

impl ConcurrencyControl for ParallelSnapshots {
    fn validates(&self) -> bool {
        true
    }

    fn keeps_reads(&self) -> bool {
        false
    }

    fn tells_blind(&self) -> bool {
        true
    }

    fn snapshots(&self) -> Snapshots {
        self.takes
    }

    fn enter(&mut self, who: AttemptId, age: Age, snapshot: &Snapshot) {
        let at = self.attempts.find_or_add(who, age);
        let kept = &mut self.attempts[at].kept;
        if !kept.has_come || kept.reads == Reads::First {
            (kept.has_come, kept.reads) = (true, snapshot.reads);
            kept.snapshot.clone_from(&snapshot.vector);
        }
    }

    fn note_check(&mut self, who: AttemptId, record: RecordId) {
        if let Some(at) = self.attempts.find(who)
            && self.attempts[at].kept.reads != Reads::Newest
        {
            self.attempts[at].kept.checked.insert(record, ());
        }
    }

    fn view(&self, who: AttemptId) -> (Reads, View) {
        let Some(at) = self.attempts.find(who) else { return (Reads::First, View::NONE) };
        let kept = &self.attempts[at].kept;
        (kept.reads, View::of(kept.seen.clone()))
    }

    fn hear(&mut self, vector: &Vector) {
        self.heard.clone_from(vector);
    }

    fn outlive(&mut self, living: &Living) {
        self.living.clone_from(living);
        self.floor.anti.retain(|who| living.has(who));
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
        if self.attempts[at].kept.is_validated {
            return Verdict::Refused;
        }
        if !self.gate.lets_in(&mut self.attempts[at], target, mode, self.bugs) {
            self.counts.by_gate += 1;
            return Verdict::Refused;
        }
        self.enlist(store, at, target, mode);
        let verdict = self.go_on(store, at, target, mode);
        self.counts.waited += u64::from(verdict == Verdict::Waits);
        verdict
    }

    fn find_expired(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        _age: Age,
        target: Target,
    ) -> Verdict {
        if !self.names_readers() {
            return Verdict::Granted;
        }
        let Some(at) = self.attempts.find(who) else { return Verdict::Granted };
        let mut seen = std::mem::take(&mut self.attempts[at].kept.seen);
        match target {
            Target::Record(record) => self.overwrite(store, record, &mut seen),
            Target::Table => self.overwrite_all(&mut seen),
        }
        self.add_readers(&self.table.readers, &mut seen);
        // It may see what it writes itself.
        seen.anti.retain(|reader| reader != who);
        self.attempts[at].kept.seen = seen;
        Verdict::Granted
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
        let locked = self.locked(at);
        if locked.is_empty() && self.table_lock(at) == Modes::NONE {
            return bounds;
        }
        let (is_newest, may_lock) = (self.is_newest(store, at, &locked), self.may_lock(store, at, &locked));
        if is_newest && may_lock {
            self.counts.validated += 1;
            self.collect(store, at, &locked);
            self.lock(store, at, &locked);
            return bounds;
        }
        match may_lock {
            true => self.counts.by_version += 1,
            false => self.counts.by_lock += 1,
        }
        self.gate.note_invalid(&self.attempts[at]);
        Bounds { until: Age(0), ..bounds }
    }

    fn change(&mut self, store: &mut MemoryStore, change: TableChange, with: &Commitment, version: Gsn) {
        // Nobody sees through it: what was before is forgotten.
        let ParallelSnapshots { records, floor, living, .. } = self;
        floor.vector.join(&with.view.seen().vector);
        join_living(floor, with.view.seen(), living);
        for marks in records.iter_mut() {
            if let Some(newest) = marks.versions.newest.take() {
                floor.vector.join(&newest.vector);
                join_living(floor, &newest, living);
            }
            marks.versions.older.clear();
        }
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
        let (place, _) = self.records.find_or_add(store, record);
        let marks = self.records.at_mut(place);
        if marks.versions.newest.as_ref().is_some_and(|newest| newest.vector == with.view.seen().vector) {
            // One transaction has written it twice, and the later write counts.
            return store.put_back(record, cell, version);
        }
        self.installed.push_back((Age(0), place));
        marks.queued += 1;
        marks.readers.clear();
        marks.versions.install(store, record, (cell, version), with.view.seen().clone());
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, ending: Ending, ended: &mut Ended) {
        let Some(at) = self.attempts.take_out(who, self.bugs) else { return };
        self.waiting.remove(at as u32);
        let (locked, modes) = (self.locked(at), self.table_lock(at));
        let attempt = &self.attempts[at];
        let (is_validated, whole) = (attempt.kept.is_validated, attempt.table.whole());
        let held: Vec<RecordId> = attempt.held.iter().map(|(record, _)| record).collect();
        if is_validated {
            self.table.locks.remove(modes);
            for (record, writes) in locked {
                let Some(marks) = self.records.get_mut(store, record) else { continue };
                match writes {
                    true => marks.writer = None,
                    false => marks.checkers -= 1,
                }
            }
        }
        let mut woken = Vec::new();
        for record in held {
            let (place, _) = self.records.find_or_add(store, record);
            let marks = self.records.at_mut(place);
            marks.holders -= 1;
            marks.readers.retain(|reader| *reader as usize != at);
            if marks.writer.is_none() {
                self.waiting.wake(Target::Record(record), &mut woken);
            }
            self.free_if_idle(store, place);
        }
        self.table.readers.retain(|reader| *reader as usize != at);
        if is_validated && modes != Modes::NONE {
            self.waiting.wake(Target::Table, &mut woken);
        }
        if is_validated && whole == Some(Mode::Exclusive) && ending != Ending::Aborted {
            self.gate.note_granted(by_id(who));
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
        attempt.kept.is_validated = true;
        if let (Target::Record(record), Mode::Shared) = (target, mode) {
            attempt.kept.checked.insert(record, ());
        }
        if let Target::Record(_) = target {
            attempt.table = attempt.table.with(Modes::intention(mode));
        }
        let after = self.table_lock(at);
        let is_alone = !self.table.locks.conflict(before, after);
        self.table.locks.remove(before);
        self.table.locks.add(after);
        let is_free = match target {
            Target::Record(record) => self.records.get_mut(store, record).is_some_and(|marks| {
                let is_free = marks.writer.is_none() && (mode == Mode::Shared || marks.checkers == 0);
                match mode {
                    Mode::Shared => marks.checkers += 1,
                    Mode::Exclusive | Mode::Blind => marks.writer = Some(at as u32),
                }
                is_free
            }),
            Target::Table => true,
        };
        assert!(is_alone && is_free, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn is_held(&self, store: &MemoryStore, record: RecordId) -> bool {
        self.records.get(store, record).is_some_and(|marks| marks.writer.is_some() || marks.checkers > 0)
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        if self.attempts[at].table.whole() == Some(Mode::Exclusive) {
            show(Target::Table, Mode::Exclusive);
        }
        for (record, writes) in self.locked(at) {
            show(Target::Record(record), if writes { Mode::Exclusive } else { Mode::Shared });
        }
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        self.attempts.clear();
        self.table = Table::default();
        self.waiting.clear();
        self.gate = Gate::default();
        self.records.iter_mut().for_each(Marks::clear);
        let idle: Vec<u32> =
            self.records.places().filter(|place| self.records.of(*place).marks.are_idle()).collect();
        idle.into_iter().for_each(|place| self.records.free(store, place));
    }

    fn advance(&mut self, store: &mut MemoryStore, to: Age) {
        // What was installed since the time moved last was so at any time until now.
        let lately = self.installed.iter_mut().rev().take_while(|(at, _)| *at == Age(0));
        lately.for_each(|(at, _)| *at = to);
        for _ in 0..self.installed.len() {
            let Some((_, place)) = self.installed.pop_front_if(|(at, _)| at.later(KEPT) < to) else { break };
            let ParallelSnapshots { records, floor, living, .. } = self;
            let marks = records.at_mut(place);
            let versions = &mut marks.versions;
            // Who must not see what has overwritten the oldest may need that.
            let second = versions.older.get(1).map_or(versions.newest.as_ref(), |older| older.seen.as_ref());
            if second.iter().any(|seen| seen.anti.iter().any(|who| living.has(who))) {
                self.installed.push_back((to, place));
                continue;
            }
            marks.queued -= 1;
            // Of so many older versions others have overwritten the first ones later than that.
            let kept = marks.queued as usize;
            let gone = versions.older.len().saturating_sub(kept);
            versions.older.drain(..gone);
            if kept == 0
                && let Some(newest) = versions.newest.take()
            {
                floor.vector.join(&newest.vector);
                join_living(floor, &newest, living);
            }
            self.free_if_idle(store, place);
        }
    }

    fn remembers(&self) -> bool {
        !self.installed.is_empty()
    }

    fn assume(&mut self, followed: &Seen) {
        self.floor.join(followed);
    }

    fn seen<'a>(
        &'a self,
        store: &MemoryStore,
        record: RecordId,
        (who, _): (AttemptId, Age),
    ) -> Option<(&'a Cell, Gsn)> {
        let at = self.attempts.find(who)?;
        let Shown::Older(place) = self.shown(store, at, record) else { return None };
        let older = &self.records.get(store, record)?.versions.older[place];
        Some((&older.cell, older.version))
    }

    fn replaced<'a>(&'a self, (who, _): (AttemptId, Age)) -> Vec<(RecordId, &'a Cell)> {
        let Some(at) = self.attempts.find(who) else { return Vec::new() };
        let kept = &self.attempts[at].kept;
        let of_record = |of: &'a crate::marked_records::OfRecord<Marks>| match kept.shown(
            who,
            Some(&of.marks.versions),
            &self.floor,
        ) {
            Shown::Older(place) => Some((of.record, &of.marks.versions.older[place].cell)),
            Shown::Newest | Shown::Gone => None,
        };
        self.records.iter().filter_map(of_record).collect()
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        self.check_all(store, is_live)
    }

    fn check_at_rest(&self) -> Result<(), String> {
        self.check_names()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Figures { by_version, by_lock, by_age, by_gate, validated, waited, collected } = self.counts;
        report("ordain_snapshots_attempts", self.attempts.len() as f64);
        report("ordain_snapshots_records", self.records.len() as f64);
        report("ordain_snapshots_versions", self.installed.len() as f64);
        report("ordain_snapshots_validated_total", validated as f64);
        report("ordain_snapshots_waited_total", waited as f64);
        report("ordain_snapshots_collected_total", collected as f64);
        report("ordain_snapshots_refused_total{reason=\"version\"}", by_version as f64);
        report("ordain_snapshots_refused_total{reason=\"lock\"}", by_lock as f64);
        report("ordain_snapshots_refused_total{reason=\"age\"}", by_age as f64);
        report("ordain_snapshots_refused_total{reason=\"gate\"}", by_gate as f64);
        report("ordain_snapshots_gate_closed_total", self.gate.closings() as f64);
    }
}
