//! What became of the last request of each session (calvin.md, section 4.1, rule 5).
//!
//! Kept by the shard that owns the [session's slot](ordain_model::key::session_slot), which is also the one that
//! answers its transactions that may write.

use std::collections::BTreeMap;

use ordain_model::{Gsn, Lookup, OutcomeBatch, OutcomeStatus, RequestNo, SessionId, Writer};
use ordain_sequencer::Sessions as Known;

/// Outcomes by session, and the retries that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    last: BTreeMap<SessionId, Last>,
    by_age: BTreeMap<Gsn, SessionId>,
    waiting: BTreeMap<SessionId, Vec<Lookup>>,
}

#[derive(Debug)]
struct Last {
    request: RequestNo,
    gsn: Gsn,
    status: OutcomeStatus,
    reply: Vec<u8>,
}

impl Sessions {
    /// Notes the outcome of a request and returns the retries that waited for it. Transactions of one session may
    /// end in another order than that of the log; it is the one latest in the log that is kept.
    pub(crate) fn note(
        &mut self,
        (session, request): (SessionId, RequestNo),
        gsn: Gsn,
        status: OutcomeStatus,
        reply: &[u8],
    ) -> Vec<Lookup> {
        if self.last.get(&session).is_some_and(|last| last.gsn > gsn) {
            return self.waiting.remove(&session).unwrap_or_default();
        }
        let last = Last { request, gsn, status, reply: reply.to_vec() };
        if let Some(before) = self.last.insert(session, last) {
            self.by_age.remove(&before.gsn);
        }
        self.by_age.insert(gsn, session);
        if self.last.len() > Known::MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.last.remove(&oldest);
        }
        self.waiting.remove(&session).unwrap_or_default()
    }

    /// Keeps a retry until the first attempt has ended.
    pub(crate) fn wait(&mut self, lookup: Lookup) {
        self.waiting.entry(lookup.session).or_default().push(lookup);
    }

    /// The answer to a retry, if the first attempt has ended.
    pub(crate) fn answer(&self, lookup: &Lookup, outcomes: &mut OutcomeBatch) -> bool {
        let Some(last) = self.last.get(&lookup.session) else { return false };
        let (asked, had) = (request_of(lookup.request), request_of(last.request));
        let Lookup { chunk, index, .. } = *lookup;
        if had > asked {
            outcomes.push(chunk, index, Gsn::NONE, OutcomeStatus::Superseded, |reply| {
                Writer(reply)
                    .error("ERR this request of the session was followed by a later one: its answer is gone");
            });
            return true;
        }
        if last.request < lookup.request {
            return false;
        }
        outcomes.push(chunk, index, last.gsn, last.status, |reply| reply.extend_from_slice(&last.reply));
        true
    }
}

/// Restarts of one request share it: the gateway counts them in the low byte.
fn request_of(request: RequestNo) -> u64 {
    request.0 >> 8
}
