//! Questions of ours, which no paper asks.

use std::sync::Arc;

use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::Shape;
use super::experiment::{Experiment, LINEAR, Line, PICTURE, Picture, Values};
use crate::figures::Measured;
use crate::plot::Series;

fn share(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| run.share_of_ceiling.unwrap_or(f64::NAN) * 100.0)
}

/// The cost of transactions: throughput as a share of plain accesses to the same records.
pub static CEILING: Experiment = Experiment {
    title: "Throughput as a share of the ceiling",
    subtitle: "YCSB, 16 operations, half of them writes, one node; clients included",
    x: ("theta", "", LINEAR),
    values: Values::At(&[0.0, 0.8, 0.99]),
    lines: |cores| {
        let one = Line::node("1 thread", 1);
        if cores > 1 { vec![one, Line::node(format!("{cores} threads"), cores)] } else { vec![one] }
    },
    setting: |size, theta, _| {
        let records = size.records(1_000_000);
        let distribution = Distribution::Zipfian { theta };
        let parameters =
            Parameters { records, distribution, ops_per_txn: 16, writes_per_txn: 8, ..Parameters::default() };
        Ok(Arc::new(Ycsb::new(parameters)?))
    },
    with_ceiling: true,
    is_ours: true,
    plots: &[Picture { y: ("share of plain accesses", "%", LINEAR), series: share, ..PICTURE }],
    shapes: |m| {
        let must = "the share does not collapse with skew: within 60% of its best";
        m.lines().into_iter().map(|line| Shape::flat(must, &share(m, line), 0.6)).collect()
    },
    notes: &[
        "The ceiling is the same record accesses by plain loops over the same tables, prefetched, with no client \
         that asks or is answered; it was measured beside every point. It rises with skew, because hot records \
         stay in the cache, so that the share falls where throughput does not.",
    ],
    ..Experiment::PLAIN
};
