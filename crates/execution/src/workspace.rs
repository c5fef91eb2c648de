//! The private workspace of an attempt: what it has written, which no other attempt sees.
//!
//! What an attempt does to whole databases stands in its workspace too, as a list of [`TableChange`]s, and its drafts lie over
//! the outcome: a database then shows the committed records of another one, or none ([`tables`]).

mod tables;

use std::collections::BTreeMap;

use ordain_model::cell::CellMut;
use ordain_model::children::{READ_ONLY_PARENT, change_child};
use ordain_model::table::Table;
use ordain_model::wire::Framed;
use ordain_model::{Cell, Children, Chunk, Db, Gsn, KeyHash, Millis, SlotNo, Txn, Version, codec};
use ordain_store::RecordStore;

use crate::shipped::ShippedRecords;
use crate::step::{Name, Records};
use tables::Sources;
pub use tables::TableChange;

/// A record as a transaction leaves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The record's database.
    pub db: Db,
    /// Its key.
    pub key: Vec<u8>,
    /// Its content; absent if it is deleted.
    pub cell: Cell,
}

codec!(struct Write { db, key, cell as Framed });

/// Records that an attempt has written, by name, over what it has made of whole databases.
#[derive(Debug, Default)]
pub struct Workspace {
    drafts: BTreeMap<(Db, Vec<u8>), Draft>,
    sources: Sources,
}

#[derive(Debug)]
struct Draft {
    cell: Cell,
    /// The version of the content that the draft was made from.
    version: Gsn,
    /// Whether the content differs from what it was made from.
    changed: bool,
}

impl Workspace {
    /// What the attempt has done to whole databases, in order. Its [writes](Workspace::writes) come after it.
    pub fn changes(&self) -> &[TableChange] {
        self.sources.changes()
    }

    /// The records that the attempt has changed and that no later change of a whole database has reached, in order of names.
    pub fn writes(&self) -> Vec<Write> {
        let changed = self.drafts.iter().filter(|(_, draft)| draft.changed);
        changed
            .map(|((db, key), draft)| Write { db: *db, key: key.clone(), cell: draft.cell.clone() })
            .collect()
    }

    /// Whether nothing was changed.
    pub fn is_clean(&self) -> bool {
        self.changes().is_empty() && self.drafts.values().all(|draft| !draft.changed)
    }
}

/// A workspace over the store that it is of: reads see the workspace first, and writes stay in it.
#[derive(Debug)]
pub struct InWorkspace<'a, S> {
    /// The committed records.
    pub store: &'a S,
    /// What the attempt has written.
    pub workspace: &'a mut Workspace,
}

impl<S: RecordStore> InWorkspace<'_, S> {
    /// The committed content that a record shows, expired or not, and its version.
    fn committed(&self, db: Db, key: &[u8], hash: KeyHash) -> (&Cell, Gsn) {
        let source = self.workspace.sources.of(db);
        let found = source.and_then(|source| self.store.find(source, key, hash));
        found.map_or((&Cell::ABSENT, Gsn::NONE), |record| {
            (self.store.cell(record), self.store.version(record))
        })
    }

    /// A record as the attempt sees it at a time, and the version of its content.
    pub fn find(&self, db: Db, key: &[u8], hash: KeyHash, now: Millis) -> (&Cell, Gsn) {
        // Most attempts read before they write.
        let draft = match self.workspace.drafts.is_empty() {
            true => None,
            false => self.workspace.drafts.get(&(db, key.to_vec())),
        };
        let (cell, version) = match draft {
            Some(draft) => (&draft.cell, draft.version),
            None => self.committed(db, key, hash),
        };
        if cell.is_live(now) { (cell, version) } else { (&Cell::ABSENT, Gsn::NONE) }
    }

    /// Gathers copies of the records of compute fragment `n`. Those of other shards are taken from `received`.
    pub fn gather<'c>(
        &self,
        (chunk, txn, n): (&'c Chunk, &Txn, usize),
        now: Millis,
        received: &mut BTreeMap<SlotNo, (Cell, Gsn)>,
        is_here: impl Fn(SlotNo) -> bool,
    ) -> ShippedRecords<'c> {
        ShippedRecords::gather(chunk, txn, n, |slot, name, _| {
            let (cell, version) = match is_here(slot) {
                true => {
                    let (cell, version) = self.find(name.db, name.key, name.hash, now);
                    (cell.clone(), version)
                }
                false => received.remove(&slot).unwrap_or((Cell::ABSENT, Gsn::NONE)),
            };
            (cell, version, 0, None)
        })
    }

    /// Takes in a record as a compute fragment has left it.
    pub fn put(&mut self, db: Db, key: &[u8], hash: KeyHash, cell: Cell) {
        let draft = self.draft(db, key, hash);
        (draft.cell, draft.changed) = (cell, true);
    }

    /// The draft of a record, made from its committed content at first.
    fn draft(&mut self, db: Db, key: &[u8], hash: KeyHash) -> &mut Draft {
        let name = (db, key.to_vec());
        if !self.workspace.drafts.contains_key(&name) {
            let (cell, version) = self.committed(db, key, hash);
            let draft = Draft { cell: cell.clone(), version, changed: false };
            self.workspace.drafts.insert(name.clone(), draft);
        }
        self.workspace.drafts.get_mut(&name).expect("it was inserted above if it was missing")
    }
}

impl Draft {
    /// The record as code that writes it sees it: absent if its time has come.
    fn writable(&mut self, now: Millis) -> (CellMut<'_>, Version) {
        let version = if self.cell.is_live(now) { self.version } else { Gsn::NONE };
        let mut cell = CellMut::new(&mut self.cell, &mut self.changed, None);
        if cell.is_expired(now) {
            cell.delete();
        }
        (cell, version.into())
    }
}

impl<S: RecordStore> Records for InWorkspace<'_, S> {
    fn read<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> R) -> R {
        let (cell, version) = self.find(name.db, name.key, name.hash, now);
        run(cell, version.into())
    }

    fn write<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(CellMut<'_>, Version) -> R) -> R {
        let (cell, version) = self.draft(name.db, name.key, name.hash).writable(now);
        run(cell, version)
    }

    fn read_parent<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(&Cell, Version, &mut dyn Children) -> R,
    ) -> R {
        let (cell, version) = self.find(name.db, name.key, name.hash, now);
        run(cell, version.into(), &mut ReadChildren { records: &*self, parent: name, now })
    }

    fn write_parent<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(CellMut<'_>, Version, &mut dyn Children) -> R,
    ) -> R {
        // The parent's draft is taken out while its children are reached, and is put back below.
        let empty = Draft { cell: Cell::ABSENT, version: Gsn::NONE, changed: false };
        let mut draft = std::mem::replace(self.draft(name.db, name.key, name.hash), empty);
        let (cell, version) = draft.writable(now);
        let mut children = DraftChildren { records: self, parent: name, now };
        let result = run(cell, version, &mut children);
        *self.draft(name.db, name.key, name.hash) = draft;
        result
    }

    fn table<R>(&mut self, run: impl FnOnce(&mut dyn Table) -> R) -> R {
        run(self)
    }
}

/// The children of a record that is read, as the attempt has left them.
struct ReadChildren<'a, 'w, S> {
    records: &'a InWorkspace<'w, S>,
    parent: Name<'a>,
    now: Millis,
}

impl<S: RecordStore> Children for ReadChildren<'_, '_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        let (db, key, hash) = self.parent.child(suffix);
        self.records.find(db, &key, hash, self.now).0
    }

    fn edit(&mut self, _suffix: &[u8], _change: &mut dyn FnMut(&mut CellMut<'_>)) {
        panic!("{READ_ONLY_PARENT}");
    }
}

/// The children of a record that is written, as the attempt has left them.
struct DraftChildren<'a, 'w, S> {
    records: &'a mut InWorkspace<'w, S>,
    parent: Name<'a>,
    now: Millis,
}

impl<S: RecordStore> Children for DraftChildren<'_, '_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        let (db, key, hash) = self.parent.child(suffix);
        self.records.find(db, &key, hash, self.now).0
    }

    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>)) {
        let (db, key, hash) = self.parent.child(suffix);
        change_child(self.records.draft(db, &key, hash).writable(self.now).0, change);
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::Value;
    use ordain_model::key::SLOTS;
    use ordain_store::MemoryStore;

    use super::*;

    #[test]
    fn a_parent_and_its_children_stay_in_the_workspace() {
        let store = MemoryStore::new(0..SLOTS);
        let mut workspace = Workspace::default();
        let mut records = InWorkspace { store: &store, workspace: &mut workspace };
        let name = Name { db: Db(0), key: b"k", hash: KeyHash::of(b"k") };
        let text = |byte: u8| Value::String(vec![byte]);
        records.write_parent(name, Millis(1), |mut cell, _, children| {
            children.edit(b"a", &mut |child| child.put(text(1)));
            assert_eq!(children.read(b"a").string(), Some(&[1][..]));
            cell.put(text(2));
        });
        records.read_parent(name, Millis(1), |cell, version, children| {
            assert_eq!((cell.string(), version), (Some(&[2][..]), Version::NONE));
            assert_eq!(children.read(b"a").string(), Some(&[1][..]));
            assert!(children.read(b"b").value.is_none());
        });
        let written: Vec<Db> = workspace.writes().iter().map(|write| write.db).collect();
        assert_eq!(written, [Db(0), Db(0).children()]);
        assert_eq!(store.records(), 0, "the store is unchanged");
    }
}
