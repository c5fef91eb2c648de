//! `string.format`.

use crate::budget::{Fault, Result};
use crate::machine::{Args, Host, Machine};
use crate::number::{format_g, truncate};

type Done = Result<()>;

/// The format of one value.
#[derive(Clone, Copy, Debug, Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    hash: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
}

pub(super) fn format(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let template = m.text_arg(args, 0, "format")?;
    let len = m.heap.str_len(template);
    m.touch(len, 0)?;
    m.heap.budget.fits(3 * len)?;
    let template = m.heap.bytes(template).to_vec();
    let mut out = Vec::new();
    let mut rest = &template[..];
    let mut next = 0;
    while let Some((b, tail)) = rest.split_first() {
        rest = tail;
        if *b != b'%' {
            out.push(*b);
            continue;
        }
        if let Some((b'%', tail)) = rest.split_first() {
            out.push(b'%');
            rest = tail;
            continue;
        }
        next += 1;
        m.touch(0, 1)?;
        m.heap.budget.fits(2 * out.len() + 1000)?;
        let spec = parse(&mut rest)?;
        let Some((kind, tail)) = rest.split_first() else {
            return Err(Fault::Text(b"invalid option '%\0' to 'format'".to_vec()));
        };
        rest = tail;
        match kind {
            b'c' => {
                let c = m.number_arg(args, next, "format")?;
                spec.pad(&[truncate(c) as u8], &mut out);
            }
            b'd' | b'i' => {
                let x = truncate(m.number_arg(args, next, "format")?);
                spec.integer(&x.unsigned_abs().to_string(), spec.sign(x < 0), &mut out);
            }
            b'u' => {
                let x = unsigned(m.number_arg(args, next, "format")?);
                spec.integer(&x.to_string(), "", &mut out);
            }
            b'o' => {
                let x = unsigned(m.number_arg(args, next, "format")?);
                spec.integer(&format!("{x:o}"), if spec.hash && x != 0 { "0" } else { "" }, &mut out);
            }
            b'x' | b'X' => {
                let x = unsigned(m.number_arg(args, next, "format")?);
                let (digits, prefix) = match kind {
                    b'x' => (format!("{x:x}"), "0x"),
                    _ => (format!("{x:X}"), "0X"),
                };
                spec.integer(&digits, if spec.hash && x != 0 { prefix } else { "" }, &mut out);
            }
            b'e' | b'E' | b'f' | b'g' | b'G' => {
                let x = m.number_arg(args, next, "format")?;
                spec.float(x, *kind, &mut out);
            }
            b'q' => {
                let text = m.text_arg(args, next, "format")?;
                m.touch(4 * m.heap.str_len(text), 0)?;
                m.heap.budget.fits(2 * (out.len() + 4 * m.heap.str_len(text)))?;
                quote(m.heap.bytes(text), &mut out);
            }
            b's' => {
                let text = m.text_arg(args, next, "format")?;
                let len = m.heap.str_len(text);
                m.touch(len, 0)?;
                m.heap.budget.fits(2 * (out.len() + len))?;
                let text = m.heap.bytes(text);
                match spec.precision {
                    Some(most) => spec.pad(&text[..most.min(len)], &mut out),
                    None if len >= 100 => out.extend_from_slice(text),
                    None => spec.pad(text, &mut out),
                }
            }
            other => {
                let text = [b"invalid option '%", &[*other][..], b"' to 'format'"].concat();
                return Err(Fault::Text(text));
            }
        }
    }
    let _ = host;
    m.give_text(&out)
}

/// A number as C casts it to an unsigned one of 64 bits on the machines Redis is known from.
fn unsigned(x: f64) -> u64 {
    if x >= 9_223_372_036_854_775_808.0 { x as u64 } else { truncate(x) as u64 }
}

fn parse(rest: &mut &[u8]) -> Result<Spec> {
    let mut spec = Spec::default();
    let mut flags = 0;
    while let Some((b, tail)) = rest.split_first() {
        match b {
            b'-' => spec.left = true,
            b'+' => spec.plus = true,
            b' ' => spec.space = true,
            b'#' => spec.hash = true,
            b'0' => spec.zero = true,
            _ => break,
        }
        flags += 1;
        if flags > 5 {
            return Err("invalid format (repeated flags)".into());
        }
        *rest = tail;
    }
    let number = |rest: &mut &[u8]| -> usize {
        let digits = rest.iter().take(2).take_while(|b| b.is_ascii_digit()).count();
        let value = rest[..digits].iter().fold(0, |n, b| n * 10 + usize::from(b - b'0'));
        *rest = &rest[digits..];
        value
    };
    spec.width = number(rest);
    if let Some((b'.', tail)) = rest.split_first() {
        *rest = tail;
        spec.precision = Some(number(rest));
    }
    if rest.first().is_some_and(u8::is_ascii_digit) {
        return Err("invalid format (width or precision too long)".into());
    }
    Ok(spec)
}

impl Spec {
    fn sign(self, negative: bool) -> &'static str {
        match (negative, self.plus, self.space) {
            (true, ..) => "-",
            (_, true, _) => "+",
            (_, _, true) => " ",
            _ => "",
        }
    }

    fn pad(self, text: &[u8], out: &mut Vec<u8>) {
        let blanks = self.width.saturating_sub(text.len());
        if !self.left {
            out.resize(out.len() + blanks, b' ');
        }
        out.extend_from_slice(text);
        if self.left {
            out.resize(out.len() + blanks, b' ');
        }
    }

    /// Puts a sign or prefix before digits, and zeros between them if it is asked for.
    fn signed(self, prefix: &str, digits: &str, zeros: bool, out: &mut Vec<u8>) {
        let fill =
            if zeros && !self.left { self.width.saturating_sub(prefix.len() + digits.len()) } else { 0 };
        let text = format!("{prefix}{}{digits}", "0".repeat(fill));
        self.pad(text.as_bytes(), out);
    }

    fn integer(self, digits: &str, prefix: &str, out: &mut Vec<u8>) {
        let digits = match self.precision {
            Some(0) if digits == "0" => String::new(),
            Some(least) => format!("{}{digits}", "0".repeat(least.saturating_sub(digits.len()))),
            None => digits.to_string(),
        };
        self.signed(prefix, &digits, self.zero && self.precision.is_none(), out);
    }

    fn float(self, x: f64, kind: u8, out: &mut Vec<u8>) {
        let sign = self.sign(x.is_sign_negative());
        let magnitude = x.abs();
        let precision = self.precision.unwrap_or(6);
        let digits = if !x.is_finite() {
            if x.is_nan() { "nan".into() } else { "inf".to_string() }
        } else {
            match kind {
                b'f' => {
                    let point = if self.hash && precision == 0 { "." } else { "" };
                    format!("{magnitude:.precision$}{point}")
                }
                b'e' | b'E' => {
                    let text = format!("{magnitude:.precision$e}");
                    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                    let (sign, exponent) = match exponent.strip_prefix('-') {
                        Some(exponent) => ('-', exponent),
                        None => ('+', exponent),
                    };
                    format!("{mantissa}e{sign}{exponent:0>2}")
                }
                _ => format_g(magnitude, precision.max(1)),
            }
        };
        let digits = if kind.is_ascii_uppercase() { digits.to_uppercase() } else { digits };
        self.signed(sign, &digits, self.zero && x.is_finite(), out);
    }
}

fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for b in text {
        match b {
            b'"' | b'\\' | b'\n' => out.extend_from_slice(&[b'\\', *b]),
            b'\r' => out.extend_from_slice(b"\\r"),
            0 => out.extend_from_slice(b"\\000"),
            b => out.push(*b),
        }
    }
    out.push(b'"');
}
