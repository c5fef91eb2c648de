//! A shard and its twins: what the [witness](super::super::witness) has to say is said here.

use ordain_model::serial::key_of;
use ordain_model::{Chunk, DigestSpan, Epoch, Gsn, Txn, Value};
use ordain_role::{NodeId, Outbox};
use ordain_store::RecordStore;

use super::{Core, turn_of};
use crate::shard::backlog::Turn;
use crate::shard::messages::Message;
use crate::shard::messages::{Item, ShardMessage};
use crate::shard::spans;
use crate::shard::witness::Vouch;

/// How many records that were changed are hashed in one go while nothing is under way: a millisecond's.
const SETTLED: usize = 8 << 10;

impl<S: RecordStore> Core<S> {
    /// Changes of the state from now on are a batch's.
    #[inline]
    pub(crate) fn credit(&mut self, turn: Turn) {
        self.witness.credit(turn, || self.store.digest());
    }

    /// Everything up to a batch is executed: what twins have said of it is compared with what came of it here.
    pub(in crate::shard) fn compare(&mut self, turn: Turn) {
        match self.witness.applied(turn, || self.store.digest()) {
            Ok(vouches) => self.vouches.extend(vouches),
            Err(diverged) => _ = self.broken.get_or_insert(diverged),
        }
    }

    /// Looks for the digests at the ends of late epochs.
    pub(in crate::shard) fn note_spans(&mut self) {
        let complete = self.backlog.complete();
        if !self.witness.twins().is_empty() {
            let found = spans::marks(complete).filter_map(|mark| self.witness.span_at(mark, complete));
            found.for_each(|span| self.spans.note(span));
        } else if self.backlog.is_idle() {
            self.store.settle(SETTLED);
            if self.store.unsettled() == 0 {
                self.note_span(complete);
            }
        }
    }

    /// The batch of an epoch is about to be handed in: the last moment to look at what was before it.
    pub(in crate::shard) fn note_span_before(&mut self, next: Epoch) {
        if self.witness.twins().is_empty()
            && self.backlog.is_idle()
            && spans::has_mark(self.backlog.applied().0, next)
            && self.store.unsettled() <= spans::HASHED_MAX
        {
            self.note_span(Epoch(next.0.saturating_sub(1)));
        }
    }

    /// Nothing is under way, and nothing up to the end of an epoch is still to come.
    fn note_span(&mut self, last: Epoch) {
        let (first, digest) = (self.backlog.applied().0, self.store.digest());
        self.spans.note(DigestSpan { first, last, digest });
    }

    /// A twin has said what its digests were.
    pub(in crate::shard) fn take_vouches(&mut self, twin: NodeId, letter: &ShardMessage) {
        for (gsn, item) in &letter.items {
            let Item::Vouch { digest, doubted } = *item else {
                self.broken.get_or_insert(format!("shard {} was told by a twin: {item:?}", self.number));
                return;
            };
            match self.witness.hear(twin, Vouch { after: turn_of(*gsn), digest, doubted }) {
                Ok(vouch) => self.vouches.extend(vouch),
                Err(diverged) => _ = self.broken.get_or_insert(diverged),
            }
        }
    }

    /// Tells twins what this shard's digests were.
    pub(in crate::shard) fn vouch(&mut self, out: &mut Outbox<Message>) {
        if self.vouches.is_empty() {
            return;
        }
        let item = |vouch: Vouch| {
            let Vouch { after: (epoch, partition), digest, doubted } = vouch;
            (Gsn::new(epoch, partition, 0), Item::Vouch { digest, doubted })
        };
        let items: Vec<(Gsn, Item)> = self.vouches.drain(..).map(item).collect();
        for twin in self.witness.twins() {
            let letter = ShardMessage { from: self.number, items: items.clone(), bytes: Vec::new() };
            out.send(*twin, Message::Engine(letter));
        }
    }

    /// Tells them the last one.
    pub(in crate::shard) fn vouch_now_and_then(&mut self, out: &mut Outbox<Message>) {
        self.vouches.extend(self.witness.news());
        self.vouch(out);
    }

    /// Changes the first record of a transaction, if it is here, as nobody has asked for.
    pub(crate) fn flip(&mut self, chunk: &Chunk, txn: &Txn) {
        let is_last = usize::from(self.places.replica) == self.witness.twins().len();
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
