//! Parent records: fragments that reach child records below their own record (`docs/protocols/calvin.md`, C32).
//!
//! A fragment works on its record in place, in the store. One that reaches child records needs the store as well, so its own
//! record is taken out meanwhile and put back when it is done. Child records have no lock and no queue: the lock of the parent
//! stands for them. A child that an abortable transaction has changed is write-locked like any record that it changes, and
//! stays so while the transaction waits for verdicts.

use ordain_model::cell::{CellMut, Journal};
use ordain_model::children::{Children, READ_ONLY_PARENT, change_child, child_key};
use ordain_model::{Abort, Access, Cell, Fragment, FragmentContext, Gsn, KeyHash, Millis, Procedure, Target};
use ordain_store::{RecordId, RecordStore, Snapshot};

use super::core::guarded;
use super::records::{find, find_or_reserve, past_of};
use super::undo::Undo;

/// The transaction in whose name records are written.
pub(super) struct Writer<'a> {
    pub(super) gsn: Gsn,
    pub(super) now: Millis,
    /// The journal of changes, if they may be undone.
    pub(super) undo: Option<&'a mut Undo>,
}

/// Runs a fragment that reaches child records, on the parent record that is likely the guessed one; `cx` has
/// everything but the records.
pub(super) fn run<S: RecordStore>(
    (store, guess): (&mut S, Option<RecordId>),
    writer: Writer<'_>,
    fragment: &Fragment,
    code: &dyn Procedure,
    cx: FragmentContext<'_>,
) -> Result<(), Abort> {
    let Writer { gsn, now, mut undo } = writer;
    let parent = Parent { key: cx.key.bytes, fragment };
    if fragment.access == Access::Read {
        let record = find(store, guess, (fragment.db, parent.key, fragment.hash));
        let live = record.filter(|record| store.cell(*record).is_live(now));
        let (cell, version) = match live {
            Some(record) => (store.cell(record), store.version(record)),
            None => (&Cell::ABSENT, Gsn::NONE),
        };
        let mut children = ReadChildren { store: &*store, parent };
        let target = Target::Read(cell);
        let mut cx = FragmentContext { target, version: version.into(), children: Some(&mut children), ..cx };
        return guarded(fragment.abortable, || code.run(fragment.code, &mut cx));
    }
    let record = find_or_reserve(store, guess, (fragment.db, parent.key, fragment.hash));
    let tag = undo.as_mut().map(|undo| undo.touch(store, record, fragment.hash));
    let (mut content, before) = store.take(record, gsn);
    // Parent and children note their changes in two journals: those of the parent are appended at the end. They are
    // of different records, so the order in which they are undone does not matter.
    let (mut changed, mut own) = (false, Journal::default());
    let mut cell = CellMut::new(&mut content, &mut changed, tag.map(|tag| (&mut own, tag)));
    let version = if cell.is_live(now) { before } else { Gsn::NONE };
    if cell.is_expired(now) {
        cell.delete();
    }
    let mut children = WrittenChildren { store: &mut *store, parent, gsn, undo: undo.as_deref_mut() };
    let target = Target::Write(cell);
    let mut cx = FragmentContext { target, version: version.into(), children: Some(&mut children), ..cx };
    let result = guarded(fragment.abortable, || code.run(fragment.code, &mut cx));
    store.put_back(record, content, if changed { gsn } else { before });
    if let Some(undo) = undo {
        undo.journal.append(&mut own);
    }
    store.release_if_absent(record);
    result
}

/// Runs a fragment that reads a record of a past state, and its child records if it reaches them.
pub(super) fn read_past(
    state: &impl Snapshot,
    fragment: &Fragment,
    code: &dyn Procedure,
    cx: FragmentContext<'_>,
) -> Result<(), Abort> {
    let mut children = PastChildren::new(state, cx.key.bytes, fragment);
    let children = fragment.with_children.then_some(&mut children as &mut dyn Children);
    let (cell, version) = past_of(state, (fragment.db, cx.key.bytes, fragment.hash), cx.now);
    let mut cx = FragmentContext { target: Target::Read(cell), version: version.into(), children, ..cx };
    guarded(fragment.abortable, || code.run(fragment.code, &mut cx))
}

/// A parent record, by key and fragment.
#[derive(Clone, Copy)]
struct Parent<'a> {
    key: &'a [u8],
    fragment: &'a Fragment,
}

impl Parent<'_> {
    fn read<'s, S: RecordStore>(&self, store: &'s S, suffix: &[u8]) -> &'s Cell {
        let key = child_key(self.key, suffix);
        let hash = KeyHash::child(self.fragment.hash, suffix);
        store.find(self.fragment.db.children(), &key, hash).map_or(&Cell::ABSENT, |record| store.cell(record))
    }
}

/// The children of a parent record that is read.
struct ReadChildren<'a, S> {
    store: &'a S,
    parent: Parent<'a>,
}

impl<S: RecordStore> Children for ReadChildren<'_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        self.parent.read(self.store, suffix)
    }

    fn edit(&mut self, _suffix: &[u8], _change: &mut dyn FnMut(&mut CellMut<'_>)) {
        panic!("{READ_ONLY_PARENT}");
    }
}

/// The children of a parent record of a past state.
pub(crate) struct PastChildren<'a, V> {
    state: &'a V,
    parent: Parent<'a>,
}

impl<'a, V> PastChildren<'a, V> {
    pub(crate) const fn new(state: &'a V, key: &'a [u8], fragment: &'a Fragment) -> PastChildren<'a, V> {
        PastChildren { state, parent: Parent { key, fragment } }
    }
}

impl<V: Snapshot> Children for PastChildren<'_, V> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        let Parent { key, fragment } = self.parent;
        let (key, hash) = (child_key(key, suffix), KeyHash::child(fragment.hash, suffix));
        self.state.find(fragment.db.children(), &key, hash).map_or(&Cell::ABSENT, |(cell, _)| cell)
    }

    fn edit(&mut self, _suffix: &[u8], _change: &mut dyn FnMut(&mut CellMut<'_>)) {
        panic!("{READ_ONLY_PARENT}");
    }
}

/// The children of a parent record that is written.
struct WrittenChildren<'a, S> {
    store: &'a mut S,
    parent: Parent<'a>,
    gsn: Gsn,
    undo: Option<&'a mut Undo>,
}

impl<S: RecordStore> Children for WrittenChildren<'_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        self.parent.read(self.store, suffix)
    }

    fn expect(&self, suffix: &[u8]) {
        self.store.fetch_index(KeyHash::child(self.parent.fragment.hash, suffix));
    }

    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>)) {
        let WrittenChildren { store, parent: Parent { key, fragment }, gsn, undo } = self;
        let key = child_key(key, suffix);
        let hash = KeyHash::child(fragment.hash, suffix);
        let record = store.find_or_reserve(fragment.db.children(), &key, hash);
        let note = undo.as_mut().map(|undo| {
            let tag = undo.touch(*store, record, fragment.hash);
            (&mut undo.journal, tag)
        });
        store.edit(record, *gsn, |cell, changed| change_child(CellMut::new(cell, changed, note), change));
        store.release_if_absent(record);
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::args::encode;
    use ordain_model::key::SLOTS;
    use ordain_model::procedure::{Inputs, Locals};
    use ordain_model::serial::key_of;
    use ordain_model::{Args, Db, PlanError, Planner, ProcedureId, Registry, Value};
    use ordain_store::MemoryStore;

    use super::*;

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
        let bytes = encode(&args);
        let args = Args::parse(&bytes).unwrap();
        let mut plans = ordain_model::plan::Plans::default();
        Planner::plan(&registry, ProcedureId(1), Db(0), args, &mut plans).unwrap();
        let fragment = &plans.fragments[0];
        let cx = FragmentContext {
            args,
            db: Db(0),
            key: key_of(args, fragment),
            now: Millis(1),
            seed: 0,
            version: ordain_model::Version::NONE,
            inputs: Inputs::none(),
            target: Target::Read(&Cell::ABSENT),
            children: None,
            locals: &mut Locals::default(),
            registry: &registry,
            share: registry.limits().carried,
            most: registry.limits().reply,
            out: &mut Vec::new(),
        };
        let mut noted = Undo::default();
        let writer = Writer { gsn, now: Millis(1), undo: undo.then_some(&mut noted) };
        run((store, None), writer, fragment, &Exchange, cx).unwrap();
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
