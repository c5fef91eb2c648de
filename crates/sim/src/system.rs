//! The simulator's view of the system that it drives: how a node is built, where its front doors
//! are, what it holds, and how a run of it is judged.

use std::sync::Arc;

use ordain_family::Message;
use ordain_front::ConnectionServer;
use ordain_gateway::{Gateway, Router};
use ordain_log::MemoryDirectory;
use ordain_model::{Digest, Gsn, Registry, Stamp};
use ordain_role::{Address, Directory, Event, NodeId, Rebuild, Role};

use crate::companion::Companion;
use crate::connections::server::VirtualHost;
use crate::faults::Intensity;
use crate::verdict::{Ending, Verdict};

/// The roles of a node, by number.
pub type Roles<M> = Vec<(u16, Box<dyn Role<Message = M>>)>;

/// A place where clients connect, as it is when its node starts.
#[derive(Debug)]
pub struct FrontDoor {
    /// The address for outcomes.
    pub address: Address,
    /// The gateway. No life of a node may number its chunks as another did: outcomes of an earlier one may still come.
    pub gateway: Gateway,
    /// The router.
    pub router: Box<dyn Router>,
}

/// A system under simulation.
pub trait System {
    /// The messages between roles and to front doors. A message crosses nodes as the bytes that it encodes to.
    type Message: Message;

    /// The procedures there are.
    fn registry(&self) -> Arc<Registry>;

    /// Builds the roles of a node from what is on its disk: at its first start, which has incarnation 0, and
    /// again after every crash.
    ///
    /// # Errors
    /// The reason why the node cannot start. That is a violation, unless the disk is full or the node crashed in the
    /// middle of it.
    fn start(
        &mut self,
        node: NodeId,
        incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<Self::Message>, String>;

    /// The disk with which a node begins.
    fn disk(&self, node: NodeId) -> MemoryDirectory {
        let _ = node;
        MemoryDirectory::new()
    }

    /// The companion of a node that has started; none if it has none.
    fn companion(&mut self, node: NodeId, incarnation: u32) -> Option<Box<dyn Companion>> {
        let _ = (node, incarnation);
        None
    }

    /// Front door `n` of a node, in that life of it.
    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor;

    /// The connection servers of a node in that life of it, one for each host: their front doors come before all others. None
    /// if the system has none.
    fn servers(
        &self,
        node: NodeId,
        incarnation: u32,
        hosts: Vec<VirtualHost>,
    ) -> Vec<ConnectionServer<Self::Message, VirtualHost>> {
        let _ = (node, incarnation, hosts);
        Vec::new()
    }

    /// False of a node that has no front door: clients have no business there.
    fn is_server(&self, node: NodeId) -> bool {
        let _ = node;
        true
    }

    /// False if a node that runs takes no connections yet, as it waits for what its disk lacks.
    fn takes_clients(&self, node: NodeId) -> bool {
        let _ = node;
        true
    }

    /// The zone of a node: what is in one zone is cut off together now and then.
    fn zone(&self, node: NodeId) -> u16 {
        let _ = node;
        0
    }

    /// The groups of nodes that elect a leader among them, by whom a log is written. None: the faults of leaders do not
    /// happen.
    fn groups(&self) -> Vec<Vec<NodeId>> {
        Vec::new()
    }

    /// The term in which a node says that it leads a partition; none if it does not say so. `gauge` is as for
    /// [`System::is_ready`].
    fn leads(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> Option<u64> {
        let _ = (node, gauge);
        None
    }

    /// The number of the last entry of its group's log that a node has.
    fn log_reaches(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> u64 {
        let _ = (node, gauge);
        0
    }

    /// The kinds of messages that a leader may stand still behind, before what it sends for one leaves.
    fn pivots(&self) -> &'static [&'static str] {
        &[]
    }

    /// The kind of a message, one of [`System::pivots`]; none if it is of no such kind.
    fn pivot(&self, message: &Self::Message) -> Option<&'static str> {
        let _ = message;
        None
    }

    /// The roles of a node that are sent every change of the streams to other nodes, besides its front doors.
    fn peer_watchers(&self, node: NodeId) -> Vec<u16> {
        let _ = node;
        Vec::new()
    }

    /// Delays and faults in place of those that the seed draws, for a system whose speed is simulated.
    fn intensity(&self) -> Option<Intensity> {
        None
    }

    /// Processor time of a role's step, nanoseconds, for a system whose speed is simulated: steps of a node take its one core
    /// in turns, and a step of 0 takes nothing. None: the seed draws how long steps take. Asked once for each step.
    fn cost_ns(&self, node: NodeId, role: u16, event: &Event<Self::Message>) -> Option<u64> {
        let _ = (node, role, event);
        None
    }

    /// Judges a run by what it has left behind.
    fn check(&mut self, ending: Ending<'_>) -> Verdict;

    /// True if what a client was answered holds over its connections, to whatever node they are. Else a node knows what went over it since it has
    /// started, and the rest by tokens that clients bring along.
    fn sessions_outlast_nodes(&self) -> bool {
        true
    }

    /// True if a node may ever lose its disk.
    fn bears_loss(&self) -> bool {
        false
    }

    /// True if a node that runs may lose its disk now, so that nothing is gone with it that was promised. `gauge` reads
    /// a metric of the roles of a node, unless it is down.
    fn may_lose(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> bool {
        let _ = (node, gauge);
        false
    }

    /// True if a node with an empty directory under its old identity must refuse to run.
    fn refuses_empty(&self) -> bool {
        false
    }

    /// True if a node lacks nothing, so that another one may be stopped. `gauge` reads a metric of the roles of a node, unless
    /// it is down.
    fn is_ready(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> bool {
        let _ = (node, gauge);
        true
    }

    /// True if a node gets from others what it misses. `gauge` is as for [`System::is_ready`].
    fn catches_up(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> bool {
        let _ = (node, gauge);
        false
    }

    /// A node has lost its disk: it starts next with an empty one.
    fn lose(&mut self, node: NodeId) {
        let _ = node;
    }

    /// True if a transaction that was executed since the last call would have ended the process. Called after every step.
    fn has_ended(&mut self) -> bool {
        false
    }

    /// The greeting of a node to every other, sent before all else; none if it is empty.
    fn greeting(&self, node: NodeId, disk: &dyn Directory) -> Vec<u8> {
        let _ = (node, disk);
        Vec::new()
    }

    /// Takes the greeting of another node. True if the node begins again from what it has on disk, which may fail as that is
    /// noted there.
    fn take_aborts(&mut self, node: NodeId, words: &[u8], disk: &mut dyn Directory) -> bool {
        let _ = (node, words, disk);
        false
    }

    /// The aborts of an operator that one node knows and another neither knows nor has come to, by their disks.
    fn missing_aborts(&self, known: &dyn Directory, of: NodeId, disk: &dyn Directory) -> Vec<Gsn> {
        let _ = (known, of, disk);
        Vec::new()
    }

    /// The places of the transactions that nodes had under way when they ended, which an operator finds there.
    fn under_way(&mut self) -> Vec<Gsn> {
        Vec::new()
    }

    /// An operator aborts transactions by their places on a node that does not run.
    ///
    /// # Errors
    /// The reason why that cannot be written down.
    fn abort(&mut self, node: NodeId, places: &[Gsn], disk: &mut dyn Directory) -> Result<(), String> {
        let _ = (node, places, disk);
        Ok(())
    }

    /// Notes that a role of a node, which has stopped, asked for a rebuild: the next start carries it out.
    fn rebuild(&mut self, node: NodeId, how: Rebuild) {
        let _ = (node, how);
    }

    /// The text by which people know where a transaction has taken effect.
    fn place(&self, stamp: Stamp) -> String {
        stamp.to_string()
    }

    /// The digest of the whole state as a node knows it, if the system can tell without a transaction. Asked when
    /// nothing is under way.
    fn digest(&mut self, node: NodeId) -> Option<Digest> {
        let _ = node;
        None
    }
}
