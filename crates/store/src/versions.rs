//! What records held before: the contents that a reader of a past state may still need.
//!
//! A shard is one thread, so an older content needs no tag in the record's line and no atomics: it goes to a queue
//! in the order of the changes, as into an undo log. *As of* an epoch a record held what the first change by a later
//! epoch has replaced, or else what it holds now. So a record that nobody has changed lately costs nothing, neither
//! memory nor a lookup, and one that was changed costs its reader a walk over a few of these.
//!
//! The queue is a ring, and its places keep small buffers for those to come: at a steady pace a content is copied to
//! where the caches have been a moment ago, and nothing is allocated or freed. Entries are found by record over
//! *chains*: each knows the one before it of the same bucket, by its number. They go from the front of the queue
//! only, and numbers rise, so the end of a chain is wherever it leaves the queue. Nothing has to be unlinked, and
//! neither the table nor the record's line is touched when an entry goes.

use std::hint::black_box;
use std::ops::Range;

use ordain_model::{Cell, Epoch, Gsn, Value};

use crate::slab::Record;
use crate::{Keep, RecordId};

/// A content that was replaced, or a place in the ring for one to come.
#[derive(Debug)]
pub(crate) struct Older {
    pub(crate) record: RecordId,
    /// The record was to be released, and was not because of this entry, its newest.
    release: bool,
    /// The number of the entry before it in its bucket's chain; less than every number in use if there is none.
    previous: u64,
    /// The epoch of the change that replaced it. For one record it rises from entry to entry.
    until: Epoch,
    pub(crate) version: Gsn,
    /// Absent, where a record was inserted. In a place for one to come, perhaps a buffer.
    pub(crate) cell: Cell,
}

const _: () = assert!(size_of::<Older>() == 64);

/// No change is of a later epoch.
const NEVER: Epoch = Epoch(u64::MAX);
/// The fewest places there are, if there are any.
const MIN_PLACES: usize = 256;
/// The most bytes that a place keeps for the next content.
const BUFFER_MAX: u64 = 1024;

/// The older contents of one store.
#[derive(Debug)]
pub(crate) struct Versions {
    keep: Keep,
    /// Changes by this epoch and earlier ones replace nothing that anybody needs.
    needless: Epoch,
    /// The entries in the order of the changes, each at its number modulo the number of places, a power of two. Epochs
    /// may be interleaved, so an entry that is not needed may wait for one before it.
    ring: Vec<Older>,
    /// The numbers of the entries. They never fall, but for that of a change that did not come about.
    numbers: Range<u64>,
    /// The number of the newest entry of each bucket; of as many buckets as places.
    buckets: Vec<u64>,
    /// Bytes that contents and buffers hold beside their places.
    heap_bytes: u64,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            keep: Keep::default(),
            needless: NEVER,
            ring: Vec::new(),
            // 0 is before all.
            numbers: 1..1,
            buckets: Vec::new(),
            heap_bytes: 0,
        }
    }
}

impl Versions {
    /// What is kept from now on. Who asks for less frees with [`Versions::pop`] what nobody needs any longer.
    pub(crate) fn keep(&mut self, keep: Keep) {
        self.keep = keep;
        self.needless = [keep.since, keep.cut].into_iter().flatten().min().unwrap_or(NEVER);
    }

    /// Whether nothing is kept, nor is to be.
    pub(crate) fn is_idle(&self) -> bool {
        self.needless == NEVER && self.numbers.is_empty()
    }

    /// Whether what a change by this epoch replaces is needed. The first question, which is all that is ever asked
    /// while nobody reads past states.
    #[inline]
    pub(crate) fn wants(&self, by: Epoch, id: RecordId, record: &Record) -> bool {
        by > self.needless && self.needs(by, id, record)
    }

    /// Whether there is a state to be shown in which the record has the content that it has now: since it was written
    /// or restored, and before epoch `by`.
    fn needs(&self, by: Epoch, id: RecordId, record: &Record) -> bool {
        let written = record.version.epoch();
        let Keep { since, cut } = self.keep;
        let (since, cut) =
            (since.is_some_and(|since| since < by), cut.filter(|cut| (written..by).contains(cut)));
        // Of an epoch only the first change counts: it may have been undone, or have deleted the record. To restore
        // that is no change either; `by` is an earlier epoch then, of which the mark says nothing.
        let newest = || self.newest(id).map_or(Epoch(0), |number| self.get(number).until);
        let is_marked = record.cell.value.is_none() || record.mark() == mark_of(by);
        let is_first = || !is_marked || newest() < by;
        written < by && (since && is_first() || cut.is_some_and(|cut| newest() <= cut))
    }

    /// Keeps what a record holds, which a change by epoch `until` replaces.
    pub(crate) fn push_copy(&mut self, id: RecordId, record: &mut Record, until: Epoch) {
        record.set_mark(mark_of(until));
        let place = self.push(id, record.version, until);
        match (&mut place.value, &record.cell.value) {
            (Some(Value::String(buffer)), Some(Value::String(bytes))) => {
                buffer.clear();
                buffer.extend_from_slice(bytes);
                place.expires_at = record.cell.expires_at;
            }
            _ => place.clone_from(&record.cell),
        }
        self.heap_bytes += heap_bytes(place);
    }

    /// Keeps what a record holds, and leaves it without.
    pub(crate) fn push_content(&mut self, id: RecordId, record: &mut Record, until: Epoch) {
        record.set_mark(mark_of(until));
        let place = self.push(id, record.version, until);
        *place = std::mem::take(&mut record.cell);
        self.heap_bytes += heap_bytes(place);
    }

    /// Adds an entry; answers the place of its content, what of which is not yet accounted for.
    fn push(&mut self, record: RecordId, version: Gsn, until: Epoch) -> &mut Cell {
        if self.len() == self.ring.len() {
            self.resize(2 * self.len());
        }
        let number = self.numbers.end;
        self.numbers.end += 1;
        let bucket = self.bucket(record);
        let previous = std::mem::replace(&mut self.buckets[bucket], number);
        let place = self.place(number);
        let older = &mut self.ring[place];
        self.heap_bytes -= heap_bytes(&older.cell);
        (older.record, older.release, older.previous) = (record, false, previous);
        (older.until, older.version) = (until, version);
        &mut older.cell
    }

    /// Takes the newest entry back: the change has not come about.
    pub(crate) fn undo_push(&mut self) {
        self.numbers.end -= 1;
        let place = self.place(self.numbers.end);
        let Older { record, previous, .. } = self.ring[place];
        let bucket = self.bucket(record);
        self.buckets[bucket] = previous;
        self.vacate(place);
    }

    /// Frees entries that nobody needs, oldest first, up to one whose record is to be released.
    pub(crate) fn free(&mut self) -> Option<RecordId> {
        while !self.numbers.is_empty() {
            let place = self.place(self.numbers.start);
            let Older { until, release, record, .. } = self.ring[place];
            if until > self.needless {
                break;
            }
            self.numbers.start += 1;
            self.vacate(place);
            if release {
                return Some(record);
            }
        }
        None
    }

    /// Leaves a place to others: with a buffer, if what it holds is small.
    fn vacate(&mut self, place: usize) {
        let cell = &mut self.ring[place].cell;
        let heap_bytes = heap_bytes(cell);
        if heap_bytes > BUFFER_MAX || !matches!(cell.value, Some(Value::String(_))) {
            *cell = Cell::ABSENT;
            self.heap_bytes -= heap_bytes;
        }
    }

    /// Gives memory back once most of it is idle.
    pub(crate) fn shrink(&mut self) {
        if self.is_idle() {
            (self.ring, self.buckets, self.heap_bytes) = (Vec::new(), Vec::new(), 0);
        } else if self.ring.len() > MIN_PLACES && self.len() < self.ring.len() / 8 {
            self.resize(2 * self.len());
        }
    }

    /// If the record has older contents, its place is kept for them, and given back with the last of them.
    pub(crate) fn release_later(&mut self, record: RecordId) -> bool {
        let Some(number) = self.newest(record) else { return false };
        let place = self.place(number);
        self.ring[place].release = true;
        true
    }

    /// Reads the bucket of a record, so that it is in the cache: of a change's way in here, all else is at the end of
    /// the ring.
    #[inline]
    pub(crate) fn touch(&self, record: RecordId) {
        if let Some(&newest) = self.buckets.get(self.bucket(record)) {
            black_box(newest);
        }
    }

    /// What the first change by an epoch after this one has replaced; `None` if there was no such change.
    pub(crate) fn as_of(&self, epoch: Epoch, record: RecordId) -> Option<&Older> {
        let of_record =
            self.chain(self.buckets.get(self.bucket(record)).copied().unwrap_or_default(), record);
        of_record.map(|number| self.get(number)).take_while(|older| older.until > epoch).last()
    }

    /// All records that were changed by epochs after this one, each once, with what the first such change has replaced.
    pub(crate) fn all_as_of(&self, epoch: Epoch) -> impl Iterator<Item = &Older> {
        self.numbers.clone().map(|number| self.get(number)).filter(move |older| {
            let before = self.chain(older.previous, older.record).next();
            older.until > epoch && before.is_none_or(|number| self.get(number).until <= epoch)
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        (self.numbers.end - self.numbers.start) as usize
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        let table = self.ring.capacity() * size_of::<Older>() + self.buckets.capacity() * size_of::<u64>();
        table as u64 + self.heap_bytes
    }

    fn newest(&self, record: RecordId) -> Option<u64> {
        let newest = *self.buckets.get(self.bucket(record))?;
        self.chain(newest, record).next()
    }

    /// The numbers of a record's entries from a place in its bucket's chain on, newest first.
    fn chain(&self, from: u64, record: RecordId) -> impl Iterator<Item = u64> {
        let in_queue = |number: u64| Some(number).filter(|number| *number >= self.numbers.start);
        let all = std::iter::successors(in_queue(from), move |number| in_queue(self.get(*number).previous));
        all.filter(move |number| self.get(*number).record == record)
    }

    fn place(&self, number: u64) -> usize {
        number as usize & (self.ring.len() - 1)
    }

    fn get(&self, number: u64) -> &Older {
        &self.ring[self.place(number)]
    }

    /// The bucket of a record: the high bits of a product that spreads neighbours.
    fn bucket(&self, record: RecordId) -> usize {
        let spread = u64::from(record.0.wrapping_mul(0x9e37_79b9));
        ((spread * self.buckets.len() as u64) >> 32) as usize
    }

    /// Gives all entries new places, of as many as so many need, and chains them anew.
    fn resize(&mut self, len: usize) {
        let places = len.next_power_of_two().max(MIN_PLACES);
        let mut old = std::mem::take(&mut self.ring);
        let old_mask = old.len().wrapping_sub(1);
        self.ring = std::iter::repeat_with(Older::vacant).take(places).collect();
        self.buckets = vec![0; places];
        // The buffers of vacant places go with them.
        self.heap_bytes = 0;
        for number in self.numbers.clone() {
            let old = &mut old[number as usize & old_mask];
            let (place, bucket) = (self.place(number), self.bucket(old.record));
            old.previous = std::mem::replace(&mut self.buckets[bucket], number);
            self.heap_bytes += heap_bytes(&old.cell);
            std::mem::swap(&mut self.ring[place], old);
        }
    }
}

impl Older {
    const fn vacant() -> Older {
        Older {
            record: RecordId(0),
            release: false,
            previous: 0,
            until: Epoch(0),
            version: Gsn::NONE,
            cell: Cell::ABSENT,
        }
    }
}

/// What is left of an epoch in a record's line, to tell it from most others.
const fn mark_of(epoch: Epoch) -> u8 {
    epoch.0 as u8
}

fn heap_bytes(cell: &Cell) -> u64 {
    cell.value.as_ref().map_or(0, |value| value.heap_bytes() as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_model::{Db, Millis, PartitionId};
    use proptest::prelude::*;

    use super::*;
    use crate::slab::Slab;

    const RECORDS: usize = 40;

    #[derive(Clone, Debug)]
    enum Step {
        /// So many records in turn are changed; one by one they get contents of this size, those of 0 a hash.
        Change {
            first: usize,
            count: usize,
            size: usize,
            takes: bool,
        },
        /// A change that does not come about.
        Nothing {
            record: usize,
        },
        Release {
            record: usize,
        },
        /// What was replaced in all but the last epochs goes.
        Since {
            epochs: u64,
        },
        Epoch,
    }

    fn step() -> impl Strategy<Value = Step> {
        let size = || prop::sample::select(vec![0, 1, 30, BUFFER_MAX as usize, 3 * BUFFER_MAX as usize]);
        let change = (0..RECORDS, 1..200usize, size(), any::<bool>());
        prop_oneof![
            6 => change.prop_map(|(first, count, size, takes)| Step::Change { first, count, size, takes }),
            1 => (0..RECORDS).prop_map(|record| Step::Nothing { record }),
            1 => (0..RECORDS).prop_map(|record| Step::Release { record }),
            1 => (0..6u64).prop_map(|epochs| Step::Since { epochs }),
            3 => Just(Step::Epoch),
        ]
    }

    /// An entry as it should be.
    #[derive(Debug)]
    struct Expected {
        record: RecordId,
        until: Epoch,
        version: Gsn,
        cell: Cell,
        release: bool,
    }

    fn check(versions: &Versions, expected: &[Expected], ids: &[RecordId]) -> Result<(), TestCaseError> {
        prop_assert_eq!(versions.len(), expected.len());
        prop_assert_eq!(versions.heap_bytes, versions.ring.iter().map(|older| heap_bytes(&older.cell)).sum());
        for number in versions.numbers.end..versions.numbers.start + versions.ring.len() as u64 {
            let Older { cell, .. } = versions.get(number);
            prop_assert!(*cell == Cell::ABSENT || cell.string().is_some() && heap_bytes(cell) <= BUFFER_MAX);
        }
        let first = |epoch: Epoch, id: RecordId| {
            expected.iter().find(|older| older.record == id && older.until > epoch)
        };
        let last = expected.last().map_or(Epoch(0), |older| older.until);
        for epoch in (last.0.saturating_sub(4)..=last.0).map(Epoch) {
            let mut changed = 0;
            for &id in ids {
                let seen = versions.as_of(epoch, id).map(|older| (older.version, &older.cell));
                prop_assert_eq!(seen, first(epoch, id).map(|older| (older.version, &older.cell)));
                changed += usize::from(seen.is_some());
            }
            prop_assert_eq!(versions.all_as_of(epoch).count(), changed);
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_ring_is_a_queue(steps in prop::collection::vec(step(), 1..60)) {
            let (mut slab, mut versions, mut expected) = (Slab::default(), Versions::default(), Vec::new());
            let ids: Vec<RecordId> = (0..RECORDS).map(|i| slab.add(Db(0), &i.to_le_bytes())).collect();
            let mut epoch = Epoch(10);
            versions.keep(Keep { since: Some(Epoch(0)), cut: None });
            for step in steps {
                match step {
                    Step::Change { first, count, size, takes } => {
                        for n in first..first + count {
                            let id = ids[n % RECORDS];
                            let record = slab.get_mut(id);
                            let (version, cell) = (record.version, record.cell.clone());
                            expected.push(Expected { record: id, until: epoch, version, cell, release: false });
                            if takes {
                                versions.push_content(id, record, epoch);
                                prop_assert_eq!(&record.cell, &Cell::ABSENT);
                            } else {
                                versions.push_copy(id, record, epoch);
                            }
                            record.version = Gsn::new(epoch, PartitionId(0), n as u32);
                            let hash = Value::Hash(Arc::default());
                            let value = if size == 0 { hash } else { Value::String(vec![n as u8; size]) };
                            record.cell = Cell { value: Some(value), expires_at: Millis(n as u64) };
                        }
                    }
                    Step::Nothing { record } => {
                        versions.push_copy(ids[record], slab.get_mut(ids[record]), epoch);
                        versions.undo_push();
                    }
                    Step::Release { record } => {
                        let newest = expected.iter_mut().rfind(|older| older.record == ids[record]);
                        prop_assert_eq!(versions.release_later(ids[record]), newest.is_some());
                        newest.into_iter().for_each(|older| older.release = true);
                    }
                    Step::Since { epochs } => {
                        let since = Epoch(epoch.0 - epochs.min(epoch.0));
                        versions.keep(Keep { since: Some(since), cut: None });
                        let gone = expected.iter().take_while(|older| older.until <= since).count();
                        let released = expected.drain(..gone).filter(|older| older.release);
                        let released: Vec<RecordId> = released.map(|older| older.record).collect();
                        prop_assert_eq!(std::iter::from_fn(|| versions.free()).collect::<Vec<_>>(), released);
                        versions.shrink();
                        prop_assert!(versions.ring.len() <= (16 * versions.len()).max(MIN_PLACES));
                    }
                    Step::Epoch => epoch = Epoch(epoch.0 + 1),
                }
                check(&versions, &expected, &ids)?;
            }
            versions.keep(Keep::default());
            while versions.free().is_some() {}
            versions.shrink();
            prop_assert_eq!((versions.len(), versions.bytes()), (0, 0));
        }
    }

    #[test]
    fn at_a_steady_pace_nothing_is_allocated() {
        let (mut slab, mut versions) = (Slab::default(), Versions::default());
        let id = slab.add(Db(0), b"key");
        slab.get_mut(id).cell.value = Some(Value::String(vec![7; 100]));
        let mut bytes = Vec::new();
        for epoch in 1..100 {
            versions.keep(Keep { since: Some(Epoch(epoch - 1)), cut: None });
            assert_eq!(versions.free(), None);
            versions.shrink();
            (0..100).for_each(|_| versions.push_copy(id, slab.get_mut(id), Epoch(epoch)));
            bytes.push(versions.bytes());
        }
        assert!(bytes[10..].iter().all(|now| *now == bytes[10]), "{bytes:?}");
    }
}
