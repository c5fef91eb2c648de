//! The PaxFlow paper's figure (paxflow.md, section 7), on one node: reads through the lock manager, and past it.
//!
//! The paper has one baseline, a Calvin with one lock thread, and paxflow.md asks for two: that, and a good one. Only the
//! *good* one is here: locks divided among the shards, nothing handed from thread to thread, and a lock that is taken in
//! no queue unless somebody waits for it. Of such a lock path nothing can be given to a thread of its own: it is part of
//! finding the record. So the paper's 4.3 x has no counterpart here, and the figure says so; what it shows is how reads on
//! snapshots do against locked reads that are as fast as we can make them.

use std::sync::Arc;

use ordain_model::Reads;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::calvin::model;
use super::told::at;
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Told, thread_counts};
use crate::embedded::Grid;
use crate::html::{Cell, Table};
use crate::plot::Series;

/// What the paper measured of Calvin and of PaxFlow, on 72 logical cores.
const CALVIN: f64 = 3_200.0;
const PAXFLOW: f64 = 13_700.0;

/// The paper's records, and transactions that only read: 100 of them, 1 of 10 hot ones.
pub(super) fn parameters(size: Size) -> Parameters {
    Parameters {
        records: size.records(1_000_000),
        record_bytes: 128,
        distribution: Distribution::Zipfian { theta: 0.99 },
        ops_per_txn: 100,
        writes_per_txn: 0,
        read_only: 1.0,
        hot_records: 10,
        hot_ops: 1,
        ..Parameters::default()
    }
}

/// Figure 2 with Table 1: read-only transactions through the lock manager, and on snapshots.
#[derive(Debug)]
pub struct Figure2;

pub(super) const ORDERED: &str = "Calvin, locked reads";
pub(super) const SNAPSHOT: &str = "PaxFlow, snapshot reads";

/// Table 1: the paper's settings, and those of the runs.
fn table_1(measured: &Measured) -> Table {
    let mut table = Table::new("Table 1: the settings")
        .text_column("parameter")
        .number_column("paper")
        .number_column("these runs");
    let Some((_, _, run)) = measured.runs.first() else { return table };
    let percent = |share: String| share.parse().map_or(share, |share: f64| format!("{:.0}%", share * 100.0));
    for (name, paper, ours) in [
        ("Transactions per batch", "2,000", format!("at most {}", run.clients)),
        ("RO transactions", "100%", percent(run.param("read_only"))),
        ("Operations per transaction", "100", run.param("ops_per_txn")),
        ("Hot records", "10", run.param("hot_records")),
        ("Hot records of a transaction", "1 (the public code)", run.param("hot_ops")),
        ("Skew", "0.99", run.param("theta")),
        ("Bytes of a record", "128 (the public code)", run.param("record_bytes")),
        ("Total records in database", "1,000,000", run.param("records")),
    ] {
        table.row(vec![Cell::text(name), Cell::number(paper), Cell::number(ours)]);
    }
    table
}

/// Why the paper's baseline is not here.
const NO_LOCK_THREAD: &str = "none here: locked reads that wait for nobody take no lock";

impl Experiment for Figure2 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let workload = Arc::new(Ycsb::new(parameters(size))?);
        let of = |threads: usize| {
            [(ORDERED, Reads::Ordered), (SNAPSHOT, Reads::Previous)].map(|(line, reads)| {
                FigurePoint::reading(line, threads as f64, (threads, Grid::ALONE), reads, workload.clone())
            })
        };
        Ok(thread_counts(cores).into_iter().flat_map(of).collect())
    }

    fn with_ceiling(&self) -> bool {
        true
    }

    fn tell(&self, measured: &Measured) -> Told {
        let subtitle = "100 reads a transaction, 1 of them of 10 hot records, and nothing else";
        let mut told =
            model(measured, "Read-only YCSB on one node", subtitle, ("the paper's Calvin: 3.2 K", CALVIN));
        let cores = measured.last_x(ORDERED).unwrap_or(1.0);
        let [locked, snapshot] = [ORDERED, SNAPSHOT].map(|line| measured.demands(line, cores));
        if let Some(plot) = told.plots.first_mut() {
            plot.series.push(Series::reference("the paper's PaxFlow: 13.7 K", vec![(1.0, PAXFLOW)]));
        }
        let [by_lock, by_snapshot] =
            [ORDERED, SNAPSHOT].map(|line| measured.series(line, |run| run.txn_per_s));
        let wall = by_lock.at(cores).zip(by_snapshot.at(cores)).map(|(locked, snapshot)| snapshot / locked);
        let cpu = (snapshot.sum_us() > 0.0).then(|| locked.sum_us() / snapshot.sum_us());
        let text =
            |ratio: Option<f64>| ratio.map_or_else(|| "not measured".to_owned(), |r| format!("{r:.1} x"));
        let share = measured.series(SNAPSHOT, |run| run.share_of_ceiling.unwrap_or(f64::NAN)).at(cores);
        told.beside = vec![
            Beside::new(
                "Calvin",
                "3.20 K txn/s on 72 logical cores (section 4)",
                format!("{} on {cores} cores, locks divided among them", at(&by_lock, cores)),
            ),
            Beside::new(
                "PaxFlow",
                "13.7 K txn/s on 72 logical cores (section 4)",
                format!("{} on {cores} cores", at(&by_snapshot, cores)),
            ),
            Beside::new("PaxFlow over Calvin, one lock thread", "4.3 x (section 4)", NO_LOCK_THREAD),
            Beside::new(
                "PaxFlow over our own locked reads",
                "none",
                format!("{} by the clock, {} by processor time", text(wall), text(cpu)),
            ),
        ];
        told.shapes = vec![
            Shape::unknown(
                "with one lock thread Calvin stops growing, and PaxFlow does 4.3 times as much",
                NO_LOCK_THREAD,
            ),
            Shape::at_least("reads on snapshots do no less than our own locked reads", wall, 1.0),
            Shape::at_least("reads on snapshots do at least 0.6 of plain accesses", share, 0.6),
        ];
        told.tables.push(table_1(measured));
        told.notes.push(
            "The paper's Calvin has one lock thread, about 320 K locks and releases a second, through which every read goes. \
             Ours has none: a core owns its records and their locks, and a transaction that finds all of them free runs in \
             one call and takes none. There is nothing to hand to a lock thread, so the paper's ratio is not modelled; the \
             ratio to our own locked reads is the gain of the idea itself."
                .to_owned(),
        );
        told.notes.push(
            "2,000 clients with one transaction each under way make batches of up to 2,000, the paper's; a batch that \
             the pipeline can take is closed earlier. The reply is a checksum of all that was read."
                .to_owned(),
        );
        told
    }
}
