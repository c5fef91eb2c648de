//! Keys: their hash, and where the hash puts them.
//!
//! A key's hash is computed once, at the front door, and travels with the fragment. The database number is
//! not hashed, so that SWAPDB moves no record from one place to another; it is part of equality and digest.
//!
//! Two kinds of keys are placed by less than all their bytes: those with a hash tag, as clients of Redis Cluster
//! write it, and those of [child records](crate::children), which lie with their parents. Where partitions have prefixes,
//! the [placement](crate::placement) of the layout has the last word.

use std::ops::Range;

use memchr::memchr;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::children::split_child_key;
use crate::ids::{Db, SessionId};

/// The number of slots of the key space. A slot is the unit of placement: shards own
/// whole slots, so the number of shards never shows in a result.
pub const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;

/// Longest key, bytes (CONTRACT.md).
pub const MAX_KEY_LEN: usize = 64 * 1024;
/// Longest value, bytes (CONTRACT.md).
pub const MAX_VALUE_LEN: usize = 16 * 1024 * 1024;
/// Most keys in one transaction (CONTRACT.md).
pub const MAX_KEYS: usize = 65_536;

/// The bits of a hash that say where in its slot a key is.
const IN_SLOT: u64 = u64::MAX >> SLOT_BITS;

/// The hash of a key's bytes (XXH3, fixed seed: the same on every machine and version), the slot's bits on top.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Hashes a key that no [placement](crate::Placement) puts elsewhere. Of a key with a [hash tag](hash_tag), the tag alone decides the slot.
    #[inline]
    pub fn of(key: &[u8]) -> KeyHash {
        let whole = KeyHash(xxh3_64(key));
        if !holds_brace(key) {
            return whole;
        }
        hash_tag(key).map_or(whole, |tag| whole.in_slot_of(KeyHash(xxh3_64(tag))))
    }

    /// Hashes a key of a region, which has these slots. Of a key with a [hash tag](hash_tag), the tag alone decides which of them.
    pub(crate) fn within(key: &[u8], slots: &Range<usize>) -> KeyHash {
        let within = |bytes| KeyHash(xxh3_64(bytes)).squeezed(slots);
        hash_tag(key).map_or(within(key), |tag| within(key).in_slot_of(within(tag)))
    }

    /// The hash as far along these slots as it is along all slots: so the even spread over all is one over them.
    fn squeezed(self, slots: &Range<usize>) -> KeyHash {
        let along = (u128::from(self.0) * slots.len() as u128) >> SLOT_BITS;
        KeyHash(((slots.start as u64) << (64 - SLOT_BITS)) + along as u64)
    }

    /// The hash of the child record with this suffix: in the record's slot, so on its shard, however many
    /// there are.
    #[inline]
    #[must_use]
    pub fn child(parent: KeyHash, suffix: &[u8]) -> KeyHash {
        KeyHash(xxh3_64_with_seed(suffix, parent.0)).in_slot_of(parent)
    }

    /// The hash by which a record is found, from its name alone, if no [placement](crate::Placement) puts it elsewhere.
    pub fn of_record(db: Db, key: &[u8]) -> KeyHash {
        match split_child_key(key) {
            Some((parent, suffix)) if db.holds_children() => KeyHash::child(KeyHash::of(parent), suffix),
            _ => KeyHash::of(key),
        }
    }

    #[inline]
    const fn in_slot_of(self, other: KeyHash) -> KeyHash {
        KeyHash(other.0 & !IN_SLOT | self.0 & IN_SLOT)
    }

    /// The slot: the top bits.
    #[inline]
    pub const fn slot(self) -> usize {
        (self.0 >> (64 - SLOT_BITS)) as usize
    }

    /// The 32 bits below the slot, which a slot's table keeps beside each entry.
    #[inline]
    pub const fn tag(self) -> u32 {
        (self.0 >> (64 - SLOT_BITS - 32)) as u32
    }

    /// The key's place in the canonical order of the key space.
    #[inline]
    pub const fn position(self) -> Position {
        Position(self.0 >> (64 - SLOT_BITS - 32))
    }
}

/// True if there may be a hash tag. Nearly all keys are short and without one, and a call of a general search costs
/// several times the hash of such a key; this is a few instructions.
#[inline]
fn holds_brace(key: &[u8]) -> bool {
    const ONES: u64 = u64::MAX / 0xff;
    // Not 0 if a byte of the word is a brace: that byte becomes 0, and only a 0 borrows into its top bit.
    let braces = |word: [u8; 8]| {
        let word = u64::from_ne_bytes(word) ^ (ONES * b'{' as u64);
        word.wrapping_sub(ONES) & !word & (ONES << 7)
    };
    let Some(last) = key.last_chunk::<8>() else { return key.contains(&b'{') };
    let (words, _) = key.as_chunks::<8>();
    words.iter().fold(braces(*last), |found, word| found | braces(*word)) != 0
}

/// The part of a key that decides its slot, by Redis Cluster's rule: what stands between the first `{` and the
/// first `}` after it, unless that is nothing.
#[inline]
pub fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let after = &key[memchr(b'{', key)? + 1..];
    match memchr(b'}', after)? {
        0 => None,
        len => Some(&after[..len]),
    }
}

/// A place in the canonical order in which SCAN, KEYS and the expiry sweep walk a partition: slot, then tag.
/// Keys with equal positions are adjacent, ordered by database and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(pub u64);

impl Position {
    /// The first position after the whole key space.
    pub const END: Position = Position(1 << (SLOT_BITS + 32));

    /// The first position of a slot.
    pub const fn of_slot(slot: usize) -> Position {
        Position((slot as u64) << 32)
    }

    /// The slot this position lies in ([`SLOTS`] for [`Position::END`]).
    pub const fn slot(self) -> usize {
        (self.0 >> 32) as usize
    }

    /// The tag within the slot.
    pub const fn tag(self) -> u32 {
        self.0 as u32
    }

    /// The position after this one.
    #[must_use]
    pub const fn next(self) -> Position {
        Position(self.0 + 1)
    }
}

/// The slot whose owner keeps what became of a session's requests, and answers those that may write.
pub fn session_slot(session: SessionId) -> usize {
    KeyHash::of(&session.0.to_le_bytes()).slot()
}

/// The shard, of `shards`, that owns a slot: contiguous runs of slots, in slot order.
#[inline]
pub const fn shard_of_slot(slot: usize, shards: usize) -> usize {
    slot * shards / SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::children::child_key;

    #[test]
    fn position_is_slot_then_tag() {
        let hash = KeyHash::of(b"some key");
        assert_eq!(hash.position().slot(), hash.slot());
        assert_eq!(hash.position().tag(), hash.tag());
        assert!(hash.position() < Position::END);
        assert_eq!(Position::END.slot(), SLOTS);
    }

    #[test]
    fn a_tag_decides_the_slot_and_the_whole_key_the_rest() {
        let tag = KeyHash::of(b"user1");
        for key in ["{user1}", "{user1}.following", "a{user1}", "a{user1}{user2}", "{user1}}", "x{user1}y}"] {
            let hash = KeyHash::of(key.as_bytes());
            assert_eq!(hash.slot(), tag.slot(), "{key}");
            assert_eq!(hash.0 & IN_SLOT, xxh3_64(key.as_bytes()) & IN_SLOT, "{key}");
        }
        // Redis Cluster's own examples of what is no tag, and of one that is not what it seems.
        for key in ["", "{", "}", "{}", "foo{}{bar}", "foo}bar{", "{foo", "foo"] {
            assert_eq!(KeyHash::of(key.as_bytes()).0, xxh3_64(key.as_bytes()), "{key}");
        }
        assert_eq!(hash_tag(b"foo{{bar}}zap"), Some(&b"{bar"[..]));
        assert_eq!(hash_tag(b"foo{bar}{zap}"), Some(&b"bar"[..]));
    }

    #[test]
    fn a_brace_is_found_wherever_it_stands() {
        for len in 0..40 {
            for other in [b'z', b'|', 0, 0x80, 0xfb, 0xff] {
                let mut key = vec![other; len];
                assert!(!holds_brace(&key));
                for at in 0..len {
                    key[at] = b'{';
                    assert!(holds_brace(&key), "at {at} of {len}");
                    key[at] = other;
                }
            }
        }
    }

    #[test]
    fn what_lies_below_a_record_is_in_its_slot_and_found_by_name() {
        let mut tags = std::collections::BTreeSet::new();
        for parent in [&b"district:1"[..], b"{w7}:district:1", b""] {
            let hash = KeyHash::of(parent);
            for suffix in 0..100u32 {
                let below = KeyHash::child(hash, &suffix.to_le_bytes());
                let name = child_key(parent, &suffix.to_le_bytes());
                assert_eq!(below.slot(), hash.slot());
                assert_eq!(below, KeyHash::of_record(Db(3).children(), &name));
                assert_eq!(KeyHash::of(&name), KeyHash::of_record(Db(3), &name));
                tags.insert(below.tag());
            }
        }
        assert_eq!(tags.len(), 300);
    }

    #[test]
    fn shards_own_contiguous_slots_and_cover_all() {
        for shards in 1..9 {
            let owners: Vec<usize> = (0..SLOTS).map(|s| shard_of_slot(s, shards)).collect();
            assert!(owners.is_sorted());
            assert_eq!((owners[0], owners[SLOTS - 1]), (0, shards - 1));
        }
    }

    #[test]
    fn the_hash_is_pinned() {
        // Stored logs and cursors depend on it: a change of hash is a change of format version.
        assert_eq!(KeyHash::of(b"").0, 0x2d06_8005_38d3_94c2);
    }
}
