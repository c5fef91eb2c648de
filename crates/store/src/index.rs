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
//! Tags are spread evenly in the end, but not while they come in their order: a moved slot, a checkpoint that is read, a member
//! that catches up. So a table lays its buckets over the range in which it has entries, and some more on both sides, and not
//! over all tags that may come to it; and a range that has more than its share is split further.
//!
//! An entry is one word, the tag above the record's number. Equal tags are adjacent; the records' keys tell them apart.

use std::ops::Range;
use std::slice;

use crate::RecordId;
use crate::fetch::fetch;

/// No entry; larger than every entry, since [`RecordId`] never reaches `u32::MAX`.
const EMPTY: u64 = u64::MAX;
const MIN_BUCKETS: u32 = 6;
/// Next to no search goes further than this from its home.
const REACH: usize = 5;
/// The bits of a tag.
const BITS: u8 = 32;
/// With fewer entries a table does not guess from them where others will be.
const FEW: u32 = 8;

const fn pack(tag: u32, id: RecordId) -> u64 {
    (tag as u64) << 32 | id.0 as u64
}

const fn tag_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

const fn id_of(entry: u64) -> RecordId {
    RecordId(entry as u32)
}

/// The entries of a slot, or of a range of its tags, in order of tag.
///
/// About `PART` entries are in a part. What grows at once is so large at most: the memory is there already, as others had it
/// before, and in the caches.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Index<const PART: usize = 4096> {
    /// All of them, as long as they are not split.
    whole: Part,
    split: Option<Box<Split<PART>>>,
}

/// The parts of a large range, in order of the bits that their tags begin with. As in linear hashing there is one more for
/// each so many entries: the parts are split one after the other, and those up to the last split one go by one bit more.
/// A part with far more than its share is split by itself.
#[derive(Debug, Default)]
struct Split<const PART: usize> {
    parts: Vec<Index<PART>>,
    /// How many bits all tags of the range have in common; the parts go by those after them.
    skip: u8,
    bits: u8,
    /// How many of the 2^`bits` parts have been split.
    done: usize,
    len: usize,
    bytes: usize,
    /// With fewer entries there is a part too many.
    least: usize,
}

impl<const PART: usize> Index<PART> {
    /// A part of a split range is split itself beyond this: where tags are spread evenly none has more than twice its share.
    const PART_MAX: usize = 3 * PART;
    /// A search this far from its home tells of a crowd: where tags are spread evenly it is one in 10^12.
    const FAR: usize = if PART < 4096 { 4 } else { 64 };
    /// So many entries moved by one insertion tell the same.
    const MANY: usize = if PART < 4096 { 8 } else { 1024 };
    /// A crowd of fewer than this is not worth a split.
    const CROWD: u32 = if PART < 4096 { 8 } else { 128 };

    /// An index with these entries, which are in order, of tags that have `skip` bits in common.
    fn of(skip: u8, entries: &[u64]) -> Index<PART> {
        if entries.len() <= Self::PART_MAX || skip + 1 >= BITS {
            return Index { whole: Part::of(skip, entries), split: None };
        }
        let count = entries.len() / PART;
        let bits = (count.ilog2() as u8).min(BITS - 1 - skip);
        let mut split = Split { skip, bits, len: entries.len(), ..Split::default() };
        split.done = (count - (1 << bits)).min((1 << bits) - 1);
        let mut rest = entries;
        for at in 0..(1 << bits) + split.done {
            let (part, others) = rest.split_at(rest.partition_point(|e| split.part_of(tag_of(*e)) <= at));
            split.parts.push(Index::of(split.skip_of(at), part));
            rest = others;
        }
        split.bytes = split.parts.iter().map(Index::bytes).sum();
        split.least = PART / 4 * split.parts.len();
        Index { whole: Part::default(), split: Some(Box::new(split)) }
    }

    /// Bytes of memory held.
    #[inline]
    pub(crate) fn bytes(&self) -> usize {
        let of_parts = |split: &Split<PART>| {
            size_of::<Split<PART>>() + split.bytes + split.parts.capacity() * size_of::<Index<PART>>()
        };
        self.whole.bytes() + self.split.as_deref().map_or(0, of_parts)
    }

    /// How many entries there are.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.split.as_deref().map_or(self.whole.len as usize, |split| split.len)
    }

    #[inline]
    fn part(&self, tag: u32) -> &Part {
        let mut index = self;
        while let Some(split) = &index.split {
            index = &split.parts[split.part_of(tag)];
        }
        &index.whole
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

    /// Adds an entry that is not there; answers how many places it has looked at or written.
    pub(crate) fn insert(&mut self, tag: u32, id: RecordId) -> usize {
        self.insert_under(0, PART, tag, id)
    }

    /// The same, where tags have `skip` bits in common, and a table holds so many entries at most.
    fn insert_under(&mut self, skip: u8, most: usize, tag: u32, id: RecordId) -> usize {
        if let Some(split) = &mut self.split {
            let at = split.part_of(tag);
            let below = split.skip_of(at);
            let mut steps = split.change(at, |part| part.insert_under(below, Self::PART_MAX, tag, id));
            if split.len > PART * split.parts.len() {
                steps += split.split();
            }
            return steps;
        }
        let Inserted { far, moved, mut steps } = self.whole.insert(tag, id, Self::FAR);
        let is_crowd = (far > Self::FAR || moved > Self::MANY) && self.whole.len >= Self::CROWD;
        if is_crowd || self.whole.len as usize > most {
            steps += self.divide(skip);
        }
        steps
    }

    /// Splits a table, which has too many entries or too many in one place.
    fn divide(&mut self, skip: u8) -> usize {
        if skip >= BITS {
            return 0;
        }
        let whole = std::mem::take(&mut self.whole);
        let mut split = Split { skip, bytes: whole.bytes(), len: whole.len as usize, ..Split::default() };
        split.parts.push(Index { whole, split: None });
        let mut steps = split.split();
        while split.len > PART * split.parts.len() && split.can_split() {
            steps += split.split();
        }
        // Entries that come and go at one place must not have it split and joined each time.
        split.least = split.least.min(split.len / 2);
        self.split = Some(Box::new(split));
        steps
    }

    /// Removes an entry, if it is there.
    pub(crate) fn remove(&mut self, tag: u32, id: RecordId) {
        match &mut self.split {
            None => self.whole.remove(tag, id),
            Some(split) => {
                split.change(split.part_of(tag), |part| part.remove(tag, id));
                self.join();
            }
        }
    }

    /// Keeps the entries whose records `keep` says yes to, asked in order of tag. Without any, no memory is held.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(RecordId) -> bool) {
        self.retain_some(&mut keep);
    }

    fn retain_some(&mut self, keep: &mut dyn FnMut(RecordId) -> bool) {
        match &mut self.split {
            None => self.whole.retain(keep),
            Some(split) => {
                split.parts.iter_mut().for_each(|part| part.retain_some(keep));
                split.len = split.parts.iter().map(Index::len).sum();
                split.bytes = split.parts.iter().map(Index::bytes).sum();
                self.join();
            }
        }
    }

    /// The entries of this tag and of larger ones, in order.
    pub(crate) fn entries_from(&self, tag: u32) -> impl Iterator<Item = (u32, RecordId)> {
        let mut entries = Entries { behind: Vec::new(), places: [].iter() };
        let mut index = self;
        while let Some(split) = &index.split {
            let at = split.part_of(tag);
            entries.behind.push(split.parts[at + 1..].iter());
            index = &split.parts[at];
        }
        entries.places = index.whole.places_from(tag).iter();
        entries.skip_while(move |e| tag_of(*e) < tag).map(|e| (tag_of(e), id_of(e)))
    }

    /// All entries, in order.
    fn entries(&self) -> Entries<'_, PART> {
        Entries { behind: vec![slice::from_ref(self).iter()], places: [].iter() }
    }

    /// Joins parts of which there are too many.
    fn join(&mut self) {
        while let Some(split) = &mut self.split
            && split.len < split.least
        {
            split.join();
            if let [_] = &split.parts[..] {
                *self = split.parts.pop().unwrap_or_default();
            }
        }
    }
}

/// The entries of an index, in order.
#[derive(Debug)]
struct Entries<'a, const PART: usize> {
    /// What comes after `places`, the last first.
    behind: Vec<slice::Iter<'a, Index<PART>>>,
    places: slice::Iter<'a, u64>,
}

impl<const PART: usize> Iterator for Entries<'_, PART> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        loop {
            if let Some(entry) = self.places.find(|e| **e != EMPTY) {
                return Some(*entry);
            }
            match self.behind.last_mut()?.next() {
                None => _ = self.behind.pop(),
                Some(Index { whole, split: None }) => self.places = whole.places.iter(),
                Some(Index { split: Some(split), .. }) => self.behind.push(split.parts.iter()),
            }
        }
    }
}

impl<const PART: usize> Split<PART> {
    #[inline]
    fn part_of(&self, tag: u32) -> usize {
        let tag = tag << self.skip;
        let coarse = (u64::from(tag) >> (32 - self.bits)) as usize;
        if coarse < self.done { (tag >> (31 - self.bits)) as usize } else { self.done + coarse }
    }

    /// How many bits the tags of a part have in common.
    const fn skip_of(&self, at: usize) -> u8 {
        self.skip + self.bits + if at < 2 * self.done { 1 } else { 0 }
    }

    /// Whether there is one more bit to go by.
    const fn can_split(&self) -> bool {
        self.skip + self.bits < BITS
    }

    fn change<R>(&mut self, at: usize, change: impl FnOnce(&mut Index<PART>) -> R) -> R {
        let part = &mut self.parts[at];
        let (len, bytes) = (part.len(), part.bytes());
        let result = change(part);
        self.len = self.len + part.len() - len;
        self.bytes = self.bytes + part.bytes() - bytes;
        result
    }

    /// Makes two parts of the next one, if it can be told apart; answers how many entries that has moved.
    fn split(&mut self) -> usize {
        if !self.can_split() {
            return 0;
        }
        let at = 2 * self.done;
        let skip = self.skip + self.bits;
        let entries: Vec<u64> = self.parts[at].entries().collect();
        let bit = 1 << (31 - skip);
        let (low, high) = entries.split_at(entries.partition_point(|&e| tag_of(e) & bit == 0));
        self.replace(at..at + 1, [low, high].map(|entries| Index::of(skip + 1, entries)));
        self.done += 1;
        if self.done == 1 << self.bits {
            (self.bits, self.done) = (self.bits + 1, 0);
        }
        entries.len()
    }

    /// Makes one part of the two that were split last.
    fn join(&mut self) {
        if self.done == 0 {
            (self.bits, self.done) = (self.bits - 1, 1 << (self.bits - 1));
        }
        self.done -= 1;
        let at = 2 * self.done;
        let entries: Vec<u64> = self.parts[at..at + 2].iter().flat_map(Index::entries).collect();
        self.replace(at..at + 2, [Index::of(self.skip + self.bits, &entries)]);
    }

    fn replace<const N: usize>(&mut self, old: Range<usize>, new: [Index<PART>; N]) {
        self.bytes += new.iter().map(Index::bytes).sum::<usize>();
        self.bytes -= self.parts[old.clone()].iter().map(Index::bytes).sum::<usize>();
        self.parts.splice(old, new);
        self.least = PART / 4 * self.parts.len();
    }
}

/// What an insertion has found: how far from its home the entry went, how many others had to make room, and how many places
/// were looked at or written in all.
struct Inserted {
    far: usize,
    moved: usize,
    steps: usize,
}

/// Entries in order of tag, of tags that begin with the same bits.
#[derive(Debug, Default)]
struct Part {
    /// `buckets` places, then the places of the entries that were pushed past the last bucket. Entries are
    /// strictly increasing, none stands before its home, and between its home and it no place is empty.
    places: Vec<u64>,
    buckets: u32,
    len: u32,
    /// The tag of the first bucket, as those before it, and of how many buckets 2^32 tags would be.
    first: u32,
    scale: u32,
    /// How many bits the tags have in common.
    skip: u8,
}

impl Part {
    /// Bytes of memory held.
    #[inline]
    fn bytes(&self) -> usize {
        self.places.capacity() * size_of::<u64>()
    }

    /// The first record of this tag that `is` recognizes.
    #[inline]
    fn find(&self, tag: u32, mut is: impl FnMut(RecordId) -> bool) -> Option<RecordId> {
        let first = pack(tag, RecordId(0));
        for &entry in self.places_from(tag) {
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
        let places = self.places_from(tag);
        places.first().into_iter().chain(places.get(REACH)).for_each(fetch);
    }

    /// The places of this tag and of larger ones, and maybe of some before it. Nothing stands before its home, and homes are
    /// monotone: nothing wanted is missed.
    #[inline]
    fn places_from(&self, tag: u32) -> &[u64] {
        self.places.get(self.home(tag)..).unwrap_or_default()
    }

    /// Adds an entry that is not there. If it has to go `far`, or others have to, as it is outside of where the buckets lie, these
    /// are laid out anew.
    fn insert(&mut self, tag: u32, id: RecordId, far_max: usize) -> Inserted {
        let mut steps = 0;
        if self.len >= capacity_of(self.buckets) {
            steps += self.places.len();
            self.rebuild_for(self.len + 1 + self.len / 4);
        }
        let new = pack(tag, id);
        let home = self.home(tag);
        let at = self.places[home..].iter().position(|&e| e > new).map_or(self.places.len(), |n| home + n);
        let moved = match self.places[at..].iter().position(|&e| e == EMPTY) {
            Some(n) => {
                self.places.copy_within(at..at + n, at + 1);
                n
            }
            None => {
                if self.places.len() == self.places.capacity() {
                    steps += self.places.len();
                    self.places.reserve_exact(MIN_BUCKETS as usize + self.places.len() / 16);
                }
                let end = self.places.len();
                self.places.push(EMPTY);
                self.places.copy_within(at..end, at + 1);
                end - at
            }
        };
        self.places[at] = new;
        self.len += 1;
        let (mut far, mut moved) = (at - home, moved);
        steps += far + moved + 1;
        if (far > far_max || moved > far_max) && !self.is_within(tag) && self.len > FEW {
            steps += self.places.len();
            self.rebuild_for(self.len + self.len / 4);
            (far, moved) = (0, 0);
        }
        Inserted { far, moved, steps }
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
    fn retain(&mut self, keep: &mut dyn FnMut(RecordId) -> bool) {
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
    fn of(skip: u8, entries: &[u64]) -> Part {
        let mut part = Part { skip, len: entries.len() as u32, ..Part::default() };
        if let [first, ..] = entries {
            let last = entries.last().unwrap_or(first);
            part.build(part.len, [tag_of(*first), tag_of(*last)], entries.iter().copied());
        }
        part
    }

    #[inline]
    fn home(&self, tag: u32) -> usize {
        let from_first = u64::from(tag.saturating_sub(self.first));
        let bucket = (from_first * u64::from(self.scale)) >> 32;
        bucket.min(u64::from(self.buckets.saturating_sub(1))) as usize
    }

    /// Whether the buckets lie where this tag belongs.
    fn is_within(&self, tag: u32) -> bool {
        let from_first = u64::from(tag.saturating_sub(self.first));
        tag >= self.first && (from_first * u64::from(self.scale)) >> 32 < u64::from(self.buckets)
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
        let is_entry = |e: &&u64| **e != EMPTY;
        let ends = [old.iter().find(is_entry), old.iter().rev().find(is_entry)];
        let ends = ends.map(|end| end.map_or(0, |e| tag_of(*e)));
        self.build(len, ends, old.into_iter().filter(|&e| e != EMPTY));
    }

    /// Puts these entries, which are in order and between these tags, among as many buckets as `len` need; there were none.
    fn build(&mut self, len: u32, ends: [u32; 2], entries: impl Iterator<Item = u64>) {
        if len == 0 {
            (self.buckets, self.first, self.scale) = (0, 0, 0);
            return;
        }
        self.lay_out(len, ends);
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

    /// Lays buckets over the range of the entries that there are, and a quarter more on both sides, for as many as `len`.
    ///
    /// Where tags come at random that is all that may come; where they come in order it is where the next ones will be.
    fn lay_out(&mut self, len: u32, [first, last]: [u32; 2]) {
        // The tags that may come here.
        let others = u32::MAX.checked_shr(u32::from(self.skip)).unwrap_or(0);
        let (least, most) = (last & !others, last | others);
        let span = u64::from(last - first) + 1;
        let margin = (span / 4).min(u64::from(u32::MAX)) as u32;
        let (from, to) = match self.len <= FEW {
            true => (least, most),
            false => (first.saturating_sub(margin).max(least), last.saturating_add(margin).min(most)),
        };
        let range = u64::from(to - from) + 1;
        // Where the entries are they are no denser than they may be at the most.
        let dense = u64::from(buckets_for(self.len)) * range / (span + span / u64::from(self.len.max(1)));
        self.buckets = if self.len <= FEW { buckets_for(len) } else { buckets_for(len).max(dense as u32) };
        self.first = from;
        self.scale = ((u64::from(self.buckets) << 32) / range).min(u64::from(u32::MAX)) as u32;
    }

    #[cfg(test)]
    fn entries(&self) -> impl Iterator<Item = u64> {
        self.places.iter().copied().filter(|&e| e != EMPTY)
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

    /// Of so small parts that a few entries are many.
    type Small = Index<32>;

    /// Tags that crowd both ends and collide, among tags that spread.
    fn tags() -> impl Strategy<Value = u32> {
        prop_oneof![0..4u32, u32::MAX - 3..=u32::MAX, any::<u32>(), 0x7000_0000..0x7000_0200u32]
    }

    impl<const PART: usize> Index<PART> {
        fn check(&self) {
            let Some(split) = self.split.as_deref() else { return self.whole.check() };
            assert!(self.whole.places.is_empty() && split.parts.len() > 1);
            assert_eq!(split.parts.len(), (1 << split.bits) + split.done);
            assert_eq!(split.len, split.parts.iter().map(Index::len).sum());
            assert_eq!(split.bytes, split.parts.iter().map(Index::bytes).sum());
            for (at, part) in split.parts.iter().enumerate() {
                part.check();
                assert!(part.entries().all(|entry| split.part_of(tag_of(entry)) == at));
                let skip = part.split.as_deref().map_or(part.whole.skip, |split| split.skip);
                assert!(skip == split.skip_of(at) || part.whole.places.is_empty() && part.split.is_none());
            }
        }

        /// How many tables there are, and how many entries the one with most has.
        fn parts(&self) -> (usize, usize) {
            let Some(split) = self.split.as_deref() else { return (1, self.whole.len as usize) };
            let parts = split.parts.iter().map(Index::parts);
            parts.fold((0, 0), |(n, most), (of, len)| (n + of, most.max(len)))
        }
    }

    proptest! {
        #[test]
        fn an_index_is_an_ordered_set(
            steps in prop::collection::vec((tags(), 0..4u32, any::<bool>()), 0..400),
            (ordered, gap) in (0..600u32, prop::sample::select(vec![0, 1, 77, 1 << 20])),
            from in tags(),
        ) {
            let (mut index, mut model) = (Small::default(), BTreeSet::new());
            // Some come in order, among those that come as they like.
            let mut ordered = (0..ordered).map(|n| (n.wrapping_mul(gap), 9 + n, true));
            for (at, step) in steps.into_iter().enumerate() {
                for (tag, id, insert) in ordered.by_ref().take(at % 4).chain([step]) {
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
            }
            let tail: Vec<_> = index.entries_from(from).map(|(tag, id)| (tag, id.0)).collect();
            let expected: Vec<_> = model.range((from, 0)..).copied().collect();
            prop_assert_eq!(tail, expected);

            index.retain(|id| id.0 % 3 != 1);
            model.retain(|(_, id)| id % 3 != 1);
            index.check();
            prop_assert!(index.entries_from(0).map(|(tag, id)| (tag, id.0)).eq(model.iter().copied()));
            model.iter().for_each(|(tag, id)| index.remove(*tag, RecordId(*id)));
            index.check();
            prop_assert_eq!((index.len(), index.entries_from(0).count()), (0, 0));
        }
    }

    /// Pseudo-random tags, each once.
    fn spread(n: u32) -> Vec<u32> {
        (0..n)
            .map(|i| (i.wrapping_mul(0x9e37_79b9) ^ 0x5bd1_e995).reverse_bits().wrapping_mul(0x85eb_ca6b))
            .collect()
    }

    /// How tags come in: all of a large slot, or of one of a thousand.
    fn arrivals(n: u32) -> Vec<(&'static str, Vec<u32>)> {
        let random = spread(n);
        let mut ordered = random.clone();
        ordered.sort_unstable();
        let mut reverse = ordered.clone();
        reverse.reverse();
        // From the middle on, and then what is before it.
        let mut around = ordered.clone();
        around.rotate_left(n as usize / 3);
        // In order, while others come at random.
        let mixed = ordered.iter().zip(&random).enumerate();
        let mixed =
            mixed.flat_map(|(at, (a, b))| [Some(a ^ 1), (at % 8 == 0).then_some(*b)]).flatten().collect();
        // All within a thousandth of the tags, and a few everywhere.
        let clustered = random.iter().enumerate();
        let near = |(at, tag): (usize, &u32)| if at % 64 == 0 { *tag } else { 0x3210_0000 + (tag >> 10) };
        let clustered = clustered.map(near).collect();
        // Neighbours: as close as tags can be.
        let dense = (0..n).map(|at| 0x7fff_ff00 + at);
        vec![
            ("random", random),
            ("ordered", ordered),
            ("reverse", reverse),
            ("around", around),
            ("mixed", mixed),
            ("clustered", clustered),
            ("dense", dense.collect()),
        ]
    }

    #[test]
    fn an_insertion_is_a_few_steps_in_whatever_order_tags_come() {
        for n in [300, 1000, 4000, 40_000, 500_000] {
            for (name, tags) in arrivals(n) {
                let mut index = Index::<4096>::default();
                let steps = tags.iter().zip(0..).map(|(tag, id)| index.insert(*tag, RecordId(id)));
                let (total, most) = steps.fold((0, 0), |(sum, most), n| (sum + n, n.max(most)));
                index.check();
                let (parts, largest) = index.parts();
                let what = format!(
                    "{n} {name}: {total} steps, {most} at once, {parts} parts, the largest of {largest}, {} bytes",
                    index.bytes()
                );
                assert!(total <= 128 * tags.len() && most <= 4 * tags.len() + (16 << 10), "{what}");
                assert!(largest <= 3 * 4096 && index.bytes() <= 24 * tags.len() + 1024, "{what}");
                // In the end tags are spread evenly, and it shows nowhere in which order they came.
                let even = n as usize / 4096 + 2;
                let is_even = ["random", "ordered", "reverse", "around"].contains(&name);
                assert!(!is_even || total <= 24 * tags.len() && parts <= even, "{what}");
            }
        }
    }

    #[test]
    fn an_empty_index_holds_no_memory_and_gets_back_there() {
        let mut index = Small::default();
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
        let mut index = Small::default();
        for i in 0..500 {
            index.insert(u32::MAX, RecordId(i));
        }
        index.check();
        assert_eq!(index.find(u32::MAX, |id| id.0 == 499), Some(RecordId(499)));
        assert_eq!(index.find(u32::MAX - 1, |_| true), None);
    }
}
