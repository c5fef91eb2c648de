//! Q-Store: a batch is planned into queues of fragments, one a range of records, and the queues are executed (the
//! Q-Store paper; qstore.md).
//!
//! The order is that of the sequencers, as with [Calvin](super::calvin), and so are log, replication, checkpoints and
//! sessions. What differs is how a shard keeps to the order on its records: it has no locks. Its records are divided
//! into *ranges*; planning puts each fragment into the queue of its range, in the order (section 4.1); a range is
//! executed strictly from the front, and ranges in any order, which keeps the paper's condition (section 4.2: for each
//! record, operations of higher priority first).
//!
//! ```text
//!  Sealed ──▶ lots of some transactions ──plan──▶ queue of range 0   [T1 T1 T4 T7 …
//!                                                 queue of range 1   [T2 T4 T5 …        ──execute──▶ answers ──▶ replies
//!                                                 …                                                 by lot
//! ```
//!
//! - An *independent* transaction, whose fragments need nothing of each other and cannot abort, is taken apart: each
//!   fragment runs when the front of its queue has come to it, and no state is kept of the transaction but its answers.
//!   The answers of a lot are made into replies together, once all of the lot is done.
//! - Any other transaction is a *group* on each shard: it has a place in the queue of every range that it touches, and
//!   runs as a whole once it is in front of all of them (section 4.3). What it waits for then, a value, a verdict or a
//!   record from another shard, keeps its ranges waiting, and no others (section 4.4: switch). Mostly
//!   nothing of it can be seen before all its verdicts are known (the paper calls it conservative).
//! - A transaction over the whole table runs when everything before it is done, alone.
//! - Where a batch says so, nobody waits for verdicts: see the module `unit`.
//! - With read committed (section 4.5) what is only read is seen as of the end of the epoch before: it goes aside, to a queue
//!   of no range, and runs when that epoch is over, whatever has been done meanwhile.
//!
//! # Why it cannot block itself
//!
//! All shards plan in the same order, and a shard is one thread. Of the unfinished transactions the one that is first in
//! the order is in front of all its queues, on every shard; what it waits for is its own, and that has no cycles (section
//! 4.5). Both traps of that section need a group that is cut up among queues, which there is not.
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

mod executor;
mod queues;
mod unit;

pub(crate) use queues::Queues;
