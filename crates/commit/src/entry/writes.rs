//! The bytes of written records in an entry of the log.
//!
//! A record is what differs from the one before it: its head, the number of its database if that is another one, its key, its expiry if it has
//! one, and its value if there is one. The key is a text beside the key before it, and a string is bytes of their own ([`compact`]). The
//! hash of the key's slot follows from the key, so it is not there.
//!
//! | bits of the head | what |
//! |---|---|
//! | 0, 1 | 0: the record is absent; 1: it has a string; 2: it has another value |
//! | 2 | its database is another one than that of the record before it, which is 0 for the first |
//! | 3 | it expires, or its string has another form than the usual one |
//! | 4 to 7 | how many zeros at the end of the key are left out |

use ordain_execution::Write;
use ordain_model::wire::Reader;
use ordain_model::{Cell, Db, Expiry, Placement, Value, compact};

const KIND: u8 = 3;
const ABSENT: u8 = 0;
const STRING: u8 = 1;
const VALUE: u8 = 2;
const OTHER_DB: u8 = 4;
const EXPIRES: u8 = 8;

/// Appends records.
pub(super) fn put(out: &mut Vec<u8>, writes: &[Write]) {
    compact::number(out, writes.len() as u64);
    let (mut db, mut before) = (Db(0), &[][..]);
    for write in writes {
        let Write { db: its, key, hash: _, cell: Cell { value, expires_at } } = write;
        let zeros = compact::zeros_at_end(key);
        let kind = match value {
            None => ABSENT,
            Some(Value::String(_)) => STRING,
            Some(Value::Hash(_) | Value::Evicted(_)) => VALUE,
        };
        let bits = expires_at.to_bits();
        let (is_other, expires) = (*its != db, kind != ABSENT && bits != 0);
        out.push(kind | flag(OTHER_DB, is_other) | flag(EXPIRES, expires) | (zeros as u8) << 4);
        if is_other {
            out.push(its.0);
        }
        compact::text(out, key, zeros, before);
        if expires {
            // The form stands in the highest bits, and the time in the lower ones.
            compact::number(out, bits.rotate_left(2));
        }
        match value {
            None => {}
            Some(Value::String(string)) => compact::bytes(out, string),
            Some(value) => value.encode_compact(out),
        }
        (db, before) = (*its, key);
    }
}

const fn flag(flag: u8, is_set: bool) -> u8 {
    if is_set { flag } else { 0 }
}

/// Reads records, which are placed like this.
pub(super) fn read(bytes: &mut Reader<'_>, placement: &Placement) -> Option<Vec<Write>> {
    let count = compact::read_count(bytes)?;
    let (mut db, mut before) = (Db(0), Vec::new());
    compact::read_items(bytes, count, |bytes| {
        let head = bytes.u8()?;
        if head & OTHER_DB != 0 {
            db = Db(bytes.u8()?);
        }
        let key = compact::read_text(bytes, usize::from(head >> 4), &before)?;
        before.clone_from(&key);
        let bits = if head & EXPIRES == 0 { 0 } else { compact::read_number(bytes)?.rotate_right(2) };
        let value = match head & KIND {
            STRING => Value::String(compact::read_bytes(bytes)?),
            VALUE => Value::decode_compact(bytes)?,
            ABSENT if head & EXPIRES == 0 => return Some(Write::new(placement, db, key, Cell::ABSENT)),
            _ => return None,
        };
        let cell = Cell { value: Some(value), expires_at: Expiry::from_bits(bits) };
        Some(Write::new(placement, db, key, cell))
    })
}
