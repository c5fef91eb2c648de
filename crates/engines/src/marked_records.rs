//! Marks that engines keep of the records that were accessed lately.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Debug;

use ordain_commit::Age;
use ordain_model::{Cell, Gsn};
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// Marks of one target with stamps: what an engine remembers of it, and which attempts have to do with it.
pub(crate) trait Marks: Debug + Default {
    /// The latest stamp that is remembered.
    fn latest(&self) -> Age;

    /// The stamp of the newest content; 0 if it is not remembered. It follows from the log.
    fn written(&self) -> Age;

    /// True if attempts have to do with it.
    fn are_in_use(&self) -> bool;

    /// Drops what no attempt with this stamp or a later one needs.
    fn forget(&mut self, _before: Age) {}

    /// Drops what does not follow from the log, since the term has changed.
    fn clear(&mut self);
}

/// Puts a content into a record. Returns the content that was there, with its version.
pub(crate) fn replace(
    store: &mut MemoryStore,
    record: RecordId,
    (cell, version): (Cell, Gsn),
) -> (Cell, Gsn) {
    let before = store.version(record);
    let cell = store.edit(record, version, |stored, is_changed| {
        *is_changed = true;
        std::mem::replace(stored, cell)
    });
    (cell, before)
}

/// Marks on a record. The record's lock word is one more than their place.
#[derive(Debug)]
pub(crate) struct OfRecord<M> {
    pub(crate) record: RecordId,
    pub(crate) marks: M,
    is_free: bool,
}

/// Marks on records, of those that have some.
#[derive(Debug, Default)]
pub(crate) struct Places<M> {
    all: Vec<OfRecord<M>>,
    free: Vec<u32>,
}

impl<M: Default> Places<M> {
    /// Returns the marks of a record, if it has some.
    #[inline]
    pub(crate) fn get(&self, store: &MemoryStore, record: RecordId) -> Option<&M> {
        let place = store.lock(record).checked_sub(1)?;
        self.all.get(place as usize).map(|of| &of.marks)
    }

    /// Returns the marks of a record that has some.
    #[inline]
    pub(crate) fn get_mut(&mut self, store: &MemoryStore, record: RecordId) -> Option<&mut M> {
        let place = store.lock(record).checked_sub(1)?;
        self.all.get_mut(place as usize).map(|of| &mut of.marks)
    }

    /// Returns the place of a record's marks, which are made if there are none, and whether they were.
    #[inline]
    pub(crate) fn find_or_add(&mut self, store: &mut MemoryStore, record: RecordId) -> (u32, bool) {
        let word = store.lock(record);
        if word != 0 {
            return (word - 1, false);
        }
        let at = match self.free.pop() {
            Some(at) => at,
            None => {
                self.all.push(OfRecord { record, marks: M::default(), is_free: false });
                self.all.len() as u32 - 1
            }
        };
        let of = &mut self.all[at as usize];
        (of.record, of.is_free) = (record, false);
        store.set_lock(record, at + 1);
        (at, true)
    }

    /// Returns the marks at a place.
    #[inline]
    pub(crate) fn at_mut(&mut self, at: u32) -> &mut M {
        &mut self.all[at as usize].marks
    }

    /// Drops the marks at a place. The store releases their record if it is absent.
    pub(crate) fn free(&mut self, store: &mut MemoryStore, at: u32) {
        let of = &mut self.all[at as usize];
        (of.marks, of.is_free) = (M::default(), true);
        store.set_lock(of.record, 0);
        store.release_if_absent(of.record);
        self.free.push(at);
    }

    /// Drops all marks.
    pub(crate) fn clear(&mut self, store: &mut MemoryStore) {
        for at in 0..self.all.len() as u32 {
            if !self.all[at as usize].is_free {
                self.free(store, at);
            }
        }
    }

    /// Visits the places in use.
    pub(crate) fn places(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.all).filter(|(_, of)| !of.is_free).map(|(at, _)| at)
    }

    /// Returns the marks at a place, with their record.
    pub(crate) fn of(&self, at: u32) -> &OfRecord<M> {
        &self.all[at as usize]
    }

    /// Visits the marks.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OfRecord<M>> {
        self.all.iter().filter(|of| !of.is_free)
    }

    /// Visits the marks, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.all.iter_mut().filter(|of| !of.is_free).map(|of| &mut of.marks)
    }

    /// Returns how many records have marks.
    pub(crate) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    /// Checks that records lead to their marks, each record with what attempts know of it, and that no other record is known.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check<K: Debug + Default>(
        &self,
        store: &MemoryStore,
        mut known: BTreeMap<RecordId, K>,
        mut check: impl FnMut(&OfRecord<M>, K) -> Result<(), String>,
    ) -> Result<(), String> {
        for of in self.iter() {
            let record = of.record;
            if !self.get(store, record).is_some_and(|marks| std::ptr::eq(marks, &of.marks)) {
                return Err(format!("{record:?} has marks and the lock word {}", store.lock(record)));
            }
            check(of, known.remove(&record).unwrap_or_default())?;
        }
        match known.first_key_value() {
            Some((record, known)) => Err(format!("{record:?} has no marks, and attempts know of {known:?}")),
            None => Ok(()),
        }
    }
}

/// Marks with stamps, which are forgotten when no attempt needs them any more.
#[derive(Debug, Default)]
pub(crate) struct Records<M> {
    places: Places<M>,
    /// Each place in use once, with a stamp that the marks there had when it was looked at.
    by_age: VecDeque<(Age, u32)>,
}

impl<M: Marks> Records<M> {
    /// Checks records as [`Places::check`] does.
    ///
    /// # Errors
    /// The first violation.
    pub(crate) fn check<K: Debug + Default>(
        &self,
        store: &MemoryStore,
        known: BTreeMap<RecordId, K>,
        check: impl FnMut(&OfRecord<M>, K) -> Result<(), String>,
    ) -> Result<(), String> {
        self.places.check(store, known, check)
    }

    /// Returns the marks of a record, if it has some.
    #[inline]
    pub(crate) fn get(&self, store: &MemoryStore, record: RecordId) -> Option<&M> {
        self.places.get(store, record)
    }

    /// Returns the marks of a record that has some.
    #[inline]
    pub(crate) fn get_mut(&mut self, store: &MemoryStore, record: RecordId) -> Option<&mut M> {
        self.places.get_mut(store, record)
    }

    /// Returns the marks of a record, which are made if there are none, by an attempt of this stamp.
    #[inline]
    pub(crate) fn find_or_add(&mut self, store: &mut MemoryStore, record: RecordId, stamp: Age) -> &mut M {
        let (at, is_new) = self.places.find_or_add(store, record);
        if is_new {
            self.by_age.push_back((stamp, at));
        }
        self.places.at_mut(at)
    }

    /// Forgets the marks that are older than a stamp and not in use. Returns the latest stamp among them.
    pub(crate) fn forget(&mut self, store: &mut MemoryStore, before: Age) -> Age {
        let mut latest = Age(0);
        for _ in 0..self.by_age.len() {
            let Some((_, at)) = self.by_age.pop_front_if(|(stamp, _)| *stamp < before) else { break };
            let marks = self.places.at_mut(at);
            marks.forget(before);
            let its = marks.latest();
            if its >= before || marks.are_in_use() {
                self.by_age.push_back((its.max(before), at));
                continue;
            }
            latest = latest.max(its);
            self.places.free(store, at);
        }
        latest
    }

    /// Drops what does not follow from the log.
    pub(crate) fn clear(&mut self, store: &mut MemoryStore) {
        let Records { places, by_age } = self;
        by_age.retain(|(_, at)| {
            let marks = places.at_mut(*at);
            marks.clear();
            let stays = marks.written() > Age(0);
            if !stays {
                places.free(store, *at);
            }
            stays
        });
    }

    /// Reports the stamps of writes, from one on, as checkpoints hold them. Marks of records in use stay for longer, on the node that serves alone.
    pub(crate) fn written_since(&self, first: Age, show: &mut dyn FnMut(RecordId, Age)) {
        let written = self.iter().map(|of| (of.record, of.marks.written()));
        let is_meant = |(_, stamp): &(RecordId, Age)| *stamp >= first.max(Age(1));
        written.filter(is_meant).for_each(|(record, stamp)| show(record, stamp));
    }

    /// Visits the marks in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &OfRecord<M>> {
        self.places.iter()
    }

    /// Visits the marks in use, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.places.iter_mut()
    }

    /// Returns how many records have marks.
    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }
}
