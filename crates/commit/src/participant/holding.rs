//! The records that a participant holds: those of one shard, or all of a region that it sees from elsewhere.

use std::ops::Range;
use std::sync::Arc;

use ordain_model::{KeyHash, Layout, PartitionId, Placement};

/// See the module. Shards of one partition, in a row.
#[derive(Clone, Debug)]
pub struct Holding {
    layout: Arc<Layout>,
    shards: Range<usize>,
}

impl Holding {
    /// One shard.
    pub const fn of_shard(layout: Arc<Layout>, shard: usize) -> Holding {
        Holding { layout, shards: shard..shard + 1 }
    }

    /// All shards of a partition.
    pub fn of_partition(layout: Arc<Layout>, partition: PartitionId) -> Holding {
        let shards = layout.shards_of(partition);
        Holding { layout, shards }
    }

    /// The number by which coordinators know the participant: that of its first shard.
    pub const fn number(&self) -> usize {
        self.shards.start
    }

    /// The partition.
    pub fn partition(&self) -> PartitionId {
        self.layout.partition_of_shard(self.shards.start)
    }

    /// The number of partitions that there are.
    pub fn partitions(&self) -> u16 {
        self.layout.partitions()
    }

    /// The placement of keys.
    pub fn placement(&self) -> &Placement {
        self.layout.placement()
    }

    /// The slots of the records.
    pub fn slots(&self) -> Range<usize> {
        let of = |shard| self.layout.slots_of_shard(shard);
        of(self.shards.start).start..of(self.shards.end - 1).end
    }

    /// True if a record with this hash is held.
    pub fn has(&self, hash: KeyHash) -> bool {
        self.shards.contains(&self.layout.shard_of(hash.slot()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_of_a_region_holds_what_its_shards_hold() {
        let layout = Arc::new(Layout::even(3, 2).unwrap());
        let whole = Holding::of_partition(layout.clone(), PartitionId(1));
        let shards = [2, 3].map(|shard| Holding::of_shard(layout.clone(), shard));
        assert_eq!((whole.number(), whole.partition()), (2, PartitionId(1)));
        assert_eq!(whole.slots(), shards[0].slots().start..shards[1].slots().end);
        for n in 0..2_000_u32 {
            let hash = KeyHash::of(&n.to_le_bytes());
            let is_there = layout.partition_of(hash.slot()) == PartitionId(1);
            assert_eq!((whole.has(hash), whole.slots().contains(&hash.slot())), (is_there, is_there));
            assert_eq!(shards.iter().filter(|shard| shard.has(hash)).count(), usize::from(is_there));
        }
    }
}
