//! Confirmation of leadership by a quorum round: the appender asks ([`Log::Confirm`]), for reads that nothing is logged
//! for (R-CONFIRM of the commit family).
//!
//! A round is Raft's read index: heartbeats with the round's number, which a majority of the voters answers in the
//! leader's term. Had a later leader been elected before the round began, one of that majority would have refused.
//! Questions that come while a round is under way share the next one, so their number does not matter to members.
//! Heartbeats are sent again at the pace of all heartbeats; a round ends with the quorum or with the leadership.
//!
//! The crate `raft` drops a read index without a word while the leader has not committed an entry of its own term. So no
//! round begins before this member has announced itself as leader.

use std::collections::VecDeque;

use ordain_role::{Bug, Outbox};
use raft::{ReadState, StateRole};

use super::GroupLog;
use crate::entry::EntryType;
use crate::message::{Carrier, Log};

/// The open questions of the appender.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// The term in which all of them were taken.
    term: u64,
    /// The questions that wait for the next round.
    waiting: Vec<u64>,
    round: Option<Round>,
    /// The questions whose rounds have ended, and up to which index this member has to dispatch entries first.
    proved: VecDeque<(u64, Vec<u64>)>,
    /// The number of rounds so far, which is the number of the latest.
    pub rounds: u64,
    pub confirmed: u64,
}

/// A quorum round under way.
#[derive(Debug)]
struct Round {
    number: u64,
    questions: Vec<u64>,
}

impl Confirmations {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.round.is_none() && self.proved.is_empty()
    }

    /// Takes all open questions, in their order.
    fn take(&mut self) -> Vec<u64> {
        let proved = self.proved.drain(..).flat_map(|(_, questions)| questions);
        let under_way = self.round.take().into_iter().flat_map(|round| round.questions);
        proved.chain(under_way).chain(self.waiting.drain(..)).collect()
    }

    /// Finds a state that cannot be.
    pub fn check(&self) -> Result<(), String> {
        let proved = self.proved.iter().flat_map(|(_, questions)| questions);
        let under_way = self.round.iter().flat_map(|round| &round.questions);
        if !proved.chain(under_way).chain(&self.waiting).is_sorted_by(|a, b| a < b) {
            return Err("confirmations are not asked for in rising order".to_owned());
        }
        Ok(())
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> GroupLog<T, M> {
    /// Takes a question, which is answered once.
    pub(super) fn confirm(&mut self, n: u64, out: &mut Outbox<M>) {
        if self.settings.bugs.has(Bug::ConfirmFromBelief) && self.is_announced_leader() {
            // Planted, CONFIRMED.
            return out.send(self.appender, Log::Confirmed { n, term: self.raft.raft.term });
        }
        self.confirmations.term = self.raft.raft.term;
        self.confirmations.waiting.push(n);
    }

    /// Tells whether this member leads, and has told its appender so.
    fn is_announced_leader(&self) -> bool {
        let term = self.raft.raft.term;
        self.may_propose()
            && self.announced.is_some_and(|announced| announced.is_me && announced.term == term)
    }

    /// Begins a round for what waits, if none is under way. True if it did.
    pub(super) fn begin_round(&mut self) -> bool {
        let Confirmations { waiting, round, .. } = &self.confirmations;
        if waiting.is_empty() || round.is_some() || !self.is_announced_leader() {
            return false;
        }
        let Confirmations { waiting, round, rounds, .. } = &mut self.confirmations;
        *rounds += 1;
        *round = Some(Round { number: *rounds, questions: std::mem::take(waiting) });
        self.raft.read_index(rounds.to_le_bytes().to_vec());
        true
    }

    /// Notes which rounds a quorum has answered.
    pub(super) fn end_rounds(&mut self, ended: Vec<ReadState>) {
        for ReadState { index, request_ctx } in ended {
            let round = &mut self.confirmations.round;
            if let Some(round) = round.take_if(|round| request_ctx == round.number.to_le_bytes()) {
                self.confirmations.proved.push_back((index, round.questions));
            }
        }
    }

    /// Answers what is proved, once all that was agreed on before is handed on here.
    pub(super) fn answer_proved(&mut self, out: &mut Outbox<M>) {
        if self.confirmations.proved.is_empty() || !self.is_announced_leader() {
            return;
        }
        let (term, dispatched) = (self.confirmations.term, self.dispatched.0);
        while let Some((_, questions)) =
            self.confirmations.proved.pop_front_if(|(index, _)| *index <= dispatched)
        {
            self.confirmations.confirmed += questions.len() as u64;
            questions.into_iter().for_each(|n| out.send(self.appender, Log::Confirmed { n, term }));
        }
    }

    /// Answers all that is open with a no, unless this member still leads or is about to, in the term of the questions.
    pub(super) fn refuse_confirmations(&mut self, out: &mut Outbox<M>) {
        if self.confirmations.is_empty() {
            return;
        }
        let raft = &self.raft.raft;
        let leads = raft.state == StateRole::Leader && raft.term == self.confirmations.term;
        if leads && !self.journal.is_full() && !self.is_stopping {
            return;
        }
        for n in self.confirmations.take() {
            out.send(self.appender, Log::NotConfirmed { n });
        }
    }
}
