//! Shipped records: they leave for the shard of a compute fragment and come back (`docs/protocols/calvin.md`, C20).

use ordain_execution::{Held, InPlace, Name, ShippedRecords, WRITE_LOCKED, past_of};
use ordain_model::cell::CellMut;
use ordain_model::serial::key_of;
use ordain_model::{Access, Cell, Chunk, Fragment, Gsn, Isolation, SlotNo, Txn};
use ordain_store::RecordStore;

use super::Core;
use crate::shard::messages::Item;
use crate::shard::routes::owner;
use crate::shard::slots::CUT;
use crate::shard::state::{Active, Shipment, ShippedOut};

impl<S: RecordStore> Core<S> {
    /// Gathers the records of compute fragment `n`, each of which is on this shard or has been shipped to it. A
    /// snapshot-readable one may be wanted as of the end of an epoch.
    pub(super) fn gather<'a>(
        &mut self,
        active: &mut Active,
        chunk: &'a Chunk,
        txn: &Txn,
        n: usize,
    ) -> ShippedRecords<'a> {
        let fragments = chunk.fragments(txn);
        let is_past = self.settings.isolation == Isolation::ReadCommitted;
        let past = is_past.then(|| self.seen_by(active.gsn));
        let (me, layout, store) = (self.site.number, self.maps.now(), &mut self.store);
        let undoable = active.may_be_undone(txn, n);
        ShippedRecords::gather(chunk, txn, n, |slot, name, writable| {
            let fragment = &fragments[slot.0 as usize];
            let owner = owner(fragment, layout).unwrap_or(me);
            let (cell, version) = if owner != me {
                let received = active.received_records.get_mut(&slot).and_then(Option::take);
                received.unwrap_or((Cell::ABSENT, Gsn::NONE))
            } else if let Some(epoch) = past.filter(|_| fragment.snapshot_readable) {
                let state = store.as_of(epoch);
                let (cell, version) = past_of(&state, None, name, active.now, &active.past);
                (cell.into_owned(), version)
            } else {
                match store.find(name.db, name.key, name.hash) {
                    Some(record) if store.cell(record).is_live(active.now) => store.take(record, active.gsn),
                    Some(record) if writable => {
                        let undo = (txn.abortable || active.is_speculative).then_some(&mut active.undo);
                        InPlace::new(store, active.gsn, undo).drop_expired(record, name.hash);
                        (Cell::ABSENT, Gsn::NONE)
                    }
                    _ => (Cell::ABSENT, Gsn::NONE),
                }
            };
            let before = (undoable && writable && owner == me).then(|| cell.clone());
            (cell, version, owner, before)
        })
    }

    /// Restores a record of this shard to the place from which it was taken.
    pub(super) fn restore_record(&mut self, active: &mut Active, shipped: &Fragment, held: Held<'_>) {
        let Held { db, key, cell, version, changed, before, .. } = held;
        let known = self.store.find(db, key, shipped.hash);
        if known.is_none() && !changed {
            return;
        }
        let record = known.unwrap_or_else(|| self.store.find_or_reserve(db, key, shipped.hash));
        match before {
            Some(before) if changed => {
                self.store.put_back(record, before, version);
                let tag = active.undo.touch(&mut self.store, record, shipped.hash);
                let journal = &mut active.undo.journal;
                self.store.edit(record, active.gsn, |old, changed| {
                    CellMut::new(old, changed, Some((journal, tag))).replace(cell);
                });
            }
            _ => self.store.put_back(record, cell, if changed { active.gsn } else { version }),
        }
        if self.store.lock(record) == WRITE_LOCKED
            && !(active.is_again && self.undo.holds(record))
            && !active.undo.keeps(&mut self.store, record, shipped.hash)
        {
            self.store.set_lock(record, 0);
        }
        self.store.release_if_absent(record);
    }

    /// Ships the members of this shard to a compute fragment that runs elsewhere, when all fragments before it are
    /// done.
    ///
    /// Not earlier: a fragment between a shipped record's and the compute fragment may be an input of the latter, or
    /// write the record.
    pub(super) fn ship_members(&mut self, active: &mut Active, chunk: &Chunk, txn: &Txn, compute: usize) {
        let fragments = chunk.fragments(txn);
        let to = owner(&fragments[compute], self.maps.now()).unwrap_or(self.site.number);
        let mut back = Vec::new();
        let mut room = self.code.registry.limits().share(txn.carriers);
        for slot in chunk.plans().inputs_of(&fragments[compute]) {
            let fragment = &fragments[slot.0 as usize];
            if fragment.shipped && self.owns(fragment) {
                back.extend(
                    self.ship(active, chunk, txn, *slot, (to, &mut room))
                        .map(|(cell, changed)| (*slot, cell, changed)),
                );
            }
        }
        // All are shipped before one returns, as it was when the compute fragment ran.
        for (slot, cell, changed) in back {
            self.take_returned(active, slot, cell, changed);
        }
    }

    /// Ships the record of a fragment to the shard that computes, if there is room, bytes; returns what has come back
    /// already, if the compute fragment ran before a restart of this shard.
    fn ship(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        slot: SlotNo,
        (to, room): (usize, &mut usize),
    ) -> Option<(Cell, bool)> {
        let fragment = &chunk.fragments(txn)[slot.0 as usize];
        let key = key_of(chunk.args(txn), fragment).bytes;
        let record = self.store.find(fragment.db, key, fragment.hash);
        let live = record.filter(|record| self.store.cell(*record).is_live(active.now));
        let weight = if self.is_past(fragment) {
            let state = self.store.as_of(self.seen_by(active.gsn));
            let name = Name { db: fragment.db, key, hash: fragment.hash };
            past_of(&state, None, name, active.now, &active.past).0.weight()
        } else {
            live.map_or(0, |record| self.store.cell(record).weight())
        };
        if weight > *room {
            // It is too much, whatever other shards ship. From here on nothing is shipped that has any weight.
            *room = 0;
            self.remote.results.add_slot(1 << to, active.called(), slot, CUT, false);
            return None;
        }
        *room -= weight;
        let ((cell, version), back) = self.take_out(active, chunk, txn, slot);
        self.remote.results.add(to, active.called(), Item::Ship { slot, cell, version });
        back
    }

    /// Takes the record of a fragment out for a compute fragment, with its version; and what has come back already,
    /// if the compute fragment ran before a restart of this shard.
    pub(super) fn take_out(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        slot: SlotNo,
    ) -> ((Cell, Gsn), Option<(Cell, bool)>) {
        let fragment = &chunk.fragments(txn)[slot.0 as usize];
        let key = key_of(chunk.args(txn), fragment).bytes;
        let record = self.store.find(fragment.db, key, fragment.hash);
        let live = record.filter(|record| self.store.cell(*record).is_live(active.now));
        let mut back = None;
        let (cell, version) = if fragment.access == Access::Write {
            let (cell, version) = match (live, record) {
                (Some(record), _) => {
                    // It keeps its place in the store while it is away.
                    if self.store.lock(record) == 0 {
                        self.store.set_lock(record, WRITE_LOCKED);
                    }
                    self.store.take(record, active.gsn)
                }
                (None, Some(record)) => {
                    let undo = (txn.abortable || active.is_speculative).then_some(&mut active.undo);
                    InPlace::new(&mut self.store, active.gsn, undo).drop_expired(record, fragment.hash);
                    (Cell::ABSENT, Gsn::NONE)
                }
                (None, None) => (Cell::ABSENT, Gsn::NONE),
            };
            let before = (txn.abortable || active.is_speculative).then(|| cell.clone());
            if let Some(Shipment::Early(cell, changed)) =
                active.shipped.insert(slot, Shipment::Out(ShippedOut { version, before }))
            {
                back = Some((cell, changed));
            }
            active.shipped_out += 1;
            (cell, version)
        } else if self.is_past(fragment) {
            let state = self.store.as_of(self.seen_by(active.gsn));
            let (cell, version) = past_of(
                &state,
                None,
                Name { db: fragment.db, key, hash: fragment.hash },
                active.now,
                &active.past,
            );
            (cell.into_owned(), version)
        } else {
            live.map_or((Cell::ABSENT, Gsn::NONE), |record| {
                (self.store.cell(record).clone(), self.store.version(record))
            })
        };
        ((cell, version), back)
    }
}
