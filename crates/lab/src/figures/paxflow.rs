//! The PaxFlow paper's figure (paxflow.md, section 7), on one node: reads through the lock manager, and past it.
//!
//! The paper has one baseline, a Calvin with one lock thread. Ours are two. *Good* is what we run: locks divided among
//! the shards, nothing handed from thread to thread. *Paper-like* is modelled from what was measured: the same work, but
//! all that reads in the order cost a shard more than reads on a snapshot, which is locks and the order itself, done by
//! one thread. The ratio to the first is the honest gain; the one to the second is what compares with the paper's.

use std::sync::Arc;

use ordain_model::Reads;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::calvin::{MODEL_CORES, model};
use super::told::at;
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Told, thread_counts};
use crate::demand::{Demand, Demands, Threads};
use crate::plot::{Series, si};

/// What the paper measured of Calvin and of PaxFlow, on 72 logical cores.
const CALVIN: f64 = 3_200.0;
const PAXFLOW: f64 = 13_700.0;
/// How many cores the paper's ratio is looked for at.
const CORES: f64 = 8.0;

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
const PAPER_LIKE: &str = "one lock thread";

/// What locked reads would cost if one thread did all that they need more than reads on snapshots; nothing if they need
/// no more.
fn paper_like(locked: &Demands, snapshot: &Demands) -> Option<Demands> {
    let shards = |known: &Demands| -> f64 {
        let shards = known.0.iter().filter(|demand| demand.part == "shard");
        shards.map(|demand| demand.us_per_txn).sum()
    };
    let locks = shards(locked) - shards(snapshot);
    let mut demands: Vec<Demand> = locked.0.iter().filter(|demand| demand.part != "shard").cloned().collect();
    let part = |name: &str, threads, us_per_txn| Demand { part: name.to_owned(), threads, us_per_txn };
    demands.push(part("shard", Threads::Many, shards(snapshot)));
    demands.push(part(PAPER_LIKE, Threads::One, locks));
    (locks > 0.0).then_some(Demands(demands))
}

impl Experiment for Figure2 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let workload = Arc::new(Ycsb::new(parameters(size))?);
        let of = |threads: usize| {
            [(ORDERED, Reads::Ordered), (SNAPSHOT, Reads::Previous)].map(|(line, reads)| {
                FigurePoint::reading(line, threads as f64, threads, reads, workload.clone())
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
        let paper_like = paper_like(&locked, &snapshot);
        if let Some(plot) = told.plots.first_mut() {
            plot.series.push(Series::reference("the paper's PaxFlow: 13.7 K", vec![(1.0, PAXFLOW)]));
            plot.series.extend(
                paper_like
                    .iter()
                    .map(|known| known.series("locked reads, one lock thread, X(c)", 1..=MODEL_CORES)),
            );
        }
        let [by_lock, by_snapshot] =
            [ORDERED, SNAPSHOT].map(|line| measured.series(line, |run| run.txn_per_s));
        let wall = by_lock.at(cores).zip(by_snapshot.at(cores)).map(|(locked, snapshot)| snapshot / locked);
        let cpu = (snapshot.sum_us() > 0.0).then(|| locked.sum_us() / snapshot.sum_us());
        let modelled = |known: &Demands, cores: f64| snapshot.txn_per_s(cores) / known.txn_per_s(cores);
        let beyond = paper_like.as_ref().map(|known| modelled(known, CORES));
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
            Beside::new(
                "PaxFlow over Calvin, one lock thread",
                "4.3 x (section 4)",
                format!("{} at X({CORES} cores): a model", text(beyond)),
            ),
            Beside::new(
                "PaxFlow over our own locked reads",
                "none",
                format!("{} by the clock, {} by processor time", text(wall), text(cpu)),
            ),
        ];
        told.shapes = vec![
            match &paper_like {
                Some(known) => Shape::new(
                    "with one lock thread Calvin stops growing: X(72) is no more than X(36)",
                    known.txn_per_s(72.0) <= known.txn_per_s(36.0) * 1.001,
                    format!("X(36) = {}, X(72) = {}", si(known.txn_per_s(36.0)), si(known.txn_per_s(72.0))),
                ),
                None => Shape::unknown("with one lock thread Calvin stops growing", "not measured"),
            },
            Shape::at_least(
                "reads on snapshots do at least 4.3 times what one lock thread lets locked reads do, at X(8)",
                beyond,
                PAXFLOW / CALVIN,
            ),
            Shape::at_least("reads on snapshots do no less than our own locked reads", wall, 1.0),
            Shape::at_least("reads on snapshots do at least 0.6 of plain accesses", share, 0.6),
        ];
        told.notes.push(
            "The paper's Calvin has one lock thread, about 320 K locks a second. Ours divides the locks among the cores, \
             each with its records; what a Calvin with one lock thread would do is computed: that thread does what locked \
             reads cost the shards more than reads on snapshots."
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

    #[test]
    fn one_lock_thread_does_what_locked_reads_need_more() {
        let known = |shard: f64| {
            let part =
                |part: &str, threads, us_per_txn| Demand { part: part.to_owned(), threads, us_per_txn };
            Demands(vec![part("shard", Threads::Many, shard), part("sequencer", Threads::One, 1.0)])
        };
        let modelled = paper_like(&known(30.0), &known(10.0)).unwrap();
        assert_eq!((modelled.sum_us(), modelled.txn_per_s(100.0)), (31.0, 50_000.0));
        assert_eq!(modelled.bottleneck().map(|demand| demand.part.as_str()), Some(PAPER_LIKE));
        assert_eq!(paper_like(&known(10.0), &known(10.0)), None);
    }
}
