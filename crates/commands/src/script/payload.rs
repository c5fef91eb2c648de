//! The payload of FUNCTION DUMP and FUNCTION RESTORE, as Redis 7.0 has it: the source of each library behind an opcode, as a
//! string of its snapshot format, then that format's version and a checksum.
//!
//! FUNCTION DUMP writes strings uncompressed; FUNCTION RESTORE reads compressed ones too.

use std::borrow::Cow;

use crc::{CRC_64_REDIS, Crc, Table};
use ordain_model::PlanError;
use ordain_model::key::MAX_VALUE_LEN;

/// The opcode in front of a library.
const LIBRARY: u8 = 245;
/// The version of the format that is written, and the newest that is read.
const VERSION: u16 = 10;
/// Version and checksum.
const FOOTER_BYTES: usize = 10;
/// Kinds of strings that are not their bytes: integers of 8, 16 and 32 bits, and compressed.
const INT_8: u8 = 0;
const INT_16: u8 = 1;
const INT_32: u8 = 2;
const COMPRESSED: u8 = 3;

const WRONG_FOOTER: PlanError = PlanError::fixed("ERR DUMP payload version or checksum are wrong");
const NO_FUNCTION: PlanError = PlanError::fixed("ERR given type is not a function");
const DAMAGED: PlanError = PlanError::fixed("ERR Failed loading library payload");
const TOO_MUCH: PlanError = PlanError::fixed(
    "ERR the libraries of the payload exceed the limit of 16 MiB together: restore fewer at once",
);

/// The checksum, sixteen bytes at a time.
static CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// Appends the payload of libraries, of which the sources are given.
pub(super) fn write<'a>(sources: impl Iterator<Item = &'a [u8]>, out: &mut Vec<u8>) {
    let start = out.len();
    for source in sources {
        out.push(LIBRARY);
        write_length(source.len(), out);
        out.extend_from_slice(source);
    }
    out.extend_from_slice(&VERSION.to_le_bytes());
    let crc = CHECKSUM.checksum(out.get(start..).unwrap_or_default());
    out.extend_from_slice(&crc.to_le_bytes());
}

/// The longest payload of libraries, bytes.
pub(super) fn bytes<'a>(sources: impl Iterator<Item = &'a [u8]>) -> usize {
    /// Opcode and length.
    const HEAD_BYTES: usize = 6;
    sources.map(|source| HEAD_BYTES + source.len()).sum::<usize>() + FOOTER_BYTES
}

fn write_length(length: usize, out: &mut Vec<u8>) {
    match length {
        0..64 => out.push(length as u8),
        64..16_384 => out.extend_from_slice(&(0x4000 | length as u16).to_be_bytes()),
        _ => {
            out.push(0x80);
            out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }
}

/// Checks version and checksum of a payload.
///
/// # Errors
/// The error Redis gives.
pub(super) fn check(payload: &[u8]) -> Result<(), PlanError> {
    let body = payload.len().checked_sub(FOOTER_BYTES).ok_or(WRONG_FOOTER)?;
    let (summed, crc) = payload.split_last_chunk::<8>().ok_or(WRONG_FOOTER)?;
    let version = summed.get(body..).and_then(|bytes| bytes.try_into().ok()).map(u16::from_le_bytes);
    let known = version.is_some_and(|version| version <= VERSION);
    if known && CHECKSUM.checksum(summed) == u64::from_le_bytes(*crc) { Ok(()) } else { Err(WRONG_FOOTER) }
}

/// The sources of the libraries in a payload that was checked, one after the other. An item is an error, as Redis gives it, where
/// the payload holds something else, is damaged in spite of its checksum, or has more source than may be restored at once;
/// it is the last then.
pub(super) fn read(payload: &[u8]) -> impl Iterator<Item = Result<Cow<'_, [u8]>, PlanError>> {
    let mut rest = payload.get(..payload.len().saturating_sub(FOOTER_BYTES)).unwrap_or_default();
    let mut room = MAX_VALUE_LEN;
    std::iter::from_fn(move || {
        let (opcode, tail) = rest.split_first()?;
        rest = tail;
        let source = if *opcode == LIBRARY { read_string(&mut rest, room) } else { Err(NO_FUNCTION) };
        match &source {
            Ok(source) => room -= source.len(),
            Err(_) => rest = &[],
        }
        Some(source)
    })
}

enum Length {
    Bytes(usize),
    Special(u8),
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], PlanError> {
    let (taken, tail) = rest.split_at_checked(bytes).ok_or(DAMAGED)?;
    *rest = tail;
    Ok(taken)
}

fn read_length(rest: &mut &[u8]) -> Result<Length, PlanError> {
    let number = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
    let first = take(rest, 1)?[0];
    let length = match first {
        0..0x40 => u64::from(first),
        0x40..0x80 => u64::from(first & 0x3f) << 8 | number(take(rest, 1)?),
        0x80 => number(take(rest, 4)?),
        0x81 => number(take(rest, 8)?),
        0x82..0xc0 => return Err(DAMAGED),
        0xc0.. => return Ok(Length::Special(first & 0x3f)),
    };
    usize::try_from(length).map(Length::Bytes).map_err(|_| DAMAGED)
}

fn read_bytes(rest: &mut &[u8]) -> Result<usize, PlanError> {
    match read_length(rest)? {
        Length::Bytes(bytes) => Ok(bytes),
        Length::Special(_) => Err(DAMAGED),
    }
}

/// A string, if it has no more than so many bytes.
fn read_string<'a>(rest: &mut &'a [u8], most: usize) -> Result<Cow<'a, [u8]>, PlanError> {
    let text = |number: i32| Cow::Owned(number.to_string().into_bytes());
    let string = match read_length(rest)? {
        Length::Bytes(bytes) => Cow::Borrowed(take(rest, bytes)?),
        Length::Special(INT_8) => text(take(rest, 1)?[0].cast_signed().into()),
        Length::Special(INT_16) => {
            text(take(rest, 2)?.try_into().map(i16::from_le_bytes).map_err(|_| DAMAGED)?.into())
        }
        Length::Special(INT_32) => {
            text(take(rest, 4)?.try_into().map(i32::from_le_bytes).map_err(|_| DAMAGED)?)
        }
        Length::Special(COMPRESSED) => {
            let (packed, bytes) = (read_bytes(rest)?, read_bytes(rest)?);
            if bytes > most {
                return Err(TOO_MUCH);
            }
            Cow::Owned(unpack(take(rest, packed)?, bytes).ok_or(DAMAGED)?)
        }
        Length::Special(_) => return Err(DAMAGED),
    };
    if string.len() > most { Err(TOO_MUCH) } else { Ok(string) }
}

/// Unpacks what LZF has packed into exactly so many bytes: literal runs, and copies of what is already there.
fn unpack(mut packed: &[u8], bytes: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.min(packed.len().saturating_mul(8)));
    let next = |packed: &mut &[u8]| {
        let (first, tail) = packed.split_first()?;
        *packed = tail;
        Some(usize::from(*first))
    };
    while let Some(control) = next(&mut packed) {
        if control < 32 {
            let (run, tail) = packed.split_at_checked(control + 1)?;
            packed = tail;
            out.extend_from_slice(run);
        } else {
            let mut length = control >> 5;
            if length == 7 {
                length += next(&mut packed)?;
            }
            let back = ((control & 31) << 8 | next(&mut packed)?) + 1;
            let from = out.len().checked_sub(back)?;
            for at in from..from + length + 2 {
                out.push(*out.get(at)?);
            }
        }
        if out.len() > bytes {
            return None;
        }
    }
    (out.len() == bytes).then_some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As redis-server 7.0.15 has dumped them.
    const EMPTY: &[u8] = b"\n\0]\x9b\\@\x0f\x7f\xa2\xda";
    const ONE: &[u8] =
        b"\xf5@B#!lua name=t\nredis.register_function('f1',function() return 1 end)\n\0\x80\xa7\xc0\xbf\x9eY\x92\xa6";
    const PACKED: &[u8] =
        b"\xf5\xc3@KAs\x11#!lua name=big\n--x\xe0\xff\0\xe0\x1a\0\x1d\nredis.register_function(\
                            'g1',\xe0\0\r\x0e) return 1 end)\xf5@B#!lua name=t\nredis.register_function('f1',\
                            function() return 1 end)\n\0\x1c\x96\xceF\x18m\x9b\x95";

    fn all(payload: &[u8]) -> Result<Vec<Cow<'_, [u8]>>, PlanError> {
        read(payload).collect()
    }

    fn dump(sources: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        write(sources.iter().copied(), &mut out);
        let most = bytes(sources.iter().copied());
        assert!((out.len()..=out.len() + 5 * sources.len()).contains(&most));
        out
    }

    #[test]
    fn payloads_are_those_of_redis() {
        let t = b"#!lua name=t\nredis.register_function('f1',function() return 1 end)";
        assert_eq!((dump(&[]), dump(&[t])), (EMPTY.to_vec(), ONE.to_vec()));
        for payload in [EMPTY, ONE, PACKED] {
            assert_eq!(check(payload), Ok(()));
        }
        assert_eq!(all(ONE).unwrap(), [&t[..]]);
        let sources = all(PACKED).unwrap();
        let big = format!("#!lua name=big\n--{}\nredis.register_function('g1',", "x".repeat(300));
        assert!(sources[0].starts_with(big.as_bytes()), "{}", sources[0].escape_ascii());
        assert_eq!(&*sources[1], t);
    }

    #[test]
    fn what_is_damaged_is_refused() {
        for at in 0..ONE.len() {
            let mut wrong = ONE.to_vec();
            wrong[at] ^= 4;
            assert_eq!(check(&wrong), Err(WRONG_FOOTER), "{at}");
        }
        let footed = |body: &[u8], version: u16| {
            let mut payload = [body, &version.to_le_bytes()].concat();
            payload.extend_from_slice(&CHECKSUM.checksum(&payload).to_le_bytes());
            payload
        };
        assert_eq!((check(&footed(b"x", 11)), check(&footed(b"x", 9))), (Err(WRONG_FOOTER), Ok(())));
        for (body, error) in [
            (&b"\0\x01v"[..], NO_FUNCTION),
            (b"\xf6\x01v", NO_FUNCTION),
            (b"\xf5", DAMAGED),
            (b"\xf5\x80", DAMAGED),
            (b"\xf5\x05abc", DAMAGED),
            (b"\xf5\x81\xff\xff\xff\xff\xff\xff\xff\xffx", DAMAGED),
            (b"\xf5\xc7", DAMAGED),
            (b"\xf5\xc1\x01", DAMAGED),
            (b"\xf5\xc3\x05\x05abc", DAMAGED),
            // More or less than it says, and a copy of what is not there.
            (b"\xf5\xc3\x04\x02\x02abc", DAMAGED),
            (b"\xf5\xc3\x04\x04\x02abc", DAMAGED),
            (b"\xf5\xc3\x02\x03\x20\0", DAMAGED),
            (b"\xf5\xc3\x02\x80\x01\0\0\x01\0\0", TOO_MUCH),
        ] {
            assert_eq!(all(&footed(body, 10)), Err(error), "{}", body.escape_ascii());
        }
        assert_eq!(all(&footed(b"\xf5\xc0\xfb\xf5\xc1\0\x01", 10)).unwrap(), [&b"-5"[..], b"256"]);
        assert_eq!(all(&footed(b"\xf5\xc3\x04\x06\0a\x60\0", 10)).unwrap(), [&b"aaaaaa"[..]]);
        let half = vec![b'x'; MAX_VALUE_LEN / 2 + 1];
        assert_eq!(all(&dump(&[&half])).unwrap().len(), 1);
        assert_eq!(all(&dump(&[&half, &half])), Err(TOO_MUCH));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(sources in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20_000), 0..4)) {
            let sources: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
            let payload = dump(&sources);
            prop_assert_eq!(check(&payload), Ok(()));
            prop_assert_eq!(all(&payload).unwrap(), sources);
        }

        #[test]
        fn anything_is_answered(body in prop::collection::vec(any::<u8>(), 0..200), special in any::<bool>()) {
            let mut payload = if special { vec![LIBRARY, 0xc3] } else { vec![LIBRARY] };
            payload.extend_from_slice(&body);
            let _ = (check(&payload), all(&payload));
        }
    }
}
