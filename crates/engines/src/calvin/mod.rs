//! Calvin: deterministic locking in the order of the input log (A. Thomson et al., SIGMOD 2012, sections 2 and 3).
//!
//! # What it is
//!
//! The sequencers fix the order before anything is executed. A [`Shard`](ordain_deterministic::shard::Shard) takes sealed
//! batches in that order, requests all locks of each transaction in its place, grants them first come, first served, and
//! executes. There is no deadlock, no two-phase commit and no abort but by the transaction's own logic; results and state are a
//! function of the log.
//!
//! # Rules
//!
//! `docs/protocols/calvin.md`: C12 to C18 are scheduling, which is this engine's own. It stands in
//! [`ordain_deterministic::locks`], as other engines schedule by locks too. C19 to C23 are execution, which is the
//! shard's.
//!
//! # State per record
//!
//! One lock word: 0, or the queue of the requests for the record. A record that is changed and may be undone is write-locked
//! without a queue.
//!
//! # Invariants
//!
//! - Requests of one record stand in its queue in the order of the log.
//! - While no transaction is unfinished, no record is locked (`LockScheduler::check`).
//!
//! # Departures from the paper
//!
//! - A slot goes only to the shards that need it, not to every active participant (C19).
//! - Verdicts of abortable fragments are sent instead of being computed again everywhere, so that code runs once (C22; the
//!   paper's own one-way message of section 2).
//! - A blocked transaction gives up the locks of records on which it has nothing more to do and nothing to undo (C16). All
//!   EVALs of one script write its record, if only the first time, and would otherwise wait for each other's shipped records.
//! - Locks of a transaction that runs at once are never materialized (C15): on one thread, nothing could see them.

use ordain_deterministic::locks::LockScheduler;
use ordain_deterministic::options::{BALANCE, CHECKPOINT_MODE, LINGER_US, PLAN_AHEAD, READS, WINDOW};
use ordain_deterministic::shard::Scheduling;
use ordain_model::Offer;

/// Schedules by locks that each shard requests in the order and grants itself.
pub const SCHEDULING: Scheduling =
    Scheduling { name: "calvin", scheduler: || Box::<LockScheduler>::default(), lock_manager: None };

/// Its options, and those of [the papers' Calvin](super::calvin_paper).
pub static OPTIONS: [Offer; 6] = [
    Offer::of(&READS),
    Offer::of(&CHECKPOINT_MODE),
    Offer::of(&BALANCE),
    Offer::of(&PLAN_AHEAD),
    Offer::of(&LINGER_US),
    Offer::of(&WINDOW),
];
