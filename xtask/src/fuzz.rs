//! `cargo xtask fuzz`: runs every fuzz target on new seeds for a given time.
//!
//! A target is a test whose name begins with `fuzz_` (see the crate `fuzz`). Targets are built as tests are: with little
//! optimisation, with debug assertions and checked arithmetic, because the faults that these find count too. Each target
//! records the seed under way in a directory of its own; a target that ends its process is found there.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, bail};

use crate::workspace::{self, Workspace};

/// Arguments of `fuzz`.
#[derive(Debug, PartialEq)]
pub(crate) struct Fuzz {
    /// The part of a target's name that chooses it; all without one.
    filter: String,
    seconds: u64,
    from: Option<u64>,
}

impl Fuzz {
    /// All targets, each for so long.
    pub(crate) fn for_seconds(seconds: u64) -> Self {
        Self { filter: "fuzz_".to_string(), seconds, from: None }
    }

    /// Reads the arguments after `fuzz`; the error names what is wrong with them.
    pub(crate) fn parse(args: &[String]) -> Result<Self, String> {
        let mut fuzz = Self::for_seconds(60);
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--target" => fuzz.filter = format!("fuzz_{}", value()?.trim_start_matches("fuzz_")),
                "--seconds" => fuzz.seconds = number(arg, &value()?)?,
                "--minutes" => fuzz.seconds = number(arg, &value()?)?.saturating_mul(60),
                "--from" => fuzz.from = Some(number(arg, &value()?)?),
                other => return Err(format!("fuzz takes no `{other}`")),
            }
        }
        Ok(fuzz)
    }

    /// A range of seeds that shorter runs have not drawn from: the time, coarsely, unless one was named.
    fn first_seed(&self) -> u64 {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        self.from.unwrap_or_else(|| now.map_or(0, |now| now.as_secs()) << 20)
    }
}

fn number(flag: &str, text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{flag} takes a whole number, not `{text}`"))
}

/// Runs the targets. The error names each that failed, with the seed that reproduces it.
pub(crate) fn run(workspace: &Workspace, fuzz: &Fuzz) -> anyhow::Result<()> {
    let record = std::env::temp_dir().join(format!("ordain-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&record).with_context(|| format!("cannot create {}", record.display()))?;
    let from = fuzz.first_seed();
    let mut cargo = workspace.cargo();
    // No target is an example in a comment, and to look for those takes longer than a target does.
    cargo
        .args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
        .args(["--", &fuzz.filter, "--nocapture"])
        .env("ORDAIN_FUZZ_SECONDS", fuzz.seconds.to_string())
        .env("ORDAIN_FUZZ_FROM", from.to_string())
        .env("ORDAIN_FUZZ_RECORD", &record);
    let outcome = workspace::run(cargo);
    let records = read_records(&record);
    // Records are small and of no use once they are read.
    let _ = std::fs::remove_dir_all(&record);
    let (text, failed) = summary(&records?);
    print!("{text}");
    outcome?;
    match failed {
        0 if text.is_empty() => bail!("no fuzz target has `{}` in its name", fuzz.filter),
        0 => Ok(()),
        failed => bail!("{failed} fuzz targets did not end; their seeds are above"),
    }
}

/// Each target and what it recorded last, by name.
fn read_records(directory: &Path) -> anyhow::Result<Vec<(String, String)>> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(directory).context("cannot read the records of the targets")? {
        let entry = entry?;
        let text = std::fs::read_to_string(entry.path())?;
        records.push((entry.file_name().to_string_lossy().into_owned(), text));
    }
    records.sort();
    Ok(records)
}

/// A line a target, and how many did not come to their end.
fn summary(records: &[(String, String)]) -> (String, usize) {
    let (mut text, mut failed) = (String::new(), 0);
    for (target, record) in records {
        // Writing into a string cannot fail.
        match record.trim().strip_prefix("done ") {
            Some(seeds) => _ = writeln!(text, "fuzz: {target}: {seeds} seeds"),
            None => {
                failed += 1;
                _ = writeln!(text, "fuzz: {target} FAILED: ORDAIN_FUZZ_SEED={} reproduces it", record.trim());
            }
        }
    }
    (text, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Fuzz, String> {
        Fuzz::parse(&line.split_whitespace().map(String::from).collect::<Vec<_>>())
    }

    #[test]
    fn arguments_are_read() {
        let fuzz = parse("--minutes 5 --target sessions --from 7").unwrap();
        assert_eq!(fuzz, Fuzz { filter: "fuzz_sessions".to_string(), seconds: 300, from: Some(7) });
        assert!(parse("--minutes soon").unwrap_err().contains("whole number"));
        assert!(parse("--turbo").unwrap_err().contains("--turbo"));
    }

    #[test]
    fn a_target_that_did_not_end_is_named_with_its_seed() {
        let records =
            [("frames", "done 12\n"), ("sessions", "9\n")].map(|(a, b)| (a.to_string(), b.to_string()));
        let (text, failed) = summary(&records);
        assert_eq!(failed, 1);
        assert_eq!(text, "fuzz: frames: 12 seeds\nfuzz: sessions FAILED: ORDAIN_FUZZ_SEED=9 reproduces it\n");
    }
}
