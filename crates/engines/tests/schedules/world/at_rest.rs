//! Comparisons of what nodes have when nothing is under way any more.

use std::collections::BTreeMap;

use ordain_commit::{AttemptId, CommitFamily, Content, Terms};
use ordain_family::{NodeSettings, places};
use ordain_model::{DigestSpan, PartitionId};
use ordain_role::NodeId;

use super::World;

/// What no node reports more than 0 of at rest.
pub(super) const NAMES: [&str; 6] = [
    "ordain_participant_attempts",
    "ordain_coordinator_transactions",
    "ordain_cohort_prepared",
    "ordain_voting_open",
    "ordain_voting_untold",
    "ordain_reserving_transactions",
];

impl World {
    /// Compares the digests that members of a partition had at the same places of its log.
    pub(super) fn compare_digests(&self) -> Result<(), String> {
        let mut known: BTreeMap<(PartitionId, u16, u64), DigestSpan> = BTreeMap::new();
        for (node, own) in (0..).map(NodeId).zip(&self.nodes) {
            let partition = self.settings.topology.partition_of(node);
            for (number, role) in own.roles.range(places::SHARDS..places::GATEWAYS) {
                let mut differs = None;
                role.digests(&mut |span| {
                    let first = *known.entry((partition, *number, span.last.0)).or_insert(span);
                    differs = differs.or((first.digest != span.digest).then_some(span.last));
                });
                if let Some(place) = differs {
                    return Err(format!("node {} and another member differ after entry {}", node.0, place.0));
                }
            }
        }
        Ok(())
    }

    /// Compares the outcomes that the logs of regions have of each transaction of several.
    pub(super) fn compare_outcomes(&mut self) -> Result<(), String> {
        let topology = self.settings.topology.clone();
        let mut outcomes: BTreeMap<AttemptId, BTreeMap<NodeId, bool>> = BTreeMap::new();
        for region in (0..topology.layout.partitions()).map(PartitionId) {
            for node in topology.storage_of(region) {
                let settings = NodeSettings { node, life: 1, ..self.settings.clone() };
                let disk = &mut self.nodes[usize::from(node.0)].disk;
                let entries = CommitFamily::entries(disk, &settings).expect("a sound log").1;
                let (mut terms, mut parts) = (Terms::default(), BTreeMap::new());
                for entry in entries.iter().filter(|entry| terms.take(entry)) {
                    match (&entry.content, entry.among()) {
                        (Content::Prepare(prepare), Some(among)) => {
                            parts.insert(prepare.attempt, among.of);
                        }
                        (Content::Outcome(part, commit), _) => {
                            let of = parts.get(part).copied().into_iter();
                            of.for_each(|of| {
                                outcomes.entry(of).or_default().insert(node, commit.is_some());
                            });
                        }
                        _ => {}
                    }
                }
            }
        }
        let differs =
            |all: &BTreeMap<NodeId, bool>| all.values().any(|one| *one) && !all.values().all(|one| *one);
        match outcomes.iter().find(|(_, all)| differs(all)) {
            Some((of, all)) => Err(format!("regions differ about {of}: {all:?}")),
            None => Ok(()),
        }
    }
}
