//! The cost of agreement, for engines that execute a transaction first: attempts that came to nothing by reason, messages
//! and bytes between nodes, log records, and readers that updates name.
//!
//! Nodes count them from their start on. What was counted while a run was measured is the difference of two looks at all of
//! them, divided by the transactions of that time; a node publishes its counts a few times a second, so the ends are
//! blurred by as much.

use std::collections::BTreeMap;

use ordain_runtime::Running;
use serde::Serialize;

use crate::report::{Run, medians, with};
use crate::table::Table;

const COMMITTED: &str = "ordain_coordinator_committed_total";
const ATTEMPTS: &str = "ordain_coordinator_attempts_total";
const FAILED: &str = "ordain_coordinator_failed_total{reason=\"";
const MESSAGES: [&str; 2] = ["ordain_manager_messages_total", "ordain_participant_messages_total"];
const RECORDS: &str = "ordain_manager_records_total";
const BYTES: &str = "ordain_network_output_bytes_total";
/// Lines that a storage node has appended; a role with this count has the next as well.
const LINES: &str = "ordain_storage_appended_total";
/// The bytes of the log of a node, and of the entries that it was given.
const LOG_BYTES: &str = "ordain_log_bytes";
const ENTRY_BYTES: &str = "ordain_log_entry_bytes_total";
const COLLECTED: &str = "ordain_snapshots_collected_total";
const NAMED: &str = "ordain_coordinator_named_readers_total";

/// Counts of all nodes together, since their start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counted(BTreeMap<&'static str, f64>);

impl Counted {
    /// Looks at nodes; empty if their engine does not agree on each transaction.
    pub fn of<'a>(nodes: impl IntoIterator<Item = &'a Running>) -> Counted {
        let mut counted = Counted::default();
        for node in nodes {
            node.handle().inspect(|snapshot| {
                let is_storage = |(name, _): &(&str, f64)| *name == LINES;
                for (name, value) in snapshot.roles.iter().flat_map(|role| {
                    let keeps = role.gauges.iter().any(is_storage);
                    role.gauges
                        .iter()
                        .filter(move |(name, _)| keeps || ![LOG_BYTES, ENTRY_BYTES].contains(name))
                }) {
                    let is_wanted = [
                        LINES,
                        LOG_BYTES,
                        ENTRY_BYTES,
                        COMMITTED,
                        ATTEMPTS,
                        RECORDS,
                        BYTES,
                        COLLECTED,
                        NAMED,
                    ]
                    .contains(name)
                        || MESSAGES.contains(name)
                        || name.starts_with(FAILED);
                    if is_wanted {
                        *counted.0.entry(name).or_default() += value;
                    }
                }
            });
        }
        counted
    }

    /// The cost of the transactions between an earlier look and this one; none if none took effect.
    pub fn since(&self, before: &Counted) -> Option<Agreement> {
        let between = |name: &str| {
            let at = |counted: &Counted| counted.0.get(name).copied().unwrap_or_default();
            (at(self) - at(before)).max(0.0)
        };
        let committed = between(COMMITTED);
        if committed == 0.0 {
            return None;
        }
        let attempts = between(ATTEMPTS).max(1.0);
        let reason = |name: &&'static str| name.strip_prefix(FAILED)?.strip_suffix("\"}");
        let failed = self.0.keys().filter_map(|name| Some((reason(name)?, between(name) / attempts)));
        Some(Agreement {
            attempts_per_txn: attempts / committed,
            failed: failed.filter(|(_, share)| *share > 0.0).collect(),
            messages_per_txn: MESSAGES.iter().map(|name| between(name)).sum::<f64>() / committed,
            bytes_per_txn: between(BYTES) / committed,
            records_per_txn: between(RECORDS) / committed,
            bytes_per_record: between(ENTRY_BYTES) / between(LINES).max(1.0),
            storage_bytes_per_record: between(LOG_BYTES) / between(LINES).max(1.0),
            collected_per_txn: between(COLLECTED) / committed,
            named_per_txn: between(NAMED) / committed,
        })
    }
}

/// The cost of agreement in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Agreement {
    /// Attempts for each transaction that committed.
    pub attempts_per_txn: f64,
    /// Attempts that came to nothing by reason, as shares of all attempts.
    pub failed: BTreeMap<&'static str, f64>,
    /// Messages to other nodes for each transaction that committed. What logs send to their members is not among them.
    pub messages_per_txn: f64,
    /// Bytes to other nodes for each transaction that committed: requests, replies and frames are among them.
    pub bytes_per_txn: f64,
    /// Log records for each transaction that committed.
    pub records_per_txn: f64,
    /// Bytes of a record of a region, as its storage nodes are given it. 0 without such nodes.
    pub bytes_per_record: f64,
    /// Bytes that a storage node's log grows by for each record of its region: frames and checksums are among them. 0 without such nodes.
    pub storage_bytes_per_record: f64,
    /// Readers that participants took along when they validated an update, for each transaction that committed.
    pub collected_per_txn: f64,
    /// Readers that the commits of updates named, for each transaction that committed.
    pub named_per_txn: f64,
}

impl Agreement {
    /// The share of attempts that came to nothing.
    pub fn failed_share(&self) -> f64 {
        // The sum of none is -0.
        self.failed.values().fold(0.0, |sum, share| sum + share)
    }

    fn share(&self, reason: &str) -> f64 {
        self.failed.get(reason).copied().unwrap_or_default()
    }
}

/// One row for each setting of an engine that agrees on each transaction: medians.
pub fn table(runs: &[Run]) -> Option<Table> {
    let (groups, mut columns) = with("agreement", runs, |run| run.agreement.is_some());
    let of = |name: &str, show, value| medians(name, show, |run| run.agreement.as_ref(), value);
    let percent: fn(f64) -> String = |share| format!("{:.2}%", share * 100.0);
    let hundredths: fn(f64) -> String = |value| format!("{value:.2}");
    columns.extend([
        of("attempts a txn", hundredths, |all| all.attempts_per_txn),
        of("failed", percent, Agreement::failed_share),
        of("lock refused", percent, |all| all.share("lock_refused")),
        of("died", percent, |all| all.share("died")),
        of("vote no", percent, |all| all.share("vote_no")),
        of("messages a txn", hundredths, |all| all.messages_per_txn),
        of("bytes a txn", |value| format!("{value:.0}"), |all| all.bytes_per_txn),
        of("log records a txn", hundredths, |all| all.records_per_txn),
    ]);
    Table::of("What it took to agree; shares are of attempts", groups, columns).or_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_counted_between_two_looks_is_divided_by_the_transactions_of_that_time() {
        let died = "ordain_coordinator_failed_total{reason=\"died\"}";
        let vote_no = "ordain_coordinator_failed_total{reason=\"vote_no\"}";
        let counted = |committed, attempts, dead, messages| {
            Counted(BTreeMap::from([
                (COMMITTED, committed),
                (ATTEMPTS, attempts),
                (died, dead),
                (vote_no, 3.0),
                (MESSAGES[0], messages),
                (MESSAGES[1], 10.0),
                (RECORDS, committed * 2.0),
                (LINES, committed * 3.0),
                (LOG_BYTES, committed * 360.0),
                (ENTRY_BYTES, committed * 270.0),
                (BYTES, committed * 300.0),
                (COLLECTED, committed * 0.5),
                (NAMED, committed * 0.25),
            ]))
        };
        let before = counted(100.0, 100.0, 0.0, 0.0);
        let agreement = counted(200.0, 225.0, 25.0, 500.0).since(&before).unwrap();
        assert_eq!(
            agreement,
            Agreement {
                attempts_per_txn: 1.25,
                failed: BTreeMap::from([("died", 0.2)]),
                messages_per_txn: 5.0,
                bytes_per_txn: 300.0,
                records_per_txn: 2.0,
                bytes_per_record: 90.0,
                storage_bytes_per_record: 120.0,
                collected_per_txn: 0.5,
                named_per_txn: 0.25,
            }
        );
        assert_eq!((agreement.share("died"), agreement.share("vote_no")), (0.2, 0.0));
        assert_eq!(before.since(&before), None);
        assert_eq!(Counted::default().since(&Counted::default()), None);
    }
}
