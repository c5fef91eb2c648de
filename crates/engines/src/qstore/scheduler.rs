//! The scheduler: plans the queues of a shard and executes them (`docs/protocols/qstore.md`, Q4 to Q10).

use std::sync::Arc;

use ordain_model::{Batch, Chunk, Gsn, Isolation, KeyHash, Placed, Txn};
use ordain_role::Bug;
use ordain_store::RecordStore;

use super::groups::{first_not_granted, need_of};
use super::queues::{AHEAD, Entry, PAST_READS, PLANNING_BATCH, Planned, PlanningBatch, QueueScheduler};
use super::ranges::range_of;
use super::speculation::SpeculativeBatch;
use ordain_deterministic::shard::{Active, Core, Item, Known, Round, Scheduler, WireAnswers, batch_of};

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
            let is_coming = core.past_is_coming();
            while let Some(number) = self.wake(published, is_coming) {
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
        // Planted, IDLE-CLEAN.
        if core.settings.bugs.has(Bug::LeaveLock) && active.gsn.0 % 31 == 7 {
            ranges.pop();
        }
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

    fn check(&self, _: Gsn, is_idle: bool) -> Result<(), String> {
        match !is_idle || self.is_empty_if_idle() {
            true => Ok(()),
            false => Err("idle with something in its queues".into()),
        }
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
                    return self.may_plan(core, txn)
                        && self.has_values(core, &batch, placed)
                        && self.plan_batch(core, &batch, placed);
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

    /// Returns whether a transaction is planned apart and reads values here that have to come from the disk; asks for them.
    fn lacks_values<S: RecordStore>(&self, core: &mut Core<S>, gsn: Gsn, placed: &Placed, txn: &Txn) -> bool {
        core.has_budget()
            && txn.independent
            && !txn.table
            && !placed.is_skipped(txn.index)
            && core.wants_values_to_plan(&placed.chunk, txn, gsn, self.speculation.is_some())
    }

    /// Returns whether the transaction at the cursor has all values in memory; if not, the values are asked for of those that are planned with
    /// it, too.
    fn has_values<S: RecordStore>(&self, core: &mut Core<S>, batch: &Batch, placed: &Placed) -> bool {
        let mut next = placed.chunk.txns()[core.order.cursor.1..].iter().take(PLANNING_BATCH);
        if next.clone().next().is_some_and(|first| core.awaits_to_plan(batch.gsn(placed.base, first))) {
            return false;
        }
        let mut lacks = |txn: &Txn| self.lacks_values(core, batch.gsn(placed.base, txn), placed, txn);
        let is_ready = next.next().is_none_or(|first| !lacks(first));
        if !is_ready {
            next.for_each(|txn| _ = lacks(txn));
        }
        is_ready
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
            if core.order.cursor.1 > begin && self.lacks_values(core, planning.gsn(txn), placed, txn) {
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
        if core.has_budget() {
            let scheduled = chunk.fragments(txn).iter().filter(|fragment| core.is_scheduled(fragment));
            let names: Vec<KeyHash> = scheduled.map(|fragment| fragment.hash).collect();
            names.iter().for_each(|hash| core.pin_value(*hash));
            planning.pinned.extend(names);
        }
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
}

/// Returns whether so many groups are blocked that no more should be. Where all shards are near, one that is ahead of
/// the others gains nothing by going on: what it comes to waits behind what waits for them, and costs more than what
/// runs at once.
fn is_held_up<S: RecordStore>(core: &Core<S>) -> bool {
    core.active.unfinished >= GROUPS && !core.has_peers()
}
