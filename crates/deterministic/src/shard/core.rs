//! The part of a shard that no engine changes: taking batches, starting, resuming and ending transactions
//! (`docs/protocols/calvin.md`, section 3).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use crate::sequencing::{Log, Sequencing};
use ordain_execution::{PastValues, Tier, Undo, values_prefix};
use ordain_model::procedure::{Locals, Slots};
use ordain_model::system::CopyPart;
use ordain_model::{
    Abort, Batch, Chunk, Epoch, Fragment, Front, Gsn, Isolation, Millis, OutcomeStatus, Position, Registry,
    SlotNo, Txn, system,
};
use ordain_role::{Address, Bug, Outbox, UnderWay};
use ordain_store::RecordStore;

use super::backlog::{Backlog, BatchPlace};
use super::balance::Load;
use super::budget::Budget;
use super::capture::Capture;
use super::digest_exchange::{Attestation, DigestExchange};
use super::maps::{CopyState, Maps, Moving};
use super::messages::Message;
use super::remote::{OutOfOrder, Places, RemoteResults};
use super::replies::Replies;
use super::reply::write_reply;
use super::routes::ShardSet;
use super::scheduler::Scheduler;
use super::snapshot_reader::{ShardView, SnapshotReader};
use super::spans::Spans;
use super::state::Active;
use super::table::ActiveTable;

pub(super) mod capture;
mod execution;
mod expiry;
mod long;
mod moving;
mod operator;
mod reads;
mod remote_results;
mod replication_group;
mod settings;
mod shipping;
pub(super) mod values;

pub use settings::Settings;
use values::Values;

/// Where a shard is among the others.
#[derive(Debug)]
pub struct Site {
    /// Its number among the shards of the replica.
    pub number: usize,
    /// The shards of its partition.
    pub partition: Range<usize>,
    /// The addresses of its peers and of the roles of its node.
    pub places: Places,
}

/// What an operator has to do with single transactions.
#[derive(Debug, Default)]
pub struct Operator {
    /// Transactions that an operator has aborted by their place in the order.
    pub(crate) aborted: Arc<BTreeSet<Gsn>>,
    /// Where the shard says which transaction it is executing, so that one which ends the process is known.
    pub under_way: UnderWay,
}

/// What the code of fragments runs with.
#[derive(Debug)]
pub struct Code {
    /// The procedures.
    pub registry: Arc<Registry>,
    /// Scratch state of procedures on this shard. Results do not depend on it.
    pub locals: Locals,
    /// The buffer in which a fragment that has inputs answers.
    answer: Vec<u8>,
}

/// What a shard does for a move of slots.
#[derive(Debug, Default)]
pub(crate) struct Relocation {
    /// The move under way.
    moving: Option<Moving>,
    /// Copies of slots that are to move.
    copies: CopyState,
    /// A part of a slot that is to be copied, by the transaction under way.
    part: Option<(Gsn, CopyPart)>,
}

/// How far a shard has come in the order.
#[derive(Debug, Default)]
pub struct Order {
    /// Batches that are not started to the end, oldest first.
    pub batches: VecDeque<Arc<Batch>>,
    /// Where in the first of them the next transaction stands: chunk, and transaction of the chunk.
    pub cursor: (usize, usize),
    /// The transaction started last.
    pub started: Gsn,
    /// Batches that are not applied.
    pub backlog: Backlog,
}

/// What is exchanged with other shards.
#[derive(Debug)]
pub struct Remote {
    /// Remote results to be sent when the event is handled.
    pub results: RemoteResults,
    /// The out-of-order buffer: items for transactions that are not started.
    pub out_of_order: OutOfOrder,
}

/// Digests of the shard's state, for the replication group and for operators.
#[derive(Debug)]
pub(crate) struct Digests {
    pub(super) exchange: DigestExchange,
    /// Digests at the ends of late epochs.
    pub(super) spans: Spans,
    /// Attestations to be sent to the other members.
    outgoing: Vec<Attestation>,
}

/// Chores of a shard between transactions.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// The position from which the next sweep for expired records goes on.
    swept: Position,
    /// The load of the partition's slots, on the shard that evaluates it.
    load: Option<Load>,
    /// The sizes of large slots that were reported last.
    reported_sizes: Vec<(usize, u32)>,
}

/// The state of a shard that does not depend on the engine: all but its scheduler.
#[derive(Debug)]
pub struct Core<S> {
    /// Where it is.
    pub site: Site,
    /// Settings, the same for all shards of a node.
    pub settings: Settings,
    /// What an operator has to do with single transactions.
    pub operator: Operator,
    /// Which shard owns which slot, now and as of late epochs.
    pub maps: Maps,
    /// The move of slots under way.
    relocation: Relocation,
    /// What the code of fragments runs with.
    pub code: Code,
    /// The records.
    pub store: S,
    /// Their values that are on disk, if the node has a budget of memory.
    values: Option<Values>,
    /// Values of past states that a scheduler has planned to read.
    pub past: PastValues,
    /// How far it has come in the order.
    pub order: Order,
    /// The transactions under way.
    pub active: ActiveTable,
    /// Changes of transactions that are decided together, of a speculative batch.
    pub undo: Undo,
    /// What is exchanged with other shards.
    pub remote: Remote,
    /// Outcomes on their way to gateways, and those that sessions may ask for again.
    pub(crate) replies: Replies,
    /// Digests of the state.
    pub(crate) digests: Digests,
    /// Why this node must stop, once an invariant is found broken. The first reason stays.
    pub broken: Option<String>,
    /// Chores between transactions.
    upkeep: Upkeep,
    /// The checkpoint under way.
    pub(crate) capture: Capture,
    /// How much may still be done while this event is handled.
    pub budget: Budget,
    /// Reads on snapshots.
    pub reader: SnapshotReader,
    /// Computations that the driver does, and when one is given to it.
    away: long::Away,
    /// Counters for metrics.
    pub counts: Counts,
}

#[derive(Debug, Default)]
pub struct Counts {
    committed: u64,
    aborted: u64,
    /// Aborts by the code of the reason, which begins with 1.
    aborts: [u64; Abort::ALL.len()],
    blocked: u64,
    /// Items that other nodes have repeated.
    pub repeated: u64,
    /// Transactions that were planned under another map.
    turned_back: u64,
    /// Compute fragments that were given away.
    given_away: u64,
    /// Times that a transaction rested between two fragments so that other roles went on.
    rested: u64,
}

/// The result of running a transaction as far as it can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All its fragments on this shard are done.
    Done,
    /// It is blocked until something arrives or is granted.
    Blocked,
    /// The budget of the event is spent first.
    Resting,
}

impl<S: RecordStore> Core<S> {
    pub(super) fn new(
        number: usize,
        places: Places,
        settings: Settings,
        registry: Arc<Registry>,
        store: S,
    ) -> Core<S> {
        let layout = &places.layout;
        let partition = layout.shards_of(layout.partition_of_shard(number));
        let is_shared = number == partition.start && partition.len() > 1;
        let load = settings.balance.filter(|_| is_shared).map(Load::new);
        Core {
            maps: Maps::new(layout.clone()),
            relocation: Relocation::default(),
            remote: Remote {
                results: RemoteResults::new(number, layout.shards()),
                out_of_order: OutOfOrder::default(),
            },
            digests: Digests {
                exchange: DigestExchange::new(places.sequencer.node, Vec::new()),
                spans: Spans::default(),
                outgoing: Vec::new(),
            },
            site: Site { number, partition, places },
            settings,
            operator: Operator::default(),
            code: Code { registry, locals: Locals::default(), answer: Vec::new() },
            store,
            past: PastValues::NONE,
            values: settings.values.map(|settings| Tier::new(values_prefix(number), settings)),
            order: Order::default(),
            active: ActiveTable::default(),
            undo: Undo::default(),
            replies: Replies::default(),
            broken: None,
            upkeep: Upkeep { load, ..Upkeep::default() },
            capture: Capture::default(),
            budget: Budget::default(),
            reader: SnapshotReader::new(number),
            away: long::Away::default(),
            counts: Counts::default(),
        }
    }

    pub(super) fn set_members(&mut self, members: Vec<Address>) {
        if !members.is_empty() {
            // They compare digests after every batch.
            self.store.settle_at_once();
        }
        self.digests.exchange = DigestExchange::new(self.site.places.sequencer.node, members);
    }

    /// Returns how many shards the replica has.
    pub fn shards(&self) -> usize {
        self.site.places.shards.len()
    }

    /// Returns whether there are other partitions. Then a batch is applied only once the replies to it are composed
    /// too: until then peers must keep what they have sent for it, in case that this node has to execute it again.
    pub fn has_peers(&self) -> bool {
        self.site.partition.len() < self.shards()
    }

    /// Returns the set of this shard alone.
    pub fn me(&self) -> ShardSet {
        1 << self.site.number
    }

    /// Returns whether a fragment is to be run on this shard: its record is here, or it is of the whole table.
    #[inline]
    pub fn owns(&self, fragment: &Fragment) -> bool {
        fragment.is_table() || self.maps.now().shard_of(fragment.hash.slot()) == self.site.number
    }

    /// Returns whether a fragment sees the state before its epoch, whatever its place in the order.
    #[inline]
    pub fn is_past(&self, fragment: &Fragment) -> bool {
        fragment.snapshot_readable && self.settings.isolation == Isolation::ReadCommitted
    }

    /// Returns the epoch as of whose end such a fragment of a transaction sees the state. It need not be over yet.
    pub fn seen_by(&self, gsn: Gsn) -> Epoch {
        match self.settings.bugs.has(Bug::ReadUncommitted) {
            true => Epoch(u64::MAX),
            false => before(gsn),
        }
    }

    /// Returns whether a fragment is scheduled on a record of this shard, in the order.
    pub fn is_scheduled(&self, fragment: &Fragment) -> bool {
        fragment.is_keyed() && self.owns(fragment) && !self.is_past(fragment)
    }

    // ---- the order -------------------------------------------------------------------------------------

    pub(super) fn take_batch(&mut self, batch: Arc<Batch>, out: &mut Outbox<Message>) {
        let (epoch, partition) = (batch.epoch, batch.partition);
        if self.order.backlog.is_past((epoch, partition)) {
            return;
        }
        self.note_span_before(epoch);
        if let Err((last, of)) = self.order.backlog.hand((epoch, partition)) {
            self.broken.get_or_insert(format!(
                "shard {} was handed the batch of epoch {epoch} of partition {partition} after that of epoch {last} \
                 of partition {of}",
                self.site.number
            ));
            return;
        }
        if let Some(lock_manager) =
            self.site.places.lock_manager.filter(|_| self.site.number == self.site.partition.start)
        {
            out.send(lock_manager, Log::Sealed(batch.clone()));
        }
        if !self.has_peers() {
            // There is one batch an epoch.
            self.order.backlog.pass(epoch);
        }
        for lookup in &batch.lookups {
            if self.site.places.layout.home_of(lookup.session) == self.site.number {
                self.replies.look_up(*lookup);
            }
        }
        if let Some(load) = &mut self.upkeep.load {
            let layout = self.maps.now();
            let own = layout.partition_of_shard(self.site.number);
            load.note(&batch, |slot| layout.partition_of(slot) == own);
        }
        self.order.batches.push_back(batch);
        // Contents that were kept for reads are freed in small steps.
        self.keep_states();
        self.give_up_old_copies();
    }

    /// Returns whether items are to leave for a peer, or are expected from one, or reads on snapshots are ready: then
    /// the budget counts.
    pub fn is_awaited(&self) -> bool {
        self.reader.has_ready
            || self.shards() > 1 && (!self.active.is_empty() || !self.remote.results.is_empty())
    }

    /// Starts the transaction at a place of a chunk, whose `base` is the index of the chunk's first: finds which
    /// shards take part. `None` if this shard does not, or the transaction ends without execution.
    pub fn begin(
        &mut self,
        batch: &Batch,
        base: u32,
        (chunk, is_stale): (&Arc<Chunk>, bool),
        at: usize,
    ) -> Option<Box<Active>> {
        let txn = &chunk.txns()[at];
        let gsn = batch.gsn(base, txn);
        self.order.started = gsn;
        if self.is_aborted_by_operator(gsn, chunk, txn) {
            return None;
        }
        if txn.table && txn.call.procedure == system::CHECKPOINT {
            self.cut(gsn.epoch(), chunk.replica);
        }
        if is_stale && self.is_turned_back(gsn, chunk, txn) {
            return None;
        }
        if txn.table {
            self.begin_moving(gsn, chunk, txn);
        }
        if self.settings.bugs.has(Bug::SkipTransaction) && gsn.0 % 97 == 13 {
            return None;
        }
        if self.settings.bugs.has(Bug::FlipRecord) && gsn.0 % 89 == 7 {
            self.flip(chunk, txn);
        }
        self.take_up(gsn, batch.now, chunk, at)
    }

    /// Makes the state of a transaction from the beginning, for its first or second execution. `None` if this shard
    /// does not take part.
    pub fn take_up(&mut self, gsn: Gsn, now: Millis, chunk: &Arc<Chunk>, at: usize) -> Option<Box<Active>> {
        let txn = &chunk.txns()[at];
        let only = chunk.only_shard(txn, self.maps.now());
        if only.is_some_and(|shard| shard != self.site.number) {
            return None;
        }
        let mut active = self.active.take_spare();
        active.alone = only.is_some() || self.shards() == 1 || self.is_alone(chunk, txn);
        if !active.alone {
            active.routes.analyse(chunk, txn, self.maps.now());
            let me = self.me();
            if (active.routes.participants | 1 << active.routes.collector) & me == 0 {
                self.give_back(active);
                return None;
            }
            active.reset(gsn, now, chunk, at);
            if txn.abortable && active.routes.vote_recipients & me != 0 {
                active.votes_missing = active.routes.voters & !me;
            }
        } else {
            active.reset(gsn, now, chunk, at);
        }
        Some(active)
    }

    /// Returns whether a transaction is of this shard only, with its reply: then nothing is exchanged for it.
    fn is_alone(&self, chunk: &Chunk, txn: &Txn) -> bool {
        let layout = self.maps.now();
        let owns = |fragment: &Fragment| layout.shard_of(fragment.hash.slot()) == self.site.number;
        !txn.table
            && chunk.collector(txn, layout) == self.site.number
            && chunk.fragments(txn).iter().all(owns)
    }

    /// Keeps the state of a transaction that has ended or does not concern this shard, for its memory.
    pub fn give_back(&mut self, active: Box<Active>) {
        self.active.keep_spare(active);
    }

    /// Gives a number to a transaction that is blocked, or whose reply is incomplete.
    pub fn number_of(&mut self, active: &Active) -> u32 {
        self.counts.blocked += 1;
        let number = self.active.enter(active.gsn);
        if !active.done_here {
            self.active.unfinished += 1;
            self.order.backlog.count_unsettled(batch_of(active.gsn), 1);
            if active.chunk.txns()[active.at].table {
                self.active.barrier = Some(number);
            }
        }
        if !active.done_here || self.has_peers() {
            self.order.backlog.count(batch_of(active.gsn), 1);
        }
        number
    }

    /// Resumes a transaction that has a number, if it has the grants it needs.
    pub(super) fn resume(&mut self, scheduler: &mut dyn Scheduler<S>, number: u32) {
        let Some(mut active) = self.active.take(number) else { return };
        self.credit(batch_of(active.gsn));
        let mut over = active.done_here && !active.is_speculative && self.finish_here(&mut active);
        let progress = (!active.done_here && active.may_run()).then(|| {
            scheduler.prepare(self, number, &mut active);
            let chunk = active.chunk.clone();
            self.advance(&chunk, &mut active)
        });
        // A resting transaction goes on soon: to search for what it could give up would take longer than that spares
        // others.
        if progress == Some(Progress::Blocked) {
            scheduler.pause(self, number, &mut active);
        } else if progress == Some(Progress::Done) {
            self.active.unfinished -= 1;
            self.order.backlog.count_unsettled(batch_of(active.gsn), -1);
            if !self.has_peers() {
                self.order.backlog.count(batch_of(active.gsn), -1);
            }
            if self.active.barrier == Some(number) {
                self.active.barrier = None;
            }
            scheduler.release(self, number, &mut active);
            over = if active.is_speculative {
                self.leave_undecided(&mut active)
            } else {
                self.finish_here(&mut active)
            };
        }
        if over {
            self.forget(number, active);
        } else {
            self.active.put(number, active);
        }
    }

    /// Ends a transaction that has a number.
    pub fn forget(&mut self, number: u32, mut active: Box<Active>) {
        if self.has_peers() {
            self.order.backlog.count(batch_of(active.gsn), -1);
        }
        self.active.leave(number, &mut active);
        self.give_back(active);
    }

    /// Notes that all fragments of a speculative transaction are done here. Its reply is kept until the speculative
    /// batch is decided; returns whether none is composed here.
    pub fn leave_undecided(&self, active: &mut Active) -> bool {
        active.done_here = true;
        !active.alone && active.routes.collector != self.site.number
    }

    /// Ends the batch in front, all of which has been started.
    pub fn end_batch(&mut self, batch: &Batch) {
        self.order.cursor = (0, 0);
        self.order.batches.pop_front();
        self.order.backlog.started((batch.epoch, batch.partition));
    }

    /// Notes that all fragments of a transaction are done here, and composes the reply if this shard does and can;
    /// returns whether nothing is left to do.
    pub fn finish_here(&mut self, active: &mut Active) -> bool {
        active.done_here = true;
        if !active.alone && active.routes.collector != self.site.number {
            return true;
        }
        if !active.is_whole() {
            return false;
        }
        let txn = &active.chunk.txns()[active.at];
        let is_cut = active.slots.is_beyond(self.code.registry.limits().reply);
        let large = if is_cut { 0 } else { active.slots.answered_bytes() };
        self.conclude(&active.chunk, txn, active.gsn, (&active.slots, is_cut, large), active.failure);
        true
    }

    /// Concludes a transaction whose reply is composed here: reports its outcome, and remembers it if it may not take
    /// effect twice.
    pub fn conclude(
        &mut self,
        chunk: &Chunk,
        txn: &Txn,
        gsn: Gsn,
        (slots, is_cut, large): (&dyn Slots, bool, usize),
        failure: Option<(SlotNo, Abort)>,
    ) {
        let Some(procedure) = self.code.registry.get(txn.call.procedure) else { return };
        let status = match failure {
            None => OutcomeStatus::Committed,
            Some((_, abort)) => OutcomeStatus::Aborted(abort),
        };
        match status {
            OutcomeStatus::Committed => self.counts.committed += 1,
            OutcomeStatus::Aborted(abort) => {
                self.counts.aborted += 1;
                self.counts.aborts[usize::from(abort.code()) - 1] += 1;
            }
            _ => self.counts.aborted += 1,
        }
        let mut bytes = 0;
        let write = |reply: &mut Vec<u8>| {
            let at = reply.len();
            if large >= LARGE {
                // A buffer that grows step by step is copied at each step.
                reply.reserve(large + 16 * chunk.fragments(txn).len());
            }
            write_reply(procedure, &self.code.registry, chunk, txn, (slots, is_cut), failure, reply);
            bytes = reply.len() - at;
        };
        self.replies.conclude(&self.site.places, (gsn, chunk, txn), status, write);
        self.charge(bytes);
    }

    /// Begins to defer replies, where executed transactions may be lost: the node's log has been executed again, and
    /// outcomes leave from now on.
    pub(super) fn begin_to_defer(&mut self) {
        if self.settings.may_be_lost {
            self.replies.begin_to_defer();
        }
    }

    // ---- the end of a step -------------------------------------------------------------------------------

    pub(super) fn send(&mut self, scheduler: &mut dyn Scheduler<S>, out: &mut Outbox<Message>) {
        self.remote.results.send(&self.site.places, out);
        scheduler.send(self, out);
        // Peers wait for remote results, so these leave first. Outcomes of clients leave together, as their next
        // requests are then one chunk, not many, unless something large is among them.
        for outcomes in self.replies.leaving(self.budget.is_spent_on_small_things()) {
            if let Some(gateway) = self.site.places.gateway_at(outcomes.gateway) {
                out.send(gateway, Front::Outcomes(outcomes));
            }
        }
        if let Some((epoch, partition)) = self.order.backlog.advance() {
            let listener = self.site.places.exchange.unwrap_or(self.site.places.sequencer);
            out.send(listener, Sequencing::Applied { epoch, partition });
            self.compare((epoch, partition));
        }
        self.attestation(out);
        self.send_work(out);
    }

    // ---- what can be seen of it --------------------------------------------------------------------------

    /// What must hold between two events.
    pub(super) fn check(&self) -> Result<(), String> {
        self.active.check()?;
        if let Some(gsn) = self.remote.out_of_order.first().filter(|gsn| *gsn <= self.order.started) {
            return Err(format!("something was never consumed, of {gsn}"));
        }
        self.reader.check(self.order.backlog.published_by_now())?;
        self.values.iter().try_for_each(Tier::check)?;
        self.check_away()
    }

    pub(super) fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_shard_committed_total", self.counts.committed as f64);
        report("ordain_shard_aborted_total", self.counts.aborted as f64);
        for (name, count) in ABORTS.into_iter().zip(self.counts.aborts) {
            report(name, count as f64);
        }
        report("ordain_shard_blocked_total", self.counts.blocked as f64);
        report("ordain_shard_repeated_total", self.counts.repeated as f64);
        report("ordain_shard_turned_back_total", self.counts.turned_back as f64);
        report("ordain_shard_copied_total", self.relocation.copies.made as f64);
        report("ordain_shard_given_away_total", self.counts.given_away as f64);
        report("ordain_shard_rested_total", self.counts.rested as f64);
        report("ordain_shard_computing", self.away.len() as f64);
        report("ordain_shard_map_version", f64::from(self.maps.now().map().version()));
        report("ordain_shard_slots", self.maps.now().owned_by(self.site.number).count() as f64);
        report("ordain_shard_doubts_total", self.digests.exchange.doubts() as f64);
        report("ordain_shard_in_flight", self.active.len() as f64);
        report("ordain_shard_out_of_order_items", self.remote.out_of_order.len() as f64);
        report("ordain_shard_snapshot_reads_total", self.reader.counts.read as f64);
        report("ordain_shard_snapshot_waits_total", self.reader.counts.waited as f64);
        report("ordain_shard_snapshot_too_old_total", self.reader.counts.too_old as f64);
        report("ordain_shard_snapshot_chunks", self.reader.waiting() as f64);
        report("ordain_shard_snapshot_gathering", self.reader.gathering() as f64);
        report("ordain_shard_applied_epoch", self.order.backlog.applied().0.0 as f64);
        report("ordain_shard_hits_total", self.code.locals.counts.hits as f64);
        report("ordain_shard_misses_total", self.code.locals.counts.misses as f64);
        report("ordain_shard_expired_total", self.code.locals.counts.expired as f64);
        self.values.iter().for_each(|tier| tier.gauges(report));
        let memory = self.store.memory();
        report("ordain_store_memory_bytes", memory.total() as f64);
        report("ordain_store_records", f64::from(self.store.records()));
        report("ordain_store_older_records", self.store.older() as f64);
        let spread = self.store.spread();
        report("ordain_store_changed_records", spread.records as f64);
        report("ordain_store_older_of_a_record_p99", spread.p99 as f64);
        report("ordain_store_older_of_a_record_max", spread.max as f64);
        // Of a record no more contents are needed than this: one an epoch.
        let kept = self.reader.kept().map_or(0, |kept| self.order.started.epoch().0.saturating_sub(kept.0));
        report("ordain_shard_snapshot_kept_epochs", kept as f64);
    }
}

/// The series of the aborts that deterministic engines give, in the order of their codes: the first ones.
const ABORTS: [&str; 7] = [
    "ordain_shard_aborts_total{reason=\"logic\"}",
    "ordain_shard_aborts_total{reason=\"conflict\"}",
    "ordain_shard_aborts_total{reason=\"restart\"}",
    "ordain_shard_aborts_total{reason=\"panic\"}",
    "ordain_shard_aborts_total{reason=\"budget\"}",
    "ordain_shard_aborts_total{reason=\"cascade\"}",
    "ordain_shard_aborts_total{reason=\"operator\"}",
];
/// A reply of at least so many bytes is composed in memory that is asked for at once.
const LARGE: usize = 1 << 20;
/// The records of a prefetch batch: enough for their misses to overlap.
pub(crate) const AHEAD: usize = 24;
/// The fragments of reads on snapshots that a shard runs between two rounds of what is ordered: as many as of these,
/// so that neither starves (`docs/protocols/paxflow.md`, P18).
const READ_BUDGET: usize = 256;
/// The fragments of reads while nothing that is ordered waits: so much later it begins at most, less than a
/// millisecond.
const IDLE_READ_BUDGET: usize = 2048;
/// Returns the epoch before that of a transaction.
pub const fn before(gsn: Gsn) -> Epoch {
    Epoch(gsn.epoch().0.saturating_sub(1))
}

/// Returns the place of the batch that a transaction is of.
pub const fn batch_of(gsn: Gsn) -> BatchPlace {
    (gsn.epoch(), gsn.partition())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aborts_are_counted_under_their_labels() {
        for (name, abort) in ABORTS.into_iter().zip(Abort::ALL) {
            assert_eq!(name, format!("ordain_shard_aborts_total{{reason=\"{}\"}}", abort.label()));
        }
    }
}
