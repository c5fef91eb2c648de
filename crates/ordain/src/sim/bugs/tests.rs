//! Planted bugs are found, by a few seeds of each setting.

use std::collections::BTreeSet;

use clap::Parser;

use super::super::{SimArgs, simulate};
use super::*;

/// The command line of a setting, as `ordain sim` reads it.
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    sim: SimArgs,
}

const INVARIANTS: &str = include_str!("../../../../../docs/invariants.md");

/// The most seeds of a setting that a test runs, known ones included: a bug that 10 of 60 seeds find is missed by so many
/// in one of a hundred trials.
const SEEDS: u64 = 24;

/// The cells of a row of docs/invariants.md, by the name of the invariant.
fn rows() -> Vec<(&'static str, Vec<&'static str>)> {
    let lines = INVARIANTS.lines().filter(|line| line.starts_with("| ")).skip(1);
    let cells = lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    cells.map(|cells| (cells[0], cells)).collect()
}

#[test]
fn every_bug_is_of_an_invariant_that_names_it_and_every_invariant_has_one_or_says_why_not() {
    let described: BTreeSet<Bug> = TABLE.iter().map(|planted| planted.bug).collect();
    assert_eq!(described.len(), TABLE.len(), "a bug is described twice");
    assert_eq!(described.into_iter().collect::<Vec<_>>(), Bug::ALL.to_vec(), "a bug is not described");
    let rows = rows();
    for planted in TABLE {
        assert!(
            (planted.by_test.is_some() || !planted.settings.is_empty()) && !planted.mistake.ends_with('.'),
            "{}",
            planted.bug.name()
        );
        let row = rows.iter().find(|(name, _)| *name == planted.invariant);
        let cell = row.and_then(|(_, cells)| cells.get(2)).copied().unwrap_or_default();
        let named = format!("`{}`", planted.bug.name());
        assert!(cell.contains(&named), "{} of docs/invariants.md does not name {named}", planted.invariant);
    }
    for (name, cells) in rows {
        let cell = cells.get(2).copied().unwrap_or_default();
        let mut named = cell.split('`').skip(1).step_by(2);
        assert!(named.all(|bug| bug.parse::<Bug>().is_ok()), "{name}: {cell}");
        assert!(
            cell.contains('`') || cell.starts_with("none: "),
            "{name}: no bug is planted, and no reason given"
        );
    }
}

/// Runs seeds of every setting with an engine until one finds its bug.
fn demand_found(engine: &str) {
    let of_engine = |planted: &'static Planted| {
        let settings = planted.settings.iter().filter(|setting| setting.engine() == engine);
        settings.map(|setting| (planted.bug, setting))
    };
    let mut missed = Vec::new();
    for (bug, setting) in
        TABLE.iter().flat_map(of_engine).filter(|(_, setting)| setting.left_out.or(setting.rare).is_none())
    {
        let words = ["sim"].into_iter().chain(setting.words(bug));
        let args = Cli::try_parse_from(words).unwrap().sim;
        let finds = |seed: &u64| {
            let verdict = simulate(&args, *seed, None).unwrap().verdict;
            verdict.is_err_and(|violation| setting.kinds().any(|kind| kind == violation.kind))
        };
        let others = (0..SEEDS).filter(|seed| !setting.seeds.contains(seed));
        let seeds = setting.seeds.iter().copied().chain(others).take(SEEDS as usize);
        if seeds.into_iter().find(finds).is_none() {
            missed.push(format!("{} {}", bug.name(), setting.flags));
        }
    }
    assert!(missed.is_empty(), "no seed of {SEEDS} finds {missed:?}");
}

#[test]
fn planted_bugs_are_found_with_calvin() {
    demand_found("calvin");
}

#[test]
fn planted_bugs_are_found_with_calvin_paper() {
    demand_found("calvin-paper");
}

#[test]
fn planted_bugs_are_found_with_paxflow() {
    demand_found("paxflow");
}

#[test]
fn planted_bugs_are_found_with_qstore() {
    demand_found("qstore");
}

#[test]
fn planted_bugs_are_found_with_no_wait() {
    demand_found("no-wait");
}

#[test]
fn planted_bugs_are_found_with_wait_die() {
    demand_found("wait-die");
}

#[test]
fn planted_bugs_are_found_with_timestamp() {
    demand_found("timestamp");
}

#[test]
fn planted_bugs_are_found_with_mvcc() {
    demand_found("mvcc");
}

#[test]
fn planted_bugs_are_found_with_maat() {
    demand_found("maat");
}

#[test]
fn planted_bugs_are_found_with_occ_2pc() {
    demand_found("occ-2pc");
}

#[test]
fn planted_bugs_are_found_with_regions_mvocc() {
    demand_found("regions-mvocc");
}

#[test]
fn planted_bugs_are_found_with_walter() {
    demand_found("walter");
}

#[test]
fn planted_bugs_are_found_with_fwkv() {
    demand_found("fwkv");
}

#[test]
fn planted_bugs_are_found_with_regions() {
    ["regions-2pl", "regions-silo"].into_iter().for_each(demand_found);
}
