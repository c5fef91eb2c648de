//! The whole table of one shard, or of the oracle, as a fragment without a key sees it.

use crate::cell::Cell;
use crate::digest::Digest;
use crate::ids::{Db, Millis};
use crate::key::Position;

/// The sum of the expiries of some records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiring {
    /// The number of records that expire.
    pub records: u64,
    /// The sum of their times, milliseconds since the Unix epoch.
    pub at_sum_ms: u128,
}

impl Expiring {
    /// Counts a record's expiry, if it has content and one.
    pub fn add(&mut self, cell: &Cell) {
        if cell.value.is_some() && !cell.expires_at.is_never() {
            self.records += 1;
            self.at_sum_ms += u128::from(cell.expires_at.time().0);
        }
    }

    /// Takes out again what [`Expiring::add`] has counted.
    pub fn remove(&mut self, cell: &Cell) {
        if cell.value.is_some() && !cell.expires_at.is_never() {
            self.records -= 1;
            self.at_sum_ms -= u128::from(cell.expires_at.time().0);
        }
    }
}

/// The weight of a record in a piece of a slot, bytes: those of its key and of the image of its cell.
pub fn weight(key: &[u8], cell: &Cell) -> usize {
    key.len() + cell.image_len()
}

/// A piece of a slot, which is to have so many records or bytes.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    records: usize,
    bytes: usize,
    last: Option<Position>,
}

impl Piece {
    /// A piece that takes records until it has so many, or so many bytes.
    pub const fn of(records: usize, bytes: usize) -> Piece {
        Piece { records, bytes, last: None }
    }

    /// True if the next record in canonical order is of the piece. What is at one position stays together.
    pub fn takes(&mut self, position: Position, weight: usize) -> bool {
        let takes = self.records > 0 && self.bytes > 0 || self.last == Some(position);
        if takes {
            self.last = Some(position);
            self.records = self.records.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(weight);
        }
        takes
    }
}

/// Records in canonical order. A shard implements it for its slots; results are combined so that the number
/// of shards does not show.
pub trait Table {
    /// The number of records of a database, expired ones that nothing has removed yet included. What lies below them is
    /// in a [database](Db::children) of its own.
    fn len(&self, db: Db) -> u64;

    /// The sum of the expiries of a database's records; those of records that have expired and that nothing has
    /// removed yet included.
    fn expiring(&self, db: Db) -> Expiring {
        let mut sum = Expiring::default();
        self.scan(db, Position::default(), &mut |_, _, cell| {
            sum.add(cell);
            true
        });
        sum
    }

    /// The digest of the shard's whole state, our own databases included.
    fn digest(&mut self) -> Digest;

    /// Visits the records of `db` at `from` or later, in canonical order (position, then key bytes), until
    /// `visit` says to stop with `false`.
    fn scan(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool);

    /// The position at which a piece of a slot ends that begins at `from`. It has so many records, or so many bytes of keys
    /// and images of cells, whichever comes first; what is at one position stays together. [`Position::END`] if the slot has
    /// no more than that.
    fn after(&self, from: Position, records: usize, bytes: usize) -> Position {
        let mut slot = Vec::new();
        for db in (0..=u8::MAX).map(Db) {
            self.scan(db, from, &mut |position, key, cell| {
                let is_in = position.slot() == from.slot();
                slot.extend(is_in.then(|| (position, weight(key, cell))));
                is_in
            });
        }
        slot.sort_unstable();
        let mut piece = Piece::of(records, bytes);
        slot.into_iter().find(|(at, weight)| !piece.takes(*at, *weight)).map_or(Position::END, |(at, _)| at)
    }

    /// Removes every record of a database, or of all that clients can select, and what lies below them.
    fn clear(&mut self, db: Option<Db>);

    /// Exchanges the contents of two databases, what lies below their records included.
    fn swap(&mut self, a: Db, b: Db);

    /// Removes the records at these positions whose time has come by `now`; returns how many.
    fn expire(&mut self, now: Millis, positions: std::ops::Range<Position>) -> u64;
}
