//! Remote results received: for transactions that are not started, for those under way, and repeated ones.

use ordain_model::serial::key_of;
use ordain_model::{Cell, Gsn, SlotNo};
use ordain_store::RecordStore;

use super::{Core, batch_of};
use crate::shard::messages::{Item, ShardMessage};
use crate::shard::remote::OutOfOrderItem;
use crate::shard::routes::ShardSet;
use crate::shard::scheduler::Scheduler;
use crate::shard::state::{Active, Known, Shipment, ShippedOut};
use ordain_execution::Held;

impl<S: RecordStore> Core<S> {
    pub(in crate::shard) fn take_remote_result(
        &mut self,
        scheduler: &mut dyn Scheduler<S>,
        remote_result: ShardMessage,
    ) {
        let ShardMessage { from, items, bytes } = remote_result;
        if from >= self.shards() {
            self.broken.get_or_insert(format!(
                "shard {} was sent a remote result by a shard {from}",
                self.site.number
            ));
            return;
        }
        // Another node may repeat what it has sent, when it was restarted or a member substitutes for it.
        let may_repeat = !self.site.partition.contains(&from);
        for (gsn, item) in items {
            if let Item::Round(round) = item {
                let known = scheduler.take_round(self, from, gsn, *round);
                self.note_known(known, from, gsn);
                continue;
            }
            let number = self.active.number(gsn.plain());
            let is_meant = |number: &u32| {
                self.active.get(*number).is_some_and(|active| active.is_again == gsn.is_again())
            };
            let is_to_come =
                if gsn.is_again() { scheduler.expects_again(gsn.plain()) } else { gsn > self.order.started };
            match number.filter(is_meant) {
                Some(number) => {
                    self.take_item(number, from, item, &bytes);
                    self.active.make_ready(number);
                }
                None if is_to_come => self.remote.out_of_order.keep(gsn, from, item, &bytes),
                None if scheduler.take_item(self, gsn, &item, &bytes) => {}
                None if may_repeat => self.counts.repeated += 1,
                // A shard that gives slots away goes on once its records are sent.
                None if matches!(item, Item::Taken(_)) => {}
                None => {
                    self.broken.get_or_insert(format!(
                        "shard {} was sent something of transaction {gsn}, which it has finished: {item:?}",
                        self.site.number
                    ));
                }
            }
        }
    }

    /// Takes the items that came for a transaction before it was started.
    pub fn take_out_of_order(&mut self, active: &mut Active) {
        for OutOfOrderItem { from, item, bytes } in self.remote.out_of_order.take(active.called()) {
            // Records of slots that move here may be among it.
            self.credit(batch_of(active.gsn));
            self.receive(active, from, item, &bytes);
        }
    }

    fn take_item(&mut self, number: u32, from: usize, item: Item, bytes: &[u8]) {
        let Some(mut active) = self.active.take(number) else { return };
        self.credit(batch_of(active.gsn));
        self.receive(&mut active, from, item, bytes);
        self.active.put(number, active);
    }

    fn receive(&mut self, active: &mut Active, from: usize, item: Item, bytes: &[u8]) {
        let known = self.note_item(active, from, item, bytes);
        self.note_known(known, from, active.gsn);
    }

    fn note_known(&mut self, known: Known, from: usize, gsn: Gsn) {
        match known {
            Known::New => {}
            Known::Same => self.counts.repeated += 1,
            Known::Other(what) => {
                self.broken.get_or_insert(format!(
                    "shard {} was sent {what} of transaction {gsn} by shard {from}, and it is not what it was sent \
                     before: one of them has diverged",
                    self.site.number
                ));
            }
        }
    }

    /// Takes an item of another shard for a transaction under way. Each item comes once, or is repeated unchanged.
    fn note_item(&mut self, active: &mut Active, from: usize, item: Item, bytes: &[u8]) -> Known {
        if matches!(item, Item::Records { .. } | Item::Taken(_)) {
            return self.note_moved(active.gsn, from, item);
        }
        let chunk = active.chunk.clone();
        let fragments = chunk.fragments(&chunk.txns()[active.at]);
        let (_, about) = item.what();
        let Some(fragment) = fragments.get(about.0 as usize) else { return Known::Other("a fragment") };
        match item {
            Item::Slot { slot, failed, .. } => {
                let bytes = item.bytes(bytes);
                if fragment.is_table() {
                    if !active.slots.is_missing(slot) {
                        return Known::Same;
                    }
                    return self.take_part(active, slot, from, bytes.to_vec());
                }
                if active.slots.is_missing(slot) {
                    active.slots.fill(slot, bytes, failed);
                    if fragment.only_answers() {
                        active.slots.bound(slot, self.code.registry.limits().reply);
                    }
                    return Known::New;
                }
                Known::again(active.slots.is_same(slot, bytes, failed), "a slot")
            }
            Item::Vote(verdict) => {
                let voter: ShardSet = 1 << from;
                if active.votes_missing & voter == 0 {
                    // The failure of that shard is known, or one of an earlier fragment.
                    let is_known =
                        verdict.is_none_or(|(slot, _)| active.failure.is_some_and(|f| f.0 <= slot));
                    return Known::again(is_known, "a verdict");
                }
                active.votes_missing &= !voter;
                if let Some(failure) = verdict {
                    Active::fail(&mut active.failure, failure);
                }
                Known::New
            }
            Item::Ship { slot, cell, version } => match active.received_records.get(&slot) {
                Some(Some(received_records)) => {
                    Known::again(*received_records == (cell, version), "a shipped record")
                }
                Some(None) => Known::Same,
                None => {
                    active.received_records.insert(slot, Some((cell, version)));
                    Known::New
                }
            },
            Item::Answers { .. }
            | Item::Records { .. }
            | Item::Taken(_)
            | Item::Attestation { .. }
            | Item::Round(_) => Known::Other("something else"),
            Item::Return { slot, cell, changed } => match active.shipped.get(&slot) {
                None => {
                    active.shipped.insert(slot, Shipment::Early(cell, changed));
                    Known::New
                }
                Some(Shipment::Early(before, is_changed)) => {
                    Known::again((before, *is_changed) == (&cell, changed), "a record that comes back")
                }
                Some(Shipment::Back) => Known::Same,
                Some(Shipment::Out(_)) => {
                    self.noting(active, |core, active| core.take_returned(active, slot, cell, changed));
                    Known::New
                }
            },
        }
    }

    /// Takes a record that was shipped for writing and has returned.
    pub(in crate::shard) fn take_returned(
        &mut self,
        active: &mut Active,
        slot: SlotNo,
        cell: Cell,
        changed: bool,
    ) {
        let Some(Shipment::Out(ShippedOut { version, before })) = active.shipped.insert(slot, Shipment::Back)
        else {
            return;
        };
        active.shipped_out -= 1;
        let chunk = active.chunk.clone();
        let txn = &chunk.txns()[active.at];
        let fragment = &chunk.fragments(txn)[slot.0 as usize];
        let key = key_of(chunk.args(txn), fragment).bytes;
        let db = fragment.db;
        let (writable, owner) = (true, self.site.number);
        self.restore_record(
            active,
            fragment,
            Held { db, key, slot, cell, version, changed, writable, owner, before },
        );
    }
}
