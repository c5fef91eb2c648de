//! Replication groups of a simulated cluster, for the faults that take their leaders: the same with every family.

use ordain_family::TAKES_TRANSACTIONS;
use ordain_model::PartitionId;
use ordain_replication::Log;
use ordain_role::{NodeId, Topology};

/// Reads a metric of the roles of a node, unless it is down.
pub(super) type Gauge<'a> = &'a dyn Fn(NodeId, &str) -> Option<f64>;

/// The kinds of messages about a log that a leader may stand still behind.
pub(super) const LOG_PIVOTS: [&str; 4] = ["append", "logged", "sealed", "agreement"];

/// The groups that elect a leader, one a partition. Of two members none can lead without the other.
pub(super) fn groups(topology: &Topology) -> Vec<Vec<NodeId>> {
    // A region with one server has nobody who could take its place.
    if topology.replicas < 3 || topology.servers < 2 {
        return Vec::new();
    }
    let partitions = (0..topology.layout.partitions()).map(PartitionId);
    partitions.map(|partition| topology.group(partition).collect()).collect()
}

/// The term in which a node says that it leads, by a group's log or by one that is shipped.
pub(super) fn leads(node: NodeId, gauge: Gauge<'_>) -> Option<u64> {
    let of_log = [
        ("ordain_group_is_leader", "ordain_group_term"),
        ("ordain_ship_is_primary", "ordain_ship_term"),
        ("ordain_storage_is_leader", "ordain_storage_ballot"),
    ];
    let (_, term) = of_log.into_iter().find(|(leads, _)| gauge(node, leads) == Some(1.0))?;
    gauge(node, term).map(|term| term as u64)
}

/// The number of the last entry of its group's log that a node has.
pub(super) fn log_reaches(node: NodeId, gauge: Gauge<'_>) -> u64 {
    gauge(node, "ordain_group_last").unwrap_or_default() as u64
}

/// The kind of a message between a log and those who use it, one of [`LOG_PIVOTS`].
pub(super) const fn pivot_of_log<E>(message: &Log<E>) -> Option<&'static str> {
    match message {
        Log::Append(_) => Some("append"),
        Log::Logged(_) => Some("logged"),
        Log::Sealed(_) => Some("sealed"),
        _ => None,
    }
}

/// True if a node knows who leads its group.
pub(super) fn has_leader(node: NodeId, gauge: Gauge<'_>) -> bool {
    let leaders = ["ordain_group_leader", "ordain_storage_leader"];
    leaders.into_iter().all(|name| gauge(node, name).is_none_or(|leader| leader >= 0.0))
}

/// True if a node serves and lacks nothing.
pub(super) fn is_ready(node: NodeId, gauge: Gauge<'_>) -> bool {
    let is_some = |name: &str| gauge(node, name).is_some_and(|value| value > 0.0);
    let is_unfounded = ["ordain_group_unfounded", "ordain_exchange_unfounded", "ordain_manager_unfounded"]
        .into_iter()
        .any(is_some);
    is_some(TAKES_TRANSACTIONS)
        && gauge(node, "ordain_group_is_voter") != Some(0.0)
        && !is_unfounded
        && !catches_up(node, gauge)
}

/// True if a node gets from others what it misses.
pub(super) fn catches_up(node: NodeId, gauge: Gauge<'_>) -> bool {
    let lacks = ["ordain_exchange_catch_up_epoch", "ordain_exchange_behind_epoch", "ordain_log_behind_epoch"];
    lacks.into_iter().any(|name| gauge(node, name).is_some_and(|value| value > 0.0))
        || gauge(node, IS_COUNTED) == Some(0.0)
}

/// The gauge of a storage node that says whether it counts in its generation.
const IS_COUNTED: &str = "ordain_storage_is_counted";

/// True if a region goes on without one of its storage nodes, as all others are there and count.
pub(super) fn counts_without(node: NodeId, storage: &[NodeId], gauge: Gauge<'_>) -> bool {
    storage.len() > 2
        && storage.contains(&node)
        && storage.iter().filter(|other| **other != node).all(|other| gauge(*other, IS_COUNTED) == Some(1.0))
}

/// True if a group has all that was agreed on without one of its members.
pub(super) fn agrees_without(node: NodeId, group: &[NodeId], gauge: Gauge<'_>) -> bool {
    let is = |of: NodeId, name: &str, value: f64| gauge(of, name) == Some(value);
    let known = group.iter().map(|of| gauge(*of, "ordain_group_commit").unwrap_or_default());
    let agreed = known.fold(0.0, f64::max);
    agreed > 0.0
        && group.iter().filter(|other| **other != node).all(|other| {
            is(*other, "ordain_group_is_voter", 1.0)
                && is(*other, "ordain_group_members", group.len() as f64)
                && is(*other, "ordain_group_learners", 0.0)
                && is(*other, "ordain_group_dispatched", agreed)
        })
}
