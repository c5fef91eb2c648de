//! The figures that a manager reports of its work: attempts that came to nothing by reason, messages, log records.

use ordain_model::{Abort, PartitionId};
use ordain_role::{ByRegion, by_region};

/// Attempts, or transactions, that came to nothing: how many for each reason.
#[derive(Clone, Debug, Default)]
pub struct Reasons([u64; Abort::ALL.len()]);

impl Reasons {
    /// Adds one.
    pub fn count(&mut self, reason: Abort) {
        // Codes begin with 1 and leave no gap.
        self.0[usize::from(reason.code()) - 1] += 1;
    }

    /// The number for one reason.
    pub const fn of(&self, reason: Abort) -> u64 {
        self.0[reason.code() as usize - 1]
    }

    /// Checks that nothing was counted that none of these series shows.
    ///
    /// # Errors
    /// A reason that is in none.
    pub fn check(&self, series: &[(Abort, &'static str)]) -> Result<(), String> {
        let is_shown = |reason: &Abort| series.iter().any(|(shown, _)| shown == reason);
        match Abort::ALL.into_iter().find(|reason| self.of(*reason) > 0 && !is_shown(reason)) {
            Some(reason) => Err(format!("{} is counted, and no metric shows it", reason.label())),
            None => Ok(()),
        }
    }

    /// Reports the numbers as those of the series in the table.
    pub fn report(&self, series: &[(Abort, &'static str)], report: &mut dyn FnMut(&'static str, f64)) {
        series.iter().for_each(|(reason, name)| report(name, self.of(*reason) as f64));
    }
}

/// A metric with a series for each of some reasons.
macro_rules! series {
    ($metric:literal: $($reason:ident = $label:literal),*) => {
        [$((Abort::$reason, concat!($metric, "{reason=\"", $label, "\"}"))),*]
    };
}

/// The numbers of a view, by the name under which a participant or its control reports them.
const OF_VIEWS: [(&str, ByRegion); 10] = [
    ("ordain_store_records", by_region!("ordain_view_records")),
    ("ordain_store_memory_bytes", by_region!("ordain_view_memory_bytes")),
    ("ordain_view_reading", by_region!("ordain_view_reading")),
    ("ordain_view_granted_total", by_region!("ordain_view_granted_total")),
    ("ordain_view_extended_total", by_region!("ordain_view_extended_total")),
    ("ordain_view_refused_total", by_region!("ordain_view_refused_total")),
    ("ordain_view_installed_total", by_region!("ordain_view_installed_total")),
    ("ordain_view_overlay_left_out_total", by_region!("ordain_view_overlay_left_out_total")),
    ("ordain_view_overlay_reads_total", by_region!("ordain_view_overlay_reads_total")),
    ("ordain_view_overlay_records", by_region!("ordain_view_overlay_records")),
];

/// The last entry of a region that its view has been given.
pub const PROXY_APPLIED: ByRegion = by_region!("ordain_proxy_applied");
/// The time of that entry.
pub const PROXY_AT: ByRegion = by_region!("ordain_proxy_entry_seconds");
/// The time that the last entry took from one region to the other.
pub const PROXY_DELAY: ByRegion = by_region!("ordain_proxy_delay_seconds");
/// 1 while a view needs a checkpoint.
pub const PROXY_BEHIND: ByRegion = by_region!("ordain_proxy_behind");
/// The entries that a view has been given.
pub const PROXY_ENTRIES: ByRegion = by_region!("ordain_proxy_entries_total");
/// The checkpoints that a view has been given.
pub const PROXY_RESTORED: ByRegion = by_region!("ordain_proxy_restored_total");
/// The checkpoints that could not be used.
pub const PROXY_DAMAGED: ByRegion = by_region!("ordain_proxy_damaged_total");

/// The series under which the view of a region reports a number of its participant; none: of a view it means nothing.
pub fn of_view(name: &str, region: PartitionId) -> Option<&'static str> {
    let (_, series) = OF_VIEWS.iter().find(|(of, _)| *of == name)?;
    series.get(usize::from(region.0)).copied()
}

/// Attempts that came to nothing. Others may have followed.
pub const FAILED: [(Abort, &str); 13] = series! { "ordain_coordinator_failed_total":
    LockRefused = "lock_refused", Died = "died", Wounded = "wounded", Deadlock = "deadlock", TooLate = "too_late", EmptyInterval = "empty_interval", Validation = "validation", LockTimeout = "lock_timeout",
    VoteNo = "vote_no", TermChanged = "term_changed", TimeTooOld = "time_too_old", Unavailable = "unavailable", StaleView = "stale_view"
};

/// Transactions that aborted for good.
pub const ABORTED: [(Abort, &str); 19] = series! { "ordain_coordinator_aborts_total":
    Logic = "logic", Conflict = "conflict", Restart = "restart", Panic = "panic", Budget = "budget",
    LockRefused = "lock_refused", Died = "died", Wounded = "wounded", Deadlock = "deadlock", TooLate = "too_late", EmptyInterval = "empty_interval", Validation = "validation", LockTimeout = "lock_timeout",
    VoteNo = "vote_no", TermChanged = "term_changed", TimeTooOld = "time_too_old", Idle = "idle", StaleView = "stale_view",
    Unavailable = "unavailable"
};

/// The cost of two-phase commit: the counts behind messages and log records a transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages to other nodes. What the log needs to reach its members is not among them.
    pub messages: u64,
    /// Entries proposed to the partition's log.
    pub records: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_under_their_labels() {
        for (metric, series) in
            [("ordain_coordinator_failed_total", &FAILED[..]), ("ordain_coordinator_aborts_total", &ABORTED)]
        {
            for (reason, name) in series {
                assert_eq!(*name, format!("{metric}{{reason=\"{}\"}}", reason.label()));
            }
        }
        let mut reasons = Reasons::default();
        Abort::ALL.into_iter().for_each(|reason| reasons.count(reason));
        reasons.count(Abort::Died);
        assert_eq!((reasons.of(Abort::Died), reasons.of(Abort::Logic)), (2, 1));
        let mut reported = Vec::new();
        reasons.report(&FAILED, &mut |name, count| reported.push((name, count)));
        assert!(reasons.check(&FAILED).unwrap_err().contains("no metric shows it"));
        let mut shown = Reasons::default();
        FAILED.iter().for_each(|(reason, _)| shown.count(*reason));
        assert_eq!(shown.check(&FAILED), Ok(()));
        assert_eq!(reported[1], ("ordain_coordinator_failed_total{reason=\"died\"}", 2.0));
    }
}
