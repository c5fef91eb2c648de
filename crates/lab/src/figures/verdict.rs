//! Verdicts: our figures held against a number of the paper, or against a named shape of its curve.
//!
//! | claim | holds if | otherwise |
//! |---|---|---|
//! | band | ours is within a factor of the paper's number | *beyond*: better by more than the factor; *below*: worse by more |
//! | at least, at most | ours is no less, or no more | *below*, or *differs* |
//! | rises | the last point is at least so many times the first, and no point is [`DIP`] below an earlier one | *differs* |
//! | falls | the last point is at most such a share of the first, and no point is [`DIP`] above an earlier one | *differs* |
//! | grows by at most | the last point is at most so many times the first | *differs* |
//! | flat within | the lowest point is no more than such a share below the highest | *differs* |
//! | crosses at | a ratio of two lines comes to 1 within a factor of a place | *differs* |
//!
//! There is no verdict on what was not measured, on a machine that others used, or on what is extrapolated. A number
//! far above the paper's is not "as in the paper": it says that something else was measured.

use serde::Serialize;

use crate::plot::si;

/// The share by which a line that rises or falls may turn back on its way: what repetitions differ by on a free machine.
pub const DIP: f64 = 0.2;

/// A verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Ours is what is claimed.
    Holds,
    /// Ours is better than the paper's by more than the band.
    Beyond,
    /// Ours is worse than the paper's by more than the band, or less than is required.
    Below,
    /// Ours has another shape.
    Differs,
    /// Not known.
    Unknown,
}

impl Verdict {
    /// The verdict on a requirement that holds or does not.
    pub fn of(holds: bool) -> Verdict {
        if holds { Verdict::Holds } else { Verdict::Differs }
    }
}

/// The requirement that our figures are held against.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Claim {
    /// A number of the paper, and the factor within which ours is the same.
    Band {
        paper: f64,
        /// More than 1.
        factor: f64,
        /// True of latencies and the like.
        less_is_better: bool,
    },
    AtLeast(f64),
    AtMost(f64),
    /// From the first point to the last by at least this factor.
    Rises(f64),
    /// From the first point to the last to at most this share.
    Falls(f64),
    /// From the first point to the last by at most this factor.
    GrowsByAtMost(f64),
    /// All points within this share of the highest.
    Flat(f64),
    /// The ratio of two lines comes to 1, within a factor of a place.
    CrossesAt {
        place: f64,
        /// More than 1.
        factor: f64,
    },
}

impl Claim {
    /// The claim in words.
    pub fn text(self) -> String {
        match self {
            Claim::Band { paper, factor, .. } => format!("within {factor} x of {}", si(paper)),
            Claim::AtLeast(least) => format!("at least {}", si(least)),
            Claim::AtMost(most) => format!("at most {}", si(most)),
            Claim::Rises(by) if by < 1.0 => format!("rises or stays, at {by} x at least"),
            Claim::Rises(by) => format!("rises, by {by} x at least"),
            Claim::Falls(to) => format!("falls, to {to} x at most"),
            Claim::GrowsByAtMost(by) => format!("grows by {by} x at most"),
            Claim::Flat(within) => format!("flat within {:.0}%", within * 100.0),
            Claim::CrossesAt { place, factor } => format!("crosses at {}, within {factor} x", si(place)),
        }
    }

    /// The verdict on one number of ours.
    pub fn of_number(self, ours: f64) -> Verdict {
        if !ours.is_finite() {
            return Verdict::Unknown;
        }
        match self {
            Claim::Band { paper, factor, less_is_better } => {
                let better = if less_is_better { paper / ours } else { ours / paper };
                match better {
                    better if better.is_nan() || ours <= 0.0 => Verdict::Unknown,
                    better if better > factor => Verdict::Beyond,
                    better if better < 1.0 / factor => Verdict::Below,
                    _ => Verdict::Holds,
                }
            }
            Claim::AtLeast(least) if ours < least => Verdict::Below,
            Claim::AtLeast(_) => Verdict::Holds,
            Claim::AtMost(most) => Verdict::of(ours <= most),
            _ => Verdict::Unknown,
        }
    }

    /// The verdict on a line of ours, by places from the first to the last.
    pub fn of_line(self, points: &[(f64, f64)]) -> Verdict {
        if points.iter().any(|(_, y)| !y.is_finite()) {
            return Verdict::Unknown;
        }
        if let Claim::CrossesAt { place, factor } = self {
            return match crossing(points) {
                None if points.len() < 2 => Verdict::Unknown,
                None => Verdict::Differs,
                Some(at) => Verdict::of((place / factor..=place * factor).contains(&at)),
            };
        }
        if let Claim::Flat(within) = self {
            let lowest = points.iter().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
            let highest = points.iter().map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max);
            let known = points.len() > 1 && highest > 0.0;
            return if known { Verdict::of(lowest >= highest * (1.0 - within)) } else { Verdict::Unknown };
        }
        let [(_, first), .., (_, last)] = points else { return Verdict::Unknown };
        if *first <= 0.0 {
            return Verdict::Unknown;
        }
        let factor = last / first;
        match self {
            Claim::Rises(by) => Verdict::of(factor >= by && turns_back(points, 1.0) <= DIP),
            Claim::Falls(to) => Verdict::of(factor <= to && turns_back(points, -1.0) <= DIP),
            Claim::GrowsByAtMost(by) => Verdict::of(factor <= by),
            _ => Verdict::Unknown,
        }
    }
}

/// The largest share by which a line goes against its direction: down where it should rise, up where it should fall.
fn turns_back(points: &[(f64, f64)], direction: f64) -> f64 {
    let (mut furthest, mut most) = (points[0].1, 0.0f64);
    for (_, y) in points {
        most = most.max(direction * (furthest - y) / furthest);
        furthest = if direction > 0.0 { furthest.max(*y) } else { furthest.min(*y) };
    }
    most
}

/// The place at which a ratio comes from below 1 to 1, on the line between two points.
pub fn crossing(ratios: &[(f64, f64)]) -> Option<f64> {
    let pair = ratios.windows(2).find(|pair| pair[0].1 < 1.0 && pair[1].1 >= 1.0)?;
    let [(x0, y0), (x1, y1)] = [pair[0], pair[1]];
    Some(x0 + (x1 - x0) * (1.0 - y0) / (y1 - y0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Below, Beyond, Differs, Holds, Unknown};

    fn line(values: &[f64]) -> Vec<(f64, f64)> {
        values.iter().enumerate().map(|(x, y)| (x as f64, *y)).collect()
    }

    #[test]
    fn a_number_of_the_paper_is_met_missed_or_left_far_behind() {
        let more = Claim::Band { paper: 4.0, factor: 2.0, less_is_better: false };
        for (ours, verdict) in [
            (4.0, Holds),
            (8.0, Holds),
            (8.01, Beyond),
            (741.0, Beyond),
            (2.0, Holds),
            (1.99, Below),
            (0.0, Unknown),
            (-1.0, Unknown),
            (f64::NAN, Unknown),
            (f64::INFINITY, Unknown),
        ] {
            assert_eq!(more.of_number(ours), verdict, "{ours}");
        }
        let less = Claim::Band { paper: 4.0, factor: 2.0, less_is_better: true };
        for (ours, verdict) in [(2.0, Holds), (1.9, Beyond), (8.0, Holds), (8.1, Below), (0.0, Unknown)] {
            assert_eq!(less.of_number(ours), verdict, "{ours}");
        }
        assert_eq!(more.text(), "within 2 x of 4");
    }

    #[test]
    fn a_bound_is_kept_or_not() {
        let verdicts = |claim: Claim| [0.9, 1.0, 1.1, f64::NAN].map(|ours| claim.of_number(ours));
        assert_eq!(verdicts(Claim::AtLeast(1.0)), [Below, Holds, Holds, Unknown]);
        assert_eq!(verdicts(Claim::AtMost(1.0)), [Holds, Holds, Differs, Unknown]);
        // A shape says nothing of a number, and a band nothing of a line.
        assert_eq!(verdicts(Claim::Flat(0.1)), [Unknown; 4]);
        let band = Claim::Band { paper: 1.0, factor: 2.0, less_is_better: false };
        assert_eq!(band.of_line(&line(&[1.0, 1.0])), Unknown);
    }

    #[test]
    fn a_line_rises_falls_or_stays() {
        let rises = Claim::Rises(1.5);
        for (values, verdict) in [
            (&[1.0, 1.2, 1.5][..], Holds),
            (&[1.0, 1.2, 1.49], Differs),
            (&[1.0, 3.0, 2.5], Holds),
            (&[1.0, 3.0, 2.3], Differs),
            (&[3.0, 2.0, 1.0], Differs),
            (&[1.0], Unknown),
            (&[], Unknown),
            (&[0.0, 5.0], Unknown),
            (&[1.0, f64::NAN], Unknown),
        ] {
            assert_eq!(rises.of_line(&line(values)), verdict, "{values:?}");
        }
        let falls = Claim::Falls(0.5);
        for (values, verdict) in [
            (&[2.0, 1.5, 1.0][..], Holds),
            (&[2.0, 1.5, 1.1], Differs),
            (&[2.0, 0.5, 0.6], Holds),
            (&[2.0, 0.5, 0.61], Differs),
            (&[1.0, 2.0], Differs),
            (&[2.0], Unknown),
        ] {
            assert_eq!(falls.of_line(&line(values)), verdict, "{values:?}");
        }
        let most = Claim::GrowsByAtMost(1.2);
        assert_eq!(most.of_line(&line(&[1.0, 9.0, 1.2])), Holds);
        assert_eq!(most.of_line(&line(&[1.0, 1.21])), Differs);
    }

    #[test]
    fn a_line_is_flat_within_a_share_of_its_highest_point() {
        let flat = Claim::Flat(0.2);
        assert_eq!(flat.of_line(&line(&[100.0, 80.0, 90.0])), Holds);
        assert_eq!(flat.of_line(&line(&[100.0, 79.9, 90.0])), Differs);
        assert_eq!(flat.of_line(&line(&[100.0])), Unknown, "one point is no line");
        assert_eq!(flat.of_line(&line(&[0.0, 0.0])), Unknown);
        assert_eq!(flat.text(), "flat within 20%");
    }

    #[test]
    fn two_lines_cross_where_their_ratio_comes_to_one() {
        let crosses = Claim::CrossesAt { place: 1.0, factor: 2.0 };
        for (values, verdict) in [
            (&[0.5, 1.5][..], Holds),
            (&[0.1, 0.5, 1.0], Holds),
            (&[0.1, 0.5, 0.9, 2.0], Differs),
            (&[0.5, 0.9], Differs),
            (&[1.5, 2.0], Differs),
            (&[2.0, 0.5], Differs),
            (&[1.0], Unknown),
        ] {
            assert_eq!(crosses.of_line(&line(values)), verdict, "{values:?}");
        }
        assert_eq!(crossing(&line(&[0.5, 1.5])), Some(0.5));
        assert_eq!(crosses.text(), "crosses at 1, within 2 x");
    }
}
