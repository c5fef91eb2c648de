//! Calvin: deterministic locking in the order of the input log (the Calvin paper, sections 2 and 3).
//!
//! The sequencing layer (crate `ordain-sequencer`) has fixed the order before anything arrives here. A
//! [`Shard`](ordain_deterministic::shard::Shard) consumes sealed batches in that order; with Calvin it asks for all locks of each
//! transaction when its turn comes, grants them first come first served, and executes. No deadlock, no two-phase
//! commit, no abort but by the transaction's own logic; results and state are a function of the log (calvin.md, section
//! 1).
//!
//! What is Calvin's own here are the locks. How a transaction is executed that has them, alone or with other shards, is
//! the [shard](ordain_deterministic::shard)'s, and the paper's five phases are explained there.
//!
//! # Departures from the paper
//!
//! - A slot goes only to those who need it, not to every active participant.
//! - Verdicts of abortable fragments are told by a message instead of being computed again everywhere, so that
//!   code runs once (the paper's own one-way message of section 2).
//! - A transaction that waits for others gives up the locks of records on which it has nothing more to do and nothing to
//!   undo (calvin.md, section 4.3, `early_s_release`, and the same of exclusive ones). All EVALs of one script write its
//!   record, if only the first time, and would otherwise wait for each other's shipped records.
//! - Locks of a transaction that runs at once are never materialised: on one thread, nobody could see them.

use ordain_deterministic::locks::LockScheduler;
use ordain_deterministic::shard::Scheduling;

/// Schedules by locks that each shard requests in the order and grants itself.
pub const SCHEDULING: Scheduling =
    Scheduling { name: "calvin", scheduler: || Box::<LockScheduler>::default(), lock_manager: None };
