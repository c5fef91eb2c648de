//! Transactions of several regions, as the regions' logs have them: their parts, and that all regions have come to one outcome, which
//! follows from their promises (regions.md, 4.8).

use std::collections::{BTreeMap, BTreeSet};

use ordain_commit::{Age, AttemptId, Content, Prepare, Terms};
use ordain_model::PartitionId;

use super::commit::{Entries, Logs};

/// A transaction of several regions.
#[derive(Debug, Default)]
struct Voted<'a> {
    participants: BTreeSet<PartitionId>,
    /// What the regions have promised, by the attempts that are their parts.
    promises: BTreeMap<PartitionId, Vec<&'a Prepare>>,
    /// Their outcomes.
    outcomes: BTreeMap<PartitionId, bool>,
}

/// The transactions of several regions, by the attempts of their initiators.
fn all(logs: &Logs) -> BTreeMap<AttemptId, Voted<'_>> {
    let mut all: BTreeMap<AttemptId, Voted<'_>> = BTreeMap::new();
    for (region, entries) in logs {
        read(*region, entries, &mut all);
    }
    all
}

fn read<'a>(region: PartitionId, entries: &'a Entries, all: &mut BTreeMap<AttemptId, Voted<'a>>) {
    let (mut terms, mut parts) = (Terms::default(), BTreeMap::new());
    for entry in entries.values().filter(|entry| terms.take(entry)) {
        match &entry.content {
            Content::Prepare(prepare) => {
                let Some(among) = &prepare.among else { continue };
                parts.insert(prepare.attempt, among.of);
                let voted = all.entry(among.of).or_default();
                voted.participants.extend(among.participants.iter().map(|lead| lead.partition));
                voted.promises.entry(region).or_default().push(prepare);
            }
            Content::Outcome(part, commit) => {
                let of = parts.get(part);
                let voted = of.and_then(|of| all.get_mut(of));
                voted.into_iter().for_each(|voted| _ = voted.outcomes.insert(region, commit.is_some()));
            }
            _ => {}
        }
    }
}

impl Voted<'_> {
    /// True if every region has promised its part: then nobody may say no any more.
    fn is_promised(&self) -> bool {
        self.participants.iter().all(|region| self.promises.contains_key(region))
    }

    fn has_committed(&self) -> bool {
        self.outcomes.values().any(|committed| *committed) || self.is_promised()
    }
}

/// True if there are such transactions.
pub(super) fn has_some(logs: &Logs) -> bool {
    logs.values().flat_map(Entries::values).any(|entry| entry.among().is_some())
}

/// The parts of transactions that have committed, with their stamps.
pub(super) fn committed(logs: &Logs) -> BTreeMap<AttemptId, Age> {
    let voted = all(logs).into_values().filter(Voted::has_committed);
    let parts = voted.flat_map(|voted| voted.promises.into_values().flatten());
    parts.map(|prepare| (prepare.attempt, prepare.bounds.from)).collect()
}

/// Checks that regions agree on each transaction of several: none has committed without the promises of all, and no two differ.
///
/// # Errors
/// The first on which they do not.
pub(super) fn check(logs: &Logs) -> Result<(), String> {
    for (of, voted) in all(logs) {
        if let Some((region, promises)) = voted.promises.iter().find(|(_, promises)| promises.len() > 1) {
            return Err(format!("region {} has promised {of} {} times", region.0, promises.len()));
        }
        let outcomes: BTreeSet<bool> = voted.outcomes.values().copied().collect();
        if outcomes.len() > 1 {
            return Err(format!("regions differ about {of}: {:?}", voted.outcomes));
        }
        if outcomes.contains(&true) != voted.is_promised() && !outcomes.is_empty() {
            return Err(format!(
                "{of} of {:?} has the promises of {:?} and the outcomes {:?}",
                voted.participants,
                voted.promises.keys().collect::<Vec<_>>(),
                voted.outcomes
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ordain_commit::{Among, Bounds, Commitment, Entry, Lead, Term, TransactionId, View};
    use ordain_model::{Epoch, Millis};

    use super::*;

    const HOME: Lead = Lead { partition: PartitionId(0), term: Term(1) };
    const OTHER: Lead = Lead { partition: PartitionId(1), term: Term(1) };

    fn part(lead: Lead) -> AttemptId {
        AttemptId { transaction: TransactionId { home: lead, number: 7 }, attempt: 1 }
    }

    fn promise(lead: Lead) -> Content {
        let among =
            Among { of: part(HOME), participants: vec![HOME, OTHER], session: None, reply: Vec::new() };
        let (changes, writes, holds) = Default::default();
        let (attempt, bounds, ceiling) = (part(lead), Bounds::at(Age(3)), Millis(0));
        let among = Some(Box::new(among));
        Content::Prepare(Prepare {
            attempt,
            bounds,
            view: View::NONE,
            ceiling,
            changes,
            writes,
            holds,
            among,
        })
    }

    fn outcome(lead: Lead, has_committed: bool) -> Content {
        Content::Outcome(part(lead), has_committed.then(|| Commitment::at(Age(3))))
    }

    fn logs(contents: [&[Content]; 2]) -> Logs {
        let log = |contents: &[Content]| -> Entries {
            let all = [Content::Begin].into_iter().chain(contents.iter().cloned());
            (1..)
                .zip(all)
                .map(|(n, content)| {
                    let (place, term, now) = (Epoch(n), Term(1), Millis(0));
                    (place, Arc::new(Entry { place, term, now, content, agreed: None }))
                })
                .collect()
        };
        [(PartitionId(0), log(contents[0])), (PartitionId(1), log(contents[1]))].into()
    }

    #[test]
    fn what_regions_do_not_agree_on_is_found() {
        let both = |home: &[Content], other: &[Content]| check(&logs([home, other]));
        let (home, other) = (promise(HOME), promise(OTHER));
        assert_eq!(both(std::slice::from_ref(&home), &[]), Ok(()));
        assert_eq!(both(&[home.clone(), outcome(HOME, false)], &[]), Ok(()));
        assert_eq!(both(&[home.clone(), outcome(HOME, true)], std::slice::from_ref(&other)), Ok(()));
        assert!(both(&[home.clone(), outcome(HOME, true)], &[]).unwrap_err().contains("has the promises"));
        assert!(both(&[home.clone(), outcome(HOME, false)], std::slice::from_ref(&other)).is_err());
        let differing = both(&[home.clone(), outcome(HOME, true)], &[other.clone(), outcome(OTHER, false)]);
        assert!(differing.unwrap_err().contains("regions differ"));
        let twice = both(&[], &[other.clone(), other.clone()]);
        assert!(twice.unwrap_err().contains("2 times"));
        assert_eq!(committed(&logs([&[home], &[other]])).len(), 2, "all have promised");
    }
}
