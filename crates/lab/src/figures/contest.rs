//! Figures with a line for each of several engines: what the Q-Store paper's are (qstore.md, section 7).
//!
//! Engines run in turns on the very same transactions, on clusters whose nodes share this machine. By the clock, then, all
//! nodes together have its few cores, and nobody has to wait for the one thread of a role while its core does something
//! else. Where the paper's servers had 8 cores each, X(8) says what follows from the processor time that each role was
//! measured to need (calvin.md, section 7). Both ratios are told; neither is the other's proof.

use std::sync::Arc;

use ordain_model::Micros;
use ordain_workload::Workload;

use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Summary};
use crate::demand::{self, Demands};
use crate::embedded::{Delay, Grid};
use crate::plot::{Axis, Kind, Plot, Scale, Series, si};
use crate::report::Run;

/// The engine that the paper is about.
pub(super) const QSTORE: &str = "Q-Store";
/// The best Calvin that we have.
pub(super) const CALVIN: &str = "Calvin";

/// The Calvin that the papers compare themselves with.
pub(super) const PAPERS: &str = "Calvin as in the papers";

/// The lines, each with its engine.
const LINES: [(&str, &str); 3] = [(QSTORE, "qstore"), (CALVIN, "calvin"), (PAPERS, "calvin-paper")];

/// The paper's cores of a server.
const CORES: f64 = 8.0;
/// How many nodes stand for the paper's 16 servers.
pub(super) const NODES: u16 = 4;
/// How long it takes from one to another, one way.
pub(super) const WAY: Micros = Micros(250);
/// How many transactions are under way on all of them, where that is not what the figure is about.
pub(super) const CLIENTS: usize = 8_000;

/// What is run at a place of a figure.
pub(super) struct Setting {
    pub(super) workload: Arc<dyn Workload>,
    pub(super) nodes: u16,
    pub(super) clients: usize,
}

impl Setting {
    /// On the nodes that there are if nothing else is said.
    pub(super) fn of(workload: Arc<dyn Workload>) -> Setting {
        Setting { workload, nodes: NODES, clients: CLIENTS }
    }
}

/// What is read off a run: a name, a unit and the value.
pub(super) type Value = (&'static str, &'static str, fn(&Run) -> f64);

pub(super) const TXN: Value = ("throughput", "txn/s", |run| run.txn_per_s);
pub(super) const OP: Value = ("throughput", "op/s", |run| run.op_per_s);

/// A number of the paper.
#[derive(Debug)]
pub(super) enum Number {
    /// So many times Calvin's throughput: at a place, or at the best one.
    Lead(Option<f64>),
    /// Q-Store's own, at a place.
    Own(f64),
    /// Nothing of ours has its counterpart, for a reason.
    Absent(&'static str),
}

/// What is said of engines that are not built.
pub(super) const TWO_PHASE: Number =
    Number::Absent("not measured: engines with two-phase commit are not built");

/// A figure that sweeps one parameter.
#[derive(Debug)]
pub struct Sweep {
    pub(super) title: &'static str,
    pub(super) subtitle: &'static str,
    pub(super) x: (&'static str, &'static str, Scale),
    pub(super) values: &'static [f64],
    /// What is run at each of them.
    pub(super) setting: fn(Size, f64) -> anyhow::Result<Setting>,
    pub(super) y: Value,
    /// What the paper says in numbers: of what, the number, and what of ours stands beside it.
    pub(super) paper: &'static [(&'static str, &'static str, Number)],
    /// What its lines look like.
    pub(super) shapes: fn(&Contest<'_>) -> Vec<Shape>,
    pub(super) notes: &'static [&'static str],
}

impl Experiment for Sweep {
    fn points(&self, size: Size, _cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let mut points = Vec::new();
        for &x in self.values {
            let Setting { workload, nodes, clients } = (self.setting)(size, x)?;
            for (line, engine) in LINES {
                let grid = Grid { delay: Delay::Even(WAY), ..Grid::of(nodes) };
                let point = FigurePoint::cluster(line, x, grid, clients, workload.clone());
                points.push(point.of_engine(engine));
            }
        }
        Ok(points)
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let contest = Contest { measured, values: self.values, y: self.y.2 };
        let (name, unit, _) = self.y;
        let plot = |title: String, y: Axis, series: Vec<Series>| Plot {
            title,
            subtitle: self.subtitle.to_owned(),
            x: Axis::new(self.x.0, self.x.1, self.x.2.clone()),
            y,
            kind: Kind::Lines,
            series,
            notes: Vec::new(),
        };
        let lines = |of: &dyn Fn(&str) -> Series| LINES.iter().map(|(line, _)| of(line)).collect::<Vec<_>>();
        let mut plots = vec![
            plot(
                self.title.to_owned(),
                Axis::new(name, unit, Scale::Linear),
                lines(&|line| contest.clock(line)),
            ),
            plot(
                format!("{}: X(8), a model", self.title),
                Axis::throughput(),
                lines(&|line| contest.model(line)),
            ),
        ];
        plots.push(plot(
            format!("{}: latency", self.title),
            Axis::new("p99", "ms", Scale::Linear),
            lines(&|line| contest.measured.series(line, |run| run.latency_us.p99 as f64 / 1e3)),
        ));
        let middle = self.values[self.values.len() / 2];
        let demands = LINES.map(|(line, _)| (format!("{line} at {middle}"), measured.demands(line, middle)));
        let notes = self.notes.iter().map(|note| (*note).to_owned());
        Summary {
            plots,
            tables: vec![demand::table(&demands)],
            beside: self
                .paper
                .iter()
                .map(|(what, paper, ours)| Beside::new(what, paper, contest.ours(ours)))
                .collect(),
            shapes: (self.shapes)(&contest),
            notes: notes.chain([how_it_was_run()]).collect(),
        }
    }
}

fn how_it_was_run() -> String {
    format!(
        "All nodes run in one process, with a thread each and {} ms between any two, one way, and share this machine's \
         cores: throughput by the clock is that of the cores, whoever has them. X(8) = nodes x min(1 / largest demand of \
         a single thread, 8 / sum of demands), clients not counted: what nodes with 8 cores each could do at best, as the \
         paper's servers had. It takes shards of one core for what shards of eight need, and knows no waiting.",
        WAY.0 as f64 / 1e3
    )
}

/// What was measured of all lines.
pub(super) struct Contest<'a> {
    measured: &'a Measured,
    values: &'a [f64],
    y: fn(&Run) -> f64,
}

impl Contest<'_> {
    /// A line by the clock.
    pub(super) fn clock(&self, line: &str) -> Series {
        self.measured.series(line, self.y)
    }

    /// What a second of processor time does of a line.
    pub(super) fn cpu(&self, line: &str) -> Series {
        let rate = |x: f64| 1e6 / self.demands(line, x).sum_us();
        self.by_demands(line, rate)
    }

    /// What all nodes of a line could do if they had the paper's cores.
    pub(super) fn model(&self, line: &str) -> Series {
        let nodes = |x: f64| {
            let run = self.measured.runs.iter().find(|(name, at, _)| name == line && *at == x);
            run.map_or(0.0, |(_, _, run)| f64::from(run.nodes))
        };
        // What one node needs for a transaction of all is its share of what all of them need.
        let rate = |x: f64| self.demands(line, x).txn_per_s(CORES) * nodes(x);
        self.by_demands(line, rate)
    }

    fn demands(&self, line: &str, x: f64) -> Demands {
        self.measured.demands(line, x)
    }

    fn by_demands(&self, line: &str, rate: impl Fn(f64) -> f64) -> Series {
        let points = self.values.iter().map(|x| (*x, rate(*x)));
        Series::model(line, points.filter(|(_, rate)| rate.is_finite() && *rate > 0.0).collect())
    }

    /// How many times one line another is, where it is most or where it is asked for: the place and the factor.
    fn lead(over: &Series, under: &Series, at: Option<f64>) -> Option<(f64, f64)> {
        let ratios = over.points.iter().filter_map(|(x, y)| Some((*x, y / under.at(*x)?)));
        ratios.filter(|(x, _)| at.is_none_or(|at| *x == at)).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    fn ours(&self, number: &Number) -> String {
        match number {
            Number::Absent(why) => (*why).to_owned(),
            Number::Own(x) => {
                let value = |series: Series| series.at(*x).map_or_else(|| "not measured".to_owned(), si);
                format!(
                    "{} by the clock, X(8) {} txn/s",
                    value(self.clock(QSTORE)),
                    value(self.model(QSTORE))
                )
            }
            Number::Lead(at) => {
                let others = LINES.iter().filter(|(line, _)| *line != QSTORE);
                let each = others.map(|(other, _)| {
                    let lead = |of: &dyn Fn(&str) -> Series| {
                        Self::lead(&of(QSTORE), &of(other), *at).map_or_else(
                            || "not measured".to_owned(),
                            |(x, by)| format!("{by:.2} x at {}", si(x)),
                        )
                    };
                    format!(
                        "over {other}: {} by the clock, {} by processor time, {} by X(8)",
                        lead(&|line| self.clock(line)),
                        lead(&|line| self.cpu(line)),
                        lead(&|line| self.model(line))
                    )
                });
                each.collect::<Vec<_>>().join("; ")
            }
        }
    }

    /// Whether Q-Store does at least as much as Calvin everywhere, by X(8).
    pub(super) fn is_ahead(&self, must: &str) -> Shape {
        let (ours, calvin) = (self.model(QSTORE), self.model(CALVIN));
        let ratios: Vec<f64> = ours.points.iter().filter_map(|(x, y)| Some(y / calvin.at(*x)?)).collect();
        let (least, most) = ratios.iter().fold((f64::MAX, f64::MIN), |(l, h), r| (l.min(*r), h.max(*r)));
        if ratios.is_empty() {
            return Shape::unknown(must, "not measured");
        }
        Shape::new(must, least >= 1.0, format!("{least:.2} x to {most:.2} x by X(8)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing;

    /// A run at a place of a line, with what the shards and the sequencers of four nodes need for a transaction.
    fn run(line: &str, x: f64, rate: f64, [shard, sequencer]: [f64; 2]) -> (String, f64, Run) {
        let cpu = [("shard", shard), ("sequencer", sequencer)];
        let cpu = cpu.map(|(part, us)| (part.to_owned(), us)).into();
        (line.to_owned(), x, Run { nodes: 4, cpu_us_per_txn: cpu, ..testing::run("e", 1, rate, true) })
    }

    #[test]
    fn ratios_are_told_by_the_clock_by_processor_time_and_by_the_model() {
        let runs = vec![
            run(QSTORE, 1.0, 200.0, [8.0, 2.0]),
            run(CALVIN, 1.0, 100.0, [16.0, 4.0]),
            run(QSTORE, 2.0, 90.0, [10.0, 0.0]),
            run(CALVIN, 2.0, 60.0, [40.0, 0.0]),
            run(PAPERS, 1.0, 50.0, [64.0, 16.0]),
        ];
        let measured = Measured { runs };
        let contest = Contest { measured: &measured, values: &[1.0, 2.0], y: TXN.2 };
        // Four nodes of eight cores: the sequencer of each is busy with a quarter of all.
        assert_eq!(contest.model(QSTORE).points, [(1.0, 2e6), (2.0, 3.2e6)]);
        assert_eq!(contest.cpu(CALVIN).points, [(1.0, 50e3), (2.0, 25e3)]);
        let best = contest.ours(&Number::Lead(None));
        assert_eq!(
            best,
            "over Calvin: 2.00 x at 1 by the clock, 4.00 x at 2 by processor time, 4.00 x at 2 by X(8); over Calvin as \
             in the papers: 4.00 x at 1 by the clock, 8.00 x at 1 by processor time, 8.00 x at 1 by X(8)"
        );
        assert!(contest.ours(&Number::Lead(Some(2.0))).starts_with("over Calvin: 1.50 x at 2 by the clock"));
        assert_eq!(contest.ours(&Number::Own(1.0)), "200 by the clock, X(8) 2 M txn/s");
        assert_eq!(contest.is_ahead("ahead").holds, Some(true));
    }

    #[test]
    fn what_was_not_measured_is_not_told() {
        let measured = Measured::default();
        let contest = Contest { measured: &measured, values: &[1.0], y: TXN.2 };
        assert!(contest.ours(&Number::Lead(None)).contains("not measured by X(8)"));
        assert_eq!(contest.is_ahead("ahead").holds, None);
    }
}
