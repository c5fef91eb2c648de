//! The numbers that partitions have heard of each other's decisions, held against all logs (sheet fwkv.md, invariants I4 and I5).

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_commit::{
        Age, Announced, Bounds, Commit, Entry, Lead, Prepare, Seen, Term, TransactionId, View,
    };
    use ordain_model::{Epoch, Millis};

    use super::*;

    const HOME: Lead = Lead { partition: PartitionId(1), term: Term(1) };
    const OWN: PartitionId = PartitionId(0);

    fn who(number: u64) -> AttemptId {
        AttemptId { transaction: TransactionId { home: HOME, number }, attempt: 1 }
    }

    fn view() -> View {
        View::of(Seen::NOTHING)
    }

    fn commit(number: u64, participants: Vec<PartitionId>) -> Content {
        let (attempt, view) = (who(number), view());
        Content::Commit(Commit { attempt, view, participants, ..Commit::default() })
    }

    fn prepare(number: u64) -> Content {
        let (ceiling, changes, writes, holds) = Default::default();
        let (attempt, bounds, view) = (who(number), Bounds::at(Age(1)), view());
        Content::Prepare(Prepare { attempt, bounds, view, ceiling, changes, writes, holds, among: None })
    }

    fn outcome(number: u64, after: u64) -> Content {
        let with =
            ordain_commit::Commitment { stamp: Age(1), view: view().decided(HOME.partition, number), after };
        Content::Outcome(who(number), Some(with))
    }

    fn announce(number: u64) -> Content {
        Content::Announce(vec![Announced { home: HOME, number, readers: 0.into() }])
    }

    /// The report on two logs: the home has decided 2 with the other partition, 3 alone and 4 with it, and the other one has these entries.
    fn report(own: Vec<Content>) -> Option<String> {
        let home = vec![commit(2, vec![OWN]), commit(3, vec![]), commit(4, vec![OWN])];
        let log = |contents: Vec<Content>| -> Entries {
            let contents = [Content::Begin].into_iter().chain(contents);
            let entry = |(place, content)| {
                let place = Epoch(place);
                (place, Arc::new(Entry { place, term: Term(1), now: Millis(0), content, agreed: None }))
            };
            (1..).zip(contents).map(entry).collect()
        };
        let logs = Logs::from([(OWN, log(own)), (HOME.partition, log(home))]);
        check(&logs).err().map(|violation| violation.to_string())
    }

    #[test]
    fn a_number_that_was_heard_too_early_is_found() {
        let sound = vec![prepare(2), prepare(4), announce(1), outcome(2, 0), announce(3), outcome(4, 2)];
        assert_eq!(report(sound), None);
        let wrong = [
            (vec![announce(5)], "its last decision was before that"),
            (vec![prepare(2), announce(3)], "decided as 2, is not installed"),
            (vec![prepare(2), prepare(4), outcome(4, 0)], "decided as 2, is not installed"),
        ];
        for (own, expected) in wrong {
            let found = report(own).unwrap_or_default();
            assert!(found.contains(expected), "{found}");
        }
    }
}
