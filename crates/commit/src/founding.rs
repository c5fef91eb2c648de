//! The first meeting of partitions with one member each: their nodes begin together, once.
//!
//! A node with nothing on its disk is new, or has lost what it had; it cannot tell which. In the second case it must not serve: its
//! partition would be empty, and what it had promised would be denied. But its peers can tell (decision 54). So it asks all of them,
//! and serves nobody until it knows:
//!
//! 1. it *asks* until every peer has answered, and none that it is founded; then it logs [`Content::Meet`] of [`Met::Ready`];
//! 2. it is *ready*, until every peer is ready, or one is founded; then it logs [`Met::Founded`];
//! 3. it is *founded*, until every peer is; then it serves.
//!
//! No client is served before all nodes are founded, and each node knows that it is after any crash. A node that asks, and is told that
//! a peer is founded, has therefore lost its disk, and stops. A node whose log has served before serves at once. Partitions whose
//! members agree on their logs have the same rule among those (`replication/src/group/founding.rs`), and none between partitions.

use std::collections::BTreeMap;

use ordain_model::codec;
use ordain_role::NodeId;

/// The part of a node in the first meeting, as its log has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    /// It has nothing.
    #[default]
    Nobody,
    /// All peers have answered.
    Ready,
    /// All peers were ready.
    Founded,
}

codec!(enum Met {
    0 => Nobody,
    1 => Ready,
    2 => Founded,
});

/// The next step of a node that has not served yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It waits for its peers, or its log.
    Waits,
    /// It logs that it is so far.
    Logs(Met),
    /// It serves from now on.
    Serves,
    /// It has lost what it had, as this peer knows.
    Stops(NodeId),
}

/// The state of a node that has not served yet.
#[derive(Debug)]
pub struct Founding {
    /// The stage that the log has the node at.
    met: Met,
    /// The stage that the node has the log agree on.
    logs: Met,
    peers: usize,
    /// The stages of the peers that have answered.
    answered: BTreeMap<NodeId, Met>,
}

impl Founding {
    /// The state of a node whose log has it so far, with so many peers.
    pub const fn new(met: Met, peers: usize) -> Founding {
        Founding { met, logs: met, peers, answered: BTreeMap::new() }
    }

    /// The stage that the log has the node at.
    pub const fn met(&self) -> Met {
        self.met
    }

    /// The log has it that the node is so far.
    pub fn logged(&mut self, met: Met) {
        self.met = self.met.max(met);
    }

    /// The log has no space for that: it is logged when there is.
    pub const fn unwritten(&mut self) {
        self.logs = self.met;
    }

    /// A peer is so far.
    pub fn take(&mut self, peer: NodeId, met: Met) {
        self.answered.insert(peer, met);
    }

    /// The number of nodes that are not as far as is needed to serve, this one included.
    pub fn missing(&self) -> usize {
        let founded = self.answered.values().filter(|met| **met == Met::Founded).count();
        (self.peers - founded.min(self.peers)).max(1)
    }

    /// Takes the next step, if it is time.
    pub fn step(&mut self) -> Next {
        if self.logs > self.met {
            return Next::Waits;
        }
        let least = self.answered.values().copied().min().unwrap_or_default();
        let have_all_answered = self.answered.len() == self.peers;
        let founded = self.answered.iter().find(|(_, met)| **met == Met::Founded);
        let next = match self.met {
            Met::Nobody => match founded {
                Some((peer, _)) => return Next::Stops(*peer),
                None => have_all_answered.then_some(Met::Ready),
            },
            Met::Ready => {
                let is_time = have_all_answered && least >= Met::Ready || founded.is_some();
                is_time.then_some(Met::Founded)
            }
            Met::Founded if have_all_answered && least == Met::Founded => return Next::Serves,
            Met::Founded => None,
        };
        self.logs = next.unwrap_or(self.logs);
        next.map_or(Next::Waits, Next::Logs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEERS: [NodeId; 2] = [NodeId(1), NodeId(2)];

    fn told(founding: &mut Founding, each: [Met; 2]) -> Next {
        PEERS.into_iter().zip(each).for_each(|(peer, met)| founding.take(peer, met));
        founding.step()
    }

    #[test]
    fn nodes_begin_together() {
        let mut founding = Founding::new(Met::Nobody, 2);
        founding.take(PEERS[0], Met::Nobody);
        assert_eq!(founding.step(), Next::Waits, "one has not answered");
        assert_eq!(told(&mut founding, [Met::Nobody, Met::Ready]), Next::Logs(Met::Ready));
        assert_eq!(told(&mut founding, [Met::Ready; 2]), Next::Waits, "that is not durable");
        founding.unwritten();
        assert_eq!(founding.step(), Next::Logs(Met::Ready), "the disk was full");
        founding.logged(Met::Ready);
        assert_eq!(founding.step(), Next::Logs(Met::Founded));
        founding.logged(Met::Founded);
        assert_eq!((founding.step(), founding.missing()), (Next::Waits, 2));
        assert_eq!(told(&mut founding, [Met::Founded, Met::Ready]), Next::Waits);
        assert_eq!(told(&mut founding, [Met::Founded; 2]), Next::Serves);
    }

    #[test]
    fn a_node_that_has_lost_what_it_had_stops_and_one_that_was_ready_goes_on() {
        let mut founding = Founding::new(Met::Nobody, 2);
        assert_eq!(told(&mut founding, [Met::Founded, Met::Ready]), Next::Stops(PEERS[0]));
        let mut founding = Founding::new(Met::Ready, 2);
        founding.take(PEERS[1], Met::Founded);
        assert_eq!(founding.step(), Next::Logs(Met::Founded));
    }
}
