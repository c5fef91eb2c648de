//! What a sequencer has to do with checkpoints: it asks for one when the log has grown, adds to each what it alone
//! knows, and begins from that.

use std::sync::Arc;

use ordain_checkpoint::{Outcome, Piece};
use ordain_model::wire::{Codec as _, Reader};
use ordain_model::{Batch, Call, Chunk, ChunkNo, Db, Epoch, GatewayId, Millis, system};
use ordain_replication::Saving;
use ordain_role::{Address, Outbox};

use super::Sequencer;
use super::members::Leader;
use crate::sequencing::chunks::Chunks;
use crate::sequencing::message::Message;

/// The number of its batches that may be unexecuted here while this replica stands still for a checkpoint and others
/// execute them. Its shards hold them all meanwhile.
pub(super) const LAG_STANDING: u64 = 4096;

/// The sequencer's state for checkpoints.
#[derive(Debug, Default)]
pub(super) struct Checkpoints {
    /// This replica executes nothing until a checkpoint is written, while others go on.
    pub(super) stands_still: bool,
    /// The replica that takes the next one, where one at a time does.
    turn: u16,
    /// The epoch up to which everything is durable.
    through: Epoch,
    /// The checkpointer that waits for the sequencer's part, and the epoch.
    asked: Option<(Address, Epoch)>,
    /// The bytes of batches that have become durable since the last one was begun.
    logged: u64,
    /// A member of the group needs a newer checkpoint than there is.
    pub(super) is_wanted: bool,
}

/// The sequencer's part of a checkpoint whose last batch was of this time, if no gateway of before will be met again.
pub fn input_at(now: Millis) -> Vec<u8> {
    (now, Chunks::default()).to_bytes()
}

/// The time of the last batch, out of what a sequencer has added to a checkpoint.
pub fn time_of_input(input: &[u8]) -> Option<Millis> {
    Millis::decode(&mut Reader::new(input))
}

impl<X> Sequencer<X> {
    /// Begins where a checkpoint of an epoch ends, with the part that this sequencer, or a member of it, had added to
    /// it.
    ///
    /// # Errors
    /// It is no such part.
    pub fn restore(&mut self, epoch: Epoch, input: &[u8]) -> Result<(), String> {
        let (now, sealed) =
            <(Millis, Chunks)>::from_bytes(input).ok_or("what it says of the input does not parse")?;
        self.epoch = self.epoch.max(epoch);
        self.now = self.now.max(now);
        self.checkpoints.through = epoch;
        if let Some(members) = &mut self.members {
            members.sealed = sealed;
        }
        Ok(())
    }

    /// Takes from a checkpoint what the last request of a session was.
    pub fn restore_session(&mut self, outcome: &Outcome<'_>) {
        self.sessions.put(outcome.session, outcome.request, outcome.gsn);
    }

    /// A batch is durable.
    pub(super) fn note_durable(&mut self, batch: &Batch) {
        self.checkpoints.through = self.checkpoints.through.max(batch.epoch);
        let bytes: usize = batch.logged().map(|placed| placed.chunk.logged().len()).sum();
        self.checkpoints.logged += bytes as u64;
    }

    /// A checkpoint of an epoch has been begun.
    pub(super) fn note_begun(&mut self, from: Address, epoch: Epoch) {
        self.checkpoints.asked = Some((from, epoch));
        (self.checkpoints.logged, self.checkpoints.is_wanted) = (0, false);
    }

    /// Adds to the checkpoint that is being made, and asks for the next, if it is time for either.
    pub(super) fn save(&mut self, out: &mut Outbox<Message<X>>) {
        let through = self.checkpoints.through;
        if let Some((to, epoch)) = self.checkpoints.asked.take_if(|(_, epoch)| *epoch <= through) {
            // Knowledge of later epochs in it does no harm: those are in the log, from which they are taken again.
            let mut input = Vec::new();
            self.now.encode(&mut input);
            let none = Chunks::default();
            self.members.as_ref().map_or(&none, |members| &members.sealed).encode(&mut input);
            out.send(to, Saving::Piece { epoch, piece: Piece::input(input) });
            out.send(to, Saving::Last(epoch));
        }
        let most = self.settings.checkpoint_bytes;
        let is_due = self.checkpoints.is_wanted || most > 0 && self.checkpoints.logged >= most;
        if is_due && self.leader == Leader::Me && !self.full {
            (self.checkpoints.logged, self.checkpoints.is_wanted) = (0, false);
            self.house += 1;
            let mut chunk = Chunk::new(GatewayId::HOUSE, ChunkNo(self.house));
            chunk.replica = self.checkpoints.turn;
            self.checkpoints.turn = (self.checkpoints.turn + 1) % self.settings.checkpoint_turns.max(1);
            if chunk.push(&self.registry, Call::new(system::CHECKPOINT, Db(0)), |_| {}).is_ok() {
                self.waiting.push(Arc::new(chunk));
            }
        }
    }
}
