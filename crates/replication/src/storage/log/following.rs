//! Following: what is durable is fetched from a replica and handed on, until no leader speaks.

use std::collections::BTreeMap;

use ordain_model::{Epoch, Micros};
use ordain_role::{NodeId, Now, Outbox};

use super::super::lines::Lines;
use super::super::message::{Ballot, Line, LogBase, ReplicaState, Storage, Written};
use super::super::quorum::majority;
use super::standing::Chosen;
use super::telling::StorageObstacle;
use super::{ASK_EVERY, BEHIND_EVERY, FRESH, PATIENCE, SILENCE, STAND_STEP, Stage, StorageLog};
use crate::entry::EntryType;
use crate::message::{Carrier, Log};

/// The state of a server that follows.
#[derive(Debug, Default)]
pub(super) struct Following {
    /// The time of the last questions for states.
    asked: Option<Micros>,
    /// The question for lines that is not answered: number, replica, time.
    fetch: Option<(u64, NodeId, Micros)>,
    /// Which of the replicas is asked for lines.
    source: usize,
    /// The time from which on this server stands.
    stand_at: Option<Micros>,
    /// It does not before.
    not_before: Micros,
    /// The epochs up to which replicas keep nothing of what it needs next.
    trimmed: BTreeMap<NodeId, Epoch>,
    /// The time of the last request for a checkpoint.
    called: Option<Micros>,
}

impl Following {
    /// Follows from a time on, and does not stand before another.
    pub fn after(now: Micros, not_before: Micros) -> Following {
        Following { asked: Some(now), not_before, ..Following::default() }
    }

    /// Follows without all that the replicas have trimmed: a checkpoint is asked for if another server does not lead soon,
    /// so that a replica knows more to be durable.
    pub fn behind(now: Micros) -> Following {
        Following { called: Some(now.plus(PATIENCE).plus(PATIENCE)), ..Following::after(now, now) }
    }

    /// The stream to a node has ended.
    pub fn forget(&mut self, node: NodeId) {
        self.fetch.take_if(|(_, from, _)| *from == node);
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageLog<T, M> {
    pub(super) fn tick_following(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Follows(following) = &mut self.stage else { return };
        if following.asked.is_none_or(|asked| now.elapsed.since(asked) >= ASK_EVERY) {
            following.asked = Some(now.elapsed);
            self.ask_states(out);
        }
        let Stage::Follows(following) = &mut self.stage else { return };
        if following.fetch.take_if(|(.., at)| now.elapsed.since(*at) >= PATIENCE).is_some() {
            following.source += 1;
        }
        self.fetch_tail(now, out);
        self.call_for_checkpoint(now, out);
        if self.is_time_to_stand(now) {
            self.stand(now, out);
        }
    }

    /// Asks a replica for the next durable lines, unless one is asked.
    fn fetch_tail(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Follows(following) = &mut self.stage else { return };
        if following.fetch.is_some() {
            return;
        }
        let replicas = &self.settings.replicas;
        let source = replicas[following.source % replicas.len()];
        self.questions += 1;
        following.fetch = Some((self.questions, source, now.elapsed));
        let after = self.place();
        out.send(self.at(source), Storage::Fetch { number: self.questions, ballot: Ballot(0), after });
    }

    /// Takes durable lines.
    pub(super) fn tailed(
        &mut self,
        now: Now,
        from: NodeId,
        number: u64,
        (previous, lines, durable): (Line, Vec<Written>, u64),
        out: &mut Outbox<M>,
    ) {
        let Stage::Follows(following) = &mut self.stage else { return };
        if following.fetch.take_if(|(asked, ..)| *asked == number).is_none() {
            return;
        }
        following.trimmed.remove(&from);
        let is_last = lines.is_empty();
        if is_last && self.states.values().any(|(state, _)| state.durable > durable) {
            // Another one knows of more.
            following.source += 1;
        }
        if !self.take(previous, lines) {
            return;
        }
        let last = self.last().lsn;
        self.hand_on(last, out);
        self.behind.take_if(|epoch| *epoch <= self.handed.1);
        if !is_last {
            self.fetch_tail(now, out);
        }
    }

    /// Takes lines that follow one. `false` if that is not the last one here.
    pub(super) fn take(&mut self, previous: Line, lines: Vec<Written>) -> bool {
        let known = match &mut self.lines {
            Some(known) => known,
            none => {
                self.durable = previous.lsn;
                (self.handed.0, self.told.0) = (previous.lsn, previous.lsn);
                none.insert(Lines::after(previous))
            }
        };
        known.last().lsn == previous.lsn && lines.into_iter().all(|line| known.push(line).is_some())
    }

    /// Begins behind lines that a replica does not keep any more, if this server has all entries of them already: its checkpoint
    /// says up to which epoch it has them, and not up to which line. `false` if it has not.
    pub(super) fn skip(&mut self, base: &LogBase, out: &mut Outbox<M>) -> bool {
        if base.epoch > self.handed.1 || base.last.lsn < self.durable {
            return false;
        }
        let lsn = base.last.lsn;
        self.lines = Some(Lines::after(base.last));
        (self.durable, self.handed.0, self.told.0) = (lsn, lsn, lsn);
        // Others stand in the places of these, which are trimmed.
        let lost = self.open.extract_if(..=lsn, |_, _| true);
        let lost: Vec<T::Entry> = lost.map(|(_, open)| open.entry).collect();
        lost.into_iter().for_each(|entry| self.lose(entry, out));
        true
    }

    /// A replica does not keep what this server needs next.
    pub(super) fn tail_trimmed(
        &mut self,
        now: Now,
        from: NodeId,
        number: u64,
        base: &LogBase,
        out: &mut Outbox<M>,
    ) {
        let Stage::Follows(following) = &mut self.stage else { return };
        if following.fetch.take_if(|(asked, ..)| *asked == number).is_none() {
            return;
        }
        if self.skip(base, out) {
            return self.fetch_tail(now, out);
        }
        let Stage::Follows(following) = &mut self.stage else { return };
        following.source += 1;
        following.trimmed.insert(from, base.epoch);
        let fresh = self.states.iter().filter(|(_, (_, at))| now.elapsed.since(*at) < FRESH);
        let mut reached = fresh.map(|(node, _)| node).peekable();
        if reached.peek().is_some() && reached.all(|node| following.trimmed.contains_key(node)) {
            self.behind = following.trimmed.values().min().copied();
            self.call_for_checkpoint(now, out);
        }
    }

    /// Asks for a checkpoint, now and then, if no replica keeps what this server needs next.
    fn call_for_checkpoint(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Follows(following) = &mut self.stage else { return };
        let (Some(epoch), Some(to)) = (self.behind, self.settings.checkpointer) else { return };
        if following.called.is_none_or(|called| now.elapsed.since(called) >= BEHIND_EVERY) {
            following.called = Some(now.elapsed);
            out.send(to, Log::Behind(epoch));
        }
    }

    /// Tells whether a replica would let this server lead now: it has space, and has heard no other leader lately.
    fn is_quiet(&self, now: Now, (state, at): &(ReplicaState, Micros)) -> bool {
        let age = now.elapsed.since(*at);
        let is_own = state.promised.owner() == Some(self.rank);
        age < FRESH && !state.is_full && (is_own || state.silence.plus(age) >= SILENCE)
    }

    /// Looks who is in the way of a majority: replicas that were not met before the region begins, and those that have lost their
    /// disks. Answers whether a majority is there.
    fn look_for_majority(&mut self, now: Now) -> bool {
        let fresh = self.states.iter().filter(|(_, (_, at))| now.elapsed.since(*at) < FRESH);
        let fresh: Vec<(&NodeId, &ReplicaState)> = fresh.map(|(node, (state, _))| (node, state)).collect();
        let states = || fresh.iter().copied();
        let (all, newest) = (&self.settings.replicas, Chosen::of(states()));
        let members = newest.as_ref().map(|newest| newest.members_of(states(), self.settings.bugs));
        let members = members.unwrap_or_default();
        let begun = newest.as_ref().filter(|newest| newest.configuration.has_begun());
        let is_met = |node: &NodeId| members.iter().any(|member| member.node == *node);
        let unmet = all.iter().filter(|node| begun.is_none() && !is_met(node)).copied().collect();
        let forgetful = members.iter().filter(|member| begun.is_some_and(|begun| !begun.counts(member)));
        let forgetful = forgetful.map(|member| member.node).collect();
        let is_there = newest.is_some_and(|newest| newest.is_majority(&members, all.len()));
        self.obstacle = StorageObstacle { unmet, forgetful };
        is_there
    }

    /// Tells whether a majority has heard no leader lately, and has not for a while that depends on this server's rank.
    fn is_time_to_stand(&mut self, now: Now) -> bool {
        let quiet = self.states.values().filter(|heard| self.is_quiet(now, heard)).count();
        let is_quiet = quiet >= majority(self.settings.replicas.len());
        let may_stand = self.look_for_majority(now) && is_quiet && !self.is_stopping && self.behind.is_none();
        let wait = Micros(STAND_STEP.0 * self.rank as u64);
        let Stage::Follows(following) = &mut self.stage else { return false };
        if !may_stand {
            following.stand_at = None;
            return false;
        }
        let stand_at = *following.stand_at.get_or_insert(now.elapsed.plus(wait));
        now.elapsed >= stand_at.max(following.not_before)
    }
}
