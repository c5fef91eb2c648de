//! What there is in a checkpoint store: clusters, their partitions, and the checkpoints of each.

use anyhow::{Context, ensure};
use ordain_archive::afar::{Afar, Kept, kept};
use ordain_archive::{Blocking, Environment, Location};
use ordain_checkpoint::{Totals, verify};
use serde_json::{Value, json};

/// A cluster in a store.
pub struct Shelf {
    pub archive: Blocking,
    pub cluster: String,
    pub partitions: Vec<Shelved>,
}

/// A partition of it.
pub struct Shelved {
    pub partition: u16,
    /// Where its objects are, below the store's URL.
    pub place: String,
    pub kept: Vec<Kept>,
}

impl Shelf {
    /// Looks at the cluster of this name, or at the only one there is.
    pub fn open(url: &str, cluster: Option<&str>) -> anyhow::Result<Shelf> {
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
        let mut numbers: Vec<u16> =
            archive.list(&cluster)?.1.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        let mut partitions = Vec::new();
        for partition in numbers {
            let place = format!("{cluster}/{partition}");
            let kept = kept(&archive, &place)?;
            partitions.push(Shelved { partition, place, kept });
        }
        Ok(Shelf { archive, cluster, partitions })
    }

    /// Prints what there is; reads all of it if it is asked to. True: what counts is sound.
    pub fn show(
        &self,
        only: Option<u64>,
        reads: bool,
        json: Option<&std::path::Path>,
    ) -> anyhow::Result<bool> {
        let mut rows = Vec::new();
        for shelved in &self.partitions {
            for kept in shelved.kept.iter().filter(|kept| only.is_none_or(|epoch| kept.epoch.0 == epoch)) {
                let row = self.row(shelved, kept, reads);
                println!("{row}");
                rows.push(row);
            }
        }
        ensure!(only.is_none() || !rows.is_empty(), "there is no checkpoint of that epoch");
        let complete = rows.iter().filter(|row| row.is_sealed).count();
        let sound = rows.iter().all(|row| row.reason.is_none() || !row.is_sealed);
        println!(
            "{} checkpoints, {complete} complete{}",
            rows.len(),
            if sound { "" } else { ", some damaged" }
        );
        if let Some(path) = json {
            let rows: Vec<Value> = rows.iter().map(Row::json).collect();
            let text = serde_json::to_string_pretty(&json!({ "checkpoints": rows, "sound": sound }))?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(sound)
    }

    fn row(&self, shelved: &Shelved, kept: &Kept, reads: bool) -> Row {
        let is_sealed = kept.sealed.is_some();
        let (mut reason, mut totals) = (kept.sound().err(), None);
        if reads && reason.is_none() {
            let afar = Afar::new(&self.archive, &shelved.place, std::iter::once(kept));
            match verify(&afar, kept.epoch) {
                Ok((_, found)) => totals = Some(found),
                Err(error) => reason = Some(error.to_string()),
            }
        }
        let (cluster, partition) = (self.cluster.clone(), shelved.partition);
        Row { cluster, partition, kept: kept.clone(), is_sealed, totals, reason }
    }
}

fn names(all: &[String]) -> String {
    if all.is_empty() { "none".to_owned() } else { format!("'{}'", all.join("', '")) }
}

/// What is known of one.
struct Row {
    cluster: String,
    partition: u16,
    kept: Kept,
    is_sealed: bool,
    /// If it was read and is sound.
    totals: Option<Totals>,
    /// Why it cannot be used.
    reason: Option<String>,
}

impl Row {
    fn standing(&self) -> &'static str {
        match (&self.reason, self.is_sealed) {
            (Some(_), true) => "damaged",
            (None, true) => "complete",
            (_, false) => "unfinished",
        }
    }

    fn json(&self) -> Value {
        let sealed = self.kept.sealed.as_ref().and_then(|sealed| sealed.as_ref().ok());
        json!({
            "cluster": self.cluster,
            "partition": self.partition,
            "node": self.kept.node.0,
            "epoch": self.kept.epoch.0,
            "standing": self.standing(),
            "bytes": self.kept.bytes,
            "completed_ms": sealed.map(|sealed| sealed.completed_ms),
            "engine": sealed.map(|sealed| &sealed.owner.engine),
            "records": self.totals.map(|totals| totals.records),
            "outcomes": self.totals.map(|totals| totals.outcomes),
            "digest": self.totals.map(|totals| totals.digest.to_string()),
            "reason": self.reason,
        })
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Row { cluster, partition, kept, .. } = self;
        write!(f, "{cluster}/{partition}  epoch {}  {}", kept.epoch, self.standing())?;
        if let Some(bytes) = kept.bytes {
            write!(f, "  {bytes} bytes")?;
        }
        write!(f, "  of node {}", kept.node.0)?;
        if let Some(Totals { records, outcomes, digest }) = &self.totals {
            write!(f, "  {records} records, {outcomes} outcomes, digest {digest}")?;
        }
        self.reason.iter().try_for_each(|reason| write!(f, "  {reason}"))
    }
}
