//! Routing: which node takes what a gateway sends, and which replica answers it.
//!
//! A [`Router`] is a family's knowledge of its cluster, and a [`Dispatcher`] the use that every front door makes of it: it
//! sends what a gateway has, holds what no node takes yet, and gives up what a lost node owes. Sockets, the simulator and
//! the benchmark's clients share both.

mod dispatcher;
mod peers;
mod relay;
mod replicas;

use std::fmt::Debug;

use ordain_model::{Micros, PartitionId};
use ordain_role::{Address, NodeId, PeerChange, ReplicaId};

pub use dispatcher::{Dispatcher, HOLD_FOR};
pub use relay::RelayRouter;
pub use replicas::ReplicaRouter;

use crate::Owed;

/// A node's role that takes transactions, and the replica whose nodes answer them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The role that orders or coordinates.
    pub to: Address,
    /// The replica that answers.
    pub replica: ReplicaId,
}

/// What a front door knows of the nodes of its cluster, by the rules of its engine's family.
pub trait Router: Debug + Send {
    /// The route of transactions with a home partition, whose answers come from the nodes of `answerers`; `None` while no
    /// such node can be reached.
    fn home(&mut self, home: PartitionId, answerers: &mut dyn Iterator<Item = PartitionId>) -> Option<Route>;

    /// The route of reads on a snapshot; `None` while no node can be reached that serves them.
    fn snapshot(&mut self) -> Option<Route>;

    /// The role of a node that takes a gateway's [`Word`](crate::Departure::Word); `None` if that node takes none.
    fn words(&self, node: NodeId) -> Option<Address>;

    /// Takes note of a change of the stream to another node, and answers what that node may owe by it.
    fn change(&mut self, now: Micros, change: PeerChange) -> Option<Owed>;

    /// Takes note that a node has answered this node's greeting, so that each has met the other; answers what the node may
    /// owe of before.
    fn greeted(&mut self, node: NodeId) -> Option<Owed>;

    /// The nodes whose answers have been overdue for too long, each with what it owes. A node is answered once in as long.
    fn give_up(&mut self, now: Micros) -> Vec<Owed>;

    /// Whether a node that has been met cannot be reached.
    fn lacks_any(&self) -> bool;

    /// Whether every partition has a node that can be reached.
    fn is_complete(&self) -> bool;

    /// The other nodes that can be reached, in ascending order.
    fn others(&self) -> Vec<NodeId>;

    /// The partition that a node holds.
    fn partition_of(&self, node: NodeId) -> PartitionId;
}

/// The router of a node on its own: its one role takes everything.
#[derive(Clone, Copy, Debug)]
pub struct AloneRouter(
    /// The role.
    pub Address,
);

impl AloneRouter {
    const fn route(self) -> Route {
        Route { to: self.0, replica: ReplicaId(0) }
    }
}

impl Router for AloneRouter {
    fn home(&mut self, _: PartitionId, _: &mut dyn Iterator<Item = PartitionId>) -> Option<Route> {
        Some(self.route())
    }

    fn snapshot(&mut self) -> Option<Route> {
        Some(self.route())
    }

    fn words(&self, node: NodeId) -> Option<Address> {
        (node == self.0.node).then_some(self.0)
    }

    fn change(&mut self, _: Micros, _: PeerChange) -> Option<Owed> {
        None
    }

    fn greeted(&mut self, _: NodeId) -> Option<Owed> {
        None
    }

    fn give_up(&mut self, _: Micros) -> Vec<Owed> {
        Vec::new()
    }

    fn lacks_any(&self) -> bool {
        false
    }

    fn is_complete(&self) -> bool {
        true
    }

    fn others(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn partition_of(&self, _: NodeId) -> PartitionId {
        PartitionId(0)
    }
}
