//! The outcome of a figure: series, numbers beside the paper's, and verdicts on the shape.

use serde::Serialize;

use super::verdict::{Claim, Verdict};
use crate::demand::Demands;
use crate::disturbance::State;
use crate::plot::{Plot, Series, Style, si};
use crate::ratio::{disturbance, free};
use crate::report::{Run, extent, grouped};
use crate::table::{Cell, Table, cells, text};

/// The runs of a figure by line and place.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Every repetition of every point.
    pub runs: Vec<(String, f64, Run)>,
    /// Throughput of clusters in the simulator, with the costs that the runs have measured.
    pub simulated: Vec<InSimulator>,
}

/// A cluster in the simulator.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InSimulator {
    /// The line of its demands.
    pub line: &'static str,
    pub nodes: u16,
    /// Transactions a second of virtual time, of all nodes together.
    pub txn_per_s: f64,
}

impl Measured {
    /// The names of the lines, in the order in which they were first measured.
    pub fn lines(&self) -> Vec<&str> {
        let lines = grouped(self.runs.iter().map(|(line, _, _)| (line.as_str(), ())));
        lines.into_iter().map(|(line, _)| line).collect()
    }

    /// The runs of a line that count, by place: those whose checks passed, and of these those that had the machine to
    /// themselves, where there is one.
    pub fn places(&self, line: &str) -> Vec<(f64, Vec<&Run>)> {
        let runs = self.runs.iter().filter(|(name, _, run)| name == line && run.passed());
        let mut places = grouped(runs.map(|(_, x, run)| (*x, run)));
        places.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        places.into_iter().map(|(x, runs)| (x, free(&runs))).collect()
    }

    /// The reason for which there is no verdict on any of it: a place of a line where no run passed its checks, or none had
    /// the machine to itself. A shape of the places that are left would be another one.
    pub fn no_verdict_because(&self) -> Option<String> {
        let places = grouped(self.runs.iter().map(|(line, x, run)| ((line, *x), run)));
        places.into_iter().find_map(|((line, x), runs)| {
            let passed: Vec<&Run> = runs.into_iter().filter(|run| run.passed()).collect();
            let machine = disturbance(&passed);
            if passed.is_empty() {
                Some(format!("no run of {line} at {} passed its checks", si(x)))
            } else {
                (!machine.is_free()).then(|| format!("{line} at {}, the machine: {}", si(x), machine.text()))
            }
        })
    }

    /// A line as a series: of each place the median and the spread, and a mark where the machine was disturbed.
    pub fn series(&self, line: &str, value: impl Fn(&Run) -> f64) -> Series {
        let places = self.places(line);
        let is_disturbed = |runs: &[&Run]| disturbance(runs).state == State::Disturbed;
        let disturbed = places.iter().filter(|(_, runs)| is_disturbed(runs)).map(|(x, _)| *x).collect();
        let points = places.into_iter().map(|(x, runs)| (x, runs.into_iter().map(&value).collect()));
        Series { disturbed, ..Series::repeated(line, &points.collect::<Vec<_>>()) }
    }

    /// A line by the clock, in transactions a second.
    pub fn clock(&self, line: &str) -> Series {
        self.series(line, |run| run.txn_per_s)
    }

    /// The transactions of a line in a second of processor time, as it was measured.
    pub fn cpu(&self, line: &str) -> Series {
        let points = self.by_demands(line, |demands, _| 1e6 / demands.sum_us());
        Series { disturbed: self.clock(line).disturbed, ..Series::measured(line, points) }
    }

    /// X(cores) of a line: what all of its nodes could do at best if they had so many cores each.
    pub fn model(&self, line: &str, cores: f64) -> Series {
        // What one node needs for a transaction of all is its share of what all of them need.
        let points = self.by_demands(line, |demands, nodes| demands.txn_per_s(cores) * nodes);
        Series::extrapolated(line, points)
    }

    fn by_demands(&self, line: &str, rate: impl Fn(Demands, f64) -> f64) -> Vec<(f64, f64)> {
        let points = self.places(line).into_iter().map(|(x, runs)| {
            let demands = Demands::of(runs.iter().map(|run| &run.cpu_us_per_txn));
            (x, rate(demands, f64::from(runs[0].nodes)))
        });
        points.filter(|(_, rate)| rate.is_finite() && *rate > 0.0).collect()
    }

    /// The service demands at a place.
    pub fn demands(&self, line: &str, x: f64) -> Demands {
        let places = self.places(line);
        let runs = places.iter().filter(|(at, _)| *at == x).flat_map(|(_, runs)| runs);
        Demands::of(runs.map(|run| &run.cpu_us_per_txn))
    }

    /// The furthest place of a line, 1 if it has none.
    pub fn last_x(&self, line: &str) -> f64 {
        let places = self.runs.iter().filter(|(name, _, _)| name == line).map(|(_, x, _)| *x);
        places.max_by(f64::total_cmp).unwrap_or(1.0)
    }
}

/// A number of the paper beside ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// The quantity.
    pub what: String,
    /// The paper's, with where it is from.
    pub paper: String,
    /// Ours, or why there is none.
    pub ours: String,
}

impl Beside {
    /// A row.
    pub fn new(what: &str, paper: &str, ours: impl Into<String>) -> Beside {
        Beside { what: what.to_owned(), paper: paper.to_owned(), ours: ours.into() }
    }
}

/// A requirement, our figures, and the verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// The requirement, in words.
    pub must: String,
    /// The claim that it comes to, if it is one that has a name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub claim: String,
    /// The verdict.
    pub verdict: Verdict,
    /// Our figures, or the reason for which there is no verdict.
    pub ours: String,
    /// True of a question of ours, which no paper answers.
    pub is_ours: bool,
}

impl Shape {
    fn with(must: impl Into<String>, verdict: Verdict, ours: impl Into<String>) -> Shape {
        Shape { must: must.into(), claim: String::new(), verdict, ours: ours.into(), is_ours: false }
    }

    /// A requirement with its verdict.
    pub fn new(must: impl Into<String>, holds: bool, ours: impl Into<String>) -> Shape {
        Shape::with(must, Verdict::of(holds), ours)
    }

    /// A requirement that was not measured.
    pub fn unknown(must: impl Into<String>, why: impl Into<String>) -> Shape {
        Shape::with(must, Verdict::Unknown, why)
    }

    /// A requirement with its verdict and our figures, if they were measured.
    pub fn of(must: impl Into<String>, found: Option<(bool, String)>) -> Shape {
        match found {
            Some((holds, ours)) => Shape::new(must, holds, ours),
            None => Shape::unknown(must, NOT_MEASURED),
        }
    }

    /// The shape as a question of ours.
    pub fn of_ours(self) -> Shape {
        Shape { is_ours: true, ..self }
    }

    /// The shape without its verdict, for a reason.
    pub fn withhold(self, why: &str) -> Shape {
        Shape { verdict: Verdict::Unknown, ours: format!("{} (no verdict: {why})", self.ours), ..self }
    }

    /// A claim about a number.
    pub fn number(must: impl Into<String>, claim: Claim, ours: Option<f64>) -> Shape {
        let verdict = ours.map_or(Verdict::Unknown, |ours| claim.of_number(ours));
        Shape { claim: claim.text(), ..Shape::with(must, verdict, or_not(ours, si)) }
    }

    /// A number of the paper, where more is better: ours is within a factor of it.
    pub fn band(must: impl Into<String>, paper: f64, factor: f64, ours: Option<f64>) -> Shape {
        Shape::number(must, Claim::Band { paper, factor, less_is_better: false }, ours)
    }

    /// A number that is at least another.
    pub fn at_least(must: impl Into<String>, ours: Option<f64>, least: f64) -> Shape {
        Shape::number(must, Claim::AtLeast(least), ours)
    }

    /// A claim about a line. What is extrapolated gets no verdict.
    pub fn line(must: impl Into<String>, claim: Claim, series: &Series) -> Shape {
        let Series { name, points, style, .. } = series;
        let place = |(x, y): &(f64, f64)| format!("{} at {}", si(*y), si(*x));
        let ours = match &points[..] {
            [] => NOT_MEASURED.to_owned(),
            _ if matches!(claim, Claim::Flat(_)) => {
                let (low, high) = extent(points.iter().map(|(_, y)| *y));
                format!("{name}: {} to {}, {:.0}% apart", si(low), si(high), (1.0 - low / high) * 100.0)
            }
            [only] => format!("{name}: {}", place(only)),
            [first, .., last] => {
                format!("{name}: {}, {}: x {}", place(first), place(last), si(last.1 / first.1))
            }
        };
        let (verdict, ours) = match style {
            Style::Extrapolated => (Verdict::Unknown, format!("{ours} (extrapolated: no verdict)")),
            _ => (claim.of_line(points), ours),
        };
        Shape { claim: claim.text(), ..Shape::with(must, verdict, ours) }
    }

    /// A line stays within a share of its highest value.
    pub fn flat(must: impl Into<String>, series: &Series, within: f64) -> Shape {
        Shape::line(must, Claim::Flat(within), series)
    }

    /// A line rises from its first point to its last by at least a factor.
    pub fn rises(must: impl Into<String>, series: &Series, by: f64) -> Shape {
        Shape::line(must, Claim::Rises(by), series)
    }

    /// A line falls from its first point to its last to at most a share.
    pub fn falls(must: impl Into<String>, series: &Series, to: f64) -> Shape {
        Shape::line(must, Claim::Falls(to), series)
    }

    /// A line grows from its first point to its last by at most a factor.
    pub fn grows_at_most(must: impl Into<String>, series: &Series, most: f64) -> Shape {
        Shape::line(must, Claim::GrowsByAtMost(most), series)
    }

    /// The verdict in words.
    pub fn verdict(&self) -> &'static str {
        match self.verdict {
            Verdict::Holds if self.is_ours => "as required",
            Verdict::Holds => "as in the paper",
            Verdict::Beyond if self.is_ours => "beyond",
            Verdict::Beyond => "beyond the paper",
            Verdict::Below => "below",
            Verdict::Differs => "differs",
            Verdict::Unknown => "no verdict",
        }
    }

    /// The verdict as a cell, with a mark that is legible without its colour.
    pub fn cell(&self) -> Cell {
        match self.verdict {
            Verdict::Holds => Cell::verdict(true, self.verdict()),
            Verdict::Beyond | Verdict::Below | Verdict::Differs => Cell::verdict(false, self.verdict()),
            Verdict::Unknown => Cell::text(self.verdict()),
        }
    }
}

/// Stands in the place of a figure that is not known.
pub(super) const NOT_MEASURED: &str = "not measured";

/// A figure as text, or that it was not measured.
pub(super) fn or_not<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| NOT_MEASURED.to_owned(), show)
}

/// The outcome of a figure: plots, tables, numbers and verdicts.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The pictures of what was measured, the main one first, and then those of models.
    pub plots: Vec<Plot>,
    /// The pictures of what is extrapolated from service demand.
    pub extrapolated: Vec<Plot>,
    /// Numbers of the paper beside those that are extrapolated from service demand.
    pub extrapolations: Vec<Beside>,
    /// Further tables.
    pub tables: Vec<Table>,
    /// The paper's numbers beside ours.
    pub beside: Vec<Beside>,
    /// Verdicts on the shape.
    pub shapes: Vec<Shape>,
    /// Differences to the paper, their reasons, and what is missing.
    pub notes: Vec<String>,
}

impl Summary {
    /// The paper's numbers beside those that we measured, if it has any.
    pub fn beside_table(&self) -> Option<Table> {
        beside_table("The paper's numbers and ours, measured", "ours, measured", &self.beside)
    }

    /// The paper's numbers beside extrapolated ones, if there are any.
    pub fn extrapolations_table(&self) -> Option<Table> {
        beside_table("Extrapolated from service demand, not measured", "extrapolated", &self.extrapolations)
    }

    /// Takes every verdict away, and marks our numbers.
    pub fn withhold(&mut self, why: &str) {
        for shape in std::mem::take(&mut self.shapes) {
            self.shapes.push(shape.withhold(why));
        }
        for beside in self.beside.iter_mut().chain(&mut self.extrapolations) {
            beside.ours.push_str(" (see the machine)");
        }
        self.notes.insert(0, format!("There is no verdict on this figure: {why}."));
    }

    /// The shape checks, if there are some.
    pub fn shape_table(&self) -> Option<Table> {
        let columns = vec![
            text("must", |shape: &&Shape| shape.must.clone()),
            text("claim", |shape: &&Shape| shape.claim.clone()),
            cells("verdict", false, |shape: &&Shape| shape.cell()),
            text("ours", |shape: &&Shape| shape.ours.clone()),
        ];
        Table::of("What the shape must be", &self.shapes, columns).or_none()
    }
}

fn beside_table(caption: &str, ours: &str, all: &[Beside]) -> Option<Table> {
    let columns = vec![
        text("number", |beside: &&Beside| beside.what.clone()),
        text("paper", |beside: &&Beside| beside.paper.clone()),
        text(ours, |beside: &&Beside| beside.ours.clone()),
    ];
    Table::of(caption, all, columns).or_none()
}

/// A line's throughput at a place, as text.
pub(super) fn rate_at(series: &Series, x: f64) -> String {
    or_not(series.at(x), |value| format!("{} txn/s", si(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disturbance::Disturbance;
    use crate::plot::testing::run;

    fn line(values: &[f64]) -> Series {
        Series::measured("calvin", values.iter().enumerate().map(|(i, y)| (i as f64, *y)).collect())
    }

    #[test]
    fn a_shape_has_a_verdict_a_claim_and_our_figures() {
        let flat = Shape::flat("stays flat", &line(&[100.0, 95.0, 90.0]), 0.2);
        assert_eq!(
            (flat.verdict, flat.claim.as_str(), flat.ours.as_str()),
            (Verdict::Holds, "flat within 20%", "calvin: 90 to 100, 10% apart")
        );
        let rises = Shape::rises("doubles", &line(&[100.0, 210.0]), 1.8);
        assert_eq!(
            (rises.verdict(), rises.ours.as_str()),
            ("as in the paper", "calvin: 100 at 0, 210 at 1: x 2.1")
        );
        assert_eq!(Shape::rises("doubles", &line(&[100.0, 110.0]), 1.8).verdict(), "differs");
        assert_eq!(Shape::falls("halves", &line(&[100.0, 50.0]), 0.5).verdict(), "as in the paper");
        assert_eq!(Shape::grows_at_most("stays", &line(&[100.0, 130.0]), 1.2).verdict(), "differs");
        let of_paxflow = |ours| Shape::band("4.3 times", 4.3, 2.0, Some(ours)).verdict();
        assert_eq!([5.0, 741.0, 1.0].map(of_paxflow), ["as in the paper", "beyond the paper", "below"]);
        assert_eq!(Shape::at_least("27 K", Some(20e3), 27e3).verdict(), "below");
        let ours = flat.of_ours();
        assert_eq!(ours.verdict(), "as required");
        assert_eq!(ours.withhold("disturbed").ours, "calvin: 90 to 100, 10% apart (no verdict: disturbed)");
    }

    #[test]
    fn what_was_not_measured_or_is_extrapolated_has_no_verdict() {
        let extrapolated = Series { style: Style::Extrapolated, ..line(&[1.0, 2.0]) };
        for shape in [
            Shape::flat("m", &line(&[]), 0.1),
            Shape::flat("m", &line(&[0.0]), 0.1),
            Shape::grows_at_most("m", &line(&[1.0]), 9.0),
            Shape::at_least("m", None, 1.0),
            Shape::rises("m", &extrapolated, 1.0),
        ] {
            assert_eq!(shape.verdict(), "no verdict", "{shape:?}");
        }
        let summary = Summary { shapes: vec![Shape::unknown("m", "needs a cluster")], ..Summary::default() };
        let html = summary.shape_table().unwrap().html();
        assert!(html.contains("no verdict") && html.contains("needs a cluster"), "{html}");
        assert!(summary.beside_table().is_none());
    }

    #[test]
    fn a_free_run_counts_alone_and_a_place_without_one_withholds_every_verdict() {
        let with = |x: f64, rate: f64, state| {
            let disturbance = Disturbance { state, ..Disturbance::default() };
            ("a".to_owned(), x, Run { disturbance, ..run("calvin", 1, rate, true) })
        };
        let (free, busy) = (State::Free, State::Disturbed);
        let mut measured = Measured {
            runs: vec![with(1.0, 10.0, free), with(1.0, 2.0, busy), with(2.0, 20.0, free)],
            ..Measured::default()
        };
        assert_eq!(measured.clock("a").points, [(1.0, 10.0), (2.0, 20.0)]);
        assert!(measured.no_verdict_because().is_none() && measured.clock("a").disturbed.is_empty());
        measured.runs.push(with(3.0, 5.0, busy));
        assert_eq!(measured.clock("a").disturbed, [3.0]);
        assert_eq!(measured.no_verdict_because().as_deref(), Some("a at 3, the machine: disturbed"));
        let mut measured = Measured { runs: vec![with(1.0, 10.0, State::Unknown)], ..Measured::default() };
        assert_eq!(measured.no_verdict_because().as_deref(), Some("a at 1, the machine: unknown"));
        measured.runs = vec![("b".to_owned(), 2.0, run("calvin", 1, 5.0, false))];
        assert_eq!(measured.no_verdict_because().as_deref(), Some("no run of b at 2 passed its checks"));
    }

    #[test]
    fn a_run_whose_checks_failed_is_no_point() {
        let runs = vec![
            ("a".to_owned(), 1.0, run("calvin", 1, 10.0, true)),
            ("a".to_owned(), 1.0, run("calvin", 2, 1e9, false)),
            ("a".to_owned(), 1.0, run("calvin", 3, 20.0, true)),
            ("b".to_owned(), 2.0, run("calvin", 1, 5.0, true)),
        ];
        let measured = Measured { runs, ..Measured::default() };
        assert_eq!(measured.lines(), ["a", "b"]);
        let series = measured.series("a", |run| run.txn_per_s);
        assert_eq!((series.points, series.spread), (vec![(1.0, 15.0)], Some(vec![(10.0, 20.0)])));
        assert_eq!((measured.last_x("b"), measured.last_x("c")), (2.0, 1.0));
    }
}
