//! A view shows a checkpoint once all of it has come (regions.md, section 8, scenario 26).

use ordain_checkpoint::{Encoder, Filling, Kind};
use ordain_model::{
    Call, Cell, Chunk, ChunkNo, Db, Digest, Epoch, GatewayId, KeyHash, Layout, Millis, PartitionId, Position,
    Registry, Value,
};
use ordain_role::{Address, Bugs, Event, Now, Role as _};

use super::super::SWEEP;
use super::*;
use crate::entry::{Commit, Content};
use crate::ids::{Age, AttemptId, Lead, Term, TransactionId};
use crate::image::Image;
use crate::message::{Access, Accesses, Failure, Protocol, Snapshot, Termed};
use crate::viewing::Viewing;

const REGION: PartitionId = PartitionId(1);
const PROXY: Address = Address { node: ordain_role::NodeId(0), role: 77 };
const READER: Address = Address { node: ordain_role::NodeId(0), role: 78 };

fn layout() -> Arc<Layout> {
    Arc::new(Layout::even(2, 2).unwrap())
}

fn view(bugs: Bugs) -> Participant {
    let holding = Holding::of_partition(layout(), REGION);
    let control = Box::new(Viewing::planting(bugs));
    let view = Participant::new(holding, Address::default(), Arc::new(Registry::default()), control);
    view.planting(bugs).viewing(READER)
}

/// Two keys of the region for each number: one entry writes both.
fn pair(number: usize) -> [Vec<u8>; 2] {
    let layout = layout();
    let keys = (0..).map(|n| format!("key{n}").into_bytes());
    let mut keys = keys.filter(|key| layout.partition_of(KeyHash::of(key).slot()) == REGION).skip(2 * number);
    [(); 2].map(|()| keys.next().unwrap())
}

/// The entries of places up to one: each writes a text to the next of ten pairs.
fn entries(through: u64) -> Vec<Arc<Entry>> {
    let lead = Lead { partition: REGION, term: Term(3) };
    let content = |place: u64| {
        let attempt = AttemptId { transaction: TransactionId { home: lead, number: place }, attempt: 1 };
        let cell = Cell { value: Some(Value::String(format!("text{place}").into())), ..Cell::ABSENT };
        let write = |key| ordain_execution::Write::new(layout().placement(), Db(0), key, cell.clone());
        let writes = pair(place as usize % 10).map(write).into();
        if place == 1 {
            Content::Begin
        } else {
            Content::Commit(Commit { attempt, writes, ..Commit::default() })
        }
    };
    let entry = |place| Entry {
        place: Epoch(place),
        term: Term(3),
        now: Millis(place),
        content: content(place),
        agreed: None,
    };
    (1..=through).map(|place| Arc::new(entry(place))).collect()
}

/// The state behind an entry, and a checkpoint of it in many small frames.
fn state(through: u64) -> (Digest, Vec<u8>) {
    let mut all = view(Bugs::NONE);
    entries(through).iter().for_each(|entry| _ = all.apply(entry));
    let header = Header::new(b"test", &layout(), REGION, Epoch(through));
    let (mut encoder, head) = Encoder::begin(&header);
    let mut file = head.to_vec();
    let mut put = |parts: [ordain_role::Bytes; 2]| parts.iter().for_each(|part| file.extend_from_slice(part));
    let mut image = Image::default();
    image.standing.term = Term(3);
    put(encoder.frame(image.first()));
    let mut from = Some(Position::default());
    while let Some(at) = from {
        let mut filling = Filling::new(Kind::Records, 1);
        all.store.visit(at, |entry| {
            let takes = filling.takes(entry.position);
            if takes {
                filling.piece.push_record(entry.db, entry.key, entry.cell, entry.version);
            }
            takes
        });
        from = filling.rest;
        put(encoder.frame(filling.piece));
    }
    put(encoder.end().0);
    (all.digest(), file)
}

/// Gives a view bytes of a checkpoint; answers what it says, and how far its reader is to go on from.
fn give(
    view: &mut Participant,
    epoch: u64,
    (offset, bytes): (usize, &[u8]),
    is_last: bool,
) -> (Progress, Option<u64>) {
    let (epoch, offset, bytes) = (Epoch(epoch), offset as u64, Arc::new(bytes.to_vec()));
    let through = offset + bytes.len() as u64;
    let come = Own::Come(Come { epoch, offset, bytes, is_last, proxy: PROXY });
    let before = view.applied;
    let sends = tell(view, Event::Message { from: PROXY, message: Message::Own(come) });
    let (mut progress, mut begins, mut is_replaced) = (None, None, false);
    for (to, message) in sends {
        match message {
            Message::Own(Own::Taken(taken)) => {
                assert_eq!((to, taken.epoch, taken.through), (PROXY, epoch, through));
                progress = Some(taken.progress);
            }
            Message::Log(Log::BeginAgain(place)) => {
                assert_eq!(to, READER);
                begins = Some(place.0);
            }
            Message::Own(Own::Viewed(_)) => {}
            // Its manager does not wait for answers of what it showed before.
            Message::Own(Own::Replaced(_)) => is_replaced = true,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(is_replaced, view.applied > before);
    (progress.unwrap(), begins)
}

fn tell(view: &mut Participant, event: Event<Message>) -> Vec<(Address, Message)> {
    let mut out = Outbox::default();
    view.handle(Now::default(), event, &mut out);
    assert_eq!(out.halt, None);
    view.check().unwrap();
    out.sends
}

/// The log of its region tells a view of an entry.
fn hear(view: &mut Participant, entry: &Arc<Entry>) {
    tell(view, Event::Message { from: READER, message: Log::Sealed(entry.clone()).into() });
}

/// Gives a view a whole checkpoint in parts of so many bytes; answers the digests that it has shown meanwhile.
fn give_all(view: &mut Participant, epoch: u64, file: &[u8], len: usize) -> Vec<Digest> {
    let mut seen = Vec::new();
    for (at, part) in (0..).step_by(len).zip(file.chunks(len)) {
        let is_last = at + part.len() == file.len();
        let said = give(view, epoch, (at, part), is_last);
        let expected = if is_last { (Progress::All, Some(epoch)) } else { (Progress::More, None) };
        assert_eq!(said, expected, "the part from byte {at} on");
        seen.push(view.digest());
    }
    seen
}

#[test]
fn what_a_view_shows_is_what_it_had_until_all_of_a_checkpoint_has_come() {
    let (before, later) = (state(4).0, state(40));
    for (had, has) in [(0, Digest::default()), (4, before)] {
        let mut view = view(Bugs::NONE);
        entries(had).iter().for_each(|entry| hear(&mut view, entry));
        let seen = give_all(&mut view, 40, &later.1, 70);
        let (last, others) = seen.split_last().unwrap();
        assert!(others.len() > 20 && others.iter().all(|digest| *digest == has), "{} parts", others.len());
        assert_eq!(*last, later.0);
        // The log goes on behind it.
        entries(41).last().into_iter().for_each(|entry| hear(&mut view, entry));
        assert_eq!(view.digest(), state(41).0);
    }
}

/// Found by seed 51081 of `regions-mvocc`: the reader had found that the view was behind, the proxy had handed over a checkpoint, and then came what
/// the reader had sent before.
#[test]
fn an_entry_that_comes_later_than_the_checkpoint_that_has_it_is_passed_over() {
    let (digest, file) = state(40);
    let mut view = view(Bugs::NONE);
    entries(4).iter().for_each(|entry| hear(&mut view, entry));
    give_all(&mut view, 40, &file, 500);
    for late in &entries(40)[4..] {
        hear(&mut view, late);
        assert_eq!(view.digest(), digest);
    }
    entries(41).last().into_iter().for_each(|entry| hear(&mut view, entry));
    assert_eq!(view.digest(), state(41).0);
}

/// Scenario 26: the node dies while pieces come. What comes after it follows nothing, and the view begins from the front.
#[test]
fn a_view_that_dies_in_between_has_shown_nothing_of_it_and_begins_from_the_front() {
    let (digest, file) = state(40);
    for dies_at in [64, file.len() / 2, file.len() - 1] {
        let mut first = view(Bugs::NONE);
        assert_eq!(give(&mut first, 40, (0, &file[..dies_at]), false), (Progress::More, None));
        assert_eq!(first.digest(), Digest::default());
        drop(first);
        let mut second = view(Bugs::NONE);
        let (progress, begins) = give(&mut second, 40, (dies_at, &file[dies_at..]), true);
        assert!(matches!(progress, Progress::Unfit(_)) && begins.is_none(), "{progress:?}");
        assert_eq!(second.digest(), Digest::default());
        assert_eq!(give_all(&mut second, 40, &file, 1_000).pop(), Some(digest));
    }
}

#[test]
fn a_checkpoint_that_is_damaged_cut_or_of_another_region_leaves_what_was_shown() {
    let (digest, file) = state(40);
    let mut view = view(Bugs::NONE);
    entries(4).iter().for_each(|entry| hear(&mut view, entry));
    let is_unfit = |view: &mut Participant, file: &[u8]| {
        let middle = file.len() / 2;
        let first = give(view, 40, (0, &file[..middle]), false).0;
        let second = give(view, 40, (middle, &file[middle..]), true).0;
        assert!(view.digest() == state(4).0, "it shows what it had");
        matches!((first, second), (_, Progress::Unfit(_)))
    };
    for bit in (0..file.len() * 8).step_by(1_001) {
        let mut damaged = file.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(is_unfit(&mut view, &damaged), "bit {bit}");
    }
    assert!(is_unfit(&mut view, &file[..file.len() - 1]));
    let other = Header::new(b"test", &layout(), PartitionId(0), Epoch(40));
    let (encoder, head) = Encoder::begin(&other);
    let other: Vec<u8> = [head].into_iter().chain(encoder.end().0).flatten().collect();
    assert!(is_unfit(&mut view, &other));
    assert_eq!(give_all(&mut view, 40, &file, 333).pop(), Some(digest));
    // One that is not newer changes nothing, and the log goes on behind what there is.
    assert_eq!(give(&mut view, 30, (0, &file[..9]), false), (Progress::All, Some(40)));
    assert_eq!(view.digest(), digest);
}

#[test]
fn what_was_shown_before_is_given_back_some_at_a_time() {
    let (_, file) = state(40);
    let mut view = view(Bugs::NONE);
    entries(12).iter().for_each(|entry| hear(&mut view, entry));
    give_all(&mut view, 40, &file, 500);
    assert_eq!(view.replacing.gone.len(), 1);
    // Others are not of the places that they should be of, and are given up.
    give(&mut view, 50, (0, &file[..600]), false);
    give(&mut view, 60, (0, &file[..600]), false);
    assert_eq!(view.replacing.gone.len(), 3);
    for _ in 0..4 {
        tell(&mut view, Event::Timer(SWEEP));
    }
    assert_eq!(view.replacing.gone.len(), 0);
}

#[test]
fn the_planted_bug_shows_what_was_at_no_place_of_the_log() {
    let (_, file) = state(40);
    let mut view = view(Bugs::NONE.with(Bug::ShowPieces));
    let half = file.len() / 2;
    assert_eq!(give(&mut view, 40, (0, &file[..half]), false).0, Progress::More);
    let shown = view.digest();
    assert!((0..=40).all(|place| state(place).0 != shown));
}

/// Found by a simulated run that lost a write: a script had read before the checkpoint, and wrote after it as if it had read then.
#[test]
fn who_has_read_what_was_shown_before_does_not_read_on() {
    let mut registry = Registry::default();
    ordain_model::system::register(&mut registry);
    let registry = Arc::new(registry);
    let control = Box::new(Viewing::planting(Bugs::NONE));
    let holding = Holding::of_partition(layout(), REGION);
    let mut view = Participant::new(holding, Address::default(), registry.clone(), control).viewing(READER);
    for entry in entries(12) {
        tell(&mut view, Event::Message { from: READER, message: Log::Sealed(entry).into() });
    }
    let home = Lead { partition: PartitionId(0), term: Term(1) };
    let key = pair(1)[0].clone();
    let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(1));
    let call = Call::new(ordain_model::system::REMOVE, Db(0));
    let names = [(Db(0), &key[..])];
    chunk.push(&registry, call, |args| ordain_model::system::read_args(names, args)).unwrap();
    let who = |number| AttemptId { transaction: TransactionId { home, number }, attempt: 1 };
    let send = |view: &mut Participant, content| {
        let to = view.lead().unwrap();
        let termed = Message::Termed(Termed { from: home, to, content });
        let sends = tell(view, Event::Message { from: Address::default(), message: termed });
        let failures = sends.into_iter().filter_map(|(_, message)| match message {
            Message::Termed(Termed { content: Protocol::Accessed(accessed), .. }) => Some(accessed.failure),
            _ => None,
        });
        failures.collect::<Vec<_>>()
    };
    let access = |number| {
        let access = Access {
            attempt: who(number),
            age: Age(1),
            at: 0,
            fragments: vec![0],
            inputs: Vec::new(),
            shipped: Vec::new(),
            returned: Vec::new(),
            now: Millis(0),
            seed: 1,
            step: 0,
            snapshot: Snapshot::default(),
            is_last: false,
        };
        Protocol::Access(Accesses { chunk: Arc::new(chunk.clone()), list: vec![access] })
    };
    assert_eq!(send(&mut view, access(1)), [None]);
    let file = state(20).1;
    assert_eq!(give(&mut view, 20, (0, &file), true), (Progress::All, Some(20)));
    assert_eq!(
        send(&mut view, access(1)),
        [Some(Failure::Refused)],
        "it has read what is not shown any more"
    );
    assert_eq!(send(&mut view, access(2)), [None]);
    send(&mut view, Protocol::Finish(who(1), None));
    assert!(view.replacing.ended.is_empty());
}
