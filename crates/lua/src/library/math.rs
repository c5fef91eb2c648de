//! `math`. Randomness is the transaction's own.

use crate::budget::Result;
use crate::machine::{Args, Host, Machine};
use crate::number::mix;
use crate::operators::Arith;
use crate::value::Value;

type Done = Result<()>;

functions! {
    abs = one(f64::abs);
    acos = one(f64::acos);
    asin = one(f64::asin);
    atan = one(f64::atan);
    atan2 = two(f64::atan2);
    ceil = one(f64::ceil);
    cos = one(f64::cos);
    cosh = one(f64::cosh);
    deg = one(|x| x / (std::f64::consts::PI / 180.0));
    exp = one(f64::exp);
    floor = one(f64::floor);
    fmod = two(|x, y| x % y);
    ldexp = two(scaled);
    log = one(f64::ln);
    log10 = one(f64::log10);
    max = choose(|x, best| x > best);
    min = choose(|x, best| x < best);
    pow = two(|x, y| Arith::Pow.apply(x, y));
    rad = one(|x| x * (std::f64::consts::PI / 180.0));
    sin = one(f64::sin);
    sinh = one(f64::sinh);
    sqrt = one(f64::sqrt);
    tan = one(f64::tan);
    tanh = one(f64::tanh);
}

fn one(m: &mut Machine, args: Args, name: &str, f: fn(f64) -> f64) -> Done {
    let x = m.number_arg(args, 0, name)?;
    m.answer(Value::Number(f(x)))
}

fn two(m: &mut Machine, args: Args, name: &str, f: fn(f64, f64) -> f64) -> Done {
    let (x, y) = (m.number_arg(args, 0, name)?, m.number_arg(args, 1, name)?);
    m.answer(Value::Number(f(x, y)))
}

/// `x` times two to the power of `e`.
fn scaled(x: f64, e: f64) -> f64 {
    let e = (e as i64).clamp(-4200, 4200) as i32;
    // In four steps, so that no factor is out of range.
    x * 2f64.powi(e / 4) * 2f64.powi(e / 4) * 2f64.powi(e / 4) * 2f64.powi(e - 3 * (e / 4))
}

pub(super) fn frexp(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let x = m.number_arg(args, 0, "frexp")?;
    let (fraction, exponent) = if x == 0.0 || !x.is_finite() {
        (x, 0)
    } else {
        // A subnormal number is scaled first.
        let (scaled, shift) = if x.abs() < f64::MIN_POSITIVE { (x * 2f64.powi(64), 64) } else { (x, 0) };
        let exponent = ((scaled.to_bits() >> 52) & 0x7ff) as i32 - 1022;
        let fraction = f64::from_bits(scaled.to_bits() & !(0x7ff << 52) | (1022 << 52));
        (fraction, exponent - shift)
    };
    m.give(Value::Number(fraction));
    m.answer(Value::Number(f64::from(exponent)))
}

pub(super) fn modf(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let x = m.number_arg(args, 0, "modf")?;
    m.give(Value::Number(x.trunc()));
    m.answer(Value::Number(if x.is_infinite() { 0.0 } else { x - x.trunc() }))
}

fn choose(m: &mut Machine, args: Args, name: &str, better: fn(f64, f64) -> bool) -> Done {
    m.touch(0, args.len())?;
    let mut best = m.number_arg(args, 0, name)?;
    for i in 1..args.len() {
        let x = m.number_arg(args, i, name)?;
        if better(x, best) {
            best = x;
        }
    }
    m.answer(Value::Number(best))
}

pub(super) fn random(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    m.random = m.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let r = (mix(m.random) >> 11) as f64 / (1u64 << 53) as f64;
    let number = match args.len() {
        0 => r,
        1 => {
            let high = m.number_arg(args, 0, "random")?.floor();
            if high.is_nan() || high < 1.0 {
                return Err(m.bad_argument(1, "random", "interval is empty"));
            }
            (r * high).floor() + 1.0
        }
        2 => {
            let (low, high) =
                (m.number_arg(args, 0, "random")?.floor(), m.number_arg(args, 1, "random")?.floor());
            if low.is_nan() || high.is_nan() || low > high {
                return Err(m.bad_argument(2, "random", "interval is empty"));
            }
            (r * (high - low + 1.0)).floor() + low
        }
        _ => return Err("wrong number of arguments".into()),
    };
    m.answer(Value::Number(number))
}

pub(super) fn randomseed(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    m.random = m.number_arg(args, 0, "randomseed")?.to_bits();
    Ok(())
}
