//! The state of one transaction on one shard.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_execution::{Computed, PastValues, Undo};
use ordain_model::cell::Journal;
use ordain_model::{Abort, Cell, Chunk, Fragment, Gsn, Millis, SlotNo, Txn};
use ordain_store::RecordId;

use super::routes::{Routes, ShardSet};
use super::slots::{SlotTable, Tables};

/// The result of comparing a received item with what is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It is new, and was waited for.
    New,
    /// It is a repetition.
    Same,
    /// It cannot be, or differs from what was received before; the text names what differs.
    Other(&'static str),
}

impl Known {
    /// Classifies a repeated item: the same, or another than before.
    pub const fn again(is_same: bool, what: &'static str) -> Known {
        if is_same { Known::Same } else { Known::Other(what) }
    }
}

/// A record shipped for writing.
#[derive(Debug)]
pub(crate) struct ShippedOut {
    pub(crate) version: Gsn,
    /// Its content, if the transaction may yet abort.
    pub before: Option<Cell>,
}

/// The state of a record that is shipped for writing, at its owner.
#[derive(Debug)]
pub(crate) enum Shipment {
    /// It has returned before it was shipped: this shard was restarted and executes again; the other has executed it.
    Early(Cell, bool),
    /// It is at the shard of the compute fragment.
    Out(ShippedOut),
    /// It has returned. If it returns again, that is a repetition.
    Back,
}

/// A transaction on this shard, from its start in the order to its end.
#[derive(Debug, Default)]
pub struct Active {
    /// Its place in the order.
    pub gsn: Gsn,
    /// The time of its batch, which it takes for the present.
    pub now: Millis,
    /// The chunk that it is of.
    pub chunk: Arc<Chunk>,
    /// Its position among the chunk's transactions.
    pub at: usize,
    /// No other shard takes part, not even for the reply; there are no routes then.
    pub alone: bool,
    /// The shards that take part, unless it is [alone](Active::alone).
    pub routes: Routes,
    /// The next fragment to run or pass over.
    pub next: usize,
    /// The likely record of each fragment, as far as prefetching has found it.
    pub guesses: Vec<Option<RecordId>>,
    /// The slots of its fragments.
    pub(crate) slots: SlotTable,
    pub(crate) tables: Tables,
    /// The changes on this shard, while the transaction may yet abort.
    pub undo: Undo,
    /// Records that other shards have shipped, by fragment; `None` in the place of one that has been used.
    pub(crate) received_records: BTreeMap<SlotNo, Option<(Cell, Gsn)>>,
    /// Records that this shard has shipped for writing, by fragment.
    pub(crate) shipped: BTreeMap<SlotNo, Shipment>,
    /// How many of them have not returned. All are at one compute fragment.
    pub(crate) shipped_out: usize,
    /// Values that it reads and that are on disk are on their way.
    pub(crate) is_fetching: bool,
    /// Values on disk that its fragments read as of before its epoch.
    pub past: PastValues,
    /// Its next fragment is [computed elsewhere](ordain_execution::Long).
    pub(crate) is_away: bool,
    /// The result of that computation, once it is back.
    pub(crate) computed: Option<Computed>,
    /// The shards whose votes are missing.
    pub votes_missing: ShardSet,
    pub(crate) voted: bool,
    /// The first failure known, by fragment.
    pub failure: Option<(SlotNo, Abort)>,
    /// The first failure of this shard's own fragments.
    pub own_failure: Option<(SlotNo, Abort)>,
    /// How many grants it lacks without which none of its fragments may run.
    pub grants_missing: usize,
    /// The fragments before this one are granted; all of them unless the scheduler says otherwise.
    pub granted_until: usize,
    /// Whether its fragments here are done and its grants given up; only the reply is missing.
    pub(crate) done_here: bool,
    /// Whether it is part of an undecided speculative batch: its changes may be undone, and it may yet abort, until
    /// that is decided.
    pub is_speculative: bool,
    /// Where its changes begin in the journal of its speculative batch, if it is decided as soon as it is executed.
    pub(crate) mark: usize,
    /// Its changes while it waits for a computation and others of its speculative batch note theirs.
    pub(crate) set_aside: Journal,
    /// Whether it is executed for the second time, after a speculative batch.
    pub is_again: bool,
}

impl Active {
    /// Makes the state ready for another transaction, keeping its buffers.
    pub fn reset(&mut self, gsn: Gsn, now: Millis, chunk: &Arc<Chunk>, at: usize) {
        let fragments = chunk.fragments(&chunk.txns()[at]).len();
        self.gsn = gsn;
        self.now = now;
        if !Arc::ptr_eq(&self.chunk, chunk) {
            self.chunk = chunk.clone();
        }
        self.at = at;
        self.next = 0;
        self.guesses.clear();
        self.slots.reset(fragments);
        self.tables.0.clear();
        self.undo.clear();
        // Clearing an ordered map that is empty costs more than to ask whether it is.
        if !self.received_records.is_empty() || !self.shipped.is_empty() {
            self.received_records.clear();
            self.shipped.clear();
        }
        self.shipped_out = 0;
        self.is_fetching = false;
        self.past.clear();
        self.is_away = false;
        self.computed = None;
        self.votes_missing = 0;
        self.voted = false;
        self.failure = None;
        self.own_failure = None;
        self.grants_missing = 0;
        self.granted_until = usize::MAX;
        self.done_here = false;
        self.is_speculative = false;
        self.mark = 0;
        self.set_aside.clear();
        self.is_again = false;
    }

    /// Returns the number by which shards name this execution of it.
    pub(crate) const fn called(&self) -> Gsn {
        if self.is_again { self.gsn.again() } else { self.gsn }
    }

    /// Returns whether it has the grants without which none of its fragments may run.
    pub const fn may_run(&self) -> bool {
        self.grants_missing == 0
    }

    /// Returns whether every part of the reply composed on this shard has arrived.
    pub fn is_whole(&self) -> bool {
        let fragments = self.chunk.fragments(&self.chunk.txns()[self.at]);
        let is_missing = |n: usize| !fragments[n].silent && self.slots.is_missing(SlotNo(n as u32));
        self.alone || !(0..fragments.len()).any(is_missing)
    }

    /// Returns whether changes of fragment `n` may have to be undone: not once all verdicts are known and good, and
    /// none of the fragments to come may abort.
    pub(crate) fn may_be_undone(&self, txn: &Txn, n: usize) -> bool {
        self.is_speculative
            || txn.abortable
                && (n < txn.abortable_until as usize || self.votes_missing != 0 || self.failure.is_some())
    }

    /// Returns whether the transaction is speculative and yet decided as soon as it is executed: no other shard takes
    /// part.
    pub fn is_decided_at_once(&self) -> bool {
        self.is_speculative && self.alone && self.chunk.txns()[self.at].abortable
    }

    /// Returns whether fragment `n` still needs its record's lock or range while the transaction is blocked: it is
    /// not executed, may be undone, or ships its record to a compute fragment.
    pub fn needs_grant(&self, txn: &Txn, fragments: &[Fragment], n: usize) -> bool {
        let may_be_undone =
            !self.is_speculative && (self.may_be_undone(txn, self.next) || !self.undo.touched.is_empty());
        n >= self.next || fragments[n].shipped || may_be_undone && fragments[n].writes()
    }

    /// Takes note of a failure: that of the lowest fragment decides, on whichever shard it is.
    pub fn fail(failure: &mut Option<(SlotNo, Abort)>, new: (SlotNo, Abort)) {
        if failure.is_none_or(|(slot, _)| new.0 < slot) {
            *failure = Some(new);
        }
    }
}
