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

    /// [`Value::weight`] of what it holds.
    pub fn weight(&self) -> usize {
        self.value.as_ref().map_or(0, Value::weight)
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
    /// What short strings were before they were written over, in the order of the changes.
    strings: Vec<u8>,
    /// Bytes that the inverses stand for, whichever way they are kept.
    bytes: usize,
    /// Cells of which the journal has all that they were; none if it notes each change.
    images: Option<Vec<u64>>,
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
        expires_at: Millis,
    },
    Expiry(Millis),
    Field(Box<[u8]>, Option<Box<[u8]>>),
}

impl Inverse {
    /// Bytes that it is counted as.
    fn weight(&self) -> usize {
        let held = match self {
            Inverse::Cell(cell) => cell.weight(),
            Inverse::String { len, .. } => *len,
            Inverse::Expiry(_) => 0,
            Inverse::Field(field, old) => field.len() + old.as_ref().map_or(0, |old| old.len()),
        };
        INVERSE_BYTES + held
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
    /// A journal that is rolled back as a whole or not at all: of a cell that it has all of, no later change is noted.
    pub fn whole() -> Journal {
        Journal { images: Some(Vec::new()), ..Journal::default() }
    }

    /// Bytes that the inverses stand for: a function of the changes alone, not of where strings lie.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn has_image(&self, tag: u32) -> bool {
        let word = self.images.as_ref().and_then(|images| images.get(tag as usize / 64));
        word.is_some_and(|word| word >> (tag % 64) & 1 == 1)
    }

    fn note(&mut self, tag: u32, inverse: Inverse) {
        self.bytes += inverse.weight();
        if let (true, Some(images)) = (inverse.is_image(), &mut self.images) {
            let at = tag as usize / 64;
            if images.len() <= at {
                images.resize(at + 1, 0);
            }
            images[at] |= 1 << (tag % 64);
        }
        self.changes.push((tag, inverse));
    }

    fn forget(&mut self) {
        self.bytes = 0;
        if let Some(images) = &mut self.images {
            images.clear();
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
            if let Inverse::String { at, .. } = &mut inverse {
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
        assert!(self.images.is_none(), "a journal that keeps one image a cell is not divided");
        let mut changes = self.changes.split_off(mark);
        let first = changes.iter().find_map(|(_, inverse)| match inverse {
            Inverse::String { at, .. } => Some(*at),
            _ => None,
        });
        let first = first.unwrap_or(self.strings.len());
        let mut bytes = 0;
        for (_, inverse) in &mut changes {
            bytes += inverse.weight();
            if let Inverse::String { at, .. } = inverse {
                *at -= first;
            }
        }
        self.bytes -= bytes;
        Journal { changes, strings: self.strings.split_off(first), bytes, images: None }
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
            Inverse::Expiry(old) => cell.expires_at = *old,
            Inverse::Field(field, old) => put_field(cell, field, old.as_deref()),
        }
    }

    /// Undoes the changes made since `mark`, newest first. `apply` is given the tag of a cell and what to do
    /// to it.
    pub fn roll_back(&mut self, mark: usize, mut apply: impl FnMut(u32, &mut dyn FnMut(&mut Cell))) {
        while self.changes.len() > mark {
            let Some((tag, inverse)) = self.changes.pop() else { return };
            let begin = if let Inverse::String { at, .. } = &inverse { *at } else { self.strings.len() };
            let (mut inverse, strings) = (Some(inverse), &self.strings);
            apply(tag, &mut |cell| match inverse.take() {
                Some(Inverse::Cell(old)) => *cell = old,
                Some(Inverse::String { at, len, expires_at }) => {
                    put_old(cell, &strings[at..at + len], expires_at);
                }
                Some(Inverse::Expiry(old)) => cell.expires_at = old,
                Some(Inverse::Field(field, old)) => put_field(cell, &field, old.as_deref()),
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
fn put_old(cell: &mut Cell, old: &[u8], expires_at: Millis) {
    match &mut cell.value {
        Some(Value::String(bytes)) => {
            bytes.clear();
            bytes.extend_from_slice(old);
        }
        other => *other = Some(Value::String(old.to_vec())),
    }
    cell.expires_at = expires_at;
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
        self.replace(Cell { value: Some(value), expires_at: Millis(0) });
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
                self.cell.expires_at = Millis(0);
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
        if let Some(bytes) = self.string_in_place(|_| true) {
            return change(bytes);
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
            .map(|text| Cell { value: Some(Value::String(text.to_vec())), expires_at: Millis(0) });
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
        let start = Cell { value: Some(Value::String(vec![1; 10_000])), expires_at: Millis(9) };
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
        let start = || Cell { value: Some(Value::String(vec![1; 100])), expires_at: Millis(9) };
        for (len, in_place) in [(100, true), (90, true), (101, false), (10, false)] {
            let (mut cell, mut changed) = (start(), false);
            let place = cell.string().map(<[u8]>::as_ptr);
            CellMut::new(&mut cell, &mut changed, None).put_string(&vec![2; len]);
            assert_eq!(cell, Cell { value: Some(Value::String(vec![2; len])), expires_at: Millis(0) });
            assert_eq!(cell.string().map(<[u8]>::as_ptr) == place, in_place);
            assert!(changed);
        }
        let place = |cell: &Cell| cell.string().map(<[u8]>::as_ptr);
        for (len, in_place) in [(100, true), (COPIED_MAX, true), (COPIED_MAX + 1, false)] {
            let start = Cell { value: Some(Value::String(vec![1; len])), expires_at: Millis(9) };
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
        let start = Cell { value: Some(Value::String(vec![0; 8])), expires_at: Millis(0) };
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
