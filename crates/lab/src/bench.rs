//! `ordain bench WORKLOAD`: load, warm up, measure, check; several settings in turns.
//!
//! What is compared are systems: our engines in this very process or behind their sockets, and any server that speaks
//! the Redis protocol. A run starts a node of its own in an empty directory, so no run sees what another left; a server
//! that was there before must be empty, and is emptied between runs and in the end. After a run, what the workload
//! knows of its data must hold. With `--replay` the node is started once more from its log, and must come to the same
//! digest.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use ordain_model::{Datum, Registry, system};
use ordain_node::assembly::{Keep, MAX_SHARDS, NodeSettings};
use ordain_node::engine::Engine;
use ordain_role::Bugs;
use ordain_workload::{Counts, Finding, Seen, Workload};

use crate::embedded::{self, Length, Setup, TICK, Tally, parts_of};
use crate::progress::Progress;
use crate::report::{
    Check, KindOfRun, Latency, Report, Run, Setting, check_writable, cpu_table, kinds_table, throughput_table,
};
use crate::resp::{self, FormName, RespMeasured, RespSetup, Target};
use crate::server::{Launch, Server};
use crate::workloads::Knobs;
use crate::{ceiling, host, html, plot};

/// What `ordain bench WORKLOAD` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs<K: Knobs> {
    #[command(flatten)]
    knobs: K,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    terms: Terms,
}

/// What every measurement takes.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// How many event loops, each with a shard of the records [default: one a core]; several are compared
    #[arg(long, value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// How many partitions the workload counts with: equal runs of hash slots [default: one a thread]
    #[arg(long)]
    pub partitions: Option<usize>,
    /// Where everything that is drawn comes from; each repetition adds one
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How often each setting runs, in turns with the others; tables show medians
    #[arg(long, default_value_t = 1)]
    pub repeat: usize,
    /// Write the report to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw throughput to this file, as SVG
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Write a page with tables, plots, machine and command to this file, as HTML
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Where temporary files go [default: the system's directory for such]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

impl Common {
    /// The numbers of threads to compare.
    pub fn thread_counts(&self) -> Vec<usize> {
        if self.threads.is_empty() { vec![host::Host::look().cores] } else { self.threads.clone() }
    }

    /// The seed of a repetition, which count from 1.
    pub fn seed_of(&self, repetition: usize) -> u64 {
        self.seed.wrapping_add(repetition as u64 - 1)
    }

    /// Refuses what makes no sense, by name, and what could not be written afterwards.
    ///
    /// # Errors
    /// What and why.
    pub fn check(&self) -> anyhow::Result<()> {
        if let Some(threads) = self.threads.iter().find(|threads| !(1..=MAX_SHARDS).contains(*threads)) {
            bail!("--threads must be 1 to {MAX_SHARDS}, not {threads}");
        }
        if let Some(partitions) = self.partitions
            && !(1..=ordain_model::key::SLOTS).contains(&partitions)
        {
            bail!("--partitions must be 1 to {}, not {partitions}", ordain_model::key::SLOTS);
        }
        if self.repeat == 0 {
            bail!("--repeat must be at least 1");
        }
        let files = [("--json", &self.json), ("--plot", &self.plot), ("--report", &self.report)];
        files.iter().try_for_each(|(flag, path)| check_writable(flag, path.as_deref()))
    }

    /// Writes the report wherever it is wanted.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn write(&self, report: &Report) -> anyhow::Result<()> {
        if let Some(path) = &self.json {
            report.write(path)?;
        }
        let command = std::env::args().collect::<Vec<_>>().join(" ");
        let write = |flag: &str, path: &PathBuf, text: String| {
            std::fs::write(path, text).with_context(|| format!("cannot write {flag} {}", path.display()))
        };
        if let Some(path) = &self.plot {
            write("--plot", path, plot::of_runs(&report.runs).svg())?;
        }
        if let Some(path) = &self.report {
            let plots: Vec<_> = [Some(plot::of_runs(&report.runs)), plot::latency_of_runs(&report.runs)]
                .into_iter()
                .flatten()
                .collect();
            write("--report", path, html::bench_page(report, &plots, &command))?;
        }
        Ok(())
    }

    /// A directory that is removed afterwards.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn scratch(&self) -> anyhow::Result<tempfile::TempDir> {
        scratch(self.data_dir.as_deref())
    }
}

/// A directory that is removed afterwards, in a place of the caller's or the system's.
///
/// # Errors
/// The system's, with the path.
pub fn scratch(place: Option<&std::path::Path>) -> anyhow::Result<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("ordain-bench-");
    match place {
        None => {
            builder.tempdir().context("cannot make a temporary directory; name another place with --data-dir")
        }
        Some(path) => builder.tempdir_in(path).with_context(|| {
            format!(
                "cannot make a directory in --data-dir {}: name one that exists and is yours",
                path.display()
            )
        }),
    }
}

/// How a workload is run, and against what.
#[derive(Clone, Debug, clap::Args)]
pub struct Terms {
    /// Engines to compare, separated by commas [default: calvin]
    #[arg(long, value_delimiter = ',')]
    engine: Vec<Engine>,
    /// When a write is acknowledged; several are compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fsync")]
    durability: Vec<Durability>,
    /// How many clients there are, all threads together; each has one transaction under way [default: 2000 embedded;
    /// --connections times --pipeline over sockets]
    #[arg(long)]
    clients: Option<usize>,
    /// Open loop: ask for so many transactions a second, whether or not they are answered in time; latency counts
    /// from when each was due; several are compared [default: each client asks again when it is answered]
    #[arg(long, value_delimiter = ',', value_name = "TXN/S")]
    rate: Vec<f64>,
    /// How long to measure, seconds
    #[arg(long, default_value_t = 10.0)]
    duration: f64,
    /// How long to run before measuring, seconds
    #[arg(long, default_value_t = 2.0)]
    warmup: f64,
    /// Measure this many transactions instead of a time, without a warm-up
    #[arg(long, value_name = "N")]
    txns: Option<u64>,
    /// How clients reach our engines; both are compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "embedded")]
    via: Vec<Via>,
    /// Run against this server too, redis://[[user:]password@]host[:port][/db]; its database must be empty. Without
    /// --engine, against it alone
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    target: Vec<Target>,
    /// How transactions travel over sockets: calls of our procedures, MULTI blocks or Lua scripts [default: native to
    /// ours, script to others]; several are compared
    #[arg(long, value_enum, value_delimiter = ',')]
    form: Vec<FormName>,
    /// How many connections, over sockets
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// How many transactions each connection has under way
    #[arg(long, default_value_t = 1)]
    pipeline: usize,
    /// How many threads the clients have, over sockets
    #[arg(long, default_value_t = 1)]
    client_threads: usize,
    /// Delete what is in the database of a --target
    #[arg(long)]
    flush: bool,
    /// How many nodes the cluster has
    #[arg(long, default_value_t = 1)]
    nodes: u16,
    /// One-way delay between nodes, microseconds
    #[arg(long, default_value_t = 0)]
    latency_us: u64,
    /// Do not measure the ceiling beside every run
    #[arg(long)]
    no_ceiling: bool,
    /// Replay the log of every run that keeps one, and compare the digests
    #[arg(long)]
    replay: bool,
    /// Bugs that a test of the checks has planted.
    #[arg(skip)]
    bugs: Bugs,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Durability {
    /// When it will survive the loss of power
    Fsync,
    /// When it will survive the death of the process
    Os,
    /// Without waiting for the log
    None,
    /// There is no log: as `serve --ephemeral`
    Ephemeral,
}

impl Durability {
    fn keep(self) -> Keep {
        match self {
            Durability::Fsync => Keep::Fsync,
            Durability::Os => Keep::Os,
            Durability::None => Keep::Late,
            Durability::Ephemeral => Keep::Nothing,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Fsync => "fsync",
            Durability::Os => "os",
            Durability::None => "none",
            Durability::Ephemeral => "ephemeral",
        })
    }
}

/// How clients reach the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
enum Via {
    /// In the node's own process, without sockets
    Embedded,
    /// Over the Redis protocol
    Resp,
}

/// A length of time of the command line.
///
/// # Errors
/// It is none.
pub fn seconds(name: &str, seconds: f64) -> anyhow::Result<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(length) if length >= Duration::from_millis(10) && seconds <= 1e6 => Ok(length),
        _ => bail!("{name} must be 0.01 to 1000000 seconds, not {seconds}"),
    }
}

/// The procedures that a benchmark calls: the system's and the workloads'.
pub fn registry() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_workload::register(&mut registry);
    Arc::new(registry)
}

impl Terms {
    /// Refuses what makes no sense or is not there, by name.
    fn check(&self) -> anyhow::Result<Length> {
        /// Beyond this many the node would answer BUSY.
        const CLIENTS_MAX: usize = 100_000;
        if let Some(clients) = self.clients.filter(|clients| !(1..=CLIENTS_MAX).contains(clients)) {
            bail!("--clients must be 1 to {CLIENTS_MAX}, not {clients}");
        }
        if self.clients.is_some() && !self.is_embedded() {
            bail!("--clients says nothing over sockets: say --connections and --pipeline");
        }
        for (flag, value, most) in [
            ("--connections", self.connections, 20_000),
            ("--pipeline", self.pipeline, 10_000),
            ("--client-threads", self.client_threads, 64),
        ] {
            if !(1..=most).contains(&value) {
                bail!("{flag} must be 1 to {most}, not {value}");
            }
        }
        if self.connections < self.client_threads {
            bail!(
                "--connections {} is fewer than --client-threads {}",
                self.connections,
                self.client_threads
            );
        }
        if self.replay && !self.is_embedded() {
            bail!("--replay is for engines --via embedded: a server behind a socket keeps its log to itself");
        }
        if let Some(rate) =
            self.rate.iter().find(|rate| !(rate.is_finite() && **rate >= 1.0 && **rate <= 1e9))
        {
            bail!("--rate must be 1 to 1000000000 transactions a second, not {rate}");
        }
        if self.nodes != 1 {
            bail!("--nodes {} is not built yet: this version has clusters of 1 node", self.nodes);
        }
        if self.latency_us != 0 {
            bail!("--latency-us {} has no effect on a cluster of 1 node: leave it at 0", self.latency_us);
        }
        if self.txns == Some(0) {
            bail!("--txns must be at least 1");
        }
        let measure = seconds("--duration", self.duration)?;
        let warmup =
            Duration::try_from_secs_f64(self.warmup).ok().filter(|warmup| warmup.as_secs() <= 1_000_000);
        let Some(warmup) = warmup else {
            bail!("--warmup must be 0 to 1000000 seconds, not {}", self.warmup)
        };
        Ok(match self.txns {
            Some(txns) => Length::Txns(txns),
            None => Length::Time { warmup, measure },
        })
    }
}

impl Terms {
    /// Whether some of our engines run in this process.
    fn is_embedded(&self) -> bool {
        !self.systems_of_ours().is_empty() && self.via.contains(&Via::Embedded)
    }

    /// The engines to run: none of ours, if only a server was named.
    fn systems_of_ours(&self) -> Vec<Engine> {
        match &self.engine[..] {
            [] if self.target.is_empty() => vec![Engine::Calvin],
            given => given.to_vec(),
        }
    }

    /// Everything that is compared at one number of threads, and how many clients it has.
    fn systems(&self) -> Vec<(System, usize)> {
        /// Enough to hide a sync behind the work of others.
        const CLIENTS: usize = 2000;
        let forms = |otherwise| if self.form.is_empty() { vec![otherwise] } else { self.form.clone() };
        let behind_sockets = self.connections * self.pipeline;
        let mut systems = Vec::new();
        for &durability in &self.durability {
            for engine in self.systems_of_ours() {
                for via in &self.via {
                    match via {
                        Via::Embedded => systems
                            .push((System::Embedded { engine, durability }, self.clients.unwrap_or(CLIENTS))),
                        Via::Resp => systems.extend(
                            forms(FormName::Native)
                                .into_iter()
                                .map(|form| (System::Served { engine, durability, form }, behind_sockets)),
                        ),
                    }
                }
            }
        }
        for target in &self.target {
            systems.extend(
                forms(FormName::Script)
                    .into_iter()
                    .map(|form| (System::Remote { target: target.clone(), form }, behind_sockets)),
            );
        }
        systems
    }
}

/// What a workload runs against.
#[derive(Clone, Debug)]
pub enum System {
    /// An engine in this process.
    Embedded {
        /// Which.
        engine: Engine,
        /// When its writes are acknowledged.
        durability: Durability,
    },
    /// A node of ours in a process of its own, behind a socket.
    Served {
        /// Its engine.
        engine: Engine,
        /// When its writes are acknowledged.
        durability: Durability,
        /// How transactions travel.
        form: FormName,
    },
    /// A server that is there already.
    Remote {
        /// Where.
        target: Target,
        /// How transactions travel.
        form: FormName,
    },
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            System::Embedded { engine, durability } => write!(f, "{engine} with --durability {durability}"),
            System::Served { engine, durability, form } => {
                write!(f, "{engine} with --durability {durability} behind a socket, --form {}", form.name())
            }
            System::Remote { target, form } => write!(f, "{target}, --form {}", form.name()),
        }
    }
}

/// One of the things that are compared.
#[derive(Clone, Debug)]
pub struct Point {
    /// What runs.
    pub system: System,
    /// How many loops it has; 0 for a server that does not tell.
    pub threads: usize,
    /// How many transactions there may be under way.
    pub clients: usize,
    /// What is asked for a second in an open loop.
    pub rate: Option<f64>,
    /// What they ask for.
    pub workload: Arc<dyn Workload>,
}

/// Runs `ordain bench WORKLOAD`; says whether all checks passed.
///
/// # Errors
/// A parameter that makes no sense, before anything runs; or what went wrong in a run, after what was measured
/// until then has been reported.
pub fn run<K: Knobs>(args: &BenchArgs<K>) -> anyhow::Result<bool> {
    args.common.check()?;
    let length = args.terms.check()?;
    let points = points(args)?;
    let mut report = Report::new();
    let result = measure_all(args, length, &points, &mut report);
    if !report.runs.is_empty() {
        println!("{}", throughput_table(&report.runs));
        let more = [kinds_table(&report.runs), cpu_table(&report.runs)];
        more.into_iter().flatten().for_each(|table| println!("{table}"));
        for run in &report.runs {
            run.wrong.iter().for_each(|wrong| eprintln!("{} run {}: {wrong}", run.engine, run.repetition));
        }
    }
    args.common.write(&report)?;
    result.map(|()| report.passed())
}

fn points<K: Knobs>(args: &BenchArgs<K>) -> anyhow::Result<Vec<Point>> {
    let rates: Vec<Option<f64>> = match &args.terms.rate[..] {
        [] => vec![None],
        rates => rates.iter().copied().map(Some).collect(),
    };
    let systems = args.terms.systems();
    let mut points = Vec::new();
    for (i, threads) in args.common.thread_counts().into_iter().enumerate() {
        for workload in args.knobs.workloads(args.common.partitions.unwrap_or(threads))? {
            for &rate in &rates {
                for (system, clients) in &systems {
                    let threads = match system {
                        // It has the threads that it has.
                        System::Remote { .. } if i > 0 => continue,
                        System::Remote { .. } => 0,
                        _ => threads,
                    };
                    let (system, clients) = (system.clone(), *clients);
                    points.push(Point { system, threads, clients, rate, workload: workload.clone() });
                }
            }
        }
    }
    Ok(points)
}

/// Runs every setting once, then every setting again, until each has had its repetitions.
fn measure_all<K: Knobs>(
    args: &BenchArgs<K>,
    length: Length,
    points: &[Point],
    report: &mut Report,
) -> anyhow::Result<()> {
    let each = match length {
        Length::Time { warmup, measure } => warmup + measure,
        Length::Txns(_) => Duration::from_secs(1),
    };
    let mut progress = Progress::new(each * (points.len() * args.common.repeat) as u32);
    let Terms { client_threads, connections, pipeline, flush, .. } = args.terms;
    let mut bench = Bench {
        registry: registry(),
        length,
        replay: args.terms.replay,
        data_dir: args.common.data_dir.clone(),
        sockets: Sockets { client_threads, connections, pipeline, flush },
        used: BTreeMap::new(),
        bugs: args.terms.bugs,
    };
    let result = bench.measure_in_turns(args, points, each, &mut progress, report);
    let cleaned = bench.clean_up();
    drop(progress);
    // A server that has died cannot be cleaned up, and why it died is the better story.
    result.and(cleaned)?;
    if !args.terms.no_ceiling {
        ceiling::measure_machine(args.common.scratch()?.path(), report)?;
    }
    Ok(())
}

impl Bench {
    fn measure_in_turns<K: Knobs>(
        &mut self,
        args: &BenchArgs<K>,
        points: &[Point],
        each: Duration,
        progress: &mut Progress,
        report: &mut Report,
    ) -> anyhow::Result<()> {
        for repetition in 1..=args.common.repeat {
            let seed = args.common.seed_of(repetition);
            // The ceiling of a workload and a number of threads; the workload by its address, as points share it.
            let mut ceilings: BTreeMap<(usize, usize), f64> = BTreeMap::new();
            for point in points {
                let place = (point.threads, Arc::as_ptr(&point.workload).addr());
                if !args.terms.no_ceiling && point.threads > 0 && !ceilings.contains_key(&place) {
                    progress.show(Duration::ZERO, "the ceiling");
                    let run = self.ceiling(point, seed, args.terms.duration, repetition)?;
                    ceilings.insert(place, run.txn_per_s);
                    report.runs.push(run);
                }
                let mut run = self
                    .measure(point, seed, repetition, progress)
                    .with_context(|| format!("{} against {}", point.workload.name(), point.system))?;
                run.share_of_ceiling = ceilings.get(&place).map(|ceiling| run.txn_per_s / ceiling);
                let failed = run.wrong.first().filter(|_| run.checks.contains_key(COMPLETED)).cloned();
                report.runs.push(run);
                if let Some(failure) = failed {
                    bail!("{} ended before its time: {failure}", point.system);
                }
                progress.advance(each);
            }
        }
        Ok(())
    }
}

/// The check of a run that has ended before its time: only such a run has it.
const COMPLETED: &str = "completed";

/// How clients behind sockets are.
#[derive(Clone, Copy, Debug)]
pub struct Sockets {
    /// How many threads they have.
    pub client_threads: usize,
    /// How many connections.
    pub connections: usize,
    /// How many transactions each has under way.
    pub pipeline: usize,
    /// Whether what is in a server's database may be deleted.
    pub flush: bool,
}

/// What all runs have in common.
#[derive(Debug)]
pub struct Bench {
    /// The procedures there are: [`registry`].
    pub registry: Arc<Registry>,
    /// How long a run is.
    pub length: Length,
    /// Whether logs are replayed.
    pub replay: bool,
    /// Where temporary files go.
    pub data_dir: Option<PathBuf>,
    /// How clients behind sockets are.
    pub sockets: Sockets,
    /// Servers that were empty at first and have been used.
    used: BTreeMap<String, Target>,
    /// Bugs that a test of the checks has planted.
    pub bugs: Bugs,
}

impl Bench {
    /// For runs in this process.
    pub fn embedded(length: Length, data_dir: Option<PathBuf>) -> Bench {
        Bench {
            registry: registry(),
            length,
            replay: false,
            data_dir,
            sockets: Sockets { client_threads: 1, connections: 1, pipeline: 1, flush: false },
            used: BTreeMap::new(),
            bugs: Bugs::NONE,
        }
    }

    /// Measures the ceiling of a point.
    ///
    /// # Errors
    /// The workload cannot be planned.
    pub fn ceiling(&self, point: &Point, seed: u64, duration: f64, repetition: usize) -> anyhow::Result<Run> {
        /// The ceiling has no waiting in it, so it needs no longer.
        const ENOUGH: f64 = 2.0;
        let duration = Duration::from_secs_f64(duration.min(ENOUGH));
        ceiling::measure(&*point.workload, &self.registry, point.threads, seed, duration, repetition)
    }

    /// Measures a point once.
    ///
    /// # Errors
    /// The node does not start, or stops by itself.
    pub fn measure(
        &mut self,
        point: &Point,
        seed: u64,
        repetition: usize,
        progress: &Progress,
    ) -> anyhow::Result<Run> {
        let workload = &*point.workload;
        let mut setting =
            Setting { threads: point.threads, clients: point.clients, ..Setting::of("", workload) };
        let mut say = |name: &str, value: serde_json::Value| setting.params.insert(name.to_owned(), value);
        if let Length::Time { warmup, .. } = self.length {
            say("warmup", warmup.as_secs_f64().into());
        }
        if let Some(rate) = point.rate {
            say("rate", rate.into());
        }
        match &point.system {
            System::Embedded { engine, durability } => {
                say("via", "embedded".into());
                say("durability", durability.to_string().into());
                setting.engine = engine.name().to_owned();
                self.measure_embedded(point, *durability, seed, Run::new(setting, repetition), progress)
            }
            System::Served { engine, durability, form } => {
                say("via", "resp".into());
                say("form", form.name().into());
                say("durability", durability.to_string().into());
                setting.engine = engine.name().to_owned();
                let launch = Launch {
                    engine: engine.name().to_owned(),
                    threads: point.threads,
                    durability: (*durability != Durability::Ephemeral).then(|| durability.to_string()),
                    place: self.data_dir.clone(),
                };
                let binary = std::env::current_exe().context("cannot find our own program")?;
                let server = Server::start(&binary, &launch)?;
                let setup = self.resp_setup(server.target().clone(), *form, point, seed);
                let measured = resp::run(&setup, workload, progress)?;
                if measured.failure.is_none() {
                    server.stop()?;
                }
                Ok(tell_resp(workload, &measured, point, Run::new(setting, repetition)))
            }
            System::Remote { target, form } => {
                say("via", "resp".into());
                say("form", form.name().into());
                let mut setup = self.resp_setup(target.clone(), *form, point, seed);
                let name = format!("{target}/{}", target.db);
                setup.flush |= self.used.contains_key(&name);
                let measured = resp::run(&setup, workload, progress)?;
                // Only now: what was refused because it is somebody's is not ours to clean up.
                self.used.insert(name, target.clone());
                setting.engine = format!("{} {}", measured.server.software, measured.server.version);
                Ok(tell_resp(workload, &measured, point, Run::new(setting, repetition)))
            }
        }
    }

    fn measure_embedded(
        &self,
        point: &Point,
        durability: Durability,
        seed: u64,
        mut run: Run,
        progress: &Progress,
    ) -> anyhow::Result<Run> {
        let scratch = scratch(self.data_dir.as_deref())?;
        let keeps = durability != Durability::Ephemeral;
        let setup = Setup {
            node: NodeSettings {
                keep: durability.keep(),
                identity: b"bench".to_vec(),
                bugs: self.bugs,
                ..NodeSettings::default()
            },
            directory: keeps.then(|| scratch.path().to_owned()),
            loops: point.threads,
            clients: point.clients,
            rate: point.rate,
            seed,
            length: self.length,
            audits: vec![system::DIGEST],
            patience: if self.bugs == Bugs::NONE { embedded::PATIENCE } else { Duration::from_millis(100) },
        };
        let measured = embedded::run(&setup, &self.registry, &*point.workload, progress)?;
        let findings = point.workload.check(&measured.seen);
        let told = Told {
            seconds: measured.seconds,
            load_seconds: measured.load_seconds,
            kinds: &measured.kinds,
            seen: &measured.seen,
            findings,
            unanswered: measured.unanswered,
            timeline: &measured.timeline,
        };
        told.put(&*point.workload, &mut run);
        run.peak_rss_bytes = measured.peak_rss_bytes;
        run.offered_txn_per_s = point.rate;
        run.behind = point.rate.map(|_| measured.behind);
        run.cpu_us_per_txn = embedded_cpu(&measured, run.committed);
        if self.replay && keeps {
            progress.show(Duration::ZERO, "replaying");
            let replayed = embedded::replay(&setup, &self.registry)?;
            let answer = measured.audits.first().map(Vec::as_slice).unwrap_or_default();
            let digest = Datum::first(answer).as_bytes().unwrap_or_default();
            run.checks.insert("replay", (replayed.digest.to_string().as_bytes() == digest).into());
            run.replay_txn_per_s = Some(replayed.txns as f64 / replayed.took.as_secs_f64());
        }
        Ok(run)
    }

    fn resp_setup(&self, target: Target, form: FormName, point: &Point, seed: u64) -> RespSetup {
        let Sockets { client_threads, connections, pipeline, flush } = self.sockets;
        RespSetup {
            target,
            form,
            populations: client_threads,
            connections,
            pipeline,
            rate: point.rate,
            seed,
            length: self.length,
            audits: Vec::new(),
            patience: embedded::PATIENCE,
            flush,
        }
    }

    /// Deletes what we have put into databases that were empty before.
    fn clean_up(&self) -> anyhow::Result<()> {
        for target in self.used.values() {
            resp::empty(target)?;
        }
        Ok(())
    }
}

/// What both drivers tell of a run.
struct Told<'a> {
    seconds: f64,
    load_seconds: f64,
    kinds: &'a [Tally],
    seen: &'a Seen,
    findings: Vec<Finding>,
    unanswered: u64,
    timeline: &'a [u64],
}

impl Told<'_> {
    /// Puts into a run what was measured, and what must hold of it.
    fn put(self, workload: &dyn Workload, run: &mut Run) {
        let mut all = Counts::default();
        let mut operations = 0.0;
        let mut latency: Option<hdrhistogram::Histogram<u64>> = None;
        for ((name, tally), accesses) in workload.kinds().iter().zip(self.kinds).zip(workload.accesses()) {
            let Tally { counts, latency_us } = tally;
            all += *counts;
            operations += counts.committed as f64 * accesses;
            run.restarts += counts.restarts;
            match &mut latency {
                None => latency = Some(latency_us.clone()),
                // All histograms have the same bounds.
                Some(sum) => sum.add(latency_us).expect("a histogram of the same bounds"),
            }
            if workload.kinds().len() > 1 && *counts != Counts::default() {
                let kind = KindOfRun {
                    committed: counts.committed,
                    aborted: counts.aborted + counts.restarted_out,
                    restarts: counts.restarts,
                    latency_us: Latency::from(latency_us),
                };
                run.kinds.insert(name, kind);
            }
        }
        let seconds = self.seconds.max(f64::MIN_POSITIVE);
        run.seconds = self.seconds;
        run.load_seconds = self.load_seconds;
        run.committed = all.committed;
        run.aborted = all.aborted + all.restarted_out;
        run.txn_per_s = all.committed as f64 / seconds;
        run.op_per_s = operations / seconds;
        run.latency_us = latency.as_ref().map(Latency::from).unwrap_or_default();
        // The last tick is not a whole one.
        let whole = (self.seconds / TICK.as_secs_f64()) as usize;
        let tick = |(i, commits): (usize, &u64)| ((i + 1) as f64 * TICK.as_secs_f64(), *commits);
        run.timeline = self.timeline.iter().take(whole).enumerate().map(tick).collect();
        let mut findings = self.findings;
        let (unanswered, turned_away) = (self.unanswered, self.seen.total().turned_away);
        findings.push(Finding::new("all_answered", unanswered == 0, || {
            format!("{unanswered} transactions were never answered")
        }));
        findings.push(Finding::new("none_turned_away", turned_away == 0, || {
            format!("{turned_away} transactions were turned away")
        }));
        for finding in findings {
            run.wrong.extend(finding.wrong.iter().map(|wrong| format!("{}: {wrong}", finding.name)));
            run.checks.insert(finding.name, Check::from(finding.wrong.is_none()));
        }
    }
}

fn tell_resp(workload: &dyn Workload, measured: &RespMeasured, point: &Point, mut run: Run) -> Run {
    if let Some(failure) = &measured.failure {
        run.wrong.push(failure.clone());
        run.checks.insert(COMPLETED, Check::Fail);
    }
    let told = Told {
        seconds: measured.seconds,
        load_seconds: measured.load_seconds,
        kinds: &measured.kinds,
        seen: &measured.seen,
        findings: measured.findings.clone(),
        unanswered: measured.unanswered,
        timeline: &measured.timeline,
    };
    told.put(workload, &mut run);
    run.peak_rss_bytes = measured.server_peak_rss_bytes;
    run.offered_txn_per_s = point.rate;
    run.behind = point.rate.map(|_| measured.behind);
    let per_txn = |time: Duration| time.as_secs_f64() * 1e6 / run.committed.max(1) as f64;
    let mut parts: BTreeMap<String, f64> = measured
        .server_cpu
        .iter()
        .map(|(thread, time)| (format!("server: {thread}"), per_txn(*time)))
        .collect();
    parts.insert("driver: clients".to_owned(), per_txn(measured.client_cpu));
    run.cpu_us_per_txn = parts;
    run
}

/// Processor time for each committed transaction, by role or part of the driver.
fn embedded_cpu(measured: &embedded::Measured, committed: u64) -> BTreeMap<String, f64> {
    let per_txn = |time: Duration| time.as_secs_f64() * 1e6 / committed.max(1) as f64;
    let mut parts: BTreeMap<String, f64> =
        parts_of(&measured.loops).into_iter().map(|(name, time)| (name.to_owned(), per_txn(time))).collect();
    // What the process used beyond its loops is the disk thread's, but for the little that leading takes.
    let loops: Duration = measured.loops.iter().map(|used| used.cpu).sum();
    if !measured.process_cpu.is_zero() {
        parts.insert("disk thread".to_owned(), per_txn(measured.process_cpu.saturating_sub(loops)));
    }
    parts
}

#[cfg(test)]
mod tests;
