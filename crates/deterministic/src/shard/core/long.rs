//! Work that is too long for one event: [long](ordain_execution::Long) compute fragments go to a work thread and come back, and
//! transactions of many large fragments rest between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_execution::{Computed, Held, InputSlots, Long, PATIENCE};
use ordain_model::serial::seed_of;
use ordain_model::{Cell, Computations, Gsn, Stop, Stopwatch, Txn};
use ordain_role::{Bug, Outbox, UnderWay, Work, WorkDone};
use ordain_store::RecordStore;

use super::Core;
use crate::shard::messages::{Item, Message};
use crate::shard::routes::owner;
use crate::shard::state::Active;

/// The waiter for a computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Asker {
    /// A transaction of the order.
    Ordered(Gsn),
    /// A read on a snapshot, by the reader's number for it.
    Read(u64),
}

/// Computations that are away, by the token of their work, and what is needed to give one away.
#[derive(Debug, Default)]
pub(crate) struct Away {
    /// The most work of a compute fragment here, units, before it is given away; no bound while no work thread would run it.
    pub(super) patience: Option<u64>,
    next: u64,
    askers: BTreeMap<u64, Asker>,
    /// Work to hand to the driver.
    leaving: Vec<Work>,
    /// Where an operator finds what is away, once it runs.
    computations: Computations,
    /// The clock that times scripts on the computing threads, if the driver has one.
    stopwatch: Option<Arc<dyn Stopwatch>>,
}

impl Away {
    fn leave(&mut self, asker: Asker, long: Long, under_way: UnderWay) {
        let token = self.next;
        self.next += 1;
        self.askers.insert(token, asker);
        let number = long.number;
        let (procedure, is_logged) = long.what();
        let may_end = matches!(asker, Asker::Read(_)) || !is_logged;
        let (computations, stopwatch) = (self.computations.clone(), self.stopwatch.clone());
        let run = move || {
            computations.during(procedure, may_end.then(Stop::default), |stop| long.run(stop, stopwatch))
        };
        self.leaving.push(Work::new(token, move || under_way.during(number, run)));
    }

    /// Returns how many computations are away.
    pub fn len(&self) -> usize {
        self.askers.len()
    }
}

impl<S: RecordStore> Core<S> {
    /// Begins to give long computations to the driver; without one everything is computed here, however long it
    /// takes.
    pub(in crate::shard) fn begin_to_give_away(&mut self) {
        self.away.patience = Some(PATIENCE);
    }

    /// Sets where an operator finds computations that are away.
    pub(in crate::shard) fn list_work(&mut self, computations: Computations) {
        self.away.computations = computations;
    }

    /// Sets the clock by which scripts are timed, here and on work threads.
    pub(in crate::shard) fn time_scripts(&mut self, stopwatch: Arc<dyn Stopwatch>) {
        self.code.locals.stopwatch = Some(stopwatch.clone());
        self.away.stopwatch = Some(stopwatch);
    }

    /// Puts back the records of a compute fragment that has given up.
    pub(super) fn take_from_hands(&mut self, active: &mut Active, held: Held<'_>) {
        let chunk = active.chunk.clone();
        let fragment = &chunk.fragments(&chunk.txns()[active.at])[held.slot.0 as usize];
        if held.owner != self.site.number {
            let Held { slot, cell, version, .. } = held;
            active.received_records.insert(slot, Some((cell, version)));
        } else if held.writable || held.cell.value.is_some() && !self.is_past(fragment) {
            self.restore_record(active, fragment, held);
        }
    }

    /// Gives compute fragment `n` to the driver; its members are where they belong.
    pub(super) fn give_away(&mut self, active: &mut Active, n: usize) {
        let chunk = active.chunk.clone();
        let (at, txn) = (active.at, &chunk.txns()[active.at]);
        let fragments = chunk.fragments(txn);
        let mut records = BTreeMap::new();
        for slot in chunk.plans().inputs_of(&fragments[n]) {
            let fragment = &fragments[slot.0 as usize];
            if !fragment.shipped {
                continue;
            }
            let record = if self.owns(fragment) {
                self.take_out(active, &chunk, txn, *slot).0
            } else {
                active
                    .received_records
                    .get_mut(slot)
                    .and_then(Option::take)
                    .unwrap_or((Cell::ABSENT, Gsn::NONE))
            };
            records.insert(*slot, record);
        }
        let answers = InputSlots::of_inputs(&chunk, at, n, &active.slots);
        active.is_away = true;
        self.counts.given_away += 1;
        let (number, seed) = (active.gsn.plain().0, seed_of(active.gsn));
        let (now, registry) = (active.now, self.code.registry.clone());
        let long = Long { chunk, at, n, number, seed, now, registry, answers, records };
        let asker = Asker::Ordered(active.called());
        self.away.leave(asker, long, self.operator.under_way.of_work());
    }

    /// Takes the result of a computation.
    pub(in crate::shard) fn take_computed(&mut self, done: WorkDone) {
        let asker = self.away.askers.remove(&done.token);
        match (asker, done.product.downcast::<Computed>()) {
            (Some(Asker::Ordered(gsn)), Ok(computed)) => self.go_on_after(gsn, *computed),
            (Some(Asker::Read(number)), Ok(computed)) => {
                let (reader, mut shard) = self.reading();
                reader.take_computed(&mut shard, number, *computed);
            }
            _ => {
                self.broken.get_or_insert(format!(
                    "shard {} received the result of work that it did not give",
                    self.site.number
                ));
            }
        }
    }

    fn go_on_after(&mut self, gsn: Gsn, mut computed: Computed) {
        let number = self.active.number(gsn.plain());
        let active = number.and_then(|number| self.active.take(number));
        let (Some(number), Some(mut active)) = (number, active) else {
            self.broken
                .get_or_insert(format!("shard {} has ended {gsn} before it was computed", self.site.number));
            return;
        };
        self.credit(super::batch_of(gsn));
        active.is_away = false;
        if self.settings.bugs.has(Bug::ForgetWorkAbort) {
            // Planted, SAME-RUN.
            computed.result = Ok(());
        }
        active.computed = Some(computed);
        self.active.put(number, active);
        self.active.make_ready(number);
    }

    /// Puts back the records that a computation elsewhere had in its hands, as the transaction runs on.
    pub(super) fn take_returned_computed(&mut self, active: &mut Active) {
        let records = active.computed.as_mut().map(|computed| std::mem::take(&mut computed.records));
        for (slot, cell, changed) in records.into_iter().flatten() {
            let chunk = active.chunk.clone();
            let fragment = &chunk.fragments(&chunk.txns()[active.at])[slot.0 as usize];
            if self.owns(fragment) {
                self.take_returned(active, slot, cell, changed);
            } else if active.slots.is_missing(slot)
                && let Some(owner) = owner(fragment, self.maps.now())
            {
                self.remote.results.add(owner, active.called(), Item::Return { slot, cell, changed });
            }
        }
    }

    /// Hands the computations that are given away to the driver.
    pub(in crate::shard) fn send_work(&mut self, out: &mut Outbox<Message>) {
        for (number, long) in self.reader.leaving() {
            // A restarted node does not execute a read again.
            self.away.leave(Asker::Read(number), long, UnderWay::default());
        }
        self.away.leaving.drain(..).for_each(|work| out.work(work));
    }

    /// Takes bytes off the budget: large values and replies take as long as many fragments.
    pub(super) fn charge(&mut self, bytes: usize) {
        self.budget.charge(bytes, self.settings.fragment_bytes);
    }

    /// Has a transaction rest until the next event if the budget is spent, so that other roles of the event loop go
    /// on; returns whether it rests. It keeps its grants meanwhile, as while a computation is away.
    ///
    /// Nothing rests while nothing would wake it (replay), nor does a speculative transaction or one of the whole
    /// table.
    pub(super) fn rests(&mut self, active: &Active, txn: &Txn) -> bool {
        let rests =
            self.budget.is_spent() && self.away.patience.is_some() && !active.is_speculative && !txn.table;
        if rests {
            self.counts.rested += 1;
            self.active.rest(active.called());
        }
        rests
    }

    /// Begins an event with a budget of so many fragments; returns the transactions that rest, for [`Core::wake`].
    pub(in crate::shard) fn begin_event(&mut self, fragments: usize) -> Vec<Gsn> {
        self.budget.begin(fragments);
        self.active.take_resting()
    }

    /// Resumes transactions that rested, for so many fragments together, after what came meanwhile has run: neither
    /// starves.
    pub(in crate::shard) fn wake(&mut self, rested: Vec<Gsn>, fragments: usize) {
        self.budget.renew(fragments);
        self.active.wake(rested);
    }

    /// Returns whether work is left over from this event.
    pub(in crate::shard) fn has_more(&self) -> bool {
        self.budget.is_spent() || self.active.has_resting()
    }

    /// Checks that each computation that is away has its transaction or read.
    pub(super) fn check_away(&self) -> Result<(), String> {
        let ordered = self.away.askers.values().filter(|asker| matches!(asker, Asker::Ordered(_))).count();
        let waiting = self.active.iter().filter(|active| active.is_away).count();
        let reads = self.away.len() - ordered;
        if (ordered, reads) != (waiting, self.reader.away()) {
            return Err(format!(
                "{ordered} computations of transactions and {reads} of reads are away, {waiting} and {} wait",
                self.reader.away()
            ));
        }
        Ok(())
    }
}
