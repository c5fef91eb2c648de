//! Questions of ours about reads on snapshots (paxflow.md, section 7, E1 to E5): what share of them, beside whom, how
//! fresh, how long and how many records. Each has Calvin's locked reads beside it.
//!
//! The node has every core, and a transaction uses the records of all of its shards. Where the question is of several
//! partitions too, there are two nodes with one each, and an injected delay between them. What reads on snapshots miss is
//! told by those who ask, and what is kept for them by the shards, each tenth of a second.

use std::sync::Arc;

use ordain_model::{Micros, Reads};
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::paxflow::{ORDERED, SNAPSHOT, parameters};
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Summary};
use crate::embedded::{Delay, Grid};
use crate::html::{Cell, Table};
use crate::plot::{Axis, Kind, Plot, Scale, Series, si};
use crate::report::{KeptOfRun, Latency, Run, SnapshotsOfRun, median};

/// One way between two nodes (paxflow.md, section 7).
const DELAY: Micros = Micros(250);

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
    /// The shares of transactions on two partitions for which it is measured on two nodes as well.
    multi_partition: &'static [f64],
    y: (&'static str, &'static str, fn(&Run) -> f64),
    shape: fn(&Swept) -> Vec<Shape>,
    /// What is told of reads on snapshots besides, if they are watched.
    watch: Option<fn(&Watched<'_>, &mut Summary)>,
    notes: &'static [&'static str],
}

/// What a sweep came to, a series for each line.
#[derive(Debug)]
struct Swept {
    /// On one node.
    here: Vec<Series>,
    /// On two, by share of transactions on both.
    across: Vec<Series>,
}

/// The runs of a sweep whose reads on snapshots were watched.
#[derive(Debug)]
struct Watched<'a> {
    sweep: &'a Sweep,
    /// By line and place.
    all: Vec<(&'a str, f64, Vec<&'a SnapshotsOfRun>)>,
}

/// A column of a table of them: its name, and what is in it.
type Column = (&'static str, fn(&SnapshotsOfRun) -> f64);

impl<'a> Watched<'a> {
    fn of(sweep: &'a Sweep, measured: &'a Measured) -> Watched<'a> {
        let mut all: Vec<(&str, f64, Vec<&SnapshotsOfRun>)> = Vec::new();
        for (line, x, run) in measured.runs.iter().filter(|(_, _, run)| run.passed()) {
            let Some(snapshots) = &run.snapshots else { continue };
            match all.iter_mut().find(|(name, at, _)| name == line && at == x) {
                Some((_, _, of_point)) => of_point.push(snapshots),
                None => all.push((line, *x, vec![snapshots])),
            }
        }
        Watched { sweep, all }
    }

    /// A row for each line and place, with medians.
    fn table(&self, caption: &str, columns: &[Column]) -> Table {
        let mut table = Table::new(caption).text_column("reads").number_column(self.sweep.x.0);
        for (name, _) in columns {
            table = table.number_column(name);
        }
        for (line, x, runs) in &self.all {
            let mut row = vec![Cell::text(*line), Cell::number(si(*x))];
            let of = |value: fn(&SnapshotsOfRun) -> f64| median(runs.iter().map(|run| value(run)));
            row.extend(columns.iter().map(|(_, value)| Cell::number(si(of(*value)))));
            table.row(row);
        }
        table
    }
}

/// The name of a line on two nodes.
fn across(line: &str, multi_partition: f64) -> String {
    format!("{line}, {}% on both nodes", si(multi_partition * 100.0))
}

impl Sweep {
    fn workload(&self, size: Size, x: f64, nodes: usize, share: f64) -> anyhow::Result<Arc<Ycsb>> {
        let mut parameters = parameters(size);
        (self.set)(&mut parameters, x);
        (parameters.partitions, parameters.multi_partition) = (nodes, share);
        parameters.partitions_per_txn = if share > 0.0 { nodes } else { 1 };
        Ok(Arc::new(Ycsb::new(parameters)?))
    }

    fn plot(&self, title: String, series: Vec<Series>) -> Plot {
        Plot {
            title,
            subtitle: self.subtitle.to_owned(),
            x: Axis::new(self.x.0, self.x.1, Scale::Linear),
            y: Axis::new(self.y.0, self.y.1, Scale::Linear),
            kind: Kind::Lines,
            series,
            notes: Vec::new(),
        }
    }
}

impl Experiment for Sweep {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let mut points = Vec::new();
        for &x in self.values {
            let workload = self.workload(size, x, 1, 0.0)?;
            for &(line, reads) in self.lines {
                points.push(FigurePoint::reading(line, x, (cores, Grid::ALONE), reads, workload.clone()));
            }
            for &share in self.multi_partition {
                let workload = self.workload(size, x, 2, share)?;
                for &(line, reads) in self.lines {
                    let grid = Grid { delay: Delay::Even(DELAY), ..Grid::of(2) };
                    points.push(FigurePoint::reading(
                        &across(line, share),
                        x,
                        (1, grid),
                        reads,
                        workload.clone(),
                    ));
                }
            }
        }
        for FigurePoint { x, point, .. } in &mut points {
            point.rate = self.rate.map(|rate| rate(*x));
            point.watch = self.watch.is_some() && point.system.reads_on_snapshots();
        }
        Ok(points)
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let series = |line: &str| measured.series(line, self.y.2);
        let swept = Swept {
            here: self.lines.iter().map(|(line, _)| series(line)).collect(),
            across: {
                let shares = self.multi_partition.iter();
                shares
                    .flat_map(|share| self.lines.iter().map(|(line, _)| series(&across(line, *share))))
                    .collect()
            },
        };
        let ours = swept.here.iter().chain(&swept.across).flat_map(|line| {
            let points = line.points.iter();
            points.map(|(x, y)| {
                let what = format!("{}, {} {} {}", line.name, self.x.0, si(*x), self.x.1);
                Beside::new(what.trim_end(), "none: a question of ours", format!("{} {}", si(*y), self.y.1))
            })
        });
        let mut told = Summary {
            beside: ours.collect(),
            shapes: (self.shape)(&swept),
            notes: self.notes.iter().map(|note| (*note).to_owned()).collect(),
            ..Summary::default()
        };
        told.plots.push(self.plot(self.title.to_owned(), swept.here));
        if !swept.across.is_empty() {
            told.plots.push(self.plot(format!("{}, on two nodes", self.title), swept.across));
        }
        if let Some(tell) = self.watch {
            tell(&Watched::of(self, measured), &mut told);
        }
        told
    }
}

const BOTH: &[(&str, Reads)] = &[(ORDERED, Reads::Ordered), (SNAPSHOT, Reads::Previous)];
const TXN: (&str, &str, fn(&Run) -> f64) = ("throughput", "txn/s", |run| run.txn_per_s);

/// Latencies of a kind of transactions, or of all where there is but one kind.
fn latency_of<'a>(run: &'a Run, kind: &str) -> &'a Latency {
    run.kinds.get(kind).map_or(&run.latency_us, |of_kind| &of_kind.latency_us)
}

/// The kinds of YCSB's transactions.
const READS: &str = "read-only";
const WRITES: &str = "update";

/// A series of those of a figure.
fn line(series: &[Series], number: usize) -> Option<&Series> {
    series.get(number).filter(|series| !series.points.is_empty())
}

/// The second line over the first at a place.
fn ratio(series: &[Series], x: f64) -> Option<f64> {
    let (base, other) = (line(series, 0)?.at(x)?, line(series, 1)?.at(x)?);
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

/// One line is no higher than another at its first place.
fn no_higher(must: &str, series: &[Series], (lower, higher): (usize, usize)) -> Shape {
    let at = |number| line(series, number).and_then(|line| Some((&line.name, line.points.first()?.1)));
    match (at(lower), at(higher)) {
        (Some((a, a_us)), Some((b, b_us))) => {
            Shape::new(must, b_us >= a_us, format!("{a} {}, {b} {} us", si(a_us), si(b_us)))
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
    multi_partition: &[],
    y: TXN,
    shape: |swept| {
        let none = ratio(&swept.here, 0.0);
        let must = "without reads, what keeps older contents does at least 0.9 of what does not";
        vec![
            Shape::at_least(must, none, 0.9),
            ratio_grows("the ratio to locked reads grows with the share of reads", &swept.here, 0.0, 100.0),
        ]
    },
    watch: None,
    notes: &["At 0% both lines do the same: while nobody reads nothing is kept for readers."],
};

/// This share of the transactions read so many records, and the others increment 10, so many of them hot.
fn reads_among_writers(parameters: &mut Parameters, share: f64, records: usize, hot: usize) {
    parameters.read_only = share;
    parameters.read_only_ops = Some(records);
    parameters.read_only_hot_ops = Some(1);
    (parameters.ops_per_txn, parameters.writes_per_txn, parameters.hot_ops) = (10, 10, hot);
}

/// Reads on snapshots by default.
const SESSION: &str = "PaxFlow, reads of a session";

/// How many transactions that only read are asked for a second in E2 and E3.
const READS_PER_S: f64 = 2_000.0;

/// E2: the hot records are written meanwhile.
pub static E2: Sweep = Sweep {
    title: "Reads beside hot writers",
    subtitle: "2,000 reads a second of 1 hot and 99 other records; writers increment 10 hot records; open loop",
    lines: &[(ORDERED, Reads::Ordered), (SNAPSHOT, Reads::Previous), (SESSION, Reads::Session)],
    x: ("writers", "txn/s"),
    values: &[0.0, 1_000.0, 4_000.0, 8_000.0],
    set: |parameters, writers| {
        reads_among_writers(parameters, READS_PER_S / (READS_PER_S + writers), 100, 10);
    },
    rate: Some(|writers| READS_PER_S + writers),
    multi_partition: &[0.0, 0.2],
    y: ("p99 of what only reads", "us", |run| latency_of(run, READS).p99 as f64),
    shape: |swept| {
        let places = [
            ("on one node", &swept.here[..]),
            ("on two nodes, none on both", swept.across.get(..3).unwrap_or_default()),
            ("on two nodes, 20% on both", swept.across.get(3..).unwrap_or_default()),
        ];
        let reads = [("the previous epoch", 1), ("a session's epoch", 2)];
        let flat = |on: &str, of: &str| {
            format!("{on}, p99 of reads of {of} is flat: at most 1.3 x that without writers")
        };
        places
            .iter()
            .flat_map(|(on, lines)| {
                reads.map(|(of, number)| grows_at_most(&flat(on, of), line(lines, number), 1.3))
            })
            .collect()
    },
    watch: None,
    notes: &[
        "On one node every transaction uses all shards. A locked read waits for the writers before it; one on a snapshot \
         shares the processor with them and nothing else, and on a machine with few cores that shows too.",
        "Of the previous epoch is what was closed last, and has perhaps to be executed yet, on two nodes with what the other has \
         to say of it. A session's reads, which are the default, take what is executed already (decision 16).",
        "On two nodes each partition has 10 hot records, and 0.25 ms are added to every message between them. Nodes share the \
         cores of this machine.",
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
    multi_partition: &[],
    y: ("p50 of what only reads", "us", |run| latency_of(run, READS).p50 as f64),
    shape: |swept| {
        let longer = |must: &str, places: (usize, usize)| no_higher(must, &swept.here, places);
        vec![
            longer("strict reads wait longer than those of the previous epoch", (0, 2)),
            longer("those of the previous epoch wait longer than those of a session", (1, 0)),
        ]
    },
    watch: Some(tell_staleness),
    notes: &[
        "paxflow.md has previous before session. Ours is the other way about: a session's reads take the last state that is \
         executed on the node and wait for nothing, those of the previous epoch the last one that was closed, which the \
         shards may still have to execute (decision 16).",
        "On one node the last epoch that was closed holds all that anybody has been answered, so reads of it are fresh.",
        "A read is stale by as long as somebody, when it was asked, had been answered with a change that it does not hold. \
         Ordered reads miss nothing, by their place in the order.",
    ],
};

/// How much of what was read missed what for how long.
fn tell_staleness(watched: &Watched<'_>, told: &mut Summary) {
    let of = |mode: &str| -> Vec<&SnapshotsOfRun> {
        watched
            .all
            .iter()
            .filter(|(line, _, _)| *line == mode)
            .flat_map(|(_, _, runs)| runs.clone())
            .collect()
    };
    let stale = |runs: &[&SnapshotsOfRun]| runs.iter().map(|run| run.staleness_us.max).max();
    let must = "no strict read misses what anybody had been answered with when it was asked";
    told.shapes.push(match stale(&of("strict")) {
        Some(most) => Shape::new(must, most == 0, format!("the stalest misses {most} us")),
        None => Shape::unknown(must, "not measured"),
    });
    let fresh = |mode: &str| {
        let runs = of(mode);
        (!runs.is_empty()).then(|| median(runs.iter().map(|run| run.fresh)) * 100.0)
    };
    let must = "strict reads are fresher than those of the previous epoch and of a session";
    told.shapes.push(match (fresh("strict"), fresh("previous"), fresh("session")) {
        (Some(strict), Some(previous), Some(session)) => Shape::new(
            must,
            strict >= previous && strict >= session,
            format!("fresh: strict {strict:.1}%, previous {previous:.1}%, session {session:.1}%"),
        ),
        _ => Shape::unknown(must, "not measured"),
    });
    let most = watched.all.iter().map(|(_, x, _)| *x).fold(0.0, f64::max);
    let cdf = |(line, _, runs): &(&str, f64, Vec<&SnapshotsOfRun>)| {
        // Of the repetitions, that in the middle; what is fresh stands at the least that an axis of orders can show.
        let mut runs = runs.clone();
        runs.sort_by(|a, b| a.fresh.total_cmp(&b.fresh));
        let points = runs[runs.len() / 2].staleness_cdf.iter();
        Series::measured(*line, points.map(|(us, share)| ((*us).max(1) as f64, share * 100.0)).collect())
    };
    told.plots.push(Plot {
        title: "Staleness of what was read".to_owned(),
        subtitle: format!("the share of reads that was no staler, beside {} writers a second", si(most)),
        x: Axis::new("stale for at most", "us", Scale::Log),
        y: Axis::new("reads", "%", Scale::Linear),
        kind: Kind::Lines,
        series: watched.all.iter().filter(|(_, x, _)| *x == most).map(cdf).collect(),
        notes: vec!["What is fresh stands at 1 us.".to_owned()],
    });
    let columns: [Column; 6] = [
        ("reads", |run| run.reads as f64),
        ("fresh %", |run| run.fresh * 100.0),
        ("stale p50 us", |run| run.staleness_us.p50 as f64),
        ("p95 us", |run| run.staleness_us.p95 as f64),
        ("p99 us", |run| run.staleness_us.p99 as f64),
        ("max us", |run| run.staleness_us.max as f64),
    ];
    told.tables.push(watched.table("How stale what was read was", &columns));
}

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
    multi_partition: &[],
    y: ("writers' p99", "us", |run| latency_of(run, WRITES).p99 as f64),
    shape: |swept| {
        let must = "beside long reads writers' p99 is no worse on snapshots than with locks";
        let worst = ratio(&swept.here, 0.5);
        vec![match worst {
            Some(ratio) => Shape::new(must, ratio <= 1.05, format!("{ratio:.2} x at 0.5%")),
            None => Shape::unknown(must, "not measured"),
        }]
    },
    watch: Some(tell_kept),
    notes: &["In a closed loop the writers wait for the processor that long reads use, in either way."],
};

/// How many contents were kept of a record while readers held old states.
fn tell_kept(watched: &Watched<'_>, told: &mut Summary) {
    let kept: Vec<&KeptOfRun> =
        watched.all.iter().flat_map(|(_, _, runs)| runs.iter().map(|run| &run.kept)).collect();
    let must =
        "of a record no more contents are kept than epochs that readers look back, and the one that it holds";
    told.shapes.push(match kept.iter().max_by(|a, b| a.max.total_cmp(&b.max)) {
        Some(most) => Shape::new(
            must,
            kept.iter().all(|kept| kept.max <= kept.epochs),
            format!("at most {} and that one, for {} epochs", si(most.max), si(most.epochs)),
        ),
        None => Shape::unknown(must, "not measured"),
    });
    let columns: [Column; 6] = [
        ("looks", |run| run.kept.looks as f64),
        ("of a record, mean", |run| 1.0 + run.kept.per_record),
        ("of a changed one, mean", |run| 1.0 + run.kept.per_changed_record),
        ("p99", |run| 1.0 + run.kept.p99),
        ("max", |run| 1.0 + run.kept.max),
        ("epochs looked back, max", |run| run.kept.epochs),
    ];
    let caption = "Versions of a record while readers hold old states, the one that it holds included";
    told.tables.push(watched.table(caption, &columns));
}

/// E5: how many records.
pub static E5: Sweep = Sweep {
    title: "Records of a read",
    subtitle: "nothing but reads, 1 hot record in each; one node",
    lines: BOTH,
    x: ("operations per transaction", ""),
    values: &[4.0, 16.0, 100.0],
    set: |parameters, ops| parameters.ops_per_txn = ops as usize,
    rate: None,
    multi_partition: &[],
    y: TXN,
    shape: |swept| {
        let must = "the ratio to locked reads grows with the number of operations";
        vec![ratio_grows(must, &swept.here, 4.0, 100.0)]
    },
    watch: None,
    notes: &[],
};
