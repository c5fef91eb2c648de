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

mod checkpoints;
mod chunks;
mod configuration_service;
mod exchange;
mod group;
mod input_log;
mod interleave;
mod message;
mod reading;
mod sequencer;
mod sessions;
mod snapshots;
mod speculation;
#[cfg(test)]
mod tests;

pub use checkpoints::{CheckpointSettings, Checkpointer, Lacking};
pub use configuration_service::{
    Arrival, ConfigurationEntry, ConfigurationService, ConfigurationServiceSettings, Ending, Eviction, Fence,
    LeadershipRecord, LeadershipRecords, registry as configuration_service_registry,
};
pub use exchange::{Counting, Exchange, ExchangeSettings, Index, JournalRecord, Opened};
pub use group::{
    GroupContent, GroupEntry, GroupError, GroupJournal, GroupLog, GroupRecord, GroupSettings, Standing,
    found_after,
};
pub use input_log::{InputLog, LogSettings, RESERVE, ShippingSettings};
pub use message::{
    Counsel, Covered, GroupMessage, Has, Held, Message, Part, Parts, Post, Reading, RemoteResult, Saving,
    Sequencing, Ship,
};
pub use sequencer::{Neighbours, Sequencer, Settings, door, input_at, time_of_input};
pub use sessions::Sessions;
pub use snapshots::Readers;
