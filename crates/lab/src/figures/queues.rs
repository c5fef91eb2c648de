//! Questions about queues that the Q-Store paper does not ask (qstore.md, section 7: ours A to C), on four nodes.

use std::sync::Arc;
use std::time::Duration;

use ordain_deterministic::options::{EXECUTION, PLAN_AHEAD};
use ordain_model::{Micros, OptionValue};
use ordain_workload::Workload;
use ordain_workload::micro::Calvin;

use super::calvin::micro;
use super::contest::{CALVIN, CLIENTS, NODES, QSTORE, WAY, grid, ratios};
use super::experiment::{Experiment, LINEAR, Line, PICTURE, Picture, Values};
use super::qstore::{self, ycsb};
use super::{Shape, Size};
use crate::plot::{Kind, Scale, Series};

/// A line of an engine on four nodes that far apart.
fn line(name: impl Into<String>, engine: &str, way: Micros) -> Line {
    Line::cluster(name, grid(NODES, way), CLIENTS).by(engine)
}

/// Updates of ten records of which one, or two, are hot: one of a hundred in each partition. Transactions wait for those,
/// or are undone because of them.
fn updates(size: Size, parameters: Calvin) -> anyhow::Result<Arc<dyn Workload>> {
    micro(size, Calvin { partitions: NODES.into(), contention_index: 0.01, ..parameters })
}

/// The percentages of transactions that abort.
const ABORTS: [f64; 5] = [0.0, 0.01, 0.1, 1.0, 5.0];
/// The lines of A, named as the values of the option.
const CONSERVATIVE: &str = "conservative";
const SPECULATIVE: &str = "speculative";
const AUTO: &str = "auto";

/// Ours A: aborts.
pub static A: Experiment = Experiment {
    title: "Aborts by logic",
    subtitle: "4 nodes, updates of 10 records, one in a hundred of them hot, half of the transactions on two nodes",
    x: ("transactions whose check fails", "%", || {
        Scale::Categories(ABORTS.iter().map(f64::to_string).collect())
    }),
    values: Values::At(&[0.0, 1.0, 2.0, 3.0, 4.0]),
    lines: |_| {
        let execution = |name| line(name, "qstore", WAY).with(&EXECUTION, OptionValue::Name(name));
        [CONSERVATIVE, SPECULATIVE, AUTO].map(execution).into()
    },
    setting: |size, place, _| {
        let constraint_fails = Some(ABORTS[place as usize] / 100.0);
        updates(size, Calvin { multi_partition: 0.5, constraint_fails, ..Calvin::default() })
    },
    // Long enough for auto to find out.
    measure: |size| size.measure().max(Duration::from_secs(10)),
    plots: &[Picture { kind: Kind::Bars, ..PICTURE }],
    is_ours: true,
    shapes: |m| {
        let [conservative, speculative, auto] = [CONSERVATIVE, SPECULATIVE, AUTO].map(|line| m.clock(line));
        let best =
            |x| [&conservative, &speculative].iter().filter_map(|line| line.at(x)).max_by(f64::total_cmp);
        let better = auto.points.iter().filter_map(|(x, _)| Some((*x, best(*x)?))).collect();
        let ratios = ratios(&auto, &Series::measured("the better", better));
        let least = ratios.iter().map(|(_, ratio)| *ratio).reduce(f64::min);
        let falls = "speculative execution falls as more is undone: with 5% below 0.95 of that with none";
        vec![
            Shape::flat("conservative execution is flat: within 15%", &conservative, 0.15),
            Shape::falls(falls, &speculative, 0.95),
            Shape::at_least("auto over the better of the two, at the least", least, 0.95),
        ]
    },
    notes: &[
        "Every fragment may abort its transaction, so conservative execution waits for every node's verdict; speculative \
         execution undoes, of what aborts, all that has used it, and executes that again.",
    ],
    ..Experiment::PLAIN
};

/// The delays of B between two nodes, one way.
const WAYS: [(&str, Micros); 3] =
    [("nothing between nodes", Micros(0)), ("0.25 ms", WAY), ("1 ms", Micros(1_000))];
/// Batches that are planned while one is executed: the first as in the paper, the last by default.
const AHEAD: [u64; 4] = [0, 1, 2, 3];
const MOST: u64 = AHEAD[AHEAD.len() - 1];

fn barrier(way: &str, ahead: u64) -> String {
    format!("{way}, {ahead} ahead")
}

/// Ours B: the cost of batches that nodes have to agree on, by how far they are apart and how large a batch is.
pub static B: Experiment = Experiment {
    title: "Batches and the way between nodes",
    subtitle: qstore::SUBTITLE,
    x: ("transactions under way, which is the most that a batch can have", "", LINEAR),
    values: Values::At(&[1_000.0, 4_000.0, 10_000.0, 20_000.0]),
    lines: |_| {
        let of = |(name, way)| {
            AHEAD.map(|ahead| {
                let line = line(barrier(name, ahead), "qstore", way);
                line.with(&PLAN_AHEAD, OptionValue::Integer(ahead))
            })
        };
        WAYS.map(of).concat()
    },
    setting: |size, clients, line| {
        line.clients = clients as usize;
        ycsb(qstore::defaults(size))
    },
    plots: &[PICTURE],
    is_ours: true,
    shapes: |m| {
        let rate = |way: &str, ahead| m.clock(&barrier(way, ahead));
        let [(near, _), (quarter, _), (whole, _)] = WAYS;
        let share = |way| Series::measured(way, ratios(&rate(way, MOST), &rate(near, MOST)));
        let costs = |way| {
            let must =
                format!("what {way} costs is less the larger batches are: its share of the throughput grows");
            Shape::rises(must, &share(way), 1.0)
        };
        let hides = "1 ms apart, what planning ahead brings is less the larger batches are";
        let gain = Series::measured("gain", ratios(&rate(whole, MOST), &rate(whole, AHEAD[0])));
        vec![costs(quarter), costs(whole), Shape::grows_at_most(hides, &gain, 1.0)]
    },
    notes: &[
        "With none ahead a batch is closed once the one before is executed, as the paper plans and executes in turns. What is \
         under way is the most that all batches have together.",
    ],
    ..Experiment::PLAIN
};

/// The nodes of a transaction of C, and the share of transactions on two.
const PLACES: [(&str, f64); 2] = [("on one node", 0.0), ("on two", 1.0)];

fn dependent(engine: &str, place: usize) -> String {
    format!("{engine}, {}", PLACES[place].0)
}

/// Ours C: values that one record's update needs from another.
pub static C: Experiment = Experiment {
    title: "Data dependencies",
    subtitle: "4 nodes, updates of 10 records, one in a hundred of them hot; in a dependent transaction five are \
               updated by what is found in the other five",
    x: ("dependent transactions", "%", LINEAR),
    values: Values::At(&[0.0, 25.0, 50.0, 75.0, 100.0]),
    lines: |_| {
        let of = |place: usize| {
            [(QSTORE, "qstore"), (CALVIN, "calvin")]
                .map(|(name, engine)| line(dependent(name, place), engine, WAY).knob(PLACES[place].1))
        };
        [of(0), of(1)].concat()
    },
    setting: |size, percent, line| {
        let (multi_partition, dependent) = (line.knob, percent / 100.0);
        updates(size, Calvin { multi_partition, dependent, constraint_fails: None, ..Calvin::default() })
    },
    plots: &[PICTURE],
    is_ours: true,
    shapes: |m| {
        let costs = "values from another node cost throughput: with all dependent less than with none";
        let none = "values from the same node cost none: flat within 10%";
        vec![
            Shape::grows_at_most(costs, &m.clock(&dependent(QSTORE, 1)), 1.0),
            Shape::flat(none, &m.clock(&dependent(QSTORE, 0)), 0.1),
        ]
    },
    notes: &[
        "A dependent transaction of two nodes has its five values cross from one to the other before the records there \
         can be updated, and other transactions that want those wait too.",
    ],
    ..Experiment::PLAIN
};

#[cfg(test)]
mod tests {
    use super::super::Measured;
    use super::super::verdict::Verdict;
    use super::*;
    use crate::plot::testing;

    #[test]
    fn auto_is_held_against_the_better_way_at_each_place() {
        let run = |line: &str, x: f64, rate: f64| (line.to_owned(), x, testing::run("e", 1, rate, true));
        let verdicts = |auto: f64| {
            let runs = vec![
                run(CONSERVATIVE, 0.0, 100.0),
                run(SPECULATIVE, 0.0, 200.0),
                run(AUTO, 0.0, auto),
                run(CONSERVATIVE, 1.0, 100.0),
                run(SPECULATIVE, 1.0, 50.0),
                run(AUTO, 1.0, 100.0),
            ];
            A.summary(&Measured { runs, ..Measured::default() })
                .shapes
                .into_iter()
                .map(|shape| shape.verdict)
                .collect::<Vec<_>>()
        };
        assert_eq!(verdicts(195.0), [Verdict::Holds; 3]);
        assert_eq!(verdicts(150.0), [Verdict::Holds, Verdict::Holds, Verdict::Below]);
        assert_eq!(A.summary(&Measured::default()).shapes[2].verdict, Verdict::Unknown);
    }
}
