//! The fence of an exchange: what it takes while primaries may change (docs/protocols/calvin.md, section 4.12).
//!
//! While a term is being prepared, messages of all nodes are *held back*: some may stem from batches that will not be
//! decided. When the term is decided, messages of nodes that have to be rebuilt are dropped, and what is left of an earlier
//! life of its sender; the rest is taken in its order. Two more kinds are held back: messages that reach a node which has
//! just started, before it knows the leadership records; and messages of a node that knows of a term which this one does
//! not ([`ExchangeMessage::Terms`]). A primary that was given up, and does not know it, must not take what others have made
//! of its successor's batches for something about its own.
//!
//! Messages of an earlier life: a node forgets with a crash what it had not on disk, such as that epochs without logged
//! transactions are sealed, and then answers candidates without it. So a term may begin among epochs that its earlier life
//! has called sealed, and what that life has said, held back or late on its way, must not be taken any more. Nothing is
//! missing without it: the later life begins a stream of its own, over which it is asked for everything.
//!
//! The slices of the other partitions' last batches are remembered for their next primaries, until all nodes that may be
//! primary have the batches themselves.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_model::{Epoch, Gsn, PartitionId};
use ordain_replication::{Arrival, Held, LeadershipRecords, Ship};
use ordain_role::{Address, Bug, Bugs, NodeId, Outbox};

use super::Exchange;
use crate::sequencing::message::{ExchangeMessage, Message, RemoteResult};

/// The fence of an exchange.
#[derive(Debug)]
pub(super) struct InputFence<X> {
    /// The latest records; none at first.
    leadership_records: Option<Arc<LeadershipRecords>>,
    /// The messages that are held back, in order, and how their senders had introduced themselves.
    held: VecDeque<(NodeId, Introduced, ExchangeMessage<X>)>,
    /// The introduction of each node.
    introduced: BTreeMap<NodeId, Introduced>,
    /// The recent shares of batches, by partition.
    recent: Vec<VecDeque<Held>>,
    /// The epochs known here to be empty or not, by partition.
    known: Vec<KnownEpochs>,
    /// The last transaction that some node is known to have executed, by what it has sent.
    executed: Gsn,
    bugs: Bugs,
}

/// Epochs of a partition, after one and through another.
#[derive(Clone, Copy, Debug, Default)]
struct KnownEpochs {
    since: Epoch,
    through: Epoch,
}

/// The introduction of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Introduced {
    arrival: Arrival,
    /// The number of terms that it knows of; 0 before it has arrived.
    terms: u64,
}

impl<X> InputFence<X> {
    pub fn new(partitions: u16, bugs: Bugs) -> InputFence<X> {
        InputFence {
            bugs,
            leadership_records: None,
            held: VecDeque::new(),
            introduced: BTreeMap::new(),
            recent: (0..partitions).map(|_| VecDeque::new()).collect(),
            known: vec![KnownEpochs::default(); usize::from(partitions)],
            executed: Gsn::NONE,
        }
    }

    /// Takes a message of a node: the answer is the message, if it may be taken at once.
    pub fn admit(&mut self, from: NodeId, message: ExchangeMessage<X>) -> Option<ExchangeMessage<X>> {
        let introduced = self.introduced.entry(from).or_default();
        match message {
            ExchangeMessage::Arrival(arrival) => *introduced = Introduced { arrival, terms: 0 },
            ExchangeMessage::Terms(terms) => introduced.terms = terms,
            _ => {}
        }
        if matches!(message, ExchangeMessage::Arrival(_) | ExchangeMessage::Terms(_)) {
            return None;
        }
        let introduced = *introduced;
        if self.bugs.has(Bug::IgnoreFence) {
            return Some(message);
        }
        let is_open = self
            .leadership_records
            .as_ref()
            .is_some_and(|leadership_records| !leadership_records.is_fenced());
        let is_open = is_open && self.held.is_empty() && introduced.terms <= self.terms();
        if self.is_out(from, introduced) {
            None
        } else if is_open {
            Some(message)
        } else {
            self.held.push_back((from, introduced, message));
            None
        }
    }

    /// Tells whether a node with this introduction is evicted, or has had a later life when a term began that it does
    /// not know of.
    ///
    /// A node knows of no term before it has arrived, and of all that began before. So a life that knows of some
    /// terms, and of fewer than there were when another life arrived last, is an earlier one.
    fn is_out(&self, node: NodeId, introduced: Introduced) -> bool {
        let Some(leadership_records) = &self.leadership_records else { return false };
        let is_late = introduced.terms > 0 && introduced.terms < leadership_records.terms();
        let arrived = leadership_records.arrivals.get(&node);
        let is_other = || arrived.is_some_and(|arrival| *arrival != introduced.arrival);
        leadership_records.eviction(node, introduced.arrival.incarnation).is_some() || (is_late && is_other())
    }

    /// The configuration service has spoken. What was held back and is to be taken now.
    pub fn note_records(
        &mut self,
        leadership_records: Arc<LeadershipRecords>,
    ) -> Vec<(NodeId, ExchangeMessage<X>)> {
        let is_fenced = leadership_records.is_fenced();
        self.leadership_records = Some(leadership_records);
        let terms = self.terms();
        let mut held = std::mem::take(&mut self.held);
        held.retain(|(from, introduced, _)| !self.is_out(*from, *introduced));
        let is_ahead = |held: &(NodeId, Introduced, ExchangeMessage<X>)| is_fenced || held.1.terms > terms;
        let ready = held.iter().position(is_ahead).unwrap_or(held.len());
        self.held = held.split_off(ready);
        held.into_iter().map(|(from, _, message)| (from, message)).collect()
    }

    /// The number of terms that it knows of.
    pub fn terms(&self) -> u64 {
        self.leadership_records.as_ref().map_or(0, |leadership_records| leadership_records.terms())
    }

    /// Checks that messages held back have a reason to be, and that no share is of an epoch that is not known.
    pub fn check(&self) -> Result<(), String> {
        let is_fenced = self.leadership_records.as_ref().is_none_or(|records| records.is_fenced());
        let terms = self.terms();
        if let Some((from, introduced, _)) = self.held.front().filter(|_| !is_fenced)
            && introduced.terms <= terms
        {
            return Err(format!("a message of node {} is held back for no reason", from.0));
        }
        for (recent, known) in self.recent.iter().zip(&self.known) {
            if recent.back().is_some_and(|held| held.epoch > known.through) || known.since > known.through {
                return Err(format!("slices are remembered beyond what is known: {known:?}"));
            }
        }
        Ok(())
    }

    /// The number of messages held back.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Another partition has sealed its epochs through one; after `after` they are empty, but perhaps the last.
    pub fn note_slot(&mut self, partition: PartitionId, after: Epoch, held: Held) {
        let known = &mut self.known[usize::from(partition.0)];
        if after > known.through {
            known.since = after;
        }
        known.through = known.through.max(held.epoch);
        if held.parts > 0 {
            self.recent[usize::from(partition.0)].push_back(held);
        }
    }

    /// Begins after an epoch, once all that is in the journal was noted again: earlier epochs will not come again.
    pub fn begin_after(&mut self, epoch: Epoch) {
        for known in self.known.iter_mut().filter(|known| known.through < epoch) {
            *known = KnownEpochs { since: epoch, through: epoch };
        }
    }

    /// Notes that a node has executed something of this transaction.
    pub fn note_executed(&mut self, gsn: Gsn) {
        self.executed = self.executed.max(gsn);
    }

    /// Forgets what all possible primaries have: the epochs up to these. Should a node without them be made primary
    /// nevertheless, then no node here knows of them any more.
    pub fn forget(&mut self, low_watermarks: &[Epoch]) {
        for ((recent, known), low_watermark) in
            self.recent.iter_mut().zip(&mut self.known).zip(low_watermarks)
        {
            while let Some(held) = recent.pop_front_if(|held| held.epoch <= *low_watermark) {
                known.since = known.since.max(held.epoch);
            }
        }
    }

    /// Collects a partition's batches after an epoch, about so many bytes of them; `None` if this node does not know
    /// yet that the term is being prepared.
    pub fn collect(
        &self,
        (partition, term): (PartitionId, u64),
        after: Epoch,
        through: Epoch,
        most: usize,
    ) -> Option<Ship> {
        let leadership_record =
            self.leadership_records.as_ref()?.leadership_records.get(usize::from(partition.0))?;
        leadership_record.fence.filter(|fence| fence.term == term)?;
        // A node that executes a transaction has every batch before its own, and that.
        let has_own = self.executed.partition() >= partition;
        let executed = Epoch(self.executed.epoch().0.saturating_sub(u64::from(!has_own)));
        let (mut held, mut bytes) = (Vec::new(), 0);
        let mut rest =
            self.recent[usize::from(partition.0)].iter().filter(|held| held.epoch > after).peekable();
        while let Some(next) = rest.next_if(|_| bytes < most) {
            bytes += 32 + next.content.as_ref().map_or(0, |content| content.len());
            held.push(next.clone());
        }
        let is_all = rest.peek().is_none();
        let since = self.known[usize::from(partition.0)].since;
        Some(Ship::Collected { partition, term, since, through, executed, held, is_all })
    }
}

impl<X: RemoteResult> Exchange<X> {
    /// The configuration service has spoken. What was held back and is to be taken now.
    pub(super) fn note_records(
        &mut self,
        leadership_records: Arc<LeadershipRecords>,
        out: &mut Outbox<Message<X>>,
    ) -> Vec<(NodeId, ExchangeMessage<X>)> {
        let Some(fence) = &mut self.fence else { return Vec::new() };
        let before = fence.terms();
        let released = fence.note_records(leadership_records);
        let terms = fence.terms();
        if terms != before {
            // Ahead of all that may be made of it.
            let nodes = (0..self.settings.topology.nodes()).map(NodeId);
            let others = nodes.filter(|node| *node != self.settings.me.node);
            others.for_each(|node| out.send(self.at(node), ExchangeMessage::Terms(terms)));
        }
        released
    }

    /// A candidate asks what is left of a partition's batches.
    pub(super) fn collect(
        &self,
        candidate: Address,
        (partition, term): (PartitionId, u64),
        after: Epoch,
        out: &mut Outbox<Message<X>>,
    ) {
        let Some(fence) = self.fence.as_ref().filter(|_| partition.0 < self.partitions()) else { return };
        let through = if partition == self.partition { Epoch(0) } else { self.order.through(partition) };
        if let Some(answer) = fence.collect((partition, term), after, through, self.settings.piece) {
            out.send(candidate, answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::Layout;
    use ordain_role::Topology;

    use super::*;
    use ordain_replication::Fence;

    type ExchangeMessage = crate::sequencing::message::ExchangeMessage<()>;

    fn leadership_records(version: u64, term: u64, fence: Option<u64>) -> Arc<LeadershipRecords> {
        let topology = Topology::replicated(Arc::new(Layout::even(2, 1).unwrap()), 2);
        let mut leadership_records = LeadershipRecords { version, ..LeadershipRecords::new(&topology) };
        leadership_records.leadership_records[1].term = term;
        leadership_records.leadership_records[1].fence =
            fence.map(|term| Fence { term, candidate: NodeId(3) });
        Arc::new(leadership_records)
    }

    fn opened(fence: &mut InputFence<()>, from: u16, epoch: u64) -> bool {
        fence.admit(NodeId(from), ExchangeMessage::Opened(Epoch(epoch))).is_some()
    }

    /// The epochs of what is taken once the configuration service has spoken.
    fn released(fence: &mut InputFence<()>, leadership_records: Arc<LeadershipRecords>) -> Vec<u64> {
        let epoch = |message| match message {
            ExchangeMessage::Opened(epoch) => epoch.0,
            other => panic!("{other:?} was not held back"),
        };
        fence.note_records(leadership_records).into_iter().map(|(_, message)| epoch(message)).collect()
    }

    #[test]
    fn what_may_be_of_a_term_that_was_not_heard_of_is_held_back() {
        let mut fence = InputFence::new(2, Bugs::default());
        assert!(!opened(&mut fence, 2, 1), "it knows of nothing yet");
        assert_eq!(released(&mut fence, leadership_records(1, 1, None)), [1]);
        assert!(opened(&mut fence, 2, 2));
        // Node 2 has heard that a term is being prepared, then that it is decided; node 3 has not.
        assert!(
            fence
                .admit(NodeId(2), ExchangeMessage::Terms(leadership_records(2, 1, Some(2)).terms()))
                .is_none()
        );
        assert!(opened(&mut fence, 3, 3));
        assert!(!opened(&mut fence, 2, 4) && !opened(&mut fence, 3, 5), "everything keeps its order");
        fence.admit(NodeId(2), ExchangeMessage::Terms(leadership_records(3, 2, None).terms()));
        assert!(!opened(&mut fence, 2, 6));
        assert_eq!(released(&mut fence, leadership_records(2, 1, Some(2))), [0; 0]);
        assert_eq!((released(&mut fence, leadership_records(3, 2, None)), fence.held()), (vec![4, 5, 6], 0));
        // Another term, of which only some of it may be.
        assert!(opened(&mut fence, 3, 7));
        let next = leadership_records(5, 3, None);
        fence.admit(NodeId(3), ExchangeMessage::Terms(next.terms()));
        assert!(!opened(&mut fence, 3, 8));
        assert_eq!((released(&mut fence, leadership_records(4, 2, None)), fence.held()), (vec![], 1));
        // One that starts again says anew what it knows.
        fence.admit(NodeId(3), ExchangeMessage::Arrival(Arrival { incarnation: 1, life: 0 }));
        assert!(!opened(&mut fence, 3, 9));
        assert_eq!(released(&mut fence, next), [8, 9]);
    }

    #[test]
    fn what_is_left_of_an_earlier_life_is_dropped_once_a_term_has_begun_without_it() {
        let mut fence = InputFence::new(2, Bugs::default());
        let introduce = |fence: &mut InputFence<()>, life, terms| {
            let arrival = Arrival { incarnation: 0, life };
            assert!(fence.admit(NodeId(2), ExchangeMessage::Arrival(arrival)).is_none());
            assert!(fence.admit(NodeId(2), ExchangeMessage::Terms(terms)).is_none());
        };
        let records = |version, term, fence, life| {
            let mut records = Arc::unwrap_or_clone(leadership_records(version, term, fence));
            records.arrivals.insert(NodeId(2), Arrival { incarnation: 0, life });
            Arc::new(records)
        };
        let terms = |term, fence| leadership_records(0, term, fence).terms();
        assert_eq!(released(&mut fence, records(1, 1, None, 1)), [0; 0]);
        introduce(&mut fence, 1, terms(1, None));
        assert!(opened(&mut fence, 2, 1));
        // It is started again while a term is prepared, and says what its earlier life had said no more.
        assert_eq!(released(&mut fence, records(2, 1, Some(2), 1)), [0; 0]);
        assert!(!opened(&mut fence, 2, 2));
        introduce(&mut fence, 2, 0);
        assert!(!opened(&mut fence, 2, 3), "it has not arrived yet");
        introduce(&mut fence, 2, terms(1, Some(2)));
        assert!(!opened(&mut fence, 2, 4));
        assert_eq!(released(&mut fence, records(4, 2, None, 2)), [3, 4]);
        assert!(
            opened(&mut fence, 2, 5),
            "what this life knew is decided, whether it has heard of that or not"
        );
        // The same, and the news of the term comes before the next life: the rest of the stream is late.
        assert_eq!(released(&mut fence, records(7, 3, None, 3)), [0; 0]);
        assert!(!opened(&mut fence, 2, 6) && fence.held() == 0);
        introduce(&mut fence, 3, 0);
        assert!(opened(&mut fence, 2, 7));
        // A life that is not known to have arrived knows of all terms when it has.
        introduce(&mut fence, 4, 0);
        assert!(opened(&mut fence, 2, 8));
        introduce(&mut fence, 4, terms(3, None));
        assert!(opened(&mut fence, 2, 9));
    }

    #[test]
    fn of_what_it_has_forgotten_it_says_that_it_knows_nothing() {
        let mut fence = InputFence::<()>::new(2, Bugs::default());
        fence.note_records(leadership_records(1, 1, Some(2)));
        let held = |epoch| Held { epoch: Epoch(epoch), parts: 1, content: None };
        (3..6).for_each(|epoch| fence.note_slot(PartitionId(1), Epoch(epoch - 1), held(epoch)));
        let known = |fence: &InputFence<()>| {
            let collected = fence.collect((PartitionId(1), 2), Epoch(0), Epoch(5), usize::MAX);
            let Some(Ship::Collected { since, held, .. }) = collected else { panic!("{collected:?}") };
            (since.0, held.iter().map(|held| held.epoch.0).collect::<Vec<_>>())
        };
        assert_eq!(known(&fence), (2, vec![3, 4, 5]));
        fence.forget(&[Epoch(9), Epoch(4)]);
        assert_eq!(known(&fence), (4, vec![5]));
    }
}
