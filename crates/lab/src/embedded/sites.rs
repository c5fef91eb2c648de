//! The nodes of a run: what each is made of, where its clients are, and what joins it to the others.
//!
//! A node here is what `ordain serve` starts, with the same roles and the same network edge over TCP to the nodes that
//! it belongs with; only the connection servers are replaced by populations of clients, and all nodes are in one process.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use ordain_family::{Family, Keep, Message, NodeSettings, Opened as _, Replication, Storage, places};
use ordain_link::Life;
use ordain_model::layout::MAX_SHARDS;
use ordain_model::{Layout, Micros, Registry};
use ordain_node::cluster::MAX_REPLICAS;
use ordain_role::{Address, Directory, NodeId, ReplicaId, Topology};
use ordain_runtime::{Disk, FsDirectory, LoopSpec, NetConfig, NetLimits, Network};

use super::population::Place;
use super::remote::{Remote, RemoteParts};
use crate::meter::{Meter, Metered};

/// The nodes of a run, and the delay between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Nodes of a replica, each with a partition; or all nodes, if they are apart.
    pub nodes: u16,
    /// Replicas of every partition. Storage nodes are not among them.
    pub replicas: u16,
    pub replication: Replication,
    /// Delay added between nodes, one way.
    pub delay: Delay,
    /// True: nodes on their own, side by side, each with data of its own, to compare a cluster with.
    pub apart: bool,
    /// True of a grid whose partitions are regions, each with storage nodes that keep its log.
    pub regions: Option<Regions>,
}

/// The storage nodes of regions, and the delay between regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// When storage nodes have an entry.
    pub storage: Storage,
    /// Storage nodes of each region.
    pub count: u16,
    /// Delay added between nodes of two regions, one way, beyond that between any two nodes.
    pub between: Micros,
    /// The fault of the last storage node of each region.
    pub fault: Fault,
}

/// The fault of a storage node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// What goes there, and what comes from there, is so late.
    Slow(Micros),
    /// It ends before anything is measured: a region begins with all its storage nodes.
    Dead,
}

impl Fault {
    /// The fault in words; empty without one.
    pub fn text(self) -> String {
        match self {
            Fault::None => String::new(),
            Fault::Slow(late) => format!(", one of them {} us away", late.0),
            Fault::Dead => ", one of them dead".to_owned(),
        }
    }
}

impl Regions {
    /// Delay between two nodes, one way, beyond that between any two.
    fn further(&self, topology: &Topology, a: NodeId, b: NodeId) -> Micros {
        if a == b {
            return Micros(0);
        }
        let between =
            if topology.partition_of(a) == topology.partition_of(b) { Micros(0) } else { self.between };
        match self.fault {
            Fault::Slow(late) if [a, b].iter().any(|node| self.is_faulty(topology, *node)) => {
                between.plus(late)
            }
            _ => between,
        }
    }

    /// True of the last storage node of a region, unless all are well.
    fn is_faulty(&self, topology: &Topology, node: NodeId) -> bool {
        self.fault != Fault::None && topology.replica_of(node).0 + 1 == topology.replicas
    }
}

/// Delay that is added between nodes, one way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delay {
    /// One delay everywhere.
    Even(Micros),
    /// Between the nodes of a replica, and between those of two replicas, by their numbers.
    Regions {
        /// Inside.
        near: Micros,
        /// Between a lower and a higher number.
        far: BTreeMap<(u16, u16), Micros>,
    },
}

impl Delay {
    /// Everywhere.
    fn near(&self) -> Micros {
        match self {
            Delay::Even(near) | Delay::Regions { near, .. } => *near,
        }
    }

    /// Between two replicas, beyond what there is everywhere.
    fn further(&self, a: ReplicaId, b: ReplicaId) -> Micros {
        match self {
            Delay::Regions { near, far } => {
                far.get(&(a.0.min(b.0), a.0.max(b.0))).map_or(Micros(0), |far| far.since(*near))
            }
            Delay::Even(_) => Micros(0),
        }
    }
}

impl Grid {
    /// One node.
    pub const ALONE: Grid = Grid {
        nodes: 1,
        replicas: 1,
        replication: Replication::None,
        delay: Delay::Even(Micros(0)),
        apart: false,
        regions: None,
    };

    /// Nodes that hold a partition each, with nothing between them.
    pub const fn of(nodes: u16) -> Grid {
        Grid { nodes, ..Grid::ALONE }
    }

    /// Nodes of all replicas together, storage nodes among them.
    pub fn all(&self) -> u16 {
        self.nodes * (self.replicas + self.storage_nodes())
    }

    /// How many storage nodes are to be dead, the last of all nodes; and of how many each region is to make do then.
    pub(super) fn dead(&self) -> Option<(usize, u16)> {
        let regions = self.regions.filter(|regions| regions.fault == Fault::Dead)?;
        Some((self.nodes.into(), regions.count - 1))
    }

    /// Storage nodes of each partition.
    fn storage_nodes(&self) -> u16 {
        self.regions.map_or(0, |regions| regions.count)
    }

    /// Refuses what cannot be, with the reason.
    pub fn check(&self, threads: usize) -> anyhow::Result<()> {
        /// More threads than this, and a machine for a benchmark does nothing but change between them.
        const LOOPS_MAX: usize = 256;
        if !(1..=MAX_REPLICAS).contains(&self.replicas) {
            bail!("--replicas must be 1 to {MAX_REPLICAS}, not {}", self.replicas);
        }
        if self.replication == Replication::Async && self.all() < CONFIGURATION_SERVICE {
            bail!(
                "--replication async on {} nodes: three of them have to agree on who is primary of a partition: say \
                 --replicas 3, or --nodes 2",
                self.all()
            );
        }
        let nodes = usize::from(self.nodes);
        if nodes == 0 || nodes * threads > MAX_SHARDS {
            bail!(
                "--nodes {nodes} of --threads {threads}: there must be at least one of each and at most {MAX_SHARDS} \
                 shards (nodes times threads) in a replica: choose fewer"
            );
        }
        let loops = nodes * threads * usize::from(self.replicas);
        if loops > LOOPS_MAX {
            bail!(
                "--nodes {nodes} of --threads {threads} in --replicas {} are {loops} event loops, all in this process: \
                 at most {LOOPS_MAX}: choose fewer",
                self.replicas
            );
        }
        Ok(())
    }

    /// The nodes, with so many threads each.
    fn members(&self, threads: usize) -> anyhow::Result<Vec<(Place, NodeId, Topology)>> {
        if self.apart {
            let member = |node: u16| {
                (Place { data: node.into(), replica: 0, node }, NodeId(0), Topology::single(threads))
            };
            return Ok((0..self.nodes).map(member).collect());
        }
        let layout = Arc::new(Layout::even(self.nodes.into(), threads)?);
        let topology = match self.storage_nodes() {
            0 => Topology::replicated(layout, self.replicas),
            count => Topology::regions(layout, self.replicas, count),
        };
        let member = |node| {
            let id = NodeId(node);
            (Place { data: 0, replica: topology.replica_of(id).0, node }, id, topology.clone())
        };
        Ok((0..topology.nodes()).map(member).collect())
    }
}

/// The meters of a loop's actors, by what they measure.
pub(super) type Meters = Vec<(&'static str, Meter)>;

/// A node, ready to be given its clients and to be started.
pub(super) struct Site<M> {
    pub place: Place,
    pub settings: NodeSettings,
    pub disk: Option<Disk>,
    /// A loop for each shard, and the meters of its roles; one for all roles of a storage node.
    pub loops: Vec<(LoopSpec<M>, Meters)>,
    /// The other nodes that it belongs with.
    pub peers: Vec<NodeId>,
}

impl<M> Site<M> {
    /// True of a node that executes: each of its loops has a population.
    pub fn has_clients(&self) -> bool {
        self.settings.topology.is_server(self.settings.node)
    }
}

/// The directory of a node.
pub(super) fn directory_of(root: Option<&PathBuf>, grid: &Grid, node: u16) -> Option<PathBuf> {
    let root = root?;
    Some(if *grid == Grid::ALONE { root.clone() } else { root.join(format!("node-{node}")) })
}

/// Builds all nodes of a run; `base` is what they have in common.
pub(super) fn build<F: Family>(
    family: &F,
    grid: &Grid,
    threads: usize,
    base: &NodeSettings,
    root: Option<&PathBuf>,
    registry: &Arc<Registry>,
) -> anyhow::Result<Vec<Site<F::Message>>> {
    let members = grid.members(threads)?;
    let mut listeners = Vec::new();
    if !grid.apart && members.len() > 1 {
        for _ in &members {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .context("cannot listen on the loopback interface, where the nodes of a run meet")?;
            listeners.push((listener.local_addr()?, listener));
        }
    }
    let addresses: Vec<(NodeId, SocketAddr)> =
        members.iter().zip(&listeners).map(|((_, id, _), (address, _))| (*id, *address)).collect();
    let mut listeners = listeners.into_iter().map(|(_, listener)| listener);
    let mut sites = Vec::new();
    for (place, node, topology) in members {
        let is_server = topology.is_server(node);
        let settings = NodeSettings {
            node,
            topology,
            gateways: if is_server { threads } else { 0 },
            replication: grid.replication,
            storage: grid.regions.map_or_else(Storage::default, |regions| regions.storage),
            life: LIFE.0,
            configuration_service_pace: CONFIGURATION_SERVICE_PACE,
            ..base.clone()
        };
        let path = directory_of(root, grid, place.node);
        if let Some(path) = &path {
            std::fs::create_dir_all(path).with_context(|| format!("cannot make {}", path.display()))?;
        }
        let (opened, disk) = open(family, &settings, path.as_deref(), registry)?;
        let name =
            |i| if grid.all() > 1 { format!("bench-{}-{i}", place.node) } else { format!("bench-{i}") };
        let count = if is_server { threads } else { 1 };
        let mut loops: Vec<_> = (0..count).map(|i| (LoopSpec::new(name(i)), Vec::new())).collect();
        for (number, role) in opened.into_roles() {
            // A shard has its own loop, the others are on the first.
            let (spec, meters) = &mut loops[usize::from(number.saturating_sub(places::SHARDS))];
            let meter = Meter::default();
            meters.push((role.name(), meter.clone()));
            spec.roles.push((number, Box::new(Metered::new(role, meter))));
        }
        if let Some(listener) = listeners.next() {
            let watchers = family.peer_watchers(&settings);
            let network = network(grid, (&settings, watchers), listener, &addresses, registry)?;
            // Not on the loop of the sequencer, if there is another: as in a node that serves.
            if let Some((spec, meters)) = loops.last_mut() {
                let meter = Meter::default();
                meters.push(("network", meter.clone()));
                let further = |(peer, _): &(NodeId, SocketAddr)| {
                    let replica = settings.topology.replica_of(*peer);
                    (*peer, grid.delay.further(ReplicaId(place.replica), replica))
                };
                let delays = addresses.iter().map(further).filter(|(_, delay)| delay.0 > 0).collect();
                let parts = RemoteParts { network, delays, meter };
                spec.edges.push((places::NETWORK, Box::new(Remote::new(parts))));
            }
        }
        let peers = addresses.iter().map(|(peer, _)| *peer).filter(|peer| *peer != node).collect();
        sites.push(Site { place, settings, disk, loops, peers });
    }
    Ok(sites)
}

/// The edge by which a node talks to those that it belongs with, as `ordain serve` sets it up.
fn network<M: Message>(
    grid: &Grid,
    (settings, watchers): (&NodeSettings, Vec<u16>),
    listener: TcpListener,
    addresses: &[(NodeId, SocketAddr)],
    registry: &Arc<Registry>,
) -> anyhow::Result<Network<M>> {
    let servers = (0..settings.gateways as u16).map(|i| places::GATEWAYS + i);
    let watchers = servers.chain(watchers).collect();
    let delay_to = |peer: NodeId| {
        let further = |regions: Regions| regions.further(&settings.topology, settings.node, peer);
        grid.delay.near().plus(grid.regions.map_or(Micros(0), further))
    };
    let config = NetConfig {
        me: Address { node: settings.node, role: places::NETWORK },
        listener,
        peers: addresses.to_vec(),
        cluster: "bench".to_owned(),
        secret: b"only nodes of this very process".to_vec(),
        fingerprint: 1,
        life: LIFE,
        watchers,
        delays: addresses.iter().map(|(node, _)| (*node, delay_to(*node))).collect(),
        procedures: registry.clone(),
        // Threads that share a few cores may be silent for long, and no node dies.
        tls: None,
        limits: NetLimits { lost_after: Micros(SILENCE.as_micros() as u64), ..NetLimits::default() },
    };
    Network::new(config).context("cannot set up the connections between the nodes of a run")
}

const SILENCE: Duration = Duration::from_secs(10);

/// A primary is not given up sooner than a node is: the configuration service waits for eight times this.
const CONFIGURATION_SERVICE_PACE: Micros = Micros(SILENCE.as_micros() as u64 / 8);

/// Every node lives once.
const LIFE: Life = Life(1);

/// The fewest nodes of which one may be lost, and the others still know who is primary.
const CONFIGURATION_SERVICE: u16 = 3;

/// Opens a node's directory, if it keeps anything, and builds its roles.
pub(super) fn open<F: Family>(
    family: &F,
    node: &NodeSettings,
    directory: Option<&std::path::Path>,
    registry: &Arc<Registry>,
) -> anyhow::Result<(F::Opened, Option<Disk>)> {
    match directory.filter(|_| node.keep != Keep::Nothing) {
        None => Ok((family.open(None, node, registry)?, None)),
        Some(path) => {
            let mut directory = FsDirectory::open(path)?;
            let opened = family.open(Some(&mut directory as &mut dyn Directory), node, registry)?;
            Ok((opened, Some(Disk::new(directory))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_further_apart_than_nodes_of_one() {
        let far = BTreeMap::from([((0, 1), Micros(50_000)), ((1, 2), Micros(100))]);
        let delay = Delay::Regions { near: Micros(500), far };
        let further = |a, b| delay.further(ReplicaId(a), ReplicaId(b)).0;
        assert_eq!(delay.near(), Micros(500));
        assert_eq!((further(0, 1), further(1, 0)), (49_500, 49_500));
        assert_eq!((further(1, 1), further(2, 1), further(0, 2)), (0, 0, 0));
        assert_eq!(Delay::Even(Micros(9)).further(ReplicaId(0), ReplicaId(1)), Micros(0));
    }

    #[test]
    fn regions_have_storage_nodes_near_and_each_other_far() {
        let regions =
            Regions { storage: Storage::Full, count: 3, between: Micros(900), fault: Fault::Slow(Micros(7)) };
        let grid = Grid { regions: Some(regions), ..Grid::of(2) };
        let members = grid.members(2).unwrap();
        assert_eq!((members.len(), grid.all()), (8, 8));
        let (_, _, topology) = &members[0];
        assert_eq!(topology.storage_of(ordain_model::PartitionId(1)).count(), 3);
        let further = |a, b| regions.further(topology, NodeId(a), NodeId(b)).0;
        assert_eq!((further(0, 2), further(0, 1), further(1, 2), further(0, 0)), (0, 900, 900, 0));
        assert_eq!((further(0, 6), further(6, 0), further(1, 6), further(0, 4)), (7, 7, 907, 0));
        let well = Regions { fault: Fault::None, ..regions };
        assert!(!well.is_faulty(topology, NodeId(6)) && regions.is_faulty(topology, NodeId(7)));
        assert_eq!(well.further(topology, NodeId(0), NodeId(6)), Micros(0));
    }

    #[test]
    fn nodes_apart_have_data_of_their_own_and_those_of_a_cluster_share_them() {
        let places = |grid: &Grid| {
            let members = grid.members(2).unwrap();
            members.iter().map(|(place, id, _)| (place.data, place.replica, id.0)).collect::<Vec<_>>()
        };
        let cluster = Grid { replicas: 2, ..Grid::of(2) };
        assert_eq!(places(&cluster), [(0, 0, 0), (0, 0, 1), (0, 1, 2), (0, 1, 3)]);
        assert_eq!(places(&Grid { apart: true, ..Grid::of(2) }), [(0, 0, 0), (1, 0, 0)]);
    }

    #[test]
    fn too_many_are_refused_with_the_numbers() {
        let refusal = |grid: Grid, threads| grid.check(threads).unwrap_err().to_string();
        assert!(refusal(Grid::of(65), 2).contains("--nodes 65 of --threads 2"));
        assert!(refusal(Grid::of(0), 1).contains("--nodes 0"));
        assert!(refusal(Grid { replicas: 10, ..Grid::of(1) }, 1).contains("--replicas must be 1 to 9"));
        assert!(refusal(Grid { replicas: 3, ..Grid::of(64) }, 2).contains("384 event loops"));
        assert!(Grid { replicas: 3, replication: Replication::Sync, ..Grid::of(4) }.check(1).is_ok());
        let shipped = |nodes, replicas| Grid { replicas, replication: Replication::Async, ..Grid::of(nodes) };
        assert!(refusal(shipped(1, 2), 1).contains("async on 2 nodes: three of them"));
        assert!(shipped(1, 3).check(1).is_ok() && shipped(2, 2).check(1).is_ok());
    }
}
