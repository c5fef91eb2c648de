//! A cluster as its configuration file describes it.
//!
//! One TOML file, the same on all nodes; `--node N` says which of them a process is. [`ClusterFile`] is what is
//! written there, [`ClusterConfig`] what it means. The way from one to the other checks all of it before anything
//! starts, so that a mistake is a line of text and not a cluster that nearly works. What must be equal on all nodes
//! goes into a [fingerprint](ClusterConfig::fingerprint), which the nodes compare when they meet.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use ordain_archive::Location;
use ordain_deterministic::options::ISOLATION;
use ordain_engines::registry::{Engine, EngineError};
use ordain_family::{Keep, Replication};
use ordain_model::layout::{LayoutError, MAX_SHARDS};
use ordain_model::{Layout, Micros, OptionError, Options, PartitionId};
use ordain_role::{NodeId, ReplicaId, Topology};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::given::{Given, UnknownKey};
use crate::secrets::{self, SecretError};
use crate::size::Size;
use crate::tls::{AuthClients, LinkFiles};

/// The most replicas. More would gain little safety, and each costs a message for every write.
pub const MAX_REPLICAS: u16 = 9;
/// How many nodes the configuration service has that says who is primary, where input is replicated asynchronously.
const CONFIGURATION_SERVICE: u32 = 3;
/// The shortest secret, bytes: what is shorter can be guessed.
const SECRET_MIN: usize = 16;
/// The longest name of a cluster.
const NAME_MAX: usize = 64;
/// The version of [`Layout`] that a file describes. It rises when slots change hands in a running cluster.
const LAYOUT_VERSION: u32 = 1;

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

/// The secret that the nodes of a cluster share. It is never printed.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// A new secret of 256 random bits.
    pub fn random() -> Secret {
        Secret(format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>()))
    }

    /// The text of the secret, to prove or to check it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "no secret" } else { "a secret" })
    }
}

/// The content of the file. The keys are named as the flags of `ordain serve` are; an underscore does for a hyphen.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ClusterFile {
    /// The cluster's name, which tells it from all others.
    pub cluster: String,
    /// The secret by which its nodes know each other.
    pub secret: Option<Secret>,
    /// A file with the secret instead.
    #[serde(alias = "secret_file")]
    pub secret_file: Option<PathBuf>,
    /// How many partitions the data is divided into.
    pub partitions: u16,
    /// How many replicas there are of each partition.
    pub replicas: u16,
    /// Event loops of a node, each with a share of its partition.
    pub threads: usize,
    /// The engine.
    pub engine: Option<String>,
    /// When an acknowledged write is durable on a node: `fsync`, `os` or `none`.
    pub durability: Option<String>,
    /// Nodes keep nothing on disk.
    pub ephemeral: Option<bool>,
    /// How input reaches the other replicas.
    pub replication: Option<Replication>,
    /// The first slot of each partition, where they are not to be of one size.
    pub starts: Option<Vec<usize>>,
    /// One-way delay that is added between nodes, for experiments.
    #[serde(alias = "latency_us")]
    pub latency_us: Option<u64>,
    /// After so many bytes of input a node asks for a checkpoint.
    #[serde(alias = "checkpoint_log_bytes")]
    pub checkpoint_log_bytes: Option<u64>,
    /// About how long a log may be before what members that are away may want is trimmed too.
    #[serde(alias = "log_keep_bytes")]
    pub log_keep_bytes: Option<u64>,
    /// How long a file of a log is.
    #[serde(alias = "log_segment_bytes")]
    pub log_segment_bytes: Option<u64>,
    /// The store for copies of complete checkpoints.
    #[serde(alias = "checkpoint_store")]
    pub checkpoint_store: Option<Location>,
    /// How many of them are kept there.
    #[serde(alias = "checkpoint_store_keep")]
    pub checkpoint_store_keep: Option<NonZeroUsize>,
    /// How much memory each node may have allocated before what needs more is refused.
    pub maxmemory: Option<Size>,
    /// Whether the admin servers are in TLS.
    #[serde(alias = "admin_tls")]
    pub admin_tls: Option<bool>,
    /// The user as which nodes ask each other's admin servers.
    #[serde(alias = "admin_user")]
    pub admin_user: Option<String>,
    /// A file with its password.
    #[serde(alias = "admin_password_file")]
    pub admin_password_file: Option<PathBuf>,
    /// The password of the default user.
    pub password: Option<Secret>,
    /// A file with the password instead, on each node.
    #[serde(alias = "password_file")]
    pub password_file: Option<PathBuf>,
    /// The ACL file of a node.
    #[serde(alias = "users_file")]
    pub users_file: Option<PathBuf>,
    /// The port for clients in TLS, on the address of each node.
    #[serde(alias = "tls_port")]
    pub tls_port: Option<u16>,
    /// Whether clients can connect in TLS alone.
    #[serde(alias = "tls_only")]
    pub tls_only: Option<bool>,
    /// The certificate of the port for clients.
    #[serde(alias = "tls_cert_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Its key.
    #[serde(alias = "tls_key_file")]
    pub tls_key_file: Option<PathBuf>,
    /// The authorities of clients' certificates.
    #[serde(alias = "tls_ca_cert_file")]
    pub tls_ca_cert_file: Option<PathBuf>,
    /// Whether clients must show a certificate.
    #[serde(alias = "tls_auth_clients")]
    pub tls_auth_clients: Option<AuthClients>,
    /// Be reachable from other machines without a secret and a password.
    pub insecure: Option<bool>,
    /// The filter of log lines on stderr.
    pub log: Option<String>,
    /// Log lines as JSON.
    #[serde(alias = "log_json")]
    pub log_json: Option<bool>,
    /// The engine's options.
    #[serde(flatten)]
    pub options: Given,
    /// TLS between the nodes.
    pub tls: Option<LinkFiles>,
    /// Its nodes.
    #[serde(default)]
    pub node: Vec<NodeEntry>,
}

/// A `[[node]]` of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeEntry {
    /// Its number: replica times partitions, plus partition.
    pub id: u16,
    /// Where the other nodes reach it.
    pub cluster: String,
    /// Where clients reach it.
    pub resp: String,
    /// Where its admin server is.
    pub admin: String,
    /// Where it keeps its data.
    #[serde(alias = "data_dir")]
    pub data_dir: Option<PathBuf>,
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
    /// As many starts as partitions.
    #[error(
        "starts names the first slots of {found} partitions and there are {partitions}: name one for each"
    )]
    Starts {
        /// How many are named.
        found: usize,
        /// How many there are.
        partitions: u16,
    },
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
        /// Its number.
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
        /// Which.
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
        /// Which address.
        key: &'static str,
        /// What is written.
        text: String,
        /// Why it is none.
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
        /// Which address.
        key: &'static str,
        /// What is written.
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
        /// Which it would be.
        node: u16,
        /// The largest number.
        last: u16,
    },
}

/// Whether the admin server at an address is in TLS: as configured, or else where clients can be, and other machines reach it.
pub fn is_admin_in_tls(configured: Option<bool>, has_client_tls: bool, admin: SocketAddr) -> bool {
    configured.unwrap_or(has_client_tls && !admin.ip().is_loopback())
}

fn list(numbers: &[u16]) -> String {
    numbers.iter().map(u16::to_string).collect::<Vec<_>>().join(", ")
}

impl ClusterFile {
    /// The keys that only a cluster's file has.
    const KEYS: [&'static str; 7] =
        ["node", "cluster", "partitions", "replicas", "replication", "starts", "secret"];

    /// Whether a configuration file describes a cluster, and not a node on its own. A file that is not TOML does
    /// not, and is refused when it is read.
    pub fn is_one(text: &str) -> bool {
        text.parse::<toml::Table>()
            .is_ok_and(|table| ClusterFile::KEYS.iter().any(|key| table.contains_key(*key)))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`ClusterError::Syntax`], [`ClusterError::Key`].
    pub fn parse(text: &str) -> Result<ClusterFile, ClusterError> {
        let file: ClusterFile = toml::from_str(text).map_err(|error| {
            let lines: Vec<String> = error.to_string().lines().map(|line| line.trim().to_owned()).collect();
            ClusterError::Syntax(lines.join(" "))
        })?;
        file.options.check_keys(text)?;
        Ok(file)
    }

    /// The durability of a node.
    fn keep(&self) -> Result<Keep, ClusterError> {
        match (self.ephemeral.unwrap_or(false), self.durability.as_deref()) {
            (true, None) if self.replicas > 1 => Err(ClusterError::Forgetful(self.replicas)),
            (true, None) => Ok(Keep::Nothing),
            (true, Some(_)) => Err(ClusterError::Ephemeral),
            (false, None | Some("fsync")) => Ok(Keep::Fsync),
            (false, Some("os")) => Ok(Keep::Os),
            (false, Some("none")) => Ok(Keep::Late),
            (false, Some(other)) => Err(ClusterError::Durability(other.to_owned())),
        }
    }

    fn replication(&self) -> Result<Replication, ClusterError> {
        if self.replicas == 0 || self.replicas > MAX_REPLICAS {
            return Err(ClusterError::Replicas(self.replicas));
        }
        match (self.replication, self.replicas) {
            (None, 1) => Ok(Replication::None),
            (None, _) => Ok(Replication::Sync),
            (Some(Replication::None), 2..) => Err(ClusterError::Unreplicated(self.replicas)),
            (Some(Replication::Async), 1) => Err(ClusterError::Lonely),
            (Some(Replication::Async), replicas)
                if u32::from(replicas) * u32::from(self.partitions) < CONFIGURATION_SERVICE =>
            {
                Err(ClusterError::ConfigurationService(u32::from(replicas) * u32::from(self.partitions)))
            }
            (Some(chosen), _) => Ok(chosen),
        }
    }

    fn layout(&self) -> Result<Layout, ClusterError> {
        let partitions = usize::from(self.partitions);
        // Beyond this the product of the two would not even be computed.
        if partitions > MAX_SHARDS || self.threads > MAX_SHARDS {
            return Err(LayoutError::Size { partitions, threads: self.threads }.into());
        }
        Ok(match &self.starts {
            None => Layout::even(partitions, self.threads)?,
            Some(starts) if starts.len() == partitions => {
                Layout::ranges(LAYOUT_VERSION, starts.clone(), self.threads)?
            }
            Some(starts) => {
                return Err(ClusterError::Starts { found: starts.len(), partitions: self.partitions });
            }
        })
    }

    /// Checks that there can be a grid of this size; its nodes need not be named yet.
    ///
    /// # Errors
    /// Why there cannot.
    pub fn check_grid(&self) -> Result<(), ClusterError> {
        self.layout()?;
        self.replication()?;
        Ok(())
    }

    fn secret(&self) -> Result<Secret, ClusterError> {
        let secret = match (&self.secret, &self.secret_file) {
            (Some(_), Some(_)) => return Err(ClusterError::Secrets),
            (Some(secret), None) => secret.clone(),
            (None, Some(path)) => Secret(secrets::read_text(path)?.trim().to_owned()),
            (None, None) => return Ok(Secret::default()),
        };
        let length = secret.reveal().len();
        if length < SECRET_MIN { Err(ClusterError::ShortSecret(length)) } else { Ok(secret) }
    }

    /// The nodes by number: each of the grid once, at addresses that differ.
    fn members(&self) -> Result<Vec<Member>, ClusterError> {
        let (partitions, replicas) = (self.partitions, self.replicas);
        let count = partitions * replicas;
        let mut members = BTreeMap::new();
        let mut owners: BTreeMap<SocketAddr, String> = BTreeMap::new();
        for entry in &self.node {
            if entry.id >= count {
                let last = count - 1;
                return Err(ClusterError::Stranger { id: entry.id, partitions, replicas, last });
            }
            let mut address = |key, text: &str| {
                let address = resolve(entry.id, key, text)?;
                let owner = format!("the {key} address of node {}", entry.id);
                match owners.insert(address, owner.clone()) {
                    None => Ok(address),
                    Some(first) => Err(ClusterError::Shared { address, first, second: owner }),
                }
            };
            let member = Member {
                node: NodeId(entry.id),
                cluster: address("cluster", &entry.cluster)?,
                cluster_name: entry.cluster.clone(),
                resp: address("resp", &entry.resp)?,
                admin: address("admin", &entry.admin)?,
                admin_name: entry.admin.clone(),
                data_dir: entry.data_dir.clone(),
            };
            if members.insert(entry.id, member).is_some() {
                return Err(ClusterError::Twice(entry.id));
            }
        }
        let missing: Vec<u16> = (0..count).filter(|id| !members.contains_key(id)).collect();
        if missing.is_empty() {
            Ok(members.into_values().collect())
        } else {
            Err(ClusterError::Missing { missing, partitions, replicas })
        }
    }
}

fn resolve(node: u16, key: &'static str, text: &str) -> Result<SocketAddr, ClusterError> {
    let wrong = |reason: String| ClusterError::Address { node, key, text: text.to_owned(), reason };
    let address = text
        .to_socket_addrs()
        .map_err(|error| wrong(error.to_string()))?
        .next()
        .ok_or_else(|| wrong("the name has no address".to_owned()))?;
    if address.port() == 0 || address.ip().is_unspecified() {
        return Err(ClusterError::Unreachable { node, key, text: text.to_owned() });
    }
    Ok(address)
}

/// A node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its number.
    pub node: NodeId,
    /// Where the other nodes reach it.
    pub cluster: SocketAddr,
    /// That address as the file has it.
    pub cluster_name: String,
    /// Where clients reach it.
    pub resp: SocketAddr,
    /// Where its admin server is.
    pub admin: SocketAddr,
    /// That address as the file has it.
    pub admin_name: String,
    /// Where it keeps its data, if the file says so.
    pub data_dir: Option<PathBuf>,
}

/// A cluster, checked: what every node of it starts from.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// Its name.
    pub id: String,
    /// The secret of its nodes; empty if there is none.
    pub secret: Secret,
    /// The division of the data.
    pub layout: Arc<Layout>,
    /// How many replicas there are.
    pub replicas: u16,
    /// The engine.
    pub engine: Engine,
    /// Its options.
    pub options: Options,
    /// What a node keeps on disk, unless its own flags differ.
    pub keep: Keep,
    /// How input reaches the other replicas.
    pub replication: Replication,
    /// One-way delay that is added between nodes.
    pub latency: Micros,
    /// TLS between them.
    pub tls: Option<LinkFiles>,
    /// Whether the admin servers are in TLS; none: where [`is_admin_in_tls`] has it.
    pub admin_tls: Option<bool>,
    /// Whether clients can connect in TLS.
    pub has_client_tls: bool,
    /// Its nodes, by number.
    pub members: Vec<Member>,
}

impl ClusterConfig {
    /// Checks all that a file says.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn new(file: &ClusterFile) -> Result<ClusterConfig, ClusterError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if file.cluster.is_empty() || file.cluster.len() > NAME_MAX || !file.cluster.chars().all(is_plain) {
            return Err(ClusterError::Name(file.cluster.clone()));
        }
        let layout = file.layout()?;
        let replication = file.replication()?;
        let engine = file.engine.as_deref().map_or(Ok(Engine::default()), str::parse)?;
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
            replicas: file.replicas,
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

    /// Whether a member's admin server is in TLS.
    pub fn is_admin_in_tls(&self, admin: SocketAddr) -> bool {
        is_admin_in_tls(self.admin_tls, self.has_client_tls, admin)
    }

    /// Its grid.
    pub fn topology(&self) -> Topology {
        Topology { layout: self.layout.clone(), replicas: self.replicas }
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
        let text = format!(
            "cluster {} partitions {} replicas {} threads {} layout {} starts {:?} engine {engine} isolation {} \
             replication {replication}{others}",
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
    /// Which of its nodes.
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

    /// What the configuration says of it.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of so many partitions and replicas, with these lines at its head.
    fn file(partitions: u16, replicas: u16, head: &str) -> String {
        let nodes: String = (0..partitions * replicas).map(|id| node(id, "127.0.0.1")).collect();
        format!(
            "cluster = \"c\"\npartitions = {partitions}\nreplicas = {replicas}\nthreads = 2\n{head}\n{nodes}"
        )
    }

    fn node(id: u16, host: &str) -> String {
        let port = |kind: u16| format!("\"{host}:{}\"", 7000 + kind * 100 + id);
        format!("[[node]]\nid = {id}\ncluster = {}\nresp = {}\nadmin = {}\n", port(0), port(1), port(2))
    }

    fn check(text: &str) -> Result<ClusterConfig, ClusterError> {
        ClusterConfig::new(&ClusterFile::parse(text)?)
    }

    #[track_caller]
    fn refused(text: &str, words: &[&str]) {
        let error = check(text).expect_err("it was taken").to_string();
        assert!(!error.contains('\n'), "more than a line: {error}");
        words.iter().for_each(|word| assert!(error.contains(word), "'{word}' is not in: {error}"));
    }

    #[test]
    fn what_is_written_is_what_is_meant() {
        let text = file(3, 2, "durability = \"os\"\nlatency_us = 500\nstarts = [0, 300, 600]");
        let config = check(&text).unwrap();
        assert_eq!((config.topology().nodes(), config.replication), (6, Replication::Sync));
        assert_eq!((config.keep, config.latency), (Keep::Os, Micros(500)));
        assert_eq!(config.layout.starts(), [0, 300, 600]);
        let place = Membership::new(config, 4).unwrap();
        assert_eq!((place.partition(), place.replica()), (PartitionId(1), ReplicaId(1)));
        assert_eq!(place.member().resp.port(), 7104);
        let error = Membership::new(check(&text).unwrap(), 6).unwrap_err().to_string();
        assert!(error.contains("--node 6") && error.contains("0 to 5"), "{error}");
        let one = check(&file(2, 1, "latency-us = 7\nephemeral = true")).unwrap();
        assert_eq!((one.replication, one.keep, one.latency), (Replication::None, Keep::Nothing, Micros(7)));
    }

    #[test]
    fn a_file_that_was_written_is_read_again() {
        let file = ClusterFile::parse(&file(2, 2, "secret = \"0123456789abcdef\"\nlinger-us = 3")).unwrap();
        let again = ClusterFile::parse(&toml::to_string(&file).unwrap()).unwrap();
        assert_eq!(again.secret, file.secret);
        let (a, b) = (ClusterConfig::new(&file).unwrap(), ClusterConfig::new(&again).unwrap());
        assert_eq!((a.fingerprint(), a.members), (b.fingerprint(), b.members));
        assert!(!format!("{file:?}").contains("0123456789abcdef"), "the secret shows");
    }

    #[test]
    fn a_cluster_is_told_from_a_node_on_its_own() {
        assert!(ClusterFile::is_one(&file(1, 1, "")));
        assert!(ClusterFile::is_one("partitions = 2"));
        assert!(!ClusterFile::is_one("threads = 2\nlisten = \"127.0.0.1:1\""));
        assert!(!ClusterFile::is_one("threads = "));
    }

    #[test]
    fn a_key_that_is_not_known_or_lacks_is_named() {
        refused(&file(1, 1, "partition = 3"), &["partition", "line 5"]);
        refused(&file(1, 1, "").replace("admin", "amdin"), &["amdin"]);
        refused(&file(1, 1, "").replace("threads = 2", ""), &["missing field", "threads"]);
        refused(&file(1, 1, "").replace("threads = 2", "threads = \"two\""), &["threads", "line 4"]);
        refused("partitions = ", &["line 1"]);
    }

    #[test]
    fn sizes_have_limits() {
        refused(&file(65, 1, ""), &["65 partitions of 2 threads", "128", "choose fewer"]);
        refused(&file(1, 1, "").replace("partitions = 1", "partitions = 0"), &["0 partitions"]);
        refused(
            &file(1, 1, "").replace("threads = 2", &format!("threads = {}", i64::MAX)),
            &["choose fewer"],
        );
        refused(&file(1, 10, ""), &["replicas = 10", "1 to 9"]);
        refused(&file(1, 1, "").replace("replicas = 1", "replicas = 0"), &["replicas = 0"]);
        refused(&file(2, 1, "starts = [0]"), &["1 partitions", "there are 2"]);
        refused(&file(2, 1, "starts = [0, 1024]"), &["slot 1024"]);
        refused(&file(2, 1, "starts = [1, 5]"), &["partition 0", "slot 1"]);
    }

    #[test]
    fn every_node_of_the_grid_is_there_once() {
        let text = file(2, 2, "");
        refused(&text.replace("id = 3", "id = 4"), &["id = 4", "nodes 0 to 3"]);
        refused(&format!("{text}{}", node(3, "127.0.0.2")), &["id = 3", "twice"]);
        let three = file(3, 1, "").replace("replicas = 1", "replicas = 2");
        refused(&three, &["no [[node]] with id = 3, 4, 5", "3 partitions times 2 replicas"]);
        refused(&file(0, 0, "").replace("= 0", "= 1"), &["no [[node]] with id = 0"]);
    }

    #[test]
    fn addresses_are_addresses_and_differ() {
        let text = file(2, 1, "");
        refused(&text.replace("127.0.0.1:7101", "7101"), &["id = 1, resp = \"7101\"", "host:port"]);
        refused(&text.replace("127.0.0.1:7001", "127.0.0.1:70010"), &["id = 1, cluster", "host:port"]);
        refused(&text.replace("127.0.0.1:7000", "0.0.0.0:7000"), &["id = 0, cluster", "listen"]);
        refused(&text.replace("127.0.0.1:7200", "127.0.0.1:0"), &["id = 0, admin", "127.0.0.1:0"]);
        let same = text.replace("127.0.0.1:7201", "127.0.0.1:7100");
        refused(&same, &["127.0.0.1:7100", "the resp address of node 0", "the admin address of node 1"]);
    }

    #[test]
    fn replicas_need_replication() {
        refused(&file(1, 3, "replication = \"none\""), &["3 replicas", "sync"]);
        refused(&file(1, 1, "replication = \"async\""), &["async", "one replica", "replicas = 2"]);
        refused(
            &file(1, 2, "replication = \"async\""),
            &["2 nodes", "configuration service of three", "sync"],
        );
        refused(&file(1, 1, "replication = \"raft\""), &["raft", "sync"]);
        assert_eq!(check(&file(1, 1, "replication = \"sync\"")).unwrap().replication, Replication::Sync);
    }

    #[test]
    fn a_primary_keeps_what_it_has_sealed() {
        let of = |more: &str| file(2, 2, &format!("replication = \"async\"\n{more}"));
        for kept in ["", "durability = \"fsync\"", "durability = \"os\""] {
            assert_eq!(check(&of(kept)).unwrap().replication, Replication::Async, "{kept}");
        }
        assert!(check(&file(1, 3, "replication = \"async\"")).is_ok());
        refused(&of("durability = \"none\""), &["forgotten", "\"fsync\" or \"os\""]);
        refused(&of("ephemeral = true"), &["ephemeral", "forgotten"]);
        assert!(
            check_replication(Replication::Async, Keep::Nothing).is_err()
                && check_replication(Replication::Sync, Keep::Late).is_ok()
        );
    }

    #[test]
    fn what_is_chosen_must_be_there() {
        refused(&file(1, 1, "engine = \"maat\""), &["'maat' is not built yet"]);
        refused(&file(1, 1, "durability = \"sometimes\""), &["sometimes", "fsync, os or none"]);
        refused(&file(1, 1, "durability = \"os\"\nephemeral = true"), &["ephemeral", "drop one"]);
        refused(&file(1, 3, "ephemeral = true"), &["3 replicas", "forgotten", "durability = \"none\""]);
        for name in ["", "a b", "a/b", &"x".repeat(65)] {
            refused(&file(1, 1, "").replace("\"c\"", &format!("{name:?}")), &["a cluster's name"]);
        }
    }

    #[test]
    fn other_machines_need_the_secret() {
        let open = file(1, 1, "").replace("127.0.0.1:7000", "192.0.2.1:7000");
        refused(&open, &["192.0.2.1:7000", "secret-file", "--insecure"]);
        assert!(check(&format!("insecure = true\n{open}")).unwrap().secret.reveal().is_empty());
        refused(&format!("secret = \"open sesame\"\n{open}"), &["11 bytes", "16"]);
        assert!(check(&format!("secret = \"open sesame 4711\"\n{open}")).is_ok());

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        std::fs::write(&path, "  open sesame 4711\n").unwrap();
        let line = format!("secret_file = {path:?}\n");
        assert_eq!(check(&format!("{line}{open}")).unwrap().secret.reveal(), "open sesame 4711");
        refused(&format!("secret = \"open sesame 4711\"\n{line}{open}"), &["secret and secret-file"]);
        std::fs::remove_file(&path).unwrap();
        refused(&format!("{line}{open}"), &["secret-file: cannot read", "this user may read it"]);
    }

    #[test]
    fn a_fingerprint_tells_what_must_be_equal_from_what_need_not() {
        let text = file(2, 1, "");
        let of = |text: &str| check(text).unwrap().fingerprint();
        let same =
            text.replace("127.0.0.1", "127.0.0.2").replace("threads = 2", "threads = 2\nlatency-us = 1");
        assert_eq!(of(&text), of(&same));
        for other in [
            text.replace("\"c\"", "\"d\""),
            text.replace("threads = 2", "threads = 1"),
            text.replace("threads = 2", "threads = 2\nstarts = [0, 500]"),
            text.replace("threads = 2", "threads = 2\nreplication = \"sync\""),
            file(3, 1, ""),
            file(2, 2, ""),
        ] {
            assert_ne!(of(&text), of(&other), "{other}");
        }
    }
}
