//! Integers as Redis reads and writes them.

/// Reads an integer the strict way: no space, no plus sign, no leading zero, no minus zero, no overflow. So
/// text that parses is exactly the text that the number would be written as.
pub(crate) fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= 19 => {}
        _ => return None,
    }
    let mut magnitude = 0u64;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        // Nineteen digits fit.
        magnitude = magnitude * 10 + u64::from(digit - b'0');
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

/// Reads a cursor as C's `strtoul` does: digits after a sign or none, a minus sign counts down from 2^64, nothing is 0.
pub(crate) fn parse_cursor(text: &[u8]) -> Option<u64> {
    let (negative, digits) = match text {
        [] => return Some(0),
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if negative { magnitude.wrapping_neg() } else { magnitude })
}

/// The decimal text of an integer, without an allocation.
pub(crate) struct Decimal {
    bytes: [u8; 20],
    start: usize,
}

impl Decimal {
    /// Writes `n`.
    pub(crate) fn of(n: i64) -> Decimal {
        let mut text = Decimal::unsigned(n.unsigned_abs());
        if n < 0 {
            text.start -= 1;
            text.bytes[text.start] = b'-';
        }
        text
    }

    /// Writes `n`.
    pub(crate) fn unsigned(mut n: u64) -> Decimal {
        let (mut bytes, mut start) = ([0; 20], 20);
        loop {
            start -= 1;
            bytes[start] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                return Decimal { bytes, start };
            }
        }
    }

    /// The text.
    pub(crate) fn text(&self) -> &[u8] {
        &self.bytes[self.start..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_canonical_text_is_a_number() {
        for (text, n) in [
            ("0", Some(0)),
            ("-1", Some(-1)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("9999999999999999999", None),
            ("18446744073709551617", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("00", None),
            ("01", None),
            ("+1", None),
            (" 1", None),
            ("1 ", None),
            ("1.0", None),
            ("1a", None),
        ] {
            assert_eq!(parse_i64(text.as_bytes()), n, "{text}");
        }
        for (text, n) in [
            ("18446744073709551615", Some(u64::MAX)),
            ("-1", Some(u64::MAX)),
            ("+1", Some(1)),
            ("", Some(0)),
            ("18446744073709551616", None),
            ("-18446744073709551616", None),
            (" 1", None),
            ("-", None),
            ("0x", None),
            ("x", None),
        ] {
            assert_eq!(parse_cursor(text.as_bytes()), n, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(n: i64) {
            let written = Decimal::of(n);
            prop_assert_eq!(written.text().to_vec(), n.to_string().into_bytes());
            prop_assert_eq!(parse_i64(written.text()), Some(n));
        }

        #[test]
        fn a_number_has_one_text(text in "[-+0-9 ]{0,21}") {
            let strict = text.parse::<i64>().ok().filter(|n| n.to_string() == text);
            prop_assert_eq!(parse_i64(text.as_bytes()), strict);
        }
    }
}
