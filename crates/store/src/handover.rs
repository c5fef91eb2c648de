//! Slots that change hands with all that is in them at once (decision 50).
//!
//! Half a million records are not given away in one step. They are *copied* before, some at a time, while their slot is
//! served: the store that has them notes which of them change afterwards, and the one that is to have them keeps the copies
//! beside its own records. When the slot changes hands only what has changed is sent; the rest of it goes here and comes there
//! by its index, whose records were summed up as they were copied.
//!
//! ```text
//!  giver     copy, copy, ..     take what has changed, depart     free_some, free_some, ..
//!  receiver  begin_copies, add_copy, ..            adopt, take_in
//! ```
//!
//! A slot's records that have gone, or have come, in an epoch are a *generation*: readers of past states see that which was in
//! the slot as of their epoch. What has gone is freed some at a time, once nobody can ask for it.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ops::Range;

use ordain_model::table::{Expiring, Piece, weight};
use ordain_model::value::record_hash;
use ordain_model::{Cell, Db, Digest, Epoch, Gsn, Placement, Position};

use crate::index::Index;
use crate::memory::MemoryStore;
use crate::slab::Record;
use crate::totals::hash_of;
use crate::{Entry as Shown, RecordId, RecordStore};

/// What the records of a slot add up to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) databases: BTreeMap<Db, Sum>,
}

/// The sums of a database's records in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) digest: Digest,
    pub(crate) expiring: Expiring,
}

impl Sums {
    /// Counts a record, if it has content.
    fn add(&mut self, db: Db, key: &[u8], cell: &Cell) {
        let Some(value) = &cell.value else { return };
        let sum = self.databases.entry(db).or_default();
        sum.digest.add(record_hash(db, key, value, cell.expires_at));
        sum.expiring.add(cell);
    }

    /// Counts a record of the store, if it has content.
    pub(crate) fn count(&mut self, record: &Record) {
        self.add(record.db(), record.key(), &record.cell);
    }

    /// Takes out again what [`Sums::add`] has counted.
    fn remove(&mut self, record: &Record) {
        let (Some(hash), Some(sum)) = (hash_of(record), self.databases.get_mut(&record.db())) else { return };
        sum.digest.remove(hash);
        sum.expiring.remove(&record.cell);
    }

    /// How many records of a database there are.
    fn records(&self, db: Db) -> u64 {
        self.databases.get(&db).map_or(0, |sum| u64::from(sum.digest.records))
    }

    fn expiring(&self, db: Db) -> Expiring {
        self.databases.get(&db).map_or(Expiring::default(), |sum| sum.expiring)
    }

    fn digest(&self) -> Digest {
        self.databases.values().fold(Digest::default(), |all, sum| all.plus(sum.digest))
    }

    /// How many records there are in all databases.
    pub(crate) fn all_records(&self) -> u32 {
        self.digest().records
    }
}

/// Records that go to another store later, and what has changed of them since they were copied.
#[derive(Debug)]
pub(crate) struct Copying {
    slot: usize,
    /// All before this position are copied.
    next: Position,
    /// How many copies there are.
    copies: u32,
    /// What records add up to that have not changed since they were copied.
    sums: Sums,
    /// Names at copied positions whose records may have changed since, each with whether there is a copy.
    changed: BTreeMap<(Position, Db, Box<[u8]>), bool>,
}

impl Copying {
    /// Nothing of a slot is copied yet.
    fn of(slot: usize) -> Copying {
        let (next, sums) = (Position::of_slot(slot), Sums::default());
        Copying { slot, next, copies: 0, sums, changed: BTreeMap::new() }
    }

    /// A record is about to change.
    pub(crate) fn note(&mut self, record: &Record, placement: &Placement) {
        let position = record.hash(placement).position();
        if position.slot() != self.slot || position >= self.next {
            return;
        }
        if let Entry::Vacant(place) = self.changed.entry((position, record.db(), record.key().into())) {
            place.insert(record.cell.value.is_some());
            self.sums.remove(record);
        }
    }
}

/// Copies of another store's records, which nothing sees before they are adopted.
#[derive(Debug)]
pub(crate) struct Copies {
    slot: usize,
    index: Index,
    sums: Sums,
}

/// When the records of a slot have come, and what the slot's records add up to now.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrival {
    in_epoch: Epoch,
    sums: Sums,
}

/// Records that were in a slot, and are in another store from some epoch on.
#[derive(Debug)]
pub(crate) struct Generation {
    index: Index,
    /// When they came, if it was as copies.
    came: Epoch,
    /// They are not here as of this epoch and later ones.
    left: Epoch,
    /// What they added up to then.
    sums: Sums,
    /// Entries with smaller tags have been freed, unless somebody uses them.
    freed: u32,
    /// All entries have been freed, unless somebody uses them.
    is_freed: bool,
}

impl Generation {
    fn of(index: Index, left: Epoch) -> Generation {
        let (came, sums) = (Epoch(0), Sums::default());
        Generation { index, came, left, sums, freed: 0, is_freed: false }
    }

    /// Whether these were the slot's records as of an epoch.
    fn was_there(&self, epoch: Epoch) -> bool {
        (self.came..self.left).contains(&epoch)
    }
}

/// The generations of a store's slots beside the present ones.
#[derive(Debug, Default)]
pub(crate) struct Generations {
    pub(crate) copying: Option<Box<Copying>>,
    copies: Option<Box<Copies>>,
    /// Arrivals by slot, kept until nobody asks for an epoch before them.
    came: BTreeMap<usize, Arrival>,
    /// Generations that have left, by slot.
    gone: BTreeMap<usize, Vec<Generation>>,
}

impl Generations {
    /// Whether every slot has had the records of one generation only, and there are no copies.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.copies.is_none() && self.came.is_empty() && self.gone.is_empty()
    }

    /// Nobody sees anything but what is present, and that has gone.
    pub(crate) fn clear(&mut self) {
        *self = Generations::default();
    }

    fn leave(&mut self, slot: usize, generation: Generation) {
        self.gone.entry(slot).or_default().push(generation);
    }

    /// Whether no slot's records have come of late.
    pub(crate) fn is_settled(&self) -> bool {
        self.came.is_empty()
    }

    /// All records of a slot have gone in an epoch, after which others may come; they added up to this.
    pub(crate) fn end(&mut self, slot: usize, index: Index, by: Epoch, sums: Sums) {
        let since = Arrival { in_epoch: by, sums: Sums::default() };
        let came = self.came.insert(slot, since).unwrap_or_default().in_epoch;
        self.leave(slot, Generation { came, sums, ..Generation::of(index, by) });
    }

    /// The records that were in a slot as of an epoch: those of a generation, or else the present ones, if these had come.
    pub(crate) fn index_at<'a>(&'a self, slot: usize, epoch: Epoch, present: &'a Index) -> Option<&'a Index> {
        let was_in = self.gone.get(&slot).into_iter().flatten().find(|gone| gone.was_there(epoch));
        let had_come = || self.came.get(&slot).is_none_or(|came| came.in_epoch <= epoch);
        was_in.map(|gone| &gone.index).or_else(|| had_come().then_some(present))
    }

    /// Removes a record's entry from the generation that it is of; says by how much that one's memory has changed.
    pub(crate) fn remove(&mut self, slot: usize, tag: u32, id: RecordId) -> Option<(usize, usize)> {
        let mut gone = self.gone.get_mut(&slot)?.iter_mut();
        let gone = gone.find(|gone| gone.index.find(tag, |other| other == id).is_some())?;
        let before = gone.index.bytes();
        gone.index.remove(tag, id);
        Some((before, gone.index.bytes()))
    }

    /// Drops generations that are empty, and answers the bytes of their indexes; and at least so many records to be freed, if there
    /// are, of a generation that nobody can see.
    pub(crate) fn next_to_free(&mut self, horizon: Epoch, least: usize) -> (usize, Vec<RecordId>) {
        let mut dropped = 0;
        self.gone.retain(|_, gone| {
            gone.retain(|gone| {
                let stays = gone.index.len() > 0 || gone.left > horizon;
                dropped += if stays { 0 } else { gone.index.bytes() };
                stays
            });
            !gone.is_empty()
        });
        let can_go = |gone: &&mut Generation| gone.left <= horizon && !gone.is_freed;
        let Some(gone) = self.gone.values_mut().flatten().find(can_go) else {
            return (dropped, Vec::new());
        };
        let mut entries = gone.index.entries_from(gone.freed).peekable();
        let mut records = Vec::new();
        let mut last = gone.freed;
        // Those of one tag go together: where the next begin is told by their tag.
        while let Some((tag, id)) = entries.next_if(|(tag, _)| records.len() < least || *tag == last) {
            last = tag;
            records.push(id);
        }
        let next = entries.peek().map(|(tag, _)| *tag);
        drop(entries);
        (gone.freed, gone.is_freed) = (next.unwrap_or_default(), next.is_none());
        (dropped, records)
    }

    /// The sums by which a past state differs from the present one, as far as slots have come or gone since: what is to be added, and
    /// what is to be taken away.
    fn since(&self, epoch: Epoch) -> (impl Iterator<Item = &Sums>, impl Iterator<Item = &Sums>) {
        let gone = self.gone.values().flatten().filter(move |gone| gone.was_there(epoch));
        let had_not_come = self.came.values().filter(move |came| epoch < came.in_epoch);
        (gone.map(|gone| &gone.sums), had_not_come.map(|came| &came.sums))
    }

    /// A record is about to change, whose slot came of late: it does not count for the slot's sums, which are answered, until it is counted
    /// [again](Sums::count).
    pub(crate) fn discount(&mut self, record: &Record, placement: &Placement) -> Option<&mut Sums> {
        if self.came.is_empty() {
            return None;
        }
        let came = self.came.get_mut(&record.hash(placement).slot())?;
        came.sums.remove(record);
        Some(&mut came.sums)
    }

    /// How many records of a database a past state has beyond those of the present one, modulo 2^64.
    pub(crate) fn records_since(&self, epoch: Epoch, db: Db) -> u64 {
        let (more, less) = self.since(epoch);
        let sum = more.fold(0u64, |sum, sums| sum.wrapping_add(sums.records(db)));
        less.fold(sum, |sum, sums| sum.wrapping_sub(sums.records(db)))
    }

    /// The same of what their expiries add up to: what is to be added, and what is to be taken away.
    pub(crate) fn expiring_since(&self, epoch: Epoch, db: Db) -> [Expiring; 2] {
        let (more, less) = self.since(epoch);
        let sum = |all: Expiring, sums: &Sums| {
            let one = sums.expiring(db);
            Expiring { records: all.records + one.records, at_sum_ms: all.at_sum_ms + one.at_sum_ms }
        };
        [more.fold(Expiring::default(), sum), less.fold(Expiring::default(), sum)]
    }

    /// The same of the digest.
    pub(crate) fn digest_since(&self, epoch: Epoch) -> Digest {
        let (more, less) = self.since(epoch);
        let sum = more.fold(Digest::default(), |sum, sums| sum.plus(sums.digest()));
        less.fold(sum, |sum, sums| sum.minus(sums.digest()))
    }

    /// Arrivals that are the same to everybody: as of no epoch before them is anything asked.
    pub(crate) fn forget_arrivals(&mut self, horizon: Epoch) {
        self.came.retain(|_, came| came.in_epoch > horizon);
    }
}

fn heap_bytes(cell: &Cell) -> u64 {
    cell.value.as_ref().map_or(0, |value| value.heap_bytes() as u64)
}

/// Database and key of a record.
pub type Name = (Db, Box<[u8]>);

/// Handing slots over, on the side of the store that gives and of the one that receives.
pub trait Handover {
    /// Shows the records at these positions of a slot, and notes from now on what changes among them and those that were shown
    /// before. The positions go on where the last ended, or begin with a slot, which begins anew then; those after the slot do
    /// not count.
    ///
    /// # Panics
    /// If they do neither.
    fn copy(&mut self, positions: Range<Position>, visit: impl FnMut(Shown<'_>));

    /// Up to which position records are copied that have not been given up: within their slot, or at its end.
    fn copied(&self) -> Option<Position>;

    /// How many copies there are.
    fn copies_made(&self) -> u32;

    /// The names at copied positions whose records have changed since, or may have, in canonical order.
    fn changed(&self) -> Vec<Name>;

    /// Copies changed records anew, in canonical order: shows each as it is now, absent ones too, until there are so many records or bytes
    /// of keys and cells.
    fn copy_changed(&mut self, records: usize, bytes: usize, visit: impl FnMut(&Name, &Cell, Gsn));

    /// Does not note any more what changes.
    fn give_up_copying(&mut self);

    /// All records of a slot that were copied and have not changed are in another store as of the end of this epoch. There must
    /// be no others in it.
    fn depart(&mut self, slot: usize, by: Epoch);

    /// From now on copies of a slot's records come. Those that came before are given up.
    fn begin_copies(&mut self, slot: usize);

    /// Takes the copy of a record, in the place of an earlier one if there was one. Says whether copies of its slot were to
    /// come.
    fn add_copy(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) -> bool;

    /// The copies of a slot's records are its records as of the end of this epoch; they came in earlier ones. Answers how many
    /// they are; none if there are no copies of it.
    fn adopt(&mut self, slot: usize, by: Epoch) -> Option<u32>;

    /// Copies that came are not needed.
    fn give_up_copies(&mut self);

    /// The slot of which there are copies.
    fn copies(&self) -> Option<usize>;
}

impl Handover for MemoryStore {
    fn copy(&mut self, positions: Range<Position>, mut visit: impl FnMut(Shown<'_>)) {
        let slot = positions.start.slot();
        let goes_on = |copying: &mut Box<Copying>| copying.slot == slot && copying.next == positions.start;
        let mut copying = self.generations.copying.take_if(goes_on).unwrap_or_else(|| {
            assert_eq!(positions.start, Position::of_slot(slot), "a slot is copied from its beginning");
            Box::new(Copying::of(slot))
        });
        let end = positions.end.min(Position::of_slot(slot + 1));
        self.visit(positions.start, |entry| {
            let is_in = entry.position < end;
            if is_in {
                copying.copies += 1;
                copying.sums.add(entry.db, entry.key, entry.cell);
                visit(entry);
            }
            is_in
        });
        copying.next = end;
        self.generations.copying = Some(copying);
    }

    fn copied(&self) -> Option<Position> {
        self.generations.copying.as_ref().map(|copying| copying.next)
    }

    fn copies_made(&self) -> u32 {
        self.generations.copying.as_ref().map_or(0, |copying| copying.copies)
    }

    fn changed(&self) -> Vec<Name> {
        let changed = self.generations.copying.iter().flat_map(|copying| &copying.changed);
        changed.map(|((_, db, key), _)| (*db, key.clone())).collect()
    }

    fn copy_changed(&mut self, records: usize, bytes: usize, mut visit: impl FnMut(&Name, &Cell, Gsn)) {
        let Some(mut copying) = self.generations.copying.take() else { return };
        let mut piece = Piece::of(records, bytes);
        while let Some(((position, db, key), is_copied)) = copying.changed.pop_first() {
            let id = self.find(db, &key, self.placement.hash_of_record(db, &key));
            let (cell, version) =
                id.map_or((&Cell::ABSENT, Gsn::NONE), |id| (self.cell(id), self.version(id)));
            if !piece.takes(position, weight(&key, cell)) {
                copying.changed.insert((position, db, key), is_copied);
                break;
            }
            copying.sums.add(db, &key, cell);
            copying.copies = copying.copies + u32::from(cell.value.is_some()) - u32::from(is_copied);
            visit(&(db, key), cell, version);
        }
        self.generations.copying = Some(copying);
    }

    fn give_up_copying(&mut self) {
        self.generations.copying = None;
    }

    fn depart(&mut self, slot: usize, by: Epoch) {
        let Some(copying) = self.generations.copying.take_if(|copying| copying.slot == slot) else { return };
        // What is noted is not in the sums yet.
        self.settle(usize::MAX);
        let at = slot - self.slots.start;
        let index = std::mem::take(&mut self.indexes[at]);
        let is_present = |(_, id): &(u32, RecordId)| self.slab.get(*id).cell.value.is_some();
        debug_assert_eq!(
            index.entries_from(0).filter(is_present).count(),
            copying.sums.all_records() as usize,
            "what departs was copied"
        );
        self.totals.lose(at, &copying.sums);
        self.generations.end(slot, index, by, copying.sums);
    }

    fn begin_copies(&mut self, slot: usize) {
        self.give_up_copies();
        let copies = Copies { slot, index: Index::default(), sums: Sums::default() };
        self.generations.copies = Some(Box::new(copies));
    }

    fn add_copy(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) -> bool {
        let hash = self.placement.hash_of_record(db, key);
        let Some(copies) = self.generations.copies.as_mut().filter(|copies| copies.slot == hash.slot())
        else {
            return false;
        };
        let Copies { index, sums, .. } = &mut **copies;
        let before = index.bytes();
        let earlier = index.find(hash.tag(), |id| self.slab.get(id).is(db, key));
        if let Some(id) = earlier {
            let record = self.slab.get(id);
            sums.remove(record);
            self.totals.value_bytes -= heap_bytes(&record.cell);
            if cell.value.is_none() {
                index.remove(hash.tag(), id);
                self.totals.index_resized(before, index.bytes());
                MemoryStore::free(&mut self.slab, &mut self.totals, id);
                return true;
            }
        } else if cell.value.is_none() {
            return true;
        }
        sums.add(db, key, &cell);
        self.totals.value_bytes += heap_bytes(&cell);
        let id = earlier.unwrap_or_else(|| {
            let id = self.slab.add_settled(db, key);
            index.insert(hash.tag(), id);
            self.totals.key_bytes += self.slab.get(id).key_heap_bytes() as u64;
            id
        });
        self.totals.index_resized(before, index.bytes());
        let record = self.slab.get_mut(id);
        (record.cell, record.version) = (cell, version);
        true
    }

    fn adopt(&mut self, slot: usize, by: Epoch) -> Option<u32> {
        let Copies { index, sums, .. } = *self.generations.copies.take_if(|copies| copies.slot == slot)?;
        let at = slot - self.slots.start;
        let count = sums.all_records();
        self.totals.gain(at, &sums);
        // Records that were here before, and that somebody may still see.
        let before = std::mem::replace(&mut self.indexes[at], index);
        let came = self.generations.came.insert(slot, Arrival { in_epoch: by, sums });
        let came = came.unwrap_or_default().in_epoch;
        if before.len() > 0 {
            self.generations.leave(slot, Generation { came, ..Generation::of(before, by) });
        } else {
            self.totals.index_resized(before.bytes(), 0);
        }
        Some(count)
    }

    fn give_up_copies(&mut self) {
        let Some(copies) = self.generations.copies.take() else { return };
        let Copies { slot, index, .. } = *copies;
        // As if they had left before everything.
        self.generations.leave(slot, Generation::of(index, Epoch(0)));
    }

    fn copies(&self) -> Option<usize> {
        self.generations.copies.as_ref().map(|copies| copies.slot)
    }
}
