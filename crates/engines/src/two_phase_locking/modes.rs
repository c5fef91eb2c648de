//! Lock modes of a table and of a record, and how many attempts hold each.

use std::fmt;

use ordain_commit::Mode;

/// A set of lock modes that one attempt holds or wants on one target. Modes that others of the set imply are left out.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Modes(u8);

impl Modes {
    /// No lock.
    pub(crate) const NONE: Modes = Modes(0);
    /// The intention to lock records shared.
    pub(crate) const INTENTION_SHARED: Modes = Modes(1);
    /// The intention to lock records exclusively.
    pub(crate) const INTENTION_EXCLUSIVE: Modes = Modes(2);
    /// Shared: others may only read.
    pub(crate) const SHARED: Modes = Modes(4);
    /// Exclusive: nobody else has a lock.
    pub(crate) const EXCLUSIVE: Modes = Modes(8);

    /// The single modes, by the number of their bit.
    const EACH: [Modes; 4] =
        [Modes::INTENTION_SHARED, Modes::INTENTION_EXCLUSIVE, Modes::SHARED, Modes::EXCLUSIVE];

    /// The modes that conflict with each single one.
    const CONFLICTS: [u8; 4] = [
        Modes::EXCLUSIVE.0,
        Modes::SHARED.0 | Modes::EXCLUSIVE.0,
        Modes::INTENTION_EXCLUSIVE.0 | Modes::EXCLUSIVE.0,
        0b1111,
    ];

    /// Returns the lock of an access on the target itself.
    #[inline]
    pub(crate) const fn of(mode: Mode) -> Modes {
        match mode {
            Mode::Shared => Modes::SHARED,
            Mode::Exclusive | Mode::Blind => Modes::EXCLUSIVE,
        }
    }

    /// Returns the lock on the table that an access to a record implies.
    #[inline]
    pub(crate) const fn intention(mode: Mode) -> Modes {
        match mode {
            Mode::Shared => Modes::INTENTION_SHARED,
            Mode::Exclusive | Mode::Blind => Modes::INTENTION_EXCLUSIVE,
        }
    }

    /// Returns the mode in which the whole target is locked, if it is.
    pub(crate) const fn whole(self) -> Option<Mode> {
        if self.has(Modes::EXCLUSIVE) {
            Some(Mode::Exclusive)
        } else if self.has(Modes::SHARED) {
            Some(Mode::Shared)
        } else {
            None
        }
    }

    /// Returns those of the modes that are for writing.
    #[inline]
    pub(crate) const fn written(self) -> Modes {
        Modes(self.0 & (Modes::INTENTION_EXCLUSIVE.0 | Modes::EXCLUSIVE.0))
    }

    #[inline]
    const fn has(self, one: Modes) -> bool {
        self.0 & one.0 != 0
    }

    /// Returns the least set that implies both.
    #[inline]
    #[must_use]
    pub(crate) const fn with(self, more: Modes) -> Modes {
        let both = self.0 | more.0;
        if both & Modes::EXCLUSIVE.0 != 0 {
            Modes::EXCLUSIVE
        } else if both & !Modes::INTENTION_SHARED.0 != 0 {
            Modes(both & !Modes::INTENTION_SHARED.0)
        } else {
            Modes(both)
        }
    }

    /// Returns whether the set implies another.
    #[inline]
    pub(crate) fn covers(self, other: Modes) -> bool {
        self.with(other) == self
    }

    /// Returns every single mode that conflicts with the set.
    #[inline]
    fn opposed(self) -> u8 {
        (0..4).filter(|bit| self.0 & 1 << bit != 0).fold(0, |all, bit| all | Modes::CONFLICTS[bit])
    }

    /// Returns whether two attempts may not hold these sets together.
    #[inline]
    pub(crate) fn conflicts_with(self, other: Modes) -> bool {
        self.opposed() & other.0 != 0
    }
}

impl fmt::Debug for Modes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            0 => "none",
            1 => "IS",
            2 => "IX",
            4 => "S",
            6 => "SIX",
            8 => "X",
            _ => "modes that no attempt can have",
        })
    }
}

/// The number of attempts that hold each mode of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([u32; 4]);

impl Counts {
    /// Counts one attempt's modes.
    #[inline]
    pub(crate) fn add(&mut self, modes: Modes) {
        Modes::EACH.iter().zip(&mut self.0).for_each(|(one, count)| *count += u32::from(modes.has(*one)));
    }

    /// Takes one attempt's modes out of the count.
    #[inline]
    pub(crate) fn remove(&mut self, modes: Modes) {
        Modes::EACH.iter().zip(&mut self.0).for_each(|(one, count)| *count -= u32::from(modes.has(*one)));
    }

    /// Returns whether the modes that an attempt wants conflict with those that others hold, its own being `own`.
    #[inline]
    pub(crate) fn conflict(&self, own: Modes, wanted: Modes) -> bool {
        let opposed = wanted.opposed();
        let others =
            Modes::EACH.iter().zip(&self.0).filter(|(one, count)| **count > u32::from(own.has(**one)));
        others.fold(0, |all, (one, _)| all | one.0) & opposed != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_conflict_as_in_the_table_of_gray() {
        let [is, ix, s, x] = Modes::EACH;
        let six = s.with(ix);
        let all = [is, ix, s, six, x];
        // Columns: IS, IX, S, SIX, X.
        let rows = ["....#", "..###", ".#.##", ".####", "#####"];
        for (a, row) in all.iter().zip(rows) {
            for (b, cell) in all.iter().zip(row.chars()) {
                assert_eq!(a.conflicts_with(*b), cell == '#', "{a:?} {b:?}");
                let mut counts = Counts::default();
                counts.add(*b);
                assert_eq!(counts.conflict(Modes::NONE, *a), cell == '#', "{a:?} {b:?}");
                assert!(!counts.conflict(*b, *a), "an attempt does not conflict with itself");
                counts.remove(*b);
                assert_eq!(counts, Counts::default());
            }
        }
        assert_eq!(format!("{:?} {:?} {:?}", is.with(s), six.with(is), six.with(x)), "S SIX X");
        assert!(six.covers(ix) && six.covers(is) && !ix.covers(s) && x.covers(six) && !s.covers(ix));
        assert_eq!([is, s, ix, six, x].map(Modes::written), [Modes::NONE, Modes::NONE, ix, ix, x]);
        assert_eq!((six.whole(), x.whole(), ix.whole()), (Some(Mode::Shared), Some(Mode::Exclusive), None));
    }
}
