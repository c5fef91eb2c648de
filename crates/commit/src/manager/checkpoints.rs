//! Checkpoints as a manager takes part in them: it chooses cuts, and gives its part of one away.

use ordain_replication::Saving;
use ordain_role::{Now, Outbox};

use super::{GIVE, Manager};
use crate::cuts::Answer;
use crate::desk::Desk;
use crate::message::Message;

impl Manager {
    pub(super) fn take_saving(&mut self, saving: &Saving, out: &mut Outbox<Message>) {
        match saving {
            Saving::Taken(_) | Saving::Dropped(_) => self.giver.take(saving, &mut self.agreed),
            Saving::Wanted => self.cuts.want(),
            // Its part is given without being asked for.
            Saving::Begun(_) => {}
            saving => out.halt(format!("a manager was sent a message that is not for it: {saving:?}")),
        }
    }

    pub(super) fn answer_savers(&mut self, answers: Vec<Answer>) {
        let place = self.agreed.place();
        for (asker, status) in answers {
            self.coordinator.answer_saver(asker, status, place);
        }
    }

    /// Goes on with checkpoints: chooses cuts, and gives its part of one away.
    pub(super) fn save(&mut self, now: Now, out: &mut Outbox<Message>) {
        let savers = self.coordinator.take_savers();
        let mut desk = desk!(self, now, out);
        if !savers.is_empty() {
            self.cuts.ask(savers, &mut desk);
        }
        let answers = self.cuts.pass(self.giver.is_giving(), &mut desk);
        self.answer_savers(answers);
        let is_durable = |place| self.coordinator.is_durable(place);
        if let Some(pause) = self.giver.give(&mut self.agreed, is_durable, out) {
            out.set_timer(GIVE, pause);
        }
    }
}
