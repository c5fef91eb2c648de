//! What an exchange receives, and how it hands the batches of all partitions to the shards in the one order.

use std::sync::Arc;

use ordain_model::{Batch, Epoch, PartitionId};
use ordain_replication::Held;
use ordain_role::{Bug, NodeId, Outbox};

use super::Exchange;
use crate::sequencing::interleave::Put;
use crate::sequencing::message::{ExchangeMessage, Log, Message, RemoteResult, Sequencing};

impl<X: RemoteResult> Exchange<X> {
    /// Something has come from another node.
    pub(super) fn admit(&mut self, from: NodeId, message: ExchangeMessage<X>, out: &mut Outbox<Message<X>>) {
        if let ExchangeMessage::Beginning { is_ready, has_begun } = message {
            return self.take_beginning(from, (is_ready, has_begun), out);
        }
        if let Some(founding) = &mut self.founding {
            return founding.hold(from, message);
        }
        let admitted = match &mut self.fence {
            None => Some(message),
            Some(fence) => fence.admit(from, message),
        };
        admitted.into_iter().for_each(|message| self.receive(from, message, out));
    }

    /// Takes something from another node, or again from the journal.
    pub(super) fn receive(
        &mut self,
        from: NodeId,
        message: ExchangeMessage<X>,
        out: &mut Outbox<Message<X>>,
    ) {
        match message {
            ExchangeMessage::Slot { sequencer, after, through, logged, content } => {
                if self.take_slot(from, sequencer, (after, through), (logged, content), out) {
                    self.note_opened(through, out);
                }
            }
            ExchangeMessage::RemoteResult { to, remote_result } => {
                self.take_remote_result(from, to, remote_result, out)
            }
            ExchangeMessage::Opened(epoch) => self.note_opened(epoch, out),
            ExchangeMessage::Progress(epoch) => {
                self.note_progress(from, epoch);
                if let Some(journal) = &mut self.journal {
                    journal.note_progress(from, epoch);
                }
                self.relieve(from, out);
            }
            ExchangeMessage::Resume(after) => self.resume(from, after, out),
            ExchangeMessage::Relieved => self.outgoing_to(from).leave(from),
            ExchangeMessage::Forgotten(epoch) => {
                self.catch_up.note(from, epoch);
                self.go_on_catching_up(out);
            }
            ExchangeMessage::Arrival(_) | ExchangeMessage::Terms(_) | ExchangeMessage::Beginning { .. } => {}
            ExchangeMessage::Pause => self.send_when_durable(from, ExchangeMessage::Continue, out),
            ExchangeMessage::Continue => self.go_on(from, out),
            ExchangeMessage::Fetch { from: entry, after } => self.serve(from, (entry, after), out),
            ExchangeMessage::Fetched { from: entry, next, covers, journal_records } => {
                self.take_fetched(from, (entry, next), covers, &journal_records, out);
            }
            ExchangeMessage::Trimmed(epoch) => self.note_trimmed(from, epoch, out),
        }
    }

    pub(super) fn take_remote_result(
        &mut self,
        from: NodeId,
        to: u16,
        remote_result: Arc<X>,
        out: &mut Outbox<Message<X>>,
    ) {
        let mine = self.settings.topology.layout.shards_of(self.partition);
        let shard = usize::from(to).checked_sub(mine.start).and_then(|n| self.settings.shards.get(n));
        let Some(shard) = shard.copied() else {
            return out
                .halt(format!("node {} sent a remote result for shard {to}, which is not here", from.0));
        };
        self.counts.remote_results_in += 1;
        self.fence.iter_mut().for_each(|fence| fence.note_executed(remote_result.last()));
        if remote_result.epoch() <= self.progress {
            // The node sends again a remote result that is done with.
            self.counts.known += 1;
            return;
        }
        if let Some(journal) = self.journal.as_mut().filter(|_| !self.is_replaying) {
            journal.note_message(
                from,
                &ExchangeMessage::RemoteResult { to, remote_result: remote_result.clone() },
            );
        }
        out.send(shard, Message::Engine(Arc::unwrap_or_clone(remote_result)));
    }

    /// Takes a batch that a sequencer has sealed; true if it was new.
    pub(super) fn take_slot(
        &mut self,
        from: NodeId,
        sequencer: PartitionId,
        (after, through): (Epoch, Epoch),
        (logged, content): (u32, Option<Arc<Vec<u8>>>),
        out: &mut Outbox<Message<X>>,
    ) -> bool {
        if sequencer == self.partition || sequencer.0 >= self.partitions() {
            out.halt(format!("node {} sent a batch of partition {sequencer}", from.0));
            return false;
        }
        if let Some(fence) = self.fence.as_mut().filter(|_| self.is_replaying && through <= self.begun) {
            // A checkpoint covers it, so it is not executed again. The partition's next primary may have to know it still.
            fence.note_slot(
                sequencer,
                after,
                Held { epoch: through, parts: logged, content: content.clone() },
            );
        }
        // A batch that is known or has a gap before it need not be decoded.
        let known = self.order.through(sequencer);
        if through <= known || after > known {
            self.counts.known += u64::from(through <= known);
            self.counts.gaps += u64::from(after > known);
            return false;
        }
        let mut batch = None;
        if let Some(content) = &content {
            match Batch::decode(&self.registry, content) {
                Ok(b)
                    if (b.epoch, b.partition) == (through, sequencer)
                        && b.layout == self.layout_version() =>
                {
                    batch = Some(Arc::new(b));
                }
                Ok(_) => {
                    out.halt(format!("node {} sent a batch that is not what it says", from.0));
                    return false;
                }
                Err(error) => {
                    out.halt(format!("node {} sent a damaged batch: {error}", from.0));
                    return false;
                }
            }
        }
        if batch.is_some() && self.settings.bugs.has(Bug::SkipSlot) && through.0 % 41 == 11 {
            batch = None;
        }
        if self.order.put(sequencer, after, through, batch) == Put::New {
            self.counts.slices_in += 1;
            if let Some(fence) = &mut self.fence {
                fence.note_slot(
                    sequencer,
                    after,
                    Held { epoch: through, parts: logged, content: content.clone() },
                );
            }
            if let Some(journal) = self.journal.as_mut().filter(|_| !self.is_replaying) {
                journal.note_message::<X>(
                    from,
                    &ExchangeMessage::Slot { sequencer, after, through, logged, content },
                );
            }
        }
        true
    }

    pub(super) fn layout_version(&self) -> u32 {
        self.settings.topology.layout.version()
    }

    /// Notes that a sequencer has opened an epoch.
    pub(super) fn note_opened(&mut self, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        if epoch > self.opened {
            self.opened = epoch;
            if !self.is_replaying && epoch > self.sealed {
                out.send(self.settings.sequencer, Sequencing::Reached(epoch));
            }
        }
    }

    /// Hands the shards the batches that come next, and notes the epoch up to which they have all.
    pub(super) fn deliver(&mut self, out: &mut Outbox<Message<X>>) {
        while let Some(batch) = self.order.pop() {
            let mut next = vec![batch];
            if self.settings.bugs.has(Bug::WrongInterleave) && next[0].epoch.0 % 5 == 2 {
                next.extend(self.order.pop());
                next.reverse();
            }
            for batch in next {
                self.handed.push_back((batch.epoch, batch.partition));
                for shard in &self.settings.shards {
                    out.send(*shard, Log::Sealed(batch.clone()));
                }
            }
        }
        if self.order.passed() > self.passed {
            self.passed = self.order.passed();
            self.settings.shards.iter().for_each(|shard| out.send(*shard, Sequencing::Passed(self.passed)));
        }
        let slowest = self.applied.values().min().copied().unwrap_or_default();
        while self.handed.front().is_some_and(|batch| *batch <= slowest) {
            self.handed.pop_front();
        }
        let unfinished = self.handed.front().map_or(Epoch(u64::MAX), |batch| Epoch(batch.0.0 - 1));
        let progress = self.order.passed().min(unfinished);
        if progress > self.progress {
            self.progress = progress;
            let partition = self.partition;
            out.send(self.settings.sequencer, Sequencing::Applied { epoch: progress, partition });
            // A node that was still executing what it has on disk when it asked, has not lacked it after all.
            for node in self.catch_up.settled(progress) {
                out.send(self.at(node), ExchangeMessage::Resume(self.catch_up.reach(progress)));
            }
        }
    }
}
