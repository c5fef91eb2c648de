//! Gathering: the parts of a transaction that several shards have read come together where its reply is composed.

use std::sync::Arc;

use ordain_execution::{Computed, InputSlots, Long};
use ordain_model::serial::seed_of;
use ordain_model::{Access, Chunk, Epoch, Millis, OutcomeStatus, SlotNo, Txn};
use ordain_store::RecordStore;

use super::found::{Found, ReadAt};
use super::{Away, ChunkId, Gathering, OutOfOrder, Run, ShardView, SnapshotReader};
use crate::sequencing::{Part, Parts};
use crate::shard::reply::{outcomes_of, write_reply};
use crate::shard::routes::ShardSet;
use crate::shard::slots::SlotTable;
use crate::shard::state::Active;

impl SnapshotReader {
    /// Hands over what was read of a transaction here to its collector.
    pub(super) fn hand_over<S: RecordStore>(
        &mut self,
        shard: &mut ShardView<'_, S>,
        run: &mut Run,
        chunk: &Arc<Chunk>,
        txn: &Txn,
    ) {
        let found = &mut run.found;
        if found.alone {
            found.join_tables((self.number, shard.places.layout.shards()));
            return self.finish(shard, (chunk, run.next.0), (run.at, run.now), found);
        }
        let routes = &found.routes;
        if routes.collector != self.number {
            let parts = run.parts.entry(routes.collector).or_default();
            return found.put_into(chunk, txn, parts);
        }
        let id = ((chunk.gateway, chunk.number), txn.index);
        let missing = routes.participants & !(1 << self.number);
        let slots = SlotTable::default();
        let mut whole = Found { slots, ..Found::default() };
        std::mem::swap(&mut whole, found);
        whole.join_tables((self.number, shard.places.layout.shards()));
        let (at, now) = (run.at, run.now);
        let txn = run.next.0;
        let gathering =
            Gathering { chunk: chunk.clone(), at, now, txn, missing, found: whole, too_old: false };
        self.gathering.insert(id, gathering);
        for (from, part) in self.out_of_order.remove(&id).map_or(Vec::new(), |early| early.parts) {
            self.take_part(shard, id, from, part);
        }
        self.finish_if_whole(shard, id);
    }

    /// Takes the parts that another shard has read.
    pub(crate) fn take_parts<S: RecordStore>(&mut self, shard: &mut ShardView<'_, S>, parts: Parts) {
        let Parts { from, chunk, at, parts } = parts;
        if from >= shard.places.layout.shards() || self.kept.is_none_or(|kept| at < kept) {
            return;
        }
        let mut parts = parts.into_iter().peekable();
        while let Some((index, part)) = parts.next() {
            let id = (chunk, index);
            if self.gathering.contains_key(&id) {
                self.take_part(shard, id, from, part);
                if parts.peek().is_none_or(|(next, _)| *next != index) {
                    self.finish_if_whole(shard, id);
                }
            } else {
                let early =
                    self.out_of_order.entry(id).or_insert_with(|| OutOfOrder { at, parts: Vec::new() });
                early.parts.push((from, part));
            }
        }
    }

    fn take_part<S>(&mut self, shard: &ShardView<'_, S>, id: (ChunkId, u32), from: usize, part: Part) {
        let Some(gathering) = self.gathering.get_mut(&id) else { return };
        let bit: ShardSet = 1 << from;
        if gathering.missing & bit == 0 {
            // It has sent its parts before: the chunk came twice.
            return;
        }
        let shards = shard.places.layout.shards();
        let Gathering { chunk, txn, found, .. } = gathering;
        let fragments = chunk.fragments(&chunk.txns()[*txn]);
        match part {
            Part::Slot { slot, bytes, failure } => {
                let Some(fragment) = fragments.get(slot.0 as usize) else { return };
                if let Some(abort) = failure {
                    Active::fail(&mut found.failure, (slot, abort));
                }
                if fragment.is_table() {
                    found.tables.take(&mut found.slots, slot, (from, shards), bytes, None);
                } else if found.slots.is_missing(slot) {
                    found.slots.fill(slot, &bytes, failure.is_some());
                    if fragment.only_answers() {
                        found.slots.bound(slot, shard.registry.limits().reply);
                    }
                }
            }
            Part::Shipped { slot, cell, version } => _ = found.shipped.insert(slot, (cell, version)),
            Part::End => gathering.missing &= !bit,
            Part::TooOld => {
                gathering.missing &= !bit;
                gathering.too_old = true;
            }
        }
    }

    fn finish_if_whole<S: RecordStore>(&mut self, shard: &mut ShardView<'_, S>, id: (ChunkId, u32)) {
        if self.gathering.get(&id).is_none_or(|gathering| gathering.missing != 0) {
            return;
        }
        let Some(gathering) = self.gathering.remove(&id) else { return };
        let Gathering { chunk, at, now, txn, mut found, too_old, .. } = gathering;
        if too_old {
            return self.refuse(&chunk, &chunk.txns()[txn]);
        }
        self.finish(shard, (&chunk, txn), (at, now), &mut found);
    }

    /// Computes what is to be computed from the records read, and composes the reply.
    fn finish<S: RecordStore>(
        &mut self,
        shard: &mut ShardView<'_, S>,
        (chunk, at): (&Arc<Chunk>, usize),
        (epoch, now): (Epoch, Millis),
        found: &mut Found,
    ) {
        let txn = &chunk.txns()[at];
        let reads = ReadAt::new(chunk, txn, epoch, now);
        if !txn.independent {
            for (n, fragment) in chunk.fragments(txn).iter().enumerate() {
                let is_to_do = fragment.access == Access::Compute && found.slots.is_missing(SlotNo(n as u32));
                if is_to_do && !found.compute(reads, n, shard) {
                    return self.give_away(shard, (chunk, at, n), (epoch, now), found);
                }
            }
        }
        let Some(procedure) = shard.registry.get(txn.call.procedure) else { return };
        self.counts.read += 1;
        let at = outcomes_of(&mut self.outcomes, chunk.gateway);
        let status =
            found.failure.map_or(OutcomeStatus::Committed, |(_, abort)| OutcomeStatus::Aborted(abort));
        self.outcomes[at].push(chunk.number, txn.index, reads.gsn, status, |reply| {
            let is_cut = found.slots.is_beyond(shard.registry.limits().reply);
            write_reply(procedure, shard.registry, chunk, txn, (&found.slots, is_cut), found.failure, reply);
        });
    }

    /// Gives a compute fragment that has given up to a work thread; its transaction goes on after that.
    fn give_away<S: RecordStore>(
        &mut self,
        shard: &ShardView<'_, S>,
        (chunk, txn, n): (&Arc<Chunk>, usize, usize),
        (at, now): (Epoch, Millis),
        found: &mut Found,
    ) {
        let number = self.next_away;
        self.next_away += 1;
        let mut found = std::mem::take(found);
        let gsn = ReadAt::new(chunk, &chunk.txns()[txn], at, now).gsn;
        let long = Long {
            chunk: chunk.clone(),
            at: txn,
            n,
            number: gsn.plain().0,
            seed: seed_of(gsn),
            now,
            registry: shard.registry.clone(),
            answers: InputSlots::of_inputs(chunk, txn, n, &found.slots),
            records: std::mem::take(&mut found.shipped),
        };
        self.leaving.push((number, long));
        self.away.insert(number, Away { chunk: chunk.clone(), at, now, txn, found });
    }

    /// Takes the computations that are to be given away, each by its number.
    pub(crate) fn leaving(&mut self) -> Vec<(u64, Long)> {
        std::mem::take(&mut self.leaving)
    }

    /// Returns how many transactions wait for a computation that was given away.
    pub(crate) fn away(&self) -> usize {
        self.away.len() - self.leaving.len()
    }

    /// Takes the result of a computation.
    pub(crate) fn take_computed<S: RecordStore>(
        &mut self,
        shard: &mut ShardView<'_, S>,
        number: u64,
        computed: Computed,
    ) {
        let Some(Away { chunk, at, now, txn, mut found }) = self.away.remove(&number) else { return };
        let Computed { n, answer, result, .. } = computed;
        let reads = ReadAt::new(&chunk, &chunk.txns()[txn], at, now);
        found.note_computed(reads.step(shard.registry, n), (answer, false), result);
        self.finish(shard, (&chunk, txn), (at, now), &mut found);
    }
}
