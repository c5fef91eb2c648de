//! The records in the hands of a compute fragment while it runs: taken out of the store, or shipped by other shards, without a
//! copy.

use std::cell::{Cell as Slot, OnceCell};
use std::collections::BTreeMap;

use ordain_model::cell::{CellMut, Journal};
use ordain_model::serial::key_of;
use ordain_model::{
    Abort, Access, Cell, Chunk, Db, Epoch, Fragment, Gsn, KeyHash, Layout, SlotNo, Txn, Version, Writer,
};
use ordain_store::RecordStore;

use super::records::{drop_expired, past_of};
use super::state::{Active, owner};

/// One record.
#[derive(Debug)]
pub(crate) struct Held<'a> {
    pub(crate) db: Db,
    pub(crate) key: &'a [u8],
    pub(crate) slot: SlotNo,
    pub(crate) cell: Cell,
    pub(crate) version: Gsn,
    pub(crate) changed: bool,
    pub(crate) writable: bool,
    /// The shard that owns it.
    pub(crate) owner: usize,
    /// Its content before, if the transaction may yet abort.
    pub(crate) before: Option<Cell>,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Members<'a> {
    pub(crate) held: Vec<Held<'a>>,
    journal: Journal,
    /// The one found last: a script mostly goes on to the next, or stays.
    near: Slot<usize>,
    /// Where each stands, by hash; made when [`FEW`] are exceeded and one is not near.
    index: OnceCell<Vec<(KeyHash, u32)>>,
}

/// Up to so many are compared one by one.
const FEW: usize = 16;

impl<'a> Members<'a> {
    /// Gathers the members of compute fragment `n`, each of which is on this shard or has been shipped to it. Those
    /// that it only reads may be wanted as of the end of an epoch.
    pub(crate) fn gather(
        (me, layout, past): (usize, &Layout, Option<Epoch>),
        store: &mut impl RecordStore,
        active: &mut Active,
        chunk: &'a Chunk,
        txn: &Txn,
        n: usize,
    ) -> Members<'a> {
        let fragments = chunk.fragments(txn);
        let inputs = chunk.plans().inputs_of(&fragments[n]);
        let undoable = active.may_be_undone(txn, n);
        let mut members = Members {
            held: Vec::with_capacity(inputs.len()),
            journal: Journal::whole(),
            ..Members::default()
        };
        for slot in inputs {
            let fragment = &fragments[slot.0 as usize];
            if !fragment.shipped {
                continue;
            }
            let key = key_of(chunk.args(txn), fragment).bytes;
            let writable = fragment.access == Access::Write;
            let owner = owner(fragment, layout).unwrap_or(me);
            let (cell, version) = if owner != me {
                let received_records = active.received_records.get_mut(slot).and_then(Option::take);
                received_records.unwrap_or((Cell::ABSENT, Gsn::NONE))
            } else if let Some(epoch) = past.filter(|_| fragment.snapshot_readable) {
                let state = store.as_of(epoch);
                let (cell, version) = past_of(&state, (fragment.db, key, fragment.hash), active.now);
                (cell.clone(), version)
            } else {
                match store.find(fragment.db, key, fragment.hash) {
                    Some(record) if store.cell(record).is_live(active.now) => store.take(record, active.gsn),
                    Some(record) if writable => {
                        drop_expired(store, active, (txn, fragment), record);
                        (Cell::ABSENT, Gsn::NONE)
                    }
                    _ => (Cell::ABSENT, Gsn::NONE),
                }
            };
            let before = (undoable && writable && owner == me).then(|| cell.clone());
            let db = fragment.db;
            members.held.push(Held {
                db,
                key,
                slot: *slot,
                cell,
                version,
                changed: false,
                writable,
                owner,
                before,
            });
        }
        members
    }
}

impl<'a> Members<'a> {
    /// Makes the members of compute fragment `n` from copies of their records.
    pub(crate) fn of_copies(
        chunk: &'a Chunk,
        txn: &Txn,
        n: usize,
        copies: &mut BTreeMap<SlotNo, (Cell, Gsn)>,
    ) -> Members<'a> {
        let fragments = chunk.fragments(txn);
        let inputs = chunk.plans().inputs_of(&fragments[n]);
        let mut members = Members {
            held: Vec::with_capacity(inputs.len()),
            journal: Journal::whole(),
            ..Members::default()
        };
        for slot in inputs.iter().filter(|slot| fragments[slot.0 as usize].shipped) {
            let fragment = &fragments[slot.0 as usize];
            let (cell, version) = copies.remove(slot).unwrap_or((Cell::ABSENT, Gsn::NONE));
            members.held.push(Held {
                db: fragment.db,
                key: key_of(chunk.args(txn), fragment).bytes,
                slot: *slot,
                cell,
                version,
                changed: false,
                writable: fragment.access == Access::Write,
                owner: 0,
                before: None,
            });
        }
        members
    }
}

/// Refuses a compute fragment with more in its hands than may be shipped: its records stay, and its answer says so.
pub(crate) fn refuse(fragment: &Fragment, out: &mut Vec<u8>) -> Result<(), Abort> {
    Writer(out).too_much();
    if fragment.abortable { Err(Abort::Budget) } else { Ok(()) }
}

impl Members<'_> {
    /// Returns whether the members of compute fragment `n` are together more than its share, bytes, of what may be
    /// shipped. A member in the fragment's own hash slot is always on its shard, and counts for nothing; one that its
    /// owner has held back for this very reason counts for all.
    pub(crate) fn are_beyond(
        &self,
        share: usize,
        chunk: &Chunk,
        txn: &Txn,
        n: usize,
        is_held_back: impl Fn(&SlotNo) -> bool,
    ) -> bool {
        let fragments = chunk.fragments(txn);
        let here = fragments[n].hash.slot();
        let mut carried = 0;
        self.held.iter().any(|held| {
            let shipped = &fragments[held.slot.0 as usize];
            carried += if shipped.hash.slot() == here { 0 } else { held.cell.weight() };
            carried > share || is_held_back(&held.slot)
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

impl ordain_model::Members for Members<'_> {
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
        let Members { held, journal, .. } = self;
        let Held { cell, changed, writable, .. } = &mut held[member];
        writable.then(|| CellMut::new(cell, changed, Some((journal, member as u32))))
    }

    fn undo_bytes(&self) -> usize {
        self.journal.bytes()
    }

    fn roll_back(&mut self) {
        let Members { held, journal, .. } = self;
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
            let mut members = Members::default();
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
