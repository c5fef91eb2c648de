//! The committed records that an attempt reads under its workspace.

use ordain_model::table::Table as _;
use ordain_model::value::record_hash;
use ordain_model::{Cell, Db, Digest, Epoch, Gsn, KeyHash, Placement, Position};
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// Committed records as one attempt sees them: nothing changes them while it looks.
pub trait Committed {
    /// The content of a record, expired or not, and its version, where the record is likely the guessed one; `None` if it is absent.
    fn content(&self, guess: Option<RecordId>, db: Db, key: &[u8], hash: KeyHash) -> Option<(&Cell, Gsn)>;

    /// The placement by which the records are hashed.
    fn placement(&self) -> &Placement;

    /// The number of records of a database.
    fn count(&self, db: Db) -> u64;

    /// Shows the records of a database at a position or later in canonical order (position, then key), until `visit` says to stop
    /// with `false`.
    fn walk(&self, db: Db, from: Position, visit: &mut Visit<'_>);

    /// The digest of all records.
    fn digest_of_all(&self) -> Digest;
}

/// A record of a database: its position, its key and its content.
pub type Placed<'a> = (Position, &'a [u8], &'a Cell);

/// Code that is shown records in canonical order, until it says to stop with `false`.
pub type Visit<'a> = dyn FnMut(Position, &[u8], &Cell) -> bool + 'a;

/// Shows the records that `walk` shows, with others laid over them: in place of those of their names, and between them. All are in
/// canonical order. Absent ones are not shown.
pub fn walk_overlaid(over: &[Placed<'_>], walk: impl FnOnce(&mut Visit<'_>), visit: &mut Visit<'_>) {
    let mut left = over.iter().copied().peekable();
    let mut goes_on = true;
    let mut show = |(position, key, cell): Placed<'_>| cell.value.is_none() || visit(position, key, cell);
    walk(&mut |position, key, cell| {
        while goes_on && let Some(before) = left.next_if(|(at, name, _)| (*at, *name) < (position, key)) {
            goes_on = show(before);
        }
        if goes_on {
            let instead = left.next_if(|(at, name, _)| (*at, *name) == (position, key));
            goes_on = show(instead.unwrap_or((position, key, cell)));
        }
        goes_on
    });
    while goes_on && let Some(behind) = left.next() {
        goes_on = show(behind);
    }
}

/// The digest of the records that a walk over each database shows.
pub fn digest_of(mut walk: impl FnMut(Db, &mut Visit<'_>)) -> Digest {
    let mut digest = Digest::default();
    for db in (0..=u8::MAX).map(Db) {
        walk(db, &mut |_, key, cell| {
            if let Some(value) = &cell.value {
                digest.add(record_hash(db, key, value, cell.expires_at));
            }
            true
        });
    }
    digest
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

    fn placement(&self) -> &Placement {
        RecordStore::placement(self)
    }

    fn count(&self, db: Db) -> u64 {
        self.as_of(Epoch::MAX).len(db)
    }

    fn walk(&self, db: Db, from: Position, visit: &mut Visit<'_>) {
        self.as_of(Epoch::MAX).scan(db, from, visit);
    }

    fn digest_of_all(&self) -> Digest {
        RecordStore::digest(self)
    }
}
