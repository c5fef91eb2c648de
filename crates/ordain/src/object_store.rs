//! What there is in a checkpoint store: clusters, their partitions, and the checkpoints of each.

use anyhow::ensure;
use ordain_archive::stored::{Kept, StoredCheckpoints};
use ordain_archive::{Blocking, Environment, Location, Reader as _};
use ordain_checkpoint::verify;
use ordain_node::restore::stored::{StoredPartition, partitions};
use serde_json::{Value, json};

use crate::row::{self, Inspection, Row};

/// A cluster in a store.
pub struct StoredCluster {
    pub archive: Blocking,
    pub cluster: String,
    pub partitions: Vec<StoredPartition>,
}

impl StoredCluster {
    /// Looks at the cluster of this name, or at the only one there is.
    pub fn open(url: &str, cluster: Option<&str>) -> anyhow::Result<StoredCluster> {
        let location: Location = url.parse()?;
        if let Location::Directory(path) = &location {
            ensure!(path.is_dir(), "there is no directory {}", path.display());
        }
        let archive = Blocking::open(&location, &Environment::of_process())?;
        let clusters = archive.list("")?.1;
        let cluster = match (cluster, clusters.as_slice()) {
            (Some(cluster), all) => {
                let has = all.iter().any(|name| name == cluster);
                ensure!(has, "there is no cluster '{cluster}' in {location}: it has {}", names(all));
                cluster.to_owned()
            }
            (None, [only]) => only.clone(),
            (None, []) => anyhow::bail!("there are no checkpoints in {location}"),
            (None, all) => anyhow::bail!("{location} has {}: say which with --cluster", names(all)),
        };
        let partitions = partitions(&archive, &cluster)?;
        Ok(StoredCluster { archive, cluster, partitions })
    }

    /// Prints what there is; reads all of it if it is asked to. True: what counts is sound.
    pub fn show(
        &self,
        only: Option<u64>,
        reads: bool,
        json: Option<&std::path::Path>,
    ) -> anyhow::Result<bool> {
        let is_wanted = |kept: &&Kept| only.is_none_or(|epoch| kept.epoch.0 == epoch);
        let all = self
            .partitions
            .iter()
            .flat_map(|partition| partition.kept.iter().map(move |kept| (partition, kept)));
        let mut wanted = all.filter(|(_, kept)| is_wanted(kept)).peekable();
        if let Some(epoch) = only {
            ensure!(wanted.peek().is_some(), "there is no checkpoint of epoch {epoch}");
        }
        row::show(wanted.map(|(partition, kept)| self.row(partition, kept, reads)), json)
    }

    fn row(&self, partition: &StoredPartition, kept: &Kept, reads: bool) -> Shown {
        let (mut reason, mut totals) = (kept.sound().err(), None);
        if reads && reason.is_none() {
            let stored = StoredCheckpoints::new(&self.archive, &partition.place, std::iter::once(kept));
            match verify(&stored, kept.epoch) {
                Ok((_, found)) => totals = Some(found),
                Err(error) => reason = Some(error.to_string()),
            }
        }
        let (cluster, partition) = (self.cluster.clone(), partition.partition);
        let inspection = Inspection { is_complete: kept.sealed.is_some(), totals, reason };
        Shown { cluster, partition, kept: kept.clone(), inspection }
    }
}

fn names(all: &[String]) -> String {
    if all.is_empty() { "none".to_owned() } else { format!("'{}'", all.join("', '")) }
}

/// A checkpoint of a store, as it is listed.
struct Shown {
    cluster: String,
    partition: u16,
    kept: Kept,
    inspection: Inspection,
}

impl Row for Shown {
    fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    fn json(&self) -> Value {
        let sealed = self.kept.sealed.as_ref().and_then(|sealed| sealed.as_ref().ok());
        json!({
            "cluster": self.cluster,
            "partition": self.partition,
            "node": self.kept.node.0,
            "epoch": self.kept.epoch.0,
            "bytes": self.kept.bytes,
            "completed_ms": sealed.map(|sealed| sealed.completed_ms),
            "engine": sealed.map(|sealed| &sealed.owner.engine),
        })
    }
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Shown { cluster, partition, kept, inspection } = self;
        write!(f, "{cluster}/{partition}  epoch {}  {}", kept.epoch, inspection.standing())?;
        if let Some(bytes) = kept.bytes {
            write!(f, "  {bytes} bytes")?;
        }
        write!(f, "  of node {}{inspection}", kept.node.0)
    }
}
