//! `cargo xtask tidy`: what the compiler does not check.
//!
//! Each rule is a small function from files to findings; [`rules`] has those that look at one file, [`links`] the one
//! that reads them all. A finding has the place, what is there, and what to do about it. Rules read what git tracks and at
//! what it would track, so that a new file is held to them before it is committed.

mod links;
mod rules;
mod source;

use std::fmt;

use anyhow::bail;

use crate::workspace::{self, Workspace};
use source::SourceFile;

/// Something to mend.
#[derive(Debug, PartialEq)]
struct Finding {
    path: String,
    /// From 1; none where the whole file is meant.
    line: Option<usize>,
    /// What is there and what to do about it.
    what: String,
}

impl Finding {
    fn at(file: &SourceFile, line: usize, what: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line: Some(line), what: what.into() }
    }

    fn on(file: &SourceFile, what: impl Into<String>) -> Self {
        Self { path: file.path.clone(), line: None, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: {}", self.path, self.what),
            None => write!(f, "{}: {}", self.path, self.what),
        }
    }
}

/// Checks the repository; prints every finding.
pub(crate) fn run(workspace: &Workspace) -> anyhow::Result<()> {
    let files = read_all(workspace)?;
    let findings: Vec<Finding> = files
        .iter()
        .flat_map(rules::check)
        .chain(rules::check_allowances(&files))
        .chain(links::check(&files))
        .collect();
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        bail!("tidy: {} findings in {} files", findings.len(), files.len());
    }
    println!("tidy: {} files, nothing to mend", files.len());
    Ok(())
}

fn read_all(workspace: &Workspace) -> anyhow::Result<Vec<SourceFile>> {
    let mut git = workspace.command("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = workspace::output(git)?;
    let root = workspace.path("");
    listed
        .split_terminator('\0')
        // git lists a file until its deletion is staged.
        .filter(|path| root.join(path).is_file())
        .map(|path| SourceFile::read(&root, path))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_say_where() {
        let file = SourceFile::new("a/b.rs", "");
        assert_eq!(Finding::at(&file, 7, "no").to_string(), "a/b.rs:7: no");
        assert_eq!(Finding::on(&file, "no").to_string(), "a/b.rs: no");
    }
}
