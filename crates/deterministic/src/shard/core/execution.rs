//! Execution: runs the fragments of a granted transaction on this shard and applies its verdict (`docs/protocols/calvin.md`,
//! C19 to C23).

use std::sync::Arc;

use ordain_execution::{Held, InPlace, OnSnapshot, Step, WRITE_LOCKED};
use ordain_model::procedure::Slots;
use ordain_model::serial::seed_of;
use ordain_model::{Abort, Access, Chunk, Gsn, SlotNo, Txn};
use ordain_role::Bug;
use ordain_store::{RecordId, RecordStore};

use super::{Code, Core, Progress};
use crate::shard::messages::Item;
use crate::shard::slots::{CUT, empty};
use crate::shard::state::{Active, Known};

impl<S: RecordStore> Core<S> {
    /// Runs this shard's fragments of a transaction as far as their inputs are there, then applies its verdict.
    pub fn advance(&mut self, chunk: &Arc<Chunk>, active: &mut Active) -> Progress {
        self.operator.under_way.begin(active.gsn.plain().0);
        self.noting(active, |core, active| core.run_fragments(chunk, active))
    }

    /// Does some work in the name of a transaction, and notes its changes with its speculative batch if it is part of
    /// one. The changes of a transaction that is decided at once stay the newest, in a row, also after a computation
    /// elsewhere.
    #[inline]
    pub fn noting<R>(&mut self, active: &mut Active, work: impl FnOnce(&mut Core<S>, &mut Active) -> R) -> R {
        if !active.is_speculative {
            return work(self, active);
        }
        self.undo.writer = Some(active.gsn);
        std::mem::swap(&mut self.undo, &mut active.undo);
        let is_decided_at_once = active.is_decided_at_once();
        if is_decided_at_once {
            active.mark = active.undo.journal.mark();
            active.undo.journal.append(&mut active.set_aside);
        }
        let done = work(self, active);
        if is_decided_at_once && (active.is_away || active.is_fetching) {
            active.set_aside = active.undo.journal.split_off(active.mark);
        }
        std::mem::swap(&mut self.undo, &mut active.undo);
        done
    }

    fn run_fragments(&mut self, chunk: &Chunk, active: &mut Active) -> Progress {
        self.take_returned_computed(active);
        let txn = &chunk.txns()[active.at];
        let fragments = chunk.fragments(txn);
        // A transaction that moves slots changes nothing until they have moved.
        if txn.table && !self.go_on_moving() {
            return Progress::Blocked;
        }
        let mut values_until = self.values_until(chunk, active);
        active.is_fetching = false;
        while let Some(fragment) = fragments.get(active.next) {
            let n = active.next;
            if n >= values_until {
                active.is_fetching = true;
                return Progress::Blocked;
            }
            // A fragment whose record is shipped runs with the compute fragment that it is for.
            if !fragment.shipped && (self.owns(fragment) || fragment.access == Access::Compute) {
                if active.shipped_out > 0 || active.is_away || n >= active.granted_until {
                    return Progress::Blocked;
                }
                if self.rests(active, txn) {
                    return Progress::Resting;
                }
                if !self.owns(fragment) {
                    self.ship_members(active, chunk, txn, n);
                } else if !self.run_fragment(active, chunk, txn, n) {
                    return Progress::Blocked;
                }
            }
            active.next += 1;
            if fragment.access == Access::TableWrite {
                // Other records may have the names that follow.
                values_until = self.values_until(chunk, active);
            }
            if active.next == txn.abortable_until as usize && active.shipped_out == 0 {
                // All checks of this shard have passed or failed: others need not wait for the rest.
                self.vote(active);
            }
        }
        if active.shipped_out > 0 {
            return Progress::Blocked;
        }
        if txn.abortable {
            self.vote(active);
            if active.votes_missing != 0 {
                return Progress::Blocked;
            }
            // A speculative transaction of several shards is decided with its batch.
            if active.alone || !active.is_speculative {
                self.apply_verdict(active);
            }
        }
        Progress::Done
    }

    /// Runs one fragment; returns false if it has to wait.
    fn run_fragment(&mut self, active: &mut Active, chunk: &Chunk, txn: &Txn, n: usize) -> bool {
        let fragments = chunk.fragments(txn);
        let fragment = &fragments[n];
        let inputs = chunk.plans().inputs_of(fragment);
        let slot = SlotNo(n as u32);
        let mut failed = false;
        let computed = active.computed.take();
        // A computation elsewhere had its inputs.
        for input in inputs.iter().filter(|_| computed.is_none()) {
            let source = &fragments[input.0 as usize];
            if source.shipped {
                let here = self.owns(source);
                let has_come = || matches!(active.received_records.get(input), Some(Some(_)));
                if !here && !has_come() && active.slots.is_missing(*input) {
                    return false;
                }
            } else if active.slots.is_missing(*input) {
                return false;
            } else {
                failed |= active.slots.is_failed(*input);
            }
        }
        if fragment.access == Access::TableWrite && txn.abortable {
            // A write to the whole table is not undone: it waits until nothing can abort any more. The plan has no
            // check after it.
            self.vote(active);
            if active.votes_missing != 0 {
                return false;
            }
            failed |= active.failure.is_some();
        }
        let limit = self.code.registry.limits().reply;
        // A fragment with inputs reads the transaction's slots while it answers.
        let mut arena = match inputs.is_empty() {
            true => active.slots.take_arena(),
            false => std::mem::take(&mut self.code.answer),
        };
        let at = arena.len();
        let result = if let Some(computed) = computed {
            debug_assert_eq!(computed.n, n, "a transaction waits for one computation");
            arena.extend_from_slice(&computed.answer);
            computed.result
        } else if fragment.access == Access::Compute {
            match self.compute(active, chunk, txn, n, failed, &mut arena) {
                Some(result) => result,
                None => {
                    arena.truncate(at);
                    match inputs.is_empty() {
                        true => active.slots.return_arena(arena),
                        false => self.code.answer = arena,
                    }
                    self.give_away(active, n);
                    return false;
                }
            }
        } else if failed {
            Ok(())
        } else if fragment.only_shows() && active.slots.is_beyond(limit) {
            arena.extend_from_slice(CUT);
            Ok(())
        } else {
            self.execute(active, chunk, txn, n, &mut arena)
        };
        if let Err(abort) = result {
            if abort == Abort::Panic {
                arena.truncate(at);
            }
            Active::fail(&mut active.failure, (slot, abort));
            Active::fail(&mut active.own_failure, (slot, abort));
        }
        self.charge(arena.len() - at);
        let bad = failed || result.is_err();
        if inputs.is_empty() {
            active.slots.put_arena(arena, slot, at, bad);
        } else {
            active.slots.fill(slot, &arena, bad);
            empty(&mut arena);
            self.code.answer = arena;
        }
        let only_answers = fragment.only_answers();
        if only_answers {
            active.slots.bound(slot, limit);
        }
        if fragment.is_table() {
            self.answer_table(active, slot);
        } else if !active.alone {
            // The answer of an aborting fragment is the reply, also of a silent one.
            let collector = if result.is_err() { 1 << active.routes.collector } else { 0 };
            let readers = (active.routes.readers[n] | collector) & !self.me();
            let bytes = if active.slots.is_cut(slot) { CUT } else { active.slots.slot(slot) };
            self.remote.results.add_slot(readers, active.called(), slot, bytes, bad);
            if only_answers && readers != 0 {
                // No fragment of this shard needs it.
                active.slots.cut(slot);
            }
        }
        true
    }

    /// Runs a fragment that reads or writes one record or the table.
    pub fn execute(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        n: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Abort> {
        let fragment = &chunk.fragments(txn)[n];
        let (gsn, now) = (active.gsn, active.now);
        let undoable = active.may_be_undone(txn, n);
        let guess = active.guesses.get(n).copied().flatten();
        let past = self.is_past(fragment).then(|| self.seen_by(gsn));
        let own_seed = self.own_seed();
        let Core { store, code: Code { registry, locals, .. }, .. } = self;
        let seed = seed_of(gsn) ^ own_seed;
        let step = Step { registry, chunk, txn, n, now, seed, slots: &active.slots };
        if let Some(epoch) = past {
            let state = &mut store.as_of(epoch);
            return step.run(&mut OnSnapshot { state, guess: None, values: &active.past }, locals, out);
        }
        let undo = undoable.then_some(&mut active.undo);
        // Planted, CELLMUT.
        let shares = self.settings.bugs.has(Bug::ShareVersion);
        let version = if shares { Gsn::new(gsn.epoch(), gsn.partition(), 0) } else { gsn };
        let mut records = InPlace::new(store, version, undo).guessing(guess);
        let result = step.run(&mut records, locals, out);
        let changed_bytes = records.changed_bytes;
        self.charge(changed_bytes);
        result
    }

    /// The number by which this shard changes the seeds of transactions: none, unless a bug is planted.
    fn own_seed(&self) -> u64 {
        // Planted, PURE.
        if self.settings.bugs.has(Bug::OwnSeed) { self.site.number as u64 } else { 0 }
    }

    /// Runs a compute fragment on its shipped records, or only returns them if it must not run. `None` if it has given
    /// up: then nothing has happened.
    fn compute(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        n: usize,
        failed: bool,
        out: &mut Vec<u8>,
    ) -> Option<Result<(), Abort>> {
        let mut shipped = self.gather(active, chunk, txn, n);
        let mut result = Ok(());
        if !failed {
            let own_seed = self.own_seed();
            let Core { code: Code { registry, locals, .. }, away, .. } = self;
            let (now, seed, slots) = (active.now, seed_of(active.gsn) ^ own_seed, &active.slots);
            let step = Step { registry, chunk, txn, n, now, seed, slots };
            locals.set_patience(away.patience);
            result = step.compute(&mut shipped, |slot| !slots.is_missing(slot), locals, out);
            if locals.take_given_up() {
                shipped.held.into_iter().for_each(|held| self.take_from_hands(active, held));
                return None;
            }
        }
        for held in shipped.held {
            if held.owner == self.site.number {
                let fragment = &chunk.fragments(txn)[held.slot.0 as usize];
                // A record that was only to be read and is absent was not taken: it may be there, and expired.
                if held.writable || held.cell.value.is_some() && !self.is_past(fragment) {
                    self.restore_record(active, fragment, held);
                }
            } else if held.writable && active.slots.is_missing(held.slot) {
                let Held { slot, cell, changed, owner, .. } = held;
                self.remote.results.add(owner, active.called(), Item::Return { slot, cell, changed });
            }
        }
        Some(result)
    }

    /// Sends this shard's part of a whole-table slot to the collector, or keeps it if that is this one.
    fn answer_table(&mut self, active: &mut Active, slot: SlotNo) {
        let part = active.slots.slot(slot).to_vec();
        active.slots.unfill(slot);
        if self.shards() > 1 {
            let (readers, me) = (active.routes.readers[slot.0 as usize], self.me());
            self.remote.results.add_slot(readers & !me, active.called(), slot, &part, false);
            if readers & me == 0 {
                return;
            }
        }
        self.take_part(active, slot, self.site.number, part);
    }

    /// Takes a shard's part of a whole-table slot, which has all of them with the last.
    pub(super) fn take_part(&mut self, active: &mut Active, slot: SlotNo, of: usize, part: Vec<u8>) -> Known {
        // Planted, NO-SHARDS-SEEN.
        let is_own_only = self.settings.bugs.has(Bug::OwnPartOnly) && active.gsn.0 % 3 == 1;
        let own = is_own_only.then_some(self.site.number);
        active.tables.take(&mut active.slots, slot, (of, self.shards()), part, own)
    }

    /// Keeps a record in its place in the store until the speculative batch is over.
    pub fn keep_place(&mut self, record: RecordId) {
        if self.store.lock(record) == 0 {
            self.store.set_lock(record, WRITE_LOCKED);
        }
    }

    /// Sends the verdict of this shard's abortable fragments to the vote recipients, once.
    fn vote(&mut self, active: &mut Active) {
        if active.voted || active.alone || active.is_speculative {
            return;
        }
        active.voted = true;
        let me = self.me();
        if active.routes.voters & me == 0 {
            return;
        }
        let mut vote_recipients = active.routes.vote_recipients & !me;
        while vote_recipients != 0 {
            self.remote.results.add(
                vote_recipients.trailing_zeros() as usize,
                active.called(),
                Item::Vote(active.own_failure),
            );
            vote_recipients &= vote_recipients - 1;
        }
    }

    /// Undoes the changes of a transaction on this shard.
    fn roll_back(&mut self, active: &mut Active) {
        // Planted, EXACT-UNDO.
        let kept = active.undo.touched.iter().filter(|_| self.settings.bugs.has(Bug::KeepUndoneExpiry));
        let kept: Vec<_> =
            kept.map(|of| (of.record, of.version, self.store.cell(of.record).expires_at)).collect();
        active.undo.roll_back(&mut self.store, active.mark);
        for (record, version, expires_at) in kept {
            self.store.edit(record, version, |cell, changed| {
                let is_there = cell.value.is_some();
                cell.expires_at = if is_there { expires_at } else { cell.expires_at };
                *changed |= is_there;
            });
        }
    }

    /// Makes the changes on this shard final, or undoes them: every verdict is known.
    fn apply_verdict(&mut self, active: &mut Active) {
        if active.failure.is_some()
            && !(self.settings.bugs.has(Bug::IgnoreRemoteVote) && active.own_failure.is_none())
        {
            if self.settings.bugs.has(Bug::KeepAbortedWrite) {
                active.undo.journal.forget_last();
            }
            if self.settings.bugs.has(Bug::KeepUndoneVersion) {
                // Planted, EXACT-UNDO.
                active.undo.touched.iter_mut().for_each(|touched| touched.version = active.gsn);
            }
            self.roll_back(active);
        }
        if !active.is_speculative {
            let of_batch = Some(&self.undo).filter(|_| active.is_again);
            active.undo.end(&mut self.store, of_batch);
        }
    }
}
