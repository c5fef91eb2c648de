//! `cargo xtask deps`: arrows between our crates go down only.
//!
//! [`LAYERS`] is the whole truth, lowest layer first. A crate may use what its row names and nothing else of ours,
//! so a new arrow is a decision made in this file and not a line that slipped into a manifest.

use std::fmt;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::workspace::{self, Workspace};

/// What one crate may use.
struct Row {
    /// Name of the package, without `ordain-`.
    name: &'static str,
    /// What it may use, in its tests too.
    may_use: &'static [&'static str],
    /// What its tests may use besides (dev-dependencies).
    tests_may_use: &'static [&'static str],
}

const fn row(
    name: &'static str,
    may_use: &'static [&'static str],
    tests_may_use: &'static [&'static str],
) -> Row {
    Row { name, may_use, tests_may_use }
}

/// Lowest layer first: a row may name only rows above it (a test holds us to this), except for its tests.
#[rustfmt::skip]
const LAYERS: &[Row] = &[
    // What fuzz targets share: tests only.
    row("fuzz",      &[], &[]),
    // What everyone speaks.
    row("model",     &[], &[]),
    row("role",      &["model"], &[]),
    // What judges histories. It makes none.
    row("checker",   &["model", "role"], &["sim"]),
    // The stream of messages between two nodes, which both drivers carry.
    row("link",      &["model", "role"], &[]),
    // Records, input log, commands, workloads: none knows what a transaction is for.
    row("store",     &["model"], &[]),
    row("log",       &["model", "role"], &["fuzz"]),
    // Evicted values on disk.
    row("value-log", &["model", "role"], &["log"]),
    // The state at the end of an epoch, in a file.
    row("checkpoint", &["model", "role"], &["log"]),
    // The interpreter of scripts: it knows values and budgets, and no record.
    row("lua",       &[], &["fuzz"]),
    row("commands",  &["model", "lua"], &[]),
    row("workload",  &["model", "checker"], &[]),
    row("gateway",   &["model", "role"], &[]),
    // What those who run nodes need of a family of engines.
    row("family",    &["model", "role", "log", "gateway"], &[]),
    // What every family builds on: fragments run on records, and a log of any entry type.
    row("execution", &["model", "role", "store", "value-log"], &["log"]),
    row("replication", &["model", "role", "log", "checkpoint"], &["fuzz"]),
    // The two families. They do not know each other, and name no engine.
    row("deterministic", &["model", "role", "store", "gateway", "log", "family", "execution", "replication", "checkpoint"], &["fuzz"]),
    row("commit",    &["model", "role", "store", "gateway", "log", "family", "execution", "replication", "checkpoint"], &["fuzz"]),
    // One folder an engine. An engine meets the simulator and real commands in its tests only.
    row("engines",   &["model", "role", "store", "family", "execution", "deterministic", "commit"], &["replication", "checker", "commands", "workload", "sim", "gateway", "log",
                       "checkpoint"]),
    // The front door and the two drivers. A driver knows the traits of roles, not the engines.
    row("resp",      &["model", "commands", "gateway"], &["fuzz", "conformance"]),
    // The connection server without its sockets, so that both drivers have it.
    row("front",     &["model", "role", "family", "gateway", "resp"], &[]),
    row("runtime",   &["model", "role", "link", "gateway"], &["fuzz"]),
    row("sim",       &["model", "role", "family", "link", "gateway", "log", "checker", "resp", "front"], &["store", "engines"]),
    // What every engine has to answer: tests only.
    row("conformance", &["model", "role", "checker", "family", "engines", "commands", "gateway", "resp", "sim", "fuzz"], &[]),
    // Checkpoints in an object store. It knows checkpoints as files, and no maker of them.
    row("archive",   &["model", "role", "checkpoint", "runtime"], &["log"]),
    // What knows everything below it.
    row("node",      &["model", "role", "family", "link", "store", "log", "checkpoint", "replication", "gateway", "deterministic", "commit", "engines", "commands",
                       "resp", "front", "runtime", "archive", "workload"], &[]),
    row("lab",       &["model", "role", "family", "checker", "link", "store", "deterministic", "engines", "node", "workload", "runtime", "gateway", "sim",
                       "commands", "resp"], &[]),
    row("ordain",    &["model", "role", "family", "checker", "store", "log", "checkpoint", "replication", "gateway", "deterministic", "commit", "engines", "commands",
                       "resp", "front", "runtime", "archive", "workload", "sim", "node", "lab"], &["fuzz"]),
    // The tool you are reading.
    row("xtask",     &[], &[]),
];

/// One arrow between two crates of ours, by short name.
#[derive(Clone, Debug, PartialEq)]
struct Arrow {
    from: String,
    to: String,
    /// Whether it is a dev-dependency.
    in_tests: bool,
}

/// Why the crates and the table do not agree.
#[derive(Debug, PartialEq)]
enum Problem {
    /// The arrow points up or sideways.
    Upwards(Arrow),
    /// The arrow goes down, and the row does not allow it yet.
    NotListed(Arrow),
    /// A crate without a row.
    NoRow(String),
    /// A row without a crate.
    NoCrate(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Upwards(Arrow { from, to, in_tests }) => write!(
                f,
                "{from} -> {to}{tests}: forbidden, because `{to}` is not below `{from}` in the layers; move what \
                 {from} needs down to a crate that both may use, or behind a trait that {from} owns",
                tests = if *in_tests { " (dev-dependency)" } else { "" },
            ),
            Self::NotListed(Arrow { from, to, in_tests }) => write!(
                f,
                "{from} -> {to}{tests}: forbidden, because the row of `{from}` does not name `{to}`; do without it, or \
                 add `{to}` to {column} of that row in xtask/src/deps.rs and say why in the commit",
                tests = if *in_tests { " (dev-dependency)" } else { "" },
                column = if *in_tests { "`tests_may_use`" } else { "`may_use`" },
            ),
            Self::NoRow(name) => {
                write!(f, "{name}: this crate has no layer; give it a row in LAYERS of xtask/src/deps.rs")
            }
            Self::NoCrate(name) => {
                write!(f, "{name}: there is no such crate; remove its row from LAYERS in xtask/src/deps.rs")
            }
        }
    }
}

/// Checks the workspace; prints every forbidden arrow.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut cargo = workspace.cargo();
    cargo.args(["metadata", "--no-deps", "--format-version", "1"]);
    let metadata = serde_json::from_str(&workspace::output(cargo)?).context("cargo metadata is not JSON")?;
    let graph = Graph::read(&metadata)?;
    let problems = graph.check(LAYERS);
    for problem in &problems {
        println!("{problem}");
    }
    if !problems.is_empty() {
        bail!("deps: {} problems between our crates and the layers in xtask/src/deps.rs", problems.len());
    }
    println!("deps: {} crates, {} arrows, all down", graph.crates.len(), graph.arrows.len());
    Ok(())
}

/// Our crates and the arrows between them.
#[derive(Debug, PartialEq)]
struct Graph {
    crates: Vec<String>,
    arrows: Vec<Arrow>,
}

impl Graph {
    fn read(metadata: &Value) -> anyhow::Result<Self> {
        let packages = array(metadata, "packages")?;
        let crates = packages.iter().map(name).collect::<anyhow::Result<Vec<_>>>()?;
        let mut arrows = Vec::new();
        for (package, from) in packages.iter().zip(&crates) {
            for dependency in array(package, "dependencies")? {
                let to = name(dependency)?;
                if crates.contains(&to) {
                    // `kind` is null for a normal dependency. One of a build script binds as a normal one does.
                    let in_tests = dependency["kind"] == "dev";
                    arrows.push(Arrow { from: from.clone(), to, in_tests });
                }
            }
        }
        Ok(Self { crates, arrows })
    }

    fn check(&self, layers: &[Row]) -> Vec<Problem> {
        let layer = |name: &str| layers.iter().position(|row| row.name == name);
        let without_row = self.crates.iter().filter(|name| layer(name).is_none());
        let without_crate = layers.iter().filter(|row| !self.crates.iter().any(|name| name == row.name));
        let forbidden = self.arrows.iter().filter_map(|arrow| {
            // A crate without a row is reported once, not for each of its arrows.
            let (from, to) = (layer(&arrow.from)?, layer(&arrow.to)?);
            let named = |list: &[&str]| list.contains(&arrow.to.as_str());
            let row = &layers[from];
            if named(row.may_use) || (arrow.in_tests && named(row.tests_may_use)) {
                None
            } else if to >= from {
                Some(Problem::Upwards(arrow.clone()))
            } else {
                Some(Problem::NotListed(arrow.clone()))
            }
        });
        without_row
            .map(|name| Problem::NoRow(name.clone()))
            .chain(without_crate.map(|row| Problem::NoCrate(row.name.to_string())))
            .chain(forbidden)
            .collect()
    }
}

fn array<'a>(value: &'a Value, key: &str) -> anyhow::Result<&'a Vec<Value>> {
    value[key].as_array().with_context(|| format!("cargo metadata has no list `{key}`"))
}

/// The short name of a package or dependency.
fn name(value: &Value) -> anyhow::Result<String> {
    let name = value["name"].as_str().context("cargo metadata has a package without a name")?;
    Ok(name.strip_prefix("ordain-").unwrap_or(name).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SAMPLE: &[Row] = &[
        row("model", &[], &["engines"]),
        row("store", &["model"], &[]),
        row("engines", &["model"], &["store"]),
    ];

    fn arrow(from: &str, to: &str, in_tests: bool) -> Arrow {
        Arrow { from: from.to_string(), to: to.to_string(), in_tests }
    }

    fn check(arrows: Vec<Arrow>) -> Vec<Problem> {
        let crates = ["model", "store", "engines"].map(String::from).to_vec();
        Graph { crates, arrows }.check(SAMPLE)
    }

    #[test]
    fn rows_name_only_rows_above_them() {
        for (index, row) in LAYERS.iter().enumerate() {
            for used in row.may_use {
                assert!(
                    LAYERS[..index].iter().any(|lower| lower.name == *used),
                    "{} may use {used}, which is not above it in the table",
                    row.name
                );
            }
            for used in row.tests_may_use {
                assert!(LAYERS.iter().any(|other| other.name == *used), "no row for {used}");
                assert!(!row.may_use.contains(used), "{}: {used} is already in may_use", row.name);
            }
        }
    }

    #[test]
    fn listed_arrows_pass() {
        let arrows = vec![
            arrow("store", "model", false),
            arrow("store", "model", true),
            arrow("engines", "store", true),
            arrow("model", "engines", true),
        ];
        assert_eq!(check(arrows), []);
    }

    #[test]
    fn an_arrow_upwards_is_forbidden() {
        let up = arrow("store", "engines", false);
        let problems = check(vec![up.clone()]);
        assert_eq!(problems, [Problem::Upwards(up)]);
        assert!(problems[0].to_string().starts_with("store -> engines: forbidden, because"));
    }

    #[test]
    fn what_tests_may_use_the_crate_may_not() {
        let down = arrow("engines", "store", false);
        let problems = check(vec![down.clone()]);
        assert_eq!(problems, [Problem::NotListed(down)]);
        assert!(problems[0].to_string().contains("add `store` to `may_use`"));
    }

    #[test]
    fn crates_and_rows_match() {
        let crates = ["model", "store", "commit"].map(String::from).to_vec();
        let problems = Graph { crates, arrows: vec![arrow("commit", "store", false)] }.check(SAMPLE);
        let expected = [Problem::NoRow("commit".to_string()), Problem::NoCrate("engines".to_string())];
        assert_eq!(problems, expected);
    }

    #[test]
    fn metadata_is_read() {
        let metadata = json!({"packages": [
            {"name": "ordain-model", "dependencies": [{"name": "smallvec", "kind": null}]},
            {"name": "ordain-store", "dependencies": [
                {"name": "ordain-model", "kind": null},
                {"name": "ordain-model", "kind": "dev"},
            ]},
        ]});
        let graph = Graph::read(&metadata).unwrap();
        assert_eq!(graph.crates, ["model", "store"]);
        assert_eq!(graph.arrows, [arrow("store", "model", false), arrow("store", "model", true)]);
    }
}
