//! `ordain bench ceiling`: the record accesses of a workload with no transaction system at all, and the raw rates of
//! the machine's disk and loopback. What this machine could do at best.
//!
//! Each thread owns a shard of the records in a [`MemoryStore`], as the shards of a node do, and goes through them
//! in a plain loop: find, then add one to the counter or sum up the record. The keys are drawn and hashed before the
//! clock starts, a batch of them is prefetched ahead of its use, there is no order, no lock, no log, no message and no
//! answer. Keys that belong to another thread's shard are left out: each thread has its own share of the draws.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use ordain_model::key::shard_of_slot;
use ordain_model::{CellMut, Gsn, KeyHash, Value as RecordValue};
use ordain_role::{Bytes, Directory, DiskOp};
use ordain_runtime::FsDirectory;
use ordain_store::{MemoryStore, RecordStore};
use ordain_workload::choice::{Choice, Distribution};
use ordain_workload::random::Random;
use ordain_workload::ycsb;
use serde_json::{Map, Value};

use crate::host;
use crate::progress::Progress;
use crate::report::{Check, Latency, Report, Run, check_writable, median, table};

/// Which records are accessed, and how: what a workload and its ceiling have in common.
#[derive(Clone, Debug, clap::Args)]
pub struct AccessArgs {
    /// How many records there are (the Q-Store paper: 16 million a node)
    #[arg(long, default_value_t = 1_000_000)]
    pub records: u64,
    /// How many different records a transaction uses
    #[arg(long, default_value_t = 16)]
    pub ops_per_txn: usize,
    /// Which share of them it increments, an exact count in every transaction; the others it reads
    #[arg(long, default_value_t = 0.5)]
    pub write_ratio: f64,
    /// Zipfian skew of the choice of records: 0 is uniform, 0.99 heavy; several, separated by commas, are compared
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub theta: Vec<f64>,
    /// The length of a record, at least 8
    #[arg(long, default_value_t = 100)]
    pub record_bytes: usize,
    /// How many event loops, each with a shard of the records [default: one a core]; several are compared
    #[arg(long, value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Where everything that is drawn comes from
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// How often each setting runs, in turns with the others; the table shows medians
    #[arg(long, default_value_t = 1)]
    pub repeat: usize,
    /// Write the report to this file too
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where temporary files go [default: the system's directory for such]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
}

impl AccessArgs {
    /// How many of a transaction's operations are writes.
    pub fn writes_per_txn(&self) -> usize {
        (self.ops_per_txn as f64 * self.write_ratio).round() as usize
    }

    /// The numbers of threads to compare.
    pub fn thread_counts(&self) -> Vec<usize> {
        if self.threads.is_empty() { vec![host::Host::look().cores] } else { self.threads.clone() }
    }

    /// Refuses what makes no sense, by name.
    ///
    /// # Errors
    /// What and why.
    pub fn check(&self) -> anyhow::Result<()> {
        use ordain_model::key::{MAX_KEYS, MAX_VALUE_LEN};
        use ordain_node::assembly::MAX_SHARDS;
        for theta in &self.theta {
            self.choice(*theta).map_err(|error| anyhow::anyhow!("--theta, --records: {error}"))?;
        }
        if self.ops_per_txn == 0 || self.ops_per_txn > MAX_KEYS {
            bail!("--ops-per-txn must be 1 to {MAX_KEYS}, not {}", self.ops_per_txn);
        }
        if self.ops_per_txn as u64 > self.records {
            bail!(
                "--ops-per-txn {} needs as many different records, and --records is {}",
                self.ops_per_txn,
                self.records
            );
        }
        if !(0.0..=1.0).contains(&self.write_ratio) {
            bail!("--write-ratio must be from 0 to 1, not {}", self.write_ratio);
        }
        if !(ycsb::COUNTER_BYTES..=MAX_VALUE_LEN).contains(&self.record_bytes) {
            bail!(
                "--record-bytes must be {} to {MAX_VALUE_LEN}, not {}",
                ycsb::COUNTER_BYTES,
                self.record_bytes
            );
        }
        if let Some(threads) = self.threads.iter().find(|threads| !(1..=MAX_SHARDS).contains(*threads)) {
            bail!("--threads must be 1 to {MAX_SHARDS}, not {threads}");
        }
        if self.repeat == 0 {
            bail!("--repeat must be at least 1");
        }
        check_writable(self.json.as_deref())
    }

    /// How records are chosen at a skew.
    ///
    /// # Errors
    /// A parameter that makes no sense.
    pub fn choice(&self, theta: f64) -> Result<Choice, ordain_workload::choice::ChoiceError> {
        Choice::new(self.records, Distribution::Zipfian { theta })
    }

    /// The knobs, as a report names them.
    pub fn params(&self, theta: f64) -> Map<String, Value> {
        let mut params = Map::new();
        params.insert("records".to_owned(), self.records.into());
        params.insert("ops_per_txn".to_owned(), self.ops_per_txn.into());
        params.insert("write_ratio".to_owned(), self.write_ratio.into());
        params.insert("writes_per_txn".to_owned(), self.writes_per_txn().into());
        params.insert("theta".to_owned(), theta.into());
        params.insert("record_bytes".to_owned(), self.record_bytes.into());
        params.insert("seed".to_owned(), self.seed.into());
        params
    }

    /// A directory that is removed afterwards.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn scratch(&self) -> anyhow::Result<tempfile::TempDir> {
        let mut builder = tempfile::Builder::new();
        builder.prefix("ordain-bench-");
        match &self.data_dir {
            None => builder
                .tempdir()
                .context("cannot make a temporary directory; name another place with --data-dir"),
            Some(path) => builder.tempdir_in(path).with_context(|| {
                format!(
                    "cannot make a directory in --data-dir {}: name one that exists and is yours",
                    path.display()
                )
            }),
        }
    }
}

/// What `ordain bench ceiling` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct CeilingArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// How long to measure, seconds
    #[arg(long, default_value_t = 3.0)]
    duration: f64,
}

/// Runs `ordain bench ceiling`; says whether its checks passed.
///
/// # Errors
/// A parameter that makes no sense, or the machine refuses something.
pub fn run(args: &CeilingArgs) -> anyhow::Result<bool> {
    args.access.check()?;
    let duration = seconds("--duration", args.duration)?;
    let scratch = args.access.scratch()?;
    let settings: Vec<(usize, f64)> = args
        .access
        .thread_counts()
        .into_iter()
        .flat_map(|threads| args.access.theta.iter().map(move |theta| (threads, *theta)))
        .collect();
    let mut progress = Progress::new(duration * (settings.len() * args.access.repeat) as u32);
    let mut report = Report::new();
    for repetition in 1..=args.access.repeat {
        for (threads, theta) in &settings {
            progress.show(Duration::ZERO, "plain accesses");
            report.runs.push(measure(&args.access, *theta, *threads, duration, repetition)?);
            progress.advance(duration);
        }
    }
    drop(progress);
    let mut accesses =
        table(&["threads", "theta", "writes", "accesses/s", "ns an access", "as txn/s", "MiB", "checks"], 0);
    for (threads, theta) in &settings {
        let of =
            |run: &&Run| run.threads == *threads && run.params.get("theta") == Some(&Value::from(*theta));
        let runs: Vec<&Run> = report.runs.iter().filter(of).collect();
        let rate = median(runs.iter().map(|run| run.op_per_s));
        let peak = median(runs.iter().map(|run| run.peak_rss_bytes as f64));
        accesses.add_row([
            threads.to_string(),
            theta.to_string(),
            args.access.write_ratio.to_string(),
            format!("{rate:.0}"),
            format!("{:.1}", 1e9 * *threads as f64 / rate.max(1.0)),
            format!("{:.0}", rate / args.access.ops_per_txn as f64),
            format!("{:.0}", peak / (1 << 20) as f64),
            if runs.iter().all(|run| run.passed()) { "pass" } else { "FAIL" }.to_owned(),
        ]);
    }
    let syncs = sync_latency(scratch.path())?;
    let round_trips = loopback_latency()?;
    let mut machine = table(&["raw rates", "a second", "p50 us", "p99 us"], 1);
    for (name, latency) in [("fdatasync", &syncs), ("loopback round_trip", &round_trips)] {
        let rate = 1e6 / latency.mean.max(0.001);
        let figures = [latency.p50.to_string(), latency.p99.to_string()];
        machine.add_row([&[name.to_owned(), format!("{rate:.0}")][..], &figures].concat());
        let value = serde_json::to_value(latency).context("a latency that is no JSON")?;
        report.machine.insert(format!("{}_us", name.replace(' ', "_")), value);
    }
    println!("{accesses}\n{machine}");
    if let Some(path) = &args.access.json {
        report.write(path)?;
    }
    Ok(report.passed())
}

/// A length of time of the command line.
///
/// # Errors
/// It is none.
pub fn seconds(name: &str, seconds: f64) -> anyhow::Result<Duration> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(length) if length >= Duration::from_millis(10) && seconds <= 1e6 => Ok(length),
        _ => bail!("{name} must be 0.01 to 1000000 seconds, not {seconds}"),
    }
}

/// One access that a thread will make.
#[derive(Clone, Copy)]
struct Draw {
    hash: KeyHash,
    key: [u8; 8],
    writes: bool,
}

/// How many draws a thread has prepared; it goes round them. Three times this many bytes would fit in no cache.
const DRAWS: usize = 1 << 20;
/// How many records are prefetched together.
const BATCH: usize = 16;
/// Accesses between two looks at the clock.
const ROUND: usize = 4096;

/// Measures plain accesses.
///
/// # Errors
/// Parameters that make no sense.
pub fn measure(
    access: &AccessArgs,
    theta: f64,
    threads: usize,
    duration: Duration,
    repetition: usize,
) -> anyhow::Result<Run> {
    host::reset_peak_rss();
    let choice = access.choice(theta)?;
    let ready = Barrier::new(threads);
    let begun = Instant::now();
    let results: Vec<Thread> = thread::scope(|scope| {
        let spawn = |number| {
            let (choice, ready) = (&choice, &ready);
            scope.spawn(move || Thread::run(access, choice, number, threads, duration, ready))
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        running.into_iter().map(|thread| thread.join().map_err(|_| ())).collect::<Result<_, _>>()
    })
    .map_err(|()| anyhow::anyhow!("a thread of the ceiling panicked"))?;
    let slowest = results.iter().map(|thread| thread.took).max().unwrap_or_default();
    let op_per_s: f64 = results.iter().map(|thread| thread.accesses as f64 / thread.took.as_secs_f64()).sum();
    let accesses: u64 = results.iter().map(|thread| thread.accesses).sum();
    let increments = results.iter().all(|thread| thread.found_increments == thread.increments);
    let ops = access.ops_per_txn as f64;
    Ok(Run {
        engine: "ceiling".to_owned(),
        workload: "ycsb",
        params: access.params(theta),
        nodes: 1,
        threads,
        clients: 0,
        seconds: slowest.as_secs_f64(),
        committed: accesses / access.ops_per_txn as u64,
        aborted: 0,
        txn_per_s: op_per_s / ops,
        op_per_s,
        latency_us: Latency::default(),
        peak_rss_bytes: host::peak_rss_bytes(),
        checks: [("increments", Check::from(increments))].into(),
        repetition,
        share_of_ceiling: None,
        load_seconds: (begun.elapsed().saturating_sub(slowest)).as_secs_f64(),
        cpu_us_per_txn: Default::default(),
        replay_txn_per_s: None,
    })
}

/// What one thread did.
struct Thread {
    accesses: u64,
    increments: u64,
    /// The sum of the counters in its records afterwards.
    found_increments: u64,
    took: Duration,
}

impl Thread {
    fn run(
        access: &AccessArgs,
        choice: &Choice,
        number: usize,
        threads: usize,
        duration: Duration,
        ready: &Barrier,
    ) -> Thread {
        let mine = |hash: KeyHash| shard_of_slot(hash.slot(), threads) == number;
        let slots: Vec<usize> =
            (0..ordain_model::key::SLOTS).filter(|slot| shard_of_slot(*slot, threads) == number).collect();
        let first = slots.first().copied().unwrap_or(0);
        let mut store = MemoryStore::new(first..first + slots.len());
        for record in 0..access.records {
            let key = ycsb::key(record);
            let hash = KeyHash::of(&key);
            if mine(hash) {
                let id = store.find_or_reserve(ycsb::DB, &key, hash);
                let value = RecordValue::String(ycsb::initial(record, access.record_bytes));
                store.edit(id, Gsn(1), |cell, changed| CellMut::new(cell, changed, None).put(value));
            }
        }
        let mut random = Random::stream(access.seed, number as u64);
        let mut draws = Vec::with_capacity(DRAWS);
        // A shard that holds no record at all, with a handful of records, has nothing to do.
        let mut tries = 0;
        while draws.len() < DRAWS && tries < 64 * threads * DRAWS {
            tries += 1;
            let key = ycsb::key(choice.draw(&mut random));
            let hash = KeyHash::of(&key);
            if mine(hash) {
                let writes = random.below(access.ops_per_txn as u64) < access.writes_per_txn() as u64;
                draws.push(Draw { hash, key, writes });
            }
        }
        ready.wait();
        let begun = Instant::now();
        let (mut accesses, mut increments, mut sum) = (0u64, 0u64, 0u64);
        if !draws.is_empty() {
            'measuring: loop {
                for round in draws.chunks(ROUND) {
                    for batch in round.chunks(BATCH) {
                        store.prefetch(batch.iter().map(|draw| draw.hash));
                        for draw in batch {
                            let Some(id) = store.find(ycsb::DB, &draw.key, draw.hash) else { continue };
                            if draw.writes {
                                increments += 1;
                                store.edit(id, Gsn(increments), |cell, changed| {
                                    CellMut::new(cell, changed, None).change_string(ycsb::increment);
                                });
                            } else {
                                let content = store.cell(id).string().unwrap_or_default();
                                sum = sum.wrapping_add(ycsb::checksum(content));
                            }
                        }
                    }
                    accesses += round.len() as u64;
                    if begun.elapsed() >= duration {
                        break 'measuring;
                    }
                }
            }
        }
        let took = begun.elapsed().max(Duration::from_nanos(1));
        black_box(sum);
        let mut found_increments = 0;
        store.visit(Default::default(), |entry| {
            let counter = entry.cell.string().and_then(|content| content.first_chunk());
            found_increments += counter.map_or(0, |counter| u64::from_le_bytes(*counter));
            true
        });
        Thread { accesses, increments, found_increments, took }
    }
}

/// How long the raw measurements may take.
const RAW: Duration = Duration::from_millis(700);

fn latencies(samples: Vec<Duration>) -> anyhow::Result<Latency> {
    let mut histogram = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 60_000_000, 3)
        .context("a histogram of latencies")?;
    samples.iter().for_each(|sample| histogram.saturating_record(sample.as_micros() as u64));
    let mean = samples.iter().sum::<Duration>().as_secs_f64() * 1e6 / samples.len().max(1) as f64;
    Ok(Latency { mean, ..Latency::from(&histogram) })
}

/// How long it takes to write 4 KiB and make them durable, one after the other in a file of known length.
///
/// # Errors
/// The system's.
pub fn sync_latency(directory: &Path) -> anyhow::Result<Latency> {
    let mut disk = FsDirectory::open(directory)?;
    let file = "ceiling".to_owned();
    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 4096;
    let mut apply =
        |op: DiskOp| disk.apply(&op).map_err(|error| anyhow::anyhow!("measuring fdatasync: {error}"));
    apply(DiskOp::Create { file: file.clone(), len: BLOCKS * BLOCK as u64 })?;
    let mut samples = Vec::new();
    let begun = Instant::now();
    for block in (0..BLOCKS).take_while(|_| begun.elapsed() < RAW) {
        let at = Instant::now();
        let data = vec![Bytes::Owned(vec![block as u8; BLOCK])];
        apply(DiskOp::Write { file: file.clone(), offset: block * BLOCK as u64, data })?;
        apply(DiskOp::Sync { file: file.clone() })?;
        samples.push(at.elapsed());
    }
    apply(DiskOp::Remove { file })?;
    latencies(samples)
}

/// How long 64 bytes take over loopback and back, with nothing else under way.
///
/// # Errors
/// The system's.
pub fn loopback_latency() -> anyhow::Result<Latency> {
    const MESSAGE: usize = 64;
    let ping = || -> std::io::Result<Vec<Duration>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut client = TcpStream::connect(listener.local_addr()?)?;
        let (mut server, _) = listener.accept()?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let echo = thread::spawn(move || {
            let mut message = [0; MESSAGE];
            while server.read_exact(&mut message).is_ok() && server.write_all(&message).is_ok() {}
        });
        let mut samples = Vec::new();
        let mut message = [7; MESSAGE];
        let begun = Instant::now();
        while begun.elapsed() < RAW {
            let at = Instant::now();
            client.write_all(&message)?;
            client.read_exact(&mut message)?;
            samples.push(at.elapsed());
        }
        drop(client);
        // The echo ends with its connection; a panic in it would have ended the loop above with an error.
        let _ = echo.join();
        Ok(samples)
    };
    latencies(ping().context("measuring loopback round trips")?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: CeilingArgs,
    }

    fn parse(line: &str) -> CeilingArgs {
        Line::parse_from(line.split_whitespace()).args
    }

    #[test]
    fn every_access_is_counted_and_shards_do_not_lose_any() {
        for line in [
            "x --records 500 --theta 0.9",
            "x --records 500 --write-ratio 1",
            "x --records 1 --ops-per-txn 1",
        ] {
            let args = parse(line).access;
            args.check().unwrap();
            let run = measure(&args, args.theta[0], 2, Duration::from_millis(20), 1).unwrap();
            assert!(run.passed() && run.committed > 0, "{run:?}");
        }
    }

    #[test]
    fn the_machine_syncs_and_answers_itself() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(sync_latency(scratch.path()).unwrap().mean > 0.0);
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        assert!(loopback_latency().unwrap().mean > 0.0);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (line, name) in [
            ("x --theta 1.0", "--theta"),
            ("x --theta 0.5,-1", "--theta"),
            ("x --records 0", "--records"),
            ("x --records 10 --ops-per-txn 11", "--ops-per-txn"),
            ("x --ops-per-txn 0", "--ops-per-txn"),
            ("x --write-ratio 1.1", "--write-ratio"),
            ("x --write-ratio nan", "--write-ratio"),
            ("x --record-bytes 7", "--record-bytes"),
            ("x --threads 0", "--threads"),
            ("x --threads 1,65", "--threads"),
            ("x --repeat 0", "--repeat"),
            ("x --json /proc/no/r.json", "--json"),
            ("x --duration 0", "--duration"),
            ("x --duration inf", "--duration"),
        ] {
            let refusal = run(&parse(line)).unwrap_err().to_string();
            assert!(refusal.contains(name), "{line}: {refusal}");
        }
    }
}
