//! `ordain checkpoint`: look at checkpoints, of a node or in a store, and verify them; restoring is in `restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ordain_checkpoint::{Found, Header, list, read_header, verify};
use ordain_model::Epoch;
use ordain_role::Directory;
use ordain_runtime::FsDirectory;
use serde_json::{Value, json};

use crate::object_store::StoredCluster;
use crate::restore::{self, RestoreArgs};
use crate::row::{self, Inspection, Row};

/// The subcommands of `ordain checkpoint`.
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// Print which there are: epoch, whether it is complete, bytes, of what it is. Reads their heads alone.
    List(Which),
    /// Read all of each, or of one, and check it; change nothing. Exit 1 if a complete one is damaged.
    Verify {
        #[command(flatten)]
        which: Which,
        /// Only the one of this epoch.
        #[arg(long, value_name = "EPOCH")]
        epoch: Option<u64>,
    },
    /// Make new data directories: of a node from that of a stopped one, or from a copy; of a node or a whole cluster (--config)
    /// from a checkpoint store, or from directories of all partitions. Also as it was at the end of an epoch.
    Restore(RestoreArgs),
}

/// Whose checkpoints.
#[derive(Debug, Args)]
pub struct Which {
    /// The node's data directory. The node may run: what it is making meanwhile is listed as unfinished.
    #[arg(long, env = "ORDAIN_DATA_DIR", default_value = "ordain-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// Look into this checkpoint store instead.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Of several clusters in the store, this one.
    #[arg(long, value_name = "NAME", requires = "store")]
    cluster: Option<String>,
    /// Write what was found to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Runs the command. True: what was inspected is sound.
///
/// # Errors
/// The directory cannot be read, or cannot be restored.
pub fn run(command: &CheckpointCommand) -> anyhow::Result<bool> {
    match command {
        CheckpointCommand::List(which) => show(which, None, false),
        CheckpointCommand::Verify { which, epoch } => show(which, epoch.map(Epoch), true),
        CheckpointCommand::Restore(args) => restore::run(args),
    }
}

fn show(which: &Which, only: Option<Epoch>, reads: bool) -> anyhow::Result<bool> {
    if let Some(url) = &which.store {
        let stored = StoredCluster::open(url, which.cluster.as_deref())?;
        return stored.show(only.map(|epoch| epoch.0), reads, which.json.as_deref());
    }
    // Opening would make a directory where there is none.
    anyhow::ensure!(
        which.data_dir.is_dir(),
        "there is no data directory {}: name it with --data-dir",
        which.data_dir.display()
    );
    let directory = FsDirectory::open(&which.data_dir)?;
    let mut found = list(&directory)?;
    if let Some(epoch) = only {
        found.retain(|found| found.epoch == epoch);
        anyhow::ensure!(!found.is_empty(), "there is no checkpoint of epoch {epoch}");
    }
    row::show(found.into_iter().map(|found| Shown::new(&directory, found, reads)), which.json.as_deref())
}

/// A checkpoint of a directory, as it is listed.
struct Shown {
    found: Found,
    header: Option<Header>,
    inspection: Inspection,
}

impl Shown {
    fn new(directory: &dyn Directory, found: Found, reads: bool) -> Shown {
        let inspection = if reads {
            verify(directory, found.epoch).map(|(header, totals)| (header, Some(totals)))
        } else {
            read_header(directory, found.epoch).map(|header| (header, None))
        };
        let (header, totals, reason) = match inspection {
            Ok((header, totals)) => (Some(header), totals, None),
            Err(reason) => (None, None, Some(reason.to_string())),
        };
        let inspection = Inspection { is_complete: found.is_complete(), totals, reason };
        Shown { found, header, inspection }
    }
}

impl Row for Shown {
    fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    fn json(&self) -> Value {
        json!({
            "epoch": self.found.epoch.0,
            "bytes": self.found.bytes,
            "completed_ms": self.found.seal.map(|seal| seal.at.0),
            "partition": self.header.as_ref().map(|header| header.partition.0),
            "partitions": self.header.as_ref().map(|header| header.partitions),
            "layout": self.header.as_ref().map(|header| header.layout),
        })
    }
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shown { found, header, inspection } = self;
        write!(f, "epoch {}  {}", found.epoch, inspection.standing())?;
        if let Some(bytes) = found.bytes {
            write!(f, "  {bytes} bytes")?;
        }
        if let Some(header) = header {
            write!(f, "  partition {} of {}", header.partition, header.partitions)?;
        }
        write!(f, "{inspection}")
    }
}
