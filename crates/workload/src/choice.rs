//! Which record next: uniform, Zipfian or hot-set choice among `n` records.
//!
//! The Zipfian generator draws by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate
//! variates from monotone discrete distributions", 1996), which is exact for every exponent and needs no sum over
//! all records. YCSB's own (Gray et al., SIGMOD 1994) is exact for the two most popular records only, and folds
//! ranks together when it scatters them by a hash; ours scatters them by a permutation.

use crate::Param;
use crate::random::Random;

/// The most records that there can be to choose from.
pub const MAX_RECORDS: u64 = 1 << 32;

/// How records are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Rank r is chosen with a likelihood proportional to 1 / r^theta. Theta 0 is uniform.
    Zipfian {
        /// The exponent.
        theta: f64,
    },
    /// A share of the choices falls on a few records, evenly; the rest on the others, evenly.
    HotSet {
        /// How many records are hot.
        hot: u64,
        /// The share of choices that fall on them.
        share: f64,
    },
}

impl Distribution {
    /// All are as likely.
    pub const UNIFORM: Distribution = Distribution::Zipfian { theta: 0.0 };

    /// Its knobs, as a report tells them.
    pub fn params(&self) -> Vec<(&'static str, Param)> {
        match *self {
            Distribution::Zipfian { theta } => vec![("theta", Param::Real(theta))],
            Distribution::HotSet { hot, share } => {
                vec![("hot_set", Param::Int(hot)), ("hot_set_share", Param::Real(share))]
            }
        }
    }
}

/// Why a choice cannot be made that way.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum ChoiceError {
    /// There is nothing to choose from, or too much.
    #[error("records must be 1 to {MAX_RECORDS}, not {0}")]
    Records(u64),
    /// Not an exponent.
    #[error("theta must be a number from 0 on, not {0}")]
    Theta(f64),
    /// The one exponent at which the generators of the papers divide by zero: nothing to compare with.
    #[error("theta 1.0 exactly has no Zipfian generator in the papers' sense: take 0.99 or 1.01")]
    ThetaOne,
    /// More hot records than records, or none.
    #[error("hot records must be 1 to {records}, not {hot}")]
    Hot {
        /// What was asked for.
        hot: u64,
        /// How many there are.
        records: u64,
    },
    /// Not a share.
    #[error("the share of choices of hot records must be from 0 to 1, not {0}")]
    Share(f64),
}

/// Draws records.
#[derive(Clone, Debug)]
pub struct Choice {
    records: u64,
    kind: Kind,
    scatter: Scatter,
}

#[derive(Clone, Debug)]
enum Kind {
    Uniform,
    Zipfian(Zipfian),
    HotSet { hot: u64, share: f64 },
}

impl Choice {
    /// A choice among `records` records.
    ///
    /// # Errors
    /// [`ChoiceError`]: a parameter that makes no sense.
    pub fn new(records: u64, distribution: Distribution) -> Result<Choice, ChoiceError> {
        if !(1..=MAX_RECORDS).contains(&records) {
            return Err(ChoiceError::Records(records));
        }
        let kind = match distribution {
            Distribution::Zipfian { theta: 1.0 } => return Err(ChoiceError::ThetaOne),
            Distribution::Zipfian { theta } if !theta.is_finite() || theta < 0.0 => {
                return Err(ChoiceError::Theta(theta));
            }
            Distribution::Zipfian { theta: 0.0 } => Kind::Uniform,
            Distribution::Zipfian { theta } => Kind::Zipfian(Zipfian::new(records, theta)),
            Distribution::HotSet { hot, .. } if !(1..=records).contains(&hot) => {
                return Err(ChoiceError::Hot { hot, records });
            }
            Distribution::HotSet { share, .. } if !(0.0..=1.0).contains(&share) => {
                return Err(ChoiceError::Share(share));
            }
            Distribution::HotSet { hot, share } => Kind::HotSet { hot, share },
        };
        Ok(Choice { records, kind, scatter: Scatter::new(records) })
    }

    /// How many records there are to choose from.
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Draws a record: 0 to n - 1. Popular records are scattered over the whole range.
    #[inline]
    pub fn draw(&self, random: &mut Random) -> u64 {
        match &self.kind {
            Kind::Uniform => random.below(self.records),
            _ => self.scatter.place(self.rank(random)),
        }
    }

    /// Draws a rank: 0 is the most popular record.
    #[inline]
    pub fn rank(&self, random: &mut Random) -> u64 {
        match &self.kind {
            Kind::Uniform => random.below(self.records),
            Kind::Zipfian(zipfian) => zipfian.draw(random) - 1,
            Kind::HotSet { hot, share } => {
                if *hot == self.records || random.unit() < *share {
                    random.below(*hot)
                } else {
                    hot + random.below(self.records - hot)
                }
            }
        }
    }
}

/// A permutation of 0 to n - 1 that puts neighbours far apart: ranks to places.
#[derive(Clone, Copy, Debug)]
pub struct Scatter {
    count: u64,
    /// Multiplying a rank by it, modulo the count, permutes the ranks.
    stride: u64,
}

impl Scatter {
    /// The permutation of `count` places, at most [`MAX_RECORDS`].
    pub fn new(count: u64) -> Scatter {
        Scatter { count, stride: coprime_near_golden(count) }
    }

    /// How many places there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The place of a rank: each rank has its own.
    #[inline]
    pub fn place(&self, rank: u64) -> u64 {
        // Both factors are at most 2^32, so the product fits.
        rank * self.stride % self.count
    }
}

/// A number that shares no factor with `n`, near n divided by the golden ratio, so that its multiples modulo n
/// spread evenly.
fn coprime_near_golden(n: u64) -> u64 {
    let gcd = |mut a: u64, mut b: u64| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let start = (n as f64 * 0.618_033_988_749_894_9) as u64;
    (start.max(1)..).find(|m| gcd(*m, n) == 1).unwrap_or(1)
}

/// The constants of rejection-inversion for one number of records and exponent.
#[derive(Clone, Debug)]
struct Zipfian {
    theta: f64,
    /// 1 - theta, and its inverse.
    power: f64,
    inverse: f64,
    records: f64,
    /// The integral of the density up to the first and the last rank: the range to draw from.
    low: f64,
    high: f64,
    /// Up to this distance above its rank a draw is accepted without further ado.
    sure: f64,
}

impl Zipfian {
    fn new(records: u64, theta: f64) -> Zipfian {
        let power = 1.0 - theta;
        let mut zipfian = Zipfian {
            theta,
            power,
            inverse: 1.0 / power,
            records: records as f64,
            low: 0.0,
            high: 0.0,
            sure: 0.0,
        };
        zipfian.low = zipfian.integral(1.5) - 1.0;
        zipfian.high = zipfian.integral(records as f64 + 0.5);
        zipfian.sure = 2.0 - zipfian.integral_inverse(zipfian.integral(2.5) - zipfian.density(2.0));
        zipfian
    }

    #[inline]
    fn density(&self, x: f64) -> f64 {
        (-self.theta * x.ln()).exp()
    }

    /// The integral of the density from 1 to x: (x^(1 - theta) - 1) / (1 - theta), also near theta 1.
    #[inline]
    fn integral(&self, x: f64) -> f64 {
        (self.power * x.ln()).exp_m1() * self.inverse
    }

    #[inline]
    fn integral_inverse(&self, y: f64) -> f64 {
        // Rounding may carry the argument past the pole when theta is large.
        ((y * self.power).max(-1.0).ln_1p() * self.inverse).exp()
    }

    /// A rank from 1 on.
    #[inline]
    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let y = self.high + random.unit() * (self.low - self.high);
            let x = self.integral_inverse(y);
            let rank = x.round().clamp(1.0, self.records);
            if rank - x <= self.sure || y >= self.integral(rank + 0.5) - self.density(rank) {
                return rank as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 400_000;

    /// Pearson's statistic of the ranks drawn against the exact likelihoods, standardised: below 5 in all but one
    /// of a million samples of the right distribution. Ranks of few expected draws are lumped together.
    fn deviation(choice: &Choice, weight: impl Fn(u64) -> f64, draw: impl Fn(&mut Random) -> u64) -> f64 {
        let mut counts = vec![0u64; choice.records() as usize];
        let mut random = Random::new(11);
        (0..DRAWS).for_each(|_| counts[draw(&mut random) as usize] += 1);
        let total: f64 = (0..choice.records()).map(&weight).sum();
        let (mut statistic, mut cells) = (0.0, 0u32);
        let (mut expected, mut seen) = (0.0, 0);
        for (rank, count) in counts.iter().enumerate() {
            expected += weight(rank as u64) / total * DRAWS as f64;
            seen += count;
            if expected >= 10.0 || rank + 1 == counts.len() {
                statistic += (seen as f64 - expected).powi(2) / expected.max(1e-9);
                cells += 1;
                (expected, seen) = (0.0, 0);
            }
        }
        let freedom = f64::from(cells.max(2) - 1);
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn zipfian_draws_follow_the_exact_distribution() {
        for theta in [0.01, 0.4, 0.6, 0.8, 0.9, 0.99, 0.999_999, 1.000_001, 1.2, 2.0, 5.0] {
            for records in [2, 3, 10, 1_000, 10_000] {
                let choice = Choice::new(records, Distribution::Zipfian { theta }).unwrap();
                let weight = |rank: u64| ((rank + 1) as f64).powf(-theta);
                let deviation = deviation(&choice, weight, |random| choice.rank(random));
                assert!(deviation < 5.0, "theta {theta}, {records} records: {deviation} deviations off");
            }
        }
    }

    #[test]
    fn the_test_notices_a_wrong_exponent() {
        let choice = Choice::new(1_000, Distribution::Zipfian { theta: 0.9 }).unwrap();
        let weight = |rank: u64| ((rank + 1) as f64).powf(-0.92);
        assert!(deviation(&choice, weight, |random| choice.rank(random)) > 5.0);
    }

    #[test]
    fn uniform_and_hot_set_draws_follow_the_exact_distribution() {
        let uniform = Choice::new(1_000, Distribution::Zipfian { theta: 0.0 }).unwrap();
        assert!(deviation(&uniform, |_| 1.0, |random| uniform.draw(random)) < 5.0);
        for (hot, share) in [(1, 0.5), (100, 0.9), (1_000, 0.3), (10, 0.0), (10, 1.0)] {
            let choice = Choice::new(1_000, Distribution::HotSet { hot, share }).unwrap();
            let weight = |rank| match (rank < hot, hot == 1_000) {
                (_, true) => 1.0,
                (true, _) => share / hot as f64,
                (false, _) => (1.0 - share) / (1_000 - hot) as f64,
            };
            assert!(deviation(&choice, weight, |random| choice.rank(random)) < 5.0, "{hot} hot, {share}");
        }
    }

    #[test]
    fn scattering_is_a_permutation_that_parts_the_popular() {
        for records in [1, 2, 3, 4, 6, 60, 97, 1_000, 4_096] {
            let choice = Choice::new(records, Distribution::Zipfian { theta: 0.9 }).unwrap();
            let mut all: Vec<u64> = (0..records).map(|rank| choice.scatter.place(rank)).collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..records), "{records}");
        }
        let choice = Choice::new(1_000, Distribution::Zipfian { theta: 0.9 }).unwrap();
        let weight = |record| {
            let rank = (0..1_000).find(|rank| choice.scatter.place(*rank) == record).unwrap();
            ((rank + 1) as f64).powf(-0.9)
        };
        let weights: Vec<f64> = (0..1_000).map(weight).collect();
        let deviation = deviation(&choice, |r| weights[r as usize], |random| choice.draw(random));
        assert!(deviation < 5.0, "{deviation}");
        assert!(
            (0..20).all(|rank| choice.scatter.place(rank).abs_diff(choice.scatter.place(rank + 1)) > 100)
        );
        // The largest range there may be does not overflow.
        let widest = Choice::new(MAX_RECORDS, Distribution::Zipfian { theta: 0.5 }).unwrap();
        assert!(widest.scatter.place(MAX_RECORDS - 1) < MAX_RECORDS);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refusal = |records, distribution| Choice::new(records, distribution).unwrap_err().to_string();
        let zipfian = |theta| Distribution::Zipfian { theta };
        assert!(refusal(10, zipfian(1.0)).contains("theta 1.0"));
        assert!(refusal(10, zipfian(-0.1)).contains("theta"));
        assert!(refusal(10, zipfian(f64::NAN)).contains("theta"));
        assert!(refusal(10, zipfian(f64::INFINITY)).contains("theta"));
        assert!(refusal(0, zipfian(0.5)).contains("records"));
        assert!(refusal(MAX_RECORDS + 1, zipfian(0.5)).contains("records"));
        assert!(refusal(10, Distribution::HotSet { hot: 11, share: 0.5 }).contains("hot"));
        assert!(refusal(10, Distribution::HotSet { hot: 1, share: 1.5 }).contains("share"));
    }
}
