//! A region's own transactions by multiversion optimistic concurrency control (the regions paper, section "MVOCC"; after Hekaton and HyPer).
//!
//! An attempt reads at its first stamp, and is given a second one when it is to commit. A record has versions, each with the stamps between which it
//! is seen. Who writes a record claims the end of its newest version, and the first who does wins. When an attempt is validated, its reads are
//! looked at as of its second stamp. From then on others may read what it writes: they commit if it does. What only reads takes effect at its
//! first stamp, and is never refused for what others write. The rules stand in `docs/protocols/regions-mvocc.md`.

mod checks;
mod reading;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::VecDeque;

use ordain_commit::{
    Age, AttemptId, Bounds, CommitEngine, Commitment, ConcurrencyControl, Ended, Ending, Mode, Reads,
    Snapshot, Stamps, Target, Verdict, View,
};
use ordain_execution::{TableChange, Write};
use ordain_model::children::split_child_key;
use ordain_model::{Abort, Cell, Gsn};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::marked_records::Places;
use crate::two_phase_locking::gate::{Gate, by_id};
use crate::two_phase_locking::{Attempts, Modes};
use crate::waiting::{Access, Waiting};
use versions::{Kept, Marks, Next, State, Table};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "regions-mvocc",
    refusal: Abort::Validation,
    is_strict: true,
    control: |_, bugs| Box::new(Mvocc { bugs, ..Mvocc::default() }),
};

/// The version of what is not decided, whose place in the log nobody knows: no record has it.
const UNDECIDED: Gsn = Gsn(u64::MAX);

/// The versions of one participant's records, and the attempts that read and write them. All of it is of the term in which the node serves: later
/// terms have later stamps.
#[derive(Debug, Default)]
pub(crate) struct Mvocc {
    attempts: Attempts<Kept>,
    records: Places<Marks>,
    table: Table,
    waiting: Waiting,
    gate: Gate,
    /// Installations, by the stamps with which the replaced versions end.
    installed: VecDeque<(Age, u32)>,
    /// Nothing is kept that only earlier stamps see.
    floor: Age,
    /// The latest stamp that was validated, or has read a snapshot: whoever is validated next has a later one.
    latest: Age,
    /// A term has begun: there may be readers.
    serves: bool,
    counts: Figures,
    bugs: Bugs,
}

/// Attempts that were refused, by reason, and others.
#[derive(Debug, Default)]
struct Figures {
    /// A later version is there of what it has read.
    by_version: u64,
    /// Another attempt writes what it would write, or a validated one what it has read.
    by_claim: u64,
    /// The version that it would see is not kept any more.
    by_age: u64,
    /// The attempt has stood on one that has come to nothing.
    by_cascade: u64,
    /// The second stamp is not later than what was seen here.
    by_order: u64,
    /// The gate is closed.
    by_gate: u64,
    /// A part of a transaction of several regions is in doubt, and the attempt is not to wait for that.
    by_doubt: u64,
    validated: u64,
    waited: u64,
    /// Reads of what was not decided.
    speculated: u64,
    /// Reads that have moved their attempts on to a later stamp.
    extended: u64,
}

impl Mvocc {
    /// Adds a target to what an attempt has accessed.
    fn enlist(&mut self, store: &mut MemoryStore, at: usize, target: Target, mode: Mode) {
        if let Some(record) = self.attempts.enlist(at, target, mode) {
            let (place, _) = self.records.find_or_add(store, record);
            self.records.at_mut(place).holders += 1;
        }
    }

    /// Claims the end of a record's newest version (rule V3): the first attempt to do so wins.
    fn claim(&mut self, store: &mut MemoryStore, at: usize, record: RecordId) -> Verdict {
        let (place, _) = self.records.find_or_add(store, record);
        let marks = self.records.at_mut(place);
        // Whoever protects it is done after a word from other regions, and does not itself write it.
        if marks.protected > 0 && !self.bugs.has(Bug::UnmarkReads) {
            self.counts.by_claim += 1;
            return Verdict::Refused;
        }
        match marks.claim {
            Some(owner) if owner as usize != at => {
                // The end of a validated owner is near, and its stamp is the smaller one.
                match self.attempts[owner as usize].kept.validated() {
                    Some(_) => Verdict::Waits,
                    // Planted, HELD-ALONE.
                    None if self.bugs.has(Bug::UpgradeShared) => Verdict::Granted,
                    None => {
                        self.counts.by_claim += 1;
                        Verdict::Refused
                    }
                }
            }
            _ => {
                self.records.at_mut(place).claim = Some(at as u32);
                Verdict::Granted
            }
        }
    }

    /// Takes note that an attempt that writes is validated.
    fn prepare(&mut self, at: usize, stamp: Age) {
        self.table.writing.insert(stamp, at as u32);
        if self.attempts[at].table == Modes::EXCLUSIVE {
            self.table.changing = Some(at as u32);
        }
    }

    /// Runs an access, or lets it wait for a validated attempt.
    fn go_on(&mut self, store: &mut MemoryStore, at: usize, target: Target, mode: Mode) -> Verdict {
        if self.attempts[at].kept.came != self.table.changes {
            self.counts.by_version += 1;
            return Verdict::Refused;
        }
        let (verdict, barrier) = match target {
            Target::Table => (self.read_table(store, at, mode), Target::Table),
            Target::Record(_) if self.waits_for_change(at) => (Verdict::Waits, Target::Table),
            Target::Record(record) => {
                let claimed =
                    if mode == Mode::Shared { Verdict::Granted } else { self.claim(store, at, record) };
                let verdict = match claimed {
                    Verdict::Granted => self.read(store, at, record, mode),
                    claimed => claimed,
                };
                (verdict, target)
            }
        };
        if target == Target::Table
            && verdict != Verdict::Granted
            && self.attempts[at].kept.reads != Reads::Fixed
        {
            // The gate keeps others out, which would come before it for ever.
            self.gate.note_refused(by_id(self.attempts[at].id), Modes::of(mode));
        }
        if verdict == Verdict::Waits && self.attempts[at].kept.is_part && self.is_promised(store, barrier) {
            self.counts.by_claim += 1;
            return Verdict::Refused;
        }
        if verdict == Verdict::Waits {
            self.waiting.add(Access { by: at as u32, target, mode }, barrier);
        }
        verdict
    }

    /// True if an attempt that other regions decide about too has claimed a record.
    fn is_promised(&self, store: &MemoryStore, barrier: Target) -> bool {
        let Target::Record(record) = barrier else { return false };
        let owner = self.records.get(store, record).and_then(|marks| marks.claim);
        // Planted, NO-DEADLOCK.
        let looks = !self.bugs.has(Bug::DirectWaitsOnly);
        looks && owner.is_some_and(|by| self.attempts[by as usize].kept.keeps_reads)
    }

    /// True if an attempt changes something here, as far as it has run.
    fn writes(&self, at: usize) -> bool {
        let attempt = &self.attempts[at];
        !attempt.kept.forgoes
            && (attempt.table == Modes::EXCLUSIVE
                || attempt.held.iter().any(|(_, mode)| mode != Mode::Shared))
    }

    /// True if an attempt would write what a part of a transaction of several regions has read (rule V9).
    fn writes_protected(&self, store: &MemoryStore, at: usize) -> bool {
        let writes = self.attempts[at].held.iter().filter(|(_, mode)| *mode != Mode::Shared);
        let mut marks = writes.filter_map(|(record, _)| self.records.get(store, record));
        // Planted, VALIDATED.
        !self.attempts[at].kept.forgoes
            && marks.any(|marks| marks.protected > 0)
            && !self.bugs.has(Bug::UnmarkReads)
    }

    /// Has nobody write a record until an attempt is over.
    fn protect(&mut self, store: &mut MemoryStore, at: usize, record: RecordId) {
        let (place, _) = self.records.find_or_add(store, record);
        self.records.at_mut(place).protected += 1;
        self.attempts[at].kept.protects.push(record);
    }

    /// True if an attempt may commit with a stamp (rule V5).
    fn may_commit(&mut self, store: &MemoryStore, at: usize, stamp: Age) -> bool {
        let is_protected = self.writes_protected(store, at);
        let (is_current, kept) = (self.is_current(store, at), &self.attempts[at].kept);
        let counts = &mut self.counts;
        let whole = self.attempts[at].table == Modes::EXCLUSIVE && !kept.forgoes;
        let refused = if kept.is_doomed {
            &mut counts.by_cascade
        } else if !is_current && !self.bugs.has(Bug::SkipValidation) {
            // Planted, VALIDATED.
            &mut counts.by_version
        } else if stamp <= self.latest && !self.bugs.has(Bug::StampEarly) {
            &mut counts.by_order
        } else if is_protected || self.table.changing.is_some() || whole && !self.table.writing.is_empty() {
            &mut counts.by_claim
        } else {
            return true;
        };
        *refused += 1;
        false
    }

    /// Takes an attempt that is over out of the lists of those that it stands on and that stand on it: those come to nothing with it (rule V6).
    fn part(&mut self, at: usize, has_committed: bool, ended: &mut Ended) {
        for below in std::mem::take(&mut self.attempts[at].kept.stands_on) {
            self.attempts[below as usize].kept.carries.retain(|above| *above as usize != at);
        }
        for above in std::mem::take(&mut self.attempts[at].kept.carries) {
            let attempt = &mut self.attempts[above as usize];
            let (id, kept) = (attempt.id, &mut attempt.kept);
            kept.stands_on.retain(|below| *below as usize != at);
            let (is_validated, is_over) = (kept.validated().is_some(), kept.stands_on.is_empty());
            // Planted, CASCADES.
            if has_committed || self.bugs.has(Bug::ForgetDependency) {
                if is_over && is_validated && !kept.is_doomed {
                    ended.settled.push((id, true));
                }
                continue;
            }
            if std::mem::replace(&mut kept.is_doomed, true) {
                continue;
            }
            self.counts.by_cascade += 1;
            if is_validated {
                ended.settled.push((id, false));
            } else if self.waiting.remove(above) {
                ended.refused.push(id);
            }
        }
    }

    /// Drops the marks of a record, if nobody needs them.
    fn free_if_idle(&mut self, store: &mut MemoryStore, record: RecordId) {
        let (place, _) = self.records.find_or_add(store, record);
        if self.records.at_mut(place).are_idle() {
            self.records.free(store, place);
        }
    }

    /// An attempt will leave a version of a record here.
    fn leave(&mut self, store: &mut MemoryStore, at: usize, record: RecordId, cell: Option<Cell>) {
        let (place, _) = self.records.find_or_add(store, record);
        let next = &mut self.records.at_mut(place).next;
        let is_first = next.is_none();
        // A parent that is written itself has its content already.
        if is_first || cell.is_some() {
            *next = Some(Next { by: at as u32, cell });
        }
        if let Some(leaves) = self.attempts[at].kept.leaves.as_mut().filter(|_| is_first) {
            leaves.push(record);
        }
    }
}

impl ConcurrencyControl for Mvocc {
    fn stamps(&self) -> Stamps {
        Stamps::TwoOfAttempt
    }

    fn validates(&self) -> bool {
        true
    }

    fn keeps_reads(&self) -> bool {
        false
    }

    fn tells_blind(&self) -> bool {
        true
    }

    fn versions_parents(&self) -> bool {
        true
    }

    fn enter(&mut self, who: AttemptId, age: Age, snapshot: &Snapshot) {
        let at = self.attempts.find_or_add(who, age);
        let changes = self.table.changes;
        let kept = &mut self.attempts[at].kept;
        if !kept.has_come {
            kept.resolves = snapshot.reads == Reads::Resolved;
            let reads = if kept.resolves { Reads::Fixed } else { snapshot.reads };
            (kept.has_come, kept.came, kept.at, kept.reads) = (true, changes, age, reads);
        } else if kept.reads == Reads::First && snapshot.reads == Reads::Fixed {
            // The first read was elsewhere, and has fixed the stamp.
            (kept.at, kept.reads) = (age, Reads::Fixed);
        }
    }

    fn view(&self, who: AttemptId) -> (Reads, View) {
        let at = self.attempts.find(who);
        (at.map_or(Reads::Newest, |at| self.attempts[at].kept.reads), View::NONE)
    }

    fn begins(&self, who: AttemptId) -> Age {
        self.attempts.find(who).map_or(Age(0), |at| self.attempts[at].kept.at)
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
        if self.attempts[at].kept.validated().is_some() || self.attempts[at].kept.is_doomed {
            return Verdict::Refused;
        }
        if !self.has_kept_up(store, at, age) {
            self.counts.by_version += 1;
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

    fn hand_over(&mut self, store: &mut MemoryStore, who: AttemptId, writes: &[Write]) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].kept.leaves = Some(Vec::with_capacity(writes.len()));
        for Write { db, key, hash, cell } in writes {
            let record = store.find_or_reserve(*db, key, *hash);
            self.leave(store, at, record, Some(cell.clone()));
            if let Some((parent, _)) = split_child_key(key).filter(|_| db.holds_children()) {
                let db = db.home();
                let record = store.find_or_reserve(db, parent, store.placement().hash_of_record(db, parent));
                self.leave(store, at, record, None);
            }
        }
    }

    fn forgo(&mut self, who: AttemptId) {
        if let Some(at) = self.attempts.find(who) {
            self.attempts[at].kept.forgoes = true;
        }
    }

    fn note_part(&mut self, who: AttemptId, age: Age) {
        let at = self.attempts.find_or_add(who, age);
        self.attempts[at].kept.is_part = true;
    }

    fn keep_reads(&mut self, who: AttemptId) {
        if let Some(at) = self.attempts.find(who) {
            self.attempts[at].kept.keeps_reads = true;
        }
    }

    fn stands_on_others(&self, who: AttemptId) -> bool {
        let at = self.attempts.find(who);
        at.is_some_and(|at| !self.attempts[at].kept.stands_on.is_empty())
    }

    fn validate(&mut self, store: &mut MemoryStore, who: AttemptId, bounds: Bounds, given: Bounds) -> Bounds {
        // No attempt under way reads at an earlier stamp.
        self.advance(store, given.from);
        // An attempt that is not known here has asked for nothing.
        let Some(at) = self.attempts.find(who) else { return bounds };
        let (stamp, kept) = (bounds.from, &self.attempts[at].kept);
        let is_again = kept.validated() == Some(stamp) && !kept.is_doomed;
        if is_again {
            return bounds;
        }
        if kept.validated().is_some() || !self.may_commit(store, at, stamp) {
            self.gate.note_invalid(&self.attempts[at]);
            return Bounds { until: Age(0), ..bounds };
        }
        self.counts.validated += 1;
        self.latest = self.latest.max(stamp);
        if self.writes(at) {
            self.prepare(at, stamp);
        }
        if self.attempts[at].kept.keeps_reads {
            let read = self.attempts[at].held.iter().filter(|(_, mode)| *mode == Mode::Shared);
            let read: Vec<RecordId> = read.map(|(record, _)| record).collect();
            read.into_iter().for_each(|record| self.protect(store, at, record));
        }
        let kept = &mut self.attempts[at].kept;
        kept.state = if kept.forgoes { State::Reading(stamp) } else { State::Prepared(stamp) };
        bounds
    }

    fn change(&mut self, store: &mut MemoryStore, change: TableChange, with: &Commitment, version: Gsn) {
        self.table.changes += 1;
        self.table.changed = self.table.changed.max(with.stamp);
        self.table.newest = self.table.newest.max(with.stamp);
        // Nobody sees through it: what was before is forgotten.
        self.records.iter_mut().for_each(|marks| marks.older.clear());
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
        if !self.serves {
            return store.put_back(record, cell, version);
        }
        self.table.newest = self.table.newest.max(with.stamp);
        let (place, _) = self.records.find_or_add(store, record);
        let marks = self.records.at_mut(place);
        if marks.begin == with.stamp {
            // One attempt has written it twice, and the later write counts.
            return store.put_back(record, cell, version);
        }
        marks.install(store, record, (cell, version), with.stamp);
        marks.queued += 1;
        self.installed.push_back((with.stamp, place));
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, ending: Ending, ended: &mut Ended) {
        let Some(at) = self.attempts.take_out(who, self.bugs) else { return };
        self.waiting.remove(at as u32);
        let has_committed = matches!(ending, Ending::Committed(_));
        self.part(at, has_committed, ended);
        let attempt = &mut self.attempts[at];
        let (whole, validated) = (attempt.table.whole(), attempt.kept.validated());
        let held: Vec<RecordId> = attempt.held.iter().map(|(record, _)| record).collect();
        let leaves = attempt.kept.leaves.take().unwrap_or_default();
        for record in std::mem::take(&mut attempt.kept.protects) {
            let (place, _) = self.records.find_or_add(store, record);
            self.records.at_mut(place).protected -= 1;
        }
        let mut woken = Vec::new();
        for record in held {
            let (place, _) = self.records.find_or_add(store, record);
            let marks = self.records.at_mut(place);
            marks.holders -= 1;
            if marks.claim == Some(at as u32) {
                marks.claim = None;
                self.waiting.wake(Target::Record(record), &mut woken);
            }
            self.free_if_idle(store, record);
        }
        for record in leaves {
            let (place, _) = self.records.find_or_add(store, record);
            self.records.at_mut(place).next = None;
            self.free_if_idle(store, record);
        }
        self.table.changing.take_if(|changing| *changing as usize == at);
        if validated.is_some_and(|stamp| self.table.writing.remove(&stamp).is_some()) {
            self.waiting.wake(Target::Table, &mut woken);
        }
        if validated.is_some() && whole.is_some() && has_committed {
            self.gate.note_granted(by_id(who));
        }
        self.attempts.reuse(at);
        for Access { by, target, mode } in woken {
            let verdict = self.go_on(store, by as usize, target, mode);
            ended.add(self.attempts[by as usize].id, verdict);
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
        let (at, stamp) = (self.attempts.find_or_add(who, bounds.from), bounds.from);
        self.enlist(store, at, target, mode);
        let attempt = &mut self.attempts[at];
        (attempt.kept.has_come, attempt.kept.at, attempt.kept.keeps_reads) = (true, stamp, true);
        attempt.kept.state = State::Prepared(stamp);
        if let Target::Record(_) = target {
            attempt.table = attempt.table.with(Modes::intention(mode));
        }
        self.latest = self.latest.max(stamp);
        if mode == Mode::Shared {
            if let Target::Record(record) = target {
                self.protect(store, at, record);
            }
            return;
        }
        let is_free = match target {
            Target::Record(record) => {
                let claim = self.records.get_mut(store, record).map(|marks| &mut marks.claim);
                let owner = claim.map(|claim| *claim.get_or_insert(at as u32));
                owner == Some(at as u32) && self.table.changing.is_none_or(|changing| changing as usize == at)
            }
            Target::Table => self.table.writing.values().all(|other| *other as usize == at),
        };
        self.prepare(at, stamp);
        assert!(is_free, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn is_held(&self, store: &MemoryStore, record: RecordId) -> bool {
        self.records.get(store, record).is_some_and(|marks| marks.claim.is_some())
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].show(show);
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        self.serves = false;
        self.records.clear(store);
        self.attempts.clear();
        self.installed.clear();
        self.table = Table::default();
        self.waiting.clear();
        self.gate = Gate::default();
        self.latest = Age(0);
    }

    fn advance(&mut self, store: &mut MemoryStore, to: Age) {
        self.floor = self.floor.max(to);
        while let Some((_, place)) = self.installed.pop_front_if(|(stamp, _)| *stamp < to) {
            let marks = self.records.at_mut(place);
            marks.queued -= 1;
            marks.forget(to);
            if marks.are_idle() {
                self.records.free(store, place);
            }
        }
    }

    fn remembers(&self) -> bool {
        !self.installed.is_empty()
    }

    fn seen<'a>(
        &'a self,
        store: &MemoryStore,
        record: RecordId,
        (who, _): (AttemptId, Age),
    ) -> Option<(&'a Cell, Gsn)> {
        let kept = &self.attempts[self.attempts.find(who)?].kept;
        self.seen_by(kept, self.records.get(store, record)?)
    }

    fn replaced(&self, (who, _): (AttemptId, Age)) -> Vec<(RecordId, &Cell)> {
        let Some(at) = self.attempts.find(who) else { return Vec::new() };
        let kept = &self.attempts[at].kept;
        let seen = self.records.iter().filter_map(|of| Some((of.record, self.seen_by(kept, &of.marks)?.0)));
        seen.collect()
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        self.check_all(store, is_live)
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Figures { by_version, by_claim, by_age, by_cascade, by_order, by_gate, by_doubt, .. } =
            self.counts;
        let Figures { validated, waited, speculated, extended, .. } = self.counts;
        report("ordain_mvocc_attempts", self.attempts.len() as f64);
        report("ordain_mvocc_records", self.records.len() as f64);
        report("ordain_mvocc_versions", self.installed.len() as f64);
        report("ordain_mvocc_validated_total", validated as f64);
        report("ordain_mvocc_waited_total", waited as f64);
        report("ordain_mvocc_speculated_total", speculated as f64);
        report("ordain_mvocc_extended_total", extended as f64);
        report("ordain_mvocc_refused_total{reason=\"version\"}", by_version as f64);
        report("ordain_mvocc_refused_total{reason=\"claim\"}", by_claim as f64);
        report("ordain_mvocc_refused_total{reason=\"age\"}", by_age as f64);
        report("ordain_mvocc_refused_total{reason=\"cascade\"}", by_cascade as f64);
        report("ordain_mvocc_refused_total{reason=\"order\"}", by_order as f64);
        report("ordain_mvocc_refused_total{reason=\"gate\"}", by_gate as f64);
        report("ordain_mvocc_refused_total{reason=\"doubt\"}", by_doubt as f64);
        report("ordain_mvocc_gate_closed_total", self.gate.closings() as f64);
    }
}
