//! Agreement on an attempt that has run: confirmations, votes, the stamp, the decision.

use std::collections::BTreeSet;

use ordain_model::{Abort, Epoch, OutcomeStatus, PartitionId};
use ordain_role::Bug;

use super::{Coordinator, Does, Live, NOWHERE, Ready, State};
use crate::desk::Desk;
use crate::entry::{Commit, Commitment, Content, Entry, Hold};
use crate::ids::{Age, AttemptId, Bounds, Lead};
use crate::message::{ConfirmRequest, Own, Protocol, Validation};
use crate::stamps::LATEST;
use crate::view::View;

impl Coordinator {
    /// Takes a confirmation of a partition that its leader was leader after all of the attempt was read there, with the stamps that the
    /// attempt may have.
    pub fn confirmed(&mut self, from: Lead, who: AttemptId, may: Option<Bounds>, desk: &mut Desk<'_>) {
        let number = who.transaction.number;
        let Some(live) = self.live.get_mut(&number).filter(|live| live.attempt == who.attempt) else {
            return;
        };
        let State::Confirming { awaited, shards, bounds, .. } = &mut live.state else { return };
        // Reads of another term prove nothing about this one.
        let is_sound = shards.iter().all(|(_, lead)| lead.partition != from.partition || *lead == from);
        if !is_sound {
            return self.retry_later(number, Abort::TermChanged, desk);
        }
        let may = may.unwrap_or_default();
        *bounds = bounds.with(may);
        live.age = live.age.max(may.from.min(LATEST));
        if bounds.is_empty() {
            return self.retry_later(number, desk.site.refusal, desk);
        }
        awaited.remove(&from.partition);
        if awaited.is_empty() {
            self.confirmed_by_all(number, desk);
        }
    }

    pub(super) fn confirmed_by_all(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let who = live.who(number);
        let State::Confirming { shards, bounds, end, .. } = &live.state else { return };
        live.age = bounds.from;
        for (shard, lead) in shards {
            desk.tell_participant(*shard, lead.term, Protocol::Finish(who, Some(live.age)));
        }
        let (end, stamp) = (end.clone(), live.age);
        desk.known.see(&live.view, desk.agreed.living());
        self.committed_with(stamp, desk);
        self.counts.confirmed += 1;
        // It follows only from durable entries, so its answer waits for none.
        self.end(number, end.status, (desk.agreed.place(), Epoch(0)), &end.reply, desk);
    }

    /// Takes the vote of a partition.
    pub fn voted(
        &mut self,
        from: Lead,
        who: AttemptId,
        (may, seen): (Option<Bounds>, &View),
        desk: &mut Desk<'_>,
    ) {
        let number = who.transaction.number;
        let live = self.live.get_mut(&number).filter(|live| live.attempt == who.attempt);
        let Some(Live { state: State::Voting { awaited, shards, ready }, age, view, .. }) =
            live.map(|live| &mut **live)
        else {
            // The attempt is over: the sender asks what has become of it, if it has to know.
            return;
        };
        view.join(seen);
        let is_sound = shards.iter().all(|(_, lead)| lead.partition != from.partition || *lead == from);
        let Some(may) = may.filter(|_| is_sound) else {
            let reason = if is_sound { Abort::VoteNo } else { Abort::TermChanged };
            return self.retry_later(number, reason, desk);
        };
        ready.bounds = ready.bounds.with(may);
        *age = may.from.min(LATEST).max(*age);
        if ready.bounds.is_empty() {
            return self.retry_later(number, desk.site.refusal, desk);
        }
        awaited.remove(&from.partition);
        if awaited.is_empty() {
            self.validate(number, desk);
        }
    }

    /// Every other partition has promised: asks the participants of this node with which stamps the attempt may commit, if they decide that now.
    pub(super) fn validate(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let State::Voting { shards, .. } = &mut live.state else { return };
        let own = shards.iter().filter(|(_, lead)| lead.partition == desk.site.partition);
        // Locks of a part are promised with it, so its participants are asked for them.
        let part = live.part.as_ref().filter(|part| part.does != Does::Check);
        let own: BTreeSet<usize> = match desk.site.validates || part.is_some() {
            true => own.map(|(shard, _)| *shard).collect(),
            false => BTreeSet::new(),
        };
        if desk.site.locks_first && part.is_some_and(|part| !part.is_locked) {
            return self.lock(number, own, desk);
        }
        if own.is_empty() {
            return self.decide(number, desk);
        }
        let State::Voting { shards, ready, .. } = std::mem::replace(&mut live.state, State::Waiting) else {
            return;
        };
        live.state = State::Validating { awaited: own, shards, ready };
        self.ask_own(number, desk);
    }

    /// Asks the participants of this node to validate an attempt, with its second stamp where attempts have two: nothing is between drawing that and
    /// asking all of them, so requests come to each participant in the order of their stamps. If there is no stamp below the ceiling, they are asked once that has risen.
    pub(super) fn ask_own(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let (who, snapshot) = (live.who(number), live.snapshot());
        let is_promised = live.part.as_ref().is_some_and(|part| part.does != Does::Check);
        let State::Validating { awaited, ready, .. } = &mut live.state else { return };
        if desk.site.stamps.are_two() {
            let now = desk.clock.max(self.latest);
            if is_promised && !self.stamping.note_quiet(number, now, desk) {
                return;
            }
            // Planted, STAMP-ORDER: the first stamp is the second one too, and others that are larger are with the participants already.
            let stamp = match desk.site.bugs.has(Bug::StampEarly) {
                true => Some(live.age),
                false => self.stamping.stamp(number, now, desk),
            };
            let Some(stamp) = stamp else { return };
            if is_promised {
                self.stamping.doubts.begin(number, stamp);
            }
            ready.bounds = Bounds::at(stamp);
        }
        self.stamping.pass_quiet(desk);
        let (bounds, has_effect, oldest) = (ready.bounds, ready.end.is_none(), self.stamping.oldest());
        let part = live.part.as_ref();
        let is_alone = awaited.len() == 1 && ready.commit.participants.is_empty() && !is_promised;
        // Where all regions have locked, every lock comes before every check of a read (regions.md, 4.1).
        let lets_reads_go = !has_effect || is_alone || part.is_some_and(|part| part.is_locked);
        let validation = Validation { bounds, snapshot, has_effect, lets_reads_go, is_promised, oldest };
        for shard in awaited.iter() {
            let participant = desk.site.participant(desk.site.node, *shard);
            desk.out.send(participant, Own::Validate(who, validation.clone()));
        }
    }

    /// Takes the answer of a participant of this node; answers whether it was asked for here.
    pub fn validated(
        &mut self,
        who: AttemptId,
        shard: usize,
        (may, seen, holds): (Option<Bounds>, &View, Vec<Hold>),
        desk: &mut Desk<'_>,
    ) -> bool {
        let number = who.transaction.number;
        let is_its = |live: &&mut Box<Live>| live.who(number) == who;
        let Some(live) = self.live.get_mut(&number).filter(is_its) else { return false };
        let State::Validating { awaited, ready, .. } = &mut live.state else { return false };
        let may = may.unwrap_or_default();
        live.view.join(seen);
        ready.bounds = ready.bounds.with(may);
        ready.holds.extend(holds);
        live.age = live.age.max(may.from.min(LATEST));
        if ready.bounds.is_empty() {
            self.retry_later(number, desk.site.refusal, desk);
            return true;
        }
        awaited.remove(&shard);
        if awaited.is_empty() {
            self.decide(number, desk);
        }
        true
    }

    /// Proposes to commit: every partition has promised.
    pub(super) fn decide(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let (State::Voting { ready, .. } | State::Validating { ready, .. }) = &live.state else { return };
        if ready.end.is_some() {
            return self.confirm_validated(number, desk);
        }
        let stamp = ready.bounds.from;
        // A number that is not above what it follows is of a history that this log does not have.
        let follows = live.view.seen().vector.of(desk.site.partition);
        if !desk.is_remembered(stamp) || follows >= desk.appender.last().next().0 {
            return self.retry_later(number, desk.site.refusal, desk);
        }
        if live.part.is_some() {
            return self.promise_part(number, desk);
        }
        let (State::Voting { shards, ready, .. } | State::Validating { shards, ready, .. }) =
            std::mem::replace(&mut live.state, State::Waiting)
        else {
            return;
        };
        let Ready { now, mut commit, .. } = *ready;
        self.agenda.cancel(number);
        live.age = stamp;
        let reply = if commit.session.is_none() { std::mem::take(&mut commit.reply) } else { Vec::new() };
        live.state = State::Deciding { shards, reply };
        let view = live.view.living(desk.agreed.living());
        let low = self.lowest_reader();
        let ceiling = desk.ceiling_above(Bounds::at(stamp));
        let commit = Content::Commit(Commit { age: stamp, view, low, ceiling, ..commit });
        // Planted, ORDER: others are decided before, whatever they have overwritten.
        if desk.site.bugs.has(Bug::PlaceLate) && self.put_off.is_none() {
            self.put_off = Some((now, commit));
            return;
        }
        desk.append(now, commit);
        if let Some((now, commit)) = self.put_off.take() {
            desk.append(now, commit);
        }
    }

    /// All that an attempt has read is as it was at its stamp, and it has no effect: asks whether this node led afterwards.
    fn confirm_validated(&mut self, number: u64, desk: &mut Desk<'_>) {
        let Some(live) = self.live.get_mut(&number) else { return };
        let (who, snapshot) = (live.who(number), live.snapshot());
        let (State::Voting { shards, ready, .. } | State::Validating { shards, ready, .. }) =
            std::mem::replace(&mut live.state, State::Waiting)
        else {
            return;
        };
        let Ready { bounds, end: Some(end), checked, .. } = *ready else { return };
        let mut awaited: BTreeSet<PartitionId> = shards.iter().map(|(_, lead)| lead.partition).collect();
        for partition in &awaited {
            let (shards, snapshot) = (Vec::new(), snapshot.clone());
            let request = ConfirmRequest { attempt: who, bounds, shards, snapshot };
            desk.tell_manager(*partition, Protocol::Confirm(request));
        }
        awaited.extend(checked.keys());
        let is_confirmed = awaited.is_empty();
        live.state = State::Confirming { awaited, shards, bounds, end };
        if !self.ask_for_checks(number, checked, desk) {
            return self.retry_later(number, Abort::Unavailable, desk);
        }
        if is_confirmed {
            self.confirmed_by_all(number, desk);
        }
    }

    /// An attempt has committed, or has read, with this stamp.
    pub(super) fn committed_with(&mut self, stamp: Age, desk: &Desk<'_>) {
        if desk.site.stamps.are_chosen_late() {
            self.stamping.hear(stamp);
        }
    }

    /// A decision is in the log: it is answered, and its participants are told.
    pub fn decided(&mut self, entry: &Entry, commit: &Commit, desk: &mut Desk<'_>) {
        let who = commit.attempt;
        self.committed_with(commit.age, desk);
        let with = commit.commitment(entry.place);
        desk.known.see(&with.view, desk.agreed.living());
        let decided = desk.agreed.decided(who).filter(|_| desk.lead == Some(who.home()));
        if let Some(with) = decided.and_then(|decided| decided.commit.clone()) {
            self.announce(who, with, commit.participants.iter().copied().collect(), desk);
        }
        self.counts.named += commit.view.seen().anti.len() as u64;
        match commit.participants.is_empty() {
            true => self.counts.single += 1,
            false => self.counts.distributed += 1,
        }
        let (number, places) = (who.transaction.number, (entry.place, entry.place));
        match self.live.get_mut(&number).map(|live| &mut live.state) {
            Some(State::Deciding { reply, .. }) if commit.session.is_none() => {
                let reply = std::mem::take(reply);
                self.end(number, OutcomeStatus::Committed, places, &reply, desk);
            }
            _ => self.end(number, OutcomeStatus::Committed, places, &commit.reply, desk),
        }
    }

    /// Tells participants that an attempt has committed, until each has said that it knows.
    pub(super) fn announce(
        &mut self,
        who: AttemptId,
        with: Commitment,
        participants: BTreeSet<PartitionId>,
        desk: &mut Desk<'_>,
    ) {
        let number = with.view.seen().vector.of(who.home().partition);
        for partition in &participants {
            self.tell_commit(*partition, who, with.clone(), desk);
        }
        self.unacknowledged.add(who, number, participants);
    }

    /// A decision is not in the log and never will be: the disk is full.
    pub fn rejected(&mut self, commit: &Commit, desk: &mut Desk<'_>) {
        let number = commit.attempt.transaction.number;
        self.abort_attempt(number, desk);
        self.end(number, OutcomeStatus::Refused, NOWHERE, &[], desk);
    }
}
