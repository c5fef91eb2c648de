//! The map: where each slot is, after all the moves until some place in the order (calvin.md, section 5, gap 18): which
//! partition owns it, and which of that partition's cores (qstore.md, section 2: the range table).
//!
//! A transaction is planned under a map and carries it. At its place in the order, every shard compares that with the map in
//! force there, and all come to the same verdict without a word between them. So a map must say by itself what it is:
//! the sequencer of a batch may not have executed the move by which it came to be.

use std::ops::Range;
use std::sync::Arc;

use crate::ids::PartitionId;
use crate::key::SLOTS;
use crate::wire::{self, Codec, Reader};

/// The number of virtual shards of a partition.
pub const VIRTUAL_SHARDS: usize = 128;

/// A share of a partition's cores. On a node with `threads` shards virtual shard `v` is on shard
/// `v * threads / VIRTUAL_SHARDS`.
///
/// A place in the map is the same on replicas with different numbers of cores, so decisions that must be the same on all
/// replicas rest on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualShard(pub u8);

impl VirtualShard {
    /// The virtual shards of one of a node's shards.
    pub const fn of_shard(shard: usize, threads: usize) -> Range<usize> {
        (shard * VIRTUAL_SHARDS).div_ceil(threads)..((shard + 1) * VIRTUAL_SHARDS).div_ceil(threads)
    }

    /// The shard, of so many, that it is on.
    pub const fn shard(self, threads: usize) -> usize {
        self.0 as usize * threads / VIRTUAL_SHARDS
    }
}

/// Slots of a partition with the virtual shard that each is to be in; none: where the partition has it by itself.
pub type VirtualShards = Vec<(usize, Option<VirtualShard>)>;

/// The place of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The partition that owns it.
    pub owner: PartitionId,
    /// The virtual shard to which the slot was sent; none: the slot is where the partition has it by itself.
    pub virtual_shard: Option<VirtualShard>,
}

/// The place of each slot.
#[derive(Clone, Debug, Default)]
pub struct Map(Option<Arc<Places>>);

/// The places after moves; the first map, which is the cluster's file's, has none.
#[derive(Debug, PartialEq, Eq)]
struct Places {
    version: u32,
    owners: [u8; SLOTS],
    /// The virtual shard plus one; 0 for none.
    virtual_shards: [u8; SLOTS],
}

impl Map {
    /// The map before any move.
    pub const FIRST: Map = Map(None);

    /// The map of a version, after some moves.
    pub fn new(version: u32, place: impl Fn(usize) -> Place) -> Map {
        let mut places = Places { version, owners: [0; SLOTS], virtual_shards: [0; SLOTS] };
        for slot in 0..SLOTS {
            let Place { owner, virtual_shard } = place(slot);
            places.owners[slot] = owner.0 as u8;
            places.virtual_shards[slot] = virtual_shard.map_or(0, |virtual_shard| virtual_shard.0 + 1);
        }
        Map(Some(Arc::new(places)))
    }

    /// The number of moves that have led to the map.
    pub fn version(&self) -> u32 {
        self.0.as_ref().map_or(0, |places| places.version)
    }

    /// The place of a slot; none if that is as in the cluster's file.
    #[inline]
    pub fn place(&self, slot: usize) -> Option<Place> {
        self.0.as_ref().map(|places| Place {
            owner: PartitionId(u16::from(places.owners[slot])),
            virtual_shard: places.virtual_shards[slot].checked_sub(1).map(VirtualShard),
        })
    }
}

/// The version, and unless that is 0 the runs of slots with one place, or, if they are many, each slot's.
impl Codec for Map {
    const LEAST: usize = 4;

    fn encode(&self, out: &mut Vec<u8>) {
        wire::u32(out, self.version());
        let Some(places) = &self.0 else { return };
        let at = |slot: usize| (places.owners[slot], places.virtual_shards[slot]);
        let count = 1 + (1..SLOTS).filter(|slot| at(*slot) != at(slot - 1)).count();
        if count > MAX_RUNS {
            let has_virtual_shards = places.virtual_shards != [0; SLOTS];
            wire::u16(out, if has_virtual_shards { EACH_WITH_VIRTUAL_SHARD } else { EACH });
            out.extend_from_slice(&places.owners);
            return out.extend_from_slice(if has_virtual_shards { &places.virtual_shards } else { &[] });
        }
        wire::u16(out, count as u16);
        let mut slot = 0;
        while slot < SLOTS {
            let (owner, virtual_shard) = at(slot);
            let len = (slot..SLOTS).take_while(|next| at(*next) == (owner, virtual_shard)).count();
            wire::u16(out, len as u16 | if virtual_shard > 0 { HAS_VIRTUAL_SHARD } else { 0 });
            wire::u8(out, owner);
            if virtual_shard > 0 {
                wire::u8(out, virtual_shard);
            }
            slot += len;
        }
    }

    fn decode(bytes: &mut Reader<'_>) -> Option<Map> {
        let version = bytes.u32()?;
        if version == 0 {
            return Some(Map::FIRST);
        }
        let (mut owners, mut virtual_shards) = ([0; SLOTS], [0; SLOTS]);
        match bytes.u16()? {
            EACH => owners = bytes.array()?,
            EACH_WITH_VIRTUAL_SHARD => (owners, virtual_shards) = (bytes.array()?, bytes.array()?),
            runs => {
                let mut slot = 0;
                for _ in 0..runs {
                    let (len, owner) = (bytes.u16()?, bytes.u8()?);
                    let virtual_shard = if len & HAS_VIRTUAL_SHARD > 0 { bytes.u8()? } else { 0 };
                    let run = slot..slot + usize::from(len & !HAS_VIRTUAL_SHARD);
                    owners.get_mut(run.clone())?.fill(owner);
                    virtual_shards[run.clone()].fill(virtual_shard);
                    slot = run.end;
                }
                (slot == SLOTS).then_some(())?;
            }
        }
        let is_virtual_shard = |virtual_shard: &u8| usize::from(*virtual_shard) <= VIRTUAL_SHARDS;
        virtual_shards
            .iter()
            .all(is_virtual_shard)
            .then(|| Map(Some(Arc::new(Places { version, owners, virtual_shards }))))
    }
}

/// The number of runs that take as many bytes as each slot's owner does.
const MAX_RUNS: usize = SLOTS / 3;
/// In the place of the number of runs: each slot's owner follows, or those and each slot's virtual shard.
const EACH: u16 = 0;
const EACH_WITH_VIRTUAL_SHARD: u16 = u16::MAX;
/// On the length of a run: a virtual shard follows the owner.
const HAS_VIRTUAL_SHARD: u16 = 1 << 15;

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

    fn at(owner: u16) -> Place {
        Place { owner: PartitionId(owner), virtual_shard: None }
    }

    #[test]
    fn maps_travel_whether_they_are_of_few_runs_or_of_many() {
        let few = Map::new(7, |slot| at(u16::from(slot > 300) + u16::from(slot > 301)));
        let many = Map::new(u32::MAX, |slot| at(slot as u16 % 2));
        let one = Map::new(1, |_| at(127));
        let virtual_shard = |slot: usize| Some(VirtualShard(slot as u8 % 128)).filter(|_| slot >= 1000);
        let virtual_shards = Map::new(2, |slot| Place { virtual_shard: virtual_shard(slot), ..at(3) });
        let all_virtual_shards =
            Map::new(2, |slot| Place { virtual_shard: Some(VirtualShard(slot as u8 % 128)), ..at(3) });
        let maps = [
            (Map::FIRST, 4),
            (few, 15),
            (many, 6 + SLOTS),
            (one, 9),
            (virtual_shards, 6 + 3 + 24 * 4),
            (all_virtual_shards, 6 + 2 * SLOTS),
        ];
        for (map, most) in maps {
            let bytes = map.to_bytes();
            assert_eq!(bytes.len(), most);
            assert_eq!(Map::from_bytes(&bytes), Some(map.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(Map::from_bytes(&bytes[..cut]), None, "cut at {cut}");
            }
        }
        // Runs that do not cover all slots, or more than those; a virtual shard that is none.
        for (len, virtual_shard) in [(SLOTS - 1, 1), (SLOTS + 1, 1), (SLOTS, VIRTUAL_SHARDS as u8 + 1)] {
            let mut bytes = vec![1, 0, 0, 0, 1, 0];
            wire::u16(&mut bytes, len as u16 | HAS_VIRTUAL_SHARD);
            bytes.extend_from_slice(&[3, virtual_shard]);
            assert_eq!(Map::from_bytes(&bytes), None);
        }
    }

    #[test]
    fn lanes_are_shared_out_among_any_number_of_shards() {
        for threads in 1..=VIRTUAL_SHARDS {
            let of = |shard| VirtualShard::of_shard(shard, threads);
            assert_eq!((of(0).start, of(threads - 1).end), (0, VIRTUAL_SHARDS));
            for shard in 0..threads {
                assert!(!of(shard).is_empty() && of(shard).end == of(shard + 1).start);
                assert!(
                    of(shard).all(|virtual_shard| VirtualShard(virtual_shard as u8).shard(threads) == shard)
                );
            }
        }
    }

    #[test]
    fn maps_are_equal_by_what_they_say() {
        let map = |version, to| Map::new(version, |slot| at(if slot == 5 { to } else { 0 }));
        assert_eq!(map(3, 1), map(3, 1));
        assert_ne!(map(3, 1), map(4, 1));
        assert_ne!(map(3, 1), map(3, 2), "after a part of the order was lost, a version may come again");
        assert_ne!(map(1, 0), Map::FIRST);
        assert_ne!(
            map(3, 1),
            Map::new(3, |slot| Place { virtual_shard: Some(VirtualShard(0)), ..at(u16::from(slot == 5)) })
        );
        assert_eq!((map(3, 1).place(5), Map::FIRST.place(5)), (Some(at(1)), None));
    }
}
