//! `cargo xtask bugs`: each planted bug is looked for under each of its settings, and docs/testing.md says how often it is
//! found.
//!
//! `ordain sim bugs` knows the bugs, their settings and which violations count. This tool runs 60 seeds of each setting in
//! release, two processes at a time, and fails if fewer than ten seeds find a bug. The table stands between two markers, and
//! is written anew by a run of seeds 0 to 59; the rows of bugs that the run left out stay.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::simulator::{Simulator, two_at_a_time};
use crate::workspace::Workspace;

/// The seeds of a setting.
const SEEDS: u64 = 60;

/// The number of seeds that must find a bug, at the least.
const LEAST: usize = 10;

/// The page with the table, and the lines around this.
const PAGE: &str = "docs/testing.md";
const BEGIN: &str = "<!-- cargo xtask bugs: begin -->";
const END: &str = "<!-- cargo xtask bugs: end -->";

const HEAD: &str = "\
| bug | the mistake | breaks | setting | found by | found | first |
|---|---|---|---|---|---|---|
";

/// Arguments of `bugs`.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Bugs {
    /// The bugs to look for; all without any.
    only: Vec<String>,
    /// The first seed.
    from: u64,
}

impl Bugs {
    /// Reads the arguments after `bugs`; the error names what is wrong with them.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut bugs = Self::default();
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--only" => bugs.only.push(value()?),
                "--from" => {
                    let text = value()?;
                    bugs.from = text.parse().map_err(|_| format!("--from takes a seed, not `{text}`"))?;
                }
                other => return Err(format!("bugs takes no `{other}`")),
            }
        }
        Ok(bugs)
    }
}

/// A bug under one setting.
#[derive(Debug)]
struct Job {
    /// The place of the bug in the list, and of the setting among the bug's.
    place: (usize, usize),
    name: String,
    mistake: String,
    invariant: String,
    /// The setting as people read it.
    shown: String,
    /// The reason why a node that stops itself counts, if it does.
    stops: Option<String>,
    flags: Vec<String>,
    kinds: Vec<String>,
}

/// The seeds that found a bug, by the kind of violation.
#[derive(Debug, Default)]
struct Found {
    by_kind: BTreeMap<String, usize>,
    first: Option<u64>,
    total: usize,
}

impl Found {
    /// Notes the verdict of a seed.
    fn note(&mut self, seed: u64, kind: &str) {
        *self.by_kind.entry(kind.to_string()).or_default() += 1;
        self.first = self.first.or(Some(seed));
        self.total += 1;
    }
}

/// Looks for the bugs. The error names those that too few seeds have found.
pub(crate) fn run(workspace: &Workspace, bugs: &Bugs) -> anyhow::Result<()> {
    let simulator = Simulator::build(workspace)?;
    let mut jobs = jobs(&simulator.list("bugs")?);
    if let Some(unknown) = bugs.only.iter().find(|name| jobs.iter().all(|job| job.name != **name)) {
        bail!("there is no bug `{unknown}`: `ordain sim bugs` lists them");
    }
    jobs.retain(|job| bugs.only.is_empty() || bugs.only.contains(&job.name));
    let found = look(&simulator, jobs, bugs.from)?;
    if bugs.from == 0 {
        let page = workspace.path(PAGE);
        let text = std::fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
        let written = rewritten(&text, &found, bugs.only.is_empty())?;
        std::fs::write(&page, written).with_context(|| format!("cannot write {PAGE}"))?;
    }
    let rare: Vec<String> = found
        .iter()
        .filter(|(_, found)| found.total < LEAST)
        .map(|(job, found)| format!("{} ({}): {}", job.name, job.shown, found.total))
        .collect();
    if !rare.is_empty() {
        bail!("fewer than {LEAST} of {SEEDS} seeds find: {}", rare.join("; "));
    }
    Ok(())
}

/// What `ordain sim bugs` lists, one job a setting.
fn jobs(listed: &Value) -> Vec<Job> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(String::from).collect()
    };
    let mut jobs = Vec::new();
    for (bug, listed) in listed.as_array().into_iter().flatten().enumerate() {
        let text = |key: &str| listed[key].as_str().unwrap_or_default().to_string();
        for (number, setting) in listed["settings"].as_array().into_iter().flatten().enumerate() {
            jobs.push(Job {
                place: (bug, number),
                name: text("name"),
                mistake: text("mistake"),
                invariant: text("invariant"),
                shown: setting["shown"].as_str().unwrap_or_default().to_string(),
                stops: setting["stops"].as_str().map(String::from),
                flags: texts(&setting["flags"]),
                kinds: texts(&setting["kinds"]),
            });
        }
    }
    jobs
}

/// Runs the seeds of all jobs, two processes at a time, and prints each as it ends.
fn look(simulator: &Simulator<'_>, jobs: Vec<Job>, from: u64) -> anyhow::Result<Vec<(Job, Found)>> {
    let mut found = two_at_a_time(jobs, |job| {
        let started = Instant::now();
        let found = seeds(simulator, job, from)?;
        let Found { total, first, by_kind } = &found;
        let first = first.map_or(String::new(), |seed| format!(", first {seed}"));
        let took = started.elapsed().as_secs_f64();
        println!("{:<26} {total:>2} of {SEEDS} in {took:5.1} s: {} {by_kind:?}{first}", job.name, job.shown);
        Ok(found)
    })?;
    found.sort_by_key(|(job, _)| job.place);
    Ok(found)
}

/// Runs the seeds of a job.
fn seeds(simulator: &Simulator<'_>, job: &Job, from: u64) -> anyhow::Result<Found> {
    let reports =
        simulator.seeds(&format!("{}-{}", job.name, job.place.1), &job.flags, from..from + SEEDS)?;
    let mut found = Found::default();
    for report in &reports {
        let kind = report["kind"].as_str().unwrap_or_default();
        if job.kinds.iter().any(|counted| counted == kind) {
            found.note(report["seed"].as_u64().unwrap_or_default(), kind);
        }
    }
    Ok(found)
}

/// The page with the rows of what was found in the place of the old ones of the same bugs, or of all.
fn rewritten(page: &str, found: &[(Job, Found)], is_all: bool) -> anyhow::Result<String> {
    let missing = || format!("{PAGE} has no lines `{BEGIN}` and `{END}`");
    let (before, rest) = page.split_once(BEGIN).with_context(missing)?;
    let (old, after) = rest.split_once(END).with_context(missing)?;
    let is_row = |line: &&str| line.starts_with("| `");
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut last = String::new();
    for line in old.lines().filter(|_| !is_all).filter(|line| is_row(line) || line.starts_with("| |")) {
        if is_row(&line) {
            last = line.split('`').nth(1).unwrap_or_default().to_string();
        }
        rows.push((last.clone(), line.to_string()));
    }
    let mut new: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (job, found) in found {
        new.entry(&job.name).or_default().push(row(job, found));
    }
    let mut names: Vec<String> = rows.iter().map(|(name, _)| name.clone()).collect();
    names.extend(found.iter().map(|(job, _)| job.name.clone()));
    let mut seen = std::collections::BTreeSet::new();
    names.retain(|name| seen.insert(name.clone()));
    let mut table = String::new();
    for name in &names {
        let lines: Vec<&String> = match new.get(name.as_str()) {
            Some(lines) => lines.iter().collect(),
            None => rows.iter().filter(|(of, _)| of == name).map(|(_, line)| line).collect(),
        };
        lines.into_iter().for_each(|line| table += &format!("{line}\n"));
    }
    Ok(format!("{before}{BEGIN}\n{HEAD}{table}{END}{after}"))
}

/// A row of the table. Further settings of a bug leave its own cells empty.
fn row(job: &Job, found: &Found) -> String {
    let is_first = job.place.1 == 0;
    let own = match is_first {
        true => format!("`{}` | {} | {}", job.name, job.mistake, job.invariant),
        false => " | |".to_string(),
    };
    let kinds: Vec<String> = found.by_kind.iter().map(|(kind, seeds)| format!("{kind} {seeds}")).collect();
    let stops = job.stops.as_ref().map_or(String::new(), |why| format!(" (a stop counts: {why})"));
    let first = found.first.map_or("-".to_string(), |seed| seed.to_string());
    let start = if is_first { "| " } else { "|" };
    let total = format!("{} of {SEEDS}", found.total);
    format!("{start}{own} | `{}`{stops} | {} | {total} | {first} |", job.shown, kinds.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Bugs, String> {
        Bugs::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    fn found(name: &str, setting: usize, seeds: &[u64]) -> (Job, Found) {
        let job = Job {
            place: (0, setting),
            name: name.to_string(),
            mistake: "a mistake".to_string(),
            invariant: "ONCE".to_string(),
            shown: "--engine e".to_string(),
            stops: None,
            flags: Vec::new(),
            kinds: Vec::new(),
        };
        let mut found = Found::default();
        seeds.iter().for_each(|seed| found.note(*seed, "stuck"));
        (job, found)
    }

    #[test]
    fn arguments_are_read() {
        let only = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        assert_eq!(parse("--only a --only b"), Ok(Bugs { only: only(&["a", "b"]), from: 0 }));
        assert_eq!(parse("--from 60"), Ok(Bugs { only: Vec::new(), from: 60 }));
        assert!(parse("--from x").unwrap_err().contains("`x`"));
        assert!(parse("all").unwrap_err().contains("`all`"));
    }

    #[test]
    fn rows_of_bugs_that_were_not_looked_for_stay() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let both = [found("a", 0, &[3, 4]), found("a", 1, &[]), found("b", 0, &[9])];
        let text = rewritten(&page, &both, true).unwrap();
        let a = "| `a` | a mistake | ONCE | `--engine e` | stuck 2 | 2 of 60 | 3 |\n| | | | `--engine e` |  | 0 of 60 | - |\n";
        let b = "| `b` | a mistake | ONCE | `--engine e` | stuck 1 | 1 of 60 | 9 |\n";
        assert_eq!(text, format!("before\n{BEGIN}\n{HEAD}{a}{b}{END}\nafter\n"));
        let text = rewritten(&text, &[found("b", 0, &[5, 6])], false).unwrap();
        let b = "| `b` | a mistake | ONCE | `--engine e` | stuck 2 | 2 of 60 | 5 |\n";
        assert_eq!(text, format!("before\n{BEGIN}\n{HEAD}{a}{b}{END}\nafter\n"));
        assert!(rewritten("nothing", &[], true).is_err());
    }
}
