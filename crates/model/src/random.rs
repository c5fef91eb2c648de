//! Random numbers that are a function of a seed: xoshiro256++ (Blackman and Vigna), seeded by SplitMix64.
//!
//! They are written out here so that a seed means the same run for as long as this file stays as it is: a seed in a
//! bug report must not depend on the version of a library. The simulator draws integers alone, so that no platform
//! rounds its way to another run.

/// One step of SplitMix64: a good mixing of 64 bits.
#[inline]
pub const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A stream of random numbers. Any seed is a good one: it is hashed first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        let word = |n: u64| mix(seed.wrapping_add(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        Random { state: [0, 1, 2, 3].map(word) }
    }

    /// Stream `stream` of a seed: streams of one seed have nothing in common.
    pub fn stream(seed: u64, stream: u64) -> Random {
        Random::new(mix(seed) ^ mix(!stream))
    }

    /// A stream of its own, so that drawing more from one does not change the other.
    #[must_use]
    pub fn fork(&mut self) -> Random {
        Random::new(self.bits())
    }

    /// The next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// A number below `n`, all equally likely (Lemire's method); 0 if `n` is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        let mut product = u128::from(self.bits()) * u128::from(n);
        if (product as u64) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u64) < threshold {
                product = u128::from(self.bits()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// An index below `n`, which must not be 0 if the index is used.
    pub fn index(&mut self, n: usize) -> usize {
        self.below(n as u64) as usize
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low.saturating_add(self.below(high.saturating_sub(low).saturating_add(1)))
    }

    /// True with a chance of `per_million` in a million.
    pub fn chance(&mut self, per_million: u32) -> bool {
        self.below(1_000_000) < u64::from(per_million)
    }

    /// A number from 0 to `max` with a long tail: each order of magnitude is about as likely as any other.
    pub fn tail(&mut self, max: u64) -> u64 {
        let bits = u64::from(64 - max.leading_zeros());
        let magnitude = self.below(bits + 1);
        self.below(1u64.checked_shl(magnitude as u32).unwrap_or(u64::MAX)).min(max)
    }

    /// A number in [0, 1) with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True for a share, from 0 to 1, of the draws. A share of 0 draws nothing.
    #[inline]
    pub fn is_in(&mut self, share: f64) -> bool {
        share > 0.0 && self.unit() < share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_is_pinned() {
        // A change here makes every seed in every bug report meaningless.
        assert_eq!(Random::new(0).bits(), 0x5317_5d61_490b_23df);
        // The first outputs of the authors' xoshiro256plusplus.c for the state 1, 2, 3, 4.
        let mut random = Random { state: [1, 2, 3, 4] };
        assert_eq!([(); 3].map(|()| random.bits()), [41_943_041, 58_720_359, 3_588_806_011_781_223]);
        // And of splitmix64.c for the seed 0.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn a_seed_repeats_and_streams_differ() {
        let draw = |mut r: Random| [(); 4].map(|()| r.bits());
        assert_eq!(draw(Random::stream(7, 1)), draw(Random::stream(7, 1)));
        assert_ne!(draw(Random::stream(7, 1)), draw(Random::stream(7, 2)));
        assert_ne!(draw(Random::stream(7, 1)), draw(Random::stream(8, 1)));
        assert_ne!(draw(Random::new(0)), draw(Random::new(1)));
    }

    #[test]
    fn draws_stay_in_their_ranges_and_reach_the_ends() {
        let mut random = Random::new(7);
        let mut seen = [0u32; 7];
        (0..7_000).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
        let mut seen = [false; 5];
        for _ in 0..1_000 {
            let n = random.between(3, 7);
            assert!((3..=7).contains(&n));
            seen[(n - 3) as usize] = true;
            assert!(random.tail(100) <= 100);
            assert!(!random.chance(0) && random.chance(1_000_000));
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!((random.below(0), random.between(9, 9)), (0, 9));
        random.between(0, u64::MAX);
        random.tail(u64::MAX);
        let before = random.clone();
        assert!(!random.is_in(0.0) && random == before && random.is_in(1.0));
    }

    #[test]
    fn the_tail_reaches_every_magnitude() {
        let mut random = Random::new(3);
        let draws: Vec<u64> = (0..2000).map(|_| random.tail(1 << 20)).collect();
        assert!(draws.iter().filter(|d| **d < 16).count() > 200);
        assert!(draws.iter().filter(|d| **d > 1 << 17).count() > 50);
    }
}
