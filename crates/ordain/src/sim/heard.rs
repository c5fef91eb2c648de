//! What partitions have heard of each other's decisions, held against all logs (sheet fwkv.md, invariants I4 and I5).

use std::collections::{BTreeMap, BTreeSet};

use ordain_checker::{Violation, ViolationKind};
use ordain_commit::{Agreed, AttemptId, Content, Terms};
use ordain_model::PartitionId;

use super::commit::{Entries, Logs};

/// The decisions of a home that have a number: by that the attempts, with the other partitions that take part.
type Decisions = BTreeMap<u64, (AttemptId, Vec<PartitionId>)>;

fn decisions(entries: &Entries) -> Decisions {
    let mut terms = Terms::default();
    let counting = entries.values().filter(|entry| terms.take(entry));
    let decided = counting.filter_map(|entry| match &entry.content {
        Content::Commit(commit) if commit.commitment(entry.place).view.is_some() => {
            Some((entry.place.0, (commit.attempt, commit.participants.clone())))
        }
        _ => None,
    });
    decided.collect()
}

/// Checks each number that a log has ever heard of another partition: so much was decided there, and every decision up to it that
/// concerns the hearing partition was installed in its log by then.
pub(super) fn check(logs: &Logs) -> Result<(), Violation> {
    let homes: BTreeMap<PartitionId, Decisions> =
        logs.iter().map(|(home, entries)| (*home, decisions(entries))).collect();
    for (own, entries) in logs {
        let (mut agreed, mut installed) = (Agreed::default(), BTreeSet::new());
        for entry in entries.values() {
            let before = agreed.heard().clone();
            // A log that contradicts itself is found by others.
            if agreed.apply(entry).is_err() {
                return Ok(());
            }
            if let Content::Outcome(who, Some(_)) = &entry.content {
                installed.insert(*who);
            }
            for (home, decided) in homes.iter().filter(|(home, _)| *home != own) {
                let (from, to) = (before.of(*home), agreed.heard().of(*home));
                if to == from {
                    continue;
                }
                let wrong = |what: String| {
                    let text = format!(
                        "entry {} of partition {} has heard of {to} of {}: {what}",
                        entry.place, own.0, home.0
                    );
                    Err(Violation::new(ViolationKind::WrongState, text))
                };
                if decided.range(to..).next().is_none() {
                    return wrong("its last decision was before that".to_owned());
                }
                let mut its = decided.range(from + 1..=to).filter(|(_, (_, others))| others.contains(own));
                if let Some((number, (who, _))) = its.find(|(_, (who, _))| !installed.contains(who)) {
                    return wrong(format!("{who}, decided as {number}, is not installed"));
                }
            }
        }
    }
    Ok(())
}
