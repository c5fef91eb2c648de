//! Waits that the manager of the node is told of, where they may close a cycle over several shards.
//!
//! All that is told of one event is told at its end, as things stand then: first the attempts that are over and were named before, then the
//! waits that have begun or changed. So the manager has the waits of this shard as they were after one of its events.

use std::collections::BTreeSet;

use ordain_role::Outbox;

use super::Participant;
use super::running::Waits;
use crate::concurrency::Ended;
use crate::ids::AttemptId;
use crate::message::{Message, Own, Wait};

/// The attempts that the manager knows of.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Attempts under way that were named in a wait.
    named: BTreeSet<AttemptId>,
    /// Attempts that are over since the last event, and were named.
    over: Vec<AttemptId>,
}

impl Waiting {
    /// An attempt is over here.
    pub(super) fn end(&mut self, who: AttemptId) {
        if self.named.remove(&who) {
            self.over.push(who);
        }
    }

    /// Forgets everything, since the term has changed: the manager has done so too.
    pub(super) fn clear(&mut self) {
        self.named.clear();
        self.over.clear();
    }

    /// Checks that no attempt is named that is over.
    ///
    /// # Errors
    /// The first attempt that is.
    pub(super) fn check(&self, is_live: &dyn Fn(AttemptId) -> bool) -> Result<(), String> {
        match self.named.iter().find(|who| !is_live(**who)) {
            Some(who) => Err(format!("attempt {who} is over, and the manager was not told")),
            None => Ok(()),
        }
    }
}

impl Participant {
    /// Tells the manager what has changed in this event.
    pub(super) fn tell_waits(&mut self, out: &mut Outbox<Message>) {
        let waiters = self.control.take_waiters();
        let Some(term) = self.serves else { return };
        let shard = self.holding.number() as u16;
        for who in self.waiting.over.drain(..) {
            out.send(self.manager, Own::Over(term, shard, who));
        }
        for who in waiters {
            let Some(attempt) = self.attempts.get(&who) else { continue };
            let behind = self.control.waits_for(&self.store, who);
            if behind.is_empty() {
                continue;
            }
            self.waiting.named.insert(who);
            self.waiting.named.extend(&behind);
            out.send(self.manager, Own::Waits(Wait { term, shard, who, age: attempt.age, behind }));
        }
    }

    /// Refuses the access of an attempt that waits for another one, as the manager has it.
    pub(super) fn refuse(&mut self, who: AttemptId, behind: AttemptId, out: &mut Outbox<Message>) {
        let Some(term) = self.serves else { return };
        let waits = self.waits(who) == Some(Waits::Lock)
            && self.control.waits_for(&self.store, who).contains(&behind);
        match waits {
            true => self.settle(Ended { refused: vec![who], ..Ended::default() }, out),
            false => out.send(self.manager, Own::Spared(term, who)),
        }
    }
}
