//! Outcomes: how the results of transactions travel back to the gateway that submitted them.

use crate::error::Abort;
use crate::ids::{ChunkNo, GatewayId, Gsn};

/// How a submitted transaction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeStatus {
    /// It took effect; the reply is its own.
    Committed,
    /// It took no effect, deterministically.
    Aborted(Abort),
    /// It was not sequenced, because the pipeline is full: submit it again later. There is no reply.
    Busy,
    /// It was not sequenced, because this node cannot make it durable now. There is no reply.
    Refused,
    /// A retry of a request whose session has gone on since: its outcome was kept until then and is gone.
    Superseded,
}

/// One outcome; the reply is a range of the batch's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The chunk the transaction was submitted in.
    pub chunk: ChunkNo,
    /// Its index in the chunk.
    pub index: u32,
    /// How it ended.
    pub status: OutcomeStatus,
    /// Its place in the serial order; [`Gsn::NONE`] if it has none.
    pub gsn: Gsn,
    at: u32,
    len: u32,
}

/// Outcomes for one gateway.
#[derive(Clone, Debug, Default)]
pub struct OutcomeBatch {
    /// Whose they are.
    pub gateway: GatewayId,
    /// In no particular order across chunks.
    pub outcomes: Vec<Outcome>,
    replies: Vec<u8>,
}

impl OutcomeBatch {
    /// No outcomes yet.
    pub fn new(gateway: GatewayId) -> OutcomeBatch {
        OutcomeBatch { gateway, ..OutcomeBatch::default() }
    }

    /// Appends an outcome whose reply `write` appends, encoded as a [`crate::Datum`].
    #[inline]
    pub fn push(
        &mut self,
        chunk: ChunkNo,
        index: u32,
        gsn: Gsn,
        status: OutcomeStatus,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let at = self.replies.len();
        write(&mut self.replies);
        let len = self.replies.len() - at;
        self.outcomes.push(Outcome { chunk, index, status, gsn, at: at as u32, len: len as u32 });
    }

    /// The reply of an outcome.
    #[inline]
    pub fn reply(&self, outcome: &Outcome) -> &[u8] {
        &self.replies[outcome.at as usize..(outcome.at + outcome.len) as usize]
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Bytes of replies held: what decides when a batch is worth sending.
    pub fn bytes(&self) -> usize {
        self.replies.len()
    }
}
