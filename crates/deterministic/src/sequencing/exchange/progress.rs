//! How an exchange writes down what it receives, and tells the others how far it is.

use ordain_log::Progress;
use ordain_model::Epoch;
use ordain_role::{Bug, DiskDone, NodeId, Outbox};

use super::journal::Journal;
use super::{Exchange, FLUSH, FLUSH_EVERY, PROBE, PROBE_EVERY, REPORT, REPORT_EVERY};
use crate::sequencing::message::{ExchangeMessage, Message, RemoteResult};

impl<X: RemoteResult> Exchange<X> {
    /// Writes the messages that have come in, and reports this node's progress.
    pub(super) fn flush(&mut self, out: &mut Outbox<Message<X>>) {
        let progress = self.stable_progress();
        let durable = match &mut self.journal {
            None => progress,
            Some(journal) => {
                if let Err(refusal) = journal.append(progress) {
                    return out.halt(format!("the journal refused an entry: {refusal}"));
                }
                journal.ask(out);
                // Planted, KEPT.
                if self.settings.bugs.has(Bug::ReportEarly) { progress } else { journal.durable }
            }
        };
        self.durable = self.durable.max(durable);
    }

    /// Tells the other nodes of this replica how far this one is. What goes to them anyway takes it along, so it costs
    /// next to nothing.
    pub(super) fn report_to_peers(&mut self, out: &mut Outbox<Message<X>>) {
        if self.durable > self.reported_to_peers && !self.is_replaying && self.founding.is_none() {
            self.reported_to_peers = self.durable;
            self.peers().for_each(|node| out.send(self.at(node), ExchangeMessage::Progress(self.durable)));
        }
    }

    /// Tells everybody who keeps what this node may ask for: nodes of other replicas too, which may have to stand in.
    pub(super) fn report_to_all(&mut self, out: &mut Outbox<Message<X>>) {
        self.report_to_peers(out);
        if self.durable == std::mem::replace(&mut self.reported_to_all, self.durable) {
            return;
        }
        let topology = &self.settings.topology;
        let others = (0..topology.nodes()).map(NodeId);
        let others = others.filter(|node| topology.partition_of(*node) != self.partition);
        for node in others.filter(|node| !self.is_peer(*node)) {
            out.send(self.at(node), ExchangeMessage::Progress(self.durable));
        }
    }

    /// Flushes soon if there is anything to flush, at once if it is much; and has progress reported.
    pub(super) fn pace(&mut self, out: &mut Outbox<Message<X>>) {
        let is_ahead = self.stable_progress() > self.durable;
        let (waits, much) = match &self.journal {
            None => (is_ahead, false),
            Some(journal) => {
                (!journal.pending.is_empty() || is_ahead, journal.pending.len() >= self.settings.piece / 4)
            }
        };
        if much {
            self.flush(out);
        } else if waits && !self.pausing {
            self.pausing = true;
            out.set_timer(FLUSH, FLUSH_EVERY);
        }
        if self.durable > self.reported_to_all && !self.reporting && !self.is_replaying {
            self.reporting = true;
            out.set_timer(REPORT, REPORT_EVERY);
        }
    }

    /// Sends a message once all that has come in so far is on disk: so no node sends more than this one can write.
    pub(super) fn send_when_durable(
        &mut self,
        to: NodeId,
        message: ExchangeMessage<X>,
        out: &mut Outbox<Message<X>>,
    ) {
        self.flush(out);
        let number = self.journal.as_ref().map_or(Epoch(0), |journal| journal.writer.appended());
        self.deferred.push_back((number, to, message));
        self.send_deferred(out);
    }

    pub(super) fn send_deferred(&mut self, out: &mut Outbox<Message<X>>) {
        let durable = self.journal.as_ref().map_or(Epoch(0), |journal| journal.writer.durable());
        while let Some((_, to, message)) = self.deferred.pop_front_if(|(number, ..)| *number <= durable) {
            out.send(self.at(to), message);
        }
    }

    pub(super) fn disk(&mut self, done: &DiskDone, out: &mut Outbox<Message<X>>) {
        let most = self.settings.piece;
        let Some(journal) = &mut self.journal else { return };
        if Journal::is_read(done) {
            match journal.was_read(done, (&self.registry, most), out) {
                Ok(Some((member, piece))) => out.send(self.at(member), piece),
                Ok(None) => {}
                Err(reason) => out.halt(format!("the journal cannot be read again: {reason}")),
            }
            return;
        }
        match journal.writer.done(done) {
            Some(Progress::Full { .. }) => out.set_timer(PROBE, PROBE_EVERY),
            Some(Progress::Failed { reason }) => {
                return out.halt(format!("the journal of what comes in failed: {reason}"));
            }
            Some(Progress::Durable(_)) | None => {}
        }
        journal.done();
        self.found(out);
        self.trim(out);
        self.journal.iter_mut().for_each(|journal| journal.ask(out));
        self.send_deferred(out);
    }

    /// Lets go what a checkpoint covers.
    pub(super) fn trim(&mut self, out: &mut Outbox<Message<X>>) {
        let (most, keep_bytes) = (self.settings.kept_max, self.settings.keep_bytes);
        let Some(journal) = &mut self.journal else { return };
        let covered = self.covered.through(journal.writer.stats().bytes, keep_bytes);
        for (member, message) in journal.trim(covered, most) {
            out.send(self.at(member), message);
        }
    }
}
