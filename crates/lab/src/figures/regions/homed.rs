//! TPC-C with warehouses at home in regions, which the paper left for future work (regions.md, section 7, F5).
//!
//! Clients of a region use its warehouses. A share of NewOrders has a line that another region's stock supplies, and a share of Payments
//! is a customer's of another region. The specification's conditions are checked warehouse by warehouse, and summed up over the regions.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::tpcc::{MULTI_REGION, Mix, Parameters, Remote, Scale, Tpcc};

use super::super::experiment::{Dimension, Experiment, FigurePoint, LINEAR, Line, Values};
use super::super::verdict::Claim;
use super::super::{Measured, Shape, Size};
use super::between::{
    LOCAL_CLIENTS, ROUND_TRIP, STORAGE, add_pair, long_enough, mean_ms, median_ms, of_kind, over_at, picture,
    rate,
};
use super::{PLAIN, REGIONS, cores_are_free, engines, line, spread};
use crate::plot::Series;
use crate::report::{KindOfRun, Run};

/// Clients of a region that ask for transactions of two regions.
const MULTI_CLIENTS: usize = 8;
/// Warehouses of a region.
const WAREHOUSES: u32 = 8;
/// The kinds of NewOrder and Payment in one region.
const LOCAL: [&str; 2] = ["new_order", "payment"];
/// Stands behind the name of a line without a delay.
const NEAR: &str = ", 0 ms";
/// The share at which the latency is claimed, percent.
const LITTLE: f64 = 1.0;

/// The mix with a share of second warehouses in another region.
fn tpcc(size: Size, line: &Line, remote: f64) -> anyhow::Result<Arc<dyn Workload>> {
    let regions = line.grid.nodes;
    // Tables are small, so that they can be loaded for each run: what transactions meet at are warehouses and districts.
    let items = size.pick(1_000, 10_000);
    Ok(Arc::new(Tpcc::new(Parameters {
        warehouses: WAREHOUSES * u32::from(regions),
        scale: Scale { customers: 30, items, orders: 30, undelivered: 9, ..Scale::default() },
        partitions: regions.into(),
        mix: Mix::FULL,
        remote: Remote::Share(remote),
        at_home: true,
        multi_region_clients: MULTI_CLIENTS as f64 / (LOCAL_CLIENTS + MULTI_CLIENTS) as f64,
    })?))
}

/// Sets the line's nodes, clients and time; returns its workload.
fn set(size: Size, percent: f64, round_trip: f64, line: &mut Line) -> anyhow::Result<Arc<dyn Workload>> {
    let of_two = if percent > 0.0 { MULTI_CLIENTS } else { 0 };
    line.clients = (LOCAL_CLIENTS + of_two) * usize::from(REGIONS);
    line.threads = 1;
    line.grid = spread(REGIONS, STORAGE, round_trip);
    line.measure = Some(long_enough(size, round_trip));
    tpcc(size, line, percent / 100.0)
}

/// A line of each engine, with these words behind its name.
fn lines_of(behind: &str) -> impl Iterator<Item = Line> {
    let of = move |(name, engine): (String, &'static str)| {
        line(format!("{name}{behind}"), engine, REGIONS, LOCAL_CLIENTS)
    };
    engines().into_iter().map(of)
}

/// Local transactions of a region, all five kinds.
fn local_rate(m: &Measured, line: &str) -> Series {
    m.series(line, |run: &Run| {
        let local = run.kinds.iter().filter(|(kind, _)| !MULTI_REGION.contains(kind));
        let committed = local.map(|(_, kind)| kind.committed).sum();
        rate(run, &KindOfRun { committed, ..KindOfRun::default() })
    })
}

/// NewOrders and Payments with a warehouse of another region.
fn multi_rate(m: &Measured, line: &str) -> Series {
    m.series(line, |run: &Run| {
        let several = MULTI_REGION.iter().filter_map(|kind| run.kinds.get(kind));
        let committed = several.map(|kind| kind.committed).sum();
        rate(run, &KindOfRun { committed, ..KindOfRun::default() })
    })
}

const FAR: fn(&str) -> bool = |line| !line.ends_with(NEAR);
const OF_ONE: Dimension = ("transactions of a region alone", "txn/s", LINEAR);
const OF_TWO: Dimension = ("transactions of two regions, of a region", "txn/s", LINEAR);
const LATENCY: Dimension = ("mean latency of NewOrders of two regions", "ms", LINEAR);

/// TPC-C, by the share of second warehouses in another region.
pub static F5: Experiment = Experiment {
    title: "TPC-C with warehouses at home in regions",
    subtitle: "all five transactions, 8 warehouses in each of two regions, 50 ms between them and back",
    x: ("NewOrders and Payments with a warehouse of another region", "%", LINEAR),
    values: Values::Sized { quick: &[0.0, LITTLE, 10.0], full: &[0.0, LITTLE, 5.0, 10.0, 50.0] },
    lines: |_| lines_of("").collect(),
    setting: |size, percent, line| set(size, percent, ROUND_TRIP, line),
    also: |size, _| {
        let near = lines_of(NEAR).map(|mut line| -> anyhow::Result<FigurePoint> {
            let workload = set(size, 0.0, 0.0, &mut line)?;
            Ok(line.at(0.0, workload))
        });
        near.collect()
    },
    repetitions: |size| size.pick(1, 3),
    is_ours: true,
    plots: &[
        picture(": in one region", OF_ONE, FAR, local_rate),
        picture(": of two regions", OF_TWO, FAR, multi_rate),
        picture(": latency of NewOrders of two regions", LATENCY, FAR, |m, line| {
            of_kind(m, line, MULTI_REGION[0], mean_ms)
        }),
    ],
    shapes: |m| {
        let of = |(name, _): (String, &'static str)| {
            let [far, near] =
                [name.clone(), format!("{name}{NEAR}")].map(|line| local_rate(m, &line).at(0.0));
            let flat = format!("{name}: throughput without second warehouses over that without a delay");
            let local = of_kind(m, &name, LOCAL[0], median_ms).at(0.0);
            let multi = of_kind(m, &name, MULTI_REGION[0], median_ms).at(LITTLE);
            let trip =
                format!("{name}, 1%: latency of NewOrders over that of local ones and a round trip, medians");
            let ratio = multi.zip(local).map(|(multi, local)| multi / (local + ROUND_TRIP));
            let falls =
                format!("{name}: with 10% of second warehouses no more is left than with 1%: their ratio");
            [
                Shape::at_least(flat, far.zip(near).map(|(far, near)| far / near), 0.95),
                Shape::number(trip, Claim::AtMost(1.1), ratio),
                Shape::number(falls, Claim::AtMost(1.0), over_at(&local_rate(m, &name), 10.0, LITTLE)),
            ]
        };
        engines().into_iter().flat_map(of).chain([cores_are_free(m)]).collect()
    },
    notes: &[
        "Each region has a client for transactions of its own warehouses and 8 for those with a warehouse of another region, which are held to the share \
         of the place as far as they reach. A warehouse has 1,000 items in a quick run and 10,000 in a full one, and 30 customers in each district.",
        "A transaction of two regions keeps its warehouse or its district from others until both regions have promised: local transactions of that warehouse \
         wait for some 50 ms, however few records it has.",
        "The audit names the rows of a warehouse, as no transaction reads the tables of two regions: rows that nothing leads to would not be found.",
    ],
    more: |_, m, summary| {
        add_pair("NewOrder", [LOCAL[0], MULTI_REGION[0]], m, summary);
        add_pair("Payment", [LOCAL[1], MULTI_REGION[1]], m, summary);
    },
    ..PLAIN
};

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::super::verdict::Verdict::{Below, Differs, Holds, Unknown};
    use super::super::SILO;
    use super::*;
    use crate::bench::Bench;
    use crate::embedded::Length;
    use crate::plot::testing;
    use crate::progress::Progress;
    use crate::report::Latency;

    #[test]
    fn every_engine_has_points_and_warehouses_of_its_own() {
        for size in [Size::Quick, Size::Full] {
            let points = F5.points(size, 2).unwrap();
            assert!(points.len() >= 12, "{}", points.len());
            for FigurePoint { point, measure, .. } in points {
                assert!(point.workload.is_audited_at_home() && measure.is_some());
                assert!(point.system.to_string().contains("3 storage nodes each"), "{}", point.system);
            }
        }
    }

    #[test]
    fn conditions_hold_over_regions() {
        for (name, engine) in engines() {
            for percent in [0.0, 20.0] {
                let mut line = line(name.clone(), engine, REGIONS, 0);
                set(Size::Quick, percent, 2.0, &mut line).unwrap();
                // A few of 400 NewOrders are of an item that there is not, and the others are to say something of each loop.
                line.threads = 1;
                let workload = Tpcc::new(Parameters {
                    warehouses: 4,
                    scale: Scale { districts: 2, customers: 12, items: 40, orders: 12, undelivered: 4 },
                    partitions: 2,
                    remote: Remote::Share(percent / 100.0),
                    at_home: true,
                    ..Parameters::default()
                });
                let point = line.at(0.0, Arc::new(workload.unwrap())).point;
                let mut bench = Bench::embedded(Length::Txns(400), None);
                let run = bench.measure(&point, 1, 1, &Progress::new(Duration::ZERO)).unwrap();
                assert!(run.passed(), "{name} {percent}: {:?}", run.wrong);
                for check in ["condition_1", "condition_8", "stocks", "payments", "orders"] {
                    assert!(run.checks.contains_key(check), "{check}");
                }
                let of_two: u64 = MULTI_REGION
                    .iter()
                    .filter_map(|kind| run.kinds.get(kind))
                    .map(|kind| kind.committed)
                    .sum();
                assert_eq!(of_two > 20, percent > 0.0, "{name} {of_two}");
            }
        }
    }

    #[test]
    fn what_is_left_is_held_against_no_delay_and_latency_against_a_round_trip() {
        let of = |rates: [u64; 3], multi_ms: u64| {
            let kind = |committed, ms: u64| KindOfRun {
                committed,
                latency_us: Latency { p50: ms * 1_000, ..Latency::default() },
                ..KindOfRun::default()
            };
            let run = |line: String, x: f64, rate: u64| {
                let mut kinds = std::collections::BTreeMap::from([(LOCAL[0], kind(rate, 10))]);
                if x > 0.0 {
                    kinds.insert(MULTI_REGION[0], kind(rate / 10, multi_ms));
                }
                (line, x, Run { nodes: 2, kinds, ..testing::run("e", 1, rate as f64, true) })
            };
            let runs = engines().into_iter().flat_map(|(name, _)| {
                let near = format!("{name}{NEAR}");
                [
                    run(near, 0.0, 1000),
                    run(name.clone(), 0.0, rates[0]),
                    run(name.clone(), LITTLE, rates[1]),
                    run(name, 10.0, rates[2]),
                ]
            });
            let summary = F5.summary(&Measured { runs: runs.collect(), ..Measured::default() });
            let of_silo = summary.shapes.iter().filter(|shape| shape.must.starts_with(SILO));
            (of_silo.map(|shape| shape.verdict).collect::<Vec<_>>(), summary.tables.len())
        };
        assert_eq!(of([950, 900, 900], 66), (vec![Holds; 3], 2));
        assert_eq!(of([949, 800, 801], 67).0, [Below, Differs, Differs]);
        let nothing = F5.summary(&Measured::default());
        assert!(nothing.shapes.iter().all(|shape| shape.verdict == Unknown));
    }
}
