//! What the points of a figure came to: series, numbers beside the paper's, and whether the shape is the paper's.

use serde::Serialize;

use crate::demand::Demands;
use crate::html::{Cell, Table};
use crate::plot::{Plot, Series, si};
use crate::report::{Run, median};

/// The runs of a figure by line and place.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Every repetition of every point.
    pub runs: Vec<(String, f64, Run)>,
}

impl Measured {
    /// The names of the lines, in the order in which they were first measured.
    pub fn lines(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for (line, _, _) in &self.runs {
            if !names.contains(&line.as_str()) {
                names.push(line);
            }
        }
        names
    }

    /// A line as a series: of each point the median and the spread of the runs whose checks passed.
    pub fn series(&self, line: &str, value: impl Fn(&Run) -> f64) -> Series {
        let mut points: Vec<(f64, Vec<f64>)> = Vec::new();
        for (_, x, run) in self.runs.iter().filter(|(name, _, run)| name == line && run.passed()) {
            match points.iter_mut().find(|(at, _)| at == x) {
                Some((_, values)) => values.push(value(run)),
                None => points.push((*x, vec![value(run)])),
            }
        }
        points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        Series::repeated(line, &points)
    }

    /// The runs of some lines only.
    pub fn only(&self, is_wanted: impl Fn(&str) -> bool) -> Measured {
        Measured { runs: self.runs.iter().filter(|(line, _, _)| is_wanted(line)).cloned().collect() }
    }

    /// All lines as series.
    pub fn all_series(&self, value: impl Fn(&Run) -> f64) -> Vec<Series> {
        self.lines().into_iter().map(|line| self.series(line, &value)).collect()
    }

    /// The service demands at a point.
    pub fn demands(&self, line: &str, x: f64) -> Demands {
        let at = self.runs.iter().filter(|(name, at, run)| name == line && *at == x && run.passed());
        Demands::of(at.map(|(_, _, run)| &run.cpu_us_per_txn))
    }

    /// The furthest place of a line.
    pub fn last_x(&self, line: &str) -> Option<f64> {
        let places = self.runs.iter().filter(|(name, _, _)| name == line).map(|(_, x, _)| *x);
        places.max_by(f64::total_cmp)
    }
}

/// A number of the paper beside ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Beside {
    /// What it is a number of.
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

/// What the paper's curve requires, and what ours does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// The requirement, in words.
    pub must: String,
    /// Whether ours is so; nothing if it was not measured.
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

    /// A line stays within a share of its highest value.
    pub fn flat(must: &str, series: &Series, within: f64) -> Shape {
        let Some((low, high)) = extent(series) else { return Shape::unknown(must, NOT_MEASURED) };
        let ours =
            format!("{}: {} to {}, {:.0}% apart", series.name, si(low), si(high), (1.0 - low / high) * 100.0);
        Shape::new(must, low >= high * (1.0 - within), ours)
    }

    /// From its first point to its last a line changes by a factor of at least `least` and at most `most`.
    pub fn changes(must: &str, series: &Series, least: f64, most: f64) -> Shape {
        let (Some((from_x, from)), Some((to_x, to))) = (series.points.first(), series.points.last()) else {
            return Shape::unknown(must, NOT_MEASURED);
        };
        if series.points.len() < 2 || *from <= 0.0 {
            return Shape::unknown(must, NOT_MEASURED);
        }
        let factor = to / from;
        let ours = format!(
            "{}: {} at {}, {} at {}: x {}",
            series.name,
            si(*from),
            si(*from_x),
            si(*to),
            si(*to_x),
            si(factor)
        );
        Shape::new(must, (least..=most).contains(&factor), ours)
    }

    /// A value is at least another.
    pub fn at_least(must: &str, value: Option<f64>, least: f64) -> Shape {
        match value {
            Some(value) => Shape::new(must, value >= least, si(value)),
            None => Shape::unknown(must, NOT_MEASURED),
        }
    }
}

const NOT_MEASURED: &str = "not measured";

fn extent(series: &Series) -> Option<(f64, f64)> {
    let values = series.points.iter().map(|(_, y)| *y).filter(|y| y.is_finite());
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), y| (l.min(y), h.max(y)));
    (low <= high && high > 0.0).then_some((low, high))
}

/// What a figure has to say.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The pictures, the main one first.
    pub plots: Vec<Plot>,
    /// Further tables.
    pub tables: Vec<Table>,
    /// The paper's numbers beside ours.
    pub beside: Vec<Beside>,
    /// What the shape must be, and is.
    pub shapes: Vec<Shape>,
    /// Where and why ours differs, and what is missing.
    pub notes: Vec<String>,
}

impl Summary {
    /// The paper's numbers beside ours, if it has any.
    pub fn beside_table(&self) -> Option<Table> {
        let mut table = Table::new("The paper's numbers and ours")
            .text_column("number")
            .text_column("paper")
            .text_column("ours");
        for Beside { what, paper, ours } in &self.beside {
            table.row(vec![Cell::text(what), Cell::text(paper), Cell::text(ours)]);
        }
        (!table.is_empty()).then_some(table)
    }

    /// The shape checks, if there are some.
    pub fn shape_table(&self) -> Option<Table> {
        let mut table = Table::new("What the shape must be")
            .text_column("must")
            .text_column("verdict")
            .text_column("ours");
        for Shape { must, holds, ours } in &self.shapes {
            let verdict = match holds {
                Some(true) => Cell::verdict(true, "as in the paper"),
                Some(false) => Cell::verdict(false, "differs"),
                None => Cell::text("not known"),
            };
            table.row(vec![Cell::text(must), verdict, Cell::text(ours)]);
        }
        (!table.is_empty()).then_some(table)
    }
}

/// A line's value at a place, as text.
pub(super) fn at(series: &Series, x: f64) -> String {
    series.at(x).map_or_else(|| NOT_MEASURED.to_owned(), |value| format!("{} txn/s", si(value)))
}

/// The median of the values of a line.
pub(super) fn middle(series: &Series) -> f64 {
    median(series.points.iter().map(|(_, y)| *y))
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
        let rises = Shape::changes("doubles", &line(&[100.0, 210.0]), 1.8, 2.5);
        assert_eq!((rises.holds, rises.ours.as_str()), (Some(true), "calvin: 100 at 0, 210 at 1: x 2.1"));
        assert_eq!(Shape::changes("doubles", &line(&[100.0, 110.0]), 1.8, 2.5).holds, Some(false));
        assert_eq!(Shape::at_least("27 K", Some(30e3), 27e3).holds, Some(true));
        assert_eq!(Shape::at_least("27 K", Some(20e3), 27e3).holds, Some(false));
    }

    #[test]
    fn what_was_not_measured_is_neither() {
        for shape in [
            Shape::flat("m", &line(&[]), 0.1),
            Shape::flat("m", &line(&[0.0]), 0.1),
            Shape::changes("m", &line(&[1.0]), 0.0, 9.0),
            Shape::at_least("m", None, 1.0),
        ] {
            assert_eq!(shape.holds, None, "{shape:?}");
        }
        let told = Summary { shapes: vec![Shape::unknown("m", "needs a cluster")], ..Summary::default() };
        let html = told.shape_table().unwrap().html();
        assert!(html.contains("not known") && html.contains("needs a cluster"), "{html}");
        assert!(told.beside_table().is_none());
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
        assert_eq!(measured.last_x("b"), Some(2.0));
    }
}
