//! Shipped records: those in the hands of a compute fragment while it runs, taken out of their stores or copied.

use std::cell::{Cell as Slot, OnceCell};
use std::collections::BTreeMap;

use ordain_model::cell::{CellMut, Journal};
use ordain_model::{Access, Cell, Chunk, Db, Gsn, KeyHash, SlotNo, Txn, Version};

use crate::step::{Name, name_of};

/// One shipped record.
#[derive(Debug)]
pub struct Held<'a> {
    /// Its database.
    pub db: Db,
    /// Its key.
    pub key: &'a [u8],
    /// The fragment that it is the record of.
    pub slot: SlotNo,
    /// Its content.
    pub cell: Cell,
    /// The version of the content that was shipped.
    pub version: Gsn,
    /// Whether the compute fragment has changed it.
    pub changed: bool,
    /// Whether it is shipped for writing.
    pub writable: bool,
    /// The shard that owns it, where that matters to the executor.
    pub owner: usize,
    /// Its content before, if the transaction may yet abort.
    pub before: Option<Cell>,
}

/// All records of a compute fragment.
#[derive(Debug, Default)]
pub struct ShippedRecords<'a> {
    /// The records, in the order of the fragment's inputs.
    pub held: Vec<Held<'a>>,
    journal: Journal,
    /// The one found last: a script mostly goes on to the next, or stays.
    near: Slot<usize>,
    /// Where each stands, by hash; made when [`FEW`] are exceeded and one is not near.
    index: OnceCell<Vec<(KeyHash, u32)>>,
}

/// Up to so many are compared one by one.
const FEW: usize = 16;

impl<'a> ShippedRecords<'a> {
    /// Gathers the records of compute fragment `n`. `take` finds each by fragment, name, and whether it is for writing, and
    /// returns content, version, owner, and the content before if that has to be kept.
    pub fn gather(
        chunk: &'a Chunk,
        txn: &Txn,
        n: usize,
        mut take: impl FnMut(SlotNo, Name<'a>, bool) -> (Cell, Gsn, usize, Option<Cell>),
    ) -> ShippedRecords<'a> {
        let fragments = chunk.fragments(txn);
        let inputs = chunk.plans().inputs_of(&fragments[n]);
        let mut held = Vec::with_capacity(inputs.len());
        for slot in inputs.iter().filter(|slot| fragments[slot.0 as usize].shipped) {
            let fragment = &fragments[slot.0 as usize];
            let (name, writable) = (name_of(chunk, txn, fragment), fragment.access == Access::Write);
            let (cell, version, owner, before) = take(*slot, name, writable);
            let Name { db, key, .. } = name;
            held.push(Held { db, key, slot: *slot, cell, version, changed: false, writable, owner, before });
        }
        ShippedRecords { held, journal: Journal::whole(), ..ShippedRecords::default() }
    }

    /// Gathers the records of compute fragment `n` from copies, by fragment; one that is missing is absent.
    pub fn of_copies(
        chunk: &'a Chunk,
        txn: &Txn,
        n: usize,
        copies: &mut BTreeMap<SlotNo, (Cell, Gsn)>,
    ) -> ShippedRecords<'a> {
        ShippedRecords::gather(chunk, txn, n, |slot, _, _| {
            let (cell, version) = copies.remove(&slot).unwrap_or((Cell::ABSENT, Gsn::NONE));
            (cell, version, 0, None)
        })
    }

    fn position(&self, is_it: impl Fn(&Held<'_>) -> bool, key: &[u8]) -> Option<usize> {
        if self.held.len() <= FEW {
            return self.held.iter().position(is_it);
        }
        let index = self.index.get_or_init(|| {
            let hashes = self.held.iter().zip(0..).map(|(held, at)| (KeyHash::of(held.key), at));
            let mut index: Vec<_> = hashes.collect();
            index.sort_unstable();
            index
        });
        let hash = KeyHash::of(key);
        let from = index.partition_point(|(other, _)| *other < hash);
        let alike = index[from..].iter().take_while(|(other, _)| *other == hash);
        alike.map(|(_, at)| *at as usize).find(|at| is_it(&self.held[*at]))
    }
}

impl ordain_model::Members for ShippedRecords<'_> {
    fn len(&self) -> usize {
        self.held.len()
    }

    fn find(&self, db: Db, key: &[u8]) -> Option<usize> {
        let is_it = |held: &Held<'_>| held.key == key && held.db == db;
        let near = self.near.get();
        let mut nearby = near..self.held.len().min(near + 2);
        let at = nearby.find(|at| is_it(&self.held[*at])).or_else(|| self.position(is_it, key))?;
        self.near.set(at);
        Some(at)
    }

    fn cell(&self, member: usize) -> &Cell {
        &self.held[member].cell
    }

    fn version(&self, member: usize) -> Version {
        self.held[member].version.into()
    }

    fn cell_mut(&mut self, member: usize) -> Option<CellMut<'_>> {
        let ShippedRecords { held, journal, .. } = self;
        let Held { cell, changed, writable, .. } = &mut held[member];
        writable.then(|| CellMut::new(cell, changed, Some((journal, member as u32))))
    }

    fn undo_bytes(&self) -> usize {
        self.journal.bytes()
    }

    fn roll_back(&mut self) {
        let ShippedRecords { held, journal, .. } = self;
        journal.roll_back(0, |member, undo| undo(&mut held[member as usize].cell));
        held.iter_mut().for_each(|h| h.changed = false);
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::Members as _;

    use super::*;

    #[test]
    fn every_member_is_found_in_any_order() {
        for count in [1, 2, FEW, FEW + 1, 1000] {
            let keys: Vec<String> = (0..count).map(|i| format!("key:{i}")).collect();
            let mut members = ShippedRecords::default();
            for key in &keys {
                for db in [Db(0), Db(1)] {
                    members.held.push(Held {
                        db,
                        key: key.as_bytes(),
                        slot: SlotNo(0),
                        cell: Cell::ABSENT,
                        version: Gsn::NONE,
                        changed: false,
                        writable: true,
                        owner: 0,
                        before: None,
                    });
                }
            }
            let places: Vec<usize> = (0..2 * count).collect();
            for order in [places.clone(), places.iter().rev().copied().collect()] {
                for at in order {
                    let key = keys[at / 2].as_bytes();
                    assert_eq!(members.find(Db(at as u8 % 2), key), Some(at));
                    assert_eq!(members.find(Db(2), key), None);
                }
            }
            assert_eq!(members.find(Db(0), b"key"), None);
        }
    }
}
