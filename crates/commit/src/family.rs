//! The commit family to those who run its nodes.

use std::sync::Arc;

use ordain_family::{Family, Keep, NodeSettings, Notice, Opened, Roles, places};
use ordain_gateway::{Gateway, RelayRouter, Router, Services};
use ordain_log::{Durability, LogConfig, LogError, LogWriter, Recovered};
use ordain_model::{Abort, ChunkNo, Digest, Epoch, GatewayId, Registry};
use ordain_replication::{EntryType, GroupError, GroupLog, GroupSettings, InputLog, LogSettings};
use ordain_role::{Address, Bug, Bugs, Directory, Role};

use crate::backend::Committing;
use crate::concurrency::ConcurrencyControl;
use crate::desk::Site;
use crate::entry::{Entries, Entry};
use crate::manager::Manager;
use crate::message::Message;
use crate::options::BACKOFF;
use crate::participant::Participant;

/// The role number of the manager.
const MANAGER: u16 = 0;
/// The role number of the log.
const LOG: u16 = 1;

/// An engine of the family.
#[derive(Clone, Copy, Debug)]
pub struct CommitEngine {
    /// The engine's name.
    pub name: &'static str,
    /// The reason for which its concurrency control refuses an access.
    pub refusal: Abort,
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
    /// The log that members agree on is refused.
    #[error(transparent)]
    Group(#[from] GroupError),
}

/// The roles of a node.
pub struct OpenedNode {
    manager: Manager,
    log: Box<dyn Role<Message = Message>>,
    participants: Vec<Participant>,
    recovered: Option<Recovered>,
    replayed: u64,
}

/// The roles of a node while its log is read.
struct Replay {
    manager: Manager,
    participants: Vec<Participant>,
    replayed: u64,
}

impl Replay {
    fn apply(&mut self, entry: &Arc<Entry>) -> Result<(), String> {
        self.manager.replay(entry)?;
        self.participants.iter_mut().for_each(|participant| _ = participant.apply(entry));
        self.replayed += 1;
        Ok(())
    }
}

impl CommitFamily {
    /// The entries of a node's log, in order, as far as it knows them to be agreed on.
    ///
    /// # Errors
    /// The log is refused.
    pub fn entries(
        directory: &mut dyn Directory,
        settings: &NodeSettings,
    ) -> Result<Vec<Arc<Entry>>, OpenError> {
        let mut entries = Vec::new();
        open_log(directory, settings, |entry| {
            entries.push(entry);
            Ok(())
        })?;
        Ok(entries)
    }

    fn new_roles(&self, settings: &NodeSettings, registry: &Arc<Registry>) -> Replay {
        let layout = &settings.topology.layout;
        let site = Site {
            node: settings.node,
            partition: settings.partition(),
            layout: layout.clone(),
            registry: registry.clone(),
            manager: MANAGER,
            log: settings.at(LOG),
            life: settings.life,
            backoff: settings.options.choice(&BACKOFF),
            refusal: self.engine.refusal,
            bugs: settings.bugs,
        };
        let manager = Manager::new(site, settings.topology.clone());
        let participant = |(place, number): (usize, usize)| {
            let control = (self.engine.control)(settings.bugs);
            let under_way = settings.under_way.get(place).copied().unwrap_or_default();
            let mut participant =
                Participant::new(number, layout.clone(), settings.at(MANAGER), registry.clone(), control)
                    .planting(settings.bugs)
                    .with_computations(settings.computations.clone(), under_way);
            if has_members(settings) {
                participant = participant.comparing();
            }
            match settings.stopwatches.get(place) {
                Some(stopwatch) => participant.with_stopwatch(stopwatch.clone()),
                None => participant,
            }
        };
        let participants = layout.shards_of(settings.partition()).enumerate().map(participant).collect();
        Replay { manager, participants, replayed: 0 }
    }
}

/// True if members agree on the log.
const fn has_members(settings: &NodeSettings) -> bool {
    settings.topology.replicas > 1
}

fn log_config(settings: &NodeSettings) -> LogConfig {
    let synced = settings.keep == Keep::Fsync && !settings.bugs.has(Bug::SkipSync);
    LogConfig {
        segment_bytes: settings.segment_bytes,
        durability: if synced { Durability::Fsync } else { Durability::Os },
        bugs: settings.bugs,
        expect_existing: settings.expect_log,
        ..LogConfig::new(settings.identity.clone())
    }
}

fn group_settings(settings: &NodeSettings) -> GroupSettings {
    let members = settings.topology.group(settings.partition()).collect();
    GroupSettings {
        generation: settings.generation,
        message_bytes: settings.piece,
        keep_bytes: settings.log_keep_bytes,
        bugs: settings.bugs,
        ..GroupSettings::new(settings.at(LOG), members)
    }
}

/// The manager, and those who apply entries. Participants come before the manager: who is answered asks next.
fn ends(settings: &NodeSettings) -> (Address, Vec<Address>) {
    let count = settings.topology.layout.shards_of(settings.partition()).len() as u16;
    let participants = (0..count).map(|number| settings.at(places::SHARDS + number));
    (settings.at(MANAGER), participants.chain([settings.at(MANAGER)]).collect())
}

/// Opens a node's log, and shows its entries in order.
fn open_log(
    directory: &mut dyn Directory,
    settings: &NodeSettings,
    mut visit: impl FnMut(Arc<Entry>) -> Result<(), String>,
) -> Result<(Box<dyn Role<Message = Message>>, Recovered), OpenError> {
    let config = log_config(settings);
    if has_members(settings) {
        let group = group_settings(settings);
        let (log, found) = GroupLog::<Entries, Message>::open(
            directory,
            config,
            group,
            Arc::new(()),
            ends(settings),
            |term, bytes| {
                let mut entry = Entries::decode(&(), bytes)?;
                Entries::note_term(&mut entry, term);
                visit(entry)
            },
        )?;
        return Ok((Box::new(log), found));
    }
    let (writer, found) =
        LogWriter::open(directory, config, |entry| visit(Entries::decode(&(), &entry.payload)?))?;
    Ok((Box::new(lone_log(settings, Some(writer))), found))
}

fn lone_log(settings: &NodeSettings, writer: Option<LogWriter>) -> InputLog<Entries, Message> {
    let log_settings = LogSettings {
        dispatch_early: settings.keep == Keep::Late,
        bugs: settings.bugs,
        ..LogSettings::default()
    };
    let (manager, sinks) = ends(settings);
    InputLog::new(log_settings, writer, manager, sinks)
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
        let mut replay = self.new_roles(settings, registry);
        let (log, recovered): (Box<dyn Role<Message = Message>>, _) =
            match directory.filter(|_| settings.keep != Keep::Nothing) {
                Some(directory) => {
                    let (log, found) = open_log(directory, settings, |entry| replay.apply(&entry))?;
                    (log, Some(found))
                }
                None if has_members(settings) => {
                    let log = GroupLog::<Entries, Message>::in_memory(
                        group_settings(settings),
                        Arc::new(()),
                        ends(settings),
                    )?;
                    (Box::new(log), None)
                }
                None => (Box::new(lone_log(settings, None)), None),
            };
        let Replay { manager, participants, replayed } = replay;
        Ok(OpenedNode { manager, log, participants, recovered, replayed })
    }

    fn gateway(&self, settings: &NodeSettings, number: u16, life: u64, registry: &Arc<Registry>) -> Gateway {
        let id = GatewayId::of(settings.node.0, number);
        let place = (settings.topology.replica_of(settings.node).0, settings.partition());
        let layout = settings.topology.layout.clone();
        let gateway = Gateway::new(id, registry.clone(), layout, place, ChunkNo(life));
        // The manager of the node takes everything, and finds out who leads.
        gateway.with_backend(Arc::new(Committing(self.services))).in_pieces(settings.piece).without_others()
    }

    fn router(&self, settings: &NodeSettings) -> Box<dyn Router> {
        Box::new(RelayRouter::new(settings.topology.clone(), settings.at(MANAGER)))
    }

    fn peer_watchers(&self, settings: &NodeSettings) -> Vec<u16> {
        let mut watchers = Vec::new();
        if settings.topology.nodes() > 1 {
            watchers.push(MANAGER);
        }
        if has_members(settings) {
            watchers.push(LOG);
        }
        watchers
    }
}

impl Opened for OpenedNode {
    type Message = Message;

    fn into_roles(self) -> Roles<Message> {
        let mut roles: Roles<Message> = vec![(MANAGER, Box::new(self.manager)), (LOG, self.log)];
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
