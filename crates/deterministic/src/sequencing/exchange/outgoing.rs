//! What an exchange has sent to one partition and keeps, and to which of its nodes it sends.
//!
//! A node that is up to date is sent everything at once. A node that has asked for something again gets it in pieces, each
//! when it has taken the one before, and new messages come after that: so no link ever has to hold more than a piece.

use std::collections::{BTreeMap, VecDeque};

use ordain_model::Epoch;
use ordain_role::NodeId;

use crate::sequencing::message::ExchangeMessage;

/// The messages to one partition.
#[derive(Debug)]
pub(super) struct Outgoing<X> {
    /// In the order in which it was sent, by epoch, with what it counts for.
    kept: VecDeque<(Epoch, usize, ExchangeMessage<X>)>,
    /// The number of the first of these, counted from the beginning.
    first: u64,
    bytes: usize,
    /// The largest epoch of anything that is not kept any more.
    dropped: Epoch,
    /// The epoch of the last slice.
    pub last_slice: Epoch,
    /// The receivers: the node of this replica, and those for which this one substitutes.
    to: BTreeMap<NodeId, Option<Behind>>,
    /// The epoch up to which each node that may ask needs nothing more.
    progress: BTreeMap<NodeId, Epoch>,
}

/// The state of a node that is sent again what it asked for.
#[derive(Debug)]
struct Behind {
    /// The number of what comes next.
    next: u64,
    /// The node needs nothing up to this epoch.
    after: Epoch,
}

/// The error of a node that needs what is not kept any more, up to this epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forgotten(pub Epoch);

/// The next of what a node has asked for.
#[derive(Debug)]
pub(super) struct Piece<X> {
    pub messages: Vec<ExchangeMessage<X>>,
    /// There is nothing more. From now on the node is sent everything at once.
    pub is_last: bool,
}

impl<X: Clone> Outgoing<X> {
    /// Makes an empty queue for a partition that these nodes hold, one of which is of this replica.
    pub fn new(holders: impl Iterator<Item = NodeId>, near: Option<NodeId>) -> Outgoing<X> {
        Outgoing {
            kept: VecDeque::new(),
            first: 0,
            bytes: 0,
            dropped: Epoch(0),
            last_slice: Epoch(0),
            to: near.into_iter().map(|node| (node, None)).collect(),
            progress: holders.map(|node| (node, Epoch(0))).collect(),
        }
    }

    /// Begins after an epoch: nothing up to it is kept.
    pub fn begin_after(&mut self, epoch: Epoch) {
        (self.dropped, self.last_slice) = (epoch, epoch);
    }

    /// Bytes of the messages that are kept.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Keeps something for as long as a node may ask for it.
    pub fn keep(&mut self, epoch: Epoch, bytes: usize, message: ExchangeMessage<X>) {
        if epoch <= self.least() {
            // A node that executes again what the others have behind them.
            self.dropped = self.dropped.max(epoch);
            return;
        }
        self.bytes += bytes;
        self.kept.push_back((epoch, bytes, message));
    }

    /// The nodes that are sent a message of an epoch at once.
    pub fn receivers(&self, epoch: Epoch) -> impl Iterator<Item = NodeId> {
        let is_past = move |node: &NodeId| self.progress.get(node).is_some_and(|known| epoch <= *known);
        let live = self.to.iter().filter(|(_, behind)| behind.is_none()).map(|(node, _)| *node);
        live.filter(move |node| !is_past(node))
    }

    /// Tells whether a node is sent the messages for this partition.
    pub fn serves(&self, node: NodeId) -> bool {
        self.to.contains_key(&node)
    }

    /// A node is not to be sent anything any more, until it asks.
    pub fn leave(&mut self, node: NodeId) {
        self.to.remove(&node);
    }

    /// Sends a node everything after an epoch again, in pieces; nothing if some of that is not kept any more. A node
    /// that has reported a larger progress before has lost what it had.
    pub fn ask_again(&mut self, node: NodeId, after: Epoch) -> Result<(), Forgotten> {
        if let Some(known) = self.progress.get_mut(&node) {
            *known = after.min(*known);
        }
        if self.dropped > after {
            self.to.remove(&node);
            return Err(Forgotten(self.dropped));
        }
        self.to.insert(node, Some(Behind { next: self.first, after }));
        Ok(())
    }

    /// The next of what a node has asked for: about so many bytes of it. Nothing, if it has not asked.
    pub fn next_piece(
        &mut self,
        node: NodeId,
        most: usize,
        size: impl Fn(&ExchangeMessage<X>) -> usize,
    ) -> Result<Option<Piece<X>>, Forgotten> {
        let progress = self.progress_of(node);
        let Some(Some(behind)) = self.to.get_mut(&node) else { return Ok(None) };
        let Some(skip) = behind.next.checked_sub(self.first) else {
            // Some messages were forgotten before they were sent. Unless all of that was executed there, it is
            // missing.
            behind.next = self.first;
            if self.dropped <= behind.after.max(progress) {
                return self.next_piece(node, most, size);
            }
            self.to.remove(&node);
            return Err(Forgotten(self.dropped));
        };
        let (mut messages, mut bytes) = (Vec::new(), 0);
        for (epoch, _, message) in self.kept.iter().skip(skip as usize) {
            if bytes >= most {
                return Ok(Some(Piece { messages, is_last: false }));
            }
            behind.next += 1;
            if *epoch > behind.after {
                bytes += size(message);
                messages.push(message.clone());
            }
        }
        self.to.insert(node, None);
        Ok(Some(Piece { messages, is_last: true }))
    }

    /// The epoch up to which a node is known to need nothing more.
    pub fn progress_of(&self, node: NodeId) -> Epoch {
        self.progress.get(&node).copied().unwrap_or_default()
    }

    /// Notes that a node needs nothing more up to an epoch. Messages that no node will ask for are forgotten; and
    /// beyond `most` bytes, those that a majority of the partition's nodes have on their disks, where the others can
    /// get them.
    pub fn note_progress(&mut self, node: NodeId, epoch: Epoch, most: usize) {
        let Some(known) = self.progress.get_mut(&node) else { return };
        *known = epoch;
        let (all, majority) = (self.least(), self.majority());
        while let Some((epoch, bytes, _)) = self.kept.front() {
            let too_much = self.bytes > most && *epoch <= majority;
            if *epoch > all && !too_much {
                return;
            }
            self.dropped = self.dropped.max(*epoch);
            self.bytes -= bytes;
            self.first += 1;
            self.kept.pop_front();
        }
    }

    /// Checks that kept messages are counted right, and that no node is behind them.
    pub fn check(&self) -> Result<(), String> {
        // The sum is for tests: what is kept may be much.
        let bytes = || self.kept.iter().map(|(_, bytes, _)| bytes).sum::<usize>();
        if (cfg!(debug_assertions) && bytes() != self.bytes) || (self.kept.is_empty() && self.bytes > 0) {
            return Err(format!("{} bytes are kept for a partition, and {} counted", bytes(), self.bytes));
        }
        let end = self.first + self.kept.len() as u64;
        match self.to.values().flatten().find(|behind| behind.next > end) {
            Some(behind) => Err(format!("message {} is next for a node, of {end} so far", behind.next)),
            None => Ok(()),
        }
    }

    fn least(&self) -> Epoch {
        self.progress.values().min().copied().unwrap_or_default()
    }

    /// The progress that more than half of the nodes have.
    fn majority(&self) -> Epoch {
        let mut far: Vec<Epoch> = self.progress.values().copied().collect();
        far.sort_unstable();
        let at = far.len().saturating_sub(1) / 2;
        far.get(at).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 100;

    fn outgoing(nodes: u16) -> Outgoing<()> {
        Outgoing::new((0..nodes).map(NodeId), Some(NodeId(0)))
    }

    fn fill(outgoing: &mut Outgoing<()>, epochs: std::ops::RangeInclusive<u64>) {
        epochs.for_each(|epoch| outgoing.keep(Epoch(epoch), 10, ExchangeMessage::Opened(Epoch(epoch))));
    }

    /// The epochs of a piece, and whether there is more.
    fn piece(outgoing: &mut Outgoing<()>, node: u16, most: usize) -> (Vec<u64>, &'static str) {
        let epochs = |messages: Vec<ExchangeMessage<()>>| {
            let epoch = |message: &ExchangeMessage<()>| {
                if let ExchangeMessage::Opened(epoch) = message { epoch.0 } else { 0 }
            };
            messages.iter().map(epoch).collect()
        };
        match outgoing.next_piece(NodeId(node), most, |_| 10) {
            Ok(Some(Piece { messages, is_last })) => {
                (epochs(messages), if is_last { "last" } else { "more" })
            }
            Ok(None) => (Vec::new(), "nothing"),
            Err(Forgotten(epoch)) => (vec![epoch.0], "forgotten"),
        }
    }

    #[test]
    fn what_is_asked_for_comes_in_pieces_and_what_is_new_after_it() {
        let mut outgoing = outgoing(1);
        fill(&mut outgoing, 1..=5);
        assert_eq!(outgoing.receivers(Epoch(6)).collect::<Vec<_>>(), [NodeId(0)]);
        outgoing.ask_again(NodeId(0), Epoch(1)).unwrap();
        assert_eq!(piece(&mut outgoing, 0, 20), (vec![2, 3], "more"));
        fill(&mut outgoing, 6..=6);
        assert_eq!(outgoing.receivers(Epoch(6)).count(), 0, "it comes in its turn");
        assert_eq!(piece(&mut outgoing, 0, 20), (vec![4, 5], "more"));
        assert_eq!(piece(&mut outgoing, 0, 20), (vec![6], "last"));
        assert_eq!(piece(&mut outgoing, 0, 20), (vec![], "nothing"));
        assert_eq!(outgoing.receivers(Epoch(7)).count(), 1);
    }

    #[test]
    fn what_nobody_needs_is_neither_kept_nor_sent() {
        let mut outgoing = outgoing(2);
        fill(&mut outgoing, 1..=5);
        outgoing.note_progress(NodeId(0), Epoch(4), MOST);
        assert_eq!(outgoing.bytes(), 50, "the other one may ask");
        outgoing.note_progress(NodeId(1), Epoch(3), MOST);
        assert_eq!(outgoing.bytes(), 20);
        fill(&mut outgoing, 2..=3);
        assert_eq!(outgoing.bytes(), 20);
        assert_eq!((outgoing.receivers(Epoch(4)).count(), outgoing.receivers(Epoch(5)).count()), (0, 1));
    }

    #[test]
    fn what_is_not_there_any_more_is_called_forgotten() {
        let mut outgoing = outgoing(2);
        fill(&mut outgoing, 1..=5);
        outgoing.note_progress(NodeId(0), Epoch(3), MOST);
        outgoing.note_progress(NodeId(1), Epoch(3), MOST);
        // A node that has lost its disk.
        assert_eq!(outgoing.ask_again(NodeId(0), Epoch(0)), Err(Forgotten(Epoch(3))));
        assert!(!outgoing.serves(NodeId(0)));
        // Nothing more is forgotten while it has not got it from elsewhere.
        outgoing.note_progress(NodeId(1), Epoch(5), MOST);
        outgoing.ask_again(NodeId(0), Epoch(3)).unwrap();
        assert_eq!(piece(&mut outgoing, 0, MOST), (vec![4, 5], "last"));
    }

    #[test]
    fn what_is_forgotten_while_it_is_on_its_way_is_noticed() {
        for (progress, comes) in [(0, (vec![3], "forgotten")), (3, (vec![4], "more"))] {
            let mut outgoing = outgoing(3);
            fill(&mut outgoing, 1..=5);
            outgoing.ask_again(NodeId(0), Epoch(0)).unwrap();
            assert_eq!(piece(&mut outgoing, 0, 10), (vec![1], "more"));
            outgoing.note_progress(NodeId(0), Epoch(progress), 20);
            outgoing.note_progress(NodeId(1), Epoch(5), 20);
            outgoing.note_progress(NodeId(2), Epoch(5), 20);
            assert_eq!(piece(&mut outgoing, 0, 10), comes);
        }
    }

    #[test]
    fn beyond_a_bound_only_that_is_forgotten_which_a_majority_has() {
        for (nodes, kept) in [(1, 50), (2, 50), (3, 30), (5, 50)] {
            let mut outgoing = outgoing(nodes);
            fill(&mut outgoing, 1..=5);
            // Two nodes are far; if there are others, they are away.
            (1..nodes.min(3)).for_each(|node| outgoing.note_progress(NodeId(node), Epoch(4), 30));
            assert_eq!(outgoing.bytes(), kept, "{nodes} nodes");
        }
    }
}
