//! The store against a plain ordered map that does what the reference executor's does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_model::children::child_key;
use ordain_model::key::SLOTS;
use ordain_model::table::Expiring;
use ordain_model::value::record_hash;
use ordain_model::{
    Cell, CellMut, Db, Digest, Evicted, Gsn, KeyHash, Millis, Position, Table, Value, ValueFile,
};
use ordain_store::{Evicting as _, MemoryStore, RecordId, RecordStore};
use proptest::prelude::*;

/// Few keys, so that steps meet: short and long ones, and two pairs of equal position, whose order must not
/// depend on the order of insertion.
const KEYS: [&str; 8] = [
    "k6461322",
    "k7969762",
    "k5386877",
    "k6314673",
    "",
    "sixteen bytes 16",
    "a key that does not fit into a record's line",
    "another one that does not fit into a record's line",
];

/// Three databases, those below two of them, and one of our own.
const DBS: [u8; 6] = [0, 1, 2, 128, 129, 255];

/// The name that a key has in a database: below another, that of what lies below the key there.
fn name(db: Db, key: usize) -> Vec<u8> {
    if db.holds_children() { child_key(KEYS[key].as_bytes(), b"7").to_vec() } else { KEYS[key].into() }
}

#[derive(Clone, Debug)]
enum Step {
    Put { db: u8, key: usize, value: Vec<u8>, expires_at: u64 },
    Field { db: u8, key: usize, field: u8, value: Vec<u8> },
    Delete { db: u8, key: usize },
    Look { db: u8, key: usize },
    Lock { db: u8, key: usize },
    Unlock,
    Ship { db: u8, key: usize, changed: bool },
    Undo { db: u8, key: usize },
    Clear { db: Option<u8> },
    Swap { a: u8, b: u8 },
    Expire { now: u64, from: usize },
    Scan { db: u8, after: usize },
    Settle { most: usize },
    SettleAtOnce,
    Evict { db: u8, key: usize },
    Load { db: u8, key: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let db = || prop::sample::select(&DBS[..]);
    let key = || 0..KEYS.len();
    let text = || prop::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        6 => (db(), key(), text(), 0..4u64)
            .prop_map(|(db, key, value, expires_at)| Step::Put { db, key, value, expires_at }),
        3 => (db(), key(), 0..3u8, text()).prop_map(|(db, key, field, value)| Step::Field { db, key, field, value }),
        3 => (db(), key()).prop_map(|(db, key)| Step::Delete { db, key }),
        2 => (db(), key()).prop_map(|(db, key)| Step::Look { db, key }),
        2 => (db(), key()).prop_map(|(db, key)| Step::Lock { db, key }),
        1 => Just(Step::Unlock),
        1 => (db(), key(), any::<bool>()).prop_map(|(db, key, changed)| Step::Ship { db, key, changed }),
        1 => (db(), key()).prop_map(|(db, key)| Step::Undo { db, key }),
        1 => prop::option::of(db()).prop_map(|db| Step::Clear { db: db.map(|db| Db(db).home().0) }),
        1 => (0..3u8, 0..3u8).prop_map(|(a, b)| Step::Swap { a, b }),
        1 => (0..4u64, 0..SLOTS).prop_map(|(now, from)| Step::Expire { now, from }),
        1 => (db(), key()).prop_map(|(db, after)| Step::Scan { db, after }),
        2 => (0..6usize).prop_map(|most| Step::Settle { most }),
        1 => Just(Step::SettleAtOnce),
        4 => (db(), key()).prop_map(|(db, key)| Step::Evict { db, key }),
        2 => (db(), key()).prop_map(|(db, key)| Step::Load { db, key }),
    ]
}

type Place = (Position, Db, Vec<u8>);

/// The store, the map it is held against, and the ids that are held across steps.
struct Pair {
    store: MemoryStore,
    map: BTreeMap<Place, (Cell, Gsn)>,
    locked: Vec<(RecordId, Db, usize)>,
    /// Whatever was guessed at any time.
    guessed: BTreeSet<RecordId>,
    gsn: Gsn,
    /// The disk: a value file, and the values in it.
    file: Arc<ValueFile>,
    disk: Vec<Value>,
}

impl Pair {
    fn new() -> Pair {
        Pair {
            store: MemoryStore::new(0..SLOTS),
            map: BTreeMap::new(),
            locked: Vec::new(),
            guessed: BTreeSet::new(),
            gsn: Gsn::NONE,
            file: ValueFile::new(1),
            disk: Vec::new(),
        }
    }

    /// Returns a cell with its value, read from the disk if it is evicted.
    fn whole(&self, cell: &Cell) -> Cell {
        let value = cell.evicted().map(|evicted| self.disk[evicted.at() as usize].clone());
        value.map_or_else(|| cell.clone(), |value| Cell { value: Some(value), ..*cell })
    }

    /// Loads the value of a record that is evicted.
    fn load(&mut self, db: Db, key: usize) {
        let (name, hash) = (name(db, key), Pair::hash(db, key));
        let found = self.store.find(db, &name, hash).map(|id| self.store.cell(id));
        let Some(evicted) = found.and_then(Cell::evicted).cloned() else { return };
        let value = self.disk[evicted.at() as usize].clone();
        assert!(self.store.load(db, &name, hash, (&evicted, value.clone())));
        assert!(!self.store.load(db, &name, hash, (&evicted, value)), "it is there");
    }

    /// Evicts the value of a record, unless that is locked.
    fn evict(&mut self, db: Db, key: usize) {
        let (name, hash) = (name(db, key), Pair::hash(db, key));
        let Some(id) = self.store.find(db, &name, hash) else { return };
        let Some(value) =
            self.store.cell(id).value.clone().filter(|value| !matches!(value, Value::Evicted(_)))
        else {
            return;
        };
        let at = self.disk.len() as u32;
        let other = Evicted::new(&Value::String(b"another".to_vec()), &self.file, at, 1);
        assert!(!self.store.evict(db, &name, hash, &Arc::new(other)), "it is not what was written there");
        let evicted = Arc::new(Evicted::new(&value, &self.file, at, 1));
        self.disk.push(value);
        assert_eq!(self.store.evict(db, &name, hash, &evicted), self.store.lock(id) == 0);
    }

    fn hash(db: Db, key: usize) -> KeyHash {
        KeyHash::of_record(db, &name(db, key))
    }

    fn place(db: Db, key: usize) -> Place {
        (Pair::hash(db, key).position(), db, name(db, key))
    }

    fn reserve(&mut self, db: Db, key: usize) -> RecordId {
        self.store.find_or_reserve(db, &name(db, key), Pair::hash(db, key))
    }

    fn edit(&mut self, db: u8, key: usize, change: impl Fn(&mut CellMut<'_>)) {
        let (db, gsn) = (Db(db), self.gsn);
        self.load(db, key);
        let id = self.reserve(db, key);
        self.store.edit(id, gsn, |cell, changed| change(&mut CellMut::new(cell, changed, None)));
        self.store.release_if_absent(id);

        let place = Pair::place(db, key);
        let (mut cell, mut version) = self.map.remove(&place).unwrap_or((Cell::ABSENT, Gsn::NONE));
        let mut changed = false;
        change(&mut CellMut::new(&mut cell, &mut changed, None));
        if changed {
            version = gsn;
        }
        if cell.value.is_some() {
            self.map.insert(place, (cell, version));
        }
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        self.gsn = Gsn(self.gsn.0 + 1);
        let gsn = self.gsn;
        match step {
            Step::Settle { most } => self.store.settle(most),
            Step::SettleAtOnce => self.store.settle_at_once(),
            Step::Evict { db, key } => self.evict(Db(db), key),
            Step::Load { db, key } => self.load(Db(db), key),
            Step::Put { db, key, value, expires_at } => self.edit(db, key, |cell| {
                cell.put_string(&value);
                if expires_at != 0 {
                    cell.set_expiry(Millis(expires_at));
                }
            }),
            Step::Field { db, key, field, value } => self.edit(db, key, |cell| {
                if cell.string().is_none() {
                    cell.set_field(&[field], &value);
                }
            }),
            Step::Delete { db, key } => self.edit(db, key, |cell| {
                if cell.value.is_some() {
                    cell.delete();
                }
            }),
            Step::Look { db, key } => self.look(Db(db), key)?,
            Step::Lock { db, key } => {
                let id = self.reserve(Db(db), key);
                self.store.set_lock(id, gsn.0 as u32);
                self.locked.retain(|(held, ..)| *held != id);
                self.locked.push((id, Db(db), key));
            }
            Step::Unlock => {
                for (id, ..) in std::mem::take(&mut self.locked) {
                    self.store.set_lock(id, 0);
                    self.store.release_if_absent(id);
                }
            }
            Step::Ship { db, key, changed } => {
                let id = self.reserve(Db(db), key);
                let (cell, version) = self.store.take(id, gsn);
                prop_assert_eq!(self.store.cell(id), &Cell::ABSENT);
                prop_assert_eq!(self.store.digest(), self.store.recompute_digest());
                self.store.put_back(id, cell, if changed { gsn } else { version });
                self.store.release_if_absent(id);
                if let (true, Some(record)) = (changed, self.map.get_mut(&Pair::place(Db(db), key))) {
                    record.1 = gsn;
                }
            }
            Step::Undo { db, key } => {
                let id = self.reserve(Db(db), key);
                let (before, version) = (self.store.cell(id).clone(), self.store.version(id));
                self.store.edit(id, gsn, |cell, changed| {
                    CellMut::new(cell, changed, None).put(Value::String(b"not to stay".to_vec()));
                });
                prop_assert_eq!(self.store.version(id), gsn);
                self.store.edit(id, version, |cell, changed| {
                    *cell = before;
                    *changed = true;
                });
                self.store.release_if_absent(id);
            }
            Step::Clear { db } => {
                self.store.table(gsn).clear(db.map(Db));
                self.map.retain(|(_, d, _), _| db.map_or(d.home().0 >= Db::COUNT, |db| d.home().0 != db));
            }
            Step::Swap { a, b } => self.swap(gsn, Db(a), Db(b)),
            Step::Expire { now, from } => self.expire(gsn, now, from)?,
            Step::Scan { db, after } => {
                let (db, from) = (Db(db), Pair::hash(Db(db), after).position().next());
                let mut seen = Vec::new();
                self.store.table(gsn).scan(db, from, &mut |position, key, cell| {
                    seen.push(((position, db, key.to_vec()), cell.clone()));
                    seen.len() < 2
                });
                let expected = self.map.range((from, Db(0), Vec::new())..).filter(|((_, d, _), _)| *d == db);
                let expected = expected.take(2).map(|(place, (cell, _))| (place.clone(), cell.clone()));
                let seen = seen.into_iter().map(|(place, cell)| (place, self.whole(&cell)));
                prop_assert!(seen.eq(expected));
            }
        }
        self.check()
    }

    fn swap(&mut self, gsn: Gsn, a: Db, b: Db) {
        self.store.table(gsn).swap(a, b);
        if a != b {
            for ((position, db, key), (cell, version)) in std::mem::take(&mut self.map) {
                let pairs = [(a, b), (b, a), (a.children(), b.children()), (b.children(), a.children())];
                let to = pairs.iter().find(|(from, _)| *from == db).map_or(db, |(_, to)| *to);
                let version = if to == db { version } else { gsn };
                self.map.insert((position, to, key), (cell, version));
            }
        }
    }

    fn expire(&mut self, gsn: Gsn, now: u64, from: usize) -> Result<(), TestCaseError> {
        // Looked at some at a time, and all together.
        let (mut at, mut found) = (Position::of_slot(from), Vec::new());
        while at < Position::END {
            let (range, rest) = self.store.expired(Millis(now), at, 1 + from % 3);
            prop_assert!(rest > at, "it goes on");
            found.extend(range.into_iter().filter(|range| at <= range.start && range.end <= rest));
            at = rest;
        }
        let is_expired = |((p, ..), (cell, _)): (&Place, &(Cell, Gsn))| {
            (p.slot() >= from && cell.is_expired(Millis(now))).then_some(*p)
        };
        let expected: Vec<Position> = self.map.iter().filter_map(is_expired).collect();
        prop_assert!(expected.iter().all(|p| found.iter().any(|range| range.contains(p))));
        prop_assert!(found.iter().all(|range| expected.contains(&range.start)));
        let ranges = match found.is_empty() {
            false => found,
            true => vec![Position::of_slot(from)..Position::END],
        };
        let removed =
            ranges.into_iter().map(|range| self.store.table(gsn).expire(Millis(now), range)).sum::<u64>();
        let before = self.map.len();
        self.map.retain(|(p, ..), (cell, _)| p.slot() < from || !cell.is_expired(Millis(now)));
        prop_assert_eq!(removed, (before - self.map.len()) as u64);
        Ok(())
    }

    fn look(&mut self, db: Db, key: usize) -> Result<(), TestCaseError> {
        // Present or not, of equal position or not: a prefetch shows nowhere.
        self.store.prefetch((0..KEYS.len()).map(|key| Pair::hash(db, key)));
        let found = self.store.find(db, &name(db, key), Pair::hash(db, key));
        // What was guessed before the store was changed is right or wrong, and whoever asks is told which.
        let mut guesses = Vec::new();
        self.store.guess((0..KEYS.len()).map(|key| Pair::hash(db, key)), &mut guesses);
        self.guessed.extend(guesses.into_iter().flatten());
        for id in &self.guessed {
            prop_assert_eq!(self.store.is_of(*id, db, &name(db, key)), found == Some(*id));
        }
        let found = found.map(|id| (self.whole(self.store.cell(id)), self.store.version(id)));
        let found = found.filter(|(cell, _)| cell.value.is_some());
        prop_assert_eq!(found.as_ref(), self.map.get(&Pair::place(db, key)));
        Ok(())
    }

    /// Everything that can be asked of both.
    fn check(&mut self) -> Result<(), TestCaseError> {
        let (mut records, mut heap_bytes) = (Vec::new(), 0);
        self.store.visit(Position(0), |entry| {
            heap_bytes += entry.cell.value.as_ref().map_or(0, Value::heap_bytes) as u64;
            records.push((
                (entry.position, entry.db, entry.key.to_vec()),
                (self.whole(entry.cell), entry.version),
            ));
            true
        });
        prop_assert!(records.iter().map(|(p, r)| (p, r)).eq(&self.map));
        let mut digest = Digest::default();
        for ((_, db, key), (cell, _)) in &self.map {
            if let Some(value) = &cell.value {
                digest.add(record_hash(*db, key, value, cell.expires_at));
            }
        }
        prop_assert_eq!(self.store.digest(), digest);
        prop_assert_eq!(self.store.recompute_digest(), digest);
        for db in DBS.map(Db) {
            let len = self.map.keys().filter(|(_, d, _)| *d == db).count() as u64;
            prop_assert_eq!(self.store.table(Gsn::NONE).len(db), len);
            let mut expiring = Expiring::default();
            let cells = self.map.iter().filter(|((_, d, _), _)| *d == db).map(|(_, (cell, _))| cell);
            cells.for_each(|cell| expiring.add(cell));
            prop_assert_eq!(self.store.table(Gsn::NONE).expiring(db), expiring);
        }
        prop_assert_eq!(self.store.memory().values, heap_bytes);
        for &(id, db, key) in &self.locked {
            prop_assert_eq!(self.store.key(id), (db, &*name(db, key)));
            prop_assert_ne!(self.store.lock(id), 0);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_is_an_ordered_map(steps in prop::collection::vec(step(), 1..80)) {
        let mut pair = Pair::new();
        for step in steps {
            pair.apply(step)?;
        }
        // Nothing is left behind once all is unlocked and cleared.
        pair.apply(Step::Unlock)?;
        for db in DBS.into_iter().filter(|db| !Db(*db).holds_children()) {
            pair.apply(Step::Clear { db: Some(db) })?;
        }
        // The store frees cleared records step by step, and forgets copies of loaded values as its clock advances.
        while pair.store.free_some(usize::MAX) {}
        pair.store.advance_clock(usize::MAX, ordain_store::LEAST, |_| true);
        prop_assert_eq!(pair.file.needed(), 0);
        let memory = pair.store.memory();
        prop_assert_eq!((memory.indexes, memory.keys, memory.values), (0, 0, 0));
        for key in 0..KEYS.len() {
            for db in DBS.map(Db) {
                prop_assert_eq!(pair.store.find(db, &name(db, key), Pair::hash(db, key)), None);
            }
        }
    }
}

fn put(store: &mut MemoryStore, db: Db, key: &[u8], value: &[u8]) -> RecordId {
    let id = store.find_or_reserve(db, key, KeyHash::of(key));
    store.edit(id, Gsn(1), |cell, changed| {
        CellMut::new(cell, changed, None).put(Value::String(value.to_vec()));
    });
    id
}

#[test]
fn the_pairs_of_equal_position_are_such() {
    for pair in KEYS[..4].chunks(2) {
        assert_eq!(KeyHash::of(pair[0].as_bytes()).position(), KeyHash::of(pair[1].as_bytes()).position());
    }
}

#[test]
fn a_placeholder_shows_nowhere() {
    let mut store = MemoryStore::new(0..SLOTS);
    let key = b"absent";
    let id = store.find_or_reserve(Db(0), key, KeyHash::of(key));
    assert_eq!(store.find(Db(0), key, KeyHash::of(key)), Some(id));
    assert_eq!((store.cell(id), store.version(id)), (&Cell::ABSENT, Gsn::NONE));
    store.visit(Position(0), |entry| panic!("{entry:?}"));
    assert_eq!(store.digest(), Digest::default());
    assert_eq!(store.table(Gsn(1)).len(Db(0)), 0);

    store.set_lock(id, 7);
    store.release_if_absent(id);
    assert_eq!(store.find(Db(0), key, KeyHash::of(key)), Some(id), "its lock word is in use");
    store.set_lock(id, 0);
    store.release_if_absent(id);
    assert_eq!(store.find(Db(0), key, KeyHash::of(key)), None);
}

#[test]
fn a_number_is_used_again_with_nothing_of_the_old_record() {
    let mut store = MemoryStore::new(0..SLOTS);
    let old = put(&mut store, Db(0), b"old", b"value");
    store.release_if_absent(old);
    assert!(store.find(Db(0), b"old", KeyHash::of(b"old")).is_some(), "it has content");
    store.edit(old, Gsn(2), |cell, changed| CellMut::new(cell, changed, None).delete());
    store.release_if_absent(old);
    store.release_if_absent(old);

    let new = store.find_or_reserve(Db(1), b"new", KeyHash::of(b"new"));
    assert_eq!(new, old);
    assert_eq!(store.key(new), (Db(1), &b"new"[..]));
    assert_eq!((store.cell(new), store.version(new), store.lock(new)), (&Cell::ABSENT, Gsn::NONE, 0));
    assert_eq!(store.find(Db(0), b"old", KeyHash::of(b"old")), None);
    let other = store.find_or_reserve(Db(1), b"other", KeyHash::of(b"other"));
    assert_ne!(other, new);
}

#[test]
fn a_panic_inside_a_change_leaves_the_sums_right() {
    let mut store = MemoryStore::new(0..SLOTS);
    let id = put(&mut store, Db(0), b"key", b"before");
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        store.edit(id, Gsn(9), |cell, changed| {
            CellMut::new(cell, changed, None).put(Value::String(b"half done".to_vec()));
            panic!("a procedure's mistake");
        })
    }));
    assert!(result.is_err());
    assert_eq!(store.digest(), store.recompute_digest());
    assert_eq!(store.version(id), Gsn(9));
}

#[test]
fn a_change_that_changes_nothing_keeps_the_version() {
    let mut store = MemoryStore::new(0..SLOTS);
    let id = put(&mut store, Db(0), b"key", b"value");
    assert_eq!(store.edit(id, Gsn(9), |cell, _| cell.string().map(<[u8]>::len)), Some(5));
    assert_eq!(store.version(id), Gsn(1));
}

#[test]
fn the_number_of_shards_does_not_show() {
    let keys: Vec<Vec<u8>> = (0..5000).map(|i| format!("key {i}").into_bytes()).collect();
    let fill = |slots: std::ops::Range<usize>| {
        let mut store = MemoryStore::new(slots.clone());
        for key in keys.iter().filter(|key| slots.contains(&KeyHash::of(key).slot())) {
            put(&mut store, Db(0), key, key);
        }
        store
    };
    let walk = |store: &MemoryStore| {
        let mut seen = Vec::new();
        store.visit(Position(0), |entry| {
            seen.push(entry.key.to_vec());
            true
        });
        seen
    };
    let one = fill(0..SLOTS);
    let parts = [fill(0..300), fill(300..301), fill(301..SLOTS)];
    assert_eq!(walk(&one), parts.iter().flat_map(walk).collect::<Vec<_>>());
    assert_eq!(one.digest(), parts.iter().fold(Digest::default(), |sum, part| sum.plus(part.digest())));
    let mut sorted = keys.clone();
    sorted.sort_by_key(|key| KeyHash::of(key).position());
    assert_eq!(walk(&one), sorted);
}

#[test]
fn a_lock_word_stays_with_its_name_when_databases_are_swapped() {
    let mut store = MemoryStore::new(0..SLOTS);
    let key = b"waited for";
    let id = put(&mut store, Db(0), key, b"value");
    store.set_lock(id, 5);
    store.table(Gsn(8)).swap(Db(0), Db(1));
    assert_eq!((store.key(id), store.lock(id)), ((Db(0), &key[..]), 5));
    assert_eq!(store.cell(id), &Cell::ABSENT);
    let moved = store.find(Db(1), key, KeyHash::of(key)).expect("the content is in the other database");
    assert_eq!((store.cell(moved).string(), store.lock(moved)), (Some(&b"value"[..]), 0));
    store.table(Gsn(9)).swap(Db(0), Db(1));
    assert_eq!((store.cell(id).string(), store.version(id)), (Some(&b"value"[..]), Gsn(9)));
    assert_eq!(store.find(Db(1), key, KeyHash::of(key)), None, "an emptied record is not kept");
}

#[test]
fn memory_grows_and_shrinks_with_the_records() {
    let mut store = MemoryStore::new(0..SLOTS);
    let key = |i: u32| format!("a key of more than sixteen bytes {i}").into_bytes();
    for i in 0..10_000 {
        put(&mut store, Db(0), &key(i), &[0; 100]);
    }
    let full = store.memory();
    assert_eq!(full.values, 1_000_000);
    assert!(full.keys >= 330_000 && full.indexes >= 80_000 && full.records >= 640_000);
    assert_eq!(full.total(), full.values + full.keys + full.indexes + full.records);
    let mut other = MemoryStore::new(0..SLOTS);
    (0..10_000).for_each(|i| _ = put(&mut other, Db(0), &key(i), &[0; 100]));
    let guess = store.find(Db(0), &key(7000), KeyHash::of(&key(7000)));
    store.table(Gsn(2)).clear(Some(Db(0)));
    assert_eq!(store.memory(), ordain_store::Memory::default());
    assert_eq!((store.digest(), store.records()), (Digest::default(), 0));
    // What they held goes some at a time; a number that was given before means nothing.
    assert_eq!([4000, 4000, 4000, 4000].map(|most| store.free_some(most)), [true, true, false, false]);
    guess.into_iter().for_each(|id| store.fetch_value(id));
    assert!(guess.is_some_and(|id| !store.is_of(id, Db(0), &key(7000))));
    let id = put(&mut store, Db(0), &key(1), b"again");
    assert_eq!((store.cell(id).string(), store.digest()), (Some(&b"again"[..]), store.recompute_digest()));
    // Where a place is held, or another database has records, they go one by one.
    let held = other.find(Db(0), &key(5), KeyHash::of(&key(5))).expect("it is there");
    other.set_lock(held, 3);
    put(&mut other, Db(1), b"another", b"value");
    other.table(Gsn(2)).clear(Some(Db(0)));
    assert!(!other.free_some(1) && other.is_of(held, Db(0), &key(5)) && other.records() == 1);
    other.set_lock(held, 0);
    other.table(Gsn(3)).clear(Some(Db(0)));
    assert_eq!((other.records(), other.free_some(1)), (1, false));
    other.table(Gsn(3)).clear(None);
    assert_eq!((other.records(), other.digest(), other.free_some(1)), (0, Digest::default(), true));
}
