//! Scale-out, for the Calvin paper's Figures 4 and 5: what transactions cost nodes is measured on one, two and four of
//! them, what an epoch costs for each other node on four and sixteen, and a model simulates clusters of up to a hundred with
//! these demands.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::micro::{Calvin, Micro};

use super::experiment::{self, FigurePoint, LINEAR, THROUGHPUT, axis};
use super::summary::InSimulator;
use super::verdict::Claim;
use super::{Measured, Shape, Summary};
use crate::bench::registry;
use crate::embedded::Grid;
use crate::interrupt;
use crate::plot::{Kind, Plot, Series, si};
use crate::scale_out::Model;
use crate::simulated::{Cluster, Demand};
use crate::table::{Cell, Table};

/// A line of a figure: a workload on any number of nodes.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    pub name: &'static str,
    /// The share of transactions on two nodes.
    pub multi: f64,
    /// One over the number of hot records of a node.
    pub contention_index: f64,
}

/// Begins the name of a line that is measured on clusters.
const ON_NODES: &str = "on nodes: ";
/// Numbers of nodes that are measured.
const NODES: [u16; 3] = [1, 2, 4];
/// Numbers of nodes that are simulated.
const SIMULATED: [usize; 9] = [1, 2, 4, 6, 8, 10, 20, 50, 100];
/// Epochs in the simulator: a batch is answered at once there, and takes several.
const EPOCHS_IN_SIMULATOR: f64 = 20.0;
/// Numbers of nodes that run in the simulator.
const IN_SIMULATOR: [u16; 4] = [1, 2, 4, 8];
/// The factor within which the model is to agree with the simulator.
const AGREES: f64 = 1.5;
/// The eighth node is the paper's slow instance.
const SLOW: (usize, f64) = (7, 0.8);
/// Up to how many nodes it is simulated with that one. The others come to wait for it as their clients do, one after the
/// other; in a larger cluster that takes longer than can be simulated.
const SLOW_MAX: usize = 10;
/// Epochs that are simulated, and with the slow node: until most clients have come to wait for it.
const EPOCHS_SIMULATED: f64 = 6.0;
const SLOW_EPOCHS_SIMULATED: f64 = 60.0;
/// Delay between two nodes of the paper's cluster, one way (section 6.3).
const LINK_US: f64 = 2_000.0;
/// The paper's (section 3.1). Ours are shorter where the network is quick, and as long with `--linger-us`.
const EPOCH_US: f64 = 10_000.0;
/// Enough that batches are as large as in epochs of that length.
const CLIENTS: usize = 4_000;

/// The line on which next to nothing is asked for, so that epochs are all that costs something.
const EPOCHS: &str = "on nodes: epochs";
/// Numbers of nodes that epochs are measured on.
const FEW: u16 = 4;
const MORE: u16 = 16;
/// Transactions a second there, all nodes together: each opens an epoch.
const RATE: f64 = 250.0;

/// True if a line was measured on clusters.
pub fn is_on_nodes(line: &str) -> bool {
    line.starts_with(ON_NODES)
}

/// The points of a line; `workload` is that of so many nodes, of which a share uses two.
pub fn points(
    line: &Line,
    workload: impl Fn(u16, f64) -> anyhow::Result<Arc<dyn Workload>>,
) -> anyhow::Result<Vec<FigurePoint>> {
    let name = format!("{ON_NODES}{}", line.name);
    let point = |&nodes: &u16| {
        let multi = if nodes > 1 { line.multi } else { 0.0 };
        let measured = experiment::Line::cluster(&*name, Grid::of(nodes), CLIENTS);
        Ok(measured.at(f64::from(nodes), workload(nodes, multi)?))
    };
    NODES.iter().map(point).collect()
}

/// The points that all lines of a figure need.
pub fn epochs() -> anyhow::Result<Vec<FigurePoint>> {
    let point = |nodes: u16| {
        let workload = Micro::calvin(Calvin {
            partitions: nodes.into(),
            records_per_partition: 10_000,
            contention_index: 0.001,
            at_home: true,
            ..Calvin::default()
        })?;
        let line = experiment::Line::cluster(EPOCHS, Grid::of(nodes), CLIENTS);
        Ok(experiment::Line { rate: Some(RATE), ..line }.at(f64::from(nodes), Arc::new(workload)))
    };
    [FEW, MORE].map(point).into_iter().collect()
}

/// Processor time that an epoch costs a node for each other node: one slice, sent there and received from there. An epoch
/// is a transaction's there.
fn peer_us(measured: &Measured) -> Option<f64> {
    let us = |nodes: u16| Some(measured.demands(EPOCHS, nodes.into()).sum_us()).filter(|us| *us > 0.0);
    Some(more_for_each((FEW, us(FEW)?), (MORE, us(MORE)?)))
}

/// By how much a node's share of a cluster's cost is more with each other node. What every node has to do for an epoch,
/// however many others there are, is not in it: the demands of transactions, measured under load, have that already.
fn more_for_each((few, few_us): (u16, f64), (more, more_us): (u16, f64)) -> f64 {
    let share = |nodes: u16, us: f64| us / f64::from(nodes);
    ((share(more, more_us) - share(few, few_us)) / f64::from(more - few)).max(0.0)
}

/// A line's demands, and what the model makes of them.
#[derive(Clone, Debug)]
struct Simulated {
    line: Line,
    /// Processor microseconds for each transaction on one node, two and four.
    demands: Vec<(u16, f64)>,
    /// And for each other node in an epoch.
    peer_us: f64,
    /// Transactions a second of a node, by the number of nodes, all alike.
    per_node: Vec<(f64, f64)>,
    /// Transactions a second of a node, if one of them is slow.
    slow: Vec<(f64, f64)>,
}

impl Simulated {
    fn of(line: Line, measured: &Measured) -> Option<Simulated> {
        let name = format!("{ON_NODES}{}", line.name);
        let demand = |&nodes: &u16| (nodes, measured.demands(&name, f64::from(nodes)).sum_us());
        let demands: Vec<(u16, f64)> = NODES.iter().map(demand).collect();
        let peer_us = peer_us(measured).filter(|_| demands.iter().all(|(_, us)| *us > 0.0))?;
        let rate = |nodes: usize, slow: Option<(usize, f64)>, epochs: f64| {
            let watched_us = epochs * EPOCH_US;
            let simulated = Model { watched_us, ..model(&line, (&demands, peer_us), nodes, slow) };
            (nodes as f64, simulated.txn_per_s() / nodes as f64)
        };
        let per_node = SIMULATED.iter().map(|nodes| rate(*nodes, None, EPOCHS_SIMULATED)).collect();
        let few = SIMULATED.iter().filter(|nodes| **nodes <= SLOW_MAX);
        let slow = few.map(|nodes| rate(*nodes, Some(SLOW), SLOW_EPOCHS_SIMULATED)).collect();
        Some(Simulated { line, demands, peer_us, per_node, slow })
    }

    fn at(&self, nodes: f64) -> f64 {
        self.per_node.iter().find(|(at, _)| *at == nodes).map_or(0.0, |(_, rate)| *rate)
    }
}

/// The model of a line on so many nodes. A transaction on one node costs what it costs where there is one; what all the
/// others cost more is put down to those on two. Beyond what was measured the largest cluster's demands are taken.
fn model(
    line: &Line,
    (demands, peer_us): (&[(u16, f64)], f64),
    nodes: usize,
    slow: Option<(usize, f64)>,
) -> Model {
    let demand = |nodes: usize| {
        let known = demands.iter().rev().find(|(measured, _)| usize::from(*measured) <= nodes);
        known.map_or(0.0, |(_, us)| *us)
    };
    let single_us = demand(1);
    let multi_us = (demand(nodes) - (1.0 - line.multi) * single_us) / (2.0 * line.multi);
    // Noise may not make it cheaper than half of what one node needs for all of it.
    let multi_us = multi_us.max(single_us / 2.0);
    // Two of its parts are on a node for each that its clients ask for.
    let multi = if nodes > 1 { line.multi } else { 0.0 };
    let each_us = (1.0 - multi) * single_us + 2.0 * multi * multi_us;
    let mut speeds = vec![1.0; nodes];
    if let Some((number, speed)) = slow
        && let Some(node) = speeds.get_mut(number)
    {
        *node = speed;
    }
    Model {
        speeds,
        single_us,
        multi_us,
        multi: line.multi,
        contention_index: line.contention_index,
        link_us: LINK_US,
        epoch_us: EPOCH_US,
        peer_us,
        // So many that the core has twice as much to do as there is time until an answer comes.
        clients: (2.0 * (EPOCH_US + 2.0 * LINK_US) / each_us).ceil() as u32,
        watched_us: EPOCHS_SIMULATED * EPOCH_US,
        seed: 1,
    }
}

/// Runs clusters of a line in the simulator, with the costs that were measured of it; `workload` is that of so many nodes, of
/// which a share uses two. Nothing where the costs were not measured.
pub fn in_simulator(
    lines: &[Line],
    measured: &Measured,
    workload: impl Fn(&Line, u16, f64) -> anyhow::Result<Arc<dyn Workload>>,
) -> anyhow::Result<Vec<InSimulator>> {
    let registry = registry();
    let mut found = Vec::new();
    for line in lines {
        let Some(Simulated { demands, peer_us, .. }) = Simulated::of(*line, measured) else { continue };
        for nodes in IN_SIMULATOR {
            interrupt::check()?;
            let Model { single_us, multi_us, clients, .. } =
                model(line, (&demands, peer_us), nodes.into(), None);
            let cluster = Cluster {
                engine: "calvin".parse()?,
                nodes,
                demand: Demand { single_us, multi_us, peer_us },
                link_us: LINK_US as u64,
                epoch_us: EPOCH_US as u64,
                clients: 2 * clients,
                watched_us: (EPOCHS_IN_SIMULATOR * EPOCH_US) as u64,
                seed: 1,
            };
            let multi = if nodes > 1 { line.multi } else { 0.0 };
            let txn_per_s = cluster.txn_per_s(&*workload(line, nodes, multi)?, &registry)?;
            found.push(InSimulator { line: line.name, nodes, txn_per_s });
        }
    }
    Ok(found)
}

/// The simulator's throughput of each node beside the model's.
fn compared(summary: &mut Summary, simulated: &[Simulated], measured: &Measured) -> Vec<Series> {
    let caption =
        "Each node's throughput in the simulator, where the protocol's own roles run, and by the model";
    let mut table = Table::new(caption).text_columns(["line"]).number_columns([
        "nodes",
        "simulator txn/s",
        "model txn/s",
        "model over simulator",
    ]);
    let mut series = Vec::new();
    for known in simulated {
        let of_line = measured.simulated.iter().filter(|found| found.line == known.line.name);
        let points: Vec<(f64, f64)> =
            of_line.map(|found| (found.nodes.into(), found.txn_per_s / f64::from(found.nodes))).collect();
        for (nodes, rate) in &points {
            let (model, ratio) = (known.at(*nodes), known.at(*nodes) / rate);
            let figures = [si(*nodes), si(*rate), si(model), format!("{ratio:.2}")];
            table.row([Cell::text(known.line.name)].into_iter().chain(figures.map(Cell::number)));
            if *nodes <= f64::from(FEW) {
                let must = format!("{}: the model over the simulator on {nodes} nodes", known.line.name);
                summary.shapes.push(Shape::band(must, 1.0, AGREES, Some(ratio)).of_ours());
            }
        }
        if !points.is_empty() {
            series.push(Series::model(format!("{}, in the simulator", known.line.name), points));
        }
    }
    summary.tables.extend(table.or_none());
    series
}

/// Adds to the summary of one node: the plots of up to a hundred nodes, the demands, and whether the shape is the
/// paper's. The first line is that of low contention, the last that of high.
pub fn add(summary: &mut Summary, lines: &[Line], measured: &Measured, title: &str) {
    let simulated: Vec<Simulated> = lines.iter().filter_map(|line| Simulated::of(*line, measured)).collect();
    summary.shapes.extend(shapes(lines, &simulated));
    if simulated.is_empty() {
        return;
    }
    let mut series: Vec<Series> = Vec::new();
    for Simulated { line, per_node, slow, .. } in &simulated {
        series.push(Series::model(line.name, per_node.clone()));
        series.push(Series::reference(format!("{}, one node at 0.8", line.name), slow.clone()));
    }
    series.extend(compared(summary, &simulated, measured));
    let plot = |title: String, series| Plot {
        title,
        subtitle: "a model with the demands measured on 1, 2, 4 and 16 nodes; a core a node".to_owned(),
        x: axis(("nodes", "", LINEAR)),
        y: axis(THROUGHPUT),
        kind: Kind::Lines,
        series,
        notes: Vec::new(),
    };
    let total = |simulated: &Simulated| {
        let points = simulated.per_node.iter().map(|(nodes, rate)| (*nodes, nodes * rate)).collect();
        Series::model(simulated.line.name, points)
    };
    summary.plots.push(plot(format!("{title}, each node"), series));
    summary.plots.push(plot(format!("{title}, all nodes"), simulated.iter().map(total).collect()));
    summary.tables.push(demands_table(&simulated));
    summary.notes.push(format!(
        "1 to 100 nodes are a discrete-event model, not a measurement: processor time for each transaction was measured \
         on 1, 2 and 4 nodes that shared this machine, and beyond 4 it is taken to stay; epochs, locks, remote reads and \
         clients, more than a core can serve, are simulated. Each node has one core, {} ms lie between two (the paper's 2 ms), \
         and in a line of its own, for up to {SLOW_MAX} nodes and {} s, the eighth is as slow as the paper's slow instance is \
         thought to be (0.8). An epoch lasts {} ms, as in the \
         paper, and costs each node {:.1} us for each other node: that is measured on {FEW} and {MORE} nodes which next to \
         nothing is asked of. What it costs a node anyway is in what its transactions cost.",
        LINK_US / 1e3,
        2.0 * SLOW_EPOCHS_SIMULATED * EPOCH_US / 1e6,
        EPOCH_US / 1e3,
        simulated[0].peer_us
    ));
}

fn demands_table(simulated: &[Simulated]) -> Table {
    let caption = "Measured: processor microseconds of all nodes for each transaction";
    let mut table = Table::new(caption)
        .text_columns(["line"])
        .number_columns(NODES.map(|nodes| format!("{nodes} nodes")));
    for Simulated { line, demands, .. } in simulated {
        let figures = demands.iter().map(|(_, us)| Cell::number(format!("{us:.2}")));
        table.row([Cell::text(line.name)].into_iter().chain(figures));
    }
    table
}

fn shapes(lines: &[Line], simulated: &[Simulated]) -> Vec<Shape> {
    const DROP: &str = "by the model, what is left of each node's throughput from 1 node to 2: a sharp drop";
    const STEP: &str = "by the model, from 6 nodes to 8, where the slow one is added: a step";
    const WITHOUT: &str = "by the model, from 6 nodes to 8 that are all alike: no step";
    const FLAT: &str = "by the model, at low contention from 10 to 100 nodes";
    const LONGER: &str = "by the model, at high contention the decline goes on for longer: less is left at 100 nodes of what was at 10";
    let (Some(low), Some(high)) = (simulated.first(), simulated.last()) else {
        return [DROP, STEP, WITHOUT, FLAT, LONGER].map(|must| Shape::unknown(must, "not measured")).into();
    };
    let ratio = |line: &Simulated, to: f64, from: f64| line.at(to) / line.at(from);
    let slow = |nodes: f64| low.slow.iter().find(|(at, _)| *at == nodes).map_or(0.0, |(_, rate)| *rate);
    let tail = Series::model(
        low.line.name,
        low.per_node.iter().copied().filter(|(nodes, _)| *nodes >= 10.0).collect(),
    );
    let mut shapes = vec![
        Shape::number(DROP, Claim::AtMost(0.85), Some(ratio(low, 2.0, 1.0))),
        Shape::number(STEP, Claim::AtMost(0.95), Some(slow(8.0) / slow(6.0))),
        Shape::at_least(WITHOUT, Some(ratio(low, 8.0, 6.0)), 0.95),
        Shape::flat(FLAT, &tail, 0.1),
    ];
    if lines.len() > 1 && simulated.len() == lines.len() {
        let (low_left, high_left) = (ratio(low, 100.0, 10.0), ratio(high, 100.0, 10.0));
        let ours = format!(
            "{low_left:.2} left at low contention, {high_left:.2} at high ({} a node)",
            si(high.at(100.0))
        );
        shapes.push(Shape::new(LONGER, high_left < low_left - 0.02, ours));
    }
    shapes
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: Line = Line { name: "low", multi: 0.1, contention_index: 0.0001 };

    #[test]
    fn what_clusters_cost_more_is_put_down_to_transactions_on_two_nodes() {
        let demands = [(1, 10.0), (2, 15.0), (4, 16.0)];
        let multi = |nodes| model(&LINE, (&demands, 0.0), nodes, None).multi_us;
        assert!((multi(2) - 30.0).abs() < 1e-9 && (multi(4) - 35.0).abs() < 1e-9);
        assert_eq!(multi(100), multi(4), "beyond what was measured nothing is made up");
        assert_eq!(model(&LINE, (&[(1, 10.0), (2, 5.0)], 0.0), 2, None).multi_us, 5.0);
        let speeds = model(&LINE, (&demands, 0.0), 8, Some(SLOW)).speeds;
        assert_eq!((speeds[6], speeds[7]), (1.0, 0.8));
        assert!(model(&LINE, (&demands, 0.0), 6, Some(SLOW)).speeds.iter().all(|speed| *speed == 1.0));
    }

    #[test]
    fn what_an_epoch_costs_a_node_anyway_is_not_for_its_peers() {
        // 100 us each, and 5 us for each other node.
        let all = |nodes: u16| (nodes, f64::from(nodes) * (100.0 + 5.0 * f64::from(nodes - 1)));
        assert!((more_for_each(all(4), all(16)) - 5.0).abs() < 1e-9);
        assert_eq!(more_for_each((4, 400.0), (16, 1000.0)), 0.0, "noise");
    }

    #[test]
    fn the_model_is_compared_with_the_simulator_where_both_are() {
        let simulated = Simulated {
            line: LINE,
            demands: vec![(1, 10.0), (2, 15.0), (4, 16.0)],
            peer_us: 0.0,
            per_node: vec![(1.0, 1_000.0), (2.0, 600.0), (8.0, 500.0)],
            slow: Vec::new(),
        };
        let found = |nodes, txn_per_s| InSimulator { line: "low", nodes, txn_per_s };
        let simulator = vec![found(1, 900.0), found(2, 600.0), found(8, 4_400.0)];
        let measured = Measured { simulated: simulator, ..Measured::default() };
        let mut summary = Summary::default();
        let series = compared(&mut summary, &[simulated], &measured);
        assert_eq!(series[0].points, [(1.0, 900.0), (2.0, 300.0), (8.0, 550.0)]);
        let verdicts: Vec<_> = summary.shapes.iter().map(Shape::verdict).collect();
        assert_eq!(verdicts, ["as required", "beyond"], "{:?}", summary.shapes);
        assert!(summary.tables[0].html().contains("model over simulator"));
    }

    #[test]
    fn nothing_measured_is_nothing_known() {
        let mut summary = Summary::default();
        add(&mut summary, &[LINE], &Measured::default(), "t");
        assert_eq!((summary.shapes.len(), summary.plots.len()), (5, 0));
        assert!(summary.shapes.iter().all(|shape| shape.verdict() == "no verdict"));
    }
}
