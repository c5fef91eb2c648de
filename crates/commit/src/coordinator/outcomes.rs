//! The outcomes of attempts, for the participants that may ask: who knows them, what is denied, and what the log may forget.

use ordain_model::{Micros, PartitionId};
use ordain_role::Bug;

use super::{Coordinator, FORGET_EVERY};
use crate::desk::Desk;
use crate::entry::Content;
use crate::ids::AttemptId;
use crate::message::Protocol;

impl Coordinator {
    /// A participant knows the outcome.
    pub fn acknowledged(&mut self, from: PartitionId, who: AttemptId, now: Micros) {
        let mut is_known_to_all = false;
        for waiting in [&mut self.unacknowledged, &mut self.denied] {
            if let Some(awaited) = waiting.get_mut(&who) {
                awaited.remove(&from);
                is_known_to_all |= awaited.is_empty() && waiting.remove(&who).is_some();
            }
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
            let commit = decided.commit;
            if commit.is_none() {
                self.denied.entry(who).or_default().insert(from);
            }
            desk.tell_manager(from, Protocol::Decide(who, commit));
            return;
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
    pub fn forgotten(&mut self, attempts: &[AttemptId]) {
        attempts.iter().for_each(|who| _ = self.denied.remove(who));
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
