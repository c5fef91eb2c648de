//! What an exchange sends: the slices of its partition's batches and the remote results of its node's shards, at once or again.

use std::sync::Arc;

use ordain_model::wire::Codec as _;
use ordain_model::{Batch, Epoch, PartitionId};
use ordain_role::{Bug, NodeId, Outbox};

use super::Exchange;
use super::outgoing::{Forgotten, Outgoing, Piece};
use crate::sequencing::message::{ExchangeMessage, Message, RemoteResult};

impl<X: RemoteResult> Exchange<X> {
    /// Sends slices of a batch that this partition has sealed.
    pub(super) fn sealed(&mut self, batch: Arc<Batch>, out: &mut Outbox<Message<X>>) {
        if batch.epoch <= self.begun {
            // Members know later than they execute what was agreed on.
            return;
        }
        if batch.epoch <= self.sealed {
            return out.halt(format!("the log sealed epoch {} after {}", batch.epoch, self.sealed));
        }
        self.sealed = batch.epoch;
        // Where a next primary may have to know it, all partitions hear of every batch, and not only those that take
        // part in it.
        let logged = self.fence.as_ref().map_or(0, |_| batch.count_logged());
        for to in (0..self.partitions()).map(PartitionId).filter(|to| *to != self.partition) {
            let content = batch.encode_slice(to, &mut self.layouts).map(Arc::new);
            let outgoing = &mut self.outgoing[usize::from(to.0)];
            let (sequencer, after, through) = (self.partition, outgoing.last_slice, batch.epoch);
            let size = content.as_ref().map_or(0, |content| content.len());
            let slot = ExchangeMessage::Slot { sequencer, after, through, logged, content };
            if size > 0 || logged > 0 {
                self.counts.slices_out += 1;
                outgoing.last_slice = batch.epoch;
                outgoing.keep(batch.epoch, size, slot.clone());
            }
            self.send(to, batch.epoch, slot, out);
        }
        self.report_to_peers(out);
        let content = (!batch.chunks.is_empty() || !batch.lookups.is_empty()).then(|| batch.clone());
        self.order.put(self.partition, Epoch(0), batch.epoch, content);
    }

    /// Sends a message of an epoch to the nodes that are to have what goes to a partition.
    pub(super) fn send(
        &self,
        to: PartitionId,
        epoch: Epoch,
        message: ExchangeMessage<X>,
        out: &mut Outbox<Message<X>>,
    ) {
        if self.is_replaying || self.founding.is_some() {
            return;
        }
        for node in self.outgoing[usize::from(to.0)].receivers(epoch) {
            out.send(self.at(node), message.clone());
        }
    }

    /// Sends a remote result of a shard of this node to one of another partition.
    pub(super) fn send_remote_result(
        &mut self,
        to: u16,
        remote_result: Arc<X>,
        out: &mut Outbox<Message<X>>,
    ) {
        let partition = self.settings.topology.layout.partition_of_shard(usize::from(to));
        let (epoch, weight) = (remote_result.epoch(), remote_result.weight());
        self.counts.remote_results_out += 1;
        let message = ExchangeMessage::RemoteResult { to, remote_result };
        let outgoing = &mut self.outgoing[usize::from(partition.0)];
        outgoing.keep(epoch, weight, message.clone());
        if self.settings.bugs.has(Bug::LoseRemoteResult) && self.counts.remote_results_out % 53 == 7 {
            return;
        }
        self.send(partition, epoch, message, out);
    }

    pub(super) fn outgoing_to(&mut self, node: NodeId) -> &mut Outgoing<X> {
        let partition = self.settings.topology.partition_of(node);
        &mut self.outgoing[usize::from(partition.0)]
    }

    /// A node asks for everything after an epoch. One of another replica has lost its own source: this one stands in.
    /// What it has, it need not have on disk yet: it may ask for that again, so nothing is forgotten.
    pub(super) fn resume(&mut self, node: NodeId, after: Epoch, out: &mut Outbox<Message<X>>) {
        let outgoing = self.outgoing_to(node);
        let is_new = !outgoing.serves(node);
        match outgoing.ask_again(node, after) {
            Ok(()) => {
                self.counts.substituted += u64::from(is_new && !self.is_peer(node));
                self.go_on(node, out);
            }
            Err(Forgotten(epoch)) => out.send(self.at(node), ExchangeMessage::Forgotten(epoch)),
        }
    }

    /// Sends a node the next of what it has asked for.
    pub(super) fn go_on(&mut self, node: NodeId, out: &mut Outbox<Message<X>>) {
        let (at, sealed, sequencer, most) = (self.at(node), self.sealed, self.partition, self.settings.piece);
        let size = |message: &ExchangeMessage<X>| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            bytes.len()
        };
        let outgoing = self.outgoing_to(node);
        let piece = outgoing.next_piece(node, most, size);
        let after = outgoing.last_slice;
        match piece {
            Ok(Some(Piece { messages, is_last })) => {
                self.counts.sent_again += messages.len() as u64;
                messages.into_iter().for_each(|message| out.send(at, message));
                if !is_last {
                    return out.send(at, ExchangeMessage::Pause);
                }
                out.send(
                    at,
                    ExchangeMessage::Slot { sequencer, after, through: sealed, logged: 0, content: None },
                );
                out.send(at, ExchangeMessage::Opened(self.opened));
            }
            Ok(None) => {}
            Err(Forgotten(epoch)) => out.send(at, ExchangeMessage::Forgotten(epoch)),
        }
    }

    /// A node needs nothing more up to an epoch.
    pub(super) fn note_progress(&mut self, node: NodeId, epoch: Epoch) {
        let most = self.settings.kept_max;
        self.outgoing_to(node).note_progress(node, epoch, most);
    }
}
