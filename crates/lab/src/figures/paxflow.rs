//! The PaxFlow paper's figures (paxflow.md, section 7): Calvin's line, on one node.

use std::sync::Arc;

use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::calvin::model;
use super::told::at;
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Told, thread_counts};
use crate::plot::Series;

/// What the paper measured of Calvin and of PaxFlow, on 72 logical cores.
const CALVIN: f64 = 3_200.0;
const PAXFLOW: f64 = 13_700.0;

/// Figure 2 with Table 1: read-only transactions through the lock manager.
#[derive(Debug)]
pub struct Figure2;

const LINE: &str = "Calvin, locked reads";

impl Experiment for Figure2 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let workload = Arc::new(Ycsb::new(Parameters {
            records: size.records(1_000_000),
            record_bytes: 128,
            distribution: Distribution::Zipfian { theta: 0.99 },
            ops_per_txn: 100,
            writes_per_txn: 0,
            read_only: 1.0,
            hot_records: 10,
            hot_ops: 1,
            ..Parameters::default()
        })?);
        let of = |threads: usize| FigurePoint::calvin(LINE, threads as f64, threads, workload.clone());
        Ok(thread_counts(cores).into_iter().map(of).collect())
    }

    fn tell(&self, measured: &Measured) -> Told {
        let subtitle = "read-only, 100 reads a transaction, 1 of them of 10 hot records";
        let mut told =
            model(measured, "Read-only YCSB on one node", subtitle, ("the paper's Calvin: 3.2 K", CALVIN));
        if let Some(plot) = told.plots.first_mut() {
            plot.series.push(Series::reference("the paper's PaxFlow: 13.7 K", vec![(1.0, PAXFLOW)]));
        }
        let line = measured.series(LINE, |run| run.txn_per_s);
        let cores = measured.last_x(LINE).unwrap_or(1.0);
        let known = measured.demands(LINE, cores);
        told.beside = vec![
            Beside::new(
                "Calvin",
                "3.20 K txn/s on 72 logical cores (section 4)",
                format!("{} on {cores} cores", at(&line, cores)),
            ),
            Beside::new("PaxFlow", "13.7 K txn/s on 72 logical cores (section 4)", "needs engine paxflow"),
            Beside::new("PaxFlow over Calvin", "4.3 x (section 4)", "needs engine paxflow"),
        ];
        let (at_1, at_36) = (known.txn_per_s(1.0), known.txn_per_s(36.0));
        told.shapes = vec![
            if at_1 > 0.0 {
                Shape::new(
                    "Calvin does not grow with cores: X(36) is less than twice X(1)",
                    at_36 < 2.0 * at_1,
                    format!("X(36) / X(1) = {:.1}", at_36 / at_1),
                )
            } else {
                Shape::unknown("Calvin does not grow with cores", "not measured")
            },
            Shape::unknown("PaxFlow grows until the sequencer is busy", "needs engine paxflow"),
        ];
        told.notes.push(
            "The paper's Calvin has one lock thread, about 320 K locks a second. Ours divides the locks among the \
             cores, each with its records, so that its line grows where the paper's is flat: the advantage of reading \
             without locks must be shown against this one."
                .to_owned(),
        );
        told.notes.push(
            "2,000 clients with one transaction each under way make batches of up to 2,000, the paper's; a batch that \
             the pipeline can take is closed earlier."
                .to_owned(),
        );
        told
    }
}
