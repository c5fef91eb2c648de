//! The request of each session that was sequenced last (docs/protocols/calvin.md, section 4.1, rule 5).
//!
//! A function of the sealed batches and nothing else, so that replay rebuilds it.

use std::collections::BTreeMap;

use ordain_checkpoint::Outcomes;
use ordain_model::{Batch, Gsn, RequestNo, SessionId};

/// Last requests by session.
#[derive(Debug, Default)]
pub struct Sessions {
    last: BTreeMap<SessionId, (RequestNo, Gsn)>,
    by_age: BTreeMap<Gsn, SessionId>,
}

impl Sessions {
    /// The number of sessions that are remembered. Beyond it the one that has been silent longest is forgotten.
    pub const MAX: usize = Outcomes::MAX;

    /// Tells whether this request of the session was sequenced before.
    pub fn is_known(&self, session: SessionId, request: RequestNo) -> bool {
        self.last.get(&session).is_some_and(|(last, _)| *last >= request)
    }

    /// Notes the requests of a sealed batch.
    pub fn note(&mut self, batch: &Batch) {
        for (gsn, _, txn) in batch.txns() {
            let Some((session, request)) = txn.call.session else { continue };
            if txn.read_only {
                // Not logged, so replay would not know it; and running a read again does no harm.
                continue;
            }
            self.put(session, request, gsn);
        }
    }

    /// The last request of a session was this one, unless a later one is known.
    pub fn put(&mut self, session: SessionId, request: RequestNo, gsn: Gsn) {
        if self.last.get(&session).is_some_and(|(_, later)| *later > gsn) {
            return;
        }
        if let Some((_, before)) = self.last.insert(session, (request, gsn)) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(gsn, session);
        if self.last.len() > Sessions::MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.last.remove(&oldest);
        }
    }
}
