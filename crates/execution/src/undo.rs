//! Undo: the changes that may have to be taken back, of one transaction that may abort, or of all transactions of a speculative
//! batch.

use ordain_model::cell::Journal;
use ordain_model::{Gsn, KeyHash};
use ordain_store::{RecordId, RecordStore};

/// The lock word of a write-locked record: no transaction waits for it, but it was changed and may be undone, or it
/// is shipped, and so keeps its place in the store.
pub const WRITE_LOCKED: u32 = u32::MAX;

/// A journal of changes: their inverses, and the records that they are of.
#[derive(Debug, Default)]
pub struct Undo {
    /// The tag of a change is the place of its record among those touched.
    pub journal: Journal,
    /// The records that were changed.
    pub touched: Vec<Touched>,
    /// The transaction that changes records now, if several share the journal: then a record is noted for each of
    /// them.
    pub writer: Option<Gsn>,
}

/// A record that was changed.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    /// The record.
    pub record: RecordId,
    /// The version before the change.
    pub version: Gsn,
    /// The transaction that changed it, if several share the journal.
    pub by: Gsn,
    /// The key under which the change was planned: that of the record, or of its parent record.
    pub of: KeyHash,
}

impl Undo {
    /// Notes that a record is about to be changed, and keeps its place in the store; returns the tag of its changes.
    pub fn touch(&mut self, store: &mut impl RecordStore, record: RecordId, of: KeyHash) -> u32 {
        if store.lock(record) == 0 {
            // Each record noted is write-locked, or has a lock queue.
            store.set_lock(record, WRITE_LOCKED);
        } else if self.writer.is_none()
            && let Some(at) = self.touched.iter().position(|touched| touched.record == record)
        {
            return at as u32;
        }
        let version = store.version(record);
        self.touched.push(Touched { record, version, by: self.writer.unwrap_or_default(), of });
        self.touched.len() as u32 - 1
    }

    /// Returns whether a record has been noted.
    pub fn holds(&self, record: RecordId) -> bool {
        self.touched.iter().any(|touched| touched.record == record)
    }

    /// Returns whether a write-locked record keeps its place to the end.
    pub fn keeps(&mut self, store: &mut impl RecordStore, record: RecordId, of: KeyHash) -> bool {
        if self.writer.is_some() {
            self.touch(store, record, of);
        }
        self.writer.is_some() || self.holds(record)
    }

    /// Undoes the changes since a mark of the journal, newest first.
    pub fn roll_back(&mut self, store: &mut impl RecordStore, mark: usize) {
        let Undo { journal, touched, .. } = self;
        journal.roll_back(mark, |tag, undo| {
            let Touched { record, version, .. } = touched[tag as usize];
            store.edit(record, version, |cell, changed| {
                undo(cell);
                *changed = true;
            });
        });
    }

    /// Undoes one change, by its place in the journal, and keeps it noted. All later changes of its record must be
    /// undone before.
    pub fn undo_one(&self, store: &mut impl RecordStore, at: usize) {
        let Touched { record, version, .. } = self.touched_by(at);
        store.edit(record, version, |cell, changed| {
            self.journal.undo_at(at, cell);
            *changed = true;
        });
    }

    /// Returns the record of a change, by the change's place in the journal.
    pub fn touched_by(&self, at: usize) -> Touched {
        self.touched[self.journal.tag_at(at) as usize]
    }

    /// Makes the changes final: forgets them, and releases the records but those that another journal keeps in their
    /// place.
    pub fn end(&mut self, store: &mut impl RecordStore, others: Option<&Undo>) {
        let mut absent = Vec::new();
        for Touched { record, .. } in self.touched.drain(..) {
            if store.lock(record) == WRITE_LOCKED && !others.is_some_and(|others| others.holds(record)) {
                store.set_lock(record, 0);
                if store.cell(record).value.is_none() {
                    absent.push(record);
                }
            }
        }
        absent.into_iter().for_each(|record| store.release_if_absent(record));
        self.journal.clear();
    }

    /// Forgets all that is noted.
    pub fn clear(&mut self) {
        self.touched.clear();
        self.journal.clear();
    }
}
