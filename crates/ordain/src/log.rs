//! `ordain log`: look at, verify and trim the input log of a stopped node.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Args, Subcommand};
use ordain_log::{Item, Kind, Report};
use ordain_model::{Batch, Epoch};
use ordain_node::procedures;
use ordain_runtime::{DirLock, FsDirectory};

/// What to do with a log.
#[derive(Debug, Subcommand)]
pub enum LogCommand {
    /// Print every entry: file, offset, epoch, transactions, bytes.
    Inspect(Which),
    /// Check every byte that was written, and that every batch can be executed; change nothing.
    Verify(Which),
    /// Remove the segments that hold nothing but epochs before one. Without a checkpoint that covers them the
    /// node cannot start any more, so this asks for --yes.
    Trim {
        #[command(flatten)]
        which: Which,
        /// Keep this epoch and all after it.
        #[arg(long, value_name = "EPOCH")]
        before: u64,
        /// Do it.
        #[arg(long)]
        yes: bool,
    },
}

/// Which log.
#[derive(Debug, Args)]
pub struct Which {
    /// The node's data directory.
    #[arg(long, env = "ORDAIN_DATA_DIR", default_value = "ordain-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Write what was found to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command. True: the log is sound.
///
/// # Errors
/// The log is damaged or cannot be read.
pub fn run(command: &LogCommand) -> anyhow::Result<bool> {
    match command {
        LogCommand::Inspect(which) => walk(which, true),
        LogCommand::Verify(which) => walk(which, false),
        LogCommand::Trim { which, before, yes } => {
            anyhow::ensure!(
                *yes,
                "trimming removes transactions for good, and there are no checkpoints yet that could stand for \
                 them: say --yes if you have a copy"
            );
            let (_lock, mut directory) = open(which)?;
            for file in ordain_log::trim(&mut directory, None, Epoch(*before))? {
                println!("removed {file}");
            }
            Ok(true)
        }
    }
}

fn open(which: &Which) -> anyhow::Result<(DirLock, FsDirectory)> {
    // Opening would make a directory where there is none.
    anyhow::ensure!(
        which.data_dir.is_dir(),
        "there is no data directory {}: name it with --data-dir",
        which.data_dir.display()
    );
    let lock = DirLock::acquire(&which.data_dir)?;
    Ok((lock, FsDirectory::open(&which.data_dir)?))
}

/// Prints until nobody reads any more.
struct Printer(bool);

impl Printer {
    fn line(&mut self, text: std::fmt::Arguments<'_>) {
        // `| head` closes the pipe when it has seen enough; that is no failure.
        self.0 = self.0 && writeln!(std::io::stdout(), "{text}").is_ok();
    }
}

fn walk(which: &Which, print: bool) -> anyhow::Result<bool> {
    let mut printer = Printer(true);
    let (_lock, directory) = open(which)?;
    let registry = procedures::all();
    let (mut transactions, mut rows) = (0u64, Vec::new());
    let report: Report = ordain_log::inspect(&directory, None, |item| {
        match item {
            Item::Segment(segment) if print => {
                printer.line(format_args!(
                    "{}  first epoch {}  {} bytes",
                    segment.file, segment.first_epoch, segment.len
                ));
            }
            Item::Entry(entry, payload) if entry.kind == Kind::Data => {
                let batch = Batch::decode(&registry, &payload).map_err(|e| e.to_string())?;
                let count = batch.txns().count();
                transactions += count as u64;
                if print {
                    printer.line(format_args!(
                        "  {:>12}  epoch {}  {count} transactions  {} bytes  time {}",
                        entry.offset,
                        entry.epoch,
                        payload.len(),
                        batch.now
                    ));
                    rows.push(serde_json::json!({
                        "file": entry.file,
                        "offset": entry.offset,
                        "epoch": entry.epoch.0,
                        "transactions": count,
                        "bytes": payload.len(),
                        "now_ms": batch.now.0,
                    }));
                }
            }
            Item::Segment(_) | Item::Entry(..) => {}
        }
        Ok(())
    })?;
    printer.line(format_args!(
        "sound: {} segments, {} batches, {transactions} transactions, {} bytes, last epoch {}",
        report.segments, report.entries, report.payload_bytes, report.last_epoch
    ));
    if let Some(torn) = &report.torn {
        printer.line(format_args!(
            "torn tail: {} at byte {}: {}; the next start cuts it",
            torn.file, torn.offset, torn.reason
        ));
    }
    if let Some(path) = &which.json {
        let json = serde_json::json!({
            "segments": report.segments,
            "batches": report.entries,
            "transactions": transactions,
            "bytes": report.payload_bytes,
            "last_epoch": report.last_epoch.0,
            "torn": report.torn.as_ref().map(|t| serde_json::json!({"file": t.file, "offset": t.offset, "reason": t.reason})),
            "entries": rows,
        });
        std::fs::write(path, serde_json::to_string_pretty(&json)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(true)
}
