//! Groups: transactions that are not taken apart run in their place in the order, or wait in ranges (`docs/protocols/qstore.md`,
//! Q7 and Q8).

use std::sync::Arc;

use ordain_model::{Access, Batch, Chunk, Fragment, Gsn, Txn};
use ordain_store::RecordStore;

use super::queues::{Group, Need, QueueScheduler};
use super::ranges::{Place, RANGES, range_of};
use super::speculation::SpeculativeBatch;
use ordain_deterministic::shard::{Active, Core, Progress, batch_of, before};

impl QueueScheduler {
    /// Starts the transaction at the cursor, which cannot be taken apart, as a group. Returns false if this shard
    /// does not take part.
    pub(super) fn plan_group<S: RecordStore>(
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
    pub(super) fn start_group<S: RecordStore>(
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
    pub(super) fn hold_ranges<S: RecordStore>(
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
    pub(super) fn find_kept<S: RecordStore>(&mut self, core: &Core<S>, active: &Active) -> Vec<u16> {
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

    /// Grants a group one of the things that it lacks; it runs on if that was the last.
    pub(super) fn grant<S: RecordStore>(&mut self, core: &mut Core<S>, number: u32) {
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
pub(super) fn first_not_granted<S: RecordStore>(
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
pub(super) fn need_of(active: &Active) -> Need {
    let next = active.chunk.fragments(&active.chunk.txns()[active.at]).get(active.next);
    next.filter(|_| active.next >= active.granted_until)
        .map_or(Need::Nothing, |next| Need::Range(range_of(next.hash)))
}
