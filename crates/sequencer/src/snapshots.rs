//! Reads on a snapshot, where they begin: which epoch they are run on, and which states are still wanted (paxflow.md,
//! sections 4.2, 4.4, 4.6 and 4.8).
//!
//! A sequencer does not order such a read and no log hears of it: it says *as of which epoch*, and sends it to the shards
//! that take part. All of them then read the same prefix of the order, whenever they come to it. The *floor* is the
//! oldest epoch that somebody may still be reading at or may be told to: what was replaced before it can go.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_model::{Chunk, ChunkNo, Epoch, GatewayId, Layout, Layouts, Micros, Millis, PartitionId};
use ordain_role::{Address, NodeId, Outbox};

use crate::message::{Message, Reading};

/// Where the shards of a replica are.
#[derive(Clone, Debug)]
pub struct Readers {
    /// Which shard owns what.
    pub layout: Arc<Layout>,
    /// The shards, numbered through the replica.
    pub shards: Vec<Address>,
}

/// Whoever wants a state that holds all that anybody has been answered: it is that of the next epoch to be sealed.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// These reads, which must also hold an epoch.
    Here(Arc<Chunk>, Epoch),
    /// A twin, for reads of its own.
    Twin(NodeId, (GatewayId, ChunkNo)),
}

/// After so long nothing is kept any more for a chunk of reads: it is lost, or waits for an epoch that does not come.
const PATIENCE: Micros = Micros::from_millis(10_000);

/// What a sequencer knows of reads.
#[derive(Debug)]
pub(crate) struct Snapshots {
    me: Address,
    partition: PartitionId,
    readers: Readers,
    layouts: Layouts,
    /// The last epoch of which everything is executed on this node.
    published: Epoch,
    /// Chunks that are being read, with the epoch.
    open: BTreeMap<(GatewayId, ChunkNo), (Epoch, Arc<Chunk>)>,
    /// How many of them there are, by epoch.
    by_epoch: BTreeMap<Epoch, u32>,
    /// Since when, oldest first. Those that are done stay until their turn.
    by_age: VecDeque<(Micros, (GatewayId, ChunkNo))>,
    /// The floor as the shards of this node know it, and those of others.
    told: (Epoch, Epoch),
    /// Those that wait for the next batch.
    pub(crate) wanted: Vec<Wanted>,
    /// Those that wait for the leader's word.
    pub(crate) asked: BTreeMap<(GatewayId, ChunkNo), (Arc<Chunk>, Epoch)>,
    pub(crate) chunks: u64,
}

impl Snapshots {
    pub(crate) fn new(me: Address, partition: PartitionId, readers: Readers) -> Snapshots {
        Snapshots {
            me,
            partition,
            layouts: Layouts::new(readers.layout.clone()),
            readers,
            published: Epoch(0),
            open: BTreeMap::new(),
            by_epoch: BTreeMap::new(),
            by_age: VecDeque::new(),
            told: (Epoch(0), Epoch(0)),
            wanted: Vec::new(),
            asked: BTreeMap::new(),
            chunks: 0,
        }
    }

    /// All up to this epoch was sealed and executed before the node was started.
    pub(crate) fn resume_after(&mut self, epoch: Epoch) {
        self.published = self.published.max(epoch);
    }

    pub(crate) fn note_published(&mut self, epoch: Epoch) {
        self.published = self.published.max(epoch);
    }

    pub(crate) const fn published(&self) -> Epoch {
        self.published
    }

    /// Whether the state of the last epoch that was closed here holds all that anybody has been answered: nobody else
    /// closes any.
    pub(crate) fn is_alone(&self, has_twins: bool) -> bool {
        self.readers.layout.partitions() == 1 && !has_twins
    }

    /// Has reads run as of the end of an epoch.
    pub(crate) fn run<X>(
        &mut self,
        (at, now): (Epoch, Millis),
        since: Micros,
        chunk: &Arc<Chunk>,
        out: &mut Outbox<Message<X>>,
    ) {
        self.chunks += 1;
        let id = (chunk.gateway, chunk.number);
        self.open.insert(id, (at, chunk.clone()));
        *self.by_epoch.entry(at).or_default() += 1;
        self.by_age.push_back((since, id));
        let (layout, shards) = (self.layouts.under(&chunk.map), &self.readers.shards);
        let mut takes_part = vec![false; shards.len()];
        for txn in chunk.txns() {
            if txn.table {
                takes_part.fill(true);
            }
            takes_part[chunk.collector(txn, layout)] = true;
            for fragment in chunk.fragments(txn).iter().filter(|fragment| !fragment.is_table()) {
                takes_part[layout.shard_of(fragment.hash.slot())] = true;
            }
        }
        for (shard, _) in shards.iter().zip(takes_part).filter(|(_, takes_part)| *takes_part) {
            out.send(*shard, Reading::Run { chunk: chunk.clone(), at, now });
        }
    }

    /// Nobody waits any more for a chunk of reads.
    pub(crate) fn done(&mut self, id: (GatewayId, ChunkNo)) {
        self.asked.remove(&id);
        self.close(id);
    }

    fn close(&mut self, id: (GatewayId, ChunkNo)) -> Option<Arc<Chunk>> {
        let (epoch, chunk) = self.open.remove(&id)?;
        if let Some(count) = self.by_epoch.get_mut(&epoch) {
            *count -= 1;
            if *count == 0 {
                self.by_epoch.remove(&epoch);
            }
        }
        Some(chunk)
    }

    /// Takes out what has been open for too long; those who wait for it are to be told.
    pub(crate) fn give_up(&mut self, now: Micros) -> Vec<Arc<Chunk>> {
        let mut late = Vec::new();
        while let Some((_, id)) = self
            .by_age
            .pop_front_if(|(since, id)| !self.open.contains_key(id) || now.since(*since) >= PATIENCE)
        {
            late.extend(self.close(id));
        }
        late
    }

    /// Whether anything is open, or was.
    pub(crate) fn is_open(&self) -> bool {
        !self.by_age.is_empty()
    }

    /// Tells the shards which states are still wanted, if that has changed: those of this node always, the others too
    /// if `far`. Says whether the others are to be told later.
    pub(crate) fn tell_floor<X>(&mut self, far: bool, out: &mut Outbox<Message<X>>) -> bool {
        let wanted = self.by_epoch.first_key_value().map_or(self.published, |(epoch, _)| *epoch);
        let floor = wanted.min(self.published);
        let (near, others) = self.told;
        let partition = self.partition;
        let me = self.me.node;
        let mut tell = |is_near: bool| {
            for shard in self.readers.shards.iter().filter(|shard| (shard.node == me) == is_near) {
                out.send(*shard, Reading::Floor { partition, epoch: floor });
            }
        };
        if floor > near {
            tell(true);
            self.told.0 = floor;
        }
        if far && floor > others {
            tell(false);
            self.told.1 = floor;
        }
        self.readers.shards.iter().any(|shard| shard.node != me) && self.told.1 < self.told.0
    }
}
