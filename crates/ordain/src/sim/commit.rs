//! A cluster of an engine of the commit family under simulation: what clients append and read, and how a run is checked.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_checker::history::{History, Request};
use ordain_checker::{Level, Violation, ViolationKind};
use ordain_commit::options::{RO_LOCAL, RO_MODE, SKEW_US};
use ordain_commit::{
    AHEAD, Age, AttemptId, CommitEngine, CommitFamily, Content, Entry, Holding, Message, Order, Participant,
    Protocol, Stamps, TableChange, Terms, Write, seen_by,
};
use ordain_family::{Family as _, NodeSettings, Opened as _, Services, places};
use ordain_front::ConnectionServer;
use ordain_model::{
    Cell, Db, Digest, DigestSpan, Epoch, Layout, Micros, Options, PartitionId, Random, Registry, RoLocal,
    RoMode, Stamp,
};
use ordain_node::procedures;
use ordain_node::restore::{How, RestoreError};
use ordain_replication::Log;
use ordain_role::{Address, Bugs, Directory, Event, NodeId, Now, Outbox, Rebuild, Role, Topology};
use ordain_sim::{
    BatchSize, Companion, Config, Ending, Fault, Faults, FrontDoor, Operation, Roles, System, Verdict,
    VirtualHost, Workload, virtual_servers,
};
use ordain_workload::append;

use super::SimArgs;
use super::appends::{self, list_of};
use super::cuts;
use super::deterministic::CLUSTER;
use super::groups::{self, Gauge};
use super::heard;
use super::lives::Lives;
use super::mixed::{self, CommitMix};
use super::object_store::{VirtualStore, hasty};
use super::parts;
use super::regional::{Reach, Regional, reach_of};
use super::registers;
use super::replayed::Replays;
use super::restored::{self, Left, Target};
use super::stale;

/// A cluster of an engine of the commit family.
pub(super) struct CommitSystem {
    family: CommitFamily,
    settings: NodeSettings,
    registry: Arc<Registry>,
    /// The digest of each shard of each node, as it is now.
    digests: Digests,
    /// The entries that logs have handed on: a disk may not know yet that the last of its own are agreed on.
    sealed: Arc<Mutex<Sealed>>,
    /// The digests of all shards of a node together, with the entry that all of them had applied last.
    reported: Vec<(NodeId, PartitionId, Epoch, Digest)>,
    lives: Lives,
    /// The nodes that wait for what their disks lack, and take no clients.
    waiting: BTreeSet<NodeId>,
    /// The seed.
    seed: u64,
    /// Settings differ from start to start.
    varies: bool,
    /// Where nodes take their checkpoints.
    store: Option<VirtualStore>,
    /// What became of the restore at the end, if there is to be one.
    restores: Option<Rc<RefCell<Restores>>>,
    /// The replay of the run in the order of stamps, if attempts have some.
    replays: Replays,
}

/// The clusters that were put together at the end of a run.
#[derive(Clone, Copy, Default)]
pub(super) struct Restores {
    /// Clusters with the state at a cut.
    pub(super) made: u32,
    /// There was no cut that could be restored.
    pub(super) refused: u32,
}

/// The kinds of messages that a leader may stand still behind: about its log, about reads, and where there are several partitions
/// the steps of two-phase commit.
const PIVOTS: [&str; 10] = [
    "append",
    "sealed",
    "agreement",
    "confirmed",
    "access",
    "accessed",
    "confirmation",
    "prepare",
    "vote",
    "decide",
];
/// The first of [`PIVOTS`], those that one partition has.
const PIVOTS_OF_ONE: usize = 7;

type Digests = Arc<Mutex<BTreeMap<(NodeId, u16), DigestSpan>>>;

/// Entries that logs have handed on, or that a node found in its log when it was started.
#[derive(Default)]
struct Sealed {
    logs: Logs,
    /// Two entries that were handed on in one place.
    conflict: Option<String>,
    /// The first entry of each node that it has handed on and that is not durable yet.
    early: BTreeMap<NodeId, Epoch>,
}

/// The entries of a partition's log, by place.
pub(super) type Entries = BTreeMap<Epoch, Arc<Entry>>;

/// The logs of all partitions, as far as they are agreed on.
pub(super) type Logs = BTreeMap<PartitionId, Entries>;

/// Takes what the disk of a node has of its partition's log, behind what was trimmed. Of a node on its own that is the log; one of
/// several members may not know yet that the last entries are agreed on. Answers an entry that stands in the place of another.
fn take_in(
    logs: &mut Logs,
    (partition, has_members): (PartitionId, bool),
    (after, entries): (Epoch, &[Arc<Entry>]),
) -> Option<[Arc<Entry>; 2]> {
    // A disk without anything is not the node's own: what it was answered for is durable.
    if !has_members && (after > Epoch(0) || !entries.is_empty()) {
        logs.entry(partition).or_default().split_off(&after.next());
    }
    let other = |entry: &Arc<Entry>| Some([entry.clone(), put(logs, partition, entry)?]);
    let others: Vec<_> = entries.iter().filter_map(other).collect();
    others.into_iter().next()
}

/// Adds an entry to those of its partition's log; answers another one in its place, if there is one.
fn put(logs: &mut Logs, partition: PartitionId, entry: &Arc<Entry>) -> Option<Arc<Entry>> {
    let known = logs.entry(partition).or_default().entry(entry.place).or_insert_with(|| entry.clone());
    (known != entry).then(|| known.clone())
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CommitSystem {
    /// The system that the flags describe, where they leave a choice as the seed has it.
    pub(super) fn new(
        engine: CommitEngine,
        options: Options,
        args: &SimArgs,
        seed: u64,
    ) -> anyhow::Result<CommitSystem> {
        let mut registry = (*procedures::all()).clone();
        mixed::register(&mut registry);
        let partitions = usize::from(args.partitions());
        let drawn = if partitions == 1 { [1, 2, 3, 5][seed as usize % 4] } else { 1 + seed as usize % 3 };
        let layout = Layout::even(partitions, args.shards.map_or(drawn, usize::from))?;
        let (servers, replicas) = args.nodes_of_one();
        let topology = Topology { layout: Arc::new(layout), replicas, servers };
        let nodes = usize::from(topology.nodes());
        let restores = args.operations.has(Operation::Restore);
        let archives = restores || args.operations.has(Operation::Archive);
        let store =
            archives.then(|| VirtualStore::new(seed, (partitions, false), args.faults != Faults::NONE));
        let bugs = args.plant.map_or(Bugs::NONE, |bug| Bugs::NONE.with(bug));
        let identity = b"simulated".to_vec();
        let settings = NodeSettings {
            topology,
            identity,
            segment_bytes: 4 << 10,
            // So little that logs are trimmed although a member is away, which gets a checkpoint then.
            log_keep_bytes: if seed % 3 == 1 { 8 << 10 } else { 8 << 30 },
            // Links have room for two dozen at least.
            piece: 2 << 10,
            // So little that a checkpoint is taken in many steps, between which much happens.
            checkpoint_piece: [1, 100, 400, 64 << 10][seed as usize % 4],
            memory_budget: args.memory_budget,
            // Any value may be evicted, however short.
            evicted_above: 0,
            checkpoints_kept: 1 + seed as usize % 3,
            trims: seed % 4 < 3,
            checkpoint_bytes: [2 << 10, 6 << 10, 20 << 10, 0][seed as usize / 2 % 4],
            storage: args.storage.into(),
            bugs,
            ..NodeSettings::new(options)
        };
        Ok(CommitSystem {
            family: CommitFamily { engine, services: Services::ALL },
            registry: Arc::new(registry.placing(settings.topology.layout.placement().clone())),
            settings,
            digests: Digests::default(),
            sealed: Arc::default(),
            reported: Vec::new(),
            lives: Lives::new(nodes, args.faults.has(Fault::Disk).then_some(seed)),
            waiting: BTreeSet::new(),
            seed,
            varies: args.operations.has(Operation::Rolling),
            store,
            restores: restores.then(Rc::default),
            replays: Replays::default(),
        })
    }

    /// True if a home whose clock is behind is refused until that has passed: clocks must not jump by hours.
    pub(super) fn needs_clocks(&self) -> bool {
        self.family.engine.order(&self.settings.options) == Order::Stamps
    }

    /// The level of an engine that need not keep the order of real time.
    pub(super) fn relaxed(&self) -> Option<Level> {
        match self.family.engine.order(&self.settings.options) {
            Order::RealTime => None,
            Order::Sessions | Order::Stamps => Some(Level::SessionSerializable),
            Order::Parallel => Some(Level::SessionParallelSnapshot),
            Order::FreshParallel => Some(Level::FreshParallelSnapshot),
        }
    }

    /// The load of the system: a mix, where there are several regions for each client that of its own.
    pub(super) fn load(&self) -> Box<dyn Workload> {
        let topology = &self.settings.topology;
        match topology.has_storage() && topology.layout.partitions() > 1 {
            true => Box::new(Regional::new(CommitMix::default(), topology.clone(), self.registry.clone())),
            false => Box::new(CommitMix::default()),
        }
    }

    /// The store to which nodes take their checkpoints, if they do.
    pub(super) fn store(&self) -> Option<VirtualStore> {
        self.store.clone()
    }

    /// The replay of the run, which can be held to nothing else.
    #[cfg(test)]
    pub(super) fn replays(&mut self) -> &mut Replays {
        &mut self.replays
    }

    /// Where it will stand what became of the restore at the end.
    pub(super) fn restores(&self) -> Option<Rc<RefCell<Restores>>> {
        self.restores.clone()
    }

    /// The settings with which a node starts that an operator restarts: what may differ from start to start does, but for the pause after
    /// a refused attempt, without which a run is nothing but attempts.
    fn varied(&self, settings: NodeSettings) -> NodeSettings {
        if !self.varies {
            return settings;
        }
        let mut random = Random::stream(self.seed, u64::from(settings.node.0) << 32 | settings.life);
        NodeSettings {
            segment_bytes: [4 << 10, 64 << 10][random.index(2)],
            log_keep_bytes: [8 << 10, 8 << 30][random.index(2)],
            checkpoint_bytes: [0, 4 << 10][random.index(2)],
            ..settings
        }
    }

    /// Puts a cluster together as the seed has it, from the store or from directories, with as many replicas as it draws, and checks
    /// what it holds.
    fn restore(&self, disks: &[(NodeId, Box<dyn Directory>)], logs: &Logs) -> Result<(), Violation> {
        let Some(restores) = &self.restores else { return Ok(()) };
        let mut random = Random::stream(self.seed, 0x4e5_702e);
        let topology = &self.settings.topology;
        let replicas = [1, 2, 3][random.index(3)];
        let settings = NodeSettings {
            topology: Topology::replicated(topology.layout.clone(), replicas),
            ..self.settings.clone()
        };
        let target = Target::new(&settings, &self.registry, How::Resolves);
        if let Some(violation) = self.store.as_ref().and_then(restored::lost) {
            return Err(violation);
        }
        let from_store =
            self.store.as_ref().filter(|store| !store.whole().is_empty() && random.chance(600_000));
        let pending = self.lives.pending();
        let put_together = match from_store {
            Some(store) => target.of_store(store, None),
            None => target.of_directories(&Left { disks, pending: &pending, topology }, None, &mut random),
        };
        let mut counts = restores.borrow_mut();
        let result = match put_together {
            Ok(restored) => {
                counts.made += 1;
                let finished = target.finish(&restored).map_err(|error| error.to_string());
                let what = (&self.family, &settings, &self.registry);
                finished.and_then(|()| cuts::check_restored(logs, &restored, target.disks(), what))
            }
            // Of one node of each partition there may be none that all have.
            Err(RestoreError::OutOfReach(_)) if from_store.is_none() => {
                counts.refused += 1;
                Ok(())
            }
            Err(error) => Err(format!("nothing can be restored: {error}")),
        };
        result.map_err(restored::wrong)
    }

    /// The settings of a node in one of its lives.
    fn of(&self, node: NodeId, incarnation: u32) -> NodeSettings {
        NodeSettings { life: u64::from(incarnation) + 1, ..self.lives.of(node, &self.settings) }
    }

    /// True if members agree on the logs.
    fn has_members(&self) -> bool {
        self.settings.topology.replicas > 1
    }

    fn partition_of(&self, node: NodeId) -> PartitionId {
        self.settings.topology.partition_of(node)
    }

    /// Checks that the answers are those of the order that the engine keeps. With stamps of the homes' clocks that is the order of real time too,
    /// but for what [`CommitSystem::inversion_max`] allows. A run whose clocks may drift and jump has no such bound, and is not held to one.
    fn check_order(
        &self,
        history: &History,
        config: &Config,
        logs: &Logs,
        lists: &BTreeMap<u64, Vec<u64>>,
    ) -> Result<(), Violation> {
        let engine = self.family.engine;
        let order = engine.order(&self.settings.options);
        let levels = match order {
            Order::RealTime if engine.is_strict => &[Level::StrictSerializable][..],
            Order::RealTime => &[Level::StampOrder, Level::StrictSerializable],
            Order::Sessions => &[Level::StampOrder],
            Order::Stamps => &[Level::StampsAlone],
            Order::Parallel => &[Level::SessionParallelSnapshot],
            Order::FreshParallel => &[Level::FreshParallelSnapshot],
        };
        levels.iter().try_for_each(|level| appends::check(*level, history, lists))?;
        // Stamps that are chosen when attempts commit have nothing to do with time.
        let is_timed = engine.stamps() != Stamps::AtCommit;
        let has_order = !matches!(order, Order::RealTime | Order::Parallel | Order::FreshParallel);
        if !has_order || config.faults.has(Fault::Clock) || !is_timed {
            return Ok(());
        }
        appends::check_within(self.inversion_max(logs), history, lists)
    }

    /// Checks what was read of other regions, if that may be of the past; answers the history without those requests.
    fn check_stale(&self, ending: &Ending<'_>, logs: &Logs) -> Result<Option<History>, Violation> {
        let topology = &self.settings.topology;
        if !topology.has_storage() || self.settings.options.choice::<RoMode>(&RO_MODE) != RoMode::Stale {
            return Ok(None);
        }
        let is_stale =
            |request: &Request| self.reach_of(ending.config, request) == Some(Reach::ReadsElsewhere);
        stale::check(ending.history, logs, &is_stale).map(Some)
    }

    /// A history without what only reads keys of its own region, if that may be of the past.
    fn without_resolved(&self, history: &History, config: &Config) -> Option<History> {
        if !self.settings.topology.has_storage()
            || self.settings.options.choice::<RoLocal>(&RO_LOCAL) != RoLocal::Resolved
        {
            return None;
        }
        let is_its = |request: &Request| self.reach_of(config, request) == Some(Reach::ReadsHome);
        let its = history.requests().filter(|(_, request)| is_its(request)).map(|(id, _)| id).collect();
        Some(stale::without(history, &its))
    }

    fn reach_of(&self, config: &Config, request: &Request) -> Option<Reach> {
        reach_of(&self.settings.topology, &self.registry, usize::from(config.doors), request)
    }

    /// The longest time between two transactions that may stand the other way round in the order of stamps, if all clocks show the true time:
    /// the injected skew, and by how much a stamp may be ahead of all clocks. A new leader's stamps begin at its predecessor's ceiling,
    /// which is one reservation ahead of all stamps before; terms that follow each other quickly add up.
    fn inversion_max(&self, logs: &Logs) -> Micros {
        let skew = self.settings.options.number(&SKEW_US);
        let begins = |entries: &Entries| {
            entries.values().filter(|entry| matches!(entry.content, Content::Begin)).count() as u64
        };
        let terms: u64 = logs.values().map(begins).sum();
        Micros(skew + terms.max(1) * AHEAD.0 * 1_000)
    }

    /// Checks that each reported digest is what the entries up to then come to.
    fn check_digests(&self, logs: &Logs) -> Result<(), Violation> {
        for (node, partition, place, reported) in &self.reported {
            let Some(entries) = logs.get(partition) else { continue };
            let control = (self.family.engine.control)(&self.settings.options, Bugs::NONE);
            let whole = Arc::new(self.settings.topology.layout.whole());
            let mut all = Participant::new(
                Holding::of_shard(whole, 0),
                Address::default(),
                self.registry.clone(),
                control,
            );
            entries.range(..=*place).for_each(|(_, entry)| _ = all.apply(entry));
            if all.digest() != *reported {
                let text = format!(
                    "node {} reported {reported} of partition {partition} after entry {place}, and it comes to {}",
                    node.0,
                    all.digest()
                );
                return Err(Violation::new(ViolationKind::WrongState, text));
            }
        }
        Ok(())
    }
}

/// The records that a partition's entries come to, worked out apart from the engine.
pub(super) fn records(entries: &Entries, committed: &BTreeMap<AttemptId, Age>, stamps: Stamps) -> Records {
    let mut records = Records::new();
    in_order(entries, committed, stamps).into_iter().for_each(|written| install(written, &mut records));
    records
}

/// Changes and writes of attempts at a partition, in the order in which they take effect: that of the log, or of stamps if attempts have some. A promise
/// without an outcome counts if the attempt has committed at its home.
fn in_order<'a>(
    entries: &'a Entries,
    committed: &BTreeMap<AttemptId, Age>,
    stamps: Stamps,
) -> Vec<Written<'a>> {
    let mut all: Vec<(Age, Written<'_>)> = Vec::new();
    let mut promised: BTreeMap<AttemptId, Written<'_>> = BTreeMap::new();
    let mut terms = Terms::default();
    for entry in entries.values().filter(|entry| terms.take(entry)) {
        let written = match &entry.content {
            Content::Commit(commit) => Some((commit.age, (&commit.changes[..], &commit.writes[..]))),
            Content::Prepare(prepare) => {
                promised.insert(prepare.attempt, (&prepare.changes, &prepare.writes));
                None
            }
            Content::Outcome(attempt, commit) => {
                promised.remove(attempt).and_then(|written| Some((commit.as_ref()?.stamp, written)))
            }
            Content::Begin
            | Content::Deny(_)
            | Content::Forget(_)
            | Content::Reserve(_)
            | Content::Mark
            | Content::Announce(_)
            | Content::Meet(_) => None,
        };
        all.extend(written);
    }
    let in_doubt = promised.into_iter();
    all.extend(in_doubt.filter_map(|(attempt, written)| Some((*committed.get(&attempt)?, written))));
    if stamps != Stamps::OfTransaction {
        all.sort_by_key(|(stamp, _)| *stamp);
    }
    all.into_iter().map(|(_, written)| written).collect()
}

/// Effects of an attempt at a partition: changes of whole databases, and writes after them.
pub(super) type Written<'a> = (&'a [TableChange], &'a [Write]);

/// Records by name.
pub(super) type Records = BTreeMap<(Db, Vec<u8>), Cell>;

pub(super) fn install((changes, writes): Written<'_>, records: &mut Records) {
    for change in changes {
        let becomes = |db: Db| match *change {
            TableChange::Clear(Some(of)) => (db.home() != of).then_some(db),
            TableChange::Clear(None) => (db.home().0 >= Db::COUNT).then_some(db),
            TableChange::Swap(a, b) if db == a => Some(b),
            TableChange::Swap(a, b) if db == b => Some(a),
            TableChange::Swap(..) => Some(db),
        };
        let before = std::mem::take(records);
        let after = before.into_iter().filter_map(|((db, key), cell)| Some(((becomes(db)?, key), cell)));
        records.extend(after);
    }
    for write in writes {
        records.insert((write.db, write.key.clone()), write.cell.clone());
    }
}

/// The attempts that have committed, with their stamps.
pub(super) fn committed(logs: &Logs) -> BTreeMap<AttemptId, Age> {
    let counting = |entries: &Entries| -> Vec<Arc<Entry>> {
        let mut terms = Terms::default();
        entries.values().filter(|entry| terms.take(entry)).cloned().collect()
    };
    let commits = logs.values().flat_map(counting).filter_map(|entry| match &entry.content {
        Content::Commit(commit) => Some((commit.attempt, commit.age)),
        _ => None,
    });
    commits.chain(parts::committed(logs)).collect()
}

/// The values of lists, as the records have them, and of registers, in the order in which they were written.
fn orders(logs: &Logs, stamps: Stamps) -> Result<BTreeMap<u64, Vec<u64>>, String> {
    let (mut orders, committed) = (BTreeMap::<u64, Vec<u64>>::new(), committed(logs));
    for entries in logs.values() {
        let records = records(entries, &committed, stamps);
        for ((_, key), cell) in records.iter().filter(|((db, _), _)| *db == append::DB) {
            let list = list_of(key).ok_or("a key of no list")?;
            orders.insert(list, mixed::list_values(cell.value.as_ref()).ok_or("a list of something else")?);
        }
        let written = in_order(entries, &committed, stamps).into_iter().flat_map(|(_, writes)| writes);
        for write in written.filter(|write| write.db == registers::DB) {
            let register = registers::register_of(&write.key).ok_or("a key of no register")?;
            let value =
                registers::value_of(write.cell.value.as_ref()).ok_or("a register of something else")?;
            orders.entry(register).or_default().push(value);
        }
    }
    Ok(orders)
}

/// A role that is watched: a participant for its digest after each step, a log for what it hands on.
struct Watched {
    role: Box<dyn Role<Message = Message>>,
    at: (NodeId, u16),
    partition: PartitionId,
    digests: Digests,
    sealed: Arc<Mutex<Sealed>>,
    /// Entries that were handed on before they were durable.
    early: Entries,
}

impl Watched {
    /// Whether the role may hand on what is not durable.
    fn is_early(&self) -> bool {
        self.role.name() == "storage-log"
    }

    /// The entries that are durable now and are handed on, now or a while ago.
    fn handed_on(&mut self, out: &Outbox<Message>) -> Vec<Arc<Entry>> {
        let is_early = self.is_early();
        let mut durable = Vec::new();
        for (_, message) in &out.sends {
            match message {
                Message::Log(Log::Sealed(entry)) if is_early => {
                    _ = self.early.insert(entry.place, entry.clone())
                }
                Message::Log(Log::Sealed(entry)) => durable.push(entry.clone()),
                Message::Log(Log::Durable(place)) => {
                    let later = self.early.split_off(&place.next());
                    durable.extend(std::mem::replace(&mut self.early, later).into_values());
                }
                _ => {}
            }
        }
        durable
    }
}

impl Role for Watched {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        self.role.handle(now, event, out);
        let mut digests = lock(&self.digests);
        self.role.digests(&mut |span| _ = digests.insert(self.at, span));
        drop(digests);
        let handed_on = self.handed_on(out);
        let mut sealed = lock(&self.sealed);
        match self.early.keys().next() {
            Some(first) => _ = sealed.early.insert(self.at.0, *first),
            None if self.is_early() => _ = sealed.early.remove(&self.at.0),
            None => {}
        }
        for entry in &handed_on {
            if let Some(other) = put(&mut sealed.logs, self.partition, entry) {
                let text = || format!("{entry:?} was handed on in the place of {other:?}");
                sealed.conflict.get_or_insert_with(text);
            }
        }
    }

    ordain_role::reports_of!(self => self.role);
}

impl System for CommitSystem {
    type Message = Message;

    fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn sessions_outlast_nodes(&self) -> bool {
        !matches!(self.family.engine.order(&self.settings.options), Order::Parallel | Order::FreshParallel)
    }

    fn start(
        &mut self,
        node: NodeId,
        incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<Message>, String> {
        self.lives.begin(node, disk).map_err(|e| e.to_string())?;
        let kept = self.settings.checkpoints_kept;
        self.lives.damage((node, incarnation), kept, disk).map_err(|e| e.to_string())?;
        let settings = self.varied(self.of(node, incarnation));
        let opened = self.family.open(Some(disk), &settings, &self.registry).map_err(|e| e.to_string())?;
        if opened.is_waiting() {
            self.waiting.insert(node);
        } else {
            self.waiting.remove(&node);
        }
        let found = CommitFamily::entries(disk, &settings).map_err(|e| e.to_string())?;
        let place = (self.partition_of(node), self.has_members());
        take_in(&mut lock(&self.sealed).logs, place, (found.0, &found.1));
        lock(&self.digests).retain(|(of, _), _| *of != node);
        lock(&self.sealed).early.remove(&node);
        let watch = |(number, role): (u16, _)| {
            let (digests, sealed) = (self.digests.clone(), self.sealed.clone());
            let partition = seen_by(number).unwrap_or(self.partition_of(node));
            let early = Entries::new();
            let watched = Watched { role, at: (node, number), partition, digests, sealed, early };
            (number, Box::new(watched) as Box<dyn Role<Message = Message>>)
        };
        Ok(opened.into_roles().into_iter().map(watch).collect())
    }

    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor {
        let (life, settings) = (u64::from(incarnation) << 32, self.of(node, incarnation));
        FrontDoor {
            address: Address { node, role: places::GATEWAYS + n },
            gateway: self.family.gateway(&settings, n, life, &self.registry),
            router: self.family.router(&settings),
        }
    }

    fn companion(&mut self, node: NodeId, _: u32) -> Option<Box<dyn Companion>> {
        let store = self.store.as_ref()?;
        Some(store.archiver(hasty(CLUSTER, &self.settings, node, self.seed)))
    }

    fn is_server(&self, node: NodeId) -> bool {
        self.settings.topology.is_server(node)
    }

    fn takes_clients(&self, node: NodeId) -> bool {
        !self.waiting.contains(&node)
    }

    /// A replica is in one place.
    fn zone(&self, node: NodeId) -> u16 {
        self.settings.topology.replica_of(node).0
    }

    fn bears_loss(&self) -> bool {
        let topology = &self.settings.topology;
        match topology.has_storage() {
            true => topology.storage_of(PartitionId(0)).count() > 2,
            false => topology.replicas >= 3,
        }
    }

    /// Nothing is gone if all the others of its group have what was agreed on, and count. Of a region's storage nodes all the
    /// others must count.
    fn may_lose(&self, node: NodeId, gauge: Gauge<'_>) -> bool {
        let topology = &self.settings.topology;
        let partition = topology.partition_of(node);
        if topology.has_storage() {
            let storage: Vec<NodeId> = topology.storage_of(partition).collect();
            return groups::counts_without(node, &storage, gauge);
        }
        let group: Vec<NodeId> = topology.group(partition).collect();
        self.bears_loss() && groups::agrees_without(node, &group, gauge)
    }

    /// Others have met the node: the members of its group, or the nodes of the other partitions.
    fn refuses_empty(&self) -> bool {
        self.settings.topology.nodes() > 1 && !self.settings.topology.has_storage()
    }

    fn is_ready(&self, node: NodeId, gauge: Gauge<'_>) -> bool {
        match self.is_server(node) {
            true => groups::has_leader(node, gauge) && groups::is_ready(node, gauge),
            false => !groups::catches_up(node, gauge),
        }
    }

    fn catches_up(&self, node: NodeId, gauge: Gauge<'_>) -> bool {
        groups::catches_up(node, gauge)
    }

    fn lose(&mut self, node: NodeId) {
        self.lives.lose(node);
    }

    fn rebuild(&mut self, node: NodeId, how: Rebuild) {
        self.lives.rebuild(node, how);
    }

    fn groups(&self) -> Vec<Vec<NodeId>> {
        groups::groups(&self.settings.topology)
    }

    fn leads(&self, node: NodeId, gauge: Gauge<'_>) -> Option<u64> {
        groups::leads(node, gauge)
    }

    fn log_reaches(&self, node: NodeId, gauge: Gauge<'_>) -> u64 {
        groups::log_reaches(node, gauge)
    }

    fn pivots(&self) -> &'static [&'static str] {
        let of_one = self.settings.topology.layout.partitions() == 1;
        if of_one { &PIVOTS[..PIVOTS_OF_ONE] } else { &PIVOTS }
    }

    fn pivot(&self, message: &Message) -> Option<&'static str> {
        match message {
            Message::Log(Log::Confirmed { .. }) => Some("confirmed"),
            Message::Log(message) => groups::pivot_of_log(message),
            Message::Group(_) => Some("agreement"),
            Message::Termed(termed) => match &termed.content {
                Protocol::Access(_) => Some("access"),
                Protocol::Accessed(_) => Some("accessed"),
                Protocol::Prepare(_) => Some("prepare"),
                Protocol::Vote(..) => Some("vote"),
                Protocol::Decide(..) => Some("decide"),
                Protocol::Part(_) => Some("part"),
                Protocol::Ballot(_) => Some("ballot"),
                Protocol::Confirmed(..) => Some("confirmation"),
                _ => None,
            },
            _ => None,
        }
    }

    fn servers(
        &self,
        node: NodeId,
        incarnation: u32,
        hosts: Vec<VirtualHost>,
    ) -> Vec<ConnectionServer<Message, VirtualHost>> {
        if !self.is_server(node) {
            return Vec::new();
        }
        let settings = NodeSettings { life: u64::from(incarnation) << 32, ..self.of(node, incarnation) };
        virtual_servers((&self.family, &settings, &self.registry), hosts)
    }

    fn peer_watchers(&self, node: NodeId) -> Vec<u16> {
        self.family.peer_watchers(&self.of(node, 0))
    }

    fn digest(&mut self, node: NodeId) -> Option<Digest> {
        let digests = lock(&self.digests);
        let of_node = || digests.iter().filter(|((of, _), _)| *of == node);
        // A view shows what another region came to, by itself.
        let views = of_node().filter_map(|((_, role), span)| Some((seen_by(*role)?, span)));
        self.reported.extend(views.map(|(region, span)| (node, region, span.last, span.digest)));
        let its = || of_node().filter(|((_, role), _)| seen_by(*role).is_none()).map(|(_, span)| span);
        let last = its().map(|span| span.last).max()?;
        // A shard that has yet to apply the last entry has another state, and rightly. What is applied early may never be durable.
        let partition = self.settings.topology.partition_of(node);
        let is_durable = lock(&self.sealed).early.get(&node).is_none_or(|first| last < *first);
        if is_durable && its().all(|span| span.last == last) {
            let sum = its().fold(Digest::default(), |sum, span| sum.plus(span.digest));
            self.reported.push((node, partition, last, sum));
        }
        None
    }

    fn check(&mut self, mut ending: Ending<'_>) -> Verdict {
        let has_members = self.has_members();
        let Sealed { mut logs, conflict, .. } = std::mem::take(&mut *lock(&self.sealed));
        let (mut digests, mut verdict, mut count) = (BTreeMap::new(), Ok(()), 0);
        if let Some(text) = conflict.filter(|_| has_members) {
            verdict = Err(Violation::new(ViolationKind::WrongState, text));
        }
        for (node, disk) in &mut ending.disks {
            let (settings, partition) = (self.of(*node, 0), self.partition_of(*node));
            let opened = self.family.open(Some(&mut **disk), &settings, &self.registry);
            let (opened, (after, entries)) = match (opened, CommitFamily::entries(&mut **disk, &settings)) {
                (Ok(opened), Ok(found)) => (opened, found),
                (Err(reason), _) | (_, Err(reason)) => {
                    return Verdict::unreadable(*node, &reason.to_string());
                }
            };
            count += entries.len() as u64;
            if let Some([entry, other]) = take_in(&mut logs, (partition, has_members), (after, &entries))
                && verdict.is_ok()
            {
                let text = format!("node {} has {entry:?} in the place of {other:?}", node.0);
                verdict = Err(Violation::new(ViolationKind::WrongState, text));
            }
            if opened.is_waiting() || !self.is_server(*node) {
                continue;
            }
            let (digest, begins) = (opened.digest(), opened.begins_after());
            let last = entries.last().map_or(begins, |entry| entry.place.max(begins));
            self.reported.push((*node, partition, last, digest));
            if digests.get(&partition).is_none_or(|(known, _)| *known <= last) {
                digests.insert(partition, (last, digest));
            }
        }
        let stamps = self.family.engine.stamps();
        let orders = match orders(&logs, stamps) {
            Ok(orders) => orders,
            Err(reason) => return Verdict::unreadable(NodeId(0), &reason),
        };
        let (shown, verdict) = match verdict.and_then(|()| self.check_stale(&ending, &logs)) {
            Ok(shown) => (shown, Ok(())),
            Err(violation) => (None, Err(violation)),
        };
        let history = shown.as_ref().unwrap_or(ending.history);
        let replayed = match stamps {
            // Each region has stamps of its own, which say nothing of what is of several.
            _ if parts::has_some(&logs) => Ok(()),
            Stamps::OfAttempt | Stamps::TwoOfAttempt | Stamps::AtCommit => {
                // What is shown of other regions has no place in the order of stamps.
                self.replays.check(&self.registry, history, (&logs, stamps))
            }
            Stamps::OfTransaction => Ok(()),
        };
        if self.replays.are_alone() {
            let digest = Digest::default();
            return Verdict { digest, entries: count, batches: Vec::new(), voided: 0, verdict: replayed };
        }
        let unresolved = self.without_resolved(history, ending.config);
        let verdict = verdict.and_then(|()| match &unresolved {
            None => Ok(()),
            // All of it has one order; what follows holds the rest to that of real time.
            Some(_) => appends::check(Level::SnapshotReads, history, &orders),
        });
        let history = unresolved.as_ref().unwrap_or(history);
        let verdict = verdict.and_then(|()| self.check_order(history, ending.config, &logs, &orders));
        // Of engines whose snapshots may be of before a lease was written nobody can tell that from its end.
        let shows_past = self.family.engine.order(&self.settings.options) == Order::Parallel;
        let verdict = verdict.and_then(|()| match shows_past {
            true => Ok(()),
            false => mixed::check_leases(history),
        });
        let verdict = verdict.and(replayed);
        let verdict = verdict.and_then(|()| self.check_digests(&logs));
        let verdict = verdict.and_then(|()| heard::check(&logs));
        let agreed = || parts::check(&logs).map_err(|text| Violation::new(ViolationKind::WrongState, text));
        let verdict = verdict.and_then(|()| agreed());
        let verdict = verdict.and_then(|()| {
            let node = |node| self.of(node, 0);
            let is_damaged = |node, place| self.lives.is_damaged(node, place);
            let engine = (&self.registry, &self.family.engine);
            cuts::check(&ending.disks, &logs, engine, &node, &is_damaged)
        });
        let verdict = verdict.and_then(|()| {
            self.store.iter().for_each(VirtualStore::rest);
            self.restore(&ending.disks, &logs)
        });
        let digest = digests.into_values().fold(Digest::default(), |sum, (_, digest)| sum.plus(digest));
        let topology = &self.settings.topology;
        let last = |partition| match topology.has_storage() {
            // Places of one region say nothing of another, and a region's servers answer for it alone.
            true => {
                let its =
                    ending.last_at.iter().filter(|(node, _)| topology.partition_of(**node) == partition);
                its.map(|(_, last)| *last).max().unwrap_or(Stamp::NONE)
            }
            false => ending.last_under_load,
        };
        let batches = sizes(&logs, stamps, last);
        Verdict { digest, entries: count, batches, voided: 0, verdict }
    }
}

/// The sizes of the decisions that came under load, given the last stamp of each partition that did.
fn sizes(logs: &Logs, stamps: Stamps, last: impl Fn(PartitionId) -> Stamp) -> Vec<BatchSize> {
    let all = logs.iter().flat_map(|(partition, entries)| {
        let last = last(*partition);
        entries.values().filter_map(move |entry| {
            let Content::Commit(commit) = &entry.content else { return None };
            let stamp = if stamps == Stamps::OfTransaction { entry.place.0 } else { commit.age.0 };
            let size = BatchSize { txns: 1, fragments: commit.writes.len() as u64 };
            (Stamp::new(stamp) <= last).then_some(size)
        })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use ordain_commit::{Commit, Term};
    use ordain_model::Millis;

    use super::*;

    /// Found with two regions: the last place of one counted for both.
    #[test]
    fn decisions_under_load_are_counted_by_the_places_of_their_own_log() {
        let entry = |place| {
            let content = Content::Commit(Commit::default());
            Arc::new(Entry { place: Epoch(place), term: Term(1), now: Millis(0), content, agreed: None })
        };
        let log = |places: std::ops::Range<u64>| places.map(|place| (Epoch(place), entry(place))).collect();
        let logs: Logs = [(PartitionId(0), log(1..10)), (PartitionId(1), log(100..110))].into();
        let last = |partition: PartitionId| Stamp::new([4, 101][usize::from(partition.0)]);
        assert_eq!(sizes(&logs, Stamps::OfTransaction, last).len(), 4 + 2);
        assert_eq!(sizes(&logs, Stamps::OfTransaction, |_| Stamp::new(101)).len(), 9 + 2);
    }
}
