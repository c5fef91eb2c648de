//! The regions as a database server has them: its own, and how far its views of the others are.

use std::collections::BTreeMap;

use ordain_model::Doubt;
use ordain_replication::StorageObstacle;
use ordain_role::NodeId;
use serde_json::{Value, json};

use super::About;
use super::metrics::Samples;
use super::status::Command;
use crate::cluster::Membership;

/// The view of another region.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct View {
    /// The place in that region's log up to which the view has everything.
    applied: u64,
    /// The time since the entry of that place was made, by the clocks of the two servers; none before the first.
    age_ms: Option<u64>,
    /// The time that this entry took to here, by the same clocks.
    delay_ms: u64,
    /// It needs a checkpoint, which is asked for.
    is_behind: bool,
}

/// The views of a node by the number of the region.
fn views(samples: &Samples, now_ms: u64) -> BTreeMap<u16, View> {
    let by_region = |name| {
        let sums = samples.sums_by(name, "region");
        sums.into_iter().filter_map(|(region, sum)| Some((region.parse::<u16>().ok()?, sum)))
    };
    let mut views: BTreeMap<u16, View> = BTreeMap::new();
    for (region, applied) in by_region("ordain_proxy_applied") {
        views.entry(region).or_default().applied = applied as u64;
    }
    for (region, at) in by_region("ordain_proxy_entry_seconds").filter(|(_, at)| *at > 0.0) {
        views.entry(region).or_default().age_ms = Some(now_ms.saturating_sub((at * 1e3).round() as u64));
    }
    for (region, delay) in by_region("ordain_proxy_delay_seconds") {
        views.entry(region).or_default().delay_ms = (delay * 1e3).round() as u64;
    }
    for (region, behind) in by_region("ordain_proxy_behind") {
        views.entry(region).or_default().is_behind = behind > 0.0;
    }
    views
}

/// The place of a node whose partition is a region with storage nodes.
fn place_of(about: &About) -> Option<&Membership> {
    about.cluster.as_ref().filter(|place| place.cluster.storage.is_some())
}

/// The name of a region; its number if it has none.
fn name_of(place: &Membership, region: u16) -> String {
    place.cluster.regions.get(usize::from(region)).cloned().unwrap_or_else(|| region.to_string())
}

/// The obstacle of a storage node that does not count.
pub(super) const NOT_COUNTED: &str = "this storage node does not count yet: its region's server brings it up to the log and says then that it counts";

/// The obstacles between a region's server and its work: too few of the storage nodes are there, or have what they had. What other
/// regions do is theirs.
pub(super) fn obstacles(
    place: &Membership,
    samples: &Samples,
    is_there: &dyn Fn(NodeId) -> bool,
) -> Vec<String> {
    let all: Vec<NodeId> = place.cluster.topology().storage_of(place.partition()).collect();
    let marked = |name| {
        let marks = samples.sums_by(name, "replica").into_iter().filter(|(_, mark)| *mark > 0.0);
        marks.filter_map(|(at, _)| all.get(at.parse::<usize>().ok()?).copied()).collect()
    };
    let obstacle = StorageObstacle {
        unmet: marked("ordain_storage_unmet"),
        forgetful: marked("ordain_storage_forgetful"),
    };
    let mode = place.cluster.storage.unwrap_or_default().name();
    lacking((&all, mode), &obstacle, is_there)
        .map(|what| format!("region {} {what}", place.partition()))
        .into_iter()
        .collect()
}

/// The reason why a region with these storage nodes does not go on.
fn lacking(
    (all, mode): (&[NodeId], &str),
    obstacle: &StorageObstacle,
    is_there: &dyn Fn(NodeId) -> bool,
) -> Option<String> {
    if let Some(reason) = obstacle.reason(all.len()) {
        return Some(format!("cannot go on: {reason}"));
    }
    let (there, away): (Vec<NodeId>, Vec<NodeId>) = all.iter().copied().partition(|node| is_there(*node));
    let count = there.iter().filter(|node| !obstacle.forgetful.contains(node)).count();
    let needed = all.len() / 2 + 1;
    if count >= needed {
        return None;
    }
    let list = |nodes: &[NodeId]| nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ");
    let emptied = match &obstacle.forgetful[..] {
        [] => String::new(),
        emptied => format!(" (not counting {}, which have lost their disks)", list(emptied)),
    };
    Some(format!(
        "acknowledges no write, as {count} of its {} storage nodes are reached{emptied} and {needed} are needed ({mode}): start nodes {}",
        all.len(),
        list(&away)
    ))
}

/// The part of `/status` about regions; null without storage nodes.
pub(super) fn status(about: &About, samples: &Samples, now_ms: u64) -> Value {
    let Some(place) = place_of(about) else { return Value::Null };
    let own = place.partition().0;
    let views: Vec<Value> = views(samples, now_ms)
        .into_iter()
        .map(|(region, view)| {
            json!({
                "region": region,
                "name": name_of(place, region),
                "applied": view.applied,
                "age_ms": view.age_ms,
                "delay_ms": view.delay_ms,
                "behind": view.is_behind,
            })
        })
        .collect();
    json!({
        "region": own,
        "name": name_of(place, own),
        "storage": place.cluster.storage.map(|storage| storage.name()),
        "views": views,
        "in_doubt": about.doubts.all().iter().map(|doubt| in_doubt(place, doubt)).collect::<Vec<Value>>(),
    })
}

/// A transaction whose part here is promised, and whose outcome is not known.
fn in_doubt(place: &Membership, doubt: &Doubt) -> Value {
    let keys = doubt.keys.iter().map(|(db, key)| json!({"db": db.0, "key": String::from_utf8_lossy(key)}));
    json!({
        "transaction": doubt.name,
        "waits_for": doubt.waits_for.iter().map(|region| name_of(place, region.0)).collect::<Vec<String>>(),
        "held": doubt.held,
        "keys": keys.collect::<Vec<Value>>(),
    })
}

/// The fields of INFO's section `regions`; none without storage nodes.
pub(super) fn info(about: &About, samples: &Samples, now_ms: u64) -> Vec<(String, String)> {
    let Some(place) = place_of(about) else { return Vec::new() };
    let own = place.partition().0;
    // A comma ends a value, and a line the field.
    let name = |region| name_of(place, region).replace([',', '\r', '\n'], "_");
    let mut fields = vec![
        ("region".to_owned(), own.to_string()),
        ("region_name".to_owned(), name(own)),
        ("region_role".to_owned(), Command::of(about, samples).role.to_owned()),
    ];
    for (region, view) in views(samples, now_ms) {
        let age = view.age_ms.map_or_else(|| "-1".to_owned(), |age| age.to_string());
        let value = format!(
            "name={},applied={},age_ms={age},delay_ms={},behind={}",
            name(region),
            view.applied,
            view.delay_ms,
            u8::from(view.is_behind)
        );
        fields.push((format!("view{region}"), value));
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(numbers: &[(&'static str, f64)]) -> Samples {
        let mut samples = Samples::default();
        numbers.iter().for_each(|(name, value)| samples.put_of(name, "proxy", "l0", *value));
        samples
    }

    #[test]
    fn what_a_region_lacks_is_named() {
        let all = [3, 4, 5].map(NodeId);
        let lacks = |away: &[u16], unmet: &[u16], forgetful: &[u16]| {
            let of = |nodes: &[u16]| nodes.iter().copied().map(NodeId).collect();
            let obstacle = StorageObstacle { unmet: of(unmet), forgetful: of(forgetful) };
            lacking((&all, "quorum"), &obstacle, &|node| !away.contains(&node.0)).unwrap_or_default()
        };
        assert_eq!((lacks(&[], &[], &[]), lacks(&[4], &[], &[]), lacks(&[], &[], &[5])), Default::default());
        let two = "acknowledges no write, as 1 of its 3 storage nodes are reached and 2 are needed (quorum): start nodes 3, 4";
        assert_eq!(lacks(&[3, 4], &[], &[]), two);
        let one = lacks(&[3], &[], &[5]);
        assert!(
            one.contains("1 of its 3 storage nodes are reached (not counting 5, which")
                && one.ends_with("start nodes 3")
        );
        assert!(lacks(&[4], &[4], &[]).contains("must be met once, and node 4 was not"));
        assert!(lacks(&[], &[], &[3, 5]).contains("nodes 3, 5 were emptied"));
    }

    #[test]
    fn each_region_has_a_view_with_its_age() {
        let numbers = [
            ("ordain_proxy_applied{region=\"2\"}", 7.0),
            ("ordain_proxy_entry_seconds{region=\"2\"}", 99.25),
            ("ordain_proxy_delay_seconds{region=\"2\"}", 0.012),
            ("ordain_proxy_behind{region=\"2\"}", 1.0),
            ("ordain_proxy_applied{region=\"10\"}", 0.0),
            ("ordain_proxy_entry_seconds{region=\"10\"}", 0.0),
            ("ordain_proxy_delay_seconds{region=\"10\"}", 0.0),
            ("ordain_proxy_behind{region=\"10\"}", 0.0),
        ];
        let found = views(&samples(&numbers), 100_000);
        let late = View { applied: 7, age_ms: Some(750), delay_ms: 12, is_behind: true };
        assert_eq!(found.into_iter().collect::<Vec<_>>(), [(2, late), (10, View::default())]);
        // The clock of the other server may be ahead.
        assert_eq!(views(&samples(&numbers), 90_000)[&2].age_ms, Some(0));
        assert!(views(&samples(&[]), 100_000).is_empty());
    }
}
