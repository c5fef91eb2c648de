//! The transactions that are under way on a shard, by number and by place in the order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use ordain_model::{Chunk, Gsn};

use super::state::Active;

/// How many states of transactions are kept for their memory.
const SPARE: usize = 256;

/// The blocked transactions of a shard, and which of them may run on.
#[derive(Debug, Default)]
pub struct ActiveTable {
    /// By number. Nothing stands at a vacant number, or while the transaction of a number is executed.
    slots: Vec<Option<Box<Active>>>,
    vacant: Vec<u32>,
    by_gsn: BTreeMap<Gsn, u32>,
    /// How many transactions have fragments left to execute here; the others only wait for parts of a reply.
    pub unfinished: usize,
    /// The whole-table transaction under way: nothing is started before it is done here.
    pub barrier: Option<u32>,
    /// Transactions that have been granted what they lacked, or have received something, oldest first.
    ready: VecDeque<u32>,
    /// Transactions that used up the budget of the last event, oldest first.
    resting: Vec<Gsn>,
    /// States of transactions that have ended, for their memory.
    #[expect(
        clippy::vec_box,
        reason = "they come and go by their boxes; half a kilobyte each is not to be moved"
    )]
    spare: Vec<Box<Active>>,
    /// Stands in a spare state in the place of a chunk, which must not be kept alive.
    no_chunk: Arc<Chunk>,
}

impl ActiveTable {
    /// Returns how many transactions have a number.
    pub fn len(&self) -> usize {
        self.by_gsn.len()
    }

    /// Returns whether no transaction has a number.
    pub fn is_empty(&self) -> bool {
        self.by_gsn.is_empty()
    }

    /// Returns the number of the transaction at a place in the order, if it has one.
    pub fn number(&self, gsn: Gsn) -> Option<u32> {
        self.by_gsn.get(&gsn).copied()
    }

    /// Returns the first transaction in the order that has a number.
    pub fn first(&self) -> Option<Gsn> {
        self.by_gsn.first_key_value().map(|(gsn, _)| *gsn)
    }

    /// Returns the transactions from a place in the order on, with their numbers.
    pub fn since(&self, gsn: Gsn) -> impl Iterator<Item = (Gsn, u32)> {
        self.by_gsn.range(gsn..).map(|(gsn, number)| (*gsn, *number))
    }

    /// Returns the transaction of a number, unless it is being executed.
    pub fn get(&self, number: u32) -> Option<&Active> {
        self.slots[number as usize].as_deref()
    }

    /// Returns the transaction of a number to be changed, unless it is being executed.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Active> {
        self.slots[number as usize].as_deref_mut()
    }

    /// Takes the transaction of a number out, to be executed. It keeps its number.
    pub fn take(&mut self, number: u32) -> Option<Box<Active>> {
        self.slots[number as usize].take()
    }

    /// Puts the transaction of a number back.
    pub fn put(&mut self, number: u32, active: Box<Active>) {
        self.slots[number as usize] = Some(active);
    }

    /// Returns all transactions that are not being executed.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Active> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    /// Gives a number to the transaction at a place in the order.
    pub(crate) fn enter(&mut self, gsn: Gsn) -> u32 {
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() as u32 - 1
        });
        self.by_gsn.insert(gsn, number);
        number
    }

    /// Frees the number of a transaction that has ended.
    pub(crate) fn leave(&mut self, number: u32, active: &mut Box<Active>) {
        self.by_gsn.remove(&active.gsn);
        self.vacant.push(number);
        // The next transaction to use a state that was never numbered mostly has the same chunk.
        active.chunk.clone_from(&self.no_chunk);
    }

    // ---- transactions that may run on ------------------------------------------------------------------

    /// Has the shard resume a transaction.
    pub fn make_ready(&mut self, number: u32) {
        self.ready.push_back(number);
    }

    /// Returns whether a transaction is to be resumed.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Takes the transaction that is resumed next.
    pub(crate) fn pop_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    /// Has a transaction wait until the next event is handled.
    pub(crate) fn rest(&mut self, gsn: Gsn) {
        self.resting.push(gsn);
    }

    /// Returns whether transactions wait until the next event is handled.
    pub(crate) fn has_resting(&self) -> bool {
        !self.resting.is_empty()
    }

    /// Takes the transactions that waited until this event is handled, for [`ActiveTable::wake`].
    pub(crate) fn take_resting(&mut self) -> Vec<Gsn> {
        std::mem::take(&mut self.resting)
    }

    /// Has the shard resume transactions that rested.
    pub(crate) fn wake(&mut self, rested: Vec<Gsn>) {
        for gsn in rested {
            self.ready.extend(self.by_gsn.get(&gsn.plain()));
        }
    }

    // ---- memory ----------------------------------------------------------------------------------------

    /// Takes a state to be [reset](Active::reset) for another transaction.
    pub(crate) fn take_spare(&mut self) -> Box<Active> {
        self.spare.pop().unwrap_or_default()
    }

    /// Keeps the state of a transaction that has ended, for its memory.
    pub(crate) fn keep_spare(&mut self, mut active: Box<Active>) {
        if self.spare.len() < SPARE {
            active.slots.reset(0);
            self.spare.push(active);
        }
    }

    /// Checks that the counts are those of the transactions, between two events.
    ///
    /// # Errors
    /// What differs.
    pub(crate) fn check(&self) -> Result<(), String> {
        let unfinished = self.iter().filter(|active| !active.done_here).count();
        if unfinished != self.unfinished {
            return Err(format!("{} unfinished transactions, {unfinished} counted", self.unfinished));
        }
        let (numbered, occupied) = (self.by_gsn.len(), self.iter().count());
        if numbered != occupied || occupied + self.vacant.len() != self.slots.len() {
            return Err(format!("{numbered} transactions have a number, and {occupied} are there"));
        }
        Ok(())
    }
}
