//! `ordain sim`: a whole cluster, with its disks, its links, its clients and its bad luck, from one seed.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand, ValueEnum};
use ordain_checker::Promise;
use ordain_deterministic::options::Knobs;
use ordain_engines::registry::{self, Engine, Make};
use ordain_lab::options::{OptionArgs, OptionFlags};
use ordain_lab::report;
use ordain_model::{Db, Reads};
use ordain_role::Bug;
use ordain_sim::{
    Config, Fault, Faults, Figures, Mix, Operation, Operations, Report, Summary, Workload, run_seed,
};

mod appends;
mod bugs;
mod commit;
mod configurations;
mod cuts;
mod deterministic;
mod groups;
mod heard;
mod lives;
mod load;
mod measured;
mod mixed;
mod object_store;
mod operator;
mod parts;
mod regional;
mod registers;
mod relocating;
mod replayed;
mod restored;
mod stale;

use crate::cluster::StorageName;
use appends::AppendMix;
use commit::{CommitSystem, Restores};
use deterministic::{DeterministicSystem, SERVERS};
use load::LoadFlags;
use measured::Measured;
use object_store::StoreCounts;
use relocating::Relocating;
use restored::Begun;

/// The workload of a run: the requests that its clients make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// A bit of everything: transfers, rotations, scripts' shape, whole-table work, panics, retries.
    #[default]
    Mix,
    /// Transfers between accounts, and audits of all of them.
    Transfers,
    /// Single-step transactions that depend on nothing.
    Direct,
    /// Appends to lists and reads of them, judged by the dependencies between transactions too.
    Append,
    /// YCSB: reads and writes of records.
    Ycsb,
    /// TPC-C with small warehouses, its consistency conditions at the end.
    Tpcc,
    /// The bank of the benchmarks: transfers, balances and totals.
    Bank,
    /// The Calvin paper's microbenchmark.
    Micro,
}

/// The way in which clients send their requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Speech {
    /// Some by bytes, the others by calls: the seed draws how many.
    #[default]
    Drawn,
    /// All send commands to connection servers, as bytes.
    Resp,
    /// All call procedures at gateways.
    Calls,
    /// All send interactive transactions to connection servers, as bytes, and single commands and blocks beside them.
    Steps,
}

impl Speech {
    /// The number of clients, of so many, that send bytes.
    const fn speakers(self, seed: u64, clients: u32) -> u32 {
        match self {
            Speech::Resp | Speech::Steps => clients,
            Speech::Calls => 0,
            // Three seeds of eight have none: then the limits of transactions can be narrow.
            Speech::Drawn => clients * [0, 1, 2, 0, 1, 3, 0, 4][seed as usize % 8] / 4,
        }
    }
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

impl OptionFlags for OfSim {
    const ELSE: &'static str = ", or as the seed has it";
}

/// What `ordain sim` does besides running seeds.
#[derive(Clone, Debug, Subcommand)]
enum SimCommand {
    /// List the bugs that can be planted: names, engines, mistakes, and the invariants that they break.
    Bugs(bugs::BugsArgs),
    /// List the ways to run engines that long ranges of seeds must cover.
    Configurations(configurations::ConfigurationsArgs),
}

/// The flags of `ordain sim`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SimArgs {
    #[command(subcommand)]
    command: Option<SimCommand>,
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
    /// Regions in place of partitions: each has database servers, and as many storage nodes as --replicas says.
    #[arg(long, value_name = "N", conflicts_with = "partitions", value_parser = clap::value_parser!(u16).range(1..=16))]
    regions: Option<u16>,
    /// Database servers of a region.
    #[arg(long, value_name = "N", requires = "regions", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=3))]
    servers: u16,
    /// When the storage nodes of a region have what is acknowledged.
    #[arg(long, value_enum, requires = "regions", default_value_t)]
    storage: StorageName,
    /// How those who hold a partition get its batches: they agree on each, or one seals them and the others follow.
    #[arg(long, value_enum, default_value_t)]
    replication: Replication,
    /// Shards a node; by default drawn from the seed, 1 to 8.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    shards: Option<u16>,
    /// Bytes of memory that the records of a node may take: others have their values on disk, however short they are. All are in memory
    /// without it
    #[arg(long, value_name = "BYTES")]
    memory_budget: Option<u64>,
    /// The workload: the requests that clients make.
    #[arg(long, value_enum, default_value_t)]
    workload: WorkloadName,
    /// How clients ask: by bytes, by calls, or as the seed has it.
    #[arg(long, value_enum, default_value_t)]
    clients_speak: Speech,
    #[command(flatten)]
    load: LoadFlags,
    /// What goes wrong: none, all, or some of crash, partition, delay, reorder, duplicate, disk, clock, loss, depose,
    /// regain, hold.
    #[arg(long, default_value = "all")]
    faults: Faults,
    /// What an operator does beside: none, all, or some of archive, restore, rolling, replace, relocate. `archive`: checkpoints go to a
    /// store that fails. `restore`: at the end a new cluster is put together from that store, or from the nodes' directories
    #[arg(long, default_value = "none")]
    operations: Operations,
    /// About two transactions in a hundred end the process that executes them, until an operator aborts them
    #[arg(long)]
    operator: bool,
    /// Plant a bug, to see that it is found.
    #[arg(long, value_name = "BUG", hide = true)]
    plant: Option<Bug>,
    /// Pace of the configuration service, in virtual milliseconds, with asynchronous replication; by default as the seed has
    /// it. A quick one gives up primaries that are only slow.
    #[arg(long, value_name = "MS", hide = true, value_parser = clap::value_parser!(u64).range(1..))]
    service_pace_ms: Option<u64>,
    /// Judge by what clients see, nodes say and disks hold alone: no role is asked for broken invariants.
    #[arg(long, hide = true)]
    unasked: bool,
    /// Write the report of each seed to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write every event of the run to this file.
    #[arg(long, value_name = "FILE", conflicts_with = "seeds")]
    trace: Option<PathBuf>,
}

impl SimArgs {
    /// The number of clients, of so many, that send bytes. None with a benchmark's workload, which is audited for the digest of
    /// all records.
    fn speakers(&self, seed: u64, clients: u32) -> u32 {
        let appends = self.workload == WorkloadName::Append;
        // Those who send bytes know of no region.
        if !self.mixes() && !appends || self.regions.is_some_and(|regions| regions > 1) {
            return 0;
        }
        // One client of calls takes the steps by which slots move, or appends to what is audited.
        let least = u32::from(appends || self.operations.has(Operation::Relocate));
        self.clients_speak.speakers(seed, clients).min(clients.saturating_sub(least))
    }

    /// The partitions, which may be regions.
    fn partitions(&self) -> u16 {
        self.regions.unwrap_or(self.partitions)
    }

    /// The nodes of a partition that execute, and all of them.
    fn nodes_of_one(&self) -> (u16, u16) {
        match self.regions {
            Some(_) => (self.servers, self.servers + self.replicas),
            None => (self.replicas, self.replicas),
        }
    }

    /// True if clients of calls ask for what the simulator has made up: no audit counts all records of a database.
    fn mixes(&self) -> bool {
        use WorkloadName as W;
        matches!(self.workload, W::Mix | W::Transfers | W::Direct)
    }
}

fn parse_range(text: &str) -> Result<(u64, u64), String> {
    let parse = || {
        let (from, to) = text.split_once("..")?;
        Some((from.parse().ok()?, to.parse().ok()?))
    };
    parse().filter(|(from, to)| from < to).ok_or_else(|| format!("'{text}' is not a range such as 0..1000"))
}

/// Whether slots move in the run of a seed.
const fn moves_slots(seed: u64) -> bool {
    seed % 5 < 3
}

/// The lines of a trace are given to it.
type Sink<'a> = Option<&'a mut dyn FnMut(&str)>;

/// Runs one seed.
fn simulate(args: &SimArgs, seed: u64, sink: Sink<'_>) -> anyhow::Result<Report> {
    let engine: Engine = args.engine.parse()?;
    match engine.make() {
        Make::Deterministic(_) => {
            let system = DeterministicSystem::new(args, seed)?;
            deterministic(system, args, seed, sink)
        }
        Make::Commit(commit) => {
            anyhow::ensure!(
                !args.operator,
                "engine {engine} has no order to abort in: it runs without an operator"
            );
            let ways = engine.can().replication;
            anyhow::ensure!(
                args.replication == Replication::Sync || ways.contains(&"async"),
                "--replication async: the log of engine {engine} is replicated by {}",
                ways.join(" or ")
            );
            anyhow::ensure!(
                !args.operations.has(Operation::Relocate) || engine.can().moves_slots,
                "--operations relocate: engine {engine} moves no slots: name the other operations"
            );
            anyhow::ensure!(
                args.regions.is_none() || engine.can().has_regions,
                "--regions: the partitions of engine {engine} are no regions: name them by --partitions"
            );
            anyhow::ensure!(
                args.regions.is_none() || !args.operations.has(Operation::Restore),
                "--operations restore: regions are restored from their storage nodes: name the other operations"
            );
            let options = engine.options(args.options.given.iter())?;
            committing(CommitSystem::new(commit, options, args, seed)?, args, seed, sink)
        }
    }
}

/// Runs one seed of a system of the commit family.
fn committing(system: CommitSystem, args: &SimArgs, seed: u64, sink: Sink<'_>) -> anyhow::Result<Report> {
    let nodes = args.partitions() * args.nodes_of_one().1;
    let relaxed = system.relaxed();
    let mut config = spoken_to_commit(args, seed, Config { nodes, relaxed, ..config(args, seed) });
    if system.needs_clocks() {
        config.faults = config.faults.without(Fault::Clock);
    }
    let (store, restores, mut mix) = (system.store(), system.restores(), system.load());
    let mut report = match sink {
        Some(sink) => run_seed(&config, system, &mut *mix, Some(sink)),
        None => run_seed(&config, system, &mut *mix, None),
    };
    if let Some(StoreCounts { sealed, failed, .. }) = store.map(|store| store.counts()) {
        (report.counts.archived, report.counts.store_failures) = (sealed, failed);
    }
    if let Some(Restores { made, refused }) = restores.map(|restores| *restores.borrow()) {
        (report.counts.restores, report.counts.restores_refused) = (made, refused);
    }
    Ok(report)
}

/// The run of a seed as far as the flags say, whatever the system.
fn config(args: &SimArgs, seed: u64) -> Config {
    let of = args.load.config(args.partitions(), seed);
    // A run that a planted bug keeps busy with nothing is known for that sooner. The same run without the bug has the same bound, or
    // a setting in which nodes come to nothing would seem to find the bug.
    let events_max = if args.unasked { 1_000_000 } else { of.events_max };
    let (faults, operations, asks_roles) = (args.faults, args.operations, !args.unasked);
    Config { faults, operations, asks_roles, events_max, ..of }
}

/// A run some of whose clients speak bytes, as the seed has it.
fn spoken_to(args: &SimArgs, seed: u64, mut config: Config) -> Config {
    config.speakers = args.speakers(seed, config.load.clients);
    config.steps = args.clients_speak == Speech::Steps;
    config.load.clients -= config.speakers;
    config.flushes = args.operations.has(Operation::Relocate) && args.mixes() && seed % 3 == 2;
    // After a restore another one, as nobody knows of the lists that clients had written before.
    config.spoken_db = Db(u8::from(!args.mixes()) + 2 * u8::from(config.sessions_before > 0));
    config
}

/// A run of the commit family whose clients speak bytes if the flags say so: in a database of their own, as the lists of calls are
/// all that the other one has.
fn spoken_to_commit(args: &SimArgs, seed: u64, mut config: Config) -> Config {
    config.servers = SERVERS;
    config.spoken_db = Db(1);
    config.steps = args.clients_speak != Speech::Resp;
    if args.clients_speak != Speech::Drawn {
        config.speakers = args.clients_speak.speakers(seed, config.load.clients);
    }
    config.load.clients -= config.speakers;
    config
}

/// Runs one seed of a deterministic system, and of another one that is restored from what it leaves, if that is asked for.
fn deterministic(
    mut system: DeterministicSystem,
    args: &SimArgs,
    seed: u64,
    mut sink: Sink<'_>,
) -> anyhow::Result<Report> {
    let mut workload = workload(&mut system, args, seed)?;
    let (remains, promised) = (system.remains(), promise(&system, args));
    let is_traced = sink.is_some();
    let mut line = |text: &str| {
        if let Some(sink) = &mut sink {
            sink(text);
        }
    };
    let traced: Sink<'_> = if is_traced { Some(&mut line) } else { None };
    let of_seed = spoken_to(args, seed, config(args, seed));
    let mut report = held_to(promised, system, of_seed, &mut *workload, traced);
    let remains = remains.take();
    if let Some(store) = remains.as_ref().and_then(|remains| remains.store.as_ref()) {
        let StoreCounts { sealed, failed, .. } = store.counts();
        (report.counts.archived, report.counts.store_failures) = (sealed, failed);
    }
    let remains = remains.filter(|_| args.operations.has(Operation::Restore));
    let Some(remains) = remains.filter(|_| report.verdict.is_ok()) else { return Ok(report) };
    match restored::begin(args, seed, &remains)? {
        Err(violation) => report.verdict = Err(violation),
        Ok(None) => report.counts.restores_refused += 1,
        Ok(Some(Begun { system, args, restored })) => {
            report.counts.restores += 1;
            let described = restored::described(&restored);
            line(&format!("restored {described}"));
            let txns = (args.load.txns() / 4).max(20);
            let config = Config {
                txns,
                sessions_before: 1 << 32,
                asked_before: remains.asked_last.clone(),
                wall_before: remains.wall,
                ..config(&args, seed ^ 1 << 63)
            };
            let config = spoken_to(&args, seed, config);
            let traced: Sink<'_> = if is_traced { Some(&mut line) } else { None };
            let mut next = held_to(promise(&system, &args), system, config, &mut *workload, traced);
            report.counts.asked_again = next.counts.asked_again;
            if let Err(violation) = &mut next.verdict {
                violation.message = format!("{} (after a restore {described})", violation.message);
            }
            report = report.then(next);
        }
    }
    Ok(report)
}

/// What a system promises about the place in time of reads on snapshots.
fn promise(system: &DeterministicSystem, args: &SimArgs) -> Promise {
    match Knobs::of(&system.settings.options).reads {
        Reads::Ordered | Reads::Strict => Promise::Strict,
        Reads::Session => Promise::Session,
        Reads::Previous if args.replicas == 1 => Promise::Previous,
        // Members that follow may be any number of epochs behind.
        Reads::Previous => Promise::Serializable,
    }
}

/// Runs a deterministic system and holds it to a promise.
fn held_to(
    promise: Promise,
    system: DeterministicSystem,
    config: Config,
    workload: &mut dyn Workload,
    sink: Sink<'_>,
) -> Report {
    let (nodes, isolation) = (system.settings.topology.nodes(), system.isolation());
    let config = Config { nodes, servers: SERVERS, promise, isolation, ..config };
    match sink {
        Some(sink) => run_seed(&config, system, workload, Some(sink)),
        None => run_seed(&config, system, workload, None),
    }
}

/// What clients ask of a deterministic system, and slots that move beside.
fn workload(
    system: &mut DeterministicSystem,
    args: &SimArgs,
    seed: u64,
) -> anyhow::Result<Box<dyn Workload>> {
    let asked = requests(system, args, seed)?;
    Ok(match args.operations.has(Operation::Relocate) && args.partitions > 1 {
        true => Box::new(Relocating::new(asked, args.partitions, args.load.keys())),
        false => asked,
    })
}

/// What clients ask of a deterministic system.
fn requests(
    system: &mut DeterministicSystem,
    args: &SimArgs,
    seed: u64,
) -> anyhow::Result<Box<dyn Workload>> {
    let moves_among = (args.partitions > 1 && moves_slots(seed)).then_some(args.partitions);
    if let Some(measured) = Measured::of(args, (seed, moves_among), &system.registry)? {
        system.measured = Some(measured.clone());
        return Ok(Box::new(measured));
    }
    let mut mix = match args.workload {
        WorkloadName::Append => return Ok(Box::new(AppendMix::audited())),
        WorkloadName::Transfers => Mix::transfers(args.load.keys()),
        WorkloadName::Direct => Mix::direct(args.load.keys()),
        _ => Mix::standard(args.load.keys()),
    }
    .wide(args.load.load(args.partitions).breadth)
    .with_checkpoints(args.load.checkpoints);
    if args.operator {
        mix = mix.with_fatal(2);
    }
    if let Some(partitions) = moves_among {
        mix = mix.with_moves(2, partitions);
    }
    Ok(Box::new(mix))
}

/// Runs the seeds. True: no violation.
///
/// # Errors
/// Wrong usage, or a file that cannot be written.
pub fn run(args: &SimArgs) -> anyhow::Result<bool> {
    match &args.command {
        Some(SimCommand::Bugs(args)) => return bugs::run(args),
        Some(SimCommand::Configurations(args)) => return configurations::run(args),
        None => {}
    }
    let (from, to) = args.seeds.unwrap_or((args.seed, args.seed + 1));
    let mut reports = Vec::new();
    let (mut sound, mut summary) = (true, Summary::default());
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
        reports.push(to_json(args, &report));
        summary.add(report.figures);
    }
    if reports.len() > 1 {
        println!("{summary}");
    }
    report::write_json(args.json.as_deref(), &reports)?;
    Ok(sound)
}

/// The command that runs a seed again.
fn reproduce(args: &SimArgs, seed: u64) -> String {
    let mut command = format!("ordain sim --engine {} --seed {seed}{}", args.engine, args.load.written());
    if let Some(regions) = args.regions {
        command += &format!(" --regions {regions} --replicas {} --servers {}", args.replicas, args.servers);
        if args.storage == StorageName::Full {
            command += " --storage full";
        }
    } else if (args.partitions, args.replicas) != (1, 1) {
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
    if args.operations != Operations::NONE {
        command += &format!(" --operations {}", args.operations);
    }
    if args.operator {
        command += " --operator";
    }
    if let Some(workload) = args.workload.to_possible_value() {
        command += &format!(" --workload {}", workload.get_name());
    }
    if let Some(speech) = args.clients_speak.to_possible_value() {
        command += &format!(" --clients-speak {}", speech.get_name());
    }
    if let Some(shards) = args.shards {
        command += &format!(" --shards {shards}");
    }
    if let Some(bytes) = args.memory_budget {
        command += &format!(" --memory-budget {bytes}");
    }
    if let Some(bug) = args.plant {
        command += &format!(" --plant {}", bug.name());
    }
    if args.unasked {
        command += " --unasked";
    }
    if let Some(pace) = args.service_pace_ms {
        command += &format!(" --service-pace-ms {pace}");
    }
    // With its events, which many seeds at once do not write.
    command + &format!(" --trace seed-{seed}.trace")
}

/// The figures of a run, for its report.
fn figures_to_json(figures: &Figures) -> serde_json::Value {
    serde_json::json!({
        "unknown_percent": figures.unknown_percent,
        "batches": figures.batches,
        "batch_txns": figures.batch_txns,
        "large_batches_percent": figures.large_batches_percent,
        "batch_fragments_max": figures.batch_fragments_max,
        "batch_fragments": figures.batch_fragments,
        "faults": figures.faults,
        "deposed": figures.deposed,
        "regained": figures.regained,
        "held": figures.held,
        "fault_every_us": figures.fault_every().map(|every| every.0),
        "asked_for_us": figures.asked_for.0,
    })
}

fn to_json(args: &SimArgs, report: &Report) -> serde_json::Value {
    serde_json::json!({
        "seed": report.seed,
        "load": args.load.to_json(args.partitions),
        "ok": report.verdict.is_ok(),
        "violation": report.verdict.as_ref().err().map(ToString::to_string),
        "kind": report.verdict.as_ref().err().map(|violation| violation.kind.name()),
        "virtual_time_us": report.virtual_time.0,
        "transactions": report.transactions,
        "spoken": report.spoken,
        "committed": report.committed,
        "aborted": report.aborted,
        "rejected": report.rejected,
        "unknown": report.unknown,
        "voided": report.voided,
        "entries": report.entries,
        "figures": figures_to_json(&report.figures),
        "crashes": report.counts.crashes,
        "restarts": report.counts.restarts,
        "disk_shortages": report.counts.shortages,
        "disks_lost": report.counts.disks_lost,
        "starts_over": report.counts.rebuilds,
        "ends": report.counts.ends,
        "operations": report.counts.operations,
        "heeds": report.counts.heeds,
        "rolls": report.counts.rolls,
        "stops": report.counts.stops,
        "replacements": report.counts.replacements,
        "mistakes": report.counts.mistakes,
        "refusals": report.counts.refusals,
        "archived": report.counts.archived,
        "store_failures": report.counts.store_failures,
        "restores": report.counts.restores,
        "restores_refused": report.counts.restores_refused,
        "asked_again": report.counts.asked_again,
        "events": report.events,
        "trace_hash": format!("{:032x}", report.trace_hash),
        "closing_draw": report.closing_draw,
        "digest": report.digest.to_string(),
    })
}

#[cfg(test)]
mod connections_tests;
#[cfg(test)]
mod operations_tests;
#[cfg(test)]
mod replayed_tests;
#[cfg(test)]
mod tests;
