//! Figures with a line for each of several engines: what the Q-Store paper's are (qstore.md, section 7).
//!
//! Engines run in turns on the very same transactions, on clusters whose nodes share this machine. By the clock, then, all
//! nodes together have its few cores, and no role waits for its one thread while the core does something else. Where the
//! paper's servers had 8 cores each, X(8) is what follows from the processor time that each role was measured to need
//! (calvin.md, section 7). Both ratios are given; neither is the other's proof.

use ordain_model::Micros;

use super::experiment::{Experiment, LINEAR, Line, PICTURE, Picture, THROUGHPUT, Values};
use super::summary::or_not;
use super::{Measured, Shape};
use crate::demand;
use crate::embedded::{Delay, Grid};
use crate::plot::{Series, si};
use crate::report::extent;

/// The engine that the paper is about.
pub const QSTORE: &str = "Q-Store";
/// The best Calvin that we have.
pub const CALVIN: &str = "Calvin";
/// The Calvin that the papers compare themselves with.
pub const PAPERS: &str = "Calvin as in the papers";

/// The lines, each with its engine.
const LINES: [(&str, &str); 3] = [(QSTORE, "qstore"), (CALVIN, "calvin"), (PAPERS, "calvin-paper")];

/// The paper's cores of a server.
const CORES: f64 = 8.0;
/// Nodes that stand for the paper's 16 servers.
pub const NODES: u16 = 4;
/// The time from one node to another, one way.
pub const WAY: Micros = Micros(250);
/// Transactions under way on all of them, where the figure is not about that.
pub const CLIENTS: usize = 8_000;

/// The nodes of a figure, with a delay between any two.
pub fn grid(nodes: u16, way: Micros) -> Grid {
    Grid { delay: Delay::Even(way), ..Grid::of(nodes) }
}

/// A figure of the three engines on four nodes: throughput by the clock, X(8) and latency, and demands in the middle.
pub const CONTEST: Experiment = Experiment {
    values: Values::At(&[]),
    lines: |_| LINES.map(|(name, engine)| Line::cluster(name, grid(NODES, WAY), CLIENTS).by(engine)).into(),
    plots: &[PICTURE, MODEL, LATENCY],
    more: |figure, measured, summary| {
        let Values::At(values) = figure.values else { return };
        let middle = values[values.len() / 2];
        let demands = LINES.map(|(line, _)| (format!("{line} at {middle}"), measured.demands(line, middle)));
        summary.tables.push(demand::table(&demands));
        summary.notes.push(how_it_was_run());
    },
    ..Experiment::PLAIN
};

pub const MODEL: Picture = Picture { suffix: ": X(8), a model", series: model, ..PICTURE };
pub const LATENCY: Picture = Picture {
    suffix: ": latency",
    y: ("p99", "ms", LINEAR),
    series: |measured, line| measured.series(line, |run| run.latency_us.p99 as f64 / 1e3),
    ..PICTURE
};
/// Throughput in operations a second.
pub const OPERATIONS: Picture = Picture { y: (THROUGHPUT.0, "op/s", LINEAR), series: operations, ..PICTURE };

/// X(8): all nodes with the paper's cores.
pub fn model(measured: &Measured, line: &str) -> Series {
    measured.model(line, CORES)
}

pub fn operations(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| run.op_per_s)
}

fn how_it_was_run() -> String {
    format!(
        "All nodes run in one process, with a thread each and {} ms between any two, one way, and share this machine's \
         cores: throughput by the clock is that of the cores together. X(8) = nodes x min(1 / largest demand of \
         a single thread, 8 / sum of demands), clients not counted: what nodes with 8 cores each could do at best, as the \
         paper's servers had. It takes shards of one core for what shards of eight need, and knows no waiting.",
        WAY.0 as f64 / 1e3
    )
}

/// Stands beside the paper's numbers of engines that are not built.
pub fn two_phase(_: &Measured) -> String {
    "not measured: engines with two-phase commit are not built".to_owned()
}

/// The ratio of two lines at each place.
pub fn ratios(over: &Series, under: &Series) -> Vec<(f64, f64)> {
    over.points.iter().filter_map(|(x, y)| Some((*x, y / under.at(*x)?))).collect()
}

/// The ratio of Q-Store's throughput to Calvin's, at a place or where it is most.
pub fn lead(measured: &Measured, at: Option<f64>) -> String {
    let each = LINES.iter().filter(|(line, _)| *line != QSTORE).map(|(other, _)| {
        let lead = |of: fn(&Measured, &str) -> Series| {
            let ratios = ratios(&of(measured, QSTORE), &of(measured, other)).into_iter();
            let best =
                ratios.filter(|(x, _)| at.is_none_or(|at| *x == at)).max_by(|a, b| a.1.total_cmp(&b.1));
            or_not(best, |(x, by)| format!("{by:.2} x at {}", si(x)))
        };
        let (clock, cpu, model) = (lead(Measured::clock), lead(Measured::cpu), lead(model));
        format!("over {other}: {clock} by the clock, {cpu} by processor time, {model} by X(8)")
    });
    each.collect::<Vec<_>>().join("; ")
}

/// Q-Store's own throughput at a place.
pub fn own(measured: &Measured, x: f64, clock: fn(&Measured, &str) -> Series) -> String {
    let value = |series: Series| or_not(series.at(x), si);
    format!("{} by the clock, X(8) {} txn/s", value(clock(measured, QSTORE)), value(model(measured, QSTORE)))
}

/// Requires that Q-Store does at least as much as Calvin everywhere, by X(8).
pub fn is_ahead(measured: &Measured, must: &str) -> Shape {
    let ratios = ratios(&model(measured, QSTORE), &model(measured, CALVIN));
    let (least, most) = extent(ratios.iter().map(|(_, ratio)| *ratio));
    let found = (least >= 1.0, format!("{least:.2} x to {most:.2} x by X(8)"));
    Shape::of(must, (!ratios.is_empty()).then_some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing;
    use crate::report::Run;

    /// A run at a place of a line, with what the shards and the sequencers of four nodes need for a transaction.
    fn run(line: &str, x: f64, rate: f64, [shard, sequencer]: [f64; 2]) -> (String, f64, Run) {
        let cpu = [("shard", shard), ("sequencer", sequencer)];
        let cpu = cpu.map(|(part, us)| (part.to_owned(), us)).into();
        (line.to_owned(), x, Run { nodes: 4, cpu_us_per_txn: cpu, ..testing::run("e", 1, rate, true) })
    }

    #[test]
    fn ratios_are_by_the_clock_by_processor_time_and_by_the_model() {
        let runs = vec![
            run(QSTORE, 1.0, 200.0, [8.0, 2.0]),
            run(CALVIN, 1.0, 100.0, [16.0, 4.0]),
            run(QSTORE, 2.0, 90.0, [10.0, 0.0]),
            run(CALVIN, 2.0, 60.0, [40.0, 0.0]),
            run(PAPERS, 1.0, 50.0, [64.0, 16.0]),
        ];
        let measured = Measured { runs };
        // Four nodes of eight cores: the sequencer of each is busy with a quarter of all.
        assert_eq!(model(&measured, QSTORE).points, [(1.0, 2e6), (2.0, 3.2e6)]);
        assert_eq!(measured.cpu(CALVIN).points, [(1.0, 50e3), (2.0, 25e3)]);
        assert_eq!(
            lead(&measured, None),
            "over Calvin: 2.00 x at 1 by the clock, 4.00 x at 2 by processor time, 4.00 x at 2 by X(8); over Calvin as \
             in the papers: 4.00 x at 1 by the clock, 8.00 x at 1 by processor time, 8.00 x at 1 by X(8)"
        );
        assert!(lead(&measured, Some(2.0)).starts_with("over Calvin: 1.50 x at 2 by the clock"));
        assert_eq!(own(&measured, 1.0, Measured::clock), "200 by the clock, X(8) 2 M txn/s");
        assert_eq!(is_ahead(&measured, "ahead").holds, Some(true));
    }

    #[test]
    fn a_lead_that_was_not_measured_is_unknown() {
        let measured = Measured::default();
        assert!(lead(&measured, None).contains("not measured by X(8)"));
        assert_eq!(is_ahead(&measured, "ahead").holds, None);
    }
}
