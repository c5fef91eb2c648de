//! The messages of the family's roles.

use std::sync::Arc;

use ordain_execution::{TableChange, Write};
use ordain_family::Incoming;
use ordain_model::wire::{Codec as _, Framed};
use ordain_model::{
    Abort, Cell, Chunk, ChunkNo, Db, Front, GatewayId, Gsn, Millis, OpenId, OutcomeBatch, SlotNo, Step, codec,
};
use ordain_replication::{Configuration, GroupMessage, Log, Saving, Ship, Storage};
use ordain_role::{Bytes, PeerChange, Wire, from_variants};

use crate::concurrency::Reads;
use crate::cuts::CutMessage;
use crate::entry::{Commitment, Entry, Hold};
use crate::founding::Met;
use crate::ids::{Age, AttemptId, Bounds, Lead, Term, TransactionId};
use crate::known::Readers;
use crate::proxy::{Come, Taken};
use crate::tokens::{Attest, Attested};
use crate::view::{Vector, View};
use crate::viewing::Laid;
use crate::voting::Ballot;

/// A message between the roles of the family.
#[derive(Clone, Debug)]
pub enum Message {
    /// Between a front door and the manager of its node.
    Front(Front),
    /// Between managers and participants of any nodes, each of which speaks for a partition.
    Termed(Termed),
    /// Manager to every other: this node serves a partition from now on.
    Leads(Lead),
    /// Between a manager that relays transactions and the one that coordinates them.
    Relay(Relay),
    /// Between managers of partitions with one member each: how far the sender is in their first meeting.
    Meet(Met),
    /// Between managers: where checkpoints are cut.
    Cut(CutMessage),
    /// Between a manager and the participants of its own node.
    Own(Own),
    /// Between manager and log.
    Log(Log<Arc<Entry>>),
    /// Between the logs of members.
    Group(GroupMessage),
    /// Between checkpointers, and between a checkpointer and the roles of its node.
    Saving(Saving),
    /// Between the database servers of a region and its storage replicas.
    Storage(Storage),
    /// Driver to roles: the stream to another node has changed.
    Peer(PeerChange),
}

/// A message of one partition to another, each in a term. Who receives it takes it only if both terms are right: a message to a
/// former leader, or of one, is dropped.
#[derive(Clone, Debug)]
pub struct Termed {
    /// The sender's claim.
    pub from: Lead,
    /// The claim of the receiver, as the sender knows it.
    pub to: Lead,
    /// The content.
    pub content: Protocol,
}

/// The content of a message between partitions.
#[derive(Clone, Debug)]
pub enum Protocol {
    /// Coordinator to participant: run these fragments.
    Access(Accesses),
    /// Participant to coordinator: what came of some.
    Accessed(Accessed),
    /// Participant to coordinator: a fragment takes long to compute, and the answer comes when it has.
    Computing(AttemptId),
    /// Coordinator to participant, between two accesses of an open transaction: take back its last step, or hand over what
    /// it has written.
    Settle(AttemptId, Settle),
    /// Participant to coordinator: it is done.
    Settled(Settled),
    /// Coordinator to participant: an attempt is over without effect, or has only read and has this stamp.
    Finish(AttemptId, Option<Age>),
    /// Coordinator to participant, after messages may have been lost: of this home's attempts, these alone are under way.
    Still(Vec<AttemptId>),
    /// Coordinator to the manager of another partition: promise this.
    Prepare(PrepareRequest),
    /// Manager to coordinator: it is promised with these stamps, or never will be, as there is none or for another reason; and what it has seen
    /// there.
    Vote(AttemptId, Option<Bounds>, View),
    /// Coordinator to manager: the outcome; what it has committed with, if it has.
    Decide(AttemptId, Option<Commitment>),
    /// Manager to coordinator: the outcome is agreed on here.
    Ack(AttemptId),
    /// Manager to coordinator: what has become of this, which is promised here?
    Ask(AttemptId),
    /// Coordinator to manager: does your node lead? All that the attempt reads there has been read.
    Confirm(ConfirmRequest),
    /// Manager to coordinator: it led in its term after it was asked, and the attempt may have these stamps; or it may have none.
    Confirmed(AttemptId, Option<Bounds>),
    /// Coordinator to the leader of the first partition, where that gives the stamps of all homes: so many are wanted.
    Stamps(StampRequest),
    /// The answer to it.
    Stamped(Stamped),
    /// Coordinator to manager: it has decided up to this number, and the receiver has installed what concerns it of that; it has decided up to
    /// the second number, and has told the receiver what concerns it of that; and of its transactions that only read these are under way.
    Announce(u64, u64, Readers),
    /// Between the servers of regions: the votes on a transaction of several.
    Ballot(Ballot),
    /// Initiator to the server of another region: run and validate this part of a transaction there.
    Part(Box<PartRequest>),
    /// Initiator to the server of another region: keep these records there for a transaction that has lost often.
    Reserve(Reservation),
    /// Initiator to the server of another region: a transaction for which records were kept is over.
    Release(TransactionId),
}

/// A request to keep records of a region for a transaction of several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// The transaction.
    pub of: TransactionId,
    /// The time at which its initiator first reserved something for it: of two the earlier goes first.
    pub since: Millis,
    /// The hashes of the records.
    pub keys: Vec<u64>,
}

codec!(struct Reservation { of, since, keys });

/// A request for a region's part of a transaction of several.
#[derive(Clone, Debug, PartialEq)]
pub struct PartRequest {
    /// The attempt of the initiator.
    pub of: AttemptId,
    /// Its age.
    pub age: Age,
    /// A time that it has seen, or a later one.
    pub now: Millis,
    /// The regions that vote, in the terms in which the initiator knows them; nobody if the transaction only reads: then the
    /// initiator alone wants to know whether what it has read is the newest.
    pub participants: Vec<Lead>,
    /// All transactions of the initiator in this term with lower numbers are over.
    pub low: u64,
    /// The records there that it has read, each once.
    pub reads: Vec<Read>,
    /// The records there that it writes, each once.
    pub writes: Vec<Write>,
}

codec!(struct PartRequest { of, age, now, participants, low, reads, writes });

/// A record that an attempt has read in a view.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// Its database.
    pub db: Db,
    /// Its key.
    pub key: Vec<u8>,
    /// The version that it has read; 0 if it was not there.
    pub version: Gsn,
    /// The transaction of several regions that has left it so, if the reader does not know the place of its outcome in the region's log. That place
    /// is the version then, unless the version is 0.
    pub by: Option<AttemptId>,
}

codec!(struct Read { db, key, version, by });

/// A coordinator's request for stamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StampRequest {
    /// Its number, which the coordinator gives once in a term.
    pub number: u64,
    /// The number of stamps.
    pub count: u32,
    /// All have to be later than this one.
    pub after: Age,
}

codec!(struct StampRequest { number, count, after });

/// The stamps that were asked for: the first one, and one more in each microsecond that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamped {
    /// The number of the request.
    pub number: u64,
    /// The first stamp.
    pub first: Age,
}

codec!(struct Stamped { number, first });

/// Fragments of transactions of one chunk.
#[derive(Clone, Debug)]
pub struct Accesses {
    /// The chunk, or the part of it that holds these transactions.
    pub chunk: Arc<Chunk>,
    /// The fragments, by attempt.
    pub list: Vec<Access>,
}

/// A coordinator's request to a participant.
#[derive(Clone, Debug)]
pub struct Access {
    /// The attempt.
    pub attempt: AttemptId,
    /// Its age.
    pub age: Age,
    /// The place of the transaction in the chunk's list.
    pub at: u32,
    /// Which of the plan's fragments the participant runs, in ascending order.
    pub fragments: Vec<u32>,
    /// The results that these fragments need, of earlier ones elsewhere.
    pub inputs: Vec<(SlotNo, Vec<u8>)>,
    /// The records of other participants that compute fragments among them are handed.
    pub shipped: Vec<Shipped>,
    /// Records of this participant as compute fragments elsewhere have left them.
    pub returned: Vec<Write>,
    /// The time that the attempt sees.
    pub now: Millis,
    /// The attempt's seed.
    pub seed: u64,
    /// The number of the step that it is of, in an open transaction; 0 in any other. The results that a participant knows are
    /// of one step.
    pub step: u32,
    /// The versions that it reads.
    pub snapshot: Snapshot,
    /// Nothing else follows: the participant hands over what the attempt has written, if the coordinator is on its node.
    pub is_last: bool,
}

/// The versions that an attempt reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Which ones.
    pub reads: Reads,
    /// What they follow, if it has a snapshot, or what that begins with.
    pub vector: Vector,
}

codec!(struct Snapshot { reads, vector });

/// A record for a compute fragment of another participant.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// The fragment that ships it.
    pub slot: SlotNo,
    /// Its content, as the attempt sees it.
    pub cell: Cell,
    /// The version of the content.
    pub version: Gsn,
    /// It is more than may be shipped, and was left where it is.
    pub is_held_back: bool,
}

/// Something that a participant does with an open transaction's workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    /// Takes back what the step of this number has written.
    Undo(u32),
    /// Hands over what the transaction has written.
    HandOver,
}

codec!(enum Settle {
    0 => Undo(step),
    1 => HandOver,
});

/// A participant's answer to [`Protocol::Settle`].
#[derive(Clone, Debug)]
pub struct Settled {
    /// The attempt.
    pub attempt: AttemptId,
    /// The participant's number.
    pub shard: u16,
    /// The transaction's changes of whole databases, if they were wanted.
    pub changes: Vec<TableChange>,
    /// The records that it has changed, if they were wanted.
    pub writes: Vec<Write>,
    /// The records that it has read in a view.
    pub seen: Vec<Read>,
}

codec!(struct Settled { attempt, shard, changes, writes, seen });

/// A participant's answer to an [`Access`].
#[derive(Clone, Debug)]
pub struct Accessed {
    /// The attempt.
    pub attempt: AttemptId,
    /// The participant's number.
    pub shard: u16,
    /// The results of the fragments that were run.
    pub slots: Vec<(SlotNo, Vec<u8>)>,
    /// The reason why the participant has not run all fragments, if it has not.
    pub failure: Option<Failure>,
    /// The records that go to other participants' compute fragments.
    pub shipped: Vec<Shipped>,
    /// Records of other participants that compute fragments have changed here.
    pub returned: Vec<Write>,
    /// Results that only the reply needs were left out: it is too long.
    pub is_too_long: bool,
    /// The attempt has changed something here.
    pub has_written: bool,
    /// Its changes of whole databases, if they were wanted.
    pub changes: Vec<TableChange>,
    /// The records that it has changed, if they were wanted.
    pub writes: Vec<Write>,
    /// The latest stamp that the participant's concurrency control knows of.
    pub latest: Age,
    /// The first stamp that the attempt may have here.
    pub from: Age,
    /// The versions that it reads from now on.
    pub reads: Reads,
    /// What it has seen here.
    pub view: View,
    /// The records that it has read so far in a view.
    pub seen: Vec<Read>,
}

/// A reason why a participant has not run all fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The concurrency control has refused an access: the attempt is over, the transaction is not.
    Refused,
    /// A fragment aborts the transaction.
    Aborted(SlotNo, Abort),
    /// A later time than the attempt's was used to tell what has expired: an attempt at that time or later is let in.
    TooOld(Millis),
}

/// A coordinator's request to another partition, after all accesses of the attempt have been answered.
#[derive(Clone, Debug)]
pub struct PrepareRequest {
    /// The attempt.
    pub attempt: AttemptId,
    /// The stamps that it may have, as far as the coordinator knows.
    pub bounds: Bounds,
    /// The participants there that ran fragments of it.
    pub shards: Vec<u16>,
    /// Records there as compute fragments elsewhere have left them.
    pub returned: Vec<Write>,
    /// The time that the attempt has seen.
    pub now: Millis,
    /// The versions that it has read.
    pub snapshot: Snapshot,
}

/// A coordinator's question to a partition at which an attempt has only read, or at which the transaction aborts by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmRequest {
    /// The attempt.
    pub attempt: AttemptId,
    /// The stamps that it may have, as far as the coordinator knows.
    pub bounds: Bounds,
    /// The participants there that ran fragments of it, where they have to agree on its stamp.
    pub shards: Vec<u16>,
    /// The versions that it has read.
    pub snapshot: Snapshot,
}

codec!(struct ConfirmRequest { attempt, bounds, shards, snapshot });

/// Between a manager that relays transactions and the one that coordinates them.
#[derive(Clone, Debug)]
pub enum Relay {
    /// Run these.
    Submit(Lead, Arc<Chunk>),
    /// The only transaction of this chunk is a step of an open one.
    Step(Lead, Step, Arc<Chunk>),
    /// An open transaction is over for its client: it has no effect unless it is being committed.
    Abandon(Lead, OpenId),
    /// Their outcomes, and what clients of the sender have seen.
    Outcomes(OutcomeBatch, View),
    /// Transactions turned away: ask who leads their home now.
    Return(Returned),
    /// Before what is passed on or answered: the sender's clients have been told of stamps up to this one, and have seen this.
    Heard(Age, View),
    /// With stamps of attempts, to all nodes: the sender has given or heard of this one.
    Told(Age),
    /// To who leads a home: is this so? A client has brought a token along that says it.
    Attest(Attest),
    /// The answer to it.
    Attested(Attested),
}

/// Transactions of a chunk that are turned away, without effect for ever, as their home is not led in the term in which it was
/// asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The claim under which they were asked for.
    pub asked: Lead,
    /// The gateway of the chunk.
    pub gateway: GatewayId,
    /// The chunk.
    pub chunk: ChunkNo,
    /// The transactions.
    pub indexes: Vec<u32>,
}

codec!(struct Returned { asked, gateway, chunk, indexes });

/// Between a manager and the participants of its own node.
#[derive(Clone, Debug)]
pub enum Own {
    /// Manager to participant: the node serves the partition in this term, once all up to this place is applied.
    Serve(Term, ordain_model::Epoch),
    /// Participant to manager: it serves in this term.
    Ready(Term),
    /// Proxy to view: the next bytes of a checkpoint of the region, whose log was trimmed beyond what the view has.
    Come(Come),
    /// The answer: the view has taken them.
    Taken(Taken),
    /// View to manager: it shows another region, whose log has come to this term.
    Viewed(Lead),
    /// View to manager: it shows a checkpoint of another region in place of what it showed, and answers nothing that it was asked before.
    Replaced(ordain_model::PartitionId),
    /// Manager to view: a transaction of the node's own region writes in the other one.
    Lay(Laid),
    /// Manager to participant: the node serves the partition no more.
    Stand,
    /// Manager to participant: validate this attempt within these bounds and this snapshot, and hand over what it has written and holds.
    Gather(AttemptId, Bounds, Snapshot),
    /// Participant to manager: here it is, or no stamp; nothing if the attempt is not complete here.
    Gathered(AttemptId, Option<Gathered>),
    /// Manager to participant: validate this attempt; the partition promises nothing of it.
    Validate(AttemptId, Validation),
    /// Participant of that number to manager: the stamps that it may have, or none, and what it has seen here; nothing if it is not complete here.
    /// What it holds, if that is promised.
    Validated(AttemptId, u16, Option<Bounds>, View, Vec<Hold>),
    /// Manager to participant: lock what this attempt has written, before it is validated.
    Lock(AttemptId),
    /// Participant of that number to manager: it is locked, or is not, as another attempt is in the way or this one is not complete here.
    Locked(AttemptId, u16, bool),
    /// Manager to participant: a home is led in this term. What its former leaders began and nobody has promised is over.
    Home(Lead),
    /// Manager to participant: this attempt of another home is over; it was not promised.
    Drop(AttemptId),
    /// Participant to manager: a wait has begun or changed.
    Waits(Wait),
    /// Participant of that number to manager, in its term: an attempt is over there that a [`Wait`] has named.
    Over(Term, u16, AttemptId),
    /// Manager to participant: this attempt must not wait for the other one. It is refused if it does.
    Refuse(AttemptId, AttemptId),
    /// Participant to manager, in its term: this attempt was to be refused, and does not wait for the other one any more.
    Spared(Term, AttemptId),
    /// Participant to manager: times up to this one are to be reserved.
    Reserve(Millis),
    /// Participant to manager: the time of these records has come, and nobody holds them.
    Expired(Vec<(Db, Vec<u8>)>),
}

/// A wait of an attempt at a participant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The term in which the participant serves.
    pub term: Term,
    /// The participant's number.
    pub shard: u16,
    /// The attempt.
    pub who: AttemptId,
    /// Its age.
    pub age: Age,
    /// All that it waits for there.
    pub behind: Vec<AttemptId>,
}

/// A request to validate an attempt.
#[derive(Clone, Debug)]
pub struct Validation {
    /// Within these bounds.
    pub bounds: Bounds,
    /// With this snapshot.
    pub snapshot: Snapshot,
    /// The attempt has an effect, if it commits and has written something.
    pub has_effect: bool,
    /// Its reads may change once it is validated: the answer decides it, it has changed nothing, or all regions have locked what it writes.
    pub lets_reads_go: bool,
    /// It is one region's part of a transaction of several: the log alone ends it once it is validated, and what it has read stays as it is until
    /// then, unless that may change.
    pub is_promised: bool,
    /// No attempt of the home that is under way, or to come, has an earlier stamp; 0 if that is not known.
    pub oldest: Age,
}

/// The writes and locks of an attempt at a participant.
#[derive(Clone, Debug, Default)]
pub struct Gathered {
    /// The stamps that it may have.
    pub bounds: Bounds,
    /// What it has seen here.
    pub view: View,
    /// Its changes of whole databases.
    pub changes: Vec<TableChange>,
    /// Its writes.
    pub writes: Vec<Write>,
    /// Its locks.
    pub holds: Vec<Hold>,
}

from_variants!(Message {
    Front(Front),
    Termed(Termed),
    Relay(Relay),
    Cut(CutMessage),
    Own(Own),
    Log(Log<Arc<Entry>>),
    Group(GroupMessage),
    Saving(Saving),
    Storage(Storage),
    Peer(PeerChange),
});

impl ordain_family::Message for Message {
    fn incoming(self) -> Incoming<Message> {
        match self {
            Message::Front(front) => Incoming::Front(front),
            Message::Peer(change) => Incoming::Peer(change),
            other => Incoming::Role(other),
        }
    }
}

codec!(enum Message {
    0 => Front(front),
    1 => Termed(message),
    2 => Leads(lead),
    3 => Relay(relay),
    4 => Group(message),
    5 => Saving(message),
    6 => Cut(message),
    7 => Meet(met),
    8 => Storage(message),
}, local Own | Log | Peer);

codec!(struct Termed { from, to, content });

codec!(enum Protocol {
    0 => Access(accesses),
    1 => Accessed(accessed),
    2 => Finish(attempt, commit),
    3 => Still(attempts),
    4 => Prepare(request),
    5 => Vote(attempt, bounds, view),
    6 => Decide(attempt, commit),
    7 => Ack(attempt),
    8 => Ask(attempt),
    9 => Confirm(request),
    10 => Confirmed(attempt, bounds),
    11 => Computing(attempt),
    12 => Settle(attempt, what),
    13 => Settled(settled),
    14 => Stamps(request),
    15 => Stamped(stamped),
    16 => Announce(number, decided, readers),
    17 => Ballot(ballot),
    18 => Part(request),
    19 => Reserve(reservation),
    20 => Release(of),
});

codec!(struct Accesses { chunk, list });
codec!(struct Access {
    attempt, age, at, fragments, inputs, shipped, returned, now, seed, step, snapshot, is_last
});
codec!(struct Shipped { slot, cell as Framed, version, is_held_back });
codec!(struct Accessed {
    attempt, shard, slots, failure, shipped, returned, is_too_long, has_written, changes, writes, latest, from, reads,
    view, seen
});
codec!(struct PrepareRequest { attempt, bounds, shards, returned, now, snapshot });

codec!(enum Failure {
    0 => Refused,
    1 => Aborted(slot, abort),
    2 => TooOld(time),
});

codec!(enum Relay {
    0 => Submit(home, chunk),
    1 => Outcomes(batch, view),
    2 => Return(returned),
    3 => Step(home, step, chunk),
    4 => Abandon(home, open),
    5 => Heard(stamp, view),
    6 => Told(stamp),
    7 => Attest(question),
    8 => Attested(answer),
});

impl Wire for Message {
    fn encode_shared(&self, out: &mut Vec<u8>) -> Bytes {
        match self {
            Message::Group(message) => {
                // The tag as `codec` writes it, then the message but for its shared end.
                out.push(4);
                message.encode_head(out);
                message.tail.clone()
            }
            message => {
                message.encode(out);
                Bytes::new()
            }
        }
    }
}

/// The message that a log which ships to nobody was never to send.
fn ships_nothing(message: impl std::fmt::Debug) -> Message {
    unreachable!("a log that ships to nobody sent {message:?}")
}

impl From<Ship> for Message {
    fn from(message: Ship) -> Message {
        ships_nothing(message)
    }
}

impl From<Configuration> for Message {
    fn from(message: Configuration) -> Message {
        ships_nothing(message)
    }
}

impl TryFrom<Message> for ordain_replication::Message<Arc<Entry>> {
    type Error = Message;

    fn try_from(message: Message) -> Result<Self, Message> {
        match message {
            Message::Log(log) => Ok(ordain_replication::Message::Log(log)),
            Message::Group(group) => Ok(ordain_replication::Message::Group(group)),
            Message::Saving(saving) => Ok(ordain_replication::Message::Saving(saving)),
            Message::Storage(storage) => Ok(ordain_replication::Message::Storage(storage)),
            Message::Peer(change) => Ok(ordain_replication::Message::Peer(change)),
            other => Err(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::wire::Reader;
    use ordain_model::{Epoch, PartitionId, PauseNo, Placement};

    use super::*;
    use crate::view::{Anti, Seen};
    use crate::voting::Said;

    #[test]
    fn messages_travel_and_truncations_do_not() {
        let lead =
            |partition, term| Lead { partition: ordain_model::PartitionId(partition), term: Term(term) };
        let termed = |content| Message::Termed(Termed { from: lead(0, 3), to: lead(1, 9), content });
        let who = AttemptId::default();
        let accessed = Accessed {
            attempt: who,
            shard: 3,
            slots: vec![(SlotNo(1), b"x".to_vec())],
            failure: Some(Failure::Aborted(SlotNo(1), Abort::Logic)),
            shipped: vec![Shipped {
                slot: SlotNo(2),
                cell: Cell::ABSENT,
                version: Gsn(7),
                is_held_back: true,
            }],
            returned: vec![Write::new(&Placement::NONE, Db(1), b"k".to_vec(), Cell::ABSENT)],
            is_too_long: false,
            has_written: true,
            changes: vec![TableChange::Clear(Some(Db(3)))],
            writes: Vec::new(),
            latest: Age(8),
            from: Age(9),
            reads: Reads::Fixed,
            view: View::of(Seen::NOTHING),
            seen: vec![Read { db: Db(2), key: b"r".to_vec(), version: Gsn(3), by: None }],
        };
        let request = PrepareRequest {
            attempt: who,
            bounds: Bounds { from: Age(5), until: Age(9) },
            shards: vec![1, 2],
            returned: Vec::new(),
            now: Millis(4),
            snapshot: Snapshot::default(),
        };
        let question = ConfirmRequest {
            attempt: who,
            bounds: Bounds::from(Age(5)),
            shards: vec![1],
            snapshot: Snapshot::default(),
        };
        let mut readers = Anti::default();
        readers.add(who);
        let attested =
            |readers| Attested { question: 1 << 50, home: PartitionId(2), number: 9, decided: 8, readers };
        let messages = [
            Message::Front(Front::Pause(PauseNo(3))),
            Message::Leads(lead(7, 1)),
            Message::Relay(Relay::Return(Returned {
                asked: lead(2, 5),
                gateway: GatewayId(1),
                chunk: ChunkNo(2),
                indexes: vec![3, 4],
            })),
            Message::Cut(CutMessage::Heard(Epoch(1 << 23))),
            Message::Cut(CutMessage::Where),
            Message::Meet(Met::Ready),
            Message::Cut(CutMessage::At(PartitionId(3), Epoch(9))),
            Message::Cut(CutMessage::Marked(PartitionId(3), Epoch(9))),
            Message::Relay(Relay::Heard(Age(1 << 60), View::NONE)),
            Message::Relay(Relay::Told(Age(3))),
            Message::Relay(Relay::Attest(Attest { question: 1 << 50, number: 8, readers: readers.clone() })),
            Message::Relay(Relay::Attested(attested(Some(readers)))),
            Message::Relay(Relay::Attested(attested(None))),
            termed(Protocol::Announce(8, 9, Readers::from(2))),
            termed(Protocol::Stamps(StampRequest { number: 1 << 40, count: 300, after: Age(1 << 60) })),
            termed(Protocol::Stamped(Stamped { number: 1 << 40, first: Age(1 << 60) })),
            termed(Protocol::Accessed(accessed)),
            termed(Protocol::Prepare(request)),
            termed(Protocol::Still(vec![who])),
            termed(Protocol::Vote(who, Some(Bounds::at(Age(7))), View::of(Seen::NOTHING))),
            termed(Protocol::Decide(who, None)),
            termed(Protocol::Decide(who, Some(Commitment::at(Age(7))))),
            termed(Protocol::Finish(who, Some(Age(7)))),
            termed(Protocol::Confirm(question)),
            termed(Protocol::Confirmed(who, None)),
        ];
        travel(messages);
    }

    /// Holds messages to being read back whole, and not at all if they are cut off.
    fn travel(messages: impl IntoIterator<Item = Message>) {
        let read_from = |bytes: &[u8]| Reader::placed(&Placement::NONE, bytes).whole::<Message>();
        for message in messages {
            let bytes = message.to_bytes();
            let read = read_from(&bytes).map(|read| format!("{read:?}"));
            assert_eq!(read, Some(format!("{message:?}")));
            assert!((0..bytes.len()).all(|cut| read_from(&bytes[..cut]).is_none()));
        }
    }

    #[test]
    fn messages_between_regions_travel_and_truncations_do_not() {
        let lead = |partition, term| Lead { partition: PartitionId(partition), term: Term(term) };
        let termed = |content| Message::Termed(Termed { from: lead(0, 3), to: lead(1, 9), content });
        let who = AttemptId::default();
        let part = PartRequest {
            of: who,
            age: Age(4),
            now: Millis(8),
            participants: vec![lead(0, 3), lead(1, 9)],
            low: 7,
            reads: vec![Read { db: Db(2), key: b"r".to_vec(), version: Gsn(3), by: Some(who) }],
            writes: vec![Write::new(&Placement::NONE, Db(1), b"k".to_vec(), Cell::ABSENT)],
        };
        travel([
            termed(Protocol::Part(Box::new(part))),
            termed(Protocol::Ballot(Ballot::Say(
                who,
                Said::No(Abort::StaleView, Millis(9)),
                vec![PartitionId(2)],
            ))),
            termed(Protocol::Reserve(Reservation {
                of: who.transaction,
                since: Millis(7),
                keys: vec![1 << 60, 3],
            })),
            termed(Protocol::Release(who.transaction)),
            termed(Protocol::Ballot(Ballot::Ask(who))),
            termed(Protocol::Ballot(Ballot::Locked(who))),
            termed(Protocol::Ballot(Ballot::Validate(who))),
            termed(Protocol::Ballot(Ballot::Known(who, Epoch(7)))),
            termed(Protocol::Ballot(Ballot::Forget(vec![who, who]))),
            termed(Protocol::Ballot(Ballot::Checked(who, Some((Abort::StaleView, Millis(9)))))),
        ]);
    }
}
