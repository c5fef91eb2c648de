//! The outcome of a figure: series, numbers beside the paper's, and verdicts on the shape.

use serde::Serialize;

use crate::demand::Demands;
use crate::plot::{Plot, Series, si};
use crate::report::{Run, extent, grouped};
use crate::table::{Cell, Table, cells, text};

/// The runs of a figure by line and place.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Every repetition of every point.
    pub runs: Vec<(String, f64, Run)>,
}

impl Measured {
    /// The names of the lines, in the order in which they were first measured.
    pub fn lines(&self) -> Vec<&str> {
        let lines = grouped(self.runs.iter().map(|(line, _, _)| (line.as_str(), ())));
        lines.into_iter().map(|(line, _)| line).collect()
    }

    /// The runs of a line whose checks passed, by place.
    pub fn places(&self, line: &str) -> Vec<(f64, Vec<&Run>)> {
        let runs = self.runs.iter().filter(|(name, _, run)| name == line && run.passed());
        let mut places = grouped(runs.map(|(_, x, run)| (*x, run)));
        places.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        places
    }

    /// A line as a series: of each place the median and the spread.
    pub fn series(&self, line: &str, value: impl Fn(&Run) -> f64) -> Series {
        let points = self.places(line).into_iter();
        let points = points.map(|(x, runs)| (x, runs.into_iter().map(&value).collect()));
        Series::repeated(line, &points.collect::<Vec<_>>())
    }

    /// A line by the clock, in transactions a second.
    pub fn clock(&self, line: &str) -> Series {
        self.series(line, |run| run.txn_per_s)
    }

    /// The transactions of a line in a second of processor time.
    pub fn cpu(&self, line: &str) -> Series {
        self.by_demands(line, |demands, _| 1e6 / demands.sum_us())
    }

    /// X(cores) of a line: what all of its nodes could do at best if they had so many cores each.
    pub fn model(&self, line: &str, cores: f64) -> Series {
        // What one node needs for a transaction of all is its share of what all of them need.
        self.by_demands(line, |demands, nodes| demands.txn_per_s(cores) * nodes)
    }

    fn by_demands(&self, line: &str, rate: impl Fn(Demands, f64) -> f64) -> Series {
        let points = self.places(line).into_iter().map(|(x, runs)| {
            let demands = Demands::of(runs.iter().map(|run| &run.cpu_us_per_txn));
            (x, rate(demands, f64::from(runs[0].nodes)))
        });
        Series::model(line, points.filter(|(_, rate)| rate.is_finite() && *rate > 0.0).collect())
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

/// A requirement of the paper's curve, and our figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// The requirement, in words.
    pub must: String,
    /// The verdict; nothing if it was not measured.
    pub holds: Option<bool>,
    /// Our figures.
    pub ours: String,
}

impl Shape {
    /// A requirement with its verdict.
    pub fn new(must: impl Into<String>, holds: bool, ours: impl Into<String>) -> Shape {
        Shape { must: must.into(), holds: Some(holds), ours: ours.into() }
    }

    /// A requirement that was not measured.
    pub fn unknown(must: impl Into<String>, why: impl Into<String>) -> Shape {
        Shape { must: must.into(), holds: None, ours: why.into() }
    }

    /// A requirement with its verdict and our figures, if they were measured.
    pub fn of(must: impl Into<String>, found: Option<(bool, String)>) -> Shape {
        match found {
            Some((holds, ours)) => Shape::new(must, holds, ours),
            None => Shape::unknown(must, NOT_MEASURED),
        }
    }

    /// A line stays within a share of its highest value.
    pub fn flat(must: impl Into<String>, series: &Series, within: f64) -> Shape {
        let (low, high) = extent(series.points.iter().map(|(_, y)| *y).filter(|y| y.is_finite()));
        let apart = (1.0 - low / high) * 100.0;
        let ours = || format!("{}: {} to {}, {apart:.0}% apart", series.name, si(low), si(high));
        Shape::of(must, (low <= high && high > 0.0).then(|| (low >= high * (1.0 - within), ours())))
    }

    /// From its first point to its last a line grows by a factor of at least this.
    pub fn grows_at_least(must: impl Into<String>, series: &Series, least: f64) -> Shape {
        Shape::grows(must, series, |factor| factor >= least)
    }

    /// From its first point to its last a line grows by a factor of at most this.
    pub fn grows_at_most(must: impl Into<String>, series: &Series, most: f64) -> Shape {
        Shape::grows(must, series, |factor| factor <= most)
    }

    fn grows(must: impl Into<String>, series: &Series, holds: impl Fn(f64) -> bool) -> Shape {
        let found = match series.points[..] {
            [(from_x, from), .., (to_x, to)] if from > 0.0 => {
                let factor = to / from;
                let [from_x, from, to_x, to, by] = [from_x, from, to_x, to, factor].map(si);
                Some((holds(factor), format!("{}: {from} at {from_x}, {to} at {to_x}: x {by}", series.name)))
            }
            _ => None,
        };
        Shape::of(must, found)
    }

    /// The verdict in words.
    pub fn verdict(&self) -> &'static str {
        match self.holds {
            Some(true) => "as in the paper",
            Some(false) => "differs",
            None => "not known",
        }
    }

    /// A value is at least another.
    pub fn at_least(must: impl Into<String>, value: Option<f64>, least: f64) -> Shape {
        Shape::of(must, value.map(|value| (value >= least, si(value))))
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
    /// The pictures, the main one first.
    pub plots: Vec<Plot>,
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
    /// The paper's numbers beside ours, if it has any.
    pub fn beside_table(&self) -> Option<Table> {
        let columns = vec![
            text("number", |beside: &&Beside| beside.what.clone()),
            text("paper", |beside: &&Beside| beside.paper.clone()),
            text("ours", |beside: &&Beside| beside.ours.clone()),
        ];
        Table::of("The paper's numbers and ours", &self.beside, columns).or_none()
    }

    /// The shape checks, if there are some.
    pub fn shape_table(&self) -> Option<Table> {
        let columns = vec![
            text("must", |shape: &&Shape| shape.must.clone()),
            cells("verdict", false, |shape: &&Shape| match shape.holds {
                Some(holds) => Cell::verdict(holds, shape.verdict()),
                None => Cell::text(shape.verdict()),
            }),
            text("ours", |shape: &&Shape| shape.ours.clone()),
        ];
        Table::of("What the shape must be", &self.shapes, columns).or_none()
    }
}

/// A line's throughput at a place, as text.
pub(super) fn rate_at(series: &Series, x: f64) -> String {
    or_not(series.at(x), |value| format!("{} txn/s", si(value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing::run;

    fn line(values: &[f64]) -> Series {
        Series::measured("calvin", values.iter().enumerate().map(|(i, y)| (i as f64, *y)).collect())
    }

    #[test]
    fn a_shape_holds_or_differs_and_says_so_with_figures() {
        let flat = Shape::flat("stays flat", &line(&[100.0, 95.0, 90.0]), 0.2);
        assert_eq!((flat.holds, flat.ours.as_str()), (Some(true), "calvin: 90 to 100, 10% apart"));
        assert_eq!(Shape::flat("stays flat", &line(&[100.0, 50.0]), 0.2).holds, Some(false));
        let rises = Shape::grows_at_least("doubles", &line(&[100.0, 210.0]), 1.8);
        assert_eq!((rises.holds, rises.ours.as_str()), (Some(true), "calvin: 100 at 0, 210 at 1: x 2.1"));
        assert_eq!(Shape::grows_at_least("doubles", &line(&[100.0, 110.0]), 1.8).holds, Some(false));
        assert_eq!(Shape::grows_at_most("stays", &line(&[100.0, 110.0]), 1.2).holds, Some(true));
        assert_eq!(Shape::grows_at_most("stays", &line(&[100.0, 130.0]), 1.2).holds, Some(false));
        assert_eq!(Shape::at_least("27 K", Some(30e3), 27e3).holds, Some(true));
        assert_eq!(Shape::at_least("27 K", Some(20e3), 27e3).holds, Some(false));
    }

    #[test]
    fn what_was_not_measured_is_neither() {
        for shape in [
            Shape::flat("m", &line(&[]), 0.1),
            Shape::flat("m", &line(&[0.0]), 0.1),
            Shape::grows_at_most("m", &line(&[1.0]), 9.0),
            Shape::at_least("m", None, 1.0),
        ] {
            assert_eq!(shape.holds, None, "{shape:?}");
        }
        let summary = Summary { shapes: vec![Shape::unknown("m", "needs a cluster")], ..Summary::default() };
        let html = summary.shape_table().unwrap().html();
        assert!(html.contains("not known") && html.contains("needs a cluster"), "{html}");
        assert!(summary.beside_table().is_none());
    }

    #[test]
    fn a_run_whose_checks_failed_is_no_point() {
        let runs = vec![
            ("a".to_owned(), 1.0, run("calvin", 1, 10.0, true)),
            ("a".to_owned(), 1.0, run("calvin", 2, 1e9, false)),
            ("a".to_owned(), 1.0, run("calvin", 3, 20.0, true)),
            ("b".to_owned(), 2.0, run("calvin", 1, 5.0, true)),
        ];
        let measured = Measured { runs };
        assert_eq!(measured.lines(), ["a", "b"]);
        let series = measured.series("a", |run| run.txn_per_s);
        assert_eq!((series.points, series.spread), (vec![(1.0, 15.0)], Some(vec![(10.0, 20.0)])));
        assert_eq!((measured.last_x("b"), measured.last_x("c")), (2.0, 1.0));
    }
}
