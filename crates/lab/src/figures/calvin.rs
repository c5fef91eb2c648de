//! The Calvin paper's figures of one node, and of one beside many (calvin.md, section 7).

use std::sync::Arc;
use std::time::Duration;

use ordain_model::CheckpointMode;
use ordain_workload::Workload;
use ordain_workload::micro::{Calvin, Micro};

use super::experiment::{Experiment, LINEAR, Line, Logging, THROUGHPUT, Values};
use super::summary::{or_not, rate_at};
use super::{Beside, Measured, Shape, Size, Summary, scale};
use crate::demand;
use crate::plot::{Plot, Series, si};
use crate::report::{CheckpointOfRun, Run, median};

/// The throughput of the paper's one machine: 8 virtual cores of 2012.
const ONE_MACHINE: f64 = 27_000.0;
/// The factor within which a number is the paper's: its machines had 8 virtual cores of 2012.
pub const BAND: f64 = 2.0;
/// Up to how many cores X(c) is drawn.
const MODEL_CORES: u32 = 16;

/// The paper's microbenchmark, on as many records of a partition as the size has.
pub fn micro(size: Size, parameters: Calvin) -> anyhow::Result<Arc<dyn Workload>> {
    let records_per_partition = size.records(1_000_000);
    Ok(Arc::new(Micro::calvin(Calvin { records_per_partition, ..parameters })?))
}

fn contended(size: Size, contention_index: f64) -> anyhow::Result<Arc<dyn Workload>> {
    micro(size, Calvin { contention_index, ..Calvin::default() })
}

/// The length of a point of the line, seconds.
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
    /// Time of the capture, seconds.
    took: f64,
}

impl Dip {
    /// None if no checkpoint was completed.
    fn of(run: &Run) -> Option<Dip> {
        let CheckpointOfRun { asked_s, complete_s, during, beside } = run.checkpoint?;
        let complete_s = complete_s?;
        let line = timeline(&run.timeline).into_iter();
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

    fn text(&self) -> String {
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

/// The run of a mode, if its checks passed.
fn run_of(measured: &Measured, line: &str) -> Option<Run> {
    measured.places(line).first().map(|(_, runs)| runs[0].clone())
}

fn dip(measured: &Measured, mode: CheckpointMode) -> Option<Dip> {
    Dip::of(&run_of(measured, &mode.to_string())?)
}

/// Figure 3: throughput over time while a checkpoint is captured, in each of the three modes.
pub static FIGURE_3: Experiment = Experiment {
    title: "Throughput over time while a checkpoint is captured",
    subtitle: "microbenchmark, contention index 0.0001, one node, a checkpoint a quarter of the way",
    x: ("time", "s", LINEAR),
    values: Values::At(&[]),
    also: |size, cores| {
        let workload = contended(size, 0.0001)?;
        let mut points = vec![Line::node(WITHOUT, cores).at(0.0, workload.clone())];
        for (i, (name, mode)) in CheckpointMode::ALL.into_iter().enumerate() {
            let line = Line { checkpoint: Some(mode), ..Line::node(name, cores) };
            points.push(line.at((i + 1) as f64, workload.clone()));
        }
        Ok(points)
    },
    measure: |size| Duration::from_secs(size.pick(6, 60)),
    repetitions: |_| 1,
    log: Logging::CALVIN,
    paper: &[
        ("throughput on one machine, low contention", "27 K txn/s (section 6.3)", |m| {
            let run = run_of(m, WITHOUT);
            or_not(run, |run| {
                let rates = timeline(&run.timeline).into_iter().map(|(_, rate)| rate);
                format!("{} txn/s", si(median(rates)))
            })
        }),
        ("while a checkpoint is captured, Zig-Zag variant", "a moderate dip (the image is lost)", |m| {
            or_not(dip(m, CheckpointMode::ZigZag), |dip| dip.text())
        }),
        ("the same, from the multiversion store", "not shown", |m| {
            or_not(dip(m, CheckpointMode::Multiversion), |dip| dip.text())
        }),
        ("the same, naive, with one replica", "execution stops for the duration", |m| {
            or_not(dip(m, CheckpointMode::Naive), |dip| dip.text())
        }),
    ],
    shapes: |m| {
        let shape = |mode: CheckpointMode, must: String, holds: fn(&Dip) -> bool| {
            let must = format!("{mode}: {must}");
            match dip(m, mode) {
                None => Shape::unknown(must, "no checkpoint was completed while measuring"),
                Some(dip) => Shape::new(must, holds(&dip), dip.text()),
            }
        };
        let mut shapes = Vec::new();
        for mode in [CheckpointMode::ZigZag, CheckpointMode::Multiversion] {
            let stall = format!("no stall: no tenth of a second under {STALL} of the median without");
            let moderate = format!("a moderate dip while the checkpoint is captured: at least {MODERATE}");
            shapes.push(shape(mode, stall, |dip| dip.least >= STALL * dip.outside));
            shapes.push(shape(mode, moderate, |dip| dip.mean >= MODERATE * dip.outside));
        }
        let naive = "one replica alone stands still".to_owned();
        shapes.push(shape(CheckpointMode::Naive, naive, |dip| dip.pauses[0] >= STANDSTILL * dip.pauses[1]));
        shapes
    },
    notes: &[
        "A node gives a checkpoint away slowly while transactions come, so that the dip is long and shallow.",
    ],
    more: |figure, m, summary| {
        let runs = m.lines().into_iter().filter_map(|line| Some((line, run_of(m, line)?)));
        let runs: Vec<(&str, Run)> = runs.collect();
        let series = runs.iter().map(|(name, run)| Series::measured(*name, timeline(&run.timeline)));
        let notes = runs.iter().filter_map(|(name, run)| {
            let CheckpointOfRun { asked_s, complete_s, .. } = run.checkpoint?;
            let complete = complete_s.map(|complete_s| format!("complete after {complete_s:.1} s"));
            let complete = complete.unwrap_or_else(|| "not complete in the end".to_owned());
            Some(format!("{name}: asked for after {asked_s:.1} s, {complete}"))
        });
        let plot = figure.plot("", THROUGHPUT, series.collect());
        summary.plots.push(Plot { notes: notes.collect(), ..plot });
    },
    ..Experiment::PLAIN
};

/// The paper's three lines, whose legend is lost in our copy: these are from memory.
const LINES: [scale::Line; 3] = [
    scale::Line { name: "10% on two nodes, C = 0.0001", multi: 0.1, contention_index: 0.0001 },
    scale::Line { name: "100% on two nodes, C = 0.0001", multi: 1.0, contention_index: 0.0001 },
    scale::Line { name: "10% on two nodes, C = 0.01", multi: 0.1, contention_index: 0.01 },
];

const LOW: &str = "C = 0.0001";
const HIGH: &str = "C = 0.01";
/// Stands beside the paper's numbers of clusters.
pub const SEE_THE_MODEL: &str = "see the model";

/// The throughput of a line on all cores, as text.
pub fn on_cores(measured: &Measured, line: &str) -> String {
    let cores = measured.last_x(line);
    format!("{} on {cores} cores", rate_at(&measured.clock(line), cores))
}

/// Figure 5: the microbenchmark, on one node, with what follows from the service demands for more cores and more nodes.
pub static FIGURE_5: Experiment = Experiment {
    title: "Microbenchmark on one node",
    subtitle: "10 read-modify-writes, 1 of them hot",
    lines: |_| vec![Line::node(LOW, 1).knob(0.0001), Line::node(HIGH, 1).knob(0.01)],
    setting: |size, _, line| contended(size, line.knob),
    also: |size, _| {
        let mut points = Vec::new();
        for line in &LINES {
            points.extend(scale::points(line, |nodes, multi_partition| {
                let (partitions, contention_index) = (nodes.into(), line.contention_index);
                let at_home = true;
                micro(
                    size,
                    Calvin { partitions, contention_index, multi_partition, at_home, ..Calvin::default() },
                )
            })?);
        }
        points.extend(scale::epochs()?);
        Ok(points)
    },
    simulate: |_, m| {
        scale::in_simulator(&LINES, m, |line, nodes, multi_partition| {
            let (partitions, contention_index) = (nodes.into(), line.contention_index);
            // As few cold records as leave room for the hot ones: what is cold takes no time here.
            let records_per_partition = 12_000;
            let micro = Calvin {
                partitions,
                contention_index,
                multi_partition,
                records_per_partition,
                ..Calvin::default()
            };
            Ok(Arc::new(Micro::calvin(micro)?))
        })
    },
    log: Logging::CALVIN,
    paper: &[
        ("one machine, low contention", "27 K txn/s on 8 virtual cores of 2012 (section 6.3)", |m| {
            on_cores(m, LOW)
        }),
        ("one machine, contention index 0.01", "only in the image", |m| {
            rate_at(&m.clock(HIGH), m.last_x(LOW))
        }),
        ("100 machines, TPC-C-like contention", "only in the image", |_| SEE_THE_MODEL.to_owned()),
    ],
    shapes: |m| {
        let [low, high] = [LOW, HIGH].map(|line| m.clock(line).at(m.last_x(LOW)));
        let machine = "one node does what the paper's one machine does: 27 K txn/s";
        let costs = "on one node a contention index of 0.01 costs little: at least 0.75 of 0.0001";
        let ratio = low.zip(high).map(|(low, high)| high / low);
        vec![Shape::band(machine, ONE_MACHINE, BAND, low), Shape::at_least(costs, ratio, 0.75)]
    },
    more: |figure, m, summary| {
        one_node(figure, m, &[("the paper's one machine: 27 K", ONE_MACHINE)], summary);
        scale::add(summary, &LINES, m, "Microbenchmark on 1 to 100 nodes");
    },
    ..Experiment::PLAIN
};

/// Adds measured throughput over threads with the paper's numbers beside it, and apart from it what follows from the service
/// demands: what figures that ask for more cores have in common.
pub fn one_node(figure: &Experiment, measured: &Measured, references: &[(&str, f64)], summary: &mut Summary) {
    let mut series = Vec::new();
    let mut demands = Vec::new();
    let mut extrapolated = Vec::new();
    for line in measured.lines().into_iter().filter(|line| !scale::is_on_nodes(line)) {
        series.push(measured.clock(line));
        // With all threads, so that their messages to one another are in it.
        let threads = measured.last_x(line);
        let known = measured.demands(line, threads);
        // One core would run one thread, which sends no other anything.
        let mut model = known.series(format!("{line}, X(c)"), 1..=MODEL_CORES);
        let alone = measured.demands(line, 1.0);
        if let Some(first) = model.points.first_mut().filter(|_| alone.sum_us() > 0.0) {
            first.1 = alone.txn_per_s(1.0);
        }
        extrapolated.push(model);
        demands.push((format!("{line}, {threads} threads"), known));
    }
    let reference = |(name, rate): &(&str, f64)| Series::reference(*name, vec![(1.0, *rate)]);
    series.extend(references.iter().map(reference));
    extrapolated.extend(references.iter().map(reference));
    for (name, known) in &demands {
        let Some((single, cores)) = known.bottleneck().zip(known.cores_used_at_most()) else { continue };
        summary.extrapolations.push(Beside::new(
            &format!("{name}: cores at which growth ends"),
            "not shown",
            format!("{cores:.0}: the {}, one thread, is busy", single.part),
        ));
    }
    summary.notes.push(
        "X(c) = min(1 / largest demand of a single thread, c / sum of demands), clients not counted: what a machine with \
         c cores could do at best. X(1) is from the demands of the run with one thread, the others from those of the run \
         with the most, which pay for the messages between shards. Measured points include the clients, which share \
         the cores."
            .to_owned(),
    );
    summary.plots.push(figure.plot("", THROUGHPUT, series));
    summary.extrapolated.push(figure.plot(": X(c)", THROUGHPUT, extrapolated));
    summary.tables.push(demand::table(&demands));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing;
    use crate::report::StretchOfRun;

    #[test]
    fn ticks_become_rates_and_a_rest_is_left_out() {
        let ticks = [(0.1, 100), (0.2, 100), (0.22, 100)];
        let line = timeline(&ticks);
        assert_eq!(line.len(), 2, "{line:?}");
        assert!(line.iter().all(|(_, rate)| (rate - 1000.0).abs() < 1.0), "{line:?}");
        assert!(timeline(&[]).is_empty());
    }

    #[test]
    fn a_dip_is_what_is_less_while_a_checkpoint_is_captured() {
        let commits = |i: u32| if (20..30).contains(&i) { 50 + u64::from(i) } else { 100 };
        let timeline = (0..60).map(|i| (f64::from(i + 1) * 0.1, commits(i))).collect();
        let stretch = |txn_per_s, pause_us| StretchOfRun { txn_per_s, pause_us, ..StretchOfRun::default() };
        let (during, beside) = (stretch(745.0, 19_000), stretch(1000.0, 8_000));
        let mut checkpoint = CheckpointOfRun { asked_s: 2.0, complete_s: Some(3.0), during, beside };
        let mut run = Run { timeline, checkpoint: Some(checkpoint), ..testing::run("calvin", 0, 1.0, true) };
        let text = Dip::of(&run).unwrap().text();
        assert_eq!(
            text,
            "745 txn/s for 1.0 s, at least 700, beside 1 K: 0.74; longest pause 19.0 ms, beside 8.0 ms"
        );
        checkpoint.complete_s = None;
        run.checkpoint = Some(checkpoint);
        assert!(Dip::of(&run).is_none(), "it was not complete in the end");
    }
}
