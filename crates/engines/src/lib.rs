//! The engines: how an ordered, or not yet ordered, stream of transactions is executed.
//!
//! One folder an engine; its `mod` says what it is, the paper's sections, and the departures. What the engines that
//! execute an order have in common is [`shard`]; what all engines share is a crate below this one.

pub mod calvin;
pub mod calvin_paper;
pub mod paxflow;
pub mod qstore;
pub mod registry;
pub mod shard;
