//! What a fragment that touches no single key may do: the whole table of one shard, or of the oracle.

use crate::cell::Cell;
use crate::digest::Digest;
use crate::ids::{Db, Millis};
use crate::key::Position;

/// What the expiries of some records add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Expiring {
    /// How many records have one.
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

/// Records in canonical order. A shard implements it for its slots; results are combined so that the number
/// of shards does not show.
pub trait Table {
    /// How many records a database has, expired ones that nothing has removed yet included. What lies below them is
    /// in a [database](Db::below) of its own.
    fn len(&self, db: Db) -> u64;

    /// What the expiries of a database's records add up to; those of records that have expired and that nothing has
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

    /// Removes every record of a database, or of all that clients can select, and what lies below them.
    fn clear(&mut self, db: Option<Db>);

    /// Exchanges the contents of two databases, what lies below their records included.
    fn swap(&mut self, a: Db, b: Db);

    /// Removes the records at these positions whose time has come by `now`; returns how many.
    fn expire(&mut self, now: Millis, positions: std::ops::Range<Position>) -> u64;
}
