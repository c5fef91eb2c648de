//! Planning and executing the queues of a shard (qstore.md, sections 4.2 to 4.4).

use std::sync::Arc;

use ordain_model::procedure::{Inputs, Target};
use ordain_model::serial::seed_of;
use ordain_model::{Abort, Batch, Cell, Chunk, FragmentContext, Gsn, Placed, SlotNo, Txn};
use ordain_role::Bug;
use ordain_store::{Fetch, RecordStore};

use super::queues::{AHEAD, Answers, Entry, LOT, Lot, Planned, What};
use crate::calvin::Shard;
use crate::calvin::mail::EarlyItem;
use crate::calvin::messages::Item;
use crate::calvin::records::{read_record, write_record};
use crate::calvin::rules::turn_of;
use crate::calvin::state::{Active, Known};

/// How many places ahead each of the three steps is taken in which a record is fetched: enough for their misses to
/// overlap (qstore.md, section 6, prefetch distance).
const DISTANCE: usize = 12;
/// How many places are run between two looks at whether others should have a turn.
const WINDOW: usize = 64;
/// How many places of a queue have their turn before those of another (qstore.md, section 6, `quantum`): all that there
/// usually are, as switching gains nothing while nobody waits.
const QUANTUM: usize = 4096;

impl<S: RecordStore> Shard<S> {
    /// Runs what is in front of a queue, or else plans more; says whether there was anything.
    pub(crate) fn run_queues(&mut self) -> bool {
        if self.turn_left == 0 {
            return false;
        }
        let Some(queues) = &mut self.queues else { return false };
        match queues.due.pop_front() {
            Some(range) => {
                queues.queues[range as usize].is_due = false;
                self.run_range(range);
                true
            }
            None => self.plan(),
        }
    }

    // ---- planning ----------------------------------------------------------------------------------------

    /// Plans the next transactions of the order; says whether there were any that may be planned.
    fn plan(&mut self) -> bool {
        while let Some(batch) = self.next_batch() {
            while let Some(placed) = batch.chunks.get(self.cursor.0) {
                if let Some(txn) = placed.chunk.txns().get(self.cursor.1) {
                    return self.may_plan(txn) && self.plan_lot(&batch, placed);
                }
                self.cursor = (self.cursor.0 + 1, 0);
            }
            self.cursor = (0, 0);
            self.stream.pop_front();
            self.backlog.started((batch.epoch, batch.partition));
        }
        false
    }

    fn may_plan(&self, txn: &Txn) -> bool {
        let Some(queues) = &self.queues else { return false };
        let is_full = self.by_gsn.len() >= self.settings.window || queues.lots.len() >= AHEAD;
        // What is over the whole table waits until all before it is done here.
        let waits = txn.table && (self.unfinished > 0 || !queues.is_idle());
        self.barrier.is_none() && !is_full && !waits
    }

    /// Plans transactions of a chunk from the cursor on: until there are enough, or one that has to wait.
    fn plan_lot(&mut self, batch: &Batch, placed: &Placed) -> bool {
        let Some(queues) = &mut self.queues else { return false };
        let begin = self.cursor.1;
        let number = queues.first.wrapping_add(queues.lots.len() as u32);
        let mut lot = queues.take_spare();
        lot.begin(&placed.chunk, Gsn::new(batch.epoch, batch.partition, placed.base), batch.now, begin);
        let is_stale = placed.chunk.map != *self.maps.now().map();
        let txns = placed.chunk.txns();
        while let Some(txn) = txns.get(self.cursor.1).filter(|_| self.cursor.1 - begin < LOT) {
            // One that runs alone is planned alone.
            if txn.table && self.cursor.1 > begin {
                break;
            }
            if !placed.is_skipped(txn.index) {
                if txn.independent && !txn.table {
                    self.plan_apart(&mut lot, number, is_stale, self.cursor.1);
                } else {
                    self.plan_group(batch, placed.base, (&placed.chunk, is_stale), self.cursor.1);
                }
            }
            self.cursor.1 += 1;
            if txn.table {
                break;
            }
        }
        lot.close(self.cursor.1);
        self.enter(lot);
        true
    }

    /// Puts the fragments of an independent transaction into their queues.
    fn plan_apart(&mut self, lot: &mut Lot, number: u32, is_stale: bool, at: usize) {
        let chunk = lot.chunk.clone();
        let txn = &chunk.txns()[at];
        let gsn = lot.gsn(txn);
        self.started = gsn;
        if is_stale && self.is_turned_back(gsn, &chunk, txn) {
            return;
        }
        if self.settings.bugs.has(Bug::SkipTransaction) && gsn.0 % 97 == 13 {
            return;
        }
        if self.settings.bugs.has(Bug::FlipRecord) && gsn.0 % 89 == 7 {
            self.flip(&chunk, txn);
        }
        let collector = self.collector_of(&chunk, txn);
        let replies_here = collector == self.number;
        lot.replies += usize::from(replies_here);
        lot.note(at, if replies_here { Planned::ToReply } else { Planned::Apart });
        let first = lot.slots_at(at);
        let Shard { queues: Some(queues), maps, settings, number: me, .. } = self else { return };
        let layout = maps.now();
        for (slot, fragment) in (first..).zip(chunk.fragments(txn)) {
            let place = fragment.hash.slot();
            if layout.shard_of(place) == *me {
                let mut entry = Entry::fragment(fragment, (number, at as u32, slot), (&chunk, txn));
                entry.answers = Entry::shard(collector).filter(|_| !fragment.silent);
                let range = queues.range_of(place);
                queues.push(range, entry);
                if settings.bugs.has(Bug::SkipRankOrder) && gsn.0 % 5 == 2 {
                    queues.swap_last(range);
                }
                lot.left += 1;
            } else if replies_here && !fragment.silent {
                lot.missing += 1;
            }
        }
    }

    /// Puts a transaction that cannot be taken apart into the queue of every range that it touches.
    fn plan_group(&mut self, batch: &Batch, base: u32, (chunk, is_stale): (&Arc<Chunk>, bool), at: usize) {
        let Some(mut active) = self.begin(batch, base, (chunk, is_stale), at) else { return };
        let txn = &chunk.txns()[at];
        let number = self.number_of(&active);
        let Shard { queues: Some(queues), maps, number: me, .. } = self else { return };
        for fragment in chunk.fragments(txn) {
            let slot = fragment.hash.slot();
            if fragment.is_keyed() && maps.now().shard_of(slot) == *me {
                let range = queues.range_of(slot);
                if !active.ranges.contains(&range) {
                    active.ranges.push(range);
                    queues.push(range, Entry::group(fragment.hash, number));
                }
            }
        }
        active.locks_left = active.ranges.len();
        let is_ready = active.locks_left == 0;
        self.active[number as usize] = Some(active);
        self.take_early(number);
        if is_ready {
            self.ready.push_back(number);
        }
    }

    /// A lot is planned: it is under way, unless there is nothing of it to do here.
    fn enter(&mut self, mut lot: Lot) {
        let turn = turn_of(lot.base);
        let is_run_here = lot.left > 0;
        lot.is_unsettled = is_run_here;
        if is_run_here {
            self.backlog.count_unsettled(turn, 1);
        }
        // With peers, it is under way until its replies are composed; without, until it has been run.
        if if self.has_peers() { lot.replies > 0 } else { is_run_here } {
            self.backlog.count(turn, 1);
        }
        let Some(queues) = &mut self.queues else { return };
        queues.left += lot.left;
        queues.lots.push_back(lot);
        let place = queues.lots.len() - 1;
        self.take_early_answers(place);
        self.look_after(place);
        if let Some(queues) = &mut self.queues {
            queues.drop_done();
        }
    }

    fn collector_of(&self, chunk: &Chunk, txn: &Txn) -> usize {
        if self.shards() == 1 {
            return self.number;
        }
        chunk.collector(txn, self.maps.now())
    }

    // ---- execution ---------------------------------------------------------------------------------------

    /// Runs a queue from the front until a group is there, or its quantum is used.
    fn run_range(&mut self, range: u16) {
        let Some(queues) = &mut self.queues else { return };
        let queue = &mut queues.queues[range as usize];
        let (entries, mut next) = (std::mem::take(&mut queue.entries), queue.next);
        let end = entries.len().min(next + QUANTUM);
        let mut bare = std::mem::take(&mut queues.bare);
        let mut group = None;
        self.fetch_ahead(&entries, next);
        while next < end && group.is_none() && self.turn_left > 0 {
            let begin = next;
            (next, group) = self.run_window(&entries, begin..end.min(begin + WINDOW), &mut bare);
            if self.has_reads || self.shards() > 1 && !self.by_gsn.is_empty() {
                self.turn_left = self.turn_left.saturating_sub(next - begin);
            }
        }
        let Some(queues) = &mut self.queues else { return };
        queues.bare = bare;
        let queue = &mut queues.queues[range as usize];
        (queue.entries, queue.next) = (entries, next);
        if let Some(number) = group {
            queue.is_held = true;
            if let Some(active) = &mut self.active[number as usize] {
                active.locks_left -= 1;
                if active.locks_left == 0 {
                    self.ready.push_back(number);
                }
            }
        } else if next == queue.entries.len() {
            queue.entries.clear();
            queue.next = 0;
        } else {
            queue.is_due = true;
            queues.due.push_back(range);
        }
        queues.drop_done();
    }

    /// Runs some places of a queue; answers the place in front afterwards, and the group that is there.
    fn run_window(
        &mut self,
        entries: &[Entry],
        places: std::ops::Range<usize>,
        bare: &mut Active,
    ) -> (usize, Option<u32>) {
        let mut at = places.start;
        while at < places.end {
            let Entry { lot: number, what, txn, .. } = entries[at];
            if what == What::Group {
                return (at, Some(txn));
            }
            // All that follow each other of one lot: its state is looked up once.
            let place = self.queues.as_ref().map_or(0, |queues| queues.place_of(number));
            let Some(lot) = self.queues.as_mut().and_then(|queues| queues.lots.get_mut(place)) else {
                self.broken.get_or_insert(format!(
                    "shard {}: a queue has a fragment of a lot that is gone",
                    self.number
                ));
                return (places.end, None);
            };
            let mut lot = std::mem::take(lot);
            self.witness.credit(turn_of(lot.base), || self.store.digest());
            let begin = at;
            let mut arena = lot.slots.take_arena();
            while let Some(entry) = entries[..places.end].get(at)
                && entry.lot == number
                && entry.what != What::Group
            {
                self.fetch_one(entries, at);
                self.run_entry(&mut lot, entry, &mut arena, bare);
                at += 1;
            }
            lot.slots.return_arena(arena);
            lot.left -= at - begin;
            if let Some(queues) = &mut self.queues {
                queues.left -= at - begin;
                queues.lots[place] = lot;
            }
            self.look_after(place);
        }
        (at, None)
    }

    /// Has the first records of a queue on their way, as if the places before had been run.
    fn fetch_ahead(&self, entries: &[Entry], next: usize) {
        for (steps, what) in [(3, Fetch::Index), (2, Fetch::Record), (1, Fetch::Value)] {
            let ahead = entries[next..].iter().take(steps * DISTANCE);
            ahead.for_each(|entry| self.store.fetch(entry.hash, what));
        }
    }

    /// Has one record more on its way, one step further each of three.
    #[inline]
    fn fetch_one(&self, entries: &[Entry], at: usize) {
        for (steps, what) in [(3, Fetch::Index), (2, Fetch::Record), (1, Fetch::Value)] {
            if let Some(ahead) = entries.get(at + steps * DISTANCE) {
                self.store.fetch(ahead.hash, what);
            }
        }
    }

    /// Runs a fragment of an independent transaction.
    #[inline]
    fn run_entry(&mut self, lot: &mut Lot, entry: &Entry, arena: &mut Vec<u8>, bare: &mut Active) {
        let begin = arena.len();
        let gsn = Gsn(lot.base.0 + u64::from(entry.index));
        let result = match (entry.what, self.registry.get(entry.procedure)) {
            (_, None) => Err(Abort::Panic),
            (What::Cover | What::Group, _) => {
                if !Arc::ptr_eq(&bare.chunk, &lot.chunk) {
                    bare.chunk = lot.chunk.clone();
                }
                (bare.gsn, bare.now, bare.at) = (gsn, lot.now, entry.txn as usize);
                let n = entry.slot - lot.slots_at(bare.at);
                self.execute(bare, &lot.chunk, &lot.chunk.txns()[bare.at], n as usize, arena)
            }
            (what, Some(code)) => {
                let (args_at, len) = entry.args;
                let args = lot.chunk.args_at(args_at..args_at + len, entry.is_logged);
                let cx = FragmentContext {
                    args,
                    db: entry.db,
                    key: entry.key(args),
                    now: lot.now,
                    seed: seed_of(gsn),
                    version: Gsn::NONE,
                    inputs: Inputs::none(),
                    target: Target::Read(&Cell::ABSENT),
                    below: None,
                    locals: &mut self.locals,
                    registry: &self.registry,
                    out: arena,
                };
                let run = |cx: &mut FragmentContext<'_>| code.run(entry.code, cx);
                match what {
                    What::Write => write_record(&mut self.store, (entry.hash, gsn), None, cx, run),
                    _ => read_record(&self.store, entry.hash, cx, run),
                }
            }
        };
        if let Err(abort) = result {
            self.broken.get_or_insert(format!(
                "shard {}: a fragment of transaction {gsn} may not abort, and did: {abort:?}",
                self.number
            ));
        }
        match entry.answers.map(|shard| usize::from(shard.get()) - 1) {
            Some(shard) if shard == self.number => {
                lot.slots.fill_from(SlotNo(entry.slot), begin, arena.len())
            }
            collector => {
                if let Some(shard) = collector {
                    let slot = SlotNo(entry.slot - lot.slots_at(entry.txn as usize));
                    self.letters.add_slot(1 << shard, gsn, slot, &arena[begin..], false);
                }
                arena.truncate(begin);
            }
        }
    }

    /// Goes on with a lot as far as it has come: its records are settled, its replies composed.
    fn look_after(&mut self, place: usize) {
        let has_peers = self.has_peers();
        let Some(lot) = self.queues.as_mut().and_then(|queues| queues.lots.get_mut(place)) else { return };
        let turn = turn_of(lot.base);
        if lot.left == 0 && std::mem::take(&mut lot.is_unsettled) {
            self.backlog.count_unsettled(turn, -1);
            if !has_peers {
                self.backlog.count(turn, -1);
            }
        }
        if !lot.is_done() || lot.replies == 0 {
            return;
        }
        let mut lot = std::mem::take(lot);
        for (at, txn) in lot.txns.clone().zip(&lot.chunk.txns()[lot.txns.clone()]) {
            if lot.planned(at) == Planned::ToReply {
                let answers = Answers { slots: &lot.slots, at: lot.slots_at(at) };
                self.conclude(&lot.chunk, txn, lot.gsn(txn), &answers, None);
            }
        }
        if has_peers {
            self.backlog.count(turn, -1);
        }
        if let Some(queues) = &mut self.queues {
            lot.replies = 0;
            queues.lots[place] = lot;
        }
    }

    // ---- answers of other shards -------------------------------------------------------------------------

    /// Takes what another shard answered to a fragment of an independent transaction whose reply is composed here; says
    /// no if none waits for it.
    pub(crate) fn take_answer(&mut self, gsn: Gsn, item: &Item, bytes: &[u8]) -> bool {
        let Some(queues) = &mut self.queues else { return false };
        let place = queues.lots.partition_point(|lot| lot.begins_at() <= gsn).checked_sub(1);
        let Some((place, lot)) = place.and_then(|place| Some((place, queues.lots.get_mut(place)?))) else {
            return false;
        };
        let Some(txn) = lot.find(gsn) else { return false };
        let known = match *item {
            Item::Slot { slot, at, len, poisoned: false } => {
                lot.take_answer(txn, slot, &bytes[at as usize..(at + len) as usize])
            }
            _ => Known::Other("something other than an answer"),
        };
        match known {
            Known::New => {
                self.look_after(place);
                if let Some(queues) = &mut self.queues {
                    queues.drop_done();
                }
            }
            Known::Same => self.counts.repeated += 1,
            Known::Other(what) => {
                self.broken.get_or_insert(format!(
                    "shard {} was told of {what} of transaction {gsn}, and it is not what it was told before: one of \
                     the two that said so has diverged",
                    self.number
                ));
            }
        }
        true
    }

    /// Takes what came before its lot was planned.
    fn take_early_answers(&mut self, place: usize) {
        let Some(lot) = self.queues.as_ref().and_then(|queues| queues.lots.get(place)) else { return };
        let end = lot.ends_before();
        while let Some(gsn) = self.early.first().filter(|gsn| *gsn < end) {
            for EarlyItem { item, bytes, .. } in self.early.take(gsn) {
                self.take_answer(gsn, &item, &bytes);
            }
        }
    }
}
