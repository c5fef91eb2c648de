//! Runs code on one record in its place in the store, so that its changes can be undone.

use ordain_model::cell::CellMut;
use ordain_model::{Abort, Cell, Db, Fragment, Gsn, KeyHash, Millis, Txn};
use ordain_store::{RecordId, RecordStore, Snapshot};

use super::state::Active;
use super::undo::Undo;

/// Finds the record of a name, likely the guessed one.
#[inline]
pub(super) fn find(
    store: &impl RecordStore,
    guess: Option<RecordId>,
    (db, key, hash): (Db, &[u8], KeyHash),
) -> Option<RecordId> {
    guess.filter(|record| store.is_of(*record, db, key)).or_else(|| store.find(db, key, hash))
}

/// Finds the record of a name, likely the guessed one, or reserves a placeholder for it.
#[inline]
pub(super) fn find_or_reserve(
    store: &mut impl RecordStore,
    guess: Option<RecordId>,
    (db, key, hash): (Db, &[u8], KeyHash),
) -> RecordId {
    let guessed = guess.filter(|record| store.is_of(*record, db, key));
    guessed.unwrap_or_else(|| store.find_or_reserve(db, key, hash))
}

/// Runs code that writes a record, likely the guessed one, in the name of a transaction. The code receives the
/// version before; it knows what else it needs, as a whole context that is handed on would be copied each time.
#[inline]
pub fn write_record<S: RecordStore>(
    store: &mut S,
    guess: Option<RecordId>,
    (db, key, hash): (Db, &[u8], KeyHash),
    (gsn, now): (Gsn, Millis),
    undo: Option<&mut Undo>,
    run: impl FnOnce(CellMut<'_>, Gsn) -> Result<(), Abort>,
) -> Result<(), Abort> {
    let record = find_or_reserve(store, guess, (db, key, hash));
    let version = if store.cell(record).is_live(now) { store.version(record) } else { Gsn::NONE };
    let undo = undo.map(|undo| {
        let tag = undo.touch(store, record, hash);
        (&mut undo.journal, tag)
    });
    let result = store.edit(record, gsn, |cell, changed| {
        let mut cell = CellMut::new(cell, changed, undo);
        if cell.is_expired(now) {
            cell.delete();
        }
        run(cell, version)
    });
    if store.cell(record).value.is_none() {
        store.release_if_absent(record);
    }
    result
}

/// Runs code that reads a record, likely the guessed one.
#[inline]
pub fn read_record<S: RecordStore>(
    store: &S,
    guess: Option<RecordId>,
    name: (Db, &[u8], KeyHash),
    now: Millis,
    run: impl FnOnce(&Cell, Gsn) -> Result<(), Abort>,
) -> Result<(), Abort> {
    let live = |record: &RecordId| store.cell(*record).is_live(now);
    match find(store, guess, name).filter(live) {
        Some(record) => run(store.cell(record), store.version(record)),
        None => run(&Cell::ABSENT, Gsn::NONE),
    }
}

/// Returns the content and version of a record in a past state; absent if its time has come.
#[inline]
pub fn past_of<'a>(state: &'a impl Snapshot, name: (Db, &[u8], KeyHash), now: Millis) -> (&'a Cell, Gsn) {
    past_at(state, None, name, now)
}

/// Returns the content and version of a record in a past state, where it is likely the guessed one.
#[inline]
pub(crate) fn past_at<'a>(
    state: &'a impl Snapshot,
    guess: Option<RecordId>,
    (db, key, hash): (Db, &[u8], KeyHash),
    now: Millis,
) -> (&'a Cell, Gsn) {
    let found = state.find_at(guess, db, key, hash).filter(|(cell, _)| cell.is_live(now));
    found.unwrap_or((&Cell::ABSENT, Gsn::NONE))
}

/// Removes a record whose time has come: a writer makes that final, unless its transaction aborts.
pub(crate) fn drop_expired(
    store: &mut impl RecordStore,
    active: &mut Active,
    (txn, fragment): (&Txn, &Fragment),
    record: RecordId,
) {
    if txn.abortable || active.is_speculative {
        let tag = active.undo.touch(store, record, fragment.hash);
        let journal = &mut active.undo.journal;
        store.edit(record, active.gsn, |cell, changed| {
            CellMut::new(cell, changed, Some((journal, tag))).delete();
        });
    } else {
        store.take(record, active.gsn);
        store.release_if_absent(record);
    }
}
