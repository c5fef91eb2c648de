//! The engines: how an ordered, or not yet ordered, stream of transactions is executed.
//!
//! One folder an engine; its `mod` says what it is, the paper's sections, its rules and its departures, and its
//! `SCHEDULING` is what a shard is given to be one of it. What the engines that execute an order have in common is the crate
//! `ordain-deterministic`.

pub mod calvin;
pub mod calvin_paper;
pub mod family;
pub mod fwkv;
pub mod maat;
mod marked_records;
pub mod mvcc;
pub mod no_wait;
pub mod occ_2pc;
mod optimistic;
mod parallel_snapshots;
pub mod paxflow;
pub mod qstore;
pub mod regions_2pl;
pub mod regions_mvocc;
pub mod regions_silo;
pub mod registry;
mod stamp_order;
#[cfg(test)]
mod testing;
pub mod timestamp;
mod two_phase_locking;
pub mod wait_die;
mod waiting;
pub mod walter;
