//! Every figure and table of the five papers, one row each, and the questions that the spec sheets add.
//!
//! A row without an experiment cannot run in this version; its needs are the reason. One with an experiment may still have
//! needs: then it runs in part, and names the part.

use super::{
    Experiment, Need, Paper, calvin, cluster, fresh, fwkv, ours, paxflow, qstore, queues, reads, regions,
    tpcc,
};

/// A figure or table.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The name on the command line, which begins with the paper's.
    pub id: &'static str,
    /// The number in the paper, or the section.
    pub source: &'static str,
    /// The question.
    pub what: &'static str,
    /// Conditions of the whole figure.
    pub needs: &'static [Need],
    /// The experiment, as far as this version can, and the part that it covers.
    pub experiment: Option<(&'static Experiment, &'static str)>,
}

impl Figure {
    /// The paper.
    pub fn paper(&self) -> Paper {
        match self.id.split_once('-').map(|(paper, _)| paper) {
            Some("calvin") => Paper::Calvin,
            Some("paxflow") => Paper::PaxFlow,
            Some("qstore") => Paper::QStore,
            Some("fwkv") => Paper::FwKv,
            Some("regions") => Paper::Regions,
            _ => Paper::Ours,
        }
    }

    /// The needs that are not met.
    pub fn missing(&self) -> Vec<String> {
        self.needs.iter().filter(|need| !need.is_met()).map(Need::to_string).collect()
    }

    /// The part that this version can run, in words.
    pub fn state(&self) -> String {
        let missing = self.missing().join("; ");
        match (&self.experiment, missing.is_empty()) {
            (None, _) if self.needs.iter().all(|need| matches!(need, Need::Nothing(_))) => missing,
            (None, _) => format!("needs {missing}"),
            (Some((_, part)), true) => format!("runs: {part}"),
            (Some((_, part)), false) => format!("runs: {part}; the rest needs {missing}"),
        }
    }

    const fn by(self, experiment: &'static Experiment, part: &'static str) -> Figure {
        Figure { experiment: Some((experiment, part)), ..self }
    }
}

/// The figure with a name.
pub fn find(id: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.id == id)
}

const fn row(id: &'static str, source: &'static str, what: &'static str, needs: &'static [Need]) -> Figure {
    Figure { id, source, what, needs, experiment: None }
}

use Need::{Nodes, Nothing, Part, Replicas};

const DRAWING: &[Need] = &[Nothing("a drawing")];
const EXAMPLE: &[Need] = &[Nothing("an example of an execution")];
const HARDWARE: &[Need] = &[Nothing("a list of settings")];
const PAXFLOW_2: &[Need] =
    &[Nothing("a list of settings, which paxflow-2 runs with and shows beside its own")];
const QSTORE_5: &[Need] = &[Nothing("a list of settings, which qstore-5 to qstore-13 run with")];
const QSTORE: &[Need] = &[Nodes(4)];
const FWKV: &[Need] = &[Nodes(20)];
const REGIONS_SPANNED: &[Need] = &[Nodes(2)];
const DENEVA: &[Need] = &[Nodes(16)];
const LINES: &str =
    "lines of Q-Store, both Calvins, NO-WAIT, WAIT-DIE, TIMESTAMP, MVCC and MaaT on four nodes";
const ON_NODES: &str =
    "lines of Q-Store, both Calvins, NO-WAIT, WAIT-DIE, TIMESTAMP, MVCC and MaaT on 2 to 16 nodes";
const BOTH: &str = "both engines";
const IN_REGIONS: &str = "every such engine in two regions, each with clients of its own";

/// Every figure and table.
pub static FIGURES: [Figure; 59] = [
    row("calvin-1", "Figure 1", "The architecture", DRAWING),
    row(
        "calvin-2",
        "Figure 2",
        "Latency by replication mode, in one data centre and in three",
        &[Nodes(4), Replicas(3)],
    )
    .by(&cluster::FIGURE_2, "none, async and sync, delays injected"),
    row(
        "calvin-disk",
        "section 4, text",
        "Throughput with a share of transactions on records that are on disk",
        &[Part("a store larger than memory")],
    ),
    row("calvin-3", "Figure 3", "Throughput over time while a checkpoint is captured", &[])
        .by(&calvin::FIGURE_3, "all three modes, and without a checkpoint"),
    row("calvin-4", "Figure 4", "TPC-C New Order throughput, 1 to 100 nodes", &[Nodes(100)])
        .by(&tpcc::CALVIN_4, "demands measured on 1 to 4 nodes, 1 to 100 modelled"),
    row("calvin-5", "Figure 5", "Microbenchmark throughput, 1 to 100 nodes", &[Nodes(100)])
        .by(&calvin::FIGURE_5, "demands measured on 1 to 4 nodes, 1 to 100 modelled"),
    row(
        "calvin-6",
        "Figure 6",
        "Slowdown of multi-partition transactions by contention, beside two-phase commit",
        &[Nodes(8)],
    )
    .by(&cluster::FIGURE_6, "Calvin and two-phase commit for real, beside the paper's model"),
    row("paxflow-1", "Figure 1", "How transactions go through Calvin and PaxFlow", DRAWING),
    row("paxflow-table-1", "Table 1", "The settings of Figure 2", PAXFLOW_2),
    row("paxflow-2", "Figure 2", "Read-only YCSB: Calvin and PaxFlow", &[])
        .by(&paxflow::FIGURE_2, "PaxFlow and both Calvins; service demands and X(c)"),
    row("paxflow-e1", "paxflow.md, E1", "The share of read-only transactions, 0 to 100%", &[])
        .by(&reads::E1, BOTH),
    row("paxflow-e2", "paxflow.md, E2", "Read-only latency while the hot records are written", &[])
        .by(&reads::E2, "both engines, p99, on one node and on two"),
    row("paxflow-e3", "paxflow.md, E3", "Latency and staleness of the freshness modes", &[])
        .by(&reads::E3, "latency and staleness of each mode"),
    row("paxflow-e4", "paxflow.md, E4", "Long read-only transactions beside writers", &[])
        .by(&reads::E4, "both engines, writers' p99, and versions of a record"),
    row("paxflow-e5", "paxflow.md, E5", "4, 16 and 100 operations", &[]).by(&reads::E5, BOTH),
    row("qstore-1", "Figure 1", "How transactions go through Calvin and Q-Store", DRAWING),
    row("qstore-2", "Figure 2", "Dependencies between transactions in queues", EXAMPLE),
    row("qstore-3", "Figure 3", "The architecture of the system", DRAWING),
    row("qstore-4", "Figure 4", "The architecture of a server", DRAWING),
    row("qstore-table-1", "Table 1", "The parameters of the workloads", QSTORE_5),
    row("qstore-5", "Figure 5", "Throughput and latency by batch size", DENEVA)
        .by(&qstore::FIGURE_5, "Q-Store and both Calvins on four nodes, by what is under way"),
    row("qstore-6", "Figure 6", "Throughput by skew", DENEVA).by(&qstore::FIGURE_6, LINES),
    row("qstore-7", "Figure 7", "Throughput by share of multi-partition transactions", DENEVA)
        .by(&qstore::FIGURE_7, LINES),
    row("qstore-8", "Figure 8", "Throughput by share of updates", DENEVA).by(&qstore::FIGURE_8, LINES),
    row("qstore-9", "Figure 9", "Throughput by operations per transaction", DENEVA)
        .by(&qstore::FIGURE_9, LINES),
    row("qstore-10", "Figure 10", "Throughput by partitions per transaction", DENEVA)
        .by(&qstore::FIGURE_10, LINES),
    row("qstore-11", "Figure 11", "Throughput, 2 to 16 servers", DENEVA).by(&qstore::FIGURE_11, ON_NODES),
    row("qstore-12", "Figure 12", "TPC-C: NewOrder, Payment, and half of each", DENEVA)
        .by(&tpcc::QSTORE_12, LINES),
    row("qstore-13", "Figure 13", "TPC-C by share of multi-partition transactions", DENEVA)
        .by(&tpcc::QSTORE_13, LINES),
    row("qstore-a", "qstore.md, ours A", "Speculative and conservative execution by share of aborts", QSTORE)
        .by(&queues::A, "Q-Store's three ways on four nodes"),
    row("qstore-b", "qstore.md, ours B", "Planning ahead, by delay between nodes and batch size", QSTORE)
        .by(&queues::B, "by delay, by what is planned ahead and by what is under way"),
    row("qstore-c", "qstore.md, ours C", "The share of data dependencies, local and remote", QSTORE)
        .by(&queues::C, "Q-Store and Calvin on four nodes"),
    row("fwkv-1", "Figure 1", "A long fork that Walter accepts", EXAMPLE),
    row("fwkv-2", "Figure 2", "A read-only transaction that moves its snapshot on", EXAMPLE),
    row("fwkv-3", "Figure 3", "How an update transaction gets its snapshot", EXAMPLE),
    row("fwkv-4", "Figure 4", "An abort that a fresher snapshot saves", EXAMPLE),
    row("fwkv-5", "Figure 5", "YCSB throughput, up to 20 nodes, 20% and 50% read-only", FWKV)
        .by(&fwkv::FIGURE_5, "all three engines on 2 to 6 nodes"),
    row("fwkv-6", "Figure 6", "Anti-dependencies that an update transaction collects", FWKV)
        .by(&fwkv::FIGURE_6, "FW-KV on four nodes"),
    row("fwkv-7", "Figure 7", "Aborts while propagation is delayed", FWKV)
        .by(&fwkv::FIGURE_7, "FW-KV and Walter on four nodes, delays of two lengths"),
    row("fwkv-8", "Figure 8", "TPC-C throughput by warehouses and nodes", FWKV)
        .by(&tpcc::FWKV_8, "all three engines on 2 to 6 nodes"),
    row("fwkv-9a", "Figure 9(a)", "TPC-C aborts while propagation is delayed", FWKV)
        .by(&tpcc::FWKV_9A, "FW-KV and Walter on four nodes, delays of two lengths"),
    row("fwkv-9b", "Figure 9(b)", "FW-KV's slowdown against Walter by warehouses", FWKV)
        .by(&tpcc::FWKV_9B, "FW-KV and Walter on four nodes"),
    row(
        "fwkv-fresh",
        "fwkv.md, ours",
        "The age of what only reads sees, by how late announcements are",
        FWKV,
    )
    .by(&fresh::FRESH, "all three engines on four nodes"),
    row("fwkv-forks", "fwkv.md, ours", "Long forks, by how late announcements are", FWKV)
        .by(&fresh::FORKS, "all three engines on four nodes"),
    row(
        "fwkv-sets",
        "fwkv.md, ours",
        "Sets of readers, message bytes and log records of a transaction",
        FWKV,
    )
    .by(&fresh::SETS, "all three engines on four nodes"),
    row(
        "regions-layout",
        "figures of section 3",
        "How records are laid out for each concurrency control",
        DRAWING,
    ),
    row("regions-table-1", "Table 1", "The hardware", HARDWARE),
    row("regions-ro", "read-only figure", "10 reads, high and low contention", &[])
        .by(&regions::RO, IN_REGIONS),
    row("regions-rmw", "read-write figure", "10 read-modify-writes, high and low contention", &[])
        .by(&regions::RMW, IN_REGIONS),
    row("regions-rmw-5", "second read-write figure", "5 read-modify-writes of 50 records", &[])
        .by(&regions::RMW_5, IN_REGIONS),
    row("regions-mixed", "mixed figure", "Read-only and read-modify-write, low contention", &[])
        .by(&regions::MIXED, IN_REGIONS),
    row("regions-wal", "WAL text", "Bytes of log for each transaction", &[]).by(&regions::WAL, IN_REGIONS),
    row("regions-f1", "regions.md, F1", "The share of multi-region transactions, 0 to 100%", REGIONS_SPANNED)
        .by(
            &regions::F1,
            "every such engine at 50 ms between regions, local transactions alone at 0 to 200 ms",
        ),
    row("regions-f2", "regions.md, F1 and F2", "The delay between regions, 0 to 200 ms", REGIONS_SPANNED)
        .by(&regions::F2, "every such engine with 5% of multi-region transactions"),
    row("regions-f3", "regions.md, F3", "More regions, transactions on 2 of them", REGIONS_SPANNED)
        .by(&regions::F3, "every such engine in 2, 3 and 4 regions"),
    row("regions-f4", "regions.md, F4", "A slow or dead storage replica: quorum and full", &[Replicas(3)])
        .by(&regions::F4, "Silo in two regions"),
    row("regions-f5", "regions.md, F5", "TPC-C with warehouses at home in a region", REGIONS_SPANNED)
        .by(&regions::F5, "every such engine in two regions of eight warehouses"),
    row("ours-engines", "ours", "Every engine on one workload, as shares of the ceiling", &[])
        .by(&ours::ENGINES, "every engine on one node"),
    row("ours-ceiling", "ours", "Throughput as a share of plain record accesses, by skew and threads", &[])
        .by(&ours::CEILING, "Calvin on one node"),
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
        let sheet = ["regions-f1", "regions-f2", "regions-f3", "regions-f4", "regions-f5"];
        for id in others.into_iter().chain(regions).chain(sheet) {
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
        assert!(Need::Nodes(100).is_met() && !Need::Nodes(129).is_met());
        assert!(Need::Replicas(3).is_met() && !Need::Replicas(10).is_met());
        assert_eq!(state("calvin-2"), "runs: none, async and sync, delays injected");
    }
}
