//! Attempts with two stamps: what they have seen alive has to be alive at the stamp at which they take effect, and the answer to a validation may have
//! to wait for others.

use ordain_model::{Cell, Millis, Position};
use ordain_role::{Bug, Outbox};
use ordain_store::{RecordId, RecordStore};

use super::Participant;
use super::running::Attempt;
use crate::ids::{Age, AttemptId, Bounds};
use crate::message::{Message, Own, Validation};
use crate::times::Tested;
use crate::view::View;

/// The first time at which a content has expired that is alive at a time, if it is and will.
fn ends(cell: &Cell, now: Millis) -> Option<Millis> {
    let last = cell.expires_at;
    (!last.is_never() && last.time() >= now).then(|| Millis(last.time().0 + 1))
}

impl Participant {
    /// Takes note of what an attempt sees that will expire. It sees the time of its first stamp: what is alive then has to be alive at the stamp of
    /// what it reads too.
    pub(super) fn note_life(
        &mut self,
        who: AttemptId,
        attempt: &mut Attempt,
        record: Option<RecordId>,
    ) -> Tested {
        let (now, at) = (attempt.now, self.control.begins(who).max(attempt.age).time());
        let has_ended = match record {
            Some(record) => {
                let end = ends(self.shown(who, attempt.age, record), now);
                attempt.ends = [attempt.ends, end].into_iter().flatten().min();
                end.is_some_and(|end| end <= at)
            }
            None => {
                attempt.sees_all = true;
                at > now && self.something_ends(who, attempt.age, (now, at))
            }
        };
        match has_ended && !self.bugs.has(Bug::LookBack) {
            true => Tested::TooOld(at),
            false => Tested::Seen,
        }
    }

    /// True if something that an attempt sees is alive at one time, and has expired by another.
    fn something_ends(&self, who: AttemptId, age: Age, (now, at): (Millis, Millis)) -> bool {
        let ends_between = |cell: &Cell| ends(cell, now).is_some_and(|end| end <= at);
        let everything = (Position::default(), usize::MAX);
        let (ended, _) = self.expired(at, everything, 1, |record| ends_between(self.store.cell(record)));
        let replaced = self.control.replaced((who, age));
        !ended.is_empty() || replaced.iter().any(|(_, cell)| ends_between(cell))
    }

    /// True if all that an attempt has seen alive is alive at a stamp.
    pub(super) fn is_alive_at(&self, who: AttemptId, stamp: Age) -> bool {
        let Some(attempt) = self.attempts.get(&who) else { return true };
        let (now, at) = (attempt.now, stamp.time());
        let all_ended = attempt.sees_all && at > now && self.something_ends(who, attempt.age, (now, at));
        // Planted, TIME-RISES.
        !all_ended && attempt.ends.is_none_or(|end| at < end) || self.bugs.has(Bug::LookBack)
    }

    /// Answers with which stamps an attempt may commit, which may be none. Where it stands on others the answer waits for their ends.
    pub(super) fn answer_validation(
        &mut self,
        who: AttemptId,
        validation: &Validation,
        out: &mut Outbox<Message>,
    ) {
        let Validation { bounds, snapshot, has_effect, lets_reads_go, is_promised, oldest } = validation;
        if !has_effect {
            self.control.forgo(who);
        }
        if *lets_reads_go {
            self.control.let_reads_go(who);
        } else if *is_promised {
            self.control.keep_reads(who);
        }
        let (may, view) = self.validate(who, (*bounds, *oldest), snapshot).unzip();
        let stands = may.is_some_and(|may| !may.is_empty()) && self.control.stands_on_others(who);
        if let Some(attempt) = self.attempts.get_mut(&who).filter(|_| stands) {
            attempt.validated = may.map(|may| (may, *is_promised));
            return;
        }
        self.say_validated(who, may, view.unwrap_or_default(), *is_promised, out);
    }

    /// Locks what an attempt has written, and answers whether it is locked.
    pub(super) fn lock_writes(&mut self, who: AttemptId, out: &mut Outbox<Message>) {
        let is_complete = self.attempts.get(&who).is_some_and(|attempt| attempt.job.is_none());
        let is_locked = is_complete && self.control.lock_writes(&mut self.store, who);
        out.send(self.manager, Own::Locked(who, self.holding.number() as u16, is_locked));
    }

    /// All that a validated attempt has stood on is over.
    pub(super) fn settled(&mut self, who: AttemptId, stands: bool, out: &mut Outbox<Message>) {
        let Some(attempt) = self.attempts.get_mut(&who) else { return };
        if let Some((may, is_promised)) = attempt.validated.take() {
            let may = if stands { may } else { Bounds { until: Age(0), ..may } };
            self.say_validated(who, Some(may), View::NONE, is_promised, out);
        }
    }

    fn say_validated(
        &mut self,
        who: AttemptId,
        may: Option<Bounds>,
        view: View,
        is_promised: bool,
        out: &mut Outbox<Message>,
    ) {
        let is_promised = is_promised && may.is_some_and(|may| !may.is_empty());
        let holds = if is_promised { self.promise_holds(who) } else { Vec::new() };
        out.send(self.manager, Own::Validated(who, self.holding.number() as u16, may, view, holds));
    }
}
