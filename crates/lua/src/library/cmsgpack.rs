//! `cmsgpack`: values as MessagePack.

use crate::budget::Result;
use crate::machine::{Args, Host, MAX_VALUES, Machine};
use crate::value::{TableRef, Value};

type Done = Result<()>;

const TWO_63: f64 = 9_223_372_036_854_775_808.0;
/// The deepest nesting of tables that are packed; deeper ones are nil.
const MAX_PACKED: u32 = 16;
/// The deepest nesting of values that are unpacked.
const MAX_UNPACKED: u32 = 128;

pub(super) fn pack(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    if args.is_empty() {
        return Err(m.bad_argument(0, "pack", "MessagePack pack needs input."));
    }
    let mut out = Vec::new();
    for i in 0..args.len() {
        write(m, m.arg(args, i), 0, &mut out)?;
    }
    m.give_text(&out)
}

/// Writes a number in the fewest bytes that hold it, big end first.
fn head(out: &mut Vec<u8>, codes: [u8; 4], n: u64) {
    if n <= 0xff && codes[0] != 0 {
        out.extend_from_slice(&[codes[0], n as u8]);
    } else if n <= 0xffff {
        out.push(codes[1]);
        out.extend_from_slice(&(n as u16).to_be_bytes());
    } else if n <= 0xffff_ffff {
        out.push(codes[2]);
        out.extend_from_slice(&(n as u32).to_be_bytes());
    } else {
        out.push(codes[3]);
        out.extend_from_slice(&n.to_be_bytes());
    }
}

fn write(m: &mut Machine, value: Value, depth: u32, out: &mut Vec<u8>) -> Done {
    m.touch(0, 1)?;
    m.heap.budget.fits(2 * out.len() + 16)?;
    match value {
        Value::Bool(b) => out.push(if b { 0xc3 } else { 0xc2 }),
        Value::Number(x) if x.trunc() == x && (-TWO_63..TWO_63).contains(&x) => integer(x as i64, out),
        Value::Number(x) if f64::from(x as f32) == x => {
            out.push(0xca);
            out.extend_from_slice(&(x as f32).to_be_bytes());
        }
        Value::Number(x) => {
            out.push(0xcb);
            out.extend_from_slice(&x.to_be_bytes());
        }
        Value::String(s) => {
            let len = m.heap.str_len(s);
            m.touch(len, 0)?;
            m.heap.budget.fits(2 * (out.len() + len))?;
            match len {
                0..32 => out.push(0xa0 | len as u8),
                len => head(out, [0xd9, 0xda, 0xdb, 0xdb], len as u64),
            }
            out.extend_from_slice(m.heap.bytes(s));
        }
        Value::Table(table) if depth < MAX_PACKED => write_table(m, table, depth, out)?,
        _ => out.push(0xc0),
    }
    Ok(())
}

fn integer(x: i64, out: &mut Vec<u8>) {
    match x {
        -32..128 => out.push(x as u8),
        128.. => head(out, [0xcc, 0xcd, 0xce, 0xcf], x as u64),
        -128..-32 => out.extend_from_slice(&[0xd0, x as u8]),
        -32768..-128 => {
            out.push(0xd1);
            out.extend_from_slice(&(x as i16).to_be_bytes());
        }
        -2_147_483_648..-32768 => {
            out.push(0xd2);
            out.extend_from_slice(&(x as i32).to_be_bytes());
        }
        _ => {
            out.push(0xd3);
            out.extend_from_slice(&x.to_be_bytes());
        }
    }
}

fn write_table(m: &mut Machine, table: TableRef, depth: u32, out: &mut Vec<u8>) -> Done {
    let extent = m.heap.extent(table);
    m.touch(0, extent)?;
    m.heap.budget.fits(32 * extent)?;
    let pairs: Vec<(Value, Value)> = m.heap.pairs(table).collect();
    let is_place = |(key, _): &(Value, Value)| key.number().is_some_and(|x| x >= 1.0 && x.trunc() == x);
    let most = pairs.iter().filter_map(|(key, _)| key.number()).fold(0.0, f64::max);
    if pairs.iter().all(is_place) && most == pairs.len() as f64 {
        match pairs.len() {
            n @ 0..16 => out.push(0x90 | n as u8),
            n => head(out, [0, 0xdc, 0xdd, 0xdd], n as u64),
        }
        for i in 1..=pairs.len() {
            write(m, m.heap.raw_at(table, i), depth + 1, out)?;
        }
        return Ok(());
    }
    match pairs.len() {
        n @ 0..16 => out.push(0x80 | n as u8),
        n => head(out, [0, 0xde, 0xdf, 0xdf], n as u64),
    }
    for (key, value) in pairs {
        write(m, key, depth + 1, out)?;
        write(m, value, depth + 1, out)?;
    }
    Ok(())
}

pub(super) fn unpack(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    read_all(m, args, "unpack", 0, 0.0)
}

pub(super) fn unpack_one(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let offset = if args.len() > 1 { m.number_arg(args, 1, "unpack_one")? } else { 0.0 };
    read_all(m, args, "unpack_one", 1, offset)
}

pub(super) fn unpack_limit(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let limit = m.int_arg(args, 1, "unpack_limit")?;
    let offset = if args.len() > 2 { m.number_arg(args, 2, "unpack_limit")? } else { 0.0 };
    if limit < 0 {
        return Err(format!("Invalid request to unpack with offset of {offset} and limit of {limit}.").into());
    }
    read_all(m, args, "unpack_limit", limit as usize, offset)
}

/// Reads values: all if the limit is 0, which answers them alone; else up to the limit, after the offset of the rest.
fn read_all(m: &mut Machine, args: Args, name: &str, limit: usize, offset: f64) -> Done {
    let text = m.text_arg(args, 0, name)?;
    let len = m.heap.str_len(text);
    let offset = offset.trunc();
    if offset.is_nan() || offset < 0.0 {
        return Err(format!("Invalid request to unpack with offset of {offset} and limit of {len}.").into());
    }
    if offset > len as f64 {
        return Err(format!("Start offset {offset} greater than input length {len}.").into());
    }
    m.touch(len - offset as usize, 0)?;
    m.heap.budget.fits(2 * len)?;
    let bytes = m.heap.bytes(text).to_vec();
    let mut reader = Reader { bytes: &bytes, at: offset as usize };
    let mut values = Vec::new();
    while reader.at < bytes.len() && (limit == 0 || values.len() < limit) {
        if values.len() >= MAX_VALUES {
            return Err("too many values to unpack".into());
        }
        values.push(reader.value(m, 0)?);
    }
    if limit > 0 {
        let next = if reader.at >= bytes.len() { -1.0 } else { reader.at as f64 };
        m.give(Value::Number(next));
    }
    values.into_iter().for_each(|value| m.give(value));
    Ok(())
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else { return Err("Missing bytes in input.".into()) };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, n: usize) -> Result<u64> {
        Ok(self.take(n)?.iter().fold(0, |x, b| x << 8 | u64::from(*b)))
    }

    fn value(&mut self, m: &mut Machine, depth: u32) -> Result<Value> {
        m.touch(0, 1)?;
        if depth > MAX_UNPACKED {
            return Err("Bad data format in input.".into());
        }
        let code = self.take(1)?[0];
        let number = |x: f64| Ok(Value::Number(x));
        // Of the codes that come in rows, each has twice the bytes of the one before.
        let width = |first: u8| 1 << (code - first);
        match code {
            0..=0x7f => number(f64::from(code)),
            0xe0..=0xff => number(f64::from(code as i8)),
            0x80..=0x8f => self.map(m, u64::from(code & 15), depth),
            0x90..=0x9f => self.array(m, u64::from(code & 15), depth),
            0xa0..=0xbf => self.text(m, u64::from(code & 31)),
            0xc0 => Ok(Value::Nil),
            0xc2 => Ok(Value::Bool(false)),
            0xc3 => Ok(Value::Bool(true)),
            0xc4..=0xc6 => {
                let len = self.number(width(0xc4))?;
                self.text(m, len)
            }
            0xca => number(f64::from(f32::from_bits(self.number(4)? as u32))),
            0xcb => number(f64::from_bits(self.number(8)?)),
            0xcc..=0xcf => number(self.number(width(0xcc))? as f64),
            0xd0..=0xd3 => {
                let size = width(0xd0);
                let unused = 64 - 8 * size as u32;
                number(((self.number(size)? << unused) as i64 >> unused) as f64)
            }
            0xd9..=0xdb => {
                let len = self.number(width(0xd9))?;
                self.text(m, len)
            }
            0xdc | 0xdd => {
                let len = self.number(2 * width(0xdc))?;
                self.array(m, len, depth)
            }
            0xde | 0xdf => {
                let len = self.number(2 * width(0xde))?;
                self.map(m, len, depth)
            }
            _ => Err("Bad data format in input.".into()),
        }
    }

    fn text(&mut self, m: &mut Machine, len: u64) -> Result<Value> {
        let bytes = self.take(usize::try_from(len).unwrap_or(usize::MAX))?;
        m.heap.text(bytes)
    }

    fn array(&mut self, m: &mut Machine, len: u64, depth: u32) -> Result<Value> {
        let table = m.heap.table(0, 0)?;
        for i in 1..=len {
            let value = self.value(m, depth + 1)?;
            m.heap.raw_set(table, Value::Number(i as f64), value)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, m: &mut Machine, len: u64, depth: u32) -> Result<Value> {
        let table = m.heap.table(0, 0)?;
        for _ in 0..len {
            let key = self.value(m, depth + 1)?;
            let value = self.value(m, depth + 1)?;
            m.set_raw(table, key, value)?;
        }
        Ok(Value::Table(table))
    }
}
