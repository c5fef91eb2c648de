//! Whole databases in a workspace: cleared or exchanged, without a copy of what they hold.
//!
//! A cleared database shows nothing of the committed records, and of two that were exchanged each shows those of the other. Drafts
//! go with the database that they are in. So a change of a whole database costs what the drafts in it cost, and the committed
//! records are touched when the attempt commits: then its changes are made to the store in their order, and its drafts after them.

use std::collections::BTreeMap;
use std::ops::Range;

use ordain_model::cell::CellMut;
use ordain_model::table::Table;
use ordain_model::{Db, Digest, Millis, Position, codec};

use crate::committed::{Committed, Placed, Visit, digest_of, walk_overlaid};

use super::{InWorkspace, Workspace};

/// A change of whole databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableChange {
    /// All records of a database and what lies below them are removed; without a name, of all that clients can select.
    Clear(Option<Db>),
    /// Two databases are exchanged, with what lies below their records.
    Swap(Db, Db),
}

codec!(enum TableChange {
    0 => Clear(db),
    1 => Swap(a, b),
});

impl TableChange {
    /// Makes the change to a table.
    pub fn apply(self, table: &mut dyn Table) {
        match self {
            TableChange::Clear(db) => table.clear(db),
            TableChange::Swap(a, b) => table.swap(a, b),
        }
    }
}

/// The committed records that databases show to an attempt.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// The database whose committed records another one shows, or `None` if that shows none. One that is not in here shows
    /// its own.
    shown: BTreeMap<Db, Option<Db>>,
    changes: Vec<TableChange>,
}

impl Sources {
    pub(super) fn changes(&self) -> &[TableChange] {
        &self.changes
    }

    /// The database whose committed records are shown in this one.
    pub(super) fn of(&self, db: Db) -> Option<Db> {
        match self.shown.is_empty() {
            true => Some(db),
            false => self.shown.get(&db).copied().unwrap_or(Some(db)),
        }
    }

    fn swap(&mut self, a: Db, b: Db) {
        let (of_a, of_b) = (self.of(a), self.of(b));
        self.shown.insert(a, of_b);
        self.shown.insert(b, of_a);
    }
}

impl Workspace {
    fn clear(&mut self, db: Option<Db>) {
        let goes = |of: Db| db.map_or(of.home().0 < Db::COUNT, |db| of.home() == db);
        self.drafts.change(|all| all.retain(|draft| !goes(draft.db)));
        (0..=u8::MAX).map(Db).filter(|of| goes(*of)).for_each(|of| _ = self.sources.shown.insert(of, None));
        self.sources.changes.push(TableChange::Clear(db));
    }

    fn swap(&mut self, a: Db, b: Db) {
        if a == b {
            return;
        }
        self.sources.swap(a, b);
        let mut pairs = vec![(a, b)];
        if a.0 < Db::COUNT && b.0 < Db::COUNT {
            self.sources.swap(a.children(), b.children());
            pairs.push((a.children(), b.children()));
        }
        let other = |db: Db| {
            let of = |(a, b): &(Db, Db)| [(*a, *b), (*b, *a)].into_iter().find(|(from, _)| *from == db);
            pairs.iter().find_map(of).map_or(db, |(_, to)| to)
        };
        self.drafts.change(|all| all.iter_mut().for_each(|draft| draft.db = other(draft.db)));
        self.sources.changes.push(TableChange::Swap(a, b));
    }
}

impl<S: Committed> InWorkspace<'_, S> {
    /// The drafts of a database at a position or later, in canonical order.
    fn drafts_of(&self, db: Db, from: Position) -> Vec<Placed<'_>> {
        let drafts = self.workspace.drafts.iter().filter(|draft| draft.db == db);
        let placed = drafts.map(|draft| (draft.hash.position(), draft.key.as_slice(), &draft.cell));
        let mut placed: Vec<_> = placed.filter(|(position, ..)| *position >= from).collect();
        placed.sort_unstable_by(|(at, key, _), (other, next, _)| (at, key).cmp(&(other, next)));
        placed
    }
}

impl<S: Committed> Table for InWorkspace<'_, S> {
    fn len(&self, db: Db) -> u64 {
        let (source, placement) = (self.workspace.sources.of(db), self.store.placement());
        let mut len = source.map_or(0, |source| self.store.count(source));
        for (_, key, cell) in self.drafts_of(db, Position::default()) {
            let is_committed = |source| {
                let found = self.store.content(None, source, key, placement.hash_of_record(db, key));
                found.is_some_and(|(cell, _)| cell.value.is_some())
            };
            len -= u64::from(source.is_some_and(is_committed));
            len += u64::from(cell.value.is_some());
        }
        len
    }

    fn digest(&mut self) -> Digest {
        if self.workspace.is_clean() {
            return self.store.digest_of_all();
        }
        digest_of(|db, visit| self.scan(db, Position::default(), visit))
    }

    fn scan(&self, db: Db, from: Position, visit: &mut Visit<'_>) {
        let walk = |visit: &mut Visit<'_>| {
            if let Some(source) = self.workspace.sources.of(db) {
                self.store.walk(source, from, visit);
            }
        };
        walk_overlaid(&self.drafts_of(db, from), walk, visit);
    }

    fn clear(&mut self, db: Option<Db>) {
        self.workspace.clear(db);
    }

    fn swap(&mut self, a: Db, b: Db) {
        self.workspace.swap(a, b);
    }

    fn expire(&mut self, now: Millis, positions: Range<Position>) -> u64 {
        let mut expired = Vec::new();
        for db in (0..=u8::MAX).map(Db) {
            self.scan(db, positions.start, &mut |position, key, cell| {
                let is_in = position < positions.end;
                expired.extend((is_in && cell.is_expired(now)).then(|| (db, key.to_vec())));
                is_in
            });
        }
        for (db, key) in &expired {
            let place = self.draft(*db, key, self.store.placement().hash_of_record(*db, key));
            let draft = self.workspace.drafts.at_mut(place);
            CellMut::new(&mut draft.cell, &mut draft.changed, None).delete();
        }
        expired.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::key::SLOTS;
    use ordain_model::{Cell, Gsn, KeyHash, Value};
    use ordain_store::{MemoryStore, RecordStore};
    use proptest::prelude::*;

    use super::*;
    use crate::step::{Name, Records};

    const DBS: u8 = 3;

    #[derive(Clone, Debug)]
    enum Op {
        Put(u8, u8, u8),
        Overwrite(u8, u8, u8),
        Delete(u8, u8),
        Child(u8, u8, u8),
        Clear(Option<u8>),
        Swap(u8, u8),
        Expire,
    }

    fn op() -> impl Strategy<Value = Op> {
        let (db, key) = (0..DBS, 0..6_u8);
        prop_oneof![
            4 => (db.clone(), key.clone(), 0..200_u8).prop_map(|(db, key, value)| Op::Put(db, key, value)),
            4 => (db.clone(), key.clone(), 0..200_u8).prop_map(|(db, key, value)| Op::Overwrite(db, key, value)),
            2 => (db.clone(), key.clone()).prop_map(|(db, key)| Op::Delete(db, key)),
            2 => (db.clone(), key, 0..200_u8).prop_map(|(db, key, value)| Op::Child(db, key, value)),
            1 => prop::option::of(db.clone()).prop_map(Op::Clear),
            2 => (db.clone(), db).prop_map(|(a, b)| Op::Swap(a, b)),
            1 => Just(Op::Expire),
        ]
    }

    /// Does it to some records. Values from 100 on expire at once.
    fn run(op: &Op, records: &mut impl Records) {
        let key_of = |key: u8| vec![b'k', key];
        let text = |value: u8| Value::String(vec![value]);
        let put = |mut cell: CellMut<'_>, value| {
            cell.put(text(value));
            cell.set_expiry(if value < 100 { Millis(0) } else { Millis(5) });
        };
        match *op {
            Op::Put(db, key, value) => {
                let key = key_of(key);
                let name = Name { db: Db(db), key: &key, hash: KeyHash::of(&key) };
                records.write(name, Millis(1), |cell, _| put(cell, value));
            }
            Op::Overwrite(db, key, value) => {
                let key = key_of(key);
                let name = Name { db: Db(db), key: &key, hash: KeyHash::of(&key) };
                records.overwrite(name, Millis(1), |cell, _| put(cell, value));
            }
            Op::Delete(db, key) => {
                let key = key_of(key);
                let name = Name { db: Db(db), key: &key, hash: KeyHash::of(&key) };
                records.write(name, Millis(1), |mut cell, _| cell.delete());
            }
            Op::Child(db, key, value) => {
                let key = key_of(key);
                let name = Name { db: Db(db), key: &key, hash: KeyHash::of(&key) };
                records.write_parent(name, Millis(1), |_, _, children| {
                    children.edit(b"c", &mut |child| child.put(text(value)));
                });
            }
            Op::Clear(db) => records.table(|table| table.clear(db.map(Db))),
            Op::Swap(a, b) => records.table(|table| table.swap(Db(a), Db(b))),
            Op::Expire => {
                records.table(|table| _ = table.expire(Millis(9), Position::default()..Position::END))
            }
        }
    }

    type Shown = (u64, Vec<(Position, Vec<u8>, Cell)>);

    fn shown(records: &mut impl Records, from: Position) -> (Vec<Shown>, Digest) {
        let show = |table: &mut dyn Table| {
            let of = |db: Db| {
                let mut list = Vec::new();
                table.scan(db, from, &mut |position, key, cell| {
                    list.push((position, key.to_vec(), cell.clone()));
                    list.len() < 4
                });
                (table.len(db), list)
            };
            let dbs = (0..DBS).map(Db).flat_map(|db| [db, db.children()]);
            (dbs.map(of).collect(), table.digest())
        };
        records.table(show)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A workspace shows what the store would after the same steps, and its redo makes the store that.
        #[test]
        fn a_workspace_is_the_store_as_it_will_be(
            before in prop::collection::vec(op(), 0..12),
            steps in prop::collection::vec(op(), 0..12),
            from in 0..SLOTS,
        ) {
            let (mut committed, mut done) = (MemoryStore::new(0..SLOTS), MemoryStore::new(0..SLOTS));
            for op in &before {
                run(op, &mut crate::InPlace::new(&mut committed, Gsn(1), None));
                run(op, &mut crate::InPlace::new(&mut done, Gsn(1), None));
            }
            let (mut workspace, from) = (Workspace::default(), Position::of_slot(from));
            for op in &steps {
                let mut records = InWorkspace::new(&committed, &mut workspace);
                run(op, &mut records);
                let mut expected = crate::InPlace::new(&mut done, Gsn(2), None);
                run(op, &mut expected);
                prop_assert_eq!(shown(&mut records, from), shown(&mut expected, from), "after {:?}", op);
            }
            let is_clean = workspace.is_clean();
            let (changes, writes) = (workspace.changes().to_vec(), workspace.take_writes());
            prop_assert_eq!(is_clean, changes.is_empty() && writes.is_empty());
            changes.into_iter().for_each(|change| change.apply(&mut committed.table(Gsn(2))));
            for write in writes {
                let record = committed.find_or_reserve(write.db, &write.key, KeyHash::of_record(write.db, &write.key));
                committed.put_back(record, write.cell, Gsn(2));
                committed.release_if_absent(record);
            }
            prop_assert_eq!(committed.digest(), done.digest());
        }
    }
}
