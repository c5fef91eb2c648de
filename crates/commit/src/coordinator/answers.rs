//! The answers of a coordinator: those that may leave, and those that wait until what they tell of is durable.
//!
//! Where a log hands entries on before they are durable (regions.md, 4.2, "early apply"), nothing that follows from one may leave the region
//! before it is: R2.

use std::collections::BTreeMap;

use ordain_model::{Effect, Epoch, GatewayId, OutcomeBatch, OutcomeStatus, Stamp, Token, Writer, system};
use ordain_role::{Address, Bug, Bugs, NodeId};

use super::{Asker, Coordinator};
use crate::desk::Desk;
use crate::message::Relay;

/// Outcomes by the gateways that have asked.
type Batches = BTreeMap<GatewayId, OutcomeBatch>;

/// See the module.
#[derive(Debug, Default)]
pub struct Answers {
    leaving: Batches,
    /// Held answers whose entries are durable now.
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

impl Coordinator {
    /// Answers a request: by the place where it has taken effect, once the log is durable up to the entry from which the answer follows.
    pub(super) fn answer(
        &mut self,
        asker: Asker,
        status: OutcomeStatus,
        (place, follows): (Epoch, Epoch),
        reply: impl FnOnce(&mut Vec<u8>),
    ) {
        let seen = self.seen(place);
        let effect = Effect { stamp: Stamp::new(place.0), token: Token::of(seen) };
        self.answers.push(asker, (status, effect), follows, reply);
    }

    /// True if the entry at a place is durable.
    pub fn is_durable(&self, place: Epoch) -> bool {
        self.answers.durable().is_none_or(|durable| place <= durable)
    }

    /// Takes the clients that have asked for a checkpoint in this turn.
    pub fn take_savers(&mut self) -> Vec<Asker> {
        std::mem::take(&mut self.savers)
    }

    /// Answers a client that has asked for a checkpoint: it is cut, or it is not.
    pub fn answer_saver(&mut self, asker: Asker, status: OutcomeStatus, place: Epoch) {
        self.answer(asker, status, (place, place), |out| {
            if status == OutcomeStatus::Committed {
                Writer(out).status(system::CHECKPOINT_ANSWER);
            }
        });
    }

    /// Takes the outcomes of this turn: those for front doors of this node; the others are sent to the nodes that have passed
    /// the transactions on.
    pub fn take_outcomes(&mut self, desk: &mut Desk<'_>) -> Vec<OutcomeBatch> {
        let mut own = Vec::new();
        for batch in self.answers.take() {
            let node = NodeId(batch.gateway.node());
            match node == desk.site.node {
                true => own.push(batch),
                false => {
                    let manager = Address { node, role: desk.site.manager };
                    let view = desk.known.view(desk.site.snapshots);
                    desk.out.send(manager, Relay::Outcomes(batch, view));
                }
            }
        }
        own
    }

    /// The number of answers that wait until what they follow from is durable.
    pub fn held(&self) -> usize {
        self.answers.waiting()
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::ChunkNo;

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
