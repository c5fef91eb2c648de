//! The two kinds of error a transaction can meet, kept apart by type.
//!
//! [`PlanError`] is bad input: refused before it is submitted, with no effect. [`Abort`] is part of the transaction's
//! result, the same on every replica. Local errors (this node cannot go on) are the roles' and drivers' own and never
//! appear in a result.

use std::borrow::Cow;

use crate::wire::{Codec, Reader};

/// The refusal of a call before it is sequenced. The text is the error that a Redis client gets, byte by byte: it may quote
/// words that are not UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", String::from_utf8_lossy(.0))]
pub struct PlanError(pub Cow<'static, [u8]>);

impl PlanError {
    /// The error Redis gives for a wrong number of arguments.
    pub fn arity(command: &str) -> PlanError {
        PlanError::quoting("ERR wrong number of arguments for '", command.as_bytes(), "' command")
    }

    /// An error that quotes a word of the client's, as C quotes one: up to its first zero byte.
    pub fn quoting(before: &str, word: &[u8], after: &str) -> PlanError {
        let word = word.split(|byte| *byte == 0).next().unwrap_or_default();
        PlanError([before.as_bytes(), word, after.as_bytes()].concat().into())
    }

    /// The text without the common code in front, for an error of another code that gives it as its reason.
    pub fn reason(&self) -> &[u8] {
        self.0.strip_prefix(b"ERR ").unwrap_or(&self.0)
    }

    /// An error with a fixed text, which begins with its code (`ERR …`).
    pub const fn fixed(text: &'static str) -> PlanError {
        PlanError(Cow::Borrowed(text.as_bytes()))
    }

    /// `ERR syntax error`.
    pub const SYNTAX: PlanError = PlanError::fixed("ERR syntax error");
    /// `ERR value is not an integer or out of range`.
    pub const NOT_INTEGER: PlanError = PlanError::fixed("ERR value is not an integer or out of range");
}

/// Declares [`Abort`] from one table, so that each reason's code, label and text stand in one place.
macro_rules! aborts {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $label:literal, $repeat:ident, $text:literal;)*) => {
        /// The reason for which a transaction had no effect. The reasons are those of all engines; each engine gives some of them.
        ///
        /// An engine that orders transactions before it executes them finds the same reason on every replica; with one that
        /// executes first the reason is part of the decision. A transaction that may have taken effect
        /// is not reported as aborted: that is [`OutcomeStatus::Unknown`](crate::OutcomeStatus::Unknown).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Abort {
            $($(#[$doc])* $name = $code,)*
        }

        impl Abort {
            /// Every reason, in the order of their codes.
            pub const ALL: [Abort; [$($code),*].len()] = [$(Abort::$name),*];

            /// The abort with this code, if there is one.
            pub const fn from_code(code: u8) -> Option<Abort> {
                match code {
                    $($code => Some(Abort::$name),)*
                    _ => None,
                }
            }

            /// The reason as metrics and reports name it.
            pub const fn label(self) -> &'static str {
                match self {
                    $(Abort::$name => $label,)*
                }
            }

            /// The error that a client gets, unless the transaction's procedure has one of its own.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Abort::$name => $text,)*
                }
            }

            /// True if the same transaction may succeed when its client asks again.
            pub const fn is_retryable(self) -> bool {
                match self {
                    $(Abort::$name => $repeat,)*
                }
            }
        }
    };
}

impl Abort {
    /// The reason's number in logs, checkpoints and messages; 1 to 239, never given to another reason.
    pub const fn code(self) -> u8 {
        self as u8
    }
}

impl Codec for Abort {
    const LEAST: usize = 1;

    fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.code());
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Abort> {
        bytes.u8().and_then(Abort::from_code)
    }
}

aborts! {
    /// The transaction's own logic; its reply is what the failing fragment answered. Of every engine.
    Logic = 1, "logic", false, "ERR transaction aborted by its own logic";
    /// Something that was read before is not as it was: WATCH, or an interactive transaction's validation. Of every engine.
    Conflict = 2, "conflict", true, "TXNABORT a record that the transaction read was changed by another: retry";
    /// The reconnaissance is out of date: the reply has what is to be known instead. Of every engine.
    Restart = 3, "restart", true, "TXNABORT the transaction's key set changed while it was being found: retry";
    /// The procedure panicked. Of every engine.
    Panic = 4, "panic", false, "ERR transaction aborted: the procedure failed with a panic; this is a bug in it";
    /// The procedure ran past its budget of work, memory or fragments. Of every engine.
    Budget = 5, "budget", false, "ERR transaction aborted: the procedure ran past its budget";
    /// The transaction used writes of another one that aborted: Q-Store with [`Cascade::Abort`](crate::Cascade), and the
    /// commit dependencies of the regions' MVOCC.
    Cascade = 6, "cascade", true, "TXNABORT it used what another transaction had written that aborted: retry";
    /// An operator has aborted the transaction by its place in the order. Of the deterministic engines.
    Operator = 7, "operator", false, "ERR transaction aborted by the operator";
    /// A lock that it asked for was held. Of NO-WAIT, and of optimistic engines for the locks of their validation.
    LockRefused = 8, "lock_refused", true, "TXNABORT a lock that the transaction needs was held by another: retry";
    /// The transaction was younger than one whose lock it would have waited for. Of WAIT-DIE and the regions' 2PL.
    Died = 9, "died", true, "TXNABORT an older transaction held a lock that the transaction needs: retry";
    /// A transaction that goes first has taken its locks or claims from it. Of the regions' 2PL and MVOCC.
    Wounded = 10, "wounded", true, "TXNABORT a transaction that goes first took the locks of this one: retry";
    /// The transaction waited in a circle. Of engines that detect deadlocks.
    Deadlock = 11, "deadlock", true, "TXNABORT the transaction was in a deadlock: retry";
    /// The transaction waited for a lock, or for a prepared transaction, as long as it may. Of engines that wait.
    LockTimeout = 12, "lock_timeout", true, "TXNABORT a lock that the transaction needs was held for too long: retry";
    /// A record that the transaction read was not the newest when it validated. Of the optimistic engines: 2PC with OCC, Silo, MVOCC.
    Validation = 13, "validation", true, "TXNABORT a record was changed before the transaction had validated: retry";
    /// Another has written a record that it writes, and was first. Of parallel snapshot isolation (Walter, FW-KV) and MVOCC.
    WriteConflict = 14, "write_conflict", true, "TXNABORT another transaction was first to write a record: retry";
    /// A participant has voted no without a reason. Of engines with two-phase commit.
    VoteNo = 15, "vote_no", true, "TXNABORT a participant of the transaction refused to commit it: retry";
    /// A transaction of a later stamp has read or written what it reads or writes. Of TIMESTAMP and MVCC.
    TooLate = 16, "too_late", true, "TXNABORT a transaction with a later stamp went first: retry";
    /// No stamp is left between those of the transactions that it has met. Of MaaT.
    EmptyInterval = 17, "empty_interval", true, "TXNABORT no place was left among the transactions that it met: retry";
    /// The state that it was to read, or to follow with a write, is not kept any more. Of engines with old versions.
    SnapshotTooOld = 18, "snapshot_too_old", true, "TXNABORT the state that the transaction reads is not kept any more: retry";
    /// A record read of another region was too old to be validated. Of the regions.
    StaleView = 19, "stale_view", true, "TXNABORT what the transaction read of another region was too old: retry";
    /// A partition that it has touched has another leader, or a leader of another term. Of engines with two-phase commit.
    TermChanged = 20, "term_changed", true, "TXNABORT a partition that the transaction had touched changed its leader: retry";
    /// Records were tested for their expiry at a later time than its own. Of engines whose stamps are not times.
    TimeTooOld = 21, "time_too_old", true, "TXNABORT a record was looked at as of a later time than the transaction's: retry";
    /// A partition, or a region, that it needs cannot be reached; nothing was written. Of engines that execute first.
    Unavailable = 22, "unavailable", true, "TXNABORT a partition that the transaction needs cannot be reached: retry";
    /// An interactive transaction was open, or without a command, for longer than it may hold its locks. Of engines that keep it open.
    Idle = 23, "idle", true, "TXNABORT the transaction was open without a command, or in all, for too long: retry";
    /// It concerns all records of all regions. Of the regions.
    RegionsTable = 24, "regions_table", false, "ERR transaction aborted: it concerns the keys of all regions, and that is not there yet: \
        name the keys";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each abort with its number in logs and checkpoints, its name in metrics, and whether its client may ask again.
    const TABLE: [(Abort, u8, &str, bool); 24] = [
        (Abort::Logic, 1, "logic", false),
        (Abort::Conflict, 2, "conflict", true),
        (Abort::Restart, 3, "restart", true),
        (Abort::Panic, 4, "panic", false),
        (Abort::Budget, 5, "budget", false),
        (Abort::Cascade, 6, "cascade", true),
        (Abort::Operator, 7, "operator", false),
        (Abort::LockRefused, 8, "lock_refused", true),
        (Abort::Died, 9, "died", true),
        (Abort::Wounded, 10, "wounded", true),
        (Abort::Deadlock, 11, "deadlock", true),
        (Abort::LockTimeout, 12, "lock_timeout", true),
        (Abort::Validation, 13, "validation", true),
        (Abort::WriteConflict, 14, "write_conflict", true),
        (Abort::VoteNo, 15, "vote_no", true),
        (Abort::TooLate, 16, "too_late", true),
        (Abort::EmptyInterval, 17, "empty_interval", true),
        (Abort::SnapshotTooOld, 18, "snapshot_too_old", true),
        (Abort::StaleView, 19, "stale_view", true),
        (Abort::TermChanged, 20, "term_changed", true),
        (Abort::TimeTooOld, 21, "time_too_old", true),
        (Abort::Unavailable, 22, "unavailable", true),
        (Abort::Idle, 23, "idle", true),
        (Abort::RegionsTable, 24, "regions_table", false),
    ];

    #[test]
    fn numbers_and_names_stay() {
        assert_eq!(TABLE.map(|(abort, ..)| abort), Abort::ALL);
        for (abort, code, label, is_retryable) in TABLE {
            assert_eq!((abort.code(), abort.label(), abort.is_retryable()), (code, label, is_retryable));
            assert_eq!(Abort::from_code(code), Some(abort));
        }
        for code in [0, TABLE.len() as u8 + 1, u8::MAX] {
            assert_eq!(Abort::from_code(code), None);
        }
    }

    #[test]
    fn each_abort_is_told_from_the_others() {
        let distinct = |of: fn(&Abort) -> &'static str| Abort::ALL.iter().map(of).collect::<BTreeSet<_>>();
        assert_eq!(distinct(|abort| abort.text()).len(), Abort::ALL.len());
        assert_eq!(distinct(|abort| abort.label()).len(), Abort::ALL.len());
    }

    #[test]
    fn a_text_says_whether_to_ask_again() {
        for abort in Abort::ALL {
            let (is_retryable, text) = (abort.is_retryable(), abort.text());
            assert_eq!(text.starts_with("TXNABORT ") && text.ends_with(": retry"), is_retryable, "{text}");
            assert!(is_retryable || text.starts_with("ERR transaction aborted"), "{text}");
        }
    }
}
