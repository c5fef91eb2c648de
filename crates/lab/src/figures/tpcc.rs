//! The papers' figures of TPC-C: Calvin's Figure 4, and Q-Store's Figures 12 and 13.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::tpcc::{Mix, Parameters, Remote, Scale, Tpcc};

use super::calvin::model;
use super::contest::{CALVIN, NODES, Number, QSTORE, Setting, Sweep, TWO_PHASE, TXN};
use super::summary::at;
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Summary, scale, thread_counts};
use crate::plot::Scale::Linear;

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
        points.extend(scale::epochs()?);
        Ok(points)
    }

    fn tell(&self, everything: &Measured) -> Summary {
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

/// The paper's warehouses of one server, or half of them.
fn warehouses(size: Size) -> u32 {
    u32::from(NODES) * if size == Size::Quick { 2 } else { 4 }
}

fn setting(size: Size, mix: Mix, remote: f64) -> anyhow::Result<Setting> {
    // A second warehouse is on another node.
    let (scale, partitions, remote) = (scale_of(size), usize::from(NODES), Remote::Share(remote));
    let warehouses = warehouses(size);
    Ok(Setting::of(Arc::new(Tpcc::new(Parameters { warehouses, scale, partitions, mix, remote })?)))
}

/// Q-Store's Figure 12: the mixes.
pub static QSTORE_12: Sweep = Sweep {
    title: "TPC-C: from NewOrder to Payment",
    subtitle: "4 nodes, 15% with a second warehouse on another node",
    x: ("Payment transactions, the others NewOrder", "%", Linear),
    values: &[0.0, 50.0, 100.0],
    setting: |size, percent| {
        let mix = match percent {
            0.0 => Mix::NEW_ORDER,
            100.0 => Mix::PAYMENT,
            _ => Mix::HALVES,
        };
        setting(size, mix, 0.15)
    },
    y: TXN,
    paper: &[
        ("Q-Store over Calvin, best", "1.8 x", Number::Lead(None)),
        ("Q-Store over NO-WAIT, best", "55.2 x", TWO_PHASE),
    ],
    shapes: |contest| {
        // Payment has 4 records where NewOrder has some 25.
        let smaller = "Payment, which is smaller, is no slower than NewOrder";
        vec![
            Shape::changes(smaller, &contest.clock(QSTORE), 1.0, f64::INFINITY),
            contest.is_ahead("Q-Store is above Calvin throughout"),
        ]
    },
    notes: &[],
};

/// Q-Store's Figure 13: the share of multi-partition transactions.
pub static QSTORE_13: Sweep = Sweep {
    title: "TPC-C: NewOrder and Payment, by share with a second warehouse",
    subtitle: "4 nodes, half NewOrder and half Payment, the second warehouse on another node",
    x: ("transactions with a second warehouse", "%", Linear),
    values: &[0.0, 20.0, 50.0, 80.0, 100.0],
    setting: |size, percent| setting(size, Mix::HALVES, percent / 100.0),
    y: TXN,
    paper: &[("Q-Store over Calvin", "above 1 throughout", Number::Lead(None))],
    shapes: |contest| {
        vec![
            contest.is_ahead("Q-Store is above Calvin throughout"),
            Shape::changes("Calvin falls with the share, or stays", &contest.clock(CALVIN), 0.0, 1.1),
        ]
    },
    notes: &[
        "The paper's gap is small here: what a warehouse has to do is done one after the other, however it is ordered.",
    ],
};
