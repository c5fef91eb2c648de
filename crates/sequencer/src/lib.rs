//! The sequencing layer: what the deterministic engines have in common before anything executes (the Calvin
//! paper, section 3.1).
//!
//! ```text
//!  gateways ──Submit──▶ Sequencer ──Append──▶ InputLog ──Sealed──▶ every shard of the engine
//!                          ▲   ▲                 │                      │
//!                          │   └────Logged───────┘                      │
//!                          └──────────────────Applied───────────────────┘
//! ```
//!
//! The [`Sequencer`] orders: it gathers chunks into batches, one an epoch, and leaves out what was sequenced
//! before. The [`InputLog`] makes each batch durable before anything of it may be seen. Both are roles; neither
//! knows what the engine behind them does with a batch, except that it says when it is done.

mod batches;
mod checkpoints;
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
pub use checkpoints::{CheckpointSettings, Checkpointer, NeedsCheckpoint};
pub use exchange::{Counting, Exchange, ExchangeSettings, JournalRecord, Opened};
pub use message::{
    ExchangeMessage, Has, Log, Message, Part, Parts, Reading, RemoteResult, Saving, Sequencing,
};
pub use sequencer::{Neighbours, Sequencer, Settings, gateway_address, input_at, time_of_input};
pub use sessions::Sessions;
pub use snapshots::Readers;
