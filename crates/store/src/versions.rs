//! What records held before: the contents that a reader of a past state may still need.
//!
//! A shard is one thread, so an older content needs no tag in the record's line and no atomics: it goes to a queue
//! in the order of the changes, as into an undo log. *As of* an epoch a record held what the first change by a later
//! epoch has replaced, or else what it holds now. So a record that nobody has changed lately costs nothing, neither
//! memory nor a lookup, and one that was changed costs its reader a walk over a few of these.
//!
//! Entries are found by record over *chains*: each knows the one before it of the same bucket, by its number. They go
//! from the front of the queue only, and numbers rise, so the end of a chain is wherever it leaves the queue. To free
//! an entry is to drop it: nothing has to be unlinked, neither the table nor the record's line is touched.

use std::collections::VecDeque;

use ordain_model::{Cell, Epoch, Gsn};

use crate::slab::Record;
use crate::{Keep, RecordId};

/// A content that was replaced.
#[derive(Debug)]
pub(crate) struct Older {
    pub(crate) record: RecordId,
    /// The record was to be released, and was not because of this entry, its newest.
    pub(crate) release: bool,
    /// The number of the entry before it in its bucket's chain; less than every number in use if there is none.
    previous: u64,
    /// The epoch of the change that replaced it. For one record it rises from entry to entry.
    until: Epoch,
    pub(crate) version: Gsn,
    /// Absent, where a record was inserted.
    pub(crate) cell: Cell,
}

const _: () = assert!(size_of::<Older>() == 64);

/// No change is of a later epoch.
const NEVER: Epoch = Epoch(u64::MAX);
/// The fewest buckets there are, if there are any.
const MIN_BUCKETS: usize = 256;

/// The older contents of one store.
#[derive(Debug)]
pub(crate) struct Versions {
    keep: Keep,
    /// Changes by this epoch and earlier ones replace nothing that anybody needs.
    needless: Epoch,
    /// In the order of the changes. Epochs may be interleaved, so one that is not needed may wait for one before it.
    queue: VecDeque<Older>,
    /// The number of the first in the queue, or of the next to come. It never falls.
    first: u64,
    /// The number of the newest entry of each bucket. As many as a power of two, and at least as many as entries.
    buckets: Vec<u64>,
    /// Bytes that the contents hold beside their entries.
    heap_bytes: u64,
}

impl Default for Versions {
    fn default() -> Versions {
        Versions {
            keep: Keep::default(),
            needless: NEVER,
            queue: VecDeque::new(),
            // 0 is before all.
            first: 1,
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
        self.needless == NEVER && self.queue.is_empty()
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
        if written >= by {
            return false;
        }
        // Deleted by an epoch, or changed by it and undone: of an epoch only the first change counts.
        let from = self.newest(id).map_or(written, |n| self.get(n).until.max(written));
        let Keep { since, cut } = self.keep;
        since.is_some_and(|since| since.max(from) < by) || cut.is_some_and(|cut| from <= cut && cut < by)
    }

    /// Keeps what a change by epoch `until` replaces.
    pub(crate) fn push(&mut self, record: RecordId, cell: Cell, version: Gsn, until: Epoch) {
        if self.queue.len() == self.buckets.len() {
            self.rebuild_for(2 * self.queue.len());
        }
        let number = self.first + self.queue.len() as u64;
        let bucket = self.bucket(record);
        let previous = std::mem::replace(&mut self.buckets[bucket], number);
        self.heap_bytes += heap_bytes(&cell);
        self.queue.push_back(Older { record, release: false, previous, until, version, cell });
    }

    /// Takes the newest entry back: the change has not come about.
    pub(crate) fn undo_push(&mut self) {
        if let Some(older) = self.queue.pop_back() {
            let bucket = self.bucket(older.record);
            self.buckets[bucket] = older.previous;
            self.heap_bytes -= heap_bytes(&older.cell);
        }
    }

    /// Frees the oldest entry if nobody needs it.
    pub(crate) fn pop(&mut self) -> Option<Older> {
        let older = self.queue.pop_front_if(|older| older.until <= self.needless)?;
        self.first += 1;
        self.heap_bytes -= heap_bytes(&older.cell);
        Some(older)
    }

    /// Gives memory back once most of it is idle.
    pub(crate) fn shrink(&mut self) {
        if self.is_idle() {
            self.queue = VecDeque::new();
            self.buckets = Vec::new();
        } else if self.buckets.len() > MIN_BUCKETS && self.queue.len() < self.buckets.len() / 8 {
            self.queue.shrink_to(2 * self.queue.len());
            self.rebuild_for(2 * self.queue.len());
        }
    }

    /// If the record has older contents, its place is kept for them, and given back with the last of them.
    pub(crate) fn release_later(&mut self, record: RecordId) -> bool {
        let Some(number) = self.newest(record) else { return false };
        let at = (number - self.first) as usize;
        self.queue[at].release = true;
        true
    }

    /// What the first change by an epoch after this one has replaced; `None` if there was no such change.
    pub(crate) fn as_of(&self, epoch: Epoch, record: RecordId) -> Option<&Older> {
        let of_record =
            self.chain(self.buckets.get(self.bucket(record)).copied().unwrap_or_default(), record);
        of_record.map(|number| self.get(number)).take_while(|older| older.until > epoch).last()
    }

    /// All records that were changed by epochs after this one, each once, with what the first such change has replaced.
    pub(crate) fn all_as_of(&self, epoch: Epoch) -> impl Iterator<Item = &Older> {
        self.queue.iter().filter(move |older| {
            let before = self.chain(older.previous, older.record).next();
            older.until > epoch && before.is_none_or(|number| self.get(number).until <= epoch)
        })
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        let table = self.queue.capacity() * size_of::<Older>() + self.buckets.capacity() * size_of::<u64>();
        table as u64 + self.heap_bytes
    }

    fn newest(&self, record: RecordId) -> Option<u64> {
        let newest = *self.buckets.get(self.bucket(record))?;
        self.chain(newest, record).next()
    }

    /// The numbers of a record's entries from a place in its bucket's chain on, newest first.
    fn chain(&self, from: u64, record: RecordId) -> impl Iterator<Item = u64> {
        let in_queue = move |number: u64| Some(number).filter(|number| *number >= self.first);
        let all = std::iter::successors(in_queue(from), move |number| in_queue(self.get(*number).previous));
        all.filter(move |number| self.get(*number).record == record)
    }

    fn get(&self, number: u64) -> &Older {
        &self.queue[(number - self.first) as usize]
    }

    /// The bucket of a record: the high bits of a product that spreads neighbours.
    fn bucket(&self, record: RecordId) -> usize {
        let spread = u64::from(record.0.wrapping_mul(0x9e37_79b9));
        ((spread * self.buckets.len() as u64) >> 32) as usize
    }

    /// Chains all entries anew, in as many buckets as so many need.
    fn rebuild_for(&mut self, len: usize) {
        let buckets = len.next_power_of_two().max(MIN_BUCKETS);
        self.buckets = vec![0; buckets];
        for at in 0..self.queue.len() {
            let bucket = self.bucket(self.queue[at].record);
            let number = self.first + at as u64;
            self.queue[at].previous = std::mem::replace(&mut self.buckets[bucket], number);
        }
    }
}

fn heap_bytes(cell: &Cell) -> u64 {
    cell.value.as_ref().map_or(0, |value| value.heap_bytes() as u64)
}
