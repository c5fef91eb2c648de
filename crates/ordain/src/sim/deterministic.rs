//! A cluster of nodes of a deterministic engine under simulation: what a seed draws for it, and how its runs are judged.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use ordain_checker::history::{Answer, History, Request};
use ordain_checker::{NodeLog, Promise, Violation, order};
use ordain_deterministic::assembly::{Assembly, Deterministic, places};
use ordain_deterministic::options::{BALANCE, CHECKPOINT_MODE, EXECUTION, Knobs, LINGER_US, WINDOW};
use ordain_deterministic::sequencing::Log;
use ordain_deterministic::shard::{self, Balance};
use ordain_engines::registry::{Engine, Make};
use ordain_family::{Family as _, Keep, NodeSettings, Opened as _};
use ordain_front::ConnectionServer;
use ordain_log::MemoryDirectory;
use ordain_model::{
    Batch, Call, Epoch, Gsn, Isolation, Layout, Limits, Micros, OptionInfo, OptionValue, Options,
    PartitionId, Random, Registry, RequestNo, SessionId, Stamp,
};
use ordain_node::aborts::Aborts;
use ordain_node::procedures;
use ordain_replication::{ConfigurationEntry, configuration_service_members};
use ordain_role::{Address, Bug, Bugs, Directory, Event, NodeId, Now, Outbox, Rebuild, Role, Topology};
use ordain_sim::system::{FrontDoor, Roles};
use ordain_sim::workload::procedures as simulated;
use ordain_sim::{
    Companion, Ending, Fault, FaultPace, Faults, Operation, System, Verdict, VirtualHost, virtual_servers,
};

use super::groups::{self, Gauge};
use super::lives::Lives;
use super::measured::Measured;
use super::object_store::{VirtualStore, hasty};
use super::operator::Operator;
use super::restored::{Former, Remains};
use super::{Replication, SimArgs, WorkloadName, appends};

/// The front doors of a node at which clients call procedures, and its connection servers.
pub(super) const DOORS: u16 = 2;
pub(super) const SERVERS: u16 = 2;
/// The name of the simulated cluster in a store.
pub(super) const CLUSTER: &str = "simulated";

/// A cluster of nodes of a deterministic engine.
pub(super) struct DeterministicSystem {
    pub(super) registry: Arc<Registry>,
    family: Deterministic,
    pub(super) settings: NodeSettings,
    lives: Lives,
    /// The cuts of the order where another became primary.
    cuts: Vec<Cut>,
    /// The batches that logs have dispatched: they may be trimmed since.
    dispatched: Dispatched,
    /// The nodes that wait for what their disks lack, and take no clients.
    waiting: BTreeSet<NodeId>,
    /// The operator, if transactions end the process that executes them.
    operator: Option<Operator>,
    /// Where nodes take their checkpoints, as this seed has it.
    store: Option<(VirtualStore, u64)>,
    /// The benchmark's workload that clients run, if it is one.
    pub(super) measured: Option<Measured>,
    /// True if clients append to lists and read them.
    appends: bool,
    /// The seed of what differs from start to start, and the options that are given, which do not.
    varied: Option<(u64, BTreeSet<&'static str>)>,
    /// What came before, if the system was restored.
    pub(super) former: Former,
    /// Where what is left at the end goes, if another system is to be restored from it.
    remains: Rc<RefCell<Option<Remains>>>,
}

/// The batches that logs have dispatched, as they are logged.
type Dispatched = Arc<Mutex<BTreeMap<(PartitionId, (Epoch, NodeId)), Batch>>>;

/// The last request of each session of the clients that call procedures.
fn asked_last(history: &History) -> Vec<(Call, Vec<u8>)> {
    let mut last: BTreeMap<SessionId, (RequestNo, &Request)> = BTreeMap::new();
    for (_, request) in history.requests().filter(|(_, request)| request.client.is_some()) {
        let Some((session, number)) = request.call.session else { continue };
        if last.get(&session).is_none_or(|(known, _)| *known < number) {
            last.insert(session, (number, request));
        }
    }
    last.into_values().map(|(_, request)| (request.call, request.args.clone())).collect()
}

/// The options that are given, of those that differ from start to start otherwise.
fn given_of(options: &Options) -> BTreeSet<&'static str> {
    let varied = [&CHECKPOINT_MODE, &WINDOW, &BALANCE, &EXECUTION];
    varied.into_iter().filter(|info| options.is_given(info)).map(|info| info.name).collect()
}

/// The procedures with the limits that a seed has for the simulator's own requests: as narrow as can be for some, as an audit
/// of all keys has to be answered. What else is longer is refused.
fn narrowed(registry: Registry, args: &SimArgs, seed: u64) -> Registry {
    if !args.mixes() || seed % 5 >= 2 {
        return registry;
    }
    let carried = [0, 2, 4, 6][seed as usize / 5 % 4];
    registry.limited(Limits { reply: 9 * args.load.keys() as usize + 16, carried })
}

/// The place of a batch of a node's log among the dispatched ones.
const fn place_of(batch: &Batch, node: NodeId) -> (PartitionId, (Epoch, NodeId)) {
    (batch.partition, (batch.epoch, node))
}

/// A log that is watched.
struct Watched {
    log: Box<dyn Role<Message = shard::Message>>,
    node: NodeId,
    registry: Arc<Registry>,
    dispatched: Dispatched,
}

impl Role for Watched {
    type Message = shard::Message;

    fn handle(&mut self, now: Now, event: Event<shard::Message>, out: &mut Outbox<shard::Message>) {
        self.log.handle(now, event, out);
        let mut dispatched = self.dispatched.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, message) in &out.sends {
            if let shard::Message::Log(Log::Sealed(batch)) = message
                && batch.is_logged()
                && let Ok(logged) = Batch::decode(&self.registry, &batch.encode())
            {
                dispatched.insert(place_of(batch, self.node), logged);
            }
        }
    }

    ordain_role::reports_of!(self => self.log);
}

/// The end of the sealed batches that count, when a partition got another primary.
struct Cut {
    /// The last place in the order that was decided.
    decided: (Epoch, PartitionId),
    /// The life of each node then.
    lives: BTreeMap<NodeId, u64>,
    /// The nodes that had to be rebuilt.
    evicted: BTreeSet<NodeId>,
}

/// The time that batches wait for more in the run of a seed, in microseconds; none in a storm.
fn linger_us(args: &SimArgs, seed: u64) -> u64 {
    match args.load.load(args.partitions).faults {
        FaultPace::Own => 0,
        _ => [0, 0, 200, 800][seed as usize / 4 % 4],
    }
}

/// The ways of which a seed draws how the state of a checkpoint is kept. Two copies of a record are both in memory.
const fn checkpoint_modes(has_budget: bool) -> &'static [&'static str] {
    if has_budget { &["multiversion"] } else { &["multiversion", "zigzag"] }
}

impl DeterministicSystem {
    /// The system that the flags describe, where they leave a choice as the seed has it.
    pub(super) fn new(args: &SimArgs, seed: u64) -> anyhow::Result<DeterministicSystem> {
        DeterministicSystem::limited(args, seed, seed)
    }

    /// A system that executes with the limits of another seed, as what was logged before was executed.
    pub(super) fn limited(args: &SimArgs, seed: u64, limits_of: u64) -> anyhow::Result<DeterministicSystem> {
        let engine: Engine = args.engine.parse()?;
        let archives = args.operations.has(Operation::Archive) || args.operations.has(Operation::Restore);
        let bugs = args.plant.map_or(Bugs::NONE, |bug| Bugs::NONE.with(bug));
        let partitions = usize::from(args.partitions);
        let mut registry = (*procedures::all()).clone();
        simulated::register(&mut registry);
        let nodes = partitions * usize::from(args.replicas);
        let operator = args.operator.then(|| Operator::new(seed, nodes, &mut registry));
        // Clients of bytes are for wide limits; a restored cluster has those of the cluster before, whoever its clients are.
        let is_spoken_to = args.speakers(limits_of, 8) > 0;
        let registry = if is_spoken_to { registry } else { narrowed(registry, args, limits_of) };
        let drawn = if partitions == 1 { [1, 2, 3, 4, 8][seed as usize % 5] } else { 1 + seed as usize % 3 };
        let shards = args.shards.map_or(drawn, usize::from);
        let layout = Arc::new(Layout::even(partitions, shards)?);
        let registry = Arc::new(registry.placing(layout.placement().clone()));
        // A node that has lost its disk then gets a checkpoint of a member.
        let trims = seed % 4 < 3;
        let mut options = engine.options(args.options.given.iter())?;
        let varied = args.operations.has(Operation::Rolling).then(|| (seed, given_of(&options)));
        let mut draw = |info: &'static OptionInfo, drawn: OptionValue| {
            if !options.is_given(info) {
                options.set(info, drawn);
            }
        };
        // Mostly the mode in which more can go wrong. A seed that is conservative has nothing to undo.
        let modes = ["conservative", "auto", "speculative", "speculative"];
        draw(&EXECUTION, OptionValue::Name(modes[seed as usize % 4]));
        let modes = checkpoint_modes(args.memory_budget.is_some());
        draw(&CHECKPOINT_MODE, OptionValue::Name(modes[seed as usize % modes.len()]));
        // Narrow, so that the bounds are met.
        draw(&WINDOW, OptionValue::Integer(1 + seed % 40));
        draw(&LINGER_US, OptionValue::Integer(linger_us(args, seed)));
        draw(&BALANCE, OptionValue::Bool(seed % 7 >= 3));
        let pace = args.service_pace_ms.unwrap_or([1, 3, 10, 30, 100][seed as usize % 5]);
        let settings = NodeSettings {
            topology: Topology::replicated(layout, args.replicas),
            gateways: usize::from(DOORS + SERVERS),
            keep: Keep::Fsync,
            identity: b"simulated".to_vec(),
            // Small, so that segments change hands all the time.
            segment_bytes: if trims && !seed.is_multiple_of(2) { 6 << 10 } else { 64 << 10 },
            // So little that logs are trimmed although a member is away, which gets a checkpoint then.
            log_keep_bytes: if seed % 3 == 1 { 8 << 10 } else { 8 << 30 },
            // So little that a node which is away for a while has to read the journal of a member.
            kept_max: if seed.is_multiple_of(3) { 2 << 10 } else { 256 << 20 },
            // Links have room for two dozen at least.
            piece: 2 << 10,
            // So little that a checkpoint is taken in many steps, between which much happens.
            checkpoint_piece: [1, 100, 400, 64 << 10][seed as usize % 4],
            memory_budget: args.memory_budget,
            // Whatever has a value at all may be evicted.
            evicted_above: 0,
            checkpoints_kept: 1 + seed as usize % 3,
            trims,
            // Some nodes ask for them by themselves.
            checkpoint_bytes: if seed.is_multiple_of(5) { 4 << 10 } else { 0 },
            // Some configuration services give up primaries that are only slow.
            configuration_service_pace: Micros::from_millis(pace),
            replication: match args.replication {
                Replication::Sync => ordain_family::Replication::Sync,
                Replication::Async => ordain_family::Replication::Async,
            },
            bugs,
            ..NodeSettings::new(options)
        };
        let Make::Deterministic(scheduling) = engine.make() else {
            anyhow::bail!("ordain sim does not run engine {engine} yet: its family is not finished");
        };
        let family = Deterministic {
            // So short for some that what reads need is kept, and is not, all the time.
            silence: Micros([200, 1_000, 20_000, 1_000_000][seed as usize / 2 % 4]),
            // Some move slots between their shards all the time, for next to no reason.
            balance: Balance { every: Micros::from_millis(20), stride: 1, samples: 1, ..Balance::default() },
            ..Deterministic::new(scheduling)
        };
        anyhow::ensure!(
            settings.replication() != ordain_family::Replication::Async || settings.topology.nodes() >= 3,
            "--replication async needs three nodes at least, or else nobody could tell who is primary"
        );
        let is_by_replica = settings.replication() == ordain_family::Replication::Async;
        let shape = (usize::from(args.partitions), is_by_replica);
        let store = archives.then(|| (VirtualStore::new(seed, shape, args.faults != Faults::NONE), seed));
        Ok(DeterministicSystem {
            registry,
            family,
            settings,
            lives: Lives::new(nodes, args.faults.has(Fault::Disk).then_some(seed)),
            cuts: Vec::new(),
            dispatched: Dispatched::default(),
            waiting: BTreeSet::new(),
            operator,
            varied,
            store,
            measured: None,
            appends: args.workload == WorkloadName::Append,
            former: Former::default(),
            remains: Rc::default(),
        })
    }

    /// At which level transactions are executed.
    pub(super) fn isolation(&self) -> Isolation {
        Knobs::of(&self.settings.options).isolation
    }

    /// Where what is left at the end will be.
    pub(super) fn remains(&self) -> Rc<RefCell<Option<Remains>>> {
        self.remains.clone()
    }

    /// The settings with which a node starts that an operator restarts: what may differ from node to node does.
    fn varied(&self, settings: NodeSettings, incarnation: u32) -> NodeSettings {
        let Some((seed, given)) = &self.varied else { return settings };
        let life = u64::from(settings.node.0) << 32 | u64::from(incarnation);
        let mut random = Random::stream(*seed, life);
        let mut options = settings.options.clone();
        let mut draw = |info: &'static OptionInfo, drawn: OptionValue| {
            if !given.contains(&info.name) {
                options.set(info, drawn);
            }
        };
        let modes = checkpoint_modes(settings.memory_budget.is_some());
        draw(&CHECKPOINT_MODE, OptionValue::Name(modes[random.index(modes.len())]));
        draw(&WINDOW, OptionValue::Integer(random.between(1, 40)));
        draw(&BALANCE, OptionValue::Bool(random.chance(500_000)));
        draw(&EXECUTION, OptionValue::Name(["conservative", "auto", "speculative"][random.index(3)]));
        NodeSettings {
            segment_bytes: [6 << 10, 64 << 10][random.index(2)],
            log_keep_bytes: [8 << 10, 8 << 30][random.index(2)],
            kept_max: [2 << 10, 256 << 20][random.index(2)],
            checkpoint_bytes: [0, 4 << 10][random.index(2)],
            options,
            ..settings
        }
    }

    /// The settings of a node.
    fn of(&self, node: NodeId) -> NodeSettings {
        let under_way = self.operator.as_ref().map_or_else(Vec::new, |operator| operator.under_way(node));
        NodeSettings { under_way, ..self.lives.of(node, &self.settings) }
    }
}

impl DeterministicSystem {
    /// All that an operator has aborted.
    fn aborted(&self) -> BTreeSet<Gsn> {
        let here = self.operator.as_ref().map_or_else(BTreeSet::new, |operator| operator.aborted.clone());
        &here | &self.former.aborted
    }

    /// Checks what must hold of what clients ran, beside the serial execution. What came before a restore nobody here has asked.
    fn check_workload(&self, ending: &Ending<'_>, logs: &[NodeLog]) -> Result<(), Violation> {
        let isolation = self.isolation();
        if !self.former.log.is_empty() || isolation != Isolation::Serializable {
            return Ok(());
        }
        if self.appends && ending.config.promise == Promise::Strict {
            appends::check_audited(ending.history, ending.audits.first())?;
        }
        let Some(measured) = &self.measured else { return Ok(()) };
        let (log, layout) = (order::merge(logs)?, &self.settings.topology.layout);
        measured.check(&ending.audits, &log, (layout, isolation, &self.aborted()), ending.history)
    }

    /// Leaves what another system may be restored from.
    fn leave(&mut self, ending: Ending<'_>, logs: &[NodeLog]) {
        if let Some((store, _)) = &self.store {
            store.rest();
        }
        *self.remains.borrow_mut() = Some(Remains {
            log: order::merge(logs).unwrap_or_default(),
            aborted: self.aborted(),
            disks: ending.disks,
            #[cfg(test)]
            audits: ending.audits,
            asked_last: asked_last(ending.history),
            wall: ending.history.wall(),
            pending: self.lives.pending(),
            store: self.store.as_ref().map(|(store, _)| store.clone()),
            topology: self.settings.topology.clone(),
        });
    }

    /// The batches of a node's partition that its log holds, or has held and dispatched, in order.
    fn log(&mut self, node: NodeId, disk: &mut dyn Directory) -> Result<Vec<Batch>, String> {
        let settings = self.of(node);
        let mut lives = BTreeMap::new();
        for configuration_entry in
            Assembly::configuration_entries(disk, self.family.plan(&settings)).map_err(|e| e.to_string())?
        {
            match configuration_entry {
                ConfigurationEntry::Arrive { node, arrival } => _ = lives.insert(node, arrival.life),
                ConfigurationEntry::LeadershipRecord { partition, end, evicted, .. } => self.cuts.push(Cut {
                    decided: (end, partition),
                    lives: lives.clone(),
                    evicted: evicted.into_iter().map(|(node, _)| node).collect(),
                }),
                _ => {}
            }
        }
        let (after, kept) = Assembly::batches(disk, self.family.plan(&settings), &self.registry)
            .map_err(|e| e.to_string())?;
        // What was trimmed is not gone from the order.
        let dispatched = self.dispatched.lock().unwrap_or_else(PoisonError::into_inner);
        let (from, to) = ((Epoch(0), NodeId(0)), (after, NodeId(u16::MAX)));
        let partition = settings.partition();
        let trimmed = dispatched.range((partition, from)..=(partition, to));
        let mut batches: Vec<Batch> = trimmed.map(|(_, batch)| batch.clone()).collect();
        batches.dedup_by_key(|batch| batch.epoch);
        batches.extend(kept.into_iter().filter(|batch| batch.epoch > after));
        // Where epochs go on far beyond the last entry, a log names one now and then that holds nothing.
        batches.retain(|batch| !batch.chunks.is_empty());
        Ok(batches)
    }

    fn is_void(&self, answerer: NodeId, life: u32, stamp: Stamp) -> bool {
        self.cuts.iter().any(|cut| {
            let then = cut.lives.get(&answerer).copied().unwrap_or_default();
            // What it had executed in an earlier life it may have forgotten by then, and nobody knows of it.
            let is_over = u64::from(life) < then;
            let is_out = u64::from(life) == then && cut.evicted.contains(&answerer);
            let gsn = Gsn::from(stamp);
            (is_over || is_out) && (gsn.epoch(), gsn.partition()) > cut.decided
        })
    }
}

impl System for DeterministicSystem {
    type Message = shard::Message;

    fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }

    fn start(
        &mut self,
        node: NodeId,
        incarnation: u32,
        disk: &mut dyn Directory,
    ) -> Result<Roles<shard::Message>, String> {
        let settings = NodeSettings { life: u64::from(incarnation), ..self.of(node) };
        let settings = self.varied(settings, incarnation);
        if let Some(certain) = self.lives.begin(node, disk).map_err(|e| e.to_string())? {
            let mut dispatched = self.dispatched.lock().unwrap_or_else(PoisonError::into_inner);
            dispatched.retain(|(_, (epoch, of)), _| *of != node || *epoch <= certain);
        }
        let kept = self.settings.checkpoints_kept;
        self.lives.damage((node, incarnation), kept, disk).map_err(|e| e.to_string())?;
        self.operator.iter().for_each(|operator| operator.starts(node));
        let aborted = Aborts::of(disk).map_err(|e| e.to_string())?.stamps();
        let settings = NodeSettings { aborted, ..settings };
        let assembly = self.family.open(Some(disk), &settings, &self.registry).map_err(|e| e.to_string())?;
        if assembly.is_waiting() {
            self.waiting.insert(node);
        } else {
            self.waiting.remove(&node);
        }
        if let Some(operator) = &mut self.operator {
            operator.begins(node, assembly.begins_after());
        }
        if settings.trims {
            // Of what was never dispatched, because the node was stopped before that, nobody else would tell.
            let (_, kept) = Assembly::batches(disk, self.family.plan(&settings), &self.registry)
                .map_err(|e| e.to_string())?;
            let mut dispatched = self.dispatched.lock().unwrap_or_else(PoisonError::into_inner);
            dispatched.extend(kept.into_iter().map(|batch| (place_of(&batch, node), batch)));
        }
        let watch = |(number, role): (u16, Box<dyn Role<Message = shard::Message>>)| match number {
            places::LOG => {
                let (registry, dispatched) = (self.registry.clone(), self.dispatched.clone());
                let watched = Watched { log: role, node, registry, dispatched };
                (number, Box::new(watched) as Box<dyn Role<Message = shard::Message>>)
            }
            _ => (number, role),
        };
        Ok(assembly.into_roles().into_iter().map(watch).collect())
    }

    fn disk(&self, node: NodeId) -> MemoryDirectory {
        self.former.disks.get(usize::from(node.0)).cloned().unwrap_or_default()
    }

    fn companion(&mut self, node: NodeId, _: u32) -> Option<Box<dyn Companion>> {
        let (store, seed) = self.store.as_ref()?;
        Some(store.archiver(hasty(CLUSTER, &self.settings, node, *seed)))
    }

    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor {
        let settings = NodeSettings { node, ..self.settings.clone() };
        // No life submits so many chunks that its numbers would reach those of the next.
        let gateway = self.family.gateway(&settings, n, u64::from(incarnation) << 32, &self.registry);
        let router = self.family.router(&settings);
        FrontDoor { address: Address { node, role: places::GATEWAYS + n }, gateway, router }
    }

    fn servers(
        &self,
        node: NodeId,
        incarnation: u32,
        hosts: Vec<VirtualHost>,
    ) -> Vec<ConnectionServer<shard::Message, VirtualHost>> {
        let settings = NodeSettings { life: u64::from(incarnation) << 32, ..self.of(node) };
        virtual_servers((&self.family, &settings, &self.registry), hosts)
    }

    fn takes_clients(&self, node: NodeId) -> bool {
        !self.waiting.contains(&node)
    }

    /// A replica is in one place.
    fn zone(&self, node: NodeId) -> u16 {
        self.settings.topology.replica_of(node).0
    }

    fn groups(&self) -> Vec<Vec<NodeId>> {
        let is_sync = self.settings.replication() == ordain_family::Replication::Sync;
        if is_sync { groups::groups(&self.settings.topology) } else { Vec::new() }
    }

    fn leads(&self, node: NodeId, gauge: Gauge<'_>) -> Option<u64> {
        groups::leads(node, gauge)
    }

    fn log_reaches(&self, node: NodeId, gauge: Gauge<'_>) -> u64 {
        groups::log_reaches(node, gauge)
    }

    fn pivots(&self) -> &'static [&'static str] {
        &groups::LOG_PIVOTS
    }

    fn pivot(&self, message: &shard::Message) -> Option<&'static str> {
        match message {
            shard::Message::Log(message) => groups::pivot_of_log(message),
            shard::Message::Group(_) => Some("agreement"),
            _ => None,
        }
    }

    fn peer_watchers(&self, node: NodeId) -> Vec<u16> {
        self.family.peer_watchers(&self.of(node))
    }

    fn check(&mut self, mut ending: Ending<'_>) -> Verdict {
        let mut logs = Vec::new();
        for (node, disk) in &mut ending.disks {
            let partition = self.settings.topology.partition_of(*node);
            match self.log(*node, &mut **disk) {
                Ok(batches) => logs.push(NodeLog { node: *node, partition, batches }),
                Err(reason) => return Verdict::unreadable(*node, &reason),
            }
        }
        let is_void = |answer: &Answer| self.is_void(answer.answerer.0, answer.answerer.1, answer.stamp);
        let voided = ending.history.void(is_void) as u64;
        let aborted = self.aborted();
        let layout = (*self.settings.topology.layout).clone();
        ending.before.clone_from(&self.former.log);
        let verdict = Verdict { voided, ..ending.by_replay(&logs, Some(&layout), &aborted) };
        let own = verdict.verdict.clone().and_then(|()| self.check_workload(&ending, &logs));
        if own.is_ok() {
            self.leave(ending, &logs);
        }
        Verdict { verdict: own, ..verdict }
    }

    fn bears_loss(&self) -> bool {
        self.settings.topology.replicas >= 3
            && self.settings.replication() == ordain_family::Replication::Sync
    }

    /// Nothing is gone if all the others of the groups that the node is in have what was agreed on and what came in, and count;
    /// and if it is no primary, whose last batches are with nobody else.
    fn may_lose(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> bool {
        let grid = &self.settings.topology;
        let is = |of: NodeId, name: &str, value: f64| gauge(of, name) == Some(value);
        let partition: Vec<NodeId> = grid.group(grid.partition_of(node)).collect();
        if partition.iter().any(|of| gauge(*of, "ordain_exchange_catch_up_epoch").unwrap_or_default() > 0.0) {
            return false;
        }
        match self.settings.replication() {
            ordain_family::Replication::None => false,
            ordain_family::Replication::Sync => {
                grid.replicas >= 3 && groups::agrees_without(node, &partition, gauge)
            }
            ordain_family::Replication::Async => {
                let service = configuration_service_members(grid);
                let has_primary = partition.iter().any(|of| is(*of, "ordain_ship_is_primary", 1.0));
                has_primary
                    && is(node, "ordain_ship_is_primary", 0.0)
                    && (!service.contains(&node) || groups::agrees_without(node, &service, gauge))
            }
        }
    }

    /// Other nodes have met the node. Without others nobody tells an empty directory from a new one.
    fn refuses_empty(&self) -> bool {
        self.settings.topology.nodes() > 1
    }

    fn is_ready(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> bool {
        let is_some = |name: &str| gauge(node, name).is_some_and(|value| value > 0.0);
        let has_primary = match self.settings.replication() {
            ordain_family::Replication::Async => {
                is_some("ordain_configuration_service_has_arrived")
                    && !is_some("ordain_configuration_service_is_fenced")
            }
            _ => groups::has_leader(node, gauge),
        };
        has_primary && groups::is_ready(node, gauge)
    }

    fn catches_up(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> bool {
        groups::catches_up(node, gauge)
    }

    fn lose(&mut self, node: NodeId) {
        self.lives.lose(node);
    }

    fn has_ended(&mut self) -> bool {
        self.operator.as_mut().is_some_and(Operator::has_ended)
    }

    fn greeting(&self, _: NodeId, disk: &dyn Directory) -> Vec<u8> {
        let operator = self.operator.as_ref().filter(|_| !self.settings.bugs.has(Bug::ForgetAborts));
        operator.map_or_else(Vec::new, |_| Operator::greeting(disk))
    }

    fn missing_aborts(&self, known: &dyn Directory, of: NodeId, disk: &dyn Directory) -> Vec<Gsn> {
        self.operator.as_ref().map_or_else(Vec::new, |operator| operator.unheard(known, of, disk))
    }

    fn take_aborts(&mut self, node: NodeId, words: &[u8], disk: &mut dyn Directory) -> bool {
        self.operator.as_ref().is_some_and(|operator| operator.heed(node, words, disk))
    }

    fn under_way(&mut self) -> Vec<Gsn> {
        self.operator.as_mut().map_or_else(Vec::new, Operator::culprits)
    }

    fn abort(&mut self, node: NodeId, places: &[Gsn], disk: &mut dyn Directory) -> Result<(), String> {
        let last = NodeId(self.settings.topology.nodes() - 1);
        let Some(operator) = &mut self.operator else { return Ok(()) };
        operator.abort(node, places, disk)?;
        if node == last {
            operator.aborted.extend(places);
        }
        Ok(())
    }

    fn rebuild(&mut self, node: NodeId, how: Rebuild) {
        self.lives.rebuild(node, how);
    }

    fn place(&self, stamp: Stamp) -> String {
        Gsn::from(stamp).to_string()
    }
}
