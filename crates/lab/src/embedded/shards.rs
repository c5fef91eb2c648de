//! What the shards of a node report of what they keep for reads on snapshots.

use ordain_family::places;
use ordain_runtime::{Handle, RoleSnapshot};

/// What a shard kept for reads on snapshots when it was looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Kept {
    /// Its records.
    pub records: f64,
    /// How many older contents it kept, of all records.
    pub older: f64,
    /// Of how many records.
    pub changed: f64,
    /// How many 99 in a hundred of these had at most.
    pub p99: f64,
    /// How many the one had that had most.
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

/// What each shard of a node keeps.
pub(super) fn kept(node: &Handle) -> Vec<Kept> {
    let mut kept = Vec::new();
    node.inspect(|snapshot| {
        let is_shard = |role: u16| (places::SHARDS..places::GATEWAYS).contains(&role);
        kept.extend(snapshot.roles.iter().filter(|role| is_shard(role.role)).map(Kept::of));
    });
    kept
}
