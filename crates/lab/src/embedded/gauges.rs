//! Gauges that the roles of a node publish: contents kept for reads on snapshots, and whether a node is primary of its
//! partition with all its members behind it.
//!
//! With asynchronous replication nothing waits for members, so a run could be over before they have been sent anything,
//! and its figures would be those of no replication at all.

use std::collections::BTreeMap;

use ordain_deterministic::assembly;
use ordain_family::places;
use ordain_runtime::{Handle, RoleSnapshot};

/// Contents that a shard kept for reads on snapshots when it was inspected.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept {
    pub records: f64,
    /// Older contents of all records.
    pub older: f64,
    /// Records that have some.
    pub changed: f64,
    /// Older contents of these, the 99th percentile.
    pub p99: f64,
    /// Older contents of these, the maximum.
    pub max: f64,
    /// From how many epochs back on.
    pub epochs: f64,
}

impl Kept {
    fn of(shard: &RoleSnapshot) -> Kept {
        let of = |name: &str| {
            let found = shard.gauges.iter().find(|(gauge, _)| *gauge == name);
            found.map_or(0.0, |(_, value)| *value)
        };
        Kept {
            records: of("ordain_store_records"),
            older: of("ordain_store_older_records"),
            changed: of("ordain_store_changed_records"),
            p99: of("ordain_store_older_of_a_record_p99"),
            max: of("ordain_store_older_of_a_record_max"),
            epochs: of("ordain_shard_snapshot_kept_epochs"),
        }
    }
}

/// The contents that each shard of a node keeps.
pub(super) fn kept(node: &Handle) -> Vec<Kept> {
    let mut kept = Vec::new();
    node.inspect(|snapshot| {
        let is_shard = |role: u16| (places::SHARDS..places::GATEWAYS).contains(&role);
        kept.extend(snapshot.roles.iter().filter(|role| is_shard(role.role)).map(Kept::of));
    });
    kept
}

/// Gauges of a node's log, its part of the configuration service and its checkpointer.
pub(super) fn of_node(node: &Handle) -> BTreeMap<&'static str, f64> {
    let mut gauges = BTreeMap::new();
    node.inspect(|snapshot| {
        let of_them = |role: u16| {
            [assembly::places::LOG, assembly::places::CONFIGURATION_SERVICE, assembly::places::CHECKPOINTER]
                .contains(&role)
        };
        let roles = snapshot.roles.iter().filter(|role| of_them(role.role));
        gauges.extend(roles.flat_map(|role| role.gauges.iter().copied()));
    });
    gauges
}

/// The transactions that a node has answered and of which not all partitions have heard that are to hear of them.
pub(super) fn unheard(node: &Handle) -> f64 {
    const UNHEARD: [&str; 2] = ["ordain_coordinator_unacknowledged", "ordain_manager_untold"];
    let mut unheard = 0.0;
    node.inspect(|snapshot| {
        let gauges = snapshot.roles.iter().flat_map(|role| role.gauges.iter());
        unheard = gauges.filter(|(name, _)| UNHEARD.contains(name)).map(|(_, count)| count).sum();
    });
    unheard
}

/// The condition that keeps a node from being primary with so many members in sync.
pub(super) fn missing(gauges: &BTreeMap<&'static str, f64>, members: u16) -> Option<String> {
    let of = |name: &str| gauges.get(name).copied().unwrap_or(0.0);
    let members = f64::from(members);
    if of("ordain_configuration_service_has_arrived") < 1.0 {
        return Some("has no leadership record from the configuration service yet".to_owned());
    }
    if of("ordain_ship_is_primary") < 1.0 || of("ordain_ship_term") > 1.0 {
        return Some("has not been primary of its partition from the first term on".to_owned());
    }
    let (live, in_sync) = (of("ordain_ship_live_members"), of("ordain_configuration_service_in_sync"));
    (live < members || in_sync < members)
        .then(|| format!("ships to {live} of its {members} members, {in_sync} are in sync"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_primary_lacks_nothing_when_all_members_are_in_sync() {
        let ready = BTreeMap::from([
            ("ordain_configuration_service_has_arrived", 1.0),
            ("ordain_ship_is_primary", 1.0),
            ("ordain_ship_term", 1.0),
            ("ordain_ship_live_members", 2.0),
            ("ordain_configuration_service_in_sync", 2.0),
        ]);
        assert_eq!(missing(&ready, 2), None);
        let but = |name: &'static str, value| {
            let gauges = ready.iter().map(|(name, value)| (*name, *value)).chain([(name, value)]);
            missing(&gauges.collect(), 2).unwrap_or_default()
        };
        assert!(but("ordain_configuration_service_has_arrived", 0.0).contains("the configuration service"));
        assert!(but("ordain_ship_is_primary", 0.0).contains("primary"));
        assert!(but("ordain_ship_term", 2.0).contains("first term"));
        assert!(but("ordain_ship_live_members", 1.0).contains("1 of its 2 members"));
        assert!(but("ordain_configuration_service_in_sync", 1.0).contains("1 are in sync"));
        assert!(missing(&BTreeMap::new(), 1).is_some());
    }
}
