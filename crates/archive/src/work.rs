//! The work of an archiver: which checkpoints go to the store, in which order, what is removed there, and what is refused.
//!
//! It knows neither threads nor sockets. [`Machine`] is the node that it works for, [`Store`] the store: the node's thread
//! ([`archiver`](crate::archiver)) drives it with real ones, the simulator with ones that fail, are slow and lose power.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::future::Future;
use std::io::Read;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ordain_checkpoint::{CheckpointError, Found, Header};
use ordain_model::{Epoch, Millis};
use ordain_role::{Directory, NodeId};

use crate::archive::{ArchiveError, Object};
use crate::names::{Kind, Name};
use crate::seal::{Owner, Sealed};

/// A file to be uploaded, open to be read once.
pub struct Content {
    bytes: Box<dyn Read + Send>,
    len: u64,
}

impl Content {
    /// Content of `len` bytes, read from `bytes` when it is sent.
    pub fn new(bytes: impl Read + Send + 'static, len: u64) -> Content {
        Content { bytes: Box::new(bytes), len }
    }

    /// The length when the file was opened, bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Tells whether there was nothing in the file when it was opened.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Read for Content {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        self.bytes.read(into)
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Content").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The requests of an archiver to its store. Any of them may fail, and a failed one may have taken effect all the same.
pub trait Store {
    /// The objects right below a place, and the places below it; both in order.
    fn list(&self, under: &str) -> impl Future<Output = Result<(Vec<Object>, Vec<String>), ArchiveError>>;

    /// Puts a small object there, in the place of one of that name.
    fn put(&self, name: &str, bytes: Vec<u8>) -> impl Future<Output = Result<(), ArchiveError>>;

    /// Uploads a file and answers its length. The object is there when this returns, and not before.
    fn upload(&self, name: &str, content: Content) -> impl Future<Output = Result<u64, ArchiveError>>;

    /// Removes an object; that it is gone already is well.
    fn remove(&self, name: &str) -> impl Future<Output = Result<(), ArchiveError>>;
}

/// The node that an archiver works for: its directory, its clock.
pub trait Machine {
    /// The checkpoints in the node's directory, the oldest first.
    fn look(&self) -> impl Future<Output = Result<Vec<Found>, ArchiveError>>;

    /// Tells whether a checkpoint is what was written ([`is_sound`]).
    fn is_sound(&self, expected: Header) -> impl Future<Output = bool>;

    /// Opens the state of a checkpoint; `None` if a later one has taken its place.
    fn open(&self, epoch: Epoch) -> impl Future<Output = Result<Option<Content>, ArchiveError>>;

    /// The time, by the wall clock.
    fn now(&self) -> Millis;

    /// Waits.
    fn pause(&self, lasts: Duration) -> impl Future<Output = ()>;
}

/// The rules by which an archiver works.
#[derive(Clone, Debug)]
pub struct Rules {
    /// The node.
    pub node: NodeId,
    /// The owner of the checkpoints.
    pub owner: Owner,
    /// The header of the node's checkpoints, but for the epoch.
    pub header: Header,
    /// The number of checkpoints of the whole cluster that are kept in the store, at least 1.
    pub keep: usize,
    /// The time after its completion for which this node leaves a checkpoint to a member; `None` if members'
    /// checkpoints are not the same.
    pub patience: Option<Duration>,
    /// The pace at which it looks for a new one.
    pub pace: Duration,
    /// The wait after the first failure, doubled after each, up to [`WAIT_MAX`].
    pub wait: Duration,
}

/// The longest time between two attempts.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

impl Rules {
    /// The place in the store where a partition's checkpoints are.
    fn place_of(&self, partition: usize) -> String {
        format!("{}/{partition}", self.owner.cluster)
    }

    /// The place in the store where this partition's checkpoints are.
    fn place(&self) -> String {
        self.place_of(usize::from(self.owner.partition))
    }

    /// The replica whose checkpoints belong together with those of a node; the same for all where members' are the same.
    fn replica_of(&self, node: NodeId) -> usize {
        match self.patience {
            Some(_) => 0,
            None => usize::from(node.0) / self.owner.starts.len().max(1),
        }
    }
}

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

/// Reads a checkpoint through, until `stops` says so. One that is not what was written does not count here either; what is
/// gone needs nothing.
pub fn is_sound(directory: &dyn Directory, expected: &Header, stops: impl Fn() -> bool) -> bool {
    let (mut items, mut is_to_stop) = (0_u32, false);
    let read = ordain_checkpoint::read(directory, expected, |_| {
        items = items.wrapping_add(1);
        if items.is_multiple_of(1024) {
            is_to_stop = stops();
        }
        if is_to_stop { Err("the node stops".to_owned()) } else { Ok(()) }
    });
    match read {
        Ok(_) => true,
        Err(CheckpointError::Disk(_)) => false,
        Err(_) if is_to_stop => false,
        Err(error) => {
            let epoch = expected.epoch;
            tracing::warn!(%epoch, "a checkpoint cannot be used, so it is not archived: {error}");
            false
        }
    }
}

/// The work of one node's archiver, from the node's start to its end.
#[derive(Debug)]
pub struct Work<M, S> {
    rules: Rules,
    machine: M,
    store: S,
    /// The store's name, for people.
    location: String,
    /// Epochs of which nothing is left to do.
    handled: BTreeSet<Epoch>,
    standing: Standing,
}

impl<M: Machine, S: Store> Work<M, S> {
    /// Work that is to begin; `standing` is told how it stands.
    pub fn new(rules: Rules, machine: M, (store, location): (S, String), standing: Standing) -> Work<M, S> {
        Work { rules, machine, store, location, handled: BTreeSet::new(), standing }
    }

    /// Works for ever.
    pub async fn run(mut self) {
        let mut wait = self.rules.wait;
        loop {
            let pause = match self.step().await {
                Ok(()) => {
                    if self.standing.report().failing.is_some() {
                        tracing::info!(store = %self.location, "the checkpoint store works again");
                        self.standing.note(|report| report.failing = None);
                    }
                    wait = self.rules.wait;
                    self.rules.pace
                }
                Err(error) => {
                    let reason = error.to_string();
                    let is_new = self.standing.report().failing.as_ref() != Some(&reason);
                    if is_new {
                        let store = &self.location;
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
            self.machine.pause(pause).await;
        }
    }

    /// Takes what is new to the archive, the oldest first.
    async fn step(&mut self) -> Result<(), ArchiveError> {
        let complete: Vec<Found> =
            self.machine.look().await?.into_iter().filter(Found::is_complete).collect();
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
        let patience = self.rules.patience.unwrap_or_default();
        let at = found.seal.map_or(Millis(0), |seal| seal.at);
        let now = Duration::from_millis(self.machine.now().0);
        // The bound of the wait holds for a clock that was set back too.
        let age = now.checked_sub(Duration::from_millis(at.0)).unwrap_or(patience);
        age >= patience
    }

    /// Takes one to the archive, unless it is there or is of no use there.
    async fn take(&mut self, found: &Found, newest: Epoch) -> Result<(), ArchiveError> {
        let place = self.rules.place();
        let there = self.seals().await?;
        let me = self.rules.node;
        if let Some(later) = there.iter().find(|name| name.node == me && name.epoch > newest) {
            let reason = format!(
                "this node had a checkpoint of epoch {} and has none later than {newest}: that is of another cluster of \
                 this name, or of this one before it went back; give it another store, or another prefix",
                later.epoch
            );
            return Err(ArchiveError::Unusable { name: format!("{place}/{later}"), reason });
        }
        let agrees = self.rules.patience.is_some();
        let is_there = there.iter().any(|name| name.epoch == found.epoch && (agrees || name.node == me));
        if is_there || self.oldest_kept(&there).await?.is_some_and(|oldest| found.epoch < oldest) {
            return Ok(());
        }
        if !self.machine.is_sound(Header { epoch: found.epoch, ..self.rules.header.clone() }).await {
            return Ok(());
        }
        self.standing.note(|report| report.uploading = Some(found.epoch));
        let (epoch, at) = (found.epoch, found.seal.map_or(Millis(0), |seal| seal.at));
        let name = Name { epoch, node: me, kind: Kind::State };
        let Some(content) = self.machine.open(epoch).await? else { return Ok(()) };
        let bytes = self.store.upload(&format!("{place}/{name}"), content).await?;
        let sealed = Sealed::new(epoch, at, bytes, me.0, self.rules.owner.clone());
        self.store.put(&format!("{place}/{}", name.with(Kind::Seal)), sealed.encode()).await?;
        tracing::info!(%epoch, bytes, store = %self.location, "archived a checkpoint");
        self.standing.note(|report| {
            report.uploading = None;
            report.uploaded += 1;
            report.bytes += bytes;
        });
        self.retire().await
    }

    /// The objects of a partition that are ours, by name.
    async fn names(&self, place: &str) -> Result<Vec<Name>, ArchiveError> {
        let (objects, _) = self.store.list(place).await?;
        Ok(objects.iter().filter_map(|object| Name::parse(&object.name)).collect())
    }

    /// The seals of this partition that are there, in the order of epochs.
    async fn seals(&self) -> Result<Vec<Name>, ArchiveError> {
        let mut seals = self.names(&self.rules.place()).await?;
        seals.retain(|name| name.kind == Kind::Seal);
        let epochs: BTreeSet<Epoch> = seals.iter().map(|name| name.epoch).collect();
        self.standing.note(|report| {
            report.epoch = epochs.last().copied().unwrap_or_default();
            report.kept = epochs.len();
        });
        Ok(seals)
    }

    /// The epoch of the oldest checkpoint that is kept; `None` while there are fewer than are to be kept.
    ///
    /// A cluster is restored from checkpoints of one epoch, so only those count that all partitions have: one whose
    /// uploads fail for long would else be left with epochs that the others have removed.
    async fn oldest_kept(&self, own: &[Name]) -> Result<Option<Epoch>, ArchiveError> {
        let mut holders: BTreeMap<(usize, Epoch), BTreeSet<usize>> = BTreeMap::new();
        for partition in 0..self.rules.owner.starts.len() {
            let of_other;
            let names = if partition == usize::from(self.rules.owner.partition) {
                own
            } else {
                of_other = self.names(&self.rules.place_of(partition)).await?;
                &of_other
            };
            for name in names.iter().filter(|name| name.kind == Kind::Seal) {
                holders.entry((self.rules.replica_of(name.node), name.epoch)).or_default().insert(partition);
            }
        }
        let whole = holders.into_iter().filter(|(_, held)| held.len() == self.rules.owner.starts.len());
        let whole: BTreeSet<Epoch> = whole.map(|((_, epoch), _)| epoch).collect();
        Ok(whole.iter().rev().nth(self.rules.keep.max(1) - 1).copied())
    }

    /// Removes what is older than what is kept: a seal before what it seals, and what has none.
    async fn retire(&mut self) -> Result<(), ArchiveError> {
        let (place, seals) = (self.rules.place(), self.seals().await?);
        let Some(oldest) = self.oldest_kept(&seals).await? else { return Ok(()) };
        let mut names = self.names(&place).await?;
        names.retain(|name| name.epoch < oldest);
        names.sort_by_key(|name| (name.kind == Kind::State, *name));
        for name in names {
            self.store.remove(&format!("{place}/{name}")).await?;
        }
        self.seals().await.map(drop)
    }
}
