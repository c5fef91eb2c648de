//! Places of values on an axis, and the values that get a label.

use serde::Serialize;

/// The scale of an axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal steps are equally long.
    Linear,
    /// Equal factors are equally long; values are positive.
    Log,
    /// Shares from 0 to 1: each further nine is equally long, so that the tail of a distribution can be read.
    Nines,
    /// Things with names; the value is the number of the thing.
    Categories(Vec<String>),
}

impl Scale {
    /// The place of a value before the axis is fitted to its space; `None` if it has none.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = match self {
            Scale::Linear | Scale::Categories(_) => value,
            Scale::Log => value.log10(),
            Scale::Nines => -(1.0 - value.clamp(0.0, 0.999_999)).log10(),
        };
        (value.is_finite() && place.is_finite()).then_some(place)
    }

    /// The label of a tick.
    pub(super) fn label(&self, value: f64) -> String {
        match self {
            Scale::Linear | Scale::Log => si(value),
            Scale::Nines => format!("{}%", si(value * 100.0)),
            Scale::Categories(names) => names.get(value as usize).cloned().unwrap_or_default(),
        }
    }
}

/// An axis that is fitted to its data: from where to where, and the ticks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fitted {
    pub scale: Scale,
    /// In places, not values.
    pub from: f64,
    pub to: f64,
    /// Values.
    pub ticks: Vec<f64>,
}

impl Fitted {
    /// The place of a value, 0 to 1.
    pub fn share(&self, value: f64) -> Option<f64> {
        let place = self.scale.place(value)?;
        Some(((place - self.from) / (self.to - self.from)).clamp(-0.02, 1.02))
    }
}

/// Fits an axis to its values; `from_zero` if a linear one must show where zero is.
pub(super) fn fit(scale: &Scale, values: impl IntoIterator<Item = f64>, from_zero: bool) -> Fitted {
    let mut known: Vec<f64> = values.into_iter().filter(|value| scale.place(*value).is_some()).collect();
    known.sort_by(f64::total_cmp);
    known.dedup();
    let (low, high) = match (known.first(), known.last()) {
        (Some(low), Some(high)) => (*low, *high),
        _ => (if *scale == Scale::Log { 1.0 } else { 0.0 }, 1.0),
    };
    match scale {
        Scale::Linear => linear(low, high, from_zero, &known),
        Scale::Log => log(low, high, &known),
        Scale::Nines => {
            let top = if high > 0.999 { 0.9999 } else { 0.999 };
            let ticks = [0.0, 0.5, 0.9, 0.99, 0.999, 0.9999];
            Fitted {
                scale: Scale::Nines,
                from: 0.0,
                to: Scale::Nines.place(top).unwrap_or(4.0),
                ticks: ticks.into_iter().filter(|tick| *tick <= top).collect(),
            }
        }
        Scale::Categories(names) => Fitted {
            scale: scale.clone(),
            from: -0.5,
            to: (names.len().max(1) as f64) - 0.5,
            ticks: (0..names.len()).map(|i| i as f64).collect(),
        },
    }
}

fn linear(low: f64, high: f64, from_zero: bool, known: &[f64]) -> Fitted {
    let low = if from_zero { low.min(0.0) } else { low };
    let high = if high > low { high } else { low + low.abs().max(1.0) };
    let step = step((high - low) / 5.0);
    let ticks = |from: f64, to: f64| -> Vec<f64> {
        let (first, last) = ((from / step - 1e-9).ceil() as i64, (to / step + 1e-9).floor() as i64);
        // Five or so; values too close to be distinct must not make it more.
        (first..=last.min(first.saturating_add(20))).map(|i| i as f64 * step).collect()
    };
    if from_zero {
        let to = (high / step - 1e-9).ceil() * step;
        let from = (low / step + 1e-9).floor() * step;
        return Fitted { scale: Scale::Linear, from, to, ticks: ticks(from, to) };
    }
    // Swept values are the ticks, where they do not crowd.
    let margin = (high - low) * 0.03;
    let apart = known.windows(2).all(|pair| pair[1] - pair[0] > (high - low) * 0.055);
    let ticks = if apart && known.len() <= 16 { known.to_vec() } else { ticks(low, high) };
    Fitted { scale: Scale::Linear, from: low - margin, to: high + margin, ticks }
}

fn log(low: f64, high: f64, known: &[f64]) -> Fitted {
    let (first, last) = (low.log10().floor() as i32 - 1, high.log10().ceil() as i32 + 1);
    let grid: Vec<f64> = (first..=last).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e))).collect();
    let below = grid.iter().rfind(|value| **value <= low * 1.000_001).copied().unwrap_or(low);
    let above = grid.iter().find(|value| **value >= high * 0.999_999 && **value > below).copied();
    let above = above.unwrap_or(high * 2.0);
    let decades = (above / below).log10();
    let is_decade = |value: &f64| (value.log10() - value.log10().round()).abs() < 1e-9;
    let inside = grid.into_iter().filter(|value| (below..=above * 1.000_001).contains(value));
    let apart = known.windows(2).all(|pair| (pair[1] / pair[0]).log10() > decades * 0.09);
    let ticks = if apart && (2..=8).contains(&known.len()) {
        known.to_vec()
    } else if decades > 2.5 {
        inside.filter(is_decade).collect()
    } else {
        inside.collect()
    };
    Fitted { scale: Scale::Log, from: below.log10(), to: above.log10(), ticks }
}

/// The round step next to one that was wished.
fn step(wished: f64) -> f64 {
    let magnitude = 10f64.powf(wished.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|round| round * magnitude >= wished * 0.999);
    round.unwrap_or(10.0) * magnitude
}

/// A number with three digits that matter, and K, M or G.
pub fn si(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return if value == 0.0 { "0".to_owned() } else { "-".to_owned() };
    }
    let digits = |value: f64| 2 - value.abs().log10().floor() as i32;
    let unit = 10f64.powi(digits(value));
    // Rounded first, so that 999,999 is 1 M and not 1000 K.
    let value = if unit.is_finite() && unit > 0.0 { (value * unit).round() / unit } else { value };
    let (divisor, suffix) = match value.abs() {
        size if size >= 1e9 => (1e9, " G"),
        size if size >= 1e6 => (1e6, " M"),
        size if size >= 1e3 => (1e3, " K"),
        _ => (1.0, ""),
    };
    let scaled = value / divisor;
    let text = format!("{scaled:.*}", digits(scaled).clamp(0, 9) as usize);
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (1.0, "1"),
            (999.0, "999"),
            (999.9, "1 K"),
            (10_000.0, "10 K"),
            (12_345.0, "12.3 K"),
            (999_999.0, "1 M"),
            (1_500_000.0, "1.5 M"),
            (2e9, "2 G"),
            (0.0001, "0.0001"),
            (0.99, "0.99"),
            (0.12345, "0.123"),
            (-2_500.0, "-2.5 K"),
            (f64::NAN, "-"),
        ];
        for (value, text) in cases {
            assert_eq!(si(value), text);
        }
    }

    #[test]
    fn an_axis_begins_at_zero_and_ends_at_a_tick() {
        let fitted = fit(&Scale::Linear, [120e3, 203e3], true);
        assert_eq!((fitted.from, fitted.to), (0.0, 250e3));
        assert_eq!(fitted.ticks, [0.0, 50e3, 100e3, 150e3, 200e3, 250e3]);
        assert_eq!(fitted.share(125e3), Some(0.5));
        assert_eq!(fitted.share(f64::NAN), None);
    }

    #[test]
    fn what_was_swept_labels_the_axis() {
        assert_eq!(fit(&Scale::Linear, [0.0, 0.4, 0.8, 0.99], false).ticks, [0.0, 0.4, 0.8, 0.99]);
        assert_eq!(fit(&Scale::Log, [1e-4, 1e-2], false).ticks, [1e-4, 1e-2]);
        let crowded = fit(&Scale::Linear, (0..100).map(f64::from), false);
        assert_eq!(crowded.ticks, [0.0, 20.0, 40.0, 60.0, 80.0]);
    }

    #[test]
    fn decades_and_nines() {
        let fitted = fit(&Scale::Log, (1..=1000).map(|i| f64::from(i) * 10.0), false);
        assert_eq!(fitted.ticks, [10.0, 100.0, 1000.0, 10000.0]);
        assert_eq!((fitted.share(10.0), fitted.share(10_000.0)), (Some(0.0), Some(1.0)));
        assert_eq!(fitted.share(0.0), None);
        let nines = fit(&Scale::Nines, [0.5, 0.999], false);
        assert_eq!(nines.ticks, [0.0, 0.5, 0.9, 0.99, 0.999]);
        let places: Vec<f64> = [0.9, 0.99].iter().filter_map(|share| nines.share(*share)).collect();
        assert!((places[0] - 1.0 / 3.0).abs() < 1e-9 && (places[1] - 2.0 / 3.0).abs() < 1e-9, "{places:?}");
        assert_eq!(Scale::Nines.label(0.999), "99.9%");
    }

    #[test]
    fn empty_axes_are_axes() {
        for scale in [Scale::Linear, Scale::Log, Scale::Nines, Scale::Categories(Vec::new())] {
            let fitted = fit(&scale, [], true);
            assert!(fitted.to > fitted.from, "{fitted:?}");
            let fitted = fit(&scale, [7.0], false);
            assert!(fitted.to > fitted.from, "{fitted:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_value_has_its_place_and_every_tick_is_on_the_axis(
            values in proptest::collection::vec(1e-6..1e12f64, 1..20),
            from_zero: bool,
        ) {
            for scale in [Scale::Linear, Scale::Log] {
                let fitted = fit(&scale, values.iter().copied(), from_zero);
                for value in &values {
                    let share = fitted.share(*value).unwrap();
                    proptest::prop_assert!((-1e-6..=1.0 + 1e-6).contains(&share), "{scale:?} {value} at {share}");
                }
                proptest::prop_assert!((1..=40).contains(&fitted.ticks.len()), "{fitted:?}");
                for tick in &fitted.ticks {
                    let share = fitted.share(*tick).unwrap();
                    proptest::prop_assert!((-1e-6..=1.0 + 1e-6).contains(&share), "{scale:?} tick {tick} at {share}");
                }
            }
        }
    }
}
