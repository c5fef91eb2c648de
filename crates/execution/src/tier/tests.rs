//! A tier beside a map of what its records should hold, on a directory that is slow, gets full and is damaged.

use std::collections::VecDeque;

use ordain_log::{MemoryDirectory, carry_out};
use ordain_model::key::SLOTS;
use ordain_model::{Cell, CellMut, Gsn};
use ordain_role::Directory as _;
use ordain_store::{Evicting as _, LEAST, MemoryStore, RecordId};
use proptest::prelude::*;

use super::*;

const SIZES: Sizes = Sizes { file: 8_000, write: 1_500, piece: 2_000 };
const DB: Db = Db(0);

struct World {
    tier: Tier<u32>,
    store: MemoryStore,
    directory: MemoryDirectory,
    asked: VecDeque<DiskRequest>,
    /// The content of each record.
    model: BTreeMap<u8, Vec<u8>>,
    /// The records that each waiter is to read, and what they held when he asked, for those who read a past state.
    readers: BTreeMap<u32, Reader>,
    next: u32,
    reads: usize,
}

/// A waiter who only keeps values in memory.
const KEEPER: u32 = u32::MAX;

enum Reader {
    Present(Vec<u8>),
    Past(Cell, Vec<u8>),
}

fn name(key: &[u8; 1]) -> Name<'_> {
    Name { db: DB, key, hash: KeyHash::of(key) }
}

/// A value of a record, which differs from version to version.
fn value(key: u8, version: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![key; len];
    bytes[..4].copy_from_slice(&version.to_le_bytes());
    bytes
}

impl World {
    /// Beyond what an empty store takes there is room for so many bytes.
    fn new(room: u64) -> World {
        let mut store = MemoryStore::new(0..SLOTS);
        for key in 0..=u8::MAX {
            let id = store.find_or_reserve(DB, &[key], KeyHash::of(&[key]));
            store.edit(id, Gsn(1), |cell, changed| {
                CellMut::new(cell, changed, None).put(Value::String(vec![key; 4]));
            });
        }
        let model = (0..=u8::MAX).map(|key| (key, vec![key; 4])).collect();
        let budget = store.memory().total() + room;
        World {
            tier: Tier::new("values-0-", TierSettings { budget, least: LEAST, sizes: SIZES }),
            store,
            directory: MemoryDirectory::new(),
            asked: VecDeque::new(),
            model,
            readers: BTreeMap::new(),
            next: 0,
            reads: 0,
        }
    }

    fn id(&self, key: u8) -> Option<RecordId> {
        self.store.find(DB, &[key], KeyHash::of(&[key]))
    }

    /// Replaces what a record holds, without a look.
    fn write(&mut self, key: u8, len: usize) {
        self.next += 1;
        let bytes = value(key, self.next, len);
        let id = self.store.find_or_reserve(DB, &[key], KeyHash::of(&[key]));
        self.store.edit(id, Gsn(2), |cell, changed| {
            CellMut::new(cell, changed, None).put(Value::String(bytes.clone()));
        });
        self.model.insert(key, bytes);
    }

    fn delete(&mut self, key: u8) {
        if let Some(id) = self.id(key) {
            self.store.edit(id, Gsn(2), |cell, changed| CellMut::new(cell, changed, None).delete());
            self.store.release_if_absent(id);
        }
        self.model.remove(&key);
    }

    /// Somebody reads some records, at once or when what is evicted of them has arrived.
    fn read(&mut self, keys: &[u8]) {
        self.next += 1;
        let who = self.next;
        let mut waits = false;
        for key in keys {
            let Some(id) = self.id(*key) else { continue };
            self.store.touch(id);
            if let Some(evicted) = self.store.cell(id).evicted().cloned() {
                self.tier.want(&evicted, Some(name(&[*key])), who);
                waits = true;
            }
        }
        match waits {
            true => _ = self.readers.insert(who, Reader::Present(keys.to_vec())),
            false => self.look(keys),
        }
    }

    /// Somebody reads what a record holds now, however late.
    fn read_past(&mut self, key: u8) {
        self.next += 1;
        let Some(cell) = self.id(key).map(|id| self.store.cell(id).clone()) else { return };
        let Some(evicted) = cell.evicted().cloned() else { return };
        self.tier.want(&evicted, None, self.next);
        self.readers.insert(self.next, Reader::Past(cell, self.model[&key].clone()));
    }

    /// Compares records with what they should hold.
    fn look(&mut self, keys: &[u8]) {
        for key in keys {
            let cell = self.id(*key).map(|id| self.store.cell(id));
            let bytes = cell.and_then(|cell| match &cell.value {
                Some(Value::String(bytes)) => Some(bytes),
                None => None,
                other => panic!("record {key}: {other:?}"),
            });
            assert_eq!(bytes, self.model.get(key), "record {key}");
            self.reads += 1;
        }
    }

    fn forget(&mut self, nth: usize) {
        let who = self.readers.keys().nth(nth).copied().unwrap_or(KEEPER);
        self.tier.forget(&who);
        assert!(!self.tier.awaits(&who));
        self.readers.remove(&who);
    }

    fn arrive(&mut self) {
        for Arrived { who, past } in self.tier.arrive(&mut self.store).unwrap() {
            match self.readers.remove(&who).unwrap() {
                // Records that were written meanwhile may have been evicted anew: who waits looks again, and asks again.
                Reader::Present(keys) => self.read(&keys),
                Reader::Past(cell, bytes) => {
                    let evicted = cell.evicted().unwrap();
                    assert_eq!(past.get(evicted), Some(&Value::String(bytes)));
                    self.reads += 1;
                }
            }
        }
    }

    fn gauge(&self, wanted: &str) -> f64 {
        let mut found = None;
        self.tier.gauges(&mut |name, value| found = found.or((name == wanted).then_some(value)));
        found.expect("a gauge")
    }

    /// The disk carries out so many requests.
    fn carry_out(&mut self, most: usize) {
        self.asked.extend(self.tier.take_requests());
        for _ in 0..most {
            let Some(request) = self.asked.pop_front() else { return };
            self.tier.done(carry_out(&mut self.directory, &request));
            self.arrive();
            self.check();
            self.asked.extend(self.tier.take_requests());
        }
    }

    fn settle(&mut self) {
        for _ in 0..40 {
            self.tier.keep_within(&mut self.store);
            self.tier.tick();
            self.carry_out(1);
            while !self.asked.is_empty() || self.tier.has_arrived() {
                self.arrive();
                self.carry_out(100);
            }
        }
    }

    fn check(&self) {
        self.tier.check().unwrap();
        assert_eq!(self.store.digest(), self.store.recompute_digest());
    }

    fn evicted(&self) -> usize {
        let ids = self.model.keys().filter_map(|key| self.id(*key));
        ids.filter(|id| self.store.cell(*id).evicted().is_some()).count()
    }

    /// The store is within the budget, or nothing is left that may be evicted.
    fn is_within_the_budget(&self) -> bool {
        let large = self.model.values().filter(|bytes| bytes.len() > LEAST).count();
        self.store.memory().total() <= self.tier.budget || self.evicted() == large
    }
}

#[test]
fn a_store_is_kept_within_its_budget_and_all_of_it_can_be_read() {
    let mut w = World::new(20_000);
    (0..100).for_each(|key| w.write(key, 1_000));
    let digest = w.store.digest();
    w.settle();
    assert!(w.store.memory().total() <= w.tier.budget, "{:?}", w.store.memory());
    assert!((70..100).contains(&w.evicted()), "{} of 100", w.evicted());
    assert_eq!(w.store.digest(), digest);
    for key in 0..100 {
        w.read(&[key, 99 - key]);
        w.settle();
    }
    assert!(w.readers.is_empty() && w.reads == 200, "{} reads", w.reads);
    assert!(w.store.memory().total() <= w.tier.budget);
    assert_eq!(w.store.digest(), digest);
}

#[test]
fn what_was_read_and_not_changed_is_not_written_again() {
    let mut w = World::new(0);
    (0..8).for_each(|key| w.write(key, 1_000));
    w.settle();
    let written = w.tier.log.bytes().0;
    for round in 0..5 {
        (0..8).for_each(|key| w.read(&[key]));
        w.settle();
        assert_eq!(w.tier.log.bytes().0, written, "round {round}");
    }
    assert!(w.tier.counts.evicted > 20 && w.tier.counts.loaded > 20, "{:?}", w.tier.counts);
}

#[test]
fn a_pinned_value_stays_until_it_is_unpinned() {
    let mut w = World::new(0);
    (0..4).for_each(|key| w.write(key, 1_000));
    w.tier.pin(KeyHash::of(&[2]));
    w.settle();
    assert_eq!(w.evicted(), 3);
    assert!(w.store.cell(w.id(2).unwrap()).evicted().is_none());
    w.tier.unpin(KeyHash::of(&[2]));
    w.settle();
    assert_eq!(w.evicted(), 4);
}

#[test]
fn a_value_that_is_overwritten_while_it_leaves_or_comes_is_as_it_was_written_last() {
    let mut w = World::new(0);
    w.write(1, 1_000);
    w.tier.keep_within(&mut w.store);
    assert_eq!(w.tier.leaving.by_place.len(), 1);
    w.write(1, 900);
    w.settle();
    assert_eq!(w.evicted(), 1);
    // It is read, and overwritten before it has come.
    w.read(&[1]);
    assert_eq!(w.readers.len(), 1);
    w.write(1, 800);
    w.carry_out(10);
    assert!(w.readers.is_empty());
    w.look(&[1]);
}

#[test]
fn files_that_are_mostly_garbage_are_collected() {
    let mut w = World::new(0);
    (0..64).for_each(|key| w.write(key, 1_000));
    w.settle();
    let full = w.directory.list().unwrap().len();
    (0..64).filter(|key| key % 4 != 0).for_each(|key| w.delete(key));
    w.settle();
    let (bytes, needed) = w.tier.log.bytes();
    assert!(w.directory.list().unwrap().len() < full / 2, "{full} files, {bytes} bytes for {needed}");
    assert!(w.tier.counts.collected > 0 && bytes < 3 * needed, "{bytes} bytes for {needed}");
    for key in (0..64).step_by(4) {
        w.read(&[key]);
        w.settle();
    }
    assert_eq!((w.reads, w.readers.len()), (16, 0));
}

#[test]
fn nothing_is_lost_while_the_disk_is_full() {
    let mut w = World::new(0);
    w.directory.set_capacity(Some(3_000));
    (0..10).for_each(|key| w.write(key, 1_000));
    w.settle();
    assert!(w.evicted() < 4 && w.tier.counts.failed_writes > 0);
    (0..10).for_each(|key| w.read(&[key]));
    w.settle();
    w.directory.set_capacity(None);
    w.settle();
    assert_eq!((w.evicted(), w.reads), (10, 10));
}

#[test]
fn a_damaged_value_stops_who_reads_it() {
    let mut w = World::new(0);
    (0..3).for_each(|key| w.write(key, 1_000));
    w.settle();
    let at = w.store.cell(w.id(1).unwrap()).evicted().unwrap().at();
    w.directory.damage("values-0-0000000001", u64::from(at) + 100, 1);
    w.read(&[1]);
    let request = w.tier.take_requests().remove(0);
    w.tier.done(carry_out(&mut w.directory, &request));
    let reason = w.tier.arrive(&mut w.store).unwrap_err();
    assert!(reason.contains("cannot be read from file 1 of the value log"), "{reason}");
}

#[derive(Clone, Debug)]
enum Act {
    Write(u8, usize),
    Delete(u8),
    Read(Vec<u8>),
    ReadPast(u8),
    Keep(u8),
    /// The reader, of those that wait, or else whoever keeps something.
    Forget(usize),
    KeepWithin,
    Tick,
    CarryOut(usize),
    Room(Option<u64>),
}

fn act() -> impl Strategy<Value = Act> {
    let key = || 0u8..24;
    prop_oneof![
        6 => (key(), LEAST / 2..1_500).prop_map(|(key, len)| Act::Write(key, len)),
        1 => key().prop_map(Act::Delete),
        6 => prop::collection::vec(key(), 1..4).prop_map(Act::Read),
        2 => key().prop_map(Act::ReadPast),
        1 => key().prop_map(Act::Keep),
        2 => (0usize..4).prop_map(Act::Forget),
        6 => Just(Act::KeepWithin),
        2 => Just(Act::Tick),
        6 => (1usize..4).prop_map(Act::CarryOut),
        1 => prop::option::weighted(0.3, 1_000u64..20_000).prop_map(Act::Room),
    ]
}

proptest! {
    #[test]
    fn readers_see_what_was_written_last(acts in prop::collection::vec(act(), 1..150), room in 0u64..9_000) {
        let mut w = World::new(room);
        for act in acts {
            match act {
                Act::Write(key, len) => w.write(key, len),
                Act::Delete(key) => w.delete(key),
                Act::Read(keys) => w.read(&keys),
                Act::ReadPast(key) => w.read_past(key),
                Act::Keep(key) => w.tier.keep(KeyHash::of(&[key]), KEEPER),
                Act::Forget(nth) => w.forget(nth),
                Act::KeepWithin => w.tier.keep_within(&mut w.store),
                Act::Tick => w.tier.tick(),
                Act::CarryOut(most) => w.carry_out(most),
                Act::Room(bytes) => w.directory.set_capacity(bytes),
            }
            w.arrive();
            w.check();
        }
        w.directory.set_capacity(None);
        w.tier.forget(&KEEPER);
        w.settle();
        prop_assert!(w.readers.is_empty());
        prop_assert_eq!(w.gauge("ordain_values_pinned"), 0.0);
        prop_assert!(w.is_within_the_budget(), "{:?}", w.store.memory());
        for key in 0..24 {
            w.read(&[key]);
            w.settle();
        }
        prop_assert!(w.readers.is_empty());
    }
}
