//! The engines: how an ordered, or not yet ordered, stream of transactions is executed.
//!
//! One folder an engine, the same file names in each: `mod` (what it is, the paper's sections, departures),
//! `messages`, `state`, `rules`. What several share is a crate below this one.

pub mod calvin;
pub mod paxflow;
pub mod qstore;
