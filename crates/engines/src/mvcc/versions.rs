//! The contents of one record: the newest is in the store, and those before it are here.

use ordain_commit::Age;
use ordain_model::{Cell, Gsn};
use ordain_store::{MemoryStore, RecordId};

use crate::marked_records::replace;
use crate::stamp_order::{Content, History};

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// The stamp of the newest content; 0 if it is not remembered.
    written: Age,
    /// The latest stamp that has read the newest content.
    read: Age,
    /// Contents before it, ascending by stamp.
    older: Vec<Older>,
}

/// A content that was replaced, or never was the newest.
#[derive(Debug)]
struct Older {
    content: Content,
    /// The latest stamp that has read it.
    read: Age,
}

impl Versions {
    /// The number of older contents that a stamp is not before.
    fn place(&self, stamp: Age) -> usize {
        self.older.partition_point(|older| older.content.stamp <= stamp)
    }

    /// The older content that a stamp sees, if it sees one.
    fn older_at(&self, stamp: Age) -> Option<&Older> {
        if stamp >= self.written { None } else { self.older.get(self.place(stamp).checked_sub(1)?) }
    }
}

impl History for Versions {
    const KEEPS: bool = true;

    fn seen(&self, stamp: Age) -> Option<Age> {
        if stamp >= self.written {
            return Some(self.written);
        }
        self.older_at(stamp).map(|older| older.content.stamp)
    }

    fn is_too_late(&self, stamp: Age, _looks: bool) -> bool {
        if stamp >= self.written {
            return stamp < self.read;
        }
        self.older_at(stamp).is_none_or(|older| stamp < older.read)
    }

    fn mark_read(&mut self, stamp: Age) {
        if stamp >= self.written {
            self.read = self.read.max(stamp);
        } else if let Some(place) = self.place(stamp).checked_sub(1) {
            let read = &mut self.older[place].read;
            *read = stamp.max(*read);
        }
    }

    fn install(&mut self, store: &mut MemoryStore, record: RecordId, content: Content, keeps: bool) {
        if content.stamp >= self.written {
            let (cell, version) = replace(store, record, (content.cell, content.version));
            if keeps && content.stamp > self.written {
                let before = Content { cell, stamp: self.written, version };
                self.older.push(Older { content: before, read: self.read });
            }
            (self.written, self.read) = (content.stamp, Age(0));
        } else if keeps {
            let place = self.place(content.stamp);
            match place.checked_sub(1).map(|before| &mut self.older[before].content) {
                Some(before) if before.stamp == content.stamp => *before = content,
                _ => self.older.insert(place, Older { content, read: Age(0) }),
            }
        }
    }

    fn remember(&mut self, stamp: Age) {
        self.written = self.written.max(stamp);
    }

    fn written(&self) -> Age {
        self.written
    }

    fn read(&self) -> Age {
        self.older.iter().map(|older| older.read).fold(self.read, Age::max)
    }

    fn forget_term(&mut self) {
        self.read = Age(0);
        self.older.clear();
    }

    fn forget(&mut self, before: Age) {
        // The last of those that are not later is seen yet, unless the newest is.
        let seen =
            if self.written <= before { self.older.len() } else { self.place(before).saturating_sub(1) };
        self.older.drain(..seen);
    }

    fn replaced(&self, stamp: Age) -> Option<(&Cell, Gsn)> {
        self.older_at(stamp).map(|older| (&older.content.cell, older.content.version))
    }

    fn kept(&self) -> usize {
        self.older.len()
    }
}
