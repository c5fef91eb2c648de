//! Questions about queues that the Q-Store paper does not ask (qstore.md, section 7: ours A to C), on four nodes.

use std::sync::Arc;
use std::time::Duration;

use ordain_deterministic::options::{EXECUTION, PLAN_AHEAD};
use ordain_model::{Micros, OptionValue};
use ordain_workload::Workload;
use ordain_workload::micro::{Calvin, Micro};

use super::contest::{CALVIN, CLIENTS, NODES, QSTORE, WAY};
use super::{Experiment, FigurePoint, Measured, Shape, Size, Summary, qstore};
use crate::embedded::{Delay, Grid};
use crate::plot::{Axis, Kind, Plot, Scale, Series};

/// A point of Q-Store's on four nodes that far apart.
fn point(line: &str, x: f64, way: Micros, clients: usize, workload: Arc<dyn Workload>) -> FigurePoint {
    let grid = Grid { delay: Delay::Even(way), ..Grid::of(NODES) };
    FigurePoint::cluster(line, x, grid, clients, workload).of_engine("qstore")
}

/// Updates of ten records of which one, or two, are hot: one of a hundred in each partition. What waits, and what has to be
/// undone, waits for or follows from those.
fn updates(size: Size, parameters: Calvin) -> anyhow::Result<Arc<dyn Workload>> {
    let records_per_partition = size.records(1_000_000);
    let partitions = NODES.into();
    let parameters = Calvin { partitions, records_per_partition, contention_index: 0.01, ..parameters };
    Ok(Arc::new(Micro::calvin(parameters)?))
}

fn clock(measured: &Measured) -> Vec<Series> {
    measured.all_series(|run| run.txn_per_s)
}

/// The least and the most that one line is of the best of others, by place.
fn over_best(line: &Series, others: &[&Series]) -> Option<(f64, f64)> {
    let best = |x: f64| others.iter().filter_map(|other| other.at(x)).max_by(f64::total_cmp);
    let ratios: Vec<f64> = line.points.iter().filter_map(|(x, y)| Some(y / best(*x)?)).collect();
    let first = *ratios.first()?;
    Some(ratios.iter().fold((first, first), |(low, high), ratio| (low.min(*ratio), high.max(*ratio))))
}

/// Ours A: aborts.
#[derive(Debug)]
pub struct Aborts;

const ABORTS: [f64; 5] = [0.0, 0.01, 0.1, 1.0, 5.0];
const CONSERVATIVE: &str = "conservative";
const SPECULATIVE: &str = "speculative";
const AUTO: &str = "auto";

impl Experiment for Aborts {
    /// Long enough for auto to find out.
    fn measure(&self, size: Size) -> Duration {
        size.measure().max(Duration::from_secs(10))
    }

    fn repetitions(&self, size: Size) -> usize {
        if size == Size::Quick { 1 } else { size.repetitions() }
    }

    fn points(&self, size: Size, _cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let mut points = Vec::new();
        for (place, percent) in ABORTS.into_iter().enumerate() {
            let workload = updates(
                size,
                Calvin { multi_partition: 0.5, constraint_fails: Some(percent / 100.0), ..Calvin::default() },
            )?;
            for (line, execution) in
                [(CONSERVATIVE, "conservative"), (SPECULATIVE, "speculative"), (AUTO, "auto")]
            {
                let point = point(line, place as f64, WAY, CLIENTS, workload.clone());
                points.push(point.with(&EXECUTION, OptionValue::Name(execution)));
            }
        }
        Ok(points)
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let rate = |line: &str| measured.series(line, |run| run.txn_per_s);
        let [conservative, speculative, auto] = [CONSERVATIVE, SPECULATIVE, AUTO].map(rate);
        let names = ABORTS.iter().map(f64::to_string).collect();
        let must = "auto is never below 0.95 of the better of the two";
        let chosen = match over_best(&auto, &[&conservative, &speculative]) {
            Some((least, most)) => Shape::new(must, least >= 0.95, format!("{least:.2} to {most:.2}")),
            None => Shape::unknown(must, "not measured"),
        };
        Summary {
            plots: vec![Plot {
                title: "Aborts by logic".to_owned(),
                subtitle: "4 nodes, updates of 10 records, one in a hundred of them hot, half of the transactions on two nodes"
                    .to_owned(),
                x: Axis::new("transactions whose check fails", "%", Scale::Categories(names)),
                y: Axis::new("throughput", "txn/s", Scale::Linear),
                kind: Kind::Bars,
                series: vec![conservative.clone(), speculative.clone(), auto],
                notes: Vec::new(),
            }],
            shapes: vec![
                Shape::flat("conservative execution is flat: within 15%", &conservative, 0.15),
                Shape::changes(
                    "speculative execution falls as more is undone: with 5% below 0.95 of that with none",
                    &speculative,
                    0.0,
                    0.95,
                ),
                chosen,
            ],
            notes: vec![
                "Every fragment may abort its transaction, so whoever does not speculate waits for every node's verdict; whoever \
                 does undoes, of what aborts, all that has used it, and executes that again."
                    .to_owned(),
            ],
            ..Summary::default()
        }
    }
}

/// Ours B: what a batch costs that nodes have to talk about, by how far they are apart and how large it is.
#[derive(Debug)]
pub struct Barriers;

const WAYS: [(&str, Micros); 3] =
    [("nothing between nodes", Micros(0)), ("0.25 ms", WAY), ("1 ms", Micros(1_000))];
const UNDER_WAY: [usize; 4] = [1_000, 4_000, 10_000, 20_000];
/// How many batches are planned while one is executed; the first as the paper has it, the last by default.
const AHEAD: [u64; 4] = [0, 1, 2, 3];
/// The default.
const MOST: u64 = AHEAD[AHEAD.len() - 1];

fn barrier(way: &str, ahead: u64) -> String {
    format!("{way}, {ahead} ahead")
}

impl Experiment for Barriers {
    fn points(&self, size: Size, _cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let workload = qstore::workload(size)?;
        let mut points = Vec::new();
        for clients in UNDER_WAY {
            for (name, way) in WAYS {
                for ahead in AHEAD {
                    let point = point(&barrier(name, ahead), clients as f64, way, clients, workload.clone());
                    points.push(point.with(&PLAN_AHEAD, OptionValue::Integer(ahead)));
                }
            }
        }
        Ok(points)
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let series = clock(measured);
        let share = |line: &str| {
            let rate = |line: &str| measured.series(line, |run| run.txn_per_s);
            let (near, far) = (rate(&barrier(WAYS[0].0, MOST)), rate(&barrier(line, MOST)));
            let of_near = far.points.iter().filter_map(|(x, y)| Some((*x, y / near.at(*x)?)));
            Series::measured(line, of_near.collect())
        };
        let [_, (quarter, _), (whole, _)] = WAYS;
        let shapes = [quarter, whole].map(|line| {
            Shape::changes(
                &format!(
                    "what {line} costs is less the larger batches are: its share of the throughput grows"
                ),
                &share(line),
                1.0,
                f64::INFINITY,
            )
        });
        let far = |ahead| measured.series(&barrier(WAYS[2].0, ahead), |run| run.txn_per_s);
        let (none, most) = (far(AHEAD[0]), far(MOST));
        let gain = none.points.iter().filter_map(|(x, y)| Some((*x, most.at(*x)? / y)));
        let gain = Series::measured("gain", gain.collect());
        let hides = Shape::changes(
            "1 ms apart, what planning ahead brings is less the larger batches are",
            &gain,
            0.0,
            1.0,
        );
        Summary {
            plots: vec![Plot {
                title: "Batches and the way between nodes".to_owned(),
                subtitle: qstore::SUBTITLE.to_owned(),
                x: Axis::new("transactions under way, which is the most that a batch can have", "", Scale::Linear),
                y: Axis::throughput(),
                kind: Kind::Lines,
                series,
                notes: Vec::new(),
            }],
            shapes: shapes.into_iter().chain([hides]).collect(),
            notes: vec![
                "With none ahead a batch is closed once the one before is executed, as the paper plans and executes in turns. What is \
                 under way is the most that all batches have together."
                    .to_owned(),
            ],
            ..Summary::default()
        }
    }
}

/// Ours C: values that one record's update needs from another.
#[derive(Debug)]
pub struct Dependencies;

const DEPENDENT: [f64; 5] = [0.0, 25.0, 50.0, 75.0, 100.0];
/// On which nodes: the name, and the share of transactions on two.
const WHERE: [(&str, f64); 2] = [("on one node", 0.0), ("on two", 1.0)];
const ENGINES: [(&str, &str); 2] = [(QSTORE, "qstore"), (CALVIN, "calvin")];

fn line(engine: &str, place: &str) -> String {
    format!("{engine}, {place}")
}

impl Experiment for Dependencies {
    fn points(&self, size: Size, _cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let mut points = Vec::new();
        for percent in DEPENDENT {
            for (place, multi_partition) in WHERE {
                let dependent = percent / 100.0;
                let parameters =
                    Calvin { multi_partition, dependent, constraint_fails: None, ..Calvin::default() };
                let workload = updates(size, parameters)?;
                for (name, engine) in ENGINES {
                    let point = point(&line(name, place), percent, WAY, CLIENTS, workload.clone());
                    points.push(point.of_engine(engine));
                }
            }
        }
        Ok(points)
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let rate = |place: &str| measured.series(&line(QSTORE, place), |run| run.txn_per_s);
        let [(here, _), (there, _)] = WHERE;
        Summary {
            plots: vec![Plot {
                title: "Data dependencies".to_owned(),
                subtitle: "4 nodes, updates of 10 records, one in a hundred of them hot; in a dependent transaction five are \
                           updated by what is found in the other five"
                    .to_owned(),
                x: Axis::new("dependent transactions", "%", Scale::Linear),
                y: Axis::throughput(),
                kind: Kind::Lines,
                series: clock(measured),
                notes: Vec::new(),
            }],
            shapes: vec![
                Shape::changes(
                    "values from another node cost throughput: with all dependent less than with none",
                    &rate(there),
                    0.0,
                    1.0,
                ),
                Shape::flat("values from the same node cost none: flat within 10%", &rate(here), 0.1),
            ],
            notes: vec![
                "A dependent transaction of two nodes has its five values cross from one to the other before the records there \
                 can be updated, and whoever wants those waits too."
                    .to_owned(),
            ],
            ..Summary::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing;

    #[test]
    fn auto_is_held_against_the_better_way_at_each_place() {
        let run = |line: &str, x: f64, rate: f64| (line.to_owned(), x, testing::run("e", 1, rate, true));
        let told = |auto: f64| {
            let runs = vec![
                run(CONSERVATIVE, 0.0, 100.0),
                run(SPECULATIVE, 0.0, 200.0),
                run(AUTO, 0.0, auto),
                run(CONSERVATIVE, 1.0, 100.0),
                run(SPECULATIVE, 1.0, 50.0),
                run(AUTO, 1.0, 100.0),
            ];
            Aborts.tell(&Measured { runs }).shapes.into_iter().map(|shape| shape.holds).collect::<Vec<_>>()
        };
        assert_eq!(told(195.0), [Some(true); 3]);
        assert_eq!(told(150.0), [Some(true), Some(true), Some(false)]);
        assert_eq!(Aborts.tell(&Measured::default()).shapes[2].holds, None);
    }
}
