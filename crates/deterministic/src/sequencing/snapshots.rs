//! Reads on a snapshot: as of which epoch each is run, and which states are still wanted (docs/protocols/paxflow.md, sections
//! 4.2, 4.4, 4.6 and 4.8).
//!
//! A sequencer does not order such a read and no log hears of it: it says *as of which epoch*, and sends it to the shards
//! that take part. All of them then read the same prefix of the order, whenever they come to it. The *low watermark* is the
//! oldest epoch that somebody may still be reading at or may be told to: what was replaced before it can go.
//!
//! **While nobody reads, nothing is kept.** A shard keeps what changes replace from the moment that a sequencer has told
//! it to until all have told it to forget. So the first reads after a silence wait until all shards of the replica have
//! said as of which epoch they can show the state, and are run as of the largest of these at least; so is all that comes
//! after them, on shards too that the first had nothing to do with.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_model::{
    Chunk, ChunkNo, Epoch, GatewayId, Layout, Layouts, Micros, Millis, PartitionId, Snapshot,
};
use ordain_role::{Address, NodeId, Outbox};

use crate::sequencing::message::{Message, Reading};

/// The addresses of a replica's shards.
#[derive(Clone, Debug)]
pub struct Readers {
    /// Which shard owns what.
    pub layout: Arc<Layout>,
    /// The shards, numbered through the replica.
    pub shards: Vec<Address>,
}

/// A reader of a state that holds all that any client has been answered: that of the next epoch to be sealed.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    /// Reads of this node, on a state that also holds an epoch.
    Here(Arc<Chunk>, Epoch),
    /// A member, for reads of its own.
    Member(NodeId, (GatewayId, ChunkNo)),
}

/// After so long nothing is kept any more for a chunk of reads: it is lost, or waits for an epoch that does not come.
const PATIENCE: Micros = Micros::from_millis(10_000);

/// The state of keeping: do the shards keep what reads may need?
#[derive(Debug)]
enum Keeping {
    /// No read has come for a while.
    No,
    /// All shards were asked to; these have not answered from which epoch on.
    Begun(BTreeSet<Address>),
    /// All shards keep, or all that can be reached.
    Yes,
}

/// The state of a sequencer's snapshot reads.
#[derive(Debug)]
pub(crate) struct Snapshots {
    me: Address,
    partition: PartitionId,
    readers: Readers,
    layouts: Layouts,
    /// The last epoch of which everything is executed on this node.
    published: Epoch,
    keeping: Keeping,
    /// The oldest epoch as of which all shards that have answered can show the state.
    kept: Epoch,
    /// Reads that came before all of them had.
    held: Vec<(Arc<Chunk>, Snapshot)>,
    /// A client has read since the last call of `rest`.
    is_in_use: bool,
    /// Chunks that are being read, with the epoch.
    open: BTreeMap<(GatewayId, ChunkNo), (Epoch, Arc<Chunk>)>,
    /// The number of open reads, by epoch.
    by_epoch: BTreeMap<Epoch, u32>,
    /// The open reads with the time of their beginning, oldest first. Finished ones stay until they are the oldest.
    by_age: VecDeque<(Micros, (GatewayId, ChunkNo))>,
    /// The low watermark as the shards of this node know it, and those of others.
    reported: (Epoch, Epoch),
    /// Reads that wait for the next batch.
    pub(crate) wanted: Vec<Wanted>,
    /// Reads that wait for the leader's word.
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
            keeping: Keeping::No,
            kept: Epoch(0),
            held: Vec::new(),
            is_in_use: false,
            open: BTreeMap::new(),
            by_epoch: BTreeMap::new(),
            by_age: VecDeque::new(),
            reported: (Epoch(0), Epoch(0)),
            wanted: Vec::new(),
            asked: BTreeMap::new(),
            chunks: 0,
        }
    }

    /// Begins after an epoch up to which all was sealed and executed before the node was started.
    pub(crate) fn resume_after(&mut self, epoch: Epoch) {
        self.published = self.published.max(epoch);
    }

    pub(crate) fn note_published(&mut self, epoch: Epoch) {
        self.published = self.published.max(epoch);
    }

    /// The earliest epoch as of which reads without an epoch of their own can be run at once.
    pub(crate) fn earliest(&self) -> Epoch {
        self.published.max(self.kept)
    }

    /// The earliest epoch for reads that wait for an epoch anyway.
    pub(crate) const fn kept(&self) -> Epoch {
        self.kept
    }

    /// Holds reads until the shards keep what they may need, and has the shards begin to keep it; false if they do
    /// already.
    pub(crate) fn hold<X>(
        &mut self,
        chunk: &Arc<Chunk>,
        snapshot: &Snapshot,
        out: &mut Outbox<Message<X>>,
    ) -> bool {
        self.is_in_use = true;
        if matches!(self.keeping, Keeping::No) {
            self.keeping = Keeping::Begun(self.readers.shards.iter().copied().collect());
            self.request_keeping(None, out);
        }
        let is_held = matches!(self.keeping, Keeping::Begun(_));
        if is_held {
            self.held.push((chunk.clone(), snapshot.clone()));
        }
        is_held
    }

    /// A shard keeps what reads may need, from this epoch on. Answers the reads that need not wait any more.
    pub(crate) fn note_kept(&mut self, shard: Address, epoch: Epoch) -> Vec<(Arc<Chunk>, Snapshot)> {
        self.kept = self.kept.max(epoch);
        match &mut self.keeping {
            Keeping::Begun(missing) => {
                missing.remove(&shard);
                if missing.is_empty() { self.hold_no_longer() } else { Vec::new() }
            }
            Keeping::No | Keeping::Yes => Vec::new(),
        }
    }

    /// Ends the wait for shards that have not answered: what is to be read there may be too old.
    pub(crate) fn hold_no_longer(&mut self) -> Vec<(Arc<Chunk>, Snapshot)> {
        if matches!(self.keeping, Keeping::Begun(_)) {
            self.keeping = Keeping::Yes;
        }
        std::mem::take(&mut self.held)
    }

    /// Tells whether the shards keep anything, or are about to.
    pub(crate) const fn is_keeping(&self) -> bool {
        !matches!(self.keeping, Keeping::No)
    }

    /// Lets the shards keep nothing, if no client has read since the last call, nor reads now.
    pub(crate) fn rest<X>(&mut self, out: &mut Outbox<Message<X>>) {
        let was_in_use = std::mem::take(&mut self.is_in_use);
        if !was_in_use && self.open.is_empty() && matches!(self.keeping, Keeping::Yes) {
            self.keeping = Keeping::No;
            self.request_keeping(None, out);
        }
    }

    /// Tells the shards, or those of one node, whether they are to keep anything.
    pub(crate) fn request_keeping<X>(&self, node: Option<NodeId>, out: &mut Outbox<Message<X>>) {
        let partition = self.partition;
        let shards = self.readers.shards.iter().filter(|shard| node.is_none_or(|node| shard.node == node));
        for shard in shards {
            let keep = Reading::Keep(partition);
            out.send(*shard, if self.is_keeping() { keep } else { Reading::Forget(partition) });
        }
    }

    /// Tells whether the state of the last epoch closed here holds all that any client has been answered: no other
    /// node closes any.
    pub(crate) fn is_alone(&self, has_members: bool) -> bool {
        self.readers.layout.partitions() == 1 && !has_members
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

    /// Removes a chunk of reads that is done.
    pub(crate) fn done(&mut self, id: (GatewayId, ChunkNo)) {
        self.asked.remove(&id);
        self.held.retain(|(chunk, _)| (chunk.gateway, chunk.number) != id);
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

    /// Takes out the reads that have been open for too long, for their clients to be answered.
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

    /// Checks that open reads are counted right, and that no shard frees what one of them may still read.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut counted: BTreeMap<Epoch, u32> = BTreeMap::new();
        self.open.values().for_each(|(epoch, _)| *counted.entry(*epoch).or_default() += 1);
        if counted != self.by_epoch {
            return Err(format!("reads are open of epochs {counted:?}, and {:?} are counted", self.by_epoch));
        }
        if self.by_age.len() < self.open.len() {
            return Err(format!(
                "{} reads are open, and {} will be given up",
                self.open.len(),
                self.by_age.len()
            ));
        }
        let (near, others) = self.reported;
        if others > near || near > self.published {
            return Err(format!(
                "low watermarks {near} and {others} are told, and {} is published",
                self.published
            ));
        }
        match self.held.is_empty() || matches!(self.keeping, Keeping::Begun(_)) {
            true => Ok(()),
            false => Err("reads are held although no shard is waited for".to_owned()),
        }
    }

    /// Tells whether anything is open, or was.
    pub(crate) fn is_open(&self) -> bool {
        !self.by_age.is_empty()
    }

    /// Sends the shards the low watermark, if it has changed: those of this node always, the others too if `far`. True
    /// if the others still have to hear of it.
    pub(crate) fn report_low_watermark<X>(&mut self, far: bool, out: &mut Outbox<Message<X>>) -> bool {
        if !self.is_keeping() {
            return false;
        }
        let wanted = self.by_epoch.first_key_value().map_or(self.published, |(epoch, _)| *epoch);
        let low_watermark = wanted.min(self.published);
        let (near, others) = self.reported;
        let partition = self.partition;
        let me = self.me.node;
        let mut tell = |is_near: bool| {
            for shard in self.readers.shards.iter().filter(|shard| (shard.node == me) == is_near) {
                out.send(*shard, Reading::LowWatermark { partition, epoch: low_watermark });
            }
        };
        if low_watermark > near {
            tell(true);
            self.reported.0 = low_watermark;
        }
        if far && low_watermark > others {
            tell(false);
            self.reported.1 = low_watermark;
        }
        self.readers.shards.iter().any(|shard| shard.node != me) && self.reported.1 < self.reported.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARDS: [Address; 3] = [shard(0, 16), shard(0, 17), shard(1, 16)];

    const fn shard(node: u16, role: u16) -> Address {
        Address { node: NodeId(node), role }
    }

    fn snapshots() -> Snapshots {
        let layout = Arc::new(Layout::single(SHARDS.len()));
        Snapshots::new(shard(0, 0), PartitionId(0), Readers { layout, shards: SHARDS.to_vec() })
    }

    /// What shards were told: K to keep, F to forget, the number of a low watermark.
    fn told(out: Outbox<Message<()>>) -> Vec<(Address, String)> {
        let text = |message| match message {
            Message::Reading(Reading::Keep(_)) => "K".to_owned(),
            Message::Reading(Reading::Forget(_)) => "F".to_owned(),
            Message::Reading(Reading::LowWatermark { epoch, .. }) => epoch.0.to_string(),
            other => panic!("{other:?}"),
        };
        out.sends.into_iter().map(|(to, message)| (to, text(message))).collect()
    }

    fn all(text: &str) -> Vec<(Address, String)> {
        SHARDS.map(|shard| (shard, text.to_owned())).to_vec()
    }

    #[test]
    fn reads_that_are_counted_wrong_or_held_for_nobody_are_found() {
        let mut out = Outbox::<Message<()>>::default();
        let broken = |change: &dyn Fn(&mut Snapshots)| {
            let mut snapshots = snapshots();
            snapshots.note_published(Epoch(5));
            snapshots.keeping = Keeping::Yes;
            let chunk = Arc::new(Chunk::new(GatewayId(1), ChunkNo(7)));
            snapshots.run((Epoch(5), Millis(0)), Micros(1), &chunk, &mut Outbox::<Message<()>>::default());
            assert_eq!(snapshots.check(), Ok(()));
            change(&mut snapshots);
            snapshots.check().unwrap_err()
        };
        assert!(broken(&|snapshots| _ = snapshots.open.pop_first()).contains("are counted"));
        assert!(broken(&|snapshots| snapshots.by_age.clear()).contains("0 will be given up"));
        assert!(broken(&|snapshots| snapshots.reported = (Epoch(6), Epoch(0))).contains("5 is published"));
        assert!(broken(&|snapshots| snapshots.reported = (Epoch(1), Epoch(2))).contains("1 and 2 are told"));
        let chunk = Arc::new(Chunk::new(GatewayId(1), ChunkNo(8)));
        let held = (chunk.clone(), Snapshot::Published(Epoch(0).into()));
        assert!(broken(&|snapshots| snapshots.held.push(held.clone())).contains("no shard is waited for"));
        let mut snapshots = snapshots();
        assert!(snapshots.hold(&chunk, &held.1, &mut out));
        assert_eq!(snapshots.check(), Ok(()));
    }

    #[test]
    fn the_first_read_waits_for_all_shards_and_a_silence_ends_what_they_keep() {
        let mut snapshots = snapshots();
        let (chunk, wanted) =
            (Arc::new(Chunk::new(GatewayId(1), ChunkNo(7))), Snapshot::Published(Epoch(0).into()));
        snapshots.note_published(Epoch(5));
        let mut out = Outbox::default();
        assert!(
            !snapshots.report_low_watermark::<()>(true, &mut out),
            "nobody has read: no low watermark is told"
        );
        assert!(snapshots.hold(&chunk, &wanted, &mut out));
        assert_eq!(told(out), all("K"));
        let mut out = Outbox::default();
        assert!(snapshots.note_kept(SHARDS[0], Epoch(5)).is_empty());
        assert!(snapshots.note_kept(SHARDS[2], Epoch(9)).is_empty());
        snapshots.rest::<()>(&mut out);
        snapshots.rest::<()>(&mut out);
        assert!(snapshots.is_keeping(), "somebody waits");
        assert_eq!(snapshots.note_kept(SHARDS[1], Epoch(6)).len(), 1);
        assert_eq!((snapshots.earliest(), snapshots.kept()), (Epoch(9), Epoch(9)));
        assert!(!snapshots.hold(&chunk, &wanted, &mut out));
        snapshots.request_keeping(Some(NodeId(1)), &mut out);
        assert_eq!(told(out), [(SHARDS[2], "K".to_owned())], "to a node that was lost it is said again");
        let mut out = Outbox::default();
        snapshots.rest::<()>(&mut out);
        assert!(snapshots.is_keeping() && out.sends.is_empty(), "there was one since it was last asked");
        snapshots.rest::<()>(&mut out);
        assert_eq!((snapshots.is_keeping(), told(out)), (false, all("F")));
    }

    #[test]
    fn a_read_that_is_done_is_not_held_and_shards_that_say_nothing_hold_none_up() {
        let mut snapshots = snapshots();
        let chunk = |number| Arc::new(Chunk::new(GatewayId(1), ChunkNo(number)));
        for number in [7, 8] {
            assert!(snapshots.hold::<()>(&chunk(number), &Snapshot::Closed, &mut Outbox::default()));
        }
        snapshots.done((GatewayId(1), ChunkNo(7)));
        snapshots.note_kept(SHARDS[1], Epoch(3));
        let held: Vec<ChunkNo> = snapshots.hold_no_longer().iter().map(|(chunk, _)| chunk.number).collect();
        assert_eq!((held, snapshots.kept()), (vec![ChunkNo(8)], Epoch(3)));
        assert!(!snapshots.hold::<()>(&chunk(9), &Snapshot::Closed, &mut Outbox::default()));
        assert!(snapshots.note_kept(SHARDS[0], Epoch(4)).is_empty());
        assert_eq!(snapshots.kept(), Epoch(4));
    }
}
