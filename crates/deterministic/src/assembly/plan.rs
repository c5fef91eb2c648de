//! The plan of a node: every role of the node as its settings have it.

use std::ops::Deref;
use std::sync::Arc;
use std::vec;

use crate::options::Knobs;
use crate::sequencing::{Batches, Beginning, Exchange, ExchangeSettings, Neighbours, Readers, Sequencer};
use crate::shard::{self, LockManager, ShardMessage};
use ordain_checkpoint::Found;
use ordain_execution::TierSettings;
use ordain_family::{Keep, NodeSettings, Replication};
use ordain_model::{CheckpointMode, Epoch, GatewayId, Layout, PartitionId, Reads, Registry};
use ordain_replication::{
    Arrival, CheckpointSettings, ConfigurationService, ConfigurationServiceSettings, GroupSettings,
    ShippingSettings, configuration_service_members,
};
use ordain_role::{Address, Bug};
use ordain_store::MemoryStore;

use super::{Checkpointer, Deterministic, Refused, places};

/// The number of batches that a sequencer has members agree on at once. Requests that come meanwhile wait for a share
/// of the round trip, not for the rest of it.
const IN_GROUP: usize = 16;

/// A node of the family: what its roles are made from.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    pub(super) family: &'a Deterministic,
    pub(super) settings: &'a NodeSettings,
}

impl Deref for Plan<'_> {
    type Target = NodeSettings;

    fn deref(&self) -> &NodeSettings {
        self.settings
    }
}

impl Plan<'_> {
    /// The values of the options.
    pub(super) fn knobs(&self) -> Knobs {
        Knobs::of(&self.options)
    }

    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.topology.layout
    }

    /// The shards of its replica, by number.
    pub(super) fn shards(&self) -> Vec<Address> {
        let replica = self.topology.replica_of(self.node);
        let partitions = (0..self.layout().partitions()).map(PartitionId);
        let shards = partitions.flat_map(|partition| {
            let node = self.topology.node(replica, partition);
            (0..self.layout().threads() as u16).map(move |i| Address { node, role: places::SHARDS + i })
        });
        shards.collect()
    }

    /// The partition's shards on this node.
    pub(super) fn own_shards(&self) -> Vec<Address> {
        self.shards().into_iter().filter(|shard| shard.node == self.node).collect()
    }

    /// The number of rebuilds of the node, over all its generations.
    pub(super) fn incarnation(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.rebuilds)
    }

    /// The knowledge that the node has begun before: its directory has this of it.
    pub(super) fn beginning(&self, found: Beginning) -> Beginning {
        match found {
            Beginning::Begun => found,
            _ if self.incarnation() > 0 => Beginning::Joins,
            // Planted, FOUNDED-ONCE.
            _ if self.bugs.has(Bug::SkipFounding) => Beginning::Begun,
            _ => found,
        }
    }

    /// The node's introduction in this life.
    fn arrival(&self) -> Arrival {
        Arrival { incarnation: self.incarnation(), life: self.life }
    }

    pub(super) fn is_configuration_service_member(&self) -> bool {
        let is_member = || configuration_service_members(&self.topology).contains(&self.node);
        self.replication() == Replication::Async && is_member()
    }

    pub(super) fn new_configuration_service(
        &self,
        registry: &Arc<Registry>,
    ) -> Option<ConfigurationService<Batches, shard::Message>> {
        let settings = ConfigurationServiceSettings {
            topology: self.topology.clone(),
            me: self.at(places::CONFIGURATION_SERVICE),
            configuration_service_log: places::CONFIGURATION_SERVICE_LOG,
            log: places::LOG,
            exchange: self.has_peers().then_some(places::EXCHANGE),
            checkpointer: places::CHECKPOINTER,
            arrival: self.arrival(),
            pace: self.configuration_service_pace,
            context: registry.clone(),
            bugs: self.bugs,
        };
        (self.replication() == Replication::Async).then(|| ConfigurationService::new(settings))
    }

    pub(super) fn configuration_service_log_settings(&self) -> GroupSettings {
        let members = configuration_service_members(&self.topology);
        GroupSettings {
            generation: self.generation,
            message_bytes: self.piece,
            ..GroupSettings::new(self.at(places::CONFIGURATION_SERVICE_LOG), members)
        }
    }

    pub(super) fn shipping_settings(&self) -> ShippingSettings {
        let members = self.topology.group(self.partition()).filter(|node| *node != self.node);
        ShippingSettings {
            me: self.at(places::LOG),
            partition: self.partition(),
            checkpointer: Some(self.at(places::CHECKPOINTER)),
            members: members.collect(),
            identity: self.identity.clone(),
            kept_bytes: self.kept_max,
            piece: self.piece,
        }
    }

    /// Tells whether there are other partitions.
    pub(super) fn has_peers(&self) -> bool {
        self.layout().partitions() > 1
    }

    /// The roles that execute the decided entries of the log.
    pub(super) fn executors(&self) -> Vec<Address> {
        if self.has_peers() { vec![self.at(places::EXCHANGE)] } else { self.own_shards() }
    }

    /// The roles that hear of the members' agreement: the sequencer too, which must know what another's batches held.
    pub(super) fn group_sinks(&self) -> Vec<Address> {
        let mut sinks = self.executors();
        sinks.push(self.at(places::SEQUENCER));
        sinks
    }

    pub(super) fn group_settings(&self) -> GroupSettings {
        let members = self.topology.group(self.partition()).collect();
        let message_bytes = self.piece;
        GroupSettings {
            generation: self.generation,
            message_bytes,
            keep_bytes: self.log_keep_bytes,
            bugs: self.bugs,
            ..GroupSettings::new(self.at(places::LOG), members)
        }
    }

    pub(super) fn new_sequencer(&self, registry: &Arc<Registry>) -> Sequencer<ShardMessage> {
        let knobs = self.knobs();
        let settings = crate::sequencing::Settings {
            partition: self.partition(),
            layout: self.layout().version(),
            in_log_max: if self.replication() == Replication::Sync { IN_GROUP } else { 1 },
            snapshots: knobs.reads != Reads::Ordered,
            linger: knobs.linger,
            // The one that is executed counts too.
            lag_max: knobs.plan_ahead + 1,
            piece: self.piece,
            checkpoint_turns: match knobs.checkpoint_mode {
                CheckpointMode::Naive => self.topology.replicas,
                CheckpointMode::Multiversion | CheckpointMode::ZigZag => 1,
            },
            execution: knobs.execution,
            cascade: knobs.cascade,
            bugs: self.bugs,
            silence: self.family.silence,
            checkpoint_bytes: self.checkpoint_bytes,
            ..crate::sequencing::Settings::default()
        };
        let neighbours = Neighbours {
            me: self.at(places::SEQUENCER),
            log: self.at(places::LOG),
            executors: self.executors(),
            exchange: self.has_peers().then(|| self.at(places::EXCHANGE)),
            gateways: places::GATEWAYS,
            readers: Readers { layout: self.layout().clone(), shards: self.shards() },
        };
        Sequencer::new(settings, registry.clone(), neighbours, self.replication() != Replication::None)
    }

    pub(super) fn new_exchange(&self, registry: &Arc<Registry>) -> Option<Exchange<ShardMessage>> {
        let settings = ExchangeSettings {
            topology: self.topology.clone(),
            me: self.at(places::EXCHANGE),
            sequencer: self.at(places::SEQUENCER),
            checkpointer: (self.keep != Keep::Nothing).then_some(self.at(places::CHECKPOINTER)),
            shards: self.own_shards(),
            kept_max: self.kept_max,
            keep_bytes: self.log_keep_bytes,
            piece: self.piece,
            arrival: (self.replication() == Replication::Async).then(|| self.arrival()),
            bugs: self.bugs,
        };
        self.has_peers().then(|| Exchange::new(settings, registry.clone()))
    }

    pub(super) fn new_checkpointer(&self, found: &[Found], refused: &[Refused]) -> Checkpointer {
        let settings = CheckpointSettings {
            topology: self.topology.clone(),
            me: self.at(places::CHECKPOINTER),
            sequencer: self.at(places::SEQUENCER),
            exchange: self.has_peers().then_some(self.at(places::EXCHANGE)),
            shards: self.own_shards(),
            log: self.at(places::LOG),
            trims: self.trims,
            identity: self.identity.clone(),
            keep: self.checkpoints_kept,
            piece: self.piece,
            only_copies: false,
            seals_alone: false,
            primaries_change: self.replication() == Replication::Async,
            bugs: self.bugs,
        };
        let refused: Vec<Epoch> = refused.iter().map(|refused| refused.epoch).collect();
        Checkpointer::new(settings, found, &refused)
    }

    pub(super) fn shard_places(&self) -> shard::Places {
        let gateways = (0..self.gateways as u16)
            .map(|i| (GatewayId::of(self.node.0, i), self.at(places::GATEWAYS + i)))
            .collect();
        shard::Places {
            layout: self.layout().clone(),
            replica: self.topology.replica_of(self.node).0,
            replicas: self.topology.replicas,
            shards: self.shards(),
            sequencer: self.at(places::SEQUENCER),
            lock_manager: self.family.scheduling.has_lock_manager().then(|| self.at(places::LOCK_MANAGER)),
            exchange: self.has_peers().then(|| self.at(places::EXCHANGE)),
            gateways,
            first_gateway: places::GATEWAYS,
        }
    }

    pub(super) fn shard_settings(&self) -> shard::Settings {
        let knobs = self.knobs();
        shard::Settings {
            window: knobs.window,
            isolation: knobs.isolation,
            checkpoints: knobs.checkpoint_mode,
            piece: self.checkpoint_piece,
            // A batch that one partition alone has sealed has the same effects if it counts: all that it rests on
            // counts too.
            may_be_lost: self.replication() == Replication::Async && self.has_peers(),
            balance: knobs.balance.then_some(self.family.balance),
            values: self.memory_budget.map(|bytes| {
                let shards = self.layout().shards_of(self.partition()).len() as u64;
                TierSettings::within(bytes / shards, self.evicted_above)
            }),
            bugs: self.bugs,
            ..shard::Settings::new(self.family.scheduling)
        }
    }

    pub(super) fn new_lock_manager(&self) -> Option<Box<dyn LockManager>> {
        self.family.scheduling.lock_manager(&self.shard_places(), self.shard_settings())
    }

    pub(super) fn new_shards(&self, registry: &Arc<Registry>) -> Vec<shard::Shard<MemoryStore>> {
        let (places, settings) = (self.shard_places(), self.shard_settings());
        let stopwatches = self.stopwatches.iter().cloned().map(Some).chain(std::iter::repeat(None));
        let shards = self.layout().shards_of(self.partition()).zip(stopwatches).map(|(number, stopwatch)| {
            let layout = self.layout();
            let store = MemoryStore::placed(layout.slots_of_shard(number), layout.placement().clone());
            let role = self.shards()[number].role;
            // Members that agree on every batch before they execute it execute the same; a primary may have executed what
            // is lost with it.
            let agrees = self.replication() == Replication::Sync;
            let members = self.topology.group(self.partition()).filter(|node| agrees && *node != self.node);
            let shard = shard::Shard::new(number, places.clone(), settings, registry.clone(), store)
                .with_computations(self.computations.clone())
                .with_members(members.map(|node| Address { node, role }).collect());
            let shard = match stopwatch {
                Some(stopwatch) => shard.with_stopwatch(stopwatch),
                None => shard,
            };
            match self.keep {
                Keep::Nothing => shard,
                _ => shard.with_checkpointer(self.at(places::CHECKPOINTER)),
            }
        });
        shards.collect()
    }
}
