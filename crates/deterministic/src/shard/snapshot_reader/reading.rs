//! Reading: a chunk is read in pieces, transaction by transaction, on the state at the end of its epoch.

use ordain_execution::{OnSnapshot, PastValues};
use ordain_model::serial::key_of;
use ordain_model::{Access, Cell, Chunk, Fragment, Position};
use ordain_role::Bug;
use ordain_store::{RecordStore, Snapshot};

use super::found::ReadAt;
use super::{Read, Run, ShardView, SnapshotReader};
use crate::sequencing::Part;
use crate::shard::core::values::Waiter;
use crate::shard::routes::ShardSet;

/// The bytes read that count as one fragment of the budget: what has been read waits to be sent until then.
const LARGE: usize = 4 << 10;

impl SnapshotReader {
    /// Goes on reading a chunk.
    pub(super) fn read<S: RecordStore>(
        &mut self,
        shard: &mut ShardView<'_, S>,
        run: &mut Run,
        budget: &mut usize,
    ) -> Read {
        let chunk = run.chunk.clone();
        let (number, layout) = (self.number, shard.maps.planned.under(&chunk.map).clone());
        let then = shard.maps.as_of(run.at).clone();
        // Planted, ONE-STATE.
        let is_stale = chunk.map != *then.map() && !shard.bugs.has(Bug::ReadMoved);
        let me: ShardSet = 1 << number;
        let is_mine =
            |fragment: &Fragment| fragment.is_table() || layout.shard_of(fragment.hash.slot()) == number;
        let store = shard.store;
        let mut state = store.as_of(run.at);
        self.prefetch.begin(run.next);
        while let Some(txn) = chunk.txns().get(run.next.0) {
            let fragments = chunk.fragments(txn);
            let found = &mut run.found;
            if run.next.1 == 0 {
                let only = chunk.only_shard(txn, &layout);
                if only.is_some_and(|shard| shard != number) {
                    run.next.0 += 1;
                    continue;
                }
                found.alone = only.is_some() || layout.shards() == 1;
                if !found.alone {
                    found.routes.analyse(&chunk, txn, &layout);
                    let takes_part = found.routes.participants | 1 << found.routes.collector;
                    found.alone = takes_part == me;
                    if takes_part & me == 0 {
                        run.next.0 += 1;
                        continue;
                    }
                }
                found.reset(fragments.len());
            }
            let is_kept = self.kept.is_some_and(|kept| run.at >= kept);
            if is_kept && is_stale && run.next.1 == 0 && chunk.is_moved(txn, &then) {
                // Each shard that takes part sees that alone: at the end of that epoch its slots were elsewhere.
                if chunk.collector(txn, &layout) == number {
                    self.send_back(&chunk, txn, then.map());
                }
                run.next.0 += 1;
                continue;
            }
            if !is_kept {
                self.counts.too_old += 1;
                run.next = (run.next.0 + 1, 0);
                match found.alone || found.routes.collector == self.number {
                    true => self.refuse(&chunk, txn),
                    false => {
                        let to = run.parts.entry(found.routes.collector).or_default();
                        to.push((txn.index, Part::TooOld));
                    }
                }
                continue;
            }
            let is_alone = found.alone;
            let is_here = |fragment: &Fragment| is_alone || is_mine(fragment);
            let values_until =
                values_until(shard, (&chunk, run.next, run.number), &run.past, &state, is_here);
            let reads = ReadAt::new(&chunk, txn, run.at, run.now);
            while let Some(fragment) = fragments.get(run.next.1) {
                if run.next.1 >= values_until {
                    // Values that have come are all used.
                    run.past.clear();
                    return Read::Waits;
                }
                if *budget == 0 {
                    return Read::Some;
                }
                // Records planned by another map may have been elsewhere then, and are not prefetched.
                if run.next >= self.prefetch.until && !is_stale {
                    self.prefetch.gather(store, (&chunk, &layout), (run.next, *budget), number);
                }
                if fragment.access != Access::Compute && (found.alone || is_mine(fragment)) {
                    *budget -= 1;
                    let guess = if fragment.is_keyed() { self.prefetch.next(fragment) } else { None };
                    let bytes = found.slots.bytes();
                    let step = reads.step(shard.registry, run.next.1);
                    found.read(
                        step,
                        OnSnapshot { state: &mut state, guess, values: &run.past },
                        shard.locals,
                    );
                    *budget = budget.saturating_sub(found.slots.bytes().saturating_sub(bytes) / LARGE);
                }
                run.next.1 += 1;
            }
            self.hand_over(shard, run, &chunk, txn);
            run.past.clear();
            run.next = (run.next.0 + 1, 0);
        }
        Read::All
    }
}

/// Returns the first fragment of the transaction that is read next, of those that are left, that has to wait for values from the disk, and
/// asks for them.
fn values_until<S: RecordStore>(
    shard: &mut ShardView<'_, S>,
    (chunk, next, number): (&Chunk, (usize, usize), u64),
    past: &PastValues,
    state: &impl Snapshot,
    is_here: impl Fn(&Fragment) -> bool,
) -> usize {
    let Some(tier) = shard.values else { return usize::MAX };
    let (txn, who) = (&chunk.txns()[next.0], Waiter::Read(number));
    let (mut until, mut asked) = (usize::MAX, 0);
    for (n, fragment) in chunk.fragments(txn).iter().enumerate().skip(next.1) {
        if asked >= tier.at_once() {
            break;
        }
        let before = asked;
        let mut look = |cell: &Cell| match past.lacks(cell) {
            Some(evicted) => {
                tier.want(evicted, None, who);
                asked += evicted.bytes() as usize;
            }
            None => tier.hit(),
        };
        let scans_values =
            || shard.registry.get(fragment.procedure).is_some_and(|procedure| procedure.scans_values());
        if fragment.is_keyed() && fragment.reads_value() && is_here(fragment) {
            let key = key_of(chunk.args(txn), fragment).bytes;
            state.find(fragment.db, key, fragment.hash).into_iter().for_each(|(cell, _)| look(cell));
        } else if fragment.is_table() && scans_values() {
            Snapshot::visit(state, Position::default(), |entry| {
                look(entry.cell);
                true
            });
        }
        if asked > before {
            until = until.min(n);
        }
    }
    until
}
