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

/// The state at a cut, while it is given away.
#[derive(Debug)]
struct Cut {
    place: Epoch,
    next: Next,
    on_their_way: u32,
    pace: Pace,
    rests: bool,
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
        let (pace, next) = (Pace::default(), Next::First(image));
        self.cut = Some(Cut { place, next, on_their_way: 0, pace, rests: false });
    }

    /// The checkpointer has written a piece, or given the checkpoint up.
    pub fn take(&mut self, saving: &Saving, agreed: &mut Agreed) {
        let Some(cut) = &mut self.cut else { return };
        match saving {
            Saving::Taken(place) if *place == cut.place => cut.on_their_way -= 1,
            Saving::Dropped(place) if *place == cut.place => {
                self.cut = None;
                agreed.hold(None);
            }
            _ => {}
        }
    }

    /// Giving has rested.
    pub fn rested(&mut self) {
        self.cut.iter_mut().for_each(|cut| cut.rests = false);
    }

    /// Gives the next piece away, unless it rests; answers how long it rests then, if more is to come.
    pub fn give(&mut self, agreed: &mut Agreed, out: &mut Outbox<Message>) -> Option<Micros> {
        let (Some(Giving { to, piece: enough }), Some(cut)) = (self.giving, &mut self.cut) else {
            return None;
        };
        if cut.rests || cut.on_their_way >= ON_THEIR_WAY {
            return None;
        }
        let place = cut.place;
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
        if !piece.is_empty() {
            cut.on_their_way += 1;
            out.send(to, Saving::Piece { epoch: place, piece });
        }
        match next {
            Some(next) => {
                cut.next = next;
                let rest = cut.pace.rest(self.applied);
                cut.rests = rest > Micros(0);
                Some(rest)
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
