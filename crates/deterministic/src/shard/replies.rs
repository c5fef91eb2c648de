//! The outcomes of transactions whose reply is composed on a shard, on their way to gateways and kept for retries.

use ordain_model::{Chunk, Epoch, Gsn, Lookup, OutcomeBatch, OutcomeStatus, Txn};

use super::deferred_replies::DeferredReplies;
use super::remote::Places;
use super::reply::{are_enough, outcomes_of};
use super::sessions::Sessions;

/// Outcomes that are gathered while an event is handled, and those that sessions may ask for again.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    outcomes: Vec<OutcomeBatch>,
    /// Outcomes held back until they are stable, once the node runs, where executed transactions may be lost.
    deferred: Option<DeferredReplies>,
    pub(crate) sessions: Sessions,
}

impl Replies {
    /// Answers a retry, now or when the first attempt has ended.
    pub(crate) fn look_up(&mut self, lookup: Lookup) {
        let at = outcomes_of(&mut self.outcomes, lookup.gateway);
        if !self.sessions.answer(&lookup, &mut self.outcomes[at]) {
            self.sessions.wait(lookup);
        }
    }

    /// Takes the outcome of a transaction, if this replica answers, and remembers it if it may not take effect twice.
    pub(crate) fn conclude(
        &mut self,
        places: &Places,
        (gsn, chunk, txn): (Gsn, &Chunk, &Txn),
        status: OutcomeStatus,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        // A request that may not take effect twice is remembered in every replica; only one says how it ended.
        let session = txn.call.session.filter(|_| !txn.read_only);
        let mut reply = Vec::new();
        if places.answers(chunk, txn) {
            let at = outcomes_of(&mut self.outcomes, chunk.gateway);
            let outcomes = &mut self.outcomes[at];
            outcomes.push(chunk.number, txn.index, gsn, status, write);
            if session.is_some() {
                reply
                    .extend(outcomes.outcomes.last().into_iter().flat_map(|outcome| outcomes.reply(outcome)));
            }
        } else if session.is_some() {
            write(&mut reply);
        }
        if let Some(session) = session {
            for lookup in self.sessions.note(session, gsn, status, &reply) {
                self.look_up(lookup);
            }
        }
    }

    /// Holds back outcomes from now on until they are stable.
    pub(crate) fn begin_to_defer(&mut self) {
        self.deferred = Some(DeferredReplies::default());
    }

    /// Releases what was held back: nothing of an epoch or before can be lost any more.
    pub(crate) fn note_stable(&mut self, epoch: Epoch) {
        let released = self.deferred.as_mut().map(|deferred| deferred.stable(epoch));
        self.outcomes.extend(released.into_iter().flatten());
    }

    /// Takes the outcomes that may leave: all, or where more are about to follow those that are worth a message.
    pub(crate) fn leaving(&mut self, more_follow: bool) -> impl Iterator<Item = OutcomeBatch> {
        if let Some(deferred) = &mut self.deferred {
            deferred.sift(&mut self.outcomes);
        }
        self.outcomes.extract_if(.., move |outcomes| !more_follow || are_enough(outcomes))
    }
}
