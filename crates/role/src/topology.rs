//! Which nodes make up a cluster, and what each of them holds.
//!
//! A cluster is a grid: every *replica* holds all partitions, one a node. Node (r, p) has number r * P + p. The nodes
//! of one replica are *peers*: they execute transactions together. The nodes that hold the same partition are
//! *members*: they agree on its input (calvin.md, section 0).
//!
//! Where a partition is a region with storage of its own (regions.md, section 2), the first replicas are its *servers*, which
//! execute, and the others its *storage replicas*, which keep its log and nothing else.

use std::fmt;
use std::sync::Arc;

use ordain_model::{Layout, PartitionId};

use crate::NodeId;

/// A full copy of the data, 0..R.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReplicaId(pub u16);

ordain_model::codec!(struct ReplicaId(_));

impl fmt::Display for ReplicaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The grid of a cluster. A node on its own is a cluster of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Which partition and shard owns what; the same in every replica.
    pub layout: Arc<Layout>,
    /// The number of replicas.
    pub replicas: u16,
    /// The number of those that execute transactions: all of them, unless the others keep the log for them.
    pub servers: u16,
}

impl Topology {
    /// A node on its own, with so many threads.
    pub fn single(threads: usize) -> Topology {
        Topology::replicated(Arc::new(Layout::single(threads)), 1)
    }

    /// A cluster with so many replicas, all of which execute transactions.
    pub const fn replicated(layout: Arc<Layout>, replicas: u16) -> Topology {
        Topology { layout, replicas, servers: replicas }
    }

    /// A cluster whose partitions have so many servers and storage replicas each.
    pub const fn regions(layout: Arc<Layout>, servers: u16, storage: u16) -> Topology {
        Topology { layout, replicas: servers + storage, servers }
    }

    /// True if the log of a partition is kept by nodes that do nothing else.
    pub const fn has_storage(&self) -> bool {
        self.servers < self.replicas
    }

    /// The number of nodes.
    pub fn nodes(&self) -> u16 {
        self.replicas * self.layout.partitions()
    }

    /// The node that holds a partition in a replica.
    pub fn node(&self, replica: ReplicaId, partition: PartitionId) -> NodeId {
        NodeId(replica.0 * self.layout.partitions() + partition.0)
    }

    /// The replica of a node.
    pub fn replica_of(&self, node: NodeId) -> ReplicaId {
        ReplicaId(node.0 / self.layout.partitions())
    }

    /// The partition of a node.
    pub fn partition_of(&self, node: NodeId) -> PartitionId {
        PartitionId(node.0 % self.layout.partitions())
    }

    /// The nodes of a replica, in order of their partitions.
    pub fn replica(&self, replica: ReplicaId) -> impl Iterator<Item = NodeId> + use<> {
        let partitions = self.layout.partitions();
        (0..partitions).map(move |partition| NodeId(replica.0 * partitions + partition))
    }

    /// True if a node executes transactions; else it keeps the log of its partition for those that do.
    pub fn is_server(&self, node: NodeId) -> bool {
        self.replica_of(node).0 < self.servers
    }

    /// The nodes that execute transactions of a partition, in order of their replicas.
    pub fn servers_of(&self, partition: PartitionId) -> impl Iterator<Item = NodeId> + use<> {
        self.group(partition).take(usize::from(self.servers))
    }

    /// The nodes that keep the log of a partition and do nothing else, in order of their replicas.
    pub fn storage_of(&self, partition: PartitionId) -> impl Iterator<Item = NodeId> + use<> {
        self.group(partition).skip(usize::from(self.servers))
    }

    /// All nodes that execute transactions, in order.
    pub fn all_servers(&self) -> impl Iterator<Item = NodeId> + use<> {
        (0..self.servers * self.layout.partitions()).map(NodeId)
    }

    /// The nodes that hold a partition, in order of their replicas.
    pub fn group(&self, partition: PartitionId) -> impl Iterator<Item = NodeId> + use<> {
        let partitions = self.layout.partitions();
        (0..self.replicas).map(move |replica| NodeId(replica * partitions + partition.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_found_by_replica_and_partition() {
        let layout = Arc::new(Layout::even(3, 2).unwrap());
        let grid = Topology::replicated(layout.clone(), 2);
        assert_eq!(grid.nodes(), 6);
        for node in (0..6).map(NodeId) {
            assert_eq!(grid.node(grid.replica_of(node), grid.partition_of(node)), node);
        }
        assert_eq!(grid.replica(ReplicaId(1)).collect::<Vec<_>>(), [NodeId(3), NodeId(4), NodeId(5)]);
        assert_eq!(grid.group(PartitionId(2)).collect::<Vec<_>>(), [NodeId(2), NodeId(5)]);
        assert_eq!(Topology::single(4).nodes(), 1);
        assert!(!grid.has_storage() && (0..6).all(|node| grid.is_server(NodeId(node))));
        let regions = Topology::regions(layout, 1, 3);
        assert_eq!((regions.nodes(), regions.has_storage()), (12, true));
        assert_eq!(regions.all_servers().collect::<Vec<_>>(), [NodeId(0), NodeId(1), NodeId(2)]);
        assert_eq!(regions.servers_of(PartitionId(1)).collect::<Vec<_>>(), [NodeId(1)]);
        assert_eq!(regions.storage_of(PartitionId(1)).collect::<Vec<_>>(), [4, 7, 10].map(NodeId));
        assert!(regions.is_server(NodeId(2)) && !regions.is_server(NodeId(3)));
    }
}
