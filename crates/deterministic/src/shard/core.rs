//! What a shard has, and how a transaction is executed whose turn has come (calvin.md, sections 4.2 to 4.6).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ordain_model::cell::CellMut;
use ordain_model::plan::nested_args;
use ordain_model::procedure::{Inputs, Locals, Slots, Target};
use ordain_model::serial::{key_of, seed_of};
use ordain_model::{
    Abort, Access, Batch, Cell, Chunk, Epoch, Fragment, FragmentContext, Front, Gsn, Isolation, Layouts,
    Millis, OutcomeBatch, OutcomeStatus, Position, Registry, SlotNo, Txn, Version, system,
};
use ordain_role::{Address, Bug, Outbox, UnderWay};
use ordain_sequencer::Sequencing;
use ordain_store::{RecordId, RecordStore};

use super::backlog::{Backlog, Turn};
use super::balance::Load;
use super::capture::Capture;
use super::covered;
use super::deferred_replies::DeferredReplies;
use super::digest_exchange::{Attestation, DigestExchange};
use super::long::Computation;
use super::mail::{Early, Places, RemoteResults};
use super::maps::{CopyState, Maps, Moving};
use super::members::{Held, Members, refuse};
use super::messages::{Item, Message};
use super::records::{drop_expired, past_of, read_record, write_record};
use super::reply::{are_enough, outcomes_of, write_reply};
use super::scheduler::Scheduler;
use super::sessions::Sessions;
use super::snapshot_reader::{Desk, Reader};
use super::spans::Spans;
use super::state::{Active, CUT, Lent, Loan, ShardSet, empty, owner};
use super::undo::{PINNED, Undo};

pub(super) mod capture;
mod expiry;
mod long;
mod moving;
mod operator;
mod reads;
mod remote_results;
mod replication_group;
mod settings;

pub use settings::Settings;

/// Everything of a shard but what gives turns.
#[derive(Debug)]
pub struct Core<S> {
    /// Its number among the shards of the replica.
    pub number: usize,
    /// The shards of its partition.
    pub partition: Range<usize>,
    pub settings: Settings,
    /// Transactions that an operator has aborted by their place in the order.
    pub aborted: Arc<BTreeSet<Gsn>>,
    /// Where it says which transaction it is executing.
    pub under_way: UnderWay,
    pub places: Places,
    /// Which slots are where, now and as of late epochs.
    pub maps: Maps,
    /// The layouts by which others have planned.
    pub layouts: Layouts,
    /// The move that is under way.
    pub(crate) moving: Option<Moving>,
    copies: CopyState,
    pub registry: Arc<Registry>,
    pub store: S,
    pub locals: Locals,
    /// Batches not yet started to the end, and where in the first of them the order stands.
    pub stream: VecDeque<Arc<Batch>>,
    pub cursor: (usize, usize),
    /// Batches not yet applied.
    pub backlog: Backlog,
    /// The transaction started last.
    pub started: Gsn,
    /// Transactions under way, by number; vacant places are in `vacant`.
    pub active: Vec<Option<Box<Active>>>,
    pub vacant: Vec<u32>,
    pub by_gsn: BTreeMap<Gsn, u32>,
    /// How many of them are unfinished here; the others wait for a reply slot only.
    pub unfinished: usize,
    /// Transactions that have all their turns, or were told something, and may go on.
    pub ready: VecDeque<u32>,
    /// The whole-table transaction under way: nothing else starts before it is done here.
    pub barrier: Option<u32>,
    /// What the transactions of a unit have changed that is not decided.
    pub undo: Undo,
    /// What came for transactions whose turn has not come (calvin.md, section 8, scenario 1).
    pub early: Early,
    pub(crate) sessions: Sessions,
    pub(crate) digest_exchange: DigestExchange,
    /// Digests at the ends of late epochs, for operators.
    pub(super) spans: Spans,
    /// Attestations for the other members of the replication group.
    pub(crate) attestations: Vec<Attestation>,
    pub outcomes: Vec<OutcomeBatch>,
    /// Those that are not certain yet, once this runs.
    pub(super) deferred_replies: Option<DeferredReplies>,
    pub remote_results: RemoteResults,
    /// Why this node must stop, once something has shown it.
    pub broken: Option<String>,
    /// States of transactions that have ended, for their memory.
    #[expect(
        clippy::vec_box,
        reason = "they come and go by their boxes; half a kilobyte each is not to be moved"
    )]
    spare: Vec<Box<Active>>,
    /// Where a fragment that has inputs answers; for its memory.
    answer: Vec<u8>,
    /// What those have in the place of a chunk that nobody should keep for them.
    no_chunk: Arc<Chunk>,
    /// From where on it is looked next for what has expired.
    pub(crate) swept: Position,
    /// What is asked of the partition's slots, if this shard looks after that.
    load: Option<Load>,
    /// What was told last of large slots here.
    told_sizes: Vec<(usize, u32)>,
    pub(crate) capture: Capture,
    /// How many fragments may still be started in this turn; it only counts while somebody waits.
    pub turn_left: usize,
    /// What is run on snapshots.
    pub reader: Reader,
    /// Some of that is ready, and has its turns between those of what is ordered.
    pub has_reads: bool,
    /// The work that a compute fragment may do here before it is given away; none while nobody would do it.
    pub patience: Option<u64>,
    /// What is computed elsewhere.
    away: long::Away,
    /// Set once something in this turn counted for more than a fragment.
    is_heavy: bool,
    /// Transactions that go on in the next turn, as this one was over before they were, the oldest first.
    resting: Vec<Gsn>,
    pub counts: Counts,
}

#[derive(Debug, Default)]
pub struct Counts {
    committed: u64,
    aborted: u64,
    /// By the code of the reason, which begins with 1.
    aborts: [u64; Abort::ALL.len()],
    parked: u64,
    /// What other nodes have told again.
    pub repeated: u64,
    /// Transactions that were planned under another map.
    turned_back: u64,
    /// Compute fragments that were given away.
    given_away: u64,
    /// Times that a transaction stopped between two fragments so that others had their turn.
    rested: u64,
}

/// Result of advancing a transaction as far as it can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// Everything of it that belongs here is done.
    Done,
    /// Something has to arrive first.
    Blocked,
    /// The turn of the event loop is over first.
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
            number,
            maps: Maps::new(layout.clone()),
            layouts: Layouts::new(layout.clone()),
            moving: None,
            copies: CopyState::default(),
            partition,
            remote_results: RemoteResults::new(number, layout.shards()),
            settings,
            aborted: Arc::default(),
            under_way: UnderWay::default(),
            registry,
            store,
            locals: Locals::default(),
            stream: VecDeque::new(),
            cursor: (0, 0),
            backlog: Backlog::default(),
            started: Gsn::NONE,
            active: Vec::new(),
            vacant: Vec::new(),
            by_gsn: BTreeMap::new(),
            unfinished: 0,
            ready: VecDeque::new(),
            barrier: None,
            undo: Undo::default(),
            early: Early::default(),
            sessions: Sessions::default(),
            digest_exchange: DigestExchange::new(places.sequencer.node, Vec::new()),
            spans: Spans::default(),
            attestations: Vec::new(),
            outcomes: Vec::new(),
            deferred_replies: None,
            broken: None,
            spare: Vec::new(),
            answer: Vec::new(),
            no_chunk: Arc::default(),
            swept: Position::default(),
            load,
            told_sizes: Vec::new(),
            capture: Capture::default(),
            turn_left: 0,
            reader: Reader::new(number),
            has_reads: false,
            patience: None,
            away: long::Away::default(),
            is_heavy: false,
            resting: Vec::new(),
            counts: Counts::default(),
            places,
        }
    }

    pub(super) fn set_members(&mut self, members: Vec<Address>) {
        if !members.is_empty() {
            // They compare digests after every batch.
            self.store.settle_at_once();
        }
        self.digest_exchange = DigestExchange::new(self.places.sequencer.node, members);
    }

    pub fn shards(&self) -> usize {
        self.places.shards.len()
    }

    /// Whether there are other partitions. Then a batch is applied only once the replies to it are composed too: until
    /// then others must keep what they have said of it, in case that this node has to do it again.
    pub fn has_peers(&self) -> bool {
        self.partition.len() < self.shards()
    }

    pub fn me(&self) -> ShardSet {
        1 << self.number
    }

    #[inline]
    pub fn owns(&self, fragment: &Fragment) -> bool {
        fragment.is_table() || self.maps.now().shard_of(fragment.hash.slot()) == self.number
    }

    /// Whether a fragment sees the state before its epoch, whatever its place in the order.
    #[inline]
    pub fn is_past(&self, fragment: &Fragment) -> bool {
        fragment.pure && self.settings.isolation == Isolation::ReadCommitted
    }

    /// The epoch as of whose end it does. It need not be over yet.
    pub fn seen_by(&self, gsn: Gsn) -> Epoch {
        match self.settings.bugs.has(Bug::ReadUncommitted) {
            true => Epoch(u64::MAX),
            false => before(gsn),
        }
    }

    /// Whether a fragment is to have its turn on a record of this shard, in the order.
    pub fn has_turn(&self, fragment: &Fragment) -> bool {
        fragment.is_keyed() && self.owns(fragment) && !self.is_past(fragment)
    }

    // ---- the order -------------------------------------------------------------------------------------

    pub(super) fn take_batch(&mut self, batch: Arc<Batch>, out: &mut Outbox<Message>) {
        let (epoch, partition) = (batch.epoch, batch.partition);
        if self.backlog.is_past((epoch, partition)) {
            return;
        }
        self.note_span_before(epoch);
        if let Err((last, of)) = self.backlog.hand((epoch, partition)) {
            self.broken.get_or_insert(format!(
                "shard {} was handed the batch of epoch {epoch} of partition {partition} after that of epoch {last} \
                 of partition {of}",
                self.number
            ));
            return;
        }
        if let Some(lock_manager) = self.places.lock_manager.filter(|_| self.number == self.partition.start) {
            out.send(lock_manager, Sequencing::Sealed(batch.clone()));
        }
        if !self.has_peers() {
            // There is one batch an epoch.
            self.backlog.pass(epoch);
        }
        for lookup in &batch.lookups {
            if self.places.layout.home_of(lookup.session) == self.number {
                let at = outcomes_of(&mut self.outcomes, lookup.gateway);
                if !self.sessions.answer(lookup, &mut self.outcomes[at]) {
                    self.sessions.wait(*lookup);
                }
            }
        }
        if let Some(load) = &mut self.load {
            let layout = self.maps.now();
            let own = layout.partition_of_shard(self.number);
            load.note(&batch, |slot| layout.partition_of(slot) == own);
        }
        self.stream.push_back(batch);
        // What was kept for others goes bit by bit.
        self.keep_states();
        self.give_up_old_copies();
    }

    /// Whether something is to leave for a peer, or is waited for from one, or reads wait for their turn.
    pub fn is_awaited(&self) -> bool {
        self.has_reads || self.shards() > 1 && (!self.by_gsn.is_empty() || !self.remote_results.is_empty())
    }

    /// A transaction's turn in the order has come: who takes part in it. `None` if this shard does not.
    pub fn begin(
        &mut self,
        batch: &Batch,
        base: u32,
        (chunk, is_stale): (&Arc<Chunk>, bool),
        at: usize,
    ) -> Option<Box<Active>> {
        let txn = &chunk.txns()[at];
        let gsn = batch.gsn(base, txn);
        self.started = gsn;
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

    /// The state of a transaction from the beginning, before or after it was executed once. `None` if this shard has
    /// nothing to do with it.
    pub fn take_up(&mut self, gsn: Gsn, now: Millis, chunk: &Arc<Chunk>, at: usize) -> Option<Box<Active>> {
        let txn = &chunk.txns()[at];
        let only = chunk.only_shard(txn, self.maps.now());
        if only.is_some_and(|shard| shard != self.number) {
            return None;
        }
        let mut active = self.spare.pop().unwrap_or_default();
        active.alone = only.is_some() || self.shards() == 1 || self.is_alone(chunk, txn);
        if !active.alone {
            active.routes.analyse(chunk, txn, self.maps.now());
            let me = self.me();
            if (active.routes.participants | 1 << active.routes.collector) & me == 0 {
                self.give_back(active);
                return None;
            }
            active.reset(gsn, now, chunk, at);
            if txn.abortable && active.routes.judges & me != 0 {
                active.votes_missing = active.routes.voters & !me;
            }
        } else {
            active.reset(gsn, now, chunk, at);
        }
        Some(active)
    }

    /// Whether a transaction is this shard's alone, and the reply too: then there is nobody to tell, or to hear from.
    fn is_alone(&self, chunk: &Chunk, txn: &Txn) -> bool {
        let layout = self.maps.now();
        let owns = |fragment: &Fragment| layout.shard_of(fragment.hash.slot()) == self.number;
        !txn.table && chunk.collector(txn, layout) == self.number && chunk.fragments(txn).iter().all(owns)
    }

    /// A transaction has ended, or does not concern this shard.
    pub fn give_back(&mut self, mut active: Box<Active>) {
        if self.spare.len() < SPARE {
            active.slots.reset(0);
            self.spare.push(active);
        }
    }

    /// A transaction that has to wait is under way, by the number that this answers.
    pub fn number_of(&mut self, active: &Active) -> u32 {
        self.counts.parked += 1;
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.active.push(None);
            self.active.len() as u32 - 1
        });
        if !active.done_here {
            self.unfinished += 1;
            self.backlog.count_unsettled(turn_of(active.gsn), 1);
            if active.chunk.txns()[active.at].table {
                self.barrier = Some(number);
            }
        }
        if !active.done_here || self.has_peers() {
            self.backlog.count(turn_of(active.gsn), 1);
        }
        self.by_gsn.insert(active.gsn, number);
        number
    }

    /// Goes on with a transaction that had to wait, if it has its turns.
    pub(super) fn resume(&mut self, scheduler: &mut dyn Scheduler<S>, number: u32) {
        let Some(mut active) = self.active[number as usize].take() else { return };
        self.credit(turn_of(active.gsn));
        let mut over = active.done_here && !active.in_unit && self.finish_here(&mut active);
        let progress = (!active.done_here && active.may_run()).then(|| {
            scheduler.prepare(self, number, &mut active);
            let chunk = active.chunk.clone();
            self.advance(&chunk, &mut active)
        });
        // One that rests goes on soon: to look for what it could give up each time would take longer than that spares others.
        if progress == Some(Progress::Blocked) {
            scheduler.pause(self, number, &mut active);
        } else if progress == Some(Progress::Done) {
            self.unfinished -= 1;
            self.backlog.count_unsettled(turn_of(active.gsn), -1);
            if !self.has_peers() {
                self.backlog.count(turn_of(active.gsn), -1);
            }
            if self.barrier == Some(number) {
                self.barrier = None;
            }
            scheduler.release(self, number, &mut active);
            over = if active.in_unit {
                self.leave_undecided(&mut active)
            } else {
                self.finish_here(&mut active)
            };
        }
        if over {
            self.forget(number, active);
        } else {
            self.active[number as usize] = Some(active);
        }
    }

    /// A transaction that had a number has ended.
    pub fn forget(&mut self, number: u32, mut active: Box<Active>) {
        if self.has_peers() {
            self.backlog.count(turn_of(active.gsn), -1);
        }
        self.by_gsn.remove(&active.gsn);
        self.vacant.push(number);
        // Of one that did not wait the next one's chunk is mostly the same.
        active.chunk.clone_from(&self.no_chunk);
        self.give_back(active);
    }

    /// The fragments of a transaction of a unit are done. Its reply is kept until the unit is decided; says whether none is
    /// composed here.
    pub fn leave_undecided(&self, active: &mut Active) -> bool {
        active.done_here = true;
        !active.alone && active.routes.collector != self.number
    }

    /// All of the batch in front has been started: the next one's turn has come.
    pub fn end_batch(&mut self, batch: &Batch) {
        self.cursor = (0, 0);
        self.stream.pop_front();
        self.backlog.started((batch.epoch, batch.partition));
    }

    // ---- execution -------------------------------------------------------------------------------------

    /// Runs this shard's fragments of a transaction for as long as their inputs are there, then judges it.
    pub fn advance(&mut self, chunk: &Arc<Chunk>, active: &mut Active) -> Progress {
        self.under_way.begin(active.gsn.plain().0);
        self.noting(active, |core, active| core.run_fragments(chunk, active))
    }

    /// Does something in the name of a transaction, and notes its changes with its unit if it is part of one. The changes
    /// of a transaction that is judged at once stay the newest, in a row, also after it was away.
    #[inline]
    pub fn noting<R>(&mut self, active: &mut Active, work: impl FnOnce(&mut Core<S>, &mut Active) -> R) -> R {
        if !active.in_unit {
            return work(self, active);
        }
        self.undo.turn = Some(active.gsn);
        std::mem::swap(&mut self.undo, &mut active.undo);
        let is_judged_at_once = active.is_judged_at_once();
        if is_judged_at_once {
            active.mark = active.undo.journal.mark();
            active.undo.journal.append(&mut active.set_aside);
        }
        let done = work(self, active);
        if is_judged_at_once && active.is_away {
            active.set_aside = active.undo.journal.split_off(active.mark);
        }
        std::mem::swap(&mut self.undo, &mut active.undo);
        done
    }

    fn run_fragments(&mut self, chunk: &Chunk, active: &mut Active) -> Progress {
        self.take_back_computed(active);
        let txn = &chunk.txns()[active.at];
        let fragments = chunk.fragments(txn);
        // One that moves slots changes nothing until it is done with that.
        if txn.table && !self.go_on_moving() {
            return Progress::Blocked;
        }
        while let Some(fragment) = fragments.get(active.next) {
            let n = active.next;
            // A lent fragment has its turn with the compute fragment that it is lent to.
            if !fragment.lent && (self.owns(fragment) || fragment.access == Access::Compute) {
                if active.lent_out > 0 || active.is_away || n >= active.stops_at {
                    return Progress::Blocked;
                }
                if self.rests(active, txn) {
                    return Progress::Resting;
                }
                if !self.owns(fragment) {
                    self.lend_members(active, chunk, txn, n);
                } else if !self.run_fragment(active, chunk, txn, n) {
                    return Progress::Blocked;
                }
            }
            active.next += 1;
            if active.next == txn.abortable_until as usize && active.lent_out == 0 {
                // Whatever could fail here has or has not: others need not wait for the rest.
                self.vote(active);
            }
        }
        if active.lent_out > 0 {
            return Progress::Blocked;
        }
        if txn.abortable {
            self.vote(active);
            if active.votes_missing != 0 {
                return Progress::Blocked;
            }
            // One of a unit in which others take part is judged with that.
            if active.alone || !active.in_unit {
                self.judge(active);
            }
        }
        Progress::Done
    }

    /// Runs one fragment; says no if it has to wait.
    fn run_fragment(&mut self, active: &mut Active, chunk: &Chunk, txn: &Txn, n: usize) -> bool {
        let fragments = chunk.fragments(txn);
        let fragment = &fragments[n];
        let inputs = chunk.plans().inputs_of(fragment);
        let slot = SlotNo(n as u32);
        let mut poisoned = false;
        let computed = active.computed.take();
        // What was computed elsewhere had its inputs.
        for input in inputs.iter().filter(|_| computed.is_none()) {
            let source = &fragments[input.0 as usize];
            if source.lent {
                let here = self.owns(source);
                let has_come = || matches!(active.borrowed.get(input), Some(Some(_)));
                if !here && !has_come() && active.slots.is_missing(*input) {
                    return false;
                }
            } else if active.slots.is_missing(*input) {
                return false;
            } else {
                poisoned |= active.slots.is_poisoned(*input);
            }
        }
        if fragment.access == Access::TableWrite && txn.abortable {
            // What is done to a whole table is not undone: it waits until nothing can abort any more. The plan
            // has no check after it.
            self.vote(active);
            if active.votes_missing != 0 {
                return false;
            }
            poisoned |= active.failure.is_some();
        }
        let limit = self.registry.limits().reply;
        // What has inputs reads the transaction's slots while it answers.
        let mut arena = match inputs.is_empty() {
            true => active.slots.take_arena(),
            false => std::mem::take(&mut self.answer),
        };
        let at = arena.len();
        let result = if let Some(computed) = computed {
            debug_assert_eq!(computed.n, n, "a transaction waits for one computation");
            arena.extend_from_slice(&computed.answer);
            computed.result
        } else if fragment.access == Access::Compute {
            match self.compute(active, chunk, txn, n, poisoned, &mut arena) {
                Some(result) => result,
                None => {
                    arena.truncate(at);
                    match inputs.is_empty() {
                        true => active.slots.return_arena(arena),
                        false => self.answer = arena,
                    }
                    self.give_away(active, n);
                    return false;
                }
            }
        } else if poisoned {
            Ok(())
        } else if fragment.only_shows() && active.slots.is_beyond(limit) {
            arena.extend_from_slice(CUT);
            Ok(())
        } else {
            self.execute(active, chunk, txn, n, &mut arena)
        };
        if let Err(abort) = result {
            if abort == Abort::Panic {
                arena.truncate(at);
            }
            Active::fail(&mut active.failure, (slot, abort));
            Active::fail(&mut active.own_failure, (slot, abort));
        }
        self.charge(arena.len() - at);
        let bad = poisoned || result.is_err();
        if inputs.is_empty() {
            active.slots.put_arena(arena, slot, at, bad);
        } else {
            active.slots.fill(slot, &arena, bad);
            empty(&mut arena);
            self.answer = arena;
        }
        let only_answers = fragment.only_answers();
        if only_answers {
            active.slots.bound(slot, limit);
        }
        if fragment.is_table() {
            self.answer_table(active, slot);
        } else if !active.alone {
            // What a fragment says as it aborts is the reply, however silent it is otherwise.
            let told = if result.is_err() { 1 << active.routes.collector } else { 0 };
            let readers = (active.routes.readers[n] | told) & !self.me();
            let bytes = if active.slots.is_cut(slot) { CUT } else { active.slots.slot(slot) };
            self.remote_results.add_slot(readers, active.called(), slot, bytes, bad);
            if only_answers && readers != 0 {
                // Nobody here needs it.
                active.slots.cut(slot);
            }
        }
        true
    }

    /// Runs a fragment that reads or writes one record or the table.
    pub fn execute(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        n: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Abort> {
        let fragment = &chunk.fragments(txn)[n];
        let args = chunk.args(txn);
        let key = key_of(args, fragment);
        let Some(code) = self.registry.get(fragment.procedure) else { return Err(Abort::Panic) };
        let (gsn, now) = (active.gsn, active.now);
        let undoable = active.may_be_undone(txn, n);
        let guess = active.guesses.get(n).copied().flatten();
        let past = self.is_past(fragment).then(|| self.seen_by(gsn));
        let mut cx = FragmentContext {
            args: nested_args(args, fragment.call_at),
            db: fragment.db,
            key,
            now,
            seed: seed_of(gsn),
            version: Version::NONE,
            inputs: Inputs { slots: &active.slots, list: chunk.plans().inputs_of(fragment) },
            target: Target::Read(&Cell::ABSENT),
            below: None,
            locals: &mut self.locals,
            registry: &self.registry,
            share: self.registry.limits().share(txn.carriers),
            most: self.registry.limits().reply,
            out,
        };
        if let Some(epoch) = past {
            return covered::look(&self.store.as_of(epoch), fragment, code, cx);
        }
        let name = (fragment.db, key.bytes, fragment.hash);
        match fragment.access {
            Access::Read | Access::Write if fragment.covering => {
                let turn = covered::Turn { gsn, now, undo: undoable.then_some(&mut active.undo) };
                covered::run((&mut self.store, guess), turn, fragment, code, cx)
            }
            Access::Write => {
                let undo = undoable.then_some(&mut active.undo);
                let mut changed_bytes = 0;
                let result =
                    write_record(&mut self.store, guess, name, (gsn, now), undo, |mut cell, version| {
                        let before = cell.weight();
                        let target = Target::Write(cell.reborrow());
                        let mut cx = FragmentContext { target, version: version.into(), below: None, ..cx };
                        let result = guarded(fragment.abortable, || code.run(fragment.code, &mut cx));
                        changed_bytes = cell.weight().abs_diff(before);
                        result
                    });
                self.charge(changed_bytes);
                result
            }
            Access::TableRead | Access::TableWrite => {
                let mut table = self.store.table(gsn);
                cx.target = Target::Table(&mut table);
                guarded(fragment.abortable, || code.run(fragment.code, &mut cx))
            }
            Access::Read | Access::Compute => read_record(&self.store, guess, name, now, |cell, version| {
                let mut cx = FragmentContext {
                    target: Target::Read(cell),
                    version: version.into(),
                    below: None,
                    ..cx
                };
                guarded(fragment.abortable, || code.run(fragment.code, &mut cx))
            }),
        }
    }

    /// Runs a compute fragment on its members, or only returns them if it must not run. None if it has given up: then
    /// nothing has happened.
    fn compute(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        n: usize,
        poisoned: bool,
        out: &mut Vec<u8>,
    ) -> Option<Result<(), Abort>> {
        let fragment = &chunk.fragments(txn)[n];
        let is_past = self.settings.isolation == Isolation::ReadCommitted;
        let past = is_past.then(|| self.seen_by(active.gsn));
        let here = (self.number, &**self.maps.now(), past);
        let mut members = Members::gather(here, &mut self.store, active, chunk, txn, n);
        let mut result = Ok(());
        let share = self.registry.limits().share(txn.carriers);
        let is_held_back = |slot: &SlotNo| !active.slots.is_missing(*slot);
        let is_too_much = members.are_beyond(share, chunk, txn, n, is_held_back);
        if is_too_much && !poisoned {
            result = refuse(fragment, out);
        } else if !poisoned {
            let computation = Computation { chunk, at: active.at, n, gsn: active.gsn, now: active.now };
            self.locals.set_patience(self.patience);
            result = computation.run(&self.registry, &mut self.locals, &active.slots, &mut members, out);
            if self.locals.take_given_up() {
                members.held.into_iter().for_each(|held| self.take_from_hands(active, held));
                return None;
            }
        }
        for held in members.held {
            if held.owner == self.number {
                let lent = &chunk.fragments(txn)[held.slot.0 as usize];
                // One that was only to be read and is absent was not taken: it may be there, and expired.
                if held.writable || held.cell.value.is_some() && !self.is_past(lent) {
                    self.put_home(active, lent, held);
                }
            } else if held.writable && active.slots.is_missing(held.slot) {
                let Held { slot, cell, changed, owner, .. } = held;
                self.remote_results.add(owner, active.called(), Item::Return { slot, cell, changed });
            }
        }
        Some(result)
    }

    /// Puts a record that this shard owns back where it was taken from.
    fn put_home(&mut self, active: &mut Active, lent: &Fragment, held: Held<'_>) {
        let Held { db, key, cell, version, changed, before, .. } = held;
        let known = self.store.find(db, key, lent.hash);
        if known.is_none() && !changed {
            return;
        }
        let record = known.unwrap_or_else(|| self.store.find_or_reserve(db, key, lent.hash));
        match before {
            Some(before) if changed => {
                self.store.put_back(record, before, version);
                let tag = active.undo.touch(&mut self.store, record, lent.hash);
                let journal = &mut active.undo.journal;
                self.store.edit(record, active.gsn, |old, changed| {
                    CellMut::new(old, changed, Some((journal, tag))).replace(cell);
                });
            }
            _ => self.store.put_back(record, cell, if changed { active.gsn } else { version }),
        }
        if self.store.lock(record) == PINNED
            && !(active.is_again && self.undo.holds(record))
            && !active.undo.keeps(&mut self.store, record, lent.hash)
        {
            self.store.set_lock(record, 0);
        }
        self.store.release_if_absent(record);
    }

    /// The turn of a compute fragment that runs elsewhere: its members that are here go there.
    ///
    /// Not earlier: what comes between a lent fragment and its compute fragment may be an input of the latter, or
    /// write the record.
    fn lend_members(&mut self, active: &mut Active, chunk: &Chunk, txn: &Txn, compute: usize) {
        let fragments = chunk.fragments(txn);
        let to = owner(&fragments[compute], self.maps.now()).unwrap_or(self.number);
        let mut back = Vec::new();
        let mut room = self.registry.limits().share(txn.carriers);
        for slot in chunk.plans().inputs_of(&fragments[compute]) {
            let fragment = &fragments[slot.0 as usize];
            if fragment.lent && self.owns(fragment) {
                back.extend(
                    self.lend(active, chunk, txn, *slot, (to, &mut room))
                        .map(|(cell, changed)| (*slot, cell, changed)),
                );
            }
        }
        // All are lent before one comes back, as it was when the compute fragment ran.
        for (slot, cell, changed) in back {
            self.take_back(active, slot, cell, changed);
        }
    }

    /// The record of a lent fragment goes to the shard that computes; answers what has come back already, if the
    /// compute fragment ran before a restart of this shard.
    fn lend(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        slot: SlotNo,
        (to, room): (usize, &mut usize),
    ) -> Option<(Cell, bool)> {
        let fragment = &chunk.fragments(txn)[slot.0 as usize];
        let key = key_of(chunk.args(txn), fragment).bytes;
        let record = self.store.find(fragment.db, key, fragment.hash);
        let live = record.filter(|record| self.store.cell(*record).is_live(active.now));
        let weight = if self.is_past(fragment) {
            let state = self.store.as_of(self.seen_by(active.gsn));
            past_of(&state, (fragment.db, key, fragment.hash), active.now).0.weight()
        } else {
            live.map_or(0, |record| self.store.cell(record).weight())
        };
        if weight > *room {
            // Whatever others lend, it is too much. From here on nothing goes that weighs anything.
            *room = 0;
            self.remote_results.add_slot(1 << to, active.called(), slot, CUT, false);
            return None;
        }
        *room -= weight;
        let ((cell, version), back) = self.hand_out(active, chunk, txn, slot);
        self.remote_results.add(to, active.called(), Item::Lend { slot, cell, version });
        back
    }

    /// Takes the record of a lent fragment for whoever computes, and its version; and what has come back already, if
    /// the compute fragment ran before a restart of this shard.
    fn hand_out(
        &mut self,
        active: &mut Active,
        chunk: &Chunk,
        txn: &Txn,
        slot: SlotNo,
    ) -> ((Cell, Gsn), Option<(Cell, bool)>) {
        let fragment = &chunk.fragments(txn)[slot.0 as usize];
        let key = key_of(chunk.args(txn), fragment).bytes;
        let record = self.store.find(fragment.db, key, fragment.hash);
        let live = record.filter(|record| self.store.cell(*record).is_live(active.now));
        let mut back = None;
        let (cell, version) = if fragment.access == Access::Write {
            let (cell, version) = match (live, record) {
                (Some(record), _) => {
                    // It keeps its place while it is away.
                    if self.store.lock(record) == 0 {
                        self.store.set_lock(record, PINNED);
                    }
                    self.store.take(record, active.gsn)
                }
                (None, Some(record)) => {
                    drop_expired(&mut self.store, active, (txn, fragment), record);
                    (Cell::ABSENT, Gsn::NONE)
                }
                (None, None) => (Cell::ABSENT, Gsn::NONE),
            };
            let before = (txn.abortable || active.in_unit).then(|| cell.clone());
            if let Some(Loan::Early(cell, changed)) =
                active.loans.insert(slot, Loan::Out(Lent { version, before }))
            {
                back = Some((cell, changed));
            }
            active.lent_out += 1;
            (cell, version)
        } else if self.is_past(fragment) {
            let state = self.store.as_of(self.seen_by(active.gsn));
            let (cell, version) = past_of(&state, (fragment.db, key, fragment.hash), active.now);
            (cell.clone(), version)
        } else {
            live.map_or((Cell::ABSENT, Gsn::NONE), |record| {
                (self.store.cell(record).clone(), self.store.version(record))
            })
        };
        ((cell, version), back)
    }

    /// Sends this shard's part of a whole-table slot to the collector, or keeps it if that is this one.
    fn answer_table(&mut self, active: &mut Active, slot: SlotNo) {
        let part = active.slots.slot(slot).to_vec();
        active.slots.unfill(slot);
        if self.shards() > 1 {
            let (readers, me) = (active.routes.readers[slot.0 as usize], self.me());
            self.remote_results.add_slot(readers & !me, active.called(), slot, &part, false);
            if readers & me == 0 {
                return;
            }
        }
        let (me, shards) = (self.number, self.shards());
        active.tables.take(&mut active.slots, slot, (me, shards), part);
    }

    /// A record keeps its place until the unit is over.
    pub fn keep_place(&mut self, record: RecordId) {
        if self.store.lock(record) == 0 {
            self.store.set_lock(record, PINNED);
        }
    }

    /// Tells the verdict of this shard's abortable fragments, once, to all who must know it.
    fn vote(&mut self, active: &mut Active) {
        if active.voted || active.alone || active.in_unit {
            return;
        }
        active.voted = true;
        let me = self.me();
        if active.routes.voters & me == 0 {
            return;
        }
        let mut judges = active.routes.judges & !me;
        while judges != 0 {
            self.remote_results.add(
                judges.trailing_zeros() as usize,
                active.called(),
                Item::Vote(active.own_failure),
            );
            judges &= judges - 1;
        }
    }

    /// Every verdict is known: what was changed here stays, or is undone.
    fn judge(&mut self, active: &mut Active) {
        if active.failure.is_some()
            && !(self.settings.bugs.has(Bug::IgnoreRemoteVote) && active.own_failure.is_none())
        {
            if self.settings.bugs.has(Bug::KeepAbortedWrite) {
                active.undo.journal.forget_last();
            }
            active.undo.roll_back(&mut self.store, active.mark);
        }
        if !active.in_unit {
            let of_unit = Some(&self.undo).filter(|_| active.is_again);
            active.undo.end(&mut self.store, of_unit);
        }
    }

    /// The fragments here are done. If this shard composes the reply and can, it does; says whether nothing is
    /// left to do.
    pub fn finish_here(&mut self, active: &mut Active) -> bool {
        active.done_here = true;
        if !active.alone && active.routes.collector != self.number {
            return true;
        }
        if !active.is_whole() {
            return false;
        }
        let txn = &active.chunk.txns()[active.at];
        let is_cut = active.slots.is_beyond(self.registry.limits().reply);
        let large = if is_cut { 0 } else { active.slots.answered_bytes() };
        self.conclude(&active.chunk, txn, active.gsn, (&active.slots, is_cut, large), active.failure);
        true
    }

    /// Tells how a transaction ended, and remembers it if it may not take effect twice.
    pub fn conclude(
        &mut self,
        chunk: &Chunk,
        txn: &Txn,
        gsn: Gsn,
        (slots, is_cut, large): (&dyn Slots, bool, usize),
        failure: Option<(SlotNo, Abort)>,
    ) {
        let Some(procedure) = self.registry.get(txn.call.procedure) else { return };
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
            write_reply(procedure, &self.registry, chunk, txn, (slots, is_cut), failure, reply);
            bytes = reply.len() - at;
        };
        let ends = (&self.places, &mut self.outcomes, &mut self.sessions);
        conclude(ends, (gsn, chunk, txn), status, write);
        self.charge(bytes);
    }

    /// What it did before it was stopped has been done again: from now on others hear of what it does.
    pub(super) fn begin_to_withhold(&mut self) {
        self.deferred_replies = self.settings.may_be_lost.then(DeferredReplies::default);
    }

    /// Nothing of an epoch or before can be lost any more.
    pub(super) fn note_certain(&mut self, epoch: Epoch) {
        let released = self.deferred_replies.as_mut().map(|deferred_replies| deferred_replies.certain(epoch));
        self.outcomes.extend(released.into_iter().flatten());
    }

    // ---- the end of a step -------------------------------------------------------------------------------

    pub(super) fn send(&mut self, scheduler: &mut dyn Scheduler<S>, out: &mut Outbox<Message>) {
        self.remote_results.send(&self.places, out);
        scheduler.send(self, out);
        // Peers wait for remote results. Clients get their answers together: what they ask next is then one chunk, not many. Where something
        // large is among them, that would be long.
        if let Some(deferred_replies) = &mut self.deferred_replies {
            deferred_replies.sift(&mut self.outcomes);
        }
        let goes_on = self.turn_left == 0 && !self.is_heavy;
        let ready = |outcomes: &mut OutcomeBatch| !goes_on || are_enough(outcomes);
        for outcomes in self.outcomes.extract_if(.., ready) {
            if let Some(gateway) = self.places.way_to(outcomes.gateway) {
                out.send(gateway, Front::Outcomes(outcomes));
            }
        }
        if let Some((epoch, partition)) = self.backlog.advance() {
            let listener = self.places.post.unwrap_or(self.places.sequencer);
            out.send(listener, Sequencing::Applied { epoch, partition });
            self.compare((epoch, partition));
        }
        self.attestation(out);
        self.send_work(out);
    }

    // ---- what can be seen of it --------------------------------------------------------------------------

    /// What must hold between two events.
    pub(super) fn check(&self) -> Result<(), String> {
        let held = self.active.iter().flatten().filter(|active| !active.done_here).count();
        if held != self.unfinished {
            return Err(format!("{} unfinished transactions, {held} counted", self.unfinished));
        }
        if let Some(gsn) = self.early.first().filter(|gsn| *gsn <= self.started) {
            return Err(format!("something was never consumed, of {gsn}"));
        }
        self.check_away()
    }

    pub(super) fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        report("ordain_shard_committed_total", self.counts.committed as f64);
        report("ordain_shard_aborted_total", self.counts.aborted as f64);
        for (name, count) in ABORTS.into_iter().zip(self.counts.aborts) {
            report(name, count as f64);
        }
        report("ordain_shard_parked_total", self.counts.parked as f64);
        report("ordain_shard_repeated_total", self.counts.repeated as f64);
        report("ordain_shard_turned_back_total", self.counts.turned_back as f64);
        report("ordain_shard_copied_total", self.copies.made as f64);
        report("ordain_shard_given_away_total", self.counts.given_away as f64);
        report("ordain_shard_rested_total", self.counts.rested as f64);
        report("ordain_shard_computing", self.away.len() as f64);
        report("ordain_shard_map_version", f64::from(self.maps.now().map().version()));
        report("ordain_shard_slots", self.maps.now().owned_by(self.number).count() as f64);
        report("ordain_shard_doubts_total", self.digest_exchange.doubts() as f64);
        report("ordain_shard_in_flight", self.by_gsn.len() as f64);
        report("ordain_shard_early_messages", self.early.len() as f64);
        report("ordain_shard_snapshot_reads_total", self.reader.counts.read as f64);
        report("ordain_shard_snapshot_waits_total", self.reader.counts.waited as f64);
        report("ordain_shard_snapshot_too_old_total", self.reader.counts.too_old as f64);
        report("ordain_shard_snapshot_chunks", self.reader.waiting() as f64);
        report("ordain_shard_snapshot_gathering", self.reader.gathering() as f64);
        report("ordain_shard_applied_epoch", self.backlog.applied().0.0 as f64);
        report("ordain_shard_hits_total", self.locals.counts.hits as f64);
        report("ordain_shard_misses_total", self.locals.counts.misses as f64);
        report("ordain_shard_expired_total", self.locals.counts.expired as f64);
        let memory = self.store.memory();
        report("ordain_store_memory_bytes", memory.total() as f64);
        report("ordain_store_records", f64::from(self.store.records()));
        report("ordain_store_older_records", self.store.older() as f64);
        let spread = self.store.spread();
        report("ordain_store_changed_records", spread.records as f64);
        report("ordain_store_older_of_a_record_p99", spread.p99 as f64);
        report("ordain_store_older_of_a_record_max", spread.max as f64);
        // Of a record no more contents are needed than this: one an epoch.
        let kept = self.reader.kept().map_or(0, |kept| self.started.epoch().0.saturating_sub(kept.0));
        report("ordain_shard_snapshot_kept_epochs", kept as f64);
    }
}

/// What aborts are called in metrics, in the order of their codes.
const ABORTS: [&str; Abort::ALL.len()] = [
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
/// How many states of transactions are kept for their memory.
const SPARE: usize = 256;
/// How many records are fetched ahead together: enough for their misses to overlap.
pub const AHEAD: usize = 24;
/// How many fragments of reads on snapshots a shard runs before what is ordered has a turn again: the same, so that
/// neither starves (paxflow.md, section 6, `ro_min_share`).
const READ_TURN: usize = 256;
/// The same while nothing that is ordered waits: so much later it begins at most, less than a millisecond.
const IDLE_TURN: usize = 2048;
/// A transaction whose reply is composed here has ended.
fn conclude(
    (places, outcomes, sessions): (&Places, &mut Vec<OutcomeBatch>, &mut Sessions),
    (gsn, chunk, txn): (Gsn, &Chunk, &Txn),
    status: OutcomeStatus,
    write: impl FnOnce(&mut Vec<u8>),
) {
    // A request that may not take effect twice is remembered in every replica; only one says how it ended.
    let session = txn.call.session.filter(|_| !txn.read_only);
    let mut reply = Vec::new();
    if places.answers(chunk, txn) {
        let at = outcomes_of(outcomes, chunk.gateway);
        let outcomes = &mut outcomes[at];
        outcomes.push(chunk.number, txn.index, gsn, status, write);
        if session.is_some() {
            reply.extend(outcomes.outcomes.last().into_iter().flat_map(|outcome| outcomes.reply(outcome)));
        }
    } else if session.is_some() {
        write(&mut reply);
    }
    if let Some(session) = session {
        for lookup in sessions.note(session, gsn, status, &reply) {
            let at = outcomes_of(outcomes, lookup.gateway);
            if !sessions.answer(&lookup, &mut outcomes[at]) {
                sessions.wait(lookup);
            }
        }
    }
}

/// Runs code; a panic of an abortable fragment is an abort like any other, the same on every replica. One of
/// any other fragment is a bug of ours and stops the node (qstore.md, section 4.11).
#[inline]
pub fn guarded(abortable: bool, run: impl FnOnce() -> Result<(), Abort>) -> Result<(), Abort> {
    if abortable { catch_unwind(AssertUnwindSafe(run)).unwrap_or(Err(Abort::Panic)) } else { run() }
}

/// The epoch before that of a transaction.
pub const fn before(gsn: Gsn) -> Epoch {
    Epoch(gsn.epoch().0.saturating_sub(1))
}

pub const fn turn_of(gsn: Gsn) -> Turn {
    (gsn.epoch(), gsn.partition())
}
