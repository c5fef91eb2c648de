//! The roles of a node as its directory has them: a checkpoint is read, and the log behind it is applied again.

mod regions;

pub use regions::feeders;

use std::sync::Arc;

use ordain_checkpoint::{CheckpointError, Header, Item, Totals};
use ordain_execution::{TierSettings, discard_values};
use ordain_family::{Keep, NodeSettings, Notice, Opened, Roles, places};
use ordain_log::{LogConfig, LogError, LogWriter, Recovered, SharedDirectory};
use ordain_model::{Digest, Epoch, Gsn, Micros, Placement, Registry};
use ordain_replication::{
    CheckpointSettings, Checkpointer, EntryType, GroupError, GroupJournal, GroupLog, GroupSettings, InputLog,
    LogSettings, NeedsCheckpoint, StorageError, Waiting,
};
use ordain_role::{Address, Bug, Directory, Role};

use crate::desk::{Propagation, Regional, Site};
use crate::entry::{Entries, Entry};
use crate::family::{CHECKPOINTER, CommitFamily, LOG, MANAGER};
use crate::image::Image;
use crate::manager::Manager;
use crate::message::Message;
use crate::options::{
    BACKOFF, FRESH_BEGIN, GC_IDS, INSTALL, M_RETRIES, PROPAGATE_DELAY_US, RO_MODE, TS_SOURCE, skew_of,
};
use crate::participant::{Holding, Participant};
use crate::saving::Giving;
use crate::token;

/// The reason why a node cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log is refused.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log that members agree on is refused.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// The log of a region is refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A checkpoint is not this node's, or not for this program.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The log's first segments are not there.
    #[error(
        "the log begins after entry {0} and no checkpoint that can be used covers what came before: its first \
         segments were trimmed or lost: restore them, or a checkpoint, from a copy of the data directory"
    )]
    Beginning(Epoch),
}

/// The roles of a node.
pub struct OpenedNode {
    /// All but its participants and its checkpointer.
    roles: Roles<Message>,
    checkpointer: Option<Checkpointer<Arc<Entry>, Message>>,
    participants: Vec<Participant>,
    recovered: Option<Recovered>,
    replayed: u64,
    /// The checkpoint that the node begins from.
    checkpoint: Option<(Epoch, Totals)>,
    /// Checkpoints that it cannot begin from.
    refused: Vec<(Epoch, CheckpointError)>,
    /// No checkpoint here covers what comes before the log: the node waits for one of another member.
    lacking: Option<NeedsCheckpoint>,
}

impl OpenedNode {
    /// A node that executes nothing.
    fn of_storage(
        log: Box<dyn Role<Message = Message>>,
        checkpointer: Option<Checkpointer<Arc<Entry>, Message>>,
    ) -> OpenedNode {
        OpenedNode {
            roles: vec![(LOG, log)],
            checkpointer,
            participants: Vec::new(),
            recovered: None,
            replayed: 0,
            checkpoint: None,
            refused: Vec::new(),
            lacking: None,
        }
    }
}

/// The roles of a node while its directory is read.
struct Replay {
    manager: Manager,
    participants: Vec<Participant>,
    replayed: u64,
}

impl Replay {
    fn new(family: &CommitFamily, settings: &NodeSettings, registry: &Arc<Registry>) -> Replay {
        let layout = &settings.topology.layout;
        let site = Site {
            node: settings.node,
            nodes: settings.topology.all_servers().count() as u16,
            partition: settings.partition(),
            layout: layout.clone(),
            registry: registry.clone(),
            manager: MANAGER,
            log: settings.at(LOG),
            database: token::database(&settings.cluster, family.engine.name),
            life: settings.life,
            backoff: settings.options.choice(&BACKOFF),
            refusal: family.engine.refusal,
            stamps: family.engine.stamps(),
            validates: family.engine.validates(),
            locks_first: family.engine.locks_first(&settings.options),
            snapshots: family.engine.snapshots(),
            propagation: Propagation {
                delay: Micros(settings.options.number(&PROPAGATE_DELAY_US)),
                install: settings.options.choice(&INSTALL),
                gc_ids: settings.options.choice(&GC_IDS),
                fresh_begin: settings.options.is_on(&FRESH_BEGIN),
            },
            regions: regional(settings),
            resolves: regions::resolves(settings),
            overlays: regions::overlays(settings),
            is_early: regions::is_early(settings),
            source: settings.options.choice(&TS_SOURCE),
            skew: skew_of(&settings.options, settings.partition()),
            checkpoint_bytes: settings.checkpoint_bytes,
            bugs: settings.bugs,
        };
        let giving = Giving { to: settings.at(CHECKPOINTER), piece: settings.checkpoint_piece };
        let keeps = settings.keep != Keep::Nothing;
        let mut manager = Manager::new(site, settings.topology.clone()).with_doubts(settings.doubts.clone());
        if keeps {
            manager.set_giving(giving);
        }
        let participant = |(place, number): (usize, usize)| {
            let control = (family.engine.control)(&settings.options, settings.bugs);
            let under_way = settings.under_way.get(place).copied().unwrap_or_default();
            let mut participant = Participant::new(
                Holding::of_shard(layout.clone(), number),
                settings.at(MANAGER),
                registry.clone(),
                control,
            )
            .planting(settings.bugs)
            .with_computations(settings.computations.clone(), under_way);
            if keeps {
                participant = participant.giving(giving);
            }
            if has_members(settings) {
                participant = participant.comparing();
            }
            if log_of(settings) == LogKind::Region {
                participant = participant.of_region();
            }
            if let Some(bytes) = settings.memory_budget.filter(|_| keeps) {
                let shards = layout.shards_of(settings.partition()).len() as u64;
                participant =
                    participant.within(TierSettings::within(bytes / shards, settings.evicted_above));
            }
            match settings.stopwatches.get(place) {
                Some(stopwatch) => participant.with_stopwatch(stopwatch.clone()),
                None => participant,
            }
        };
        let participants = layout.shards_of(settings.partition()).enumerate().map(participant).collect();
        Replay { manager, participants, replayed: 0 }
    }

    /// Takes all of a checkpoint: each thing to where it belongs.
    fn restore(
        &mut self,
        directory: &Shared<'_>,
        settings: &NodeSettings,
        cut: Epoch,
    ) -> Result<Totals, CheckpointError> {
        let (layout, partition) = (&settings.topology.layout, settings.partition());
        let expected = Header::new(&settings.identity, layout, partition, cut);
        let first = layout.shards_of(partition).start;
        let mut image = Image::default();
        let Replay { manager, participants, .. } = self;
        let mut disk = directory.clone();
        let totals = ordain_checkpoint::read(directory, &expected, |item| {
            match item {
                Item::Record { db, key, cell, version } => {
                    let owner = layout.shard_of_key(db, key);
                    let participant = participants.get_mut(owner.wrapping_sub(first));
                    let participant = participant.ok_or("a record of another partition")?;
                    participant.restore(cut, (db, key), cell, version);
                    keep_within(participant, &mut disk)?;
                }
                // Planted, ONCE.
                Item::Outcome(_) if settings.bugs.has(Bug::ForgetOutcomes) => {}
                Item::Outcome(mut outcome) => {
                    // One beyond the cut is of another history.
                    outcome.gsn = outcome.gsn.min(Gsn(cut.0));
                    manager.restore_outcome(&outcome);
                }
                Item::Input(input) => image.put(layout.placement(), input)?,
                Item::Map(_) => return Err("slots have moved, which they do not with this engine".to_owned()),
            }
            Ok(())
        })?;
        let refused =
            |reason| CheckpointError::Refused { file: ordain_checkpoint::file_name(cut), offset: 0, reason };
        manager.begin_from(cut, &image).map_err(refused)?;
        participants.iter_mut().for_each(|participant| participant.begin_from(cut, &image));
        Ok(totals)
    }

    fn apply(&mut self, entry: &Arc<Entry>, disk: &mut Shared<'_>) -> Result<(), String> {
        self.manager.replay(entry)?;
        for participant in &mut self.participants {
            participant.apply(entry);
            keep_within(participant, disk)?;
        }
        self.replayed += 1;
        Ok(())
    }
}

/// The directory of a node that is opened: its log is read while values go to files beside it.
type Shared<'a> = SharedDirectory<&'a mut dyn Directory>;

/// Has values go to the disk if the records take more memory than they may.
fn keep_within(participant: &mut Participant, disk: &mut Shared<'_>) -> Result<(), String> {
    if participant.is_over_budget() { participant.carry_out(disk) } else { Ok(()) }
}

impl CommitFamily {
    /// The entries of a node's log, in order, as far as it knows them to be agreed on, and the place after which they begin.
    ///
    /// # Errors
    /// The log is refused.
    pub fn entries(
        directory: &mut dyn Directory,
        settings: &NodeSettings,
    ) -> Result<(Epoch, Vec<Arc<Entry>>), OpenError> {
        let mut entries = Vec::new();
        let visit = |entry| {
            entries.push(entry);
            Ok(())
        };
        let found = match settings.topology.is_server(settings.node) {
            true => open_log(directory, settings, Epoch(0), visit)?.1,
            false => Some(regions::open_replica(directory, settings, Epoch(0), visit)?.1),
        };
        Ok((found.map_or(Epoch(0), |found| found.starts_after), entries))
    }
}

/// Opens a node.
pub fn open(
    family: &CommitFamily,
    directory: Option<&mut dyn Directory>,
    settings: &NodeSettings,
    registry: &Arc<Registry>,
) -> Result<OpenedNode, OpenError> {
    if !settings.topology.is_server(settings.node) {
        return regions::open_storage(directory, settings);
    }
    let Some(directory) = directory.filter(|_| settings.keep != Keep::Nothing) else {
        let Replay { manager, participants, replayed } = Replay::new(family, settings, registry);
        let log: Box<dyn Role<Message = Message>> = match log_of(settings) {
            LogKind::Region => Box::new(regions::log(settings, Epoch(0))?),
            LogKind::Group => Box::new(GroupLog::<Entries, Message>::in_memory(
                group_settings(settings, Epoch(0)),
                Arc::new(settings.topology.layout.placement().clone()),
                ends(settings),
            )?),
            LogKind::Lone => Box::new(lone_log(settings, Epoch(0), None)),
        };
        let (refused, recovered) = (Vec::new(), None);
        let (checkpointer, checkpoint, lacking) = (None, None, None);
        return Ok(OpenedNode {
            roles: roles(manager, log, settings, registry),
            checkpointer,
            participants,
            recovered,
            replayed,
            checkpoint,
            refused,
            lacking,
        });
    };
    let mut directory = SharedDirectory::new(directory);
    let found = ordain_checkpoint::list(&directory).map_err(CheckpointError::from)?;
    let (mut replay, checkpoint, refused) = open_checkpoint(family, &mut directory, settings, registry)?;
    let begun = checkpoint.map_or(Epoch(0), |(cut, _)| cut);
    let refused_at: Vec<Epoch> = refused.iter().map(|(cut, _)| *cut).collect();
    let mut checkpointer = Checkpointer::new(checkpoint_settings(settings), &found, &refused_at);
    // Before anything is changed, and before anything is applied to a state that is not the one before it.
    // Planted, NO-GUESS: the state is taken to be what the log begins after.
    let guesses = settings.bugs.has(Bug::GuessBeginning) && has_members(settings);
    let lacking = lacking(&directory, settings, begun)?.filter(|_| !guesses);
    if let Some(needs) = lacking {
        if !has_members(settings) {
            return Err(OpenError::Beginning(needs.needed));
        }
        checkpointer = checkpointer.needing(needs);
        let log: Box<dyn Role<Message = Message>> = Box::new(Waiting::new("group-log", needs.needed));
        let Replay { manager, participants, replayed } = replay;
        return Ok(OpenedNode {
            roles: roles(manager, log, settings, registry),
            checkpointer: Some(checkpointer),
            participants,
            recovered: None,
            replayed,
            checkpoint,
            refused,
            lacking,
        });
    }
    // Planted, ORDER.
    let mut skips = settings.bugs.has(Bug::SkipFirstEntry) && begun > Epoch(0);
    let mut disk = directory.clone();
    let (log, recovered) = open_log(&mut directory, settings, begun, |entry| {
        if entry.place <= begun || std::mem::take(&mut skips) {
            return Ok(());
        }
        replay.apply(&entry, &mut disk)
    })?;
    let starts_after = recovered.as_ref().map_or(Epoch(0), |found| found.starts_after);
    if starts_after > begun && !guesses {
        return Err(OpenError::Beginning(starts_after));
    }
    let Replay { manager, participants, replayed } = replay;
    Ok(OpenedNode {
        roles: roles(manager, log, settings, registry),
        checkpointer: Some(checkpointer),
        participants,
        recovered,
        replayed,
        checkpoint,
        refused,
        lacking,
    })
}

/// Roles that begin with a checkpoint, its place and totals, and the later checkpoints that are refused.
type Begun = (Replay, Option<(Epoch, Totals)>, Vec<(Epoch, CheckpointError)>);

/// Begins from the newest complete checkpoint that is what was written, if there is one.
fn open_checkpoint(
    family: &CommitFamily,
    directory: &mut Shared<'_>,
    settings: &NodeSettings,
    registry: &Arc<Registry>,
) -> Result<Begun, OpenError> {
    let mut refused = Vec::new();
    discard_values(directory).map_err(CheckpointError::from)?;
    let found = ordain_checkpoint::list(directory).map_err(CheckpointError::from)?;
    for cut in found.iter().rev().filter(|found| found.is_complete()).map(|found| found.epoch) {
        let mut replay = Replay::new(family, settings, registry);
        match replay.restore(directory, settings, cut) {
            Ok(totals) => return Ok((replay, Some((cut, totals)), refused)),
            // A sound checkpoint: to do without it could be to do without all there is.
            Err(
                error @ (CheckpointError::Version { .. }
                | CheckpointError::Identity { .. }
                | CheckpointError::Layout { .. }),
            ) => return Err(error.into()),
            Err(reason) => {
                refused.push((cut, reason));
                discard_values(directory).map_err(CheckpointError::from)?;
            }
        }
    }
    Ok((Replay::new(family, settings, registry), None, refused))
}

/// The checkpoint that a directory lacks, if its log begins after `begun`, where the node's state ends. Changes nothing.
fn lacking(
    directory: &dyn Directory,
    settings: &NodeSettings,
    begun: Epoch,
) -> Result<Option<NeedsCheckpoint>, OpenError> {
    let needed = match log_of(settings) {
        // Its log is elsewhere, and says so itself.
        LogKind::Region => Epoch(0),
        LogKind::Group => GroupJournal::of(directory)?.begins_after().1,
        LogKind::Lone => ordain_log::starts_after(directory).map_err(LogError::from)?.unwrap_or_default(),
    };
    Ok((needed > begun).then_some(NeedsCheckpoint { needed, reach: needed }))
}

/// The ways of regions; none where partitions are not regions.
fn regional(settings: &NodeSettings) -> Option<Regional> {
    let options = &settings.options;
    settings
        .topology
        .has_storage()
        .then(|| Regional { reading: options.choice(&RO_MODE), m_retries: options.number(&M_RETRIES) as u32 })
}

/// The kind of a partition's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogKind {
    /// One file of a node without replicas.
    Lone,
    /// The members agree on it.
    Group,
    /// Storage nodes keep it.
    Region,
}

const fn log_of(settings: &NodeSettings) -> LogKind {
    match (settings.topology.has_storage(), has_members(settings)) {
        (true, _) => LogKind::Region,
        (false, true) => LogKind::Group,
        (false, false) => LogKind::Lone,
    }
}

/// The roles of a node but for its participants and its checkpointer.
fn roles(
    manager: Manager,
    log: Box<dyn Role<Message = Message>>,
    settings: &NodeSettings,
    registry: &Arc<Registry>,
) -> Roles<Message> {
    let mut roles: Roles<Message> = vec![(MANAGER, Box::new(manager)), (LOG, log)];
    roles.extend(regions::views(settings, registry));
    roles
}

/// True if members agree on the log.
pub const fn has_members(settings: &NodeSettings) -> bool {
    settings.topology.replicas > 1
}

fn checkpoint_settings(settings: &NodeSettings) -> CheckpointSettings {
    let (_, mut givers) = ends(settings);
    givers.sort_unstable();
    CheckpointSettings {
        topology: settings.topology.clone(),
        me: settings.at(CHECKPOINTER),
        sequencer: settings.at(MANAGER),
        exchange: None,
        log: settings.at(LOG),
        trims: settings.trims,
        shards: givers,
        identity: settings.identity.clone(),
        keep: settings.checkpoints_kept,
        piece: settings.piece,
        only_copies: false,
        seals_alone: true,
        primaries_change: false,
        bugs: settings.bugs,
    }
}

fn group_settings(settings: &NodeSettings, begun: Epoch) -> GroupSettings {
    let members = settings.topology.group(settings.partition()).collect();
    GroupSettings {
        generation: settings.generation,
        executed: begun,
        checkpointer: (settings.keep != Keep::Nothing).then_some(settings.at(CHECKPOINTER)),
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

/// The log of a node, and what was found of it on disk.
type OpenedLog = (Box<dyn Role<Message = Message>>, Option<Recovered>);

/// Opens a node's log, whose entries up to `begun` a checkpoint has, and shows those that it holds in order.
fn open_log(
    directory: &mut dyn Directory,
    settings: &NodeSettings,
    begun: Epoch,
    mut visit: impl FnMut(Arc<Entry>) -> Result<(), String>,
) -> Result<OpenedLog, OpenError> {
    let placement = settings.topology.layout.placement();
    if log_of(settings) == LogKind::Region {
        return Ok((Box::new(regions::log(settings, begun)?), None));
    }
    if log_of(settings) == LogKind::Group {
        let (log, found) = GroupLog::<Entries, Message>::open(
            directory,
            settings.log_config(),
            group_settings(settings, begun),
            Arc::new(placement.clone()),
            ends(settings),
            |term, bytes| visit(decoded(placement, term, bytes)?),
        )?;
        return Ok((Box::new(log), Some(found)));
    }
    let config = LogConfig { begins_after: begun, ..settings.log_config() };
    let (writer, found) =
        LogWriter::open(directory, config, |entry| visit(Entries::decode(placement, &entry.payload)?))?;
    Ok((Box::new(lone_log(settings, begun, Some(writer))), Some(found)))
}

/// An entry of a log with terms.
fn decoded(placement: &Placement, term: u64, bytes: &[u8]) -> Result<Arc<Entry>, String> {
    let mut entry = Entries::decode(placement, bytes)?;
    Entries::note_term(&mut entry, term);
    Ok(entry)
}

fn lone_log(settings: &NodeSettings, begun: Epoch, writer: Option<LogWriter>) -> InputLog<Entries, Message> {
    let log_settings = LogSettings {
        dispatch_early: settings.keep == Keep::Late,
        executed: begun,
        keep_bytes: settings.log_keep_bytes,
        bugs: settings.bugs,
    };
    let (manager, sinks) = ends(settings);
    InputLog::new(log_settings, writer, manager, sinks)
}

impl Opened for OpenedNode {
    type Message = Message;

    /// On a node that waits for a checkpoint only the checkpointer works.
    fn into_roles(self) -> Roles<Message> {
        let mut roles = self.roles;
        for (number, participant) in (places::SHARDS..).zip(self.participants) {
            roles.push((number, Box::new(participant)));
        }
        if let Some(NeedsCheckpoint { needed, .. }) = self.lacking {
            for (_, role) in &mut roles {
                *role = Box::new(Waiting::new(role.name(), needed));
            }
        }
        roles.extend(self.checkpointer.map(|role| (CHECKPOINTER, Box::new(role) as _)));
        roles.sort_by_key(|(number, _)| *number);
        roles
    }

    fn digest(&self) -> Digest {
        self.participants.iter().fold(Digest::default(), |sum, shard| sum.plus(shard.digest()))
    }

    fn recovered(&self) -> Option<&Recovered> {
        self.recovered.as_ref()
    }

    fn begins_after(&self) -> Epoch {
        self.checkpoint.map_or(Epoch(0), |(cut, _)| cut)
    }

    fn replayed(&self) -> u64 {
        self.replayed
    }

    fn is_waiting(&self) -> bool {
        self.lacking.is_some()
    }

    fn notices(&self) -> Vec<Notice> {
        let unusable = |(cut, reason): &(Epoch, CheckpointError)| {
            Notice::Warning(format!(
                "a checkpoint cannot be used, so the one before it is: {reason} (its place is {cut})"
            ))
        };
        let mut notices: Vec<Notice> = self.refused.iter().map(unusable).collect();
        if let Some(NeedsCheckpoint { needed, .. }) = self.lacking {
            notices.push(Notice::Warning(format!(
                "the log begins after entry {needed} and no checkpoint here that can be used covers what came before: \
                 this node takes no connections until it has got one from there on from another node of its partition"
            )));
        } else if let Some((cut, Totals { records, .. })) = &self.checkpoint {
            let text = format!("begins from a checkpoint with {records} records (its place is {cut})");
            notices.push(Notice::Information(text));
        }
        notices
    }
}
