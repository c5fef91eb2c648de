//! Questions of ours about reads on snapshots (paxflow.md, section 7, E1 to E5): what share of them, beside whom, how
//! fresh, how long and how many records. Each has Calvin's locked reads beside it.
//!
//! The node has every core, and a transaction uses the records of all of its shards. Where the question is of several
//! partitions too, there are two nodes with one each, and an injected delay between them. Staleness is measured by those
//! who ask, and what is kept for reads by the shards, each tenth of a second.

use std::sync::Arc;

use ordain_model::{Micros, Reads};
use ordain_workload::Workload;
use ordain_workload::ycsb::Parameters;

use super::contest::grid;
use super::experiment::{Dimension, Experiment, LINEAR, Line, PICTURE, Picture, Values, axis};
use super::paxflow::{ORDERED, SNAPSHOT, parameters};
use super::qstore::ycsb;
use super::{Beside, Measured, Shape, Size, Summary};
use crate::plot::{Kind, Plot, Scale, Series, si};
use crate::report::{KeptOfRun, Latency, Run, SnapshotsOfRun, grouped, median};
use crate::table::{Cell, Table};

/// One way between two nodes (paxflow.md, section 7).
const DELAY: Micros = Micros(250);
/// Reads on snapshots by default.
const SESSION: &str = "PaxFlow, reads of a session";
/// Marks lines on two nodes.
const ACROSS: &str = "on both nodes";

fn across(line: &str, multi_partition: f64) -> String {
    format!("{line}, {}% {ACROSS}", si(multi_partition * 100.0))
}

/// The workload of a line: the parameters of a place, on the partitions of the line's nodes.
fn reads(line: &Line, parameters: Parameters) -> anyhow::Result<Arc<dyn Workload>> {
    let partitions = line.grid.nodes.into();
    let partitions_per_txn = if line.knob > 0.0 { partitions } else { 1 };
    ycsb(Parameters { partitions, partitions_per_txn, multi_partition: line.knob, ..parameters })
}

/// Locked reads, and those of the epoch before.
fn both(cores: usize) -> Vec<Line> {
    [(ORDERED, Reads::Ordered), (SNAPSHOT, Reads::Previous)]
        .map(|(name, reads)| Line::node(name, cores).reading(reads))
        .into()
}

const READS: Experiment =
    Experiment { lines: both, plots: &[PICTURE], more: every_place, is_ours: true, ..Experiment::PLAIN };

/// Sets every measured place beside the paper's missing number.
fn every_place(figure: &Experiment, measured: &Measured, summary: &mut Summary) {
    let Some(Picture { y: (_, unit, _), series, .. }) = figure.plots.first() else { return };
    let (x_name, x_unit, _) = figure.x;
    let lines = measured.lines().into_iter().map(|line| series(measured, line)).collect::<Vec<_>>();
    let (across, here): (Vec<_>, Vec<_>) = lines.into_iter().partition(|line| line.name.ends_with(ACROSS));
    for line in here.into_iter().chain(across) {
        summary.beside.extend(line.points.iter().map(|(x, y)| {
            let what = format!("{}, {x_name} {} {x_unit}", line.name, si(*x));
            Beside::new(what.trim_end(), "none: a question of ours", format!("{} {unit}", si(*y)))
        }));
    }
}

/// Latencies of a kind of transactions, or of all where there is but one kind.
pub fn latency_of<'a>(run: &'a Run, kind: &str) -> &'a Latency {
    run.kinds.get(kind).map_or(&run.latency_us, |of_kind| &of_kind.latency_us)
}

fn reads_p99(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| latency_of(run, "read-only").p99 as f64)
}

fn reads_p50(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| latency_of(run, "read-only").p50 as f64)
}

fn writes_p99(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| latency_of(run, "update").p99 as f64)
}

/// Snapshot reads over locked ones at a place, by some figure of lines.
fn ratio(measured: &Measured, of: fn(&Measured, &str) -> Series, x: f64) -> Option<f64> {
    let (base, other) = (of(measured, ORDERED).at(x)?, of(measured, SNAPSHOT).at(x)?);
    (base > 0.0).then_some(other / base)
}

/// The ratio of snapshot reads to locked ones at one place is larger than at another.
fn ratio_grows(must: &str, measured: &Measured, from: f64, to: f64) -> Shape {
    let both = ratio(measured, Measured::clock, from).zip(ratio(measured, Measured::clock, to));
    let text = |first, last| format!("{first:.2} at {}, {last:.2} at {}", si(from), si(to));
    Shape::of(must, both.map(|(first, last)| (last >= first, text(first, last))))
}

/// E1: the share of transactions that only read.
pub static E1: Experiment = Experiment {
    title: "The share of read-only transactions",
    subtitle: "100 records a transaction; those that write increment half of them; one node",
    x: ("read-only transactions", "%", LINEAR),
    values: Values::At(&[0.0, 50.0, 80.0, 95.0, 99.0, 100.0]),
    setting: |size, percent, line| {
        reads(line, Parameters { writes_per_txn: 50, read_only: percent / 100.0, ..parameters(size) })
    },
    shapes: |m| {
        let must = "without reads, what keeps older contents does at least 0.9 of what does not";
        vec![
            Shape::at_least(must, ratio(m, Measured::clock, 0.0), 0.9),
            ratio_grows("the ratio to locked reads grows with the share of reads", m, 0.0, 100.0),
        ]
    },
    notes: &["At 0% both lines do the same: while nothing reads nothing is kept for readers."],
    ..READS
};

/// Parameters by which a share of the transactions read so many records, and the others increment 10, some of them hot.
fn among_writers(size: Size, read_only: f64, records: usize, hot_ops: usize) -> Parameters {
    Parameters {
        read_only,
        read_only_ops: Some(records),
        read_only_hot_ops: Some(1),
        ops_per_txn: 10,
        writes_per_txn: 10,
        hot_ops,
        ..parameters(size)
    }
}

/// Read-only transactions that are asked for a second in E2 and E3.
const READS_PER_S: f64 = 2_000.0;

fn beside_writers(size: Size, writers: f64, line: &mut Line) -> anyhow::Result<Arc<dyn Workload>> {
    line.rate = Some(READS_PER_S + writers);
    reads(line, among_writers(size, READS_PER_S / (READS_PER_S + writers), 100, 10))
}

/// The lines of E2: their names and how they read.
const SNAPSHOTS: [(&str, Reads); 3] =
    [(ORDERED, Reads::Ordered), (SNAPSHOT, Reads::Previous), (SESSION, Reads::Session)];
const READS_P99: Picture =
    Picture { y: ("p99 of what only reads", "us", LINEAR), series: reads_p99, ..PICTURE };
const WRITERS: Dimension = ("writers", "txn/s", LINEAR);

/// E2: the hot records are written meanwhile.
pub static E2: Experiment = Experiment {
    title: "Reads beside hot writers",
    subtitle: "2,000 reads a second of 1 hot and 99 other records; writers increment 10 hot records; open loop",
    x: WRITERS,
    values: Values::At(&[0.0, 1_000.0, 4_000.0, 8_000.0]),
    lines: |cores| {
        let here = SNAPSHOTS.map(|(name, reads)| Line::node(name, cores).reading(reads));
        let on_two = |share: f64| {
            SNAPSHOTS.map(|(name, reads)| {
                let line = Line { grid: grid(2, DELAY), ..Line::node(across(name, share), 1) };
                line.knob(share).reading(reads)
            })
        };
        [here, on_two(0.0), on_two(0.2)].concat()
    },
    setting: beside_writers,
    plots: &[
        Picture { has: |line| !line.ends_with(ACROSS), ..READS_P99 },
        Picture { suffix: ", on two nodes", has: |line| line.ends_with(ACROSS), ..READS_P99 },
    ],
    shapes: |m| {
        let places = [
            ("on one node", None),
            ("on two nodes, none on both", Some(0.0)),
            ("on two nodes, 20% on both", Some(0.2)),
        ];
        let lines = [("the previous epoch", SNAPSHOT), ("a session's epoch", SESSION)];
        let flat = |(place, share): (&str, Option<f64>)| {
            lines.map(|(epoch, line)| {
                let must =
                    format!("{place}, p99 of reads of {epoch} is flat: at most 1.3 x that without writers");
                let line = share.map_or_else(|| line.to_owned(), |share| across(line, share));
                Shape::grows_at_most(must, &reads_p99(m, &line), 1.3)
            })
        };
        places.map(flat).concat()
    },
    notes: &[
        "On one node every transaction uses all shards. A locked read waits for the writers before it; one on a snapshot \
         shares the processor with them and nothing else, and on a machine with few cores that shows too.",
        "Of the previous epoch is what was closed last, and has perhaps to be executed yet, on two nodes with the other one's \
         remote results. A session's reads, which are the default, take what is executed already (decision 16).",
        "On two nodes each partition has 10 hot records, and 0.25 ms are added to every message between them. Nodes share the \
         cores of this machine.",
    ],
    ..READS
};

/// E3: how fresh.
pub static E3: Experiment = Experiment {
    title: "Freshness modes",
    subtitle: "2,000 reads a second of 100 records beside writers of the 10 hot ones; open loop",
    x: WRITERS,
    values: Values::At(&[1_000.0, 4_000.0]),
    lines: |cores| {
        [
            ("previous", Reads::Previous),
            ("session", Reads::Session),
            ("strict", Reads::Strict),
            ("ordered", Reads::Ordered),
        ]
        .map(|(name, reads)| Line { watches_reads: true, ..Line::node(name, cores).reading(reads) })
        .into()
    },
    setting: beside_writers,
    plots: &[Picture { y: ("p50 of what only reads", "us", LINEAR), series: reads_p50, ..PICTURE }],
    shapes: |m| {
        let first = |line: &str| reads_p50(m, line).points.first().map(|(_, us)| *us);
        let longer = |must: &str, low: &str, high: &str| {
            let text = |a, b| format!("{low} {}, {high} {} us", si(a), si(b));
            Shape::of(must, first(low).zip(first(high)).map(|(a, b)| (b >= a, text(a, b))))
        };
        let mut shapes = vec![
            longer("strict reads wait longer than those of the previous epoch", "previous", "strict"),
            longer("those of the previous epoch wait longer than those of a session", "session", "previous"),
        ];
        shapes.extend(freshness(m));
        shapes
    },
    notes: &[
        "paxflow.md has previous before session. Ours is the other way about: a session's reads take the last state that is \
         executed on the node and wait for nothing, those of the previous epoch the last one that was closed, which the \
         shards may still have to execute (decision 16).",
        "On one node the last epoch that was closed holds all that any client has been answered, so reads of it are fresh.",
        "A read is stale by as long as a client, when it was asked, had been answered with a change that it does not hold. \
         Ordered reads miss nothing, by their place in the order.",
    ],
    more: |figure, m, summary| {
        every_place(figure, m, summary);
        summary.plots.push(staleness(&watched(m), |most| format!("beside {} writers a second", si(most))));
        let columns: [Column; 6] = [
            ("reads", |run| run.reads as f64),
            ("fresh %", |run| run.fresh * 100.0),
            ("stale p50 us", |run| run.staleness_us.p50 as f64),
            ("p95 us", |run| run.staleness_us.p95 as f64),
            ("p99 us", |run| run.staleness_us.p99 as f64),
            ("max us", |run| run.staleness_us.max as f64),
        ];
        summary.tables.push(table("How stale what was read was", figure, &watched(m), &columns));
    },
    ..READS
};

/// The runs whose reads on snapshots were watched, by line and place.
pub type Watched<'a> = Vec<((&'a str, f64), Vec<&'a SnapshotsOfRun>)>;

/// A column of a table of them: its name, and what is in it.
pub type Column = (&'static str, fn(&SnapshotsOfRun) -> f64);

pub fn watched(measured: &Measured) -> Watched<'_> {
    let passed = measured.runs.iter().filter(|(_, _, run)| run.passed());
    grouped(passed.filter_map(|(line, x, run)| Some(((line.as_str(), *x), run.snapshots.as_ref()?))))
}

/// A row for each line and place, with medians.
pub fn table(caption: &str, figure: &Experiment, watched: &Watched<'_>, columns: &[Column]) -> Table {
    let names = columns.iter().map(|(name, _)| *name);
    let mut table =
        Table::new(caption).text_columns(["reads"]).number_columns([figure.x.0].into_iter().chain(names));
    for ((line, x), runs) in watched {
        let of = |value: fn(&SnapshotsOfRun) -> f64| median(runs.iter().map(|run| value(run)));
        let figures = [*x].into_iter().chain(columns.iter().map(|(_, value)| of(*value)));
        table.row([Cell::text(*line)].into_iter().chain(figures.map(|figure| Cell::number(si(figure)))));
    }
    table
}

/// Requires that strict reads miss nothing, and are fresher than others.
fn freshness(measured: &Measured) -> [Shape; 2] {
    let watched = watched(measured);
    let of = |mode: &str| {
        let of_mode = watched.iter().filter(|((line, _), _)| *line == mode);
        of_mode.flat_map(|(_, runs)| runs.clone()).collect::<Vec<_>>()
    };
    let stalest = of("strict").iter().map(|run| run.staleness_us.max).max();
    let fresh = |mode: &str| {
        let runs = of(mode);
        (!runs.is_empty()).then(|| median(runs.iter().map(|run| run.fresh)) * 100.0)
    };
    let all = fresh("strict").zip(fresh("previous")).zip(fresh("session"));
    [
        Shape::of(
            "no strict read misses what any client had been answered with when it was asked",
            stalest.map(|most| (most == 0, format!("the stalest misses {most} us"))),
        ),
        Shape::of(
            "strict reads are fresher than those of the previous epoch and of a session",
            all.map(|((strict, previous), session)| {
                let text =
                    format!("fresh: strict {strict:.1}%, previous {previous:.1}%, session {session:.1}%");
                (strict >= previous && strict >= session, text)
            }),
        ),
    ]
}

/// The share of reads that was no staler than so much, at the last place.
pub fn staleness(watched: &Watched<'_>, place: fn(f64) -> String) -> Plot {
    let most = watched.iter().map(|((_, x), _)| *x).fold(0.0, f64::max);
    let cdf = |((line, _), runs): &((&str, f64), Vec<&SnapshotsOfRun>)| {
        // Of the repetitions, that in the middle; what is fresh stands at the least that an axis of orders can show.
        let mut runs = runs.clone();
        runs.sort_by(|a, b| a.fresh.total_cmp(&b.fresh));
        let points = runs[runs.len() / 2].staleness_cdf.iter();
        Series::measured(*line, points.map(|(us, share)| ((*us).max(1) as f64, share * 100.0)).collect())
    };
    Plot {
        title: "Staleness of what was read".to_owned(),
        subtitle: format!("the share of reads that was no staler, {}", place(most)),
        x: axis(("stale for at most", "us", || Scale::Log)),
        y: axis(("reads", "%", LINEAR)),
        kind: Kind::Lines,
        series: watched.iter().filter(|((_, x), _)| *x == most).map(cdf).collect(),
        notes: vec!["What is fresh stands at 1 us.".to_owned()],
    }
}

/// E4: long reads.
pub static E4: Experiment = Experiment {
    title: "Writers beside long reads",
    subtitle: "reads of 10,000 records among writers of 10; one node, closed loop",
    x: ("long reads", "% of transactions", LINEAR),
    values: Values::At(&[0.0, 0.1, 0.5]),
    lines: |cores| both(cores).into_iter().map(|line| Line { watches_reads: true, ..line }).collect(),
    setting: |size, percent, line| reads(line, among_writers(size, percent / 100.0, 10_000, 1)),
    plots: &[Picture { y: ("writers' p99", "us", LINEAR), series: writes_p99, ..PICTURE }],
    shapes: |m| {
        let must = "beside long reads writers' p99 is no worse on snapshots than with locks";
        let worst = ratio(m, writes_p99, 0.5);
        let watched = watched(m);
        let kept: Vec<&KeptOfRun> =
            watched.iter().flat_map(|(_, runs)| runs.iter().map(|run| &run.kept)).collect();
        let most = kept.iter().max_by(|a, b| a.max.total_cmp(&b.max));
        let bounded = kept.iter().all(|kept| kept.max <= kept.epochs);
        let text = |most: &KeptOfRun| {
            format!("at most {} and that one, for {} epochs", si(most.max), si(most.epochs))
        };
        vec![
            Shape::of(must, worst.map(|ratio| (ratio <= 1.05, format!("{ratio:.2} x at 0.5%")))),
            Shape::of(
                "of a record no more contents are kept than epochs that readers look back, and the one that it holds",
                most.map(|most| (bounded, text(most))),
            ),
        ]
    },
    notes: &["In a closed loop the writers wait for the processor that long reads use, in either way."],
    more: |figure, m, summary| {
        every_place(figure, m, summary);
        let columns: [Column; 6] = [
            ("looks", |run| run.kept.looks as f64),
            ("of a record, mean", |run| 1.0 + run.kept.per_record),
            ("of a changed one, mean", |run| 1.0 + run.kept.per_changed_record),
            ("p99", |run| 1.0 + run.kept.p99),
            ("max", |run| 1.0 + run.kept.max),
            ("epochs looked back, max", |run| run.kept.epochs),
        ];
        let caption = "Versions of a record while readers hold old states, the one that it holds included";
        summary.tables.push(table(caption, figure, &watched(m), &columns));
    },
    ..READS
};

/// E5: how many records.
pub static E5: Experiment = Experiment {
    title: "Records of a read",
    subtitle: "nothing but reads, 1 hot record in each; one node",
    x: ("operations per transaction", "", LINEAR),
    values: Values::At(&[4.0, 16.0, 100.0]),
    setting: |size, ops, line| reads(line, Parameters { ops_per_txn: ops as usize, ..parameters(size) }),
    shapes: |m| {
        vec![ratio_grows("the ratio to locked reads grows with the number of operations", m, 4.0, 100.0)]
    },
    ..READS
};
