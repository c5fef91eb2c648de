//! A slot goes from one store to another and back, copied before or not, while its records change and past states are read,
//! against a model that remembers the state at the end of every epoch.

use std::collections::BTreeMap;

use ordain_model::table::Expiring;
use ordain_model::value::record_hash;
use ordain_model::{
    Cell, Db, Digest, Epoch, Expiry, Gsn, KeyHash, Millis, PartitionId, Position, Table, Value,
};
use ordain_store::{Handover, Keep, MemoryStore, RecordStore, Snapshot};
use proptest::prelude::*;

/// Those of a tag share a slot; some of these are too long for a record's line.
const KEYS: [&str; 11] = [
    "{tag}a",
    "{tag}b",
    "{tag}c",
    "{tag}d",
    "{tag}e",
    "{tag} a key that does not fit into a record's line",
    "{tag} another one that does not fit into it",
    "elsewhere",
    "far away",
    "farther",
    "farthest",
];
const DBS: [u8; 2] = [0, 1];
/// So many epochs past ones are read.
const WINDOW: u64 = 4;

type Name = (Position, Db, Vec<u8>);
type State = BTreeMap<Name, (Cell, Gsn)>;

#[derive(Clone, Debug)]
enum Step {
    Put {
        db: usize,
        key: usize,
        content: u8,
        expires: bool,
    },
    Delete {
        db: usize,
        key: usize,
    },
    /// What has expired goes.
    Expire,
    Clear {
        db: Option<usize>,
    },
    Swap,
    /// So many records of the slot are copied, from the beginning or from where the last ended.
    Copy {
        records: usize,
        anew: bool,
    },
    /// So many of those that have changed are copied anew.
    Again {
        records: usize,
    },
    GiveUp,
    /// The slot changes hands.
    Move,
    Epoch,
    /// From now on past states are read, or not.
    Read {
        reads: bool,
    },
    /// The state at the end of this epoch is kept for a checkpoint, or not any more.
    Cut {
        cuts: bool,
    },
    /// The state at the end of this epoch is captured, with the next, a piece at a time.
    Point,
    Capture {
        records: usize,
    },
    Free {
        records: usize,
    },
    Settle {
        at_once: bool,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (db, key) = (0..DBS.len(), 0..KEYS.len());
    let step = prop_oneof![
        8 => (db.clone(), key.clone(), any::<u8>(), prop::bool::weighted(0.2))
            .prop_map(|(db, key, content, expires)| Step::Put { db, key, content, expires }),
        3 => (db.clone(), key).prop_map(|(db, key)| Step::Delete { db, key }),
        1 => Just(Step::Expire),
        1 => prop::option::of(db).prop_map(|db| Step::Clear { db }),
        1 => Just(Step::Swap),
        6 => (1..5usize, prop::bool::weighted(0.1)).prop_map(|(records, anew)| Step::Copy { records, anew }),
        2 => (1..5usize).prop_map(|records| Step::Again { records }),
        1 => Just(Step::GiveUp),
        3 => Just(Step::Move),
        4 => Just(Step::Epoch),
        1 => any::<bool>().prop_map(|reads| Step::Read { reads }),
        2 => prop::bool::weighted(0.7).prop_map(|cuts| Step::Cut { cuts }),
        1 => Just(Step::Point),
        2 => (1..6usize).prop_map(|records| Step::Capture { records }),
        2 => (1..40usize).prop_map(|records| Step::Free { records }),
        1 => prop::bool::weighted(0.2).prop_map(|at_once| Step::Settle { at_once }),
    ];
    prop::collection::vec(step, 1..120)
}

struct Model {
    stores: [MemoryStore; 2],
    slot: usize,
    /// The store that has the slot.
    owner: usize,
    state: State,
    /// At the ends of epochs, with the owner then.
    past: BTreeMap<Epoch, (State, usize)>,
    epoch: u64,
    serial: u32,
    /// That of the last copies.
    copied_in: u64,
    reads_since: Option<Epoch>,
    cut: Option<Epoch>,
    /// The point, and what was captured of either store; what of it is done.
    point: Option<(Epoch, [State; 2], [bool; 2])>,
}

fn name(db: usize, key: usize) -> Name {
    let (db, key) = (Db(DBS[db]), KEYS[key].as_bytes().to_vec());
    (KeyHash::of_record(db, &key).position(), db, key)
}

impl Model {
    fn new() -> Model {
        let slot = name(0, 0).0.slot();
        let stores = [(); 2].map(|()| MemoryStore::new(0..1024));
        Model {
            stores,
            slot,
            owner: 0,
            state: State::new(),
            past: BTreeMap::new(),
            epoch: 1,
            serial: 0,
            copied_in: 0,
            reads_since: None,
            cut: None,
            point: None,
        }
    }

    fn gsn(&mut self) -> Gsn {
        self.serial += 1;
        Gsn::new(Epoch(self.epoch), PartitionId(0), self.serial)
    }

    /// The records of a state that are in a store.
    fn part(&self, state: &State, owner: usize, store: usize) -> State {
        let is_in = |(position, ..): &Name| {
            if position.slot() == self.slot { store == owner } else { store == 0 }
        };
        state
            .iter()
            .filter(|(name, _)| is_in(name))
            .map(|(name, record)| (name.clone(), record.clone()))
            .collect()
    }

    fn write(&mut self, name: &Name, cell: Cell) {
        let gsn = self.gsn();
        let store = if name.0.slot() == self.slot { self.owner } else { 0 };
        let store = &mut self.stores[store];
        let id = store.find_or_reserve(name.1, &name.2, KeyHash::of_record(name.1, &name.2));
        let changes = *store.cell(id) != cell;
        store.edit(id, gsn, |place, changed| {
            *changed = changes;
            *place = cell.clone();
        });
        store.release_if_absent(id);
        if cell.value.is_none() {
            self.state.remove(name);
        } else if changes {
            self.state.insert(name.clone(), (cell, gsn));
        }
    }

    fn copy(&mut self, records: usize, anew: bool) {
        let [giver, receiver] = self.sides();
        let copied = self.stores[giver].copied().filter(|_| !anew);
        let from = copied.unwrap_or(Position::of_slot(self.slot));
        if from.slot() != self.slot {
            return;
        }
        self.copied_in = self.epoch;
        let gsn = self.gsn();
        let to = self.stores[giver].table(gsn).after(from, records, usize::MAX);
        let mut shown = Vec::new();
        self.stores[giver].copy(from..to, |entry| {
            shown.push((entry.db, entry.key.to_vec(), entry.cell.clone(), entry.version));
        });
        if copied.is_none() {
            self.stores[receiver].begin_copies(self.slot);
        }
        for (db, key, cell, version) in shown {
            assert!(self.stores[receiver].add_copy(db, &key, cell, version));
        }
    }

    fn sides(&self) -> [usize; 2] {
        [self.owner, 1 - self.owner]
    }

    /// As a shard does it.
    fn change_hands(&mut self) {
        if self.copied_in == self.epoch {
            self.run(&Step::GiveUp);
        }
        let [giver, receiver] = self.sides();
        let gsn = self.gsn();
        let (slot, epoch) = (self.slot, Epoch(self.epoch));
        let from = self.stores[giver].copied();
        let made = self.stores[giver].copies_made();
        let mut names = self.stores[giver].changed();
        self.stores[giver].visit(from.unwrap_or(Position::of_slot(slot)), |entry| {
            let is_in = entry.position.slot() == slot;
            names.extend(is_in.then(|| (entry.db, entry.key.into())));
            is_in
        });
        let mut sent = Vec::new();
        for (db, key) in names {
            let store = &mut self.stores[giver];
            let record = store.find(db, &key, KeyHash::of_record(db, &key)).map(|id| {
                let record = store.take(id, gsn);
                store.release_if_absent(id);
                record
            });
            sent.push((db, key, record.unwrap_or((Cell::ABSENT, Gsn::NONE))));
        }
        self.stores[giver].depart(slot, epoch);
        let to = &mut self.stores[receiver];
        let adopted = to.adopt(slot, epoch);
        assert_eq!(adopted, from.map(|_| made), "both know of the copies");
        for (db, key, (cell, version)) in sent {
            let id = to.find_or_reserve(db, &key, KeyHash::of_record(db, &key));
            to.take_in(id, cell, version, epoch);
            to.release_if_absent(id);
        }
        self.owner = receiver;
    }

    fn keep(&mut self) {
        for store in &mut self.stores {
            store.keep(Keep { since: self.reads_since, cut: self.cut, ..Keep::default() });
        }
    }

    fn run(&mut self, step: &Step) {
        match step {
            Step::Put { db, key, content, expires } => {
                let expires_at = Millis(u64::from(*expires) * (1 + u64::from(*content)));
                let value = vec![*content; usize::from(content % 3) * 30];
                self.write(
                    &name(*db, *key),
                    Cell { value: Some(Value::String(value)), expires_at: expires_at.into() },
                );
            }
            Step::Delete { db, key } => self.write(&name(*db, *key), Cell::ABSENT),
            Step::Expire => {
                let (gsn, now) = (self.gsn(), Millis(128));
                let all = Position::default()..Position::END;
                let expired: u64 =
                    self.stores.iter_mut().map(|store| store.table(gsn).expire(now, all.clone())).sum();
                let before = self.state.len();
                self.state.retain(|_, (cell, _)| !cell.is_expired(now));
                assert_eq!(expired as usize, before - self.state.len());
            }
            Step::Clear { db } => {
                let gsn = self.gsn();
                let db = db.map(|db| Db(DBS[db]));
                self.stores.iter_mut().for_each(|store| store.table(gsn).clear(db));
                self.state.retain(|(_, of, _), _| db.is_some_and(|db| *of != db));
            }
            Step::Swap => {
                let gsn = self.gsn();
                let (a, b) = (Db(DBS[0]), Db(DBS[1]));
                self.stores.iter_mut().for_each(|store| store.table(gsn).swap(a, b));
                let swapped = std::mem::take(&mut self.state).into_iter().map(|((_, db, key), (cell, _))| {
                    let db = if db == a { b } else { a };
                    ((KeyHash::of_record(db, &key).position(), db, key), (cell, gsn))
                });
                self.state = swapped.collect();
            }
            Step::Copy { records, anew } => self.copy(*records, *anew),
            Step::Again { records } => {
                let [giver, receiver] = self.sides();
                let mut shown = Vec::new();
                self.stores[giver].copy_changed(*records, usize::MAX, |(db, key), cell, version| {
                    shown.push((*db, key.clone(), cell.clone(), version));
                });
                self.copied_in = self.epoch;
                for (db, key, cell, version) in shown {
                    assert!(self.stores[receiver].add_copy(db, &key, cell, version));
                }
            }
            Step::GiveUp => {
                self.stores.iter_mut().for_each(|store| {
                    store.give_up_copying();
                    store.give_up_copies();
                });
            }
            Step::Move => self.change_hands(),
            Step::Epoch => {
                self.past.insert(Epoch(self.epoch), (self.state.clone(), self.owner));
                if let Some(since) = &mut self.reads_since {
                    *since = Epoch(since.0.max(self.epoch.saturating_sub(WINDOW)));
                }
                self.epoch += 1;
                self.keep();
            }
            Step::Read { reads } => {
                // From the end of this epoch on: nothing of a later one has changed anything.
                if *reads && self.reads_since.is_none() {
                    self.reads_since = Some(Epoch(self.epoch));
                } else if !reads {
                    self.reads_since = None;
                }
                self.keep();
            }
            Step::Cut { cuts } => {
                self.cut = cuts.then(|| self.cut.unwrap_or(Epoch(self.epoch)));
                self.keep();
            }
            Step::Point => {
                if self.point.is_none() {
                    let point = Epoch(self.epoch);
                    self.stores.iter_mut().for_each(|store| store.point(Some(point)));
                    self.point = Some((point, Default::default(), [false; 2]));
                }
            }
            Step::Capture { records } => self.capture(*records),
            Step::Free { records } => {
                self.stores.iter_mut().for_each(|store| _ = store.free_some(*records));
            }
            Step::Settle { at_once } => self.stores.iter_mut().for_each(|store| match at_once {
                true => store.settle_at_once(),
                false => store.settle(3),
            }),
        }
    }

    fn capture(&mut self, records: usize) {
        let Some((point, captured, done)) = &mut self.point else { return };
        if self.epoch <= point.0 {
            return;
        }
        for ((store, captured), done) in self.stores.iter_mut().zip(captured).zip(&mut *done) {
            let mut piece = ordain_model::table::Piece::of(records, usize::MAX);
            if !*done {
                *done = store.capture(|entry| {
                    let takes = piece.takes(entry.position, 1);
                    if takes {
                        let name = (entry.position, entry.db, entry.key.to_vec());
                        let before = captured.insert(name, (entry.cell.clone(), entry.version));
                        assert!(before.is_none(), "nothing is captured twice");
                    }
                    takes
                });
            }
        }
        if *done == [true; 2] {
            let Some((point, captured, _)) = self.point.take() else { return };
            self.stores.iter_mut().for_each(|store| store.point(None));
            let (state, owner) = &self.past[&point];
            for (store, captured) in captured.iter().enumerate() {
                assert_eq!(captured, &self.part(state, *owner, store), "store {store} at the point {point}");
            }
        }
    }

    fn check(&mut self) {
        for store in 0..2 {
            let expected = self.part(&self.state, self.owner, store);
            let present = &mut self.stores[store];
            let mut seen = State::new();
            present.visit(Position::default(), |entry| {
                let name = (entry.position, entry.db, entry.key.to_vec());
                seen.insert(name, (entry.cell.clone(), entry.version)).is_none()
            });
            assert_eq!(seen, expected, "store {store}");
            assert_eq!(present.digest(), digest_of(&expected));
            assert_eq!(present.recompute_digest(), digest_of(&expected));
            assert_eq!(present.records(), expected.len() as u32);
            check_sums(&present.table(Gsn::NONE), &expected);
            for ((_, db, key), (cell, _)) in &expected {
                let id = present.find(*db, key, KeyHash::of_record(*db, key));
                assert!(id.is_some_and(|id| present.is_of(id, *db, key) && present.cell(id) == cell));
            }
        }
        let since = self.reads_since.unwrap_or(Epoch(u64::MAX));
        let cut = self.cut.and_then(|cut| self.past.get_key_value(&cut));
        for (epoch, (state, owner)) in self.past.range(since..).chain(cut) {
            for store in 0..2 {
                let expected = self.part(state, *owner, store);
                let mut past = self.stores[store].as_of(*epoch);
                let mut seen = State::new();
                past.visit(Position::default(), |entry| {
                    let name = (entry.position, entry.db, entry.key.to_vec());
                    seen.insert(name, (entry.cell.clone(), entry.version)).is_none()
                });
                assert_eq!(seen, expected, "store {store} as of {epoch}");
                assert_eq!(past.digest(), digest_of(&expected), "store {store} as of {epoch}");
                check_sums(&past, &expected);
                for ((_, db, key), (cell, version)) in &expected {
                    let found = past.find(*db, key, KeyHash::of_record(*db, key));
                    assert_eq!(found, Some((cell, *version)), "store {store} as of {epoch}");
                }
            }
        }
    }
}

fn digest_of(state: &State) -> Digest {
    let mut digest = Digest::default();
    for ((_, db, key), (cell, _)) in state {
        let hash = cell.value.as_ref().map(|value| record_hash(*db, key, value, cell.expires_at));
        hash.into_iter().for_each(|hash| digest.add(hash));
    }
    digest
}

fn check_sums(table: &dyn Table, state: &State) {
    for db in DBS.map(Db) {
        let mut expiring = Expiring::default();
        let of = || state.iter().filter(|((_, of, _), _)| *of == db);
        of().for_each(|(_, (cell, _))| expiring.add(cell));
        assert_eq!((table.len(db), table.expiring(db)), (of().count() as u64, expiring));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn slots_change_hands_at_once_while_they_change_and_are_read(steps in steps()) {
        let mut model = Model::new();
        for step in &steps {
            model.run(step);
            model.check();
        }
        // Nobody reads any more: what has gone is freed, and there is no more memory in use than a new store would need.
        model.run(&Step::GiveUp);
        model.run(&Step::Read { reads: false });
        model.run(&Step::Cut { cuts: false });
        while model.point.is_some() {
            model.run(&Step::Epoch);
            model.run(&Step::Capture { records: 100 });
        }
        for _ in 0..50 {
            model.keep();
            model.run(&Step::Free { records: 100 });
        }
        model.check();
        for store in 0..2 {
            let state = model.part(&model.state, model.owner, store);
            let mut other = MemoryStore::new(0..1024);
            for ((_, db, key), (cell, version)) in state {
                let id = other.find_or_reserve(db, &key, KeyHash::of_record(db, &key));
                other.put_back(id, cell, version);
            }
            let (memory, expected) = (model.stores[store].memory(), other.memory());
            prop_assert_eq!((memory.keys, memory.values, memory.older), (expected.keys, expected.values, 0));
        }
    }
}

/// Half a million records go by all that is in their slot: neither side looks at them when it does.
#[test]
fn what_is_copied_is_not_touched_when_the_slot_changes_hands() {
    let mut model = Model::new();
    for record in 0..30_000 {
        let key = format!("{{tag}}{record}");
        let name = (KeyHash::of(key.as_bytes()).position(), Db(0), key.into_bytes());
        model.write(&name, Cell { value: Some(Value::String(vec![1; 8])), expires_at: Expiry::default() });
    }
    while model.stores[0].copied().is_none_or(|to| to.slot() == model.slot) {
        model.copy(1000, false);
    }
    model.run(&Step::Epoch);
    model.write(&name(0, 0), Cell { value: Some(Value::String(vec![2; 8])), expires_at: Expiry::default() });
    assert_eq!((model.stores[0].copies_made(), model.stores[0].changed().len()), (30_000, 1));
    let memory = model.stores[1].memory();
    assert!(memory.total() > 30_000 * 64 && model.stores[1].records() == 0, "{memory:?}");
    model.change_hands();
    assert_eq!(model.stores.each_ref().map(|store| store.records()), [0, 30_001]);
    model.check();
    // What has gone is freed some at a time.
    let before = model.stores[0].memory();
    let calls = (0..).take_while(|_| model.stores[0].free_some(800)).count();
    assert!((290..=310).contains(&calls), "{calls}");
    let after = model.stores[0].memory();
    assert_eq!((after.keys, after.values, after.records), (0, 0, before.records), "places stay");
}

/// What is copied anew in one step is bounded by bytes too: values may be large.
#[test]
fn changed_records_are_copied_anew_up_to_so_many_bytes() {
    let mut model = Model::new();
    let put = |model: &mut Model, content| {
        (0..4).for_each(|key| model.run(&Step::Put { db: 0, key, content, expires: false }));
    };
    put(&mut model, 2);
    model.copy(100, false);
    put(&mut model, 5);
    let mut copied = Vec::new();
    for bytes in [1, 1, 100_000] {
        let before = model.stores[0].changed().len();
        model.stores[0].copy_changed(100, bytes, |_, _, _| {});
        copied.push(before - model.stores[0].changed().len());
    }
    assert_eq!(copied, [1, 1, 2]);
}

/// All is cleared while a checkpoint is being written: nothing is touched then, and all is freed some at a time afterwards.
#[test]
fn what_is_cleared_while_its_state_is_kept_is_freed_later() {
    let mut model = Model::new();
    for record in 0..30_000 {
        let key = format!("key:{record}");
        let name = (KeyHash::of(key.as_bytes()).position(), Db(0), key.into_bytes());
        let store = &mut model.stores[0];
        let id = store.find_or_reserve(Db(0), &name.2, KeyHash::of(&name.2));
        store.put_back(
            id,
            Cell { value: Some(Value::String(vec![1; 8])), expires_at: Expiry::default() },
            Gsn(1),
        );
    }
    let before = model.stores[0].digest();
    model.run(&Step::Cut { cuts: true });
    model.run(&Step::Epoch);
    model.run(&Step::Clear { db: None });
    assert_eq!((model.stores[0].records(), model.stores[0].older()), (0, 0), "no content was set aside");
    assert_eq!(model.stores[0].as_of(Epoch(1)).digest(), before);
    assert!(!model.stores[0].free_some(1 << 20), "somebody may ask for it");
    model.run(&Step::Cut { cuts: false });
    let calls = (0..).take_while(|_| model.stores[0].free_some(8000)).count();
    assert!(calls > 25, "{calls}");
    let memory = model.stores[0].memory();
    assert_eq!((memory.values, memory.indexes), (0, 0));
    assert_eq!(model.stores[0].recompute_digest(), Digest::default());
}
