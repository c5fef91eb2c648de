//! Replies: protocol-neutral [`Datum`] bytes into RESP2 or RESP3.
//!
//! Both encodings are prefix codes with a count in front of composites, so a reply of any depth is translated
//! in one pass without recursion.

use ordain_commands::script::double_text;
use ordain_model::{Datum, KeptReply};

/// The protocol version that a connection has asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// What every client starts with.
    #[default]
    Resp2,
    /// What HELLO 3 asks for.
    Resp3,
}

impl Protocol {
    /// The number, as HELLO takes it.
    pub const fn number(self) -> i64 {
        match self {
            Protocol::Resp2 => 2,
            Protocol::Resp3 => 3,
        }
    }
}

const DAMAGED: &[u8] = b"ERR the reply is damaged; this is a bug";

/// Appends a reply. Bytes that are no encoding become an error: the client is owed one reply either way.
#[inline]
pub fn encode(protocol: Protocol, reply: &[u8], out: &mut Vec<u8>) {
    let mark = out.len();
    let (mut rest, mut owed) = (reply, 1u64);
    while owed > 0 {
        let Some((datum, tail)) = Datum::split(rest) else {
            out.truncate(mark);
            return line(b'-', DAMAGED, out);
        };
        owed -= 1;
        rest = tail;
        if let (Datum::Pairs(n), Protocol::Resp3) = (datum, protocol) {
            number(b'*', i64::from(n), out);
            for item in 0..2 * u64::from(n) {
                if item % 2 == 0 {
                    number(b'*', 2, out);
                }
                let Some((datum, tail)) = Datum::split(rest) else {
                    out.truncate(mark);
                    return line(b'-', DAMAGED, out);
                };
                one(protocol, datum, out);
                rest = tail;
            }
        } else {
            owed += one(protocol, datum, out);
        }
    }
}

/// A large reply that is encoded piece by piece, as room for it comes.
#[derive(Debug)]
pub(crate) struct Encoding {
    reply: KeptReply,
    protocol: Protocol,
    /// How much of the reply is encoded, bytes.
    at: usize,
    /// Values to come.
    owed: u64,
    /// Items of pairs to come, before those.
    in_pairs: u64,
    /// Bytes to come of a string, before all that.
    in_string: Option<usize>,
}

impl Encoding {
    /// Begins with a reply. In bytes that are no encoding each value that is owed becomes an error.
    pub(crate) fn new(protocol: Protocol, reply: KeptReply) -> Encoding {
        Encoding { reply, protocol, at: 0, owed: 1, in_pairs: 0, in_string: None }
    }

    /// Bytes of the reply that are not encoded.
    pub(crate) fn left(&self) -> usize {
        self.reply.len() - self.at
    }

    /// Appends to a buffer until it has so many bytes or a few more; says whether the end has come.
    pub(crate) fn write(&mut self, most: usize, out: &mut Vec<u8>) -> bool {
        let is_3 = self.protocol == Protocol::Resp3;
        while out.len() < most {
            if let Some(left) = self.in_string {
                let end = self.at + left.min(most - out.len());
                out.extend_from_slice(&self.reply[self.at..end]);
                self.in_string = Some(left - (end - self.at)).filter(|left| *left > 0);
                self.at = end;
                if self.in_string.is_none() {
                    out.extend_from_slice(b"\r\n");
                }
                continue;
            }
            if self.in_pairs == 0 && self.owed == 0 {
                return true;
            }
            if self.in_pairs > 0 {
                if self.in_pairs.is_multiple_of(2) {
                    number(b'*', 2, out);
                }
                self.in_pairs -= 1;
            } else {
                self.owed -= 1;
            }
            let Some((datum, tail)) = Datum::split(&self.reply[self.at..]) else {
                line(b'-', DAMAGED, out);
                continue;
            };
            match datum {
                Datum::Bulk(bytes) if bytes.len() > most => {
                    number(b'$', bytes.len() as i64, out);
                    self.at = self.reply.len() - tail.len() - bytes.len();
                    self.in_string = Some(bytes.len());
                    continue;
                }
                Datum::Pairs(n) if is_3 => {
                    number(b'*', i64::from(n), out);
                    self.in_pairs = 2 * u64::from(n);
                }
                datum => self.owed += one(self.protocol, datum, out),
            }
            self.at = self.reply.len() - tail.len();
        }
        self.in_string.is_none() && self.in_pairs == 0 && self.owed == 0
    }
}

/// Appends one value; says how many items of it are to follow.
#[inline]
fn one(protocol: Protocol, datum: Datum<'_>, out: &mut Vec<u8>) -> u64 {
    let is_3 = protocol == Protocol::Resp3;
    match datum {
        Datum::Bulk(bytes) => bulk(bytes, out),
        Datum::Status(b"OK") => out.extend_from_slice(b"+OK\r\n"),
        Datum::Int(i) => number(b':', i, out),
        Datum::Nil if is_3 => out.extend_from_slice(b"_\r\n"),
        Datum::Nil => out.extend_from_slice(b"$-1\r\n"),
        Datum::NilArray if is_3 => out.extend_from_slice(b"_\r\n"),
        Datum::NilArray => out.extend_from_slice(b"*-1\r\n"),
        Datum::Status(text) => line(b'+', text, out),
        Datum::Error(text) => line(b'-', text, out),
        Datum::Array(n) => {
            number(b'*', i64::from(n), out);
            return u64::from(n);
        }
        Datum::Map(n) => {
            let (tag, shown) = if is_3 { (b'%', i64::from(n)) } else { (b'*', 2 * i64::from(n)) };
            number(tag, shown, out);
            return 2 * u64::from(n);
        }
        Datum::Pairs(n) => {
            number(b'*', 2 * i64::from(n), out);
            return 2 * u64::from(n);
        }
        Datum::Set(n) => {
            number(if is_3 { b'~' } else { b'*' }, i64::from(n), out);
            return u64::from(n);
        }
        Datum::Bool(b) if is_3 => out.extend_from_slice(if b { b"#t\r\n" } else { b"#f\r\n" }),
        Datum::Bool(b) => number(b':', i64::from(b), out),
        Datum::Double(d) => {
            let text = double_text(d);
            if is_3 {
                line(b',', text.as_bytes(), out);
            } else {
                bulk(text.as_bytes(), out);
            }
        }
        Datum::Verbatim(format, text) if is_3 => {
            number(b'=', text.len() as i64 + 4, out);
            out.extend_from_slice(&format);
            out.push(b':');
            out.extend_from_slice(text);
            out.extend_from_slice(b"\r\n");
        }
        Datum::BigNumber(digits) if is_3 => line(b'(', digits, out),
        Datum::Verbatim(_, text) | Datum::BigNumber(text) => bulk(text, out),
    }
    0
}

#[inline]
pub(crate) fn bulk(bytes: &[u8], out: &mut Vec<u8>) {
    number(b'$', bytes.len() as i64, out);
    out.reserve(bytes.len() + 2);
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

/// Appends an error text.
pub fn error(text: &[u8], out: &mut Vec<u8>) {
    line(b'-', text, out);
}

/// A line must not hold line ends: what a script puts into an error could forge a reply otherwise.
fn line(tag: u8, text: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend(text.iter().map(|b| if matches!(b, b'\r' | b'\n') { b' ' } else { *b }));
    out.extend_from_slice(b"\r\n");
}

#[inline]
pub(crate) fn number(tag: u8, n: i64, out: &mut Vec<u8>) {
    if let Ok(digit @ 0..=9) = u8::try_from(n) {
        return out.extend_from_slice(&[tag, b'0' + digit, b'\r', b'\n']);
    }
    // Tag, sign, nineteen digits, line end.
    let mut buffer = [0u8; 23];
    let mut at = buffer.len() - 2;
    buffer[at..].copy_from_slice(b"\r\n");
    let mut left = n.unsigned_abs();
    loop {
        at -= 1;
        buffer[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if n < 0 {
        at -= 1;
        buffer[at] = b'-';
    }
    at -= 1;
    buffer[at] = tag;
    out.extend_from_slice(&buffer[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::{ChunkNo, GatewayId, Gsn, OutcomeBatch, OutcomeStatus, Writer};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// A reply as it came with others.
    fn kept(reply: &[u8]) -> KeptReply {
        let mut batch = OutcomeBatch::new(GatewayId::of(0, 0));
        for bytes in [&b"before"[..], reply, b"after"] {
            batch
                .push(ChunkNo(1), 0, Gsn::NONE, OutcomeStatus::Committed, |out| out.extend_from_slice(bytes));
        }
        let batch = Arc::new(batch);
        KeptReply::new(&batch, &batch.outcomes[1])
    }

    /// Writes values by a script of kinds and sizes, composites with what follows.
    fn tree(script: &mut impl Iterator<Item = (u8, usize)>, depth: usize, out: &mut Vec<u8>) {
        let (kind, size) = script.next().unwrap_or((0, 3));
        let items = if depth == 0 { 0 } else { size % 5 };
        let w = &mut Writer(out);
        let items = match kind {
            0 => return w.int(size as i64),
            1 => return w.bulk(&vec![b'x'; size]),
            2 => return w.error("ERR x"),
            3 => return w.verbatim(*b"txt", b"text"),
            4 => {
                w.pairs(items);
                return (0..2 * items).for_each(|n| Writer(out).bulk(&vec![b'p'; n * 7]));
            }
            5 => {
                w.map(items);
                2 * items
            }
            _ => {
                w.array(items);
                items
            }
        };
        (0..items).for_each(|_| tree(script, depth - 1, out));
    }

    proptest! {
        /// However large the pieces are, together they are the reply.
        #[test]
        fn pieces_of_a_reply_are_the_reply(
            script in prop::collection::vec((0..8u8, 0..300usize), 1..60),
            piece in 1..400usize,
        ) {
            let mut reply = Vec::new();
            tree(&mut script.into_iter(), 5, &mut reply);
            for protocol in [Protocol::Resp2, Protocol::Resp3] {
                let (mut whole, mut pieces) = (Vec::new(), Vec::new());
                encode(protocol, &reply, &mut whole);
                let mut encoding = Encoding::new(protocol, kept(&reply));
                loop {
                    let mut out = Vec::new();
                    let is_done = encoding.write(piece, &mut out);
                    prop_assert!(out.len() < piece + 400, "{} of {piece}", out.len());
                    prop_assert!(is_done || !out.is_empty());
                    pieces.extend_from_slice(&out);
                    if is_done {
                        break;
                    }
                }
                prop_assert_eq!(&pieces, &whole);
                prop_assert_eq!(encoding.left(), 0);
            }
        }
    }

    #[test]
    fn each_value_of_a_damaged_reply_is_an_error() {
        let mut damaged = Vec::new();
        Writer(&mut damaged).array(2);
        let mut out = Vec::new();
        assert!(Encoding::new(Protocol::Resp2, kept(&damaged)).write(1000, &mut out));
        let error = [b"-", DAMAGED, b"\r\n"].concat();
        assert_eq!(out, [b"*2\r\n", &*error, &error].concat());
    }

    fn both(write: impl Fn(&mut Writer<'_>)) -> (String, String) {
        let mut datum = Vec::new();
        write(&mut Writer(&mut datum));
        let [two, three] = [Protocol::Resp2, Protocol::Resp3].map(|protocol| {
            let mut out = Vec::new();
            encode(protocol, &datum, &mut out);
            String::from_utf8(out).unwrap()
        });
        (two, three)
    }

    #[test]
    fn each_kind_in_each_protocol() {
        type Case<'a> = (&'a dyn Fn(&mut Writer<'_>), &'a str, &'a str);
        let cases: &[Case<'_>] = &[
            (&|w| w.nil(), "$-1\r\n", "_\r\n"),
            (&|w| w.nil_array(), "*-1\r\n", "_\r\n"),
            (&|w| w.int(7), ":7\r\n", ":7\r\n"),
            (&|w| w.int(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (&|w| w.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"),
            (&|w| w.ok(), "+OK\r\n", "+OK\r\n"),
            (&|w| w.error("ERR a\r\nb"), "-ERR a  b\r\n", "-ERR a  b\r\n"),
            (&|w| w.bool(true), ":1\r\n", "#t\r\n"),
            (&|w| w.double(0.5), "$3\r\n0.5\r\n", ",0.5\r\n"),
            (&|w| w.verbatim(*b"txt", b"a\nb"), "$3\r\na\nb\r\n", "=7\r\ntxt:a\nb\r\n"),
            (&|w| w.big_number(b"-12"), "$3\r\n-12\r\n", "(-12\r\n"),
        ];
        for (write, two, three) in cases {
            assert_eq!(both(write), ((*two).to_string(), (*three).to_string()));
        }
        let pairs = both(|w| {
            w.array(2);
            w.pairs(2);
            (1..=4).for_each(|n| w.int(n));
            w.nil();
        });
        assert_eq!(pairs.0, "*2\r\n*4\r\n:1\r\n:2\r\n:3\r\n:4\r\n$-1\r\n");
        assert_eq!(pairs.1, "*2\r\n*2\r\n*2\r\n:1\r\n:2\r\n*2\r\n:3\r\n:4\r\n_\r\n");
        let nested = both(|w| {
            w.map(1);
            w.bulk(b"k");
            w.set(2);
            w.int(1);
            w.nil();
        });
        assert_eq!(nested.0, "*2\r\n$1\r\nk\r\n*2\r\n:1\r\n$-1\r\n");
        assert_eq!(nested.1, "%1\r\n$1\r\nk\r\n~2\r\n:1\r\n_\r\n");
    }

    #[test]
    fn numbers_print_as_redis_prints_them() {
        for (d, text) in [
            (3.0, "3"),
            (2.75, "2.75"),
            (-0.1, "-0.10000000000000001"),
            (0.0, "0"),
            (1e7, "10000000"),
            (1e21, "1e+21"),
            (123456.75, "123456.75"),
            (0.001, "0.001"),
            (1.5e300, "1.5000000000000001e+300"),
            (1e-7, "9.9999999999999995e-08"),
            (-1.25e-9, "-1.25e-09"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(double_text(d), text);
        }
    }

    #[test]
    fn damaged_bytes_still_make_one_reply() {
        let mut out = b"+OK\r\n".to_vec();
        let mut datum = Vec::new();
        Writer(&mut datum).array(2);
        Writer(&mut datum).int(1);
        encode(Protocol::Resp2, &datum, &mut out);
        assert_eq!(out, b"+OK\r\n-ERR the reply is damaged; this is a bug\r\n");
    }
}
