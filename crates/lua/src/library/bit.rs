//! `bit`: operations on 32 bits.

use crate::budget::Result;
use crate::machine::{Args, Host, Machine};
use crate::value::Value;

type Done = Result<()>;

/// A number as the 32 bits that it stands for modulo 2^32.
fn bits(m: &mut Machine, args: Args, i: usize, name: &str) -> Result<i32> {
    let x = m.number_arg(args, i, name)?;
    Ok(x.round_ties_even().rem_euclid(4_294_967_296.0) as u32 as i32)
}

fn one(m: &mut Machine, args: Args, name: &str, f: fn(i32) -> i32) -> Done {
    let x = bits(m, args, 0, name)?;
    m.answer(Value::Number(f64::from(f(x))))
}

fn fold(m: &mut Machine, args: Args, name: &str, f: fn(i32, i32) -> i32) -> Done {
    m.touch(0, args.len())?;
    let mut x = bits(m, args, 0, name)?;
    for i in 1..args.len() {
        x = f(x, bits(m, args, i, name)?);
    }
    m.answer(Value::Number(f64::from(x)))
}

fn shift(m: &mut Machine, args: Args, name: &str, f: fn(i32, u32) -> i32) -> Done {
    let (x, n) = (bits(m, args, 0, name)?, bits(m, args, 1, name)?);
    m.answer(Value::Number(f64::from(f(x, n as u32 & 31))))
}

functions! {
    tobit = one(|x| x);
    bnot = one(|x| !x);
    bswap = one(i32::swap_bytes);
    band = fold(|a, b| a & b);
    bor = fold(|a, b| a | b);
    bxor = fold(|a, b| a ^ b);
    lshift = shift(|x, n| x << n);
    rshift = shift(|x, n| ((x as u32) >> n) as i32);
    arshift = shift(|x, n| x >> n);
    rol = shift(i32::rotate_left);
    ror = shift(i32::rotate_right);
}

pub(super) fn tohex(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let x = bits(m, args, 0, "tohex")?;
    let digits = if args.len() < 2 { 8 } else { bits(m, args, 1, "tohex")? };
    let text = format!("{:08x}", x as u32);
    let text = &text[8 - (digits.unsigned_abs() as usize).min(8)..];
    let text = if digits < 0 { text.to_uppercase() } else { text.to_string() };
    m.give_text(text.as_bytes())
}
