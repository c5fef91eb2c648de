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
use ordain_archive::{Location, Standing};
use ordain_resp::Access;
use ordain_role::NodeId;
use ordain_runtime::{Handle, NetStatus, PeerStatus, Reach};
use ordain_sequencer::CouncilSettings;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::admin_access::guarded;
use crate::cluster::{Member, Membership, Replication};
use crate::engine::Engine;
use crate::front::Lobby;

/// What the node is.
#[derive(Debug)]
pub struct About {
    /// Its engine.
    pub engine: Engine,
    /// Its number.
    pub node: NodeId,
    /// Where its front door is.
    pub resp: SocketAddr,
    /// What the front door asks for.
    pub password: Option<String>,
    /// Who may look.
    pub access: Arc<Access>,
    /// Its place in a cluster; none: it is on its own.
    pub cluster: Option<Membership>,
    /// How often it has started over.
    pub started_over: u32,
    /// Its links to other nodes.
    pub links: NetStatus,
    /// Where its checkpoints are taken to, and how that goes.
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
            let router = guarded(router, observed.about.access.clone());
            let router = router.into_make_service_with_connect_info::<SocketAddr>();
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

/// One number, and whose it is.
struct Sample {
    labels: Vec<(&'static str, String)>,
    value: f64,
}

type Samples = BTreeMap<&'static str, Vec<Sample>>;

impl Observed {
    /// All numbers by metric name.
    fn samples(&self) -> Samples {
        let mut samples = Samples::new();
        self.handle.inspect(|snapshot| {
            let mut add = |name, role: &str, value| {
                let labels = vec![("role", role.to_owned()), ("loop", snapshot.name.clone())];
                samples.entry(name).or_default().push(Sample { labels, value });
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
            let labels = vec![("role", "node".to_owned()), ("loop", "all".to_owned())];
            samples.entry(name).or_default().push(Sample { labels, value });
        }
        for link in self.about.links.peers() {
            let is_up = link.reach == Reach::Connected;
            let round_trip = link.rtt.map(|time| ("ordain_link_round_trip_seconds", time.0 as f64 / 1e6));
            let numbers = [
                ("ordain_link_up", f64::from(u8::from(is_up))),
                ("ordain_link_kept_bytes", link.kept_bytes as f64),
                ("ordain_link_sent_bytes_total", link.output_bytes as f64),
                ("ordain_link_received_bytes_total", link.input_bytes as f64),
                ("ordain_link_reconnects_total", link.reconnects as f64),
            ];
            for (name, value) in numbers.into_iter().chain(round_trip) {
                let labels = vec![("peer", link.node.0.to_string())];
                samples.entry(name).or_default().push(Sample { labels, value });
            }
        }
        if let Some((_, standing)) = &self.about.archive {
            let report = standing.report();
            for (name, value) in [
                ("ordain_archive_epoch", report.epoch.0 as f64),
                ("ordain_archive_kept", report.kept as f64),
                ("ordain_archive_uploading", f64::from(u8::from(report.uploading.is_some()))),
                ("ordain_archive_uploaded_total", report.uploaded as f64),
                ("ordain_archive_uploaded_bytes_total", report.bytes as f64),
                ("ordain_archive_failures_total", report.failures as f64),
                ("ordain_archive_failing", f64::from(u8::from(report.failing.is_some()))),
            ] {
                let labels = vec![("role", "archiver".to_owned()), ("loop", "none".to_owned())];
                samples.entry(name).or_default().push(Sample { labels, value });
            }
        }
        samples
    }

    /// The sum of a metric over all loops; 0 if there is none.
    fn sum(samples: &Samples, name: &str) -> f64 {
        samples.get(name).map_or(0.0, |samples| samples.iter().map(|s| s.value).sum())
    }

    /// The largest value of a metric over all loops.
    fn max(samples: &Samples, name: &str) -> f64 {
        samples.get(name).map_or(0.0, |samples| samples.iter().map(|s| s.value).fold(0.0, f64::max))
    }

    /// The smallest.
    fn min(samples: &Samples, name: &str) -> f64 {
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
            info.checkpoint_s = sum("ordain_checkpoint_seconds") as u64;
            info.checkpoint_is_made = sum("ordain_checkpoint_writing") > 0.0;
            info.checkpoint_failed = sum("ordain_checkpoint_failing") > 0.0;
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

/// Who decides what a partition's input is, as far as this node knows.
#[derive(Debug, PartialEq, Eq)]
struct Command {
    role: &'static str,
    leader: Option<u16>,
    term: Option<u64>,
}

impl Command {
    /// Reads it from what the roles report of themselves.
    fn of(about: &About, samples: &Samples) -> Command {
        let command = Command::among_twins(about, samples);
        Command { role: if behind(samples) > 0.0 { "behind" } else { command.role }, ..command }
    }

    fn among_twins(about: &About, samples: &Samples) -> Command {
        let alone = about.cluster.as_ref().is_none_or(|place| place.cluster.members.len() == 1);
        let replication = about.cluster.as_ref().map_or(Replication::None, |place| place.cluster.replication);
        let own = about.node.0;
        if alone || replication == Replication::None {
            let role = if alone { "single" } else { "leader" };
            return Command { role, leader: Some(own), term: None };
        }
        if replication == Replication::Async {
            let is = |name| Observed::max(samples, name) > 0.0;
            let is_master = is("ordain_ship_is_master");
            // Until the council has heard of this node it knows no more than who was master when all began.
            let is_known = is("ordain_council_has_arrived") && !is("ordain_council_is_fenced");
            let known = is_known.then(|| Observed::max(samples, "ordain_council_master") as u16);
            return Command {
                role: if is_master { "master" } else { "slave" },
                leader: if is_master { Some(own) } else { known },
                term: Some(Observed::max(samples, "ordain_council_term") as u64),
            };
        }
        let is_leader = Observed::max(samples, "ordain_group_is_leader") > 0.0;
        // Below zero: none is known.
        let known = samples.get("ordain_group_leader").and_then(|all| all.first()).map(|sample| sample.value);
        let known = known.filter(|node| *node >= 0.0).map(|node| node as u16);
        Command {
            role: if is_leader { "leader" } else { "follower" },
            leader: if is_leader { Some(own) } else { known },
            term: Some(Observed::max(samples, "ordain_group_term") as u64),
        }
    }
}

/// What stands between a node and its work, as far as it knows.
fn obstacles(about: &About, samples: &Samples, command: &Command, links: &[PeerStatus]) -> Vec<String> {
    let Some(place) = &about.cluster else { return Vec::new() };
    let grid = place.cluster.topology();
    let mut found = Vec::new();
    let is_async = place.cluster.replication == Replication::Async;
    if command.leader.is_none() {
        let partition = place.partition();
        found.push(match is_async {
            true => {
                format!("partition {partition} has no master that this node knows: one is being agreed on")
            }
            false => format!("partition {partition} has no leader that this node knows"),
        });
    }
    found.extend(is_async.then(|| council_is_gone(about, links)).flatten());
    found.extend(shortfalls(place, samples));
    for link in links {
        let what = match link.reach {
            Reach::Connected => continue,
            Reach::Refused(reason) => format!("is refused: {reason}"),
            // A lost node of another replica is nothing that this one waits for.
            Reach::Connecting | Reach::Lost if grid.replica_of(link.node) != place.replica() => continue,
            Reach::Connecting => "is not reached yet".to_owned(),
            Reach::Lost => "is lost".to_owned(),
        };
        found.push(format!("node {} (partition {}) {what}", link.node.0, grid.partition_of(link.node)));
    }
    found
}

/// That so many members of the council are missing that nobody can be made master, and no master may go on.
fn council_is_gone(about: &About, links: &[PeerStatus]) -> Option<String> {
    let members = CouncilSettings::members(&about.cluster.as_ref()?.cluster.topology());
    let is_missing =
        |node: &NodeId| links.iter().any(|link| link.node == *node && link.reach != Reach::Connected);
    let missing: Vec<NodeId> = members.iter().copied().filter(is_missing).collect();
    let list = |nodes: &[NodeId]| nodes.iter().map(|node| node.0.to_string()).collect::<Vec<_>>().join(", ");
    (2 * missing.len() > members.len()).then(|| {
        format!(
            "of the council (nodes {}), which says who is master, nodes {} are not reached, and two must be there: \
             start them",
            list(&members),
            list(&missing)
        )
    })
}

/// Whether a node has yet to be let into its group: it may answer, but its partition does not count on it, so that no
/// other node should be stopped.
fn is_joining(samples: &Samples) -> bool {
    samples.contains_key("ordain_group_is_voter") && Observed::max(samples, "ordain_group_is_voter") == 0.0
}

/// Up to which epoch the others do not keep any more what a node needs; 0 if they do.
fn behind(samples: &Samples) -> f64 {
    Observed::max(samples, "ordain_log_behind_epoch")
        .max(Observed::max(samples, "ordain_courier_behind_epoch"))
}

const JOINING: &str = "this node is joining and not let in yet";

/// What a node has not got that it needs.
fn shortfalls(place: &Membership, samples: &Samples) -> Vec<String> {
    let mut found = Vec::new();
    if Observed::max(samples, "ordain_group_unfounded") > 0.0 {
        let who = match place.cluster.replication {
            Replication::Async => "the council".to_owned(),
            Replication::None | Replication::Sync => format!("partition {}", place.partition()),
        };
        found.push(format!("the nodes of {who} have not all met yet, which they must once: start them"));
    }
    found.extend(is_joining(samples).then(|| JOINING.to_owned()));
    let (lacking, behind) = (Observed::max(samples, "ordain_courier_lacking_epoch"), behind(samples));
    if behind > 0.0 {
        found.push(format!(
            "what comes next here is not in the logs of the other nodes of its partition any more, which begin after \
             epoch {behind}: it gets a checkpoint from one of them that has a newer one"
        ));
    } else if lacking > 0.0 {
        let remedy = match place.cluster.replicas {
            1 => "and no other node has it: restore a copy of this node's data directory that is not as old",
            _ => "and is read from the other nodes of its partition",
        };
        found.push(format!(
            "what came in from other partitions up to epoch {lacking} is missing here, {remedy}"
        ));
    }
    found
}

/// Why a question of ours was not answered as it should be, and what may be the cause.
fn not_ready(answer: io::Result<String>, obstacles: &[String]) -> String {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            format!("a transaction is not answered within {} s", PATIENCE.as_secs())
        }
        Err(error) => error.to_string(),
    };
    if obstacles.is_empty() { answer } else { format!("{answer}; {}", obstacles.join("; ")) }
}

async fn readyz(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    // A transaction over the whole table, all partitions: if that is answered, everything between works.
    match observed.ask("DBSIZE").await {
        Ok(answer) if answer.starts_with(':') => match is_joining(&observed.samples()) {
            true => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {JOINING}\n")),
            false => (StatusCode::OK, "ready\n".to_owned()),
        },
        answer => {
            let samples = observed.samples();
            let command = Command::of(&observed.about, &samples);
            let obstacles = obstacles(&observed.about, &samples, &command, &observed.about.links.peers());
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {}\n", not_ready(answer, &obstacles)))
        }
    }
}

async fn status(State(observed): State<Arc<Observed>>) -> impl IntoResponse {
    let about = &observed.about;
    let answer = observed.ask("DEBUG DIGEST").await;
    let digest = answer.as_ref().ok().and_then(|a| a.strip_prefix('+').map(str::to_owned));
    let samples = observed.samples();
    let (command, links) = (Command::of(about, &samples), about.links.peers());
    let not_ready = match &digest {
        Some(_) => is_joining(&samples).then(|| JOINING.to_owned()),
        None => Some(not_ready(answer, &obstacles(about, &samples, &command, &links))),
    };
    let epoch = Observed::sum(&samples, "ordain_sequencer_epoch");
    // The shards know of epochs with something in them, the courier of all.
    let of_all = samples.contains_key("ordain_courier_progress_epoch");
    let name = if of_all { "ordain_courier_progress_epoch" } else { "ordain_shard_applied_epoch" };
    let applied = Observed::min(&samples, name);
    let place = about.cluster.as_ref();
    Json(json!({
        "node": about.node.0,
        "cluster": place.map(|place| &place.cluster.id),
        "partition": place.map_or(0, |place| place.partition().0),
        "replica": place.map_or(0, |place| place.replica().0),
        "engine": about.engine.name(),
        "replication": place.map_or(Replication::None, |place| place.cluster.replication).name(),
        "role": command.role,
        "leader": command.leader,
        "term": command.term,
        "not_ready": not_ready,
        "resp": about.resp.to_string(),
        "epoch": epoch as u64,
        "applied_epoch": applied as u64,
        "durable_epoch": Observed::max(&samples, "ordain_log_durable_epoch") as u64,
        "lag": (epoch - applied).max(0.0) as u64,
        "behind_epochs": Observed::max(&samples, "ordain_ship_behind_epochs") as u64,
        "behind_bytes": Observed::max(&samples, "ordain_ship_behind_bytes") as u64,
        "checkpoint": checkpoint(&samples),
        "checkpoint_store": about.archive.as_ref().map(archive),
        "started_over": about.started_over,
        "map_version": Observed::max(&samples, "ordain_shard_map_version") as u64,
        "slots": Observed::sum(&samples, "ordain_shard_slots") as u64,
        "members": place.map(members).unwrap_or_default(),
        "peers": links.iter().map(peer).collect::<Vec<_>>(),
        "digest": digest,
        "committed": Observed::sum(&samples, "ordain_shard_committed_total") as u64,
        "aborted": Observed::sum(&samples, "ordain_shard_aborted_total") as u64,
        "connections": observed.lobby.connections().0,
        "records": Observed::sum(&samples, "ordain_store_records") as u64,
        "memory_bytes": resident_bytes(),
    }))
}

/// The newest complete checkpoint, and how the next one goes.
fn checkpoint(samples: &Samples) -> Value {
    let sum = |name| Observed::sum(samples, name) as u64;
    json!({
        "epoch": sum("ordain_checkpoint_epoch"),
        "seconds": sum("ordain_checkpoint_seconds"),
        "kept": sum("ordain_checkpoint_kept"),
        "saved_epoch": sum("ordain_checkpoint_saved_epoch"),
        "writing": sum("ordain_checkpoint_writing") > 0,
        "failing": sum("ordain_checkpoint_failing") > 0,
        "given_up": sum("ordain_checkpoint_given_up_total"),
    })
}

/// Where checkpoints are taken to, and how that goes.
fn archive((location, standing): &(Location, Standing)) -> Value {
    let report = standing.report();
    json!({
        "url": location.to_string(),
        "epoch": report.epoch.0,
        "kept": report.kept,
        "uploading": report.uploading.map(|epoch| epoch.0),
        "uploaded": report.uploaded,
        "bytes": report.bytes,
        "failures": report.failures,
        "failing": report.failing,
    })
}

/// All nodes of the cluster, this one too.
fn members(place: &Membership) -> Vec<Value> {
    let grid = place.cluster.topology();
    let member = |member: &Member| {
        json!({
            "node": member.node.0,
            "partition": grid.partition_of(member.node).0,
            "replica": grid.replica_of(member.node).0,
            "resp": member.resp.to_string(),
            "admin": member.admin.to_string(),
            "cluster": member.cluster.to_string(),
        })
    };
    place.cluster.members.iter().map(member).collect()
}

/// A link, as it is shown.
fn peer(link: &PeerStatus) -> Value {
    let (state, reason) = match link.reach {
        Reach::Connecting => ("connecting", None),
        Reach::Connected => ("connected", None),
        Reach::Lost => ("lost", None),
        Reach::Refused(reason) => ("refused", Some(reason.to_string())),
    };
    json!({
        "node": link.node.0,
        "address": link.address.to_string(),
        "state": state,
        "reason": reason,
        "rtt_us": link.rtt.map(|time| time.0),
        "kept_bytes": link.kept_bytes,
        "sent_bytes": link.output_bytes,
        "received_bytes": link.input_bytes,
        "reconnects": link.reconnects,
    })
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

struct Numbers(Samples);

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
            for Sample { labels, value } in samples {
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(name, label)| (*name, label.as_str())).collect();
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

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::Micros;
    use ordain_runtime::Refusal;

    use crate::cluster::{ClusterConfig, ClusterFile};

    /// Node 2 of a cluster of two partitions and two replicas.
    fn about(replicas: u16) -> About {
        about_with(replicas, "")
    }

    /// The same, with a line of the cluster's file.
    fn about_with(replicas: u16, line: &str) -> About {
        let node = |id: usize| {
            let at = |kind: usize| format!("\"127.0.0.1:{}\"", 7000 + kind * 100 + id);
            format!("[[node]]\nid = {id}\ncluster = {}\nresp = {}\nadmin = {}\n", at(0), at(1), at(2))
        };
        let nodes: String = (0..2 * usize::from(replicas)).map(node).collect();
        let head = format!("cluster = \"c\"\npartitions = 2\nreplicas = {replicas}\nthreads = 1\n{line}\n");
        let file = ClusterFile::parse(&format!("{head}{nodes}")).unwrap();
        let id = 2 * (replicas - 1);
        About {
            engine: Engine::Calvin,
            node: NodeId(id),
            resp: SocketAddr::from(([127, 0, 0, 1], 7102)),
            password: None,
            access: Arc::default(),
            cluster: Some(Membership::new(ClusterConfig::new(&file).unwrap(), id).unwrap()),
            started_over: 0,
            links: NetStatus::default(),
            archive: None,
        }
    }

    fn link(node: u16, reach: Reach) -> PeerStatus {
        PeerStatus {
            node: NodeId(node),
            address: SocketAddr::from(([127, 0, 0, 1], 7000 + node)),
            reach,
            rtt: Some(Micros(70)),
            input_bytes: 1,
            output_bytes: 2,
            kept_bytes: 0,
            reconnects: 1,
        }
    }

    fn samples(numbers: &[(&'static str, f64)]) -> Samples {
        numbers
            .iter()
            .map(|(name, value)| (*name, vec![Sample { labels: Vec::new(), value: *value }]))
            .collect()
    }

    #[test]
    fn a_node_knows_who_leads_its_partition() {
        let twin = about(2);
        let of = |numbers: &[(&'static str, f64)]| Command::of(&twin, &samples(numbers));
        let leads = of(&[("ordain_group_is_leader", 1.0), ("ordain_group_term", 4.0)]);
        assert_eq!(leads, Command { role: "leader", leader: Some(2), term: Some(4) });
        let follows = of(&[("ordain_group_leader", 0.0), ("ordain_group_term", 5.0)]);
        assert_eq!(follows, Command { role: "follower", leader: Some(0), term: Some(5) });
        let lost = of(&[("ordain_group_leader", -1.0)]);
        assert_eq!(lost.leader, None);
        let behind = of(&[("ordain_group_leader", 0.0), ("ordain_log_behind_epoch", 7.0)]);
        assert_eq!((behind.role, behind.leader), ("behind", Some(0)));
        assert_eq!(Command::of(&about(1), &samples(&[])).role, "leader");
        let alone = About { cluster: None, ..about(1) };
        assert_eq!(Command::of(&alone, &samples(&[])).role, "single");
    }

    #[test]
    fn a_slave_knows_its_master_once_the_council_knows_of_it() {
        let twin = about_with(2, "replication = \"async\"");
        let of = |numbers: &[(&'static str, f64)]| Command::of(&twin, &samples(numbers));
        let seat = [("ordain_council_term", 3.0), ("ordain_council_master", 0.0)];
        let arrived = [&seat[..], &[("ordain_council_has_arrived", 1.0)]].concat();
        assert_eq!(of(&seat), Command { role: "slave", leader: None, term: Some(3) });
        assert_eq!(of(&arrived), Command { role: "slave", leader: Some(0), term: Some(3) });
        let fenced = [&arrived[..], &[("ordain_council_is_fenced", 1.0)]].concat();
        assert_eq!(of(&fenced).leader, None);
        let master = [&arrived[..], &[("ordain_ship_is_master", 1.0)]].concat();
        assert_eq!(of(&master), Command { role: "master", leader: Some(2), term: Some(3) });
    }

    #[test]
    fn a_council_of_which_two_are_gone_is_in_the_way() {
        let twin = about_with(2, "replication = \"async\"");
        let command = Command { role: "slave", leader: None, term: Some(1) };
        // The council: nodes 0, 2 and 1.
        let found = |links: &[PeerStatus]| obstacles(&twin, &samples(&[]), &command, links).join("; ");
        let said = found(&[link(0, Reach::Lost), link(1, Reach::Lost), link(3, Reach::Connected)]);
        for words in ["partition 0 has no master", "(nodes 0, 2, 1)", "nodes 0, 1 are not reached"] {
            assert!(said.contains(words), "'{words}' is not in: {said}");
        }
        let one = found(&[link(0, Reach::Connected), link(1, Reach::Lost), link(3, Reach::Lost)]);
        assert!(!one.contains("council"), "{one}");
        let unfounded =
            shortfalls(twin.cluster.as_ref().unwrap(), &samples(&[("ordain_group_unfounded", 1.0)]));
        assert!(unfounded[0].starts_with("the nodes of the council have not all met"), "{unfounded:?}");
    }

    #[test]
    fn a_node_that_is_not_ready_says_what_is_in_its_way() {
        let about = about(2);
        let command = Command { role: "follower", leader: None, term: Some(1) };
        let links = [link(0, Reach::Lost), link(1, Reach::Refused(Refusal::Secret)), link(3, Reach::Lost)];
        let found = obstacles(&about, &samples(&[]), &command, &links);
        let said = not_ready(Err(io::ErrorKind::TimedOut.into()), &found);
        let expected = format!(
            "a transaction is not answered within 2 s; partition 0 has no leader that this node knows; \
             node 1 (partition 1) is refused: {}; node 3 (partition 1) is lost",
            Refusal::Secret
        );
        assert_eq!(said, expected, "and node 0 is of another replica");
        let led = Command { leader: Some(0), ..command };
        let whole = [("ordain_group_is_voter", 1.0), ("ordain_courier_lacking_epoch", 0.0)];
        assert!(obstacles(&about, &samples(&whole), &led, &[link(3, Reach::Connected)]).is_empty());
        let numbers = [
            ("ordain_group_is_voter", 0.0),
            ("ordain_courier_lacking_epoch", 7.0),
            ("ordain_group_unfounded", 1.0),
        ];
        let found = obstacles(&about, &samples(&numbers), &led, &[]).join("; ");
        let is_behind = [("ordain_courier_behind_epoch", 9.0), ("ordain_courier_lacking_epoch", 7.0)];
        let found = format!("{found}; {}", obstacles(&about, &samples(&is_behind), &led, &[]).join("; "));
        for words in [
            "have not all met",
            "not let in yet",
            "up to epoch 7 is missing here",
            "from the other nodes",
            "begin after epoch 9: it gets a checkpoint",
        ] {
            assert!(found.contains(words), "'{words}' is not in: {found}");
        }
        assert_eq!(not_ready(Ok("-BUSY".into()), &[]), "-BUSY");
    }

    #[test]
    fn a_status_names_all_members_and_links() {
        let about = about(2);
        let place = about.cluster.as_ref();
        let all = place.map(members).unwrap();
        assert_eq!(all.len(), 4);
        assert_eq!(
            (&all[3]["partition"], &all[3]["replica"], &all[3]["admin"]),
            (&json!(1), &json!(1), &json!("127.0.0.1:7203"))
        );
        let shown = peer(&link(1, Reach::Refused(Refusal::Cluster)));
        assert_eq!((&shown["address"], &shown["state"]), (&json!("127.0.0.1:7001"), &json!("refused")));
        assert_eq!((&shown["reason"], &shown["rtt_us"]), (&json!(Refusal::Cluster.to_string()), &json!(70)));
    }
}
