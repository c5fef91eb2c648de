//! The sequencing layer: the deterministic engines have in common what comes before execution (the Calvin paper,
//! section 3.1).
//!
//! ```text
//!  gateways ──Submit──▶ Sequencer ──Append──▶ log ──Sealed──▶ Exchange ──Sealed──▶ every shard of the engine
//!                          ▲   ▲               │                 │ ▲                    │
//!                          │   └───Logged──────┘     slices and  │ │                    │
//!                          │                      remote results ▼ │                    │
//!                          │                        other nodes' exchanges              │
//!                          └──────────────────────────Applied───────────────────────────┘
//! ```
//!
//! - The [`Sequencer`] decides the order: it gathers chunks into batches, one an epoch, and leaves out what was sequenced
//!   before.
//! - A log of the crate `replication` makes each batch durable, or has members agree on it; [`Batches`] is its entry type.
//! - The [`Exchange`] carries what crosses partitions: slices of batches and remote results.
//! - A checkpointer of the crate `replication` writes the state at the end of an epoch to a file.
//!
//! All are roles. None knows what the engine does with a batch, except that the engine says when it is done.

mod batches;
mod chunks;
mod exchange;
mod interleave;
mod message;
mod sequencer;
mod sessions;
mod snapshots;
mod speculation;
#[cfg(test)]
mod tests;

pub use batches::Batches;
pub use exchange::{Beginning, Counting, Exchange, ExchangeSettings, JournalRecord, Opened};
pub use message::{ExchangeMessage, Log, Message, Part, Parts, Reading, RemoteResult, Sequencing};
pub use sequencer::{Neighbours, Sequencer, Settings, gateway_address, input_at, time_of_input};
pub use sessions::Sessions;
pub use snapshots::Readers;
