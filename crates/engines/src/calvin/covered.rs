//! Covering fragments: their own record, and what lies below it, while they run (calvin.md, section 4.8).
//!
//! A fragment works on its record in place, in the store. A covering one needs the store too, so its record is
//! taken out meanwhile and put home when it is done. What lies below it has no lock and no queue: the lock of
//! the cover is held by whoever gets here. What an abortable transaction has changed there is pinned, like any
//! record that it changes, and stays so while the transaction waits for verdicts from elsewhere.

use ordain_model::cell::{CellMut, Journal};
use ordain_model::cover::{Below, READ_ONLY_COVER, change_covered, covered_key};
use ordain_model::{Abort, Access, Cell, Fragment, FragmentContext, Gsn, KeyHash, Millis, Procedure, Target};
use ordain_store::{RecordId, RecordStore};

use super::rules::{guarded, touch};

/// The transaction that the fragment belongs to.
pub(super) struct Turn<'a> {
    pub(super) gsn: Gsn,
    pub(super) now: Millis,
    /// Where changes are noted, if it may yet abort.
    pub(super) undo: Option<(&'a mut Journal, &'a mut Vec<(RecordId, Gsn)>)>,
}

/// Runs a covering fragment; `cx` has everything but the records.
pub(super) fn run<S: RecordStore>(
    store: &mut S,
    turn: Turn<'_>,
    fragment: &Fragment,
    code: &dyn Procedure,
    cx: FragmentContext<'_>,
) -> Result<(), Abort> {
    let Turn { gsn, now, mut undo } = turn;
    let cover = Cover { key: cx.key.bytes, fragment };
    if fragment.access == Access::Read {
        let record = store.find(fragment.db, cover.key, fragment.hash);
        let live = record.filter(|record| store.cell(*record).is_live(now));
        let (cell, version) = match live {
            Some(record) => (store.cell(record), store.version(record)),
            None => (&Cell::ABSENT, Gsn::NONE),
        };
        let mut below = Reading { store: &*store, cover };
        let target = Target::Read(cell);
        let mut cx = FragmentContext { target, version, below: Some(&mut below), ..cx };
        return guarded(fragment.abortable, || code.run(fragment.code, &mut cx));
    }
    let record = store.find_or_reserve(fragment.db, cover.key, fragment.hash);
    let tag = undo.as_mut().map(|(_, touched)| touch(store, touched, record));
    let (mut content, before) = store.take(record);
    // Both sides note their changes, in turns: the cover's are added to the others at the end, and are changes of
    // another record, so that it does not matter in which order they are undone.
    let (mut changed, mut own) = (false, Journal::default());
    let mut cell = CellMut::new(&mut content, &mut changed, tag.map(|tag| (&mut own, tag)));
    let version = if cell.is_live(now) { before } else { Gsn::NONE };
    if cell.is_expired(now) {
        cell.delete();
    }
    let undo_below = undo.as_mut().map(|(journal, touched)| (&mut **journal, &mut **touched));
    let mut below = Writing { store: &mut *store, cover, gsn, undo: undo_below };
    let target = Target::Write(cell);
    let mut cx = FragmentContext { target, version, below: Some(&mut below), ..cx };
    let result = guarded(fragment.abortable, || code.run(fragment.code, &mut cx));
    store.put_back(record, content, if changed { gsn } else { before });
    if let Some((journal, _)) = undo {
        journal.append(&mut own);
    }
    store.release_if_absent(record);
    result
}

/// A record that others lie below.
#[derive(Clone, Copy)]
struct Cover<'a> {
    key: &'a [u8],
    fragment: &'a Fragment,
}

impl Cover<'_> {
    fn read<'s, S: RecordStore>(&self, store: &'s S, suffix: &[u8]) -> &'s Cell {
        let key = covered_key(self.key, suffix);
        let hash = KeyHash::under(self.fragment.hash, suffix);
        store.find(self.fragment.db.below(), &key, hash).map_or(&Cell::ABSENT, |record| store.cell(record))
    }
}

/// What lies below a record that is read.
struct Reading<'a, S> {
    store: &'a S,
    cover: Cover<'a>,
}

impl<S: RecordStore> Below for Reading<'_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        self.cover.read(self.store, suffix)
    }

    fn edit(&mut self, _suffix: &[u8], _change: &mut dyn FnMut(&mut CellMut<'_>)) {
        panic!("{READ_ONLY_COVER}");
    }
}

/// What lies below a record that is written.
struct Writing<'a, S> {
    store: &'a mut S,
    cover: Cover<'a>,
    gsn: Gsn,
    undo: Option<(&'a mut Journal, &'a mut Vec<(RecordId, Gsn)>)>,
}

impl<S: RecordStore> Below for Writing<'_, S> {
    fn read(&self, suffix: &[u8]) -> &Cell {
        self.cover.read(self.store, suffix)
    }

    fn edit(&mut self, suffix: &[u8], change: &mut dyn FnMut(&mut CellMut<'_>)) {
        let Writing { store, cover: Cover { key, fragment }, gsn, undo } = self;
        let key = covered_key(key, suffix);
        let hash = KeyHash::under(fragment.hash, suffix);
        let record = store.find_or_reserve(fragment.db.below(), &key, hash);
        let note = undo.as_mut().map(|(journal, touched)| {
            let tag = touch(*store, touched, record);
            (&mut **journal, tag)
        });
        store.edit(record, *gsn, |cell, changed| change_covered(CellMut::new(cell, changed, note), change));
        store.release_if_absent(record);
    }
}
