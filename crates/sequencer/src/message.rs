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
use ordain_replication::{self as replication, Configuration, Decision, GroupMessage, Ship};
use ordain_role::{Bytes, PeerChange, Wire};

/// What a log of batches and the roles of its node say to each other.
pub type Log = replication::Log<Arc<Batch>>;

/// What a [`GroupMessage`] begins with between nodes.
const GROUP: u8 = 2;

/// What the roles of a sequenced engine say to each other; `X` are the messages of the engine's own roles.
#[derive(Clone, Debug)]
pub enum Message<X> {
    /// Between a gateway and the engine.
    Front(Front),
    /// Between the sequencer, the exchange and the shards.
    Sequencing(Sequencing),
    /// Between sequencers and shards: reads on a snapshot.
    Reading(Reading),
    /// Between the engine's own roles.
    Engine(X),
    /// To and between exchanges: what crosses partitions.
    Post(Post<X>),
    /// Between a partition's log and the roles of its node. Exchanges hand slices on to shards, and the first shard
    /// batches to a lock manager, in the same words.
    Log(Log),
    /// Between the configuration service's log and its members.
    ConfigurationLog(replication::Log<Decision>),
    /// Between the logs of members: what they agree on.
    Group(GroupMessage),
    /// Between the logs of members: what one has sealed, and the others are to take.
    Ship(Ship),
    /// Between the configuration service and the nodes.
    Configuration(Configuration),
    /// To and from checkpointers.
    Saving(Saving),
    /// From the driver: what becomes of the stream to another node.
    Peer(PeerChange),
}

/// Between the sequencer, the exchange, the shards, and the lock manager where a node has one.
#[derive(Clone, Debug)]
pub enum Sequencing {
    /// Lock manager to shard: this transaction has all its locks on this node; execute it.
    Grant(Gsn),
    /// Shard to lock manager: its part of this transaction is executed.
    Done(Gsn),
    /// Exchange to shards: all batches up to the end of this epoch have been handed to them, of all partitions.
    Passed(Epoch),
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
    /// Exchange to sequencer, sequencer to the leader's: another partition has opened this epoch, so this one must
    /// seal it too, with something in it or not.
    Reached(Epoch),
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

impl<X> From<Log> for Message<X> {
    fn from(message: Log) -> Self {
        Message::Log(message)
    }
}

impl<X> From<replication::Log<Decision>> for Message<X> {
    fn from(message: replication::Log<Decision>) -> Self {
        Message::ConfigurationLog(message)
    }
}

impl<X> From<GroupMessage> for Message<X> {
    fn from(message: GroupMessage) -> Self {
        Message::Group(message)
    }
}

impl<X> From<Ship> for Message<X> {
    fn from(message: Ship) -> Self {
        Message::Ship(message)
    }
}

impl<X> From<Configuration> for Message<X> {
    fn from(message: Configuration) -> Self {
        Message::Configuration(message)
    }
}

impl<X> TryFrom<Message<X>> for replication::Message<Arc<Batch>> {
    type Error = Message<X>;

    fn try_from(message: Message<X>) -> Result<Self, Message<X>> {
        match message {
            Message::Log(log) => Ok(log.into()),
            other => carried(other),
        }
    }
}

impl<X> TryFrom<Message<X>> for replication::Message<Decision> {
    type Error = Message<X>;

    fn try_from(message: Message<X>) -> Result<Self, Message<X>> {
        match message {
            Message::ConfigurationLog(log) => Ok(log.into()),
            other => carried(other),
        }
    }
}

/// What is for a log whatever its entries are.
fn carried<X, E>(message: Message<X>) -> Result<replication::Message<E>, Message<X>> {
    match message {
        Message::Group(message) => Ok(message.into()),
        Message::Ship(message) => Ok(message.into()),
        Message::Configuration(message) => Ok(message.into()),
        Message::Peer(change) => Ok(change.into()),
        other => Err(other),
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
            Message::Configuration(counsel) => {
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
            Message::Sequencing(_)
            | Message::Log(_)
            | Message::ConfigurationLog(_)
            | Message::Saving(_)
            | Message::Peer(_) => wire::u8(out, u8::MAX),
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
            6 => Configuration::decode(&mut bytes)?.into(),
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
