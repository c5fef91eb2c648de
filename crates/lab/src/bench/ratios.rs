//! The cost of a cluster, as ratios of one report: processor time for each transaction against that of nodes that do not
//! know each other, and that of agreement among replicas against doing without it.
//!
//! Processor time is compared, not throughput: all nodes share this machine's cores, so that a slower cluster and a
//! machine that is busy otherwise look alike by the clock. The clients' own time is left out.

use crate::demand::{Threads, threads_of};
use crate::ratio::{Ratio, free};
use crate::report::{Run, by_setting, describe, median, varying, whole};
use crate::table::{Table, cells, number, text};

/// Processor microseconds of the nodes for each committed transaction, the clients' apart: of one replica, as every
/// replica has machines of its own.
pub fn served_us(run: &Run) -> f64 {
    let served = run.cpu_us_per_txn.iter().filter(|(part, _)| threads_of(part) != Threads::Client);
    served.map(|(_, us)| us).sum::<f64>() / replicas(run) as f64
}

fn replicas(run: &Run) -> u64 {
    run.params.get("replicas").and_then(serde_json::Value::as_u64).unwrap_or(1)
}

fn is_apart(run: &Run) -> bool {
    run.params.get("apart").and_then(serde_json::Value::as_bool).unwrap_or(false)
}

/// True if two runs have the same setting but for the nodes' relation and replication.
fn is_sibling(a: &Run, b: &Run) -> bool {
    let same = ["durability", "ops_per_txn", "contention_index", "theta", "mix", "rate"];
    (&a.engine, a.workload, a.nodes, a.threads, a.clients)
        == (&b.engine, b.workload, b.nodes, b.threads, b.clients)
        && same.iter().all(|name| a.params.get(*name) == b.params.get(*name))
}

/// A row for each cluster for which there is something to compare it with.
pub fn ratios(runs: &[Run]) -> Vec<Cost> {
    let groups = by_setting(runs);
    let knobs = varying(&groups);
    let clusters = || groups.iter().filter(|group| group[0].params.contains_key("replicas"));
    let mut ratios = Vec::new();
    for group in clusters().filter(|group| !is_apart(group[0])) {
        let first = group[0];
        let mut compare = |what: &'static str, base: &[&Run]| {
            let cost = |group: &[&Run]| median(free(group).iter().map(|run| served_us(run)));
            let latency = |group: &[&Run]| median(free(group).iter().map(|run| run.latency_us.p50 as f64));
            let (ours, theirs) = (cost(group), cost(base));
            ratios.push(Cost {
                setting: describe(first, &knobs),
                what,
                us: ours,
                base_us: theirs,
                per_cpu: Ratio::of(group, Some(base), || Some(theirs / ours)),
                p50_us: latency(group),
                base_p50_us: latency(base),
            });
        };
        if let Some(base) = clusters().find(|base| is_apart(base[0]) && is_sibling(first, base[0])) {
            compare("nodes apart", base);
        }
        let multi = |run: &Run| run.params.get("multi_partition").cloned();
        let without = clusters().find(|base| {
            replicas(base[0]) == 1
                && !is_apart(base[0])
                && is_sibling(first, base[0])
                && multi(first) == multi(base[0])
                && first.params.get("latency_us") == base[0].params.get("latency_us")
        });
        if let Some(base) = without.filter(|_| replicas(first) > 1) {
            compare("replication none", base);
        }
    }
    ratios
}

/// A cluster beside something else.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    /// The setting, by the knobs that differ.
    pub setting: String,
    /// Beside what.
    pub what: &'static str,
    /// Processor microseconds a transaction, of one replica.
    pub us: f64,
    /// The other's.
    pub base_us: f64,
    /// Throughput for the same processor time, as a share of the other's.
    pub per_cpu: Ratio,
    /// The median latency.
    pub p50_us: f64,
    /// The other's.
    pub base_p50_us: f64,
}

/// The ratios as a table, if there are some.
pub fn table_of(ratios: &[Cost]) -> Option<Table> {
    fn hundredths(value: f64) -> String {
        format!("{value:.2}")
    }
    let columns = vec![
        text("cluster", |ratio: &&Cost| ratio.setting.clone()),
        text("beside", |ratio: &&Cost| ratio.what.to_owned()),
        number("us/txn", |ratio: &&Cost| hundredths(ratio.us)),
        number("other us/txn", |ratio: &&Cost| hundredths(ratio.base_us)),
        cells("throughput at equal processor time", true, |ratio: &&Cost| ratio.per_cpu.cell(hundredths)),
        number("p50 us", |ratio: &&Cost| whole(ratio.p50_us)),
        number("other p50 us", |ratio: &&Cost| whole(ratio.base_p50_us)),
    ];
    Table::of("Ratios", ratios, columns).or_none()
}
