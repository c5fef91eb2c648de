//! A seeded random source for the worlds of the tests.

/// Random numbers from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// One of a range, both ends included.
    pub fn between(&mut self, range: (u64, u64)) -> u64 {
        range.0 + self.below(range.1 - range.0 + 1)
    }

    /// One of several; none of none.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let n = from.len() as u64;
        (n > 0).then(|| from[self.below(n) as usize])
    }
}
