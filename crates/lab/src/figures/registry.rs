//! Every figure and table of the five papers, one line each, and the questions that the spec sheets add.
//!
//! An entry without an experiment cannot run in this version; its needs say why. One with an experiment may still have
//! needs: then it runs in part, and says of which part.

use super::{Experiment, Need, Paper, calvin, cluster, ours, paxflow, qstore, queues, reads, tpcc};

/// A figure or table.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on the command line.
    pub id: &'static str,
    /// The paper.
    pub paper: Paper,
    /// Where it is there.
    pub source: &'static str,
    /// What it shows.
    pub what: &'static str,
    /// What it cannot be whole without.
    pub needs: &'static [Need],
    /// How it is made, as far as this version can, and which part that is.
    pub experiment: Option<(&'static dyn Experiment, &'static str)>,
}

impl Figure {
    /// What is missing for the whole of it: engines together, and then the rest.
    pub fn missing(&self) -> Vec<String> {
        let unmet = || self.needs.iter().filter(|need| !need.is_met());
        let engines: Vec<&str> = unmet()
            .filter_map(|need| if let Need::Engine(name) = need { Some(*name) } else { None })
            .collect();
        let engines = match engines.len() {
            0 => None,
            1 => Some(format!("engine {}", engines.join(""))),
            _ => Some(format!("engines {}", engines.join(", "))),
        };
        let rest = unmet().filter(|need| !matches!(need, Need::Engine(_))).map(Need::to_string);
        engines.into_iter().chain(rest).collect()
    }

    /// What this version can do of it, in words.
    pub fn state(&self) -> String {
        let missing = self.missing().join("; ");
        match (&self.experiment, missing.is_empty()) {
            (None, _) if self.needs.iter().all(|need| matches!(need, Need::Nothing(_))) => missing,
            (None, _) => format!("needs {missing}"),
            (Some((_, part)), true) => format!("runs: {part}"),
            (Some((_, part)), false) => format!("runs: {part}; the rest needs {missing}"),
        }
    }
}

/// The figure with a name.
pub fn find(id: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.id == id)
}

const fn figure(
    paper: Paper,
    id: &'static str,
    source: &'static str,
    what: &'static str,
    needs: &'static [Need],
) -> Figure {
    Figure { id, paper, source, what, needs, experiment: None }
}

impl Figure {
    const fn by(self, experiment: &'static dyn Experiment, part: &'static str) -> Figure {
        Figure { experiment: Some((experiment, part)), ..self }
    }
}

use Need::{Engine, Nodes, Nothing, Part, Replicas};
use Paper::{Calvin, FwKv, Ours, PaxFlow, QStore, Regions};

const DRAWING: Need = Nothing("a drawing");
const EXAMPLE: Need = Nothing("an example of an execution");
const PSI: [Need; 4] = [Engine("fwkv"), Engine("walter"), Engine("occ-2pc"), Nodes(20)];
const FRESH: [Need; 3] = [Engine("fwkv"), Engine("walter"), Nodes(20)];
const REGIONS: [Need; 3] = [Engine("regions-2pl"), Engine("regions-silo"), Engine("regions-mvocc")];
const REGIONS_APART: [Need; 4] =
    [Engine("regions-2pl"), Engine("regions-silo"), Engine("regions-mvocc"), Nodes(2)];
const DENEVA: [Need; 6] =
    [Engine("no-wait"), Engine("wait-die"), Engine("timestamp"), Engine("mvcc"), Engine("maat"), Nodes(16)];
const LINES: &str = "Q-Store's line and both Calvins' on four nodes";

/// Every figure and table.
pub static FIGURES: [Figure; 55] = [
    figure(Calvin, "calvin-1", "Figure 1", "The architecture", &[DRAWING]),
    figure(
        Calvin,
        "calvin-2",
        "Figure 2",
        "Latency by replication mode, in one data centre and in three",
        &[Nodes(4), Replicas(3)],
    )
    .by(&cluster::Figure2, "none, async and sync, delays injected"),
    figure(
        Calvin,
        "calvin-disk",
        "section 4, text",
        "Throughput with a share of transactions on records that are on disk",
        &[Part("a store larger than memory")],
    ),
    figure(Calvin, "calvin-3", "Figure 3", "Throughput over time while a checkpoint is captured", &[])
        .by(&calvin::Figure3, "all three modes, and without a checkpoint"),
    figure(Calvin, "calvin-4", "Figure 4", "TPC-C New Order throughput, 1 to 100 nodes", &[Nodes(100)])
        .by(&tpcc::Calvin4, "demands measured on 1 to 4 nodes, 1 to 100 modelled"),
    figure(Calvin, "calvin-5", "Figure 5", "Microbenchmark throughput, 1 to 100 nodes", &[Nodes(100)])
        .by(&calvin::Figure5, "demands measured on 1 to 4 nodes, 1 to 100 modelled"),
    figure(
        Calvin,
        "calvin-6",
        "Figure 6",
        "Slowdown of multi-partition transactions by contention, beside two-phase commit",
        &[Nodes(8), Engine("no-wait")],
    )
    .by(&cluster::Figure6, "Calvin for real, two-phase commit as the paper's model"),
    figure(PaxFlow, "paxflow-1", "Figure 1", "How transactions go through Calvin and PaxFlow", &[DRAWING]),
    figure(
        PaxFlow,
        "paxflow-table-1",
        "Table 1",
        "The settings of Figure 2",
        &[Nothing("a list of settings, which paxflow-2 runs with and shows beside its own")],
    ),
    figure(
        PaxFlow,
        "paxflow-2",
        "Figure 2",
        "Read-only YCSB: Calvin and PaxFlow",
        &[Engine("paxflow"), Engine("calvin-paper")],
    )
    .by(&paxflow::Figure2, "PaxFlow and both Calvins; service demands and X(c)"),
    figure(
        PaxFlow,
        "paxflow-e1",
        "paxflow.md, E1",
        "The share of read-only transactions, 0 to 100%",
        &[Engine("paxflow")],
    )
    .by(&reads::E1, "both engines"),
    figure(
        PaxFlow,
        "paxflow-e2",
        "paxflow.md, E2",
        "Read-only latency while the hot records are written",
        &[Engine("paxflow")],
    )
    .by(&reads::E2, "both engines, p99, on one node and on two"),
    figure(
        PaxFlow,
        "paxflow-e3",
        "paxflow.md, E3",
        "Latency and staleness of the freshness modes",
        &[Engine("paxflow")],
    )
    .by(&reads::E3, "latency and staleness of each mode"),
    figure(
        PaxFlow,
        "paxflow-e4",
        "paxflow.md, E4",
        "Long read-only transactions beside writers",
        &[Engine("paxflow")],
    )
    .by(&reads::E4, "both engines, writers' p99, and versions of a record"),
    figure(PaxFlow, "paxflow-e5", "paxflow.md, E5", "4, 16 and 100 operations", &[Engine("paxflow")])
        .by(&reads::E5, "both engines"),
    figure(QStore, "qstore-1", "Figure 1", "How transactions go through Calvin and Q-Store", &[DRAWING]),
    figure(QStore, "qstore-2", "Figure 2", "Dependencies between transactions in queues", &[EXAMPLE]),
    figure(QStore, "qstore-3", "Figure 3", "The architecture of the system", &[DRAWING]),
    figure(QStore, "qstore-4", "Figure 4", "The architecture of a server", &[DRAWING]),
    figure(
        QStore,
        "qstore-table-1",
        "Table 1",
        "The parameters of the workloads",
        &[Nothing("a list of settings, which qstore-5 to qstore-13 run with")],
    ),
    figure(
        QStore,
        "qstore-5",
        "Figure 5",
        "Throughput and latency by batch size",
        &[Engine("qstore"), Nodes(16)],
    )
    .by(&qstore::FIGURE_5, "Q-Store and both Calvins on four nodes, by what is under way"),
    figure(QStore, "qstore-6", "Figure 6", "Throughput by skew", &DENEVA).by(&qstore::FIGURE_6, LINES),
    figure(QStore, "qstore-7", "Figure 7", "Throughput by share of multi-partition transactions", &DENEVA)
        .by(&qstore::FIGURE_7, LINES),
    figure(QStore, "qstore-8", "Figure 8", "Throughput by share of updates", &DENEVA)
        .by(&qstore::FIGURE_8, LINES),
    figure(QStore, "qstore-9", "Figure 9", "Throughput by operations per transaction", &DENEVA)
        .by(&qstore::FIGURE_9, LINES),
    figure(QStore, "qstore-10", "Figure 10", "Throughput by partitions per transaction", &DENEVA)
        .by(&qstore::FIGURE_10, LINES),
    figure(QStore, "qstore-11", "Figure 11", "Throughput, 2 to 16 servers", &DENEVA)
        .by(&qstore::FIGURE_11, "Q-Store's line and both Calvins', X(8) as a model"),
    figure(QStore, "qstore-12", "Figure 12", "TPC-C: NewOrder, Payment, and half of each", &DENEVA)
        .by(&tpcc::QSTORE_12, LINES),
    figure(QStore, "qstore-13", "Figure 13", "TPC-C by share of multi-partition transactions", &DENEVA)
        .by(&tpcc::QSTORE_13, LINES),
    figure(
        QStore,
        "qstore-a",
        "qstore.md, ours A",
        "Speculative and conservative execution by share of aborts",
        &[Engine("qstore"), Nodes(4)],
    )
    .by(&queues::Aborts, "Q-Store's three ways on four nodes"),
    figure(
        QStore,
        "qstore-b",
        "qstore.md, ours B",
        "Planning ahead, by delay between nodes and batch size",
        &[Engine("qstore"), Nodes(4)],
    )
    .by(&queues::Barriers, "by delay, by what is planned ahead and by what is under way"),
    figure(
        QStore,
        "qstore-c",
        "qstore.md, ours C",
        "The share of data dependencies, local and remote",
        &[Engine("qstore"), Nodes(4)],
    )
    .by(&queues::Dependencies, "Q-Store and Calvin on four nodes"),
    figure(FwKv, "fwkv-1", "Figure 1", "A long fork that Walter accepts", &[EXAMPLE]),
    figure(FwKv, "fwkv-2", "Figure 2", "A read-only transaction that moves its snapshot on", &[EXAMPLE]),
    figure(FwKv, "fwkv-3", "Figure 3", "How an update transaction gets its snapshot", &[EXAMPLE]),
    figure(FwKv, "fwkv-4", "Figure 4", "An abort that a fresher snapshot saves", &[EXAMPLE]),
    figure(FwKv, "fwkv-5", "Figure 5", "YCSB throughput, up to 20 nodes, 20% and 50% read-only", &PSI),
    figure(
        FwKv,
        "fwkv-6",
        "Figure 6",
        "Anti-dependencies that an update transaction collects",
        &[Engine("fwkv"), Nodes(20)],
    ),
    figure(FwKv, "fwkv-7", "Figure 7", "Aborts while propagation is delayed", &FRESH),
    figure(FwKv, "fwkv-8", "Figure 8", "TPC-C throughput by warehouses and nodes", &PSI),
    figure(FwKv, "fwkv-9a", "Figure 9(a)", "TPC-C aborts while propagation is delayed", &FRESH),
    figure(FwKv, "fwkv-9b", "Figure 9(b)", "FW-KV's slowdown against Walter by warehouses", &PSI),
    figure(
        Regions,
        "regions-layout",
        "figures of section 3",
        "How records are laid out for each concurrency control",
        &[DRAWING],
    ),
    figure(Regions, "regions-table-1", "Table 1", "The hardware", &[Nothing("a list of settings")]),
    figure(Regions, "regions-ro", "read-only figure", "10 reads, high and low contention", &REGIONS),
    figure(
        Regions,
        "regions-rmw",
        "read-write figure",
        "10 read-modify-writes, high and low contention",
        &REGIONS,
    ),
    figure(
        Regions,
        "regions-rmw-5",
        "second read-write figure",
        "5 read-modify-writes of 50 records",
        &REGIONS,
    ),
    figure(
        Regions,
        "regions-mixed",
        "mixed figure",
        "Read-only and read-modify-write, low contention",
        &REGIONS,
    ),
    figure(Regions, "regions-wal", "WAL text", "Bytes of log for each transaction", &REGIONS),
    figure(
        Regions,
        "regions-f1",
        "regions.md, F1 and F2",
        "Delay between regions, 0 to 200 ms, by share of multi-region transactions",
        &REGIONS_APART,
    ),
    figure(
        Regions,
        "regions-f3",
        "regions.md, F3",
        "More regions, transactions on 2 of them",
        &REGIONS_APART,
    ),
    figure(
        Regions,
        "regions-f4",
        "regions.md, F4",
        "A slow or dead storage replica: quorum and full",
        &[Engine("regions-2pl"), Engine("regions-silo"), Engine("regions-mvocc"), Replicas(3)],
    ),
    figure(
        Regions,
        "regions-f5",
        "regions.md, F5",
        "TPC-C with warehouses at home in a region",
        &REGIONS_APART,
    ),
    figure(
        Ours,
        "ours-engines",
        "ours",
        "Every engine on one workload, as shares of the ceiling",
        &[Engine("paxflow"), Engine("qstore"), Engine("fwkv"), Engine("regions-silo")],
    ),
    figure(
        Ours,
        "ours-ceiling",
        "ours",
        "Throughput as a share of plain record accesses, by skew and threads",
        &[],
    )
    .by(&ours::Ceiling, "Calvin on one node"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_fit_files() {
        let names: BTreeSet<&str> = FIGURES.iter().map(|figure| figure.id).collect();
        assert_eq!(names.len(), FIGURES.len());
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(names.iter().all(|name| name.chars().all(plain)), "{names:?}");
        assert!(find("calvin-5").is_some() && find("all").is_none() && find("nope").is_none());
    }

    #[test]
    fn every_figure_of_the_papers_is_there() {
        let numbered: [(&str, std::ops::RangeInclusive<u32>); 4] =
            [("calvin", 1..=6), ("paxflow", 1..=2), ("qstore", 1..=13), ("fwkv", 1..=8)];
        for (paper, numbers) in numbered {
            for number in numbers {
                assert!(find(&format!("{paper}-{number}")).is_some(), "{paper}-{number}");
            }
        }
        let others =
            ["fwkv-9a", "fwkv-9b", "calvin-disk", "paxflow-table-1", "qstore-table-1", "regions-table-1"];
        let regions =
            ["regions-ro", "regions-rmw", "regions-rmw-5", "regions-mixed", "regions-wal", "regions-layout"];
        for id in others.into_iter().chain(regions) {
            assert!(find(id).is_some(), "{id}");
        }
    }

    #[test]
    fn what_cannot_run_says_what_is_missing() {
        for figure in &FIGURES {
            assert!(!figure.what.is_empty() && !figure.source.is_empty());
            assert!(figure.experiment.is_some() || !figure.missing().is_empty(), "{}", figure.id);
        }
        let state = |id: &str| find(id).unwrap().state();
        assert_eq!(state("calvin-1"), "nothing to measure: a drawing");
        assert_eq!(state("qstore-a"), "runs: Q-Store's three ways on four nodes");
        assert_eq!(state("qstore-b"), "runs: by delay, by what is planned ahead and by what is under way");
        assert!(state("calvin-3").starts_with("runs: all three modes"));
        assert_eq!(state("paxflow-2"), "runs: PaxFlow and both Calvins; service demands and X(c)");
        assert!(state("paxflow-e3").starts_with("runs: latency and staleness"));
        assert_eq!(state("ours-ceiling"), "runs: Calvin on one node");
        assert!(Need::Engine("calvin").is_met() && Need::Nodes(100).is_met());
        assert!(!Need::Nodes(129).is_met() && Need::Replicas(3).is_met() && !Need::Replicas(10).is_met());
        assert_eq!(state("calvin-2"), "runs: none, async and sync, delays injected");
    }
}
