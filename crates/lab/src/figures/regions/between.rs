//! Figures of transactions of several regions, which the paper left for future work (regions.md, section 7, F1 to F3).
//!
//! Each region has clients for transactions of its own records and others for those of two regions, so that the long ones do not
//! hold up the short ones. The latter are held to a share of all that is asked for, as far as their clients reach: the share of a place
//! is what is offered, and the table under each figure has what came of it.

use std::sync::Arc;
use std::time::Duration;

use ordain_engines::registry::option;
use ordain_model::Micros;
use ordain_workload::Workload;
use ordain_workload::micro::{MULTI_REGION, Micro, ONE_REGION, Regions as Parameters};

use super::super::experiment::{Dimension, Experiment, FigurePoint, LINEAR, Line, Picture, Values};
use super::super::summary::or_not;
use super::super::verdict::Claim;
use super::super::{Measured, Shape, Size, Summary};
use super::{HIGH, LOW, MVOCC, PLAIN, RECORDS, REGIONS, SILO, cores_are_free, engines, failed, line, spread};
use crate::plot::{Kind, Series, si};
use crate::report::{KindOfRun, Run};
use crate::table::{Cell, Table};

/// Clients of a region that ask for local transactions: few, so that cores are free.
pub(super) const LOCAL_CLIENTS: usize = 1;
/// From a server to its storage nodes, one way: the longest acknowledgement of the sheet's, as the regions share the cores.
pub(super) const STORAGE: Micros = Micros(500);
/// The way to the storage nodes where up to four regions share these cores: longer than the sheet has it.
const STORAGE_OF_MANY: Micros = Micros(2_000);
/// Those that ask for transactions of two regions, with few records and with many. With few they would mostly wait for each other.
const MULTI_CLIENTS: [usize; 2] = [4, 32];
/// Operations of a transaction.
const OPS: usize = 10;

/// The delay between regions and back where the share is swept, ms.
pub(super) const ROUND_TRIP: f64 = 50.0;
/// Delays at which local transactions are measured alone, ms.
const ALONE_AT: [f64; 2] = [0.0, 200.0];
/// Stands behind the name of a line with one region.
const ONE: &str = ", one region";
/// Stands behind the names of lines with few records.
const FEW: &str = ", 50 records";
/// Stands behind the name of Silo's line where it locks before it validates.
const TWO_ROUNDS: &str = ", two rounds";
/// The option by which it does, and the value.
const ROUNDS: (&str, &str) = ("occ-rounds", "2");

/// A place of a sweep.
#[derive(Clone, Copy)]
struct At {
    /// A place of the axis of contention.
    contention: f64,
    /// The share of transactions of two regions that is offered.
    multi: f64,
    /// The delay between regions and back, ms.
    round_trip: f64,
    regions: u16,
    /// From a server to its storage nodes, one way.
    storage: Micros,
}

/// Two regions at the delay of sweeps by share.
const HERE: At =
    At { contention: LOW, multi: 0.0, round_trip: ROUND_TRIP, regions: REGIONS, storage: STORAGE };

impl At {
    /// Sets the line's nodes, clients and time; returns its workload.
    fn set(self, size: Size, line: &mut Line) -> anyhow::Result<Arc<dyn Workload>> {
        let At { contention, multi, round_trip, regions, storage } = self;
        let of_two = if multi > 0.0 { MULTI_CLIENTS[contention as usize] } else { 0 };
        let local = if multi < 1.0 { LOCAL_CLIENTS } else { 0 };
        line.clients = (local + of_two) * usize::from(regions);
        line.threads = 1;
        line.grid = spread(regions, storage, round_trip);
        line.measure = Some(long_enough(size, round_trip));
        Ok(Arc::new(Micro::regions(Parameters {
            regions: regions.into(),
            records: RECORDS[contention as usize],
            ops_per_txn: OPS,
            multi_region: multi,
            multi_region_clients: of_two as f64 / (local + of_two) as f64,
            ..Parameters::default()
        })?))
    }

    /// The point of a line here.
    fn of(self, size: Size, mut line: Line, x: f64) -> anyhow::Result<FigurePoint> {
        let workload = self.set(size, &mut line)?;
        Ok(line.at(x, workload))
    }
}

/// The time of measuring at a delay between regions and back, ms: 200 round trips at least, or 20.
pub(super) fn long_enough(size: Size, round_trip: f64) -> Duration {
    let (least, trips) = size.pick((1, 20.0), (10, 200.0));
    Duration::from_secs(least).max(Duration::from_secs_f64(round_trip / 1e3 * trips))
}

/// A line of each engine with few or many records.
fn lines_of(contention: f64) -> impl Iterator<Item = Line> {
    engines().into_iter().map(move |(name, engine)| {
        line(named(&name, contention), engine, REGIONS, LOCAL_CLIENTS).knob(contention)
    })
}

fn named(engine: &str, contention: f64) -> String {
    format!("{engine}{}", if contention == HIGH { FEW } else { "" })
}

/// The name of the line whose local transactions run alone at a delay, ms.
fn alone_at(engine: &str, round_trip: f64) -> String {
    format!("{engine}, {round_trip} ms")
}

/// Silo's line with two rounds, if this version has them.
fn two_rounds() -> Option<Line> {
    let (info, (_, engine)) = (option(ROUNDS.0)?, engines().into_iter().find(|(name, _)| name == SILO)?);
    let of = line(format!("{SILO}{TWO_ROUNDS}"), engine, REGIONS, LOCAL_CLIENTS);
    Some(of.with(info, info.parse(ROUNDS.1).ok()?))
}

/// What is read off the transactions of a kind, at each place where there were some.
pub(super) fn of_kind(m: &Measured, line: &str, kind: &str, value: fn(&Run, &KindOfRun) -> f64) -> Series {
    let points = m.places(line).into_iter().filter_map(|(x, runs)| {
        let values = runs.iter().filter_map(|run| Some(value(run, run.kinds.get(kind)?)));
        Some((x, values.collect::<Vec<_>>())).filter(|(_, values)| !values.is_empty())
    });
    let points: Vec<_> = points.collect();
    Series { disturbed: m.clock(line).disturbed, ..Series::repeated(line, &points) }
}

/// Transactions of a kind that a region commits in a second.
pub(super) fn rate(run: &Run, kind: &KindOfRun) -> f64 {
    kind.committed as f64 / run.seconds.max(f64::MIN_POSITIVE) / f64::from(run.nodes.max(1))
}

fn local_rate(m: &Measured, line: &str) -> Series {
    of_kind(m, line, ONE_REGION, rate)
}

fn multi_rate(m: &Measured, line: &str) -> Series {
    of_kind(m, line, MULTI_REGION, rate)
}

pub(super) fn mean_ms(_: &Run, kind: &KindOfRun) -> f64 {
    kind.latency_us.mean / 1e3
}

pub(super) fn median_ms(_: &Run, kind: &KindOfRun) -> f64 {
    kind.latency_us.p50 as f64 / 1e3
}

fn p99_ms(_: &Run, kind: &KindOfRun) -> f64 {
    kind.latency_us.p99 as f64 / 1e3
}

fn multi_mean(m: &Measured, line: &str) -> Series {
    of_kind(m, line, MULTI_REGION, mean_ms)
}

/// A series over its value at the first place.
fn over_first(series: Series) -> Series {
    let first = series.points.first().map_or(f64::NAN, |(_, y)| *y);
    let ratios = series.points.iter().map(|(x, y)| (*x, y / first)).filter(|(_, y)| y.is_finite());
    Series { disturbed: series.disturbed, ..Series::measured(series.name, ratios.collect()) }
}

/// The value at a place over that at another.
pub(super) fn over_at(series: &Series, x: f64, base: f64) -> Option<f64> {
    Some(series.at(x)? / series.at(base)?).filter(|ratio| ratio.is_finite())
}

const MANY: fn(&str) -> bool = |line| NAMES_OF_LINES.contains(&line) || line.ends_with(TWO_ROUNDS);
const ON_FEW: fn(&str) -> bool = |line| line.ends_with(FEW);
/// The lines over the whole axis.
const NAMES_OF_LINES: [&str; 3] = [super::LOCKS, SILO, MVOCC];

const LOCAL: Dimension = ("local transactions of a region", "txn/s", LINEAR);
const MULTI: Dimension = ("multi-region transactions of a region", "txn/s", LINEAR);
const MULTI_LATENCY: Dimension = ("mean latency of multi-region transactions", "ms", LINEAR);
const LEFT: Dimension = ("throughput over that without a delay", "", LINEAR);

/// The picture of the lines with many or few records.
pub(super) const fn picture(
    suffix: &'static str,
    y: Dimension,
    has: fn(&str) -> bool,
    series: fn(&Measured, &str) -> Series,
) -> Picture {
    Picture { suffix, y, kind: Kind::Lines, has, series }
}

/// Adds the table of both kinds of transactions.
fn add_kinds(_: &Experiment, m: &Measured, summary: &mut Summary) {
    add_pair("Local and multi-region transactions apart", [ONE_REGION, MULTI_REGION], m, summary);
}

/// Adds a row for each place of each line: a kind of local transactions and one of those of several regions apart.
pub(super) fn add_pair(caption: &str, kinds: [&str; 2], m: &Measured, summary: &mut Summary) {
    let mut all = Table::new(caption).text_columns(["line", "at"]);
    all = all.number_columns([
        "local txn/s of a region",
        "multi-region",
        "of all",
        "local mean ms",
        "p99",
        "multi-region mean ms",
        "p99",
        "attempts in vain",
        "given up",
    ]);
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), si);
    let percent = |value: f64| format!("{value:.1}%");
    for name in m.lines() {
        let of = |kind, value| of_kind(m, name, kind, value);
        let [local, multi] = kinds.map(|kind| of(kind, rate));
        let latencies = kinds.map(|kind| [of(kind, mean_ms), of(kind, p99_ms)]);
        let given_up = m
            .series(name, |run| run.aborted as f64 / ((run.committed + run.aborted) as f64).max(1.0) * 100.0);
        for (x, in_vain) in failed(m, name).points {
            let rates = [&local, &multi].map(|series| series.at(x).unwrap_or_default());
            let share = rates[1] / (rates[0] + rates[1]).max(f64::MIN_POSITIVE) * 100.0;
            let numbers = [shown(local.at(x)), shown(multi.at(x)), percent(share)].into_iter();
            let numbers = numbers.chain(latencies.iter().flatten().map(|series| shown(series.at(x))));
            let ends = [percent(in_vain), percent(given_up.at(x).unwrap_or_default())];
            let texts = [Cell::text(name), Cell::text(si(x))];
            all.row(texts.into_iter().chain(numbers.chain(ends).map(Cell::number)));
        }
    }
    summary.tables.extend(all.or_none());
}

const CLASSES: &str = "Each region has a client that asks for local transactions and, with 100 K records, 32 that ask for transactions of two regions: half of the \
                       records at home, half in another region, all read and written. With 50 records those are 4. Of all that is asked for, \
                       transactions of two regions are held to the share of the place; where their clients are too few for that, local ones go on, and the \
                       share is lower. A server has one thread, and its three storage nodes are 0.5 ms away one way: what counts is waiting, and all regions share \
                       the cores of this machine.";
const SWEEP: &str = "The sheet's sweep is 7 shares at 7 delays with 2 contentions and 3 engines: 294 points, some 100 minutes. Measured is a cross of it: \
                     regions-f1 has the shares at 50 ms, regions-f2 the delays at 5%. A point is measured once, for 10 s or 200 round trips in full \
                     size (some 15 minutes each figure), for 1 s or 20 round trips in a quick run (1 to 2 minutes).";
const MEDIANS: &str = "Claims about the latency of transactions of two regions are about medians: one that has read what was overwritten meanwhile is \
                       refused and takes as long again, which is a matter of how much is written and not of the protocol.";

/// The shares of transactions of two regions with few records, percent. With more of them there are too few commits.
const SHARES_OF_FEW: [&[f64]; 2] = [&[0.0, 10.0], &[0.0, 1.0, 5.0, 10.0, 20.0]];
/// The share at which latencies and losses are claimed.
const LITTLE: f64 = 1.0;
/// The share at which lines are measured that are not over the whole axis.
const SOME: f64 = 10.0;

/// The points beside the sweep: few records, local transactions alone, one region alone, two rounds.
fn beside(size: Size) -> anyhow::Result<Vec<FigurePoint>> {
    let mut points = Vec::new();
    for percent in size.pick(SHARES_OF_FEW[0], SHARES_OF_FEW[1]) {
        for few in lines_of(HIGH) {
            points.push(At { contention: HIGH, multi: percent / 100.0, ..HERE }.of(size, few, *percent)?);
        }
    }
    for (name, engine) in engines() {
        for round_trip in ALONE_AT {
            let far = line(alone_at(&name, round_trip), engine, REGIONS, LOCAL_CLIENTS);
            points.push(At { round_trip, ..HERE }.of(size, far, 0.0)?);
        }
        let one = line(format!("{name}{ONE}"), engine, 1, LOCAL_CLIENTS);
        points.push(At { regions: 1, round_trip: 0.0, ..HERE }.of(size, one, 0.0)?);
    }
    if let Some(of) = two_rounds() {
        points.push(At { multi: SOME / 100.0, ..HERE }.of(size, of, SOME)?);
    }
    Ok(points)
}

/// Claims that local transactions alone do not feel the delay.
fn is_flat(m: &Measured, name: &str) -> Shape {
    let alone = local_rate(m, &format!("{name}{ONE}")).at(0.0);
    let lines = ALONE_AT.map(|round_trip| alone_at(name, round_trip)).into_iter().chain([name.to_owned()]);
    let rates: Option<Vec<f64>> = lines.map(|line| local_rate(m, &line).at(0.0)).collect();
    let least = rates.and_then(|rates| rates.into_iter().reduce(f64::min));
    let must = format!(
        "{name}: local transactions alone, 0 to 200 ms: throughput of a region over that of one alone, where it is least"
    );
    Shape::at_least(must, least.zip(alone).map(|(least, alone)| least / alone), 0.95)
}

/// Claims that a transaction of two regions takes what a local one does, and so many round trips.
fn takes_trips(m: &Measured, must: &str, line: &str, (local, share): (&str, f64), trips: f64) -> Shape {
    let multi = of_kind(m, line, MULTI_REGION, median_ms).at(share);
    let local = of_kind(m, local, ONE_REGION, median_ms).at(0.0);
    let ratio = multi.zip(local).map(|(multi, local)| multi / (local + trips * ROUND_TRIP));
    Shape::number(must, Claim::AtMost(1.1), ratio)
}

/// By share of transactions of two regions.
pub static F1: Experiment = Experiment {
    title: "Transactions of two regions by their share",
    subtitle: "10 read-modify-writes, 50 ms between two regions and back",
    x: ("transactions of two regions", "%", LINEAR),
    values: Values::Sized {
        quick: &[0.0, LITTLE, SOME, 100.0],
        full: &[0.0, LITTLE, 5.0, SOME, 20.0, 50.0, 100.0],
    },
    lines: |_| lines_of(LOW).collect(),
    setting: |size, percent, line| At { multi: percent / 100.0, ..HERE }.set(size, line),
    also: |size, _| beside(size),
    repetitions: |_| 1,
    is_ours: true,
    plots: &[
        picture(": local transactions, 100 K records", LOCAL, MANY, local_rate),
        picture(": transactions of two regions, 100 K records", MULTI, MANY, multi_rate),
        picture(": their latency, 100 K records", MULTI_LATENCY, MANY, multi_mean),
        picture(": local transactions, 50 records", LOCAL, ON_FEW, local_rate),
        picture(": transactions of two regions, 50 records", MULTI, ON_FEW, multi_rate),
        picture(": their latency, 50 records", MULTI_LATENCY, ON_FEW, multi_mean),
    ],
    shapes: |m| {
        let mut shapes: Vec<Shape> = engines().iter().map(|(name, _)| is_flat(m, name)).collect();
        for (name, _) in engines() {
            let rates = local_rate(m, &name);
            let must =
                format!("{name}, 100 K records: local throughput with 1% of two regions over that with none");
            shapes.push(Shape::at_least(must, over_at(&rates, LITTLE, 0.0), 0.8));
            let must = format!(
                "{name}, 100 K records, 1%: latency over that of a local one and a round trip, medians"
            );
            shapes.push(takes_trips(m, &must, &name, (&name, LITTLE), 1.0));
            let few = named(&name, HIGH);
            let must = format!("{few}: local throughput falls with the share");
            shapes.push(Shape::line(must, Claim::Falls(0.5), &local_rate(m, &few)));
        }
        if let Some(Line { name, .. }) = two_rounds() {
            let must = format!(
                "{name}, 100 K records: latency over that of a local one and two round trips, medians"
            );
            shapes.push(takes_trips(m, &must, &name, (SILO, SOME), 2.0));
        }
        shapes.push(cores_are_free(m));
        shapes
    },
    notes: &[CLASSES, SWEEP, MEDIANS],
    more: add_kinds,
    ..PLAIN
};

/// The share of transactions of two regions where the delay is swept.
const SHARE: f64 = 0.05;

/// The time that a transaction of two regions takes longer than without a delay, over the delay.
fn longer_by(m: &Measured, line: &str) -> Option<f64> {
    let medians = of_kind(m, line, MULTI_REGION, median_ms);
    let (x, last) = *medians.points.last().filter(|(x, _)| *x > 0.0)?;
    Some((last - medians.at(0.0)?) / x)
}

/// Failed attempts of one line over those of another at the sweep's delay by share.
fn fails_over(m: &Measured, [one, other]: [&str; 2]) -> Option<f64> {
    over_nothing(failed(m, one).at(ROUND_TRIP)?, failed(m, other).at(ROUND_TRIP)?)
}

/// A ratio in which nothing counts as a hundredth of a percent.
fn over_nothing(one: f64, other: f64) -> Option<f64> {
    Some(one.max(0.01) / other.max(0.01))
}

/// Degradation by the delay between regions.
pub static F2: Experiment = Experiment {
    title: "Transactions of two regions by the delay between them",
    subtitle: "10 read-modify-writes, 5% of two regions",
    x: ("delay between regions and back", "ms", LINEAR),
    values: Values::Sized {
        quick: &[0.0, 10.0, ROUND_TRIP, 200.0],
        full: &[0.0, 5.0, 10.0, 25.0, ROUND_TRIP, 100.0, 200.0],
    },
    lines: |_| lines_of(LOW).chain(lines_of(HIGH)).collect(),
    setting: |size, round_trip, line| {
        At { contention: line.knob, multi: SHARE, round_trip, ..HERE }.set(size, line)
    },
    repetitions: |_| 1,
    is_ours: true,
    plots: &[
        picture(": local transactions, 100 K records", LEFT, MANY, |m, line| over_first(local_rate(m, line))),
        picture(": transactions of two regions, 100 K records", LEFT, MANY, |m, line| {
            over_first(multi_rate(m, line))
        }),
        picture(": local transactions, 50 records", LEFT, ON_FEW, |m, line| over_first(local_rate(m, line))),
        picture(": transactions of two regions, 50 records", LEFT, ON_FEW, |m, line| {
            over_first(multi_rate(m, line))
        }),
        picture(": latency of those, 100 K records", MULTI_LATENCY, MANY, multi_mean),
        picture(": latency of those, 50 records", MULTI_LATENCY, ON_FEW, multi_mean),
    ],
    paper: &[
        ("local transactions left at 50 ms, 100 K records", "not measured", |m| left(m, local_rate, LOW)),
        ("transactions of two regions left at 50 ms, 100 K records", "not measured", |m| {
            left(m, multi_rate, LOW)
        }),
        ("local transactions left at 50 ms, 50 records", "not measured", |m| left(m, local_rate, HIGH)),
        ("transactions of two regions left at 50 ms, 50 records", "not measured", |m| {
            left(m, multi_rate, HIGH)
        }),
    ],
    shapes: |m| {
        let longer = engines().into_iter().map(|(name, _)| {
            let must = format!(
                "{name}, 100 K records: time that a transaction of two regions takes longer at the longest delay, over the delay, medians"
            );
            Shape::number(must, Claim::AtMost(1.1), longer_by(m, &name))
        });
        let [locks, silo, mvocc] = NAMES_OF_LINES.map(|name| named(name, HIGH));
        let fails = [(SILO, &silo), (MVOCC, &mvocc)].map(|(name, few)| {
            let must = format!(
                "50 records, 50 ms: {name} has more attempts in vain than 2PL, which waits: their ratio"
            );
            Shape::at_least(must, fails_over(m, [few, &locks]), 1.0)
        });
        longer.chain(fails).chain([cores_are_free(m)]).collect()
    },
    notes: &[CLASSES, SWEEP, MEDIANS],
    more: add_kinds,
    ..PLAIN
};

/// The share that is left of each engine's throughput at 50 ms.
fn left(m: &Measured, of: fn(&Measured, &str) -> Series, contention: f64) -> String {
    let each = engines().into_iter().filter_map(|(name, _)| {
        let left = over_at(&of(m, &named(&name, contention)), ROUND_TRIP, 0.0)?;
        Some(format!("{name} {left:.2}"))
    });
    let each: Vec<String> = each.collect();
    or_not((!each.is_empty()).then_some(each), |each| each.join(", "))
}

/// Numbers of regions, the least and the most of which are compared.
const NUMBERS: [f64; 3] = [2.0, 3.0, 4.0];

/// More regions.
pub static F3: Experiment = Experiment {
    title: "Transactions of two regions among more",
    subtitle: "10 read-modify-writes of 100 K records, 10% of two regions, 50 ms between any two regions and back",
    x: ("regions", "", LINEAR),
    values: Values::At(&NUMBERS),
    lines: |_| lines_of(LOW).collect(),
    setting: |size, regions, line| {
        At { multi: SOME / 100.0, regions: regions as u16, storage: STORAGE_OF_MANY, ..HERE }.set(size, line)
    },
    repetitions: |size| size.pick(1, 3),
    is_ours: true,
    plots: &[
        picture(": local transactions", LOCAL, MANY, local_rate),
        picture(": those of two regions", MULTI, MANY, multi_rate),
        picture(": their latency", MULTI_LATENCY, MANY, multi_mean),
    ],
    shapes: |m| {
        let [few, .., many] = NUMBERS;
        let of = |(name, _): (String, &'static str)| {
            let must = |what: &str| format!("{name}: {what} with 4 regions over that with 2");
            let medians = of_kind(m, &name, MULTI_REGION, median_ms);
            [
                Shape::at_least(
                    must("local throughput of a region"),
                    over_at(&local_rate(m, &name), many, few),
                    0.8,
                ),
                Shape::at_least(
                    must("throughput of two regions, of a region"),
                    over_at(&multi_rate(m, &name), many, few),
                    0.8,
                ),
                Shape::number(
                    must("latency of two regions, medians"),
                    Claim::AtMost(1.2),
                    over_at(&medians, many, few),
                ),
            ]
        };
        engines().into_iter().flat_map(of).chain([cores_are_free(m)]).collect()
    },
    notes: &[
        "Regions are as in regions-f1, but for their storage nodes, which are 2 ms away, so that four regions leave cores free. A transaction touches two of all regions, and these alone run and log it: the others' views hear of it by the logs.",
        MEDIANS,
    ],
    more: add_kinds,
    ..PLAIN
};

#[cfg(test)]
mod tests;
