//! What is printed and what is written: the JSON of CONTRACT.md, tables, and the arithmetic between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::path::Path;

use anyhow::Context;
use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value};

use ordain_workload::{Param, Workload};

use crate::host::Host;

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program's version.
    pub version: &'static str,
    /// The machine.
    pub host: Host,
    /// Every run, in the order in which they ran.
    pub runs: Vec<Run>,
    /// What else was measured of the machine, by name with its unit.
    #[serde(skip_serializing_if = "Map::is_empty")]
    pub machine: Map<String, Value>,
}

impl Report {
    /// A report of this program on this machine.
    pub fn new() -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION"),
            host: Host::look(),
            runs: Vec::new(),
            machine: Map::new(),
        }
    }

    /// Whether every check of every run passed.
    pub fn passed(&self) -> bool {
        self.runs.iter().all(Run::passed)
    }

    /// The raw rates among what was measured of the machine.
    pub fn raw_rates(&self) -> impl Iterator<Item = RawRate> {
        self.machine.iter().filter_map(|(name, latency)| {
            let of = |figure: &str| latency.get(figure).and_then(Value::as_f64);
            Some(RawRate {
                name: name.trim_end_matches("_us").replace('_', " "),
                per_second: 1e6 / of("mean")?.max(0.001),
                p50: of("p50")?,
                p99: of("p99")?,
            })
        })
    }

    /// Writes the report to a file.
    ///
    /// # Errors
    /// The system's, with the path.
    pub fn write(&self, path: &Path) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(self).context("a report that is no JSON")?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| format!("cannot write --json {}", path.display()))
    }
}

/// How often, and how fast, the machine does something when it does nothing else.
#[derive(Clone, Debug, PartialEq)]
pub struct RawRate {
    /// What it does.
    pub name: String,
    /// How often.
    pub per_second: f64,
    /// Half take at most so many microseconds.
    pub p50: f64,
    /// 99 in a hundred.
    pub p99: f64,
}

impl Default for Report {
    fn default() -> Self {
        Report::new()
    }
}

/// Makes sure, before anything runs, that a file can be written where a flag wants it.
///
/// # Errors
/// The system's, with the flag and the path.
pub fn check_writable(flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).with_context(|| {
        format!("cannot write {flag} {}: name a file in a directory that exists and is yours", path.display())
    })
}

/// Writes a value to the file of `--json`, if one is named.
///
/// # Errors
/// The system's, with the path.
pub fn write_json(path: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(value).context("a value that is no JSON")?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// What was run, repetitions apart.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The engine, or `ceiling`, or the server at the other end.
    pub engine: String,
    /// The workload.
    pub workload: &'static str,
    /// The workload's knobs, and how the node was set up.
    pub params: Map<String, Value>,
    /// How many nodes.
    pub nodes: u16,
    /// How many loops, each with a shard.
    pub threads: usize,
    /// How many clients, all loops together.
    pub clients: usize,
    /// Where everything that is drawn comes from.
    pub seed: u64,
}

impl Setting {
    /// A workload with its knobs; the rest is for the caller to say.
    pub fn of(engine: &str, workload: &dyn Workload) -> Setting {
        let mut params = Map::new();
        for (name, value) in workload.params() {
            let value = match value {
                Param::Int(value) => value.into(),
                Param::Real(value) => value.into(),
                Param::Text(value) => value.into(),
            };
            params.insert(name.to_owned(), value);
        }
        Setting {
            engine: engine.to_owned(),
            workload: workload.name(),
            params,
            nodes: 1,
            threads: 1,
            clients: 0,
            seed: 0,
        }
    }
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// The engine, or `ceiling`.
    pub engine: String,
    /// The workload.
    pub workload: &'static str,
    /// The workload's knobs, and how the node kept its log.
    pub params: Map<String, Value>,
    /// How many nodes.
    pub nodes: u16,
    /// How many loops, each with a shard.
    pub threads: usize,
    /// How many clients, all loops together.
    pub clients: usize,
    /// How long was measured.
    pub seconds: f64,
    /// Transactions that took effect.
    pub committed: u64,
    /// Transactions that did not, by their own logic or because they lost a race too often.
    pub aborted: u64,
    /// Committed transactions a second.
    pub txn_per_s: f64,
    /// Their operations a second.
    pub op_per_s: f64,
    /// From submission to answer, of what was committed; in an open loop, from when it was due, and with those that
    /// were answered too late to be counted, or never asked.
    pub latency_us: Latency,
    /// The peak of the process's resident memory.
    pub peak_rss_bytes: u64,
    /// What was checked.
    pub checks: BTreeMap<&'static str, Check>,
    /// Which of the repetitions it is, from 1 on.
    pub repetition: usize,
    /// Where everything that was drawn came from.
    pub seed: u64,
    /// Throughput as a share of the ceiling of the same repetition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_ceiling: Option<f64>,
    /// How long loading took.
    pub load_seconds: f64,
    /// Processor time while measuring, microseconds for each committed transaction, by role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_us_per_txn: BTreeMap<String, f64>,
    /// The same of each node, where there are several, divided by the transactions of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_us_per_txn_by_node: Vec<BTreeMap<String, f64>>,
    /// Transactions a second of replaying the run's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_txn_per_s: Option<f64>,
    /// By kind of transaction, where there are several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kinds: BTreeMap<&'static str, KindOfRun>,
    /// How often transactions were started over, because their reconnaissance was out of date.
    pub restarts: u64,
    /// What was asked for a second, in an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_txn_per_s: Option<f64>,
    /// How many requests of an open loop were due and not made when measuring ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
    /// Commits over time while measuring: the end of a tick in seconds, and how many there were in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<(f64, u64)>,
    /// The checkpoint that was taken while measuring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointOfRun>,
    /// What reads on snapshots saw and what was kept for them, where that was watched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsOfRun>,
    /// What a failed check found, and what else went wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
}

/// One kind of transaction of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KindOfRun {
    /// Transactions that took effect.
    pub committed: u64,
    /// Transactions that did not.
    pub aborted: u64,
    /// How often they were started over.
    pub restarts: u64,
    /// From submission to answer.
    pub latency_us: Latency,
}

/// A checkpoint that was taken while measuring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CheckpointOfRun {
    /// When it was asked for, in seconds.
    pub asked_s: f64,
    /// When it was complete, if it was.
    pub complete_s: Option<f64>,
    /// What was answered while it was captured.
    pub during: StretchOfRun,
    /// What was answered before it and after it.
    pub beside: StretchOfRun,
}

/// What was answered in a part of the time measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StretchOfRun {
    /// How long it was.
    pub seconds: f64,
    /// Committed transactions a second.
    pub txn_per_s: f64,
    /// From submission to answer.
    pub latency_us: Latency,
    /// The longest time in which no client of a loop was answered.
    pub pause_us: u64,
    /// Processor time that the loop used in it.
    pub pause_cpu_us: u64,
    /// What the host took from the machine's processors in it and in a tenth of a second before it.
    pub pause_stolen_us: u64,
    /// The longest such time less what the host took around it.
    pub own_pause_us: u64,
    /// Processor time of the process for each of them, the clients' and the disk threads' among it.
    pub cpu_us_per_txn: f64,
}

/// What reads on snapshots saw while measuring, and what was kept for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SnapshotsOfRun {
    /// How many transactions were read on snapshots.
    pub reads: u64,
    /// The share of them that missed nothing that anybody had been answered with when they were asked.
    pub fresh: f64,
    /// For how long there had been an answer that they missed: microseconds, 0 for those that are fresh.
    pub staleness_us: Latency,
    /// Of so many microseconds at most, by what share of them.
    pub staleness_cdf: Vec<(u64, f64)>,
    /// What was kept of a record, beside what it held then.
    pub kept: KeptOfRun,
}

/// How many older contents were kept, by a look at every shard each tenth of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KeptOfRun {
    /// How often a shard was looked at.
    pub looks: u64,
    /// For each record, on average.
    pub per_record: f64,
    /// For each record that had been changed since the oldest state that was kept, on average.
    pub per_changed_record: f64,
    /// 99 in a hundred of these had no more, at any time.
    pub p99: f64,
    /// No record had more, at any time.
    pub max: f64,
    /// The states that were kept went back no more epochs than this, at any time.
    pub epochs: f64,
}

impl CheckpointOfRun {
    /// How long it took, seconds, if it was complete in the end.
    pub fn took(&self) -> Option<f64> {
        self.complete_s.map(|complete| complete - self.asked_s)
    }

    /// Throughput while it was captured as a share of that beside it.
    pub fn share(&self) -> f64 {
        self.during.txn_per_s / self.beside.txn_per_s.max(f64::MIN_POSITIVE)
    }
}

impl Run {
    /// A run in which nothing was measured yet.
    pub fn new(setting: Setting, repetition: usize) -> Run {
        let Setting { engine, workload, params, nodes, threads, clients, seed } = setting;
        Run {
            engine,
            workload,
            params,
            nodes,
            threads,
            clients,
            seconds: 0.0,
            committed: 0,
            aborted: 0,
            txn_per_s: 0.0,
            op_per_s: 0.0,
            latency_us: Latency::default(),
            peak_rss_bytes: 0,
            checks: BTreeMap::new(),
            repetition,
            seed,
            share_of_ceiling: None,
            load_seconds: 0.0,
            cpu_us_per_txn: BTreeMap::new(),
            cpu_us_per_txn_by_node: Vec::new(),
            replay_txn_per_s: None,
            kinds: BTreeMap::new(),
            restarts: 0,
            offered_txn_per_s: None,
            behind: None,
            timeline: Vec::new(),
            checkpoint: None,
            snapshots: None,
            wrong: Vec::new(),
        }
    }

    /// Whether its checks passed.
    pub fn passed(&self) -> bool {
        self.checks.values().all(|check| *check == Check::Pass)
    }

    fn failed_checks(&self) -> String {
        let failed: Vec<&str> =
            self.checks.iter().filter(|(_, check)| **check == Check::Fail).map(|(name, _)| *name).collect();
        if failed.is_empty() { "pass".to_owned() } else { format!("FAIL: {}", failed.join(", ")) }
    }

    /// The value of a knob as text; nothing if there is none.
    pub(crate) fn param(&self, name: &str) -> String {
        match self.params.get(name) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        }
    }
}

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// As it must be.
    Pass,
    /// Not.
    Fail,
}

impl From<bool> for Check {
    fn from(holds: bool) -> Check {
        if holds { Check::Pass } else { Check::Fail }
    }
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// Their mean.
    pub mean: f64,
    /// Half are at most this.
    pub p50: u64,
    /// 95 in a hundred are at most this.
    pub p95: u64,
    /// 99 in a hundred.
    pub p99: u64,
    /// 999 in a thousand.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl From<&Histogram<u64>> for Latency {
    fn from(histogram: &Histogram<u64>) -> Latency {
        Latency {
            mean: histogram.mean(),
            p50: histogram.value_at_quantile(0.50),
            p95: histogram.value_at_quantile(0.95),
            p99: histogram.value_at_quantile(0.99),
            p999: histogram.value_at_quantile(0.999),
            max: histogram.max(),
        }
    }
}

/// The middle of some values, half-way between the middle two of an even number; 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values[..] {
        [] => 0.0,
        _ if values.len() % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

/// The least and the most of some values.
pub fn extent(values: impl IntoIterator<Item = f64>) -> (f64, f64) {
    values.into_iter().fold((f64::MAX, f64::MIN), |(low, high), value| (low.min(value), high.max(value)))
}

/// A table of ours: a header, and columns of numbers on the right.
pub fn table(header: &[&str], text_columns: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header.to_vec());
    for column in table.column_iter_mut().skip(text_columns) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// An empty table of texts that are wrapped to the width of the terminal.
pub fn wrapped_table(header: &[&str]) -> Table {
    let mut table = table(header, header.len());
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table
}

/// Runs with the same setting: everything but the repetition.
fn is_same_setting(a: &Run, b: &Run) -> bool {
    (&a.engine, a.workload, &a.params, a.nodes, a.threads, a.clients)
        == (&b.engine, b.workload, &b.params, b.nodes, b.threads, b.clients)
}

/// Runs by setting, in the order in which the settings first ran.
pub fn by_setting(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|group| is_same_setting(group[0], run)) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

/// The knobs whose values differ from setting to setting: all others need no place in a table. What only some
/// systems have a word for does not count.
pub fn varying(groups: &[Vec<&Run>]) -> Vec<String> {
    let names: BTreeSet<&String> = groups.iter().flat_map(|group| group[0].params.keys()).collect();
    let differs = |name: &&&String| {
        let mut values = groups.iter().filter_map(|group| group[0].params.get(**name));
        values.next().is_some_and(|first| values.any(|value| value != first))
    };
    names.iter().filter(differs).map(|name| (*name).clone()).collect()
}

/// The values of some knobs, as a person would say them.
pub fn describe(run: &Run, knobs: &[String]) -> String {
    let said = knobs.iter().filter(|name| run.params.contains_key(*name));
    said.map(|name| format!("{name} {}", run.param(name))).collect::<Vec<_>>().join(", ")
}

/// A setting in a few words: the system, its threads, and the knobs whose values differ.
fn name_of(run: &Run, knobs: &[String]) -> String {
    format!("{} x{} {}", run.engine, run.threads, describe(run, knobs)).trim_end().to_owned()
}

/// One row for each setting: medians of its repetitions, how far they spread, and the ratio to the first setting.
pub fn throughput_table(runs: &[Run]) -> Table {
    let groups = by_setting(runs);
    let knobs = varying(&groups);
    let answered: Vec<&Vec<&Run>> = groups.iter().filter(|group| group[0].clients > 0).collect();
    let several = answered.len() > 1;
    let is_open = runs.iter().any(|run| run.offered_txn_per_s.is_some());
    let replays = runs.iter().any(|run| run.replay_txn_per_s.is_some());
    let restarts = runs.iter().any(|run| run.restarts > 0);
    let mut header = vec!["system"];
    header.extend(knobs.iter().map(String::as_str));
    let text_columns = header.len() + 1;
    header.extend(["checks", "threads", "clients", "txn/s", "spread", "op/s", "aborts"]);
    header.extend(restarts.then_some("restarts"));
    header.extend(["p50 us", "p99 us", "p99.9 us", "max us", "MiB"]);
    header.extend(is_open.then_some("behind"));
    header.push("of ceiling");
    header.extend(several.then_some("ratio"));
    header.extend(replays.then_some("replay/s"));
    let mut table = table(&header, text_columns);
    let rate = |group: &[&Run]| median(group.iter().map(|run| run.txn_per_s));
    let base = answered.first().filter(|group| group.iter().all(|run| run.passed())).map(|group| rate(group));
    for group in &groups {
        let first = group[0];
        let of = |value: fn(&Run) -> f64| format!("{:.0}", median(group.iter().map(|run| value(run))));
        let (low, high) = extent(group.iter().map(|run| run.txn_per_s));
        let failed = group.iter().find(|run| !run.passed());
        // No ratio from runs whose checks failed.
        let ratio = |value: f64, show: &dyn Fn(f64) -> String| match failed {
            None if value > 0.0 => show(value),
            _ => String::new(),
        };
        // The ceiling answers nobody.
        let answers = first.clients > 0;
        let latency = |value: fn(&Latency) -> u64| match answers {
            false => String::new(),
            true => format!("{:.0}", median(group.iter().map(|run| value(&run.latency_us) as f64))),
        };
        let mut row = vec![first.engine.clone()];
        row.extend(knobs.iter().map(|name| first.param(name)));
        row.extend([
            failed.map_or_else(|| "pass".to_owned(), |run| run.failed_checks()),
            first.threads.to_string(),
            first.clients.to_string(),
            format!("{:.0}", rate(group)),
            if group.len() > 1 { format!("{low:.0}..{high:.0}") } else { String::new() },
            of(|run| run.op_per_s),
            of(|run| run.aborted as f64),
        ]);
        row.extend(restarts.then(|| of(|run| run.restarts as f64)));
        row.extend([
            latency(|latency| latency.p50),
            latency(|latency| latency.p99),
            latency(|latency| latency.p999),
            latency(|latency| latency.max),
            of(|run| run.peak_rss_bytes as f64 / (1 << 20) as f64),
        ]);
        row.extend(is_open.then(|| of(|run| run.behind.unwrap_or(0) as f64)));
        let share = median(group.iter().filter_map(|run| run.share_of_ceiling));
        row.push(ratio(share, &|share| format!("{:.1}%", share * 100.0)));
        if several {
            let times = base.filter(|base| *base > 0.0 && answers).map_or(0.0, |base| rate(group) / base);
            row.push(ratio(times, &|times| format!("{times:.2}")));
        }
        if replays {
            let replay = median(group.iter().filter_map(|run| run.replay_txn_per_s));
            row.push(ratio(replay, &|replay| format!("{replay:.0}")));
        }
        table.add_row(row);
    }
    table
}

/// One row for each kind of transaction of each setting, where there are several kinds.
pub fn kinds_table(runs: &[Run]) -> Option<Table> {
    let groups: Vec<Vec<&Run>> =
        by_setting(runs).into_iter().filter(|group| group[0].kinds.len() > 1).collect();
    let knobs = varying(&groups);
    let header = ["system", "kind", "committed", "aborts", "restarts", "p50 us", "p99 us", "max us"];
    let mut table = table(&header, 2);
    for group in &groups {
        for kind in group[0].kinds.keys() {
            let runs: Vec<&KindOfRun> = group.iter().filter_map(|run| run.kinds.get(kind)).collect();
            let of = |value: fn(&KindOfRun) -> u64| {
                format!("{:.0}", median(runs.iter().map(|run| value(run) as f64)))
            };
            table.add_row([
                name_of(group[0], &knobs),
                (*kind).to_owned(),
                of(|run| run.committed),
                of(|run| run.aborted),
                of(|run| run.restarts),
                of(|run| run.latency_us.p50),
                of(|run| run.latency_us.p99),
                of(|run| run.latency_us.max),
            ]);
        }
    }
    (!groups.is_empty()).then_some(table)
}

/// One row for each setting in which checkpoints were taken: medians of what was answered while they were captured, and of
/// what was beside them.
pub fn checkpoints_table(runs: &[Run]) -> Option<Table> {
    let groups: Vec<Vec<&Run>> =
        by_setting(runs).into_iter().filter(|group| group[0].checkpoint.is_some()).collect();
    let knobs = varying(&groups);
    let header = [
        "while a checkpoint is captured",
        "checks",
        "took s",
        "txn/s",
        "beside it",
        "share",
        "p99 us",
        "beside it",
        "pause us",
        "beside it",
        "less stolen",
        "beside it",
        "cpu us a txn",
        "beside it",
    ];
    let mut table = table(&header, 2);
    for group in &groups {
        let all: Vec<CheckpointOfRun> = group.iter().filter_map(|run| run.checkpoint).collect();
        let failed = group.iter().find(|run| !run.passed());
        let of = |value: fn(&CheckpointOfRun) -> f64| median(all.iter().map(value));
        let took: Vec<f64> = all.iter().filter_map(CheckpointOfRun::took).collect();
        let is_complete = took.len() == all.len();
        table.add_row([
            name_of(group[0], &knobs),
            failed.map_or_else(|| "pass".to_owned(), |run| run.failed_checks()),
            if is_complete { format!("{:.1}", median(took)) } else { "not complete".to_owned() },
            format!("{:.0}", of(|all| all.during.txn_per_s)),
            format!("{:.0}", of(|all| all.beside.txn_per_s)),
            // No ratio from runs whose checks failed.
            failed.map_or_else(|| format!("{:.2}", of(CheckpointOfRun::share)), |_| String::new()),
            format!("{:.0}", of(|all| all.during.latency_us.p99 as f64)),
            format!("{:.0}", of(|all| all.beside.latency_us.p99 as f64)),
            format!("{:.0}", of(|all| all.during.pause_us as f64)),
            format!("{:.0}", of(|all| all.beside.pause_us as f64)),
            format!("{:.0}", of(|all| all.during.own_pause_us as f64)),
            format!("{:.0}", of(|all| all.beside.own_pause_us as f64)),
            format!("{:.3}", of(|all| all.during.cpu_us_per_txn)),
            format!("{:.3}", of(|all| all.beside.cpu_us_per_txn)),
        ]);
    }
    (!groups.is_empty()).then_some(table)
}

/// One row for each setting whose reads on snapshots were watched.
pub fn snapshots_table(runs: &[Run]) -> Option<Table> {
    let groups: Vec<Vec<&Run>> =
        by_setting(runs).into_iter().filter(|group| group[0].snapshots.is_some()).collect();
    let knobs = varying(&groups);
    let header = [
        "read on snapshots",
        "checks",
        "reads",
        "fresh",
        "stale p50 us",
        "p99 us",
        "max us",
        "kept a record",
        "a changed one",
        "p99",
        "max",
        "epochs",
    ];
    let mut table = table(&header, 2);
    for group in &groups {
        let all: Vec<&SnapshotsOfRun> = group.iter().filter_map(|run| run.snapshots.as_ref()).collect();
        let of = |value: fn(&SnapshotsOfRun) -> f64| median(all.iter().map(|all| value(all)));
        let failed = group.iter().find(|run| !run.passed());
        table.add_row([
            name_of(group[0], &knobs),
            failed.map_or_else(|| "pass".to_owned(), |run| run.failed_checks()),
            format!("{:.0}", of(|all| all.reads as f64)),
            format!("{:.1}%", of(|all| all.fresh) * 100.0),
            format!("{:.0}", of(|all| all.staleness_us.p50 as f64)),
            format!("{:.0}", of(|all| all.staleness_us.p99 as f64)),
            format!("{:.0}", of(|all| all.staleness_us.max as f64)),
            format!("{:.3}", of(|all| all.kept.per_record)),
            format!("{:.2}", of(|all| all.kept.per_changed_record)),
            format!("{:.0}", of(|all| all.kept.p99)),
            format!("{:.0}", of(|all| all.kept.max)),
            format!("{:.0}", of(|all| all.kept.epochs)),
        ]);
    }
    (!groups.is_empty()).then_some(table)
}

/// The settings that tell where their time went, if all checks of theirs passed: there is no share of a wrong result.
pub fn with_demands(runs: &[Run]) -> Vec<Vec<&Run>> {
    let tells = |group: &Vec<&Run>| group.iter().all(|run| run.passed() && !run.cpu_us_per_txn.is_empty());
    by_setting(runs).into_iter().filter(tells).collect()
}

/// Where the time goes: processor microseconds for each committed transaction, a row for each part and a column
/// for each setting.
pub fn cpu_table(runs: &[Run]) -> Option<Table> {
    let groups = with_demands(runs);
    let knobs = varying(&groups);
    let parts: BTreeSet<&String> =
        groups.iter().flatten().flat_map(|run| run.cpu_us_per_txn.keys()).collect();
    if groups.is_empty() {
        return None;
    }
    let mut header = vec!["processor us a transaction".to_owned()];
    header.extend(groups.iter().map(|group| name_of(group[0], &knobs)));
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = table(&header, 1);
    let cost = |group: &[&Run], part: &str| {
        median(group.iter().map(|run| run.cpu_us_per_txn.get(part).copied().unwrap_or(0.0)))
    };
    let totals: Vec<f64> = groups
        .iter()
        .map(|group| median(group.iter().map(|run| run.cpu_us_per_txn.values().sum())))
        .collect();
    for part in parts {
        let mut row = vec![part.clone()];
        row.extend(groups.iter().zip(&totals).map(|(group, total)| {
            let cost = cost(group, part);
            format!("{cost:.2}  {:3.0}%", 100.0 * cost / total.max(f64::MIN_POSITIVE))
        }));
        table.add_row(row);
    }
    let mut row = vec!["all".to_owned()];
    row.extend(totals.iter().map(|total| format!("{total:.2}  100%")));
    table.add_row(row);
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(engine: &str, repetition: usize, txn_per_s: f64, check: bool) -> Run {
        let mut params = Map::new();
        params.insert("theta".to_owned(), 0.5.into());
        params.insert("durability".to_owned(), "none".into());
        let setting = Setting {
            engine: engine.to_owned(),
            workload: "ycsb",
            params,
            nodes: 1,
            threads: 1,
            clients: 8,
            seed: 1,
        };
        Run {
            seconds: 1.0,
            committed: 10,
            txn_per_s,
            op_per_s: txn_per_s * 10.0,
            checks: BTreeMap::from([("counters", Check::from(check))]),
            share_of_ceiling: Some(0.25),
            cpu_us_per_txn: BTreeMap::from([("calvin".to_owned(), 2.0), ("runtime".to_owned(), 2.0)]),
            ..Run::new(setting, repetition)
        }
    }

    #[test]
    fn repetitions_share_a_row_and_a_failed_check_takes_the_ratio_away() {
        let runs = [
            run("a", 1, 100.0, true),
            run("b", 1, 70.0, true),
            run("a", 2, 300.0, true),
            run("a", 3, 200.0, true),
        ];
        let text = throughput_table(&runs).to_string();
        assert!(text.contains("100..300") && text.contains(" 200 ") && text.contains("25.0%"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("pass")).count(), 2);
        assert!(text.contains(" 0.35 ") && text.contains(" 1.00 "), "the ratio to the first: {text}");
        let text = throughput_table(&[run("a", 1, 100.0, true), run("a", 2, 100.0, false)]).to_string();
        assert!(text.contains("FAIL: counters") && !text.contains("25.0%"), "{text}");
        let text = throughput_table(&[run("a", 1, 100.0, false), run("b", 1, 50.0, true)]).to_string();
        assert!(!text.contains("0.50"), "no ratio to a run that failed: {text}");
        assert!(cpu_table(&[run("a", 1, 100.0, true), run("a", 2, 100.0, false)]).is_none());
        let text = cpu_table(&runs).unwrap().to_string();
        assert!(
            text.contains("calvin") && text.contains("2.00   50%") && text.contains("4.00  100%"),
            "{text}"
        );
    }

    #[test]
    fn the_json_has_the_names_of_the_contract() {
        let mut report = Report::new();
        report.runs.push(run("calvin", 1, 5.0, false));
        assert!(!report.passed());
        let json: Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert!(json["version"].is_string() && json["host"]["cores"].is_u64());
        assert!(json["host"]["cpu"].is_string() && json["host"]["memory_bytes"].is_u64());
        let run = &json["runs"][0];
        for name in [
            "engine",
            "workload",
            "params",
            "nodes",
            "threads",
            "clients",
            "seconds",
            "committed",
            "aborted",
            "txn_per_s",
            "op_per_s",
            "latency_us",
            "peak_rss_bytes",
            "checks",
        ] {
            assert!(!run[name].is_null(), "{name}");
        }
        for name in ["mean", "p50", "p95", "p99", "p999", "max"] {
            assert!(run["latency_us"][name].is_number(), "{name}");
        }
        assert_eq!(run["checks"]["counters"], "fail");
    }

    #[test]
    fn an_unwritable_path_is_refused_by_name() {
        let refusal =
            check_writable("--json", Some(Path::new("/proc/no/such/r.json"))).unwrap_err().to_string();
        assert!(refusal.contains("--json /proc/no/such/r.json"), "{refusal}");
        assert!(check_writable("--json", None).is_ok());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!([median([3.0, 1.0, 2.0]), median([4.0, 1.0]), median([])], [2.0, 2.5, 0.0]);
    }
}
