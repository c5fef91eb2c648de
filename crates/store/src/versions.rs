//! What records held before: the contents that a reader of a past state may still need.
//!
//! A shard is one thread, so an older content needs no tag in the record's line and no atomics: it goes to a queue
//! in the order of the changes, as into an undo log. *As of* an epoch a record held what the first change by a later
//! epoch has replaced, or else what it holds now. So a record that nobody has changed lately costs nothing, neither
//! memory nor a lookup, and one that was changed costs its reader a walk over a few of these.
//!
//! Entries are found by record over *chains*: each knows the one before it of the same bucket, by its number. They go
//! from the front of the queue only, and numbers rise, so the end of a chain is wherever it leaves the queue. Nothing
//! has to be unlinked, and neither the buckets nor the record's line is touched when an entry goes.
//!
//! **No step is long.** A checkpoint may pile up as many entries as there are records. Then as before a change costs
//! one entry, and perhaps a chunk of places and a bucket that is split; and what nobody needs any longer is freed some
//! at a time, but never slower than new ones come.

use std::ops::Range;

use ordain_model::{Cell, Epoch, Gsn, Placement, Value};

use crate::buckets::Buckets;
use crate::fetch::{fetch, fetch_bytes};
use crate::queue::{Older, Queue};
use crate::slab::Record;
use crate::{Keep, RecordId, Spread};

/// No change is of a later epoch.
const NEVER: Epoch = Epoch(u64::MAX);
/// So many entries are freed at once, more only if more come.
const FREED: u64 = 4096;
/// So many entries are looked at to tell how they are divided among records.
const LOOKS: usize = 512;
/// So many steps along chains are made for it.
const STEPS: usize = 8192;
/// There are at most so many buckets for each entry that there was of late.
const BUCKETS_MAX: usize = 4;

/// The older contents of one store.
#[derive(Debug)]
pub(crate) struct Versions {
    keep: Keep,
    /// Changes by this epoch and earlier ones replace nothing that anybody needs.
    needless: Epoch,
    /// Epochs may be interleaved, so an entry that is not needed may wait for one before it.
    queue: Queue,
    /// The number of the newest entry of each bucket.
    buckets: Buckets,
    /// Where the queue ended when last something was freed.
    freed_at: u64,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            keep: Keep::default(),
            needless: NEVER,
            queue: Queue::default(),
            buckets: Buckets::default(),
            freed_at: 0,
        }
    }
}

impl Versions {
    /// What is kept from now on. Answers how many entries may be [freed](Versions::free) now: some, and if some were left
    /// last time, more than have come since.
    pub(crate) fn keep(&mut self, keep: Keep) -> u64 {
        let Range { start, end } = self.queue.numbers();
        let new = end.saturating_sub(std::mem::replace(&mut self.freed_at, end));
        let some_were_left = start < end && self.queue.get(start).until <= self.needless;
        self.keep = keep;
        self.needless = [keep.since, keep.cut].into_iter().flatten().min().unwrap_or(NEVER);
        if some_were_left { FREED.max(2 * new) } else { FREED }
    }

    /// The earliest epoch as of which anything is asked; [`Epoch`]'s largest while nothing is.
    pub(crate) const fn needless(&self) -> Epoch {
        self.needless
    }

    /// Whether nothing is kept, nor is to be.
    pub(crate) fn is_idle(&self) -> bool {
        self.needless == NEVER && self.len() == 0
    }

    /// Whether what a change by this epoch replaces is needed. The first question, which is all that is ever asked
    /// while nobody reads past states.
    #[inline]
    pub(crate) fn wants(&self, by: Epoch, id: RecordId, record: &Record, placement: &Placement) -> bool {
        by > self.needless && self.needs(by, id, record, placement)
    }

    /// Whether there is a state to be shown in which the record has the content that it has now: since it was written
    /// or restored, and before epoch `by`.
    fn needs(&self, by: Epoch, id: RecordId, record: &Record, placement: &Placement) -> bool {
        let written = record.version.epoch();
        let Keep { since, cut, given } = self.keep;
        let is_given = || given.0 > 0 && record.hash(placement).position() < given;
        let is_in_cut = |cut: &Epoch| (written..by).contains(cut) && !is_given();
        let (since, cut) = (since.is_some_and(|since| since < by), cut.filter(is_in_cut));
        // Of an epoch only the first change counts: it may have been undone, or have deleted the record. To restore
        // that is no change either; `by` is an earlier epoch then, of which the mark says nothing.
        let newest = || self.newest(id).map_or(Epoch(0), |number| self.queue.get(number).until);
        let is_marked = record.cell.value.is_none() || record.mark() == mark_of(by);
        let is_first = || !is_marked || newest() < by;
        written < by && (since && is_first() || cut.is_some_and(|cut| newest() <= cut))
    }

    /// Keeps what a record holds, which a change by epoch `until` replaces.
    pub(crate) fn push_copy(&mut self, id: RecordId, record: &mut Record, until: Epoch) {
        record.set_mark(mark_of(until));
        self.push(id, record.version, until, |place| match (&mut place.value, &record.cell.value) {
            (Some(Value::String(buffer)), Some(Value::String(bytes))) => {
                buffer.clear();
                buffer.extend_from_slice(bytes);
                place.expires_at = record.cell.expires_at;
            }
            _ => place.clone_from(&record.cell),
        });
    }

    /// Keeps what a record holds, and leaves it without.
    pub(crate) fn push_content(&mut self, id: RecordId, record: &mut Record, until: Epoch) {
        record.set_mark(mark_of(until));
        self.push(id, record.version, until, |place| *place = std::mem::take(&mut record.cell));
    }

    /// Adds an entry.
    #[inline]
    fn push(&mut self, record: RecordId, version: Gsn, until: Epoch, fill: impl FnOnce(&mut Cell)) {
        if self.len() >= self.buckets.len()
            && let Some(pair) = self.buckets.split()
        {
            self.chain(pair, [self.buckets.get(pair[0]), 0]);
        }
        let bucket = self.buckets.of(record);
        let previous = self.buckets.replace(bucket, self.queue.numbers().end);
        self.queue.push(|older| {
            (older.record, older.release, older.previous) = (record, false, previous);
            (older.until, older.version) = (until, version);
            fill(&mut older.cell);
        });
    }

    /// Takes the newest entry back: the change has not come about.
    pub(crate) fn undo_push(&mut self) {
        let Older { record, previous, .. } = *self.queue.get(self.queue.numbers().end - 1);
        self.buckets.replace(self.buckets.of(record), previous);
        self.queue.pop_newest();
    }

    /// Frees entries that nobody needs, oldest first, at most so many and up to one whose record is to be released.
    pub(crate) fn free(&mut self, most: &mut u64) -> Option<RecordId> {
        while *most > 0 && self.len() > 0 {
            let Older { until, release, record, .. } = *self.queue.get(self.queue.numbers().start);
            if until > self.needless {
                break;
            }
            *most -= 1;
            self.queue.pop_oldest();
            self.merge_buckets();
            if release {
                return Some(record);
            }
        }
        None
    }

    /// Makes fewer buckets of too many, twice as fast as entries go.
    fn merge_buckets(&mut self) {
        for _ in 0..2 * BUCKETS_MAX {
            if self.buckets.len() <= BUCKETS_MAX * self.queue.len_of_late() {
                break;
            }
            let Some(pair) = self.buckets.last_pair() else { break };
            let newest = pair.map(|bucket| self.buckets.get(bucket));
            self.buckets.merge();
            self.chain(pair, newest);
        }
    }

    /// Gives some of the memory back that was not needed for a while.
    pub(crate) fn shrink(&mut self) {
        if self.is_idle() {
            self.buckets = Buckets::default();
        }
        self.queue.shrink(self.is_idle());
    }

    /// If the record has older contents, its place is kept for them, and given back with the last of them.
    pub(crate) fn release_later(&mut self, record: RecordId) -> bool {
        let Some(number) = self.newest(record) else { return false };
        self.queue.get_mut(number).release = true;
        true
    }

    /// Has the bucket of a record on its way to the cache: of a change's way in here, all else is at the end of the
    /// queue.
    #[inline]
    pub(crate) fn fetch(&self, record: RecordId) {
        // Without entries no bucket is looked at, though there are some from before.
        if self.len() > 0 {
            self.buckets.fetch(record);
        }
    }

    /// The same for what a reader of a past state meets first, once the bucket is there.
    #[inline]
    pub(crate) fn fetch_newest(&self, record: RecordId) {
        self.head(record).into_iter().for_each(fetch);
    }

    /// The same for the newest content of a record, once that is there. Says whether there is one.
    #[inline]
    pub(crate) fn fetch_content(&self, record: RecordId) -> bool {
        let newest = self.newest(record).map(|number| self.queue.get(number));
        if let Some(Value::String(bytes)) = newest.and_then(|older| older.cell.value.as_ref()) {
            fetch_bytes(bytes);
        }
        newest.is_some()
    }

    /// The newest entry of a record's bucket.
    #[inline]
    fn head(&self, record: RecordId) -> Option<&Older> {
        let Range { start, end } = self.queue.numbers();
        let number = if start < end { self.buckets.find(record) } else { 0 };
        (start..end).contains(&number).then(|| self.queue.get(number))
    }

    /// What the first change by an epoch after this one has replaced; `None` if there was no such change.
    pub(crate) fn as_of(&self, epoch: Epoch, record: RecordId) -> Option<&Older> {
        let of_record = self.of_record(self.buckets.find(record), record);
        of_record.map(|number| self.queue.get(number)).take_while(|older| older.until > epoch).last()
    }

    /// All records that were changed by epochs after this one, each once, with what the first such change has replaced.
    pub(crate) fn all_as_of(&self, epoch: Epoch) -> impl Iterator<Item = &Older> {
        self.queue.numbers().map(|number| self.queue.get(number)).filter(move |older| {
            let before = self.of_record(older.previous, older.record).next();
            older.until > epoch && before.is_none_or(|number| self.queue.get(number).until <= epoch)
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// How they are divided among records, by some that are spread evenly over the queue. A record is met as often as it
    /// has entries, so each time it counts for so much less.
    pub(crate) fn spread(&self) -> Spread {
        /// The golden ratio: multiples of it, less the whole, lie evenly however many there are.
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let (len, first) = (self.len(), self.queue.numbers().start);
        let (mut counts, mut steps) = (Vec::with_capacity(len.min(LOOKS)), STEPS);
        for look in 0..len.min(LOOKS) as u64 {
            let place = match len <= LOOKS {
                true => look,
                false => ((u128::from(look.wrapping_mul(GOLDEN)) * len as u128) >> 64) as u64,
            };
            let record = self.queue.get(first + place).record;
            let count = self.of_record(self.buckets.find(record), record).take(steps).count();
            steps -= count;
            counts.push(count as u64);
            if steps == 0 {
                break;
            }
        }
        let weight = |count: u64| 1.0 / count as f64;
        let all: f64 = counts.iter().copied().map(weight).sum();
        counts.sort_unstable();
        let mut above = 0.0;
        let p99 = counts.iter().rev().find(|count| {
            above += weight(**count);
            above * 100.0 > all
        });
        Spread {
            records: (all * len as f64 / counts.len().max(1) as f64).round() as u64,
            p99: p99.copied().unwrap_or(0),
            max: counts.last().copied().unwrap_or(0),
        }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        self.queue.bytes() + self.buckets.bytes()
    }

    fn newest(&self, record: RecordId) -> Option<u64> {
        self.of_record(self.buckets.find(record), record).next()
    }

    /// The numbers of a record's entries from a place in its bucket's chain on, newest first.
    fn of_record(&self, from: u64, record: RecordId) -> impl Iterator<Item = u64> {
        let is_there = |number: u64| Some(number).filter(|number| *number >= self.queue.numbers().start);
        let before = move |number: &u64| is_there(self.queue.get(*number).previous);
        let all = std::iter::successors(is_there(from), before);
        all.filter(move |number| self.queue.get(*number).record == record)
    }

    /// Puts the entries of two chains where they belong now: to the one bucket or the other, newest first.
    fn chain(&mut self, buckets: [usize; 2], mut chains: [u64; 2]) {
        // The last that was put to each.
        let mut ends: [Option<u64>; 2] = [None; 2];
        loop {
            let from = usize::from(chains[1] > chains[0]);
            let number = chains[from];
            if number < self.queue.numbers().start {
                break;
            }
            let Older { record, previous, .. } = *self.queue.get(number);
            chains[from] = previous;
            let to = usize::from(self.buckets.of(record) != buckets[0]);
            self.put_behind(ends[to].replace(number), buckets[to], number);
        }
        for (end, bucket) in ends.into_iter().zip(buckets) {
            if bucket < self.buckets.len() {
                self.put_behind(end, bucket, 0);
            }
        }
    }

    fn put_behind(&mut self, end: Option<u64>, bucket: usize, number: u64) {
        match end {
            Some(end) => self.queue.get_mut(end).previous = number,
            None => drop(self.buckets.replace(bucket, number)),
        }
    }
}

/// What is left of an epoch in a record's line, to tell it from most others.
const fn mark_of(epoch: Epoch) -> u8 {
    epoch.0 as u8
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
        let size = || prop::sample::select(vec![0, 1, 30, Queue::BUFFER_MAX, 3 * Queue::BUFFER_MAX]);
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
        versions.queue.check();
        prop_assert!(versions.len() <= versions.buckets.len());
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
            versions.keep(Keep { since: Some(Epoch(0)), ..Keep::default() });
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
                            record.cell = Cell { value: Some(value), expires_at: Millis(n as u64).into() };
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
                        let mut most = versions.keep(Keep { since: Some(since), ..Keep::default() });
                        let gone = expected.iter().take_while(|older| older.until <= since).count();
                        let released = expected.drain(..gone).filter(|older| older.release);
                        let released: Vec<RecordId> = released.map(|older| older.record).collect();
                        let freed: Vec<RecordId> = std::iter::from_fn(|| versions.free(&mut most)).collect();
                        prop_assert_eq!(freed, released);
                        versions.shrink();
                    }
                    Step::Epoch => epoch = Epoch(epoch.0 + 1),
                }
                check(&versions, &expected, &ids)?;
            }
            for _ in 0..10 {
                let mut most = versions.keep(Keep::default());
                while versions.free(&mut most).is_some() {}
                versions.shrink();
            }
            prop_assert_eq!((versions.len(), versions.bytes()), (0, 0));
        }
    }

    fn keep(versions: &mut Versions, keep: Keep) {
        let mut most = versions.keep(keep);
        assert_eq!(versions.free(&mut most), None);
        versions.shrink();
    }

    #[test]
    fn at_a_steady_pace_nothing_is_allocated() {
        let (mut slab, mut versions) = (Slab::default(), Versions::default());
        let id = slab.add(Db(0), b"key");
        slab.get_mut(id).cell.value = Some(Value::String(vec![7; 100]));
        let mut bytes = Vec::new();
        for epoch in 1..400 {
            keep(&mut versions, Keep { since: Some(Epoch(epoch - 1)), ..Keep::default() });
            let at_rest = (versions.bytes(), versions.buckets.len());
            (0..1000).for_each(|_| versions.push_copy(id, slab.get_mut(id), Epoch(epoch)));
            bytes.push((at_rest, (versions.bytes(), versions.buckets.len())));
        }
        assert!(bytes[10..].iter().all(|(at_rest, full)| at_rest == full), "{bytes:?}");
    }

    #[test]
    fn how_entries_are_divided_among_records_is_told() {
        let (mut slab, mut versions) = (Slab::default(), Versions::default());
        assert_eq!(versions.spread(), Spread::default());
        let ids: Vec<RecordId> = (0..10_000u32).map(|i| slab.add(Db(0), &i.to_le_bytes())).collect();
        keep(&mut versions, Keep { since: Some(Epoch(0)), ..Keep::default() });
        let mut change = |ids: &[RecordId], epoch| {
            ids.iter().for_each(|id| versions.push_copy(*id, slab.get_mut(*id), Epoch(epoch)));
            versions.spread()
        };
        // Few are all looked at: 100 records have one, one of them 3, another 21.
        change(&ids[..100], 1);
        (2..4).for_each(|epoch| _ = change(&ids[..1], epoch));
        let few = (4..24).map(|epoch| change(&ids[5..6], epoch)).last();
        assert_eq!(few, Some(Spread { records: 100, p99: 3, max: 21 }));
        // Of many some are: the hottest is among them, and the others are told apart by how many they have.
        change(&ids, 30);
        let many = (31..131).map(|epoch| change(&ids[5..6], epoch)).last().unwrap();
        assert!((9_500..10_200).contains(&many.records), "{many:?}");
        assert!((1..=2).contains(&many.p99) && many.max == 122, "{many:?}");
    }

    #[test]
    fn what_piled_up_goes_in_small_steps() {
        let (mut slab, mut versions) = (Slab::default(), Versions::default());
        let ids: Vec<RecordId> = (0..100_000u32).map(|i| slab.add(Db(0), &i.to_le_bytes())).collect();
        let push = |versions: &mut Versions, slab: &mut Slab, id: RecordId, epoch: u64| {
            slab.get_mut(id).cell.value = Some(Value::String(vec![7; 100]));
            versions.push_copy(id, slab.get_mut(id), Epoch(epoch));
        };
        keep(&mut versions, Keep { since: Some(Epoch(1)), ..Keep::default() });
        ids.iter().for_each(|id| push(&mut versions, &mut slab, *id, 2));
        assert!(ids.iter().all(|id| versions.as_of(Epoch(1), *id).is_some()));
        let full = versions.bytes();
        // Readers have moved on, and writers go on.
        let mut left = vec![versions.len()];
        keep(&mut versions, Keep { since: Some(Epoch(1)), ..Keep::default() });
        for epoch in 3..=200 {
            keep(&mut versions, Keep { since: Some(Epoch(epoch - 1)), ..Keep::default() });
            left.push(versions.len());
            for (n, id) in ids.iter().enumerate().take(100) {
                push(&mut versions, &mut slab, *id, epoch);
                assert_eq!(
                    versions.as_of(Epoch(epoch - 1), *id).map(|older| older.until),
                    Some(Epoch(epoch))
                );
                assert_eq!(versions.all_as_of(Epoch(epoch - 1)).count(), n + 1);
            }
        }
        assert!(left.is_sorted_by(|before, after| before >= after && before - after <= FREED as usize + 100));
        assert_eq!((versions.len(), left.last()), (100, Some(&0)));
        assert!(versions.bytes() < full / 10, "{} bytes are left of {full}", versions.bytes());
    }
}
