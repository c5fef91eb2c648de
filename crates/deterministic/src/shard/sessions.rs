//! The outcome of each session's last request, for retries (`docs/protocols/calvin.md`, C10).

use std::collections::BTreeMap;

use crate::sequencing::Sessions as Known;
use ordain_checkpoint::Outcome;
use ordain_model::{Epoch, Gsn, Lookup, OutcomeBatch, OutcomeStatus, RequestNo, SessionId, Writer};

use super::capture::Filling;

/// Outcomes by session, and the retries that wait for one.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    last: BTreeMap<SessionId, Last>,
    by_age: BTreeMap<Gsn, SessionId>,
    waiting: BTreeMap<SessionId, Vec<Lookup>>,
    /// The state at the end of this epoch is kept.
    held: Option<Epoch>,
    /// The last outcomes of then that have been replaced since.
    replaced: BTreeMap<SessionId, Last>,
}

#[derive(Debug)]
struct Last {
    request: RequestNo,
    gsn: Gsn,
    status: OutcomeStatus,
    reply: Vec<u8>,
}

impl Last {
    fn outcome(&self, session: SessionId) -> Outcome<'_> {
        let Last { request, gsn, status, reply } = self;
        Outcome { session, request: *request, gsn: *gsn, status: *status, reply }
    }
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
        self.put(&Outcome { session, request, gsn, status, reply });
        self.waiting.remove(&session).unwrap_or_default()
    }

    /// Notes an outcome, unless there is a later one.
    pub(crate) fn put(&mut self, outcome: &Outcome<'_>) {
        let Outcome { session, request, gsn, status, reply } = *outcome;
        let last = Last { request, gsn, status, reply: reply.to_vec() };
        if let Some(later) = self.last.get(&session).map(|last| last.gsn).filter(|later| *later > gsn) {
            return self.replaced_by(later.epoch(), session, last);
        }
        if let Some(before) = self.last.insert(session, last) {
            self.by_age.remove(&before.gsn);
            self.replaced_by(gsn.epoch(), session, before);
        }
        self.by_age.insert(gsn, session);
        if self.last.len() > Known::MAX
            && let Some((_, oldest)) = self.by_age.pop_first()
            && let Some(before) = self.last.remove(&oldest)
        {
            self.replaced_by(gsn.epoch(), oldest, before);
        }
    }

    /// Keeps an outcome that is replaced by one of a later epoch, if the state before that is kept.
    fn replaced_by(&mut self, epoch: Epoch, session: SessionId, before: Last) {
        if self.held.is_some_and(|held| before.gsn.epoch() <= held && held < epoch)
            && self.replaced.get(&session).is_none_or(|known| known.gsn < before.gsn)
        {
            self.replaced.insert(session, before);
        }
    }

    /// Keeps the state at the end of an epoch from now on, or does not any more. Nothing of a later one has been noted.
    pub(crate) fn hold(&mut self, epoch: Option<Epoch>) {
        self.held = epoch;
        self.replaced.clear();
    }

    /// Puts in the outcomes, from a session on, that were the last at the end of an epoch and still are.
    pub(crate) fn visit(&self, from: SessionId, epoch: Epoch, filling: &mut Filling<SessionId>) {
        let is_older = |last: &Last| last.gsn.epoch() <= epoch;
        fill(self.last.range(from..).filter(|(_, last)| is_older(last)), filling);
    }

    /// Puts in those that are not any more.
    pub(crate) fn visit_replaced(&self, from: SessionId, filling: &mut Filling<SessionId>) {
        fill(self.replaced.range(from..), filling);
    }

    /// Keeps a retry until the first attempt has ended.
    pub(crate) fn wait(&mut self, lookup: Lookup) {
        self.waiting.entry(lookup.session).or_default().push(lookup);
    }

    /// Answers a retry if the first attempt has ended; returns whether it has.
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

fn fill<'a>(mut outcomes: impl Iterator<Item = (&'a SessionId, &'a Last)>, filling: &mut Filling<SessionId>) {
    while let Some((session, last)) = outcomes.next()
        && filling.takes(*session)
    {
        filling.piece.push_outcome(&last.outcome(*session));
    }
}

/// Restarts of one request share it: the gateway counts them in the low byte.
fn request_of(request: RequestNo) -> u64 {
    request.0 >> 8
}

#[cfg(test)]
mod tests {
    use ordain_checkpoint::Kind;
    use ordain_model::PartitionId;

    use super::*;

    fn note(sessions: &mut Sessions, session: u64, epoch: u64, index: u32) {
        let gsn = Gsn::new(Epoch(epoch), PartitionId(0), index);
        let request = RequestNo(epoch << 16 | u64::from(index) << 8);
        sessions.note((SessionId(session), request), gsn, OutcomeStatus::Committed, b"reply");
    }

    /// How many outcomes are given away as of an epoch, in pieces of one each.
    fn given(sessions: &Sessions, epoch: u64) -> usize {
        let (mut given, mut from) = (0, Some(SessionId(0)));
        while let Some(at) = from {
            let mut filling = Filling::new(Kind::Outcomes, 1);
            sessions.visit(at, Epoch(epoch), &mut filling);
            given += usize::from(!filling.piece.is_empty());
            from = filling.rest;
        }
        let mut rest = Filling::new(Kind::Outcomes, 1 << 10);
        sessions.visit_replaced(SessionId(0), &mut rest);
        assert_eq!(rest.rest, None);
        given + sessions.replaced.len()
    }

    #[test]
    fn the_outcomes_as_of_an_epoch_stay_while_sessions_go_on() {
        let mut sessions = Sessions::default();
        (1..=5).for_each(|session| note(&mut sessions, session, 3, session as u32));
        sessions.hold(Some(Epoch(7)));
        // One of the epoch itself replaces what was before, one of a later epoch does not.
        note(&mut sessions, 1, 7, 0);
        note(&mut sessions, 2, 8, 0);
        note(&mut sessions, 6, 8, 1);
        // They may end in another order than that of the log.
        note(&mut sessions, 3, 9, 0);
        note(&mut sessions, 3, 7, 5);
        assert_eq!(given(&sessions, 7), 5);
        let gsn = |session| sessions.replaced.get(&SessionId(session)).map(|last| last.gsn);
        assert_eq!(gsn(1), None);
        assert_eq!(gsn(2), Some(Gsn::new(Epoch(3), PartitionId(0), 2)));
        assert_eq!(gsn(3), Some(Gsn::new(Epoch(7), PartitionId(0), 5)));
        sessions.hold(None);
        assert!(sessions.replaced.is_empty());
    }
}
