//! `ordain bench failover`: for how long writes are not acknowledged when a node that leads is killed.
//!
//! A cluster of real processes (`ordain cluster up --restart`) is written to all the time: by one client for each
//! partition, whose transactions are on that partition alone, and by one whose transactions are on all. Then the process of
//! a partition's leader is killed with SIGKILL, or frozen with SIGSTOP. What counts is the longest time between two
//! acknowledgements that one client got, the second of them after the blow; it holds everything that a user waits for: that
//! somebody notices, that another leads, and that what was under way is asked for again. Clients are connected to nodes of
//! other replicas than that of the node that is hit, as a client of that node would have to connect anew first.
//!
//! In the end the cluster must hold whatever was acknowledged.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use ordain_model::{Datum, KeyHash, Layout, PartitionId};
use ordain_node::given::Given;
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

use crate::bench::scratch;
use crate::interrupt;
use crate::options::{OptionArgs, Plain};
use crate::report::{check_writable, median, table};
use crate::resp::{Link, Speech, Target};
use crate::server::last_words;

/// How the leader is hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Blow {
    /// With SIGKILL; it is started again.
    Kill,
    /// With SIGSTOP; it goes on after the measurement.
    Freeze,
}

/// What `ordain bench failover` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct FailoverArgs {
    /// The engine
    #[arg(long, default_value = "calvin", value_name = "NAME")]
    engine: String,
    #[command(flatten)]
    options: OptionArgs<Plain>,
    /// How many parts the data is divided in
    #[arg(long, default_value_t = 3, value_name = "P", value_parser = clap::value_parser!(u16).range(1..=64))]
    partitions: u16,
    /// How many copies there are of each
    #[arg(long, default_value_t = 3, value_name = "R", value_parser = clap::value_parser!(u16).range(3..=7))]
    replicas: u16,
    /// How the leader of a partition is hit
    #[arg(long, value_enum, default_value_t = Blow::Kill)]
    blow: Blow,
    /// How often, each time the next partition's leader
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Write what was found to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where temporary files go [default: the system's directory for such]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// How long the cluster may take to be whole.
const WHOLE: Duration = Duration::from_secs(120);
/// How long clients may be without an acknowledgement. Then it has failed.
const PATIENCE: Duration = Duration::from_secs(40);
/// How long clients write before the blow, and after all of them have been acknowledged something since.
const AROUND: Duration = Duration::from_millis(500);
/// How often is looked whether something has happened.
const LOOK: Duration = Duration::from_millis(5);

/// What one blow has come to. Times are milliseconds.
#[derive(Clone, Debug, Serialize)]
struct Outcome {
    /// The partition whose leader was hit, and that node.
    partition: u16,
    node: u16,
    /// The longest time without an acknowledgement of a client of that partition alone,
    hit_ms: f64,
    /// of a client of another partition alone,
    others_ms: f64,
    /// and of one whose transactions are on all partitions.
    all_ms: f64,
    /// The longest such time in the half second before the blow, of any.
    before_ms: f64,
}

/// Runs it; says whether everything acknowledged was there in the end.
///
/// # Errors
/// The cluster did not start, or was not whole again in time.
pub fn run(args: &FailoverArgs) -> anyhow::Result<bool> {
    check_writable("--json", args.json.as_deref())?;
    let binary = std::env::current_exe().context("cannot find our own program")?;
    let shape = (args.partitions, args.replicas);
    let cluster =
        Cluster::start(&binary, (&args.engine, &args.options.given), shape, args.data_dir.as_deref())?;
    let layout = Layout::even(args.partitions.into(), 1)?;
    let mut outcomes = Vec::new();
    let mut lost = 0;
    for repetition in 0..args.repeat {
        interrupt::check()?;
        let (outcome, missing) = strike(&cluster, &layout, repetition % args.partitions, args.blow)?;
        outcomes.push(outcome);
        lost += missing;
    }
    cluster.stop()?;
    let mut shown =
        table(&["hit", "its partition, ms", "other partitions, ms", "all partitions, ms", "before, ms"], 1);
    for it in &outcomes {
        let times = [it.hit_ms, it.others_ms, it.all_ms, it.before_ms].map(|ms| format!("{ms:.0}"));
        shown.add_row(
            [vec![format!("node {} of partition {}", it.node, it.partition)], times.into()].concat(),
        );
    }
    let of = |time: fn(&Outcome) -> f64| median(outcomes.iter().map(time));
    let medians = [of(|it| it.hit_ms), of(|it| it.others_ms), of(|it| it.all_ms), of(|it| it.before_ms)];
    shown.add_row([vec!["median".to_owned()], medians.map(|ms| format!("{ms:.0}")).into()].concat());
    println!("{shown}");
    if let Some(path) = &args.json {
        let found = serde_json::json!({
            "engine": args.engine, "partitions": args.partitions, "replicas": args.replicas, "blow": args.blow,
            "median_ms": { "hit": medians[0], "others": medians[1], "all": medians[2], "before": medians[3] },
            "outcomes": outcomes, "lost": lost,
        });
        fs::write(path, serde_json::to_string_pretty(&found)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if lost > 0 {
        eprintln!("{lost} acknowledged writes were lost");
    }
    Ok(lost == 0)
}

/// Hits the leader of a partition while clients write; and how many acknowledged writes were not there afterwards.
fn strike(
    cluster: &Cluster,
    layout: &Layout,
    partition: u16,
    blow: Blow,
) -> anyhow::Result<(Outcome, usize)> {
    let nodes = cluster.whole()?;
    let victim = nodes.iter().find(|node| node.partition == partition && node.leads());
    let victim = victim.with_context(|| format!("nobody leads partition {partition}"))?;
    let record = cluster.record()?;
    let resp = |id: u16| record.nodes.iter().find(|node| node.id == id).map(|node| node.resp.clone());
    // One client for each partition, and the last for all.
    let keys: Vec<Vec<u8>> = (0..layout.partitions()).map(|partition| key_of(layout, partition)).collect();
    let of = |n: usize| keys.get(n).map_or_else(|| keys.clone(), |key| vec![key.clone()]);
    let doors: Vec<&Node> = nodes.iter().filter(|node| node.replica != victim.replica).collect();
    let mut writers = Vec::new();
    for n in 0..=keys.len() {
        let door = doors[n % doors.len()].id;
        let address = resp(door).with_context(|| format!("cluster.json has no node {door}"))?;
        writers.push(Writer::start(address, of(n), n as u64)?);
    }
    let pid = record.nodes.iter().find(|node| node.id == victim.id).and_then(|node| node.pid);
    let pid = pid.and_then(Pid::from_raw).with_context(|| format!("node {} does not run", victim.id))?;
    let begun = Instant::now();
    wait(begun, &writers)?;
    let signal = if blow == Blow::Kill { Signal::KILL } else { Signal::STOP };
    let hit = Instant::now();
    kill_process(pid, signal).context("cannot signal a node")?;
    let heard = wait(hit, &writers);
    if blow == Blow::Freeze {
        kill_process(pid, Signal::CONT).context("cannot signal a node")?;
    }
    let written: Vec<Written> = writers.into_iter().map(Writer::stop).collect::<anyhow::Result<_>>()?;
    heard?;
    let longest = |n: usize| longest_gap(&written[n].acknowledged, hit);
    let others = (0..keys.len()).filter(|n| *n != usize::from(partition)).map(longest);
    let before = written.iter().map(|it| {
        let until = it.acknowledged.partition_point(|at| *at <= hit);
        longest_gap(&it.acknowledged[..until], begun)
    });
    let outcome = Outcome {
        partition,
        node: victim.id,
        hit_ms: longest(partition.into()),
        others_ms: others.fold(0.0, f64::max),
        all_ms: longest(keys.len()),
        before_ms: before.fold(0.0, f64::max),
    };
    cluster.whole()?;
    let mut missing = 0;
    for (n, written) in written.iter().enumerate() {
        let address = resp(doors[0].id).context("cluster.json has lost a node")?;
        let mut link = Link::open(&Target::at(address.parse()?), Speech::Resp2)?;
        for key in of(n) {
            let reply = link.ask(&[b"GET", &*names(&key, n as u64)])?;
            let found =
                Datum::first(&reply).as_bytes().and_then(|bytes| str::from_utf8(bytes).ok()?.parse().ok());
            missing += usize::from(found.unwrap_or(0) < written.last);
        }
    }
    Ok((outcome, missing))
}

/// Waits until all have been acknowledged something that they asked for after a time, and a little longer.
fn wait(since: Instant, writers: &[Writer]) -> anyhow::Result<()> {
    let mut after = None;
    loop {
        interrupt::check()?;
        if after.is_none() && writers.iter().all(|writer| writer.has_heard_since(since)) {
            after = Some(Instant::now());
        }
        if after.is_some_and(|at| at.elapsed() >= AROUND) {
            return Ok(());
        }
        ensure!(
            since.elapsed() < PATIENCE,
            "a client was not acknowledged anything within {} s: see the nodes' logs",
            PATIENCE.as_secs()
        );
        thread::sleep(LOOK);
    }
}

/// The longest time between two of these, the second of them after a time; milliseconds.
fn longest_gap(at: &[Instant], after: Instant) -> f64 {
    let gaps = at.windows(2).filter(|pair| pair[1] > after).map(|pair| pair[1] - pair[0]);
    gaps.max().unwrap_or_default().as_secs_f64() * 1e3
}

/// A key of a partition.
fn key_of(layout: &Layout, partition: u16) -> Vec<u8> {
    let is_there = |key: &Vec<u8>| layout.partition_of(KeyHash::of(key).slot()) == PartitionId(partition);
    let tag = (0u32..).map(|n| n.to_string().into_bytes()).find(is_there);
    tag.unwrap_or_default()
}

/// The key that a client writes there: the tag alone says where it is.
fn names(tag: &[u8], client: u64) -> Vec<u8> {
    [b"{", tag, b"}:", client.to_string().as_bytes()].concat()
}

/// A client that writes all the time, one transaction after the other.
#[derive(Debug)]
struct Writer {
    stops: Arc<AtomicBool>,
    /// When the last that was acknowledged was asked for, in nanoseconds since `since`.
    asked: Arc<AtomicU64>,
    since: Instant,
    thread: JoinHandle<anyhow::Result<Written>>,
}

/// What it has written.
#[derive(Debug, Default)]
struct Written {
    /// When something was acknowledged.
    acknowledged: Vec<Instant>,
    /// The last number that was.
    last: u64,
}

impl Writer {
    fn start(address: String, tags: Vec<Vec<u8>>, client: u64) -> anyhow::Result<Writer> {
        let (stops, asked, since) =
            (Arc::new(AtomicBool::new(false)), Arc::<AtomicU64>::default(), Instant::now());
        let (stop, tell) = (stops.clone(), asked.clone());
        let target = Target::at(address.parse()?);
        let thread = thread::Builder::new().name(format!("writer-{client}")).spawn(move || {
            let mut link = Link::open(&target, Speech::Resp2)?;
            // Beyond whatever an earlier one has written.
            let mut number =
                std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_micros() as u64;
            let mut written = Written::default();
            while !stop.load(Ordering::Relaxed) {
                number += 1;
                let text = number.to_string().into_bytes();
                let mut words = vec![b"MSET".to_vec()];
                words.extend(tags.iter().flat_map(|tag| [names(tag, client), text.clone()]));
                let at = since.elapsed().as_nanos() as u64;
                let reply = link.ask(&words)?;
                match Datum::first(&reply) {
                    Datum::Status(b"OK") => {
                        written.acknowledged.push(Instant::now());
                        written.last = number;
                        tell.store(at, Ordering::Release);
                    }
                    // Not done, or nobody knows: asked again, with a larger number.
                    Datum::Error(_) => thread::sleep(LOOK),
                    other => bail!("MSET was answered {other:?}"),
                }
            }
            Ok(written)
        })?;
        Ok(Writer { stops, asked, since, thread })
    }

    fn has_heard_since(&self, time: Instant) -> bool {
        let asked = Duration::from_nanos(self.asked.load(Ordering::Acquire));
        self.thread.is_finished() || (!asked.is_zero() && self.since + asked > time)
    }

    fn stop(self) -> anyhow::Result<Written> {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?
    }
}

/// A cluster of processes, until this is dropped.
#[derive(Debug)]
pub(crate) struct Cluster {
    binary: PathBuf,
    child: Child,
    directory: tempfile::TempDir,
}

/// What is used of `cluster.json`.
#[derive(Debug, Deserialize)]
pub(crate) struct Record {
    pub(crate) nodes: Vec<Process>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Process {
    pub(crate) id: u16,
    pub(crate) resp: String,
    pub(crate) pid: Option<i32>,
}

/// What is used of what `ordain cluster status` says.
#[derive(Debug, Deserialize)]
struct Status {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Node {
    #[serde(rename = "node")]
    pub(crate) id: u16,
    partition: u16,
    replica: u16,
    leader: Option<u16>,
}

impl Node {
    pub(crate) fn leads(&self) -> bool {
        self.leader == Some(self.id)
    }
}

impl Cluster {
    /// Starts so many partitions times replicas, that agree on what is written.
    pub(crate) fn start(
        binary: &Path,
        (engine, options): (&str, &Given),
        (partitions, replicas): (u16, u16),
        place: Option<&Path>,
    ) -> anyhow::Result<Cluster> {
        let directory = scratch(place)?;
        let log = fs::File::create(directory.path().join("stderr"))
            .context("cannot write to a temporary directory")?;
        let mut command = Command::new(binary);
        command.args(["cluster", "up", "--restart", "--base-port", "0", "--replication", "sync"]);
        command.args(["--engine", engine]).arg("--data-dir").arg(directory.path().join("cluster"));
        command.args(["--partitions", &partitions.to_string(), "--replicas", &replicas.to_string()]);
        command.args(options.iter().map(|(name, value)| format!("--option={name}={value}")));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().with_context(|| format!("cannot start {}", binary.display()))?;
        let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
        let is_ready = lines.map_while(Result::ok).any(|line| line.starts_with("ready "));
        let cluster = Cluster { binary: binary.to_owned(), child, directory };
        if !is_ready {
            let said = fs::read_to_string(cluster.directory.path().join("stderr")).unwrap_or_default();
            bail!("the cluster did not start: {}", last_words(&said));
        }
        Ok(cluster)
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("cluster")
    }

    pub(crate) fn record(&self) -> anyhow::Result<Record> {
        let text = fs::read(self.home().join("cluster.json")).context("cannot read cluster.json")?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Waits until every node is well and every partition has a leader, and says who that is.
    pub(crate) fn whole(&self) -> anyhow::Result<Vec<Node>> {
        let json = self.directory.path().join("status.json");
        let begun = Instant::now();
        loop {
            interrupt::check()?;
            let mut status = Command::new(&self.binary);
            status.args(["cluster", "status", "--data-dir"]).arg(self.home()).arg("--json").arg(&json);
            let done = status.output().context("cannot run `ordain cluster status`")?;
            if done.status.success() {
                let Status { nodes } = serde_json::from_slice(&fs::read(&json)?)?;
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

    pub(crate) fn stop(mut self) -> anyhow::Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)
            .context("cannot tell the cluster to stop")?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_is_the_longest_wait_that_ends_after_the_blow() {
        let begun = Instant::now();
        let at = [0, 400, 410, 900, 950].map(|ms| begun + Duration::from_millis(ms));
        assert_eq!(longest_gap(&at, begun + Duration::from_millis(500)), 490.0, "it began before");
        assert_eq!(longest_gap(&at, begun + Duration::from_millis(905)), 50.0);
        assert_eq!(longest_gap(&at[..1], begun), 0.0);
    }

    #[test]
    fn every_partition_has_a_key_of_its_own() {
        let layout = Layout::even(5, 1).unwrap();
        for partition in 0..5 {
            let name = names(&key_of(&layout, partition), 7);
            assert_eq!(layout.partition_of(KeyHash::of(&name).slot()), PartitionId(partition));
        }
    }
}
