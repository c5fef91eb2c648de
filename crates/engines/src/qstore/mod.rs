//! Q-Store: a batch is planned into queues of fragments, one a range of records, and the queues are executed (the
//! Q-Store paper; qstore.md).
//!
//! The order is that of the sequencers, as with [Calvin](super::calvin), and so are log, replication, checkpoints and
//! sessions. What differs is how a shard keeps to the order on its records: it has no locks. Its records are divided
//! into *ranges*; planning puts each fragment into the queue of its range, in the order (section 4.1); a range is
//! executed strictly from the front, and ranges in any order, which keeps the paper's condition (section 4.2: for each
//! record, operations of higher priority first). There are so many ranges that mostly one is a record, and a range has
//! a queue of its own only while something in it waits; what does not wait is in a few long queues, of many
//! ranges each, along which records are fetched ahead.
//!
//! ```text
//!  Sealed ──▶ planning batches of some transactions ──plan─┬─▶ fragments: queue 0 [T1 T1 T4 T7 …
//!                                              │              queue 1 [T2 T4 T5 …   ──execute──▶ answers ──▶ replies by planning batch
//!                                              └─▶ groups: at once, or as far as nobody is in front of them; then
//!                                                             range 17  [T3 T6 …
//!                                                             range 903 [T3 …       as the first are over, the next go on
//! ```
//!
//! - An *independent* transaction, whose fragments need nothing of each other and cannot abort, is taken apart: each
//!   fragment runs when the front of its queue has come to it, and no state is kept of the transaction but its answers.
//!   The answers of a planning batch are made into replies together, once all of the planning batch is done.
//! - Any other transaction is a *group* on each shard (section 4.3). It runs at once, in its place in the order: nobody could
//!   have seen that it had any places in ranges. If somebody is in front of it, or it waits for a value or a verdict, it
//!   gets a place in the range of each fragment that is still to be run, and of each that has changed its record as long as
//!   that may be undone; the others may go on there, which no lock to the end of a transaction would allow. From then
//!   on each fragment runs, in plan order, when it is in front of its range. With fragments that compute on
//!   several records it must be in front of all its ranges before it begins.
//! - What a group has changed cannot be seen before its verdicts are known (the paper calls it conservative).
//! - A transaction over the whole table runs when everything before it is done, alone.
//! - Where a batch says so, nobody waits for verdicts: see the module `unit`.
//! - With read committed (section 4.5) what is only read is seen as of the end of the epoch before: it goes aside, to a queue
//!   of no range, and runs when that epoch is over, whatever has been done meanwhile.
//!
//! # Why it cannot block itself
//!
//! All shards plan in the same order, and a shard is one thread. Of the unfinished transactions the one that is first in
//! the order is in front of all its ranges, on every shard; what it waits for is its own, and that has no cycles (section
//! 4.5). Of the traps of that section, the one has no place here: no fragment holds back what it says until verdicts are known.
//! The other, a change that waits for a verdict in front of the check that gives it, neither: a group that
//! holds a range is in front of it with all its fragments.
//!
//! # Departures from the paper
//!
//! - Each shard plans its own queues from the batch, in the pieces in which it executes them; the front doors have made
//!   the plans, in parallel, before that. So what travels between nodes are inputs (as with Calvin, one message for each
//!   other partition an epoch), never queues, and the number of planners cannot show in the order (qstore.md, gap 2).
//! - The paper keeps track of who speculates on whom. Here that follows from the plans, and is looked up only if something
//!   aborts (section 4.7). What aborts because of others is executed again, and given back to its client only
//!   if that is wanted (`--cascade abort`).
//! - Fragments that only read have one queue a shard, and see the epoch before whatever is committed meanwhile; the paper's
//!   see what is committed when they run.
//! - A range stays with its shard: the cores of a node share no record.

mod queue_prefetch;
mod queues;
mod ranges;
mod scheduler;
mod speculation;

use ordain_deterministic::shard::Scheduling;

use queues::QueueScheduler;

/// Schedules by queues of fragments, one a range of records.
pub const SCHEDULING: Scheduling =
    Scheduling { name: "qstore", scheduler: || Box::<QueueScheduler>::default(), lock_manager: None };
