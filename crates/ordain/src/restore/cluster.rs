//! `ordain checkpoint restore` of more than a directory: a whole cluster, from directories of all its partitions or from a
//! store; or a node on its own from a store. What is made is a cluster that begins with a checkpoint (`ordain_node::restore`).
//!
//! Everything is read before anything counts: what says whose directory it is comes last, so one that was interrupted is no
//! node's.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use ordain_archive::{Location, Owner};
use ordain_engines::registry::Engine;
use ordain_family::Keep;
use ordain_family::Replication;
use ordain_lab::report;
use ordain_model::{Epoch, Isolation, Layout, Millis, PartitionId};
use ordain_node::cluster::{ClusterConfig, ClusterFile, Membership};
use ordain_node::identity::{FILE, Identity, LOCK, log_identity};
use ordain_node::procedures;
use ordain_node::restore::stored::{Counting, sources};
use ordain_node::restore::{How, Restored, Source, found, restore, share};
use ordain_replication::found_storage_after;
use ordain_role::{Directory, NodeId};
use ordain_runtime::{DirLock, FsDirectory};
use serde_json::json;

use super::{RestoreArgs, clear, ensure_empty};
use crate::object_store::StoredCluster;

/// Restores.
///
/// # Errors
/// What is there does not belong together or to the cluster, is damaged, or does not lead to that epoch; a target is not
/// empty; or a disk's.
pub fn run(args: &RestoreArgs) -> anyhow::Result<bool> {
    let plan = Plan::of(args)?;
    let mut targets = Targets::new(&plan)?;
    let restored = match args.from.as_slice() {
        [url] if Location::is_one(url) => from_store(url, args, &plan, &mut targets),
        directories => from_directories(directories, args, &plan, &mut targets),
    };
    let restored = match restored.and_then(|restored| targets.finish(&plan, &restored).map(|()| restored)) {
        Ok(restored) => restored,
        Err(error) => return Err(targets.give_up(error)),
    };
    for refused in &restored.refused {
        eprintln!("note: a checkpoint cannot be used, so the one before it is: {refused}");
    }
    if let Some(first) = restored.undecided.filter(|_| args.to_epoch.is_none()) {
        eprintln!(
            "note: what was written from epoch {first} on is not known to be agreed on, and was left out: if these nodes can \
             still be started, start them, stop them in good order, and restore then"
        );
    }
    let records: u64 = restored.totals.values().map(|totals| totals.records).sum();
    let Restored { until, from, begins, executed, .. } = &restored;
    println!(
        "restored {} as it was at the end of epoch {until}: {records} records, from checkpoints of epoch {from} and {executed} \
         transactions after them; it begins with epoch {begins}",
        plan.name()
    );
    targets.paths().for_each(|path| println!("{}", path.display()));
    let summary = json!({
        "owner": plan.name(),
        "epoch": until.0,
        "from": from.0,
        "executed": executed,
        "begins": begins.0,
        "records": records,
        "refused": restored.refused,
        "directories": targets.paths().collect::<Vec<_>>(),
    });
    report::write_json(args.json.as_deref(), &summary)?;
    Ok(true)
}

/// The nodes to be restored.
enum Plan {
    /// A node on its own, in this directory.
    Alone(PathBuf),
    /// A cluster: all of its nodes, or one.
    Cluster { config: Arc<ClusterConfig>, nodes: Vec<(Membership, PathBuf)> },
}

impl Plan {
    fn of(args: &RestoreArgs) -> anyhow::Result<Plan> {
        let Some(path) = &args.config else {
            ensure!(
                args.from.len() == 1,
                "several --from are for the partitions of a cluster: name the file that describes it with --config"
            );
            let data_dir = args.data_dir.clone().context("name the new data directory with --data-dir")?;
            return Ok(Plan::Alone(data_dir));
        };
        let name = || format!("configuration file {}", path.display());
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
        ensure!(ClusterFile::is_one(&text), "{} does not describe a cluster", name());
        let config = ClusterConfig::new(&ClusterFile::parse(&text).with_context(name)?).with_context(name)?;
        ensure!(
            config.keep != Keep::Nothing,
            "{}: its nodes keep nothing, so there is nothing to restore",
            name()
        );
        let mut nodes = Vec::new();
        for node in (0..config.topology().nodes()).filter(|node| args.node.is_none_or(|only| only == *node)) {
            let place = Membership::new(config.clone(), node)?;
            let in_file = || place.member().data_dir.clone();
            let of_args = args.data_dir.as_ref().map(|directory| directory.join(format!("node-{node}")));
            let path = of_args.or_else(in_file).with_context(|| {
                format!("{} does not say where node {node} keeps its data: say where with --data-dir", name())
            })?;
            nodes.push((place, path));
        }
        // Out of range.
        if let Some(node) = args.node.filter(|_| nodes.is_empty()) {
            Membership::new(config.clone(), node)?;
        }
        Ok(Plan::Cluster { config: Arc::new(config), nodes })
    }

    fn name(&self) -> String {
        match self {
            Plan::Alone(_) => "a node on its own".to_owned(),
            Plan::Cluster { config, .. } => format!("cluster '{}'", config.id),
        }
    }

    /// Refuses what is of another cluster, engine or partition map.
    fn accept(&self, owner: &Owner, at: &str) -> anyhow::Result<()> {
        owner.engine.parse::<Engine>().with_context(|| at.to_owned())?;
        match self {
            Plan::Alone(_) => ensure!(
                owner.alone,
                "{at} belongs to cluster '{}': name the file that describes it with --config, to restore all of it",
                owner.cluster
            ),
            Plan::Cluster { config, .. } => {
                ensure!(
                    !owner.alone,
                    "{at} belongs to a node on its own, and not to cluster '{}'",
                    config.id
                );
                ensure!(
                    owner.cluster == config.id,
                    "{at} belongs to cluster '{}', not to '{}': check --config",
                    owner.cluster,
                    config.id
                );
                ensure!(
                    owner.engine == config.engine.name(),
                    "{at} belongs to engine '{}', not '{}': set engine in the cluster's file",
                    owner.engine,
                    config.engine.name()
                );
                let regions = config.layout.placement().texts();
                ensure!(
                    owner.regions == regions,
                    "{at} was divided in another way: the prefixes of regions were {:?}, and in the cluster's file they are \
                     {regions:?}: set them as they were",
                    owner.regions
                );
                let (layout, starts) = (config.layout.version(), config.layout.starts());
                ensure!(
                    (owner.layout, owner.starts.as_slice()) == (layout, starts),
                    "{at} was divided in another way: layout {}, partitions = {}, starts = {:?}, and the cluster's file has layout \
                     {layout}, partitions = {}, starts = {starts:?}: set them as they were",
                    owner.layout,
                    owner.starts.len(),
                    owner.starts,
                    starts.len()
                );
            }
        }
        Ok(())
    }

    fn layout(&self) -> anyhow::Result<Arc<Layout>> {
        match self {
            Plan::Alone(_) => Ok(Arc::new(Layout::even(1, 1)?)),
            Plan::Cluster { config, .. } => Ok(config.layout.clone()),
        }
    }
}

/// The directories that are made.
struct Targets {
    /// Where they are to be, each of which partition.
    places: Vec<(PartitionId, PathBuf)>,
    made: Vec<Target>,
    /// How a node on its own is called, and its engine.
    owner: Option<Owner>,
}

struct Target {
    path: PathBuf,
    /// It was there, and empty.
    was_there: bool,
    partition: PartitionId,
    directory: FsDirectory,
    _lock: DirLock,
}

impl Targets {
    /// Refuses those in which there is something.
    fn new(plan: &Plan) -> anyhow::Result<Targets> {
        let places: Vec<(PartitionId, PathBuf)> = match plan {
            Plan::Alone(path) => vec![(PartitionId(0), path.clone())],
            Plan::Cluster { nodes, .. } => {
                nodes.iter().map(|(place, path)| (place.partition(), path.clone())).collect()
            }
        };
        places.iter().try_for_each(|(_, path)| ensure_empty(path))?;
        Ok(Targets { places, made: Vec::new(), owner: None })
    }

    fn make(&mut self) -> anyhow::Result<()> {
        for (partition, path) in &self.places {
            let was_there = path.exists();
            let directory = FsDirectory::open(path)?;
            let (path, lock) = (path.clone(), DirLock::acquire(path)?);
            self.made.push(Target { path, was_there, partition: *partition, directory, _lock: lock });
        }
        Ok(())
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        self.made.iter().map(|target| target.path.as_path())
    }

    /// Puts the state together and writes it to the first directory of each partition.
    fn build(
        &mut self,
        plan: &Plan,
        (sources, owner, isolation): (&[Source<'_>], Owner, Isolation),
        until: Option<u64>,
    ) -> anyhow::Result<Restored> {
        self.make()?;
        let layout = plan.layout()?;
        let registry = procedures::of(&layout);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at = Millis(now.as_millis() as u64);
        let made = &self.made;
        let restored = restore(
            sources,
            (&layout, &registry, How::of(owner.engine.parse()?, isolation)),
            (until.map(Epoch), at),
            &mut |partition| {
                let first = made.iter().find(|target| target.partition == partition);
                Ok(first.map(|target| Box::new(target.directory.clone()) as Box<dyn Directory>))
            },
        )?;
        self.owner = Some(owner);
        Ok(restored)
    }

    /// Copies it to the other directories, and says of all whose they are.
    fn finish(&mut self, plan: &Plan, restored: &Restored) -> anyhow::Result<()> {
        let mut first: BTreeMap<PartitionId, FsDirectory> = BTreeMap::new();
        for Target { partition, directory, .. } in &mut self.made {
            let Some(source) = first.get(partition) else {
                first.insert(*partition, directory.clone());
                continue;
            };
            share(source, directory, restored.begins)?;
        }
        match plan {
            Plan::Alone(path) => {
                let owner = self.owner.as_ref().context("there is nothing to restore")?;
                Identity::begin(path, Err((owner.engine.parse()?, &owner.cluster)))?;
            }
            Plan::Cluster { config, nodes } => {
                let topology = config.topology();
                for ((place, path), target) in nodes.iter().zip(&mut self.made) {
                    let members: Vec<NodeId> = topology.group(place.partition()).collect();
                    let identity = log_identity(&config.id, config.engine.name(), place.partition().0);
                    let group = (&members[..], config.replication);
                    match config.storage {
                        None => found(&mut target.directory, &identity, group, restored.begins)?,
                        // A database server keeps no log.
                        Some(_) if topology.is_server(place.node) => {}
                        Some(_) => found_storage_after(&mut target.directory, &identity, restored.begins)?,
                    }
                    Identity::begin(path, Ok(place))?;
                }
            }
        }
        Ok(())
    }

    /// Leaves nothing behind.
    fn give_up(self, error: anyhow::Error) -> anyhow::Error {
        let mut incomplete = None;
        for Target { path, was_there, mut directory, .. } in self.made {
            if clear(&mut directory).is_err() {
                incomplete = Some(path);
            } else if !was_there {
                // That it is empty is what counts.
                let _ = std::fs::remove_file(path.join(LOCK)).and_then(|()| std::fs::remove_dir(&path));
            }
        }
        match incomplete {
            None => error.context("nothing was restored"),
            Some(path) => error.context(format!("{} is incomplete: remove it", path.display())),
        }
    }
}

/// Puts together what nodes have in their directories.
fn from_directories(
    paths: &[String],
    args: &RestoreArgs,
    plan: &Plan,
    targets: &mut Targets,
) -> anyhow::Result<Restored> {
    let (mut found, mut replicas) = (Vec::new(), BTreeSet::new());
    for path in paths {
        ensure!(
            !Location::is_one(path),
            "a checkpoint store has all partitions of a cluster: name it alone, not beside others"
        );
        let path = Path::new(path);
        ensure!(path.is_dir(), "there is no data directory {}: name it with --from", path.display());
        let lock = DirLock::acquire(path)?;
        let identity = Identity::read(path)?.with_context(|| {
            format!(
                "{} has no {FILE}: it is not the data directory of a node, or not all of it",
                path.display()
            )
        })?;
        let at = path.display().to_string();
        ensure!(identity.pending().is_none(), "{at} is about to be rebuilt, so what it holds is void");
        plan.accept(&identity.for_archive(Replication::None), &at)?;
        replicas.insert(identity.replica);
        found.push((at, identity, FsDirectory::open(path)?, lock));
    }
    if let Plan::Cluster { config, .. } = plan {
        ensure!(
            config.storage.is_none(),
            "regions with storage nodes are restored from a checkpoint store: name its URL with --from; directories of their nodes \
             are copied as they are, those of all nodes together while all are stopped"
        );
        ensure!(
            config.replication != Replication::Async || replicas.len() == 1,
            "with async replicas may have executed what others have lost: name directories of one replica"
        );
    }
    let sources = found.iter().map(|(at, identity, directory, _)| {
        let place = (PartitionId(identity.partition), at.clone());
        Ok(Source::of_files(directory, place, (identity.for_log(), identity.has_log))?)
    });
    let sources = sources.collect::<anyhow::Result<Vec<Source<'_>>>>()?;
    let (_, identity, ..) = found.first().context("there is nothing to restore from")?;
    let isolation: Isolation = identity.isolation.parse().with_context(|| FILE.to_owned())?;
    if let Some((at, other, ..)) = found.iter().find(|(_, other, ..)| other.isolation != identity.isolation) {
        bail!("{at} was executed with --isolation {}, others with {isolation}", other.isolation);
    }
    targets.build(plan, (&sources, identity.for_archive(Replication::None), isolation), args.to_epoch)
}

/// Puts together what is in a store.
fn from_store(url: &str, args: &RestoreArgs, plan: &Plan, targets: &mut Targets) -> anyhow::Result<Restored> {
    let cluster = match plan {
        Plan::Alone(_) => args.cluster.as_deref(),
        Plan::Cluster { config, .. } => Some(config.id.as_str()),
    };
    let stored = StoredCluster::open(url, cluster)?;
    let counting = Counting::of(
        stored.partitions,
        &mut |owner, at| plan.accept(owner, &format!("{url}/{at}")),
        &mut |partition, kept, reason| {
            eprintln!(
                "note: {}, epoch {}, of node {}, cannot be used: {reason}",
                partition.place, kept.epoch, kept.node.0
            );
        },
    )?;
    let counting =
        counting.with_context(|| format!("there is no complete checkpoint in {url}/{}", stored.cluster))?;
    let directories = counting.directories(&stored.archive);
    let owner = counting.owner.clone();
    let identity = |partition| log_identity(&owner.cluster, &owner.engine, partition);
    let sources = sources(&directories, url, identity);
    // Checkpoints are copied, and nothing is executed.
    targets.build(plan, (&sources, counting.owner, Isolation::default()), args.to_epoch)
}
