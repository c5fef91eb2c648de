//! The settings of a node's shards, the same for all of them.

use ordain_model::{CheckpointMode, Isolation};
use ordain_role::Bugs;

use crate::shard::balance::Balance;
use crate::shard::scheduler::Scheduling;

/// The settings of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Transactions that may be under way at once; beyond it the order waits (calvin.md, section 4.2, rule 5).
    pub window: usize,
    /// The engine's scheduling of transactions on the shard's records.
    pub scheduling: Scheduling,
    /// The isolation of transactions. A level other than the default needs an engine that has it.
    pub isolation: Isolation,
    /// The way in which a checkpoint's state is kept while transactions go on.
    pub checkpoints: CheckpointMode,
    /// About how many bytes of a checkpoint it gives away at once: so long does its other work wait.
    pub piece: usize,
    /// Set if executed transactions may be lost with a primary: replies are then held back until they are certain.
    pub may_be_lost: bool,
    /// How the shards of a partition share its load, if they do.
    pub balance: Option<Balance>,
    /// So many bytes that are answered, or by which a record grows or shrinks, take as long as a fragment that is started. Others of
    /// the event loop have their turn after 256 fragments; with 0, after each that answers or changes anything.
    pub fragment_bytes: usize,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl Settings {
    /// The settings of an engine's shards as they are unless told otherwise.
    pub fn new(scheduling: Scheduling) -> Settings {
        Settings {
            window: 2000,
            scheduling,
            isolation: Isolation::default(),
            checkpoints: CheckpointMode::default(),
            piece: 64 << 10,
            may_be_lost: false,
            balance: None,
            fragment_bytes: 16 << 10,
            bugs: Bugs::NONE,
        }
    }
}
