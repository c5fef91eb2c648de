//! The part of a transaction that a shard reads on a snapshot: slots, shipped records and the first failure.

use std::collections::BTreeMap;

use ordain_execution::{NO_SLOTS, OnSnapshot, ShippedRecords, Step, past_of};
use ordain_model::procedure::{Locals, Slots as _};
use ordain_model::serial::seed_of;
use ordain_model::{Abort, Access, Cell, Chunk, Epoch, Fragment, Gsn, Millis, Registry, SlotNo, Txn};
use ordain_store::Snapshot;

use super::ShardView;
use crate::sequencing::Part;
use crate::shard::routes::Routes;
use crate::shard::slots::{CUT, SlotTable, Tables};
use crate::shard::state::Active;

/// The parts of a transaction that a shard has read.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) routes: Routes,
    pub(super) slots: SlotTable,
    /// No other shard takes part.
    pub(super) alone: bool,
    /// This shard's parts of whole-table slots.
    pub(super) own_tables: Vec<(SlotNo, Vec<u8>)>,
    pub(super) tables: Tables,
    pub(super) shipped: BTreeMap<SlotNo, (Cell, Gsn)>,
    /// The compute fragment for which records are being read, and how many bytes of what it may be shipped were read
    /// here.
    pub(super) carried: (usize, usize),
    pub(super) failure: Option<(SlotNo, Abort)>,
}

impl Found {
    /// Makes it ready for another transaction, keeping its buffers.
    pub(super) fn reset(&mut self, fragments: usize) {
        self.slots.reset(fragments);
        self.own_tables.clear();
        self.tables.0.clear();
        self.shipped.clear();
        self.carried = (0, 0);
        self.failure = None;
    }

    /// Runs a fragment that reads a record or the table, and fills its slot; or copies the record if it is shipped.
    #[inline]
    pub(super) fn read(
        &mut self,
        step: Step<'_>,
        mut records: OnSnapshot<'_, impl Snapshot>,
        locals: &mut Locals,
    ) {
        let (fragment, slot, limit) = (step.fragment(), SlotNo(step.n as u32), step.registry.limits().reply);
        if fragment.shipped {
            let (cell, version) =
                past_of(records.state, records.guess, step.name(), step.now, records.values);
            if cell.value.is_some() {
                match self.may_be_copied(&step, &cell) {
                    true => _ = self.shipped.insert(slot, (cell.into_owned(), version)),
                    false => self.slots.fill(slot, CUT, false),
                }
            }
            return;
        }
        if fragment.only_shows() && self.slots.is_beyond(limit) {
            return self.slots.leave_out(slot);
        }
        let mut arena = self.slots.take_arena();
        let at = arena.len();
        let result = step.run(&mut records, locals, &mut arena);
        self.note_failure(slot, result, &mut arena, at);
        if fragment.is_table() {
            let part = arena.split_off(at);
            self.slots.put_arena(arena, slot, at, false);
            self.slots.unfill(slot);
            self.own_tables.push((slot, part));
        } else {
            self.slots.put_arena(arena, slot, at, result.is_err());
            if fragment.only_answers() {
                self.slots.bound(slot, limit);
            }
        }
    }

    /// Returns whether a record may be copied for the compute fragment that the step's fragment is for. Not if, with what
    /// has been copied here, it is more than that fragment's share, bytes.
    fn may_be_copied(&mut self, step: &Step<'_>, cell: &Cell) -> bool {
        let (fragments, n) = (step.chunk.fragments(step.txn), step.n);
        if self.carried.0 <= n {
            let is_compute = |fragment: &Fragment| fragment.access == Access::Compute;
            let next = fragments[n..].iter().position(is_compute).map_or(fragments.len(), |at| n + at);
            self.carried = (next, 0);
        }
        let (compute, carried) = &mut self.carried;
        let is_near = fragments.get(*compute).is_some_and(|c| c.hash.slot() == fragments[n].hash.slot());
        *carried = carried.saturating_add(if is_near { 0 } else { cell.weight() });
        is_near || *carried <= step.registry.limits().share(step.txn.carriers)
    }

    /// Runs a compute fragment on the records that were read for it. Returns false if it has given up: then nothing
    /// has happened.
    pub(super) fn compute<S>(&mut self, view: ReadAt<'_>, n: usize, shard: &mut ShardView<'_, S>) -> bool {
        let ReadAt { chunk, txn, .. } = view;
        let inputs = chunk.plans().inputs_of(&chunk.fragments(txn)[n]);
        let failed = inputs.iter().any(|input| self.slots.is_failed(*input));
        let (mut answer, mut result) = (Vec::new(), Ok(()));
        if !failed {
            let mut records = ShippedRecords::of_copies(chunk, txn, n, &mut self.shipped);
            let (slots, step) = (&self.slots, Step { slots: &self.slots, ..view.step(shard.registry, n) });
            shard.locals.set_patience(shard.patience);
            result = step.compute(&mut records, |slot| !slots.is_missing(slot), shard.locals, &mut answer);
            if shard.locals.take_given_up() {
                let records = records.held.into_iter().map(|held| (held.slot, (held.cell, held.version)));
                self.shipped = records.collect();
                return false;
            }
        }
        self.note_computed(view.step(shard.registry, n), (answer, failed), result);
        true
    }

    /// Takes the answer of a compute fragment.
    pub(super) fn note_computed(
        &mut self,
        step: Step<'_>,
        (mut answer, failed): (Vec<u8>, bool),
        result: Result<(), Abort>,
    ) {
        let slot = SlotNo(step.n as u32);
        self.note_failure(slot, result, &mut answer, 0);
        self.slots.fill(slot, &answer, failed || result.is_err());
        if step.fragment().only_answers() {
            self.slots.bound(slot, step.registry.limits().reply);
        }
    }

    /// Takes note of a fragment's failure; of a panic no answer is left.
    fn note_failure(&mut self, slot: SlotNo, result: Result<(), Abort>, answer: &mut Vec<u8>, at: usize) {
        if let Err(abort) = result {
            if abort == Abort::Panic {
                answer.truncate(at);
            }
            Active::fail(&mut self.failure, (slot, abort));
        }
    }

    /// Joins this shard's parts of whole-table slots with those of others.
    pub(super) fn join_tables(&mut self, place: (usize, usize)) {
        for (slot, part) in std::mem::take(&mut self.own_tables) {
            self.tables.take(&mut self.slots, slot, place, part, None);
        }
    }

    /// Puts everything that was read here into the parts for the collector.
    pub(super) fn put_into(&mut self, chunk: &Chunk, txn: &Txn, parts: &mut Vec<(u32, Part)>) {
        let index = txn.index;
        let failure = |slot: SlotNo| self.failure.filter(|(at, _)| *at == slot).map(|(_, abort)| abort);
        for n in 0..chunk.fragments(txn).len() as u32 {
            let slot = SlotNo(n);
            if !self.slots.is_missing(slot) {
                let bytes = if self.slots.is_cut(slot) { CUT } else { self.slots.slot(slot) }.to_vec();
                parts.push((index, Part::Slot { slot, bytes, failure: failure(slot) }));
            }
        }
        for (slot, bytes) in self.own_tables.drain(..) {
            parts.push((index, Part::Slot { slot, bytes, failure: None }));
        }
        for (slot, (cell, version)) in std::mem::take(&mut self.shipped) {
            parts.push((index, Part::Shipped { slot, cell, version }));
        }
        parts.push((index, Part::End));
    }
}

/// A transaction that is read as of the end of an epoch.
#[derive(Clone, Copy)]
pub(super) struct ReadAt<'a> {
    pub(super) chunk: &'a Chunk,
    pub(super) txn: &'a Txn,
    now: Millis,
    /// Its place in the serial order: after everything of its epoch.
    pub(super) gsn: Gsn,
}

impl<'a> ReadAt<'a> {
    pub(super) fn new(chunk: &'a Chunk, txn: &'a Txn, at: Epoch, now: Millis) -> ReadAt<'a> {
        let Chunk { gateway, number, .. } = chunk;
        let own = seed_of(Gsn(number.0 << 32 ^ u64::from(gateway.0))) ^ u64::from(txn.index);
        ReadAt { chunk, txn, now, gsn: Gsn::of_read(at, own) }
    }

    /// One fragment of it, without the slots of others.
    #[inline]
    pub(super) fn step(self, registry: &'a Registry, n: usize) -> Step<'a> {
        let ReadAt { chunk, txn, now, gsn } = self;
        Step { registry, chunk, txn, n, now, seed: seed_of(gsn), slots: NO_SLOTS }
    }
}
