//! Golden transcripts: what each script of an engine's folder `scripts` showed is what it shows.
//!
//! A script that shows something else is written, with what it shows now, beside the built tests, so that the
//! two can be compared and the new one taken over if it is right.

use std::path::PathBuf;

use crate::support::script;

#[test]
fn every_transcript_of_calvin_comes_true() {
    come_true("calvin", 8);
}

#[test]
fn every_transcript_of_the_papers_calvin_comes_true() {
    come_true("calvin_paper", 3);
}

/// Runs all scripts of an engine, of which there are at least so many.
fn come_true(engine: &str, least: usize) {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/{engine}/scripts"));
    let shown = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    #[allow(clippy::disallowed_methods, reason = "the scenarios are files")]
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= least);
    let mut failures = Vec::new();
    for path in files {
        #[allow(clippy::disallowed_methods, reason = "the scenarios are files")]
        let golden = std::fs::read_to_string(&path).unwrap();
        let now = script::run(&golden);
        if golden != now {
            let name = format!("{engine}-{}", path.file_name().unwrap().display());
            let line = golden.lines().zip(now.lines()).position(|(a, b)| a != b);
            let line = line.unwrap_or(golden.lines().count().min(now.lines().count()));
            failures.push(format!(
                "{}:{}: expected {:?}, shown {:?}",
                path.display(),
                line + 1,
                golden.lines().nth(line).unwrap_or(""),
                now.lines().nth(line).unwrap_or(""),
            ));
            #[allow(clippy::disallowed_methods, reason = "for comparison")]
            std::fs::write(shown.join(name), now).unwrap();
        }
    }
    assert!(failures.is_empty(), "\n{}\nshown: {}", failures.join("\n"), shown.display());
}
