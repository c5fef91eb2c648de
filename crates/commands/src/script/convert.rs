//! Between Lua's values and the database's, by the table of conversions that Redis documents.

use mlua::{Lua, LuaString, Table, Value};
use ordain_model::{Datum, Writer};

use super::number::{format_g, truncate};
use super::vm::Shared;

/// How deep a reply may nest.
const MAX_DEPTH: u32 = 128;

/// A number as Lua's `tostring` shows it; `None` for anything else.
pub(super) fn number_text(value: &Value) -> Option<String> {
    number(value).map(|x| format_g(x, 14))
}

/// A number as a command's argument; `None` for anything else.
pub(super) fn argument_text(value: &Value) -> Option<String> {
    match value {
        Value::Integer(i) if i.unsigned_abs() < 100_000_000_000_000_000 => Some(i.to_string()),
        other => number(other).map(|x| format_g(x, 17)),
    }
}

/// The number that a value is.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(i) => Some(*i as f64),
        Value::Number(x) => Some(*x),
        _ => None,
    }
}

/// A command's reply as Lua sees it.
pub(super) fn from_datum(lua: &Lua, reply: &[u8], resp3: bool) -> mlua::Result<Value> {
    Ok(split(lua, reply, resp3)?.0)
}

fn split<'a>(lua: &Lua, reply: &'a [u8], resp3: bool) -> mlua::Result<(Value, &'a [u8])> {
    let Some((datum, mut rest)) = Datum::split(reply) else { return Ok((Value::Nil, &[])) };
    let text = |bytes: &[u8]| lua.create_string(bytes).map(Value::String);
    let wrapped = |name: &str, value: Value| -> mlua::Result<Value> {
        let table = lua.create_table_with_capacity(0, 1)?;
        table.raw_set(name, value)?;
        Ok(Value::Table(table))
    };
    let mut sequence = |n: usize| -> mlua::Result<Value> {
        let table = lua.create_table_with_capacity(n, 0)?;
        for i in 1..=n {
            let (item, tail) = split(lua, rest, resp3)?;
            table.raw_set(i, item)?;
            rest = tail;
        }
        Ok(Value::Table(table))
    };
    let value = match datum {
        Datum::Nil | Datum::NilArray | Datum::Poison if resp3 => Value::Nil,
        Datum::Nil | Datum::NilArray | Datum::Poison => Value::Boolean(false),
        Datum::Int(i) => Value::Number(i as f64),
        Datum::Bulk(bytes) => text(bytes)?,
        Datum::Status(bytes) => wrapped("ok", text(bytes)?)?,
        Datum::Error(bytes) => wrapped("err", text(bytes)?)?,
        Datum::Array(n) => sequence(n as usize)?,
        Datum::Map(n) if resp3 => {
            let map = lua.create_table_with_capacity(0, n as usize)?;
            for _ in 0..n {
                let (key, tail) = split(lua, rest, resp3)?;
                let (value, tail) = split(lua, tail, resp3)?;
                map.raw_set(key, value)?;
                rest = tail;
            }
            wrapped("map", Value::Table(map))?
        }
        Datum::Map(n) => sequence(2 * n as usize)?,
        Datum::Set(n) if resp3 => {
            let set = lua.create_table_with_capacity(0, n as usize)?;
            for _ in 0..n {
                let (item, tail) = split(lua, rest, resp3)?;
                set.raw_set(item, true)?;
                rest = tail;
            }
            wrapped("set", Value::Table(set))?
        }
        Datum::Set(n) => sequence(n as usize)?,
        Datum::Bool(b) if resp3 => Value::Boolean(b),
        Datum::Bool(b) => Value::Number(f64::from(u8::from(b))),
        Datum::Double(x) if resp3 => wrapped("double", Value::Number(x))?,
        Datum::Double(x) => text(format_g(x, 17).as_bytes())?,
        Datum::Verbatim(format, string) if resp3 => {
            let table = lua.create_table_with_capacity(0, 2)?;
            table.raw_set("format", text(&format)?)?;
            table.raw_set("string", text(string)?)?;
            wrapped("verbatim_string", Value::Table(table))?
        }
        Datum::BigNumber(digits) if resp3 => wrapped("big_number", text(digits)?)?,
        Datum::Verbatim(_, string) | Datum::BigNumber(string) => text(string)?,
    };
    Ok((value, rest))
}

/// Appends what a script returned.
///
/// # Errors
/// The budget is used up: the value is far larger than the memory it takes, as one of shared tables can be.
pub(super) fn to_datum(value: &Value, shared: &Shared, out: &mut Vec<u8>) -> mlua::Result<()> {
    append(value, shared, 0, out)
}

fn append(value: &Value, shared: &Shared, depth: u32, out: &mut Vec<u8>) -> mlua::Result<()> {
    shared.charge(16)?;
    let mut w = Writer(out);
    match value {
        Value::String(text) => {
            shared.charge(text.as_bytes().len() as i64 / 16)?;
            w.bulk(&text.as_bytes());
        }
        Value::Integer(i) => w.int(*i),
        Value::Number(x) => w.int(truncate(*x)),
        Value::Boolean(b) if shared.is_resp3() => w.bool(*b),
        Value::Boolean(true) => w.int(1),
        Value::Table(_) if depth >= MAX_DEPTH => w.error("ERR reached lua stack limit"),
        Value::Table(table) => append_table(table, shared, depth, out)?,
        _ => w.nil(),
    }
    Ok(())
}

fn append_table(table: &Table, shared: &Shared, depth: u32, out: &mut Vec<u8>) -> mlua::Result<()> {
    let text = |name: &str| -> mlua::Result<Option<LuaString>> {
        Ok(match table.raw_get::<Value>(name)? {
            Value::String(text) => Some(text),
            _ => None,
        })
    };
    let line = |text: &LuaString| -> Vec<u8> {
        text.as_bytes().iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }).collect()
    };
    let mut w = Writer(out);
    if let Some(error) = text("err")? {
        w.error(line(&error));
        return Ok(());
    }
    if let Some(status) = text("ok")? {
        w.status(&line(&status));
        return Ok(());
    }
    if let Some(x) = number(&table.raw_get::<Value>("double")?) {
        w.double(x);
        return Ok(());
    }
    if let Value::Table(map) = table.raw_get::<Value>("map")? {
        let keys = sorted_keys(&map)?;
        w.map(keys.len());
        for key in keys {
            key.append(out);
            append(&key.value_in(&map)?, shared, depth + 1, out)?;
        }
        return Ok(());
    }
    if let Value::Table(set) = table.raw_get::<Value>("set")? {
        let keys = sorted_keys(&set)?;
        w.set(keys.len());
        keys.iter().for_each(|key| key.append(out));
        return Ok(());
    }
    let at = out.len();
    Writer(out).array(0);
    let mut n = 0u32;
    loop {
        let item = table.raw_get::<Value>(n + 1)?;
        if item.is_nil() {
            break;
        }
        append(&item, shared, depth + 1, out)?;
        n += 1;
    }
    let mut head = Vec::new();
    Writer(&mut head).array(n as usize);
    out[at..at + head.len()].copy_from_slice(&head);
    Ok(())
}

/// A key of a table, in the order in which tables are walked: numbers, then strings.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Key {
    Number(f64),
    Text(Vec<u8>),
    /// Neither, by the name of its type.
    Other(&'static str),
}

impl Key {
    fn append(&self, out: &mut Vec<u8>) {
        match self {
            Key::Number(x) => Writer(out).int(truncate(*x)),
            Key::Text(text) => Writer(out).bulk(text),
            Key::Other(_) => Writer(out).nil(),
        }
    }

    /// What the table holds under this key.
    pub(super) fn value_in(&self, table: &Table) -> mlua::Result<Value> {
        match self {
            Key::Number(x) => table.raw_get(*x),
            Key::Text(text) => table.raw_get(table_text(text)),
            Key::Other(_) => Ok(Value::Nil),
        }
    }
}

fn table_text(text: &[u8]) -> impl mlua::IntoLua + '_ {
    struct Text<'a>(&'a [u8]);
    impl mlua::IntoLua for Text<'_> {
        fn into_lua(self, lua: &Lua) -> mlua::Result<Value> {
            lua.create_string(self.0).map(Value::String)
        }
    }
    Text(text)
}

/// The keys of a table, in order.
pub(super) fn sorted_keys(table: &Table) -> mlua::Result<Vec<Key>> {
    let mut keys = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (key, _) = pair?;
        keys.push(match &key {
            Value::String(text) => Key::Text(text.as_bytes().to_vec()),
            other => number(other).map_or(Key::Other(other.type_name()), Key::Number),
        });
    }
    keys.sort_by(|a, b| match (a, b) {
        (Key::Number(a), Key::Number(b)) => a.total_cmp(b),
        (Key::Text(a), Key::Text(b)) => a.cmp(b),
        (Key::Other(a), Key::Other(b)) => a.cmp(b),
        (a, b) => rank(a).cmp(&rank(b)),
    });
    Ok(keys)
}

fn rank(key: &Key) -> u8 {
    match key {
        Key::Number(_) => 0,
        Key::Text(_) => 1,
        Key::Other(_) => 2,
    }
}
