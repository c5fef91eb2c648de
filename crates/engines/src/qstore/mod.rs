//! Q-Store: a batch is planned into queues of fragments, one a range of records, and the queues are executed (the Q-Store paper,
//! sections 3 and 4).
//!
//! # What it is
//!
//! Order, log, replication, checkpoints and sessions are those of [Calvin](super::calvin). What differs is how a shard keeps to
//! the order on its records: it has no locks. Its records are divided into *ranges*. Planning puts each fragment into the
//! queue of its range, in the order; a range is executed strictly from the front, and ranges in any order, which keeps the paper's
//! condition (section 4.2: for each record, operations of higher priority first). There are so many ranges that mostly one
//! is a record. A range has a queue of its own only while something in it waits; all else is in a few long queues, of many
//! ranges each, along which records are prefetched.
//!
//! ```text
//!  Sealed ──▶ planning batches of some transactions ──plan─┬─▶ fragments: queue 0 [T1 T1 T4 T7 …
//!                                                          │              queue 1 [T2 T4 T5 …  ──execute──▶ answers ──▶ replies
//!                                                          └─▶ groups: at once, or as far as nothing is in front of them; then
//!                                                                         range 17  [T3 T6 …
//!                                                                         range 903 [T3 …      the next go on as the first end
//! ```
//!
//! - An *independent* transaction, whose fragments need nothing of each other and cannot abort, is taken apart: each
//!   fragment runs when the front of its queue has come to it, and no state is kept of the transaction but its answers.
//!   The answers of a planning batch are made into replies together, once all of it is done (Q6).
//! - Any other transaction is a *group* on each shard (Q7). It runs at once in its place in the order, as if it had no places in
//!   ranges. If a range is held in front of it, or it waits for a value or a verdict, it gets a place in the range of
//!   each fragment that is still to be run, and of each that has changed its record as long as that may be undone; others go
//!   on in all other ranges, which no lock to the end of a transaction would allow. From then on each fragment runs,
//!   in plan order, when it is in front of its range. With fragments that compute on several records a group must be in front
//!   of all its ranges before it begins.
//! - The changes of a group cannot be seen before its verdicts are known (the paper calls it conservative).
//! - A transaction over the whole table runs when everything before it is done, alone (Q22).
//! - Where a batch says so, transactions do not wait for verdicts: see the module `speculation`.
//! - With read committed a fragment that only reads sees the end of the epoch before: it goes to a queue of no range, and
//!   runs when that epoch is over (Q21).
//!
//! # Rules
//!
//! `docs/protocols/qstore.md`, Q1 to Q28.
//!
//! # State per record
//!
//! None. A range, of about a record, has a list of places while something in it waits (the module `ranges`); a changed record
//! that may be undone has its lock word set, so that it keeps its place in the store.
//!
//! # Invariants
//!
//! - In each range, places stand in the order of the log.
//! - While no transaction is unfinished, all queues and ranges are empty (`QueueScheduler::check`).
//!
//! # Why it cannot block itself
//!
//! All shards plan in the same order, and a shard is one thread. The unfinished transaction that is first in the order is in front
//! of all its ranges, on every shard; it waits only for values of its own, and those have no cycles (Q10). Of the traps of the
//! paper's section 4.5 neither exists here: no fragment holds back a value until verdicts are known, and a change that waits
//! for a verdict is not in front of the check that gives it, as a group that holds a range is in front of it with all its
//! fragments.
//!
//! # Departures from the paper
//!
//! - Each shard plans its own queues from the batch, in the pieces in which it executes them; gateways have made
//!   the plans, in parallel, before that. So inputs travel between nodes (as with Calvin, one message for each
//!   other partition an epoch), never queues, and the number of planners cannot show in the order.
//! - The paper keeps track of which transaction speculates on which. Here that follows from the plans, and is computed only if
//!   something aborts (Q16). A transaction that aborts because of others is executed again, and given back to its client only
//!   if that is wanted (`--cascade abort`).
//! - Fragments that only read have one queue a shard, and see the epoch before whatever is committed meanwhile; the paper's
//!   see what is committed when they run.
//! - A range stays with its shard: the cores of a node share no record.

mod executing;
mod groups;
mod queue_prefetch;
mod queues;
mod ranges;
mod scheduler;
mod speculation;

use ordain_deterministic::options::{
    BALANCE, CASCADE, CHECKPOINT_MODE, EXECUTION, ISOLATION, LINGER_US, PLAN_AHEAD, READS, WINDOW,
};
use ordain_deterministic::shard::Scheduling;
use ordain_model::{Offer, OptionValue};

use queues::QueueScheduler;

/// Schedules by queues of fragments, one a range of records.
pub const SCHEDULING: Scheduling =
    Scheduling { name: "qstore", scheduler: || Box::<QueueScheduler>::default(), lock_manager: None };

/// Its options.
pub static OPTIONS: [Offer; 9] = [
    Offer::of(&READS),
    Offer::with_default(&EXECUTION, OptionValue::Name("auto")),
    Offer::of(&CASCADE),
    Offer::of(&ISOLATION),
    Offer::of(&CHECKPOINT_MODE),
    Offer::of(&BALANCE),
    Offer::of(&PLAN_AHEAD),
    Offer::of(&LINGER_US),
    Offer::of(&WINDOW),
];
