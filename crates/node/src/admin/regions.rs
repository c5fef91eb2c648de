//! The regions as a database server has them: its own, and how far its views of the others are.

use std::collections::BTreeMap;

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
