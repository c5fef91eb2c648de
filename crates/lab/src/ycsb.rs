//! `ordain bench ycsb`: load, warm up, measure, check; several settings in turns.
//!
//! A run starts a node of its own in an empty directory, so no run sees what another left. After it, the counters
//! must add up to the increments that were committed, every record must be there with its own payload, and the
//! digest that the node has kept must be that of the bytes it holds. With `--replay` the node is started once more
//! from its log, and must come to the same digest.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use ordain_model::{Datum, Registry, system};
use ordain_node::assembly::{Keep, NodeSettings};
use ordain_node::engine::Engine;
use ordain_role::Bugs;
use ordain_workload::ycsb::{self, Audit, Parameters, Ycsb};

use crate::ceiling::{self, AccessArgs, seconds};
use crate::embedded::{self, Length, Measured, Setup, parts_of};
use crate::progress::Progress;
use crate::report::{Check, Latency, Report, Run, cpu_table, throughput_table};

/// What `ordain bench ycsb` takes.
#[derive(Clone, Debug, clap::Args)]
pub struct YcsbArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// Engines to compare, separated by commas
    #[arg(long, value_delimiter = ',', default_value = "calvin")]
    engine: Vec<Engine>,
    /// When a write is acknowledged; several are compared
    #[arg(long, value_enum, value_delimiter = ',', default_value = "fsync")]
    durability: Vec<Durability>,
    /// How many clients there are, all threads together; each has one transaction under way
    #[arg(long, default_value_t = 2000)]
    clients: usize,
    /// How long to measure, seconds
    #[arg(long, default_value_t = 10.0)]
    duration: f64,
    /// How long to run before measuring, seconds
    #[arg(long, default_value_t = 2.0)]
    warmup: f64,
    /// Measure this many transactions instead of a time, without a warm-up
    #[arg(long, value_name = "N")]
    txns: Option<u64>,
    /// How clients reach the node
    #[arg(long, value_enum, default_value = "embedded")]
    via: Via,
    /// How many nodes the cluster has
    #[arg(long, default_value_t = 1)]
    nodes: u16,
    /// One-way delay between nodes, microseconds
    #[arg(long, default_value_t = 0)]
    latency_us: u64,
    /// Measure the ceiling beside every run and tell throughput as a share of it
    #[arg(long)]
    ceiling: bool,
    /// Replay the log of every run that keeps one, and compare the digests
    #[arg(long)]
    replay: bool,
    /// Bugs that a test of the checks has planted.
    #[arg(skip)]
    bugs: Bugs,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Durability {
    /// When it will survive the loss of power
    Fsync,
    /// When it will survive the death of the process
    Os,
    /// Without waiting for the log
    None,
    /// There is no log: as `serve --ephemeral`
    Ephemeral,
}

impl Durability {
    fn keep(self) -> Keep {
        match self {
            Durability::Fsync => Keep::Fsync,
            Durability::Os => Keep::Os,
            Durability::None => Keep::Late,
            Durability::Ephemeral => Keep::Nothing,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Durability::Fsync => "fsync",
            Durability::Os => "os",
            Durability::None => "none",
            Durability::Ephemeral => "ephemeral",
        })
    }
}

/// How clients reach the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Via {
    /// In the node's own process, without sockets
    Embedded,
    /// Over the Redis protocol
    Resp,
}

impl YcsbArgs {
    /// Refuses what makes no sense or is not there, by name.
    fn check(&self) -> anyhow::Result<Length> {
        self.access.check()?;
        /// Beyond this many the node would answer BUSY.
        const CLIENTS_MAX: usize = 100_000;
        if !(1..=CLIENTS_MAX).contains(&self.clients) {
            bail!("--clients must be 1 to {CLIENTS_MAX}, not {}", self.clients);
        }
        if self.via == Via::Resp {
            bail!(
                "--via resp is not built yet: take --via embedded, or redis-benchmark against `ordain serve`"
            );
        }
        if self.nodes != 1 {
            bail!("--nodes {} is not built yet: this version has clusters of 1 node", self.nodes);
        }
        if self.latency_us != 0 {
            bail!("--latency-us {} has no effect on a cluster of 1 node: leave it at 0", self.latency_us);
        }
        if self.txns == Some(0) {
            bail!("--txns must be at least 1");
        }
        let measure = seconds("--duration", self.duration)?;
        let warmup =
            Duration::try_from_secs_f64(self.warmup).ok().filter(|warmup| warmup.as_secs() <= 1_000_000);
        let Some(warmup) = warmup else {
            bail!("--warmup must be 0 to 1000000 seconds, not {}", self.warmup)
        };
        Ok(match self.txns {
            Some(txns) => Length::Txns(txns),
            None => Length::Time { warmup, measure },
        })
    }

    fn settings(&self) -> Vec<Setting> {
        let mut settings = Vec::new();
        for &threads in &self.access.thread_counts() {
            for &theta in &self.access.theta {
                for &durability in &self.durability {
                    for &engine in &self.engine {
                        settings.push(Setting { engine, durability, threads, theta });
                    }
                }
            }
        }
        settings
    }
}

/// One of the things that are compared.
#[derive(Clone, Copy, Debug)]
struct Setting {
    engine: Engine,
    durability: Durability,
    threads: usize,
    theta: f64,
}

/// Runs `ordain bench ycsb`; says whether all checks passed.
///
/// # Errors
/// A parameter that makes no sense, before anything runs; or what went wrong in a run, after what was measured
/// until then has been reported.
pub fn run(args: &YcsbArgs) -> anyhow::Result<bool> {
    let length = args.check()?;
    let mut report = Report::new();
    let result = measure_all(args, length, &mut report);
    if !report.runs.is_empty() {
        println!("{}", throughput_table(&report.runs));
        if let Some(table) = cpu_table(&report.runs) {
            println!("{table}");
        }
    }
    if let Some(path) = &args.access.json {
        report.write(path)?;
    }
    result.map(|()| report.passed())
}

/// Runs every setting once, then every setting again, until each has had its repetitions.
fn measure_all(args: &YcsbArgs, length: Length, report: &mut Report) -> anyhow::Result<()> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_workload::register(&mut registry);
    let registry = Arc::new(registry);
    let settings = args.settings();
    let each = match length {
        Length::Time { warmup, measure } => warmup + measure,
        Length::Txns(_) => Duration::from_secs(1),
    };
    let mut progress = Progress::new(each * (settings.len() * args.access.repeat) as u32);
    for repetition in 1..=args.access.repeat {
        let mut ceilings: BTreeMap<(usize, u64), f64> = BTreeMap::new();
        for setting in &settings {
            let place = (setting.threads, setting.theta.to_bits());
            if args.ceiling && !ceilings.contains_key(&place) {
                let run = measure_ceiling(args, setting, repetition)?;
                ceilings.insert(place, run.txn_per_s);
                report.runs.push(run);
            }
            let mut run = measure_one(args, setting, length, &registry, repetition, &progress)
                .with_context(|| format!("{} with --durability {}", setting.engine, setting.durability))?;
            run.share_of_ceiling = ceilings.get(&place).map(|ceiling| run.txn_per_s / ceiling);
            report.runs.push(run);
            progress.advance(each);
        }
    }
    Ok(())
}

fn measure_ceiling(args: &YcsbArgs, setting: &Setting, repetition: usize) -> anyhow::Result<Run> {
    /// The ceiling has no waiting in it, so it needs no longer.
    const ENOUGH: f64 = 2.0;
    let duration = Duration::from_secs_f64(args.duration.min(ENOUGH));
    ceiling::measure(&args.access, setting.theta, setting.threads, duration, repetition)
}

fn measure_one(
    args: &YcsbArgs,
    setting: &Setting,
    length: Length,
    registry: &Arc<Registry>,
    repetition: usize,
    progress: &Progress,
) -> anyhow::Result<Run> {
    let access = &args.access;
    let parameters = Parameters {
        choice: access.choice(setting.theta)?,
        ops_per_txn: access.ops_per_txn,
        writes_per_txn: access.writes_per_txn(),
        record_bytes: access.record_bytes,
    };
    let scratch = access.scratch()?;
    let keeps = setting.durability != Durability::Ephemeral;
    let setup = Setup {
        node: NodeSettings {
            keep: setting.durability.keep(),
            identity: b"bench".to_vec(),
            bugs: args.bugs,
            ..NodeSettings::default()
        },
        directory: keeps.then(|| scratch.path().to_owned()),
        clients: args.clients,
        length,
        audits: vec![ycsb::AUDIT, system::DIGEST],
        patience: if args.bugs == Bugs::NONE { embedded::PATIENCE } else { Duration::from_millis(100) },
    };
    let seed = access.seed.wrapping_add(repetition as u64 - 1);
    let source = |number| Ycsb::new(parameters.clone(), seed, number, setting.threads);
    let sources = (0..setting.threads).map(source).collect();
    let measured = embedded::run(&setup, registry, sources, progress)?;
    let (mut checks, digest) = check(access, &measured)?;
    let mut replay_txn_per_s = None;
    if args.replay && keeps {
        progress.show(Duration::ZERO, "replaying");
        let replayed = embedded::replay(&setup, setting.threads, registry)?;
        checks.insert("replay", (replayed.digest.to_string() == digest).into());
        replay_txn_per_s = Some(replayed.txns as f64 / replayed.took.as_secs_f64());
    }
    let committed = measured.counts.committed;
    let txn_per_s = committed as f64 / measured.seconds;
    let mut params = access.params(setting.theta);
    params.insert("durability".to_owned(), setting.durability.to_string().into());
    params.insert("warmup".to_owned(), args.warmup.into());
    Ok(Run {
        engine: setting.engine.name().to_owned(),
        workload: "ycsb",
        params,
        nodes: args.nodes,
        threads: setting.threads,
        clients: args.clients,
        seconds: measured.seconds,
        committed,
        aborted: measured.counts.aborted,
        txn_per_s,
        op_per_s: txn_per_s * access.ops_per_txn as f64,
        latency_us: Latency::from(&measured.latency_us),
        peak_rss_bytes: measured.peak_rss_bytes,
        checks,
        repetition,
        share_of_ceiling: None,
        load_seconds: measured.load_seconds,
        cpu_us_per_txn: cpu_us_per_txn(&measured),
        replay_txn_per_s,
    })
}

/// What must hold after a run, and the digest that the node says its state has.
fn check(
    access: &AccessArgs,
    measured: &Measured,
) -> anyhow::Result<(BTreeMap<&'static str, Check>, String)> {
    let [audit, digest] = &measured.audits[..] else { bail!("the node did not answer the checks") };
    // A node that never answered the audit has failed all of it.
    let audit = Audit::read(audit).unwrap_or_default();
    let digest = Datum::first(digest).as_bytes().unwrap_or_default();
    let digest = String::from_utf8_lossy(digest).into_owned();
    let increments = measured.whole_run.committed * access.writes_per_txn() as u64;
    let checks = BTreeMap::from([
        ("increments", Check::from(audit.increments == increments)),
        ("records", Check::from(audit.records == access.records && audit.damaged == 0)),
        ("digest", Check::from(audit.digest.to_string() == digest)),
        ("all_answered", Check::from(measured.unanswered == 0)),
        ("no_aborts", Check::from(measured.whole_run.aborted == 0)),
        ("none_turned_away", Check::from(measured.whole_run.turned_away == 0)),
    ]);
    Ok((checks, digest))
}

/// Processor time for each committed transaction, by role or part of the driver.
fn cpu_us_per_txn(measured: &Measured) -> BTreeMap<String, f64> {
    let committed = measured.counts.committed.max(1) as f64;
    let per_txn = |time: Duration| time.as_secs_f64() * 1e6 / committed;
    let mut parts: BTreeMap<String, f64> =
        parts_of(&measured.loops).into_iter().map(|(name, time)| (name.to_owned(), per_txn(time))).collect();
    // What the process used beyond its loops is the disk thread's, but for the little that leading takes.
    let loops: Duration = measured.loops.iter().map(|used| used.cpu).sum();
    if !measured.process_cpu.is_zero() {
        parts.insert("disk thread".to_owned(), per_txn(measured.process_cpu.saturating_sub(loops)));
    }
    parts
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use ordain_role::Bug;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: YcsbArgs,
    }

    fn parse(line: &str) -> YcsbArgs {
        Line::try_parse_from(line.split_whitespace()).unwrap_or_else(|error| panic!("{line}: {error}")).args
    }

    const SMALL: &str =
        "x --records 300 --ops-per-txn 5 --write-ratio 0.6 --theta 0.9 --clients 20 --txns 400 ";

    fn measured(args: &YcsbArgs) -> Report {
        let mut report = Report::new();
        measure_all(args, args.check().unwrap(), &mut report).unwrap();
        report
    }

    #[test]
    fn small_runs_pass_their_checks_whatever_the_threads_and_the_log() {
        let line = SMALL.to_owned()
            + "--threads 1,2,3 --durability ephemeral,none,os,fsync --replay --ceiling --duration 0.01";
        let report = measured(&parse(&line));
        assert!(report.passed(), "{:?}", report.runs);
        let runs: Vec<&Run> = report.runs.iter().filter(|run| run.engine == "calvin").collect();
        assert_eq!((runs.len(), report.runs.len()), (12, 15));
        for run in runs {
            assert_eq!((run.committed, run.aborted), (400, 0));
            assert_eq!(run.checks.contains_key("replay"), run.params["durability"] != "ephemeral");
            assert!(run.share_of_ceiling.is_some() && run.cpu_us_per_txn.contains_key("runtime"), "{run:?}");
        }
    }

    #[test]
    fn a_timed_run_warms_up_measures_and_ends() {
        let line = "x --records 100 --ops-per-txn 2 --clients 4 --threads 2 --durability ephemeral --warmup 0.01 --duration 0.03 --repeat 2";
        let report = measured(&parse(line));
        assert!(report.passed() && report.runs.len() == 2, "{:?}", report.runs);
        assert!(report.runs.iter().all(|run| run.seconds >= 0.02), "{:?}", report.runs);
    }

    #[test]
    fn a_skipped_transaction_is_caught_by_the_checks() {
        for threads in [1, 2] {
            let mut args = parse(&SMALL.replace("--txns 400", &format!("--txns 4000 --threads {threads}")));
            args.durability = vec![Durability::Ephemeral];
            args.bugs = Bugs::NONE.with(Bug::SkipTransaction);
            let report = measured(&args);
            let checks = &report.runs[0].checks;
            assert!(
                checks["all_answered"] == Check::Fail || checks["increments"] == Check::Fail,
                "{checks:?}"
            );
        }
    }

    #[test]
    fn nonsense_and_what_is_not_built_are_refused_by_name() {
        for (line, name) in [
            ("x --theta 1", "--theta"),
            ("x --ops-per-txn 20 --records 10", "--ops-per-txn"),
            ("x --clients 0", "--clients"),
            ("x --clients 100001", "--clients"),
            ("x --via resp", "--via resp"),
            ("x --nodes 2", "--nodes 2"),
            ("x --latency-us 5", "--latency-us 5"),
            ("x --txns 0", "--txns"),
            ("x --duration 0", "--duration"),
            ("x --warmup nan", "--warmup"),
            ("x --json /proc/no/r.json", "--json"),
        ] {
            let refusal = run(&parse(line)).unwrap_err().to_string();
            assert!(refusal.contains(name), "{line}: {refusal}");
        }
        let refusal = Line::try_parse_from(["x", "--engine", "calvin,maat"]).err().unwrap().to_string();
        assert!(refusal.contains("engine 'maat' is not built yet"), "{refusal}");
    }
}
