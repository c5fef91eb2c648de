//! Builds the roles of a node from what its directory holds. The runtime and the simulator start from here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::vec;

use ordain_engines::calvin::{self, ShardMessage};
use ordain_gateway::Gateway;
use ordain_log::{Durability, LogConfig, LogError, LogWriter, Recovered, Space};
use ordain_model::{Batch, ChunkNo, Digest, Epoch, GatewayId, Layout, PartitionId, Registry};
use ordain_role::{Address, Bug, Bugs, Directory, NodeId, Role, Topology};
use ordain_sequencer::{
    Courier, CourierSettings, Entrance, GroupError, GroupLog, GroupSettings, Index, InputLog, LogSettings,
    Neighbours, Opened, Sequencer,
};
use ordain_store::MemoryStore;

/// The role numbers of a node.
pub mod places {
    /// The sequencer.
    pub const SEQUENCER: u16 = 0;
    /// The input log.
    pub const LOG: u16 = 1;
    /// The courier, where there are other partitions.
    pub const COURIER: u16 = 2;
    /// The network edge, where there are other nodes.
    pub const NETWORK: u16 = 3;
    /// The first shard.
    pub const SHARDS: u16 = 16;
    /// The first gateway.
    pub const GATEWAYS: u16 = 256;
}

/// What the names of the files begin with in which the courier's journal is.
pub const INBOX: &str = "inbox-";

/// What a node keeps, and when it has kept it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keep {
    /// An acknowledged write survives the loss of power.
    #[default]
    Fsync,
    /// An acknowledged write survives the death of the process.
    Os,
    /// Writes reach the log some time after they are acknowledged.
    Late,
    /// Nothing is kept.
    Nothing,
}

/// How a node is set up.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Its number.
    pub node: NodeId,
    /// The cluster that it belongs to.
    pub topology: Topology,
    /// How many gateways it has.
    pub gateways: usize,
    /// What is kept.
    pub keep: Keep,
    /// Whose log it is.
    pub identity: Vec<u8>,
    /// There was a log before: a directory without one has lost it.
    pub expect_log: bool,
    /// In which generation it is: a node that comes back without what it had on disk comes in a larger one.
    pub generation: u32,
    /// Length of a log segment, bytes.
    pub segment_bytes: u64,
    /// The sequencer's knobs.
    pub sequencer: ordain_sequencer::Settings,
    /// How much its courier keeps for the nodes of a partition that are behind, bytes.
    pub kept_max: usize,
    /// About how many bytes are sent again at once, by its courier or its log.
    pub piece: usize,
    /// Most transactions under way in a shard.
    pub window: usize,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            node: NodeId(0),
            topology: Topology::single(1),
            gateways: 1,
            keep: Keep::Fsync,
            identity: Vec::new(),
            expect_log: false,
            generation: 0,
            segment_bytes: 64 << 20,
            sequencer: ordain_sequencer::Settings::default(),
            kept_max: 256 << 20,
            piece: 1 << 20,
            window: 2000,
            bugs: Bugs::NONE,
        }
    }
}

impl NodeSettings {
    /// A role of the node.
    pub fn at(&self, role: u16) -> Address {
        Address { node: self.node, role }
    }

    /// Which partition it holds.
    pub fn partition(&self) -> PartitionId {
        self.topology.partition_of(self.node)
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

    /// Whether there are other partitions.
    fn has_peers(&self) -> bool {
        self.layout().partitions() > 1
    }

    /// Whoever executes what the log has decided.
    fn executors(&self) -> Vec<Address> {
        if self.has_peers() { vec![self.at(places::COURIER)] } else { self.own_shards() }
    }

    /// Whoever hears what the twins have agreed on: the sequencer too, which must know what another's held.
    fn group_sinks(&self) -> Vec<Address> {
        let mut sinks = self.executors();
        sinks.push(self.at(places::SEQUENCER));
        sinks
    }

    fn group_settings(&self) -> GroupSettings {
        let twins = self.topology.group(self.partition()).collect();
        let message_bytes = self.piece;
        GroupSettings {
            generation: self.generation,
            message_bytes,
            ..GroupSettings::new(self.at(places::LOG), twins)
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

    /// A gateway of the node. `life` is a number that grows from one start of the node to the next, by more than the
    /// chunks that were submitted between them.
    pub fn new_gateway(&self, number: u16, life: u64, registry: &Arc<Registry>) -> Gateway {
        let id = GatewayId::of(self.node.0, number);
        if self.topology.nodes() == 1 {
            return Gateway::new(id, registry.clone());
        }
        let place = (self.topology.replica_of(self.node).0, self.partition());
        Gateway::in_cluster(id, registry.clone(), self.layout().clone(), place, ChunkNo(life))
    }

    fn new_sequencer(&self, registry: &Arc<Registry>) -> Sequencer<ShardMessage> {
        let settings = ordain_sequencer::Settings {
            partition: self.partition(),
            layout: self.layout().version(),
            bugs: self.bugs,
            ..self.sequencer.clone()
        };
        let neighbours = Neighbours {
            me: self.at(places::SEQUENCER),
            log: self.at(places::LOG),
            executors: self.executors(),
            courier: self.has_peers().then(|| self.at(places::COURIER)),
            gateways: places::GATEWAYS,
        };
        Sequencer::new(settings, registry.clone(), neighbours, self.topology.replicas > 1)
    }

    fn new_courier(&self, registry: &Arc<Registry>) -> Option<Courier<ShardMessage>> {
        let settings = CourierSettings {
            topology: self.topology.clone(),
            me: self.at(places::COURIER),
            sequencer: self.at(places::SEQUENCER),
            shards: self.own_shards(),
            kept_max: self.kept_max,
            piece: self.piece,
            bugs: self.bugs,
        };
        self.has_peers().then(|| Courier::new(settings, registry.clone()))
    }

    fn new_shards(&self, registry: &Arc<Registry>) -> Vec<calvin::Shard<MemoryStore>> {
        let gateways: BTreeMap<GatewayId, Address> = (0..self.gateways as u16)
            .map(|i| (GatewayId::of(self.node.0, i), self.at(places::GATEWAYS + i)))
            .collect();
        let shards = self.layout().shards_of(self.partition()).map(|number| {
            let places = calvin::Places {
                layout: self.layout().clone(),
                replica: self.topology.replica_of(self.node).0,
                shards: self.shards(),
                sequencer: self.at(places::SEQUENCER),
                post: self.has_peers().then(|| self.at(places::COURIER)),
                gateways: gateways.clone(),
                doors: places::GATEWAYS,
            };
            let settings = calvin::Settings { window: self.window, bugs: self.bugs };
            let store = MemoryStore::new(self.layout().slots_of_shard(number));
            let role = self.shards()[number].role;
            let twins = self.topology.group(self.partition()).filter(|node| *node != self.node);
            calvin::Shard::new(number, places, settings, registry.clone(), store)
                .with_twins(twins.map(|node| Address { node, role }).collect())
        });
        shards.collect()
    }
}

/// The roles of a node, ready to run.
pub struct Assembly {
    /// The sequencer.
    pub sequencer: Sequencer<ShardMessage>,
    /// The input log.
    pub log: Box<dyn Role<Message = calvin::Message>>,
    /// The courier, where there are other partitions.
    pub courier: Option<Courier<ShardMessage>>,
    /// The shards, in order.
    pub shards: Vec<calvin::Shard<MemoryStore>>,
    /// What the log held.
    pub recovered: Option<Recovered>,
    /// How many transactions were replayed.
    pub replayed: u64,
}

/// Why a node cannot be built from its directory.
#[derive(Debug, thiserror::Error)]
pub enum AssemblyError {
    /// The log is refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log that twins agree on is refused.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The journal of what came in is refused.
    #[error("the journal of what came in from other nodes (files {INBOX}*): {0}")]
    Inbox(LogError),
    /// The log's first segments are not there.
    #[error(
        "the log begins after epoch {0} and no checkpoint covers what came before: its first segments were \
         trimmed or lost: restore them from a copy of the data directory"
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
        settings: &NodeSettings,
        registry: &Arc<Registry>,
    ) -> Result<Assembly, AssemblyError> {
        let (sequencer, executors) = (settings.at(places::SEQUENCER), settings.executors());
        let alone = InputLog::new(LogSettings::default(), None, sequencer, executors.clone());
        let mut assembly = Assembly {
            sequencer: settings.new_sequencer(registry),
            log: Box::new(alone),
            courier: settings.new_courier(registry),
            shards: settings.new_shards(registry),
            recovered: None,
            replayed: 0,
        };
        let has_twins = settings.topology.replicas > 1;
        let Some(directory) = directory.filter(|_| settings.keep != Keep::Nothing) else {
            if has_twins {
                let ends = (sequencer, settings.group_sinks());
                assembly.log =
                    Box::new(GroupLog::in_memory(settings.group_settings(), registry.clone(), ends)?);
            }
            assembly.begin(None, Epoch(0));
            return Ok(assembly);
        };
        let mut inbox = Inbox::open(directory, settings, registry)?;
        let mut last = Epoch(0);
        let Assembly { sequencer: orders, courier, shards, replayed, .. } = &mut assembly;
        let courier = courier.as_mut().map(|courier| (settings.at(places::COURIER), courier));
        let mut replay = calvin::Replay::new(shards, courier);
        let mut again = |entry: &[u8]| {
            let batch = Arc::new(Batch::decode(registry, entry).map_err(|e| e.to_string())?);
            inbox.replay_before(batch.epoch, &mut replay)?;
            last = batch.epoch;
            *replayed += batch.txns().count() as u64;
            orders.replay(&batch);
            replay.batch(batch)
        };
        let log: Box<dyn Role<Message = calvin::Message>>;
        let recovered;
        if has_twins {
            let (registry, ends) = (registry.clone(), (sequencer, settings.group_sinks()));
            let (group, found) = GroupLog::open(
                directory,
                settings.log_config(),
                settings.group_settings(),
                registry,
                ends,
                &mut again,
            )?;
            (log, recovered) = (Box::new(group), found);
        } else {
            let (writer, found) =
                LogWriter::open(directory, settings.log_config(), |entry| again(&entry.payload))?;
            let log_settings =
                LogSettings { dispatch_early: settings.keep == Keep::Late, bugs: settings.bugs };
            log = Box::new(InputLog::new(log_settings, Some(writer), sequencer, executors));
            recovered = found;
        }
        inbox.replay_before(Epoch(u64::MAX), &mut replay).map_err(AssemblyError::Replay)?;
        if recovered.starts_after > Epoch(0) {
            return Err(AssemblyError::Beginning(recovered.starts_after));
        }
        // What twins have agreed on has all its epochs in the log; a node on its own has used some that are not there.
        let sealed = if has_twins { last } else { InputLog::<ShardMessage>::resume_after(last) };
        assembly.log = log;
        assembly.sequencer.resume_after(sealed);
        assembly.recovered = Some(recovered);
        assembly.begin(inbox.journal, sealed);
        Ok(assembly)
    }

    /// The batches that a directory's log holds, in order; of twins, those that it knows to be agreed on.
    ///
    /// # Errors
    /// [`AssemblyError`].
    pub fn batches(
        directory: &mut dyn Directory,
        settings: &NodeSettings,
        registry: &Arc<Registry>,
    ) -> Result<Vec<Batch>, AssemblyError> {
        let mut batches = Vec::new();
        let mut visit = |entry: &[u8]| {
            batches.push(Batch::decode(registry, entry).map_err(|e| e.to_string())?);
            Ok(())
        };
        if settings.topology.replicas > 1 {
            let ends = (Address::default(), Vec::new());
            let (config, group) = (settings.log_config(), settings.group_settings());
            GroupLog::<ShardMessage>::open(directory, config, group, registry.clone(), ends, visit)?;
        } else {
            LogWriter::open(directory, settings.log_config(), |entry| visit(&entry.payload))?;
        }
        Ok(batches)
    }

    /// What was to be executed again has been: no batch of this partition up to `sealed` is still to come.
    fn begin(&mut self, inbox: Option<Opened>, sealed: Epoch) {
        match &mut self.courier {
            Some(courier) => courier.begin(inbox, sealed),
            None => self.shards.iter_mut().for_each(|shard| shard.resume_after(sealed)),
        }
    }

    /// The digest of what is here.
    pub fn digest(&self) -> Digest {
        self.shards.iter().fold(Digest::default(), |sum, shard| sum.plus(shard.digest()))
    }

    /// The roles with their numbers: for a driver that runs all of them in one place.
    pub fn into_roles(self) -> Vec<(u16, Box<dyn Role<Message = calvin::Message>>)> {
        let mut roles: Vec<(u16, Box<dyn Role<Message = calvin::Message>>)> =
            vec![(places::SEQUENCER, Box::new(self.sequencer)), (places::LOG, self.log)];
        if let Some(courier) = self.courier {
            roles.push((places::COURIER, Box::new(courier)));
        }
        for (i, shard) in self.shards.into_iter().enumerate() {
            roles.push((places::SHARDS + i as u16, Box::new(shard)));
        }
        roles
    }
}

/// What had come in from other nodes, to be taken again in the order in which it came.
#[derive(Default)]
struct Inbox {
    journal: Option<Opened>,
    entrances: vec::IntoIter<Entrance<ShardMessage>>,
}

impl Inbox {
    fn open(
        directory: &mut dyn Directory,
        settings: &NodeSettings,
        registry: &Registry,
    ) -> Result<Inbox, AssemblyError> {
        if !settings.has_peers() {
            return Ok(Inbox::default());
        }
        let (mut entrances, mut index) = (Vec::new(), Index::default());
        let mut space = Space::new(directory, INBOX);
        let opened = LogWriter::open_placed(&mut space, settings.log_config(), |place, entry| {
            let read = Courier::entrances(registry, &entry.payload);
            let read = read.ok_or("it does not parse: another version wrote it, or it is damaged")?;
            index.note(entry.epoch, place, entry.payload.len(), &read);
            entrances.extend(read);
            Ok(())
        });
        let (writer, _) = opened.map_err(AssemblyError::Inbox)?;
        let journal = Opened { writer, prefix: INBOX, identity: settings.identity.clone(), index };
        Ok(Inbox { journal: Some(journal), entrances: entrances.into_iter() })
    }

    /// Takes what came of epochs before one; so nothing has to be kept for long that comes before its turn.
    fn replay_before(
        &mut self,
        epoch: Epoch,
        replay: &mut calvin::Replay<'_, MemoryStore>,
    ) -> Result<(), String> {
        while let Some(next) = self.entrances.as_slice().first() {
            if next.opens() >= epoch {
                return Ok(());
            }
            self.entrances.next().map_or(Ok(()), |entrance| replay.entrance(entrance))?;
        }
        Ok(())
    }
}
