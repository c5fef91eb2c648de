//! The router of nodes on each of which one role takes everything, and finds out who runs it.

use ordain_model::{Micros, PartitionId};
use ordain_role::{Address, NodeId, PeerChange, PeerState, Topology};

use super::peers::Peers;
use super::{Route, Router};
use crate::Owed;

/// The routes of a node that relays: its own role takes and answers all, and keeps what others owe it.
#[derive(Clone, Debug)]
pub struct RelayRouter {
    to: Address,
    topology: Topology,
    peers: Peers,
}

impl RelayRouter {
    /// The router of a node of a cluster that has met no other, and whose role `to` takes everything.
    pub fn new(topology: Topology, to: Address) -> RelayRouter {
        RelayRouter { to, topology, peers: Peers::new(to.node) }
    }

    fn route(&self) -> Route {
        Route { to: self.to, replica: self.topology.replica_of(self.to.node) }
    }
}

impl Router for RelayRouter {
    fn home(&mut self, _: PartitionId, _: &mut dyn Iterator<Item = PartitionId>) -> Option<Route> {
        Some(self.route())
    }

    fn snapshot(&mut self) -> Option<Route> {
        Some(self.route())
    }

    fn words(&self, node: NodeId) -> Option<Address> {
        // A storage node has no such role.
        self.topology.is_server(node).then_some(Address { node, role: self.to.role })
    }

    fn change(&mut self, now: Micros, change: PeerChange) -> Option<Owed> {
        match change.state {
            PeerState::Lost => _ = self.peers.lose(now, change.node),
            PeerState::Back => self.peers.regain(change.node),
            PeerState::Fresh => self.peers.forget(change.node),
        }
        None
    }

    fn greeted(&mut self, node: NodeId) -> Option<Owed> {
        self.peers.meet(node);
        None
    }

    fn give_up(&mut self, _: Micros) -> Vec<Owed> {
        Vec::new()
    }

    fn lacks_any(&self) -> bool {
        self.peers.lacks_any()
    }

    fn is_complete(&self) -> bool {
        // A region serves whoever else is there.
        let alone = self.topology.has_storage().then(|| self.topology.partition_of(self.to.node));
        let mut partitions = (0..self.topology.layout.partitions()).map(PartitionId);
        partitions.all(|partition| {
            let is_needed = alone.is_none_or(|own| own == partition);
            !is_needed || self.topology.servers_of(partition).any(|node| self.peers.is_there(node))
        })
    }

    fn others(&self) -> Vec<NodeId> {
        self.peers.others()
    }

    fn partition_of(&self, node: NodeId) -> PartitionId {
        self.topology.partition_of(node)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::Layout;
    use ordain_role::ReplicaId;

    use super::*;

    #[test]
    fn the_own_role_takes_everything_and_others_are_known() {
        let layout = Arc::new(Layout::even(2, 1).unwrap());
        let to = Address { node: NodeId(0), role: 4 };
        let mut router = RelayRouter::new(Topology::replicated(layout, 1), to);
        let home = router.home(PartitionId(1), &mut std::iter::empty());
        assert_eq!(home, Some(Route { to, replica: ReplicaId(0) }));
        assert_eq!((router.is_complete(), router.others()), (false, vec![]));
        assert_eq!(router.greeted(NodeId(1)), None);
        assert_eq!((router.is_complete(), router.others()), (true, vec![NodeId(1)]));
        let change = |router: &mut RelayRouter, state| {
            assert_eq!(router.change(Micros(0), PeerChange { node: NodeId(1), state }), None);
        };
        change(&mut router, PeerState::Lost);
        assert_eq!((router.is_complete(), router.lacks_any()), (false, true));
        change(&mut router, PeerState::Back);
        assert_eq!((router.is_complete(), router.lacks_any()), (true, false));
        change(&mut router, PeerState::Fresh);
        assert_eq!((router.is_complete(), router.others()), (false, vec![]));
    }
}
