//! How far a shard is with giving away the state at the end of an epoch.

use ordain_checkpoint::{Kind, Piece};
use ordain_model::{Digest, Epoch, Position, SessionId};
use ordain_role::Address;

/// How many pieces of a shard the checkpointer may have that are not written yet.
pub(crate) const ON_THEIR_WAY: u32 = 2;

/// What a shard has to do for checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// The checkpointer, where there is one.
    pub(crate) to: Option<Address>,
    /// The node runs: what it did before it was stopped has been executed again, and checkpoints of then are not made.
    pub(crate) is_live: bool,
    /// The one under way.
    pub(crate) cut: Option<Cut>,
    /// Epochs whose state was not kept, because there was one under way.
    pub(crate) skipped: Vec<Epoch>,
}

/// The state at the end of an epoch, while it is kept and given away.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) epoch: Epoch,
    pub(crate) next: Next,
    /// How many pieces are not written yet.
    pub(crate) on_their_way: u32,
    /// What the records given away add up to.
    pub(crate) digest: Digest,
}

/// What comes next of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Where the slots were.
    Map,
    /// The records from here on.
    Records(Position),
    /// The outcomes from this session on that have not been replaced since.
    Outcomes(SessionId),
    /// Those that have.
    Replaced(SessionId),
}

impl Cut {
    pub(crate) fn new(epoch: Epoch) -> Cut {
        Cut { epoch, next: Next::Map, on_their_way: 0, digest: Digest::default() }
    }
}

/// Gathers items into a piece until that is long enough; the first that does not go in is where the next one begins.
#[derive(Debug)]
pub(crate) struct Filling<At> {
    /// How long that is, bytes.
    enough: usize,
    pub(crate) piece: Piece,
    /// The item put in last.
    last: Option<At>,
    /// Where the next piece begins, if this is not all.
    pub(crate) rest: Option<At>,
}

impl<At: Copy + PartialEq> Filling<At> {
    pub(crate) fn new(kind: Kind, enough: usize) -> Filling<At> {
        Filling { enough, piece: Piece::new(kind), last: None, rest: None }
    }

    /// Whether something at this place goes in. What is at one place stays together.
    pub(crate) fn takes(&mut self, at: At) -> bool {
        let is_full = self.piece.len() >= self.enough && self.last != Some(at);
        if is_full {
            self.rest = Some(at);
        }
        self.last = Some(at);
        !is_full
    }
}
