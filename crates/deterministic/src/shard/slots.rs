//! Result slots: the answers of a transaction's fragments, as far as a shard knows them, in one buffer.

use std::ops::Range;

use ordain_model::procedure::Slots;
use ordain_model::{SlotNo, Writer};

use super::state::Known;

/// The state of a slot.
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
    /// It was filled and is needed no more: its bytes were sent to the collector, or the reply is known to be too
    /// long.
    Cut,
}

/// Stands in the place of a slot that is cut, or of a record that is larger than may be shipped. No fragment answers
/// so: it is no [`Datum`](ordain_model::Datum).
pub const CUT: &[u8] = &[254];

/// A buffer that one large transaction has filled does not stay so large when it is kept for others.
const KEPT_BYTES: usize = 1 << 20;

/// Empties a buffer that is used again.
pub(crate) fn empty(buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.shrink_to(KEPT_BYTES);
}

/// Appends some bytes. Answers are mostly short: of 8 to 16 bytes both ends are read as words, which takes no call.
#[inline]
pub(crate) fn append(out: &mut Vec<u8>, bytes: &[u8]) {
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

/// The result slots of one or more transactions, as far as this shard knows them.
#[derive(Debug, Default)]
pub struct SlotTable {
    states: Vec<SlotState>,
    arena: Vec<u8>,
    /// The bytes of what [only the reply](Fragment::only_answers) is made from, as answered or received so far. Parts
    /// only add up, so more than a limit is more than that wherever the other parts are.
    answered: usize,
}

impl SlotTable {
    /// Empties the table and makes room for the slots of so many fragments.
    pub fn reset(&mut self, fragments: usize) {
        self.states.clear();
        self.states.resize(fragments, SlotState::Missing);
        empty(&mut self.arena);
        self.answered = 0;
    }

    /// Counts the slot that was filled last, of which only the reply is made. Beyond the limit, bytes, nothing of it
    /// is kept.
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

    /// Returns the bytes of what only the reply is made from; beyond the limit they are not counted.
    pub(crate) const fn answered_bytes(&self) -> usize {
        self.answered
    }

    /// Returns whether what only the reply is made from is longer than a limit, bytes.
    pub(crate) const fn is_beyond(&self, limit: usize) -> bool {
        self.answered > limit
    }

    /// Drops the bytes of the slot that was filled last: it is needed no more.
    #[inline]
    pub fn cut(&mut self, slot: SlotNo) {
        let state = &mut self.states[slot.0 as usize];
        if let SlotState::Filled { at, .. } = *state {
            self.arena.truncate(at);
            *state = SlotState::Cut;
        }
    }

    /// Marks a slot as cut without filling it.
    pub fn leave_out(&mut self, slot: SlotNo) {
        self.states[slot.0 as usize] = SlotState::Cut;
    }

    /// Returns whether a slot is cut.
    pub(crate) fn is_cut(&self, slot: SlotNo) -> bool {
        self.states[slot.0 as usize] == SlotState::Cut
    }

    /// Returns the bytes of all slots together.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.arena.len()
    }

    /// Returns whether a slot is neither filled nor cut.
    pub fn is_missing(&self, slot: SlotNo) -> bool {
        self.states[slot.0 as usize] == SlotState::Missing
    }

    /// Returns whether a repeated slot equals the one that is here. Which slots are cut, where more bytes come than
    /// are kept, is not a function of the log, as fragments run when they are granted.
    pub fn is_same(&self, slot: SlotNo, bytes: &[u8], failed: bool) -> bool {
        self.is_failed(slot) == failed && (self.slot(slot) == bytes || self.is_cut(slot) || bytes == CUT)
    }

    /// Calls a function for each filled slot of a range, with its place in the range and its bytes.
    pub(crate) fn for_each_filled(&self, slots: Range<usize>, mut each: impl FnMut(SlotNo, &[u8])) {
        const TOGETHER: usize = 16;
        for (first, states) in (0..).step_by(TOGETHER).zip(self.states[slots].chunks(TOGETHER)) {
            // Which slots are filled no processor can predict, but how many: no branch depends on each.
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

    /// Fills a slot with the answer of a fragment, or with what it left if it failed.
    pub fn fill(&mut self, slot: SlotNo, bytes: &[u8], failed: bool) {
        let at = self.arena.len();
        append(&mut self.arena, bytes);
        self.close(slot, at, failed);
    }

    /// Empties a slot.
    pub(crate) fn unfill(&mut self, slot: SlotNo) {
        self.states[slot.0 as usize] = SlotState::Missing;
    }

    /// Takes the arena, for a slot to be appended in place; [`SlotTable::return_arena`] gives it back.
    #[inline]
    pub fn take_arena(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.arena)
    }

    /// Gives back the arena without filling a slot.
    #[inline]
    pub fn return_arena(&mut self, arena: Vec<u8>) {
        self.arena = arena;
    }

    /// Fills a slot with bytes that were appended to the arena while it was taken.
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
    /// Adds a shard's part of a slot, and fills the slot with the last: with all parts, or with the part of one shard if a bug
    /// is planted.
    pub fn take(
        &mut self,
        slots: &mut SlotTable,
        slot: SlotNo,
        (shard, shards): (usize, usize),
        part: Vec<u8>,
        only: Option<usize>,
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
        if let Some(bytes) = table.assemble(only) {
            slots.fill(slot, &bytes, false);
            self.0.swap_remove(at);
        }
        Known::New
    }
}

impl TableSlot {
    /// The slot, once every shard has answered: the array of the parts.
    pub(crate) fn assemble(&self, only: Option<usize>) -> Option<Vec<u8>> {
        let parts: Option<Vec<&Vec<u8>>> = self.parts.iter().map(Option::as_ref).collect();
        let parts: Vec<&Vec<u8>> = match only {
            Some(only) => parts?.into_iter().skip(only).take(1).collect(),
            None => parts?,
        };
        let mut slot = Vec::new();
        Writer(&mut slot).array(parts.len());
        parts.iter().for_each(|part| slot.extend_from_slice(part));
        Some(slot)
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
    fn filled_slots_are_visited_in_order() {
        let mut slots = SlotTable::default();
        slots.reset(40);
        for slot in [35, 3, 17, 18, 2, 30] {
            slots.fill(SlotNo(slot), &[slot as u8; 9], false);
        }
        slots.leave_out(SlotNo(31));
        let mut visited = Vec::new();
        slots.for_each_filled(3..36, |slot, bytes| visited.push((slot.0, bytes[0])));
        assert_eq!(visited, [(0, 3), (14, 17), (15, 18), (27, 30), (28, CUT[0]), (32, 35)]);
    }

    #[test]
    fn beyond_the_limit_nothing_is_kept_and_what_is_repeated_is_the_same() {
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
    fn a_slot_received_as_cut_need_not_be_kept() {
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
