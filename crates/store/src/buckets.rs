//! Heads of chains by record, as many as there are entries: linear hashing, which grows and shrinks by one bucket at a
//! time. The buckets lie in chunks that never move.
//!
//! While it grows from one power of two to the next, the buckets are split in their order. Those up to the last split
//! one are told apart by one bit more than the others.

use crate::RecordId;
use crate::fetch::fetch;

/// The buckets of a chunk: 4 KiB of them. There are none, or so many, or more.
pub(crate) const CHUNK: usize = 512;

/// Some number of buckets, each of which holds the number of an entry, or 0.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    chunks: Vec<Box<[u64; CHUNK]>>,
    len: usize,
}

impl Buckets {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The bucket of a record.
    ///
    /// # Panics
    /// If there are none.
    #[inline]
    pub(crate) fn of(&self, record: RecordId) -> usize {
        // The high bits of a product that spreads neighbours evenly.
        let spread = record.0.wrapping_mul(0x9e37_79b9).reverse_bits() as usize;
        let power = 1 << self.len.ilog2();
        let bucket = spread & (2 * power - 1);
        if bucket < self.len { bucket } else { bucket - power }
    }

    /// What the bucket of a record holds; 0 if there are no buckets.
    #[inline]
    pub(crate) fn find(&self, record: RecordId) -> u64 {
        if self.len == 0 { 0 } else { self.get(self.of(record)) }
    }

    /// Has the bucket of a record on its way to the cache.
    #[inline]
    pub(crate) fn fetch(&self, record: RecordId) {
        if self.len > 0 {
            let bucket = self.of(record);
            fetch(&self.chunks[bucket / CHUNK][bucket % CHUNK]);
        }
    }

    #[inline]
    pub(crate) fn get(&self, bucket: usize) -> u64 {
        self.chunks[bucket / CHUNK][bucket % CHUNK]
    }

    /// Has a bucket hold `number`; answers what it held.
    #[inline]
    pub(crate) fn replace(&mut self, bucket: usize, number: u64) -> u64 {
        std::mem::replace(&mut self.chunks[bucket / CHUNK][bucket % CHUNK], number)
    }

    /// Adds a bucket; answers from which one it gets records. The first ones come all at once.
    pub(crate) fn split(&mut self) -> Option<[usize; 2]> {
        if self.len.is_multiple_of(CHUNK) {
            self.chunks.push(Box::new([0; CHUNK]));
        }
        if self.len == 0 {
            self.len = CHUNK;
            return None;
        }
        let new = self.len;
        self.len += 1;
        Some([new - (1 << new.ilog2()), new])
    }

    /// The last bucket, and to which one its records will go; `None` if so few are not worth it.
    pub(crate) fn last_pair(&self) -> Option<[usize; 2]> {
        let last = self.len.checked_sub(1).filter(|last| *last >= CHUNK)?;
        Some([last - (1 << last.ilog2()), last])
    }

    /// Removes the last bucket.
    pub(crate) fn merge(&mut self) {
        self.len -= 1;
        self.chunks.truncate(self.len.div_ceil(CHUNK));
    }

    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> u64 {
        (self.chunks.len() * CHUNK * size_of::<u64>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_moves_only_with_the_bucket_that_is_split_or_merged() {
        let mut buckets = Buckets::default();
        assert_eq!((buckets.split(), buckets.len()), (None, CHUNK));
        let records: Vec<RecordId> = (0..2000).map(|n| RecordId(n * 4096)).collect();
        let places = |buckets: &Buckets| records.iter().map(|id| buckets.of(*id)).collect::<Vec<_>>();
        let mut steps = Vec::new();
        while buckets.len() < 5 * CHUNK {
            let before = places(&buckets);
            let pair = buckets.split().expect("there are some");
            let after = places(&buckets);
            assert_eq!(buckets.last_pair(), Some(pair));
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
            assert!(moved.clone().all(|(before, after)| [*before, *after] == pair));
            steps.push(before);
        }
        let last = places(&buckets);
        let fullest = (0..buckets.len()).map(|n| last.iter().filter(|at| **at == n).count()).max();
        assert!(fullest <= Some(8), "records whose numbers are alike are spread, {fullest:?} to a bucket");
        for before in steps.into_iter().rev() {
            buckets.merge();
            assert_eq!(places(&buckets), before);
        }
        assert_eq!((buckets.last_pair(), buckets.bytes()), (None, 8 * CHUNK as u64));
    }
}
