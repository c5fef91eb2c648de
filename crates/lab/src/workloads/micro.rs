//! `ordain bench micro`.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::micro::{Calvin, Micro, Regions};

use super::{Knobs, each};

/// The knobs of the microbenchmarks of two papers.
#[derive(Clone, Debug, clap::Args)]
pub struct MicroKnobs {
    /// Whose: the Calvin paper's, with hot and cold records, or the regions paper's, with few or many
    #[arg(long, value_enum, default_value = "calvin")]
    pub paper: Paper,
    /// calvin: how many records each partition has
    #[arg(long, default_value_t = 1_000_000)]
    pub records_per_partition: u64,
    /// calvin: one in how many transactions of a partition meets another on a hot record, as a share: a partition has
    /// 1 / contention-index hot records
    #[arg(long, value_delimiter = ',', default_value = "0.0001")]
    pub contention_index: Vec<f64>,
    /// calvin: the same said otherwise: how many hot records each partition has
    #[arg(long, value_delimiter = ',', conflicts_with = "contention_index")]
    pub hot_records: Vec<u64>,
    /// calvin: share of transactions that use two partitions
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub multi_partition: Vec<f64>,
    /// calvin: share of transactions whose constraint fails
    #[arg(long, default_value_t = 0.0)]
    pub constraint_fails: f64,
    /// calvin: leave the constraint out, as the paper's public code does
    #[arg(long)]
    pub no_constraint: bool,
    /// How many records a transaction uses (regions: 10 or 5)
    #[arg(long, value_delimiter = ',', default_value = "10")]
    pub ops_per_txn: Vec<usize>,
    /// regions: how many records there are (50 or 1000000)
    #[arg(long, value_delimiter = ',', default_value = "1000000")]
    pub records: Vec<u64>,
    /// regions: share of transactions that only read: 1 is the paper's RO, 0 its RMW
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub read_only: Vec<f64>,
}

/// Whose microbenchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Paper {
    /// The Calvin paper, section 6.2
    Calvin,
    /// The regions paper's evaluation
    Regions,
}

impl Knobs for MicroKnobs {
    fn workloads(&self, partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        let mut workloads: Vec<Arc<dyn Workload>> = Vec::new();
        match self.paper {
            Paper::Calvin => {
                let by_records = self.hot_records.iter().map(|hot| 1.0 / *hot as f64).collect::<Vec<_>>();
                let indices = if by_records.is_empty() { &self.contention_index } else { &by_records };
                for (ops_per_txn, (contention_index, multi_partition)) in
                    each(&self.ops_per_txn, &each(indices, &self.multi_partition))
                {
                    let parameters = Calvin {
                        partitions,
                        records_per_partition: self.records_per_partition,
                        contention_index,
                        multi_partition,
                        ops_per_txn,
                        constraint_fails: (!self.no_constraint).then_some(self.constraint_fails),
                    };
                    workloads.push(Arc::new(Micro::calvin(parameters)?));
                }
            }
            Paper::Regions => {
                for (ops_per_txn, (records, read_only)) in
                    each(&self.ops_per_txn, &each(&self.records, &self.read_only))
                {
                    workloads.push(Arc::new(Micro::regions(Regions { records, ops_per_txn, read_only })?));
                }
            }
        }
        Ok(workloads)
    }
}
