//! The choice of records: uniform, Zipfian or hot-set choice among `n` records.
//!
//! The Zipfian generator is exact for every exponent and needs no sum over all records: it draws by rejection
//! from a staircase above the weights. YCSB's own (Gray et al., SIGMOD 1994) is exact for the two most
//! popular records only, and folds ranks together when it scatters them by a hash; ours scatters them by a
//! permutation.

use std::sync::Arc;

use ordain_model::Random;

use crate::Param;
use crate::parameters::{ParameterError, require, require_in, require_share};

/// The most records that there can be to choose from.
pub const MAX_RECORDS: u64 = 1 << 32;

/// The distribution of the choices of records.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// Rank r is chosen with a likelihood proportional to 1 / r^theta. Theta 0 is uniform.
    Zipfian {
        /// The exponent.
        theta: f64,
    },
    /// A share of the choices falls on a few records, evenly; the rest on the others, evenly.
    HotSet {
        /// The number of hot records.
        hot: u64,
        /// The share of choices that fall on them.
        share: f64,
    },
}

impl Distribution {
    /// All are as likely.
    pub const UNIFORM: Distribution = Distribution::Zipfian { theta: 0.0 };

    /// The parameters, as a report has them.
    pub fn params(&self) -> Vec<(&'static str, Param)> {
        match *self {
            Distribution::Zipfian { theta } => vec![("theta", Param::Real(theta))],
            Distribution::HotSet { hot, share } => {
                vec![("hot_set", Param::Int(hot)), ("hot_set_share", Param::Real(share))]
            }
        }
    }
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
    /// A parameter that makes no sense, by name.
    pub fn new(records: u64, distribution: Distribution) -> Result<Choice, ParameterError> {
        require_in("records", records, 1..=MAX_RECORDS)?;
        let kind = match distribution {
            Distribution::Zipfian { theta } => {
                // The generators of the papers divide by zero there: nothing to compare with.
                require(theta != 1.0, || {
                    "theta 1.0 exactly has no Zipfian generator in the papers' sense: take 0.99 or 1.01"
                        .to_owned()
                })?;
                require(theta.is_finite() && theta >= 0.0, || {
                    format!("theta must be a number from 0 on, not {theta}")
                })?;
                if theta == 0.0 { Kind::Uniform } else { Kind::Zipfian(Zipfian::new(records, theta)) }
            }
            Distribution::HotSet { hot, share } => {
                require_in("hot records", hot, 1..=records)?;
                require_share("the share of choices of hot records", share)?;
                Kind::HotSet { hot, share }
            }
        };
        Ok(Choice { records, kind, scatter: Scatter::new(records) })
    }

    /// The number of records to choose from.
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
            Kind::Zipfian(zipfian) => zipfian.draw(random),
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

    /// The number of places.
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

/// A number that shares no factor with `n`, near n divided by the golden ratio, so that its multiples modulo
/// n spread evenly.
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

/// Zipfian ranks: a block of successive ranks is chosen by Walker's alias method, in proportion to what it
/// would weigh if all of its ranks weighed as much as the first; a rank of it evenly; and the rank is
/// rejected as often as it weighs less than the first. Blocks grow with their ranks, so that there are some
/// hundred of them at most and a draw in a hundred is rejected, and the power is computed for hardly more.
#[derive(Clone, Debug)]
struct Zipfian {
    theta: f64,
    blocks: Arc<[Block]>,
}

#[derive(Clone, Copy, Debug)]
struct Block {
    /// The share, of 2^64, of the draws of this place that stay here; the others go to `other`.
    stay: u64,
    other: u32,
    /// The first rank, from 0 on, and the number of ranks.
    first: u32,
    count: u32,
    /// The share, of 2^64, at which no rank of the block is rejected.
    sure: u64,
}

/// 2^64, of which shares are counted; the conversion back saturates.
const WHOLE: f64 = 18_446_744_073_709_551_616.0;

impl Zipfian {
    /// A block is this part of the ranks before it.
    const PART: u64 = 32;

    fn new(records: u64, theta: f64) -> Zipfian {
        let density = |rank: u64| ((rank + 1) as f64).powf(-theta);
        let (mut blocks, mut weights) = (Vec::new(), Vec::new());
        let mut first = 0;
        while first < records {
            let count = ((first + 1) / Zipfian::PART).max(1).min(records - first);
            let last = first + count - 1;
            let sure = ((first + 1) as f64 / (last + 1) as f64).powf(theta);
            // Ranks and counts fit: there are at most 2^32 records.
            let (at, sure) = (blocks.len() as u32, (sure * WHOLE) as u64);
            blocks.push(Block { stay: u64::MAX, other: at, first: first as u32, count: count as u32, sure });
            weights.push(count as f64 * density(first));
            first += count;
        }
        share_out(&mut blocks, weights);
        Zipfian { theta, blocks: blocks.into() }
    }

    /// A rank from 0 on.
    #[inline]
    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let (place, coin) = split(random.bits(), self.blocks.len() as u64);
            let mut block = &self.blocks[place as usize];
            if coin >= block.stay {
                block = &self.blocks[block.other as usize];
            }
            if block.count == 1 {
                return u64::from(block.first);
            }
            let (offset, coin) = split(random.bits(), u64::from(block.count));
            let first = u64::from(block.first);
            if coin < block.sure || self.is_kept(first, first + offset, coin) {
                return first + offset;
            }
        }
    }

    #[cold]
    fn is_kept(&self, first: u64, rank: u64, coin: u64) -> bool {
        let share = ((first + 1) as f64 / (rank + 1) as f64).powf(self.theta);
        (coin as f64) < share * WHOLE
    }
}

/// A number below `n`, and how far the bits are between it and the next, of 2^64. A bias of n / 2^64 is far
/// below what any number of draws could show.
#[inline]
fn split(bits: u64, n: u64) -> (u64, u64) {
    let product = u128::from(bits) * u128::from(n);
    ((product >> 64) as u64, product as u64)
}

/// Fills in an alias table (Vose, "A linear algorithm for generating random numbers with a given
/// distribution", 1991): every place has one share of all draws, and gives what its own weight does not fill
/// to another.
fn share_out(blocks: &mut [Block], mut weights: Vec<f64>) {
    let mean = weights.iter().sum::<f64>() / weights.len() as f64;
    let (mut small, mut large): (Vec<usize>, Vec<usize>) =
        (0..weights.len()).partition(|at| weights[*at] < mean);
    while let (Some(needy), Some(giver)) = (small.pop(), large.last().copied()) {
        blocks[needy].stay = (weights[needy] / mean * WHOLE) as u64;
        blocks[needy].other = giver as u32;
        weights[giver] -= mean - weights[needy];
        if weights[giver] < mean {
            small.extend(large.pop());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 400_000;

    /// Pearson's statistic of the ranks drawn against the exact likelihoods, standardised: below 5 in all but
    /// one of a million samples of the right distribution. Ranks of few expected draws are lumped together.
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
