//! Requests: arrays of bulk strings and inline commands, parsed where they lie.
//!
//! The parser is given the unread bytes of a connection, from the start of a command on, and finds where the
//! arguments stand in them; it copies nothing. It remembers how far it came, so that a command that arrives in
//! a thousand pieces is walked once. The texts of its errors are those of Redis 7.0.
//!
//! Bad input is of two kinds. A [`ProtocolError`] means that the stream has lost its framing: the client gets an error
//! and the connection is closed. A [`Refusal`] means that the framing is sound and the command is more than
//! we take: its bytes are dropped as they arrive, without being held, and the connection goes on.

use std::fmt;
use std::ops::Range;

use ordain_commands::words::split_words;
use ordain_model::key::MAX_VALUE_LEN;

/// The longest inline command (Redis: `PROTO_INLINE_MAX_SIZE`).
const INLINE_MAX: usize = 64 * 1024;
/// The longest argument that can be announced (Redis: `proto-max-bulk-len`).
const BULK_MAX: i64 = 512 * 1024 * 1024;
/// The longest command whose bytes are held.
const COMMAND_MAX: usize = 256 * 1024 * 1024;
/// The most digits and sign that a length can have. Redis waits for up to 64 KiB of them before it gives up.
const LENGTH_DIGITS_MAX: usize = 20;
/// The first byte of a TLS record that holds a handshake, and the second (RFC 8446, 5.1).
const TLS_HANDSHAKE: u8 = 0x16;
const TLS_MAJOR: u8 = 3;
/// Room for arguments that a parser keeps from one command to the next.
const SPANS_KEPT: usize = 1024;

/// The bounds of one command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    args_max: i64,
    bulk_max: i64,
}

impl RequestLimits {
    /// What clients may send.
    pub const FULL: RequestLimits = RequestLimits { args_max: 1024 * 1024, bulk_max: BULK_MAX };
    /// What they may send before they have given the password.
    pub const UNAUTHENTICATED: RequestLimits = RequestLimits { args_max: 10, bulk_max: 16 * 1024 };
}

/// The stream makes no sense from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ProtocolError {
    InvalidMultibulkLength,
    UnauthenticatedMultibulkLength,
    InvalidBulkLength,
    UnauthenticatedBulkLength,
    ExpectedDollar(u8),
    TooBigInline,
    UnbalancedQuotes,
    /// The beginning of TLS. The other end does not speak this protocol, so it gets no error in it.
    Tls,
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ERR Protocol error: ")?;
        match self {
            ProtocolError::InvalidMultibulkLength => f.write_str("invalid multibulk length"),
            ProtocolError::UnauthenticatedMultibulkLength => f.write_str("unauthenticated multibulk length"),
            ProtocolError::InvalidBulkLength => f.write_str("invalid bulk length"),
            ProtocolError::UnauthenticatedBulkLength => f.write_str("unauthenticated bulk length"),
            ProtocolError::ExpectedDollar(got) => write!(f, "expected '$', got '{}'", char::from(*got)),
            ProtocolError::TooBigInline => f.write_str("too big inline request"),
            ProtocolError::UnbalancedQuotes => f.write_str("unbalanced quotes in request"),
            ProtocolError::Tls => f.write_str("TLS on a port without TLS"),
        }
    }
}

/// A well-framed command that is more than we take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// One of its arguments is longer than any value may be.
    ArgumentTooLong,
    /// All of it together is.
    CommandTooLong,
}

impl Refusal {
    /// The text for the client.
    pub const fn text(self) -> &'static str {
        match self {
            Refusal::ArgumentTooLong => "ERR value exceeds the limit of 16 MiB",
            Refusal::CommandTooLong => "ERR command exceeds the limit of 256 MiB",
        }
    }
}

/// The result of parsing some bytes. `consumed` counts bytes from their start that need not be
/// given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A whole command: see [`RequestParser::args`].
    Command {
        /// The length.
        consumed: usize,
    },
    /// Nothing that asks for an answer, such as an empty line.
    Empty {
        /// The length.
        consumed: usize,
    },
    /// The end of a command that was dropped.
    Refused {
        /// What was left of it.
        consumed: usize,
        /// The reason.
        refusal: Refusal,
    },
    /// More bytes are needed.
    Incomplete {
        /// Bytes of a command that is being dropped; 0 otherwise.
        consumed: usize,
        /// At least so many more bytes will come before the command is whole.
        wanted: usize,
    },
    /// The connection cannot go on.
    Broken(ProtocolError),
}

#[derive(Clone, Copy, Debug)]
struct Span {
    at: u32,
    len: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// At the first byte of a command.
    #[default]
    Start,
    /// In an inline command of which so many bytes hold no newline.
    Inline { scanned: usize },
    /// At the length of an argument.
    Length,
    /// In an argument: this many bytes of it, its line end included, are still to be passed over.
    Argument { left: usize },
    /// After a whole command, whose arguments can be asked for.
    Done,
}

/// Reads one connection's requests.
#[derive(Debug, Default)]
pub struct RequestParser {
    stage: Stage,
    /// Where to go on, counted from the start of the command or, when it is being dropped, of the input.
    at: usize,
    /// The number of arguments that are still to come.
    left: u32,
    refused: Option<Refusal>,
    spans: Vec<Span>,
    /// The arguments of an inline command, unquoted. Spans of an inline command point in here.
    unquoted: Vec<u8>,
    is_inline: bool,
}

enum Length {
    Incomplete,
    Invalid,
    Is(i64, usize),
}

/// Reads a decimal number and its line end as Redis does: no plus, no leading zeros, and whatever follows the
/// carriage return is taken for the line feed.
#[inline]
fn length(input: &[u8], at: usize) -> Length {
    let line = &input[at..];
    if let [digit @ b'0'..=b'9', b'\r', _, ..] = line {
        return Length::Is(i64::from(digit - b'0'), at + 3);
    }
    if let [tens @ b'1'..=b'9', digit @ b'0'..=b'9', b'\r', _, ..] = line {
        return Length::Is(i64::from(tens - b'0') * 10 + i64::from(digit - b'0'), at + 4);
    }
    let window = &line[..line.len().min(LENGTH_DIGITS_MAX + 1)];
    let Some(end) = memchr::memchr(b'\r', window) else {
        return if window.len() > LENGTH_DIGITS_MAX { Length::Invalid } else { Length::Incomplete };
    };
    if end + 1 == line.len() {
        return Length::Incomplete;
    }
    let digits = line[..end].strip_prefix(b"-").unwrap_or(&line[..end]);
    let canonical = matches!(digits, [b'0'] | [b'1'..=b'9', ..]) && line[..end] != *b"-0";
    match std::str::from_utf8(&line[..end]).ok().and_then(|text| text.parse().ok()) {
        Some(n) if canonical => Length::Is(n, at + end + 2),
        _ => Length::Invalid,
    }
}

impl RequestParser {
    /// Looks for the next command in `input`, which begins where the bytes consumed so far end and repeats
    /// what was there the last time.
    #[inline]
    pub fn next(&mut self, input: &[u8], limits: RequestLimits) -> Step {
        if self.stage == Stage::Done {
            self.restart();
        }
        if self.stage == Stage::Start {
            match input.first() {
                None => return Step::Incomplete { consumed: 0, wanted: 1 },
                Some(b'*') => match length(input, 1) {
                    Length::Incomplete => return Step::Incomplete { consumed: 0, wanted: 1 },
                    Length::Invalid => return Step::Broken(ProtocolError::InvalidMultibulkLength),
                    Length::Is(n, _) if n > RequestLimits::FULL.args_max => {
                        return Step::Broken(ProtocolError::InvalidMultibulkLength);
                    }
                    Length::Is(n, _) if n > limits.args_max => {
                        return Step::Broken(ProtocolError::UnauthenticatedMultibulkLength);
                    }
                    Length::Is(n, end) if n <= 0 => return Step::Empty { consumed: end },
                    Length::Is(n, end) => {
                        self.left = n as u32;
                        self.at = end;
                        self.stage = Stage::Length;
                    }
                },
                Some(&TLS_HANDSHAKE) => match input.get(1) {
                    None => return Step::Incomplete { consumed: 0, wanted: 1 },
                    Some(&TLS_MAJOR) => return Step::Broken(ProtocolError::Tls),
                    Some(_) => self.stage = Stage::Inline { scanned: 0 },
                },
                Some(_) => self.stage = Stage::Inline { scanned: 0 },
            }
        }
        if let Stage::Inline { scanned } = self.stage {
            return self.inline(input, scanned);
        }
        self.multibulk(input, limits)
    }

    /// The arguments of the command that the last step found in `input`, the command's name first.
    #[inline]
    pub fn args<'a>(&'a self, input: &'a [u8]) -> impl ExactSizeIterator<Item = &'a [u8]> {
        let bytes = if self.is_inline { &self.unquoted } else { input };
        self.spans.iter().map(move |span| &bytes[span.at as usize..(span.at + span.len) as usize])
    }

    /// Bytes of memory held.
    pub fn memory(&self) -> usize {
        self.spans.capacity() * size_of::<Span>() + self.unquoted.capacity()
    }

    fn restart(&mut self) {
        self.stage = Stage::Start;
        self.at = 0;
        self.refused = None;
        self.is_inline = false;
        self.spans.clear();
        if self.spans.capacity() > SPANS_KEPT {
            self.spans.shrink_to(0);
        }
        if self.unquoted.capacity() > 0 {
            self.unquoted = Vec::new();
        }
    }

    /// Walks the short arguments that are there whole, which nearly all are, without a look at anything else.
    #[inline]
    fn short_arguments(&mut self, input: &[u8]) {
        let (mut at, mut left) = (self.at, self.left);
        while left > 0 {
            let (len, start) = match &input[at..] {
                [b'$', digit @ b'0'..=b'9', b'\r', _, ..] => (usize::from(digit - b'0'), at + 4),
                [b'$', tens @ b'1'..=b'9', digit @ b'0'..=b'9', b'\r', _, ..] => {
                    (usize::from(tens - b'0') * 10 + usize::from(digit - b'0'), at + 5)
                }
                _ => break,
            };
            if input.len() < start + len + 2 || start > COMMAND_MAX {
                break;
            }
            self.spans.push(Span { at: start as u32, len: len as u32 });
            at = start + len + 2;
            left -= 1;
        }
        (self.at, self.left) = (at, left);
    }

    #[inline]
    fn multibulk(&mut self, input: &[u8], limits: RequestLimits) -> Step {
        if self.stage == Stage::Length && self.refused.is_none() {
            self.short_arguments(input);
        }
        while self.left > 0 {
            if self.stage == Stage::Length {
                let Some(&first) = input.get(self.at) else { return self.incomplete(1) };
                if first != b'$' {
                    return Step::Broken(ProtocolError::ExpectedDollar(first));
                }
                let (len, end) = match length(input, self.at + 1) {
                    Length::Incomplete => return self.incomplete(1),
                    Length::Invalid => return Step::Broken(ProtocolError::InvalidBulkLength),
                    Length::Is(n, end) => (n, end),
                };
                if !(0..=BULK_MAX).contains(&len) {
                    return Step::Broken(ProtocolError::InvalidBulkLength);
                }
                if len > limits.bulk_max {
                    return Step::Broken(ProtocolError::UnauthenticatedBulkLength);
                }
                let len = len as usize;
                self.at = end;
                if len > MAX_VALUE_LEN {
                    self.refuse(Refusal::ArgumentTooLong);
                } else if end + len > COMMAND_MAX {
                    self.refuse(Refusal::CommandTooLong);
                }
                self.stage = Stage::Argument { left: len + 2 };
            }
            let Stage::Argument { left } = self.stage else { unreachable!("the only other stage in here") };
            let there = input.len() - self.at;
            if self.refused.is_some() {
                let passed = left.min(there);
                self.at += passed;
                if passed < left {
                    self.stage = Stage::Argument { left: left - passed };
                    return self.incomplete(left - passed);
                }
            } else if there < left {
                return self.incomplete(left - there);
            } else {
                self.spans.push(Span { at: self.at as u32, len: (left - 2) as u32 });
                self.at += left;
            }
            self.left -= 1;
            self.stage = Stage::Length;
        }
        self.stage = Stage::Done;
        match self.refused {
            Some(refusal) => Step::Refused { consumed: self.at, refusal },
            None => Step::Command { consumed: self.at },
        }
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.refused.get_or_insert(refusal);
        self.spans = Vec::new();
    }

    /// Ends a step with an incomplete command. The part of a dropped command that was passed over is not held.
    fn incomplete(&mut self, wanted: usize) -> Step {
        let consumed = if self.refused.is_some() { std::mem::take(&mut self.at) } else { 0 };
        Step::Incomplete { consumed, wanted }
    }

    fn inline(&mut self, input: &[u8], scanned: usize) -> Step {
        let Some(found) = memchr::memchr(b'\n', &input[scanned..]) else {
            if input.len() > INLINE_MAX {
                return Step::Broken(ProtocolError::TooBigInline);
            }
            self.stage = Stage::Inline { scanned: input.len() };
            return Step::Incomplete { consumed: 0, wanted: 1 };
        };
        let end = scanned + found;
        if end > INLINE_MAX {
            return Step::Broken(ProtocolError::TooBigInline);
        }
        let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
        self.stage = Stage::Done;
        self.is_inline = true;
        let spans = &mut self.spans;
        let note = |word: Range<usize>| spans.push(Span { at: word.start as u32, len: word.len() as u32 });
        let Some(()) = split_words(line, &mut self.unquoted, note) else {
            return Step::Broken(ProtocolError::UnbalancedQuotes);
        };
        let consumed = end + 1;
        if self.spans.is_empty() { Step::Empty { consumed } } else { Step::Command { consumed } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// What a connection that is fed `pieces` one after the other sees.
    #[derive(Debug, PartialEq, Clone)]
    enum Seen {
        Command(Vec<Vec<u8>>),
        Refused(Refusal),
        Broken(ProtocolError),
    }

    fn feed<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limits: RequestLimits) -> Vec<Seen> {
        let (mut parser, mut held, mut seen) = (RequestParser::default(), Vec::new(), Vec::new());
        for piece in pieces {
            held.extend_from_slice(piece);
            let mut at = 0;
            loop {
                match parser.next(&held[at..], limits) {
                    Step::Command { consumed } => {
                        seen.push(Seen::Command(parser.args(&held[at..]).map(<[u8]>::to_vec).collect()));
                        at += consumed;
                    }
                    Step::Empty { consumed } => at += consumed,
                    Step::Refused { consumed, refusal } => {
                        seen.push(Seen::Refused(refusal));
                        at += consumed;
                    }
                    Step::Incomplete { consumed, wanted } => {
                        assert!(wanted > 0);
                        at += consumed;
                        break;
                    }
                    Step::Broken(error) => {
                        seen.push(Seen::Broken(error));
                        return seen;
                    }
                }
            }
            held.drain(..at);
        }
        seen
    }

    fn all(bytes: &[u8]) -> Vec<Seen> {
        feed([bytes], RequestLimits::FULL)
    }

    fn command(words: &[&str]) -> Seen {
        Seen::Command(words.iter().map(|w| w.as_bytes().to_vec()).collect())
    }

    #[test]
    fn arrays_and_lines_become_commands() {
        assert_eq!(all(b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"), [command(&["GET", "k"])]);
        assert_eq!(all(b"*1\r\n$0\r\n\r\nPING\r\n"), [command(&[""]), command(&["PING"])]);
        assert_eq!(all(b"*0\r\n*-1\r\n\r\n  \nPING\n"), [command(&["PING"])]);
        let long = format!("*1\r\n$123\r\n{}\r\n", "x".repeat(123));
        assert_eq!(all(long.as_bytes()), [command(&[&"x".repeat(123)])]);
    }

    #[test]
    fn lines_are_unquoted_as_redis_does() {
        let line = br#"set "a b" 'c"d' "\x41\n\q" e\f g'h'"#;
        let words = command(&["set", "a b", "c\"d", "A\nq", "e\\f", "gh"]);
        assert_eq!(all(&[line, &b"\r\n"[..]].concat()), [words]);
        assert_eq!(
            all(br#"echo 'it\'s' "\x4g" """#.iter().chain(b"\n").copied().collect::<Vec<_>>().as_slice()),
            [command(&["echo", "it's", "x4g", ""])]
        );
        for bad in ["echo \"a\n", "echo 'a\n", "echo \"a\"b\n", "echo 'a'b\n"] {
            assert_eq!(all(bad.as_bytes()), [Seen::Broken(ProtocolError::UnbalancedQuotes)], "{bad}");
        }
    }

    #[test]
    fn lost_framing_is_an_error() {
        use ProtocolError::*;
        for (bytes, error) in [
            (&b"*x\r\n"[..], InvalidMultibulkLength),
            (b"*03\r\n", InvalidMultibulkLength),
            (b"*+3\r\n", InvalidMultibulkLength),
            (b"*1048577\r\n", InvalidMultibulkLength),
            (b"*123456789012345678901", InvalidMultibulkLength),
            (b"*1\r\n$x\r\n", InvalidBulkLength),
            (b"*1\r\n$-1\r\n", InvalidBulkLength),
            (b"*1\r\n$536870913\r\n", InvalidBulkLength),
            (b"*1\r\nPING\r\n", ExpectedDollar(b'P')),
        ] {
            assert_eq!(all(bytes), [Seen::Broken(error)], "{}", bytes.escape_ascii());
        }
        assert_eq!(all(&[b'x'; INLINE_MAX + 1]), [Seen::Broken(TooBigInline)]);
        assert_eq!(ExpectedDollar(b'P').to_string(), "ERR Protocol error: expected '$', got 'P'");
    }

    #[test]
    fn strangers_get_little() {
        use ProtocolError::*;
        let limits = RequestLimits::UNAUTHENTICATED;
        assert_eq!(feed([&b"*11\r\n"[..]], limits), [Seen::Broken(UnauthenticatedMultibulkLength)]);
        assert_eq!(feed([&b"*1\r\n$16385\r\n"[..]], limits), [Seen::Broken(UnauthenticatedBulkLength)]);
    }

    #[test]
    fn an_oversized_argument_is_dropped_as_it_arrives() {
        let mut parser = RequestParser::default();
        let head = b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$16777217\r\n";
        let Step::Incomplete { consumed, wanted } = parser.next(head, RequestLimits::FULL) else { panic!() };
        assert_eq!((consumed, wanted), (head.len(), 16_777_217 + 2));
        let block = [b'v'; 1 << 16];
        for _ in 0..256 {
            let step = parser.next(&block, RequestLimits::FULL);
            assert!(matches!(step, Step::Incomplete { consumed, .. } if consumed == block.len()));
        }
        let step = parser.next(b"v\r\nPING\r\n", RequestLimits::FULL);
        assert_eq!(step, Step::Refused { consumed: 3, refusal: Refusal::ArgumentTooLong });
        assert_eq!(parser.next(b"PING\r\n", RequestLimits::FULL), Step::Command { consumed: 6 });
        assert!(parser.memory() < 1024);
    }

    #[test]
    fn a_command_of_too_many_bytes_is_dropped() {
        let mut pieces = vec![b"*18\r\n".to_vec()];
        for _ in 0..18 {
            let mut bulk = b"$16777216\r\n".to_vec();
            bulk.resize(bulk.len() + (16 << 20), b'v');
            bulk.extend_from_slice(b"\r\n");
            pieces.push(bulk);
        }
        let seen = feed(pieces.iter().map(|p| &**p), RequestLimits::FULL);
        assert_eq!(seen, [Seen::Refused(Refusal::CommandTooLong)]);
    }

    #[test]
    fn a_partial_command_is_not_walked_again() {
        // Byte by byte; were it walked from the start each time, this would be 2 * 10^10 steps.
        let bytes = [&b"*20000\r\n"[..], &b"$4\r\nabcd\r\n".repeat(20_000)].concat();
        let mut parser = RequestParser::default();
        for end in 0..bytes.len() {
            assert!(matches!(parser.next(&bytes[..end], RequestLimits::FULL), Step::Incomplete { .. }));
        }
        assert_eq!(parser.next(&bytes, RequestLimits::FULL), Step::Command { consumed: bytes.len() });
        assert_eq!(parser.args(&bytes).len(), 20_000);
    }

    fn stream() -> impl Strategy<Value = Vec<u8>> {
        let array = vec(vec(any::<u8>(), 0..40), 1..6).prop_map(|args| crate::client::command(&args));
        let line = "[a-z]{1,5}( [a-z\"']{0,6}){0,3}\r?\n".prop_map(String::into_bytes);
        let odd =
            proptest::sample::select(vec![&b"*0\r\n"[..], b"\r\n", b"*-1\r\n", b"*x\r\n", b"*1\r\n$-1\r\n"]);
        let piece = prop_oneof![8 => array, 4 => line, 1 => odd.prop_map(<[u8]>::to_vec)];
        vec(piece, 0..8).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn any_split_gives_the_same_commands(bytes in stream(), cuts in vec(any::<prop::sample::Index>(), 0..20)) {
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c.index(bytes.len() + 1)).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|w| &bytes[w[0]..w[1]]);
            prop_assert_eq!(feed(pieces, RequestLimits::FULL), all(&bytes));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(10_000))]

        #[test]
        fn garbage_never_panics_and_holds_little(
            bytes in vec(prop_oneof![
                4 => any::<u8>(),
                8 => proptest::sample::select(b"*$\r\n0123456789-\"'\\x ".to_vec()),
            ], 0..200),
        ) {
            let mut parser = RequestParser::default();
            let mut at = 0;
            loop {
                match parser.next(&bytes[at..], RequestLimits::FULL) {
                    Step::Command { consumed } => {
                        prop_assert!(parser.args(&bytes[at..]).len() > 0);
                        at += consumed;
                    }
                    Step::Empty { consumed } | Step::Refused { consumed, .. } => at += consumed,
                    Step::Incomplete { .. } | Step::Broken(_) => break,
                }
            }
            prop_assert!(at <= bytes.len());
            prop_assert!(parser.memory() <= 16 * (bytes.len() + 8), "{}", parser.memory());
        }
    }
}
