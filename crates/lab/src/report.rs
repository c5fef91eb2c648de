//! What is printed and what is written: the JSON of CONTRACT.md, tables, and the arithmetic between runs.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;

use anyhow::Context;
use comfy_table::{CellAlignment, Table, presets};
use hdrhistogram::Histogram;
use serde::Serialize;
use serde_json::{Map, Value};

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

impl Default for Report {
    fn default() -> Self {
        Report::new()
    }
}

/// Makes sure, before anything runs, that a report can be written where it is wanted.
///
/// # Errors
/// The system's, with the path.
pub fn check_writable(json: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = json else { return Ok(()) };
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).with_context(|| {
        format!("cannot write --json {}: name a file in a directory that exists and is yours", path.display())
    })
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
    /// Transactions that did not, by their own logic.
    pub aborted: u64,
    /// Committed transactions a second.
    pub txn_per_s: f64,
    /// Their operations a second.
    pub op_per_s: f64,
    /// From submission to answer.
    pub latency_us: Latency,
    /// The peak of the process's resident memory.
    pub peak_rss_bytes: u64,
    /// What was checked.
    pub checks: BTreeMap<&'static str, Check>,
    /// Which of the repetitions it is, from 1 on.
    pub repetition: usize,
    /// Throughput as a share of the ceiling of the same repetition.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share_of_ceiling: Option<f64>,
    /// How long loading took.
    pub load_seconds: f64,
    /// Processor time while measuring, microseconds for each committed transaction, by role.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub cpu_us_per_txn: BTreeMap<String, f64>,
    /// Transactions a second of replaying the run's log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_txn_per_s: Option<f64>,
}

impl Run {
    /// Whether its checks passed.
    pub fn passed(&self) -> bool {
        self.checks.values().all(|check| *check == Check::Pass)
    }

    fn failed_checks(&self) -> String {
        let failed: Vec<&str> =
            self.checks.iter().filter(|(_, check)| **check == Check::Fail).map(|(name, _)| *name).collect();
        if failed.is_empty() { "pass".to_owned() } else { format!("FAIL: {}", failed.join(", ")) }
    }

    fn param(&self, name: &str) -> String {
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

/// The middle of some values, the lower of two; 0 of none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
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

/// Runs with the same setting: everything but the repetition.
fn setting(run: &Run) -> (String, String, usize, usize) {
    (run.engine.clone(), Value::Object(run.params.clone()).to_string(), run.threads, run.clients)
}

/// Runs by setting, in the order in which the settings first ran.
fn by_setting(runs: &[Run]) -> Vec<Vec<&Run>> {
    let mut groups: Vec<Vec<&Run>> = Vec::new();
    for run in runs {
        match groups.iter_mut().find(|group| setting(group[0]) == setting(run)) {
            Some(group) => group.push(run),
            None => groups.push(vec![run]),
        }
    }
    groups
}

/// One row for each setting: medians of its repetitions, and how far they spread.
pub fn throughput_table(runs: &[Run]) -> Table {
    let header = [
        "engine",
        "durability",
        "checks",
        "threads",
        "clients",
        "theta",
        "writes",
        "txn/s",
        "spread",
        "op/s",
        "aborts",
        "p50 us",
        "p99 us",
        "p99.9 us",
        "max us",
        "MiB",
        "of ceiling",
        "replay/s",
    ];
    let mut table = table(&header, 3);
    for group in by_setting(runs) {
        let first = group[0];
        let passed: Vec<&&Run> = group.iter().filter(|run| run.passed()).collect();
        let of = |value: fn(&Run) -> f64| median(group.iter().map(|run| value(run)));
        let rates = group.iter().map(|run| run.txn_per_s);
        let (low, high) = rates.fold((f64::MAX, f64::MIN), |(l, h), rate| (l.min(rate), h.max(rate)));
        let spread = if group.len() > 1 { format!("{low:.0}..{high:.0}") } else { String::new() };
        let failed = group.iter().find(|run| !run.passed());
        // No ratio from runs whose checks failed.
        let share = median(passed.iter().filter_map(|run| run.share_of_ceiling));
        let share =
            if failed.is_none() && share > 0.0 { format!("{:.1}%", share * 100.0) } else { String::new() };
        // The ceiling answers nobody.
        let latency = |value: fn(&Latency) -> u64| match first.clients {
            0 => String::new(),
            _ => format!("{:.0}", median(group.iter().map(|run| value(&run.latency_us) as f64))),
        };
        let replay = median(passed.iter().filter_map(|run| run.replay_txn_per_s));
        table.add_row([
            first.engine.clone(),
            first.param("durability"),
            failed.map_or_else(|| "pass".to_owned(), |run| run.failed_checks()),
            first.threads.to_string(),
            first.clients.to_string(),
            first.param("theta"),
            first.param("write_ratio"),
            format!("{:.0}", of(|run| run.txn_per_s)),
            spread,
            format!("{:.0}", of(|run| run.op_per_s)),
            format!("{:.0}", of(|run| run.aborted as f64)),
            latency(|latency| latency.p50),
            latency(|latency| latency.p99),
            latency(|latency| latency.p999),
            latency(|latency| latency.max),
            format!("{:.0}", of(|run| run.peak_rss_bytes as f64 / (1 << 20) as f64)),
            share,
            if replay > 0.0 { format!("{replay:.0}") } else { String::new() },
        ]);
    }
    table
}

/// Where the time goes: processor microseconds for each committed transaction, a row for each part and a column
/// for each setting.
pub fn cpu_table(runs: &[Run]) -> Option<Table> {
    let groups: Vec<Vec<&Run>> =
        by_setting(runs).into_iter().filter(|group| !group[0].cpu_us_per_txn.is_empty()).collect();
    let parts: std::collections::BTreeSet<&String> =
        groups.iter().flatten().flat_map(|run| run.cpu_us_per_txn.keys()).collect();
    if groups.is_empty() {
        return None;
    }
    let mut header = vec!["processor us a transaction".to_owned()];
    header.extend(groups.iter().map(|group| {
        let run = group[0];
        format!("{} {} x{}", run.engine, run.param("durability"), run.threads)
    }));
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
        Run {
            engine: engine.to_owned(),
            workload: "ycsb",
            params,
            nodes: 1,
            threads: 1,
            clients: 8,
            seconds: 1.0,
            committed: 10,
            aborted: 0,
            txn_per_s,
            op_per_s: txn_per_s * 10.0,
            latency_us: Latency::default(),
            peak_rss_bytes: 0,
            checks: BTreeMap::from([("counters", Check::from(check))]),
            repetition,
            share_of_ceiling: Some(0.25),
            load_seconds: 0.0,
            cpu_us_per_txn: BTreeMap::from([("calvin".to_owned(), 2.0), ("runtime".to_owned(), 2.0)]),
            replay_txn_per_s: None,
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
        let text = throughput_table(&[run("a", 1, 100.0, true), run("a", 2, 100.0, false)]).to_string();
        assert!(text.contains("FAIL: counters") && !text.contains("25.0%"), "{text}");
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
        let refusal = check_writable(Some(Path::new("/proc/no/such/r.json"))).unwrap_err().to_string();
        assert!(refusal.contains("--json /proc/no/such/r.json"), "{refusal}");
        assert!(check_writable(None).is_ok());
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!([median([3.0, 1.0, 2.0]), median([4.0, 1.0]), median([])], [2.0, 1.0, 0.0]);
    }
}
