//! Values on disk: an access asks for those that it is about to read, and waits without a lock until they have come (decision 58).
//!
//! | who | asks | waits |
//! |---|---|---|
//! | an access | for what its transaction reads here from its next fragment on, before that is granted its target | without that grant, [`Waits::Fetch`] |
//! | an access whose fragment is granted | for what that fragment reads: it may be shown another content than it was before | with the grant |
//! | the capture of a checkpoint | piece by piece | until the next event |
//!
//! A record that an attempt has accessed keeps its value in memory, as the concurrency control has marked it; until then, and while the access
//! waits for something else, the names are [kept](Tier::keep). No control looks at a value, and what the log says is installed without a look.

use ordain_execution::{Arrived, Name, Tier, TierSettings, values_prefix};
use ordain_model::serial::key_of;
use ordain_model::{Access as FragmentAccess, KeyHash, Millis, Position, Txn};
use ordain_role::{Directory, DiskDone, Outbox};
use ordain_store::{Entry, Evicting as _, RecordStore};

use super::Participant;
use super::running::{At, Attempt, Job, Waits};
use crate::concurrency::Ended;
use crate::ids::AttemptId;
use crate::message::Message;

/// One who waits for values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Waiter {
    /// The access of an attempt.
    Access(AttemptId),
    /// The checkpoint under way.
    Checkpoint,
}

/// The tier of a participant.
pub(crate) type Values = Tier<Waiter>;

impl Job {
    /// The transaction.
    fn txn(&self) -> &Txn {
        &self.chunk.txns()[self.access.at as usize]
    }

    /// The fragment that is run next, counted from the transaction's first.
    fn next_fragment(&self) -> Option<usize> {
        self.access.fragments.get(self.next).map(|n| *n as usize)
    }

    /// The fragments of the access that have not run, counted from the transaction's first.
    fn left(&self) -> &[u32] {
        &self.access.fragments[self.next..]
    }

    /// The step of an open transaction that the access is of.
    const fn step(&self) -> u32 {
        self.access.step
    }

    /// The time that the access sees.
    const fn now(&self) -> Millis {
        self.access.now
    }
}

impl Participant {
    /// The participant with a store that keeps within a budget of memory.
    #[must_use]
    pub fn within(self, settings: TierSettings) -> Participant {
        let values = Some(Tier::new(values_prefix(self.holding.number()), settings));
        Participant { values, ..self }
    }

    // ---- what an access reads ------------------------------------------------------------------------------

    /// Asks for the evicted values that an access reads here, and the first access of a step for those too that the later ones read; returns
    /// whether there are any.
    pub(super) fn wants_values(&mut self, who: AttemptId, attempt: &mut Attempt, job: &Job) -> bool {
        if self.values.is_none() {
            return false;
        }
        // Once a step: a transaction may have as many accesses as fragments.
        let looks_ahead = attempt.looked_ahead.replace(job.step()) != Some(job.step());
        let txn = job.txn();
        let own = job.left().iter().map(|n| *n as usize);
        let ahead = job.next_fragment().filter(|_| looks_ahead);
        let later = ahead.map_or(0..0, |first| first..job.chunk.fragments(txn).len());
        let mut waits = false;
        for (n, is_own) in own.map(|n| (n, true)).chain(later.clone().map(|n| (n, false))) {
            let at = At { chunk: &job.chunk, txn, n };
            // Later accesses see the table when they come to it.
            if is_own || !at.fragment().is_table() {
                waits |= self.wants_of(who, attempt, at, job.now());
            }
        }
        if waits {
            let held = self.read_here(job, later.chain(job.left().iter().map(|n| *n as usize)));
            for hash in held {
                self.values.iter_mut().for_each(|tier| tier.hold(hash, Waiter::Access(who)));
            }
        }
        waits
    }

    /// Asks for the evicted values that a fragment reads here; returns whether there are any.
    pub(super) fn wants_of(
        &mut self,
        who: AttemptId,
        attempt: &mut Attempt,
        at: At<'_>,
        now: Millis,
    ) -> bool {
        let fragment = at.fragment();
        if self.values.is_none() {
            return false;
        }
        if fragment.is_table() {
            let procedure = self.registry.get(fragment.procedure);
            let scans = procedure.is_some_and(|procedure| procedure.scans_values());
            return scans && self.wants_all(who, attempt);
        }
        if fragment.access == FragmentAccess::Compute {
            let mut waits = false;
            for slot in at.chunk.plans().inputs_of(fragment) {
                let input = At { n: slot.0 as usize, ..at };
                waits |= input.fragment().shipped && self.wants_record(who, attempt, input, now);
            }
            return waits;
        }
        self.wants_record(who, attempt, at, now)
    }

    /// Asks for the value that a fragment on one record is shown, if it is evicted; returns whether it is.
    fn wants_record(&mut self, who: AttemptId, attempt: &mut Attempt, at: At<'_>, now: Millis) -> bool {
        let fragment = at.fragment();
        if !fragment.is_keyed() || !fragment.reads_value() || !self.holding.has(fragment.hash) {
            return false;
        }
        let (key, hash) = (key_of(at.chunk.args(at.txn), fragment).bytes, fragment.hash);
        let Participant { store, control, values: Some(tier), .. } = self else { return false };
        let Some(db) = attempt.workspace.looks_at(fragment.db, key, hash) else { return false };
        let Some(record) = store.find(db, key, hash) else { return false };
        store.touch(record);
        let replaced = control.seen(store, record, (who, attempt.age)).map(|(cell, _)| cell);
        let cell = replaced.unwrap_or_else(|| store.cell(record));
        if !cell.is_live(now) {
            return false;
        }
        let present = replaced.is_none().then_some(Name { db, key, hash });
        if let Some(evicted) = cell.evicted()
            && (present.is_some() || !attempt.handed.has(cell))
        {
            tier.want(evicted, present, Waiter::Access(who));
            return true;
        }
        tier.hit();
        false
    }

    /// Asks for all evicted values that an attempt sees here; returns whether there are any.
    fn wants_all(&mut self, who: AttemptId, attempt: &mut Attempt) -> bool {
        let Participant { store, control, values: Some(tier), .. } = self else { return false };
        let waiter = Waiter::Access(who);
        let mut waits = false;
        for (_, cell) in control.replaced((who, attempt.age)) {
            if let Some(evicted) = cell.evicted()
                && !attempt.handed.has(cell)
            {
                tier.want(evicted, None, waiter);
                waits = true;
            }
        }
        // Values that are in memory stay there until the others have come.
        for holds in [false, true] {
            if holds && !waits {
                break;
            }
            store.visit(Position::default(), |Entry { db, key, cell, .. }| {
                let hash = RecordStore::placement(&*store).hash_of_record(db, key);
                match cell.evicted() {
                    Some(evicted) => {
                        tier.want(evicted, Some(Name { db, key, hash }), waiter);
                        waits = true;
                    }
                    None if holds => tier.hold(hash, waiter),
                    None => {}
                }
                true
            });
        }
        waits
    }

    /// The names whose values some fragments read here.
    fn read_here(&self, job: &Job, fragments: impl Iterator<Item = usize>) -> Vec<KeyHash> {
        let all = job.chunk.fragments(job.txn());
        let of = fragments.filter_map(|n| all.get(n));
        let is_read = of.filter(|of| of.is_keyed() && of.reads_value() && self.holding.has(of.hash));
        is_read.map(|fragment| fragment.hash).collect()
    }

    /// Has what an access reads stay in memory while it waits for something else than the disk.
    pub(super) fn keep_values(&mut self, who: AttemptId, job: &Job) {
        let waiter = Waiter::Access(who);
        if self.values.as_ref().is_some_and(|tier| !tier.keeps(&waiter)) {
            for hash in self.read_here(job, job.left().iter().map(|n| *n as usize)) {
                self.values.iter_mut().for_each(|tier| tier.keep(hash, waiter));
            }
        }
    }

    /// The access of an attempt is over, or the attempt is.
    pub(super) fn forget_values(&mut self, who: AttemptId) {
        self.values.iter_mut().for_each(|tier| tier.forget(&Waiter::Access(who)));
    }

    // ---- the disk ------------------------------------------------------------------------------------------

    /// Takes an answer of the disk.
    pub(super) fn take_disk(&mut self, done: DiskDone, out: &mut Outbox<Message>) {
        match &mut self.values {
            Some(tier) => tier.done(done),
            None => out.halt("a participant was answered by a disk that it had not asked"),
        }
    }

    /// Loads what has come from the disk, and has those run on who waited for it.
    pub(super) fn take_values(&mut self, out: &mut Outbox<Message>) {
        while let Some(tier) = self.values.as_mut().filter(|tier| tier.has_arrived()) {
            let arrived = match tier.arrive(&mut self.store) {
                Ok(arrived) => arrived,
                Err(reason) => return out.halt(format!("shard {}: {reason}", self.holding.number())),
            };
            let mut granted = Vec::new();
            for Arrived { who, past } in arrived {
                match who {
                    Waiter::Access(who) => {
                        self.attempts.get_mut(&who).into_iter().for_each(|of| of.handed.extend(past.clone()));
                        granted.push(who);
                    }
                    Waiter::Checkpoint => self.capture.take_values(past),
                }
            }
            granted.retain(|who| matches!(self.waits(*who), Some(Waits::Fetch { .. })));
            if !granted.is_empty() {
                self.settle(Ended { granted, ..Ended::default() }, out);
            }
        }
    }

    /// Evicts values if the store holds more than its budget, and hands over what the disk is to do; returns whether some of that is done.
    pub(super) fn send_values(&mut self, out: &mut Outbox<Message>) -> bool {
        let Some(tier) = &mut self.values else { return false };
        tier.keep_within(&mut self.store);
        out.disk.extend(tier.take_requests());
        tier.has_arrived()
    }

    /// True if the store holds more than its budget.
    pub fn is_over_budget(&self) -> bool {
        self.values.as_ref().is_some_and(|tier| tier.is_over(&self.store))
    }

    /// Has a directory do what the disk is to do, until the store is within its budget or nothing can be evicted: while no driver runs, and
    /// nobody waits.
    ///
    /// # Errors
    /// A value that is needed cannot be read.
    pub fn carry_out(&mut self, directory: &mut dyn Directory) -> Result<(), String> {
        while let Some(tier) = &mut self.values {
            tier.keep_within(&mut self.store);
            tier.flush();
            if !tier.carry_out(directory) {
                tier.note_settled(&self.store);
                break;
            }
            tier.arrive(&mut self.store)?;
        }
        Ok(())
    }

    /// Checks that those wait for values who say so.
    pub(super) fn check_values(&self) -> Result<(), String> {
        let Some(tier) = &self.values else { return Ok(()) };
        for who in self.attempts.keys() {
            let (says, waits) =
                (matches!(self.waits(*who), Some(Waits::Fetch { .. })), tier.awaits(&Waiter::Access(*who)));
            if says != waits && !tier.has_arrived() {
                return Err(format!(
                    "attempt {who} says that it waits for values: {says}; it is waited for them: {waits}"
                ));
            }
        }
        tier.check()
    }
}
