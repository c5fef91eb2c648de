//! `ordain serve`: flags, environment and file make one configuration; signals end the node.

use std::io::IsTerminal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ordain_archive::Location;
use ordain_deterministic::options::CHECKPOINT_MODE;
use ordain_engines::registry::{self, DEFAULT_BECAUSE, Engine};
use ordain_family::Keep;
use ordain_lab::options::{OptionArgs, OptionFlags};
use ordain_model::{CheckpointMode, Options};
use ordain_node::admin_client::{Login, Target};
use ordain_node::cluster::{ClusterConfig, ClusterFile, Membership, is_admin_in_tls};
use ordain_node::serve::{Ended, Node, Operators, ServeConfig, without};
use ordain_node::size::Size;
use ordain_node::tls::{AuthClients, ClientTls};
use serde::Deserialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The address of the admin server by default.
pub const ADMIN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9121);
/// The user of a client that has named none.
pub const DEFAULT_USER: &str = "default";

/// The part of a configuration file that is for operators' tools.
#[derive(Debug, Default)]
pub struct ForOperators {
    /// The admin servers.
    pub admin: Vec<Target>,
    /// The login for them.
    pub login: Option<Login>,
    /// The authorities of their certificates.
    pub authority: Option<PathBuf>,
    /// Whether clients can connect in TLS.
    pub has_client_tls: bool,
}

impl ForOperators {
    /// Reads the file of a node, or of a cluster.
    ///
    /// # Errors
    /// It cannot be read or says something that cannot be.
    pub fn read(path: &Path) -> anyhow::Result<ForOperators> {
        let name = || format!("configuration file {}", path.display());
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the {}", name()))?;
        let (admin, authority, args) = if ClusterFile::is_one(&text) {
            let file = ClusterFile::parse(&text).with_context(name)?;
            let target = |text: &String| {
                // A name that says nothing here is not of this machine.
                let address = text.to_socket_addrs().ok().and_then(|mut all| all.next());
                let address = address.unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0)));
                let is_tls = is_admin_in_tls(file.admin_tls, file.tls_port.is_some(), address);
                Target { address: text.clone(), is_tls }
            };
            let admin = file.node.iter().map(|node| target(&node.admin)).collect();
            let of_links = file.tls.as_ref().map(|links| links.ca_cert_file.clone());
            (admin, of_links, ServeArgs::of(file))
        } else {
            let args = ServeArgs::parse(&text).with_context(name)?;
            let admin = args.admin.unwrap_or(ADMIN);
            let is_tls = is_admin_in_tls(args.admin_tls, args.tls_port.is_some(), admin);
            (vec![Target { address: admin.to_string(), is_tls }], None, args)
        };
        Ok(ForOperators {
            admin,
            login: args.admin_login().with_context(name)?,
            has_client_tls: args.tls_port.is_some(),
            authority: args.tls_ca_cert_file.or(authority),
        })
    }
}

/// The moment from which an acknowledged write is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Before it is acknowledged: it survives kill -9 and the loss of power.
    Fsync,
    /// Handed to the operating system before it is acknowledged: it survives kill -9.
    Os,
    /// Some time after it is acknowledged.
    None,
}

/// The form in which `ordain serve` takes the options of engines.
#[derive(Clone, Debug, Default)]
pub struct OfServe;

impl OptionFlags for OfServe {
    const HAS_ENVIRONMENT: bool = true;
    const CHECKS_NAMES: bool = false;
}

/// The help text of `--engine`.
fn engine_help() -> String {
    let engines = registry::engines().map(|engine| format!("`{}`: {}", engine.name(), engine.info().what));
    let engines = engines.collect::<Vec<_>>().join(". ");
    format!(
        "The engine. {engines}. Without the flag it is `{}`, {DEFAULT_BECAUSE}. `ordain engines` tells more [default: {0}]",
        Engine::default()
    )
}

/// The flags of `ordain serve`. Each is also a key of the configuration file and an environment variable; a flag
/// beats the environment, the environment beats the file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct ServeArgs {
    /// Where Redis clients connect [default: 127.0.0.1:6379]
    #[arg(long, env = "ORDAIN_LISTEN", value_name = "ADDR")]
    listen: Option<SocketAddr>,
    /// Where the admin HTTP server listens [default: 127.0.0.1:9121]
    #[arg(long, env = "ORDAIN_ADMIN", value_name = "ADDR")]
    admin: Option<SocketAddr>,
    /// Where the node keeps its data [default: ./ordain-data]
    #[arg(long, env = "ORDAIN_DATA_DIR", value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Keep everything in memory only
    #[arg(long, env = "ORDAIN_EPHEMERAL", num_args = 0..=1, default_missing_value = "true")]
    ephemeral: Option<bool>,
    /// The engine.
    #[arg(long, env = "ORDAIN_ENGINE", value_name = "NAME", help = engine_help())]
    engine: Option<String>,
    /// When an acknowledged write is durable [default: fsync]
    #[arg(long, env = "ORDAIN_DURABILITY")]
    durability: Option<Durability>,
    /// Event loops, each with a share of the data [default: one less than the cores, at least 1]
    #[arg(long, env = "ORDAIN_THREADS", value_name = "N")]
    threads: Option<usize>,
    /// Clients must AUTH with this password. Other users of this machine can read it in the list of processes: better
    /// set ORDAIN_PASSWORD, or --password-file
    #[arg(long, env = "ORDAIN_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// A file with the password that clients must AUTH with, instead of --password
    #[arg(long, env = "ORDAIN_PASSWORD_FILE", value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// The users and what each may do, in the syntax of Redis's ACL files; ACL LOAD reads it again and ACL SAVE writes it
    #[arg(long, env = "ORDAIN_USERS_FILE", value_name = "FILE")]
    users_file: Option<PathBuf>,
    /// A port for clients in TLS, on the address of --listen
    #[arg(long, env = "ORDAIN_TLS_PORT", value_name = "PORT")]
    tls_port: Option<u16>,
    /// Offer no port without TLS: the one of --listen is not opened
    #[arg(long, env = "ORDAIN_TLS_ONLY", num_args = 0..=1, default_missing_value = "true")]
    tls_only: Option<bool>,
    /// The node's certificate for TLS, and those between it and its authority, PEM
    #[arg(long, env = "ORDAIN_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// The key of that certificate, PEM
    #[arg(long, env = "ORDAIN_TLS_KEY_FILE", value_name = "FILE")]
    tls_key_file: Option<PathBuf>,
    /// The certificates of the authorities that clients' certificates must be of, PEM
    #[arg(long, env = "ORDAIN_TLS_CA_CERT_FILE", value_name = "FILE")]
    tls_ca_cert_file: Option<PathBuf>,
    /// Whether clients must show a certificate: yes, no or optional [default: yes]
    #[arg(long, env = "ORDAIN_TLS_AUTH_CLIENTS", value_name = "WHETHER", value_parser = auth_clients)]
    tls_auth_clients: Option<AuthClients>,
    /// Whether the admin server is in TLS, with the certificate of --tls-cert-file [default: where --tls-port is set and
    /// --admin is not loopback]
    #[arg(long, env = "ORDAIN_ADMIN_TLS", num_args = 0..=1, default_missing_value = "true", value_name = "BOOL")]
    admin_tls: Option<bool>,
    /// The user as which this node asks the admin servers of the other nodes, for its page; it needs the right to the
    /// command INFO [default: default]
    #[arg(long, env = "ORDAIN_ADMIN_USER", value_name = "NAME")]
    admin_user: Option<String>,
    /// A file with the password of that user [default: that of the user default, if this node knows it]
    #[arg(long, env = "ORDAIN_ADMIN_PASSWORD_FILE", value_name = "FILE")]
    admin_password_file: Option<PathBuf>,
    /// Accept connections from other machines without a password
    #[arg(long, env = "ORDAIN_INSECURE", num_args = 0..=1, default_missing_value = "true")]
    insecure: Option<bool>,
    /// Take a checkpoint after so many bytes of input; 0: only when a client asks with BGSAVE [default: 1 GiB]
    #[arg(long, env = "ORDAIN_CHECKPOINT_LOG_BYTES", value_name = "BYTES")]
    checkpoint_log_bytes: Option<u64>,
    /// What checkpoints cover is kept in the log for members that have none as new, until the log is about so long. After that
    /// a member that was away gets a checkpoint when it is back [default: 8 GiB]
    #[arg(long, env = "ORDAIN_LOG_KEEP_BYTES", value_name = "BYTES")]
    log_keep_bytes: Option<u64>,
    /// How long a file of a log is; only whole files are removed [default: 64 MiB]
    #[arg(long, env = "ORDAIN_LOG_SEGMENT_BYTES", value_name = "BYTES")]
    log_segment_bytes: Option<u64>,
    /// Take copies of complete checkpoints to this store: `file:///DIR`, or `s3://BUCKET/PREFIX` with the usual AWS_*
    /// environment (AWS_ENDPOINT and AWS_ALLOW_HTTP=true for other services than Amazon's)
    #[arg(long, env = "ORDAIN_CHECKPOINT_STORE", value_name = "URL")]
    checkpoint_store: Option<Location>,
    /// How many checkpoints that all partitions have are kept there [default: 7]
    #[arg(long, env = "ORDAIN_CHECKPOINT_STORE_KEEP", value_name = "N")]
    checkpoint_store_keep: Option<NonZeroUsize>,
    /// The engine's options.
    #[command(flatten)]
    #[serde(flatten)]
    options: OptionArgs<OfServe>,
    /// How much memory the node may have allocated, as 200mb or 4gb, before what needs more is refused (OOM); 0: no limit
    /// [default: 0]
    #[arg(long, env = "ORDAIN_MAXMEMORY", value_name = "SIZE")]
    maxmemory: Option<Size>,
    /// Memory that the records of the node may take, as 200mb or 4gb: the values of others are on disk, and read when they are
    /// needed [default: all records are in memory]
    #[arg(long, env = "ORDAIN_MEMORY_BUDGET", value_name = "SIZE")]
    memory_budget: Option<Size>,
    /// A TOML file with any of these flags as keys, or one that describes a cluster
    #[arg(long, env = "ORDAIN_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// Which node of the cluster that --config describes this one is
    #[arg(long, env = "ORDAIN_NODE", value_name = "N")]
    #[serde(skip)]
    node: Option<u16>,
    /// This node has lost its data: its directory is empty, and it gets everything from its members, as a new member in
    /// the place of the lost one
    #[arg(long)]
    #[serde(skip)]
    join: bool,
    /// The file with the secret that the nodes of a cluster share
    #[arg(long, env = "ORDAIN_SECRET_FILE", value_name = "FILE")]
    #[serde(skip)]
    secret_file: Option<PathBuf>,
    /// End when the process with this number, which has started this one, is gone
    #[arg(long, value_name = "PID", hide = true)]
    #[serde(skip)]
    parent: Option<u32>,
    /// What to log on stderr: error, warn, info, debug, trace, or a filter per module [default: info]
    #[arg(long, env = "ORDAIN_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Log lines as JSON
    #[arg(long, env = "ORDAIN_LOG_JSON", num_args = 0..=1, default_missing_value = "true")]
    log_json: Option<bool>,
}

/// The arguments of which each has what the first of two has, or else what the second has; and some by themselves.
macro_rules! first_given {
    ($first:ident, $second:ident: $($name:ident),+; { $($rest:tt)* }) => {
        ServeArgs { $($name: $first.$name.or($second.$name),)+ $($rest)* }
    };
}

impl ServeArgs {
    /// Reads the file of a node on its own.
    fn parse(text: &str) -> anyhow::Result<ServeArgs> {
        let args: ServeArgs = toml::from_str(text)
            .map_err(|error| anyhow::anyhow!("{}", error.to_string().replace('\n', " ")))?;
        args.options.given.check_keys(text)?;
        Ok(args)
    }

    /// Fills what was not given from the file. Of options that exclude each other, one that is given undoes the file's other.
    fn or(self, mut file: ServeArgs) -> ServeArgs {
        if self.password.is_some() || self.password_file.is_some() {
            (file.password, file.password_file) = (None, None);
        }
        if self.durability.is_some() {
            file.ephemeral = None;
        }
        if self.ephemeral == Some(true) {
            file.durability = None;
        }
        first_given!(self, file:
            listen, admin, data_dir, ephemeral, engine, durability, threads, password, password_file,
            users_file, tls_port, tls_only, tls_cert_file, tls_key_file, tls_ca_cert_file, tls_auth_clients,
            admin_tls, admin_user, admin_password_file, insecure, checkpoint_log_bytes, log_keep_bytes,
            log_segment_bytes, checkpoint_store, checkpoint_store_keep, maxmemory, memory_budget, log, log_json; {
            options: self.options.given.or(&file.options.given).into(),
            config: self.config,
            node: self.node,
            join: self.join,
            secret_file: self.secret_file,
            parent: self.parent,
        })
    }

    /// All arguments, and the place in a cluster, if there is one.
    fn resolve(self) -> anyhow::Result<(ServeArgs, Option<Membership>)> {
        let text = match &self.config {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("cannot read the configuration file {}", path.display()))?,
        };
        let name = || format!("configuration file {}", self.config.clone().unwrap_or_default().display());
        if ClusterFile::is_one(&text) {
            let file = ClusterFile::parse(&text).with_context(name)?;
            return self.join(file);
        }
        anyhow::ensure!(
            self.node.is_none() && self.secret_file.is_none(),
            "--node and --secret-file are for a node of a cluster, and no file describes one: name it with --config"
        );
        let file = ServeArgs::parse(&text).with_context(name)?;
        Ok((self.or(file), None))
    }

    /// The arguments that a cluster's file has for each of its nodes.
    fn of(file: ClusterFile) -> ServeArgs {
        ServeArgs {
            ephemeral: file.ephemeral,
            engine: file.engine,
            threads: Some(file.threads),
            password: file.password.map(|password| password.reveal().to_owned()),
            password_file: file.password_file,
            users_file: file.users_file,
            tls_port: file.tls_port,
            tls_only: file.tls_only,
            tls_cert_file: file.tls_cert_file,
            tls_key_file: file.tls_key_file,
            tls_ca_cert_file: file.tls_ca_cert_file,
            tls_auth_clients: file.tls_auth_clients,
            admin_tls: file.admin_tls,
            admin_user: file.admin_user,
            admin_password_file: file.admin_password_file,
            insecure: file.insecure,
            checkpoint_log_bytes: file.checkpoint_log_bytes,
            log_keep_bytes: file.log_keep_bytes,
            log_segment_bytes: file.log_segment_bytes,
            checkpoint_store: file.checkpoint_store,
            checkpoint_store_keep: file.checkpoint_store_keep,
            options: file.options.into(),
            maxmemory: file.maxmemory,
            memory_budget: file.memory_budget,
            log: file.log,
            log_json: file.log_json,
            ..ServeArgs::default()
        }
    }

    /// The arguments of a node of the cluster that a file describes. What was given here counts for this node; of what
    /// must be equal on all nodes the others find out when they meet it.
    fn join(self, mut file: ClusterFile) -> anyhow::Result<(ServeArgs, Option<Membership>)> {
        let name = format!("configuration file {}", self.config.clone().unwrap_or_default().display());
        let node = self.node.with_context(|| {
            format!("{name} describes a cluster: say which of its nodes this is with --node")
        })?;
        file.engine = self.engine.clone().or(file.engine);
        file.options = self.options.given.clone().or(&file.options);
        file.threads = self.threads.unwrap_or(file.threads);
        file.insecure = self.insecure.or(file.insecure);
        file.tls_port = self.tls_port.or(file.tls_port);
        file.admin_tls = self.admin_tls.or(file.admin_tls);
        if let Some(path) = &self.secret_file {
            (file.secret, file.secret_file) = (None, Some(path.clone()));
        }
        // Each of the two undoes the other.
        if self.ephemeral == Some(true) {
            (file.ephemeral, file.durability) = (self.ephemeral, None);
        } else if self.durability.is_some() {
            (file.ephemeral, file.durability) = (None, None);
        } else {
            file.ephemeral = self.ephemeral.or(file.ephemeral);
        }
        let cluster = ClusterConfig::new(&file).context(name)?;
        let place = Membership::new(cluster, node)?;
        let member = place.member().clone();
        let of_file = ServeArgs {
            listen: Some(member.resp),
            admin: Some(member.admin),
            data_dir: member.data_dir,
            durability: match place.cluster.keep {
                Keep::Fsync => Some(Durability::Fsync),
                Keep::Os => Some(Durability::Os),
                Keep::Late => Some(Durability::None),
                Keep::Nothing => None,
            },
            ..ServeArgs::of(file)
        };
        Ok((self.or(of_file), Some(place)))
    }

    /// The password of the default user, wherever it is given.
    fn password(&self) -> anyhow::Result<Option<String>> {
        match (&self.password, &self.password_file) {
            (Some(_), Some(_)) => {
                anyhow::bail!(
                    "--password (or ORDAIN_PASSWORD) and --password-file (or ORDAIN_PASSWORD_FILE) both give the password: \
                     drop one"
                )
            }
            (None, Some(path)) => Ok(Some(ordain_node::secrets::read_password(path)?)),
            (password, None) => Ok(password.clone()),
        }
    }

    /// The login at admin servers: a user named for that, or the default user.
    fn admin_login(&self) -> anyhow::Result<Option<Login>> {
        let user = self.admin_user.clone();
        let password = match &self.admin_password_file {
            Some(path) => Some(ordain_node::secrets::read_password(path)?),
            None if user.as_deref().is_none_or(|user| user == DEFAULT_USER) => self.password()?,
            None => anyhow::bail!(
                "--admin-user names a user and nothing says its password: set --admin-password-file"
            ),
        };
        Ok(password.map(|password| Login { user: user.unwrap_or_else(|| DEFAULT_USER.to_owned()), password }))
    }

    /// TLS for clients, if there is a port for it.
    fn tls(&self) -> anyhow::Result<Option<ClientTls>> {
        let files = (&self.tls_cert_file, &self.tls_key_file);
        let Some(port) = self.tls_port else {
            let has_any = files.0.is_some() || files.1.is_some() || self.tls_ca_cert_file.is_some();
            anyhow::ensure!(
                !has_any && !self.tls_only.unwrap_or(false) && self.tls_auth_clients.is_none(),
                "TLS needs a port: set --tls-port, or leave the other --tls flags out"
            );
            return Ok(None);
        };
        let (Some(cert_file), Some(key_file)) = files else {
            anyhow::bail!(
                "--tls-port needs a certificate and its key: set --tls-cert-file and --tls-key-file"
            );
        };
        Ok(Some(ClientTls {
            port,
            only: self.tls_only.unwrap_or(false),
            cert_file: cert_file.clone(),
            key_file: key_file.clone(),
            ca_cert_file: self.tls_ca_cert_file.clone(),
            auth_clients: self.tls_auth_clients.unwrap_or_default(),
        }))
    }

    fn to_config(&self, cluster: Option<Membership>) -> anyhow::Result<ServeConfig> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let threads = self.threads.unwrap_or_else(|| cores.saturating_sub(1).max(1));
        let keep = match (self.ephemeral.unwrap_or(false), self.durability) {
            (true, None) => Keep::Nothing,
            (true, Some(_)) => {
                anyhow::bail!("--ephemeral keeps nothing, so --durability has no meaning beside it: drop one")
            }
            (false, None | Some(Durability::Fsync)) => Keep::Fsync,
            (false, Some(Durability::Os)) => Keep::Os,
            (false, Some(Durability::None)) => Keep::Late,
        };
        let engine = self.engine.as_deref().map_or(Ok(Engine::default()), str::parse)?;
        let options = engine.options(self.options.given.iter())?;
        if self.memory_budget.is_some() {
            let has_views =
                cluster.as_ref().is_some_and(|membership| membership.cluster.topology().has_storage());
            may_evict(&options, keep, has_views)?;
        }
        Ok(ServeConfig {
            memory_budget: self.memory_budget.map(|size| size.0),
            maxmemory_bytes: self.maxmemory.map_or(0, |size| size.0),
            allocated_bytes: crate::memory::allocated,
            listen: self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 6379))),
            admin: self.admin.unwrap_or(ADMIN),
            data_dir: self.data_dir.clone().unwrap_or_else(|| "ordain-data".into()),
            keep,
            engine,
            options,
            threads,
            password: self.password()?,
            users_file: self.users_file.clone(),
            tls: self.tls()?,
            operators: Operators { tls: self.admin_tls, login: self.admin_login()? },
            insecure: self.insecure.unwrap_or(false),
            checkpoint_log_bytes: self.checkpoint_log_bytes.unwrap_or(1 << 30),
            log_keep_bytes: self.log_keep_bytes.unwrap_or(8 << 30),
            log_segment_bytes: self.log_segment_bytes.unwrap_or(64 << 20),
            checkpoint_store: self
                .checkpoint_store
                .clone()
                .map(|store| (store, self.checkpoint_store_keep.unwrap_or(ordain_archive::KEEP))),
            cluster,
            join: self.join,
            config_file: self.config.clone(),
        })
    }
}

fn auth_clients(text: &str) -> Result<AuthClients, String> {
    match text {
        "yes" => Ok(AuthClients::Yes),
        "no" => Ok(AuthClients::No),
        "optional" => Ok(AuthClients::Optional),
        _ => Err("it is yes, no or optional".to_owned()),
    }
}

/// Has the system kill this process when the one that started it ends, in whatever way: a cluster that is run by one
/// command leaves no nodes behind. Elsewhere than on Linux the nodes stay.
fn end_with(parent: u32) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
        set_parent_process_death_signal(Some(Signal::KILL))
            .context("cannot watch the process that started this")?;
        // It may have ended before that.
        let is_there =
            getppid().map(Pid::as_raw_nonzero).is_some_and(|pid| pid.get().cast_unsigned() == parent);
        anyhow::ensure!(is_there, "process {parent}, which started this one, is gone");
    }
    let _ = parent;
    Ok(())
}

/// Runs a node until a signal asks it to stop. True: it drained and stopped.
///
/// # Errors
/// Why it did not start, or stopped by itself.
pub fn run(args: ServeArgs) -> anyhow::Result<bool> {
    if let Some(parent) = args.parent {
        end_with(parent)?;
    }
    let (args, cluster) = args.resolve()?;
    let filter = args.log.as_deref().unwrap_or("info");
    let filter = tracing_subscriber::EnvFilter::try_new(filter).with_context(|| format!("--log {filter}"))?;
    let colours = std::io::stderr().is_terminal();
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_ansi(colours).with_writer(std::io::stderr);
    if args.log_json.unwrap_or(false) {
        lines.json().init()
    } else {
        lines.init()
    }

    if std::env::args_os()
        .any(|word| word.to_string_lossy().starts_with("--password=") || word == "--password")
    {
        tracing::warn!(
            "--password stands in the list of processes, which every user of this machine can read: set ORDAIN_PASSWORD or \
             --password-file instead"
        );
    }
    let config = args.to_config(cluster)?;
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot watch for signals")?;
    let node = Node::start(&config)?;
    if let Some(recovered) = &node.recovered {
        if let Some(torn) = &recovered.torn {
            tracing::warn!(?torn, "the log ended in a torn write, which was never acknowledged: it was cut");
        }
        tracing::info!(
            epochs_up_to = recovered.last_epoch.0,
            transactions = node.replayed,
            "replayed the log of {}",
            config.data_dir.display()
        );
    }
    if !node.is_waiting {
        println!("{}", node.ready_line());
    }

    let (handle, is_to_stop) = (node.handle(), Arc::new(AtomicBool::new(false)));
    let asked = is_to_stop.clone();
    thread::Builder::new().name("ordain-signals".into()).spawn(move || {
        for (times, signal) in signals.forever().enumerate() {
            if times > 0 {
                // A second signal does not wait for slow clients.
                std::process::exit(1);
            }
            tracing::info!(signal, "stopping: finishing what was begun");
            asked.store(true, Ordering::Release);
            handle.stop();
        }
    })?;
    match node.wait() {
        // It is noted, so the next start carries it out.
        Err(Ended::Rebuilds(_) | Ended::Restarts { .. }) if is_to_stop.load(Ordering::Acquire) => {}
        Err(Ended::Restarts { reason }) => {
            tracing::warn!("this node is started again: {reason}");
            return Err(again());
        }
        Err(Ended::Rebuilds(how)) => {
            tracing::warn!(
                "this node was given up by the others, and may have what they have not: it is rebuilt without {}",
                without(how)
            );
            return Err(again());
        }
        ended => ended?,
    }
    tracing::info!("stopped");
    Ok(true)
}

/// Executes the same program anew in this process, with the same arguments, so that its supervisor sees no end. Sockets
/// and files close themselves. Returns only the reason of a failure.
fn again() -> anyhow::Error {
    let start = || -> std::io::Error {
        let program = match std::env::current_exe() {
            Ok(program) => program,
            Err(error) => return error,
        };
        // What it has joined as is written in its directory.
        let words = std::env::args_os().skip(1).filter(|word| word != "--join");
        Command::new(program).args(words).exec()
    };
    anyhow::Error::new(start())
        .context("this node has to be started again, and cannot do that itself: start it")
}

/// Checks that a node may have values on disk.
///
/// # Errors
/// The cluster, the options or the durability of the node forbids it.
fn may_evict(options: &Options, keep: Keep, has_views: bool) -> anyhow::Result<()> {
    anyhow::ensure!(
        !has_views,
        "the servers of regions with storage nodes keep all values in memory, as they do for the other regions: leave --memory-budget out, or \
         `storage` and `servers` out of the cluster file"
    );
    anyhow::ensure!(
        keep != Keep::Nothing,
        "--memory-budget has values on disk, and --ephemeral uses none: drop one of the two"
    );
    anyhow::ensure!(
        !options.has(&CHECKPOINT_MODE)
            || options.choice::<CheckpointMode>(&CHECKPOINT_MODE) != CheckpointMode::ZigZag,
        "--checkpoint-mode zigzag keeps two copies of records in memory: drop it, or drop --memory-budget"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_deterministic::options::PLAN_AHEAD;

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let file: ServeArgs =
            ServeArgs::parse("threads = 3\ndurability = \"os\"\nlisten = \"127.0.0.1:7000\"").unwrap();
        let flags = ServeArgs { threads: Some(2), ..ServeArgs::default() };
        let config = flags.or(file).to_config(None).unwrap();
        assert_eq!((config.threads, config.keep, config.listen.port()), (2, Keep::Os, 7000));
        assert_eq!(config.admin.port(), 9121);
    }

    #[test]
    fn an_option_undoes_what_the_file_has_in_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let [mine, theirs] = ["mine", "theirs"].map(|name| {
            let path = dir.path().join(name);
            std::fs::write(&path, name).unwrap();
            path
        });
        let direct = |word: &str| ServeArgs { password: Some(word.to_owned()), ..ServeArgs::default() };
        let by_file =
            |path: &Path| ServeArgs { password_file: Some(path.to_owned()), ..ServeArgs::default() };
        let password = |args: ServeArgs| args.password().unwrap();
        for is_direct in [true, false] {
            let file = || if is_direct { direct("theirs") } else { by_file(&theirs) };
            assert_eq!(password(direct("mine").or(file())).as_deref(), Some("mine"));
            assert_eq!(password(by_file(&mine).or(file())).as_deref(), Some("mine"));
            assert_eq!(password(ServeArgs::default().or(file())).as_deref(), Some("theirs"));
        }
        let both = ServeArgs { password: Some("mine".into()), ..by_file(&mine) };
        assert!(both.or(ServeArgs::default()).password().unwrap_err().to_string().contains("drop one"));

        let keep = |given: ServeArgs, file: &str| {
            given.or(ServeArgs::parse(file).unwrap()).to_config(None).map(|config| config.keep).unwrap()
        };
        let of = |ephemeral, durability| ServeArgs { ephemeral, durability, ..ServeArgs::default() };
        assert_eq!(keep(of(None, Some(Durability::Os)), "ephemeral = true"), Keep::Os);
        assert_eq!(keep(of(Some(true), None), "durability = \"os\""), Keep::Nothing);
        assert_eq!(keep(of(Some(false), None), "durability = \"os\""), Keep::Os);
        // A cluster's file is no different.
        let path = dir.path().join("cluster.toml");
        let keep = |given: ServeArgs, line: &str| {
            let node = "[[node]]\nid = 0\ncluster = \"127.0.0.1:1\"\nresp = \"127.0.0.1:2\"\nadmin = \"127.0.0.1:3\"\n";
            let text = format!("cluster = \"c\"\npartitions = 1\nreplicas = 1\nthreads = 1\n{line}\n{node}");
            std::fs::write(&path, text).unwrap();
            let (args, place) =
                ServeArgs { config: Some(path.clone()), node: Some(0), ..given }.resolve().unwrap();
            args.to_config(place).unwrap().keep
        };
        assert_eq!(keep(of(None, Some(Durability::Os)), "ephemeral = true"), Keep::Os);
        assert_eq!(keep(of(Some(true), None), "durability = \"os\""), Keep::Nothing);
        assert_eq!(keep(of(Some(false), None), "durability = \"os\""), Keep::Os);
        assert_eq!(keep(of(Some(false), None), "ephemeral = true"), Keep::Fsync);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(ServeArgs::parse("thread = 3").is_err());
        let both =
            ServeArgs { ephemeral: Some(true), durability: Some(Durability::Os), ..ServeArgs::default() };
        assert!(both.to_config(None).is_err());
        let engine = ServeArgs { engine: Some("postgres".into()), ..ServeArgs::default() };
        assert!(engine.to_config(None).unwrap_err().to_string().contains("no engine 'postgres'"));
        let planned = ServeArgs::parse("plan-ahead = 65").unwrap();
        assert!(planned.to_config(None).unwrap_err().to_string().contains("64 batches"));
        let planned = ServeArgs::parse("plan-ahead = 64").unwrap();
        assert_eq!(planned.to_config(None).unwrap().options.number(&PLAN_AHEAD), 64);
    }
}
