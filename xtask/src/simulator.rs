//! The release build of `ordain`, with whose simulator the tools of this directory run many seeds.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Context, bail};
use serde_json::Value;

use crate::workspace::{self, Workspace};

/// The program, and a directory for the reports that it writes, which is removed in the end.
pub(crate) struct Simulator<'a> {
    workspace: &'a Workspace,
    program: PathBuf,
    reports: PathBuf,
}

impl<'a> Simulator<'a> {
    /// Builds the program in release.
    pub(crate) fn build(workspace: &'a Workspace) -> anyhow::Result<Self> {
        let mut cargo = workspace.cargo();
        cargo.args(["build", "--release", "--package", "ordain"]);
        workspace::run(cargo)?;
        let mut cargo = workspace.cargo();
        cargo.args(["metadata", "--format-version", "1", "--no-deps"]);
        let metadata: Value = serde_json::from_str(&workspace::output(cargo)?)?;
        let target = metadata["target_directory"].as_str().context("cargo names no target directory")?;
        Self::of(workspace, Path::new(target).join("release/ordain"))
    }

    /// Takes a program that is built already.
    pub(crate) fn of(workspace: &'a Workspace, program: PathBuf) -> anyhow::Result<Self> {
        let reports = std::env::temp_dir().join(format!("ordain-seeds-{}", std::process::id()));
        std::fs::create_dir_all(&reports).with_context(|| format!("cannot create {}", reports.display()))?;
        Ok(Self { workspace, program, reports })
    }

    /// What `ordain sim WHAT` lists, as JSON.
    pub(crate) fn list(&self, what: &str) -> anyhow::Result<Value> {
        let list = self.reports.join(format!("{what}.json"));
        let mut command = self.workspace.command(&self.program);
        command.args(["sim", what, "--json"]).arg(&list);
        workspace::output(command)?;
        Ok(serde_json::from_str(&std::fs::read_to_string(&list)?)?)
    }

    /// Runs seeds and returns their reports. The name is one that no other range has meanwhile.
    pub(crate) fn seeds(
        &self,
        name: &str,
        flags: &[String],
        seeds: Range<u64>,
    ) -> anyhow::Result<Vec<Value>> {
        let reports = self.reports.join(format!("{name}.json"));
        // Of an earlier range of that name.
        let _ = std::fs::remove_file(&reports);
        let mut command = self.workspace.command(&self.program);
        command.arg("sim").args(flags).args([
            "--seeds",
            &format!("{}..{}", seeds.start, seeds.end),
            "--json",
        ]);
        command.arg(&reports);
        let output = command.output().with_context(|| format!("cannot start {}", self.program.display()))?;
        // Exit 1 with reports: a seed was unsound.
        let text = std::fs::read_to_string(&reports).with_context(|| {
            format!("{name} was not run: {}", String::from_utf8_lossy(&output.stderr).trim())
        })?;
        Ok(serde_json::from_str(&text)?)
    }
}

impl Drop for Simulator<'_> {
    fn drop(&mut self) {
        // Reports are small and of no use once they are read.
        let _ = std::fs::remove_dir_all(&self.reports);
    }
}

/// Does all jobs, two at a time, and returns them with their results, in the order in which they ended.
pub(crate) fn two_at_a_time<J: Send, T: Send>(
    jobs: Vec<J>,
    work: impl Fn(&J) -> anyhow::Result<T> + Sync,
) -> anyhow::Result<Vec<(J, T)>> {
    let waiting = Mutex::new(jobs.into_iter().rev().collect::<Vec<J>>());
    let done = Mutex::new(Vec::new());
    let worker = || -> anyhow::Result<()> {
        loop {
            let next = waiting.lock().ok().and_then(|mut waiting| waiting.pop());
            let Some(job) = next else { return Ok(()) };
            let result = work(&job)?;
            if let Ok(mut done) = done.lock() {
                done.push((job, result));
            }
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(worker);
        let own = worker();
        own.and(other.join().unwrap_or_else(|_| bail!("a thread that runs seeds panicked")))
    })?;
    Ok(done.into_inner().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_is_done_once_and_an_error_is_told() {
        let mut done = two_at_a_time((0..50).collect(), |job| Ok(job * 2)).unwrap();
        done.sort_unstable();
        assert_eq!(done, (0..50).map(|job| (job, job * 2)).collect::<Vec<_>>());
        let failed = two_at_a_time(vec![1, 2, 3], |job| if *job == 2 { bail!("two") } else { Ok(()) });
        assert_eq!(failed.unwrap_err().to_string(), "two");
    }
}
