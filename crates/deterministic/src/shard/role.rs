//! The shard as a role: its core and its scheduler, driven by events.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::sequencing::{Log, Sequencing};
use ordain_checkpoint::Outcome;
use ordain_model::{
    Cell, Computations, Db, Digest, DigestSpan, Epoch, Gsn, Map, Micros, PartitionId, Registry, Stopwatch,
};
use ordain_replication::Configuration;
use ordain_role::{Address, Directory, Event, Now, Outbox, Role, TimerId, UnderWay};
use ordain_store::{MemoryStore, RecordStore};

use super::core::{Core, Settings, capture};
use super::messages::Message;
use super::remote::Places;
use super::scheduler::Scheduler;

/// The budget of an event, fragments, once a peer waits for this shard or it for a peer: then remote results leave,
/// and come in. Without a bound a peer would wait for a slot or a verdict until all of a batch is done here, and
/// every transaction behind a lock of that one with it.
const BUDGET: usize = 256;
/// Records that were cleared together and are freed at once: half a millisecond's.
const FREED: usize = 4096;
/// Records that are settled (their digests summed up) with each sweep, a third of a millisecond's: a request for the
/// digest after a lull does not wait for all of them.
const SETTLED: usize = 4096;
const GO_ON: TimerId = TimerId(1);
/// The pause between two sweeps for expired records: all slots are swept within about three seconds.
const SWEEP_EVERY: Micros = Micros::from_millis(100);
const SWEEP: TimerId = TimerId(2);

/// One core's share of a replica: its part of the order, its schedule, its records.
#[derive(Debug)]
pub struct Shard<S> {
    core: Core<S>,
    scheduler: Box<dyn Scheduler<S>>,
}

impl Shard<MemoryStore> {
    /// Makes shard `number` of a replica, with the records of `store`.
    ///
    /// # Panics
    /// If registry, layout and store have different placements: a mistake in the program.
    pub fn new(
        number: usize,
        places: Places,
        settings: Settings,
        registry: Arc<Registry>,
        store: MemoryStore,
    ) -> Shard<MemoryStore> {
        let placement = places.layout.placement();
        assert_eq!(registry.placement(), placement, "transactions are planned by another placement");
        assert_eq!(store.placement(), placement, "records are hashed by another placement");
        let scheduler = (settings.scheduling.scheduler)();
        Shard { core: Core::new(number, places, settings, registry, store), scheduler }
    }
}

impl<S: RecordStore> Shard<S> {
    /// Sets the members of its replication group: they compare their digests as batches are executed.
    #[must_use]
    pub fn with_members(mut self, members: Vec<Address>) -> Shard<S> {
        self.core.set_members(members);
        self
    }

    /// Sets the checkpointer of its node.
    #[must_use]
    pub fn with_checkpointer(mut self, checkpointer: Address) -> Shard<S> {
        self.core.set_checkpointer(checkpointer);
        self
    }

    /// Ends these transactions without any effect in their places: an operator has aborted them.
    #[must_use]
    pub fn with_aborted(mut self, aborted: Arc<BTreeSet<Gsn>>) -> Shard<S> {
        self.core.operator.aborted = aborted;
        self
    }

    /// Sets where it writes which transaction it is executing.
    #[must_use]
    pub fn with_under_way(mut self, under_way: UnderWay) -> Shard<S> {
        self.core.operator.under_way = under_way;
        self
    }

    /// Sets where it lists computations that it gives to a work thread.
    #[must_use]
    pub fn with_computations(mut self, computations: Computations) -> Shard<S> {
        self.core.list_work(computations);
        self
    }

    /// Sets the clock by which scripts are timed.
    #[must_use]
    pub fn with_stopwatch(mut self, stopwatch: Arc<dyn Stopwatch>) -> Shard<S> {
        self.core.time_scripts(stopwatch);
        self
    }

    /// Returns its number among the shards of the replica.
    pub fn number(&self) -> usize {
        self.core.site.number
    }

    /// Returns its address.
    pub fn address(&self) -> Address {
        self.core.site.places.shards[self.core.site.number]
    }

    /// Returns the addresses of its peers.
    pub fn places(&self) -> &Places {
        &self.core.site.places
    }

    /// Returns the records.
    pub fn store(&self) -> &S {
        &self.core.store
    }

    /// Returns the digest of the shard's state.
    pub fn digest(&self) -> Digest {
        self.core.store.digest()
    }

    /// Returns the map in force.
    pub fn map(&self) -> &Map {
        self.core.maps.now().map()
    }

    /// Returns the last applied batch, by epoch and partition: everything of it and of all before it is executed
    /// here.
    pub fn applied(&self) -> (Epoch, PartitionId) {
        self.core.order.backlog.applied()
    }

    /// Returns the published epoch: everything of it and of all before it has been done to this shard's records.
    pub fn published(&mut self) -> Epoch {
        self.core.order.backlog.published()
    }

    // ---- where it begins -------------------------------------------------------------------------------

    /// Puts the map in force that was at the end of the checkpoint with which this begins. Precedes its records.
    pub fn begin_under(&mut self, map: &Map) {
        self.core.begin_under(map);
    }

    /// Takes a record from a checkpoint; returns whether the shard holds more than its budget of memory now, so that the disk has something
    /// to [do](Shard::carry_out).
    pub fn restore(&mut self, db: Db, key: &[u8], cell: Cell, version: Gsn) -> bool {
        self.core.restore(db, key, cell, version);
        self.core.is_over_budget()
    }

    /// Has the disk do what it is to do for the shard's values, while no driver does it.
    pub fn carry_out(&mut self, directory: &mut dyn Directory) {
        self.core.carry_out(directory);
    }

    /// Puts the files of values in order, while no driver runs and no time passes.
    pub fn tidy(&mut self, directory: &mut dyn Directory) {
        self.core.tick_values();
        self.core.carry_out(directory);
    }

    /// Takes an outcome from a checkpoint.
    pub fn restore_outcome(&mut self, outcome: &Outcome<'_>) {
        self.core.replies.sessions.outcomes.put(outcome);
    }

    /// Begins after a checkpoint of this epoch, all of which has been taken.
    pub fn begin_after(&mut self, epoch: Epoch) {
        self.core.begin_after(epoch);
        self.scheduler.begin_after(self.core.order.started);
    }

    /// Continues, on a node on its own, after replay: no batch up to this epoch is still to come.
    pub fn resume_after(&mut self, epoch: Epoch) {
        let partition = self.core.site.places.layout.partition_of_shard(self.core.site.number);
        self.core.order.backlog.skip((epoch, partition));
    }

    // ---- the order -------------------------------------------------------------------------------------

    /// Starts transactions in the order as far as nothing forbids it, and resumes those that may run on.
    fn run(&mut self) {
        let Shard { core, scheduler } = self;
        loop {
            while let Some(txn) = core.active.pop_ready() {
                core.resume(&mut **scheduler, txn);
            }
            if !scheduler.run(core) && !core.active.has_ready() {
                return;
            }
        }
    }
}

impl<S: RecordStore + Send> Role for Shard<S> {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        let Shard { core, scheduler } = self;
        match event {
            Event::Start => {
                core.go_live(out);
                core.begin_to_defer();
                core.begin_to_give_away();
                out.set_timer(SWEEP, SWEEP_EVERY);
            }
            Event::Stop => {}
            Event::Timer(GO_ON) => {}
            Event::Timer(capture::GIVE) => core.rested(),
            Event::Timer(_) => {
                core.look_for_expired(now, out);
                core.store.settle(SETTLED);
                core.tell_sizes(out);
                core.look_at_load(now.elapsed, out);
                core.attestation_now_and_then(out);
                core.note_spans();
                core.keep_states();
                core.reader.forget_late(now.elapsed);
                core.tick_values();
                core.send_values(out);
                out.set_timer(SWEEP, SWEEP_EVERY);
                return;
            }
            Event::Message { message: Message::Log(Log::Sealed(batch)), .. } => core.take_batch(batch, out),
            Event::Message { message: Message::Sequencing(Sequencing::Grant(gsn)), .. } => {
                scheduler.take_grant(core, gsn);
            }
            Event::Message { message: Message::Sequencing(Sequencing::Passed(epoch)), .. } => {
                core.order.backlog.pass(epoch);
            }
            Event::Message { message: Message::Configuration(Configuration::Stable(epoch)), .. } => {
                core.replies.note_stable(epoch);
            }
            Event::Message { message: Message::Sequencing(Sequencing::Large { shard, slots }), .. } => {
                core.note_sizes(shard, &slots);
                return;
            }
            Event::Message { message: Message::Saving(saving), .. } => core.take_saving(&saving),
            Event::Message { from, message: Message::Reading(reading) } => {
                core.take_reading(now.elapsed, from, reading, out);
            }
            Event::Message { from, message: Message::Engine(remote_result) } => {
                if core.digests.exchange.members().contains(&from) {
                    core.take_attestations(from.node, &remote_result);
                } else {
                    core.take_remote_result(&mut **scheduler, remote_result);
                }
            }
            Event::Work(done) => core.take_computed(done),
            Event::Disk(done) => core.take_disk(done),
            Event::Message { .. } => {
                out.halt(format!("shard {} was sent a message that is not for it", core.site.number));
            }
        }
        core.take_values();
        let rested = core.begin_event(BUDGET);
        core.reader.has_ready = core.reader.is_ready(core.order.backlog.published());
        self.run();
        if !rested.is_empty() {
            self.core.wake(rested, BUDGET);
            self.run();
        }
        let Shard { core, scheduler } = self;
        core.send(&mut **scheduler, out);
        let thaws = core.give(scheduler.first_under_way(), out);
        let has_cleared = core.store.free_some(FREED);
        if core.read(out) || core.has_more() || thaws || has_cleared || core.has_values() {
            out.set_timer(GO_ON, Micros(0));
        }
        core.send_values(out);
        core.operator.under_way.end();
        if let Some(reason) = core.broken.take() {
            out.halt(reason);
        }
    }

    fn name(&self) -> &'static str {
        "shard"
    }

    fn check(&self) -> Result<(), String> {
        let (started, is_idle) = (self.core.order.started, self.core.active.unfinished == 0);
        let checked = self.core.check().and_then(|()| self.scheduler.check(started, is_idle));
        checked.map_err(|why| format!("shard {}: {why}", self.core.site.number))
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        self.core.gauges(report);
        self.scheduler.gauges(report);
    }

    fn digests(&self, report: &mut dyn FnMut(DigestSpan)) {
        self.core.digests.spans.iter().for_each(report);
    }
}
