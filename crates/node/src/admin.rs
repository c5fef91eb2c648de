//! The admin HTTP server: what operators and their tools look at.
//!
//! It runs on one thread beside the data plane. What it knows it reads from the loops' snapshots; what only a
//! transaction can tell, such as the digest, it asks as any client does.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use axum::{Json, Router};
use ordain_role::NodeId;
use ordain_runtime::Handle;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::engine::Engine;
use crate::front::Lobby;

/// What the node is.
#[derive(Clone, Debug)]
pub struct About {
    /// Its engine.
    pub engine: Engine,
    /// Its number.
    pub node: NodeId,
    /// Where its front door is.
    pub resp: SocketAddr,
    /// What the front door asks for.
    pub password: Option<String>,
}

/// The running server; it ends when this is dropped.
#[derive(Debug)]
pub struct Admin {
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

struct Observed {
    about: About,
    handle: Handle,
    lobby: Arc<Lobby>,
    /// Commands counted at the last refresh.
    commands: Mutex<u64>,
}

/// How often what INFO shows is refreshed.
const REFRESH: Duration = Duration::from_millis(500);
/// How long the front door has to answer the admin server.
const PATIENCE: Duration = Duration::from_secs(2);

impl Admin {
    /// Starts the server on a listening socket.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        listener: TcpListener,
        handle: Handle,
        lobby: Arc<Lobby>,
        about: About,
    ) -> io::Result<Admin> {
        let (stop, mut stopped) = watch::channel(false);
        let observed = Arc::new(Observed { about, handle, lobby, commands: Mutex::new(0) });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let router = Router::new()
                .route("/", get(async || Html(include_str!("admin.html"))))
                .route("/healthz", get(async || "ok\n"))
                .route("/readyz", get(readyz))
                .route("/status", get(status))
                .route("/metrics", get(metrics))
                .with_state(observed.clone());
            let refresh = async {
                let mut tick = tokio::time::interval(REFRESH);
                loop {
                    tick.tick().await;
                    observed.refresh();
                }
            };
            tokio::select! {
                ended = axum::serve(listener, router) => ended,
                () = refresh => Ok(()),
                _ = stopped.wait_for(|stop| *stop) => Ok(()),
            }
        };
        let thread = std::thread::Builder::new().name("ordain-admin".into()).spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::error!(%error, "the admin server has stopped");
            }
        })?;
        Ok(Admin { stop, thread: Some(thread) })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        // If nobody listens the thread has ended already.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One number of one loop.
struct Sample {
    role: String,
    event_loop: String,
    value: f64,
}

impl Observed {
    /// All numbers by metric name.
    fn samples(&self) -> BTreeMap<&'static str, Vec<Sample>> {
        let mut samples: BTreeMap<&'static str, Vec<Sample>> = BTreeMap::new();
        self.handle.inspect(|snapshot| {
            let mut add = |name, role: &str, value| {
                samples.entry(name).or_default().push(Sample {
                    role: role.to_owned(),
                    event_loop: snapshot.name.clone(),
                    value,
                });
            };
            add("ordain_loop_cpu_seconds_total", "loop", snapshot.cpu.as_secs_f64());
            add("ordain_loop_turns_total", "loop", snapshot.turns as f64);
            add("ordain_loop_sleeps_total", "loop", snapshot.sleeps as f64);
            add("ordain_loop_messages_sent_total", "loop", snapshot.sent as f64);
            for role in &snapshot.roles {
                add("ordain_role_events_total", role.name, role.events as f64);
                role.gauges.iter().for_each(|(name, value)| add(name, role.name, *value));
            }
        });
        let (open, made, refused) = self.lobby.connections();
        for (name, value) in [
            ("ordain_connections", open as f64),
            ("ordain_connections_total", made as f64),
            ("ordain_connections_refused_total", refused as f64),
            ("ordain_process_resident_memory_bytes", resident_bytes() as f64),
        ] {
            let (role, event_loop) = ("node".to_owned(), "all".to_owned());
            samples.entry(name).or_default().push(Sample { role, event_loop, value });
        }
        samples
    }

    /// The sum of a metric over all loops; 0 if there is none.
    fn sum(samples: &BTreeMap<&'static str, Vec<Sample>>, name: &str) -> f64 {
        samples.get(name).map_or(0.0, |samples| samples.iter().map(|s| s.value).sum())
    }

    /// The largest value of a metric over all loops.
    fn max(samples: &BTreeMap<&'static str, Vec<Sample>>, name: &str) -> f64 {
        samples.get(name).map_or(0.0, |samples| samples.iter().map(|s| s.value).fold(0.0, f64::max))
    }

    /// The smallest.
    fn min(samples: &BTreeMap<&'static str, Vec<Sample>>, name: &str) -> f64 {
        let all = samples
            .get(name)
            .map_or(f64::INFINITY, |s| s.iter().map(|s| s.value).fold(f64::INFINITY, f64::min));
        if all.is_finite() { all } else { 0.0 }
    }

    /// Brings what INFO shows up to date.
    fn refresh(&self) {
        let samples = self.samples();
        let sum = |name| Observed::sum(&samples, name);
        let commands = sum("ordain_front_commands_total") as u64;
        let mut last = self.commands.lock().unwrap_or_else(PoisonError::into_inner);
        let per_second = commands.saturating_sub(*last) as f64 / REFRESH.as_secs_f64();
        *last = commands;
        let (open, made, refused) = self.lobby.connections();
        let resident = resident_bytes();
        self.lobby.inform(|info| {
            info.clients = open as u64;
            info.connections_total = made;
            info.connections_refused_total = refused;
            info.commands_total = commands;
            info.commands_per_second = per_second as u64;
            info.input_bytes_total = sum("ordain_front_input_bytes_total") as u64;
            info.output_bytes_total = sum("ordain_front_output_bytes_total") as u64;
            info.memory_bytes = sum("ordain_store_memory_bytes") as u64;
            info.memory_resident_bytes = resident;
            info.memory_peak_bytes = info.memory_peak_bytes.max(resident);
            info.epoch = sum("ordain_sequencer_epoch") as u64;
            info.cpu_user_us = (sum("ordain_loop_cpu_seconds_total") * 1e6) as u64;
            info.engine_gauges =
                ["ordain_shard_committed_total", "ordain_shard_aborted_total", "ordain_shard_parked_total"]
                    .iter()
                    .map(|name| ((*name).to_owned(), format!("{}", sum(name))))
                    .collect();
        });
    }

    /// Asks the front door something as an ordinary client.
    async fn ask(&self, command: &str) -> io::Result<String> {
        let exchange = async {
            let mut stream = BufReader::new(TcpStream::connect(self.about.resp).await?);
            let mut answer = String::new();
            if let Some(password) = &self.about.password {
                let auth = format!("*2\r\n$4\r\nAUTH\r\n${}\r\n{password}\r\n", password.len());
                stream.write_all(auth.as_bytes()).await?;
                stream.read_line(&mut answer).await?;
                answer.clear();
            }
            stream.write_all(format!("{command}\r\n").as_bytes()).await?;
            stream.read_line(&mut answer).await?;
            Ok(answer.trim_end().to_owned())
        };
        tokio::time::timeout(PATIENCE, exchange).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

async fn readyz(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    // A transaction over the whole table: if that is answered, everything between works.
    match observed.ask("DBSIZE").await {
        Ok(answer) if answer.starts_with(':') => (StatusCode::OK, "ready\n".to_owned()),
        Ok(answer) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {answer}\n")),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {error}\n")),
    }
}

async fn status(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    let digest = observed.ask("DEBUG DIGEST").await.ok().and_then(|a| a.strip_prefix('+').map(str::to_owned));
    let samples = observed.samples();
    let epoch = Observed::sum(&samples, "ordain_sequencer_epoch");
    let applied = Observed::min(&samples, "ordain_shard_applied_epoch");
    let About { engine, node, resp, .. } = &observed.about;
    Json(json!({
        "node": node.0,
        "engine": engine.name(),
        "role": "leader",
        "resp": resp.to_string(),
        "epoch": epoch as u64,
        "applied_epoch": applied as u64,
        "durable_epoch": Observed::max(&samples, "ordain_log_durable_epoch") as u64,
        "lag": (epoch - applied).max(0.0) as u64,
        "peers": [],
        "digest": digest,
        "committed": Observed::sum(&samples, "ordain_shard_committed_total") as u64,
        "aborted": Observed::sum(&samples, "ordain_shard_aborted_total") as u64,
        "connections": observed.lobby.connections().0,
        "records": Observed::sum(&samples, "ordain_store_records") as u64,
        "memory_bytes": resident_bytes(),
    }))
}

async fn metrics(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Numbers(observed.samples())));
    let mut body = String::new();
    match text::encode(&mut body, &registry) {
        Ok(()) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], body)
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], String::new()),
    }
}

struct Numbers(BTreeMap<&'static str, Vec<Sample>>);

impl fmt::Debug for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

impl Collector for Numbers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, samples) in &self.0 {
            let (base, kind) = match name.strip_suffix("_total") {
                Some(base) => (base, MetricType::Counter),
                None => (*name, MetricType::Gauge),
            };
            let help = base.trim_start_matches("ordain_").replace('_', " ");
            let mut metric = encoder.encode_descriptor(base, &help, None, kind)?;
            for Sample { role, event_loop, value } in samples {
                let labels = [("role", role.as_str()), ("loop", event_loop.as_str())];
                let mut sample = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => sample.encode_counter::<NoLabelSet, f64, f64>(value, None)?,
                    _ => sample.encode_gauge(value)?,
                }
            }
        }
        Ok(())
    }
}

/// Memory of this process that is in use, bytes; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    resident.unwrap_or(0) * 4096
}
