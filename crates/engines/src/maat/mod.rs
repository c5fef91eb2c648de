//! MaaT (Mahmoud, Arora, Nawab, Agrawal and El Abbadi, VLDB 2014; the Q-Store paper, section 6): nobody waits, and an attempt gets its
//! stamp when it commits.
//!
//! An attempt has *bounds*: the stamps that it may have yet. What it reads and who has read what it writes narrows them. When it is to commit,
//! each partition *validates* it: its bounds there are frozen, and those of others that run move out of their way. It commits with the first
//! stamp that all partitions have left it. The rules stand in `docs/protocols/maat.md`.

mod marks;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::options::{BACKOFF, CAP, PREWRITE};
use ordain_commit::{
    Age, AttemptId, Bounds, CommitEngine, Commitment, ConcurrencyControl, Ended, Ending, Mode, Stamps,
    Target, Verdict,
};
use ordain_execution::TableChange;
use ordain_model::{Abort, Cell, Gsn, Offer, Prewrite};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::marked_records::{Marks as _, OfRecord, Records};
use crate::two_phase_locking::gate::{Gate, by_id};
use crate::two_phase_locking::{Attempts, Modes, both};
use marks::{Soft, put, take};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "maat",
    refusal: Abort::EmptyInterval,
    is_strict: false,
    control: |options, bugs| {
        let prewrites = options.choice::<Prewrite>(&PREWRITE) == Prewrite::Access;
        Box::new(Maat { cap: options.number(&CAP), prewrites, bugs, ..Maat::default() })
    },
};

/// The options of the engine.
pub(crate) static OPTIONS: [Offer; 3] = [Offer::of(&BACKOFF), Offer::of(&PREWRITE), Offer::of(&CAP)];

/// The soft locks and bounds of one participant.
#[derive(Debug, Default)]
pub(crate) struct Maat {
    /// The modes of what an attempt holds say what it reads and writes. The table in the modes S and X; others tell what it was let in for.
    attempts: Attempts<Interval>,
    records: Records<Soft>,
    table: Soft,
    gate: Gate,
    /// Attempts that are validated.
    frozen: BTreeSet<u32>,
    /// The latest stamps of any record.
    newest: Newest,
    /// Stamps before this one are not given: what is forgotten, or of an earlier term, may have any of them.
    floor: Age,
    /// Stamps before this one are forgotten, as the log has it.
    forgotten: Age,
    /// The most stamps that an attempt keeps when it is validated; 0 if it keeps all.
    cap: u64,
    /// Writes are soft locks from the access on, and not from the validation.
    prewrites: bool,
    counts: Figures,
    bugs: Bugs,
}

/// The bounds of an attempt.
#[derive(Debug, Default)]
struct Interval {
    bounds: Bounds,
    /// It is validated: its bounds stay.
    is_frozen: bool,
}

#[derive(Debug, Default)]
struct Newest {
    read: Age,
    written: Age,
}

/// Attempts that were refused, by reason, and those that were validated.
#[derive(Debug, Default)]
struct Figures {
    /// At an access: nothing is left of its bounds.
    by_bounds: u64,
    /// When it was validated.
    by_validation: u64,
    /// The gate is closed.
    by_gate: u64,
    validated: u64,
}

/// The attempts and stamps that an attempt meets when it is validated.
#[derive(Debug, Default)]
struct Met {
    /// It comes at this stamp or later, by what is installed and was read.
    from: Age,
    /// It comes behind these: they read what it writes, or write it and are validated.
    behind: BTreeSet<u32>,
    /// It comes ahead of these: they run, and write what it reads or writes.
    ahead: BTreeSet<u32>,
    /// A change of the whole table and a write of a record meet: the later one is refused, so that they are installed in one order everywhere.
    is_barred: bool,
}

impl Met {
    fn after(&mut self, written: Age, read: Age) {
        self.from = self.from.max(written.next()).max(read.next());
    }
}

impl Maat {
    fn bounds(&self, at: u32) -> Bounds {
        self.attempts[at as usize].kept.bounds
    }

    fn is_frozen(&self, at: u32) -> bool {
        self.attempts[at as usize].kept.is_frozen
    }

    /// The first stamp of the attempts among others that are validated.
    fn first_frozen(&self, at: u32, others: impl IntoIterator<Item = u32>) -> Age {
        let frozen = others.into_iter().filter(|other| *other != at && self.is_frozen(*other));
        frozen.map(|other| self.bounds(other).from).min().unwrap_or(Age(u64::MAX))
    }

    /// The bounds of a read: after the newest write, and before each write that is validated and not installed yet (rule M1).
    fn read(&self, store: &MemoryStore, at: u32, target: Target) -> Bounds {
        let mut from = self.table.written.next();
        let mut until = self.first_frozen(at, self.table.writers.iter().copied());
        match target {
            Target::Record(record) => {
                if let Some(marks) = self.records.get(store, record) {
                    until = until.min(self.first_frozen(at, marks.writers.iter().copied()));
                    // Planted, STAMP-ORDER (sheet B-6a): the stamp is not that of the content.
                    if !self.bugs.has(Bug::TearRead) {
                        from = from.max(marks.written.next());
                    }
                }
            }
            Target::Table => {
                let writing = self.frozen.iter().copied().filter(|other| self.writes_records(*other));
                until = until.min(self.first_frozen(at, writing));
                from = from.max(self.newest.written.next());
            }
        }
        // Planted, FIFO-LOCKS: the read does not look at writes that are on their way.
        if self.bugs.has(Bug::GrantLockEarly) {
            until = Age(u64::MAX);
        }
        Bounds { from, until }
    }

    /// True if an attempt writes records, or the whole table.
    fn writes_records(&self, at: u32) -> bool {
        let attempt = &self.attempts[at as usize];
        attempt.table == Modes::EXCLUSIVE || attempt.held.iter().any(|(_, mode)| mode != Mode::Shared)
    }

    /// True if an attempt reads records, or the whole table.
    fn reads_records(&self, at: u32) -> bool {
        let attempt = &self.attempts[at as usize];
        attempt.table.whole().is_some() || attempt.held.iter().any(|(_, mode)| mode != Mode::Blind)
    }

    /// The attempts that an attempt meets where it is validated (rules M2, M7).
    fn meet(&self, store: &MemoryStore, at: u32) -> Met {
        let attempt = &self.attempts[at as usize];
        let mut met = Met::default();
        // Planted, HELD-ALONE: a write does not look at reads.
        let looks = !self.bugs.has(Bug::UpgradeShared);
        let is_whole = attempt.table == Modes::EXCLUSIVE;
        if is_whole {
            met.behind.extend(self.attempts.places().filter(|other| looks && self.reads_records(*other)));
            met.after(self.newest.written, self.newest.read);
        }
        let mut is_writing = is_whole;
        for (record, mode) in attempt.held.iter() {
            let Some(marks) = self.records.get(store, record) else { continue };
            if mode == Mode::Shared {
                met.ahead.extend(&marks.writers);
                continue;
            }
            is_writing = true;
            met.after(marks.written, if looks { marks.read } else { Age(0) });
            met.behind.extend(marks.readers.iter().filter(|_| looks));
            met.ahead.extend(&marks.writers);
            met.behind.extend(marks.writers.iter().filter(|other| self.is_frozen(**other)));
        }
        if is_writing {
            met.after(self.table.written, self.table.read);
            met.behind.extend(&self.table.readers);
            let writers = self.table.writers.iter();
            met.is_barred = writers.clone().any(|other| *other != at && self.is_frozen(*other))
                || is_whole && self.frozen.iter().any(|other| *other != at && self.writes_records(*other));
        }
        met.behind.remove(&at);
        met.ahead.retain(|other| *other != at && !self.is_frozen(*other));
        met
    }

    /// Freezes the bounds of an attempt, and takes the soft locks of its writes.
    fn freeze(&mut self, store: &mut MemoryStore, at: u32, bounds: Bounds) {
        let attempt = &mut self.attempts[at as usize];
        attempt.kept = Interval { bounds, is_frozen: true };
        for (record, _) in attempt.held.iter().filter(|(_, mode)| *mode != Mode::Shared) {
            put(&mut self.records.find_or_add(store, record, bounds.from).writers, at);
        }
        if attempt.table == Modes::EXCLUSIVE {
            put(&mut self.table.writers, at);
        }
        self.frozen.insert(at);
    }

    /// Adds an attempt to the soft locks of a target.
    fn enlist(&mut self, store: &mut MemoryStore, at: u32, target: Target, mode: Mode) {
        let (from, prewrites) = (self.bounds(at).from, self.prewrites && mode != Mode::Shared);
        let attempt = &mut self.attempts[at as usize];
        let (marks, mode) = match target {
            Target::Record(record) => {
                let (held, marks) = (attempt.held.get(record), self.records.find_or_add(store, record, from));
                let mode = both(held, mode);
                attempt.held.insert(record, mode);
                marks.holders += u32::from(held.is_none());
                (marks, mode)
            }
            Target::Table => {
                self.table.holders += u32::from(attempt.table.whole().is_none());
                attempt.table = attempt.table.with(Modes::of(mode));
                (&mut self.table, mode)
            }
        };
        // Planted, STRICT-2PL: a read leaves no mark; and of updates alone (sheet B-6b).
        let forgets = self.bugs.has(Bug::ForgetIntention)
            || mode == Mode::Exclusive && self.bugs.has(Bug::WriteOnlyUpdates);
        match mode {
            Mode::Blind => {}
            _ if forgets => take(&mut marks.readers, at),
            Mode::Shared | Mode::Exclusive => put(&mut marks.readers, at),
        }
        if prewrites {
            put(&mut marks.writers, at);
        }
    }

    /// Leaves an attempt that is validated as many stamps as it may keep.
    fn capped(&self, bounds: Bounds, given: Bounds) -> Bounds {
        let until = match self.cap {
            0 => given.until.max(bounds.from.next()),
            cap => Age(bounds.from.0.saturating_add(cap)),
        };
        Bounds { until: bounds.until.min(until), ..bounds }
    }

    /// Validates an attempt that is known here (rule M2).
    fn validate_known(&mut self, store: &mut MemoryStore, at: u32, bounds: Bounds, given: Bounds) -> Bounds {
        let met = self.meet(store, at);
        // Planted, STAMP-ORDER (sheet B-6d): who is validated is moved as others are.
        let moves_all = self.bugs.has(Bug::MoveValidated);
        let (frozen, running): (Vec<u32>, Vec<u32>) =
            met.behind.iter().partition(|other| self.is_frozen(**other) && !moves_all);
        let frozen = frozen.into_iter().map(|other| self.bounds(other).until);
        let from = frozen.fold(met.from.max(given.from).max(self.floor), Age::max);
        let mut own = self.bounds(at).with(bounds).with(Bounds::from(from));
        if own.is_empty() || met.is_barred {
            return Bounds { until: Age(0), ..own };
        }
        // Running readers of what this attempt writes keep a stamp before it, if there is one.
        let after = running.iter().map(|reader| self.bounds(*reader).from.next()).max();
        own.from = own.from.max(after.unwrap_or_default().min(Age(own.until.0 - 1)));
        let own = self.capped(own, given);
        self.freeze(store, at, own);
        for other in running {
            let until = &mut self.attempts[other as usize].kept.bounds.until;
            *until = own.from.min(*until);
        }
        for other in met.ahead {
            let from = &mut self.attempts[other as usize].kept.bounds.from;
            *from = own.until.max(*from);
        }
        own
    }
}

impl ConcurrencyControl for Maat {
    fn stamps(&self) -> Stamps {
        Stamps::AtCommit
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

    fn begins(&self, who: AttemptId) -> Age {
        self.attempts.find(who).map_or(Age(0), |at| self.bounds(at as u32).from)
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
        let at = self.attempts.find_or_add(who, age) as u32;
        let kept = &mut self.attempts[at as usize].kept;
        if kept.bounds == Bounds::default() {
            kept.bounds = Bounds::from(age);
        }
        if kept.is_frozen {
            return Verdict::Refused;
        }
        if !self.gate.lets_in(&mut self.attempts[at as usize], target, mode, self.bugs) {
            self.counts.by_gate += 1;
            return Verdict::Refused;
        }
        let read = match mode {
            Mode::Blind => Bounds::from(Age(0)),
            Mode::Shared | Mode::Exclusive => self.read(store, at, target),
        };
        let floor = Bounds::from(self.floor);
        let bounds = &mut self.attempts[at as usize].kept.bounds;
        *bounds = bounds.with(read).with(floor);
        if bounds.is_empty() {
            self.counts.by_bounds += 1;
            if target == Target::Table {
                self.gate.note_refused(by_id(who), Modes::of(mode));
            }
            return Verdict::Refused;
        }
        self.enlist(store, at, target, mode);
        Verdict::Granted
    }

    fn validate(&mut self, store: &mut MemoryStore, who: AttemptId, bounds: Bounds, given: Bounds) -> Bounds {
        let Some(at) = self.attempts.find(who) else {
            // It has asked for nothing here.
            return self.capped(bounds.with(Bounds::from(given.from)), given);
        };
        let attempt = &self.attempts[at];
        if attempt.kept.is_frozen {
            return attempt.kept.bounds;
        }
        let validated = self.validate_known(store, at as u32, bounds, given);
        match validated.is_empty() {
            true => {
                self.counts.by_validation += 1;
                self.gate.note_invalid(&self.attempts[at]);
            }
            false => self.counts.validated += 1,
        }
        validated
    }

    fn change(&mut self, store: &mut MemoryStore, change: TableChange, with: &Commitment, version: Gsn) {
        let stamp = with.stamp;
        self.table.written = self.table.written.max(stamp);
        self.newest.written = self.newest.written.max(stamp);
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
        self.newest.written = self.newest.written.max(stamp);
        let marks = self.records.find_or_add(store, record, stamp);
        // Planted, STAMP-ORDER (sheet B-6c): a write replaces a later one.
        if stamp >= marks.written || self.bugs.has(Bug::InstallLate) {
            marks.written = marks.written.max(stamp);
            store.put_back(record, cell, version);
        }
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, ending: Ending, _ended: &mut Ended) {
        let Some(place) = self.attempts.take_out(who, self.bugs) else { return };
        let at = place as u32;
        let attempt = &mut self.attempts[place];
        let read = match ending {
            Ending::Committed(stamp) => stamp,
            Ending::Unknown if attempt.kept.is_frozen => Age(attempt.kept.bounds.until.0 - 1),
            Ending::Unknown | Ending::Aborted => Age(0),
        };
        for (record, mode) in attempt.held.iter() {
            let Some(marks) = self.records.get_mut(store, record) else { continue };
            take(&mut marks.readers, at);
            take(&mut marks.writers, at);
            marks.holders -= 1;
            if mode != Mode::Blind {
                marks.read = marks.read.max(read);
                self.newest.read = self.newest.read.max(read);
            }
        }
        if attempt.table.whole().is_some() {
            // Other participants may have refused what was validated here.
            if ending != Ending::Aborted {
                self.gate.note_granted(by_id(who));
            }
            take(&mut self.table.readers, at);
            take(&mut self.table.writers, at);
            self.table.holders -= 1;
            self.table.read = self.table.read.max(read);
        }
        self.frozen.remove(&at);
        self.attempts.reuse(place);
    }

    fn begin(&mut self, floor: Age) {
        self.floor = self.floor.max(floor);
    }

    fn restore(
        &mut self,
        store: &mut MemoryStore,
        who: AttemptId,
        bounds: Bounds,
        target: Target,
        mode: Mode,
    ) {
        let at = self.attempts.find_or_add(who, bounds.from) as u32;
        self.attempts[at as usize].kept = Interval { bounds, is_frozen: true };
        self.enlist(store, at, target, mode);
        let attempt = &mut self.attempts[at as usize];
        if let Target::Record(_) = target {
            attempt.table = attempt.table.with(Modes::intention(mode));
        }
        self.freeze(store, at, bounds);
        let is_apart = self.is_apart(store, at, target);
        assert!(is_apart, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn is_held(&self, store: &MemoryStore, record: RecordId) -> bool {
        self.records.get(store, record).is_some_and(|marks| !marks.writers.is_empty())
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].show(show);
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        self.records.clear(store);
        self.attempts.clear();
        self.table.clear();
        self.newest.read = Age(0);
        self.gate = Gate::default();
        self.frozen.clear();
    }

    fn advance(&mut self, store: &mut MemoryStore, to: Age) {
        self.forgotten = self.forgotten.max(to);
        let forgotten = self.records.forget(store, to);
        if forgotten > Age(0) {
            self.floor = self.floor.max(forgotten.next());
        }
    }

    fn remembers(&self) -> bool {
        self.records.len() > 0
    }

    fn remembered(&self, show: &mut dyn FnMut(RecordId, Age)) {
        self.records.written_since(self.forgotten, show);
    }

    fn remember(&mut self, store: &mut MemoryStore, record: RecordId, stamp: Age) {
        self.newest.written = self.newest.written.max(stamp);
        let marks = self.records.find_or_add(store, record, stamp);
        marks.written = marks.written.max(stamp);
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        let mut known: BTreeMap<RecordId, (Vec<u32>, Vec<u32>, u32)> = BTreeMap::new();
        let (mut table, mut frozen) = ((Vec::new(), Vec::new(), 0), BTreeSet::new());
        // Planted bugs leave reads out.
        let leaves_out = |mode| {
            self.bugs.has(Bug::ForgetIntention)
                || mode == Mode::Exclusive && self.bugs.has(Bug::WriteOnlyUpdates)
        };
        for at in self.attempts.places() {
            let attempt = &self.attempts[at as usize];
            let Interval { bounds, is_frozen } = attempt.kept;
            if !is_live(attempt.id) {
                let count = attempt.held.len();
                return Err(format!("attempt {} is over and has {count} soft locks", attempt.id));
            }
            if is_frozen && bounds.is_empty() {
                return Err(format!("attempt {} is validated within {bounds:?}", attempt.id));
            }
            frozen.extend(is_frozen.then_some(at));
            let whole = attempt.table.whole().map(|mode| (None, mode));
            let records = attempt.held.iter().map(|(record, mode)| (Some(record), mode));
            for (record, mode) in records.chain(whole) {
                let lists = match record {
                    Some(record) => known.entry(record).or_default(),
                    None => &mut table,
                };
                lists.2 += 1;
                if mode != Mode::Blind && !leaves_out(mode) {
                    lists.0.push(at);
                }
                if mode != Mode::Shared && (is_frozen || self.prewrites) {
                    lists.1.push(at);
                }
            }
        }
        if frozen != self.frozen || !self.table.is_as(&mut table) {
            return Err(format!("{:?} are validated and the table has {:?}", self.frozen, self.table));
        }
        self.records.check(store, known, |OfRecord { record, marks, .. }, mut known| {
            if !marks.is_as(&mut known) {
                return Err(format!("{record:?} has {marks:?}, and attempts know of {known:?}"));
            }
            if marks.read > self.newest.read || marks.written > self.newest.written {
                return Err(format!("{record:?} has {marks:?}, later than {:?}", self.newest));
            }
            self.check_apart(store, Target::Record(*record), marks)
        })?;
        self.check_apart(store, Target::Table, &self.table)
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let Figures { by_bounds, by_validation, by_gate, validated } = self.counts;
        report("ordain_stamps_attempts", self.attempts.len() as f64);
        report("ordain_stamps_remembered", self.records.len() as f64);
        report("ordain_stamps_validated", self.frozen.len() as f64);
        report("ordain_stamps_validated_total", validated as f64);
        report("ordain_stamps_refused_total{reason=\"bounds\"}", by_bounds as f64);
        report("ordain_stamps_refused_total{reason=\"validation\"}", by_validation as f64);
        report("ordain_stamps_refused_total{reason=\"gate\"}", by_gate as f64);
        report("ordain_stamps_gate_closed_total", self.gate.closings() as f64);
    }
}

impl Maat {
    /// Checks that each validated attempt that writes a target [is apart](Maat::is_apart) there.
    fn check_apart(&self, store: &MemoryStore, target: Target, marks: &Soft) -> Result<(), String> {
        let mut writers = marks.writers.iter().filter(|at| self.bugs == Bugs::NONE && self.is_frozen(**at));
        match writers.find(|at| !self.is_apart(store, **at, target)) {
            Some(at) => {
                let id = self.attempts[*at as usize].id;
                Err(format!("attempt {id} is validated within the bounds of another at {target:?}"))
            }
            None => Ok(()),
        }
    }

    /// True if a validated attempt is apart from all that it conflicts with at a target: its bounds and those of who is validated there have no
    /// stamp in common if one of the two writes, and who runs and has read what it writes is before it (B4). Who reads the whole table
    /// reads each record.
    fn is_apart(&self, store: &MemoryStore, at: u32, target: Target) -> bool {
        let marks = match target {
            Target::Record(record) => self.records.get(store, record),
            Target::Table => Some(&self.table),
        };
        let Some(marks) = marks else { return true };
        let own = self.bounds(at);
        let is_apart = |other: &u32| *other == at || own.with(self.bounds(*other)).is_empty();
        let is_before = |other: &u32| {
            let bounds = self.bounds(*other);
            *other == at || bounds.is_empty() || bounds.until <= own.from
        };
        let is_missed = |other: &u32| if self.is_frozen(*other) { is_apart(other) } else { is_before(other) };
        let are_missed = || match target {
            Target::Record(_) => marks.readers.iter().chain(&self.table.readers).all(is_missed),
            Target::Table => self
                .attempts
                .places()
                .filter(|other| self.reads_records(*other))
                .all(|other| is_missed(&other)),
        };
        let mut frozen = marks.writers.iter().filter(|other| self.is_frozen(**other));
        frozen.all(is_apart) && (!marks.writers.contains(&at) || are_missed())
    }
}
