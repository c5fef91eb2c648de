//! A whole reply as a tree, and its compact form on one line.

use std::fmt;
use std::io;

use super::parser::{Parsed, ReplyError, ReplyLimits, ReplyParser, Value};

/// A reply of a server.
///
/// Its display is the compact form of transcripts: `"bytes"` with Rust's escapes, `:7`, `+status`, `-error`, `_` for nil,
/// `[array]`, `{map}`, `~[set]`, `>[push]`, `#t`, `,1.5`, `(12345` and `="verbatim"`. Its debug form is that with long strings
/// cut.
#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    /// A simple string.
    Status(Vec<u8>),
    /// An error: its text, which begins with its code.
    Error(Vec<u8>),
    /// An integer.
    Int(i64),
    /// A string of any bytes.
    Bulk(Vec<u8>),
    /// A text for people: what it is written in, and the text.
    Verbatim([u8; 3], Vec<u8>),
    /// No value, in any of its three forms.
    Nil,
    /// A truth value.
    Bool(bool),
    /// A floating point number, as text.
    Double(Vec<u8>),
    /// An integer of any size, in decimal.
    BigNumber(Vec<u8>),
    /// An array.
    Array(Vec<Reply>),
    /// A set.
    Set(Vec<Reply>),
    /// A message that nobody has asked for.
    Push(Vec<Reply>),
    /// A map: keys and values in turns.
    Map(Vec<Reply>),
}

/// Bytes of a string that the debug form shows.
const SHOWN: usize = 100;
/// Bytes that are read from a source at once.
const PIECE: usize = 64 << 10;

impl Reply {
    /// Reads the reply at the start of `bytes`, and the number of bytes that it takes; `None` if it is not whole.
    ///
    /// # Errors
    /// The bytes are no reply, or it exceeds the default bounds.
    pub fn read(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ReplyError> {
        let (mut parser, mut assembly) = (ReplyParser::default(), Assembly::default());
        let mut at = 0;
        let reply = assembly.read(&mut parser, bytes, &mut at)?;
        Ok(reply.map(|reply| (reply, at)))
    }

    /// The status that most commands answer that have nothing else to say.
    pub fn ok() -> Reply {
        Reply::Status(b"OK".to_vec())
    }

    /// True if it is an error whose text begins so.
    pub fn is_error(&self, prefix: &str) -> bool {
        matches!(self, Reply::Error(text) if text.starts_with(prefix.as_bytes()))
    }

    /// The items of an array, set, message or map.
    pub fn composite(&self) -> Option<&[Reply]> {
        match self {
            Reply::Array(items) | Reply::Set(items) | Reply::Push(items) | Reply::Map(items) => Some(items),
            _ => None,
        }
    }

    /// Writes the compact form, of each string at most so many bytes.
    fn compact(&self, most: usize, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = |bytes: &[u8]| bytes.get(..most).unwrap_or(bytes).escape_ascii().to_string();
        let lossy = String::from_utf8_lossy;
        let (open, close) = match self {
            Reply::Status(text) => return write!(f, "+{}", lossy(text)),
            Reply::Error(text) => return write!(f, "-{}", lossy(text)),
            Reply::Int(i) => return write!(f, ":{i}"),
            Reply::Bulk(bytes) => return write!(f, "\"{}\"", cut(bytes)),
            Reply::Verbatim(_, text) => return write!(f, "=\"{}\"", cut(text)),
            Reply::Nil => return f.write_str("_"),
            Reply::Bool(b) => return f.write_str(if *b { "#t" } else { "#f" }),
            Reply::Double(text) => return write!(f, ",{}", lossy(text)),
            Reply::BigNumber(digits) => return write!(f, "({}", lossy(digits)),
            Reply::Array(_) => ("[", "]"),
            Reply::Set(_) => ("~[", "]"),
            Reply::Push(_) => (">[", "]"),
            Reply::Map(_) => ("{", "}"),
        };
        f.write_str(open)?;
        for (n, item) in self.composite().unwrap_or_default().iter().enumerate() {
            f.write_str(if n > 0 { " " } else { "" })?;
            item.compact(most, f)?;
        }
        f.write_str(close)
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.compact(usize::MAX, f)
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.compact(SHOWN, f)
    }
}

/// A composite that lacks items.
#[derive(Debug)]
struct Open {
    /// Makes the composite of its items.
    make: fn(Vec<Reply>) -> Reply,
    /// The number of items that it lacks.
    lacking: u64,
    items: Vec<Reply>,
}

/// The composites of a reply that lack items, the outermost first.
#[derive(Debug, Default)]
struct Assembly {
    open: Vec<Open>,
}

impl Assembly {
    /// Takes values from `bytes`, from `at` on, until a reply is whole or the bytes end.
    fn read(
        &mut self,
        parser: &mut ReplyParser,
        bytes: &[u8],
        at: &mut usize,
    ) -> Result<Option<Reply>, ReplyError> {
        while let Some(Parsed { value, len, .. }) = parser.next(&bytes[*at..])? {
            *at += len;
            if let Some(reply) = self.take(value) {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Puts a value in its place; gives the reply that ends with it.
    fn take(&mut self, value: Value<'_>) -> Option<Reply> {
        let make: fn(Vec<Reply>) -> Reply = match value {
            Value::Set(_) => Reply::Set,
            Value::Push(_) => Reply::Push,
            Value::Map(_) => Reply::Map,
            _ => Reply::Array,
        };
        let mut reply = match value {
            Value::Nil | Value::NilArray => Reply::Nil,
            Value::Int(i) => Reply::Int(i),
            Value::Bool(b) => Reply::Bool(b),
            Value::Double(_, text) => Reply::Double(text.to_vec()),
            Value::BigNumber(digits) => Reply::BigNumber(digits.to_vec()),
            Value::Status(text) => Reply::Status(text.to_vec()),
            Value::Error(text) => Reply::Error(text.to_vec()),
            Value::Bulk(bytes) => Reply::Bulk(bytes.to_vec()),
            Value::Verbatim(format, text) => Reply::Verbatim(format, text.to_vec()),
            Value::Array(0) | Value::Set(0) | Value::Push(0) | Value::Map(0) => make(Vec::new()),
            Value::Array(_) | Value::Set(_) | Value::Push(_) | Value::Map(_) => {
                self.open.push(Open { make, lacking: value.items(), items: Vec::new() });
                return None;
            }
        };
        while let Some(Open { make, lacking, mut items }) = self.open.pop() {
            items.push(reply);
            if lacking > 1 {
                self.open.push(Open { make, lacking: lacking - 1, items });
                return None;
            }
            reply = make(items);
        }
        Some(reply)
    }
}

/// Reads the replies of one connection, whose bytes come in pieces.
#[derive(Debug, Default)]
pub struct ReplyReader {
    parser: ReplyParser,
    assembly: Assembly,
    /// Bytes that have come, and the number of them that are done with.
    bytes: Vec<u8>,
    at: usize,
}

impl ReplyReader {
    /// Makes a reader with bounds of its own.
    pub fn new(limits: ReplyLimits) -> ReplyReader {
        ReplyReader { parser: ReplyParser::new(limits), ..ReplyReader::default() }
    }

    /// Appends bytes that have come.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.at);
        self.at = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Takes the next reply; `None` until more bytes come.
    ///
    /// # Errors
    /// The bytes are no reply, or it exceeds a bound.
    pub fn next_reply(&mut self) -> Result<Option<Reply>, ReplyError> {
        self.assembly.read(&mut self.parser, &self.bytes, &mut self.at)
    }

    /// Reads from a source until the next reply is whole. After an error of the source, such as a timeout, it may be called
    /// again.
    ///
    /// # Errors
    /// Those of the source; `UnexpectedEof` at its end; a [`ReplyError`] as `InvalidData`.
    pub fn read_from(&mut self, source: &mut impl io::Read) -> io::Result<Reply> {
        let mut piece = [0; PIECE];
        loop {
            let reply =
                self.next_reply().map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            if let Some(reply) = reply {
                return Ok(reply);
            }
            match source.read(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(len) => self.feed(&piece[..len]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Bytes that no value has been made of.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.at..]
    }
}
