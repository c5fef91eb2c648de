//! The parser of replies: values, cut out of the bytes of a connection where they lie.
//!
//! Both protocols put the count of a composite in front of its items. A reply is therefore a run of values, and the parser
//! remembers only how many items the composites around the next value still lack. Values and errors are the same however the
//! bytes are cut into pieces.

use memchr::memchr2;
use ordain_model::Writer;
use smallvec::SmallVec;

/// The bounds of one reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplyLimits {
    /// Its length, bytes.
    pub bytes: usize,
    /// The length of a line, bytes without its end: of a number, a status or an error.
    pub line: usize,
    /// The number of composites that a value may stand in.
    pub depth: usize,
}

impl Default for ReplyLimits {
    /// More than any reply of this server or of Redis has.
    fn default() -> Self {
        ReplyLimits { bytes: 1 << 30, line: 1 << 20, depth: 256 }
    }
}

/// The reason why some bytes are no reply. A connection that has received them cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// No type of value begins with this byte.
    #[error("the reply is not RESP: no value begins with {:?}", char::from(*.0))]
    Type(u8),
    /// A carriage return or a line feed stands alone.
    #[error("the reply is not RESP: a line ends neither here nor there")]
    LineEnd,
    /// The value of this type has a text that no such value has.
    #[error("the reply is not RESP: the text after {:?} is none of that type", char::from(*.0))]
    Text(u8),
    /// The string of this type does not end where its length says.
    #[error("the reply is not RESP: the length after {:?} is not that of the string", char::from(*.0))]
    Length(u8),
    /// A line is longer than [`ReplyLimits::line`].
    #[error("a line of the reply is longer than {0} bytes")]
    LineTooLong(usize),
    /// The reply is longer than [`ReplyLimits::bytes`], by what it announces at the least.
    #[error("the reply is longer than {0} bytes")]
    TooLong(usize),
    /// A value stands in more composites than [`ReplyLimits::depth`].
    #[error("the reply has values in more than {0} others")]
    TooDeep(usize),
}

/// A value of a reply. Composite values say how many items follow them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// No value: `$-1`, or `_` of RESP3.
    Nil,
    /// No array: `*-1`.
    NilArray,
    /// An integer.
    Int(i64),
    /// A truth value.
    Bool(bool),
    /// A floating point number and its text.
    Double(f64, &'a [u8]),
    /// An integer of any size, in decimal.
    BigNumber(&'a [u8]),
    /// A simple string.
    Status(&'a [u8]),
    /// An error: a line, or a string of RESP3.
    Error(&'a [u8]),
    /// A string of any bytes.
    Bulk(&'a [u8]),
    /// A text for people, and what it is written in: `txt` or `mkd`.
    Verbatim([u8; 3], &'a [u8]),
    /// An array: the number of items that follow.
    Array(u32),
    /// A set: the number of items that follow.
    Set(u32),
    /// A message that nobody has asked for: the number of items that follow.
    Push(u32),
    /// A map: the number of pairs of items that follow.
    Map(u32),
}

impl Value<'_> {
    /// The number of items that follow.
    #[inline]
    pub fn items(&self) -> u64 {
        match self {
            Value::Array(items) | Value::Set(items) | Value::Push(items) => u64::from(*items),
            Value::Map(pairs) => 2 * u64::from(*pairs),
            _ => 0,
        }
    }

    /// Appends the [`Datum`](ordain_model::Datum) of the value; that of a message is an array.
    #[inline]
    pub fn write_datum(&self, out: &mut Vec<u8>) {
        let mut w = Writer(out);
        match self {
            Value::Nil => w.nil(),
            Value::NilArray => w.nil_array(),
            Value::Int(i) => w.int(*i),
            Value::Bool(b) => w.bool(*b),
            Value::Double(d, _) => w.double(*d),
            Value::BigNumber(digits) => w.big_number(digits),
            Value::Status(text) => w.status(text),
            Value::Error(text) => w.error(text),
            Value::Bulk(bytes) => w.bulk(bytes),
            Value::Verbatim(format, text) => w.verbatim(*format, text),
            Value::Array(items) | Value::Push(items) => w.array(*items as usize),
            Value::Set(items) => w.set(*items as usize),
            Value::Map(pairs) => w.map(*pairs as usize),
        }
    }
}

/// A value at the start of some bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parsed<'a> {
    /// The value.
    pub value: Value<'a>,
    /// Its length, bytes.
    pub len: usize,
    /// True if the reply ends with it.
    pub ends: bool,
}

/// The outcome of [`ReplyParser::read_datum`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A whole reply ends after so many bytes.
    Whole(usize),
    /// So many bytes are done with, and the reply goes on.
    Part(usize),
}

/// Parses the replies of one connection.
#[derive(Debug, Default)]
pub struct ReplyParser {
    limits: ReplyLimits,
    /// Items that each composite around the next value still lacks; empty between replies.
    open: SmallVec<[u64; 8]>,
    /// Length of the reply so far, bytes.
    bytes: usize,
}

impl ReplyParser {
    /// Makes a parser with bounds of its own.
    pub fn new(limits: ReplyLimits) -> ReplyParser {
        ReplyParser { limits, ..ReplyParser::default() }
    }

    /// Takes the value at the start of `input`, which begins where the last value ended; `None` if it is not whole.
    ///
    /// # Errors
    /// The bytes are no value, or the reply exceeds a bound.
    #[inline]
    pub fn next<'a>(&mut self, input: &'a [u8]) -> Result<Option<Parsed<'a>>, ReplyError> {
        let left = self.limits.bytes.saturating_sub(self.bytes);
        let too_long = ReplyError::TooLong(self.limits.bytes);
        let Some((value, len)) = value(input, self.limits.line, left, too_long)? else { return Ok(None) };
        if len > left {
            return Err(too_long);
        }
        self.bytes += len;
        let items = value.items();
        if items > 0 {
            if self.open.len() >= self.limits.depth {
                return Err(ReplyError::TooDeep(self.limits.depth));
            }
            self.open.push(items);
            return Ok(Some(Parsed { value, len, ends: false }));
        }
        while let Some(lacking) = self.open.last_mut() {
            *lacking -= 1;
            if *lacking > 0 {
                return Ok(Some(Parsed { value, len, ends: false }));
            }
            self.open.pop();
        }
        self.bytes = 0;
        Ok(Some(Parsed { value, len, ends: true }))
    }

    /// Translates as much of `input` as is there, up to the end of a reply, and appends its
    /// [`Datum`](ordain_model::Datum)s to `out`.
    ///
    /// # Errors
    /// As [`next`](ReplyParser::next).
    pub fn read_datum(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Read, ReplyError> {
        let mut at = 0;
        while let Some(Parsed { value, len, ends }) = self.next(&input[at..])? {
            at += len;
            value.write_datum(out);
            if ends {
                return Ok(Read::Whole(at));
            }
        }
        Ok(Read::Part(at))
    }
}

/// The value at the start of some bytes and its length, in a reply that may have `left` bytes more.
fn value<'a>(
    input: &'a [u8],
    line_max: usize,
    left: usize,
    too_long: ReplyError,
) -> Result<Option<(Value<'a>, usize)>, ReplyError> {
    let Some((&tag, rest)) = input.split_first() else { return Ok(None) };
    if !b"+-:$*_#,(=!%~>".contains(&tag) {
        return Err(ReplyError::Type(tag));
    }
    let Some(line) = line(rest, line_max)? else { return Ok(None) };
    let len = 1 + line.len() + 2;
    let text = || std::str::from_utf8(line).map_err(|_| ReplyError::Text(tag));
    let value = match tag {
        b'+' => Value::Status(line),
        b'-' => Value::Error(line),
        b':' => Value::Int(text()?.parse().map_err(|_| ReplyError::Text(tag))?),
        b'_' if line.is_empty() => Value::Nil,
        b'#' if line == b"t" => Value::Bool(true),
        b'#' if line == b"f" => Value::Bool(false),
        b',' => Value::Double(text()?.parse().map_err(|_| ReplyError::Text(tag))?, line),
        b'(' if is_integer(line) => Value::BigNumber(line),
        b'_' | b'#' | b'(' => return Err(ReplyError::Text(tag)),
        b'$' if line == b"-1" => Value::Nil,
        b'*' if line == b"-1" => Value::NilArray,
        b'$' | b'=' | b'!' => {
            let size = text()?.parse().map_err(|_| ReplyError::Text(tag))?;
            return string(tag, input, len, size, left, too_long);
        }
        _ => {
            let count: u32 = text()?.parse().map_err(|_| ReplyError::Text(tag))?;
            let value = match tag {
                b'%' => Value::Map(count),
                b'~' => Value::Set(count),
                b'>' => Value::Push(count),
                _ => Value::Array(count),
            };
            // No value is shorter than its type and the end of its line.
            if len as u64 + value.items() * 3 > left as u64 {
                return Err(too_long);
            }
            value
        }
    };
    Ok(Some((value, len)))
}

/// The string of `size` bytes that stands behind the line of its length, which has `head` bytes.
#[inline]
fn string<'a>(
    tag: u8,
    input: &'a [u8],
    head: usize,
    size: usize,
    left: usize,
    too_long: ReplyError,
) -> Result<Option<(Value<'a>, usize)>, ReplyError> {
    let len = match head.checked_add(size).and_then(|end| end.checked_add(2)) {
        Some(len) if len <= left => len,
        _ => return Err(too_long),
    };
    let Some(bytes) = input.get(head..len) else { return Ok(None) };
    let Some(bytes) = bytes.strip_suffix(b"\r\n") else { return Err(ReplyError::Length(tag)) };
    let value = match tag {
        b'$' => Value::Bulk(bytes),
        b'!' => Value::Error(bytes),
        _ => match bytes.split_first_chunk() {
            Some((format, [b':', text @ ..])) => Value::Verbatim(*format, text),
            _ => return Err(ReplyError::Text(tag)),
        },
    };
    Ok(Some((value, len)))
}

/// The line at the start of some bytes, without its end; `None` if that is not there.
#[inline]
fn line(bytes: &[u8], max: usize) -> Result<Option<&[u8]>, ReplyError> {
    let within = &bytes[..bytes.len().min(max + 1)];
    let Some(end) = memchr2(b'\r', b'\n', within) else {
        return if within.len() > max { Err(ReplyError::LineTooLong(max)) } else { Ok(None) };
    };
    match bytes[end..] {
        [b'\r', b'\n', ..] => Ok(Some(&bytes[..end])),
        [b'\r'] => Ok(None),
        _ => Err(ReplyError::LineEnd),
    }
}

/// True if some bytes are digits, behind a sign or not.
fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}
