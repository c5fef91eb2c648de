//! The gate of a table: it keeps attempts out that would starve a whole-table access (commit.md, R-TABLE).
//!
//! Where an access to the whole table is refused for others that came first, under load some attempt nearly always stands in its way: with
//! no-wait it holds a lock that conflicts, with stamps it has written under a later one. A
//! transaction whose whole-table access was refused [`AFTER`] times closes the gate: a younger transaction that would gain a
//! conflicting lock on the table is refused, whether it is new here or had a weaker lock. Where stamps do not stay with a transaction
//! nobody is known to be older: every other one is refused, but for accesses to the whole table, which pass in the order of ids.
//!
//! - No deadlock: the gate only refuses.
//! - The lock is had: conflicting locks are gained by older transactions alone, of which there are finitely many, and each
//!   attempt that holds one ends. The transaction is known by its id over its attempts. Ids begin with the home, so those of
//!   accesses to the whole table alone are few enough to go by them.
//! - Two transactions at the gates of two participants: an older one passes the gate of a younger one, and takes it over if it is
//!   refused. So the oldest has every gate that it needs, and they cannot refuse each other for ever.
//! - Bounded: the gate opens once its transaction was refused [`ASKED_MAX`] times behind it, or once some other one was
//!   refused [`PATIENCE`] times since that transaction asked last, because its coordinator is gone then. Both wait alike
//!   between attempts, so the bound depends neither on their number nor on a clock.

use std::collections::BTreeMap;

use ordain_commit::{Age, AttemptId, Mode, Seniority, Target, TransactionId};
use ordain_role::{Bug, Bugs};

use super::{Attempt, Modes};

/// Refusals of a transaction's whole-table accesses that close the gate.
pub(crate) const AFTER: u32 = 4;
/// Refusals of another transaction, since the one that closed the gate asked last, that open it. With pauses that double up
/// to 5 ms, a new transaction comes seven times while one with the longest pause comes once.
pub(crate) const PATIENCE: u32 = 32;
/// Refusals of the transaction behind its own gate that open it.
pub(crate) const ASKED_MAX: u32 = 64;
/// Transactions whose refusals are counted. Beyond them the one that asked longest ago is forgotten.
const CLAIMS: usize = 16;

/// The refusals of one transaction's whole-table accesses.
#[derive(Debug)]
struct Claim {
    who: Seniority,
    refusals: u32,
    /// The number of the refusal that came last, among those of all claims.
    last: u64,
}

/// A closed gate.
#[derive(Debug)]
struct Closed {
    /// The transaction for which it is closed.
    owner: Seniority,
    /// The lock on the table that the transaction wants.
    wanted: Modes,
    /// Refusals of the transaction since then.
    asked: u32,
    /// Refusals of each other transaction since the owner asked last.
    others: BTreeMap<TransactionId, u32>,
}

/// The place of a transaction at gates where its stamps do not stay.
pub(crate) fn by_id(who: AttemptId) -> Seniority {
    (Age(0), who.transaction)
}

/// The gate of one participant's table.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    claims: Vec<Claim>,
    closed: Option<Closed>,
    refusals: u64,
    closings: u64,
}

impl Gate {
    /// Returns how often the gate was closed.
    pub(crate) fn closings(&self) -> u64 {
        self.closings
    }

    /// Returns whether an attempt must not gain a lock on the table, and opens the gate if that has been so for too long.
    #[inline]
    pub(crate) fn stops(&mut self, who: Seniority, wanted: Modes) -> bool {
        self.stops_unless(who.1, wanted, |owner| who <= owner)
    }

    /// Answers as [`Gate::stops`], where the owner tells whether a transaction passes.
    fn stops_unless(
        &mut self,
        who: TransactionId,
        wanted: Modes,
        passes: impl FnOnce(Seniority) -> bool,
    ) -> bool {
        let Some(closed) = &mut self.closed else { return false };
        if passes(closed.owner) || !wanted.conflicts_with(closed.wanted) {
            return false;
        }
        let refusals = closed.others.entry(who).or_default();
        *refusals += 1;
        if *refusals < PATIENCE {
            return true;
        }
        self.open();
        false
    }

    /// Lets an attempt in that has a stamp, for an access to a record or to the whole table, unless the gate is closed for it. Its modes on the table tell
    /// what it was let in for; that of an access to the whole table is added once it is granted.
    pub(crate) fn lets_in<K>(
        &mut self,
        attempt: &mut Attempt<K>,
        target: Target,
        mode: Mode,
        bugs: Bugs,
    ) -> bool {
        let wanted = match target {
            Target::Table => Modes::of(mode),
            Target::Record(_) => Modes::intention(mode),
        };
        if attempt.table.covers(wanted) {
            return true;
        }
        let modes = attempt.table.with(wanted);
        let who = by_id(attempt.id);
        let passes = |owner| match target {
            Target::Table => who <= owner,
            Target::Record(_) => who == owner,
        };
        // Planted, IN-TURN.
        if self.stops_unless(who.1, modes, passes) && !bugs.has(Bug::PassTable) {
            return false;
        }
        if matches!(target, Target::Record(_)) {
            attempt.table = modes;
        }
        true
    }

    /// Takes note that a transaction's whole-table access was refused because others hold locks.
    pub(crate) fn note_refused(&mut self, who: Seniority, wanted: Modes) {
        self.refusals += 1;
        let last = self.refusals;
        let refusals = match self.claims.iter_mut().find(|claim| claim.who == who) {
            Some(claim) => {
                claim.refusals += 1;
                claim.last = last;
                claim.refusals
            }
            None => {
                if self.claims.len() == CLAIMS
                    && let Some(at) = (0..CLAIMS).min_by_key(|at| self.claims[*at].last)
                {
                    self.claims.remove(at);
                }
                self.claims.push(Claim { who, refusals: 1, last });
                1
            }
        };
        match &mut self.closed {
            Some(closed) if closed.owner == who => {
                closed.asked += 1;
                closed.wanted = wanted;
                closed.others.clear();
                if closed.asked >= ASKED_MAX {
                    self.open();
                }
            }
            Some(closed) if closed.owner < who => {}
            None if refusals < AFTER => {}
            _ => {
                self.closings += 1;
                self.closed = Some(Closed { owner: who, wanted, asked: 0, others: BTreeMap::new() });
            }
        }
    }

    /// Takes note that an attempt was refused when it was validated, if it has accessed the whole table.
    pub(crate) fn note_invalid<K>(&mut self, attempt: &Attempt<K>) {
        if let Some(mode) = attempt.table.whole() {
            self.note_refused(by_id(attempt.id), Modes::of(mode));
        }
    }

    /// Takes note that a transaction has the whole table, or has had it. If it has to come again, because another participant refuses it, one
    /// refusal closes the gate again.
    pub(crate) fn note_granted(&mut self, who: Seniority) {
        if let Some(claim) = self.claims.iter_mut().find(|claim| claim.who == who) {
            claim.refusals = claim.refusals.min(AFTER - 1);
        }
        if self.closed.as_ref().is_some_and(|closed| closed.owner == who) {
            self.closed = None;
        }
    }

    /// Opens the gate, and counts its transaction's refusals anew.
    fn open(&mut self) {
        if let Some(closed) = self.closed.take() {
            self.claims.retain(|claim| claim.who != closed.owner);
        }
    }
}
