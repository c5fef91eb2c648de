//! Placement: the slots of the keys that begin with the prefix of a region.
//!
//! A key is placed by its hash, over all slots. The cluster's file may give prefixes to its partitions, which are regions then: a
//! key that begins with a prefix has a hash within the slots of its region. A placement without prefixes leaves every hash as
//! [`KeyHash`] has it.
//!
//! The longest prefix counts, and it is one of the whole key as clients write it. A hash tag decides the slot within the region
//! alone. Child records lie with their parents.

use std::ops::Range;
use std::sync::Arc;

use crate::children::split_child_key;
use crate::ids::Db;
use crate::key::{KeyHash, MAX_KEY_LEN, SLOTS};
use crate::wire::{Codec, Reader};

/// The most prefixes that all regions can have together.
pub const MAX_PREFIXES: usize = 1024;

/// The reason for which prefixes are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Every key begins with the empty prefix.
    #[error(
        "a prefix is empty, and every key begins with that: leave it out, or name what the keys of the region begin with"
    )]
    Empty,
    /// No key can begin with a prefix.
    #[error("a prefix has {length} bytes, and a key has {MAX_KEY_LEN} at most: choose a shorter one")]
    Long {
        /// The length of the prefix, bytes.
        length: usize,
    },
    /// A prefix is given twice.
    #[error("prefix \"{0}\" is given twice: leave it with one region")]
    Twice(String),
    /// All regions together have too many prefixes.
    #[error(
        "there are {count} prefixes, and at most {MAX_PREFIXES} are possible: let the keys of a region begin alike"
    )]
    Many {
        /// The number of prefixes.
        count: usize,
    },
    /// A region's slots are none of the key space.
    #[error("a region has slots {start} to {end}, exclusive, which are none of 0 to {SLOTS}")]
    Slots {
        /// The first slot.
        start: usize,
        /// The slot after the last.
        end: usize,
    },
}

/// The prefixes of all regions, and the slots of each region. Cloning shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement(Option<Arc<Prefixes>>);

#[derive(Debug, PartialEq, Eq)]
struct Prefixes {
    /// The slots of each region.
    slots: Vec<Range<usize>>,
    /// In order of their bytes.
    sorted: Vec<Prefix>,
}

#[derive(Debug, PartialEq, Eq)]
struct Prefix {
    bytes: Vec<u8>,
    region: usize,
    /// The place of the longest other prefix with which this one begins.
    within: Option<usize>,
}

impl Placement {
    /// The placement without prefixes.
    pub const NONE: Placement = Placement(None);

    /// The placement by regions, each with its slots and its prefixes.
    ///
    /// # Errors
    /// [`PlacementError`].
    pub fn new(regions: Vec<(Range<usize>, Vec<Vec<u8>>)>) -> Result<Placement, PlacementError> {
        let count = regions.iter().map(|(_, prefixes)| prefixes.len()).sum();
        if count == 0 {
            return Ok(Placement::NONE);
        }
        if count > MAX_PREFIXES {
            return Err(PlacementError::Many { count });
        }
        let mut sorted: Vec<Prefix> = Vec::with_capacity(count);
        let mut slots = Vec::with_capacity(regions.len());
        for (region, (of_region, prefixes)) in regions.into_iter().enumerate() {
            let Range { start, end } = of_region;
            if start >= end || end > SLOTS {
                return Err(PlacementError::Slots { start, end });
            }
            slots.push(of_region);
            sorted.extend(prefixes.into_iter().map(|bytes| Prefix { bytes, region, within: None }));
        }
        sorted.sort_by(|a, b| a.bytes.cmp(&b.bytes));
        for place in 0..count {
            let (before, prefix) = (place.checked_sub(1), &sorted[place].bytes);
            match prefix.len() {
                0 => return Err(PlacementError::Empty),
                length if length > MAX_KEY_LEN => return Err(PlacementError::Long { length }),
                _ => {}
            }
            if before.is_some_and(|before| sorted[before].bytes == *prefix) {
                return Err(PlacementError::Twice(prefix.escape_ascii().to_string()));
            }
            sorted[place].within = longest(&sorted, before, prefix);
        }
        Ok(Placement(Some(Arc::new(Prefixes { slots, sorted }))))
    }

    /// True if no region has a prefix.
    pub const fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// The number of the region with the longest prefix that a key begins with.
    pub fn region_of(&self, key: &[u8]) -> Option<usize> {
        self.0.as_ref()?.region_of(key)
    }

    /// The slots of each region, and its prefixes in order of their bytes; none if no region has a prefix.
    pub fn regions(&self) -> impl Iterator<Item = (Range<usize>, Vec<&[u8]>)> {
        self.0.iter().flat_map(|prefixes| {
            prefixes.slots.iter().enumerate().map(|(region, slots)| {
                let own = prefixes.sorted.iter().filter(move |prefix| prefix.region == region);
                (slots.clone(), own.map(|prefix| &*prefix.bytes).collect())
            })
        })
    }

    /// The prefixes of each region as text, with what is no printable ASCII escaped: for people, and to compare.
    pub fn texts(&self) -> Vec<Vec<String>> {
        let text = |prefix: &[u8]| prefix.escape_ascii().to_string();
        self.regions().map(|(_, prefixes)| prefixes.into_iter().map(text).collect()).collect()
    }

    /// The hash of a key.
    #[inline]
    pub fn hash_of(&self, key: &[u8]) -> KeyHash {
        match &self.0 {
            None => KeyHash::of(key),
            Some(prefixes) => prefixes.hash_of(key),
        }
    }

    /// The hash by which a record is found, from its name alone.
    #[inline]
    pub fn hash_of_record(&self, db: Db, key: &[u8]) -> KeyHash {
        match &self.0 {
            None => KeyHash::of_record(db, key),
            Some(prefixes) => prefixes.hash_of_record(db, key),
        }
    }
}

impl Prefixes {
    fn region_of(&self, key: &[u8]) -> Option<usize> {
        // All prefixes of the key are at most as large as the key, and the largest of those begins with each of them.
        let before = self.sorted.partition_point(|prefix| &*prefix.bytes <= key).checked_sub(1);
        longest(&self.sorted, before, key).map(|place| self.sorted[place].region)
    }

    #[inline(never)]
    fn hash_of(&self, key: &[u8]) -> KeyHash {
        match self.region_of(key) {
            None => KeyHash::of(key),
            Some(region) => KeyHash::within(key, &self.slots[region]),
        }
    }

    fn hash_of_record(&self, db: Db, key: &[u8]) -> KeyHash {
        match split_child_key(key) {
            Some((parent, suffix)) if db.holds_children() => KeyHash::child(self.hash_of(parent), suffix),
            _ => self.hash_of(key),
        }
    }
}

/// The place of the longest prefix with which a key begins, given that of the largest prefix that is not larger than the key.
fn longest(sorted: &[Prefix], largest: Option<usize>, key: &[u8]) -> Option<usize> {
    let mut place = largest;
    while let Some(at) = place
        && !key.starts_with(&sorted[at].bytes)
    {
        place = sorted[at].within;
    }
    place
}

impl Codec for Placement {
    const LEAST: usize = 4;

    fn encode(&self, out: &mut Vec<u8>) {
        let regions: Vec<(u16, u16, Vec<Vec<u8>>)> = self
            .regions()
            .map(|(slots, prefixes)| {
                let prefixes = prefixes.into_iter().map(<[u8]>::to_vec).collect();
                (slots.start as u16, slots.end as u16, prefixes)
            })
            .collect();
        regions.encode(out);
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Placement> {
        let regions: Vec<(u16, u16, Vec<Vec<u8>>)> = Codec::decode(bytes)?;
        let regions = regions.into_iter().map(|(start, end, prefixes)| (start.into()..end.into(), prefixes));
        Placement::new(regions.collect()).ok()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::children::child_key;
    use crate::key::{Position, shard_of_slot};

    fn prefixes(all: &[&str]) -> Vec<Vec<u8>> {
        all.iter().map(|prefix| prefix.as_bytes().to_vec()).collect()
    }

    fn three() -> Placement {
        let regions = vec![
            (0..10, prefixes(&["eu:", "eu:de:berlin:", "{", "x"])),
            (10..1000, prefixes(&["us:", "eu:de:"])),
            (1000..1001, prefixes(&["eu:de:berlin:mitte:", "xyz"])),
        ];
        Placement::new(regions).unwrap()
    }

    #[test]
    fn the_longest_prefix_decides() {
        let placement = three();
        for (key, region) in [
            ("eu:", Some(0)),
            ("eu:1", Some(0)),
            ("eu:d", Some(0)),
            ("eu:de", Some(0)),
            ("eu:de:", Some(1)),
            ("eu:de:bremen", Some(1)),
            ("eu:de:berlin", Some(1)),
            ("eu:de:berlin:pankow", Some(0)),
            ("eu:de:berlin:mitte:7", Some(2)),
            ("eu:fr:", Some(0)),
            ("us:9", Some(1)),
            ("{eu:}", Some(0)),
            ("xy", Some(0)),
            ("xyzz", Some(2)),
            ("", None),
            ("eu", None),
            ("e", None),
            ("EU:1", None),
            ("a{eu:1}", None),
            ("us", None),
            ("zz", None),
        ] {
            assert_eq!(placement.region_of(key.as_bytes()), region, "{key}");
            let slots = region.map_or(0..SLOTS, |region| placement.0.as_ref().unwrap().slots[region].clone());
            assert!(slots.contains(&placement.hash_of(key.as_bytes()).slot()), "{key}");
            if region.is_none() {
                assert_eq!(placement.hash_of(key.as_bytes()), KeyHash::of(key.as_bytes()));
            }
        }
    }

    #[test]
    fn without_prefixes_a_hash_is_as_ever() {
        let none = Placement::new(vec![(0..512, vec![]), (512..SLOTS, vec![])]).unwrap();
        assert_eq!(none, Placement::NONE);
        assert_eq!((none.regions().count(), none.region_of(b"eu:1")), (0, None));
        for key in ["", "key", "{tag}key", "eu:1"] {
            assert_eq!(none.hash_of(key.as_bytes()), KeyHash::of(key.as_bytes()));
            let child = child_key(key.as_bytes(), b"7");
            assert_eq!(
                none.hash_of_record(Db(0).children(), &child),
                KeyHash::of_record(Db(0).children(), &child)
            );
        }
    }

    /// Every slot of a region and every shard of it has its share, and so has every part of a slot.
    #[test]
    fn the_keys_of_a_region_are_spread_evenly_over_its_slots() {
        const KEYS: usize = 200_000;
        for (start, end) in [(0, 512), (341, 683), (1000, 1024), (7, 8), (1, 1024), (0, 1000)] {
            let placement = Placement::new(vec![(start..end, prefixes(&["eu:"]))]).unwrap();
            let slots = end - start;
            let (mut counts, mut shards, mut parts) = (vec![0; slots], [0; 4], [0; 16]);
            for n in 0..KEYS {
                let hash = placement.hash_of(format!("eu:{n}").as_bytes());
                counts[hash.slot() - start] += 1;
                shards[shard_of_slot((hash.slot() - start) * SLOTS / slots, 4)] += 1;
                parts[(hash.tag() >> 28) as usize] += 1;
                assert!(
                    hash.position() >= Position::of_slot(start) && hash.position() < Position::of_slot(end)
                );
            }
            // Six standard deviations of a fair draw.
            let is_fair = |count: usize, of: usize| {
                let expected = KEYS as f64 / of as f64;
                (count as f64 - expected).abs() <= 6.0 * expected.sqrt() + 1.0
            };
            assert!(counts.iter().all(|count| is_fair(*count, slots)), "{start}..{end}: {counts:?}");
            assert!(parts.iter().all(|count| is_fair(*count, 16)), "{start}..{end}: {parts:?}");
            if slots % 4 == 0 {
                assert!(shards.iter().all(|count| is_fair(*count, 4)), "{start}..{end}: {shards:?}");
            }
        }
    }

    #[test]
    fn a_tag_decides_the_slot_within_the_region_alone() {
        let placement = three();
        let slot = |key: &str| placement.hash_of(key.as_bytes()).slot();
        let mut used = std::collections::BTreeSet::new();
        for tag in 0..300 {
            let one = slot(&format!("us:{{{tag}}}"));
            for other in ["us:a{}", "us:{}{b}", "eu:de:{}z", "us:{}}"] {
                let other = other.replacen("{}", &format!("{{{tag}}}"), 1);
                assert_eq!(slot(&other), one, "{other}");
                assert_ne!(
                    placement.hash_of(other.as_bytes()),
                    placement.hash_of(format!("us:{{{tag}}}").as_bytes())
                );
            }
            assert!((10..1000).contains(&one));
            assert!((0..10).contains(&slot(&format!("eu:{{{tag}}}"))));
            assert_eq!(slot(&format!("a{{{tag}}}")), KeyHash::of(tag.to_string().as_bytes()).slot());
            used.insert(one);
        }
        assert!(used.len() > 200, "{}", used.len());
    }

    #[test]
    fn child_records_lie_with_their_parents() {
        let placement = three();
        for parent in ["eu:1", "us:{7}", "eu:de:2", "other", "eu:de:berlin:mitte:"] {
            let hash = placement.hash_of(parent.as_bytes());
            for suffix in 0..50u32 {
                let name = child_key(parent.as_bytes(), &suffix.to_le_bytes());
                let child = placement.hash_of_record(Db(3).children(), &name);
                assert_eq!(child, KeyHash::child(hash, &suffix.to_le_bytes()));
                assert_eq!(child.slot(), hash.slot());
                // The same bytes are a key like any other in a database that clients can select.
                assert_eq!(placement.hash_of_record(Db(3), &name), placement.hash_of(&name));
            }
        }
    }

    #[test]
    fn prefixes_that_cannot_be_are_refused() {
        let place = |all: Vec<Vec<u8>>| Placement::new(vec![(0..5, vec![b"first".to_vec()]), (5..9, all)]);
        assert_eq!(place(prefixes(&["a", ""])), Err(PlacementError::Empty));
        assert_eq!(place(prefixes(&["first"])), Err(PlacementError::Twice("first".into())));
        assert_eq!(place(prefixes(&["b", "a", "b"])), Err(PlacementError::Twice("b".into())));
        assert!(place(vec![vec![b'k'; MAX_KEY_LEN]]).is_ok());
        let length = MAX_KEY_LEN + 1;
        assert_eq!(place(vec![vec![b'k'; length]]), Err(PlacementError::Long { length }));
        let many = |count: usize| (0..count).map(|n| format!("{n}:").into_bytes()).collect();
        assert!(place(many(MAX_PREFIXES - 1)).is_ok());
        assert_eq!(place(many(MAX_PREFIXES)), Err(PlacementError::Many { count: MAX_PREFIXES + 1 }));
        for (start, end) in [(5, 5), (6, 5), (5, SLOTS + 1)] {
            let placed = Placement::new(vec![(start..end, prefixes(&["a"]))]);
            assert_eq!(placed, Err(PlacementError::Slots { start, end }));
        }
    }

    #[test]
    fn a_placement_survives_its_bytes() {
        for placement in [Placement::NONE, three()] {
            let bytes = placement.to_bytes();
            assert_eq!(Placement::from_bytes(&bytes), Some(placement));
            assert!((0..bytes.len()).all(|cut| Placement::from_bytes(&bytes[..cut]).is_none()));
        }
        let twice: Vec<(u16, u16, Vec<Vec<u8>>)> = vec![(0, 5, prefixes(&["a", "a"]))];
        assert_eq!(Placement::from_bytes(&twice.to_bytes()), None);
    }

    proptest! {
        /// The search in the sorted list finds what a look at every prefix does.
        #[test]
        fn a_region_is_found_as_by_trying_every_prefix(
            regions in prop::collection::vec(prop::collection::btree_set("[ab]{1,4}", 0..6), 1..5),
            keys in prop::collection::vec("[abc]{0,6}", 1..40),
        ) {
            let mut seen = std::collections::BTreeSet::new();
            let regions: Vec<Vec<Vec<u8>>> = regions
                .into_iter()
                .map(|all| all.into_iter().filter(|p| seen.insert(p.clone())).map(String::into_bytes).collect())
                .collect();
            let placement =
                Placement::new(regions.iter().enumerate().map(|(n, all)| (n * 9..n * 9 + 9, all.clone())).collect())
                    .unwrap();
            for key in keys {
                let all = regions.iter().enumerate().flat_map(|(n, all)| all.iter().map(move |p| (p.len(), n, p)));
                let longest = all.filter(|(.., prefix)| key.as_bytes().starts_with(prefix)).max();
                let region = longest.map(|(_, region, _)| region);
                prop_assert_eq!(placement.region_of(key.as_bytes()), region);
                if let Some(region) = region {
                    let slot = placement.hash_of(key.as_bytes()).slot();
                    prop_assert!((region * 9..region * 9 + 9).contains(&slot));
                }
            }
        }
    }
}
