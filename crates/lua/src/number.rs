//! Numbers as C prints them.
//!
//! Numbers become text by `%.14g`, and Redis hands them to commands by `%.17g`. Both are computed here, exactly
//! rounded, so that no C library's printf shows in a record.

/// A well mixed number: the finalizer of SplitMix64.
pub(crate) const fn mix(state: u64) -> u64 {
    let mut z = state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Formats a number as C's `printf("%.*g", precision, x)` prints it.
pub fn format_g(x: f64, precision: usize) -> String {
    if x.is_nan() {
        return if x.is_sign_negative() { "-nan" } else { "nan" }.into();
    }
    if x.is_infinite() {
        return if x < 0.0 { "-inf" } else { "inf" }.into();
    }
    if x == 0.0 {
        return if x.is_sign_negative() { "-0" } else { "0" }.into();
    }
    let scientific = format!("{:.*e}", precision - 1, x);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |digits: &str| -> String {
        match digits.contains('.') {
            true => digits.trim_end_matches('0').trim_end_matches('.').to_string(),
            false => digits.to_string(),
        }
    };
    if exponent < -4 || exponent >= precision as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.unsigned_abs())
    } else {
        trim(&format!("{:.*}", (precision as i32 - 1 - exponent) as usize, x))
    }
}

/// Writes a number as `tostring` shows it: `%.14g`.
pub(crate) fn write_number(x: f64, out: &mut String) {
    use std::fmt::Write;
    out.clear();
    if x.fract() == 0.0 && x.abs() < 1e14 && (x != 0.0 || x.is_sign_positive()) {
        let _ = write!(out, "{}", x as i64);
    } else {
        out.push_str(&format_g(x, 14));
    }
}

/// The number that a text is, as C's `strtod` reads it: blanks around it, hexadecimal numbers, infinity and NaN too.
pub fn parse_number(text: &[u8]) -> Option<f64> {
    let is_blank = |b: &u8| matches!(b, b' ' | 9..=13);
    let start = text.iter().position(|b| !is_blank(b))?;
    let end = text.iter().rposition(|b| !is_blank(b))? + 1;
    let text = &text[start..end];
    let (negative, body) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let magnitude = match body {
        [b'0', b'x' | b'X', digits @ ..] => hexadecimal(digits)?,
        [b'0'..=b'9' | b'.', ..] => {
            let known = |b: &u8| matches!(b, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
            if !body.iter().all(known) {
                return None;
            }
            std::str::from_utf8(body).ok()?.parse::<f64>().ok()?
        }
        _ if body.eq_ignore_ascii_case(b"inf") || body.eq_ignore_ascii_case(b"infinity") => f64::INFINITY,
        _ if body.eq_ignore_ascii_case(b"nan") => f64::NAN,
        _ => return None,
    };
    Some(if negative { -magnitude } else { magnitude })
}

/// Hexadecimal digits, with a point and a binary exponent.
fn hexadecimal(text: &[u8]) -> Option<f64> {
    let (mut value, mut exponent, mut digits, mut point) = (0.0f64, 0i32, 0, false);
    let mut rest = text;
    while let [b, tail @ ..] = rest {
        match b {
            b'.' if !point => point = true,
            b if b.is_ascii_hexdigit() => {
                value = value * 16.0 + f64::from((*b as char).to_digit(16)?);
                digits += 1;
                exponent -= if point { 4 } else { 0 };
            }
            _ => break,
        }
        rest = tail;
    }
    if digits == 0 {
        return None;
    }
    if let [b'p' | b'P', tail @ ..] = rest {
        exponent = exponent.saturating_add(std::str::from_utf8(tail).ok()?.parse::<i32>().ok()?);
        rest = &[];
    }
    let scale = |x: f64, e: i32| x * 2f64.powi(e);
    let half = exponent.clamp(-4000, 4000) / 2;
    if rest.is_empty() { Some(scale(scale(value, half), exponent.clamp(-4000, 4000) - half)) } else { None }
}

/// The number as a 64-bit integer, cut towards zero, as C casts it on the machines Redis is known from: what
/// does not fit is the least integer.
pub fn truncate(x: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&x) { x as i64 } else { i64::MIN }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_as_c_does() {
        for (x, precision, text) in [
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (1e100, 17, "1e+100"),
            (1e17, 17, "1e+17"),
            (123_456_789_012_345.0, 14, "1.2345678901234e+14"),
            (1e20, 14, "1e+20"),
            (-1.5, 14, "-1.5"),
            (0.0001, 14, "0.0001"),
            (0.00001, 14, "1e-05"),
            (3.0, 14, "3"),
            (0.0, 14, "0"),
            (f64::INFINITY, 14, "inf"),
        ] {
            assert_eq!(format_g(x, precision), text);
        }
    }

    #[test]
    fn truncates_as_c_does() {
        assert_eq!([3.99, -3.99, 1e300, f64::NAN].map(truncate), [3, -3, i64::MIN, i64::MIN]);
    }
}
