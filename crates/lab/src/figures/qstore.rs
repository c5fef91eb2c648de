//! The Q-Store paper's figures (qstore.md, section 7): Calvin's line, with all 16 partitions on one node.
//!
//! Partitions are runs of hash slots, so the workload is the paper's: which records a transaction uses and in how many
//! partitions does not depend on where these are. What is not there is the network between them.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Told};
use crate::plot::{Axis, Kind, Plot, Scale, Series};
use crate::report::Run;

/// How many partitions the paper has, each on a server.
const PARTITIONS: usize = 16;
/// How many of them a multi-partition transaction uses.
const PER_TXN: usize = 8;
const OPS: usize = 16;

const LINE: &str = "Calvin, one node";

/// The paper's defaults (Table 1), with 16 million records a server where there is room for them.
fn defaults(size: Size) -> Parameters {
    Parameters {
        records: size.records(16_000_000),
        record_bytes: 100,
        distribution: Distribution::UNIFORM,
        ops_per_txn: OPS,
        writes_per_txn: OPS / 2,
        partitions: PARTITIONS,
        multi_partition: 0.5,
        partitions_per_txn: PER_TXN,
        ..Parameters::default()
    }
}

/// A figure that sweeps one parameter.
#[derive(Debug)]
pub struct Sweep {
    title: &'static str,
    x: (&'static str, &'static str),
    values: &'static [f64],
    /// Sets the parameter.
    set: fn(&mut Parameters, f64),
    y: (&'static str, &'static str, fn(&Run) -> f64),
    /// What the paper says in numbers.
    paper: &'static [(&'static str, &'static str)],
    /// What its line of Calvin looks like.
    shape: fn(&Series) -> Shape,
    notes: &'static [&'static str],
}

impl Experiment for Sweep {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let point = |&x: &f64| {
            let mut parameters = defaults(size);
            (self.set)(&mut parameters, x);
            let workload: Arc<dyn Workload> = Arc::new(Ycsb::new(parameters)?);
            Ok(FigurePoint::calvin(LINE, x, cores, workload))
        };
        self.values.iter().map(point).collect()
    }

    fn tell(&self, measured: &Measured) -> Told {
        let series = measured.series(LINE, self.y.2);
        Told {
            shapes: vec![(self.shape)(&series)],
            beside: self.paper.iter().map(|(what, paper)| Beside::new(what, paper, "needs a line of Q-Store in the lab")).collect(),
            plots: vec![Plot {
                title: self.title.to_owned(),
                subtitle: "YCSB, 16 partitions on one node, half of the transactions on several, half of the operations \
                           writes, theta 0, where not swept"
                    .to_owned(),
                x: Axis::new(self.x.0, self.x.1, Scale::Linear),
                y: Axis::new(self.y.0, self.y.1, Scale::Linear),
                kind: Kind::Lines,
                series: vec![series],
                notes: Vec::new(),
            }],
            notes: self.notes.iter().map(|note| (*note).to_owned()).collect(),
            tables: Vec::new(),
        }
    }
}

const TXN: (&str, &str, fn(&Run) -> f64) = ("throughput", "txn/s", |run| run.txn_per_s);
const OP: (&str, &str, fn(&Run) -> f64) = ("throughput", "op/s", |run| run.op_per_s);
const NO_NETWORK: &str = "All partitions are on one node: nothing here goes over a network, which is most of what the paper's figure is about.";

/// Figure 6: skew.
pub static FIGURE_6: Sweep = Sweep {
    title: "Skew",
    x: ("theta", ""),
    values: &[0.0, 0.4, 0.8, 0.9, 0.99],
    set: |parameters, theta| parameters.distribution = Distribution::Zipfian { theta },
    y: TXN,
    paper: &[
        ("Q-Store over Calvin, best", "6 x"),
        ("Q-Store over two-phase commit at high skew", "about 100 x"),
    ],
    shape: |line| Shape::flat("Calvin is flat: within 30%", line, 0.3),
    notes: &[
        NO_NETWORK,
        "The paper's Calvin is flat because its single sequencer and scheduler threads are busy before any lock is; \
         ours divides that work, so contention for hot records and their warmth in the caches show.",
    ],
};

/// Figure 7: multi-partition transactions.
pub static FIGURE_7: Sweep = Sweep {
    title: "Multi-partition transactions",
    x: ("multi-partition transactions", "%"),
    values: &[0.0, 1.0, 5.0, 10.0, 20.0, 50.0, 80.0, 100.0],
    set: |parameters, percent| parameters.multi_partition = percent / 100.0,
    y: TXN,
    paper: &[("Q-Store over Calvin, best", "10.6 x")],
    shape: |line| {
        Shape::changes("Calvin falls with the share of multi-partition transactions", line, 0.0, 0.9)
    },
    notes: &[
        NO_NETWORK,
        "What falls here is what it costs that the shards of one node tell one another what they have read; a \
         transaction of one partition is done by one shard alone.",
    ],
};

/// Figure 8: updates.
pub static FIGURE_8: Sweep = Sweep {
    title: "Updates",
    x: ("update operations", "%"),
    values: &[0.0, 5.0, 20.0, 50.0, 80.0, 95.0],
    set: |parameters, percent| parameters.writes_per_txn = (percent / 100.0 * OPS as f64).round() as usize,
    y: TXN,
    paper: &[
        ("Q-Store over Calvin, best", "5.9 x"),
        ("Q-Store over MVCC, best", "17.1 x"),
        ("aborts of NO-WAIT, MaaT, TIMESTAMP, MVCC at 95%", "41, 19, 7, 6%"),
    ],
    shape: |line| Shape::flat("Calvin is flat: within 30%", line, 0.3),
    notes: &[NO_NETWORK, "Writes of a transaction are whole operations of 16: 5% is 1, 95% is 15."],
};

/// Figure 9: operations, each in a partition of its own.
pub static FIGURE_9: Sweep = Sweep {
    title: "Operations per transaction",
    x: ("operations per transaction, each on its own partition", ""),
    values: &[2.0, 4.0, 8.0, 12.0, 16.0],
    set: |parameters, ops| {
        parameters.ops_per_txn = ops as usize;
        parameters.writes_per_txn = ops as usize / 2;
        parameters.partitions_per_txn = ops as usize;
    },
    y: OP,
    paper: &[
        ("Q-Store, 16 operations", "nearly 16 M op/s"),
        ("Q-Store over Calvin at 16", "12 x"),
        ("Q-Store over NO-WAIT at 16", "20 x"),
    ],
    shape: |line| {
        Shape::changes(
            "Calvin does not scale with larger transactions: op/s at 16 less than 3 x those at 2",
            line,
            0.0,
            3.0,
        )
    },
    notes: &[NO_NETWORK],
};

/// Figure 10: partitions.
pub static FIGURE_10: Sweep = Sweep {
    title: "Partitions per transaction",
    x: ("partitions per transaction of 16 operations", ""),
    values: &[2.0, 4.0, 8.0, 12.0, 16.0],
    set: |parameters, partitions| parameters.partitions_per_txn = partitions as usize,
    y: TXN,
    paper: &[("Q-Store, flat", "about 1 M txn/s")],
    shape: |line| Shape::changes("Calvin falls with the number of partitions", line, 0.0, 0.95),
    notes: &[NO_NETWORK],
};
