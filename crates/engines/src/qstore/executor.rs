//! Planning and executing the queues of a shard (qstore.md, sections 4.2 to 4.4).

use std::ops::Range;
use std::sync::Arc;

use ordain_model::procedure::{Inputs, Target};
use ordain_model::serial::seed_of;
use ordain_model::{Abort, Batch, Cell, Chunk, FragmentContext, Gsn, Isolation, Placed, SlotNo, Txn};
use ordain_role::Bug;
use ordain_store::{Fetch, RecordStore};

use super::queues::{AHEAD, ASIDE, Answers, Entry, LOT, Lot, Planned, Queues, What};
use super::unit::Unit;
use crate::shard::core::{Core, before, turn_of};
use crate::shard::mail::EarlyItem;
use crate::shard::messages::{Item, Round};
use crate::shard::records::{past_of, read_record, write_record};
use crate::shard::state::{Active, Known};
use crate::shard::turns::Turns;

/// How many places ahead each of the three steps is taken in which a record is fetched: enough for their misses to
/// overlap (qstore.md, section 6, prefetch distance).
const DISTANCE: usize = 12;
/// What is fetched of a record, and how many such distances ahead.
const FETCHES: [(usize, Fetch); 3] = [(3, Fetch::Index), (2, Fetch::Record), (1, Fetch::Value)];
/// How many places are run between two looks at whether others should have a turn.
const WINDOW: usize = 64;
/// How many places of a queue have their turn before those of another (qstore.md, section 6, `quantum`): all that there
/// usually are, as switching gains nothing while nobody waits.
const QUANTUM: usize = 4096;

impl<S: RecordStore> Turns<S> for Queues {
    /// Runs what is in front of a queue, or else plans more.
    fn run(&mut self, core: &mut Core<S>) -> bool {
        if core.turn_left == 0 {
            return false;
        }
        if core.settings.isolation == Isolation::ReadCommitted {
            let published = core.backlog.published();
            while let Some(number) = self.wake(published) {
                self.give_turn(core, number);
            }
        }
        match self.due.pop_front() {
            Some(range) => {
                self.queues[range as usize].is_due = false;
                self.run_range(core, range);
                true
            }
            None => self.go_on(core) || self.plan(core),
        }
    }

    fn release(&mut self, core: &mut Core<S>, number: u32, active: &mut Active) {
        if let Some(unit) = &mut self.unit {
            match active.in_unit {
                true => unit.note_done(active),
                false => unit.unhide(core, number, active),
            }
        }
        active.ranges.drain(..).for_each(|range| self.release_range(range));
    }

    /// Takes what another shard answered to a fragment of an independent transaction whose reply is composed here.
    fn take_item(&mut self, core: &mut Core<S>, gsn: Gsn, item: &Item, bytes: &[u8]) -> bool {
        let place = self.lots.partition_point(|lot| lot.begins_at() <= gsn).checked_sub(1);
        let Some((place, lot)) = place.and_then(|place| Some((place, self.lots.get_mut(place)?))) else {
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
                self.look_after(core, place);
                self.drop_done();
            }
            Known::Same => core.counts.repeated += 1,
            Known::Other(what) => {
                core.broken.get_or_insert(format!(
                    "shard {} was told of {what} of transaction {gsn}, and it is not what it was told before: one of \
                     the two that said so has diverged",
                    core.number
                ));
            }
        }
        true
    }

    fn hear(&mut self, core: &Core<S>, from: usize, unit: Gsn, round: Round) -> Known {
        if unit <= self.decided || core.backlog.is_past(turn_of(unit)) {
            return Known::Same;
        }
        self.hear_round(from, unit, round)
    }

    fn first_under_way(&self) -> Option<Gsn> {
        self.unit.as_ref().map(|unit| unit.id).into_iter().chain(self.first_apart()).min()
    }

    fn check(&self) -> Result<(), String> {
        if self.is_empty_if_idle() { Ok(()) } else { Err("idle with something in its queues".into()) }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_shard_lots", self.lots.len() as f64);
        report("ordain_shard_queued_fragments", self.left as f64);
        report("ordain_shard_units_total", self.counts.units as f64);
        report("ordain_shard_undone_total", self.counts.undone as f64);
        report("ordain_shard_tainted_total", self.counts.tainted as f64);
        report("ordain_shard_taint_rounds_total", self.counts.rounds as f64);
    }
}

impl Queues {
    // ---- planning ----------------------------------------------------------------------------------------

    /// Plans the next transactions of the order; says whether there were any that may be planned.
    fn plan<S: RecordStore>(&mut self, core: &mut Core<S>) -> bool {
        if self.unit.as_ref().is_some_and(Unit::is_planned) {
            return false;
        }
        while let Some(batch) = core.next_batch() {
            if self.is_at_end_of_unit(core) {
                return self.close_unit();
            }
            if let Some(cascade) = batch.speculative.filter(|_| self.speculative < batch.epoch) {
                (self.speculative, self.cascade) = (batch.epoch, cascade);
                self.dirt.clear();
                self.open_unit(core, Gsn::new(batch.epoch, batch.partition, 0));
            }
            self.reach(core, (batch.epoch, batch.partition));
            while let Some(placed) = batch.chunks.get(core.cursor.0) {
                if let Some(txn) = placed.chunk.txns().get(core.cursor.1) {
                    if txn.table && self.unit.is_some() && !placed.is_skipped(txn.index) {
                        return self.close_unit();
                    }
                    return self.may_plan(core, txn) && self.plan_lot(core, &batch, placed);
                }
                core.cursor = (core.cursor.0 + 1, 0);
            }
            core.end_batch(&batch);
        }
        if self.is_at_end_of_unit(core) { self.close_unit() } else { false }
    }

    /// Whether there is a unit, and nothing more of its epoch, though the next may have to wait.
    fn is_at_end_of_unit<S>(&self, core: &Core<S>) -> bool {
        let Some(epoch) = self.unit.as_ref().map(|unit| unit.id.epoch()) else { return false };
        core.stream.front().map_or_else(|| core.backlog.has_passed(epoch), |next| next.epoch > epoch)
    }

    /// All of the unit is planned.
    fn close_unit(&mut self) -> bool {
        self.unit.iter_mut().for_each(Unit::close);
        true
    }

    fn may_plan<S: RecordStore>(&self, core: &Core<S>, txn: &Txn) -> bool {
        // Of a unit nothing is over before all of it is planned.
        let may_be_full = self.unit.is_none();
        let is_full = may_be_full && (core.by_gsn.len() >= core.settings.window || self.lots.len() >= AHEAD);
        // What is over the whole table waits until all before it is done here.
        let waits = txn.table && (core.unfinished > 0 || !self.is_idle());
        core.barrier.is_none() && !is_full && !waits
    }

    /// Plans transactions of a chunk from the cursor on: until there are enough, or one that has to wait.
    fn plan_lot<S: RecordStore>(&mut self, core: &mut Core<S>, batch: &Batch, placed: &Placed) -> bool {
        let begin = core.cursor.1;
        let number = self.first.wrapping_add(self.lots.len() as u32);
        let mut lot = self.take_spare();
        lot.begin(&placed.chunk, Gsn::new(batch.epoch, batch.partition, placed.base), batch.now, begin);
        lot.in_unit = self.unit.is_some();
        let is_stale = placed.chunk.map != *core.maps.now().map() || core.has_moved_in(batch.epoch);
        let txns = placed.chunk.txns();
        while let Some(txn) = txns.get(core.cursor.1).filter(|_| core.cursor.1 - begin < LOT) {
            // One that runs alone is planned alone.
            if txn.table && core.cursor.1 > begin {
                break;
            }
            if !placed.is_skipped(txn.index) {
                if txn.independent && !txn.table {
                    self.plan_apart(core, &mut lot, number, is_stale);
                } else if self.plan_group(core, batch, placed.base, (&placed.chunk, is_stale))
                    && txn.table
                    && !txn.read_only
                {
                    self.dirt.clear();
                }
            }
            core.cursor.1 += 1;
            if txn.table {
                if self.speculative == batch.epoch && self.unit.is_none() {
                    self.open_unit(core, Gsn(lot.gsn(txn).0 + 1));
                }
                break;
            }
        }
        lot.close(core.cursor.1);
        self.enter(core, lot);
        true
    }

    /// Puts the fragments of the transaction at the cursor, an independent one, into their queues.
    fn plan_apart<S: RecordStore>(&mut self, core: &mut Core<S>, lot: &mut Lot, number: u32, is_stale: bool) {
        let (chunk, at) = (lot.chunk.clone(), core.cursor.1);
        let txn = &chunk.txns()[at];
        let gsn = lot.gsn(txn);
        core.started = gsn;
        if is_stale && core.is_turned_back(gsn, &chunk, txn) {
            return;
        }
        if core.settings.bugs.has(Bug::SkipTransaction) && gsn.0 % 97 == 13 {
            return;
        }
        if core.settings.bugs.has(Bug::FlipRecord) && gsn.0 % 89 == 7 {
            core.flip(&chunk, txn);
        }
        if let Some(unit) = &mut self.unit {
            unit.note(&chunk, lot.base, lot.now, at);
        }
        let layout = core.maps.now();
        let collector = if core.shards() == 1 { core.number } else { chunk.collector(txn, layout) };
        let replies_here = collector == core.number;
        lot.replies += usize::from(replies_here);
        lot.note(at, if replies_here { Planned::ToReply } else { Planned::Apart });
        let first = lot.slots_at(at);
        for (slot, fragment) in (first..).zip(chunk.fragments(txn)) {
            let place = fragment.hash.slot();
            if layout.shard_of(place) == core.number {
                let is_past = core.is_past(fragment);
                let mut entry = Entry::fragment(fragment, (number, at as u32, slot), (&chunk, txn), is_past);
                entry.answers = Entry::shard(collector).filter(|_| !fragment.silent);
                let range = if is_past { ASIDE } else { self.range_of(place) };
                self.push(range, entry);
                if core.settings.bugs.has(Bug::SkipRankOrder) && gsn.0 % 5 == 2 {
                    self.swap_last(range);
                }
                lot.left += 1;
            } else if replies_here && !fragment.silent {
                lot.missing += 1;
            }
        }
    }

    /// Puts the transaction at the cursor, which cannot be taken apart, into the queue of every range that it touches. Says no
    /// if this shard has nothing to do with it.
    fn plan_group<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        batch: &Batch,
        base: u32,
        (chunk, is_stale): (&Arc<Chunk>, bool),
    ) -> bool {
        let at = core.cursor.1;
        let Some(mut active) = core.begin(batch, base, (chunk, is_stale), at) else { return false };
        let mut unit = self.unit.take();
        if let Some(unit) = &mut unit {
            unit.note(chunk, Gsn::new(batch.epoch, batch.partition, base), batch.now, at);
            (active.in_unit, active.votes_missing) = (true, 0);
        }
        self.enter_group(core, active, unit.as_mut());
        self.unit = unit;
        true
    }

    /// Puts a group into the queue of every range that it touches.
    pub(super) fn enter_group<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        mut active: Box<Active>,
        unit: Option<&mut Unit>,
    ) {
        let chunk = active.chunk.clone();
        let txn = &chunk.txns()[active.at];
        let number = core.number_of(&active);
        let mut looks_back = false;
        for fragment in chunk.fragments(txn) {
            looks_back |= core.is_past(fragment) && core.owns(fragment);
            if core.has_turn(fragment) {
                let range = self.range_of(fragment.hash.slot());
                if !active.ranges.contains(&range) {
                    active.ranges.push(range);
                    self.push(range, Entry::group(fragment.hash, number));
                }
            }
        }
        active.turns_left = active.ranges.len();
        if looks_back && core.backlog.published() < before(active.gsn) {
            active.turns_left += 1;
            self.asleep.push_back((before(active.gsn), number));
        }
        let is_ready = active.turns_left == 0;
        core.take_early(&mut active);
        if let Some(unit) = unit.filter(|_| is_ready) {
            unit.hide(core, number, &active);
        }
        core.active[number as usize] = Some(active);
        if is_ready {
            core.ready.push_back(number);
        }
    }

    /// A lot is planned: it is under way, unless there is nothing of it to do here.
    fn enter<S: RecordStore>(&mut self, core: &mut Core<S>, mut lot: Lot) {
        let turn = turn_of(lot.base);
        let is_run_here = lot.left > 0;
        lot.is_unsettled = is_run_here;
        if is_run_here {
            core.backlog.count_unsettled(turn, 1);
        }
        // With peers, it is under way until its replies are composed; without, until it has been run.
        if if core.has_peers() { lot.replies > 0 } else { is_run_here } {
            core.backlog.count(turn, 1);
        }
        self.left += lot.left;
        self.lots.push_back(lot);
        let place = self.lots.len() - 1;
        self.take_early_answers(core, place);
        self.look_after(core, place);
        self.drop_done();
    }

    // ---- execution ---------------------------------------------------------------------------------------

    /// Runs a queue from the front until a group is there, or its quantum is used.
    fn run_range<S: RecordStore>(&mut self, core: &mut Core<S>, range: u16) {
        let queue = &mut self.queues[range as usize];
        let (entries, mut next) = (std::mem::take(&mut queue.entries), queue.next);
        let most = entries.len().min(next + QUANTUM);
        let mut end = most;
        if range == ASIDE {
            let published = core.backlog.published();
            end = next + entries[next..most].partition_point(|entry| self.is_over(entry, published));
        }
        let mut bare = std::mem::take(&mut self.bare);
        let mut group = None;
        fetch_ahead(&core.store, &entries, next);
        while next < end && group.is_none() && core.turn_left > 0 {
            let begin = next;
            (next, group) = self.run_window(core, &entries, begin..end.min(begin + WINDOW), &mut bare);
            if core.has_reads || core.shards() > 1 && !core.by_gsn.is_empty() {
                core.turn_left = core.turn_left.saturating_sub(next - begin);
            }
        }
        self.bare = bare;
        let queue = &mut self.queues[range as usize];
        (queue.entries, queue.next) = (entries, next);
        if let Some(number) = group {
            queue.is_held = true;
            self.give_turn(core, number);
        } else if next == end && end < most {
            queue.is_held = true;
        } else if next == queue.entries.len() {
            queue.entries.clear();
            queue.next = 0;
        } else {
            queue.is_due = true;
            self.due.push_back(range);
        }
        self.drop_done();
    }

    /// A group has one more of the turns that it needs.
    fn give_turn<S: RecordStore>(&mut self, core: &mut Core<S>, number: u32) {
        let Some(mut active) = core.active[number as usize].take() else { return };
        active.turns_left -= 1;
        if active.turns_left == 0 {
            if let Some(unit) = &mut self.unit {
                unit.hide(core, number, &active);
            }
            core.ready.push_back(number);
        }
        core.active[number as usize] = Some(active);
    }

    /// Runs some places of a queue; answers the place in front afterwards, and the group that is there.
    fn run_window<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        entries: &[Entry],
        places: Range<usize>,
        bare: &mut Active,
    ) -> (usize, Option<u32>) {
        let mut at = places.start;
        while at < places.end {
            let Entry { lot: number, what, txn, .. } = entries[at];
            if what == What::Group {
                return (at, Some(txn));
            }
            // All that follow each other of one lot: its state is looked up once.
            let place = self.place_of(number);
            let Some(lot) = self.lots.get_mut(place) else {
                core.broken.get_or_insert(format!(
                    "shard {}: a queue has a fragment of a lot that is gone",
                    core.number
                ));
                return (places.end, None);
            };
            core.witness.credit(turn_of(lot.base), || core.store.digest());
            let begin = at;
            let mut arena = lot.slots.take_arena();
            while let Some(entry) = entries[..places.end].get(at)
                && entry.lot == number
                && entry.what != What::Group
            {
                fetch_one(&core.store, entries, at);
                run_entry(core, lot, entry, &mut arena, bare);
                at += 1;
            }
            lot.slots.return_arena(arena);
            lot.left -= at - begin;
            self.left -= at - begin;
            self.look_after(core, place);
        }
        (at, None)
    }

    /// Goes on with a lot as far as it has come: its records are settled, its replies composed.
    pub(super) fn look_after<S: RecordStore>(&mut self, core: &mut Core<S>, place: usize) {
        let has_peers = core.has_peers();
        let Some(lot) = self.lots.get_mut(place) else { return };
        let turn = turn_of(lot.base);
        if lot.left == 0 && std::mem::take(&mut lot.is_unsettled) {
            core.backlog.count_unsettled(turn, -1);
            if !has_peers {
                core.backlog.count(turn, -1);
            }
        }
        if !lot.is_done() || lot.replies == 0 || lot.in_unit {
            return;
        }
        for (at, txn) in lot.txns.clone().zip(&lot.chunk.txns()[lot.txns.clone()]) {
            let failure = match lot.planned(at) {
                Planned::ToReply => None,
                Planned::ToAbort => Some((SlotNo(0), Abort::Cascade)),
                Planned::AsGroup | Planned::Apart => continue,
            };
            let answers = Answers { slots: &lot.slots, at: lot.slots_at(at) };
            core.conclude(&lot.chunk, txn, lot.gsn(txn), &answers, failure);
        }
        lot.replies = 0;
        if has_peers {
            core.backlog.count(turn, -1);
        }
    }

    /// Takes what came before its lot was planned.
    fn take_early_answers<S: RecordStore>(&mut self, core: &mut Core<S>, place: usize) {
        let Some(end) = self.lots.get(place).map(Lot::ends_before) else { return };
        while let Some(gsn) = core.early.first().filter(|gsn| *gsn < end) {
            for EarlyItem { item, bytes, .. } in core.early.take(gsn) {
                self.take_item(core, gsn, &item, &bytes);
            }
        }
    }
}

/// Has the first records of a queue on their way, as if the places before had been run.
fn fetch_ahead(store: &impl RecordStore, entries: &[Entry], next: usize) {
    for (steps, what) in FETCHES {
        let ahead = entries[next..].iter().take(steps * DISTANCE);
        ahead.for_each(|entry| store.fetch(entry.hash, what));
    }
}

/// Has one record more on its way, one step further each of three.
#[inline]
fn fetch_one(store: &impl RecordStore, entries: &[Entry], at: usize) {
    for (steps, what) in FETCHES {
        if let Some(ahead) = entries.get(at + steps * DISTANCE) {
            store.fetch(ahead.hash, what);
        }
    }
}

/// Runs a fragment of an independent transaction.
#[inline]
fn run_entry<S: RecordStore>(
    core: &mut Core<S>,
    lot: &mut Lot,
    entry: &Entry,
    arena: &mut Vec<u8>,
    bare: &mut Active,
) {
    let begin = arena.len();
    let gsn = Gsn(lot.base.0 + u64::from(entry.index));
    let past = core.seen_by(gsn);
    let result = match (entry.what, core.registry.get(entry.procedure)) {
        (_, None) => Err(Abort::Panic),
        (What::Cover | What::Group, _) => {
            if !Arc::ptr_eq(&bare.chunk, &lot.chunk) {
                bare.chunk = lot.chunk.clone();
            }
            (bare.gsn, bare.now, bare.at, bare.in_unit) = (gsn, lot.now, entry.txn as usize, lot.in_unit);
            let n = (entry.slot - lot.slots_at(bare.at)) as usize;
            let txn = &lot.chunk.txns()[bare.at];
            core.noting(bare, |core, bare| core.execute(bare, &lot.chunk, txn, n, arena))
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
                locals: &mut core.locals,
                registry: &core.registry,
                out: arena,
            };
            let run = |cx: &mut FragmentContext<'_>| code.run(entry.code, cx);
            match what {
                What::Write => {
                    core.undo.turn = Some(gsn).filter(|_| lot.in_unit);
                    let undo = lot.in_unit.then_some(&mut core.undo);
                    write_record(&mut core.store, (entry.hash, gsn), undo, cx, run)
                }
                What::Past => {
                    let state = core.store.as_of(past);
                    let (cell, version) = past_of(&state, (cx.db, cx.key.bytes, entry.hash), cx.now);
                    run(&mut FragmentContext { target: Target::Read(cell), version, below: None, ..cx })
                }
                _ => read_record(&core.store, entry.hash, cx, run),
            }
        }
    };
    if let Err(abort) = result {
        core.broken.get_or_insert(format!(
            "shard {}: a fragment of transaction {gsn} may not abort, and did: {abort:?}",
            core.number
        ));
    }
    match entry.answers.map(|shard| usize::from(shard.get()) - 1) {
        Some(shard) if shard == core.number => lot.slots.fill_from(SlotNo(entry.slot), begin, arena.len()),
        collector => {
            if let Some(shard) = collector {
                let slot = SlotNo(entry.slot - lot.slots_at(entry.txn as usize));
                core.letters.add_slot(1 << shard, gsn, slot, &arena[begin..], false);
            }
            arena.truncate(begin);
        }
    }
}
