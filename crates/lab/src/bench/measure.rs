//! Measuring one point once: starts what has to be started, drives it, and has the data checked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use ordain_deterministic::options::CHECKPOINT_MODE;
use ordain_engines::registry;
use ordain_family::NodeSettings;
use ordain_model::{Datum, OptionValue, Registry, system};
use ordain_role::Bugs;

use super::args::scratch;
use super::summary::{embedded_run, resp_run};
use super::{Durability, Ours, Point, System};
use crate::ceiling;
use crate::embedded::{self, Delay, Grid, Length, Setup};
use crate::options::{Bench as OptionsOfBench, OptionFlags as _};
use crate::progress::Progress;
use crate::report::Run;
use crate::resp::{self, FormName, RespSetup, Target};
use crate::server::{Launch, Server};

/// The procedures that a benchmark calls: the system's and the workloads'.
pub fn registry() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_workload::register(&mut registry);
    Arc::new(registry)
}

/// Clients behind sockets.
#[derive(Clone, Copy, Debug)]
pub struct Sockets {
    pub client_threads: usize,
    pub connections: usize,
    /// Transactions under way on each connection.
    pub pipeline: usize,
    /// True: the contents of a server's database may be deleted.
    pub flush: bool,
}

impl Sockets {
    /// Refuses what makes no sense, by name.
    pub fn check(&self) -> anyhow::Result<()> {
        for (flag, value, most) in [
            ("--connections", self.connections, 20_000),
            ("--pipeline", self.pipeline, 10_000),
            ("--client-threads", self.client_threads, 64),
        ] {
            if !(1..=most).contains(&value) {
                bail!("{flag} must be 1 to {most}, not {value}");
            }
        }
        let Sockets { connections, client_threads, .. } = self;
        if connections < client_threads {
            bail!("--connections {connections} is fewer than --client-threads {client_threads}");
        }
        Ok(())
    }
}

/// Notes how our nodes are set.
fn note_ours(ours: &Ours, run: &mut Run) {
    for info in registry::all_options() {
        let name = match OptionsOfBench::flag(info) {
            Some(flag) => flag,
            None if ours.options.is_given(info) => info.name,
            None => continue,
        };
        let value = match ours.options.value(info) {
            OptionValue::Bool(is_on) => is_on.into(),
            OptionValue::Integer(number) | OptionValue::Bytes(number) => number.into(),
            other => other.to_string().into(),
        };
        run.params.insert(name.replace('-', "_"), value);
    }
}

/// Notes which nodes a run has.
fn note_grid(grid: &Grid, run: &mut Run) {
    run.nodes = grid.nodes;
    let mut note = |name: &str, value: serde_json::Value| run.params.insert(name.to_owned(), value);
    note("replicas", grid.replicas.into());
    note("replication", grid.replication.name().into());
    note("apart", grid.apart.into());
    if let Some(regions) = grid.regions {
        note("storage", regions.storage.name().into());
        note("storage_nodes", regions.count.into());
        note("storage_fault", regions.fault.text().trim_start_matches(", ").into());
        note("latency_us_between_regions", regions.between.0.into());
    }
    match &grid.delay {
        Delay::Even(delay) => note("latency_us", delay.0.into()),
        Delay::Regions { near, far } => {
            note("latency_us", near.0.into());
            let far = far.iter().map(|((a, b), delay)| format!("{a}-{b}: {}", delay.0)).collect::<Vec<_>>();
            note("latency_us_between_replicas", far.join(", ").into())
        }
    };
}

/// Measures points, one after the other.
#[derive(Debug)]
pub struct Bench {
    /// The procedures there are: [`registry()`].
    pub registry: Arc<Registry>,
    pub length: Length,
    /// Longest time of measuring: until then a run goes on whose commits say nothing yet.
    pub longest: Duration,
    /// True: logs are replayed.
    pub replay: bool,
    /// Directory of temporary files; none: the system's.
    pub data_dir: Option<PathBuf>,
    /// Clients behind sockets.
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
            longest: Duration::ZERO,
            replay: false,
            data_dir,
            sockets: Sockets { client_threads: 1, connections: 1, pipeline: 1, flush: false },
            used: BTreeMap::new(),
            bugs: Bugs::NONE,
        }
    }

    /// Measures the ceiling of a point.
    pub fn ceiling(&self, point: &Point, seed: u64, duration: f64, repetition: usize) -> anyhow::Result<Run> {
        /// The ceiling has no waiting in it, so it needs no longer.
        const ENOUGH: f64 = 2.0;
        let duration = Duration::from_secs_f64(duration.min(ENOUGH));
        ceiling::measure(&*point.workload, &self.registry, point.loops(), seed, duration, repetition)
    }

    /// Measures a point once.
    pub fn measure(
        &mut self,
        point: &Point,
        seed: u64,
        repetition: usize,
        progress: &Progress,
    ) -> anyhow::Result<Run> {
        let workload = &*point.workload;
        let (threads, clients) = (point.threads, point.clients);
        let mut run = Run { threads, clients, seed, repetition, ..Run::of("", workload) };
        let mut note = |name: &str, value: serde_json::Value| run.params.insert(name.to_owned(), value);
        if let Length::Time { warmup, .. } = self.length {
            note("warmup", warmup.as_secs_f64().into());
        }
        if let Some(rate) = point.rate {
            note("rate", rate.into());
        }
        if let Some(mode) = point.checkpoint {
            note("checkpoint_mode", mode.to_string().into());
        }
        run.conditions = point.conditions();
        match &point.system {
            System::Embedded { ours, durability, grid } => {
                note("via", "embedded".into());
                note("durability", durability.to_string().into());
                note_ours(ours, &mut run);
                if grid.all() > 1 {
                    note_grid(grid, &mut run);
                }
                run.engine = ours.engine.name().to_owned();
                let system = (ours.clone(), *durability, grid);
                self.measure_embedded(point, system, run, progress)
            }
            System::Served { ours, durability, form } => {
                note("via", "resp".into());
                note("form", form.name().into());
                note("durability", durability.to_string().into());
                note_ours(ours, &mut run);
                run.engine = ours.engine.name().to_owned();
                let launch = Launch {
                    ours: ours.clone(),
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
                Ok(resp_run(point, &measured, run))
            }
            System::Remote { target, form } => {
                note("via", "resp".into());
                note("form", form.name().into());
                note("target", target.to_string().into());
                let mut setup = self.resp_setup(target.clone(), *form, point, seed);
                let name = format!("{target}/{}", target.db);
                setup.flush |= self.used.contains_key(&name);
                let measured = resp::run(&setup, workload, progress)?;
                // Only now: a database that was refused because it is in use is not ours to clean up.
                self.used.insert(name, target.clone());
                run.engine = format!("{} {}", measured.server.software, measured.server.version);
                Ok(resp_run(point, &measured, run))
            }
        }
    }

    fn measure_embedded(
        &self,
        point: &Point,
        (ours, durability, grid): (Ours, Durability, &Grid),
        mut run: Run,
        progress: &Progress,
    ) -> anyhow::Result<Run> {
        let seed = run.seed;
        let scratch = scratch(self.data_dir.as_deref())?;
        let keeps = durability != Durability::Ephemeral;
        let mut options = ours.options;
        if let Some(mode) = point.checkpoint {
            options.set(&CHECKPOINT_MODE, CHECKPOINT_MODE.parse(&mode.to_string())?);
        }
        let setup = Setup {
            engine: ours.engine,
            node: NodeSettings {
                keep: durability.keep(),
                identity: b"bench".to_vec(),
                bugs: self.bugs,
                ..NodeSettings::new(options)
            },
            grid: grid.clone(),
            directory: keeps.then(|| scratch.path().to_owned()),
            loops: point.threads,
            clients: point.clients,
            rate: point.rate,
            seed,
            length: self.length,
            audits: if grid.regions.is_none() { vec![system::DIGEST] } else { Vec::new() },
            watch: point.watch,
            checkpoint: point.checkpoint.is_some(),
            longest: self.longest,
            patience: if self.bugs == Bugs::NONE { embedded::PATIENCE } else { Duration::from_millis(100) },
        };
        let measured = embedded::run(&setup, &self.registry, &*point.workload, progress)?;
        run = embedded_run(point, &measured, run);
        if self.replay && keeps {
            progress.show(Duration::ZERO, "replaying");
            let replayed = embedded::replay(&setup, &self.registry)?;
            let answer = measured
                .audits
                .first()
                .and_then(|audits| audits.first())
                .map(Vec::as_slice)
                .unwrap_or_default();
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
    pub(super) fn clean_up(&self) -> anyhow::Result<()> {
        for target in self.used.values() {
            resp::empty(target)?;
        }
        Ok(())
    }
}
