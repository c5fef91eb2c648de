//! The router over replicas that each hold all data and execute by themselves: its own replica answers, while all of it
//! can be reached.

use std::collections::BTreeSet;

use ordain_model::{Micros, PartitionId};
use ordain_role::{Address, NodeId, PeerChange, PeerState, ReplicaId, Topology};

use super::peers::Peers;
use super::{Route, Router};
use crate::Owed;

/// The routes of a cluster whose replicas each execute everything that their partitions have ordered.
#[derive(Clone, Debug)]
pub struct ReplicaRouter {
    topology: Topology,
    node: NodeId,
    /// The role that takes transactions, the same number on every node.
    role: u16,
    peers: Peers,
}

impl ReplicaRouter {
    /// The router of a node that has met no other. `role` takes transactions on every node.
    pub fn new(topology: Topology, node: NodeId, role: u16) -> ReplicaRouter {
        ReplicaRouter { topology, node, role, peers: Peers::new(node) }
    }

    /// How long an answer from a node that cannot be reached is waited for. Where others can go on in its place, so
    /// long that it is not taken for dead because it stood still for a moment, and so short that, with the time after
    /// which it counts as lost, nobody waits for more than two seconds.
    pub fn patience(&self) -> Micros {
        Micros::from_millis(if self.topology.replicas > 1 { 1200 } else { 5000 })
    }

    fn is_there(&self, node: NodeId) -> bool {
        self.peers.is_there(node)
    }

    /// The sequencer of a partition, and the replica that answers. That is a whole replica, or else one of which the nodes
    /// can be reached that send these answers: what another node sends before it has been met does not arrive, and nobody
    /// could say then how a request has ended.
    fn sequencer(
        &self,
        home: PartitionId,
        answerers: &mut dyn Iterator<Item = PartitionId>,
    ) -> Option<(NodeId, ReplicaId)> {
        let replica = self.whole().or_else(|| {
            let answerers: BTreeSet<PartitionId> = answerers.collect();
            let reaches = |replica, partition| self.is_there(self.topology.node(replica, partition));
            self.replicas().find(|replica| answerers.iter().all(|partition| reaches(*replica, *partition)))
        })?;
        let own = self.topology.node(self.topology.replica_of(self.node), home);
        let node = [own].into_iter().chain(self.topology.group(home)).find(|node| self.is_there(*node))?;
        Some((node, replica))
    }

    /// The node that says as of which epoch reads are run: this one, or the one in its place in the replica that answers,
    /// which is whole.
    fn reader(&self) -> Option<(NodeId, ReplicaId)> {
        let replica = self.whole()?;
        Some((self.topology.node(replica, self.topology.partition_of(self.node)), replica))
    }

    fn route(&self, (node, replica): (NodeId, ReplicaId)) -> Route {
        Route { to: Address { node, role: self.role }, replica }
    }

    /// The replicas, from the own one on.
    fn replicas(&self) -> impl Iterator<Item = ReplicaId> {
        let (own, count) = (self.topology.replica_of(self.node).0, self.topology.replicas);
        (0..count).map(move |i| ReplicaId((own + i) % count))
    }

    /// The first replica of which every node can be reached.
    fn whole(&self) -> Option<ReplicaId> {
        self.replicas().find(|replica| self.topology.replica(*replica).all(|node| self.is_there(node)))
    }

    fn owed(&self, node: NodeId, is_gone: bool) -> Owed {
        Owed {
            node: node.0,
            replica: self.topology.replica_of(node).0,
            partition: self.topology.partition_of(node),
            is_gone,
            has_members: self.topology.replicas > 1,
        }
    }
}

impl Router for ReplicaRouter {
    fn home(&mut self, home: PartitionId, answerers: &mut dyn Iterator<Item = PartitionId>) -> Option<Route> {
        self.sequencer(home, answerers).map(|route| self.route(route))
    }

    fn snapshot(&mut self) -> Option<Route> {
        self.reader().map(|route| self.route(route))
    }

    fn words(&self, node: NodeId) -> Option<Address> {
        Some(Address { node, role: self.role })
    }

    fn others(&self) -> Vec<NodeId> {
        self.peers.others()
    }

    fn partition_of(&self, node: NodeId) -> PartitionId {
        self.topology.partition_of(node)
    }

    fn is_complete(&self) -> bool {
        let mut partitions = (0..self.topology.layout.partitions()).map(PartitionId);
        partitions.all(|partition| self.topology.group(partition).any(|node| self.is_there(node)))
    }

    fn change(&mut self, now: Micros, change: PeerChange) -> Option<Owed> {
        let PeerChange { node, state } = change;
        match state {
            PeerState::Lost => {
                let was_met = self.peers.lose(now, node);
                let others = self.topology.replicas > 1 && was_met;
                others.then(|| self.owed(node, false))
            }
            PeerState::Back => {
                self.peers.regain(node);
                None
            }
            PeerState::Fresh => {
                self.peers.forget(node);
                None
            }
        }
    }

    fn greeted(&mut self, node: NodeId) -> Option<Owed> {
        // Also at the first meeting: it may have led where something was ordered, and have answered that.
        self.peers.meet(node).then(|| self.owed(node, true))
    }

    fn give_up(&mut self, now: Micros) -> Vec<Owed> {
        let patience = self.patience();
        self.peers.late(now, patience).into_iter().map(|node| self.owed(node, true)).collect()
    }

    fn lacks_any(&self) -> bool {
        self.peers.lacks_any()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::Layout;

    use super::*;

    #[test]
    fn the_own_replica_answers_while_it_can() {
        let layout = Arc::new(Layout::even(2, 1).unwrap());
        let mut router = ReplicaRouter::new(Topology::replicated(layout, 2), NodeId(2), 0);
        let p = PartitionId;
        let change = |router: &mut ReplicaRouter, node, state| {
            router.change(Micros(0), PeerChange { node: NodeId(node), state })
        };
        // What is answered by all partitions.
        let route = |router: &ReplicaRouter, home| {
            let route = router.sequencer(p(home), &mut [p(0), p(1)].into_iter());
            route.map(|(node, replica)| (node.0, replica.0))
        };
        let to = |node, replica| Some((NodeId(node), ReplicaId(replica)));
        assert_eq!((route(&router, 0), route(&router, 1), router.reader()), (None, None, None));
        assert!(!router.is_complete(), "its peer may be there, but has not been met");
        assert_eq!(router.sequencer(p(0), &mut [p(0)].into_iter()), to(2, 1), "this node answers it");
        // It may be that it is not to be reached, and then it is: nothing was sent that it was to answer.
        change(&mut router, 3, PeerState::Lost);
        assert_eq!((route(&router, 0), router.sequencer(p(0), &mut [p(1)].into_iter())), (None, None));
        for node in [0, 1] {
            assert_eq!(change(&mut router, node, PeerState::Fresh), None);
            assert!(router.reader().is_none(), "it may not have met this one");
            assert!(router.greeted(NodeId(node)).is_some_and(|owed| owed.is_gone));
        }
        assert_eq!((route(&router, 0), route(&router, 1)), (Some((2, 0)), Some((1, 0))));
        assert_eq!((router.reader(), router.sequencer(p(0), &mut [p(0)].into_iter())), (to(0, 0), to(2, 0)));
        change(&mut router, 3, PeerState::Fresh);
        assert_eq!(route(&router, 1), Some((1, 0)));
        router.greeted(NodeId(3));
        assert_eq!((route(&router, 1), router.reader()), (Some((3, 1)), to(2, 1)));
        let late = Owed { node: 3, replica: 1, partition: p(1), is_gone: false, has_members: true };
        assert_eq!(change(&mut router, 3, PeerState::Lost), Some(late));
        assert_eq!(route(&router, 1), Some((1, 0)));
        change(&mut router, 1, PeerState::Lost);
        // What is asked for now is held until one of them is back, but for what others answer.
        assert_eq!((route(&router, 0), route(&router, 1), router.is_complete()), (None, None, false));
        assert_eq!(router.sequencer(p(0), &mut [p(0)].into_iter()), to(2, 1));
        let before = Micros(router.patience().0 - 1);
        assert_eq!(router.give_up(before), []);
        let gone = Owed { is_gone: true, ..late };
        let other = Owed { node: 1, replica: 0, ..gone };
        assert_eq!(router.give_up(router.patience()), [other, gone]);
        assert_eq!(router.give_up(router.patience()), []);
        assert_eq!(router.give_up(Micros(u64::MAX)), [other, gone]);
        // One that comes back as it was has lost nothing; one that begins anew has.
        assert_eq!(change(&mut router, 3, PeerState::Back), None);
        assert!(router.is_complete() && router.lacks_any());
        assert_eq!(change(&mut router, 3, PeerState::Fresh), None);
        assert_eq!(change(&mut router, 1, PeerState::Fresh), None);
        assert!(!router.is_complete() && !router.lacks_any());
        assert_eq!((router.greeted(NodeId(3)), router.greeted(NodeId(1))), (Some(gone), Some(other)));
        assert!(router.is_complete());
    }

    #[test]
    fn without_members_nobody_could_do_it_instead() {
        let layout = Arc::new(Layout::even(2, 1).unwrap());
        let mut router = ReplicaRouter::new(Topology::replicated(layout, 1), NodeId(0), 0);
        let mut change = |state| {
            let owed = router.change(Micros(0), PeerChange { node: NodeId(1), state });
            if state == PeerState::Fresh { router.greeted(NodeId(1)) } else { owed }
        };
        assert_eq!((change(PeerState::Fresh).is_some(), change(PeerState::Lost)), (true, None));
        let owed = change(PeerState::Fresh).unwrap();
        assert!(owed.is_gone && !owed.has_members);
    }
}
