//! Questions of ours, which no paper asks.

use std::sync::Arc;

use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::{Experiment, FigurePoint, Measured, Shape, Size, Summary, thread_counts};
use crate::plot::{Axis, Kind, Plot, Scale};

/// What transactions cost: throughput as a share of plain accesses to the same records.
#[derive(Debug)]
pub struct Ceiling;

impl Experiment for Ceiling {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let mut points = Vec::new();
        for theta in [0.0, 0.8, 0.99] {
            let workload = Arc::new(Ycsb::new(Parameters {
                records: size.records(1_000_000),
                distribution: Distribution::Zipfian { theta },
                ops_per_txn: 16,
                writes_per_txn: 8,
                ..Parameters::default()
            })?);
            for threads in thread_counts(cores) {
                let line = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
                points.push(FigurePoint::calvin(&line, theta, threads, workload.clone()));
            }
        }
        Ok(points)
    }

    fn with_ceiling(&self) -> bool {
        true
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let series = measured.all_series(|run| run.share_of_ceiling.unwrap_or(f64::NAN) * 100.0);
        let shapes = series.iter().map(|line| {
            Shape::flat("the share does not collapse with skew: within 60% of its best", line, 0.6)
        });
        Summary {
            shapes: shapes.collect(),
            plots: vec![Plot {
                title: "Throughput as a share of the ceiling".to_owned(),
                subtitle: "YCSB, 16 operations, half of them writes, one node; clients included".to_owned(),
                x: Axis::new("theta", "", Scale::Linear),
                y: Axis::new("share of plain accesses", "%", Scale::Linear),
                kind: Kind::Lines,
                series,
                notes: Vec::new(),
            }],
            notes: vec![
                "The ceiling is the same record accesses by plain loops over the same tables, prefetched, with nobody \
                 asking or being answered; it was measured beside every point. It rises with skew, because hot records \
                 stay in the cache, so that the share falls where throughput does not."
                    .to_owned(),
            ],
            ..Summary::default()
        }
    }
}
