//! The log of a region: one writer, a database server, and storage replicas that know no entry (regions.md, section 4.10;
//! [decision 56](../../../../docs/decisions/0056-regions-on-the-commit-family.md)).
//!
//! ```text
//!  appender ──Append──▶ StorageLog ──Storage──▶ StorageReplica of each storage node
//!      ▲  ▲                │   │                     │
//!      │  └─Logged, Lost,──┘   └─Sealed──▶ sinks     └─▶ journal, on disk
//!      │    Leader
//! ```
//!
//! A *line* has a number, a *ballot* and a content: an entry, the beginning of a ballot, or a configuration. Ballots order
//! the writers: a number and a server's rank.
//!
//! The rules:
//! - a replica promises rising ballots, and takes nothing of a smaller one than it has promised. Promises and lines are
//!   synced before they are answered;
//! - a server that wants to write has a majority of the replicas *sealed*: they promise its ballot. It takes the log whose
//!   last line has the largest (ballot, number), and leads once the first line of its ballot is durable;
//! - a replica counts in the *generation* that the newest configuration names. One that has lost its disk is in another,
//!   and counts again when a line that says so is durable (module `configuration`). The first line of the log says who
//!   counts first, and all replicas must have it;
//! - an entry is durable when a majority of the replicas has it ([`StorageMode::Quorum`]), or all that the configuration
//!   requires ([`StorageMode::Full`]). The first line of a ballot and a configuration need a majority of all replicas and all that
//!   the newest configuration requires. So whoever seals a majority finds the newest configuration that counts, and waits
//!   for one that it requires (commit.md, schedule 9);
//! - once an entry was given to a replica, its fate is told by [`Log::Sealed`](crate::Log::Sealed) and
//!   [`Log::Lost`](crate::Log::Lost) of lines that are durable, and by nothing else (commit.md, schedule 8);
//! - a server that leads is confirmed by a round that begins after the question (commit.md, schedule 10).

mod configuration;
mod inspect;
mod lines;
mod log;
mod message;
mod quorum;
mod reader;
mod replica;
#[cfg(test)]
mod tests;

use ordain_log::LogError;
use ordain_model::{Epoch, Micros};
use ordain_role::{Address, Bugs, NodeId};

pub use configuration::{StorageConfiguration, StorageMember};
pub use inspect::{StorageJournal, StorageRecord};
pub use log::{StorageLog, StorageObstacle};
pub use message::{After, Ballot, Content, Line, LogBase, ReplicaState, Storage, Written};
pub use reader::{StorageReader, StorageReaderSettings};
pub use replica::{StorageReplica, found_storage_after};

/// The meaning of "durable" in the log of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StorageMode {
    /// A majority of the replicas has it.
    #[default]
    Quorum,
    /// All replicas of the configuration have it, at least two if there are two. One that is silent is left out of the
    /// configuration after a while, and taken in again when it has caught up.
    Full,
}

/// The settings of the log of a database server.
#[derive(Clone, Debug)]
pub struct StorageLogSettings {
    /// The address of this role. Storage replicas and the other servers' logs have the same number on their nodes.
    pub me: Address,
    /// The database servers of the region by rank, this one among them; in the same order on all of them. At most 64.
    pub servers: Vec<NodeId>,
    /// The storage nodes of the region, 1 to 7; in the same order everywhere.
    pub replicas: Vec<NodeId>,
    /// The meaning of "durable".
    pub mode: StorageMode,
    /// The silence after which a replica is left out of the configuration in full mode.
    pub full_grace: Micros,
    /// The epoch up to which this node has everything already: no such entry is sealed again.
    pub begun: Epoch,
    /// About how many bytes of lines a message holds.
    pub message_bytes: usize,
    /// The bytes of durable lines that are kept in memory for replicas that lag.
    pub kept_bytes: usize,
    /// The role that gets a checkpoint if this node is too far behind, if there is one.
    pub checkpointer: Option<Address>,
    /// Entries are handed on before they are durable, and [`Log::Durable`](crate::Log::Durable) follows.
    pub early: bool,
    /// The roles that are told what is durable, beside the appender, if entries are handed on early.
    pub durable: Vec<Address>,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl StorageLogSettings {
    /// The defaults for the log at `me` of a region of these servers and storage nodes.
    pub fn new(me: Address, servers: Vec<NodeId>, replicas: Vec<NodeId>) -> StorageLogSettings {
        StorageLogSettings {
            me,
            servers,
            replicas,
            mode: StorageMode::Quorum,
            full_grace: Micros::from_millis(2000),
            begun: Epoch(0),
            message_bytes: 1 << 20,
            kept_bytes: 64 << 20,
            checkpointer: None,
            early: false,
            durable: Vec::new(),
            bugs: Bugs::NONE,
        }
    }
}

/// The settings of the log of a storage node.
#[derive(Clone, Debug)]
pub struct StorageReplicaSettings {
    /// The address of this role. The logs of the servers have the same number on their nodes.
    pub me: Address,
    /// The database servers of the region by rank.
    pub servers: Vec<NodeId>,
    /// The storage nodes of the region, this one among them.
    pub replicas: Vec<NodeId>,
    /// A number that no earlier start of this node was given: the generation, if its directory has nothing yet.
    pub generation: u64,
    /// The epoch up to which a checkpoint of this node has everything.
    pub executed: Epoch,
    /// The role that gets a checkpoint if this node is too far behind, if there is one.
    pub checkpointer: Option<Address>,
    /// The bytes of durable lines that are kept in memory for readers.
    pub tail_bytes: usize,
    /// The bytes, about, beyond which lines that a checkpoint covers go, though others may want them.
    pub keep_bytes: u64,
    /// About how many bytes of lines a message holds.
    pub message_bytes: usize,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl StorageReplicaSettings {
    /// The defaults for the replica at `me` of a region of these servers and storage nodes.
    pub fn new(me: Address, servers: Vec<NodeId>, replicas: Vec<NodeId>) -> StorageReplicaSettings {
        StorageReplicaSettings {
            me,
            servers,
            replicas,
            generation: 1,
            executed: Epoch(0),
            checkpointer: None,
            tail_bytes: 64 << 20,
            keep_bytes: u64::MAX,
            message_bytes: 1 << 20,
            bugs: Bugs::NONE,
        }
    }
}

/// The reason why the log of a region could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The journal is refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The journal does not say in which generation it was written.
    #[error(
        "log of a region: the directory was written by a version whose storage nodes had no generations, and this one cannot tell \
         what it has promised: save its region with that version, and begin with empty directories"
    )]
    Generation,
    /// The settings cannot be.
    #[error("log of a region: {0}")]
    Settings(&'static str),
}

/// Checks who is in a region, and answers the place of a node among those of its kind.
fn check_region(
    me: NodeId,
    of: &[NodeId],
    servers: &[NodeId],
    replicas: &[NodeId],
) -> Result<usize, StorageError> {
    let refused = |reason| Err(StorageError::Settings(reason));
    if replicas.is_empty() {
        return refused(
            "it has no storage replica: name 1 to 7 storage nodes, as servers keep nothing on disk",
        );
    }
    if replicas.len() > 7 {
        return refused("it has more than 7 storage replicas: name fewer storage nodes");
    }
    if servers.is_empty() || servers.len() as u64 > message::RANKS {
        return refused("it has no database server, or more than 64: name 1 to 64");
    }
    let mut all: Vec<NodeId> = servers.iter().chain(replicas).copied().collect();
    all.sort_unstable();
    if all.windows(2).any(|pair| pair[0] == pair[1]) {
        return refused("a node is named twice: give every server and every storage node one place");
    }
    match of.iter().position(|node| *node == me) {
        Some(rank) => Ok(rank),
        None => {
            refused("this node is not among the nodes of its kind: name it in the region's configuration")
        }
    }
}
