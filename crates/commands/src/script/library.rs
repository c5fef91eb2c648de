//! The functions of a script's world that are written in Rust; `sandbox.lua` puts them in their places.

use std::sync::Arc;

use mlua::{Function, IntoLuaMulti, Lua, MultiValue, Result, Table, Value};

use super::pattern::{Capture, Matcher, PatternError, Span};
use super::vm::Shared;
use super::{cjson, convert, sha1_hex};

/// What a function answers: an error text for the script to raise, or a result.
pub(super) type Answer = std::result::Result<Value, String>;

/// The longest string that `string.rep` makes.
const MAX_REPEATED: f64 = (64 << 20) as f64;

/// The table of functions.
pub(super) fn functions(lua: &Lua, shared: &Arc<Shared>) -> Result<Table> {
    let rust = lua.create_table()?;
    let with = |f: fn(&Shared, &Lua, MultiValue) -> Result<MultiValue>| -> Result<Function> {
        let shared = shared.clone();
        lua.create_function(move |lua, args: MultiValue| f(&shared, lua, args))
    };
    rust.raw_set("fatal", {
        let shared = shared.clone();
        lua.create_function(move |_, error: Value| Ok(shared.is_fatal(&error)))?
    })?;
    rust.raw_set("charge", {
        let shared = shared.clone();
        lua.create_function(move |_, cost: f64| shared.charge(cost as i64))?
    })?;
    rust.raw_set("random", {
        let shared = shared.clone();
        lua.create_function(move |_, ()| Ok(shared.random()))?
    })?;
    rust.raw_set("randomseed", {
        let shared = shared.clone();
        lua.create_function(move |_, seed: f64| {
            shared.seed_random(seed);
            Ok(())
        })?
    })?;
    rust.raw_set("note_line", with(note_line)?)?;
    rust.raw_set("scan", with(scan)?)?;
    rust.raw_set("rep_check", with(rep_check)?)?;
    rust.raw_set("setresp", with(set_resp)?)?;
    rust.raw_set("sha1hex", with(|_, lua, args| answer(lua, sha1hex(lua, &args)?))?)?;
    rust.raw_set("is_name", lua.create_function(|_, name: mlua::LuaString| Ok(is_name(&name.as_bytes())))?)?;
    rust.raw_set("is_flag", lua.create_function(|_, flag: mlua::LuaString| Ok(is_flag(&flag.as_bytes())))?)?;
    rust.raw_set("null", Value::NULL)?;
    let json = lua.create_table()?;
    json.raw_set("encode", with(|shared, lua, args| answer(lua, cjson::encode(lua, shared, &args)?))?)?;
    json.raw_set("decode", with(|shared, lua, args| answer(lua, cjson::decode(lua, shared, &args)?))?)?;
    rust.raw_set("cjson", json)?;
    let bit = lua.create_table()?;
    for (name, operation) in BIT_OPERATIONS {
        let f = move |lua: &Lua, args: MultiValue| answer(lua, bits(lua, name, operation, &args)?);
        bit.raw_set(*name, lua.create_function(f)?)?;
    }
    rust.raw_set("bit", bit)?;
    Ok(rust)
}

fn answer(lua: &Lua, answer: Answer) -> Result<MultiValue> {
    match answer {
        Ok(value) => (Value::Nil, value).into_lua_multi(lua),
        Err(text) => text.into_lua_multi(lua),
    }
}

/// Whether a library or function may have this name.
pub(super) fn is_name(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'_')
}

/// Whether scripts and functions know this flag.
pub(super) fn is_flag(flag: &[u8]) -> bool {
    matches!(flag, b"no-writes" | b"allow-oom" | b"allow-stale" | b"no-cluster" | b"allow-cross-slot-keys")
}

/// Notes the line of the innermost function of the script that is being left by an error.
fn note_line(shared: &Shared, lua: &Lua, _: MultiValue) -> Result<MultiValue> {
    for level in 1..64 {
        let line = lua.inspect_stack(level, |frame| {
            let own = frame.source().short_src.is_some_and(|s| s.starts_with("user_"));
            own.then(|| frame.current_line()).flatten()
        });
        match line {
            None => break,
            Some(None) => {}
            Some(Some(line)) => {
                shared.note_line(line);
                break;
            }
        }
    }
    Ok(MultiValue::new())
}

fn sha1hex(lua: &Lua, args: &MultiValue) -> Result<Answer> {
    let [value] = args.as_slices().0 else { return Ok(Err("wrong number of arguments".into())) };
    let text = text_of(value).unwrap_or_default();
    Ok(Ok(Value::String(lua.create_string(sha1_hex(&text))?)))
}

fn set_resp(shared: &Shared, lua: &Lua, args: MultiValue) -> Result<MultiValue> {
    if args.len() != 1 {
        return answer(lua, Err("redis.setresp() requires one argument.".into()));
    }
    match args.front().and_then(convert::number) {
        Some(2.0) => shared.set_resp3(false),
        Some(3.0) => shared.set_resp3(true),
        _ => return answer(lua, Err("RESP version must be 2 or 3.".into())),
    }
    Ok(MultiValue::new())
}

/// The text of a string or number.
pub(super) fn text_of(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        other => convert::number_text(other).map(String::into_bytes),
    }
}

fn type_name(value: Option<&Value>) -> &'static str {
    match value {
        None => "no value",
        Some(Value::Integer(_) | Value::Number(_)) => "number",
        Some(Value::LightUserData(_)) => "userdata",
        Some(value) => value.type_name(),
    }
}

fn rep_check(shared: &Shared, lua: &Lua, args: MultiValue) -> Result<MultiValue> {
    let length = match args.front() {
        Some(Value::String(text)) => text.as_bytes().len(),
        Some(other) if convert::number(other).is_some() => 24,
        other => {
            let got = type_name(other);
            return format!("bad argument #1 to 'rep' (string expected, got {got})").into_lua_multi(lua);
        }
    };
    let Some(times) = args.get(1).and_then(convert::number) else {
        let got = type_name(args.get(1));
        return format!("bad argument #2 to 'rep' (number expected, got {got})").into_lua_multi(lua);
    };
    let total = length as f64 * times.max(0.0);
    if total > MAX_REPEATED {
        return "resulting string too large".into_lua_multi(lua);
    }
    shared.charge(total as i64 / 8)?;
    Ok(MultiValue::new())
}

/// `scan(kind, s, p, init, plain)`: where the first match from `init` on begins and ends, then its captures;
/// nil if there is none; nil and a text if an argument is wrong.
fn scan(shared: &Shared, lua: &Lua, args: MultiValue) -> Result<MultiValue> {
    let kind = match args.front() {
        Some(Value::String(kind)) => kind.to_string_lossy(),
        _ => String::new(),
    };
    let wrong = |text: String| (Value::Nil, text).into_lua_multi(lua);
    let mut texts = [None, None];
    for (i, text) in texts.iter_mut().enumerate() {
        let value = args.get(1 + i);
        match value {
            Some(Value::String(s)) => *text = Some(s.clone()),
            Some(other) if convert::number(other).is_some() => {
                *text = Some(lua.create_string(text_of(other).unwrap_or_default())?);
            }
            other => {
                let got = type_name(other);
                return wrong(format!("bad argument #{} to '{kind}' (string expected, got {got})", i + 1));
            }
        }
    }
    let [Some(subject), Some(pattern)] = texts else { return wrong("bad argument".into()) };
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let init = match args.get(3) {
        None | Some(Value::Nil) => 1.0,
        Some(value) => match convert::number(value) {
            Some(init) => init,
            None => {
                let got = type_name(Some(value));
                return wrong(format!("bad argument #3 to '{kind}' (number expected, got {got})"));
            }
        },
    };
    let from = match init.trunc() {
        i if i < 0.0 => (subject.len() as f64 + i).max(0.0) as usize,
        i => ((i - 1.0).max(0.0) as usize).min(subject.len()),
    };
    let plain = args.get(4).is_some_and(|v| !matches!(v, Value::Nil | Value::Boolean(false)));
    const SPECIAL: &[u8] = b"^$*+?.([%-";
    if kind == "find" && (plain || !pattern.iter().any(|b| SPECIAL.contains(b))) {
        shared.charge((subject.len() - from) as i64 / 8)?;
        return match memchr::memmem::find(&subject[from..], &pattern) {
            Some(at) => (from + at + 1, from + at + pattern.len()).into_lua_multi(lua),
            None => Ok(MultiValue::new()),
        };
    }
    let (anchored, items) = match (&*kind, pattern.split_first()) {
        ("gmatch", _) | (_, None) => (false, &pattern[..]),
        (_, Some((b'^', rest))) => (true, rest),
        _ => (false, &pattern[..]),
    };
    let steps = shared.left() as u64;
    let mut matcher = Matcher::new(&subject, items, steps);
    let found = matcher.find(from, anchored);
    shared.charge((steps - matcher.steps) as i64)?;
    match found {
        Ok(None) => Ok(MultiValue::new()),
        Ok(Some((start, end))) => {
            let mut values = vec![Value::Number((start + 1) as f64), Value::Number(end as f64)];
            for &Capture { start, span } in matcher.captures() {
                values.push(match span {
                    Span::Bytes(len) => Value::String(lua.create_string(&subject[start..start + len])?),
                    Span::Position | Span::Open => Value::Number((start + 1) as f64),
                });
            }
            Ok(values.into_iter().collect())
        }
        Err(PatternError::Malformed(text)) => wrong(text.into()),
        Err(PatternError::Exhausted) => shared.charge(i64::MAX).map(|()| MultiValue::new()),
    }
}

type Operation = fn(i32, i32) -> i32;

/// The operations of `bit`; the ones of one operand take it as both.
const BIT_OPERATIONS: &[(&str, Operation)] = &[
    ("tobit", |a, _| a),
    ("bnot", |a, _| !a),
    ("bswap", |a, _| a.swap_bytes()),
    ("band", |a, b| a & b),
    ("bor", |a, b| a | b),
    ("bxor", |a, b| a ^ b),
    ("lshift", |a, n| a << (n & 31)),
    ("rshift", |a, n| ((a as u32) >> (n & 31)) as i32),
    ("arshift", |a, n| a >> (n & 31)),
    ("rol", |a, n| a.rotate_left(n as u32 & 31)),
    ("ror", |a, n| a.rotate_right(n as u32 & 31)),
    ("tohex", |a, _| a),
];

/// A number as the 32 bits that it stands for modulo 2^32.
fn to_bits(value: &Value) -> Option<i32> {
    let x = match value {
        Value::String(text) => text.to_str().ok()?.trim().parse::<f64>().ok()?,
        other => convert::number(other)?,
    };
    let wrapped = x.round_ties_even().rem_euclid(4_294_967_296.0);
    Some(wrapped as u32 as i32)
}

fn bits(lua: &Lua, name: &str, operation: &Operation, args: &MultiValue) -> Result<Answer> {
    let bad = |i: usize| {
        let got = type_name(args.get(i));
        Ok(Err(format!("bad argument #{} to '{name}' (number expected, got {got})", i + 1)))
    };
    let Some(first) = args.front().and_then(to_bits) else { return bad(0) };
    let result = match name {
        "tobit" | "bnot" | "bswap" => operation(first, first),
        "tohex" => {
            let digits = match args.get(1) {
                None => 8,
                Some(n) => match to_bits(n) {
                    Some(n) => n,
                    None => return bad(1),
                },
            };
            let text = format!("{:08x}", first as u32);
            let text = &text[8 - (digits.unsigned_abs() as usize).min(8)..];
            let text = if digits < 0 { text.to_uppercase() } else { text.to_string() };
            return Ok(Ok(Value::String(lua.create_string(text)?)));
        }
        "band" | "bor" | "bxor" => {
            let mut result = first;
            for (i, value) in args.iter().enumerate().skip(1) {
                let Some(next) = to_bits(value) else { return bad(i) };
                result = operation(result, next);
            }
            result
        }
        _ => {
            let Some(by) = args.get(1).and_then(to_bits) else { return bad(1) };
            operation(first, by)
        }
    };
    Ok(Ok(Value::Number(f64::from(result))))
}
