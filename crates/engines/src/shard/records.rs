//! How code runs on one record, and how what it changes can be undone.

use ordain_model::cell::{CellMut, Journal};
use ordain_model::procedure::Target;
use ordain_model::{Abort, FragmentContext, Gsn, KeyHash, Txn};
use ordain_store::{RecordId, RecordStore};

use super::state::Active;

/// The lock word of a record that an abortable transaction which holds no lock queue has changed, or that is lent: it
/// keeps its place.
pub(crate) const PINNED: u32 = u32::MAX;

/// Notes that an abortable transaction changes a record, and keeps the record's place; answers the journal tag.
pub(crate) fn touch(
    store: &mut impl RecordStore,
    touched: &mut Vec<(RecordId, Gsn)>,
    record: RecordId,
) -> u32 {
    if store.lock(record) == 0 {
        // Whatever it has touched is pinned or in a queue.
        store.set_lock(record, PINNED);
    } else if let Some(at) = touched.iter().position(|(r, _)| *r == record) {
        return at as u32;
    }
    touched.push((record, store.version(record)));
    touched.len() as u32 - 1
}

/// What is noted so that a change can be undone: the inverses, and the records with their versions before.
pub(crate) type Undo<'a> = (&'a mut Journal, &'a mut Vec<(RecordId, Gsn)>);

/// Runs code that writes the record of its key, in the name of a transaction.
#[inline]
pub(crate) fn write_record<S: RecordStore>(
    store: &mut S,
    (hash, gsn): (KeyHash, Gsn),
    undo: Option<Undo<'_>>,
    mut cx: FragmentContext<'_>,
    run: impl FnOnce(&mut FragmentContext<'_>) -> Result<(), Abort>,
) -> Result<(), Abort> {
    let record = store.find_or_reserve(cx.db, cx.key.bytes, hash);
    if store.cell(record).is_live(cx.now) {
        cx.version = store.version(record);
    }
    let undo = undo.map(|(journal, touched)| (journal, touch(store, touched, record)));
    let result = store.edit(record, gsn, |cell, changed| {
        let mut cell = CellMut::new(cell, changed, undo);
        if cell.is_expired(cx.now) {
            cell.delete();
        }
        run(&mut FragmentContext { target: Target::Write(cell), below: None, ..cx })
    });
    store.release_if_absent(record);
    result
}

/// Runs code that reads the record of its key.
#[inline]
pub(crate) fn read_record<'a, S: RecordStore>(
    store: &'a S,
    hash: KeyHash,
    mut cx: FragmentContext<'a>,
    run: impl FnOnce(&mut FragmentContext<'a>) -> Result<(), Abort>,
) -> Result<(), Abort> {
    if let Some(record) = store.find(cx.db, cx.key.bytes, hash) {
        let cell = store.cell(record);
        if cell.is_live(cx.now) {
            cx.target = Target::Read(cell);
            cx.version = store.version(record);
        }
    }
    run(&mut cx)
}

/// Removes a record whose time has come: a writer makes that final, unless its transaction aborts.
pub(crate) fn drop_expired(store: &mut impl RecordStore, active: &mut Active, txn: &Txn, record: RecordId) {
    if txn.abortable {
        let tag = touch(store, &mut active.touched, record);
        let journal = &mut active.journal;
        store.edit(record, active.gsn, |cell, changed| {
            CellMut::new(cell, changed, Some((journal, tag))).delete();
        });
    } else {
        store.take(record, active.gsn);
        store.release_if_absent(record);
    }
}
