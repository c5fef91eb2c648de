//! `ordain sim`: a whole cluster, with its disks, its links, its clients and its bad luck, from one seed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Context;
use clap::{Args, ValueEnum};
use ordain_checker::history::Answer;
use ordain_checker::{NodeLog, Promise};
use ordain_checkpoint::{Found, file_name, list};
use ordain_deterministic::assembly::{self, Assembly, Deterministic, places};
use ordain_deterministic::options::{BALANCE, CHECKPOINT_MODE, EXECUTION, Knobs, WINDOW};
use ordain_deterministic::sequencing::Log;
use ordain_deterministic::shard::{self, Balance};
use ordain_engines::registry::{self, Engine, Make};
use ordain_family::{Family as _, Keep, NodeSettings, Opened as _};
use ordain_lab::options::{Door, OptionArgs};
use ordain_model::{
    Batch, Epoch, Gsn, KeyHash, Layout, Limits, Micros, OptionInfo, OptionValue, PartitionId, Reads,
    Registry, Stamp,
};
use ordain_node::aborts::Aborts;
use ordain_node::procedures;
use ordain_replication::ConfigurationEntry;
use ordain_role::{
    Address, Bug, Bugs, Bytes, Directory, DiskError, DiskOp, Event, NodeId, Now, Outbox, Role, StartOver,
    Topology,
};
use ordain_sim::system::{FrontDoor, Roles};
use ordain_sim::workload::procedures as simulated;
use ordain_sim::{Config, Ending, Fault, Faults, Judgement, Mix, Report, System, run_seed};

mod operator;

use operator::Operator;

/// What clients ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// A bit of everything: transfers, rotations, scripts' shape, whole-table work, panics, retries.
    #[default]
    Mix,
    /// Transfers between accounts, and audits.
    Bank,
    /// Single-step transactions that depend on nothing.
    Direct,
}

/// How batches reach those who hold the same partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Replication {
    /// They agree on each.
    #[default]
    Sync,
    /// One seals them, the others follow.
    Async,
}

/// How `ordain sim` takes the options of engines.
#[derive(Clone, Debug, Default)]
pub struct OfSim;

impl Door for OfSim {
    const ELSE: &'static str = ", or as the seed has it";
}

/// The flags of `ordain sim`.
#[derive(Clone, Debug, Args)]
pub struct SimArgs {
    /// The engine.
    #[arg(long, default_value = "calvin")]
    engine: String,
    #[command(flatten)]
    options: OptionArgs<OfSim>,
    /// The seed: any number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Many seeds: from A to B, B not included.
    #[arg(long, value_name = "A..B", conflicts_with = "seed", value_parser = parse_range)]
    seeds: Option<(u64, u64)>,
    /// Partitions.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    partitions: u16,
    /// Replicas
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=9))]
    replicas: u16,
    /// How those who hold a partition get its batches: they agree on each, or one seals them and the others follow.
    #[arg(long, value_enum, default_value_t)]
    replication: Replication,
    /// Shards a node; by default drawn from the seed, 1 to 8.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: Option<u16>,
    /// Transactions that clients ask for.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..))]
    txns: u64,
    /// What they ask for.
    #[arg(long, value_enum, default_value_t)]
    workload: WorkloadName,
    /// Keys that they use: few, so that they are in each other's way.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..))]
    keys: u64,
    /// What goes wrong: none, all, or some of crash, partition, delay, reorder, duplicate, disk, clock, loss.
    #[arg(long, default_value = "all")]
    faults: Faults,
    /// About two transactions in a hundred end the process that executes them, until an operator aborts them
    #[arg(long)]
    operator: bool,
    /// Plant a bug, to see that it is found.
    #[arg(long, value_parser = parse_bug, hide = true)]
    plant: Option<Bug>,
    /// Write the report of each seed to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write every event of the run to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    trace: Option<PathBuf>,
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let parse = || {
        let (from, to) = text.split_once("..")?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    parse().filter(|(from, to)| from < to).ok_or_else(|| format!("'{text}' is not a range such as 0..1000"))
}

fn parse_bug(name: &str) -> Result<Bug, String> {
    let names = Bug::ALL.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    let found = Bug::ALL.iter().find(|(_, n)| *n == name).map(|(bug, _)| *bug);
    found.ok_or_else(|| format!("there is no bug '{name}' to plant; there are: {names}"))
}

/// A cluster of nodes of a deterministic engine.
struct DeterministicSystem {
    registry: Arc<Registry>,
    family: Deterministic,
    settings: NodeSettings,
    /// In which generation each node is.
    generations: Vec<u32>,
    /// How often each node has started over, and whether it is still to be done.
    started_over: Vec<(u32, Option<StartOver>)>,
    /// What was given up when another became primary.
    cuts: Vec<Cut>,
    /// What logs have dispatched: it may be trimmed from them since.
    dispatched: Dispatched,
    /// Where it is drawn from which checkpoints are damaged, if disks have faults.
    damages: Option<u64>,
    /// Of each node, the one that was damaged last.
    damaged: Vec<Epoch>,
    /// After which epoch the log of each node begins that has begun one anew.
    begun: Vec<Epoch>,
    /// Where transactions end the process that executes them.
    operator: Option<Operator>,
}

/// The batches that logs have dispatched, as they are logged.
type Dispatched = Arc<Mutex<BTreeMap<(PartitionId, (Epoch, NodeId)), Batch>>>;

/// Where a batch of a node's log is among those.
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

    fn name(&self) -> &'static str {
        self.log.name()
    }

    fn check(&self) -> Result<(), String> {
        self.log.check()
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        self.log.gauges(report);
    }
}

/// Where what was sealed ended that counts, when a partition got another primary.
struct Cut {
    /// The last place in the order that was decided.
    decided: (Epoch, PartitionId),
    /// In which life each node was then.
    lives: BTreeMap<NodeId, u64>,
    /// Who had to start over.
    evicted: BTreeSet<NodeId>,
}

impl DeterministicSystem {
    /// The system that the flags describe, where they leave a choice as the seed has it.
    fn new(args: &SimArgs, seed: u64) -> anyhow::Result<DeterministicSystem> {
        let engine: Engine = args.engine.parse()?;
        let bugs = args.plant.map_or(Bugs::NONE, |bug| Bugs::NONE.with(bug));
        let partitions = usize::from(args.partitions);
        let mut registry = (*procedures::all()).clone();
        simulated::register(&mut registry);
        let nodes = partitions * usize::from(args.replicas);
        let operator = args.operator.then(|| Operator::new(seed, nodes, &mut registry));
        if seed % 5 < 2 {
            // As narrow as can be: an audit of all keys has to be answered. What else is longer is refused.
            let limits =
                Limits { reply: 9 * args.keys as usize + 16, carried: [0, 2, 4, 6][seed as usize / 5 % 4] };
            registry = registry.limited(limits);
        }
        let drawn = if partitions == 1 { [1, 2, 3, 4, 8][seed as usize % 5] } else { 1 + seed as usize % 3 };
        let shards = args.shards.map_or(drawn, usize::from);
        let layout = Arc::new(Layout::even(partitions, shards)?);
        // Who has lost its disk then gets a checkpoint of a member.
        let trims = seed % 4 < 3;
        let mut options = engine.options(args.options.given.iter())?;
        let mut draw = |info: &'static OptionInfo, drawn: OptionValue| {
            if !options.is_given(info) {
                options.set(info, drawn);
            }
        };
        // Mostly the way in which more can go wrong. A seed that is conservative has nothing to undo.
        let ways = ["conservative", "auto", "speculative", "speculative"];
        draw(&EXECUTION, OptionValue::Name(ways[seed as usize % 4]));
        draw(&CHECKPOINT_MODE, OptionValue::Name(["multiversion", "zigzag"][seed as usize % 2]));
        // Narrow, so that the bounds are met.
        draw(&WINDOW, OptionValue::Integer(1 + seed % 40));
        draw(&BALANCE, OptionValue::Bool(seed % 7 >= 3));
        let settings = NodeSettings {
            topology: Topology { layout, replicas: args.replicas },
            gateways: 2,
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
            checkpoints_kept: 1 + seed as usize % 3,
            trims,
            // Some nodes ask for them by themselves.
            checkpoint_bytes: if seed.is_multiple_of(5) { 4 << 10 } else { 0 },
            // Some configuration services give up primaries that are only slow.
            configuration_service_pace: Micros::from_millis([1, 3, 10, 30, 100][seed as usize % 5]),
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
        let nodes = usize::from(settings.topology.nodes());
        let (generations, started_over) = (vec![0; nodes], vec![(0, None); nodes]);
        Ok(DeterministicSystem {
            registry: Arc::new(registry),
            family,
            settings,
            generations,
            started_over,
            cuts: Vec::new(),
            dispatched: Dispatched::default(),
            damages: args.faults.has(Fault::Disk).then_some(seed),
            damaged: vec![Epoch(0); nodes],
            begun: vec![Epoch(0); nodes],
            operator,
        })
    }

    /// While a node was down, the newest of its checkpoints may have been damaged, if it keeps an older one to fall back
    /// on, and has made another since that happened last: logs are trimmed behind as many as are kept. What is on the disk
    /// besides may be one that was removed, and whose removal was lost.
    fn damage(&mut self, node: NodeId, incarnation: u32, disk: &mut dyn Directory) -> Result<(), DiskError> {
        let Some(seed) = self.damages.filter(|_| self.settings.checkpoints_kept > 1) else { return Ok(()) };
        let complete: Vec<Found> = list(disk)?.into_iter().filter(Found::is_complete).collect();
        let [.., older, Found { epoch, bytes: Some(len), .. }] = &complete[..] else { return Ok(()) };
        // Whoever began again without its log has none that goes back as far.
        if older.epoch < self.begun[usize::from(node.0)] {
            return Ok(());
        }
        let last = &mut self.damaged[usize::from(node.0)];
        let drawn = KeyHash::of(format!("{seed} {} {incarnation}", node.0).as_bytes()).0;
        if drawn.is_multiple_of(2) && *epoch > *last {
            *last = *epoch;
            // Not the version of the format: a file of another one is refused, not done without.
            let (file, offset) = (file_name(*epoch), 12 + (drawn >> 1) % (len - 12));
            let byte = disk.read(&file, offset, 1)?.first().map_or(0, |byte| byte ^ 1 << (drawn % 7));
            let data = vec![Bytes::from(vec![byte])];
            disk.apply(&DiskOp::Write { file: file.clone(), offset, data })?;
            disk.apply(&DiskOp::Sync { file })?;
        }
        Ok(())
    }

    /// The settings of a node.
    fn of(&self, node: NodeId) -> NodeSettings {
        let generation = self.generations[usize::from(node.0)];
        let (started_over, _) = self.started_over[usize::from(node.0)];
        let under_way = self.operator.as_ref().map_or_else(Vec::new, |operator| operator.under_way(node));
        NodeSettings { node, generation, started_over, under_way, ..self.settings.clone() }
    }
}

impl DeterministicSystem {
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
        let (_, pending) = &mut self.started_over[usize::from(node.0)];
        if let Some(how) = *pending {
            assembly::start_over(disk, how).map_err(|e| e.to_string())?;
            *pending = None;
            if how.without_log {
                // It may have held what was lost; but not where a checkpoint was sealed.
                let complete = list(disk).map_err(|e| e.to_string())?.into_iter().filter(Found::is_complete);
                let certain = complete.map(|found| found.epoch).max().unwrap_or_default();
                self.begun[usize::from(node.0)] = certain;
                let mut dispatched = self.dispatched.lock().unwrap_or_else(PoisonError::into_inner);
                dispatched.retain(|(_, (epoch, of)), _| *of != node || *epoch <= certain);
            }
        }
        self.damage(node, incarnation, disk).map_err(|e| e.to_string())?;
        self.operator.iter().for_each(|operator| operator.starts(node));
        let aborted = Aborts::of(disk).map_err(|e| e.to_string())?.stamps();
        let settings = NodeSettings { aborted, ..settings };
        let assembly = self.family.open(Some(disk), &settings, &self.registry).map_err(|e| e.to_string())?;
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

    fn door(&self, node: NodeId, incarnation: u32, n: u16) -> FrontDoor {
        let settings = NodeSettings { node, ..self.settings.clone() };
        // No life submits so many chunks that its numbers would reach those of the next.
        let gateway = self.family.gateway(&settings, n, u64::from(incarnation) << 32, &self.registry);
        let router = self.family.router(&settings);
        FrontDoor { address: Address { node, role: places::GATEWAYS + n }, gateway, router }
    }

    fn hears_of_peers(&self, node: NodeId) -> Vec<u16> {
        self.family.hears_of_peers(&self.of(node))
    }

    fn judge(&mut self, mut ending: Ending<'_>) -> Judgement {
        let mut logs = Vec::new();
        for (node, disk) in &mut ending.disks {
            let partition = self.settings.topology.partition_of(*node);
            match self.log(*node, &mut **disk) {
                Ok(batches) => logs.push(NodeLog { node: *node, partition, batches }),
                Err(reason) => return Judgement::unreadable(*node, &reason),
            }
        }
        let is_void = |answer: &Answer| self.is_void(answer.answerer.0, answer.answerer.1, answer.stamp);
        let voided = ending.history.void(is_void) as u64;
        let aborted = self.operator.as_ref().map_or_else(BTreeSet::new, |operator| operator.aborted.clone());
        let layout = (*self.settings.topology.layout).clone();
        Judgement { voided, ..ending.by_replay(&logs, Some(&layout), &aborted) }
    }

    fn bears_loss(&self) -> bool {
        self.settings.topology.replicas >= 3
            && self.settings.replication() == ordain_family::Replication::Sync
    }

    /// Nothing is gone if all the others of the group have what was agreed on and what came in, and count.
    fn may_lose(&self, node: NodeId, gauge: &dyn Fn(NodeId, &str) -> Option<f64>) -> bool {
        let grid = &self.settings.topology;
        let group: Vec<NodeId> = grid.group(grid.partition_of(node)).collect();
        let is = |of: &NodeId, name: &str, value: f64| gauge(*of, name) == Some(value);
        let known = group.iter().map(|of| gauge(*of, "ordain_group_commit").unwrap_or_default());
        let agreed = known.fold(0.0, f64::max);
        agreed > 0.0
            && group.iter().filter(|other| **other != node).all(|other| {
                is(other, "ordain_group_is_voter", 1.0)
                    && is(other, "ordain_group_members", group.len() as f64)
                    && is(other, "ordain_group_learners", 0.0)
                    && is(other, "ordain_group_dispatched", agreed)
                    && gauge(*other, "ordain_exchange_catch_up_epoch").unwrap_or_default() == 0.0
            })
    }

    fn lose(&mut self, node: NodeId) {
        self.generations[usize::from(node.0)] += 1;
    }

    fn has_ended(&mut self) -> bool {
        self.operator.as_mut().is_some_and(Operator::has_ended)
    }

    fn greeting(&self, _: NodeId, disk: &dyn Directory) -> Vec<u8> {
        let operator = self.operator.as_ref().filter(|_| !self.settings.bugs.has(Bug::ForgetAborts));
        operator.map_or_else(Vec::new, |_| Operator::greeting(disk))
    }

    fn unheard(&self, known: &dyn Directory, of: NodeId, disk: &dyn Directory) -> Vec<Gsn> {
        self.operator.as_ref().map_or_else(Vec::new, |operator| operator.unheard(known, of, disk))
    }

    fn heed(&mut self, node: NodeId, words: &[u8], disk: &mut dyn Directory) -> bool {
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

    fn start_over(&mut self, node: NodeId, how: StartOver) {
        let (times, pending) = &mut self.started_over[usize::from(node.0)];
        *times += 1;
        let without_log = how.without_log || pending.is_some_and(|pending| pending.without_log);
        let without_receive_journal =
            how.without_receive_journal || pending.is_some_and(|pending| pending.without_receive_journal);
        *pending = Some(StartOver { without_log, without_receive_journal });
    }

    fn place(&self, stamp: Stamp) -> String {
        Gsn::from(stamp).to_string()
    }
}

/// Whether slots move in the run of a seed.
const fn moves_slots(seed: u64) -> bool {
    seed % 5 < 3
}

/// Runs one seed.
fn simulate(args: &SimArgs, seed: u64, sink: Option<&mut dyn FnMut(&str)>) -> anyhow::Result<Report> {
    let system = DeterministicSystem::new(args, seed)?;
    let promise = match Knobs::of(&system.settings.options).reads {
        Reads::Ordered | Reads::Strict => Promise::Strict,
        Reads::Session => Promise::Session,
        Reads::Previous if args.replicas == 1 => Promise::Previous,
        // Who follows may be any number of epochs behind.
        Reads::Previous => Promise::Serializable,
    };
    held_to(promise, system, args, seed, sink)
}

/// Runs one seed of a system and holds it to a promise.
fn held_to(
    promise: Promise,
    system: DeterministicSystem,
    args: &SimArgs,
    seed: u64,
    sink: Option<&mut dyn FnMut(&str)>,
) -> anyhow::Result<Report> {
    let nodes = system.settings.topology.nodes();
    let isolation = Knobs::of(&system.settings.options).isolation;
    let config =
        Config { nodes, promise, isolation, txns: args.txns, faults: args.faults, ..Config::new(seed) };
    let mut mix = match args.workload {
        WorkloadName::Mix => Mix::standard(args.keys),
        WorkloadName::Bank => Mix::bank(args.keys),
        WorkloadName::Direct => Mix::direct(args.keys),
    }
    .with_checkpoints(2);
    if args.operator {
        mix = mix.with_fatal(2);
    }
    if args.partitions > 1 && moves_slots(seed) {
        mix = mix.with_moves(2, args.partitions);
    }
    Ok(match sink {
        Some(sink) => run_seed(&config, system, &mut mix, Some(sink)),
        None => run_seed(&config, system, &mut mix, None),
    })
}

/// Runs the seeds. True: no violation.
///
/// # Errors
/// Wrong usage, or a file that cannot be written.
pub fn run(args: &SimArgs) -> anyhow::Result<bool> {
    let (from, to) = args.seeds.unwrap_or((args.seed, args.seed + 1));
    let mut reports = Vec::new();
    let mut sound = true;
    for seed in from..to {
        let report = match &args.trace {
            None => simulate(args, seed, None)?,
            Some(path) => {
                let file = std::fs::File::create(path)
                    .with_context(|| format!("cannot write the trace to {}", path.display()))?;
                let mut file = std::io::BufWriter::new(file);
                let mut failed = None;
                let mut sink = |line: &str| {
                    failed = failed.take().or(writeln!(file, "{line}").err());
                };
                let report = simulate(args, seed, Some(&mut sink))?;
                let ended = failed.map_or(Ok(()), Err).and_then(|()| file.flush());
                ended.with_context(|| format!("cannot write the trace to {}", path.display()))?;
                report
            }
        };
        println!("{report}");
        if report.verdict.is_err() {
            sound = false;
            println!("reproduce: {}", reproduce(args, seed));
        }
        reports.push(to_json(&report));
    }
    if let Some(path) = &args.json {
        std::fs::write(path, serde_json::to_string_pretty(&reports)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(sound)
}

/// The command that runs a seed again.
fn reproduce(args: &SimArgs, seed: u64) -> String {
    let mut command = format!(
        "ordain sim --engine {} --seed {seed} --txns {} --keys {}",
        args.engine, args.txns, args.keys
    );
    if (args.partitions, args.replicas) != (1, 1) {
        command += &format!(" --partitions {} --replicas {}", args.partitions, args.replicas);
    }
    if args.replication == Replication::Async {
        command += " --replication async";
    }
    for (name, value) in args.options.given.iter() {
        command +=
            &format!(" {}", registry::option(name).map_or_else(String::new, |info| info.written(value)));
    }
    command += &format!(" --faults {}", args.faults);
    if args.operator {
        command += " --operator";
    }
    if let Some(workload) = args.workload.to_possible_value() {
        command += &format!(" --workload {}", workload.get_name());
    }
    if let Some(shards) = args.shards {
        command += &format!(" --shards {shards}");
    }
    if let Some((_, name)) = Bug::ALL.iter().find(|(bug, _)| args.plant == Some(*bug)) {
        command += &format!(" --plant {name}");
    }
    command
}

fn to_json(report: &Report) -> serde_json::Value {
    serde_json::json!({
        "seed": report.seed,
        "ok": report.verdict.is_ok(),
        "violation": report.verdict.as_ref().err().map(ToString::to_string),
        "virtual_time_us": report.virtual_time.0,
        "transactions": report.transactions,
        "committed": report.committed,
        "aborted": report.aborted,
        "rejected": report.rejected,
        "unknown": report.unknown,
        "voided": report.voided,
        "batches": report.entries,
        "crashes": report.counts.crashes,
        "restarts": report.counts.restarts,
        "disk_shortages": report.counts.shortages,
        "disks_lost": report.counts.disks_lost,
        "starts_over": report.counts.starts_over,
        "ends": report.counts.ends,
        "operations": report.counts.operations,
        "heeds": report.counts.heeds,
        "events": report.events,
        "trace_hash": format!("{:032x}", report.trace_hash),
        "closing_draw": report.closing_draw,
        "digest": report.digest.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::OptionKind;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        sim: SimArgs,
    }

    fn args(flags: &[&str]) -> SimArgs {
        <Cli as clap::Parser>::try_parse_from([&["sim"], flags].concat()).unwrap().sim
    }

    fn demand_sound(flags: &[&str], seeds: std::ops::Range<u64>) {
        demand_sound_of(&args(flags), seeds);
    }

    fn demand_sound_of(args: &SimArgs, seeds: std::ops::Range<u64>) {
        for seed in seeds {
            let report = simulate(args, seed, None).unwrap();
            assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(args, seed));
            // Besides what clients asked for, a run asks each node for its digest.
            assert!(report.transactions >= args.txns, "only {} requests were made", report.transactions);
        }
    }

    #[test]
    fn every_option_reaches_the_roles_and_the_command_that_reproduces_a_seed() {
        for info in registry::all_options() {
            let engine: Engine = "qstore".parse().unwrap();
            let default = engine.defaults().value(info);
            let value = match info.kind {
                OptionKind::Name { names, .. } => {
                    *names.iter().find(|name| **name != default.to_string()).unwrap()
                }
                OptionKind::Bool => "false",
                _ => "17",
            };
            let by_name = format!("{}={value}", info.name);
            let mut doors = vec![["--option".to_owned(), by_name]];
            if info.is_flag {
                doors.push([format!("--{}", info.name), value.to_owned()]);
            }
            for door in doors {
                let args = args(&["--engine", "qstore", &door[0], &door[1]]);
                let system = DeterministicSystem::new(&args, 3).unwrap();
                assert_eq!(system.settings.options.value(info).to_string(), value, "{door:?}");
                let command = reproduce(&args, 3);
                assert!(command.contains(&info.written(value)), "{command}");
            }
        }
        let refused = DeterministicSystem::new(&args(&["--option", "execution=speculative"]), 1)
            .err()
            .unwrap()
            .to_string();
        assert!(refused.contains("--execution speculative is not for engine calvin"), "{refused}");
    }

    #[test]
    fn seeds_with_all_faults_are_sound() {
        demand_sound(&[], 0..120);
    }

    /// Members that an operator has forgotten, as they had not come to it, and empty ones that join hear of an abort from others.
    #[test]
    fn an_operator_aborts_what_ends_nodes_and_all_members_agree() {
        for engine in ["calvin", "calvin-paper", "qstore", "paxflow"] {
            let (mut ends, mut operations, mut heeds) = (0, 0, 0);
            for flags in [
                &["--partitions", "2", "--replicas", "3"][..],
                &["--partitions", "2", "--replicas", "3", "--faults", "loss"],
                &["--partitions", "3", "--replicas", "2", "--replication", "async"],
                &[],
            ] {
                let args = args(&[&["--operator", "--engine", engine], flags].concat());
                for seed in 0..2 {
                    let report = simulate(&args, seed, None).unwrap();
                    assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
                    ends += report.counts.ends;
                    operations += report.counts.operations;
                    heeds += report.counts.heeds;
                }
            }
            assert!(ends > 10 && operations > 6 && heeds > 6, "{engine}: {ends} {operations} {heeds}");
        }
    }

    #[test]
    fn seeds_of_the_bank_are_sound() {
        demand_sound(&["--workload", "bank", "--keys", "6"], 1000..1060);
    }

    #[test]
    fn seeds_without_faults_are_sound_on_every_number_of_shards() {
        for shards in ["1", "2", "5", "64"] {
            demand_sound(&["--faults", "none", "--shards", shards], 2000..2010);
        }
    }

    #[test]
    fn seeds_of_clusters_without_members_are_sound() {
        demand_sound(&["--partitions", "2"], 4000..4025);
        demand_sound(&["--partitions", "4"], 4100..4110);
        // Journals were trimmed of what had become durable together with what a checkpoint covered.
        demand_sound(&["--partitions", "4"], 6..7);
        demand_sound(&["--partitions", "4"], 45..46);
    }

    #[test]
    fn seeds_of_clusters_with_members_are_sound() {
        demand_sound(&["--partitions", "1", "--replicas", "3"], 5000..5015);
        // What was passed on again to a leader met anew was more than the link held, for ever.
        demand_sound(&["--partitions", "1", "--replicas", "3"], 7049..7050);
        demand_sound(&["--partitions", "2", "--replicas", "3"], 5100..5115);
        // A fetched checkpoint was damaged, and the log did not reach back to the one before.
        let small = ["--partitions", "3", "--replicas", "3", "--txns", "400", "--keys", "16"];
        demand_sound(&[&small[..], &["--workload", "mix"]].concat(), 4_898_665..4_898_666);
        demand_sound(&["--partitions", "3", "--replicas", "2", "--workload", "bank"], 5200..5208);
    }

    #[test]
    fn seeds_of_clusters_with_primaries_are_sound() {
        let grid = |partitions, replicas| {
            args(&["--partitions", partitions, "--replicas", replicas, "--replication", "async"])
        };
        for (partitions, replicas, seeds) in
            [("1", "3", 0..12), ("2", "2", 30..45), ("2", "3", 0..12), ("3", "2", 0..6)]
        {
            demand_sound_of(&grid(partitions, replicas), seeds);
        }
        // With one partition there is no exchange to say what is certain.
        demand_sound_of(&grid("1", "3"), 19..20);
        // A candidate whose own exchange was slow evicted itself; a node that had started over was not told that its log
        // was wrong; what was answered in a life that had ended was held to; slices were forgotten that a member had not on
        // its disk; a primary that had been given up was told what was made of its successor's batches.
        demand_sound_of(&grid("2", "2"), 553..554);
        // What a node had said before it crashed arrived when it ran again, and was held against its later life.
        demand_sound_of(&grid("2", "2"), 932..933);
        demand_sound_of(&grid("2", "2"), 225..226);
        demand_sound_of(&grid("2", "2"), 141..142);
        demand_sound_of(&grid("2", "3"), 136..137);
        demand_sound_of(&grid("2", "2"), 106..107);
        // A full disk left half of a sector that was written before.
        demand_sound_of(&grid("3", "2"), 209..210);
        // What a node that was met anew was sent again was more than its link had room for, so that it was met anew.
        demand_sound_of(&grid("2", "2"), 50_023..50_024);
    }

    #[test]
    fn seeds_with_reads_on_snapshots_are_sound() {
        for (reads, first) in [("previous", 0), ("session", 100), ("strict", 200)] {
            let flags = ["--engine", "paxflow", "--reads", reads];
            demand_sound(&flags, first..first + 20);
            demand_sound(&[&flags[..], &["--partitions", "3"]].concat(), first..first + 10);
            let members = ["--partitions", "2", "--replicas", "3"];
            demand_sound(&[&flags[..], &members].concat(), first..first + 5);
            let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
            demand_sound(&[&flags[..], &primaries].concat(), first..first + 5);
        }
    }

    #[test]
    fn seeds_in_queues_are_sound() {
        let queues = ["--engine", "qstore"];
        demand_sound(&queues, 0..30);
        demand_sound(&[&queues[..], &["--partitions", "3"]].concat(), 100..112);
        demand_sound(&[&queues[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..206);
        demand_sound(&[&queues[..], &["--reads", "session", "--partitions", "2"]].concat(), 300..306);
        let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
        demand_sound(&[&queues[..], &primaries].concat(), 400..406);
        let speculative = [&queues[..], &["--execution", "speculative"]].concat();
        demand_sound(&speculative, 500..512);
        demand_sound(&[&speculative[..], &["--partitions", "2", "--replicas", "2"]].concat(), 500..504);
        // A unit was not over as long as the batch after it had to wait for a checkpoint, which waited for the unit.
        demand_sound(&[&speculative[..], &["--checkpoint-mode", "naive"]].concat(), 0..8);
        // A batch that a full disk refused was executed without its writes, and still said that it may be speculated, to
        // this node alone.
        demand_sound(&[&speculative[..], &["--partitions", "2"]].concat(), 37..38);
        // A node that was asked for its digest started over, and was then expected to answer both times.
        demand_sound(&[&speculative[..], &primaries].concat(), 82_011..82_012);
        // An answer of a node that had yet to meet the one which had met it.
        demand_sound(&[&speculative[..], &primaries].concat(), 96_056..96_057);
    }

    #[test]
    fn seeds_that_abort_in_cascades_are_sound() {
        let cascade = ["--engine", "qstore", "--execution", "speculative", "--cascade", "abort"];
        demand_sound(&cascade, 0..30);
        demand_sound(&[&cascade[..], &["--partitions", "3"]].concat(), 100..112);
        demand_sound(&[&cascade[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..206);
        let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
        demand_sound(&[&cascade[..], &primaries].concat(), 400..406);
        demand_sound(&[&cascade[..], &["--isolation", "read-committed"]].concat(), 500..512);
    }

    #[test]
    fn seeds_that_read_what_is_committed_are_sound() {
        let level = ["--engine", "qstore", "--isolation", "read-committed"];
        demand_sound(&level, 0..30);
        demand_sound(&[&level[..], &["--partitions", "3"]].concat(), 100..112);
        demand_sound(&[&level[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..206);
        demand_sound(&[&level[..], &["--reads", "session", "--partitions", "2"]].concat(), 300..306);
        let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
        demand_sound(&[&level[..], &primaries].concat(), 400..406);
        demand_sound(&[&level[..], &["--checkpoint-mode", "naive"]].concat(), 500..504);
    }

    #[test]
    fn seeds_with_a_lock_manager_are_sound_and_what_is_planted_in_it_is_found() {
        let paper = ["--engine", "calvin-paper"];
        demand_sound(&paper, 0..20);
        demand_sound(&[&paper[..], &["--partitions", "3"]].concat(), 100..110);
        demand_sound(&[&paper[..], &["--partitions", "2", "--replicas", "3"]].concat(), 200..205);
        demand_sound(&[&paper[..], &["--reads", "session", "--partitions", "2"]].concat(), 300..305);
        let primaries = ["--partitions", "2", "--replicas", "2", "--replication", "async"];
        demand_sound(&[&paper[..], &primaries].concat(), 400..405);
        for bug in [Bug::GrantLockEarly, Bug::StaleLayout] {
            let flags = args(&[&paper[..], &["--txns", "600", "--partitions", "2"]].concat());
            let args = SimArgs { plant: Some(bug), ..flags };
            assert!((0..60).any(|seed| simulate(&args, seed, None).unwrap().verdict.is_err()), "{bug:?}");
        }
    }

    /// paxflow.md, section 8, scenario 5.
    #[test]
    fn previous_may_miss_what_session_and_strict_do_not() {
        let missed = |reads: &str, seeds: std::ops::Range<u64>| {
            let args = args(&["--engine", "paxflow", "--reads", reads, "--partitions", "3"]);
            seeds.into_iter().find(|seed| {
                let system = DeterministicSystem::new(&args, *seed).unwrap();
                held_to(Promise::Strict, system, &args, *seed, None).unwrap().verdict.is_err()
            })
        };
        // What is of the same epoch is rarely answered and asked for by two clients just then.
        for reads in ["previous", "session"] {
            assert_ne!(missed(reads, 300..700), None, "{reads}: what others were told may be missed");
        }
        assert_eq!(missed("strict", 300..320), None);
    }

    #[test]
    fn a_seed_of_a_cluster_repeats_to_the_byte() {
        demand_repeated(&["--partitions", "2", "--replicas", "3"], 6000..6002);
    }

    #[test]
    fn a_seed_repeats_to_the_byte() {
        demand_repeated(&[], 3000..3005);
    }

    fn demand_repeated(flags: &[&str], seeds: std::ops::Range<u64>) {
        let args = args(flags);
        for seed in seeds {
            let (mut first, mut second) = (Vec::new(), Vec::new());
            let a = simulate(&args, seed, Some(&mut |line| first.push(line.to_owned()))).unwrap();
            let b = simulate(&args, seed, Some(&mut |line| second.push(line.to_owned()))).unwrap();
            assert_eq!(a, b);
            assert_eq!(first, second);
        }
    }

    #[test]
    fn nodes_lose_their_disks_and_come_back() {
        let mut lost = 0;
        for (partitions, replicas, seeds) in [(1, 3, 9000..9012), (2, 3, 9100..9112)] {
            let flags = args(&["--faults", "loss,crash", "--shards", "1"]);
            let args = SimArgs { partitions, replicas, ..flags };
            for seed in seeds {
                let report = simulate(&args, seed, None).unwrap();
                assert!(report.verdict.is_ok(), "{report}\nreproduce: {}", reproduce(&args, seed));
                lost += report.counts.disks_lost;
            }
        }
        assert!(lost > 5, "only {lost} disks were lost");
    }

    /// Nobody has to compare digests in the end: a replica that has diverged says so itself.
    #[test]
    fn a_replica_that_diverges_takes_itself_out() {
        for (partitions, replicas) in [(1, 3), (2, 3), (1, 2)] {
            let flags = args(&["--faults", "none", "--txns", "600"]);
            let args = SimArgs { plant: Some(Bug::FlipRecord), partitions, replicas, ..flags };
            let fenced = |seed: &u64| {
                let verdict = simulate(&args, *seed, None).unwrap().verdict;
                verdict.is_err_and(|violation| violation.to_string().contains("takes itself out"))
            };
            let found = (0..20).filter(fenced).count();
            assert!(found >= 10, "{partitions} x {replicas}: only {found} of 20");
        }
    }

    /// The checkers must find each planted bug within so many seeds.
    #[test]
    fn every_planted_bug_is_found() {
        for (bug, name) in Bug::ALL {
            let (partitions, replicas) = bug.shows_with();
            let replication = if bug.is_of_primaries() { Replication::Async } else { Replication::Sync };
            let engine = match bug {
                bug if bug.is_of_reads() => "paxflow",
                bug if bug.is_of_queues() => "qstore",
                _ => "calvin",
            };
            let mut flags = vec!["--txns", "600", "--engine", engine];
            if bug.is_of_read_committed() {
                flags.extend(["--isolation", "read-committed"]);
            }
            if bug.is_of_cascades() {
                flags.extend(["--execution", "speculative", "--cascade", "abort"]);
            }
            let (plant, operator) = (Some(bug), bug.is_of_operators());
            let args = SimArgs { plant, operator, partitions, replicas, replication, ..args(&flags) };
            let found = (0..60).any(|seed| simulate(&args, seed, None).unwrap().verdict.is_err());
            assert!(found, "no seed of 60 found the planted bug {name}");
        }
    }
}
