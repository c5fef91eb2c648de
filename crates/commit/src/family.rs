//! The commit family to those who run its nodes.

use std::sync::Arc;

use ordain_family::{Family, Keep, NodeSettings};
use ordain_gateway::{Gateway, RelayRouter, Router, Services};
use ordain_model::{Abort, ChunkNo, GatewayId, Options, PartitionId, Registry, StampSource};
use ordain_role::{Bugs, Directory, REGIONS_MAX};

use crate::backend::Committing;
use crate::concurrency::{ConcurrencyControl, Snapshots};
use crate::message::Message;
use crate::opening::{self, OpenError, OpenedNode, has_members};
use crate::options::TS_SOURCE;
use crate::stamps::Stamps;

/// The role number of the manager.
pub(crate) const MANAGER: u16 = 0;
/// The role number of the log.
pub(crate) const LOG: u16 = 1;
/// The role number of the checkpointer, on nodes that keep anything.
pub(crate) const CHECKPOINTER: u16 = 2;
/// The role number of the proxy, which knows how far the views of other regions are.
pub(crate) const PROXY: u16 = 4;
/// The role number of the view of the first region; those of the others follow.
pub(crate) const VIEWS: u16 = 8;
/// The role number of what follows the log of the first region for its view; those of the others follow.
pub(crate) const FOLLOWERS: u16 = VIEWS + REGIONS_MAX;

/// The region that a role of another region's node shows or reads.
pub fn seen_by(role: u16) -> Option<PartitionId> {
    let last = FOLLOWERS + REGIONS_MAX;
    (VIEWS..last).contains(&role).then(|| PartitionId((role - VIEWS) % REGIONS_MAX))
}

/// An engine of the family.
#[derive(Clone, Copy, Debug)]
pub struct CommitEngine {
    /// The engine's name.
    pub name: &'static str,
    /// The reason for which its concurrency control refuses an access.
    pub refusal: Abort,
    /// It is strictly serializable whatever its options are. Else it is serializable in the order of stamps, and
    /// [`CommitEngine::order`] says what else that order is.
    pub is_strict: bool,
    /// Makes the concurrency control of one participant, with the engine's options and the bugs that a test has planted.
    pub control: fn(&Options, Bugs) -> Box<dyn ConcurrencyControl>,
}

/// The order that a serial execution with the same answers keeps, or that of snapshots where there may be no such execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The order of real time.
    RealTime,
    /// The order of stamps, which keeps that of each connection.
    Sessions,
    /// The order of stamps alone: a connection may see its own transactions the other way round.
    Stamps,
    /// Parallel snapshots in the order of sessions.
    Parallel,
    /// Parallel snapshots in the order of sessions. What only reads sees all that was answered before.
    FreshParallel,
}

impl CommitEngine {
    /// The life of the stamps by which its concurrency control decides.
    pub fn stamps(&self) -> Stamps {
        (self.control)(&Options::default(), Bugs::NONE).stamps()
    }

    /// True if the engine decides about attempts when they are to commit.
    pub fn validates(&self) -> bool {
        (self.control)(&Options::default(), Bugs::NONE).validates()
    }

    /// True if a transaction of several regions is validated in two rounds with these options.
    pub fn locks_first(&self, options: &Options) -> bool {
        (self.control)(options, Bugs::NONE).locks_first()
    }

    /// When attempts take their snapshots.
    pub fn snapshots(&self) -> Snapshots {
        (self.control)(&Options::default(), Bugs::NONE).snapshots()
    }

    /// The order that it keeps with these options.
    pub fn order(&self, options: &Options) -> Order {
        match self.snapshots() {
            Snapshots::Never => {}
            Snapshots::AtBegin => return Order::Parallel,
            Snapshots::AtFirstRead => return Order::FreshParallel,
        }
        match options.choice(&TS_SOURCE) {
            _ if self.is_strict => Order::RealTime,
            StampSource::Counter => Order::RealTime,
            StampSource::Hybrid => Order::Sessions,
            StampSource::Clock => Order::Stamps,
        }
    }
}

/// The family, as one of its engines.
#[derive(Clone, Copy, Debug)]
pub struct CommitFamily {
    /// The engine.
    pub engine: CommitEngine,
    /// The services that the engine has.
    pub services: Services,
}

impl Family for CommitFamily {
    type Message = Message;
    type Opened = OpenedNode;
    type Error = OpenError;

    fn open(
        &self,
        directory: Option<&mut dyn Directory>,
        settings: &NodeSettings,
        registry: &Arc<Registry>,
    ) -> Result<OpenedNode, OpenError> {
        opening::open(self, directory, settings, registry)
    }

    fn gateway(&self, settings: &NodeSettings, number: u16, life: u64, registry: &Arc<Registry>) -> Gateway {
        let id = GatewayId::of(settings.node.0, number);
        let place = (settings.topology.replica_of(settings.node).0, settings.partition());
        let layout = settings.topology.layout.clone();
        let gateway = Gateway::new(id, registry.clone(), layout, place, ChunkNo(life));
        // The manager of the node takes everything, and finds out who leads.
        gateway
            .with_backend(Arc::new(Committing {
                services: self.services,
                snapshots: self.engine.snapshots(),
            }))
            .in_pieces(settings.piece)
            .without_others()
    }

    fn router(&self, settings: &NodeSettings) -> Box<dyn Router> {
        Box::new(RelayRouter::new(settings.topology.clone(), settings.at(MANAGER)))
    }

    fn peer_watchers(&self, settings: &NodeSettings) -> Vec<u16> {
        let topology = &settings.topology;
        let is_server = topology.is_server(settings.node);
        let mut watchers = Vec::new();
        if topology.nodes() > 1 && is_server {
            watchers.push(MANAGER);
        }
        if has_members(settings) {
            watchers.push(LOG);
        }
        if topology.nodes() > 1 && settings.keep != Keep::Nothing {
            watchers.push(CHECKPOINTER);
        }
        if topology.has_storage() && is_server {
            watchers.extend(opening::feeders(settings));
        }
        watchers
    }
}
