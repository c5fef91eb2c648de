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

/// How far records have been prefetched along the order.
#[derive(Debug, Default)]
pub struct Prefetch {
    /// The chunk of the first batch, by its place there, that is prefetched; none at the beginning of a batch.
    chunk: Option<usize>,
    /// The prefetch batch that runs; then those of which the values, the records, and the index places are being
    /// fetched.
    batches: [PrefetchBatch; 4],
}

/// A prefetch batch: transactions that follow each other in one chunk.
#[derive(Debug, Default)]
struct PrefetchBatch {
    /// The first, and the one after the last.
    begin: usize,
    end: usize,
    /// Where the guesses of each begin.
    starts: Vec<usize>,
    /// The likely record of each of their fragments, if it is on this shard.
    guesses: Vec<Option<RecordId>>,
}

impl Prefetch {
    /// Begins with the next batch of the order.
    pub fn begin_batch(&mut self) {
        self.chunk = None;
    }

    /// Prefetches the records of the next transactions of a chunk, of those for which `wants` holds, unless that is
    /// done.
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

    /// Runs the next prefetch batch, and takes each of those behind it a step further.
    fn step<S: RecordStore>(&mut self, core: &Core<S>, chunk: &Chunk, wants: impl Fn(&Txn) -> bool) {
        self.batches.rotate_left(1);
        let [_, values, records, indexes] = &mut self.batches;
        indexes.clear(records.end);
        indexes.gather(core, chunk, wants);
        records.find(core, chunk);
        values.guesses.iter().flatten().for_each(|record| core.store.fetch_value(*record));
    }

    /// Returns the likely record of each fragment of the transaction at the cursor, as far as that has been fetched.
    pub fn guesses<S>(&self, core: &Core<S>) -> &[Option<RecordId>] {
        let batch = &self.batches[0];
        let at = core.order.cursor.1.wrapping_sub(batch.begin);
        let Some(begin) = batch.starts.get(at) else { return &[] };
        &batch.guesses[*begin..batch.starts.get(at + 1).copied().unwrap_or(batch.guesses.len())]
    }
}

impl PrefetchBatch {
    /// Empties it, before a transaction.
    fn clear(&mut self, at: usize) {
        (self.begin, self.end) = (at, at);
        self.starts.clear();
        self.guesses.clear();
    }

    /// Takes as many transactions as have enough records together.
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
