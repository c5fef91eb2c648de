//! `ordain log abort`: a transaction that ends the process which executes it is aborted by its place in the order, in the
//! data directory of every node of this machine that is named.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Args;
use ordain_model::serial::key_of;
use ordain_model::{Chunk, Gsn, Registry, Txn};
use ordain_node::aborts::{Aborts, gsn};
use ordain_node::cluster::{ClusterConfig, ClusterFile};
use ordain_node::identity::Identity;
use ordain_runtime::{DirLock, FsDirectory};

/// The flags of `ordain log abort`.
#[derive(Debug, Args)]
pub struct AbortArgs {
    /// The transaction, as `ordain log inspect` names it: EPOCH.PARTITION.INDEX, or EPOCH:INDEX of a node on its own
    #[arg(value_name = "TRANSACTION")]
    place: Place,
    /// The data directory of a stopped node, or of a cluster that `ordain cluster up` made: then of all of its nodes
    #[arg(long, env = "ORDAIN_DATA_DIR", default_value = "ordain-data", value_name = "DIR")]
    data_dir: PathBuf,
    /// A cluster's file: every data directory that it names and that is on this machine
    #[arg(long, value_name = "FILE", conflicts_with = "data_dir")]
    config: Option<PathBuf>,
    /// Why; `ordain log inspect` and each start of the node repeat it
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
    /// Take it back, which is possible until the node is started
    #[arg(long)]
    undo: bool,
}

/// A place in the order as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    epoch: u64,
    /// Not given: the directory's own.
    partition: Option<u16>,
    index: u32,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Place, String> {
        let wrong = || {
            format!(
                "'{text}' is no place in the order: write EPOCH.PARTITION.INDEX as ordain log inspect does"
            )
        };
        let parts: Vec<&str> = text.split(['.', ':']).collect();
        let place = match parts[..] {
            [epoch, partition, index] => (epoch.parse(), Some(partition.parse()), index.parse()),
            [epoch, index] => (epoch.parse(), None, index.parse()),
            _ => return Err(wrong()),
        };
        let (Ok(epoch), Ok(index)) = (place.0, place.2) else { return Err(wrong()) };
        let partition = place.1.transpose().map_err(|_: std::num::ParseIntError| wrong())?;
        gsn(epoch, partition.unwrap_or(0), index).ok_or_else(wrong)?;
        Ok(Place { epoch, partition, index })
    }
}

/// A transaction in words.
#[derive(Clone, Debug)]
pub struct Described {
    pub procedure: String,
    /// Its first keys.
    pub keys: Vec<String>,
    pub keys_count: usize,
    /// Bytes of its arguments.
    pub bytes: usize,
}

/// How many keys are printed, and how much of each.
const KEYS_SHOWN: usize = 8;
const KEY_SHOWN: usize = 64;

impl Described {
    pub fn of(registry: &Registry, chunk: &Chunk, txn: &Txn) -> Described {
        let args = chunk.args(txn);
        let keyed = chunk.fragments(txn).iter().filter(|fragment| fragment.is_keyed());
        // One record may be asked for by several fragments.
        let keys: BTreeSet<&[u8]> = keyed.map(|fragment| key_of(args, fragment).bytes).collect();
        let show = |key: &&[u8]| key.get(..KEY_SHOWN).unwrap_or(key).escape_ascii().to_string();
        Described {
            procedure: registry.name(txn.call.procedure).unwrap_or("an unknown procedure").to_owned(),
            keys: keys.iter().take(KEYS_SHOWN).map(show).collect(),
            keys_count: keys.len(),
            bytes: args.encoded().len(),
        }
    }
}

impl fmt::Display for Described {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.procedure)?;
        match (self.keys_count, self.keys.join(" ")) {
            (0, _) => {}
            (count, keys) if count > self.keys.len() => write!(f, ", {count} keys: {keys} …")?,
            (_, keys) => write!(f, ", keys: {keys}")?,
        }
        write!(f, ", {} bytes of arguments", self.bytes)
    }
}

/// A directory that is held until all are written.
struct Target {
    path: PathBuf,
    _lock: DirLock,
    gsn: Gsn,
    aborts: Aborts,
    what: Option<Described>,
    is_alone: bool,
}

/// Aborts a transaction in all directories, or takes that back. Every directory is checked before one is changed.
pub fn run(args: &AbortArgs, registry: &Arc<Registry>) -> anyhow::Result<bool> {
    let directories = directories(args)?;
    let targets = directories.iter().map(|path| open(path, args, registry));
    let targets: Vec<Target> = targets.collect::<anyhow::Result<_>>()?;
    let is_all = directories.len() > 1;
    for Target { path, gsn, mut aborts, what, is_alone, _lock } in targets {
        let at = path.display();
        if args.undo {
            aborts.undo(gsn)?;
            aborts.write(&path)?;
            println!("{at}: transaction {gsn} is not aborted any more");
            continue;
        }
        let what = what.map_or(String::new(), |what| format!(" ({what})"));
        if aborts.add(gsn, &args.reason)? {
            aborts.write(&path)?;
            println!("{at}: transaction {gsn}{what} is aborted from the next start on");
        } else {
            println!("{at}: transaction {gsn}{what} was aborted already");
        }
        if !is_alone && !is_all {
            println!("give the same command for every other node of the cluster before it is started");
        }
    }
    Ok(true)
}

/// The data directories that are meant.
fn directories(args: &AbortArgs) -> anyhow::Result<Vec<PathBuf>> {
    let of_home = args.data_dir.join("cluster.toml");
    let config = args.config.clone().or_else(|| of_home.is_file().then_some(of_home));
    let Some(config) = config else { return Ok(vec![args.data_dir.clone()]) };
    let name = || format!("the cluster's file {}", config.display());
    let text = std::fs::read_to_string(&config).with_context(name)?;
    let cluster = ClusterConfig::new(&ClusterFile::parse(&text).with_context(name)?).with_context(name)?;
    let named = cluster.members.into_iter().filter_map(|member| member.data_dir);
    let here: Vec<PathBuf> = named.filter(|path| path.join("ordain.json").is_file()).collect();
    ensure!(
        !here.is_empty(),
        "{} names no data directory that is on this machine: name them one by one with --data-dir",
        name()
    );
    Ok(here)
}

fn open(path: &Path, args: &AbortArgs, registry: &Arc<Registry>) -> anyhow::Result<Target> {
    let at = path.display();
    ensure!(path.is_dir(), "there is no data directory {at}: name it with --data-dir");
    let identity = Identity::read(path)?
        .with_context(|| format!("{at} holds no node's data: there is no ordain.json in it"))?;
    let lock = DirLock::acquire(path)?;
    let Place { epoch, partition, index } = args.place;
    ensure!(
        partition.is_some() || identity.alone,
        "{at} belongs to a cluster: write EPOCH.PARTITION.INDEX, so that it is the same on all nodes"
    );
    let partition = partition.unwrap_or(identity.partition);
    ensure!(
        usize::from(partition) < identity.starts.len(),
        "{at}: there is no partition {partition}, only {}",
        identity.starts.len()
    );
    let gsn = gsn(epoch, partition, index).context("no such place in the order")?;
    let aborts = Aborts::read(path)?;
    let is_new = aborts.iter().all(|(other, _)| other != gsn);
    let mut what = None;
    if is_new && !args.undo {
        let directory = FsDirectory::open(path)?;
        let complete = ordain_checkpoint::list(&directory)?.into_iter().filter(|found| found.is_complete());
        if let Some(newest) = complete.map(|found| found.epoch).max()
            && newest >= gsn.epoch()
        {
            bail!(
                "{at}: the checkpoint of epoch {newest} was made after transaction {gsn} was executed here: it did not end \
                 the process, and cannot be aborted any more"
            );
        }
        if partition == identity.partition {
            let inspection = super::look(&directory, false, &BTreeSet::from([gsn]), registry)?;
            what = inspection.found.described.into_values().next();
            // A node that was behind hears of it later.
            ensure!(
                what.is_some() || inspection.found.last_epoch < gsn.epoch(),
                "{at}: its log holds no transaction {gsn}: see ordain log inspect"
            );
        }
    }
    Ok(Target { path: path.to_owned(), _lock: lock, gsn, aborts, what, is_alone: identity.alone })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_are_shown() {
        let place = |text: &str| text.parse::<Place>();
        let of = |epoch, partition, index| Ok(Place { epoch, partition, index });
        assert_eq!(place("12.1.3"), of(12, Some(1), 3));
        assert_eq!(place("12:1:3"), of(12, Some(1), 3));
        assert_eq!(place("12:3"), of(12, None, 3));
        for text in ["", "12", "1.2.3.4", "a.0.1", "1.x.1", "1.0.-1", "0.0.0", "1.0.32768", "1.255.0"] {
            assert!(place(text).unwrap_err().contains("EPOCH.PARTITION.INDEX"), "{text}");
        }
    }
}
