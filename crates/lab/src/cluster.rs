//! A cluster of processes (`ordain cluster up`), and clients that ask a node all the time.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ordain_node::given::Given;
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;

use crate::bench::scratch;
use crate::interrupt;
use crate::resp::{Link, Protocol, Target};
use crate::server::last_error;

/// Longest time until the cluster is whole.
const WHOLE: Duration = Duration::from_secs(120);

/// A cluster of processes, until this is dropped.
#[derive(Debug)]
pub struct Cluster {
    binary: PathBuf,
    child: Child,
    directory: tempfile::TempDir,
}

/// A node in `cluster.json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Member {
    pub id: u16,
    resp: String,
    pid: Option<i32>,
}

impl Member {
    /// The address for clients.
    pub fn target(&self) -> anyhow::Result<Target> {
        Ok(Target::at(self.resp.parse().context("an address in cluster.json")?))
    }

    /// Sends its process a signal.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid.and_then(Pid::from_raw);
        let pid = pid.with_context(|| format!("node {} does not run", self.id))?;
        kill_process(pid, signal).with_context(|| format!("cannot signal node {}", self.id))
    }
}

/// A node in what `ordain cluster status` writes.
#[derive(Debug, Deserialize)]
pub struct Node {
    #[serde(rename = "node")]
    pub id: u16,
    pub partition: u16,
    pub replica: u16,
    leader: Option<u16>,
}

impl Node {
    /// True if the node leads its partition.
    pub fn leads(&self) -> bool {
        self.leader == Some(self.id)
    }
}

#[derive(Deserialize)]
struct Nodes<N> {
    nodes: Vec<N>,
}

fn nodes<N: for<'a> Deserialize<'a>>(path: &Path) -> anyhow::Result<Vec<N>> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_json::from_slice::<Nodes<N>>(&text)?.nodes)
}

impl Cluster {
    /// Starts so many partitions times replicas, which agree on what is written.
    pub fn start(
        (engine, options): (&str, &Given),
        (partitions, replicas): (u16, u16),
        place: Option<&Path>,
    ) -> anyhow::Result<Cluster> {
        let binary = std::env::current_exe().context("cannot find our own program")?;
        let directory = scratch(place)?;
        let log = fs::File::create(directory.path().join("stderr"))
            .context("cannot write to a temporary directory")?;
        let mut command = Command::new(&binary);
        command.args(["cluster", "up", "--restart", "--base-port", "0", "--replication", "sync"]);
        command.args(["--engine", engine]).arg("--data-dir").arg(directory.path().join("cluster"));
        command.args(["--partitions", &partitions.to_string(), "--replicas", &replicas.to_string()]);
        command.args(options.iter().map(|(name, value)| format!("--option={name}={value}")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        let is_ready = lines.map_while(Result::ok).any(|line| line.starts_with("ready "));
        let cluster = Cluster { binary, child, directory };
        if !is_ready {
            let log = fs::read_to_string(cluster.directory.path().join("stderr")).unwrap_or_default();
            bail!("the cluster did not start: {}", last_error(&log));
        }
        Ok(cluster)
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("cluster")
    }

    /// All nodes, with their processes.
    pub fn members(&self) -> anyhow::Result<Vec<Member>> {
        nodes(&self.home().join("cluster.json"))
    }

    /// Waits until every node is well and every partition has a leader, and returns the nodes.
    pub fn whole(&self) -> anyhow::Result<Vec<Node>> {
        let json = self.directory.path().join("status.json");
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            let mut status = Command::new(&self.binary);
            status.args(["cluster", "status", "--data-dir"]).arg(self.home()).arg("--json").arg(&json);
            let done = status.output().context("cannot run `ordain cluster status`")?;
            if done.status.success() {
                let nodes: Vec<Node> = nodes(&json)?;
                let is_led =
                    |node: &Node| nodes.iter().any(|it| it.partition == node.partition && it.leads());
                if nodes.iter().all(is_led) {
                    return Ok(nodes);
                }
            }
            ensure!(
                begun.elapsed() < WHOLE,
                "the cluster is not whole after {} s: {}",
                WHOLE.as_secs(),
                String::from_utf8_lossy(&done.stderr).trim()
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Stops all nodes.
    pub fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).context("cannot stop the cluster")?;
        let status = self.child.wait().context("waiting for the cluster to stop")?;
        ensure!(status.success(), "the cluster ended with {status}");
        Ok(())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its nodes end with it. One that was stopped before is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A thread with a connection that asks all the time, until it is stopped; `T` is what it has to report.
#[derive(Debug)]
pub struct Client<T> {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<T>>,
}

impl<T: Send + 'static> Client<T> {
    /// Connects to a node, and asks again and again.
    pub fn start(
        target: &Target,
        mut report: T,
        mut asks: impl FnMut(&mut Link, &mut T) -> anyhow::Result<()> + Send + 'static,
    ) -> anyhow::Result<Client<T>> {
        let (stops, mut link) = (Arc::new(AtomicBool::new(false)), Link::open(target, Protocol::Resp2)?);
        let stop = stops.clone();
        let thread = thread::Builder::new().name("client".to_owned()).spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                asks(&mut link, &mut report)?;
            }
            Ok(report)
        })?;
        Ok(Client { stops, thread })
    }

    /// True if the client could not go on.
    pub fn has_ended(&self) -> bool {
        self.thread.is_finished()
    }

    /// Stops it, and returns its report.
    pub fn stop(self) -> anyhow::Result<T> {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?
    }
}
