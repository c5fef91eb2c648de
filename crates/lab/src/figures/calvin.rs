//! The Calvin paper's figures of one node, and of one beside many (calvin.md, section 7).

use std::sync::Arc;
use std::time::Duration;

use ordain_workload::micro::{Calvin, Micro};

use super::told::{at, middle};
use super::{Beside, Experiment, FigurePoint, Measured, Shape, Size, Told, scale, thread_counts};
use crate::demand;
use crate::plot::{Axis, Kind, Plot, Scale, Series, si};

/// What the paper's one machine did: 8 virtual cores of 2012.
const ONE_MACHINE: f64 = 27_000.0;
/// Up to how many cores the model is drawn.
pub(super) const MODEL_CORES: u32 = 16;

fn micro(size: Size, contention_index: f64) -> anyhow::Result<Arc<Micro>> {
    let records_per_partition = size.records(1_000_000);
    Ok(Arc::new(Micro::calvin(Calvin { records_per_partition, contention_index, ..Calvin::default() })?))
}

/// Figure 3: throughput over time. The checkpoint is not there yet, so this is the line that it will be held against.
#[derive(Debug)]
pub struct Figure3;

/// How long a point of the line is: long enough for many batches.
const TICK: f64 = 0.25;

impl Figure3 {
    /// Commits in ticks of the same length, as a rate.
    fn timeline(ticks: &[(f64, u64)]) -> Vec<(f64, f64)> {
        let mut sums: Vec<(u64, f64, f64)> = Vec::new();
        let mut before = 0.0;
        for (end, commits) in ticks {
            // A tick belongs where its middle is.
            let number = ((before + end) / 2.0 / TICK) as usize;
            if sums.len() <= number {
                sums.resize(number + 1, (0, before, *end));
            }
            if let Some((sum, _, until)) = sums.get_mut(number) {
                *sum += commits;
                *until = *end;
            }
            before = *end;
        }
        let whole = sums.into_iter().filter(|(_, from, until)| until - from > TICK * 0.75);
        whole.map(|(sum, from, until)| ((from + until) / 2.0, sum as f64 / (until - from))).collect()
    }
}

impl Experiment for Figure3 {
    fn points(&self, size: Size, cores: usize) -> anyhow::Result<Vec<FigurePoint>> {
        Ok(vec![FigurePoint::calvin("no checkpoint", 0.0, cores, micro(size, 0.0001)?)])
    }

    fn measure(&self, size: Size) -> Duration {
        Duration::from_secs(if size == Size::Quick { 6 } else { 60 })
    }

    fn repetitions(&self, _size: Size) -> usize {
        1
    }

    fn tell(&self, measured: &Measured) -> Told {
        let runs = measured.runs.iter().filter(|(_, _, run)| run.passed());
        let series: Vec<Series> =
            runs.map(|(line, _, run)| Series::measured(line, Figure3::timeline(&run.timeline))).collect();
        let no_stall = "no stall: no quarter of a second under half of the median";
        let shape = match series.first().filter(|series| !series.points.is_empty()) {
            None => Shape::unknown(no_stall, "not measured"),
            Some(series) => {
                let (median, low) =
                    (middle(series), series.points.iter().map(|(_, y)| *y).fold(f64::MAX, f64::min));
                Shape::new(no_stall, low >= median / 2.0, format!("least {}, median {}", si(low), si(median)))
            }
        };
        let ours =
            series.first().map_or_else(|| "not measured".to_owned(), |s| format!("{} txn/s", si(middle(s))));
        Told {
            plots: vec![Plot {
                title: "Throughput over time, without a checkpoint".to_owned(),
                subtitle: "microbenchmark, contention index 0.0001, one node".to_owned(),
                x: Axis::new("time", "s", Scale::Linear),
                y: Axis::throughput(),
                kind: Kind::Lines,
                series,
                notes: Vec::new(),
            }],
            beside: vec![
                Beside::new("throughput on one machine, low contention", "27 K txn/s (section 6.3)", ours),
                Beside::new("while a checkpoint is captured", "a moderate dip (the image is lost)", "needs checkpoints"),
            ],
            shapes: vec![shape, Shape::unknown("a moderate dip while the checkpoint is captured", "needs checkpoints")],
            notes: vec![
                "This is the line that the checkpoint's will be held against: this version takes no checkpoints."
                    .to_owned(),
            ],
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
                    ..Calvin::default()
                })?))
            })?);
        }
        Ok(points)
    }

    fn tell(&self, everything: &Measured) -> Told {
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
pub(super) fn model(measured: &Measured, title: &str, subtitle: &str, reference: (&str, f64)) -> Told {
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
    Told {
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
        ..Told::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_become_rates_and_a_rest_is_left_out() {
        let ticks: Vec<(f64, u64)> = (1..=11).map(|i| (f64::from(i) * 0.1, 100)).collect();
        let line = Figure3::timeline(&ticks);
        assert_eq!(line.len(), 4, "{line:?}");
        assert!(line.iter().all(|(_, rate)| (rate - 1000.0).abs() < 1.0), "{line:?}");
        assert!(Figure3::timeline(&[]).is_empty());
    }
}
