//! The isolation levels, the anomalies, and which level forbids which: the one place that says so.
//!
//! An anomaly is either found at one transaction, and then no level allows it, or it is a cycle of dependencies. Of a
//! cycle two things matter: how many of its dependencies are *missed* writes (a transaction read, and did not see the
//! write that came next), and whether it rests on the order of a session or on real time. A level is three bounds on that.
//! Names are those of Adya ("Weak consistency", 1999), of Terry et al. for sessions (1994), of Walter for forks (2011);
//! the bounds are the theorems of Cerone and Gotsman ("Analysing snapshot isolation", 2016).

/// The dependencies of a cycle on writes that were not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Missed {
    /// None: only writes after writes and reads of writes.
    None,
    /// At most one.
    One,
    /// Any number, but never two in a row.
    Apart,
    /// Any number.
    Any,
}

/// The transactions that an order between transactions binds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bound {
    /// No transaction.
    Nobody,
    /// Transactions that write come behind all that was before them; what only reads may come earlier.
    Updates,
    /// All transactions come behind all that was before them.
    All,
}

/// The order that a cycle rests on beside its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rests {
    /// Data alone.
    Data,
    /// The order of a session.
    Session,
    /// The order of answers and questions in real time.
    Time,
    /// The order of the engine's stamps.
    Stamps,
}

/// The form of an anomaly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One transaction shows it. Every level forbids it.
    Alone,
    /// A cycle of dependencies.
    Cycle(Missed, Rests),
    /// A first read that misses what was answered before.
    Stale,
}

/// Declares the anomalies: name in reports, name of the finding that there is none, form.
macro_rules! anomalies {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, $check:literal, $form:expr;)*) => {
        /// The anomalies, the worse ones first.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Anomaly {
            $($(#[$doc])* $variant,)*
        }

        impl Anomaly {
            /// All of them, in order.
            pub const ALL: [Anomaly; [$($name),*].len()] = [$(Anomaly::$variant),*];

            /// The name in reports.
            pub const fn name(self) -> &'static str {
                [$($name),*][self as usize]
            }

            /// The name of the finding that there is none.
            pub const fn check(self) -> &'static str {
                [$($check),*][self as usize]
            }

            const fn form(self) -> Form {
                [$($form),*][self as usize]
            }
        }
    };
}

use Form::{Alone, Cycle};
use Missed::{Any, Apart, None as NoneMissed, One};
use Rests::{Data as OnData, Session as OnSession, Stamps as OnStamps, Time as OnTime};

anomalies! {
    /// A committed write is missing, or there twice, or one is there that was not committed.
    LostWrite = "lost write", "appends", Alone;
    /// A transaction does not see its own writes, or sees them before it makes them.
    OwnWrites = "own writes unseen", "internal", Alone;
    /// A read saw what was not committed.
    AbortedRead = "aborted read (G1a)", "no_g1a", Alone;
    /// A read saw what its writer had not finished.
    IntermediateRead = "intermediate read (G1b)", "no_g1b", Alone;
    /// A read saw another order of writes than there is in the end.
    OrderOfWrites = "incompatible order of writes", "prefixes", Alone;
    /// A cycle of writes: transactions overwrite each other both ways.
    WriteCycle = "write cycle (G0)", "no_g0", Cycle(NoneMissed, OnData);
    /// A cycle of writes and of reads of them.
    InformationCycle = "circular information flow (G1c)", "no_g1c", Cycle(NoneMissed, OnData);
    /// Two transactions read one version and both write the next. Walter's conflicting fork.
    LostUpdate = "lost update", "no_lost_update", Cycle(One, OnData);
    /// A transaction read two versions of one key.
    FuzzyRead = "non-repeatable read", "no_fuzzy_read", Cycle(One, OnData);
    /// A transaction saw one write of another and not its other.
    FracturedRead = "fractured read", "no_fractured_read", Cycle(One, OnData);
    /// A cycle with one missed write: what was read is of no one state.
    ReadSkew = "read skew (G-single)", "no_g_single", Cycle(One, OnData);
    /// A cycle whose missed writes are never two in a row: two readers saw two writers in opposite orders.
    LongFork = "long fork (G-nonadjacent)", "no_long_fork", Cycle(Apart, OnData);
    /// A cycle with two missed writes in a row: each of two transactions read what the other writes. Walter's short fork.
    WriteSkew = "write skew (G2-item)", "no_g2", Cycle(Any, OnData);
    /// A later write of a session stands before an earlier one.
    MonotonicWrites = "monotonic writes broken", "monotonic_writes", Cycle(NoneMissed, OnSession);
    /// A write of a session stands before one that the session had read.
    WritesFollowReads = "writes follow reads broken", "writes_follow_reads", Cycle(NoneMissed, OnSession);
    /// A session misses a write of its own.
    ReadYourWrites = "read your writes broken", "read_your_writes", Cycle(One, OnSession);
    /// A session misses a write that it had seen.
    MonotonicReads = "monotonic reads broken", "monotonic_reads", Cycle(One, OnSession);
    /// A long fork that rests on the order of sessions.
    SessionFork = "long fork across sessions", "no_session_fork", Cycle(Apart, OnSession);
    /// A write skew that rests on the order of sessions.
    SessionSkew = "write skew across sessions", "no_session_skew", Cycle(Any, OnSession);
    /// A transaction stands before one that was answered before it was asked.
    RealTime = "real time broken", "real_time", Cycle(Any, OnTime);
    /// The first read of a transaction misses a write that was answered before the transaction was asked.
    StaleRead = "stale first read", "fresh_reads", Form::Stale;
    /// An execution in the order of stamps gives other answers.
    StampOrder = "order of stamps broken", "stamp_order", Cycle(Any, OnStamps);
}

/// The bounds that a level sets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// No cycle may have so few missed writes.
    pub(super) missed: Missed,
    /// Whom the order of a session binds.
    pub(super) sessions: Bound,
    /// Whom real time binds.
    pub(super) time: Bound,
    /// First reads are fresh.
    pub(super) fresh: bool,
    /// The stamps are the order.
    pub(super) stamps: bool,
    /// Transactions that are no further apart in time than this may stand in any order.
    pub(super) slack: u64,
}

/// An isolation level: what a history of an engine must not show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What is read is committed and finished; writes and reads have no cycle (Adya's PL-2).
    ReadCommitted,
    /// Parallel snapshot isolation (Walter): each read is from a causally closed snapshot, and no update is lost.
    ParallelSnapshot,
    /// The same in the order of sessions.
    SessionParallelSnapshot,
    /// The same with fresh first reads (FW-KV).
    FreshParallelSnapshot,
    /// Snapshot isolation: one order of commits for all snapshots.
    Snapshot,
    /// Some serial order gives all answers.
    #[default]
    Serializable,
    /// Some serial order that keeps that of sessions.
    SessionSerializable,
    /// The order of stamps gives all answers, whatever that of sessions is (stamps by the clocks of homes alone).
    StampsAlone,
    /// The order of stamps gives all answers and keeps that of sessions (timestamp ordering, multiversion).
    StampOrder,
    /// Strictly serializable, but for what only reads: it sees any state (reads `previous`).
    SnapshotReads,
    /// Strictly serializable, but for what only reads: it sees a state that has all of its session (reads `session`).
    SessionReads,
    /// Some serial order that keeps that of real time and of sessions.
    StrictSerializable,
}

impl Level {
    /// All of them.
    pub const ALL: [Level; 12] = [
        Level::ReadCommitted,
        Level::ParallelSnapshot,
        Level::SessionParallelSnapshot,
        Level::FreshParallelSnapshot,
        Level::Snapshot,
        Level::Serializable,
        Level::SessionSerializable,
        Level::StampsAlone,
        Level::StampOrder,
        Level::SnapshotReads,
        Level::SessionReads,
        Level::StrictSerializable,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Level::ReadCommitted => "read committed",
            Level::ParallelSnapshot => "parallel snapshot isolation",
            Level::SessionParallelSnapshot => "parallel snapshot isolation, session order",
            Level::FreshParallelSnapshot => "parallel snapshot isolation, session order, fresh reads",
            Level::Snapshot => "snapshot isolation",
            Level::Serializable => "serializable",
            Level::SessionSerializable => "serializable, session order",
            Level::StampsAlone => "serializable in the order of stamps alone",
            Level::StampOrder => "serializable in the order of stamps",
            Level::SnapshotReads => "strict serializable, reads on snapshots",
            Level::SessionReads => "strict serializable, reads on snapshots of their session",
            Level::StrictSerializable => "strict serializable",
        }
    }

    pub(super) const fn rules(self) -> Rules {
        use Bound::{All, Nobody, Updates};
        let (missed, sessions, time) = match self {
            Level::ReadCommitted => (Missed::None, Nobody, Nobody),
            Level::ParallelSnapshot => (Missed::One, Nobody, Nobody),
            Level::SessionParallelSnapshot | Level::FreshParallelSnapshot => (Missed::One, All, Nobody),
            Level::Snapshot => (Missed::Apart, Nobody, Nobody),
            Level::Serializable | Level::StampsAlone => (Missed::Any, Nobody, Nobody),
            Level::SessionSerializable | Level::StampOrder => (Missed::Any, All, Nobody),
            Level::SnapshotReads => (Missed::Any, Updates, Updates),
            Level::SessionReads => (Missed::Any, All, Updates),
            Level::StrictSerializable => (Missed::Any, All, All),
        };
        let fresh = matches!(self, Level::FreshParallelSnapshot);
        let stamps = matches!(self, Level::StampsAlone | Level::StampOrder);
        Rules { missed, sessions, time, fresh, stamps, slack: 0 }
    }

    /// The transactions that an anomaly must not happen to. Of an order that binds updates alone, a cycle that leads
    /// into a transaction which only reads is allowed.
    pub const fn forbids(self, anomaly: Anomaly) -> Bound {
        let Rules { missed, sessions, time, fresh, stamps, .. } = self.rules();
        let is_bound = match anomaly.form() {
            Alone => true,
            Cycle(needed, OnData) => needed as u8 <= missed as u8,
            Cycle(needed, OnSession) if needed as u8 <= missed as u8 => return sessions,
            Cycle(needed, OnTime) if needed as u8 <= missed as u8 => return time,
            Cycle(_, OnStamps) => stamps,
            Cycle(..) => false,
            // Where real time binds, a stale read breaks that.
            Form::Stale if !fresh => return time,
            Form::Stale => true,
        };
        if is_bound { Bound::All } else { Bound::Nobody }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of docs/testing.md, one row an anomaly.
    fn table() -> String {
        let mut text = String::new();
        for anomaly in Anomaly::ALL {
            let cells = Level::ALL.map(|level| match level.forbids(anomaly) {
                Bound::Nobody => " |",
                Bound::Updates => " upd |",
                Bound::All => " x |",
            });
            text += &format!("| {} |{}\n", anomaly.name(), cells.concat());
        }
        text
    }

    #[test]
    fn the_table_in_the_documentation_is_this_one() {
        let page = include_str!("../../../../docs/testing.md");
        assert!(page.contains(&table()), "docs/testing.md should have\n{}", table());
    }

    #[test]
    fn a_level_forbids_all_that_a_weaker_one_does() {
        use Level::*;
        for (weak, strong) in [
            (ReadCommitted, ParallelSnapshot),
            (ParallelSnapshot, SessionParallelSnapshot),
            (SessionParallelSnapshot, FreshParallelSnapshot),
            (ParallelSnapshot, Snapshot),
            (Snapshot, Serializable),
            (Serializable, SessionSerializable),
            (SessionParallelSnapshot, SessionSerializable),
            (Serializable, StampsAlone),
            (StampsAlone, StampOrder),
            (SessionSerializable, StampOrder),
            (Serializable, SnapshotReads),
            (SnapshotReads, SessionReads),
            (SessionSerializable, SessionReads),
            (SessionReads, StrictSerializable),
        ] {
            for anomaly in Anomaly::ALL {
                assert!(weak.forbids(anomaly) <= strong.forbids(anomaly), "{weak:?} {strong:?} {anomaly:?}");
            }
        }
    }
}
