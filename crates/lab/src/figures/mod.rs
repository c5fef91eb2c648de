//! `ordain lab`: the papers' figures, reproduced.
//!
//! Every figure and table of the five papers has a row in `registry.rs`, also those that this version cannot
//! run: these name what is missing, and are refused rather than faked. An entry that can run has an
//! `Experiment`, a value that describes what to measure and what it comes to: plots, tables, the paper's numbers beside
//! ours, and shape checks: requirements of the paper's curve in words, each with a verdict.
//!
//! All figures are measured in the same way ([`run()`]): the points run in turns, again and again, so that a machine that
//! gets slower favours none; medians and spreads are shown; the data are checked after each run.

mod calvin;
mod cluster;
mod contest;
mod experiment;
mod fresh;
mod fwkv;
mod lab;
mod ours;
mod paxflow;
mod psi;
mod qstore;
mod queues;
mod reads;
mod regions;
mod registry;
mod scale;
mod summary;
mod tpcc;
mod verdict;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use ordain_model::layout::MAX_SHARDS;
use ordain_node::cluster::MAX_REPLICAS;
use serde::Serialize;

use experiment::Experiment;
pub use lab::run;
use summary::{Beside, Measured, Shape, Summary};

use crate::options::{OptionArgs, Plain};

/// The subcommands of `ordain lab`.
#[derive(Debug, clap::Subcommand)]
pub enum LabCommand {
    /// List every figure and table of the papers, and what each needs
    List(ListArgs),
    /// Measure figures again, and write a page with the papers' numbers beside ours
    Run(RunArgs),
}

/// Arguments of `ordain lab list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Write the list to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Arguments of `ordain lab run`.
#[derive(Clone, Debug, clap::Args)]
pub struct RunArgs {
    /// The figures by name, or all that this version can run
    #[arg(required = true, value_name = "NAME|all")]
    pub names: Vec<String>,
    /// Seconds a point, small databases, one run of each: the default
    #[arg(long, conflicts_with = "full")]
    pub quick: bool,
    /// The papers' database sizes, long runs, five repetitions
    #[arg(long)]
    pub full: bool,
    /// Runs of each point, of which the median counts [default: one of --quick, the figure's of --full, five mostly]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub repetitions: Option<u16>,
    /// Directory of the page: index.html, and an SVG and a JSON file for each figure
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Write the data of all figures to this file too, as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Directory of temporary files [default: the system's]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Seed of everything that is drawn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Options of the engines, where a figure does not set them itself
    #[command(flatten)]
    pub options: OptionArgs<Plain>,
}

/// The paper of a figure.
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

/// A thing that a figure cannot be without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// A cluster of so many partitions.
    Nodes(u16),
    /// So many replicas of each partition.
    Replicas(u16),
    /// Something that is not built.
    Part(&'static str),
    /// Never met: a drawing or a list of settings, which cannot be measured.
    Nothing(&'static str),
}

impl Need {
    /// True if this version has it.
    pub fn is_met(self) -> bool {
        match self {
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
            Need::Nodes(nodes) => write!(f, "a cluster of {nodes} nodes"),
            Need::Replicas(replicas) => write!(f, "{replicas} replicas"),
            Need::Part(part) => f.write_str(part),
            Need::Nothing(what) => write!(f, "nothing to measure: {what}"),
        }
    }
}

/// The effort of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Size {
    /// Seconds a point, to see that it runs and roughly where it lies.
    Quick,
    /// For figures that are published.
    Full,
}

impl Size {
    /// The one of two values that is for this size.
    pub fn pick<T>(self, quick: T, full: T) -> T {
        match self {
            Size::Quick => quick,
            Size::Full => full,
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.pick("quick", "full")
    }

    /// The time before measuring.
    pub fn warmup(self) -> Duration {
        Duration::from_millis(self.pick(500, 5_000))
    }

    /// The time of measuring.
    pub fn measure(self) -> Duration {
        Duration::from_secs(self.pick(1, 15))
    }

    /// The number of runs of each point.
    pub fn repetitions(self) -> usize {
        self.pick(1, 5)
    }

    /// The number of records, where the paper has so many.
    pub fn records(self, papers: u64) -> u64 {
        papers.min(self.pick(100_000, 4_000_000))
    }
}
