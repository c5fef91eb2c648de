//! Marks of one record, or of the whole table: what an engine remembers of its contents, prewrites, and who waits.

use std::collections::VecDeque;
use std::fmt::Debug;

use ordain_commit::{Age, AttemptId, Verdict};
use ordain_model::{Cell, Gsn};
use ordain_store::{MemoryStore, RecordId, RecordStore};

/// An attempt by its stamp. No two attempts have one stamp; the order of ids makes that of places total.
pub(super) type Place = (Age, AttemptId);

/// The contents of one record as an engine remembers them: their stamps, those of reads, and the contents themselves where they are kept.
///
/// The stamp of the newest content follows from the log, on each member. All else is of the term in which the node serves.
pub(crate) trait History: Debug + Default + Send + 'static {
    /// True if contents that are replaced stay, for reads with earlier stamps.
    const KEEPS: bool;

    /// The stamp of the content that a read with this stamp sees; `None` if that content is gone.
    fn seen(&self, stamp: Age) -> Option<Age>;

    /// True if a write with this stamp would come too late: a read has missed it, or it `looks` at what it replaces and that is gone.
    fn is_too_late(&self, stamp: Age, looks: bool) -> bool;

    /// Takes note of a read that is granted.
    fn mark_read(&mut self, stamp: Age);

    /// Installs a content in the store, unless a later one is there. Contents are kept for readers if it `keeps` them. Of two by one attempt
    /// the one that is installed later counts.
    fn install(&mut self, store: &mut MemoryStore, record: RecordId, content: Content, keeps: bool);

    /// Takes note of the stamp of the newest content.
    fn remember(&mut self, stamp: Age);

    /// The stamp of the newest content; 0 if it is not remembered.
    fn written(&self) -> Age;

    /// The latest stamp of a read.
    fn read(&self) -> Age;

    /// The latest stamp.
    fn latest(&self) -> Age {
        self.read().max(self.written())
    }

    /// Drops what does not follow from the log, since the term has changed or another write has replaced all there was.
    fn forget_term(&mut self);

    /// Drops contents that no read with this stamp or a later one sees.
    fn forget(&mut self, _before: Age) {}

    /// The content that a read with this stamp sees, unless that is the newest.
    fn replaced(&self, _stamp: Age) -> Option<(&Cell, Gsn)> {
        None
    }

    /// The number of contents that are kept.
    fn kept(&self) -> usize {
        0
    }
}

/// A content that is installed.
#[derive(Debug)]
pub(crate) struct Content {
    /// The content.
    pub(crate) cell: Cell,
    /// The stamp of its writer.
    pub(crate) stamp: Age,
    /// Its version.
    pub(crate) version: Gsn,
}

/// The stamps of the latest read and write alone.
#[derive(Debug, Default)]
pub(crate) struct Latest {
    /// The latest stamp of an attempt that was granted to read it.
    pub(crate) read: Age,
    /// The latest stamp of an attempt that has written it and has committed.
    pub(crate) written: Age,
}

impl History for Latest {
    const KEEPS: bool = false;

    #[inline]
    fn seen(&self, stamp: Age) -> Option<Age> {
        (stamp >= self.written).then_some(self.written)
    }

    #[inline]
    fn is_too_late(&self, stamp: Age, looks: bool) -> bool {
        stamp < self.read || looks && stamp < self.written
    }

    #[inline]
    fn mark_read(&mut self, stamp: Age) {
        self.read = self.read.max(stamp);
    }

    fn install(&mut self, store: &mut MemoryStore, record: RecordId, content: Content, _keeps: bool) {
        let Content { cell, stamp, version } = content;
        if stamp >= self.written {
            self.written = stamp;
            store.put_back(record, cell, version);
        }
    }

    fn remember(&mut self, stamp: Age) {
        self.written = self.written.max(stamp);
    }

    fn written(&self) -> Age {
        self.written
    }

    fn read(&self) -> Age {
        self.read
    }

    fn forget_term(&mut self) {
        self.read = Age(0);
    }
}

/// Marks on one target.
#[derive(Debug, Default)]
pub(super) struct Marks<H> {
    pub(super) history: H,
    /// Attempts that may write it, ascending.
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

impl<H: History> Marks<H> {
    /// Decides about a read: of two targets that the access is under, each has to grant it.
    pub(super) fn judge(&self, place: Place) -> Verdict {
        let Some(seen) = self.history.seen(place.0) else { return Verdict::Refused };
        let is_between = |other: &&Place| other.0 > seen;
        match self.prewrites.iter().take_while(|other| **other < place).find(is_between) {
            Some(_) => Verdict::Waits,
            None => Verdict::Granted,
        }
    }

    /// True if its lists are those that attempts know of: prewrites, and who waits.
    pub(super) fn is_as(&self, (prewrites, waiting): &mut (Vec<Place>, Vec<Place>)) -> bool {
        prewrites.sort_unstable();
        waiting.sort_unstable();
        self.prewrites == *prewrites && self.waiting == *waiting
    }

    fn is_in_use(&self) -> bool {
        !self.prewrites.is_empty() || !self.waiting.is_empty()
    }
}

/// Marks on a record. The record's lock word is one more than their place.
#[derive(Debug)]
pub(super) struct OfRecord<H> {
    pub(super) record: RecordId,
    pub(super) marks: Marks<H>,
    is_free: bool,
}

impl<H: History> OfRecord<H> {
    fn free(&mut self, store: &mut MemoryStore) {
        self.marks.history = H::default();
        self.is_free = true;
        store.set_lock(self.record, 0);
        store.release_if_absent(self.record);
    }
}

/// Marks on records, of those that were accessed lately.
#[derive(Debug, Default)]
pub(super) struct Records<H> {
    all: Vec<OfRecord<H>>,
    free: Vec<u32>,
    /// Each place in use once, with a stamp that the marks there had when it was looked at.
    by_age: VecDeque<(Age, u32)>,
}

impl<H: History> Records<H> {
    /// Returns the marks of a record, if it has some.
    #[inline]
    pub(super) fn get(&self, store: &MemoryStore, record: RecordId) -> Option<&Marks<H>> {
        let place = store.lock(record).checked_sub(1)?;
        self.all.get(place as usize).map(|of| &of.marks)
    }

    /// Returns the marks of a record that has some.
    #[inline]
    pub(super) fn get_mut(&mut self, store: &MemoryStore, record: RecordId) -> Option<&mut Marks<H>> {
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
    ) -> &mut Marks<H> {
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
            of.marks.history.forget(before);
            let its = of.marks.history.latest();
            if its >= before || of.marks.is_in_use() {
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
    pub(super) fn clear(&mut self, store: &mut MemoryStore) {
        let Records { all, free, by_age } = self;
        by_age.retain(|(_, at)| {
            let of = &mut all[*at as usize];
            of.marks.history.forget_term();
            of.marks.prewrites.clear();
            of.marks.waiting.clear();
            let stays = of.marks.history.written() > Age(0);
            if !stays {
                of.free(store);
                free.push(*at);
            }
            stays
        });
    }

    /// Visits the marks in use.
    pub(super) fn iter(&self) -> impl Iterator<Item = &OfRecord<H>> {
        self.all.iter().filter(|of| !of.is_free)
    }

    /// Visits the histories in use.
    pub(super) fn histories(&mut self) -> impl Iterator<Item = &mut H> {
        self.all.iter_mut().filter(|of| !of.is_free).map(|of| &mut of.marks.history)
    }

    /// Returns how many records have marks.
    pub(super) fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }
}
