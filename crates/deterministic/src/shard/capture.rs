//! The progress of a checkpoint on a shard: which part of the state at the end of an epoch is given away.

use ordain_checkpoint::{Kind, Piece};
use ordain_model::{CheckpointMode, Digest, Epoch, Micros, Position, SessionId};
use ordain_role::Address;

/// How long giving away rests after a piece while transactions come: some fifty times what a piece takes, so that with
/// what it costs them to keep what they replace it is a tenth at most, and rarely holds one up.
pub(crate) const REST: Micros = Micros::from_millis(15);
/// So many transactions since the piece before are a load.
const LOAD: u64 = 64;
/// The most items of a piece: each may have to be fetched from memory.
const ITEMS_MAX: usize = 512;
/// How many pieces of a shard the checkpointer may have that are not written yet.
pub(crate) const ON_THEIR_WAY: u32 = 2;

/// What a shard has to do for checkpoints.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    /// The checkpointer, where there is one.
    pub(crate) to: Option<Address>,
    /// How the state is kept.
    pub(crate) mode: CheckpointMode,
    /// The node runs: what it did before it was stopped has been executed again, and checkpoints of then are not made.
    pub(crate) is_live: bool,
    /// The one under way.
    pub(crate) cut: Option<Cut>,
    /// Epochs whose state was not kept, because there was one under way.
    pub(crate) skipped: Vec<Epoch>,
    /// Whether clients are sent to another replica, because this one stands still.
    pub(crate) turned_away: bool,
}

impl Capture {
    /// Returns whether nothing of this epoch may be executed until the state is written.
    pub(crate) fn freezes(&self, epoch: Epoch) -> bool {
        self.mode == CheckpointMode::Naive && self.cut.as_ref().is_some_and(|cut| epoch > cut.epoch)
    }
}

/// The state at the end of an epoch, while it is kept and given away.
#[derive(Debug)]
pub(crate) struct Cut {
    pub(crate) epoch: Epoch,
    pub(crate) next: Next,
    /// How many pieces are not written yet.
    pub(crate) on_their_way: u32,
    /// Whether so much is kept for it that contents given away are not kept any more: then it is not compared in the
    /// end.
    pub(crate) is_large: bool,
    /// What the records given away add up to.
    pub(crate) digest: Digest,
    /// No piece is given until a timer has fired.
    pub(crate) rests: bool,
    /// How many transactions had ended here when the last piece was given.
    ended: u64,
}

/// The part of the state that is given away next.
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
    /// Nothing; only that all of it is written, where nothing goes on before.
    Written,
}

impl Cut {
    pub(crate) fn new(epoch: Epoch) -> Cut {
        Cut {
            epoch,
            next: Next::Map,
            on_their_way: 0,
            is_large: false,
            digest: Digest::default(),
            rests: false,
            ended: 0,
        }
    }

    /// What stands before this position need not be kept any more.
    pub(crate) fn given(&self) -> Position {
        match self.next {
            Next::Records(from) if self.is_large => from,
            Next::Outcomes(_) | Next::Replaced(_) | Next::Written if self.is_large => Position::END,
            _ => Position::default(),
        }
    }

    /// How long it rests now that a piece was given, and so many transactions have ended here in all.
    pub(crate) fn rest(&mut self, ended: u64) -> Micros {
        self.rests = ended.saturating_sub(std::mem::replace(&mut self.ended, ended)) >= LOAD;
        if self.rests { REST } else { Micros(0) }
    }
}

/// Gathers items into a piece until that is long enough; the first that does not go in is where the next one begins.
#[derive(Debug)]
pub(crate) struct Filling<At> {
    /// How long that is, bytes.
    enough: usize,
    pub(crate) piece: Piece,
    /// How many items it has.
    items: usize,
    /// The item put in last.
    last: Option<At>,
    /// Where the next piece begins, if this is not all.
    pub(crate) rest: Option<At>,
}

impl<At: Copy + PartialEq> Filling<At> {
    pub(crate) fn new(kind: Kind, enough: usize) -> Filling<At> {
        Filling { enough, piece: Piece::new(kind), items: 0, last: None, rest: None }
    }

    /// Whether something at this place goes in. What is at one place stays together.
    pub(crate) fn takes(&mut self, at: At) -> bool {
        let is_long = self.piece.len() >= self.enough || self.items >= ITEMS_MAX;
        let is_full = is_long && self.last != Some(at);
        if is_full {
            self.rest = Some(at);
        }
        self.last = Some(at);
        self.items += 1;
        !is_full
    }
}
