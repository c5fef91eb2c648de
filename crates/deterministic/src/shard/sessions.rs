//! The outcome of each session's last request, for retries (`docs/protocols/calvin.md`, C10).

use std::collections::BTreeMap;

use ordain_checkpoint::{Outcome, Outcomes};
use ordain_model::{Gsn, Lookup, OutcomeBatch, OutcomeStatus, RequestNo, SessionId, Writer};

/// Outcomes by session, and the retries that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    /// The outcomes.
    pub(crate) outcomes: Outcomes,
    waiting: BTreeMap<SessionId, Vec<Lookup>>,
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
        self.outcomes.put(&Outcome { session, request, gsn, status, reply });
        self.waiting.remove(&session).unwrap_or_default()
    }

    /// Keeps a retry until the first attempt has ended.
    pub(crate) fn wait(&mut self, lookup: Lookup) {
        self.waiting.entry(lookup.session).or_default().push(lookup);
    }

    /// Answers a retry if the first attempt has ended; returns whether it has.
    pub(crate) fn answer(&self, lookup: &Lookup, outcomes: &mut OutcomeBatch) -> bool {
        let Some(last) = self.outcomes.get(lookup.session) else { return false };
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
        outcomes.push(chunk, index, last.gsn, last.status, |reply| reply.extend_from_slice(last.reply));
        true
    }
}

/// Restarts of one request share it: the gateway counts them in the low byte.
fn request_of(request: RequestNo) -> u64 {
    request.0 >> 8
}
