//! Between Lua's values and the database's, by the table of conversions that Redis documents.

use ordain_lua::number::{format_g, truncate};
use ordain_lua::{Machine, Result, Str, TableRef, Value};
use ordain_model::{Datum, Writer};

/// The deepest nesting of a reply.
const MAX_DEPTH: u32 = 128;
/// Units of work that a value costs on its way.
const VALUE: u64 = 16;
/// Bytes on their way that cost a unit.
const BYTES: usize = 64;

/// A number as a command's argument.
pub(super) fn argument_text(x: f64) -> String {
    match x.fract() == 0.0 && x.abs() < 1e17 {
        true => (x as i64).to_string(),
        false => format_g(x, 17),
    }
}

/// A command's reply as Lua sees it.
///
/// # Errors
/// The budget is used up.
pub(super) fn from_datum(m: &mut Machine, reply: &[u8], resp3: bool) -> Result<Value> {
    m.heap.budget.work((reply.len() / BYTES) as u64)?;
    Ok(split(m, reply, resp3)?.0)
}

fn wrapped(m: &mut Machine, name: &str, value: Value) -> Result<Value> {
    let table = m.heap.table(0, 1)?;
    m.heap.set_field(table, name, value)?;
    Ok(Value::Table(table))
}

fn sequence<'a>(m: &mut Machine, n: usize, rest: &'a [u8], resp3: bool) -> Result<(Value, &'a [u8])> {
    let table = m.heap.table(n.min(rest.len()), 0)?;
    let mut rest = rest;
    for i in 1..=n {
        let (item, tail) = split(m, rest, resp3)?;
        m.heap.set_list(table, i, &[item])?;
        rest = tail;
    }
    Ok((Value::Table(table), rest))
}

fn split<'a>(m: &mut Machine, reply: &'a [u8], resp3: bool) -> Result<(Value, &'a [u8])> {
    m.heap.budget.work(1)?;
    let Some((datum, rest)) = Datum::split(reply) else { return Ok((Value::Nil, &[])) };
    let value = match datum {
        Datum::Nil | Datum::NilArray if resp3 => Value::Nil,
        Datum::Nil | Datum::NilArray => Value::Bool(false),
        Datum::Int(i) => Value::Number(i as f64),
        Datum::Bulk(bytes) => m.heap.text(bytes)?,
        Datum::Status(bytes) => {
            let text = m.heap.text(bytes)?;
            wrapped(m, "ok", text)?
        }
        Datum::Error(bytes) => {
            let text = m.heap.text(bytes)?;
            wrapped(m, "err", text)?
        }
        Datum::Array(n) => return sequence(m, n as usize, rest, resp3),
        Datum::Map(n) if resp3 => {
            let map = m.heap.table(0, (n as usize).min(rest.len()))?;
            let mut rest = rest;
            for _ in 0..n {
                let (key, tail) = split(m, rest, resp3)?;
                let (value, tail) = split(m, tail, resp3)?;
                set(m, map, key, value)?;
                rest = tail;
            }
            return Ok((wrapped(m, "map", Value::Table(map))?, rest));
        }
        Datum::Pairs(n) if resp3 => {
            let pairs = m.heap.table((n as usize).min(rest.len()), 0)?;
            let mut rest = rest;
            for i in 1..=n as usize {
                let (pair, tail) = sequence(m, 2, rest, resp3)?;
                m.heap.set_list(pairs, i, &[pair])?;
                rest = tail;
            }
            return Ok((Value::Table(pairs), rest));
        }
        Datum::Map(n) | Datum::Pairs(n) => return sequence(m, 2 * n as usize, rest, resp3),
        Datum::Set(n) if resp3 => {
            let items = m.heap.table(0, (n as usize).min(rest.len()))?;
            let mut rest = rest;
            for _ in 0..n {
                let (item, tail) = split(m, rest, resp3)?;
                set(m, items, item, Value::Bool(true))?;
                rest = tail;
            }
            return Ok((wrapped(m, "set", Value::Table(items))?, rest));
        }
        Datum::Set(n) => return sequence(m, n as usize, rest, resp3),
        Datum::Bool(b) if resp3 => Value::Bool(b),
        Datum::Bool(b) => Value::Number(f64::from(u8::from(b))),
        Datum::Double(x) if resp3 => wrapped(m, "double", Value::Number(x))?,
        Datum::Double(x) => m.heap.text(format_g(x, 17).as_bytes())?,
        Datum::Verbatim(format, string) if resp3 => {
            let table = m.heap.table(0, 2)?;
            let (format, string) = (m.heap.text(&format)?, m.heap.text(string)?);
            m.heap.set_field(table, "format", format)?;
            m.heap.set_field(table, "string", string)?;
            wrapped(m, "verbatim_string", Value::Table(table))?
        }
        Datum::BigNumber(digits) if resp3 => {
            let digits = m.heap.text(digits)?;
            wrapped(m, "big_number", digits)?
        }
        Datum::Verbatim(_, string) | Datum::BigNumber(string) => m.heap.text(string)?,
    };
    Ok((value, rest))
}

fn set(m: &mut Machine, table: TableRef, key: Value, value: Value) -> Result<()> {
    match key {
        Value::Nil => Ok(()),
        Value::Number(x) if x.is_nan() => Ok(()),
        key => m.heap.raw_set(table, key, value),
    }
}

/// Appends what a script returned.
///
/// # Errors
/// The budget is used up: the value is far larger than the memory it takes, as one of shared tables can be.
pub(super) fn to_datum(m: &mut Machine, value: Value, resp3: bool, out: &mut Vec<u8>) -> Result<()> {
    let start = out.len();
    append(m, value, resp3, 0, start, out)
}

/// Charges for a string, and for the reply that grows by it.
fn charge(m: &mut Machine, len: usize, start: usize, out: &[u8]) -> Result<()> {
    m.heap.budget.work(VALUE + (len / BYTES) as u64)?;
    // The reply's buffer doubles as it grows.
    m.heap.budget.fits(2 * (out.len() - start + len))
}

fn append(
    m: &mut Machine,
    value: Value,
    resp3: bool,
    depth: u32,
    start: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    charge(m, 16, start, out)?;
    match value {
        Value::String(s) => {
            charge(m, m.heap.str_len(s), start, out)?;
            Writer(out).bulk(m.heap.bytes(s));
        }
        Value::Number(x) => Writer(out).int(truncate(x)),
        Value::Bool(b) if resp3 => Writer(out).bool(b),
        Value::Bool(true) => Writer(out).int(1),
        Value::Table(_) if depth >= MAX_DEPTH => Writer(out).error("ERR reached lua stack limit"),
        Value::Table(table) => append_table(m, table, resp3, depth, start, out)?,
        _ => Writer(out).nil(),
    }
    Ok(())
}

/// A text as one line of the protocol: up to its first NUL, without line ends.
pub(super) fn line(text: &[u8]) -> Vec<u8> {
    let text = text.split(|b| *b == 0).next().unwrap_or_default();
    text.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect()
}

fn text_field(m: &mut Machine, table: TableRef, name: &str) -> Result<Option<Str>> {
    Ok(match m.heap.field(table, name)? {
        Value::String(text) => Some(text),
        _ => None,
    })
}

fn append_table(
    m: &mut Machine,
    table: TableRef,
    resp3: bool,
    depth: u32,
    start: usize,
    out: &mut Vec<u8>,
) -> Result<()> {
    if let Some(text) = text_field(m, table, "err")? {
        charge(m, m.heap.str_len(text), start, out)?;
        Writer(out).error(line(m.heap.bytes(text)));
        return Ok(());
    }
    if let Some(text) = text_field(m, table, "ok")? {
        charge(m, m.heap.str_len(text), start, out)?;
        Writer(out).status(&line(m.heap.bytes(text)));
        return Ok(());
    }
    if let Value::Number(x) = m.heap.field(table, "double")? {
        Writer(out).double(x);
        return Ok(());
    }
    if let Some(digits) = text_field(m, table, "big_number")? {
        charge(m, m.heap.str_len(digits), start, out)?;
        Writer(out).big_number(&line(m.heap.bytes(digits)));
        return Ok(());
    }
    if let Value::Table(verbatim) = m.heap.field(table, "verbatim_string")?
        && let Some(string) = text_field(m, verbatim, "string")?
        && let Some(format) = text_field(m, verbatim, "format")?
    {
        charge(m, m.heap.str_len(string), start, out)?;
        let mut three = *b"txt";
        for (to, from) in three.iter_mut().zip(m.heap.bytes(format)) {
            *to = *from;
        }
        Writer(out).verbatim(three, m.heap.bytes(string));
        return Ok(());
    }
    if let Value::Table(map) = m.heap.field(table, "map")? {
        let pairs = pairs(m, map)?;
        Writer(out).map(pairs.len());
        for (key, value) in pairs {
            append(m, key, resp3, depth + 1, start, out)?;
            append(m, value, resp3, depth + 1, start, out)?;
        }
        return Ok(());
    }
    if let Value::Table(set) = m.heap.field(table, "set")? {
        let pairs = pairs(m, set)?;
        Writer(out).set(pairs.len());
        for (key, _) in pairs {
            append(m, key, resp3, depth + 1, start, out)?;
        }
        return Ok(());
    }
    let at = out.len();
    Writer(out).array(0);
    let mut n = 0;
    loop {
        let item = m.heap.raw_at(table, n + 1);
        if item.is_nil() {
            break;
        }
        append(m, item, resp3, depth + 1, start, out)?;
        n += 1;
    }
    let mut head = Vec::new();
    Writer(&mut head).array(n);
    out[at..at + head.len()].copy_from_slice(&head);
    Ok(())
}

fn pairs(m: &mut Machine, table: TableRef) -> Result<Vec<(Value, Value)>> {
    let extent = m.heap.extent(table);
    m.heap.budget.work(extent as u64)?;
    m.heap.budget.fits(32 * extent)?;
    Ok(m.heap.pairs(table).collect())
}
