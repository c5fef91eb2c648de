//! `ordain sim configurations`: the ways to run engines that long ranges of seeds must cover.
//!
//! An engine of the registry is in the list by itself, in each shape of a cluster. `cargo xtask seeds --every` runs each
//! configuration with each profile.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use ordain_engines::registry::{self, Engine};
use ordain_lab::report;
use ordain_sim::Profile;

/// The shapes of clusters: a single node, partitions alone, and replicated ones.
const SHAPES: [&str; 4] =
    ["", "--partitions 3", "--partitions 2 --replicas 3", "--partitions 2 --replicas 3 --replication async"];

/// The shapes of clusters whose partitions are regions.
const OF_REGIONS: [&str; 7] = [
    "",
    "--regions 1 --replicas 3",
    "--regions 2 --replicas 3 --option ro-mode=stale",
    "--regions 2 --replicas 3 --option overlay=true",
    "--regions 3 --replicas 1 --option overlay=true",
    "--regions 2 --servers 2 --replicas 3",
    "--regions 2 --replicas 3 --storage full",
];

/// The promises that are not an engine's own, each in one shape.
const OTHER_PROMISES: [&str; 6] = [
    "--engine calvin --reads strict --partitions 2 --replicas 3",
    "--engine paxflow --reads previous --partitions 2 --replicas 3",
    "--engine paxflow --reads strict --partitions 2 --replicas 3",
    "--engine qstore --cascade abort --partitions 2 --replicas 3",
    "--engine qstore --isolation read-committed --partitions 2 --replicas 3",
    "--engine regions-mvocc --regions 3 --replicas 3 --option ro-local=resolved",
];

/// The sources of stamps beside the default, and clocks that are apart, each in one shape.
const OF_STAMPS: [&str; 4] = [
    "--engine timestamp --option ts-source=clock --partitions 2 --replicas 3",
    "--engine timestamp --option ts-source=counter --partitions 2 --replicas 3",
    "--engine timestamp --option ts-source=counter --partitions 3",
    "--engine timestamp --option skew-us=100000 --partitions 3",
];

/// Regions that lock all that a transaction of several writes before any of them validates.
const OF_ROUNDS: [&str; 2] = [
    "--engine regions-silo --option occ-rounds=2 --regions 2 --replicas 3",
    "--engine regions-silo --option occ-rounds=2 --regions 3 --replicas 1",
];

/// The flags of `ordain sim configurations`.
#[derive(Clone, Debug, Args)]
pub(super) struct ConfigurationsArgs {
    /// Write the configurations and the profiles to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The flags of each configuration.
fn all() -> impl Iterator<Item = String> {
    let shaped = |engine: Engine| {
        let ships = engine.can().replication.contains(&"async");
        let shapes = if engine.can().has_regions { &OF_REGIONS[..] } else { &SHAPES };
        let shapes = shapes.iter().filter(move |shape| ships || !shape.ends_with("async"));
        shapes.map(move |shape| format!("--engine {} {shape}", engine.name()).trim_end().to_string())
    };
    let others = OTHER_PROMISES.into_iter().chain(OF_STAMPS).chain(OF_ROUNDS);
    registry::engines().flat_map(shaped).chain(others.map(String::from))
}

/// Lists the configurations.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn run(args: &ConfigurationsArgs) -> anyhow::Result<bool> {
    let mut out = std::io::stdout().lock();
    let configurations: Vec<String> = all().collect();
    for flags in &configurations {
        writeln!(out, "{flags}")?;
    }
    let profiles = Profile::ALL.map(|(_, name)| name);
    let listed = serde_json::json!({ "configurations": configurations, "profiles": profiles });
    report::write_json(args.json.as_deref(), &listed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{SimArgs, simulate};
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        sim: SimArgs,
    }

    #[test]
    fn each_configuration_is_one_that_runs() {
        for flags in all() {
            let words = ["sim", "--txns", "20", "--faults", "none"].into_iter().chain(flags.split(' '));
            let line = Line::try_parse_from(words).unwrap_or_else(|error| panic!("{flags}: {error}"));
            let report = simulate(&line.sim, 1, None).unwrap_or_else(|error| panic!("{flags}: {error}"));
            assert!(report.verdict.is_ok(), "{flags}: {report}");
        }
    }
}
