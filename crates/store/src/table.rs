//! The operations over all records at once.
//!
//! A lock word is set for a name: whoever waits behind such an operation waits for the record of that name,
//! whatever it will hold. So an operation may empty a record whose lock word is in use, or move the content
//! to another, but never release or rename it. The same goes for a record of which a past state is kept: what was
//! kept was kept of a name.

use std::ops::Range;

use ordain_model::table::{Expiring, Piece, weight};
use ordain_model::{Cell, Db, Digest, Epoch, Gsn, Millis, Placement, Position, Table};

use crate::handover::Handover;
use crate::memory::MemoryStore;
use crate::slab::Record;
use crate::totals::{Share, Size};
use crate::versions::Versions;
use crate::zigzag::ZigZag;
use crate::{RecordId, RecordStore};

/// A store as a table. Content that is moved gets `version`.
#[derive(Debug)]
pub(crate) struct TableMut<'a> {
    pub(crate) store: &'a mut MemoryStore,
    pub(crate) version: Gsn,
}

impl Table for TableMut<'_> {
    fn len(&self, db: Db) -> u64 {
        self.store.totals.records(db)
    }

    fn expiring(&self, db: Db) -> Expiring {
        self.store.totals.expiring_of(db)
    }

    fn scan(&self, db: Db, from: Position, visit: &mut dyn FnMut(Position, &[u8], &Cell) -> bool) {
        self.store.visit(from, |entry| entry.db != db || visit(entry.position, entry.key, entry.cell));
    }

    fn digest(&mut self) -> Digest {
        self.store.settle(usize::MAX);
        self.store.digest()
    }

    fn after(&self, from: Position, records: usize, bytes: usize) -> Position {
        let (mut piece, mut after) = (Piece::of(records, bytes), Position::END);
        self.store.visit(from, |entry| {
            let is_in = entry.position.slot() == from.slot();
            let takes = is_in && piece.takes(entry.position, weight(entry.key, entry.cell));
            if is_in && !takes {
                after = entry.position;
            }
            takes
        });
        after
    }

    fn clear(&mut self, db: Option<Db>) {
        self.store.give_up_copying();
        self.store.give_up_copies();
        let goes = |of: Db| db.map_or(of.home().0 < Db::COUNT, |db| of.home() == db);
        if self.store.clear_together(goes) || self.store.end_together(goes, self.version.epoch()) {
            return;
        }
        let MemoryStore { indexes, slab, totals, versions, zigzag, generations, placement, .. } =
            &mut *self.store;
        let epoch = self.version.epoch();
        for (slot, index) in indexes.iter_mut().enumerate() {
            let before = index.bytes();
            index.retain(|id| {
                let record = slab.get_mut(id);
                if !goes(record.db()) {
                    return true;
                }
                if let Some(size) = Size::of(record) {
                    generations.discount(record, placement);
                    totals.clear_one(slot, size);
                    empty((versions, zigzag, placement), epoch, id, record);
                }
                let stays = record.lock() != 0 || versions.release_later(id) || zigzag.before(id).is_some();
                if !stays {
                    MemoryStore::free(slab, totals, id);
                }
                stays
            });
            totals.index_resized(before, index.bytes());
        }
        (0..=u8::MAX).map(Db).filter(|db| goes(*db)).for_each(|db| totals.cleared(db));
    }

    fn swap(&mut self, a: Db, b: Db) {
        if a == b {
            return;
        }
        self.store.give_up_copying();
        self.store.give_up_copies();
        // Places change their database only where nobody asks for the past.
        let horizon = self.store.horizon();
        self.store.generations.forget_arrivals(horizon);
        self.swap_contents(a, b);
        if a.0 < Db::COUNT && b.0 < Db::COUNT {
            self.swap_contents(a.children(), b.children());
        }
    }

    fn expire(&mut self, now: Millis, positions: Range<Position>) -> u64 {
        let mut expired = Vec::new();
        self.store.look_for_expired(now, positions.start, |position, id| {
            let is_in = position < positions.end;
            expired.extend(id.filter(|_| is_in));
            is_in
        });
        let store = &mut *self.store;
        let epoch = self.version.epoch();
        for &id in &expired {
            let (record, placement) = (store.slab.get_mut(id), &store.placement);
            if let Some(copying) = &mut store.generations.copying {
                copying.note(record, placement);
            }
            store.generations.discount(record, placement);
            let before = Share::of(record);
            empty((&mut store.versions, &mut store.zigzag, placement), epoch, id, record);
            store.totals.exchange(id, record, before, placement);
            store.release_if_absent(id);
        }
        expired.len() as u64
    }
}

/// Takes a record's content away, to where older ones are kept if need be.
fn empty(
    (versions, zigzag, placement): (&mut Versions, &mut ZigZag, &Placement),
    by: Epoch,
    id: RecordId,
    record: &mut Record,
) {
    let kept = versions.wants(by, id, record, placement);
    if zigzag.wants(by, id, record, placement) {
        let cell = if kept { record.cell.clone() } else { std::mem::take(&mut record.cell) };
        zigzag.put(id, cell, record.version);
    }
    if kept {
        versions.push_content(id, record, by);
    }
    record.cell = Cell::ABSENT;
    record.version = Gsn::NONE;
}

impl TableMut<'_> {
    /// Exchanges two databases, and nothing below them.
    fn swap_contents(&mut self, a: Db, b: Db) {
        if self.len(a) + self.len(b) == 0 {
            return;
        }
        for slot in 0..self.store.indexes.len() {
            let both = self.store.indexes[slot].entries_from(0);
            let both = both.filter(|(_, id)| [a, b].contains(&self.store.slab.get(*id).db()));
            let both: Vec<(u32, RecordId)> = both.collect();
            for &(tag, id) in &both {
                self.swap_one(slot, tag, id, a, b);
            }
            for (_, id) in both {
                self.store.release_if_absent(id);
            }
        }
    }

    /// Gives the content of a record of one database to the other, and the other's to it.
    fn swap_one(&mut self, slot: usize, tag: u32, id: RecordId, a: Db, b: Db) {
        let store = &mut *self.store;
        let record = store.slab.get(id);
        let here = record.db();
        let there = if here == a { b } else { a };
        let other = store.indexes[slot].find(tag, |id| store.slab.get(id).is(there, record.key()));
        match other {
            Some(other) => {
                // A pair is seen from both sides, and exchanged once.
                if here == a {
                    let (mine, _) = store.take(id, self.version);
                    let (theirs, _) = store.take(other, self.version);
                    store.put_back(id, theirs, self.version);
                    store.put_back(other, mine, self.version);
                }
            }
            None if record.cell.value.is_none() => {}
            None if record.lock() == 0 && store.versions.is_idle() && store.zigzag.is_idle() => {
                let (cell, _) = store.take(id, self.version);
                store.slab.get_mut(id).rename(there);
                store.put_back(id, cell, self.version);
            }
            None => {
                let key = record.key().to_vec();
                let hash = record.hash(&store.placement);
                let (cell, _) = store.take(id, self.version);
                let other = store.find_or_reserve(there, &key, hash);
                store.put_back(other, cell, self.version);
            }
        }
    }
}
