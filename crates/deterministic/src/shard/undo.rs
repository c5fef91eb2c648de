//! Undo: the changes that may have to be taken back, of one transaction that may abort, or of all transactions of a speculative
//! batch.

use ordain_model::cell::Journal;
use ordain_model::{Gsn, KeyHash};
use ordain_store::{RecordId, RecordStore};

/// The lock word of a record that keeps its place although nobody holds a lock on it: it was changed and that may be
/// undone, or it is lent.
pub(crate) const WRITE_LOCKED: u32 = u32::MAX;

/// The inverses of changes, and of which records they are.
#[derive(Debug, Default)]
pub struct Undo {
    /// The tag of a change is the place of its record among those touched.
    pub journal: Journal,
    pub touched: Vec<Touched>,
    /// Whose turn it is, if it is of several transactions in a row: then a record is noted each time.
    pub writer: Option<Gsn>,
}

/// A record that was changed.
#[derive(Clone, Copy, Debug)]
pub struct Touched {
    pub record: RecordId,
    /// Its version before.
    pub version: Gsn,
    /// Who changed it, if there are several.
    pub by: Gsn,
    /// The key under which it was planned: its own, or that of the record above it.
    pub of: KeyHash,
}

impl Undo {
    /// Notes that a record is about to be changed, and keeps its place; answers the tag of its changes.
    pub fn touch(&mut self, store: &mut impl RecordStore, record: RecordId, of: KeyHash) -> u32 {
        if store.lock(record) == 0 {
            // Whatever was touched is pinned or in a queue.
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

    /// Whether a record has been noted.
    pub fn holds(&self, record: RecordId) -> bool {
        self.touched.iter().any(|touched| touched.record == record)
    }

    /// Whether a record that is pinned keeps its place to the end.
    pub fn keeps(&mut self, store: &mut impl RecordStore, record: RecordId, of: KeyHash) -> bool {
        if self.writer.is_some() {
            self.touch(store, record, of);
        }
        self.writer.is_some() || self.holds(record)
    }

    /// Undoes what was changed since a mark of the journal, newest first.
    pub(crate) fn roll_back(&mut self, store: &mut impl RecordStore, mark: usize) {
        let Undo { journal, touched, .. } = self;
        journal.roll_back(mark, |tag, undo| {
            let Touched { record, version, .. } = touched[tag as usize];
            store.edit(record, version, |cell, changed| {
                undo(cell);
                *changed = true;
            });
        });
    }

    /// Undoes one change, and keeps it noted. All later ones of its record must be undone.
    pub fn undo_one(&self, store: &mut impl RecordStore, at: usize) {
        let Touched { record, version, .. } = self.touched_by(at);
        store.edit(record, version, |cell, changed| {
            self.journal.undo_at(at, cell);
            *changed = true;
        });
    }

    /// The record of a change, as it was noted.
    pub fn touched_by(&self, at: usize) -> Touched {
        self.touched[self.journal.tag_at(at) as usize]
    }

    /// What was changed stays: forgets it, and lets the records go but those that somebody else keeps in their place.
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

    /// Forgets what has been noted.
    pub fn clear(&mut self) {
        self.touched.clear();
        self.journal.clear();
    }
}
