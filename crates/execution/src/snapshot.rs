//! Records of a past state: the end of an epoch.

use std::borrow::Cow;
use std::ops::Range;

use ordain_model::cell::CellMut;
use ordain_model::children::READ_ONLY_PARENT;
use ordain_model::table::{Expiring, Table};
use ordain_model::{Cell, Children, Db, Digest, Gsn, Millis, Position, Version};
use ordain_store::{RecordId, Snapshot};

use crate::step::{Name, Records};
use crate::tier::PastValues;

/// The content and version of a record in a past state, where it is likely the guessed one; absent if its time has come. An evicted value
/// is that of `values`.
#[inline]
pub fn past_of<'a>(
    state: &'a impl Snapshot,
    guess: Option<RecordId>,
    name: Name<'_>,
    now: Millis,
    values: &PastValues,
) -> (Cow<'a, Cell>, Gsn) {
    let found = state.find_at(guess, name.db, name.key, name.hash).filter(|(cell, _)| cell.is_live(now));
    let (cell, version) = found.unwrap_or((&Cell::ABSENT, Gsn::NONE));
    (values.with(cell), version)
}

/// Records as of the end of an epoch, which nothing writes.
#[derive(Debug)]
pub struct OnSnapshot<'a, V> {
    /// The state at the end of that epoch.
    pub state: &'a mut V,
    /// The likely record of the name, as prefetching has found it.
    pub guess: Option<RecordId>,
    /// The evicted values that are read.
    pub values: &'a PastValues,
}

/// The plan of a procedure that only reads has no fragment that writes.
const ONLY_READ: &str = "a fragment that writes was run on a snapshot";

impl<V: Snapshot> Records for OnSnapshot<'_, V> {
    #[inline]
    fn read<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> R) -> R {
        let (cell, version) = past_of(&*self.state, self.guess, name, now, self.values);
        run(&cell, version.into())
    }

    fn write<R>(&mut self, _: Name<'_>, _: Millis, _: impl FnOnce(CellMut<'_>, Version) -> R) -> R {
        panic!("{ONLY_READ}");
    }

    #[inline]
    fn read_parent<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(&Cell, Version, &mut dyn Children) -> R,
    ) -> R {
        let state = &*self.state;
        let (cell, version) = past_of(state, self.guess, name, now, self.values);
        run(&cell, version.into(), &mut PastChildren { state, parent: name })
    }

    fn write_parent<R>(
        &mut self,
        _: Name<'_>,
        _: Millis,
        _: impl FnOnce(CellMut<'_>, Version, &mut dyn Children) -> R,
    ) -> R {
        panic!("{ONLY_READ}");
    }

    fn table<R>(&mut self, run: impl FnOnce(&mut dyn Table) -> R) -> R {
        match self.values.is_empty() {
            true => run(self.state),
            false => run(&mut WithValues { state: self.state, values: self.values }),
        }
    }
}

/// A past state whose evicted values are shown.
struct WithValues<'a, V> {
    state: &'a mut V,
    values: &'a PastValues,
}

impl<V: Snapshot> Table for WithValues<'_, V> {
    fn len(&self, db: Db) -> u64 {
        self.state.len(db)
    }

    fn expiring(&self, db: Db) -> Expiring {
        self.state.expiring(db)
    }

    fn digest(&mut self) -> Digest {
        self.state.digest()
    }

    fn scan(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool) {
        self.state.scan(db, from, &mut |at, key, cell| visit(at, key, &self.values.with(cell)));
    }

    fn after(&self, from: Position, records: usize, bytes: usize) -> Position {
        self.state.after(from, records, bytes)
    }

    fn clear(&mut self, db: Option<Db>) {
        self.state.clear(db);
    }

    fn swap(&mut self, a: Db, b: Db) {
        self.state.swap(a, b);
    }

    fn expire(&mut self, now: Millis, positions: Range<Position>) -> u64 {
        self.state.expire(now, positions)
    }
}

/// The children of a parent record of a past state.
struct PastChildren<'a, V> {
    state: &'a V,
    parent: Name<'a>,
}

impl<V: Snapshot> Children for PastChildren<'_, V> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        let (db, key, hash) = self.parent.child(suffix);
        self.state.find(db, &key, hash).map_or(&Cell::ABSENT, |(cell, _)| cell)
    }

    fn edit(&mut self, _suffix: &[u8], _change: &mut dyn FnMut(&mut CellMut<'_>)) {
        panic!("{READ_ONLY_PARENT}");
    }
}
