//! Routes: which shards take part in a transaction, and which of them need what of it.

use ordain_model::layout::MAX_SHARDS;
use ordain_model::{Chunk, Fragment, Layout, Txn};

/// A set of the shards of a replica, one bit each.
pub type ShardSet = u128;

const _: () = assert!(MAX_SHARDS == ShardSet::BITS as usize);

/// The routes of a transaction: which shards take part and which need what of it; a function of plan and layout.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Shards that own a fragment.
    pub participants: ShardSet,
    /// Shards that own an abortable fragment.
    pub(crate) voters: ShardSet,
    /// The vote recipients: shards that must know the verdict, which are those that write, and the collector.
    pub(crate) vote_recipients: ShardSet,
    /// The collector: the shard that composes the reply (`docs/protocols/calvin.md`, C25).
    pub(crate) collector: usize,
    /// For each fragment, the shards that need its slot or its shipped record. If it aborts, the collector needs its
    /// slot too.
    pub(crate) readers: Vec<ShardSet>,
}

/// Returns the shard that owns a fragment; `None` for a fragment of all shards.
#[inline]
pub fn owner(fragment: &Fragment, layout: &Layout) -> Option<usize> {
    (!fragment.is_table()).then(|| layout.shard_of(fragment.hash.slot()))
}

impl Routes {
    /// Analyses a transaction (phase 1).
    pub(crate) fn analyse(&mut self, chunk: &Chunk, txn: &Txn, layout: &Layout) {
        let all = ShardSet::MAX >> (MAX_SHARDS - layout.shards());
        let fragments = chunk.fragments(txn);
        let set = |fragment: &Fragment| owner(fragment, layout).map_or(all, |shard| 1 << shard);
        let collector = chunk.collector(txn, layout);
        let mut readers = std::mem::take(&mut self.readers);
        readers.clear();
        *self = Routes { participants: 0, voters: 0, vote_recipients: 1 << collector, collector, readers };
        for fragment in fragments {
            let owners = set(fragment);
            self.participants |= owners;
            self.readers.push(if fragment.silent { 0 } else { 1 << collector });
            if fragment.abortable {
                self.voters |= owners;
            }
            if fragment.writes() {
                self.vote_recipients |= owners;
            }
            for slot in chunk.plans().inputs_of(fragment) {
                self.readers[slot.0 as usize] |= owners;
            }
        }
    }
}
