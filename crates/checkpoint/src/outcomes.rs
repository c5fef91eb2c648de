//! The outcome of each session's last request, and what those were at the end of an epoch while they go on.

use std::collections::{BTreeMap, BTreeSet};

use ordain_model::{Epoch, Gsn, OutcomeStatus, RequestNo, SessionId};

use crate::giving::Filling;
use crate::piece::Outcome;

/// Outcomes by session. Their number is bounded: beyond [`Outcomes::MAX`] the one that is oldest in the log is forgotten, which is
/// that of the session that has been silent longest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    last: BTreeMap<SessionId, Last>,
    by_age: BTreeSet<(Gsn, SessionId)>,
    /// The state at the end of this epoch is kept.
    held: Option<Epoch>,
    /// The last outcomes of then that have been replaced since.
    replaced: BTreeMap<SessionId, Last>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
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

impl Outcomes {
    /// The number of sessions that are remembered.
    pub const MAX: usize = 1 << 20;

    /// The outcome of the last request of a session, if it is remembered.
    pub fn get(&self, session: SessionId) -> Option<Outcome<'_>> {
        self.last.get(&session).map(|last| last.outcome(session))
    }

    /// All outcomes, by session.
    pub fn iter(&self) -> impl Iterator<Item = Outcome<'_>> {
        self.last.iter().map(|(session, last)| last.outcome(*session))
    }

    /// The number of sessions that are remembered.
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// True if no session is remembered.
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Notes an outcome, unless one of the session that is later in the log is there.
    pub fn put(&mut self, outcome: &Outcome<'_>) {
        let Outcome { session, request, gsn, status, reply } = *outcome;
        let last = Last { request, gsn, status, reply: reply.to_vec() };
        if let Some(later) = self.last.get(&session).map(|last| last.gsn).filter(|later| *later > gsn) {
            return self.replaced_by(later.epoch(), session, last);
        }
        if let Some(before) = self.last.insert(session, last) {
            self.by_age.remove(&(before.gsn, session));
            self.replaced_by(gsn.epoch(), session, before);
        }
        self.by_age.insert((gsn, session));
        self.forget_beyond(Outcomes::MAX, gsn);
    }

    /// Forgets outcomes beyond a number, the oldest first, on behalf of the transaction that came last.
    fn forget_beyond(&mut self, most: usize, gsn: Gsn) {
        while self.last.len() > most
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            if let Some(before) = self.last.remove(&oldest) {
                self.replaced_by(gsn.epoch(), oldest, before);
            }
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
    pub fn hold(&mut self, epoch: Option<Epoch>) {
        self.held = epoch;
        self.replaced.clear();
    }

    /// Puts in the outcomes, from a session on, that were the last at the end of an epoch and still are.
    pub fn visit(&self, from: SessionId, epoch: Epoch, filling: &mut Filling<SessionId>) {
        let is_older = |last: &Last| last.gsn.epoch() <= epoch;
        fill(self.last.range(from..).filter(|(_, last)| is_older(last)), filling);
    }

    /// Puts in those that were the last at the end of the epoch that is kept, and are not any more.
    pub fn visit_replaced(&self, from: SessionId, filling: &mut Filling<SessionId>) {
        fill(self.replaced.range(from..), filling);
    }
}

fn fill<'a>(mut outcomes: impl Iterator<Item = (&'a SessionId, &'a Last)>, filling: &mut Filling<SessionId>) {
    while let Some((session, last)) = outcomes.next()
        && filling.takes(*session)
    {
        filling.piece.push_outcome(&last.outcome(*session));
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::PartitionId;

    use super::*;
    use crate::piece::Kind;

    fn note(outcomes: &mut Outcomes, session: u64, epoch: u64, index: u32) {
        let gsn = Gsn::new(Epoch(epoch), PartitionId(0), index);
        let request = RequestNo(epoch << 16 | u64::from(index) << 8);
        let (session, status, reply) = (SessionId(session), OutcomeStatus::Committed, &b"reply"[..]);
        outcomes.put(&Outcome { session, request, gsn, status, reply });
    }

    /// The number of outcomes that are given away as of an epoch, in pieces of one each.
    fn given(outcomes: &Outcomes, epoch: u64) -> usize {
        let (mut given, mut from) = (0, Some(SessionId(0)));
        while let Some(at) = from {
            let mut filling = Filling::new(Kind::Outcomes, 1);
            outcomes.visit(at, Epoch(epoch), &mut filling);
            given += usize::from(!filling.piece.is_empty());
            from = filling.rest;
        }
        let mut rest = Filling::new(Kind::Outcomes, 1 << 10);
        outcomes.visit_replaced(SessionId(0), &mut rest);
        assert_eq!(rest.rest, None);
        given + outcomes.replaced.len()
    }

    #[test]
    fn the_outcomes_as_of_an_epoch_stay_while_sessions_go_on() {
        let mut outcomes = Outcomes::default();
        (1..=5).for_each(|session| note(&mut outcomes, session, 3, session as u32));
        outcomes.hold(Some(Epoch(7)));
        // One of the epoch itself replaces what was before, one of a later epoch does not.
        note(&mut outcomes, 1, 7, 0);
        note(&mut outcomes, 2, 8, 0);
        note(&mut outcomes, 6, 8, 1);
        // They may end in another order than that of the log.
        note(&mut outcomes, 3, 9, 0);
        note(&mut outcomes, 3, 7, 5);
        assert_eq!(given(&outcomes, 7), 5);
        let gsn = |session| outcomes.replaced.get(&SessionId(session)).map(|last| last.gsn);
        assert_eq!(gsn(1), None);
        assert_eq!(gsn(2), Some(Gsn::new(Epoch(3), PartitionId(0), 2)));
        assert_eq!(gsn(3), Some(Gsn::new(Epoch(7), PartitionId(0), 5)));
        outcomes.hold(None);
        assert!(outcomes.replaced.is_empty());
    }

    #[test]
    fn the_session_that_has_been_silent_longest_is_forgotten_and_kept_for_a_checkpoint() {
        let mut outcomes = Outcomes::default();
        (1..=4).for_each(|session| note(&mut outcomes, session, session, 0));
        note(&mut outcomes, 1, 5, 0);
        outcomes.hold(Some(Epoch(5)));
        outcomes.forget_beyond(2, Gsn::new(Epoch(6), PartitionId(0), 0));
        let known = |session| outcomes.get(SessionId(session)).is_some();
        assert_eq!([1, 2, 3, 4].map(known), [true, false, false, true]);
        assert_eq!((outcomes.len(), given(&outcomes, 5)), (2, 4));
    }
}
