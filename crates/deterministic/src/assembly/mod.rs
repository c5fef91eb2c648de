//! Builds the roles of a node from what its directory holds. The runtime and the simulator start from here.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::vec;

use crate::options::Knobs;
use crate::sequencing::Opened as OpenedJournal;
use crate::sequencing::{
    Batches, CheckpointSettings, Checkpointer, Counting, Exchange, ExchangeSettings, JournalRecord,
    NeedsCheckpoint, Neighbours, Readers, Sequencer,
};
use crate::shard::{self, LockManager, Scheduling, ShardMessage};
use ordain_checkpoint::{CheckpointError, Found, Header, Item, Totals};
use ordain_family::{Family, Keep, NodeSettings, Opened, Replication, Roles};
use ordain_gateway::{Gateway, ReplicaRouter, Router};
use ordain_log::{Durability, LogConfig, LogError, LogWriter, Recovered, Space, Unopened};
use ordain_model::{
    Batch, CheckpointMode, ChunkNo, Digest, Epoch, GatewayId, Gsn, KeyHash, Layout, Micros, PartitionId,
    Reads, Registry,
};
use ordain_replication::{
    Arrival, ConfigurationEntry, ConfigurationService, ConfigurationServiceSettings, Decisions,
    EntryType as _, GroupError, GroupJournal, GroupLog, GroupSettings, Index, InputLog, LogSettings,
    ShippingSettings, configuration_service_members, resume_after,
};
use ordain_role::{Address, Bug, Directory, DiskError, DiskOp, Role, StartOver, UnderWay};
use ordain_store::MemoryStore;

mod waiting;

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

/// How many batches a sequencer has members agree on at once: what is asked for meanwhile waits for a share of the round
/// trip, and not for the rest of it.
const IN_GROUP: usize = 16;

/// What the names of the files begin with in which the exchange's journal is.
pub const RECEIVE_JOURNAL: &str = "inbox-";

/// What the names of the files begin with in which the configuration service's log is.
pub const CONFIGURATION_SERVICE: &str = "council-";

/// What the names of the files begin with in which the partition's log is.
pub const LOG: &str = "log-";

/// The deterministic family, as one of its engines.
#[derive(Clone, Copy, Debug)]
pub struct Deterministic {
    /// The engine's scheduling of transactions on the records of a shard.
    pub scheduling: Scheduling,
    /// How long after the last read on a snapshot what such reads need is kept.
    pub silence: Micros,
    /// How the shards of a node share what is asked of its partition, if the options say that they do.
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

/// A node of the family: what its roles are made from.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    family: &'a Deterministic,
    settings: &'a NodeSettings,
}

impl Deref for Plan<'_> {
    type Target = NodeSettings;

    fn deref(&self) -> &NodeSettings {
        self.settings
    }
}

impl Plan<'_> {
    /// What the options say.
    fn knobs(&self) -> Knobs {
        Knobs::of(&self.options)
    }

    fn layout(&self) -> &Arc<Layout> {
        &self.topology.layout
    }

    /// The shards of its replica, by number.
    fn shards(&self) -> Vec<Address> {
        let replica = self.topology.replica_of(self.node);
        let partitions = (0..self.layout().partitions()).map(PartitionId);
        let shards = partitions.flat_map(|partition| {
            let node = self.topology.node(replica, partition);
            (0..self.layout().threads() as u16).map(move |i| Address { node, role: places::SHARDS + i })
        });
        shards.collect()
    }

    /// Its own shards.
    fn own_shards(&self) -> Vec<Address> {
        self.shards().into_iter().filter(|shard| shard.node == self.node).collect()
    }

    /// How often it has started over, over all its generations.
    fn incarnation(&self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.started_over)
    }

    fn is_configuration_service_member(&self) -> bool {
        let is_member = || configuration_service_members(&self.topology).contains(&self.node);
        self.replication() == Replication::Async && is_member()
    }

    fn new_configuration_service(
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
            arrival: Arrival { incarnation: self.incarnation(), life: self.life },
            pace: self.configuration_service_pace,
            context: registry.clone(),
        };
        (self.replication() == Replication::Async).then(|| ConfigurationService::new(settings))
    }

    fn configuration_service_log_settings(&self) -> GroupSettings {
        let members = configuration_service_members(&self.topology);
        GroupSettings {
            generation: self.generation,
            message_bytes: self.piece,
            ..GroupSettings::new(self.at(places::CONFIGURATION_SERVICE_LOG), members)
        }
    }

    fn shipping_settings(&self) -> ShippingSettings {
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

    /// Whether there are other partitions.
    fn has_peers(&self) -> bool {
        self.layout().partitions() > 1
    }

    /// Whoever executes what the log has decided.
    fn executors(&self) -> Vec<Address> {
        if self.has_peers() { vec![self.at(places::EXCHANGE)] } else { self.own_shards() }
    }

    /// Whoever hears what the members have agreed on: the sequencer too, which must know what another's held.
    fn group_sinks(&self) -> Vec<Address> {
        let mut sinks = self.executors();
        sinks.push(self.at(places::SEQUENCER));
        sinks
    }

    fn group_settings(&self) -> GroupSettings {
        let members = self.topology.group(self.partition()).collect();
        let message_bytes = self.piece;
        GroupSettings {
            generation: self.generation,
            message_bytes,
            keep_bytes: self.log_keep_bytes,
            ..GroupSettings::new(self.at(places::LOG), members)
        }
    }

    fn log_config(&self) -> LogConfig {
        let synced = self.keep == Keep::Fsync && !self.bugs.has(Bug::SkipSync);
        LogConfig {
            segment_bytes: self.segment_bytes,
            durability: if synced { Durability::Fsync } else { Durability::Os },
            bugs: self.bugs,
            expect_existing: self.expect_log,
            ..LogConfig::new(self.identity.clone())
        }
    }

    fn new_sequencer(&self, registry: &Arc<Registry>) -> Sequencer<ShardMessage> {
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

    fn new_exchange(&self, registry: &Arc<Registry>) -> Option<Exchange<ShardMessage>> {
        let settings = ExchangeSettings {
            topology: self.topology.clone(),
            me: self.at(places::EXCHANGE),
            sequencer: self.at(places::SEQUENCER),
            checkpointer: (self.keep != Keep::Nothing).then_some(self.at(places::CHECKPOINTER)),
            shards: self.own_shards(),
            kept_max: self.kept_max,
            keep_bytes: self.log_keep_bytes,
            piece: self.piece,
            incarnation: (self.replication() == Replication::Async).then(|| self.incarnation()),
            bugs: self.bugs,
        };
        self.has_peers().then(|| Exchange::new(settings, registry.clone()))
    }

    fn new_checkpointer(&self, found: &[Found], refused: &[Refused]) -> Checkpointer<ShardMessage> {
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
            primaries_change: self.replication() == Replication::Async,
        };
        let refused: Vec<Epoch> = refused.iter().map(|refused| refused.epoch).collect();
        Checkpointer::new(settings, found, &refused)
    }

    fn shard_places(&self) -> shard::Places {
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

    fn shard_settings(&self) -> shard::Settings {
        let knobs = self.knobs();
        shard::Settings {
            window: knobs.window,
            isolation: knobs.isolation,
            checkpoints: knobs.checkpoint_mode,
            piece: self.checkpoint_piece,
            // What one partition alone has sealed comes to the same if it counts: all that it rests on does too.
            may_be_lost: self.replication() == Replication::Async && self.has_peers(),
            balance: knobs.balance.then_some(self.family.balance),
            bugs: self.bugs,
            ..shard::Settings::new(self.family.scheduling)
        }
    }

    fn new_lock_manager(&self) -> Option<Box<dyn LockManager>> {
        self.family.scheduling.lock_manager(&self.shard_places(), self.shard_settings())
    }

    fn new_shards(&self, registry: &Arc<Registry>) -> Vec<shard::Shard<MemoryStore>> {
        let (places, settings) = (self.shard_places(), self.shard_settings());
        let stopwatches = self.stopwatches.iter().cloned().map(Some).chain(std::iter::repeat(None));
        let shards = self.layout().shards_of(self.partition()).zip(stopwatches).map(|(number, stopwatch)| {
            let store = MemoryStore::new(self.layout().slots_of_shard(number));
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
        if plan.bugs.has(Bug::ForgetStay) { gateway.forgetting_order() } else { gateway }
    }

    fn router(&self, settings: &NodeSettings) -> Box<dyn Router> {
        Box::new(ReplicaRouter::new(settings.topology.clone(), settings.node, places::SEQUENCER))
    }

    fn hears_of_peers(&self, settings: &NodeSettings) -> Vec<u16> {
        let plan = self.plan(settings);
        let mut hears = Vec::new();
        if plan.replication() != Replication::None {
            hears.extend([places::SEQUENCER, places::LOG]);
        }
        if plan.has_peers() {
            hears.push(places::EXCHANGE);
        }
        if plan.is_configuration_service_member() {
            hears.push(places::CONFIGURATION_SERVICE_LOG);
        }
        if plan.keep != Keep::Nothing && plan.topology.nodes() > 1 {
            hears.push(places::CHECKPOINTER);
        }
        hears
    }
}

impl Opened for Assembly {
    type Message = shard::Message;

    /// Of a node that waits for a checkpoint all roles but the checkpointer do nothing.
    fn into_roles(self) -> Roles<shard::Message> {
        let lacking = self.lacking;
        let mut roles = self.all_roles();
        if let Some(NeedsCheckpoint { needed, .. }) = lacking {
            for (_, role) in roles.iter_mut().filter(|(number, _)| *number != places::CHECKPOINTER) {
                *role = Box::new(waiting::Waiting::new(role.name(), needed));
            }
        }
        roles.sort_by_key(|(number, _)| *number);
        roles
    }

    fn digest(&self) -> Digest {
        self.shards.iter().fold(Digest::default(), |sum, shard| sum.plus(shard.digest()))
    }

    fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    fn begins_after(&self) -> Epoch {
        self.checkpoint.map_or(Epoch(0), |begun| begun.epoch)
    }

    fn replayed(&self) -> u64 {
        self.replayed
    }

    fn is_waiting(&self) -> bool {
        self.lacking.is_some()
    }

    fn notices(&self) -> Vec<(bool, String)> {
        let unusable = |Refused { epoch, reason }: &Refused| {
            (true, format!("checkpoint {epoch} cannot be used, so the one before it is: {reason}"))
        };
        let mut notices: Vec<_> = self.refused.iter().map(unusable).collect();
        if let Some(NeedsCheckpoint { needed, .. }) = self.lacking {
            let text = format!(
                "the log begins after epoch {needed} and no checkpoint here that can be used covers what came before: this \
                 node takes no connections until it has got one of epoch {needed} or later from another node of its \
                 partition"
            );
            notices.push((true, text));
        } else if let Some(Begun { epoch, totals }) = &self.checkpoint {
            notices.push((false, format!("begins from checkpoint {epoch} with {} records", totals.records)));
        }
        notices
    }
}

/// The roles of a node, ready to run.
pub struct Assembly {
    /// The sequencer.
    pub sequencer: Sequencer<ShardMessage>,
    /// The input log.
    pub log: Box<dyn Role<Message = shard::Message>>,
    /// The exchange, where there are other partitions.
    pub exchange: Option<Exchange<ShardMessage>>,
    /// Its part of the configuration service, where input is replicated asynchronously.
    pub configuration_service: Option<ConfigurationService<Batches, shard::Message>>,
    /// The configuration service's log, on its members.
    pub configuration_service_log: Option<GroupLog<Decisions, shard::Message>>,
    /// The checkpointer, on nodes that keep anything.
    pub checkpointer: Option<Checkpointer<ShardMessage>>,
    /// The lock manager, with an engine that has one.
    pub lock_manager: Option<Box<dyn LockManager>>,
    /// The shards, in order.
    pub shards: Vec<shard::Shard<MemoryStore>>,
    /// The checkpoint that the node begins from.
    pub checkpoint: Option<Begun>,
    /// Checkpoints that it could not begin from.
    pub refused: Vec<Refused>,
    /// No checkpoint on the disk covers what comes before the log: the node waits for one of another member, and takes
    /// no part meanwhile.
    pub lacking: Option<NeedsCheckpoint>,
    /// What the log held.
    pub recovered: Option<Recovered>,
    /// How many transactions were replayed.
    pub replayed: u64,
}

/// The checkpoint that a node begins from.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// Its epoch.
    pub epoch: Epoch,
    /// What it held.
    pub totals: Totals,
}

/// A checkpoint that counted as complete and cannot be used.
#[derive(Clone, Debug)]
pub struct Refused {
    /// Its epoch.
    pub epoch: Epoch,
    /// Why.
    pub reason: CheckpointError,
}

/// Why a node cannot be built from its directory.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The log is refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log that members agree on is refused.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The configuration service's log is refused.
    #[error("the configuration service's log (files {CONFIGURATION_SERVICE}*): {0}")]
    ConfigurationService(GroupError),
    /// A primary that forgets what it has sealed would seal something else in its place.
    #[error(
        "replication = \"async\" needs a log: a node that keeps nothing would forget that it was primary: drop --ephemeral"
    )]
    Forgetful,
    /// The journal of what came in is refused.
    #[error("the journal of what came in from other nodes (files {RECEIVE_JOURNAL}*): {0}")]
    ReceiveJournal(LogError),
    /// A checkpoint is not this node's, or not for this program.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The log's first segments are not there.
    #[error(
        "the log begins after epoch {0} and no checkpoint that can be used covers what came before: its first \
         segments were trimmed or lost: restore them, or a checkpoint, from a copy of the data directory"
    )]
    Beginning(Epoch),
    /// What was kept cannot be executed again.
    #[error("{0}")]
    Replay(String),
}

impl Assembly {
    /// Opens the directory's log, replays it, and builds the roles that go on from there. No directory: nothing is
    /// kept.
    ///
    /// # Errors
    /// [`AssemblyError`]; the directory is as it was, but for a torn tail.
    pub fn open(
        directory: Option<&mut dyn Directory>,
        settings: Plan<'_>,
        registry: &Arc<Registry>,
    ) -> Result<Assembly, AssemblyError> {
        let (sequencer, executors) = (settings.at(places::SEQUENCER), settings.executors());
        let alone = InputLog::<Batches, _>::new(LogSettings::default(), None, sequencer, executors.clone());
        let mut assembly = Assembly {
            sequencer: settings.new_sequencer(registry),
            log: Box::new(alone),
            exchange: settings.new_exchange(registry),
            configuration_service: settings.new_configuration_service(registry),
            configuration_service_log: None,
            checkpointer: None,
            lock_manager: settings.new_lock_manager(),
            shards: settings.new_shards(registry),
            checkpoint: None,
            refused: Vec::new(),
            lacking: None,
            recovered: None,
            replayed: 0,
        };
        let replication = settings.replication();
        let Some(directory) = directory.filter(|_| settings.keep != Keep::Nothing) else {
            if replication == Replication::Async {
                return Err(AssemblyError::Forgetful);
            }
            if replication == Replication::Sync {
                let ends = (sequencer, settings.group_sinks());
                assembly.log = Box::new(GroupLog::<Batches, _>::in_memory(
                    settings.group_settings(),
                    registry.clone(),
                    ends,
                )?);
            }
            assembly.begin(None, Epoch(0));
            return Ok(assembly);
        };
        assembly.open_checkpoint(directory, settings, registry)?;
        let begun = assembly.checkpoint.map_or(Epoch(0), |begun| begun.epoch);
        // Before anything is changed, and before anything is executed on a state that is not the one before it.
        if let Some(lacking) = lacking(directory, settings, begun)? {
            if settings.topology.replicas == 1 {
                return Err(AssemblyError::Beginning(lacking.needed));
            }
            assembly.checkpointer = assembly.checkpointer.map(|role| role.needing(lacking));
            assembly.lacking = Some(lacking);
            return Ok(assembly);
        }
        let aborted: Arc<BTreeSet<Gsn>> =
            Arc::new(settings.aborted.iter().map(|stamp| Gsn::from(*stamp)).collect());
        assembly.lock_manager.iter_mut().for_each(|role| role.set_aborted(aborted.clone()));
        let places = settings.under_way.iter().copied().chain(std::iter::repeat(UnderWay::default()));
        let shards = std::mem::take(&mut assembly.shards).into_iter().zip(places);
        assembly.shards =
            shards.map(|(shard, at)| shard.with_aborted(aborted.clone()).with_under_way(at)).collect();
        let mut receive_journal = ReceiveJournal::read(directory, settings, registry, begun)?;
        let mut last = begun;
        let Assembly { sequencer: orders, exchange, lock_manager, shards, replayed, .. } = &mut assembly;
        let lock_manager = lock_manager.as_mut().map(|role| (settings.at(places::LOCK_MANAGER), &mut **role));
        let exchange = exchange.as_mut().map(|exchange| (settings.at(places::EXCHANGE), exchange));
        let mut replay = shard::Replay::new(shards, lock_manager, exchange);
        let mut again = |entry: &[u8]| {
            if Batch::epoch_of(entry).is_some_and(|epoch| epoch <= begun) {
                return Ok(());
            }
            let batch = Arc::new(Batch::decode(registry, entry).map_err(|e| e.to_string())?);
            receive_journal.replay_before(batch.epoch, &mut replay)?;
            last = batch.epoch;
            *replayed += batch.txns().count() as u64;
            orders.replay(&batch);
            replay.batch(batch)
        };
        let log: Box<dyn Role<Message = shard::Message>>;
        let recovered;
        if replication == Replication::Sync {
            let (registry, ends) = (registry.clone(), (sequencer, settings.group_sinks()));
            let (group, found) = GroupLog::<Batches, _>::open(
                directory,
                settings.log_config(),
                GroupSettings {
                    executed: begun,
                    checkpointer: Some(settings.at(places::CHECKPOINTER)),
                    ..settings.group_settings()
                },
                registry,
                ends,
                |_, entry| again(entry),
            )?;
            (log, recovered) = (Box::new(group), found);
        } else {
            let mut index = Index::new(settings.segment_bytes);
            let config = LogConfig { begins_after: begun, ..settings.log_config() };
            let (writer, found) = LogWriter::open_placed(directory, config, |place, entry| {
                index.note_batch(entry.epoch, place, entry.payload.len());
                again(&entry.payload)
            })?;
            index.note_beginning(found.starts_after);
            let log_settings = LogSettings {
                dispatch_early: settings.keep == Keep::Late,
                executed: begun,
                keep_bytes: settings.log_keep_bytes,
                bugs: settings.bugs,
            };
            let has_members = replication == Replication::Async;
            let sinks = if has_members { settings.group_sinks() } else { executors };
            let alone = InputLog::<Batches, _>::new(log_settings, Some(writer), sequencer, sinks);
            let shipping = has_members.then(|| settings.shipping_settings());
            log = match shipping {
                Some(shipping) => Box::new(alone.with_members(shipping, registry.clone(), index)),
                None => Box::new(alone),
            };
            recovered = found;
        }
        receive_journal.replay_before(Epoch(u64::MAX), &mut replay).map_err(AssemblyError::Replay)?;
        if recovered.starts_after > begun {
            return Err(AssemblyError::Beginning(recovered.starts_after));
        }
        // The log was in order, and so is this: only now may anything else be changed.
        let journal = receive_journal.open(directory)?;
        assembly.open_configuration_service(directory, settings)?;
        // Of what members have agreed on, or are shipped, what comes next may be any epoch after the log's last; a node on its
        // own has used some that are not there.
        let sealed = match replication {
            Replication::None => resume_after(last),
            Replication::Sync | Replication::Async => last,
        };
        assembly.log = log;
        assembly.sequencer.resume_after(sealed);
        assembly.recovered = Some(recovered);
        assembly.begin(journal, sealed);
        Ok(assembly)
    }

    /// Begins from the newest complete checkpoint that is what was written, if there is one.
    fn open_checkpoint(
        &mut self,
        directory: &dyn Directory,
        settings: Plan<'_>,
        registry: &Arc<Registry>,
    ) -> Result<(), AssemblyError> {
        let found = ordain_checkpoint::list(directory).map_err(CheckpointError::from)?;
        for epoch in found.iter().rev().filter(|found| found.is_complete()).map(|found| found.epoch) {
            match self.restore(directory, settings, epoch) {
                Ok(totals) => {
                    self.checkpoint = Some(Begun { epoch, totals });
                    self.shards.iter_mut().for_each(|shard| shard.begin_after(epoch));
                    self.exchange.iter_mut().for_each(|exchange| exchange.begin_after(epoch));
                    break;
                }
                // It is sound: to do without it could be to do without all there is.
                Err(
                    error @ (CheckpointError::Version { .. }
                    | CheckpointError::Identity { .. }
                    | CheckpointError::Layout { .. }),
                ) => return Err(error.into()),
                Err(reason) => {
                    self.refused.push(Refused { epoch, reason });
                    self.sequencer = settings.new_sequencer(registry);
                    self.lock_manager = settings.new_lock_manager();
                    self.shards = settings.new_shards(registry);
                }
            }
        }
        self.checkpointer = Some(settings.new_checkpointer(&found, &self.refused));
        Ok(())
    }

    /// Takes all of a checkpoint: each thing to where it belongs now.
    fn restore(
        &mut self,
        directory: &dyn Directory,
        settings: Plan<'_>,
        epoch: Epoch,
    ) -> Result<Totals, CheckpointError> {
        let (mut layout, partition) = (settings.layout().clone(), settings.partition());
        let expected = Header::new(&settings.identity, &layout, partition, epoch);
        let first = layout.shards_of(partition).start;
        let Assembly { sequencer, lock_manager, shards, .. } = self;
        ordain_checkpoint::read(directory, &expected, |item| {
            match item {
                Item::Map(map) => {
                    layout = Arc::new(layout.under(&map));
                    lock_manager.iter_mut().for_each(|role| role.begin_under(&map));
                    shards.iter_mut().for_each(|shard| shard.begin_under(&map));
                }
                Item::Record { db, key, cell, version } => {
                    let owner = layout.shard_of(KeyHash::of_record(db, key).slot());
                    let shard = shards.get_mut(owner.wrapping_sub(first));
                    shard.ok_or("a record of another partition")?.restore(db, key, cell, version);
                }
                Item::Outcome(outcome) => {
                    let shard = shards.get_mut(layout.home_of(outcome.session).wrapping_sub(first));
                    shard.ok_or("a session of another partition")?.restore_outcome(&outcome);
                    sequencer.restore_session(&outcome);
                }
                Item::Input(input) => sequencer.restore(epoch, input)?,
            }
            Ok(())
        })
    }

    /// Opens the configuration service's log, on a member.
    fn open_configuration_service(
        &mut self,
        directory: &mut dyn Directory,
        settings: Plan<'_>,
    ) -> Result<(), AssemblyError> {
        let Some(configuration_service) =
            self.configuration_service.as_mut().filter(|_| settings.is_configuration_service_member())
        else {
            return Ok(());
        };
        let me = settings.at(places::CONFIGURATION_SERVICE);
        let config = LogConfig { expect_existing: false, ..settings.log_config() };
        let visit = |_, entry: &[u8]| configuration_service.replay(&Decisions::decode(&(), entry)?);
        let mut space = Space::new(directory, CONFIGURATION_SERVICE);
        let log_settings = settings.configuration_service_log_settings();
        let opened = GroupLog::<Decisions, _>::open(
            &mut space,
            config,
            log_settings,
            Arc::new(()),
            (me, vec![me]),
            visit,
        );
        let (log, _) = opened.map_err(AssemblyError::ConfigurationService)?;
        self.configuration_service_log = Some(log.in_space(CONFIGURATION_SERVICE));
        Ok(())
    }

    /// What the configuration service has decided, as far as a directory's copy of its log knows; nothing on a node that has none.
    ///
    /// # Errors
    /// [`AssemblyError`].
    pub fn configuration_entries(
        directory: &mut dyn Directory,
        settings: Plan<'_>,
    ) -> Result<Vec<ConfigurationEntry>, AssemblyError> {
        let mut configuration_entries = Vec::new();
        if !settings.is_configuration_service_member() {
            return Ok(configuration_entries);
        }
        let visit = |_, entry: &[u8]| {
            configuration_entries.push(Decisions::decode(&(), entry)?.entry);
            Ok(())
        };
        let (config, ends) = (settings.log_config(), (Address::default(), Vec::new()));
        let config = LogConfig { expect_existing: false, ..config };
        let mut space = Space::new(directory, CONFIGURATION_SERVICE);
        let log_settings = settings.configuration_service_log_settings();
        GroupLog::<Decisions, shard::Message>::open(
            &mut space,
            config,
            log_settings,
            Arc::new(()),
            ends,
            visit,
        )
        .map_err(AssemblyError::ConfigurationService)?;
        Ok(configuration_entries)
    }

    /// The batches that a directory's log holds, in order, and after which epoch it begins; of members, those that it knows to
    /// be agreed on.
    ///
    /// # Errors
    /// [`AssemblyError`].
    pub fn batches(
        directory: &mut dyn Directory,
        settings: Plan<'_>,
        registry: &Arc<Registry>,
    ) -> Result<(Epoch, Vec<Batch>), AssemblyError> {
        let mut batches = Vec::new();
        let mut visit = |entry: &[u8]| {
            batches.push(Batch::decode(registry, entry).map_err(|e| e.to_string())?);
            Ok(())
        };
        let recovered = if settings.replication() == Replication::Sync {
            let ends = (Address::default(), Vec::new());
            let (config, group) = (settings.log_config(), settings.group_settings());
            let visit = |_, entry: &[u8]| visit(entry);
            GroupLog::<Batches, shard::Message>::open(
                directory,
                config,
                group,
                registry.clone(),
                ends,
                visit,
            )?
            .1
        } else {
            LogWriter::open(directory, settings.log_config(), |entry| visit(&entry.payload))?.1
        };
        Ok((recovered.starts_after, batches))
    }

    /// What was to be executed again has been: no batch of this partition up to `sealed` is still to come.
    fn begin(&mut self, receive_journal: Option<OpenedJournal>, sealed: Epoch) {
        match &mut self.exchange {
            Some(exchange) => exchange.begin(receive_journal, sealed),
            None => self.shards.iter_mut().for_each(|shard| shard.resume_after(sealed)),
        }
    }

    fn all_roles(self) -> Vec<(u16, Box<dyn Role<Message = shard::Message>>)> {
        let mut roles: Vec<(u16, Box<dyn Role<Message = shard::Message>>)> =
            vec![(places::SEQUENCER, Box::new(self.sequencer)), (places::LOG, self.log)];
        if let Some(exchange) = self.exchange {
            roles.push((places::EXCHANGE, Box::new(exchange)));
        }
        if let Some(configuration_service) = self.configuration_service {
            roles.push((places::CONFIGURATION_SERVICE, Box::new(configuration_service)));
        }
        if let Some(log) = self.configuration_service_log {
            roles.push((places::CONFIGURATION_SERVICE_LOG, Box::new(log)));
        }
        if let Some(checkpointer) = self.checkpointer {
            roles.push((places::CHECKPOINTER, Box::new(checkpointer)));
        }
        if let Some(lock_manager) = self.lock_manager {
            roles.push((places::LOCK_MANAGER, lock_manager));
        }
        for (i, shard) in self.shards.into_iter().enumerate() {
            roles.push((places::SHARDS + i as u16, Box::new(shard)));
        }
        roles
    }
}

/// What the log of a directory lacks, if it begins after what a node has that begins after `begun`. Changes nothing.
fn lacking(
    directory: &dyn Directory,
    settings: Plan<'_>,
    begun: Epoch,
) -> Result<Option<NeedsCheckpoint>, AssemblyError> {
    if settings.replication() == Replication::Sync {
        let (_, needed) = GroupJournal::of(directory)?.begins_after();
        return Ok((needed > begun).then_some(NeedsCheckpoint { needed, reach: needed }));
    }
    let needed = ordain_log::starts_after(directory).map_err(LogError::from)?.unwrap_or_default();
    if needed <= begun {
        return Ok(None);
    }
    let reach = ordain_log::verify(directory, Some(&settings.identity))?.last_epoch;
    Ok(Some(NeedsCheckpoint { needed, reach }))
}

/// Removes what a node does without that starts over. It may be stopped in the middle and begin again.
///
/// Checkpoints stay: where primaries may change, none is sealed that holds anything that may be lost with one. Of what came
/// in that part stays that counts for certain; which that is the journal says itself, to whoever opens it in the next incarnation.
///
/// # Errors
/// The disk's.
pub fn start_over(directory: &mut dyn Directory, how: StartOver) -> Result<(), DiskError> {
    let is_in_vain = |name: &str| {
        (how.without_receive_journal && name.starts_with(RECEIVE_JOURNAL))
            || (how.without_log && name.starts_with(LOG))
    };
    for (file, _) in directory.list()? {
        if is_in_vain(&file) {
            directory.apply(&DiskOp::Remove { file })?;
        }
    }
    directory.apply(&DiskOp::SyncDirectory)
}

/// What had come in from other nodes, to be taken again in the order in which it came.
#[derive(Default)]
struct ReceiveJournal {
    journal: Option<Unopened>,
    identity: Vec<u8>,
    index: Option<Index>,
    counting: Option<Counting>,
    journal_records: vec::IntoIter<JournalRecord<ShardMessage>>,
}

impl ReceiveJournal {
    /// Reads what came in, and changes nothing.
    fn read(
        directory: &mut dyn Directory,
        settings: Plan<'_>,
        registry: &Registry,
        begun: Epoch,
    ) -> Result<ReceiveJournal, AssemblyError> {
        if !settings.has_peers() {
            return Ok(ReceiveJournal::default());
        }
        let (mut journal_records, mut index) = (Vec::new(), Index::new(settings.segment_bytes));
        let mut counting = Counting::default();
        let space = Space::new(directory, RECEIVE_JOURNAL);
        // Whoever starts over does without it, and keeps its log or not.
        let expect_existing = settings.expect_log && settings.started_over == 0;
        // One that is begun with a checkpoint does not have what came before; nor has one that was trimmed.
        let begins_after = Epoch(u64::from(begun > Epoch(0)));
        let config = LogConfig { expect_existing, begins_after, ..settings.log_config() };
        let journal = Unopened::read(&space, config, |place, entry| {
            let read = Exchange::journal_records(registry, &entry.payload);
            let read = read.ok_or("it does not parse: another version wrote it, or it is damaged")?;
            index.note_entry(entry.epoch, place, entry.payload.len(), JournalRecord::last_epoch(&read));
            counting.note(entry.epoch, read, &mut journal_records);
            Ok(())
        });
        let journal = journal.map_err(AssemblyError::ReceiveJournal)?;
        let primaries_change = settings.replication() == Replication::Async;
        let counting = primaries_change.then(|| {
            if !settings.bugs.has(Bug::KeepUncertain) {
                counting.begin(journal.last_epoch().next(), settings.incarnation(), &mut journal_records);
            }
            counting
        });
        if journal.starts_after() > Epoch(0) {
            index.note_beginning(begun);
        }
        Ok(ReceiveJournal {
            journal: Some(journal),
            identity: settings.identity.clone(),
            index: Some(index),
            counting,
            journal_records: journal_records.into_iter(),
        })
    }

    /// Makes what was read the journal of the exchange, if there is one.
    fn open(self, directory: &mut dyn Directory) -> Result<Option<OpenedJournal>, AssemblyError> {
        let ReceiveJournal { journal: Some(journal), identity, index: Some(index), counting, .. } = self
        else {
            return Ok(None);
        };
        let opened = journal.open(&mut Space::new(directory, RECEIVE_JOURNAL));
        let (writer, _) = opened.map_err(AssemblyError::ReceiveJournal)?;
        Ok(Some(OpenedJournal { writer, prefix: RECEIVE_JOURNAL, identity, index, counting }))
    }

    /// Takes what came of epochs before one; so nothing has to be kept for long that comes before its turn.
    fn replay_before(
        &mut self,
        epoch: Epoch,
        replay: &mut shard::Replay<'_, MemoryStore>,
    ) -> Result<(), String> {
        while let Some(next) = self.journal_records.as_slice().first() {
            if next.opens() >= epoch {
                return Ok(());
            }
            self.journal_records
                .next()
                .map_or(Ok(()), |journal_record| replay.journal_record(journal_record))?;
        }
        Ok(())
    }
}
