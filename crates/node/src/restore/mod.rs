//! A replica as it was at the end of an epoch, put together again from what there is of its partitions: checkpoints, and
//! logs where they reach on from there.
//!
//! ```text
//!  partition 0   checkpoint C ──── log ────▶ E ─┐
//!  partition 1   checkpoint C ──── log ────▶ E ─┼─▶ the state at the end of E ──▶ checkpoint E' of each partition
//!  partition 2   checkpoint C ──── log ────▶ E ─┘                                 in the directories of all replicas
//! ```
//!
//! The state of a cluster is a function of its input, so nothing but checkpoints of one epoch and the input after it is needed:
//! no remote results, no votes, no terms. What comes of it is a cluster that *begins* with a checkpoint. Its logs are empty, its exchanges
//! have nothing to tell each other, its groups have their first term before them. What sessions were answered last is in the
//! checkpoint.
//!
//! **Epochs.** What is begun is another history, and must not be mistaken for the one that went on after E: clients have epochs
//! and versions from there, archives have checkpoints. So the checkpoint is not of E but of E', which is `LEAP` or more
//! after everything that is known of the former history, and nothing of the new one is numbered like anything of the old one.
//! The rule is the same wherever it is computed, so all nodes may do it for themselves.
//!
//! From C to E the input is executed by the [reference executor](ordain_model::reference): one transaction after the other, in
//! the order of (epoch, partition), in memory. That is slow and needs room for the whole replica, and is right by definition.
//! If E is C, checkpoints are copied piece by piece.
//!
//! With the commit family E is always C, a cut (docs/protocols/two-phase-commit.md, section 7): logs of several partitions hold no
//! one order. What a partition had promised before the cut is installed if its home had committed it before the cut.

mod log;
mod state;
pub mod stored;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ordain_checkpoint::{CheckpointError, Header, Item, Totals, file_name, seal_name};
use ordain_commit::{Decisions, Restoring};
use ordain_engines::registry::{Engine, Family};
use ordain_family::Replication;
use ordain_log::{LogError, copy_file};
use ordain_model::{Epoch, Gsn, Isolation, Layout, Millis, PartitionId, Registry};
use ordain_replication::found_after;
use ordain_role::{Directory, DiskError, DiskOp, NodeId};
use xxhash_rust::xxh3::xxh3_64;

use crate::aborts::{Aborts, AbortsError};
pub use log::Extent;
use ordain_deterministic::assembly::LOG;
use state::{State, Writer};

/// How far behind everything that is known of the former history the new one begins: more than a cluster gets through between
/// two checkpoints, and small beside the 2^41 that there are.
const LEAP: u64 = 1 << 32;

/// The checkpoints and the log of a partition.
pub struct Source<'a> {
    /// The partition.
    pub partition: PartitionId,
    /// The place, for messages.
    pub name: String,
    /// The files: checkpoints, and a log if it has one.
    pub directory: &'a dyn Directory,
    /// Whose checkpoints and log they must be.
    pub identity: Vec<u8>,
    /// Epochs of the checkpoints that count, the oldest first.
    pub checkpoints: Vec<Epoch>,
    /// What its log holds; none: there is no log.
    pub log: Option<Extent>,
    /// The transactions in the log that an operator has aborted: they are not executed again.
    pub aborts: BTreeSet<Gsn>,
}

impl<'a> Source<'a> {
    /// The source in a node's directory: the checkpoints that are complete there, and its log, which may have begun or not.
    ///
    /// # Errors
    /// The log is damaged, or lost.
    pub fn of_files(
        directory: &'a dyn Directory,
        (partition, name): (PartitionId, String),
        (identity, has_log): (Vec<u8>, bool),
    ) -> Result<Source<'a>, RestoreError> {
        let files = directory.list()?;
        if has_log && !files.iter().any(|(file, _)| file.starts_with(LOG) && file.ends_with(".seg")) {
            return Err(RestoreError::OutOfReach(format!(
                "{name}: the log is lost: there is none, and there was one"
            )));
        }
        let found = ordain_checkpoint::list(directory).map_err(CheckpointError::from);
        let found = found.map_err(|reason| RestoreError::Checkpoint { name: name.clone(), reason })?;
        let complete = found.iter().filter(|found| found.is_complete()).map(|found| found.epoch);
        let aborts =
            Aborts::of(directory).map_err(|reason| RestoreError::Aborts { name: name.clone(), reason })?;
        let extent = log::visit(directory, &identity, &mut |_, _| Ok(()));
        let extent = extent.map_err(|reason| RestoreError::Log { name: name.clone(), reason })?;
        Ok(Source {
            partition,
            name,
            directory,
            identity,
            checkpoints: complete.collect(),
            log: Some(extent),
            aborts: aborts.iter().map(|(gsn, _)| gsn).collect(),
        })
    }

    /// The source with its checkpoints alone.
    fn without_log(&self) -> Source<'a> {
        let Source { partition, directory, .. } = *self;
        let (name, identity, checkpoints) =
            (self.name.clone(), self.identity.clone(), self.checkpoints.clone());
        Source { partition, name, directory, identity, checkpoints, log: None, aborts: BTreeSet::new() }
    }

    /// The last epoch that it has anything of.
    fn last(&self) -> Epoch {
        let of_log = self.log.as_ref().map_or(Epoch(0), |log| log.last);
        self.checkpoints.last().copied().unwrap_or_default().max(of_log)
    }

    /// Up to which epoch it knows what counts, if it is begun from a checkpoint of `from`; none: it knows all.
    fn limit(&self, from: Epoch) -> Option<Epoch> {
        match &self.log {
            Some(log) if log.begins_after <= from => log.undecided.map(|first| Epoch(first.0 - 1)),
            _ => Some(from),
        }
    }
}

/// The reason why a state cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// A checkpoint is refused.
    #[error("{name}: {reason}")]
    Checkpoint {
        /// The place, for messages.
        name: String,
        /// The reason.
        reason: CheckpointError,
    },
    /// A log is refused.
    #[error("{name}: {reason}")]
    Log {
        /// The place, for messages.
        name: String,
        /// The reason.
        reason: LogError,
    },
    /// The list of what an operator has aborted cannot be read.
    #[error("{name}: {reason}")]
    Aborts {
        /// The place, for messages.
        name: String,
        /// The reason.
        reason: AbortsError,
    },
    /// Nothing is known of some partitions.
    #[error("there is nothing of partition {0}: a replica is restored as a whole, from all its partitions")]
    Missing(PartitionId),
    /// There is no way to that state.
    #[error("{0}")]
    OutOfReach(String),
    /// What is written cannot be.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// The way from what sources hold to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Checkpoints of one epoch, and the input after them, which is executed at this level.
    Executes(Isolation),
    /// Checkpoints of one cut, of which what is in doubt in one is decided by another. Logs are left out: they hold what members
    /// have agreed on apart from each other.
    Resolves,
}

impl How {
    /// The way of an engine, whose transactions were executed at a level.
    pub fn of(engine: Engine, isolation: Isolation) -> How {
        match engine.info().family {
            Family::Deterministic => How::Executes(isolation),
            Family::Commit => How::Resolves,
        }
    }
}

/// A restored state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restored {
    /// It is the state at the end of this epoch.
    pub until: Epoch,
    /// It was begun from checkpoints of this one; 0: from nothing.
    pub from: Epoch,
    /// The checkpoints that hold it now are of this one.
    pub begins: Epoch,
    /// The number of transactions that were executed again.
    pub executed: u64,
    /// What each partition holds.
    pub totals: BTreeMap<PartitionId, Totals>,
    /// Checkpoints that were found damaged on the way, in words.
    pub refused: Vec<String>,
    /// From this epoch on something was left out of which it is not known whether it was agreed on.
    pub undecided: Option<Epoch>,
}

/// The directory for a partition's checkpoint; none, if another run writes it.
pub type Target<'t> = dyn FnMut(PartitionId) -> Result<Option<Box<dyn Directory>>, DiskError> + 't;

/// Puts a replica together as it was at the end of `until`, or as far as everything is known, and writes a checkpoint of it
/// for each partition to where `target` says, which is complete since `at`.
///
/// # Errors
/// [`RestoreError`]; what was written until then is worth nothing.
pub fn restore(
    sources: &[Source<'_>],
    (layout, registry, how): (&Arc<Layout>, &Arc<Registry>, How),
    (until, at): (Option<Epoch>, Millis),
    target: &mut Target<'_>,
) -> Result<Restored, RestoreError> {
    let mut refused: BTreeMap<Epoch, String> = BTreeMap::new();
    let last = sources.iter().map(Source::last).max().unwrap_or_default();
    let without_logs: Vec<Source<'_>> = sources.iter().map(Source::without_log).collect();
    let sources = if how == How::Resolves { &without_logs } else { sources };
    let chosen: BTreeMap<PartitionId, &Source<'_>> = choose(sources);
    loop {
        let bad: BTreeSet<Epoch> = refused.keys().copied().collect();
        let (from, end) = way(&chosen, layout, until, &bad)?;
        let begins = begins(last, end);
        let plan = Plan { sources: &chosen, layout, registry, how, from, until: end, begins, at };
        match plan.carry_out(target) {
            Ok((totals, executed)) => {
                let refused = refused.into_values().rev().collect();
                let undecided = chosen.values().filter_map(|source| source.log?.undecided).min();
                return Ok(Restored { until: end, from, begins, executed, totals, refused, undecided });
            }
            Err(RestoreError::Checkpoint { name, reason }) if is_damage(&reason) && from > Epoch(0) => {
                refused.insert(from, format!("{name}: {reason}"));
                // What some partitions have already is of another epoch than what they get now.
                for partition in chosen.keys() {
                    if let Some(mut directory) = target(*partition)? {
                        discard(&mut *directory, begins)?;
                    }
                }
            }
            Err(error) => return Err(error),
        }
    }
}

/// Copies the checkpoint with which a partition begins to another member's directory.
///
/// # Errors
/// A disk's.
pub fn share(source: &dyn Directory, target: &mut dyn Directory, begins: Epoch) -> Result<(), DiskError> {
    let files = [file_name(begins), seal_name(begins)];
    for (file, len) in source.list()?.into_iter().filter(|(file, _)| files.contains(file)) {
        copy_file(source, target, &file, len, len)?;
    }
    target.apply(&DiskOp::SyncDirectory)
}

/// Writes to a member's directory that its group begins with that checkpoint, where one of several members agrees on a log.
///
/// # Errors
/// A disk's.
pub fn found(
    directory: &mut dyn Directory,
    identity: &[u8],
    (members, replication): (&[NodeId], Replication),
    begins: Epoch,
) -> Result<(), LogError> {
    if replication == Replication::Sync && members.len() > 1 {
        found_after(directory, identity, members, begins)?;
    }
    Ok(())
}

/// Removes what has been written of a checkpoint.
fn discard(directory: &mut dyn Directory, epoch: Epoch) -> Result<(), DiskError> {
    let ours = [seal_name(epoch), file_name(epoch)];
    let there = directory.list()?;
    for file in ours.into_iter().filter(|file| there.iter().any(|(name, _)| name == file)) {
        directory.apply(&DiskOp::Remove { file })?;
    }
    directory.apply(&DiskOp::SyncDirectory)
}

/// The epoch with which the new history begins. Of what goes back to different epochs it is, most likely, not the same: two that
/// were begun from one can be told apart, and one of them is refused where the other has left something.
fn begins(last: Epoch, until: Epoch) -> Epoch {
    Epoch(last.0 + LEAP + (xxh3_64(&until.0.to_le_bytes()) >> 33))
}

/// The member of each partition that knows most.
fn choose<'c, 's>(sources: &'c [Source<'s>]) -> BTreeMap<PartitionId, &'c Source<'s>> {
    let mut chosen: BTreeMap<PartitionId, &Source<'s>> = BTreeMap::new();
    let knows = |source: &Source<'_>| {
        let log = source.log.unwrap_or_default();
        (source.log.is_some() && log.undecided.is_none(), log.last, source.last())
    };
    for source in sources {
        let best = chosen.entry(source.partition).or_insert(source);
        if knows(source) > knows(best) {
            *best = source;
        }
    }
    chosen
}

/// Tells whether an earlier checkpoint may do.
fn is_damage(reason: &CheckpointError) -> bool {
    use CheckpointError::{Damaged, Refused, Unfinished};
    matches!(reason, Damaged { .. } | Unfinished { .. } | Refused { .. })
}

/// From which checkpoint to the end of which epoch.
fn way(
    sources: &BTreeMap<PartitionId, &Source<'_>>,
    layout: &Layout,
    until: Option<Epoch>,
    refused: &BTreeSet<Epoch>,
) -> Result<(Epoch, Epoch), RestoreError> {
    let mut all = (0..layout.partitions()).map(PartitionId);
    if let Some(missing) = all.find(|partition| !sources.contains_key(partition)) {
        return Err(RestoreError::Missing(missing));
    }
    let sources: Vec<&Source<'_>> = sources.values().copied().collect();
    let of_all = |epoch: &Epoch| sources.iter().all(|source| source.checkpoints.contains(epoch));
    let common = sources.iter().flat_map(|source| &source.checkpoints).copied().filter(of_all);
    let mut usable: BTreeSet<Epoch> = common.filter(|epoch| !refused.contains(epoch)).collect();
    // Where no log was trimmed, nothing is a beginning too.
    if sources.iter().all(|source| source.log.is_some_and(|log| log.begins_after == Epoch(0))) {
        usable.insert(Epoch(0));
    }
    // Nothing happened after the last epoch of all, so the state at its end is that at the end of all later ones.
    let last = sources.iter().map(|source| source.last()).max().unwrap_or_default();
    let end_from = |from: Epoch| {
        let limits = sources.iter().filter_map(|source| source.limit(from));
        limits.fold(last.max(from), Epoch::min)
    };
    let knows_all = |from: Epoch| sources.iter().all(|source| source.limit(from).is_none());
    let ways = usable.iter().rev().map(|from| (*from, end_from(*from)));
    let chosen = match until {
        None => ways.max_by_key(|(from, end)| (*end, *from)),
        Some(until) => ways
            .filter(|(from, end)| *from <= until && (until <= *end || knows_all(*from)))
            .map(|(from, end)| (from, end.min(until)))
            .next(),
    };
    chosen.ok_or_else(|| RestoreError::OutOfReach(out_of_reach(&usable, until, refused, &end_from)))
}

/// The reason why an epoch is out of reach.
fn out_of_reach(
    usable: &BTreeSet<Epoch>,
    until: Option<Epoch>,
    refused: &BTreeSet<Epoch>,
    end_from: &dyn Fn(Epoch) -> Epoch,
) -> String {
    let list = |epochs: &mut dyn Iterator<Item = String>| epochs.collect::<Vec<_>>().join(", ");
    let without = match refused.is_empty() {
        true => String::new(),
        false => {
            format!(" (without the damaged of epoch {})", list(&mut refused.iter().map(Epoch::to_string)))
        }
    };
    let stretch = |from: &Epoch| {
        let end = end_from(*from);
        if end > *from { format!("{from} to {end}") } else { from.to_string() }
    };
    let possible = list(&mut usable.iter().map(stretch));
    match until {
        _ if usable.is_empty() => format!("there is no checkpoint that all partitions have{without}"),
        Some(until) => format!(
            "the state at the end of epoch {until} cannot be put together from what there is{without}: possible are the \
             epochs {possible}"
        ),
        None => format!("no state can be put together from what there is{without}"),
    }
}

/// A way that was chosen.
struct Plan<'p, 's> {
    sources: &'p BTreeMap<PartitionId, &'p Source<'s>>,
    layout: &'p Arc<Layout>,
    registry: &'p Arc<Registry>,
    how: How,
    from: Epoch,
    until: Epoch,
    begins: Epoch,
    at: Millis,
}

impl Plan<'_, '_> {
    fn header(&self, source: &Source<'_>, epoch: Epoch) -> Header {
        Header::new(&source.identity, self.layout, source.partition, epoch)
    }

    fn carry_out(
        &self,
        target: &mut Target<'_>,
    ) -> Result<(BTreeMap<PartitionId, Totals>, u64), RestoreError> {
        let How::Executes(isolation) = self.how else { return Ok((self.resolve(target)?, 0)) };
        let mut totals = BTreeMap::new();
        if self.from == self.until && self.from > Epoch(0) {
            for (&partition, source) in self.sources {
                let Some(mut directory) = target(partition)? else {
                    // Whether it is sound decides for all partitions what is taken.
                    self.read(source, &mut |_| Ok(()))?;
                    continue;
                };
                let mut writer = Writer::begin(&mut *directory, &self.header(source, self.begins))?;
                self.read(source, &mut |item| writer.put(&item).map_err(|error| error.to_string()))?;
                totals.insert(partition, writer.seal(self.at)?);
            }
            return Ok((totals, 0));
        }
        let mut state = State::new(self.registry.clone(), self.layout, isolation);
        for source in self.sources.values().filter(|_| self.from > Epoch(0)) {
            self.read(source, &mut |item| state.take(&item))?;
        }
        let mut input = BTreeMap::new();
        for (&partition, source) in self.sources {
            let collected = log::visit(source.directory, &source.identity, &mut |epoch, bytes| {
                if epoch > self.from && epoch <= self.until {
                    input.insert((epoch, partition), bytes);
                }
                Ok(())
            });
            collected.map_err(|reason| RestoreError::Log { name: source.name.clone(), reason })?;
        }
        // An operator aborts a transaction on all nodes, and may have forgotten some.
        let aborts = self.sources.values().flat_map(|source| source.aborts.iter().copied()).collect();
        let mut executed = 0;
        for ((epoch, partition), bytes) in input {
            executed += state.execute(&bytes, &aborts).map_err(|reason| {
                RestoreError::OutOfReach(format!(
                    "the batch of epoch {epoch}, partition {partition}: {reason}"
                ))
            })?;
        }
        for (&partition, source) in self.sources {
            let Some(mut directory) = target(partition)? else { continue };
            let mut writer = Writer::begin(&mut *directory, &self.header(source, self.begins))?;
            state.give(partition, &mut writer)?;
            totals.insert(partition, writer.seal(self.at)?);
        }
        Ok((totals, executed))
    }

    /// Writes what checkpoints of one cut hold together.
    fn resolve(&self, target: &mut Target<'_>) -> Result<BTreeMap<PartitionId, Totals>, RestoreError> {
        let mut decided = Decisions::default();
        for source in self.sources.values() {
            let mut decisions = Restoring::new(self.from, self.layout.placement());
            // Whether all are sound decides what is taken, and of records there are many.
            self.read(source, &mut |item| match item {
                Item::Input(_) => decisions.take(&item),
                _ => Ok(()),
            })?;
            decided.add(&decisions);
        }
        let mut totals = BTreeMap::new();
        for (&partition, source) in self.sources {
            let Some(mut directory) = target(partition)? else { continue };
            let mut part = Restoring::new(self.from, self.layout.placement());
            self.read(source, &mut |item| part.take(&item))?;
            part.resolve(&decided);
            let mut writer = Writer::begin(&mut *directory, &self.header(source, self.begins))?;
            let refused = |reason| RestoreError::OutOfReach(format!("{}: {reason}", source.name));
            part.give(|item| match item {
                Item::Input(image) => writer.image(image).map_err(RestoreError::from),
                item => writer.put(item).map_err(refused),
            })?;
            totals.insert(partition, writer.seal(self.at)?);
        }
        Ok(totals)
    }

    /// Reads the checkpoint of a partition from which the way begins.
    fn read(
        &self,
        source: &Source<'_>,
        visit: &mut dyn FnMut(ordain_checkpoint::Item<'_>) -> Result<(), String>,
    ) -> Result<(), RestoreError> {
        let read = ordain_checkpoint::read(source.directory, &self.header(source, self.from), visit);
        read.map(drop).map_err(|reason| RestoreError::Checkpoint { name: source.name.clone(), reason })
    }
}
