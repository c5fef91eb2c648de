//! The content of a record, and the only way to change it.
//!
//! Every change goes through [`CellMut`], which notes that there was one (so that digest and version follow)
//! and, where the transaction may yet abort, writes the inverse into a [`Journal`]. So a script that sets one
//! field of a large hash and then fails costs one field to undo.

use std::sync::Arc;

use crate::ids::Millis;
use crate::value::{HashValue, Value};

/// A record's value and expiry. No value: the record is absent, and then there is no expiry either.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What the record holds.
    pub value: Option<Value>,
    /// When it ceases to exist, by transaction time; 0 for never.
    pub expires_at: Millis,
}

impl Cell {
    /// The absent record.
    pub const ABSENT: Cell = Cell { value: None, expires_at: Millis(0) };

    /// Whether the record exists at `now`.
    #[inline]
    pub fn is_live(&self, now: Millis) -> bool {
        self.value.is_some() && !self.is_expired(now)
    }

    /// Whether the record's time has come.
    #[inline]
    pub fn is_expired(&self, now: Millis) -> bool {
        self.expires_at.0 != 0 && self.expires_at <= now
    }

    /// This cell as a transaction at `now` sees it: an expired one is absent.
    #[inline]
    pub fn at(&self, now: Millis) -> &Cell {
        if self.is_expired(now) { &Cell::ABSENT } else { self }
    }

    /// The string, if the record holds one.
    pub fn string(&self) -> Option<&[u8]> {
        match &self.value {
            Some(Value::String(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// The hash, if the record holds one.
    pub fn hash(&self) -> Option<&HashValue> {
        match &self.value {
            Some(Value::Hash(hash)) => Some(hash),
            _ => None,
        }
    }

    /// Appends an encoding: expiry, then the value if there is one.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.expires_at.0.to_le_bytes());
        match &self.value {
            Some(value) => value.encode(out),
            None => out.push(0),
        }
    }

    /// Decodes a cell from the start of `bytes`; `None` for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Option<(Cell, &[u8])> {
        let (expiry, rest) = bytes.split_first_chunk::<8>()?;
        let expires_at = Millis(u64::from_le_bytes(*expiry));
        if rest.first()? == &0 {
            return Some((Cell::ABSENT, &rest[1..]));
        }
        let (value, rest) = Value::decode(rest)?;
        Some((Cell { value: Some(value), expires_at }, rest))
    }
}

/// The inverses of the changes made so far, newest last. `T` says which cell a change was made to.
#[derive(Debug, Default)]
pub struct Journal {
    changes: Vec<(u32, Inverse)>,
}

#[derive(Debug)]
enum Inverse {
    Cell(Cell),
    Expiry(Millis),
    Field(Box<[u8]>, Option<Box<[u8]>>),
}

impl Journal {
    /// How many changes are noted: a mark to roll back to.
    pub fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Forgets everything: the transaction commits.
    pub fn clear(&mut self) {
        self.changes.clear();
    }

    /// Adds the changes noted in another, which it empties, as the newest.
    pub fn append(&mut self, other: &mut Journal) {
        self.changes.append(&mut other.changes);
    }

    /// Forgets the newest change: a mistake that a test plants.
    pub fn forget_last(&mut self) {
        self.changes.pop();
    }

    /// Undoes the changes made since `mark`, newest first. `apply` is given the tag of a cell and what to do
    /// to it.
    pub fn roll_back(&mut self, mark: usize, mut apply: impl FnMut(u32, &mut dyn FnMut(&mut Cell))) {
        while self.changes.len() > mark {
            let Some((tag, inverse)) = self.changes.pop() else { return };
            let mut inverse = Some(inverse);
            apply(tag, &mut |cell| match inverse.take() {
                Some(Inverse::Cell(old)) => *cell = old,
                Some(Inverse::Expiry(old)) => cell.expires_at = old,
                Some(Inverse::Field(field, old)) => {
                    let hash = hash_mut(cell);
                    match old {
                        Some(old) => hash.set(&field, &old),
                        None => hash.remove(&field),
                    };
                }
                None => {}
            });
        }
    }
}

/// Access to a cell under its exclusive lock.
#[derive(Debug)]
pub struct CellMut<'a> {
    cell: &'a mut Cell,
    changed: &'a mut bool,
    journal: Option<(&'a mut Journal, u32)>,
}

impl std::ops::Deref for CellMut<'_> {
    type Target = Cell;

    fn deref(&self) -> &Cell {
        self.cell
    }
}

impl<'a> CellMut<'a> {
    /// Wraps a cell. `changed` is set on any change; with a journal, each change is noted under the tag.
    #[inline]
    pub fn new(
        cell: &'a mut Cell,
        changed: &'a mut bool,
        journal: Option<(&'a mut Journal, u32)>,
    ) -> CellMut<'a> {
        CellMut { cell, changed, journal }
    }

    /// The same access for a shorter time.
    pub fn reborrow(&mut self) -> CellMut<'_> {
        CellMut {
            cell: self.cell,
            changed: self.changed,
            journal: self.journal.as_mut().map(|(journal, tag)| (&mut **journal, *tag)),
        }
    }

    /// Replaces the whole content.
    #[inline]
    pub fn replace(&mut self, new: Cell) {
        let old = std::mem::replace(self.cell, new);
        self.note(|| Inverse::Cell(old));
    }

    /// Sets the value and clears the expiry, as SET does.
    #[inline]
    pub fn put(&mut self, value: Value) {
        self.replace(Cell { value: Some(value), expires_at: Millis(0) });
    }

    /// Sets the value to a string and clears the expiry. Without a journal it is written where the old one
    /// lies, if it fits well: at a million records, to free and allocate costs more than all the rest.
    pub fn put_string(&mut self, new: &[u8]) {
        match &mut self.cell.value {
            Some(Value::String(old))
                if self.journal.is_none()
                    && old.capacity() >= new.len()
                    && old.capacity() - new.len() <= 16 + new.len() / 4 =>
            {
                old.clear();
                old.extend_from_slice(new);
                self.cell.expires_at = Millis(0);
                *self.changed = true;
            }
            _ => self.put(Value::String(new.to_vec())),
        }
    }

    /// Sets the value and keeps the expiry.
    pub fn put_keep_expiry(&mut self, value: Value) {
        let expires_at = self.cell.expires_at;
        self.replace(Cell { value: Some(value), expires_at });
    }

    /// Deletes the record.
    pub fn delete(&mut self) {
        self.replace(Cell::ABSENT);
    }

    /// Sets or clears (0) the expiry.
    pub fn set_expiry(&mut self, at: Millis) {
        let old = std::mem::replace(&mut self.cell.expires_at, at);
        self.note(|| Inverse::Expiry(old));
    }

    /// Changes a string in place, creating it if the record is absent. The record must not hold another type.
    pub fn change_string(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        if self.journal.is_some() || self.cell.value.is_none() {
            let mut bytes = self.cell.string().unwrap_or_default().to_vec();
            change(&mut bytes);
            self.put_keep_expiry(Value::String(bytes));
        } else if let Some(Value::String(bytes)) = &mut self.cell.value {
            change(bytes);
            *self.changed = true;
        }
    }

    /// Sets a field of a hash, creating the hash if the record is absent; returns what the field held. The
    /// record must not hold another type.
    pub fn set_field(&mut self, field: &[u8], value: &[u8]) -> Option<Box<[u8]>> {
        if self.cell.value.is_none() {
            self.put_keep_expiry(Value::Hash(Arc::default()));
        }
        let old = hash_mut(self.cell).set(field, value);
        if self.journal.is_some() {
            let (field, noted) = (field.into(), old.clone());
            self.note(|| Inverse::Field(field, noted));
        }
        *self.changed = true;
        old
    }

    /// Removes a field of a hash, and the record with its last field; returns what the field held.
    pub fn remove_field(&mut self, field: &[u8]) -> Option<Box<[u8]>> {
        let hash = self.cell.hash()?;
        let held = hash.get(field)?;
        if hash.len() == 1 {
            let held = held.into();
            self.delete();
            return Some(held);
        }
        let old = hash_mut(self.cell).remove(field);
        if self.journal.is_some() {
            let (field, noted) = (field.into(), old.clone());
            self.note(|| Inverse::Field(field, noted));
        }
        *self.changed = true;
        old
    }

    #[inline]
    fn note(&mut self, inverse: impl FnOnce() -> Inverse) {
        *self.changed = true;
        if let Some((journal, tag)) = &mut self.journal {
            journal.changes.push((*tag, inverse()));
        }
    }
}

fn hash_mut(cell: &mut Cell) -> &mut HashValue {
    if !matches!(cell.value, Some(Value::Hash(_))) {
        debug_assert!(false, "a hash operation reached a record of another type");
        cell.value = Some(Value::Hash(Arc::default()));
    }
    match &mut cell.value {
        Some(Value::Hash(hash)) => Arc::make_mut(hash),
        _ => unreachable!("set just above"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rolling_back_restores_every_kind_of_change() {
        let mut cell = Cell::ABSENT;
        let (mut changed, mut journal) = (false, Journal::default());
        let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 0)));
        m.set_field(b"a", b"1");
        m.set_field(b"b", b"2");
        let mark = 3;
        let before = m.clone();
        m.set_field(b"a", b"9");
        m.remove_field(b"b");
        m.set_expiry(Millis(7));
        m.remove_field(b"a");
        assert!(m.value.is_none());
        m.change_string(|s| s.extend_from_slice(b"now a string"));
        journal.roll_back(mark, |_, undo| undo(&mut cell));
        assert_eq!(cell, before);
        journal.roll_back(0, |_, undo| undo(&mut cell));
        assert_eq!(cell, Cell::ABSENT);
        assert!(changed);
    }

    #[test]
    fn a_string_is_put_in_place_only_where_it_fits_and_nothing_may_undo_it() {
        let start = || Cell { value: Some(Value::String(vec![1; 100])), expires_at: Millis(9) };
        for (len, in_place) in [(100, true), (90, true), (101, false), (10, false)] {
            let (mut cell, mut changed) = (start(), false);
            let place = cell.string().map(<[u8]>::as_ptr);
            CellMut::new(&mut cell, &mut changed, None).put_string(&vec![2; len]);
            assert_eq!(cell, Cell { value: Some(Value::String(vec![2; len])), expires_at: Millis(0) });
            assert_eq!(cell.string().map(<[u8]>::as_ptr) == place, in_place);
            assert!(changed);
        }
        let (mut cell, mut changed, mut journal) = (start(), false, Journal::default());
        CellMut::new(&mut cell, &mut changed, Some((&mut journal, 0))).put_string(&[2; 100]);
        journal.roll_back(0, |_, undo| undo(&mut cell));
        assert_eq!(cell, start());
    }

    #[test]
    fn an_expired_cell_is_absent() {
        let cell = Cell { value: Some(Value::String(vec![1])), expires_at: Millis(10) };
        assert!(cell.is_live(Millis(9)));
        assert_eq!(cell.at(Millis(10)), &Cell::ABSENT);
    }

    #[test]
    fn cells_survive_encoding() {
        for cell in [Cell::ABSENT, Cell { value: Some(Value::String(b"v".to_vec())), expires_at: Millis(3) }]
        {
            let mut bytes = Vec::new();
            cell.encode(&mut bytes);
            assert_eq!(Cell::decode(&bytes).unwrap().0, cell);
            assert!(Cell::decode(&bytes[..bytes.len() - 1]).is_none());
        }
    }
}
