//! The nodes of the same replica: who cannot be reached, and who substitutes for them.

use ordain_model::Epoch;
use ordain_role::{Address, NodeId, Outbox, PeerChange, PeerState};

use super::Exchange;
use crate::sequencing::message::{ExchangeMessage, Message, RemoteResult};

/// The substitute of a node of this replica.
#[derive(Debug, Default)]
pub(super) struct Substitute {
    /// A member of it, if one can be reached.
    pub(super) node: Option<NodeId>,
    /// The lost one is back, and up to date when its progress is here.
    pub(super) until: Option<Epoch>,
}

impl<X: RemoteResult> Exchange<X> {
    pub(super) fn peer_changed(
        &mut self,
        PeerChange { node, state }: PeerChange,
        out: &mut Outbox<Message<X>>,
    ) {
        if node == self.settings.me.node {
            return;
        }
        if state == PeerState::Lost {
            // The stream may be the same when the node is back: its questions are still open then.
            self.lost.insert(node);
            self.catch_up.leave(node);
        } else {
            self.lost.remove(&node);
        }
        if state == PeerState::Fresh {
            if let Some((arrival, fence)) = self.settings.arrival.zip(self.fence.as_ref()) {
                out.send(self.at(node), ExchangeMessage::Arrival(arrival));
                out.send(self.at(node), ExchangeMessage::Terms(fence.terms()));
            }
            if self.is_peer(node) {
                self.tell_beginning(node, out);
            }
            self.founding.iter_mut().for_each(|founding| founding.note_stream(node));
            // The question may not have arrived, nor the answer.
            self.catch_up.drop(node);
            self.deferred.retain(|(_, to, _)| *to != node);
            self.journal.iter_mut().for_each(|journal| journal.leave(node));
        }
        if self.settings.topology.partition_of(node) != self.partition {
            if self.is_peer(node) {
                self.note_peer(node, state, out);
            }
            if state == PeerState::Fresh && self.founding.is_none() {
                self.begin_stream(node, out);
            }
            self.find_substitutes(out);
        }
        self.go_on_catching_up(out);
    }

    /// Notes that a node of this replica is lost, or is back: then its substitute goes on until it is up to date.
    pub(super) fn note_peer(&mut self, node: NodeId, state: PeerState, out: &mut Outbox<Message<X>>) {
        if state == PeerState::Lost {
            self.substitutes.entry(node).or_default().until = None;
            return;
        }
        if let Some(substitute) = self.substitutes.get_mut(&node) {
            substitute.until = Some(self.progress);
            // A node that begins anew reports its own progress.
            if state == PeerState::Back || substitute.node.is_none() {
                self.relieve(node, out);
            }
        }
    }

    /// Ends substitution for a node that has caught up.
    pub(super) fn relieve(&mut self, node: NodeId, out: &mut Outbox<Message<X>>) {
        let Some(Substitute { node: member, until: Some(until) }) = self.substitutes.get(&node) else {
            return;
        };
        let (member, until) = (*member, *until);
        if member.is_some() && self.outgoing_to(node).progress_of(node) < until {
            return;
        }
        self.substitutes.remove(&node);
        if let Some(member) = member {
            out.send(self.at(member), ExchangeMessage::Relieved);
        }
    }

    /// A new stream has begun to another node: what was under way is lost.
    pub(super) fn begin_stream(&mut self, node: NodeId, out: &mut Outbox<Message<X>>) {
        out.send(self.at(node), ExchangeMessage::Progress(self.durable));
        if self.is_peer(node) {
            out.send(self.at(node), ExchangeMessage::Resume(self.catch_up.reach(self.progress)));
            return;
        }
        // The nodes that it substituted for will be named again.
        self.outgoing_to(node).leave(node);
        for substitute in self.substitutes.values_mut().filter(|substitute| substitute.node == Some(node)) {
            substitute.node = None;
        }
    }

    /// Asks, for every lost peer without a substitute, one of its members that can be reached.
    pub(super) fn find_substitutes(&mut self, out: &mut Outbox<Message<X>>) {
        if self.founding.is_some() {
            return;
        }
        let topology = self.settings.topology.clone();
        let reach = self.catch_up.reach(self.progress);
        let at = |node| Address { node, ..self.settings.me };
        for (node, substitute) in &mut self.substitutes {
            if substitute.node.is_some_and(|member| !self.lost.contains(&member)) {
                continue;
            }
            let mut members = topology.group(topology.partition_of(*node));
            substitute.node = members.find(|member| member != node && !self.lost.contains(member));
            if let Some(member) = substitute.node {
                out.send(at(member), ExchangeMessage::Resume(reach));
            }
        }
    }
}
