//! Eviction of values to disk, and loading them back (decision 58).
//!
//! An evicted value leaves an [`Evicted`] in its record, which has the hash and the weight of the value, so that digests and sums stay as
//! they were. All else of the record stays in memory: it is found, locked, walked, renamed and deleted as before. Older contents may be
//! evicted too.
//!
//! Candidates are chosen by the CLOCK algorithm: a hand passes over the slab, and skips a record that was
//! [used](MemoryStore::touch) since its last round.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::value::name_hash;
use ordain_model::{Db, Evicted, FramePlace, KeyHash, Value};

use crate::memory::MemoryStore;
use crate::slab::Record;
use crate::{RecordId, RecordStore};

/// Values that go to disk and come back.
pub trait Evicting {
    /// Notes that a record is used: its value is no candidate in the hand's next round.
    fn touch(&mut self, id: RecordId);

    /// Advances the clock's hand over `places` records at most, and shows candidates until `show` answers `false`: records that were not used since
    /// the hand's last round, with an unlocked value that takes more than `least` bytes of memory. Child records are none: the transaction that
    /// uses one learns its name only as it runs.
    fn advance_clock(&mut self, places: usize, least: usize, show: impl FnMut(Candidate<'_>) -> bool);

    /// Evicts the value of a record whose frame is written; answers `false`, and changes nothing, if the record is gone or locked or its value has
    /// changed since the frame was made.
    fn evict(&mut self, db: Db, key: &[u8], hash: KeyHash, evicted: &Arc<Evicted>) -> bool;

    /// Puts a value back into memory that was read from disk; answers `false`, and changes nothing, if the record does not refer to its
    /// frame any more.
    ///
    /// # Panics
    /// If it is not the value that was evicted.
    fn load(&mut self, db: Db, key: &[u8], hash: KeyHash, read: (&Arc<Evicted>, Value)) -> bool;

    /// Has a record that refers to a frame refer to another one with the same value; answers `false`, and changes nothing, if it does not refer
    /// to it. A value that is in memory and has the frame for a copy has the other one then.
    fn refer_to(&mut self, db: Db, key: &[u8], hash: KeyHash, frames: (&FramePlace, &Arc<Evicted>)) -> bool;

    /// True if a record refers to the frame at a place, or its value has it for a copy.
    fn refers_to(&self, db: Db, key: &[u8], hash: KeyHash, place: FramePlace) -> bool;
}

/// The largest value that a node never evicts, bytes of memory: the reference to an evicted one takes half as much.
pub const LEAST: usize = 2 * Evicted::BYTES;

/// The state of a store's eviction.
#[derive(Debug, Default)]
pub(crate) struct Eviction {
    /// The record at which the clock's hand stands.
    hand: u32,
    /// Values that are in memory and on disk too, unless they have changed since, with the hashes of the names for which they were
    /// written there.
    copies: BTreeMap<RecordId, (u64, Arc<Evicted>)>,
}

impl Eviction {
    fn take_copy(&mut self, id: RecordId) -> Option<(u64, Arc<Evicted>)> {
        if self.copies.is_empty() { None } else { self.copies.remove(&id) }
    }

    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.copies.len() * (size_of::<RecordId>() + size_of::<(u64, Arc<Evicted>)>() + Evicted::BYTES)
    }
}

impl Record {
    /// Tells whether its value may be evicted, and is large enough.
    fn is_evictable(&self, value: &Value, least: usize) -> bool {
        self.cell.evicted().is_none()
            && value.heap_bytes() > least
            && self.lock() == 0
            && !self.db().holds_children()
    }
}

/// A record whose value may be evicted.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// Its database.
    pub db: Db,
    /// Its key.
    pub key: &'a [u8],
    /// The hash of its key.
    pub hash: KeyHash,
    /// Its value.
    pub value: &'a Value,
    /// The frame of this value on disk, if it was loaded and has not changed.
    pub copy: Option<Arc<Evicted>>,
}

impl Evicting for MemoryStore {
    #[inline]
    fn touch(&mut self, id: RecordId) {
        self.slab.get_mut(id).set_used();
    }

    fn advance_clock(&mut self, places: usize, least: usize, mut show: impl FnMut(Candidate<'_>) -> bool) {
        for _ in 0..places.min(self.slab.places()) {
            let id = RecordId(self.eviction.hand);
            self.eviction.hand = if id.0 as usize + 1 < self.slab.places() { id.0 + 1 } else { 0 };
            if self.slab.get_mut(id).take_used() {
                continue;
            }
            let copy = self.eviction.take_copy(id);
            let record = self.slab.get(id);
            let Some(value) = record.cell.value.as_ref().filter(|value| record.is_evictable(value, least))
            else {
                continue;
            };
            let (db, key, hash) = (record.db(), record.key(), record.hash(&self.placement));
            // Records that have departed with their slot, and copies of a slot that is to come, are in the slab too.
            if !self.slots.contains(&hash.slot()) || self.find(db, key, hash) != Some(id) {
                continue;
            }
            let name = name_hash(db, key);
            let copy = copy.filter(|(of, copy)| *of == name && copy.is_of(value)).map(|(_, copy)| copy);
            if !show(Candidate { db, key, hash, value, copy }) {
                return;
            }
        }
    }

    fn evict(&mut self, db: Db, key: &[u8], hash: KeyHash, evicted: &Arc<Evicted>) -> bool {
        let Some(id) = self.find(db, key, hash) else { return false };
        let record = self.slab.get_mut(id);
        let (is_locked, is_evicted) = (record.lock() != 0, record.cell.evicted().is_some());
        let value =
            record.cell.value.as_mut().filter(|value| !is_locked && !is_evicted && evicted.is_of(value));
        let Some(value) = value else { return false };
        let before = value.heap_bytes() as u64;
        *value = Value::Evicted(evicted.clone());
        self.totals.value_bytes = self.totals.value_bytes - before + Evicted::BYTES as u64;
        self.eviction.copies.remove(&id);
        true
    }

    fn load(&mut self, db: Db, key: &[u8], hash: KeyHash, (evicted, value): (&Arc<Evicted>, Value)) -> bool {
        assert!(evicted.is_of(&value), "what was read is not what was evicted: {evicted:?}");
        let Some(id) = self.find(db, key, hash) else { return false };
        let record = self.slab.get_mut(id);
        if !record.cell.evicted().is_some_and(|other| Arc::ptr_eq(other, evicted)) {
            return false;
        }
        let bytes = value.heap_bytes() as u64;
        record.cell.value = Some(value);
        record.set_used();
        self.totals.value_bytes = self.totals.value_bytes - Evicted::BYTES as u64 + bytes;
        self.eviction.copies.insert(id, (name_hash(db, key), evicted.clone()));
        true
    }

    fn refer_to(
        &mut self,
        db: Db,
        key: &[u8],
        hash: KeyHash,
        (place, other): (&FramePlace, &Arc<Evicted>),
    ) -> bool {
        let Some(id) = self.find(db, key, hash).filter(|_| self.refers_to(db, key, hash, *place)) else {
            return false;
        };
        let record = self.slab.get_mut(id);
        if let Some(evicted) = record.cell.evicted() {
            assert!(**evicted == **other, "another value was written in its place: {evicted:?}");
            record.cell.value = Some(Value::Evicted(other.clone()));
        } else {
            self.eviction.copies.insert(id, (name_hash(db, key), other.clone()));
        }
        true
    }

    fn refers_to(&self, db: Db, key: &[u8], hash: KeyHash, place: FramePlace) -> bool {
        let Some(id) = self.find(db, key, hash) else { return false };
        match self.slab.get(id).cell.evicted() {
            Some(evicted) => evicted.place() == place,
            None => {
                let copy = self.eviction.copies.get(&id);
                copy.is_some_and(|(of, copy)| *of == name_hash(db, key) && copy.place() == place)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::key::SLOTS;
    use ordain_model::{CellMut, Gsn, ValueFile};

    use super::*;

    /// A store with records of these many bytes, by number.
    fn store(sizes: &[usize]) -> MemoryStore {
        let mut store = MemoryStore::new(0..SLOTS);
        for (n, size) in sizes.iter().enumerate() {
            let id = store.find_or_reserve(Db(0), &key(n), KeyHash::of(&key(n)));
            store.edit(id, Gsn(1), |cell, changed| {
                CellMut::new(cell, changed, None).put(Value::String(vec![n as u8; *size]));
            });
        }
        store
    }

    fn key(n: usize) -> Vec<u8> {
        n.to_be_bytes().to_vec()
    }

    fn id(store: &MemoryStore, n: usize) -> RecordId {
        store.find(Db(0), &key(n), KeyHash::of(&key(n))).unwrap()
    }

    /// The numbers of the records that the hand shows over so many places, and whether each has a copy.
    fn shown(store: &mut MemoryStore, places: usize) -> Vec<(usize, bool)> {
        let mut shown = Vec::new();
        store.advance_clock(places, LEAST, |candidate| {
            let n = usize::from_be_bytes(candidate.key.try_into().unwrap());
            shown.push((n, candidate.copy.is_some()));
            true
        });
        shown
    }

    fn evict(store: &mut MemoryStore, n: usize, file: &Arc<ValueFile>) -> Arc<Evicted> {
        let value = store.cell(id(store, n)).value.clone().unwrap();
        let evicted = Arc::new(Evicted::new(&value, file, n as u32, 10));
        assert!(store.evict(Db(0), &key(n), KeyHash::of(&key(n)), &evicted));
        evicted
    }

    #[test]
    fn the_hand_passes_over_what_was_used_or_is_locked_or_small_and_goes_round() {
        let mut store = store(&[1_000, LEAST, 1_000, 1_000, 1_000, 1_000]);
        let (used, locked) = (id(&store, 2), id(&store, 3));
        store.touch(used);
        store.set_lock(locked, 1);
        assert_eq!(shown(&mut store, 4), [(0, false)]);
        store.set_lock(locked, 0);
        assert_eq!(shown(&mut store, 5), [(4, false), (5, false), (0, false), (2, false)]);
        assert_eq!(shown(&mut store, 100).len(), 5, "once round and no more");
        let mut first = Vec::new();
        store.advance_clock(6, LEAST, |candidate| {
            first.push(candidate.key.to_vec());
            false
        });
        assert_eq!(first, [key(3)], "it stops where it is told to");
        assert_eq!(shown(&mut store, 1), [(4, false)], "and goes on there");
    }

    #[test]
    fn a_content_that_was_fetched_and_not_changed_has_a_copy() {
        let mut store = store(&[1_000, 1_000, 1_000]);
        let file = ValueFile::new(7);
        let (digest, before) = (store.digest(), store.memory().values);
        let all = [0, 1, 2].map(|n| evict(&mut store, n, &file));
        assert_eq!(shown(&mut store, 3), []);
        assert_eq!((store.digest(), store.recompute_digest()), (digest, digest));
        assert_eq!(store.memory().values, before - 3 * (1_000 - Evicted::BYTES as u64));
        for (n, evicted) in all.iter().enumerate() {
            let value = Value::String(vec![n as u8; 1_000]);
            assert!(store.load(Db(0), &key(n), KeyHash::of(&key(n)), (evicted, value)));
        }
        assert_eq!((store.memory().values, store.digest()), (before, digest));
        // One is written with what it held, one with something else.
        for (n, byte) in [(1, 1), (2, 0)] {
            let id = id(&store, n);
            store.edit(id, Gsn(2), |cell, changed| {
                CellMut::new(cell, changed, None).put(Value::String(vec![byte; 1_000]));
            });
        }
        drop(all);
        assert_eq!((shown(&mut store, 3), file.needed()), (vec![], 30), "they were used");
        assert_eq!(shown(&mut store, 3), [(0, true), (1, true), (2, false)]);
        assert_eq!(file.needed(), 0, "whoever is shown a copy keeps it");
    }

    #[test]
    fn who_refers_to_a_frame_refers_to_the_one_in_its_place() {
        let mut store = store(&[1_000, 1_000]);
        let (old, new) = (ValueFile::new(7), ValueFile::new(8));
        let value = |n: u8| Value::String(vec![n; 1_000]);
        let [first, second] = [0, 1].map(|n| evict(&mut store, n, &old));
        assert!(store.load(Db(0), &key(1), KeyHash::of(&key(1)), (&second, value(1))));
        drop((first, second));
        assert_eq!(old.needed(), 20, "one is evicted, one has a copy");
        for n in [0, 1] {
            let other = Arc::new(Evicted::new(&value(n as u8), &new, n as u32, 10));
            let hash = KeyHash::of(&key(n));
            assert!(
                !store.refer_to(Db(0), &key(n), hash, (&(8, n as u32), &other)),
                "it is in the other file"
            );
            assert!(!store.refer_to(Db(1), &key(n), hash, (&(7, n as u32), &other)), "nor of that name");
            assert!(store.refers_to(Db(0), &key(n), hash, (7, n as u32)));
            assert!(store.refer_to(Db(0), &key(n), hash, (&(7, n as u32), &other)));
            assert!(store.refers_to(Db(0), &key(n), hash, (8, n as u32)));
        }
        assert_eq!((old.needed(), new.needed()), (0, 20));
    }

    #[test]
    fn a_copy_is_of_a_name() {
        let mut store = store(&[1_000]);
        let file = ValueFile::new(7);
        let evicted = evict(&mut store, 0, &file);
        assert!(store.load(Db(0), &key(0), KeyHash::of(&key(0)), (&evicted, Value::String(vec![0; 1_000]))));
        // Another record has its place, and the same content.
        let old = id(&store, 0);
        store.edit(old, Gsn(2), |cell, changed| CellMut::new(cell, changed, None).delete());
        store.release_if_absent(old);
        let new = store.find_or_reserve(Db(0), &key(9), KeyHash::of(&key(9)));
        assert_eq!(new, old);
        store.edit(new, Gsn(3), |cell, changed| {
            CellMut::new(cell, changed, None).put(Value::String(vec![0; 1_000]));
        });
        assert_eq!(shown(&mut store, 1), [(9, false)]);
    }

    #[test]
    #[should_panic(expected = "is not what was evicted")]
    fn another_content_does_not_come_back() {
        let mut store = store(&[1_000]);
        let evicted = evict(&mut store, 0, &ValueFile::new(7));
        store.load(Db(0), &key(0), KeyHash::of(&key(0)), (&evicted, Value::String(vec![1; 1_000])));
    }
}
