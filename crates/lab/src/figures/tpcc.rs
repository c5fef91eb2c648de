//! The papers' figures of TPC-C on one node: Calvin's Figure 4, and Calvin's line of Q-Store's Figures 12 and 13.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::tpcc::{Mix, Parameters, Remote, Scale, Tpcc};

use super::calvin::model;
use super::told::at;
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Told, scale, thread_counts};
use crate::plot::{Axis, Kind, Plot, Series, si};

/// The specification's rows in each warehouse, or a tenth of them.
fn scale_of(size: Size) -> Scale {
    match size {
        Size::Full => Scale::default(),
        Size::Quick => {
            Scale { customers: 300, items: 10_000, orders: 300, undelivered: 90, ..Scale::default() }
        }
    }
}

fn workload(size: Size, warehouses: u32, mix: Mix, remote: f64) -> anyhow::Result<Arc<dyn Workload>> {
    // A warehouse in each partition, so that a second warehouse is in another one.
    let partitions = warehouses as usize;
    let remote = Remote::Share(remote);
    Ok(Arc::new(Tpcc::new(Parameters { warehouses, scale: scale_of(size), partitions, mix, remote })?))
}

/// Calvin's Figure 4: NewOrder, 10 warehouses a node, 10% with a second warehouse on another machine.
#[derive(Debug)]
pub struct Calvin4;

const NEW_ORDER: &str = "NewOrder, 10 warehouses";
/// Ten warehouses have a hundred districts, one of which every NewOrder of a node updates.
const ON_NODES: scale::Line =
    scale::Line { name: "NewOrder, 10% on two nodes", multi: 0.1, contention_index: 0.01 };
/// What the paper has for each node of clusters of more than ten.
const PER_NODE: f64 = 5_000.0;

impl Experiment for Calvin4 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let workload = workload(size, 10, Mix::NEW_ORDER, 0.1)?;
        let of = |threads: usize| FigurePoint::calvin(NEW_ORDER, threads as f64, threads, workload.clone());
        let mut points: Vec<FigurePoint> = thread_counts(cores).into_iter().map(of).collect();
        points.extend(scale::points(&ON_NODES, |nodes, remote| {
            let warehouses = u32::from(nodes) * if size == Size::Quick { 3 } else { 10 };
            let (scale, partitions, remote) = (scale_of(size), usize::from(nodes), Remote::Share(remote));
            let parameters = Parameters { warehouses, scale, partitions, mix: Mix::NEW_ORDER, remote };
            Ok(Arc::new(Tpcc::new(parameters)?))
        })?);
        Ok(points)
    }

    fn tell(&self, everything: &Measured) -> Told {
        let measured = &everything.only(|line| !scale::is_on_nodes(line));
        let reference = ("the paper, each node of more than ten: 5 K", PER_NODE);
        let mut told = model(measured, "TPC-C NewOrder on one node", "10% use a second warehouse", reference);
        let line = measured.series(NEW_ORDER, |run| run.txn_per_s);
        let cores = measured.last_x(NEW_ORDER).unwrap_or(1.0);
        told.beside = vec![
            Beside::new("one node", "only in the image", format!("{} on {cores} cores", at(&line, cores))),
            Beside::new("each node of more than ten", "about 5 K txn/s (section 6.1)", "see the model"),
            Beside::new("100 nodes together", "nearly 500 K txn/s (section 6.1)", "see the model"),
        ];
        let per_node = "one node does more than each node of a cluster of the paper's (5 K txn/s)";
        told.shapes = vec![Shape::at_least(per_node, line.at(cores), PER_NODE)];
        told.notes.insert(
            0,
            "Where threads are compared, the second warehouse is in another partition on the same node; where nodes are, \
             on another node."
                .to_owned(),
        );
        scale::tell(&mut told, &[ON_NODES], everything, "TPC-C NewOrder on 1 to 100 nodes");
        told
    }
}

/// Q-Store's figures of TPC-C, swept over one number in percent.
#[derive(Debug)]
pub struct Sweep {
    title: &'static str,
    x: &'static str,
    values: &'static [f64],
    mix: fn(f64) -> Mix,
    remote: fn(f64) -> f64,
    paper: &'static [(&'static str, &'static str)],
    /// What the paper says of the shape, with what is to be judged of it.
    shape: fn(&Series) -> Shape,
}

/// The paper's warehouses of one server.
const WAREHOUSES: u32 = 4;
const LINE: &str = "Calvin, one node";

impl Experiment for Sweep {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let point = |&x: &f64| {
            let workload = workload(size, WAREHOUSES, (self.mix)(x), (self.remote)(x))?;
            Ok(FigurePoint::calvin(LINE, x, cores, workload))
        };
        self.values.iter().map(point).collect()
    }

    fn tell(&self, measured: &Measured) -> Told {
        let series = measured.series(LINE, |run| run.txn_per_s);
        let mut beside: Vec<Beside> = self
            .paper
            .iter()
            .map(|(what, paper)| Beside::new(what, paper, "needs a line of Q-Store in the lab"))
            .collect();
        let ours = series.points.iter().map(|(x, rate)| format!("{} at {x}%", si(*rate))).collect::<Vec<_>>();
        beside.push(Beside::new("Calvin", "only in the image", ours.join(", ")));
        Told {
            shapes: vec![(self.shape)(&series)],
            beside,
            plots: vec![Plot {
                title: self.title.to_owned(),
                subtitle: "4 warehouses, the paper's for one server, each in a partition of its own"
                    .to_owned(),
                x: Axis::new(self.x, "%", crate::plot::Scale::Linear),
                y: Axis::throughput(),
                kind: Kind::Lines,
                series: vec![series],
                notes: Vec::new(),
            }],
            notes: vec!["All warehouses are on one node: nothing here goes over a network.".to_owned()],
            tables: Vec::new(),
        }
    }
}

/// Figure 12: the mixes.
pub static QSTORE_12: Sweep = Sweep {
    title: "TPC-C: from NewOrder to Payment",
    x: "Payment transactions, the others NewOrder",
    values: &[0.0, 50.0, 100.0],
    mix: |percent| match percent {
        0.0 => Mix::NEW_ORDER,
        100.0 => Mix::PAYMENT,
        _ => Mix::HALVES,
    },
    remote: |_| 0.15,
    paper: &[("Q-Store over Calvin, best", "1.8 x"), ("Q-Store over NO-WAIT, best", "55.2 x")],
    shape: |line| {
        // Payment has 4 records where NewOrder has some 25.
        Shape::changes("Payment, which is smaller, is no slower than NewOrder", line, 1.0, f64::INFINITY)
    },
};

/// Figure 13: the share of multi-partition transactions.
pub static QSTORE_13: Sweep = Sweep {
    title: "TPC-C: NewOrder and Payment, by share with a second warehouse",
    x: "transactions with a second warehouse",
    values: &[0.0, 20.0, 50.0, 80.0, 100.0],
    mix: |_| Mix::HALVES,
    remote: |percent| percent / 100.0,
    paper: &[("Q-Store over Calvin", "above 1 throughout")],
    shape: |line| Shape::changes("Calvin falls with the share, or stays", line, 0.0, 1.1),
};
