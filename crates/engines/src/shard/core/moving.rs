//! Slots change hands (calvin.md, section 8, scenario 17).
//!
//! A move is a transaction over the whole table, so a shard comes to it when everything before it is executed there, and
//! to nothing after it before it is done. From its place on another [layout](Layout) is in force. Shards that
//! lose slots send the records to those that gain them, by letters like all others: whoever was restarted hears them again.
//! A record keeps its content and who wrote it last, so neither digests nor evidence change.
//!
//! A transaction that was planned before, and has its turn after, ends without any effect if one of its slots has moved:
//! whoever takes part by the map that it carries sees that alone, so nobody has to be told.

use std::sync::Arc;

use ordain_model::{
    Chunk, Epoch, Gsn, Isolation, KeyHash, Layout, Map, Micros, OutcomeStatus, Position, Txn,
};
use ordain_role::{Bug, Outbox};
use ordain_sequencer::Sequencing;
use ordain_store::RecordStore;

use super::{Core, before, conclude};
use crate::shard::balance::SMALL;
use crate::shard::maps::{Maps, Moving};
use crate::shard::messages::{Item, Message, MovedRecord};
use crate::shard::state::Known;

/// How many pieces are sent ahead of what is taken.
const AHEAD: u32 = 16;

impl<S: RecordStore> Core<S> {
    /// Another map is in force from the end of the checkpoint that this begins with. To be said before its records come.
    pub(in crate::shard) fn begin_under(&mut self, map: &Map) {
        let layout = self.places.layout.under(map);
        layout.owned_by(self.number).for_each(|slot| self.store.own(slot..slot + 1));
        self.maps = Maps::new(Arc::new(layout));
    }

    /// Has the first shard of the partition know which slots here are large, where it shares out the load.
    pub(in crate::shard) fn tell_sizes(&mut self, out: &mut Outbox<Message>) {
        if self.settings.balance.is_none() || self.partition.len() == 1 {
            return;
        }
        let sized =
            self.maps.now().owned_by(self.number).map(|slot| (slot, self.store.records_in(slot) as u32));
        let slots: Vec<(usize, u32)> = sized.filter(|(_, records)| *records > SMALL).collect();
        if self.number == self.partition.start {
            self.note_sizes(self.number, &slots);
        } else if slots != self.told_sizes {
            self.told_sizes.clone_from(&slots);
            let first = self.places.shards[self.partition.start];
            out.send(first, Sequencing::Large { shard: self.number, slots });
        }
    }

    /// A shard of the partition has so many records in its large slots.
    pub(in crate::shard) fn note_sizes(&mut self, shard: usize, slots: &[(usize, u32)]) {
        if let Some(load) = &mut self.load {
            load.note_sizes(self.maps.now().owned_by(shard), slots);
        }
    }

    /// Looks how the load falls on the shards of the partition, and says so if it should fall otherwise.
    pub(in crate::shard) fn look_at_load(&mut self, now: Micros, out: &mut Outbox<Message>) {
        let Some(load) = &mut self.load else { return };
        let layout = self.maps.now();
        let lanes = load.uneven(now, layout, self.partition.clone());
        if !lanes.is_empty() {
            let partition = layout.partition_of_shard(self.number);
            out.send(self.places.sequencer, Sequencing::Uneven(partition, lanes));
        }
    }

    /// A move's turn has come, after which this layout is in force.
    pub(in crate::shard) fn begin_move(&mut self, gsn: Gsn, after: Layout) {
        let before = self.maps.now().clone();
        for slot in after.owned_by(self.number).filter(|slot| before.shard_of(*slot) != self.number) {
            self.store.own(slot..slot + 1);
        }
        self.moving = Moving::between(gsn, self.number, &before, &after);
        self.maps.change(gsn.epoch(), Arc::new(after));
        self.keep_states();
    }

    /// Sends more of what goes, if a move is under way; says whether there is none, or it is done here.
    pub(in crate::shard) fn go_on_moving(&mut self) -> bool {
        let Some(moving) = &mut self.moving else { return true };
        let gsn = moving.gsn;
        for giving in &mut moving.gives {
            // What was taken may be known before it is sent: this shard was restarted and does it again.
            while !giving.slots.is_empty() && giving.sent < giving.taken + AHEAD {
                // Where a piece ends is a function of what is in it, so that twins send the same pieces.
                let (mut records, mut bytes) = (Vec::new(), 0);
                let mut image = Vec::new();
                while bytes < self.settings.piece
                    && let Some(slot) = giving.slots.front().copied()
                {
                    let (mut names, mut is_all) = (Vec::new(), true);
                    self.store.visit(Position::of_slot(slot), |entry| {
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
                    for (db, key) in names {
                        let Some(id) = self.store.find(db, &key, KeyHash::of_record(db, &key)) else {
                            continue;
                        };
                        let (cell, version) = self.store.take(id, gsn);
                        self.store.release_if_absent(id);
                        records.push(MovedRecord { db, key, cell, version });
                    }
                    if is_all {
                        giving.slots.pop_front();
                    }
                }
                let (number, is_last) = (giving.sent, giving.slots.is_empty());
                self.letters.add(giving.to, gsn, Item::Records { number, is_last, records });
                giving.sent += 1;
            }
        }
        let is_done = moving.is_done();
        if is_done {
            self.moving = None;
        }
        is_done
    }

    /// Takes note of what another shard says of a move.
    pub(in crate::shard) fn note_moved(&mut self, gsn: Gsn, from: usize, item: Item) -> Known {
        // What is said of one that is done here is said again.
        let Some(moving) = self.moving.as_mut().filter(|moving| moving.gsn == gsn) else {
            return Known::Same;
        };
        match item {
            Item::Records { number, is_last, records } => {
                let Some(getting) = moving.gets.iter_mut().find(|getting| getting.from == from) else {
                    return Known::Other("records that are not to come here");
                };
                if !getting.pieces.insert(number) {
                    return Known::Same;
                }
                if is_last {
                    getting.count = Some(number + 1);
                }
                for MovedRecord { db, key, cell, version } in records {
                    let hash = KeyHash::of_record(db, &key);
                    if self.maps.now().shard_of(hash.slot()) != self.number {
                        return Known::Other("a record of a slot that is not to come here");
                    }
                    let record = self.store.find_or_reserve(db, &key, hash);
                    self.store.take_in(record, cell, version, gsn.epoch());
                }
                self.letters.add(from, gsn, Item::Taken(number));
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

    /// A transaction whose turn has come was planned under a map by which its slots are elsewhere: it ends here without any
    /// effect. Whoever would have composed its reply says so, and which map is in force.
    fn turn_back(&mut self, gsn: Gsn, chunk: &Arc<Chunk>, txn: &Txn) {
        if chunk.collector(txn, self.layouts.under(&chunk.map)) != self.number {
            return;
        }
        self.counts.turned_back += 1;
        let ends = (&self.places, &mut self.outcomes, &mut self.sessions);
        let map = self.maps.now().map();
        conclude(ends, (gsn, chunk, txn), OutcomeStatus::Moved, |reply| map.encode(reply));
    }

    /// Whether slots have moved in an epoch, and somebody wants to see the state before it, which is where they were.
    pub(crate) fn has_moved_in(&self, epoch: Epoch) -> bool {
        self.settings.isolation == Isolation::ReadCommitted
            && !Arc::ptr_eq(self.maps.as_of(Epoch(epoch.0.saturating_sub(1))), self.maps.now())
    }

    /// Whether a transaction of a chunk that was planned under another map has a slot that is elsewhere now: then it is
    /// not for this map, and whoever asked for it is told. So is who wants to see the state before the epoch of a slot that
    /// has moved in it: he comes again in a later one.
    pub(crate) fn is_turned_back(&mut self, gsn: Gsn, chunk: &Arc<Chunk>, txn: &Txn) -> bool {
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
