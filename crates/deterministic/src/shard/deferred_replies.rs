//! Deferred replies: outcomes that make a gateway submit a request again, held back until they are stable (`docs/protocols/calvin.md`,
//! C42).
//!
//! Where a leader's batches may be lost with it, so may the execution of them. A client has to live with an answer that does not
//! hold then. A gateway does not: on an answer that a transaction has to restart, or that its slots have moved, it submits
//! the next attempt. If the attempt before takes effect after all, executed again without what is lost, the request takes
//! effect twice. So such an outcome leaves only when nothing that it may depend on can be lost any more, and from an evicted
//! node it never does.

use ordain_model::outcome::Outcome;
use ordain_model::{Abort, Epoch, Gsn, OutcomeBatch, OutcomeStatus};

/// The outcomes that are held back.
#[derive(Debug, Default)]
pub(crate) struct DeferredReplies {
    /// Nothing of this epoch or before can be lost.
    stable: Epoch,
    batches: Vec<OutcomeBatch>,
}

impl DeferredReplies {
    /// Takes out the outcomes that must not leave yet.
    pub(crate) fn sift(&mut self, outcomes: &mut Vec<OutcomeBatch>) {
        let stable = self.stable;
        for batch in outcomes.iter_mut() {
            if batch.outcomes.iter().any(|outcome| is_unstable(outcome, stable)) {
                self.batches.push(batch.take_out(|outcome| is_unstable(outcome, stable)));
            }
        }
        outcomes.retain(|batch| !batch.is_empty());
    }

    /// Takes an epoch up to which nothing can be lost any more; returns the outcomes that may leave now.
    pub(crate) fn stable(&mut self, epoch: Epoch) -> Vec<OutcomeBatch> {
        self.stable = self.stable.max(epoch);
        let mut all = std::mem::take(&mut self.batches);
        self.sift(&mut all);
        all
    }
}

/// Returns whether a gateway acts on an outcome that is not stable.
fn is_unstable(outcome: &Outcome, stable: Epoch) -> bool {
    let goes_on = matches!(outcome.status, OutcomeStatus::Aborted(Abort::Restart) | OutcomeStatus::Moved);
    goes_on && Gsn::from(outcome.stamp).epoch() > stable
}

#[cfg(test)]
mod tests {
    use ordain_model::{ChunkNo, GatewayId, PartitionId};

    use super::*;

    fn indices(batches: &[OutcomeBatch]) -> Vec<Vec<u32>> {
        let of = |batch: &OutcomeBatch| {
            let with_reply = |outcome: &Outcome| {
                assert_eq!(batch.reply(outcome), outcome.index.to_le_bytes());
                outcome.index
            };
            batch.outcomes.iter().map(with_reply).collect()
        };
        batches.iter().map(of).collect()
    }

    #[test]
    fn what_has_a_gateway_go_on_leaves_when_nothing_of_it_can_be_lost() {
        let restart = OutcomeStatus::Aborted(Abort::Restart);
        let outcomes = |gateway, statuses: &[(u64, OutcomeStatus)]| {
            let mut batch = OutcomeBatch::new(GatewayId(gateway));
            for (index, (epoch, status)) in (0u32..).zip(statuses) {
                let gsn = Gsn::new(Epoch(*epoch), PartitionId(1), index);
                batch.push(ChunkNo(1), index, gsn, *status, |out| out.extend(index.to_le_bytes()));
            }
            batch
        };
        let logic = OutcomeStatus::Aborted(Abort::Logic);
        let mixed = [(7, OutcomeStatus::Committed), (7, restart), (8, OutcomeStatus::Moved), (8, logic)];
        let mut leaving = vec![outcomes(1, &mixed), outcomes(2, &[(6, restart)])];
        let mut deferred_replies = DeferredReplies::default();
        deferred_replies.sift(&mut leaving);
        assert_eq!(indices(&leaving), [vec![0, 3]]);
        assert_eq!(indices(&deferred_replies.stable(Epoch(5))), [[0; 0]; 0]);
        assert_eq!(indices(&deferred_replies.stable(Epoch(7))), [vec![1], vec![0]]);
        assert_eq!(indices(&deferred_replies.stable(Epoch(6))), [[0; 0]; 0]);
        assert_eq!(indices(&deferred_replies.stable(Epoch(8))), [vec![2]]);
        // What is stable does not wait.
        let mut leaving = vec![outcomes(1, &[(8, restart)])];
        deferred_replies.sift(&mut leaving);
        assert_eq!(indices(&leaving), [vec![0]]);
    }
}
