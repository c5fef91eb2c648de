//! Outcomes: how the results of transactions travel back to the gateway that submitted them.

use std::ops::{Deref, Range};
use std::sync::Arc;

use smallvec::SmallVec;

use crate::codec;
use crate::error::Abort;
use crate::ids::{ChunkNo, GatewayId};
use crate::stamp::{Effect, Stamp, Token};
use crate::wire::{self, Codec, Reader};

/// The end of a submitted transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutcomeStatus {
    /// The transaction took effect; the reply is its own.
    Committed,
    /// The transaction took no effect, deterministically.
    Aborted(Abort),
    /// The transaction was not sequenced, because the pipeline is full: submit it again later. There is no reply.
    Busy,
    /// The transaction was not sequenced, because this node cannot make it durable now. There is no reply.
    Refused,
    /// The effect is not known: the node that would have reported it is gone. There is no reply.
    Unknown,
    /// A retry of a request whose session has gone on since: its outcome was kept until then and is gone.
    Superseded,
    /// The transaction only reads, and the state that it was to see is not kept any more. There is no reply.
    TooOld,
    /// The transaction was planned under another [map](crate::Map) than the one in force at its place, and one of its slots has moved: it
    /// took no effect. In the place of a reply stands the map in force there. Gateways plan it again; no client hears of it.
    Moved,
}

impl OutcomeStatus {
    /// The byte by which it is written.
    pub const fn code(self) -> u8 {
        match self {
            OutcomeStatus::Committed => 0,
            OutcomeStatus::Busy => 1,
            OutcomeStatus::Refused => 2,
            OutcomeStatus::Superseded => 3,
            OutcomeStatus::Unknown => 4,
            OutcomeStatus::TooOld => 5,
            OutcomeStatus::Moved => 6,
            OutcomeStatus::Aborted(abort) => 16 + abort.code(),
        }
    }

    /// The status that a byte stands for.
    pub fn from_code(code: u8) -> Option<OutcomeStatus> {
        Some(match code {
            0 => OutcomeStatus::Committed,
            1 => OutcomeStatus::Busy,
            2 => OutcomeStatus::Refused,
            3 => OutcomeStatus::Superseded,
            4 => OutcomeStatus::Unknown,
            5 => OutcomeStatus::TooOld,
            6 => OutcomeStatus::Moved,
            other => OutcomeStatus::Aborted(Abort::from_code(other.checked_sub(16)?)?),
        })
    }
}

/// The outcome of a transaction; the reply is a range of the batch's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The chunk the transaction was submitted in.
    pub chunk: ChunkNo,
    /// Its index in the chunk.
    pub index: u32,
    /// The end of the transaction.
    pub status: OutcomeStatus,
    /// The stamp of its effect; [`Stamp::NONE`] if it has none.
    pub stamp: Stamp,
    /// The place of its token in the batch.
    token: u32,
    at: u32,
    len: u32,
}

codec!(struct Outcome { chunk, index, status, stamp, token, at, len });

/// Outcomes for one gateway.
#[derive(Clone, Debug, Default)]
pub struct OutcomeBatch {
    /// Whose they are.
    pub gateway: GatewayId,
    /// In no particular order across chunks.
    pub outcomes: Vec<Outcome>,
    replies: Vec<u8>,
    /// The tokens of the outcomes. Outcomes that follow each other mostly have one in common.
    tokens: SmallVec<[Token; 2]>,
}

/// A reply that outlives the handling of its batch: it keeps the batch.
#[derive(Clone, Debug)]
pub struct KeptReply {
    batch: Arc<OutcomeBatch>,
    range: Range<usize>,
}

impl KeptReply {
    /// Keeps the reply of an outcome of a batch.
    pub fn new(batch: &Arc<OutcomeBatch>, outcome: &Outcome) -> KeptReply {
        let at = outcome.at as usize;
        KeptReply { batch: batch.clone(), range: at..at + outcome.len as usize }
    }
}

impl Deref for KeptReply {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.batch.replies[self.range.clone()]
    }
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
        effect: impl Into<Effect>,
        status: OutcomeStatus,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let Effect { stamp, token } = effect.into();
        if self.tokens.last() != Some(&token) {
            self.tokens.push(token);
        }
        let (token, at) = (self.tokens.len() as u32 - 1, self.replies.len());
        write(&mut self.replies);
        let len = self.replies.len() - at;
        self.outcomes.push(Outcome { chunk, index, status, stamp, token, at: at as u32, len: len as u32 });
    }

    /// Takes some out.
    pub fn take_out(&mut self, mut is_meant: impl FnMut(&Outcome) -> bool) -> OutcomeBatch {
        let mut taken = OutcomeBatch::new(self.gateway);
        let OutcomeBatch { outcomes, replies, tokens, .. } = self;
        for outcome in outcomes.extract_if(.., |each| is_meant(each)) {
            let Outcome { chunk, index, status, stamp, token, at, len } = outcome;
            let reply = &replies[at as usize..(at + len) as usize];
            let effect = Effect { stamp, token: tokens[token as usize].clone() };
            taken.push(chunk, index, effect, status, |out| out.extend_from_slice(reply));
        }
        taken
    }

    /// The reply of an outcome.
    #[inline]
    pub fn reply(&self, outcome: &Outcome) -> &[u8] {
        &self.replies[outcome.at as usize..(outcome.at + outcome.len) as usize]
    }

    /// The token of what a client has seen by an outcome.
    #[inline]
    pub fn token(&self, outcome: &Outcome) -> &Token {
        &self.tokens[outcome.token as usize]
    }

    /// True without outcomes.
    pub fn is_empty(&self) -> bool {
        self.outcomes.is_empty()
    }

    /// Bytes of replies held: what decides when a batch is worth sending.
    pub fn bytes(&self) -> usize {
        self.replies.len()
    }
}

impl Codec for OutcomeStatus {
    const LEAST: usize = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.code());
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<OutcomeStatus> {
        bytes.u8().and_then(OutcomeStatus::from_code)
    }
}

impl Codec for OutcomeBatch {
    const LEAST: usize = 16;

    fn encode(&self, out: &mut Vec<u8>) {
        self.gateway.encode(out);
        self.replies.encode(out);
        wire::u32(out, self.tokens.len() as u32);
        Token::encode_all(&self.tokens, out);
        self.outcomes.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<OutcomeBatch> {
        let (gateway, replies) = <(GatewayId, Vec<u8>)>::decode(bytes)?;
        let tokens = 0..bytes.count(Token::LEAST)?;
        let tokens = tokens.map(|_| Token::decode(bytes)).collect::<Option<SmallVec<_>>>()?;
        let outcomes = Vec::<Outcome>::decode(bytes)?;
        let is_within = |outcome: &Outcome| {
            let end = outcome.at.checked_add(outcome.len);
            end.is_some_and(|end| end as usize <= replies.len()) && (outcome.token as usize) < tokens.len()
        };
        outcomes.iter().all(is_within).then_some(OutcomeBatch { gateway, outcomes, replies, tokens })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_travel() {
        let mut batch = OutcomeBatch::new(GatewayId::of(3, 1));
        let aborts = Abort::ALL.map(OutcomeStatus::Aborted);
        let others =
            [OutcomeStatus::Committed, OutcomeStatus::Busy, OutcomeStatus::Refused, OutcomeStatus::TooOld];
        let more = [OutcomeStatus::Superseded, OutcomeStatus::Unknown, OutcomeStatus::Moved];
        for (i, status) in aborts.into_iter().chain(others).chain(more).enumerate() {
            let reply = vec![i as u8; i];
            let token = Token::of_vector(&[i as u64 / 3, i as u64 / 4], [i as u128 / 6]);
            let effect = Effect { stamp: Stamp::new(9), token };
            batch.push(ChunkNo(i as u64), 7, effect, status, |out| out.extend_from_slice(&reply));
        }
        let bytes = batch.to_bytes();
        let back = OutcomeBatch::from_bytes(&bytes).unwrap();
        assert_eq!((back.gateway, &back.outcomes), (batch.gateway, &batch.outcomes));
        assert!(back.outcomes.iter().all(|outcome| back.reply(outcome) == batch.reply(outcome)));
        assert!(back.outcomes.iter().all(|outcome| back.token(outcome) == batch.token(outcome)));
        let odd = batch.clone().take_out(|outcome| outcome.chunk.0 % 2 == 1);
        assert!(odd.outcomes.iter().all(|outcome| odd.token(outcome).number() == outcome.chunk.0 / 3));
        for cut in 0..bytes.len() {
            assert!(OutcomeBatch::from_bytes(&bytes[..cut]).is_none());
        }
    }
}
