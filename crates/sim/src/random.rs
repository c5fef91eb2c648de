//! The one source of randomness of a run.
//!
//! xoshiro256++ seeded by SplitMix64, written out here so that a seed means the same run for as long as this
//! file stays as it is: a seed in a bug report must not depend on the version of a library. Every draw is an
//! integer; floating point is left out so that no platform rounds its way to another run.

/// A stream of random numbers. Any seed is a good one: it is hashed first.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The stream of a seed.
    pub fn new(seed: u64) -> Random {
        let mut x = seed;
        let mut split_mix = || {
            x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = x;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        Random { state: [split_mix(), split_mix(), split_mix(), split_mix()] }
    }

    /// The next 64 bits.
    pub fn draw(&mut self) -> u64 {
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

    /// A number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: u64) -> u64 {
        // The high half of a product: biased by less than n / 2^64, which no simulation can see.
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
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

    /// A stream of its own, so that drawing more from one does not change the other.
    #[must_use]
    pub fn fork(&mut self) -> Random {
        Random::new(self.draw())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_of_a_seed_is_pinned() {
        // A change here makes every seed in every bug report meaningless.
        let mut random = Random::new(0);
        assert_eq!(random.draw(), 0x53175d61490b23df);
        assert_ne!(Random::new(0).draw(), Random::new(1).draw());
    }

    #[test]
    fn draws_stay_in_their_ranges_and_reach_the_ends() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..1000 {
            let n = random.between(3, 7);
            assert!((3..=7).contains(&n));
            seen[(n - 3) as usize] = true;
            assert!(random.tail(100) <= 100);
            assert!(!random.chance(0) && random.chance(1_000_000));
        }
        assert_eq!(seen, [true; 5]);
        assert_eq!(random.below(0), 0);
        assert_eq!(random.between(9, 9), 9);
        random.between(0, u64::MAX);
        random.tail(u64::MAX);
    }

    #[test]
    fn the_tail_reaches_every_magnitude() {
        let mut random = Random::new(3);
        let draws: Vec<u64> = (0..2000).map(|_| random.tail(1 << 20)).collect();
        assert!(draws.iter().filter(|d| **d < 16).count() > 200);
        assert!(draws.iter().filter(|d| **d > 1 << 17).count() > 50);
    }
}
