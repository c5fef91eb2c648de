//! `cargo xtask ci`: everything that must hold before a change goes in, cheapest answer first.
//!
//! Stops at the first step that fails. A fresh machine runs `.ci/run`, which installs what the smoke test needs and
//! then calls this.

use std::num::NonZero;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::workspace::{self, Workspace};
use crate::{deps, fuzz, tidy};

/// One thing to check: a name and how.
struct Step {
    name: &'static str,
    check: fn(&Workspace) -> anyhow::Result<Outcome>,
}

/// How a step ended that did not fail.
enum Outcome {
    Passed,
    /// Not run, for this reason.
    Skipped(&'static str),
}

const STEPS: &[Step] = &[
    Step { name: "format", check: |w| cargo(w, "fmt --all --check") },
    Step { name: "clippy", check: |w| cargo(w, "clippy --workspace --all-targets --locked -- -D warnings") },
    Step { name: "docs", check: docs },
    Step { name: "deps", check: |w| deps::run(w).map(|()| Outcome::Passed) },
    Step { name: "licences and advisories", check: deny },
    Step { name: "tidy", check: |w| tidy::run(w).map(|()| Outcome::Passed) },
    Step { name: "tests, by the README's command", check: readme_tests },
    Step { name: "fuzz, some seconds a target", check: fuzz },
    Step { name: "smoke", check: |w| passed(w.command(w.path(".ci/smoke"))) },
];

/// Names the environment variable with the number of tests of a program that run at a time.
const THREADS: &str = "RUST_TEST_THREADS";
/// Tests at a time for each core: those of processes wait half of the time, for elections, timeouts and disks. With four, a node
/// may get no core for so long that others give it up.
const TESTS_A_CORE: usize = 2;

/// Runs the steps in order, with the time that each took.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let mut summary = Vec::new();
    let whole = Instant::now();
    for (index, step) in STEPS.iter().enumerate() {
        println!("\n=== [{}/{}] {}", index + 1, STEPS.len(), step.name);
        let started = Instant::now();
        let outcome = (step.check)(workspace);
        let took = seconds(started.elapsed());
        let line = match &outcome {
            Ok(Outcome::Passed) => format!("ok       {took}  {}", step.name),
            Ok(Outcome::Skipped(why)) => format!("skipped  {took}  {} ({why})", step.name),
            Err(_) => format!("FAILED   {took}  {}", step.name),
        };
        println!("--- {line}");
        summary.push(line);
        if outcome.is_err() {
            print_summary(&summary, whole);
        }
        outcome.with_context(|| format!("ci step `{}`", step.name))?;
    }
    print_summary(&summary, whole);
    Ok(())
}

fn print_summary(lines: &[String], whole: Instant) {
    println!("\n=== ci, in {}", seconds(whole.elapsed()).trim_start());
    for line in lines {
        println!("{line}");
    }
}

fn seconds(duration: Duration) -> String {
    format!("{:7.1} s", duration.as_secs_f64())
}

fn passed(command: Command) -> anyhow::Result<Outcome> {
    workspace::run(command).map(|()| Outcome::Passed)
}

fn cargo(workspace: &Workspace, args: &str) -> anyhow::Result<Outcome> {
    println!("cargo {args}");
    let mut cargo = workspace.cargo();
    cargo.args(args.split(' '));
    passed(cargo)
}

fn docs(workspace: &Workspace) -> anyhow::Result<Outcome> {
    let mut cargo = workspace.cargo();
    cargo.env("RUSTDOCFLAGS", "-D warnings").args(["doc", "--workspace", "--no-deps", "--locked"]);
    passed(cargo)
}

/// cargo-deny is not part of a Rust installation, so this step runs where someone has installed it.
fn deny(workspace: &Workspace) -> anyhow::Result<Outcome> {
    let mut version = workspace.cargo();
    version.args(["deny", "--version"]).stdout(Stdio::null()).stderr(Stdio::null());
    if !version.status().context("cannot start cargo")?.success() {
        return Ok(Outcome::Skipped("cargo-deny is not installed"));
    }
    cargo(workspace, "deny --workspace check")
}

/// New seeds in each run: what earlier runs drew is not drawn again.
fn fuzz(workspace: &Workspace) -> anyhow::Result<Outcome> {
    fuzz::run(workspace, &fuzz::Fuzz::for_seconds(10)).map(|()| Outcome::Passed)
}

/// Runs the very command that the README tells people to run, so that it cannot go stale.
fn readme_tests(workspace: &Workspace) -> anyhow::Result<Outcome> {
    let readme = std::fs::read_to_string(workspace.path("README.md")).context("cannot read README.md")?;
    let line = code_line(&readme, "cargo test")
        .context("README.md has no `cargo test` line in a code block: say there how to run the tests")?;
    println!("{line}");
    let mut shell = workspace.command("bash");
    shell.args(["-euc", line]);
    if std::env::var_os(THREADS).is_none() {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        shell.env(THREADS, (cores * TESTS_A_CORE).to_string());
    }
    passed(shell)
}

/// The first line in a fenced code block that is this command, without a prompt or a closing comment.
fn code_line<'a>(markdown: &'a str, command: &str) -> Option<&'a str> {
    let mut fenced = false;
    for line in markdown.lines().map(str::trim) {
        if line.starts_with("```") {
            fenced = !fenced;
        } else if fenced {
            let line = line.strip_prefix("$ ").unwrap_or(line);
            let line = line.split(" #").next().unwrap_or(line).trim_end();
            if line.strip_prefix(command).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')) {
                return Some(line);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_command_is_taken_from_a_code_block() {
        let readme = "Run cargo test here\n\ncargo test --prose\n\n```sh\ncargo build\n$ cargo test --workspace --locked  # all\n```\n";
        assert_eq!(code_line(readme, "cargo test"), Some("cargo test --workspace --locked"));
    }

    #[test]
    fn a_readme_without_the_command_is_noticed() {
        assert_eq!(code_line("# Ordain\n\n```\ncargo testing\ncargo run\n```\n", "cargo test"), None);
    }
}
