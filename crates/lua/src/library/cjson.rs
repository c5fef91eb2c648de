//! `cjson`, as Redis has it. What a script sets by the library's options is forgotten at its end.

use crate::budget::{Fault, Result};
use crate::machine::{Args, Host, Machine};
use crate::number::format_g;
use crate::value::{Str, TableRef, Value};

type Done = Result<()>;

/// The deepest nesting, whatever a script sets.
const MAX_DEPTH: i64 = 1000;
/// The most digits of a number.
const MAX_DIGITS: i64 = 14;

/// The options that a script can set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    keep_buffer: bool,
    sparse_convert: bool,
    sparse_ratio: i64,
    sparse_safe: i64,
    encode_depth: i64,
    decode_depth: i64,
    digits: i64,
    encode_invalid: Invalid,
    decode_invalid: bool,
}

/// The encoding of numbers that are no JSON.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Invalid {
    Refused,
    Allowed,
    Null,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            keep_buffer: true,
            sparse_convert: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_depth: MAX_DEPTH,
            decode_depth: MAX_DEPTH,
            digits: MAX_DIGITS,
            encode_invalid: Invalid::Refused,
            decode_invalid: true,
        }
    }
}

// Options.

fn at_most(m: &Machine, args: Args, most: usize, name: &str) -> Done {
    if args.len() > most {
        return Err(m.bad_argument(most + 1, name, "found too many arguments"));
    }
    Ok(())
}

/// The most of a number that has no other bound.
const INT_MAX: i64 = i32::MAX as i64;

fn integer(m: &mut Machine, args: Args, i: usize, name: &str, now: i64, bounds: (i64, i64)) -> Result<i64> {
    if m.arg(args, i).is_nil() {
        return Ok(now);
    }
    let value = m.int_arg(args, i, name)?;
    let (least, most) = bounds;
    if !(least..=most).contains(&value) {
        let what = format!("expected integer between {least} and {most}");
        return Err(m.bad_argument(i + 1, name, &what));
    }
    Ok(value)
}

fn boolean(m: &mut Machine, args: Args, i: usize, name: &str, now: bool) -> Result<bool> {
    match m.arg(args, i) {
        Value::Nil => Ok(now),
        Value::Bool(b) => Ok(b),
        _ => {
            let text = m.text_arg(args, i, name)?;
            match m.heap.bytes(text) {
                b"on" => Ok(true),
                b"off" => Ok(false),
                _ => Err(m.bad_argument(i + 1, name, "invalid option")),
            }
        }
    }
}

functions! {
    encode_keep_buffer = switch(|options| &mut options.keep_buffer);
    decode_invalid_numbers = switch(|options| &mut options.decode_invalid);
    encode_max_depth = number((|options| &mut options.encode_depth, INT_MAX));
    decode_max_depth = number((|options| &mut options.decode_depth, INT_MAX));
    encode_number_precision = number((|options| &mut options.digits, MAX_DIGITS));
}

/// Sets an option that is on or off, if there is an argument, and gives what it is then.
fn switch(m: &mut Machine, args: Args, name: &str, option: fn(&mut Options) -> &mut bool) -> Done {
    at_most(m, args, 1, name)?;
    let now = *option(&mut m.json);
    let value = boolean(m, args, 0, name, now)?;
    *option(&mut m.json) = value;
    m.answer(Value::Bool(value))
}

/// Sets an option that is a number from 1 to some bound, if there is an argument, and gives what it is then.
fn number(
    m: &mut Machine,
    args: Args,
    name: &str,
    (option, most): (fn(&mut Options) -> &mut i64, i64),
) -> Done {
    at_most(m, args, 1, name)?;
    let now = *option(&mut m.json);
    let value = integer(m, args, 0, name, now, (1, most))?;
    *option(&mut m.json) = value;
    m.answer(Value::Number(value as f64))
}

pub(super) fn encode_sparse_array(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    const NAME: &str = "encode_sparse_array";
    at_most(m, args, 3, NAME)?;
    let now = m.json;
    m.json.sparse_convert = boolean(m, args, 0, NAME, now.sparse_convert)?;
    m.json.sparse_ratio = integer(m, args, 1, NAME, now.sparse_ratio, (0, INT_MAX))?;
    m.json.sparse_safe = integer(m, args, 2, NAME, now.sparse_safe, (0, INT_MAX))?;
    m.give(Value::Bool(m.json.sparse_convert));
    m.give(Value::Number(m.json.sparse_ratio as f64));
    m.answer(Value::Number(m.json.sparse_safe as f64))
}

pub(super) fn encode_invalid_numbers(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    const NAME: &str = "encode_invalid_numbers";
    at_most(m, args, 1, NAME)?;
    let is_null = match m.arg(args, 0) {
        Value::String(s) => m.heap.bytes(s) == b"null",
        _ => false,
    };
    m.json.encode_invalid = if is_null {
        Invalid::Null
    } else if m.arg(args, 0).is_nil() {
        m.json.encode_invalid
    } else if boolean(m, args, 0, NAME, false)? {
        Invalid::Allowed
    } else {
        Invalid::Refused
    };
    match m.json.encode_invalid {
        Invalid::Null => m.give_text(b"null")?,
        other => m.give(Value::Bool(other == Invalid::Allowed)),
    }
    Ok(())
}

pub(super) fn new(m: &mut Machine, _: &mut dyn Host, _: Args) -> Done {
    // The options are those of the run, so a new module is the same library in another table.
    let Value::Table(library) = m.heap.field(m.globals, "cjson")? else { return Err("no library".into()) };
    let pairs: Vec<(Value, Value)> = m.heap.pairs(library).collect();
    m.touch(0, pairs.len())?;
    let table = m.heap.table(0, pairs.len())?;
    for (key, value) in pairs {
        m.heap.raw_set(table, key, value)?;
    }
    m.answer(Value::Table(table))
}

// Encoding.

pub(super) fn encode(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    if args.len() != 1 {
        return Err(m.bad_argument(1, "encode", "expected 1 argument"));
    }
    let mut out = Vec::new();
    write(m, m.arg(args, 0), 0, &mut out)?;
    m.give_text(&out)
}

fn write(m: &mut Machine, value: Value, depth: i64, out: &mut Vec<u8>) -> Done {
    m.touch(0, 1)?;
    m.heap.budget.fits(2 * out.len() + 64)?;
    match value {
        Value::Nil | Value::Null => out.extend_from_slice(b"null"),
        Value::Bool(b) => out.extend_from_slice(if b { b"true" } else { b"false" }),
        Value::String(s) => write_string(m, s, out)?,
        Value::Table(table) => {
            let depth = depth + 1;
            if depth > m.json.encode_depth.min(MAX_DEPTH) {
                return Err(format!("Cannot serialise, excessive nesting ({depth})").into());
            }
            write_table(m, table, depth, out)?;
        }
        Value::Number(x) => write_number(m, x, out)?,
        other => {
            return Err(format!("Cannot serialise {}: type not supported", other.type_name()).into());
        }
    }
    Ok(())
}

fn write_number(m: &Machine, x: f64, out: &mut Vec<u8>) -> Done {
    if !x.is_finite() {
        match m.json.encode_invalid {
            Invalid::Refused => return Err("Cannot serialise number: must not be NaN or Inf".into()),
            Invalid::Null => {
                out.extend_from_slice(b"null");
                return Ok(());
            }
            Invalid::Allowed => {}
        }
    }
    let text = if x.is_nan() { "nan".into() } else { format_g(x, m.json.digits as usize) };
    out.extend_from_slice(text.as_bytes());
    Ok(())
}

/// The number of places of the array that a table is; `None` if it is an object.
fn array_length(m: &mut Machine, table: TableRef) -> Result<Option<usize>> {
    m.touch(0, m.heap.extent(table))?;
    let (mut most, mut count) = (0.0f64, 0i64);
    for (key, _) in m.heap.pairs(table) {
        match key {
            Value::Number(x) if x > 0.0 && x.trunc() == x => most = most.max(x),
            _ => return Ok(None),
        }
        count += 1;
    }
    if count == 0 {
        return Ok(None);
    }
    let Options { sparse_ratio, sparse_safe, sparse_convert, .. } = m.json;
    if sparse_ratio > 0 && most > count as f64 * sparse_ratio as f64 && most > sparse_safe as f64 {
        if sparse_convert {
            return Ok(None);
        }
        return Err("Cannot serialise table: excessively sparse array".into());
    }
    Ok(Some(most as usize))
}

fn write_table(m: &mut Machine, table: TableRef, depth: i64, out: &mut Vec<u8>) -> Done {
    if let Some(length) = array_length(m, table)? {
        out.push(b'[');
        for i in 1..=length {
            if i > 1 {
                out.push(b',');
            }
            write(m, m.heap.raw_at(table, i), depth, out)?;
        }
        out.push(b']');
        return Ok(());
    }
    m.heap.budget.fits(2 * out.len() + 32 * m.heap.extent(table))?;
    let pairs: Vec<(Value, Value)> = m.heap.pairs(table).collect();
    out.push(b'{');
    for (i, (key, value)) in pairs.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        match key {
            Value::Number(x) => {
                out.push(b'"');
                write_number(m, x, out)?;
                out.push(b'"');
            }
            Value::String(s) => write_string(m, s, out)?,
            other => {
                let name = other.type_name();
                let text = format!("Cannot serialise {name}: table key must be a number or string");
                return Err(text.into());
            }
        }
        out.push(b':');
        write(m, value, depth, out)?;
    }
    out.push(b'}');
    Ok(())
}

fn write_string(m: &mut Machine, s: Str, out: &mut Vec<u8>) -> Done {
    let len = m.heap.str_len(s);
    m.touch(len, 0)?;
    m.heap.budget.fits(2 * (out.len() + 6 * len))?;
    out.push(b'"');
    for &b in m.heap.bytes(s) {
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
    Ok(())
}

// Decoding.

pub(super) fn decode(m: &mut Machine, _: &mut dyn Host, args: Args) -> Done {
    if args.len() != 1 {
        return Err(m.bad_argument(1, "decode", "expected 1 argument"));
    }
    let text = m.text_arg(args, 0, "decode")?;
    let len = m.heap.str_len(text);
    m.touch(len, 0)?;
    m.heap.budget.fits(2 * len)?;
    let text = m.heap.bytes(text).to_vec();
    let (most, invalid) = (m.json.decode_depth.min(MAX_DEPTH), m.json.decode_invalid);
    let mut parser = Parser { text: &text, at: 0, depth: 0, most, invalid };
    let value = parser.document(m)?;
    m.answer(value)
}

/// The token at the parser's place.
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
    text: &'a [u8],
    at: usize,
    depth: i64,
    most: i64,
    /// Numbers that are no JSON are taken too.
    invalid: bool,
}

fn expected(what: &str, token: &Token, at: usize) -> Fault {
    format!("Expected {what} but found {} at character {}", token.name(), at + 1).into()
}

impl Parser<'_> {
    fn document(&mut self, m: &mut Machine) -> Result<Value> {
        let (token, at) = self.token();
        let value = self.value(m, token, at)?;
        match self.token() {
            (Token::End, _) => Ok(value),
            (token, at) => Err(expected("the end", &token, at)),
        }
    }

    fn value(&mut self, m: &mut Machine, token: Token, at: usize) -> Result<Value> {
        m.touch(0, 1)?;
        Ok(match token {
            Token::Text(text) => m.heap.text(&text)?,
            Token::Number(x) => Value::Number(x),
            Token::Boolean(b) => Value::Bool(b),
            Token::Null => Value::Null,
            Token::ObjectBegin => self.nested(m, Self::object)?,
            Token::ArrayBegin => self.nested(m, Self::array)?,
            token => return Err(expected("value", &token, at)),
        })
    }

    fn nested(
        &mut self,
        m: &mut Machine,
        parse: fn(&mut Self, &mut Machine) -> Result<Value>,
    ) -> Result<Value> {
        self.depth += 1;
        if self.depth > self.most {
            let (depth, at) = (self.depth, self.at);
            return Err(format!("Found too many nested data structures ({depth}) at character {at}").into());
        }
        let value = parse(self, m)?;
        self.depth -= 1;
        Ok(value)
    }

    fn object(&mut self, m: &mut Machine) -> Result<Value> {
        let table = m.heap.table(0, 0)?;
        let is_end = |token: &Token| matches!(token, Token::ObjectEnd);
        self.list(is_end, "comma or object end", |parser, token, at| {
            let Token::Text(key) = token else { return Err(expected("object key string", &token, at)) };
            match parser.token() {
                (Token::Colon, _) => {}
                (token, at) => return Err(expected("colon", &token, at)),
            }
            let (token, at) = parser.token();
            let value = parser.value(m, token, at)?;
            let key = m.heap.text(&key)?;
            m.heap.raw_set(table, key, value)
        })?;
        Ok(Value::Table(table))
    }

    fn array(&mut self, m: &mut Machine) -> Result<Value> {
        let (table, mut place) = (m.heap.table(0, 0)?, 0.0);
        let is_end = |token: &Token| matches!(token, Token::ArrayEnd);
        self.list(is_end, "comma or array end", |parser, token, at| {
            let value = parser.value(m, token, at)?;
            place += 1.0;
            m.heap.raw_set(table, Value::Number(place), value)
        })?;
        Ok(Value::Table(table))
    }

    /// Reads items with commas between them, up to the end's token.
    fn list(
        &mut self,
        is_end: fn(&Token) -> bool,
        comma_or_end: &str,
        mut item: impl FnMut(&mut Self, Token, usize) -> Done,
    ) -> Done {
        let (mut token, mut at) = self.token();
        if is_end(&token) {
            return Ok(());
        }
        loop {
            item(self, token, at)?;
            match self.token() {
                (token, _) if is_end(&token) => return Ok(()),
                (Token::Comma, _) => (token, at) = self.token(),
                (token, at) => return Err(expected(comma_or_end, &token, at)),
            }
        }
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
        let is_json = body.first().is_some_and(u8::is_ascii_digit) && !begins(b"0x");
        if !self.invalid && !is_json {
            return Token::Invalid("invalid number");
        }
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
