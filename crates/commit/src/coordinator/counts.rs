//! Counters of a coordinator, and its report of them.

use ordain_model::PartitionId;

use super::Coordinator;
use crate::figures::{ABORTED, FAILED, Reasons};

/// Figures of a coordinator.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Transactions that committed.
    pub committed: u64,
    /// Attempts that began.
    pub attempts: u64,
    /// Attempts that came to nothing: refused by a concurrency control or another partition, begun again at a later time, or given
    /// up for a lost message, a changed leader, or time.
    pub failed: Reasons,
    /// Attempts that were to read alone, and that a concurrency control has refused.
    pub readers_refused: u64,
    /// Transactions that aborted.
    pub aborted: Reasons,
    /// Commits of several partitions.
    pub distributed: u64,
    /// Commits by the home partition alone.
    pub single: u64,
    /// Transactions that only read, or aborted for what they read.
    pub confirmed: u64,
    /// Readers that commits named: they must not see what those wrote.
    pub named: u64,
    /// Reservations of records for transactions that have lost often.
    pub reservations: u64,
    /// Attempts that have waited for one, each time.
    pub held: u64,
}

impl Coordinator {
    /// Reports gauges and counters, by the names that metrics show; `own` is its partition.
    pub fn report(&self, own: PartitionId, report: &mut dyn FnMut(&'static str, f64)) {
        let counts = &self.counts;
        report("ordain_coordinator_transactions", self.live() as f64);
        report("ordain_coordinator_held_answers", self.held() as f64);
        report("ordain_coordinator_unacknowledged", self.unacknowledged() as f64);
        report("ordain_coordinator_committed_total", counts.committed as f64);
        report("ordain_coordinator_attempts_total", counts.attempts as f64);
        report("ordain_coordinator_readers_refused_total", counts.readers_refused as f64);
        counts.failed.report(&FAILED, report);
        counts.aborted.report(&ABORTED, report);
        report("ordain_coordinator_distributed_total", counts.distributed as f64);
        report("ordain_coordinator_single_total", counts.single as f64);
        report("ordain_coordinator_confirmed_total", counts.confirmed as f64);
        report("ordain_coordinator_named_readers_total", counts.named as f64);
        let [open, in_doubt, untold] = self.votes(own);
        report("ordain_voting_open", open as f64);
        report("ordain_voting_in_doubt", in_doubt as f64);
        report("ordain_voting_untold", untold as f64);
        report("ordain_reserving_transactions", self.reserving.len() as f64);
        report("ordain_reserving_reserved_total", counts.reservations as f64);
        report("ordain_reserving_held_total", counts.held as f64);
    }
}
