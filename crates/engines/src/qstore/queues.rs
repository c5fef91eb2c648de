//! The state of the scheduler: the queues of a shard, and the planning batches of transactions that they are made from.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use ordain_model::args::{Arg, WORD};
use ordain_model::key::MAX_KEYS;
use ordain_model::layout::MAX_SHARDS;
use ordain_model::plan::nested_args;
use ordain_model::procedure::Slots;
use ordain_model::{
    Access, Args, Choice, Chunk, Db, Epoch, Fragment, Gsn, KeyHash, Millis, ProcedureId, SlotNo, Txn,
};

use super::queue_prefetch::QueuePrefetch;
use super::ranges::{Place, Ranges};
use super::speculation::{Rounds, SpeculativeBatch};
use ordain_deterministic::shard::{
    Active, CUT, Known, Prefetch, RemoteResults, SlotTable, WireAnswers, before,
};

/// The queues of fragments that have only such fragments in front of them. Each is of many ranges, as records can be
/// prefetched along long queues.
const STREAMS: usize = 8;
/// The number of the queue of reads of the state before their epoch, which wait for no range
/// (`docs/protocols/qstore.md`, Q21). It is in the order, but only so that the first to be run is in front.
pub(crate) const PAST_READS: u16 = STREAMS as u16;
/// The most transactions of a planning batch (`chunk_txns` of `docs/protocols/qstore.md`, section 5): so few that its
/// plan is still in the nearer caches when it is executed.
pub(crate) const PLANNING_BATCH: usize = 256;
/// The most transactions in planning batches that are not done, or that one in front of them keeps: beyond it the
/// order waits.
pub(crate) const AHEAD: usize = 32 * PLANNING_BATCH;
/// The part of the longest reply, as a power of two, below which an answer counts only when the reply is made: a
/// transaction can have so few keys that all such answers together are not longer than a reply.
const FEW_BITS: u32 = MAX_KEYS.ilog2();
/// How many planning batches are kept for their memory.
const SPARE: usize = 32;

/// A place in a queue: all that is needed to run a fragment but its arguments and its record, so that a queue is read
/// from the front like any stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    /// The record, by the hash of its key.
    pub(crate) hash: KeyHash,
    /// Its planning batch, by number.
    pub(crate) planning: u32,
    /// The transaction, by its place in the chunk.
    pub(crate) txn: u32,
    /// Its index in the chunk.
    pub(crate) index: u32,
    /// The fragment's slot, among those of the planning batch.
    pub(crate) slot: u32,
    /// The position and length of the arguments of its call.
    pub(crate) args: (u32, u32),
    /// The position of the key in them.
    pub(crate) key_at: u32,
    pub(crate) procedure: ProcedureId,
    pub(crate) code: u16,
    pub(crate) db: Db,
    pub(crate) what: What,
    /// Whether the log keeps the transaction.
    pub(crate) is_logged: bool,
    /// Whether the reply is composed of what it answers, too.
    pub(crate) answers: bool,
    key_len: u8,
    key: [u8; SHORT_KEY],
}

const _: () = assert!(size_of::<Entry>() == 64);

/// The longest key that is kept in a queue. A longer one is looked up in the arguments.
const SHORT_KEY: usize = 16;

/// The kind of a place in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A fragment that reads its record.
    Read,
    /// A fragment that reads its record as it was before its epoch.
    Past,
    /// A fragment that writes its record.
    Write,
    /// A fragment that reaches child records.
    Parent,
}

impl Entry {
    /// A fragment of an independent transaction.
    pub(crate) fn fragment(
        fragment: &Fragment,
        (planning, txn, slot): (u32, u32, u32),
        (chunk, of): (&Chunk, &Txn),
        is_past: bool,
    ) -> Entry {
        let call = nested_args(chunk.args(of), fragment.call_at);
        let key = call.from_offset(fragment.key_at).next().map_or(&[][..], |key| key.bytes);
        let mut entry = Entry {
            hash: fragment.hash,
            planning,
            txn,
            index: of.index,
            slot,
            args: (of.args().start + fragment.call_at, call.encoded().len() as u32),
            key_at: fragment.key_at,
            procedure: fragment.procedure,
            code: fragment.code,
            db: fragment.db,
            what: match fragment.access {
                _ if fragment.with_children => What::Parent,
                _ if is_past => What::Past,
                Access::Write => What::Write,
                _ => What::Read,
            },
            is_logged: of.logged,
            answers: !fragment.silent,
            key_len: u8::MAX,
            key: [0; SHORT_KEY],
        };
        if key.len() <= SHORT_KEY {
            entry.key_len = key.len() as u8;
            let stands_at = fragment.key_at as usize + WORD;
            match call.encoded().get(stands_at..stands_at + SHORT_KEY) {
                // So many bytes, whatever follows the key: two instructions instead of a call.
                Some(wide) => entry.key.copy_from_slice(wide),
                None => entry.key[..key.len()].copy_from_slice(key),
            }
        }
        entry
    }

    /// The key, and where it stands in the arguments of its call.
    #[inline]
    pub(crate) fn key<'a>(&'a self, args: Args<'a>) -> Arg<'a> {
        match self.key.get(..usize::from(self.key_len)) {
            Some(bytes) => Arg { bytes, at: self.key_at },
            None => args.from_offset(self.key_at).next().unwrap_or(Arg { bytes: &[], at: self.key_at }),
        }
    }
}

const _: () = assert!(MAX_SHARDS <= u8::MAX as usize + 1, "a byte distinguishes all shards");

/// A queue of fragments that wait for nothing but those in front of them.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    pub(crate) entries: Vec<Entry>,
    /// The place in front.
    pub(crate) next: usize,
    /// Whether what is in front has to wait for the epoch before to be over.
    pub(crate) is_held: bool,
    /// Whether it is among those to be run.
    pub(crate) is_due: bool,
}

/// The result of planning a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Planned {
    /// It is a group, or nothing: it was turned back, or is not part of the batch.
    AsGroup,
    /// It was taken apart, and its reply is composed elsewhere, without any answer of this shard.
    Apart,
    /// It was taken apart, and its reply is composed on that shard, with answers of this one.
    ToSend(u8),
    /// It was taken apart, and its reply is composed here.
    ToReply,
    /// It was taken apart, and its reply, composed here, is that it aborts with another transaction.
    ToAbort,
}

/// A planning batch: transactions that follow each other in one chunk, planned and answered together.
#[derive(Debug, Default)]
pub(crate) struct PlanningBatch {
    pub(crate) chunk: Arc<Chunk>,
    pub(crate) now: Millis,
    /// The sequence number of the chunk's index 0.
    pub(crate) base: Gsn,
    /// Which of the chunk's transactions, by place.
    pub(crate) txns: Range<usize>,
    /// Their sequence numbers, and perhaps more between them: that of the first, and one more than that of the last.
    gsns: Range<Gsn>,
    /// Where the fragments of the first of them are.
    first: usize,
    /// How many fragments of independent transactions are still to be run here.
    pub(crate) left: usize,
    /// The names of their records, whose values stay in memory until all of them are run.
    pub(crate) pinned: Vec<KeyHash>,
    /// How many answers of other shards are still to come, for replies that are composed here.
    pub(crate) missing: usize,
    /// How many replies are composed here.
    pub(crate) replies: usize,
    /// What the fragments have answered.
    pub(crate) slots: SlotTable,
    /// The bytes of the larger answers of a transaction, by its place in the chunk; `usize::MAX` of one that has more
    /// than a reply may have.
    large: BTreeMap<u32, usize>,
    /// Of some of them not all is kept.
    is_some_cut: bool,
    /// What became of each when it was planned.
    plans: Vec<Planned>,
    /// Whether some replies are composed elsewhere with answers of this shard.
    is_sent: bool,
    /// Not all of it has been done to this shard's records.
    pub(crate) is_unsettled: bool,
    /// Whether it is part of a speculative batch that is not decided.
    pub(crate) is_speculative: bool,
}

impl PlanningBatch {
    /// Begins another one, with the memory of this.
    pub(crate) fn begin(&mut self, chunk: &Arc<Chunk>, base: Gsn, now: Millis, at: usize) {
        self.chunk = chunk.clone();
        (self.base, self.now, self.txns) = (base, now, at..at);
        let first = chunk.txns().get(at);
        self.first = first.map_or(0, |txn| txn.fragments().start);
        let begins_at = first.map_or(base, |txn| self.gsn(txn));
        self.gsns = begins_at..begins_at;
        (self.left, self.missing, self.replies) = (0, 0, 0);
        self.plans.clear();
        self.large.clear();
        self.is_some_cut = false;
        self.is_sent = false;
        self.is_unsettled = false;
        self.is_speculative = false;
    }

    /// A transaction of it has been planned.
    pub(crate) fn note(&mut self, txn: usize, planned: Planned) {
        self.plans.resize(txn - self.txns.start, Planned::AsGroup);
        self.plans.push(planned);
        self.is_sent |= matches!(planned, Planned::ToSend(_));
    }

    /// Sends the answers of this shard to the collectors, each transaction's together: all of it has been run here.
    pub(crate) fn send_answers(&self, remote_results: &mut RemoteResults) {
        for at in self.txns.clone().filter(|_| self.is_sent) {
            if let Planned::ToSend(collector) = self.planned(at) {
                let txn = &self.chunk.txns()[at];
                let first = self.slots_at(at) as usize;
                let slots = first..first + txn.fragments().len();
                remote_results.add_answers(usize::from(collector), self.gsn(txn), (&self.slots, slots));
            }
        }
    }

    /// What became of a transaction.
    pub(crate) fn planned(&self, txn: usize) -> Planned {
        let at = txn.checked_sub(self.txns.start).and_then(|at| self.plans.get(at));
        at.copied().unwrap_or(Planned::AsGroup)
    }

    /// Leaves out transactions that are executed again, as groups, and answered then. Returns whether no others are
    /// left to answer that were to be.
    pub(crate) fn leave_out(&mut self, again: &BTreeSet<Gsn>) -> bool {
        let before = self.replies;
        for at in self.txns.clone() {
            let gsn = self.gsn(&self.chunk.txns()[at]);
            if self.planned(at) == Planned::ToReply && again.contains(&gsn) {
                self.plans[at - self.txns.start] = Planned::AsGroup;
                self.replies -= 1;
            }
        }
        before > 0 && self.replies == 0
    }

    /// These transactions abort with others.
    pub(crate) fn abort(&mut self, affected: &BTreeSet<Gsn>) {
        for at in self.txns.clone() {
            let gsn = self.gsn(&self.chunk.txns()[at]);
            if self.planned(at) == Planned::ToReply && affected.contains(&gsn) {
                self.plans[at - self.txns.start] = Planned::ToAbort;
            }
        }
    }

    /// All of its transactions are there.
    pub(crate) fn close(&mut self, end: usize) {
        self.txns.end = end;
        let last = end.checked_sub(1).and_then(|last| self.chunk.txns().get(last));
        self.gsns.end = last.map_or(self.gsns.start, |txn| Gsn(self.gsn(txn).0 + 1));
        // What is run as a group has slots of its own.
        let is_apart = self.left > 0 || self.replies > 0;
        let last = end.checked_sub(1).and_then(|last| self.chunk.txns().get(last)).filter(|_| is_apart);
        self.slots.reset(last.map_or(0, |txn| txn.fragments().end).saturating_sub(self.first));
    }

    /// Where the slots of a transaction's fragments begin among those of the planning batch.
    pub(crate) fn slots_at(&self, txn: usize) -> u32 {
        (self.chunk.txns()[txn].fragments().start - self.first) as u32
    }

    /// The sequence number of one of its transactions.
    #[inline]
    pub(crate) const fn gsn(&self, txn: &Txn) -> Gsn {
        Gsn(self.base.0 + txn.index as u64)
    }

    /// That of the first of them, and one more than that of the last.
    pub(crate) const fn gsns(&self) -> &Range<Gsn> {
        &self.gsns
    }

    /// The place of the transaction with this number, if its reply is composed here.
    pub(crate) fn find(&self, gsn: Gsn) -> Option<usize> {
        let index = u32::try_from(gsn.0.checked_sub(self.base.0)?).ok()?;
        let txns = self.chunk.txns().get(self.txns.clone())?;
        // Mostly none is left out of a chunk.
        let guess = gsn.0.checked_sub(self.gsns.start.0)? as usize;
        let at = match txns.get(guess) {
            Some(txn) if txn.index == index => guess,
            _ => txns.binary_search_by_key(&index, |txn| txn.index).ok()?,
        };
        let at = self.txns.start + at;
        (self.planned(at) == Planned::ToReply).then_some(at)
    }

    /// Counts an answer to a transaction. Returns whether it is neither kept nor sent: the reply is known to be too
    /// long. Small answers do not count, as there can only be so many.
    #[inline]
    pub(crate) fn is_beyond(&mut self, txn: u32, answer: &[u8], limit: usize) -> bool {
        (answer.len() >= limit >> FEW_BITS || answer == CUT) && self.adds_up(txn, answer, limit)
    }

    #[cold]
    fn adds_up(&mut self, txn: u32, answer: &[u8], limit: usize) -> bool {
        let sum = self.large.entry(txn).or_default();
        *sum = if answer == CUT { usize::MAX } else { sum.saturating_add(answer.len()) };
        if *sum > limit {
            *sum = usize::MAX;
            self.is_some_cut = true;
        }
        *sum > limit
    }

    /// Returns whether the reply of a transaction is known to be too long.
    #[inline]
    pub(crate) fn is_certain(&self, txn: u32) -> bool {
        self.is_some_cut && self.large.get(&txn) == Some(&usize::MAX)
    }

    /// Whether what the reply of a transaction is made from is together more than the limit.
    pub(crate) fn is_cut(&self, txn: usize, limit: usize) -> bool {
        if !self.is_some_cut && self.slots.bytes() <= limit {
            return false;
        }
        let first = self.slots_at(txn);
        let slots = first..first + self.chunk.txns()[txn].fragments().len() as u32;
        let sum: usize = slots.map(|slot| self.slots.slot(SlotNo(slot)).len()).sum();
        sum > limit || self.is_certain(txn as u32)
    }

    /// Takes all answers of another shard to a transaction.
    pub(crate) fn take_answers(&mut self, txn: usize, answers: WireAnswers<'_>, limit: usize) -> Known {
        let mut known = Known::Same;
        for (slot, bytes) in answers {
            match self.take_answer(txn, slot, bytes, limit) {
                Known::New => known = Known::New,
                Known::Same => {}
                other => return other,
            }
        }
        known
    }

    /// Takes an answer of another shard.
    pub(crate) fn take_answer(&mut self, txn: usize, slot: SlotNo, bytes: &[u8], limit: usize) -> Known {
        if slot.0 as usize >= self.chunk.txns()[txn].fragments().len() {
            return Known::Other("a fragment");
        }
        let number = txn as u32;
        let slot = SlotNo(self.slots_at(txn) + slot.0);
        if !self.slots.is_missing(slot) {
            return Known::again(self.slots.is_same(slot, bytes, false), "a slot");
        }
        let Some(missing) = self.missing.checked_sub(1) else { return Known::Other("a fragment") };
        self.slots.fill(slot, bytes, false);
        if self.is_beyond(number, bytes, limit) {
            self.slots.cut(slot);
        }
        self.missing = missing;
        Known::New
    }

    /// Whether nothing is left to do, or to wait for.
    pub(crate) const fn is_done(&self) -> bool {
        self.left == 0 && self.missing == 0
    }
}

/// The slots of one transaction of a planning batch.
pub(crate) struct TransactionSlots<'a> {
    pub(crate) slots: &'a SlotTable,
    /// Where its own begin.
    pub(crate) at: u32,
}

impl Slots for TransactionSlots<'_> {
    fn slot(&self, slot: SlotNo) -> &[u8] {
        self.slots.slot(SlotNo(self.at + slot.0))
    }
}

/// A blocked group.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// What it waits for, as far as it is others that come before it.
    pub(crate) need: Need,
    /// The ranges in which it has a place.
    pub(crate) ranges: Vec<u16>,
    /// Whether it need not be in front of all of them to begin: each fragment runs when it is in front of its own.
    pub(crate) is_piecemeal: bool,
}

/// What a group waits for before it, or its next fragment, may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Need {
    /// Nothing that is in front of it.
    #[default]
    Nothing,
    /// To be in front of a range, that of its next fragment.
    Range(u16),
    /// To be in front of all its ranges.
    All,
}

/// The scheduler of a shard by queues: what it has planned and not done.
#[derive(Debug)]
pub(crate) struct QueueScheduler {
    /// The queues, by number; the last is that of reads of past states.
    pub(crate) queues: Vec<Queue>,
    /// The ranges in which there are places.
    pub(crate) ranges: Ranges,
    /// The blocked groups, by number.
    pub(crate) groups: Vec<Group>,
    /// Queues that have something in front that can be run.
    pub(crate) due: VecDeque<u16>,
    /// Planning batches, in the order: those that are not done, and some that are.
    pub(crate) planned: VecDeque<PlanningBatch>,
    /// The number of the first of them.
    pub(crate) first: u32,
    /// The planning batch for which other shards have answered last, by number: the next answer is mostly for it too.
    answered: u32,
    /// How many transactions they have.
    pub(crate) ahead: usize,
    /// Done, to be used again.
    spare: Vec<PlanningBatch>,
    /// Stands in a spare planning batch in the place of a chunk, which nothing should keep alive.
    no_chunk: Arc<Chunk>,
    /// How many fragments of independent transactions are still to be run.
    pub(crate) left: usize,
    /// Groups that are to see the state at the end of an epoch that is not over, in order.
    pub(crate) asleep: VecDeque<(Epoch, u32)>,
    /// Groups that come after fragments which are in the queues now.
    pub(crate) behind: Vec<u32>,
    /// Prefetching along the order.
    pub(crate) prefetch: Prefetch,
    /// Prefetching along the queue that is run.
    pub(crate) fetching: QueuePrefetch,
    /// The ranges that a group keeps, while it is found out which these are.
    pub(crate) kept: Vec<u16>,
    /// The state by which their fragments are run: nothing of it is kept from one to the next.
    pub(crate) bare: Box<Active>,
    /// The speculative batch under way.
    pub(crate) speculation: Option<SpeculativeBatch>,
    /// The last epoch of which some batch says whether it may be executed so, and what the first of its batches says that does.
    pub(crate) chosen: Epoch,
    pub(crate) choice: Choice,
    /// The keys that aborting and affected transactions of that epoch were to write here, since the whole table was
    /// written last. Not only those of one speculative batch: the log does not say where these end, as reads of the
    /// whole table are not in it.
    pub(crate) dirty_keys: BTreeSet<KeyHash>,
    /// The findings of all shards on speculative batches that are not over, by round.
    pub(crate) rounds: BTreeMap<(Gsn, u32), Rounds>,
    /// The last transaction of a speculative batch that is decided: nothing up to it is executed again.
    pub(crate) settled: Gsn,
    /// The last speculative batch that is over.
    pub(crate) decided: Gsn,
    pub(crate) counts: Counts,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Units.
    pub(crate) units: u64,
    /// Transactions in them that were undone because they abort.
    pub(crate) undone: u64,
    /// Those that were undone because of others, and executed again.
    pub(crate) affected: u64,
    /// Rounds in which shards exchanged which these are.
    pub(crate) rounds: u64,
}

impl Default for QueueScheduler {
    /// Empty ones.
    fn default() -> QueueScheduler {
        QueueScheduler {
            queues: (0..=STREAMS).map(|_| Queue::default()).collect(),
            ranges: Ranges::default(),
            groups: Vec::new(),
            due: VecDeque::new(),
            planned: VecDeque::new(),
            first: 0,
            answered: 0,
            ahead: 0,
            spare: Vec::new(),
            no_chunk: Arc::default(),
            left: 0,
            asleep: VecDeque::new(),
            behind: Vec::new(),
            prefetch: Prefetch::default(),
            fetching: QueuePrefetch::default(),
            kept: Vec::new(),
            bare: Box::default(),
            speculation: None,
            chosen: Epoch::default(),
            choice: Choice::Wait,
            dirty_keys: BTreeSet::new(),
            rounds: BTreeMap::new(),
            settled: Gsn::NONE,
            decided: Gsn::NONE,
            counts: Counts::default(),
        }
    }
}

impl QueueScheduler {
    /// Returns the queue of a range that is not held.
    #[inline]
    pub(crate) const fn stream_of(range: u16) -> u16 {
        range % STREAMS as u16
    }

    /// Whether something of a range may be in a queue. It may be of other ranges too.
    #[inline]
    pub(crate) fn may_be_queued(&self, range: u16) -> bool {
        !self.queues[usize::from(QueueScheduler::stream_of(range))].entries.is_empty()
    }

    /// Puts a fragment behind everything of its range.
    #[inline]
    pub(crate) fn enqueue(&mut self, range: u16, entry: Entry) {
        if self.ranges.is_held(range) {
            self.ranges.push(range, Place::Fragment(Box::new(entry)));
        } else {
            self.push(QueueScheduler::stream_of(range), entry);
        }
    }

    /// Puts something at the end of a queue.
    #[inline]
    pub(crate) fn push(&mut self, number: u16, entry: Entry) {
        let queue = &mut self.queues[usize::from(number)];
        queue.entries.push(entry);
        if !queue.is_held && !queue.is_due {
            queue.is_due = true;
            self.due.push_back(number);
        }
    }

    /// Takes the last two places of a queue in the wrong order: a mistake that a test plants.
    pub(crate) fn swap_last(&mut self, number: u16) {
        let queue = &mut self.queues[usize::from(number)];
        if let [.., one, other] = &mut queue.entries[queue.next..]
            && one.planning == other.planning
        {
            std::mem::swap(one, other);
        }
    }

    /// Whether what a place in the queue aside is for can be seen, if all up to an epoch is over.
    pub(crate) fn is_over(&self, entry: &Entry, published: Epoch) -> bool {
        self.planned
            .get(self.place_of(entry.planning))
            .is_none_or(|planning| before(planning.base) <= published)
    }

    /// Groups and reads that wait for the end of epochs up to this one need not wait any more; reads do while values for them are still to come
    /// from the disk. Answers the next group.
    pub(crate) fn wake(&mut self, published: Epoch, is_coming: bool) -> Option<u32> {
        let aside = &self.queues[usize::from(PAST_READS)];
        if !is_coming
            && aside.is_held
            && aside.entries.get(aside.next).is_some_and(|entry| self.is_over(entry, published))
        {
            let aside = &mut self.queues[usize::from(PAST_READS)];
            (aside.is_held, aside.is_due) = (false, true);
            self.due.push_back(PAST_READS);
        }
        self.asleep.pop_front_if(|(epoch, _)| *epoch <= published).map(|(_, number)| number)
    }

    /// A planning batch to be filled.
    pub(crate) fn take_spare(&mut self) -> PlanningBatch {
        self.spare.pop().unwrap_or_default()
    }

    /// Gives back one of which nothing is wanted any more.
    pub(crate) fn give_back(&mut self, mut planning: PlanningBatch) {
        planning.chunk.clone_from(&self.no_chunk);
        if self.spare.len() < SPARE {
            planning.slots.reset(0);
            self.spare.push(planning);
        }
    }

    /// Where a planning batch is, by the number that entries have.
    #[inline]
    pub(crate) const fn place_of(&self, number: u32) -> usize {
        number.wrapping_sub(self.first) as usize
    }

    /// Where the planning batch of a transaction is that another shard has answered something of, and the transaction in it.
    pub(crate) fn find_answered(&mut self, gsn: Gsn) -> Option<(usize, usize)> {
        let mut place = self.place_of(self.answered);
        if !self.planned.get(place).is_some_and(|planning| planning.gsns.contains(&gsn)) {
            place = self.planned.partition_point(|planning| planning.gsns.start <= gsn).checked_sub(1)?;
            self.answered = self.first.wrapping_add(place as u32);
        }
        Some((place, self.planned.get(place)?.find(gsn)?))
    }

    /// Drops the planning batches in front that are done.
    pub(crate) fn drop_done(&mut self) {
        while self.planned.front().is_some_and(|planning| planning.is_done() && planning.replies == 0) {
            if let Some(planning) = self.planned.pop_front() {
                self.ahead -= planning.txns.len();
                self.give_back(planning);
            }
            self.first = self.first.wrapping_add(1);
        }
    }

    /// The first transaction that was taken apart of which something is still to be done or answered here.
    pub(crate) fn first_apart(&self) -> Option<Gsn> {
        let is_done = |planning: &&PlanningBatch| planning.is_done() && planning.replies == 0;
        self.planned.iter().find(|planning| !is_done(planning)).map(|planning| planning.gsns.start)
    }

    /// Whether nothing that was planned is still to be run.
    pub(crate) const fn is_idle(&self) -> bool {
        self.left == 0
    }

    /// Whether there is nothing in the queues, unless fragments are to be run.
    pub(crate) fn is_empty_if_idle(&self) -> bool {
        !self.is_idle() || self.ranges.is_free() && self.queues.iter().all(|queue| queue.entries.is_empty())
    }
}
