//! The logs as one sequence.

use std::collections::BTreeMap;

use ordain_model::{Batch, Epoch, Gsn, PartitionId};

use super::{NodeLog, Violation, ViolationKind};

/// Merges the nodes' logs into the serial order: the batches of all partitions by epoch and then by partition. Nodes
/// that hold the same partition are members: what the one has is the beginning of what the other has.
///
/// # Errors
/// [`ViolationKind::LogOrder`].
pub fn merge(logs: &[NodeLog]) -> Result<Vec<Batch>, Violation> {
    let mut longest: BTreeMap<PartitionId, &NodeLog> = BTreeMap::new();
    for log in logs {
        ascends(log)?;
        let known = longest.entry(log.partition).or_insert(log);
        agree(known, log)?;
        if log.batches.len() > known.batches.len() {
            *known = log;
        }
    }
    let mut merged: Vec<Batch> = longest.into_values().flat_map(|log| log.batches.clone()).collect();
    merged.sort_by_key(place);
    Ok(merged)
}

/// Checks that a log holds its own partition alone, and that epochs and time go on.
fn ascends(log: &NodeLog) -> Result<(), Violation> {
    if let Some(batch) = log.batches.iter().find(|batch| batch.partition != log.partition) {
        let text = format!(
            "the log of node {}, which holds partition {}, has a batch of partition {}",
            log.node.0, log.partition, batch.partition
        );
        return Err(wrong(batch, text));
    }
    for (before, batch) in log.batches.iter().zip(log.batches.iter().skip(1)) {
        if before.epoch >= batch.epoch {
            let (node, epoch) = (log.node.0, batch.epoch);
            let text = format!("the log of node {node} holds epoch {epoch} after epoch {}", before.epoch);
            return Err(wrong(batch, text));
        }
        if before.now > batch.now {
            let text = format!(
                "the time of epoch {} ({}) is before that of epoch {} ({})",
                batch.epoch, batch.now, before.epoch, before.now
            );
            return Err(wrong(batch, text));
        }
    }
    Ok(())
}

/// Checks that of two logs of a partition one is the beginning of the other.
fn agree(one: &NodeLog, other: &NodeLog) -> Result<(), Violation> {
    let mut pairs = one.batches.iter().zip(&other.batches);
    match pairs.find(|(a, b)| place(a) != place(b) || a.encode() != b.encode()) {
        Some((a, b)) => {
            let text = format!(
                "nodes {} and {} hold different batches in one place, of epochs {} and {}",
                one.node.0, other.node.0, a.epoch, b.epoch
            );
            Err(wrong(b, text))
        }
        None => Ok(()),
    }
}

fn place(batch: &Batch) -> (Epoch, PartitionId) {
    (batch.epoch, batch.partition)
}

fn wrong(batch: &Batch, text: String) -> Violation {
    Violation::new(ViolationKind::LogOrder, text).at(Gsn::new(batch.epoch, batch.partition, 0))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{batch, registry};
    use super::*;
    use ordain_role::NodeId;
    use ordain_sim::workload::procedures as p;

    fn log(node: u16, partition: u16, batches: &[Batch]) -> NodeLog {
        NodeLog { node: NodeId(node), partition: PartitionId(partition), batches: batches.to_vec() }
    }

    fn merged(logs: &[NodeLog]) -> Result<Vec<(u64, u16)>, ViolationKind> {
        let places = |log: Vec<Batch>| log.iter().map(|b| (b.epoch.0, b.partition.0)).collect();
        merge(logs).map(places).map_err(|violation| violation.kind)
    }

    fn add(epoch: u64, partition: u16, key: &str) -> Batch {
        let mut one = batch(&registry(), epoch, &[(p::INCREMENT, p::COUNTERS, &[key], None)]);
        one.partition = PartitionId(partition);
        one
    }

    #[test]
    fn a_log_that_goes_back_or_repeats_is_caught() {
        let one = |epoch| add(epoch, 0, "n");
        assert_eq!(merged(&[log(0, 0, &[one(1), one(4)])]), Ok(vec![(1, 0), (4, 0)]));
        assert_eq!(merged(&[log(0, 0, &[one(4), one(1)])]), Err(ViolationKind::LogOrder));
        assert_eq!(merged(&[log(0, 0, &[one(4), one(4)])]), Err(ViolationKind::LogOrder));
        let mut late = one(5);
        late.now = ordain_model::Millis(3);
        assert_eq!(merged(&[log(0, 0, &[one(4), late])]), Err(ViolationKind::LogOrder));
    }

    #[test]
    fn partitions_interleave_and_keep_to_their_own() {
        let logs =
            [log(1, 1, &[add(1, 1, "m"), add(3, 1, "m")]), log(0, 0, &[add(1, 0, "n"), add(2, 0, "n")])];
        assert_eq!(merged(&logs), Ok(vec![(1, 0), (1, 1), (2, 0), (3, 1)]));
        assert_eq!(merged(&[log(1, 0, &[add(1, 1, "m")])]), Err(ViolationKind::LogOrder));
    }

    #[test]
    fn of_members_one_has_the_beginning_of_the_other() {
        let whole = [add(1, 0, "n"), add(2, 0, "n"), add(4, 0, "n")];
        let places = Ok(vec![(1, 0), (2, 0), (4, 0)]);
        for known in 0..=3 {
            assert_eq!(merged(&[log(0, 0, &whole[..known]), log(1, 0, &whole)]), places);
            assert_eq!(merged(&[log(1, 0, &whole), log(0, 0, &whole[..known])]), places);
        }
        for other in [&[add(1, 0, "m")][..], &[add(2, 0, "n")], &[add(1, 0, "n"), add(3, 0, "n")]] {
            assert_eq!(merged(&[log(0, 0, &whole), log(1, 0, other)]), Err(ViolationKind::LogOrder));
        }
    }
}
