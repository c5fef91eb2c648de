//! The messages of the sequencing layer, and how an engine's own are carried beside them.

mod wire;

use std::fmt::Debug;
use std::sync::Arc;

use ordain_family::Incoming;
use ordain_model::wire::Codec;
use ordain_model::{
    Abort, Batch, Cell, Chunk, ChunkNo, Epoch, Front, GatewayId, Gsn, Millis, PartitionId, Position, SlotNo,
    VirtualShards,
};
use ordain_replication::{
    self as replication, Arrival, Configuration, Decision, GroupMessage, Saving, Ship, Storage,
};
use ordain_role::{PeerChange, from_variants};

/// A message between a log of batches and the roles of its node.
pub type Log = replication::Log<Arc<Batch>>;

/// A message between roles of a deterministic engine; `X` are the messages of the engine's own roles.
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
    /// Between exchanges, and between an exchange and its node: what crosses partitions.
    Exchange(ExchangeMessage<X>),
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
    /// Between checkpointers, and between a checkpointer and its node.
    Saving(Saving),
    /// Driver to roles: the stream to another node has changed.
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
        /// The batch's partition.
        partition: PartitionId,
    },
    /// Shard to sequencer: records at these positions have outlived their time.
    Expired {
        /// The positions, some thousand records at most.
        positions: std::ops::Range<Position>,
    },
    /// Shard to sequencer: too much of its partition's load is on one shard, and would be less so if these slots were in these
    /// virtual shards, or where the partition has them by itself.
    Uneven(PartitionId, VirtualShards),
    /// Shard to the first shard of its partition: how many records it has in its large slots.
    Large {
        /// The shard's number through the replica.
        shard: usize,
        /// The slots, of the 1,024, and how many records there are in each.
        slots: Vec<(usize, u32)>,
    },
    /// Exchange to sequencer: the nodes of the replica have met, and batches may be closed.
    Founded,
    /// Exchange to sequencer, sequencer to the leader's: another partition has opened this epoch, so this one must
    /// seal it too, with something in it or not.
    Reached(Epoch),
}

/// Reads on a snapshot (docs/protocols/paxflow.md, section 3). None of it is logged or sent again: the reader asks
/// again.
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
    /// Sequencer to the shards of its replica: no reader that it knows of will read as of an earlier epoch.
    LowWatermark {
        /// The sequencer's partition.
        partition: PartitionId,
        /// The epoch.
        epoch: Epoch,
    },
    /// Sequencer to the shards of its replica: reads will come after a silence, so what changes replace is to be kept.
    Keep(PartitionId),
    /// The answer: the oldest epoch as of which the shard can show the state.
    Kept(Epoch),
    /// Sequencer to the shards of its replica: no reader that it knows of reads any more, until the next `Keep`.
    Forget(PartitionId),
    /// Sequencer to the leader's: as of which epoch does a state hold all that any client was answered until now?
    Ask(GatewayId, ChunkNo),
    /// The answer, with a time that is not before that of any batch up to the epoch in the leader's log.
    Stamp(GatewayId, ChunkNo, Epoch, Millis),
}

/// The part of a chunk that a shard has read, for the shard that composes the replies.
#[derive(Clone, Debug, PartialEq)]
pub struct Parts {
    /// The shard, numbered through the replica.
    pub from: usize,
    /// The chunk.
    pub chunk: (GatewayId, ChunkNo),
    /// The epoch as of which it was read.
    pub at: Epoch,
    /// The results by transaction; those of one are together and complete.
    pub parts: Vec<(u32, Part)>,
}

/// A result of a read on a shard.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The answer of a fragment.
    Slot {
        /// The fragment.
        slot: SlotNo,
        /// The answer.
        bytes: Vec<u8>,
        /// The reason why it failed, if it did.
        failure: Option<Abort>,
    },
    /// The record of a shipped fragment, if it is there.
    Shipped {
        /// The fragment.
        slot: SlotNo,
        /// The record.
        cell: Cell,
        /// The version of the record.
        version: Gsn,
    },
    /// The end of a transaction.
    End,
    /// The state is not kept any more; that is all of a transaction.
    TooOld,
}

/// Between exchanges, and between an exchange and its node.
#[derive(Clone, Debug)]
pub enum ExchangeMessage<X> {
    /// Sequencer to its exchange, and on to the peers': a batch of this epoch is on its way.
    Opened(Epoch),
    /// Exchange to exchange: all epochs of a sequencer up to one are sealed, and those since the last such message are
    /// empty but perhaps the last (docs/protocols/calvin.md, section 3: BATCH, BATCH_RANGE).
    Slot {
        /// The sequencer.
        sequencer: PartitionId,
        /// The last epoch before in which there was anything for the receiver: if that has not arrived, this must not
        /// count.
        after: Epoch,
        /// The last sealed epoch.
        through: Epoch,
        /// The number of transactions of that epoch's batch that are to be kept, for all partitions. Known only where
        /// a next primary may have to put the batch together from its slices.
        logged: u32,
        /// The receiver's slice of the batch of that epoch, as [`Batch::encode_slice`] writes it.
        content: Option<Arc<Vec<u8>>>,
    },
    /// Something of an engine for a shard of another partition (docs/protocols/calvin.md, section 3: READ_RESULT).
    RemoteResult {
        /// The shard, numbered through the replica.
        to: u16,
        /// The remote result.
        remote_result: Arc<X>,
    },
    /// The sender's progress: everything up to this epoch is executed there, and it could do it again alone
    /// (docs/protocols/calvin.md, section 3: PROGRESS).
    Progress(Epoch),
    /// The sender asks for everything after this epoch that the receiver has for it (docs/protocols/calvin.md, section
    /// 3: RESEND). A receiver of another replica substitutes for its member in the sender's until `Relieved`.
    Resume(Epoch),
    /// The receiver need not substitute for its member any more.
    Relieved,
    /// The sender keeps nothing any more up to this epoch, of what the receiver has asked for again or needs. The
    /// receiver gets nothing until it asks for what comes after.
    Forgotten(Epoch),
    /// More of what the receiver has asked for follows once it has taken this.
    Pause,
    /// The sender has taken all up to the pause: it wants more.
    Continue,
    /// The sender asks its member for what has come in there.
    Fetch {
        /// The number of the first entry of the journal that it wants.
        from: Epoch,
        /// The epoch up to which the sender has no use for anything.
        after: Epoch,
    },
    /// The sender's journal has nothing any more up to this epoch, of what the receiver has asked for.
    Trimmed(Epoch),
    /// The sender's introduction: the first message of a stream, where nodes may have to be rebuilt.
    Arrival(Arrival),
    /// The number of terms that the sender knows of, begun or decided
    /// ([`LeadershipRecords::terms`](replication::LeadershipRecords::terms)). Messages from here on may be of the last
    /// of them: they are for receivers that know of as many.
    Terms(u64),
    /// Between nodes of a replica: how far the sender is with their first meeting (`exchange/founding.rs`). The first message of
    /// a stream but for introductions.
    Beginning {
        /// The sender has met all its peers and has written that down.
        is_ready: bool,
        /// The sender knows that the nodes of the replica have begun.
        has_begun: bool,
    },
    /// A part of the sender's journal.
    Fetched {
        /// The number of the first entry that was asked for.
        from: Epoch,
        /// The number of the entry that comes next.
        next: Epoch,
        /// The epoch up to which everything that has come in stands in the entries before, if no entry follows.
        covers: Option<Epoch>,
        /// The entries, one after the other.
        journal_records: Arc<Vec<u8>>,
    },
}

/// A message of an engine from one role to another on another node.
pub trait RemoteResult: Codec + Clone + Debug + Send + Sync {
    /// The last of the transactions that it is about: the sender has executed something of it.
    fn last(&self) -> Gsn;

    /// About how many bytes it takes while it is kept.
    fn weight(&self) -> usize;

    /// The largest epoch of the transactions that it is about: once that is executed at the receiver, it is done with.
    fn epoch(&self) -> Epoch {
        self.last().epoch()
    }
}

from_variants!(<X> Message<X> {
    Front(Front),
    Sequencing(Sequencing),
    Reading(Reading),
    Exchange(ExchangeMessage<X>),
    Log(Log),
    ConfigurationLog(replication::Log<Decision>),
    Group(GroupMessage),
    Ship(Ship),
    Configuration(Configuration),
    Saving(Saving),
    Peer(PeerChange),
});

/// No partition of this family is a region, so no log of it has storage replicas.
impl<X> From<Storage> for Message<X> {
    fn from(message: Storage) -> Message<X> {
        unreachable!("a log without storage replicas sent {message:?}")
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

/// The message as one for a log, whatever the log's entries are.
#[expect(clippy::result_large_err, reason = "no error: a message for another role is given back as it came")]
fn carried<X, E>(message: Message<X>) -> Result<replication::Message<E>, Message<X>> {
    match message {
        Message::Group(message) => Ok(message.into()),
        Message::Ship(message) => Ok(message.into()),
        Message::Configuration(message) => Ok(message.into()),
        Message::Saving(message) => Ok(message.into()),
        Message::Peer(change) => Ok(change.into()),
        other => Err(other),
    }
}

impl<X: Codec + Clone + Debug + Send + Sync + 'static> ordain_family::Message for Message<X> {
    fn incoming(self) -> Incoming<Self> {
        match self {
            Message::Front(front) => Incoming::Front(front),
            Message::Peer(change) => Incoming::Peer(change),
            other => Incoming::Role(other),
        }
    }
}
