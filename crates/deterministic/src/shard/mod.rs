//! The shard: one core's share of a partition, which executes the order of transactions on its own records.
//!
//! # What a shard is
//!
//! The Calvin paper's scheduler has one lock thread and a pool of workers on shared memory. Here each core has a *shard*: one
//! state machine that owns a run of hash slots, schedules what touches their records and executes it
//! (`docs/protocols/calvin.md`, sections 2 and 3). Every shard consumes the same order. The paper's five phases become, for
//! the fragments of one transaction that fall on this shard:
//!
//! 1. *Analysis*: which fragments are on this shard, which shards take part, which of them need its slots
//!    (`routes::Routes`).
//! 2. *Local reads* and 5. *logic and writes*: each fragment runs on its record as soon as its inputs are there, in plan
//!    order.
//! 3. *Serve remote reads*: a slot that another shard needs is sent to it; a record that a compute fragment needs on another
//!    shard is shipped to it and comes back.
//! 4. *Collect*: a fragment whose inputs are missing blocks its transaction; the shard goes on with others.
//!
//! A core waits for another one only where the transaction's data demands it, and no memory is shared. A transaction of one
//! shard that meets no lock runs to its end at once, without entering a queue.
//!
//! # Scheduling
//!
//! Which transaction may run next is an engine's decision, behind the trait [`Scheduler`]. Everything else is the same with
//! every engine, and here: taking part, executing, verdicts, shipped records, replies, sessions, moving slots, checkpoints,
//! and reads on snapshots (`snapshot_reader`).
//!
//! # Several partitions
//!
//! The shards of all nodes of a replica are numbered through and execute together. A transaction behaves the same whichever
//! of them share a node. The border between nodes shows in three places:
//!
//! - A remote result for another node goes by the exchange and may arrive twice or before its transaction (`remote`).
//! - A batch of another partition's sequencer holds only the transactions in which this partition takes part.
//! - A batch counts as applied once the replies composed on this shard are complete too, so that peers keep what they have sent
//!   for it until it is not needed again.
//!
//! A restarted node executes its log again and sends everything again. Receivers drop what they know; a difference means
//! that one of the two nodes has diverged, and the receiver stops.
//!
//! # Several replicas
//!
//! Members of a replication group execute the same order independently. They compare digests of their states
//! (`digest_exchange`); a member that has diverged takes itself out.

mod answers;
mod backlog;
mod balance;
mod budget;
mod capture;
mod core;
mod deferred_replies;
mod digest_exchange;
#[cfg(test)]
mod golden_tests;
mod maps;
mod messages;
mod prefetch;
mod remote;
mod replay;
mod replies;
mod reply;
mod role;
mod routes;
mod scheduler;
mod sessions;
mod slots;
mod snapshot_reader;
mod spans;
mod state;
mod table;

// What a node is made of.
pub use balance::Balance;
pub use core::Settings;
pub use messages::{Findings, Item, Message, MovedRecord, Round, ShardMessage};
pub use remote::Places;
pub use replay::Replay;
pub use role::Shard;

// What an engine is made of.
pub use answers::WireAnswers;
pub use backlog::{Backlog, BatchPlace};
pub use budget::Budget;
pub use core::{Core, Progress, batch_of, before};
pub use maps::Maps;
pub use prefetch::Prefetch;
pub use remote::{OutOfOrder, OutOfOrderItem, RemoteResults};
pub use routes::{Routes, ShardSet, owner};
pub use scheduler::{LockManager, NewLockManager, Scheduler, Scheduling};
pub use slots::{CUT, SlotTable};
pub use snapshot_reader::SnapshotReader;
pub use state::{Active, Known};
pub use table::ActiveTable;
