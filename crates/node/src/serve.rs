//! Starts a node: opens its directory, replays its log, and runs its roles on threads behind a front door.

use std::fs::Permissions;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZeroUsize;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_archive::{ArchiveError, Archiver, ArchiverSettings, Location};
use ordain_checkpoint::Header;
use ordain_deterministic::shard;
use ordain_engines::registry::Engine;
use ordain_gateway::Dispatcher;
use ordain_link::Life;
use ordain_log::Recovered;
use ordain_model::layout::MAX_SHARDS;
use ordain_model::{Computations, Epoch, Gsn, Micros, Options, Registry, Stopwatch};
use ordain_resp::diagnostics::Diagnostics;
use ordain_resp::memory::Memory;
use ordain_resp::{Access, DEFAULT, FileError, NodeInfo, Observed, Settings, Shared, Users};
use ordain_role::{Address, Directory, DiskError, NodeId, StartOver, Topology, UnderWay};
use ordain_runtime::{
    Current, DirLock, Disk, FsDirectory, Greeting, Handle, Heeded, LinkTls, LoopSpec, NetConfig, NetLimits,
    NetStatus, Network, RunTimes, Running, Runtime, StartError, Stopped, under_way,
};
use ordain_sequencer::NeedsCheckpoint;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::{ClientConfig, ServerConfig};

use crate::aborts::{Aborts, AbortsError};
use crate::admin::{Admin, PATIENCE};
use crate::admin_client::{Asker, Login};
use crate::assembly::{Assembly, AssemblyError, Begun, Keep, NodeSettings, Refused, places, start_over};
use crate::certificates::{Renewals, Watch, Watched};
use crate::cluster::{self, ClusterError, Membership, Replication};
use crate::front::{Door, Mailboxes};
use crate::identity::{Identity, IdentityError};
use crate::procedures;
use crate::secrets::{self, SecretError};
use crate::tls::{self, AuthClients, ClientTls, LinkFiles, TlsError};
use crate::users_file::{Desk, UsersFile};

/// How a node is to run.
#[derive(Clone, Debug)]
pub struct ServeConfig {
    /// How much memory it may have allocated before what needs more is refused, bytes; 0: no limit.
    pub maxmemory_bytes: u64,
    /// Says how much memory the process has allocated, bytes; 0 if nobody counts it.
    pub allocated_bytes: fn() -> u64,
    /// Where Redis clients connect.
    pub listen: SocketAddr,
    /// Where the admin HTTP server listens.
    pub admin: SocketAddr,
    /// Where the node keeps what it keeps.
    pub data_dir: PathBuf,
    /// What it keeps.
    pub keep: Keep,
    /// The engine.
    pub engine: Engine,
    /// Its options.
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
    /// How long a file of a log is.
    pub log_segment_bytes: u64,
    /// Where copies of complete checkpoints are taken to, and how many are kept there.
    pub checkpoint_store: Option<(Location, NonZeroUsize)>,
    /// Its place in a cluster; none: it is on its own.
    pub cluster: Option<Membership>,
    /// It has lost what it had: it comes back with an empty directory, as another member of its group.
    pub join: bool,
    /// The configuration file, for INFO.
    pub config_file: Option<PathBuf>,
}

/// How admin servers are reached.
#[derive(Clone, Debug, Default)]
pub struct Operators {
    /// Whether this node's is in TLS; none: where clients can be, and other machines reach it.
    pub tls: Option<bool>,
    /// The user as which this node asks those of the other nodes.
    pub login: Option<Login>,
}

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// What an operator has aborted cannot be read, or not be written down.
    #[error(transparent)]
    Aborts(#[from] AbortsError),
    /// Anybody could come in.
    #[error(
        "refusing to listen on {address} ({flag}), which other machines can reach, without a password: set --password-file, \
         or a password for the user default in --users-file, or say --insecure"
    )]
    Exposed {
        /// The address.
        address: SocketAddr,
        /// Which flag names it.
        flag: &'static str,
    },
    /// There is no certificate for the admin server.
    #[error(
        "--admin-tls has the admin server show the certificate that clients are shown, and there is none: set --tls-port, \
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
    /// The password of the default user is said twice.
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
        /// What is wrong with it.
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
        /// Which flag names it.
        flag: &'static str,
        /// What the system says.
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
    /// Its log is refused.
    #[error("data directory {}: {source}", path.display())]
    Log {
        /// The data directory.
        path: PathBuf,
        /// What is wrong.
        source: ordain_log::LogError,
    },
    /// It cannot keep so little in its cluster.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// What is in the way of starting over cannot be removed.
    #[error("data directory {}: cannot start over: {reason}: check its owner and the disk, and start again", path.display())]
    StartOver {
        /// The data directory.
        path: PathBuf,
        /// What the disk says.
        reason: DiskError,
    },
    /// There are none to be taken anywhere.
    #[error("--ephemeral keeps nothing, so there are no checkpoints for --checkpoint-store: drop one")]
    NothingToArchive,
    /// Nothing can be taken to the store, whatever becomes of it.
    #[error("--checkpoint-store: {0}")]
    Archive(#[from] ArchiveError),
    /// There is nobody that it could get from what it has lost.
    #[error("--join: {0}")]
    Join(&'static str),
    /// The settings are refused.
    #[error(transparent)]
    Assembly(AssemblyError),
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

/// Why a node ended other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Ended {
    /// Something is wrong.
    #[error(transparent)]
    Stopped(Stopped),
    /// Nothing is wrong, but what it has is not to be trusted. That is noted in its directory: the next start of the
    /// process begins without it.
    #[error("the node has to start over without {}: start it again", without(*.0))]
    StartsOver(StartOver),
    /// Nothing is wrong: the next start of the process begins from what is in its directory.
    #[error("the node has to begin again: {reason}: start it again")]
    BeginsAgain {
        /// What it has got to know.
        reason: String,
    },
    /// It was to start over, and that cannot be noted.
    #[error(transparent)]
    Identity(#[from] IdentityError),
}

/// For how long a replica leaves a checkpoint to the one before it, which has completed the same one.
const TURN: Duration = Duration::from_secs(30);

/// How a node takes its checkpoints to a store.
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
    ArchiverSettings {
        keep: keep.get(),
        patience: agrees.then_some(TURN * replica),
        ..ArchiverSettings::new(location, config.data_dir.clone(), (settings.node, owner, header))
    }
}

/// What a node that starts over does without, in words.
pub const fn without(how: StartOver) -> &'static str {
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
    /// Where Redis clients connect.
    pub resp: SocketAddr,
    /// Where they connect in TLS, if they can.
    pub tls: Option<SocketAddr>,
    /// Where the admin HTTP server listens.
    pub admin: SocketAddr,
    /// Its engine.
    pub engine: Engine,
    /// Its number.
    pub id: NodeId,
    /// What its log held, if it has one.
    pub recovered: Option<Recovered>,
    /// How many transactions were replayed at start.
    pub replayed: u64,
    /// It has no usable beginning: it takes no connections, gets a checkpoint from another node, and starts over.
    pub is_waiting: bool,
    running: Running,
    /// Who it is, and where that is written.
    identity: Option<(Identity, PathBuf)>,
    _archiver: Option<Archiver>,
    _admin: Admin,
    _watch: Watch,
    _lock: Option<DirLock>,
}

impl Node {
    /// Starts a node. When this returns it takes connections.
    ///
    /// # Errors
    /// [`ServeError`]; nothing runs then.
    pub fn start(config: &ServeConfig) -> Result<Node, ServeError> {
        let access = Arc::new(Access::new(users(config)?));
        let is_open = access.users(|users| users.default_user().is_open());
        // A certificate of a client does for its password, where nobody comes in without one.
        let tls = config.tls.as_ref();
        let has_certificates = tls.is_some_and(|tls| tls.only && tls.auth_clients == AuthClients::Yes);
        for (address, flag, is_safe) in
            [(config.listen, "--listen", has_certificates), (config.admin, "--admin", false)]
        {
            if is_open && !is_safe && !address.ip().is_loopback() && !config.insecure {
                return Err(ServeError::Exposed { address, flag });
            }
        }
        let secured = Secured::load(config)?;
        if !(1..=MAX_SHARDS).contains(&config.threads) {
            return Err(ServeError::Threads(config.threads));
        }
        if let Some(place) = &config.cluster {
            place.cluster.replication.check(config.keep)?;
        }
        if config.checkpoint_store.is_some() && config.keep == Keep::Nothing {
            return Err(ServeError::NothingToArchive);
        }
        let joins = config.join.then(|| newcomer(config)).transpose()?;
        raise_open_files();
        let is_plain = tls.is_none_or(|tls| !tls.only);
        let mut listener = is_plain.then(|| listen(config.listen, "--listen")).transpose()?;
        let tls_listener = tls.map(|tls| listen(SocketAddr::new(config.listen.ip(), tls.port), "--tls-port"));
        let mut tls_listener = tls_listener.transpose()?;
        let admin_listener = listen(config.admin, "--admin")?;
        let peer_listener =
            config.cluster.as_ref().map(|place| listen(place.member().cluster, PEERS)).transpose()?;
        let at = |listener: &Option<TcpListener>| listener.as_ref().and_then(|it| it.local_addr().ok());
        let tls_at = at(&tls_listener);
        let resp = at(&listener).or(tls_at).unwrap_or(config.listen);
        let admin_at = admin_listener.local_addr().unwrap_or(config.admin);

        let keeps = config.keep != Keep::Nothing;
        let mut directory = if keeps { Some(FsDirectory::open(&config.data_dir)?) } else { None };
        let lock = if keeps { Some(DirLock::acquire(&config.data_dir)?) } else { None };
        let mut identity = match joins {
            Some((place, generation)) => Some(Identity::join(&config.data_dir, place, generation)?),
            None if keeps => Some(Identity::open(
                &config.data_dir,
                &config.options,
                config.threads,
                config.cluster.as_ref(),
            )?),
            None => None,
        };
        if let Some((identity, directory)) = identity.as_mut().zip(directory.as_mut())
            && let Some(how) = identity.pending()
        {
            let times = identity.started_over;
            tracing::warn!(times, "starting over without {}: the others have it", without(how));
            start_over(directory, how)
                .map_err(|reason| ServeError::StartOver { path: config.data_dir.clone(), reason })?;
            identity.note_removed(&config.data_dir)?;
        }
        let under_way = if keeps { open_under_way(&config.data_dir) } else { Vec::new() };
        let computations = Computations::default();
        let run_times: Vec<RunTimes> = (0..config.threads).map(|_| RunTimes::default()).collect();
        let life = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64;
        let topology = config
            .cluster
            .as_ref()
            .map_or_else(|| Topology::single(config.threads), |at| at.cluster.topology());
        let settings = NodeSettings {
            node: config.cluster.as_ref().map_or(NodeId(0), |place| place.node),
            topology,
            gateways: config.threads,
            keep: config.keep,
            identity: identity.as_ref().map(Identity::for_log).unwrap_or_default(),
            expect_log: identity.as_ref().is_some_and(|identity| identity.has_log),
            replication: config.cluster.as_ref().map_or(Replication::None, |place| place.cluster.replication),
            generation: identity.as_ref().map_or(0, |identity| identity.generation),
            started_over: identity.as_ref().map_or(0, |identity| identity.started_over),
            life,
            options: config.options.clone(),
            scheduling: config.engine.scheduling(),
            log_keep_bytes: config.log_keep_bytes,
            segment_bytes: config.log_segment_bytes,
            under_way: under_way.clone(),
            computations: computations.clone(),
            stopwatches: run_times
                .iter()
                .map(|times| Arc::new(times.clone()) as Arc<dyn Stopwatch>)
                .collect(),
            sequencer: ordain_sequencer::Settings {
                checkpoint_bytes: if keeps { config.checkpoint_log_bytes } else { 0 },
                ..Default::default()
            },
            ..NodeSettings::default()
        };
        let registry = procedures::all();
        let assembly =
            Assembly::open(directory.as_mut().map(|d| d as &mut dyn Directory), &settings, &registry)
                .map_err(|error| match error {
                    AssemblyError::Log(source) => ServeError::Log { path: config.data_dir.clone(), source },
                    other => ServeError::Assembly(other),
                })?;
        run_times.iter().for_each(RunTimes::clear);
        under_way.iter().for_each(|place| [*place, place.of_work()].iter().for_each(|place| place.end()));
        if let Some(identity) = &mut identity {
            identity.note_log(&config.data_dir)?;
            begin_with_aborts(&config.data_dir)?;
        }
        for Refused { epoch, reason } in &assembly.refused {
            tracing::warn!(%epoch, "a checkpoint cannot be used, so the one before it is: {reason}");
        }
        if let Some(NeedsCheckpoint { needed, .. }) = assembly.lacking {
            tracing::warn!(
                "the log begins after epoch {needed} and no checkpoint here that can be used covers what came before: this \
                 node takes no connections until it has got one of epoch {needed} or later from another node of its \
                 partition"
            );
        } else if let Some(Begun { epoch, totals }) = &assembly.checkpoint {
            tracing::info!(%epoch, records = totals.records, "begins from a checkpoint");
        }
        let (recovered, replayed) = (assembly.recovered.clone(), assembly.replayed);
        let is_waiting = assembly.lacking.is_some();
        let begun = assembly.checkpoint.map_or(Epoch(0), |begun| begun.epoch);

        let at = |role| Address { node: settings.node, role };
        let doors = (0..config.threads as u16).map(|i| at(places::GATEWAYS + i)).collect();
        let mailboxes = Arc::new(Mailboxes::new(doors, node_info(config, resp, &settings)));
        let diagnostics: Arc<Diagnostics> = Arc::default();
        let topology = &settings.topology;
        let partition = topology.partition_of(settings.node).0;
        let places = (partition, topology.layout.partitions());
        let memory = Arc::new(Memory::new(config.allocated_bytes, places, topology.nodes()));
        memory.set_limit(config.maxmemory_bytes);
        // Clients that connect to a node that waits are refused at once and can turn to another one.
        if is_waiting {
            listener = None;
            tls_listener = None;
        }
        let users_file = config.users_file.clone().map(|path| UsersFile::start(path, access.clone()));
        let users_file = users_file.transpose().map_err(StartError::System)?;
        let mut loops: Vec<LoopSpec<_>> = Vec::new();
        let (mut head, shards): (Vec<_>, Vec<_>) =
            assembly.into_roles().into_iter().partition(|(number, _)| *number < places::SHARDS);
        let mut network = None;
        let mut links = NetStatus::default();
        if let Some((place, listener)) = config.cluster.as_ref().zip(peer_listener) {
            let edge = open_network(place, listener, secured.links.clone(), &settings, &registry)?;
            let edge = match keeps {
                true => edge.greeting(greeting(&config.data_dir, begun, under_way.clone())?),
                false => edge,
            };
            links = edge.status();
            network = Some(edge);
        }
        let is_member = network.is_some();
        for (i, (number, shard)) in shards.into_iter().enumerate() {
            let mut spec = LoopSpec::new(format!("ordain-{i}"));
            spec.roles.append(&mut head);
            let door = Door::new(
                i,
                settings.new_gateway(i as u16, life, &registry),
                Dispatcher::new(settings.router()),
                shared(config, resp, (&access, &memory), (&diagnostics, &computations)),
                mailboxes.clone(),
                listener.take(),
            )
            .with_users_file(users_file.clone().map(Desk::new).transpose().map_err(StartError::System)?)
            .with_tls(secured.clients.clone(), tls_listener.take());
            spec.roles.push((number, shard));
            spec = spec.edge(places::GATEWAYS + i as u16, door);
            // Not on the loop of the sequencer, if there is another.
            if i + 1 == config.threads
                && let Some(network) = network.take()
            {
                spec = spec.edge(places::NETWORK, network);
            }
            loops.push(spec);
        }
        let options = ordain_runtime::Options {
            node: settings.node,
            network: is_member.then_some(places::NETWORK),
            ..ordain_runtime::Options::default()
        };
        let archiver = config.checkpoint_store.clone().zip(identity.as_ref());
        let archiver = archiver
            .map(|(store, identity)| Archiver::start(archive_settings(config, store, identity, &settings)));
        let archiver = archiver.transpose()?;
        let running = Runtime::start(options, directory.map(Disk::new), loops)?;
        let standing = archiver.as_ref().map(Archiver::standing);
        let renewals: Arc<Renewals> = Arc::default();
        let admin = Admin::start(
            admin_listener,
            running.handle(),
            mailboxes,
            crate::admin::About {
                engine: config.engine,
                node: settings.node,
                resp,
                access,
                tls: tls_at,
                admin_tls: secured.admin,
                asker: Asker {
                    login: config.operators.login.clone(),
                    trust: secured.trust,
                    patience: PATIENCE,
                },
                renewals: renewals.clone(),
                diagnostics,
                run_times,
                memory: memory.clone(),
                cluster: config.cluster.clone(),
                started_over: settings.started_over,
                links,
                archive: config.checkpoint_store.as_ref().map(|(location, _)| location.clone()).zip(standing),
            },
        )
        .map_err(ServeError::Admin)?;
        let watch = Watch::start(secured.watched, renewals).map_err(ServeError::Admin)?;
        let id = settings.node;
        let engine = config.engine;
        Ok(Node {
            resp,
            tls: tls_at,
            admin: admin_at,
            engine,
            id,
            recovered,
            replayed,
            is_waiting,
            running,
            identity: identity.map(|identity| (identity, config.data_dir.clone())),
            _archiver: archiver,
            _admin: admin,
            _watch: watch,
            _lock: lock,
        })
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
    /// Why it stopped, if nobody asked it to.
    pub fn wait(self) -> Result<(), Ended> {
        match self.running.wait() {
            Ok(()) => Ok(()),
            Err(Stopped::StartsOver(how)) => {
                // While the directory is still held.
                if let Some((mut identity, directory)) = self.identity {
                    identity.note_start_over(&directory, how)?;
                }
                Err(Ended::StartsOver(how))
            }
            Err(Stopped::BeginsAgain { reason }) => Err(Ended::BeginsAgain { reason }),
            Err(stopped) => Err(Ended::Stopped(stopped)),
        }
    }
}

/// All that a node has of TLS, and what reads it again when its files change.
#[derive(Default)]
struct Secured {
    clients: Option<Current<ServerConfig>>,
    admin: Option<Current<ServerConfig>>,
    links: Option<LinkTls>,
    /// Whose certificates admin servers may show.
    trust: Option<Current<ClientConfig>>,
    watched: Vec<Watched>,
}

impl Secured {
    /// Reads what the configuration names.
    fn load(config: &ServeConfig) -> Result<Secured, ServeError> {
        let mut all = Secured::default();
        let is_admin_in_tls =
            cluster::is_admin_in_tls(config.operators.tls, config.tls.is_some(), config.admin);
        if is_admin_in_tls && config.tls.is_none() {
            return Err(ServeError::AdminTls);
        }
        // A node is started with a certificate that is good for nobody, so that the others go on; a later one is not taken.
        let warn = |checked: Result<(), TlsError>| {
            checked.unwrap_or_else(|error| tracing::error!("{error}"));
        };
        if let Some(files) = config.tls.clone() {
            let watched = Watched::new("clients and the admin server", files.files());
            let offered = files.load()?;
            warn(files.check());
            let (clients, admin) = (Current::from(offered.clients), Current::from(offered.admin));
            all.clients = Some(clients.clone());
            all.admin = is_admin_in_tls.then(|| admin.clone());
            all.watched.push(watched.renewed_by(move || {
                let offered = files.load()?;
                files.check()?;
                clients.replace(offered.clients);
                admin.replace(offered.admin);
                Ok(())
            }));
        }
        let place = config.cluster.as_ref();
        let links = place.and_then(|place| Some((place.cluster.tls.clone()?, place)));
        if let Some((files, place)) = &links {
            let (files, own) = (files.clone(), place.member().cluster_name.clone());
            let watched = Watched::new("the links between nodes", files.files());
            let (server, client) = files.load()?;
            warn(files.check(&own));
            let (server, client) = (Current::from(server), Current::from(client));
            let names = LinkFiles::names(&place.cluster);
            all.links = Some(LinkTls { server: server.clone(), client: client.clone(), names });
            all.watched.push(watched.renewed_by(move || {
                let both = files.load()?;
                files.check(&own)?;
                server.replace(both.0);
                client.replace(both.1);
                Ok(())
            }));
        }
        let authority = config.tls.as_ref().and_then(|files| files.ca_cert_file.clone());
        if let Some(ca) = authority.or(links.map(|(files, _)| files.ca_cert_file)) {
            let watched = Watched::new("asking other admin servers", vec![ca.clone()]);
            let trust = Current::from(tls::client(&ca, None)?);
            all.trust = Some(trust.clone());
            all.watched.push(watched.renewed_by(move || {
                trust.replace(tls::client(&ca, None)?);
                Ok(())
            }));
        }
        Ok(all)
    }
}

/// Where the shards of a node say what they are executing. Says what the process before this one was at, if it died of it
/// or in the middle of it.
fn open_under_way(directory: &Path) -> Vec<UnderWay> {
    match under_way::open(directory) {
        Ok((places, former)) => {
            for (shard, gsn) in former {
                tracing::warn!(
                    shard,
                    "the process before this one ended while it executed transaction {}: if that is what ends it, \
                     ordain log inspect describes it and ordain log abort aborts it",
                    Gsn(gsn)
                );
            }
            places
        }
        Err(error) => {
            tracing::warn!(%error, "what is executed is not noted in the file {}", under_way::FILE);
            Vec::new()
        }
    }
}

/// From now on others hear what follows from what an operator has aborted here: it cannot be undone any more. Nor is the
/// directory for everybody's eyes.
fn begin_with_aborts(directory: &Path) -> Result<(), ServeError> {
    let mut aborts = Aborts::read(directory)?;
    if aborts.take_effect() {
        aborts.write(directory)?;
    }
    for (gsn, aborted) in aborts.iter() {
        tracing::info!(reason = aborted.reason, "transaction {gsn} is aborted by the operator");
    }
    let close = || {
        let mode = std::fs::metadata(directory)?.permissions().mode();
        match mode & 0o007 {
            0 => Ok(()),
            _ => std::fs::set_permissions(directory, Permissions::from_mode(mode & 0o7770)),
        }
    };
    if let Err(error) = close() {
        tracing::warn!(%error, "other users of this machine can look into {}", directory.display());
    }
    Ok(())
}

/// Says to every other node what an operator has aborted here, and takes over what one has been aborted there that this node
/// has not come to yet: see [`aborts`](crate::aborts). `begun` is the epoch of the checkpoint that the node begins from.
fn greeting(directory: &Path, begun: Epoch, under_way: Vec<UnderWay>) -> Result<Greeting, ServeError> {
    let words = Aborts::read(directory)?.greeting();
    let directory = directory.to_owned();
    let heed = move |peer: NodeId, words: &[u8]| {
        let latest = || under_way.iter().map(|place| Gsn(place.latest()).epoch()).max();
        // If that is not noted, nobody knows.
        let is_past = |epoch: Epoch| latest().is_none_or(|latest| epoch <= latest.max(begun));
        let taken = Aborts::read(&directory).and_then(|mut aborts| {
            let taken = aborts.heed(words, is_past)?;
            if !taken.is_empty() {
                aborts.write(&directory)?;
            }
            Ok(taken)
        });
        match taken {
            Ok(taken) if taken.is_empty() => Heeded::Nothing,
            Ok(taken) => Heeded::BeginAgain(format!(
                "node {} has said that an operator has aborted {}, which this node has not come to: it is noted here too",
                peer.0,
                taken.iter().map(Gsn::to_string).collect::<Vec<_>>().join(", ")
            )),
            Err(error) => Heeded::Halt(format!(
                "node {} has said what an operator has aborted, and it cannot be noted here: {error}",
                peer.0
            )),
        }
    };
    Ok(Greeting { words: words.into(), heed: Box::new(heed) })
}

/// The place of a node that has lost what it had, and the generation in which it comes: larger than any before, since
/// it is the time.
fn newcomer(config: &ServeConfig) -> Result<(&Membership, u32), ServeError> {
    let Some(place) = &config.cluster else {
        return Err(ServeError::Join(
            "a node on its own has nobody to get its data from: restore a copy of it",
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

/// When the year 2020 began, in seconds of Unix time.
const YEAR_2020: u64 = 1_577_836_800;

/// The edge by which a node talks to the other nodes of its cluster.
fn open_network(
    place: &Membership,
    listener: TcpListener,
    tls: Option<LinkTls>,
    settings: &NodeSettings,
    procedures: &Arc<Registry>,
) -> Result<Network<shard::Message>, ServeError> {
    let cluster = &place.cluster;
    let mut hears: Vec<u16> = (0..settings.gateways as u16).map(|i| places::GATEWAYS + i).collect();
    hears.extend(settings.hears_of_peers());
    Network::new(NetConfig {
        me: Address { node: place.node, role: places::NETWORK },
        listener,
        peers: cluster.members.iter().map(|member| (member.node, member.cluster)).collect(),
        cluster: cluster.id.clone(),
        secret: cluster.secret.reveal().as_bytes().to_vec(),
        fingerprint: cluster.fingerprint(),
        life: Life(settings.life),
        hears,
        delay: cluster.latency,
        procedures: procedures.clone(),
        tls,
        limits: NetLimits::default(),
    })
    .map_err(ServeError::Network)
}

/// What names the address at which a node's peers connect.
const PEERS: &str = "the cluster's file";

/// Lets this process have as many connections as the system permits, not only as many as the shell that started it
/// would have.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, open_files = limit.current, "cannot raise the limit of open files");
    }
    widen_descriptor_table();
}

/// Has the system make its table of this process's descriptors as large as it is likely to become, while there is one thread:
/// to enlarge it later, Linux has every thread pass a point of its own first, and a loop that accepts stands still for as long,
/// at each power of two.
fn widen_descriptor_table() {
    const CONNECTIONS: i32 = 16_000;
    let most =
        getrlimit(Resource::Nofile).current.and_then(|most| i32::try_from(most).ok()).unwrap_or(i32::MAX);
    let last = CONNECTIONS.min(most.saturating_sub(1));
    // What it answers is closed at once; where it is refused the table grows as connections come.
    if let Err(error) = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), last) {
        tracing::debug!(%error, last, "cannot enlarge the table of descriptors ahead");
    }
}

fn listen(address: SocketAddr, flag: &'static str) -> Result<TcpListener, ServeError> {
    let open = || {
        let socket =
            socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        // So that a restart does not wait for connections of the process before to time out.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(1024)?;
        Ok(socket.into())
    };
    open().map_err(|reason| ServeError::Listen { address, flag, reason })
}

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

fn shared(
    config: &ServeConfig,
    resp: SocketAddr,
    (access, memory): (&Arc<Access>, &Arc<Memory>),
    (diagnostics, computations): (&Arc<Diagnostics>, &Computations),
) -> Shared {
    let mut settings = Settings::default();
    settings.fix("port", resp.port().to_string());
    settings.offer_size("maxmemory", config.maxmemory_bytes);
    settings.fix("bind", resp.ip().to_string());
    settings.fix("dir", config.data_dir.display().to_string());
    settings.fix("io-threads", config.threads.to_string());
    let (appendonly, appendfsync) = match config.keep {
        Keep::Fsync => ("yes", "always"),
        Keep::Os => ("yes", "everysec"),
        Keep::Late => ("yes", "no"),
        Keep::Nothing => ("no", "no"),
    };
    settings.fix("appendonly", appendonly);
    settings.fix("appendfsync", appendfsync);
    config.options.iter().for_each(|(info, value)| settings.fix(info.name, value.to_string()));
    let mut shared = Shared::default();
    shared.settings = settings;
    shared.access = access.clone();
    shared.observed = Observed::by(diagnostics.clone());
    shared.memory = memory.clone();
    shared.computations = computations.clone();
    shared
}

/// Where clients reach the other members of a node's replication group, and how many of them hold what is answered.
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
