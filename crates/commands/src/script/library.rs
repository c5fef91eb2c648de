//! The functions of a script's world that are written in Rust; `sandbox.lua` puts them in their places.

use std::sync::Arc;

use mlua::{Function, IntoLuaMulti, Lua, MultiValue, Result, Table, Value};

use super::pattern::{Capture, Matcher, PatternError, Span};
use super::vm::{Death, Shared};
use super::{cjson, convert, sha1_hex};

/// What a function answers: an error text for the script to raise, or a result.
pub(super) type Answer = std::result::Result<Value, String>;

/// An error that a script may catch.
#[derive(Debug)]
pub(super) struct Raised {
    /// What it says.
    pub text: Vec<u8>,
    /// Whether it is an error reply, which begins with its code.
    pub is_reply: bool,
}

impl std::fmt::Display for Raised {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for Raised {}

/// An error with the line of the script that called the running function.
fn raise(lua: &Lua, text: &str) -> mlua::Error {
    let place = lua.inspect_stack(1, |frame| match (frame.source().short_src, frame.current_line()) {
        (Some(source), Some(line)) => format!("{source}:{line}: "),
        _ => String::new(),
    });
    let text = [place.unwrap_or_default().as_bytes(), text.as_bytes()].concat();
    mlua::Error::external(Raised { text, is_reply: false })
}

/// The longest string that `string.rep` makes.
const MAX_REPEATED: f64 = (64 << 20) as f64;

/// The table of functions.
pub(super) fn functions(lua: &Lua, shared: &Arc<Shared>) -> Result<Table> {
    let rust = lua.create_table()?;
    let with = |f: fn(&Shared, &Lua, MultiValue) -> Result<MultiValue>| -> Result<Function> {
        let shared = shared.clone();
        lua.create_function(move |lua, args: MultiValue| f(&shared, lua, args))
    };
    rust.raw_set("caught", with(caught)?)?;
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
    rust.raw_set("find", with(|shared, lua, args| search(shared, lua, &args, Search::Find))?)?;
    rust.raw_set("match", with(|shared, lua, args| search(shared, lua, &args, Search::Match))?)?;
    rust.raw_set("scan", with(|shared, lua, args| search(shared, lua, &args, Search::Gsub))?)?;
    rust.raw_set("search", with(|shared, lua, args| search(shared, lua, &args, Search::Gmatch))?)?;
    rust.raw_set("rep", with(|shared, lua, args| answer(lua, rep(shared, lua, &args)?))?)?;
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
        Ok(value) => value.into_lua_multi(lua),
        Err(text) => Err(raise(lua, &text)),
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

/// An error as a script sees it that catches it.
fn caught(shared: &Shared, lua: &Lua, args: MultiValue) -> Result<MultiValue> {
    let error = args.into_iter().next().unwrap_or(Value::Nil);
    if let Value::Error(inner) = &error
        && let Some(raised) = inner.downcast_ref::<Raised>()
        && shared.death() == Death::None
    {
        return lua.create_string(&raised.text)?.into_lua_multi(lua);
    }
    if shared.is_fatal(&error) { Err(shared.stopped()) } else { error.into_lua_multi(lua) }
}

fn rep(shared: &Shared, lua: &Lua, args: &MultiValue) -> Result<Answer> {
    let Some(text) = args.front().and_then(text_of) else {
        let got = type_name(args.front());
        return Ok(Err(format!("bad argument #1 to 'rep' (string expected, got {got})")));
    };
    let Some(times) = args.get(1).and_then(convert::number) else {
        let got = type_name(args.get(1));
        return Ok(Err(format!("bad argument #2 to 'rep' (number expected, got {got})")));
    };
    let total = text.len() as f64 * times.max(0.0).trunc();
    if total > MAX_REPEATED {
        return Ok(Err("resulting string too large".into()));
    }
    shared.charge(total as i64 / 64)?;
    let times = if text.is_empty() { 0 } else { times.max(0.0) as usize };
    Ok(Ok(Value::String(lua.create_string(text.repeat(times))?)))
}

/// Which function searches.
#[derive(Clone, Copy, PartialEq)]
enum Search {
    Find,
    Match,
    Gsub,
    Gmatch,
}

impl Search {
    const fn name(self) -> &'static str {
        match self {
            Search::Find => "find",
            Search::Match => "match",
            Search::Gsub => "gsub",
            Search::Gmatch => "gmatch",
        }
    }
}

/// `(s, p, init, plain)`: where the first match from `init` on begins and ends, then its captures; nil if
/// there is none. For `match`, the captures alone, or what matched if there are none.
fn search(shared: &Shared, lua: &Lua, args: &MultiValue, search: Search) -> Result<MultiValue> {
    let name = search.name();
    let mut texts = [None, None];
    for (i, text) in texts.iter_mut().enumerate() {
        match args.get(i) {
            Some(Value::String(s)) => *text = Some(s.clone()),
            Some(other) if convert::number(other).is_some() => {
                *text = Some(lua.create_string(text_of(other).unwrap_or_default())?);
            }
            other => {
                let got = type_name(other);
                let text = format!("bad argument #{} to '{name}' (string expected, got {got})", i + 1);
                return Err(raise(lua, &text));
            }
        }
    }
    let [Some(subject), Some(pattern)] = texts else { return Ok(MultiValue::new()) };
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let init = match args.get(2) {
        None | Some(Value::Nil) => 1.0,
        Some(value) => convert::number(value).ok_or_else(|| {
            let got = type_name(Some(value));
            raise(lua, &format!("bad argument #3 to '{name}' (number expected, got {got})"))
        })?,
    };
    let from = match init.trunc() {
        i if i < 0.0 => (subject.len() as f64 + i).max(0.0) as usize,
        i => ((i - 1.0).max(0.0) as usize).min(subject.len()),
    };
    let plain = args.get(3).is_some_and(|v| !matches!(v, Value::Nil | Value::Boolean(false)));
    const SPECIAL: &[u8] = b"^$*+?.([%-";
    if search == Search::Find && (plain || !pattern.iter().any(|b| SPECIAL.contains(b))) {
        shared.charge((subject.len() - from) as i64 / 8)?;
        return match memchr::memmem::find(&subject[from..], &pattern) {
            Some(at) => (from + at + 1, from + at + pattern.len()).into_lua_multi(lua),
            None => Value::Nil.into_lua_multi(lua),
        };
    }
    let (anchored, items) = match pattern.split_first() {
        Some((b'^', rest)) if search != Search::Gmatch => (true, rest),
        _ => (false, &pattern[..]),
    };
    let steps = shared.left() as u64;
    let mut matcher = Matcher::new(&subject, items, steps);
    let found = matcher.find(from, anchored);
    shared.charge((steps - matcher.steps) as i64)?;
    let (start, end) = match found {
        Ok(Some(found)) => found,
        Ok(None) => return Value::Nil.into_lua_multi(lua),
        Err(PatternError::Malformed(text)) => return Err(raise(lua, text)),
        Err(PatternError::Exhausted) => return shared.charge(i64::MAX).map(|()| MultiValue::new()),
    };
    let mut values = Vec::new();
    if search != Search::Match {
        values.extend([Value::Number((start + 1) as f64), Value::Number(end as f64)]);
    } else if matcher.captures().is_empty() {
        values.push(Value::String(lua.create_string(&subject[start..end])?));
    }
    for &Capture { start, span } in matcher.captures() {
        values.push(match span {
            Span::Bytes(len) => Value::String(lua.create_string(&subject[start..start + len])?),
            Span::Position | Span::Open => Value::Number((start + 1) as f64),
        });
    }
    Ok(values.into_iter().collect())
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
