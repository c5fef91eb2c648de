//! The scheduler: plans the queues of a shard and executes them (`docs/protocols/qstore.md`, Q4 to Q10).

use std::ops::Range;
use std::sync::Arc;

use ordain_execution::{InPlace, Name, Records, past_of};
use ordain_model::procedure::{Inputs, Target};
use ordain_model::serial::seed_of;
use ordain_model::{Abort, Access, Batch, Chunk, Fragment, Frame, Gsn, Isolation, Placed, SlotNo, Txn};
use ordain_role::Bug;
use ordain_store::{RecordId, RecordStore};

use super::queue_prefetch::TOGETHER;
use super::queues::{
    AHEAD, Entry, Group, Need, PAST_READS, PLANNING_BATCH, Planned, PlanningBatch, QueueScheduler,
    TransactionSlots, What,
};
use super::ranges::{Place, RANGES, range_of};
use super::speculation::SpeculativeBatch;
use ordain_deterministic::shard::{
    Active, CUT, Core, Item, Known, OutOfOrderItem, Progress, Round, Scheduler, WireAnswers, batch_of, before,
};

/// The places that are run between two checks of the budget.
const WINDOW: usize = 64;
/// The places of a queue that are run before those of another (`quantum` of `docs/protocols/qstore.md`, section 5):
/// all that there usually are, as switching gains nothing while nothing waits.
const QUANTUM: usize = 4096;
/// The most groups that may be blocked on a node on its own; beyond it the order waits.
const GROUPS: usize = 128;

impl<S: RecordStore> Scheduler<S> for QueueScheduler {
    /// Runs what is in front of a queue, or else plans more of the order.
    fn run(&mut self, core: &mut Core<S>) -> bool {
        if core.budget.is_spent() {
            return false;
        }
        if core.settings.isolation == Isolation::ReadCommitted {
            let published = core.order.backlog.published();
            while let Some(number) = self.wake(published) {
                self.grant(core, number);
            }
        }
        if let Some(queue) = self.due.pop_front() {
            self.queues[usize::from(queue)].is_due = false;
            self.run_queue(core, queue);
            return true;
        }
        if !self.behind.is_empty() {
            let mut behind = std::mem::take(&mut self.behind);
            behind.drain(..).for_each(|number| self.grant(core, number));
            self.behind = behind;
            return true;
        }
        self.advance_speculation(core) || self.plan(core)
    }

    fn prepare(&mut self, core: &Core<S>, number: u32, active: &mut Active) {
        if self.groups[number as usize].is_piecemeal {
            let is_granted = |range: u16| self.ranges.is_in_front(range, number);
            active.granted_until = first_not_granted(core, active, is_granted).unwrap_or(usize::MAX);
        }
    }

    /// Gives up the ranges in which the group has nothing left to execute or to undo by itself.
    fn pause(&mut self, core: &mut Core<S>, number: u32, active: &mut Active) {
        let group = &mut self.groups[number as usize];
        if group.is_piecemeal {
            group.need = need_of(active);
        }
        let mut ranges = std::mem::take(&mut group.ranges);
        let kept = self.find_kept(core, active);
        let mut at = 0;
        while let Some(range) = ranges.get(at).copied() {
            if kept.contains(&range) {
                at += 1;
            } else {
                ranges.swap_remove(at);
                self.release_range(core, range);
            }
        }
        self.kept = kept;
        self.groups[number as usize].ranges = ranges;
    }

    fn release(&mut self, core: &mut Core<S>, number: u32, active: &mut Active) {
        if let Some(speculative) = &mut self.speculation {
            match active.is_speculative {
                true => speculative.note_done(active),
                false => speculative.unhide(core, number, active),
            }
        }
        let mut ranges = std::mem::take(&mut self.groups[number as usize].ranges);
        ranges.drain(..).for_each(|range| self.release_range(core, range));
        self.groups[number as usize].ranges = ranges;
    }

    /// Takes the answers of another shard to an independent transaction whose reply is composed here.
    fn take_item(&mut self, core: &mut Core<S>, gsn: Gsn, item: &Item, bytes: &[u8]) -> bool {
        let Some((place, txn)) = self.find_answered(gsn) else { return false };
        let planning = &mut self.planned[place];
        let known = match *item {
            Item::Answers { .. } => match WireAnswers::read(item.bytes(bytes)) {
                Some(answers) => planning.take_answers(txn, answers, core.code.registry.limits().reply),
                None => Known::Other("what are no answers"),
            },
            // As earlier versions sent answers, and receive journals hold them.
            Item::Slot { slot, failed: false, .. } => {
                planning.take_answer(txn, slot, item.bytes(bytes), core.code.registry.limits().reply)
            }
            _ => Known::Other("something other than an answer"),
        };
        match known {
            Known::New if planning.is_done() => {
                self.finish_ready(core, place);
                self.drop_done();
            }
            Known::New => {}
            Known::Same => core.counts.repeated += 1,
            Known::Other(what) => {
                core.broken.get_or_insert(format!(
                    "shard {} was sent {what} of transaction {gsn}, and it is not what it was sent before: one of \
                     the two that said so has diverged",
                    core.site.number
                ));
            }
        }
        true
    }

    fn take_round(&mut self, core: &Core<S>, from: usize, speculative: Gsn, round: Round) -> Known {
        if speculative <= self.decided || core.order.backlog.is_past(batch_of(speculative)) {
            return Known::Same;
        }
        self.receive_round(from, speculative, round)
    }

    fn expects_again(&self, gsn: Gsn) -> bool {
        gsn > self.settled
    }

    fn begin_after(&mut self, last: Gsn) {
        self.settled = last;
    }

    fn first_under_way(&self) -> Option<Gsn> {
        self.speculation
            .as_ref()
            .map(|speculative| speculative.id)
            .into_iter()
            .chain(self.first_apart())
            .min()
    }

    fn check(&self) -> Result<(), String> {
        if self.is_empty_if_idle() { Ok(()) } else { Err("idle with something in its queues".into()) }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_shard_planning_batches", self.planned.len() as f64);
        report("ordain_shard_queued_fragments", self.left as f64);
        report("ordain_shard_speculative_batches_total", self.counts.units as f64);
        report("ordain_shard_undone_total", self.counts.undone as f64);
        report("ordain_shard_affected_total", self.counts.affected as f64);
        report("ordain_shard_cascade_rounds_total", self.counts.rounds as f64);
    }
}

impl QueueScheduler {
    // ---- planning ----------------------------------------------------------------------------------------

    /// Plans the next transactions of the order; returns whether there were any that may be planned.
    fn plan<S: RecordStore>(&mut self, core: &mut Core<S>) -> bool {
        if self.speculation.as_ref().is_some_and(SpeculativeBatch::is_planned) {
            return false;
        }
        while let Some(batch) = core.next_batch() {
            if self.is_at_end_of_speculation(core) {
                return self.close_speculation();
            }
            if let Some(choice) = batch.choice.filter(|_| self.chosen < batch.epoch) {
                (self.chosen, self.choice) = (batch.epoch, choice);
                self.dirty_keys.clear();
                self.begin_speculation(core, Gsn::new(batch.epoch, batch.partition, 0));
            }
            self.reach(core, (batch.epoch, batch.partition));
            while let Some(placed) = batch.chunks.get(core.order.cursor.0) {
                if let Some(txn) = placed.chunk.txns().get(core.order.cursor.1) {
                    if txn.table && self.speculation.is_some() && !placed.is_skipped(txn.index) {
                        return self.close_speculation();
                    }
                    return self.may_plan(core, txn) && self.plan_batch(core, &batch, placed);
                }
                core.order.cursor = (core.order.cursor.0 + 1, 0);
            }
            core.end_batch(&batch);
            self.prefetch.begin_batch();
        }
        if self.is_at_end_of_speculation(core) { self.close_speculation() } else { false }
    }

    /// Returns whether there is a speculative batch, and nothing more of its epoch, though the next may have to wait.
    fn is_at_end_of_speculation<S>(&self, core: &Core<S>) -> bool {
        let Some(epoch) = self.speculation.as_ref().map(|speculative| speculative.id.epoch()) else {
            return false;
        };
        core.order
            .batches
            .front()
            .map_or_else(|| core.order.backlog.has_passed(epoch), |next| next.epoch > epoch)
    }

    /// Closes the speculative batch, all of which is planned.
    fn close_speculation(&mut self) -> bool {
        self.speculation.iter_mut().for_each(SpeculativeBatch::close);
        true
    }

    fn may_plan<S: RecordStore>(&self, core: &Core<S>, txn: &Txn) -> bool {
        // Nothing of a speculative batch is over before all of it is planned.
        let may_be_full = self.speculation.is_none();
        let is_full = may_be_full && (core.active.len() >= core.settings.window || self.ahead >= AHEAD)
            || is_held_up(core);
        // A whole-table transaction waits until all before it is done here.
        let waits = txn.table && (core.active.unfinished > 0 || !self.is_idle());
        core.active.barrier.is_none() && !is_full && !waits
    }

    /// Plans transactions of a chunk from the cursor on: until there are enough, or one that has to wait.
    fn plan_batch<S: RecordStore>(&mut self, core: &mut Core<S>, batch: &Batch, placed: &Placed) -> bool {
        let begin = core.order.cursor.1;
        let number = self.first.wrapping_add(self.planned.len() as u32);
        let mut planning = self.take_spare();
        planning.begin(&placed.chunk, Gsn::new(batch.epoch, batch.partition, placed.base), batch.now, begin);
        planning.is_speculative = self.speculation.is_some();
        let is_stale = placed.chunk.map != *core.maps.now().map() || core.has_moved_in(batch.epoch);
        let txns = placed.chunk.txns();
        while let Some(txn) =
            txns.get(core.order.cursor.1).filter(|_| core.order.cursor.1 - begin < PLANNING_BATCH)
        {
            // A transaction that runs alone is planned alone; and groups that were granted something, or received it,
            // go first.
            let is_time = core.budget.is_spent() || core.active.has_ready() || is_held_up(core);
            if core.order.cursor.1 > begin && (txn.table || is_time) {
                break;
            }
            if !placed.is_skipped(txn.index) {
                if txn.independent && !txn.table {
                    self.plan_apart(core, &mut planning, number, (&placed.chunk, is_stale));
                } else if self.plan_group(core, batch, placed.base, (&placed.chunk, is_stale))
                    && txn.table
                    && !txn.read_only
                {
                    self.dirty_keys.clear();
                }
            }
            core.order.cursor.1 += 1;
            if txn.table {
                if self.chosen == batch.epoch && self.speculation.is_none() {
                    self.begin_speculation(core, Gsn(planning.gsn(txn).0 + 1));
                }
                break;
            }
        }
        planning.close(core.order.cursor.1);
        self.enter(core, planning);
        true
    }

    /// Puts the fragments of the transaction at the cursor, an independent one, into their queues.
    fn plan_apart<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        planning: &mut PlanningBatch,
        number: u32,
        (chunk, is_stale): (&Arc<Chunk>, bool),
    ) {
        let at = core.order.cursor.1;
        let txn = &chunk.txns()[at];
        let gsn = planning.gsn(txn);
        core.order.started = gsn;
        if core.is_aborted_by_operator(gsn, chunk, txn) {
            return;
        }
        if is_stale && core.is_turned_back(gsn, chunk, txn) {
            return;
        }
        if core.settings.bugs.has(Bug::SkipTransaction) && gsn.0 % 97 == 13 {
            return;
        }
        if core.settings.bugs.has(Bug::FlipRecord) && gsn.0 % 89 == 7 {
            core.flip(chunk, txn);
        }
        if let Some(speculative) = &mut self.speculation {
            speculative.note(chunk, planning.base, planning.now, at);
        }
        let layout = core.maps.now();
        let only = chunk.only_shard(txn, layout);
        if only.is_some_and(|shard| shard != core.site.number) {
            return;
        }
        let collector = only.unwrap_or_else(|| chunk.collector(txn, layout));
        let replies_here = collector == core.site.number;
        planning.replies += usize::from(replies_here);
        let first = planning.slots_at(at);
        let mut is_sent = false;
        for (slot, fragment) in (first..).zip(chunk.fragments(txn)) {
            let place = fragment.hash.slot();
            if only.is_some() || layout.shard_of(place) == core.site.number {
                let is_past = core.is_past(fragment);
                let entry = Entry::fragment(fragment, (number, at as u32, slot), (chunk, txn), is_past);
                is_sent |= !fragment.silent;
                let range = range_of(fragment.hash);
                match is_past {
                    true => self.push(PAST_READS, entry),
                    false => self.enqueue(range, entry),
                }
                if core.settings.bugs.has(Bug::SkipRankOrder) && gsn.0 % 5 == 2 {
                    self.swap_last(QueueScheduler::stream_of(range));
                }
                planning.left += 1;
            } else if replies_here && !fragment.silent {
                planning.missing += 1;
            }
        }
        let planned = match replies_here {
            true => Planned::ToReply,
            false if is_sent => Planned::ToSend(collector as u8),
            false => Planned::Apart,
        };
        planning.note(at, planned);
    }

    /// Starts the transaction at the cursor, which cannot be taken apart, as a group. Returns false if this shard
    /// does not take part.
    fn plan_group<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        batch: &Batch,
        base: u32,
        (chunk, is_stale): (&Arc<Chunk>, bool),
    ) -> bool {
        let at = core.order.cursor.1;
        if core.is_awaited() {
            let fragments = chunk.fragments(&chunk.txns()[at]).len().max(1);
            core.budget.spend(fragments);
        }
        self.prefetch.reach(core, chunk, |txn| !txn.independent || txn.table);
        let Some(mut active) = core.begin(batch, base, (chunk, is_stale), at) else { return false };
        if let Some(speculative) = &mut self.speculation {
            speculative.note(chunk, Gsn::new(batch.epoch, batch.partition, base), batch.now, at);
            (active.is_speculative, active.votes_missing) = (true, 0);
        }
        active.guesses.extend_from_slice(self.prefetch.guesses(core));
        self.start_group(core, chunk, active);
        true
    }

    /// Runs a group in its place in the order as far as nothing is in front of it. Mostly that is to its end, as if
    /// it had never had any places.
    fn start_group<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        chunk: &Arc<Chunk>,
        mut active: Box<Active>,
    ) {
        let txn = &chunk.txns()[active.at];
        let fragments = chunk.fragments(txn);
        let is_piecemeal = is_piecemeal(&active, txn, fragments);
        let looks_back = fragments.iter().any(|f| core.is_past(f) && core.owns(f));
        let may_be_queued = |f: &Fragment| core.is_scheduled(f) && self.may_be_queued(range_of(f.hash));
        let is_behind = !self.due.is_empty() && fragments.iter().any(may_be_queued);
        let waits = match self.ranges.is_free() {
            true => None,
            false => first_not_granted(core, &active, |range| !self.ranges.is_held(range)),
        };
        if let Some(n) = waits.filter(|_| is_piecemeal) {
            active.granted_until = n;
        }
        if core.remote.out_of_order.holds(active.gsn) {
            core.take_out_of_order(&mut active);
        }
        let is_asleep = looks_back && core.order.backlog.published() < before(active.gsn);
        let may_begin = is_piecemeal || waits.is_none();
        let progress = (may_begin && !is_asleep && !is_behind).then(|| {
            core.credit(batch_of(active.gsn));
            core.advance(chunk, &mut active)
        });
        if progress == Some(Progress::Done) {
            let over = match &mut self.speculation {
                Some(speculative) if active.is_speculative => {
                    speculative.note_done(&active);
                    core.leave_undecided(&mut active)
                }
                _ => core.finish_here(&mut active),
            };
            if over {
                core.give_back(active);
                return;
            }
        }
        let number = core.number_of(&active);
        if progress != Some(Progress::Done) {
            self.hold_ranges(core, number, &mut active, is_piecemeal);
        }
        if is_asleep {
            active.grants_missing += 1;
            self.asleep.push_back((before(active.gsn), number));
        }
        if is_behind {
            active.grants_missing += 1;
            self.behind.push(number);
        }
        core.active.put(number, active);
    }

    /// Gives a group that is executed again its place in every range that it touches.
    pub(super) fn enter_again<S: RecordStore>(
        &mut self,
        core: &mut Core<S>,
        mut active: Box<Active>,
        speculative: &mut SpeculativeBatch,
    ) {
        let number = core.number_of(&active);
        self.hold_ranges(core, number, &mut active, false);
        let is_ready = active.may_run();
        core.take_out_of_order(&mut active);
        if is_ready {
            speculative.hide(core, number, &active);
        }
        core.active.put(number, active);
        if is_ready {
            core.active.make_ready(number);
        }
    }

    /// Gives a group its place in every range that it still needs.
    fn hold_ranges<S: RecordStore>(
        &mut self,
        core: &Core<S>,
        number: u32,
        active: &mut Active,
        is_piecemeal: bool,
    ) {
        let kept = self.find_kept(core, active);
        let mut behind = 0;
        for range in &kept {
            behind += usize::from(self.ranges.push(*range, Place::Group(number)));
        }
        if !is_piecemeal {
            active.grants_missing += behind;
        }
        if self.groups.len() <= number as usize {
            self.groups.resize_with(number as usize + 1, Group::default);
        }
        let group = &mut self.groups[number as usize];
        group.ranges.extend_from_slice(&kept);
        group.is_piecemeal = is_piecemeal;
        group.need = if is_piecemeal { need_of(active) } else { Need::All };
        self.kept = kept;
    }

    /// Returns the ranges that a group still needs: those where not all of it is executed, and those that it has
    /// changed as long as that may be undone, unless all later ones are undone with it. A group that is executed in
    /// one go needs all.
    fn find_kept<S: RecordStore>(&mut self, core: &Core<S>, active: &Active) -> Vec<u16> {
        let mut kept = std::mem::take(&mut self.kept);
        kept.clear();
        let txn = &active.chunk.txns()[active.at];
        let fragments = active.chunk.fragments(txn);
        let needs_all = is_in_one_go(active, txn);
        let mut is_kept = [0_u64; RANGES / 64];
        for (n, fragment) in fragments.iter().enumerate() {
            if (needs_all || active.needs_grant(txn, fragments, n)) && core.is_scheduled(fragment) {
                let range = range_of(fragment.hash);
                let (word, bit) = (usize::from(range) / 64, 1 << (range % 64));
                if is_kept[word] & bit == 0 {
                    is_kept[word] |= bit;
                    kept.push(range);
                }
            }
        }
        kept
    }

    /// Puts a planning batch under way, unless there is nothing of it to do here.
    fn enter<S: RecordStore>(&mut self, core: &mut Core<S>, mut planning: PlanningBatch) {
        let place = batch_of(planning.base);
        let is_run_here = planning.left > 0;
        planning.is_unsettled = is_run_here;
        if is_run_here {
            core.order.backlog.count_unsettled(place, 1);
        }
        // With peers, it is under way until its replies are composed; without, until it has been run.
        if if core.has_peers() { planning.replies > 0 } else { is_run_here } {
            core.order.backlog.count(place, 1);
        }
        self.left += planning.left;
        self.ahead += planning.txns.len();
        self.planned.push_back(planning);
        let place = self.planned.len() - 1;
        self.take_out_of_order_answers(core, place);
        self.finish_ready(core, place);
        self.drop_done();
    }

    // ---- execution ---------------------------------------------------------------------------------------

    /// Runs a queue from the front until its quantum is used.
    fn run_queue<S: RecordStore>(&mut self, core: &mut Core<S>, number: u16) {
        let queue = &mut self.queues[usize::from(number)];
        let (entries, mut next) = (std::mem::take(&mut queue.entries), queue.next);
        let most = entries.len().min(next + QUANTUM);
        let mut end = most;
        self.fetching.begin(next);
        if number == PAST_READS {
            let published = core.order.backlog.published();
            end = next + entries[next..most].partition_point(|entry| self.is_over(entry, published));
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

    /// Removes the front of a range, which needs it no more: the next place is granted.
    fn release_range<S: RecordStore>(&mut self, core: &mut Core<S>, range: u16) {
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

    /// Grants a group one of the things that it lacks; it runs on if that was the last.
    fn grant<S: RecordStore>(&mut self, core: &mut Core<S>, number: u32) {
        let Some(mut active) = core.active.take(number) else { return };
        active.grants_missing -= 1;
        if active.may_run() {
            if let Some(speculative) = &mut self.speculation {
                speculative.hide(core, number, &active);
            }
            core.active.make_ready(number);
        }
        core.active.put(number, active);
    }

    /// Runs some places of a queue.
    fn run_window<S: RecordStore>(&mut self, core: &mut Core<S>, entries: &[Entry], places: Range<usize>) {
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
    fn take_out_of_order_answers<S: RecordStore>(&mut self, core: &mut Core<S>, place: usize) {
        let Some(end) = self.planned.get(place).map(|planning| planning.gsns().end) else { return };
        while let Some(gsn) = core.remote.out_of_order.first().filter(|gsn| *gsn < end) {
            for OutOfOrderItem { item, bytes, .. } in core.remote.out_of_order.take(gsn) {
                self.take_item(core, gsn, &item, &bytes);
            }
        }
    }
}

/// Returns whether so many groups are blocked that no more should be. Where all shards are near, one that is ahead of
/// the others gains nothing by going on: what it comes to waits behind what waits for them, and costs more than what
/// runs at once.
fn is_held_up<S: RecordStore>(core: &Core<S>) -> bool {
    core.active.unfinished >= GROUPS && !core.has_peers()
}

/// Returns whether the fragments of a group may run one by one, each when it is in front of its range
/// (`docs/protocols/qstore.md`, Q8). Not if some compute on records of others.
fn is_piecemeal(active: &Active, txn: &Txn, fragments: &[Fragment]) -> bool {
    !is_in_one_go(active, txn)
        && fragments.iter().all(|fragment| fragment.access != Access::Compute && !fragment.shipped)
}

/// Returns whether a group keeps all its ranges until it is done. A group that is executed again is shown other
/// states meanwhile; one that is decided at once within a speculative batch takes back the newest changes that the
/// batch has noted.
fn is_in_one_go(active: &Active, txn: &Txn) -> bool {
    txn.table || active.is_again || active.is_decided_at_once()
}

/// Returns the first fragment, of those that a transaction has not come to, that is not granted.
fn first_not_granted<S: RecordStore>(
    core: &Core<S>,
    active: &Active,
    is_granted: impl Fn(u16) -> bool,
) -> Option<usize> {
    let fragments = active.chunk.fragments(&active.chunk.txns()[active.at]);
    let mut rest = (active.next..).zip(&fragments[active.next.min(fragments.len())..]);
    rest.find(|(_, fragment)| core.is_scheduled(fragment) && !is_granted(range_of(fragment.hash)))
        .map(|(n, _)| n)
}

/// Returns what a group waits for whose fragments run one by one.
fn need_of(active: &Active) -> Need {
    let next = active.chunk.fragments(&active.chunk.txns()[active.at]).get(active.next);
    next.filter(|_| active.next >= active.granted_until)
        .map_or(Need::Nothing, |next| Need::Range(range_of(next.hash)))
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
            core.noting(bare, |core, bare| core.execute(bare, &planning.chunk, txn, n, arena))
        }
        (what, Some(code)) => {
            let (args_at, len) = entry.args;
            let args = planning.chunk.args_at(args_at..args_at + len, entry.is_logged);
            let (key, now) = (entry.key(args), planning.now);
            let name = Name { db: entry.db, key: key.bytes, hash: entry.hash };
            let (store, undo, locals, registry) =
                (&mut core.store, &mut core.undo, &mut core.code.locals, &core.code.registry);
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
                    let (cell, version) = past_of(&state, None, name, now);
                    let target = Target::Read(cell);
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
