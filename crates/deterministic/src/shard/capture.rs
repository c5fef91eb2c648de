//! The progress of a checkpoint on a shard: which part of the state at the end of an epoch is given away.

use ordain_checkpoint::Pace;
use ordain_execution::PastValues;
use ordain_model::{CheckpointMode, Digest, Epoch, Micros, Position, SessionId};
use ordain_role::Address;

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
    /// Values on disk that the next piece has.
    pub(crate) past: PastValues,
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
    pace: Pace,
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
            pace: Pace::default(),
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
        let rest = self.pace.rest(ended);
        self.rests = rest > Micros(0);
        rest
    }
}
