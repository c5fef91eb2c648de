//! Founding a replica: its nodes begin together, once, when all of them have met.
//!
//! A node with nothing on its disk is new, or has lost what it had; it cannot tell which. In the second case it must not take
//! part: it would call epochs empty in which its log had transactions, and others would answer without them. But its peers can
//! tell. So it asks all of them, and says nothing else until it knows:
//!
//! 1. it *asks* until every peer has answered, and none that it has begun; then it writes [`JournalRecord::Ready`];
//! 2. once that is durable it is *ready*, until every peer is ready or one has begun; then it writes [`JournalRecord::Begun`];
//! 3. once that is durable it has *begun*, and sends and takes everything else.
//!
//! No batch is executed before all partitions have said something about the epochs before it, and nobody says anything of that
//! kind before it has begun. So whatever a client of a cluster with one replica was ever told, each node had begun by then, and
//! knows it after any crash. If a node asks and a peer has begun, the node has lost its disk and stops. As long as one node of a
//! replica has its disk, no other one comes back without its own. (Where members agree, the very first batch of all has no
//! epoch before it; there members ask each other as well.)
//!
//! A node that has *joined* in a later generation, or is rebuilt, takes part at once: its directory says that it comes with
//! nothing. It tells nobody that it has begun before a peer has told that to it, and writes that down then; what else it has written, and its
//! checkpoints, say nothing about its peers.
//!
//! Members of a partition have the same rule among themselves, for their votes (`replication/src/group/founding.rs`). A node
//! without peers and members is not known by anybody.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ordain_family::Emptied;
use ordain_model::Epoch;
use ordain_role::{NodeId, Outbox};

use super::journal::JournalRecord;
use super::{Exchange, Journal};
use crate::sequencing::message::{ExchangeMessage, Message, RemoteResult, Sequencing};

/// The knowledge of a node that starts about whether it has begun before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Beginning {
    /// Its directory is empty, or it keeps nothing.
    #[default]
    Asks,
    /// It has met all its peers, and may have begun.
    Ready,
    /// It has joined in a later generation, or is rebuilt.
    Joins,
    /// It has begun.
    Begun,
}

impl Beginning {
    /// Tells whether a node with this knowledge takes part at once.
    pub fn takes_part(self) -> bool {
        self >= Beginning::Joins
    }

    /// The knowledge that a directory gives with its next journal record.
    #[must_use]
    pub fn and<X>(self, journal_record: &JournalRecord<X>) -> Beginning {
        match journal_record {
            JournalRecord::Ready => self.max(Beginning::Ready),
            // A program of before there was a record of it has written others all the same.
            _ => Beginning::Begun,
        }
    }

    /// The knowledge that the directory of a node which has joined gives with its next journal record. Such a node takes part, and writes
    /// others, before its peers have begun.
    #[must_use]
    pub fn and_joined<X>(self, journal_record: &JournalRecord<X>) -> Beginning {
        match journal_record {
            JournalRecord::Begun => Beginning::Begun,
            _ => self,
        }
    }
}

/// The step of a node that has not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Asks,
    /// The record of being ready is this entry of the journal.
    WritesReady(Epoch),
    Ready,
    /// The record of having begun is this entry of the journal.
    WritesBegun(Epoch),
}

/// The state of a node that has not begun.
#[derive(Debug)]
pub(super) struct Founding<X> {
    step: Step,
    /// The peers that have answered, and whether they are ready.
    answered: BTreeMap<NodeId, bool>,
    /// A peer has begun.
    is_begun_elsewhere: bool,
    /// The nodes to which a stream has begun meanwhile.
    streams: BTreeSet<NodeId>,
    /// Messages that came meanwhile, in order.
    held: VecDeque<(NodeId, ExchangeMessage<X>)>,
}

impl<X> Founding<X> {
    /// The state of a node that starts with this knowledge; `None` if it takes part at once.
    pub fn new(beginning: Beginning) -> Option<Founding<X>> {
        let step = match beginning {
            Beginning::Asks => Step::Asks,
            Beginning::Ready => Step::Ready,
            Beginning::Joins | Beginning::Begun => return None,
        };
        Some(Founding {
            step,
            answered: BTreeMap::new(),
            is_begun_elsewhere: false,
            streams: BTreeSet::new(),
            held: VecDeque::new(),
        })
    }

    fn is_ready(&self) -> bool {
        matches!(self.step, Step::Ready | Step::WritesBegun(_))
    }

    /// Holds a message until the node has begun.
    pub fn hold(&mut self, from: NodeId, message: ExchangeMessage<X>) {
        self.held.push_back((from, message));
    }

    /// A new stream to a node has begun: what came over the one before is void.
    pub fn note_stream(&mut self, node: NodeId) {
        self.held.retain(|(from, _)| *from != node);
        self.streams.insert(node);
    }
}

impl<X: RemoteResult> Exchange<X> {
    /// The number of peers that this node has to meet before it begins.
    pub(super) fn unfounded(&self) -> usize {
        let Some(founding) = &self.founding else { return 0 };
        // Its own record is missing at least.
        let ready = founding.answered.values().filter(|is_ready| **is_ready).count();
        (self.peers().count() - ready).max(1)
    }

    /// Tells a peer how far this node is.
    pub(super) fn tell_beginning(&self, node: NodeId, out: &mut Outbox<Message<X>>) {
        let is_ready = self.founding.as_ref().is_none_or(Founding::is_ready);
        let has_begun = self.knows_begun && self.founding.is_none();
        out.send(self.at(node), ExchangeMessage::Beginning { is_ready, has_begun });
    }

    fn tell_beginning_to_all(&self, out: &mut Outbox<Message<X>>) {
        self.peers().for_each(|node| self.tell_beginning(node, out));
    }

    /// Takes a peer's report.
    pub(super) fn take_beginning(
        &mut self,
        from: NodeId,
        (is_ready, has_begun): (bool, bool),
        out: &mut Outbox<Message<X>>,
    ) {
        if !self.is_peer(from) || from == self.settings.me.node {
            return out.halt(format!("node {} reports its beginning, and is no peer", from.0));
        }
        let Some(founding) = &mut self.founding else {
            if has_begun && !std::mem::replace(&mut self.knows_begun, true) {
                // It has joined: after its next start it knows what it was told.
                self.write_beginning(&JournalRecord::Begun, out);
            }
            return;
        };
        if has_begun && !founding.is_ready() {
            let replicas = self.settings.topology.replicas;
            let emptied = Emptied { partition: self.partition, peer: from, replicas };
            return out.halt(emptied.to_string());
        }
        founding.answered.insert(from, is_ready);
        founding.is_begun_elsewhere |= has_begun;
        self.found(out);
    }

    /// Takes the next step to the beginning, if it is time.
    pub(super) fn found(&mut self, out: &mut Outbox<Message<X>>) {
        let peers = self.peers().count();
        let durable = self.journal.as_ref().map_or(Epoch(u64::MAX), |journal| journal.writer.durable());
        let Some(founding) = &mut self.founding else { return };
        let have_all_answered = founding.answered.len() == peers;
        let are_all_ready = have_all_answered && founding.answered.values().all(|is_ready| *is_ready);
        match founding.step {
            Step::Asks if have_all_answered => {
                let number = self.write_beginning(&JournalRecord::Ready, out);
                self.step_to(Step::WritesReady(number), out);
            }
            Step::WritesReady(number) if number <= durable => {
                self.step_to(Step::Ready, out);
            }
            Step::Ready if are_all_ready || founding.is_begun_elsewhere => {
                let number = self.write_beginning(&JournalRecord::Begun, out);
                self.step_to(Step::WritesBegun(number), out);
            }
            Step::WritesBegun(number) if number <= durable => self.begin_with_peers(out),
            _ => {}
        }
    }

    fn step_to(&mut self, step: Step, out: &mut Outbox<Message<X>>) {
        let Some(founding) = &mut self.founding else { return };
        founding.step = step;
        if step == Step::Ready {
            self.tell_beginning_to_all(out);
        }
        self.found(out);
    }

    /// Writes a record; the answer is the number of its entry in the journal.
    fn write_beginning(&mut self, journal_record: &JournalRecord<X>, out: &mut Outbox<Message<X>>) -> Epoch {
        self.journal.iter_mut().for_each(|journal| journal.note_beginning(journal_record));
        self.flush(out);
        self.journal.as_ref().map_or(Epoch(0), Journal::appended)
    }

    /// All nodes of the replica have met: what was held back is taken, and streams begin.
    fn begin_with_peers(&mut self, out: &mut Outbox<Message<X>>) {
        let Some(Founding { streams, held, .. }) = self.founding.take() else { return };
        self.knows_begun = true;
        // Ahead of all else.
        self.tell_beginning_to_all(out);
        streams.into_iter().for_each(|node| self.begin_stream(node, out));
        self.find_substitutes(out);
        out.send(self.settings.sequencer, Sequencing::Founded);
        if self.opened > self.sealed {
            out.send(self.settings.sequencer, Sequencing::Reached(self.opened));
        }
        held.into_iter().for_each(|(from, message)| self.admit(from, message, out));
    }
}
