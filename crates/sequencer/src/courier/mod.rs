//! The courier: everything that crosses partitions goes through the one of each node.
//!
//! Going out, it cuts the slices of this partition's batches for the others (calvin.md, section 4.1, rule 4) and
//! carries the letters of this node's shards. It *keeps* what it has sent until every node that may ask for it has said
//! that it needs it no more. Coming in, it puts the slices of all sequencers in the one order and hands them to the
//! shards, and hands on the letters. It *journals* what comes in, off the critical path.
//!
//! Keeping and journaling together are how a node comes back (calvin.md, section 4.13, where senders keep everything
//! until the receiver's next checkpoint): what it received and has on disk it executes again by itself, and what it
//! received last and has not, it asks for. *Progress* is the border: everything up to that epoch is executed, and all
//! that it came from is on this node's disk.
//!
//! When a node of this replica is lost and there is another replica, the lost one's twin there *stands in*: it sends us
//! what it has kept for our twin, which is the same (calvin.md, section 4.11).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_log::{LogWriter, Progress, in_space};
use ordain_model::wire::{self, Reader};
use ordain_model::{Batch, Epoch, Micros, PartitionId, Registry};
use ordain_role::{
    Address, Bug, Bugs, Bytes, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId, Topology,
    Wire,
};

use crate::interleave::{Interleave, Put};
use crate::message::{Letter, Message, Post, Sequencing};

/// How a courier is set up.
#[derive(Clone, Debug)]
pub struct CourierSettings {
    /// The cluster.
    pub topology: Topology,
    /// This very role; on the other nodes it has the same number.
    pub me: Address,
    /// The sequencer of this node.
    pub sequencer: Address,
    /// The shards of this node, in order.
    pub shards: Vec<Address>,
    /// How much is kept for nodes of other replicas at most, bytes; for those of its own replica, without which nothing
    /// goes on here either, it keeps what it must.
    pub kept_max: usize,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// The role.
#[derive(Debug)]
pub struct Courier<X> {
    settings: CourierSettings,
    registry: Arc<Registry>,
    partition: PartitionId,
    order: Interleave,
    /// The largest epoch that this partition's log has sealed.
    sealed: Epoch,
    /// What goes to each partition; nothing to this one.
    outgoing: Vec<Outgoing<X>>,
    /// Batches that were handed to the shards and are not executed by all, in order.
    handed: VecDeque<(Epoch, PartitionId)>,
    /// The last batch that each shard has executed.
    applied: BTreeMap<Address, (Epoch, PartitionId)>,
    /// The largest epoch of which, and of all before it, everything is executed here.
    progress: Epoch,
    /// The largest epoch that any sequencer has opened, as far as is known here.
    opened: Epoch,
    journal: Option<Journal>,
    /// Progress as it was told last.
    told: Epoch,
    /// The timer that ends a pause in telling is set.
    pausing: bool,
    /// Nodes that cannot be reached.
    lost: BTreeMap<NodeId, Option<NodeId>>,
    /// What the node had before it was stopped is being executed again: nothing leaves.
    is_rehearsing: bool,
    counts: Counts,
}

/// What goes to one partition.
#[derive(Debug)]
struct Outgoing<X> {
    /// In the order in which it was sent, by epoch.
    kept: VecDeque<(Epoch, usize, Post<X>)>,
    bytes: usize,
    /// Up to where something was thrown away although a node may still ask for it.
    forgotten: Epoch,
    /// The epoch of the last slice.
    last_slice: Epoch,
    /// Whom it is sent to at once: the node of this replica, and those for which this one stands in.
    to: Vec<NodeId>,
    /// Up to where each node that may ask needs nothing more.
    progress: BTreeMap<NodeId, Epoch>,
}

/// What has come in.
#[derive(Debug)]
struct Journal {
    writer: LogWriter,
    prefix: &'static str,
    /// What waits to be written, and the number of the entry that it will be.
    pending: Vec<u8>,
    next: Epoch,
    /// Progress at the time at which entries were appended; those that are durable may be told.
    marks: VecDeque<(Epoch, Epoch)>,
    /// Progress that everything durable allows for.
    durable: Epoch,
}

#[derive(Debug, Default)]
struct Counts {
    slices_out: u64,
    slices_in: u64,
    letters_out: u64,
    letters_in: u64,
    known: u64,
    gaps: u64,
    sent_again: u64,
    stood_in: u64,
}

/// What comes into a node from outside its partition, as the journal has kept it.
#[derive(Clone, Debug)]
pub enum Entrance<X> {
    /// From another node.
    Post(NodeId, Post<X>),
    /// How far another node was.
    Progress(NodeId, Epoch),
}

impl<X> Entrance<X> {
    /// The epoch that it opens, if it is a batch.
    pub fn opens(&self) -> Epoch {
        match self {
            Entrance::Post(_, Post::Slot { through, .. }) => *through,
            _ => Epoch(0),
        }
    }
}

const FLUSH: TimerId = TimerId(1);
const PROBE: TimerId = TimerId(2);
/// How long what has come in may wait to be written. Until then its sender keeps it.
const FLUSH_EVERY: Micros = Micros::from_millis(10);
/// So much is written at once.
const FLUSH_BYTES: usize = 256 << 10;
const PROBE_EVERY: Micros = Micros::from_millis(500);

impl<X: Letter> Courier<X> {
    /// A courier of a node that has received nothing yet.
    pub fn new(settings: CourierSettings, registry: Arc<Registry>) -> Courier<X> {
        let topology = &settings.topology;
        let (node, layout) = (settings.me.node, &topology.layout);
        let (replica, partition) = (topology.replica_of(node), topology.partition_of(node));
        let outgoing = (0..layout.partitions()).map(PartitionId).map(|to| Outgoing {
            kept: VecDeque::new(),
            bytes: 0,
            forgotten: Epoch(0),
            last_slice: Epoch(0),
            to: if to == partition { Vec::new() } else { vec![topology.node(replica, to)] },
            progress: topology.group(to).map(|node| (node, Epoch(0))).collect(),
        });
        Courier {
            order: Interleave::new(layout.partitions()),
            outgoing: outgoing.collect(),
            applied: settings.shards.iter().map(|shard| (*shard, (Epoch(0), PartitionId(0)))).collect(),
            partition,
            settings,
            registry,
            sealed: Epoch(0),
            handed: VecDeque::new(),
            progress: Epoch(0),
            opened: Epoch(0),
            journal: None,
            told: Epoch(0),
            pausing: false,
            lost: BTreeMap::new(),
            is_rehearsing: true,
            counts: Counts::default(),
        }
    }

    /// Reads an entry of a journal: what came in, in order.
    pub fn entrances(registry: &Registry, entry: &[u8]) -> Option<Vec<Entrance<X>>> {
        let mut bytes = Reader(entry);
        let mut entrances = Vec::new();
        while !bytes.is_empty() {
            let (kind, node) = (bytes.u8()?, NodeId(bytes.u16()?));
            entrances.push(match kind {
                0 => Entrance::Post(node, Post::decode(registry, bytes.bytes()?)?),
                1 => Entrance::Progress(node, Epoch(bytes.u64()?)),
                _ => return None,
            });
        }
        Some(entrances)
    }

    /// Takes note again of what came in before the node was stopped. What it asks for is for this node's own roles.
    pub fn rehearse(&mut self, entrance: Entrance<X>, out: &mut Outbox<Message<X>>) {
        match entrance {
            Entrance::Post(from, post) => self.receive(from, post, out),
            Entrance::Progress(node, epoch) => self.note_progress(node, epoch),
        }
        self.deliver(out);
    }

    /// What was to be executed again has been. From now on what comes in is kept in a journal, if there is one, and no
    /// batch of this partition up to `sealed` is still to come.
    pub fn begin(&mut self, journal: Option<(LogWriter, &'static str)>, sealed: Epoch) {
        self.is_rehearsing = false;
        self.sealed = self.sealed.max(sealed);
        self.order.put(self.partition, Epoch(0), self.sealed, None);
        self.journal = journal.map(|(writer, prefix)| Journal {
            next: writer.appended().next(),
            writer,
            prefix,
            pending: Vec::new(),
            marks: VecDeque::new(),
            durable: self.progress,
        });
    }

    /// The largest epoch of which, and of all before it, everything is executed here.
    pub fn progress(&self) -> Epoch {
        self.progress
    }

    fn partitions(&self) -> u16 {
        self.settings.topology.layout.partitions()
    }

    fn at(&self, node: NodeId) -> Address {
        Address { node, ..self.settings.me }
    }

    /// The other nodes of this replica.
    fn peers(&self) -> impl Iterator<Item = NodeId> + use<X> {
        let me = self.settings.me.node;
        self.settings.topology.replica(self.settings.topology.replica_of(me)).filter(move |node| *node != me)
    }

    fn is_peer(&self, node: NodeId) -> bool {
        self.settings.topology.replica_of(node) == self.settings.topology.replica_of(self.settings.me.node)
    }

    // ---- going out ---------------------------------------------------------------------------------------

    /// This partition has sealed a batch.
    fn sealed(&mut self, batch: Arc<Batch>, out: &mut Outbox<Message<X>>) {
        if batch.epoch <= self.sealed {
            return out.halt(format!("the log sealed epoch {} after {}", batch.epoch, self.sealed));
        }
        self.sealed = batch.epoch;
        for to in (0..self.partitions()).map(PartitionId).filter(|to| *to != self.partition) {
            let content = batch.encode_slice(to, &self.settings.topology.layout).map(Arc::new);
            let outgoing = &mut self.outgoing[usize::from(to.0)];
            let (sequencer, after, through) = (self.partition, outgoing.last_slice, batch.epoch);
            let size = content.as_ref().map_or(0, |content| content.len());
            let slot = Post::Slot { sequencer, after, through, content };
            if size > 0 {
                self.counts.slices_out += 1;
                outgoing.last_slice = batch.epoch;
                outgoing.keep(batch.epoch, size, slot.clone());
            }
            self.send(to, slot, out);
        }
        let content = (!batch.chunks.is_empty() || !batch.lookups.is_empty()).then(|| batch.clone());
        self.order.put(self.partition, Epoch(0), batch.epoch, content);
    }

    /// Sends something to whoever is to have what goes to a partition.
    fn send(&self, to: PartitionId, post: Post<X>, out: &mut Outbox<Message<X>>) {
        if self.is_rehearsing {
            return;
        }
        for node in &self.outgoing[usize::from(to.0)].to {
            out.send(self.at(*node), post.clone());
        }
    }

    /// A shard of this node tells one of another partition something.
    fn post(&mut self, to: u16, letter: X, out: &mut Outbox<Message<X>>) {
        let partition = self.settings.topology.layout.partition_of_shard(usize::from(to));
        let epoch = letter.epoch();
        self.counts.letters_out += 1;
        let post = Post::Letter { to, letter };
        let outgoing = &mut self.outgoing[usize::from(partition.0)];
        outgoing.keep(epoch, LETTER_BYTES, post.clone());
        if self.settings.bugs.has(Bug::LoseLetter) && self.counts.letters_out % 53 == 7 {
            return;
        }
        self.send(partition, post, out);
    }

    /// A node asks for everything after an epoch. One of another replica has lost its own source: this one stands in.
    /// What it has, it need not have on disk yet: it may ask for that again, so nothing is forgotten.
    fn resume(&mut self, node: NodeId, after: Epoch, out: &mut Outbox<Message<X>>) {
        let to = self.settings.topology.partition_of(node);
        let (at, sealed, sequencer) = (self.at(node), self.sealed, self.partition);
        let outgoing = &mut self.outgoing[usize::from(to.0)];
        if !outgoing.to.contains(&node) {
            self.counts.stood_in += 1;
            outgoing.to.push(node);
        }
        for (epoch, _, post) in &outgoing.kept {
            if *epoch > after {
                self.counts.sent_again += 1;
                out.send(at, post.clone());
            }
        }
        if outgoing.forgotten <= after {
            let after = outgoing.last_slice;
            out.send(at, Post::Slot { sequencer, after, through: sealed, content: None });
        }
        out.send(at, Post::Opened(self.opened));
    }

    /// A node needs nothing more up to an epoch.
    fn note_progress(&mut self, node: NodeId, epoch: Epoch) {
        let of = usize::from(self.settings.topology.partition_of(node).0);
        let Some(outgoing) = self.outgoing.get_mut(of) else { return };
        if let Some(known) = outgoing.progress.get_mut(&node) {
            *known = epoch.max(*known);
        }
        let own = self.settings.topology.replica_of(self.settings.me.node);
        outgoing.forget(&self.settings.topology, own, self.settings.kept_max);
    }

    // ---- coming in ---------------------------------------------------------------------------------------

    /// Takes something from another node, or again from the journal.
    fn receive(&mut self, from: NodeId, post: Post<X>, out: &mut Outbox<Message<X>>) {
        match post {
            Post::Slot { sequencer, after, through, content } => {
                self.take_slot(from, sequencer, (after, through), content, out);
            }
            Post::Letter { to, letter } => {
                let mine = self.settings.topology.layout.shards_of(self.partition);
                let shard = usize::from(to).checked_sub(mine.start).and_then(|n| self.settings.shards.get(n));
                let Some(shard) = shard.copied() else {
                    return out
                        .halt(format!("node {} sent a letter for shard {to}, which is not here", from.0));
                };
                self.counts.letters_in += 1;
                if !self.is_rehearsing {
                    self.write(from, &Post::Letter { to, letter: letter.clone() });
                }
                out.send(shard, Message::Engine(letter));
            }
            Post::Opened(epoch) => self.hear_of(epoch, out),
            Post::Progress(epoch) => {
                self.note_progress(from, epoch);
                if let Some(journal) = &mut self.journal {
                    wire::u8(&mut journal.pending, 1);
                    wire::u16(&mut journal.pending, from.0);
                    wire::u64(&mut journal.pending, epoch.0);
                }
            }
            Post::Resume(after) => self.resume(from, after, out),
            Post::Relieved => {
                let of = usize::from(self.settings.topology.partition_of(from).0);
                self.outgoing[of].to.retain(|node| *node != from);
            }
        }
    }

    fn take_slot(
        &mut self,
        from: NodeId,
        sequencer: PartitionId,
        (after, through): (Epoch, Epoch),
        content: Option<Arc<Vec<u8>>>,
        out: &mut Outbox<Message<X>>,
    ) {
        if sequencer == self.partition || sequencer.0 >= self.partitions() {
            return out.halt(format!("node {} sent a batch of partition {sequencer}", from.0));
        }
        // What is known or has a gap before it need not be looked into.
        let known = self.order.through(sequencer);
        if through <= known || after > known {
            self.counts.known += u64::from(through <= known);
            self.counts.gaps += u64::from(after > known);
            return;
        }
        let mut batch = None;
        if let Some(content) = &content {
            match Batch::decode(&self.registry, content) {
                Ok(b)
                    if (b.epoch, b.partition) == (through, sequencer)
                        && b.layout == self.layout_version() =>
                {
                    batch = Some(Arc::new(b));
                }
                Ok(_) => return out.halt(format!("node {} sent a batch that is not what it says", from.0)),
                Err(error) => return out.halt(format!("node {} sent a damaged batch: {error}", from.0)),
            }
        }
        if batch.is_some() && self.settings.bugs.has(Bug::SkipSlot) && through.0 % 41 == 11 {
            batch = None;
        }
        if self.order.put(sequencer, after, through, batch) == Put::New {
            self.counts.slices_in += 1;
            if !self.is_rehearsing {
                self.write(from, &Post::Slot { sequencer, after, through, content });
            }
        }
        self.hear_of(through, out);
    }

    fn layout_version(&self) -> u32 {
        self.settings.topology.layout.version()
    }

    /// Some sequencer has opened an epoch.
    fn hear_of(&mut self, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if epoch > self.opened {
            self.opened = epoch;
            if !self.is_rehearsing && epoch > self.sealed {
                out.send(self.settings.sequencer, Sequencing::Reached(epoch));
            }
        }
    }

    /// Hands the shards what has its turn, and notes how far they are.
    fn deliver(&mut self, out: &mut Outbox<Message<X>>) {
        while let Some(batch) = self.order.pop() {
            let mut next = vec![batch];
            if self.settings.bugs.has(Bug::WrongInterleave) && next[0].epoch.0 % 5 == 2 {
                next.extend(self.order.pop());
                next.reverse();
            }
            for batch in next {
                self.handed.push_back((batch.epoch, batch.partition));
                for shard in &self.settings.shards {
                    out.send(*shard, Sequencing::Sealed(batch.clone()));
                }
            }
        }
        let slowest = self.applied.values().min().copied().unwrap_or_default();
        while self.handed.front().is_some_and(|batch| *batch <= slowest) {
            self.handed.pop_front();
        }
        let unfinished = self.handed.front().map_or(Epoch(u64::MAX), |batch| Epoch(batch.0.0 - 1));
        let progress = self.order.passed().min(unfinished);
        if progress > self.progress {
            self.progress = progress;
            let partition = self.partition;
            out.send(self.settings.sequencer, Sequencing::Applied { epoch: progress, partition });
        }
    }

    // ---- the journal -------------------------------------------------------------------------------------

    fn write(&mut self, from: NodeId, post: &Post<X>) {
        let Some(journal) = &mut self.journal else { return };
        let out = &mut journal.pending;
        wire::u8(out, 0);
        wire::u16(out, from.0);
        let at = out.len();
        wire::u32(out, 0);
        post.encode(out);
        let len = (out.len() - at - 4) as u32;
        out[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }

    /// Writes what has come in, and tells how far this node is.
    fn flush(&mut self, out: &mut Outbox<Message<X>>) {
        let durable = match &mut self.journal {
            None => self.progress,
            Some(journal) => {
                if let Err(refusal) = journal.append(self.progress) {
                    return out.halt(format!("the journal refused an entry: {refusal}"));
                }
                journal.ask(out);
                journal.durable
            }
        };
        if durable > self.told {
            self.told = durable;
            // Nodes of other replicas too: they keep what they may have to send here.
            let topology = &self.settings.topology;
            let others = (0..topology.nodes()).map(NodeId);
            for node in others.filter(|node| topology.partition_of(*node) != self.partition) {
                out.send(self.at(node), Post::Progress(durable));
            }
        }
    }

    /// Flushes soon if there is anything to flush, at once if it is much.
    fn pace(&mut self, out: &mut Outbox<Message<X>>) {
        let (waits, much) = match &self.journal {
            None => (self.progress > self.told, false),
            Some(journal) => (
                !journal.pending.is_empty() || self.progress > self.told,
                journal.pending.len() >= FLUSH_BYTES,
            ),
        };
        if much {
            self.flush(out);
        } else if waits && !self.pausing {
            self.pausing = true;
            out.set_timer(FLUSH, FLUSH_EVERY);
        }
    }

    // ---- peers -------------------------------------------------------------------------------------------

    fn peer_changed(&mut self, PeerChange { node, state }: PeerChange, out: &mut Outbox<Message<X>>) {
        let topology = &self.settings.topology;
        if node == self.settings.me.node || topology.partition_of(node) == self.partition {
            return;
        }
        match state {
            PeerState::Lost => {
                if self.lost.insert(node, None).is_none() {
                    self.find_stand_ins(out);
                }
            }
            PeerState::Fresh | PeerState::Back => {
                let stand_in = self.lost.remove(&node).flatten();
                if let Some(stand_in) = stand_in {
                    out.send(self.at(stand_in), Post::Relieved);
                }
                if state == PeerState::Fresh {
                    self.meet(node, out);
                }
                self.find_stand_ins(out);
            }
        }
    }

    /// A new stream has begun to another node: what was under way is lost.
    fn meet(&mut self, node: NodeId, out: &mut Outbox<Message<X>>) {
        if self.is_peer(node) {
            out.send(self.at(node), Post::Resume(self.progress));
            return;
        }
        // Whoever it stood in for will be said again.
        let of = usize::from(self.settings.topology.partition_of(node).0);
        self.outgoing[of].to.retain(|to| *to != node);
        for stand_in in self.lost.values_mut().filter(|stand_in| **stand_in == Some(node)) {
            *stand_in = None;
        }
        out.send(self.at(node), Post::Progress(self.told));
    }

    /// For every lost peer without a stand-in, asks one of its twins that can be reached.
    fn find_stand_ins(&mut self, out: &mut Outbox<Message<X>>) {
        let topology = self.settings.topology.clone();
        let peers: Vec<NodeId> = self.peers().collect();
        for node in peers {
            let Some(stand_in) = self.lost.get(&node) else { continue };
            if stand_in.is_some_and(|stand_in| !self.lost.contains_key(&stand_in)) {
                continue;
            }
            let mut twins = topology.group(topology.partition_of(node));
            let found = twins.find(|twin| *twin != node && !self.lost.contains_key(twin));
            if let Some(twin) = found {
                out.send(self.at(twin), Post::Resume(self.progress));
            }
            self.lost.insert(node, found);
        }
    }
}

/// What a letter is taken to weigh: its bytes are known only to those who encode it.
const LETTER_BYTES: usize = 256;

impl<X> Outgoing<X> {
    fn keep(&mut self, epoch: Epoch, bytes: usize, post: Post<X>) {
        self.bytes += bytes;
        self.kept.push_back((epoch, bytes, post));
    }

    /// Forgets what nobody will ask for; and beyond `most` bytes, what only nodes of other replicas may.
    fn forget(&mut self, topology: &Topology, own: ordain_role::ReplicaId, most: usize) {
        let all = self.progress.values().min().copied().unwrap_or_default();
        let near = self.progress.iter().filter(|(node, _)| topology.replica_of(**node) == own);
        let near = near.map(|(_, epoch)| *epoch).min().unwrap_or_default();
        while let Some((epoch, bytes, _)) = self.kept.front() {
            let too_much = self.bytes > most && *epoch <= near;
            if *epoch > all && !too_much {
                return;
            }
            if *epoch > all {
                self.forgotten = self.forgotten.max(*epoch);
            }
            self.bytes -= bytes;
            self.kept.pop_front();
        }
    }
}

impl Journal {
    /// Makes an entry of what waits. Progress at this time may be told once it is durable.
    fn append(&mut self, progress: Epoch) -> Result<(), ordain_log::AppendError> {
        if !self.pending.is_empty() {
            let entry = std::mem::take(&mut self.pending);
            self.writer.append(self.next, 0, vec![Bytes::Owned(entry)])?;
            self.marks.push_back((self.next, progress));
            self.next = self.next.next();
        } else if self.marks.is_empty() {
            self.durable = self.durable.max(progress);
        }
        Ok(())
    }

    fn ask<X>(&mut self, out: &mut Outbox<Message<X>>) {
        if let Some(request) = self.writer.next_request() {
            out.disk(in_space(request, self.prefix));
        }
    }

    fn done(&mut self) {
        while let Some((number, progress)) = self.marks.front() {
            if *number > self.writer.durable() {
                return;
            }
            self.durable = self.durable.max(*progress);
            self.marks.pop_front();
        }
    }
}

impl<X: Letter> Role for Courier<X> {
    type Message = Message<X>;

    fn handle(&mut self, _now: Now, event: Event<Message<X>>, out: &mut Outbox<Message<X>>) {
        match event {
            Event::Message { from, message } => match message {
                Message::Sequencing(Sequencing::Sealed(batch)) => self.sealed(batch, out),
                Message::Sequencing(Sequencing::Applied { epoch, partition }) => {
                    if let Some(applied) = self.applied.get_mut(&from) {
                        *applied = (epoch, partition).max(*applied);
                    }
                }
                Message::Sequencing(expired @ Sequencing::Expired { .. }) => {
                    out.send(self.settings.sequencer, expired);
                }
                Message::Post(Post::Opened(epoch)) if from.node == self.settings.me.node => {
                    self.opened = self.opened.max(epoch);
                    self.peers().for_each(|node| out.send(self.at(node), Post::Opened(epoch)));
                }
                Message::Post(Post::Letter { to, letter }) if from.node == self.settings.me.node => {
                    self.post(to, letter, out);
                }
                Message::Post(post) => self.receive(from.node, post, out),
                Message::Peer(change) => self.peer_changed(change, out),
                _ => out.halt("the courier was sent a message that is not for it"),
            },
            Event::Disk(done) => {
                if let Some(journal) = &mut self.journal {
                    match journal.writer.done(&done) {
                        Some(Progress::Full { .. }) => out.set_timer(PROBE, PROBE_EVERY),
                        Some(Progress::Failed { reason }) => {
                            return out.halt(format!("the journal of what comes in failed: {reason}"));
                        }
                        Some(Progress::Durable(_)) | None => {}
                    }
                    journal.done();
                    journal.ask(out);
                }
            }
            Event::Timer(FLUSH) => {
                self.pausing = false;
                self.flush(out);
            }
            Event::Timer(PROBE) => {
                if let Some(journal) = &mut self.journal {
                    journal.writer.retry();
                    journal.ask(out);
                }
            }
            Event::Stop => {
                self.flush(out);
                if let Some(journal) = &mut self.journal {
                    journal.writer.mark();
                    journal.ask(out);
                }
            }
            Event::Start | Event::Timer(_) => {}
        }
        self.deliver(out);
        self.pace(out);
    }

    fn name(&self) -> &'static str {
        "courier"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let kept: usize = self.outgoing.iter().map(|outgoing| outgoing.bytes).sum();
        let counts = &self.counts;
        report("ordain_courier_progress_epoch", self.progress.0 as f64);
        report("ordain_courier_durable_epoch", self.told.0 as f64);
        report("ordain_courier_sealed_epoch", self.sealed.0 as f64);
        report("ordain_courier_kept_bytes", kept as f64);
        report("ordain_courier_waiting_batches", self.order.waiting() as f64);
        report("ordain_courier_unfinished_batches", self.handed.len() as f64);
        report("ordain_courier_lost_nodes", self.lost.len() as f64);
        report("ordain_courier_slices_sent_total", counts.slices_out as f64);
        report("ordain_courier_slices_received_total", counts.slices_in as f64);
        report("ordain_courier_letters_sent_total", counts.letters_out as f64);
        report("ordain_courier_letters_received_total", counts.letters_in as f64);
        report("ordain_courier_duplicates_total", counts.known as f64);
        report("ordain_courier_gaps_total", counts.gaps as f64);
        report("ordain_courier_sent_again_total", counts.sent_again as f64);
        report("ordain_courier_stood_in_total", counts.stood_in as f64);
    }
}
