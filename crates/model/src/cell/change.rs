//! Changes of a record, each noted in the journal where the transaction may yet abort.

use std::sync::Arc;

use super::journal::{COPIED_MAX, Inverse, Journal, Noted};
use super::{Cell, hash_mut};
use crate::expiry::{Expiry, StringForm};
use crate::ids::Millis;
use crate::value::{EVICTED, Value};

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

    /// The access for a shorter time.
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
        self.replace(Cell { value: Some(value), expires_at: Expiry::NEVER });
    }

    /// Sets the value to a string and clears the expiry. It is written where the old one lies, if it fits well: at a
    /// million records, to free and allocate costs more than all the rest.
    #[inline]
    pub fn put_string(&mut self, new: &[u8]) {
        let fits =
            |old: &Vec<u8>| old.capacity() >= new.len() && old.capacity() - new.len() <= 16 + new.len() / 4;
        match self.string_in_place(fits) {
            Some(old) => {
                old.clear();
                old.extend_from_slice(new);
                self.cell.expires_at = Expiry::NEVER;
            }
            None => self.put(Value::String(new.to_vec())),
        }
    }

    /// The string, to be changed where it lies, with what it was noted; none if it is not to be changed there.
    fn string_in_place(&mut self, may: impl FnOnce(&Vec<u8>) -> bool) -> Option<&mut Vec<u8>> {
        let CellMut { cell, changed, journal } = self;
        let expires_at = cell.expires_at;
        let Some(Value::String(old)) = &mut cell.value else { return None };
        let journal = journal.as_mut().filter(|(journal, tag)| !journal.has_image(*tag));
        if !may(old) || journal.is_some() && old.len() > COPIED_MAX {
            return None;
        }
        if let Some((journal, tag)) = journal {
            let (at, len) = (journal.strings.len(), old.len());
            journal.strings.extend_from_slice(old);
            journal.note(*tag, Inverse::String { at, len, expires_at });
        }
        **changed = true;
        Some(old)
    }

    /// Sets the value, as a whole, and keeps the time of expiry.
    pub fn put_keep_expiry(&mut self, value: Value) {
        let expires_at = self.cell.expires_at.with_form(StringForm::Whole);
        self.replace(Cell { value: Some(value), expires_at });
    }

    /// Deletes the record.
    pub fn delete(&mut self) {
        self.replace(Cell::ABSENT);
    }

    /// Sets or clears (0) the time of expiry.
    pub fn set_expiry(&mut self, at: Millis) {
        self.put_expiry(self.cell.expires_at.with_time(at));
    }

    /// Says how the string was written, where that was not as a whole.
    pub fn set_form(&mut self, form: StringForm) {
        let expires_at = self.cell.expires_at.with_form(form);
        if expires_at != self.cell.expires_at {
            self.put_expiry(expires_at);
        }
    }

    /// Sets time and form.
    fn put_expiry(&mut self, new: Expiry) {
        let old = std::mem::replace(&mut self.cell.expires_at, new);
        *self.changed = true;
        if let Some((journal, tag)) = &mut self.journal
            && !matches!(journal.noted(*tag), Noted { has_image: true, .. } | Noted { has_expiry: true, .. })
        {
            journal.note(*tag, Inverse::Expiry(old));
        }
    }

    /// Writes bytes into a string where it lies, from an offset on, after zeros if it ends before that. The time of expiry stays,
    /// the form is [`StringForm::Buffer`]. The string is created if the record is absent; the record must not hold another type.
    pub fn write_at(&mut self, offset: usize, new: &[u8]) {
        assert!(self.evicted().is_none(), "{EVICTED}");
        self.bound_inverses();
        let CellMut { cell, changed, journal } = self;
        let Some(Value::String(bytes)) = &mut cell.value else {
            let mut bytes = Vec::with_capacity(offset + new.len());
            bytes.resize(offset, 0);
            bytes.extend_from_slice(new);
            let expires_at = cell.expires_at.with_form(StringForm::Buffer);
            return self.replace(Cell { value: Some(Value::String(bytes)), expires_at });
        };
        let expires_at = cell.expires_at;
        if let Some((journal, tag)) = journal.as_mut().filter(|(journal, tag)| !journal.has_image(*tag)) {
            // What lies behind is cut off as an earlier write is undone.
            let first = journal.noted(*tag).kept;
            let kept = first.unwrap_or(bytes.len()).min(bytes.len());
            let (from, to) = (offset.min(kept), offset.saturating_add(new.len()).min(kept));
            if first.is_none() || from < to {
                let (at, len) = (journal.strings.len(), to - from);
                journal.strings.extend_from_slice(&bytes[from..to]);
                let string_len = bytes.len();
                journal.note(*tag, Inverse::Range { at, len, offset: from, string_len, expires_at });
            }
        }
        **changed = true;
        if bytes.len() < offset {
            // At once: a string that grows twice takes twice the memory.
            bytes.reserve(offset + new.len() - bytes.len());
            bytes.resize(offset, 0);
        }
        let (over, behind) = new.split_at(new.len().min(bytes.len() - offset));
        bytes[offset..offset + over.len()].copy_from_slice(over);
        bytes.extend_from_slice(behind);
        cell.expires_at = expires_at.with_form(StringForm::Buffer);
    }

    /// Changes a string in place, creating it if the record is absent, and leaves it as if written as a whole. The record must
    /// not hold another type.
    pub fn change_string(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        if let Some(bytes) = self.string_in_place(|_| true) {
            change(bytes);
            self.cell.expires_at = self.cell.expires_at.with_form(StringForm::Whole);
            return;
        }
        let mut bytes = self.cell.string().unwrap_or_default().to_vec();
        change(&mut bytes);
        self.put_keep_expiry(Value::String(bytes));
    }

    /// Sets a field of a hash, creating the hash if the record is absent; returns what the field held. The
    /// record must not hold another type.
    pub fn set_field(&mut self, field: &[u8], value: &[u8]) -> Option<Box<[u8]>> {
        if self.cell.value.is_none() {
            self.put_keep_expiry(Value::Hash(Arc::default()));
        }
        self.bound_inverses();
        let converts =
            self.is_noting() && self.cell.hash().is_some_and(|hash| hash.converts_with(field, value));
        if converts {
            let image = self.cell.clone();
            self.note(|| Inverse::Cell(image));
        }
        let old = hash_mut(self.cell).set(field, value);
        if !converts && self.is_noting() {
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
        self.bound_inverses();
        let (place, old) = hash_mut(self.cell).take(field)?;
        if self.is_noting() {
            let (field, noted) = (field.into(), old.clone());
            self.note(|| Inverse::Removed(field, noted, place));
        }
        *self.changed = true;
        Some(old)
    }

    /// Says that the next change is noted.
    fn is_noting(&self) -> bool {
        self.journal.as_ref().is_some_and(|(journal, tag)| !journal.has_image(*tag))
    }

    /// Notes all that the record is, once the inverses that are noted of it are more than that: how much is kept to undo what is
    /// done to a record is bounded by the record.
    fn bound_inverses(&mut self) {
        if let Some((journal, tag)) = &mut self.journal
            && journal.wants_image(*tag, || self.cell.weight())
        {
            journal.note(*tag, Inverse::Cell(self.cell.clone()));
        }
    }

    #[inline]
    fn note(&mut self, inverse: impl FnOnce() -> Inverse) {
        *self.changed = true;
        if let Some((journal, tag)) = &mut self.journal
            && !journal.has_image(*tag)
        {
            journal.note(*tag, inverse());
        }
    }
}
