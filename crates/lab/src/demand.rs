//! Service demands, and the throughput that follows for machines with more cores than this one (calvin.md, section 7).
//!
//! On a machine with few cores, wall-clock scaling means little: all threads share the same cores, so a role that could
//! be a bottleneck never is one. What can be measured anywhere is the demand: processor time that each role needs for
//! one committed transaction. From the demands follows what `c` cores could do at best:
//!
//! ```text
//! X(c) = min(1 / max demand of a single thread, c / sum of the demands)
//! ```
//!
//! A role that is one thread (the sequencer, a lock manager, the input log, the disk) bounds X by its own demand whatever the number of
//! cores; the others (shards, gateways) are divided among as many threads as there are cores. The model knows no
//! waiting, no cache and no memory bandwidth: it is an upper bound, and plots show it apart from measurements, as
//! extrapolated.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::plot::{Series, si};
use crate::report::median;
use crate::table::{Cell, Table};

/// The number of threads of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Threads {
    /// One thread, whatever the number of cores.
    One,
    /// As many as there are cores.
    Many,
    /// The clients', which would be on other machines.
    Client,
}

/// The threads of a part of a run, by the name that [`Run::cpu_us_per_txn`](crate::report::Run) gives it: how it is divided among
/// threads.
pub fn threads_of(part: &str) -> Threads {
    const CLIENT: [&str; 3] = ["driver", "client", "generate"];
    // A server is measured by its threads, each of which is one.
    const SINGLE: [&str; 6] = ["sequencer", "lock-manager", "manager", "input-log", "disk", "server: "];
    if CLIENT.iter().any(|name| part.starts_with(name)) {
        Threads::Client
    } else if SINGLE.iter().any(|name| part.starts_with(name)) {
        Threads::One
    } else {
        Threads::Many
    }
}

/// The demand of one part of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Demand {
    /// The role, or part of the driver.
    pub part: String,
    pub threads: Threads,
    /// Processor time for each committed transaction.
    pub us_per_txn: f64,
}

/// The demands of all parts of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Demands(pub Vec<Demand>);

impl Demands {
    /// The medians of some runs of one setting; a part that a run does not have costs it nothing.
    pub fn of<'a>(runs: impl IntoIterator<Item = &'a BTreeMap<String, f64>>) -> Demands {
        let runs: Vec<_> = runs.into_iter().collect();
        let parts: BTreeSet<&String> = runs.iter().flat_map(|run| run.keys()).collect();
        Demands(
            parts
                .into_iter()
                .map(|part| Demand {
                    part: part.clone(),
                    threads: threads_of(part),
                    us_per_txn: median(runs.iter().map(|run| run.get(part).copied().unwrap_or(0.0))),
                })
                .collect(),
        )
    }

    /// The demands of the servers: clients are on other machines.
    fn served(&self) -> impl Iterator<Item = &Demand> {
        self.0.iter().filter(|demand| demand.threads != Threads::Client)
    }

    /// The demand of all of a node's parts together, microseconds.
    pub fn sum_us(&self) -> f64 {
        self.served().map(|demand| demand.us_per_txn).sum()
    }

    /// The single thread that needs most, if there is one.
    pub fn bottleneck(&self) -> Option<&Demand> {
        let single = self.served().filter(|demand| demand.threads == Threads::One && demand.us_per_txn > 0.0);
        single.max_by(|a, b| a.us_per_txn.total_cmp(&b.us_per_txn))
    }

    /// X(c): transactions a second of a node with `cores` cores, at best; 0 if nothing is known.
    pub fn txn_per_s(&self, cores: f64) -> f64 {
        let sum = self.sum_us();
        if sum <= 0.0 || cores <= 0.0 {
            return 0.0;
        }
        let shared = cores / sum * 1e6;
        self.bottleneck().map_or(shared, |single| shared.min(1e6 / single.us_per_txn))
    }

    /// The most cores that a node can use before its busiest single thread is the limit.
    pub fn cores_used_at_most(&self) -> Option<f64> {
        self.bottleneck().map(|single| self.sum_us() / single.us_per_txn)
    }

    /// X(c) as a line.
    pub fn series(&self, name: impl Into<String>, cores: impl IntoIterator<Item = u32>) -> Series {
        let points = cores.into_iter().map(|cores| (f64::from(cores), self.txn_per_s(f64::from(cores))));
        Series::extrapolated(name, points.collect())
    }
}

/// A table of demands: a row for each part with its share of all, a column for each setting, and below them what follows.
pub fn table(settings: &[(String, Demands)]) -> Table {
    let names = settings.iter().map(|(name, _)| name);
    let mut table = Table::new("Service demands: processor microseconds for each committed transaction")
        .text_columns(["part", "threads"])
        .number_columns(names);
    let parts = settings.iter().flat_map(|(_, demands)| &demands.0).map(|demand| demand.part.as_str());
    for part in parts.collect::<BTreeSet<_>>() {
        let threads = match threads_of(part) {
            Threads::One => "one",
            Threads::Many => "one a core",
            Threads::Client => "client's, not counted",
        };
        let figures = settings.iter().map(|(_, demands)| {
            let all: f64 = demands.0.iter().map(|demand| demand.us_per_txn).sum();
            let Some(demand) = demands.0.iter().find(|demand| demand.part == part) else {
                return Cell::number("");
            };
            let share = 100.0 * demand.us_per_txn / all.max(f64::MIN_POSITIVE);
            Cell::number(format!("{:.2}", demand.us_per_txn)).beside(format!("{share:.0}%"))
        });
        table.row([Cell::text(part), Cell::text(threads)].into_iter().chain(figures));
    }
    let mut row = |name: String, kind: &str, figure: &dyn Fn(&Demands) -> String| {
        let figures = settings.iter().map(|(_, demands)| Cell::number(figure(demands)));
        table.row([Cell::text(name), Cell::text(kind)].into_iter().chain(figures));
    };
    row("all of the node".to_owned(), "", &|demands| format!("{:.2}", demands.sum_us()));
    for cores in [1.0, 2.0, 4.0, 8.0, 16.0] {
        row(format!("X({cores} cores), txn/s"), "extrapolated", &|demands| si(demands.txn_per_s(cores)));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demands(parts: &[(&str, f64)]) -> Demands {
        let run: BTreeMap<String, f64> = parts.iter().map(|(part, us)| ((*part).to_owned(), *us)).collect();
        Demands::of([&run])
    }

    #[test]
    fn cores_help_until_a_single_thread_is_busy() {
        let known = demands(&[
            ("sequencer", 1.0),
            ("input-log", 0.5),
            ("calvin", 6.0),
            ("gateway: plan", 2.5),
            ("driver: generate", 9.0),
        ]);
        assert_eq!(known.sum_us(), 10.0);
        assert_eq!(known.txn_per_s(1.0), 100_000.0);
        assert_eq!(known.txn_per_s(4.0), 400_000.0);
        assert_eq!(known.txn_per_s(16.0), 1_000_000.0);
        assert_eq!(known.bottleneck().map(|demand| demand.part.as_str()), Some("sequencer"));
        assert_eq!(known.cores_used_at_most(), Some(10.0));
    }

    #[test]
    fn without_single_threads_it_is_linear_and_without_demands_nothing() {
        let known = demands(&[("calvin", 4.0)]);
        assert_eq!(known.txn_per_s(100.0), 25_000_000.0);
        assert_eq!((known.bottleneck(), known.cores_used_at_most()), (None, None));
        assert_eq!(Demands::default().txn_per_s(8.0), 0.0);
        assert_eq!(known.txn_per_s(0.0), 0.0);
    }

    #[test]
    fn the_demands_of_repetitions_are_their_medians() {
        let run = |us: f64| BTreeMap::from([("calvin".to_owned(), us)]);
        let runs = [run(3.0), run(1.0), run(2.0)];
        assert_eq!(Demands::of(&runs).sum_us(), 2.0);
    }

    #[test]
    fn the_roles_of_a_node_are_known_by_their_names() {
        let single =
            ["sequencer", "lock-manager", "manager", "input-log", "disk thread", "server: redis-server"]
                .map(threads_of);
        assert_eq!(single, [Threads::One; 6]);
        assert_eq!(
            ["calvin", "gateway: plan", "gateway: answer", "runtime"].map(threads_of),
            [Threads::Many; 4]
        );
        assert_eq!(threads_of("driver: generate"), Threads::Client);
    }

    #[test]
    fn the_table_shows_parts_sums_and_the_model() {
        let known = demands(&[("sequencer", 1.0), ("calvin", 9.0)]);
        let html = table(&[("C=0.01".to_owned(), known)]).html();
        for text in ["C=0.01", "sequencer", "one a core", "10.00", "X(16 cores), txn/s", "1 M"] {
            assert!(html.contains(text), "{text}: {html}");
        }
    }
}
