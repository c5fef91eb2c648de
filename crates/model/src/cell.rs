//! The content of a record, and the only way to change it.
//!
//! Every change goes through [`CellMut`], which notes that there was one (so that digest and version follow) and, where the
//! transaction may yet abort, writes the inverse into a [`Journal`].

mod change;
mod journal;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::evicted::Evicted;
use crate::expiry::Expiry;
use crate::ids::Millis;
use crate::value::{EVICTED, HashValue, Value};
use crate::wire::{Codec, Reader};

pub use change::CellMut;
pub use journal::Journal;

/// A record's value and expiry. No value: the record is absent, and then there is no expiry either.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The value; none for an absent record.
    pub value: Option<Value>,
    /// The last millisecond in which the record exists, and the way in which a string was written.
    pub expires_at: Expiry,
}

impl Cell {
    /// The absent record.
    pub const ABSENT: Cell = Cell { value: None, expires_at: Expiry::NEVER };

    /// True if the record exists at `now`.
    #[inline]
    pub fn is_live(&self, now: Millis) -> bool {
        self.value.is_some() && !self.is_expired(now)
    }

    /// True if the record has expired at `now`: its time is past. As in Redis, the millisecond of its time is its last.
    #[inline]
    pub fn is_expired(&self, now: Millis) -> bool {
        !self.expires_at.is_never() && self.expires_at.time() < now
    }

    /// The cell as a transaction at `now` sees it: an expired one is absent.
    #[inline]
    pub fn at(&self, now: Millis) -> &Cell {
        if self.is_expired(now) { &Cell::ABSENT } else { self }
    }

    /// The string, if the record holds one.
    pub fn string(&self) -> Option<&[u8]> {
        match &self.value {
            Some(Value::String(bytes)) => Some(bytes),
            Some(Value::Evicted(_)) => panic!("{EVICTED}"),
            _ => None,
        }
    }

    /// The value, if it is evicted.
    #[inline]
    pub fn evicted(&self) -> Option<&Arc<Evicted>> {
        match &self.value {
            Some(Value::Evicted(evicted)) => Some(evicted),
            _ => None,
        }
    }

    /// The length of its [image](Codec::encode), bytes, whether or not the value is evicted.
    pub fn image_len(&self) -> usize {
        match self.evicted() {
            Some(evicted) => size_of::<u64>() + evicted.image_len(),
            None => self.to_bytes().len(),
        }
    }

    /// The hash, if the record holds one.
    pub fn hash(&self) -> Option<&HashValue> {
        match &self.value {
            Some(Value::Hash(hash)) => Some(hash),
            Some(Value::Evicted(_)) => panic!("{EVICTED}"),
            _ => None,
        }
    }

    /// [`Value::weight`] of what it holds.
    pub fn weight(&self) -> usize {
        self.value.as_ref().map_or(0, Value::weight)
    }
}

/// The expiry (with the form of a string), then the value, or 0 if there is none.
impl Codec for Cell {
    const LEAST: usize = 9;

    fn encode(&self, out: &mut Vec<u8>) {
        self.expires_at.to_bits().encode(out);
        match &self.value {
            Some(value) => value.encode(out),
            None => out.push(0),
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Cell> {
        let expires_at = Expiry::from_bits(bytes.u64()?);
        if *bytes.rest().first()? == 0 {
            bytes.take(1)?;
            return Some(Cell::ABSENT);
        }
        Some(Cell { value: Some(bytes.take_by(Value::decode)?), expires_at })
    }
}

fn hash_mut(cell: &mut Cell) -> &mut HashValue {
    assert!(cell.evicted().is_none(), "{EVICTED}");
    if !matches!(cell.value, Some(Value::Hash(_))) {
        debug_assert!(false, "a hash operation reached a record of another type");
        cell.value = Some(Value::Hash(Arc::default()));
    }
    match &mut cell.value {
        Some(Value::Hash(hash)) => Arc::make_mut(hash),
        _ => unreachable!("set just above"),
    }
}
