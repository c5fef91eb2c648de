//! The floating point numbers of INCRBYFLOAT and HINCRBYFLOAT.
//!
//! Redis computes them as C `long double`, which on the machines it is run on is the 80-bit format with a
//! 64-bit mantissa, and writes them with seventeen digits after the point. Clients see that choice (0.1 + 0.2
//! is 0.3 in it, and is not in 64 bits), so it is done here in integers: the same on every machine, rounding
//! to the nearest, ties to even, at each of the three steps.

use num_bigint::BigUint;

/// A number with a 64-bit mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extended {
    negative: bool,
    /// Its top bit is set, except for zero.
    mantissa: u64,
    /// The power of two by which the mantissa is multiplied; [`INFINITE`] for infinity.
    exponent: i32,
}

const INFINITE: i32 = i32::MAX;
/// The exponent of the largest finite numbers.
const MAX_EXPONENT: i32 = 16383 - 63;
/// Numbers whose decimal exponent is not between these overflow, or are nothing.
const DECIMAL_EXPONENTS: std::ops::RangeInclusive<i64> = -4950..=4933;
/// Numbers whose mantissa is multiplied by a power of two that is not between these overflow, or are nothing.
const BINARY_EXPONENTS: std::ops::RangeInclusive<i64> = -16445 - 63..=MAX_EXPONENT as i64;
/// Redis refuses longer texts.
const MAX_TEXT: usize = 5 * 1024;
/// The number of digits that are written after the point.
const FRACTION_DIGITS: usize = 17;

impl Extended {
    const ZERO: Extended = Extended { negative: false, mantissa: 0, exponent: 0 };

    /// Reads a decimal number, with fraction and exponent if it has them, or an infinity.
    pub(crate) fn parse(text: &[u8]) -> Option<Extended> {
        if text.len() >= MAX_TEXT {
            return None;
        }
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            rest => (false, rest),
        };
        if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            return Some(Extended { negative, mantissa: 1 << 63, exponent: INFINITE });
        }
        let magnitude = match text {
            [b'0', b'x' | b'X', digits @ ..] => Digits::parse(digits, 16, b'p')?.hexadecimal(),
            digits => Digits::parse(digits, 10, b'e')?.decimal(),
        }?;
        // A number that is too large for the format is refused, unlike a written infinity.
        let is_zero = magnitude == Extended::ZERO;
        magnitude.is_finite().then_some(Extended { negative: negative && !is_zero, ..magnitude })
    }

    /// True if the number is no infinity.
    pub(crate) fn is_finite(self) -> bool {
        self.exponent != INFINITE
    }

    /// The sum; not finite if a term is not or if it is too large.
    pub(crate) fn plus(self, other: Extended) -> Extended {
        if !self.is_finite() || other.mantissa == 0 {
            return self;
        }
        if !other.is_finite() || self.mantissa == 0 {
            return other;
        }
        let size = |n: Extended| (n.exponent, n.mantissa);
        let (large, small) = if size(self) >= size(other) { (self, other) } else { (other, self) };
        // Room for a carry above, and 62 bits for what the smaller one has below.
        let (a, aligned) = (u128::from(large.mantissa) << 62, u128::from(small.mantissa) << 62);
        let distance = (large.exponent - small.exponent) as u32;
        let b = aligned.checked_shr(distance).unwrap_or(0);
        let inexact = b.checked_shl(distance) != Some(aligned);
        let sum = if large.negative == small.negative { a + b } else { a - b - u128::from(inexact) };
        if sum == 0 {
            return Extended::ZERO;
        }
        Extended { negative: large.negative, ..round(sum, large.exponent - 62, inexact) }
    }

    /// The decimal text: no exponent, at most seventeen digits after the point, no zeros at the end.
    pub(crate) fn text(self) -> Vec<u8> {
        let mut text = Vec::with_capacity(24);
        if self.negative {
            text.push(b'-');
        }
        if self.exponent >= 0 {
            let number = BigUint::from(self.mantissa) << self.exponent;
            text.extend_from_slice(number.to_string().as_bytes());
            return text;
        }
        // At most 2^64 times 10^17, which is below 2^121.
        let scaled = u128::from(self.mantissa) * 10u128.pow(FRACTION_DIGITS as u32);
        let shift = self.exponent.unsigned_abs();
        let mut units = scaled.checked_shr(shift).unwrap_or(0);
        if shift < 128 {
            let (rest, half) = (scaled & ((1 << shift) - 1), 1u128 << (shift - 1));
            units += u128::from(rest > half || (rest == half && units & 1 == 1));
        }
        if units == 0 {
            return b"0".to_vec();
        }
        let one = 10u128.pow(FRACTION_DIGITS as u32);
        text.extend_from_slice((units / one).to_string().as_bytes());
        let fraction = format!("{:0width$}", units % one, width = FRACTION_DIGITS);
        let fraction = fraction.trim_end_matches('0');
        if !fraction.is_empty() {
            text.push(b'.');
            text.extend_from_slice(fraction.as_bytes());
        }
        text
    }
}

/// A written number: its digits without the point, times its base to the power of `-after_point`, times what its exponent
/// says.
struct Digits {
    number: BigUint,
    /// The digits from the first on that is not 0.
    significant: i64,
    after_point: i64,
    exponent: i64,
}

impl Digits {
    /// Reads digits with or without a point, and an exponent after `mark` if there is one.
    fn parse(text: &[u8], base: u32, mark: u8) -> Option<Digits> {
        let end = text.iter().position(|byte| byte.eq_ignore_ascii_case(&mark)).unwrap_or(text.len());
        let exponent = text.get(end + 1..).map_or(Some(0), exponent)?;
        let mut halves = text[..end].splitn(2, |byte| *byte == b'.');
        let (whole, fraction) = (halves.next().unwrap_or_default(), halves.next().unwrap_or_default());
        let value = |byte: &u8| char::from(*byte).to_digit(base).map(|digit| digit as u8);
        let digits = whole.iter().chain(fraction).map(value).collect::<Option<Vec<u8>>>()?;
        let first = digits.iter().position(|digit| *digit > 0).unwrap_or(digits.len());
        let number = BigUint::from_radix_be(&digits, base).filter(|_| !digits.is_empty())?;
        let (significant, after_point) = ((digits.len() - first) as i64, fraction.len() as i64);
        Some(Digits { number, significant, after_point, exponent })
    }

    /// The number where the exponent is one of ten; `None` if it overflows or is next to nothing.
    fn decimal(self) -> Option<Extended> {
        let exponent = self.exponent - self.after_point;
        if self.number == BigUint::ZERO {
            return Some(Extended::ZERO);
        }
        if !DECIMAL_EXPONENTS.contains(&(self.significant + exponent)) {
            return None;
        }
        let power = BigUint::from(10u32).pow(exponent.unsigned_abs() as u32);
        if exponent >= 0 {
            return Some(nearest(&(self.number * power), 0, false));
        }
        // More bits than the mantissa has; the remainder decides ties.
        let shift = (power.bits() + 70).saturating_sub(self.number.bits());
        let dividend = self.number << shift;
        let quotient = &dividend / &power;
        let is_inexact = &quotient * power != dividend;
        Some(nearest(&quotient, -(shift as i32), is_inexact))
    }

    /// The number where the exponent is one of two, as C's `strtold` reads it; `None` as for [`Digits::decimal`].
    fn hexadecimal(self) -> Option<Extended> {
        if self.number == BigUint::ZERO {
            return Some(Extended::ZERO);
        }
        let whole = nearest(&self.number, 0, false);
        let exponent = i64::from(whole.exponent) + self.exponent - 4 * self.after_point;
        let is_in_range = whole.is_finite() && BINARY_EXPONENTS.contains(&exponent);
        is_in_range.then_some(Extended { exponent: exponent as i32, ..whole })
    }
}

/// Reads an exponent; anything far out of range is as good as any other such number.
fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude = digits.iter().fold(0i64, |n, d| (n * 10 + i64::from(d - b'0')).min(1_000_000));
    Some(if negative { -magnitude } else { magnitude })
}

/// As [`round`], of a number of any size.
fn nearest(number: &BigUint, exponent: i32, inexact: bool) -> Extended {
    let below = number.bits().saturating_sub(128);
    let top = u128::try_from(number >> below).unwrap_or(u128::MAX);
    let is_cut = number.trailing_zeros().is_some_and(|zeros| zeros < below);
    round(top, exponent + below as i32, inexact || is_cut)
}

/// The number nearest to `m` times two to the power of `exponent`, or a little more than that if `inexact`;
/// then `m` must have more than 64 bits.
fn round(m: u128, exponent: i32, inexact: bool) -> Extended {
    let bits = 128 - m.leading_zeros();
    let (mut mantissa, mut exponent) = if bits <= 64 {
        ((m << (64 - bits)) as u64, exponent - (64 - bits) as i32)
    } else {
        let drop = bits - 64;
        let (kept, rest, half) = ((m >> drop) as u64, m & ((1 << drop) - 1), 1u128 << (drop - 1));
        let up = rest > half || (rest == half && (inexact || kept & 1 == 1));
        match kept.checked_add(u64::from(up)) {
            Some(kept) => (kept, exponent + drop as i32),
            None => (1 << 63, exponent + drop as i32 + 1),
        }
    };
    if exponent > MAX_EXPONENT {
        (mantissa, exponent) = (1 << 63, INFINITE);
    }
    Extended { negative: false, mantissa, exponent }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(a: &str, b: &str) -> Option<String> {
        let sum = Extended::parse(a.as_bytes())?.plus(Extended::parse(b.as_bytes())?);
        sum.is_finite().then(|| String::from_utf8(sum.text()).unwrap())
    }

    #[test]
    fn sums_are_those_of_redis() {
        for (a, b, expected) in [
            // As answered by Redis 7.0.15 on x86-64.
            ("12345.678", "0.2", "12345.87800000000000011"),
            ("0.1", "0.2", "0.3"),
            ("3.0e3", "0.2", "3000.19999999999999996"),
            ("1e20", "0.2", "100000000000000000000"),
            ("100.5", "0.2", "100.7"),
            ("-0.0", "0.2", "0.2"),
            ("1e17", "0.2", "100000000000000000.203125"),
            ("1e-18", "0.2", "0.2"),
            ("5e-18", "0.2", "0.20000000000000001"),
            ("1.5e-17", "0.2", "0.20000000000000002"),
            ("0", "-1e-30", "0"),
            ("0", "-0", "0"),
            ("10.5", "-10.5", "0"),
            (".5", "5.", "5.5"),
            ("+1", "1E+2", "101"),
            ("0", "-3.25", "-3.25"),
        ] {
            assert_eq!(sum(a, b).as_deref(), Some(expected), "{a} + {b}");
        }
        assert!(
            sum("1e4932", "0.2").unwrap().starts_with("1000000000000000000006018949387963891323837774254533")
        );
        assert_eq!(sum("1e4932", "0.2").unwrap().len(), 4933);
    }

    #[test]
    fn infinities_and_overflow_are_not_finite() {
        assert_eq!(sum("inf", "1"), None);
        assert_eq!(sum("1", "-Infinity"), None);
        assert_eq!(sum("1.1e4932", "1.1e4932"), None);
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", " 1", "1 ", "nan", "1e", "1e+", ".", "-", "1..2", "1x", "1e5000", "1e-5000", "--1"] {
            assert_eq!(Extended::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Extended::parse("1".repeat(6000).as_bytes()), None);
    }

    proptest! {
        /// Integers of up to 63 bits and their sums are exact in the format.
        #[test]
        fn integers_are_exact(a in -(1i64 << 61)..1 << 61, b in -(1i64 << 61)..1 << 61) {
            prop_assert_eq!(sum(&a.to_string(), &b.to_string()), Some((a + b).to_string()));
        }

        /// Every double is a number of the format, and so is the sum of two that are close to each other.
        #[test]
        fn binary_fractions_are_exact(a in -1_000_000i32..1_000_000, b in -1_000_000i32..1_000_000, s in 0i32..17) {
            let scale = f64::from(1 << s);
            let (a, b) = (f64::from(a) / scale, f64::from(b) / scale);
            let exact = |n: f64| format!("{n:.17}").trim_end_matches('0').trim_end_matches('.').to_string();
            prop_assert_eq!(sum(&exact(a), &exact(b)), Some(exact(a + b + 0.0)));
        }

        /// Reading rounds to 64 bits: as near to the text as its own 53 bits let a double be.
        #[test]
        fn reading_is_at_least_as_good_as_a_double(a in 0.0f64..1e9) {
            let text = Extended::parse(a.to_string().as_bytes()).unwrap().text();
            let back: f64 = String::from_utf8(text).unwrap().parse().unwrap();
            prop_assert!((back - a).abs() <= a * f64::EPSILON + 1e-17, "{} {}", a, back);
        }
    }
}
