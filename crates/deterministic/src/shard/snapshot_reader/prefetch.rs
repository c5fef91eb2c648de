//! Prefetching for the snapshot reader: the records of a chunk are fetched in batches, ahead of being read.

use ordain_model::{Chunk, Fragment, KeyHash, Layout};
use ordain_store::{RecordId, RecordStore};

/// The records of a prefetch batch. The wait for each batch is the same, so long ones are better as long as they fit
/// into the first cache: with 24 records each took some 5% longer.
const PREFETCH_BATCH: usize = 48;

/// A prefetch batch: records of a chunk that are fetched together.
#[derive(Debug, Default)]
pub(super) struct PrefetchBatch {
    hashes: Vec<KeyHash>,
    /// The likely record of each, in the order in which they are read.
    guesses: Vec<Option<RecordId>>,
    /// The number of them that have been read.
    read: usize,
    /// The place in the chunk after them: transaction, fragment.
    pub(super) until: (usize, usize),
}

impl PrefetchBatch {
    /// Empties it, before a place of the chunk.
    pub(super) fn begin(&mut self, next: (usize, usize)) {
        self.guesses.clear();
        (self.read, self.until) = (0, next);
    }

    /// Prefetches the next records of a shard from a place of the chunk on, as many as the budget allows.
    pub(super) fn gather(
        &mut self,
        store: &impl RecordStore,
        (chunk, layout): (&Chunk, &Layout),
        (mut next, budget): ((usize, usize), usize),
        number: usize,
    ) {
        let enough = PREFETCH_BATCH.min(budget);
        self.hashes.clear();
        'full: while let Some(txn) = chunk.txns().get(next.0) {
            let only = chunk.only_shard(txn, layout);
            if only.is_none_or(|shard| shard == number) {
                for fragment in &chunk.fragments(txn)[next.1..] {
                    if self.hashes.len() == enough {
                        break 'full;
                    }
                    next.1 += 1;
                    let is_mine = || only.is_some() || layout.shard_of(fragment.hash.slot()) == number;
                    self.hashes.extend(Some(fragment.hash).filter(|_| fragment.is_keyed() && is_mine()));
                }
            }
            next = (next.0 + 1, 0);
        }
        self.begin(next);
        store.guess(self.hashes.iter().copied(), &mut self.guesses);
    }

    /// Returns the likely record that a fragment reads next; `None` if it was not prefetched.
    pub(super) fn next(&mut self, fragment: &Fragment) -> Option<RecordId> {
        let guess = self.guesses.get(self.read)?;
        debug_assert_eq!(
            self.hashes[self.read], fragment.hash,
            "records are read in the order of the prefetch batch"
        );
        self.read += 1;
        *guess
    }
}
