//! The PaxFlow paper's figure (paxflow.md, section 7), on one node: reads through the lock manager, and past it.
//!
//! The paper has one baseline, a Calvin with one lock thread, and paxflow.md asks for two: that, which here is the engine
//! `calvin-paper`, and a good one, with locks divided among the shards, nothing handed from thread to thread, and a lock that
//! is taken in no queue unless somebody waits for it. The paper's 4.3 x stands beside the ratio to the first; the ratio to
//! the second is the gain of the idea itself.

use std::sync::Arc;

use ordain_model::Reads;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::calvin::model;
use super::summary::at;
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Summary, thread_counts};
use crate::demand::Demands;
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

const PAPERS: &str = "Calvin as in the papers, locked reads";
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

/// How many times what one engine does another does: by the clock, by processor time, and with many cores.
struct Ratios {
    clock: Option<f64>,
    cpu: Option<f64>,
    /// X(8) and X(36), as paxflow.md asks for.
    modelled: Option<[f64; 2]>,
}

impl Ratios {
    fn of(measured: &Measured, over: &str, under: &str, threads: f64) -> Ratios {
        let clock = |line| measured.series(line, |run| run.txn_per_s).at(threads);
        let [ours, theirs] = [over, under].map(|line| measured.demands(line, threads));
        let is_known = ours.sum_us() > 0.0 && theirs.sum_us() > 0.0;
        let by = |cores: f64| ours.txn_per_s(cores) / theirs.txn_per_s(cores);
        Ratios {
            clock: clock(over).zip(clock(under)).map(|(ours, theirs)| ours / theirs),
            cpu: is_known.then(|| theirs.sum_us() / ours.sum_us()),
            modelled: is_known.then(|| [by(8.0), by(36.0)]),
        }
    }

    fn told(&self) -> String {
        let text =
            |ratio: Option<f64>| ratio.map_or_else(|| "not measured".to_owned(), |r| format!("{r:.1} x"));
        let Ratios { clock, cpu, modelled } = self;
        let [eight, many] = [0, 1].map(|i| text(modelled.map(|ratios| ratios[i])));
        format!(
            "{} by the clock, {} by processor time, {eight} by X(8), {many} by X(36)",
            text(*clock),
            text(*cpu)
        )
    }
}

/// Up to how many cores the lock manager lets the papers' Calvin grow.
fn growth(demands: &Demands) -> Shape {
    const MUST: &str =
        "with one lock thread Calvin stops growing before the paper's 72 logical cores are used";
    match (demands.bottleneck(), demands.cores_used_at_most()) {
        (Some(single), Some(cores)) => {
            Shape::new(MUST, cores < 72.0, format!("the {} is busy at {cores:.1} cores", single.part))
        }
        _ => Shape::unknown(MUST, "not measured"),
    }
}

impl Experiment for Figure2 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let workload = Arc::new(Ycsb::new(parameters(size))?);
        let of = |threads: usize| {
            let reading = |line, reads| {
                FigurePoint::reading(line, threads as f64, (threads, Grid::ALONE), reads, workload.clone())
            };
            [
                reading(PAPERS, Reads::Ordered).of_engine("calvin-paper"),
                reading(ORDERED, Reads::Ordered),
                reading(SNAPSHOT, Reads::Previous),
            ]
        };
        Ok(thread_counts(cores).into_iter().flat_map(of).collect())
    }

    fn with_ceiling(&self) -> bool {
        true
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let subtitle = "100 reads a transaction, 1 of them of 10 hot records, and nothing else";
        let mut told =
            model(measured, "Read-only YCSB on one node", subtitle, ("the paper's Calvin: 3.2 K", CALVIN));
        let cores = measured.last_x(ORDERED).unwrap_or(1.0);
        if let Some(plot) = told.plots.first_mut() {
            plot.series.push(Series::reference("the paper's PaxFlow: 13.7 K", vec![(1.0, PAXFLOW)]));
        }
        let [by_manager, by_lock, by_snapshot] =
            [PAPERS, ORDERED, SNAPSHOT].map(|line| measured.series(line, |run| run.txn_per_s));
        let [papers, own] = [PAPERS, ORDERED].map(|line| Ratios::of(measured, SNAPSHOT, line, cores));
        let share = measured.series(SNAPSHOT, |run| run.share_of_ceiling.unwrap_or(f64::NAN)).at(cores);
        told.beside = vec![
            Beside::new(
                "Calvin",
                "3.20 K txn/s on 72 logical cores (section 4)",
                format!(
                    "{} on {cores} cores with one lock thread, {} with locks divided among them",
                    at(&by_manager, cores),
                    at(&by_lock, cores)
                ),
            ),
            Beside::new(
                "PaxFlow",
                "13.7 K txn/s on 72 logical cores (section 4)",
                format!("{} on {cores} cores", at(&by_snapshot, cores)),
            ),
            Beside::new("PaxFlow over Calvin, one lock thread", "4.3 x (section 4)", papers.told()),
            Beside::new("PaxFlow over our own locked reads", "none", own.told()),
        ];
        told.shapes = vec![
            growth(&measured.demands(PAPERS, cores)),
            Shape::at_least(
                "PaxFlow does 4.3 times what Calvin with one lock thread does, by X(36)",
                papers.modelled.map(|[_, many]| many),
                4.3,
            ),
            Shape::at_least("reads on snapshots do no less than our own locked reads", own.clock, 1.0),
            Shape::at_least("reads on snapshots do at least 0.6 of plain accesses", share, 0.6),
        ];
        told.tables.push(table_1(measured));
        told.notes.push(
            "The paper's Calvin has one lock thread, about 320 K locks and releases a second, through which every read goes; so \
             has the engine calvin-paper, whose lock manager's demand is taken as that of one thread. Our own Calvin has none: a \
             core owns its records and their locks, and a transaction that finds all of them free runs in one call and takes \
             none. The ratio to our own locked reads is the gain of the idea itself."
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing;
    use crate::report::Run;

    fn run(line: &str, rate: f64, cpu: &[(&str, f64)]) -> (String, f64, Run) {
        let cpu = cpu.iter().map(|(part, us)| ((*part).to_owned(), *us)).collect();
        (line.to_owned(), 2.0, Run { cpu_us_per_txn: cpu, ..testing::run("e", 1, rate, true) })
    }

    #[test]
    fn a_lock_manager_holds_up_many_cores_and_the_ratio_says_so() {
        let runs = vec![
            run(PAPERS, 10e3, &[("lock-manager", 50.0), ("shard", 50.0)]),
            run(SNAPSHOT, 40e3, &[("shard", 20.0)]),
        ];
        let measured = Measured { runs };
        let ratios = Ratios::of(&measured, SNAPSHOT, PAPERS, 2.0);
        assert_eq!(
            ratios.told(),
            "4.0 x by the clock, 5.0 x by processor time, 20.0 x by X(8), 90.0 x by X(36)"
        );
        let shape = growth(&measured.demands(PAPERS, 2.0));
        assert_eq!((shape.holds, shape.ours.as_str()), (Some(true), "the lock-manager is busy at 2.0 cores"));
        // Without such a thread it would grow on and on.
        assert_eq!(growth(&measured.demands(SNAPSHOT, 2.0)).holds, None);
        assert!(
            Ratios::of(&measured, SNAPSHOT, ORDERED, 2.0).told().starts_with("not measured by the clock")
        );
    }
}
