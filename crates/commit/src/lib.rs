//! The commit family: transactions execute first, and the partitions that they touch agree on the outcome afterwards, by
//! two-phase commit over replicated logs.
//!
//! ```text
//!  gateway ──Submit──▶ Manager (relay) ──▶ Manager of the home's leader (coordinator)
//!                                              │  ▲
//!                          Access, Finish ─────┤  ├──── Accessed
//!                                              ▼  │
//!                                     Participants (each shard that owns one of the keys)
//!                                              │ ask the engine's concurrency control for each record,
//!                                              │ run fragments in the attempt's workspace
//!                                              │
//!        Manager of another leader (cohort) ◀──┼── Prepare        COMMIT ──▶ log of the home
//!            │ gathers from its participants   │
//!            └──PREPARE──▶ log of its partition ──▶ Vote ──▶ … ──▶ Decide ──▶ OUTCOME ──▶ Ack
//! ```
//!
//! An engine of the family is a [`ConcurrencyControl`]: it grants an access of an attempt, lets it wait, or refuses it. What it
//! refuses makes the coordinator abort the attempt and begin another.
//!
//! # The rules, and where each is kept
//!
//! | rule (docs/protocols/two-phase-commit.md) | where |
//! |---|---|
//! | R-TERM | [`Termed`], [`Terms`], `Manager::take_termed`, `Participant::take_termed` |
//! | R-LOG, R-FORGET | `cohort.rs`, `coordinator.rs` |
//! | R-APPLY | `agreed.rs`, [`Participant::apply`] |
//! | R-SERVE | `Manager::begin`, `Participant::begin_if_ready` |
//! | R-CUT | `cuts.rs`, `capture.rs`, `saving.rs`, `image.rs` |
//! | R-HOME | `relay.rs`, `agreed.rs` |
//! | R-TIME, R-CEILING | `times.rs`, `participant/running.rs`; for stamps `coordinator/stamping.rs` and `coordinator/counter.rs` too |
//! | R-TABLE | `coordinator/attempt.rs`, the engines |
//! | R-DOUBT | `cohort.rs`, `Participant::note_home` |
//!
//! Waits that may close a cycle are told by `participant/waiting.rs` and judged by `manager/waits.rs` and [`WaitsFor`]
//! (docs/protocols/regions.md, "Locks").

mod agreed;
mod announcing;
mod backend;
#[cfg(test)]
mod bench;
mod capture;
mod cohort;
mod concurrency;
mod coordinator;
mod cuts;
mod desk;
mod digests;
mod entry;
mod family;
mod figures;
mod founding;
mod heard;
mod hearsay;
mod ids;
mod image;
mod known;
mod manager;
mod message;
mod opening;
pub mod options;
mod participant;
mod proxy;
mod regions;
mod relay;
mod restoring;
mod saving;
mod stamps;
mod times;
mod token;
mod tokens;
mod view;
mod viewing;
mod voting;
mod waits_for;

pub use agreed::{Agreed, Decided, Effect};
pub use concurrency::{
    ConcurrencyControl, Ended, Ending, Mode, Reads, Seniority, Snapshots, Target, Verdict,
};
pub use cuts::{CutMessage, SPACING, era_before, era_of};
pub use desk::Site;
pub use entry::{Among, Announced, Commit, Commitment, Content, Entries, Entry, Hold, Prepare, Terms};
pub use family::{CommitEngine, CommitFamily, Order, seen_by};
pub use founding::Met;
pub use ids::{Age, AttemptId, Bounds, Lead, Term, TransactionId};
pub use image::{Image, Part, Remembered, Standing, remembered};
pub use known::Living;
pub use manager::Manager;
pub use message::{
    Access, Accessed, Accesses, ConfirmRequest, Failure, Gathered, Message, Own, PrepareRequest, Protocol,
    Relay, Returned, Shipped, Snapshot, StampRequest, Stamped, Termed, Validation, Wait,
};
pub use opening::{OpenError, OpenedNode};
pub use ordain_execution::{TableChange, Write};
pub use participant::{Holding, Participant};
pub use restoring::{Decisions, Restoring};
pub use saving::Giving;
pub use stamps::Stamps;
pub use times::AHEAD;
pub use tokens::{Attest, Attested};
pub use view::{Anti, Seen, Vector, View};
pub use viewing::Laid;
pub use voting::Ballot;
pub use waits_for::{Refusal, Refusals, WaitsFor};
