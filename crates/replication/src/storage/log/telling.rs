//! Telling who is in the way of a majority: replicas that were not met at the region's beginning, and those that have lost
//! their disks.

use std::sync::Arc;

use ordain_model::Micros;
use ordain_role::{NodeId, Now, Outbox};

use super::super::quorum::majority;
use super::StorageLog;
use crate::entry::EntryType;
use crate::message::{Carrier, Log};

/// The time for which something is in the way before it is told: nodes that start together meet within it.
const TOLD_AFTER: Micros = Micros::from_millis(1500);

/// The names of the gauges of who is in the way, by the place among the replicas.
const UNMET: [&str; 7] = [
    "ordain_storage_unmet{replica=\"0\"}",
    "ordain_storage_unmet{replica=\"1\"}",
    "ordain_storage_unmet{replica=\"2\"}",
    "ordain_storage_unmet{replica=\"3\"}",
    "ordain_storage_unmet{replica=\"4\"}",
    "ordain_storage_unmet{replica=\"5\"}",
    "ordain_storage_unmet{replica=\"6\"}",
];
const FORGETFUL: [&str; 7] = [
    "ordain_storage_forgetful{replica=\"0\"}",
    "ordain_storage_forgetful{replica=\"1\"}",
    "ordain_storage_forgetful{replica=\"2\"}",
    "ordain_storage_forgetful{replica=\"3\"}",
    "ordain_storage_forgetful{replica=\"4\"}",
    "ordain_storage_forgetful{replica=\"5\"}",
    "ordain_storage_forgetful{replica=\"6\"}",
];

/// Replicas of a region that are in the way of a majority.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageObstacle {
    /// Those that were not met, while it is not known that the region has begun.
    pub unmet: Vec<NodeId>,
    /// Those that have lost what they had on disk and do not count again yet.
    pub forgetful: Vec<NodeId>,
}

impl StorageObstacle {
    /// The reason why a region of so many storage nodes does not go on, with what to do; `None` if it may go on.
    pub fn reason(&self, all: usize) -> Option<String> {
        let needed = majority(all);
        if !self.unmet.is_empty() {
            return Some(format!(
                "it has not begun, as all of its {all} storage nodes must be met once, and {} not: start what does not run",
                were(&self.unmet)
            ));
        }
        (self.forgetful.len() > all - needed).then(|| {
            format!(
                "of its {all} storage nodes {} emptied and {} others are left, and {needed} that have lost nothing are needed: \
                 bring back the directories of the emptied ones, or restore a backup",
                were(&self.forgetful),
                all - self.forgetful.len()
            )
        })
    }
}

/// Some nodes, at least one, as the subject of what they were.
fn were(nodes: &[NodeId]) -> String {
    let list: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
    match nodes {
        [_] => format!("node {} was", list.join(", ")),
        _ => format!("nodes {} were", list.join(", ")),
    }
}

/// The latest word about the obstacle.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The obstacle that there is, and since when.
    now: (StorageObstacle, Micros),
    /// The one that was told.
    last: StorageObstacle,
    /// The appender knows of a reason.
    has_reason: bool,
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageLog<T, M> {
    /// Tells the operator and the appender of an obstacle that has been there for a while, or is gone.
    pub(super) fn tell_obstacle(&mut self, now: Now, out: &mut Outbox<M>) {
        let Told { now: (known, since), last, has_reason } = &mut self.told_obstacle;
        if *known != self.obstacle {
            (*known, *since) = (self.obstacle.clone(), now.elapsed);
        }
        let is_gone = *known == StorageObstacle::default();
        if known == last || (!is_gone && now.elapsed.since(*since) < TOLD_AFTER) {
            return;
        }
        last.clone_from(known);
        let reason = last.reason(self.settings.replicas.len());
        if let Some(reason) = &reason {
            out.notice(format!("the region of this server cannot go on: {reason}"));
        } else if !last.forgetful.is_empty() {
            out.notice(format!(
                "of the region's storage nodes {} emptied: what was lost is copied there from the others, and it counts once all of \
                 it is there",
                were(&last.forgetful)
            ));
        }
        if reason.is_some() || std::mem::replace(has_reason, reason.is_some()) {
            *has_reason = reason.is_some();
            out.send(self.appender, Log::Obstacle(reason.map(Arc::from)));
        }
    }

    pub(super) fn obstacle_gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        for ((node, unmet), forgetful) in self.settings.replicas.iter().zip(UNMET).zip(FORGETFUL) {
            report(unmet, f64::from(u8::from(self.obstacle.unmet.contains(node))));
            report(forgetful, f64::from(u8::from(self.obstacle.forgetful.contains(node))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(unmet: &[u16], forgetful: &[u16], all: usize) -> String {
        let of = |nodes: &[u16]| nodes.iter().copied().map(NodeId).collect();
        StorageObstacle { unmet: of(unmet), forgetful: of(forgetful) }.reason(all).unwrap_or_default()
    }

    #[test]
    fn what_is_in_the_way_is_named() {
        assert_eq!(reason(&[], &[], 3), "");
        assert_eq!(reason(&[], &[4], 3), "", "two are left");
        assert!(
            reason(&[4], &[], 3).contains("all of its 3 storage nodes must be met once, and node 4 was not")
        );
        let two = reason(&[], &[2, 4], 3);
        assert!(two.contains("nodes 2, 4 were emptied and 1 others are left, and 2"), "{two}");
        assert!(reason(&[], &[4], 2).contains("node 4 was emptied"), "two of two are needed");
    }
}
