//! `ordain serve`: flags, environment and file make one configuration; signals end the node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;

use anyhow::Context;
use clap::{Args, ValueEnum};
use ordain_model::Micros;
use ordain_node::assembly::Keep;
use ordain_node::engine::Engine;
use ordain_node::serve::{Node, ServeConfig};
use serde::Deserialize;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// When an acknowledged write is durable.
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

/// The flags of `ordain serve`. Each is also a key of the configuration file and an environment variable; a flag
/// beats the environment, the environment beats the file.
#[derive(Debug, Default, Args, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
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
    /// The engine. `calvin`, the default, is the only one that is built so far: all transactions in one sequence,
    /// strictly serializable [default: calvin]
    #[arg(long, env = "ORDAIN_ENGINE", value_name = "NAME")]
    engine: Option<String>,
    /// When an acknowledged write is durable [default: fsync]
    #[arg(long, env = "ORDAIN_DURABILITY")]
    durability: Option<Durability>,
    /// Event loops, each with a share of the data [default: one less than the cores, at least 1]
    #[arg(long, env = "ORDAIN_THREADS", value_name = "N")]
    threads: Option<usize>,
    /// Clients must AUTH with this password
    #[arg(long, env = "ORDAIN_PASSWORD", hide_env_values = true)]
    password: Option<String>,
    /// Accept connections from other machines without a password
    #[arg(long, env = "ORDAIN_INSECURE", num_args = 0..=1, default_missing_value = "true")]
    insecure: Option<bool>,
    /// How long a batch waits for more transactions although it could be closed, microseconds [default: 0]
    #[arg(long, env = "ORDAIN_LINGER_US", value_name = "US")]
    linger_us: Option<u64>,
    /// A TOML file with any of these flags as keys
    #[arg(long, env = "ORDAIN_CONFIG", value_name = "FILE")]
    #[serde(skip)]
    config: Option<PathBuf>,
    /// What to log on stderr: error, warn, info, debug, trace, or a filter per module [default: info]
    #[arg(long, env = "ORDAIN_LOG", value_name = "FILTER")]
    log: Option<String>,
    /// Log lines as JSON
    #[arg(long, env = "ORDAIN_LOG_JSON", num_args = 0..=1, default_missing_value = "true")]
    log_json: Option<bool>,
}

impl ServeArgs {
    /// Fills what was not given from the file.
    fn or(self, file: ServeArgs) -> ServeArgs {
        ServeArgs {
            listen: self.listen.or(file.listen),
            admin: self.admin.or(file.admin),
            data_dir: self.data_dir.or(file.data_dir),
            ephemeral: self.ephemeral.or(file.ephemeral),
            engine: self.engine.or(file.engine),
            durability: self.durability.or(file.durability),
            threads: self.threads.or(file.threads),
            password: self.password.or(file.password),
            insecure: self.insecure.or(file.insecure),
            linger_us: self.linger_us.or(file.linger_us),
            config: self.config,
            log: self.log.or(file.log),
            log_json: self.log_json.or(file.log_json),
        }
    }

    fn resolve(self) -> anyhow::Result<ServeArgs> {
        let Some(path) = self.config.clone() else { return Ok(self) };
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
        let file: ServeArgs = toml::from_str(&text).map_err(|e| {
            anyhow::anyhow!("configuration file {}: {}", path.display(), e.to_string().replace('\n', " "))
        })?;
        Ok(self.or(file))
    }

    fn to_config(&self) -> anyhow::Result<ServeConfig> {
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
        Ok(ServeConfig {
            listen: self.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 6379))),
            admin: self.admin.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 9121))),
            data_dir: self.data_dir.clone().unwrap_or_else(|| "ordain-data".into()),
            keep,
            engine: self.engine.as_deref().map_or(Ok(Engine::default()), str::parse)?,
            threads,
            password: self.password.clone(),
            insecure: self.insecure.unwrap_or(false),
            linger: Micros(self.linger_us.unwrap_or(0)),
            config_file: self.config.clone(),
        })
    }
}

/// Runs a node until it is told to stop. True: it drained and stopped.
///
/// # Errors
/// Why it did not start, or stopped by itself.
pub fn run(args: ServeArgs) -> anyhow::Result<bool> {
    let args = args.resolve()?;
    let filter = args.log.as_deref().unwrap_or("info");
    let filter = tracing_subscriber::EnvFilter::try_new(filter).with_context(|| format!("--log {filter}"))?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if args.log_json.unwrap_or(false) {
        lines.json().init()
    } else {
        lines.init()
    }

    let config = args.to_config()?;
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
    println!("{}", node.ready_line());

    let handle = node.handle();
    thread::Builder::new().name("ordain-signals".into()).spawn(move || {
        for (times, signal) in signals.forever().enumerate() {
            if times > 0 {
                // Asked twice: whoever asks does not want to wait for slow clients.
                std::process::exit(1);
            }
            tracing::info!(signal, "stopping: finishing what was begun");
            handle.stop();
        }
    })?;
    node.wait()?;
    tracing::info!("stopped");
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_beats_the_file_and_the_file_beats_the_default() {
        let file: ServeArgs =
            toml::from_str("threads = 3\ndurability = \"os\"\nlisten = \"127.0.0.1:7000\"").unwrap();
        let flags = ServeArgs { threads: Some(2), ..ServeArgs::default() };
        let config = flags.or(file).to_config().unwrap();
        assert_eq!((config.threads, config.keep, config.listen.port()), (2, Keep::Os, 7000));
        assert_eq!(config.admin.port(), 9121);
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(toml::from_str::<ServeArgs>("thread = 3").is_err());
        let both =
            ServeArgs { ephemeral: Some(true), durability: Some(Durability::Os), ..ServeArgs::default() };
        assert!(both.to_config().is_err());
        let engine = ServeArgs { engine: Some("maat".into()), ..ServeArgs::default() };
        assert!(engine.to_config().unwrap_err().to_string().contains("not built yet"));
    }
}
