//! The index of one slot: from the tag of a key's hash to the records that may hold the key.
//!
//! Open addressing with linear probing, in which the home of a tag is monotone in the tag and entries are
//! kept sorted. That buys three things at once:
//!
//! - a lookup reads one or two neighbouring cache lines and stops at the first larger tag, hit or miss;
//! - the entries stand in the canonical order of the key space, so SCAN and the expiry sweep walk an array
//!   from any position instead of sorting;
//! - growing is one sequential pass that never touches a record, so the table can grow by a quarter rather
//!   than double, and stay dense. A slot is 1/1024 of the data: the pass is short. Where it is not, as all of a warehouse is in
//!   one slot, the slot's tags are split into ranges, each with a table of its own.
//!
//! An entry is one word, the tag above the record's number. Equal tags are adjacent; whoever asks tells them
//! apart by the records' keys.

use std::ops::Range;

use crate::RecordId;
use crate::fetch::fetch;

/// About so many entries are in a part. What grows at once is so large at most: the memory is there already, as others had it
/// before, and in the caches.
const PART: usize = if cfg!(test) { 32 } else { 4096 };
/// No entry; larger than every entry, since [`RecordId`] never reaches `u32::MAX`.
const EMPTY: u64 = u64::MAX;
const MIN_BUCKETS: u32 = 6;
/// Next to no search goes further than this from its home.
const REACH: usize = 5;

const fn pack(tag: u32, id: RecordId) -> u64 {
    (tag as u64) << 32 | id.0 as u64
}

const fn tag_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

const fn id_of(entry: u64) -> RecordId {
    RecordId(entry as u32)
}

/// The entries of a slot, in order of tag.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// All of them, as long as they are not split.
    whole: Part,
    split: Option<Box<Split>>,
}

/// The parts of a large slot, in order of the bits that their tags begin with. As in linear hashing there is one more for
/// each so many entries: the parts are split one after the other, and those up to the last split one go by one bit more.
#[derive(Debug, Default)]
struct Split {
    parts: Vec<Part>,
    bits: u8,
    /// How many of the 2^`bits` parts have been split.
    done: usize,
    len: usize,
    bytes: usize,
}

impl Index {
    /// Bytes of memory held.
    pub(crate) fn bytes(&self) -> usize {
        let of_parts =
            |split: &Split| size_of::<Split>() + split.bytes + split.parts.capacity() * size_of::<Part>();
        self.whole.bytes() + self.split.as_deref().map_or(0, of_parts)
    }

    #[inline]
    fn part(&self, tag: u32) -> &Part {
        match &self.split {
            None => &self.whole,
            Some(split) => &split.parts[split.part_of(tag)],
        }
    }

    /// The first record of this tag that `is` recognizes.
    #[inline]
    pub(crate) fn find(&self, tag: u32, is: impl FnMut(RecordId) -> bool) -> Option<RecordId> {
        self.part(tag).find(tag, is)
    }

    /// Has the place where a search for the tag begins on its way to the cache.
    #[inline]
    pub(crate) fn fetch(&self, tag: u32) {
        self.part(tag).fetch(tag);
    }

    /// Adds an entry that is not there.
    pub(crate) fn insert(&mut self, tag: u32, id: RecordId) {
        if let Some(split) = &mut self.split {
            split.change(tag, |part| part.insert(tag, id));
            if split.len > PART * split.parts.len() {
                split.split();
            }
        } else {
            self.whole.insert(tag, id);
            if self.whole.len as usize > PART {
                let whole = std::mem::take(&mut self.whole);
                let mut split = Split { bytes: whole.bytes(), len: whole.len as usize, ..Split::default() };
                split.parts.push(whole);
                split.split();
                self.split = Some(Box::new(split));
            }
        }
    }

    /// Removes an entry, if it is there.
    pub(crate) fn remove(&mut self, tag: u32, id: RecordId) {
        match &mut self.split {
            None => self.whole.remove(tag, id),
            Some(split) => {
                split.change(tag, |part| part.remove(tag, id));
                self.join();
            }
        }
    }

    /// Keeps the entries whose records `keep` says yes to, asked in order of tag. Without any, no memory is held.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(RecordId) -> bool) {
        match &mut self.split {
            None => self.whole.retain(keep),
            Some(split) => {
                split.parts.iter_mut().for_each(|part| part.retain(&mut keep));
                split.len = split.parts.iter().map(|part| part.len as usize).sum();
                split.bytes = split.parts.iter().map(Part::bytes).sum();
                self.join();
            }
        }
    }

    /// The entries of this tag and of larger ones, in order.
    pub(crate) fn entries_from(&self, tag: u32) -> impl Iterator<Item = (u32, RecordId)> {
        let (part, behind) = match &self.split {
            None => (&self.whole, &[][..]),
            Some(split) => {
                let at = split.part_of(tag);
                (&split.parts[at], &split.parts[at + 1..])
            }
        };
        let behind = behind.iter().flat_map(Part::entries).map(|e| (tag_of(e), id_of(e)));
        part.entries_from(tag).chain(behind)
    }

    /// Joins parts of which there are too many.
    fn join(&mut self) {
        while let Some(split) = &mut self.split
            && split.len < PART / 4 * split.parts.len()
        {
            split.join();
            if let [_] = &split.parts[..] {
                self.whole = split.parts.pop().unwrap_or_default();
                self.split = None;
            }
        }
    }
}

impl Split {
    #[inline]
    fn part_of(&self, tag: u32) -> usize {
        let coarse = (u64::from(tag) >> (32 - self.bits)) as usize;
        if coarse < self.done { (tag >> (31 - self.bits)) as usize } else { self.done + coarse }
    }

    fn change(&mut self, tag: u32, change: impl FnOnce(&mut Part)) {
        let at = self.part_of(tag);
        let part = &mut self.parts[at];
        let (len, bytes) = (part.len as usize, part.bytes());
        change(part);
        self.len = self.len + part.len as usize - len;
        self.bytes = self.bytes + part.bytes() - bytes;
    }

    /// Makes two parts of the next one.
    fn split(&mut self) {
        let at = 2 * self.done;
        let entries: Vec<u64> = self.parts[at].entries().collect();
        let bit = 1 << (31 - self.bits);
        let (low, high) = entries.split_at(entries.partition_point(|&e| tag_of(e) & bit == 0));
        let pair = [low, high].map(|entries| Part::of(self.bits + 1, entries));
        self.replace(at..at + 1, pair);
        self.done += 1;
        if self.done == 1 << self.bits {
            (self.bits, self.done) = (self.bits + 1, 0);
        }
    }

    /// Makes one part of the two that were split last.
    fn join(&mut self) {
        if self.done == 0 {
            (self.bits, self.done) = (self.bits - 1, 1 << (self.bits - 1));
        }
        self.done -= 1;
        let at = 2 * self.done;
        let entries: Vec<u64> = self.parts[at..at + 2].iter().flat_map(Part::entries).collect();
        self.replace(at..at + 2, [Part::of(self.bits, &entries)]);
    }

    fn replace<const N: usize>(&mut self, old: Range<usize>, new: [Part; N]) {
        self.bytes += new.iter().map(Part::bytes).sum::<usize>();
        self.bytes -= self.parts[old.clone()].iter().map(Part::bytes).sum::<usize>();
        self.parts.splice(old, new);
    }
}

/// Entries in order of tag, of tags that begin with the same bits.
#[derive(Debug, Default)]
struct Part {
    /// `buckets` places, then the places of the entries that were pushed past the last bucket. Entries are
    /// strictly increasing, none stands before its home, and between its home and it no place is empty.
    places: Vec<u64>,
    buckets: u32,
    len: u32,
    /// How many bits these are.
    bits: u8,
}

impl Part {
    /// Bytes of memory held.
    fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u64>()
    }

    /// The first record of this tag that `is` recognizes.
    #[inline]
    fn find(&self, tag: u32, mut is: impl FnMut(RecordId) -> bool) -> Option<RecordId> {
        let first = pack(tag, RecordId(0));
        for &entry in self.places.get(self.home(tag)..)? {
            if entry >= first {
                if entry == EMPTY || tag_of(entry) != tag {
                    return None;
                }
                if is(id_of(entry)) {
                    return Some(id_of(entry));
                }
            }
        }
        None
    }

    /// Has the places where a search for the tag goes on their way to the cache: one search in four ends on the next line.
    #[inline]
    fn fetch(&self, tag: u32) {
        let home = self.home(tag);
        if let Some(places) = self.places.get(home..) {
            places.first().into_iter().chain(places.get(REACH)).for_each(fetch);
        }
    }

    /// Adds an entry that is not there.
    fn insert(&mut self, tag: u32, id: RecordId) {
        if self.len >= capacity_of(self.buckets) {
            self.rebuild_for(self.len + 1 + self.len / 4);
        }
        let new = pack(tag, id);
        let home = self.home(tag);
        let at = self.places[home..].iter().position(|&e| e > new).map_or(self.places.len(), |n| home + n);
        match self.places[at..].iter().position(|&e| e == EMPTY) {
            Some(n) => self.places.copy_within(at..at + n, at + 1),
            None => {
                if self.places.len() == self.places.capacity() {
                    self.places.reserve_exact(MIN_BUCKETS as usize);
                }
                let end = self.places.len();
                self.places.push(EMPTY);
                self.places.copy_within(at..end, at + 1);
            }
        }
        self.places[at] = new;
        self.len += 1;
    }

    /// Removes an entry, if it is there.
    fn remove(&mut self, tag: u32, id: RecordId) {
        let gone = pack(tag, id);
        let home = self.home(tag);
        let Some(n) = self.places.get(home..).and_then(|p| p.iter().position(|&e| e >= gone)) else { return };
        let at = home + n;
        if self.places[at] != gone {
            return;
        }
        let mut end = at + 1;
        while end < self.places.len()
            && self.places[end] != EMPTY
            && self.home(tag_of(self.places[end])) < end
        {
            end += 1;
        }
        self.places.copy_within(at + 1..end, at);
        self.places[end - 1] = EMPTY;
        self.len -= 1;
        self.shrink();
    }

    /// Keeps the entries whose records `keep` says yes to, asked in order of tag. Without any, no memory is held.
    fn retain(&mut self, mut keep: impl FnMut(RecordId) -> bool) {
        let before = self.len;
        for place in &mut self.places {
            if *place != EMPTY && !keep(id_of(*place)) {
                *place = EMPTY;
                self.len -= 1;
            }
        }
        if self.len != before || self.len == 0 {
            self.rebuild_for(self.len);
        }
    }

    /// A part with these entries, which are in order.
    fn of(bits: u8, entries: &[u64]) -> Part {
        let mut part = Part { bits, len: entries.len() as u32, ..Part::default() };
        part.build(part.len, entries.iter().copied());
        part
    }

    /// All entries, in order.
    fn entries(&self) -> impl Iterator<Item = u64> {
        self.places.iter().copied().filter(|&e| e != EMPTY)
    }

    /// The entries of this tag and of larger ones, in order.
    fn entries_from(&self, tag: u32) -> impl Iterator<Item = (u32, RecordId)> {
        // Nothing stands before its home, and homes are monotone: nothing wanted is skipped.
        let places = self.places.get(self.home(tag)..).unwrap_or_default();
        let wanted = places.iter().filter(move |&&e| e != EMPTY && tag_of(e) >= tag);
        wanted.map(|&e| (tag_of(e), id_of(e)))
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag << self.bits) * u64::from(self.buckets)) >> 32) as usize
    }

    /// Gives memory back once most of it is idle.
    fn shrink(&mut self) {
        if self.buckets > MIN_BUCKETS && self.len < capacity_of(self.buckets) / 4 {
            self.rebuild_for(self.len + self.len / 4);
        }
    }

    /// Puts every entry where it belongs among as many buckets as `len` entries need.
    fn rebuild_for(&mut self, len: u32) {
        let old = std::mem::take(&mut self.places);
        self.build(len, old.into_iter().filter(|&e| e != EMPTY));
    }

    /// Puts these entries, which are in order, among as many buckets as `len` need; there were none.
    fn build(&mut self, len: u32, entries: impl Iterator<Item = u64>) {
        self.buckets = if len == 0 { 0 } else { buckets_for(len) };
        if len == 0 {
            return;
        }
        self.places.reserve_exact(self.buckets as usize + MIN_BUCKETS as usize);
        for entry in entries {
            let home = self.home(tag_of(entry));
            if self.places.len() < home {
                self.places.resize(home, EMPTY);
            }
            self.places.push(entry);
        }
        if self.places.len() < self.buckets as usize {
            self.places.resize(self.buckets as usize, EMPTY);
        }
    }

    #[cfg(test)]
    fn check(&self) {
        assert!(self.places.len() >= self.buckets as usize);
        let entries: Vec<u64> = self.entries().collect();
        assert_eq!(entries.len(), self.len as usize);
        assert!(entries.is_sorted_by(|a, b| a < b));
        for (at, &entry) in self.places.iter().enumerate().filter(|(_, e)| **e != EMPTY) {
            let home = self.home(tag_of(entry));
            assert!(home <= at && self.places[home..at].iter().all(|&e| e != EMPTY));
        }
    }
}

/// The most entries for so many buckets: four fifths. Past that, runs become long.
const fn capacity_of(buckets: u32) -> u32 {
    buckets - buckets.div_ceil(5)
}

const fn buckets_for(len: u32) -> u32 {
    let buckets = len + len.div_ceil(4) + 1;
    if buckets < MIN_BUCKETS { MIN_BUCKETS } else { buckets }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Tags that crowd both ends and collide, among tags that spread.
    fn tags() -> impl Strategy<Value = u32> {
        prop_oneof![0..4u32, u32::MAX - 3..=u32::MAX, any::<u32>()]
    }

    impl Index {
        fn check(&self) {
            let Some(split) = self.split.as_deref() else { return self.whole.check() };
            assert!(self.whole.places.is_empty() && split.parts.len() > 1);
            assert_eq!(split.parts.len(), (1 << split.bits) + split.done);
            assert_eq!(split.len, split.parts.iter().map(|part| part.len as usize).sum());
            assert_eq!(split.bytes, split.parts.iter().map(Part::bytes).sum());
            for (at, part) in split.parts.iter().enumerate() {
                part.check();
                assert!(part.entries().all(|entry| split.part_of(tag_of(entry)) == at));
            }
        }
    }

    proptest! {
        #[test]
        fn an_index_is_an_ordered_set(
            steps in prop::collection::vec((tags(), 0..4u32, any::<bool>()), 0..400),
            from in tags(),
        ) {
            let (mut index, mut model) = (Index::default(), BTreeSet::new());
            for (tag, id, insert) in steps {
                let there = index.find(tag, |found| found == RecordId(id)).is_some();
                prop_assert_eq!(there, model.contains(&(tag, id)));
                if insert && !there {
                    index.insert(tag, RecordId(id));
                    model.insert((tag, id));
                } else if !insert {
                    index.remove(tag, RecordId(id));
                    model.remove(&(tag, id));
                }
                index.check();
            }
            let tail: Vec<_> = index.entries_from(from).map(|(tag, id)| (tag, id.0)).collect();
            let expected: Vec<_> = model.range((from, 0)..).copied().collect();
            prop_assert_eq!(tail, expected);

            index.retain(|id| id.0 != 1);
            model.retain(|(_, id)| *id != 1);
            index.check();
            prop_assert!(index.entries_from(0).map(|(tag, id)| (tag, id.0)).eq(model));
        }
    }

    #[test]
    fn an_empty_index_holds_no_memory_and_gets_back_there() {
        let mut index = Index::default();
        assert_eq!(index.bytes(), 0);
        assert_eq!(index.find(7, |_| true), None);
        for i in 0..1000 {
            index.insert(i * 4_294_967, RecordId(i));
        }
        let full = index.bytes();
        assert!(index.split.is_some() && full < 1000 * 15, "{full} bytes for 1000 entries");
        for i in 0..1000 {
            index.remove(i * 4_294_967, RecordId(i));
        }
        assert!(index.bytes() < 200, "{} bytes for none", index.bytes());
        index.insert(1, RecordId(1));
        index.retain(|_| false);
        assert_eq!(index.bytes(), 0);
    }

    #[test]
    fn equal_tags_without_end_are_legal() {
        let mut index = Index::default();
        for i in 0..500 {
            index.insert(u32::MAX, RecordId(i));
        }
        index.check();
        assert_eq!(index.find(u32::MAX, |id| id.0 == 499), Some(RecordId(499)));
        assert_eq!(index.find(u32::MAX - 1, |_| true), None);
    }
}
