//! The committed records that an attempt reads under its workspace.

use ordain_model::table::Table as _;
use ordain_model::{Cell, Db, Digest, Epoch, Gsn, KeyHash, Position};
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// Committed records as one attempt sees them: nothing changes them while it looks.
pub trait Committed {
    /// The content of a record, expired or not, and its version, where the record is likely the guessed one; `None` if it is absent.
    fn content(&self, guess: Option<RecordId>, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)>;

    /// The number of records of a database.
    fn count(&self, db: Db) -> u64;

    /// Shows the records of a database at a position or later in canonical order (position, then key), until `visit` says to stop
    /// with `false`.
    fn walk(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool);

    /// The digest of all records.
    fn digest_of_all(&self) -> Digest;
}

/// The newest contents.
impl Committed for MemoryStore {
    #[inline]
    fn content(&self, guess: Option<RecordId>, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)> {
        let record = match guess.filter(|guess| self.is_of(*guess, db, key)) {
            Some(record) => record,
            None => RecordStore::find(self, db, key, hash)?,
        };
        Some((self.cell(record), self.version(record)))
    }

    fn count(&self, db: Db) -> u64 {
        self.as_of(Epoch::MAX).len(db)
    }

    fn walk(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool) {
        self.as_of(Epoch::MAX).scan(db, from, visit);
    }

    fn digest_of_all(&self) -> Digest {
        RecordStore::digest(self)
    }
}
