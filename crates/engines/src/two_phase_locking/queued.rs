//! Locks that requests wait for in queues, as a part of the engines that have them: what a request that conflicts does is the [`Discipline`] of
//! the engine.
//!
//! The store's lock word of a record is 0, or one more than the place of its `Queue` in a side table, which has queues only for
//! records that somebody holds or waits for. The table of the participant has a queue of the same kind.

mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::{Age, AttemptId, Bounds, ConcurrencyControl, Ended, Ending, Mode, Target, Verdict};
use ordain_role::{Bug, Bugs};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use super::{Attempt, Attempts, Modes};
pub(crate) use queue::{Ahead, Discipline};
use queue::{Queue, Request};

/// The locks of one participant.
#[derive(Debug)]
pub(crate) struct QueuedLocks {
    discipline: &'static Discipline,
    attempts: Attempts<Option<Waiting>>,
    table: Queue,
    records: Records,
    refused: u64,
    waited: u64,
    /// Room for the attempts that are granted by one release.
    granted: Vec<AttemptId>,
    /// Attempts whose waits have begun or changed, where those are told.
    waiters: Vec<AttemptId>,
    bugs: Bugs,
}

/// An access that waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    target: Target,
    mode: Mode,
    /// The table is what the access waits for, though its target may be a record.
    for_table: bool,
}

/// The queues of records.
#[derive(Debug, Default)]
struct Records {
    all: Vec<RecordLock>,
    free: Vec<u32>,
}

/// The queue of one record.
#[derive(Debug)]
struct RecordLock {
    record: RecordId,
    queue: Queue,
    /// Attempts that will ask for the record once they have the table: its lock word keeps it in the store until then.
    expected: u32,
}

impl Records {
    /// Returns the queue of a record, which is made if there is none.
    #[inline]
    fn find_or_add(&mut self, store: &mut MemoryStore, record: RecordId) -> &mut RecordLock {
        let at = match store.lock(record) {
            0 => {
                let at = match self.free.pop() {
                    Some(at) => {
                        self.all[at as usize].record = record;
                        at
                    }
                    None => {
                        self.all.push(RecordLock { record, queue: Queue::default(), expected: 0 });
                        self.all.len() as u32 - 1
                    }
                };
                store.set_lock(record, at + 1);
                at
            }
            word => word - 1,
        };
        &mut self.all[at as usize]
    }

    /// Returns the queue of a record that somebody holds or waits for.
    fn get(&self, store: &MemoryStore, record: RecordId) -> Option<&RecordLock> {
        self.all.get(store.lock(record).checked_sub(1)? as usize)
    }

    /// Returns the queue of a record that somebody holds or waits for.
    fn get_mut(&mut self, store: &MemoryStore, record: RecordId) -> Option<&mut RecordLock> {
        self.all.get_mut(store.lock(record).checked_sub(1)? as usize)
    }

    /// Frees the queue of a record that nobody needs any more.
    fn free_if_empty(&mut self, store: &mut MemoryStore, record: RecordId, ended: &mut Ended) {
        let word = store.lock(record);
        let lock = word.checked_sub(1).and_then(|at| self.all.get(at as usize));
        if lock.is_some_and(|lock| lock.queue.is_empty() && lock.expected == 0) {
            self.free.push(word - 1);
            store.set_lock(record, 0);
            ended.released.push(record);
        }
    }

    /// Visits the queues in use.
    fn in_use(&self) -> impl Iterator<Item = &RecordLock> {
        self.all.iter().filter(|lock| !lock.queue.is_empty() || lock.expected > 0)
    }
}

/// Contents of all queues, to be compared with what the attempts know of them.
#[derive(Debug, Default)]
struct Requests {
    held: BTreeMap<(AttemptId, RecordId), Modes>,
    tables: BTreeMap<AttemptId, Modes>,
    /// The record that each waiting attempt waits for; `None` for the table.
    waiting: BTreeMap<AttemptId, Option<RecordId>>,
    expected: BTreeMap<RecordId, u32>,
}

impl Requests {
    /// Takes what belongs to an attempt out.
    ///
    /// # Errors
    /// The first lock or wait of the attempt that no queue has.
    fn take(&mut self, attempt: &Attempt<Option<Waiting>>) -> Result<(), String> {
        let Attempt { id, table, held, kept: waiting, .. } = attempt;
        if self.tables.remove(id).unwrap_or_default() != *table {
            return Err(format!("attempt {id} knows of {table:?} of the table"));
        }
        for (record, mode) in held.iter() {
            if self.held.remove(&(*id, record)) != Some(Modes::of(mode)) {
                return Err(format!("attempt {id} knows of {record:?} {mode:?}"));
            }
        }
        let Some(Waiting { target, for_table, .. }) = *waiting else { return Ok(()) };
        let record = match target {
            Target::Record(record) => Some(record),
            Target::Table => None,
        };
        if self.waiting.remove(id) != Some(record.filter(|_| !for_table)) {
            return Err(format!("attempt {id} knows that it waits for {target:?}"));
        }
        if let Some(expected) = record.filter(|_| for_table).and_then(|r| self.expected.get_mut(&r)) {
            *expected = expected.wrapping_sub(1);
        }
        Ok(())
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// The contents that no attempt knows of.
    fn check_empty(&self) -> Result<(), String> {
        let Requests { held, tables, waiting, expected } = self;
        let is_expected = expected.values().any(|expected| *expected > 0);
        if held.is_empty() && tables.is_empty() && waiting.is_empty() && !is_expected {
            return Ok(());
        }
        Err(format!("no attempt knows of {self:?}"))
    }
}

impl QueuedLocks {
    /// No locks. `bugs` are those that a test has planted.
    pub(crate) fn new(discipline: &'static Discipline, bugs: Bugs) -> QueuedLocks {
        QueuedLocks {
            discipline,
            attempts: Attempts::default(),
            table: Queue::default(),
            records: Records::default(),
            refused: 0,
            waited: 0,
            granted: Vec::new(),
            waiters: Vec::new(),
            bugs,
        }
    }

    /// Asks for the table.
    #[inline]
    fn ask_table(&mut self, at: usize, wanted: Modes) -> Verdict {
        let attempt = &mut self.attempts[at];
        let own = attempt.table;
        if own.covers(wanted) {
            return Verdict::Granted;
        }
        let modes = own.with(wanted);
        // Planted, IN-TURN.
        let passes = self.bugs.has(Bug::PassTable);
        let request = Request { who: attempt.id, age: attempt.age, own, modes };
        let verdict = self.table.request(request, passes, self.discipline, &mut self.waiters);
        if verdict == Verdict::Granted {
            attempt.table = modes;
        }
        verdict
    }

    /// Asks for a record, for an attempt that has the table.
    #[inline]
    fn ask_record(&mut self, store: &mut MemoryStore, at: usize, record: RecordId, mode: Mode) -> Verdict {
        let attempt = &mut self.attempts[at];
        // Nobody holds a record whose lock word is 0, so the attempt's own locks are not searched.
        let held = if store.lock(record) == 0 { None } else { attempt.held.get(record) };
        if held.is_some_and(|held| held >= mode) {
            return Verdict::Granted;
        }
        // Planted, HELD-ALONE: a shared lock is upgraded beside a second holder.
        if held.is_some() && self.bugs.has(Bug::UpgradeShared) {
            return Verdict::Granted;
        }
        let own = held.map_or(Modes::NONE, Modes::of);
        let request = Request { who: attempt.id, age: attempt.age, own, modes: Modes::of(mode) };
        // Planted, IN-TURN.
        let passes_writers = self.bugs.has(Bug::PassWriter) && mode == Mode::Shared;
        let queue = &mut self.records.find_or_add(store, record).queue;
        let verdict = queue.request(request, passes_writers, self.discipline, &mut self.waiters);
        match verdict {
            Verdict::Granted => attempt.held.insert(record, mode),
            // Planted, FIFO-LOCKS: the access goes on without a lock.
            Verdict::Refused if self.bugs.has(Bug::GrantLockEarly) => return Verdict::Granted,
            // Planted, FIFO-LOCKS, where nobody is refused.
            Verdict::Waits if self.bugs.has(Bug::GrantLockEarly) && self.discipline.refused.is_none() => {
                let who = attempt.id;
                if let Some(lock) = self.records.get_mut(store, record) {
                    lock.queue.cancel(who, self.discipline, &mut self.waiters);
                }
                return Verdict::Granted;
            }
            Verdict::Waits | Verdict::Refused => {}
        }
        verdict
    }

    /// Goes on with the accesses that waited for the table and have it now.
    fn go_on(&mut self, store: &mut MemoryStore, ended: &mut Ended) {
        let mut granted = std::mem::take(&mut self.granted);
        self.table.grant(|request| granted.push(request.who));
        for who in granted.drain(..) {
            let Some(at) = self.attempts.find(who) else { continue };
            let attempt = &mut self.attempts[at];
            let Some(Waiting { target, mode, .. }) = attempt.kept.take() else { continue };
            let Target::Record(record) = target else {
                attempt.table = attempt.table.with(Modes::of(mode));
                ended.granted.push(who);
                continue;
            };
            attempt.table = attempt.table.with(Modes::intention(mode));
            if let Some(lock) = self.records.get_mut(store, record) {
                lock.expected -= 1;
            }
            match self.ask_record(store, at, record, mode) {
                Verdict::Granted => ended.granted.push(who),
                Verdict::Waits => {
                    self.attempts[at].kept = Some(Waiting { target, mode, for_table: false });
                }
                Verdict::Refused => {
                    self.refused += 1;
                    ended.refused.push(who);
                }
            }
            self.records.free_if_empty(store, record, ended);
        }
        self.granted = granted;
    }

    /// Grants a record to those who wait for it and may have it now, and frees its queue if nobody needs it.
    fn grant_record(&mut self, store: &mut MemoryStore, record: RecordId, ended: &mut Ended) {
        let QueuedLocks { attempts, records, .. } = self;
        if let Some(lock) = records.get_mut(store, record) {
            lock.queue.grant(|request| {
                let Some(at) = attempts.find(request.who) else { return };
                let attempt = &mut attempts[at];
                if let Some(waiting) = attempt.kept.take() {
                    attempt.held.insert(record, waiting.mode);
                }
                ended.granted.push(request.who);
            });
        }
        records.free_if_empty(store, record, ended);
    }

    /// Takes the waiting request of an attempt out of its queue. Returns the record whose queue may have to be granted.
    fn cancel(&mut self, store: &MemoryStore, who: AttemptId, waiting: Waiting) -> Option<RecordId> {
        if waiting.for_table {
            self.table.cancel(who, self.discipline, &mut self.waiters);
        }
        let Target::Record(record) = waiting.target else { return None };
        let lock = self.records.get_mut(store, record)?;
        match waiting.for_table {
            true => lock.expected -= 1,
            false => lock.queue.cancel(who, self.discipline, &mut self.waiters),
        }
        Some(record)
    }
}

impl ConcurrencyControl for QueuedLocks {
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
        let (verdict, for_table) = match target {
            Target::Table => (self.ask_table(at, Modes::of(mode)), true),
            // Planted, WHOLE-TABLE.
            Target::Record(record) if self.bugs.has(Bug::ForgetIntention) => {
                (self.ask_record(store, at, record, mode), false)
            }
            Target::Record(record) => match self.ask_table(at, Modes::intention(mode)) {
                Verdict::Granted => (self.ask_record(store, at, record, mode), false),
                Verdict::Waits => {
                    self.records.find_or_add(store, record).expected += 1;
                    (Verdict::Waits, true)
                }
                Verdict::Refused => (Verdict::Refused, true),
            },
        };
        match verdict {
            Verdict::Granted => {}
            Verdict::Waits => {
                self.waited += 1;
                self.attempts[at].kept = Some(Waiting { target, mode, for_table });
            }
            Verdict::Refused => self.refused += 1,
        }
        verdict
    }

    fn finish(&mut self, store: &mut MemoryStore, who: AttemptId, _ending: Ending, ended: &mut Ended) {
        let Some(at) = self.attempts.take_out(who, self.bugs) else { return };
        let attempt = &mut self.attempts[at];
        let (held, waiting) = (std::mem::take(&mut attempt.held), attempt.kept.take());
        let cancelled = waiting.and_then(|waiting| self.cancel(store, who, waiting));
        for (record, _) in held.iter() {
            if let Some(lock) = self.records.get_mut(store, record) {
                lock.queue.release(who);
            }
            self.grant_record(store, record, ended);
        }
        if let Some(record) = cancelled {
            self.grant_record(store, record, ended);
        }
        self.table.release(who);
        self.go_on(store, ended);
        // The vector goes back to its place, which a later attempt uses.
        self.attempts[at].held = held;
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
        let attempt = &mut self.attempts[at];
        let wanted = match target {
            Target::Table => Modes::of(mode),
            Target::Record(_) => Modes::intention(mode),
        };
        let (own, modes) = (attempt.table, attempt.table.with(wanted));
        let mut is_free = self.table.restore(Request { who, age, own, modes });
        attempt.table = modes;
        if let Target::Record(record) = target {
            let held = attempt.held.get(record);
            let own = held.map_or(Modes::NONE, Modes::of);
            let request = Request { who, age, own, modes: own.with(Modes::of(mode)) };
            is_free &= self.records.find_or_add(store, record).queue.restore(request);
            attempt.held.insert(record, held.map_or(mode, |held| held.max(mode)));
        }
        assert!(is_free, "prepared attempt {who} conflicts with another in {target:?} {mode:?}");
    }

    fn held(&self, who: AttemptId, show: &mut dyn FnMut(Target, Mode)) {
        let Some(at) = self.attempts.find(who) else { return };
        self.attempts[at].show(show);
    }

    fn clear(&mut self, store: &mut MemoryStore) {
        for lock in self.records.in_use() {
            store.set_lock(lock.record, 0);
            store.release_if_absent(lock.record);
        }
        self.records = Records::default();
        self.table.clear();
        self.attempts.clear();
        self.waiters.clear();
    }

    fn take_waiters(&mut self) -> Vec<AttemptId> {
        if self.waiters.is_empty() {
            return Vec::new();
        }
        let mut seen = BTreeSet::new();
        let mut waiters = std::mem::take(&mut self.waiters);
        waiters.retain(|who| seen.insert(*who));
        waiters
    }

    fn waits_for(&self, store: &MemoryStore, who: AttemptId) -> Vec<AttemptId> {
        let Some(at) = self.attempts.find(who) else { return Vec::new() };
        match self.attempts[at].kept {
            None => Vec::new(),
            Some(Waiting { target: Target::Record(record), for_table: false, .. }) => {
                self.records.get(store, record).map_or(Vec::new(), |lock| lock.queue.waits_for(who))
            }
            Some(_) => self.table.waits_for(who),
        }
    }

    fn check(&self, store: &MemoryStore, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        self.table.check(self.discipline).map_err(|e| format!("table: {e}"))?;
        if !self.discipline.tells_waits && !self.waiters.is_empty() {
            return Err(format!("waits are noted that nobody takes: {:?}", self.waiters));
        }
        let mut requests = Requests::default();
        for lock in self.records.in_use() {
            let record = lock.record;
            lock.queue.check(self.discipline).map_err(|e| format!("{record:?}: {e}"))?;
            let at = store.lock(record).checked_sub(1).and_then(|at| self.records.all.get(at as usize));
            if !at.is_some_and(|at| std::ptr::eq(at, lock)) {
                return Err(format!("{record:?} is locked and has the lock word {}", store.lock(record)));
            }
            let holders = lock.queue.holders().map(|holder| ((holder.who, record), holder.modes));
            requests.held.extend(holders);
            requests.waiting.extend(lock.queue.waiters().map(|waiter| (waiter.who, Some(record))));
            requests.expected.insert(record, lock.expected);
        }
        requests.waiting.extend(self.table.waiters().map(|waiter| (waiter.who, None)));
        requests.tables.extend(self.table.holders().map(|holder| (holder.who, holder.modes)));
        for attempt in self.attempts.sorted() {
            attempt.check(is_live)?;
            requests.take(attempt)?;
        }
        requests.check_empty()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let waiting =
            self.table.waiting() + self.records.in_use().map(|lock| lock.queue.waiting()).sum::<usize>();
        report("ordain_locks_attempts", self.attempts.len() as f64);
        report("ordain_locks_waiting", waiting as f64);
        report("ordain_locks_waited_total", self.waited as f64);
        if let Some(refused) = self.discipline.refused {
            report(refused, self.refused as f64);
        }
    }
}
