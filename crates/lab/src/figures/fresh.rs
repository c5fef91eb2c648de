//! Questions of ours about parallel snapshots (fwkv.md, section 7): how fresh what is read is, how often two readers disagree on an
//! order, and what sets, messages and log records a transaction has.
//!
//! A list that is read names all writes that it has seen. So what a read misses is known once the lists are complete, and since
//! when, by the clients' own clocks. The same lists show the forks.

use std::sync::Arc;

use ordain_checker::Anomaly;
use ordain_workload::Workload;
use ordain_workload::append::{Append, Parameters};

use super::experiment::{Dimension, Experiment, LINEAR, Line, PICTURE, Picture, Values};
use super::fwkv::{ON_FOUR, two_keys};
use super::psi::{
    DELAYS, ENGINES, FWKV, HEARS, NODES, NOTE, PSI, TWO_PHASE, WALTER, collected, delayed, line, named,
    paired, waits_for_messages, with_papers, with_spread,
};
use super::reads::{Column, latency_of, staleness, table, watched};
use super::verdict::Claim;
use super::{Measured, Shape};
use crate::agreement::Agreement;
use crate::plot::{Kind, Scale, Series};
use crate::report::Run;
use crate::table::{Cell, Table};

/// Announcements in time, and late.
const IN_TIME: f64 = 0.0;
const LATE: f64 = 1.0;
const VERY_LATE: f64 = 2.0;
const PLACES: [&str; 3] = ["in time", "5 ways late", "50 ways late"];

const LATENESS: Dimension = ("announcements", "", || Scale::Categories(PLACES.map(str::to_owned).into()));

fn every_engine(_: usize) -> Vec<Line> {
    let lines = ENGINES.map(|(name, engine)| Line { watches_reads: true, ..line(name, engine, NODES) });
    lines.into_iter().flat_map(with_papers).collect()
}

/// Transactions on lists, and how late announcements are.
fn lists(line: &mut Line, place: f64, parameters: Parameters) -> anyhow::Result<Arc<dyn Workload>> {
    // What has no announcements is the same at each place.
    if place > IN_TIME && !line.name.starts_with(TWO_PHASE) {
        *line = delayed(line.clone(), DELAYS[place as usize - 1]);
    }
    Ok(Arc::new(Append::new(Parameters { read_only: 0.5, fails: 0.0, ..parameters })?))
}

/// A figure of lists by how late announcements are.
const LISTS: Experiment = Experiment {
    x: LATENESS,
    values: Values::At(&[IN_TIME, LATE, VERY_LATE]),
    lines: every_engine,
    is_ours: true,
    ..PSI
};

/// The caption of a table.
const HOW_STALE: &str =
    "How stale what was read was; announcements 0: in time, 1: 5 ways late, 2: 50 ways late";

/// Bars for what each line comes to.
const BARS: Picture = Picture { kind: Kind::Bars, ..PICTURE };

/// Reads that miss something, in percent.
fn stale(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| run.snapshots.as_ref().map_or(0.0, |of| (1.0 - of.fresh) * 100.0))
}

/// The staleness of reads, microseconds, on average.
fn mean_staleness(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| run.snapshots.as_ref().map_or(0.0, |of| of.staleness_us.mean))
}

fn reads_p50(run: &Run) -> f64 {
    latency_of(run, "read-only").p50 as f64
}

fn reads_p99(run: &Run) -> f64 {
    latency_of(run, "read-only").p99 as f64
}

/// Requires that no read of a line misses anything.
fn is_fresh(measured: &Measured, line: &str) -> Shape {
    let most = stale(measured, line).points.iter().map(|(_, percent)| *percent).reduce(f64::max);
    let must = format!("{line}: no read misses what was answered before it was asked for: stale reads, %");
    Shape::number(must, Claim::AtMost(0.0), most)
}

/// Freshness.
pub static FRESH: Experiment = Experiment {
    title: "Freshness of what only reads",
    subtitle: "4 nodes, lists that half of the transactions append to and half read, 1 to 4 of 100",
    setting: |_, place, line| {
        lists(line, place, Parameters { lists: 100, history: 200_000, ..Parameters::default() })
    },
    plots: &[
        Picture { y: ("mean staleness", "us", LINEAR), series: mean_staleness, ..BARS },
        Picture {
            suffix: ": stale reads",
            y: ("reads that miss something", "%", LINEAR),
            series: stale,
            ..BARS
        },
        Picture {
            suffix: ": latency",
            y: ("p50 of what only reads", "us", LINEAR),
            series: |m, line| m.series(line, reads_p50),
            ..BARS
        },
        Picture {
            suffix: ": latency, p99",
            y: ("p99 of what only reads", "us", LINEAR),
            series: |m, line| m.series(line, reads_p99),
            ..BARS
        },
    ],
    shapes: |m| {
        let grows = "Walter: what is read is the staler the later announcements are, 50 ways over in time";
        let both = mean_staleness(m, WALTER);
        let growth = both.at(VERY_LATE).zip(both.at(IN_TIME)).map(|(late, in_time)| late / in_time);
        let latency = paired(m, FWKV, WALTER, reads_p50);
        let most = latency.points.iter().map(|(_, ratio)| *ratio).reduce(f64::max);
        vec![
            is_fresh(m, FWKV),
            is_fresh(m, TWO_PHASE),
            Shape::at_least(grows, growth, 2.0),
            Shape::number(
                "p50 of what only reads, FW-KV over Walter, at the most",
                Claim::AtMost(1.25),
                most,
            ),
            waits_for_messages(m),
        ]
    },
    notes: &[
        NOTE,
        "A read is stale by as long as, when it was asked for, there had been an answer to an append that it does not hold; a \
         transaction by as long as the stalest of its reads. Only transactions that only read are looked at. Both times are \
         taken in the load generator: an answer when it comes, a request before it is handed over.",
        HEARS,
    ],
    more: |figure, m, summary| {
        summary.plots.push(staleness(&watched(m), |_| "announcements 50 ways late".to_owned()));
        let columns: [Column; 6] = [
            ("reads", |run| run.reads as f64),
            ("fresh %", |run| run.fresh * 100.0),
            ("stale mean us", |run| run.staleness_us.mean),
            ("p50 us", |run| run.staleness_us.p50 as f64),
            ("p99 us", |run| run.staleness_us.p99 as f64),
            ("max us", |run| run.staleness_us.max as f64),
        ];
        summary.tables.push(table(HOW_STALE, figure, &watched(m), &columns));
    },
    ..LISTS
};

/// Transactions of each node that are searched for forks.
const SEARCHED: u64 = 2_500;
/// Groups of transactions in which the checker looks for a fork, at the most.
const GROUPS_MAX: f64 = 64.0;

/// Long forks that were found.
fn forks(measured: &Measured, line: &str) -> Series {
    let found = |run: &Run| run.allowed.get(Anomaly::LongFork.check()).map_or(0.0, |it| it.times as f64);
    measured.series(line, found)
}

/// Long forks.
pub static FORKS: Experiment = Experiment {
    title: "Long forks",
    subtitle: "4 nodes, lists that half of the transactions append to and half read, 1 to 4 of 50; the first 2,500 of each node",
    setting: |_, place, line| {
        // Staleness is another figure's.
        line.watches_reads = false;
        lists(line, place, Parameters { lists: 50, history: SEARCHED, ..Parameters::default() })
    },
    plots: &[Picture { y: ("long forks in 10,000 transactions", "", LINEAR), series: forks, ..BARS }],
    shapes: |m| {
        let most = |line| forks(m, line).points.iter().map(|(_, found)| *found).reduce(f64::max);
        let both = forks(m, WALTER).at(VERY_LATE).zip(forks(m, FWKV).at(VERY_LATE));
        let fewer = "announcements 50 ways late: FW-KV has no more than Walter";
        vec![
            Shape::number("2PC has none", Claim::AtMost(0.0), most(TWO_PHASE)),
            Shape::of(
                fewer,
                both.map(|(walter, fwkv)| (fwkv <= walter, format!("FW-KV {fwkv}, Walter {walter}"))),
            ),
            waits_for_messages(m),
        ]
    },
    notes: &[
        NOTE,
        "In a long fork two readers see two writes in opposite orders. The checker takes transactions that depend on each other both \
         ways as one group, finds the worst anomaly of each, and stops at 64: that many are 64 or more. A check of each run is \
         that there is nothing worse: no lost update, no read skew.",
    ],
    more: |_, m, summary| {
        let is_full = |line: &&str| forks(m, line).points.iter().any(|(_, found)| *found >= GROUPS_MAX);
        let full: Vec<&str> = m.lines().into_iter().filter(is_full).collect();
        if !full.is_empty() {
            summary.notes.push(format!("The checker has stopped early for {}.", full.join(", ")));
        }
    },
    ..LISTS
};

/// A quantity of agreement for each transaction.
type Cost = (&'static str, fn(&Run) -> f64);

fn agreement(run: &Run, of: fn(&Agreement) -> f64) -> f64 {
    run.agreement.as_ref().map_or(0.0, of)
}

fn bytes(run: &Run) -> f64 {
    agreement(run, |all| all.bytes_per_txn)
}

fn messages(run: &Run) -> f64 {
    agreement(run, |all| all.messages_per_txn)
}

fn records(run: &Run) -> f64 {
    agreement(run, |all| all.records_per_txn)
}

const COSTS: [Cost; 5] = [
    ("readers collected an update", collected),
    ("readers named an update", named),
    ("messages a txn", messages),
    ("bytes a txn", bytes),
    ("log records a txn", records),
];

/// The most of some ratio of FW-KV to Walter.
fn most_over_walter(measured: &Measured, of: fn(&Run) -> f64) -> Option<f64> {
    let ratios = paired(measured, FWKV, WALTER, of);
    ratios.points.iter().map(|(_, ratio)| *ratio).reduce(f64::max)
}

/// Sets, messages and log records.
pub static SETS: Experiment = Experiment {
    title: "Sets, messages and log records of a transaction",
    subtitle: "4 nodes, 2 keys read, or read and changed; 10,000 keys stand for 50 K",
    x: ("read-only transactions", "%", LINEAR),
    values: Values::At(&[20.0, 50.0, 80.0]),
    lines: |_| {
        ENGINES.map(|(name, engine)| line(name, engine, NODES)).into_iter().flat_map(with_papers).collect()
    },
    setting: |_, percent, line| two_keys(line, 50_000, ON_FOUR, percent / 100.0),
    is_ours: true,
    plots: &[
        Picture {
            suffix: ": readers that a commit names",
            y: ("readers", "", LINEAR),
            series: |m, line| m.series(line, named),
            ..PICTURE
        },
        Picture {
            suffix: ": bytes",
            y: ("bytes to other nodes a transaction", "B", LINEAR),
            series: |m, line| m.series(line, bytes),
            ..PICTURE
        },
        Picture {
            suffix: ": messages",
            y: ("messages to other nodes a transaction", "", LINEAR),
            series: |m, line| m.series(line, messages),
            ..PICTURE
        },
        Picture {
            suffix: ": log records",
            y: ("log records a transaction", "", LINEAR),
            series: |m, line| m.series(line, records),
            ..PICTURE
        },
    ],
    shapes: |m| {
        let others = [WALTER, TWO_PHASE].into_iter().flat_map(|line| m.series(line, named).points);
        let others = others.map(|(_, readers)| readers).reduce(f64::max);
        vec![
            Shape::number("Walter and 2PC name no readers", Claim::AtMost(0.0), others),
            Shape::number(
                "bytes of FW-KV over Walter's, at the most",
                Claim::AtMost(1.5),
                most_over_walter(m, bytes),
            ),
            Shape::number(
                "records of FW-KV over Walter's, at the most",
                Claim::AtMost(1.1),
                most_over_walter(m, records),
            ),
            waits_for_messages(m),
        ]
    },
    notes: &[
        NOTE,
        "Readers are collected where an update is validated, once at each participant. A commit names these once, and those that \
         clients of its node had met before. Bytes are all that nodes send each other, requests and replies of clients at other \
         nodes included; messages are those of the protocol.",
    ],
    more: |figure, m, summary| {
        let mut all = Table::new("A transaction, with the least and the most of the repetitions")
            .text_columns(["line"]);
        all = all.number_columns([figure.x.0].into_iter().chain(COSTS.map(|(name, _)| name)));
        for name in m.lines() {
            for (x, _) in m.places(name) {
                let costs = COSTS.map(|(_, cost)| Cell::number(with_spread(&m.series(name, cost), x)));
                all.row([Cell::text(name), Cell::number(x.to_string())].into_iter().chain(costs));
            }
        }
        summary.tables.push(all);
    },
    ..PSI
};

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict::{self, Below, Differs, Holds, Unknown};
    use super::*;
    use crate::plot::testing;
    use crate::report::{Allowed, Latency, SnapshotsOfRun};

    fn run(line: &str, x: f64) -> (String, f64, Run) {
        (line.to_owned(), x, testing::run("e", 1, 1.0, true))
    }

    fn verdicts(experiment: &Experiment, runs: Vec<(String, f64, Run)>) -> Vec<Verdict> {
        let summary = experiment.summary(&Measured { runs, ..Measured::default() });
        summary.shapes.iter().map(|shape| shape.verdict).collect()
    }

    #[test]
    fn a_stale_read_of_fwkv_is_told_and_walters_grow_with_lateness() {
        let of = |fwkv: f64, walter: f64| {
            let lines =
                [(FWKV, fwkv, [0.0; 3]), (TWO_PHASE, 1.0, [0.0; 3]), (WALTER, 0.5, [9.0, 9.0, walter])];
            let runs = lines.into_iter().flat_map(|(line, fresh, means)| {
                means.into_iter().zip([IN_TIME, LATE, VERY_LATE]).map(move |(mean, x)| {
                    let staleness_us = Latency { mean, ..Latency::default() };
                    let snapshots = SnapshotsOfRun { fresh, staleness_us, ..SnapshotsOfRun::default() };
                    let (line, x, run) = run(line, x);
                    (line, x, Run { snapshots: Some(snapshots), ..run })
                })
            });
            verdicts(&FRESH, runs.collect())
        };
        assert_eq!(of(1.0, 18.0)[..3], [Holds; 3]);
        assert_eq!(of(0.999, 17.0)[..3], [Differs, Holds, Below]);
        assert_eq!(verdicts(&FRESH, Vec::new()), [Unknown; 5]);
    }

    #[test]
    fn forks_are_those_that_the_checker_found() {
        let of = |fwkv: u64, walter: u64| {
            let lines = [(FWKV, fwkv), (WALTER, walter), (TWO_PHASE, 0)];
            let runs = lines.map(|(line, times)| {
                let (line, x, run) = run(line, VERY_LATE);
                let found = Allowed { times, found: String::new() };
                (line, x, Run { allowed: [(Anomaly::LongFork.check(), found)].into(), ..run })
            });
            (
                verdicts(&FORKS, runs.to_vec()),
                FORKS.summary(&Measured { runs: runs.into(), ..Measured::default() }),
            )
        };
        assert_eq!(of(3, 64).0[..2], [Holds; 2]);
        assert_eq!(of(4, 3).0[..2], [Holds, Differs]);
        assert!(of(3, 64).1.notes.iter().any(|note| note == "The checker has stopped early for Walter."));
        assert!(of(3, 63).1.notes.iter().all(|note| !note.contains("stopped early")));
    }

    #[test]
    fn announcements_are_late_where_there_are_some() {
        let points = FRESH.points(super::super::Size::Quick, 2).unwrap();
        let late = |line: &str, x: f64| {
            let point = points.iter().find(|point| point.line == line && point.x == x).unwrap();
            assert!(point.point.watch, "{line}");
            let system = point.point.system.to_string();
            system.split_once("propagate-delay-us=").map(|(_, us)| us.split(' ').next().unwrap().to_owned())
        };
        assert_eq!(
            [IN_TIME, LATE, VERY_LATE].map(|x| late(WALTER, x)),
            [None, Some("5000".to_owned()), Some("50000".to_owned())]
        );
        assert_eq!(late(TWO_PHASE, VERY_LATE), None);
        let forks = FORKS.points(super::super::Size::Quick, 2).unwrap();
        assert!(forks.iter().all(|point| !point.point.watch));
    }

    #[test]
    fn sets_are_for_updates_and_the_rest_for_all() {
        let lines = [(FWKV, 2.0, 150.0), (WALTER, 0.0, 100.0)];
        let runs = lines.map(|(line, named_per_txn, bytes_per_txn)| {
            let (line, x, run) = run(line, 20.0);
            let all =
                Agreement { named_per_txn, bytes_per_txn, records_per_txn: 4.0, ..Agreement::default() };
            (line, x, Run { agreement: Some(all), ..run })
        });
        assert_eq!(verdicts(&SETS, runs.to_vec())[..3], [Holds; 3]);
        let summary = SETS.summary(&Measured { runs: runs.into(), ..Measured::default() });
        let table = summary.tables[0].to_string();
        assert!(table.contains("readers named an update") && table.contains("150.00"), "{table}");
    }
}
