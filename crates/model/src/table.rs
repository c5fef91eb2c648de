//! What a fragment that touches no single key may do: the whole table of one shard, or of the oracle.

use crate::cell::Cell;
use crate::digest::Digest;
use crate::ids::{Db, Millis};
use crate::key::Position;

/// Records in canonical order. A shard implements it for its slots; results are combined so that the number
/// of shards does not show.
pub trait Table {
    /// How many records a database has, expired ones that nothing has removed yet included. What lies below them is
    /// in a [database](Db::below) of its own.
    fn len(&self, db: Db) -> u64;

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
