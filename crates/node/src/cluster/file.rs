//! The file that describes a cluster: its keys, and the checks of what they hold.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::PathBuf;

use ordain_archive::Location;
use ordain_family::{Keep, Replication, Storage};
use ordain_model::Layout;
use ordain_model::layout::{LayoutError, MAX_SHARDS};
use ordain_role::{NodeId, REGIONS_MAX};
use serde::{Deserialize, Serialize};

use super::{ClusterError, MAX_REPLICAS, Member, STORAGE_MAX};
use crate::given::Given;
use crate::secrets;
use crate::size::Size;
use crate::tls::{AuthClients, LinkFiles};

/// How many nodes the configuration service has that says who is primary, where input is replicated asynchronously.
const CONFIGURATION_SERVICE: u32 = 3;
/// The shortest secret, bytes: what is shorter can be guessed.
pub(super) const SECRET_MIN: usize = 16;
/// The longest name of a cluster, or of a region.
pub(super) const NAME_MAX: usize = 64;
/// The version of [`Layout`] that a file describes. It rises when slots change hands in a running cluster.
const LAYOUT_VERSION: u32 = 1;

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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// The number of replicas of each partition.
    pub replicas: u16,
    /// Event loops of a node, each with a share of its partition.
    pub threads: usize,
    /// The engine.
    pub engine: Option<String>,
    /// When an acknowledged write is durable on a node: `fsync`, `os` or `none`.
    pub durability: Option<String>,
    /// Nodes keep nothing on disk.
    pub ephemeral: Option<bool>,
    /// The way by which input reaches the other replicas.
    pub replication: Option<Replication>,
    /// The number of replicas that execute, where the others are storage nodes.
    pub servers: Option<u16>,
    /// When an entry counts as durable on the storage nodes of a region.
    pub storage: Option<Storage>,
    /// The round trip that is added between regions, for experiments.
    #[serde(alias = "region_rtt_ms")]
    pub region_rtt_ms: Option<u64>,
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
    /// The length of a file of a log, bytes.
    #[serde(alias = "log_segment_bytes")]
    pub log_segment_bytes: Option<u64>,
    /// The store for copies of complete checkpoints.
    #[serde(alias = "checkpoint_store")]
    pub checkpoint_store: Option<Location>,
    /// The number of them that are kept there.
    #[serde(alias = "checkpoint_store_keep")]
    pub checkpoint_store_keep: Option<NonZeroUsize>,
    /// The memory that each node may have allocated before what needs more is refused.
    pub maxmemory: Option<Size>,
    /// The memory that the records of each node may take; the values of others are on disk.
    #[serde(alias = "memory_budget")]
    pub memory_budget: Option<Size>,
    /// True if the admin servers are in TLS.
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
    /// True if clients can connect in TLS alone.
    #[serde(alias = "tls_only")]
    pub tls_only: Option<bool>,
    /// The certificate of the port for clients.
    #[serde(alias = "tls_cert_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// The key.
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
    /// The regions, one a partition, in the order of the partitions; none: partitions have no names and no prefixes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub region: Vec<RegionEntry>,
    /// The nodes.
    #[serde(default)]
    pub node: Vec<NodeEntry>,
}

/// A `[[region]]` of the file: a partition that is the home of the keys with its prefixes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct RegionEntry {
    /// The name, for people.
    pub name: String,
    /// What its keys begin with; the longest prefix in the file counts. Keys without a prefix lie by their hash slots.
    #[serde(default)]
    pub prefixes: Vec<String>,
}

/// A `[[node]]` of the file.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeEntry {
    /// The number: replica times partitions, plus partition.
    pub id: u16,
    /// The address for other nodes.
    pub cluster: String,
    /// The address for clients.
    pub resp: String,
    /// The address of the admin server.
    pub admin: String,
    /// The data directory.
    #[serde(alias = "data_dir")]
    pub data_dir: Option<PathBuf>,
}

impl ClusterFile {
    /// The keys that only a cluster's file has.
    const KEYS: [&'static str; 8] =
        ["node", "region", "cluster", "partitions", "replicas", "replication", "starts", "secret"];

    /// Tells whether a configuration file describes a cluster, and not a node on its own. A file that is not TOML does
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
    pub(super) fn keep(&self) -> Result<Keep, ClusterError> {
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

    pub(super) fn replication(&self) -> Result<Replication, ClusterError> {
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

    /// The number of replicas that execute, and how those that do not keep the log.
    pub(super) fn servers(&self) -> Result<(u16, Option<Storage>), ClusterError> {
        match (self.servers, self.storage) {
            (None, None) => Ok((self.replicas, None)),
            (servers, storage) => match servers.unwrap_or(1) {
                servers if servers == 0 || servers >= self.replicas => {
                    Err(ClusterError::Servers { servers, replicas: self.replicas })
                }
                servers if self.replicas - servers > STORAGE_MAX => {
                    Err(ClusterError::StorageNodes(self.replicas - servers))
                }
                _ if self.partitions > REGIONS_MAX => Err(ClusterError::RegionsMax(self.partitions)),
                servers => match self.replication {
                    Some(replication) => Err(ClusterError::StorageReplication(replication.name())),
                    None => Ok((servers, Some(storage.unwrap_or_default()))),
                },
            },
        }
    }

    pub(super) fn layout(&self) -> Result<Layout, ClusterError> {
        let partitions = usize::from(self.partitions);
        // Beyond this the product of the two would not even be computed.
        if partitions > MAX_SHARDS || self.threads > MAX_SHARDS {
            return Err(LayoutError::Size { partitions, threads: self.threads }.into());
        }
        let layout = match &self.starts {
            None => Layout::even(partitions, self.threads)?,
            Some(starts) if starts.len() == partitions => {
                Layout::ranges(LAYOUT_VERSION, starts.clone(), self.threads)?
            }
            Some(starts) => {
                return Err(ClusterError::Starts { found: starts.len(), partitions: self.partitions });
            }
        };
        let bytes = |prefix: &String| prefix.clone().into_bytes();
        let prefixes: Vec<Vec<Vec<u8>>> =
            self.region.iter().map(|region| region.prefixes.iter().map(bytes).collect()).collect();
        Ok(if prefixes.is_empty() { layout } else { layout.in_regions(prefixes)? })
    }

    /// The names of the regions, by partition; none if the partitions are no regions.
    pub(super) fn regions(&self) -> Result<Vec<String>, ClusterError> {
        let mut names: Vec<String> = Vec::with_capacity(self.region.len());
        for RegionEntry { name, .. } in &self.region {
            if name.is_empty() || name.chars().count() > NAME_MAX || name.chars().any(char::is_control) {
                return Err(ClusterError::RegionName(name.clone()));
            }
            if names.contains(name) {
                return Err(ClusterError::RegionTwice(name.clone()));
            }
            names.push(name.clone());
        }
        Ok(names)
    }

    /// Checks that there can be a grid of this size; its nodes need not be named yet.
    ///
    /// # Errors
    /// Why there cannot.
    pub fn check_grid(&self) -> Result<(), ClusterError> {
        self.layout()?;
        self.regions()?;
        self.replication()?;
        Ok(())
    }

    pub(super) fn secret(&self) -> Result<Secret, ClusterError> {
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
    pub(super) fn members(&self) -> Result<Vec<Member>, ClusterError> {
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
