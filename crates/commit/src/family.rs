//! The commit family to those who run its nodes.

use std::sync::Arc;

use ordain_family::{Family, Keep, NodeSettings, Notice, Opened, Roles, places};
use ordain_gateway::{AloneRouter, Gateway, Router, Services};
use ordain_log::{Durability, LogConfig, LogError, LogWriter, Recovered};
use ordain_model::{ChunkNo, Digest, Epoch, GatewayId, Registry};
use ordain_replication::{EntryType, InputLog, LogSettings};
use ordain_role::{Bugs, Directory};

use crate::backend::Committing;
use crate::concurrency::ConcurrencyControl;
use crate::coordinator::Coordinator;
use crate::decision::{Decision, Decisions};
use crate::message::Message;
use crate::participant::Participant;

/// The role number of the coordinator.
const COORDINATOR: u16 = 0;
/// The role number of the log.
const LOG: u16 = 1;

/// An engine of the family.
#[derive(Clone, Copy, Debug)]
pub struct CommitEngine {
    /// The engine's name.
    pub name: &'static str,
    /// Makes the concurrency control of one participant, with the bugs that a test has planted.
    pub control: fn(Bugs) -> Box<dyn ConcurrencyControl>,
}

/// The family, as one of its engines.
#[derive(Clone, Copy, Debug)]
pub struct CommitFamily {
    /// The engine.
    pub engine: CommitEngine,
    /// The services that the engine has.
    pub services: Services,
}

/// The reason why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log is refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The miniature runs on one node.
    #[error("engine {0} is not finished: it runs on one node without replicas; take another engine")]
    Cluster(&'static str),
}

/// The roles of a node.
#[derive(Debug)]
pub struct OpenedNode {
    coordinator: Coordinator,
    log: InputLog<Decisions, Message>,
    participants: Vec<Participant>,
    recovered: Option<Recovered>,
    replayed: u64,
}

impl CommitFamily {
    /// Reads the decisions of a node's log, in order.
    ///
    /// # Errors
    /// The log is refused.
    pub fn decisions(
        directory: &mut dyn Directory,
        settings: &NodeSettings,
    ) -> Result<Vec<Arc<Decision>>, LogError> {
        let mut decisions = Vec::new();
        LogWriter::open(directory, log_config(settings), |entry| {
            decisions.push(Decisions::decode(&(), &entry.payload)?);
            Ok(())
        })?;
        Ok(decisions)
    }
}

fn log_config(settings: &NodeSettings) -> LogConfig {
    LogConfig {
        segment_bytes: settings.segment_bytes,
        durability: if settings.keep == Keep::Fsync { Durability::Fsync } else { Durability::Os },
        bugs: settings.bugs,
        expect_existing: settings.expect_log,
        ..LogConfig::new(settings.identity.clone())
    }
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
        if settings.topology.nodes() > 1 {
            return Err(OpenError::Cluster(self.engine.name));
        }
        let layout = &settings.topology.layout;
        let shards: Vec<_> = (0..layout.shards()).map(|i| settings.at(places::SHARDS + i as u16)).collect();
        let (me, log) = (settings.at(COORDINATOR), settings.at(LOG));
        let mut coordinator =
            Coordinator::new(layout.clone(), registry.clone(), log, shards.clone(), places::GATEWAYS)
                .planting(settings.bugs);
        let participant = |number| {
            Participant::new(
                number,
                layout.clone(),
                me,
                registry.clone(),
                (self.engine.control)(settings.bugs),
            )
            .planting(settings.bugs)
        };
        let mut participants: Vec<Participant> = (0..layout.shards()).map(participant).collect();
        let mut replayed = 0;
        let (mut writer, mut recovered) = (None, None);
        if let Some(directory) = directory.filter(|_| settings.keep != Keep::Nothing) {
            let (opened, found) = LogWriter::open(directory, log_config(settings), |entry| {
                let decision = Decisions::decode(&(), &entry.payload)?;
                coordinator.replay(&decision);
                participants.iter_mut().for_each(|participant| participant.install(&decision));
                replayed += 1;
                Ok(())
            })?;
            (writer, recovered) = (Some(opened), Some(found));
        }
        let log_settings = LogSettings {
            dispatch_early: settings.keep == Keep::Late,
            bugs: settings.bugs,
            ..LogSettings::default()
        };
        // Participants before the coordinator: who is answered asks next.
        let sinks = shards.into_iter().chain([me]).collect();
        let log = InputLog::new(log_settings, writer, me, sinks);
        Ok(OpenedNode { coordinator, log, participants, recovered, replayed })
    }

    fn gateway(&self, settings: &NodeSettings, number: u16, life: u64, registry: &Arc<Registry>) -> Gateway {
        let id = GatewayId::of(settings.node.0, number);
        let place = (settings.topology.replica_of(settings.node).0, settings.partition());
        let layout = settings.topology.layout.clone();
        let gateway = Gateway::new(id, registry.clone(), layout, place, ChunkNo(life));
        gateway.with_backend(Arc::new(Committing(self.services))).in_pieces(settings.piece).without_others()
    }

    fn router(&self, settings: &NodeSettings) -> Box<dyn Router> {
        Box::new(AloneRouter(settings.at(COORDINATOR)))
    }

    fn peer_watchers(&self, _: &NodeSettings) -> Vec<u16> {
        Vec::new()
    }
}

impl Opened for OpenedNode {
    type Message = Message;

    fn into_roles(self) -> Roles<Message> {
        let mut roles: Roles<Message> =
            vec![(COORDINATOR, Box::new(self.coordinator)), (LOG, Box::new(self.log))];
        for (number, participant) in (places::SHARDS..).zip(self.participants) {
            roles.push((number, Box::new(participant)));
        }
        roles
    }

    fn digest(&self) -> Digest {
        self.participants.iter().fold(Digest::default(), |sum, shard| sum.plus(shard.digest()))
    }

    fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    fn begins_after(&self) -> Epoch {
        Epoch(0)
    }

    fn replayed(&self) -> u64 {
        self.replayed
    }

    fn is_waiting(&self) -> bool {
        false
    }

    fn notices(&self) -> Vec<Notice> {
        Vec::new()
    }
}
