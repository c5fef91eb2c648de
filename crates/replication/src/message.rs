//! The messages of a replicated log, and how a family's own message type carries them.

use std::sync::Arc;

use ordain_checkpoint::Piece;
use ordain_model::wire::{self, Codec, Reader};
use ordain_model::{Epoch, Millis, PartitionId, codec};
use ordain_role::{Bytes, NodeId, PeerChange, from_variants};

use crate::configuration_service::{Arrival, Ending, LeadershipRecords};
use crate::storage::Storage;

/// A message to a role of this crate. A family's message type carries its parts beside its own ([`Carrier`]).
#[derive(Clone, Debug)]
pub enum Message<E> {
    /// Between a log and the roles of its node.
    Log(Log<E>),
    /// Between the logs of members that agree.
    Group(GroupMessage),
    /// Between the logs of members where one ships to the others.
    Ship(Ship),
    /// Between the configuration service and the nodes.
    Configuration(Configuration),
    /// Between checkpointers, and between a checkpointer and the roles of its node.
    Saving(Saving),
    /// Between the database servers of a region and its storage replicas.
    Storage(Storage),
    /// Driver to log or checkpointer: the stream to another node has changed.
    Peer(PeerChange),
}

/// A family's message type that carries the messages of a log of `E`. A message that is for none of the roles of this
/// crate is given back.
pub trait Carrier<E>:
    From<Log<E>>
    + From<GroupMessage>
    + From<Ship>
    + From<Configuration>
    + From<Saving>
    + From<Storage>
    + TryInto<Message<E>>
{
}

impl<E, M> Carrier<E> for M where
    M: From<Log<E>>
        + From<GroupMessage>
        + From<Ship>
        + From<Configuration>
        + From<Saving>
        + From<Storage>
        + TryInto<Message<E>>
{
}

/// Between a log of entries `E` and the roles of its own node. The *appender* is the role that appends.
#[derive(Clone, Debug)]
pub enum Log<E> {
    /// Appender to log: make this durable, then hand it on.
    Append(E),
    /// Log to those who apply: this is decided. In order, each entry once, on every member.
    Sealed(E),
    /// Log to appender: the entry with this number is taken; the next may come.
    Logged(Epoch),
    /// Log that hands entries on early, to appender and whoever waits for it: all entries up to this number are durable
    /// ([`StorageLogSettings::early`](crate::StorageLogSettings::early)). Comes after they were handed on here. No other log sends
    /// it: what that one hands on is durable.
    Durable(Epoch),
    /// Log to appender: the disk is full. This entry was not made durable and no role will apply it.
    Rejected(E),
    /// Log to appender: the disk has space again.
    Writable,
    /// Log to appender: members have agreed on another entry in the place of this one; no role will apply it.
    Lost(E),
    /// Log to appender: whose entries the members take.
    Leader {
        /// The node, if there is one.
        node: Option<NodeId>,
        /// Since which term.
        term: u64,
        /// The leader is this node, and knows all that was agreed on before.
        is_me: bool,
        /// The largest number in this node's log.
        last: Epoch,
    },
    /// Log of a region to appender: the reason why nobody can lead that needs an operator, from now on; or none any more.
    Obstacle(Option<Arc<str>>),
    /// Appender to log: does this node lead? The numbers of such questions rise. Each has exactly one answer, unless the
    /// node ends before.
    Confirm(u64),
    /// Log to appender: this node has led in the term at some moment after it took the question, and is still announced
    /// as leader of that term. A quorum of the members has answered a round that began after the question; nothing was
    /// written for it. All that any member had handed on before the question is handed on here.
    ///
    /// A log without members answers at once, with term 0, as it has no terms.
    Confirmed {
        /// The question.
        n: u64,
        /// The term in which this node leads; 0 in a log without members.
        term: u64,
    },
    /// Log to appender: this node does not lead, has ceased to since the question, cannot write, stops, or ships its log,
    /// for which no quorum speaks.
    NotConfirmed {
        /// The question.
        n: u64,
    },
    /// Checkpointer to log and receive journal: complete checkpoints cover so much.
    Trim(Covered),
    /// Log or receive journal to checkpointer: the entries that this node needs next are kept by no member. A
    /// checkpoint of this number or a larger one has to be got from a member; then the node is to begin again.
    Behind(Epoch),
    /// Checkpointer to log, where primaries may change: the node is to begin again with a checkpoint of this epoch.
    /// Without the log, if that does not reach there.
    BeginAgain(Epoch),
}

/// Between the logs of members, where one is the primary and the others follow it (docs/protocols/calvin.md, sections 4.1 and 4.12).
#[derive(Clone, Debug)]
pub enum Ship {
    /// Primary to member: all epochs up to one are sealed, and those since the last such message hold nothing to keep but
    /// perhaps the last.
    Entry {
        /// The primary's term.
        term: u64,
        /// The last epoch before that holds anything to keep: if that has not arrived, this must not count.
        after: Epoch,
        /// The last sealed epoch.
        through: Epoch,
        /// The part of that epoch's entry that is to be kept, as [`EntryType::encode`](crate::EntryType::encode)
        /// writes it.
        content: Option<Arc<Vec<u8>>>,
    },
    /// Primary to member: more follows once the member has taken this.
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
        /// The last epoch on disk.
        through: Epoch,
    },
    /// Primary to member: of what it wants, what is up to this epoch is not kept any more.
    Trimmed {
        /// The primary's term.
        term: u64,
        /// The last epoch that is gone.
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
        /// The epoch up to which the sender knows nothing, whether or not there was something.
        since: Epoch,
        /// The largest epoch of the partition that is known to be sealed here.
        through: Epoch,
        /// The largest epoch of which a node of this replica has executed something: so all before it was sealed.
        executed: Epoch,
        /// The entries, in order.
        held: Vec<Held>,
        /// There is nothing after it. If there is, it is asked for by another `Collect`.
        is_all: bool,
    },
    /// Configuration service to its own node's log: what was decided of the terms before. To be kept and dispatched like what a primary
    /// ships.
    Decided {
        /// The term that is being prepared.
        term: u64,
        /// Whole entries in order, as [`EntryType::encode`](crate::EntryType::encode) writes them.
        entries: Vec<Arc<Vec<u8>>>,
    },
}

/// Between the configuration service and the nodes, and between a node's part of it and the roles of that node.
#[derive(Clone, Debug)]
pub enum Configuration {
    /// Node to members: the node's introduction and state.
    Report {
        /// The node's introduction.
        arrival: Arrival,
        /// The latest configuration entry that it knows of.
        version: u64,
        /// The last epoch of its log.
        through: Epoch,
        /// The members that the sender, if primary, sends at once what it seals.
        in_sync: Vec<NodeId>,
        /// The conclusion of the sender, if a candidate.
        ending: Option<Ending>,
    },
    /// The leader's answer: what was decided.
    State {
        /// The leadership records.
        leadership_records: Box<LeadershipRecords>,
        /// The epochs up to which no node will ask for slices, by partition.
        low_watermarks: Vec<Epoch>,
    },
    /// A node's part to its log and its exchange: who is primary of what.
    Records {
        /// The latest decisions of the configuration service.
        leadership_records: Arc<LeadershipRecords>,
        /// The service has answered lately: a node that has no answer must not go on as primary.
        in_touch: bool,
    },
    /// Log to its node's part, the answer to `Records`: how far the log is.
    Kept {
        /// The log's last epoch.
        through: Epoch,
        /// The members that a primary's log sends at once what it seals.
        in_sync: Vec<NodeId>,
    },
    /// A node's part to its exchange: the epochs up to which no node will ask for slices, by partition.
    LowWatermarks(Vec<Epoch>),
    /// Exchange to its shards, a node's part to its checkpointer: nothing that was sealed up to this epoch, by whatever
    /// partition, can be lost with a primary.
    Stable(Epoch),
}

/// Between checkpointers, and between a checkpointer and its node (docs/protocols/calvin.md, section 4.14).
#[derive(Clone, Debug)]
pub enum Saving {
    /// Shard or sequencer to checkpointer: some of the state at the end of an epoch.
    Piece {
        /// The epoch.
        epoch: Epoch,
        /// The piece.
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
    /// Shard to sequencer: its replica executes nothing until a checkpoint is written, and others go on; or it goes on
    /// too.
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
        /// The bytes that are there already.
        offset: u64,
    },
    /// The answer: some of the file.
    Part {
        /// The checkpoint's epoch.
        epoch: Epoch,
        /// The time when it became complete.
        at: Millis,
        /// The place of the bytes in the file.
        offset: u64,
        /// The bytes.
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

/// The part that a node has of an entry of another partition's log, or of a former term.
#[derive(Clone, Debug)]
pub struct Held {
    /// The epoch.
    pub epoch: Epoch,
    /// The number of its parts that are to be kept, here or elsewhere
    /// ([`EntryType::count_parts`](crate::EntryType::count_parts)).
    pub parts: u32,
    /// The parts that are here: the whole entry, or a share of it ([`EntryType::merge`](crate::EntryType::merge)).
    pub content: Option<Arc<Vec<u8>>>,
}

/// The epochs up to which complete checkpoints cover the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Covered {
    /// The epoch of a checkpoint that this node and all its members have: no node asks for any of that again.
    pub by_all: Epoch,
    /// The epoch of a checkpoint that this node has and keeps: a member that asks for what it covers gets the
    /// checkpoint instead.
    pub by_own: Epoch,
}

impl Covered {
    /// Coverage by a checkpoint that this node and all its members have.
    pub const fn by_all(epoch: Epoch) -> Covered {
        Covered { by_all: epoch, by_own: epoch }
    }

    /// Coverage by a checkpoint that of all members this node alone has.
    pub const fn by_own(epoch: Epoch) -> Covered {
        Covered { by_all: Epoch(0), by_own: epoch }
    }

    /// The epoch up to which a log of so many bytes may be trimmed; it keeps at most `most` bytes for members that are
    /// away.
    pub fn through(&self, bytes: u64, most: u64) -> Epoch {
        if bytes > most { self.by_own } else { self.by_all }
    }
}

/// Between the logs of members.
#[derive(Clone, Debug)]
pub struct GroupMessage {
    /// The sender.
    pub from: NodeId,
    /// The message in the group's own encoding.
    pub head: Bytes,
    /// The rest of the encoding: bytes that are shared with the log rather than copied.
    pub tail: Bytes,
}

from_variants!(<E> Message<E> {
    Log(Log<E>),
    Group(GroupMessage),
    Ship(Ship),
    Configuration(Configuration),
    Saving(Saving),
    Storage(Storage),
    Peer(PeerChange),
});

codec!(struct Held { epoch, parts, content });

codec!(enum Ship {
    0 => Entry { term, after, through, content },
    1 => Pause { term },
    2 => Want { term, after },
    3 => Have { term, through },
    4 => Collect { term, after, partition },
    5 => Collected { term, since, through, executed, partition, is_all, held },
    6 => Trimmed { term, through },
}, local Decided);

codec!(enum Configuration {
    0 => Report { arrival, version, through, in_sync, ending },
    1 => State { leadership_records, low_watermarks },
}, local Records | Kept | LowWatermarks | Stable);

codec!(enum Saving {
    0 => Has(has),
    1 => Want { epoch, offset },
    2 => Part { epoch, at, offset, is_last, bytes },
    3 => Gone(epoch),
}, local Piece | Last | Past | Skipped | Taken | Dropped | StandsStill | Begun | Covered | Wanted);

codec!(struct Has { saved, complete });

impl GroupMessage {
    /// Appends the bytes before the tail.
    pub fn encode_head(&self, out: &mut Vec<u8>) {
        self.from.encode(out);
        wire::u32(out, (self.head.len() + self.tail.len()) as u32);
        out.extend_from_slice(&self.head);
    }

    /// Reads a message of which these are all the bytes, and keeps them instead of a copy.
    pub fn decode_shared(bytes: &Bytes) -> Option<GroupMessage> {
        let mut reader = Reader::new(bytes);
        let (from, head) = (NodeId::decode(&mut reader)?, reader.bytes()?);
        reader.end(GroupMessage { from, head: bytes.slice_ref(head), tail: Bytes::new() })
    }
}

impl Codec for GroupMessage {
    const LEAST: usize = 6;

    fn encode(&self, out: &mut Vec<u8>) {
        self.encode_head(out);
        out.extend_from_slice(&self.tail);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<GroupMessage> {
        let (from, head) = <(NodeId, Vec<u8>)>::decode(bytes)?;
        Some(GroupMessage { from, head: head.into(), tail: Bytes::new() })
    }
}
