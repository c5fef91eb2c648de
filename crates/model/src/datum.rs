//! Datums: the small self-describing values that fragments write into their slots and transactions answer.
//!
//! The encoding is protocol-neutral bytes, so that results are appended to one buffer, compared byte by byte
//! with the reference executor's, and turned into RESP2 or RESP3 only where the connection is known.

use crate::error::Abort;

const NIL: u8 = 0;
const INT: u8 = 1;
const BULK: u8 = 2;
const STATUS: u8 = 3;
const ERROR: u8 = 4;
const ARRAY: u8 = 5;
const MAP: u8 = 6;
const BOOL: u8 = 7;
const DOUBLE: u8 = 8;
const NIL_ARRAY: u8 = 9;
const SET: u8 = 10;
const VERBATIM: u8 = 11;
const BIG_NUMBER: u8 = 12;
const PAIRS: u8 = 13;

/// A decoded value. Composite values say how many items follow them in the same buffer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Datum<'a> {
    /// No value.
    Nil,
    /// No array: what an EXEC answers whose WATCH failed.
    NilArray,
    /// A 64-bit integer.
    Int(i64),
    /// Binary-safe bytes.
    Bulk(&'a [u8]),
    /// A short status such as `OK`.
    Status(&'a [u8]),
    /// An error text that begins with its code.
    Error(&'a [u8]),
    /// An array: the number of items that follow.
    Array(u32),
    /// A map: the number of pairs of items that follow.
    Map(u32),
    /// The number of pairs of items that follow, none of which has items of its own: an array of arrays in RESP3, and as flat as a
    /// map in RESP2.
    Pairs(u32),
    /// A set: the number of distinct items that follow.
    Set(u32),
    /// A truth value.
    Bool(bool),
    /// A floating point number.
    Double(f64),
    /// A text for people, and what it is written in: `txt` or `mkd`.
    Verbatim([u8; 3], &'a [u8]),
    /// An integer of any size, in decimal.
    BigNumber(&'a [u8]),
}

impl<'a> Datum<'a> {
    /// True if the value at the start of `bytes` is an error.
    #[inline]
    pub fn is_error(bytes: &[u8]) -> bool {
        bytes.first() == Some(&ERROR)
    }

    /// Decodes the value at the start of `bytes` and returns what follows it.
    ///
    /// # Errors
    /// `None` if the bytes are not an encoding; bytes written by [`Writer`] always are.
    #[inline]
    pub fn split(bytes: &'a [u8]) -> Option<(Datum<'a>, &'a [u8])> {
        let (&tag, rest) = bytes.split_first()?;
        let word = |rest: &'a [u8]| -> Option<(u32, &'a [u8])> {
            let (head, tail) = rest.split_first_chunk::<4>()?;
            Some((u32::from_le_bytes(*head), tail))
        };
        let text = |rest: &'a [u8]| -> Option<(&'a [u8], &'a [u8])> {
            let (len, tail) = word(rest)?;
            tail.split_at_checked(len as usize)
        };
        Some(match tag {
            NIL => (Datum::Nil, rest),
            NIL_ARRAY => (Datum::NilArray, rest),
            INT => {
                let (head, tail) = rest.split_first_chunk::<8>()?;
                (Datum::Int(i64::from_le_bytes(*head)), tail)
            }
            BULK => text(rest).map(|(t, tail)| (Datum::Bulk(t), tail))?,
            STATUS => text(rest).map(|(t, tail)| (Datum::Status(t), tail))?,
            ERROR => text(rest).map(|(t, tail)| (Datum::Error(t), tail))?,
            ARRAY => word(rest).map(|(n, tail)| (Datum::Array(n), tail))?,
            MAP => word(rest).map(|(n, tail)| (Datum::Map(n), tail))?,
            PAIRS => word(rest).map(|(n, tail)| (Datum::Pairs(n), tail))?,
            SET => word(rest).map(|(n, tail)| (Datum::Set(n), tail))?,
            BOOL => {
                let (&b, tail) = rest.split_first()?;
                (Datum::Bool(b != 0), tail)
            }
            DOUBLE => {
                let (head, tail) = rest.split_first_chunk::<8>()?;
                (Datum::Double(f64::from_le_bytes(*head)), tail)
            }
            VERBATIM => {
                let (text, tail) = text(rest)?;
                let (format, text) = text.split_first_chunk::<3>()?;
                (Datum::Verbatim(*format, text), tail)
            }
            BIG_NUMBER => text(rest).map(|(t, tail)| (Datum::BigNumber(t), tail))?,
            _ => return None,
        })
    }

    /// Decodes the first value of `bytes`; [`Datum::Nil`] if there is none.
    #[inline]
    pub fn first(bytes: &'a [u8]) -> Datum<'a> {
        Datum::split(bytes).map_or(Datum::Nil, |(d, _)| d)
    }

    /// Splits a whole value off `bytes`, its items included.
    pub fn split_whole(bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let (mut rest, mut pending) = (bytes, 1u64);
        while pending > 0 {
            let (datum, tail) = Datum::split(rest)?;
            pending -= 1;
            pending += match datum {
                Datum::Array(n) | Datum::Set(n) => u64::from(n),
                Datum::Map(n) | Datum::Pairs(n) => 2 * u64::from(n),
                _ => 0,
            };
            rest = tail;
        }
        Some(bytes.split_at(bytes.len() - rest.len()))
    }

    /// The integer, if it is one.
    pub fn as_int(self) -> Option<i64> {
        match self {
            Datum::Int(i) => Some(i),
            _ => None,
        }
    }

    /// The bytes of a bulk or status, if it is one.
    pub fn as_bytes(self) -> Option<&'a [u8]> {
        match self {
            Datum::Bulk(b) | Datum::Status(b) => Some(b),
            _ => None,
        }
    }
}

/// Reads values one after the other. A method for one kind of value answers `None` where another kind stands, or none.
#[derive(Clone, Copy, Debug)]
pub struct DatumReader<'a>(pub &'a [u8]);

impl<'a> Iterator for DatumReader<'a> {
    type Item = Datum<'a>;

    fn next(&mut self) -> Option<Datum<'a>> {
        let (datum, rest) = Datum::split(self.0)?;
        self.0 = rest;
        Some(datum)
    }
}

impl<'a> DatumReader<'a> {
    /// The next value, an integer.
    pub fn int(&mut self) -> Option<i64> {
        self.next()?.as_int()
    }

    /// The next value, a truth value.
    pub fn bool(&mut self) -> Option<bool> {
        if let Datum::Bool(is_true) = self.next()? { Some(is_true) } else { None }
    }

    /// The next value, a bulk.
    pub fn bulk(&mut self) -> Option<&'a [u8]> {
        if let Datum::Bulk(bytes) = self.next()? { Some(bytes) } else { None }
    }

    /// The next value, an array: the number of items that follow.
    pub fn array(&mut self) -> Option<u32> {
        if let Datum::Array(items) = self.next()? { Some(items) } else { None }
    }
}

pub(crate) const TOO_MUCH: &str = "ERR the records that go from key to key exceed the limit of 512 MiB, or an equal share of it for \
                        each command of a transaction that carries some: it did nothing, carry less at once";
/// The error in the place of a reply that would be longer than [`MAX_REPLY`](crate::limits::MAX_REPLY).
pub const TOO_LONG: &str =
    "ERR the reply exceeds the limit of 256 MiB: ask for less at once (what was to be written is written)";

/// Appends the reply of a transaction, or in the place of one that is longer than this an error that says so. It
/// depends on nothing but the reply, so every replica has the same.
pub fn bounded_reply(most: usize, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    write(out);
    if out.len() - at > most {
        out.truncate(at);
        out.shrink_to_fit();
        Writer(out).too_long();
    }
}

/// Appends values to a buffer.
#[derive(Debug)]
pub struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    /// [`Datum::Nil`].
    #[inline]
    pub fn nil(&mut self) {
        self.0.push(NIL);
    }

    /// [`Datum::NilArray`].
    pub fn nil_array(&mut self) {
        self.0.push(NIL_ARRAY);
    }

    /// [`Datum::Int`].
    #[inline]
    pub fn int(&mut self, i: i64) {
        self.0.push(INT);
        self.0.extend_from_slice(&i.to_le_bytes());
    }

    /// [`Datum::Bulk`].
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.text(BULK, bytes);
    }

    /// [`Datum::Bulk`] of the bytes that `fill` appends.
    pub fn bulk_of(&mut self, fill: impl FnOnce(&mut Vec<u8>)) {
        let at = self.0.len();
        self.word(BULK, 0);
        let start = self.0.len();
        fill(self.0);
        let len = u32::try_from(self.0.len().saturating_sub(start)).unwrap_or(u32::MAX);
        if let Some(place) = self.0.get_mut(at + 1..start) {
            place.copy_from_slice(&len.to_le_bytes());
        }
    }

    /// [`Datum::Status`].
    #[inline]
    pub fn status<T: AsRef<[u8]> + ?Sized>(&mut self, text: &T) {
        self.text(STATUS, text.as_ref());
    }

    /// `OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.status("OK");
    }

    /// [`Datum::Error`]; the text begins with its code, as `ERR …` does.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.text(ERROR, text.as_ref());
    }

    /// [`Datum::Array`]: write the items next.
    pub fn array(&mut self, items: usize) {
        self.word(ARRAY, items);
    }

    /// [`Datum::Map`]: write the keys and values next, alternately.
    pub fn map(&mut self, pairs: usize) {
        self.word(MAP, pairs);
    }

    /// [`Datum::Pairs`]: write the items next, two of each pair.
    pub fn pairs(&mut self, pairs: usize) {
        self.word(PAIRS, pairs);
    }

    /// [`Datum::Set`]: write the items next.
    pub fn set(&mut self, items: usize) {
        self.word(SET, items);
    }

    /// [`Datum::Bool`].
    pub fn bool(&mut self, b: bool) {
        self.0.extend_from_slice(&[BOOL, u8::from(b)]);
    }

    /// [`Datum::Double`].
    pub fn double(&mut self, d: f64) {
        self.0.push(DOUBLE);
        self.0.extend_from_slice(&d.to_le_bytes());
    }

    /// [`Datum::Verbatim`].
    pub fn verbatim(&mut self, format: [u8; 3], text: &[u8]) {
        self.word(VERBATIM, format.len() + text.len());
        self.0.extend_from_slice(&format);
        self.0.extend_from_slice(text);
    }

    /// [`Datum::BigNumber`]: digits, with a sign in front or without.
    pub fn big_number(&mut self, digits: &[u8]) {
        self.text(BIG_NUMBER, digits);
    }

    /// A value that is already encoded.
    #[inline]
    pub fn raw(&mut self, encoded: &[u8]) {
        self.0.extend_from_slice(encoded);
    }

    /// The error in the place of a reply that would be too long.
    pub fn too_long(&mut self) {
        self.error(TOO_LONG);
    }

    /// The answer of a fragment that is handed more than its share of what its transaction may carry.
    pub fn too_much(&mut self) {
        self.error(TOO_MUCH);
    }

    /// The answer to an abort that carries no reply of its own.
    pub fn abort(&mut self, abort: Abort) {
        self.error(abort.text());
    }

    fn text(&mut self, tag: u8, bytes: &[u8]) {
        self.word(tag, bytes.len());
        self.0.extend_from_slice(bytes);
    }

    #[inline]
    fn word(&mut self, tag: u8, n: usize) {
        let n = u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        self.0.extend_from_slice(&[tag, n[0], n[1], n[2], n[3]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_the_place_of_a_reply_that_is_too_long_stands_an_error() {
        // A bulk is five bytes more than its text, for what it is and how long.
        for (len, is_told) in [(95, true), (96, false)] {
            let mut buffer = Vec::new();
            Writer(&mut buffer).int(7);
            let before = buffer.clone();
            let text = vec![b'x'; len];
            bounded_reply(100, &mut buffer, |out| Writer(out).bulk(&text));
            let reply = Datum::first(buffer.strip_prefix(&before[..]).unwrap());
            assert_eq!(reply, if is_told { Datum::Bulk(&text) } else { Datum::Error(TOO_LONG.as_bytes()) });
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let mut buffer = Vec::new();
        let mut w = Writer(&mut buffer);
        w.array(3);
        w.int(-5);
        w.map(1);
        w.bulk(b"k");
        w.double(0.5);
        w.status("OK");
        w.nil();
        let (whole, rest) = Datum::split_whole(&buffer).unwrap();
        assert_eq!(rest, [NIL]);
        let mut at = whole;
        let mut seen = Vec::new();
        while let Some((datum, tail)) = Datum::split(at) {
            seen.push(datum);
            at = tail;
        }
        use Datum::{Array, Bulk, Double, Int, Map, Status};
        assert_eq!(seen, [Array(3), Int(-5), Map(1), Bulk(b"k"), Double(0.5), Status(b"OK")]);
    }

    #[test]
    fn texts_for_people_and_large_numbers_are_read_as_they_were_written() {
        let mut buffer = Vec::new();
        let mut w = Writer(&mut buffer);
        w.verbatim(*b"txt", b"a\r\nb");
        w.big_number(b"-12345678901234567890");
        w.bulk_of(|out| out.extend_from_slice(b"some"));
        let (first, rest) = Datum::split(&buffer).unwrap();
        assert_eq!(first, Datum::Verbatim(*b"txt", b"a\r\nb"));
        let (second, rest) = Datum::split(rest).unwrap();
        assert_eq!(second, Datum::BigNumber(b"-12345678901234567890"));
        assert_eq!(Datum::split(rest), Some((Datum::Bulk(b"some"), &[][..])));
        assert!(Datum::split(&[VERBATIM, 2, 0, 0, 0, b't', b'x']).is_none());
    }

    #[test]
    fn damaged_bytes_are_refused() {
        for bytes in [&[INT, 1, 2][..], &[BULK, 9, 0, 0, 0, 1], &[77], &[], &[ARRAY, 1, 0, 0, 0]] {
            assert!(Datum::split_whole(bytes).is_none(), "{bytes:?}");
        }
    }
}
