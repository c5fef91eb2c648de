//! The bytes of a value log: files of frames, one value each.
//!
//! ```text
//! file    frames, one after the other, from the first byte on
//! frame   crc u32 | length of what follows u32 | db u8 | key | value
//! ```
//!
//! The checksum covers the file's number, the frame's place and all bytes behind it, so a frame that is read from another place is refused. A
//! frame has the name of its record, by which garbage collection finds who refers to it.

use ordain_model::wire::Reader;
use ordain_model::{Db, Value, compact};

/// The bytes of a frame before its name.
pub(crate) const HEAD: usize = 8;

/// A value with the name of its record.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// The record's database.
    pub db: Db,
    /// The record's key.
    pub key: Vec<u8>,
    /// The record's value.
    pub value: Value,
}

fn checksum((file, at): (u32, u32), rest: &[u8]) -> u32 {
    let place = (u64::from(file) << 32 | u64::from(at)).to_le_bytes();
    crc32c::crc32c_append(crc32c::crc32c(&place), rest)
}

/// Appends the frame for a place: a file's number, and the first byte in the file.
pub(crate) fn encode(out: &mut Vec<u8>, place: (u32, u32), (db, key): (Db, &[u8]), value: &Value) {
    let begin = out.len();
    out.extend_from_slice(&[0; HEAD]);
    out.push(db.0);
    compact::bytes(out, key);
    value.encode_compact(out);
    let len = (out.len() - begin - HEAD) as u32;
    out[begin + 4..begin + HEAD].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(place, &out[begin + 4..]);
    out[begin..begin + 4].copy_from_slice(&crc.to_le_bytes());
}

/// The length of the frame at the start of some bytes, all of it; `None` if they are too few to tell.
pub(crate) fn length(bytes: &[u8]) -> Option<usize> {
    let len = bytes.get(4..HEAD)?.first_chunk::<4>()?;
    Some(HEAD + u32::from_le_bytes(*len) as usize)
}

/// Reads the frame of a place; `None` if the bytes are not those that were written there.
pub(crate) fn decode(place: (u32, u32), bytes: &[u8]) -> Option<Frame> {
    let (crc, rest) = bytes.split_first_chunk::<4>()?;
    if length(bytes) != Some(bytes.len()) || u32::from_le_bytes(*crc) != checksum(place, rest) {
        return None;
    }
    let mut reader = Reader::new(rest.get(HEAD - 4..)?);
    let frame = Frame {
        db: Db(reader.u8()?),
        key: compact::read_bytes(&mut reader)?,
        value: Value::decode_compact(&mut reader)?,
    };
    reader.rest().is_empty().then_some(frame)
}
