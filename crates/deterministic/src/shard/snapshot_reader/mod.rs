//! The snapshot reader: runs transactions that only read on the state as of the end of an epoch (`docs/protocols/paxflow.md`, P5 to
//! P14).
//!
//! Any engine of the family may use it (`--reads`). It has no locks, writes nothing and works in pieces between the shard's
//! other work. It knows the store's past states and the published epoch, and neither the scheduler nor the transactions
//! under way.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::sequencing::{Part, Parts, Reading};
use ordain_model::children::Children;
use ordain_model::plan::nested_args;
use ordain_model::procedure::{Inputs, Locals, Target};
use ordain_model::serial::{key_of, seed_of};
use ordain_model::wire::Codec as _;
use ordain_model::{
    Abort, Access, Cell, Chunk, ChunkNo, Epoch, Fragment, FragmentContext, Front, GatewayId, Gsn, KeyHash,
    Layout, Map, Micros, Millis, OutcomeBatch, OutcomeStatus, PartitionId, Registry, SlotNo, Txn,
};
use ordain_role::Outbox;
use ordain_store::{RecordId, RecordStore, Snapshot};

use crate::shard::Message;
use crate::shard::core::guarded;
use crate::shard::long::{Computation, Computed, InputSlots, Long};
use crate::shard::maps::Maps;
use crate::shard::members::{Members, refuse};
use crate::shard::parent_record::PastChildren;
use crate::shard::records::past_at;
use crate::shard::remote::Places;
use crate::shard::reply::{outcomes_of, write_reply};
use crate::shard::state::{Active, CUT, Routes, ShardSet, SlotTable, Tables};

/// The key of a chunk of reads: its gateway and number.
type ChunkId = (GatewayId, ChunkNo);

/// The most epochs that are kept for reads that have not come, or do not end (`docs/protocols/paxflow.md`, P14).
const KEEP_MAX: u64 = 1 << 15;

/// The longest wait of a read for its epoch; longer than the sequencer lets it wait.
const PATIENCE: Micros = Micros::from_millis(20_000);

/// The bytes read that count as one fragment of the budget: what has been read waits to be sent until then.
const LARGE: usize = 4 << 10;

/// The records of a prefetch batch. The wait for each batch is the same, so long ones are better as long as they fit
/// into the first cache: with 24 records each took some 5% longer.
const PREFETCH_BATCH: usize = 48;

/// The snapshot reader of a shard: reads that wait for their epoch, run, or wait for parts of other shards.
#[derive(Debug)]
pub struct SnapshotReader {
    /// The shard, numbered through the replica.
    number: usize,
    /// The low watermark of each sequencer that knows of reads: the oldest epoch as of which may still be read.
    low_watermarks: BTreeMap<PartitionId, Epoch>,
    /// The oldest epoch as of which the store can show the state; none while no sequencer knows of reads.
    kept: Option<Epoch>,
    /// Chunks that wait for their epoch to be published.
    waiting: BTreeMap<Epoch, Vec<Run>>,
    /// Chunks that can be read, oldest epoch first as it was published.
    ready: VecDeque<Run>,
    /// Transactions whose reply is composed here, until all parts are there.
    gathering: BTreeMap<(ChunkId, u32), Gathering>,
    /// Parts that other shards have read before this one came to the transaction.
    out_of_order: BTreeMap<(ChunkId, u32), OutOfOrder>,
    /// Transactions a fragment of which is computed elsewhere, by number.
    away: BTreeMap<u64, Away>,
    /// The next of those numbers.
    next_away: u64,
    /// Computations that are to be given away.
    leaving: Vec<(u64, Long)>,
    /// Whether a chunk can be read on: reads then share the budget with what is ordered.
    pub has_ready: bool,
    outcomes: Vec<OutcomeBatch>,
    spare: SlotTable,
    prefetch: PrefetchBatch,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
pub struct Counts {
    pub read: u64,
    pub(crate) waited: u64,
    pub(crate) too_old: u64,
}

/// A chunk, as far as it has been read here.
#[derive(Debug)]
struct Run {
    chunk: Arc<Chunk>,
    at: Epoch,
    now: Millis,
    /// When it came.
    since: Micros,
    /// The transaction to go on with, and its fragment.
    next: (usize, usize),
    /// The transaction that is being read.
    found: Found,
    /// The parts to be sent to each collector.
    parts: BTreeMap<usize, Vec<(u32, Part)>>,
}

/// The parts of a transaction that a shard has read.
#[derive(Debug, Default)]
struct Found {
    routes: Routes,
    slots: SlotTable,
    /// No other shard takes part.
    alone: bool,
    /// This shard's parts of whole-table slots.
    own_tables: Vec<(SlotNo, Vec<u8>)>,
    tables: Tables,
    shipped: BTreeMap<SlotNo, (Cell, Gsn)>,
    /// The compute fragment for which records are being read, and how many bytes of what it may be shipped were read
    /// here.
    carried: (usize, usize),
    failure: Option<(SlotNo, Abort)>,
}

/// A transaction whose reply is composed here.
#[derive(Debug)]
struct Gathering {
    chunk: Arc<Chunk>,
    at: Epoch,
    now: Millis,
    /// Its place among the chunk's transactions.
    txn: usize,
    /// The shards whose parts are missing.
    missing: ShardSet,
    found: Found,
    too_old: bool,
}

/// A transaction that goes on once a fragment of it is computed.
#[derive(Debug)]
struct Away {
    chunk: Arc<Chunk>,
    at: Epoch,
    now: Millis,
    /// Its place among the chunk's transactions.
    txn: usize,
    found: Found,
}

#[derive(Debug)]
struct OutOfOrder {
    at: Epoch,
    parts: Vec<(usize, Part)>,
}

/// The view that a snapshot reader has of its shard.
pub struct ShardView<'a, S> {
    pub store: &'a S,
    pub places: &'a Places,
    /// Which layout was in force when, and by which gateways have planned.
    pub maps: &'a mut Maps,
    pub registry: &'a Arc<Registry>,
    pub locals: &'a mut Locals,
    /// How much work a compute fragment may do here before it is given away; no bound while nothing would do it.
    pub(crate) patience: Option<u64>,
}

impl SnapshotReader {
    pub(crate) fn new(number: usize) -> SnapshotReader {
        SnapshotReader {
            number,
            low_watermarks: BTreeMap::new(),
            kept: None,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            gathering: BTreeMap::new(),
            out_of_order: BTreeMap::new(),
            away: BTreeMap::new(),
            next_away: 0,
            leaving: Vec::new(),
            has_ready: false,
            outcomes: Vec::new(),
            spare: SlotTable::default(),
            prefetch: PrefetchBatch::default(),
            counts: Counts::default(),
        }
    }

    /// Begins to keep states, as a sequencer knows of reads; nothing of a later epoch than `begun` has changed
    /// anything. Returns the oldest epoch as of which reads can be run.
    pub fn begin(&mut self, partition: PartitionId, begun: Epoch) -> Epoch {
        let kept = *self.kept.get_or_insert(begun);
        self.low_watermarks.insert(partition, kept);
        kept
    }

    /// Ends what a sequencer asked for, as it knows of no reads any more. Returns whether states can be freed.
    pub fn end(&mut self, partition: PartitionId, published: Epoch) -> bool {
        self.low_watermarks.remove(&partition);
        self.settle_low_watermark(published)
    }

    /// Returns the oldest epoch as of which the store has to show the state.
    pub(crate) const fn kept(&self) -> Option<Epoch> {
        self.kept
    }

    /// Takes a sequencer's low watermark. Returns whether states can be freed.
    pub(crate) fn note_low_watermark(
        &mut self,
        (partition, epoch): (PartitionId, Epoch),
        published: Epoch,
    ) -> bool {
        if let Some(low_watermark) = self.low_watermarks.get_mut(&partition) {
            *low_watermark = epoch.max(*low_watermark);
        }
        self.settle_low_watermark(published)
    }

    /// Moves the shard's low watermark to the least of all sequencers, within bounds.
    fn settle_low_watermark(&mut self, published: Epoch) -> bool {
        let low_watermark = self.low_watermarks.values().min().map(|wanted| {
            let bound = Epoch(published.0.saturating_sub(KEEP_MAX));
            (*wanted).min(published).max(bound)
        });
        if self.kept.is_none() || low_watermark.is_some() && low_watermark <= self.kept {
            return false;
        }
        self.kept = low_watermark;
        // Transactions that lack parts by now get none any more.
        let is_late = |at: Epoch| low_watermark.is_none_or(|low_watermark| at < low_watermark);
        self.out_of_order.retain(|_, early| !is_late(early.at));
        let late: Vec<(ChunkId, u32)> =
            self.gathering.iter().filter(|(_, g)| is_late(g.at)).map(|(id, _)| *id).collect();
        for id in late {
            if let Some(Gathering { chunk, txn, .. }) = self.gathering.remove(&id) {
                self.refuse(&chunk, &chunk.txns()[txn]);
            }
        }
        true
    }

    /// Takes a chunk of reads.
    pub fn take(&mut self, chunk: Arc<Chunk>, (at, now): (Epoch, Millis), since: Micros, published: Epoch) {
        let found = Found { slots: std::mem::take(&mut self.spare), ..Found::default() };
        let run = Run { chunk, at, now, since, next: (0, 0), found, parts: BTreeMap::new() };
        if at <= published {
            self.ready.push_back(run);
        } else {
            self.counts.waited += 1;
            self.waiting.entry(at).or_default().push(run);
        }
    }

    /// Forgets chunks that wait for an epoch which does not come: the sequencer has answered them.
    pub(crate) fn forget_late(&mut self, now: Micros) {
        self.waiting.retain(|_, runs| {
            runs.retain(|run| now.since(run.since) < PATIENCE);
            !runs.is_empty()
        });
    }

    /// Returns whether a chunk can be read, or waits for an epoch that is published.
    pub(crate) fn is_ready(&self, published: Epoch) -> bool {
        !self.ready.is_empty() || self.waiting.first_key_value().is_some_and(|(at, _)| *at <= published)
    }

    /// Returns how many chunks wait or are being read.
    pub(crate) fn waiting(&self) -> usize {
        self.ready.len() + self.waiting.values().map(Vec::len).sum::<usize>()
    }

    /// Returns how many transactions wait for parts of other shards.
    pub(crate) fn gathering(&self) -> usize {
        self.gathering.len()
    }

    /// Reads for about so many fragments; returns whether more could be read.
    pub(crate) fn run<S: RecordStore>(
        &mut self,
        shard: &mut ShardView<'_, S>,
        published: Epoch,
        mut budget: usize,
        out: &mut Outbox<Message>,
    ) -> bool {
        while let Some(first) = self.waiting.first_entry().filter(|first| *first.key() <= published) {
            self.ready.extend(first.remove());
        }
        while budget > 0
            && let Some(mut run) = self.ready.pop_front()
        {
            let is_done = self.read(shard, &mut run, &mut budget);
            let (chunk, at) = ((run.chunk.gateway, run.chunk.number), run.at);
            for (to, parts) in std::mem::take(&mut run.parts) {
                out.send(
                    shard.places.shards[to],
                    Reading::Parts(Parts { from: self.number, chunk, at, parts }),
                );
            }
            if is_done {
                self.spare = std::mem::take(&mut run.found.slots);
            } else {
                self.ready.push_front(run);
            }
        }
        !self.ready.is_empty()
    }

    /// Sends the answers that are complete.
    pub(crate) fn send(&mut self, places: &Places, out: &mut Outbox<Message>) {
        for outcomes in self.outcomes.drain(..) {
            if let Some(gateway) = places.gateway_at(outcomes.gateway) {
                out.send(gateway, Front::Outcomes(outcomes));
            }
        }
    }

    /// Goes on reading a chunk; returns whether all of it is read.
    fn read<S: RecordStore>(
        &mut self,
        shard: &mut ShardView<'_, S>,
        run: &mut Run,
        budget: &mut usize,
    ) -> bool {
        let chunk = run.chunk.clone();
        let (number, layout) = (self.number, shard.maps.planned.under(&chunk.map).clone());
        let then = shard.maps.as_of(run.at).clone();
        let is_stale = chunk.map != *then.map();
        let me: ShardSet = 1 << number;
        let is_mine =
            |fragment: &Fragment| fragment.is_table() || layout.shard_of(fragment.hash.slot()) == number;
        let store = shard.store;
        let mut state = store.as_of(run.at);
        self.prefetch.begin(run.next);
        while let Some(txn) = chunk.txns().get(run.next.0) {
            let fragments = chunk.fragments(txn);
            let found = &mut run.found;
            if run.next.1 == 0 {
                let only = chunk.only_shard(txn, &layout);
                if only.is_some_and(|shard| shard != number) {
                    run.next.0 += 1;
                    continue;
                }
                found.alone = only.is_some() || layout.shards() == 1;
                if !found.alone {
                    found.routes.analyse(&chunk, txn, &layout);
                    let takes_part = found.routes.participants | 1 << found.routes.collector;
                    found.alone = takes_part == me;
                    if takes_part & me == 0 {
                        run.next.0 += 1;
                        continue;
                    }
                }
                found.slots.reset(fragments.len());
                found.own_tables.clear();
                found.tables.0.clear();
                found.shipped.clear();
                found.carried = (0, 0);
                found.failure = None;
            }
            let is_kept = self.kept.is_some_and(|kept| run.at >= kept);
            if is_kept && is_stale && run.next.1 == 0 && chunk.is_moved(txn, &then) {
                // Each shard that takes part sees that alone: at the end of that epoch its slots were elsewhere.
                if chunk.collector(txn, &layout) == number {
                    self.send_back(&chunk, txn, then.map());
                }
                run.next.0 += 1;
                continue;
            }
            if !is_kept {
                self.counts.too_old += 1;
                run.next = (run.next.0 + 1, 0);
                match found.alone || found.routes.collector == self.number {
                    true => self.refuse(&chunk, txn),
                    false => {
                        let to = run.parts.entry(found.routes.collector).or_default();
                        to.push((txn.index, Part::TooOld));
                    }
                }
                continue;
            }
            let reads = At::new(&chunk, txn, run.at, run.now);
            while let Some(fragment) = fragments.get(run.next.1) {
                if *budget == 0 {
                    return false;
                }
                // Records planned by another map may have been elsewhere then, and are not prefetched.
                if run.next >= self.prefetch.until && !is_stale {
                    self.prefetch.gather(store, (&chunk, &layout), (run.next, *budget), number);
                }
                if fragment.access != Access::Compute && (found.alone || is_mine(fragment)) {
                    *budget -= 1;
                    let guess = if fragment.is_keyed() { self.prefetch.next(fragment) } else { None };
                    let bytes = found.slots.bytes();
                    reads.read((&mut state, guess), shard.registry, shard.locals, run.next.1, found);
                    *budget = budget.saturating_sub(found.slots.bytes().saturating_sub(bytes) / LARGE);
                }
                run.next.1 += 1;
            }
            self.hand_over(shard, run, &chunk, txn);
            run.next = (run.next.0 + 1, 0);
        }
        true
    }

    /// Hands over what was read of a transaction here to its collector.
    fn hand_over<S: RecordStore>(
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
                    found.tables.take(&mut found.slots, slot, (from, shards), bytes);
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
        let reads = At::new(chunk, txn, epoch, now);
        if !txn.independent {
            for (n, fragment) in chunk.fragments(txn).iter().enumerate() {
                let is_to_do = fragment.access == Access::Compute && found.slots.is_missing(SlotNo(n as u32));
                if is_to_do && !reads.compute(shard, (at, n), found) {
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
        let long = Long {
            chunk: chunk.clone(),
            at: txn,
            n,
            gsn: At::new(chunk, &chunk.txns()[txn], at, now).gsn,
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
        let fragment = &chunk.fragments(&chunk.txns()[txn])[n];
        found.note_computed(fragment, n, (answer, false), result, shard.registry.limits().reply);
        self.finish(shard, (&chunk, txn), (at, now), &mut found);
    }

    /// Sends a transaction back that was planned under another map than the one in force at the end of its epoch.
    fn send_back(&mut self, chunk: &Chunk, txn: &Txn, map: &Map) {
        let at = outcomes_of(&mut self.outcomes, chunk.gateway);
        self.outcomes[at]
            .push(chunk.number, txn.index, Gsn::NONE, OutcomeStatus::Moved, |reply| map.encode(reply));
    }

    /// Refuses a transaction: the state that it was to read is not kept any more.
    fn refuse(&mut self, chunk: &Chunk, txn: &Txn) {
        let at = outcomes_of(&mut self.outcomes, chunk.gateway);
        self.outcomes[at].push(chunk.number, txn.index, Gsn::NONE, OutcomeStatus::TooOld, |_| {});
    }
}

/// A prefetch batch: records of a chunk that are fetched together.
#[derive(Debug, Default)]
struct PrefetchBatch {
    hashes: Vec<KeyHash>,
    /// The likely record of each, in the order in which they are read.
    guesses: Vec<Option<RecordId>>,
    /// How many of them have been read.
    read: usize,
    /// The place in the chunk after them: transaction, fragment.
    until: (usize, usize),
}

impl PrefetchBatch {
    /// Empties it, before a place of the chunk.
    fn begin(&mut self, next: (usize, usize)) {
        self.guesses.clear();
        (self.read, self.until) = (0, next);
    }

    /// Prefetches the next records of a shard from a place of the chunk on, as many as the budget allows.
    fn gather(
        &mut self,
        store: &impl RecordStore,
        (chunk, layout): (&Chunk, &Layout),
        (mut next, budget): ((usize, usize), usize),
        number: usize,
    ) {
        let enough = PREFETCH_BATCH.min(budget);
        self.hashes.clear();
        'full: while let Some(txn) = chunk.txns().get(next.0) {
            let only = chunk.only_shard(txn, layout);
            if only.is_none_or(|shard| shard == number) {
                for fragment in &chunk.fragments(txn)[next.1..] {
                    if self.hashes.len() == enough {
                        break 'full;
                    }
                    next.1 += 1;
                    let is_mine = || only.is_some() || layout.shard_of(fragment.hash.slot()) == number;
                    self.hashes.extend(Some(fragment.hash).filter(|_| fragment.is_keyed() && is_mine()));
                }
            }
            next = (next.0 + 1, 0);
        }
        self.begin(next);
        store.guess(self.hashes.iter().copied(), &mut self.guesses);
    }

    /// Returns the likely record that a fragment reads next; `None` if it was not prefetched.
    fn next(&mut self, fragment: &Fragment) -> Option<RecordId> {
        let guess = self.guesses.get(self.read)?;
        debug_assert_eq!(
            self.hashes[self.read], fragment.hash,
            "records are read in the order of the prefetch batch"
        );
        self.read += 1;
        *guess
    }
}

impl Found {
    /// Joins this shard's parts of whole-table slots with those of others.
    fn join_tables(&mut self, place: (usize, usize)) {
        for (slot, part) in std::mem::take(&mut self.own_tables) {
            self.tables.take(&mut self.slots, slot, place, part);
        }
    }

    /// Takes the answer of a compute fragment.
    fn note_computed(
        &mut self,
        fragment: &Fragment,
        n: usize,
        (mut answer, failed): (Vec<u8>, bool),
        result: Result<(), Abort>,
        limit: usize,
    ) {
        let slot = SlotNo(n as u32);
        if let Err(abort) = result {
            if abort == Abort::Panic {
                answer.clear();
            }
            Active::fail(&mut self.failure, (slot, abort));
        }
        self.slots.fill(slot, &answer, failed || result.is_err());
        if fragment.only_answers() {
            self.slots.bound(slot, limit);
        }
    }

    /// Puts everything that was read here into the parts for the collector.
    fn put_into(&mut self, chunk: &Chunk, txn: &Txn, parts: &mut Vec<(u32, Part)>) {
        use ordain_model::procedure::Slots as _;
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

/// A transaction that is run as of the end of an epoch.
#[derive(Clone, Copy)]
struct At<'a> {
    chunk: &'a Chunk,
    txn: &'a Txn,
    now: Millis,
    /// Its place in the serial order: after everything of its epoch.
    gsn: Gsn,
    seed: u64,
}

impl<'a> At<'a> {
    fn new(chunk: &'a Chunk, txn: &'a Txn, at: Epoch, now: Millis) -> At<'a> {
        let Chunk { gateway, number, .. } = chunk;
        let own = seed_of(Gsn(number.0 << 32 ^ u64::from(gateway.0))) ^ u64::from(txn.index);
        let gsn = Gsn::of_read(at, own);
        At { chunk, txn, now, gsn, seed: seed_of(gsn) }
    }

    /// Runs a fragment that reads a record, likely the guessed one, or the table.
    fn read(
        &self,
        (state, guess): (&mut impl Snapshot, Option<RecordId>),
        registry: &Registry,
        locals: &mut Locals,
        n: usize,
        found: &mut Found,
    ) {
        let At { chunk, txn, now, seed, .. } = *self;
        let fragment = &chunk.fragments(txn)[n];
        let slot = SlotNo(n as u32);
        let args = chunk.args(txn);
        let key = key_of(args, fragment);
        let name = (fragment.db, key.bytes, fragment.hash);
        if fragment.shipped {
            let (cell, version) = past_at(state, guess, name, now);
            if cell.value.is_some() {
                match self.may_be_copied(registry, n, cell, found) {
                    true => _ = found.shipped.insert(slot, (cell.clone(), version)),
                    false => found.slots.fill(slot, CUT, false),
                }
            }
            return;
        }
        let limit = registry.limits().reply;
        if fragment.only_shows() && found.slots.is_beyond(limit) {
            return found.slots.leave_out(slot);
        }
        let mut children;
        let (target, version, children) = if fragment.is_table() {
            (Target::Table(state), Gsn::NONE, None)
        } else {
            let state = &*state;
            let (cell, version) = past_at(state, guess, name, now);
            children = PastChildren::new(state, key.bytes, fragment);
            (
                Target::Read(cell),
                version,
                fragment.with_children.then_some(&mut children as &mut dyn Children),
            )
        };
        let mut arena = found.slots.take_arena();
        let at = arena.len();
        let mut cx = FragmentContext {
            args: nested_args(args, fragment.call_at),
            db: fragment.db,
            key,
            now,
            seed,
            version: version.into(),
            inputs: Inputs::none(),
            target,
            children,
            locals,
            registry,
            share: registry.limits().share(txn.carriers),
            most: registry.limits().reply,
            out: &mut arena,
        };
        let result = match registry.get(fragment.procedure) {
            None => Err(Abort::Panic),
            Some(code) => guarded(fragment.abortable, || code.run(fragment.code, &mut cx)),
        };
        if let Err(abort) = result {
            if abort == Abort::Panic {
                arena.truncate(at);
            }
            Active::fail(&mut found.failure, (slot, abort));
        }
        if fragment.is_table() {
            let part = arena.split_off(at);
            found.slots.put_arena(arena, slot, at, false);
            found.slots.unfill(slot);
            found.own_tables.push((slot, part));
        } else {
            found.slots.put_arena(arena, slot, at, result.is_err());
            if fragment.only_answers() {
                found.slots.bound(slot, limit);
            }
        }
    }

    /// Returns whether a record may be copied for the compute fragment that fragment `n` is for. Not if, with what
    /// has been copied here, it is more than that fragment's share, bytes.
    fn may_be_copied(&self, registry: &Registry, n: usize, cell: &Cell, found: &mut Found) -> bool {
        let fragments = self.chunk.fragments(self.txn);
        if found.carried.0 <= n {
            let is_compute = |fragment: &Fragment| fragment.access == Access::Compute;
            let next = fragments[n..].iter().position(is_compute).map_or(fragments.len(), |at| n + at);
            found.carried = (next, 0);
        }
        let (compute, carried) = &mut found.carried;
        let is_near = fragments.get(*compute).is_some_and(|c| c.hash.slot() == fragments[n].hash.slot());
        *carried = carried.saturating_add(if is_near { 0 } else { cell.weight() });
        is_near || *carried <= registry.limits().share(self.txn.carriers)
    }

    /// Runs a compute fragment on the records that were read for it. Returns false if it has given up: then nothing
    /// has happened.
    fn compute<S>(&self, shard: &mut ShardView<'_, S>, (at, n): (usize, usize), found: &mut Found) -> bool {
        let At { chunk, txn, now, gsn, .. } = *self;
        let fragments = chunk.fragments(txn);
        let fragment = &fragments[n];
        let inputs = chunk.plans().inputs_of(fragment);
        let failed = inputs.iter().any(|input| found.slots.is_failed(*input));
        let mut bytes = Vec::new();
        let mut result = Ok(());
        let limits = shard.registry.limits();
        let is_held_back = |slot: &SlotNo| !found.slots.is_missing(*slot);
        let mut members = Members::of_copies(chunk, txn, n, &mut found.shipped);
        if !failed && members.are_beyond(limits.share(txn.carriers), chunk, txn, n, is_held_back) {
            result = refuse(fragment, &mut bytes);
        } else if !failed {
            shard.locals.set_patience(shard.patience);
            let computation = Computation { chunk, at, n, gsn, now };
            result = computation.run(shard.registry, shard.locals, &found.slots, &mut members, &mut bytes);
            if shard.locals.take_given_up() {
                let records = members.held.into_iter().map(|held| (held.slot, (held.cell, held.version)));
                found.shipped = records.collect();
                return false;
            }
        }
        found.note_computed(fragment, n, (bytes, failed), result, limits.reply);
        true
    }
}
