//! `ordain cluster`: a whole cluster on this machine, and a look at any; slots of any are moved.

mod access;
mod home;
mod relocate;
pub mod relocation;
mod status;
mod up;

use std::path::PathBuf;

use clap::Subcommand;
use serde::{Deserialize, Serialize};

pub use home::StorageName;

/// The subcommands of `ordain cluster`.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Run a cluster on this machine, every node a process, until Ctrl-C or SIGTERM.
    Up(Box<up::UpArgs>),
    /// Show how each node of a cluster is; exit 1 if one is not well.
    Status(status::StatusArgs),
    /// Move hash slots to another partition of a running cluster.
    Move(relocate::MoveArgs),
}

/// Runs the command. True: all is well.
///
/// # Errors
/// What went wrong.
pub fn run(command: &ClusterCommand) -> anyhow::Result<bool> {
    match command {
        ClusterCommand::Up(args) => up::run(args),
        ClusterCommand::Status(args) => status::run(args),
        ClusterCommand::Move(args) => relocate::run(args).map(|()| true),
    }
}

/// The name of the file in which a cluster that runs here is written down, in its data directory.
const RECORD: &str = "cluster.json";

/// The content of `cluster.json`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Record {
    cluster: String,
    engine: String,
    replication: String,
    partitions: u16,
    replicas: u16,
    /// When the storage nodes of a region have what is acknowledged, if there are such nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    storage: Option<String>,
    /// The file that all nodes were started with.
    config: PathBuf,
    nodes: Vec<NodeRecord>,
}

/// The kind of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum NodeKind {
    /// It executes, and takes clients.
    #[default]
    Server,
    /// It keeps the log of a region, and takes none.
    Storage,
}

/// A node of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct NodeRecord {
    id: u16,
    partition: u16,
    replica: u16,
    #[serde(default)]
    kind: NodeKind,
    resp: String,
    admin: String,
    /// The address for other nodes.
    cluster: String,
    /// None: it does not run.
    pid: Option<u32>,
    data_dir: PathBuf,
    /// The line that it printed.
    log: PathBuf,
}
