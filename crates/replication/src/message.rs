//! The messages of a replicated log, and how a family's own message type carries them.

use std::sync::Arc;

use ordain_model::wire::{self, Reader};
use ordain_model::{Epoch, PartitionId};
use ordain_role::{Bytes, NodeId, PeerChange};

use crate::configuration_service::{Arrival, Ending, LeadershipRecords};

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
    /// From the driver: what becomes of the stream to another node.
    Peer(PeerChange),
}

/// A family's message type that carries the messages of a log of `E`. A message that is for none of the roles of this
/// crate is given back.
pub trait Carrier<E>:
    From<Log<E>> + From<GroupMessage> + From<Ship> + From<Configuration> + TryInto<Message<E>>
{
}

impl<E, M> Carrier<E> for M where
    M: From<Log<E>> + From<GroupMessage> + From<Ship> + From<Configuration> + TryInto<Message<E>>
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
    /// Log to appender: the disk is full. This entry was not made durable and nobody will apply it.
    Rejected(E),
    /// Log to appender: the disk has space again.
    Writable,
    /// Log to appender: members have agreed on something else in the place of this entry; nobody will apply it.
    Lost(E),
    /// Log to appender: whose entries the members take.
    Leader {
        /// The node, if there is one.
        node: Option<NodeId>,
        /// Since which term.
        term: u64,
        /// Whether it is this node, and knows all that was agreed on before.
        is_me: bool,
        /// The largest number in this node's log.
        last: Epoch,
    },
    /// Checkpointer to log, and to whoever journals what it receives: so much is covered by complete checkpoints.
    Trim(Covered),
    /// Log, or receive journal, to checkpointer: what this node needs next is not kept any more by whoever was asked. A
    /// checkpoint has to be got from a member that covers everything up to this number; then the node is to begin again.
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
        /// Up to where.
        through: Epoch,
        /// What is to be kept of the entry of that epoch, as [`EntryType::encode`](crate::EntryType::encode) writes it.
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
    /// To the members: the sender is there.
    Report {
        /// As whom.
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
        /// All of it.
        leadership_records: Box<LeadershipRecords>,
        /// Up to which epoch nobody will ask for slices, by partition.
        low_watermarks: Vec<Epoch>,
    },
    /// A node's part to its log and its exchange: who is primary of what.
    Records {
        /// As the configuration service has decided.
        leadership_records: Arc<LeadershipRecords>,
        /// The service has answered lately: a node that has no answer must not go on as primary.
        in_touch: bool,
    },
    /// Log to its node's part, the answer to `Records`: how far the log is.
    Kept {
        /// Its last epoch.
        through: Epoch,
        /// The members that a primary's log sends at once what it seals.
        in_sync: Vec<NodeId>,
    },
    /// A node's part to its exchange: up to which epoch nobody will ask for slices, by partition.
    LowWatermarks(Vec<Epoch>),
    /// Exchange to its shards, a node's part to its checkpointer: nothing that was sealed up to this epoch, by whatever
    /// partition, can be lost with a primary.
    Stable(Epoch),
}

/// The part that a node has of an entry of another partition's log, or of a former term.
#[derive(Clone, Debug)]
pub struct Held {
    /// The epoch.
    pub epoch: Epoch,
    /// How many parts of it are to be kept, here or elsewhere ([`EntryType::count_parts`](crate::EntryType::count_parts)).
    pub parts: u32,
    /// Those that are here: the whole entry, or a share of it ([`EntryType::merge`](crate::EntryType::merge)).
    pub content: Option<Arc<Vec<u8>>>,
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
    /// This node and all its members have a checkpoint of an epoch.
    pub const fn by_all(epoch: Epoch) -> Covered {
        Covered { by_all: epoch, by_own: epoch }
    }

    /// Of all its members this node alone has a checkpoint of an epoch.
    pub const fn by_own(epoch: Epoch) -> Covered {
        Covered { by_all: Epoch(0), by_own: epoch }
    }

    /// What may go of a log that has so many bytes and is to have no more than `most` for the sake of members that are away.
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

impl<E> From<Log<E>> for Message<E> {
    fn from(message: Log<E>) -> Self {
        Message::Log(message)
    }
}

impl<E> From<GroupMessage> for Message<E> {
    fn from(message: GroupMessage) -> Self {
        Message::Group(message)
    }
}

impl<E> From<Ship> for Message<E> {
    fn from(message: Ship) -> Self {
        Message::Ship(message)
    }
}

impl<E> From<Configuration> for Message<E> {
    fn from(message: Configuration) -> Self {
        Message::Configuration(message)
    }
}

impl<E> From<PeerChange> for Message<E> {
    fn from(change: PeerChange) -> Self {
        Message::Peer(change)
    }
}

impl GroupMessage {
    /// Appends what stands before the tail.
    pub fn encode(&self, out: &mut Vec<u8>) {
        wire::u16(out, self.from.0);
        wire::u32(out, (self.head.len() + self.tail.len()) as u32);
        out.extend_from_slice(&self.head);
    }

    /// Reads what was written so; `None` if the bytes are no such message.
    pub fn decode(bytes: &Bytes) -> Option<GroupMessage> {
        let mut reader = Reader(bytes);
        let (from, head) = (NodeId(reader.u16()?), reader.bytes()?);
        reader.end(GroupMessage { from, head: bytes.slice_ref(head), tail: Bytes::new() })
    }
}

impl Ship {
    /// Appends its bytes as they cross nodes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut numbers = |tag, numbers: &[u64]| {
            wire::u8(out, tag);
            numbers.iter().for_each(|number| wire::u64(out, *number));
        };
        match self {
            Ship::Entry { term, after, through, content } => {
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
            Ship::Collected { partition, term, since, through, executed, held, is_all } => {
                numbers(5, &[*term, since.0, through.0, executed.0]);
                wire::u16(out, partition.0);
                wire::u8(out, u8::from(*is_all));
                wire::u32(out, held.len() as u32);
                for Held { epoch, parts, content } in held {
                    wire::u64(out, epoch.0);
                    wire::u32(out, *parts);
                    optional(out, content.as_ref());
                }
            }
            Ship::Trimmed { term, through } => numbers(6, &[*term, through.0]),
            // It stays on its node: nobody sends it to another.
            Ship::Decided { .. } => wire::u8(out, u8::MAX),
        }
    }

    /// Reads what was written so; `None` if the bytes are no such message.
    pub fn decode(bytes: &mut Reader<'_>) -> Option<Ship> {
        let tag = bytes.u8()?;
        let term = bytes.u64()?;
        Some(match tag {
            0 => {
                let (after, through) = (Epoch(bytes.u64()?), Epoch(bytes.u64()?));
                Ship::Entry { term, after, through, content: read_optional(bytes)? }
            }
            1 => Ship::Pause { term },
            2 => Ship::Want { term, after: Epoch(bytes.u64()?) },
            3 => Ship::Have { term, through: Epoch(bytes.u64()?) },
            4 => {
                let after = Epoch(bytes.u64()?);
                Ship::Collect { partition: PartitionId(bytes.u16()?), term, after }
            }
            5 => {
                let [since, through, executed] = [bytes.u64()?, bytes.u64()?, bytes.u64()?].map(Epoch);
                let partition = PartitionId(bytes.u16()?);
                let is_all = wire::flag(bytes)?;
                let held = |bytes: &mut Reader<'_>| {
                    let (epoch, parts) = (Epoch(bytes.u64()?), bytes.u32()?);
                    Some(Held { epoch, parts, content: read_optional(bytes)? })
                };
                let held = (0..bytes.count(13)?).map(|_| held(bytes)).collect::<Option<Vec<Held>>>()?;
                Ship::Collected { partition, term, since, through, executed, held, is_all }
            }
            6 => Ship::Trimmed { term, through: Epoch(bytes.u64()?) },
            _ => return None,
        })
    }
}

impl Configuration {
    /// Appends its bytes as they cross nodes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Configuration::Report { arrival, version, through, in_sync, ending } => {
                wire::u8(out, 0);
                let numbers = [arrival.incarnation, arrival.life, *version, through.0];
                numbers.iter().for_each(|number| wire::u64(out, *number));
                LeadershipRecords::encode_nodes(in_sync, out);
                wire::u8(out, u8::from(ending.is_some()));
                ending.iter().for_each(|ending| ending.encode(out));
            }
            Configuration::State { leadership_records, low_watermarks } => {
                wire::u8(out, 1);
                leadership_records.encode(out);
                wire::u32(out, low_watermarks.len() as u32);
                low_watermarks.iter().for_each(|epoch| wire::u64(out, epoch.0));
            }
            // These stay on their node: nobody sends them to another.
            Configuration::Records { .. }
            | Configuration::Kept { .. }
            | Configuration::LowWatermarks(_)
            | Configuration::Stable(_) => wire::u8(out, u8::MAX),
        }
    }

    /// Reads what was written so; `None` if the bytes are no such message.
    pub fn decode(bytes: &mut Reader<'_>) -> Option<Configuration> {
        Some(match bytes.u8()? {
            0 => {
                let arrival = Arrival { incarnation: bytes.u64()?, life: bytes.u64()? };
                let (version, through) = (bytes.u64()?, Epoch(bytes.u64()?));
                let in_sync = LeadershipRecords::decode_nodes(bytes)?;
                let has_ended = wire::flag(bytes)?;
                let ending = if has_ended { Some(Ending::decode(bytes)?) } else { None };
                Configuration::Report { arrival, version, through, in_sync, ending }
            }
            1 => {
                let leadership_records = Box::new(LeadershipRecords::decode(bytes)?);
                let low_watermarks = (0..bytes.count(8)?).map(|_| bytes.u64().map(Epoch));
                Configuration::State {
                    leadership_records,
                    low_watermarks: low_watermarks.collect::<Option<Vec<Epoch>>>()?,
                }
            }
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
