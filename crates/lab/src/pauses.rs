//! `ordain bench pauses`: for how long other clients wait while a node does something large.
//!
//! Each large thing is done once: the digest of a million changes, a checkpoint, the next one and the trimming after it, many
//! keys whose time comes at once, slots that move to another thread or to another partition, a member that catches up, FLUSHALL.
//! Meanwhile other clients ask all the time, each one thing after the other: on some connections of each node PING, which
//! only the event loop has to answer, and on one a write of a key that no other client touches, which needs its place in the
//! order. The result is the longest wait of each.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use ordain_engines::registry::Engine;
use ordain_model::system::CopyPart;
use ordain_model::{Datum, KeyHash, Layout, Position};
use rustix::process::Signal;
use serde::Serialize;

use crate::bench::Ours;
use crate::cluster::{Client, Cluster};
use crate::conditions::Conditions;
use crate::disturbance::Watch;
use crate::interrupt;
use crate::options::{OptionArgs, Plain};
use crate::report::{check_writable, write_json};
use crate::resp::{Link, Protocol, Target};
use crate::server::{Launch, Server};
use crate::table::{Table, number, text};

/// Something large that a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// None, to compare the waits with
    Quiet,
    /// DEBUG DIGEST after all records have been changed
    Digest,
    /// The first checkpoint, while others write
    Checkpoint,
    /// The second, after which the log is trimmed
    Trim,
    /// Keys all over whose time comes at once
    Expiry,
    /// Keys of one slot whose time comes at once
    ExpiryOfASlot,
    /// Load on a few slots of one thread, one of them with half of the records
    Balance,
    /// FLUSHALL
    Flush,
    /// A slot with half of the records goes to another partition
    Move,
    /// A member that was frozen takes what was written meanwhile
    CatchUp,
}

/// Arguments of `ordain bench pauses`.
#[derive(Clone, Debug, clap::Args)]
pub struct PausesArgs {
    /// The engine
    #[arg(long, default_value = "calvin", value_name = "NAME")]
    engine: Engine,
    #[command(flatten)]
    options: OptionArgs<Plain>,
    /// Event loops of a node
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=128))]
    threads: u16,
    /// Number of records
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    records: u64,
    /// Number of keys that expire at once
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    expiring: u64,
    /// Work to do [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    work: Vec<Work>,
    /// Durability of an acknowledged write
    #[arg(long, default_value = "os", value_name = "fsync|os|none")]
    durability: String,
    /// Write what was found to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Directory of temporary files [default: the system's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// Longest time of a piece of work.
const PATIENCE: Duration = Duration::from_secs(300);
/// Pause between two looks of a wait.
const LOOK: Duration = Duration::from_millis(100);
/// Time that clients go on probes after the work: what it leaves to be done is done then.
const AFTER: Duration = Duration::from_secs(1);
/// Pause of a client between two questions.
const REST: Duration = Duration::from_millis(1);
/// The bytes of a value.
const VALUE: [u8; 100] = [b'v'; 100];
/// Records of a command that loads.
const OF_A_COMMAND: u64 = 50;

/// The outcome of one piece of work.
#[derive(Clone, Copy, Debug, Serialize)]
struct Outcome {
    work: Work,
    /// The longest that a PING waited, milliseconds,
    ping_ms: f64,
    /// and the longest that a write of another key did.
    write_ms: f64,
    /// Duration of the work, seconds.
    seconds: f64,
}

/// The work that one node does by itself, in order.
const OF_A_NODE: [Work; 8] = [
    Work::Quiet,
    Work::Digest,
    Work::Checkpoint,
    Work::Trim,
    Work::Expiry,
    Work::ExpiryOfASlot,
    Work::Balance,
    Work::Flush,
];

/// Runs the benchmark; returns whether all work came out as it should.
///
/// # Errors
/// A node did not start, or did not do what it was asked.
pub fn run(args: &PausesArgs) -> anyhow::Result<bool> {
    check_writable("--json", args.json.as_deref())?;
    let wanted = |works: &[Work]| -> Vec<Work> {
        let is_wanted = |work: &Work| args.work.is_empty() || args.work.contains(work);
        works.iter().copied().filter(is_wanted).collect()
    };
    let mut outcomes = Vec::new();
    let mut measure = || -> anyhow::Result<()> {
        let works = wanted(&OF_A_NODE);
        if !works.is_empty() {
            on_a_node(args, works, &mut outcomes)?;
        }
        for work in wanted(&[Work::Move, Work::CatchUp]) {
            outcomes.push(if work == Work::Move { move_a_slot(args)? } else { catch_up(args)? });
        }
        Ok(())
    };
    let watch = Watch::begin(None);
    let result = measure();
    let disturbance = watch.end();
    let conditions = Conditions {
        durability: args.durability.clone(),
        log: "as `ordain serve` with that durability; `move` and `catch-up` are of clusters that agree and sync".to_owned(),
        replication: "none".to_owned(),
        members: 1,
        clients: "four clients that PING, and one that writes, each again when it is answered".to_owned(),
        batches: "batches close when the pipeline is free".to_owned(),
    };
    println!("Conditions: {conditions}; machine {}", disturbance.text());
    let tenths = |value: f64| format!("{value:.1}");
    let columns = vec![
        text("work", |it: &&Outcome| {
            serde_json::to_value(it.work)
                .ok()
                .and_then(|name| Some(name.as_str()?.to_owned()))
                .unwrap_or_default()
        }),
        number("longest PING, ms", |it: &&Outcome| tenths(it.ping_ms)),
        number("longest write, ms", |it: &&Outcome| tenths(it.write_ms)),
        number("took, s", |it: &&Outcome| tenths(it.seconds)),
    ];
    println!("{}", Table::of("Pauses", &outcomes, columns));
    let found = serde_json::json!({
        "engine": args.engine.name(), "threads": args.threads, "records": args.records,
        "expiring": args.expiring, "durability": args.durability, "outcomes": outcomes,
        "conditions": conditions, "disturbance": disturbance,
    });
    write_json(args.json.as_deref(), &found)?;
    result.map(|()| true)
}

/// A key without a tag: anywhere.
fn anywhere(n: u64) -> Vec<u8> {
    format!("key:{n}").into_bytes()
}

/// A key of a tag's slot.
fn tagged(tag: u64) -> impl Fn(u64) -> Vec<u8> {
    move |n| format!("{{{tag}}}:{n}").into_bytes()
}

fn slot_of(tag: u64) -> usize {
    KeyHash::of(format!("{{{tag}}}").as_bytes()).slot()
}

/// Does what one node does by itself, one thing after the other.
fn on_a_node(args: &PausesArgs, works: Vec<Work>, outcomes: &mut Vec<Outcome>) -> anyhow::Result<()> {
    let launch = Launch {
        ours: Ours { engine: args.engine, options: args.engine.options(args.options.given.iter())? },
        threads: args.threads.into(),
        durability: Some(args.durability.clone()),
        place: args.data_dir.clone(),
    };
    let binary = std::env::current_exe().context("cannot find our own program")?;
    let server = Server::start(&binary, &launch)?;
    let target = server.target().clone();
    let mut link = Link::open(&target, Protocol::Resp2)?;
    load(&mut link, args.records, anywhere, None)?;
    let mut probes = Probes::start(std::slice::from_ref(&target), args.threads)?;
    for work in works {
        interrupt::check()?;
        let churn = [Work::Checkpoint, Work::Trim].contains(&work);
        let churn = churn.then(|| churn_records(&target, args.records)).transpose()?;
        let outcome = match work {
            Work::Quiet => probes.during(work, || rest(2 * AFTER))?,
            Work::Digest => probes.during(work, || {
                let reply = link.ask(&["DEBUG", "DIGEST"])?;
                let text = Datum::first(&reply).as_bytes().map_or(0, <[u8]>::len);
                ensure!(text == 40, "DEBUG DIGEST answered {:?}", Datum::first(&reply));
                Ok(())
            })?,
            Work::Checkpoint | Work::Trim => probes.during(work, || checkpoint(&mut link))?,
            Work::Expiry => {
                let name = |n| format!("late:{n}").into_bytes();
                expire(&mut link, &mut probes, (work, args.expiring), name)?
            }
            Work::ExpiryOfASlot => {
                let name = |n| format!("{{late}}:{n}").into_bytes();
                expire(&mut link, &mut probes, (work, args.expiring), name)?
            }
            Work::Balance => balance(&mut link, &mut probes, &target, args)?,
            Work::Flush => {
                load(&mut link, args.records, anywhere, None)?;
                let outcome = probes.during(work, || link.expect_ok(&["FLUSHALL"]))?;
                // Those who ask write one record for each node.
                ensure!(link.ask_count("DBSIZE")? <= 1, "FLUSHALL has left records");
                outcome
            }
            Work::Move | Work::CatchUp => bail!("that takes a cluster"),
        };
        churn.map(Client::stop).transpose()?;
        outcomes.push(outcome);
    }
    probes.stop()?;
    server.stop()
}

/// A cluster of so many partitions times replicas.
fn start(args: &PausesArgs, shape: (u16, u16)) -> anyhow::Result<Cluster> {
    Cluster::start((args.engine.name(), &args.options.given), shape, args.data_dir.as_deref())
}

/// Moves a slot with half of the records to another partition.
fn move_a_slot(args: &PausesArgs) -> anyhow::Result<Outcome> {
    let cluster = start(args, (2, 1))?;
    let all = cluster.members()?;
    let all = all.iter().map(|node| node.target()).collect::<anyhow::Result<Vec<_>>>()?;
    let layout = Layout::even(2, 1)?;
    let tag = (0u64..).find(|tag| layout.partition_of(slot_of(*tag)).0 == 0).unwrap_or_default();
    let mut link = patient(&all[0])?;
    patient(&all[1])?;
    load(&mut link, args.records / 2, tagged(tag), None)?;
    load(&mut link, args.records / 2, anywhere, None)?;
    let before = link.ask_count("DBSIZE")?;
    let mut probes = Probes::start(&all, 1)?;
    let slot = slot_of(tag).to_string();
    // As `ordain cluster move` does it.
    let outcome = probes.during(Work::Move, || {
        let mut from = Some(Position::of_slot(slot_of(tag)));
        while let Some(position) = from {
            let reply = link.ask(&["DEBUG", "COPY-SLOT", &slot, "1", &position.0.to_string()])?;
            from = match Datum::first(&reply) {
                Datum::Int(next) => u64::try_from(next).ok().map(Position),
                other => bail!("the server answered {other:?}"),
            };
        }
        let last = CopyPart::last(slot_of(tag)).0.to_string();
        link.ask(&["DEBUG", "COPY-SLOT", &slot, "1", &last])?;
        link.expect_ok(&["DEBUG", "MOVE-SLOTS", &slot, &slot, "1"])
    })?;
    probes.stop()?;
    let after = link.ask_count("DBSIZE")?;
    // Those who ask write one for each node.
    ensure!((before..=before + 2).contains(&after), "there were {before} records, and are {after}");
    cluster.stop()?;
    Ok(outcome)
}

/// Freezes a member while others write, and lets it catch up.
fn catch_up(args: &PausesArgs) -> anyhow::Result<Outcome> {
    let cluster = start(args, (1, 3))?;
    let nodes = cluster.whole()?;
    let follower = nodes.iter().find(|node| !node.leads()).context("all nodes lead")?.id;
    let members = cluster.members()?;
    let (frozen, others): (Vec<_>, Vec<_>) = members.into_iter().partition(|member| member.id == follower);
    let frozen = frozen.first().context("cluster.json lacks a node")?;
    let others = others.iter().map(|member| member.target()).collect::<anyhow::Result<Vec<_>>>()?;
    let mut link = Link::open(&others[0], Protocol::Resp2)?;
    frozen.signal(Signal::STOP)?;
    let loaded = load(&mut link, args.records / 2, anywhere, None);
    let mut probes = Probes::start(&others, 1)?;
    let outcome = probes.during(Work::CatchUp, || {
        frozen.signal(Signal::CONT)?;
        loaded?;
        let mut its = Link::open(&frozen.target()?, Protocol::Resp2)?;
        wait_until("the node has not caught up", || Ok(its.ask_count("DBSIZE")? >= args.records / 2))?;
        // Another replica may have answered for it: what it has not taken yet it takes meanwhile.
        rest(5 * AFTER)
    })?;
    probes.stop()?;
    cluster.stop()?;
    Ok(outcome)
}

/// Waits until something is so.
fn wait_until(refusal: &str, mut is_so: impl FnMut() -> anyhow::Result<bool>) -> anyhow::Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(begun.elapsed() < PATIENCE, "{refusal} after {} s", PATIENCE.as_secs());
        thread::sleep(LOOK);
    }
    Ok(())
}

/// A connection to a node that may still be about to start.
fn patient(target: &Target) -> anyhow::Result<Link> {
    let begun = Instant::now();
    loop {
        interrupt::check()?;
        let link = Link::open(target, Protocol::Resp2);
        if link.is_ok() || begun.elapsed() > PATIENCE {
            return link;
        }
        thread::sleep(LOOK);
    }
}

/// Lets time pass.
#[expect(clippy::unnecessary_wraps, reason = "it stands where work stands that may fail")]
fn rest(time: Duration) -> anyhow::Result<()> {
    thread::sleep(time);
    Ok(())
}

/// Writes records, that go at a time if one is given.
fn load(
    link: &mut Link,
    records: u64,
    name: impl Fn(u64) -> Vec<u8>,
    goes: Option<u128>,
) -> anyhow::Result<()> {
    let goes = goes.map(|at| at.to_string().into_bytes());
    let of_a_command = if goes.is_some() { 1 } else { OF_A_COMMAND };
    let firsts = (0..records).step_by(of_a_command as usize);
    link.ask_all(
        firsts,
        |first, commands| match &goes {
            Some(at) => _ = commands.command(&[&b"SET"[..], &name(*first), &VALUE, b"PXAT", at]),
            None => {
                let names = (*first..records.min(first + of_a_command)).map(&name);
                let words = names.flat_map(|name| [name, VALUE.to_vec()]);
                _ = commands.command(&[b"MSET".to_vec()].into_iter().chain(words).collect::<Vec<_>>());
            }
        },
        |_, _| interrupt::check(),
    )
}

/// Takes a checkpoint, and waits until it is complete.
fn checkpoint(link: &mut Link) -> anyhow::Result<()> {
    let before = link.ask_count("LASTSAVE")?;
    // It counts seconds.
    thread::sleep(AFTER);
    let reply = link.ask(&["BGSAVE"])?;
    ensure!(!matches!(Datum::first(&reply), Datum::Error(_)), "BGSAVE answered {:?}", Datum::first(&reply));
    wait_until("the checkpoint is not complete", || Ok(link.ask_count("LASTSAVE")? > before))
}

/// Writes keys whose time comes at once, and waits until they are gone.
fn expire(
    link: &mut Link,
    probes: &mut Probes,
    (work, keys): (Work, u64),
    name: impl Fn(u64) -> Vec<u8>,
) -> anyhow::Result<Outcome> {
    let before = link.ask_count("DBSIZE")?;
    // Late enough that all are there.
    let until = SystemTime::now() + Duration::from_secs(5 + keys / 10_000);
    load(link, keys, name, Some(until.duration_since(UNIX_EPOCH)?.as_millis()))?;
    let there = link.ask_count("DBSIZE")?;
    ensure!(there >= before + keys, "{} keys were gone before all were there", before + keys - there);
    thread::sleep(until.duration_since(SystemTime::now()).unwrap_or_default());
    probes.during(work, || {
        wait_until("the keys are still there", || Ok(link.ask_count("DBSIZE")? <= before + 1))
    })
}

/// Load on eight slots that all begin on one thread, of which one holds half of the records.
fn balance(
    link: &mut Link,
    probes: &mut Probes,
    target: &Target,
    args: &PausesArgs,
) -> anyhow::Result<Outcome> {
    let layout = Layout::even(1, args.threads.into())?;
    let is_of_one = |tag: &u64| layout.shard_of(slot_of(*tag)) == 0;
    let tags: Vec<u64> = (0u64..).filter(is_of_one).take(8).collect();
    load(link, args.records / 2, tagged(tags[0]), None)?;
    let busy = (0..2).map(|_| read_records(target, &tags, args.records / 2));
    let busy = busy.collect::<anyhow::Result<Vec<_>>>()?;
    let outcome = probes.during(Work::Balance, || rest(4 * AFTER));
    busy.into_iter().map(Client::stop).collect::<anyhow::Result<Vec<_>>>()?;
    outcome
}

/// A client that keeps a node busy; it reports how many commands it has asked for.
fn busy(
    target: &Target,
    command: impl Fn(u64) -> Vec<Vec<u8>> + Send + 'static,
) -> anyhow::Result<Client<u64>> {
    Client::start(target, 0, move |link, next| {
        let some = *next..*next + 256;
        *next = some.end;
        link.ask_all(some, |n, commands| _ = commands.command(&command(*n)), |_, _| Ok(()))
    })
}

/// Changes records all over.
fn churn_records(target: &Target, records: u64) -> anyhow::Result<Client<u64>> {
    busy(target, move |n| vec![b"SET".to_vec(), anywhere(n.wrapping_mul(611_953) % records), VALUE.to_vec()])
}

/// Reads records of these tags in turn.
fn read_records(target: &Target, tags: &[u64], records: u64) -> anyhow::Result<Client<u64>> {
    let tags = tags.to_vec();
    busy(target, move |n| {
        let key = tagged(tags[n as usize % tags.len()]);
        vec![b"GET".to_vec(), key(n.wrapping_mul(611_953) % records)]
    })
}

/// Clients that ask all the time.
#[derive(Debug)]
struct Probes {
    clients: Vec<(Kind, Arc<Waits>, Client<()>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ping,
    Write,
}

/// The waits of a client.
#[derive(Debug, Default)]
struct Waits {
    /// The longest, nanoseconds.
    longest: AtomicU64,
    /// Questions answered.
    asked: AtomicU64,
}

impl Probes {
    /// On each node a client that writes, and for each of its loops two that PING.
    fn start(targets: &[Target], threads: u16) -> anyhow::Result<Probes> {
        let mut clients = Vec::new();
        for (at, target) in targets.iter().enumerate() {
            let pings = (0..2 * threads).map(|_| Kind::Ping);
            for kind in pings.chain([Kind::Write]) {
                let words: Vec<String> = match kind {
                    Kind::Ping => vec!["PING".into()],
                    Kind::Write => vec!["SET".into(), format!("bench:pauses:{at}"), "1".into()],
                };
                let waits = Arc::<Waits>::default();
                let notes = waits.clone();
                let client = Client::start(target, (), move |link, ()| {
                    let begun = Instant::now();
                    let reply = link.ask(&words)?;
                    notes.longest.fetch_max(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    notes.asked.fetch_add(1, Ordering::Release);
                    if let Datum::Error(text) = Datum::first(&reply) {
                        bail!("{} was answered {}", words[0], String::from_utf8_lossy(text));
                    }
                    rest(REST)
                })?;
                clients.push((kind, waits, client));
            }
        }
        Ok(Probes { clients })
    }

    /// Measures the waits while something is done, and a little longer.
    fn during(&mut self, work: Work, does: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<Outcome> {
        // What was asked before is not counted, and what was asked last is.
        self.all_ask_again()?;
        self.clients.iter().for_each(|(_, waits, _)| waits.longest.store(0, Ordering::Relaxed));
        let begun = Instant::now();
        does()?;
        let seconds = begun.elapsed().as_secs_f64();
        thread::sleep(AFTER);
        self.all_ask_again()?;
        let longest = |wanted: Kind| {
            let of = self.clients.iter().filter(|(kind, ..)| *kind == wanted);
            of.map(|(_, waits, _)| waits.longest.load(Ordering::Relaxed)).max().unwrap_or(0) as f64 / 1e6
        };
        Ok(Outcome { work, ping_ms: longest(Kind::Ping), write_ms: longest(Kind::Write), seconds })
    }

    /// Waits until each has been answered something that it has asked from here on.
    fn all_ask_again(&self) -> anyhow::Result<()> {
        let begun = Instant::now();
        for (_, waits, client) in &self.clients {
            let asked = waits.asked.load(Ordering::Acquire);
            while waits.asked.load(Ordering::Acquire) < asked + 2 {
                ensure!(!client.has_ended(), "a client that asks has ended");
                ensure!(begun.elapsed() < PATIENCE, "a client is not answered");
                thread::sleep(REST);
            }
        }
        Ok(())
    }

    fn stop(self) -> anyhow::Result<()> {
        self.clients.into_iter().try_for_each(|(_, _, client)| client.stop())
    }
}
