//! Starts a node: opens its directory, replays its log, and runs its roles on threads behind a front door.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_archive::{ArchiveError, Archiver, ArchiverSettings, Location, Rules};
use ordain_checkpoint::Header;
use ordain_engines::registry::Engine;
use ordain_family::{Keep, NodeSettings, Replication};
use ordain_front::Setup;
use ordain_log::Recovered;
use ordain_model::layout::MAX_SHARDS;
use ordain_model::{Epoch, Micros, Options};
use ordain_resp::{DEFAULT, FileError, NodeInfo, Users};
use ordain_role::{DiskError, NodeId, Rebuild};
use ordain_runtime::{DirLock, Handle, Running, StartError, Stopped};

use crate::aborts::AbortsError;
use crate::admin::Admin;
use crate::admin_client::Login;
use crate::certificates::Watch;
use crate::cluster::{ClusterError, Membership};
use crate::identity::{Identity, IdentityError};
use crate::secrets::{self, SecretError};
use crate::tls::{ClientTls, TlsError};
use ordain_engines::family::with_family;

mod operator;
mod secured;
mod sockets;
mod start;

use start::Start;

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// The memory that it may have allocated before what needs more is refused, bytes; 0: no limit.
    pub maxmemory_bytes: u64,
    /// Bytes of memory that its records may take, if values may be on disk.
    pub memory_budget: Option<u64>,
    /// The function that gives the bytes of memory that the process has allocated; 0 if they are not counted.
    pub allocated_bytes: fn() -> u64,
    /// The address for Redis clients.
    pub listen: SocketAddr,
    /// The address of the admin HTTP server.
    pub admin: SocketAddr,
    /// The data directory.
    pub data_dir: PathBuf,
    /// The durability of the node.
    pub keep: Keep,
    /// The engine.
    pub engine: Engine,
    /// The options.
    pub options: Options,
    /// Event loops, each with a shard of the data.
    pub threads: usize,
    /// The password of the default user.
    pub password: Option<String>,
    /// The ACL file.
    pub users_file: Option<PathBuf>,
    /// TLS for clients.
    pub tls: Option<ClientTls>,
    /// How operators and other nodes reach the admin server, and it theirs.
    pub operators: Operators,
    /// Accept connections from elsewhere without a password.
    pub insecure: bool,
    /// After so many bytes of input the node asks for a checkpoint; 0: only clients do.
    pub checkpoint_log_bytes: u64,
    /// About how long a log may be before what members that are away may want is trimmed too.
    pub log_keep_bytes: u64,
    /// The length of a file of a log, bytes.
    pub log_segment_bytes: u64,
    /// Where copies of complete checkpoints are taken to, and how many are kept there.
    pub checkpoint_store: Option<(Location, NonZeroUsize)>,
    /// The place in a cluster; none: it is on its own.
    pub cluster: Option<Membership>,
    /// It has lost what it had: it comes back with an empty directory, as another member of its group.
    pub join: bool,
    /// The configuration file, for INFO.
    pub config_file: Option<PathBuf>,
}

impl ServeConfig {
    /// A node on its own that runs an engine with its default options in two threads, listens on free ports of the loopback
    /// interface and keeps nothing.
    pub fn on_loopback(engine: Engine) -> ServeConfig {
        let free = || SocketAddr::from(([127, 0, 0, 1], 0));
        ServeConfig {
            maxmemory_bytes: 0,
            memory_budget: None,
            allocated_bytes: || 0,
            listen: free(),
            admin: free(),
            data_dir: PathBuf::new(),
            keep: Keep::Nothing,
            engine,
            options: engine.defaults(),
            threads: 2,
            password: None,
            users_file: None,
            tls: None,
            operators: Operators::default(),
            insecure: false,
            checkpoint_log_bytes: 0,
            log_keep_bytes: 0,
            log_segment_bytes: 1 << 20,
            checkpoint_store: None,
            cluster: None,
            join: false,
            config_file: None,
        }
    }
}

/// The access to admin servers.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    /// True if this node's is in TLS; none: where clients can be, and other machines reach it.
    pub tls: Option<bool>,
    /// The user as which this node asks those of the other nodes.
    pub login: Option<Login>,
}

/// The reason why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What an operator has aborted cannot be read, or not be written down.
    #[error(transparent)]
    Aborts(#[from] AbortsError),
    /// Any machine could use it.
    #[error(
        "refusing to listen on {address} ({flag}), which other machines can reach, without a password: set --password-file, \
         or a password for the user default in --users-file, or say --insecure"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
        /// The flag that names it.
        flag: &'static str,
    },
    /// There is no certificate for the admin server.
    #[error(
        "--admin-tls has the admin server use the certificate of the port for clients, and there is none: set --tls-port, \
         --tls-cert-file and --tls-key-file"
    )]
    AdminTls,
    /// There can be no TLS.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The password is empty.
    #[error(
        "the password is empty, and an empty password is none: choose one, or leave --password and ORDAIN_PASSWORD out"
    )]
    EmptyPassword,
    /// The password of the default user is given twice.
    #[error("{} says how the user default logs in, and so does --password: drop one", .0.display())]
    TwoPasswords(PathBuf),
    /// A file with secrets cannot be used.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// The ACL file is wrong.
    #[error("{}, {source}: mend it", path.display())]
    Users {
        /// The file.
        path: PathBuf,
        /// The error.
        source: FileError,
    },
    /// No event loops, or too many.
    #[error("a node has 1 to {MAX_SHARDS} event loops, not {0}: choose --threads accordingly")]
    Threads(usize),
    /// An address cannot be had.
    #[error("cannot listen on {address}: {reason}: is another server there? choose another with {flag}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The flag that names it.
        flag: &'static str,
        /// The error of the system.
        reason: std::io::Error,
    },
    /// The data directory cannot be used.
    #[error(transparent)]
    Open(#[from] ordain_runtime::OpenError),
    /// Another process uses it.
    #[error(transparent)]
    Lock(#[from] ordain_runtime::LockError),
    /// It belongs to something else, or is damaged.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// What it holds is refused.
    #[error("{}{source}", path.as_ref().map(|path| format!("data directory {}: ", path.display())).unwrap_or_default())]
    Contents {
        /// The data directory, if there is one.
        path: Option<PathBuf>,
        /// What is wrong, as the engine's family says it.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// It cannot keep so little in its cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// What a rebuild discards cannot be removed.
    #[error("data directory {}: cannot be rebuilt: {reason}: check its owner and the disk, and start again", path.display())]
    Rebuild {
        /// The data directory.
        path: PathBuf,
        /// The error of the disk.
        reason: DiskError,
    },
    /// There are none to be taken anywhere.
    #[error("--ephemeral keeps nothing, so there are no checkpoints for --checkpoint-store: drop one")]
    NothingToArchive,
    /// Nothing can be taken to the store, whatever becomes of it.
    #[error("--checkpoint-store: {0}")]
    Archive(#[from] ArchiveError),
    /// There is no node that could give it what it has lost.
    #[error("--join: {0}")]
    Join(&'static str),
    /// The threads do not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The edge to the other nodes does not start.
    #[error("cannot set up the connections to other nodes: {0}")]
    Network(std::io::Error),
    /// The admin server does not start.
    #[error("cannot start the admin server: {0}")]
    Admin(std::io::Error),
}

/// The reason why a node ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// Something is wrong.
    #[error(transparent)]
    Stopped(Stopped),
    /// Nothing is wrong, but what it has is not to be trusted. That is noted in its directory: the next start of the
    /// process begins without it.
    #[error("the node has to be rebuilt without {}: start it again", without(*.0))]
    Rebuilds(Rebuild),
    /// Nothing is wrong: the next start of the process begins from what is in its directory.
    #[error("the node has to be started again: {reason}")]
    Restarts {
        /// The reason.
        reason: String,
    },
    /// It was to be rebuilt, and that cannot be noted.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// For how long a replica leaves a checkpoint to the one before it, which has completed the same one.
const TURN: Duration = Duration::from_secs(30);

/// The settings by which a node takes its checkpoints to a store.
fn archive_settings(
    config: &ServeConfig,
    (location, keep): (Location, NonZeroUsize),
    identity: &Identity,
    settings: &NodeSettings,
) -> ArchiverSettings {
    let topology = &settings.topology;
    let header = Header::new(&settings.identity, &topology.layout, settings.partition(), Epoch(0));
    let replica = u32::from(topology.replica_of(settings.node).0);
    // Where primaries may change, what a replica has executed may be lost with one: it is put together of its own alone.
    let agrees = settings.replication() != Replication::Async;
    let owner = identity.for_archive(settings.replication());
    let usual = ArchiverSettings::new(location, config.data_dir.clone(), (settings.node, owner, header));
    let rules = Rules { keep: keep.get(), patience: agrees.then_some(TURN * replica), ..usual.rules };
    ArchiverSettings { rules, ..usual }
}

/// What a rebuild discards, in words.
pub const fn without(how: Rebuild) -> &'static str {
    match (how.without_log, how.without_receive_journal) {
        (true, true) => "its log and what came in from other partitions",
        (false, true) => "what came in from other partitions",
        (true, false) => "its log and what came in from other partitions and does not count for certain",
        (false, false) => "what came in from other partitions and does not count for certain",
    }
}

/// A node that runs.
#[derive(Debug)]
pub struct Node {
    /// The address for Redis clients.
    pub resp: SocketAddr,
    /// The address for clients in TLS, if there is one.
    pub tls: Option<SocketAddr>,
    /// The address of the admin HTTP server.
    pub admin: SocketAddr,
    /// The engine.
    pub engine: Engine,
    /// The number.
    pub id: NodeId,
    /// What its log held, if it has one.
    pub recovered: Option<Recovered>,
    /// The number of transactions that were replayed at start.
    pub replayed: u64,
    /// It has no usable beginning: it takes no connections, gets a checkpoint from another node, and is rebuilt.
    pub is_waiting: bool,
    running: Running,
    /// The identity of the node, and its directory.
    identity: Option<(Identity, PathBuf)>,
    _archiver: Option<Archiver>,
    _admin: Admin,
    _watch: Watch,
    _lock: Option<DirLock>,
}

impl Node {
    /// Starts a node of the engine that is configured. When this returns it takes connections.
    ///
    /// # Errors
    /// [`ServeError`]; nothing runs then.
    pub fn start(config: &ServeConfig) -> Result<Node, ServeError> {
        with_family(config.engine, Start { config })
    }

    /// The line that says that connections are taken.
    pub fn ready_line(&self) -> String {
        let tls = self.tls.map(|tls| format!(" tls={tls}")).unwrap_or_default();
        format!(
            "ready resp={} admin={} engine={} node={}{tls}",
            self.resp, self.admin, self.engine, self.id.0
        )
    }

    /// A way to stop it from another thread.
    pub fn handle(&self) -> Handle {
        self.running.handle()
    }

    /// Waits until it has stopped.
    ///
    /// # Errors
    /// The reason why it stopped by itself.
    pub fn wait(self) -> Result<(), Ended> {
        match self.running.wait() {
            Ok(()) => Ok(()),
            Err(Stopped::Rebuilds(how)) => {
                // While the directory is still held.
                if let Some((mut identity, directory)) = self.identity {
                    identity.note_rebuild(&directory, how)?;
                }
                Err(Ended::Rebuilds(how))
            }
            Err(Stopped::Restarts { reason }) => Err(Ended::Restarts { reason }),
            Err(stopped) => Err(Ended::Stopped(stopped)),
        }
    }
}

/// The place of a node that has lost what it had, and the generation in which it comes: larger than any before, since
/// it is the time.
fn newcomer(config: &ServeConfig) -> Result<(&Membership, u32), ServeError> {
    let Some(place) = &config.cluster else {
        return Err(ServeError::Join(
            "a node on its own has no other node to get its data from: restore a copy of it",
        ));
    };
    if place.cluster.replicas == 1 {
        return Err(ServeError::Join(
            "with one replica no other node holds what this one has lost: restore a copy of its data directory",
        ));
    }
    if config.keep == Keep::Nothing {
        return Err(ServeError::Join("an ephemeral node has nothing to lose: start it without --join"));
    }
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let generation = seconds.checked_sub(YEAR_2020).and_then(|since| u32::try_from(since).ok());
    match generation.filter(|generation| *generation > 0) {
        Some(generation) => Ok((place, generation)),
        None => Err(ServeError::Join("the clock of this machine is wrong by decades: set it")),
    }
}

/// The time at which the year 2020 began, in seconds of Unix time.
const YEAR_2020: u64 = 1_577_836_800;

/// The users that a node begins with.
fn users(config: &ServeConfig) -> Result<Users, ServeError> {
    let mut users = Users::default();
    if let Some(path) = &config.users_file {
        let text = secrets::read(path)?;
        users = Users::parse(&text).map_err(|source| ServeError::Users { path: path.clone(), source })?;
        if config.password.is_some() && !users.default_user().is_open() {
            return Err(ServeError::TwoPasswords(path.clone()));
        }
    }
    if let Some(password) = &config.password {
        let modifier = [b">", password.as_bytes()].concat();
        users.set(DEFAULT, &[&modifier]).map_err(|_| ServeError::EmptyPassword)?;
    }
    Ok(users)
}

fn setup(config: &ServeConfig, resp: SocketAddr) -> Setup {
    Setup {
        port: resp.port(),
        bind: resp.ip().to_string(),
        dir: config.data_dir.display().to_string(),
        threads: config.threads,
        keep: config.keep,
        maxmemory_bytes: config.maxmemory_bytes,
        options: config.options.clone(),
    }
}

/// The addresses for clients of the other members of a node's replication group, and how many of them hold what is answered.
fn members_beside(place: &Membership) -> (Vec<(String, u16)>, u16) {
    let cluster = &place.cluster;
    let topology = cluster.topology();
    let group = topology.group(topology.partition_of(place.node)).filter(|node| *node != place.node);
    let resp = group.filter_map(|node| cluster.members.get(usize::from(node.0))).map(|member| member.resp);
    let members = resp.map(|resp| (resp.ip().to_string(), resp.port())).collect();
    // A majority has agreed on it, this node among them; the other ways promise nothing of the others.
    let hold = if cluster.replication == Replication::Sync { cluster.replicas / 2 } else { 0 };
    (members, hold)
}

fn node_info(config: &ServeConfig, resp: SocketAddr, settings: &NodeSettings) -> NodeInfo {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (members, members_that_hold) = config.cluster.as_ref().map_or((Vec::new(), 0), members_beside);
    NodeInfo {
        run_id: format!("{:032x}{:08x}", rand::random::<u128>(), rand::random::<u32>()),
        engine: config.engine.to_string(),
        node: settings.node.0,
        os: std::env::consts::OS.to_owned(),
        process: std::process::id(),
        port: resp.port(),
        config_file: config.config_file.as_ref().map(|p| p.display().to_string()).unwrap_or_default(),
        started: Micros(started.as_micros() as u64),
        threads: config.threads,
        members,
        members_that_hold,
        ..NodeInfo::default()
    }
}
