//! The state of one transaction on one shard.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use ordain_model::cell::Journal;
use ordain_model::layout::MAX_SHARDS;
use ordain_model::procedure::Slots;
use ordain_model::{Abort, Cell, Chunk, Fragment, Gsn, Layout, Millis, SlotNo, Txn, Writer};
use ordain_store::RecordId;

use super::long::Computed;
use super::undo::Undo;

/// A set of the shards of a replica, one bit each.
pub type ShardSet = u128;

const _: () = assert!(MAX_SHARDS == ShardSet::BITS as usize);

/// Who takes part in a transaction and who needs what of it; a function of the plan and the layout.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    /// Shards that own a fragment.
    pub participants: ShardSet,
    /// Shards that own an abortable fragment.
    pub(crate) voters: ShardSet,
    /// Shards that must know the verdict: those that write, and the collector.
    pub(crate) vote_recipients: ShardSet,
    /// The shard that composes the reply (calvin.md, sections 4.5 and 4.6).
    pub collector: usize,
    /// Per fragment, who needs its slot, or the record it lends. If it aborts, the collector needs its slot too.
    pub readers: Vec<ShardSet>,
}

/// The shard that owns a fragment; `None` for a fragment of all shards.
#[inline]
pub fn owner(fragment: &Fragment, layout: &Layout) -> Option<usize> {
    (!fragment.is_table()).then(|| layout.shard_of(fragment.hash.slot()))
}

impl Routes {
    /// Analyses a transaction (phase 1).
    pub(crate) fn analyse(&mut self, chunk: &Chunk, txn: &Txn, layout: &Layout) {
        let all = ShardSet::MAX >> (MAX_SHARDS - layout.shards());
        let fragments = chunk.fragments(txn);
        let set = |fragment: &Fragment| owner(fragment, layout).map_or(all, |shard| 1 << shard);
        let collector = chunk.collector(txn, layout);
        let mut readers = std::mem::take(&mut self.readers);
        readers.clear();
        *self = Routes { participants: 0, voters: 0, vote_recipients: 1 << collector, collector, readers };
        for fragment in fragments {
            let owners = set(fragment);
            self.participants |= owners;
            self.readers.push(if fragment.silent { 0 } else { 1 << collector });
            if fragment.abortable {
                self.voters |= owners;
            }
            if fragment.writes() {
                self.vote_recipients |= owners;
            }
            for slot in chunk.plans().inputs_of(fragment) {
                self.readers[slot.0 as usize] |= owners;
            }
        }
    }
}

/// What a slot holds so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    Missing,
    Filled {
        at: usize,
        len: u32,
    },
    Failed {
        at: usize,
        len: u32,
    },
    /// It was there, and is not needed: it has been told to whoever makes the reply, or that is certain to be too long.
    Cut,
}

/// What is told in the place of a slot that is cut, or of a record that is more than may be carried. No fragment answers so:
/// it is no [`Datum`](ordain_model::Datum).
pub const CUT: &[u8] = &[254];

/// A buffer that one large transaction has filled does not stay so large when it is kept for others.
const KEPT_BYTES: usize = 1 << 20;

/// Empties a buffer that is used again.
pub fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(KEPT_BYTES);
}

/// Appends some bytes. Answers are mostly short: of 8 to 16 bytes both ends are read as words, which takes no call.
#[inline]
pub fn append(out: &mut Vec<u8>, bytes: &[u8]) {
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(first), Some(last)) if bytes.len() <= 16 => {
            let (first, last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
            let both = u128::from(first) | u128::from(last) << (8 * (bytes.len() - 8));
            out.extend_from_slice(&both.to_le_bytes());
            out.truncate(out.len() - 16 + bytes.len());
        }
        _ => out.extend_from_slice(bytes),
    }
}

const _: () = assert!(size_of::<SlotState>() == 16);

/// The slots of a transaction, as far as this shard knows them.
#[derive(Debug, Default)]
pub struct SlotTable {
    states: Vec<SlotState>,
    arena: Vec<u8>,
    /// How long together what [only the reply](Fragment::only_answers) is made from is so far, as it was answered here or is
    /// told. As parts only add up, more than a limit is more than that wherever the other parts are.
    answered: usize,
}

impl SlotTable {
    pub fn reset(&mut self, fragments: usize) {
        self.states.clear();
        self.states.resize(fragments, SlotState::Missing);
        empty(&mut self.arena);
        self.answered = 0;
    }

    /// Takes note that only the reply is made from the slot that was filled last. Of what is beyond the limit nothing is kept.
    #[inline]
    pub(crate) fn bound(&mut self, slot: SlotNo, limit: usize) {
        if let SlotState::Filled { len, .. } = self.states[slot.0 as usize] {
            self.answered = self.answered.saturating_add(len as usize);
            if self.answered > limit || len as usize == CUT.len() && self.slot(slot) == CUT {
                self.answered = usize::MAX;
                self.cut(slot);
            }
        }
    }

    /// The bytes of what only the reply is made from, as far as it is here; beyond the limit it is not counted.
    pub(crate) const fn answered_bytes(&self) -> usize {
        self.answered
    }

    /// Whether what only the reply is made from is more than the limit.
    pub const fn is_beyond(&self, limit: usize) -> bool {
        self.answered > limit
    }

    /// The slot that was filled last is needed no more.
    #[inline]
    pub fn cut(&mut self, slot: SlotNo) {
        let state = &mut self.states[slot.0 as usize];
        if let SlotState::Filled { at, .. } = *state {
            self.arena.truncate(at);
            *state = SlotState::Cut;
        }
    }

    /// A slot is not kept at all.
    pub fn leave_out(&mut self, slot: SlotNo) {
        self.states[slot.0 as usize] = SlotState::Cut;
    }

    /// Whether a slot is there no more.
    pub fn is_cut(&self, slot: SlotNo) -> bool {
        self.states[slot.0 as usize] == SlotState::Cut
    }

    /// How many bytes all slots are.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.arena.len()
    }

    pub fn is_missing(&self, slot: SlotNo) -> bool {
        self.states[slot.0 as usize] == SlotState::Missing
    }

    /// Whether a slot that is told again is told the same. Which slots are cut of more than are kept is not a function of the
    /// log where fragments run as their turns come.
    pub fn is_same(&self, slot: SlotNo, bytes: &[u8], failed: bool) -> bool {
        self.is_failed(slot) == failed && (self.slot(slot) == bytes || self.is_cut(slot) || bytes == CUT)
    }

    /// Tells what was answered under some slots, each by its place among these.
    pub fn for_each_filled(&self, slots: Range<usize>, mut each: impl FnMut(SlotNo, &[u8])) {
        const TOGETHER: usize = 16;
        for (first, states) in (0..).step_by(TOGETHER).zip(self.states[slots].chunks(TOGETHER)) {
            // Which of them are there no processor can foresee, but how many: there is no branch for each.
            let (mut places, mut count) = ([0u8; TOGETHER], 0);
            for (place, state) in (0..).zip(states) {
                places[count] = place;
                count += usize::from(!matches!(state, SlotState::Missing));
            }
            for place in &places[..count] {
                let bytes = match states[usize::from(*place)] {
                    SlotState::Filled { at, len } => &self.arena[at..at + len as usize],
                    SlotState::Cut => CUT,
                    SlotState::Missing | SlotState::Failed { .. } => continue,
                };
                each(SlotNo(first + u32::from(*place)), bytes);
            }
        }
    }

    pub(crate) fn is_failed(&self, slot: SlotNo) -> bool {
        matches!(self.states[slot.0 as usize], SlotState::Failed { .. })
    }

    pub fn fill(&mut self, slot: SlotNo, bytes: &[u8], failed: bool) {
        let at = self.arena.len();
        append(&mut self.arena, bytes);
        self.close(slot, at, failed);
    }

    /// Empties a slot again.
    pub(crate) fn unfill(&mut self, slot: SlotNo) {
        self.states[slot.0 as usize] = SlotState::Missing;
    }

    /// Lends the arena for a slot to be appended in place; [`SlotTable::put_arena`] ends that.
    #[inline]
    pub fn take_arena(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.arena)
    }

    /// The same for a slot that is not kept here.
    #[inline]
    pub fn return_arena(&mut self, arena: Vec<u8>) {
        self.arena = arena;
    }

    /// Fills a slot with what has been appended to the arena that is lent.
    #[inline]
    pub fn fill_from(&mut self, slot: SlotNo, at: usize, end: usize) {
        self.states[slot.0 as usize] = SlotState::Filled { at, len: (end - at) as u32 };
    }

    #[inline]
    pub(crate) fn put_arena(&mut self, arena: Vec<u8>, slot: SlotNo, at: usize, failed: bool) {
        self.arena = arena;
        self.close(slot, at, failed);
    }

    #[inline]
    fn close(&mut self, slot: SlotNo, at: usize, failed: bool) {
        let len = (self.arena.len() - at) as u32;
        self.states[slot.0 as usize] =
            if failed { SlotState::Failed { at, len } } else { SlotState::Filled { at, len } };
    }
}

impl Slots for SlotTable {
    #[inline]
    fn slot(&self, slot: SlotNo) -> &[u8] {
        match self.states.get(slot.0 as usize) {
            Some(SlotState::Filled { at, len } | SlotState::Failed { at, len }) => {
                &self.arena[*at..*at + *len as usize]
            }
            _ => &[],
        }
    }
}

/// The parts of a whole-table fragment's slot, by shard, until all are there.
#[derive(Debug)]
pub(crate) struct TableSlot {
    slot: SlotNo,
    parts: Vec<Option<Vec<u8>>>,
}

/// The whole-table slots of a transaction that are not complete.
#[derive(Debug, Default)]
pub(crate) struct Tables(pub Vec<TableSlot>);

impl Tables {
    /// Adds a shard's part of a slot, and fills the slot with the last.
    pub fn take(
        &mut self,
        slots: &mut SlotTable,
        slot: SlotNo,
        (shard, shards): (usize, usize),
        part: Vec<u8>,
    ) -> Known {
        let at = self.0.iter().position(|t| t.slot == slot).unwrap_or_else(|| {
            self.0.push(TableSlot { slot, parts: vec![None; shards] });
            self.0.len() - 1
        });
        let table = &mut self.0[at];
        if let Some(known) = &table.parts[shard] {
            return Known::again(*known == part, "its part of a table");
        }
        table.parts[shard] = Some(part);
        if let Some(bytes) = table.assemble() {
            slots.fill(slot, &bytes, false);
            self.0.swap_remove(at);
        }
        Known::New
    }
}

impl TableSlot {
    /// The slot, once every shard has answered: the array of the parts.
    pub(crate) fn assemble(&self) -> Option<Vec<u8>> {
        let parts: Option<Vec<&Vec<u8>>> = self.parts.iter().map(Option::as_ref).collect();
        let parts = parts?;
        let mut slot = Vec::new();
        Writer(&mut slot).array(parts.len());
        parts.iter().for_each(|part| slot.extend_from_slice(part));
        Some(slot)
    }
}

/// What something that a shard is told is to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// It was waited for.
    New,
    /// It was known.
    Same,
    /// It cannot be, or is not what was known of it.
    Other(&'static str),
}

impl Known {
    /// Something is told again.
    pub const fn again(is_same: bool, what: &'static str) -> Known {
        if is_same { Known::Same } else { Known::Other(what) }
    }
}

/// A record that was lent for writing.
#[derive(Debug)]
pub(crate) struct ShippedOut {
    pub version: Gsn,
    /// Its content, if the transaction may yet abort.
    pub before: Option<Cell>,
}

/// What has become of a record that is lent for writing, as its owner knows.
#[derive(Debug)]
pub(crate) enum Shipment {
    /// It has come back before it was lent: this shard was restarted and does it again, the other has done it.
    Early(Cell, bool),
    /// It is with the compute fragment.
    Out(ShippedOut),
    /// It has come back. If it comes again, that is the same once more.
    Back,
}

/// A transaction on this shard, from its turn in the order to its end.
#[derive(Debug, Default)]
pub struct Active {
    pub gsn: Gsn,
    pub now: Millis,
    pub chunk: Arc<Chunk>,
    /// Its position among the chunk's transactions.
    pub at: usize,
    /// No other shard takes part, not even for the reply; there are no routes then.
    pub alone: bool,
    pub routes: Routes,
    /// The fragment to look at next.
    pub next: usize,
    /// What is likely the record of each fragment, as far as that was found when it was fetched.
    pub guesses: Vec<Option<RecordId>>,
    pub slots: SlotTable,
    pub(crate) tables: Tables,
    /// What was changed here, while the transaction may yet abort.
    pub undo: Undo,
    /// Records lent to it by other shards, by lent fragment; nothing in the place of one that has been used.
    pub(crate) received_records: BTreeMap<SlotNo, Option<(Cell, Gsn)>>,
    /// Records lent to others for writing, by lent fragment.
    pub(crate) shipped: BTreeMap<SlotNo, Shipment>,
    /// How many of them are out. All are with one compute fragment.
    pub(crate) shipped_out: usize,
    /// Its next fragment is [computed elsewhere](super::long).
    pub(crate) is_away: bool,
    /// The outcome of that, which has come back.
    pub(crate) computed: Option<Computed>,
    /// Whose verdict is missing.
    pub votes_missing: ShardSet,
    pub(crate) voted: bool,
    /// The first failure heard of, by fragment.
    pub failure: Option<(SlotNo, Abort)>,
    /// The first failure of this shard's own fragments.
    pub own_failure: Option<(SlotNo, Abort)>,
    /// How many grants it lacks without which none of its fragments may run.
    pub grants_missing: usize,
    /// The fragments before this one are granted; all of them unless the scheduler says otherwise.
    pub granted_until: usize,
    /// Its fragments here are done and its turns given up; only the reply is missing.
    pub(crate) done_here: bool,
    /// It is part of a unit: what it changes may be undone until that is decided, and so is it whether it aborts.
    pub is_speculative: bool,
    /// Where the inverses of its changes begin, among those of its unit, if it is judged as soon as it is executed.
    pub mark: usize,
    /// The inverses of its changes while it waits for a computation and others of its unit note theirs.
    pub(crate) set_aside: Journal,
    /// It is executed for the second time.
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

    /// What shards call it when they speak of it.
    pub const fn called(&self) -> Gsn {
        if self.is_again { self.gsn.again() } else { self.gsn }
    }

    /// Returns whether it has the grants without which none of its fragments may run.
    pub const fn may_run(&self) -> bool {
        self.grants_missing == 0
    }

    /// Whether every part of the reply that is composed here is there.
    pub fn is_whole(&self) -> bool {
        let fragments = self.chunk.fragments(&self.chunk.txns()[self.at]);
        let is_missing = |n: usize| !fragments[n].silent && self.slots.is_missing(SlotNo(n as u32));
        self.alone || !(0..fragments.len()).any(is_missing)
    }

    /// Whether what fragment `n` changes may have to be undone: not once all verdicts are known and good, and none of
    /// the fragments to come may abort.
    pub(crate) fn may_be_undone(&self, txn: &Txn, n: usize) -> bool {
        self.is_speculative
            || txn.abortable
                && (n < txn.abortable_until as usize || self.votes_missing != 0 || self.failure.is_some())
    }

    /// Says that the transaction is part of a unit and yet decided as soon as it is executed: no other shard takes part.
    pub fn is_decided_at_once(&self) -> bool {
        self.is_speculative && self.alone && self.chunk.txns()[self.at].abortable
    }

    /// Says that fragment `n` still needs its record's lock or range while the transaction waits: it is not executed, may be
    /// undone, or ships its record to a compute fragment.
    pub fn needs_grant(&self, txn: &Txn, fragments: &[Fragment], n: usize) -> bool {
        let may_be_undone =
            !self.is_speculative && (self.may_be_undone(txn, self.next) || !self.undo.touched.is_empty());
        n >= self.next || fragments[n].lent || may_be_undone && fragments[n].writes()
    }

    /// Takes note of a failure: the one of the lowest fragment decides, wherever it comes from.
    pub fn fail(failure: &mut Option<(SlotNo, Abort)>, new: (SlotNo, Abort)) {
        if failure.is_none_or(|(slot, _)| new.0 < slot) {
            *failure = Some(new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_every_length_are_appended_whole() {
        let all: Vec<u8> = (1..=40).collect();
        let mut out = vec![9];
        for len in 0..=40 {
            out.truncate(1);
            append(&mut out, &all[..len]);
            assert_eq!((out[0], &out[1..]), (9, &all[..len]));
        }
    }

    #[test]
    fn what_was_answered_is_told_in_order() {
        let mut slots = SlotTable::default();
        slots.reset(40);
        for slot in [35, 3, 17, 18, 2, 30] {
            slots.fill(SlotNo(slot), &[slot as u8; 9], false);
        }
        slots.leave_out(SlotNo(31));
        let mut told = Vec::new();
        slots.for_each_filled(3..36, |slot, bytes| told.push((slot.0, bytes[0])));
        assert_eq!(told, [(0, 3), (14, 17), (15, 18), (27, 30), (28, CUT[0]), (32, 35)]);
    }

    #[test]
    fn beyond_the_limit_nothing_is_kept_and_what_is_told_again_is_the_same() {
        let mut slots = SlotTable::default();
        slots.reset(5);
        for (slot, len) in [(0, 60), (1, 40)] {
            slots.fill(SlotNo(slot), &vec![7; len], false);
            slots.bound(SlotNo(slot), 100);
        }
        assert!(!slots.is_beyond(100), "as long as may be");
        // Something else that others need does not count.
        slots.fill(SlotNo(2), &[8; 500], false);
        assert!(!slots.is_beyond(100));
        slots.fill(SlotNo(3), &[9; 1], false);
        slots.bound(SlotNo(3), 100);
        assert!(slots.is_beyond(100) && slots.is_cut(SlotNo(3)) && slots.slot(SlotNo(3)).is_empty());
        assert_eq!(slots.bytes(), 600);
        slots.fill(SlotNo(4), &[7; 50], false);
        slots.bound(SlotNo(4), 100);
        assert_eq!(slots.bytes(), 600);
        // The other side may cut others when it is started again.
        assert!(slots.is_same(SlotNo(4), &[7; 50], false) && slots.is_same(SlotNo(0), CUT, false));
        assert!(!slots.is_same(SlotNo(0), &[7; 50], false) && !slots.is_same(SlotNo(4), CUT, true));
    }

    #[test]
    fn whoever_is_told_that_a_part_is_too_much_need_not_have_it() {
        let mut slots = SlotTable::default();
        slots.reset(2);
        slots.fill(SlotNo(0), CUT, false);
        slots.bound(SlotNo(0), 100);
        assert!(slots.is_beyond(100) && slots.is_cut(SlotNo(0)));
        slots.reset(2);
        assert!(!slots.is_beyond(0));
    }

    #[test]
    fn a_buffer_does_not_stay_as_large_as_the_largest_transaction() {
        let mut slots = SlotTable::default();
        slots.reset(1);
        slots.fill(SlotNo(0), &vec![1; 4 * KEPT_BYTES], false);
        slots.reset(1);
        assert!(slots.arena.capacity() <= KEPT_BYTES);
        slots.fill(SlotNo(0), &[1; 1000], false);
        slots.reset(1);
        assert!(slots.arena.capacity() >= 1000, "small ones are used again");
    }
}
