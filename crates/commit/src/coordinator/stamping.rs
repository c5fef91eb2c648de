//! The stamps that a coordinator gives to attempts: below the agreed ceiling of its home, so that no successor gives one again
//! (R-CEILING). An attempt whose stamp would be above it begins once the log has agreed on a higher one.

use std::collections::BTreeSet;

use ordain_model::{Abort, Epoch, Millis, OutcomeBatch};

use super::{ATTEMPT_MAX, Coordinator, GIVE_UP_AFTER, State};
use crate::desk::Desk;
use crate::ids::Age;
use crate::stamps::{StampClock, Stamps, micros_of};

/// See the module.
#[derive(Debug, Default)]
pub struct Stamping {
    clock: StampClock,
    /// Transactions whose next attempt waits for the ceiling to rise.
    waiting: BTreeSet<u64>,
    /// The latest time that was wanted in this turn.
    wanted: Option<Millis>,
    /// Attempts have stamps of their own.
    is_on: bool,
}

impl Stamping {
    /// Takes note of a stamp: later ones are given from now on.
    pub fn hear(&mut self, stamp: Age) {
        self.clock.hear(stamp);
    }

    /// The number by which an answer tells where the transaction has taken effect, if it has: that of its decision, or with stamps of attempts the
    /// attempt's. An answer that is found again does not know that.
    pub(super) fn place(&self, decision: Epoch, stamp: Option<Age>) -> Epoch {
        match stamp.filter(|_| decision > Epoch(0)) {
            _ if !self.is_on => decision,
            Some(stamp) => Epoch(stamp.0),
            None => Epoch(0),
        }
    }

    /// The node serves its partition no more.
    pub fn stand(&mut self) {
        self.waiting.clear();
        self.wanted = None;
    }

    /// Stamps an attempt that sees no earlier time than this one; nothing if the ceiling is too low for it.
    pub(super) fn stamp(&mut self, number: u64, now: Millis, desk: &Desk<'_>) -> Option<Age> {
        let time = micros_of(now).max(desk.now.wall);
        let stamp = self.clock.next(time, desk.site.partition);
        self.wanted = self.wanted.max(Some(stamp.time()));
        if stamp.time() >= desk.agreed.ceiling() {
            self.waiting.insert(number);
            return None;
        }
        self.waiting.remove(&number);
        self.clock.hear(stamp);
        Some(stamp)
    }
}

impl Coordinator {
    /// The latest stamp that was given or heard of here.
    pub const fn heard(&self) -> Age {
        self.stamping.clock.last()
    }

    /// Takes note of a stamp: later ones are given from now on.
    pub fn hear(&mut self, stamp: Age) {
        self.stamping.hear(stamp);
    }

    /// The node serves its partition from now on, and its predecessors have given stamps below the ceiling. That has to be known before the
    /// first transaction is taken.
    pub fn begin_stamping(&mut self, desk: &Desk<'_>) {
        self.stamping.is_on = desk.site.stamps == Stamps::OfAttempt;
        self.stamping.clock.hear(Age::first_at(desk.agreed.ceiling()));
    }

    /// True if attempts have stamps of their own.
    pub(super) const fn is_stamping(&self) -> bool {
        self.stamping.is_on
    }

    /// Clients of this node are told of outcomes elsewhere: tokens are stamps.
    pub fn told(&mut self, batch: &OutcomeBatch, stamps: Stamps) {
        let tokens = batch.outcomes.iter().map(|outcome| batch.token(outcome).number());
        if let Some(latest) = tokens.max().filter(|_| stamps == Stamps::OfAttempt) {
            self.stamping.hear(Age(latest));
        }
    }

    /// The latest time of a stamp that was wanted in this turn: the ceiling should be above it.
    pub fn take_wanted(&mut self) -> Option<Millis> {
        self.stamping.wanted.take()
    }

    /// The next attempt at a transaction begins when the ceiling has risen, or the transaction is given up.
    pub(super) fn wait_for_stamp(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        live.state = State::Waiting;
        if desk.elapsed().since(live.since) > GIVE_UP_AFTER {
            return self.give_up(number, Abort::Unavailable, desk);
        }
        self.agenda.set(number, desk.elapsed().plus(ATTEMPT_MAX));
    }

    /// The ceiling has risen: attempts that have waited for it begin.
    pub fn go_on_stamped(&mut self, desk: &mut Desk<'_>) {
        for number in std::mem::take(&mut self.stamping.waiting) {
            self.begin_attempt(number, desk);
        }
    }
}
