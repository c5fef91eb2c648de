//! A node that has nothing on its disk, and had something.

use ordain_model::PartitionId;
use ordain_role::NodeId;

/// The refusal of a node that has lost what its peers know that it had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this node of partition {partition} has nothing on its disk, and node {} knows that the two have begun together: it has lost \
     what it had, and what clients were told is durable is gone with that: {}", peer.0, self.remedy()
)]
pub struct Emptied {
    /// The partition of the node.
    pub partition: PartitionId,
    /// The peer that knows.
    pub peer: NodeId,
    /// The number of replicas of the cluster.
    pub replicas: u16,
}

impl Emptied {
    fn remedy(&self) -> &'static str {
        match self.replicas {
            1 => {
                "put a copy of its directory in place, restore the whole cluster from its archive (ordain checkpoint restore), or begin a \
                 new cluster with an empty directory on every node"
            }
            _ => {
                "start it with an empty directory and --join, or if no node of its partition has its directory any more, \
                 restore the whole cluster from its archive (ordain checkpoint restore)"
            }
        }
    }
}
