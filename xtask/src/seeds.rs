//! `cargo xtask seeds`: simulate clusters with all faults over a range of seeds, in release.
//!
//! With `--engine E` a shorthand for `cargo run --release -- sim --engine E --seeds A..B --faults all`. With `--every` the
//! seeds of each configuration that `ordain sim configurations` lists, with each profile, two processes at a time, and a
//! table of them. Other flags of `ordain sim` are passed on, and a `--faults` among them replaces ours.

use std::process::Command;
use std::time::Instant;

use anyhow::bail;
use serde_json::Value;

use crate::simulator::{Simulator, two_at_a_time};
use crate::workspace::{self, Workspace};

/// Which seeds to run, and how.
#[derive(Debug, PartialEq)]
pub(crate) struct Range {
    /// The engine; each configuration without one.
    engine: Option<String>,
    from: u64,
    to: u64,
    passed_on: Vec<String>,
}

impl Range {
    /// Reads the arguments after `seeds`. The error names what is wrong with them.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let (mut engine, mut every, mut from, mut to, mut passed_on) = (None, false, None, None, Vec::new());
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--engine" => engine = Some(value()?),
                "--every" => every = true,
                "--from" => from = Some(seed(arg, &value()?)?),
                "--to" => to = Some(seed(arg, &value()?)?),
                _ => passed_on.push(arg.clone()),
            }
        }
        if engine.is_some() == every {
            return Err("seeds needs either --engine NAME or --every".to_string());
        }
        let from = from.ok_or("seeds needs --from SEED")?;
        let to = to.ok_or("seeds needs --to SEED")?;
        if from >= to {
            return Err(format!("there is no seed in {from}..{to}: --to must be above --from"));
        }
        Ok(Self { engine, from, to, passed_on })
    }

    /// The flags that are passed on, with all faults unless they name others.
    fn flags(&self) -> Vec<String> {
        let names_faults = |arg: &String| arg == "--faults" || arg.starts_with("--faults=");
        let faults = if self.passed_on.iter().any(names_faults) { &[][..] } else { &["--faults", "all"] };
        faults.iter().map(|word| word.to_string()).chain(self.passed_on.iter().cloned()).collect()
    }

    /// The words of `ordain` for the seeds of an engine.
    fn sim_args(&self, engine: &str) -> Vec<String> {
        let seeds = format!("{}..{}", self.from, self.to);
        let own = ["sim", "--engine", engine, "--seeds", &seeds].map(String::from);
        own.into_iter().chain(self.flags()).collect()
    }
}

fn seed(flag: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{flag} takes a whole number from 0 to {}, not `{text}`", u64::MAX))
}

/// Runs the seeds.
pub(crate) fn run(workspace: &Workspace, range: &Range) -> anyhow::Result<()> {
    let Some(engine) = &range.engine else { return every(workspace, range) };
    let mut cargo: Command = workspace.cargo();
    cargo.args(["run", "--release", "--"]).args(range.sim_args(engine));
    workspace::run(cargo)
}

/// A configuration with a profile, as flags.
struct Job {
    configuration: String,
    profile: String,
}

/// What the seeds of a job came to.
struct Outcome {
    seeds: usize,
    transactions: u64,
    crashes: u64,
    faults: u64,
    /// The middle of the seeds' shares of requests whose end nobody knows, in percent.
    unknown: u64,
    unsound: Vec<(u64, String)>,
}

/// Runs the seeds of each configuration with each profile, and prints the table of them.
fn every(workspace: &Workspace, range: &Range) -> anyhow::Result<()> {
    let simulator = Simulator::build(workspace)?;
    let listed = simulator.list("configurations")?;
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(String::from).collect()
    };
    let profiles = texts(&listed["profiles"]);
    let of_profiles = |configuration: String| {
        let job =
            move |profile: &String| Job { configuration: configuration.clone(), profile: profile.clone() };
        profiles.iter().map(job).collect::<Vec<_>>()
    };
    let jobs: Vec<Job> = texts(&listed["configurations"]).into_iter().flat_map(of_profiles).collect();
    println!(
        "| configuration | profile | seeds | transactions | crashes | faults | unknown, median | unsound | s |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let done = two_at_a_time(jobs, |job| {
        let started = Instant::now();
        let outcome = outcome(&simulator, job, range)?;
        println!("{}", row(job, &outcome, started.elapsed().as_secs()));
        Ok(outcome)
    })?;
    let unsound: Vec<String> = done
        .iter()
        .flat_map(|(job, outcome)| {
            outcome.unsound.iter().map(move |(seed, violation)| (job, seed, violation))
        })
        .map(|(job, seed, violation)| {
            let flags = range.flags().join(" ");
            format!(
                "ordain sim {} --profile {} {flags} --seed {seed}: {violation}",
                job.configuration, job.profile
            )
        })
        .collect();
    if !unsound.is_empty() {
        bail!("{} seeds are unsound:\n{}", unsound.len(), unsound.join("\n"));
    }
    Ok(())
}

/// Runs the seeds of a job.
fn outcome(simulator: &Simulator<'_>, job: &Job, range: &Range) -> anyhow::Result<Outcome> {
    let words = job.configuration.split(' ').chain(["--profile", &job.profile]).map(String::from);
    let flags: Vec<String> = words.chain(range.flags()).collect();
    let name = format!("{}-{}", job.configuration.replace([' ', '-'], ""), job.profile);
    let reports = simulator.seeds(&name, &flags, range.from..range.to)?;
    let sum =
        |figure: &dyn Fn(&Value) -> &Value| reports.iter().filter_map(|report| figure(report).as_u64()).sum();
    let mut unknown: Vec<u64> =
        reports.iter().filter_map(|report| report["figures"]["unknown_percent"].as_u64()).collect();
    unknown.sort_unstable();
    let violation = |report: &Value| {
        Some((report["seed"].as_u64()?, report["violation"].as_str()?.lines().next()?.to_string()))
    };
    Ok(Outcome {
        seeds: reports.len(),
        transactions: sum(&|report| &report["transactions"]),
        crashes: sum(&|report| &report["crashes"]),
        faults: sum(&|report| &report["figures"]["faults"]),
        unknown: unknown.get(unknown.len() / 2).copied().unwrap_or_default(),
        unsound: reports.iter().filter_map(violation).collect(),
    })
}

/// A row of the table.
fn row(job: &Job, outcome: &Outcome, seconds: u64) -> String {
    let Outcome { seeds, transactions, crashes, faults, unknown, unsound } = outcome;
    let unsound = match &unsound[..] {
        [] => "none".to_string(),
        some => some.iter().map(|(seed, _)| seed.to_string()).collect::<Vec<_>>().join(", "),
    };
    format!(
        "| `{}` | {} | {seeds} | {transactions} | {crashes} | {faults} | {unknown}% | {unsound} | {seconds} |",
        job.configuration, job.profile
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Range, String> {
        Range::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn all_faults_unless_given_otherwise() {
        let range = parse("--engine qstore --from 1 --to 100 --txns 50").unwrap();
        assert_eq!(
            range.sim_args(range.engine.as_ref().unwrap()).join(" "),
            "sim --engine qstore --seeds 1..100 --faults all --txns 50"
        );

        let range = parse("--from 1 --to 9 --faults crash,disk --engine calvin --profile quiet").unwrap();
        let sim = "sim --engine calvin --seeds 1..9 --faults crash,disk --profile quiet";
        assert_eq!(range.sim_args(range.engine.as_ref().unwrap()).join(" "), sim);
    }

    #[test]
    fn every_configuration_takes_the_flags_too() {
        let range = parse("--every --from 3 --to 9 --operations all").unwrap();
        assert_eq!((range.engine.as_ref(), range.from, range.to), (None, 3, 9));
        assert_eq!(range.flags().join(" "), "--faults all --operations all");
    }

    #[test]
    fn a_row_names_the_seeds_that_are_unsound() {
        let job =
            Job { configuration: "--engine e --partitions 3".to_string(), profile: "quiet".to_string() };
        let unsound = vec![(7, "wrong".to_string()), (9, "stuck".to_string())];
        let outcome = Outcome { seeds: 10, transactions: 600, crashes: 5, faults: 10, unknown: 3, unsound };
        let cells = "`--engine e --partitions 3` | quiet | 10 | 600 | 5 | 10 | 3% | 7, 9 | 12";
        assert_eq!(row(&job, &outcome, 12), format!("| {cells} |"));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let engine = Err("seeds needs either --engine NAME or --every".to_string());
        assert_eq!(parse("--from 1 --to 2"), engine);
        assert_eq!(parse("--from 1 --to 2 --engine calvin --every"), engine);
        assert_eq!(parse("--engine calvin --from"), Err("--from needs a value".to_string()));
        assert!(parse("--engine calvin --from x --to 2").unwrap_err().contains("not `x`"));
        assert!(parse("--engine calvin --from 5 --to 5").unwrap_err().contains("no seed in 5..5"));
    }
}
