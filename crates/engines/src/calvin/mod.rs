//! Calvin: deterministic locking in the order of the input log (the Calvin paper, sections 2 and 3).
//!
//! The sequencing layer (crate `ordain-sequencer`) has fixed the order before anything arrives here. A
//! [`Shard`] consumes sealed batches in that order, asks for all locks of each transaction when its turn
//! comes, grants them first come first served, and executes. No deadlock, no two-phase commit, no abort but by
//! the transaction's own logic; results and state are a function of the log (calvin.md, section 1).
//!
//! # What a shard is
//!
//! The paper's scheduler has one lock thread and a pool of workers on shared memory. Here each core is a
//! *shard*: one state machine that owns a run of the key space's slots, their locks **and** their records, and
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
//! transaction which of them are on one node. What is between nodes shows in three places. A letter for another node
//! goes by the courier and may come twice or before its time (the module `mail`). A batch of another partition's
//! sequencer holds only the transactions in which this one takes part. And a batch counts as applied once the replies
//! that are composed here are complete too, so that peers keep what they have said of it until it is not needed again.
//!
//! A node that is restarted does everything again and says everything again. Whoever has heard it before drops it; if
//! it is not the same as before, one of the two has diverged, and the node stops.
//!
//! # Several replicas
//!
//! Twins execute the same order by themselves and tell each other nothing that they need. Now and then they compare
//! their digests (the module `witness`), and one that has diverged takes itself out.
//!
//! # Departures from the paper
//!
//! - A slot goes only to those who need it, not to every active participant.
//! - Verdicts of abortable fragments are told by a message instead of being computed again everywhere, so that
//!   code runs once (the paper's own one-way message of section 2).
//! - Locks of a transaction that runs at once are never materialised: on one thread, nobody could see them.

mod backlog;
mod capture;
mod covered;
mod locks;
pub(crate) mod mail;
pub(crate) mod maps;
pub(crate) mod members;
pub(crate) mod messages;
pub(crate) mod records;
mod replay;
pub(crate) mod reply;
pub(crate) mod rules;
mod sessions;
pub(crate) mod state;
mod witness;

pub use mail::Places;
pub use messages::{Item, MovedRecord, ShardMessage};
pub use replay::Replay;
pub use rules::{Order, Settings, Shard};

/// The messages of a Calvin node.
pub type Message = ordain_sequencer::Message<ShardMessage>;
