//! PaxFlow: transactions that only read take no locks and wait for nobody (the PaxFlow paper; paxflow.md).
//!
//! What writes is ordered and executed as with [Calvin](super::calvin). What only reads is not sequenced: its
//! sequencer says *as of which epoch* it is run (crate `ordain-sequencer`, module `snapshots`), and every shard that
//! takes part runs it on the state as of the end of that epoch, once everything of that epoch and before is done there
//! (section 4.2: `publish_epoch`). So all shards read the same prefix of the order, and the whole history is
//! serializable: such a read has its place right after the last transaction of its epoch.
//!
//! ```text
//!  gateway ──Front::Read──▶ sequencer ──Reading::Run(as of R)──▶ every shard that takes part
//!                                                                 │ waits until R is published here
//!                                                                 ▼
//!  gateway ◀──Outcomes── collector's shard ◀──Reading::Parts── reads the versions of R
//! ```
//!
//! A `Reader` is a shard's part of that. It has no locks, writes nothing, and works in pieces between the shard's other
//! work, so a read of any size makes no writer wait for long.
//!
//! # Departures from the paper
//!
//! - No thread publishes: a shard is one thread, and what it has executed it knows. The store keeps what was replaced
//!   ([`ordain_store::Keep`]), not tagged versions in the record.
//! - Readers do not pin versions. The sequencers tell the shards the *floor*, the oldest epoch that is still being read
//!   (section 4.8); what somebody reads nevertheless below what is kept is refused, never guessed, and asked again.
//! - Where several partitions take part, the shards send what they have read to the one that composes the reply, which
//!   runs what is to be computed from it. A read whose keys depend on what it reads takes several rounds at the gateway.
//! - Of reads and writes that are ready at the same time, each have half of the turns (the paper: writes first).

use ordain_deterministic::locks::LockScheduler;
use ordain_deterministic::shard::Scheduling;

/// Schedules what writes by locks, as Calvin does. What only reads is never scheduled.
pub const SCHEDULING: Scheduling =
    Scheduling { name: "paxflow", scheduler: || Box::<LockScheduler>::default(), lock_manager: None };
