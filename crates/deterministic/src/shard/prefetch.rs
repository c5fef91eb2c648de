//! Prefetching along the order: the records of transactions are brought into the cache before they are started
//! (`docs/protocols/calvin.md`, section 4.15).
//!
//! A record costs three cache misses, each found by the one before: its place in the index, its line, its value. They are
//! fetched for *prefetch batches* of some transactions, one step for each batch at a time: while one batch runs, the values of
//! the next are fetched, the lines of the one after that, and the index places of the third. So no step waits for what it
//! has just asked for, and the misses of one step overlap. The record that the second step finds is kept with the
//! transaction as a guess, so that it is not looked up again.

use ordain_model::{Chunk, Fragment, Txn};
use ordain_store::{RecordId, RecordStore};

use super::core::{AHEAD, Core};

/// Up to where in the order records have been fetched.
#[derive(Debug, Default)]
pub struct Prefetch {
    /// Which chunk of the first batch, if there is one.
    chunk: Option<usize>,
    /// What is run; then that of which the values are on their way; the records; the places in the index.
    batches: [PrefetchBatch; 4],
}

/// Transactions that follow each other.
#[derive(Debug, Default)]
struct PrefetchBatch {
    /// The first, and the one after the last.
    begin: usize,
    end: usize,
    /// Where the guesses of each begin.
    starts: Vec<usize>,
    /// What is likely the record of each of their fragments, if it is here.
    guesses: Vec<Option<RecordId>>,
}

impl Prefetch {
    /// The next batch is the first.
    pub fn begin_batch(&mut self) {
        self.chunk = None;
    }

    /// Has the records of the next transactions of a chunk on their way, of those that `wants` says yes to, unless they are.
    #[inline]
    pub fn reach<S: RecordStore>(&mut self, core: &Core<S>, chunk: &Chunk, wants: impl Fn(&Txn) -> bool) {
        let (number, at) = core.order.cursor;
        if self.chunk != Some(number) {
            self.chunk = Some(number);
            self.batches.iter_mut().for_each(|batch| batch.clear(at));
        }
        while at >= self.batches[0].end {
            self.step(core, chunk, &wants);
        }
    }

    /// The next lot is run, and each of those behind it is a step further.
    fn step<S: RecordStore>(&mut self, core: &Core<S>, chunk: &Chunk, wants: impl Fn(&Txn) -> bool) {
        self.batches.rotate_left(1);
        let [_, values, records, indexes] = &mut self.batches;
        indexes.clear(records.end);
        indexes.gather(core, chunk, wants);
        records.find(core, chunk);
        values.guesses.iter().flatten().for_each(|record| core.store.fetch_value(*record));
    }

    /// What is likely the record of each fragment of the transaction at the cursor, as far as that has been fetched.
    pub fn guesses<S>(&self, core: &Core<S>) -> &[Option<RecordId>] {
        let batch = &self.batches[0];
        let at = core.order.cursor.1.wrapping_sub(batch.begin);
        let Some(begin) = batch.starts.get(at) else { return &[] };
        &batch.guesses[*begin..batch.starts.get(at + 1).copied().unwrap_or(batch.guesses.len())]
    }
}

impl PrefetchBatch {
    /// Nothing, before some transaction.
    fn clear(&mut self, at: usize) {
        (self.begin, self.end) = (at, at);
        self.starts.clear();
        self.guesses.clear();
    }

    /// As many transactions as have enough records together.
    fn gather<S: RecordStore>(&mut self, core: &Core<S>, chunk: &Chunk, wants: impl Fn(&Txn) -> bool) {
        let mut count = 0;
        for txn in chunk.txns().get(self.end..).unwrap_or_default() {
            if count >= AHEAD {
                break;
            }
            self.starts.push(self.guesses.len());
            self.end += 1;
            let is_elsewhere =
                || chunk.only_shard(txn, core.maps.now()).is_some_and(|shard| shard != core.site.number);
            if wants(txn) && !is_elsewhere() {
                for fragment in chunk.fragments(txn).iter().take(4 * AHEAD) {
                    if is_here(core, fragment) {
                        core.store.fetch_index(fragment.hash);
                        count += 1;
                    }
                    self.guesses.push(None);
                }
            }
        }
    }

    fn find<S: RecordStore>(&mut self, core: &Core<S>, chunk: &Chunk) {
        for (n, txn) in chunk.txns()[self.begin..self.end].iter().enumerate() {
            let end = self.starts.get(n + 1).copied().unwrap_or(self.guesses.len());
            let guesses = &mut self.guesses[self.starts[n]..end];
            for (guess, fragment) in guesses.iter_mut().zip(chunk.fragments(txn)) {
                if is_here(core, fragment) {
                    *guess = core.store.fetch_record(fragment.hash);
                }
            }
        }
    }
}

fn is_here<S: RecordStore>(core: &Core<S>, fragment: &Fragment) -> bool {
    fragment.is_keyed() && core.owns(fragment)
}
