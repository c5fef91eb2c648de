//! Plots as plain data, and their SVG.
//!
//! A [`Plot`] holds the meaning of its axes and series and no pixels, so that a figure, a report and a test can
//! look at the same thing. [`Plot::svg`] draws it: one picture for the screen, for print and for the
//! dark, legible without colour (every series has its own marker or dashes) and to those who see few colours.
//! [`of_runs`] is what `ordain bench … --plot` draws.
//!
//! In every plot throughput axes begin at zero, the legend stands beside the data and never on them,
//! and a measured point shows the spread of its repetitions if there were several.

mod draw;
mod runs;
mod scale;

use serde::Serialize;

use crate::report::{extent, median};

#[cfg(test)]
pub(crate) use runs::testing;
pub use runs::{latency_of_runs, of_runs};
pub use scale::{Scale, si};

/// A plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Plot {
    /// The title.
    pub title: String,
    /// Under which circumstances.
    pub subtitle: String,
    /// Across; for bars: what is compared.
    pub x: Axis,
    /// Upwards; for bars, which lie: how long they are.
    pub y: Axis,
    /// The form of the series.
    pub kind: Kind,
    /// The series, in the order of the legend.
    pub series: Vec<Series>,
    /// Notes under the picture.
    pub notes: Vec<String>,
}

/// An axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Axis {
    /// The quantity.
    pub label: String,
    /// In which unit; empty if it has none.
    pub unit: String,
    /// The scale.
    pub scale: Scale,
}

impl Axis {
    /// An axis.
    pub fn new(label: &str, unit: &str, scale: Scale) -> Axis {
        Axis { label: label.to_owned(), unit: unit.to_owned(), scale }
    }

    /// Committed transactions a second, from 0.
    pub fn throughput() -> Axis {
        Axis::new("throughput", "txn/s", Scale::Linear)
    }

    fn caption(&self) -> String {
        match (self.label.is_empty(), self.unit.is_empty()) {
            (_, true) => self.label.clone(),
            (true, false) => self.unit.clone(),
            (false, false) => format!("{} ({})", self.label, self.unit),
        }
    }
}

/// The form of series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Points with lines between them.
    Lines,
    /// A bar for each category and series.
    Bars,
    /// A distribution: what share is at most so much.
    Cdf,
}

/// Points that belong together.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Series {
    /// The name in the legend.
    pub name: String,
    /// The points in the order of `x`; the `x` of a category is its number.
    pub points: Vec<(f64, f64)>,
    /// The least and the most of each point's repetitions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spread: Option<Vec<(f64, f64)>>,
    /// The places whose runs were disturbed by others, or by the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disturbed: Vec<f64>,
    /// The kind of the series.
    pub style: Style,
}

impl Series {
    /// A measured series.
    pub fn measured(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.into(), points, spread: None, disturbed: Vec::new(), style: Style::Measured }
    }

    /// A series measured several times: the median and the spread of each point's repetitions.
    pub fn repeated(name: impl Into<String>, points: &[(f64, Vec<f64>)]) -> Series {
        let middle = points.iter().map(|(x, values)| (*x, median(values.iter().copied())));
        let spread = points.iter().map(|(_, values)| extent(values.iter().copied()));
        let several = points.iter().any(|(_, values)| values.len() > 1);
        Series { spread: several.then(|| spread.collect()), ..Series::measured(name, middle.collect()) }
    }

    /// A series that follows from a model.
    pub fn model(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { style: Style::Model, ..Series::measured(name, points) }
    }

    /// A series that is extrapolated from service demand, and named so.
    pub fn extrapolated(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        let name = format!("{}, extrapolated from service demand", name.into());
        Series { style: Style::Extrapolated, ..Series::measured(name, points) }
    }

    /// A series to compare with; a single point is a line all across.
    pub fn reference(name: impl Into<String>, points: Vec<(f64, f64)>) -> Series {
        Series { style: Style::Reference, ..Series::measured(name, points) }
    }

    /// The value at `x`.
    pub fn at(&self, x: f64) -> Option<f64> {
        self.points.iter().find(|(at, _)| *at == x).map(|(_, y)| *y)
    }
}

/// The kind of a series: a model is not drawn like a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// We measured it: a solid line with markers.
    Measured,
    /// A model: dashes without markers.
    Model,
    /// What measured service demands would allow on another machine: dashes without markers, in colours that no
    /// measurement has.
    Extrapolated,
    /// A value to compare with, such as the ceiling or the paper's number: dots, grey.
    Reference,
}

impl Plot {
    /// The picture, a whole SVG document that scales with its surroundings and takes its ink from the text around
    /// it, where there is some.
    pub fn svg(&self) -> String {
        draw::svg(self)
    }

    /// The plot in words, for those who do not see it.
    pub fn in_words(&self) -> String {
        let mut text = format!("{}. {}.", self.title, self.subtitle);
        for series in &self.series {
            let finite = series.points.iter().map(|(_, y)| *y).filter(|y| y.is_finite());
            let (low, high) = finite.fold((f64::MAX, f64::MIN), |(l, h), y| (l.min(y), h.max(y)));
            if low <= high {
                let (low, high) = (self.y.scale.label(low), self.y.scale.label(high));
                text.push_str(&format!(
                    " {}: {} from {low} to {high} {}.",
                    series.name, self.y.label, self.y.unit
                ));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn sample(kind: Kind) -> Plot {
        let (x, y) = match kind {
            Kind::Lines => (Axis::new("theta", "", Scale::Linear), Axis::throughput()),
            Kind::Bars => (
                Axis::new("", "", Scale::Categories(vec!["fsync".to_owned(), "none <&>".to_owned()])),
                Axis::throughput(),
            ),
            Kind::Cdf => {
                (Axis::new("latency", "us", Scale::Log), Axis::new("share of transactions", "", Scale::Nines))
            }
        };
        let points = |factor: f64| match kind {
            Kind::Lines => vec![(0.0, 200e3 * factor), (0.4, 180e3 * factor), (0.99, 90e3 * factor)],
            Kind::Bars => vec![(0.0, 20e3 * factor), (1.0, 150e3 * factor)],
            Kind::Cdf => vec![(100.0 * factor, 0.5), (300.0 * factor, 0.99), (9000.0 * factor, 0.999)],
        };
        let measured = Series {
            spread: Some(vec![(1e3, 2e5); points(1.0).len()]),
            ..Series::measured("calvin", points(1.0))
        };
        let mut series = vec![measured, Series::measured("\"q\" <store> & co", points(0.7))];
        if kind == Kind::Lines {
            series.push(Series::model("model", points(1.2)));
            series.push(Series::reference("ceiling", vec![(0.0, 300e3)]));
        }
        Plot {
            title: "Throughput & skew".to_owned(),
            subtitle: "1 M records, 16 operations".to_owned(),
            x,
            y,
            kind,
            series,
            notes: Vec::new(),
        }
    }

    #[test]
    fn every_kind_is_well_formed_and_names_its_series() {
        for kind in [Kind::Lines, Kind::Bars, Kind::Cdf] {
            let plot = sample(kind);
            let svg = plot.svg();
            let document = roxmltree::Document::parse(&svg).unwrap();
            let root = document.root_element();
            assert_eq!((root.tag_name().name(), root.attribute("role")), ("svg", Some("img")));
            assert!(
                root.attribute("viewBox").is_some() && root.attribute("style").unwrap().contains("max-width")
            );
            let texts: Vec<&str> = document
                .descendants()
                .filter(|n| n.has_tag_name(("http://www.w3.org/2000/svg", "text")))
                .filter_map(|n| n.text())
                .map(str::trim)
                .collect();
            for series in &plot.series {
                assert!(texts.contains(&series.name.as_str()), "{kind:?} {} {texts:?}", series.name);
            }
            let of = |name: &str| {
                document.descendants().find(|n| n.tag_name().name() == name).and_then(|n| n.text())
            };
            assert_eq!(of("title"), Some("Throughput & skew"));
            assert!(of("desc").unwrap().contains("calvin: "), "{:?}", of("desc"));
            // No reserved ink is left, and series differ without their colour.
            assert!(!svg.contains("\"#F0"), "{kind:?}");
        }
    }

    #[test]
    fn a_model_is_dashed_and_a_measurement_is_not() {
        let mut plot = sample(Kind::Lines);
        plot.series.retain(|series| series.style == Style::Measured);
        assert!(!plot.svg().contains("stroke-dasharray"));
        let mut extrapolated = plot.clone();
        plot.series.push(Series::model("m", vec![(0.0, 1.0), (0.5, 2.0)]));
        assert!(plot.svg().contains("stroke-dasharray"));
        // What is extrapolated is dashed in a colour that no measurement has, and named.
        assert!(!plot.svg().contains("#6A51A3"));
        extrapolated.series.push(Series::extrapolated("X(8)", vec![(0.0, 1.0), (0.5, 2.0)]));
        let svg = extrapolated.svg();
        assert!(
            svg.contains("stroke=\"#6A51A3\" stroke-dasharray")
                && svg.contains("extrapolated from service demand")
        );
    }

    #[test]
    fn nothing_and_nonsense_are_drawn_as_empty_axes() {
        for kind in [Kind::Lines, Kind::Bars, Kind::Cdf] {
            let mut plot = sample(kind);
            plot.series.clear();
            assert!(roxmltree::Document::parse(&plot.svg()).is_ok());
            plot.series
                .push(Series::measured("n", vec![(f64::NAN, 1.0), (0.0, f64::INFINITY), (-1.0, -5.0)]));
            plot.series.push(Series::measured("one", vec![(0.0, 0.0)]));
            assert!(roxmltree::Document::parse(&plot.svg()).is_ok());
        }
    }

    #[test]
    fn repetitions_become_a_median_and_a_spread() {
        let series = Series::repeated("a", &[(1.0, vec![3.0, 1.0, 2.0]), (2.0, vec![5.0])]);
        assert_eq!(series.points, [(1.0, 2.0), (2.0, 5.0)]);
        assert_eq!(series.spread, Some(vec![(1.0, 3.0), (5.0, 5.0)]));
        assert_eq!(Series::repeated("a", &[(1.0, vec![3.0])]).spread, None);
        assert_eq!((series.at(2.0), series.at(3.0)), (Some(5.0), None));
    }

    #[test]
    fn a_small_plot_is_drawn_as_it_was() {
        let mut plot = sample(Kind::Bars);
        plot.series.truncate(1);
        insta::assert_snapshot!(plot.svg());
    }

    #[test]
    fn a_disturbed_bar_is_crossed_out() {
        let mut plot = sample(Kind::Bars);
        let lines = |plot: &Plot| plot.svg().matches("<polyline").count();
        let before = lines(&plot);
        plot.series[0].disturbed = vec![1.0];
        assert_eq!(lines(&plot), before + 2);
        assert!(plot.svg().contains("No verdict rests on it"));
    }

    #[test]
    fn values_at_the_ends_of_what_a_number_can_be_are_drawn() {
        for value in [-1.675_454_394_270_675_2e308, f64::MAX, f64::MIN, f64::MIN_POSITIVE, 5e-324, -5e-324] {
            for kind in [Kind::Lines, Kind::Bars, Kind::Cdf] {
                let mut plot = sample(kind);
                for points in [vec![(0.0, value)], vec![(value, 0.0)], vec![(value, value), (0.0, 0.0)]] {
                    plot.series.push(Series::measured("far", points));
                    assert!(roxmltree::Document::parse(&plot.svg()).is_ok(), "{value}");
                }
                plot.series.drain(..plot.series.len() - 1);
                assert!(roxmltree::Document::parse(&plot.svg()).is_ok(), "{value}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn whatever_it_is_called_and_holds_it_is_well_formed(
            title in "\\PC*|[\u{0}-\u{ffff}]{0,8}",
            name in "[\u{0}-\u{ffff}]{0,12}",
            points in proptest::collection::vec((proptest::num::f64::ANY, proptest::num::f64::ANY), 0..6),
            kind in 0..3usize,
        ) {
            let mut plot = sample([Kind::Lines, Kind::Bars, Kind::Cdf][kind]);
            plot.series.push(Series::measured(name.clone(), points.clone()));
            plot.series.push(Series::reference(name, points));
            plot.title = title;
            proptest::prop_assert!(roxmltree::Document::parse(&plot.svg()).is_ok());
        }
    }
}
