//! A cluster as its configuration file describes it.
//!
//! One TOML file, the same on all nodes; `--node N` says which of them a process is. [`ClusterFile`] is what is
//! written there, [`ClusterConfig`] what it means. The way from one to the other checks all of it before anything
//! starts, so that a mistake is a line of text and not a cluster that nearly works. What must be equal on all nodes
//! goes into a [fingerprint](ClusterConfig::fingerprint), which the nodes compare when they meet.

mod error;
mod file;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ordain_deterministic::options::ISOLATION;
use ordain_engines::registry::Engine;
use ordain_family::{Keep, Replication, Storage};
use ordain_model::{Layout, Micros, Options, PartitionId};
use ordain_role::{NodeId, ReplicaId, Topology};
use xxhash_rust::xxh3::xxh3_64;

use crate::tls::LinkFiles;

pub use error::ClusterError;
pub use file::{ClusterFile, NodeEntry, RegionEntry, Secret};

/// The most replicas. More would gain little safety, and each costs a message for every write.
pub const MAX_REPLICAS: u16 = 9;
/// The most storage nodes of a region.
pub const STORAGE_MAX: u16 = 7;
/// Checks that nodes that keep this can replicate their input like that.
///
/// # Errors
/// [`ClusterError::ForgetfulPrimary`].
pub fn check_replication(replication: Replication, keep: Keep) -> Result<(), ClusterError> {
    match (replication, keep) {
        (Replication::Async, Keep::Late | Keep::Nothing) => Err(ClusterError::ForgetfulPrimary),
        _ => Ok(()),
    }
}

/// Tells whether the admin server at an address is in TLS: as configured, or else where clients can be, and other machines reach it.
pub fn is_admin_in_tls(configured: Option<bool>, has_client_tls: bool, admin: SocketAddr) -> bool {
    configured.unwrap_or(has_client_tls && !admin.ip().is_loopback())
}

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The number.
    pub node: NodeId,
    /// The address for other nodes.
    pub cluster: SocketAddr,
    /// The same address as the file has it.
    pub cluster_name: String,
    /// The address for clients.
    pub resp: SocketAddr,
    /// The address of the admin server.
    pub admin: SocketAddr,
    /// The same address as the file has it.
    pub admin_name: String,
    /// The data directory, if the file says so.
    pub data_dir: Option<PathBuf>,
}

/// A cluster, checked: what every node of it starts from.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// The name.
    pub id: String,
    /// The secret of its nodes; empty if there is none.
    pub secret: Secret,
    /// The division of the data.
    pub layout: Arc<Layout>,
    /// The names of its regions, by partition; none if its partitions are no regions.
    pub regions: Vec<String>,
    /// The number of replicas.
    pub replicas: u16,
    /// The number of those that execute; the others are storage nodes.
    pub servers: u16,
    /// When an entry counts as durable there, if there are any.
    pub storage: Option<Storage>,
    /// The round trip that is added between regions.
    pub region_rtt: Micros,
    /// The engine.
    pub engine: Engine,
    /// The options.
    pub options: Options,
    /// What a node keeps on disk, unless its own flags differ.
    pub keep: Keep,
    /// The way by which input reaches the other replicas.
    pub replication: Replication,
    /// One-way delay that is added between nodes.
    pub latency: Micros,
    /// TLS between them.
    pub tls: Option<LinkFiles>,
    /// True if the admin servers are in TLS; none: where [`is_admin_in_tls`] has it.
    pub admin_tls: Option<bool>,
    /// True if clients can connect in TLS.
    pub has_client_tls: bool,
    /// The nodes, by number.
    pub members: Vec<Member>,
}

impl ClusterConfig {
    /// Checks all that a file says.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(file: &ClusterFile) -> Result<ClusterConfig, ClusterError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if file.cluster.is_empty()
            || file.cluster.len() > file::NAME_MAX
            || !file.cluster.chars().all(is_plain)
        {
            return Err(ClusterError::Name(file.cluster.clone()));
        }
        let layout = file.layout()?;
        let regions = file.regions()?;
        let replication = file.replication()?;
        let engine = file.engine.as_deref().map_or(Ok(Engine::default()), str::parse)?;
        let (servers, storage) = file.servers()?;
        if engine.can().has_regions && storage.is_none() && file.partitions > 1 {
            return Err(ClusterError::Regions(engine, file.partitions));
        }
        let way = storage.map_or(replication.name(), Storage::name);
        if !engine.can().replication.contains(&way) {
            let key = if storage.is_some() { "storage" } else { "replication" };
            return Err(ClusterError::EngineReplication { engine, key, wanted: way });
        }
        let options = engine.options(file.options.iter())?;
        let keep = file.keep()?;
        check_replication(replication, keep)?;
        let members = file.members()?;
        let secret = file.secret()?;
        if secret.reveal().is_empty()
            && !file.insecure.unwrap_or(false)
            && let Some(open) = members.iter().map(|m| m.cluster).find(|a| !a.ip().is_loopback())
        {
            return Err(ClusterError::Exposed(open));
        }
        Ok(ClusterConfig {
            id: file.cluster.clone(),
            secret,
            layout: Arc::new(layout),
            regions,
            replicas: file.replicas,
            servers,
            storage,
            region_rtt: Micros::from_millis(file.region_rtt_ms.unwrap_or(0)),
            engine,
            options,
            keep,
            replication,
            latency: Micros(file.latency_us.unwrap_or(0)),
            tls: file.tls.clone(),
            admin_tls: file.admin_tls,
            has_client_tls: file.tls_port.is_some(),
            members,
        })
    }

    /// Tells whether a member's admin server is in TLS.
    pub fn is_admin_in_tls(&self, admin: SocketAddr) -> bool {
        is_admin_in_tls(self.admin_tls, self.has_client_tls, admin)
    }

    /// The grid of partitions and replicas.
    pub fn topology(&self) -> Topology {
        Topology { layout: self.layout.clone(), replicas: self.replicas, servers: self.servers }
    }

    /// The delay that is added on the way from one node to another.
    pub fn delay(&self, from: NodeId, to: NodeId) -> Micros {
        let topology = self.topology();
        match topology.partition_of(from) == topology.partition_of(to) {
            true => self.latency,
            false => self.latency.plus(Micros(self.region_rtt.0 / 2)),
        }
    }

    /// A number that two nodes have in common if they agree on all that must be equal on all nodes. Addresses are
    /// not among that: a node may see another one elsewhere than a third does.
    pub fn fingerprint(&self) -> u64 {
        let (layout, engine, replication) = (&self.layout, self.engine.name(), self.replication.name());
        // The first option that nodes had to agree on has a place of its own; others follow with their names.
        let isolation = self.options.value(&ISOLATION);
        let others =
            self.options.iter().filter(|(info, _)| info.is_of_cluster && info.name != ISOLATION.name);
        let others: String = others.map(|(info, value)| format!(" {} {value}", info.name)).collect();
        let storage =
            self.storage.map(|storage| format!(" servers {} storage {}", self.servers, storage.name()));
        let storage = storage.unwrap_or_default();
        let regions = match self.regions.is_empty() {
            true => String::new(),
            false => format!(" regions {:?} prefixes {:?}", self.regions, layout.placement().texts()),
        };
        let text = format!(
            "cluster {} partitions {} replicas {} threads {} layout {} starts {:?} engine {engine} isolation {} \
             replication {replication}{storage}{others}{regions}",
            self.id,
            layout.partitions(),
            self.replicas,
            layout.threads(),
            layout.version(),
            layout.starts(),
            isolation,
        );
        xxh3_64(text.as_bytes())
    }
}

/// A node's place in a cluster.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The cluster.
    pub cluster: Arc<ClusterConfig>,
    /// The number of the node.
    pub node: NodeId,
}

impl Membership {
    /// The place of node `node`.
    ///
    /// # Errors
    /// [`ClusterError::NoSuchNode`].
    pub fn new(cluster: ClusterConfig, node: u16) -> Result<Membership, ClusterError> {
        let nodes = cluster.topology().nodes();
        if node >= nodes {
            return Err(ClusterError::NoSuchNode { node, last: nodes - 1 });
        }
        Ok(Membership { cluster: Arc::new(cluster), node: NodeId(node) })
    }

    /// The node's entry of the configuration.
    pub fn member(&self) -> &Member {
        &self.cluster.members[usize::from(self.node.0)]
    }

    /// The partition that it holds.
    pub fn partition(&self) -> PartitionId {
        self.cluster.topology().partition_of(self.node)
    }

    /// The replica that it belongs to.
    pub fn replica(&self) -> ReplicaId {
        self.cluster.topology().replica_of(self.node)
    }
}
