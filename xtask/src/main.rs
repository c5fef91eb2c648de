//! The project's habits as one tool: what CI runs is what you run.
//!
//! ```text
//! cargo xtask ci      everything that must hold before a change goes in
//! cargo xtask tidy    what the compiler does not check: see `tidy`
//! cargo xtask deps    arrows between our crates go down only: see `deps`
//! cargo xtask fuzz    every fuzz target on new seeds: see `fuzz`
//! cargo xtask seeds   simulated clusters with all faults over a range of seeds: see `seeds`
//! cargo xtask bugs    how often simulated runs find each planted bug: see `bugs`
//! ```
//!
//! Exit codes are those of `ordain`: 0 done, 1 what was asked failed, 2 wrong usage.

mod bugs;
mod ci;
mod deps;
mod fuzz;
mod seeds;
mod simulator;
mod tidy;
mod workspace;

use std::process::ExitCode;

use workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask <command>

  ci       format, clippy, docs, deps, tidy, tests and the smoke test, in that order
  deps     check the arrows between our crates against the allow-list in xtask/src/deps.rs
  tidy     check what the compiler does not: see xtask/src/tidy.rs
  fuzz     [--seconds S | --minutes M] [--target NAME] [--from SEED]: run each fuzz target for so long (60 s)
  seeds    --engine E --from A --to B [flags of `ordain sim`]: simulate seeds A..B with all faults;
           --every in place of the engine: those seeds of each configuration, with each profile
  bugs     [--only NAME]... [--from SEED] [--whole] [--binary PATH]: look for each planted bug with 20 to 60 seeds, and write
           the table of docs/testing.md
";

/// What the command line asks for.
#[derive(Debug, PartialEq)]
enum Command {
    Ci,
    Deps,
    Tidy,
    Fuzz(fuzz::Fuzz),
    Seeds(seeds::Range),
    Bugs(bugs::Bugs),
    Help,
}

impl Command {
    /// Reads the arguments after `cargo xtask`. The error names what is wrong with them.
    fn parse(args: &[String]) -> Result<Self, String> {
        let Some((name, rest)) = args.split_first() else {
            return Err("a command is needed".to_string());
        };
        let command = match name.as_str() {
            "ci" => Self::Ci,
            "deps" => Self::Deps,
            "tidy" => Self::Tidy,
            "fuzz" => return Ok(Self::Fuzz(fuzz::Fuzz::parse(rest)?)),
            "seeds" => return Ok(Self::Seeds(seeds::Range::parse(rest)?)),
            "bugs" => return Ok(Self::Bugs(bugs::Bugs::parse(rest)?)),
            "help" | "--help" | "-h" => Self::Help,
            other => return Err(format!("unknown command `{other}`")),
        };
        match rest.first() {
            Some(extra) => Err(format!("`{name}` takes no argument, and got `{extra}`")),
            None => Ok(command),
        }
    }

    fn run(&self) -> anyhow::Result<()> {
        let workspace = Workspace::locate()?;
        match self {
            Self::Ci => ci::run(&workspace),
            Self::Deps => deps::run(&workspace),
            Self::Tidy => tidy::run(&workspace),
            Self::Fuzz(fuzz) => fuzz::run(&workspace, fuzz),
            Self::Seeds(range) => seeds::run(&workspace, range),
            Self::Bugs(bugs) => bugs::run(&workspace, bugs),
            Self::Help => {
                print!("{USAGE}");
                Ok(())
            }
        }
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let command = match Command::parse(&args) {
        Ok(command) => command,
        Err(problem) => {
            eprintln!("xtask: {problem}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match command.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Command, String> {
        Command::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn commands_are_read() {
        assert_eq!(parse("ci"), Ok(Command::Ci));
        assert_eq!(parse("--help"), Ok(Command::Help));
        assert!(matches!(parse("seeds --engine calvin --from 1 --to 2"), Ok(Command::Seeds(_))));
    }

    #[test]
    fn wrong_usage_is_named() {
        assert_eq!(parse(""), Err("a command is needed".to_string()));
        assert_eq!(parse("tydi"), Err("unknown command `tydi`".to_string()));
        assert_eq!(parse("tidy now"), Err("`tidy` takes no argument, and got `now`".to_string()));
    }
}
