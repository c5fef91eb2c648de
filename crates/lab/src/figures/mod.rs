//! `ordain lab`: the papers' figures, reproduced.
//!
//! Every figure and table of the five papers has an entry in [`FIGURES`], also those that this version cannot
//! run: these say what is missing, and are refused by name rather than faked. An entry that can run has an
//! [`Experiment`]: the points to measure, and what they come to as plots, tables, the paper's numbers beside ours, and
//! shape checks that say in words what the paper's curve requires and whether ours does it.
//!
//! What a figure must do is measured the same way everywhere ([`run()`]): its points run in turns, again and again, so
//! that a machine that gets slower favours none; medians and spreads are shown; the data are checked after each run.

mod calvin;
mod cluster;
mod contest;
mod lab;
mod ours;
mod paxflow;
mod qstore;
mod queues;
mod reads;
mod registry;
mod scale;
mod summary;
mod tpcc;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ordain_deterministic::options::READS;
use ordain_engines::registry::{Engine, option};
use ordain_model::layout::MAX_SHARDS;
use ordain_model::{OptionError, OptionInfo, OptionValue, Reads};
use ordain_node::cluster::MAX_REPLICAS;
use ordain_node::given::Given;
use ordain_workload::Workload;
use serde::Serialize;

pub use lab::{Measure, run};
pub use registry::{FIGURES, Figure, find};
pub use summary::{Beside, Measured, Shape, Summary};

use crate::bench::{Durability, Ours, Point, System};
use crate::embedded::Grid;
use crate::options::{OptionArgs, Plain};

/// The subcommands of `ordain lab`.
#[derive(Debug, clap::Subcommand)]
pub enum LabCommand {
    /// List every figure and table of the papers, and what each needs
    List(ListArgs),
    /// Measure figures again, and write a page with the papers' numbers beside ours
    Run(RunArgs),
}

/// What `ordain lab list` takes.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Write the list to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What `ordain lab run` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The figures by name, or all that this version can run
    #[arg(required = true, value_name = "NAME|all")]
    pub names: Vec<String>,
    /// Seconds a point, small databases: the default
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// The papers' database sizes, long runs, five repetitions
    #[arg(long)]
    pub full: bool,
    /// Where the page goes: index.html, and an SVG and a JSON file for each figure
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Write the data of all figures to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where temporary files go [default: the system's directory for such]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Where everything that is drawn comes from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Options of the engines, where a figure does not set them itself
    #[command(flatten)]
    pub options: OptionArgs<Plain>,
}

/// Which paper a figure is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Paper {
    /// Calvin: fast distributed transactions for partitioned database systems.
    Calvin,
    /// PaxFlow: read-only transactions past the lock manager.
    PaxFlow,
    /// Q-Store: distributed, multi-partition transactions via queue-oriented execution.
    QStore,
    /// FW-KV: fresh reads under parallel snapshot isolation.
    FwKv,
    /// Regions: several writers, validated transactions between them.
    Regions,
    /// None: a question of ours.
    Ours,
}

impl fmt::Display for Paper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Paper::Calvin => "Calvin",
            Paper::PaxFlow => "PaxFlow",
            Paper::QStore => "Q-Store",
            Paper::FwKv => "FW-KV",
            Paper::Regions => "Regions",
            Paper::Ours => "ours",
        })
    }
}

/// What a figure cannot be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// An engine, by its name.
    Engine(&'static str),
    /// A cluster of so many partitions.
    Nodes(u16),
    /// So many replicas of each partition.
    Replicas(u16),
    /// Something that is not built.
    Part(&'static str),
    /// Nothing: it is a drawing or a list of settings, and there is nothing to measure.
    Nothing(&'static str),
}

impl Need {
    /// Whether this version has it.
    pub fn is_met(self) -> bool {
        match self {
            Need::Engine(name) => name.parse::<Engine>().is_ok(),
            // All of them run in this process, and what a machine cannot run is modelled.
            Need::Nodes(nodes) => usize::from(nodes) <= MAX_SHARDS,
            Need::Replicas(replicas) => replicas <= MAX_REPLICAS,
            Need::Part(_) | Need::Nothing(_) => false,
        }
    }
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Need::Engine(name) => write!(f, "engine {name}"),
            Need::Nodes(nodes) => write!(f, "a cluster of {nodes} nodes"),
            Need::Replicas(replicas) => write!(f, "{replicas} replicas"),
            Need::Part(part) => f.write_str(part),
            Need::Nothing(what) => write!(f, "nothing to measure: {what}"),
        }
    }
}

/// How much trouble is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Seconds a point, to see that it runs and roughly where it lies.
    Quick,
    /// For figures that are published.
    Full,
}

impl Size {
    /// Before measuring.
    pub fn warmup(self) -> Duration {
        Duration::from_millis(if self == Size::Quick { 500 } else { 5_000 })
    }

    /// While measuring.
    pub fn measure(self) -> Duration {
        Duration::from_millis(if self == Size::Quick { 1_000 } else { 15_000 })
    }

    /// How often each point is measured.
    pub fn repetitions(self) -> usize {
        if self == Size::Quick { 3 } else { 5 }
    }

    /// How many records, where the paper has so many.
    pub fn records(self, papers: u64) -> u64 {
        if self == Size::Quick { papers.min(100_000) } else { papers.min(4_000_000) }
    }
}

/// A point of a figure: what to measure, and where it belongs.
#[derive(Clone, Debug)]
pub struct FigurePoint {
    /// The line that it is on.
    pub line: String,
    /// Where on it.
    pub x: f64,
    /// What to measure.
    pub point: Point,
}

impl FigurePoint {
    /// Calvin on one node, whose clients do not wait for the log, as the papers' did not: on every core.
    fn calvin(line: &str, x: f64, threads: usize, workload: Arc<dyn Workload>) -> FigurePoint {
        let point = Point {
            system: System::Embedded {
                ours: Ours::new(engine("calvin")),
                durability: Durability::None,
                grid: Grid::ALONE,
            },
            threads,
            clients: CLIENTS,
            rate: None,
            workload,
            watch: false,
            checkpoint: None,
        };
        FigurePoint { line: line.to_owned(), x, point }
    }

    /// The same on the nodes of a grid, each with so many threads, and what only reads is run as this says: on snapshots, if
    /// not in the order.
    fn reading(
        line: &str,
        x: f64,
        (threads, grid): (usize, Grid),
        reads: Reads,
        workload: Arc<dyn Workload>,
    ) -> FigurePoint {
        let mut point = FigurePoint::calvin(line, x, threads, workload);
        let by = engine(if reads == Reads::Ordered { "calvin" } else { "paxflow" });
        let name = Reads::ALL.iter().find(|(_, known)| *known == reads).map_or("", |(name, _)| name);
        let ours = Ours::new(by).with(&READS, OptionValue::Name(name));
        point.point.system = System::Embedded { ours, durability: Durability::None, grid };
        point
    }

    /// Calvin on the nodes of a grid, with a thread each and nothing kept: what is between nodes is what is measured.
    fn cluster(line: &str, x: f64, grid: Grid, clients: usize, workload: Arc<dyn Workload>) -> FigurePoint {
        let system =
            System::Embedded { ours: Ours::new(engine("calvin")), durability: Durability::Ephemeral, grid };
        let point =
            Point { system, threads: 1, clients, rate: None, workload, watch: false, checkpoint: None };
        FigurePoint { line: line.to_owned(), x, point }
    }

    /// The same by another engine.
    fn of_engine(mut self, by: &str) -> FigurePoint {
        if let System::Embedded { ours, .. } = &mut self.point.system {
            *ours = ours.by(engine(by));
        }
        self
    }

    /// The same, with an option of the engine set.
    fn with(mut self, info: &'static OptionInfo, value: OptionValue) -> FigurePoint {
        if let System::Embedded { ours, .. } = &mut self.point.system {
            ours.options.set(info, value);
        }
        self
    }
}

impl FigurePoint {
    /// Sets options of the engine that the figure does not set itself; which they were.
    ///
    /// # Errors
    /// No engine has such an option, or it takes no such value.
    fn take_options<'a>(&mut self, given: &'a Given) -> Result<Vec<&'a str>, OptionError> {
        let System::Embedded { ours, .. } = &mut self.point.system else { return Ok(Vec::new()) };
        let mut used = Vec::new();
        for (name, text) in given.iter() {
            let Some(info) = option(name) else {
                return ours.engine.options([(name, text)]).map(|_| Vec::new());
            };
            let value = info.parse(text)?;
            if ours.options.has(info) && !ours.options.is_given(info) {
                ours.options.set(info, value);
                used.push(name);
            }
        }
        ours.options.check()?;
        Ok(used)
    }
}

/// An engine of a figure's line.
fn engine(name: &str) -> Engine {
    name.parse().expect("figures are of engines that are built")
}

/// How many clients a figure has: enough for batches of the papers' sizes.
const CLIENTS: usize = 2000;

/// How a figure is made.
pub trait Experiment: fmt::Debug + Sync {
    /// What to measure, on a machine with so many cores.
    ///
    /// # Errors
    /// A workload that cannot be made.
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>>;

    /// How long a point is measured.
    fn measure(&self, size: Size) -> Duration {
        size.measure()
    }

    /// How often.
    fn repetitions(&self, size: Size) -> usize {
        size.repetitions()
    }

    /// Whether the ceiling is measured beside every point.
    fn with_ceiling(&self) -> bool {
        false
    }

    /// What it came to.
    fn tell(&self, measured: &Measured) -> Summary;
}

/// The numbers of threads that a figure of one node shows: one, and one a core.
fn thread_counts(cores: usize) -> Vec<usize> {
    if cores > 1 { vec![1, cores] } else { vec![1] }
}
