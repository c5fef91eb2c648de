//! The floating point numbers of INCRBYFLOAT and HINCRBYFLOAT.
//!
//! Redis computes them as C `long double`, which on the machines it is run on is the 80-bit format with a
//! 64-bit mantissa, and writes them with seventeen digits after the point. Clients see that choice (0.1 + 0.2
//! is 0.3 in it, and is not in 64 bits), so it is done here in integers: the same on every machine, rounding
//! to the nearest, ties to even, at each of the three steps.

use std::cmp::Ordering;

/// A number with a 64-bit mantissa.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extended {
    negative: bool,
    /// Its top bit is set, except for zero.
    mantissa: u64,
    /// What power of two the mantissa is to be multiplied by; [`INFINITE`] for infinity.
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
/// How many digits after the point are written.
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
        if let [b'0', b'x' | b'X', digits @ ..] = text {
            return Extended::hexadecimal(negative, digits);
        }
        let (mut number, mut digits, mut significant) = (Big::default(), 0u32, 0i64);
        let (mut exponent, mut point) = (0i64, false);
        let mut rest = text;
        while let [byte, tail @ ..] = rest {
            match byte {
                b'0'..=b'9' => {
                    number.multiply_add(10, u32::from(byte - b'0'));
                    digits += 1;
                    significant += i64::from(!number.is_zero());
                    exponent -= i64::from(point);
                }
                b'.' if !point => point = true,
                _ => break,
            }
            rest = tail;
        }
        if digits == 0 {
            return None;
        }
        if let [b'e' | b'E', tail @ ..] = rest {
            exponent += decimal_exponent(tail)?;
        } else if !rest.is_empty() {
            return None;
        }
        if number.is_zero() {
            return Some(Extended::ZERO);
        }
        if !DECIMAL_EXPONENTS.contains(&(significant + exponent)) {
            return None;
        }
        let magnitude = if exponent >= 0 {
            number.multiply_power(10, exponent as u32);
            number.rounded()
        } else {
            quotient(number, exponent.unsigned_abs() as u32)
        };
        // A decimal that is too large for the format is refused, unlike a written infinity.
        (magnitude.exponent != INFINITE).then_some(Extended { negative, ..magnitude })
    }

    /// Reads what follows `0x`: hexadecimal digits with or without a point, and a power of two after `p` if there is one, as
    /// C's `strtold` does.
    fn hexadecimal(negative: bool, text: &[u8]) -> Option<Extended> {
        let (mut number, mut digits, mut exponent, mut point) = (Big::default(), 0u32, 0i64, false);
        let mut rest = text;
        while let [byte, tail @ ..] = rest {
            match char::from(*byte).to_digit(16) {
                Some(digit) => {
                    number.multiply_add(16, digit);
                    digits += 1;
                    exponent -= 4 * i64::from(point);
                }
                None if *byte == b'.' && !point => point = true,
                None => break,
            }
            rest = tail;
        }
        if digits == 0 {
            return None;
        }
        if let [b'p' | b'P', tail @ ..] = rest {
            exponent += decimal_exponent(tail)?;
        } else if !rest.is_empty() {
            return None;
        }
        if number.is_zero() {
            return Some(Extended::ZERO);
        }
        let whole = number.rounded();
        let exponent = i64::from(whole.exponent) + exponent;
        if whole.exponent == INFINITE || !BINARY_EXPONENTS.contains(&exponent) {
            return None;
        }
        Some(Extended { negative, mantissa: whole.mantissa, exponent: exponent as i32 })
    }

    /// Whether it is no infinity.
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
            let mut number = Big(vec![self.mantissa as u32, (self.mantissa >> 32) as u32]);
            number.shift_left(self.exponent as u32);
            text.extend_from_slice(&number.decimal());
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

/// Reads what stands after the `e`; anything far out of range is as good as any other such number.
fn decimal_exponent(text: &[u8]) -> Option<i64> {
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

/// `number` divided by ten to the power of `k`.
fn quotient(mut number: Big, k: u32) -> Extended {
    /// More than the mantissa has; the remainder decides ties.
    const BITS: i32 = 68;
    let mut divisor = Big(vec![1]);
    divisor.multiply_power(5, k);
    // Aligned to the same length, the quotient lies between a half and two.
    let shift = divisor.bits() as i32 - number.bits() as i32;
    if shift >= 0 {
        number.shift_left(shift as u32)
    } else {
        divisor.shift_left(shift.unsigned_abs())
    }
    let mut q = 0u128;
    for _ in 0..BITS {
        q <<= 1;
        if number.cmp(&divisor) != Ordering::Less {
            number.subtract(&divisor);
            q |= 1;
        }
        number.shift_left(1);
    }
    round(q, 1 - BITS - shift - k as i32, !number.is_zero())
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

/// A natural number of any size, least significant word first, no zero words at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Big(Vec<u32>);

impl Big {
    fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    fn bits(&self) -> u32 {
        self.0.last().map_or(0, |top| self.0.len() as u32 * 32 - top.leading_zeros())
    }

    fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }

    fn multiply_add(&mut self, factor: u32, term: u32) {
        let mut carry = u64::from(term);
        for word in &mut self.0 {
            carry += u64::from(*word) * u64::from(factor);
            *word = carry as u32;
            carry >>= 32;
        }
        if carry > 0 {
            self.0.push(carry as u32);
        }
    }

    fn multiply_power(&mut self, base: u32, power: u32) {
        let step = base.pow(9);
        for _ in 0..power / 9 {
            self.multiply_add(step, 0);
        }
        self.multiply_add(base.pow(power % 9), 0);
    }

    fn shift_left(&mut self, by: u32) {
        self.trim();
        if self.is_zero() {
            return;
        }
        let mut carry = 0u64;
        for word in &mut self.0 {
            carry |= u64::from(*word) << (by % 32);
            *word = carry as u32;
            carry >>= 32;
        }
        self.0.push(carry as u32);
        let low = vec![0; (by / 32) as usize];
        self.0.splice(0..0, low);
        self.trim();
    }

    fn cmp(&self, other: &Big) -> Ordering {
        self.0.len().cmp(&other.0.len()).then_with(|| self.0.iter().rev().cmp(other.0.iter().rev()))
    }

    /// Takes away a number that is not larger.
    fn subtract(&mut self, other: &Big) {
        let mut borrow = false;
        for (i, word) in self.0.iter_mut().enumerate() {
            let (rest, under) = word.overflowing_sub(other.0.get(i).copied().unwrap_or(0));
            let (rest, again) = rest.overflowing_sub(u32::from(borrow));
            (*word, borrow) = (rest, under || again);
        }
        self.trim();
    }

    fn rounded(&self) -> Extended {
        let top = self.0.iter().rev().take(4).fold(0u128, |m, word| m << 32 | u128::from(*word));
        let below = self.0.len().saturating_sub(4);
        round(top, 32 * below as i32, self.0[..below].iter().any(|word| *word != 0))
    }

    fn decimal(mut self) -> Vec<u8> {
        self.trim();
        let mut digits = Vec::new();
        while !self.is_zero() {
            let mut rest = 0u64;
            for word in self.0.iter_mut().rev() {
                rest = rest << 32 | u64::from(*word);
                *word = (rest / 1_000_000_000) as u32;
                rest %= 1_000_000_000;
            }
            self.trim();
            for _ in 0..9 {
                digits.push(b'0' + (rest % 10) as u8);
                rest /= 10;
            }
        }
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.is_empty() {
            digits.push(b'0');
        }
        digits.reverse();
        digits
    }
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
