//! The leadership records: what the configuration service has decided on whose entries count for each partition, and which
//! nodes have to be rebuilt.

use std::collections::BTreeMap;

use ordain_model::{Epoch, PartitionId, codec};
use ordain_role::{NodeId, ReplicaId, Topology};

/// The primary of a partition, and the members that may follow it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadershipRecord {
    /// The number of the leadership. What comes from an earlier one is refused.
    pub term: u64,
    /// The node whose entries the members take.
    pub primary: NodeId,
    /// The term's first epoch. What earlier terms have sealed is all before it.
    pub first: Epoch,
    /// A later term that is being prepared: until it is decided, nothing of the partition is taken from any node.
    pub fence: Option<Fence>,
    /// The members that have all that the primary has, but for what is on its way: only they may follow it.
    pub in_sync: Vec<NodeId>,
}

codec!(struct LeadershipRecord { term, primary, first, fence, in_sync });

/// A term that is being prepared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The term's number.
    pub term: u64,
    /// The node that gathers what is left of the terms before, and will be primary.
    pub candidate: NodeId,
}

codec!(struct Fence { term, candidate });

impl LeadershipRecord {
    /// The largest term that there is, decided or not.
    pub fn latest(&self) -> u64 {
        self.fence.map_or(self.term, |fence| fence.term)
    }

    /// The nodes that may be the next primary.
    pub fn heirs(&self) -> impl Iterator<Item = NodeId> {
        std::iter::once(self.primary).chain(self.in_sync.iter().copied())
    }
}

/// The eviction of a node: none of its messages counts before it was rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Eviction {
    /// The last incarnation that is evicted.
    pub incarnation: u64,
    /// Not even its log can be trusted: it may hold entries that were not decided.
    pub without_log: bool,
}

codec!(struct Eviction { incarnation, without_log });

/// A node that has introduced itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The number of times that it was rebuilt.
    pub incarnation: u64,
    /// Which of its lives this is.
    pub life: u64,
}

codec!(struct Arrival { incarnation, life });

/// The decisions of the configuration service, as of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeadershipRecords {
    /// The number of decisions.
    pub version: u64,
    /// The record of each partition.
    pub leadership_records: Vec<LeadershipRecord>,
    /// The nodes that have to be rebuilt, or had to be.
    pub evicted: BTreeMap<NodeId, Eviction>,
    /// The latest introduction of each node.
    pub arrivals: BTreeMap<NodeId, Arrival>,
}

codec!(struct LeadershipRecords { version, leadership_records, evicted, arrivals });

impl LeadershipRecords {
    /// Before the first decision: the first replica has all primaries.
    pub fn new(topology: &Topology) -> LeadershipRecords {
        let leadership_record = |primary| {
            let members = topology.group(topology.partition_of(primary));
            let in_sync = members.filter(|member| *member != primary).collect();
            LeadershipRecord { term: 1, primary, first: Epoch(1), fence: None, in_sync }
        };
        let leadership_records = topology.replica(ReplicaId(0)).map(leadership_record).collect();
        LeadershipRecords {
            version: 0,
            leadership_records,
            evicted: BTreeMap::new(),
            arrivals: BTreeMap::new(),
        }
    }

    /// The leadership record of a partition.
    pub fn of(&self, partition: PartitionId) -> &LeadershipRecord {
        &self.leadership_records[usize::from(partition.0)]
    }

    /// Tells whether a term is being prepared anywhere.
    pub fn is_fenced(&self) -> bool {
        self.leadership_records.iter().any(|leadership_record| leadership_record.fence.is_some())
    }

    /// A number that grows with every term that begins to be prepared, and with every one that is decided.
    pub fn terms(&self) -> u64 {
        self.leadership_records
            .iter()
            .map(|leadership_record| leadership_record.latest() + leadership_record.term)
            .sum()
    }

    /// The eviction of a node in this incarnation, if it is evicted.
    pub fn eviction(&self, node: NodeId, incarnation: u64) -> Option<Eviction> {
        self.evicted.get(&node).copied().filter(|eviction| incarnation <= eviction.incarnation)
    }

    /// Tells whether a node is evicted and was not rebuilt yet.
    pub fn is_out(&self, node: NodeId) -> bool {
        self.eviction(node, self.incarnation_of(node)).is_some()
    }

    /// The last incarnation in which a node has arrived.
    pub fn incarnation_of(&self, node: NodeId) -> u64 {
        self.arrivals.get(&node).map_or(0, |arrival| arrival.incarnation)
    }

    /// The last incarnation in which a node may be by now. An evicted node may have been rebuilt and silent since; but
    /// not twice, as it hears of no eviction before it has arrived.
    pub fn last_incarnation_of(&self, node: NodeId) -> u64 {
        self.incarnation_of(node) + u64::from(self.is_out(node))
    }

    /// Checks that every partition has one of its own nodes as primary and candidate, and others of them in sync.
    ///
    /// # Errors
    /// The contradiction, for the operator.
    pub fn check(&self, topology: &Topology) -> Result<(), String> {
        for (record, partition) in self.leadership_records.iter().zip((0..).map(PartitionId)) {
            let is_member = |node: NodeId| topology.group(partition).any(|member| member == node);
            let is_fit = is_member(record.primary)
                && record.in_sync.iter().all(|node| is_member(*node) && *node != record.primary)
                && record.fence.is_none_or(|fence| is_member(fence.candidate) && fence.term > record.term);
            if !is_fit {
                return Err(format!("the leadership record of partition {partition} cannot be: {record:?}"));
            }
        }
        Ok(())
    }
}
