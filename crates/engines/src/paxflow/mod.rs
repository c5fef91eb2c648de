//! PaxFlow: transactions that only read take no locks and wait for nothing but their epoch (the PaxFlow paper, section 3).
//!
//! # What it is
//!
//! The engine combines two parts of the family. What writes is ordered and scheduled by
//! [locks](ordain_deterministic::locks), as with [Calvin](super::calvin). What only reads is not sequenced: a sequencer
//! chooses the epoch as of which it is run, and every shard that takes part runs it on the state as of the end of
//! that epoch, in its [`SnapshotReader`](ordain_deterministic::shard::SnapshotReader), once everything of that epoch and before is
//! done there (`publish_epoch` of the paper). So all shards read the same prefix of the order, and the whole history is
//! serializable: such a read has its place right after the last transaction of its epoch.
//!
//! ```text
//!  gateway ──Front::Read──▶ sequencer ──Reading::Run(as of R)──▶ every shard that takes part
//!                                                                 │ waits until R is published on this shard
//!                                                                 ▼
//!  gateway ◀──Outcomes── collector's shard ◀──Reading::Parts── reads the contents of R
//! ```
//!
//! # Rules
//!
//! `docs/protocols/paxflow.md`, P1 to P22; those of locks are C12 to C18 of `docs/protocols/calvin.md`.
//!
//! # State per record
//!
//! Calvin's lock word. Beside the record, in the store: the contents that were replaced after the low watermark, at most one an
//! epoch ([`ordain_store::Keep`]).
//!
//! # Invariants
//!
//! - A read sees all of epoch R and of those before it, and nothing of a later one (P5, P6).
//! - A read takes no lock and changes neither state nor digest (P19).
//! - While nobody reads, nothing is kept (P13).
//!
//! # Departures from the paper
//!
//! - No thread publishes: a shard is one thread and knows what it has executed. The store keeps what was replaced aside, not
//!   tagged versions in the record.
//! - Readers do not pin versions. Sequencers send the shards the *low watermark*, the oldest epoch that is still read (P12); a read
//!   below what is kept is refused, never guessed, and submitted again.
//! - Where several partitions take part, shards send what they have read to the one that composes the reply, which
//!   runs what is computed from it. A read whose keys depend on what it reads takes several rounds at the gateway.
//! - Reads and ordered transactions that are ready at the same time each have half of the time (P18; the paper: writes first).

use ordain_deterministic::locks::LockScheduler;
use ordain_deterministic::options::{BALANCE, CHECKPOINT_MODE, LINGER_US, PLAN_AHEAD, READS, WINDOW};
use ordain_deterministic::shard::Scheduling;
use ordain_model::{Offer, OptionValue};

/// Schedules what writes by locks, as Calvin does. What only reads is never scheduled.
pub const SCHEDULING: Scheduling =
    Scheduling { name: "paxflow", scheduler: || Box::<LockScheduler>::default(), lock_manager: None };

/// Its options: what only reads is run on snapshots unless somebody wants it otherwise.
pub static OPTIONS: [Offer; 6] = [
    Offer::with_default(&READS, OptionValue::Name("session")),
    Offer::of(&CHECKPOINT_MODE),
    Offer::of(&BALANCE),
    Offer::of(&PLAN_AHEAD),
    Offer::of(&LINGER_US),
    Offer::of(&WINDOW),
];
