//! The numbers of a node: gathered from its loops, and written as text for Prometheus.

use std::collections::BTreeMap;
use std::fmt;

use ordain_model::{DigestSpan, Histogram};
use ordain_resp::diagnostics::family;
use ordain_role::Series;
use ordain_runtime::Reach;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::Observed;
use super::catalogue::help;

/// One number, and whose it is.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: f64,
}

/// The latest samples of all loops of a node.
#[derive(Debug, Default)]
pub(super) struct Samples {
    numbers: BTreeMap<&'static str, Vec<Sample>>,
    histograms: BTreeMap<Series, Histogram>,
    /// Digests of the node's state at the ends of late epochs: of all its shards together, in order.
    pub(super) digests: Vec<DigestSpan>,
}

/// The roles that hold records, of both families: a node's digest is that of all of them together.
const HOLDERS: [&str; 2] = ["shard", "participant"];

/// The bounds of time buckets, microseconds: 10 µs to 10.5 s, each twice the one before. They are bounds of
/// the histograms' own buckets, so the counts are exact.
const TIME_BOUNDS: std::ops::Range<u32> = 0..21;
/// The bounds of size buckets, as powers of two.
const SIZE_BOUNDS: std::ops::Range<u32> = 0..27;

impl Samples {
    pub(super) fn gather(observed: &Observed) -> Samples {
        let mut samples = Samples::default();
        let mut digests: Option<Vec<DigestSpan>> = None;
        observed.handle.inspect(|snapshot| {
            let mut add = |name, role: &str, value| samples.put_of(name, role, &snapshot.name, value);
            add("ordain_loop_cpu_seconds_total", "loop", snapshot.cpu.as_secs_f64());
            add("ordain_loop_turns_total", "loop", snapshot.turns as f64);
            add("ordain_loop_sleeps_total", "loop", snapshot.sleeps as f64);
            add("ordain_loop_messages_sent_total", "loop", snapshot.sent as f64);
            for role in &snapshot.roles {
                add("ordain_role_events_total", role.name, role.events as f64);
                role.gauges.iter().for_each(|(name, value)| add(name, role.name, *value));
            }
            for role in snapshot.roles.iter().filter(|role| HOLDERS.contains(&role.name)) {
                digests = Some(match digests.take() {
                    None => role.digests.clone(),
                    Some(others) => DigestSpan::meet_all(&others, &role.digests),
                });
            }
            let of_roles = snapshot.roles.iter().flat_map(|role| &role.histograms);
            for (series, histogram) in snapshot.histograms.iter().chain(of_roles) {
                samples.histograms.entry(*series).or_default().merge(histogram);
            }
        });
        samples.digests = digests.unwrap_or_default();
        let (open, made, refused) = observed.mailboxes.connections();
        let (admin_open, admin_refused, admin_late) = observed.traffic.counts();
        for (name, value) in [
            ("ordain_admin_connections", admin_open as f64),
            ("ordain_admin_refused_total", admin_refused as f64),
            ("ordain_admin_late_total", admin_late as f64),
            ("ordain_connections", open as f64),
            ("ordain_connections_total", made as f64),
            ("ordain_connections_refused_total", refused as f64),
            ("ordain_certificates_renewed_total", observed.about.renewals.total() as f64),
            ("ordain_certificates_failing", f64::from(u8::from(observed.about.renewals.failing().is_some()))),
            ("ordain_memory_limit_bytes", observed.about.memory.limit() as f64),
            ("ordain_process_resident_memory_bytes", resident_bytes() as f64),
            ("ordain_loop_longest_turn_seconds", observed.handle.longest_turn().0 as f64 / 1e6),
        ] {
            samples.put_of(name, "node", "all", value);
        }
        let diagnostics = &observed.about.diagnostics;
        let mut failed = 0;
        for (command, stats) in diagnostics.commands() {
            let label = Some(("family", family(command)));
            samples.put_histogram(Series { name: "ordain_command_seconds", label }, &stats.times);
            failed += stats.failed;
        }
        for times in &observed.about.run_times {
            samples.put_histogram(Series::new("ordain_script_seconds"), &times.histogram());
        }
        for (name, value) in [
            ("ordain_commands_failed_total", failed),
            ("ordain_slow_commands_total", diagnostics.slow_total()),
        ] {
            samples.put_of(name, "node", "all", value as f64);
        }
        for link in observed.about.links.peers() {
            let is_up = link.reach == Reach::Connected;
            let round_trip = link.rtt.map(|time| ("ordain_link_round_trip_seconds", time.0 as f64 / 1e6));
            let numbers = [
                ("ordain_link_up", f64::from(u8::from(is_up))),
                ("ordain_link_kept_bytes", link.kept_bytes as f64),
                ("ordain_link_sent_bytes_total", link.output_bytes as f64),
                ("ordain_link_received_bytes_total", link.input_bytes as f64),
                ("ordain_link_reconnects_total", link.reconnects as f64),
            ];
            for (name, value) in numbers.into_iter().chain(round_trip) {
                samples.put(name, vec![("peer", link.node.0.to_string())], value);
            }
        }
        if let Some((_, standing)) = &observed.about.archive {
            let report = standing.report();
            for (name, value) in [
                ("ordain_archive_epoch", report.epoch.0 as f64),
                ("ordain_archive_kept", report.kept as f64),
                ("ordain_archive_uploading", f64::from(u8::from(report.uploading.is_some()))),
                ("ordain_archive_uploaded_total", report.uploaded as f64),
                ("ordain_archive_uploaded_bytes_total", report.bytes as f64),
                ("ordain_archive_failures_total", report.failures as f64),
                ("ordain_archive_failing", f64::from(u8::from(report.failing.is_some()))),
            ] {
                samples.put_of(name, "archiver", "none", value);
            }
        }
        samples
    }

    fn put(&mut self, name: &'static str, labels: Vec<(&'static str, String)>, value: f64) {
        self.numbers.entry(name).or_default().push(Sample { labels, value });
    }

    pub(super) fn put_of(&mut self, name: &'static str, role: &str, on_loop: &str, value: f64) {
        let (name, label) = split_label(name);
        let mut labels = vec![("role", role.to_owned()), ("loop", on_loop.to_owned())];
        labels.extend(label.map(|(label, value)| (label, value.to_owned())));
        self.put(name, labels, value);
    }

    /// Some numbers, for tests.
    #[cfg(test)]
    pub(super) fn of(numbers: &[(&'static str, f64)]) -> Samples {
        let mut samples = Samples::default();
        numbers.iter().for_each(|(name, value)| samples.put(name, Vec::new(), *value));
        samples
    }

    fn values(&self, name: &str) -> impl Iterator<Item = f64> {
        self.numbers.get(name).into_iter().flatten().map(|sample| sample.value)
    }

    /// Tells whether any role reports a metric.
    pub(super) fn has(&self, name: &str) -> bool {
        self.numbers.contains_key(name)
    }

    /// The sums of a metric over all loops, by one of its labels.
    pub(super) fn sums_by(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        let mut sums = BTreeMap::new();
        for sample in self.numbers.get(name).into_iter().flatten() {
            let value = sample.labels.iter().find(|(name, _)| *name == label);
            *sums.entry(value.map(|(_, value)| value.clone()).unwrap_or_default()).or_default() +=
                sample.value;
        }
        sums
    }

    /// The transactions that committed, by whoever decides them in the engine's family.
    pub(super) fn committed(&self) -> f64 {
        self.sum("ordain_shard_committed_total") + self.sum("ordain_coordinator_committed_total")
    }

    /// The transactions that aborted, by reason.
    pub(super) fn aborts(&self) -> BTreeMap<String, f64> {
        let mut sums = self.sums_by("ordain_shard_aborts_total", "reason");
        for (reason, count) in self.sums_by("ordain_coordinator_aborts_total", "reason") {
            *sums.entry(reason).or_default() += count;
        }
        sums
    }

    /// The sum of a metric over all loops; 0 if there is none.
    pub(super) fn sum(&self, name: &str) -> f64 {
        self.values(name).sum()
    }

    /// The largest value of a metric over all loops, and not below 0.
    pub(super) fn max(&self, name: &str) -> f64 {
        self.values(name).fold(0.0, f64::max)
    }

    /// The smallest; 0 if there is none.
    pub(super) fn min(&self, name: &str) -> f64 {
        self.values(name).min_by(f64::total_cmp).unwrap_or_default()
    }

    /// The first value that is reported.
    pub(super) fn first(&self, name: &str) -> Option<f64> {
        self.values(name).next()
    }

    /// The distributions, over all loops.
    pub(super) const fn histograms(&self) -> &BTreeMap<Series, Histogram> {
        &self.histograms
    }

    /// Adds a distribution.
    pub(super) fn put_histogram(&mut self, series: Series, histogram: &Histogram) {
        self.histograms.entry(series).or_default().merge(histogram);
    }

    /// As text for Prometheus.
    ///
    /// # Errors
    /// None that a string could give.
    pub(super) fn text(self) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut body = String::new();
        text::encode(&mut body, &registry)?;
        Ok(body)
    }
}

/// The name of a metric and its label, if it has one in braces.
fn split_label(name: &'static str) -> (&'static str, Option<(&'static str, &'static str)>) {
    let parts = name.split_once('{').and_then(|(base, rest)| {
        let (label, value) = rest.strip_suffix("\"}")?.split_once("=\"")?;
        Some((base, Some((label, value))))
    });
    parts.unwrap_or((name, None))
}

/// Buckets as Prometheus has them: the bound, and how many values are in this bucket alone.
fn buckets(is_time: bool, histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds: Vec<(f64, u64)> = if is_time {
        TIME_BOUNDS.map(|power| (f64::from(10_u32 << power) / 1e6, 10 << power)).collect()
    } else {
        // Sizes are kept less one.
        SIZE_BOUNDS.map(|power| (f64::from(1_u32 << power), 1 << power)).collect()
    };
    let mut before = 0;
    let mut buckets: Vec<(f64, u64)> = bounds
        .into_iter()
        .map(|(bound, exclusive)| {
            let below = histogram.below(exclusive);
            (bound, below - std::mem::replace(&mut before, below))
        })
        .collect();
    buckets.push((f64::INFINITY, histogram.count() - before));
    buckets
}

impl Collector for Samples {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (name, samples) in &self.numbers {
            let (base, kind) = match name.strip_suffix("_total") {
                Some(base) => (base, MetricType::Counter),
                None => (*name, MetricType::Gauge),
            };
            let mut metric = encoder.encode_descriptor(base, help(name), None, kind)?;
            for Sample { labels, value } in samples {
                let labels: Vec<(&str, &str)> =
                    labels.iter().map(|(name, label)| (*name, label.as_str())).collect();
                let mut sample = metric.encode_family(&labels)?;
                match kind {
                    MetricType::Counter => sample.encode_counter::<NoLabelSet, f64, f64>(value, None)?,
                    _ => sample.encode_gauge(value)?,
                }
            }
        }
        let mut all = self.histograms.iter().peekable();
        while let Some((series, _)) = all.peek() {
            let name = series.name;
            let is_time = name.ends_with("_seconds");
            let mut metric = encoder.encode_descriptor(name, help(name), None, MetricType::Histogram)?;
            while let Some((series, histogram)) = all.next_if(|(series, _)| series.name == name) {
                let sum = histogram.sum() as f64 / if is_time { 1e6 } else { 1.0 };
                let (count, buckets) = (histogram.count(), buckets(is_time, histogram));
                let labels: Vec<(&str, &str)> = series.label.into_iter().collect();
                if labels.is_empty() {
                    metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                } else {
                    let mut family = metric.encode_family(&labels)?;
                    family.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
                }
            }
        }
        Ok(())
    }
}

/// Memory of this process that is in use, bytes; 0 where the system does not say.
pub(super) fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let resident = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    resident.unwrap_or(0) * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_in_braces_is_a_label() {
        let mut samples = Samples::default();
        samples.put_of("ordain_shard_aborts_total{reason=\"conflict\"}", "shard", "l0", 2.0);
        samples.put_of("ordain_shard_aborts_total{reason=\"logic\"}", "shard", "l0", 1.0);
        samples.put_of("ordain_shard_aborts_total{reason=\"logic\"}", "shard", "l1", 4.0);
        let sums = samples.sums_by("ordain_shard_aborts_total", "reason");
        assert_eq!(
            sums.into_iter().collect::<Vec<_>>(),
            [("conflict".to_owned(), 2.0), ("logic".to_owned(), 5.0)]
        );
        let text = samples.text().unwrap();
        let line = "ordain_shard_aborts_total{role=\"shard\",loop=\"l0\",reason=\"conflict\"} 2.0";
        assert!(text.lines().any(|found| found == line), "{text}");
    }

    #[test]
    fn histograms_are_written_with_bounds_in_seconds_and_counts_that_add_up() {
        let mut samples = Samples::default();
        let mut times = Histogram::default();
        [5, 10, 15, 1_000, 30_000_000].into_iter().for_each(|value| times.record(value));
        samples.put_histogram(Series::stage("log"), &times);
        let mut sizes = Histogram::default();
        [1, 2, 3, 64, 65].into_iter().for_each(|size| sizes.record_size(size));
        samples.put_histogram(Series::new("ordain_batch_transactions"), &sizes);
        let text = samples.text().unwrap();
        for line in [
            "# TYPE ordain_stage_seconds histogram",
            "ordain_stage_seconds_sum{stage=\"log\"} 30.00103",
            "ordain_stage_seconds_count{stage=\"log\"} 5",
            "ordain_stage_seconds_bucket{le=\"0.00001\",stage=\"log\"} 1",
            "ordain_stage_seconds_bucket{le=\"0.00002\",stage=\"log\"} 3",
            "ordain_stage_seconds_bucket{le=\"10.48576\",stage=\"log\"} 4",
            "ordain_stage_seconds_bucket{le=\"+Inf\",stage=\"log\"} 5",
            "ordain_batch_transactions_sum 135.0",
            "ordain_batch_transactions_bucket{le=\"1.0\"} 1",
            "ordain_batch_transactions_bucket{le=\"2.0\"} 2",
            "ordain_batch_transactions_bucket{le=\"4.0\"} 3",
            "ordain_batch_transactions_bucket{le=\"64.0\"} 4",
        ] {
            let found = text.lines().any(|found| found == line);
            assert!(found, "'{line}' is not in:\n{text}");
        }
    }
}
