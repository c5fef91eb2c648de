//! `ordain bench failover`: for how long writes are not acknowledged when a node that leads is killed.
//!
//! A cluster of real processes (`ordain cluster up --restart`) is written to all the time: by one client for each
//! partition, whose transactions are on that partition alone, and by one whose transactions are on all. Then the process of
//! a partition's leader is killed with SIGKILL, or frozen with SIGSTOP. What counts is the longest time between two
//! acknowledgements that one client got, the second of them after the blow; it holds everything that a user waits for: that
//! the fault is noticed, that another leads, and that what was under way is asked for again. Clients are connected to nodes of
//! other replicas than that of the node that is hit, as a client of that node would have to connect anew first.
//!
//! In the end the cluster must hold whatever was acknowledged.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use ordain_model::{Datum, Layout, PartitionId};
use rustix::process::Signal;
use serde::Serialize;

use crate::cluster::{Client, Cluster, Node};
use crate::conditions::Conditions;
use crate::disturbance::Watch;
use crate::interrupt;
use crate::options::{OptionArgs, Plain};
use crate::report::{check_writable, median, whole, write_json};
use crate::resp::{Link, Protocol, Target};
use crate::table::{Table, number, text};

/// The fault of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Blow {
    /// With SIGKILL; it is started again.
    Kill,
    /// With SIGSTOP; it goes on after the measurement.
    Freeze,
}

/// Arguments of `ordain bench failover`.
#[derive(Clone, Debug, clap::Args)]
pub struct FailoverArgs {
    /// The engine
    #[arg(long, default_value = "calvin", value_name = "NAME")]
    engine: String,
    #[command(flatten)]
    options: OptionArgs<Plain>,
    /// Partitions of the data
    #[arg(long, default_value_t = 3, value_name = "P", value_parser = clap::value_parser!(u16).range(1..=64))]
    partitions: u16,
    /// Replicas of each
    #[arg(long, default_value_t = 3, value_name = "R", value_parser = clap::value_parser!(u16).range(3..=7))]
    replicas: u16,
    /// Fault of the leader of a partition
    #[arg(long, value_enum, default_value_t = Blow::Kill)]
    blow: Blow,
    /// Number of faults, each of the next partition's leader
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    repeat: u16,
    /// Write what was found to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory of temporary files [default: the system's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Longest time that clients may be without an acknowledgement.
const PATIENCE: Duration = Duration::from_secs(40);
/// Time that clients write before the blow, and after all of them have been acknowledged something since.
const AROUND: Duration = Duration::from_millis(500);
/// Pause between two looks of a wait.
const LOOK: Duration = Duration::from_millis(5);

/// The outcome of one blow; times are milliseconds.
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

/// Runs the benchmark; returns whether everything acknowledged was there in the end.
///
/// # Errors
/// The cluster did not start, or was not whole again in time.
pub fn run(args: &FailoverArgs) -> anyhow::Result<bool> {
    check_writable("--json", args.json.as_deref())?;
    let shape = (args.partitions, args.replicas);
    let cluster = Cluster::start((&args.engine, &args.options.given), shape, args.data_dir.as_deref())?;
    let layout = Layout::even(args.partitions.into(), 1)?;
    let (watch, mut outcomes) = (Watch::begin(None), Vec::new());
    let mut lost = 0;
    for repetition in 0..args.repeat {
        interrupt::check()?;
        let (outcome, missing) = strike(&cluster, &layout, repetition % args.partitions, args.blow)?;
        outcomes.push(outcome);
        lost += missing;
    }
    let disturbance = watch.end();
    cluster.stop()?;
    let conditions = Conditions {
        durability: "fsync".to_owned(),
        log: "logged and synced before an answer".to_owned(),
        replication: "sync".to_owned(),
        members: args.replicas,
        clients: format!("{} clients, each writes again when it is answered", args.partitions + 1),
        batches: "batches close when the pipeline is free".to_owned(),
    };
    println!("Conditions: {conditions}; machine {}", disturbance.text());
    let times = |it: &Outcome| [it.hit_ms, it.others_ms, it.all_ms, it.before_ms];
    let medians = [0, 1, 2, 3].map(|time| median(outcomes.iter().map(|it| times(it)[time])));
    let rows =
        outcomes.iter().map(|it| (format!("node {} of partition {}", it.node, it.partition), times(it)));
    let of =
        |name: &str, time: usize| number(name, move |(_, times): &(String, [f64; 4])| whole(times[time]));
    let columns = vec![
        text("hit", |(name, _): &(String, [f64; 4])| name.clone()),
        of("its partition, ms", 0),
        of("other partitions, ms", 1),
        of("all partitions, ms", 2),
        of("before, ms", 3),
    ];
    println!("{}", Table::of("Failover", rows.chain([("median".to_owned(), medians)]), columns));
    let found = serde_json::json!({
        "engine": args.engine, "partitions": args.partitions, "replicas": args.replicas, "blow": args.blow,
        "median_ms": { "hit": medians[0], "others": medians[1], "all": medians[2], "before": medians[3] },
        "outcomes": outcomes, "lost": lost, "conditions": conditions, "disturbance": disturbance,
    });
    write_json(args.json.as_deref(), &found)?;
    if lost > 0 {
        eprintln!("{lost} acknowledged writes were lost");
    }
    Ok(lost == 0)
}

/// Hits the leader of a partition while clients write; returns also how many acknowledged writes were lost.
fn strike(
    cluster: &Cluster,
    layout: &Layout,
    partition: u16,
    blow: Blow,
) -> anyhow::Result<(Outcome, usize)> {
    let nodes = cluster.whole()?;
    let victim = nodes.iter().find(|node| node.partition == partition && node.leads());
    let victim = victim.with_context(|| format!("no node leads partition {partition}"))?;
    let members = cluster.members()?;
    let member = |id: u16| members.iter().find(|member| member.id == id).context("cluster.json lacks a node");
    // One client for each partition, and the last for all.
    let keys: Vec<Vec<u8>> = (0..layout.partitions()).map(|partition| key_of(layout, partition)).collect();
    let of = |n: usize| keys.get(n).map_or_else(|| keys.clone(), |key| vec![key.clone()]);
    let others: Vec<&Node> = nodes.iter().filter(|node| node.replica != victim.replica).collect();
    let mut writers = Vec::new();
    for n in 0..=keys.len() {
        let target = member(others[n % others.len()].id)?.target()?;
        writers.push(Writer::start(&target, of(n), n as u64)?);
    }
    let begun = Instant::now();
    wait(begun, &writers)?;
    let hit = Instant::now();
    member(victim.id)?.signal(if blow == Blow::Kill { Signal::KILL } else { Signal::STOP })?;
    let acknowledged = wait(hit, &writers);
    if blow == Blow::Freeze {
        member(victim.id)?.signal(Signal::CONT)?;
    }
    let stopped = writers.into_iter().map(|writer| writer.client.stop());
    let written: Vec<Written> = stopped.collect::<anyhow::Result<_>>()?;
    acknowledged?;
    let longest = |n: usize| longest_gap(&written[n].acknowledged, hit);
    let others_ms = (0..keys.len()).filter(|n| *n != usize::from(partition)).map(longest);
    let before = written.iter().map(|it| {
        let until = it.acknowledged.partition_point(|at| *at <= hit);
        longest_gap(&it.acknowledged[..until], begun)
    });
    let outcome = Outcome {
        partition,
        node: victim.id,
        hit_ms: longest(partition.into()),
        others_ms: others_ms.fold(0.0, f64::max),
        all_ms: longest(keys.len()),
        before_ms: before.fold(0.0, f64::max),
    };
    cluster.whole()?;
    let mut missing = 0;
    let mut link = Link::open(&member(others[0].id)?.target()?, Protocol::Resp2)?;
    for (n, written) in written.iter().enumerate() {
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
        if after.is_none() && writers.iter().all(|writer| writer.is_acknowledged_since(since)) {
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
    let is_there = |key: &Vec<u8>| layout.region_of(key) == PartitionId(partition);
    let tag = (0u32..).map(|n| n.to_string().into_bytes()).find(is_there);
    tag.unwrap_or_default()
}

/// The key that a client writes there: its place follows from the tag alone.
fn names(tag: &[u8], client: u64) -> Vec<u8> {
    [b"{", tag, b"}:", client.to_string().as_bytes()].concat()
}

/// A client that writes, one transaction after the other.
#[derive(Debug)]
struct Writer {
    client: Client<Written>,
    /// Time at which the last acknowledged write was asked for, nanoseconds since `since`.
    asked: Arc<AtomicU64>,
    since: Instant,
}

/// The writes of a client.
#[derive(Debug, Default)]
struct Written {
    /// Times of the acknowledgements.
    acknowledged: Vec<Instant>,
    /// The last number that was.
    last: u64,
}

impl Writer {
    fn start(target: &Target, tags: Vec<Vec<u8>>, client: u64) -> anyhow::Result<Writer> {
        let (asked, since) = (Arc::<AtomicU64>::default(), Instant::now());
        // Beyond whatever an earlier one has written.
        let mut number = SystemTime::now().duration_since(UNIX_EPOCH)?.as_micros() as u64;
        let notes = asked.clone();
        let client = Client::start(target, Written::default(), move |link, written| {
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
                    notes.store(at, Ordering::Release);
                }
                // Not done, or not known: asked again, with a larger number.
                Datum::Error(_) => thread::sleep(LOOK),
                other => bail!("MSET was answered {other:?}"),
            }
            Ok(())
        })?;
        Ok(Writer { client, asked, since })
    }

    fn is_acknowledged_since(&self, time: Instant) -> bool {
        let asked = Duration::from_nanos(self.asked.load(Ordering::Acquire));
        self.client.has_ended() || (!asked.is_zero() && self.since + asked > time)
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
            assert_eq!(layout.region_of(&name), PartitionId(partition));
        }
    }
}
