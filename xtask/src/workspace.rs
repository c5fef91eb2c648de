//! Where the workspace is, and how to run a program in it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

/// The repository that this tool was started in.
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// Finds the root from what cargo tells the programs it runs. It is asked when we run and not baked in when we
    /// are compiled, because clones may share a target directory.
    pub(crate) fn locate() -> anyhow::Result<Self> {
        let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR")
            .context("CARGO_MANIFEST_DIR is not set: start this tool as `cargo xtask`")?;
        let root = Path::new(&manifest_dir).parent().context("xtask has no parent directory")?;
        Ok(Self { root: root.to_path_buf() })
    }

    /// A path in the repository.
    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// A program that will run at the root.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// The cargo that started us.
    pub(crate) fn cargo(&self) -> Command {
        self.command(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }
}

/// Runs a program that talks to the terminal itself; failing is an error.
pub(crate) fn run(mut command: Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", line_of(&command)))?;
    if !status.success() {
        bail!("{} failed ({status})", line_of(&command));
    }
    Ok(())
}

/// Runs a program and returns what it printed; failing is an error that carries what it complained of.
pub(crate) fn output(mut command: Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("cannot start {}", line_of(&command)))?;
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", line_of(&command), output.status, complaint.trim());
    }
    String::from_utf8(output.stdout).with_context(|| format!("{} printed bad UTF-8", line_of(&command)))
}

/// The command line as one would type it.
fn line_of(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words: Vec<_> =
        std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    format!("`{}`", words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_named_with_its_complaint() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "echo no luck >&2; exit 3"]);
        let error = output(command).unwrap_err().to_string();
        assert!(error.starts_with("`sh -c echo no luck"), "{error}");
        assert!(error.ends_with("no luck"), "{error}");
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(Command::new("no-such-program")).unwrap_err().to_string();
        assert_eq!(error, "cannot start `no-such-program`");
    }
}
