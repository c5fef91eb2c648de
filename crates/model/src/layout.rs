//! Layouts: the partition that owns each slot, and the shard of that partition.
//!
//! At first a partition owns a contiguous run of the 1,024 slots, and the shards of a node, one a core, divide that run
//! among them. Shards are numbered through all partitions of a replica, so that an engine addresses them all
//! alike, on whatever node they are. No result depends on a layout: it only says who does the work.
//!
//! Slots can be moved to other partitions, and to other shards of their own; the [`Map`] says where they are. How many partitions and shards there are, and
//! where the sessions of clients are at home, does not change with it.
//!
//! Partitions may have prefixes: then they are *regions*, and the [`Placement`] puts the keys of a prefix into the slots of its
//! region. Those slots stay where they are.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use crate::ids::{Db, PartitionId, SessionId};
use crate::key::{SLOTS, session_slot};
use crate::map::{Map, Place, VirtualShard};
use crate::placement::{Placement, PlacementError};

/// The most shards that a replica can have, on all its nodes together.
pub const MAX_SHARDS: usize = 128;

/// A set of partitions, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartitionSet(pub u128);

impl PartitionSet {
    /// The empty set.
    pub const EMPTY: PartitionSet = PartitionSet(0);

    /// The first `count` partitions.
    pub const fn all(count: u16) -> PartitionSet {
        PartitionSet(if count >= 128 { u128::MAX } else { (1 << count) - 1 })
    }

    /// Adds one.
    pub const fn insert(&mut self, partition: PartitionId) {
        self.0 |= 1 << partition.0;
    }

    /// True if the set holds a partition.
    pub const fn contains(self, partition: PartitionId) -> bool {
        self.0 >> partition.0 & 1 != 0
    }

    /// The number of partitions in the set.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// True if the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The only one it holds, if that is so.
    pub const fn only(self) -> Option<PartitionId> {
        if self.len() == 1 { Some(PartitionId(self.0.trailing_zeros() as u16)) } else { None }
    }
}

/// The reason for which a layout is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Too few or too many partitions or threads.
    #[error(
        "{partitions} partitions of {threads} threads each: there must be at least one of each and at most \
         {MAX_SHARDS} shards (partitions times threads) in a replica: choose fewer"
    )]
    Size {
        /// Partitions asked for.
        partitions: usize,
        /// Threads a node.
        threads: usize,
    },
    /// The runs of slots do not rise from 0 to the end.
    #[error(
        "partition {0} would begin at slot {1}: the first must begin at 0, each after the one before, with at \
         least one slot a thread, below {SLOTS}"
    )]
    Starts(usize, usize),
    /// There are prefixes for too few or too many partitions.
    #[error(
        "{regions} regions for {partitions} partitions: name one region a partition, in the order of the partitions"
    )]
    Regions {
        /// Regions with or without prefixes.
        regions: usize,
        /// Partitions.
        partitions: usize,
    },
    /// The prefixes cannot be.
    #[error(transparent)]
    Prefixes(#[from] PlacementError),
}

/// The owner of each slot, a partition and a shard; the same on every node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The version of the division by the cluster's file; on every batch.
    version: u32,
    /// The first slot of each partition by that division.
    starts: Vec<usize>,
    threads: usize,
    /// The shard of each slot by that division.
    first: Arc<[u8]>,
    /// The slots of keys with a region's prefix, by that division.
    placement: Placement,
    /// The places of the slots now.
    map: Map,
    /// The shard of each slot.
    shard_of: Box<[u8]>,
    /// For each slot the end of the run of slots around it that are all of its shard.
    run_ends: Box<[u16]>,
}

impl Layout {
    /// A layout of one partition, on a node with so many threads.
    ///
    /// # Panics
    /// If `threads` is 0 or above [`MAX_SHARDS`]: the reader of a configuration refuses it.
    pub fn single(threads: usize) -> Layout {
        Layout::even(1, threads).expect("1 to 128 threads")
    }

    /// Partitions of nearly equal runs of slots, each on a node with so many threads.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn even(partitions: usize, threads: usize) -> Result<Layout, LayoutError> {
        let first = |partition: usize| (partition * SLOTS).div_ceil(partitions.max(1));
        Layout::ranges(1, (0..partitions).map(first).collect(), threads)
    }

    /// Partitions that begin at the given slots.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn ranges(version: u32, starts: Vec<usize>, threads: usize) -> Result<Layout, LayoutError> {
        let partitions = starts.len();
        let shards = partitions * threads;
        if shards == 0 || shards > MAX_SHARDS {
            return Err(LayoutError::Size { partitions, threads });
        }
        let mut shard_of = Vec::with_capacity(SLOTS);
        for (partition, start) in starts.iter().enumerate() {
            let end = starts.get(partition + 1).copied().unwrap_or(SLOTS);
            if *start != shard_of.len() || end < start + threads || end > SLOTS {
                return Err(LayoutError::Starts(partition, *start));
            }
            let run = end - start;
            shard_of.extend((0..run).map(|slot| (partition * threads + slot * threads / run) as u8));
        }
        let (first, run_ends) = (Arc::from(&*shard_of), run_ends(&shard_of));
        let (map, placement) = (Map::FIRST, Placement::NONE);
        Ok(Layout { version, starts, threads, first, placement, map, shard_of: shard_of.into(), run_ends })
    }

    /// The layout with these prefixes of each partition, none of whose slots have moved.
    ///
    /// # Errors
    /// [`LayoutError::Regions`], [`LayoutError::Prefixes`].
    pub fn in_regions(self, prefixes: Vec<Vec<Vec<u8>>>) -> Result<Layout, LayoutError> {
        let (regions, partitions) = (prefixes.len(), self.starts.len());
        if regions != partitions {
            return Err(LayoutError::Regions { regions, partitions });
        }
        let ends = self.starts.iter().skip(1).copied().chain([SLOTS]);
        let slots = self.starts.iter().zip(ends).map(|(start, end)| *start..end);
        let placement = Placement::new(slots.zip(prefixes).collect())?;
        Ok(Layout { placement, ..self })
    }

    /// The layout of the same partitions and shards, with the slots where a map says.
    #[must_use]
    pub fn under(&self, map: &Map) -> Layout {
        let shard_of = (0..SLOTS).map(|slot| {
            let Place { owner, virtual_shard } = self.place_under(map, slot);
            let sent_to = virtual_shard
                .map(|virtual_shard| self.shards_of(owner).start + virtual_shard.shard(self.threads));
            sent_to.unwrap_or_else(|| self.own_shard(slot, owner)) as u8
        });
        let shard_of: Box<[u8]> = shard_of.collect();
        let run_ends = run_ends(&shard_of);
        let (starts, first, placement) = (self.starts.clone(), self.first.clone(), self.placement.clone());
        Layout { starts, first, placement, map: map.clone(), shard_of, run_ends, ..*self }
    }

    /// The layout after these slots have gone to a partition; none if they are there, or there is no such partition, or they
    /// [stay](Layout::moves_slots).
    pub fn moved(&self, slots: &Range<usize>, to: PartitionId) -> Option<Layout> {
        let goes = |slot: usize| slots.contains(&slot) && self.partition_of(slot) != to;
        if to.0 >= self.partitions() || !self.moves_slots() {
            return None;
        }
        self.changed(|slot| goes(slot).then_some(Place { owner: to, virtual_shard: None }))
    }

    /// The layout of one shard that has all slots, with the placement of this one: for whoever puts all partitions together.
    #[must_use]
    pub fn whole(&self) -> Layout {
        Layout { placement: self.placement.clone(), ..Layout::single(1) }
    }

    /// True if slots can go to other partitions: not those of regions, whose keys would leave their region with them.
    pub const fn moves_slots(&self) -> bool {
        self.placement.is_none()
    }

    /// The slots of keys with a region's prefix.
    #[inline]
    pub const fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The home region of a key: by the longest prefix that it begins with, or else by its hash.
    pub fn region_of(&self, key: &[u8]) -> PartitionId {
        self.partition_of(self.placement.hash_of(key).slot())
    }

    /// The partition of a record, by its name.
    pub fn partition_of_key(&self, db: Db, key: &[u8]) -> PartitionId {
        self.partition_of(self.placement.hash_of_record(db, key).slot())
    }

    /// The shard of a record, by its name.
    pub fn shard_of_key(&self, db: Db, key: &[u8]) -> usize {
        self.shard_of(self.placement.hash_of_record(db, key).slot())
    }

    /// The shard on which a partition has a slot by itself.
    pub fn own_shard(&self, slot: usize, owner: PartitionId) -> usize {
        let first = usize::from(self.first[slot]);
        // The shards of a partition share what comes to it, whatever it has already: so nothing that stays has to change its
        // shard.
        let is_back = owner == self.partition_of_shard(first);
        if is_back { first } else { self.shards_of(owner).start + slot % self.threads }
    }

    /// The layout after slots of a partition have gone to these virtual shards of it, or back; none if they are there.
    /// A slot that another partition owns stays: it was moved meanwhile.
    pub fn balanced(
        &self,
        partition: PartitionId,
        virtual_shards: &[(usize, Option<VirtualShard>)],
    ) -> Option<Layout> {
        self.changed(|slot| {
            let (_, virtual_shard) = virtual_shards.iter().find(|(of, _)| *of == slot)?;
            (self.partition_of(slot) == partition)
                .then_some(Place { owner: partition, virtual_shard: *virtual_shard })
        })
    }

    /// The layout after some slots have gone elsewhere; none if they are there.
    fn changed(&self, goes_to: impl Fn(usize) -> Option<Place>) -> Option<Layout> {
        let now = |slot| self.place_under(&self.map, slot);
        let then = |slot| goes_to(slot).unwrap_or_else(|| now(slot));
        let is_other = (0..SLOTS).any(|slot| then(slot) != now(slot));
        is_other.then(|| self.under(&Map::new(self.map.version().saturating_add(1), then)))
    }

    /// The map: the place of each slot.
    #[inline]
    pub const fn map(&self) -> &Map {
        &self.map
    }

    /// The place of a slot under another map.
    #[inline]
    pub fn place_under(&self, map: &Map, slot: usize) -> Place {
        let first = || self.partition_of_shard(usize::from(self.first[slot]));
        // A map that names a partition which is not there is of another cluster; whatever it says, all say the same of it.
        let is_here = |place: &Place| place.owner.0 < self.partitions();
        map.place(slot).filter(is_here).unwrap_or_else(|| Place { owner: first(), virtual_shard: None })
    }

    /// True if a slot is elsewhere now than under another map.
    #[inline]
    pub fn is_moved(&self, slot: usize, since: &Map) -> bool {
        self.place_under(since, slot) != self.place_under(&self.map, slot)
    }

    /// The version of the division by the cluster's file.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// The number of partitions.
    pub fn partitions(&self) -> u16 {
        self.starts.len() as u16
    }

    /// The set of all partitions.
    pub fn all(&self) -> PartitionSet {
        PartitionSet::all(self.partitions())
    }

    /// The first slot of each partition by the cluster's file.
    pub fn starts(&self) -> &[usize] {
        &self.starts
    }

    /// The number of shards of a partition.
    pub const fn threads(&self) -> usize {
        self.threads
    }

    /// The number of shards of all partitions.
    pub fn shards(&self) -> usize {
        self.starts.len() * self.threads
    }

    /// The shard that owns a slot.
    #[inline]
    pub fn shard_of(&self, slot: usize) -> usize {
        usize::from(self.shard_of[slot])
    }

    /// The shard that owns all slots from one to another; none if they are of several. It may be none as well if they are all
    /// of one, but slots between them are not.
    #[inline]
    pub fn shard_of_all(&self, slots: RangeInclusive<usize>) -> Option<usize> {
        let (first, last) = slots.into_inner();
        (usize::from(self.run_ends[first]) > last).then(|| self.shard_of(first))
    }

    /// The partition that owns a slot.
    #[inline]
    pub fn partition_of(&self, slot: usize) -> PartitionId {
        PartitionId((self.shard_of(slot) / self.threads) as u16)
    }

    /// The partition of a shard.
    pub const fn partition_of_shard(&self, shard: usize) -> PartitionId {
        PartitionId((shard / self.threads) as u16)
    }

    /// The shards of a partition.
    pub const fn shards_of(&self, partition: PartitionId) -> Range<usize> {
        let first = partition.0 as usize * self.threads;
        first..first + self.threads
    }

    /// The slots of a shard by the cluster's file.
    pub fn slots_of_shard(&self, shard: usize) -> Range<usize> {
        let first = self.first.partition_point(|owner| usize::from(*owner) < shard);
        first..self.first.partition_point(|owner| usize::from(*owner) <= shard)
    }

    /// The slots that a shard owns.
    pub fn owned_by(&self, shard: usize) -> impl Iterator<Item = usize> {
        (0..SLOTS).filter(move |slot| self.shard_of(*slot) == shard)
    }

    /// The shard at which a session is at home: it keeps what became of the session's requests, and answers those that may
    /// write. It never changes, so that a retry meets the first attempt.
    #[inline]
    pub fn home_of(&self, session: SessionId) -> usize {
        usize::from(self.first[session_slot(session)])
    }

    /// The partition of that shard.
    pub fn home_partition_of(&self, session: SessionId) -> PartitionId {
        self.partition_of_shard(self.home_of(session))
    }
}

/// For each slot the end of the run of slots around it that have the same shard.
fn run_ends(shard_of: &[u8]) -> Box<[u16]> {
    let runs = shard_of.chunk_by(|a, b| a == b);
    let ends = runs.scan(0, |end, run| {
        *end += run.len() as u16;
        Some(std::iter::repeat_n(*end, run.len()))
    });
    ends.flatten().collect()
}

/// The layout under one map after another: the last is kept, as the next is mostly the same.
#[derive(Clone, Debug)]
pub struct Layouts(Arc<Layout>);

impl Layouts {
    /// The layouts of these partitions.
    pub const fn new(layout: Arc<Layout>) -> Layouts {
        Layouts(layout)
    }

    /// The layout under a map.
    #[inline]
    pub fn under(&mut self, map: &Map) -> &Arc<Layout> {
        if self.0.map() != map {
            self.0 = Arc::new(self.0.under(map));
        }
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::shard_of_slot;

    #[test]
    fn an_even_layout_is_the_even_division_of_the_slots() {
        for (partitions, threads) in [(1, 1), (1, 5), (3, 1), (3, 2), (7, 3), (100, 1), (1, 64), (16, 8)] {
            let layout = Layout::even(partitions, threads).unwrap();
            for slot in 0..SLOTS {
                assert_eq!(usize::from(layout.partition_of(slot).0), shard_of_slot(slot, partitions));
                let shard = layout.shard_of(slot);
                assert!(layout.slots_of_shard(shard).contains(&slot));
                assert!(layout.shards_of(layout.partition_of(slot)).contains(&shard));
            }
            let slots: usize = (0..layout.shards()).map(|shard| layout.slots_of_shard(shard).len()).sum();
            assert_eq!((slots, layout.shards()), (SLOTS, partitions * threads));
        }
        for slot in 0..SLOTS {
            assert_eq!(Layout::single(5).shard_of(slot), shard_of_slot(slot, 5));
        }
    }

    #[test]
    fn slots_of_one_shard_are_told_from_slots_of_several() {
        let layout = Layout::even(3, 2).unwrap();
        let moved = layout.moved(&(10..20), PartitionId(2)).unwrap();
        for layout in [layout, moved] {
            for first in 0..SLOTS {
                let shard = layout.shard_of(first);
                let is_other = |slot: &usize| layout.shard_of(*slot) != shard;
                let end = (first..SLOTS).find(is_other).unwrap_or(SLOTS);
                assert_eq!(layout.shard_of_all(first..=first), Some(shard));
                assert_eq!(layout.shard_of_all(first..=end - 1), Some(shard));
                assert!((end..SLOTS).all(|last| layout.shard_of_all(first..=last).is_none()));
            }
        }
    }

    #[test]
    fn partitions_may_be_of_any_size_and_must_cover_all() {
        let layout = Layout::ranges(4, vec![0, 10, 1000], 2).unwrap();
        assert_eq!((layout.slots_of_shard(0), layout.slots_of_shard(1)), (0..5, 5..10));
        assert_eq!((layout.slots_of_shard(4), layout.slots_of_shard(5)), (1000..1012, 1012..1024));
        assert_eq!((layout.version(), layout.partitions()), (4, 3));
        assert_eq!(Layout::ranges(1, vec![1], 1), Err(LayoutError::Starts(0, 1)));
        assert_eq!(Layout::ranges(1, vec![0, 0], 1), Err(LayoutError::Starts(0, 0)));
        assert_eq!(Layout::ranges(1, vec![0, 3], 4), Err(LayoutError::Starts(0, 0)));
        assert_eq!(Layout::ranges(1, vec![0, 1024], 1), Err(LayoutError::Starts(1, 1024)));
        assert!(Layout::even(65, 2).is_err() && Layout::even(0, 1).is_err() && Layout::even(1, 0).is_err());
    }

    #[test]
    fn keys_of_a_region_lie_on_all_shards_of_its_partition_and_stay() {
        let prefixes = |all: &[&str]| all.iter().map(|prefix| prefix.as_bytes().to_vec()).collect::<Vec<_>>();
        let plain = Layout::ranges(1, vec![0, 100, 700], 2).unwrap();
        let regions = vec![prefixes(&["eu:", "eea:"]), prefixes(&[]), prefixes(&["us:"])];
        let layout = plain.clone().in_regions(regions.clone()).unwrap();
        let mut shards = std::collections::BTreeMap::<usize, u32>::new();
        for n in 0..3000 {
            for (prefix, region) in [("eu:", Some(0)), ("eea:", Some(0)), ("us:", Some(2)), ("asia:", None)] {
                let key = format!("{prefix}{n}");
                let home = layout.region_of(key.as_bytes());
                let expected = region.map_or_else(|| plain.region_of(key.as_bytes()), PartitionId);
                assert_eq!(home, expected, "{key}");
                assert_eq!(layout.partition_of_key(Db(0), key.as_bytes()), home);
                let shard = layout.shard_of_key(Db(0), key.as_bytes());
                assert_eq!(layout.partition_of_shard(shard), home);
                *shards.entry(shard).or_default() += u32::from(region.is_some());
            }
        }
        let counts: Vec<u32> = [0, 1, 4, 5].map(|shard| shards[&shard]).to_vec();
        assert!(
            counts.iter().zip([3000, 3000, 1500, 1500]).all(|(count, of)| count.abs_diff(of) < 300),
            "{counts:?}"
        );
        assert_eq!((layout.moved(&(0..9), PartitionId(2)), layout.moves_slots()), (None, false));
        assert!(plain.moved(&(0..9), PartitionId(2)).is_some());
        let balanced = layout.balanced(PartitionId(0), &[(3, Some(VirtualShard(127)))]).unwrap();
        assert_eq!(balanced.placement(), layout.placement(), "within a region slots may go to other shards");
        assert_ne!(layout, plain);
        assert_eq!(plain.clone().in_regions(vec![vec![]; 3]), Ok(plain.clone()));
        assert_eq!(
            plain.clone().in_regions(regions[..2].to_vec()),
            Err(LayoutError::Regions { regions: 2, partitions: 3 })
        );
        let twice = vec![prefixes(&["a"]), prefixes(&["b"]), prefixes(&["a"])];
        assert_eq!(plain.in_regions(twice), Err(PlacementError::Twice("a".into()).into()));
    }

    #[test]
    fn slots_go_to_lanes_of_their_partition_on_any_number_of_threads() {
        let virtual_shards = [(3, VirtualShard(127)), (4, VirtualShard(0)), (900, VirtualShard(0))]
            .map(|(slot, virtual_shard)| (slot, Some(virtual_shard)));
        for threads in [1, 2, 3, 8] {
            let first = Layout::even(2, threads).unwrap();
            let layout = first.balanced(PartitionId(0), &virtual_shards).unwrap();
            for slot in 0..SLOTS {
                let expected = if slot == 3 { threads - 1 } else { first.shard_of(slot) };
                assert_eq!(layout.shard_of(slot), expected, "slot {slot}; that of another partition stays");
                let has_changed = [3, 4].contains(&slot);
                assert_eq!(layout.is_moved(slot, &Map::FIRST), has_changed, "whatever the number of threads");
            }
            assert_eq!(layout.balanced(PartitionId(0), &virtual_shards), None, "they are there");
            let back = layout.balanced(PartitionId(0), &[(3, None), (4, None)]).unwrap();
            assert_eq!((&back.shard_of, back.map().version()), (&first.shard_of, 2));
            let away = layout.moved(&(3..4), PartitionId(1)).unwrap();
            assert_eq!(away.partition_of(3), PartitionId(1));
            assert_eq!(away.balanced(PartitionId(0), &virtual_shards[..1]), None, "it was moved meanwhile");
            assert_eq!(away.moved(&(3..4), PartitionId(0)).unwrap().shard_of(3), first.shard_of(3));
            assert_eq!((layout.map().version(), away.map().version()), (1, 2));
        }
    }

    #[test]
    fn slots_move_and_come_back_and_nothing_else_changes_hands() {
        let first = Layout::even(3, 2).unwrap();
        assert_eq!(first.moved(&(0..9), PartitionId(3)), None, "there is no such partition");
        assert_eq!(first.moved(&(0..9), PartitionId(0)), None, "they are there");
        let moved = first.moved(&(340..350), PartitionId(2)).unwrap();
        assert_eq!((moved.map().version(), moved.version()), (1, 1));
        for slot in 0..SLOTS {
            if (340..350).contains(&slot) {
                assert_eq!((moved.partition_of(slot).0, moved.shard_of(slot)), (2, 4 + slot % 2));
            } else {
                assert_eq!(moved.shard_of(slot), first.shard_of(slot));
            }
            let session = SessionId(slot as u64);
            assert_eq!(moved.home_of(session), first.home_of(session));
            assert_eq!(first.place_under(moved.map(), slot).owner, moved.partition_of(slot));
            assert_eq!(moved.is_moved(slot, &Map::FIRST), (340..350).contains(&slot));
        }
        assert_eq!((0..6).map(|shard| moved.owned_by(shard).count()).sum::<usize>(), SLOTS);
        assert_eq!(moved.slots_of_shard(4), first.slots_of_shard(4));
        let back =
            moved.moved(&(340..342), PartitionId(0)).unwrap().moved(&(342..350), PartitionId(1)).unwrap();
        assert_eq!((back.map().version(), &back.shard_of), (3, &first.shard_of));
        let mut layouts = Layouts::new(Arc::new(first));
        assert_eq!(**layouts.under(back.map()), back);
        assert_eq!(**layouts.under(moved.map()), moved);
        // A map of another cluster is no reason to reach beyond the last shard.
        assert!(
            moved
                .under(&Map::new(9, |_| Place { owner: PartitionId(200), virtual_shard: None }))
                .shard_of
                .iter()
                .all(|shard| *shard < 6)
        );
    }

    #[test]
    fn a_set_of_partitions_holds_what_was_put_in() {
        let mut set = PartitionSet::EMPTY;
        assert!(set.is_empty() && set.only().is_none());
        set.insert(PartitionId(127));
        assert_eq!(set.only(), Some(PartitionId(127)));
        set.insert(PartitionId(0));
        assert!(set.contains(PartitionId(0)) && !set.contains(PartitionId(1)));
        assert_eq!((set.len(), set.only()), (2, None));
        assert_eq!((PartitionSet::all(3).0, PartitionSet::all(128).0), (7, u128::MAX));
    }
}
