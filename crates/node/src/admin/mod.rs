//! The admin HTTP server: what operators and their tools look at.
//!
//! It runs on one thread beside the data plane. What it knows it reads from the loops' snapshots and from the links, so
//! that looking costs nothing and works on a node that is stuck: `metrics` gathers the numbers, `catalogue` says
//! what they mean, and `status` makes of them how the node is.

mod access;
mod catalogue;
mod listener;
mod metrics;
mod regions;
mod series;
mod status;

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse};
use axum::routing::get;
use axum::{Json, Router};
use ordain_archive::{Location, Standing};
use ordain_engines::registry::Engine;
use ordain_model::Doubts;
use ordain_resp::Access;
use ordain_resp::diagnostics::Diagnostics;
use ordain_resp::memory::Memory;
use ordain_role::NodeId;
use ordain_runtime::{Current, Handle, NetStatus, RunTimes};
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::admin_client::{Asker, Target};
use crate::certificates::Renewals;
use crate::cluster::Membership;
use crate::front::Mailboxes;
use access::guarded;
use listener::{Port, Traffic};
use metrics::{Samples, resident_bytes};
use series::History;

pub(crate) use listener::Peer;
pub(crate) use series::PATIENCE;

/// The identity and the parts of a node that its pages describe.
#[derive(Debug)]
pub struct About {
    /// The engine.
    pub engine: Engine,
    /// The number.
    pub node: NodeId,
    /// The address for clients.
    pub resp: SocketAddr,
    /// What is in doubt here.
    pub doubts: Doubts,
    /// The users and their rights.
    pub access: Arc<Access>,
    /// The address for clients in TLS, if there is one.
    pub tls: Option<SocketAddr>,
    /// The TLS of the admin server, if it is in TLS.
    pub admin_tls: Option<Current<ServerConfig>>,
    /// The client of the other nodes' admin servers.
    pub asker: Asker,
    /// The replacements of certificates.
    pub(crate) renewals: Arc<Renewals>,
    /// The measurements of its requests.
    pub diagnostics: Arc<Diagnostics>,
    /// The times that its scripts ran, by shard.
    pub run_times: Vec<RunTimes>,
    /// The limit of its memory.
    pub memory: Arc<Memory>,
    /// The place in a cluster; none: it is on its own.
    pub cluster: Option<Membership>,
    /// The number of rebuilds.
    pub rebuilds: u32,
    /// The links to other nodes.
    pub links: NetStatus,
    /// The store of its checkpoints, and the state of uploads.
    pub archive: Option<(Location, Standing)>,
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
    mailboxes: Arc<Mailboxes>,
    /// Commands counted at the last refresh.
    commands: Mutex<u64>,
    opened: Mutex<Opened>,
    traffic: Arc<Traffic>,
    history: Mutex<History>,
    /// The latest summaries of the other nodes of the cluster.
    others: Mutex<Vec<Value>>,
}

/// How many slow requests the page shows.
const SLOW: usize = 20;
/// The engine's numbers that INFO shows, of those that the node's roles report.
const ENGINE_GAUGES: [&str; 12] = [
    "ordain_shard_committed_total",
    "ordain_shard_aborted_total",
    "ordain_shard_blocked_total",
    "ordain_coordinator_committed_total",
    "ordain_coordinator_aborts_total",
    "ordain_coordinator_attempts_total",
    "ordain_coordinator_failed_total",
    "ordain_participant_waited_total",
    "ordain_values_budget_bytes",
    "ordain_values_disk_bytes",
    "ordain_values_hits_total",
    "ordain_values_misses_total",
];
/// How often what INFO shows is refreshed.
const REFRESH: Duration = Duration::from_millis(500);

/// Milliseconds since the Unix epoch.
fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic of a holder leaves it usable: all is overwritten or added to whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Admin {
    /// Starts the server on a listening socket.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start(
        listener: TcpListener,
        handle: Handle,
        mailboxes: Arc<Mailboxes>,
        about: About,
    ) -> io::Result<Admin> {
        let (stop, mut stopped) = watch::channel(false);
        let observed = Arc::new(Observed {
            about,
            handle,
            mailboxes,
            commands: Mutex::new(0),
            opened: Mutex::default(),
            traffic: Arc::default(),
            history: Mutex::default(),
            others: Mutex::default(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let serve = async move {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let port = Port::new(listener, observed.about.admin_tls.clone());
            let router = Router::new()
                .route("/", get(async || Html(include_str!("page.html"))))
                .route("/healthz", get(async || "ok\n"))
                .route("/readyz", get(readyz))
                .route("/status", get(show_status))
                .route("/metrics", get(metrics))
                .route("/series", get(show_series))
                .with_state(observed.clone());
            let router = guarded(router, observed.about.access.clone());
            let refresh = async {
                let mut tick = tokio::time::interval(REFRESH);
                loop {
                    tick.tick().await;
                    observed.refresh();
                }
            };
            let look_around = async {
                let mut tick = tokio::time::interval(Duration::from_secs(series::STEP_S));
                loop {
                    tick.tick().await;
                    observed.take_point();
                    observed.ask_others().await;
                }
            };
            tokio::select! {
                () = listener::serve(port, router, observed.traffic.clone()) => io::Result::Ok(()),
                () = refresh => Ok(()),
                () = look_around => Ok(()),
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
        // Without a receiver the thread has ended already.
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Observed {
    /// Brings what INFO shows up to date.
    fn refresh(&self) {
        let samples = Samples::gather(self);
        if samples.has(status::opened_by(&samples)) {
            let (epoch, _) = status::epochs(&samples);
            lock(&self.opened).note(epoch);
        }
        let sum = |name| samples.sum(name);
        let commands = sum("ordain_front_commands_total") as u64;
        let mut last = lock(&self.commands);
        let per_second = commands.saturating_sub(*last) as f64 / REFRESH.as_secs_f64();
        *last = commands;
        let (open, made, refused) = self.mailboxes.connections();
        let resident = resident_bytes();
        self.mailboxes.inform(|info| {
            info.clients = open as u64;
            info.connections_total = made;
            info.hits_total = sum("ordain_shard_hits_total") as u64;
            info.misses_total = sum("ordain_shard_misses_total") as u64;
            info.expired_total = sum("ordain_shard_expired_total") as u64;
            info.connections_refused_total = refused;
            info.commands_total = commands;
            info.commands_per_second = per_second as u64;
            info.input_bytes_total = sum("ordain_front_input_bytes_total") as u64;
            info.output_bytes_total = sum("ordain_front_output_bytes_total") as u64;
            info.memory_bytes = (sum("ordain_store_memory_bytes") + sum("ordain_view_memory_bytes")) as u64;
            info.memory_resident_bytes = resident;
            info.memory_peak_bytes = info.memory_peak_bytes.max(resident);
            info.epoch = status::epochs(&samples).0;
            info.checkpoint_s = sum("ordain_checkpoint_seconds") as u64;
            info.checkpoint_is_made = sum("ordain_checkpoint_writing") > 0.0;
            info.checkpoint_failed = sum("ordain_checkpoint_failing") > 0.0;
            info.cpu_user_us = (sum("ordain_loop_cpu_seconds_total") * 1e6) as u64;
            info.engine_gauges = ENGINE_GAUGES
                .iter()
                .filter(|name| samples.has(name))
                .map(|name| ((*name).to_owned(), format!("{}", sum(name))))
                .collect();
            info.regions = regions::info(&self.about, &samples, now_ms());
        });
    }

    /// Adds a point to the last ten minutes, and looks for latency spikes that no request shows.
    fn take_point(&self) {
        let at_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let samples = Samples::gather(self);
        let spikes = lock(&self.history).take(at_s, &samples);
        let Some(threshold) = self.mailboxes.spike_ms() else { return };
        for (event, took) in spikes.into_iter().filter(|(_, took)| took.0 / 1000 >= threshold) {
            self.about.diagnostics.note_spike(event, at_s as u64, took.0 / 1000);
        }
    }

    /// Asks the other nodes of the cluster how they are.
    async fn ask_others(&self) {
        let Some(place) = &self.about.cluster else { return };
        let mut asked = JoinSet::new();
        for member in place.cluster.members.iter().filter(|member| member.node != self.about.node) {
            let target = Target {
                address: member.admin_name.clone(),
                is_tls: place.cluster.is_admin_in_tls(member.admin),
            };
            asked.spawn(series::ask(member.node.0, target, self.about.asker.clone()));
        }
        let mut others = asked.join_all().await;
        others.sort_by_key(|other| other["node"].as_u64());
        *lock(&self.others) = others;
    }

    /// An epoch that was opened a while ago and is not executed yet, if there is one. Under load this node is always a
    /// little behind; one that is stuck stays behind what it was.
    fn overdue(&self, samples: &Samples) -> Option<u64> {
        let (_, applied) = status::epochs(samples);
        lock(&self.opened).due().filter(|epoch| applied < *epoch)
    }
}

/// The epochs that were opened lately.
#[derive(Debug, Default)]
struct Opened(VecDeque<u64>);

impl Opened {
    /// The number of refreshes that are remembered: so long has an epoch to be executed.
    const KEPT: usize = 6;

    fn note(&mut self, epoch: u64) {
        self.0.push_back(epoch);
        if self.0.len() > Opened::KEPT {
            self.0.pop_front();
        }
    }

    /// The last epoch that ought to be executed by now; none while all have been opened lately.
    fn due(&self) -> Option<u64> {
        self.0.front().copied().filter(|_| self.0.len() == Opened::KEPT)
    }
}

async fn readyz(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    let samples = Samples::gather(&observed);
    let links = observed.about.links.peers();
    let obstacles = status::obstacles(&observed.about, &samples, &links, observed.overdue(&samples));
    match obstacles.is_empty() {
        true => (StatusCode::OK, "ready\n".to_owned()),
        false => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", obstacles.join("; "))),
    }
}

async fn show_series(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    let samples = Samples::gather(&observed);
    let slow = observed.about.diagnostics.slow(SLOW).into_iter().map(|slow| {
        let words = slow.words.iter().map(|word| String::from_utf8_lossy(word).into_owned());
        json!({
            "id": slow.id,
            "at_s": slow.at_s,
            "took_us": slow.took.0,
            "words": words.collect::<Vec<_>>(),
            "peer": slow.peer,
            "client": String::from_utf8_lossy(&slow.client),
        })
    });
    let (slow, others) = (slow.collect(), lock(&observed.others).clone());
    let series = lock(&observed.history).show(&samples, &others, slow);
    Json(series)
}

async fn show_status(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    Json(status::status(&observed, &Samples::gather(&observed)))
}

async fn metrics(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    match Samples::gather(&observed).text() {
        Ok(body) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, [(header::CONTENT_TYPE, kind)], body)
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, [(header::CONTENT_TYPE, "text/plain")], String::new()),
    }
}
