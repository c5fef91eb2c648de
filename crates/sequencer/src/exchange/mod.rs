//! The exchange: everything that crosses partitions goes through the one of each node.
//!
//! Going out, it cuts the slices of this partition's batches for the others (calvin.md, section 4.1, rule 4) and
//! carries the remote results of this node's shards. It *keeps* what it has sent until every node that may ask for it has said
//! that it needs it no more. Coming in, it puts the slices of all sequencers in the one order and hands them to the
//! shards, and hands on the remote results. It *journals* what comes in, off the critical path.
//!
//! Keeping and journaling together are how a node comes back (calvin.md, section 4.13, where senders keep everything
//! until the receiver's next checkpoint): what it received and has on disk it executes again by itself, and what it
//! received last and has not, it asks for. *Progress* is the border: everything up to that epoch is executed, and all
//! that it came from is on this node's disk.
//!
//! When a node of this replica is lost and there is another replica, the lost one's member there *stands in*: it sends us
//! what it has kept for our member, which is the same (calvin.md, section 4.11), until the lost one is back and up to date.
//!
//! A node that lacks what nobody keeps any more, because it was away for too long or has lost its disk, *fetches* it from
//! the journal of a member (module `lack`).

mod gate;
mod journal;
mod lack;
mod outgoing;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_log::Progress;
use ordain_model::{Batch, Epoch, Layouts, Micros, PartitionId, Registry};
use ordain_replication::{Configuration, Covered, Held, LeadershipRecords, Ship};
use ordain_role::{
    Address, Bug, Bugs, DiskDone, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId, Topology,
    Wire,
};

use crate::interleave::{Interleave, Put};
use crate::message::{Log, Message, Post, RemoteResult, Saving, Sequencing};

pub use journal::{Counting, JournalRecord, Opened};

use gate::Gate;
use journal::Journal;
use lack::{Lack, Reading};
use outgoing::{Forgotten, Outgoing, Piece};

/// How an exchange is set up.
#[derive(Clone, Debug)]
pub struct ExchangeSettings {
    /// The cluster.
    pub topology: Topology,
    /// This very role; on the other nodes it has the same number.
    pub me: Address,
    /// The sequencer of this node.
    pub sequencer: Address,
    /// Who gets a checkpoint for a node that is too far behind, if there is such a role.
    pub checkpointer: Option<Address>,
    /// The shards of this node, in order.
    pub shards: Vec<Address>,
    /// How much is kept for the nodes of a partition that are behind the majority of them, bytes at most. What the
    /// majority of them has not on disk yet is kept in any case.
    pub kept_max: usize,
    /// About how many bytes the journal may have before what members that are away may want goes, once a checkpoint covers it.
    pub keep_bytes: u64,
    /// About how many bytes are sent again, read again or written at once at most. A link has room for several times as
    /// many.
    pub piece: usize,
    /// How often this node has started over, where primaries may change.
    pub incarnation: Option<u64>,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

/// The role.
#[derive(Debug)]
pub struct Exchange<X> {
    settings: ExchangeSettings,
    registry: Arc<Registry>,
    partition: PartitionId,
    /// By which batches are divided: by the map of each chunk, whether or not this node has come to it.
    layouts: Layouts,
    order: Interleave,
    /// The largest epoch that this partition's log has sealed.
    sealed: Epoch,
    /// What is of this epoch or before was executed before this began.
    begun: Epoch,
    /// What goes to each partition; nothing to this one.
    outgoing: Vec<Outgoing<X>>,
    /// Batches that were handed to the shards and are not executed by all, in order.
    handed: VecDeque<(Epoch, PartitionId)>,
    /// The epoch up to which the shards have been told that they have all.
    passed: Epoch,
    /// The last batch that each shard has executed.
    applied: BTreeMap<Address, (Epoch, PartitionId)>,
    /// The largest epoch of which, and of all before it, everything is executed here.
    progress: Epoch,
    /// The largest epoch that any sequencer has opened, as far as is known here.
    opened: Epoch,
    journal: Option<Journal>,
    /// Progress as far as all that it came from is on disk.
    durable: Epoch,
    /// How much of that the other nodes of this replica have been told, and how much all that keep something for this one.
    told_peers: Epoch,
    told_all: Epoch,
    /// The timer that ends a pause in writing is set.
    pausing: bool,
    /// The timer that ends a pause in telling is set.
    telling: bool,
    /// Nodes that cannot be reached.
    lost: BTreeSet<NodeId>,
    /// Who substitutes for the nodes of this replica that are lost, or are back and not up to date.
    substitutes: BTreeMap<NodeId, Substitute>,
    lack: Lack,
    /// Where primaries may change.
    gate: Option<Gate<X>>,
    /// The checkpointer waits until all that has come in up to an epoch is on disk.
    saving: Option<(Address, Epoch)>,
    /// What is said once what was written at that time is durable.
    owed: VecDeque<(Epoch, NodeId, Post<X>)>,
    covered: Covered,
    /// Where primaries may change: nothing up to here can be lost with one.
    certain: Epoch,
    /// What the node had before it was stopped is being executed again: nothing leaves.
    is_rehearsing: bool,
    counts: Counts,
}

/// Who sends what a node of this replica does not.
#[derive(Debug, Default)]
struct Substitute {
    /// A member of it, if one can be reached.
    node: Option<NodeId>,
    /// The lost one is back, and up to date when its progress is here.
    until: Option<Epoch>,
}

#[derive(Debug, Default)]
struct Counts {
    slices_out: u64,
    slices_in: u64,
    remote_results_out: u64,
    remote_results_in: u64,
    known: u64,
    gaps: u64,
    sent_again: u64,
    substituted: u64,
    fetched: u64,
    served: u64,
}

const FLUSH: TimerId = TimerId(1);
const PROBE: TimerId = TimerId(2);
/// A member's journal is looked at again.
const FETCH: TimerId = TimerId(3);
const FETCH_EVERY: Micros = Micros::from_millis(200);
/// Progress is told.
const TELL: TimerId = TimerId(4);
/// After how long it is told to those to whom nothing else goes. Until then they keep more than they need to.
const TELL_EVERY: Micros = Micros::from_millis(100);
/// How long what has come in may wait to be written. Until then its sender keeps it.
const FLUSH_EVERY: Micros = Micros::from_millis(10);
const PROBE_EVERY: Micros = Micros::from_millis(500);

impl<X: RemoteResult> Exchange<X> {
    /// An exchange of a node that has received nothing yet.
    pub fn new(settings: ExchangeSettings, registry: Arc<Registry>) -> Exchange<X> {
        let topology = &settings.topology;
        let (node, layout) = (settings.me.node, &topology.layout);
        let (replica, partition) = (topology.replica_of(node), topology.partition_of(node));
        let outgoing = (0..layout.partitions()).map(PartitionId).map(|to| {
            let near = (to != partition).then(|| topology.node(replica, to));
            Outgoing::new(topology.group(to), near)
        });
        let gate = settings.incarnation.map(|_| Gate::new(layout.partitions(), settings.bugs));
        Exchange {
            order: Interleave::new(layout.partitions()),
            outgoing: outgoing.collect(),
            applied: settings.shards.iter().map(|shard| (*shard, (Epoch(0), PartitionId(0)))).collect(),
            partition,
            layouts: Layouts::new(settings.topology.layout.clone()),
            settings,
            registry,
            sealed: Epoch(0),
            begun: Epoch(0),
            handed: VecDeque::new(),
            passed: Epoch(0),
            progress: Epoch(0),
            opened: Epoch(0),
            journal: None,
            durable: Epoch(0),
            told_peers: Epoch(0),
            told_all: Epoch(0),
            pausing: false,
            telling: false,
            lost: BTreeSet::new(),
            substitutes: BTreeMap::new(),
            lack: Lack::default(),
            gate,
            saving: None,
            owed: VecDeque::new(),
            covered: Covered::default(),
            certain: Epoch(0),
            is_rehearsing: true,
            counts: Counts::default(),
        }
    }

    /// Reads an entry of a journal: what came in, in order.
    pub fn journal_records(registry: &Registry, entry: &[u8]) -> Option<Vec<JournalRecord<X>>> {
        JournalRecord::read(registry, entry)
    }

    /// Takes note again of what came in before the node was stopped. What it asks for is for this node's own roles.
    pub fn replay(&mut self, journal_record: JournalRecord<X>, out: &mut Outbox<Message<X>>) {
        match journal_record {
            JournalRecord::Post(from, post) => self.receive(from, post, out),
            JournalRecord::Progress(node, epoch) => self.note_progress(node, epoch),
            JournalRecord::Certain(epoch) => self.certain = self.certain.max(epoch),
            JournalRecord::Incarnation(..) => {}
        }
        self.deliver(out);
    }

    /// The node begins where everything of an epoch and before was executed: it knows nothing of that any more, and
    /// will not be asked. To be said first.
    pub fn begin_after(&mut self, epoch: Epoch) {
        self.order = Interleave::after(self.partitions(), epoch);
        (self.begun, self.sealed, self.progress, self.durable) = (epoch, epoch, epoch, epoch);
        self.opened = epoch;
        self.outgoing.iter_mut().for_each(|outgoing| outgoing.begin_after(epoch));
    }

    /// What was to be executed again has been. From now on what comes in is kept in a journal, if there is one, and no
    /// batch of this partition up to `sealed` is still to come.
    pub fn begin(&mut self, journal: Option<Opened>, sealed: Epoch) {
        self.is_rehearsing = false;
        self.gate.iter_mut().for_each(|gate| gate.begin_after(self.begun));
        self.sealed = self.sealed.max(sealed);
        self.order.put(self.partition, Epoch(0), self.sealed, None);
        let certain = self.certain_progress();
        self.journal = journal.map(|opened| Journal::new(opened, certain));
        let durable = self.journal.as_ref().map_or(Epoch(0), |journal| journal.durable);
        self.durable = self.durable.max(durable);
        // Whoever is met is told.
        (self.told_peers, self.told_all) = (self.durable, self.durable);
    }

    /// The largest epoch of which, and of all before it, everything is executed here.
    pub fn progress(&self) -> Epoch {
        self.progress
    }

    /// So much of progress as nobody has to take back: others are told of no more, and keep the rest.
    fn certain_progress(&self) -> Epoch {
        let certain = self.gate.as_ref().map_or(Epoch(u64::MAX), |_| self.certain.max(self.begun));
        self.progress.min(certain)
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
        if batch.epoch <= self.begun {
            // Members know later than they execute what was agreed on.
            return;
        }
        if batch.epoch <= self.sealed {
            return out.halt(format!("the log sealed epoch {} after {}", batch.epoch, self.sealed));
        }
        self.sealed = batch.epoch;
        // Where a next primary may have to know it, all are told of every batch, and not only who takes part in it.
        let logged = self.gate.as_ref().map_or(0, |_| batch.count_logged());
        for to in (0..self.partitions()).map(PartitionId).filter(|to| *to != self.partition) {
            let content = batch.encode_slice(to, &mut self.layouts).map(Arc::new);
            let outgoing = &mut self.outgoing[usize::from(to.0)];
            let (sequencer, after, through) = (self.partition, outgoing.last_slice, batch.epoch);
            let size = content.as_ref().map_or(0, |content| content.len());
            let slot = Post::Slot { sequencer, after, through, logged, content };
            if size > 0 || logged > 0 {
                self.counts.slices_out += 1;
                outgoing.last_slice = batch.epoch;
                outgoing.keep(batch.epoch, size, slot.clone());
            }
            self.send(to, batch.epoch, slot, out);
        }
        self.tell_peers(out);
        let content = (!batch.chunks.is_empty() || !batch.lookups.is_empty()).then(|| batch.clone());
        self.order.put(self.partition, Epoch(0), batch.epoch, content);
    }

    /// Sends something of an epoch to whoever is to have what goes to a partition.
    fn send(&self, to: PartitionId, epoch: Epoch, post: Post<X>, out: &mut Outbox<Message<X>>) {
        if self.is_rehearsing {
            return;
        }
        for node in self.outgoing[usize::from(to.0)].receivers(epoch) {
            out.send(self.at(node), post.clone());
        }
    }

    /// A shard of this node tells one of another partition something.
    fn post(&mut self, to: u16, remote_result: Arc<X>, out: &mut Outbox<Message<X>>) {
        let partition = self.settings.topology.layout.partition_of_shard(usize::from(to));
        let (epoch, weight) = (remote_result.epoch(), remote_result.weight());
        self.counts.remote_results_out += 1;
        let post = Post::RemoteResult { to, remote_result };
        let outgoing = &mut self.outgoing[usize::from(partition.0)];
        outgoing.keep(epoch, weight, post.clone());
        if self.settings.bugs.has(Bug::LoseRemoteResult) && self.counts.remote_results_out % 53 == 7 {
            return;
        }
        self.send(partition, epoch, post, out);
    }

    fn outgoing_to(&mut self, node: NodeId) -> &mut Outgoing<X> {
        let partition = self.settings.topology.partition_of(node);
        &mut self.outgoing[usize::from(partition.0)]
    }

    /// A node asks for everything after an epoch. One of another replica has lost its own source: this one stands in.
    /// What it has, it need not have on disk yet: it may ask for that again, so nothing is forgotten.
    fn resume(&mut self, node: NodeId, after: Epoch, out: &mut Outbox<Message<X>>) {
        let outgoing = self.outgoing_to(node);
        let is_new = !outgoing.serves(node);
        match outgoing.ask_again(node, after) {
            Ok(()) => {
                self.counts.substituted += u64::from(is_new && !self.is_peer(node));
                self.go_on(node, out);
            }
            Err(Forgotten(epoch)) => out.send(self.at(node), Post::Forgotten(epoch)),
        }
    }

    /// Sends a node the next of what it has asked for.
    fn go_on(&mut self, node: NodeId, out: &mut Outbox<Message<X>>) {
        let (at, sealed, sequencer, most) = (self.at(node), self.sealed, self.partition, self.settings.piece);
        let size = |post: &Post<X>| {
            let mut bytes = Vec::new();
            post.encode(&mut bytes);
            bytes.len()
        };
        let outgoing = self.outgoing_to(node);
        let piece = outgoing.next_piece(node, most, size);
        let after = outgoing.last_slice;
        match piece {
            Ok(Some(Piece { posts, is_last })) => {
                self.counts.sent_again += posts.len() as u64;
                posts.into_iter().for_each(|post| out.send(at, post));
                if !is_last {
                    return out.send(at, Post::Pause);
                }
                out.send(at, Post::Slot { sequencer, after, through: sealed, logged: 0, content: None });
                out.send(at, Post::Opened(self.opened));
            }
            Ok(None) => {}
            Err(Forgotten(epoch)) => out.send(at, Post::Forgotten(epoch)),
        }
    }

    /// A node needs nothing more up to an epoch.
    fn note_progress(&mut self, node: NodeId, epoch: Epoch) {
        let most = self.settings.kept_max;
        self.outgoing_to(node).note_progress(node, epoch, most);
    }

    // ---- coming in ---------------------------------------------------------------------------------------

    /// Something has come from another node.
    fn admit(&mut self, from: NodeId, post: Post<X>, out: &mut Outbox<Message<X>>) {
        let admitted = match &mut self.gate {
            None => Some(post),
            Some(gate) => gate.admit(from, post),
        };
        admitted.into_iter().for_each(|post| self.receive(from, post, out));
    }

    /// Takes something from another node, or again from the journal.
    fn receive(&mut self, from: NodeId, post: Post<X>, out: &mut Outbox<Message<X>>) {
        match post {
            Post::Slot { sequencer, after, through, logged, content } => {
                if self.take_slot(from, sequencer, (after, through), (logged, content), out) {
                    self.hear_of(through, out);
                }
            }
            Post::RemoteResult { to, remote_result } => self.take_remote_result(from, to, remote_result, out),
            Post::Opened(epoch) => self.hear_of(epoch, out),
            Post::Progress(epoch) => {
                self.note_progress(from, epoch);
                if let Some(journal) = &mut self.journal {
                    journal.note_progress(from, epoch);
                }
                self.relieve(from, out);
            }
            Post::Resume(after) => self.resume(from, after, out),
            Post::Relieved => self.outgoing_to(from).leave(from),
            Post::Forgotten(epoch) => {
                self.lack.note(from, epoch);
                self.fill_lack(out);
            }
            Post::Incarnation(_) | Post::Terms(_) => {}
            Post::Pause => self.owe(from, Post::Continue, out),
            Post::Continue => self.go_on(from, out),
            Post::Fetch { from: entry, after } => self.serve(from, (entry, after), out),
            Post::Fetched { from: entry, next, covers, journal_records } => {
                self.take_fetched(from, (entry, next), covers, &journal_records, out);
            }
            Post::Trimmed(epoch) => self.come_too_late(from, epoch, out),
        }
    }

    fn take_remote_result(
        &mut self,
        from: NodeId,
        to: u16,
        remote_result: Arc<X>,
        out: &mut Outbox<Message<X>>,
    ) {
        let mine = self.settings.topology.layout.shards_of(self.partition);
        let shard = usize::from(to).checked_sub(mine.start).and_then(|n| self.settings.shards.get(n));
        let Some(shard) = shard.copied() else {
            return out
                .halt(format!("node {} sent a remote result for shard {to}, which is not here", from.0));
        };
        self.counts.remote_results_in += 1;
        self.gate.iter_mut().for_each(|gate| gate.note_evidence(remote_result.last()));
        if remote_result.epoch() <= self.progress {
            // Somebody tells again what is done with.
            self.counts.known += 1;
            return;
        }
        if let Some(journal) = self.journal.as_mut().filter(|_| !self.is_rehearsing) {
            journal.note_post(from, &Post::RemoteResult { to, remote_result: remote_result.clone() });
        }
        out.send(shard, Message::Engine(Arc::unwrap_or_clone(remote_result)));
    }

    /// Takes what a sequencer has sealed, and says whether it was something new.
    fn take_slot(
        &mut self,
        from: NodeId,
        sequencer: PartitionId,
        (after, through): (Epoch, Epoch),
        (logged, content): (u32, Option<Arc<Vec<u8>>>),
        out: &mut Outbox<Message<X>>,
    ) -> bool {
        if sequencer == self.partition || sequencer.0 >= self.partitions() {
            out.halt(format!("node {} sent a batch of partition {sequencer}", from.0));
            return false;
        }
        if let Some(gate) = self.gate.as_mut().filter(|_| self.is_rehearsing && through <= self.begun) {
            // A checkpoint covers it, so it is not executed again. The partition's next primary may have to know it still.
            gate.note_slot(
                sequencer,
                after,
                Held { epoch: through, parts: logged, content: content.clone() },
            );
        }
        // What is known or has a gap before it need not be looked into.
        let known = self.order.through(sequencer);
        if through <= known || after > known {
            self.counts.known += u64::from(through <= known);
            self.counts.gaps += u64::from(after > known);
            return false;
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
                Ok(_) => {
                    out.halt(format!("node {} sent a batch that is not what it says", from.0));
                    return false;
                }
                Err(error) => {
                    out.halt(format!("node {} sent a damaged batch: {error}", from.0));
                    return false;
                }
            }
        }
        if batch.is_some() && self.settings.bugs.has(Bug::SkipSlot) && through.0 % 41 == 11 {
            batch = None;
        }
        if self.order.put(sequencer, after, through, batch) == Put::New {
            self.counts.slices_in += 1;
            if let Some(gate) = &mut self.gate {
                gate.note_slot(
                    sequencer,
                    after,
                    Held { epoch: through, parts: logged, content: content.clone() },
                );
            }
            if let Some(journal) = self.journal.as_mut().filter(|_| !self.is_rehearsing) {
                journal.note_post::<X>(from, &Post::Slot { sequencer, after, through, logged, content });
            }
        }
        true
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
                    out.send(*shard, Log::Sealed(batch.clone()));
                }
            }
        }
        if self.order.passed() > self.passed {
            self.passed = self.order.passed();
            self.settings.shards.iter().for_each(|shard| out.send(*shard, Sequencing::Passed(self.passed)));
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
            // A node that was still executing what it has on disk when it asked, has not lacked it after all.
            for node in self.lack.settled(progress) {
                out.send(self.at(node), Post::Resume(self.lack.reach(progress)));
            }
        }
    }

    // ---- the journal -------------------------------------------------------------------------------------

    /// Writes what has come in, and tells how far this node is.
    fn flush(&mut self, out: &mut Outbox<Message<X>>) {
        let progress = self.certain_progress();
        let durable = match &mut self.journal {
            None => progress,
            Some(journal) => {
                if let Err(refusal) = journal.append(progress) {
                    return out.halt(format!("the journal refused an entry: {refusal}"));
                }
                journal.ask(out);
                journal.durable
            }
        };
        self.durable = self.durable.max(durable);
    }

    /// Tells the other nodes of this replica how far this one is. What goes to them anyway takes it along, so it costs
    /// next to nothing.
    fn tell_peers(&mut self, out: &mut Outbox<Message<X>>) {
        if self.durable > self.told_peers && !self.is_rehearsing {
            self.told_peers = self.durable;
            self.peers().for_each(|node| out.send(self.at(node), Post::Progress(self.durable)));
        }
    }

    /// Tells everybody who keeps what this node may ask for: nodes of other replicas too, which may have to stand in.
    fn tell_all(&mut self, out: &mut Outbox<Message<X>>) {
        self.tell_peers(out);
        if self.durable == std::mem::replace(&mut self.told_all, self.durable) {
            return;
        }
        let topology = &self.settings.topology;
        let others = (0..topology.nodes()).map(NodeId);
        let others = others.filter(|node| topology.partition_of(*node) != self.partition);
        for node in others.filter(|node| !self.is_peer(*node)) {
            out.send(self.at(node), Post::Progress(self.durable));
        }
    }

    /// Flushes soon if there is anything to flush, at once if it is much; and sees to it that progress is told.
    fn pace(&mut self, out: &mut Outbox<Message<X>>) {
        let is_ahead = self.certain_progress() > self.durable;
        let (waits, much) = match &self.journal {
            None => (is_ahead, false),
            Some(journal) => {
                (!journal.pending.is_empty() || is_ahead, journal.pending.len() >= self.settings.piece / 4)
            }
        };
        if much {
            self.flush(out);
        } else if waits && !self.pausing {
            self.pausing = true;
            out.set_timer(FLUSH, FLUSH_EVERY);
        }
        if self.durable > self.told_all && !self.telling && !self.is_rehearsing {
            self.telling = true;
            out.set_timer(TELL, TELL_EVERY);
        }
    }

    /// Says something once all that has come in so far is on disk: so nobody sends more than this node can write.
    fn owe(&mut self, to: NodeId, post: Post<X>, out: &mut Outbox<Message<X>>) {
        self.flush(out);
        let number = self.journal.as_ref().map_or(Epoch(0), |journal| journal.writer.appended());
        self.owed.push_back((number, to, post));
        self.pay(out);
    }

    fn pay(&mut self, out: &mut Outbox<Message<X>>) {
        let durable = self.journal.as_ref().map_or(Epoch(0), |journal| journal.writer.durable());
        while let Some((_, to, post)) = self.owed.pop_front_if(|(number, ..)| *number <= durable) {
            out.send(self.at(to), post);
        }
    }

    fn disk(&mut self, done: &DiskDone, out: &mut Outbox<Message<X>>) {
        let most = self.settings.piece;
        let Some(journal) = &mut self.journal else { return };
        if Journal::is_read(done) {
            match journal.was_read(done, (&self.registry, most), out) {
                Ok(Some((member, piece))) => out.send(self.at(member), piece),
                Ok(None) => {}
                Err(reason) => out.halt(format!("the journal cannot be read again: {reason}")),
            }
            return;
        }
        match journal.writer.done(done) {
            Some(Progress::Full { .. }) => out.set_timer(PROBE, PROBE_EVERY),
            Some(Progress::Failed { reason }) => {
                return out.halt(format!("the journal of what comes in failed: {reason}"));
            }
            Some(Progress::Durable(_)) | None => {}
        }
        journal.done();
        self.trim(out);
        self.journal.iter_mut().for_each(|journal| journal.ask(out));
        self.pay(out);
    }

    // ---- what nobody keeps any more ----------------------------------------------------------------------

    /// Gets what is lacking from a member, and asks those again who keep what comes after.
    fn fill_lack(&mut self, out: &mut Outbox<Message<X>>) {
        let reach = self.lack.reach(self.progress);
        for node in self.lack.settled(self.progress) {
            out.send(self.at(node), Post::Resume(reach));
        }
        let members = self.members();
        if let Some(Reading { member, from, after }) = self.lack.begin(&members, self.progress) {
            out.send(self.at(member), Post::Fetch { from, after });
        }
    }

    /// A member wants some of the journal.
    fn serve(&mut self, member: NodeId, wanted: (Epoch, Epoch), out: &mut Outbox<Message<X>>) {
        if self.settings.topology.partition_of(member) != self.partition {
            return out.halt(format!("node {} asks for a journal, and is no member", member.0));
        }
        self.counts.served += 1;
        // Of one that lacks something itself, a member would get what it has sent, and the other way round, for ever.
        let journal = self.journal.as_mut().filter(|_| self.lack.up_to() == Epoch(0));
        let piece = match journal {
            Some(journal) => journal.read(member, wanted, (&self.registry, self.settings.piece), out),
            None => {
                let (from, _) = wanted;
                let (covers, journal_records) = (Some(Epoch(0)), Arc::default());
                Ok(Some(Post::Fetched { from, next: from, covers, journal_records }))
            }
        };
        match piece {
            Ok(piece) => piece.into_iter().for_each(|piece| out.send(self.at(member), piece)),
            Err(reason) => out.halt(format!("the journal cannot be read again: {reason}")),
        }
    }

    /// A piece of a member's journal has come.
    fn take_fetched(
        &mut self,
        member: NodeId,
        numbers: (Epoch, Epoch),
        covers: Option<Epoch>,
        journal_records: &[u8],
        out: &mut Outbox<Message<X>>,
    ) {
        let Ok(more) = self.lack.take(member, numbers, covers) else { return };
        let Some(journal_records) = JournalRecord::<X>::read(&self.registry, journal_records) else {
            return out.halt(format!("node {} sent a journal that cannot be read", member.0));
        };
        self.counts.fetched += journal_records.len() as u64;
        for journal_record in journal_records {
            match journal_record {
                JournalRecord::Post(from, Post::Slot { sequencer, after, through, logged, content }) => {
                    self.take_slot(from, sequencer, (after, through), (logged, content), out);
                }
                JournalRecord::Post(from, Post::RemoteResult { to, remote_result }) => {
                    self.take_remote_result(from, to, remote_result, out)
                }
                // How far others were then is not how far they are, and what is certain this node hears itself.
                JournalRecord::Post(..)
                | JournalRecord::Progress(..)
                | JournalRecord::Certain(_)
                | JournalRecord::Incarnation(..) => {}
            }
        }
        match more {
            Some(Reading { from, after, .. }) => self.owe(member, Post::Fetch { from, after }, out),
            None => {
                // Whoever has no more may have some later, and another one may have more.
                for node in self.lack.settled(self.progress) {
                    out.send(self.at(node), Post::Resume(self.lack.reach(self.progress)));
                }
                self.ask_for_checkpoint(out);
                out.set_timer(FETCH, FETCH_EVERY);
            }
        }
    }

    /// A member's journal does not go back as far as this node needs it to. Another one's may.
    fn come_too_late(&mut self, member: NodeId, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if self.lack.refused(member, epoch).is_ok() {
            self.ask_for_checkpoint(out);
            out.set_timer(FETCH, FETCH_EVERY);
        }
    }

    /// If no member that can be reached has what is lacking, only a checkpoint helps.
    fn ask_for_checkpoint(&self, out: &mut Outbox<Message<X>>) {
        if let (Some(epoch), Some(to)) = (self.lack.beyond_help(&self.members()), self.settings.checkpointer)
        {
            out.send(to, Log::Behind(epoch));
        }
    }

    /// The other nodes of this partition that can be reached.
    fn members(&self) -> Vec<NodeId> {
        let me = self.settings.me.node;
        let members = self.settings.topology.group(self.partition);
        members.filter(|member| *member != me && !self.lost.contains(member)).collect()
    }

    /// Lets go what a checkpoint covers.
    fn trim(&mut self, out: &mut Outbox<Message<X>>) {
        let (most, keep_bytes) = (self.settings.kept_max, self.settings.keep_bytes);
        let Some(journal) = &mut self.journal else { return };
        let covered = self.covered.through(journal.writer.stats().bytes, keep_bytes);
        for (member, post) in journal.trim(covered, most) {
            out.send(self.at(member), post);
        }
    }

    /// The configuration service has spoken. What was held back and is to be taken now.
    fn told(
        &mut self,
        leadership_records: Arc<LeadershipRecords>,
        out: &mut Outbox<Message<X>>,
    ) -> Vec<(NodeId, Post<X>)> {
        let Some(gate) = &mut self.gate else { return Vec::new() };
        let before = gate.terms();
        let released = gate.told(leadership_records);
        let terms = gate.terms();
        if terms != before {
            // Ahead of all that may be made of it.
            let nodes = (0..self.settings.topology.nodes()).map(NodeId);
            let others = nodes.filter(|node| *node != self.settings.me.node);
            others.for_each(|node| out.send(self.at(node), Post::Terms(terms)));
        }
        released
    }

    /// A candidate asks what is left of a partition's batches.
    fn collect(
        &self,
        candidate: Address,
        (partition, term): (PartitionId, u64),
        after: Epoch,
        out: &mut Outbox<Message<X>>,
    ) {
        let Some(gate) = self.gate.as_ref().filter(|_| partition.0 < self.partitions()) else { return };
        let through = if partition == self.partition { Epoch(0) } else { self.order.through(partition) };
        if let Some(answer) = gate.collect((partition, term), after, through, self.settings.piece) {
            out.send(candidate, answer);
        }
    }

    // ---- peers -------------------------------------------------------------------------------------------

    fn peer_changed(&mut self, PeerChange { node, state }: PeerChange, out: &mut Outbox<Message<X>>) {
        if node == self.settings.me.node {
            return;
        }
        if state == PeerState::Lost {
            // The stream may be the same when it is back: whoever waits for an answer then still does.
            self.lost.insert(node);
            self.lack.leave(node);
        } else {
            self.lost.remove(&node);
        }
        if state == PeerState::Fresh {
            if let Some((incarnation, gate)) = self.settings.incarnation.zip(self.gate.as_ref()) {
                out.send(self.at(node), Post::Incarnation(incarnation));
                out.send(self.at(node), Post::Terms(gate.terms()));
            }
            // What was asked may not have arrived, nor the answer.
            self.lack.drop(node);
            self.owed.retain(|(_, to, _)| *to != node);
            self.journal.iter_mut().for_each(|journal| journal.leave(node));
        }
        if self.settings.topology.partition_of(node) != self.partition {
            if self.is_peer(node) {
                self.note_peer(node, state, out);
            }
            if state == PeerState::Fresh {
                self.meet(node, out);
            }
            self.find_substitutes(out);
        }
        self.fill_lack(out);
    }

    /// A node of this replica is lost, or is back: then whoever substitutes for it does so until it is up to date.
    fn note_peer(&mut self, node: NodeId, state: PeerState, out: &mut Outbox<Message<X>>) {
        if state == PeerState::Lost {
            self.substitutes.entry(node).or_default().until = None;
            return;
        }
        if let Some(substitute) = self.substitutes.get_mut(&node) {
            substitute.until = Some(self.progress);
            // One that begins anew says how far it is.
            if state == PeerState::Back || substitute.node.is_none() {
                self.relieve(node, out);
            }
        }
    }

    /// Nobody has to substitute for a node any more that is up to date again.
    fn relieve(&mut self, node: NodeId, out: &mut Outbox<Message<X>>) {
        let Some(Substitute { node: member, until: Some(until) }) = self.substitutes.get(&node) else {
            return;
        };
        let (member, until) = (*member, *until);
        if member.is_some() && self.outgoing_to(node).progress_of(node) < until {
            return;
        }
        self.substitutes.remove(&node);
        if let Some(member) = member {
            out.send(self.at(member), Post::Relieved);
        }
    }

    /// A new stream has begun to another node: what was under way is lost.
    fn meet(&mut self, node: NodeId, out: &mut Outbox<Message<X>>) {
        out.send(self.at(node), Post::Progress(self.durable));
        if self.is_peer(node) {
            out.send(self.at(node), Post::Resume(self.lack.reach(self.progress)));
            return;
        }
        // Whoever it substituted for will be said again.
        self.outgoing_to(node).leave(node);
        for substitute in self.substitutes.values_mut().filter(|substitute| substitute.node == Some(node)) {
            substitute.node = None;
        }
    }

    /// For every lost peer without a substitute, asks one of its members that can be reached.
    fn find_substitutes(&mut self, out: &mut Outbox<Message<X>>) {
        let topology = self.settings.topology.clone();
        let reach = self.lack.reach(self.progress);
        let at = |node| Address { node, ..self.settings.me };
        for (node, substitute) in &mut self.substitutes {
            if substitute.node.is_some_and(|member| !self.lost.contains(&member)) {
                continue;
            }
            let mut members = topology.group(topology.partition_of(*node));
            substitute.node = members.find(|member| member != node && !self.lost.contains(member));
            if let Some(member) = substitute.node {
                out.send(at(member), Post::Resume(reach));
            }
        }
    }
}

impl<X: RemoteResult> Role for Exchange<X> {
    type Message = Message<X>;

    fn handle(&mut self, _now: Now, event: Event<Message<X>>, out: &mut Outbox<Message<X>>) {
        match event {
            Event::Message { from, message } => match message {
                Message::Log(Log::Sealed(batch)) => self.sealed(batch, out),
                Message::Sequencing(Sequencing::Applied { epoch, partition }) => {
                    if let Some(applied) = self.applied.get_mut(&from) {
                        *applied = (epoch, partition).max(*applied);
                    }
                }
                Message::Sequencing(house @ (Sequencing::Expired { .. } | Sequencing::Uneven(..))) => {
                    out.send(self.settings.sequencer, house);
                }
                Message::Post(Post::Opened(epoch)) if from.node == self.settings.me.node => {
                    self.opened = self.opened.max(epoch);
                    self.peers().for_each(|node| out.send(self.at(node), Post::Opened(epoch)));
                }
                Message::Post(Post::RemoteResult { to, remote_result })
                    if from.node == self.settings.me.node =>
                {
                    self.post(to, remote_result, out);
                }
                Message::Post(post) => self.admit(from.node, post, out),
                Message::Configuration(Configuration::Records { leadership_records, .. }) => {
                    let released = self.told(leadership_records, out);
                    released.into_iter().for_each(|(from, post)| self.receive(from, post, out));
                }
                Message::Configuration(Configuration::LowWatermarks(epochs)) => {
                    self.gate.iter_mut().for_each(|gate| gate.forget(&epochs));
                    let certain = epochs.into_iter().min().unwrap_or_default();
                    self.certain = self.certain.max(certain);
                    self.settings
                        .shards
                        .iter()
                        .for_each(|shard| out.send(*shard, Configuration::Stable(certain)));
                }
                Message::Log(Log::Trim(covered)) => {
                    self.covered = covered;
                    self.trim(out);
                    self.journal.iter_mut().for_each(|journal| journal.ask(out));
                }
                Message::Ship(Ship::Collect { partition, term, after }) => {
                    self.collect(from, (partition, term), after, out);
                }
                Message::Peer(change) => self.peer_changed(change, out),
                Message::Saving(Saving::Covered(epoch)) => self.saving = Some((from, epoch)),
                _ => out.halt("the exchange was sent a message that is not for it"),
            },
            Event::Disk(done) => self.disk(&done, out),
            Event::Timer(FETCH) => self.fill_lack(out),
            Event::Timer(FLUSH) => {
                self.pausing = false;
                self.flush(out);
            }
            Event::Timer(TELL) => {
                self.telling = false;
                self.tell_all(out);
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
            Event::Start => {
                // What others had opened is in the journal, and the sequencer begins with what is in the log.
                if self.opened > self.sealed {
                    out.send(self.settings.sequencer, Sequencing::Reached(self.opened));
                }
            }
            Event::Timer(_) | Event::Work(_) => {}
        }
        self.deliver(out);
        self.pace(out);
        if let Some((to, epoch)) = self.saving.take_if(|(_, epoch)| *epoch <= self.durable) {
            out.send(to, Saving::Covered(epoch));
        }
    }

    fn name(&self) -> &'static str {
        "exchange"
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        let kept: usize = self.outgoing.iter().map(Outgoing::bytes).sum();
        let counts = &self.counts;
        report("ordain_exchange_progress_epoch", self.progress.0 as f64);
        report("ordain_exchange_durable_epoch", self.durable.0 as f64);
        report("ordain_exchange_sealed_epoch", self.sealed.0 as f64);
        report("ordain_exchange_kept_bytes", kept as f64);
        report("ordain_exchange_waiting_batches", self.order.waiting() as f64);
        report("ordain_exchange_unfinished_batches", self.handed.len() as f64);
        report("ordain_exchange_lost_nodes", self.lost.len() as f64);
        report("ordain_exchange_slices_sent_total", counts.slices_out as f64);
        report("ordain_exchange_slices_received_total", counts.slices_in as f64);
        report("ordain_exchange_remote_results_sent_total", counts.remote_results_out as f64);
        report("ordain_exchange_remote_results_received_total", counts.remote_results_in as f64);
        report("ordain_exchange_duplicates_total", counts.known as f64);
        report("ordain_exchange_gaps_total", counts.gaps as f64);
        report("ordain_exchange_sent_again_total", counts.sent_again as f64);
        report("ordain_exchange_substituted_total", counts.substituted as f64);
        report("ordain_exchange_held_back", self.gate.as_ref().map_or(0, Gate::held) as f64);
        report("ordain_exchange_lacking_epoch", self.lack.up_to().0 as f64);
        let behind = self.lack.beyond_help(&self.members()).unwrap_or_default();
        report("ordain_exchange_behind_epoch", behind.0 as f64);
        report("ordain_exchange_fetched_total", counts.fetched as f64);
        report("ordain_exchange_served_total", counts.served as f64);
    }
}
