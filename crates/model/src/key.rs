//! Keys: their hash, and where the hash puts them.
//!
//! A key's hash is computed once, at the front door, and travels with the fragment. The database number is
//! not hashed, so that SWAPDB moves no record from one place to another; it is part of equality and digest.

use xxhash_rust::xxh3::xxh3_64;

/// How many slots the key space of a partition is divided in. A slot is the unit of placement: shards own
/// whole slots, so the number of shards never shows in a result.
pub const SLOTS: usize = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;

/// Longest key, bytes (CONTRACT.md).
pub const MAX_KEY_LEN: usize = 64 * 1024;
/// Longest value, bytes (CONTRACT.md).
pub const MAX_VALUE_LEN: usize = 16 * 1024 * 1024;
/// Most keys in one transaction (CONTRACT.md).
pub const MAX_KEYS: usize = 65_536;

/// The hash of a key's bytes (XXH3, fixed seed: the same on every machine and version).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash(pub u64);

impl KeyHash {
    /// Hashes a key.
    #[inline]
    pub fn of(key: &[u8]) -> KeyHash {
        KeyHash(xxh3_64(key))
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

    /// Where the key stands in the canonical order of the key space.
    #[inline]
    pub const fn position(self) -> Position {
        Position(self.0 >> (64 - SLOT_BITS - 32))
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

/// The shard, of `shards`, that owns a slot: contiguous runs of slots, in slot order.
#[inline]
pub const fn shard_of_slot(slot: usize, shards: usize) -> usize {
    slot * shards / SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn position_is_slot_then_tag() {
        let hash = KeyHash::of(b"some key");
        assert_eq!(hash.position().slot(), hash.slot());
        assert_eq!(hash.position().tag(), hash.tag());
        assert!(hash.position() < Position::END);
        assert_eq!(Position::END.slot(), SLOTS);
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
