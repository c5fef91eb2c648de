//! Errors in a cluster's configuration. Each says what to do.

use std::net::SocketAddr;

use ordain_engines::registry::{self, Engine, EngineError};
use ordain_model::OptionError;
use ordain_model::layout::LayoutError;
use ordain_model::options::any_of;
use ordain_role::REGIONS_MAX;

use super::file::{NAME_MAX, SECRET_MIN};
use super::{MAX_REPLICAS, STORAGE_MAX};
use crate::given::UnknownKey;
use crate::secrets::SecretError;

/// The engines whose log can be replicated in that way.
fn engines_that_replicate_by(way: &str) -> Vec<&'static str> {
    registry::engines().filter(|engine| engine.can().replication.contains(&way)).map(Engine::name).collect()
}

/// An error in a cluster's configuration.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// It is not TOML, a key is not known or lacks, or a value is of the wrong kind.
    #[error("{0}")]
    Syntax(String),
    /// The name cannot stand where it has to.
    #[error(
        "cluster = \"{0}\": a cluster's name is 1 to {NAME_MAX} letters, digits, dots, hyphens and underscores, \
         because it is written into logs and directories: choose such a name"
    )]
    Name(String),
    /// There is no such engine.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The engine's log cannot be replicated in that way.
    #[error(
        "{key} = \"{wanted}\": the log of engine {engine} is replicated by {}: choose that, or one of the engines {}",
        any_of(engine.can().replication),
        engines_that_replicate_by(wanted).join(", ")
    )]
    EngineReplication {
        /// The engine.
        engine: Engine,
        /// The key that asked for it.
        key: &'static str,
        /// The way that was asked for.
        wanted: &'static str,
    },
    /// The engine has no such option, or the option no such value.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// A key that nothing is known by.
    #[error(transparent)]
    Key(#[from] UnknownKey),
    /// No such layout.
    #[error("{0}")]
    Layout(#[from] LayoutError),
    /// Too few or too many replicas.
    #[error("replicas = {0}: a cluster has 1 to {MAX_REPLICAS} replicas: choose a number among them")]
    Replicas(u16),
    /// Too few or too many of the replicas execute.
    #[error(
        "servers = {servers} with {replicas} replicas: a region has at least one server that executes, and at least one storage node \
         that keeps its log: raise replicas, which counts both, or leave servers and storage out"
    )]
    Servers {
        /// How many would execute.
        servers: u16,
        /// The replicas.
        replicas: u16,
    },
    /// More storage nodes than a region can have.
    #[error(
        "a region would have {0} storage nodes, and has at most {STORAGE_MAX}: name fewer replicas, which count servers and storage \
         nodes"
    )]
    StorageNodes(u16),
    /// More regions than there can be.
    #[error("partitions = {0}: there are at most {REGIONS_MAX} regions with storage nodes: name fewer")]
    RegionsMax(u16),
    /// The storage nodes replicate, and a way beside that is named.
    #[error(
        "replication = \"{0}\" with servers or storage: the storage nodes of a region are its replication: leave replication out"
    )]
    StorageReplication(&'static str),
    /// The engine's partitions are regions, and these have no storage.
    #[error(
        "engine {0} with {1} partitions: its partitions are regions, each with storage nodes of its own: set storage = \"quorum\" or \
         \"full\" (ordain cluster up --regions N --replicas R --storage quorum), or partitions = 1"
    )]
    Regions(Engine, u16),
    /// As many starts as partitions.
    #[error(
        "starts names the first slots of {found} partitions and there are {partitions}: name one for each"
    )]
    Starts {
        /// How many are named.
        found: usize,
        /// The number of them.
        partitions: u16,
    },
    /// The name of a region cannot be shown.
    #[error(
        "[[region]] name = {0:?}: a region's name is 1 to {NAME_MAX} printable characters: choose such a name"
    )]
    RegionName(String),
    /// Two regions of one name.
    #[error("[[region]] name = \"{0}\" is there twice: name the regions apart")]
    RegionTwice(String),
    /// No such durability.
    #[error("durability = \"{0}\": it is fsync, os or none: choose one of them")]
    Durability(String),
    /// Both at once.
    #[error("ephemeral nodes keep nothing, so durability has no meaning beside it: drop one of the two")]
    Ephemeral,
    /// Nodes that forget what others count on.
    #[error(
        "ephemeral = true with {0} replicas: a node that is started again would have forgotten what its members count on: \
         choose durability = \"none\" (not with replication = \"async\"), or replicas = 1"
    )]
    Forgetful(u16),
    /// Replicas that would never hear of anything.
    #[error(
        "replication = \"none\" with {0} replicas: nothing would ever reach the other replicas: choose \"sync\", or \
         replicas = 1"
    )]
    Unreplicated(u16),
    /// There is no replica to replicate to.
    #[error(
        "replication = \"async\" with one replica: there is no node to send anything to: choose \"none\", or replicas = 2"
    )]
    Lonely,
    /// Too few nodes to tell who is primary.
    #[error(
        "replication = \"async\" with {0} nodes: which node is primary is agreed on by a configuration service of three, so that two can tell \
         when the third is gone: choose more replicas or partitions (three nodes in all), or \"sync\""
    )]
    ConfigurationService(u32),
    /// Primaries that forget what they have sealed.
    #[error(
        "replication = \"async\" and a node that writes after it has answered, or not at all: a primary that is started again \
         would have forgotten what it has sent to others, and would seal something else in its place: choose durability = \
         \"fsync\" or \"os\""
    )]
    ForgetfulPrimary,
    /// A node outside the grid.
    #[error(
        "[[node]] id = {id}: {partitions} partitions times {replicas} replicas make nodes 0 to {last}: number the \
         nodes replica x partitions + partition"
    )]
    Stranger {
        /// The number.
        id: u16,
        /// Partitions.
        partitions: u16,
        /// Replicas.
        replicas: u16,
        /// The largest number.
        last: u16,
    },
    /// A node that is there twice.
    #[error("[[node]] id = {0} is there twice, and a node has one place: number the nodes apart")]
    Twice(u16),
    /// Nodes that are not there.
    #[error(
        "there is no [[node]] with id = {}: every node of the grid ({partitions} partitions times {replicas} \
         replicas) must be named: add what is missing", list(.missing)
    )]
    Missing {
        /// The numbers of the nodes.
        missing: Vec<u16>,
        /// Partitions.
        partitions: u16,
        /// Replicas.
        replicas: u16,
    },
    /// An address that is none.
    #[error("[[node]] id = {node}, {key} = \"{text}\": {reason}: write it as host:port")]
    Address {
        /// The node.
        node: u16,
        /// The key of the address.
        key: &'static str,
        /// The text of the key.
        text: String,
        /// The reason why it is none.
        reason: String,
    },
    /// An address that cannot be connected to.
    #[error(
        "[[node]] id = {node}, {key} = \"{text}\": others must be able to connect to it: write the address that they \
         see (a node listens elsewhere when its own --listen or --admin say so)"
    )]
    Unreachable {
        /// The node.
        node: u16,
        /// The key of the address.
        key: &'static str,
        /// The text of the key.
        text: String,
    },
    /// One address for two servers.
    #[error("{address} is {first} and {second}: only one can listen there: give each its own address")]
    Shared {
        /// The address.
        address: SocketAddr,
        /// Whose.
        first: String,
        /// And whose.
        second: String,
    },
    /// Both places for the secret.
    #[error("secret and secret-file are both there, and only one of them can be meant: drop one")]
    Secrets,
    /// The file with the secret.
    #[error("secret-file: {0}")]
    SecretFile(#[from] SecretError),
    /// One that can be guessed.
    #[error(
        "the secret has {0} bytes and could be guessed: take {SECRET_MIN} or more, such as `openssl rand -hex 32`"
    )]
    ShortSecret(usize),
    /// Any machine could take part.
    #[error(
        "other machines can reach {0}, where nodes talk to each other, and there is no secret: any of them could take \
         part: set secret-file, or say --insecure"
    )]
    Exposed(SocketAddr),
    /// The process is none of the nodes.
    #[error("--node {node}: the cluster has nodes 0 to {last}: say which of them this one is")]
    NoSuchNode {
        /// The number of the node.
        node: u16,
        /// The largest number.
        last: u16,
    },
}

fn list(numbers: &[u16]) -> String {
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}
