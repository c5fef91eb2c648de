//! A cluster without faults that a test drives step by step: it sends bytes, lets everything come to rest, and lets time
//! pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_checker::{RequestId, Violation, ViolationKind};
use ordain_family::{Family, NodeSettings, Opened as _, places};
use ordain_front::{ConnectionServer, Setup};
use ordain_model::{ArgsBuilder, Call, Digest, Micros, Random, Registry};
use ordain_resp::NodeInfo;
use ordain_resp::client::{Reply, ReplyError, write_command};
use ordain_role::{Directory, NodeId};

use super::ConnectionNo;
use super::server::VirtualHost;
use crate::faults::Faults;
use crate::load::Load;
use crate::run::Config;
use crate::simulator::Simulator;
use crate::system::{FrontDoor, Roles, System};
use crate::verdict::{Ending, Verdict};
use crate::workload::Workload;

/// The port that virtual nodes say they have.
const PORT: u16 = 6379;
/// The front doors of a node besides its connection servers, which the driver needs itself.
const DOORS: u16 = 1;

/// The longest virtual time within which everything must come to rest.
const REST_WITHIN: Micros = Micros::from_millis(60_000);
/// The step in which time passes until there is rest.
const STEP: Micros = Micros(100);

/// The reply to a transaction that has run and been aborted begins so.
const ABORTED: &[u8] = b"ERR transaction aborted";

/// Nothing is asked for but over connections.
#[derive(Debug)]
struct Silence;

impl Workload for Silence {
    fn next(&mut self, _: &mut Random) -> (Call, Vec<u8>) {
        unreachable!("there is no client that would ask")
    }
}

/// The error of a cluster that does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// A role has broken an invariant, or something has not come to an end in time.
    #[error("{0}")]
    Broken(Violation),
    /// A node has no connection server, or takes no connections.
    #[error("node {0} takes no connections")]
    Unreachable(u16),
    /// The server has closed the connection and left these bytes, which are no whole reply.
    #[error("the connection is closed; it left {0:?}")]
    Closed(String),
    /// The server has answered bytes that are no reply.
    #[error("{0}")]
    NoReply(#[from] ReplyError),
}

impl From<Violation> for ClusterError {
    fn from(violation: Violation) -> ClusterError {
        ClusterError::Broken(violation)
    }
}

/// A cluster of any [`System`] that has connection servers, without faults. The same calls give the same bytes.
///
/// ```text
/// let mut cluster = VirtualCluster::open(system, 1, 1)?;
/// let client = cluster.connect(NodeId(0))?;
/// assert_eq!(cluster.ask(client, &[b"SET", b"k", b"v", b"PX", b"5"])?, Reply::Status(b"OK".to_vec()));
/// cluster.advance(Micros::from_millis(6))?;
/// assert_eq!(cluster.ask(client, &[b"GET", b"k"])?, Reply::Nil);
/// ```
pub struct VirtualCluster<S: System> {
    simulator: Simulator<'static, S>,
    /// Bytes of each connection that were received and not handed out as replies.
    rests: BTreeMap<ConnectionNo, Vec<u8>>,
}

impl<S: System> std::fmt::Debug for VirtualCluster<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VirtualCluster").field("now", &self.simulator.now()).finish_non_exhaustive()
    }
}

/// A cluster of a family's nodes as it is, of which no run is judged.
#[derive(Debug)]
pub struct FamilySystem<F> {
    family: F,
    settings: NodeSettings,
    registry: Arc<Registry>,
    /// What measures the memory of a node, bytes.
    used: fn() -> u64,
}

impl<F: Family> FamilySystem<F> {
    /// Nodes with these settings, but for what is one's own: its number, its life and its front doors.
    pub const fn new(family: F, settings: NodeSettings, registry: Arc<Registry>) -> FamilySystem<F> {
        FamilySystem { family, settings, registry, used: || 0 }
    }

    fn of(&self, node: NodeId, life: u64) -> NodeSettings {
        NodeSettings { node, life, ..self.settings.clone() }
    }
}

impl<F: Family> System for FamilySystem<F> {
    type Message = F::Message;

    fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn start(
        &mut self,
        node: NodeId,
        incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<F::Message>, String> {
        let settings = self.of(node, u64::from(incarnation));
        let opened = self.family.open(Some(disk), &settings, &self.registry).map_err(|e| e.to_string())?;
        Ok(opened.into_roles())
    }

    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor {
        let settings = self.of(node, u64::from(incarnation) << 32);
        FrontDoor {
            address: settings.at(places::GATEWAYS + n),
            gateway: self.family.gateway(&settings, n, settings.life, &self.registry),
            router: self.family.router(&settings),
        }
    }

    fn is_server(&self, node: NodeId) -> bool {
        self.settings.topology.is_server(node)
    }

    fn servers(
        &self,
        node: NodeId,
        incarnation: u32,
        hosts: Vec<VirtualHost>,
    ) -> Vec<ConnectionServer<F::Message, VirtualHost>> {
        if !self.is_server(node) {
            return Vec::new();
        }
        let settings = self.of(node, u64::from(incarnation) << 32);
        measured_servers((&self.family, &settings, &self.registry), self.used, hosts)
    }

    fn peer_watchers(&self, node: NodeId) -> Vec<u16> {
        self.family.peer_watchers(&self.of(node, 0))
    }

    fn check(&mut self, _: Ending<'_>) -> Verdict {
        Verdict { digest: Digest::default(), entries: 0, batches: Vec::new(), voided: 0, verdict: Ok(()) }
    }
}

/// The connection servers of a virtual node of a family, which finds no memory in use.
pub fn virtual_servers<F: Family>(
    node: (&F, &NodeSettings, &Arc<Registry>),
    hosts: Vec<VirtualHost>,
) -> Vec<ConnectionServer<F::Message, VirtualHost>> {
    measured_servers(node, || 0, hosts)
}

/// As [`virtual_servers`], of a node whose memory is measured by `used`.
fn measured_servers<F: Family>(
    node: (&F, &NodeSettings, &Arc<Registry>),
    used: fn() -> u64,
    hosts: Vec<VirtualHost>,
) -> Vec<ConnectionServer<F::Message, VirtualHost>> {
    let (_, settings, _) = node;
    let setup = Setup {
        port: PORT,
        bind: "10.0.0.0".to_owned(),
        dir: String::new(),
        threads: settings.topology.layout.shards_of(settings.partition()).len(),
        keep: settings.keep,
        maxmemory_bytes: 0,
        options: settings.options.clone(),
    };
    let info = NodeInfo {
        run_id: format!("{:040x}", settings.life),
        node: settings.node.0,
        os: "virtual".to_owned(),
        port: PORT,
        threads: setup.threads,
        ..NodeInfo::default()
    };
    ordain_front::servers(node, &setup, (used, info), hosts)
}

impl<F: Family> VirtualCluster<FamilySystem<F>> {
    /// Opens a cluster of a family's nodes with these settings, of which the topology says how many there are, and so many
    /// connection servers a node.
    ///
    /// # Errors
    /// [`ClusterError::Broken`].
    pub fn of(
        family: F,
        settings: NodeSettings,
        registry: Arc<Registry>,
        servers: u16,
    ) -> Result<Self, ClusterError> {
        VirtualCluster::measured(family, settings, registry, servers, || 0)
    }

    /// As [`of`](VirtualCluster::of), with nodes whose memory in use, in bytes, is what `used` says.
    ///
    /// # Errors
    /// [`ClusterError::Broken`].
    pub fn measured(
        family: F,
        settings: NodeSettings,
        registry: Arc<Registry>,
        servers: u16,
        used: fn() -> u64,
    ) -> Result<Self, ClusterError> {
        let nodes = settings.topology.nodes();
        let gateways = usize::from(servers) + usize::from(DOORS);
        let settings = NodeSettings { gateways, ..settings };
        let system = FamilySystem { used, ..FamilySystem::new(family, settings, registry) };
        VirtualCluster::open(system, nodes, servers)
    }
}

impl<S: System> VirtualCluster<S> {
    /// Opens a cluster of so many nodes with so many connection servers each, and waits until it has come to rest.
    ///
    /// # Errors
    /// [`ClusterError::Broken`].
    pub fn open(system: S, nodes: u16, servers: u16) -> Result<VirtualCluster<S>, ClusterError> {
        let config = Config {
            nodes,
            servers,
            doors: DOORS,
            load: Load { clients: 0, ..Load::default() },
            faults: Faults::NONE,
            ..Config::new(1)
        };
        let takes_clients: Vec<NodeId> =
            (0..nodes).map(NodeId).filter(|node| system.is_server(*node)).collect();
        let simulator = Simulator::with(system, Box::new(Silence), config, None);
        let mut cluster = VirtualCluster { simulator, rests: BTreeMap::new() };
        cluster.simulator.run(REST_WITHIN, |s| !s.is_up());
        for node in takes_clients {
            // A cluster elects its leaders, and turns clients away until then. One that aborts the transaction has run it.
            let client = cluster.connect(node)?;
            let is_turned_away = |reply| matches!(reply, Reply::Error(text) if !text.starts_with(ABORTED));
            while is_turned_away(cluster.ask(client, &[b"DBSIZE"])?) {
                cluster.advance(Micros::from_millis(10))?;
            }
            cluster.close(client);
        }
        cluster.settle()?;
        Ok(cluster)
    }

    /// Makes a connection to a node: the node's connection servers take turns.
    ///
    /// # Errors
    /// [`ClusterError::Unreachable`].
    pub fn connect(&mut self, node: NodeId) -> Result<ConnectionNo, ClusterError> {
        self.simulator.dial(node).ok_or(ClusterError::Unreachable(node.0))
    }

    /// Sends bytes over a connection, and waits for nothing.
    pub fn send(&mut self, connection: ConnectionNo, bytes: &[u8]) {
        self.simulator.send_bytes(connection, bytes);
    }

    /// Takes the bytes that have come over a connection.
    pub fn received(&mut self, connection: ConnectionNo) -> Vec<u8> {
        let mut bytes = self.rests.remove(&connection).unwrap_or_default();
        bytes.extend(self.simulator.received(connection));
        bytes
    }

    /// Closes a connection.
    pub fn close(&mut self, connection: ConnectionNo) {
        self.simulator.close(connection);
    }

    /// Sends no more over a connection, which still receives.
    pub fn close_half(&mut self, connection: ConnectionNo) {
        self.simulator.close_half(connection);
    }

    /// True once the server has closed a connection and everything that it sent has arrived.
    pub fn is_over(&self, connection: ConnectionNo) -> bool {
        self.simulator.is_over(connection)
    }

    /// Lets virtual time pass until every request that has been sent is answered, and every byte has arrived.
    ///
    /// # Errors
    /// [`ClusterError::Broken`]: an invariant is, or there is no rest within a virtual minute.
    pub fn settle(&mut self) -> Result<(), ClusterError> {
        let bound = self.simulator.now().plus(REST_WITHIN);
        self.simulator.run(bound, Simulator::is_speaking);
        if let Some(violation) = self.simulator.violation() {
            return Err(violation.clone().into());
        }
        if self.simulator.is_speaking() {
            let text = format!("no rest within {} us", REST_WITHIN.0);
            return Err(Violation::new(ViolationKind::Stuck, text).into());
        }
        Ok(())
    }

    /// Lets so much virtual time pass.
    ///
    /// # Errors
    /// [`ClusterError::Broken`].
    pub fn advance(&mut self, time: Micros) -> Result<(), ClusterError> {
        self.simulator.advance(time);
        self.simulator.violation().map_or(Ok(()), |violation| Err(violation.clone().into()))
    }

    /// Sets the wall clocks of all nodes, which stand still from then on: transactions have no other time.
    pub fn hold_wall(&mut self, wall: Micros) {
        self.simulator.nodes.iter_mut().for_each(|node| node.clock.hold(wall));
    }

    /// Has a node run a procedure, as its operator would, and waits for nothing.
    pub fn begin(
        &mut self,
        node: NodeId,
        call: Call,
        write_args: impl FnOnce(&mut ArgsBuilder<'_>),
    ) -> RequestId {
        self.simulator.probe_with(usize::from(node.0), call, write_args)
    }

    /// Waits for the reply to what was begun, encoded.
    ///
    /// # Errors
    /// [`ClusterError::Broken`]: an invariant is, or the procedure was not run within a virtual minute.
    pub fn end(&mut self, request: RequestId) -> Result<Vec<u8>, ClusterError> {
        let bound = self.simulator.now().plus(REST_WITHIN);
        self.simulator.run(bound, |s| s.history.get(request).is_open());
        if let Some(violation) = self.simulator.violation() {
            return Err(violation.clone().into());
        }
        let answer = self.simulator.history().get(request).answers.first();
        answer.map(|answer| answer.reply.clone()).ok_or_else(|| {
            Violation::new(ViolationKind::Stuck, "an operator's call was not answered".to_owned()).into()
        })
    }

    /// The virtual time since the cluster was opened.
    pub fn now(&self) -> Micros {
        self.simulator.now()
    }

    /// Sends a command and waits for the reply to it: all earlier replies of the connection must have been taken.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn ask(&mut self, connection: ConnectionNo, words: &[&[u8]]) -> Result<Reply, ClusterError> {
        let mut command = Vec::new();
        write_command(words, &mut command);
        self.send(connection, &command);
        self.reply(connection)
    }

    /// Waits for the next reply of a connection.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn reply(&mut self, connection: ConnectionNo) -> Result<Reply, ClusterError> {
        self.settle()?;
        let bound = self.simulator.now().plus(REST_WITHIN);
        loop {
            let bytes = self.received(connection);
            if let Some((reply, len)) = Reply::read(&bytes)? {
                self.rests.insert(connection, bytes[len..].to_vec());
                return Ok(reply);
            }
            if self.is_over(connection) || self.simulator.now() >= bound {
                return Err(ClusterError::Closed(bytes.escape_ascii().to_string()));
            }
            self.rests.insert(connection, bytes);
            self.advance(STEP)?;
        }
    }
}
