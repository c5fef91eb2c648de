//! The log as one sequence.

use std::collections::BTreeMap;

use ordain_model::{Batch, Epoch, Gsn, PartitionId};
use ordain_role::NodeId;

use super::{Violation, ViolationKind};

/// Merges the nodes' logs into the serial order. Where several nodes hold the batch of an epoch and partition,
/// they are replicas and must hold the same bytes.
///
/// # Errors
/// [`ViolationKind::LogOrder`].
pub fn merge(logs: &[(NodeId, Vec<Batch>)]) -> Result<Vec<Batch>, Violation> {
    let mut merged: BTreeMap<(Epoch, PartitionId), (NodeId, &Batch)> = BTreeMap::new();
    for (node, log) in logs {
        let mut last: BTreeMap<PartitionId, &Batch> = BTreeMap::new();
        for batch in log {
            if let Some(before) = last.insert(batch.partition, batch) {
                let place = Gsn::new(batch.epoch, batch.partition, 0);
                if before.epoch >= batch.epoch {
                    let text = format!(
                        "the log of node {} holds epoch {} after epoch {}",
                        node.0, batch.epoch, before.epoch
                    );
                    return Err(Violation::new(ViolationKind::LogOrder, text).at(place));
                }
                if before.now > batch.now {
                    let text = format!(
                        "the time of epoch {} ({}) is before that of epoch {} ({})",
                        batch.epoch, batch.now, before.epoch, before.now
                    );
                    return Err(Violation::new(ViolationKind::LogOrder, text).at(place));
                }
            }
            let key = (batch.epoch, batch.partition);
            if let Some((other, known)) = merged.insert(key, (*node, batch))
                && content(known) != content(batch)
            {
                let text = format!("nodes {} and {} hold different batches", other.0, node.0);
                let place = Gsn::new(batch.epoch, batch.partition, 0);
                return Err(Violation::new(ViolationKind::LogOrder, text).at(place));
            }
        }
    }
    Ok(merged.into_values().map(|(_, batch)| batch.clone()).collect())
}

fn content(batch: &Batch) -> Vec<u8> {
    let mut bytes = batch.encode_head();
    batch.logged().for_each(|placed| bytes.extend_from_slice(placed.chunk.logged()));
    bytes
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{batch, registry};
    use super::*;
    use crate::workload::procedures as p;

    fn kind(logs: &[(NodeId, Vec<Batch>)]) -> Result<usize, ViolationKind> {
        merge(logs).map(|log| log.len()).map_err(|violation| violation.kind)
    }

    #[test]
    fn a_log_that_goes_back_or_repeats_is_caught() {
        let registry = registry();
        let one = |epoch| batch(&registry, epoch, &[(p::INCREMENT, p::COUNTERS, &["n"], None)]);
        assert_eq!(kind(&[(NodeId(0), vec![one(1), one(4)])]), Ok(2));
        assert_eq!(kind(&[(NodeId(0), vec![one(4), one(1)])]), Err(ViolationKind::LogOrder));
        assert_eq!(kind(&[(NodeId(0), vec![one(4), one(4)])]), Err(ViolationKind::LogOrder));
        let mut late = one(5);
        late.now = ordain_model::Millis(3);
        assert_eq!(kind(&[(NodeId(0), vec![one(4), late])]), Err(ViolationKind::LogOrder));
    }

    #[test]
    fn replicas_must_hold_the_same_and_partitions_interleave() {
        let registry = registry();
        let one = |epoch, key| batch(&registry, epoch, &[(p::INCREMENT, p::COUNTERS, &[key], None)]);
        let replica = |key| vec![(NodeId(0), vec![one(1, "n")]), (NodeId(1), vec![one(1, key)])];
        assert_eq!(kind(&replica("n")), Ok(1));
        assert_eq!(kind(&replica("m")), Err(ViolationKind::LogOrder));
        let mut other = one(1, "m");
        other.partition = PartitionId(1);
        let merged = merge(&[(NodeId(1), vec![other]), (NodeId(0), vec![one(1, "n"), one(2, "n")])]).unwrap();
        let places: Vec<_> = merged.iter().map(|b| (b.epoch.0, b.partition.0)).collect();
        assert_eq!(places, [(1, 0), (1, 1), (2, 0)]);
    }
}
