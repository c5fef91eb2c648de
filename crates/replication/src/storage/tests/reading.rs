//! Servers of other regions read what is durable, and nothing else (regions.md, 4.3 and G6).

use ordain_model::{Epoch, PartitionId};
use ordain_role::{Address, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role};

use crate::entry::EntryType as _;
use crate::storage::message::{After, Ballot, Content, Line, LogBase, Storage, Written};
use crate::storage::{StorageReader, StorageReaderSettings, StorageReplica, StorageReplicaSettings};
use crate::tests::{Log, Message, Note, Notes};

const SERVER: Address = Address { node: NodeId(0), role: 1 };
const REPLICA: Address = Address { node: NodeId(1), role: 1 };
const OTHER: Address = Address { node: NodeId(2), role: 1 };
const READER: Address = Address { node: NodeId(8), role: 30 };
const VIEW: Address = Address { node: NodeId(8), role: 9 };
const PROXY: Address = Address { node: NodeId(8), role: 4 };
const BALLOT: Ballot = Ballot(64);

fn tell<R: Role<Message = Message>>(role: &mut R, event: Event<Message>) -> Vec<(Address, Message)> {
    let mut out = Outbox::default();
    role.handle(Now::default(), event, &mut out);
    assert_eq!(out.halt, None);
    role.check().unwrap();
    out.sends
}

fn says(from: Address, message: impl Into<Message>) -> Event<Message> {
    Event::Message { from, message: message.into() }
}

fn lines(ids: std::ops::Range<u64>) -> Vec<Written> {
    let line = |id| {
        let bytes = Notes::encode(&Note::of_size(id, id, 1)).into();
        Written { ballot: BALLOT, content: Content::Entry(bytes) }
    };
    ids.map(line).collect()
}

/// A replica of two that has promised the server's ballot.
fn replica() -> StorageReplica<Note, Message> {
    let settings = StorageReplicaSettings::new(REPLICA, vec![SERVER.node], vec![REPLICA.node, OTHER.node]);
    let mut replica = StorageReplica::in_memory(settings).unwrap();
    tell(&mut replica, Event::Start);
    tell(&mut replica, says(SERVER, Storage::Seal(BALLOT)));
    replica
}

/// Entries that are appended behind a line, of which all up to another are durable.
fn append(after: u64, ids: std::ops::Range<u64>, durable: u64) -> Event<Message> {
    let ballot = if after == 0 { Ballot(0) } else { BALLOT };
    let previous = Line { ballot, lsn: after };
    says(
        SERVER,
        Storage::Append {
            ballot: BALLOT,
            number: after + 1,
            previous,
            lines: lines(ids),
            durable,
            generation: 1,
            acknowledged: 0,
        },
    )
}

/// The answers to a reader: how many lines behind which, and the number of the question.
fn answers(sends: &[(Address, Message)]) -> Vec<(u64, u64, usize)> {
    let to_reader = sends.iter().filter(|(to, _)| *to == READER).map(|(_, message)| match message {
        Message::Storage(Storage::Fetched { number, previous, lines, .. }) => {
            (*number, previous.lsn, lines.len())
        }
        other => panic!("{other:?}"),
    });
    to_reader.collect()
}

#[test]
fn a_question_is_kept_until_something_is_durable() {
    let mut replica = replica();
    let watch = |number, after| says(READER, Storage::Watch { number, after });
    assert_eq!(answers(&tell(&mut replica, watch(1, After::Epoch(Epoch(0))))), []);
    assert_eq!(answers(&tell(&mut replica, append(0, 1..4, 0))), [], "it is not durable yet");
    assert_eq!(answers(&tell(&mut replica, append(3, 4..5, 2))), [(1, 0, 2)]);
    assert_eq!(answers(&tell(&mut replica, append(4, 5..6, 3))), [], "nobody has asked again");
    assert_eq!(answers(&tell(&mut replica, watch(2, After::Lsn(2)))), [(2, 2, 1)]);
    // The later question counts.
    assert_eq!(answers(&tell(&mut replica, watch(3, After::Lsn(3)))), []);
    assert_eq!(answers(&tell(&mut replica, watch(4, After::Lsn(4)))), []);
    assert_eq!(answers(&tell(&mut replica, append(5, 6..6, 5))), [(4, 4, 1)]);
    // A server of another region has nothing else to say.
    for message in
        [Storage::Seal(Ballot(999)), Storage::Fetch { number: 9, ballot: Ballot(0), after: After::Lsn(0) }]
    {
        assert_eq!(tell(&mut replica, says(READER, message)).len(), 0);
    }
}

/// A reader, and the places that its questions have named.
struct Hand(StorageReader<Notes, Message>, Vec<After>);

impl Hand {
    fn new() -> (Hand, Vec<(Address, Message)>) {
        let settings = StorageReaderSettings {
            me: READER,
            region: PartitionId(0),
            replicas: vec![REPLICA, OTHER],
            keeper: PROXY,
            sinks: vec![VIEW, PROXY],
        };
        let mut hand = Hand(StorageReader::new(settings, Default::default()), Vec::new());
        let sends = hand.tell(Event::Start);
        (hand, sends)
    }

    fn tell(&mut self, event: Event<Message>) -> Vec<(Address, Message)> {
        let sends = tell(&mut self.0, event);
        self.1.extend(sends.iter().filter_map(|(_, message)| match message {
            Message::Storage(Storage::Watch { after, .. }) => Some(*after),
            _ => None,
        }));
        sends
    }

    /// The answer to a question: lines that follow one.
    fn fetched(&mut self, from: Address, number: u64, line: u64, ids: std::ops::Range<u64>) -> Heard {
        self.answered(from, (number, self.1[number as usize - 1]), line, ids)
    }

    /// Such an answer, to a question that named some place.
    fn answered(
        &mut self,
        from: Address,
        (number, after): (u64, After),
        line: u64,
        ids: std::ops::Range<u64>,
    ) -> Heard {
        let (ballot, previous) = (Ballot(0), Line { ballot: BALLOT, lsn: line });
        let message = Storage::Fetched { number, ballot, after, previous, lines: lines(ids), durable: 99 };
        heard(self.tell(says(from, message)))
    }
}

/// The entries that the view is handed, and the questions: whom, the number, and from where on.
type Heard = (Vec<u64>, Vec<(u16, u64, After)>);

fn heard(sends: Vec<(Address, Message)>) -> Heard {
    let (mut entries, mut asked) = (Vec::new(), Vec::new());
    for (to, message) in sends {
        match message {
            Message::Log(Log::Sealed(note)) if to == VIEW => entries.push(note.epoch.0),
            Message::Log(Log::Sealed(_)) if to == PROXY => {}
            Message::Storage(Storage::Watch { number, after }) => asked.push((to.node.0, number, after)),
            other => panic!("{other:?} to {to:?}"),
        }
    }
    (entries, asked)
}

#[test]
fn entries_are_handed_on_in_order_and_once_whoever_is_asked() {
    let (mut hand, sends) = Hand::new();
    let first = heard(sends).1;
    assert_eq!(first, [(1, 1, After::Epoch(Epoch(0)))]);
    assert_eq!(hand.fetched(REPLICA, 1, 0, 1..4), (vec![1, 2, 3], vec![(1, 2, After::Lsn(3))]));
    assert_eq!(hand.fetched(REPLICA, 1, 3, 4..5), (vec![], vec![]), "that answers an earlier question");
    assert_eq!(hand.fetched(OTHER, 2, 3, 4..5), (vec![], vec![]), "it was not asked");
    let earlier = (2, After::Epoch(Epoch(7)));
    assert_eq!(hand.answered(REPLICA, earlier, 7, 8..9), (vec![], vec![]), "an earlier life has asked that");
    // The one that is asked is gone: the next may be asked for the same.
    let lost = PeerChange { node: REPLICA.node, state: PeerState::Lost };
    assert_eq!(heard(hand.tell(says(REPLICA, lost))), (vec![], vec![(2, 3, After::Lsn(3))]));
    assert_eq!(hand.fetched(OTHER, 3, 3, 4..6), (vec![4, 5], vec![(2, 4, After::Lsn(5))]));
    // Lines that do not follow: it asks by what it has handed on, and hands nothing on twice.
    assert_eq!(hand.fetched(OTHER, 4, 2, 3..7), (vec![], vec![(1, 5, After::Epoch(Epoch(5)))]));
    assert_eq!(hand.fetched(REPLICA, 5, 3, 4..8), (vec![6, 7], vec![(1, 6, After::Lsn(7))]));
}

#[test]
fn a_log_that_begins_later_has_the_view_get_a_checkpoint() {
    let (mut hand, _) = Hand::new();
    let last = Line { ballot: BALLOT, lsn: 9 };
    let base = LogBase { last, epoch: Epoch(12), ..LogBase::default() };
    let trimmed = Storage::Trimmed { number: 1, after: hand.1[0], base };
    let sends = hand.tell(says(REPLICA, trimmed));
    let [(PROXY, Message::Log(Log::Behind(Epoch(12))))] = &sends[..] else { panic!("{sends:?}") };
    let lost = PeerChange { node: REPLICA.node, state: PeerState::Lost };
    assert!(hand.tell(says(REPLICA, lost)).is_empty(), "nothing is read meanwhile");
    let again = hand.tell(says(VIEW, Log::BeginAgain(Epoch(15))));
    assert_eq!(heard(again), (vec![], vec![(1, 2, After::Epoch(Epoch(15)))]));
    assert_eq!(hand.fetched(REPLICA, 2, 9, 14..17).0, [16]);
}
