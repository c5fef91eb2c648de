//! `ordain checkpoint restore`: a new data directory from that of a stopped node, or from a copy of one; as it is, or as it
//! was at the end of an epoch. A whole cluster, and what is in a store, is put together by [`cluster`].
//!
//! Everything is read and checked before anything is written, and what says whose directory it is comes last: a copy that
//! was interrupted is no node's.

mod cluster;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use clap::Args;
use ordain_archive::Location;
use ordain_deterministic::assembly::{CONFIGURATION_SERVICE, RECEIVE_JOURNAL};
use ordain_lab::report;
use ordain_log::{Item, Kind, Space, copy_file, copy_until};
use ordain_model::Epoch;
use ordain_node::identity::{FILE, Identity, LOCK};
use ordain_replication::{GroupJournal, GroupRecord};
use ordain_role::{Directory, DiskOp};
use ordain_runtime::{DirLock, FsDirectory};
use serde_json::json;

use crate::log::is_of_region;

/// From where to where.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The data directory of a stopped node, or a copy of one; or the URL of a checkpoint store. For a whole cluster: of nodes
    /// of all its partitions, each named with a --from of its own.
    #[arg(long, value_name = "DIR|URL", required = true)]
    pub(crate) from: Vec<String>,
    /// The new data directory: missing, or empty. With --config: where the directories node-0, node-1 and so on are made;
    /// without this they are made where the file says.
    #[arg(long, env = "ORDAIN_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Restore a whole cluster, which this file describes: all of its nodes begin with the same state.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Make the directory of this node of the cluster only: on each machine the same command, but for this.
    #[arg(long, value_name = "N", requires = "config")]
    pub(crate) node: Option<u16>,
    /// Of several clusters in a store, this one.
    #[arg(long, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// As it was at the end of this epoch: leave out what came later.
    #[arg(long, value_name = "EPOCH")]
    pub(crate) to_epoch: Option<u64>,
    /// Write what was restored to this file as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Restores.
///
/// # Errors
/// The source is damaged, in use or not of a node; the state at the end of that epoch cannot be put together; the target
/// is not empty; or a disk's.
pub fn run(args: &RestoreArgs) -> anyhow::Result<bool> {
    let RestoreArgs { from, data_dir, to_epoch, json, .. } = args;
    let (from, data_dir) = match (from.as_slice(), data_dir) {
        ([from], Some(data_dir)) if args.config.is_none() && !Location::is_one(from) => {
            (Path::new(from), data_dir)
        }
        _ => return cluster::run(args),
    };
    ensure!(from.is_dir(), "there is no data directory {}: name it with --from", from.display());
    ensure_empty(data_dir)?;
    let _source_lock = DirLock::acquire(from)?;
    let mut source = FsDirectory::open(from)?;
    let identity = Identity::read(from)?.with_context(|| {
        format!("{} has no {FILE}: it is not the data directory of a node, or not all of it", from.display())
    })?;
    ensure!(
        to_epoch.is_none() || identity.alone,
        "{} belongs to {}, and does not go back alone: all nodes of a cluster go back to the same epoch together; name its \
         file with --config, and directories of all its partitions with --from",
        from.display(),
        identity.owner()
    );
    ensure!(
        !is_of_region(from)?,
        "{} belongs to {}, of a region with storage nodes: one such directory that is lost is not needed, as the other nodes give all of \
         it to an empty one; to keep a copy of all, copy the directories of all nodes as they are while all are stopped, or have them \
         take checkpoints to a store and restore that with --config",
        from.display(),
        identity.owner()
    );
    let until = to_epoch.map(Epoch);
    let sound = Sound::check(&mut source, &identity, until.unwrap_or(Epoch(u64::MAX)))?;
    let mut target = FsDirectory::open(data_dir)?;
    let _target_lock = DirLock::acquire(data_dir)?;
    if let Err(error) = copy(&source, &mut target, &sound, until) {
        return Err(match clear(&mut target) {
            Ok(()) => error.context("nothing was restored"),
            Err(_) => error.context(format!("{} is incomplete: remove it", data_dir.display())),
        });
    }
    let files = target.list()?;
    let bytes: u64 = files.iter().map(|(_, len)| len).sum();
    let checkpoints: Vec<u64> = ordain_checkpoint::list(&target)?.iter().map(|found| found.epoch.0).collect();
    let epoch = sound.last.map(|last| until.map_or(last, |until| until.min(last)));
    let end = epoch.map_or(String::new(), |epoch| format!(" at the end of epoch {epoch}"));
    println!(
        "restored {}{end}: {} files, {bytes} bytes, {} checkpoints",
        identity.owner(),
        files.len(),
        checkpoints.len()
    );
    let summary = json!({
        "owner": identity.owner(),
        "epoch": epoch.map(|epoch| epoch.0),
        "checkpoints": checkpoints,
        "files": files.len(),
        "bytes": bytes,
    });
    report::write_json(json.as_deref(), &summary)?;
    Ok(true)
}

/// A source in which nothing is damaged.
struct Sound {
    /// The epochs of the complete checkpoints, the oldest first.
    complete: Vec<Epoch>,
    /// The files of those that are not restored: unfinished ones, and later ones.
    left_out: BTreeSet<String>,
    /// The files of the log, which a cut makes anew.
    log: BTreeSet<String>,
    /// The log begins after this epoch.
    begins_after: Epoch,
    /// The last epoch that it knows of. A replication group's journal knows what was written, and not what counts.
    last: Option<Epoch>,
}

impl Sound {
    /// Reads all that is to be restored.
    fn check(source: &mut FsDirectory, identity: &Identity, until: Epoch) -> anyhow::Result<Sound> {
        let owner = identity.for_log();
        let is_group = GroupJournal::is_in(source)?;
        let mut journal = GroupJournal::of(source)?;
        let mut log = BTreeSet::new();
        let report = ordain_log::inspect(source, Some(&owner), |item| {
            match item {
                Item::Segment(segment) => _ = log.insert(segment.file),
                Item::Entry(entry, payload) if is_group && entry.kind == Kind::Data => {
                    let record =
                        GroupRecord::decode(&payload).ok_or("it is no record of a replication group")?;
                    journal.take(entry.epoch, &record).ok_or("it cannot follow the records before it")?;
                }
                Item::Entry(..) => {}
            }
            Ok(())
        })?;
        ensure!(
            report.segments > 0 || !identity.has_log,
            "the log is lost: there is none, and there was one"
        );
        ensure!(!is_group || journal.may_end(), "the journal of the replication group has lost its end");
        log.extend(report.leftover);
        for part in [RECEIVE_JOURNAL, CONFIGURATION_SERVICE] {
            let verified = ordain_log::verify(&Space::new(source, part), Some(&owner));
            verified.with_context(|| format!("in the files {part}*"))?;
        }
        let (mut complete, mut left_out) = (Vec::new(), BTreeSet::new());
        for found in ordain_checkpoint::list(source)? {
            let epoch = found.epoch;
            if found.is_complete() {
                complete.push(epoch);
            }
            if epoch > until || !found.is_complete() {
                left_out.extend(found.files);
                continue;
            }
            let (header, _) = ordain_checkpoint::verify(source, epoch)
                .context("to do without it, remove its two files from a copy and restore that")?;
            ensure!(header.identity == owner, "the checkpoint of epoch {epoch} is of another node");
        }
        let begins_after = if is_group { journal.begins_after().1 } else { report.starts_after };
        let newest = complete.last().copied().unwrap_or_default();
        let last = (!is_group).then_some(report.last_epoch.max(newest));
        let sound = Sound { complete, left_out, log, begins_after, last };
        // A node that is to be rebuilt does without what would be missing.
        if identity.pending().is_none() {
            sound.reaches_back_to(until)?;
        }
        Ok(sound)
    }

    /// Checks that the state at the end of an epoch can be put together.
    fn reaches_back_to(&self, until: Epoch) -> anyhow::Result<()> {
        let begins_after = self.begins_after;
        let follows = |epoch: &&Epoch| **epoch >= begins_after;
        let earliest =
            if begins_after == Epoch(0) { Some(&Epoch(0)) } else { self.complete.iter().find(follows) };
        let earliest = earliest.with_context(|| {
            format!("the log begins after epoch {begins_after}, and no complete checkpoint covers what came before")
        })?;
        ensure!(
            until >= *earliest,
            "the state at the end of epoch {until} cannot be put together any more: what there is begins with epoch \
             {earliest}, by a checkpoint, so --to-epoch must be at least that"
        );
        Ok(())
    }
}

/// Copies what was found sound.
fn copy(
    source: &FsDirectory,
    target: &mut FsDirectory,
    sound: &Sound,
    until: Option<Epoch>,
) -> anyhow::Result<()> {
    let is_cut = |file: &str| until.is_some() && sound.log.contains(file);
    for (file, len) in source.list()? {
        if file != FILE && !sound.left_out.contains(&file) && !is_cut(&file) {
            copy_file(source, target, &file, len, len)?;
        }
    }
    if let Some(until) = until {
        copy_until(source, target, until)?;
    }
    target.apply(&DiskOp::SyncDirectory)?;
    let len = source.list()?.into_iter().find_map(|(file, len)| (file == FILE).then_some(len));
    let len = len.with_context(|| format!("{FILE} is gone"))?;
    copy_file(source, target, FILE, len, len)?;
    Ok(target.apply(&DiskOp::SyncDirectory)?)
}

/// Removes what was copied.
pub(crate) fn clear(target: &mut FsDirectory) -> anyhow::Result<()> {
    for (file, _) in target.list()? {
        target.apply(&DiskOp::Remove { file })?;
    }
    Ok(target.apply(&DiskOp::SyncDirectory)?)
}

/// Refuses a directory in which there is anything but the lock that every process leaves behind.
pub(crate) fn ensure_empty(directory: &Path) -> anyhow::Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    let entries =
        std::fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
    for entry in entries {
        let name = entry?.file_name();
        ensure!(
            name == LOCK,
            "{} is not empty, it has {}: name a new directory with --data-dir",
            directory.display(),
            name.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tells whether an epoch can be restored of a log that begins after one, with complete checkpoints of these.
    fn can(begins_after: u64, complete: &[u64], until: u64) -> Result<(), String> {
        let sound = Sound {
            complete: complete.iter().map(|epoch| Epoch(*epoch)).collect(),
            left_out: BTreeSet::new(),
            log: BTreeSet::new(),
            begins_after: Epoch(begins_after),
            last: None,
        };
        sound.reaches_back_to(Epoch(until)).map_err(|error| error.to_string())
    }

    #[test]
    fn an_epoch_needs_a_checkpoint_that_the_log_goes_on_from() {
        // All of the log is there: any epoch will do, with checkpoints and without.
        for complete in [&[][..], &[7]] {
            for until in [0, 1, 6, 7, u64::MAX] {
                assert_eq!(can(0, complete, until), Ok(()));
            }
        }
        // What was before 10 is gone. The one of 8 has a gap after it.
        for (until, possible) in [(7, false), (9, false), (11, false), (12, true), (19, true), (20, true)] {
            let said = can(10, &[8, 12, 20], until);
            assert_eq!(said.is_ok(), possible, "{until}: {said:?}");
            assert!(said.err().is_none_or(|said| said.contains("at least") && said.contains("epoch 12")));
        }
        assert_eq!(can(10, &[10], 10), Ok(()), "right after it");
        for complete in [&[][..], &[8]] {
            assert!(can(10, complete, u64::MAX).unwrap_err().contains("no complete checkpoint"));
        }
    }
}
