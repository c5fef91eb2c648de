//! Reports: the JSON of CONTRACT.md, tables of runs, and the arithmetic between runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::path::Path;

use anyhow::Context;
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value};

use ordain_workload::{Param, Workload};

use crate::agreement::Agreement;
use crate::conditions::{Conditions, caption};
use crate::demand::Demands;
use crate::disturbance::{Disturbance, State};
use crate::host::Host;
use crate::ratio::{disturbance, free, has_passed, mark, of_ceiling, to_first};
use crate::table::{Cell, Shows, Table, cells, number, text};

/// A whole report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The program's version.
    pub version: &'static str,
    /// The machine.
    pub host: Host,
    /// Every run, in the order in which they ran.
    pub runs: Vec<Run>,
    /// Further measurements of the machine, by name with its unit.
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

    /// True if every check of every run passed.
    pub fn passed(&self) -> bool {
        self.runs.iter().all(Run::passed)
    }

    /// The raw rates of the machine, if they were measured.
    pub fn machine_table(&self, show: fn(f64) -> String) -> Option<Table> {
        let latency = |figure: &'static str| {
            move |(_, latency): &(String, Value)| latency.get(figure).and_then(Value::as_f64).unwrap_or(0.0)
        };
        let (mean, p50, p99) = (latency("mean"), latency("p50"), latency("p99"));
        let rows = self.machine.iter().map(|(name, latency)| (name.clone(), latency.clone()));
        let columns = vec![
            text("raw rates of the machine", |(name, _): &(String, Value)| {
                name.trim_end_matches("_us").replace('_', " ")
            }),
            number("a second", move |row| show(1e6 / mean(row).max(0.001))),
            number("p50 us", move |row| show(p50(row))),
            number("p99 us", move |row| show(p99(row))),
        ];
        Table::of("What the machine itself can do", rows, columns).or_none()
    }
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

/// One run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Run {
    /// The engine, or `ceiling`.
    pub engine: String,
    /// The workload.
    pub workload: &'static str,
    /// The workload's knobs, and how the node kept its log.
    pub params: Map<String, Value>,
    /// Number of nodes.
    pub nodes: u16,
    /// Loops of a node, each with a shard.
    pub threads: usize,
    /// Clients of all loops together.
    pub clients: usize,
    /// Time measured, seconds.
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
    /// Checks by name.
    pub checks: BTreeMap<&'static str, Check>,
    /// Anomalies that were found and that the isolation level allows, by the check that there is none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub allowed: BTreeMap<&'static str, Allowed>,
    /// The conditions that captions name.
    pub conditions: Conditions,
    /// The use of the machine by others while measuring.
    pub disturbance: Disturbance,
    /// Number of the repetition, from 1 on.
    pub repetition: usize,
    /// Seed of everything that was drawn.
    pub seed: u64,
    /// Throughput as a share of the ceiling of the same repetition; null if there is none.
    pub share_of_ceiling: Option<f64>,
    /// The state of the machine while that ceiling was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling_machine: Option<State>,
    /// Time of loading, seconds.
    pub load_seconds: f64,
    /// Processor time while measuring, microseconds for each committed transaction, by role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_us_per_txn: BTreeMap<String, f64>,
    /// Processor time of each node, where there are several, divided by the transactions of all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cpu_us_per_txn_by_node: Vec<BTreeMap<String, f64>>,
    /// Transactions a second of replaying the run's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_txn_per_s: Option<f64>,
    /// By kind of transaction, where there are several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub kinds: BTreeMap<&'static str, KindOfRun>,
    /// The cost of agreement, with engines that execute first and agree then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agreement: Option<Agreement>,
    /// Restarts of transactions whose reconnaissance was out of date.
    pub restarts: u64,
    /// Transactions a second asked for, in an open loop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offered_txn_per_s: Option<f64>,
    /// Requests of an open loop that were due and not made when measuring ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<u64>,
    /// Commits over time while measuring: the end of a tick in seconds, and how many there were in it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<(f64, u64)>,
    /// The checkpoint that was taken while measuring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<CheckpointOfRun>,
    /// Staleness of reads on snapshots and contents kept for them, where that was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshots: Option<SnapshotsOfRun>,
    /// Findings of failed checks, and other failures.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub wrong: Vec<String>,
}

/// An anomaly that was found and is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Allowed {
    /// How often it was found.
    pub times: u64,
    /// The same in words, with an example.
    pub found: String,
}

/// One kind of transaction of a run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KindOfRun {
    /// Transactions that took effect.
    pub committed: u64,
    /// Transactions that did not.
    pub aborted: u64,
    /// Restarts.
    pub restarts: u64,
    /// From submission to answer.
    pub latency_us: Latency,
}

/// A checkpoint that was taken while measuring.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CheckpointOfRun {
    /// Start, seconds.
    pub asked_s: f64,
    /// End, seconds, if it was complete.
    pub complete_s: Option<f64>,
    /// Answers while it was captured.
    pub during: StretchOfRun,
    /// Answers before it and after it.
    pub beside: StretchOfRun,
}

/// Answers in a part of the time measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StretchOfRun {
    /// Length, seconds.
    pub seconds: f64,
    /// Committed transactions a second.
    pub txn_per_s: f64,
    /// From submission to answer.
    pub latency_us: Latency,
    /// The longest time in which no client of a loop was answered.
    pub pause_us: u64,
    /// Processor time that the loop used in it.
    pub pause_cpu_us: u64,
    /// Processor time that the host took from the machine in it and in a tenth of a second before it.
    pub pause_stolen_us: u64,
    /// The longest such time less what the host took around it.
    pub own_pause_us: u64,
    /// Processor time of the process for each of them, the clients' and the disk threads' among it.
    pub cpu_us_per_txn: f64,
}

/// Staleness of reads on snapshots while measuring, and contents kept for them.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SnapshotsOfRun {
    /// Transactions that read on snapshots.
    pub reads: u64,
    /// The share of them that missed nothing that any client had been answered with when they were asked.
    pub fresh: f64,
    /// For how long there had been an answer that they missed: microseconds, 0 for those that are fresh.
    pub staleness_us: Latency,
    /// Distribution of the staleness: microseconds, and the share of reads that is no staler.
    pub staleness_cdf: Vec<(u64, f64)>,
    /// Contents kept of a record, beside its current one.
    pub kept: KeptOfRun,
}

/// Older contents kept, by an inspection of every shard each tenth of a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct KeptOfRun {
    /// Inspections of a shard.
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
    /// Duration, seconds, if it was complete in the end.
    pub fn took(&self) -> Option<f64> {
        self.complete_s.map(|complete| complete - self.asked_s)
    }

    /// Throughput while it was captured as a share of that beside it.
    pub fn share(&self) -> f64 {
        self.during.txn_per_s / self.beside.txn_per_s.max(f64::MIN_POSITIVE)
    }
}

impl Run {
    /// A run of a workload with its knobs, in which nothing was measured yet.
    pub fn of(engine: &str, workload: &dyn Workload) -> Run {
        let params = workload.params().into_iter().map(|(name, value)| {
            let value = match value {
                Param::Int(value) => value.into(),
                Param::Real(value) => value.into(),
                Param::Text(value) => value.into(),
            };
            (name.to_owned(), value)
        });
        Run {
            engine: engine.to_owned(),
            workload: workload.name(),
            params: params.collect(),
            nodes: 1,
            threads: 1,
            repetition: 1,
            ..Run::default()
        }
    }

    /// True if there were checks, and all of them passed.
    pub fn passed(&self) -> bool {
        !self.checks.is_empty() && self.checks.values().all(|check| *check == Check::Pass)
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

/// The outcome of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Check {
    /// As it must be.
    Pass,
    /// Not.
    Fail,
}

/// The check that enough was committed for a rate to mean something.
pub const ENOUGH: &str = "enough";
/// The check that every event loop with clients measured, and about as long as the others.
pub const MEASURED: &str = "measured";
/// The check that the data were audited.
pub const AUDITED: &str = "audited";

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

/// An empty table for a terminal: a header, and columns of numbers on the right.
pub fn table(header: &[&str], text_columns: usize) -> comfy_table::Table {
    let (texts, numbers) = header.split_at(text_columns);
    let table = Table::new("").text_columns(texts.iter().copied()).number_columns(numbers.iter().copied());
    table.on_a_terminal()
}

/// An empty table of texts that are wrapped to the width of the terminal.
pub fn wrapped_table(header: &[&str]) -> comfy_table::Table {
    Table::new("").text_columns(header.iter().copied()).wrapped()
}

/// Writes a value to the file of `--json`, if one is named.
///
/// # Errors
/// The system's, with the path.
pub fn write_json(path: Option<&Path>, value: &impl Serialize) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(value).context("a value that is no JSON")?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

/// Values by key, in the order in which the keys first come.
pub fn grouped<K: PartialEq, V>(items: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in items {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Runs by setting, which is everything but the repetition, in the order in which the settings first ran.
pub fn by_setting(runs: &[Run]) -> Vec<Group<'_>> {
    let keyed = runs
        .iter()
        .map(|run| ((&run.engine, run.workload, &run.params, run.nodes, run.threads, run.clients), run));
    grouped(keyed).into_iter().map(|(_, group)| group).collect()
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

/// The values of some knobs in words.
pub fn describe(run: &Run, knobs: &[String]) -> String {
    let known = knobs.iter().filter(|name| run.params.contains_key(*name));
    known.map(|name| format!("{name} {}", run.param(name))).collect::<Vec<_>>().join(", ")
}

/// A setting in a few words: the system, its threads, and the knobs whose values differ.
fn name_of(run: &Run, knobs: &[String]) -> String {
    format!("{} x{} {}", run.engine, run.threads, describe(run, knobs)).trim_end().to_owned()
}

/// The runs of one setting.
pub type Group<'a> = Vec<&'a Run>;

/// The median of the runs of a setting that count.
fn median_of(group: &[&Run], value: impl Fn(&Run) -> f64) -> f64 {
    median(free(group).iter().map(|run| value(run)))
}

/// A number without decimals.
pub fn whole(value: f64) -> String {
    format!("{value:.0}")
}

fn hundredths(value: f64) -> String {
    format!("{value:.2}")
}

fn thousandths(value: f64) -> String {
    format!("{value:.3}")
}

fn percent(value: f64) -> String {
    format!("{:.1}%", value * 100.0)
}

/// The outcome of the checks of a setting, with the names of those that failed.
pub fn checks(group: &[&Run]) -> Cell {
    let checks = || group.iter().flat_map(|run| &run.checks);
    let failed = checks().filter(|(_, check)| **check == Check::Fail).map(|(name, _)| *name);
    let failed = failed.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
    match (failed.is_empty(), checks().count()) {
        (true, 0) => Cell::text("none"),
        (true, count) => Cell::verdict(true, &format!("pass: {count}")),
        (false, _) => Cell::verdict(false, &format!("FAIL: {}", failed.join(", "))),
    }
}

/// A figure of runs that passed their checks as text; `-` of others, and where it is not known.
fn sound(group: &[&Run], value: f64, show: fn(f64) -> String) -> String {
    if has_passed(group) && value > 0.0 { show(value) } else { "-".to_owned() }
}

/// The state of the machine in the runs of a setting, with the number of those that had it to themselves.
fn machine(group: &[&Run]) -> Cell {
    let free = group.iter().filter(|run| run.disturbance.is_free()).count();
    if free == group.len() {
        Cell::text("free")
    } else if free > 0 {
        Cell::text(format!("free: {free} of {} runs", group.len()))
    } else {
        Cell::text(disturbance(group).text())
    }
}

/// One row for each setting: medians of its repetitions, how far they spread, and the ratio to the first setting.
pub fn runs_table(title: &str, runs: &[Run], show: fn(f64) -> String) -> Table {
    let groups = by_setting(runs);
    let answered: Vec<&Group<'_>> = groups.iter().filter(|group| group[0].clients > 0).collect();
    let first = answered.first().filter(|_| answered.len() > 1).map(|first| (*first).clone());
    let any = |is_so: fn(&Run) -> bool| runs.iter().any(is_so);
    let count = |name: &'static str, value: fn(&Run) -> f64| {
        number(name, move |group: &Group<'_>| show(median_of(group, value)))
    };
    let rate = cells("txn/s", true, |group: &Group<'_>| {
        Cell::median(&free(group).iter().map(|run| run.txn_per_s).collect::<Vec<_>>(), show)
    });
    // The ceiling answers no client.
    let latency = |name: &'static str, value: fn(&Latency) -> u64| {
        number(name, move |group: &Group<'_>| {
            let median = median_of(group, |run| value(&run.latency_us) as f64);
            if group[0].clients > 0 { show(median) } else { String::new() }
        })
    };
    let mut columns = vec![text("system", |group: &Group<'_>| group[0].engine.clone())];
    for name in varying(&groups) {
        columns.push(text(name.clone(), move |group: &Group<'_>| group[0].param(&name)));
    }
    columns.extend([
        cells("checks", false, |group: &Group<'_>| checks(group)),
        cells("machine", false, |group: &Group<'_>| machine(group)),
        number("threads", |group: &Group<'_>| group[0].threads.to_string()),
        number("clients", |group: &Group<'_>| group[0].clients.to_string()),
        rate,
        count("op/s", |run| run.op_per_s),
        count("aborts", |run| run.aborted as f64),
    ]);
    if any(|run| run.restarts > 0) {
        columns.push(count("restarts", |run| run.restarts as f64));
    }
    columns.extend([
        latency("p50 us", |latency| latency.p50),
        latency("p99 us", |latency| latency.p99),
        latency("p99.9 us", |latency| latency.p999),
        latency("max us", |latency| latency.max),
        count("MiB", |run| run.peak_rss_bytes as f64 / (1 << 20) as f64),
    ]);
    if any(|run| run.offered_txn_per_s.is_some()) {
        columns.push(count("behind", |run| run.behind.unwrap_or(0) as f64));
    }
    columns.push(cells("of ceiling", true, |group: &Group<'_>| match group[0].clients {
        0 => Cell::number(""),
        _ => of_ceiling(group).cell(percent),
    }));
    if let Some(first) = first {
        columns.push(cells("ratio", true, move |group: &Group<'_>| match group[0].clients {
            0 => Cell::number(""),
            _ => to_first(group, &first).cell(hundredths),
        }));
    }
    if any(|run| run.replay_txn_per_s.is_some()) {
        columns.push(number("replay/s", |group: &Group<'_>| {
            sound(group, median(group.iter().filter_map(|run| run.replay_txn_per_s)), show)
        }));
    }
    Table::of(&captioned(title, runs), groups.clone(), columns)
}

/// A title with the conditions of some runs.
pub fn captioned(title: &str, runs: &[Run]) -> String {
    let parts = [title.to_owned(), caption(runs)];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": ")
}

/// The settings whose runs have a thing, and the columns of their names and checks.
pub(crate) fn with<'a>(
    title: &str,
    runs: &'a [Run],
    has: impl Fn(&Run) -> bool,
) -> (Vec<Group<'a>>, Vec<Shows<'a, Group<'a>>>) {
    let groups: Vec<Group<'a>> = by_setting(runs).into_iter().filter(|group| has(group[0])).collect();
    let knobs = varying(&groups);
    let name = text(title, move |group: &Group<'a>| name_of(group[0], &knobs));
    (groups, vec![name, cells("checks", false, |group: &Group<'a>| checks(group))])
}

/// A column of the median of a number of the thing that runs have.
pub(crate) fn medians<'a, T: 'a>(
    name: &str,
    show: fn(f64) -> String,
    thing: fn(&Run) -> Option<&T>,
    value: fn(&T) -> f64,
) -> Shows<'a, Group<'a>> {
    let things =
        move |group: &Group<'a>| median(free(group).into_iter().filter_map(|run| thing(run)).map(value));
    number(name, move |group| show(things(group)))
}

/// One row for each kind of transaction of each setting, where there are several kinds.
pub fn kinds_table(runs: &[Run]) -> Option<Table> {
    let groups = by_setting(runs).into_iter().filter(|group| group[0].kinds.len() > 1).collect::<Vec<_>>();
    let knobs = varying(&groups);
    let rows = groups.into_iter().flat_map(|group| {
        let kinds: Vec<&str> = group[0].kinds.keys().copied().collect();
        kinds.into_iter().map(move |kind| (group.clone(), kind))
    });
    let of = |name: &'static str, value: fn(&KindOfRun) -> u64| {
        number(name, move |(group, kind): &(Group<'_>, &str)| {
            let kinds = group.iter().filter_map(|run| run.kinds.get(kind));
            whole(median(kinds.map(|kind| value(kind) as f64)))
        })
    };
    let columns = vec![
        text("system", |(group, _): &(Group<'_>, &str)| name_of(group[0], &knobs)),
        text("kind", |(_, kind): &(Group<'_>, &str)| (*kind).to_owned()),
        of("committed", |kind| kind.committed),
        of("aborts", |kind| kind.aborted),
        of("restarts", |kind| kind.restarts),
        of("p50 us", |kind| kind.latency_us.p50),
        of("p99 us", |kind| kind.latency_us.p99),
        of("max us", |kind| kind.latency_us.max),
    ];
    Table::of("Kinds of transactions", rows, columns).or_none()
}

/// One row for each setting in which checkpoints were taken: medians of what was answered while they were captured, and
/// otherwise.
pub fn checkpoints_table(runs: &[Run]) -> Option<Table> {
    let (groups, mut columns) = with("while a checkpoint is captured", runs, |run| run.checkpoint.is_some());
    let of = |name, show, value| medians(name, show, |run| run.checkpoint.as_ref(), value);
    columns.extend([
        number("took s", |group: &Group<'_>| {
            let took = group.iter().map(|run| run.checkpoint?.took()).collect::<Option<Vec<f64>>>();
            took.map_or_else(|| "not complete".to_owned(), |took| format!("{:.1}", median(took)))
        }),
        of("txn/s", whole, |all| all.during.txn_per_s),
        of("beside it", whole, |all| all.beside.txn_per_s),
        number("share", |group: &Group<'_>| {
            let share = median(free(group).iter().filter_map(|run| Some(run.checkpoint?.share())));
            let mark = mark(disturbance(group).state);
            format!("{} {mark}", sound(group, share, hundredths)).trim_end().to_owned()
        }),
        of("p99 us", whole, |all| all.during.latency_us.p99 as f64),
        of("beside it", whole, |all| all.beside.latency_us.p99 as f64),
        of("pause us", whole, |all| all.during.pause_us as f64),
        of("beside it", whole, |all| all.beside.pause_us as f64),
        of("less stolen", whole, |all| all.during.own_pause_us as f64),
        of("beside it", whole, |all| all.beside.own_pause_us as f64),
        of("cpu us a txn", thousandths, |all| all.during.cpu_us_per_txn),
        of("beside it", thousandths, |all| all.beside.cpu_us_per_txn),
    ]);
    Table::of("While a checkpoint is captured", groups, columns).or_none()
}

/// One row for each setting whose reads on snapshots were watched.
pub fn snapshots_table(runs: &[Run]) -> Option<Table> {
    let (groups, mut columns) = with("read on snapshots", runs, |run| run.snapshots.is_some());
    let of = |name, show, value| medians(name, show, |run| run.snapshots.as_ref(), value);
    columns.extend([
        of("reads", whole, |all: &SnapshotsOfRun| all.reads as f64),
        of("fresh", percent, |all| all.fresh),
        of("stale p50 us", whole, |all| all.staleness_us.p50 as f64),
        of("p99 us", whole, |all| all.staleness_us.p99 as f64),
        of("max us", whole, |all| all.staleness_us.max as f64),
        of("kept a record", thousandths, |all| all.kept.per_record),
        of("a changed one", hundredths, |all| all.kept.per_changed_record),
        of("p99", whole, |all| all.kept.p99),
        of("max", whole, |all| all.kept.max),
        of("epochs", whole, |all| all.kept.epochs),
    ]);
    Table::of("Reads on snapshots", groups, columns).or_none()
}

/// The service demands of each setting that has some, if all of its checks passed: there is no share of a wrong result.
pub fn demands_of(runs: &[Run]) -> Vec<(String, Demands)> {
    let has = |group: &Group<'_>| has_passed(group) && group.iter().all(|run| !run.cpu_us_per_txn.is_empty());
    let groups: Vec<Group<'_>> = by_setting(runs).into_iter().filter(has).collect();
    let knobs = varying(&groups);
    let named = groups.iter().map(|group| {
        (name_of(group[0], &knobs), Demands::of(free(group).iter().map(|run| &run.cpu_us_per_txn)))
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(engine: &str, repetition: usize, txn_per_s: f64, check: bool) -> Run {
        let mut params = Map::new();
        params.insert("theta".to_owned(), 0.5.into());
        params.insert("durability".to_owned(), "none".into());
        Run {
            engine: engine.to_owned(),
            workload: "ycsb",
            params,
            nodes: 1,
            threads: 1,
            clients: 8,
            seed: 1,
            repetition,
            seconds: 1.0,
            committed: 10,
            txn_per_s,
            op_per_s: txn_per_s * 10.0,
            checks: BTreeMap::from([("counters", Check::from(check))]),
            share_of_ceiling: Some(0.25),
            cpu_us_per_txn: BTreeMap::from([("calvin".to_owned(), 2.0), ("runtime".to_owned(), 2.0)]),
            ..Run::default()
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
        let text = runs_table("", &runs, whole).to_string();
        assert!(text.contains("200  100 to 300") && text.contains("25.0%"), "{text}");
        assert_eq!(text.lines().filter(|line| line.contains("pass")).count(), 2);
        assert!(text.contains(" 0.35 ") && text.contains(" 1.00 "), "the ratio to the first: {text}");
        let text = runs_table("", &[run("a", 1, 100.0, true), run("a", 2, 100.0, false)], whole).to_string();
        assert!(text.contains("FAIL: counters") && !text.contains("25.0%"), "{text}");
        let text = runs_table("", &[run("a", 1, 100.0, false), run("b", 1, 50.0, true)], whole).to_string();
        assert!(!text.contains("0.50"), "no ratio to a run that failed: {text}");
        assert!(demands_of(&[run("a", 1, 100.0, true), run("a", 2, 100.0, false)]).is_empty());
        let text = crate::demand::table(&demands_of(&runs)).to_string();
        assert!(text.contains("calvin") && text.contains("2.00  50%") && text.contains("4.00"), "{text}");
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
