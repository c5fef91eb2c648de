//! Records in their places in the store, changed so that the changes can be undone.
//!
//! A fragment works on its record in place. One that reaches child records needs the store as well, so its own record is
//! taken out meanwhile and put back when it is done. Child records have no lock and no queue: the lock of the parent
//! stands for them (`docs/protocols/calvin.md`, C32). A child that an abortable transaction has changed is write-locked
//! like any record that it changes, and stays so while the transaction waits for verdicts.

use ordain_model::cell::{CellMut, Journal};
use ordain_model::children::{READ_ONLY_PARENT, change_child};
use ordain_model::table::Table;
use ordain_model::{Cell, Children, Gsn, KeyHash, Millis, Version};
use ordain_store::{RecordId, RecordStore};

use crate::step::{Name, Records};
use crate::undo::Undo;

/// The records of a store, for one fragment of a transaction.
#[derive(Debug)]
pub struct InPlace<'a, S> {
    /// The store.
    pub store: &'a mut S,
    /// The likely record of the name, as prefetching has found it.
    pub guess: Option<RecordId>,
    /// The transaction: the version of what it writes.
    pub by: Gsn,
    /// Where changes are noted, if they may have to be undone.
    pub undo: Option<&'a mut Undo>,
    /// By how much the [weight](Cell::weight) of the record written last has changed, bytes; not counted for a parent record.
    pub changed_bytes: usize,
}

impl<'a, S: RecordStore> InPlace<'a, S> {
    /// The records of a store, none of them guessed.
    #[inline]
    pub fn new(store: &'a mut S, by: Gsn, undo: Option<&'a mut Undo>) -> InPlace<'a, S> {
        InPlace { store, guess: None, by, undo, changed_bytes: 0 }
    }

    /// The same where the record is likely the guessed one.
    #[inline]
    #[must_use]
    pub fn guessing(self, guess: Option<RecordId>) -> InPlace<'a, S> {
        InPlace { guess, ..self }
    }

    /// Removes a record whose time has come. That is final unless the transaction aborts.
    pub fn drop_expired(&mut self, record: RecordId, of: KeyHash) {
        let InPlace { store, by, undo, .. } = self;
        match undo {
            Some(undo) => {
                let tag = undo.touch(*store, record, of);
                let journal = &mut undo.journal;
                store.edit(record, *by, |cell, changed| {
                    CellMut::new(cell, changed, Some((journal, tag))).delete();
                });
            }
            None => {
                store.take(record, *by);
                store.release_if_absent(record);
            }
        }
    }

    #[inline]
    fn find(&self, name: Name<'_>, now: Millis) -> (&Cell, Version) {
        let guessed = self.guess.filter(|record| self.store.is_of(*record, name.db, name.key));
        let found = guessed.or_else(|| self.store.find(name.db, name.key, name.hash));
        match found.filter(|record| self.store.cell(*record).is_live(now)) {
            Some(record) => (self.store.cell(record), self.store.version(record).into()),
            None => (&Cell::ABSENT, Version::NONE),
        }
    }

    #[inline]
    fn find_or_reserve(&mut self, name: Name<'_>) -> RecordId {
        let guessed = self.guess.filter(|record| self.store.is_of(*record, name.db, name.key));
        guessed.unwrap_or_else(|| self.store.find_or_reserve(name.db, name.key, name.hash))
    }
}

impl<S: RecordStore> Records for InPlace<'_, S> {
    #[inline]
    fn read<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(&Cell, Version) -> R) -> R {
        let (cell, version) = self.find(name, now);
        run(cell, version)
    }

    #[inline]
    fn write<R>(&mut self, name: Name<'_>, now: Millis, run: impl FnOnce(CellMut<'_>, Version) -> R) -> R {
        let record = self.find_or_reserve(name);
        let InPlace { store, by, undo, changed_bytes, .. } = self;
        let version = if store.cell(record).is_live(now) { store.version(record) } else { Gsn::NONE };
        let note = undo.as_mut().map(|undo| {
            let tag = undo.touch(*store, record, name.hash);
            (&mut undo.journal, tag)
        });
        let result = store.edit(record, *by, |cell, changed| {
            let mut cell = CellMut::new(cell, changed, note);
            if cell.is_expired(now) {
                cell.delete();
            }
            let before = cell.weight();
            let result = run(cell.reborrow(), version.into());
            *changed_bytes = cell.weight().abs_diff(before);
            result
        });
        if store.cell(record).value.is_none() {
            store.release_if_absent(record);
        }
        result
    }

    fn read_parent<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(&Cell, Version, &mut dyn Children) -> R,
    ) -> R {
        let (cell, version) = self.find(name, now);
        run(cell, version, &mut ReadChildren { store: &*self.store, parent: name })
    }

    fn write_parent<R>(
        &mut self,
        name: Name<'_>,
        now: Millis,
        run: impl FnOnce(CellMut<'_>, Version, &mut dyn Children) -> R,
    ) -> R {
        let record = self.find_or_reserve(name);
        let InPlace { store, by, undo, .. } = self;
        let by = *by;
        let tag = undo.as_mut().map(|undo| undo.touch(*store, record, name.hash));
        let (mut content, before) = store.take(record, by);
        // Parent and children note their changes in two journals: those of the parent are appended at the end. They are
        // of different records, so the order in which they are undone does not matter.
        let (mut changed, mut own) = (false, Journal::default());
        let mut cell = CellMut::new(&mut content, &mut changed, tag.map(|tag| (&mut own, tag)));
        let version = if cell.is_live(now) { before } else { Gsn::NONE };
        if cell.is_expired(now) {
            cell.delete();
        }
        let mut children =
            WrittenChildren { store: &mut **store, parent: name, by, undo: undo.as_deref_mut() };
        let result = run(cell, version.into(), &mut children);
        store.put_back(record, content, if changed { by } else { before });
        if let Some(undo) = undo {
            undo.journal.append(&mut own);
        }
        store.release_if_absent(record);
        result
    }

    fn table<R>(&mut self, run: impl FnOnce(&mut dyn Table) -> R) -> R {
        run(&mut self.store.table(self.by))
    }
}

fn read_child<'s, S: RecordStore>(store: &'s S, parent: Name<'_>, suffix: &[u8]) -> &'s Cell {
    let (db, key, hash) = parent.child(suffix);
    store.find(db, &key, hash).map_or(&Cell::ABSENT, |record| store.cell(record))
}

/// The children of a parent record that is read.
struct ReadChildren<'a, S> {
    store: &'a S,
    parent: Name<'a>,
}

impl<S: RecordStore> Children for ReadChildren<'_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        read_child(self.store, self.parent, suffix)
    }

    fn edit(&mut self, _suffix: &[u8], _change: &mut dyn FnMut(&mut CellMut<'_>)) {
        panic!("{READ_ONLY_PARENT}");
    }
}

/// The children of a parent record that is written.
struct WrittenChildren<'a, S> {
    store: &'a mut S,
    parent: Name<'a>,
    by: Gsn,
    undo: Option<&'a mut Undo>,
}

impl<S: RecordStore> Children for WrittenChildren<'_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        read_child(self.store, self.parent, suffix)
    }

    fn expect(&self, suffix: &[u8]) {
        self.store.fetch_index(self.parent.child_hash(suffix));
    }

    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>)) {
        let WrittenChildren { store, parent, by, undo } = self;
        let (db, key, hash) = parent.child(suffix);
        let record = store.find_or_reserve(db, &key, hash);
        let note = undo.as_mut().map(|undo| {
            let tag = undo.touch(*store, record, parent.hash);
            (&mut undo.journal, tag)
        });
        store.edit(record, *by, |cell, changed| change_child(CellMut::new(cell, changed, note), change));
        store.release_if_absent(record);
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::children::child_key;
    use ordain_model::key::SLOTS;
    use ordain_model::procedure::Locals;
    use ordain_model::{
        Abort, Access, Args, Call, Chunk, ChunkNo, Db, FragmentContext, GatewayId, PlanError, Planner,
        Procedure, ProcedureId, Registry, Value,
    };
    use ordain_store::MemoryStore;

    use super::*;
    use crate::{NO_SLOTS, Step};

    /// Writes a child record, and removes another. Arguments: key, child to write, child to remove.
    struct Exchange;

    impl Procedure for Exchange {
        fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
            planner.key(0, Access::Write, args.iter().next().ok_or(PlanError::SYNTAX)?)?;
            planner.with_children();
            Ok(())
        }

        fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
            let (new, old) = (cx.args.get(1).unwrap_or_default(), cx.args.get(2).unwrap_or_default());
            cx.children().edit(new, &mut |cell| cell.put(Value::String(vec![7; 40])));
            cx.children().edit(old, &mut |cell| cell.delete());
            let count = 1 + cx.cell().string().map_or(0, |bytes| bytes[0]);
            cx.cell_mut().put(Value::String(vec![count]));
            Ok(())
        }
    }

    /// Runs one, and answers what it has touched.
    fn exchange(store: &mut MemoryStore, gsn: Gsn, undo: bool, args: [&str; 3]) -> Undo {
        let mut registry = Registry::default();
        registry.register(ProcedureId(1), "exchange", std::sync::Arc::new(Exchange));
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        let call = Call::new(ProcedureId(1), Db(0));
        chunk.push(&registry, call, |out| args.iter().for_each(|arg| _ = out.push(arg.as_bytes()))).unwrap();
        let txn = &chunk.txns()[0];
        let step =
            Step { registry: &registry, chunk: &chunk, txn, n: 0, now: Millis(1), seed: 0, slots: NO_SLOTS };
        let mut noted = Undo::default();
        let mut records = InPlace::new(store, gsn, undo.then_some(&mut noted));
        step.run(&mut records, &mut Locals::default(), &mut Vec::new()).unwrap();
        noted
    }

    fn names(store: &MemoryStore) -> Vec<(Db, Vec<u8>, Gsn)> {
        let mut names = Vec::new();
        store.visit(Default::default(), |entry| {
            names.push((entry.db, entry.key.to_vec(), entry.version));
            true
        });
        names.sort();
        names
    }

    #[test]
    fn what_is_gone_leaves_no_place_behind() {
        let mut store = MemoryStore::new(0..SLOTS);
        exchange(&mut store, Gsn(1), false, ["k", "an entry with a long name", "another"]);
        let one = store.memory();
        exchange(&mut store, Gsn(2), false, ["k", "an entry with a long nome", "an entry with a long name"]);
        assert_eq!(store.memory(), one, "places are used again");
        let entry = child_key(b"k", b"an entry with a long nome").to_vec();
        assert_eq!(names(&store), [(Db(0), b"k".to_vec(), Gsn(2)), (Db(0).children(), entry, Gsn(2))]);
        assert_eq!(store.digest(), store.recompute_digest());
    }

    #[test]
    fn what_may_be_undone_keeps_its_place_and_can_be() {
        let mut store = MemoryStore::new(0..SLOTS);
        exchange(&mut store, Gsn(1), false, ["k", "a", ""]);
        let (digest, before) = (store.digest(), names(&store));
        let mut undo = exchange(&mut store, Gsn(2), true, ["k", "b", "a"]);
        assert_eq!(undo.touched.len(), 3);
        assert!(undo.touched.iter().all(|touched| store.lock(touched.record) != 0), "each has its place");
        assert_ne!(store.digest(), digest);
        undo.roll_back(&mut store, 0);
        assert_eq!((store.digest(), names(&store)), (digest, before));
        assert_eq!(store.recompute_digest(), digest);
    }
}
