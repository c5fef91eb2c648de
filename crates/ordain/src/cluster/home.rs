//! The data directory of a cluster on this machine: what it was made as, and that it stays that.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ordain_archive::Location;
use ordain_family::{Replication, Storage};
use ordain_lab::options::{OptionArgs, OptionFlags};
use ordain_node::cluster::{ClusterConfig, ClusterFile, NodeEntry, Secret};
use ordain_node::size::Size;
use ordain_runtime::DirLock;

use super::{NodeKind, NodeRecord, RECORD, Record};
use crate::serve::Durability;

/// The name of the file that describes the cluster to its nodes.
const CONFIG: &str = "cluster.toml";
/// The first port by default.
const BASE_PORT: u16 = 7000;

/// How input reaches the other replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum ReplicationName {
    /// There is one replica.
    None,
    /// A primary has it, and sends it to the others after it has answered. Needs three nodes.
    Async,
    /// A majority has it before it takes effect.
    Sync,
}

/// When an entry counts as durable on the storage nodes of a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum StorageName {
    /// A majority of them has it.
    #[default]
    Quorum,
    /// All of them have it. One that is silent for two seconds is left out until it has caught up.
    Full,
}

impl From<StorageName> for Storage {
    fn from(name: StorageName) -> Storage {
        match name {
            StorageName::Quorum => Storage::Quorum,
            StorageName::Full => Storage::Full,
        }
    }
}

impl From<ReplicationName> for Replication {
    fn from(name: ReplicationName) -> Replication {
        match name {
            ReplicationName::None => Replication::None,
            ReplicationName::Async => Replication::Async,
            ReplicationName::Sync => Replication::Sync,
        }
    }
}

/// The form in which `ordain cluster up` takes the options of engines.
#[derive(Clone, Debug, Default)]
pub(super) struct OfUp;

impl OptionFlags for OfUp {
    const CHECKS_NAMES: bool = false;
    const ELSE: &'static str = ", or as it was";
}

/// The flags that describe a cluster. What is not given is as it was, or by default.
#[derive(Clone, Debug, Default, Args)]
pub(super) struct Wanted {
    /// How many parts the data is divided in [default: 1, or as it was]
    #[arg(long, value_name = "P")]
    pub partitions: Option<u16>,
    /// How many copies there are of each; with --regions the number of its storage nodes [default: 1, with --regions 3, or as it was]
    #[arg(long, value_name = "R")]
    pub replicas: Option<u16>,
    /// How many regions there are, each with a database server and storage nodes of its own, for engines whose partitions are
    /// regions
    #[arg(long, value_name = "N", conflicts_with = "partitions")]
    pub regions: Option<u16>,
    /// Database servers of a region: one executes, the others stand by [default: 1, or as it was]
    #[arg(long, value_name = "N", requires = "regions")]
    pub servers: Option<u16>,
    /// When the storage nodes of a region have what is acknowledged [default: quorum]
    #[arg(long, value_name = "MODE", requires = "regions")]
    pub storage: Option<StorageName>,
    /// The round trip that is added between regions, for experiments, milliseconds [default: 0]
    #[arg(long, value_name = "MS", requires = "regions")]
    pub region_rtt_ms: Option<u64>,
    /// The engine [default: calvin]
    #[arg(long, value_name = "NAME")]
    pub engine: Option<String>,
    /// Event loops of a node [default: this machine's cores divided by the nodes, at least 1]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// The first of the ports: one a node for clients, then one a node for the admin servers, then one a node for the
    /// cluster. 0: any that are free [default: 7000, or as it was]
    #[arg(long, value_name = "N")]
    pub base_port: Option<u16>,
    /// When an acknowledged write is durable on a node [default: fsync]
    #[arg(long)]
    pub durability: Option<Durability>,
    /// How input reaches the other replicas [default: none with one replica, else sync]
    #[arg(long)]
    pub replication: Option<ReplicationName>,
    #[command(flatten)]
    pub options: OptionArgs<OfUp>,
    /// How much memory each node may have allocated, as 200mb or 4gb, before what needs more is refused (OOM); 0: no limit
    /// [default: 0, or as it was]
    #[arg(long, value_name = "SIZE")]
    pub maxmemory: Option<Size>,
    /// One-way delay that is added between nodes, for experiments, microseconds [default: 0]
    #[arg(long, value_name = "L")]
    pub latency_us: Option<u64>,
    /// Take copies of complete checkpoints to this store: `file:///DIR` or `s3://BUCKET/PREFIX` [default: none, or as it was]
    #[arg(long, env = "ORDAIN_CHECKPOINT_STORE", value_name = "URL")]
    pub checkpoint_store: Option<Location>,
}

impl Wanted {
    fn durability(&self) -> Option<String> {
        Some(self.durability?.to_possible_value()?.get_name().to_owned())
    }

    fn replication(&self) -> Option<Replication> {
        self.replication.map(Replication::from)
    }

    fn partitions(&self) -> Option<u16> {
        self.regions.or(self.partitions)
    }

    /// The servers and the replicas of a region, as they would be if nothing is said of the one or the other.
    fn of_region(&self, (servers, storage): (u16, u16)) -> (u16, u16) {
        let servers = self.servers.unwrap_or(servers);
        (servers, servers.saturating_add(self.replicas.unwrap_or(storage)))
    }
}

/// A data directory that is ours as long as this lives.
#[derive(Debug)]
pub(super) struct Home {
    directory: PathBuf,
    file: ClusterFile,
    config: ClusterConfig,
    _lock: DirLock,
}

impl Home {
    /// Opens a data directory, or makes one for a new cluster.
    ///
    /// # Errors
    /// It is in use, holds something else, or what is wanted cannot be.
    pub(super) fn open(directory: &Path, wanted: &Wanted) -> anyhow::Result<Home> {
        let directory = std::path::absolute(directory).context("cannot tell where --data-dir is")?;
        let unusable =
            || format!("cannot use data directory {}: name another one with --data-dir", directory.display());
        let is_new = !directory.join(CONFIG).is_file();
        if is_new {
            anyhow::ensure!(
                !directory.join("ordain.json").exists(),
                "{} holds the data of a node on its own: name another directory with --data-dir",
                directory.display()
            );
        }
        // Checked before anything is made, so that a mistake leaves nothing behind.
        let file = if is_new { invent(&directory, wanted)? } else { recall(&directory, wanted)? };
        let config = ClusterConfig::new(&file)
            .with_context(|| if is_new { "this cluster cannot be".to_owned() } else { at(&directory) })?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).with_context(unusable)?;
        let lock = DirLock::acquire(&directory)?;
        let home = Home { directory, file, config, _lock: lock };
        let head =
            "# Made by `ordain cluster up`. The same for all nodes: ordain serve --config FILE --node N\n\n";
        let text = toml::to_string(&home.file).context("cannot write down the cluster")?;
        home.write(CONFIG, format!("{head}{text}").as_bytes())?;
        Ok(home)
    }

    /// The path of the cluster's file.
    pub(super) fn config_path(&self) -> PathBuf {
        self.directory.join(CONFIG)
    }

    /// The path of the record of running nodes.
    pub(super) fn record_path(&self) -> PathBuf {
        self.directory.join(RECORD)
    }

    /// Tells whether a node has lost its data: the cluster was ready once, so there was a directory, and it is empty.
    pub(super) fn has_lost(&self, id: u16) -> bool {
        let member = self.config.members.get(usize::from(id));
        let directory = member.and_then(|member| member.data_dir.as_ref());
        self.config.replicas > 1
            && self.record_path().exists()
            && directory.is_some_and(|directory| !directory.join("ordain.json").exists())
    }

    /// The cluster, of which nothing runs yet.
    pub(super) fn record(&self) -> Record {
        let (config, grid) = (&self.config, self.config.topology());
        let nodes = config.members.iter().map(|member| NodeRecord {
            id: member.node.0,
            partition: grid.partition_of(member.node).0,
            replica: grid.replica_of(member.node).0,
            kind: if grid.is_server(member.node) { NodeKind::Server } else { NodeKind::Storage },
            resp: member.resp.to_string(),
            admin: member.admin.to_string(),
            cluster: member.cluster.to_string(),
            pid: None,
            data_dir: member.data_dir.clone().unwrap_or_default(),
            log: self.directory.join(format!("node-{}.log", member.node.0)),
        });
        Record {
            cluster: config.id.clone(),
            engine: config.engine.name().to_owned(),
            replication: config.replication.name().to_owned(),
            partitions: config.layout.partitions(),
            replicas: config.replicas,
            storage: config.storage.map(|storage| storage.name().to_owned()),
            config: self.config_path(),
            nodes: nodes.collect(),
        }
    }

    /// Writes down which nodes run.
    pub(super) fn note(&self, record: &Record) -> anyhow::Result<()> {
        self.write(RECORD, serde_json::to_string_pretty(record)?.as_bytes())
    }

    /// Writes a file whole: a reader sees the content of before or of now. Only its owner may read it: the secret stands in
    /// one of them.
    fn write(&self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        let path = self.directory.join(name);
        ordain_node::secrets::write(&path, bytes)
            .with_context(|| format!("cannot write {}: check its owner and the disk", path.display()))
    }
}

fn at(directory: &Path) -> String {
    directory.join(CONFIG).display().to_string()
}

/// A cluster that has not been before.
fn invent(directory: &Path, wanted: &Wanted) -> anyhow::Result<ClusterFile> {
    let partitions = wanted.partitions().unwrap_or(1);
    let (servers, replicas) = match wanted.regions {
        Some(_) => wanted.of_region((1, 3)),
        None => (0, wanted.replicas.unwrap_or(1)),
    };
    let nodes = usize::from(partitions) * usize::from(replicas);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut file = ClusterFile {
        cluster: format!("local-{}", &Secret::random().reveal()[..8]),
        secret: Some(Secret::random()),
        partitions,
        replicas,
        threads: wanted.threads.unwrap_or_else(|| (cores / nodes.max(1)).max(1)),
        engine: wanted.engine.clone(),
        durability: wanted.durability(),
        replication: wanted.replication(),
        servers: wanted.regions.map(|_| servers),
        storage: wanted.regions.map(|_| wanted.storage.map(Storage::from).unwrap_or_default()),
        region_rtt_ms: wanted.region_rtt_ms,
        latency_us: wanted.latency_us,
        checkpoint_store: wanted.checkpoint_store.clone(),
        options: wanted.options.given.clone(),
        maxmemory: wanted.maxmemory,
        ..ClusterFile::default()
    };
    // Ports are searched for when it is known that there are not too many.
    file.check_grid()?;
    let addresses = addresses(wanted.base_port.unwrap_or(BASE_PORT), 3 * nodes)?;
    file.node = (0..nodes)
        .map(|id| NodeEntry {
            id: id as u16,
            resp: addresses[id].to_string(),
            admin: addresses[nodes + id].to_string(),
            cluster: addresses[2 * nodes + id].to_string(),
            data_dir: Some(directory.join(format!("node-{id}"))),
        })
        .collect();
    Ok(file)
}

/// The cluster that the directory holds, which must be the one that is wanted.
fn recall(directory: &Path, wanted: &Wanted) -> anyhow::Result<ClusterFile> {
    let text = fs::read_to_string(directory.join(CONFIG))
        .with_context(|| format!("cannot read {}: check its permissions", at(directory)))?;
    let mut file = ClusterFile::parse(&text).with_context(|| at(directory))?;
    let config = ClusterConfig::new(&file).with_context(|| at(directory))?;
    let stays = |flag: &str, wanted: Option<String>, found: String| match wanted {
        Some(wanted) if wanted != found => anyhow::bail!(
            "the cluster in {} has --{flag} {found}, not {wanted}, and cannot change it: leave --{flag} out, or name \
             another --data-dir for a new cluster",
            directory.display()
        ),
        _ => Ok(()),
    };
    let (partitions, replicas) = match config.storage {
        Some(_) => ("regions", file.replicas - config.servers),
        None => ("partitions", file.replicas),
    };
    stays(partitions, wanted.partitions().map(|n| n.to_string()), file.partitions.to_string())?;
    stays("replicas", wanted.replicas.map(|n| n.to_string()), replicas.to_string())?;
    stays("servers", wanted.servers.map(|n| n.to_string()), config.servers.to_string())?;
    let storage = |storage: Storage| storage.name().to_owned();
    stays(
        "storage",
        wanted.storage.map(|name| storage(name.into())),
        config.storage.map_or("none".to_owned(), storage),
    )?;
    stays("engine", wanted.engine.clone(), config.engine.name().to_owned())?;
    for (info, found) in config.options.iter().filter(|(info, _)| info.is_identity) {
        stays(info.name, wanted.options.given.get(info).map(str::to_owned), found.to_string())?;
    }
    stays("threads", wanted.threads.map(|n| n.to_string()), file.threads.to_string())?;
    stays(
        "replication",
        wanted.replication().map(|r| r.name().to_owned()),
        config.replication.name().to_owned(),
    )?;
    // Zero asks for any ports, and those that it has are any.
    let first = config.members.first().map_or(0, |member| member.resp.port());
    let base = wanted.base_port.filter(|port| *port != 0);
    stays("base-port", base.map(|n| n.to_string()), first.to_string())?;
    // These may change from start to start.
    file.durability = wanted.durability().or(file.durability);
    file.region_rtt_ms = wanted.region_rtt_ms.or(file.region_rtt_ms);
    file.options = wanted.options.given.clone().or(&file.options);
    file.maxmemory = wanted.maxmemory.or(file.maxmemory);
    file.latency_us = wanted.latency_us.or(file.latency_us);
    file.checkpoint_store = wanted.checkpoint_store.clone().or(file.checkpoint_store);
    Ok(file)
}

/// So many addresses of this machine in a row, or any that are free if the first is 0.
fn addresses(base: u16, count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
    if base != 0 {
        let end = usize::from(base) + count;
        anyhow::ensure!(
            end <= usize::from(u16::MAX) + 1,
            "--base-port {base}: {count} ports from there go beyond 65535: choose a smaller one"
        );
        return Ok((usize::from(base)..end).map(|port| local(port as u16)).collect());
    }
    // All are held until all are known, so that none comes twice.
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind(local(0)))
        .collect::<Result<_, _>>()
        .context("no ports are free")?;
    held.iter().map(|listener| Ok(listener.local_addr()?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(partitions: u16, replicas: u16) -> Wanted {
        Wanted { partitions: Some(partitions), replicas: Some(replicas), ..Wanted::default() }
    }

    #[track_caller]
    fn refused(directory: &Path, wanted: &Wanted, words: &[&str]) {
        let error = format!("{:#}", Home::open(directory, wanted).expect_err("it was taken"));
        words.iter().for_each(|word| assert!(error.contains(word), "'{word}' is not in: {error}"));
    }

    #[test]
    fn a_cluster_goes_on_as_what_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path(), &Wanted { base_port: Some(0), ..wanted(2, 3) }).unwrap();
        let first = home.record();
        assert_eq!(first.nodes.len(), 6);
        assert_eq!((first.nodes[5].partition, first.nodes[5].replica), (1, 2));
        assert_eq!(first.replication, "sync");
        let key = home.file.secret.clone();
        refused(dir.path(), &Wanted::default(), &["in use by process"]);
        drop(home);

        for wanted in [Wanted::default(), wanted(2, 3), Wanted { base_port: Some(0), ..Wanted::default() }] {
            let again = Home::open(dir.path(), &wanted).unwrap();
            assert_eq!(again.file.secret, key);
            assert_eq!(format!("{:?}", again.record()), format!("{first:?}"));
        }
        let changed = Wanted { durability: Some(Durability::Os), latency_us: Some(9), ..Wanted::default() };
        drop(Home::open(dir.path(), &changed).unwrap());
        let kept = Home::open(dir.path(), &Wanted::default()).unwrap();
        assert_eq!((kept.file.durability.as_deref(), kept.file.latency_us), (Some("os"), Some(9)));
        drop(kept);

        let other = |change: fn(&mut Wanted)| {
            let mut wanted = Wanted::default();
            change(&mut wanted);
            wanted
        };
        let path = dir.path().to_str().unwrap();
        refused(
            dir.path(),
            &other(|w| w.partitions = Some(3)),
            &[path, "--partitions 2, not 3", "--data-dir"],
        );
        refused(dir.path(), &other(|w| w.replicas = Some(1)), &["--replicas 3, not 1"]);
        refused(dir.path(), &other(|w| w.threads = Some(77)), &["not 77"]);
        refused(dir.path(), &other(|w| w.engine = Some("walter".into())), &["--engine calvin, not walter"]);
        refused(dir.path(), &other(|w| w.replication = Some(ReplicationName::None)), &["sync, not none"]);
        refused(dir.path(), &other(|w| w.base_port = Some(1)), &["--base-port", "not 1"]);
    }

    #[test]
    fn a_node_has_lost_its_data_only_if_the_cluster_has_run() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path(), &Wanted { base_port: Some(0), ..wanted(1, 3) }).unwrap();
        assert!(!home.has_lost(1), "the first start");
        home.note(&home.record()).unwrap();
        assert!(home.has_lost(1));
        fs::create_dir(dir.path().join("node-1")).unwrap();
        fs::write(dir.path().join("node-1/ordain.json"), "{}").unwrap();
        assert!(!home.has_lost(1) && home.has_lost(2) && !home.has_lost(3));
    }

    #[test]
    fn what_cannot_be_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        refused(&data, &wanted(200, 1), &["200 partitions", "choose fewer"]);
        refused(&data, &wanted(0, 1), &["0 partitions"]);
        refused(&data, &wanted(1, 10), &["replicas = 10"]);
        refused(
            &data,
            &Wanted { engine: Some("postgres".into()), ..wanted(1, 1) },
            &["there is no engine 'postgres'"],
        );
        refused(&data, &Wanted { base_port: Some(65530), ..wanted(3, 1) }, &["--base-port 65530", "9 ports"]);
        let none = Wanted { replication: Some(ReplicationName::None), ..wanted(1, 3) };
        refused(&data, &none, &["3 replicas"]);
        assert!(!data.exists());
    }

    #[test]
    fn the_data_of_a_node_on_its_own_stay_that() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("ordain.json"), "{}").unwrap();
        refused(dir.path(), &wanted(1, 1), &["a node on its own", "--data-dir"]);
    }

    #[test]
    fn the_secret_is_its_owners() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let home = Home::open(dir.path(), &Wanted { base_port: Some(0), ..wanted(1, 1) }).unwrap();
        assert_eq!(fs::metadata(home.config_path()).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
