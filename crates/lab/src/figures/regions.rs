//! The figures of the regions paper (regions.md, section 7): each region writes its own records with one of three concurrency controls.
//!
//! Two regions have a server with two threads each, 16 clients whose records are at home there, and three storage nodes that keep its log. Each
//! region applies the other's log to its view, as in the paper; no transaction is of both. A line is drawn for every engine whose partitions are
//! regions. Transactions of several regions, which the paper has not measured, are in [`between`], and TPC-C in [`homed`].

mod between;
mod homed;

use std::sync::Arc;

use ordain_engines::registry::{self, option};
use ordain_family::Storage;
use ordain_model::{Micros, OptionValue};
use ordain_workload::Workload;
use ordain_workload::micro::{Micro, Regions as Parameters};

pub use between::{F1, F2, F3};
pub use homed::F5;

use super::experiment::{
    Dimension, Experiment, FigurePoint, LINEAR, Line, Logging, PICTURE, Picture, Values,
};
use super::psi::{in_use, paired, rate, with_spread};
use super::summary::or_not;
use super::verdict::Claim;
use super::{Measured, Shape};
use crate::agreement::Agreement;
use crate::bench::Durability;
use crate::embedded::{Delay, Fault, Grid, Regions};
use crate::plot::{Kind, Scale, Series};
use crate::report::Run;
use crate::table::{Cell, Table};

const LOCKS: &str = "2PL";
const SILO: &str = "Silo";
const MVOCC: &str = "MVOCC";
/// The names of the lines, each with its engine.
const NAMES: [(&str, &str); 3] = [(LOCKS, "regions-2pl"), (SILO, "regions-silo"), (MVOCC, "regions-mvocc")];
/// Stands behind the names of lines with the paper's way to commit and to try again.
const AS_IN_PAPER: &str = ", as in the paper";

/// Regions, as in the paper.
const REGIONS: u16 = 2;
/// Threads of a server.
const EXECUTORS: usize = 2;
/// Clients of a region: the paper's threads.
const CLIENTS: usize = 16;
/// From a server to its storage nodes, one way: the sheet's acknowledgement takes 0.2 to 1 ms.
const NEAR: Micros = Micros(250);
/// From one region to the other, one way, where the figure is not about that.
const BETWEEN: Micros = Micros(25_000);

/// Places of the axis of contention.
const HIGH: f64 = 0.0;
const LOW: f64 = 1.0;
/// The records of a region: the paper's hot ones, and a tenth of its others, which is enough for two transactions to hardly ever meet.
const RECORDS: [u64; 2] = [50, 100_000];
const CONTENTION: Dimension =
    ("contention", "", || Scale::Categories(["high: 50 records", "low: 100 K"].map(String::from).into()));

/// The paper's record of the log: JSON, for ten writes.
const JSON_BYTES: f64 = 320.0;
/// The share of it that ours may have.
const SHARE_OF_JSON: f64 = 0.4;
/// The cores that may be in use for waiting to count rather than work.
const IN_USE_MAX: f64 = 0.7;

/// The engines whose partitions are regions, each with the name of its line.
fn engines() -> Vec<(String, &'static str)> {
    let engines = registry::engines().filter(|engine| engine.can().has_regions);
    let named = |name: &'static str| {
        let known = NAMES.iter().find(|(_, engine)| *engine == name);
        (known.map_or(name, |(line, _)| line).to_owned(), name)
    };
    engines.map(|engine| named(engine.name())).collect()
}

/// The grid of so many regions.
fn grid(nodes: u16, storage: Storage, between: Micros, fault: Fault) -> Grid {
    let regions = Regions { storage, count: 3, between, fault };
    Grid { delay: Delay::Even(NEAR), regions: Some(regions), ..Grid::of(nodes) }
}

/// The grid of so many regions whose storage is this far from their servers, one way, and others so far, there and back (ms).
fn spread(nodes: u16, near: Micros, round_trip: f64) -> Grid {
    let between = Micros((round_trip * 500.0) as u64);
    Grid { delay: Delay::Even(near), ..grid(nodes, Storage::Quorum, between, Fault::None) }
}

/// A line of an engine on so many regions.
fn line(name: impl Into<String>, engine: &str, regions: u16, clients: usize) -> Line {
    let grid = grid(regions, Storage::Quorum, BETWEEN, Fault::None);
    let line = Line::cluster(name, grid, clients * usize::from(regions)).by(engine);
    Line { threads: EXECUTORS, ..line }
}

/// A line for each engine.
fn lines(_: usize) -> Vec<Line> {
    engines().into_iter().map(|(name, engine)| line(name, engine, REGIONS, CLIENTS)).collect()
}

/// The line with effects for others once the log has them, and with another attempt at once.
fn as_in_paper(of: Line) -> Line {
    let mut paper = Line { name: format!("{}{AS_IN_PAPER}", of.name), ..of };
    for (name, value) in [("early-apply", OptionValue::Bool(false)), ("backoff", OptionValue::Name("none"))] {
        let info = option(name).expect("an engine has this option");
        if paper.ours.options.has(info) {
            paper = paper.with(info, value);
        }
    }
    paper
}

/// Transactions of so many operations on a region's records, of which a share only reads.
fn workload(
    line: &Line,
    contention: f64,
    ops_per_txn: usize,
    read_only: f64,
) -> anyhow::Result<Arc<dyn Workload>> {
    let records = RECORDS[contention as usize];
    let regions = line.grid.nodes.into();
    Ok(Arc::new(Micro::regions(Parameters {
        regions,
        records,
        ops_per_txn,
        read_only,
        ..Parameters::default()
    })?))
}

/// The points of all engines as in the paper, on few records.
fn contended_as_in_paper(ops: usize) -> anyhow::Result<Vec<FigurePoint>> {
    let point = |of| {
        let line = as_in_paper(of);
        let workload = workload(&line, HIGH, ops, 0.0)?;
        Ok(line.at(HIGH, workload))
    };
    lines(0).into_iter().map(point).collect()
}

/// A claim about the throughput of one line over that of another.
fn over(m: &Measured, must: &str, [one, other]: [&str; 2], x: f64, claim: Claim) -> Shape {
    Shape::number(must, claim, paired(m, one, other, rate).at(x))
}

/// A line on few records over the same on many.
fn high_over_low(m: &Measured, line: &str) -> Option<f64> {
    let rates = m.clock(line);
    Some(rates.at(HIGH)? / rates.at(LOW)?)
}

/// The share of the cores in use; what a core is waited for says little about a concurrency control.
fn cores_are_free(m: &Measured) -> Shape {
    let must =
        "records and logs are waited for and not the processor: the share of the cores in use, at the most";
    Shape::number(must, Claim::AtMost(IN_USE_MAX), in_use(m)).of_ours()
}

/// The ratio of two lines with its spread.
fn ratio(m: &Measured, one: &str, other: &str, x: f64) -> String {
    with_spread(&paired(m, one, other, rate), x)
}

/// Failed attempts of all, in percent.
fn failed(m: &Measured, line: &str) -> Series {
    m.series(line, |run| run.agreement.as_ref().map_or(0.0, Agreement::failed_share) * 100.0)
}

/// Transactions a second of a region.
fn of_region(m: &Measured, line: &str) -> Series {
    m.series(line, |run| run.txn_per_s / f64::from(run.nodes.max(1)))
}

fn latency_ms(m: &Measured, line: &str) -> Series {
    m.series(line, |run| run.latency_us.mean / 1e3)
}

const THROUGHPUT: Picture = Picture {
    y: ("throughput of a region", "txn/s", LINEAR),
    kind: Kind::Bars,
    series: of_region,
    ..PICTURE
};
const FAILED: Picture = Picture {
    suffix: ": attempts that came to nothing",
    y: ("of all attempts", "%", LINEAR),
    kind: Kind::Bars,
    series: failed,
    ..PICTURE
};

const LOG: Logging = Logging {
    durability: Durability::Os,
    paper: "The paper writes its log to a file of the server's own and does not replicate it (section 4); it does not sync, as far as it says. Here three \
            storage nodes have a file each, and a majority of them acknowledges.",
};

const NOTE: &str = "All nodes run in one process on this machine: two regions of a server with two threads, 16 clients and three storage nodes each, 0.25 ms \
                    away one way, and 25 ms between the regions. The paper has 16 threads of a server of one machine and no storage nodes. Low \
                    contention is 100 K records, not 1 M. Throughput is that of a region, the mean of both.";
const IN_IMAGE: &str = "only in the image";

/// The base of all figures.
const PLAIN: Experiment = Experiment {
    x: CONTENTION,
    values: Values::At(&[HIGH, LOW]),
    lines,
    log: LOG,
    plots: &[THROUGHPUT, FAILED],
    notes: &[NOTE],
    ..Experiment::PLAIN
};

/// Transactions that only read.
pub static RO: Experiment = Experiment {
    title: "Transactions that only read, in regions",
    subtitle: "10 reads of a region's own records",
    setting: |_, contention, line| workload(line, contention, 10, 1.0),
    paper: &[
        ("Silo over 2PL, 50 records", IN_IMAGE, |m| ratio(m, SILO, LOCKS, HIGH)),
        ("Silo over 2PL, 100 K records", IN_IMAGE, |m| ratio(m, SILO, LOCKS, LOW)),
        ("MVOCC over Silo, 50 records", IN_IMAGE, |m| ratio(m, MVOCC, SILO, HIGH)),
        ("MVOCC over Silo, 100 K records", IN_IMAGE, |m| ratio(m, MVOCC, SILO, LOW)),
    ],
    shapes: |m| {
        let least = Claim::AtLeast(1.0);
        vec![
            over(m, "Silo is above 2PL with 50 records: their ratio", [SILO, LOCKS], HIGH, least),
            over(m, "Silo is above 2PL with 100 K records: their ratio", [SILO, LOCKS], LOW, least),
            over(m, "MVOCC is no lower than Silo with 50 records: their ratio", [MVOCC, SILO], HIGH, least),
            over(m, "MVOCC is no lower than Silo with 100 K records: their ratio", [MVOCC, SILO], LOW, least),
            Shape::number(
                "2PL is lower with 50 records than with 100 K: the share that is left",
                Claim::AtMost(1.0),
                high_over_low(m, LOCKS),
            ),
            Shape::at_least(
                "Silo is no lower with 50 records than with 100 K: their ratio",
                high_over_low(m, SILO),
                1.0,
            ),
            cores_are_free(m),
        ]
    },
    notes: &[
        NOTE,
        "The paper's 2PL falls since 16 threads change one queue under a latch. Here a shard has one thread and no latch, and locks that \
         nobody waits for cost the same however many share them.",
    ],
    ..PLAIN
};

/// Ten read-modify-writes.
pub static RMW: Experiment = Experiment {
    title: "Read-modify-writes in regions",
    subtitle: "10 read-modify-writes of a region's own records",
    setting: |_, contention, line| workload(line, contention, 10, 0.0),
    also: |_, _| contended_as_in_paper(10),
    paper: &[
        ("2PL over Silo, 50 records, as in the paper", "slightly more than 1 (read-write figure)", |m| {
            ratio(m, &paper_name(LOCKS), &paper_name(SILO), HIGH)
        }),
        ("2PL over Silo, 100 K records", "more than 1, unexpectedly (read-write figure)", |m| {
            ratio(m, LOCKS, SILO, LOW)
        }),
        ("MVOCC over 2PL, 50 records, as in the paper", "plummets (read-write figure)", |m| {
            ratio(m, &paper_name(MVOCC), &paper_name(LOCKS), HIGH)
        }),
        ("MVOCC over 2PL, 100 K records", "lowest of the three (read-write figure)", |m| {
            ratio(m, MVOCC, LOCKS, LOW)
        }),
    ],
    shapes: |m| {
        let papers = [LOCKS, SILO, MVOCC].map(paper_name);
        let [locks, silo, mvocc] = papers.each_ref().map(String::as_str);
        let collapse = Claim::AtMost(0.5);
        vec![
            over(
                m,
                "50 records, as in the paper: 2PL is above Silo",
                [locks, silo],
                HIGH,
                Claim::AtLeast(1.0),
            ),
            over(m, "50 records, as in the paper: MVOCC collapses, over 2PL", [mvocc, locks], HIGH, collapse),
            over(m, "50 records, as in the paper: MVOCC collapses, over Silo", [mvocc, silo], HIGH, collapse),
            over(
                m,
                "100 K records: Silo is no lower than 2PL, as the paper had expected",
                [SILO, LOCKS],
                LOW,
                Claim::AtLeast(1.0),
            )
            .of_ours(),
            cores_are_free(m),
        ]
    },
    notes: &[
        NOTE,
        "As in the paper: a transaction takes effect for others when the log has it (early-apply=false), and a refused attempt is made again at once \
         (backoff=none). The paper's MVOCC leaves that to its client, who asks for something else; ours tries again.",
        "With ten of 50 records nine of ten attempts of 2PL close a circle of waits and are refused, as many as Silo refuses when it validates. An \
         attempt that has waited costs more than one that has not, so 2PL is below Silo here.",
    ],
    ..PLAIN
};

fn paper_name(line: &str) -> String {
    format!("{line}{AS_IN_PAPER}")
}

/// Five read-modify-writes of few records.
pub static RMW_5: Experiment = Experiment {
    title: "Fewer read-modify-writes in regions",
    subtitle: "5 read-modify-writes of a region's own records",
    values: Values::At(&[HIGH]),
    setting: |_, contention, line| workload(line, contention, 5, 0.0),
    also: |_, _| contended_as_in_paper(5),
    paper: &[
        (
            "MVOCC over 2PL, as in the paper",
            "of the same magnitude, and the lowest (second read-write figure)",
            |m| ratio(m, &paper_name(MVOCC), &paper_name(LOCKS), HIGH),
        ),
        ("2PL over Silo, as in the paper", "more than 1 (second read-write figure)", |m| {
            ratio(m, &paper_name(LOCKS), &paper_name(SILO), HIGH)
        }),
    ],
    shapes: |m| {
        let papers = [LOCKS, SILO, MVOCC].map(paper_name);
        let [locks, silo, mvocc] = papers.each_ref().map(String::as_str);
        vec![
            over(m, "as in the paper: 2PL is above Silo", [locks, silo], HIGH, Claim::AtLeast(1.0)),
            over(m, "as in the paper: MVOCC is below 2PL", [mvocc, locks], HIGH, Claim::AtMost(1.0)),
            over(
                m,
                "as in the paper: MVOCC no longer collapses, over 2PL",
                [mvocc, locks],
                HIGH,
                Claim::AtLeast(0.1),
            ),
            cores_are_free(m),
        ]
    },
    notes: RMW.notes,
    ..PLAIN
};

/// Half of the transactions only read.
pub static MIXED: Experiment = Experiment {
    title: "Read-only and read-modify-write transactions in regions",
    subtitle: "10 operations on a region's own records; half of the transactions only read",
    values: Values::At(&[LOW]),
    setting: |_, contention, line| workload(line, contention, 10, 0.5),
    paper: &[
        ("2PL over Silo", "very similar (mixed figure)", |m| ratio(m, LOCKS, SILO, LOW)),
        ("MVOCC over Silo", "very similar (mixed figure)", |m| ratio(m, MVOCC, SILO, LOW)),
    ],
    shapes: |m| {
        let band = Claim::Band { paper: 1.0, factor: 1.5, less_is_better: false };
        vec![
            over(m, "2PL over Silo", [LOCKS, SILO], LOW, band),
            over(m, "MVOCC over Silo", [MVOCC, SILO], LOW, band),
            cores_are_free(m),
        ]
    },
    ..PLAIN
};

/// Bytes of a record, as storage nodes are given it.
fn record_bytes(m: &Measured, line: &str) -> Series {
    m.series(line, |run: &Run| run.agreement.as_ref().map_or(0.0, |all| all.bytes_per_record))
}

/// Bytes of the log of a storage node for each record of it.
fn framed_bytes(m: &Measured, line: &str) -> Series {
    m.series(line, |run: &Run| run.agreement.as_ref().map_or(0.0, |all| all.storage_bytes_per_record))
}

/// The most bytes of any line.
fn most_bytes(m: &Measured, of: fn(&Measured, &str) -> Series) -> Option<f64> {
    let all = m.lines().into_iter().flat_map(|line| of(m, line).points);
    all.map(|(_, bytes)| bytes).filter(|bytes| *bytes > 0.0).reduce(f64::max)
}

/// Bytes of the log.
pub static WAL: Experiment = Experiment {
    title: "Bytes of a region's log",
    subtitle: "10 read-modify-writes of a region's own records; keys and values are numbers, as in the paper",
    setting: |_, contention, line| workload(line, contention, 10, 0.0),
    plots: &[
        Picture { y: ("record", "B", LINEAR), kind: Kind::Bars, series: record_bytes, ..PICTURE },
        Picture {
            y: ("log of a storage node for each record", "B", LINEAR),
            kind: Kind::Bars,
            series: framed_bytes,
            ..PICTURE
        },
        THROUGHPUT,
    ],
    paper: &[
        ("bytes of a record of 10 writes", "320, as JSON (WAL text)", |m| {
            or_not(most_bytes(m, record_bytes), |bytes| format!("{bytes:.0} at the most"))
        }),
        ("the same with frames and checksums", "it has none", |m| {
            or_not(most_bytes(m, framed_bytes), |bytes| format!("{bytes:.0} at the most"))
        }),
        ("log of a region in 30 s", "125 MiB (WAL text), so 13.7 K txn/s", |m| {
            let of = |line: &str| {
                let bytes = framed_bytes(m, line).at(LOW)? * of_region(m, line).at(LOW)? * 30.0;
                Some(format!("{line} {:.0} MiB", bytes / (1024.0 * 1024.0)))
            };
            let all: Vec<String> = m.lines().into_iter().filter_map(of).collect();
            or_not((!all.is_empty()).then_some(all), |all| format!("{}, extrapolated", all.join(", ")))
        }),
    ],
    shapes: |m| {
        let most = Claim::AtMost(SHARE_OF_JSON);
        let share = most_bytes(m, record_bytes).map(|bytes| bytes / JSON_BYTES);
        let must = "bytes of a record over those of the paper's JSON, at the most";
        vec![Shape::number(must, most, share).of_ours(), cores_are_free(m)]
    },
    notes: &[
        NOTE,
        "A record is what a storage node is given: the entry of the log, with its number, the transaction and the ten writes. The paper's is a line of a text \
         file: it has neither checksum nor place, and is on one disk.",
        "The log of a storage node is what its file grows by while it is measured, divided by the records that the node appends: the frames of the log and \
         their checksums are among them. A frame of 48 bytes holds all records of one message, which without waiting is often one.",
    ],
    more: |_, m, summary| {
        let mut all = Table::new("A record of 10 writes").text_columns(["line"]);
        all = all.number_columns(["records of a region", "bytes", "of JSON", "with frames"]);
        for name in m.lines() {
            let (bytes, framed) = (record_bytes(m, name), framed_bytes(m, name));
            for (x, of) in &bytes.points {
                let share = format!("{:.0}%", of / JSON_BYTES * 100.0);
                let records = RECORDS[*x as usize].to_string();
                all.row([
                    Cell::text(name),
                    Cell::number(records),
                    Cell::number(with_spread(&bytes, *x)),
                    Cell::number(share),
                    Cell::number(with_spread(&framed, *x)),
                ]);
            }
        }
        summary.tables.push(all);
    },
    ..PLAIN
};

/// Places of the axis of faults.
const WELL: f64 = 0.0;
const SLOW: f64 = 1.0;
const DEAD: f64 = 2.0;
/// How late a slow storage node is, one way.
const LATE: Micros = Micros(5_000);
const QUORUM: &str = "quorum";
const FULL: &str = "full";

/// A value at a place over that where all storage nodes are well.
fn over_well(series: &Series, x: f64) -> Option<f64> {
    Some(series.at(x)? / series.at(WELL)?)
}

/// Both ratios of a line at a place.
fn faulty(m: &Measured, line: &str, x: f64) -> String {
    let [rates, latencies] = [m.clock(line), latency_ms(m, line)].map(|series| over_well(&series, x));
    let both = rates.zip(latencies);
    or_not(both, |(rate, latency)| format!("throughput x {rate:.2}, mean latency x {latency:.2}"))
}

/// Quorum and full, with a storage node that is slow or dead.
pub static F4: Experiment = Experiment {
    title: "A slow or dead storage node",
    subtitle: "regions-silo, 10 read-modify-writes of a region's own 100 K records; 4 clients a region",
    x: ("storage nodes", "", || {
        Scale::Categories(["all well", "one 5 ms away", "one dead"].map(String::from).into())
    }),
    values: Values::At(&[WELL, SLOW, DEAD]),
    lines: |_| [QUORUM, FULL].map(|name| line(name, "regions-silo", REGIONS, CLIENTS / 4)).into(),
    setting: |_, x, line| {
        let storage = if line.name == FULL { Storage::Full } else { Storage::Quorum };
        let fault = match x {
            SLOW => Fault::Slow(LATE),
            DEAD => Fault::Dead,
            _ => Fault::None,
        };
        line.grid = grid(REGIONS, storage, BETWEEN, fault);
        workload(line, LOW, 10, 0.0)
    },
    is_ours: true,
    plots: &[
        THROUGHPUT,
        Picture {
            suffix: ": latency",
            y: ("mean latency", "ms", LINEAR),
            kind: Kind::Bars,
            series: latency_ms,
            ..PICTURE
        },
    ],
    paper: &[
        ("quorum, one slow", "not measured", |m| faulty(m, QUORUM, SLOW)),
        ("quorum, one dead", "not measured", |m| faulty(m, QUORUM, DEAD)),
        ("full, one slow", "not measured", |m| faulty(m, FULL, SLOW)),
        ("full, one dead and left out", "not measured", |m| faulty(m, FULL, DEAD)),
    ],
    shapes: |m| {
        let kept = |must: &str, line: &str, x: f64| Shape::at_least(must, over_well(&m.clock(line), x), 0.8);
        let full = latency_ms(m, FULL).at(SLOW);
        vec![
            kept("quorum, one slow: the throughput that is left", QUORUM, SLOW),
            kept("quorum, one dead: the throughput that is left", QUORUM, DEAD),
            Shape::at_least("full, one slow: ms until an answer, no less than to it and back", full, 10.0),
            kept("full, one dead and left out: the throughput that is left", FULL, DEAD),
            cores_are_free(m),
        ]
    },
    notes: &[
        NOTE,
        "The dead node dies before anything is measured, and what `full` waits until it is left out is not in the figures. One slow node \
         is 5 ms away from all others, one way.",
    ],
    ..PLAIN
};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Size;
    use super::super::verdict::Verdict::{self, Below, Differs, Holds, Unknown};
    use super::*;
    use crate::bench::Bench;
    use crate::embedded::Length;
    use crate::plot::testing;
    use crate::progress::Progress;
    use crate::report::Latency;

    fn run(line: &str, x: f64, rate: f64) -> (String, f64, Run) {
        (line.to_owned(), x, Run { nodes: 2, ..testing::run("e", 1, rate, true) })
    }

    fn verdicts(figure: &Experiment, runs: Vec<(String, f64, Run)>) -> Vec<Verdict> {
        let summary = figure.summary(&Measured { runs, ..Measured::default() });
        summary.shapes.iter().map(|shape| shape.verdict).collect()
    }

    #[test]
    fn every_engine_whose_partitions_are_regions_has_a_line() {
        let names: Vec<String> = lines(2).into_iter().map(|line| line.name).collect();
        assert_eq!(names.len(), NAMES.len(), "{names:?}");
        for figure in [&RO, &RMW, &RMW_5, &MIXED, &WAL, &F4] {
            for FigurePoint { line, point, .. } in figure.points(Size::Quick, 2).unwrap() {
                assert!(point.workload.name() == "micro-regions", "{line}");
                assert!(point.system.to_string().contains("3 storage nodes each"), "{}", point.system);
            }
        }
    }

    #[test]
    fn regions_run_with_storage_nodes_and_their_records_are_checked() {
        let slow = Fault::Slow(Micros(500));
        for (storage, fault) in [(Storage::Quorum, slow), (Storage::Full, slow), (Storage::Full, Fault::Dead)]
        {
            let mut line = line(SILO, "regions-silo", REGIONS, 4);
            line.grid = grid(REGIONS, storage, Micros(1_000), fault);
            let workload = workload(&line, HIGH, 5, 0.5).unwrap();
            let mut bench = Bench::embedded(Length::Txns(400), None);
            let run = bench.measure(&line.at(HIGH, workload).point, 1, 1, &Progress::new(Duration::ZERO));
            let run = run.unwrap();
            assert!(run.passed() && run.checks.contains_key("increments"), "{:?}", run.wrong);
            assert_eq!((run.committed, run.params["storage"].as_str()), (400, Some(storage.name())));
        }
    }

    #[test]
    fn reads_are_held_against_locks_and_against_few_records() {
        let of = |locks: [f64; 2], silo: [f64; 2]| {
            let both = [(LOCKS, locks), (SILO, silo), (MVOCC, [9.0, 9.0])];
            let at =
                |(line, [high, low]): (&'static str, [f64; 2])| [run(line, HIGH, high), run(line, LOW, low)];
            verdicts(&RO, both.into_iter().flat_map(at).collect())
        };
        assert_eq!(of([4.0, 5.0], [7.0, 6.0])[..6], [Holds; 6]);
        assert_eq!(of([5.0, 4.0], [4.0, 5.0])[..6], [Below, Holds, Holds, Holds, Differs, Below]);
        assert_eq!(verdicts(&RO, Vec::new()), [Unknown; 7]);
    }

    #[test]
    fn a_collapse_is_of_lines_as_in_the_paper() {
        let of = |mvocc: f64| {
            let lines = [(LOCKS, 11.0), (SILO, 10.0), (MVOCC, mvocc)];
            let runs = lines.map(|(line, rate)| run(&paper_name(line), HIGH, rate)).into_iter();
            let low = lines.map(|(line, _)| run(line, LOW, 1.0));
            runs.chain(low).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&RMW, of(1.0))[..4], [Holds; 4]);
        assert_eq!(verdicts(&RMW, of(9.0))[..3], [Holds, Differs, Differs]);
        assert_eq!(verdicts(&RMW_5, of(9.0))[..3], [Holds; 3]);
        assert_eq!(verdicts(&RMW_5, of(1.0))[..3], [Holds, Holds, Below]);
        let refused = as_in_paper(line(SILO, "regions-silo", REGIONS, CLIENTS)).ours.to_string();
        assert!(refused.contains("early-apply=false") && refused.contains("backoff=none"), "{refused}");
    }

    #[test]
    fn mixed_lines_are_near_each_other() {
        let of = |locks| verdicts(&MIXED, vec![run(LOCKS, LOW, locks), run(SILO, LOW, 10.0)])[0];
        assert_eq!([6.6, 6.7, 15.0, 15.1].map(of), [Below, Holds, Holds, Verdict::Beyond]);
    }

    #[test]
    fn bytes_are_those_of_the_record_that_has_most() {
        let of = |bytes: [f64; 2]| {
            let one = |(line, bytes_per_record): (&str, f64)| {
                let (line, x, run) = run(line, LOW, 1.0);
                let framed = Agreement { storage_bytes_per_record: 999.0, ..Agreement::default() };
                let agreement = Some(Agreement { bytes_per_record, ..framed });
                (line, x, Run { agreement, ..run })
            };
            [(LOCKS, bytes[0]), (SILO, bytes[1])].map(one).to_vec()
        };
        assert_eq!(verdicts(&WAL, of([128.0, 90.0]))[0], Holds);
        assert_eq!(verdicts(&WAL, of([90.0, 129.0]))[0], Differs);
        assert_eq!(verdicts(&WAL, of([0.0, 0.0]))[0], Unknown, "nothing was logged");
        let summary = WAL.summary(&Measured { runs: of([160.0, 90.0]), ..Measured::default() });
        assert!(summary.tables[0].to_string().contains("50%"), "{}", summary.tables[0]);
    }

    #[test]
    fn a_faulty_storage_node_is_held_against_none() {
        let of = |rates: [[f64; 3]; 2], slow_ms: f64| {
            let places = [WELL, SLOW, DEAD];
            let at = |(line, rates): (&'static str, [f64; 3])| {
                places.into_iter().zip(rates).map(move |(x, rate)| {
                    let (line, x, run) = run(line, x, rate);
                    let mean = if x == SLOW { slow_ms * 1e3 } else { 1e3 };
                    (line, x, Run { latency_us: Latency { mean, ..Latency::default() }, ..run })
                })
            };
            verdicts(&F4, [(QUORUM, rates[0]), (FULL, rates[1])].into_iter().flat_map(at).collect())
        };
        assert_eq!(of([[10.0, 9.0, 8.0], [10.0, 1.0, 9.0]], 11.0)[..4], [Holds; 4]);
        assert_eq!(of([[10.0, 7.0, 7.0], [10.0, 1.0, 1.0]], 9.0)[..4], [Below; 4]);
    }
}
