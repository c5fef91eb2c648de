//! Past states against a model that remembers every content of every record (paxflow.md, section 8, oracle 5 and
//! scenarios 6 to 9, 14, 15).
//!
//! Epochs are executed as a shard does it: several at a time, but those that change one record in order, and
//! whole-table operations alone. What is asked is what may be asked: epochs that are over and kept.

use std::collections::BTreeMap;

use ordain_model::children::child_key;
use ordain_model::key::SLOTS;
use ordain_model::table::Expiring;
use ordain_model::value::record_hash;
use ordain_model::{
    Cell, CellMut, Db, Digest, Epoch, Gsn, KeyHash, Millis, PartitionId, Position, Table, Value,
};
use ordain_store::{Keep, Memory, MemoryStore, RecordId, RecordStore, Snapshot};
use proptest::prelude::*;

/// Two keys of equal position among them.
const KEYS: [&str; 4] = ["k6461322", "k7969762", "", "a key that does not fit into a record's line"];
const DBS: [u8; 5] = [0, 1, 128, 129, 255];
/// So many epochs may be under way at once.
const WINDOW: u64 = 3;

type Name = (Position, Db, Vec<u8>);

fn name(db: u8, key: usize) -> Name {
    let db = Db(db);
    let key = if db.holds_children() {
        child_key(KEYS[key].as_bytes(), b"7").to_vec()
    } else {
        KEYS[key].as_bytes().to_vec()
    };
    (KeyHash::of_record(db, &key).position(), db, key)
}

#[derive(Clone, Debug)]
enum Content {
    Text(Vec<u8>),
    Field(u8),
    Expiring(u64),
    Nothing,
}

#[derive(Clone, Debug)]
enum Step {
    /// A transaction changes a record.
    Change {
        db: u8,
        key: usize,
        ahead: u64,
        content: Content,
    },
    /// One changes it for the time being, and aborts when `Settle` comes.
    Abort {
        db: u8,
        key: usize,
        ahead: u64,
        content: Content,
    },
    /// One aborts at once; as often as is said.
    AbortNow {
        db: u8,
        key: usize,
        ahead: u64,
        times: u8,
    },
    /// One looks, and changes nothing.
    Look {
        db: u8,
        key: usize,
        ahead: u64,
    },
    /// One has the record shipped to another shard until `Settle` comes.
    Ship {
        db: u8,
        key: usize,
        ahead: u64,
        back: Option<Content>,
    },
    /// Somebody waits for the record until `Unlock` comes.
    Lock {
        db: u8,
        key: usize,
    },
    Settle,
    Unlock,
    Clear {
        db: Option<u8>,
        ahead: u64,
    },
    Swap {
        a: u8,
        b: u8,
        ahead: u64,
    },
    Expire {
        now: u64,
        ahead: u64,
    },
    /// The oldest epoch is over.
    Over,
    Since {
        back: Option<u64>,
    },
    Cut {
        back: Option<u64>,
    },
    /// What stands before this record need not be kept for the cut any more.
    Given {
        key: usize,
    },
    /// Records are to have two copies around the end of an epoch; or not any more.
    Point {
        ahead: Option<u64>,
    },
    /// So many records are captured, if all of the point is over.
    Capture {
        records: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let db = || prop::sample::select(&DBS[..]);
    let key = || 0..KEYS.len();
    let ahead = || 0..WINDOW;
    let content = || {
        prop_oneof![
            3 => prop::collection::vec(any::<u8>(), 0..30).prop_map(Content::Text),
            2 => any::<u8>().prop_map(Content::Field),
            1 => (1..4u64).prop_map(Content::Expiring),
            3 => Just(Content::Nothing),
        ]
    };
    let change = (db(), key(), ahead(), content());
    let abort = (db(), key(), ahead(), content());
    let ship = (db(), key(), ahead(), prop::option::of(content()));
    prop_oneof![
        12 => change.prop_map(|(db, key, ahead, content)| Step::Change { db, key, ahead, content }),
        2 => abort.prop_map(|(db, key, ahead, content)| Step::Abort { db, key, ahead, content }),
        1 => (db(), key(), ahead(), 1..4u8).prop_map(|(db, key, ahead, times)| Step::AbortNow { db, key, ahead, times }),
        1 => (db(), key(), ahead()).prop_map(|(db, key, ahead)| Step::Look { db, key, ahead }),
        2 => ship.prop_map(|(db, key, ahead, back)| Step::Ship { db, key, ahead, back }),
        2 => (db(), key()).prop_map(|(db, key)| Step::Lock { db, key }),
        2 => Just(Step::Settle),
        2 => Just(Step::Unlock),
        1 => (prop::option::of(0..2u8), ahead()).prop_map(|(db, ahead)| Step::Clear { db, ahead }),
        1 => (0..2u8, 0..2u8, ahead()).prop_map(|(a, b, ahead)| Step::Swap { a, b, ahead }),
        1 => (0..4u64, ahead()).prop_map(|(now, ahead)| Step::Expire { now, ahead }),
        6 => Just(Step::Over),
        3 => prop::option::weighted(0.9, 0..4u64).prop_map(|back| Step::Since { back }),
        2 => prop::option::of(0..4u64).prop_map(|back| Step::Cut { back }),
        1 => key().prop_map(|key| Step::Given { key }),
        2 => prop::option::weighted(0.8, 0..3u64).prop_map(|ahead| Step::Point { ahead }),
        4 => (0..4usize).prop_map(|records| Step::Capture { records }),
    ]
}

fn put(content: &Content, cell: &mut CellMut<'_>) {
    match content {
        Content::Text(bytes) => cell.put_string(bytes),
        Content::Field(n) if cell.string().is_none() => drop(cell.set_field(&[n % 3], &[*n])),
        Content::Field(n) => cell.change_string(|bytes| bytes.push(*n)),
        Content::Expiring(at) => {
            cell.put_string(b"for a time");
            cell.set_expiry(Millis(*at));
        }
        Content::Nothing => {
            if cell.value.is_some() {
                cell.delete();
            }
        }
    }
}

/// A transaction that is not over, and what there was before it.
struct Open {
    name: Name,
    id: RecordId,
    gsn: Gsn,
    before: (Cell, Gsn),
    shipped: bool,
    back: Option<Content>,
}

struct World {
    store: MemoryStore,
    /// What each record held after each transaction that changed it, by the transaction's epoch.
    history: BTreeMap<Name, Vec<(Epoch, Cell, Gsn)>>,
    /// The last epoch that has done anything with a record.
    touched: BTreeMap<Name, u64>,
    open: Vec<Open>,
    locked: Vec<RecordId>,
    /// The oldest epoch that is not over.
    now: u64,
    /// The last epoch that has changed anything.
    last: u64,
    transactions: u32,
    keep: Keep,
    point: Option<Point>,
}

/// What is captured.
struct Point {
    epoch: u64,
    captured: Vec<(Name, (Cell, Gsn))>,
}

impl World {
    fn new() -> World {
        World {
            store: MemoryStore::new(0..SLOTS),
            history: BTreeMap::new(),
            touched: BTreeMap::new(),
            open: Vec::new(),
            locked: Vec::new(),
            now: 5,
            last: 0,
            transactions: 0,
            keep: Keep::default(),
            point: None,
        }
    }

    fn gsn(&mut self, epoch: u64) -> Gsn {
        self.transactions += 1;
        self.last = self.last.max(epoch);
        Gsn::new(Epoch(epoch), PartitionId(0), self.transactions)
    }

    /// The next transaction on a record, unless one on it is open.
    fn begin(&mut self, db: u8, key: usize, ahead: u64) -> Option<(Name, RecordId, Gsn)> {
        let name = name(db, key);
        if self.open.iter().any(|open| open.name == name) {
            return None;
        }
        let epoch = (self.now + ahead).max(self.touched.get(&name).copied().unwrap_or(0));
        self.touched.insert(name.clone(), epoch);
        let gsn = self.gsn(epoch);
        let id = self.store.find_or_reserve(name.1, &name.2, KeyHash::of_record(name.1, &name.2));
        Some((name, id, gsn))
    }

    /// An operation that everything before it has to be done for. No epoch after it is smaller.
    fn barrier(&mut self, ahead: u64) -> Gsn {
        self.settle();
        let epoch = (self.now + ahead).max(self.touched.values().copied().max().unwrap_or(0));
        for db in DBS {
            for key in 0..KEYS.len() {
                self.touched.insert(name(db, key), epoch);
            }
        }
        self.gsn(epoch)
    }

    fn note(&mut self, name: Name, gsn: Gsn, cell: Cell) {
        let version = if cell.value.is_some() { gsn } else { Gsn::NONE };
        self.history.entry(name).or_default().push((gsn.epoch(), cell, version));
    }

    fn edit(&mut self, id: RecordId, gsn: Gsn, content: &Content) -> bool {
        self.store.edit(id, gsn, |cell, changed| {
            put(content, &mut CellMut::new(cell, changed, None));
            *changed
        })
    }

    fn undo(&mut self, id: RecordId, (cell, version): (Cell, Gsn)) {
        self.store.edit(id, version, |place, changed| {
            *place = cell;
            *changed = true;
        });
    }

    fn settle(&mut self) {
        for Open { name, id, gsn, before, shipped, back } in std::mem::take(&mut self.open) {
            match back {
                _ if !shipped => self.undo(id, before),
                None => self.store.put_back(id, before.0, before.1),
                Some(content) => {
                    let mut cell = before.0;
                    put(&content, &mut CellMut::new(&mut cell, &mut false, None));
                    self.store.put_back(id, cell.clone(), gsn);
                    self.note(name, gsn, cell);
                }
            }
            self.store.set_lock(id, 0);
            self.store.release_if_absent(id);
            // Whoever waits for it does so still.
            self.locked.retain(|locked| *locked != id);
        }
    }

    /// What the records hold, at the end of an epoch.
    fn state(&self, epoch: u64) -> BTreeMap<Name, (Cell, Gsn)> {
        let at = |changes: &Vec<(Epoch, Cell, Gsn)>| {
            let (_, cell, version) = changes.iter().rfind(|(by, ..)| by.0 <= epoch)?;
            cell.value.is_some().then(|| (cell.clone(), *version))
        };
        self.history.iter().filter_map(|(name, changes)| Some((name.clone(), at(changes)?))).collect()
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Change { db, key, ahead, content } => {
                let Some((name, id, gsn)) = self.begin(db, key, ahead) else { return Ok(()) };
                if self.edit(id, gsn, &content) {
                    self.note(name, gsn, self.store.cell(id).clone());
                }
                self.store.release_if_absent(id);
            }
            Step::Abort { db, key, ahead, content } => {
                let Some((name, id, gsn)) = self.begin(db, key, ahead) else { return Ok(()) };
                let before = (self.store.cell(id).clone(), self.store.version(id));
                self.store.set_lock(id, 1);
                self.edit(id, gsn, &content);
                self.open.push(Open { name, id, gsn, before, shipped: false, back: None });
            }
            Step::AbortNow { db, key, ahead, times } => self.abort_now(db, key, ahead, times)?,
            Step::Look { db, key, ahead } => {
                let Some((_, id, gsn)) = self.begin(db, key, ahead) else { return Ok(()) };
                let before = (self.store.older(), self.store.version(id));
                self.store.edit(id, gsn, |cell, _| cell.value.is_some());
                prop_assert_eq!((self.store.older(), self.store.version(id)), before);
                self.store.release_if_absent(id);
            }
            Step::Ship { db, key, ahead, back } => {
                let Some((name, id, gsn)) = self.begin(db, key, ahead) else { return Ok(()) };
                self.store.set_lock(id, 1);
                let before = self.store.take(id, gsn);
                self.open.push(Open { name, id, gsn, before, shipped: true, back });
            }
            Step::Lock { db, key } => {
                let (_, db, key) = name(db, key);
                let id = self.store.find_or_reserve(db, &key, KeyHash::of_record(db, &key));
                if self.store.lock(id) == 0 {
                    self.store.set_lock(id, 2);
                    self.locked.push(id);
                }
                self.store.release_if_absent(id);
            }
            Step::Settle => self.settle(),
            Step::Unlock => {
                for id in std::mem::take(&mut self.locked) {
                    if !self.open.iter().any(|open| open.id == id) {
                        self.store.set_lock(id, 0);
                        self.store.release_if_absent(id);
                    }
                }
            }
            Step::Clear { db, ahead } => {
                let gsn = self.barrier(ahead);
                self.store.table(gsn).clear(db.map(Db));
                for (name, _) in self.state(u64::MAX) {
                    if db.map_or(name.1.home().0 < Db::COUNT, |db| name.1.home() == Db(db)) {
                        self.note(name, gsn, Cell::ABSENT);
                    }
                }
            }
            Step::Swap { a, b, ahead } => self.swap(Db(a), Db(b), ahead),
            Step::Expire { now, ahead } => {
                let gsn = self.barrier(ahead);
                self.store.table(gsn).expire(Millis(now), Position(0)..Position::END);
                for (name, (cell, _)) in self.state(u64::MAX) {
                    if cell.is_expired(Millis(now)) {
                        self.note(name, gsn, Cell::ABSENT);
                    }
                }
            }
            Step::Over => {
                if self.open.iter().all(|open| open.gsn.epoch().0 > self.now) {
                    self.now += 1;
                }
            }
            Step::Since { back } => {
                self.keep.since = back.map(|back| Epoch(self.may_be_kept(back)));
                self.store.keep(self.keep);
            }
            Step::Cut { back } => {
                self.keep.cut = back.map(|back| Epoch(self.may_be_kept(back)));
                self.keep.given = Position::default();
                self.store.keep(self.keep);
            }
            Step::Given { key } => {
                // As of an epoch that is not over nothing is given away.
                if self.keep.cut.is_some_and(|cut| cut.0 < self.now) {
                    self.keep.given = self.keep.given.max(name(0, key).0);
                    self.store.keep(self.keep);
                }
            }
            Step::Point { ahead } => {
                let epoch = ahead.map(|ahead| self.last.max(self.now - 1) + ahead);
                self.point = epoch.map(|epoch| Point { epoch, captured: Vec::new() });
                self.store.point(epoch.map(Epoch));
                self.store.keep(self.keep);
            }
            Step::Capture { records } => self.capture(records)?,
        }
        self.check()
    }

    fn swap(&mut self, a: Db, b: Db, ahead: u64) {
        let gsn = self.barrier(ahead);
        self.store.table(gsn).swap(a, b);
        let state = self.state(u64::MAX);
        for ((position, db, key), (cell, _)) in state.iter().filter(|_| a != b) {
            let pairs = [(a, b), (b, a), (a.children(), b.children()), (b.children(), a.children())];
            let Some((_, to)) = pairs.iter().find(|(from, _)| from == db) else { continue };
            let to = (*position, *to, key.clone());
            if !state.contains_key(&to) {
                self.note((*position, *db, key.clone()), gsn, Cell::ABSENT);
            }
            self.note(to, gsn, cell.clone());
        }
    }

    fn abort_now(&mut self, db: u8, key: usize, ahead: u64, times: u8) -> Result<(), TestCaseError> {
        let Some((_, id, gsn)) = self.begin(db, key, ahead) else { return Ok(()) };
        let kept = self.store.older();
        for _ in 0..times {
            let before = (self.store.cell(id).clone(), self.store.version(id));
            self.edit(id, gsn, &Content::Text(b"not to stay".to_vec()));
            self.undo(id, before);
        }
        prop_assert!(self.store.older() <= kept + 1, "one entry an epoch");
        self.store.release_if_absent(id);
        Ok(())
    }

    /// What is captured is what there was, in order, however much has happened since.
    fn capture(&mut self, records: usize) -> Result<(), TestCaseError> {
        let Some(point) = self.point.as_mut().filter(|point| point.epoch < self.now) else { return Ok(()) };
        let (mut taken, mut last) = (0, None);
        let is_all = self.store.capture(|entry| {
            let takes = taken < records || last == Some(entry.position);
            if takes {
                let name = (entry.position, entry.db, entry.key.to_vec());
                point.captured.push((name, (entry.cell.clone(), entry.version)));
                (taken, last) = (taken + 1, Some(entry.position));
            }
            takes
        });
        let (epoch, captured) = (point.epoch, point.captured.clone());
        let expected = self.state(epoch).into_iter();
        if is_all {
            prop_assert_eq!(captured, expected.collect::<Vec<_>>());
            if self.keep == Keep::default() {
                prop_assert_eq!(self.store.memory().older, 0, "with the last record the last copy goes");
            }
        } else {
            prop_assert!(expected.take(captured.len()).eq(captured));
        }
        Ok(())
    }

    /// An epoch whose state can still be kept: nothing has changed since, or it was kept all along.
    fn may_be_kept(&self, back: u64) -> u64 {
        let first = self.keep.since.map_or(self.last, |since| since.0.min(self.last));
        (self.now + 1 - back).max(first)
    }

    fn check(&self) -> Result<(), TestCaseError> {
        prop_assert_eq!(self.store.digest(), self.store.recompute_digest());
        if self.open.is_empty() {
            self.check_state(&self.state(u64::MAX), &mut self.store.as_of(Epoch(u64::MAX)))?;
        }
        let Keep { since, cut, given } = self.keep;
        let over = |epoch: &u64| *epoch < self.now;
        let readable = since.map_or(u64::MAX, |since| since.0)..self.now;
        let cut = cut.map(|cut| cut.0).filter(over).filter(|cut| !readable.contains(cut));
        let (whole, partly): (Vec<u64>, Vec<u64>) =
            readable.chain(cut).partition(|epoch| Some(*epoch) != cut || given == Position::default());
        for epoch in whole {
            self.check_state(&self.state(epoch), &mut self.store.as_of(Epoch(epoch)))?;
        }
        for epoch in partly {
            let mut expected = self.state(epoch);
            expected.retain(|(position, ..), _| *position >= given);
            prop_assert_eq!(
                visited(&self.store.as_of(Epoch(epoch)), given),
                expected.into_iter().collect::<Vec<_>>()
            );
        }
        if self.keep == Keep::default() {
            prop_assert_eq!(self.store.older(), 0);
        }
        if self.keep == Keep::default() && self.point.is_none() {
            prop_assert_eq!(self.store.memory().older, 0);
        }
        Ok(())
    }

    fn check_state(
        &self,
        state: &BTreeMap<Name, (Cell, Gsn)>,
        past: &mut impl Snapshot,
    ) -> Result<(), TestCaseError> {
        let seen = visited(past, Position(0));
        let expected: Vec<_> = state.iter().map(|(name, content)| (name.clone(), content.clone())).collect();
        prop_assert_eq!(seen, expected);
        let mut digest = Digest::default();
        for ((_, db, key), (cell, _)) in state {
            let hashes = cell.value.iter().map(|value| record_hash(*db, key, value, cell.expires_at));
            hashes.for_each(|hash| digest.add(hash));
        }
        prop_assert_eq!(past.digest(), digest);
        for db in DBS {
            let of_db = || state.iter().filter(|((_, d, _), _)| *d == Db(db));
            prop_assert_eq!(past.len(Db(db)), of_db().count() as u64);
            let mut expiring = Expiring::default();
            of_db().for_each(|(_, (cell, _))| expiring.add(cell));
            prop_assert_eq!(past.expiring(Db(db)), expiring);
            for key in 0..KEYS.len() {
                let name = name(db, key);
                let hash = KeyHash::of_record(name.1, &name.2);
                let expected = state.get(&name).map(|(cell, version)| (cell, *version));
                prop_assert_eq!(past.find(name.1, &name.2, hash), expected);
                // The second guess is mostly wrong.
                let mut guesses = Vec::new();
                self.store.guess([hash, KeyHash::of(KEYS[0].as_bytes())].into_iter(), &mut guesses);
                for guess in guesses {
                    prop_assert_eq!(past.find_at(guess, name.1, &name.2, hash), expected);
                }
            }
            let mut scanned = Vec::new();
            let from = name(db, 0).0.next();
            past.scan(Db(db), from, &mut |position, key, cell| {
                scanned.push(((position, Db(db), key.to_vec()), cell.clone()));
                true
            });
            let expected = of_db().filter(|((position, ..), _)| *position >= from);
            let expected: Vec<_> = expected.map(|(name, (cell, _))| (name.clone(), cell.clone())).collect();
            prop_assert_eq!(scanned, expected);
        }
        Ok(())
    }
}

/// What there was from a position on.
fn visited(past: &impl Snapshot, from: Position) -> Vec<(Name, (Cell, Gsn))> {
    let mut seen = Vec::new();
    past.visit(from, |entry| {
        let name = (entry.position, entry.db, entry.key.to_vec());
        seen.push((name, (entry.cell.clone(), entry.version)));
        true
    });
    seen
}

/// Runs steps, each of which holds the store to what it must be.
fn run(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut world = World::new();
    for step in steps {
        world.apply(step)?;
    }
    // Nothing is left behind once nobody waits, all is cleared and nothing is kept.
    for step in [Step::Settle, Step::Unlock, Step::Clear { db: None, ahead: 0 }] {
        world.apply(step)?;
    }
    for key in 0..KEYS.len() {
        world.apply(Step::Change { db: 255, key, ahead: 0, content: Content::Nothing })?;
    }
    world.apply(Step::Point { ahead: None })?;
    world.apply(Step::Since { back: None })?;
    world.apply(Step::Cut { back: None })?;
    // What was cleared while somebody could ask for it goes some at a time.
    while world.store.free_some(usize::MAX) {}
    let Memory { keys, values, older, .. } = world.store.memory();
    prop_assert_eq!((keys, values, older), (0, 0, 0));
    for (db, key) in DBS.into_iter().flat_map(|db| (0..KEYS.len()).map(move |key| (db, key))) {
        let (_, db, key) = name(db, key);
        prop_assert_eq!(world.store.find(db, &key, KeyHash::of_record(db, &key)), None);
    }
    Ok(())
}

// Two halves of the cases run side by side.
proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_past_state_is_what_it_was(steps in prop::collection::vec(step(), 1..120)) {
        run(steps)?;
    }

    #[test]
    fn a_past_state_is_what_it_was_after_other_steps(steps in prop::collection::vec(step(), 1..120)) {
        run(steps)?;
    }
}

const KEY: &[u8] = b"key";

fn gsn(epoch: u64, index: u32) -> Gsn {
    Gsn::new(Epoch(epoch), PartitionId(0), index)
}

fn write(store: &mut MemoryStore, gsn: Gsn, value: Option<&[u8]>) -> RecordId {
    let id = store.find_or_reserve(Db(0), KEY, KeyHash::of(KEY));
    store.edit(id, gsn, |cell, changed| {
        let mut cell = CellMut::new(cell, changed, None);
        match value {
            Some(value) => cell.put_string(value),
            None => cell.delete(),
        }
    });
    store.release_if_absent(id);
    id
}

fn read(store: &MemoryStore, epoch: u64) -> Option<Vec<u8>> {
    let past = store.as_of(Epoch(epoch));
    past.find(Db(0), KEY, KeyHash::of(KEY)).and_then(|(cell, _)| cell.string().map(<[u8]>::to_vec))
}

fn since(epoch: u64) -> Keep {
    Keep { since: Some(Epoch(epoch)), ..Keep::default() }
}

#[test]
fn a_thousand_writes_of_an_epoch_leave_one_older_content() {
    let mut store = MemoryStore::new(0..SLOTS);
    write(&mut store, gsn(1, 0), Some(b"one"));
    store.keep(since(1));
    for i in 0..1000 {
        write(&mut store, gsn(2, i), Some(&i.to_le_bytes()));
        assert_eq!((store.older(), read(&store, 1)), (1, Some(b"one".to_vec())));
    }
    assert_eq!(store.as_of(Epoch(1)).find(Db(0), KEY, KeyHash::of(KEY)).map(|(_, v)| v), Some(gsn(1, 0)));
    store.keep(since(2));
    assert_eq!(store.older(), 0);
}

#[test]
fn inserted_deleted_and_inserted_again_over_three_epochs() {
    let mut store = MemoryStore::new(0..SLOTS);
    store.keep(since(0));
    write(&mut store, gsn(1, 0), Some(b"one"));
    write(&mut store, gsn(2, 0), None);
    write(&mut store, gsn(3, 0), Some(b"three"));
    let states = [None, Some(b"one".to_vec()), None, Some(b"three".to_vec())];
    assert_eq!([0, 1, 2, 3].map(|epoch| read(&store, epoch)), states);
    assert_eq!([0, 1, 2, 3].map(|epoch| store.as_of(Epoch(epoch)).len(Db(0))), [0, 1, 0, 1]);
    store.keep(since(2));
    assert_eq!([2, 3].map(|epoch| read(&store, epoch)), [None, Some(b"three".to_vec())]);
}

#[test]
fn what_was_deleted_leaves_the_index_with_the_last_state_that_has_it() {
    let mut store = MemoryStore::new(0..SLOTS);
    for waited_for in [false, true] {
        store.keep(since(1));
        write(&mut store, gsn(2, 0), Some(b"value"));
        let id = write(&mut store, gsn(3, 0), None);
        assert_eq!((read(&store, 2), store.digest()), (Some(b"value".to_vec()), Digest::default()));
        store.visit(Position(0), |entry| panic!("{entry:?}"));
        store.set_lock(id, u32::from(waited_for));
        store.keep(since(3));
        assert_eq!(store.find(Db(0), KEY, KeyHash::of(KEY)), waited_for.then_some(id));
        if waited_for {
            store.set_lock(id, 0);
            store.release_if_absent(id);
        }
        assert_eq!(store.find(Db(0), KEY, KeyHash::of(KEY)), None);
        store.keep(Keep::default());
        let Memory { keys, values, older, .. } = store.memory();
        assert_eq!((keys, values, older), (0, 0, 0));
    }
}

#[test]
fn a_reader_far_behind_costs_one_content_an_epoch_and_a_cut_one_in_all() {
    for (keep, expected) in [(since(1), 99), (Keep { cut: Some(Epoch(1)), ..Keep::default() }, 1)] {
        let mut store = MemoryStore::new(0..SLOTS);
        write(&mut store, gsn(1, 0), Some(b"one"));
        store.keep(keep);
        for epoch in 2..=100 {
            for index in 0..3 {
                write(&mut store, gsn(epoch, index), Some(&epoch.to_le_bytes()));
            }
        }
        assert_eq!((store.older(), read(&store, 1)), (expected, Some(b"one".to_vec())));
        assert!(store.memory().older >= 64 * expected);
        store.keep(Keep::default());
        assert_eq!((store.older(), store.memory().older), (0, 0));
    }
}

#[test]
fn what_a_checkpoint_was_given_is_not_kept_for_it() {
    let position = KeyHash::of(KEY).position();
    for (given, expected) in [(position, 1), (position.next(), 0)] {
        let mut store = MemoryStore::new(0..SLOTS);
        write(&mut store, gsn(1, 0), Some(b"one"));
        store.keep(Keep { cut: Some(Epoch(1)), given, ..Keep::default() });
        write(&mut store, gsn(2, 0), Some(b"two"));
        assert_eq!(store.older(), expected);
        // A reader may want it all the same.
        store.keep(Keep { since: Some(Epoch(2)), cut: Some(Epoch(1)), given });
        write(&mut store, gsn(3, 0), Some(b"three"));
        assert_eq!((store.older(), read(&store, 2)), (expected + 1, Some(b"two".to_vec())));
    }
}

#[test]
fn a_large_hash_is_shared_until_it_is_changed() {
    let mut store = MemoryStore::new(0..SLOTS);
    let id = store.find_or_reserve(Db(0), KEY, KeyHash::of(KEY));
    let set = |store: &mut MemoryStore, gsn, value: &[u8]| {
        store.edit(id, gsn, |cell, changed| {
            CellMut::new(cell, changed, None).set_field(b"field", value);
        });
    };
    set(&mut store, gsn(1, 0), b"one");
    store.keep(since(1));
    set(&mut store, gsn(2, 0), b"two");
    let past = store.as_of(Epoch(1));
    let held = past.find(Db(0), KEY, KeyHash::of(KEY)).and_then(|(cell, _)| cell.hash()?.get(b"field"));
    assert_eq!(held, Some(&b"one"[..]));
}

#[test]
fn a_panic_inside_a_change_keeps_what_was_there() {
    let mut store = MemoryStore::new(0..SLOTS);
    let id = write(&mut store, gsn(1, 0), Some(b"one"));
    store.keep(since(1));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.edit(id, gsn(2, 0), |cell, changed| {
            CellMut::new(cell, changed, None).put(Value::String(b"half done".to_vec()));
            panic!("a procedure's mistake");
        })
    }));
    assert!(result.is_err());
    assert_eq!(read(&store, 1), Some(b"one".to_vec()));
    assert_eq!(store.as_of(Epoch(2)).digest(), store.recompute_digest());
}

#[test]
fn a_past_state_cannot_be_changed() {
    let store = MemoryStore::new(0..SLOTS);
    let changes: [fn(&mut dyn Table); 3] = [
        |table| table.clear(None),
        |table| table.swap(Db(0), Db(1)),
        |table| assert_eq!(table.expire(Millis(1), Position(0)..Position::END), 0),
    ];
    for change in changes {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            change(&mut store.as_of(Epoch(1)));
        }));
        assert!(result.is_err());
    }
}

/// A record that goes to another store, and one that comes back: each store shows past states in which it had them.
#[test]
fn a_record_that_moves_is_in_one_store_as_of_every_epoch() {
    let slot = KeyHash::of(KEY).slot();
    for keep in [since(1), Keep { cut: Some(Epoch(1)), ..Keep::default() }] {
        let (mut here, mut there) = (MemoryStore::new(slot..slot + 1), MemoryStore::new(0..0));
        there.own(slot + 7..slot + 8);
        there.own(slot - 3..slot + 2);
        assert_eq!(there.slots(), slot - 3..slot + 8);
        write(&mut here, gsn(1, 0), Some(b"one"));
        for store in [&mut here, &mut there] {
            store.keep(keep);
        }
        let give = |from: &mut MemoryStore, to: &mut MemoryStore, epoch| {
            let id = from.find(Db(0), KEY, KeyHash::of(KEY)).unwrap();
            let (cell, version) = from.take(id, gsn(epoch, 0));
            from.release_if_absent(id);
            let id = to.find_or_reserve(Db(0), KEY, KeyHash::of(KEY));
            to.take_in(id, cell, version, Epoch(epoch));
        };
        let holds = |store: &MemoryStore, epoch| {
            let mut past = store.as_of(Epoch(epoch));
            let (mut seen, len) = (0, past.len(Db(0)));
            past.visit(Position(0), |_| (seen += 1, true).1);
            let is_there = read(store, epoch).is_some();
            assert_eq!(
                (seen, len, past.digest().records),
                (u64::from(is_there), seen, seen as u32),
                "{epoch}"
            );
            is_there
        };
        give(&mut here, &mut there, 3);
        assert_eq!((holds(&here, 1), holds(&there, 1)), (true, false));
        assert_eq!((holds(&here, 3), holds(&there, 3)), (false, true));
        give(&mut there, &mut here, 5);
        assert_eq!((holds(&here, 1), holds(&there, 1)), (true, false));
        assert_eq!((holds(&here, 5), holds(&there, 5)), (true, false));
        assert_eq!(here.version(here.find(Db(0), KEY, KeyHash::of(KEY)).unwrap()), gsn(1, 0));
        for store in [&mut here, &mut there] {
            store.keep(Keep::default());
            assert_eq!(store.digest(), store.recompute_digest());
            assert_eq!(store.older(), 0);
        }
    }
}

/// The same for a [point](RecordStore::point): where a record was at the point, there it is captured, and nowhere else.
#[test]
fn a_record_that_moves_after_the_point_is_captured_once() {
    let slot = KeyHash::of(KEY).slot();
    for moves in 0..4 {
        let mut stores = [0, 1].map(|_| MemoryStore::new(slot..slot + 1));
        write(&mut stores[0], gsn(1, 0), Some(b"one"));
        stores.iter_mut().for_each(|store| store.point(Some(Epoch(1))));
        for at in 0..moves {
            let epoch = 3 + at as u64;
            let id = stores[at % 2].find(Db(0), KEY, KeyHash::of(KEY)).unwrap();
            let (cell, version) = stores[at % 2].take(id, gsn(epoch, 0));
            stores[at % 2].release_if_absent(id);
            let to = &mut stores[1 - at % 2];
            let id = to.find_or_reserve(Db(0), KEY, KeyHash::of(KEY));
            to.take_in(id, cell, version, Epoch(epoch));
        }
        let captured = stores.each_mut().map(|store| {
            let mut versions = Vec::new();
            assert!(store.capture(|entry| (versions.push(entry.version), true).1));
            versions
        });
        assert_eq!(captured, [vec![gsn(1, 0)], vec![]], "{moves}");
        let holds = stores.each_ref().map(|store| (store.digest().records, store.memory().older));
        assert_eq!(holds[moves % 2], (1, 0));
        assert_eq!(holds[1 - moves % 2], (0, 0));
        assert!(stores.iter().all(|store| store.digest() == store.recompute_digest()));
    }
}
