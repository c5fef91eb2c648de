//! What basic timestamp ordering remembers of one record, or of the whole table: the latest stamps, prewrites, and who waits.

use std::collections::VecDeque;

use ordain_commit::{Age, AttemptId, Verdict};
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// An attempt by its stamp. No two attempts have one stamp; the order of ids makes that of places total.
pub(super) type Place = (Age, AttemptId);

/// Marks on one target.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The latest stamp of an attempt that was granted to read it.
    pub(super) read: Age,
    /// The latest stamp of an attempt that has written it and has committed.
    pub(super) written: Age,
    /// Attempts that may write it, ascending. The first is granted, or waits for a prewrite on the table; the others wait.
    pub(super) prewrites: Vec<Place>,
    /// Attempts whose access waits, ascending.
    pub(super) waiting: Vec<Place>,
}

/// Puts a place into a list that ascends.
pub(super) fn put(list: &mut Vec<Place>, place: Place) {
    if let Err(at) = list.binary_search(&place) {
        list.insert(at, place);
    }
}

/// Takes a place out of a list that ascends.
pub(super) fn take(list: &mut Vec<Place>, place: Place) {
    if let Ok(at) = list.binary_search(&place) {
        list.remove(at);
    }
}

impl Marks {
    /// Decides about a read (sheet 4.6): of two targets that the access is under, each has to grant it.
    pub(super) fn read(&self, place: Place) -> Verdict {
        if place.0 < self.written {
            Verdict::Refused
        } else if self.prewrites.first().is_some_and(|first| *first < place) {
            Verdict::Waits
        } else {
            Verdict::Granted
        }
    }

    /// Decides about a prewrite (sheet 4.6).
    pub(super) fn may_prewrite(&self, stamp: Age) -> bool {
        stamp >= self.read && stamp >= self.written
    }

    /// The latest stamp that left a mark.
    pub(super) fn latest(&self) -> Age {
        self.read.max(self.written)
    }

    fn is_in_use(&self) -> bool {
        !self.prewrites.is_empty() || !self.waiting.is_empty()
    }
}

/// Marks on a record. The record's lock word is one more than their place.
#[derive(Debug)]
pub(super) struct OfRecord {
    pub(super) record: RecordId,
    pub(super) marks: Marks,
    is_free: bool,
}

/// Marks on records, of those that were accessed lately.
#[derive(Debug, Default)]
pub(super) struct Records {
    all: Vec<OfRecord>,
    free: Vec<u32>,
    /// Each place in use once, with a stamp that the marks there had when it was looked at.
    by_age: VecDeque<(Age, u32)>,
}

impl Records {
    /// Returns the marks of a record, if it has some.
    #[inline]
    pub(super) fn get(&self, store: &MemoryStore, record: RecordId) -> Option<&Marks> {
        let place = store.lock(record).checked_sub(1)?;
        self.all.get(place as usize).map(|of| &of.marks)
    }

    /// Returns the marks of a record that has some.
    #[inline]
    pub(super) fn get_mut(&mut self, store: &MemoryStore, record: RecordId) -> Option<&mut Marks> {
        let place = store.lock(record).checked_sub(1)?;
        self.all.get_mut(place as usize).map(|of| &mut of.marks)
    }

    /// Returns the marks of a record, which are made if there are none, by an attempt of this stamp.
    #[inline]
    pub(super) fn find_or_add(
        &mut self,
        store: &mut MemoryStore,
        record: RecordId,
        stamp: Age,
    ) -> &mut Marks {
        let at = match store.lock(record) {
            0 => {
                let at = match self.free.pop() {
                    Some(at) => at,
                    None => {
                        let marks = Marks::default();
                        self.all.push(OfRecord { record, marks, is_free: false });
                        self.all.len() as u32 - 1
                    }
                };
                let of = &mut self.all[at as usize];
                (of.record, of.is_free) = (record, false);
                self.by_age.push_back((stamp, at));
                store.set_lock(record, at + 1);
                at
            }
            word => word - 1,
        };
        &mut self.all[at as usize].marks
    }

    /// Forgets the marks that are older than a stamp and not in use. Returns the latest stamp among them.
    pub(super) fn forget(&mut self, store: &mut MemoryStore, before: Age) -> Age {
        let mut latest = Age(0);
        for _ in 0..self.by_age.len() {
            let Some((_, at)) = self.by_age.pop_front_if(|(stamp, _)| *stamp < before) else { break };
            let of = &mut self.all[at as usize];
            let its = of.marks.latest();
            if its >= before || of.marks.is_in_use() {
                self.by_age.push_back((its.max(before), at));
                continue;
            }
            latest = latest.max(its);
            (of.marks.read, of.marks.written) = (Age(0), Age(0));
            of.is_free = true;
            self.free.push(at);
            store.set_lock(of.record, 0);
            store.release_if_absent(of.record);
        }
        latest
    }

    /// Drops all marks.
    pub(super) fn clear(&mut self, store: &mut MemoryStore) {
        for of in self.all.iter().filter(|of| !of.is_free) {
            store.set_lock(of.record, 0);
            store.release_if_absent(of.record);
        }
        *self = Records::default();
    }

    /// Visits the marks in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OfRecord> {
        self.all.iter().filter(|of| !of.is_free)
    }

    /// Returns how many records have marks.
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}
