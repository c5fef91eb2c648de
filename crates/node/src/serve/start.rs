//! The start of a node, in four steps: check what is configured, listen, open the directory, run the roles.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use ordain_archive::Archiver;
use ordain_family::{Family, Keep, NodeSettings, Notice, Opened, Replication, places};
use ordain_front::{Parts, Setup};
use ordain_model::layout::MAX_SHARDS;
use ordain_model::{Computations, Registry, Stamp, Stopwatch};
use ordain_resp::Access;
use ordain_role::{Directory, NodeId, Topology, UnderWay};
use ordain_runtime::{
    DirLock, Disk, FsDirectory, LoopSpec, NetStatus, Network, RunTimes, Runtime, StartError,
};

use super::operator::{begin_with_aborts, greeting, open_under_way};
use super::secured::Secured;
use super::sockets::{PEERS, listen, open_network, raise_open_files};
use super::{Node, ServeConfig, ServeError, archive_settings, newcomer, node_info, setup, users, without};
use crate::aborts::Aborts;
use crate::admin::{About, Admin, PATIENCE};
use crate::admin_client::Asker;
use crate::certificates::{Renewals, Watch};
use crate::cluster::{Membership, check_replication};
use crate::front::{Accepted, ClientEdge, Process};
use crate::identity::Identity;
use crate::procedures;
use crate::tls::AuthClients;
use crate::users_file::{Desk, UsersFile};
use ordain_deterministic::assembly::discard;
use ordain_engines::family::EngineVisitor;

/// The start of a node as the configuration says, whatever its engine's family.
pub(super) struct Start<'a> {
    pub config: &'a ServeConfig,
}

impl EngineVisitor for Start<'_> {
    type Output = Result<Node, ServeError>;

    fn visit<F: Family>(self, family: F) -> Result<Node, ServeError> {
        let Start { config } = self;
        let access = Arc::new(Access::new(users(config)?));
        check_exposure(config, &access)?;
        let secured = Secured::load(config)?;
        check(config)?;
        let joins = config.join.then(|| newcomer(config)).transpose()?;
        raise_open_files();
        let listeners = Listeners::open(config)?;
        let place = Place::open(config, joins)?;
        Opening { family, config, access, secured, listeners, place }.run()
    }
}

/// Refuses a node that other machines could use without a password.
fn check_exposure(config: &ServeConfig, access: &Access) -> Result<(), ServeError> {
    let is_open = access.users(|users| users.default_user().is_open());
    // A certificate of a client does for its password, where none is admitted without one.
    let tls = config.tls.as_ref();
    let has_certificates = tls.is_some_and(|tls| tls.only && tls.auth_clients == AuthClients::Yes);
    for (address, flag, is_safe) in
        [(config.listen, "--listen", has_certificates), (config.admin, "--admin", false)]
    {
        if is_open && !is_safe && !address.ip().is_loopback() && !config.insecure {
            return Err(ServeError::Exposed { address, flag });
        }
    }
    Ok(())
}

/// Refuses settings that do not go together.
fn check(config: &ServeConfig) -> Result<(), ServeError> {
    if !(1..=MAX_SHARDS).contains(&config.threads) {
        return Err(ServeError::Threads(config.threads));
    }
    if let Some(place) = &config.cluster {
        check_replication(place.cluster.replication, config.keep)?;
    }
    if config.checkpoint_store.is_some() && config.keep == Keep::Nothing {
        return Err(ServeError::NothingToArchive);
    }
    Ok(())
}

/// The sockets on which a node listens, and the addresses that it was given.
struct Listeners {
    clients: Option<TcpListener>,
    tls: Option<TcpListener>,
    admin: TcpListener,
    peers: Option<TcpListener>,
    resp_at: SocketAddr,
    tls_at: Option<SocketAddr>,
    admin_at: SocketAddr,
}

impl Listeners {
    fn open(config: &ServeConfig) -> Result<Listeners, ServeError> {
        let tls = config.tls.as_ref();
        let is_plain = tls.is_none_or(|tls| !tls.only);
        let clients = is_plain.then(|| listen(config.listen, "--listen")).transpose()?;
        let tls = tls.map(|tls| listen(SocketAddr::new(config.listen.ip(), tls.port), "--tls-port"));
        let tls = tls.transpose()?;
        let admin = listen(config.admin, "--admin")?;
        let peers = config.cluster.as_ref().map(|place| listen(place.member().cluster, PEERS)).transpose()?;
        let at = |listener: &Option<TcpListener>| listener.as_ref().and_then(|it| it.local_addr().ok());
        let tls_at = at(&tls);
        let resp_at = at(&clients).or(tls_at).unwrap_or(config.listen);
        let admin_at = admin.local_addr().unwrap_or(config.admin);
        Ok(Listeners { clients, tls, admin, peers, resp_at, tls_at, admin_at })
    }

    /// Has clients that connect be refused at once, so that they can turn to another node.
    fn refuse_clients(&mut self) {
        self.clients = None;
        self.tls = None;
    }
}

/// The data directory of a node, if it keeps anything.
struct Place {
    directory: Option<FsDirectory>,
    lock: Option<DirLock>,
    identity: Option<Identity>,
    /// The transactions that an operator has aborted.
    aborted: Arc<BTreeSet<Stamp>>,
    under_way: Vec<UnderWay>,
}

impl Place {
    /// Opens and locks the directory, if anything is kept, and removes what the node is to be rebuilt without.
    fn open(config: &ServeConfig, joins: Option<(&Membership, u32)>) -> Result<Place, ServeError> {
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
            let times = identity.rebuilds;
            tracing::warn!(times, "rebuilding without {}: the others have it", without(how));
            discard(directory, how)
                .map_err(|reason| ServeError::Rebuild { path: config.data_dir.clone(), reason })?;
            identity.note_removed(&config.data_dir)?;
        }
        let under_way = if keeps { open_under_way(&config.data_dir) } else { Vec::new() };
        let aborted = match keeps {
            true => Aborts::read(&config.data_dir)?.stamps(),
            false => Arc::default(),
        };
        Ok(Place { directory, lock, identity, aborted, under_way })
    }
}

/// The settings of a node's roles.
fn settings_of(
    config: &ServeConfig,
    place: &Place,
    computations: &Computations,
    run_times: &[RunTimes],
) -> NodeSettings {
    let Place { identity, aborted, under_way, .. } = place;
    let (identity, cluster) = (identity.as_ref(), config.cluster.as_ref());
    let single = || Topology::single(config.threads);
    let node = cluster.map_or(NodeId(0), |place| place.node);
    let topology = cluster.map_or_else(single, |at| at.cluster.topology());
    // Clients have no business at a node that keeps a log and nothing else.
    let gateways = if topology.is_server(node) { config.threads } else { 0 };
    NodeSettings {
        node,
        topology,
        gateways,
        cluster: cluster.map(|place| place.cluster.id.clone()).unwrap_or_default(),
        keep: config.keep,
        identity: identity.map(Identity::for_log).unwrap_or_default(),
        expect_log: identity.is_some_and(|identity| identity.has_log),
        replication: cluster.map_or(Replication::None, |place| place.cluster.replication),
        storage: cluster.and_then(|place| place.cluster.storage).unwrap_or_default(),
        generation: identity.map_or(0, |identity| identity.generation),
        rebuilds: identity.map_or(0, |identity| identity.rebuilds),
        life: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64,
        checkpoint_bytes: if identity.is_some() { config.checkpoint_log_bytes } else { 0 },
        memory_budget: config.memory_budget,
        log_keep_bytes: config.log_keep_bytes,
        segment_bytes: config.log_segment_bytes,
        aborted: aborted.clone(),
        under_way: under_way.clone(),
        computations: computations.clone(),
        stopwatches: run_times.iter().map(|times| Arc::new(times.clone()) as Arc<dyn Stopwatch>).collect(),
        ..NodeSettings::new(config.options.clone())
    }
}

/// A node whose directory is open and whose sockets listen.
struct Opening<'a, F> {
    family: F,
    config: &'a ServeConfig,
    access: Arc<Access>,
    secured: Secured,
    listeners: Listeners,
    place: Place,
}

impl<F: Family> Opening<'_, F> {
    /// Opens the roles and runs them.
    fn run(mut self) -> Result<Node, ServeError> {
        let config = self.config;
        let computations = Computations::default();
        let run_times: Vec<RunTimes> = (0..config.threads).map(|_| RunTimes::default()).collect();
        let settings = settings_of(config, &self.place, &computations, &run_times);
        let registry = procedures::of(&settings.topology.layout);
        let opened = self.open_roles(&settings, &registry)?;
        run_times.iter().for_each(RunTimes::clear);
        let recovered = opened.recovered().cloned();
        let (replayed, is_waiting) = (opened.replayed(), opened.is_waiting());
        let is_server = settings.topology.is_server(settings.node);
        if is_waiting || !is_server {
            self.listeners.refuse_clients();
        }
        let network = self.open_network(&settings, &registry, &opened)?;
        let links = network.as_ref().map_or_else(NetStatus::default, Network::status);
        let is_member = network.is_some();
        let setup = setup(config, self.listeners.resp_at);
        let info = node_info(config, self.listeners.resp_at, &settings);
        let (access, servers) = (self.access.clone(), settings.gateways as u16);
        let parts = Parts::new((&setup, &settings), servers, access, config.allocated_bytes, info);
        let loops = self.loops(opened, network, (&settings, &registry), (&setup, &parts))?;
        let Opening { access, secured, listeners, place, .. } = self;
        let Parts { mailboxes, memory, diagnostics, .. } = parts;
        let options = ordain_runtime::Options {
            node: settings.node,
            network: is_member.then_some(places::NETWORK),
            ..ordain_runtime::Options::default()
        };
        let archiver = config.checkpoint_store.clone().zip(place.identity.as_ref());
        let archiver = archiver
            .map(|(store, identity)| Archiver::start(archive_settings(config, store, identity, &settings)));
        let archiver = archiver.transpose()?;
        let running = Runtime::start(options, place.directory.map(Disk::new), loops)?;
        let standing = archiver.as_ref().map(Archiver::standing);
        let renewals: Arc<Renewals> = Arc::default();
        let login = config.operators.login.clone();
        let about = About {
            engine: config.engine,
            node: settings.node,
            resp: listeners.resp_at,
            doubts: settings.doubts.clone(),
            access,
            tls: listeners.tls_at,
            admin_tls: secured.admin,
            asker: Asker { login, trust: secured.trust, patience: PATIENCE },
            renewals: renewals.clone(),
            diagnostics,
            run_times,
            memory,
            cluster: config.cluster.clone(),
            rebuilds: settings.rebuilds,
            links,
            archive: config.checkpoint_store.as_ref().map(|(location, _)| location.clone()).zip(standing),
        };
        let admin = Admin::start(listeners.admin, running.handle(), mailboxes, about);
        let admin = admin.map_err(ServeError::Admin)?;
        let watch = Watch::start(secured.watched, renewals).map_err(ServeError::Admin)?;
        let identity: Option<(Identity, PathBuf)> =
            place.identity.map(|identity| (identity, config.data_dir.clone()));
        Ok(Node {
            resp: listeners.resp_at,
            tls: listeners.tls_at,
            admin: listeners.admin_at,
            engine: config.engine,
            id: settings.node,
            recovered,
            replayed,
            is_waiting,
            running,
            identity,
            _archiver: archiver,
            _admin: admin,
            _watch: watch,
            _lock: place.lock,
        })
    }

    /// Builds the roles from the directory, and notes in it what follows.
    fn open_roles(
        &mut self,
        settings: &NodeSettings,
        registry: &Arc<Registry>,
    ) -> Result<F::Opened, ServeError> {
        let Opening { family, config, place, .. } = self;
        let directory = place.directory.as_mut().map(|directory| directory as &mut dyn Directory);
        let keeps = directory.is_some();
        let opened = family.open(directory, settings, registry).map_err(|error| ServeError::Contents {
            path: keeps.then(|| config.data_dir.clone()),
            source: Box::new(error),
        })?;
        let ended = |place: &UnderWay| [*place, place.of_work()].iter().for_each(|place| place.end());
        place.under_way.iter().for_each(ended);
        if let Some(identity) = &mut place.identity {
            identity.note_log(&config.data_dir)?;
            begin_with_aborts(&config.data_dir)?;
        }
        for notice in opened.notices() {
            match notice {
                Notice::Information(text) => tracing::info!("{text}"),
                Notice::Warning(text) => tracing::warn!("{text}"),
            }
        }
        Ok(opened)
    }

    /// The edge to the other nodes, if there are any.
    fn open_network(
        &mut self,
        settings: &NodeSettings,
        registry: &Arc<Registry>,
        opened: &F::Opened,
    ) -> Result<Option<Network<F::Message>>, ServeError> {
        let Opening { family, config, secured, listeners, place, .. } = self;
        let Some((membership, listener)) = config.cluster.as_ref().zip(listeners.peers.take()) else {
            return Ok(None);
        };
        let watchers = family.peer_watchers(settings);
        let edge = open_network(membership, listener, secured.links.clone(), (settings, watchers), registry)?;
        Ok(Some(match place.directory {
            Some(_) => {
                edge.greeting(greeting(&config.data_dir, opened.begins_after(), place.under_way.clone())?)
            }
            None => edge,
        }))
    }

    /// The event loops: each with a shard and a front door, the first with all other roles too. A node without shards has one loop.
    fn loops(
        &mut self,
        opened: F::Opened,
        mut network: Option<Network<F::Message>>,
        (settings, registry): (&NodeSettings, &Arc<Registry>),
        (setup, parts): (&Setup, &Parts<Accepted>),
    ) -> Result<Vec<LoopSpec<F::Message>>, ServeError> {
        let Opening { family, config, access, secured, listeners, .. } = self;
        let users_file = config.users_file.clone().map(|path| UsersFile::start(path, access.clone()));
        let users_file = users_file.transpose().map_err(StartError::System)?;
        let roles = opened.into_roles().into_iter();
        let (mut head, shards): (Vec<_>, Vec<_>) = roles.partition(|(number, _)| *number < places::SHARDS);
        let mut loops = Vec::new();
        for (i, shard) in shards.into_iter().enumerate() {
            let mut spec = LoopSpec::new(format!("ordain-{i}"));
            spec.roles.append(&mut head);
            spec.roles.push(shard);
            let desk = users_file.clone().map(Desk::new).transpose().map_err(StartError::System)?;
            let process = Process::new(secured.clients.clone(), desk);
            let server = parts.server(i as u16, (&*family, settings, registry), setup, process);
            let edge = ClientEdge::new(server, listeners.clients.take(), listeners.tls.take());
            spec = spec.edge(places::GATEWAYS + i as u16, edge);
            // Not on the first loop, which has most to do, if there is another.
            if i + 1 == config.threads
                && let Some(network) = network.take()
            {
                spec = spec.edge(places::NETWORK, network);
            }
            loops.push(spec);
        }
        // A storage node has no shard.
        if loops.is_empty() {
            let mut spec = LoopSpec::new("ordain-0".to_owned());
            spec.roles.append(&mut head);
            if let Some(network) = network.take() {
                spec = spec.edge(places::NETWORK, network);
            }
            loops.push(spec);
        }
        Ok(loops)
    }
}
