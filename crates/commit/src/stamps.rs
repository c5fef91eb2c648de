//! The stamps of attempts (baselines.md, 4.1 and 4.3): how long one stays, and the clock that gives them.
//!
//! A clock gives stamps that are later than all that it has given or heard of. Participants tell of the latest stamp that they know
//! with every answer. So a coordinator whose wall clock is behind is refused once, and not again.

use ordain_model::{Micros, Millis, PartitionId};

use crate::concurrency::Reads;
use crate::ids::{Age, Bounds};

/// The life of a stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamps {
    /// A transaction has the time at which it came, over all attempts at it. It may have that of another transaction.
    #[default]
    OfTransaction,
    /// Each attempt has a stamp that no other attempt has. It is below the ceiling of the partition whose leader gives it (R-CEILING), mostly its
    /// home, and the time that the attempt sees is the stamp's.
    OfAttempt,
    /// Each attempt has two: with the first one it begins and reads, and the time that it sees is that one's. With the second one it commits, if
    /// it may write. The coordinator draws that when it asks its participants to validate the attempt, and the request takes it along. Both come from
    /// one counter and are below the ceiling of its home (R-CEILING). All participants are of one partition, whose leader is the coordinator.
    TwoOfAttempt,
    /// An attempt has [bounds](crate::Bounds), which participants narrow, and a stamp once it commits. Attempts that do not
    /// conflict may have one. Bounds are below the ceiling of each partition that has promised them (R-CEILING). The time that an
    /// attempt sees is its coordinator's.
    AtCommit,
}

/// Stamps of attempts are remembered for so long before the ceiling. An attempt that takes longer may be refused.
const REMEMBERED: Millis = Millis(5_000);

impl Stamps {
    /// The stamp below which nothing is remembered, given the ceiling that the log has agreed on: a partition promises and commits no
    /// attempt with an earlier one from then on. Accesses are remembered for ever where no attempt has a stamp.
    pub fn floor(self, ceiling: Millis) -> Age {
        match self {
            Stamps::OfTransaction => Age(0),
            Stamps::OfAttempt | Stamps::TwoOfAttempt | Stamps::AtCommit => first_before(ceiling, REMEMBERED),
        }
    }

    /// The time before which older contents are forgotten, given the ceiling, where attempts have snapshots: as a stamp.
    pub fn kept_from(ceiling: Millis) -> Age {
        first_before(ceiling, REMEMBERED)
    }

    /// The stamps that are given to an attempt whose first one is this yet, given the ceiling.
    ///
    /// They begin half as far before the ceiling as what is forgotten. An attempt is given later ones than its first only if that is half as near to the
    /// floor: else each step of the ceiling would part the bounds that its participants have left it.
    pub fn given_to(self, first: Age, ceiling: Millis) -> Bounds {
        let given = self.given(ceiling);
        let is_near = self.are_chosen_late() && first < first_before(ceiling, Millis(REMEMBERED.0 * 3 / 4));
        if is_near { given } else { Bounds { from: Age(0), ..given } }
    }

    /// The stamps that are given to attempts which begin now, given the ceiling.
    pub fn given(self, ceiling: Millis) -> Bounds {
        let from = match self {
            Stamps::OfTransaction | Stamps::OfAttempt | Stamps::TwoOfAttempt => Age(0),
            Stamps::AtCommit => first_before(ceiling, Millis(REMEMBERED.0 / 2)),
        };
        Bounds { from, until: Age::first_at(ceiling) }
    }

    /// True if an attempt sees the time of the stamp with which it begins.
    pub fn tell_time(self) -> bool {
        matches!(self, Stamps::OfAttempt | Stamps::TwoOfAttempt)
    }

    /// True if an attempt is given a second stamp when it is validated.
    pub fn are_two(self) -> bool {
        self == Stamps::TwoOfAttempt
    }

    /// The versions that an attempt reads where it takes no snapshot of decisions. With two stamps, what only reads takes effect at its first one.
    /// The reads of an interactive transaction are of the stamp that the first of them fixes, since they are answered before it is validated.
    pub fn reads(self, only_reads: bool, is_interactive: bool) -> Reads {
        match self {
            Stamps::TwoOfAttempt if only_reads => Reads::Fixed,
            Stamps::TwoOfAttempt if is_interactive => Reads::First,
            _ => Reads::Newest,
        }
    }

    /// True if an attempt that has changed nothing, and reads these versions, takes effect without being validated: all that it has read is of one
    /// stamp.
    pub fn spare(self, reads: Reads) -> bool {
        self.are_two() && matches!(reads, Reads::Fixed | Reads::Resolved)
    }

    /// True if an attempt's stamp is chosen when it commits.
    pub fn are_chosen_late(self) -> bool {
        self == Stamps::AtCommit
    }
}

/// The first stamp of a time that is so long before a ceiling.
fn first_before(ceiling: Millis, by: Millis) -> Age {
    Age::first_at(Millis(ceiling.0.saturating_sub(by.0)))
}

/// No stamp is later that was given: a clock that heard of one could soon give none.
pub const LATEST: Age = Age(u64::MAX >> 1);

/// The clock of a coordinator.
#[derive(Clone, Copy, Debug, Default)]
pub struct StampClock {
    last: Age,
}

impl StampClock {
    /// Takes note of a stamp: later ones are given from now on. One that is too late may come from another node, and is not heeded.
    pub fn hear(&mut self, stamp: Age) {
        if stamp <= LATEST {
            self.last = self.last.max(stamp);
        }
    }

    /// The latest stamp that was given or heard of.
    pub const fn last(&self) -> Age {
        self.last
    }

    /// The next stamp of a home, at the given time since the Unix epoch or later. It is given once it is [heard of](StampClock::hear).
    pub fn next(&self, time: Micros, home: PartitionId) -> Age {
        let next = Age::stamp(time, home);
        if next > self.last { next } else { Age::stamp(Micros(self.last.micros().0 + 1), home) }
    }
}

/// The time since the Unix epoch in microseconds.
pub const fn micros_of(time: Millis) -> Micros {
    Micros(time.0.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_rise_whatever_the_wall_clock_shows() {
        let (mut clock, home) = (StampClock::default(), PartitionId(3));
        let mut last = Age(0);
        for time in [5_000, 5_000, 4_000, 0, 5_001, 9_000] {
            let next = clock.next(Micros(time), home);
            assert!(next > last && next.micros() >= Micros(time), "{next:?} at {time}");
            assert_eq!(clock.next(Micros(time), home), next, "it is not given yet");
            clock.hear(next);
            last = next;
        }
        assert_eq!((last.micros(), last.time()), (Micros(9_000), Millis(9)));
        clock.hear(Age::first_at(Millis(50)));
        clock.hear(Age(u64::MAX));
        assert!(clock.next(Micros(9_001), home) > Age::first_at(Millis(50)));
    }

    #[test]
    fn reads_with_two_stamps_go_by_what_a_transaction_may_do() {
        let two = Stamps::TwoOfAttempt;
        let reads =
            [(true, false), (false, true), (false, false)].map(|(reads, open)| two.reads(reads, open));
        assert_eq!(reads, [Reads::Fixed, Reads::First, Reads::Newest]);
        assert_eq!(reads.map(|reads| two.spare(reads)), [true, false, false]);
        for other in [Stamps::OfTransaction, Stamps::OfAttempt, Stamps::AtCommit] {
            assert_eq!((other.reads(true, false), other.spare(Reads::Fixed)), (Reads::Newest, false));
        }
        assert!(two.tell_time() && Stamps::OfAttempt.tell_time() && !Stamps::AtCommit.tell_time());
    }

    #[test]
    fn stamps_of_two_homes_differ() {
        let all: std::collections::BTreeSet<Age> = (0..128)
            .flat_map(|home| (0..20).map(move |time| Age::stamp(Micros(time), PartitionId(home))))
            .collect();
        assert_eq!(all.len(), 128 * 20);
        // A home that has heard of another's gives a later one.
        let mut clock = StampClock::default();
        clock.hear(Age::stamp(Micros(7), PartitionId(9)));
        assert_eq!(clock.next(Micros(7), PartitionId(2)), Age::stamp(Micros(8), PartitionId(2)));
        assert_eq!(clock.next(Micros(7), PartitionId(10)), Age::stamp(Micros(7), PartitionId(10)));
    }

    #[test]
    fn no_time_is_beyond_a_stamp() {
        for time in [Millis(0), Millis(1), Millis(1_700_000_000_123), crate::times::LATEST] {
            let first = Age::first_at(time);
            assert!(first.time() <= time);
            assert!(first.time() == time || first == Age(u64::MAX), "{time:?}");
        }
    }
}
