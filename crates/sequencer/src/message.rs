//! The messages of the sequencing layer, and how an engine's own are carried beside them.

use std::fmt::Debug;
use std::sync::Arc;

use ordain_checkpoint::Piece;
use ordain_family::Incoming;
use ordain_model::wire::{self, Reader};
use ordain_model::{
    Abort, Batch, Cell, Chunk, ChunkNo, Epoch, Front, GatewayId, Gsn, Lanes, Millis, PartitionId, Position,
    Registry, SlotNo,
};
use ordain_role::{Bytes, NodeId, PeerChange, Wire};

use crate::configuration_service::{Arrival, Ending, LeadershipRecords};

/// What a [`GroupMessage`] begins with between nodes.
const GROUP: u8 = 2;

/// What the roles of a sequenced engine say to each other; `X` are the messages of the engine's own roles.
#[derive(Clone, Debug)]
pub enum Message<X> {
    /// Between a gateway and the engine.
    Front(Front),
    /// Between the sequencer, the input log, the exchange and the shards.
    Sequencing(Sequencing),
    /// Between sequencers and shards: reads on a snapshot.
    Reading(Reading),
    /// Between the engine's own roles.
    Engine(X),
    /// To and between exchanges: what crosses partitions.
    Post(Post<X>),
    /// Between the logs of members: what they agree on.
    Group(GroupMessage),
    /// Between the logs of members: what one has sealed, and the others are to take.
    Ship(Ship),
    /// Between the configuration service and the nodes.
    Counsel(Counsel),
    /// To and from checkpointers.
    Saving(Saving),
    /// From the driver: what becomes of the stream to another node.
    Peer(PeerChange),
}

/// Between the sequencer, the input log, the exchange, the shards, and the lock manager where a node has one.
#[derive(Clone, Debug)]
pub enum Sequencing {
    /// Sequencer to input log: make this durable, then dispatch it.
    Append(Arc<Batch>),
    /// Input log to exchange and shards, exchange to shards, first shard to lock manager: this is decided; execute it. In
    /// order, without exception.
    Sealed(Arc<Batch>),
    /// Lock manager to shard: this transaction has all its locks on this node; execute it.
    Turn(Gsn),
    /// Shard to lock manager: its part of this transaction is executed.
    Done(Gsn),
    /// Exchange to shards: all batches up to the end of this epoch have been handed to them, of all partitions.
    Passed(Epoch),
    /// Input log to sequencer: the log has taken the batch of this epoch; the next may come.
    Logged(Epoch),
    /// Input log to sequencer: the disk is full. This batch was not made durable and nobody will execute it.
    Rejected(Arc<Batch>),
    /// Input log to sequencer: the disk has space again.
    Writable,
    /// Input log to sequencer: members have agreed on something else in the place of this batch; nobody will execute it.
    Lost(Arc<Batch>),
    /// Input log to sequencer: whose batches the members take.
    Leader {
        /// The node, if there is one.
        node: Option<NodeId>,
        /// Since which term.
        term: u64,
        /// It is this one, and it knows all that was agreed on before.
        is_me: bool,
        /// The largest epoch in this node's log.
        last: Epoch,
    },
    /// Shard to exchange or sequencer: everything of this batch and before it is executed here.
    Applied {
        /// The batch's epoch.
        epoch: Epoch,
        /// Its partition.
        partition: PartitionId,
    },
    /// Shard to sequencer: records at these positions have outlived their time.
    Expired {
        /// The positions, some thousand records at most.
        positions: std::ops::Range<Position>,
    },
    /// Shard to sequencer: too much of its partition's load is on one shard, and would be less so if these slots were in these
    /// lanes, or where the partition has them by itself.
    Uneven(PartitionId, Lanes),
    /// Shard to the first shard of its partition: how many records it has in its large slots.
    Large {
        /// The shard's number through the replica.
        shard: usize,
        /// The slots, of the 1,024, and how many records there are in each.
        slots: Vec<(usize, u32)>,
    },
    /// Checkpointer to log and exchange: so much is covered by complete checkpoints.
    Trim(Covered),
    /// Log or exchange to checkpointer: what this node needs next is not kept any more by whoever was asked. A checkpoint has
    /// to be got from a member that covers everything up to this epoch; then the node is to begin again.
    Behind(Epoch),
    /// Checkpointer to log, where primaries may change: the node is to begin again with a checkpoint of this epoch. Without the log,
    /// if that does not reach there.
    BeginAgain(Epoch),
    /// Exchange to sequencer, sequencer to the leader's: another partition has opened this epoch, so this one must
    /// seal it too, with something in it or not.
    Reached(Epoch),
    /// Configuration service to the log and the exchange of its node: who is primary of what.
    LeadershipRecords {
        /// As the configuration service has decided.
        leadership_records: Arc<LeadershipRecords>,
        /// The configuration service has been heard from lately: a node that does not hear from it must not go on as primary.
        in_touch: bool,
    },
    /// Log to configuration service, the answer to `LeadershipRecords`: how far the log is.
    Kept {
        /// Its last epoch.
        through: Epoch,
        /// If it is the primary's: the members that are sent at once what it seals.
        in_sync: Vec<NodeId>,
    },
    /// Configuration service to exchange: up to which epoch nobody will ask for slices, by partition.
    Safe(Vec<Epoch>),
    /// Exchange to its shards, configuration service to checkpointer: nothing that was sealed up to this epoch, by whatever partition, can be
    /// lost with a primary.
    Certain(Epoch),
}

/// Reads on a snapshot (paxflow.md, section 3). None of it is logged or told again: who asked asks again.
#[derive(Clone, Debug)]
pub enum Reading {
    /// Sequencer to every shard that takes part: run these as of the end of an epoch (RO_TXN).
    Run {
        /// The reads.
        chunk: Arc<Chunk>,
        /// The epoch.
        at: Epoch,
        /// Their time.
        now: Millis,
    },
    /// Shard to the shard that composes the reply: what it has read (RO_READ).
    Parts(Parts),
    /// Sequencer to the shards of its replica: nobody that it knows of will read as of an earlier epoch.
    Floor {
        /// Whose sequencer.
        partition: PartitionId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Sequencer to the shards of its replica: reads will come after a silence, so what changes replace is to be kept.
    Keep(PartitionId),
    /// The answer: the oldest epoch as of which the shard can show the state.
    Kept(Epoch),
    /// Sequencer to the shards of its replica: nobody that it knows of reads any more; it says when that changes.
    Forget(PartitionId),
    /// Sequencer to the leader's: as of which epoch has a state all that anybody was answered until now?
    Ask(GatewayId, ChunkNo),
    /// The answer.
    Stamp(GatewayId, ChunkNo, Epoch),
}

/// What a shard has read of a chunk for the shard that composes the replies.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// The shard, numbered through the replica.
    pub from: usize,
    /// The chunk.
    pub chunk: (GatewayId, ChunkNo),
    /// As of which epoch it was read.
    pub at: Epoch,
    /// By transaction; the parts of one are together and complete.
    pub parts: Vec<(u32, Part)>,
}

/// One thing that a shard has read.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// What a fragment answered.
    Slot {
        /// The fragment.
        slot: SlotNo,
        /// The answer.
        bytes: Vec<u8>,
        /// How it failed, if it did.
        failure: Option<Abort>,
    },
    /// The record of a lent fragment, if it is there.
    Lent {
        /// The fragment.
        slot: SlotNo,
        /// The record.
        cell: Cell,
        /// Who wrote it.
        version: Gsn,
    },
    /// That was all of a transaction.
    End,
    /// The state is not kept any more; that is all of a transaction.
    TooOld,
}

/// Between the configuration service's leader and the nodes.
#[derive(Clone, Debug)]
pub enum Counsel {
    /// To the members: the sender is there.
    Report {
        /// As whom.
        arrival: Arrival,
        /// The latest configuration entry that it has heard of.
        version: u64,
        /// The last epoch of its log.
        through: Epoch,
        /// If it is primary: the members that are sent at once what it seals.
        in_sync: Vec<NodeId>,
        /// If it is a candidate: what it has come to.
        ending: Option<Ending>,
    },
    /// The leader's answer: what was decided.
    State {
        /// All of it.
        leadership_records: Box<LeadershipRecords>,
        /// Up to which epoch nobody will ask for slices, by partition.
        safe: Vec<Epoch>,
    },
}

/// Between the logs of members, where one is the primary and the others follow it (calvin.md, sections 4.1 and 4.12).
#[derive(Clone, Debug)]
pub enum Ship {
    /// Primary to member: all epochs up to one are sealed, and those since the last such message hold nothing to keep but
    /// perhaps the last.
    Batch {
        /// The primary's term.
        term: u64,
        /// The last epoch before that holds anything to keep: if that has not arrived, this must not count.
        after: Epoch,
        /// Up to where.
        through: Epoch,
        /// What is to be kept of the batch of that epoch, as [`Batch::encode`] writes it.
        content: Option<Arc<Vec<u8>>>,
    },
    /// Primary to member: this was not all of what it wants. It says when it has taken it.
    Pause {
        /// The primary's term.
        term: u64,
    },
    /// Member to primary: it wants everything after this epoch.
    Want {
        /// The term that it follows.
        term: u64,
        /// The last epoch that it has.
        after: Epoch,
    },
    /// Member to primary: everything up to this epoch is on its disk.
    Have {
        /// The term that it follows.
        term: u64,
        /// Up to where.
        through: Epoch,
    },
    /// Primary to member: of what it wants, what is up to this epoch is not kept any more.
    Trimmed {
        /// The primary's term.
        term: u64,
        /// Up to where.
        through: Epoch,
    },
    /// Candidate to logs of its partition and exchanges of the others: what is there of it after this epoch? Only who is
    /// fenced for that very term answers.
    Collect {
        /// The partition.
        partition: PartitionId,
        /// The term that is being prepared.
        term: u64,
        /// The candidate has everything up to here.
        after: Epoch,
    },
    /// The answer, or a piece of it.
    Collected {
        /// The partition.
        partition: PartitionId,
        /// The term that is being prepared.
        term: u64,
        /// Of what is up to this epoch nothing is known here, whether or not there was something.
        since: Epoch,
        /// The largest epoch of the partition that is known to be sealed here.
        through: Epoch,
        /// The largest epoch of which somebody in this replica has executed something: so all before it was sealed.
        evidence: Epoch,
        /// What there is, in order.
        held: Vec<Held>,
        /// There is nothing after it. If there is, it is asked for by another `Collect`.
        is_all: bool,
    },
    /// Configuration service to its own node's log: what was decided of the terms before. To be kept and dispatched like what a primary
    /// ships.
    Decided {
        /// The term that is being prepared.
        term: u64,
        /// Whole batches in order, as [`Batch::encode`] writes them.
        batches: Vec<Arc<Vec<u8>>>,
    },
}

/// To and from checkpointers (calvin.md, section 4.14).
#[derive(Clone, Debug)]
pub enum Saving {
    /// Shard or sequencer to checkpointer: some of the state at the end of an epoch.
    Piece {
        /// The epoch.
        epoch: Epoch,
        /// Some of it.
        piece: Piece,
    },
    /// Shard or sequencer to checkpointer: that was all of it.
    Last(Epoch),
    /// Shard to checkpointer, when the node starts: all of this epoch had been executed here before, and checkpoints of then
    /// are not given.
    Past(Epoch),
    /// Shard to checkpointer: it was at the checkpoint before and has not kept the state at the end of this epoch.
    Skipped(Epoch),
    /// Checkpointer to shard: one of its pieces is written.
    Taken(Epoch),
    /// Checkpointer to shards: no checkpoint of this epoch is made; the state need not be kept for it.
    Dropped(Epoch),
    /// Shard to sequencer: its replica executes nothing until a checkpoint is written, and others go on; or it goes on too.
    StandsStill(bool),
    /// Checkpointer to sequencer: one has been begun; what has the sequencer to add?
    Begun(Epoch),
    /// Checkpointer to exchange: is all that came in of this epoch and before on disk? The answer, once it is so.
    Covered(Epoch),
    /// Between checkpointers: what there is at the sender.
    Has(Has),
    /// Checkpointer to a member's: it needs that checkpoint, from a byte of the file on.
    Want {
        /// The checkpoint's epoch.
        epoch: Epoch,
        /// How much of it is there already.
        offset: u64,
    },
    /// The answer: some of the file.
    Part {
        /// The checkpoint's epoch.
        epoch: Epoch,
        /// When it became complete.
        at: Millis,
        /// Where in the file this stands.
        offset: u64,
        /// What stands there.
        bytes: Vec<u8>,
        /// Nothing follows.
        is_last: bool,
    },
    /// The other answer: there is no complete checkpoint of this epoch.
    Gone(Epoch),
    /// Checkpointer to sequencer: a member of the group needs a newer checkpoint than there is.
    Wanted,
}

/// Which checkpoints a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Has {
    /// The epoch of the newest that is whole on its disk; 0 if there is none.
    pub saved: Epoch,
    /// The epoch of the newest that is complete: the other partitions have one too.
    pub complete: Epoch,
}

/// What a node has of a batch of another.
#[derive(Clone, Debug)]
pub struct Held {
    /// The epoch.
    pub epoch: Epoch,
    /// How many of its transactions are to be kept, here or elsewhere.
    pub logged: u32,
    /// Those that are here, as [`Batch::encode_slice`] or [`Batch::encode`] writes them.
    pub content: Option<Arc<Vec<u8>>>,
}

/// To and between exchanges.
#[derive(Clone, Debug)]
pub enum Post<X> {
    /// Sequencer to its exchange, and on to the peers': a batch of this epoch is on its way.
    Opened(Epoch),
    /// All epochs of a sequencer up to one are sealed, and those since the last such message are empty but perhaps
    /// the last (calvin.md, section 3: BATCH, BATCH_RANGE).
    Slot {
        /// The sequencer.
        sequencer: PartitionId,
        /// The last epoch before in which there was anything for the receiver: if that has not arrived, this must not
        /// count.
        after: Epoch,
        /// Up to where.
        through: Epoch,
        /// How many transactions of the batch of that epoch are to be kept, whoever takes part in them. Known only where
        /// a next primary may have to put it together from its slices.
        logged: u32,
        /// The receiver's slice of the batch of that epoch, as [`Batch::encode_slice`] writes it.
        content: Option<Arc<Vec<u8>>>,
    },
    /// Something of an engine for a shard of another partition (calvin.md, section 3: READ_RESULT).
    RemoteResult {
        /// The shard, numbered through the replica.
        to: u16,
        /// What it is told.
        remote_result: Arc<X>,
    },
    /// Everything up to this epoch is executed at the sender, and it could do it again alone (calvin.md, section 3:
    /// PROGRESS).
    Progress(Epoch),
    /// The sender asks for everything after this epoch that the receiver has for it (calvin.md, section 3: RESEND).
    /// If the receiver is not of the sender's replica, it substitutes for its member there until told otherwise.
    Resume(Epoch),
    /// The receiver need not substitute for its member any more.
    Relieved,
    /// What the receiver has asked for again, or needs, is not kept any more up to this epoch. It is sent nothing until
    /// it asks for what comes after.
    Forgotten(Epoch),
    /// This was not all of what the receiver has asked for: it says when it has taken it.
    Pause,
    /// The sender has taken all up to the pause: it wants more.
    Continue,
    /// The sender asks its member for what has come in there.
    Fetch {
        /// The number of the first entry of the journal that it wants.
        from: Epoch,
        /// It has no use for anything up to this epoch.
        after: Epoch,
    },
    /// Of what the receiver has asked for, what is up to this epoch is not in the sender's journal any more.
    Trimmed(Epoch),
    /// How often the sender has started over: the first that it says in a stream, where nodes may have to.
    Incarnation(u64),
    /// How many terms the sender has heard of, begun or decided ([`LeadershipRecords::terms`]). What it says from here on may be of the last
    /// of them: it is for whoever has heard of as many.
    Terms(u64),
    /// Some of the journal of the sender.
    Fetched {
        /// What was asked for.
        from: Epoch,
        /// The number of the entry that comes next.
        next: Epoch,
        /// If there is none: up to which epoch everything that has come in stands in those before.
        covers: Option<Epoch>,
        /// The entries, one after the other.
        journal_records: Arc<Vec<u8>>,
    },
}

/// Up to where complete checkpoints cover what is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// This node and all its members have one: nobody is to ask for any of that again.
    pub by_all: Epoch,
    /// This node has one, and keeps it: a member that asks for what is covered gets that instead.
    pub by_own: Epoch,
}

impl Covered {
    /// What may go of a log that has so many bytes and is to have no more than `most` for the sake of members that are away.
    pub fn through(&self, bytes: u64, most: u64) -> Epoch {
        if bytes > most { self.by_own } else { self.by_all }
    }
}

/// Something that one role of an engine tells another on another node.
pub trait RemoteResult: Wire + Clone + std::fmt::Debug + Send + Sync {
    /// The last of the transactions that it is about: the sender has executed something of it.
    fn last(&self) -> Gsn;

    /// About how many bytes it takes while it is kept.
    fn weight(&self) -> usize;

    /// The largest epoch of the transactions that it is about: once that is executed at the receiver, it is done with.
    fn epoch(&self) -> Epoch {
        self.last().epoch()
    }
}

/// Between the logs of members.
#[derive(Clone, Debug)]
pub struct GroupMessage {
    /// Who says it.
    pub from: NodeId,
    /// What, in the group's own encoding.
    pub head: Bytes,
    /// How that goes on: bytes that are shared with the log rather than copied.
    pub tail: Bytes,
}

impl<X> From<Front> for Message<X> {
    fn from(message: Front) -> Self {
        Message::Front(message)
    }
}

impl<X> From<Sequencing> for Message<X> {
    fn from(message: Sequencing) -> Self {
        Message::Sequencing(message)
    }
}

impl<X> From<Reading> for Message<X> {
    fn from(message: Reading) -> Self {
        Message::Reading(message)
    }
}

impl<X> From<Post<X>> for Message<X> {
    fn from(message: Post<X>) -> Self {
        Message::Post(message)
    }
}

impl<X> From<GroupMessage> for Message<X> {
    fn from(message: GroupMessage) -> Self {
        Message::Group(message)
    }
}

impl<X> From<Counsel> for Message<X> {
    fn from(message: Counsel) -> Self {
        Message::Counsel(message)
    }
}

impl<X> From<Ship> for Message<X> {
    fn from(message: Ship) -> Self {
        Message::Ship(message)
    }
}

impl<X> From<Saving> for Message<X> {
    fn from(message: Saving) -> Self {
        Message::Saving(message)
    }
}

impl<X> From<PeerChange> for Message<X> {
    fn from(change: PeerChange) -> Self {
        Message::Peer(change)
    }
}

impl<X: Wire + Clone + Debug + Send + Sync + 'static> ordain_family::Message for Message<X> {
    fn incoming(self) -> Incoming<Self> {
        match self {
            Message::Front(front) => Incoming::Front(front),
            Message::Peer(change) => Incoming::Peer(change),
            other => Incoming::Role(other),
        }
    }
}

/// What of it crosses nodes; the rest is between roles of one.
impl<X: Wire> Wire for Message<X> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Message::Front(front) => {
                wire::u8(out, 0);
                front.encode(out);
            }
            Message::Post(post) => {
                wire::u8(out, 1);
                post.encode(out);
            }
            Message::Group(message) => {
                wire::u8(out, GROUP);
                message.encode(out);
                out.extend_from_slice(&message.tail);
            }
            Message::Sequencing(Sequencing::Reached(epoch)) => {
                wire::u8(out, 3);
                wire::u64(out, epoch.0);
            }
            Message::Engine(message) => {
                wire::u8(out, 4);
                message.encode(out);
            }
            Message::Ship(ship) => {
                wire::u8(out, 5);
                ship.encode(out);
            }
            Message::Counsel(counsel) => {
                wire::u8(out, 6);
                counsel.encode(out);
            }
            Message::Saving(Saving::Has(Has { saved, complete })) => {
                wire::u8(out, 7);
                wire::u64(out, saved.0);
                wire::u64(out, complete.0);
            }
            Message::Reading(reading) => {
                wire::u8(out, 8);
                reading.encode(out);
            }
            Message::Saving(Saving::Want { epoch, offset }) => {
                wire::u8(out, 9);
                wire::u64(out, epoch.0);
                wire::u64(out, *offset);
            }
            Message::Saving(Saving::Part { epoch, at, offset, bytes, is_last }) => {
                wire::u8(out, 10);
                [epoch.0, at.0, *offset].iter().for_each(|number| wire::u64(out, *number));
                wire::u8(out, u8::from(*is_last));
                wire::bytes(out, bytes);
            }
            Message::Saving(Saving::Gone(epoch)) => {
                wire::u8(out, 11);
                wire::u64(out, epoch.0);
            }
            // No role sends such a message to another node. It would be refused there.
            Message::Sequencing(_) | Message::Saving(_) | Message::Peer(_) => wire::u8(out, u8::MAX),
        }
    }

    fn decode(registry: &Registry, bytes: &[u8]) -> Option<Self> {
        let mut bytes = Reader(bytes);
        let message = match bytes.u8()? {
            0 => Front::decode(registry, &mut bytes)?.into(),
            1 => return Post::decode(registry, bytes.0).map(Message::Post),
            GROUP => return GroupMessage::decode(&Bytes::copy_from_slice(bytes.0)).map(Message::Group),
            3 => Sequencing::Reached(Epoch(bytes.u64()?)).into(),
            4 => return X::decode(registry, bytes.0).map(Message::Engine),
            5 => Ship::decode(&mut bytes)?.into(),
            6 => Counsel::decode(&mut bytes)?.into(),
            7 => {
                let (saved, complete) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                Saving::Has(Has { saved, complete }).into()
            }
            9 => Saving::Want { epoch: Epoch(bytes.u64()?), offset: bytes.u64()? }.into(),
            10 => {
                let (epoch, at, offset) = (Epoch(bytes.u64()?), Millis(bytes.u64()?), bytes.u64()?);
                let is_last = wire::flag(&mut bytes)?;
                Saving::Part { epoch, at, offset, bytes: bytes.bytes()?.to_vec(), is_last }.into()
            }
            11 => Saving::Gone(Epoch(bytes.u64()?)).into(),
            8 => Reading::decode(registry, &mut bytes)?.into(),
            _ => return None,
        };
        bytes.end(message)
    }

    fn encode_shared(&self, out: &mut Vec<u8>) -> Bytes {
        let Message::Group(message) = self else {
            self.encode(out);
            return Bytes::new();
        };
        wire::u8(out, GROUP);
        message.encode(out);
        message.tail.clone()
    }

    fn decode_shared(registry: &Registry, bytes: &Bytes) -> Option<Self> {
        match bytes.first()? {
            &GROUP => GroupMessage::decode(&bytes.slice(1..)).map(Message::Group),
            _ => Message::decode(registry, bytes),
        }
    }
}

impl GroupMessage {
    /// Appends what stands before the tail.
    fn encode(&self, out: &mut Vec<u8>) {
        wire::u16(out, self.from.0);
        wire::u32(out, (self.head.len() + self.tail.len()) as u32);
        out.extend_from_slice(&self.head);
    }

    fn decode(bytes: &Bytes) -> Option<GroupMessage> {
        let mut reader = Reader(bytes);
        let (from, head) = (NodeId(reader.u16()?), reader.bytes()?);
        reader.end(GroupMessage { from, head: bytes.slice_ref(head), tail: Bytes::new() })
    }
}

impl<X: Wire> Wire for Post<X> {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut epoch = |tag, epoch: &Epoch| {
            wire::u8(out, tag);
            wire::u64(out, epoch.0);
        };
        match self {
            Post::Opened(at) => epoch(0, at),
            Post::Progress(at) => epoch(1, at),
            Post::Resume(at) => epoch(2, at),
            Post::Relieved => wire::u8(out, 3),
            Post::Slot { sequencer, after, through, logged, content } => {
                wire::u8(out, 4);
                wire::u16(out, sequencer.0);
                wire::u64(out, after.0);
                wire::u64(out, through.0);
                wire::u32(out, *logged);
                out.extend_from_slice(content.as_deref().map_or(&[], |content| content));
            }
            Post::RemoteResult { to, remote_result } => {
                wire::u8(out, 5);
                wire::u16(out, *to);
                remote_result.encode(out);
            }
            Post::Forgotten(at) => epoch(6, at),
            Post::Pause => wire::u8(out, 7),
            Post::Continue => wire::u8(out, 8),
            Post::Fetch { from, after } => {
                wire::u8(out, 9);
                wire::u64(out, from.0);
                wire::u64(out, after.0);
            }
            Post::Fetched { from, next, covers, journal_records } => {
                wire::u8(out, 10);
                wire::u64(out, from.0);
                wire::u64(out, next.0);
                wire::u8(out, u8::from(covers.is_some()));
                wire::u64(out, covers.unwrap_or_default().0);
                out.extend_from_slice(journal_records);
            }
            Post::Incarnation(number) => epoch(11, &Epoch(*number)),
            Post::Trimmed(at) => epoch(12, at),
            Post::Terms(number) => epoch(13, &Epoch(*number)),
        }
    }

    fn decode(registry: &Registry, bytes: &[u8]) -> Option<Self> {
        let mut bytes = Reader(bytes);
        let post = match bytes.u8()? {
            0 => Post::Opened(Epoch(bytes.u64()?)),
            1 => Post::Progress(Epoch(bytes.u64()?)),
            2 => Post::Resume(Epoch(bytes.u64()?)),
            3 => Post::Relieved,
            4 => {
                let sequencer = PartitionId(bytes.u16()?);
                let (after, through) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                let logged = bytes.u32()?;
                let content = (!bytes.is_empty()).then(|| Arc::new(bytes.0.to_vec()));
                return Some(Post::Slot { sequencer, after, through, logged, content });
            }
            5 => {
                return Some(Post::RemoteResult {
                    to: bytes.u16()?,
                    remote_result: Arc::new(X::decode(registry, bytes.0)?),
                });
            }
            6 => Post::Forgotten(Epoch(bytes.u64()?)),
            7 => Post::Pause,
            8 => Post::Continue,
            9 => Post::Fetch { from: Epoch(bytes.u64()?), after: Epoch(bytes.u64()?) },
            10 => {
                let (from, next) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                let is_end = wire::flag(&mut bytes)?;
                let covers = Some(Epoch(bytes.u64()?)).filter(|_| is_end);
                return Some(Post::Fetched {
                    from,
                    next,
                    covers,
                    journal_records: Arc::new(bytes.0.to_vec()),
                });
            }
            11 => Post::Incarnation(bytes.u64()?),
            12 => Post::Trimmed(Epoch(bytes.u64()?)),
            13 => Post::Terms(bytes.u64()?),
            _ => return None,
        };
        bytes.end(post)
    }
}

impl Ship {
    fn encode(&self, out: &mut Vec<u8>) {
        let mut numbers = |tag, numbers: &[u64]| {
            wire::u8(out, tag);
            numbers.iter().for_each(|number| wire::u64(out, *number));
        };
        match self {
            Ship::Batch { term, after, through, content } => {
                numbers(0, &[*term, after.0, through.0]);
                optional(out, content.as_ref());
            }
            Ship::Pause { term } => numbers(1, &[*term]),
            Ship::Want { term, after } => numbers(2, &[*term, after.0]),
            Ship::Have { term, through } => numbers(3, &[*term, through.0]),
            Ship::Collect { partition, term, after } => {
                numbers(4, &[*term, after.0]);
                wire::u16(out, partition.0);
            }
            Ship::Collected { partition, term, since, through, evidence, held, is_all } => {
                numbers(5, &[*term, since.0, through.0, evidence.0]);
                wire::u16(out, partition.0);
                wire::u8(out, u8::from(*is_all));
                wire::u32(out, held.len() as u32);
                for Held { epoch, logged, content } in held {
                    wire::u64(out, epoch.0);
                    wire::u32(out, *logged);
                    optional(out, content.as_ref());
                }
            }
            Ship::Trimmed { term, through } => numbers(6, &[*term, through.0]),
            // It stays on its node: nobody sends it to another.
            Ship::Decided { .. } => wire::u8(out, u8::MAX),
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Ship> {
        let tag = bytes.u8()?;
        let term = bytes.u64()?;
        Some(match tag {
            0 => {
                let (after, through) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                Ship::Batch { term, after, through, content: read_optional(bytes)? }
            }
            1 => Ship::Pause { term },
            2 => Ship::Want { term, after: Epoch(bytes.u64()?) },
            3 => Ship::Have { term, through: Epoch(bytes.u64()?) },
            4 => {
                let after = Epoch(bytes.u64()?);
                Ship::Collect { partition: PartitionId(bytes.u16()?), term, after }
            }
            5 => {
                let [since, through, evidence] = [bytes.u64()?, bytes.u64()?, bytes.u64()?].map(Epoch);
                let partition = PartitionId(bytes.u16()?);
                let is_all = wire::flag(bytes)?;
                let held = |bytes: &mut Reader<'_>| {
                    let (epoch, logged) = (Epoch(bytes.u64()?), bytes.u32()?);
                    Some(Held { epoch, logged, content: read_optional(bytes)? })
                };
                let held = (0..bytes.count(13)?).map(|_| held(bytes)).collect::<Option<Vec<Held>>>()?;
                Ship::Collected { partition, term, since, through, evidence, held, is_all }
            }
            6 => Ship::Trimmed { term, through: Epoch(bytes.u64()?) },
            _ => return None,
        })
    }
}

impl Counsel {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Counsel::Report { arrival, version, through, in_sync, ending } => {
                wire::u8(out, 0);
                let numbers = [arrival.incarnation, arrival.life, *version, through.0];
                numbers.iter().for_each(|number| wire::u64(out, *number));
                LeadershipRecords::encode_nodes(in_sync, out);
                wire::u8(out, u8::from(ending.is_some()));
                ending.iter().for_each(|ending| ending.encode(out));
            }
            Counsel::State { leadership_records, safe } => {
                wire::u8(out, 1);
                leadership_records.encode(out);
                wire::u32(out, safe.len() as u32);
                safe.iter().for_each(|epoch| wire::u64(out, epoch.0));
            }
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Counsel> {
        Some(match bytes.u8()? {
            0 => {
                let arrival = Arrival { incarnation: bytes.u64()?, life: bytes.u64()? };
                let (version, through) = (bytes.u64()?, Epoch(bytes.u64()?));
                let in_sync = LeadershipRecords::decode_nodes(bytes)?;
                let has_ended = wire::flag(bytes)?;
                let ending = if has_ended { Some(Ending::decode(bytes)?) } else { None };
                Counsel::Report { arrival, version, through, in_sync, ending }
            }
            1 => {
                let leadership_records = Box::new(LeadershipRecords::decode(bytes)?);
                let safe = (0..bytes.count(8)?).map(|_| bytes.u64().map(Epoch));
                Counsel::State { leadership_records, safe: safe.collect::<Option<Vec<Epoch>>>()? }
            }
            _ => return None,
        })
    }
}

impl Reading {
    fn encode(&self, out: &mut Vec<u8>) {
        let id = |out: &mut Vec<u8>, (gateway, number): (GatewayId, ChunkNo)| {
            wire::u32(out, gateway.0);
            wire::u64(out, number.0);
        };
        match self {
            Reading::Run { chunk, at, now } => {
                wire::u8(out, 0);
                wire::u64(out, at.0);
                wire::u64(out, now.0);
                chunk.encode(out);
            }
            Reading::Parts(Parts { from, chunk, at, parts }) => {
                wire::u8(out, 1);
                wire::u16(out, *from as u16);
                id(out, *chunk);
                wire::u64(out, at.0);
                wire::u32(out, parts.len() as u32);
                for (index, part) in parts {
                    wire::u32(out, *index);
                    part.encode(out);
                }
            }
            Reading::Floor { partition, epoch } => {
                wire::u8(out, 2);
                wire::u16(out, partition.0);
                wire::u64(out, epoch.0);
            }
            Reading::Ask(gateway, number) => {
                wire::u8(out, 3);
                id(out, (*gateway, *number));
            }
            Reading::Stamp(gateway, number, at) => {
                wire::u8(out, 4);
                id(out, (*gateway, *number));
                wire::u64(out, at.0);
            }
            Reading::Keep(partition) => {
                wire::u8(out, 5);
                wire::u16(out, partition.0);
            }
            Reading::Kept(epoch) => {
                wire::u8(out, 6);
                wire::u64(out, epoch.0);
            }
            Reading::Forget(partition) => {
                wire::u8(out, 7);
                wire::u16(out, partition.0);
            }
        }
    }

    fn decode(registry: &Registry, bytes: &mut Reader<'_>) -> Option<Reading> {
        let id = |bytes: &mut Reader<'_>| Some((GatewayId(bytes.u32()?), ChunkNo(bytes.u64()?)));
        Some(match bytes.u8()? {
            0 => {
                let (at, now) = (Epoch(bytes.u64()?), Millis(bytes.u64()?));
                Reading::Run { chunk: Arc::new(Chunk::decode_whole(registry, bytes)?), at, now }
            }
            1 => {
                let (from, chunk, at) = (usize::from(bytes.u16()?), id(bytes)?, Epoch(bytes.u64()?));
                let part = |bytes: &mut Reader<'_>| Some((bytes.u32()?, Part::decode(bytes)?));
                let parts = (0..bytes.count(5)?).map(|_| part(bytes)).collect::<Option<Vec<_>>>()?;
                Reading::Parts(Parts { from, chunk, at, parts })
            }
            2 => Reading::Floor { partition: PartitionId(bytes.u16()?), epoch: Epoch(bytes.u64()?) },
            3 => id(bytes).map(|(gateway, number)| Reading::Ask(gateway, number))?,
            4 => {
                let (gateway, number) = id(bytes)?;
                Reading::Stamp(gateway, number, Epoch(bytes.u64()?))
            }
            5 => Reading::Keep(PartitionId(bytes.u16()?)),
            6 => Reading::Kept(Epoch(bytes.u64()?)),
            7 => Reading::Forget(PartitionId(bytes.u16()?)),
            _ => return None,
        })
    }
}

impl Part {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Part::Slot { slot, bytes, failure } => {
                wire::u8(out, 0);
                wire::u32(out, slot.0);
                wire::u8(out, failure.map_or(0, Abort::code));
                wire::bytes(out, bytes);
            }
            Part::Lent { slot, cell, version } => {
                wire::u8(out, 1);
                wire::u32(out, slot.0);
                wire::u64(out, version.0);
                cell.encode(out);
            }
            Part::End => wire::u8(out, 2),
            Part::TooOld => wire::u8(out, 3),
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Part> {
        Some(match bytes.u8()? {
            0 => {
                let slot = SlotNo(bytes.u32()?);
                let failure = match bytes.u8()? {
                    0 => None,
                    code => Some(Abort::from_code(code)?),
                };
                Part::Slot { slot, bytes: bytes.bytes()?.to_vec(), failure }
            }
            1 => {
                let (slot, version) = (SlotNo(bytes.u32()?), Gsn(bytes.u64()?));
                let (cell, rest) = Cell::decode(bytes.0)?;
                bytes.0 = rest;
                Part::Lent { slot, cell, version }
            }
            2 => Part::End,
            3 => Part::TooOld,
            _ => return None,
        })
    }
}

fn optional(out: &mut Vec<u8>, content: Option<&Arc<Vec<u8>>>) {
    wire::u8(out, u8::from(content.is_some()));
    content.into_iter().for_each(|content| wire::bytes(out, content));
}

fn read_optional(bytes: &mut Reader<'_>) -> Option<Option<Arc<Vec<u8>>>> {
    Some(match wire::flag(bytes)? {
        true => Some(Arc::new(bytes.bytes()?.to_vec())),
        false => None,
    })
}
