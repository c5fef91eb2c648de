//! `struct`: numbers and strings as the fields of a C structure.

use crate::budget::{Fault, Result};
use crate::machine::{Args, Host, MAX_VALUES, Machine};
use crate::number::truncate;
use crate::value::Value;

type Done = Result<()>;

const MAX_INT: usize = 32;
const MAX_ALIGN: usize = 8;

/// A field of a format.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Field {
    Integer { size: usize, signed: bool },
    Float,
    Double,
    Padding,
    Chars(usize),
    Text,
}

/// Reads a format.
struct Format<'a> {
    rest: &'a [u8],
    big: bool,
    align: usize,
}

impl Format<'_> {
    fn number(&mut self, otherwise: usize) -> Result<usize> {
        if !self.rest.first().is_some_and(u8::is_ascii_digit) {
            return Ok(otherwise);
        }
        let mut n = 0usize;
        while let Some((b @ b'0'..=b'9', tail)) = self.rest.split_first() {
            n = n * 10 + usize::from(b - b'0');
            if n > i32::MAX as usize {
                return Err("integral size overflow".into());
            }
            self.rest = tail;
        }
        Ok(n)
    }

    /// The next field with the bytes of padding before it, if something stands `at` bytes after the beginning.
    fn next(&mut self, at: usize) -> Result<Option<(Field, usize, usize)>> {
        while let Some((option, tail)) = self.rest.split_first() {
            self.rest = tail;
            let integer = |size, signed| Field::Integer { size, signed };
            let (field, size) = match option {
                b'b' | b'B' => (integer(1, *option == b'b'), 1),
                b'h' | b'H' => (integer(2, *option == b'h'), 2),
                b'l' | b'L' => (integer(8, *option == b'l'), 8),
                b'T' => (integer(8, false), 8),
                b'i' | b'I' => {
                    let size = self.number(4)?;
                    if size > MAX_INT {
                        let text = format!("integral size {size} is larger than limit of {MAX_INT}");
                        return Err(text.into());
                    }
                    (integer(size, *option == b'i'), size)
                }
                b'f' => (Field::Float, 4),
                b'd' | b'n' => (Field::Double, 8),
                b'x' => (Field::Padding, 1),
                b'c' => {
                    let size = self.number(1)?;
                    (Field::Chars(size), size)
                }
                b's' => (Field::Text, 0),
                b' ' => continue,
                b'>' => {
                    self.big = true;
                    continue;
                }
                b'<' => {
                    self.big = false;
                    continue;
                }
                b'!' => {
                    let align = self.number(MAX_ALIGN)?;
                    if align == 0 || !align.is_power_of_two() {
                        return Err("alignment is not a power of 2".into());
                    }
                    self.align = align;
                    continue;
                }
                other => return Err(format!("invalid format option '{}'", char::from(*other)).into()),
            };
            let unit = if size == 0 || matches!(field, Field::Chars(_)) { 1 } else { size.min(self.align) };
            let padding = match unit {
                0 | 1 => 0,
                unit if unit.is_power_of_two() => (unit - (at & (unit - 1))) & (unit - 1),
                unit => (unit - at % unit) % unit,
            };
            return Ok(Some((field, size, padding)));
        }
        Ok(None)
    }
}

fn format_of(m: &mut Machine, args: Args, name: &str) -> Result<Vec<u8>> {
    let text = m.text_arg(args, 0, name)?;
    let len = m.heap.str_len(text);
    m.touch(len, 0)?;
    m.heap.budget.fits(len)?;
    Ok(m.heap.bytes(text).to_vec())
}

pub(super) fn pack(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = format_of(m, args, "pack")?;
    let mut format = Format { rest: &text, big: false, align: 1 };
    let mut out = Vec::new();
    let mut next = 1;
    while let Some((field, size, padding)) = format.next(out.len())? {
        m.touch(size, 1)?;
        m.heap.budget.fits(2 * (out.len() + padding + size))?;
        out.resize(out.len() + padding, 0);
        match field {
            Field::Integer { size, .. } => {
                let x = m.number_arg(args, next, "pack")?;
                next += 1;
                let bits = if x < 0.0 { truncate(x) as u64 } else { x as u64 };
                let mut bytes: Vec<u8> =
                    bits.to_le_bytes().into_iter().chain(std::iter::repeat(0)).take(size).collect();
                if format.big {
                    bytes.reverse();
                }
                out.extend_from_slice(&bytes);
            }
            Field::Float => {
                let x = m.number_arg(args, next, "pack")? as f32;
                next += 1;
                out.extend_from_slice(&if format.big { x.to_be_bytes() } else { x.to_le_bytes() });
            }
            Field::Double => {
                let x = m.number_arg(args, next, "pack")?;
                next += 1;
                out.extend_from_slice(&if format.big { x.to_be_bytes() } else { x.to_le_bytes() });
            }
            Field::Padding => out.push(0),
            Field::Chars(_) | Field::Text => {
                let s = m.text_arg(args, next, "pack")?;
                next += 1;
                let len = m.heap.str_len(s);
                let size = if size == 0 { len } else { size };
                if len < size {
                    return Err(m.bad_argument(next, "pack", "string too short"));
                }
                m.touch(size, 0)?;
                m.heap.budget.fits(2 * (out.len() + size))?;
                out.extend_from_slice(&m.heap.bytes(s)[..size]);
                if field == Field::Text {
                    out.push(0);
                }
            }
        }
    }
    m.give_text(&out)
}

pub(super) fn unpack(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = format_of(m, args, "unpack")?;
    let data = m.text_arg(args, 1, "unpack")?;
    let len = m.heap.str_len(data);
    let from = m.int_or(args, 2, "unpack", 1)?;
    if from < 1 {
        return Err(m.bad_argument(3, "unpack", "offset must be 1 or greater"));
    }
    let mut at = usize::try_from(from - 1).unwrap_or(usize::MAX);
    let mut format = Format { rest: &text, big: false, align: 1 };
    let mut values: Vec<Value> = Vec::new();
    while let Some((field, size, padding)) = format.next(at)? {
        if values.len() >= MAX_VALUES {
            return Err("too many results to unpack".into());
        }
        m.touch(size, 1)?;
        at = at.saturating_add(padding);
        let too_short = || Fault::from("data string too short");
        let take = |m: &Machine, at: usize, n: usize| -> Result<Vec<u8>> {
            let bytes = m.heap.bytes(data).get(at..at.saturating_add(n)).ok_or_else(too_short)?;
            Ok(bytes.to_vec())
        };
        let bytes = match field {
            Field::Chars(_) => Vec::new(),
            _ => take(m, at, size)?,
        };
        let (value, used) = match field {
            Field::Integer { size, signed } => {
                (Value::Number(integer(&bytes, size, signed, format.big)), size)
            }
            Field::Float => {
                let bytes = bytes.first_chunk().copied().unwrap_or_default();
                let x = if format.big { f32::from_be_bytes(bytes) } else { f32::from_le_bytes(bytes) };
                (Value::Number(f64::from(x)), 4)
            }
            Field::Double => {
                let bytes = bytes.first_chunk().copied().unwrap_or_default();
                let x = if format.big { f64::from_be_bytes(bytes) } else { f64::from_le_bytes(bytes) };
                (Value::Number(x), 8)
            }
            Field::Padding => {
                at += 1;
                continue;
            }
            Field::Chars(size) => {
                let size = match (size, values.last().copied()) {
                    (0, Some(Value::Number(n))) => {
                        values.pop();
                        n.max(0.0) as usize
                    }
                    (0, _) => return Err("format 'c0' needs a previous size".into()),
                    (size, _) => size,
                };
                if len.checked_sub(at).is_none_or(|rest| rest < size) {
                    return Err(too_short());
                }
                m.touch(size, 0)?;
                (Value::String(m.heap.part(data, at, at + size)?), size)
            }
            Field::Text => {
                let rest = m.heap.bytes(data).get(at..).unwrap_or_default();
                let Some(end) = memchr::memchr(0, rest) else {
                    return Err("unfinished string in data".into());
                };
                m.touch(end, 0)?;
                (Value::String(m.heap.part(data, at, at + end)?), end + 1)
            }
        };
        values.push(value);
        at = (at + used).min(len);
    }
    values.into_iter().for_each(|value| m.give(value));
    m.answer(Value::Number(at as f64 + 1.0))
}

fn integer(bytes: &[u8], size: usize, signed: bool, big: bool) -> f64 {
    let fold = |x: u64, b: &u8| x << 8 | u64::from(*b);
    let x = if big { bytes.iter().fold(0, fold) } else { bytes.iter().rev().fold(0, fold) };
    if !signed {
        return x as f64;
    }
    match size {
        0 => 0.0,
        1..8 => {
            let unused = 64 - 8 * size as u32;
            ((x << unused) as i64 >> unused) as f64
        }
        _ => x as i64 as f64,
    }
}

pub(super) fn size(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = format_of(m, args, "size")?;
    let mut format = Format { rest: &text, big: false, align: 1 };
    let mut total = 0usize;
    while let Some((field, size, padding)) = format.next(total)? {
        m.touch(0, 1)?;
        match field {
            Field::Text => return Err(m.bad_argument(1, "size", "variable-size format in struct.size")),
            Field::Chars(0) => return Err(m.bad_argument(1, "size", "variable-length format")),
            _ => {}
        }
        total = total.saturating_add(padding + size);
        if total > i32::MAX as usize {
            return Err(m.bad_argument(1, "size", "format result too large"));
        }
    }
    m.answer(Value::Number(total as f64))
}
