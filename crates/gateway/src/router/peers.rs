//! The other nodes of the cluster, as far as a front door has met them.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::Micros;
use ordain_role::NodeId;

/// The nodes that can be reached and those that cannot.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    own: NodeId,
    /// Nodes with which there is a stream, as both know.
    met: BTreeSet<NodeId>,
    /// Those of them that have not been reached for a while, and since when, or since they were last given up.
    lost: BTreeMap<NodeId, Micros>,
}

impl Peers {
    /// A node that has met no other.
    pub(super) fn new(own: NodeId) -> Peers {
        Peers { own, met: BTreeSet::from([own]), lost: BTreeMap::new() }
    }

    pub(super) fn is_there(&self, node: NodeId) -> bool {
        self.met.contains(&node) && !self.lost.contains_key(&node)
    }

    /// The other nodes that can be reached, in ascending order.
    pub(super) fn others(&self) -> Vec<NodeId> {
        self.met.iter().copied().filter(|node| *node != self.own && self.is_there(*node)).collect()
    }

    /// A node is not reached any more; answers whether it had been met.
    pub(super) fn lose(&mut self, now: Micros, node: NodeId) -> bool {
        self.lost.entry(node).or_insert(now);
        self.met.contains(&node)
    }

    /// A node is reached again, as it was.
    pub(super) fn regain(&mut self, node: NodeId) {
        self.lost.remove(&node);
    }

    /// The stream to a node has begun anew.
    pub(super) fn forget(&mut self, node: NodeId) {
        self.lost.remove(&node);
        self.met.remove(&node);
    }

    /// A node has answered a greeting; answers whether it had not been met.
    pub(super) fn meet(&mut self, node: NodeId) -> bool {
        self.met.insert(node)
    }

    /// The nodes that have been lost for so long, each once in as long.
    pub(super) fn late(&mut self, now: Micros, patience: Micros) -> Vec<NodeId> {
        let late = self.lost.iter_mut().filter(|(_, since)| now.since(**since) >= patience);
        late.map(|(node, since)| (*since = now, *node).1).collect()
    }

    /// True if a node that has been met cannot be reached.
    pub(super) fn lacks_any(&self) -> bool {
        !self.lost.is_empty()
    }
}
