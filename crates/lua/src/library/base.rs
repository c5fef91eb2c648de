//! The functions that are in no library.

use crate::budget::{Fault, Result};
use crate::compiler::{self, CompileError};
use crate::machine::{Args, Host, MAX_VALUES, Machine};
use crate::metamethods::Event;
use crate::value::Value;

type Done = Result<()>;

pub(super) fn assert(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    if !m.any_arg(args, 0, "assert")?.is_true() {
        let message = m.arg(args, 1);
        if args.len() < 2 || message.is_nil() {
            return Err("assertion failed!".into());
        }
        return match m.heap.as_str(message)? {
            // As the C library has it: a text is raised with its place.
            Some(text) => Err(Fault::Text(m.heap.bytes(text).to_vec())),
            None => Err(Fault::Error(message)),
        };
    }
    m.touch(0, args.len())?;
    for i in 0..args.len() {
        m.give(m.arg(args, i));
    }
    Ok(())
}

pub(super) fn collectgarbage(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    // Nothing is collected while a script runs; the answer is what it has made so far.
    let count = match m.arg(args, 0) {
        Value::String(s) => m.heap.bytes(s) == b"count",
        _ => false,
    };
    let used = m.heap.budget.used();
    m.answer(Value::Number(if count { used as f64 / 1024.0 } else { 0.0 }))
}

pub(super) fn error(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let value = m.arg(args, 0);
    let level = m.int_or(args, 1, "error", 1)?;
    if level <= 0 || !matches!(value, Value::String(_) | Value::Number(_)) {
        return Err(Fault::Error(value));
    }
    let text = m.text_arg(args, 0, "error")?;
    let len = m.heap.str_len(text);
    m.touch(len, 0)?;
    m.heap.budget.fits(2 * len)?;
    let text = m.heap.bytes(text).to_vec();
    if level == 1 {
        return Err(Fault::Text(text));
    }
    // Upwards from the function that called, as long as each was called by a function written in Lua.
    let mut at = m.frames.len().saturating_sub(1);
    for _ in 1..level {
        if m.frames.get(at).is_none_or(|frame| frame.is_fresh) || at == 0 {
            return Err(Fault::Error(value));
        }
        at -= 1;
    }
    let place = m.frames.get(at).map_or(Vec::new(), |frame| m.place_of(frame).0);
    let text = [place, text].concat();
    m.heap.text(&text).and_then(|value| Err(Fault::Error(value)))
}

pub(super) fn getmetatable(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let value = m.any_arg(args, 0, "getmetatable")?;
    let answer = match m.metatable(value) {
        None => Value::Nil,
        Some(meta) => match m.event(meta, Event::Metatable) {
            Value::Nil => Value::Table(meta),
            shown => shown,
        },
    };
    m.answer(answer)
}

pub(super) fn setmetatable(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "setmetatable")?;
    let meta = match m.arg(args, 1) {
        Value::Nil if args.len() > 1 => None,
        Value::Table(meta) => Some(meta),
        _ => return Err(m.bad_argument(2, "setmetatable", "nil or table expected")),
    };
    m.check_writable(table)?;
    let old = m.heap.tables[table.0 as usize].meta;
    if old.is_some_and(|old| !m.event(old, Event::Metatable).is_nil()) {
        return Err("cannot change a protected metatable".into());
    }
    m.heap.tables[table.0 as usize].meta = meta;
    m.answer(Value::Table(table))
}

pub(super) fn ipairs(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "ipairs")?;
    let step = m.native("ipairs_step").map_or(Value::Nil, Value::Native);
    m.give(step);
    m.give(Value::Table(table));
    m.answer(Value::Number(0.0))
}

pub(super) fn ipairs_step(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "ipairs")?;
    let at = m.number_arg(args, 1, "ipairs")? + 1.0;
    let value = m.heap.raw_get(table, Value::Number(at))?;
    if value.is_nil() {
        m.give(Value::Nil);
    } else {
        m.give(Value::Number(at));
        m.give(value);
    }
    Ok(())
}

pub(super) fn pairs(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "pairs")?;
    let next = m.native("next").map_or(Value::Nil, Value::Native);
    m.give(next);
    m.give(Value::Table(table));
    m.answer(Value::Nil)
}

pub(super) fn next(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "next")?;
    let key = m.arg(args, 1);
    let key = m.heap.key(key)?;
    let Some((pair, passed)) = m.heap.tables[table.0 as usize].next(key, &m.heap.budget) else {
        return Err("invalid key to 'next'".into());
    };
    m.touch(0, passed)?;
    match pair {
        Some((key, value)) => {
            m.give(key);
            m.give(value);
        }
        None => m.give(Value::Nil),
    }
    Ok(())
}

pub(super) fn missing(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let key = m.arg(args, 1);
    let mut text = b"Script attempted to access nonexistent global variable '".to_vec();
    if let Value::String(name) = m.shown(host, key)? {
        let name = m.heap.bytes(name);
        text.extend_from_slice(&name[..name.len().min(200)]);
    }
    text.push(b'\'');
    Err(Fault::Text(text))
}

pub(super) fn pcall(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    m.any_arg(args, 0, "pcall")?;
    m.touch(0, args.len())?;
    protected(m, host, args, args.len() - 1, None)
}

pub(super) fn xpcall(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    if args.len() < 2 {
        return Err(m.bad_argument(2, "xpcall", "value expected"));
    }
    // The handler runs when the call has been unwound, so that it is bounded as any function is.
    let handler = m.arg(args, 1);
    protected(m, host, args, 0, Some(handler))
}

fn protected(m: &mut Machine, host: &mut dyn Host, args: Args, count: usize, handler: Option<Value>) -> Done {
    // The function and its arguments are called in a copy: the caller's places are kept as they are.
    let at = m.free;
    m.ensure(at + count + 2)?;
    m.stack.copy_within(args.at..args.at + 1 + count, at);
    m.free = at + 1 + count;
    let raised = m.protected(host, at, count);
    m.free = at;
    match raised? {
        None => {
            let end = m.top;
            m.touch(0, end - at)?;
            m.clear_results();
            m.give(Value::Bool(true));
            for i in at..end {
                m.give(m.stack[i]);
            }
        }
        Some(error) => {
            let error = match handler {
                // As Redis has it: of an error reply, its text is caught.
                None => match error {
                    Value::Table(table) => match m.heap.field(table, "err")? {
                        text @ Value::String(_) => text,
                        _ => error,
                    },
                    error => error,
                },
                Some(handler) => m.call_one(host, handler, &[error])?,
            };
            m.clear_results();
            m.give(Value::Bool(false));
            m.give(error);
        }
    }
    Ok(())
}

pub(super) fn rawequal(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let (a, b) = (m.any_arg(args, 0, "rawequal")?, m.any_arg(args, 1, "rawequal")?);
    let equal = m.heap.raw_equal(a, b)?;
    m.answer(Value::Bool(equal))
}

pub(super) fn rawget(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "rawget")?;
    let key = m.any_arg(args, 1, "rawget")?;
    let value = m.heap.raw_get(table, key)?;
    m.answer(value)
}

pub(super) fn rawset(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "rawset")?;
    let (key, value) = (m.any_arg(args, 1, "rawset")?, m.any_arg(args, 2, "rawset")?);
    m.check_writable(table)?;
    m.set_raw(table, key, value)?;
    m.answer(Value::Table(table))
}

pub(super) fn select(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    if let Value::String(s) = m.arg(args, 0)
        && m.heap.bytes(s).first() == Some(&b'#')
    {
        return m.answer(Value::Number(args.len() as f64 - 1.0));
    }
    let n = m.int_arg(args, 0, "select")?;
    let count = args.len() as i64;
    let from = if n < 0 { count.saturating_add(n) } else { n.min(count) };
    if from < 1 {
        return Err(m.bad_argument(1, "select", "index out of range"));
    }
    m.touch(0, (count - from) as usize)?;
    for i in from as usize..args.len() {
        m.give(m.arg(args, i));
    }
    Ok(())
}

pub(super) fn tonumber(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let base = m.int_or(args, 1, "tonumber", 10)?;
    let value = m.any_arg(args, 0, "tonumber")?;
    if base == 10 {
        let number = m.as_number(value)?;
        return m.answer(number.map_or(Value::Nil, Value::Number));
    }
    let text = m.text_arg(args, 0, "tonumber")?;
    if !(2..=36).contains(&base) {
        return Err(m.bad_argument(2, "tonumber", "base out of range"));
    }
    m.touch(m.heap.str_len(text), 0)?;
    let number = based(m.heap.bytes(text), base as u32);
    m.answer(number.map_or(Value::Nil, Value::Number))
}

/// A whole number in a base, as C's `strtoul` reads it.
fn based(text: &[u8], base: u32) -> Option<f64> {
    let text = text.trim_ascii();
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        rest => (false, rest),
    };
    let digits = match digits {
        [b'0', b'x' | b'X', rest @ ..] if base == 16 && !rest.is_empty() => rest,
        digits => digits,
    };
    if digits.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for digit in digits {
        let digit = (*digit as char).to_digit(base)?;
        value = value
            .checked_mul(u64::from(base))
            .and_then(|v| v.checked_add(u64::from(digit)))
            .unwrap_or(u64::MAX);
    }
    Some(if negative && value != u64::MAX { value.wrapping_neg() as f64 } else { value as f64 })
}

pub(super) fn tostring(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let value = m.any_arg(args, 0, "tostring")?;
    let text = m.shown(host, value)?;
    m.clear_results();
    m.answer(text)
}

pub(super) fn type_of(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let name = m.any_arg(args, 0, "type")?.type_name();
    m.give_text(name.as_bytes())
}

pub(super) fn unpack(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let table = m.table_arg(args, 0, "unpack")?;
    let len = m.heap.len(table);
    let from = m.int_or(args, 1, "unpack", 1)?;
    let to = m.int_or(args, 2, "unpack", len as i64)?;
    if from > to {
        return Ok(());
    }
    let count = i128::from(to) - i128::from(from) + 1;
    if count > MAX_VALUES as i128 {
        return Err("too many results to unpack".into());
    }
    m.touch(0, count as usize)?;
    for i in from..=to {
        let value = match usize::try_from(i) {
            Ok(at) => m.heap.raw_at(table, at),
            Err(_) => m.heap.raw_get(table, Value::Number(i as f64))?,
        };
        m.give(value);
    }
    Ok(())
}

pub(super) fn loadstring(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = m.text_arg(args, 0, "loadstring")?;
    let len = m.heap.str_len(text);
    m.touch(len, 0)?;
    m.heap.budget.fits(len)?;
    let source = m.heap.bytes(text).to_vec();
    let name = match m.arg(args, 1) {
        Value::String(name) => {
            m.heap.budget.fits(m.heap.str_len(name))?;
            m.heap.bytes(name).to_vec()
        }
        _ => source.clone(),
    };
    compile(m, &source, &name)
}

pub(super) fn load(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let reader = m.arg(args, 0);
    let name = match m.arg(args, 1) {
        Value::String(name) => {
            m.heap.budget.fits(m.heap.str_len(name))?;
            m.heap.bytes(name).to_vec()
        }
        _ => b"=(load)".to_vec(),
    };
    let mut source = Vec::new();
    loop {
        m.touch(0, 1)?;
        match m.call_one(host, reader, &[])? {
            Value::Nil => break,
            Value::String(part) if m.heap.str_len(part) == 0 => break,
            Value::String(part) => {
                let len = m.heap.str_len(part);
                m.touch(len, 0)?;
                m.heap.budget.fits(2 * (source.len() + len))?;
                source.extend_from_slice(m.heap.bytes(part));
            }
            _ => return Err("reader function must return a string".into()),
        }
    }
    m.clear_results();
    compile(m, &source, &name)
}

fn compile(m: &mut Machine, source: &[u8], name: &[u8]) -> Done {
    if source.first() == Some(&27) {
        m.give(Value::Nil);
        return m.give_text(b"binary chunks are not allowed");
    }
    let (room, left) = (m.heap.budget.room(), m.heap.budget.left());
    match compiler::compile(source, &compiler::chunk_name(name), room, left) {
        Ok(program) => {
            let function = m.load(&program)?;
            m.answer(function)
        }
        Err(CompileError::Syntax(text)) => {
            m.touch(source.len(), 0)?;
            m.give(Value::Nil);
            m.give_text(&text)
        }
        Err(CompileError::Dead(death)) => Err(m.heap.budget.die(death)),
    }
}
