//! A figure as a value: the lines that it compares, the axis that it sweeps, the setting of each place, what is read off
//! the runs, and what the shape must be.
//!
//! One runner ([`interleaved`]) measures all figures, and one renderer ([`Experiment::summary`], then the page) draws them.
//! A figure of one more engine is a value like this one, and a row of the [registry](super::registry):
//!
//! ```text
//! pub static FIGURE_6: Experiment = Experiment {
//!     title: "Skew",
//!     subtitle: "YCSB, 16 partitions on 4 nodes, 16 operations of which half are writes",
//!     x: ("theta", "", LINEAR),
//!     values: Values::At(&[0.0, 0.4, 0.8, 0.9, 0.99]),
//!     lines: |_| ["no-wait", "mvcc"].map(|name| Line::cluster(name, Grid::of(4), 8_000).by(name)).into(),
//!     setting: |size, theta, _| ycsb(Parameters { distribution: Zipfian { theta }, ..defaults(size) }),
//!     plots: &[Picture { y: THROUGHPUT, series: Measured::clock, ..PICTURE }],
//!     paper: &[("MVCC at 0.99", "3 M txn/s (section 6)", |m| rate_at(&m.clock("mvcc"), 0.99))],
//!     log: Logging { durability: Durability::Fsync, paper: "The paper logs inputs (section 3.3)." },
//!     shapes: |m| vec![Shape::flat("mvcc is flat: within 20%", &m.clock("mvcc"), 0.2)],
//!     notes: &["The paper's nodes are 16 servers, ours share a machine."],
//!     ..Experiment::PLAIN
//! };
//! ```
//!
//! Anything beside this (a table, a model, a plot over something else than the swept axis) a figure adds in
//! [`Experiment::more`].
//!
//! What follows from service demand for other machines is no measurement: it is drawn apart
//! ([`Experiment::extrapolated`]), and no verdict rests on it. Nodes log as `ordain serve` does ([`Experiment::log`]),
//! unless the paper's did not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use ordain_deterministic::options::READS;
use ordain_engines::registry::{Engine, option};
use ordain_model::{CheckpointMode, OptionError, OptionInfo, OptionValue, Reads};
use ordain_node::given::Given;
use ordain_workload::Workload;

use super::summary::InSimulator;
use super::{Beside, Measured, Shape, Size, Summary};
use crate::bench::{Durability, Ours, Point, System};
use crate::conditions::caption;
use crate::embedded::Grid;
use crate::interrupt;
use crate::plot::{Axis, Kind, Plot, Scale, Series};
use crate::report::Run;

/// An axis: its label, its unit and its scale.
pub type Dimension = (&'static str, &'static str, fn() -> Scale);

pub const LINEAR: fn() -> Scale = || Scale::Linear;
pub const THROUGHPUT: Dimension = ("throughput", "txn/s", LINEAR);
/// The axis of figures that sweep the threads of one node, a core for each.
pub const CORES: Dimension = ("cores", "", LINEAR);

/// Clients of one node: enough for batches of the papers' sizes.
const CLIENTS: usize = 2000;

/// The places of a swept axis.
#[derive(Clone, Copy, Debug)]
pub enum Values {
    At(&'static [f64]),
    /// Fewer in a quick run.
    Sized {
        quick: &'static [f64],
        full: &'static [f64],
    },
    /// One thread, and one for each core of the machine; each line gets as many.
    Threads,
}

/// A line of a figure: a system, and how clients ask it.
#[derive(Clone, Debug)]
pub struct Line {
    pub name: String,
    pub ours: Ours,
    pub grid: Grid,
    /// Event loops of a node.
    pub threads: usize,
    /// Transactions under way on all nodes.
    pub clients: usize,
    /// Transactions a second, in an open loop.
    pub rate: Option<f64>,
    /// True: staleness is measured, and kept contents, where reads are on snapshots or the workload names what it writes.
    pub watches_reads: bool,
    pub checkpoint: Option<CheckpointMode>,
    /// Time of measuring, in place of the figure's.
    pub measure: Option<Duration>,
    /// Number by which the lines' workloads differ; only the figure's setting reads it.
    pub knob: f64,
}

impl Line {
    /// Calvin on one node.
    pub fn node(name: impl Into<String>, threads: usize) -> Line {
        Line {
            name: name.into(),
            ours: Ours::new(engine("calvin")),
            grid: Grid::ALONE,
            threads,
            clients: CLIENTS,
            rate: None,
            watches_reads: false,
            checkpoint: None,
            measure: None,
            knob: 0.0,
        }
    }

    /// Calvin on a cluster whose nodes have a thread each.
    pub fn cluster(name: impl Into<String>, grid: Grid, clients: usize) -> Line {
        Line { grid, clients, ..Line::node(name, 1) }
    }

    /// Sets the engine, by its name.
    pub fn by(self, name: &str) -> Line {
        Line { ours: self.ours.by(engine(name)), ..self }
    }

    /// Sets an option of the engine.
    pub fn with(mut self, info: &'static OptionInfo, value: OptionValue) -> Line {
        self.ours.options.set(info, value);
        self
    }

    /// Sets an option of the engine by its name.
    ///
    /// # Panics
    /// If no engine has such an option.
    pub fn set(self, name: &str, value: OptionValue) -> Line {
        self.with(option(name).expect("an engine has this option"), value)
    }

    /// Sets how read-only transactions run: in the order by `calvin`, on snapshots by `paxflow`.
    pub fn reading(self, reads: Reads) -> Line {
        let name = Reads::ALL.iter().find(|(_, known)| *known == reads).map_or("", |(name, _)| name);
        let by = if reads == Reads::Ordered { "calvin" } else { "paxflow" };
        self.by(by).with(&READS, OptionValue::Name(name))
    }

    /// Sets [`Line::knob`].
    pub fn knob(self, knob: f64) -> Line {
        Line { knob, ..self }
    }

    /// The line's point at a place of the axis; how it logs, the experiment sets.
    pub fn at(self, x: f64, workload: Arc<dyn Workload>) -> FigurePoint {
        let Line { name, ours, grid, threads, clients, rate, watches_reads, checkpoint, measure, .. } = self;
        let watch = watches_reads && (ours.reads_on_snapshots() || workload.names_writes());
        let system = System::Embedded { ours, durability: Logging::PRODUCT.durability, grid };
        FigurePoint {
            line: name,
            x,
            measure,
            point: Point { system, threads, clients, rate, workload, watch, checkpoint },
        }
    }
}

fn engine(name: &str) -> Engine {
    name.parse().expect("figures are of engines that are built")
}

/// A point of a figure: what to measure, on which line, and where on it.
#[derive(Clone, Debug)]
pub struct FigurePoint {
    pub line: String,
    pub x: f64,
    /// Time of measuring, in place of the figure's.
    pub measure: Option<Duration>,
    pub point: Point,
}

impl FigurePoint {
    fn logs(mut self, logging: Logging) -> FigurePoint {
        if let System::Embedded { durability, .. } = &mut self.point.system {
            *durability = logging.durability;
        }
        self
    }

    /// Sets options of the engine that the figure does not set itself; returns the names of those that it set.
    ///
    /// # Errors
    /// No engine has such an option, or it takes no such value.
    pub fn take_options<'a>(&mut self, given: &'a Given) -> Result<Vec<&'a str>, OptionError> {
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

/// The log of a figure's nodes: the paper's setting, or the product's where the paper does not say.
#[derive(Clone, Copy, Debug)]
pub struct Logging {
    pub durability: Durability,
    /// The words of the paper about its own log, with the section.
    pub paper: &'static str,
}

impl Logging {
    /// As `ordain serve` does, for questions that no paper asks.
    pub const PRODUCT: Logging = Logging { durability: Durability::Fsync, paper: "There is no paper." };
    pub const CALVIN: Logging = Logging {
        paper: "The paper logs transactional input and nothing else (section 5), and replicates a batch before it is \
                executed (3.1); whether the measured system wrote a log to disk it does not say.",
        ..Logging::PRODUCT
    };
    pub const PAXFLOW: Logging = Logging {
        paper: "The paper does not say whether its system logs. Transactions that only read are not logged here.",
        ..Logging::PRODUCT
    };
    pub const FWKV: Logging = Logging {
        durability: Durability::Ephemeral,
        paper: "The paper's store is in memory (section 5), and what a site survives failures by is left out (section 2.2).",
    };
    pub const QSTORE: Logging = Logging {
        paper: "The paper logs the input of a batch before execution threads get it (section 3.3); whether the measured \
                system did it does not say, and the authors' public code has no log.",
        ..Logging::PRODUCT
    };
}

/// A plot of some lines over the swept axis.
#[derive(Clone, Copy)]
pub struct Picture {
    /// Stands behind the figure's title.
    pub suffix: &'static str,
    pub y: Dimension,
    pub kind: Kind,
    /// The lines that are in it.
    pub has: fn(&str) -> bool,
    pub series: fn(&Measured, &str) -> Series,
}

/// All lines by the clock.
pub const PICTURE: Picture =
    Picture { suffix: "", y: THROUGHPUT, kind: Kind::Lines, has: |_| true, series: Measured::clock };

/// A number of the paper: its quantity, its value with the section, and what of ours stands beside it.
pub type Number = (&'static str, &'static str, fn(&Measured) -> String);

/// A figure that can be measured.
#[derive(Clone, Copy)]
pub struct Experiment {
    pub title: &'static str,
    pub subtitle: &'static str,
    /// The swept axis, and its places.
    pub x: Dimension,
    pub values: Values,
    /// The lines, on a machine with so many cores.
    pub lines: fn(usize) -> Vec<Line>,
    /// The workload at a place of a line, which may set the line's clients, rate, nodes and time of measuring too.
    pub setting: fn(Size, f64, &mut Line) -> anyhow::Result<Arc<dyn Workload>>,
    /// Points that are not on the swept axis.
    pub also: fn(Size, usize) -> anyhow::Result<Vec<FigurePoint>>,
    /// Clusters in the simulator, with the costs that were measured.
    pub simulate: fn(Size, &Measured) -> anyhow::Result<Vec<InSimulator>>,
    /// Time and number of the runs of a point.
    pub measure: fn(Size) -> Duration,
    pub repetitions: fn(Size) -> usize,
    /// True: the ceiling is measured beside every point.
    pub with_ceiling: bool,
    /// Plots of what is measured.
    pub plots: &'static [Picture],
    /// Plots of what follows from service demand.
    pub extrapolated: &'static [Picture],
    /// Numbers of the paper beside ours, measured.
    pub paper: &'static [Number],
    /// Numbers of the paper beside what follows from service demand.
    pub extrapolations: &'static [Number],
    /// The log of the nodes.
    pub log: Logging,
    /// True of a question of ours.
    pub is_ours: bool,
    /// Requirements on the lines.
    pub shapes: fn(&Measured) -> Vec<Shape>,
    /// Differences to the paper, and their reasons.
    pub notes: &'static [&'static str],
    /// Anything that no other field can describe.
    pub more: fn(&Experiment, &Measured, &mut Summary),
}

impl fmt::Debug for Experiment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Experiment").field(&self.title).finish()
    }
}

impl Experiment {
    /// The defaults, without lines.
    pub const PLAIN: Experiment = Experiment {
        title: "",
        subtitle: "",
        x: CORES,
        values: Values::Threads,
        lines: |_| Vec::new(),
        setting: |_, _, line| anyhow::bail!("line {} has no setting", line.name),
        also: |_, _| Ok(Vec::new()),
        simulate: |_, _| Ok(Vec::new()),
        measure: Size::measure,
        repetitions: Size::repetitions,
        with_ceiling: false,
        plots: &[],
        extrapolated: &[],
        paper: &[],
        extrapolations: &[],
        log: Logging::PRODUCT,
        is_ours: false,
        shapes: |_| Vec::new(),
        notes: &[],
        more: |_, _, _| {},
    };

    /// The points to measure, on a machine with so many cores.
    pub fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let values = match self.values {
            Values::At(values) => values.to_vec(),
            Values::Sized { quick, full } => size.pick(quick, full).to_vec(),
            Values::Threads if cores > 1 => vec![1.0, cores as f64],
            Values::Threads => vec![1.0],
        };
        let mut points = Vec::new();
        for x in values {
            for mut line in (self.lines)(cores) {
                if matches!(self.values, Values::Threads) {
                    line.threads = x as usize;
                }
                let workload = (self.setting)(size, x, &mut line)?;
                points.push(line.at(x, workload));
            }
        }
        points.extend((self.also)(size, cores)?);
        Ok(points.into_iter().map(|point| point.logs(self.log)).collect())
    }

    /// The summary of the runs.
    pub fn summary(&self, measured: &Measured) -> Summary {
        let Logging { durability, paper } = self.log;
        let log = format!("Logging: durability {durability}. {paper}");
        let notes = self.notes.iter().map(|note| (*note).to_owned()).chain([log]);
        let pictures = |pictures: &[Picture]| pictures.iter().map(|it| self.picture(it, measured)).collect();
        let numbers = |numbers: &[Number]| {
            numbers.iter().map(|(what, paper, ours)| Beside::new(what, paper, ours(measured))).collect()
        };
        let mut summary = Summary {
            plots: pictures(self.plots),
            extrapolated: pictures(self.extrapolated),
            beside: numbers(self.paper),
            extrapolations: numbers(self.extrapolations),
            shapes: (self.shapes)(measured),
            notes: notes.collect(),
            tables: Vec::new(),
        };
        (self.more)(self, measured, &mut summary);
        summary.shapes.iter_mut().for_each(|shape| shape.is_ours |= self.is_ours);
        if let Some(why) = measured.no_verdict_because() {
            summary.withhold(&why);
        }
        let conditions = caption(measured.runs.iter().map(|(_, _, run)| run));
        for plot in
            summary.plots.iter_mut().chain(&mut summary.extrapolated).filter(|_| !conditions.is_empty())
        {
            plot.subtitle = format!("{}; {conditions}", plot.subtitle);
        }
        summary
    }

    fn picture(&self, picture: &Picture, measured: &Measured) -> Plot {
        let lines = measured.lines().into_iter().filter(|line| (picture.has)(line));
        let series = lines.map(|line| (picture.series)(measured, line)).collect();
        Plot { kind: picture.kind, ..self.plot(picture.suffix, picture.y, series) }
    }

    /// A plot over the swept axis.
    pub fn plot(&self, suffix: &str, y: Dimension, series: Vec<Series>) -> Plot {
        Plot {
            title: format!("{}{suffix}", self.title),
            subtitle: self.subtitle.to_owned(),
            x: axis(self.x),
            y: axis(y),
            kind: Kind::Lines,
            series,
            notes: Vec::new(),
        }
    }
}

pub fn axis((label, unit, scale): Dimension) -> Axis {
    Axis::new(label, unit, scale())
}

/// Measures points.
pub trait Measure {
    /// Measures a point once.
    fn measure(&mut self, point: &FigurePoint, repetition: usize) -> anyhow::Result<Run>;

    /// Measures the ceiling of a point.
    fn ceiling(&mut self, point: &FigurePoint, repetition: usize) -> anyhow::Result<Run>;
}

/// Measures every point once, then every point again, until each has had its repetitions.
pub fn interleaved(
    points: &[FigurePoint],
    repetitions: usize,
    with_ceiling: bool,
    measure: &mut dyn Measure,
) -> anyhow::Result<Measured> {
    let mut measured = Measured::default();
    for repetition in 1..=repetitions {
        for point in points {
            interrupt::check()?;
            let place = || format!("{} at {}", point.line, point.x);
            let mut run = measure.measure(point, repetition).with_context(place)?;
            if with_ceiling {
                let ceiling = measure.ceiling(point, repetition).with_context(place)?;
                // No ratio from runs whose checks failed.
                run.share_of_ceiling =
                    (run.passed() && ceiling.passed()).then(|| run.txn_per_s / ceiling.txn_per_s);
                run.ceiling_machine = Some(ceiling.disturbance.state);
            }
            measured.runs.push((point.line.clone(), point.x, run));
        }
    }
    Ok(measured)
}
