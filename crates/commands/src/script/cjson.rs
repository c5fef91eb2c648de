//! `cjson`, as far as scripts in the wild use it: encode and decode with Redis's settings.

use mlua::{Lua, MultiValue, Result, Table, Value};

use super::convert::{Key, number, sorted_keys};
use super::library::Answer;
use super::number::format_g;
use super::vm::Shared;

/// How deep values may nest.
const MAX_DEPTH: usize = 1000;
/// An array may have this many times as many places as items, ...
const SPARSE_RATIO: f64 = 2.0;
/// ... unless it has no more places than this.
const SPARSE_SAFE: f64 = 10.0;

/// Either an error that Lua shall raise, or one that a script is to see.
enum Fault {
    Lua(mlua::Error),
    Text(String),
}

impl From<mlua::Error> for Fault {
    fn from(error: mlua::Error) -> Fault {
        Fault::Lua(error)
    }
}

impl From<String> for Fault {
    fn from(text: String) -> Fault {
        Fault::Text(text)
    }
}

fn settle(result: std::result::Result<Value, Fault>) -> Result<Answer> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Fault::Text(text)) => Ok(Err(text)),
        Err(Fault::Lua(error)) => Err(error),
    }
}

/// `cjson.encode(value)`.
pub(super) fn encode(lua: &Lua, shared: &Shared, args: &MultiValue) -> Result<Answer> {
    if args.len() != 1 {
        return Ok(Err("bad argument #1 to 'encode' (expected 1 argument)".into()));
    }
    let mut out = Vec::new();
    let written = write(&args[0], shared, 0, &mut out);
    settle(written.and_then(|()| Ok(Value::String(lua.create_string(&out)?))))
}

fn write(value: &Value, shared: &Shared, depth: usize, out: &mut Vec<u8>) -> std::result::Result<(), Fault> {
    shared.charge(16)?;
    match value {
        Value::Nil => out.extend_from_slice(b"null"),
        Value::LightUserData(p) if p.0.is_null() => out.extend_from_slice(b"null"),
        Value::Boolean(b) => out.extend_from_slice(if *b { b"true" } else { b"false" }),
        Value::String(text) => {
            shared.charge(text.as_bytes().len() as i64 / 8)?;
            write_text(&text.as_bytes(), out);
        }
        Value::Table(table) => {
            if depth >= MAX_DEPTH {
                return Err(format!("Cannot serialise, excessive nesting ({})", depth + 1).into());
            }
            write_table(table, shared, depth + 1, out)?;
        }
        other => match number(other) {
            Some(x) if x.is_finite() => out.extend_from_slice(format_g(x, 14).as_bytes()),
            Some(_) => return Err("Cannot serialise number: must not be NaN or Inf".to_string().into()),
            None => return Err(format!("Cannot serialise {}: type not supported", lua_type(other)).into()),
        },
    }
    Ok(())
}

fn lua_type(value: &Value) -> &'static str {
    match value {
        Value::LightUserData(_) => "userdata",
        other => other.type_name(),
    }
}

/// How many places the array has that a table is; `None` if it is an object.
fn array_length(keys: &[Key]) -> std::result::Result<Option<usize>, Fault> {
    let mut max = 0.0f64;
    for key in keys {
        match key {
            Key::Number(x) if *x > 0.0 && x.trunc() == *x => max = max.max(*x),
            _ => return Ok(None),
        }
    }
    if max == 0.0 {
        return Ok(None);
    }
    if max > keys.len() as f64 * SPARSE_RATIO && max > SPARSE_SAFE {
        return Err("Cannot serialise table: excessively sparse array".to_string().into());
    }
    Ok(Some(max as usize))
}

fn write_table(
    table: &Table,
    shared: &Shared,
    depth: usize,
    out: &mut Vec<u8>,
) -> std::result::Result<(), Fault> {
    let keys = sorted_keys(table)?;
    shared.charge(keys.len() as i64 * 8)?;
    if let Some(length) = array_length(&keys)? {
        out.push(b'[');
        for i in 1..=length {
            if i > 1 {
                out.push(b',');
            }
            write(&table.raw_get::<Value>(i)?, shared, depth, out)?;
        }
        out.push(b']');
        return Ok(());
    }
    out.push(b'{');
    for (i, key) in keys.iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        match key {
            Key::Number(x) => {
                out.push(b'"');
                out.extend_from_slice(format_g(*x, 14).as_bytes());
                out.push(b'"');
            }
            Key::Text(text) => write_text(text, out),
            Key::Other(name) => {
                let text = format!("Cannot serialise {name}: table key must be a number or string");
                return Err(text.into());
            }
        }
        out.push(b':');
        write(&key.value_in(table)?, shared, depth, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn write_text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &b in text {
        match b {
            b'"' => out.extend_from_slice(b"\\\""),
            b'\\' => out.extend_from_slice(b"\\\\"),
            b'/' => out.extend_from_slice(b"\\/"),
            8 => out.extend_from_slice(b"\\b"),
            12 => out.extend_from_slice(b"\\f"),
            b'\n' => out.extend_from_slice(b"\\n"),
            b'\r' => out.extend_from_slice(b"\\r"),
            b'\t' => out.extend_from_slice(b"\\t"),
            0..32 | 127 => out.extend_from_slice(format!("\\u{b:04x}").as_bytes()),
            _ => out.push(b),
        }
    }
    out.push(b'"');
}

/// `cjson.decode(text)`.
pub(super) fn decode(lua: &Lua, shared: &Shared, args: &MultiValue) -> Result<Answer> {
    let text = match args.front() {
        Some(value) if args.len() == 1 => super::library::text_of(value),
        _ => return Ok(Err("bad argument #1 to 'decode' (expected 1 argument)".into())),
    };
    let Some(text) = text else {
        return Ok(Err("bad argument #1 to 'decode' (string expected)".into()));
    };
    shared.charge(text.len() as i64)?;
    let mut parser = Parser { lua, text: &text, at: 0, depth: 0 };
    settle(parser.document())
}

/// What stands at the parser's place.
enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    Text(Vec<u8>),
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    Invalid(&'static str),
}

impl Token {
    fn name(&self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Text(_) => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Invalid(what) => what,
        }
    }
}

struct Parser<'a> {
    lua: &'a Lua,
    text: &'a [u8],
    at: usize,
    depth: usize,
}

type Parsed = std::result::Result<Value, Fault>;

impl Parser<'_> {
    fn document(&mut self) -> Parsed {
        let (token, at) = self.token();
        let value = self.value(token, at)?;
        match self.token() {
            (Token::End, _) => Ok(value),
            (token, at) => Err(expected("the end", &token, at)),
        }
    }

    fn value(&mut self, token: Token, at: usize) -> Parsed {
        Ok(match token {
            Token::Text(text) => Value::String(self.lua.create_string(text)?),
            Token::Number(x) => Value::Number(x),
            Token::Boolean(b) => Value::Boolean(b),
            Token::Null => Value::NULL,
            Token::ObjectBegin => self.nested(Self::object)?,
            Token::ArrayBegin => self.nested(Self::array)?,
            token => return Err(expected("value", &token, at)),
        })
    }

    fn nested(&mut self, parse: fn(&mut Self) -> Parsed) -> Parsed {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let (depth, at) = (self.depth, self.at);
            return Err(format!("Found too many nested data structures ({depth}) at character {at}").into());
        }
        let value = parse(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self) -> Parsed {
        let table = self.lua.create_table()?;
        let (mut token, mut at) = self.token();
        if matches!(token, Token::ObjectEnd) {
            return Ok(Value::Table(table));
        }
        loop {
            let Token::Text(key) = token else { return Err(expected("object key string", &token, at)) };
            match self.token() {
                (Token::Colon, _) => {}
                (token, at) => return Err(expected("colon", &token, at)),
            }
            (token, at) = self.token();
            let value = self.value(token, at)?;
            table.raw_set(self.lua.create_string(key)?, value)?;
            match self.token() {
                (Token::ObjectEnd, _) => return Ok(Value::Table(table)),
                (Token::Comma, _) => {}
                (token, at) => return Err(expected("comma or object end", &token, at)),
            }
            (token, at) = self.token();
        }
    }

    fn array(&mut self) -> Parsed {
        let table = self.lua.create_table()?;
        let (mut token, mut at) = self.token();
        if matches!(token, Token::ArrayEnd) {
            return Ok(Value::Table(table));
        }
        for i in 1.. {
            let value = self.value(token, at)?;
            table.raw_set(i, value)?;
            match self.token() {
                (Token::ArrayEnd, _) => break,
                (Token::Comma, _) => {}
                (token, at) => return Err(expected("comma or array end", &token, at)),
            }
            (token, at) = self.token();
        }
        Ok(Value::Table(table))
    }

    /// The next token and where it begins.
    fn token(&mut self) -> (Token, usize) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
        let start = self.at;
        let Some(&c) = self.text.get(start) else { return (Token::End, start) };
        let simple = match c {
            b'{' => Some(Token::ObjectBegin),
            b'}' => Some(Token::ObjectEnd),
            b'[' => Some(Token::ArrayBegin),
            b']' => Some(Token::ArrayEnd),
            b':' => Some(Token::Colon),
            b',' => Some(Token::Comma),
            _ => None,
        };
        if let Some(token) = simple {
            self.at += 1;
            return (token, start);
        }
        let token = match c {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            _ => {
                let rest = &self.text[start..];
                let words: [(&[u8], Token); 3] = [
                    (b"true", Token::Boolean(true)),
                    (b"false", Token::Boolean(false)),
                    (b"null", Token::Null),
                ];
                match words.into_iter().find(|(word, _)| rest.starts_with(word)) {
                    Some((word, token)) => {
                        self.at += word.len();
                        token
                    }
                    None => self.number(),
                }
            }
        };
        (token, start)
    }

    /// A number as C's `strtod` reads it, which takes hexadecimal numbers, infinity and NaN too.
    fn number(&mut self) -> Token {
        let rest = &self.text[self.at..];
        let sign = usize::from(rest.first() == Some(&b'-'));
        let body = &rest[sign..];
        let begins = |word: &[u8]| body.len() >= word.len() && body[..word.len()].eq_ignore_ascii_case(word);
        let (magnitude, len) = if begins(b"0x") {
            let digits = body[2..].iter().take_while(|b| b.is_ascii_hexdigit()).count();
            let value = body[2..2 + digits]
                .iter()
                .fold(0.0, |x, b| x * 16.0 + f64::from((*b as char).to_digit(16).unwrap_or(0)));
            if digits == 0 { (0.0, 1) } else { (value, 2 + digits) }
        } else if begins(b"infinity") {
            (f64::INFINITY, 8)
        } else if begins(b"inf") {
            (f64::INFINITY, 3)
        } else if begins(b"nan") {
            (f64::NAN, 3)
        } else {
            let len = decimal_len(body);
            match std::str::from_utf8(&body[..len]).ok().and_then(|s| s.parse::<f64>().ok()) {
                Some(x) => (x, len),
                None if body.first().is_some_and(u8::is_ascii_digit) || sign == 1 => {
                    return Token::Invalid("invalid number");
                }
                None => return Token::Invalid("invalid token"),
            }
        };
        self.at += sign + len;
        Token::Number(if sign == 1 { -magnitude } else { magnitude })
    }

    fn string(&mut self) -> Token {
        let mut out = Vec::new();
        self.at += 1;
        loop {
            let Some(&c) = self.text.get(self.at) else {
                return Token::Invalid("unexpected end of string");
            };
            self.at += 1;
            match c {
                b'"' => return Token::Text(out),
                b'\\' => {
                    let Some(&escape) = self.text.get(self.at) else {
                        return Token::Invalid("unexpected end of string");
                    };
                    self.at += 1;
                    match escape {
                        b'"' | b'\\' | b'/' => out.push(escape),
                        b'b' => out.push(8),
                        b'f' => out.push(12),
                        b'n' => out.push(b'\n'),
                        b'r' => out.push(b'\r'),
                        b't' => out.push(b'\t'),
                        b'u' => match self.unicode() {
                            Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                            None => return Token::Invalid("invalid unicode escape code"),
                        },
                        _ => return Token::Invalid("invalid escape code"),
                    }
                }
                _ => out.push(c),
            }
        }
    }

    /// The character of a `\u` escape, whose second half follows if it is one of two.
    fn unicode(&mut self) -> Option<char> {
        let high = self.four_digits()?;
        if !(0xd800..0xdc00).contains(&high) {
            return char::from_u32(high);
        }
        if self.text.get(self.at..self.at + 2)? != b"\\u" {
            return None;
        }
        self.at += 2;
        let low = self.four_digits()?;
        if !(0xdc00..0xe000).contains(&low) {
            return None;
        }
        char::from_u32(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00))
    }

    fn four_digits(&mut self) -> Option<u32> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        digits.iter().try_fold(0, |n, b| Some(n * 16 + (*b as char).to_digit(16)?))
    }
}

fn decimal_len(body: &[u8]) -> usize {
    let digits = |from: usize| body[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut len = digits(0);
    if body.get(len) == Some(&b'.') {
        len += 1 + digits(len + 1);
    }
    if len > 0 && matches!(body.get(len), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(body.get(len + 1), Some(b'+' | b'-')));
        let exponent = if len + 1 + sign <= body.len() { digits(len + 1 + sign) } else { 0 };
        if exponent > 0 {
            len += 1 + sign + exponent;
        }
    }
    len
}

fn expected(what: &str, token: &Token, at: usize) -> Fault {
    Fault::Text(format!("Expected {what} but found {} at character {}", token.name(), at + 1))
}
