//! Which node a front door turns to, and which replica is to answer: its own, while all of it can be reached.

use std::collections::{BTreeMap, BTreeSet};

use ordain_gateway::Owed;
use ordain_model::{Micros, PartitionId};
use ordain_role::{NodeId, PeerChange, PeerState, ReplicaId, Topology};

/// What a front door knows of the nodes of its cluster.
#[derive(Clone, Debug)]
pub struct Ways {
    topology: Topology,
    node: NodeId,
    /// Nodes with which there is a stream, as both know.
    met: BTreeSet<NodeId>,
    /// Those of them that have not been reached for a while, and since when, or since they were last given up.
    lost: BTreeMap<NodeId, Micros>,
}

impl Ways {
    /// The ways from a node that has met nobody.
    pub fn new(topology: Topology, node: NodeId) -> Ways {
        Ways { topology, node, met: BTreeSet::from([node]), lost: BTreeMap::new() }
    }

    /// How long an answer from a node that cannot be reached is waited for. Where others can go on in its place, so
    /// long that it is not taken for dead because it stood still for a moment, and so short that, with the time after
    /// which it counts as lost, nobody waits for more than two seconds.
    pub fn patience(&self) -> Micros {
        Micros::from_millis(if self.topology.replicas > 1 { 1200 } else { 5000 })
    }

    /// The other nodes that can be reached.
    pub fn others(&self) -> impl Iterator<Item = NodeId> {
        self.met.iter().copied().filter(|node| *node != self.node && self.is_there(*node))
    }

    /// Which partition a node holds.
    pub fn partition_of(&self, node: NodeId) -> PartitionId {
        self.topology.partition_of(node)
    }

    fn is_there(&self, node: NodeId) -> bool {
        self.met.contains(&node) && !self.lost.contains_key(&node)
    }

    /// Where a chunk goes: the node whose sequencer orders for its home, and the replica that is to answer. That is one that
    /// is whole, or else one of which the nodes can be reached that send these answers: what another node sends before it
    /// has been met does not arrive, and nobody could say then how a request has ended. None if there is none.
    pub fn sequencer(
        &self,
        home: PartitionId,
        answerers: impl Iterator<Item = PartitionId>,
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

    /// The node that is to say as of which epoch reads are run: this one, or the one in its place in the replica that
    /// answers, which is whole; none if none is.
    pub fn reader(&self) -> Option<(NodeId, ReplicaId)> {
        let replica = self.whole()?;
        Some((self.topology.node(replica, self.topology.partition_of(self.node)), replica))
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

    /// Whether every partition has a node that can be reached.
    pub fn is_complete(&self) -> bool {
        let mut partitions = (0..self.topology.layout.partitions()).map(PartitionId);
        partitions.all(|partition| self.topology.group(partition).any(|node| self.is_there(node)))
    }

    /// Takes note of a change, and says what the node may owe by it.
    pub fn change(&mut self, now: Micros, change: PeerChange) -> Option<Owed> {
        let PeerChange { node, state } = change;
        match state {
            PeerState::Lost => {
                self.lost.entry(node).or_insert(now);
                let others = self.topology.replicas > 1 && self.met.contains(&node);
                others.then(|| self.owed(node, false))
            }
            PeerState::Back => {
                self.lost.remove(&node);
                None
            }
            PeerState::Fresh => {
                self.lost.remove(&node);
                self.met.remove(&node);
                None
            }
        }
    }

    /// A node with which a stream has begun has answered over it, and says what it may owe of before. Until now it may not have
    /// met this one, and what it answered to others' word, who had met it, did not arrive.
    pub fn greeted(&mut self, node: NodeId) -> Option<Owed> {
        // Also at the first meeting: it may have led where something was ordered, and have answered that.
        self.met.insert(node).then(|| self.owed(node, true))
    }

    /// Says from which nodes an answer has been waited for too long; and again after as long, for what was asked since.
    pub fn give_up(&mut self, now: Micros) -> Vec<Owed> {
        let patience = self.patience();
        let late = self.lost.iter_mut().filter(|(_, since)| now.since(**since) >= patience);
        let nodes: Vec<NodeId> = late.map(|(node, since)| (*since = now, *node).1).collect();
        nodes.into_iter().map(|node| self.owed(node, true)).collect()
    }

    /// Whether somebody cannot be reached.
    pub fn lacks_any(&self) -> bool {
        !self.lost.is_empty()
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::Layout;

    use super::*;

    #[test]
    fn a_door_turns_to_its_own_replica_while_it_can() {
        let layout = Arc::new(Layout::even(2, 1).unwrap());
        let mut ways = Ways::new(Topology { layout, replicas: 2 }, NodeId(2));
        let p = PartitionId;
        let change =
            |ways: &mut Ways, node, state| ways.change(Micros(0), PeerChange { node: NodeId(node), state });
        // What is answered by all partitions.
        let way = |ways: &Ways, home| {
            let way = ways.sequencer(p(home), [p(0), p(1)].into_iter());
            way.map(|(node, replica)| (node.0, replica.0))
        };
        let to = |node, replica| Some((NodeId(node), ReplicaId(replica)));
        assert_eq!((way(&ways, 0), way(&ways, 1), ways.reader()), (None, None, None));
        assert!(!ways.is_complete(), "its peer may be there, but has not been met");
        assert_eq!(ways.sequencer(p(0), [p(0)].into_iter()), to(2, 1), "this node answers it");
        // It may be that it is not to be reached, and then it is: nothing was sent that it was to answer.
        change(&mut ways, 3, PeerState::Lost);
        assert_eq!((way(&ways, 0), ways.sequencer(p(0), [p(1)].into_iter())), (None, None));
        for node in [0, 1] {
            assert_eq!(change(&mut ways, node, PeerState::Fresh), None);
            assert!(ways.reader().is_none(), "it may not have met this one");
            assert!(ways.greeted(NodeId(node)).is_some_and(|owed| owed.is_gone));
        }
        assert_eq!((way(&ways, 0), way(&ways, 1)), (Some((2, 0)), Some((1, 0))));
        assert_eq!((ways.reader(), ways.sequencer(p(0), [p(0)].into_iter())), (to(0, 0), to(2, 0)));
        change(&mut ways, 3, PeerState::Fresh);
        assert_eq!(way(&ways, 1), Some((1, 0)));
        ways.greeted(NodeId(3));
        assert_eq!((way(&ways, 1), ways.reader()), (Some((3, 1)), to(2, 1)));
        let late = Owed { node: 3, replica: 1, partition: p(1), is_gone: false, has_members: true };
        assert_eq!(change(&mut ways, 3, PeerState::Lost), Some(late));
        assert_eq!(way(&ways, 1), Some((1, 0)));
        change(&mut ways, 1, PeerState::Lost);
        // What is asked for now is held until one of them is back, but for what others answer.
        assert_eq!((way(&ways, 0), way(&ways, 1), ways.is_complete()), (None, None, false));
        assert_eq!(ways.sequencer(p(0), [p(0)].into_iter()), to(2, 1));
        let before = Micros(ways.patience().0 - 1);
        assert_eq!(ways.give_up(before), []);
        let gone = Owed { is_gone: true, ..late };
        let other = Owed { node: 1, replica: 0, ..gone };
        assert_eq!(ways.give_up(ways.patience()), [other, gone]);
        assert_eq!(ways.give_up(ways.patience()), []);
        assert_eq!(ways.give_up(Micros(u64::MAX)), [other, gone]);
        // One that comes back as it was has lost nothing; one that begins anew has.
        assert_eq!(change(&mut ways, 3, PeerState::Back), None);
        assert!(ways.is_complete() && ways.lacks_any());
        assert_eq!(change(&mut ways, 3, PeerState::Fresh), None);
        assert_eq!(change(&mut ways, 1, PeerState::Fresh), None);
        assert!(!ways.is_complete() && !ways.lacks_any());
        assert_eq!((ways.greeted(NodeId(3)), ways.greeted(NodeId(1))), (Some(gone), Some(other)));
        assert!(ways.is_complete());
    }

    #[test]
    fn without_members_nobody_could_do_it_instead() {
        let layout = Arc::new(Layout::even(2, 1).unwrap());
        let mut ways = Ways::new(Topology { layout, replicas: 1 }, NodeId(0));
        let mut change = |state| {
            let owed = ways.change(Micros(0), PeerChange { node: NodeId(1), state });
            if state == PeerState::Fresh { ways.greeted(NodeId(1)) } else { owed }
        };
        assert_eq!((change(PeerState::Fresh).is_some(), change(PeerState::Lost)), (true, None));
        let owed = change(PeerState::Fresh).unwrap();
        assert!(owed.is_gone && !owed.has_members);
    }
}
