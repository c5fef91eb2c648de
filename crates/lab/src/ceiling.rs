//! `ordain bench ceiling`: the record accesses of a workload with no transaction system at all, and the raw rates of
//! the machine's disk and loopback. What this machine could do at best.
//!
//! Each thread owns a shard of the records in a [`MemoryStore`], as the shards of a node do, and goes through them
//! in a plain loop: find, then add one to the first word of the record or sum the record up. The transactions are
//! made up, planned and hashed before the clock starts, a batch of records is prefetched ahead of its use, there is
//! no order, no lock, no log, no message and no answer. Records that belong to another thread's shard are left out:
//! each thread has its own share of the accesses.
//!
//! Records that the transactions of the run would make are there from the start, so that every access finds something.
//! Plans name the records that are accessed. Those that a transaction finds out as it runs (the rows below a district of TPC-C,
//! the keys that a reconnaissance looks up) is not in it, so the ceiling of such a workload is a little too high and
//! a share of it a little too low.

use std::hint::black_box;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use ordain_model::key::{SLOTS, shard_of_slot};
use ordain_model::serial::key_of;
use ordain_model::{
    Access, ArgsBuilder, Call, Cell, CellMut, Chunk, ChunkNo, Db, Fragment, GatewayId, Gsn, KeyHash, Millis,
    ReferenceExecutor, Registry,
};
use ordain_role::{Bytes, Directory, DiskOp};
use ordain_runtime::FsDirectory;
use ordain_store::{MemoryStore, RecordStore};
use ordain_workload::{Source, Workload};

use crate::bench::{Common, registry, seconds};
use crate::disturbance::Watch;
use crate::enough::Load;
use crate::host;
use crate::interrupt;
use crate::progress::Progress;
use crate::report::{
    Check, ENOUGH, Group, Latency, Report, Run, by_setting, checks, describe, median, varying, whole,
};
use crate::table::{Table, cells, number, text};
use crate::tally::histogram;
use crate::workloads::Knobs;
use crate::workloads::ycsb::YcsbKnobs;

/// Arguments of `ordain bench ceiling`.
#[derive(Clone, Debug, clap::Args)]
pub struct CeilingArgs {
    #[command(flatten)]
    knobs: YcsbKnobs,
    #[command(flatten)]
    common: Common,
    /// Time of measuring, seconds
    #[arg(long, default_value_t = 3.0)]
    duration: f64,
}

/// Runs `ordain bench ceiling`; returns whether its checks passed.
///
/// # Errors
/// A parameter that makes no sense, or the machine refuses something.
pub fn run(args: &CeilingArgs) -> anyhow::Result<bool> {
    args.common.check()?;
    let duration = seconds("--duration", args.duration)?;
    let scratch = args.common.scratch()?;
    let registry = registry();
    let mut settings = Vec::new();
    for threads in args.common.thread_counts(1) {
        for workload in args.knobs.workloads(args.common.partitions.unwrap_or(threads))? {
            settings.push((threads, workload));
        }
    }
    let mut progress = Progress::new(duration * (settings.len() * args.common.repeat) as u32);
    let mut report = Report::new();
    for repetition in 1..=args.common.repeat {
        for (threads, workload) in &settings {
            progress.show(Duration::ZERO, "plain accesses");
            let seed = args.common.seed_of(repetition);
            report.runs.push(measure(&**workload, &registry, *threads, seed, duration, repetition)?);
            progress.advance(duration);
        }
    }
    drop(progress);
    println!("{}", accesses(&report.runs));
    measure_machine(scratch.path(), &mut report)?;
    report.machine_table(whole).iter().for_each(|table| println!("{table}"));
    args.common.write(&report)?;
    Ok(report.passed())
}

/// One row for each setting: how many accesses a second, and how many transactions that would be.
fn accesses(runs: &[Run]) -> Table {
    let groups = by_setting(runs);
    let knobs = varying(&groups);
    let rate = |group: &Group<'_>| median(group.iter().map(|run| run.op_per_s));
    let of = |name: &'static str, value: fn(&Run) -> f64| {
        number(name, move |group: &Group<'_>| whole(median(group.iter().map(|run| value(run)))))
    };
    let columns = vec![
        number("threads", |group: &Group<'_>| group[0].threads.to_string()),
        text("setting", |group: &Group<'_>| describe(group[0], &knobs)),
        of("accesses/s", |run| run.op_per_s),
        number("ns an access", |group: &Group<'_>| {
            format!("{:.1}", 1e9 * group[0].threads as f64 / rate(group).max(1.0))
        }),
        of("as txn/s", |run| run.txn_per_s),
        of("MiB", |run| run.peak_rss_bytes as f64 / (1 << 20) as f64),
        cells("checks", false, |group: &Group<'_>| checks(group)),
    ];
    Table::of("Plain accesses", groups.clone(), columns)
}

/// Measures the raw rates of the disk below a directory and of the loopback, for [`Report::machine`].
pub fn measure_machine(directory: &Path, report: &mut Report) -> anyhow::Result<()> {
    for (name, latency) in
        [("fdatasync", sync_latency(directory)?), ("loopback_round_trip", loopback_latency()?)]
    {
        report.machine.insert(name.to_owned() + "_us", serde_json::to_value(latency)?);
    }
    Ok(())
}

/// One access that a thread will make.
#[derive(Clone, Copy)]
struct Draw {
    hash: KeyHash,
    /// Place of its key in the thread's list of keys.
    at: u32,
    len: u16,
    db: Db,
    writes: bool,
}

/// Accesses that a thread prepares and goes round: their records fit in no cache.
const DRAWS: usize = 1 << 20;
/// A short measurement needs fewer: no thread makes more than this many a second.
const DRAWS_PER_S: f64 = 10e6;
/// Records that are prefetched together.
const BATCH: usize = 16;
/// Accesses between two looks at the clock.
const ROUND: usize = 4096;

/// Measures plain accesses.
pub fn measure(
    workload: &dyn Workload,
    registry: &Arc<Registry>,
    threads: usize,
    seed: u64,
    duration: Duration,
    repetition: usize,
) -> anyhow::Result<Run> {
    host::reset_peak_rss();
    let draws = DRAWS.min((duration.as_secs_f64() * DRAWS_PER_S) as usize).max(ROUND);
    let ready = Barrier::new(threads + 1);
    let begun = Instant::now();
    let (results, disturbance) = thread::scope(|scope| {
        let spawn = |number| {
            let ready = &ready;
            scope.spawn(move || {
                let prepared = Shard::load(workload, registry, number, threads, seed)
                    .and_then(|mut shard| Ok((shard.draws(workload, registry, seed, draws)?, shard)));
                // All wait for all, also for one that has failed.
                ready.wait();
                prepared.map(|(draws, shard)| shard.run(&draws, duration))
            })
        };
        let running: Vec<_> = (0..threads).map(spawn).collect();
        ready.wait();
        let watch = Watch::begin(None);
        let joined = running.into_iter().map(|thread| thread.join().map_err(|_| ()));
        let results: Result<Vec<anyhow::Result<Thread>>, ()> = joined.collect();
        (results, watch.end())
    });
    let results = results.map_err(|()| anyhow::anyhow!("a thread of the ceiling panicked"))?;
    let results: Vec<Thread> = results.into_iter().collect::<Result<_, _>>()?;
    interrupt::check()?;
    let slowest = results.iter().map(|thread| thread.took).max().unwrap_or_default();
    let op_per_s: f64 = results.iter().map(|thread| thread.accesses as f64 / thread.took.as_secs_f64()).sum();
    let accesses: u64 = results.iter().map(|thread| thread.accesses).sum();
    let whole = results.iter().all(|thread| thread.found == thread.writes);
    let per_txn = results.iter().map(|thread| thread.per_txn).sum::<f64>().max(f64::MIN_POSITIVE);
    let committed = (accesses as f64 / per_txn) as u64;
    let too_little = Load { loops: threads, clients: threads, is_open: false }.too_little(committed);
    Ok(Run {
        threads,
        seed,
        repetition,
        seconds: slowest.as_secs_f64(),
        committed,
        txn_per_s: op_per_s / per_txn,
        op_per_s,
        peak_rss_bytes: host::peak_rss_bytes(),
        checks: [("writes", Check::from(whole)), (ENOUGH, Check::from(too_little.is_none()))].into(),
        wrong: too_little.into_iter().collect(),
        disturbance,
        load_seconds: (begun.elapsed().saturating_sub(slowest)).as_secs_f64(),
        ..Run::of("ceiling", workload)
    })
}

/// The outcome of one thread.
struct Thread {
    accesses: u64,
    writes: u64,
    /// By how much the first words of its records have grown.
    found: u64,
    /// Accesses of a transaction on this shard, on average.
    per_txn: f64,
    took: Duration,
}

/// The accesses of one thread.
struct Draws {
    draws: Vec<Draw>,
    keys: Vec<u8>,
    txns: u64,
}

/// One thread's share of the records.
struct Shard {
    number: usize,
    threads: usize,
    store: MemoryStore,
}

impl Shard {
    fn owns(&self, fragment: &Fragment) -> bool {
        shard_of_slot(fragment.hash.slot(), self.threads) == self.number
    }

    /// The records as the workload loads them, by the procedures that load them.
    fn load(
        workload: &dyn Workload,
        registry: &Arc<Registry>,
        number: usize,
        threads: usize,
        seed: u64,
    ) -> anyhow::Result<Shard> {
        let mine = |slot: &usize| shard_of_slot(*slot, threads) == number;
        let slots =
            (0..SLOTS).find(mine).map_or(0..0, |first| first..first + (0..SLOTS).filter(mine).count());
        let Range { start, end } = slots;
        let mut shard = Shard { number, threads, store: MemoryStore::new(start..end) };
        let mut source = workload.source(seed, 0, 1);
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        while let Some(procedure) = source.load() {
            let txn = chunk.push(registry, Call::new(procedure, Db(0)), |args| source.write_args(args));
            let txn = txn.map_err(|refusal| anyhow::anyhow!("loading was refused: {refusal}"))?.clone();
            let mut executor = ReferenceExecutor::new(registry.clone());
            // What loads has no reason to abort, and the checks of the workload would show it.
            executor.run_txn(Gsn(1), Millis(1), &chunk, &txn);
            for (db, key, cell) in executor.records() {
                shard.insert(db, key, cell);
            }
            chunk = Chunk::after(&chunk);
        }
        Ok(shard)
    }

    /// Inserts a record, if it is this shard's.
    fn insert(&mut self, db: Db, key: &[u8], cell: &Cell) {
        let hash = self.store.placement().hash_of_record(db, key);
        if shard_of_slot(hash.slot(), self.threads) == self.number {
            let record = self.store.find_or_reserve(db, key, hash);
            self.store.take(record, Gsn(1));
            self.store.put_back(record, cell.clone(), Gsn(1));
        }
    }

    /// Makes up transactions until this shard has so many accesses.
    fn draws(
        &mut self,
        workload: &dyn Workload,
        registry: &Arc<Registry>,
        seed: u64,
        draws: usize,
    ) -> anyhow::Result<Draws> {
        let mut source = workload.source(seed, self.number, self.threads);
        let mut made = Draws { draws: Vec::with_capacity(draws), keys: Vec::new(), txns: 0 };
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(0));
        // A shard that holds next to nothing gets next to nothing to do.
        let most = 64 * (self.threads * draws) as u64;
        let mut fragments = 0u64;
        while made.draws.len() < draws && fragments < most {
            fragments += 1 + self.plan(&mut *source, registry, &mut chunk, &mut made)?;
        }
        Ok(made)
    }

    /// Plans one transaction and notes what it accesses here; returns how many fragments it has.
    fn plan(
        &mut self,
        source: &mut dyn Source,
        registry: &Arc<Registry>,
        chunk: &mut Chunk,
        made: &mut Draws,
    ) -> anyhow::Result<u64> {
        let procedure = source.next().procedure;
        let write = |args: &mut ArgsBuilder<'_>| source.write_args(args);
        if registry.get(procedure).is_some_and(|procedure| procedure.is_dependent()) {
            return Ok(0);
        }
        let txn = chunk.push(registry, Call::new(procedure, Db(0)), write);
        let txn = txn.map_err(|refusal| anyhow::anyhow!("a transaction was refused: {refusal}"))?.clone();
        made.txns += 1;
        let fragments = chunk.fragments(&txn);
        for fragment in fragments.iter().filter(|fragment| fragment.is_keyed()) {
            if !self.owns(fragment) {
                continue;
            }
            let key = key_of(chunk.args(&txn), fragment).bytes;
            self.make(fragment, key);
            let (at, len) = (made.keys.len() as u32, key.len() as u16);
            made.keys.extend_from_slice(key);
            let writes = fragment.access == Access::Write;
            made.draws.push(Draw { hash: fragment.hash, at, len, db: fragment.db, writes });
        }
        let count = fragments.len() as u64;
        *chunk = Chunk::after(chunk);
        Ok(count)
    }

    /// Makes the record that a transaction would, if it is not there: as small as can be counted in.
    fn make(&mut self, fragment: &Fragment, key: &[u8]) {
        if self.store.find(fragment.db, key, fragment.hash).is_none() {
            let record = self.store.find_or_reserve(fragment.db, key, fragment.hash);
            self.store.edit(record, Gsn(1), |cell, changed| {
                CellMut::new(cell, changed, None).put_string(&[0; 8]);
            });
        }
    }

    /// The sum of the first words of all records.
    fn first_words(&self) -> u64 {
        let mut sum = 0u64;
        self.store.visit(Default::default(), |entry| {
            let word = entry.cell.string().and_then(|content| content.first_chunk());
            sum = sum.wrapping_add(word.map_or(0, |word| u64::from_le_bytes(*word)));
            true
        });
        sum
    }

    fn run(mut self, draws: &Draws, duration: Duration) -> Thread {
        let Draws { draws, keys, txns } = draws;
        let before = self.first_words();
        let store = &mut self.store;
        let begun = Instant::now();
        let (mut accesses, mut writes, mut sum) = (0u64, 0u64, 0u64);
        if !draws.is_empty() {
            'measuring: loop {
                for round in draws.chunks(ROUND) {
                    for batch in round.chunks(BATCH) {
                        store.prefetch(batch.iter().map(|draw| draw.hash));
                        for draw in batch {
                            let key = &keys[draw.at as usize..][..usize::from(draw.len)];
                            let Some(id) = store.find(draw.db, key, draw.hash) else { continue };
                            if draw.writes {
                                writes += store.edit(id, Gsn(accesses + 1), add_one);
                            } else {
                                let content = store.cell(id).string().unwrap_or_default();
                                sum = sum.wrapping_add(ordain_workload::ycsb::checksum(content));
                            }
                        }
                    }
                    accesses += round.len() as u64;
                    if begun.elapsed() >= duration || interrupt::is_requested() {
                        break 'measuring;
                    }
                }
            }
        }
        let took = begun.elapsed().max(Duration::from_nanos(1));
        black_box(sum);
        let found = self.first_words().wrapping_sub(before);
        let per_txn = draws.len() as f64 / (*txns).max(1) as f64;
        Thread { accesses, writes, found, per_txn, took }
    }
}

/// Adds one to the first word of a record; returns how much was added.
fn add_one(cell: &mut Cell, changed: &mut bool) -> u64 {
    if cell.string().is_none_or(|content| content.len() < 8) {
        return 0;
    }
    CellMut::new(cell, changed, None).change_string(ordain_workload::ycsb::increment);
    1
}

/// Time of each raw measurement.
const RAW: Duration = Duration::from_millis(700);

fn latencies(samples: &[Duration]) -> Latency {
    let mut histogram = histogram();
    samples.iter().for_each(|sample| histogram.saturating_record(sample.as_micros() as u64));
    let mean = samples.iter().sum::<Duration>().as_secs_f64() * 1e6 / samples.len().max(1) as f64;
    Latency { mean, ..Latency::from(&histogram) }
}

/// Measures writing and syncing 4 KiB, one after the other in a file of known length.
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
        let data = vec![Bytes::from(vec![block as u8; BLOCK])];
        apply(DiskOp::Write { file: file.clone(), offset: block * BLOCK as u64, data })?;
        apply(DiskOp::Sync { file: file.clone() })?;
        samples.push(at.elapsed());
    }
    apply(DiskOp::Remove { file })?;
    Ok(latencies(&samples))
}

/// Measures 64 bytes over loopback and back, with nothing else under way.
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
    Ok(latencies(&ping().context("measuring loopback round trips")?))
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
            "x --records 8 --ops-per-txn 1",
        ] {
            let workload = parse(line).knobs.workloads(1).unwrap().remove(0);
            let run = measure(&*workload, &registry(), 2, 1, Duration::from_millis(20), 1).unwrap();
            assert!(run.passed() && run.committed > 0, "{run:?}");
            let ops = workload.accesses()[0];
            assert!((run.op_per_s / run.txn_per_s / ops - 1.0).abs() < 0.05, "{ops} {run:?}");
        }
    }

    #[test]
    fn the_machine_syncs_and_answers_itself() {
        let scratch = tempfile::tempdir().unwrap();
        let mut report = Report::new();
        measure_machine(scratch.path(), &mut report).unwrap();
        assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0);
        assert!(report.machine["fdatasync_us"]["mean"].as_f64().unwrap() > 0.0);
        assert!(report.machine_table(whole).unwrap().to_string().contains("loopback round trip"));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (line, name) in [
            ("x --theta 1.0", "theta"),
            ("x --theta 0.5,-1", "theta"),
            ("x --records 0", "records"),
            ("x --records 10 --ops-per-txn 11", "records"),
            ("x --ops-per-txn 0", "ops_per_txn"),
            ("x --write-ratio 1.1", "--write-ratio"),
            ("x --write-ratio nan", "--write-ratio"),
            ("x --record-bytes 7", "record_bytes"),
            ("x --threads 0", "--threads"),
            ("x --threads 1,129", "--threads"),
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
