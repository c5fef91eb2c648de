//! Scheduling by locks: a transaction requests all its locks when the order comes to it (`docs/protocols/calvin.md`, C12 to C18).

use std::sync::Arc;

use ordain_execution::WRITE_LOCKED;
use ordain_model::key::KeyHash;
use ordain_model::serial::key_of;
use ordain_model::{Access, Batch, Chunk, Fragment, Gsn, Txn};
use ordain_role::Bug;
use ordain_store::{RecordId, RecordStore};

use super::table::LockTable;
use crate::shard::{Active, Core, Item, Prefetch, Progress, Scheduler};

/// The most fragments of a transaction that gives up locks early: with more, the search each time that it is blocked
/// would take longer than that spares others.
const FEW: usize = 64;

/// The scheduler of a shard by locks that it requests and grants itself.
#[derive(Debug, Default)]
pub struct LockScheduler {
    locks: LockTable,
    /// The locks that each blocked transaction holds or waits for, by number.
    held: Vec<Vec<(RecordId, KeyHash)>>,
    prefetch: Prefetch,
    /// How many transactions did not get all their locks at once.
    waited: u64,
}

impl<S: RecordStore> Scheduler<S> for LockScheduler {
    /// Starts transactions until one has to wait at the head of the order.
    fn run(&mut self, core: &mut Core<S>) -> bool {
        let mut any = false;
        while let Some(batch) = core.next_batch() {
            while let Some(placed) = batch.chunks.get(core.order.cursor.0) {
                let mut is_stale = placed.chunk.map != *core.maps.now().map();
                while let Some(txn) = placed.chunk.txns().get(core.order.cursor.1) {
                    if !placed.is_skipped(txn.index) {
                        let full = core.active.len() >= core.settings.window;
                        let waits = core.active.barrier.is_some()
                            || full
                            || (txn.table && core.active.unfinished > 0);
                        if waits || core.budget.is_spent() {
                            return any;
                        }
                        if core.is_awaited() {
                            core.budget.spend(placed.chunk.fragments(txn).len().max(1));
                        }
                        self.prefetch.reach(core, &placed.chunk, |_| true);
                        self.start(core, &batch, placed.base, (&placed.chunk, is_stale));
                        any = true;
                        if txn.table {
                            is_stale = placed.chunk.map != *core.maps.now().map();
                        }
                    }
                    core.order.cursor.1 += 1;
                    if core.active.has_ready() {
                        return true;
                    }
                }
                core.order.cursor = (core.order.cursor.0 + 1, 0);
            }
            self.prefetch.begin_batch();
            core.end_batch(&batch);
        }
        any
    }

    /// Gives up the locks of records on which the transaction has nothing left to execute or to undo. All its locks were
    /// requested at once, so the next holder is later in the order. Scripts need it: every EVAL of one text writes one record.
    fn pause(&mut self, core: &mut Core<S>, number: u32, active: &mut Active) {
        let chunk = active.chunk.clone();
        let txn = &chunk.txns()[active.at];
        let fragments = chunk.fragments(txn);
        if active.next == 0 || fragments.len() > FEW {
            return;
        }
        let mut held = std::mem::take(&mut self.held[number as usize]);
        let mut at = 0;
        while let Some(lock) = held.get(at).copied() {
            let is_of_it = |n: usize| fragments[n].is_keyed() && fragments[n].hash == lock.1;
            if (0..fragments.len()).any(|n| is_of_it(n) && active.needs_grant(txn, fragments, n)) {
                at += 1;
            } else {
                held.swap_remove(at);
                self.unlock(core, lock, number);
            }
        }
        self.held[number as usize] = held;
    }

    fn release(&mut self, core: &mut Core<S>, number: u32, active: &mut Active) {
        let mut held = std::mem::take(&mut self.held[number as usize]);
        // Planted, IDLE-CLEAN.
        if core.settings.bugs.has(Bug::LeaveLock) && active.gsn.0 % 31 == 7 {
            held.pop();
        }
        held.drain(..).for_each(|lock| self.unlock(core, lock, number));
        self.held[number as usize] = held;
    }

    fn take_item(&mut self, _: &mut Core<S>, _: Gsn, _: &Item, _: &[u8]) -> bool {
        false
    }

    fn first_under_way(&self) -> Option<Gsn> {
        None
    }

    fn check(&self, _: Gsn, is_idle: bool) -> Result<(), String> {
        self.locks.check()?;
        match self.locks.locked_records() {
            locked if is_idle && locked > 0 => Err(format!("idle with {locked} records locked")),
            _ => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_shard_waited_for_lock_total", self.waited as f64);
        report("ordain_shard_locked_records", self.locks.locked_records() as f64);
    }
}

impl LockScheduler {
    /// Starts the transaction at the cursor: it runs if its records are free, and else requests its locks.
    fn start<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        batch: &Batch,
        base: u32,
        (chunk, is_stale): (&Arc<Chunk>, bool),
    ) {
        core.credit((batch.epoch, batch.partition));
        let Some(mut active) = core.begin(batch, base, (chunk, is_stale), core.order.cursor.1) else {
            return;
        };
        active.guesses.extend_from_slice(self.prefetch.guesses(core));
        if core.remote.out_of_order.holds(active.gsn) {
            core.take_out_of_order(&mut active);
        }
        if self.locks.locked_records() > 0 && !self.are_free(core, &active) {
            self.waited += 1;
        } else if core.advance(chunk, &mut active) == Progress::Done && core.finish_here(&mut active) {
            core.give_back(active);
            return;
        }
        self.block(core, active);
    }

    fn are_free<S: RecordStore>(&self, core: &Core<S>, active: &Active) -> bool {
        let chunk = &active.chunk;
        let txn = &chunk.txns()[active.at];
        let args = chunk.args(txn);
        let may_be_locked = |f: &&Fragment| f.is_keyed() && self.locks.may_hold(f.hash) && core.owns(f);
        chunk.fragments(txn).iter().filter(may_be_locked).all(|fragment| {
            let key = key_of(args, fragment).bytes;
            core.store.find(fragment.db, key, fragment.hash).is_none_or(|record| {
                self.locks.is_free(&core.store, record, fragment.access == Access::Write)
            })
        })
    }

    /// Keeps a blocked transaction: it gets a number and its locks, or places in their queues.
    fn block<S: RecordStore>(&mut self, core: &mut Core<S>, mut active: Box<Active>) {
        let number = core.number_of(&active);
        if !active.done_here {
            let (chunk, at) = (active.chunk.clone(), active.at);
            self.request(core, number, &mut active, (&chunk, &chunk.txns()[at]));
        }
        core.active.put(number, active);
    }

    fn unlock<S: RecordStore>(&mut self, core: &mut Core<S>, record: (RecordId, KeyHash), number: u32) {
        let Core { store, active: others, .. } = core;
        self.locks.release(store, record, number, |granted| {
            if let Some(other) = others.get_mut(granted) {
                other.grants_missing -= 1;
                if other.grants_missing == 0 {
                    others.make_ready(granted);
                }
            }
        });
    }

    /// Requests the locks of all records on which something is still to be done.
    fn request<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        number: u32,
        active: &mut Active,
        (chunk, txn): (&Chunk, &Txn),
    ) {
        let args = chunk.args(txn);
        let fragments = chunk.fragments(txn);
        let mut wanted: Vec<(RecordId, bool, KeyHash)> = Vec::new();
        for (n, fragment) in fragments.iter().enumerate() {
            if fragment.is_keyed() && core.owns(fragment) && active.needs_grant(txn, fragments, n) {
                let key = key_of(args, fragment).bytes;
                let record = core.store.find_or_reserve(fragment.db, key, fragment.hash);
                // A record that it has changed or shipped was free then: the queue's number takes the place of the
                // write lock.
                if core.store.lock(record) == WRITE_LOCKED {
                    core.store.set_lock(record, 0);
                }
                wanted.push((record, fragment.access == Access::Write, fragment.hash));
            }
        }
        if self.held.len() <= number as usize {
            self.held.resize_with(number as usize + 1, Vec::new);
        }
        let held = &mut self.held[number as usize];
        // One request a key, exclusive if any of its fragments writes.
        wanted.sort_unstable();
        for (i, &(record, exclusive, hash)) in wanted.iter().enumerate() {
            if wanted.get(i + 1).is_some_and(|next| next.0 == record) {
                continue;
            }
            let early = core.settings.bugs.has(Bug::GrantLockEarly) && active.gsn.0 % 31 == 7;
            held.push((record, hash));
            if !self.locks.request(&mut core.store, (record, hash), number, exclusive, early) {
                active.grants_missing += 1;
            }
        }
    }
}
