//! Confirmation of leadership by a round to the replicas: the appender asks ([`Log::Confirm`]) for reads that nothing is logged
//! for (commit.md, R-CONFIRM and schedule 10).
//!
//! A round begins after the question. A majority answers that it has promised no larger ballot, in generations that count, so no
//! other server led before the round began: its first line would have needed one of that majority. Questions that come while a round is under way
//! share the next one. Where entries are handed on early, a question also waits until all that was appended before it is
//! durable.

use std::collections::VecDeque;

use ordain_model::Micros;
use ordain_role::{Bug, Now, Outbox};

use super::super::configuration::StorageMember;
use super::super::message::{Ballot, Storage};
use super::{HEARTBEAT_EVERY, PATIENCE, Stage, StorageLog};
use crate::entry::EntryType;
use crate::message::{Carrier, Log};

/// A question of the appender.
#[derive(Clone, Copy, Debug)]
struct Question {
    n: u64,
    /// The line that must be durable first.
    needs: u64,
    asked: Micros,
}

/// The open questions of the appender.
#[derive(Debug, Default)]
pub(super) struct Confirmations {
    /// The questions that wait for the next round.
    waiting: Vec<Question>,
    round: Option<Round>,
    /// The questions whose rounds have ended.
    proved: VecDeque<Question>,
    /// The number of rounds so far, which is the number of the latest.
    pub rounds: u64,
    pub confirmed: u64,
}

/// A round under way.
#[derive(Debug)]
struct Round {
    questions: Vec<Question>,
    answered: Vec<StorageMember>,
    sent: Micros,
}

impl Confirmations {
    /// Takes all open questions, in their order.
    fn take(&mut self) -> Vec<Question> {
        let under_way = self.round.take().into_iter().flat_map(|round| round.questions);
        self.proved.drain(..).chain(under_way).chain(self.waiting.drain(..)).collect()
    }

    fn oldest(&self) -> Option<Micros> {
        let under_way = self.round.iter().flat_map(|round| &round.questions);
        self.proved.iter().chain(under_way).chain(&self.waiting).map(|question| question.asked).next()
    }

    /// Finds a state that cannot be.
    pub fn check(&self) -> Result<(), String> {
        let under_way = self.round.iter().flat_map(|round| &round.questions);
        let all = self.proved.iter().chain(under_way).chain(&self.waiting);
        match all.map(|question| question.n).is_sorted_by(|a, b| a < b) {
            true => Ok(()),
            false => Err("confirmations are not asked for in rising order".to_owned()),
        }
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageLog<T, M> {
    /// Takes a question of the appender.
    pub(super) fn confirm(&mut self, now: Now, n: u64, out: &mut Outbox<M>) {
        let leads = matches!(&self.stage, Stage::Leads(leading) if leading.leads());
        if !leads || self.is_stopping {
            return out.send(self.appender, Log::NotConfirmed { n });
        }
        let needs = if self.settings.early { self.last().lsn } else { 0 };
        let question = Question { n, needs, asked: now.elapsed };
        if self.settings.bugs.has(Bug::ConfirmFromBelief) {
            // Planted, CONFIRMED.
            self.confirmations.proved.push_back(question);
        } else {
            self.confirmations.waiting.push(question);
        }
    }

    /// Begins a round, if questions wait and none is under way.
    pub(super) fn begin_round(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Leads(leading) = &self.stage else { return };
        let ballot = leading.ballot;
        if self.confirmations.round.is_some() || self.confirmations.waiting.is_empty() {
            return;
        }
        self.confirmations.rounds += 1;
        let questions = std::mem::take(&mut self.confirmations.waiting);
        self.confirmations.round = Some(Round { questions, answered: Vec::new(), sent: now.elapsed });
        self.tell_replicas(&Storage::Confirm { ballot, n: self.confirmations.rounds }, out);
    }

    /// A replica has promised no larger ballot.
    pub(super) fn round_answered(&mut self, from: StorageMember, ballot: Ballot, n: u64) {
        let Stage::Leads(leading) = &self.stage else { return };
        let Some(round) = &mut self.confirmations.round else { return };
        if leading.ballot != ballot || n != self.confirmations.rounds || round.answered.contains(&from) {
            return;
        }
        round.answered.push(from);
        if leading.is_majority(&round.answered)
            && let Some(round) = self.confirmations.round.take()
        {
            self.confirmations.proved.extend(round.questions);
        }
    }

    /// Answers what is proved, once all is durable that it waits for, and begins the next round.
    pub(super) fn answer_confirmed(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Leads(leading) = &self.stage else { return };
        let (term, durable) = (leading.ballot.term(), self.durable);
        while let Some(Question { n, .. }) =
            self.confirmations.proved.pop_front_if(|question| question.needs <= durable)
        {
            self.confirmations.confirmed += 1;
            out.send(self.appender, Log::Confirmed { n, term });
        }
        self.begin_round(now, out);
    }

    /// Repeats a round, part of which may be lost, and gives it up when it takes too long.
    pub(super) fn tick_confirmations(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Leads(leading) = &self.stage else { return };
        let ballot = leading.ballot;
        if self.confirmations.oldest().is_some_and(|asked| now.elapsed.since(asked) >= PATIENCE) {
            return self.refuse_confirmations(out);
        }
        let Some(round) = &mut self.confirmations.round else { return };
        if now.elapsed.since(round.sent) >= HEARTBEAT_EVERY {
            round.sent = now.elapsed;
            let has_answered = |node| round.answered.iter().any(|member| member.node == node);
            let silent = self.settings.replicas.iter().copied().filter(|node| !has_answered(*node));
            let silent: Vec<_> = silent.collect();
            let confirm = Storage::Confirm { ballot, n: self.confirmations.rounds };
            silent.into_iter().for_each(|node| out.send(self.at(node), confirm.clone()));
        }
    }

    /// Answers all that is open with a no.
    pub(super) fn refuse_confirmations(&mut self, out: &mut Outbox<M>) {
        for Question { n, .. } in self.confirmations.take() {
            out.send(self.appender, Log::NotConfirmed { n });
        }
    }
}
