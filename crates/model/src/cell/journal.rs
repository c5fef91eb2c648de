//! The journal of changes: what undoes each of them.
//!
//! A script that sets one field of a large hash and then fails costs one field to undo, and one that appends to a large
//! string costs nothing of that string. What is undone is as it was, the order of a hash's fields included: a run that is
//! undone and made again must see what the first one saw.

use super::{Cell, hash_mut};
use crate::expiry::Expiry;
use crate::value::Value;

/// The inverses of the changes made so far, newest last. `T` says which cell a change was made to.
#[derive(Debug, Default)]
pub struct Journal {
    changes: Vec<(u32, Inverse)>,
    /// The contents of short strings before they were written over, in the order of the changes.
    pub(super) strings: Vec<u8>,
    /// Bytes that the inverses stand for, whichever way they are kept.
    bytes: usize,
    /// Notes of each cell, by its tag; none in a journal that notes every change whatever it has noted before.
    cells: Option<Vec<Noted>>,
}

/// Notes of one cell in a journal that is rolled back as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    /// Bytes that the cell's inverses stand for.
    bytes: usize,
    /// True if one of them is all that the cell was: no later change is noted.
    pub(super) has_image: bool,
    /// True if one of them is the cell's first expiry.
    pub(super) has_expiry: bool,
    /// The length to which its string is cut when the first write into it is undone.
    pub(super) kept: Option<usize>,
}

/// Bytes that an inverse is counted as, besides what it holds.
pub(super) const INVERSE_BYTES: usize = 64;

#[derive(Debug)]
pub(super) enum Inverse {
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

    /// The place of its first byte among the journal's strings, if it needs any of them.
    fn strings_at(&mut self) -> Option<&mut usize> {
        match self {
            Inverse::String { at, .. } | Inverse::Range { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Does to a cell what undoes the change, given the journal's strings.
    fn undo(&self, strings: &[u8], cell: &mut Cell) {
        match self {
            Inverse::Cell(old) => cell.clone_from(old),
            Inverse::String { at, len, expires_at } => put_old(cell, &strings[*at..at + len], *expires_at),
            Inverse::Range { at, len, offset, string_len, expires_at } => {
                put_range(cell, &strings[*at..at + len], *offset, *string_len);
                cell.expires_at = *expires_at;
            }
            Inverse::Expiry(old) => cell.expires_at = *old,
            Inverse::Field(field, old) => put_field(cell, field, old.as_deref()),
            Inverse::Removed(field, old, place) => hash_mut(cell).put_back(field, old, *place),
        }
    }

    /// True if it is all that the cell was.
    fn is_image(&self) -> bool {
        matches!(self, Inverse::Cell(_) | Inverse::String { .. })
    }
}

/// Up to so long, a string that is written over is copied into the journal; a longer one is moved there, and another
/// takes its place. To free and to allocate costs two cache misses among a million records.
pub(super) const COPIED_MAX: usize = 512;

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

    /// The notes of a cell; none, if each change is noted.
    pub(super) fn noted(&self, tag: u32) -> Noted {
        let noted = self.cells.as_ref().and_then(|cells| cells.get(tag as usize));
        noted.copied().unwrap_or_default()
    }

    pub(super) fn has_image(&self, tag: u32) -> bool {
        self.noted(tag).has_image
    }

    /// Says that the inverses of a cell of this weight are so many that all of the cell is no more.
    pub(super) fn wants_image(&self, tag: u32, weight: impl FnOnce() -> usize) -> bool {
        let Noted { bytes, has_image, .. } = self.noted(tag);
        !has_image && bytes > INVERSE_BYTES && bytes > INVERSE_BYTES + weight()
    }

    pub(super) fn note(&mut self, tag: u32, inverse: Inverse) {
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

    /// The number of changes that are noted: a mark to roll back to.
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
        self.changes[at].1.undo(&self.strings, cell);
    }

    /// Undoes the changes made since `mark`, newest first. `apply` is given the tag of a cell and what to do to it, once.
    pub fn roll_back(&mut self, mark: usize, mut apply: impl FnMut(u32, &mut dyn FnMut(&mut Cell))) {
        while self.changes.len() > mark {
            let Some((tag, mut inverse)) = self.changes.pop() else { return };
            let begin = inverse.strings_at().map_or(self.strings.len(), |at| *at);
            apply(tag, &mut |cell| match &mut inverse {
                // Moved back rather than copied.
                Inverse::Cell(old) => std::mem::swap(cell, old),
                inverse => inverse.undo(&self.strings, cell),
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
