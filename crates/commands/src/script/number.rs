//! Numbers as C prints them.
//!
//! Lua scripts see numbers through `%.14g` and Redis hands them to commands through `%.17g`. Both are computed
//! here, exactly rounded, so that no C library's printf shows in a record.

/// What C's `printf("%.*g", precision, x)` prints.
pub(super) fn format_g(x: f64, precision: usize) -> String {
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

/// The number as a 64-bit integer, cut towards zero, as C casts it on the machines Redis is known from: what
/// does not fit is the least integer.
pub(super) fn truncate(x: f64) -> i64 {
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
