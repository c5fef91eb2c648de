//! The settings of a node's shards, the same for all of them.

use ordain_execution::TierSettings;
use ordain_model::{CheckpointMode, Isolation};
use ordain_role::Bugs;

use crate::shard::balance::Balance;
use crate::shard::scheduler::Scheduling;

/// The settings of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Most transactions under way at once; beyond it the order waits (`docs/protocols/calvin.md`, C12).
    pub window: usize,
    /// The engine's scheduling of transactions on the shard's records.
    pub scheduling: Scheduling,
    /// The isolation level. A level other than the default needs an engine that has it.
    pub isolation: Isolation,
    /// The way in which a checkpoint's state is kept while transactions go on.
    pub checkpoints: CheckpointMode,
    /// About how many bytes of a checkpoint are given away at once: so long its other work waits.
    pub piece: usize,
    /// Whether executed transactions may be lost with a leader: replies on which a gateway acts are then deferred
    /// until they are stable.
    pub may_be_lost: bool,
    /// The load balancing of a partition's shards, if there is any.
    pub balance: Option<Balance>,
    /// The bytes, answered or by which a record grows or shrinks, that count as one fragment of the budget. Other
    /// roles of the event loop go on after 256 fragments; with 0, after each that answers or changes anything.
    pub fragment_bytes: usize,
    /// The tier of each shard's values, if the node has a budget of memory.
    pub values: Option<TierSettings>,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl Settings {
    /// Makes the settings of an engine's shards, with defaults for the rest.
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
            values: None,
            bugs: Bugs::NONE,
        }
    }
}
