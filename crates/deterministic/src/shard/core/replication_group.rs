//! The replication group: the shard's side of the [digest exchange](super::super::digest_exchange).

use ordain_model::serial::key_of;
use ordain_model::{Chunk, DigestSpan, Epoch, Gsn, Txn, Value};
use ordain_role::{NodeId, Outbox};
use ordain_store::RecordStore;

use super::{Core, batch_of};
use crate::shard::backlog::BatchPlace;
use crate::shard::digest_exchange::Attestation;
use crate::shard::messages::Message;
use crate::shard::messages::{Item, ShardMessage};
use crate::shard::spans;

/// How many records that were changed are hashed in one go while nothing is under way: a millisecond's.
const SETTLED: usize = 8 << 10;

impl<S: RecordStore> Core<S> {
    /// Credits changes of the state to a batch from now on.
    #[inline]
    pub fn credit(&mut self, place: BatchPlace) {
        self.digests.exchange.credit(place, || self.store.digest());
    }

    /// Compares attestations of members to a batch with the digest here: everything up to it is executed.
    pub(in crate::shard) fn compare(&mut self, place: BatchPlace) {
        match self.digests.exchange.applied(place, || self.store.digest()) {
            Ok(attestations) => self.digests.outgoing.extend(attestations),
            Err(diverged) => _ = self.broken.get_or_insert(diverged),
        }
    }

    /// Notes the digests at the ends of late epochs.
    pub(in crate::shard) fn note_spans(&mut self) {
        let complete = self.order.backlog.complete();
        if !self.digests.exchange.members().is_empty() {
            let found =
                spans::marks(complete).filter_map(|mark| self.digests.exchange.span_at(mark, complete));
            found.for_each(|span| self.digests.spans.note(span));
        } else if self.order.backlog.is_idle() {
            self.store.settle(SETTLED);
            if self.store.unsettled() == 0 {
                self.note_span(complete);
            }
        }
    }

    /// Notes the digest before the batch of an epoch is handed in.
    pub(in crate::shard) fn note_span_before(&mut self, next: Epoch) {
        if self.digests.exchange.members().is_empty()
            && self.order.backlog.is_idle()
            && spans::has_mark(self.order.backlog.applied().0, next)
            && self.store.unsettled() <= spans::HASHED_MAX
        {
            self.note_span(Epoch(next.0.saturating_sub(1)));
        }
    }

    /// Notes the digest at the end of an epoch: nothing is under way, and nothing up to that is still to come.
    fn note_span(&mut self, last: Epoch) {
        let (first, digest) = (self.order.backlog.applied().0, self.store.digest());
        self.digests.spans.note(DigestSpan { first, last, digest });
    }

    /// Takes the attestations of a member.
    pub(in crate::shard) fn take_attestations(&mut self, member: NodeId, remote_result: &ShardMessage) {
        for (gsn, item) in &remote_result.items {
            let Item::Attestation { digest, doubted } = *item else {
                self.broken
                    .get_or_insert(format!("shard {} was sent by a member: {item:?}", self.site.number));
                return;
            };
            match self
                .digests
                .exchange
                .receive(member, Attestation { after: batch_of(*gsn), digest, doubted })
            {
                Ok(attestation) => self.digests.outgoing.extend(attestation),
                Err(diverged) => _ = self.broken.get_or_insert(diverged),
            }
        }
    }

    /// Sends this shard's attestations to its members.
    pub(in crate::shard) fn attestation(&mut self, out: &mut Outbox<Message>) {
        if self.digests.outgoing.is_empty() {
            return;
        }
        let item = |attestation: Attestation| {
            let Attestation { after: (epoch, partition), digest, doubted } = attestation;
            (Gsn::new(epoch, partition, 0), Item::Attestation { digest, doubted })
        };
        let items: Vec<(Gsn, Item)> = self.digests.outgoing.drain(..).map(item).collect();
        for member in self.digests.exchange.members() {
            let remote_result =
                ShardMessage { from: self.site.number, items: items.clone(), bytes: Vec::new() };
            out.send(*member, Message::Engine(remote_result));
        }
    }

    /// Attests to the last digest, now and then.
    pub(in crate::shard) fn attestation_now_and_then(&mut self, out: &mut Outbox<Message>) {
        self.digests.outgoing.extend(self.digests.exchange.news());
        self.attestation(out);
    }

    /// Changes the first record of a transaction, if it is here: a planted bug.
    pub fn flip(&mut self, chunk: &Chunk, txn: &Txn) {
        let is_last = usize::from(self.site.places.replica) == self.digests.exchange.members().len();
        let fragment = chunk.fragments(txn).iter().find(|f| f.is_keyed() && self.owns(f));
        let Some(fragment) = fragment.filter(|_| is_last) else { return };
        let key = key_of(chunk.args(txn), fragment).bytes;
        let Some(record) = self.store.find(fragment.db, key, fragment.hash) else { return };
        let version = self.store.version(record);
        self.store.edit(record, version, |cell, changed| {
            if let Some(Value::String(bytes)) = &mut cell.value {
                bytes.push(b'0');
                *changed = true;
            }
        });
    }
}
