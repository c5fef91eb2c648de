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
    /// Those of them that have not been reached for a while.
    lost: BTreeMap<NodeId, Lost>,
    /// Nodes of other replicas that something was sent to, or that were to answer, in place of their twins here.
    turned_to: BTreeSet<NodeId>,
}

/// A node that cannot be reached.
#[derive(Clone, Copy, Debug)]
struct Lost {
    since: Micros,
    /// What it may owe was given up.
    is_given_up: bool,
}

impl Ways {
    /// How long an answer from a node that cannot be reached is waited for.
    const PATIENCE: Micros = Micros::from_millis(5000);

    /// The ways from a node that has met nobody.
    pub fn new(topology: Topology, node: NodeId) -> Ways {
        let (met, lost, turned_to) = (BTreeSet::from([node]), BTreeMap::new(), BTreeSet::new());
        Ways { topology, node, met, lost, turned_to }
    }

    fn is_there(&self, node: NodeId) -> bool {
        self.met.contains(&node) && !self.lost.contains_key(&node)
    }

    /// The node whose sequencer orders for a partition; none if there is none that anything could be sent to.
    pub fn sequencer(&mut self, partition: PartitionId) -> Option<NodeId> {
        let own = self.topology.node(self.topology.replica_of(self.node), partition);
        if self.is_there(own) {
            return Some(own);
        }
        match self.topology.group(partition).find(|node| self.is_there(*node)) {
            Some(twin) => {
                self.turned_to.insert(twin);
                Some(twin)
            }
            // What is sent now waits for it to be reached again.
            None => self.met.contains(&own).then_some(own),
        }
    }

    /// The replica that is to answer: the first from the own one on of which every node can be reached.
    pub fn answering(&mut self) -> u16 {
        let own = self.topology.replica_of(self.node).0;
        let replicas = (0..self.topology.replicas).map(|i| (own + i) % self.topology.replicas);
        let is_whole = |replica: &u16| {
            self.topology.replica(ordain_role::ReplicaId(*replica)).all(|node| self.is_there(node))
        };
        let answering = replicas.into_iter().find(is_whole).unwrap_or(own);
        if answering != own {
            self.turned_to.extend(self.topology.replica(ordain_role::ReplicaId(answering)));
        }
        answering
    }

    /// Whether every partition has a node that can be reached.
    pub fn is_complete(&self) -> bool {
        let mut partitions = (0..self.topology.layout.partitions()).map(PartitionId);
        partitions.all(|partition| self.topology.group(partition).any(|node| self.is_there(node)))
    }

    /// Takes note of a change, and says from where no answer may come any more to what was asked before.
    pub fn change(&mut self, now: Micros, change: PeerChange) -> Owed {
        let PeerChange { node, state } = change;
        let mut owed = Owed::default();
        match state {
            PeerState::Lost => {
                self.lost.entry(node).or_insert(Lost { since: now, is_given_up: false });
                if self.topology.replicas > 1 && self.met.contains(&node) {
                    owed.late.insert(self.topology.partition_of(node));
                }
            }
            PeerState::Back => _ = self.lost.remove(&node),
            PeerState::Fresh => {
                self.lost.remove(&node);
                let is_own = self.topology.replica_of(node) == self.topology.replica_of(self.node);
                if !self.met.insert(node) {
                    let partition = self.topology.partition_of(node);
                    owed.led.insert(partition);
                    if self.turned_to.remove(&node) || is_own {
                        owed.all.insert(partition);
                    }
                }
            }
        }
        owed
    }

    /// Says from whose partitions an answer has been waited for too long, each time once.
    pub fn give_up(&mut self, now: Micros) -> Owed {
        let mut owed = Owed::default();
        let own = self.topology.replica_of(self.node);
        for (node, lost) in &mut self.lost {
            if !lost.is_given_up && now.since(lost.since) > Ways::PATIENCE {
                lost.is_given_up = true;
                let partition = self.topology.partition_of(*node);
                owed.led.insert(partition);
                if self.topology.replica_of(*node) == own || self.turned_to.contains(node) {
                    owed.all.insert(partition);
                }
            }
        }
        owed
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
            (Some(NodeId(2)), None, 1)
        );
        assert!(!ways.is_complete());
        // The first meeting owes nothing.
        for node in [0, 1, 3] {
            assert!(change(&mut ways, node, PeerState::Fresh).all.is_empty());
        }
        assert_eq!((ways.sequencer(p(1)), ways.answering()), (Some(NodeId(3)), 1));
        change(&mut ways, 3, PeerState::Lost);
        assert_eq!((ways.sequencer(p(1)), ways.answering()), (Some(NodeId(1)), 0));
        change(&mut ways, 1, PeerState::Lost);
        assert_eq!((ways.sequencer(p(1)), ways.is_complete()), (Some(NodeId(3)), false));
        assert!(ways.give_up(Ways::PATIENCE).all.is_empty());
        assert_eq!(ways.give_up(Ways::PATIENCE.plus(Micros(1))).all.only(), Some(p(1)));
        assert_eq!(ways.give_up(Micros(u64::MAX)), Owed::default());
        // One that comes back as it was has lost nothing; one that begins anew has.
        assert!(change(&mut ways, 3, PeerState::Back).all.is_empty());
        assert!(ways.is_complete());
        assert_eq!(change(&mut ways, 3, PeerState::Fresh).all.only(), Some(p(1)));
        assert_eq!(change(&mut ways, 1, PeerState::Fresh).all.only(), Some(p(1)));
        // Nobody has turned to it since.
        assert!(change(&mut ways, 1, PeerState::Fresh).all.is_empty());
        assert_eq!(change(&mut ways, 0, PeerState::Fresh).led.only(), Some(p(0)));
    }
}
