//! A source of random numbers that is a function of its seed: xoshiro256++ (Blackman and Vigna), seeded by
//! SplitMix64. Small and fast: it is in the loop that makes the load.

/// One step of SplitMix64: a good mixing of 64 bits.
#[inline]
pub const fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The state of a generator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator of a seed; any 64 bits are a good seed.
    pub fn new(seed: u64) -> Random {
        let mut at = seed;
        let state = [(); 4].map(|()| {
            let word = mix(at);
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            word
        });
        Random { state }
    }

    /// The generator of stream `stream` of a seed: streams of one seed have nothing in common.
    pub fn stream(seed: u64, stream: u64) -> Random {
        Random::new(mix(seed) ^ mix(!stream))
    }

    /// 64 random bits.
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

    /// A number in [0, 1) with 53 random bits.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sequence_is_that_of_the_published_generator() {
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
    }

    #[test]
    fn below_is_below_and_reaches_everything() {
        let mut random = Random::new(1);
        let mut seen = [0u32; 7];
        (0..7_000).for_each(|_| seen[random.below(7) as usize] += 1);
        assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
        assert_eq!(random.below(0), 0);
        assert!((0..1_000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
