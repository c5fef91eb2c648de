//! The steps of interactive transactions on their way: all of one go to the claim that took the first.
//!
//! A transaction that a home keeps open is gone with the claim of the home's leader. Its first step shows nothing before it is
//! answered, so that is asked again; a commit of a session is asked again too, of whoever leads the home then, and finds the
//! decision if there is one. Any other step is answered as lost.

use std::collections::BTreeMap;

use ordain_model::{Abort, OpenId, OutcomeStatus, PartitionId, Step, Txn};
use ordain_role::NodeId;

use crate::desk::Leaders;
use crate::ids::Lead;

/// Interactive transactions of the front doors of this node.
#[derive(Debug, Default)]
pub struct Steps {
    open: BTreeMap<OpenId, Home>,
}

/// The home of an open transaction.
#[derive(Clone, Copy, Debug)]
struct Home {
    partition: PartitionId,
    /// The claim that has taken its first step, with its node.
    claim: Option<(NodeId, Lead)>,
}

/// Where a step goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// To this node, in this term.
    To(NodeId, Lead),
    /// Nowhere until a leader is known.
    Waits,
    /// Nowhere: its transaction is lost.
    Lost,
}

/// The fate of a step whose answer may be gone, or that was turned away without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is asked again.
    Again,
    /// It is answered so.
    Ends(OutcomeStatus),
}

/// The end of a step whose transaction is lost.
pub const LOST: OutcomeStatus = OutcomeStatus::Aborted(Abort::TermChanged);

impl Steps {
    /// Takes a step; answers the home of its transaction if that is known, or begins with this one.
    pub fn take(&mut self, step: &Step, home: impl FnOnce() -> PartitionId) -> Option<PartitionId> {
        if !step.is_first() {
            return self.open.get(&step.of).map(|home| home.partition);
        }
        let partition = home();
        self.open.insert(step.of, Home { partition, claim: None });
        Some(partition)
    }

    /// The claim that a step goes to. The first one binds its transaction to it.
    pub fn route(&mut self, step: &Step, txn: &Txn, leaders: &Leaders) -> Route {
        let Some(home) = self.open.get_mut(&step.of) else { return Route::Lost };
        let leader = leaders.of(home.partition);
        if step.is_first() {
            home.claim = leader;
        }
        match leader {
            Some((node, lead)) if leader == home.claim || may_ask_anew(step, txn) => Route::To(node, lead),
            None if step.is_first() || may_ask_anew(step, txn) => Route::Waits,
            _ => Route::Lost,
        }
    }

    /// The fate of a step that a leader has turned away without effect: it leads no more.
    pub fn turned_away(step: &Step, txn: &Txn) -> Fate {
        if step.is_first() || may_ask_anew(step, txn) { Fate::Again } else { Fate::Ends(LOST) }
    }

    /// The fate of a step whose answer may be gone.
    pub fn lost(step: &Step, txn: &Txn) -> Fate {
        match Steps::turned_away(step, txn) {
            // The commit may have been taken, and nobody remembers.
            Fate::Ends(_) if step.is_commit && step.may_write => Fate::Ends(OutcomeStatus::Unknown),
            fate => fate,
        }
    }

    /// A step was answered so; forgets a transaction that is over with it.
    pub fn answered(&mut self, step: &Step, status: OutcomeStatus) {
        let goes_on = match status {
            OutcomeStatus::Committed => !step.is_commit,
            OutcomeStatus::Aborted(abort) => !step.is_commit && !abort.is_retryable(),
            _ => false,
        };
        if !goes_on {
            self.open.remove(&step.of);
        }
    }

    /// A transaction is over for its client; answers the claim that keeps it open.
    pub fn abandon(&mut self, of: OpenId) -> Option<(NodeId, Lead)> {
        self.open.remove(&of)?.claim
    }

    /// The number of transactions that are open.
    pub fn len(&self) -> usize {
        self.open.len()
    }
}

/// True if any leader of the home can tell what has become of the step: the commit of a session's request.
fn may_ask_anew(step: &Step, txn: &Txn) -> bool {
    step.is_commit && txn.call.session.is_some()
}

#[cfg(test)]
mod tests {
    use ordain_model::{Call, Chunk, ChunkNo, Db, GatewayId, Registry, RequestNo, SessionId, system};

    use super::*;
    use crate::ids::Term;

    fn step(number: u32, is_commit: bool, may_write: bool) -> Step {
        let of = OpenId { gateway: GatewayId(0), number: 1 };
        Step { of, number, session: None, is_commit, may_write }
    }

    /// A commit, of a session's request or of none.
    fn txn(session: Option<u64>) -> Txn {
        let mut registry = Registry::default();
        system::register(&mut registry);
        let session = session.map(|session| (SessionId(session), RequestNo(1)));
        let call = Call { session, ..Call::new(system::COMMIT, Db(0)) };
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(1));
        chunk.push(&registry, call, |args| system::commit_args([].into_iter(), [], args)).unwrap().clone()
    }

    fn lead(term: u64) -> Lead {
        Lead { partition: PartitionId(1), term: Term(term) }
    }

    #[test]
    fn all_steps_go_to_the_claim_that_took_the_first() {
        let (mut steps, mut leaders, txn) = (Steps::default(), Leaders::default(), txn(None));
        let (first, second) = (step(1, false, false), step(2, false, false));
        assert_eq!(steps.take(&second, || PartitionId(1)), None, "it was never begun");
        assert_eq!(steps.route(&second, &txn, &leaders), Route::Lost);
        assert_eq!(steps.take(&first, || PartitionId(1)), Some(PartitionId(1)));
        assert_eq!(steps.route(&first, &txn, &leaders), Route::Waits);
        leaders.note(lead(1), NodeId(2));
        assert_eq!(steps.route(&first, &txn, &leaders), Route::To(NodeId(2), lead(1)));
        assert_eq!(steps.take(&second, || PartitionId(0)), Some(PartitionId(1)));
        assert_eq!(steps.route(&second, &txn, &leaders), Route::To(NodeId(2), lead(1)));
        leaders.note(lead(2), NodeId(2));
        assert_eq!(steps.route(&second, &txn, &leaders), Route::Lost, "the same node, and another term");
        assert_eq!(steps.abandon(first.of), Some((NodeId(2), lead(1))));
        assert_eq!(steps.len(), 0);
    }

    #[test]
    fn a_first_step_and_a_commit_of_a_session_are_asked_again() {
        let (plain, of_session) = (txn(None), txn(Some(7)));
        for (step, txn, turned_away, lost) in [
            (step(1, false, false), &plain, Fate::Again, Fate::Again),
            (step(2, false, true), &plain, Fate::Ends(LOST), Fate::Ends(LOST)),
            (step(3, true, true), &plain, Fate::Ends(LOST), Fate::Ends(OutcomeStatus::Unknown)),
            (step(3, true, false), &plain, Fate::Ends(LOST), Fate::Ends(LOST)),
            (step(3, true, true), &of_session, Fate::Again, Fate::Again),
        ] {
            assert_eq!(Steps::turned_away(&step, txn), turned_away, "{step:?}");
            assert_eq!(Steps::lost(&step, txn), lost, "{step:?}");
        }
        // Any leader of the home can tell what has become of a request.
        let (mut steps, mut leaders) = (Steps::default(), Leaders::default());
        steps.take(&step(1, false, false), || PartitionId(1));
        leaders.note(lead(1), NodeId(2));
        steps.route(&step(1, false, false), &plain, &leaders);
        leaders.note(lead(2), NodeId(3));
        let commit = step(2, true, true);
        assert_eq!(steps.route(&commit, &plain, &leaders), Route::Lost);
        assert_eq!(steps.route(&commit, &of_session, &leaders), Route::To(NodeId(3), lead(2)));
    }

    #[test]
    fn a_transaction_is_forgotten_with_the_answer_that_ends_it() {
        for (step, status, is_over) in [
            (step(2, false, false), OutcomeStatus::Committed, false),
            (step(2, false, false), OutcomeStatus::Aborted(Abort::Logic), false),
            (step(2, false, false), OutcomeStatus::Aborted(Abort::Died), true),
            (step(2, false, false), OutcomeStatus::Unknown, true),
            (step(2, true, false), OutcomeStatus::Committed, true),
        ] {
            let mut steps = Steps::default();
            steps.take(&self::step(1, false, false), || PartitionId(0));
            steps.answered(&step, status);
            assert_eq!(steps.len() == 0, is_over, "{step:?} {status:?}");
        }
    }
}
