//! Partitions as regions: each has a server that executes, and sees the others' records as their logs have told of them (regions.md,
//! sections 1 and 4.4).
//!
//! A transaction runs in the region whose server has taken it. Its accesses to records of another region go to a participant of that
//! very node, the *view*: it applies that region's log. Before it commits, the other regions validate what it has read there, and promise
//! what it writes ([`crate::voting`]).

use std::collections::BTreeMap;

use ordain_model::{Abort, PartitionId, Txn};
use ordain_role::Address;

use crate::desk::Site;
use crate::ids::{Lead, Term};

/// The views of a node: the term of each region's log, as far as it is applied here.
#[derive(Clone, Debug, Default)]
pub struct Views(BTreeMap<PartitionId, Term>);

impl Views {
    /// A view goes on with entries of a term; answers whether that is news.
    pub fn note(&mut self, lead: Lead) -> bool {
        let known = self.0.insert(lead.partition, lead.term);
        known != Some(lead.term)
    }

    /// The claim under which a view answers; `None` before it has said so.
    pub fn of(&self, region: PartitionId) -> Option<Lead> {
        Some(Lead { partition: region, term: *self.0.get(&region)? })
    }
}

impl Site {
    /// True if a partition is a region that this node sees from elsewhere.
    pub fn is_foreign(&self, partition: PartitionId) -> bool {
        self.regions.is_some() && partition != self.partition
    }

    /// The number of the participant that holds a slot: its shard's, or that of the view of its region.
    pub fn holder_of(&self, slot: usize) -> usize {
        let shard = self.layout.shard_of(slot);
        match self.layout.partition_of_shard(shard) {
            region if self.is_foreign(region) => self.layout.shards_of(region).start,
            _ => shard,
        }
    }

    /// The role that is the view of a region on this node.
    pub const fn view(&self, region: PartitionId) -> Address {
        self.at(crate::family::VIEWS + region.0)
    }

    /// The reason for which a transaction is refused that concerns several regions; none if it may run.
    pub fn refuses(&self, txn: &Txn) -> Option<Abort> {
        self.regions?;
        (txn.table && self.layout.partitions() > 1).then_some(Abort::RegionsTable)
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::RoMode;

    use super::*;
    use crate::bench::Bench;
    use crate::desk::Regional;

    #[test]
    fn records_of_another_region_are_those_of_its_view() {
        let mut bench = Bench::new(0);
        bench.site.layout = std::sync::Arc::new(ordain_model::Layout::even(2, 3).unwrap());
        let holders = |bench: &Bench| -> std::collections::BTreeSet<usize> {
            (0..ordain_model::key::SLOTS).map(|slot| bench.site.holder_of(slot)).collect()
        };
        assert_eq!(holders(&bench).len(), 6);
        bench.site.regions = Some(Regional { reading: RoMode::Stale, m_retries: 0 });
        assert_eq!(holders(&bench).into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
        bench.tell(|desk| assert_eq!(desk.participant(4), None, "its view has not said anything yet"));
        let lead = Lead { partition: PartitionId(1), term: Term(7) };
        assert!(bench.views.note(lead) && !bench.views.note(lead));
        bench.tell(|desk| {
            assert_eq!(desk.participant(3), Some((desk.site.view(PartitionId(1)), lead)));
        });
    }
}
