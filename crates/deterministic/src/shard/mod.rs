//! The shard: what executes an order, whichever engine says when a transaction has its turn.
//!
//! # What a shard is
//!
//! Calvin's scheduler (calvin.md, section 2) has one lock thread and a pool of workers on shared memory. Here each core is a
//! *shard*: one state machine that owns a run of the key space's slots, the turns at them **and** their records, and
//! executes what touches them (calvin.md, section 9 (d) and (e)). Every shard consumes the same order. The
//! paper's five phases become, for the fragments of one transaction that fall on this shard:
//!
//! 1. *Analysis*: which fragments are mine, who else takes part, who needs my slots (`state::Routes`).
//! 2. *Local reads* and 5. *logic and writes*: each fragment runs against its record as soon as its inputs are
//!    there, in plan order.
//! 3. *Serve remote reads*: a slot that another shard needs is sent to it; a record that a compute fragment
//!    elsewhere needs is lent to it and comes back.
//! 4. *Collect*: a fragment whose inputs are not there parks its transaction; the shard goes on with others.
//!
//! So one core never waits for another unless the transaction's data says so, nothing is shared, and a
//! transaction of one shard that meets no lock runs to its end at once, without ever entering a queue.
//!
//! # Several partitions
//!
//! The shards of all nodes of a replica are numbered through and execute together; it makes no difference to a
//! transaction which of them are on one node. What is between nodes shows in three places. A remote result for another node
//! goes by the exchange and may come twice or before its time (the module `mail`). A batch of another partition's
//! sequencer holds only the transactions in which this one takes part. And a batch counts as applied once the replies
//! that are composed here are complete too, so that peers keep what they have said of it until it is not needed again.
//!
//! A node that is restarted does everything again and says everything again. Whoever has heard it before drops it; if
//! it is not the same as before, one of the two has diverged, and the node stops.
//!
//! # Several replicas
//!
//! Members execute the same order by themselves and tell each other nothing that they need. Now and then they compare
//! their digests (the module `digest_exchange`), and one that has diverged takes itself out.
//!
//! # Several engines
//!
//! How transactions get their turns on the records of a shard is an engine's, behind one trait (the module `turns`): by
//! locks in the lock scheduler ([`locks`](crate::locks)), in queues in [`qstore`](crate::qstore). Everything else is the same for all of
//! them, and here: taking part, executing, verdicts, loans, replies, sessions, moving slots, checkpoints, and the turns
//! of reads on snapshots ([`paxflow`](crate::paxflow)).

mod answers;
mod backlog;
mod balance;
mod budget;
mod capture;
mod core;
mod deferred_replies;
mod digest_exchange;
mod long;
mod maps;
mod members;
mod messages;
mod parent_record;
mod prefetch;
mod records;
mod remote;
mod replay;
mod replies;
mod reply;
mod role;
mod scheduler;
mod sessions;
mod snapshot_reader;
mod spans;
mod state;
mod table;
mod undo;

// What a node is made of.
pub use balance::Balance;
pub use core::Settings;
pub use messages::{Item, Message, MovedRecord, Round, ShardMessage, Unlogged};
pub use remote::Places;
pub use replay::Replay;
pub use role::Shard;

// What an engine is made of.
pub use answers::WireAnswers;
pub use backlog::{Backlog, BatchPlace};
pub use budget::Budget;
pub use core::{Core, Progress, batch_of, before};
pub use maps::Maps;
pub use prefetch::Prefetch;
pub use records::{past_of, read_record, write_record};
pub use remote::{OutOfOrder, OutOfOrderItem, RemoteResults};
pub use scheduler::{LockManager, Scheduler, Scheduling};
pub use snapshot_reader::SnapshotReader;
pub use state::{Active, CUT, Known, Routes, ShardSet, SlotTable, owner};
pub use table::ActiveTable;
pub(crate) use undo::WRITE_LOCKED;
pub use undo::{Touched, Undo};
