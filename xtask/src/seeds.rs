//! `cargo xtask seeds`: simulate clusters with all faults over a range of seeds, in release.
//!
//! A shorthand for `cargo run --release -- sim --engine E --seeds A..B --faults all`. Other flags of `ordain sim` are
//! passed on, and a `--faults` among them replaces ours.

use std::process::Command;

use crate::workspace::{self, Workspace};

/// Which seeds to run, and how.
#[derive(Debug, PartialEq)]
pub(crate) struct Range {
    engine: String,
    from: u64,
    to: u64,
    passed_on: Vec<String>,
}

impl Range {
    /// Reads the arguments after `seeds`. The error names what is wrong with them.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let (mut engine, mut from, mut to, mut passed_on) = (None, None, None, Vec::new());
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--engine" => engine = Some(value()?),
                "--from" => from = Some(seed(arg, &value()?)?),
                "--to" => to = Some(seed(arg, &value()?)?),
                _ => passed_on.push(arg.clone()),
            }
        }
        let engine = engine.ok_or("seeds needs --engine NAME")?;
        let from = from.ok_or("seeds needs --from SEED")?;
        let to = to.ok_or("seeds needs --to SEED")?;
        if from >= to {
            return Err(format!("there is no seed in {from}..{to}: --to must be above --from"));
        }
        Ok(Self { engine, from, to, passed_on })
    }

    fn sim_args(&self) -> Vec<String> {
        let seeds = format!("{}..{}", self.from, self.to);
        let mut args: Vec<String> =
            ["sim", "--engine", &self.engine, "--seeds", &seeds].map(String::from).to_vec();
        let names_faults = |arg: &String| arg == "--faults" || arg.starts_with("--faults=");
        if !self.passed_on.iter().any(names_faults) {
            args.extend(["--faults", "all"].map(String::from));
        }
        args.extend(self.passed_on.iter().cloned());
        args
    }
}

fn seed(flag: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{flag} takes a whole number from 0 to {}, not `{text}`", u64::MAX))
}

/// Runs the seeds.
pub(crate) fn run(workspace: &Workspace, range: &Range) -> anyhow::Result<()> {
    let mut cargo: Command = workspace.cargo();
    cargo.args(["run", "--release", "--"]).args(range.sim_args());
    workspace::run(cargo)
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
        assert_eq!(range.sim_args().join(" "), "sim --engine qstore --seeds 1..100 --faults all --txns 50");

        let range = parse("--from 1 --to 9 --faults crash,disk --engine calvin --profile quiet").unwrap();
        let sim = "sim --engine calvin --seeds 1..9 --faults crash,disk --profile quiet";
        assert_eq!(range.sim_args().join(" "), sim);
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        assert_eq!(parse("--from 1 --to 2"), Err("seeds needs --engine NAME".to_string()));
        assert_eq!(parse("--engine calvin --from"), Err("--from needs a value".to_string()));
        assert!(parse("--engine calvin --from x --to 2").unwrap_err().contains("not `x`"));
        assert!(parse("--engine calvin --from 5 --to 5").unwrap_err().contains("no seed in 5..5"));
    }
}
