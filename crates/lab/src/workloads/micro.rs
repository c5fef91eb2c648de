//! `ordain bench micro`.

use std::sync::Arc;

use anyhow::bail;
use ordain_workload::Workload;
use ordain_workload::micro::{Calvin, Micro, Regions};

use super::{Knobs, Settings};

/// The knobs of the microbenchmarks of two papers.
#[derive(Clone, Debug, clap::Args)]
pub struct MicroKnobs {
    /// Paper: the Calvin paper's, with hot and cold records, or the regions paper's, with few or many
    #[arg(long, value_enum, default_value = "calvin")]
    pub paper: Paper,
    /// calvin: how many records each partition has [default: 1000000]
    #[arg(long)]
    pub records_per_partition: Option<u64>,
    /// calvin: one in how many transactions of a partition meets another on a hot record, as a share: a partition has
    /// 1 / contention-index hot records [default: 0.0001]
    #[arg(long, value_delimiter = ',')]
    pub contention_index: Vec<f64>,
    /// calvin: hot records of each partition, in place of --contention-index
    #[arg(long, value_delimiter = ',', conflicts_with = "contention_index")]
    pub hot_records: Vec<u64>,
    /// calvin: share of transactions that use two partitions [default: 0]
    #[arg(long, value_delimiter = ',')]
    pub multi_partition: Vec<f64>,
    /// calvin: share of transactions whose constraint fails [default: 0]
    #[arg(long, conflicts_with = "no_constraint")]
    pub constraint_fails: Option<f64>,
    /// calvin: share of transactions in which half of the records are updated by what is found in the others: of two
    /// partitions, in the other one [default: 0]
    #[arg(long, value_delimiter = ',')]
    pub dependent: Vec<f64>,
    /// calvin: leave the constraint out, as the paper's public code does
    #[arg(long)]
    pub no_constraint: bool,
    /// calvin: clients turn to a node that has a partition of their transaction, as in the paper, and not to any node
    #[arg(long)]
    pub at_home: bool,
    /// Records of a transaction (regions: 10 or 5)
    #[arg(long, value_delimiter = ',', default_value = "10")]
    pub ops_per_txn: Vec<usize>,
    /// regions: how many records there are (50 or 1000000) [default: 1000000]
    #[arg(long, value_delimiter = ',')]
    pub records: Vec<u64>,
    /// regions: share of transactions that only read: 1 is the paper's RO, 0 its RMW [default: 0]
    #[arg(long, value_delimiter = ',')]
    pub read_only: Vec<f64>,
}

impl MicroKnobs {
    /// Refuses knobs of the other paper.
    fn check(&self) -> anyhow::Result<()> {
        let calvin = [
            ("--records-per-partition", self.records_per_partition.is_some()),
            ("--contention-index", !self.contention_index.is_empty()),
            ("--hot-records", !self.hot_records.is_empty()),
            ("--multi-partition", !self.multi_partition.is_empty()),
            ("--constraint-fails", self.constraint_fails.is_some()),
            ("--dependent", !self.dependent.is_empty()),
            ("--no-constraint", self.no_constraint),
            ("--at-home", self.at_home),
        ];
        let regions = [("--records", !self.records.is_empty()), ("--read-only", !self.read_only.is_empty())];
        let (others, other) = match self.paper {
            Paper::Calvin => (&regions[..], "regions"),
            Paper::Regions => (&calvin[..], "calvin"),
        };
        if let Some((flag, _)) = others.iter().find(|(_, given)| *given) {
            bail!("{flag} is a knob of --paper {other}");
        }
        if self.hot_records.contains(&0) {
            bail!("--hot-records must be at least 1");
        }
        Ok(())
    }
}

/// The values given, or else the default.
fn or<T: Clone>(given: &[T], otherwise: T) -> Vec<T> {
    if given.is_empty() { vec![otherwise] } else { given.to_vec() }
}

/// The paper of a microbenchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Paper {
    /// The Calvin paper, section 6.2
    Calvin,
    /// The regions paper's evaluation
    Regions,
}

impl Knobs for MicroKnobs {
    fn workloads(&self, partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        self.check()?;
        match self.paper {
            Paper::Calvin => {
                let by_records: Vec<f64> = self.hot_records.iter().map(|hot| 1.0 / *hot as f64).collect();
                let indices = if by_records.is_empty() { &self.contention_index } else { &by_records };
                let parameters = Calvin {
                    partitions,
                    records_per_partition: self.records_per_partition.unwrap_or(1_000_000),
                    constraint_fails: (!self.no_constraint).then(|| self.constraint_fails.unwrap_or(0.0)),
                    at_home: self.at_home,
                    ..Calvin::default()
                };
                Settings::of(parameters)
                    .each(&self.ops_per_txn, |p, ops| p.ops_per_txn = ops)
                    .each(&or(indices, 0.0001), |p, index| p.contention_index = index)
                    .each(&or(&self.multi_partition, 0.0), |p, share| p.multi_partition = share)
                    .each(&or(&self.dependent, 0.0), |p, share| p.dependent = share)
                    .workloads(Micro::calvin)
            }
            Paper::Regions => Settings::of(Regions::default())
                .each(&self.ops_per_txn, |p, ops| p.ops_per_txn = ops)
                .each(&or(&self.records, 1_000_000), |p, records| p.records = records)
                .each(&or(&self.read_only, 0.0), |p, share| p.read_only = share)
                .workloads(Micro::regions),
        }
    }

    fn alone(&self, nodes: usize) -> MicroKnobs {
        // Numbers for each partition are for each node already.
        let records = self.records.iter().map(|records| (records / nodes as u64).max(1)).collect();
        MicroKnobs { multi_partition: Vec::new(), records, ..self.clone() }
    }

    fn has_partitions(&self) -> bool {
        self.paper == Paper::Calvin
    }
}
