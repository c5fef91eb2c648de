//! A log of any entry type: written by one node, agreed on by the members of a group, or shipped from one to the others.
//!
//! ```text
//!  appender ──Append──▶ log ──Sealed──▶ every role that applies entries
//!      ▲                 │▲
//!      └─ Logged, Lost, ─┘└── members, by Group or Ship messages
//!         Rejected, Leader
//! ```
//!
//! - [`InputLog`] is written by one node. With members it ships to them what it has sealed, or takes what they ship.
//! - [`GroupLog`] is written by a Raft group: nobody is handed an entry before a majority has synced it.
//! - [`StorageLog`] is written by one database server of a region; a [`StorageReplica`] on each of its storage nodes keeps the lines.
//! - [`Checkpointer`] writes the state at the end of an epoch to a file, has logs trimmed behind it, and copies it to members.
//! - [`ConfigurationService`] says who is primary of what, where a log is shipped. Its own log is a [`GroupLog`].
//!
//! An [`EntryType`] says what a log needs to know of an entry, so nothing here knows what an entry is for. A family's
//! message type carries the messages of a log beside its own ([`Carrier`]). docs/replication.md tells how a write becomes
//! durable, how a member catches up, and who retries after a lost leader.

mod catch_up;
mod checkpointer;
mod configuration_service;
mod entry;
mod group;
mod input_log;
mod journal;
mod message;
mod storage;
#[cfg(test)]
mod tests;
mod waiting;

pub use catch_up::{CatchUps, Index, Piece, is_read};
pub use checkpointer::{CheckpointSettings, Checkpointer, NeedsCheckpoint};
pub use configuration_service::{
    Arrival, ConfigurationEntry, ConfigurationService, ConfigurationServiceSettings, Decision, Decisions,
    Ending, Eviction, Fence, LeadershipRecord, LeadershipRecords, configuration_service_members,
};
pub use entry::{EntryType, epoch_of};
pub use group::{
    GroupContent, GroupEntry, GroupError, GroupJournal, GroupLog, GroupRecord, GroupSettings, Standing,
    found_after,
};
pub use input_log::{InputLog, LogSettings, RESERVE, ShippingSettings, resume_after};
pub use message::{Carrier, Configuration, Covered, GroupMessage, Has, Held, Log, Message, Saving, Ship};
pub use storage::{
    After, Ballot, Content, Line, LogBase, ReplicaState, Storage, StorageConfiguration, StorageError,
    StorageJournal, StorageLog, StorageLogSettings, StorageMember, StorageMode, StorageObstacle,
    StorageReader, StorageReaderSettings, StorageRecord, StorageReplica, StorageReplicaSettings, Written,
    found_storage_after,
};
pub use waiting::Waiting;
