//! The store in memory.

use std::collections::VecDeque;
use std::ops::Range;

use ordain_model::{Cell, Db, Digest, Epoch, Gsn, KeyHash, Millis, Placement, Position, Table};

use crate::eviction::Eviction;
use crate::fetch::fetch;
use crate::handover::{Generations, Sums};
use crate::index::Index;
use crate::past::Past;
use crate::slab::{Record, Slab};
use crate::table::TableMut;
use crate::totals::{Share, Totals, hash_of};
use crate::versions::Versions;
use crate::zigzag::ZigZag;
use crate::{Keep, Memory, RecordId, RecordStore, Snapshot, Spread};

/// Records in memory: a slab of cache lines, and an index a slot.
#[derive(Debug)]
pub struct MemoryStore {
    /// All slots that it owns are among these.
    pub(crate) slots: Range<usize>,
    pub(crate) placement: Placement,
    pub(crate) indexes: Vec<Index>,
    pub(crate) slab: Slab,
    pub(crate) totals: Totals,
    pub(crate) versions: Versions,
    /// The last epoch in which records came in from another store: they are older than that here.
    pub(crate) arrived: Epoch,
    pub(crate) zigzag: ZigZag,
    /// How many lock words are in use.
    pub(crate) locked: usize,
    /// What all records were in before they were cleared together: their memory is given back [some at a
    /// time](RecordStore::free_some).
    pub(crate) cleared: Vec<Vec<Record>>,
    /// Records of slots that come or go by all that is in them.
    pub(crate) generations: Generations,
    /// The state of eviction.
    pub(crate) eviction: Eviction,
}

/// A record as [`RecordStore::visit`] and [`Snapshot::visit`] show it.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Where it stands in the canonical order.
    pub position: Position,
    /// Its database.
    pub db: Db,
    /// Its key.
    pub key: &'a [u8],
    /// Its content.
    pub cell: &'a Cell,
    /// Who wrote the content.
    pub version: Gsn,
}

/// So many records ahead of the one that is shown are fetched; of fewer what they held before, then what either holds.
const AHEAD: usize = 24;
const OLDERS_AHEAD: usize = 16;
const VALUES_AHEAD: usize = 8;
/// To free a record that has gone takes as long as to give back the memory of so many that were cleared together.
const GONE: usize = 8;
/// The epoch as of which records are present.
const PRESENT: Epoch = Epoch(u64::MAX);

impl MemoryStore {
    /// An empty store that owns these slots, without prefixes of regions.
    pub fn new(slots: Range<usize>) -> MemoryStore {
        MemoryStore::placed(slots, Placement::NONE)
    }

    /// An empty store that owns these slots, and whose records have the slots that a placement says.
    pub fn placed(slots: Range<usize>, placement: Placement) -> MemoryStore {
        MemoryStore {
            indexes: (0..slots.len()).map(|_| Index::default()).collect(),
            slab: Slab::default(),
            totals: Totals::new(&slots),
            versions: Versions::default(),
            arrived: Epoch(0),
            zigzag: ZigZag::default(),
            locked: 0,
            cleared: Vec::new(),
            generations: Generations::default(),
            eviction: Eviction::default(),
            placement,
            slots,
        }
    }

    /// Shows records that were here as of an epoch in canonical order, with the content that `content` says each has, if any.
    pub(crate) fn walk<'a>(
        &'a self,
        from: Position,
        as_of: Epoch,
        content: impl Fn(RecordId, &'a Record) -> Option<(&'a Cell, Gsn)>,
        mut visit: impl FnMut(Entry<'a>) -> bool,
    ) {
        // Records of one position: a key in several databases, or keys whose hashes agree.
        let mut equals: Vec<(RecordId, &Record)> = Vec::new();
        let slots = from.slot().max(self.slots.start)..self.slots.end;
        let mut entries = slots.flat_map(|slot| {
            let tag = if slot == from.slot() { from.tag() } else { 0 };
            let entries =
                self.index_at(slot, as_of).into_iter().flat_map(move |index| index.entries_from(tag));
            entries.map(move |(tag, id)| (Position(Position::of_slot(slot).0 | u64::from(tag)), id))
        });
        // Records that follow each other in this order lie anywhere: their misses overlap.
        let mut next: VecDeque<(Position, RecordId)> = entries.by_ref().take(AHEAD).collect();
        next.iter().for_each(|(_, id)| self.fetch_line(*id));
        next.iter().take(OLDERS_AHEAD).for_each(|(_, id)| self.versions.fetch_newest(*id));
        next.iter().take(VALUES_AHEAD).for_each(|(_, id)| self.fetch_shown(*id));
        while let Some((position, id)) = next.pop_front() {
            if let Some(last) = entries.next() {
                self.fetch_line(last.1);
                next.push_back(last);
            }
            next.get(OLDERS_AHEAD).into_iter().for_each(|(_, id)| self.versions.fetch_newest(*id));
            next.get(VALUES_AHEAD).into_iter().for_each(|(_, id)| self.fetch_shown(*id));
            equals.push((id, self.slab.get(id)));
            if next.front().is_some_and(|(next, _)| *next == position) {
                continue;
            }
            equals.sort_unstable_by_key(|(_, record)| (record.db(), record.key()));
            for (id, record) in equals.drain(..) {
                let Some((cell, version)) = content(id, record) else { continue };
                let (db, key) = (record.db(), record.key());
                if !visit(Entry { position, db, key, cell, version }) {
                    return;
                }
            }
        }
    }

    /// Has a record on its way to the cache, and the way to what it held before.
    #[inline]
    fn fetch_line(&self, id: RecordId) {
        fetch(self.slab.get(id));
        self.versions.fetch(id);
    }

    /// The same for what it held before, if it was changed lately: then that is likely to be shown. Else for what it holds.
    #[inline]
    fn fetch_shown(&self, id: RecordId) {
        if !self.versions.fetch_content(id) {
            self.slab.get(id).fetch_heap();
        }
    }

    /// The digest computed from the records themselves, to check the one that is kept.
    pub fn recompute_digest(&self) -> Digest {
        let mut digest = Digest::default();
        let present = self.indexes.iter().flat_map(|index| index.entries_from(0));
        present.filter_map(|(_, id)| hash_of(self.slab.get(id))).for_each(|hash| digest.add(hash));
        digest
    }

    /// The records that were in a slot as of an epoch that is kept, or the present ones; none if they had not come.
    #[inline]
    pub(crate) fn index_at(&self, slot: usize, as_of: Epoch) -> Option<&Index> {
        let present = &self.indexes[slot - self.slots.start];
        if self.generations.is_idle() {
            return Some(present);
        }
        self.generations.index_at(slot, as_of, present)
    }

    /// Whether a record was in its slot as of an epoch that is kept.
    pub(crate) fn was_in(&self, id: RecordId, as_of: Epoch) -> bool {
        let is_its = |hash: KeyHash| {
            let index = self.index_at(hash.slot(), as_of);
            index.is_some_and(|index| index.find(hash.tag(), |other| other == id).is_some())
        };
        self.generations.is_idle() || is_its(self.slab.get(id).hash(&self.placement))
    }

    /// The earliest epoch as of which anybody may ask for records.
    pub(crate) fn horizon(&self) -> Epoch {
        self.versions.needless().min(self.zigzag.point())
    }

    /// Frees at least so many of the records that have gone and that nobody can see, if there are; answers how many it has looked at.
    fn free_gone(&mut self, least: usize) -> usize {
        if self.generations.is_idle() {
            return 0;
        }
        let (dropped, records) = self.generations.next_to_free(self.horizon(), least);
        self.totals.index_resized(dropped, 0);
        for id in &records {
            let record = self.slab.get_mut(*id);
            let cell = std::mem::replace(&mut record.cell, Cell::ABSENT);
            record.version = Gsn::NONE;
            self.totals.value_bytes -= cell.value.map_or(0, |value| value.heap_bytes() as u64);
            self.release_if_absent(*id);
        }
        records.len()
    }

    #[inline]
    fn index_of(&self, hash: KeyHash) -> usize {
        debug_assert!(self.slots.contains(&hash.slot()), "a key of another shard");
        hash.slot().wrapping_sub(self.slots.start)
    }

    /// Frees the place of a record that nothing needs. Its index entry must be gone or going.
    pub(crate) fn free(slab: &mut Slab, totals: &mut Totals, id: RecordId) {
        totals.key_bytes -= slab.get(id).key_heap_bytes() as u64;
        slab.free(id);
    }
}

/// A change in progress: settles totals and versions when it ends, by return or by panic.
struct Change<'a> {
    id: RecordId,
    record: &'a mut Record,
    totals: &'a mut Totals,
    versions: &'a mut Versions,
    before: Share,
    version: Gsn,
    changed: bool,
    /// The newest of the older contents is that of before this change.
    kept: bool,
    /// The sums of the record's slot, if that came of late.
    sums: Option<&'a mut Sums>,
    placement: &'a Placement,
}

impl Drop for Change<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.changed {
            let is_present = self.record.cell.value.is_some();
            debug_assert!(is_present || self.record.cell == Cell::ABSENT, "an absent record expires");
            self.record.version = if is_present { self.version } else { Gsn::NONE };
            self.totals.exchange(self.id, self.record, self.before, self.placement);
        } else if self.kept {
            self.versions.undo_push();
        }
        if let Some(sums) = &mut self.sums {
            sums.count(self.record);
        }
    }
}

impl RecordStore for MemoryStore {
    #[inline]
    fn placement(&self) -> &Placement {
        &self.placement
    }

    #[inline]
    fn find(&self, db: Db, key: &[u8], hash: KeyHash) -> Option<RecordId> {
        self.indexes[self.index_of(hash)].find(hash.tag(), |id| self.slab.get(id).is(db, key))
    }

    #[inline]
    fn find_or_reserve(&mut self, db: Db, key: &[u8], hash: KeyHash) -> RecordId {
        match self.find(db, key, hash) {
            Some(id) => id,
            None => self.reserve(db, key, hash),
        }
    }

    fn prefetch(&self, hashes: impl Iterator<Item = KeyHash> + Clone) {
        // Each pass asks for what it finds by what the pass before has asked for, so that the misses of a pass overlap.
        hashes.clone().for_each(|hash| self.fetch_index(hash));
        for hash in hashes.clone() {
            self.fetch_record(hash);
        }
        let records = hashes.filter_map(|hash| self.indexes[self.index_of(hash)].find(hash.tag(), |_| true));
        records.for_each(|id| self.fetch_value(id));
    }

    fn guess(&self, hashes: impl Iterator<Item = KeyHash> + Clone, records: &mut Vec<Option<RecordId>>) {
        // As above, in three passes, but what the second has found the third need not look for.
        hashes.clone().for_each(|hash| self.fetch_index(hash));
        let first = records.len();
        records.extend(hashes.map(|hash| self.fetch_record(hash)));
        records[first..].iter().flatten().for_each(|id| self.fetch_value(*id));
    }

    #[inline]
    fn fetch_index(&self, hash: KeyHash) {
        self.indexes[self.index_of(hash)].fetch(hash.tag());
    }

    #[inline]
    fn fetch_record(&self, hash: KeyHash) -> Option<RecordId> {
        let record = self.indexes[self.index_of(hash)].find(hash.tag(), |_| true);
        record.into_iter().for_each(|id| self.fetch_line(id));
        record
    }

    #[inline]
    fn fetch_value(&self, id: RecordId) {
        self.slab.find(id).into_iter().for_each(Record::fetch_heap);
    }

    #[inline]
    fn is_of(&self, id: RecordId, db: Db, key: &[u8]) -> bool {
        // There is a place for each number that was ever given, unless all were cleared together.
        let is_present = |record: &Record| {
            let index = &self.indexes[self.index_of(record.hash(&self.placement))];
            self.generations.is_idle()
                || index.find(record.hash(&self.placement).tag(), |other| other == id).is_some()
        };
        self.slab.find(id).is_some_and(|record| record.is(db, key) && is_present(record))
    }

    #[inline]
    fn release_if_absent(&mut self, id: RecordId) {
        let record = self.slab.get(id);
        if record.cell.value.is_none()
            && !record.is_vacant()
            && record.lock() == 0
            && !self.versions.release_later(id)
            && self.zigzag.before(id).is_none()
        {
            let hash = record.hash(&self.placement);
            let (before, after) = match self.generations.remove(hash.slot(), hash.tag(), id) {
                Some(resized) => resized,
                None => {
                    let index = self.index_of(hash);
                    let index = &mut self.indexes[index];
                    let before = index.bytes();
                    index.remove(hash.tag(), id);
                    (before, index.bytes())
                }
            };
            self.totals.index_resized(before, after);
            Self::free(&mut self.slab, &mut self.totals, id);
        }
    }

    #[inline]
    fn key(&self, id: RecordId) -> (Db, &[u8]) {
        let record = self.slab.get(id);
        (record.db(), record.key())
    }

    #[inline]
    fn cell(&self, id: RecordId) -> &Cell {
        &self.slab.get(id).cell
    }

    #[inline]
    fn version(&self, id: RecordId) -> Gsn {
        self.slab.get(id).version
    }

    #[inline]
    fn edit<R>(&mut self, id: RecordId, version: Gsn, change: impl FnOnce(&mut Cell, &mut bool) -> R) -> R {
        self.change(id, version.epoch(), version, change)
    }

    fn take(&mut self, id: RecordId, by: Gsn) -> (Cell, Gsn) {
        let version = self.version(id);
        let cell = self.edit(id, by, |cell, changed| {
            *changed = cell.value.is_some();
            std::mem::take(cell)
        });
        (cell, version)
    }

    fn put_back(&mut self, id: RecordId, cell: Cell, version: Gsn) {
        self.edit(id, version, |place, changed| {
            *place = cell;
            *changed = true;
        });
    }

    fn slots(&self) -> Range<usize> {
        self.slots.clone()
    }

    fn visit<'a>(&'a self, from: Position, visit: impl FnMut(Entry<'a>) -> bool) {
        let content =
            |_, record: &'a Record| record.cell.value.is_some().then_some((&record.cell, record.version));
        self.walk(from, PRESENT, content, visit);
    }

    fn own(&mut self, slots: Range<usize>) {
        if self.slots.is_empty() {
            self.slots = slots.start..slots.start;
        }
        let all = self.slots.start.min(slots.start)..self.slots.end.max(slots.end);
        let (before, after) = (self.slots.start - all.start, all.end - self.slots.end);
        self.indexes.splice(0..0, (0..before).map(|_| Index::default()));
        self.indexes.extend((0..after).map(|_| Index::default()));
        self.totals.own(all.start, before, after);
        self.slots = all;
    }

    fn take_in(&mut self, id: RecordId, cell: Cell, version: Gsn, by: Epoch) {
        self.arrived = self.arrived.max(by);
        let record = self.slab.get(id);
        if self.zigzag.wants_absence(by, id, record, &self.placement) {
            self.zigzag.put(id, Cell::ABSENT, Gsn::NONE);
        }
        self.change(id, by, version, |place, changed| {
            *place = cell;
            *changed = true;
        });
    }

    #[inline]
    fn lock(&self, id: RecordId) -> u32 {
        self.slab.get(id).lock()
    }

    #[inline]
    fn set_lock(&mut self, id: RecordId, word: u32) {
        let record = self.slab.get_mut(id);
        self.locked = self.locked + usize::from(word != 0) - usize::from(record.lock() != 0);
        record.set_lock(word);
    }

    fn expired(&self, now: Millis, from: Position, most: usize) -> (Option<Range<Position>>, Position) {
        let (mut seen, mut last, mut found, mut rest) = (0, None, None, Position::END);
        self.look_for_expired(now, from, |position, id| {
            // What is at one position stays together.
            if seen >= most && last != Some(position) {
                rest = position;
                return false;
            }
            (seen, last) = (seen + 1, Some(position));
            if id.is_some() {
                let first = found.take().map_or(position, |range: Range<Position>| range.start);
                found = Some(first..position.next());
            }
            true
        });
        (found, rest)
    }

    fn table(&mut self, version: Gsn) -> impl Table {
        TableMut { store: self, version }
    }

    fn keep(&mut self, keep: Keep) {
        let mut most = self.versions.keep(keep);
        while let Some(record) = self.versions.free(&mut most) {
            self.release_if_absent(record);
        }
        self.versions.shrink();
        for record in self.zigzag.free_some() {
            self.release_if_absent(record);
        }
        if !self.generations.is_idle() {
            self.generations.forget_arrivals(self.horizon());
        }
    }

    fn free_some(&mut self, mut most: usize) -> bool {
        while let Some(chunk) = self.cleared.last_mut() {
            if most == 0 {
                return true;
            }
            let rest = chunk.len().saturating_sub(most);
            most -= chunk.len() - rest;
            chunk.truncate(rest);
            if rest == 0 {
                self.cleared.pop();
            }
        }
        most > 0 && self.free_gone(most.div_ceil(GONE)) > 0
    }

    fn as_of(&self, epoch: Epoch) -> impl Snapshot {
        Past { store: self, epoch, is_whole: self.arrived <= epoch }
    }

    fn older(&self) -> u64 {
        self.versions.len() as u64
    }

    fn spread(&self) -> Spread {
        self.versions.spread()
    }

    fn point(&mut self, point: Option<Epoch>) {
        self.zigzag.set(point);
    }

    fn capture(&mut self, mut visit: impl FnMut(Entry<'_>) -> bool) -> bool {
        let mut rest = None;
        let content = |id, record| self.zigzag.at_point(id, record);
        self.walk(self.zigzag.captured(), self.zigzag.point(), content, |entry| {
            let goes_on = visit(entry);
            rest = (!goes_on).then_some(entry.position);
            goes_on
        });
        let captured = self.zigzag.capture(rest.unwrap_or(Position::END));
        self.drop_befores(captured);
        rest.is_none()
    }

    fn records_in(&self, slot: usize) -> usize {
        slot.checked_sub(self.slots.start).and_then(|slot| self.indexes.get(slot)).map_or(0, Index::len)
    }

    fn records(&self) -> u32 {
        self.totals.all_records()
    }

    fn digest(&self) -> Digest {
        self.totals.digest(&self.slab)
    }

    fn unsettled(&self) -> usize {
        self.totals.noted()
    }

    fn settle(&mut self, most: usize) {
        self.totals.settle(&mut self.slab, most);
    }

    fn settle_at_once(&mut self) {
        self.totals.settle_at_once(&mut self.slab);
    }

    fn memory(&self) -> Memory {
        Memory {
            records: (self.slab.bytes() + self.totals.noted_bytes() + self.eviction.bytes()) as u64,
            indexes: self.totals.index_bytes,
            keys: self.totals.key_bytes,
            values: self.totals.value_bytes,
            older: self.versions.bytes() + self.zigzag.bytes(),
        }
    }
}

impl MemoryStore {
    /// Clears all records of these databases at once, if there are no others and nobody needs what they held or their places. What
    /// they hold is then freed some at a time: a million values take as long as a thousand transactions.
    pub(crate) fn clear_together(&mut self, goes: impl Fn(Db) -> bool) -> bool {
        let is_free = self.locked == 0 && self.versions.is_idle() && self.zigzag.is_idle();
        if !is_free || (0..=u8::MAX).map(Db).any(|db| !goes(db) && self.totals.records(db) > 0) {
            return false;
        }
        self.indexes.iter_mut().for_each(|index| *index = Index::default());
        self.generations.clear();
        self.eviction = Eviction::default();
        self.cleared.append(&mut self.slab.clear());
        self.totals.clear_all();
        true
    }

    /// Drops all records of a store that nobody uses any more. Their memory is given back [some at a time](RecordStore::free_some), and with
    /// the store only what is left of it.
    pub fn retire(&mut self) {
        self.locked = 0;
        self.clear_together(|_| true);
    }

    /// The same where somebody may ask for what they held: all records go, by their indexes, and are freed once nobody does.
    pub(crate) fn end_together(&mut self, goes: impl Fn(Db) -> bool, by: Epoch) -> bool {
        let is_free = self.locked == 0 && self.generations.is_settled();
        if !is_free || (0..=u8::MAX).map(Db).any(|db| !goes(db) && self.totals.records(db) > 0) {
            return false;
        }
        self.settle(usize::MAX);
        // Of all slots together.
        let mut sums = self.totals.lose_all();
        let used = self.slots.clone().zip(&mut self.indexes).filter(|(_, index)| index.len() > 0);
        for (slot, index) in used {
            self.generations.end(slot, std::mem::take(index), by, std::mem::take(&mut sums));
        }
        true
    }

    /// Changes content in place, on behalf of an epoch.
    #[inline]
    fn change<R>(
        &mut self,
        id: RecordId,
        by: Epoch,
        version: Gsn,
        change: impl FnOnce(&mut Cell, &mut bool) -> R,
    ) -> R {
        let (record, placement) = (self.slab.get_mut(id), &self.placement);
        if let Some(copying) = &mut self.generations.copying {
            copying.note(record, placement);
        }
        let sums = self.generations.discount(record, placement);
        let before = Share::of(record);
        let versions = &mut self.versions;
        // Before it is known whether anything will change: what changes is the content itself, in place.
        let kept = versions.wants(by, id, record, placement);
        if kept {
            versions.push_copy(id, record, by);
        }
        if self.zigzag.wants(by, id, record, placement) {
            self.zigzag.put(id, record.cell.clone(), record.version);
        }
        let totals = &mut self.totals;
        let changed = false;
        let mut state =
            Change { id, record, totals, versions, before, version, changed, kept, sums, placement };
        let Change { record, changed, .. } = &mut state;
        change(&mut record.cell, changed)
    }

    /// Records between these positions need only one copy.
    fn drop_befores(&mut self, positions: Range<Position>) {
        let mut places = Vec::new();
        for slot in positions.start.slot().max(self.slots.start)..self.slots.end {
            let tag = if slot == positions.start.slot() { positions.start.tag() } else { 0 };
            let index = self.index_at(slot, self.zigzag.point());
            for (tag, id) in index.into_iter().flat_map(|index| index.entries_from(tag)) {
                if Position(Position::of_slot(slot).0 | u64::from(tag)) >= positions.end {
                    break;
                }
                places.push(id);
            }
            if Position::of_slot(slot + 1) >= positions.end {
                break;
            }
        }
        for id in places {
            if self.zigzag.drop_before(id) {
                self.release_if_absent(id);
            }
        }
    }

    /// Shows records of slots in which some have an expiry, in order: where they are, and which they are if their time has come.
    /// Goes on for as long as it is told to.
    pub(crate) fn look_for_expired(
        &self,
        now: Millis,
        from: Position,
        mut goes_on: impl FnMut(Position, Option<RecordId>) -> bool,
    ) {
        let slots = from.slot().max(self.slots.start)..self.slots.end;
        let mut entries =
            slots.filter(|slot| self.totals.expiring(slot - self.slots.start) > 0).flat_map(|slot| {
                let tag = if slot == from.slot() { from.tag() } else { 0 };
                let entries = self.indexes[slot - self.slots.start].entries_from(tag);
                entries.map(move |(tag, id)| (Position(Position::of_slot(slot).0 | u64::from(tag)), id))
            });
        let mut next: VecDeque<(Position, RecordId)> = entries.by_ref().take(AHEAD).collect();
        next.iter().for_each(|(_, id)| fetch(self.slab.get(*id)));
        while let Some((position, id)) = next.pop_front() {
            if let Some(last) = entries.next() {
                fetch(self.slab.get(last.1));
                next.push_back(last);
            }
            let is_expired = self.slab.get(id).cell.is_expired(now);
            if !goes_on(position, is_expired.then_some(id)) {
                return;
            }
        }
    }

    /// Adds a placeholder for a key that has no record.
    fn reserve(&mut self, db: Db, key: &[u8], hash: KeyHash) -> RecordId {
        debug_assert_eq!(hash, self.placement.hash_of_record(db, key), "a hash by another placement");
        let id = self.slab.add(db, key);
        self.totals.key_bytes += self.slab.get(id).key_heap_bytes() as u64;
        let index = self.index_of(hash);
        let index = &mut self.indexes[index];
        let before = index.bytes();
        index.insert(hash.tag(), id);
        self.totals.index_resized(before, index.bytes());
        id
    }
}
