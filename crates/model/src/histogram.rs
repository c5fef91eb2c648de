//! Fixed-bucket histograms: how long things took, and how large they were.
//!
//! Buckets are log-linear: eight to each power of two, so that a bucket's bounds are at most an eighth apart, from 1 to
//! 2^27 (as microseconds: 134 s). Recording is an index computation and two additions; two histograms are merged by
//! adding their buckets, so every event loop keeps its own.

use crate::Micros;

/// Buckets to each power of two, as a power of two.
const SUB_BITS: u32 = 3;
/// Values from here on share the last bucket.
const LIMIT_BITS: u32 = 27;

/// The number of buckets of every [`Histogram`].
pub const BUCKETS: usize = ((LIMIT_BITS - SUB_BITS + 1) << SUB_BITS) as usize + 1;

/// The bucket that a value falls into.
#[inline]
pub const fn bucket_of(value: u64) -> usize {
    if value < 1 << SUB_BITS {
        return value as usize;
    }
    let power = value.ilog2();
    if power >= LIMIT_BITS {
        return BUCKETS - 1;
    }
    let shift = power - SUB_BITS;
    // The leading bit counts as one row of buckets.
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

/// The smallest value of a bucket.
pub const fn lower_bound(bucket: usize) -> u64 {
    let row = bucket >> SUB_BITS;
    if row == 0 {
        return bucket as u64;
    }
    (1 << SUB_BITS | (bucket & ((1 << SUB_BITS) - 1)) as u64) << (row - 1)
}

/// Counts of values by size; see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    count: u64,
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; BUCKETS]), count: 0, sum: 0 }
    }
}

impl Histogram {
    /// Counts a value, of whatever unit the histogram has.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.counts[bucket_of(value)] += 1;
        self.count += 1;
        self.sum = self.sum.wrapping_add(value);
    }

    /// Counts a time.
    #[inline]
    pub fn record_time(&mut self, time: Micros) {
        self.record(time.0);
    }

    /// Counts a size, which is at least 1, as one less: so the sizes up to a power of two are those of whole buckets. The
    /// sum is of the sizes.
    #[inline]
    pub fn record_size(&mut self, size: u64) {
        self.record(size.saturating_sub(1));
        self.sum = self.sum.wrapping_add(1);
    }

    /// Adds `count` values to a bucket and `sum` to the sum: for counts that were kept elsewhere.
    pub fn add(&mut self, bucket: usize, count: u64) {
        if let Some(slot) = self.counts.get_mut(bucket) {
            *slot += count;
            self.count += count;
        }
    }

    /// Adds to the sum of the values: together with [`Histogram::add`].
    pub fn add_sum(&mut self, sum: u64) {
        self.sum = self.sum.wrapping_add(sum);
    }

    /// Adds all values of another.
    pub fn merge(&mut self, other: &Histogram) {
        self.counts.iter_mut().zip(other.counts.iter()).for_each(|(own, more)| *own += more);
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The values that were counted since an earlier state of this histogram.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let mut change = self.clone();
        change
            .counts
            .iter_mut()
            .zip(earlier.counts.iter())
            .for_each(|(now, then)| *now = now.saturating_sub(*then));
        change.count = change.counts.iter().sum();
        change.sum = self.sum.wrapping_sub(earlier.sum);
        change
    }

    /// The number of values counted.
    pub const fn count(&self) -> u64 {
        self.count
    }

    /// The sum of all values.
    pub const fn sum(&self) -> u64 {
        self.sum
    }

    /// The number of values less than `bound`, which is exact if that is the lower bound of a bucket.
    pub fn below(&self, bound: u64) -> u64 {
        self.counts[..bucket_of(bound)].iter().sum()
    }

    /// The value that a share of all values does not exceed, as the upper bound of its bucket: at most an eighth too
    /// large. 0 without values.
    pub fn percentile(&self, share: f64) -> u64 {
        let wanted = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return if bucket + 1 < BUCKETS { lower_bound(bucket + 1) - 1 } else { lower_bound(bucket) };
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_meet_without_gap_or_overlap() {
        assert_eq!((lower_bound(0), bucket_of(0)), (0, 0));
        for bucket in 1..BUCKETS {
            let first = lower_bound(bucket);
            assert!(first > lower_bound(bucket - 1));
            assert_eq!((bucket_of(first - 1), bucket_of(first)), (bucket - 1, bucket), "{first}");
        }
        assert_eq!((bucket_of(u64::MAX), bucket_of(1 << LIMIT_BITS)), (BUCKETS - 1, BUCKETS - 1));
    }

    #[test]
    fn ten_times_a_power_of_two_bounds_a_bucket() {
        for power in 0..=20 {
            let bound = 10 << power;
            assert_eq!(lower_bound(bucket_of(bound)), bound);
        }
    }

    #[test]
    fn percentiles_and_counts_are_those_of_the_values() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.percentile(0.5), histogram.count()), (0, 0));
        (1..=1000).for_each(|value| histogram.record(value));
        assert_eq!((histogram.count(), histogram.sum()), (1000, 500_500));
        assert_eq!(histogram.below(320), 319);
        let (p50, p99) = (histogram.percentile(0.5), histogram.percentile(0.99));
        assert!((500..=563).contains(&p50) && (990..=1023).contains(&p99), "{p50} {p99}");
    }

    proptest! {
        /// Merging adds, and the difference to an earlier state is what came since.
        #[test]
        fn histograms_add_up(first: Vec<u32>, second: Vec<u32>) {
            let of = |values: &[u32]| {
                let mut histogram = Histogram::default();
                values.iter().for_each(|value| histogram.record(u64::from(*value)));
                histogram
            };
            let mut both = of(&first);
            both.merge(&of(&second));
            prop_assert_eq!(&both, &of(&[first.clone(), second.clone()].concat()));
            prop_assert_eq!(both.since(&of(&first)), of(&second));
        }
    }
}
