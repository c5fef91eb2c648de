//! Records whose contents lie on disk, and the choice of those that go there (decision 58).
//!
//! A content that goes leaves an [`Away`] in its record, by which all sums stay what they were. Nothing else of a record goes, so it is
//! found, locked, walked, renamed and deleted as before; older contents and copies may be away too.
//!
//! **The choice** is that of a clock. A hand passes over all places; a record that was [used](MemoryStore::touch) since it passed last stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::value::name_hash;
use ordain_model::{Away, Db, KeyHash, Value};

use crate::memory::MemoryStore;
use crate::slab::Record;
use crate::{RecordId, RecordStore};

/// A content of no more bytes than this stays in memory: what is left of one that has gone takes nearly as much.
pub const LEAST: usize = 2 * Away::BYTES;

/// What a store knows of contents on disk.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// The place at which the hand stands.
    hand: u32,
    /// Contents that are in memory and on disk too, unless they have changed since, with the hashes of the names for which they were
    /// written there.
    copies: BTreeMap<RecordId, (u64, Arc<Away>)>,
}

impl Contents {
    fn take_copy(&mut self, id: RecordId) -> Option<(u64, Arc<Away>)> {
        if self.copies.is_empty() { None } else { self.copies.remove(&id) }
    }

    /// Bytes of memory, about.
    pub(crate) fn bytes(&self) -> usize {
        self.copies.len() * (size_of::<RecordId>() + size_of::<(u64, Arc<Away>)>() + Away::BYTES)
    }
}

impl Record {
    /// Whether its content, this one, may go and is worth it.
    fn is_worth(&self, value: &Value) -> bool {
        self.cell.away().is_none()
            && value.heap_bytes() > LEAST
            && self.lock() == 0
            && !self.db().holds_children()
    }
}

/// A record that the hand has come to, and whose content may go.
#[derive(Debug)]
pub struct Idle<'a> {
    /// Its database.
    pub db: Db,
    /// Its key.
    pub key: &'a [u8],
    /// Its content.
    pub value: &'a Value,
    /// Where that lies already, if it does.
    pub copy: Option<Arc<Away>>,
}

impl MemoryStore {
    /// A record is used: its content stays until the hand has passed twice.
    #[inline]
    pub fn touch(&mut self, id: RecordId) {
        self.slab.get_mut(id).set_used();
    }

    /// Passes the hand over so many places at most, and shows records whose contents may go, until `show` says to stop with `false`: they
    /// were not used since the hand passed, nobody has set their lock words, and it is worth it. Child records are passed over, as those who use them
    /// cannot tell beforehand.
    pub fn pass_hand(&mut self, places: usize, mut show: impl FnMut(Idle<'_>) -> bool) {
        for _ in 0..places.min(self.slab.places()) {
            let id = RecordId(self.contents.hand);
            self.contents.hand = if id.0 as usize + 1 < self.slab.places() { id.0 + 1 } else { 0 };
            let record = self.slab.get_mut(id);
            if record.take_used() {
                continue;
            }
            let copy = self.contents.take_copy(id);
            let Some(value) = record.cell.value.as_ref().filter(|value| record.is_worth(value)) else {
                continue;
            };
            let name = name_hash(record.db(), record.key());
            let copy = copy.filter(|(of, copy)| *of == name && copy.is_of(value)).map(|(_, copy)| copy);
            if !show(Idle { db: record.db(), key: record.key(), value, copy }) {
                return;
            }
        }
    }

    /// Lets the content of a record go, which lies on disk too; says whether it has. It stays if it has changed since it was written there, or the record is
    /// locked or gone.
    pub fn put_away(&mut self, db: Db, key: &[u8], hash: KeyHash, away: &Arc<Away>) -> bool {
        let Some(id) = self.find(db, key, hash) else { return false };
        let record = self.slab.get_mut(id);
        let (is_locked, is_away) = (record.lock() != 0, record.cell.away().is_some());
        let value = record.cell.value.as_mut().filter(|value| !is_locked && !is_away && away.is_of(value));
        let Some(value) = value else { return false };
        let before = value.heap_bytes() as u64;
        *value = Value::Away(away.clone());
        self.totals.value_bytes = self.totals.value_bytes - before + Away::BYTES as u64;
        self.contents.copies.remove(&id);
        true
    }

    /// Brings a content back that was fetched; says whether the record still wants it.
    ///
    /// # Panics
    /// If it is another content.
    pub fn bring_back(
        &mut self,
        db: Db,
        key: &[u8],
        hash: KeyHash,
        (away, value): (&Arc<Away>, Value),
    ) -> bool {
        assert!(away.is_of(&value), "what was fetched is not what was put away: {away:?}");
        let Some(id) = self.find(db, key, hash) else { return false };
        let record = self.slab.get_mut(id);
        if !record.cell.away().is_some_and(|other| Arc::ptr_eq(other, away)) {
            return false;
        }
        let bytes = value.heap_bytes() as u64;
        record.cell.value = Some(value);
        record.set_used();
        self.totals.value_bytes = self.totals.value_bytes - Away::BYTES as u64 + bytes;
        self.contents.copies.insert(id, (name_hash(db, key), away.clone()));
        true
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
        store.pass_hand(places, |idle| {
            let n = usize::from_be_bytes(idle.key.try_into().unwrap());
            shown.push((n, idle.copy.is_some()));
            true
        });
        shown
    }

    fn put_away(store: &mut MemoryStore, n: usize, file: &Arc<ValueFile>) -> Arc<Away> {
        let value = store.cell(id(store, n)).value.clone().unwrap();
        let away = Arc::new(Away::new(&value, file, n as u32, 10));
        assert!(store.put_away(Db(0), &key(n), KeyHash::of(&key(n)), &away));
        away
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
        store.pass_hand(6, |idle| {
            first.push(idle.key.to_vec());
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
        let all = [0, 1, 2].map(|n| put_away(&mut store, n, &file));
        assert_eq!(shown(&mut store, 3), []);
        assert_eq!((store.digest(), store.recompute_digest()), (digest, digest));
        assert_eq!(store.memory().values, before - 3 * (1_000 - Away::BYTES as u64));
        for (n, away) in all.iter().enumerate() {
            let value = Value::String(vec![n as u8; 1_000]);
            assert!(store.bring_back(Db(0), &key(n), KeyHash::of(&key(n)), (away, value)));
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
    fn a_copy_is_of_a_name() {
        let mut store = store(&[1_000]);
        let file = ValueFile::new(7);
        let away = put_away(&mut store, 0, &file);
        assert!(store.bring_back(
            Db(0),
            &key(0),
            KeyHash::of(&key(0)),
            (&away, Value::String(vec![0; 1_000]))
        ));
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
    #[should_panic(expected = "is not what was put away")]
    fn another_content_does_not_come_back() {
        let mut store = store(&[1_000]);
        let away = put_away(&mut store, 0, &ValueFile::new(7));
        store.bring_back(Db(0), &key(0), KeyHash::of(&key(0)), (&away, Value::String(vec![1; 1_000])));
    }
}
