//! The manager's part of a checkpoint: the image of the agreed state and the outcomes of sessions, given away in pieces.

use ordain_checkpoint::{Filling, Kind, ON_THEIR_WAY, Pace, Piece};
use ordain_model::{Epoch, Micros, SessionId};
use ordain_replication::Saving;
use ordain_role::{Address, Bug, Bugs, Outbox};

use crate::agreed::Agreed;
use crate::cuts::era_before;
use crate::image::Image;
use crate::message::Message;

/// What a role needs to give checkpoints away.
#[derive(Clone, Copy, Debug)]
pub struct Giving {
    /// The checkpointer.
    pub to: Address,
    /// About how many bytes a piece has.
    pub piece: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Giver {
    giving: Option<Giving>,
    cut: Option<Cut>,
    /// The number of entries that were applied.
    applied: u64,
}

/// The pieces of one role's part of a checkpoint, on their way to the checkpointer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sending {
    /// The place of the cut.
    pub(crate) place: Epoch,
    /// The pieces that are not written yet.
    on_their_way: u32,
    pace: Pace,
    rests: bool,
}

impl Sending {
    /// No piece of a checkpoint is sent yet.
    pub(crate) fn of(place: Epoch) -> Sending {
        Sending { place, on_their_way: 0, pace: Pace::default(), rests: false }
    }

    /// True if the next piece may be sent.
    pub(crate) const fn may_send(&self) -> bool {
        !self.rests && self.on_their_way < ON_THEIR_WAY
    }

    /// Sends a piece, unless it is empty.
    pub(crate) fn send(&mut self, to: Address, piece: Piece, out: &mut Outbox<Message>) {
        if !piece.is_empty() {
            self.on_their_way += 1;
            out.send(to, Saving::Piece { epoch: self.place, piece });
        }
    }

    /// Rests for as long as the load asks for, given the number of entries that were applied; answers how long that is.
    pub(crate) fn rest(&mut self, applied: u64) -> Micros {
        let pause = self.pace.rest(applied);
        self.rests = pause > Micros(0);
        pause
    }

    /// Notes that it has rested.
    pub(crate) const fn rested(&mut self) {
        self.rests = false;
    }

    /// The checkpointer has written a piece, or given the checkpoint up; answers whether it has given it up.
    pub(crate) fn is_dropped(&mut self, saving: &Saving) -> bool {
        match saving {
            Saving::Taken(place) if *place == self.place => {
                debug_assert!(self.on_their_way > 0, "a piece is written that was not sent");
                self.on_their_way = self.on_their_way.saturating_sub(1);
                false
            }
            Saving::Dropped(place) => *place == self.place,
            _ => false,
        }
    }
}

/// The state at a cut, while it is given away.
#[derive(Debug)]
struct Cut {
    sending: Sending,
    next: Next,
}

/// The part of the state that is given away next.
#[derive(Debug)]
enum Next {
    First(Image),
    Image(Image),
    /// The outcomes from this session on that have not been replaced since.
    Outcomes(SessionId),
    /// The outcomes that have.
    Replaced(SessionId),
}

impl Giver {
    /// Gives checkpoints away from now on.
    pub fn set(&mut self, giving: Giving) {
        self.giving = Some(giving);
    }

    /// True while a checkpoint is given away.
    pub const fn is_giving(&self) -> bool {
        self.cut.is_some()
    }

    /// An entry is applied.
    pub const fn applied(&mut self) {
        self.applied += 1;
    }

    /// The cut of a checkpoint is applied: the state behind it is kept.
    pub fn cut(&mut self, place: Epoch, agreed: &mut Agreed, bugs: Bugs, out: &mut Outbox<Message>) {
        let Some(Giving { to, .. }) = self.giving else { return };
        if self.cut.is_some() {
            return out.send(to, Saving::Skipped(place));
        }
        let mut image = agreed.image();
        // Planted, CUT: a checkpoint has records only.
        if bugs.has(Bug::SkipPromises) {
            image.prepared.clear();
        }
        // Planted, CUT.
        if bugs.has(Bug::SkipDecisions) {
            image.decided.clear();
        }
        agreed.hold(Some(era_before(place)));
        self.cut = Some(Cut { sending: Sending::of(place), next: Next::First(image) });
    }

    /// The checkpointer has written a piece, or given the checkpoint up.
    pub fn take(&mut self, saving: &Saving, agreed: &mut Agreed) {
        if self.cut.take_if(|cut| cut.sending.is_dropped(saving)).is_some() {
            agreed.hold(None);
        }
    }

    /// Giving has rested.
    pub fn rested(&mut self) {
        self.cut.iter_mut().for_each(|cut| cut.sending.rested());
    }

    /// Gives the next piece away, unless it rests; answers how long it rests then, if more is to come.
    ///
    /// Nothing is given of a cut that is not durable: without it there is no whole checkpoint of what may never be.
    pub fn give(
        &mut self,
        agreed: &mut Agreed,
        is_durable: impl FnOnce(Epoch) -> bool,
        out: &mut Outbox<Message>,
    ) -> Option<Micros> {
        let (Some(Giving { to, piece: enough }), Some(cut)) = (self.giving, &mut self.cut) else {
            return None;
        };
        if !cut.sending.may_send() || !is_durable(cut.sending.place) {
            return None;
        }
        let place = cut.sending.place;
        let mut filling = Filling::new(Kind::Outcomes, enough);
        let next = std::mem::replace(&mut cut.next, Next::Outcomes(SessionId(0)));
        let (piece, next): (Piece, Option<Next>) = match next {
            Next::First(image) => (image.first(), Some(Next::Image(image))),
            Next::Image(mut image) => match image.next(enough) {
                Some(piece) => (piece, Some(Next::Image(image))),
                None => (filling.piece, Some(Next::Outcomes(SessionId(0)))),
            },
            Next::Outcomes(from) => {
                agreed.outcomes().visit(from, era_before(place), &mut filling);
                (filling.piece, Some(filling.rest.map_or(Next::Replaced(SessionId(0)), Next::Outcomes)))
            }
            Next::Replaced(from) => {
                agreed.outcomes().visit_replaced(from, &mut filling);
                (filling.piece, filling.rest.map(Next::Replaced))
            }
        };
        cut.sending.send(to, piece, out);
        match next {
            Some(next) => {
                cut.next = next;
                Some(cut.sending.rest(self.applied))
            }
            None => {
                out.send(to, Saving::Last(place));
                self.cut = None;
                agreed.hold(None);
                None
            }
        }
    }
}
