//! Builds the roles of a node from what its directory holds. The runtime and the simulator start from here.

use std::sync::Arc;

use crate::shard::{self, Scheduling};
use ordain_family::{Family, Keep, NodeSettings, Replication};
use ordain_gateway::{Gateway, ReplicaRouter, Router};
use ordain_model::{Batch, ChunkNo, GatewayId, Micros, Registry};
use ordain_role::Directory;

mod open;
mod plan;
mod receive_journal;

pub use open::{Assembly, AssemblyError, Begun, Refused, discard};
pub use plan::Plan;

/// The role numbers of a node.
pub mod places {
    pub use ordain_family::places::{GATEWAYS, NETWORK, SHARDS};

    /// The sequencer.
    pub const SEQUENCER: u16 = 0;
    /// The input log.
    pub const LOG: u16 = 1;
    /// The exchange, where there are other partitions.
    pub const EXCHANGE: u16 = 2;
    /// The configuration service's part of a node, where input is replicated asynchronously.
    pub const CONFIGURATION_SERVICE: u16 = 4;
    /// The configuration service's own log, on its members.
    pub const CONFIGURATION_SERVICE_LOG: u16 = 5;
    /// The checkpointer, on nodes that keep anything.
    pub const CHECKPOINTER: u16 = 6;
    /// The lock manager, with an engine that has one.
    pub const LOCK_MANAGER: u16 = 7;
}

/// The checkpointer of a node.
pub type Checkpointer = ordain_replication::Checkpointer<Arc<Batch>, shard::Message>;

/// The first part of the names of the receive journal's files.
pub const RECEIVE_JOURNAL: &str = "inbox-";

/// The first part of the names of the files of the configuration service's log.
pub const CONFIGURATION_SERVICE: &str = "council-";

/// The first part of the names of the files of the partition's log.
pub const LOG: &str = "log-";

/// The deterministic family, as one of its engines.
#[derive(Clone, Copy, Debug)]
pub struct Deterministic {
    /// The engine's scheduling of transactions on the records of a shard.
    pub scheduling: Scheduling,
    /// The time after the last read on a snapshot for which past states are kept.
    pub silence: Micros,
    /// The settings of the balance between the shards of a node, if the options ask for it.
    pub balance: shard::Balance,
}

impl Deterministic {
    /// The family as an engine that schedules like this.
    pub fn new(scheduling: Scheduling) -> Deterministic {
        let silence = crate::sequencing::Settings::default().silence;
        Deterministic { scheduling, silence, balance: shard::Balance::default() }
    }

    /// A node of the engine.
    pub const fn plan<'a>(&'a self, settings: &'a NodeSettings) -> Plan<'a> {
        Plan { family: self, settings }
    }
}

impl Family for Deterministic {
    type Message = shard::Message;
    type Opened = Assembly;
    type Error = AssemblyError;

    fn open(
        &self,
        directory: Option<&mut dyn Directory>,
        settings: &NodeSettings,
        registry: &Arc<Registry>,
    ) -> Result<Assembly, AssemblyError> {
        Assembly::open(directory, self.plan(settings), registry)
    }

    fn gateway(&self, settings: &NodeSettings, number: u16, life: u64, registry: &Arc<Registry>) -> Gateway {
        let plan = self.plan(settings);
        let id = GatewayId::of(plan.node.0, number);
        let place = (plan.topology.replica_of(plan.node).0, plan.partition());
        let gateway = Gateway::new(id, registry.clone(), plan.layout().clone(), place, ChunkNo(life));
        let gateway = gateway.with_reads(plan.knobs().reads).in_pieces(plan.piece);
        let gateway = if plan.topology.nodes() > 1 { gateway } else { gateway.without_others() };
        gateway.planting(plan.bugs)
    }

    fn router(&self, settings: &NodeSettings) -> Box<dyn Router> {
        Box::new(ReplicaRouter::new(settings.topology.clone(), settings.node, places::SEQUENCER))
    }

    fn peer_watchers(&self, settings: &NodeSettings) -> Vec<u16> {
        let plan = self.plan(settings);
        let mut watchers = Vec::new();
        if plan.replication() != Replication::None {
            watchers.extend([places::SEQUENCER, places::LOG]);
        }
        if plan.has_peers() {
            watchers.push(places::EXCHANGE);
        }
        if plan.is_configuration_service_member() {
            watchers.push(places::CONFIGURATION_SERVICE_LOG);
        }
        if plan.keep != Keep::Nothing && plan.topology.nodes() > 1 {
            watchers.push(places::CHECKPOINTER);
        }
        watchers
    }
}
