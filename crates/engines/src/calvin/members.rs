//! The records in the hands of a compute fragment while it runs: taken out of the store, or lent by other
//! shards, without a copy.

use ordain_model::cell::{CellMut, Journal};
use ordain_model::serial::key_of;
use ordain_model::{Access, Cell, Chunk, Db, Gsn, SlotNo, Txn};
use ordain_store::RecordStore;

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
}

impl<'a> Members<'a> {
    /// Gathers the members of compute fragment `n`, every one of which is here or has been lent.
    pub(crate) fn gather(
        (me, shards): (usize, usize),
        store: &mut impl RecordStore,
        active: &mut Active,
        chunk: &'a Chunk,
        txn: &Txn,
        n: usize,
    ) -> Members<'a> {
        let fragments = chunk.fragments(txn);
        let mut members = Members::default();
        for slot in chunk.plans().inputs_of(&fragments[n]) {
            let fragment = &fragments[slot.0 as usize];
            if !fragment.lent {
                continue;
            }
            let key = key_of(chunk.args(txn), fragment).bytes;
            let writable = fragment.access == Access::Write;
            let owner = owner(fragment, shards).unwrap_or(me);
            let (cell, version) = if owner != me {
                let at = active.borrowed.iter().position(|(s, ..)| s == slot);
                at.map_or((Cell::ABSENT, Gsn::NONE), |at| {
                    let (_, cell, version) = active.borrowed.swap_remove(at);
                    (cell, version)
                })
            } else {
                match store.find(fragment.db, key, fragment.hash) {
                    Some(record) if store.cell(record).is_live(active.now) => store.take(record),
                    Some(record) if writable => {
                        // Its time has come, and a writer makes that final.
                        store.take(record);
                        store.release_if_absent(record);
                        (Cell::ABSENT, Gsn::NONE)
                    }
                    _ => (Cell::ABSENT, Gsn::NONE),
                }
            };
            let before = (txn.abortable && writable && owner == me).then(|| cell.clone());
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

impl ordain_model::Members for Members<'_> {
    fn len(&self) -> usize {
        self.held.len()
    }

    fn find(&self, db: Db, key: &[u8]) -> Option<usize> {
        self.held.iter().position(|h| h.key == key && h.db == db)
    }

    fn cell(&self, member: usize) -> &Cell {
        &self.held[member].cell
    }

    fn version(&self, member: usize) -> Gsn {
        self.held[member].version
    }

    fn cell_mut(&mut self, member: usize) -> Option<CellMut<'_>> {
        let Members { held, journal } = self;
        let Held { cell, changed, writable, .. } = &mut held[member];
        writable.then(|| CellMut::new(cell, changed, Some((journal, member as u32))))
    }

    fn roll_back(&mut self) {
        let Members { held, journal } = self;
        journal.roll_back(0, |member, undo| undo(&mut held[member as usize].cell));
        held.iter_mut().for_each(|h| h.changed = false);
    }
}
