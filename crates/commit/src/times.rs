//! The times that tell what has expired (R-TIME), and the ceiling below which they stay (R-CEILING).
//!
//! A record that has expired for one transaction must not be there for a later one, though that may see an earlier time: its
//! coordinator's clock may be behind. So a participant remembers the latest time at which it has looked at a record that expires, and lets
//! in nobody who sees an earlier one. Reads leave no trace in the log, so whoever leads next does not know that time; it knows
//! a ceiling that the log has agreed on, and which the times have not reached.

use ordain_model::Millis;

use crate::desk::Desk;
use crate::entry::Content;

/// A ceiling is so far ahead of the time that was asked for.
pub const AHEAD: Millis = Millis(50);

/// The latest time that an attempt may see, far beyond any clock: no ceiling must be so high that no attempt reaches it.
pub const LATEST: Millis = Millis(1 << 53);

/// The times of one participant.
#[derive(Clone, Copy, Debug, Default)]
pub struct Times {
    /// The latest time that was used; after a change of the term the ceiling then.
    floor: Millis,
    /// No time was used, or may be, that is not before this one.
    ceiling: Millis,
    /// The ceiling above which one was asked for.
    asked: Millis,
    /// The time of the latest stamp that was let in.
    admitted: Millis,
}

/// The answer to an attempt that looks at a record which expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tested {
    /// The attempt's time tells.
    Seen,
    /// A later time was used.
    TooOld(Millis),
    /// The time is not reserved yet.
    Unreserved,
}

impl Times {
    /// A term begins: any time below the ceiling may have been used before.
    pub fn begin(&mut self) {
        self.floor = self.ceiling;
    }

    /// The log has agreed on a ceiling.
    pub fn reserve(&mut self, ceiling: Millis) {
        self.ceiling = self.ceiling.max(ceiling);
    }

    /// An attempt that sees this time looks at a record which expires.
    pub fn test(&mut self, now: Millis) -> Tested {
        if now < self.floor {
            Tested::TooOld(self.floor)
        } else if now >= self.ceiling {
            Tested::Unreserved
        } else {
            self.floor = now;
            Tested::Seen
        }
    }

    /// An attempt comes whose stamp has this time; answers whether that is below the ceiling.
    pub fn admits(&mut self, time: Millis) -> bool {
        let admits = time < self.ceiling;
        if admits {
            self.admitted = self.admitted.max(time);
        }
        admits
    }

    /// The ceiling: times and stamps before it may be used.
    pub const fn ceiling(&self) -> Millis {
        self.ceiling
    }

    /// True, once for each ceiling, if a higher one should be asked for so that nobody waits for it.
    pub fn asks(&mut self) -> bool {
        let used = self.floor.max(self.admitted);
        let asks = self.asked != self.ceiling && self.ceiling.0.saturating_sub(used.0) < AHEAD.0 / 2;
        if asks {
            self.asked = self.ceiling;
        }
        asks
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        match self.floor <= self.ceiling {
            true => Ok(()),
            false => Err(format!("time {} was used above the ceiling {}", self.floor.0, self.ceiling.0)),
        }
    }
}

/// The reservations of a partition's leader.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reservation {
    /// The latest time that was asked for.
    wanted: Millis,
    /// A ceiling is on its way into the log.
    is_under_way: bool,
}

impl Reservation {
    /// A participant wants times up to this one.
    pub fn want(&mut self, time: Millis, desk: &mut Desk<'_>) {
        self.wanted = self.wanted.max(time);
        self.go_on(desk);
    }

    /// A ceiling is in the log, or never will be.
    pub fn ended(&mut self, desk: &mut Desk<'_>) {
        self.is_under_way = false;
        self.go_on(desk);
    }

    /// Asks for a ceiling if one is wanted.
    pub fn go_on(&mut self, desk: &mut Desk<'_>) {
        // A participant asks before it is at the ceiling.
        let is_wanted = self.wanted.0.saturating_add(AHEAD.0 / 2) > desk.agreed.ceiling().0;
        if is_wanted && self.wanted > Millis(0) && !self.is_under_way && !desk.appender.is_full() {
            self.is_under_way = true;
            let ceiling = Millis(self.wanted.0.saturating_add(AHEAD.0));
            desk.appender.reserve(ceiling);
            desk.append(desk.clock, Content::Reserve(ceiling));
            self.wanted = Millis(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_rise_and_stay_below_the_ceiling_over_terms() {
        let mut times = Times::default();
        assert_eq!(times.test(Millis(7)), Tested::Unreserved);
        times.reserve(Millis(60));
        assert_eq!((times.test(Millis(7)), times.test(Millis(6))), (Tested::Seen, Tested::TooOld(Millis(7))));
        assert!(!times.asks());
        assert_eq!((times.test(Millis(59)), times.test(Millis(60))), (Tested::Seen, Tested::Unreserved));
        assert_eq!((times.asks(), times.asks()), (true, false), "once");
        times.reserve(Millis(50));
        assert_eq!(times.test(Millis(60)), Tested::Unreserved, "a ceiling is never lowered");
        times.begin();
        assert_eq!(times.test(Millis(59)), Tested::TooOld(Millis(60)), "the former leader may have used it");
        times.reserve(Millis(100));
        assert_eq!((times.test(Millis(60)), times.check()), (Tested::Seen, Ok(())));
    }

    #[test]
    fn stamps_stay_below_the_ceiling_too_and_need_not_rise() {
        let mut times = Times::default();
        assert!(!times.admits(Millis(0)));
        times.reserve(Millis(100));
        assert!(times.admits(Millis(60)) && times.admits(Millis(7)) && !times.admits(Millis(100)));
        assert!(!times.asks());
        assert!(times.admits(Millis(90)) && times.admits(Millis(1)));
        assert_eq!((times.asks(), times.asks()), (true, false), "the latest counts");
        assert_eq!(times.test(Millis(3)), Tested::Seen, "a stamp that is let in looks at nothing");
    }
}
