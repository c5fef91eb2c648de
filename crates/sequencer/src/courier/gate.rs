//! What a courier takes while masters may change (calvin.md, section 4.12).
//!
//! While a term is being prepared, what comes in is *held back*, from everybody: some of it may stem from batches that
//! will not be decided. When it is decided, what comes from nodes that have to start over is dropped, and the rest is
//! taken in its order. So is what a node that has just started gets before it has heard how things are.
//!
//! The slices of the other partitions' last batches are remembered for their next masters, until those who may be it
//! have the batches themselves.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_model::{Epoch, Gsn, PartitionId};
use ordain_role::{Bug, Bugs, NodeId};

use crate::council::Seats;
use crate::message::{Held, Post, Ship};

/// The gate of a courier.
#[derive(Debug)]
pub(super) struct Gate<X> {
    /// As was heard last; nothing at first.
    seats: Option<Arc<Seats>>,
    /// What was held back, in order, with the incarnation of its sender.
    held: VecDeque<(NodeId, u64, Post<X>)>,
    /// As whom each node has introduced itself.
    incarnations: BTreeMap<NodeId, u64>,
    /// By partition.
    recent: Vec<VecDeque<Held>>,
    /// The last transaction of which anything was heard that only who executes it can say.
    evidence: Gsn,
    bugs: Bugs,
}

impl<X> Gate<X> {
    pub fn new(partitions: u16, bugs: Bugs) -> Gate<X> {
        Gate {
            bugs,
            seats: None,
            held: VecDeque::new(),
            incarnations: BTreeMap::new(),
            recent: (0..partitions).map(|_| VecDeque::new()).collect(),
            evidence: Gsn::NONE,
        }
    }

    /// What may be taken at once of what a node sends.
    pub fn admit(&mut self, from: NodeId, post: Post<X>) -> Option<Post<X>> {
        if let Post::Incarnation(incarnation) = post {
            self.incarnations.insert(from, incarnation);
            return None;
        }
        if self.bugs.has(Bug::IgnoreFence) {
            return Some(post);
        }
        let is_open = self.held.is_empty() && self.seats.as_ref().is_some_and(|seats| !seats.is_fenced());
        let incarnation = self.incarnations.get(&from).copied().unwrap_or_default();
        if self.is_out(from, incarnation) {
            None
        } else if is_open {
            Some(post)
        } else {
            self.held.push_back((from, incarnation, post));
            None
        }
    }

    /// Whether a node of this incarnation has to start over, as far as is known.
    fn is_out(&self, node: NodeId, incarnation: u64) -> bool {
        self.seats.as_ref().is_some_and(|seats| seats.expulsion(node, incarnation).is_some())
    }

    /// The council has spoken. What was held back and is to be taken now.
    pub fn told(&mut self, seats: Arc<Seats>) -> Vec<(NodeId, Post<X>)> {
        let is_fenced = seats.is_fenced();
        self.seats = Some(seats);
        let mut held = std::mem::take(&mut self.held);
        held.retain(|(from, incarnation, _)| !self.is_out(*from, *incarnation));
        if is_fenced {
            self.held = held;
            return Vec::new();
        }
        held.into_iter().map(|(from, _, post)| (from, post)).collect()
    }

    /// How much is held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// A batch of another partition.
    pub fn note_slot(&mut self, partition: PartitionId, held: Held) {
        self.recent[usize::from(partition.0)].push_back(held);
    }

    /// Somebody has executed something of this transaction.
    pub fn note_evidence(&mut self, gsn: Gsn) {
        self.evidence = self.evidence.max(gsn);
    }

    /// Nobody will ask for slices up to these epochs.
    pub fn forget(&mut self, safe: &[Epoch]) {
        for (recent, safe) in self.recent.iter_mut().zip(safe) {
            while recent.pop_front_if(|held| held.epoch <= *safe).is_some() {}
        }
    }

    /// What is there of a partition's batches after an epoch, about so many bytes of it; nothing, if this node has not
    /// heard that the term is being prepared.
    pub fn collect(
        &self,
        (partition, term): (PartitionId, u64),
        after: Epoch,
        through: Epoch,
        most: usize,
    ) -> Option<Ship> {
        let seat = self.seats.as_ref()?.seats.get(usize::from(partition.0))?;
        seat.fence.filter(|fence| fence.term == term)?;
        // Whoever executes a transaction has every batch before its own, and that.
        let has_own = self.evidence.partition() >= partition;
        let evidence = Epoch(self.evidence.epoch().0.saturating_sub(u64::from(!has_own)));
        let (mut held, mut bytes) = (Vec::new(), 0);
        let mut rest =
            self.recent[usize::from(partition.0)].iter().filter(|held| held.epoch > after).peekable();
        while let Some(next) = rest.next_if(|_| bytes < most) {
            bytes += 32 + next.content.as_ref().map_or(0, |content| content.len());
            held.push(next.clone());
        }
        let is_all = rest.peek().is_none();
        Some(Ship::Collected { partition, term, through, evidence, held, is_all })
    }
}
