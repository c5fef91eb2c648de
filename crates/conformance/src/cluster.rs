//! Clusters of an engine, of any shape, in virtual time and without faults: the product's connection servers, sequencers, logs
//! and shards, driven by the simulator.

use std::sync::Arc;

use ordain_checker::RequestId;
use ordain_engines::family::{EngineVisitor, with_family};
use ordain_engines::registry::{self, Engine, option};
use ordain_family::{Family, NodeSettings, Replication};
use ordain_model::key::SLOTS;
use ordain_model::{
    ArgsBuilder, Call, Datum, Db, Layout, Micros, Options, PartitionId, Registry, VirtualShard, system,
};
use ordain_role::{Bug, Bugs, NodeId, Topology};
use ordain_sim::{ConnectionNo, FamilySystem, System, VirtualCluster};

use crate::reference::{START, procedures};
use crate::subject::{Subject, Traits, Weather, note_used, used};

/// The virtual time after which every node shows what any other has answered.
const REST: Micros = Micros::from_millis(50);

/// The virtual time within which every record is examined and those whose time has come are removed.
const SWEEP: Micros = Micros::from_millis(500);
/// The slots that move at once.
const MOVED: usize = 96;

/// A cluster to put to the test: an engine, its options, and how many nodes there are.
#[derive(Clone, Debug)]
pub struct Shape {
    engine: &'static str,
    options: Vec<(&'static str, &'static str)>,
    partitions: usize,
    replicas: u16,
    /// Storage nodes of each partition, beside its replicas.
    storage: u16,
    replication: Replication,
    shards: usize,
    /// The prefixes of each partition; none: it is no region.
    regions: Vec<&'static [&'static str]>,
    bugs: Bugs,
}

/// A property of a shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One node.
    Single,
    /// Several partitions.
    Partitioned,
    /// Several shards a node.
    Sharded,
    /// Several copies of what a partition's log has.
    Replicated,
}

/// One node of an engine with one shard and the engine's defaults.
pub fn on(engine: &'static str) -> Shape {
    let (options, replication) = (Vec::new(), Replication::Sync);
    let (regions, bugs) = (Vec::new(), Bugs::NONE);
    Shape { engine, options, partitions: 1, replicas: 1, storage: 0, replication, shards: 1, regions, bugs }
}

impl Shape {
    /// With so many partitions.
    #[must_use]
    pub fn partitions(self, partitions: usize) -> Shape {
        Shape { partitions, ..self }
    }

    /// With so many replicas, of which a majority has what is acknowledged.
    #[must_use]
    pub fn replicas(self, replicas: u16) -> Shape {
        Shape { replicas, ..self }
    }

    /// With replicas that follow some time after.
    #[must_use]
    pub fn asynchronous(self) -> Shape {
        Shape { replication: Replication::Async, ..self }
    }

    /// With so many storage nodes a partition, which keep its log.
    #[must_use]
    pub fn storage(self, storage: u16) -> Shape {
        Shape { storage, ..self }
    }

    /// With so many shards a node, each with a connection server.
    #[must_use]
    pub fn shards(self, shards: usize) -> Shape {
        Shape { shards, ..self }
    }

    /// With a partition a region, each the home of the keys with these prefixes.
    #[must_use]
    pub fn regions(self, regions: &[&'static [&'static str]]) -> Shape {
        Shape { partitions: regions.len(), regions: regions.to_vec(), ..self }
    }

    /// With a planted bug, for a test that the suite finds it.
    #[must_use]
    pub fn planted(self, bug: Bug) -> Shape {
        Shape { bugs: Bugs::NONE.with(bug), ..self }
    }

    /// With an option of the engine.
    #[must_use]
    pub fn option(mut self, name: &'static str, value: &'static str) -> Shape {
        self.options.push((name, value));
        self
    }

    /// The engine.
    ///
    /// # Panics
    /// There is no such engine.
    pub fn engine(&self) -> Engine {
        self.engine.parse().unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// The engine's options, as they are set here.
    ///
    /// # Panics
    /// An option is not the engine's.
    pub fn options(&self) -> Options {
        let options = self.engine().options(self.options.iter().copied());
        options.unwrap_or_else(|refusal| panic!("{refusal}"))
    }

    /// Opens a fresh cluster.
    ///
    /// # Panics
    /// It does not come up.
    pub fn open(&self) -> Box<dyn Subject> {
        let mut layout = Layout::even(self.partitions, self.shards).expect("partitions and shards are few");
        if !self.regions.is_empty() {
            let bytes =
                |prefixes: &&[&str]| prefixes.iter().map(|prefix| prefix.as_bytes().to_vec()).collect();
            let regions = self.regions.iter().map(bytes).collect();
            layout = layout.in_regions(regions).expect("prefixes of regions are few and differ");
        }
        let topology = Topology::regions(Arc::new(layout), self.replicas, self.storage);
        let settings = NodeSettings {
            topology,
            replication: self.replication,
            bugs: self.bugs,
            // Small, as a directory in memory is.
            segment_bytes: 1 << 20,
            ..NodeSettings::new(self.options())
        };
        with_family(self.engine(), Opening { shape: self, settings })
    }

    /// Which of the properties that a suite must cover the shape has.
    pub(crate) fn is_like(&self, kind: Kind) -> bool {
        match kind {
            Kind::Single => self.partitions == 1 && self.replicas + self.storage == 1,
            Kind::Partitioned => self.partitions > 1,
            Kind::Sharded => self.shards > 1,
            Kind::Replicated => self.replicas + self.storage > 1,
        }
    }

    fn traits(&self) -> Traits {
        let options = self.options();
        Traits {
            is_reference: false,
            partitions: self.partitions,
            reads: option("reads").map(|info| options.choice(info)).unwrap_or_default(),
            isolation: option("isolation").map(|info| options.choice(info)).unwrap_or_default(),
            // Partitions with storage nodes are regions.
            is_whole: self.partitions == 1 || self.storage == 0,
            is_direct: self.engine().info().family == registry::Family::Commit,
            can: *self.engine().can(),
        }
    }
}

struct Opening<'a> {
    shape: &'a Shape,
    settings: NodeSettings,
}

impl EngineVisitor for Opening<'_> {
    type Output = Box<dyn Subject>;

    fn visit<F: Family>(self, family: F) -> Box<dyn Subject> {
        let placement = self.settings.topology.layout.placement().clone();
        let registry: Arc<Registry> = Arc::new(procedures().placing(placement));
        note_used(0);
        let servers = self.shape.shards as u16;
        let opened = VirtualCluster::measured(family, self.settings.clone(), registry, servers, used);
        let mut cluster = opened.unwrap_or_else(|reason| panic!("the cluster does not come up: {reason}"));
        cluster.hold_wall(START);
        Box::new(Cluster::<FamilySystem<F>> {
            cluster,
            traits: self.shape.traits(),
            topology: self.settings.topology,
            connections: Vec::new(),
            wall: START,
            moves: 0,
            operations: Vec::new(),
        })
    }
}

/// A cluster of a family's nodes.
#[derive(Debug)]
pub struct Cluster<S: System> {
    cluster: VirtualCluster<S>,
    traits: Traits,
    topology: Topology,
    connections: Vec<ConnectionNo>,
    wall: Micros,
    /// How often slots have moved.
    moves: usize,
    /// What an operator has begun, and nobody has waited for.
    operations: Vec<RequestId>,
}

impl<S: System> Cluster<S> {
    /// Has the first node run a procedure, while clients go on.
    fn operate(&mut self, call: Call, write: impl Fn(&mut ArgsBuilder<'_>)) {
        self.operations.push(self.cluster.begin(NodeId(0), call, write));
    }

    /// Waits until all that an operator has begun is done.
    fn end_operations(&mut self) -> Result<(), String> {
        for request in std::mem::take(&mut self.operations) {
            let reply = self.cluster.end(request).map_err(|e| e.to_string())?;
            if let Datum::Error(text) = Datum::first(&reply) {
                return Err(String::from_utf8_lossy(text).into_owned());
            }
        }
        Ok(())
    }
}

impl<S: System> Subject for Cluster<S>
where
    VirtualCluster<S>: std::fmt::Debug,
    S: std::fmt::Debug,
{
    fn traits(&self) -> Traits {
        self.traits
    }

    fn layout(&self) -> Arc<Layout> {
        self.topology.layout.clone()
    }

    fn open(&mut self, seat: usize) -> usize {
        let servers: Vec<NodeId> =
            (0..self.topology.nodes()).map(NodeId).filter(|node| self.topology.is_server(*node)).collect();
        let node = servers[seat % servers.len()];
        let connection = self.cluster.connect(node);
        self.connections.push(connection.unwrap_or_else(|reason| panic!("{reason}")));
        self.connections.len() - 1
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) {
        self.cluster.send(self.connections[connection], bytes);
    }

    fn settle(&mut self) -> Result<(), String> {
        self.cluster.settle().map_err(|e| e.to_string())?;
        self.end_operations()
    }

    fn rest(&mut self) -> Result<(), String> {
        self.settle()?;
        self.cluster.advance(REST).map_err(|e| e.to_string())
    }

    fn take(&mut self, connection: usize) -> Vec<u8> {
        self.cluster.received(self.connections[connection])
    }

    fn is_closed(&self, connection: usize) -> bool {
        self.cluster.is_over(self.connections[connection])
    }

    fn close(&mut self, connection: usize) {
        self.cluster.close(self.connections[connection]);
    }

    fn advance(&mut self, ms: u64) -> Result<(), String> {
        let time = Micros::from_millis(ms);
        self.wall = self.wall.plus(time);
        self.cluster.hold_wall(self.wall);
        self.cluster.advance(time).map_err(|e| e.to_string())
    }

    fn sweep(&mut self) -> Result<(), String> {
        self.cluster.advance(SWEEP).map_err(|e| e.to_string())
    }

    fn move_slots(&mut self) -> Result<(), String> {
        if !self.traits.can.moves_slots {
            return Ok(());
        }
        self.end_operations()?;
        self.moves += 1;
        let partitions = usize::from(self.topology.layout.partitions());
        let first = (self.moves * 5 * MOVED) % (SLOTS - MOVED);
        if partitions > 1 && self.topology.layout.moves_slots() {
            let to = PartitionId((self.moves % partitions) as u16);
            let slots = first..first + MOVED;
            self.operate(Call::new(system::MOVE, Db(0)), |args| system::move_args(&slots, to, args));
        }
        if self.topology.layout.shards_of(PartitionId(0)).len() > 1 {
            let of = PartitionId((self.moves / partitions % partitions) as u16);
            let slots = first..first + MOVED;
            let places: Vec<_> =
                slots.map(|slot| (slot, Some(VirtualShard((slot * 7 % 128) as u8)))).collect();
            self.operate(Call::new(system::BALANCE, Db(0)), |args| system::balance_args(of, &places, args));
        }
        Ok(())
    }

    fn set_used(&mut self, bytes: u64) -> Result<(), String> {
        note_used(bytes);
        // Each node measures once a second, and tells the others.
        self.cluster.advance(Micros::from_millis(2_500)).map_err(|e| e.to_string())
    }

    fn set_weather(&mut self, weather: Weather) {
        panic!("a cluster answers as it does, and not {weather:?}");
    }
}
