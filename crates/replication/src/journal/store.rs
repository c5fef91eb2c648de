//! The entries of a group's log as consensus sees them: the latest in memory, the others on disk.
//!
//! In memory are all entries that are not dispatched yet and a bounded tail of those that are. A member that was away
//! for longer is served from disk: [`Storage::entries`] notes who wants what and says that it comes later, the role
//! reads the journal from the last place it remembers before the entry, and hands what it finds to
//! [`Store::fetched`]. An entry is known by its index and term, so stale ones that stand in between are passed over.
//!
//! What a checkpoint covers can be let go ([`Store::trim`]). A member that needs it is noted by [`Storage::snapshot`].

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};

use ordain_log::Place;
use ordain_model::Epoch;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::base::Base;

/// The most readers of entries that are remembered. A reader that is forgotten asks again at the next heartbeat.
const WAITING_MAX: usize = 16;

/// The log of a member.
#[derive(Debug)]
pub(crate) struct Store {
    pub hard: HardState,
    pub members: ConfState,
    /// Entries without a gap, up to the last.
    tail: VecDeque<Entry>,
    tail_bytes: usize,
    /// Index of the last entry.
    last: u64,
    /// The last entry that cannot be had at all.
    base: Base,
    /// The first index of each term, ascending in both.
    terms: Vec<(u64, u64)>,
    /// Entries from this index on stand at this place of the journal or behind it; ascending in both.
    places: Vec<(u64, Place)>,
    /// Journal bytes since the last place.
    since: u64,
    /// The least number of bytes of the journal between two places, or two marks.
    stride: u64,
    /// Some entries that are dispatched: the log can be trimmed up to each. Ascending.
    marks: VecDeque<Mark>,
    /// The bytes that were dispatched.
    total: u64,
    /// The last change of the membership that is in force.
    changed: u64,
    /// Entries that were read from disk, without a gap.
    fetched: Vec<Entry>,
    /// The index from which on entries are wanted, by reader.
    wanted: RefCell<Vec<(u64, GetEntriesContext)>>,
    /// Members that need what cannot be had any more.
    behind: RefCell<BTreeSet<u64>>,
}

/// A dispatched entry.
#[derive(Clone, Copy, Debug)]
struct Mark {
    index: u64,
    /// The epoch of the last log entry up to it.
    epoch: Epoch,
    /// The bytes that were dispatched by then.
    total: u64,
}

/// Bytes that an entry counts for in memory, beside its own.
const OVERHEAD: usize = 96;

fn size(entry: &Entry) -> usize {
    entry.data.len() + OVERHEAD
}

impl Store {
    /// An empty log of a group that begins with these members, with a journal in segments of this length.
    pub fn new(voters: Vec<u64>, segment_bytes: u64) -> Store {
        let members = ConfState { voters, ..ConfState::default() };
        Store::after(Base { members, ..Base::default() }, segment_bytes)
    }

    /// A log that has nothing after its base.
    pub fn after(base: Base, segment_bytes: u64) -> Store {
        let begins = (base.index > 0).then_some((base.index, base.term));
        let hard = HardState { term: base.term, commit: base.index, ..HardState::default() };
        Store {
            hard,
            members: base.members.clone(),
            tail: VecDeque::new(),
            tail_bytes: 0,
            last: base.index,
            terms: begins.into_iter().collect(),
            places: Vec::new(),
            since: 0,
            stride: (segment_bytes / 64).clamp(1, 1 << 20),
            marks: VecDeque::new(),
            total: 0,
            changed: 0,
            fetched: Vec::new(),
            wanted: RefCell::default(),
            behind: RefCell::default(),
            base,
        }
    }

    /// The last entry that cannot be had at all.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// Index of the last entry.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Takes entries, which follow each other, in the place of all from the first one's index on. `false` if they do
    /// not fit.
    #[must_use]
    pub fn append(&mut self, entries: Vec<Entry>) -> bool {
        let Some(first) = entries.first().map(|entry| entry.index) else { return true };
        if first == 0 || first > self.last + 1 || first + (self.tail.len() as u64) <= self.last {
            return false;
        }
        while self.tail.back().is_some_and(|entry| entry.index >= first) {
            self.tail_bytes -= self.tail.pop_back().map_or(0, |entry| size(&entry));
        }
        self.terms.truncate(self.terms.partition_point(|(index, _)| *index < first));
        self.last = first - 1;
        for entry in entries {
            let term = self.terms.last().map_or(0, |(_, term)| *term);
            if entry.index != self.last + 1 || entry.term < term {
                return false;
            }
            if entry.term > term {
                self.terms.push((entry.index, entry.term));
            }
            self.last = entry.index;
            self.tail_bytes += size(&entry);
            self.tail.push_back(entry);
        }
        true
    }

    /// The entries in memory from an index on.
    pub fn from(&self, index: u64) -> impl DoubleEndedIterator<Item = &Entry> {
        let skip = (index + self.tail.len() as u64).saturating_sub(self.last + 1) as usize;
        self.tail.range(skip.min(self.tail.len())..)
    }

    /// Forgets entries up to `index`, oldest first, until those in memory take no more than `bytes`. If nothing of
    /// them is on disk, they are gone for everybody.
    pub fn shrink(&mut self, index: u64, bytes: usize, on_disk: bool) {
        while self.tail_bytes > bytes && self.tail.front().is_some_and(|entry| entry.index <= index) {
            let Some(entry) = self.tail.pop_front() else { return };
            self.tail_bytes -= size(&entry);
            if !on_disk {
                (self.base.index, self.base.term) = (entry.index, entry.term);
                self.base.epoch = epoch_of(&entry).unwrap_or(self.base.epoch);
            }
        }
    }

    /// An entry was dispatched, and the last entry so far is of this epoch.
    pub fn dispatched(&mut self, entry: &Entry, epoch: Epoch) {
        self.total += size(entry) as u64;
        if is_change(entry) {
            self.changed = entry.index;
        }
        let marked = self.marks.back().map_or(0, |mark| mark.total);
        if self.total - marked >= self.stride {
            self.marks.push_back(Mark { index: entry.index, epoch, total: self.total });
        }
    }

    /// About how much was dispatched after an entry.
    pub fn bytes_after(&self, index: u64) -> u64 {
        let known = self.marks.partition_point(|mark| mark.index <= index).checked_sub(1);
        self.total - known.map_or(0, |known| self.marks[known].total)
    }

    /// The base at which the log can begin if nothing is needed of the entries up to an epoch, nor any entry up to an
    /// index; and the place of the journal before which all can go then.
    pub fn base_for(&self, epoch: Epoch, index: u64) -> Option<(Base, Place)> {
        let fits = self.marks.partition_point(|mark| mark.epoch <= epoch && mark.index <= index);
        let mark = self.marks[fits.checked_sub(1)?];
        // The members before the last change are not known any more.
        if mark.index <= self.base.index || mark.index < self.changed {
            return None;
        }
        let known = self.places.partition_point(|(index, _)| *index <= mark.index + 1).checked_sub(1)?;
        let (term, members) = (self.term_of(mark.index), self.members.clone());
        let base = Base { index: mark.index, term, epoch: mark.epoch, members, void: self.base.void };
        Some((base, self.places[known].1))
    }

    /// An entry after which all stand whose epoch is larger than this one, of a log that begins no later.
    pub fn index_before(&self, epoch: Epoch) -> u64 {
        let fits = self.marks.partition_point(|mark| mark.epoch <= epoch);
        fits.checked_sub(1).map_or(self.base.index, |fits| self.marks[fits].index)
    }

    /// The log begins later from now on.
    pub fn trim(&mut self, base: Base) {
        while self.tail.front().is_some_and(|entry| entry.index <= base.index) {
            self.tail_bytes -= self.tail.pop_front().map_or(0, |entry| size(&entry));
        }
        self.terms.drain(..self.terms.partition_point(|(first, _)| *first <= base.index).saturating_sub(1));
        let gone = self.places.partition_point(|(index, _)| *index <= base.index + 1).saturating_sub(1);
        self.places.drain(..gone);
        self.marks.retain(|mark| mark.index > base.index);
        self.fetched.clear();
        // A reader of trimmed entries asks again.
        self.wanted.get_mut().retain(|(low, _)| *low > base.index);
        self.base = base;
    }

    /// Takes the members that have asked for trimmed entries since the last call.
    pub fn take_behind(&mut self) -> BTreeSet<u64> {
        std::mem::take(self.behind.get_mut())
    }

    /// Entries in memory, and what they take.
    pub fn in_memory(&self) -> (usize, usize) {
        (self.tail.len() + self.fetched.len(), self.tail_bytes + self.fetched.iter().map(size).sum::<usize>())
    }

    /// Notes that the valid entries from `index` on stand at `place` of the journal or behind it, which has grown by
    /// `bytes` since the last call. Some of the places are remembered.
    pub fn note_place(&mut self, index: u64, place: Place, bytes: u64) {
        self.since += bytes;
        if self.places.is_empty() || self.since >= self.stride {
            self.since = 0;
            self.places.truncate(self.places.partition_point(|(known, _)| *known < index));
            self.places.push((index, place));
        }
    }

    /// The first index, the place and the end of the entries that have to be read from disk, if any.
    pub fn wanted(&self) -> Option<(u64, Place, u64)> {
        let low = self.wanted.borrow().iter().map(|(low, _)| *low).min()?;
        let known = self.places.partition_point(|(index, _)| *index <= low).checked_sub(1)?;
        Some((low, self.places[known].1, self.last - self.tail.len() as u64))
    }

    /// Tells whether the log has an entry of this index and term.
    pub fn has(&self, index: u64, term: u64) -> bool {
        (self.base.index..=self.last).contains(&index) && self.term_of(index) == term
    }

    /// Tells whether an entry that was read from disk is of this log, and not one that another has taken the place of.
    pub fn is_valid(&self, entry: &Entry) -> bool {
        self.has(entry.index, entry.term)
    }

    /// Takes entries that were read from disk, and answers the readers that wait for some.
    pub fn fetched(&mut self, entries: Vec<Entry>) -> Vec<GetEntriesContext> {
        self.fetched = entries;
        self.wanted.take().into_iter().map(|(_, context)| context).collect()
    }

    fn term_of(&self, index: u64) -> u64 {
        let after = self.terms.partition_point(|(first, _)| *first <= index);
        after.checked_sub(1).map_or(0, |at| self.terms[at].1)
    }

    /// Checks the invariants of the entries.
    pub fn check(&self) -> Result<(), String> {
        let in_order = self.tail.iter().rev().zip((0..=self.last).rev()).all(|(e, index)| e.index == index);
        let terms_fit = self.tail.iter().all(|entry| self.term_of(entry.index) == entry.term);
        let bytes: usize = self.tail.iter().map(size).sum();
        let ascending = |(a, b): (&(u64, u64), &(u64, u64))| a.0 < b.0 && a.1 < b.1;
        if !in_order || !terms_fit || bytes != self.tail_bytes {
            return Err("the entries in memory do not follow each other".to_owned());
        }
        if !self.terms.iter().zip(self.terms.iter().skip(1)).all(ascending) {
            return Err(format!("terms do not rise along the log: {:?}", self.terms));
        }
        let base = &self.base;
        if base.index > self.last || self.term_of(base.index) != base.term {
            return Err(format!(
                "the log ends at {} and begins after {} of {}",
                self.last, base.index, base.term
            ));
        }
        Ok(())
    }
}

/// Takes as many of the entries as fit into `max` bytes, but at least one.
fn limit<'a>(entries: impl Iterator<Item = &'a Entry>, max: Option<u64>) -> Vec<Entry> {
    let mut left = max.unwrap_or(u64::MAX);
    let mut taken = Vec::new();
    for entry in entries {
        let size = size(entry) as u64;
        if size > left && !taken.is_empty() {
            break;
        }
        left = left.saturating_sub(size);
        taken.push(entry.clone());
    }
    taken
}

impl Storage for Store {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState { hard_state: self.hard.clone(), conf_state: self.members.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let max = max_size.into();
        if low <= self.base.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if low + self.tail.len() as u64 > self.last {
            return Ok(limit(self.from(low).take((high - low) as usize), max));
        }
        if let Some(first) = self.fetched.first().map(|entry| entry.index)
            && (first..first + self.fetched.len() as u64).contains(&low)
        {
            // Some of them may have been replaced since they were read.
            let entries = self.fetched[(low - first) as usize..].iter().take((high - low) as usize);
            return Ok(limit(entries.take_while(|entry| self.is_valid(entry)), max));
        }
        if context.can_async() {
            let mut wanted = self.wanted.borrow_mut();
            if wanted.len() < WAITING_MAX {
                wanted.push((low, context));
            }
            return Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable));
        }
        // Entries that are not dispatched are in memory, and others are not asked for in this way.
        Err(raft::Error::Store(StorageError::Unavailable))
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index < self.base.index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if index > self.last {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        Ok(self.term_of(index))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    /// The log is all there is: a member that is too far behind for it has to get a checkpoint, which is not for the
    /// protocol to send.
    fn snapshot(&self, _request_index: u64, to: u64) -> raft::Result<Snapshot> {
        self.behind.borrow_mut().insert(to);
        Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

/// The number of the log entry that a Raft entry holds, if it holds one.
pub(crate) fn epoch_of(entry: &Entry) -> Option<Epoch> {
    crate::entry::epoch_of(&entry.data).filter(|_| !is_change(entry))
}

/// Tells whether an entry is a change of the membership.
pub(crate) fn is_change(entry: &Entry) -> bool {
    entry.entry_type != EntryType::EntryNormal
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        let mut entry = Entry { index, term, ..Entry::default() };
        entry.data = vec![index as u8; 10].into();
        entry
    }

    fn store(entries: &[(u64, u64)]) -> Store {
        let mut store = Store::new(vec![1, 2, 3], 64);
        assert!(store.append(entries.iter().map(|(index, term)| entry(*index, *term)).collect()));
        store
    }

    fn get(store: &Store, low: u64, high: u64) -> raft::Result<Vec<(u64, u64)>> {
        let entries = store.entries(low, high, None, GetEntriesContext::empty(true))?;
        Ok(entries.iter().map(|entry| (entry.index, entry.term)).collect())
    }

    #[test]
    fn later_entries_take_the_place_of_earlier_ones_and_all_behind_them() {
        let mut store = store(&[(1, 1), (2, 1), (3, 2), (4, 2)]);
        assert!(store.append(vec![entry(3, 3)]));
        assert_eq!(get(&store, 1, 4).unwrap(), [(1, 1), (2, 1), (3, 3)]);
        assert_eq!((store.last(), store.term(3).unwrap(), store.term(0).unwrap()), (3, 3, 0));
        assert!(store.term(4).is_err());
        assert!(!store.append(vec![entry(5, 3)]), "a gap");
        assert!(!store.append(vec![entry(4, 2)]), "a term that falls");
    }

    #[test]
    fn what_left_memory_is_wanted_from_disk_and_served_from_what_came() {
        let mut store = store(&[(1, 1), (2, 1), (3, 2), (4, 2)]);
        store.note_place(1, place(), 0);
        store.shrink(3, 0, true);
        assert_eq!(store.in_memory().0, 1);
        assert_eq!(get(&store, 4, 5).unwrap(), [(4, 2)]);
        let unavailable = raft::Error::Store(StorageError::LogTemporarilyUnavailable);
        assert_eq!(get(&store, 2, 5), Err(unavailable));
        assert_eq!(store.wanted(), Some((2, place(), 3)));
        assert!(store.is_valid(&entry(3, 2)) && !store.is_valid(&entry(3, 1)));
        assert_eq!(store.fetched(vec![entry(2, 1), entry(3, 2)]).len(), 1);
        assert_eq!(get(&store, 2, 5).unwrap(), [(2, 1), (3, 2)]);
        assert_eq!(store.wanted(), None);
        assert_eq!(store.check(), Ok(()));
    }

    #[test]
    fn what_is_not_on_disk_is_gone_when_it_leaves_memory() {
        let mut store = store(&[(1, 1), (2, 1), (3, 2)]);
        store.shrink(2, 0, false);
        assert_eq!(get(&store, 2, 4), Err(raft::Error::Store(StorageError::Compacted)));
        assert_eq!((store.first_index().unwrap(), store.term(2).unwrap()), (3, 1));
        assert!(store.term(1).is_err());
    }

    fn place() -> Place {
        let mut disk = ordain_log::MemoryDirectory::new();
        let config = ordain_log::LogConfig::new(*b"store");
        ordain_log::LogWriter::open(&mut disk, config, |_| Ok(())).unwrap().0.place()
    }
}
