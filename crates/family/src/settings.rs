//! How a node is set up, as far as every family must know it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ordain_log::{Durability, LogConfig};
use ordain_model::{Computations, Doubts, Evicted, Micros, Options, PartitionId, Stamp, Stopwatch};
use ordain_role::{Address, Bug, Bugs, NodeId, Topology, UnderWay};
use serde::{Deserialize, Serialize};

/// What a node keeps, and when it has kept it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// An acknowledged write survives the loss of power.
    #[default]
    Fsync,
    /// An acknowledged write survives the death of the process.
    Os,
    /// Writes reach the log some time after they are acknowledged.
    Late,
    /// Nothing is kept.
    Nothing,
}

/// How the log of a partition reaches the members of its replication group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Replication {
    /// There is one member.
    None,
    /// One member leads, and the others follow some time after.
    Async,
    /// A majority has an entry before it takes effect.
    Sync,
}

impl Replication {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Replication::None => "none",
            Replication::Async => "async",
            Replication::Sync => "sync",
        }
    }
}

/// The meaning of "durable" in the log of a region, whose storage nodes keep it (regions.md, 4.10).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// A majority of them has it.
    #[default]
    Quorum,
    /// All of them have it, but for those that were silent for long.
    Full,
}

impl Storage {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Storage::Quorum => "quorum",
            Storage::Full => "full",
        }
    }
}

/// The numbers that roles have on every node, whatever the family. A family numbers its own roles below
/// [`SHARDS`](places::SHARDS), but for [`NETWORK`](places::NETWORK).
pub mod places {
    /// The network edge, where there are other nodes.
    pub const NETWORK: u16 = 3;
    /// The first role that has an event loop of its own; the roles before it are on the first loop.
    pub const SHARDS: u16 = 48;
    /// The first front door.
    pub const GATEWAYS: u16 = 256;
}

/// The gauge, 1, that the role which takes a node's transactions reports from its start on. A node without it is not ready.
pub const TAKES_TRANSACTIONS: &str = "ordain_takes_transactions";

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Its number.
    pub node: NodeId,
    /// The cluster that it belongs to.
    pub topology: Topology,
    /// How many front doors it has.
    pub gateways: usize,
    /// The name of its cluster; empty for a node on its own.
    pub cluster: String,
    /// What is kept.
    pub keep: Keep,
    /// Whose log it is.
    pub identity: Vec<u8>,
    /// There was a log before: a directory without one has lost it.
    pub expect_log: bool,
    /// How the log of its partition reaches the other members, if there are any.
    pub replication: Replication,
    /// When storage nodes have an entry, if there are such nodes.
    pub storage: Storage,
    /// In which generation it is: a node that comes back without what it had on disk comes in a larger one.
    pub generation: u32,
    /// How often it has been rebuilt in that generation.
    pub rebuilds: u32,
    /// A number that grows from one start of the node to the next.
    pub life: u64,
    /// How often it reports to the configuration service, where there is one. A primary is given up after eight times that.
    pub configuration_service_pace: Micros,
    /// Length of a log segment, bytes.
    pub segment_bytes: u64,
    /// How much is kept in memory for the nodes of a partition that are behind, bytes.
    pub kept_max: usize,
    /// About how many bytes are sent again at once.
    pub piece: usize,
    /// About how many bytes of a checkpoint a shard gives away at once.
    /// The same on all nodes and at every start: records that move with a slot go in such pieces, and a move that is executed
    /// again meets the acknowledgements of the first time.
    pub checkpoint_piece: usize,
    /// Bytes of memory that its records may take: others have their values on disk. All are in memory without a budget.
    pub memory_budget: Option<u64>,
    /// The largest value that stays in memory even so, bytes: its place on disk is kept in memory too.
    pub evicted_above: usize,
    /// After so many bytes of input the node asks for a checkpoint; 0: only clients do.
    pub checkpoint_bytes: u64,
    /// Whether the log is trimmed up to what checkpoints cover.
    pub trims: bool,
    /// About how long a log may be before what members that are away may want is trimmed too, bytes.
    pub log_keep_bytes: u64,
    /// How many complete checkpoints are kept.
    pub checkpoints_kept: usize,
    /// Transactions that an operator has aborted by their stamps, before they are executed.
    pub aborted: Arc<BTreeSet<Stamp>>,
    /// Where its shards say what they are executing, by their number on the node; nowhere if there are fewer places.
    pub under_way: Vec<UnderWay>,
    /// Where its shards list the long computations that they give away.
    pub computations: Computations,
    /// Where its manager lists what is in doubt.
    pub doubts: Doubts,
    /// What times the scripts of its shards, by their number on the node; nothing if there are fewer.
    pub stopwatches: Vec<Arc<dyn Stopwatch>>,
    /// The engine's options.
    pub options: Options,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl NodeSettings {
    /// The node's log, as its directory keeps it.
    pub fn log_config(&self) -> LogConfig {
        let synced = self.keep == Keep::Fsync && !self.bugs.has(Bug::SkipSync);
        LogConfig {
            segment_bytes: self.segment_bytes,
            durability: if synced { Durability::Fsync } else { Durability::Os },
            bugs: self.bugs,
            expect_existing: self.expect_log,
            ..LogConfig::new(self.identity.clone())
        }
    }

    /// The settings of a node on its own, with one thread, that runs an engine with these options.
    pub fn new(options: Options) -> NodeSettings {
        NodeSettings {
            node: NodeId(0),
            topology: Topology::single(1),
            gateways: 1,
            cluster: String::new(),
            keep: Keep::Fsync,
            identity: Vec::new(),
            expect_log: false,
            replication: Replication::Sync,
            storage: Storage::default(),
            generation: 0,
            rebuilds: 0,
            life: 0,
            configuration_service_pace: Micros::from_millis(100),
            segment_bytes: 64 << 20,
            kept_max: 256 << 20,
            piece: 1 << 20,
            checkpoint_piece: 64 << 10,
            memory_budget: None,
            evicted_above: 2 * Evicted::BYTES,
            checkpoint_bytes: 0,
            trims: true,
            log_keep_bytes: 8 << 30,
            checkpoints_kept: 2,
            aborted: Arc::default(),
            under_way: Vec::new(),
            computations: Computations::default(),
            doubts: Doubts::default(),
            stopwatches: Vec::new(),
            options,
            bugs: Bugs::NONE,
        }
    }

    /// The address of a role of the node.
    pub const fn at(&self, role: u16) -> Address {
        Address { node: self.node, role }
    }

    /// The partition that the node holds.
    pub fn partition(&self) -> PartitionId {
        self.topology.partition_of(self.node)
    }

    /// How the log of its partition reaches the other members; [`Replication::None`] if there are none.
    pub fn replication(&self) -> Replication {
        if self.topology.replicas > 1 { self.replication } else { Replication::None }
    }
}
