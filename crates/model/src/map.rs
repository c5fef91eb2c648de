//! The map: which partition owns each slot, after all the moves until some place in the order (calvin.md, section 5,
//! gap 18).
//!
//! A transaction is planned under a map and carries it. Where its turn comes, every shard compares that with the map in
//! force there, and all come to the same verdict without a word between them. So a map must say by itself what it is:
//! whoever cuts a batch may not have executed the move by which it came to be.

use std::sync::Arc;

use crate::ids::PartitionId;
use crate::key::SLOTS;
use crate::wire::{self, Reader};

/// Which partition owns each slot.
#[derive(Clone, Debug, Default)]
pub struct Map(Option<Arc<Owners>>);

/// What has been moved; of the first map, which is the cluster's file's, nothing.
#[derive(Debug, PartialEq, Eq)]
struct Owners {
    version: u32,
    of: [u8; SLOTS],
}

impl Map {
    /// The map before any move.
    pub const FIRST: Map = Map(None);

    /// The map of a version, after some moves.
    pub fn new(version: u32, owner: impl Fn(usize) -> PartitionId) -> Map {
        Map(Some(Arc::new(Owners { version, of: std::array::from_fn(|slot| owner(slot).0 as u8) })))
    }

    /// How many moves have led to it.
    pub fn version(&self) -> u32 {
        self.0.as_ref().map_or(0, |owners| owners.version)
    }

    /// The partition that owns a slot; none if that is as in the cluster's file.
    #[inline]
    pub fn owner(&self, slot: usize) -> Option<PartitionId> {
        self.0.as_ref().map(|owners| PartitionId(u16::from(owners.of[slot])))
    }

    /// Appends its bytes: the version, and unless that is 0 the runs of slots with one owner, or, if they are many, each
    /// slot's.
    pub fn encode(&self, out: &mut Vec<u8>) {
        wire::u32(out, self.version());
        let Some(owners) = &self.0 else { return };
        let runs = || owners.of.chunk_by(|one, next| one == next);
        let count = runs().count();
        if count > MAX_RUNS {
            wire::u16(out, 0);
            return out.extend_from_slice(&owners.of);
        }
        wire::u16(out, count as u16);
        for run in runs() {
            wire::u16(out, run.len() as u16);
            wire::u8(out, run[0]);
        }
    }

    /// What the bytes are, if they are one.
    pub fn decode(bytes: &mut Reader<'_>) -> Option<Map> {
        let version = bytes.u32()?;
        if version == 0 {
            return Some(Map::FIRST);
        }
        let mut of = [0; SLOTS];
        match usize::from(bytes.u16()?) {
            0 => {
                let (all, rest) = bytes.0.split_first_chunk::<SLOTS>()?;
                (of, bytes.0) = (*all, rest);
            }
            runs => {
                let mut rest = &mut of[..];
                for _ in 0..runs {
                    let (len, owner) = (usize::from(bytes.u16()?), bytes.u8()?);
                    let (run, after) = rest.split_at_mut_checked(len)?;
                    run.fill(owner);
                    rest = after;
                }
                rest.is_empty().then_some(())?;
            }
        }
        Some(Map(Some(Arc::new(Owners { version, of }))))
    }
}

/// So many runs take as many bytes as each slot's owner does.
const MAX_RUNS: usize = SLOTS / 3;

impl PartialEq for Map {
    #[inline]
    fn eq(&self, other: &Map) -> bool {
        match (&self.0, &other.0) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other) || one == other,
            _ => false,
        }
    }
}

impl Eq for Map {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_travel_whether_they_are_of_few_runs_or_of_many() {
        let few = Map::new(7, |slot| PartitionId(u16::from(slot > 300) + u16::from(slot > 301)));
        let many = Map::new(u32::MAX, |slot| PartitionId(slot as u16 % 2));
        let one = Map::new(1, |_| PartitionId(127));
        for (map, most) in [(Map::FIRST, 4), (few, 15), (many, 6 + SLOTS), (one, 9)] {
            let mut bytes = Vec::new();
            map.encode(&mut bytes);
            assert_eq!(bytes.len(), most);
            let mut rest = Reader(&bytes);
            assert_eq!(Map::decode(&mut rest), Some(map.clone()));
            assert!(rest.is_empty());
            for cut in 0..bytes.len() {
                assert_eq!(Map::decode(&mut Reader(&bytes[..cut])), None, "cut at {cut}");
            }
        }
        // Runs that do not cover all slots, or more than those.
        for len in [SLOTS - 1, SLOTS + 1] {
            let mut bytes = vec![1, 0, 0, 0, 1, 0];
            wire::u16(&mut bytes, len as u16);
            bytes.push(3);
            assert_eq!(Map::decode(&mut Reader(&bytes)), None);
        }
    }

    #[test]
    fn maps_are_equal_by_what_they_say() {
        let map = |version, to| Map::new(version, |slot| PartitionId(if slot == 5 { to } else { 0 }));
        assert_eq!(map(3, 1), map(3, 1));
        assert_ne!(map(3, 1), map(4, 1));
        assert_ne!(map(3, 1), map(3, 2), "after a part of the order was lost, a version may come again");
        assert_ne!(map(1, 0), Map::FIRST);
        assert_eq!((map(3, 1).owner(5), Map::FIRST.owner(5)), (Some(PartitionId(1)), None));
    }
}
