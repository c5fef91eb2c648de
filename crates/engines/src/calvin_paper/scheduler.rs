//! The scheduler of a shard: takes transactions in the order and runs each when the lock manager has granted it
//! (`docs/protocols/calvin-paper.md`, P3).

use std::collections::BTreeSet;

use ordain_model::{Batch, Chunk, Gsn, Placed};
use ordain_store::RecordStore;

use ordain_deterministic::sequencing::Sequencing;
use ordain_deterministic::shard::{Active, Core, Item, Message, Scheduler};
use ordain_role::Outbox;

/// The scheduler of a shard whose node has a lock manager.
#[derive(Debug, Default)]
pub(crate) struct WorkerScheduler {
    /// Grants of transactions that are not started here.
    early: BTreeSet<Gsn>,
    /// How many grants have come.
    count: u64,
    /// Granted transactions that are done here, to be reported to the lock manager.
    done: Vec<Gsn>,
}

impl<S: RecordStore> Scheduler<S> for WorkerScheduler {
    /// Takes up transactions, as far as the window has room. None is executed before its grant.
    fn run(&mut self, core: &mut Core<S>) -> bool {
        let mut any = false;
        while let Some(batch) = core.next_batch() {
            while let Some(placed) = batch.chunks.get(core.order.cursor.0) {
                while let Some(txn) = placed.chunk.txns().get(core.order.cursor.1) {
                    if !placed.is_skipped(txn.index) {
                        let full = core.active.len() >= core.settings.window;
                        if core.active.barrier.is_some() || full || (txn.table && core.active.unfinished > 0)
                        {
                            return any;
                        }
                        self.take_up(core, &batch, placed);
                        any = true;
                    }
                    core.order.cursor.1 += 1;
                }
                core.order.cursor = (core.order.cursor.0 + 1, 0);
            }
            core.end_batch(&batch);
        }
        any
    }

    /// Reports the transaction to the lock manager, if that granted it.
    fn release(&mut self, core: &mut Core<S>, _: u32, active: &mut Active) {
        if takes_part(core, active) {
            self.done.push(active.gsn);
        }
    }

    fn take_grant(&mut self, core: &mut Core<S>, gsn: Gsn) {
        self.count += 1;
        match core.active.number(gsn) {
            Some(number) => {
                if let Some(active) = core.active.get_mut(number) {
                    active.grants_missing = 0;
                    core.active.make_ready(number);
                }
                if let Some(active) = core.active.get(number) {
                    fetch(core, &active.chunk, active.at);
                }
            }
            None if gsn > core.order.started => _ = self.early.insert(gsn),
            None => {
                let number = core.site.number;
                core.broken.get_or_insert(format!(
                    "shard {number} was granted transaction {gsn}, which is not under way here"
                ));
            }
        }
    }

    fn take_item(&mut self, _: &mut Core<S>, _: Gsn, _: &Item, _: &[u8]) -> bool {
        false
    }

    fn send(&mut self, core: &Core<S>, out: &mut Outbox<Message>) {
        if let Some(lock_manager) = core.site.places.lock_manager {
            self.done.drain(..).for_each(|gsn| out.send(lock_manager, Sequencing::Done(gsn)));
        }
    }

    fn first_under_way(&self) -> Option<Gsn> {
        None
    }

    fn check(&self, started: Gsn, _: bool) -> Result<(), String> {
        match self.early.first().filter(|gsn| **gsn <= started) {
            Some(gsn) => Err(format!("the grant of {gsn} waits for its transaction, which was started")),
            None => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_shard_grants_total", self.count as f64);
        report("ordain_shard_out_of_order_grants", self.early.len() as f64);
    }
}

impl WorkerScheduler {
    /// Blocks the transaction at the cursor until its grant, unless that has come, or nothing of it is executed here.
    fn take_up<S: RecordStore>(&mut self, core: &mut Core<S>, batch: &Batch, placed: &Placed) {
        let chunk = &placed.chunk;
        let is_stale = chunk.map != *core.maps.now().map();
        let Some(mut active) = core.begin(batch, placed.base, (chunk, is_stale), core.order.cursor.1) else {
            return;
        };
        let waits = takes_part(core, &active) && !self.early.remove(&active.gsn);
        active.grants_missing = usize::from(waits);
        let number = core.number_of(&active);
        core.take_out_of_order(&mut active);
        core.active.put(number, active);
        if !waits {
            fetch(core, chunk, core.order.cursor.1);
            core.active.make_ready(number);
        }
    }
}

/// Returns whether any of a transaction's fragments is this shard's; if none is, it has no locks here to wait for, and the lock
/// manager does not grant it.
fn takes_part<S: RecordStore>(core: &Core<S>, active: &Active) -> bool {
    if active.alone {
        // Nobody has looked for those who take part.
        return !active.chunk.txns()[active.at].fragments().is_empty();
    }
    active.routes.participants & core.me() != 0
}

/// Prefetches a transaction's records together.
fn fetch<S: RecordStore>(core: &Core<S>, chunk: &Chunk, at: usize) {
    let fragments = chunk.txns().get(at).map_or(&[][..], |txn| chunk.fragments(txn));
    let owned = fragments.iter().filter(|fragment| fragment.is_keyed() && core.owns(fragment));
    core.store.prefetch(owned.map(|fragment| fragment.hash));
}

#[cfg(test)]
mod tests {
    use ordain_store::MemoryStore;

    use super::*;

    #[test]
    fn a_grant_that_waits_for_a_transaction_which_was_started_is_found() {
        let mut scheduler = WorkerScheduler::default();
        let scheduler_check = |scheduler: &WorkerScheduler, started| {
            Scheduler::<MemoryStore>::check(scheduler, Gsn(started), true)
        };
        scheduler.early.insert(Gsn(8));
        assert_eq!(scheduler_check(&scheduler, 7), Ok(()));
        assert!(scheduler_check(&scheduler, 8).unwrap_err().contains("waits for its transaction"));
    }
}
