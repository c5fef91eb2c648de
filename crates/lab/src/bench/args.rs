//! The command line of `ordain bench WORKLOAD`: its flags, and the refusals before anything runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use ordain_deterministic::options::CHECKPOINT_MODE;
use ordain_engines::registry::{self, Engine, EngineError};
use ordain_family::Replication;
use ordain_model::key::SLOTS;
use ordain_model::layout::MAX_SHARDS;
use ordain_model::options::any_of;
use ordain_model::{CheckpointMode, Micros, OptionError, Options};
use ordain_role::Bugs;

use super::measure::Sockets;
use super::systems::{Durability, Ours, System};
use crate::embedded::{Delay, Grid, Length};
use crate::options::ComparedArgs;
use crate::ratio::Written;
use crate::report::{Report, check_writable, write_json};
use crate::resp::{FormName, Target};
use crate::workloads::Knobs;
use crate::{host, html, plot};

/// Arguments of `ordain bench WORKLOAD`.
#[derive(Clone, Debug, clap::Args)]
pub struct BenchArgs<K: Knobs> {
    #[command(flatten)]
    pub(super) knobs: K,
    #[command(flatten)]
    pub(super) common: Common,
    #[command(flatten)]
    pub(super) terms: Terms,
}

/// Arguments of every measurement.
#[derive(Clone, Debug, clap::Args)]
pub struct Common {
    /// Event loops of a node, each with a shard of the records [default: one a core, all nodes together];
    /// several are compared
    #[arg(long, value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Partitions that the workload counts with: equal runs of hash slots [default: one a node, or on a node on its
    /// own one a thread]
    #[arg(long)]
    pub partitions: Option<usize>,
    /// Seed of everything that is drawn; each repetition adds one
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Runs of each setting, in turns with the others; tables show medians
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
    /// Directory of temporary files [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

impl Common {
    /// The numbers of threads to compare, of each of so many nodes.
    pub fn thread_counts(&self, nodes: usize) -> Vec<usize> {
        let a_core_each = (host::Host::look().cores / nodes.max(1)).max(1);
        if self.threads.is_empty() { vec![a_core_each] } else { self.threads.clone() }
    }

    /// The seed of a repetition, which count from 1.
    pub fn seed_of(&self, repetition: usize) -> u64 {
        self.seed.wrapping_add(repetition as u64 - 1)
    }

    /// Refuses what makes no sense, by name, and what could not be written afterwards.
    pub fn check(&self) -> anyhow::Result<()> {
        if let Some(threads) = self.threads.iter().find(|threads| !(1..=MAX_SHARDS).contains(*threads)) {
            bail!("--threads must be 1 to {MAX_SHARDS}, not {threads}");
        }
        if let Some(partitions) = self.partitions
            && !(1..=SLOTS).contains(&partitions)
        {
            bail!("--partitions must be 1 to {SLOTS}, not {partitions}");
        }
        if self.repeat == 0 {
            bail!("--repeat must be at least 1");
        }
        let files = [("--json", &self.json), ("--plot", &self.plot), ("--report", &self.report)];
        let mut wanted = BTreeSet::new();
        for (flag, path) in files.iter().filter_map(|(flag, path)| Some((flag, path.as_deref()?))) {
            if !wanted.insert(path) {
                bail!("{flag} {} is wanted for another file already: name them differently", path.display());
            }
            check_writable(flag, Some(path))?;
        }
        self.scratch().map(drop)
    }

    /// Writes the report wherever it is wanted.
    pub fn write(&self, report: &Report) -> anyhow::Result<()> {
        write_json(self.json.as_deref(), &Written::of(report))?;
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
    pub fn scratch(&self) -> anyhow::Result<tempfile::TempDir> {
        scratch(self.data_dir.as_deref())
    }
}

/// A directory that is removed afterwards, in a place of the caller's or the system's.
pub fn scratch(place: Option<&Path>) -> anyhow::Result<tempfile::TempDir> {
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

/// An engine, or all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chosen {
    All,
    One(Engine),
}

impl FromStr for Chosen {
    type Err = EngineError;

    fn from_str(name: &str) -> Result<Chosen, EngineError> {
        if name == "all" { Ok(Chosen::All) } else { name.parse().map(Chosen::One) }
    }
}

/// Systems that a workload runs against, and its clients.
#[derive(Clone, Debug, clap::Args)]
pub struct Terms {
    /// Engines to compare, separated by commas; `all`: every one that has what the other flags ask for [default: calvin]
    #[arg(long, value_delimiter = ',')]
    pub(super) engine: Vec<Chosen>,
    #[command(flatten)]
    pub(super) options: ComparedArgs,
    /// Time at which a write is acknowledged; several are compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fsync")]
    pub(super) durability: Vec<Durability>,
    /// Clients of all threads together; each has one transaction under way [default: 2000 embedded;
    /// --connections times --pipeline over sockets]
    #[arg(long)]
    pub(super) clients: Option<usize>,
    /// Open loop: ask for so many transactions a second, whether or not they are answered in time; latency counts
    /// from when each was due; several are compared [default: each client asks again when it is answered]
    #[arg(long, value_delimiter = ',', value_name = "TXN/S")]
    pub(super) rate: Vec<f64>,
    /// Time of measuring, seconds
    #[arg(long, default_value_t = 10.0)]
    pub(super) duration: f64,
    /// Time of running before measuring, seconds
    #[arg(long, default_value_t = 2.0)]
    pub(super) warmup: f64,
    /// Measure this many transactions instead of a time, without a warm-up
    #[arg(long, value_name = "N")]
    pub(super) txns: Option<u64>,
    /// Way of the clients to our engines; both are compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "embedded")]
    pub(super) via: Vec<Via>,
    /// Run against this server too, redis://[[user:]password@]host[:port][/db]; its database must be empty. Without
    /// --engine, against it alone
    #[arg(long, value_delimiter = ',', value_name = "URL")]
    pub(super) target: Vec<Target>,
    /// Form of transactions over sockets: calls of our procedures, MULTI blocks or Lua scripts [default: native to
    /// ours, script to others]; several are compared
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) form: Vec<FormName>,
    /// Connections, over sockets [default: 50]
    #[arg(long)]
    pub(super) connections: Option<usize>,
    /// Transactions under way on each connection [default: 1]
    #[arg(long)]
    pub(super) pipeline: Option<usize>,
    /// Threads of the clients, over sockets [default: 1]
    #[arg(long)]
    pub(super) client_threads: Option<usize>,
    /// Delete what is in the database of a --target
    #[arg(long)]
    pub(super) flush: bool,
    /// Nodes of the cluster, each with a partition and with --threads loops, all in this process; several are
    /// compared
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub(super) nodes: Vec<u16>,
    /// Replicas of every partition, each on a node of its own [default: 1, or 3 with --replication sync or
    /// async]
    #[arg(long)]
    pub(super) replicas: Option<u16>,
    /// Replication of the input: sync agrees on it before it is executed, async ships it afterwards, none has one
    /// replica; several are compared [default: none with one replica, else sync]
    #[arg(long, value_parser = replication(), value_delimiter = ',')]
    pub(super) replication: Vec<Replication>,
    /// One-way delay between nodes, microseconds
    #[arg(long, default_value_t = 0)]
    pub(super) latency_us: u64,
    /// Compare every cluster with as many nodes on their own, of the same threads, which run side by side and have a
    /// share of the data each
    #[arg(long, value_parser = ["independent"])]
    pub(super) against: Option<String>,
    /// Take a checkpoint when a quarter of the time has been measured, and keep its state like this while it is taken:
    /// multiversion, naive or zigzag; several are compared. For engines in this process that keep a log
    #[arg(long, value_delimiter = ',', conflicts_with = "txns")]
    pub(super) checkpoint_mode: Vec<CheckpointMode>,
    /// Tell how stale what was read on snapshots was, and how many older contents were kept for it. It costs a little. For
    /// engines in this process
    #[arg(long, conflicts_with_all = ["txns", "checkpoint_mode"])]
    pub(super) watch_reads: bool,
    /// Do not measure the ceiling beside every run
    #[arg(long)]
    pub(super) no_ceiling: bool,
    /// Replay the log of every run that keeps one, and compare the digests
    #[arg(long)]
    pub(super) replay: bool,
    /// Bugs that a test of the checks has planted.
    #[arg(skip)]
    pub(super) bugs: Bugs,
}

/// The way of clients to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Via {
    /// In the node's own process, without sockets
    Embedded,
    /// Over the Redis protocol
    Resp,
}

/// Parses the way of input to the replicas.
fn replication() -> impl TypedValueParser<Value = Replication> {
    let all = [Replication::None, Replication::Async, Replication::Sync];
    let by_name = move |name: String| all.into_iter().find(|mode| mode.name() == name);
    PossibleValuesParser::new(all.map(Replication::name)).map(move |name| by_name(name).unwrap_or(all[0]))
}

/// A length of time of the command line.
pub fn seconds(name: &str, seconds: f64) -> anyhow::Result<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(length) if length >= Duration::from_millis(10) && seconds <= 1e6 => Ok(length),
        _ => bail!("{name} must be 0.01 to 1000000 seconds, not {seconds}"),
    }
}

impl Terms {
    /// The checkpoints that are taken in the middle of runs of a system, one a run; or none.
    pub(super) fn checkpoints(&self, system: &System) -> anyhow::Result<Vec<Option<CheckpointMode>>> {
        if self.checkpoint_mode.is_empty() {
            return Ok(vec![None]);
        }
        if !system.can_take_checkpoints() {
            bail!(
                "--checkpoint-mode: {system} cannot take a checkpoint on demand, or keeps none: leave it out"
            );
        }
        Ok(self.checkpoint_mode.iter().copied().map(Some).collect())
    }

    /// Refuses what makes no sense or is not there, by name.
    pub(super) fn check(&self) -> anyhow::Result<Length> {
        /// Beyond this many the node would answer BUSY.
        const CLIENTS_MAX: usize = 100_000;
        if let Some(clients) = self.clients.filter(|clients| !(1..=CLIENTS_MAX).contains(clients)) {
            bail!("--clients must be 1 to {CLIENTS_MAX}, not {clients}");
        }
        if self.clients.is_some() && !self.is_embedded() {
            bail!("--clients means nothing over sockets: give --connections and --pipeline");
        }
        if self.is_behind_sockets() {
            self.sockets().check()?;
        } else if let Some(flag) = self.flags_of_sockets().next() {
            bail!("{flag} is for clients behind sockets: say --via resp or --target");
        }
        if self.flush && self.target.is_empty() {
            bail!("--flush is for the database of a --target: a node of ours starts with an empty one");
        }
        if let Some(lack) = self.engines().into_iter().find_map(|engine| self.lack(engine)) {
            bail!("{lack}: leave it out, or name other engines");
        }
        if let Some(name) = self.options.given.keys().next().filter(|_| self.engines().is_empty()) {
            bail!("--{name} is for engines of ours: a server that is there does as it does");
        }
        let ours = self.systems_of_ours()?;
        if self.watch_reads && !(self.is_embedded() && ours.iter().any(Ours::reads_on_snapshots)) {
            bail!(
                "--watch-reads is for engines --via embedded that read on snapshots: say --engine paxflow, or --reads"
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
        self.check_nodes()?;
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

    /// Refuses what makes no sense of nodes; how many threads are too many is seen when they are known.
    fn check_nodes(&self) -> anyhow::Result<()> {
        /// More than light needs round the earth.
        const LATENCY_MAX_US: u64 = 1_000_000;
        let is_alone = self.grids().iter().all(|grid| grid.all() == 1);
        if let Some(nodes) = self.nodes.iter().find(|nodes| !(1..=MAX_SHARDS as u16).contains(*nodes)) {
            bail!("--nodes must be 1 to {MAX_SHARDS}, not {nodes}");
        }
        let is_async = self.replication.contains(&Replication::Async);
        let forgets =
            |durability: &&Durability| matches!(durability, Durability::None | Durability::Ephemeral);
        if let Some(durability) = self.durability.iter().find(forgets).filter(|_| is_async) {
            bail!(
                "--replication async with --durability {durability}: a primary ships what it will not forget, or it would \
                 seal something else in its place: say fsync or os"
            );
        }
        match (self.replicas, &self.replication[..]) {
            (Some(replicas @ 2..), [Replication::None]) => {
                bail!(
                    "--replication none with --replicas {replicas}: nothing would ever reach the other replicas: say sync"
                )
            }
            (Some(1), _) if is_async => {
                bail!("--replication async with --replicas 1: there is no member to ship to: say 3, or none")
            }
            (Some(1), given) if given.contains(&Replication::Sync) => {
                bail!(
                    "--replication sync with --replicas 1: there is no member to agree with: say 3, or none"
                )
            }
            _ => {}
        }
        if self.latency_us != 0 && is_alone {
            bail!("--latency-us {} has no effect on a cluster of 1 node: leave it at 0", self.latency_us);
        }
        if self.latency_us > LATENCY_MAX_US {
            bail!("--latency-us must be at most {LATENCY_MAX_US}, not {}", self.latency_us);
        }
        if self.against.is_some() && is_alone {
            bail!("--against independent compares clusters: say --nodes 2 or more");
        }
        if is_alone {
            return Ok(());
        }
        if self.is_behind_sockets() || !self.is_embedded() {
            bail!(
                "--nodes and --replicas are for engines --via embedded: for clients behind sockets start a cluster with \
                 `ordain cluster up` and name a node of it with --target"
            );
        }
        if self.replay {
            bail!(
                "--replay is for one node: nodes of a cluster ask one another for what they miss at a start"
            );
        }
        Ok(())
    }

    /// The clusters to compare.
    pub(super) fn grids(&self) -> Vec<Grid> {
        /// The fewest of which one may be lost.
        const REPLICAS: u16 = 3;
        let given = self.replicas.unwrap_or(1);
        let several = self.replicas.unwrap_or(REPLICAS);
        let replicas_of = |mode| if mode == Replication::None { 1 } else { several };
        let modes: Vec<(Replication, u16)> = match &self.replication[..] {
            [] if given == 1 => vec![(Replication::None, 1)],
            [] => vec![(Replication::Sync, given)],
            modes => modes.iter().map(|mode| (*mode, replicas_of(*mode))).collect(),
        };
        let delay = Delay::Even(Micros(self.latency_us));
        let mut grids = Vec::new();
        for &nodes in &self.nodes {
            for &(replication, replicas) in &modes {
                let grid = Grid { nodes, replicas, replication, delay: delay.clone(), ..Grid::ALONE };
                // There is nothing between nodes of which there is one.
                grids.push(if grid.all() == 1 { Grid::ALONE } else { grid });
            }
        }
        grids
    }

    /// The nodes that a cluster is compared with besides other clusters.
    pub(super) fn apart_from(&self, grid: &Grid) -> Option<Grid> {
        (self.against.is_some() && grid.nodes > 1).then(|| Grid { apart: true, ..Grid::of(grid.nodes) })
    }

    /// True if some of our engines run in this process.
    fn is_embedded(&self) -> bool {
        !self.engines().is_empty() && self.via.contains(&Via::Embedded)
    }

    /// True if some clients are behind sockets.
    fn is_behind_sockets(&self) -> bool {
        !self.target.is_empty() || self.via.contains(&Via::Resp)
    }

    /// The flags given that are for such clients only.
    fn flags_of_sockets(&self) -> impl Iterator<Item = &'static str> {
        let given = [
            ("--form", !self.form.is_empty()),
            ("--connections", self.connections.is_some()),
            ("--pipeline", self.pipeline.is_some()),
            ("--client-threads", self.client_threads.is_some()),
        ];
        given.into_iter().filter(|(_, given)| *given).map(|(flag, _)| flag)
    }

    /// The clients behind sockets.
    pub(super) fn sockets(&self) -> Sockets {
        Sockets {
            client_threads: self.client_threads.unwrap_or(1),
            connections: self.connections.unwrap_or(50),
            pipeline: self.pipeline.unwrap_or(1),
            flush: self.flush,
        }
    }

    /// The engines to run: none of ours, if only a server was named.
    fn engines(&self) -> Vec<Engine> {
        let mut engines: Vec<Engine> = Vec::new();
        for chosen in &self.engine {
            match chosen {
                Chosen::One(engine) => engines.push(*engine),
                Chosen::All => {
                    let others = registry::engines().filter(|engine| self.lack(*engine).is_none());
                    let others: Vec<Engine> = others.filter(|engine| !engines.contains(engine)).collect();
                    engines.extend(others);
                }
            }
        }
        if self.engine.is_empty() && self.target.is_empty() {
            engines.push(Engine::default());
        }
        engines
    }

    /// What an engine has not got that flags ask for.
    fn lack(&self, engine: Engine) -> Option<String> {
        let can = engine.can();
        let way = self.replication.iter().find(|way| !can.replication.contains(&way.name()));
        if let Some(way) = way {
            let ways = any_of(can.replication);
            return Some(format!(
                "--replication {}: the log of engine {engine} is replicated by {ways}",
                way.name()
            ));
        }
        if can.has_regions && self.nodes.iter().chain(&self.replicas).any(|nodes| *nodes > 1) {
            return Some(format!(
                "--nodes, --replicas: engine {engine} has regions with clients and storage nodes of their own, which \
                 `ordain lab run regions-rmw` measures"
            ));
        }
        let is_lacking = !self.checkpoint_mode.is_empty() && !engine.defaults().has(&CHECKPOINT_MODE);
        is_lacking.then(|| format!("--checkpoint-mode: engine {engine} has no such option"))
    }

    /// The engines to run and how: every engine with every combination of the options' values. An engine that has not got an
    /// option runs without it, if another has it and results do not depend on it.
    pub(super) fn systems_of_ours(&self) -> Result<Vec<Ours>, OptionError> {
        let mut combinations: Vec<Vec<(&str, &str)>> = vec![Vec::new()];
        for (name, values) in &self.options.given {
            let more = combinations.iter().flat_map(|combination| {
                values.iter().map(move |value| [&combination[..], &[(&**name, &**value)]].concat())
            });
            combinations = more.collect();
        }
        let engines = self.engines();
        let is_skipped = |engine: Engine, name: &str| {
            let has = |engine: Engine| engine.offers().iter().any(|offer| offer.info.name == name);
            let stays = registry::option(name).is_some_and(|info| info.is_identity);
            !stays && !has(engine) && engines.iter().any(|engine| has(*engine))
        };
        let mut systems = Vec::new();
        for &engine in &engines {
            for combination in &combinations {
                let given = combination.iter().copied().filter(|(name, _)| !is_skipped(engine, name));
                let options: Options = engine.options(given)?;
                // Combinations may differ in nothing that the engine has.
                let ours = Ours { engine, options };
                if !systems.contains(&ours) {
                    systems.push(ours);
                }
            }
        }
        Ok(systems)
    }

    /// Everything that is compared on the same nodes with the same threads, and how many clients it has.
    pub(super) fn systems(&self, grid: &Grid) -> Result<Vec<(System, usize)>, OptionError> {
        /// Enough to hide a sync behind the work of others.
        const CLIENTS: usize = 2000;
        let forms = |otherwise| if self.form.is_empty() { vec![otherwise] } else { self.form.clone() };
        let Sockets { connections, pipeline, .. } = self.sockets();
        let behind_sockets = connections * pipeline;
        let mut systems = Vec::new();
        for &durability in &self.durability {
            for ours in self.systems_of_ours()? {
                for via in &self.via {
                    match via {
                        Via::Embedded => systems.push((
                            System::Embedded { ours: ours.clone(), durability, grid: grid.clone() },
                            self.clients.unwrap_or(CLIENTS),
                        )),
                        Via::Resp => systems.extend(forms(FormName::Native).into_iter().map(|form| {
                            (System::Served { ours: ours.clone(), durability, form }, behind_sockets)
                        })),
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
        Ok(systems)
    }
}
