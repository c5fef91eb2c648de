//! Whether a node is primary of its partition with all its members behind it, by what its roles report of themselves.
//!
//! Nothing waits for members where input is replicated asynchronously, so a run could be over before they have been sent
//! anything, and its figures would be those of no replication at all.

use std::collections::BTreeMap;

use ordain_deterministic::assembly::places;
use ordain_runtime::Handle;

/// What the log of a node, its part of the configuration service and its checkpointer report.
pub(super) fn gauges(node: &Handle) -> BTreeMap<&'static str, f64> {
    let mut gauges = BTreeMap::new();
    node.inspect(|snapshot| {
        let of_them =
            |role: u16| [places::LOG, places::CONFIGURATION_SERVICE, places::CHECKPOINTER].contains(&role);
        let roles = snapshot.roles.iter().filter(|role| of_them(role.role));
        gauges.extend(roles.flat_map(|role| role.gauges.iter().copied()));
    });
    gauges
}

/// What is missing until it is primary with so many members in sync.
pub(super) fn lacking(gauges: &BTreeMap<&'static str, f64>, members: u16) -> Option<String> {
    let of = |name: &str| gauges.get(name).copied().unwrap_or(0.0);
    let members = f64::from(members);
    if of("ordain_configuration_service_has_arrived") < 1.0 {
        return Some("has not heard from the configuration service who is primary".to_owned());
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
        assert_eq!(lacking(&ready, 2), None);
        let but = |name: &'static str, value| {
            let gauges = ready.iter().map(|(name, value)| (*name, *value)).chain([(name, value)]);
            lacking(&gauges.collect(), 2).unwrap_or_default()
        };
        assert!(but("ordain_configuration_service_has_arrived", 0.0).contains("the configuration service"));
        assert!(but("ordain_ship_is_primary", 0.0).contains("primary"));
        assert!(but("ordain_ship_term", 2.0).contains("first term"));
        assert!(but("ordain_ship_live_members", 1.0).contains("1 of its 2 members"));
        assert!(but("ordain_configuration_service_in_sync", 1.0).contains("1 are in sync"));
        assert!(lacking(&BTreeMap::new(), 1).is_some());
    }
}
