//! `string`, but for `format`.

use crate::budget::Result;
use crate::machine::{Args, Host, MAX_VALUES, Machine};
use crate::pattern::{Capture, Matcher, PatternError, Span};
use crate::value::{Str, Value};

type Done = Result<()>;

/// The longest string that `string.rep` makes, bytes.
const MAX_REPEATED: f64 = (64 << 20) as f64;

/// A place in a string from 1 on, of one that may be counted from the end.
fn from_end(at: i64, len: usize) -> i64 {
    if at >= 0 { at } else { (len as i64 + 1).saturating_add(at).max(0) }
}

pub(super) fn byte(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = m.text_arg(args, 0, "byte")?;
    let len = m.heap.str_len(text);
    let from = m.int_or(args, 1, "byte", 1)?;
    let from = from_end(from, len);
    let to = m.int_or(args, 2, "byte", from)?;
    let (from, to) = (from.max(1) as usize, from_end(to, len).min(len as i64).max(0) as usize);
    if from > to {
        return Ok(());
    }
    let count = to - from + 1;
    if count > MAX_VALUES {
        return Err("string slice too long".into());
    }
    m.touch(0, count)?;
    for i in from - 1..to {
        let byte = m.heap.bytes(text).get(i).copied().unwrap_or(0);
        m.give(Value::Number(f64::from(byte)));
    }
    Ok(())
}

pub(super) fn char(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    m.touch(0, args.len())?;
    let mut out = Vec::with_capacity(args.len());
    for i in 0..args.len() {
        match u8::try_from(m.int_arg(args, i, "char")?) {
            Ok(byte) => out.push(byte),
            Err(_) => return Err(m.bad_argument(i + 1, "char", "invalid value")),
        }
    }
    m.give_text(&out)
}

pub(super) fn len(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = m.text_arg(args, 0, "len")?;
    m.answer(Value::Number(m.heap.str_len(text) as f64))
}

fn mapped(m: &mut Machine, args: Args, name: &str, f: fn(&[u8]) -> Vec<u8>) -> Done {
    let text = m.text_arg(args, 0, name)?;
    let len = m.heap.str_len(text);
    m.touch(len, 0)?;
    m.heap.budget.fits(2 * len)?;
    let out = f(m.heap.bytes(text));
    m.give_text(&out)
}

functions! {
    lower = mapped(<[u8]>::to_ascii_lowercase);
    upper = mapped(<[u8]>::to_ascii_uppercase);
    reverse = mapped(|text| text.iter().rev().copied().collect());
}

pub(super) fn rep(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = m.text_arg(args, 0, "rep")?;
    let times = m.number_arg(args, 1, "rep")?;
    let len = m.heap.str_len(text);
    let times = if len == 0 || times.is_nan() || times < 1.0 { 0.0 } else { times.trunc() };
    if len as f64 * times > MAX_REPEATED {
        return Err("resulting string too large".into());
    }
    let times = times as usize;
    m.touch(len * times, 0)?;
    let made = m.heap.repeat(text, times)?;
    m.answer(Value::String(made))
}

pub(super) fn sub(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let text = m.text_arg(args, 0, "sub")?;
    let len = m.heap.str_len(text);
    let from = m.int_arg(args, 1, "sub")?;
    let to = m.int_or(args, 2, "sub", -1)?;
    let (from, to) = (from_end(from, len).max(1), from_end(to, len).min(len as i64));
    if from > to {
        return m.give_text(b"");
    }
    let (from, to) = (from as usize - 1, to as usize);
    if to - from == len {
        return m.answer(Value::String(text));
    }
    m.touch(to - from, 0)?;
    let part = m.heap.part(text, from, to)?;
    m.answer(Value::String(part))
}

/// The find of a search: where it begins and ends, and its captures.
struct Found {
    start: usize,
    end: usize,
    captures: Vec<Capture>,
}

/// Searches for a pattern from a place on. It pays for the steps.
fn search(
    m: &mut Machine,
    subject: Str,
    pattern: Str,
    from: usize,
    may_anchor: bool,
) -> Result<Option<Found>> {
    let left = m.heap.budget.left();
    let (subject, pattern) = (m.heap.bytes(subject), m.heap.bytes(pattern));
    let (anchored, items) = match pattern.split_first() {
        Some((b'^', rest)) if may_anchor => (true, rest),
        _ => (false, pattern),
    };
    let mut matcher = Matcher::new(subject, items, left);
    let found = matcher.find(from, anchored);
    let steps = left - matcher.steps;
    let found = match found {
        Ok(Some((start, end))) => Ok(Some(Found { start, end, captures: matcher.captures().to_vec() })),
        Ok(None) => Ok(None),
        Err(error) => Err(error),
    };
    m.heap.budget.work(steps)?;
    match found {
        Ok(found) => Ok(found),
        Err(PatternError::Malformed(text)) => Err(text.into()),
        Err(PatternError::Exhausted) => {
            m.heap.budget.work(u64::MAX / 2)?;
            Ok(None)
        }
    }
}

fn capture_value(m: &mut Machine, subject: Str, capture: Capture) -> Result<Value> {
    match capture.span {
        Span::Bytes(len) => {
            m.touch(len, 1)?;
            m.heap.part(subject, capture.start, capture.start + len).map(Value::String)
        }
        Span::Position | Span::Open => Ok(Value::Number((capture.start + 1) as f64)),
    }
}

/// Gives the captures, or the whole match if there are none.
fn give_captures(m: &mut Machine, subject: Str, found: &Found, whole: bool) -> Done {
    if found.captures.is_empty() && whole {
        m.touch(found.end - found.start, 1)?;
        let text = m.heap.part(subject, found.start, found.end)?;
        m.give(Value::String(text));
    }
    for capture in &found.captures {
        let value = capture_value(m, subject, *capture)?;
        m.give(value);
    }
    Ok(())
}

/// The place where a search begins, from 0 on, by its third argument.
fn start_of(m: &mut Machine, args: Args, name: &str, len: usize) -> Result<usize> {
    let from = m.int_or(args, 2, name, 1)?;
    Ok((from_end(from, len) as usize).saturating_sub(1).min(len))
}

pub(super) fn find(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let (subject, pattern) = (m.text_arg(args, 0, "find")?, m.text_arg(args, 1, "find")?);
    let from = start_of(m, args, "find", m.heap.str_len(subject))?;
    const SPECIAL: &[u8] = b"^$*+?.([%-";
    m.touch(m.heap.str_len(pattern), 0)?;
    let plain = m.arg(args, 3).is_true() || !m.heap.bytes(pattern).iter().any(|b| SPECIAL.contains(b));
    if plain {
        m.touch(m.heap.str_len(subject) - from, 0)?;
        let (text, needle) = (&m.heap.bytes(subject)[from..], m.heap.bytes(pattern));
        match memchr::memmem::find(text, needle) {
            Some(at) => {
                let end = from + at + needle.len();
                m.give(Value::Number((from + at + 1) as f64));
                m.give(Value::Number(end as f64));
            }
            None => m.give(Value::Nil),
        }
        return Ok(());
    }
    match search(m, subject, pattern, from, true)? {
        Some(found) => {
            m.give(Value::Number((found.start + 1) as f64));
            m.give(Value::Number(found.end as f64));
            give_captures(m, subject, &found, false)
        }
        None => m.answer(Value::Nil),
    }
}

pub(super) fn matches(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let (subject, pattern) = (m.text_arg(args, 0, "match")?, m.text_arg(args, 1, "match")?);
    let from = start_of(m, args, "match", m.heap.str_len(subject))?;
    match search(m, subject, pattern, from, true)? {
        Some(found) => give_captures(m, subject, &found, true),
        None => m.answer(Value::Nil),
    }
}

/// The state of `gmatch`: subject, pattern, and where it goes on.
pub(super) fn gmatch(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let (subject, pattern) = (m.text_arg(args, 0, "gmatch")?, m.text_arg(args, 1, "gmatch")?);
    let state = m.heap.table(3, 0)?;
    m.heap.set_list(state, 1, &[Value::String(subject), Value::String(pattern), Value::Number(0.0)])?;
    let step = m.bind("gmatch_step", state)?;
    m.answer(step)
}

pub(super) fn gmatch_step(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    let Value::Table(state) = m.arg(args, 0) else { return Ok(()) };
    let at = |i: usize| m.heap.raw_at(state, i);
    let (Value::String(subject), Value::String(pattern), Value::Number(from)) = (at(1), at(2), at(3)) else {
        return Ok(());
    };
    let from = from as usize;
    let found = match from <= m.heap.str_len(subject) {
        true => search(m, subject, pattern, from, false)?,
        false => None,
    };
    match found {
        Some(found) => {
            let next = if found.end == found.start { found.end + 1 } else { found.end };
            m.heap.raw_set(state, Value::Number(3.0), Value::Number(next as f64))?;
            give_captures(m, subject, &found, true)
        }
        None => {
            let end = m.heap.str_len(subject) + 1;
            m.heap.raw_set(state, Value::Number(3.0), Value::Number(end as f64))?;
            m.answer(Value::Nil)
        }
    }
}

pub(super) fn gsub(m: &mut Machine, host: &mut dyn Host, args: Args) -> Done {
    let (subject, pattern) = (m.text_arg(args, 0, "gsub")?, m.text_arg(args, 1, "gsub")?);
    let by = match m.arg(args, 2) {
        Value::Number(_) => Value::String(m.text_arg(args, 2, "gsub")?),
        by @ (Value::String(_) | Value::Table(_) | Value::Closure(_) | Value::Native(_)) => by,
        _ => return Err(m.bad_argument(3, "gsub", "string/function/table expected")),
    };
    let len = m.heap.str_len(subject);
    let limit = m.int_or(args, 3, "gsub", len as i64 + 1)?;
    let anchored = m.heap.bytes(pattern).first() == Some(&b'^');
    let mut out = Vec::new();
    let (mut at, mut done) = (0, 0);
    while done < limit {
        let Some(found) = search(m, subject, pattern, at, true)? else { break };
        done += 1;
        append(m, &mut out, subject, at, found.start)?;
        replace(m, host, &mut out, subject, by, &found)?;
        at = found.end;
        if found.end == found.start {
            if at >= len {
                break;
            }
            append(m, &mut out, subject, at, at + 1)?;
            at += 1;
        }
        if anchored {
            break;
        }
    }
    if at < len {
        append(m, &mut out, subject, at, len)?;
    }
    m.clear_results();
    m.give_text(&out)?;
    m.answer(Value::Number(done as f64))
}

/// Appends a part of a string to a buffer that becomes a string.
fn append(m: &mut Machine, out: &mut Vec<u8>, text: Str, from: usize, to: usize) -> Done {
    m.touch(to - from, 0)?;
    m.heap.budget.fits(2 * (out.len() + to - from))?;
    out.extend_from_slice(&m.heap.bytes(text)[from..to]);
    Ok(())
}

fn replace(
    m: &mut Machine,
    host: &mut dyn Host,
    out: &mut Vec<u8>,
    subject: Str,
    by: Value,
    found: &Found,
) -> Done {
    m.touch(0, 1)?;
    let value = match by {
        Value::String(text) => return replace_text(m, out, subject, text, found),
        Value::Table(_) => {
            let key = first_capture(m, subject, found)?;
            m.index(host, by, key)?
        }
        function => {
            m.clear_results();
            give_captures(m, subject, found, true)?;
            let values = m.take_results();
            let answer = m.call_one(host, function, &values)?;
            m.put_results(values);
            answer
        }
    };
    match value {
        Value::Nil | Value::Bool(false) => append(m, out, subject, found.start, found.end),
        value => match m.heap.as_str(value)? {
            Some(text) => append(m, out, text, 0, m.heap.str_len(text)),
            None => {
                let kind = value.type_name();
                Err(format!("invalid replacement value (a {kind})").into())
            }
        },
    }
}

fn first_capture(m: &mut Machine, subject: Str, found: &Found) -> Result<Value> {
    match found.captures.first() {
        Some(capture) => capture_value(m, subject, *capture),
        None => {
            m.touch(found.end - found.start, 0)?;
            m.heap.part(subject, found.start, found.end).map(Value::String)
        }
    }
}

fn replace_text(m: &mut Machine, out: &mut Vec<u8>, subject: Str, text: Str, found: &Found) -> Done {
    let len = m.heap.str_len(text);
    m.touch(len, 0)?;
    m.heap.budget.fits(2 * (out.len() + len))?;
    let mut at = 0;
    while at < len {
        let rest = &m.heap.bytes(text)[at..];
        let plain = memchr::memchr(b'%', rest).unwrap_or(rest.len());
        out.extend_from_slice(&rest[..plain]);
        at += plain;
        if at >= len {
            break;
        }
        let mark = m.heap.bytes(text).get(at + 1).copied();
        at += 2;
        match mark {
            Some(digit @ b'0'..=b'9') => {
                let number = usize::from(digit - b'0');
                let (from, to) = match (number, found.captures.get(number.wrapping_sub(1))) {
                    (0, _) => (found.start, found.end),
                    (1, None) if found.captures.is_empty() => (found.start, found.end),
                    (_, Some(Capture { start, span: Span::Bytes(len) })) => (*start, start + len),
                    (_, Some(capture)) => {
                        out.extend_from_slice((capture.start + 1).to_string().as_bytes());
                        continue;
                    }
                    (_, None) => return Err("invalid capture index".into()),
                };
                append(m, out, subject, from, to)?;
            }
            Some(other) => out.push(other),
            None => out.push(0),
        }
    }
    Ok(())
}
