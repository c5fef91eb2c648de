//! Prefetching along a queue: the records of its places are brought into the cache before they are run (`docs/protocols/qstore.md`,
//! Q6).
//!
//! A record costs three cache misses, each found by the one before: its place in the index, its line, its value. They are
//! fetched for *prefetch batches* of 16 places, one step for each batch at a time: while one batch runs, the values of
//! the next are fetched, the lines of the one after that, and the index places of the third. So no step waits for what it has
//! just asked for, and the misses of one step overlap. The record that the second step finds is kept as a guess, so that it is
//! not looked up again.

use ordain_store::{RecordId, RecordStore};

use super::queues::Entry;

/// The records of a prefetch batch.
pub(crate) const TOGETHER: usize = 16;
/// The records of all prefetch batches that are being fetched, and of the one that is run.
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
    /// Begins with another queue, from a place on.
    pub(crate) fn begin(&mut self, at: usize) {
        (self.indexes, self.records, self.values) = (at, at, at);
    }

    /// Takes each step further: the prefetch batch of places from `at` on is run next.
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

    /// Returns the likely record of a place.
    #[inline]
    pub(crate) const fn guess(&self, at: usize) -> Option<RecordId> {
        self.guesses[at % UNDER_WAY]
    }
}
