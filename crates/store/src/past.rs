//! A past state of a store, as a table that cannot be changed.

use std::ops::Range;

use ordain_model::table::Expiring;
use ordain_model::value::record_hash;
use ordain_model::{Cell, Db, Digest, Epoch, Gsn, KeyHash, Millis, Position, Table};

use crate::memory::MemoryStore;
use crate::slab::Record;
use crate::{Entry, RecordId, RecordStore, Snapshot};

/// The state at the end of an epoch.
#[derive(Debug)]
pub(crate) struct Past<'s> {
    pub(crate) store: &'s MemoryStore,
    pub(crate) epoch: Epoch,
    /// No record came in from another store since: whatever was written before was here.
    pub(crate) is_whole: bool,
}

impl<'s> Past<'s> {
    #[inline]
    fn content(&self, id: RecordId, record: &'s Record) -> Option<(&'s Cell, Gsn)> {
        // Most records were not changed lately. An absent one has no version: it may have been deleted just now.
        let is_settled = self.is_whole && record.cell.value.is_some() && record.version.epoch() <= self.epoch;
        let older = if is_settled { None } else { self.store.versions.as_of(self.epoch, id) };
        let (cell, version) =
            older.map_or((&record.cell, record.version), |older| (&older.cell, older.version));
        cell.value.is_some().then_some((cell, version))
    }

    /// The records that were changed since, and what each held.
    fn changed_since(&self) -> impl Iterator<Item = (&'s Record, &'s Cell)> {
        // Of a slot that has come since, or has gone before, nothing counts.
        let changed = self.store.versions.all_as_of(self.epoch);
        let changed = changed.filter(|older| self.store.was_in(older.record, self.epoch));
        changed.map(|older| (self.store.slab.get(older.record), &older.cell))
    }
}

impl Snapshot for Past<'_> {
    #[inline]
    fn find(&self, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)> {
        let index = self.store.index_at(hash.slot(), self.epoch)?;
        let id = index.find(hash.tag(), |id| self.store.slab.get(id).is(db, key))?;
        self.content(id, self.store.slab.get(id))
    }

    #[inline]
    fn find_at(&self, guess: Option<RecordId>, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)> {
        match guess.and_then(|id| Some((id, self.store.slab.find(id)?))) {
            Some((id, record)) if self.store.generations.is_idle() && record.is(db, key) => {
                self.content(id, record)
            }
            _ => self.find(db, key, hash),
        }
    }

    fn visit<'a>(&'a self, from: Position, visit: impl FnMut(Entry<'a>) -> bool) {
        self.store.walk(from, self.epoch, |id, record| self.content(id, record), visit);
    }
}

/// Nothing writes to the past: whoever reads it has classified a transaction as one that only reads.
const READ_ONLY: &str = "a past state was to be changed";

impl Table for Past<'_> {
    fn len(&self, db: Db) -> u64 {
        let generations = &self.store.generations;
        let mut len = self.store.totals.records(db).wrapping_add(generations.records_since(self.epoch, db));
        for (record, before) in self.changed_since().filter(|(record, _)| record.db() == db) {
            len = len.wrapping_sub(u64::from(record.cell.value.is_some()));
            len = len.wrapping_add(u64::from(before.value.is_some()));
        }
        len
    }

    fn expiring(&self, db: Db) -> Expiring {
        let mut sum = self.store.totals.expiring_of(db);
        let [more, less] = self.store.generations.expiring_since(self.epoch, db);
        (sum.records, sum.at_sum_ms) = (sum.records + more.records, sum.at_sum_ms + more.at_sum_ms);
        for (record, before) in self.changed_since().filter(|(record, _)| record.db() == db) {
            // First in, so that no count goes below zero in between.
            sum.add(before);
            sum.remove(&record.cell);
        }
        (sum.records, sum.at_sum_ms) = (sum.records - less.records, sum.at_sum_ms - less.at_sum_ms);
        sum
    }

    fn digest(&mut self) -> Digest {
        let mut digest = self.store.digest().plus(self.store.generations.digest_since(self.epoch));
        for (record, before) in self.changed_since() {
            let hash = |cell: &Cell| {
                let value = cell.value.as_ref()?;
                Some(record_hash(record.db(), record.key(), value, cell.expires_at))
            };
            hash(&record.cell).into_iter().for_each(|hash| digest.remove(hash));
            hash(before).into_iter().for_each(|hash| digest.add(hash));
        }
        digest
    }

    fn scan(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool) {
        self.visit(from, |entry| entry.db != db || visit(entry.position, entry.key, entry.cell));
    }

    fn after(&self, _from: Position, _records: usize, _bytes: usize) -> Position {
        panic!("{READ_ONLY}");
    }

    fn clear(&mut self, _db: Option<Db>) {
        panic!("{READ_ONLY}");
    }

    fn swap(&mut self, _a: Db, _b: Db) {
        panic!("{READ_ONLY}");
    }

    fn expire(&mut self, _now: Millis, _positions: Range<Position>) -> u64 {
        panic!("{READ_ONLY}");
    }
}
