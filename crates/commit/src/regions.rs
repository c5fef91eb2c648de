//! Partitions as regions: each has a server that executes, and sees the others' records as their logs have told of them (regions.md,
//! sections 1 and 4.4).
//!
//! A transaction runs in the region whose server has taken it. Its accesses to records of another region go to a participant of that
//! very node, the *view*: it applies that region's log, and lets nobody write.

use std::collections::BTreeMap;

use ordain_model::{Abort, Access, Chunk, Fragment, PartitionId, RoMode, Txn, system};
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

    /// The reason for which a transaction is refused that could write besides reading records of other regions.
    pub fn reads_elsewhere(&self, chunk: &Chunk, txn: &Txn) -> Option<Abort> {
        self.regions?;
        let fragments = chunk.fragments(txn).iter().filter(|fragment| !fragment.is_table());
        let mut partitions = fragments.map(|fragment| self.layout.partition_of(fragment.hash.slot()));
        partitions.any(|of| self.is_foreign(of)).then_some(Abort::RegionsRead)
    }

    /// The reason for which a transaction is refused that touches records of other regions; none if it may run.
    pub fn refuses(&self, chunk: &Chunk, txn: &Txn) -> Option<Abort> {
        let mode = self.regions?;
        if txn.table {
            return (self.layout.partitions() > 1).then_some(Abort::RegionsTable);
        }
        let is_there = |fragment: &&Fragment| self.is_foreign(self.layout.partition_of(fragment.hash.slot()));
        let mut foreign = chunk.fragments(txn).iter().filter(is_there);
        if foreign.any(|fragment| fragment.access == Access::Write) {
            return Some(Abort::RegionsWrite);
        }
        // Evidence is held to the newest version, which is not known here.
        let is_shown = mode == RoMode::Stale && txn.read_only && txn.call.procedure != system::READ;
        self.reads_elsewhere(chunk, txn).filter(|_| !is_shown)
    }
}
