//! The specification's random values (clauses 2.1.6, 4.3.2 and 4.3.3): NURand, last names, strings.

use ordain_model::Random;

use crate::packed::Short;

/// The longest last name: three syllables of five letters.
pub const LAST_NAME_MAX: usize = 15;
/// The number of different last names.
pub const LAST_NAMES: u32 = 1_000;

const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];

/// A non-uniform distribution of the specification: its range of bits and its constant C.
///
/// C is fixed, so that every run draws from the same distribution. The two for last names differ by 66, which
/// clause 2.1.6.1 asks for: the names that a run looks for are not those which the load made popular.
#[derive(Clone, Copy, Debug)]
pub struct NuRand {
    bits: u64,
    constant: u64,
}

impl NuRand {
    /// C_LAST of the load.
    pub const LAST_NAME_LOADED: NuRand = NuRand { bits: 255, constant: 157 };
    /// C_LAST of a run.
    pub const LAST_NAME: NuRand = NuRand { bits: 255, constant: 223 };
    /// C_ID.
    pub const CUSTOMER: NuRand = NuRand { bits: 1023, constant: 259 };
    /// OL_I_ID.
    pub const ITEM: NuRand = NuRand { bits: 8191, constant: 7911 };

    /// Draws a number from `low` to `high`, both possible.
    #[inline]
    pub fn draw(self, random: &mut Random, low: u32, high: u32) -> u32 {
        let range = u64::from(high - low) + 1;
        let mixed = random.below(self.bits + 1) | (u64::from(low) + random.below(range));
        low + ((mixed + self.constant) % range) as u32
    }
}

/// A number from `low` to `high`, both possible, all equally likely.
#[inline]
pub fn uniform(random: &mut Random, low: u32, high: u32) -> u32 {
    low + random.below(u64::from(high - low) + 1) as u32
}

/// A last name (clause 4.3.2.3): three syllables, by the digits of its number.
pub type LastName = Short<LAST_NAME_MAX>;

/// The last name of a number.
pub fn last_name(number: u32) -> LastName {
    let mut name = LastName::EMPTY;
    for digit in [number / 100, number / 10, number] {
        name.push(SYLLABLES[(digit % 10) as usize].as_bytes());
    }
    name
}

/// Appends `low` to `high` random characters: letters, digits, `-` and space.
pub fn text(random: &mut Random, low: u32, high: u32, out: &mut Vec<u8>) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789- ";
    let mut left = uniform(random, low, high);
    while left > 0 {
        // One draw is good for ten characters of six bits.
        let mut bits = random.bits();
        for _ in 0..left.min(10) {
            out.push(ALPHABET[(bits & 63) as usize]);
            bits >>= 6;
        }
        left = left.saturating_sub(10);
    }
}

/// Appends `count` random digits.
pub fn digits(random: &mut Random, count: usize, out: &mut Vec<u8>) {
    out.extend((0..count).map(|_| b'0' + random.below(10) as u8));
}

/// Appends a text that holds `ORIGINAL` somewhere in one of ten cases.
pub fn data(random: &mut Random, low: u32, high: u32, out: &mut Vec<u8>) {
    let start = out.len();
    text(random, low, high, out);
    if random.below(10) == 0 {
        let free = out.len() - start - ORIGINAL.len();
        let at = start + random.below(free as u64 + 1) as usize;
        out[at..at + ORIGINAL.len()].copy_from_slice(ORIGINAL);
    }
}

/// True if a text holds `ORIGINAL`. All of it is read, a word at each place: texts are short, and nearly none
/// gives a reason to stop early.
#[inline]
pub fn is_original(data: &[u8]) -> bool {
    const WANTED: u64 = u64::from_ne_bytes(*ORIGINAL);
    let is_wanted =
        |window: &[u8]| window.first_chunk().is_some_and(|word| u64::from_ne_bytes(*word) == WANTED);
    data.windows(ORIGINAL.len()).fold(false, |found, window| found | is_wanted(window))
}

const ORIGINAL: &[u8; 8] = b"ORIGINAL";

/// The numbers from 1 to `count` in a random order.
pub fn permutation(random: &mut Random, count: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = (1..=count).collect();
    for i in (1..numbers.len()).rev() {
        numbers.swap(i, random.below(i as u64 + 1) as usize);
    }
    numbers
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pearson's statistic of draws against likelihoods, standardised: below 5 in all but one of a million samples.
    pub(crate) fn deviation(counts: &[u64], likelihoods: &[f64]) -> f64 {
        let draws: u64 = counts.iter().sum();
        let total: f64 = likelihoods.iter().sum();
        let statistic: f64 = counts
            .iter()
            .zip(likelihoods)
            .map(|(count, likelihood)| {
                let expected = likelihood / total * draws as f64;
                (*count as f64 - expected).powi(2) / expected
            })
            .sum();
        let freedom = (counts.len() - 1) as f64;
        (statistic - freedom) / (2.0 * freedom).sqrt()
    }

    /// The exact distribution: every pair of draws that the definition combines.
    fn likelihoods(nurand: NuRand, low: u32, high: u32) -> Vec<f64> {
        let range = u64::from(high - low) + 1;
        let mut exact = vec![0.0; range as usize];
        for bits in 0..=nurand.bits {
            for x in u64::from(low)..=u64::from(high) {
                exact[(((bits | x) + nurand.constant) % range) as usize] += 1.0;
            }
        }
        exact
    }

    #[test]
    fn nurand_follows_the_definition_exactly() {
        let cases = [
            (NuRand::LAST_NAME, 0, 999),
            (NuRand::LAST_NAME_LOADED, 0, 999),
            (NuRand::CUSTOMER, 1, 3_000),
            (NuRand::ITEM, 1, 500),
            (NuRand::CUSTOMER, 1, 3),
        ];
        for (nurand, low, high) in cases {
            let exact = likelihoods(nurand, low, high);
            let mut random = Random::new(5);
            let mut counts = vec![0; exact.len()];
            for _ in 0..400_000 {
                counts[(nurand.draw(&mut random, low, high) - low) as usize] += 1;
            }
            let possible: Vec<usize> = (0..exact.len()).filter(|i| exact[*i] > 0.0).collect();
            let pick = |all: &[u64]| possible.iter().map(|i| all[*i]).collect::<Vec<_>>();
            let weights: Vec<f64> = possible.iter().map(|i| exact[*i]).collect();
            assert_eq!(pick(&counts).iter().sum::<u64>(), 400_000, "something impossible was drawn");
            let off = deviation(&pick(&counts), &weights);
            assert!(off < 5.0, "{nurand:?} of {low} to {high}: {off} deviations off");
            if range_is_wide(&weights) {
                assert!(deviation(&pick(&counts), &vec![1.0; weights.len()]) > 5.0, "it is uniform");
            }
        }
    }

    fn range_is_wide(weights: &[f64]) -> bool {
        weights.len() > 10
    }

    #[test]
    fn the_constants_of_last_names_are_as_far_apart_as_they_must_be() {
        let delta = NuRand::LAST_NAME.constant - NuRand::LAST_NAME_LOADED.constant;
        assert!((65..=119).contains(&delta) && delta != 96 && delta != 112);
    }

    #[test]
    fn last_names_are_the_specifications() {
        assert_eq!(&*last_name(371), b"PRICALLYOUGHT");
        assert_eq!(&*last_name(40), b"BARPRESBAR");
        assert_eq!(&*last_name(0), b"BARBARBAR");
        let names: std::collections::BTreeSet<Vec<u8>> =
            (0..LAST_NAMES).map(|n| last_name(n).to_vec()).collect();
        assert_eq!(names.len(), 1_000);
        assert_eq!(names.iter().map(Vec::len).max(), Some(LAST_NAME_MAX));
    }

    #[test]
    fn texts_have_their_length_and_one_in_ten_is_original() {
        let mut random = Random::new(2);
        let (mut lengths, mut original) = (std::collections::BTreeSet::new(), 0);
        for _ in 0..10_000 {
            let mut out = Vec::new();
            data(&mut random, 26, 50, &mut out);
            lengths.insert(out.len());
            original += u32::from(is_original(&out));
        }
        assert!(lengths.into_iter().eq(26..=50));
        assert!((880..1_120).contains(&original), "{original}");
        let mut out = Vec::new();
        digits(&mut random, 16, &mut out);
        assert!(out.len() == 16 && out.iter().all(u8::is_ascii_digit));
    }

    #[test]
    fn a_permutation_holds_every_number_once_and_is_not_the_identity() {
        let numbers = permutation(&mut Random::new(3), 100);
        let mut sorted = numbers.clone();
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(1..=100));
        assert!(numbers.iter().zip(1..).filter(|(a, b)| **a == *b).count() < 20);
    }
}
