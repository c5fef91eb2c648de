//! The commit family: transactions execute first, and their participants agree on the outcome afterwards.
//!
//! ```text
//!  gateway ──Submit──▶ Coordinator ──Access──▶ Participant (each shard that owns one of the keys)
//!                          │  ▲                    │ asks the engine's concurrency control for each record,
//!                          │  └─────Accessed───────┘ runs the fragment in the attempt's workspace
//!                          │
//!                          └──Append(decision)──▶ log ──Sealed──▶ participants install it, the coordinator answers
//! ```
//!
//! An engine of the family is a [`ConcurrencyControl`]: it grants or refuses each access of an attempt. What it refuses
//! makes the coordinator abort the attempt and begin another.
//!
//! The family is a miniature that proves the contract of families: one node without replicas, and plans whose fragments
//! each read or write one record. Anything else is refused with an error ([`refusal`]). Expired records are absent and not
//! removed, there are no checkpoints, and sessions are kept without a bound: so no user may choose an engine of it yet.

mod backend;
mod concurrency;
mod coordinator;
mod decision;
mod family;
mod message;
mod participant;

pub use concurrency::{
    Age, AttemptId, ConcurrencyControl, Ended, Mode, Seniority, Target, TransactionId, Verdict,
};
pub use coordinator::{Coordinator, refusal};
pub use decision::{Decision, Decisions};
pub use family::{CommitEngine, CommitFamily, OpenError, OpenedNode};
pub use message::{Access, Accessed, Message};
pub use participant::Participant;
