//! The roles of a node as its directory has them: checkpoint, log and receive journal are read and executed again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::vec;

use crate::sequencing::Opened as OpenedJournal;
use crate::sequencing::{Batches, Beginning, Exchange, Sequencer};
use crate::shard::{self, LockManager, ShardMessage};
use ordain_checkpoint::{CheckpointError, Header, Item, Totals};
use ordain_execution::discard_values;
use ordain_family::{Keep, Notice, Opened, Replication, Roles};
use ordain_log::{LogConfig, LogError, LogWriter, Recovered, SharedDirectory, Space};
use ordain_model::{Batch, Digest, Epoch, Gsn, Registry};
use ordain_replication::{
    ConfigurationEntry, ConfigurationService, Decision, Decisions, EntryType as _, GroupError, GroupJournal,
    GroupLog, GroupSettings, Index, InputLog, LogSettings, NeedsCheckpoint, Waiting, resume_after,
};
use ordain_role::{Address, Bug, Directory, DiskError, DiskOp, Rebuild, Role, UnderWay};
use ordain_store::MemoryStore;

use super::receive_journal::ReceiveJournal;
use super::{CONFIGURATION_SERVICE, LOG, Plan, RECEIVE_JOURNAL, places};

/// The roles of a node, ready to run.
pub struct Assembly {
    /// The sequencer.
    pub sequencer: Sequencer<ShardMessage>,
    /// The input log.
    pub log: Box<dyn Role<Message = shard::Message>>,
    /// The exchange, where there are other partitions.
    pub exchange: Option<Exchange<ShardMessage>>,
    /// The node's part of the configuration service, where input is replicated asynchronously.
    pub configuration_service: Option<ConfigurationService<Batches, shard::Message>>,
    /// The configuration service's log, on its members.
    pub configuration_service_log: Option<GroupLog<Decisions, shard::Message>>,
    /// The checkpointer, on nodes that keep anything.
    pub checkpointer: Option<super::Checkpointer>,
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
    /// The result of reading the log.
    pub recovered: Option<Recovered>,
    /// The number of transactions that were replayed.
    pub replayed: u64,
}

/// The checkpoint that a node begins from.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    /// The checkpoint's epoch.
    pub epoch: Epoch,
    /// The totals of its content.
    pub totals: Totals,
}

/// A checkpoint that counted as complete and cannot be used.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The checkpoint's epoch.
    pub epoch: Epoch,
    /// The reason.
    pub reason: CheckpointError,
}

/// The reason why a node cannot be built from its directory.
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
    /// A log entry or journal record cannot be executed again.
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
        let mut assembly = Assembly::empty(settings, registry);
        let Some(directory) = directory.filter(|_| settings.keep != Keep::Nothing) else {
            return assembly.keep_nothing(settings, registry);
        };
        let mut directory = SharedDirectory::new(directory);
        let (mut disk, directory) = (directory.clone(), &mut directory);
        assembly.open_checkpoint(directory, settings, registry)?;
        let begun = assembly.begins_after();
        // Before anything is changed, and before anything is executed on a state that is not the one before it.
        // Planted, NO-GUESS: the state is taken to be what the log begins after.
        let guesses = settings.bugs.has(Bug::GuessBeginning) && settings.topology.replicas > 1;
        if let Some(lacking) = lacking(directory, settings, begun)?.filter(|_| !guesses) {
            if settings.topology.replicas == 1 {
                return Err(AssemblyError::Beginning(lacking.needed));
            }
            assembly.checkpointer = assembly.checkpointer.map(|role| role.needing(lacking));
            assembly.lacking = Some(lacking);
            return Ok(assembly);
        }
        assembly.prepare_shards(settings);
        let mut receive_journal = ReceiveJournal::read(directory, settings, registry, begun)?;
        let mut last = begun;
        let Assembly { sequencer: orders, exchange, lock_manager, shards, replayed, .. } = &mut assembly;
        let lock_manager = lock_manager.as_mut().map(|role| (settings.at(places::LOCK_MANAGER), &mut **role));
        let exchange = exchange.as_mut().map(|exchange| (settings.at(places::EXCHANGE), exchange));
        let mut replay = shard::Replay::new(shards, lock_manager, exchange).with_disk(&mut disk);
        // Planted, ORDER.
        let mut skips = settings.bugs.has(Bug::SkipFirstEntry) && begun > Epoch(0);
        let again = |entry: &[u8]| {
            if Batch::epoch_of(entry).is_some_and(|epoch| epoch <= begun) || std::mem::take(&mut skips) {
                return Ok(());
            }
            let batch = Arc::new(Batch::decode(registry, entry).map_err(|e| e.to_string())?);
            receive_journal.replay_before(batch.epoch, &mut replay)?;
            last = batch.epoch;
            *replayed += batch.txns().count() as u64;
            orders.replay(&batch);
            replay.batch(batch)
        };
        let (log, recovered) = open_log(directory, settings, registry, begun, again)?;
        receive_journal.replay_before(Epoch(u64::MAX), &mut replay).map_err(AssemblyError::Replay)?;
        if recovered.starts_after > begun && !guesses {
            return Err(AssemblyError::Beginning(recovered.starts_after));
        }
        // The log was in order, and so is this: only now may anything else be changed.
        let beginning = settings.beginning(receive_journal.beginning());
        let journal = receive_journal.open(directory)?;
        assembly.open_configuration_service(directory, settings)?;
        // After entries that members agreed on, or were shipped, any epoch may follow; a node on its own has used some
        // epochs that left no trace.
        let sealed = match settings.replication() {
            // Planted, EPOCH-ONCE.
            Replication::None if settings.bugs.has(Bug::ReuseEpoch) => last,
            Replication::None => resume_after(last),
            Replication::Sync | Replication::Async => last,
        };
        assembly.log = log;
        assembly.sequencer.resume_after(sealed);
        assembly.recovered = Some(recovered);
        assembly.begin(journal, sealed, beginning);
        Ok(assembly)
    }

    /// The roles of a node that has nothing, with a log that keeps nothing.
    fn empty(settings: Plan<'_>, registry: &Arc<Registry>) -> Assembly {
        let (sequencer, executors) = (settings.at(places::SEQUENCER), settings.executors());
        let alone = InputLog::<Batches, _>::new(LogSettings::default(), None, sequencer, executors);
        Assembly {
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
        }
    }

    /// The roles of a node that keeps nothing.
    fn keep_nothing(
        mut self,
        settings: Plan<'_>,
        registry: &Arc<Registry>,
    ) -> Result<Assembly, AssemblyError> {
        match settings.replication() {
            Replication::None => {}
            Replication::Async => return Err(AssemblyError::Forgetful),
            Replication::Sync => {
                let ends = (settings.at(places::SEQUENCER), settings.group_sinks());
                let group = settings.group_settings();
                self.log = Box::new(GroupLog::<Batches, _>::in_memory(group, registry.clone(), ends)?);
            }
        }
        self.begin(None, Epoch(0), settings.beginning(Beginning::Asks));
        Ok(self)
    }

    /// Tells the shards what an operator has aborted, and where to note what they execute.
    fn prepare_shards(&mut self, settings: Plan<'_>) {
        let aborted: BTreeSet<Gsn> = settings.aborted.iter().map(|stamp| Gsn::from(*stamp)).collect();
        let aborted = Arc::new(aborted);
        self.lock_manager.iter_mut().for_each(|role| role.set_aborted(aborted.clone()));
        let places = settings.under_way.iter().copied().chain(std::iter::repeat(UnderWay::default()));
        let shards = std::mem::take(&mut self.shards).into_iter().zip(places);
        self.shards =
            shards.map(|(shard, at)| shard.with_aborted(aborted.clone()).with_under_way(at)).collect();
    }

    /// Begins from the newest complete checkpoint that is what was written, if there is one.
    fn open_checkpoint(
        &mut self,
        directory: &SharedDirectory<&mut dyn Directory>,
        settings: Plan<'_>,
        registry: &Arc<Registry>,
    ) -> Result<(), AssemblyError> {
        discard_values(&mut directory.clone()).map_err(CheckpointError::from)?;
        let found = ordain_checkpoint::list(directory).map_err(CheckpointError::from)?;
        for epoch in found.iter().rev().filter(|found| found.is_complete()).map(|found| found.epoch) {
            match self.restore(directory, settings, epoch) {
                Ok(totals) => {
                    self.checkpoint = Some(Begun { epoch, totals });
                    self.shards.iter_mut().for_each(|shard| shard.begin_after(epoch));
                    self.exchange.iter_mut().for_each(|exchange| exchange.begin_after(epoch));
                    break;
                }
                // A sound checkpoint: to do without it could be to do without all there is.
                Err(
                    error @ (CheckpointError::Version { .. }
                    | CheckpointError::Identity { .. }
                    | CheckpointError::Layout { .. }),
                ) => return Err(error.into()),
                Err(reason) => {
                    discard_values(&mut directory.clone()).map_err(CheckpointError::from)?;
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
        directory: &SharedDirectory<&mut dyn Directory>,
        settings: Plan<'_>,
        epoch: Epoch,
    ) -> Result<Totals, CheckpointError> {
        let (mut layout, partition) = (settings.layout().clone(), settings.partition());
        let expected = Header::new(&settings.identity, &layout, partition, epoch);
        let first = layout.shards_of(partition).start;
        let Assembly { sequencer, lock_manager, shards, .. } = self;
        let mut disk = directory.clone();
        ordain_checkpoint::read(directory, &expected, |item| {
            match item {
                Item::Map(map) => {
                    layout = Arc::new(layout.under(&map));
                    lock_manager.iter_mut().for_each(|role| role.begin_under(&map));
                    shards.iter_mut().for_each(|shard| shard.begin_under(&map));
                }
                Item::Record { db, key, cell, version } => {
                    let owner = layout.shard_of_key(db, key);
                    let shard = shards.get_mut(owner.wrapping_sub(first));
                    let shard = shard.ok_or("a record of another partition")?;
                    if shard.restore(db, key, cell, version) {
                        shard.carry_out(&mut disk);
                    }
                }
                // Planted, ONCE.
                Item::Outcome(_) if settings.bugs.has(Bug::ForgetOutcomes) => {}
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
        let replay = |decision| configuration_service.replay(&decision);
        let log = open_configuration_service_log(directory, settings, me, replay)?;
        self.configuration_service_log = Some(log.in_space(CONFIGURATION_SERVICE));
        Ok(())
    }

    /// The decisions of the configuration service, as far as a directory's copy of its log has them; none on a node
    /// without a copy.
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
        open_configuration_service_log(directory, settings, Address::default(), |decision| {
            configuration_entries.push(decision.entry);
            Ok(())
        })?;
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
            let registry = registry.clone();
            GroupLog::<Batches, shard::Message>::open(directory, config, group, registry, ends, visit)?.1
        } else {
            LogWriter::open(directory, settings.log_config(), |entry| visit(&entry.payload))?.1
        };
        Ok((recovered.starts_after, batches))
    }

    /// Begins normal work after the replay: no batch of this partition up to `sealed` is still to come.
    fn begin(&mut self, receive_journal: Option<OpenedJournal>, sealed: Epoch, beginning: Beginning) {
        match &mut self.exchange {
            Some(exchange) => {
                exchange.begin(receive_journal, sealed, beginning);
                if !beginning.takes_part() {
                    self.sequencer.wait_for_peers();
                }
            }
            None => self.shards.iter_mut().for_each(|shard| shard.resume_after(sealed)),
        }
    }

    fn all_roles(self) -> Vec<(u16, Box<dyn Role<Message = shard::Message>>)> {
        fn boxed(
            role: Option<impl Role<Message = shard::Message> + 'static>,
        ) -> Option<Box<dyn Role<Message = shard::Message>>> {
            role.map(|role| Box::new(role) as _)
        }
        let shards = (places::SHARDS..).zip(self.shards.into_iter().map(|shard| boxed(Some(shard))));
        let others = [
            (places::SEQUENCER, boxed(Some(self.sequencer))),
            (places::LOG, Some(self.log)),
            (places::EXCHANGE, boxed(self.exchange)),
            (places::CONFIGURATION_SERVICE, boxed(self.configuration_service)),
            (places::CONFIGURATION_SERVICE_LOG, boxed(self.configuration_service_log)),
            (places::CHECKPOINTER, boxed(self.checkpointer)),
            (places::LOCK_MANAGER, self.lock_manager.map(|role| role as _)),
        ];
        let roles = others.into_iter().chain(shards);
        roles.filter_map(|(number, role)| Some((number, role?))).collect()
    }
}

/// Opens the configuration service's log, whose appender and receiver is one role, and hands `visit` each decision in it.
fn open_configuration_service_log(
    directory: &mut dyn Directory,
    settings: Plan<'_>,
    role: Address,
    mut visit: impl FnMut(Decision) -> Result<(), String>,
) -> Result<GroupLog<Decisions, shard::Message>, AssemblyError> {
    let config = LogConfig { expect_existing: false, ..settings.log_config() };
    let group = settings.configuration_service_log_settings();
    let visit = |_, entry: &[u8]| visit(Decisions::decode(&(), entry)?);
    let mut space = Space::new(directory, CONFIGURATION_SERVICE);
    GroupLog::open(&mut space, config, group, Arc::new(()), (role, vec![role]), visit)
        .map(|(log, _)| log)
        .map_err(AssemblyError::ConfigurationService)
}

/// Opens the log of the node's partition, and has `again` execute each entry that it holds.
fn open_log(
    directory: &mut dyn Directory,
    settings: Plan<'_>,
    registry: &Arc<Registry>,
    begun: Epoch,
    mut again: impl FnMut(&[u8]) -> Result<(), String>,
) -> Result<(Box<dyn Role<Message = shard::Message>>, Recovered), AssemblyError> {
    let sequencer = settings.at(places::SEQUENCER);
    let replication = settings.replication();
    if replication == Replication::Sync {
        let group = GroupSettings {
            executed: begun,
            checkpointer: Some(settings.at(places::CHECKPOINTER)),
            ..settings.group_settings()
        };
        let ends = (sequencer, settings.group_sinks());
        let config = settings.log_config();
        let (group, found) =
            GroupLog::<Batches, _>::open(directory, config, group, registry.clone(), ends, |_, entry| {
                again(entry)
            })?;
        return Ok((Box::new(group), found));
    }
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
    let sinks = if has_members { settings.group_sinks() } else { settings.executors() };
    let alone = InputLog::<Batches, _>::new(log_settings, Some(writer), sequencer, sinks);
    let log: Box<dyn Role<Message = shard::Message>> = match has_members {
        true => Box::new(alone.with_members(settings.shipping_settings(), registry.clone(), index)),
        false => Box::new(alone),
    };
    Ok((log, found))
}

/// The checkpoint that a directory lacks, if its log begins after `begun`, where the node's state ends. Changes
/// nothing.
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

/// Removes from the directory of a node that is rebuilt what the rebuild discards. The node may be stopped in the
/// middle and begin again.
///
/// Checkpoints stay: where primaries may change, none is sealed that holds anything that may be lost with one. Of the
/// receive journal the stable part counts; the journal itself marks it, for the next incarnation.
///
/// # Errors
/// The disk's.
pub fn discard(directory: &mut dyn Directory, how: Rebuild) -> Result<(), DiskError> {
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

impl Opened for Assembly {
    type Message = shard::Message;

    /// On a node that waits for a checkpoint only the checkpointer works.
    fn into_roles(self) -> Roles<shard::Message> {
        let lacking = self.lacking;
        let mut roles = self.all_roles();
        if let Some(NeedsCheckpoint { needed, .. }) = lacking {
            for (_, role) in roles.iter_mut().filter(|(number, _)| *number != places::CHECKPOINTER) {
                *role = Box::new(Waiting::new(role.name(), needed));
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

    fn notices(&self) -> Vec<Notice> {
        let unusable = |Refused { epoch, reason }: &Refused| {
            Notice::Warning(format!(
                "a checkpoint cannot be used, so the one before it is: {reason} (its epoch is {epoch})"
            ))
        };
        let mut notices: Vec<Notice> = self.refused.iter().map(unusable).collect();
        if let Some(NeedsCheckpoint { needed, .. }) = self.lacking {
            notices.push(Notice::Warning(format!(
                "the log begins after epoch {needed} and no checkpoint here that can be used covers what came before: this \
                 node takes no connections until it has got one of epoch {needed} or later from another node of its \
                 partition"
            )));
        } else if let Some(Begun { epoch, totals }) = &self.checkpoint {
            let records = totals.records;
            notices.push(Notice::Information(format!(
                "begins from a checkpoint with {records} records (its epoch is {epoch})"
            )));
        }
        notices
    }
}
