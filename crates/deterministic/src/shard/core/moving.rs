//! Moving slots: records leave for the shards that own them under a new map (`docs/protocols/calvin.md`, C53 to C55).
//!
//! A move is a transaction over the whole table, so a shard comes to it when everything before it is executed there, and
//! to nothing after it before it is done. From its place on another [layout](Layout) is in force. Shards that
//! lose slots send the records to those that gain them, by remote results like all others, so that a restarted shard gets them
//! again. A record keeps its content and its version, so neither digests nor validated reads change.
//!
//! A slot with many records is copied before, a part with each of some transactions ([`CopyPart`]): then little is sent
//! when it moves ([decision 50](../../../../../docs/decisions/0050-copies.md)).
//!
//! A transaction that was planned before a move and has its place after it ends without any effect if one of its slots has
//! moved. Each shard that takes part by the map that it carries sees that alone, so no message is needed.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::sequencing::Sequencing;
use ordain_execution::Name;
use ordain_model::system::CopyPart;
use ordain_model::wire::Codec as _;
use ordain_model::{
    Cell, Chunk, Db, Epoch, Gsn, Isolation, KeyHash, Layout, Map, Micros, OutcomeStatus, Position, Table,
    Txn, system,
};
use ordain_role::{Bug, Outbox};
use ordain_store::{Entry, RecordStore};

use super::capture::SETTLED;
use super::values::{Values, Waiter};
use super::{Core, before};
use crate::shard::balance::SMALL;
use crate::shard::maps::{Copied, Copying, Getting, Giving, Maps, Moving};
use crate::shard::messages::{Copies, Item, Message, MovedRecord};
use crate::shard::state::Known;

/// How many pieces are sent ahead of what is taken.
const AHEAD: u32 = 16;

/// For how many epochs copies are kept since the last were made, until they are given up: some minutes at most, in which no
/// checkpoint is made.
const COPIES_LIVE: u64 = 1 << 14;
/// Copies may be used for [`COPIES_LIVE`] epochs after the last of them were made.
const fn lives(last: Epoch, now: Epoch) -> bool {
    now.0 <= last.0 + COPIES_LIVE
}

/// Takes a record out of a store, to be sent; an absent one if there is none.
fn take<S: RecordStore>(store: &mut S, (db, key): (Db, Vec<u8>), gsn: Gsn) -> MovedRecord {
    let (cell, version) = match store.find(db, &key, store.placement().hash_of_record(db, &key)) {
        Some(id) => {
            let record = store.take(id, gsn);
            store.release_if_absent(id);
            record
        }
        None => (Cell::ABSENT, Gsn::NONE),
    };
    MovedRecord { db, key, cell, version }
}

/// Asks for the evicted values of the next piece of what is given, which has so many bytes; returns whether there are any.
fn wants_piece<S: RecordStore>(
    store: &S,
    values: &mut Option<Values>,
    giving: &Giving,
    (enough, gsn): (usize, Gsn),
) -> bool {
    let Some(tier) = values else { return false };
    let who = Waiter::Ordered(gsn);
    let waited = tier.awaits(&who);
    let (mut waits, mut bytes, mut names) = (false, 0, Vec::new());
    let mut look = |(db, key, hash): (Db, &[u8], KeyHash), cell: &Cell| {
        names.push(hash);
        if let Some(evicted) = cell.evicted() {
            tier.want(evicted, Some(Name { db, key, hash }), who);
            waits = true;
        }
    };
    for (db, key) in giving.copied.iter().flat_map(|copied| &copied.changed) {
        let hash = store.placement().hash_of_record(*db, key);
        if let Some(record) = store.find(*db, key, hash).filter(|_| bytes < enough) {
            look((*db, &key[..], hash), store.cell(record));
            bytes += key.len() + store.cell(record).weight();
        }
    }
    for slot in &giving.slots {
        if bytes >= enough {
            break;
        }
        let copied = giving.copied.as_ref().filter(|copied| copied.slot == *slot);
        store.visit(copied.map_or(Position::of_slot(*slot), |copied| copied.next), |entry| {
            let is_in = entry.position.slot() == *slot && bytes < enough;
            if is_in {
                let hash = store.placement().hash_of_record(entry.db, entry.key);
                look((entry.db, entry.key, hash), entry.cell);
                bytes += entry.key.len() + entry.cell.image_len();
            }
            is_in
        });
    }
    // Values that are in memory stay there until the others have come.
    if waits && !waited {
        names.into_iter().for_each(|hash| tier.hold(hash, who));
    }
    waits
}

impl<S: RecordStore> Core<S> {
    /// Puts the map in force that was at the end of the checkpoint with which this begins. Precedes its records.
    pub(in crate::shard) fn begin_under(&mut self, map: &Map) {
        let layout = self.site.places.layout.under(map);
        layout.owned_by(self.site.number).for_each(|slot| self.store.own(slot..slot + 1));
        self.maps = Maps::new(Arc::new(layout));
    }

    /// Reports to the first shard of the partition which slots here are large, where load is balanced.
    pub(in crate::shard) fn tell_sizes(&mut self, out: &mut Outbox<Message>) {
        if self.settings.balance.is_none() || self.site.partition.len() == 1 {
            return;
        }
        let sized =
            self.maps.now().owned_by(self.site.number).map(|slot| (slot, self.store.records_in(slot) as u32));
        let slots: Vec<(usize, u32)> = sized.filter(|(_, records)| *records > SMALL).collect();
        if self.site.number == self.site.partition.start {
            self.note_sizes(self.site.number, &slots);
        } else if slots != self.upkeep.reported_sizes {
            self.upkeep.reported_sizes.clone_from(&slots);
            let first = self.site.places.shards[self.site.partition.start];
            out.send(first, Sequencing::Large { shard: self.site.number, slots });
        }
    }

    /// Takes the sizes of a shard's large slots.
    pub(in crate::shard) fn note_sizes(&mut self, shard: usize, slots: &[(usize, u32)]) {
        if let Some(load) = &mut self.upkeep.load {
            load.note_sizes(self.maps.now().owned_by(shard), slots);
        }
    }

    /// Evaluates the load of the partition's shards, and proposes moves of slots if it is uneven.
    pub(in crate::shard) fn look_at_load(&mut self, now: Micros, out: &mut Outbox<Message>) {
        let Some(load) = &mut self.upkeep.load else { return };
        let layout = self.maps.now();
        let virtual_shards = load.uneven(now, layout, self.site.partition.clone());
        if !virtual_shards.is_empty() {
            let partition = layout.partition_of_shard(self.site.number);
            out.send(self.site.places.sequencer, Sequencing::Uneven(partition, virtual_shards));
        }
    }

    /// Begins the work of a whole-table transaction that moves slots, or copies a part of one.
    pub(super) fn begin_moving(&mut self, gsn: Gsn, chunk: &Chunk, txn: &Txn) {
        let (procedure, args) = (txn.call.procedure, chunk.args(txn));
        if let Some(after) = system::rearranged(procedure, args, self.maps.now()) {
            self.begin_move(gsn, after);
        }
        if let Some(part) = CopyPart::of(procedure, args) {
            self.begin_copying(gsn, &part);
        }
    }

    /// Begins a move, after which this layout is in force.
    fn begin_move(&mut self, gsn: Gsn, after: Layout) {
        let before = self.maps.now().clone();
        for slot in after.owned_by(self.site.number).filter(|slot| before.shard_of(*slot) != self.site.number)
        {
            self.store.own(slot..slot + 1);
        }
        self.relocation.moving = Moving::between(gsn, self.site.number, &before, &after);
        self.use_copies(gsn.epoch(), &after);
        self.maps.change(gsn.epoch(), Arc::new(after));
        self.keep_states();
    }

    /// Has a move send only the changes of a slot that was copied to where it goes. Copies of a slot that goes
    /// elsewhere are given up.
    fn use_copies(&mut self, epoch: Epoch, after: &Layout) {
        let Some(Copying { slot, to, last }) = self.relocation.copies.copying else { return };
        if after.shard_of(slot) == self.site.number {
            return;
        }
        self.relocation.copies.copying = None;
        let giving = self.relocation.moving.iter_mut().flat_map(|moving| &mut moving.gives);
        let giving = giving.filter(|giving| giving.to == after.shard_of(slot)).find(|_| lives(last, epoch));
        match (giving, self.store.copied()) {
            // In the epoch of its last copies a slot does not go by them: then as of every epoch it is known where they were.
            (Some(giving), Some(next)) if giving.to == to && last < epoch => {
                let (count, mut changed) = (self.store.copies_made(), VecDeque::from(self.store.changed()));
                if self.settings.bugs.has(Bug::KeepStaleCopy) {
                    changed.pop_front();
                }
                giving.copied = Some(Copied { slot, count, changed, next });
            }
            _ => self.store.give_up_copying(),
        }
    }

    /// Begins a transaction that copies a part of a slot to where it is to move.
    fn begin_copying(&mut self, gsn: Gsn, part: &CopyPart) {
        let (now, slot) = (self.maps.now(), part.slot());
        let Some(then) = now.moved(&(slot..slot + 1), part.to) else { return };
        let (giver, to) = (now.shard_of(slot), then.shard_of(slot));
        // One slot is copied at a time: copies of another are given up.
        let is_other = |copying: &mut Copying| (copying.slot, copying.to) != (slot, to);
        if self.relocation.copies.copying.take_if(is_other).is_some() {
            self.store.give_up_copying();
        }
        if self.site.number == to {
            let gets = vec![Getting::from(giver)];
            self.relocation.moving = Some(Moving { gsn, gives: Vec::new(), gets, copies_of: Some(slot) });
        }
        if self.site.number == giver {
            self.relocation.part = Some((gsn, part.clone()));
        }
    }

    /// Copies a part of a slot of this shard, whose values are all in memory.
    fn copy_part(&mut self, gsn: Gsn, part: &CopyPart) {
        let (slot, epoch) = (part.slot(), gsn.epoch());
        let Some(then) = self.maps.now().moved(&(slot..slot + 1), part.to) else { return };
        let to = then.shard_of(slot);
        let goes_on =
            |copying: &Copying| copying.slot == slot && copying.to == to && lives(copying.last, epoch);
        let is_first = part.from == Position::of_slot(slot);
        let copied =
            self.store.copied().filter(|_| self.relocation.copies.copying.as_ref().is_some_and(goes_on));
        let is_whole = part.is_last() && copied == Some(Position::of_slot(slot + 1));
        let is_next = is_whole || copied == Some(part.from);
        let copies = match (is_first, is_next) {
            // The receiver may keep its state of this epoch, which has no copies in it. Copies that were begun before it
            // go on: the receiver has them, and keeps none.
            (true, _) if self.relocation.copies.cut_in == epoch => Copies::Over,
            (true, _) => Copies::First,
            (false, true) => Copies::More,
            (false, false) => Copies::Over,
        };
        let mut records = Vec::new();
        if copies == Copies::Over {
            self.store.give_up_copying();
            self.relocation.copies.copying = None;
        } else {
            if copies == Copies::More {
                self.store.copy_changed(part.records, part.bytes, |(db, key), cell, version| {
                    records.push(MovedRecord { db: *db, key: key.to_vec(), cell: cell.clone(), version });
                });
            }
            if !is_whole {
                let after = self.store.table(gsn).after(part.from, part.records, part.bytes);
                self.store.copy(part.from..after, |entry| {
                    let Entry { db, key, cell, version, .. } = entry;
                    records.push(MovedRecord { db, key: key.to_vec(), cell: cell.clone(), version });
                });
            }
            // Unsettled records would all be settled in the step in which the slot goes.
            self.store.settle(SETTLED);
            self.relocation.copies.copying = Some(Copying { slot, to, last: epoch });
            self.relocation.copies.made += records.len() as u64;
        }
        self.remote.results.add(to, gsn, Item::Records { number: 0, is_last: true, copies, records });
    }

    /// Returns whether copies from here or to here exist: no checkpoint is cut then, as it would not have them.
    pub(in crate::shard) fn has_copies(&self) -> bool {
        self.relocation.copies.copying.is_some() || self.store.copies().is_some()
    }

    /// Gives up copies that have not gone on for long: the move that they were for does not come.
    pub(in crate::shard) fn give_up_old_copies(&mut self) {
        let now = self.order.started.epoch();
        if self.relocation.copies.copying.take_if(|copying| !lives(copying.last, now)).is_some() {
            self.store.give_up_copying();
        }
        // The receiver keeps them for longer than the sender counts on.
        if self.store.copies().is_some() && !lives(Epoch(self.relocation.copies.came_in.0 + COPIES_LIVE), now)
        {
            self.store.give_up_copies();
        }
    }

    /// Sends more records if a move is under way; returns whether there is none, or it is done here.
    pub(in crate::shard) fn go_on_moving(&mut self) -> bool {
        if let Some((gsn, part)) = self.relocation.part.take() {
            if self.wants_slot(part.slot(), gsn) {
                self.relocation.part = Some((gsn, part));
                return false;
            }
            self.copy_part(gsn, &part);
        }
        let Some(moving) = &mut self.relocation.moving else { return true };
        let gsn = moving.gsn;
        for giving in &mut moving.gives {
            // What was taken may be known before it is sent: this shard was restarted and does it again.
            while !giving.slots.is_empty() && giving.sent < giving.taken + AHEAD {
                if wants_piece(&self.store, &mut self.values, giving, (self.settings.piece, gsn)) {
                    return false;
                }
                // Where a piece ends is a function of what is in it, so that members send the same pieces.
                let (mut records, mut bytes) = (Vec::new(), 0);
                let copies =
                    giving.copied.as_ref().map_or(Copies::None, |copied| Copies::Count(copied.count));
                while bytes < self.settings.piece
                    && let Some(copied) = &mut giving.copied
                    && let Some((db, key)) = copied.changed.pop_front()
                {
                    let record = take(&mut self.store, (db, key.into()), gsn);
                    bytes += record.key.len() + record.cell.weight();
                    records.push(record);
                }
                let mut image = Vec::new();
                while bytes < self.settings.piece
                    && let Some(slot) = giving.slots.front().copied()
                {
                    let copied = giving.copied.as_ref().filter(|copied| copied.slot == slot);
                    let from = copied.map_or(Position::of_slot(slot), |copied| copied.next);
                    let (mut names, mut is_all) = (Vec::new(), true);
                    self.store.visit(from, |entry| {
                        let is_in = entry.position.slot() == slot;
                        is_all = !is_in || bytes < self.settings.piece;
                        if is_in && is_all {
                            image.clear();
                            entry.cell.encode(&mut image);
                            bytes += entry.key.len() + image.len();
                            names.push((entry.db, entry.key.to_vec()));
                        }
                        is_in && is_all
                    });
                    records.extend(names.into_iter().map(|name| take(&mut self.store, name, gsn)));
                    if is_all {
                        giving.slots.pop_front();
                        if copied.is_some() {
                            self.store.depart(slot, gsn.epoch());
                        }
                    }
                }
                let (number, is_last) = (giving.sent, giving.slots.is_empty());
                self.remote.results.add(giving.to, gsn, Item::Records { number, is_last, copies, records });
                giving.sent += 1;
            }
        }
        let is_done = moving.is_done();
        if is_done {
            self.relocation.moving = None;
            // Copies of a slot that has arrived without them are of no use.
            if self.store.copies().is_some_and(|slot| self.maps.now().shard_of(slot) == self.site.number) {
                self.store.give_up_copies();
            }
        }
        is_done
    }

    /// Takes an item of a move from another shard.
    pub(in crate::shard) fn note_moved(&mut self, gsn: Gsn, from: usize, item: Item) -> Known {
        // An item of a move that is done here is a repetition.
        let Some(moving) = self.relocation.moving.as_mut().filter(|moving| moving.gsn == gsn) else {
            return Known::Same;
        };
        match item {
            Item::Records { number, is_last, copies, records } => {
                let copies_of = moving.copies_of;
                let Some(getting) = moving.gets.iter_mut().find(|getting| getting.from == from) else {
                    return Known::Other("records that are not to come here");
                };
                if !getting.pieces.insert(number) {
                    return Known::Same;
                }
                if is_last {
                    getting.count = Some(number + 1);
                }
                if let Some(slot) = copies_of {
                    return self.take_copies(gsn.epoch(), slot, copies, records);
                }
                if let Copies::Count(count) = copies
                    && !std::mem::replace(&mut getting.is_adopted, true)
                {
                    let slot = self
                        .store
                        .copies()
                        .filter(|slot| self.maps.now().shard_of(*slot) == self.site.number);
                    if slot.and_then(|slot| self.store.adopt(slot, gsn.epoch())) != Some(count) {
                        return Known::Other("other copies than it has");
                    }
                }
                for MovedRecord { db, key, cell, version } in records {
                    let hash = self.store.placement().hash_of_record(db, &key);
                    if self.maps.now().shard_of(hash.slot()) != self.site.number {
                        return Known::Other("a record of a slot that is not to come here");
                    }
                    let record = self.store.find_or_reserve(db, &key, hash);
                    self.store.take_in(record, cell, version, gsn.epoch());
                    // A copied record may have been deleted since.
                    self.store.release_if_absent(record);
                }
                self.remote.results.add(from, gsn, Item::Taken(number));
                Known::New
            }
            Item::Taken(number) => {
                let Some(giving) = moving.gives.iter_mut().find(|giving| giving.to == from) else {
                    return Known::Other("records that it was not sent");
                };
                if number < giving.taken {
                    return Known::Same;
                }
                giving.taken = number + 1;
                Known::New
            }
            _ => Known::Other("something else"),
        }
    }

    /// Takes copies of a slot.
    fn take_copies(&mut self, epoch: Epoch, slot: usize, copies: Copies, records: Vec<MovedRecord>) -> Known {
        match copies {
            Copies::First => self.store.begin_copies(slot),
            Copies::More => {}
            Copies::Over => self.store.give_up_copies(),
            Copies::None | Copies::Count(_) => return Known::Other("records of a slot that does not move"),
        }
        self.relocation.copies.came_in = epoch;
        let store = &mut self.store;
        let is_copied = |MovedRecord { db, key, cell, version }| store.add_copy(db, &key, cell, version);
        if records.into_iter().all(is_copied) { Known::New } else { Known::Other("copies of another slot") }
    }

    /// Ends a transaction that was planned under a map by which its slots are elsewhere, without any effect. The
    /// shard that would have composed its reply reports that, with the map in force.
    fn turn_back(&mut self, gsn: Gsn, chunk: &Arc<Chunk>, txn: &Txn) {
        if chunk.collector(txn, self.maps.planned.under(&chunk.map)) != self.site.number {
            return;
        }
        self.counts.turned_back += 1;
        let map = self.maps.now().map();
        self.replies
            .conclude(&self.site.places, (gsn, chunk, txn), OutcomeStatus::Moved, |reply| map.encode(reply));
    }

    /// Returns whether slots have moved in an epoch, and reads want the state before it, which is where they were.
    pub fn has_moved_in(&self, epoch: Epoch) -> bool {
        self.settings.isolation == Isolation::ReadCommitted
            && !Arc::ptr_eq(self.maps.as_of(Epoch(epoch.0.saturating_sub(1))), self.maps.now())
    }

    /// Ends a transaction that was planned under another map if one of its slots has moved; returns whether it has. A
    /// read of the state before its epoch, of a slot that has moved in it, is ended too: it is submitted again in a
    /// later epoch.
    pub fn is_turned_back(&mut self, gsn: Gsn, chunk: &Arc<Chunk>, txn: &Txn) -> bool {
        let takes_it = self.settings.bugs.has(Bug::StaleLayout) && gsn.0 % 3 == 1;
        let now = self.maps.now();
        let reads_moved =
            || self.has_moved_in(gsn.epoch()) && chunk.reads_moved(txn, self.maps.as_of(before(gsn)), now);
        let is_moved = !takes_it && (chunk.is_moved(txn, now) || reads_moved());
        if is_moved {
            self.turn_back(gsn, chunk, txn);
        }
        is_moved
    }
}
