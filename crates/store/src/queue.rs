//! A queue whose places never move: chunks of them, which go from the front to where the back will need them.
//!
//! It grows and shrinks by a chunk, however long it is, so that no single change pays for a million before it. A place
//! that was left keeps a small buffer for the content to come: at a steady pace a content is copied to where the caches
//! have been a moment ago, and nothing is allocated or freed.

use std::collections::VecDeque;
use std::ops::Range;

use ordain_model::{Cell, Epoch, Gsn, Value};

use crate::RecordId;

/// A content that was replaced, or a place for one to come.
#[derive(Debug)]
pub(crate) struct Older {
    pub(crate) record: RecordId,
    /// The record was to be released, and was not because of this entry, its newest.
    pub(crate) release: bool,
    /// The number of the entry before it in its bucket's chain; less than every number in use if there is none.
    pub(crate) previous: u64,
    /// The epoch of the change that replaced it. For one record it rises from entry to entry.
    pub(crate) until: Epoch,
    pub(crate) version: Gsn,
    /// Absent, where a record was inserted. In a place for one to come, perhaps a buffer.
    pub(crate) cell: Cell,
}

const _: () = assert!(size_of::<Older>() == 64);

/// The places of a chunk: 16 KiB of them.
const CHUNK_BITS: u32 = 8;
const CHUNK: usize = 1 << CHUNK_BITS;
type Chunk = Box<[Older; CHUNK]>;
/// The most bytes that a place keeps for the next content.
const BUFFER_MAX: u64 = 1024;
/// So many calls of [`Queue::shrink`] are a while.
const WHILE: u32 = 64;
/// The most chunks that are given back at once.
const GIVEN_BACK_MAX: usize = 8;

/// Older contents, in the order in which they were replaced.
#[derive(Debug)]
pub(crate) struct Queue {
    /// They never fall, but for that of a change that did not come about.
    numbers: Range<u64>,
    /// The first holds the first of the numbers, if there is one.
    chunks: VecDeque<Chunk>,
    /// Chunks that no number is in; the last one is that which was left last.
    spare: Vec<Chunk>,
    /// How many chunks were in use at a time at most: in the while before this one, and in this one so far.
    most: [usize; 2],
    /// The calls of [`Queue::shrink`] in this while.
    calls: u32,
    /// Bytes that contents and buffers hold beside their places.
    heap_bytes: u64,
}

impl Default for Queue {
    fn default() -> Queue {
        Queue {
            // 0 is before all.
            numbers: 1..1,
            chunks: VecDeque::new(),
            spare: Vec::new(),
            most: [0; 2],
            calls: 0,
            heap_bytes: 0,
        }
    }
}

impl Queue {
    /// The numbers of the entries.
    #[inline]
    pub(crate) fn numbers(&self) -> Range<u64> {
        self.numbers.clone()
    }

    /// How many there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        (self.numbers.end - self.numbers.start) as usize
    }

    /// How many there were at a time of late, at most: no less than there are.
    #[inline]
    pub(crate) fn len_of_late(&self) -> usize {
        self.most[0].max(self.most[1]) * CHUNK
    }

    /// Where the chunk of a number is in its row.
    #[inline]
    fn chunk(&self, number: u64) -> usize {
        ((number >> CHUNK_BITS) - (self.numbers.start >> CHUNK_BITS)) as usize
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> &Older {
        &self.chunks[self.chunk(number)][number as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> &mut Older {
        let chunk = self.chunk(number);
        &mut self.chunks[chunk][number as usize % CHUNK]
    }

    /// Adds an entry; `fill` is given its place, perhaps with a buffer in it.
    #[inline]
    pub(crate) fn push(&mut self, fill: impl FnOnce(&mut Older)) {
        let number = self.numbers.end;
        if self.chunk(number) == self.chunks.len() {
            self.add_chunk();
        }
        self.numbers.end += 1;
        let place = self.get_mut(number);
        let before = heap_bytes(&place.cell);
        fill(place);
        let after = heap_bytes(&place.cell);
        self.heap_bytes = self.heap_bytes - before + after;
    }

    /// Apart, as it has the new places on the stack for a moment.
    #[cold]
    fn add_chunk(&mut self) {
        let chunk = self.spare.pop().unwrap_or_else(|| Box::new([const { Older::VACANT }; CHUNK]));
        self.chunks.push_back(chunk);
        self.most[1] = self.most[1].max(self.chunks.len());
    }

    /// Removes the newest entry.
    pub(crate) fn pop_newest(&mut self) {
        self.vacate(self.numbers.end - 1);
        self.numbers.end -= 1;
    }

    /// Removes the oldest entry.
    #[inline]
    pub(crate) fn pop_oldest(&mut self) {
        self.vacate(self.numbers.start);
        self.numbers.start += 1;
        if self.numbers.start.is_multiple_of(CHUNK as u64) {
            self.spare.extend(self.chunks.pop_front());
        }
    }

    /// Leaves a place to others: with a buffer, if what it holds is small.
    #[inline]
    fn vacate(&mut self, number: u64) {
        let cell = &mut self.get_mut(number).cell;
        let heap_bytes = heap_bytes(cell);
        if heap_bytes > BUFFER_MAX || !matches!(cell.value, Some(Value::String(_))) {
            *cell = Cell::ABSENT;
            self.heap_bytes -= heap_bytes;
        }
    }

    /// Gives back some of what was not in use for a while; of a queue that is to stay empty, some of all.
    pub(crate) fn shrink(&mut self, is_to_stay_empty: bool) {
        self.calls += 1;
        if is_to_stay_empty {
            self.spare.extend(self.chunks.drain(..));
            self.most = [0; 2];
        } else if self.calls >= WHILE {
            (self.most, self.calls) = ([self.most[1], self.chunks.len()], 0);
        }
        let wanted = self.most[0].max(self.most[1]).saturating_sub(self.chunks.len());
        let unwanted = self.spare.len().saturating_sub(wanted);
        for chunk in self.spare.drain(..unwanted.min(GIVEN_BACK_MAX)) {
            self.heap_bytes -= chunk.iter().map(|older| heap_bytes(&older.cell)).sum::<u64>();
        }
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        let places = (self.chunks.len() + self.spare.len()) * CHUNK;
        (places * size_of::<Older>()) as u64 + self.heap_bytes
    }
}

impl Older {
    const VACANT: Older = Older {
        record: RecordId(0),
        release: false,
        previous: 0,
        until: Epoch(0),
        version: Gsn::NONE,
        cell: Cell::ABSENT,
    };
}

fn heap_bytes(cell: &Cell) -> u64 {
    cell.value.as_ref().map_or(0, |value| value.heap_bytes() as u64)
}

#[cfg(test)]
impl Queue {
    /// What is accounted for is what is there, and vacant places hold small buffers only.
    pub(crate) fn check(&self) {
        let chunks = || self.chunks.iter().chain(&self.spare);
        assert_eq!(
            self.heap_bytes,
            chunks().flat_map(|chunk| chunk.iter()).map(|older| heap_bytes(&older.cell)).sum()
        );
        let first = (self.numbers.start % CHUNK as u64) as usize;
        for (n, Older { cell, .. }) in chunks().flat_map(|chunk| chunk.iter()).enumerate() {
            let is_buffer = || matches!(cell.value, Some(Value::String(_))) && heap_bytes(cell) <= BUFFER_MAX;
            assert!((first..first + self.len()).contains(&n) || *cell == Cell::ABSENT || is_buffer());
        }
    }

    /// A content that no place keeps as a buffer is longer than this.
    pub(crate) const BUFFER_MAX: usize = BUFFER_MAX as usize;
}
