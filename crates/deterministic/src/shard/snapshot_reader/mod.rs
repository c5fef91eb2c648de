//! The snapshot reader: runs transactions that only read on the state as of the end of an epoch (`docs/protocols/paxflow.md`, P5 to
//! P14).
//!
//! Any engine of the family may use it (`--reads`). It has no locks, writes nothing and works in pieces between the shard's
//! other work. It knows the store's past states and the published epoch, and neither the scheduler nor the transactions
//! under way.

mod found;
mod gathering;
mod prefetch;
mod reading;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::sequencing::{Part, Parts, Reading};
use ordain_execution::{Long, PastValues};
use ordain_model::procedure::Locals;
use ordain_model::wire::Codec as _;
use ordain_model::{
    Chunk, ChunkNo, Epoch, Front, GatewayId, Gsn, Map, Micros, Millis, OutcomeBatch, OutcomeStatus,
    PartitionId, Registry, Txn,
};
use ordain_role::{Bugs, Outbox};
use ordain_store::RecordStore;

use crate::shard::Message;
use crate::shard::core::values::Values;
use crate::shard::maps::Maps;
use crate::shard::remote::Places;
use crate::shard::reply::outcomes_of;
use crate::shard::routes::ShardSet;
use crate::shard::slots::SlotTable;
use found::Found;
use prefetch::PrefetchBatch;

/// The key of a chunk of reads: its gateway and number.
type ChunkId = (GatewayId, ChunkNo);

/// The most epochs that are kept for reads that have not come, or do not end (`docs/protocols/paxflow.md`, P14).
const KEEP_MAX: u64 = 1 << 15;

/// The longest wait of a read for its epoch; longer than the sequencer lets it wait.
const PATIENCE: Micros = Micros::from_millis(20_000);

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
    /// Chunks that wait for values on disk, by number.
    fetching: BTreeMap<u64, Run>,
    /// The number of the next chunk.
    next_run: u64,
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

/// The state in which the reading of a chunk stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// All of it is read.
    All,
    /// The budget is spent.
    Some,
    /// It waits for values on disk.
    Waits,
}

/// A chunk, as far as it has been read here.
#[derive(Debug)]
struct Run {
    /// Its number, by which values come for it.
    number: u64,
    chunk: Arc<Chunk>,
    at: Epoch,
    now: Millis,
    /// When it came.
    since: Micros,
    /// The transaction to go on with, and its fragment.
    next: (usize, usize),
    /// The transaction that is being read.
    found: Found,
    /// The values on disk that this transaction reads.
    past: PastValues,
    /// The parts to be sent to each collector.
    parts: BTreeMap<usize, Vec<(u32, Part)>>,
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
    pub(crate) values: &'a mut Option<Values>,
    pub places: &'a Places,
    /// Which layout was in force when, and by which gateways have planned.
    pub maps: &'a mut Maps,
    pub registry: &'a Arc<Registry>,
    pub locals: &'a mut Locals,
    /// The most work of a compute fragment here, units, before it is given away; no bound while no work thread would run it.
    pub(crate) patience: Option<u64>,
    /// Bugs that a test has planted.
    pub(crate) bugs: Bugs,
}

impl SnapshotReader {
    pub(crate) fn new(number: usize) -> SnapshotReader {
        SnapshotReader {
            number,
            low_watermarks: BTreeMap::new(),
            kept: None,
            waiting: BTreeMap::new(),
            ready: VecDeque::new(),
            fetching: BTreeMap::new(),
            next_run: 0,
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
        let (number, past) = (self.next_run, PastValues::NONE);
        self.next_run += 1;
        let run = Run { number, chunk, at, now, since, next: (0, 0), found, past, parts: BTreeMap::new() };
        if at <= published {
            self.ready.push_back(run);
        } else {
            self.counts.waited += 1;
            self.waiting.entry(at).or_default().push(run);
        }
    }

    /// Goes on reading a chunk that has waited for values.
    pub(crate) fn go_on_with(&mut self, number: u64, past: PastValues) {
        if let Some(mut run) = self.fetching.remove(&number) {
            run.past.extend(past);
            self.ready.push_back(run);
        } else if let Some(run) = self.ready.iter_mut().find(|run| run.number == number) {
            // It has not come to the fragments that read them.
            run.past.extend(past);
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

    /// Checks that reads wait for what is to come alone, and that nothing is kept for nobody.
    pub(crate) fn check(&self, published: Epoch) -> Result<(), String> {
        if let Some((at, _)) = self.waiting.first_key_value().filter(|(at, _)| **at <= published) {
            return Err(format!("a read waits for epoch {at}, and {published} is published"));
        }
        if let Some(run) = self.ready.iter().find(|run| run.at > published) {
            return Err(format!("a read of epoch {} may run, and {published} is published", run.at));
        }
        if self.kept.is_some() == self.low_watermarks.is_empty() {
            let sequencers = self.low_watermarks.len();
            return Err(format!("states are kept from {:?} on for {sequencers} sequencers", self.kept));
        }
        match self.gathering.keys().find(|id| self.out_of_order.contains_key(id)) {
            Some(id) => Err(format!("parts of the read {id:?} wait for it, and it for them")),
            None => Ok(()),
        }
    }

    /// Returns how many chunks wait or are being read.
    pub(crate) fn waiting(&self) -> usize {
        self.ready.len() + self.fetching.len() + self.waiting.values().map(Vec::len).sum::<usize>()
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
            let read = self.read(shard, &mut run, &mut budget);
            let (chunk, at) = ((run.chunk.gateway, run.chunk.number), run.at);
            for (to, parts) in std::mem::take(&mut run.parts) {
                out.send(
                    shard.places.shards[to],
                    Reading::Parts(Parts { from: self.number, chunk, at, parts }),
                );
            }
            match read {
                Read::All => self.spare = std::mem::take(&mut run.found.slots),
                Read::Some => self.ready.push_front(run),
                Read::Waits => _ = self.fetching.insert(run.number, run),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_that_wait_for_nothing_or_run_too_early_are_found() {
        let mut reader = SnapshotReader::new(0);
        let chunk = |number| Arc::new(Chunk::new(GatewayId(1), ChunkNo(number)));
        let mut take = |number, at, published| {
            reader.take(chunk(number), (Epoch(at), Millis(0)), Micros(0), Epoch(published));
            [reader.check(Epoch(4)), reader.check(Epoch(7))].map(|checked| checked.err().unwrap_or_default())
        };
        assert_eq!(take(1, 4, 4), [String::new(), String::new()]);
        assert!(take(2, 6, 4)[1].contains("waits for epoch 6"));
        assert!(take(3, 5, 5)[0].contains("epoch 5 may run"));
    }

    #[test]
    fn states_that_are_kept_for_nobody_and_parts_that_wait_for_their_read_are_found() {
        let mut reader = SnapshotReader::new(0);
        reader.begin(PartitionId(0), Epoch(3));
        assert_eq!(reader.check(Epoch(5)), Ok(()));
        reader.low_watermarks.clear();
        assert!(reader.check(Epoch(5)).unwrap_err().contains("for 0 sequencers"));
        reader.kept = None;
        let id = ((GatewayId(1), ChunkNo(2)), 0);
        let (chunk, at, now, found) = (Arc::default(), Epoch(5), Millis(0), Found::default());
        reader.gathering.insert(id, Gathering { chunk, at, now, txn: 0, missing: 2, found, too_old: false });
        assert_eq!(reader.check(Epoch(5)), Ok(()));
        reader.out_of_order.insert(id, OutOfOrder { at, parts: Vec::new() });
        assert!(reader.check(Epoch(5)).unwrap_err().contains("wait for it"));
    }
}
