//! Marks of one record, or of the whole table: what an engine remembers of its contents, prewrites, and who waits.

use std::fmt::Debug;

use ordain_commit::{Age, AttemptId, Verdict};
use ordain_model::{Cell, Gsn};
use ordain_store::{MemoryStore, RecordId, RecordStore};

use crate::marked_records::Marks;

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
pub(super) struct Stamped<H> {
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

impl<H: History> Stamped<H> {
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
}

impl<H: History> Marks for Stamped<H> {
    fn latest(&self) -> Age {
        self.history.latest()
    }

    fn written(&self) -> Age {
        self.history.written()
    }

    fn are_in_use(&self) -> bool {
        !self.prewrites.is_empty() || !self.waiting.is_empty()
    }

    fn forget(&mut self, before: Age) {
        self.history.forget(before);
    }

    fn clear(&mut self) {
        self.history.forget_term();
        self.prewrites.clear();
        self.waiting.clear();
    }
}
