//! Shards, by every engine, on the test bench: golden transcripts, the scenarios of calvin.md section 8, random
//! transactions against the reference executor.

#![allow(clippy::unwrap_used, reason = "a test fails where it unwraps")]

mod attempts;
mod checkpoint;
mod copying;
mod exchanges;
mod limits;
mod long;
mod moving;
mod partitions;
mod paxflow;
mod qstore;
mod random;
mod read_committed;
mod replay;
mod replication_group;
mod resting;
mod scenarios;
#[path = "../support/mod.rs"]
mod support;
mod transcripts;
mod values;
