//! The records of a queue are on their way before their turns (qstore.md, section 9).
//!
//! A record is three misses, each found by the one before: its place in the index, its line, its value. They are asked for in
//! planning batches, and of each planning batch one step a turn: while a planning batch is run, the values of the next are on their way, the lines of
//! the one after that, and the places of the third. So nothing waits for what it has just asked for, and misses of one
//! step, which follow each other at once, overlap. What the second step has found is kept, so that nobody looks it up again.

use ordain_store::{RecordId, RecordStore};

use super::queues::Entry;

/// How many records make a planning batch (qstore.md, section 6, prefetch distance).
pub(crate) const TOGETHER: usize = 16;
/// Those of all planning batches that are on their way, and of the one that is run.
const UNDER_WAY: usize = 4 * TOGETHER;

/// How far each step has come along a queue.
#[derive(Debug)]
pub(crate) struct QueuePrefetch {
    indexes: usize,
    records: usize,
    values: usize,
    /// The record of a place, by the place modulo their number; likely the right one.
    guesses: [Option<RecordId>; UNDER_WAY],
}

impl Default for QueuePrefetch {
    fn default() -> QueuePrefetch {
        QueuePrefetch { indexes: 0, records: 0, values: 0, guesses: [None; UNDER_WAY] }
    }
}

impl QueuePrefetch {
    /// Another queue is run, from this place on.
    pub(crate) fn begin(&mut self, at: usize) {
        (self.indexes, self.records, self.values) = (at, at, at);
    }

    /// A planning batch of places is run next, from this one on.
    #[inline]
    pub(crate) fn reach(&mut self, store: &impl RecordStore, entries: &[Entry], at: usize) {
        let until = |batches: usize| entries.len().min(at + batches * TOGETHER);
        for entry in &entries[self.indexes..until(4)] {
            store.fetch_index(entry.hash);
        }
        for (place, entry) in (self.records..).zip(&entries[self.records..until(3)]) {
            self.guesses[place % UNDER_WAY] = store.fetch_record(entry.hash);
        }
        for place in self.values..until(2) {
            self.guesses[place % UNDER_WAY].into_iter().for_each(|record| store.fetch_value(record));
        }
        (self.indexes, self.records, self.values) = (until(4), until(3), until(2));
    }

    /// The record that a place is likely for.
    #[inline]
    pub(crate) const fn guess(&self, at: usize) -> Option<RecordId> {
        self.guesses[at % UNDER_WAY]
    }
}
