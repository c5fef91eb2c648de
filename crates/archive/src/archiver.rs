//! The thread that takes to the archive what its node has completed.
//!
//! It looks into the node's directory: a checkpoint with a seal there is complete, whoever made it and whenever. It reads it
//! through, as a start would, so that nothing damaged takes a sound one's place; uploads the file; and puts the seal last. What
//! a member has put there of the same epoch already is not put there again: the first replica comes first, the others have
//! [patience](ArchiverSettings::patience).
//!
//! What goes wrong is tried again after a second, then two, then four, up to a minute. Nobody waits for this thread: no loop
//! knows of it. What it does stands in [`Standing`].

use std::collections::BTreeSet;
use std::fs::File;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ordain_checkpoint::{CheckpointError, Found, Header, file_name, list};
use ordain_model::{Epoch, Millis};
use ordain_role::NodeId;
use ordain_runtime::FsDirectory;
use tokio::sync::watch;

use crate::archive::{Archive, ArchiveError, Object, runtime};
use crate::location::{Environment, Location};
use crate::names::{Kind, Name};
use crate::seal::{Owner, Sealed};

/// The settings of an archiver.
#[derive(Clone, Debug)]
pub struct ArchiverSettings {
    /// The store.
    pub location: Location,
    /// The environment's values for the store.
    pub environment: Environment,
    /// The node's data directory.
    pub data_dir: PathBuf,
    /// The node.
    pub node: NodeId,
    /// The owner of the checkpoints.
    pub owner: Owner,
    /// The header of the node's checkpoints, but for the epoch.
    pub header: Header,
    /// The number of the partition's checkpoints that are kept in the store.
    pub keep: usize,
    /// The time after its completion for which this node leaves a checkpoint to a member; `None` if members'
    /// checkpoints are not the same.
    pub patience: Option<Duration>,
    /// The pace at which it looks for a new one.
    pub pace: Duration,
    /// The wait after the first failure, doubled after each, up to [`WAIT_MAX`].
    pub wait: Duration,
    /// The length of a part of an upload; none: the usual one.
    pub part: Option<u64>,
}

/// The longest time between two attempts.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

impl ArchiverSettings {
    /// Settings with the usual times.
    pub fn new(
        location: Location,
        data_dir: PathBuf,
        (node, owner, header): (NodeId, Owner, Header),
    ) -> ArchiverSettings {
        ArchiverSettings {
            location,
            environment: Environment::of_process(),
            data_dir,
            node,
            owner,
            header,
            keep: KEEP.get(),
            patience: Some(Duration::ZERO),
            pace: Duration::from_secs(1),
            wait: Duration::from_secs(1),
            part: None,
        }
    }

    /// The place in the store where this partition's checkpoints are.
    fn place(&self) -> String {
        format!("{}/{}", self.owner.cluster, self.owner.partition)
    }
}

/// The default number of checkpoints that are kept in the store.
pub const KEEP: NonZeroUsize = NonZeroUsize::new(7).expect("it is not zero");

/// The state of an archive, as its node sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Epoch of the newest checkpoint of the partition that is known to be there.
    pub epoch: Epoch,
    /// The number of the partition's checkpoints in the store.
    pub kept: usize,
    /// Epoch of the one that is being taken there.
    pub uploading: Option<Epoch>,
    /// The number of uploads by this node since its start.
    pub uploaded: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The number of failed attempts.
    pub failures: u64,
    /// The reason of the last attempt's failure, if it failed.
    pub failing: Option<String>,
}

/// A report that one thread writes and others read.
#[derive(Clone, Debug, Default)]
pub struct Standing(Arc<Mutex<Report>>);

impl Standing {
    /// The current report.
    pub fn report(&self) -> Report {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, change: impl FnOnce(&mut Report)) {
        // Each change leaves a whole report behind, even if a thread panics in between.
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// The thread. It ends when this goes, whatever it was doing: half an upload is nothing.
#[derive(Debug)]
pub struct Archiver {
    standing: Standing,
    stop: watch::Sender<bool>,
    /// The other end goes when the thread ends.
    ended: mpsc::Receiver<()>,
}

/// The time for which a node that stops waits for its archiver: a mounted store that hangs would hang for ever.
const END_WITHIN: Duration = Duration::from_secs(2);

impl Archiver {
    /// Starts it.
    ///
    /// # Errors
    /// The system refuses a thread, or the directory cannot be opened.
    pub fn start(settings: ArchiverSettings) -> Result<Archiver, ArchiveError> {
        let local = |reason: String| ArchiveError::Local(reason);
        let directory = FsDirectory::open(&settings.data_dir).map_err(|error| local(error.to_string()))?;
        let runtime = runtime()?;
        let (stop, mut stopped) = watch::channel(false);
        let standing = Standing::default();
        let work = Work {
            settings,
            directory,
            archive: None,
            handled: BTreeSet::new(),
            standing: standing.clone(),
            stopped: stopped.clone(),
        };
        let (until_then, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("ordain-archive".into()).spawn(move || {
            let _until_then: mpsc::Sender<()> = until_then;
            runtime.block_on(async move {
                tokio::select! {
                    () = work.run() => {}
                    _ = stopped.wait_for(|stop| *stop) => {}
                }
            });
            runtime.shutdown_background();
        });
        thread.map_err(|error| local(format!("cannot start the archiver: {error}")))?;
        Ok(Archiver { standing, stop, ended })
    }

    /// The state of the archive.
    pub fn standing(&self) -> Standing {
        self.standing.clone()
    }
}

impl Drop for Archiver {
    fn drop(&mut self) {
        // Without a receiver the thread has ended already.
        let _ = self.stop.send(true);
        let _ = self.ended.recv_timeout(END_WITHIN);
    }
}

/// The state of the archiver's thread.
struct Work {
    settings: ArchiverSettings,
    directory: FsDirectory,
    /// The way to the store, once there is one.
    archive: Option<Archive>,
    /// Epochs of which nothing is left to do.
    handled: BTreeSet<Epoch>,
    standing: Standing,
    stopped: watch::Receiver<bool>,
}

impl Work {
    async fn run(mut self) {
        let mut wait = self.settings.wait;
        loop {
            let pause = match self.step().await {
                Ok(()) => {
                    if self.standing.report().failing.is_some() {
                        tracing::info!(store = %self.settings.location, "the checkpoint store works again");
                        self.standing.note(|report| report.failing = None);
                    }
                    wait = self.settings.wait;
                    self.settings.pace
                }
                Err(error) => {
                    let reason = error.to_string();
                    let is_new = self.standing.report().failing.as_ref() != Some(&reason);
                    if is_new {
                        let store = &self.settings.location;
                        tracing::warn!(%store, "a checkpoint was not archived, and will be tried again: {reason}");
                    }
                    self.standing.note(|report| {
                        report.failures += 1;
                        report.uploading = None;
                        report.failing = Some(reason);
                    });
                    let pause = wait;
                    wait = (wait * 2).min(WAIT_MAX);
                    pause
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Takes what is new to the archive, the oldest first.
    async fn step(&mut self) -> Result<(), ArchiveError> {
        let local = |error: &dyn std::fmt::Display| ArchiveError::Local(error.to_string());
        let complete = list(&self.directory).map_err(|error| local(&error))?;
        let complete: Vec<Found> = complete.into_iter().filter(Found::is_complete).collect();
        let has = |epoch: &Epoch| complete.iter().any(|found| found.epoch == *epoch);
        self.handled.retain(has);
        let Some(newest) = complete.last().map(|found| found.epoch) else { return Ok(()) };
        for found in complete {
            if self.handled.contains(&found.epoch) || !self.is_due(&found) {
                continue;
            }
            self.take(&found, newest).await?;
            self.handled.insert(found.epoch);
        }
        Ok(())
    }

    /// Tells whether this node takes the checkpoint now.
    fn is_due(&self, found: &Found) -> bool {
        let patience = self.settings.patience.unwrap_or_default();
        let at = found.seal.map_or(Millis(0), |seal| seal.at);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The bound of the wait holds for a clock that was set back too.
        let age = now.checked_sub(Duration::from_millis(at.0)).unwrap_or(patience);
        age >= patience
    }

    fn archive(&mut self) -> Result<Archive, ArchiveError> {
        if let Some(archive) = &self.archive {
            return Ok(archive.clone());
        }
        let archive = Archive::open(&self.settings.location, &self.settings.environment)?;
        let archive = self.settings.part.map_or(archive.clone(), |part| archive.with_part(part));
        Ok(self.archive.insert(archive).clone())
    }

    /// Takes one to the archive, unless it is there or is of no use there.
    async fn take(&mut self, found: &Found, newest: Epoch) -> Result<(), ArchiveError> {
        let (archive, place) = (self.archive()?, self.settings.place());
        let there = self.names(&archive, &place).await?;
        let me = self.settings.node;
        if let Some(later) = there.iter().find(|name| name.node == me && name.epoch > newest) {
            let reason = format!(
                "this node had a checkpoint of epoch {} and has none later than {newest}: that is of another cluster of \
                 this name, or of this one before it went back; give it another store, or another prefix",
                later.epoch
            );
            return Err(ArchiveError::Unusable { name: format!("{place}/{later}"), reason });
        }
        let agrees = self.settings.patience.is_some();
        let is_there = there.iter().any(|name| name.epoch == found.epoch && (agrees || name.node == me));
        let is_old = there.iter().filter(|name| name.epoch > found.epoch).count() >= self.settings.keep;
        if is_there || is_old {
            return Ok(());
        }
        if !self.is_sound(found) {
            return Ok(());
        }
        self.standing.note(|report| report.uploading = Some(found.epoch));
        let (epoch, at) = (found.epoch, found.seal.map_or(Millis(0), |seal| seal.at));
        let name = Name { epoch, node: me, kind: Kind::State };
        let file = match File::open(self.settings.data_dir.join(file_name(epoch))) {
            Ok(file) => file,
            // A later one has taken its place meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                return Err(ArchiveError::Local(format!("cannot read {}: {error}", file_name(epoch))));
            }
        };
        let bytes = archive.upload(&format!("{place}/{name}"), file).await?;
        let sealed = Sealed::new(epoch, at, bytes, me.0, self.settings.owner.clone());
        archive.put(&format!("{place}/{}", name.with(Kind::Seal)), sealed.encode()).await?;
        tracing::info!(%epoch, bytes, store = %self.settings.location, "archived a checkpoint");
        self.standing.note(|report| {
            report.uploading = None;
            report.uploaded += 1;
            report.bytes += bytes;
        });
        self.retire(&archive, &place).await
    }

    /// The seals that are there, in the order of epochs.
    async fn names(&self, archive: &Archive, place: &str) -> Result<Vec<Name>, ArchiveError> {
        let objects = archive.list(place).await?.0;
        let names = objects.iter().filter_map(|object| Name::parse(&object.name));
        let seals: Vec<Name> = names.filter(|name| name.kind == Kind::Seal).collect();
        let epochs: BTreeSet<Epoch> = seals.iter().map(|name| name.epoch).collect();
        self.standing.note(|report| {
            report.epoch = epochs.last().copied().unwrap_or_default();
            report.kept = epochs.len();
        });
        Ok(seals)
    }

    /// Reads it through. One that is not what was written does not count here either; what is gone needs nothing.
    fn is_sound(&self, found: &Found) -> bool {
        let expected = Header { epoch: found.epoch, ..self.settings.header.clone() };
        let (mut items, mut is_to_stop) = (0_u32, false);
        let read = ordain_checkpoint::read(&self.directory, &expected, |_| {
            items = items.wrapping_add(1);
            if items.is_multiple_of(1024) {
                is_to_stop = *self.stopped.borrow();
            }
            if is_to_stop { Err("the node stops".to_owned()) } else { Ok(()) }
        });
        match read {
            Ok(_) => true,
            Err(CheckpointError::Disk(_)) => false,
            Err(_) if is_to_stop => false,
            Err(error) => {
                let epoch = found.epoch;
                tracing::warn!(%epoch, "a checkpoint cannot be used, so it is not archived: {error}");
                false
            }
        }
    }

    /// Removes what is older than what is kept: a seal before what it seals, and what has none.
    async fn retire(&mut self, archive: &Archive, place: &str) -> Result<(), ArchiveError> {
        let seals = self.names(archive, place).await?;
        let epochs: BTreeSet<Epoch> = seals.iter().map(|name| name.epoch).collect();
        let Some(oldest) = epochs.iter().rev().nth(self.settings.keep.max(1) - 1).copied() else {
            return Ok(());
        };
        let objects: Vec<Object> = archive.list(place).await?.0;
        let mut names: Vec<Name> = objects.iter().filter_map(|object| Name::parse(&object.name)).collect();
        names.retain(|name| name.epoch < oldest);
        names.sort_by_key(|name| (name.kind == Kind::State, *name));
        for name in names {
            archive.remove(&format!("{place}/{name}")).await?;
        }
        self.names(archive, place).await.map(drop)
    }
}
