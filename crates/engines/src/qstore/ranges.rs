//! The ranges of a shard's records, and the list of places in each (`docs/protocols/qstore.md`, Q5 and Q8).
//!
//! There are so many ranges that a place in one holds up next to nothing else, and mostly no range is held: then one counter is
//! all that is inspected. The places are lists over one slab, so that a place costs no memory of its own and is in the cache.

use ordain_model::KeyHash;

use super::queues::Entry;

/// The ranges of a shard (`K` of the paper).
pub(crate) const RANGES: usize = 4096;

/// Returns the range of a record, by the hash of its key. The records of a hash slot are spread over all ranges: keys
/// that share it by their tags share nothing else.
#[inline]
pub(crate) const fn range_of(hash: KeyHash) -> u16 {
    (hash.tag() as usize % RANGES) as u16
}

/// A place in a range.
#[derive(Debug)]
pub(crate) enum Place {
    /// A group, by its number among the transactions under way. If it is in front, it holds the range.
    Group(u32),
    /// A fragment that came after it.
    Fragment(Box<Entry>),
}

/// No place.
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Link {
    /// Nothing, if it is vacant.
    place: Option<Place>,
    /// The one behind it, or the next that is vacant.
    next: u32,
}

/// The ranges in which there are places.
#[derive(Debug)]
pub(crate) struct Ranges {
    /// The first and the last place of each; the latter means nothing without the former.
    ends: Vec<(u32, u32)>,
    links: Vec<Link>,
    vacant: u32,
    /// Which of them are held, a bit each, and how many those are.
    held: [u64; RANGES / 64],
    count: usize,
}

impl Default for Ranges {
    fn default() -> Ranges {
        Ranges {
            ends: vec![(NONE, NONE); RANGES],
            links: Vec::new(),
            vacant: NONE,
            held: [0; RANGES / 64],
            count: 0,
        }
    }
}

impl Ranges {
    /// Returns whether a range is held.
    #[inline]
    pub(crate) fn is_held(&self, range: u16) -> bool {
        self.count > 0 && self.held[usize::from(range) / 64] & 1 << (range % 64) != 0
    }

    /// Returns whether no range is held.
    #[inline]
    pub(crate) const fn is_free(&self) -> bool {
        self.count == 0
    }

    /// Adds a place at the end of a range; returns whether there is one in front of it.
    pub(crate) fn push(&mut self, range: u16, place: Place) -> bool {
        let link = Link { place: Some(place), next: NONE };
        let at = match self.links.get_mut(self.vacant as usize) {
            Some(vacant) => {
                let next = vacant.next;
                *vacant = link;
                std::mem::replace(&mut self.vacant, next)
            }
            None => {
                self.links.push(link);
                self.links.len() as u32 - 1
            }
        };
        let (first, last) = &mut self.ends[usize::from(range)];
        let waits = *first != NONE;
        if waits {
            self.links[*last as usize].next = at;
        } else {
            *first = at;
            self.held[usize::from(range) / 64] |= 1 << (range % 64);
            self.count += 1;
        }
        *last = at;
        waits
    }

    /// Takes what is in front of a range.
    pub(crate) fn pop(&mut self, range: u16) -> Option<Place> {
        let (first, _) = &mut self.ends[usize::from(range)];
        let at = *first;
        let link = self.links.get_mut(at as usize)?;
        *first = std::mem::replace(&mut link.next, self.vacant);
        self.vacant = at;
        if *first == NONE {
            self.held[usize::from(range) / 64] &= !(1 << (range % 64));
            self.count -= 1;
        }
        link.place.take()
    }

    /// What is in front of a range.
    #[inline]
    pub(crate) fn front(&self, range: u16) -> Option<&Place> {
        self.links.get(self.ends[usize::from(range)].0 as usize)?.place.as_ref()
    }

    /// Whether a group is in front of a range.
    #[inline]
    pub(crate) fn is_in_front(&self, range: u16, number: u32) -> bool {
        matches!(self.front(range), Some(Place::Group(group)) if *group == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(place: Option<Place>) -> Option<u32> {
        match place {
            Some(Place::Group(number)) => Some(number),
            _ => None,
        }
    }

    #[test]
    fn places_are_in_the_order_in_which_they_were_given_range_by_range() {
        let mut ranges = Ranges::default();
        assert!(ranges.is_free() && ranges.pop(5).is_none() && ranges.front(5).is_none());
        let waits: Vec<bool> =
            [(5, 1), (70, 1), (5, 2), (70, 3), (5, 4)].map(|(r, n)| ranges.push(r, Place::Group(n))).into();
        assert_eq!(waits, [false, false, true, true, true]);
        assert!(ranges.is_in_front(5, 1) && !ranges.is_in_front(5, 2) && !ranges.is_held(6));
        assert_eq!([5, 5, 70].map(|range| group(ranges.pop(range))), [Some(1), Some(2), Some(1)]);
        // The places of those that are gone are used again.
        ranges.push(5, Place::Group(6));
        ranges.push(6, Place::Group(7));
        assert_eq!(ranges.links.len(), 5);
        assert_eq!([5, 5, 5].map(|range| group(ranges.pop(range))), [Some(4), Some(6), None]);
        assert!(!ranges.is_held(5) && ranges.is_held(6) && ranges.is_held(70) && !ranges.is_free());
        assert_eq!([70, 6].map(|range| group(ranges.pop(range))), [Some(3), Some(7)]);
        assert!(ranges.is_free());
    }
}
