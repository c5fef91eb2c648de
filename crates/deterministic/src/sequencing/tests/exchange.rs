//! The exchange by itself: what it sends, keeps, sends again, journals and asks for.

use ordain_log::Space;
use ordain_model::wire::{Codec, Reader};
use ordain_model::{Layout, Layouts};
use ordain_role::{DiskDone, DiskRequest, PeerChange, PeerState, Topology};

use super::*;
use ordain_fuzz::Random;
use ordain_replication::{Arrival, Configuration, Fence, Index, LeadershipRecords, Ship};

use crate::sequencing::{
    Beginning, Counting, Exchange, ExchangeMessage, ExchangeSettings, JournalRecord, Opened, RemoteResult,
};

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Note(u64, u8);

impl Codec for Note {
    const LEAST: usize = 9;

    fn encode(&self, out: &mut Vec<u8>) {
        (self.0, self.1).encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Note> {
        <(u64, u8)>::decode(bytes).map(|(epoch, number)| Note(epoch, number))
    }
}

impl RemoteResult for Note {
    fn last(&self) -> Gsn {
        Gsn::new(Epoch(self.0), PartitionId(0), 0)
    }

    fn weight(&self) -> usize {
        256
    }
}

type Out = Outbox<Message<Note>>;

const SHARD: Address = at(16);
const CHECKPOINTER: Address = at(6);
const PREFIX: &str = "inbox-";
const PIECE: usize = 1000;

fn exchange_of(node: u16) -> Address {
    Address { node: NodeId(node), role: 2 }
}

/// Node 0 of two replicas of three partitions with one shard each: its peers are 1 and 2, their members 4 and 5.
struct Desk {
    exchange: Exchange<Note>,
    directory: MemoryDirectory,
    disk: Vec<DiskRequest>,
    sequencer: Vec<Sequencing>,
    shard: Vec<Message<Note>>,
    /// What the checkpointer is told: up to where it is behind.
    behind: Vec<u64>,
    /// What candidates are told.
    shipped: Vec<Ship>,
}

impl Desk {
    fn new(directory: Option<MemoryDirectory>) -> Desk {
        Desk::after(Epoch(0), directory, None)
    }

    /// One that begins with a checkpoint of an epoch, where primaries may change if it has an incarnation.
    fn after(epoch: Epoch, directory: Option<MemoryDirectory>, incarnation: Option<u64>) -> Desk {
        let layout = Arc::new(Layout::even(3, 1).unwrap());
        let settings = ExchangeSettings {
            topology: Topology::replicated(layout, 2),
            me: exchange_of(0),
            sequencer: at(0),
            checkpointer: Some(CHECKPOINTER),
            shards: vec![SHARD],
            kept_max: 1 << 20,
            keep_bytes: KEEP,
            piece: PIECE,
            arrival: incarnation.map(|incarnation| Arrival { incarnation, life: 0 }),
            bugs: Default::default(),
        };
        let mut desk = Desk {
            exchange: Exchange::new(settings, registry()),
            directory: directory.clone().unwrap_or_default(),
            disk: Vec::new(),
            sequencer: Vec::new(),
            shard: Vec::new(),
            behind: Vec::new(),
            shipped: Vec::new(),
        };
        desk.exchange.begin_after(epoch);
        let mut out = Out::default();
        let writer = directory.is_some().then(|| {
            let mut space = Space::new(&mut desk.directory, PREFIX);
            let exchange = &mut desk.exchange;
            let (mut index, mut counting, mut all) = (Index::new(1024), Counting::default(), Vec::new());
            let config = LogConfig { segment_bytes: 1024, ..LogConfig::new(*b"desk") };
            let opened = LogWriter::open_placed(&mut space, config, |place, entry| {
                let journal_records =
                    Exchange::journal_records(&registry(), &entry.payload).expect("an entry");
                let last = JournalRecord::last_epoch(&journal_records);
                index.note_entry(entry.epoch, place, entry.payload.len(), last);
                counting.note(entry.epoch, journal_records, &mut all);
                Ok(())
            });
            let (writer, _) = opened.unwrap();
            let counting = incarnation.map(|incarnation| {
                counting.begin(writer.appended().next(), incarnation, &mut all);
                counting
            });
            all.into_iter().for_each(|journal_record| exchange.replay(journal_record, &mut out));
            Opened { writer, prefix: PREFIX, identity: b"desk".to_vec(), index, counting }
        });
        let sent = desk.take(out);
        assert_eq!(sent.len(), 0, "nothing leaves while it replays: {sent:?}");
        desk.exchange.begin(writer, Epoch(0), Beginning::Begun);
        desk
    }

    /// What an outbox holds for other nodes; the rest is put aside.
    fn take(&mut self, out: Out) -> Vec<(u16, ExchangeMessage<Note>)> {
        assert_eq!(out.halt, None);
        self.disk.extend(out.disk);
        let mut away = Vec::new();
        for (to, message) in out.sends {
            match message {
                // Every stream begins with that.
                Message::Exchange(ExchangeMessage::Beginning { has_begun: true, .. }) => {}
                Message::Exchange(message) => away.push((to.node.0, message)),
                Message::Ship(ship) => self.shipped.push(ship),
                Message::Sequencing(message) if to == at(0) => self.sequencer.push(message),
                Message::Log(Log::Behind(epoch)) if to == CHECKPOINTER => {
                    self.behind.push(epoch.0);
                }
                message => {
                    assert_eq!(to, SHARD);
                    self.shard.push(message);
                }
            }
        }
        away
    }

    fn event(&mut self, event: Event<Message<Note>>) -> Vec<(u16, ExchangeMessage<Note>)> {
        let mut out = Out::default();
        self.exchange.handle(Now::default(), event, &mut out);
        self.exchange.check().unwrap();
        self.take(out)
    }

    fn hear(&mut self, node: u16, message: ExchangeMessage<Note>) -> Vec<(u16, ExchangeMessage<Note>)> {
        self.event(Event::Message { from: exchange_of(node), message: message.into() })
    }

    fn tell(
        &mut self,
        from: Address,
        message: impl Into<Message<Note>>,
    ) -> Vec<(u16, ExchangeMessage<Note>)> {
        self.event(Event::Message { from, message: message.into() })
    }

    fn change(&mut self, node: u16, state: PeerState) -> Vec<(u16, ExchangeMessage<Note>)> {
        self.tell(at(3), PeerChange { node: NodeId(node), state })
    }

    /// The shard has executed what it was given.
    fn execute(&mut self) {
        for message in std::mem::take(&mut self.shard) {
            if let Message::Log(Log::Sealed(batch)) = message {
                let (epoch, partition) = (batch.epoch, batch.partition);
                self.tell(SHARD, Sequencing::Applied { epoch, partition });
            }
        }
    }

    /// The disk does what it was asked for; what the exchange says then.
    fn disk_is_done(&mut self) -> Vec<(u16, ExchangeMessage<Note>)> {
        let mut sent = Vec::new();
        while !self.disk.is_empty() {
            for request in std::mem::take(&mut self.disk) {
                let done = carry_out(&mut self.directory, &request);
                sent.extend(self.event(Event::Disk(done)));
            }
        }
        sent
    }

    fn time_passes(&mut self) -> Vec<(u16, ExchangeMessage<Note>)> {
        [self.event(Event::Timer(TimerId(1))), self.event(Event::Timer(TimerId(4)))].concat()
    }

    /// Takes what others have for an epoch and executes it. All of that is an entry of the journal.
    fn live_through(&mut self, epoch: u64, slice: ExchangeMessage<Note>) {
        self.hear(1, slice);
        self.hear(2, empty_slot(2, epoch));
        self.hear(1, ExchangeMessage::RemoteResult { to: 0, remote_result: Arc::new(Note(epoch, 7)) });
        self.tell(LOG, Log::Sealed(batch_over(0, epoch, &[])));
        self.execute();
        self.time_passes();
    }
}

/// A key of a partition of three.
fn key_of(partition: u16) -> Vec<u8> {
    let layout = Layout::even(3, 1).unwrap();
    let is_there = |key: &Vec<u8>| layout.region_of(key) == PartitionId(partition);
    (0u32..).map(|n| n.to_le_bytes().to_vec()).find(is_there).unwrap()
}

/// A batch of a partition with a write of each of these partitions, one transaction.
pub(super) fn batch_over(partition: u16, epoch: u64, partitions: &[u16]) -> Arc<Batch> {
    let mut chunk = Chunk::new(GatewayId(0), ChunkNo(epoch));
    let cell = Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(0).into() };
    let keys: Vec<Vec<u8>> = partitions.iter().map(|p| key_of(*p)).collect();
    let writes = keys.iter().map(|key| (Db(0), &key[..], &cell));
    let call = Call::new(system::COMMIT, Db(0));
    chunk.push(&registry(), call, |args| system::commit_args([].into_iter(), writes, args)).unwrap();
    let chunks = vec![Placed::whole(0, Arc::new(chunk))];
    let (epoch, partition, now) = (Epoch(epoch), PartitionId(partition), Millis(1));
    Arc::new(Batch { epoch, partition, layout: 1, now, total: 1, chunks, ..Batch::default() })
}

/// What a sequencer's exchange sends node 0 of such a batch.
fn slot(sequencer: u16, after: u64, epoch: u64) -> ExchangeMessage<Note> {
    let batch = batch_over(sequencer, epoch, &[0, sequencer]);
    let mut layouts = Layouts::new(Arc::new(Layout::even(3, 1).unwrap()));
    let content = batch.encode_slice(PartitionId(0), &mut layouts).map(Arc::new);
    ExchangeMessage::Slot {
        sequencer: PartitionId(sequencer),
        after: Epoch(after),
        through: Epoch(epoch),
        logged: 0,
        content,
    }
}

fn empty_slot(sequencer: u16, through: u64) -> ExchangeMessage<Note> {
    let sequencer = PartitionId(sequencer);
    ExchangeMessage::Slot { sequencer, after: Epoch(0), through: Epoch(through), logged: 0, content: None }
}

/// What is sent to whom, in short.
fn shown(sent: &[(u16, ExchangeMessage<Note>)]) -> Vec<String> {
    let mut shown: Vec<String> = sent
        .iter()
        .map(|(node, message)| match message {
            ExchangeMessage::Slot { after, through, content, .. } => {
                format!("{node}: {after}..{through}{}", if content.is_some() { " full" } else { "" })
            }
            other => format!("{node}: {other:?}"),
        })
        .collect();
    shown.sort();
    shown
}

fn given_to_the_shard(desk: &Desk) -> Vec<(u64, u16)> {
    let given = desk.shard.iter().filter_map(|message| match message {
        Message::Log(Log::Sealed(batch)) => Some((batch.epoch.0, batch.partition.0)),
        _ => None,
    });
    given.collect()
}

#[test]
fn a_slice_goes_to_those_who_take_part_and_word_of_it_to_all() {
    let mut desk = Desk::new(None);
    let sent = desk.tell(LOG, Log::Sealed(batch_over(0, 4, &[0, 2])));
    assert_eq!(shown(&sent), ["1: 0..4", "2: 0..4 full"]);
    let sent = desk.tell(LOG, Log::Sealed(batch_over(0, 6, &[1, 2])));
    assert_eq!(shown(&sent), ["1: 0..6 full", "2: 4..6 full"]);
    assert_eq!(given_to_the_shard(&desk), [], "the others' epochs are not known");
    desk.hear(1, empty_slot(1, 9));
    desk.hear(2, slot(2, 0, 4));
    assert_eq!(given_to_the_shard(&desk), [(4, 0), (4, 2)]);
}

#[test]
fn what_was_sent_is_kept_until_every_node_of_the_partition_is_past_it() {
    let mut desk = Desk::new(None);
    desk.tell(LOG, Log::Sealed(batch_over(0, 4, &[0, 2])));
    desk.tell(SHARD, ExchangeMessage::RemoteResult { to: 2, remote_result: Arc::new(Note(4, 1)) });
    desk.tell(LOG, Log::Sealed(batch_over(0, 6, &[0, 2])));
    let again = shown(&desk.hear(2, ExchangeMessage::Resume(Epoch(0))));
    let remote_result = "2: RemoteResult { to: 2, remote_result: Note(4, 1) }";
    assert_eq!(again, ["2: 0..4 full", "2: 4..6 full", "2: 6..6", "2: Opened(Epoch(0))", remote_result]);
    // Its member has not said so yet, so epoch 4 stays; whoever asks is sent what comes after.
    assert_eq!(shown(&desk.hear(2, ExchangeMessage::Resume(Epoch(4)))).len(), 3);
    assert_eq!(shown(&desk.hear(5, ExchangeMessage::Resume(Epoch(0)))).len(), 5);
    desk.hear(5, ExchangeMessage::Progress(Epoch(5)));
    assert_eq!(
        shown(&desk.hear(2, ExchangeMessage::Resume(Epoch(0)))).len(),
        5,
        "it has epoch 4, but maybe not on its disk"
    );
    desk.hear(2, ExchangeMessage::Progress(Epoch(4)));
    // Whoever has lost what it had is told that it is not here any more, and sent nothing.
    assert_eq!(shown(&desk.hear(2, ExchangeMessage::Resume(Epoch(0)))), ["2: Forgotten(Epoch(4))"]);
    assert_eq!(
        shown(&desk.hear(2, ExchangeMessage::Resume(Epoch(4)))),
        ["2: 4..6 full", "2: 6..6", "2: Opened(Epoch(0))"]
    );
    // The member has lost its own source and is substituted for, until it is relieved.
    let sent = desk.tell(LOG, Log::Sealed(batch_over(0, 7, &[0, 2])));
    assert_eq!(shown(&sent), ["1: 0..7", "2: 6..7 full", "5: 6..7 full"]);
    desk.hear(5, ExchangeMessage::Relieved);
    let sent = desk.tell(SHARD, ExchangeMessage::RemoteResult { to: 2, remote_result: Arc::new(Note(7, 2)) });
    assert_eq!(sent.len(), 1);
}

#[test]
fn what_comes_twice_or_with_a_gap_before_it_does_not_count() {
    let mut desk = Desk::new(None);
    desk.hear(1, empty_slot(1, 50));
    desk.hear(2, empty_slot(2, 50));
    desk.tell(LOG, Log::Sealed(batch_over(0, 50, &[0])));
    desk.hear(1, slot(1, 60, 61));
    desk.hear(1, slot(1, 0, 60));
    desk.hear(1, slot(1, 0, 60));
    desk.hear(1, slot(1, 60, 61));
    desk.hear(2, empty_slot(2, 70));
    desk.tell(LOG, Log::Sealed(batch_over(0, 70, &[1])));
    assert_eq!(given_to_the_shard(&desk), [(50, 0), (60, 1), (61, 1)]);
    // Whatever is heard of first makes the own sequencer seal too.
    let reached = desk.sequencer.iter().filter_map(|message| match message {
        Sequencing::Reached(epoch) => Some(epoch.0),
        _ => None,
    });
    assert_eq!(reached.collect::<Vec<_>>(), [50, 60, 61, 70]);
}

#[test]
fn peers_hear_of_progress_with_the_next_slice() {
    let mut desk = Desk::new(None);
    desk.hear(1, slot(1, 0, 3));
    desk.hear(2, empty_slot(2, 3));
    desk.tell(LOG, Log::Sealed(batch_over(0, 3, &[])));
    desk.execute();
    assert_eq!(desk.event(Event::Timer(TimerId(1))).len(), 0);
    let sent = desk.tell(LOG, Log::Sealed(batch_over(0, 4, &[])));
    assert_eq!(shown(&sent), ["1: 0..4", "1: Progress(Epoch(3))", "2: 0..4", "2: Progress(Epoch(3))"]);
    assert_eq!(shown(&desk.time_passes()), ["4: Progress(Epoch(3))", "5: Progress(Epoch(3))"]);
    assert_eq!(desk.time_passes().len(), 0);
}

#[test]
fn progress_is_told_once_all_that_it_came_from_is_on_disk() {
    let mut desk = Desk::new(Some(MemoryDirectory::new()));
    desk.hear(1, slot(1, 0, 3));
    desk.hear(2, empty_slot(2, 3));
    desk.hear(1, ExchangeMessage::RemoteResult { to: 0, remote_result: Arc::new(Note(3, 9)) });
    desk.tell(LOG, Log::Sealed(batch_over(0, 3, &[])));
    desk.execute();
    assert_eq!(desk.exchange.progress(), Epoch(3));
    assert_eq!(desk.time_passes().len(), 0, "it is asked of the disk only now");
    desk.disk_is_done();
    let told = shown(&desk.time_passes());
    // The nodes of the other replica keep it for this one too.
    assert_eq!(told, [1, 2, 4, 5].map(|node| format!("{node}: Progress(Epoch(3))")));
    // All of it is there after a crash, and what was not on disk is not.
    desk.hear(1, ExchangeMessage::RemoteResult { to: 0, remote_result: Arc::new(Note(4, 9)) });
    let mut directory = desk.directory.clone();
    directory.crash(|| 0);
    let again = Desk::new(Some(directory));
    assert_eq!(again.shard.len(), 1);
    assert!(matches!(&again.shard[0], Message::Engine(Note(3, 9))), "{:?}", again.shard);
}

#[test]
fn a_node_that_is_met_anew_is_asked_for_what_is_missing() {
    let mut desk = Desk::new(None);
    assert_eq!(shown(&desk.change(1, PeerState::Fresh)), ["1: Progress(Epoch(0))", "1: Resume(Epoch(0))"]);
    // One of another replica is owed only how far this one is; a member, nothing.
    assert_eq!(shown(&desk.change(4, PeerState::Fresh)), ["4: Progress(Epoch(0))"]);
    assert_eq!(desk.change(3, PeerState::Fresh).len(), 0);
}

#[test]
fn a_lost_node_is_substituted_for_by_its_member() {
    let mut desk = Desk::new(None);
    assert_eq!(shown(&desk.change(1, PeerState::Lost)), ["4: Resume(Epoch(0))"]);
    assert_eq!(desk.change(1, PeerState::Lost).len(), 0);
    // The substitute is lost too: there is no third. When it is met again, it is asked again.
    assert_eq!(desk.change(4, PeerState::Lost).len(), 0);
    let sent = shown(&desk.change(4, PeerState::Fresh));
    assert_eq!(sent, ["4: Progress(Epoch(0))", "4: Resume(Epoch(0))"]);
    assert_eq!(shown(&desk.change(1, PeerState::Back)), ["4: Relieved"]);
    assert_eq!(desk.change(1, PeerState::Back).len(), 0);
}

#[test]
fn a_node_that_begins_anew_is_substituted_for_until_it_is_up_to_date() {
    let mut desk = Desk::new(None);
    desk.hear(1, empty_slot(1, 5));
    desk.hear(2, empty_slot(2, 5));
    desk.tell(LOG, Log::Sealed(batch_over(0, 5, &[0])));
    desk.execute();
    assert_eq!(desk.exchange.progress(), Epoch(5));
    assert_eq!(shown(&desk.change(1, PeerState::Lost)), ["4: Resume(Epoch(5))"]);
    assert_eq!(shown(&desk.change(1, PeerState::Fresh)), ["1: Progress(Epoch(0))", "1: Resume(Epoch(5))"]);
    assert_eq!(desk.hear(1, ExchangeMessage::Progress(Epoch(4))).len(), 0);
    assert_eq!(shown(&desk.hear(1, ExchangeMessage::Progress(Epoch(5)))), ["4: Relieved"]);
    assert_eq!(desk.hear(1, ExchangeMessage::Progress(Epoch(6))).len(), 0);
}

#[test]
fn what_is_sent_again_comes_in_pieces() {
    let mut desk = Desk::new(None);
    desk.change(2, PeerState::Fresh);
    let epochs = 1..=40;
    epochs.clone().for_each(|epoch| drop(desk.tell(LOG, Log::Sealed(batch_over(0, epoch, &[0, 2])))));
    let mut sent = desk.hear(2, ExchangeMessage::Resume(Epoch(3)));
    let (mut pauses, mut full) = (0, Vec::new());
    loop {
        let is_paused = matches!(sent.last(), Some((2, ExchangeMessage::Pause)));
        let slots = sent.iter().filter_map(|(_, message)| match message {
            ExchangeMessage::Slot { through, content: Some(content), .. } => Some((through.0, content.len())),
            _ => None,
        });
        let slots: Vec<(u64, usize)> = slots.collect();
        assert!(slots.iter().map(|(_, len)| len).sum::<usize>() < 2 * PIECE, "{slots:?}");
        full.extend(slots.into_iter().map(|(epoch, _)| epoch));
        if !is_paused {
            break;
        }
        pauses += 1;
        if pauses == 2 {
            // What is new waits for its turn.
            let late = desk.tell(LOG, Log::Sealed(batch_over(0, 41, &[0, 2])));
            assert_eq!(shown(&late), ["1: 0..41"]);
        }
        sent = desk.hear(2, ExchangeMessage::Continue);
    }
    assert!(pauses > 2);
    assert_eq!(full, (4..=41).collect::<Vec<u64>>());
    let live = desk.tell(LOG, Log::Sealed(batch_over(0, 42, &[0, 2])));
    assert_eq!(shown(&live), ["1: 0..42", "2: 41..42 full"]);
}

#[test]
fn what_is_owed_to_a_node_that_is_lost_and_back_is_still_owed() {
    let mut desk = Desk::new(Some(MemoryDirectory::new()));
    for (state, owed) in [(PeerState::Lost, 1), (PeerState::Fresh, 0)] {
        desk.hear(1, ExchangeMessage::RemoteResult { to: 0, remote_result: Arc::new(Note(9, 9)) });
        desk.hear(1, ExchangeMessage::Pause);
        desk.change(1, state);
        if state == PeerState::Lost {
            desk.change(1, PeerState::Back);
        }
        let sent = desk.disk_is_done();
        assert_eq!(sent.iter().filter(|said| matches!(said, (1, ExchangeMessage::Continue))).count(), owed);
    }
}

/// A node that has received what others keep no more reads the journal of its member, a piece at a time, each when the one
/// before is on its disk.
#[test]
fn what_nobody_keeps_any_more_is_in_the_journal_of_a_member() {
    let mut old = Desk::new(Some(MemoryDirectory::new()));
    let mut before = 0;
    for epoch in 1..=30u64 {
        old.hear(1, slot(1, before, epoch));
        old.hear(2, empty_slot(2, epoch));
        old.hear(1, ExchangeMessage::RemoteResult { to: 0, remote_result: Arc::new(Note(epoch, 7)) });
        old.hear(1, ExchangeMessage::Progress(Epoch(before)));
        old.tell(LOG, Log::Sealed(batch_over(0, epoch, &[])));
        old.execute();
        old.time_passes();
        old.disk_is_done();
        before = epoch;
    }
    // One more is under way to the disk.
    old.hear(1, slot(1, 30, 31));

    for after in [0, 20] {
        let mut new = Desk::new(Some(MemoryDirectory::new()));
        (1..=30).for_each(|epoch| drop(new.tell(LOG, Log::Sealed(batch_over(0, epoch, &[])))));
        if after > 0 {
            let mut before = 0;
            for epoch in 1..=after {
                new.hear(1, slot(1, before, epoch));
                new.hear(2, empty_slot(2, epoch));
                before = epoch;
            }
            new.execute();
            assert_eq!(new.exchange.progress(), Epoch(after));
            new.shard.clear();
        }
        let mut wanted = new.hear(1, ExchangeMessage::Forgotten(Epoch(25)));
        assert_eq!(new.hear(2, ExchangeMessage::Forgotten(Epoch(99))).len(), 0, "one journal at a time");
        let mut pieces = 0;
        let asked_again = loop {
            let [(3, fetch @ ExchangeMessage::Fetch { .. })] = &wanted[..] else { break wanted };
            let mut piece = old.hear(3, fetch.clone());
            piece.extend(old.disk_is_done());
            let [(3, piece)] = &piece[..] else { panic!("{piece:?}") };
            pieces += 1;
            wanted = new.hear(3, piece.clone());
            let is_last = matches!(piece, ExchangeMessage::Fetched { covers: Some(_), .. });
            let waits = wanted.is_empty() || after > 0;
            assert!(is_last || waits, "the next is asked for when this one is on disk: {wanted:?}");
            wanted.extend(new.disk_is_done());
            wanted.retain(|(_, message)| !matches!(message, ExchangeMessage::Progress(_)));
            assert_eq!(new.hear(3, piece.clone()).len(), 0, "an answer that nobody waits for");
        };
        assert_eq!(shown(&asked_again), ["1: Resume(Epoch(30))"], "partition 2 has forgotten more");
        assert!(pieces > 3, "{pieces}");
        let remote_results =
            new.shard.iter().filter(|message| matches!(message, Message::Engine(Note(_, 7))));
        let remote_results: Vec<_> = remote_results.collect();
        assert_eq!(remote_results.len(), 30 - after as usize);
        new.execute();
        assert_eq!(new.exchange.progress(), Epoch(30));
        // It has it all on its own disk now.
        new.time_passes();
        new.disk_is_done();
        let mut directory = new.directory.clone();
        directory.crash(|| 0);
        let mut again = Desk::new(Some(directory));
        (1..=30).for_each(|epoch| drop(again.tell(LOG, Log::Sealed(batch_over(0, epoch, &[])))));
        again.execute();
        assert_eq!(again.exchange.progress(), Epoch(30));
    }
}

/// So long a journal may be for members that are away.
const KEEP: u64 = 20 << 10;

/// A node that has taken slices and remote results of so many epochs.
fn desk_after(epochs: u64) -> Desk {
    let mut desk = Desk::new(Some(MemoryDirectory::new()));
    for epoch in 1..=epochs {
        desk.live_through(epoch, slot(1, epoch - 1, epoch));
        desk.disk_is_done();
    }
    desk
}

/// The epochs of the remote results that a directory's journal still has.
fn remote_results_in(directory: &MemoryDirectory) -> Vec<u64> {
    let mut directory = directory.clone();
    let mut remote_results = Vec::new();
    let config = LogConfig { segment_bytes: 1024, ..LogConfig::new(*b"desk") };
    LogWriter::open(&mut Space::new(&mut directory, PREFIX), config, |entry| {
        let journal_records: Vec<JournalRecord<Note>> =
            Exchange::journal_records(&registry(), &entry.payload).unwrap();
        remote_results.extend(journal_records.iter().filter_map(|journal_record| match journal_record {
            JournalRecord::Message(_, ExchangeMessage::RemoteResult { remote_result, .. }) => {
                Some(remote_result.0)
            }
            _ => None,
        }));
        Ok(())
    })
    .unwrap();
    remote_results
}

/// What only this node has a checkpoint of stays for its members as long as it is not too much.
#[test]
fn a_journal_is_trimmed_for_a_member_that_is_away_once_it_is_too_long() {
    for (epochs, is_too_long) in [(10, false), (40, true)] {
        let mut desk = desk_after(epochs);
        let bytes: u64 = desk.directory.list().unwrap().iter().map(|(_, len)| *len).sum();
        assert_eq!(bytes > KEEP, is_too_long, "{bytes}");
        desk.tell(CHECKPOINTER, Log::Trim(Covered::by_own(Epoch(epochs - 2))));
        desk.disk_is_done();
        assert_eq!(remote_results_in(&desk.directory)[0] > 1, is_too_long);
    }
}

/// What a checkpoint covers goes, by whole segments, whenever the machine stops; everything of later epochs stays.
#[test]
fn a_journal_is_trimmed_up_to_what_a_checkpoint_covers() {
    let whole = desk_after(40);
    for stops in 0..40 {
        let mut desk = desk_after(40);
        let mut left = stops;
        desk.tell(CHECKPOINTER, Log::Trim(Covered::by_all(Epoch(30))));
        'stopped: while !desk.disk.is_empty() {
            for request in std::mem::take(&mut desk.disk) {
                for op in &request.ops {
                    if left == 0 {
                        break 'stopped;
                    }
                    left -= 1;
                    desk.directory.apply(op).unwrap();
                }
                desk.event(Event::Disk(DiskDone { token: request.token, result: Ok(()) }));
            }
        }
        let was_whole = desk.directory.list().unwrap().len() == whole.directory.list().unwrap().len();
        let mut random = Random(stops);
        desk.directory.crash(|| random.next());
        let remote_results = remote_results_in(&desk.directory);
        let first = remote_results[0];
        assert!((1..=31).contains(&first) && (first == 1 || !was_whole), "{first}");
        assert_eq!(remote_results, (first..=40).collect::<Vec<u64>>());
        assert!(left == 0 || first > 20, "it has trimmed little: {first}");
    }
    // Not beyond what is on disk here.
    let mut desk = desk_after(40);
    desk.tell(CHECKPOINTER, Log::Trim(Covered::by_all(Epoch(1000))));
    desk.disk_is_done();
    desk.hear(1, slot(1, 40, 41));
    desk.hear(1, ExchangeMessage::RemoteResult { to: 0, remote_result: Arc::new(Note(41, 7)) });
    desk.time_passes();
    desk.disk_is_done();
    assert_eq!(remote_results_in(&desk.directory).last(), Some(&41));
}

/// A disk that was full or slow takes many entries at once: the place behind them is behind the last of them, not the first.
#[test]
fn nothing_is_trimmed_that_became_durable_together_with_what_a_checkpoint_covers() {
    for covered in 1..40 {
        let mut desk = Desk::new(Some(MemoryDirectory::new()));
        for epoch in 1..=41 {
            desk.live_through(epoch, empty_slot(1, epoch));
            if epoch >= 40 {
                desk.disk_is_done();
            }
        }
        desk.tell(CHECKPOINTER, Log::Trim(Covered::by_all(Epoch(covered))));
        desk.disk_is_done();
        let remote_results = remote_results_in(&desk.directory);
        assert!(
            remote_results.iter().copied().eq(remote_results[0]..=41) && remote_results[0] <= covered + 1,
            "{remote_results:?}"
        );
    }
}

#[test]
fn who_needs_what_was_trimmed_is_told_so_and_gets_a_checkpoint() {
    let mut old = desk_after(40);
    old.tell(CHECKPOINTER, Log::Trim(Covered::by_all(Epoch(30))));
    old.disk_is_done();
    let first = remote_results_in(&old.directory)[0];
    let fetch = |after: u64| ExchangeMessage::Fetch { from: Epoch(1), after: Epoch(after) };
    let refused = old.hear(3, fetch(5));
    let [(3, ExchangeMessage::Trimmed(through))] = refused[..] else { panic!("{refused:?}") };
    assert!((first - 1..=30).contains(&through.0), "{through} of {first}");
    // Who has a checkpoint of that epoch is served.
    let mut served = old.hear(3, fetch(through.0));
    served.extend(old.disk_is_done());
    let [(3, ExchangeMessage::Fetched { journal_records, .. })] = &served[..] else { panic!("{served:?}") };
    assert!(!journal_records.is_empty());

    let mut new = Desk::new(Some(MemoryDirectory::new()));
    let asked = new.hear(1, ExchangeMessage::Forgotten(Epoch(25)));
    assert_eq!(shown(&asked), ["3: Fetch { from: Epoch(1), after: Epoch(0) }"]);
    assert_eq!(new.hear(3, ExchangeMessage::Trimmed(through)).len(), 0);
    assert_eq!(new.behind, [through.0], "there is no other member");
    let gauge = |desk: &Desk| {
        let mut found = f64::NAN;
        desk.exchange.gauges(&mut |name, value| {
            found = if name == "ordain_exchange_behind_epoch" { value } else { found };
        });
        found
    };
    assert_eq!(gauge(&new), through.0 as f64);
    // It asks again now and then, and says so again; an answer that nobody waits for says nothing.
    new.hear(3, ExchangeMessage::Trimmed(Epoch(99)));
    assert_eq!(new.behind.len(), 1);
    assert_eq!(new.event(Event::Timer(TimerId(3))).len(), 1);
    new.hear(3, ExchangeMessage::Trimmed(through));
    assert_eq!(new.behind.len(), 2);
}

/// A member that is being given the journal is given all of it, if it is not far behind.
#[test]
fn what_a_member_is_being_given_is_not_trimmed() {
    let mut desk = desk_after(40);
    let mut wanted = desk.hear(3, ExchangeMessage::Fetch { from: Epoch(1), after: Epoch(0) });
    desk.tell(CHECKPOINTER, Log::Trim(Covered::by_all(Epoch(40))));
    let (mut epochs, mut last) = (Vec::new(), None);
    for _ in 0..1000 {
        wanted.extend(desk.disk_is_done());
        let Some((3, ExchangeMessage::Fetched { next, covers, journal_records, .. })) = wanted.pop() else {
            break;
        };
        let read: Vec<JournalRecord<Note>> =
            Exchange::journal_records(&registry(), &journal_records).unwrap();
        epochs.extend(read.iter().map(JournalRecord::opens).filter(|epoch| *epoch > Epoch(0)));
        last = covers;
        if covers.is_some() {
            break;
        }
        wanted = desk.hear(3, ExchangeMessage::Fetch { from: next, after: Epoch(0) });
    }
    assert_eq!(last, Some(Epoch(40)));
    assert_eq!(epochs.iter().max(), Some(&Epoch(40)));
    assert_eq!(epochs.iter().min(), Some(&Epoch(1)));
    // Then it goes.
    desk.tell(CHECKPOINTER, Log::Trim(Covered::by_all(Epoch(40))));
    desk.disk_is_done();
    assert!(remote_results_in(&desk.directory)[0] > 20);
}

#[test]
fn a_journal_is_asked_for_elsewhere_when_its_node_is_lost() {
    let mut desk = Desk::new(None);
    let fetch = "3: Fetch { from: Epoch(1), after: Epoch(0) }";
    assert_eq!(shown(&desk.hear(1, ExchangeMessage::Forgotten(Epoch(9)))), [fetch]);
    assert_eq!(desk.change(3, PeerState::Lost).len(), 0, "there is no other member");
    assert_eq!(shown(&desk.change(3, PeerState::Fresh)), [fetch]);
    // A member that keeps nothing on disk has nothing to give; it is asked again later.
    let nothing = desk.hear(3, ExchangeMessage::Fetch { from: Epoch(1), after: Epoch(0) });
    assert_eq!(desk.hear(3, nothing[0].1.clone()).len(), 0);
    assert_eq!(shown(&desk.event(Event::Timer(TimerId(3)))), [fetch]);
    // The one that has forgotten it begins anew: it will say so again.
    desk.change(1, PeerState::Lost);
    desk.change(1, PeerState::Fresh);
    let mut lacking = None;
    desk.exchange.gauges(&mut |name, value| {
        lacking = lacking.or((name == "ordain_exchange_catch_up_epoch").then_some(value));
    });
    assert_eq!(lacking, Some(0.0));
}

/// A node that asks before it has executed all that it has on disk is told that some of it is not kept any more. When it has,
/// it asks for what comes after, also if nobody could have helped it.
#[test]
fn what_was_executed_meanwhile_is_not_lacking() {
    let mut desk = Desk::new(None);
    desk.change(3, PeerState::Lost);
    assert_eq!(desk.hear(1, ExchangeMessage::Forgotten(Epoch(2))).len(), 0);
    let nothing = |sequencer, through| ExchangeMessage::Slot {
        sequencer: PartitionId(sequencer),
        after: Epoch(0),
        through: Epoch(through),
        logged: 0,
        content: None,
    };
    desk.hear(1, nothing(1, 2));
    desk.hear(2, nothing(2, 2));
    let seal = |desk: &mut Desk, epoch| {
        let (partition, now, none) = (PartitionId(0), Millis(0), Vec::new());
        let (epoch, chunks) = (Epoch(epoch), Vec::new());
        let batch = Batch { epoch, partition, layout: 1, now, chunks, lookups: none, ..Batch::default() };
        let sent = desk.tell(at(1), Log::Sealed(Arc::new(batch)));
        shown(&sent).into_iter().filter(|sent| sent.contains("Resume")).collect::<Vec<String>>()
    };
    assert_eq!(seal(&mut desk, 1), [""; 0]);
    assert_eq!(seal(&mut desk, 2), ["1: Resume(Epoch(2))"]);
}

#[test]
fn an_entry_of_the_journal_that_is_cut_is_refused() {
    let mut desk = Desk::new(Some(MemoryDirectory::new()));
    desk.hear(1, slot(1, 0, 3));
    desk.hear(1, ExchangeMessage::Progress(Epoch(2)));
    desk.time_passes();
    desk.disk_is_done();
    let mut entries = Vec::new();
    let mut space = Space::new(&mut desk.directory, PREFIX);
    LogWriter::open(&mut space, LogConfig::new(*b"desk"), |entry| {
        entries.push(entry.payload);
        Ok(())
    })
    .unwrap();
    let read: Vec<JournalRecord<Note>> = Exchange::journal_records(&registry(), &entries[0]).unwrap();
    assert_eq!((entries.len(), read.len(), read[0].opens()), (1, 2, Epoch(3)));
    for cut in 1..entries[0].len() {
        let read: Option<Vec<JournalRecord<Note>>> =
            Exchange::journal_records(&registry(), &entries[0][..cut]);
        assert!(read.is_none_or(|read| read.len() == 1), "cut at {cut}");
    }
}

/// What a checkpoint covers is not executed again, but the next primary of another partition may have to put it together.
#[test]
fn slices_that_a_checkpoint_covers_are_still_there_for_a_candidate() {
    let topology = Topology::replicated(Arc::new(Layout::even(3, 1).unwrap()), 2);
    let leadership_records = |version, fence| {
        let mut leadership_records = LeadershipRecords { version, ..LeadershipRecords::new(&topology) };
        leadership_records.leadership_records[1].fence = fence;
        Configuration::Records { leadership_records: Arc::new(leadership_records), in_touch: true }
    };
    let mut desk = Desk::after(Epoch(0), Some(MemoryDirectory::new()), Some(0));
    desk.tell(at(0), leadership_records(1, None));
    for epoch in 1..=4 {
        let ExchangeMessage::Slot { sequencer, after, through, content, .. } = slot(1, epoch - 1, epoch)
        else {
            panic!("a slot")
        };
        desk.hear(1, ExchangeMessage::Slot { sequencer, after, through, logged: 1, content });
    }
    desk.time_passes();
    desk.disk_is_done();
    let mut again = Desk::after(Epoch(3), Some(desk.directory.clone()), Some(0));
    again.tell(at(0), leadership_records(2, Some(Fence { term: 2, candidate: NodeId(4) })));
    let collect = Ship::Collect { partition: PartitionId(1), term: 2, after: Epoch(1) };
    again.tell(Address { node: NodeId(4), role: 4 }, collect);
    let [Ship::Collected { held, since, through, .. }] = &again.shipped[..] else {
        panic!("{:?}", again.shipped)
    };
    assert_eq!(held.iter().map(|held| held.epoch.0).collect::<Vec<u64>>(), [2, 3, 4]);
    assert_eq!((*since, *through), (Epoch(0), Epoch(4)));
    // Without what came in before, it does not know what there was.
    let mut without = Desk::after(Epoch(3), Some(MemoryDirectory::new()), Some(0));
    without.tell(at(0), leadership_records(2, Some(Fence { term: 2, candidate: NodeId(4) })));
    let collect = Ship::Collect { partition: PartitionId(1), term: 2, after: Epoch(1) };
    without.tell(Address { node: NodeId(4), role: 4 }, collect);
    let [Ship::Collected { held, since, through, .. }] = &without.shipped[..] else {
        panic!("{:?}", without.shipped)
    };
    assert_eq!((held.len(), *since, *through), (0, Epoch(3), Epoch(3)));
}

#[test]
fn whoever_is_rebuilt_keeps_what_is_certain_and_others_keep_the_rest_for_it() {
    let topology = Topology::replicated(Arc::new(Layout::even(3, 1).unwrap()), 2);
    let leadership_records = || Configuration::Records {
        leadership_records: Arc::new(LeadershipRecords::new(&topology)),
        in_touch: true,
    };
    let told = |desk: &Desk| {
        let mut found = f64::NAN;
        desk.exchange.gauges(&mut |name, value| {
            found = if name == "ordain_exchange_durable_epoch" { value } else { found };
        });
        found as u64
    };
    let live_through = |desk: &mut Desk, epoch: u64| {
        desk.live_through(epoch, slot(1, epoch - 1, epoch));
        desk.disk_is_done();
        desk.time_passes();
    };
    let remote_results = |desk: &Desk| {
        let remote_results = desk.shard.iter().filter_map(|message| match message {
            Message::Engine(Note(epoch, _)) => Some(*epoch),
            _ => None,
        });
        remote_results.collect::<Vec<u64>>()
    };
    let mut desk = Desk::after(Epoch(0), Some(MemoryDirectory::new()), Some(0));
    desk.tell(at(0), leadership_records());
    (1..=4).for_each(|epoch| live_through(&mut desk, epoch));
    assert_eq!((desk.exchange.progress(), told(&desk)), (Epoch(4), 0), "nothing is certain yet");
    desk.tell(at(4), Configuration::LowWatermarks([9, 3, 4].map(Epoch).into()));
    desk.time_passes();
    assert_eq!(told(&desk), 0, "not before it is written down");
    desk.disk_is_done();
    (5..=6).for_each(|epoch| live_through(&mut desk, epoch));
    assert_eq!((desk.exchange.progress(), told(&desk)), (Epoch(6), 3));
    let directory = desk.directory.clone();

    // In the same incarnation all of it counts.
    let same = Desk::after(Epoch(0), Some(directory.clone()), Some(0));
    assert_eq!(remote_results(&same), [1, 2, 3, 4, 5, 6]);
    let mut next = Desk::after(Epoch(0), Some(directory), Some(1));
    assert_eq!(remote_results(&next), [1, 2, 3]);
    next.shard.retain(|message| matches!(message, Message::Sequencing(_)));
    (1..=3).for_each(|epoch| drop(next.tell(LOG, Log::Sealed(batch_over(0, epoch, &[])))));
    next.execute();
    assert_eq!(next.exchange.progress(), Epoch(3), "not what came after that");
    // What comes now counts, and is there again.
    next.tell(at(0), leadership_records());
    (4..=5).for_each(|epoch| live_through(&mut next, epoch));
    let again = Desk::after(Epoch(0), Some(next.directory.clone()), Some(1));
    assert_eq!(remote_results(&again), [1, 2, 3, 4, 5]);
    // A member that reads the journal is not given what does not count.
    let (mut wanted, mut read) =
        (next.hear(3, ExchangeMessage::Fetch { from: Epoch(1), after: Epoch(0) }), Vec::new());
    wanted.extend(next.disk_is_done());
    while let Some((3, ExchangeMessage::Fetched { next: from, covers, journal_records, .. })) = wanted.pop() {
        read.extend(Exchange::<Note>::journal_records(&registry(), &journal_records).unwrap());
        if covers.is_none() {
            wanted = next.hear(3, ExchangeMessage::Fetch { from, after: Epoch(0) });
            wanted.extend(next.disk_is_done());
        }
    }
    let epochs = read.iter().filter_map(|journal_record| match journal_record {
        JournalRecord::Message(_, ExchangeMessage::RemoteResult { remote_result, .. }) => {
            Some(remote_result.0)
        }
        _ => None,
    });
    assert_eq!(epochs.collect::<Vec<u64>>(), [1, 2, 3, 4, 5]);
}
