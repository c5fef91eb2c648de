//! The content of a record, and the only way to change it.
//!
//! Every change goes through [`CellMut`], which notes that there was one (so that digest and version follow)
//! and, where the transaction may yet abort, writes the inverse into a [`Journal`]. So a script that sets one
//! field of a large hash and then fails costs one field to undo, and one that appends to a large string costs nothing of
//! that string. What is undone is as it was, the order of a hash's fields included: a run that is undone and made again must
//! see what the first one saw.

use std::sync::Arc;

use crate::expiry::{Expiry, StringForm};
use crate::ids::Millis;
use crate::value::{HashValue, Value};

/// A record's value and expiry. No value: the record is absent, and then there is no expiry either.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// What the record holds.
    pub value: Option<Value>,
    /// When it ceases to exist, and how a string was written.
    pub expires_at: Expiry,
}

impl Cell {
    /// The absent record.
    pub const ABSENT: Cell = Cell { value: None, expires_at: Expiry::NEVER };

    /// Whether the record exists at `now`.
    #[inline]
    pub fn is_live(&self, now: Millis) -> bool {
        self.value.is_some() && !self.is_expired(now)
    }

    /// Whether the record's time has come.
    #[inline]
    pub fn is_expired(&self, now: Millis) -> bool {
        !self.expires_at.is_never() && self.expires_at.time() <= now
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

    /// [`Value::weight`] of what it holds.
    pub fn weight(&self) -> usize {
        self.value.as_ref().map_or(0, Value::weight)
    }

    /// Appends an encoding: expiry (with the form of a string), then the value if there is one.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.expires_at.to_bits().to_le_bytes());
        match &self.value {
            Some(value) => value.encode(out),
            None => out.push(0),
        }
    }

    /// Decodes a cell from the start of `bytes`; `None` for damaged bytes.
    pub fn decode(bytes: &[u8]) -> Option<(Cell, &[u8])> {
        let (expiry, rest) = bytes.split_first_chunk::<8>()?;
        let expires_at = Expiry::from_bits(u64::from_le_bytes(*expiry));
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
    /// What short strings were before they were written over, in the order of the changes.
    strings: Vec<u8>,
    /// Bytes that the inverses stand for, whichever way they are kept.
    bytes: usize,
    /// Notes of each cell, by its tag; none in a journal that notes every change whatever it has noted before.
    cells: Option<Vec<Noted>>,
}

/// Notes of one cell in a journal that is rolled back as a whole.
#[derive(Clone, Copy, Debug, Default)]
struct Noted {
    /// Bytes that the cell's inverses stand for.
    bytes: usize,
    /// One of them is all that the cell was: no later change is noted.
    has_image: bool,
    /// One of them is what its expiry was first.
    has_expiry: bool,
    /// The length to which its string is cut when the first write into it is undone.
    kept: Option<usize>,
}

/// Bytes that an inverse is counted as, besides what it holds.
const INVERSE_BYTES: usize = 64;

#[derive(Debug)]
enum Inverse {
    Cell(Cell),
    /// A string was written over where it lies. What it was is among the journal's.
    String {
        at: usize,
        len: usize,
        expires_at: Expiry,
    },
    /// A string was written over from an offset on, and was so long before. What was there is among the journal's strings.
    Range {
        at: usize,
        len: usize,
        offset: usize,
        string_len: usize,
        expires_at: Expiry,
    },
    Expiry(Expiry),
    /// A field was set, and held this before.
    Field(Box<[u8]>, Option<Box<[u8]>>),
    /// A field was removed that held this, in this place.
    Removed(Box<[u8]>, Box<[u8]>, usize),
}

impl Inverse {
    /// Bytes that it is counted as.
    fn weight(&self) -> usize {
        let held = match self {
            Inverse::Cell(cell) => cell.weight(),
            Inverse::String { len, .. } | Inverse::Range { len, .. } => *len,
            Inverse::Expiry(_) => 0,
            Inverse::Field(field, old) => field.len() + old.as_ref().map_or(0, |old| old.len()),
            Inverse::Removed(field, old, _) => field.len() + old.len(),
        };
        INVERSE_BYTES + held
    }

    /// Where what it needs begins among the journal's strings, if it needs anything of them.
    fn strings_at(&mut self) -> Option<&mut usize> {
        match self {
            Inverse::String { at, .. } | Inverse::Range { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Whether it is all that the cell was.
    fn is_image(&self) -> bool {
        matches!(self, Inverse::Cell(_) | Inverse::String { .. })
    }
}

/// Up to so long, a string that is written over is copied into the journal; a longer one is moved there, and another
/// takes its place. To free and to allocate costs two cache misses among a million records.
const COPIED_MAX: usize = 512;

impl Journal {
    /// A journal that is rolled back as a whole or not at all. It keeps all that a cell was rather than inverses of more bytes
    /// than that, and of a cell that it has all of, it notes no later change.
    pub fn whole() -> Journal {
        Journal { cells: Some(Vec::new()), ..Journal::default() }
    }

    /// Bytes that the inverses stand for: a function of the changes alone, not of where strings lie.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What is noted of a cell; nothing, if each change is noted.
    fn noted(&self, tag: u32) -> Noted {
        let noted = self.cells.as_ref().and_then(|cells| cells.get(tag as usize));
        noted.copied().unwrap_or_default()
    }

    fn has_image(&self, tag: u32) -> bool {
        self.noted(tag).has_image
    }

    /// Says that the inverses of a cell of this weight are so many that all of the cell is no more.
    fn wants_image(&self, tag: u32, weight: impl FnOnce() -> usize) -> bool {
        let Noted { bytes, has_image, .. } = self.noted(tag);
        !has_image && bytes > INVERSE_BYTES && bytes > INVERSE_BYTES + weight()
    }

    fn note(&mut self, tag: u32, inverse: Inverse) {
        let weight = inverse.weight();
        self.bytes += weight;
        if let Some(cells) = &mut self.cells {
            let at = tag as usize;
            if cells.len() <= at {
                cells.resize(at + 1, Noted::default());
            }
            let noted = &mut cells[at];
            noted.bytes += weight;
            noted.has_image |= inverse.is_image();
            match &inverse {
                Inverse::Expiry(_) => noted.has_expiry = true,
                Inverse::Range { string_len, .. } => _ = noted.kept.get_or_insert(*string_len),
                _ => {}
            }
        }
        self.changes.push((tag, inverse));
    }

    fn forget(&mut self) {
        self.bytes = 0;
        if let Some(cells) = &mut self.cells {
            cells.clear();
        }
    }

    /// How many changes are noted: a mark to roll back to.
    pub fn mark(&self) -> usize {
        self.changes.len()
    }

    /// Forgets everything: the transaction commits.
    pub fn clear(&mut self) {
        self.changes.clear();
        self.strings.clear();
        self.forget();
    }

    /// Adds the changes noted in another, which it empties, as the newest.
    pub fn append(&mut self, other: &mut Journal) {
        let moved = self.strings.len();
        self.changes.extend(other.changes.drain(..).map(|(tag, mut inverse)| {
            if let Some(at) = inverse.strings_at() {
                *at += moved;
            }
            (tag, inverse)
        }));
        self.strings.append(&mut other.strings);
        self.bytes += other.bytes;
        other.forget();
    }

    /// Takes the changes noted since a mark out, for [`append`](Self::append) to add them again.
    ///
    /// # Panics
    /// If the journal is rolled back [as a whole](Self::whole), or has not so many changes.
    pub fn split_off(&mut self, mark: usize) -> Journal {
        assert!(self.cells.is_none(), "a journal that keeps one image a cell is not divided");
        let mut changes = self.changes.split_off(mark);
        let first = changes.iter_mut().find_map(|(_, inverse)| inverse.strings_at().map(|at| *at));
        let first = first.unwrap_or(self.strings.len());
        let mut bytes = 0;
        for (_, inverse) in &mut changes {
            bytes += inverse.weight();
            if let Some(at) = inverse.strings_at() {
                *at -= first;
            }
        }
        self.bytes -= bytes;
        Journal { changes, strings: self.strings.split_off(first), bytes, cells: None }
    }

    /// Forgets the newest change: a mistake that a test plants.
    pub fn forget_last(&mut self) {
        self.changes.pop();
    }

    /// The tag of a change.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn tag_at(&self, at: usize) -> u32 {
        self.changes[at].0
    }

    /// Does to a cell what undoes one change, and keeps it noted. All later changes of the cell must be undone.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn undo_at(&self, at: usize, cell: &mut Cell) {
        match &self.changes[at].1 {
            Inverse::Cell(old) => cell.clone_from(old),
            Inverse::String { at, len, expires_at } => {
                put_old(cell, &self.strings[*at..at + len], *expires_at);
            }
            Inverse::Range { at, len, offset, string_len, expires_at } => {
                put_range(cell, &self.strings[*at..at + len], *offset, *string_len);
                cell.expires_at = *expires_at;
            }
            Inverse::Expiry(old) => cell.expires_at = *old,
            Inverse::Field(field, old) => put_field(cell, field, old.as_deref()),
            Inverse::Removed(field, old, place) => hash_mut(cell).put_back(field, old, *place),
        }
    }

    /// Undoes the changes made since `mark`, newest first. `apply` is given the tag of a cell and what to do
    /// to it.
    pub fn roll_back(&mut self, mark: usize, mut apply: impl FnMut(u32, &mut dyn FnMut(&mut Cell))) {
        while self.changes.len() > mark {
            let Some((tag, mut inverse)) = self.changes.pop() else { return };
            let begin = inverse.strings_at().map_or(self.strings.len(), |at| *at);
            let (mut inverse, strings) = (Some(inverse), &self.strings);
            apply(tag, &mut |cell| match inverse.take() {
                Some(Inverse::Cell(old)) => *cell = old,
                Some(Inverse::String { at, len, expires_at }) => {
                    put_old(cell, &strings[at..at + len], expires_at);
                }
                Some(Inverse::Range { at, len, offset, string_len, expires_at }) => {
                    put_range(cell, &strings[at..at + len], offset, string_len);
                    cell.expires_at = expires_at;
                }
                Some(Inverse::Expiry(old)) => cell.expires_at = old,
                Some(Inverse::Field(field, old)) => put_field(cell, &field, old.as_deref()),
                Some(Inverse::Removed(field, old, place)) => hash_mut(cell).put_back(&field, &old, place),
                None => {}
            });
            self.strings.truncate(begin);
        }
        if self.changes.is_empty() {
            self.forget();
        }
    }
}

/// A string as it was.
fn put_old(cell: &mut Cell, old: &[u8], expires_at: Expiry) {
    match &mut cell.value {
        Some(Value::String(bytes)) => {
            bytes.clear();
            bytes.extend_from_slice(old);
        }
        other => *other = Some(Value::String(old.to_vec())),
    }
    cell.expires_at = expires_at;
}

/// A string as it was before bytes were written into it from an offset on.
fn put_range(cell: &mut Cell, old: &[u8], offset: usize, string_len: usize) {
    let Some(Value::String(bytes)) = &mut cell.value else {
        debug_assert!(false, "a write into a string is undone of what is none");
        return;
    };
    bytes.truncate(string_len);
    if let Some(place) = bytes.get_mut(offset..offset + old.len()) {
        place.copy_from_slice(old);
    }
}

/// A hash's field as it was.
fn put_field(cell: &mut Cell, field: &[u8], old: Option<&[u8]>) {
    let hash = hash_mut(cell);
    match old {
        Some(old) => hash.set(field, old),
        None => hash.remove(field),
    };
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
        self.replace(Cell { value: Some(value), expires_at: Expiry::NEVER });
    }

    /// Sets the value to a string and clears the expiry. It is written where the old one lies, if it fits well: at a
    /// million records, to free and allocate costs more than all the rest.
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
    use proptest::prelude::*;

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
    fn what_is_set_aside_and_added_again_is_the_newest() {
        let cells = [&b"first"[..], b"second"]
            .map(|text| Cell { value: Some(Value::String(text.to_vec())), expires_at: Millis(0).into() });
        let (mut now, mut journal) = (cells.clone(), Journal::default());
        let change = |journal: &mut Journal, now: &mut [Cell; 2], at: usize, text: &[u8]| {
            let mut changed = false;
            let mut m = CellMut::new(&mut now[at], &mut changed, Some((journal, at as u32)));
            m.put_string(text);
        };
        change(&mut journal, &mut now, 0, b"a");
        change(&mut journal, &mut now, 1, b"b");
        let all = journal.bytes();
        let mut aside = journal.split_off(1);
        assert_eq!(journal.bytes() + aside.bytes(), all);
        change(&mut journal, &mut now, 0, b"a longer one than before");
        let mark = journal.mark();
        journal.append(&mut aside);
        journal.roll_back(mark, |tag, undo| undo(&mut now[tag as usize]));
        assert_eq!(
            (now[0].string(), now[1].string()),
            (Some(&b"a longer one than before"[..]), Some(&b"second"[..]))
        );
        journal.roll_back(0, |tag, undo| undo(&mut now[tag as usize]));
        assert_eq!(now, cells);
    }

    #[test]
    fn a_whole_journal_keeps_one_image_of_a_cell() {
        let start = Cell { value: Some(Value::String(vec![1; 10_000])), expires_at: Millis(9).into() };
        let (mut cell, mut changed, mut journal) = (start.clone(), false, Journal::whole());
        let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 70)));
        m.change_string(|bytes| bytes[3] = 2);
        let once = INVERSE_BYTES + 10_000;
        for _ in 0..100 {
            m.change_string(|bytes| bytes.push(2));
            m.set_expiry(Millis(7));
            m.delete();
            m.put_string(b"another");
        }
        let mut other = Cell::ABSENT;
        CellMut::new(&mut other, &mut changed, Some((&mut journal, 3))).set_field(b"f", b"1");
        assert_eq!((journal.mark(), journal.bytes()), (2, once + INVERSE_BYTES));
        journal.roll_back(0, |tag, undo| undo(if tag == 70 { &mut cell } else { &mut other }));
        assert_eq!((cell, other, journal.bytes()), (start, Cell::ABSENT, 0));
        // It begins anew.
        let mut cell = Cell::ABSENT;
        CellMut::new(&mut cell, &mut changed, Some((&mut journal, 70))).put_string(b"x");
        assert_eq!(journal.mark(), 1);
    }

    #[test]
    fn a_string_is_put_in_place_where_it_fits_and_can_be_undone() {
        let start = || Cell { value: Some(Value::String(vec![1; 100])), expires_at: Millis(9).into() };
        for (len, in_place) in [(100, true), (90, true), (101, false), (10, false)] {
            let (mut cell, mut changed) = (start(), false);
            let place = cell.string().map(<[u8]>::as_ptr);
            CellMut::new(&mut cell, &mut changed, None).put_string(&vec![2; len]);
            assert_eq!(cell, Cell { value: Some(Value::String(vec![2; len])), expires_at: Millis(0).into() });
            assert_eq!(cell.string().map(<[u8]>::as_ptr) == place, in_place);
            assert!(changed);
        }
        let place = |cell: &Cell| cell.string().map(<[u8]>::as_ptr);
        for (len, in_place) in [(100, true), (COPIED_MAX, true), (COPIED_MAX + 1, false)] {
            let start = Cell { value: Some(Value::String(vec![1; len])), expires_at: Millis(9).into() };
            let (mut cell, mut changed, mut journal) = (start.clone(), false, Journal::default());
            let lies = place(&cell);
            let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 0)));
            m.put_string(&vec![2; len]);
            assert_eq!(place(&m) == lies, in_place);
            let (mark, middle) = (1, m.clone());
            m.change_string(|bytes| bytes.push(3));
            m.put_string(b"another that does not fit");
            journal.roll_back(mark, |_, undo| undo(&mut cell));
            assert_eq!(cell, middle);
            journal.roll_back(0, |_, undo| undo(&mut cell));
            assert_eq!((cell, journal.strings.len()), (start, 0));
        }
    }

    #[test]
    fn what_is_appended_to_a_journal_is_undone_first() {
        let start = Cell { value: Some(Value::String(vec![0; 8])), expires_at: Millis(0).into() };
        let (mut cell, mut changed) = (start.clone(), false);
        let (mut one, mut other) = (Journal::default(), Journal::default());
        let mut put = |journal: &mut Journal, byte: u8| {
            CellMut::new(&mut cell, &mut changed, Some((journal, 0))).put_string(&[byte; 8]);
        };
        put(&mut one, 1);
        put(&mut other, 2);
        put(&mut other, 3);
        one.append(&mut other);
        let mut seen = Vec::new();
        one.roll_back(0, |_, undo| {
            undo(&mut cell);
            seen.push(cell.string().map(|bytes| bytes[0]));
        });
        assert_eq!((seen, cell), (vec![Some(2), Some(1), Some(0)], start));
        assert!(one.strings.is_empty() && other.strings.is_empty());
    }

    #[derive(Clone, Debug)]
    enum Change {
        Set(u8, usize),
        Remove(u8),
        Put(usize),
        Write(usize, usize),
        Resize(usize),
        Form(StringForm),
        Expire(u64),
        Delete,
    }

    impl Change {
        /// Does it to a record, which holds another type at times.
        fn make(&self, mut cell: CellMut<'_>) {
            let is_string = cell.string().is_some();
            match *self {
                Change::Set(field, len) if !is_string => {
                    drop(cell.set_field(&[field, (len % 5) as u8], &vec![field; len]));
                }
                Change::Remove(field) => drop(cell.remove_field(&[field, field % 5])),
                Change::Put(len) => cell.put_string(&vec![7; len]),
                Change::Write(offset, len) if cell.hash().is_none() => cell.write_at(offset, &vec![9; len]),
                Change::Resize(len) if cell.hash().is_none() => cell.change_string(|s| s.resize(len, 8)),
                Change::Form(form) if is_string => cell.set_form(form),
                Change::Expire(at) if cell.value.is_some() => cell.set_expiry(Millis(at)),
                Change::Delete => cell.delete(),
                _ => {}
            }
        }
    }

    fn changes() -> impl Strategy<Value = Vec<Change>> {
        let change = prop_oneof![
            8 => (any::<u8>(), prop_oneof![30 => 0..30_usize, 1 => 60..70_usize]).prop_map(|(field, len)| Change::Set(field, len)),
            4 => any::<u8>().prop_map(Change::Remove),
            1 => (0..2000_usize).prop_map(Change::Put),
            4 => (0..3000_usize, 0..600_usize).prop_map(|(offset, len)| Change::Write(offset, len)),
            1 => (0..2000_usize).prop_map(Change::Resize),
            1 => prop_oneof![Just(StringForm::Whole), Just(StringForm::Text), Just(StringForm::Buffer)]
                .prop_map(Change::Form),
            1 => prop_oneof![0..9_u64, (1_u64 << 62) - 1..=1 << 62].prop_map(Change::Expire),
            1 => Just(Change::Delete),
        ];
        prop::collection::vec(change, 0..60)
    }

    proptest! {
        /// Undone, a record is what it was to the order of its fields, however its changes are noted, and what is kept for
        /// that is bounded by the largest that it was.
        #[test]
        fn what_is_undone_is_as_it_was(
            fields in 0..600_u32, string in prop::option::of(0..2000_usize), first in changes(), second in changes(),
        ) {
            let mut start = Cell::ABSENT;
            let mut changed = false;
            for field in 0..fields {
                CellMut::new(&mut start, &mut changed, None).set_field(&[field as u8, (field >> 8) as u8, 1], b"value");
            }
            if let Some(len) = string {
                start = Cell { value: Some(Value::String(vec![1; len])), expires_at: Millis(3).into() };
            }
            let (mut each, mut whole) = (start.clone(), start.clone());
            let (mut noting, mut bounded) = (Journal::default(), Journal::whole());
            let mut largest = start.weight();
            for change in &first {
                change.make(CellMut::new(&mut each, &mut changed, Some((&mut noting, 5))));
                change.make(CellMut::new(&mut whole, &mut changed, Some((&mut bounded, 5))));
                largest = largest.max(whole.weight());
            }
            let mark = noting.mark();
            let middle = each.clone();
            prop_assert_eq!(&middle, &whole);
            for change in &second {
                change.make(CellMut::new(&mut each, &mut changed, Some((&mut noting, 5))));
            }
            // Set aside and added again, they are the newest.
            let mut aside = noting.split_off(mark);
            noting.append(&mut aside);
            // Undone one after the other in a copy, which leaves them noted.
            let mut copy = each.clone();
            (mark..noting.mark()).rev().for_each(|at| noting.undo_at(at, &mut copy));
            prop_assert_eq!(&copy, &middle);
            noting.roll_back(mark, |_, undo| undo(&mut each));
            prop_assert_eq!(&each, &middle);
            noting.roll_back(0, |_, undo| undo(&mut each));
            prop_assert_eq!(&each, &start);
            // Inverses up to the weight, the one that exceeds it, and the image.
            let most = 2 * (largest + INVERSE_BYTES) + INVERSE_BYTES + 3000;
            prop_assert!(bounded.bytes() <= most, "{} of {largest}", bounded.bytes());
            bounded.roll_back(0, |_, undo| undo(&mut whole));
            prop_assert_eq!(&whole, &start);
            prop_assert_eq!((bounded.bytes(), bounded.strings.len(), noting.strings.len()), (0, 0, 0));
        }
    }

    #[test]
    fn what_is_written_into_a_long_string_is_no_copy_of_it() {
        let start = Cell { value: Some(Value::String(vec![1; 1 << 20])), expires_at: Millis(9).into() };
        for mut journal in [Journal::whole(), Journal::default()] {
            let (mut cell, mut changed) = (start.clone(), false);
            let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 0)));
            m.write_at(1 << 20, b"behind");
            let lies = m.string().map(<[u8]>::as_ptr);
            m.write_at(500, b"over");
            m.write_at((1 << 20) - 2, b"over the end");
            assert_eq!(
                (lies, m.string().map(<[u8]>::len)),
                (m.string().map(<[u8]>::as_ptr), Some((1 << 20) + 10))
            );
            assert!(journal.bytes() <= 3 * INVERSE_BYTES + 16, "{}", journal.bytes());
            journal.roll_back(0, |_, undo| undo(&mut cell));
            assert_eq!(cell, start);
        }
        // One that is made by a write takes no more memory than it needs.
        let (mut cell, mut changed) = (Cell::ABSENT, false);
        CellMut::new(&mut cell, &mut changed, None).write_at(1 << 20, b"x");
        assert_eq!(cell.value.as_ref().map(Value::heap_bytes), Some((1 << 20) + 1));
        cell = Cell { value: Some(Value::String(vec![1])), expires_at: Millis(0).into() };
        CellMut::new(&mut cell, &mut changed, None).write_at(1 << 20, b"x");
        assert_eq!(cell.value.as_ref().map(Value::heap_bytes), Some((1 << 20) + 1));
    }

    #[test]
    fn a_record_that_is_changed_often_is_noted_once() {
        let field = |n: u32| n.to_be_bytes();
        let mut start = Cell::ABSENT;
        let mut changed = false;
        (0..1000)
            .for_each(|n| drop(CellMut::new(&mut start, &mut changed, None).set_field(&field(n), b"value")));
        let (mut cell, mut journal) = (start.clone(), Journal::whole());
        let mut most = 0;
        for round in 0..100_000_u32 {
            let mut m = CellMut::new(&mut cell, &mut changed, Some((&mut journal, 2)));
            m.set_field(&field(7), &round.to_be_bytes());
            m.set_expiry(Millis(round.into()));
            most = most.max(journal.bytes());
        }
        assert!(most <= 2 * (start.weight() + INVERSE_BYTES) + INVERSE_BYTES, "{most} of {}", start.weight());
        journal.roll_back(0, |_, undo| undo(&mut cell));
        assert_eq!(cell, start);
    }

    #[test]
    fn an_expired_cell_is_absent() {
        let cell = Cell { value: Some(Value::String(vec![1])), expires_at: Millis(10).into() };
        assert!(cell.is_live(Millis(9)));
        assert_eq!(cell.at(Millis(10)), &Cell::ABSENT);
    }

    #[test]
    fn what_a_string_was_written_by_is_kept() {
        let (mut cell, mut changed) = (Cell::ABSENT, false);
        let mut m = CellMut::new(&mut cell, &mut changed, None);
        m.put_string(b"12");
        m.set_expiry(Millis(70));
        let form = |m: &CellMut<'_>| (m.expires_at.form(), m.expires_at.time());
        assert_eq!(form(&m), (StringForm::Whole, Millis(70)));
        m.write_at(2, b"3");
        assert_eq!(form(&m), (StringForm::Buffer, Millis(70)));
        m.set_expiry(Millis(80));
        assert_eq!(form(&m), (StringForm::Buffer, Millis(80)));
        m.change_string(|bytes| bytes.push(b'4'));
        assert_eq!(form(&m), (StringForm::Whole, Millis(80)));
        m.set_form(StringForm::Text);
        m.put_keep_expiry(Value::String(b"5".to_vec()));
        assert_eq!(form(&m), (StringForm::Whole, Millis(80)));
        m.set_form(StringForm::Text);
        m.put_string(b"6");
        assert_eq!(form(&m), (StringForm::Whole, Millis(0)));
        m.set_form(StringForm::Text);
        m.delete();
        assert_eq!(*m, Cell::ABSENT);
        m.write_at(0, b"7");
        assert_eq!(form(&m), (StringForm::Buffer, Millis(0)));
    }

    #[test]
    fn cells_survive_encoding() {
        let cell = |expires_at| Cell { value: Some(Value::String(b"v".to_vec())), expires_at };
        let time = Expiry::from(Millis(3));
        let forms = [StringForm::Whole, StringForm::Text, StringForm::Buffer];
        for cell in forms.map(|form| cell(time.with_form(form))).into_iter().chain([Cell::ABSENT, cell(time)])
        {
            let mut bytes = Vec::new();
            cell.encode(&mut bytes);
            assert_eq!(Cell::decode(&bytes).unwrap().0, cell);
            assert!(Cell::decode(&bytes[..bytes.len() - 1]).is_none());
        }
    }
}
