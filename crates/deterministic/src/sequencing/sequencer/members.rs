//! Members of a partition: one sequencer leads, the others pass on to it what gateways submit to them, and again when another
//! one leads (docs/protocols/calvin.md, replication).

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ordain_model::{
    Batch, Chunk, ChunkNo, Epoch, Flow, Front, GatewayId, Micros, OutcomeStatus, PauseNo, Placed,
};
use ordain_role::{Address, NodeId, Now, Outbox};

use super::{PAUSE, PAUSE_FOR, Sequencer};
use crate::sequencing::chunks::Chunks;
use crate::sequencing::message::{Message, Sequencing};

/// The node whose batches the members take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leader {
    Me,
    Other(NodeId),
    /// No node, or none that is known.
    Nobody,
}

/// The chunks that a sequencer with members knows.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) sealed: Chunks,
    /// Chunks that were turned away here. Their gateways were answered, but may not have received it.
    away: Chunks,
    /// Chunks that wait here, or are on their way.
    pub(super) queued: BTreeSet<(GatewayId, ChunkNo)>,
    /// Waiting chunks that others have had, and may yet put into a batch.
    pub(super) travelled: BTreeSet<(GatewayId, ChunkNo)>,
    /// Chunks that have left for the leader and were not seen since, with the time, oldest first.
    passed_on: VecDeque<(Micros, Arc<Chunk>)>,
    /// Chunks on their way to the leader. One that waits there has not left: it is not dropped however long it takes.
    flow: Flow<Arc<Chunk>>,
}

impl Members {
    /// The time after which a chunk is not passed on again: its client waits no more.
    const PATIENCE: Micros = Micros::from_millis(10_000);

    /// A chunk does not wait here any more.
    pub(super) fn forget(&mut self, id: (GatewayId, ChunkNo)) {
        self.queued.remove(&id);
        self.travelled.remove(&id);
    }

    /// Turns a chunk away: its gateway was answered, so nothing of it may be sequenced here later.
    pub(super) fn turn_away(&mut self, chunk: &Chunk) {
        self.forget((chunk.gateway, chunk.number));
        self.away.note_chunk(chunk);
    }

    /// Tells whether a chunk that is submitted again will never be answered by the shards: it was turned away here, or
    /// is too old to tell.
    pub(super) fn is_unanswered(&self, chunk: &Chunk) -> bool {
        self.sealed.is_forgotten(chunk) || self.away.is_known(chunk) && !self.sealed.is_known(chunk)
    }

    /// Checks that every chunk that waits is known as such, and that chunks were passed on in the order of their times.
    pub(super) fn check<'a>(&self, mut waiting: impl Iterator<Item = &'a Arc<Chunk>>) -> Result<(), String> {
        let is_lacking = |chunk: &&Arc<Chunk>| {
            let is_house = chunk.gateway == GatewayId::HOUSE;
            !is_house && !self.queued.contains(&(chunk.gateway, chunk.number)) && !self.sealed.is_known(chunk)
        };
        if let Some(chunk) = waiting.find(is_lacking) {
            let Chunk { gateway, number, .. } = **chunk;
            return Err(format!("chunk {} of gateway {} waits and is not known to", number.0, gateway.0));
        }
        match self.passed_on.iter().is_sorted_by_key(|(at, _)| *at) {
            true => Ok(()),
            false => Err("chunks were passed on out of the order of their times".to_owned()),
        }
    }

    /// Members have agreed on a batch.
    pub(super) fn note(&mut self, batch: &Batch) {
        self.sealed.note(batch);
        let mut agreed = BTreeSet::new();
        for placed in &batch.chunks {
            let id = (placed.chunk.gateway, placed.chunk.number);
            self.forget(id);
            agreed.insert(id);
        }
        if !agreed.is_empty() {
            let is_open =
                |(_, chunk): &(Micros, Arc<Chunk>)| !agreed.contains(&(chunk.gateway, chunk.number));
            self.passed_on.retain(is_open);
        }
    }
}

impl<X> Sequencer<X> {
    /// Another leads now, or this one does.
    pub(super) fn led_by(&mut self, now: Now, leader: Leader, last: Epoch, out: &mut Outbox<Message<X>>) {
        let is_new = std::mem::replace(&mut self.leader, leader) != leader;
        self.epoch = self.epoch.max(last);
        if is_new && leader != Leader::Nobody {
            self.pass_on_again(now, out);
            self.ask_leader_again(out);
        }
        if let Leader::Other(node) = leader {
            for chunk in self.waiting.take() {
                self.pass_on(now, node, chunk, out);
            }
            if self.reached > self.epoch {
                out.send(Address { node, ..self.neighbours.me }, Sequencing::Reached(self.reached));
            }
        }
    }

    /// Passes chunks on again that a former leader may have lost, before those that have not left yet.
    pub(super) fn pass_on_again(&mut self, now: Now, out: &mut Outbox<Message<X>>) {
        let Some(members) = &mut self.members else { return };
        let passed_on = std::mem::take(&mut members.passed_on).into_iter();
        let recent = passed_on.filter(|(at, _)| now.elapsed.since(*at) < Members::PATIENCE);
        let again: Vec<_> = recent.map(|(_, chunk)| chunk).chain(members.flow.give_up(true)).collect();
        self.pass_on_all(now, again, out);
    }

    pub(super) fn pass_on_all(
        &mut self,
        now: Now,
        chunks: impl IntoIterator<Item = Arc<Chunk>>,
        out: &mut Outbox<Message<X>>,
    ) {
        for chunk in chunks {
            match self.leader {
                Leader::Other(node) => self.pass_on(now, node, chunk, out),
                Leader::Me | Leader::Nobody => self.submit(now, true, chunk, out),
            }
        }
    }

    /// Another leads: it is for that one to put the chunk in a batch.
    pub(super) fn pass_on(
        &mut self,
        now: Now,
        node: NodeId,
        chunk: Arc<Chunk>,
        out: &mut Outbox<Message<X>>,
    ) {
        // The house's own are made again by the leader.
        if chunk.gateway == GatewayId::HOUSE {
            return;
        }
        let id = (chunk.gateway, chunk.number);
        let is_it = |placed: &Placed| (placed.chunk.gateway, placed.chunk.number) == id;
        let is_in_log = self.in_log.iter().any(|entry| entry.batch.chunks.iter().any(is_it));
        let Some(members) = &mut self.members else { return };
        if is_in_log {
            // The chunk is on its way still: should that batch be lost, it waits here again, and not twice.
            members.travelled.insert(id);
        } else {
            members.forget(id);
        }
        let Some(chunk) = members.flow.admit(chunk) else { return };
        let is_late = |(at, _): &(Micros, _)| now.elapsed.since(*at) >= Members::PATIENCE;
        while members.passed_on.pop_front_if(|passed| is_late(passed)).is_some() {}
        members.passed_on.push_back((now.elapsed, chunk.clone()));
        self.counts.passed_on += chunk.txns().len() as u64;
        let pause = members.flow.note_sent(chunk.bytes(), self.settings.piece);
        let to = Address { node, ..self.neighbours.me };
        out.send(to, Front::Submit(chunk));
        pause.into_iter().for_each(|pause| out.send(to, Front::Pause(pause)));
    }

    /// Passes on more: the leader has taken everything before a pause.
    pub(super) fn go_on_passing(&mut self, now: Now, pause: PauseNo, out: &mut Outbox<Message<X>>) {
        let waiting = self.members.as_mut().map(|members| members.flow.note_come(pause));
        self.pass_on_all(now, waiting.unwrap_or_default(), out);
    }

    /// Takes back a batch that was lost: its transactions are sequenced again, here or by the leader.
    pub(super) fn lost(&mut self, now: Now, batch: &Batch, out: &mut Outbox<Message<X>>) {
        self.counts.lost += u64::from(batch.total);
        self.want_again(batch.epoch, out);
        self.under_way.retain(|epoch| *epoch != batch.epoch);
        for placed in &batch.chunks {
            self.waiting.put_back(placed.chunk.clone());
        }
        self.pausing = true;
        out.set_timer(PAUSE, PAUSE_FOR);
        self.led_by(now, self.leader, self.epoch, out);
    }

    /// Turns a whole chunk away whose writes cannot be taken, where others might still take it: no part of it may go
    /// on its way again. True if it did.
    pub(super) fn turn_away(&mut self, chunk: &Chunk, out: &mut Outbox<Message<X>>) -> bool {
        let is_known = |members: &Members| members.sealed.is_known(chunk);
        if self.members.as_ref().is_none_or(is_known) || !chunk.txns().iter().any(|txn| txn.logged) {
            return false;
        }
        self.counts.refused += chunk.txns().len() as u64;
        self.answer_all(chunk, OutcomeStatus::Refused, |_| true, out);
        self.members.iter_mut().for_each(|members| members.turn_away(chunk));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_that_waits_unknown_and_chunks_out_of_their_order_are_found() {
        let chunk = |number| Arc::new(Chunk::new(GatewayId(1), ChunkNo(number)));
        let waiting = [chunk(1), chunk(2)];
        let mut members = Members::default();
        members.queued.extend([(GatewayId(1), ChunkNo(1)), (GatewayId(1), ChunkNo(2))]);
        assert_eq!(members.check(waiting.iter()), Ok(()));
        members.queued.remove(&(GatewayId(1), ChunkNo(2)));
        assert!(members.check(waiting.iter()).unwrap_err().contains("chunk 2 of gateway 1"));
        members.sealed.note_chunk(&waiting[1]);
        assert_eq!(members.check(waiting.iter()), Ok(()), "it was agreed on meanwhile");
        members.passed_on.extend([(Micros(2), chunk(3)), (Micros(1), chunk(4))]);
        assert!(members.check(waiting.iter()).unwrap_err().contains("out of the order"));
    }
}
