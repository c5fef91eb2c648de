//! The committed records as an attempt sees them: the newest contents, but for those that its engine shows it in their place.

use ordain_execution::{Committed, Handed, Placed, Visit, digest_of, walk_overlaid};
use ordain_model::table::Table as _;
use ordain_model::{Cell, Db, Digest, Epoch, Gsn, KeyHash, Placement, Position};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::concurrency::ConcurrencyControl;
use crate::ids::{Age, AttemptId};

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    /// The newest contents.
    pub(super) store: &'a MemoryStore,
    /// Contents that the engine shows in their place.
    pub(super) control: &'a dyn ConcurrencyControl,
    /// The attempt, with its stamp.
    pub(super) reader: (AttemptId, Age),
    /// Values of such contents that were on disk.
    pub(super) handed: &'a Handed,
}

impl Seen<'_> {
    /// The records of a database that show another content than the newest, in canonical order.
    fn replaced(&self, db: Db, from: Position) -> Vec<(Position, &[u8], RecordId, &Cell)> {
        let placement = RecordStore::placement(self.store);
        let all = self.control.replaced(self.reader).into_iter();
        let mut placed: Vec<_> = all
            .map(|(record, cell)| (self.store.key(record), record, cell))
            .filter(|((of, _), ..)| *of == db)
            .map(|((_, key), record, cell)| (key, record, self.handed.of(cell)))
            .map(|(key, record, cell)| (placement.hash_of_record(db, key).position(), key, record, cell))
            .filter(|(position, ..)| *position >= from)
            .collect();
        placed.sort_unstable_by(|(at, key, ..), (other, next, ..)| (at, key).cmp(&(other, next)));
        placed
    }
}

impl Committed for Seen<'_> {
    #[inline]
    fn content(&self, guess: Option<RecordId>, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)> {
        let record = match guess.filter(|guess| self.store.is_of(*guess, db, key)) {
            Some(record) => record,
            None => RecordStore::find(self.store, db, key, hash)?,
        };
        let newest = || (self.store.cell(record), self.store.version(record));
        let replaced = self.control.seen(self.store, record, self.reader);
        Some(replaced.map_or_else(newest, |(cell, version)| (self.handed.of(cell), version)))
    }

    fn placement(&self) -> &Placement {
        RecordStore::placement(self.store)
    }

    fn count(&self, db: Db) -> u64 {
        let mut len = self.store.as_of(Epoch::MAX).len(db);
        for (_, _, record, cell) in self.replaced(db, Position::default()) {
            len += u64::from(cell.value.is_some());
            len -= u64::from(self.store.cell(record).value.is_some());
        }
        len
    }

    fn walk(&self, db: Db, from: Position, visit: &mut Visit<'_>) {
        let replaced = self.replaced(db, from);
        let over: Vec<Placed<'_>> =
            replaced.iter().map(|(position, key, _, cell)| (*position, *key, *cell)).collect();
        walk_overlaid(&over, |visit| self.store.as_of(Epoch::MAX).scan(db, from, visit), visit);
    }

    fn digest_of_all(&self) -> Digest {
        if self.control.replaced(self.reader).is_empty() {
            return RecordStore::digest(self.store);
        }
        digest_of(|db, visit| self.walk(db, Position::default(), visit))
    }
}
