//! The first meeting of partitions with one member each, as their managers hold it ([`Founding`]).

use ordain_family::Emptied;
use ordain_role::{Address, Bug, NodeId, Now, Outbox};

use super::Manager;
use crate::desk::Desk;
use crate::entry::Content;
use crate::founding::{Founding, Met, Next};
use crate::message::Message;

impl Manager {
    /// A partition with one member starts: its node serves, or meets its peers first.
    pub(super) fn start(&mut self, now: Now, out: &mut Outbox<Message>) {
        let peers = self.site.nodes - 1;
        let met = self.agreed.meets().filter(|_| peers > 0);
        // Planted, FOUNDED-ONCE.
        let Some(met) = met.filter(|_| !self.site.bugs.has(Bug::SkipFounding)) else {
            return self.begin(None, now, out);
        };
        self.founding = Some(Founding::new(met, usize::from(peers)));
        self.found(now, out);
    }

    /// Tells a peer how far this node is in their first meeting, if they have one.
    pub(super) fn tell_meeting(&self, node: NodeId, out: &mut Outbox<Message>) {
        if !self.has_members {
            let met = self.founding.as_ref().map_or(Met::Founded, Founding::met);
            out.send(Address { node, role: self.site.manager }, Message::Meet(met));
        }
    }

    /// Hears how far a peer is.
    pub(super) fn take_meeting(&mut self, from: NodeId, met: Met, now: Now, out: &mut Outbox<Message>) {
        if from == self.site.node || from.0 >= self.site.nodes {
            self.strangers += 1;
        } else if let Some(founding) = &mut self.founding {
            founding.take(from, met);
            self.found(now, out);
        }
    }

    /// Takes the next step of the first meeting, if it is time.
    pub(super) fn found(&mut self, now: Now, out: &mut Outbox<Message>) {
        let Some(founding) = self.founding.as_mut().filter(|_| !self.appender.is_full()) else { return };
        match founding.step() {
            Next::Waits => {}
            Next::Logs(met) => {
                let clock = self.clock;
                desk!(self, now, out).append(clock, Content::Meet(met));
            }
            Next::Serves => {
                self.founding = None;
                self.begin(None, now, out);
            }
            Next::Stops(peer) => {
                let emptied =
                    Emptied { partition: self.site.partition, peer, replicas: self.topology.replicas };
                out.halt(emptied.to_string());
            }
        }
    }

    /// The log has it that this node is so far in the first meeting.
    pub(super) fn met(&mut self, met: Met, now: Now, out: &mut Outbox<Message>) {
        let Some(founding) = &mut self.founding else { return };
        founding.logged(met);
        for node in (0..self.site.nodes).map(NodeId).filter(|node| *node != self.site.node) {
            self.tell_meeting(node, out);
        }
        self.found(now, out);
    }
}
