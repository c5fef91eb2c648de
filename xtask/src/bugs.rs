//! `cargo xtask bugs`: each planted bug is looked for under each of its settings, and docs/testing.md says how often it is
//! found.
//!
//! `ordain sim bugs` knows the bugs, their settings and which violations count. This tool runs seeds of each setting in
//! release, two processes at a time: 20 at the least, and up to 60 until ten of them have found the bug. It fails if fewer than
//! ten of 60 find a bug whose setting is not known to be rare, or if the first seed that finds a bug is unsound without it,
//! too. The table stands between two markers, and is written anew by a run from seed 0; the rows of bugs and settings that the
//! run left out stay.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::simulator::{Simulator, two_at_a_time};
use crate::workspace::Workspace;

/// The most seeds of a setting, the fewest, and those of one process.
const SEEDS: u64 = 60;
const SEEDS_MIN: u64 = 20;
const SEEDS_A_RUN: u64 = 10;

/// The number of seeds that must find a bug, at the least.
const LEAST: usize = 10;

/// The kind of violation of a run that comes to nothing.
const STUCK: &str = "stuck";

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
    /// The engine whose settings are tried; all without one.
    engine: Option<String>,
    /// The first seed.
    from: u64,
    /// All 60 seeds of each setting are run, whatever the first ones find.
    is_whole: bool,
    /// A program that was built before, in place of one that is built now.
    binary: Option<PathBuf>,
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
                "--engine" => bugs.engine = Some(value()?),
                "--from" => {
                    let text = value()?;
                    bugs.from = text.parse().map_err(|_| format!("--from takes a seed, not `{text}`"))?;
                }
                "--whole" => bugs.is_whole = true,
                "--binary" => bugs.binary = Some(PathBuf::from(value()?)),
                other => return Err(format!("bugs takes no `{other}`")),
            }
        }
        Ok(bugs)
    }
}

/// A bug under one setting, or in a test.
#[derive(Clone, Debug)]
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
    /// The reason why few seeds find the bug, if it is known that few do.
    rare: Option<String>,
    /// The test that finds the bug in place of seeds.
    by_test: Option<String>,
    flags: Vec<String>,
    kinds: Vec<String>,
}

impl Job {
    /// The setting as the table shows it: flags, or a test.
    fn setting(&self) -> &str {
        self.by_test.as_ref().unwrap_or(&self.shown)
    }

    /// True if its setting runs an engine.
    fn is_of(&self, engine: &str) -> bool {
        self.flags.windows(2).any(|pair| pair[0] == "--engine" && pair[1] == engine)
    }
}

/// The seeds that found a bug, by the kind of violation.
#[derive(Debug, Default)]
struct Found {
    by_kind: BTreeMap<String, usize>,
    first: Option<u64>,
    total: usize,
    /// The number of seeds that were run.
    run: u64,
    /// The verdict on the first seed that finds the bug, without the bug, if that is unsound too.
    unsound: Option<String>,
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
    let simulator = match &bugs.binary {
        Some(program) => Simulator::of(workspace, program.clone())?,
        None => Simulator::build(workspace)?,
    };
    let mut jobs = jobs(&simulator.list("bugs")?);
    if let Some(unknown) = bugs.only.iter().find(|name| jobs.iter().all(|job| job.name != **name)) {
        bail!("there is no bug `{unknown}`: `ordain sim bugs` lists them");
    }
    if let Some(unknown) = bugs.engine.as_ref().filter(|engine| jobs.iter().all(|job| !job.is_of(engine))) {
        bail!("no bug is looked for with engine `{unknown}`");
    }
    let listed = jobs.clone();
    jobs.retain(|job| bugs.only.is_empty() || bugs.only.contains(&job.name));
    jobs.retain(|job| bugs.engine.as_ref().is_none_or(|engine| job.is_of(engine)));
    let found = look(&simulator, jobs, bugs)?;
    if bugs.from == 0 {
        let page = workspace.path(PAGE);
        let text = std::fs::read_to_string(&page).with_context(|| format!("cannot read {PAGE}"))?;
        let is_all = bugs.only.is_empty() && bugs.engine.is_none();
        let written = rewritten(&text, &listed, &found, is_all)?;
        std::fs::write(&page, written).with_context(|| format!("cannot write {PAGE}"))?;
    }
    let named = |which: &dyn Fn(&Job, &Found) -> Option<String>| -> Vec<String> {
        let named = found.iter().filter_map(|(job, found)| which(job, found).map(|what| (job, what)));
        named.map(|(job, what)| format!("{} ({}): {what}", job.name, job.shown)).collect()
    };
    let unsound = named(&|_, found| found.unsound.clone());
    if !unsound.is_empty() {
        bail!("unsound without the bug, too: {}", unsound.join("; "));
    }
    let is_rare =
        |job: &Job, found: &Found| job.rare.is_none() && job.by_test.is_none() && found.total < LEAST;
    let rare = named(&|job, found| is_rare(job, found).then(|| found.total.to_string()));
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
        let by_test = listed["by_test"].as_str().map(String::from);
        let job = Job {
            place: (bug, 0),
            name: text("name"),
            mistake: text("mistake"),
            invariant: text("invariant"),
            shown: String::new(),
            stops: None,
            rare: None,
            by_test,
            flags: Vec::new(),
            kinds: Vec::new(),
        };
        if job.by_test.is_some() {
            jobs.push(job.clone());
        }
        for (number, setting) in listed["settings"].as_array().into_iter().flatten().enumerate() {
            let text = |key: &str| setting[key].as_str().map(String::from);
            jobs.push(Job {
                place: (bug, number),
                shown: text("shown").unwrap_or_default(),
                stops: text("stops"),
                rare: text("rare"),
                by_test: None,
                flags: texts(&setting["flags"]),
                kinds: texts(&setting["kinds"]),
                ..job.clone()
            });
        }
    }
    jobs
}

/// Runs the seeds of all jobs, two processes at a time, and prints each as it ends.
fn look(simulator: &Simulator<'_>, jobs: Vec<Job>, bugs: &Bugs) -> anyhow::Result<Vec<(Job, Found)>> {
    let mut found = two_at_a_time(jobs, |job| {
        let started = Instant::now();
        let found = seeds(simulator, job, bugs)?;
        let Found { total, first, by_kind, run, .. } = &found;
        let first = first.map_or(String::new(), |seed| format!(", first {seed}"));
        let took = started.elapsed().as_secs_f64();
        println!("{:<26} {total:>2} of {run} in {took:5.1} s: {} {by_kind:?}{first}", job.name, job.shown);
        Ok(found)
    })?;
    found.sort_by_key(|(job, _)| (job.place, job.by_test.is_none()));
    Ok(found)
}

/// Runs seeds of a job until enough have found its bug, or all are run; and the first that found it without the bug.
fn seeds(simulator: &Simulator<'_>, job: &Job, bugs: &Bugs) -> anyhow::Result<Found> {
    let mut found = Found::default();
    if job.by_test.is_some() {
        return Ok(found);
    }
    let name = format!("{}-{}", job.name, job.place.1);
    let is_enough = |found: &Found| !bugs.is_whole && found.run >= SEEDS_MIN && found.total >= LEAST;
    while found.run < SEEDS && !is_enough(&found) {
        let from = bugs.from + found.run;
        for report in simulator.seeds(&name, &job.flags, from..from + SEEDS_A_RUN)? {
            let kind = report["kind"].as_str().unwrap_or_default();
            if job.kinds.iter().any(|counted| counted == kind) {
                let seed = report["seed"].as_u64().unwrap_or_default();
                // A run may come to nothing for its faults alone.
                let is_of_bug = kind != STUCK || without_bug(simulator, &name, job, seed)?.is_none();
                if is_of_bug {
                    found.note(seed, kind);
                }
            }
        }
        found.run += SEEDS_A_RUN;
    }
    if let Some(first) = found.first {
        let verdict = without_bug(simulator, &name, job, first)?;
        found.unsound = verdict.map(|verdict| format!("seed {first}: {verdict}"));
    }
    Ok(found)
}

/// The verdict on a seed of a job without the bug, if that is unsound.
fn without_bug(
    simulator: &Simulator<'_>,
    name: &str,
    job: &Job,
    seed: u64,
) -> anyhow::Result<Option<String>> {
    let reports = simulator.seeds(name, &flags_without_bug(&job.flags), seed..seed + 1)?;
    Ok(reports.first().and_then(|report| report["violation"].as_str()).map(String::from))
}

/// The flags of a setting without the bug.
fn flags_without_bug(flags: &[String]) -> Vec<String> {
    let mut words = flags.iter();
    let mut kept = Vec::new();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--plant" => _ = words.next(),
            _ => kept.push(word.clone()),
        }
    }
    kept
}

/// The page with the rows of what was found in the place of the old ones of the same bugs and settings, or of all.
fn rewritten(page: &str, listed: &[Job], found: &[(Job, Found)], is_all: bool) -> anyhow::Result<String> {
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
    for job in listed.iter().filter(|job| found.iter().any(|(other, _)| other.name == job.name)) {
        let is_it = |other: &Job| {
            (&other.name, other.place, other.by_test.is_some())
                == (&job.name, job.place, job.by_test.is_some())
        };
        let line = match found.iter().find(|(other, _)| is_it(other)) {
            Some((job, found)) => Some(row(job, found)),
            None => {
                let is_its = |line: &str| line.contains(&format!("| `{}`", job.setting()));
                rows.iter()
                    .find(|(name, line)| *name == job.name && is_its(line))
                    .map(|(_, line)| line.clone())
            }
        };
        new.entry(&job.name).or_default().extend(line);
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
    let why = |start: &str, why: &Option<String>| {
        why.as_ref().map_or(String::new(), |why| format!(" ({start}: {why})"))
    };
    let (stops, rare) = (why("a stop counts", &job.stops), why("rare", &job.rare));
    let start = if is_first { "| " } else { "|" };
    if let Some(test) = &job.by_test {
        return format!("{start}{own} | `{test}` | the test | always | - |");
    }
    let first = found.first.map_or("-".to_string(), |seed| seed.to_string());
    let total = format!("{} of {}", found.total, found.run);
    format!("{start}{own} | `{}`{stops}{rare} | {} | {total} | {first} |", job.shown, kinds.join(", "))
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
            shown: format!("--engine e{setting}"),
            stops: None,
            rare: None,
            by_test: None,
            flags: Vec::new(),
            kinds: Vec::new(),
        };
        let mut found = Found { run: 60, ..Found::default() };
        seeds.iter().for_each(|seed| found.note(*seed, "stuck"));
        (job, found)
    }

    #[test]
    fn arguments_are_read() {
        let only = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
        assert_eq!(parse("--only a --only b"), Ok(Bugs { only: only(&["a", "b"]), ..Bugs::default() }));
        assert_eq!(parse("--engine e"), Ok(Bugs { engine: Some("e".into()), ..Bugs::default() }));
        assert_eq!(parse("--from 60"), Ok(Bugs { from: 60, ..Bugs::default() }));
        assert_eq!(parse("--whole"), Ok(Bugs { is_whole: true, ..Bugs::default() }));
        assert_eq!(parse("--binary b"), Ok(Bugs { binary: Some("b".into()), ..Bugs::default() }));
        assert!(parse("--from x").unwrap_err().contains("`x`"));
        assert!(parse("all").unwrap_err().contains("`all`"));
    }

    #[test]
    fn a_row_says_why_few_seeds_find_a_bug_and_which_test_does() {
        let (mut job, found) = found("a", 0, &[7]);
        job.rare = Some("it takes two faults".to_string());
        let text = row(&job, &found);
        assert!(
            text.contains("`--engine e0` (rare: it takes two faults) | stuck 1 | 1 of 60 | 7 |"),
            "{text}"
        );
        job.by_test = Some("a test".to_string());
        assert!(row(&job, &found).ends_with("| `a test` | the test | always | - |"));
    }

    #[test]
    fn a_setting_without_its_bug_is_the_same_otherwise() {
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(flags_without_bug(&words("--a b --plant c --unasked")), words("--a b --unasked"));
    }

    #[test]
    fn rows_of_bugs_that_were_not_looked_for_stay() {
        let page = format!("before\n{BEGIN}\nold\n{END}\nafter\n");
        let both = [found("a", 0, &[3, 4]), found("a", 1, &[]), found("b", 0, &[9])];
        let listed: Vec<Job> = both.iter().map(|(job, _)| job.clone()).collect();
        let text = rewritten(&page, &listed, &both, true).unwrap();
        let a = "| `a` | a mistake | ONCE | `--engine e0` | stuck 2 | 2 of 60 | 3 |\n| | | | `--engine e1` |  | 0 of 60 | - |\n";
        let b = "| `b` | a mistake | ONCE | `--engine e0` | stuck 1 | 1 of 60 | 9 |\n";
        assert_eq!(text, format!("before\n{BEGIN}\n{HEAD}{a}{b}{END}\nafter\n"));
        let text = rewritten(&text, &listed, &[found("b", 0, &[5, 6])], false).unwrap();
        let b = "| `b` | a mistake | ONCE | `--engine e0` | stuck 2 | 2 of 60 | 5 |\n";
        assert_eq!(text, format!("before\n{BEGIN}\n{HEAD}{a}{b}{END}\nafter\n"));
        assert!(rewritten("nothing", &[], &[], true).is_err());
        // Of two settings one is looked at again.
        let text = rewritten(&text, &listed, &[found("a", 1, &[8])], false).unwrap();
        let a = a.replace("|  | 0 of 60 | - |", "| stuck 1 | 1 of 60 | 8 |");
        assert_eq!(text, format!("before\n{BEGIN}\n{HEAD}{a}{b}{END}\nafter\n"));
    }
}
