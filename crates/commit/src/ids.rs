//! The names of what the family deals with: terms, transactions, attempts, and who speaks for a partition.

use std::fmt;

use ordain_model::serial::seed_of;
use ordain_model::{Gsn, Micros, Millis, PartitionId, codec};

/// A term of a partition: from the moment in which a node begins to serve it to the moment in which that node serves it
/// no more. Terms rise, and each begins with an entry of the partition's log.
///
/// With a replication group a term is of a term of that group, which may have several: a leader that could not write for a while
/// may lead on without an election, and has dropped what it was at. A node on its own begins one at each start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

codec!(struct Term(_));

impl Term {
    /// The bits that number the terms within one of the group's.
    const WITHIN: u32 = 16;

    /// The first term within a term of the group.
    pub const fn first_of(group: u64) -> Term {
        Term(group << Term::WITHIN)
    }

    /// The term of the group that it is in.
    pub const fn of_group(self) -> u64 {
        self.0 >> Term::WITHIN
    }

    /// Its number within the group's term.
    pub(crate) const fn within(self) -> u64 {
        self.0 & ((1 << Term::WITHIN) - 1)
    }

    /// The term of this number within a term of the group; `None` if there are no such numbers.
    pub(crate) fn of(group: u64, within: u64) -> Option<Term> {
        let is_one = group <= u64::MAX >> Term::WITHIN && within < 1 << Term::WITHIN;
        is_one.then_some(Term(group << Term::WITHIN | within))
    }

    /// The term after this one.
    #[must_use]
    pub const fn next(self) -> Term {
        Term(self.0 + 1)
    }
}

/// A node's claim to speak for a partition: it serves it in this term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lead {
    /// The partition.
    pub partition: PartitionId,
    /// The term.
    pub term: Term,
}

codec!(struct Lead { partition, term });

impl fmt::Display for Lead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} in term {}", self.partition.0, self.term.0)
    }
}

/// A transaction: its coordinator's claim, and a number that the coordinator gives once in a term.
///
/// Transactions of one coordinator are ordered by age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransactionId {
    /// The home partition, and the term in which its leader took the transaction.
    pub home: Lead,
    /// The number, from 1.
    pub number: u64,
}

codec!(struct TransactionId { home, number });

impl TransactionId {
    /// A transaction of the first partition in term 0, where nothing but the number matters.
    pub const fn of(number: u64) -> TransactionId {
        TransactionId { home: Lead { partition: PartitionId(0), term: Term(0) }, number }
    }
}

/// An attempt at a transaction. A later attempt has a larger number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptId {
    /// The transaction.
    pub transaction: TransactionId,
    /// Its number among the attempts at it, from 1.
    pub attempt: u32,
}

codec!(struct AttemptId { transaction, attempt });

impl AttemptId {
    /// The claim under which the attempt was made.
    pub const fn home(&self) -> Lead {
        self.transaction.home
    }

    /// The seed of all that the attempt draws. Two attempts, also of different homes or terms, have hardly ever the same.
    pub const fn seed(&self) -> u64 {
        let TransactionId { home: Lead { partition, term }, number } = self.transaction;
        let home = seed_of(Gsn(term.0 << 16 ^ partition.0 as u64));
        seed_of(Gsn(seed_of(Gsn(home ^ number)) ^ self.attempt as u64))
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TransactionId { home, number } = self.transaction;
        write!(f, "{}/{}/{number}.{}", home.partition.0, home.term.0, self.attempt)
    }
}

/// The stamp of an attempt: a smaller one is older. It lives as long as the engine's [`Stamps`](crate::Stamps) say.
///
/// - The begin stamp of a transaction is kept over all attempts at it: microseconds since the Unix epoch, as its coordinator has them;
///   equal ones are told apart by the transactions.
/// - The stamp of one attempt is made of such microseconds and of the partition whose leader gives it, in the lower ten bits; that is the home, or the
///   first one where it gives all. The stamp is unique, because one node at a time leads that partition, and ceilings part a leader's
///   stamps from those of its successor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Age(pub u64);

codec!(struct Age(_));

impl Age {
    /// The bits that tell homes apart. There are fewer partitions than that.
    const HOME: u32 = 10;

    /// The stamp of a home's attempt at a time since the Unix epoch, which stays right for 571 years.
    pub const fn stamp(time: Micros, home: PartitionId) -> Age {
        Age(time.0 << Age::HOME | home.0 as u64)
    }

    /// The lower bits of a stamp, which name the partition that has given it.
    pub(crate) const fn home(self) -> u64 {
        self.0 & ((1 << Age::HOME) - 1)
    }

    /// The stamp of a time in microseconds and of such lower bits; `None` if there is none.
    pub(crate) fn of_parts(time: u64, home: u64) -> Option<Age> {
        let is_one = time <= u64::MAX >> Age::HOME && home < 1 << Age::HOME;
        is_one.then_some(Age(time << Age::HOME | home))
    }

    /// The first stamp at a time since the Unix epoch; the last of all if none is as late.
    pub fn first_at(time: Millis) -> Age {
        let stamp = time.0.checked_mul(1_000 << Age::HOME);
        Age(stamp.unwrap_or(u64::MAX))
    }

    /// The stamp of the same home so many microseconds later, the last of all if there is none.
    #[must_use]
    pub const fn later(self, by: Micros) -> Age {
        Age(self.0.saturating_add(by.0.saturating_mul(1 << Age::HOME)))
    }

    /// The stamp after this one, whatever home it is of; the last of all has none.
    #[must_use]
    pub const fn next(self) -> Age {
        Age(self.0.saturating_add(1))
    }

    /// The time of a stamp since the Unix epoch.
    pub const fn micros(self) -> Micros {
        Micros(self.0 >> Age::HOME)
    }

    /// The time of a stamp since the Unix epoch, rounded down.
    pub const fn time(self) -> Millis {
        Millis(self.micros().0 / 1_000)
    }
}

/// The stamps that an attempt may have yet: an interval. Where its stamp is known before it runs that is the only one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The first of them.
    pub from: Age,
    /// The first stamp after them.
    pub until: Age,
}

codec!(struct Bounds { from, until });

impl Bounds {
    /// One stamp alone.
    pub const fn at(stamp: Age) -> Bounds {
        Bounds { from: stamp, until: stamp.next() }
    }

    /// Every stamp from this one on.
    pub const fn from(stamp: Age) -> Bounds {
        Bounds { from: stamp, until: Age(u64::MAX) }
    }

    /// True if there is no stamp in them.
    pub fn is_empty(self) -> bool {
        self.from >= self.until
    }

    /// True if a stamp is in them.
    pub fn has(self, stamp: Age) -> bool {
        self.from <= stamp && stamp < self.until
    }

    /// The stamps that are in both.
    #[must_use]
    pub fn with(self, other: Bounds) -> Bounds {
        Bounds { from: self.from.max(other.from), until: self.until.min(other.until) }
    }

    /// The lowest ceiling that they are below: a time since the Unix epoch.
    pub fn ceiling(self) -> Millis {
        let time = self.until.time();
        if Age::first_at(time) >= self.until { time } else { Millis(time.0 + 1) }
    }
}
