//! The outcomes of attempts, for the participants that may ask: who knows them, what is denied, and what the log may forget.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Epoch, Install, Micros, PartitionId};
use ordain_role::Bug;

use super::{Coordinator, FORGET_EVERY};
use crate::desk::Desk;
use crate::entry::{Commitment, Content};
use crate::ids::AttemptId;
use crate::message::Protocol;

/// Commits of which participants have not said that they know, with the numbers of the decisions.
#[derive(Debug, Default)]
pub struct Unacknowledged {
    /// Boxed, as a tree moves its values.
    by_attempt: BTreeMap<AttemptId, Box<(u64, BTreeSet<PartitionId>)>>,
    /// The numbers of those that a partition has not acknowledged.
    numbers: BTreeMap<PartitionId, BTreeSet<u64>>,
}

impl Unacknowledged {
    /// Adds a commit that was decided with this number.
    pub fn add(&mut self, who: AttemptId, number: u64, participants: BTreeSet<PartitionId>) {
        // Without views decisions have no numbers.
        for partition in participants.iter().filter(|_| number > 0) {
            self.numbers.entry(*partition).or_default().insert(number);
        }
        if !participants.is_empty() {
            self.by_attempt.insert(who, Box::new((number, participants)));
        }
    }

    /// A participant knows a commit; answers whether all do, who have not before.
    pub fn acknowledge(&mut self, who: AttemptId, from: PartitionId) -> bool {
        let Some((number, awaited)) = self.by_attempt.get_mut(&who).map(|of| &mut **of) else { return false };
        if awaited.remove(&from)
            && let Some(numbers) = self.numbers.get_mut(&from)
        {
            numbers.remove(number);
        }
        awaited.is_empty() && self.by_attempt.remove(&who).is_some()
    }

    /// The lowest number of what a partition has not acknowledged.
    pub fn first(&self, partition: PartitionId) -> Option<u64> {
        self.numbers.get(&partition)?.first().copied()
    }

    /// The highest such number before another one; 0 if there is none.
    pub fn before(&self, partition: PartitionId, number: u64) -> u64 {
        let numbers = self.numbers.get(&partition).and_then(|numbers| numbers.range(..number).next_back());
        numbers.copied().unwrap_or(0)
    }

    /// The commits that a partition has not acknowledged.
    pub fn of(&self, partition: PartitionId) -> Vec<AttemptId> {
        let its = self.by_attempt.iter().filter(|(_, of)| of.1.contains(&partition));
        its.map(|(who, _)| *who).collect()
    }

    /// The number of commits.
    pub fn len(&self) -> usize {
        self.by_attempt.len()
    }

    /// Forgets all of them, since the term is over.
    pub fn clear(&mut self) {
        *self = Unacknowledged::default();
    }

    /// Checks the numbers against the commits.
    ///
    /// # Errors
    /// The first that is kept for nothing.
    pub fn check(&self) -> Result<(), String> {
        if let Some((who, _)) = self.by_attempt.iter().find(|(_, of)| of.1.is_empty()) {
            return Err(format!("attempt {who} is known to all and kept"));
        }
        for (partition, numbers) in &self.numbers {
            let its =
                self.by_attempt.values().filter(|of| of.0 > 0 && of.1.contains(partition)).map(|of| of.0);
            if its.collect::<BTreeSet<u64>>() != *numbers {
                return Err(format!(
                    "partition {} has not acknowledged {numbers:?}, and more or less",
                    partition.0
                ));
            }
        }
        Ok(())
    }
}

impl Coordinator {
    /// Tells a participant that an attempt has committed.
    pub(super) fn tell_commit(
        &mut self,
        partition: PartitionId,
        who: AttemptId,
        with: Commitment,
        desk: &mut Desk<'_>,
    ) {
        let number = with.view.seen().vector.of(who.home().partition);
        let unknown = self.unacknowledged.before(partition, number);
        let after = match desk.site.propagation.install {
            Install::Decoupled => unknown,
            Install::Paper => with.after.max(unknown),
        };
        desk.tell_manager(partition, Protocol::Decide(who, Some(Commitment { after, ..with })));
    }

    /// A participant knows the outcome.
    pub fn acknowledged(&mut self, from: PartitionId, who: AttemptId, now: Micros) {
        let mut is_known_to_all = self.unacknowledged.acknowledge(who, from);
        self.announcing.acknowledged();
        if let Some(awaited) = self.denied.get_mut(&who) {
            awaited.remove(&from);
            is_known_to_all |= awaited.is_empty() && self.denied.remove(&who).is_some();
        }
        if is_known_to_all {
            self.may_forget(who, now);
        }
    }

    /// A participant that has promised asks for the outcome.
    pub fn asked(&mut self, from: PartitionId, who: AttemptId, desk: &mut Desk<'_>) {
        if who.home().partition != desk.site.partition {
            return;
        }
        if let Some(decided) = desk.agreed.decided(who) {
            let Some(with) = decided.commit.clone() else {
                self.denied.entry(who).or_default().insert(from);
                desk.tell_manager(from, Protocol::Decide(who, None));
                return;
            };
            return self.tell_commit(from, who, with, desk);
        }
        let is_own = Some(who.home()) == desk.lead;
        let live = self.live.get(&who.transaction.number).filter(|_| is_own);
        let is_live = live.is_some_and(|live| live.attempt == who.attempt);
        let is_forgotten = self.forgettable.contains(&who);
        // Planted, DENIED-NEVER-COMMITS: what is not decided counts as aborted.
        if is_forgotten || is_live && !desk.site.bugs.has(Bug::DenyLive) {
            return;
        }
        self.denied.entry(who).or_default().insert(from);
        if self.denying.insert(who) {
            desk.append(desk.clock, Content::Deny(who));
        }
    }

    /// A denial is in the log: who has asked is told. If all know already, the log may forget it.
    pub fn deny(&mut self, who: AttemptId, desk: &mut Desk<'_>) {
        self.denying.remove(&who);
        let Some(askers) = self.denied.get(&who) else {
            self.may_forget(who, desk.elapsed());
            return;
        };
        for partition in askers {
            desk.tell_manager(*partition, Protocol::Decide(who, None));
        }
    }

    /// Nobody will ask for an outcome any more.
    fn may_forget(&mut self, who: AttemptId, now: Micros) {
        if !self.forgettable.contains(&who) {
            self.forgettable.push(who);
        }
        self.forgets_at.get_or_insert(now.plus(FORGET_EVERY));
    }

    /// A denial or a forgetting is not in the log and never will be.
    pub fn unwritten(&mut self, content: &Content, now: Micros) {
        match content {
            Content::Deny(who) => {
                self.denying.remove(who);
                self.denied.remove(who);
            }
            Content::Forget(attempts) => {
                self.forgettable.extend(attempts);
                self.forgets_at.get_or_insert(now.plus(FORGET_EVERY));
            }
            _ => {}
        }
    }

    /// Outcomes are forgotten. Who has asked for one meanwhile, and asks again, is denied anew.
    pub fn forgotten(&mut self, attempts: &[AttemptId], place: Epoch, desk: &mut Desk<'_>) {
        attempts.iter().for_each(|who| _ = self.denied.remove(who));
        let durable = self.answers.durable();
        self.voting.forgotten(attempts, place, durable, desk);
    }

    /// Lets the log forget the outcomes that nobody will ask for.
    pub(super) fn forget(&mut self, desk: &mut Desk<'_>) {
        self.forgets_at = None;
        if desk.appender.is_full() {
            self.forgets_at = Some(desk.elapsed().plus(FORGET_EVERY));
        } else if !self.forgettable.is_empty() {
            let attempts = std::mem::take(&mut self.forgettable);
            desk.append(desk.clock, Content::Forget(attempts));
        }
    }
}
