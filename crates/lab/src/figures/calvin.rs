//! The Calvin paper's figures of one node, and of one beside many (calvin.md, section 7).

use std::sync::Arc;
use std::time::Duration;

use ordain_model::CheckpointMode;
use ordain_workload::micro::{Calvin, Micro};

use super::summary::{at, middle};
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Summary, scale, thread_counts};
use crate::demand;
use crate::plot::{Axis, Kind, Plot, Scale, Series, si};
use crate::report::{CheckpointOfRun, Run};

/// What the paper's one machine did: 8 virtual cores of 2012.
const ONE_MACHINE: f64 = 27_000.0;
/// Up to how many cores the model is drawn.
pub(super) const MODEL_CORES: u32 = 16;

fn micro(size: Size, contention_index: f64) -> anyhow::Result<Arc<Micro>> {
    let records_per_partition = size.records(1_000_000);
    Ok(Arc::new(Micro::calvin(Calvin { records_per_partition, contention_index, ..Calvin::default() })?))
}

/// Figure 3: throughput over time while a checkpoint is captured, in each of the three modes.
#[derive(Debug)]
pub struct Figure3;

/// How long a point of the line is.
const TICK: f64 = 0.1;
/// The line of the run without a checkpoint.
const WITHOUT: &str = "no checkpoint";
/// The least that is done in a tick while a checkpoint is captured, by the median of the others, where nothing stalls.
const STALL: f64 = 0.2;
/// So many times as long as any other is a pause in which execution stands still.
const STANDSTILL: f64 = 2.0;
/// The least that is done while it is captured, on average, for the dip to be moderate.
const MODERATE: f64 = 0.6;

/// Throughput of a run around its checkpoint.
struct Dip {
    /// Before it was asked for and after it was complete.
    outside: f64,
    /// While it was captured.
    mean: f64,
    /// The least of a tick in that time.
    least: f64,
    /// The longest time without an answer, then and otherwise, milliseconds.
    pauses: [f64; 2],
    /// How long it was captured, seconds.
    took: f64,
}

impl Dip {
    /// None if no checkpoint was completed.
    fn of(run: &Run) -> Option<Dip> {
        let CheckpointOfRun { asked_s, complete_s, during, beside } = run.checkpoint?;
        let complete_s = complete_s?;
        let line = Figure3::timeline(&run.timeline).into_iter();
        // A tick that it began or ended in is partly in it.
        let inside = line.filter(|(at, _)| (asked_s - TICK..=complete_s + TICK).contains(at));
        let least = inside.map(|(_, rate)| rate).reduce(f64::min)?;
        Some(Dip {
            outside: beside.txn_per_s,
            mean: during.txn_per_s,
            least,
            pauses: [during, beside].map(|stretch| stretch.pause_us as f64 / 1e3),
            took: complete_s - asked_s,
        })
    }

    fn told(&self) -> String {
        let Dip { outside, mean, least, pauses: [during, beside], took } = self;
        format!(
            "{} txn/s for {took:.1} s, at least {}, beside {}: {:.2}; longest pause {during:.1} ms, beside {beside:.1} ms",
            si(*mean),
            si(*least),
            si(*outside),
            mean / outside
        )
    }
}

impl Figure3 {
    /// Commits in ticks of the same length, as a rate.
    fn timeline(ticks: &[(f64, u64)]) -> Vec<(f64, f64)> {
        let mut before = 0.0;
        let rate = |(end, commits): &(f64, u64)| {
            let from = std::mem::replace(&mut before, *end);
            let is_whole = end - from > TICK * 0.75;
            is_whole.then(|| ((from + end) / 2.0, *commits as f64 / (end - from)))
        };
        ticks.iter().filter_map(rate).collect()
    }
}

impl Experiment for Figure3 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let workload = micro(size, 0.0001)?;
        let mut points = vec![FigurePoint::calvin(WITHOUT, 0.0, cores, workload.clone())];
        for (i, (name, mode)) in CheckpointMode::ALL.into_iter().enumerate() {
            let mut point = FigurePoint::calvin(name, (i + 1) as f64, cores, workload.clone());
            point.point.checkpoint = Some(mode);
            points.push(point);
        }
        Ok(points)
    }

    fn measure(&self, size: Size) -> Duration {
        Duration::from_secs(if size == Size::Quick { 6 } else { 60 })
    }

    fn repetitions(&self, _size: Size) -> usize {
        1
    }

    fn tell(&self, measured: &Measured) -> Summary {
        let runs: Vec<_> = measured.runs.iter().filter(|(_, _, run)| run.passed()).collect();
        let line = |run: &Run| Figure3::timeline(&run.timeline);
        let series: Vec<Series> =
            runs.iter().map(|(name, _, run)| Series::measured(name, line(run))).collect();
        let dip = |mode: CheckpointMode| {
            let name = mode.to_string();
            runs.iter().find(|(line, _, _)| *line == name).and_then(|(_, _, run)| Dip::of(run))
        };
        let shape = |what: String, dip: Option<Dip>, holds: fn(&Dip) -> bool| match dip {
            None => Shape::unknown(what, "no checkpoint was completed while measuring"),
            Some(dip) => Shape::new(what, holds(&dip), dip.told()),
        };
        let mut shapes = Vec::new();
        for mode in [CheckpointMode::ZigZag, CheckpointMode::Multiversion] {
            shapes.push(shape(
                format!("{mode}: no stall: no tenth of a second under {STALL} of the median without"),
                dip(mode),
                |dip| dip.least >= STALL * dip.outside,
            ));
            shapes.push(shape(
                format!("{mode}: a moderate dip while the checkpoint is captured: at least {MODERATE}"),
                dip(mode),
                |dip| dip.mean >= MODERATE * dip.outside,
            ));
        }
        shapes.push(shape(
            format!("{}: one replica alone stands still", CheckpointMode::Naive),
            dip(CheckpointMode::Naive),
            |dip| dip.pauses[0] >= STANDSTILL * dip.pauses[1],
        ));
        let known = |dip: Option<Dip>| dip.map_or_else(|| "not measured".to_owned(), |dip| dip.told());
        let without = series.iter().find(|series| series.name == WITHOUT);
        let asked = runs.iter().filter_map(|(name, _, run)| {
            let CheckpointOfRun { asked_s, complete_s, .. } = run.checkpoint?;
            let complete = complete_s.map_or_else(
                || "not complete in the end".to_owned(),
                |complete_s| format!("complete after {complete_s:.1} s"),
            );
            Some(format!("{name}: asked for after {asked_s:.1} s, {complete}"))
        });
        Summary {
            beside: vec![
                Beside::new(
                    "throughput on one machine, low contention",
                    "27 K txn/s (section 6.3)",
                    without.map_or_else(|| "not measured".to_owned(), |s| format!("{} txn/s", si(middle(s)))),
                ),
                Beside::new(
                    "while a checkpoint is captured, Zig-Zag variant",
                    "a moderate dip (the image is lost)",
                    known(dip(CheckpointMode::ZigZag)),
                ),
                Beside::new(
                    "the same, from the multiversion store",
                    "not shown",
                    known(dip(CheckpointMode::Multiversion)),
                ),
                Beside::new(
                    "the same, naive, with one replica",
                    "execution stops for the duration",
                    known(dip(CheckpointMode::Naive)),
                ),
            ],
            plots: vec![Plot {
                title: "Throughput over time while a checkpoint is captured".to_owned(),
                subtitle: "microbenchmark, contention index 0.0001, one node, a checkpoint a quarter of the way".to_owned(),
                x: Axis::new("time", "s", Scale::Linear),
                y: Axis::throughput(),
                kind: Kind::Lines,
                series,
                notes: asked.collect(),
            }],
            shapes,
            notes: vec!["A node gives a checkpoint away slowly while transactions come, so that the dip is long and shallow.".to_owned()],
            tables: Vec::new(),
        }
    }
}

/// The paper's three lines, whose legend is lost in our copy: these are from memory.
const LINES: [scale::Line; 3] = [
    scale::Line { name: "10% on two nodes, C = 0.0001", multi: 0.1, contention_index: 0.0001 },
    scale::Line { name: "100% on two nodes, C = 0.0001", multi: 1.0, contention_index: 0.0001 },
    scale::Line { name: "10% on two nodes, C = 0.01", multi: 0.1, contention_index: 0.01 },
];

/// Figure 5: the microbenchmark, on one node, with what the service demands say about more cores and more nodes.
#[derive(Debug)]
pub struct Figure5;

const LOW: &str = "C = 0.0001";
const HIGH: &str = "C = 0.01";

impl Experiment for Figure5 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        let (low, high) = (micro(size, 0.0001)?, micro(size, 0.01)?);
        let of = |threads: usize| {
            let x = threads as f64;
            [
                FigurePoint::calvin(LOW, x, threads, low.clone()),
                FigurePoint::calvin(HIGH, x, threads, high.clone()),
            ]
        };
        let mut points: Vec<FigurePoint> = thread_counts(cores).into_iter().flat_map(of).collect();
        for line in &LINES {
            points.extend(scale::points(line, |nodes, multi_partition| {
                Ok(Arc::new(Micro::calvin(Calvin {
                    partitions: nodes.into(),
                    records_per_partition: size.records(1_000_000),
                    contention_index: line.contention_index,
                    multi_partition,
                    at_home: true,
                    ..Calvin::default()
                })?))
            })?);
        }
        points.extend(scale::epochs()?);
        Ok(points)
    }

    fn tell(&self, everything: &Measured) -> Summary {
        let measured = &everything.only(|line| !scale::is_on_nodes(line));
        let mut told = model(
            measured,
            "Microbenchmark on one node",
            "10 read-modify-writes, 1 of them hot",
            ("the paper's one machine: 27 K", ONE_MACHINE),
        );
        let (low, high) =
            (measured.series(LOW, |run| run.txn_per_s), measured.series(HIGH, |run| run.txn_per_s));
        let cores = measured.last_x(LOW).unwrap_or(1.0);
        told.beside = vec![
            Beside::new(
                "one machine, low contention",
                "27 K txn/s on 8 virtual cores of 2012 (section 6.3)",
                format!("{} on {cores} cores", at(&low, cores)),
            ),
            Beside::new("one machine, contention index 0.01", "only in the image", at(&high, cores)),
            Beside::new("100 machines, TPC-C-like contention", "only in the image", "see the model"),
        ];
        let ratio = low.at(cores).zip(high.at(cores)).map(|(low, high)| high / low);
        told.shapes = vec![
            Shape::at_least(
                "one node does no less than the paper's one machine (27 K txn/s)",
                low.at(cores),
                ONE_MACHINE,
            ),
            match ratio {
                Some(ratio) => Shape::new(
                    "on one node a contention index of 0.01 costs little: at least 0.75 of 0.0001",
                    ratio >= 0.75,
                    format!("{ratio:.2}"),
                ),
                None => Shape::unknown("on one node a contention index of 0.01 costs little", "not measured"),
            },
        ];
        scale::tell(&mut told, &LINES, everything, "Microbenchmark on 1 to 100 nodes");
        told
    }
}

/// Measured throughput over threads, and the model beside it: what figures that ask for more cores have in common.
pub(super) fn model(measured: &Measured, title: &str, subtitle: &str, reference: (&str, f64)) -> Summary {
    let mut series = Vec::new();
    let mut demands = Vec::new();
    let mut models = Vec::new();
    for line in measured.lines() {
        let name = format!("{line}, measured");
        series.push(Series { name, ..measured.series(line, |run| run.txn_per_s) });
        // With all threads, so that what they say to one another is in it.
        let Some(threads) = measured.last_x(line) else { continue };
        let known = measured.demands(line, threads);
        // One core would run one thread, which has nobody to talk to.
        let mut model = known.series(format!("{line}, X(c)"), 1..=MODEL_CORES);
        let alone = measured.demands(line, 1.0);
        if let Some(first) = model.points.first_mut().filter(|_| alone.sum_us() > 0.0) {
            first.1 = alone.txn_per_s(1.0);
        }
        models.push(model);
        demands.push((format!("{line}, {threads} threads"), known));
    }
    series.extend(models);
    series.push(Series::reference(reference.0, vec![(1.0, reference.1)]));
    let bounds = demands.iter().filter_map(|(name, known)| {
        let (single, cores) = (known.bottleneck()?, known.cores_used_at_most()?);
        Some(format!(
            "{name}: growth ends when the {}, one thread, is busy: at {cores:.0} cores.",
            single.part
        ))
    });
    let notes = [
        "X(c) = min(1 / largest demand of a single thread, c / sum of demands), clients not counted: what a machine with \
         c cores could do at best. X(1) is from the demands of the run with one thread, the others from those of the run \
         with the most, which pay for what shards say to one another. Measured points include the clients, which share \
         the cores."
            .to_owned(),
        "Clients do not wait for the log to be on disk, as the paper's did not.".to_owned(),
    ];
    Summary {
        plots: vec![Plot {
            title: title.to_owned(),
            subtitle: subtitle.to_owned(),
            x: Axis::new("cores", "", Scale::Linear),
            y: Axis::throughput(),
            kind: Kind::Lines,
            series,
            notes: Vec::new(),
        }],
        notes: notes.into_iter().chain(bounds).collect(),
        tables: vec![demand::table(&demands)],
        ..Summary::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing;
    use crate::report::StretchOfRun;

    #[test]
    fn ticks_become_rates_and_a_rest_is_left_out() {
        let ticks = [(0.1, 100), (0.2, 100), (0.22, 100)];
        let line = Figure3::timeline(&ticks);
        assert_eq!(line.len(), 2, "{line:?}");
        assert!(line.iter().all(|(_, rate)| (rate - 1000.0).abs() < 1.0), "{line:?}");
        assert!(Figure3::timeline(&[]).is_empty());
    }

    #[test]
    fn a_dip_is_what_is_less_while_a_checkpoint_is_captured() {
        let commits = |i: u32| if (20..30).contains(&i) { 50 + u64::from(i) } else { 100 };
        let timeline = (0..60).map(|i| (f64::from(i + 1) * 0.1, commits(i))).collect();
        let stretch = |txn_per_s, pause_us| StretchOfRun { txn_per_s, pause_us, ..StretchOfRun::default() };
        let (during, beside) = (stretch(745.0, 19_000), stretch(1000.0, 8_000));
        let mut checkpoint = CheckpointOfRun { asked_s: 2.0, complete_s: Some(3.0), during, beside };
        let mut run = Run { timeline, checkpoint: Some(checkpoint), ..testing::run("calvin", 0, 1.0, true) };
        let told = Dip::of(&run).unwrap().told();
        assert_eq!(
            told,
            "745 txn/s for 1.0 s, at least 700, beside 1 K: 0.74; longest pause 19.0 ms, beside 8.0 ms"
        );
        checkpoint.complete_s = None;
        run.checkpoint = Some(checkpoint);
        assert!(Dip::of(&run).is_none(), "it was not complete in the end");
    }
}
