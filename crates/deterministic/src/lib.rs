//! The deterministic family: a fixed order of transactions is executed, and every replica that executes it reaches the
//! same state.
//!
//! [`sequencing`] makes the order and carries it between partitions. [`shard`] executes it on the records of one core. An
//! engine of the family decides one thing: which transaction may run next on a shard's records. It says so in a
//! [`Scheduler`](shard::Scheduler) and hands a [`Scheduling`](shard::Scheduling), which makes one for each shard, to the
//! shard's [`Settings`](shard::Settings). Parts that several engines schedule with stand beside the shard and name no
//! engine: [`locks`]. [`options`] are the knobs of the family's engines. [`assembly`] is the family to those who run nodes: it
//! builds a node's roles from its directory.

pub mod assembly;
pub mod locks;
pub mod options;
pub mod sequencing;
pub mod shard;
