//! Tests of what a participant tells its control of the log.

use std::sync::{Mutex, PoisonError};

use ordain_model::children::child_key;
use ordain_model::{Call, Cell, Chunk, ChunkNo, GatewayId, Placement, Value, system};

use ordain_model::Layout;

use super::*;
use crate::concurrency::{Mode, Verdict};
use crate::entry::Commit;
use crate::ids::TransactionId;
use crate::message::{Access, Accesses};
use crate::view::Seen;

/// A record that was installed, with the number of the decision.
type Installed = (Db, Vec<u8>, u64);

/// A control with snapshots that notes what it is told to install.
#[derive(Debug)]
struct Noting {
    takes: Snapshots,
    stamps: Stamps,
    installed: Arc<Mutex<Vec<Installed>>>,
}

impl ConcurrencyControl for Noting {
    fn snapshots(&self) -> Snapshots {
        self.takes
    }

    fn stamps(&self) -> Stamps {
        self.stamps
    }

    fn access(&mut self, _: &mut MemoryStore, _: AttemptId, _: Age, _: Target, _: Mode) -> Verdict {
        Verdict::Refused
    }

    fn install(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        cell: Cell,
        with: &Commitment,
        version: Gsn,
    ) {
        let (db, key) = store.key(record);
        let number = with.view.seen().vector.of(PartitionId(0));
        let mut installed = self.installed.lock().unwrap_or_else(PoisonError::into_inner);
        installed.push((db, key.to_vec(), number));
        store.put_back(record, cell, version);
    }

    fn finish(&mut self, _: &mut MemoryStore, _: AttemptId, _: Ending, _: &mut Ended) {}

    fn restore(&mut self, _: &mut MemoryStore, _: AttemptId, _: Bounds, _: Target, _: Mode) {}

    fn held(&self, _: AttemptId, _: &mut dyn FnMut(Target, Mode)) {}

    fn clear(&mut self, _: &mut MemoryStore) {}

    fn check(&self, _: &MemoryStore, _: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        Ok(())
    }

    fn gauges(&self, _: &mut dyn FnMut(&'static str, f64)) {}
}

/// The records that a commit installs which writes a child of `p` alone, and the content of `p` after it.
fn installed(takes: Snapshots) -> (Vec<Installed>, Option<Value>) {
    let installed = Arc::new(Mutex::new(Vec::new()));
    let control = Box::new(Noting { takes, stamps: Stamps::OfTransaction, installed: installed.clone() });
    let layout = Arc::new(Layout::single(1));
    let mut shard = Participant::new(
        Holding::of_shard(layout, 0),
        Address::default(),
        Arc::new(Registry::default()),
        control,
    );
    let lead = Lead { partition: PartitionId(0), term: Term(1) };
    let cell = |text: &str| Cell { value: Some(Value::String(text.into())), ..Cell::ABSENT };
    let child = child_key(b"p", b"c");
    let commit = |number, db, key: &[u8], text| {
        let attempt = AttemptId { transaction: TransactionId { home: lead, number }, attempt: 1 };
        let (view, writes) = (
            View::of(Seen::NOTHING),
            vec![Write::new(&ordain_model::Placement::NONE, db, key.to_vec(), cell(text))],
        );
        Content::Commit(Commit { attempt, view, writes, ..Commit::default() })
    };
    let contents =
        [Content::Begin, commit(1, Db(0), b"p", "parent"), commit(2, Db(0).children(), &child, "child")];
    for (place, content) in (1..).zip(contents) {
        let entry = Entry { place: Epoch(place), term: Term(1), now: Millis(0), content, agreed: None };
        shard.apply(&Arc::new(entry));
    }
    let parent = shard.store.find(Db(0), b"p", KeyHash::of_record(Db(0), b"p")).unwrap();
    let content = shard.store.cell(parent).value.clone();
    let installed = installed.lock().unwrap_or_else(PoisonError::into_inner).clone();
    (installed, content)
}

/// R-VERSION: attempts access a child by its parent, so that what has changed the child has to show there.
#[test]
fn a_child_that_is_written_gives_its_parent_a_version_where_there_are_snapshots() {
    let child = child_key(b"p", b"c").to_vec();
    let parent = |number| (Db(0), b"p".to_vec(), number);
    let child = (Db(0).children(), child, 3);
    let content = Some(Value::String(b"parent".to_vec()));
    let (all, after) = installed(Snapshots::AtBegin);
    assert_eq!((all, after), (vec![parent(2), child.clone(), parent(3)], content.clone()));
    assert_eq!(installed(Snapshots::Never), (vec![parent(2), child], content));
}

/// Found by a seed of three partitions: a home says twice that an attempt has aborted. The manager has applied the outcome when the second
/// word comes, and has this participant drop what that still has as promised.
#[test]
fn what_is_promised_ends_by_the_log_alone() {
    let (takes, stamps) = (Snapshots::Never, Stamps::OfTransaction);
    let control = Box::new(Noting { takes, stamps, installed: Arc::default() });
    let layout = Arc::new(Layout::single(1));
    let mut shard = Participant::new(
        Holding::of_shard(layout, 0),
        Address::default(),
        Arc::new(Registry::default()),
        control,
    );
    let home = Lead { partition: PartitionId(1), term: Term(1) };
    let attempt = AttemptId { transaction: TransactionId { home, number: 1 }, attempt: 1 };
    let (bounds, view) = (Bounds::at(Age(1)), View::NONE);
    let (ceiling, changes, writes) = Default::default();
    let holds = vec![Hold::Table { shard: 0, mode: Mode::Exclusive }];
    let prepare = Prepare { attempt, bounds, view, ceiling, changes, writes, holds, among: None };
    let apply = |shard: &mut Participant, place, content| {
        let entry = Entry { place: Epoch(place), term: Term(1), now: Millis(0), content, agreed: None };
        shard.apply(&Arc::new(entry));
    };
    apply(&mut shard, 1, Content::Begin);
    apply(&mut shard, 2, Content::Prepare(prepare));
    let mut out = Outbox::default();
    shard.take_own(Own::Serve(Term(1), Epoch(2)), &mut out);
    shard.take_own(Own::Drop(attempt), &mut out);
    assert_eq!((shard.check(), shard.attempts.len()), (Ok(()), 1));
    apply(&mut shard, 3, Content::Outcome(attempt, None));
    assert_eq!(shard.prepared.len(), 0);
    shard.take_own(Own::Drop(attempt), &mut out);
    assert_eq!((shard.check(), shard.attempts.len()), (Ok(()), 0));
}

/// A region as its log has written it: keys and texts, one entry each.
fn entries(region: PartitionId, term: u64, from: u64, all: &[(&str, &str)]) -> Vec<Arc<Entry>> {
    let lead = Lead { partition: region, term: Term(term) };
    let begin = (Epoch(from), Content::Begin);
    let commits = (from + 1..).zip(all).map(|(place, (key, text))| {
        let attempt = AttemptId { transaction: TransactionId { home: lead, number: place }, attempt: 1 };
        let cell = Cell { value: Some(Value::String((*text).into())), ..Cell::ABSENT };
        let key = key.as_bytes().to_vec();
        let writes = vec![Write::new(&ordain_model::Placement::NONE, Db(0), key, cell)];
        (Epoch(place), Content::Commit(Commit { attempt, writes, ..Commit::default() }))
    });
    let entry =
        |(place, content)| Arc::new(Entry { place, term: Term(term), now: Millis(0), content, agreed: None });
    [begin].into_iter().chain(commits).map(entry).collect()
}

/// A view serves from the start on, and goes on under each term of its region's log by itself.
#[test]
fn a_view_answers_under_the_term_that_its_region_has_come_to() {
    let region = PartitionId(1);
    let layout = Arc::new(Layout::even(2, 2).unwrap());
    let (manager, reader) = (Address::default(), Address { role: 7, ..Address::default() });
    let mut view = Participant::new(
        Holding::of_partition(layout.clone(), region),
        manager,
        Arc::new(Registry::default()),
        Box::new(crate::viewing::Viewing::default()),
    )
    .viewing(reader);
    let mut tell = |event| {
        let mut out = Outbox::default();
        view.handle(Now::default(), event, &mut out);
        view.check().unwrap();
        let terms = out.sends.into_iter().map(|(to, message)| match message {
            Message::Own(Own::Viewed(lead)) => (to == manager).then_some(lead.term.0).unwrap(),
            other => panic!("{other:?}"),
        });
        (terms.collect::<Vec<u64>>(), view.digest())
    };
    let sealed =
        |entry: &Arc<Entry>| Event::Message { from: reader, message: Log::Sealed(entry.clone()).into() };
    assert_eq!(tell(Event::Start).0, [0]);
    let is_there = |key: &String| layout.partition_of(KeyHash::of(key.as_bytes()).slot()) == region;
    let keys: Vec<String> = (0..).map(|n| n.to_string()).filter(is_there).take(8).collect();
    let writes: Vec<(&str, &str)> = keys.iter().map(|key| (key.as_str(), "text")).collect();
    let terms: Vec<u64> =
        entries(region, 3, 1, &writes).iter().flat_map(|entry| tell(sealed(entry)).0).collect();
    assert_eq!(terms, [3]);
    // Its records are those of all shards of the region.
    let mut all = Participant::new(
        Holding::of_partition(layout.clone(), region),
        manager,
        Arc::new(Registry::default()),
        Box::new(crate::viewing::Viewing::default()),
    );
    entries(region, 3, 1, &writes).iter().for_each(|entry| _ = all.apply(entry));
    let later = entries(region, 5, 20, &[]);
    assert_eq!(tell(sealed(&later[0])), (vec![5], all.digest()));
    assert_ne!(all.digest(), Digest::default());
}

/// Decision 56: with two stamps, those of another partition's counter say nothing here.
#[test]
fn an_attempt_with_two_stamps_has_its_home_here() {
    let (takes, stamps) = (Snapshots::Never, Stamps::TwoOfAttempt);
    let control = Box::new(Noting { takes, stamps, installed: Arc::default() });
    let mut registry = Registry::default();
    system::register(&mut registry);
    let (layout, registry) = (Arc::new(Layout::single(1)), Arc::new(registry));
    let mut shard =
        Participant::new(Holding::of_shard(layout, 0), Address::default(), registry.clone(), control);
    let mut chunk = Chunk::new(GatewayId::of(0, 0), ChunkNo(1));
    let names = [(Db(0), &b"k"[..])];
    let call = Call::new(system::REMOVE, Db(0));
    chunk.push(&registry, call, |args| system::read_args(names, args)).unwrap();
    let own = Lead { partition: PartitionId(0), term: Term(1) };
    for (place, content) in [(1, Content::Begin), (2, Content::Reserve(Millis(1_000)))] {
        let entry = Entry { place: Epoch(place), term: Term(1), now: Millis(0), content, agreed: None };
        shard.apply(&Arc::new(entry));
    }
    let mut out = Outbox::default();
    shard.take_own(Own::Serve(Term(1), Epoch(2)), &mut out);
    let mut asks = |home: Lead, now| {
        let access = Access {
            attempt: AttemptId { transaction: TransactionId { home, number: 1 }, attempt: 1 },
            age: Age::first_at(Millis(500)),
            at: 0,
            fragments: vec![0],
            inputs: Vec::new(),
            shipped: Vec::new(),
            returned: Vec::new(),
            now: Millis(now),
            seed: 1,
            step: 0,
            snapshot: Snapshot::default(),
            is_last: true,
        };
        let accesses = Accesses { chunk: Arc::new(chunk.clone()), list: vec![access] };
        let termed = Termed { from: home, to: own, content: Protocol::Access(accesses) };
        let mut out = Outbox::default();
        shard.take_termed(Address::default(), termed, &mut out);
        let answers = out.sends.iter().filter(|(_, message)| matches!(message, Message::Termed(_)));
        (answers.count(), shard.refused)
    };
    assert_eq!(asks(own, 500), (1, 0), "it is answered");
    assert_eq!(asks(own, 400), (1, 0), "what it reads may be of a later stamp");
    assert_eq!(asks(own, 501), (0, 1));
    assert_eq!(asks(Lead { partition: PartitionId(1), term: Term(1) }, 500), (0, 2));
}

/// Another region knows by the version of a parent alone whether what it has read of its children is the newest.
#[test]
fn in_a_region_a_child_that_is_written_moves_its_parent() {
    let versions = |is_of_region| {
        let (takes, stamps) = (Snapshots::Never, Stamps::OfTransaction);
        let control = Box::new(Noting { takes, stamps, installed: Arc::default() });
        let holding = Holding::of_shard(Arc::new(Layout::single(1)), 0);
        let mut shard = Participant::new(holding, Address::default(), Arc::new(Registry::default()), control);
        if is_of_region {
            shard = shard.of_region();
        }
        let write = |db: Db, key: &[u8]| {
            let cell = Cell { value: Some(Value::String(b"new".to_vec())), ..Cell::ABSENT };
            Write::new(&Placement::NONE, db, key.to_vec(), cell)
        };
        let child = child_key(b"p", b"c");
        for (place, write) in [(2, write(Db(0), b"p")), (3, write(Db(0).children(), &child))] {
            shard.install(&[], &[write], &Commitment::at(Age(1)), Epoch(place));
        }
        let parent = shard.store.find(Db(0), b"p", KeyHash::of_record(Db(0), b"p")).unwrap();
        shard.store.version(parent)
    };
    assert_eq!([true, false].map(versions), [Gsn(3), Gsn(2)]);
}
