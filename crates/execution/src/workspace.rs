//! The private workspace of an attempt: what it has written, which no other attempt sees.
//!
//! What an attempt does to whole databases stands in its workspace too, as a list of [`TableChange`]s, and its drafts lie over
//! the outcome: a database then shows the committed records of another one, or none ([`tables`]).

#[cfg(test)]
mod blind;
mod drafts;
mod tables;

use std::collections::BTreeMap;

use ordain_model::cell::CellMut;
use ordain_model::children::{READ_ONLY_PARENT, change_child};
use ordain_model::table::Table;
use ordain_model::wire::{Codec, Form, Framed, Reader};
use ordain_model::{Cell, Children, Chunk, Db, Gsn, KeyHash, Millis, Placement, SlotNo, Txn, Version};
use ordain_store::RecordId;

use crate::committed::Committed;
use crate::shipped::ShippedRecords;
use crate::step::{Name, Records};
use drafts::{Draft, Drafts};
use tables::Sources;
pub use tables::TableChange;

/// A record as a transaction leaves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The record's database.
    pub db: Db,
    /// Its key.
    pub key: Vec<u8>,
    /// The hash of its name, which is not in the bytes.
    pub hash: KeyHash,
    /// Its content; absent if it is deleted.
    pub cell: Cell,
}

impl Write {
    /// A record with this content.
    pub fn new(placement: &Placement, db: Db, key: Vec<u8>, cell: Cell) -> Write {
        let hash = placement.hash_of_record(db, &key);
        Write { db, key, hash, cell }
    }
}

impl Codec for Write {
    const LEAST: usize = <(Db, Vec<u8>)>::LEAST + <Framed as Form<Cell>>::LEAST;

    fn encode(&self, out: &mut Vec<u8>) {
        let Write { db, key, hash: _, cell } = self;
        db.encode(out);
        key.encode(out);
        <Framed as Form<Cell>>::encode(cell, out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Write> {
        let (db, key) = Codec::decode(bytes)?;
        let placement = bytes.placement()?;
        Some(Write::new(placement, db, key, <Framed as Form<Cell>>::decode(bytes)?))
    }
}

/// Records that an attempt has written, by name, over what it has made of whole databases.
#[derive(Clone, Debug, Default)]
pub struct Workspace {
    drafts: Drafts,
    sources: Sources,
}

impl Workspace {
    /// What the attempt has done to whole databases, in order. Its [writes](Workspace::take_writes) come after it.
    pub fn changes(&self) -> &[TableChange] {
        self.sources.changes()
    }

    /// Takes out the records that the attempt has changed and that no later change of a whole database has reached, in the order in
    /// which they were first written.
    pub fn take_writes(&mut self) -> Vec<Write> {
        let changed = self.drafts.take().into_iter().filter(|draft| draft.changed);
        changed
            .inspect(|draft| debug_assert!(draft.cell.evicted().is_none(), "a write has its value"))
            .map(|Draft { db, key, hash, cell, .. }| Write { db, key, hash, cell })
            .collect()
    }

    /// The database of which a committed record would be looked at under a name; none if there is a draft, or the name shows no record.
    pub fn looks_at(&self, db: Db, key: &[u8], hash: KeyHash) -> Option<Db> {
        match self.drafts.position(db, key, hash) {
            Some(_) => None,
            None => self.sources.of(db),
        }
    }

    /// Whether nothing was changed.
    pub fn is_clean(&self) -> bool {
        self.changes().is_empty() && self.drafts.iter().all(|draft| !draft.changed)
    }
}

/// A workspace over the store that it is of: reads see the workspace first, and writes stay in it.
#[derive(Debug)]
pub struct InWorkspace<'a, S> {
    /// The committed records.
    pub store: &'a S,
    /// What the attempt has written.
    pub workspace: &'a mut Workspace,
    /// The likely record of the name that is asked for, as its lock has found it.
    pub guess: Option<RecordId>,
}

impl<'a, S: Committed> InWorkspace<'a, S> {
    /// A workspace over a store.
    pub fn new(store: &'a S, workspace: &'a mut Workspace) -> InWorkspace<'a, S> {
        InWorkspace { store, workspace, guess: None }
    }

    /// The committed content that a record shows, expired or not, and its version.
    fn committed(&self, db: Db, key: &[u8], hash: KeyHash) -> (&Cell, Gsn) {
        let source = self.workspace.sources.of(db);
        let found = source.and_then(|source| self.store.content(self.guess, source, key, hash));
        found.unwrap_or((&Cell::ABSENT, Gsn::NONE))
    }

    /// A record as the attempt sees it at a time, and the version of its content.
    pub fn find(&self, db: Db, key: &[u8], hash: KeyHash, now: Millis) -> (&Cell, Gsn) {
        let drafts = &self.workspace.drafts;
        let (cell, version) = match drafts.position(db, key, hash) {
            Some(place) => (&drafts.at(place).cell, self.version(place, now)),
            None => self.committed(db, key, hash),
        };
        if cell.is_live(now) { (cell, version) } else { (&Cell::ABSENT, Gsn::NONE) }
    }

    /// The version of the committed content that a draft takes the place of, or none if the draft is not live at a time.
    fn version(&self, place: usize, now: Millis) -> Gsn {
        let Draft { db, ref key, hash, ref cell, version, .. } = *self.workspace.drafts.at(place);
        match cell.is_live(now) {
            true => version.unwrap_or_else(|| self.committed(db, key, hash).1),
            false => Gsn::NONE,
        }
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
        match self.workspace.drafts.position(db, key, hash) {
            Some(place) => {
                let draft = self.workspace.drafts.at_mut(place);
                (draft.cell, draft.changed) = (cell, true);
            }
            None => self.put_first((db, key, hash), cell),
        }
    }

    /// Makes the first draft of a record, without a look at what is committed.
    fn put_first(&mut self, (db, key, hash): (Db, &[u8], KeyHash), cell: Cell) {
        let draft = Draft { db, hash, key: key.to_vec(), cell, version: None, changed: true };
        self.workspace.drafts.push(draft);
    }

    /// The place of a record's draft, which is made from the committed content at first.
    fn draft(&mut self, db: Db, key: &[u8], hash: KeyHash) -> usize {
        self.workspace.drafts.position(db, key, hash).unwrap_or_else(|| {
            let (cell, version) = self.committed(db, key, hash);
            let (key, cell, version) = (key.to_vec(), cell.clone(), Some(version));
            self.workspace.drafts.push(Draft { db, hash, key, cell, version, changed: false })
        })
    }
}

impl Draft {
    /// The record as code that writes it sees it: absent if its time has come.
    fn writable(&mut self, now: Millis) -> CellMut<'_> {
        let mut cell = CellMut::new(&mut self.cell, &mut self.changed, None);
        if cell.is_expired(now) {
            cell.delete();
        }
        cell
    }
}

impl<S: Committed> Records for InWorkspace<'_, S> {
    fn read<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> R) -> R {
        let (cell, version) = self.find(name.db, name.key, name.hash, now);
        run(cell, version.into())
    }

    fn write<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(CellMut<'_>, Version) -> R) -> R {
        let place = self.draft(name.db, name.key, name.hash);
        let version = self.version(place, now);
        run(self.workspace.drafts.at_mut(place).writable(now), version.into())
    }

    fn overwrite<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(CellMut<'_>, Version) -> R,
    ) -> R {
        if let Some(place) = self.workspace.drafts.position(name.db, name.key, name.hash) {
            return run(self.workspace.drafts.at_mut(place).writable(now), Version::NONE);
        }
        let (mut cell, mut changed) = (Cell::ABSENT, false);
        let result = run(CellMut::new(&mut cell, &mut changed, None), Version::NONE);
        if changed {
            self.put_first((name.db, name.key, name.hash), cell);
        }
        result
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
        let empty = Draft {
            db: name.db,
            hash: name.hash,
            key: name.key.to_vec(),
            cell: Cell::ABSENT,
            version: None,
            changed: false,
        };
        let place = self.draft(name.db, name.key, name.hash);
        let version = self.version(place, now);
        let mut draft = std::mem::replace(self.workspace.drafts.at_mut(place), empty);
        let mut children = DraftChildren { records: self, parent: name, now };
        let result = run(draft.writable(now), version.into(), &mut children);
        *self.workspace.drafts.at_mut(place) = draft;
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

impl<S: Committed> Children for ReadChildren<'_, '_, S> {
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

impl<S: Committed> Children for DraftChildren<'_, '_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        let (db, key, hash) = self.parent.child(suffix);
        self.records.find(db, &key, hash, self.now).0
    }

    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>)) {
        let (db, key, hash) = self.parent.child(suffix);
        let place = self.records.draft(db, &key, hash);
        change_child(self.records.workspace.drafts.at_mut(place).writable(self.now), change);
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::Value;
    use ordain_model::key::SLOTS;
    use ordain_store::{MemoryStore, RecordStore as _};

    use super::*;

    #[test]
    fn a_parent_and_its_children_stay_in_the_workspace() {
        let store = MemoryStore::new(0..SLOTS);
        let mut workspace = Workspace::default();
        let mut records = InWorkspace::new(&store, &mut workspace);
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
        let written: Vec<Db> = workspace.take_writes().iter().map(|write| write.db).collect();
        assert_eq!(written, [Db(0), Db(0).children()]);
        assert_eq!(store.records(), 0, "the store is unchanged");
    }
}
