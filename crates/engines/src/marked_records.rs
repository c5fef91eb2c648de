//! Marks that engines with stamps keep of the records that were accessed lately.

use std::collections::VecDeque;
use std::fmt::Debug;

use ordain_commit::Age;
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// Marks of one target: what an engine remembers of it, and which attempts have to do with it.
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

/// Marks on a record. The record's lock word is one more than their place.
#[derive(Debug)]
pub(crate) struct OfRecord<M> {
    pub(crate) record: RecordId,
    pub(crate) marks: M,
    is_free: bool,
}

impl<M: Marks> OfRecord<M> {
    fn free(&mut self, store: &mut MemoryStore) {
        self.marks = M::default();
        self.is_free = true;
        store.set_lock(self.record, 0);
        store.release_if_absent(self.record);
    }
}

/// Marks on records, of those that were accessed lately.
#[derive(Debug, Default)]
pub(crate) struct Records<M> {
    all: Vec<OfRecord<M>>,
    free: Vec<u32>,
    /// Each place in use once, with a stamp that the marks there had when it was looked at.
    by_age: VecDeque<(Age, u32)>,
}

impl<M: Marks> Records<M> {
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

    /// Returns the marks of a record, which are made if there are none, by an attempt of this stamp.
    #[inline]
    pub(crate) fn find_or_add(&mut self, store: &mut MemoryStore, record: RecordId, stamp: Age) -> &mut M {
        let at = match store.lock(record) {
            0 => {
                let at = match self.free.pop() {
                    Some(at) => at,
                    None => {
                        let marks = M::default();
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
    pub(crate) fn forget(&mut self, store: &mut MemoryStore, before: Age) -> Age {
        let mut latest = Age(0);
        for _ in 0..self.by_age.len() {
            let Some((_, at)) = self.by_age.pop_front_if(|(stamp, _)| *stamp < before) else { break };
            let of = &mut self.all[at as usize];
            of.marks.forget(before);
            let its = of.marks.latest();
            if its >= before || of.marks.are_in_use() {
                self.by_age.push_back((its.max(before), at));
                continue;
            }
            latest = latest.max(its);
            of.free(store);
            self.free.push(at);
        }
        latest
    }

    /// Drops what does not follow from the log.
    pub(crate) fn clear(&mut self, store: &mut MemoryStore) {
        let Records { all, free, by_age } = self;
        by_age.retain(|(_, at)| {
            let of = &mut all[*at as usize];
            of.marks.clear();
            let stays = of.marks.written() > Age(0);
            if !stays {
                of.free(store);
                free.push(*at);
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
        self.all.iter().filter(|of| !of.is_free)
    }

    /// Visits the marks in use, to change them.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut M> {
        self.all.iter_mut().filter(|of| !of.is_free).map(|of| &mut of.marks)
    }

    /// Returns how many records have marks.
    pub(crate) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}
