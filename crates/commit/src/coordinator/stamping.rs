//! The stamps that a coordinator gives to attempts: below the agreed ceiling of its home, so that no successor gives one again
//! (R-CEILING). An attempt whose stamp would be above it begins once the log has agreed on a higher one.
//!
//! Stamps come from the home's own clock, or from one counter for all homes ([`counter`](super::counter)).

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Abort, Epoch, Micros, Millis, OutcomeBatch, StampSource};

use super::counter::{COUNTER, Counter, Requests};
use super::resolving::Doubts;
use super::{ATTEMPT_MAX, Coordinator, GIVE_UP_AFTER, State};
use crate::desk::{Desk, Site};
use crate::ids::Age;
use crate::stamps::{StampClock, Stamps, micros_of};

/// See the module.
#[derive(Debug, Default)]
pub struct Stamping {
    pub(super) clock: StampClock,
    stamps: Stamps,
    /// The source of stamps, where attempts have stamps of their own before they run.
    source: Option<StampSource>,
    /// Transactions whose next attempt, or the second stamp of their attempt, waits for the ceiling to rise.
    waiting: BTreeSet<u64>,
    /// Where attempts have two stamps, the first one of each transaction's last attempt.
    begun: BTreeMap<u64, Age>,
    by_stamp: BTreeSet<(Age, u64)>,
    /// Transactions of several regions in doubt here, and the last stamp of before them.
    pub(super) doubts: Doubts,
    /// Transactions whose next attempt waits for the counter.
    pub(super) requests: Requests,
    /// The counter.
    pub(super) counter: Counter,
    /// The latest time that was wanted in this turn.
    pub(super) wanted: Option<Millis>,
}

impl Stamping {
    /// Stamps as the options of the node say.
    pub fn new(site: &Site) -> Stamping {
        let source = (site.stamps == Stamps::OfAttempt).then_some(site.source);
        Stamping { stamps: site.stamps, source, ..Stamping::default() }
    }

    /// Takes note of a stamp: later ones are given from now on. A clock alone takes note of none.
    pub fn hear(&mut self, stamp: Age) {
        if !self.is_clock() {
            self.clock.hear(stamp);
        }
    }

    /// True if stamps are those of the home's clock, whatever stamps there are elsewhere.
    pub(super) fn is_clock(&self) -> bool {
        self.source == Some(StampSource::Clock)
    }

    /// The time since the Unix epoch by the clock that gives stamps.
    pub(super) const fn shown(desk: &Desk<'_>) -> Micros {
        desk.now.wall.plus(desk.site.skew)
    }

    /// The number by which an answer tells where the transaction has taken effect, if it has: that of its decision, or the stamp of the
    /// attempt where attempts have one. An answer that is found again does not know that.
    pub(super) fn place(&self, decision: Epoch, stamp: Option<Age>) -> Epoch {
        match stamp.filter(|_| decision > Epoch(0)) {
            _ if self.stamps == Stamps::OfTransaction => decision,
            Some(stamp) => Epoch(stamp.0),
            None => Epoch(0),
        }
    }

    /// An attempt begins with a stamp, in place of the one before it.
    pub(super) fn begin(&mut self, number: u64, stamp: Age) {
        if self.stamps.are_two() {
            self.end(number);
            self.begun.insert(number, stamp);
            self.by_stamp.insert((stamp, number));
        }
    }

    /// A transaction is over.
    pub(super) fn end(&mut self, number: u64) {
        if let Some(stamp) = self.begun.remove(&number) {
            self.by_stamp.remove(&(stamp, number));
        }
    }

    /// The first stamp with which an attempt has begun, or may begin from now on.
    pub(super) fn oldest(&self) -> Age {
        let first = self.by_stamp.first().map_or(self.clock.last(), |(stamp, _)| *stamp);
        self.doubts.quiet().map_or(first, |quiet| quiet.min(first))
    }

    /// The node serves its partition no more.
    pub fn stand(&mut self) {
        self.waiting.clear();
        self.requests.stand();
        self.counter.stand();
        self.doubts = Doubts::default();
        self.wanted = None;
    }

    /// Stamps an attempt that sees no earlier time than this one, unless a clock alone gives stamps; nothing if the ceiling is too low for
    /// it, or the counter has to be asked.
    pub(super) fn stamp(&mut self, number: u64, now: Millis, desk: &Desk<'_>) -> Option<Age> {
        if self.source == Some(StampSource::Counter) {
            self.requests.want(number);
            return None;
        }
        let shown = Stamping::shown(desk);
        let time = if self.is_clock() { shown } else { micros_of(now).max(shown) };
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
        let is_given_here = self.stamping.source != Some(StampSource::Counter);
        if is_given_here || desk.site.partition == COUNTER {
            self.stamping.clock.hear(Age::first_at(desk.agreed.ceiling()));
        }
    }

    /// The number that the token of an answer has, given that of its place.
    pub(super) fn seen(&self, place: Epoch) -> u64 {
        match self.stamping.stamps {
            Stamps::OfTransaction => place.0,
            Stamps::AtCommit if place > Epoch(0) => place.0,
            // The order of a connection is that of stamps, those that were heard of included. The stamp of what is answered again is not known, and
            // has been heard of: it is below the ceiling of a predecessor, or was given here.
            Stamps::AtCommit | Stamps::OfAttempt | Stamps::TwoOfAttempt => self.heard().0,
        }
    }

    /// The first stamp that an attempt may have which begins now, where its stamp is chosen when it commits: after all those of which
    /// clients of its node were told (R-TOKEN).
    pub(super) fn first_stamp(&self, desk: &Desk<'_>) -> Age {
        self.heard().next().max(desk.site.stamps.given(desk.agreed.ceiling()).from)
    }

    /// Clients of this node are told of outcomes elsewhere: tokens are stamps.
    pub fn told(&mut self, batch: &OutcomeBatch, stamps: Stamps) {
        let tokens = batch.outcomes.iter().map(|outcome| batch.token(outcome).number());
        if let Some(latest) = tokens.max().filter(|_| stamps != Stamps::OfTransaction) {
            self.stamping.hear(Age(latest));
        }
    }

    /// The latest time of a stamp that was wanted in this turn: the ceiling should be above it.
    pub fn take_wanted(&mut self) -> Option<Millis> {
        self.stamping.wanted.take()
    }

    /// An attempt begins that has a stamp of its own.
    pub(super) fn begin_stamped(&mut self, number: u64, stamp: Age, desk: &mut Desk<'_>) {
        if let Some(live) = self.live.get_mut(&number) {
            live.age = stamp;
            self.stamping.begin(number, stamp);
            self.run_attempt(number, stamp.time(), desk);
        }
    }

    /// The next attempt at a transaction begins when the ceiling has risen or the counter has answered, or the transaction is given up.
    pub(super) fn wait_for_stamp(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        live.state = State::Waiting;
        if desk.elapsed().since(live.since) > GIVE_UP_AFTER {
            return self.give_up(number, Abort::Unavailable, desk);
        }
        self.agenda.set(number, desk.elapsed().plus(ATTEMPT_MAX));
    }

    /// The ceiling has risen: attempts that have waited for it begin, here and, of the counter, elsewhere.
    pub fn go_on_stamped(&mut self, desk: &mut Desk<'_>) {
        for number in std::mem::take(&mut self.stamping.waiting) {
            match self.live.get(&number).map(|live| &live.state) {
                Some(State::Validating { .. }) => self.ask_own(number, desk),
                _ => self.begin_attempt(number, desk),
            }
        }
        self.give_stamps(desk);
    }
}
