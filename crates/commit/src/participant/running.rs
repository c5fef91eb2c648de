//! Running the fragments of attempts: locks, times, compute fragments, and what is handed to whom.
//!
//! A fragment is run once the concurrency control has granted its target and the attempt's time may tell what has expired. One
//! that has to wait, for another attempt, for a time to be reserved or for a work thread, leaves the rest of its access waiting.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ordain_execution::{Computed, Handed, Held, InWorkspace, InputSlots, Long, Step, Workspace, Write};
use ordain_model::serial::key_of;
use ordain_model::{
    Abort, Access as FragmentAccess, Cell, Chunk, Computations, Db, Epoch, Fragment, Gsn, KeyHash, Millis,
    Position, SlotNo, Stop, Stopwatch, Table, Txn, system,
};
use ordain_role::{Address, Bug, Outbox, UnderWay, WorkDone};
use ordain_store::{RecordId, RecordStore};

use super::Participant;
use super::seen::Seen;
use crate::concurrency::{Ended, Ending, Mode, Target, Verdict};
use crate::ids::{Age, AttemptId, Bounds, Lead};
use crate::message::{
    Access, Accessed, Accesses, Failure, Message, Own, Protocol, Read, Settle, Settled, Shipped, Termed,
};
use crate::stamps::{self, Stamps};
use crate::times::{LATEST, Tested};

/// The records of so many fragments are brought into the caches before the first is run.
const AHEAD: usize = 24;

/// An access to the whole table that finds as many expired records takes the table for itself, and else each of them.
const SEEN_MAX: usize = 64;

/// An attempt under way.
#[derive(Debug, Default)]
pub(super) struct Attempt {
    pub(super) age: Age,
    pub(super) workspace: Workspace,
    /// Values of contents that the engine shows it in place of the newest, and that were on disk.
    pub(super) handed: Handed,
    /// The last step of which an access has asked for the values that later ones read.
    pub(super) looked_ahead: Option<u32>,
    /// The results that fragments here need.
    pub(super) slots: Vec<Vec<u8>>,
    /// Records of other participants for compute fragments here.
    pub(super) received: BTreeMap<SlotNo, (Cell, Gsn)>,
    /// Slots of records that were more than may be shipped.
    pub(super) held_back: BTreeSet<SlotNo>,
    /// The access that is being run; it waits for something if there is one between two events.
    pub(super) job: Option<Job>,
    /// The step that all of that is of, in an open transaction.
    pub(super) step: u32,
    /// The workspace before that step, if the step may have to be taken back.
    pub(super) before: Option<Workspace>,
    /// Handed over: the partition may promise it, so that only the partition's log ends it now.
    pub(super) is_gathered: bool,
    /// The time that it sees.
    pub(super) now: Millis,
    /// With two stamps, the first time at which something has expired that it has seen alive.
    pub(super) ends: Option<Millis>,
    /// True if the attempt has read whole tables, so that any record may be one that it has read.
    pub(super) sees_all: bool,
    /// Compute fragments elsewhere may change records here of which nothing is known before the log has them.
    pub(super) lends: bool,
    /// The stamps with which the attempt is validated, while the answer waits, and whether it is to be promised.
    pub(super) validated: Option<(Bounds, bool)>,
}

/// An access that is being run.
#[derive(Debug)]
pub(super) struct Job {
    from: Address,
    home: Lead,
    pub(super) chunk: Arc<Chunk>,
    pub(super) access: Access,
    /// The next of the access's fragments.
    pub(super) next: usize,
    /// Its target is granted already, or will be when this goes on.
    waits: Option<Waits>,
    slots: Vec<(SlotNo, Vec<u8>)>,
    shipped: Vec<Shipped>,
    returned: Vec<Write>,
    /// The compute fragment that takes the records which are shipped next.
    taker: usize,
    /// Bytes of results that only the reply needs.
    shown: usize,
    is_too_long: bool,
}

/// The reason why an access waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// The concurrency control has not granted it.
    Lock,
    /// The attempt's time is not reserved.
    Time,
    /// The attempt's stamp is not reserved, and its first fragment's target not asked for.
    Stamp,
    /// A work thread computes, by its token.
    Computation(u64),
    /// Values come from the disk.
    Fetch {
        /// The fragment's target is granted: what it is shown was another content when values were asked for.
        is_granted: bool,
    },
}

/// The progress of an access.
enum Ran {
    All,
    Waits(Waits),
    Failed(Failure),
}

/// Computations that are away, and what is needed to give one away.
#[derive(Debug, Default)]
pub(super) struct Away {
    /// The most work of a compute fragment here, units, before it is given away; no bound while no work thread would run it.
    pub(super) patience: Option<u64>,
    /// Where an operator finds what is away, once it runs.
    pub(super) computations: Computations,
    /// Where the work threads note what they execute.
    pub(super) under_way: UnderWay,
    /// The clock that times scripts there, if the driver has one.
    pub(super) stopwatch: Option<Arc<dyn Stopwatch>>,
    next: u64,
    /// The attempts, by the tokens of the work.
    attempts: BTreeMap<u64, (AttemptId, Stop)>,
    leaving: Vec<ordain_role::Work>,
}

impl Away {
    /// Ends the computations of an attempt that is over, or of all: nobody waits for them, and others may wait for the work thread.
    pub(super) fn stop(&self, over: Option<AttemptId>) {
        let its = self.attempts.values().filter(|(who, _)| over.is_none_or(|over| over == *who));
        its.for_each(|(_, stop)| stop.store(true, Ordering::Relaxed));
    }

    /// The number of computations that are away.
    pub(super) fn len(&self) -> usize {
        self.attempts.len()
    }

    fn leave(&mut self, who: AttemptId, long: Long) -> u64 {
        let token = self.next;
        self.next += 1;
        let stop = Stop::default();
        self.attempts.insert(token, (who, stop.clone()));
        let ((procedure, _), n) = (long.what(), long.n);
        let (computations, stopwatch) = (self.computations.clone(), self.stopwatch.clone());
        let (under_way, number) = (self.under_way.of_work(), long.number);
        // Nobody computes it again: what is logged is what came of it. So an operator may end it.
        let run = move || match stop.load(Ordering::Relaxed) {
            true => Computed { n, records: Vec::new(), answer: Vec::new(), result: Ok(()) },
            false => computations.during(procedure, Some(stop), |stop| long.run(stop, stopwatch)),
        };
        self.leaving.push(ordain_role::Work::new(token, move || under_way.during(number, run)));
        token
    }
}

/// A fragment of an attempt.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    pub(super) chunk: &'a Arc<Chunk>,
    pub(super) txn: &'a Txn,
    /// Counted from the transaction's first.
    pub(super) n: usize,
}

impl<'a> At<'a> {
    pub(super) fn fragment(self) -> &'a Fragment {
        &self.chunk.fragments(self.txn)[self.n]
    }
}

impl Participant {
    // ---- accesses ------------------------------------------------------------------------------------------

    pub(super) fn take_accesses(
        &mut self,
        from: Address,
        home: Lead,
        accesses: Accesses,
        out: &mut Outbox<Message>,
    ) {
        let Accesses { chunk, list } = accesses;
        for access in list {
            let who = access.attempt;
            if who.home() != home || !self.is_sound(&chunk, &access) {
                // Another version has sent it, or nobody: a coordinator that waits for it gives the attempt up.
                self.refused += 1;
                continue;
            }
            // An earlier attempt is over, unless it may be promised: then the log ends it.
            let before = AttemptId { attempt: 0, ..who };
            let former = self.attempts.range(before..who).filter(|(_, former)| !former.is_gathered);
            let former: Vec<AttemptId> = former.map(|(who, _)| *who).collect();
            former.into_iter().for_each(|who| self.finish(who, Ending::Aborted, out));
            if self.begin_access(from, home, &chunk, access) {
                self.go_on(who, out);
            }
        }
    }

    /// Takes in an access; answers whether it is to be run.
    fn begin_access(&mut self, from: Address, home: Lead, chunk: &Arc<Chunk>, mut access: Access) -> bool {
        let attempt = self.attempts.entry(access.attempt).or_default();
        if attempt.job.is_some() || attempt.is_gathered {
            return false;
        }
        let given = self.control.stamps().given(self.times.ceiling());
        attempt.age = access.age.max(given.from);
        attempt.now = access.now;
        let who = access.attempt;
        self.control.enter(who, attempt.age, &access.snapshot);
        let txn = &chunk.txns()[access.at as usize];
        if txn.call.procedure == system::PART {
            self.control.note_part(who, attempt.age);
        }
        if access.fragments.len() > 1 {
            let fragments = chunk.fragments(txn);
            let first = access.fragments.iter().take(AHEAD).map(|n| &fragments[*n as usize]);
            let keyed = first.filter(|fragment| fragment.is_keyed());
            self.store.prefetch(keyed.map(|fragment| fragment.hash));
        }
        if access.step > attempt.step {
            attempt.step = access.step;
            attempt.slots.clear();
            attempt.received.clear();
            attempt.held_back.clear();
            attempt.before = txn.abortable.then(|| attempt.workspace.clone());
        }
        let count = chunk.fragments(txn).len();
        attempt.slots.resize(count, Vec::new());
        for (slot, result) in std::mem::take(&mut access.inputs) {
            attempt.slots[slot.0 as usize] = result;
        }
        for Shipped { slot, cell, version, is_held_back } in std::mem::take(&mut access.shipped) {
            match is_held_back {
                true => _ = attempt.held_back.insert(slot),
                false => _ = attempt.received.insert(slot, (cell, version)),
            }
        }
        let seen = Seen {
            store: &self.store,
            control: &*self.control,
            reader: (who, attempt.age),
            handed: &attempt.handed,
        };
        let mut records = InWorkspace::new(&seen, &mut attempt.workspace);
        for Write { db, key, hash, cell } in std::mem::take(&mut access.returned) {
            records.put(db, &key, hash, cell);
        }
        attempt.job = Some(Job {
            from,
            home,
            chunk: chunk.clone(),
            slots: Vec::with_capacity(access.fragments.len()),
            access,
            next: 0,
            waits: None,
            shipped: Vec::new(),
            returned: Vec::new(),
            taker: 0,
            shown: 0,
            is_too_long: false,
        });
        true
    }

    /// Takes back the last step of an open transaction, or hands over what it has written.
    pub(super) fn settle_open(&mut self, who: AttemptId, what: Settle) -> Option<Settled> {
        let attempt = self.attempts.get_mut(&who).filter(|attempt| attempt.job.is_none())?;
        let now = attempt.now;
        let (mut changes, mut writes) = (Vec::new(), Vec::new());
        match what {
            Settle::Undo(step) if step == attempt.step => {
                if let Some(before) = attempt.before.take() {
                    attempt.workspace = before;
                }
            }
            Settle::Undo(_) => {}
            Settle::HandOver => {
                (changes, writes) = (attempt.workspace.changes().to_vec(), attempt.workspace.take_writes());
                if changes.is_empty() && !attempt.lends {
                    self.control.hand_over(&mut self.store, who, &writes);
                }
            }
        }
        let seen = self.seen_in_view(who, now);
        Some(Settled { attempt: who, shard: self.holding.number() as u16, changes, writes, seen })
    }

    /// True if an access names fragments and records that are here: it may come from another node.
    fn is_sound(&self, chunk: &Chunk, access: &Access) -> bool {
        let Some(txn) = chunk.txns().get(access.at as usize) else { return false };
        let is_timed = match self.control.stamps() {
            Stamps::OfAttempt => access.now == access.age.time(),
            // An attempt may read at a later stamp than its first. Stamps of another partition's counter say nothing here.
            Stamps::TwoOfAttempt => {
                let own = self.holding.partition();
                access.now <= access.age.time() && access.attempt.home().partition == own
            }
            Stamps::OfTransaction | Stamps::AtCommit => true,
        };
        let fits = access.snapshot.vector.fits(self.holding.partitions());
        if access.now > LATEST || access.age > stamps::LATEST || !is_timed || !fits {
            return false;
        }
        let fragments = chunk.fragments(txn);
        let is_here = |hash: KeyHash| self.holding.has(hash);
        let runs_here = |n: &u32| {
            let fragment = fragments.get(*n as usize);
            fragment.is_some_and(|fragment| fragment.is_table() || is_here(fragment.hash))
        };
        let is_slot = |slot: SlotNo| (slot.0 as usize) < fragments.len();
        access.fragments.iter().all(runs_here)
            && access.inputs.iter().all(|(slot, _)| is_slot(*slot))
            && access.shipped.iter().all(|shipped| is_slot(shipped.slot))
            && access.returned.iter().all(|write| is_here(write.hash))
    }

    /// Goes on with an access, and with those that wait for what it releases.
    fn go_on(&mut self, who: AttemptId, out: &mut Outbox<Message>) {
        self.settle(Ended { granted: vec![who], ..Ended::default() }, out);
    }

    /// Goes on with the accesses whose times are reserved now.
    pub(super) fn go_on_reserved(&mut self, out: &mut Outbox<Message>) {
        let mut waiting = std::mem::take(&mut self.unreserved);
        waiting.retain(|who| matches!(self.waits(*who), Some(Waits::Time | Waits::Stamp)));
        self.settle(Ended { granted: waiting, ..Ended::default() }, out);
    }

    pub(super) fn waits(&self, who: AttemptId) -> Option<Waits> {
        self.attempts.get(&who)?.job.as_ref()?.waits
    }

    /// Goes on with whatever may go on, until nothing may.
    pub(super) fn settle(&mut self, mut ended: Ended, out: &mut Outbox<Message>) {
        loop {
            let released = std::mem::take(&mut ended.released);
            released.into_iter().for_each(|record| self.store.release_if_absent(record));
            for (who, stands) in std::mem::take(&mut ended.settled) {
                self.settled(who, stands, out);
            }
            for who in std::mem::take(&mut ended.refused) {
                if let Some(job) = self.attempts.get_mut(&who).and_then(|attempt| attempt.job.take()) {
                    let failure = Some(Failure::Refused);
                    self.answer(job, who, failure, out);
                }
                self.end(who, Ending::Aborted, &mut ended);
            }
            let granted = std::mem::take(&mut ended.granted);
            if granted.is_empty() && ended.refused.is_empty() {
                break;
            }
            for who in granted {
                let Some((job, failure)) = self.run(who, out) else { continue };
                // Planted, HELD-OPEN.
                if job.access.step > 0 && self.bugs.has(Bug::ReleaseBetweenSteps) {
                    self.control.finish(&mut self.store, who, Ending::Aborted, &mut ended);
                }
                self.answer(job, who, failure, out);
                if matches!(failure, Some(Failure::Refused | Failure::TooOld(_))) {
                    self.end(who, Ending::Aborted, &mut ended);
                }
            }
        }
        self.away.leaving.drain(..).for_each(|work| out.work(work));
    }

    /// Answers an access that has ended.
    fn answer(&mut self, job: Job, who: AttemptId, failure: Option<Failure>, out: &mut Outbox<Message>) {
        self.forget_values(who);
        let floor = self.floor();
        let (Some(from), Some(attempt)) = (self.lead(), self.attempts.get_mut(&who)) else { return };
        self.sent += u64::from(job.from.node != self.manager.node);
        let Job { home, access, slots, shipped, returned, is_too_long, .. } = job;
        let workspace = &mut attempt.workspace;
        let latest = self.control.latest().max(floor);
        let begins = self.control.begins(who);
        let (reads, view) = self.control.view(who);
        let is_local = job.from == self.manager;
        let hands_over = failure.is_none() && access.is_last && is_local;
        let has_written = !workspace.is_clean();
        let (mut changes, mut writes) = (Vec::new(), Vec::new());
        if hands_over {
            (changes, writes) = (workspace.changes().to_vec(), workspace.take_writes());
            if changes.is_empty() && !attempt.lends {
                self.control.hand_over(&mut self.store, who, &writes);
            }
        }
        let now = attempt.now;
        let seen = self.seen_in_view(who, now);
        let accessed = Accessed {
            attempt: who,
            shard: self.holding.number() as u16,
            slots,
            failure,
            shipped,
            returned,
            is_too_long,
            has_written,
            changes,
            writes,
            latest,
            from: begins,
            reads,
            view,
            seen,
        };
        out.send(job.from, Termed { from, to: home, content: Protocol::Accessed(accessed) });
    }

    /// The records that an attempt has read so far, if this is a view. One whose time had come was not there for it.
    fn seen_in_view(&self, who: AttemptId, now: Millis) -> Vec<Read> {
        if self.shows.is_none() {
            return Vec::new();
        }
        let mut seen = Vec::new();
        let age = self.attempts.get(&who).map(|attempt| attempt.age).unwrap_or_default();
        self.control.read_so_far(who, &mut |record, version, by| {
            let (db, key) = self.store.key(record);
            let has_expired = self.shown(who, age, record).is_expired(now);
            let version = if has_expired { Gsn::NONE } else { version };
            seen.push(Read { db, key: key.to_vec(), version, by });
        });
        seen
    }

    // ---- fragments -----------------------------------------------------------------------------------------

    /// Runs the fragments of an attempt's access as far as nothing forbids it; answers how it has ended, unless it waits.
    fn run(&mut self, who: AttemptId, out: &mut Outbox<Message>) -> Option<(Job, Option<Failure>)> {
        let mut attempt = self.attempts.remove(&who)?;
        let Some(mut job) = attempt.job.take() else {
            self.attempts.insert(who, attempt);
            return None;
        };
        let ran = self.run_fragments(who, &mut attempt, &mut job);
        if self.times.asks() {
            out.send(self.manager, Own::Reserve(job.access.now));
        }
        let ended = match ran {
            Ran::All => Some(None),
            Ran::Failed(failure) => Some(Some(failure)),
            Ran::Waits(waits) => {
                job.waits = Some(waits);
                if !matches!(waits, Waits::Fetch { .. }) {
                    self.keep_values(who, &job);
                }
                self.note_wait(who, waits, &job, out);
                None
            }
        };
        match ended {
            Some(failure) => {
                self.attempts.insert(who, attempt);
                Some((job, failure))
            }
            None => {
                attempt.job = Some(job);
                self.attempts.insert(who, attempt);
                None
            }
        }
    }

    fn note_wait(&mut self, who: AttemptId, waits: Waits, job: &Job, out: &mut Outbox<Message>) {
        match waits {
            Waits::Lock => self.waited += 1,
            Waits::Fetch { .. } => {}
            Waits::Time | Waits::Stamp => {
                self.unreserved.push(who);
                out.send(self.manager, Own::Reserve(job.access.now));
            }
            Waits::Computation(_) => {
                let Some(from) = self.lead() else { return };
                out.send(job.from, Termed { from, to: job.home, content: Protocol::Computing(who) });
            }
        }
    }

    fn run_fragments(&mut self, who: AttemptId, attempt: &mut Attempt, job: &mut Job) -> Ran {
        let chunk = job.chunk.clone();
        let txn = &chunk.txns()[job.access.at as usize];
        if self.replacing.has_ended(who) {
            return Ran::Failed(Failure::Refused);
        }
        let asks_first = matches!(job.waits, None | Some(Waits::Stamp | Waits::Fetch { is_granted: false }));
        let is_new = asks_first && job.next == 0;
        if is_new && self.control.stamps().tell_time() {
            if !self.times.admits(job.access.now) {
                return Ran::Waits(Waits::Stamp);
            }
            // An attempt below the floor would come to nothing at its promise, and its coordinator would not hear why.
            if attempt.age < self.floor() {
                return Ran::Failed(Failure::Refused);
            }
        }
        if asks_first && self.wants_values(who, attempt, job) {
            return Ran::Waits(Waits::Fetch { is_granted: false });
        }
        while let Some(n) = job.access.fragments.get(job.next).copied() {
            let at = At { chunk: &chunk, txn, n: n as usize };
            let mut record = None;
            let is_granted = match job.waits.take() {
                None | Some(Waits::Stamp | Waits::Fetch { is_granted: false }) => false,
                Some(Waits::Time | Waits::Fetch { is_granted: true }) => self.control.keeps_reads(),
                Some(Waits::Lock | Waits::Computation(_)) => true,
            };
            if !is_granted {
                let verdict = self.lock(who, attempt.age, at, &mut record);
                match verdict {
                    Verdict::Granted => {}
                    Verdict::Waits => return Ran::Waits(Waits::Lock),
                    Verdict::Refused => {
                        record.into_iter().for_each(|record| self.store.release_if_absent(record));
                        return Ran::Failed(Failure::Refused);
                    }
                }
            }
            match self.test_time(who, attempt, job, at, record) {
                Tested::Seen => match self.lock_expired(who, attempt, (job.access.now, at), record) {
                    Verdict::Granted => {}
                    Verdict::Waits => return Ran::Waits(Waits::Lock),
                    Verdict::Refused => return Ran::Failed(Failure::Refused),
                },
                Tested::TooOld(time) => return Ran::Failed(Failure::TooOld(time)),
                Tested::Unreserved => return Ran::Waits(Waits::Time),
            }
            let fragment = at.fragment();
            let is_cut = job.is_too_long && fragment.only_shows();
            if !is_cut && self.wants_of(who, attempt, at, job.access.now) {
                return Ran::Waits(Waits::Fetch { is_granted: true });
            }
            let mut answer = Vec::new();
            let ran = if fragment.access == FragmentAccess::Compute {
                if !self.may_read_again(who, attempt.age, at) {
                    return Ran::Failed(Failure::Refused);
                }
                match self.compute(who, attempt, job, at, &mut answer) {
                    Ok(ran) => ran,
                    Err(token) => return Ran::Waits(Waits::Computation(token)),
                }
            } else if fragment.shipped {
                self.ship(who, attempt, job, at);
                Ok(())
            } else if is_cut {
                Ok(())
            } else {
                let Participant { registry, store, control, locals, .. } = self;
                let seen =
                    &Seen { store, control: &**control, reader: (who, attempt.age), handed: &attempt.handed };
                let (now, seed) = (job.access.now, job.access.seed);
                let step = Step { registry, chunk: &chunk, txn, n: at.n, now, seed, slots: &attempt.slots };
                let workspace = &mut attempt.workspace;
                let records = &mut InWorkspace { store: seen, workspace, guess: record };
                step.run(records, locals, &mut answer)
            };
            if let Err(abort) = self.ran(attempt, job, fragment, answer, ran) {
                return Ran::Failed(Failure::Aborted(SlotNo(n), abort));
            }
        }
        Ran::All
    }

    /// A fragment has run: the access goes on to the next.
    fn ran(
        &mut self,
        attempt: &mut Attempt,
        job: &mut Job,
        fragment: &Fragment,
        mut answer: Vec<u8>,
        ran: Result<(), Abort>,
    ) -> Result<(), Abort> {
        let n = job.access.fragments[job.next];
        if fragment.fed {
            attempt.slots[n as usize].clone_from(&answer);
        }
        if fragment.only_answers() && ran.is_ok() {
            job.shown = job.shown.saturating_add(answer.len());
            job.is_too_long |= job.shown > self.registry.limits().reply;
            if job.is_too_long {
                answer = Vec::new();
            }
        }
        job.slots.push((SlotNo(n), answer));
        job.next += 1;
        ran
    }

    /// Asks for the lock on a fragment's target.
    fn lock(&mut self, who: AttemptId, age: Age, at: At<'_>, found: &mut Option<RecordId>) -> Verdict {
        let fragment = at.fragment();
        let Participant { store, control, .. } = self;
        let mode = match fragment.writes() {
            true if fragment.is_blind && control.tells_blind() => Mode::Blind,
            true => Mode::Exclusive,
            false => Mode::Shared,
        };
        let target = if fragment.is_table() {
            Target::Table
        } else if fragment.is_keyed() {
            let key = key_of(at.chunk.args(at.txn), fragment);
            let record = store.find_or_reserve(fragment.db, key.bytes, fragment.hash);
            *found = Some(record);
            // Planted, WHOLE-TABLE.
            let locks_all = self.bugs.has(Bug::LockTable) && fragment.writes();
            match locks_all && store.cell(record).value.is_none() {
                true => Target::Table,
                false => Target::Record(record),
            }
        } else {
            return Verdict::Granted;
        };
        // Children in the view may be older than their parent as its own region has left it. And who watches a key is told a version, which
        // is not known yet of what its own region has left.
        if let (Some(record), Some(_)) = (*found, &self.shows)
            && (fragment.with_children || at.txn.call.procedure == system::READ)
            && control.seen(store, record, (who, age)).is_some()
        {
            return Verdict::Refused;
        }
        let verdict = control.access(store, who, age, target, mode);
        if let Target::Record(record) = target
            && fragment.is_check()
        {
            control.note_check(who, record);
        }
        verdict
    }

    /// Asks again for the records here that a compute fragment is to read, unless nobody can have changed them since they were granted.
    fn may_read_again(&mut self, who: AttemptId, age: Age, at: At<'_>) -> bool {
        if self.control.keeps_reads() {
            return true;
        }
        let fragments = at.chunk.fragments(at.txn);
        let inputs = at.chunk.plans().inputs_of(at.fragment()).iter().map(|slot| slot.0 as usize);
        inputs.filter(|n| fragments[*n].shipped).all(|n| {
            let is_here = self.holding.has(fragments[n].hash);
            !is_here || self.lock(who, age, At { n, ..at }, &mut None) == Verdict::Granted
        })
    }

    /// Asks for the exclusive lock on what an attempt reads and finds expired: for those who have seen it there it is as if the attempt
    /// had removed it. Of the whole table that is so only if somebody holds such a record. Where attempts have stamps, those of times after
    /// it come later than it, and find it expired too.
    fn lock_expired(
        &mut self,
        who: AttemptId,
        attempt: &Attempt,
        (now, at): (Millis, At<'_>),
        record: Option<RecordId>,
    ) -> Verdict {
        let fragment = at.fragment();
        let is_timed = self.control.stamps().tell_time();
        if is_timed || fragment.writes() || !attempt.workspace.changes().is_empty() {
            return Verdict::Granted;
        }
        let is_expired = |record: &RecordId| self.shown(who, attempt.age, *record).is_expired(now);
        let target = if fragment.is_table() && !self.control.keeps_reads() {
            // Anybody may have seen such a record, and holds nothing.
            let (seen, _) = self.expired(now, (Position::default(), usize::MAX), SEEN_MAX, |_| true);
            if seen.len() < SEEN_MAX {
                return self.find_all_expired(who, attempt.age, &seen);
            }
            Some(Target::Table)
        } else if fragment.is_table() {
            let is_held = |record| self.control.is_held(&self.store, record);
            let (held, _) = self.expired(now, (Position::default(), usize::MAX), 1, is_held);
            held.first().map(|_| Target::Table)
        } else if fragment.is_keyed() {
            record.or_else(|| self.find(at)).filter(is_expired).map(Target::Record)
        } else {
            None
        };
        let Participant { store, control, .. } = self;
        target.map_or(Verdict::Granted, |target| control.find_expired(store, who, attempt.age, target))
    }

    /// Tells the control of records that are there and expired.
    fn find_all_expired(&mut self, who: AttemptId, age: Age, names: &[(Db, Vec<u8>)]) -> Verdict {
        for (db, key) in names {
            let Some(record) = self.store.find(*db, key, self.hash_of(*db, key)) else { continue };
            let target = Target::Record(record);
            match self.control.find_expired(&mut self.store, who, age, target) {
                Verdict::Granted => {}
                verdict => return verdict,
            }
        }
        Verdict::Granted
    }

    /// The content of a record that an attempt sees.
    pub(super) fn shown(&self, who: AttemptId, age: Age, record: RecordId) -> &Cell {
        let seen = self.control.seen(&self.store, record, (who, age));
        seen.map_or(self.store.cell(record), |(cell, _)| cell)
    }

    /// The record of a fragment, if it has a place.
    fn find(&self, at: At<'_>) -> Option<RecordId> {
        let fragment = at.fragment();
        let key = key_of(at.chunk.args(at.txn), fragment);
        self.store.find(fragment.db, key.bytes, fragment.hash)
    }

    /// Tests whether the attempt's time may tell what has expired, if that is the question.
    fn test_time(
        &mut self,
        who: AttemptId,
        attempt: &mut Attempt,
        job: &Job,
        at: At<'_>,
        record: Option<RecordId>,
    ) -> Tested {
        let fragment = at.fragment();
        match self.control.stamps() {
            // Attempts take effect in the order of their times.
            Stamps::OfAttempt => return Tested::Seen,
            Stamps::TwoOfAttempt if fragment.is_table() => return self.note_life(who, attempt, None),
            Stamps::TwoOfAttempt => {
                let record = record.or_else(|| fragment.is_keyed().then(|| self.find(at)).flatten());
                let is_seen = record.is_some() && !fragment.is_blind;
                return if is_seen { self.note_life(who, attempt, record) } else { Tested::Seen };
            }
            Stamps::OfTransaction | Stamps::AtCommit => {}
        }
        let expires = if fragment.is_table() {
            let newest = self.store.as_of(Epoch::MAX);
            let replaced = self.control.replaced((who, attempt.age));
            (0..=u8::MAX).any(|db| newest.expiring(Db(db)).records > 0)
                || replaced.iter().any(|(_, cell)| !cell.expires_at.is_never())
        } else if fragment.is_keyed() && attempt.workspace.changes().is_empty() {
            let record = record.or_else(|| self.find(at));
            record.is_some_and(|record| !self.shown(who, attempt.age, record).expires_at.is_never())
        } else {
            // A change of whole databases has asked for all of them.
            false
        };
        if !expires {
            return Tested::Seen;
        }
        match self.times.test(job.access.now) {
            // Planted, TIME-RISES.
            Tested::TooOld(_) if self.bugs.has(Bug::LookBack) => Tested::Seen,
            tested => tested,
        }
    }

    /// Ships a record, if the compute fragment that it is for runs elsewhere.
    fn ship(&self, who: AttemptId, attempt: &mut Attempt, job: &mut Job, at: At<'_>) {
        let (fragment, slot) = (at.fragment(), SlotNo(at.n as u32));
        let fragments = at.chunk.fragments(at.txn);
        // A record is shipped to the next compute fragment, as plans have it.
        if job.taker <= at.n {
            let next = fragments[at.n..].iter().position(|other| other.access == FragmentAccess::Compute);
            job.taker = next.map_or(fragments.len(), |ahead| at.n + ahead);
        }
        let taker = fragments.get(job.taker);
        if taker.is_none_or(|taker| self.holding.has(taker.hash)) {
            return;
        }
        attempt.lends |= fragment.writes();
        let now: Millis = job.access.now;
        let key = key_of(at.chunk.args(at.txn), fragment);
        let seen = Seen {
            store: &self.store,
            control: &*self.control,
            reader: (who, attempt.age),
            handed: &attempt.handed,
        };
        let records = InWorkspace::new(&seen, &mut attempt.workspace);
        let (cell, version) = records.find(fragment.db, key.bytes, fragment.hash, now);
        // Records of the taker's own slot are never here.
        let is_held_back = cell.weight() > self.registry.limits().share(at.txn.carriers);
        let cell = if is_held_back { Cell::ABSENT } else { cell.clone() };
        job.shipped.push(Shipped { slot, cell, version, is_held_back });
    }

    /// Runs a compute fragment on its records. One that takes long is given to a work thread: then its token is answered.
    fn compute(
        &mut self,
        who: AttemptId,
        attempt: &mut Attempt,
        job: &mut Job,
        at: At<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<Result<(), Abort>, u64> {
        let At { chunk, txn, n } = at;
        let (now, seed) = (job.access.now, job.access.seed);
        let Attempt { workspace, slots, received, held_back, .. } = attempt;
        let Participant { registry, store, control, locals, holding, away, .. } = self;
        let seen = Seen { store, control: &**control, reader: (who, attempt.age), handed: &attempt.handed };
        let fragments = chunk.fragments(txn);
        let is_here = |slot: SlotNo| holding.has(fragments[slot.0 as usize].hash);
        let mut records = InWorkspace::new(&seen, workspace);
        let mut shipped = records.gather((chunk, txn, n), now, received, is_here);
        let step = Step { registry, chunk, txn, n, now, seed, slots: &*slots };
        locals.set_patience(away.patience);
        let ran = step.compute(&mut shipped, |slot| held_back.contains(&slot), locals, answer);
        if locals.take_given_up() {
            let given = shipped.held.into_iter().map(|held| (held.slot, (held.cell, held.version)));
            let long = Long {
                chunk: chunk.clone(),
                at: job.access.at as usize,
                n,
                number: who.transaction.number,
                seed,
                now,
                registry: registry.clone(),
                answers: InputSlots::of_inputs(chunk, job.access.at as usize, n, &*slots),
                records: given.collect(),
            };
            return Err(away.leave(who, long));
        }
        for held in shipped.held.into_iter().filter(|held| held.changed) {
            let Held { db, key, cell, .. } = held;
            let hash = fragments[held.slot.0 as usize].hash;
            match is_here(held.slot) {
                true => records.put(db, key, hash, cell),
                false => job.returned.push(Write { db, key: key.to_vec(), hash, cell }),
            }
        }
        Ok(ran)
    }

    /// Takes the result of a computation that was given away. Its attempt may be over.
    pub(super) fn take_computed(&mut self, done: WorkDone, out: &mut Outbox<Message>) {
        let Some((who, _)) = self.away.attempts.remove(&done.token) else {
            return out.halt("a participant received the result of work that it did not give");
        };
        let Ok(computed) = done.product.downcast::<Computed>() else {
            return out.halt("a participant received the result of other work than it gave");
        };
        if self.waits(who) != Some(Waits::Computation(done.token)) {
            return;
        }
        let Some(mut attempt) = self.attempts.remove(&who) else { return };
        let Some(mut job) = attempt.job.take() else { return };
        job.waits = None;
        let Computed { n, records: computed, answer, result } = *computed;
        let chunk = job.chunk.clone();
        let txn = &chunk.txns()[job.access.at as usize];
        let fragments = chunk.fragments(txn);
        let seen = Seen {
            store: &self.store,
            control: &*self.control,
            reader: (who, attempt.age),
            handed: &attempt.handed,
        };
        let mut records = InWorkspace::new(&seen, &mut attempt.workspace);
        for (slot, cell, _) in computed.into_iter().filter(|(_, _, changed)| *changed) {
            let fragment = &fragments[slot.0 as usize];
            let key = key_of(chunk.args(txn), fragment).bytes;
            let Fragment { db, hash, .. } = *fragment;
            match self.holding.has(hash) {
                true => records.put(db, key, hash, cell),
                false => job.returned.push(Write { db, key: key.to_vec(), hash, cell }),
            }
        }
        let failed = self.ran(&mut attempt, &mut job, &fragments[n], answer, result).err();
        match failed {
            Some(abort) => {
                self.attempts.insert(who, attempt);
                self.answer(job, who, Some(Failure::Aborted(SlotNo(n as u32), abort)), out);
            }
            None => {
                attempt.job = Some(job);
                self.attempts.insert(who, attempt);
                self.go_on(who, out);
            }
        }
    }
}
