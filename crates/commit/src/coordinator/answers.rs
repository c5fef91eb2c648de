//! The answers of a coordinator: those that may leave, and those that wait until what they tell of is durable.
//!
//! Where a log hands entries on before they are durable (regions.md, 4.2, "early apply"), nothing that follows from one may leave the region
//! before it is: R2.

use std::collections::BTreeMap;

use ordain_model::{Effect, Epoch, GatewayId, OutcomeBatch, OutcomeStatus};
use ordain_role::{Bug, Bugs};

use super::Asker;

/// Outcomes by the gateways that have asked.
type Batches = BTreeMap<GatewayId, OutcomeBatch>;

/// See the module.
#[derive(Debug, Default)]
pub struct Answers {
    leaving: Batches,
    /// Those that have waited, and may leave.
    released: Vec<OutcomeBatch>,
    held: BTreeMap<Epoch, Batches>,
    /// The last entry that is durable, where entries are handed on before.
    durable: Option<Epoch>,
    bugs: Bugs,
}

impl Answers {
    /// No answers, of a log that hands entries on early or not.
    pub fn new(is_early: bool, bugs: Bugs) -> Answers {
        Answers { durable: is_early.then_some(Epoch(0)), bugs, ..Answers::default() }
    }

    /// Answers a request with what follows from the log up to a place.
    pub fn push(
        &mut self,
        asker: Asker,
        (status, effect): (OutcomeStatus, Effect),
        follows: Epoch,
        reply: impl FnOnce(&mut Vec<u8>),
    ) {
        let Asker { gateway, chunk, index } = asker;
        // Planted, DURABLE-FIRST.
        let may_leave =
            self.bugs.has(Bug::AnswerEarly) || self.durable.is_none_or(|durable| follows <= durable);
        let batches = if may_leave { &mut self.leaving } else { self.held.entry(follows).or_default() };
        let batch = batches.entry(gateway).or_insert_with(|| OutcomeBatch::new(gateway));
        batch.push(chunk, index, effect, status, reply);
    }

    /// The log is durable up to a place: answers wait for it no more.
    pub fn release(&mut self, durable: Epoch) {
        let Some(known) = &mut self.durable else { return };
        *known = durable.max(*known);
        let later = self.held.split_off(&known.next());
        let released = std::mem::replace(&mut self.held, later).into_values();
        self.released.extend(released.flat_map(BTreeMap::into_values));
    }

    /// Takes the answers that may leave.
    pub fn take(&mut self) -> Vec<OutcomeBatch> {
        let mut all = std::mem::take(&mut self.released);
        all.extend(std::mem::take(&mut self.leaving).into_values());
        all
    }

    /// The last entry that is durable, where entries are handed on before.
    pub const fn durable(&self) -> Option<Epoch> {
        self.durable
    }

    /// The number of answers that wait.
    pub fn waiting(&self) -> usize {
        self.held.values().flat_map(BTreeMap::values).map(|batch| batch.outcomes.len()).sum()
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// An answer waits for what is durable.
    pub fn check(&self) -> Result<(), String> {
        match self.held.keys().next().filter(|first| self.durable.is_none_or(|durable| **first <= durable)) {
            Some(first) => Err(format!("answers wait for entry {first}, which is durable")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{ChunkNo, Stamp, Token};

    use super::*;

    const GATEWAY: GatewayId = GatewayId::of(0, 0);

    fn push(answers: &mut Answers, number: u64, follows: u64) {
        let asker = Asker { gateway: GATEWAY, chunk: ChunkNo(number), index: 0 };
        let effect = Effect { stamp: Stamp::NONE, token: Token::NOTHING };
        answers.push(asker, (OutcomeStatus::Committed, effect), Epoch(follows), |_| {});
        answers.check().unwrap();
    }

    fn taken(answers: &mut Answers) -> Vec<u64> {
        answers.check().unwrap();
        let all = answers.take();
        all.iter().flat_map(|batch| batch.outcomes.iter().map(|outcome| outcome.chunk.0)).collect()
    }

    #[test]
    fn answers_wait_until_what_they_follow_is_durable() {
        let mut answers = Answers::new(true, Bugs::NONE);
        [(1, 0), (2, 5), (3, 4), (4, 6)].into_iter().for_each(|(n, follows)| push(&mut answers, n, follows));
        assert_eq!((taken(&mut answers), answers.waiting()), (vec![1], 3));
        answers.release(Epoch(5));
        push(&mut answers, 5, 5);
        push(&mut answers, 6, 7);
        assert_eq!((taken(&mut answers), answers.waiting()), (vec![3, 2, 5], 2));
        answers.release(Epoch(4));
        assert_eq!(answers.durable(), Some(Epoch(5)), "it does not go back");
        answers.release(Epoch(9));
        assert_eq!((taken(&mut answers), answers.waiting()), (vec![4, 6], 0));
    }

    #[test]
    fn nothing_waits_where_entries_are_durable_before_they_are_handed_on() {
        let mut answers = Answers::new(false, Bugs::NONE);
        push(&mut answers, 1, 7);
        assert_eq!(taken(&mut answers), [1]);
    }
}
