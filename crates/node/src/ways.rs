//! Which node a front door turns to, and which replica is to answer: its own, while all of it can be reached.

use std::collections::{BTreeMap, BTreeSet};

use ordain_gateway::Owed;
use ordain_model::{Micros, PartitionId};
use ordain_role::{NodeId, PeerChange, PeerState, Topology};

/// What a front door knows of the nodes of its cluster.
#[derive(Clone, Debug)]
pub struct Ways {
    topology: Topology,
    node: NodeId,
    /// Nodes with which there is a stream.
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

    fn is_there(&self, node: NodeId) -> bool {
        self.met.contains(&node) && !self.lost.contains_key(&node)
    }

    /// The node whose sequencer orders for a partition; none if there is none that anything could be sent to. Until a node
    /// has met its peers, or knows that it cannot, nothing is sent: an outcome from a peer that it has not met would not
    /// arrive.
    pub fn sequencer(&self, partition: PartitionId) -> Option<NodeId> {
        let mut answering = self.topology.replica(ordain_role::ReplicaId(self.answering()));
        if answering.any(|node| !self.met.contains(&node) && !self.lost.contains_key(&node)) {
            return None;
        }
        let own = self.topology.node(self.topology.replica_of(self.node), partition);
        [own].into_iter().chain(self.topology.group(partition)).find(|node| self.is_there(*node))
    }

    /// The node that is to say as of which epoch reads are run: this one, or the one in its place in the replica that
    /// answers; none until every node of that has been met.
    pub fn reader(&self) -> Option<NodeId> {
        let answering = ordain_role::ReplicaId(self.answering());
        let is_whole = self.topology.replica(answering).all(|node| self.is_there(node));
        is_whole.then(|| self.topology.node(answering, self.topology.partition_of(self.node)))
    }

    /// The replica that is to answer: the first from the own one on of which every node can be reached.
    pub fn answering(&self) -> u16 {
        let own = self.topology.replica_of(self.node).0;
        let mut replicas = (0..self.topology.replicas).map(|i| (own + i) % self.topology.replicas);
        let is_whole = |replica: &u16| {
            self.topology.replica(ordain_role::ReplicaId(*replica)).all(|node| self.is_there(node))
        };
        replicas.find(is_whole).unwrap_or(own)
    }

    /// Whether every partition has a node that can be reached.
    pub fn is_complete(&self) -> bool {
        let mut partitions = (0..self.topology.layout.partitions()).map(PartitionId);
        partitions.all(|partition| self.sequencer(partition).is_some())
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
                // Also at the first meeting: somebody may have been asked for what it was to answer.
                self.met.insert(node);
                Some(self.owed(node, true))
            }
        }
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
            has_twins: self.topology.replicas > 1,
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
        assert_eq!(
            (ways.sequencer(p(0)), ways.sequencer(p(1)), ways.answering()),
            (None, None, 1),
            "its peer may be there, but has not been met"
        );
        assert!(!ways.is_complete());
        for node in [0, 1] {
            assert!(change(&mut ways, node, PeerState::Fresh).is_some_and(|owed| owed.is_gone));
        }
        assert_eq!((ways.sequencer(p(1)), ways.answering()), (Some(NodeId(1)), 0));
        change(&mut ways, 3, PeerState::Fresh);
        assert_eq!((ways.sequencer(p(1)), ways.answering()), (Some(NodeId(3)), 1));
        assert_eq!(ways.reader(), Some(NodeId(2)));
        let late = Owed { node: 3, replica: 1, partition: p(1), is_gone: false, has_twins: true };
        assert_eq!(change(&mut ways, 3, PeerState::Lost), Some(late));
        assert_eq!((ways.sequencer(p(1)), ways.answering()), (Some(NodeId(1)), 0));
        change(&mut ways, 1, PeerState::Lost);
        // What is asked for now is held until one of them is back.
        assert_eq!((ways.sequencer(p(1)), ways.is_complete()), (None, false));
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
        assert_eq!(change(&mut ways, 3, PeerState::Fresh), Some(gone));
        assert_eq!(change(&mut ways, 1, PeerState::Fresh), Some(other));
        assert!(!ways.lacks_any());
    }

    #[test]
    fn without_twins_nobody_could_do_it_instead() {
        let layout = Arc::new(Layout::even(2, 1).unwrap());
        let mut ways = Ways::new(Topology { layout, replicas: 1 }, NodeId(0));
        let mut change = |state| ways.change(Micros(0), PeerChange { node: NodeId(1), state });
        assert_eq!((change(PeerState::Fresh).is_some(), change(PeerState::Lost)), (true, None));
        let owed = change(PeerState::Fresh).unwrap();
        assert!(owed.is_gone && !owed.has_twins);
    }
}
