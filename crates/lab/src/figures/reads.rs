//! Questions of ours about reads on snapshots (paxflow.md, section 7, E1 to E5): what share of them, beside whom, how
//! fresh, how long and how many records. Each has Calvin's locked reads beside it.
//!
//! The node has every core, and a transaction uses the records of all of its shards. Staleness and the number of kept
//! contents are not what a driver sees; they are what the scenarios of the engine's tests look at.

use std::sync::Arc;

use ordain_model::Reads;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::paxflow::{ORDERED, SNAPSHOT, parameters};
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Told};
use crate::plot::{Axis, Kind, Plot, Scale, Series, si};
use crate::report::Run;

/// A sweep of one knob, by how what only reads is run.
#[derive(Debug)]
pub struct Sweep {
    title: &'static str,
    subtitle: &'static str,
    lines: &'static [(&'static str, Reads)],
    x: (&'static str, &'static str),
    values: &'static [f64],
    set: fn(&mut Parameters, f64),
    /// How many transactions are asked for a second at a place, where the loop is open.
    rate: Option<fn(f64) -> f64>,
    y: (&'static str, &'static str, fn(&Run) -> f64),
    shape: fn(&[Series]) -> Vec<Shape>,
    notes: &'static [&'static str],
}

impl Experiment for Sweep {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let mut points = Vec::new();
        for &x in self.values {
            let mut parameters = parameters(size);
            (self.set)(&mut parameters, x);
            let workload = Arc::new(Ycsb::new(parameters)?);
            for &(line, reads) in self.lines {
                let mut point = FigurePoint::reading(line, x, cores, reads, workload.clone());
                point.point.rate = self.rate.map(|rate| rate(x));
                points.push(point);
            }
        }
        Ok(points)
    }

    fn tell(&self, measured: &Measured) -> Told {
        let series: Vec<Series> =
            self.lines.iter().map(|(line, _)| measured.series(line, self.y.2)).collect();
        let ours = series.iter().flat_map(|line| {
            let points = line.points.iter();
            points.map(|(x, y)| {
                let what = format!("{}, {} {} {}", line.name, self.x.0, si(*x), self.x.1);
                Beside::new(what.trim_end(), "none: a question of ours", format!("{} {}", si(*y), self.y.1))
            })
        });
        Told {
            shapes: (self.shape)(&series),
            beside: ours.collect(),
            plots: vec![Plot {
                title: self.title.to_owned(),
                subtitle: self.subtitle.to_owned(),
                x: Axis::new(self.x.0, self.x.1, Scale::Linear),
                y: Axis::new(self.y.0, self.y.1, Scale::Linear),
                kind: Kind::Lines,
                series,
                notes: Vec::new(),
            }],
            notes: self.notes.iter().map(|note| (*note).to_owned()).collect(),
            tables: Vec::new(),
        }
    }
}

const BOTH: &[(&str, Reads)] = &[(ORDERED, Reads::Ordered), (SNAPSHOT, Reads::Previous)];
const TXN: (&str, &str, fn(&Run) -> f64) = ("throughput", "txn/s", |run| run.txn_per_s);
const READ_P99: (&str, &str, fn(&Run) -> f64) = ("p99 of what only reads", "us", |run| {
    run.kinds.get("read-only").map_or(run.latency_us.p99, |kind| kind.latency_us.p99) as f64
});

/// The second line over the first at a place.
fn ratio(series: &[Series], x: f64) -> Option<f64> {
    let (base, other) = (series.first()?.at(x)?, series.get(1)?.at(x)?);
    (base > 0.0).then_some(other / base)
}

/// From its first place to its last a line grows to no more than so many times as much.
fn grows_at_most(must: &str, line: Option<&Series>, most: f64) -> Shape {
    line.map_or_else(|| Shape::unknown(must, "not measured"), |line| Shape::changes(must, line, 0.0, most))
}

/// The ratio of snapshot reads to locked ones at one place is larger than at another.
fn ratio_grows(must: &str, series: &[Series], from: f64, to: f64) -> Shape {
    match (ratio(series, from), ratio(series, to)) {
        (Some(first), Some(last)) => {
            Shape::new(must, last >= first, format!("{first:.2} at {}, {last:.2} at {}", si(from), si(to)))
        }
        _ => Shape::unknown(must, "not measured"),
    }
}

/// E1: the share of transactions that only read.
pub static E1: Sweep = Sweep {
    title: "The share of read-only transactions",
    subtitle: "100 records a transaction; those that write increment half of them; one node",
    lines: BOTH,
    x: ("read-only transactions", "%"),
    values: &[0.0, 50.0, 80.0, 95.0, 99.0, 100.0],
    set: |parameters, percent| {
        parameters.writes_per_txn = 50;
        parameters.read_only = percent / 100.0;
    },
    rate: None,
    y: TXN,
    shape: |series| {
        let none = ratio(series, 0.0);
        let must = "without reads, what keeps older contents does at least 0.9 of what does not";
        vec![
            Shape::at_least(must, none, 0.9),
            ratio_grows("the ratio to locked reads grows with the share of reads", series, 0.0, 100.0),
        ]
    },
    notes: &["At 0% both lines do the same, but for what the second keeps for readers that do not come."],
};

/// This share of the transactions read so many records, and the others increment 10, so many of them hot.
fn reads_among_writers(parameters: &mut Parameters, share: f64, records: usize, hot: usize) {
    parameters.read_only = share;
    parameters.read_only_ops = Some(records);
    parameters.read_only_hot_ops = Some(1);
    (parameters.ops_per_txn, parameters.writes_per_txn, parameters.hot_ops) = (10, 10, hot);
}

/// How many transactions that only read are asked for a second in E2 and E3.
const READS_PER_S: f64 = 2_000.0;

/// E2: the hot records are written meanwhile.
pub static E2: Sweep = Sweep {
    title: "Reads beside hot writers",
    subtitle: "2,000 reads a second of 1 hot and 99 other records; writers increment all 10 hot records; open loop",
    lines: BOTH,
    x: ("writers", "txn/s"),
    values: &[0.0, 1_000.0, 4_000.0, 8_000.0],
    set: |parameters, writers| {
        reads_among_writers(parameters, READS_PER_S / (READS_PER_S + writers), 100, 10);
    },
    rate: Some(|writers| READS_PER_S + writers),
    y: READ_P99,
    shape: |series| {
        vec![grows_at_most(
            "on snapshots p99 is flat: at most 1.3 x that without writers",
            series.get(1),
            1.3,
        )]
    },
    notes: &[
        "Every transaction uses both shards. A locked read waits for the writers before it; one on a snapshot shares the \
         processor with them and nothing else, and on a machine with few cores that shows too.",
    ],
};

/// E3: how fresh.
pub static E3: Sweep = Sweep {
    title: "Freshness modes",
    subtitle: "2,000 reads a second of 100 records beside writers of the 10 hot ones; open loop",
    lines: &[
        ("previous", Reads::Previous),
        ("session", Reads::Session),
        ("strict", Reads::Strict),
        ("ordered", Reads::Ordered),
    ],
    x: E2.x,
    values: &[1_000.0, 4_000.0],
    set: E2.set,
    rate: E2.rate,
    y: ("p50 of what only reads", "us", |run| {
        run.kinds.get("read-only").map_or(run.latency_us.p50, |kind| kind.latency_us.p50) as f64
    }),
    shape: |series| {
        let longer = |must: &str, shorter: usize, longer: usize| {
            let at = |n: usize| series.get(n).and_then(|line| Some((&line.name, line.points.first()?.1)));
            match (at(shorter), at(longer)) {
                (Some((a, a_us)), Some((b, b_us))) => {
                    Shape::new(must, b_us >= a_us, format!("{a} {}, {b} {} us", si(a_us), si(b_us)))
                }
                _ => Shape::unknown(must, "not measured"),
            }
        };
        vec![
            longer("strict reads wait longer than those of the previous epoch", 0, 2),
            longer("those of the previous epoch wait longer than those of a session", 1, 0),
        ]
    },
    notes: &[
        "paxflow.md has previous before session. Ours is the other way about: a session's reads take the last state that is \
         executed on the node and wait for nothing, those of the previous epoch the last one that was closed, which the \
         shards may still have to execute (decision 16).",
        "Absent: a histogram of how stale the answers were, which clients are not told.",
    ],
};

/// How many records a long transaction reads.
const LONG: usize = 10_000;

/// E4: long reads.
pub static E4: Sweep = Sweep {
    title: "Writers beside long reads",
    subtitle: "reads of 10,000 records among writers of 10; one node, closed loop",
    lines: BOTH,
    x: ("long reads", "% of transactions"),
    values: &[0.0, 0.1, 0.5],
    set: |parameters, percent| reads_among_writers(parameters, percent / 100.0, LONG, 1),
    rate: None,
    y: ("writers' p99", "us", |run| {
        run.kinds.get("update").map_or(run.latency_us.p99, |kind| kind.latency_us.p99) as f64
    }),
    shape: |series| {
        let must = "beside long reads writers' p99 is no worse on snapshots than with locks";
        let worst = ratio(series, 0.5);
        vec![match worst {
            Some(ratio) => Shape::new(must, ratio <= 1.05, format!("{ratio:.2} x at 0.5%")),
            None => Shape::unknown(must, "not measured"),
        }]
    },
    notes: &["In a closed loop the writers wait for the processor that long reads use, in either way."],
};

/// E5: how many records.
pub static E5: Sweep = Sweep {
    title: "Records of a read",
    subtitle: "nothing but reads, 1 hot record in each; one node",
    lines: BOTH,
    x: ("operations per transaction", ""),
    values: &[4.0, 16.0, 100.0],
    set: |parameters, ops| parameters.ops_per_txn = ops as usize,
    rate: None,
    y: TXN,
    shape: |series| {
        vec![ratio_grows("the ratio to locked reads grows with the number of operations", series, 4.0, 100.0)]
    },
    notes: &[],
};
