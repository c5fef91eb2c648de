//! Executing: fragments of independent transactions run in the order of their ranges, and planning batches are answered
//! (`docs/protocols/qstore.md`, Q4 to Q6).

use std::ops::Range;
use std::sync::Arc;

use ordain_execution::{InPlace, Name, Records, past_of};
use ordain_model::procedure::{Inputs, Target};
use ordain_model::serial::seed_of;
use ordain_model::{Abort, Frame, Gsn, SlotNo};
use ordain_store::{RecordId, RecordStore};

use super::queue_prefetch::TOGETHER;
use super::queues::{
    Entry, Need, PAST_READS, Planned, PlanningBatch, QueueScheduler, TransactionSlots, What,
};
use super::ranges::Place;
use ordain_deterministic::shard::{Active, CUT, Core, OutOfOrderItem, Scheduler as _, batch_of};

/// The places that are run between two checks of the budget.
const WINDOW: usize = 64;
/// The places of a queue that are run before those of another (`quantum` of `docs/protocols/qstore.md`, section 5):
/// all that there usually are, as switching gains nothing while nothing waits.
const QUANTUM: usize = 4096;

impl QueueScheduler {
    /// Runs a queue from the front until its quantum is used.
    pub(super) fn run_queue<S: RecordStore>(&mut self, core: &mut Core<S>, number: u16) {
        let queue = &mut self.queues[usize::from(number)];
        let (entries, mut next) = (std::mem::take(&mut queue.entries), queue.next);
        let most = entries.len().min(next + QUANTUM);
        let mut end = most;
        self.fetching.begin(next);
        if number == PAST_READS {
            let published = core.order.backlog.published();
            end = next + entries[next..most].partition_point(|entry| self.is_over(entry, published));
            if core.has_budget() {
                end = self.values_until(core, &entries, next..end);
            }
        }
        while next < end && !core.budget.is_spent() {
            let begin = next;
            next = end.min(begin + WINDOW);
            self.run_window(core, &entries, begin..next);
            if core.reader.has_ready || core.shards() > 1 && !core.active.is_empty() {
                core.budget.spend(next - begin);
            }
        }
        let queue = &mut self.queues[usize::from(number)];
        (queue.entries, queue.next) = (entries, next);
        if next == queue.entries.len() && number == PAST_READS {
            core.past.clear();
        }
        if next == end && end < most {
            queue.is_held = true;
        } else if next == queue.entries.len() {
            queue.entries.clear();
            queue.next = 0;
        } else {
            queue.is_due = true;
            self.due.push_back(number);
        }
        self.drop_done();
    }

    /// Returns the first place, of some in the queue aside, whose value has to come from the disk, and asks for it and for those behind it.
    fn values_until<S: RecordStore>(
        &self,
        core: &mut Core<S>,
        entries: &[Entry],
        places: Range<usize>,
    ) -> usize {
        let end = places.end;
        let mut lacking = places.filter(|at| {
            let entry = &entries[*at];
            let Some(planning) = self.planned.get(self.place_of(entry.planning)) else { return false };
            let (args_at, len) = entry.args;
            let key = entry.key(planning.chunk.args_at(args_at..args_at + len, entry.is_logged)).bytes;
            let past = core.seen_by(Gsn(planning.base.0 + u64::from(entry.index)));
            core.wants_past(Name { db: entry.db, key, hash: entry.hash }, past)
        });
        let first = lacking.next();
        lacking.for_each(drop);
        first.unwrap_or(end)
    }

    /// Removes the front of a range, which needs it no more: the next place is granted.
    pub(super) fn release_range<S: RecordStore>(&mut self, core: &mut Core<S>, range: u16) {
        self.ranges.pop(range);
        loop {
            match self.ranges.front(range) {
                None => return,
                Some(Place::Group(number)) => {
                    let number = *number;
                    // A transaction that would not go on is left alone.
                    match self.groups[number as usize].need {
                        Need::Range(needed) if needed == range => core.active.make_ready(number),
                        Need::All => self.grant(core, number),
                        _ => {}
                    }
                    return;
                }
                Some(Place::Fragment(_)) => {
                    if let Some(Place::Fragment(entry)) = self.ranges.pop(range) {
                        self.fetching.begin(0);
                        self.run_window(core, std::slice::from_ref(&*entry), 0..1);
                        self.drop_done();
                    }
                }
            }
        }
    }

    /// Runs some places of a queue.
    pub(super) fn run_window<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        entries: &[Entry],
        places: Range<usize>,
    ) {
        let mut at = places.start;
        while at < places.end {
            // Consecutive places of one planning batch: its state is looked up once.
            let number = entries[at].planning;
            let place = self.place_of(number);
            let Some(planning) = self.planned.get_mut(place) else {
                core.broken.get_or_insert(format!(
                    "shard {}: a queue has a fragment of a planning that is gone",
                    core.site.number
                ));
                break;
            };
            core.credit(batch_of(planning.base));
            let begin = at;
            let mut arena = planning.slots.take_arena();
            while let Some(entry) = entries[..places.end].get(at)
                && entry.planning == number
            {
                if (at - places.start).is_multiple_of(TOGETHER) {
                    self.fetching.reach(&core.store, entries, at);
                }
                run_entry(core, planning, (entry, self.fetching.guess(at)), &mut arena, &mut self.bare);
                at += 1;
            }
            planning.slots.return_arena(arena);
            planning.left -= at - begin;
            self.left -= at - begin;
            self.finish_ready(core, place);
        }
    }

    /// Finishes what is complete of a planning batch: its records are settled, its replies composed.
    pub(super) fn finish_ready<S: RecordStore>(&mut self, core: &mut Core<S>, place: usize) {
        let has_peers = core.has_peers();
        let Some(planning) = self.planned.get_mut(place) else { return };
        let place = batch_of(planning.base);
        if planning.left == 0 {
            planning.pinned.drain(..).for_each(|hash| core.unpin_value(hash));
        }
        if planning.left == 0 && std::mem::take(&mut planning.is_unsettled) {
            planning.send_answers(&mut core.remote.results);
            core.order.backlog.count_unsettled(place, -1);
            if !has_peers {
                core.order.backlog.count(place, -1);
            }
        }
        if !planning.is_done() || planning.replies == 0 || planning.is_speculative {
            return;
        }
        for (at, txn) in planning.txns.clone().zip(&planning.chunk.txns()[planning.txns.clone()]) {
            let failure = match planning.planned(at) {
                Planned::ToReply => None,
                Planned::ToAbort => Some((SlotNo(0), Abort::Cascade)),
                Planned::AsGroup | Planned::Apart | Planned::ToSend(_) => continue,
            };
            let answers = TransactionSlots { slots: &planning.slots, at: planning.slots_at(at) };
            let is_cut = planning.is_cut(at, core.code.registry.limits().reply);
            core.conclude(&planning.chunk, txn, planning.gsn(txn), (&answers, is_cut, 0), failure);
        }
        planning.replies = 0;
        if has_peers {
            core.order.backlog.count(place, -1);
        }
    }

    /// Takes the answers that came before their planning batch was planned.
    pub(super) fn take_out_of_order_answers<S: RecordStore>(&mut self, core: &mut Core<S>, place: usize) {
        let Some(end) = self.planned.get(place).map(|planning| planning.gsns().end) else { return };
        while let Some(gsn) = core.remote.out_of_order.first().filter(|gsn| *gsn < end) {
            for OutOfOrderItem { item, bytes, .. } in core.remote.out_of_order.take(gsn) {
                self.take_item(core, gsn, &item, &bytes);
            }
        }
    }
}

/// Runs a fragment of an independent transaction.
#[inline]
fn run_entry<S: RecordStore>(
    core: &mut Core<S>,
    planning: &mut PlanningBatch,
    (entry, guess): (&Entry, Option<RecordId>),
    arena: &mut Vec<u8>,
    bare: &mut Active,
) {
    let begin = arena.len();
    let gsn = Gsn(planning.base.0 + u64::from(entry.index));
    core.operator.under_way.begin(gsn.0);
    let past = core.seen_by(gsn);
    let is_seen = || !entry.answers || !planning.is_certain(entry.txn);
    let result = match (entry.what, core.code.registry.get(entry.procedure)) {
        (_, None) => Err(Abort::Panic),
        (What::Read | What::Past, _) if !is_seen() => {
            arena.extend_from_slice(CUT);
            Ok(())
        }
        (What::Parent, _) => {
            if !Arc::ptr_eq(&bare.chunk, &planning.chunk) {
                bare.chunk = planning.chunk.clone();
            }
            (bare.gsn, bare.now, bare.at, bare.is_speculative) =
                (gsn, planning.now, entry.txn as usize, planning.is_speculative);
            let n = (entry.slot - planning.slots_at(bare.at)) as usize;
            let txn = &planning.chunk.txns()[bare.at];
            // Values of past states are the queue's, not a transaction's.
            std::mem::swap(&mut bare.past, &mut core.past);
            let result = core.noting(bare, |core, bare| core.execute(bare, &planning.chunk, txn, n, arena));
            std::mem::swap(&mut bare.past, &mut core.past);
            result
        }
        (what, Some(code)) => {
            let (args_at, len) = entry.args;
            let args = planning.chunk.args_at(args_at..args_at + len, entry.is_logged);
            let (key, now) = (entry.key(args), planning.now);
            let name = Name { db: entry.db, key: key.bytes, hash: entry.hash };
            let (store, undo, locals, registry, past_values) =
                (&mut core.store, &mut core.undo, &mut core.code.locals, &core.code.registry, &core.past);
            let (limits, seed) = (registry.limits(), seed_of(gsn));
            let (share, most, db, inputs) = (limits.carried, limits.reply, entry.db, Inputs::none());
            let frame = Frame { args, db, key, now, seed, inputs, registry, share, most };
            match what {
                What::Write => {
                    undo.writer = Some(gsn).filter(|_| planning.is_speculative);
                    let undo = planning.is_speculative.then_some(undo);
                    InPlace::new(store, gsn, undo).guessing(guess).write(name, now, |cell, version| {
                        code.run(entry.code, &mut frame.on(Target::Write(cell), version, None, locals, arena))
                    })
                }
                What::Past => {
                    let state = store.as_of(past);
                    let (cell, version) = past_of(&state, None, name, now, past_values);
                    let target = Target::Read(&cell);
                    code.run(entry.code, &mut frame.on(target, version.into(), None, locals, arena))
                }
                _ => InPlace::new(store, gsn, None).guessing(guess).read(name, now, |cell, version| {
                    code.run(entry.code, &mut frame.on(Target::Read(cell), version, None, locals, arena))
                }),
            }
        }
    };
    if let Err(abort) = result {
        core.broken.get_or_insert(format!(
            "shard {}: a fragment of transaction {gsn} may not abort, and did: {abort:?}",
            core.site.number
        ));
    }
    if !entry.answers {
        return arena.truncate(begin);
    }
    match planning.is_beyond(entry.txn, &arena[begin..], core.code.registry.limits().reply) {
        true => {
            planning.slots.leave_out(SlotNo(entry.slot));
            arena.truncate(begin);
        }
        false => planning.slots.fill_from(SlotNo(entry.slot), begin, arena.len()),
    }
}
