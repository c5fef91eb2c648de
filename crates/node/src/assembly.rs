//! Builds the roles of a node from what its directory holds. The runtime and the simulator start from here.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_engines::calvin;
use ordain_log::{Durability, LogConfig, LogError, LogWriter, Recovered};
use ordain_model::key::{SLOTS, shard_of_slot};
use ordain_model::{Batch, Digest, Epoch, GatewayId, Registry};
use ordain_role::{Address, Bug, Bugs, Directory, NodeId, Role};
use ordain_sequencer::{InputLog, LogSettings, Neighbours, Sequencer};
use ordain_store::MemoryStore;

/// The role numbers of a node.
pub mod places {
    /// The sequencer.
    pub const SEQUENCER: u16 = 0;
    /// The input log.
    pub const LOG: u16 = 1;
    /// The first shard.
    pub const SHARDS: u16 = 16;
    /// The first gateway.
    pub const GATEWAYS: u16 = 128;
}

/// The most shards that a node can have.
pub const MAX_SHARDS: usize = 64;

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
    /// How many shards its partition is divided in: one a core.
    pub shards: usize,
    /// How many gateways it has.
    pub gateways: usize,
    /// What is kept.
    pub keep: Keep,
    /// Whose log it is.
    pub identity: Vec<u8>,
    /// There was a log before: a directory without one has lost it.
    pub expect_log: bool,
    /// Length of a log segment, bytes.
    pub segment_bytes: u64,
    /// The sequencer's knobs.
    pub sequencer: ordain_sequencer::Settings,
    /// Most transactions under way in a shard.
    pub window: usize,
    /// Bugs that a test has planted.
    pub bugs: Bugs,
}

impl Default for NodeSettings {
    fn default() -> Self {
        NodeSettings {
            node: NodeId(0),
            shards: 1,
            gateways: 1,
            keep: Keep::Fsync,
            identity: Vec::new(),
            expect_log: false,
            segment_bytes: 64 << 20,
            sequencer: ordain_sequencer::Settings::default(),
            window: 2000,
            bugs: Bugs::NONE,
        }
    }
}

/// The roles of a node, ready to run.
#[derive(Debug)]
pub struct Assembly {
    /// The sequencer.
    pub sequencer: Sequencer<calvin::ShardMessage>,
    /// The input log.
    pub log: InputLog<calvin::ShardMessage>,
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
    /// The log's first segments are not there.
    #[error(
        "the log begins after epoch {0} and no checkpoint covers what came before: its first segments were \
         trimmed or lost: restore them from a copy of the data directory"
    )]
    Beginning(Epoch),
    /// The settings cannot be.
    #[error("a node has 1 to {MAX_SHARDS} shards, not {0}: choose --threads accordingly")]
    Shards(usize),
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
        if settings.shards == 0 || settings.shards > MAX_SHARDS {
            return Err(AssemblyError::Shards(settings.shards));
        }
        let at = |role| Address { node: settings.node, role };
        let shards: Vec<Address> = (0..settings.shards as u16).map(|i| at(places::SHARDS + i)).collect();
        let gateways: BTreeMap<GatewayId, Address> = (0..settings.gateways as u16)
            .map(|i| (GatewayId::of(settings.node.0, i), at(places::GATEWAYS + i)))
            .collect();
        let sequencer = at(places::SEQUENCER);
        let shard_settings = calvin::Settings { window: settings.window, bugs: settings.bugs };
        let mut assembly = Assembly {
            sequencer: Sequencer::new(
                ordain_sequencer::Settings { bugs: settings.bugs, ..settings.sequencer.clone() },
                registry.clone(),
                Neighbours {
                    me: sequencer,
                    log: at(places::LOG),
                    executors: shards.clone(),
                    courier: None,
                    gateways: places::GATEWAYS,
                },
                false,
            ),
            log: InputLog::new(LogSettings::default(), None, sequencer, shards.clone()),
            shards: (0..settings.shards)
                .map(|number| {
                    let places =
                        calvin::Places { shards: shards.clone(), sequencer, gateways: gateways.clone() };
                    let store = MemoryStore::new(slots_of(number, settings.shards));
                    calvin::Shard::new(number, places, shard_settings, registry.clone(), store)
                })
                .collect(),
            recovered: None,
            replayed: 0,
        };
        if let (Some(directory), true) = (directory, settings.keep != Keep::Nothing) {
            let config = LogConfig {
                segment_bytes: settings.segment_bytes,
                durability: if settings.keep == Keep::Fsync && !settings.bugs.has(Bug::SkipSync) {
                    Durability::Fsync
                } else {
                    Durability::Os
                },
                bugs: settings.bugs,
                expect_existing: settings.expect_log,
                ..LogConfig::new(settings.identity.clone())
            };
            let mut last = Epoch(0);
            let (writer, recovered) = LogWriter::open(directory, config, |entry| {
                let batch = Arc::new(Batch::decode(registry, &entry.payload).map_err(|e| e.to_string())?);
                if batch.epoch != entry.epoch {
                    return Err(format!("it holds a batch of epoch {}", batch.epoch));
                }
                last = batch.epoch;
                assembly.replayed += batch.txns().count() as u64;
                assembly.sequencer.replay(&batch);
                calvin::replay(&mut assembly.shards, batch)
            })?;
            if recovered.starts_after > Epoch(0) {
                return Err(AssemblyError::Beginning(recovered.starts_after));
            }
            let log_settings =
                LogSettings { dispatch_early: settings.keep == Keep::Late, bugs: settings.bugs };
            assembly.log = InputLog::new(log_settings, Some(writer), sequencer, shards);
            let resumed = InputLog::<calvin::ShardMessage>::resume_after(last);
            assembly.sequencer.resume_after(resumed);
            assembly.shards.iter_mut().for_each(|shard| shard.resume_after(resumed));
            assembly.recovered = Some(recovered);
        }
        Ok(assembly)
    }

    /// The digest of the state.
    pub fn digest(&self) -> Digest {
        self.shards.iter().fold(Digest::default(), |sum, shard| sum.plus(shard.digest()))
    }

    /// The roles with their numbers: for a driver that runs all of them in one place.
    pub fn into_roles(self) -> Vec<(u16, Box<dyn Role<Message = calvin::Message>>)> {
        let mut roles: Vec<(u16, Box<dyn Role<Message = calvin::Message>>)> =
            vec![(places::SEQUENCER, Box::new(self.sequencer)), (places::LOG, Box::new(self.log))];
        for (i, shard) in self.shards.into_iter().enumerate() {
            roles.push((places::SHARDS + i as u16, Box::new(shard)));
        }
        roles
    }
}

/// The slots of a shard.
fn slots_of(number: usize, shards: usize) -> std::ops::Range<usize> {
    let first = (0..SLOTS).find(|slot| shard_of_slot(*slot, shards) == number).unwrap_or(SLOTS);
    let end = (first..SLOTS).find(|slot| shard_of_slot(*slot, shards) != number).unwrap_or(SLOTS);
    first..end
}
