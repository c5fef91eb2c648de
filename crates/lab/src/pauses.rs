//! `ordain bench pauses`: for how long other clients wait while a node does something large.
//!
//! What is large is done once each: the digest of a million changes, a checkpoint, the next one and the trimming after it, many
//! keys whose time comes at once, slots that move to another thread or to another partition, a member that catches up, FLUSHALL.
//! Meanwhile other clients ask all the time, each one thing after the other: on some connections of each node PING, which
//! only the event loop has to answer, and on one a write of a key that nobody else touches, which needs its turn in the order.
//! What is told is the longest wait of each.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use ordain_engines::registry::Engine;
use ordain_model::system::CopyPart;
use ordain_model::{Datum, KeyHash, Layout, Position};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

use crate::bench::Ours;
use crate::failover::Cluster;
use crate::interrupt;
use crate::options::{OptionArgs, Plain};
use crate::report::{check_writable, table};
use crate::resp::{Link, Speech, Target};
use crate::server::{Launch, Server};

/// Something large that a node does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Nothing: what waits there are without
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

/// What `ordain bench pauses` takes.
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
    /// How many records there are
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1000..))]
    records: u64,
    /// How many keys expire at once
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..))]
    expiring: u64,
    /// What to do [default: all]
    #[arg(long, value_enum, value_delimiter = ',')]
    work: Vec<Work>,
    /// When an acknowledged write is durable
    #[arg(long, default_value = "os", value_name = "fsync|os|none")]
    durability: String,
    /// Write what was found to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where temporary files go [default: the system's directory for such]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

/// How long something may take.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often is looked whether it is over.
const LOOK: Duration = Duration::from_millis(100);
/// How long is still looked after it is over: what it leaves to be done is done then.
const AFTER: Duration = Duration::from_secs(1);
/// How long a client rests between two questions.
const REST: Duration = Duration::from_millis(1);
/// The bytes of a value.
const VALUE: [u8; 100] = [b'v'; 100];
/// How many records a command of the loading writes.
const OF_A_COMMAND: u64 = 50;

/// What one piece of work has come to.
#[derive(Clone, Copy, Debug, Serialize)]
struct Outcome {
    work: Work,
    /// The longest that a PING waited, milliseconds,
    ping_ms: f64,
    /// and the longest that a write of another key did.
    write_ms: f64,
    /// How long it took, with what came after it, seconds.
    seconds: f64,
}

/// Runs it; says whether all that was done came out as it should.
///
/// # Errors
/// A node did not start, or did not do what it was asked.
pub fn run(args: &PausesArgs) -> anyhow::Result<bool> {
    check_writable("--json", args.json.as_deref())?;
    let binary = std::env::current_exe().context("cannot find our own program")?;
    let is_wanted = |work: &Work| args.work.is_empty() || args.work.contains(work);
    let of_a_node = [
        Work::Quiet,
        Work::Digest,
        Work::Checkpoint,
        Work::Trim,
        Work::Expiry,
        Work::ExpiryOfASlot,
        Work::Balance,
        Work::Flush,
    ];
    let mut outcomes = Vec::new();
    let mut measure = || -> anyhow::Result<()> {
        let mut works = of_a_node.iter().filter(|work| is_wanted(work)).copied().peekable();
        if works.peek().is_some() {
            on_a_node(args, &binary, works, &mut outcomes)?;
        }
        for work in [Work::Move, Work::CatchUp].into_iter().filter(|work| is_wanted(work)) {
            outcomes.push(on_a_cluster(args, &binary, work)?);
        }
        Ok(())
    };
    let result = measure();
    let mut shown = table(&["work", "longest PING, ms", "longest write, ms", "took, s"], 1);
    for it in &outcomes {
        let name = serde_json::to_value(it.work)?;
        shown.add_row([
            name.as_str().unwrap_or_default().to_owned(),
            format!("{:.1}", it.ping_ms),
            format!("{:.1}", it.write_ms),
            format!("{:.1}", it.seconds),
        ]);
    }
    println!("{shown}");
    if let Some(path) = &args.json {
        let found = serde_json::json!({
            "engine": args.engine.name(), "threads": args.threads, "records": args.records,
            "expiring": args.expiring, "durability": args.durability, "outcomes": outcomes,
        });
        fs::write(path, serde_json::to_string_pretty(&found)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    result.map(|()| true)
}

/// What one node does by itself, one thing after the other.
fn on_a_node(
    args: &PausesArgs,
    binary: &Path,
    works: impl Iterator<Item = Work>,
    outcomes: &mut Vec<Outcome>,
) -> anyhow::Result<()> {
    let launch = Launch {
        ours: Ours { engine: args.engine, options: args.engine.options(args.options.given.iter())? },
        threads: args.threads.into(),
        durability: Some(args.durability.clone()),
        place: args.data_dir.clone(),
    };
    let server = Server::start(binary, &launch)?;
    let target = server.target().clone();
    let mut link = Link::open(&target, Speech::Resp2)?;
    let names = |n: u64| format!("key:{n}").into_bytes();
    load(&mut link, args.records, names, None)?;
    let mut asking = Asking::start(std::slice::from_ref(&target), args.threads)?;
    for work in works {
        interrupt::check()?;
        let churn = [Work::Checkpoint, Work::Trim].contains(&work);
        let churn = churn.then(|| Busy::churn(&target, args.records)).transpose()?;
        let outcome = match work {
            Work::Quiet => asking.during(work, || rest(2 * AFTER))?,
            Work::Digest => asking.during(work, || {
                let reply = link.ask(&["DEBUG", "DIGEST"])?;
                let text = Datum::first(&reply).as_bytes().map_or(0, <[u8]>::len);
                ensure!(text == 40, "DEBUG DIGEST answered {:?}", Datum::first(&reply));
                Ok(())
            })?,
            Work::Checkpoint | Work::Trim => asking.during(work, || checkpoint(&mut link))?,
            Work::Expiry => {
                expire(&mut link, &mut asking, (work, args.expiring), |n| format!("late:{n}").into_bytes())?
            }
            Work::ExpiryOfASlot => expire(&mut link, &mut asking, (work, args.expiring), |n| {
                format!("{{late}}:{n}").into_bytes()
            })?,
            Work::Balance => balance(&mut link, &mut asking, &target, args)?,
            Work::Flush => {
                load(&mut link, args.records, names, None)?;
                let outcome = asking.during(work, || link.expect_ok(&["FLUSHALL"]))?;
                // Those who ask write one record for each node.
                ensure!(count(&mut link)? <= 1, "FLUSHALL has left records");
                outcome
            }
            Work::Move | Work::CatchUp => bail!("that takes a cluster"),
        };
        churn.map(Busy::stop).transpose()?;
        outcomes.push(outcome);
    }
    asking.stop()?;
    server.stop()
}

/// What takes more than one node.
fn on_a_cluster(args: &PausesArgs, binary: &Path, work: Work) -> anyhow::Result<Outcome> {
    let shape = if work == Work::Move { (2, 1) } else { (1, 3) };
    let cluster =
        Cluster::start(binary, (args.engine.name(), &args.options.given), shape, args.data_dir.as_deref())?;
    // Without replicas nobody has to be chosen.
    let nodes = if shape.1 > 1 { cluster.whole()? } else { Vec::new() };
    let record = cluster.record()?;
    let target = |resp: &str| -> anyhow::Result<Target> { Ok(Target::at(resp.parse()?)) };
    let all = record.nodes.iter().map(|node| target(&node.resp)).collect::<anyhow::Result<Vec<_>>>()?;
    let outcome = if work == Work::Move {
        let layout = Layout::even(2, 1)?;
        let slot_of = |tag: &u64| KeyHash::of(format!("{{{tag}}}").as_bytes()).slot();
        let tag = (0u64..).find(|tag| layout.partition_of(slot_of(tag)).0 == 0).unwrap_or_default();
        let mut link = patient(&all[0])?;
        patient(&all[1])?;
        load(&mut link, args.records / 2, |n| format!("{{{tag}}}:{n}").into_bytes(), None)?;
        load(&mut link, args.records / 2, |n| format!("key:{n}").into_bytes(), None)?;
        let before = count(&mut link)?;
        let mut asking = Asking::start(&all, 1)?;
        let slot = slot_of(&tag).to_string();
        // As `ordain cluster move` does it.
        let outcome = asking.during(work, || {
            let mut from = Some(Position::of_slot(slot_of(&tag)));
            while let Some(position) = from {
                let reply = link.ask(&["DEBUG", "COPY-SLOT", &slot, "1", &position.0.to_string()])?;
                from = match Datum::first(&reply) {
                    Datum::Int(next) => u64::try_from(next).ok().map(Position),
                    other => bail!("the server answered {other:?}"),
                };
            }
            let last = CopyPart::last(slot_of(&tag)).0.to_string();
            link.ask(&["DEBUG", "COPY-SLOT", &slot, "1", &last])?;
            link.expect_ok(&["DEBUG", "MOVE-SLOTS", &slot, &slot, "1"])
        })?;
        asking.stop()?;
        let after = count(&mut link)?;
        // Those who ask write one for each node.
        ensure!((before..=before + 2).contains(&after), "there were {before} records, and are {after}");
        outcome
    } else {
        let frozen = nodes.iter().find(|node| !node.leads()).context("all nodes lead")?.id;
        let frozen = record.nodes.iter().position(|node| node.id == frozen).context("cluster.json")?;
        let pid = record.nodes[frozen].pid.and_then(Pid::from_raw).context("a node does not run")?;
        let others = || all.iter().enumerate().filter(|(at, _)| *at != frozen).map(|(_, it)| it.clone());
        let others: Vec<Target> = others().collect();
        let mut link = Link::open(&others[0], Speech::Resp2)?;
        kill_process(pid, Signal::STOP).context("cannot signal a node")?;
        let loaded = load(&mut link, args.records / 2, |n| format!("key:{n}").into_bytes(), None);
        let mut asking = Asking::start(&others, 1)?;
        let outcome = asking.during(work, || {
            kill_process(pid, Signal::CONT).context("cannot signal a node")?;
            loaded?;
            let begun = Instant::now();
            let mut its = Link::open(&all[frozen], Speech::Resp2)?;
            while count(&mut its)? < args.records / 2 {
                ensure!(begun.elapsed() < PATIENCE, "the node has not caught up");
                thread::sleep(LOOK);
            }
            // Another replica may have answered for it: what it has not taken yet it takes meanwhile.
            rest(5 * AFTER)
        })?;
        asking.stop()?;
        outcome
    };
    cluster.stop()?;
    Ok(outcome)
}

/// A connection to a node that may still be about to start.
fn patient(target: &Target) -> anyhow::Result<Link> {
    let begun = Instant::now();
    loop {
        interrupt::check()?;
        let link = Link::open(target, Speech::Resp2);
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

fn count(link: &mut Link) -> anyhow::Result<u64> {
    let reply = link.ask(&["DBSIZE"])?;
    match Datum::first(&reply) {
        Datum::Int(records) => Ok(records as u64),
        other => bail!("DBSIZE answered {other:?}"),
    }
}

/// A checkpoint, until it is complete.
fn checkpoint(link: &mut Link) -> anyhow::Result<()> {
    let last = |link: &mut Link| -> anyhow::Result<i64> {
        let reply = link.ask(&["LASTSAVE"])?;
        match Datum::first(&reply) {
            Datum::Int(at) => Ok(at),
            other => bail!("LASTSAVE answered {other:?}"),
        }
    };
    let (before, begun) = (last(link)?, Instant::now());
    // It counts seconds.
    thread::sleep(AFTER);
    let reply = link.ask(&["BGSAVE"])?;
    ensure!(!matches!(Datum::first(&reply), Datum::Error(_)), "BGSAVE answered {:?}", Datum::first(&reply));
    while last(link)? <= before {
        ensure!(begun.elapsed() < PATIENCE, "the checkpoint is not complete after {} s", PATIENCE.as_secs());
        thread::sleep(LOOK);
    }
    Ok(())
}

/// Writes keys whose time comes at once, and waits until they are gone.
fn expire(
    link: &mut Link,
    asking: &mut Asking,
    (work, keys): (Work, u64),
    name: impl Fn(u64) -> Vec<u8>,
) -> anyhow::Result<Outcome> {
    let before = count(link)?;
    // Late enough that all are there.
    let until = SystemTime::now() + Duration::from_secs(5 + keys / 10_000);
    load(link, keys, name, Some(until.duration_since(UNIX_EPOCH)?.as_millis()))?;
    let there = count(link)?;
    ensure!(there >= before + keys, "{} keys were gone before all were there", before + keys - there);
    thread::sleep(until.duration_since(SystemTime::now()).unwrap_or_default());
    asking.during(work, || {
        let begun = Instant::now();
        while count(link)? > before + 1 {
            ensure!(begun.elapsed() < PATIENCE, "the keys are there yet");
            thread::sleep(LOOK);
        }
        Ok(())
    })
}

/// Load on eight slots that all begin on one thread, of which one holds half of the records.
fn balance(
    link: &mut Link,
    asking: &mut Asking,
    target: &Target,
    args: &PausesArgs,
) -> anyhow::Result<Outcome> {
    let layout = Layout::even(1, args.threads.into())?;
    let is_of_one = |tag: &u64| layout.shard_of(KeyHash::of(format!("{{{tag}}}").as_bytes()).slot()) == 0;
    let tags: Vec<u64> = (0u64..).filter(is_of_one).take(8).collect();
    let large = tags[0];
    load(link, args.records / 2, |n| format!("{{{large}}}:{n}").into_bytes(), None)?;
    let busy = (0..2).map(|_| Busy::read(target, &tags, args.records / 2));
    let busy = busy.collect::<anyhow::Result<Vec<_>>>()?;
    let outcome = asking.during(Work::Balance, || rest(4 * AFTER));
    busy.into_iter().try_for_each(Busy::stop)?;
    outcome
}

/// A client that keeps a node busy until it is stopped.
#[derive(Debug)]
struct Busy {
    stops: Arc<AtomicBool>,
    thread: JoinHandle<anyhow::Result<()>>,
}

impl Busy {
    /// Changes records all over.
    fn churn(target: &Target, records: u64) -> anyhow::Result<Busy> {
        Busy::start(target, move |n| {
            let key = format!("key:{}", n.wrapping_mul(611_953) % records);
            vec![b"SET".to_vec(), key.into_bytes(), VALUE.to_vec()]
        })
    }

    /// Reads records of these tags in turn.
    fn read(target: &Target, tags: &[u64], records: u64) -> anyhow::Result<Busy> {
        let tags = tags.to_vec();
        Busy::start(target, move |n| {
            let tag = tags[n as usize % tags.len()];
            vec![b"GET".to_vec(), format!("{{{tag}}}:{}", n.wrapping_mul(611_953) % records).into_bytes()]
        })
    }

    fn start(
        target: &Target,
        command: impl Fn(u64) -> Vec<Vec<u8>> + Send + 'static,
    ) -> anyhow::Result<Busy> {
        let (stops, mut link) = (Arc::new(AtomicBool::new(false)), Link::open(target, Speech::Resp2)?);
        let stop = stops.clone();
        let thread = thread::Builder::new().name("busy".into()).spawn(move || {
            let mut next = 0;
            while !stop.load(Ordering::Relaxed) {
                let some = next..next + 256;
                next = some.end;
                link.ask_all(some, |n, commands| _ = commands.command(&command(*n)), |_, _| Ok(()))?;
            }
            Ok(())
        })?;
        Ok(Busy { stops, thread })
    }

    fn stop(self) -> anyhow::Result<()> {
        self.stops.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?
    }
}

/// Clients that ask all the time.
#[derive(Debug)]
struct Asking {
    stops: Arc<AtomicBool>,
    clients: Vec<(Kind, Arc<Waits>, JoinHandle<anyhow::Result<()>>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ping,
    Write,
}

/// What a client has waited.
#[derive(Debug, Default)]
struct Waits {
    /// The longest, nanoseconds.
    longest: AtomicU64,
    /// How often it has asked.
    asked: AtomicU64,
}

impl Asking {
    /// On each node a client that writes, and for each of its loops two that PING.
    fn start(targets: &[Target], threads: u16) -> anyhow::Result<Asking> {
        let stops = Arc::new(AtomicBool::new(false));
        let mut clients = Vec::new();
        for (at, target) in targets.iter().enumerate() {
            let pings = (0..2 * threads).map(|_| Kind::Ping);
            for kind in pings.chain([Kind::Write]) {
                let mut name = String::new();
                _ = write!(name, "bench:pauses:{at}");
                let words: Vec<String> = match kind {
                    Kind::Ping => vec!["PING".into()],
                    Kind::Write => vec!["SET".into(), name, "1".into()],
                };
                let (stop, waits) = (stops.clone(), Arc::<Waits>::default());
                let mut link = Link::open(target, Speech::Resp2)?;
                let noted = waits.clone();
                let asks = move || {
                    while !stop.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        let reply = link.ask(&words)?;
                        noted.longest.fetch_max(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
                        noted.asked.fetch_add(1, Ordering::Release);
                        if let Datum::Error(text) = Datum::first(&reply) {
                            bail!("{} was answered {}", words[0], String::from_utf8_lossy(text));
                        }
                        thread::sleep(REST);
                    }
                    Ok(())
                };
                clients.push((kind, waits, thread::Builder::new().name("asks".into()).spawn(asks)?));
            }
        }
        Ok(Asking { stops, clients })
    }

    /// What they wait while something is done, and a little longer.
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
        for (_, waits, thread) in &self.clients {
            let asked = waits.asked.load(Ordering::Acquire);
            while waits.asked.load(Ordering::Acquire) < asked + 2 {
                ensure!(!thread.is_finished(), "a client that asks has ended");
                ensure!(begun.elapsed() < PATIENCE, "a client is not answered");
                thread::sleep(REST);
            }
        }
        Ok(())
    }

    fn stop(self) -> anyhow::Result<()> {
        self.stops.store(true, Ordering::Relaxed);
        for (_, _, thread) in self.clients {
            thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(())
    }
}
