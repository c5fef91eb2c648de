//! Which nodes make up a cluster, and what each of them holds.
//!
//! A cluster is a grid: every *replica* holds all partitions, one a node. Node (r, p) has number r * P + p. The nodes
//! of one replica are *peers*: they execute transactions together. The nodes that hold the same partition are
//! *members*: they agree on its input (calvin.md, section 0).

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
}

impl Topology {
    /// A node on its own, with so many threads.
    pub fn single(threads: usize) -> Topology {
        Topology { layout: Arc::new(Layout::single(threads)), replicas: 1 }
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
        let grid = Topology { layout, replicas: 2 };
        assert_eq!(grid.nodes(), 6);
        for node in (0..6).map(NodeId) {
            assert_eq!(grid.node(grid.replica_of(node), grid.partition_of(node)), node);
        }
        assert_eq!(grid.replica(ReplicaId(1)).collect::<Vec<_>>(), [NodeId(3), NodeId(4), NodeId(5)]);
        assert_eq!(grid.group(PartitionId(2)).collect::<Vec<_>>(), [NodeId(2), NodeId(5)]);
        assert_eq!(Topology::single(4).nodes(), 1);
    }
}
