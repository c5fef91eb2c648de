//! The last ten minutes of a node, kept so that a page that is opened now shows what was before.
//!
//! Every two seconds a point is taken: rates and percentiles of the interval, from the difference of counters and
//! histograms, and levels as they are. The members of the cluster are asked for their status as often, so that the page
//! of one node shows all of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ordain_model::{Histogram, Micros};
use ordain_role::Series;
use serde_json::{Map, Value, json};

use super::metrics::Samples;
use super::status;
use crate::admin_client::{AskError, Asker, Target};

/// How often a point is taken, seconds.
pub(super) const STEP_S: u64 = 2;
/// The number of points that are kept: ten minutes.
const POINTS: usize = 300;
/// The time that another node has to answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(1500);

/// The counters that a point is made from.
#[derive(Debug, Default)]
struct Counters {
    committed: f64,
    requests: f64,
    /// Looks at values that were in memory, and those that were on disk.
    values: [f64; 2],
    aborts: BTreeMap<String, f64>,
    commands: Histogram,
    syncs: Histogram,
    turns: Histogram,
}

impl Counters {
    fn of(samples: &Samples) -> Counters {
        let all_of = |name: &str| {
            let mut sum = Histogram::default();
            let found = samples.histograms().iter().filter(|(series, _)| series.name == name);
            found.for_each(|(_, histogram)| sum.merge(histogram));
            sum
        };
        Counters {
            committed: samples.committed(),
            requests: samples.sum("ordain_front_commands_total"),
            values: ["ordain_values_hits_total", "ordain_values_misses_total"].map(|name| samples.sum(name)),
            aborts: samples.aborts(),
            commands: all_of("ordain_command_seconds"),
            syncs: all_of("ordain_disk_sync_seconds"),
            turns: all_of("ordain_loop_turn_seconds"),
        }
    }
}

/// The points of the last ten minutes.
#[derive(Debug, Default)]
pub(super) struct History {
    before: Option<(f64, Counters)>,
    points: VecDeque<Map<String, Value>>,
}

/// A percentile of an interval, seconds; null if there was nothing.
fn percentile(histogram: &Histogram, share: f64) -> Value {
    if histogram.count() == 0 { Value::Null } else { json!(histogram.percentile(share) as f64 / 1e6) }
}

impl History {
    /// Takes a point, at this Unix time in seconds. Answers the longest of each event that is no request, since the point
    /// before.
    pub(super) fn take(&mut self, at_s: f64, samples: &Samples) -> Vec<(&'static str, Micros)> {
        let now = Counters::of(samples);
        let mut longest = Vec::new();
        if let Some((then_s, then)) = &self.before {
            let seconds = (at_s - then_s).max(0.001);
            let rate = |now: f64, then: f64| json!(((now - then) / seconds).max(0.0));
            let commands = now.commands.since(&then.commands);
            let (syncs, turns) = (now.syncs.since(&then.syncs), now.turns.since(&then.turns));
            longest.extend([
                ("fsync", Micros(syncs.percentile(1.0))),
                ("loop-turn", Micros(turns.percentile(1.0))),
            ]);
            let (epoch, applied) = status::epochs(samples);
            let mut point = Map::new();
            for (name, value) in [
                ("t", json!(at_s)),
                ("committed", rate(now.committed, then.committed)),
                ("requests", rate(now.requests, then.requests)),
                ("values_hit", rate(now.values[0], then.values[0])),
                ("values_missed", rate(now.values[1], then.values[1])),
                ("p50", percentile(&commands, 0.5)),
                ("p99", percentile(&commands, 0.99)),
                ("p999", percentile(&commands, 0.999)),
                ("sync_p99", percentile(&syncs, 0.99)),
                ("turn_p99", percentile(&turns, 0.99)),
                ("lag", json!(epoch.saturating_sub(applied))),
                ("resident", json!(samples.max("ordain_process_resident_memory_bytes"))),
                ("data", json!(samples.sum("ordain_store_memory_bytes"))),
                ("log", json!(samples.sum("ordain_log_bytes"))),
                ("connections", json!(samples.max("ordain_connections"))),
                ("link_kept", json!(samples.sum("ordain_link_kept_bytes"))),
            ] {
                point.insert(name.to_owned(), value);
            }
            for (reason, count) in &now.aborts {
                let before = then.aborts.get(reason).copied().unwrap_or_default();
                point.insert(format!("abort_{reason}"), rate(*count, before));
            }
            self.points.push_back(point);
            if self.points.len() > POINTS {
                self.points.pop_front();
            }
        }
        self.before = Some((at_s, now));
        longest
    }

    /// All points, by column.
    fn columns(&self) -> Map<String, Value> {
        let mut columns = Map::new();
        for (at, point) in self.points.iter().enumerate() {
            for (name, value) in point {
                let column =
                    columns.entry(name.clone()).or_insert_with(|| Value::Array(vec![Value::Null; at]));
                if let Value::Array(column) = column {
                    column.push(value.clone());
                }
            }
        }
        columns
    }

    /// All of `/series`.
    pub(super) fn show(&self, samples: &Samples, nodes: &[Value], slow: Vec<Value>) -> Value {
        let summary = |name: &str| -> Vec<Value> {
            let of_name = samples.histograms().iter().filter(|(series, _)| series.name == name);
            let of_name = of_name.filter(|(_, histogram)| histogram.count() > 0);
            of_name.map(|(series, histogram)| summarize(series, histogram)).collect()
        };
        json!({
            "step_s": STEP_S,
            "points": self.columns(),
            "stages": summary("ordain_stage_seconds"),
            "families": summary("ordain_command_seconds"),
            "scripts": summary("ordain_script_seconds"),
            "batch_transactions": summary("ordain_batch_transactions"),
            "nodes": nodes,
            "slow": slow,
            "log": {
                "bytes": samples.sum("ordain_log_bytes"),
                "segments": samples.sum("ordain_log_segments"),
                "durable_epoch": samples.max("ordain_log_durable_epoch"),
                "pending": samples.sum("ordain_log_pending_entries"),
                "is_full": samples.max("ordain_log_full") > 0.0,
                "is_there": samples.has("ordain_log_bytes"),
                "syncs": summary("ordain_disk_sync_seconds"),
            },
            "memory_limit_bytes": samples.max("ordain_memory_limit_bytes"),
            "memory_budget_bytes": samples.sum("ordain_values_budget_bytes"),
            "values_disk_bytes": samples.sum("ordain_values_disk_bytes"),
        })
    }
}

/// A histogram in a few numbers, of all since the start.
fn summarize(series: &Series, histogram: &Histogram) -> Value {
    let scale = if series.name.ends_with("_seconds") { 1e6 } else { 1.0 };
    let at = |share: f64| histogram.percentile(share) as f64 / scale;
    json!({
        "name": series.label.map_or("", |(_, value)| value),
        "count": histogram.count(),
        "mean": histogram.sum() as f64 / scale / histogram.count().max(1) as f64,
        "p50": at(0.5),
        "p99": at(0.99),
        "p999": at(0.999),
    })
}

/// The summary of another node's status, or the reason why there is none.
pub(super) async fn ask(node: u16, target: Target, asker: Asker) -> Value {
    let answer = asker.get(&target, "/status").await;
    let parsed = answer.map_err(|error| match &error {
        AskError::NoAuthority => format!("{error} with tls-ca-cert-file"),
        error if error.is_about_login() => {
            format!("{error}: set admin-user and admin-password-file to a user of that node")
        }
        error => error.to_string(),
    });
    match parsed.and_then(|body| serde_json::from_slice::<Value>(&body).map_err(|error| error.to_string())) {
        Ok(status) => {
            let keys =
                ["role", "term", "epoch", "applied_epoch", "lag", "digest", "digest_epoch", "not_ready"];
            let mut summary: Map<String, Value> =
                keys.iter().map(|key| ((*key).to_owned(), status[*key].clone())).collect();
            summary.insert("node".to_owned(), json!(node));
            Value::Object(summary)
        }
        Err(reason) => json!({ "node": node, "unreachable": reason }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_percentiles_are_of_the_interval() {
        let mut history = History::default();
        let mut samples = Samples::of(&[("ordain_shard_committed_total", 1000.0), ("ordain_log_bytes", 5.0)]);
        let series = Series { name: "ordain_command_seconds", label: Some(("family", "read")) };
        let times = |value: u64| {
            let mut times = Histogram::default();
            (0..100).for_each(|_| times.record(value));
            times
        };
        samples.put_histogram(series, &times(1_000_000));
        samples.put_histogram(Series::new("ordain_loop_turn_seconds"), &times(5_000_000));
        assert_eq!(history.take(10.0, &samples), []);
        let mut later = Samples::of(&[("ordain_shard_committed_total", 1200.0), ("ordain_log_bytes", 7.0)]);
        later.put_histogram(series, &times(1_000_000));
        later.put_histogram(series, &times(100));
        later.put_histogram(Series::new("ordain_loop_turn_seconds"), &times(5_000_000));
        later.put_histogram(Series::new("ordain_loop_turn_seconds"), &times(40));
        let longest = history.take(12.0, &later);
        assert_eq!(longest, [("fsync", Micros(0)), ("loop-turn", Micros(43))], "the bound of its bucket");
        let shown = history.show(&later, &[], Vec::new());
        let points = &shown["points"];
        assert_eq!(
            (&points["t"], &points["committed"], &points["log"]),
            (&json!([12.0]), &json!([100.0]), &json!([7.0]))
        );
        let p999 = points["p999"][0].as_f64().unwrap();
        assert!((0.0001..0.00012).contains(&p999), "{p999}: what came before does not count");
        assert_eq!(shown["families"][0]["name"], "read");
        assert_eq!((&shown["families"][0]["count"], &points["sync_p99"]), (&json!(200), &json!([null])));
    }

    #[test]
    fn ten_minutes_are_kept() {
        let mut history = History::default();
        let samples = Samples::of(&[]);
        (0..1000).for_each(|at| _ = history.take(f64::from(at), &samples));
        let shown = history.show(&samples, &[], Vec::new());
        let times = shown["points"]["t"].as_array().unwrap();
        assert_eq!((times.len(), &times[299]), (POINTS, &json!(999.0)));
    }
}
