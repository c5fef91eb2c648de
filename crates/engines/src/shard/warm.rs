//! Records are on their way before the turns of the transactions that use them (calvin.md, section 9 (a)).

use ordain_model::{Chunk, KeyHash, Txn};
use ordain_store::RecordStore;

use super::core::{AHEAD, Core};

/// Up to where in the order records have been fetched.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    /// The place in the first batch: the chunk, and the transaction in it.
    until: (usize, usize),
    hashes: Vec<KeyHash>,
}

impl Warm {
    /// The next batch is the first.
    pub(crate) fn begin_batch(&mut self) {
        self.until = (0, 0);
    }

    /// Has the records of the next transactions of a chunk on their way, of those that `wants` says yes to, unless they are.
    #[inline]
    pub(crate) fn reach<S: RecordStore>(
        &mut self,
        core: &Core<S>,
        chunk: &Chunk,
        wants: impl Fn(&Txn) -> bool,
    ) {
        if core.cursor >= self.until {
            self.fetch(core, chunk, wants);
        }
    }

    fn fetch<S: RecordStore>(&mut self, core: &Core<S>, chunk: &Chunk, wants: impl Fn(&Txn) -> bool) {
        self.hashes.clear();
        self.until = core.cursor;
        for txn in chunk.txns().get(core.cursor.1..).unwrap_or_default() {
            if self.hashes.len() >= AHEAD {
                break;
            }
            if wants(txn) {
                let keyed = chunk.fragments(txn).iter().filter(|f| f.is_keyed() && core.owns(f));
                self.hashes.extend(keyed.take(4 * AHEAD).map(|f| f.hash));
            }
            self.until.1 += 1;
        }
        core.store.prefetch(self.hashes.iter().copied());
    }
}
