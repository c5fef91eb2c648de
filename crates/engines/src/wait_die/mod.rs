//! Wait-die: two-phase locking in which an older transaction waits and a younger one dies (Rosenkrantz, Stearns and Lewis, 1978;
//! the Q-Store paper, section 6).
//!
//! A request that conflicts waits if its transaction is older than all that it would wait for; else its attempt aborts, and the
//! next one keeps the age. Every wait goes from an older transaction to a younger one, so there is no deadlock, on one
//! participant or across several. The rules stand in `docs/protocols/wait-die.md`.

use ordain_commit::CommitEngine;
use ordain_model::Abort;

use crate::two_phase_locking::queued::{Ahead, Discipline, QueuedLocks};

/// The engine.
pub const ENGINE: CommitEngine = CommitEngine {
    name: "wait-die",
    refusal: Abort::Died,
    is_strict: true,
    control: |_, bugs| Box::new(QueuedLocks::new(&WAIT_DIE, bugs)),
};

/// Rules D2, D4 and D7. An upgrade goes ahead of the queue if all waiters that it conflicts with are older, because they wait for it then. For
/// shared and exclusive modes that is always so. In a queue of intention modes a younger waiter may be compatible with
/// what the attempt holds: the upgrade is a request like any other then.
pub(crate) static WAIT_DIE: Discipline = Discipline {
    may_wait: |request, other| request.is_older_than(other),
    goes_ahead: Ahead::OfAll(|request, waiter| waiter.is_older_than(request)),
    tells_waits: false,
    refused: Some("ordain_locks_refused_total{reason=\"younger\"}"),
};
