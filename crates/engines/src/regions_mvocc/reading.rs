//! Reads: which version an attempt sees, whom it waits for, and whether what it has read is as it was.

use ordain_commit::{Age, Mode, Reads, Verdict};
use ordain_model::{Cell, Gsn};
use ordain_role::Bug;
use ordain_store::{MemoryStore, RecordId};

use super::versions::{Kept, Marks, Shown};
use super::{Mvocc, UNDECIDED};

/// A prepared attempt that will replace the newest version of a record.
#[derive(Clone, Copy, Debug)]
struct Overwriter {
    by: u32,
    stamp: Age,
    /// The version that it leaves is here.
    is_known: bool,
}

impl Mvocc {
    /// The prepared attempt that replaces a record's newest version, unless that is the attempt which asks.
    fn overwriter(&self, marks: &Marks, at: usize) -> Option<Overwriter> {
        let by = marks.claim.filter(|by| *by as usize != at)?;
        let kept = &self.attempts[by as usize].kept;
        let stamp = kept.prepared()?;
        let leaves_it = marks.next.as_ref().is_some_and(|next| next.by == by);
        let is_known = kept.leaves.is_some();
        // An attempt that has handed over its writes leaves other records as they are.
        (leaves_it || !is_known).then_some(Overwriter { by, stamp, is_known })
    }

    /// The begin of the version that an attempt which is validated now would see: its writer may be prepared.
    fn version(&self, store: &MemoryStore, record: RecordId, at: usize) -> Age {
        let Some(marks) = self.records.get(store, record) else { return self.table.changed };
        let stands_on = &self.attempts[at].kept.stands_on;
        // Planted, VALIDATED: the end of a version that a prepared attempt owns does not count.
        let passes = |over: &Overwriter| self.bugs.has(Bug::PassPrepared) && !stands_on.contains(&over.by);
        let over = self.overwriter(marks, at).filter(|over| !passes(over));
        over.map_or(marks.begin_of(Shown::Newest, self.table.changed), |over| over.stamp)
    }

    /// True if all that an attempt has read here is as one that is validated now would see it.
    pub(super) fn is_current(&self, store: &MemoryStore, at: usize) -> bool {
        let Kept { read, read_table, came, .. } = &self.attempts[at].kept;
        let is_table_current = |read: Age| {
            let mut writing = self.table.writing.values();
            self.table.newest <= read && writing.all(|other| *other as usize == at)
        };
        *came == self.table.changes
            && read.iter().all(|(record, begin)| self.version(store, record, at) == begin)
            && read_table.is_none_or(is_table_current)
    }

    /// Takes an attempt to the stamp at which it reads by now, as its coordinator has it; answers whether what it has read here is so at that stamp too,
    /// and no change of whole databases has come since it came (rule V2).
    pub(super) fn has_kept_up(&mut self, store: &MemoryStore, at: usize, age: Age) -> bool {
        let changes = self.table.changes;
        let kept = &mut self.attempts[at].kept;
        if !kept.has_come {
            (kept.has_come, kept.came, kept.at) = (true, changes, age);
        }
        if kept.came != changes {
            return false;
        }
        age <= kept.at || kept.reads == Reads::Fixed || self.extend(store, at, age)
    }

    /// Has an attempt read at a later stamp from now on; answers whether what it has read here is as it was.
    fn extend(&mut self, store: &MemoryStore, at: usize, to: Age) -> bool {
        // Planted, VALIDATED.
        let is_current = self.bugs.has(Bug::ExtendBlindly) || self.is_current(store, at);
        let kept = &mut self.attempts[at].kept;
        if is_current && kept.at < to {
            kept.at = to;
            self.counts.extended += 1;
        }
        is_current
    }

    /// True if an attempt waits for one that is prepared and changes whole databases.
    pub(super) fn waits_for_change(&self, at: usize) -> bool {
        let kept = &self.attempts[at].kept;
        let stamp = self.table.changing.and_then(|other| self.attempts[other as usize].kept.prepared());
        stamp.is_some_and(|stamp| kept.reads != Reads::Fixed || stamp <= kept.at)
    }

    /// The verdict on an access to a snapshot that a validated attempt is to be part of: that is over soon, unless other regions have part in it.
    fn wait_for(&mut self, at: usize, by: u32) -> Verdict {
        let is_in_doubt = self.attempts[by as usize].kept.keeps_reads;
        match self.attempts[at].kept.resolves && is_in_doubt {
            true => self.refuse(|counts| &mut counts.by_doubt),
            false => Verdict::Waits,
        }
    }

    fn refuse(&mut self, count: impl FnOnce(&mut super::Figures) -> &mut u64) -> Verdict {
        *count(&mut self.counts) += 1;
        Verdict::Refused
    }

    /// Takes note of what an access to a record reads, which an attempt that writes it has claimed.
    pub(super) fn read(&mut self, store: &MemoryStore, at: usize, record: RecordId, mode: Mode) -> Verdict {
        let before = self.attempts[at].kept.read.get(record);
        match (mode, self.attempts[at].kept.reads) {
            (Mode::Blind, _) => match before.is_none_or(|begin| begin == self.version(store, record, at)) {
                true => Verdict::Granted,
                false => self.refuse(|counts| &mut counts.by_version),
            },
            (_, Reads::Newest) => self.read_newest(store, at, record, before),
            (_, Reads::First) => self.read_first(store, at, record),
            (_, Reads::Fixed | Reads::Resolved) => self.read_fixed(store, at, record, mode),
        }
    }

    /// The newest version, though its writer may be prepared: then the attempt stands on that (rules V2 and V6).
    fn read_newest(
        &mut self,
        store: &MemoryStore,
        at: usize,
        record: RecordId,
        before: Option<Age>,
    ) -> Verdict {
        let over = self.records.get(store, record).and_then(|marks| self.overwriter(marks, at));
        let begin = self.version(store, record, at);
        if let Some(before) = before {
            return match before == begin {
                true => Verdict::Granted,
                false => self.refuse(|counts| &mut counts.by_version),
            };
        }
        if over.is_some_and(|over| !over.is_known) {
            return Verdict::Waits;
        }
        if begin > self.attempts[at].kept.at && !self.extend(store, at, begin) {
            return self.refuse(|counts| &mut counts.by_version);
        }
        let kept = &mut self.attempts[at].kept;
        kept.read.insert(record, begin);
        if let Some(Overwriter { by, .. }) = over.filter(|over| over.stamp == begin) {
            self.counts.speculated += 1;
            if !kept.stands_on.contains(&by) {
                kept.stands_on.push(by);
                self.attempts[by as usize].kept.carries.push(at as u32);
            }
        }
        Verdict::Granted
    }

    /// The newest version that is decided. All that follows is read at the stamp which that fixes.
    fn read_first(&mut self, store: &MemoryStore, at: usize, record: RecordId) -> Verdict {
        let marks = self.records.get(store, record);
        if marks.and_then(|marks| self.overwriter(marks, at)).is_some() {
            return Verdict::Waits;
        }
        let changed = self.table.changed;
        let begin = marks.map_or(changed, |marks| marks.begin_of(Shown::Newest, changed));
        self.fix(at, begin);
        self.attempts[at].kept.read.insert(record, begin);
        Verdict::Granted
    }

    /// Fixes the stamp at which an attempt reads.
    fn fix(&mut self, at: usize, stamp: Age) {
        let kept = &mut self.attempts[at].kept;
        (kept.at, kept.reads) = (kept.at.max(stamp), Reads::Fixed);
        self.latest = self.latest.max(kept.at);
    }

    /// The version of the attempt's stamp (rule V4). A prepared attempt whose stamp is not later may have replaced it.
    fn read_fixed(&mut self, store: &MemoryStore, at: usize, record: RecordId, mode: Mode) -> Verdict {
        let (stamp, changed) = (self.attempts[at].kept.at, self.table.changed);
        let marks = self.records.get(store, record);
        let over = marks.and_then(|marks| self.overwriter(marks, at));
        // Planted, FIFO-LOCKS.
        if let Some(over) = over.filter(|over| over.stamp <= stamp && !self.bugs.has(Bug::GrantLockEarly)) {
            return self.wait_for(at, over.by);
        }
        let shown = match marks {
            _ if stamp < self.floor => Shown::Gone,
            Some(marks) => marks.shown(stamp, changed),
            None if stamp < changed => Shown::Gone,
            None => Shown::Newest,
        };
        let newest = marks.map_or(changed, |marks| marks.begin_of(Shown::Newest, changed));
        let begin = marks.map_or(changed, |marks| marks.begin_of(shown, changed));
        match shown {
            // Planted, VALIDATED: the newest is read, whatever else was.
            Shown::Older(_) | Shown::Gone if self.bugs.has(Bug::ExtendBlindly) => {
                self.attempts[at].kept.at = newest;
            }
            // Planted, STAMP-ORDER.
            Shown::Gone if self.bugs.has(Bug::ShowNewest) => {}
            Shown::Gone => return self.refuse(|counts| &mut counts.by_age),
            Shown::Older(_) if mode != Mode::Shared => return self.refuse(|counts| &mut counts.by_version),
            Shown::Older(_) | Shown::Newest => {}
        }
        self.latest = self.latest.max(stamp);
        self.attempts[at].kept.read.insert(record, begin);
        Verdict::Granted
    }

    /// Takes note of a read of all records, or lets it wait for those whose writes it has to see (rule V7).
    pub(super) fn read_table(&mut self, store: &MemoryStore, at: usize, mode: Mode) -> Verdict {
        let (stamp, reads) = (self.attempts[at].kept.at, self.attempts[at].kept.reads);
        let is_meant = |(other, _): &(&Age, &u32)| reads != Reads::Fixed || **other <= stamp;
        let meant: Vec<u32> = self.table.writing.iter().filter(is_meant).map(|(_, by)| *by).collect();
        let in_doubt = meant.iter().find(|by| self.attempts[**by as usize].kept.keeps_reads);
        if let Some(by) = in_doubt.or(meant.first()).filter(|_| !self.bugs.has(Bug::GrantLockEarly)) {
            return self.wait_for(at, *by);
        }
        let newest = self.table.newest;
        match reads {
            Reads::Newest if newest > stamp && !self.extend(store, at, newest) => {
                return self.refuse(|counts| &mut counts.by_version);
            }
            Reads::Newest => {}
            Reads::First => self.fix(at, newest),
            Reads::Fixed | Reads::Resolved if mode != Mode::Shared && newest > stamp => {
                return self.refuse(|counts| &mut counts.by_version);
            }
            Reads::Fixed | Reads::Resolved => {
                let is_gone = |marks: &Marks| marks.shown(stamp, self.table.changed) == Shown::Gone;
                let lacks = stamp < self.floor.max(self.table.changed)
                    || self.records.iter().any(|of| is_gone(&of.marks));
                if lacks && !self.bugs.has(Bug::ShowNewest) {
                    return self.refuse(|counts| &mut counts.by_age);
                }
                self.fix(at, stamp);
            }
        }
        let kept = &mut self.attempts[at].kept;
        kept.read_table.get_or_insert(kept.at);
        Verdict::Granted
    }

    /// The content of a record that an attempt sees, and its version, unless that is the newest.
    pub(super) fn seen_by<'a>(&self, kept: &Kept, marks: &'a Marks) -> Option<(&'a Cell, Gsn)> {
        match kept.reads {
            Reads::Fixed | Reads::Resolved => match marks.shown(kept.at, self.table.changed) {
                Shown::Older(place) => Some(marks.older(place)),
                Shown::Newest | Shown::Gone => None,
            },
            Reads::Newest => {
                let next = marks.next.as_ref().filter(|next| kept.stands_on.contains(&next.by))?;
                next.cell.as_ref().map(|cell| (cell, UNDECIDED))
            }
            Reads::First => None,
        }
    }
}
