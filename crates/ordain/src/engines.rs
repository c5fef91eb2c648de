//! `ordain engines`: every engine, and what the registry says of it.

use std::fs;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use ordain_engines::registry::{self, DEFAULT_BECAUSE, Engine, EngineInfo};
use ordain_lab::options::default_of;
use ordain_lab::report::{self, check_writable};
use ordain_model::{Offer, OptionKind, OptionValue};
use serde_json::{Value, json};

/// The flags of `ordain engines`.
#[derive(Debug, Args)]
pub struct EnginesArgs {
    /// Write the list to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Prints the list.
///
/// # Errors
/// The file cannot be written.
pub fn run(args: &EnginesArgs) -> anyhow::Result<bool> {
    check_writable("--json", args.json.as_deref())?;
    let mut engines = report::wrapped_table(&["engine", "what it is", "paper", "level", "family", "can"]);
    for info in registry::engines().map(Engine::info) {
        let can = abilities(&info.parts.can).join(", ");
        engines.add_row([info.name, info.what, &paper(info), info.level, info.family.name(), &can]);
    }
    println!("{engines}");
    println!("The default is {}, {DEFAULT_BECAUSE}.", Engine::default());
    let mut options = report::wrapped_table(&["option", "takes", "default", "engines", "what it does"]);
    for info in registry::all_options() {
        let flag = if info.is_flag { format!("--{}", info.name) } else { format!("--option {}", info.name) };
        let engines = registry::engines_with(info).join(", ");
        options.add_row([&flag, &info.kind.to_string(), &default_of(info), &engines, info.doc]);
    }
    println!("{options}");
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&to_json()).context("a list that is no JSON")?;
        fs::write(path, text + "\n").with_context(|| format!("cannot write --json {}", path.display()))?;
    }
    Ok(true)
}

/// The paper in a line.
fn paper(info: &EngineInfo) -> String {
    let (venue, year) = (info.paper.venue.map(str::to_owned), info.paper.year.map(|year| year.to_string()));
    let place: Vec<String> = venue.into_iter().chain(year).collect();
    match place.is_empty() {
        true => info.paper.title.to_owned(),
        false => format!("{} ({})", info.paper.title, place.join(" ")),
    }
}

fn abilities(can: &registry::Abilities) -> Vec<String> {
    let replication = format!("replication {}", can.replication.join("|"));
    std::iter::once(replication).chain(can.names().into_iter().map(str::to_owned)).collect()
}

/// All of it, for programs.
fn to_json() -> Value {
    let engines = registry::engines().map(|engine| {
        let info = engine.info();
        json!({
            "name": info.name,
            "what": info.what,
            "family": info.family.name(),
            "level": info.level,
            "paper": { "title": info.paper.title, "venue": info.paper.venue, "year": info.paper.year },
            "replication": engine.can().replication,
            "can": engine.can().names(),
            "options": engine.offers().iter().map(option).collect::<Vec<_>>(),
        })
    });
    json!({ "default": Engine::default().name(), "engines": engines.collect::<Vec<_>>() })
}

fn option(offer: &Offer) -> Value {
    let info = offer.info;
    let (kind, range) = match info.kind {
        OptionKind::Name { names, .. } => ("name", json!({ "names": names })),
        OptionKind::Bool => ("bool", json!({})),
        OptionKind::Integer { unit, min, max } => {
            ("integer", json!({ "unit": unit, "min": min, "max": max }))
        }
        OptionKind::Duration { min, max } => {
            ("duration", json!({ "unit": "us", "min": min.0, "max": max.0 }))
        }
        OptionKind::Bytes { min, max } => ("bytes", json!({ "unit": "bytes", "min": min, "max": max })),
    };
    let default = match offer.default {
        OptionValue::Name(name) => json!(name),
        OptionValue::Bool(is_on) => json!(is_on),
        OptionValue::Integer(number) | OptionValue::Bytes(number) => json!(number),
        OptionValue::Duration(length) => json!(length.0),
    };
    json!({
        "name": info.name,
        "does": info.doc,
        "kind": kind,
        "range": range,
        "default": default,
        "flag": info.is_flag,
        "identity": info.is_identity,
        "same_on_all_nodes": info.is_of_cluster,
        "changes_at_run_time": info.changes_at_run_time,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::OptionInfo;

    /// The table of options in the guide.
    fn guide() -> String {
        let mut table =
            "| option | flag | default | takes | stays | same on all nodes | what it does |\n".to_owned();
        table += "|---|---|---|---|---|---|---|\n";
        let yes = |is: bool| if is { "yes" } else { "" };
        for info in registry::all_options() {
            let OptionInfo { name, doc, kind, is_flag, is_identity, is_of_cluster, .. } = info;
            let (flag, stays, same) = (yes(*is_flag), yes(*is_identity), yes(*is_of_cluster));
            let default = default_of(info);
            table += &format!("| `{name}` | {flag} | {default} | {kind} | {stays} | {same} | {doc} |\n");
        }
        table
    }

    #[test]
    fn the_guide_has_the_options_as_they_are() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide.md");
        let text = fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("<!-- options:").unwrap();
        let (mark, rest) = rest.split_once("-->\n").unwrap();
        let (table, after) = rest.split_once("<!-- /options -->").unwrap();
        if std::env::var_os("ORDAIN_BLESS").is_some() {
            fs::write(path, format!("{before}<!-- options:{mark}-->\n{}<!-- /options -->{after}", guide()))
                .unwrap();
        } else {
            assert_eq!(table, guide(), "docs/guide.md says something else than the registry");
        }
    }

    /// What programs read changes on purpose only: `ORDAIN_BLESS=1` writes the file anew.
    #[test]
    fn the_list_is_as_it_was() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/engines.json");
        let text = serde_json::to_string_pretty(&to_json()).unwrap() + "\n";
        if std::env::var_os("ORDAIN_BLESS").is_some() {
            fs::write(path, &text).unwrap();
        }
        assert_eq!(
            fs::read_to_string(path).unwrap_or_default(),
            text,
            "{path} is not what `ordain engines --json` says"
        );
    }
}
