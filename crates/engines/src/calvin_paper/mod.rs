//! Calvin as its paper describes it and its authors' code has it: one lock manager for all threads of a node (the Calvin paper,
//! section 3; the baseline of the papers of PaxFlow and Q-Store).
//!
//! # What it is
//!
//! One thread of a node, the *lock manager*, requests and releases the locks of all transactions of the node, in the order;
//! worker threads execute what it grants. Here the lock manager is a role of its own, the [`NodeLockManager`], and workers
//! are the [shards](ordain_deterministic::shard) of the node, each with its own part of the records:
//!
//! ```text
//!              ┌──────────── Sealed, once a batch ────────────┐
//!              │                                              ▼
//!  log ─Sealed─▶ shards ◀── Grant, once a transaction ── lock manager: requests all its locks of this node, in the order;
//!                      └─── Done, once a transaction ──▶              when all its shards are done, releases them
//! ```
//!
//! So two messages of every transaction go through one thread, and each of its locks costs that thread a request and a
//! release. A shard that is granted a transaction executes that one and sends its remote results, its answers and its end
//! one by one, where [`calvin`](super::calvin) gathers those of many. Everything else is the same, down to the code of locks
//! and records: results, digests, moves of slots and checkpoints too.
//!
//! # Rules
//!
//! `docs/protocols/calvin-paper.md`: P1 to P7 replace or restrict rules of `docs/protocols/calvin.md`.
//!
//! # State per record
//!
//! None on shards. The lock manager's table has a place, without a record, for each key that is locked.
//!
//! # Invariants
//!
//! - A shard executes no part of a transaction before its grant (P3).
//! - While no transaction is under way, no key is locked (`NodeLockManager::check`).
//!
//! # Departures from the paper
//!
//! - Workers own records instead of sharing all of a node's, so a transaction with records of several shards is granted to each
//!   of them, and each executes its part.
//! - No worker waits for a remote read: it goes on with other transactions that have their locks.
//! - Nothing is slow that need not be: the lock table is the [store](ordain_store)'s own, without records; records of a
//!   transaction are fetched together; strings are not copied on the way.
//! - With one thread, or on the first of several, the lock manager shares its thread with a shard. What it would do with a
//!   thread of its own follows from its service demand, which is measured as that of one thread.

mod lock_manager;
mod scheduler;

use ordain_deterministic::shard::Scheduling;

pub use lock_manager::NodeLockManager;
use scheduler::WorkerScheduler;

/// Schedules by the grants of the node's lock manager.
pub const SCHEDULING: Scheduling = Scheduling {
    name: "calvin-paper",
    scheduler: || Box::<WorkerScheduler>::default(),
    lock_manager: Some(|places, settings| Box::new(NodeLockManager::new(places, settings))),
};
