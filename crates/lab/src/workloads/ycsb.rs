//! `ordain bench ycsb`.

use std::sync::Arc;

use anyhow::bail;
use ordain_workload::Workload;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::{Knobs, Settings};

/// The knobs of YCSB. The defaults are the Q-Store paper's setting.
#[derive(Clone, Debug, clap::Args)]
pub struct YcsbKnobs {
    /// Number of records (the Q-Store paper: 16 million a node)
    #[arg(long, default_value_t = 1_000_000)]
    pub records: u64,
    /// The length of a record, at least 8
    #[arg(long, default_value_t = 100)]
    pub record_bytes: usize,
    /// Number of different records of a transaction
    #[arg(long, value_delimiter = ',', default_value = "16")]
    pub ops_per_txn: Vec<usize>,
    /// Share of them that is incremented, an exact count in every transaction; the others are read
    #[arg(long, value_delimiter = ',', default_value = "0.5")]
    pub write_ratio: Vec<f64>,
    /// Zipfian skew inside a partition: 0 is uniform, 0.99 heavy
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub theta: Vec<f64>,
    /// Zipfian skew between partitions, the first being the busiest: 0 uses all as often
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub partition_theta: Vec<f64>,
    /// Share of transactions that use several partitions; the others use one
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub multi_partition: Vec<f64>,
    /// Partitions of such a transaction [default: 2, or all if there are fewer]
    #[arg(long, value_delimiter = ',')]
    pub partitions_per_txn: Vec<usize>,
    /// Share of transactions that only read (FW-KV: 0.2, 0.5, 0.8)
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub read_only: Vec<f64>,
    /// Records of a read-only transaction [default: as --ops-per-txn]
    #[arg(long)]
    pub read_only_ops: Option<usize>,
    /// Hot records of each partition (PaxFlow: 10)
    #[arg(long, default_value_t = 0)]
    pub hot_records: u64,
    /// Hot records of a transaction
    #[arg(long, default_value_t = 0)]
    pub hot_ops: usize,
    /// Hot records of a read-only transaction [default: as --hot-ops]
    #[arg(long)]
    pub read_only_hot_ops: Option<usize>,
}

impl Knobs for YcsbKnobs {
    fn workloads(&self, partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        for write_ratio in &self.write_ratio {
            if !(0.0..=1.0).contains(write_ratio) {
                bail!("--write-ratio must be from 0 to 1, not {write_ratio}");
            }
        }
        let spread = match &self.partitions_per_txn[..] {
            [] => vec![partitions.min(2)],
            given => given.to_vec(),
        };
        let parameters = Parameters {
            records: self.records,
            record_bytes: self.record_bytes,
            read_only_ops: self.read_only_ops,
            partitions,
            hot_records: self.hot_records,
            hot_ops: self.hot_ops,
            read_only_hot_ops: self.read_only_hot_ops,
            ..Parameters::default()
        };
        Settings::of(parameters)
            .each(&self.ops_per_txn, |p, ops| p.ops_per_txn = ops)
            .each(&self.write_ratio, |p, ratio| {
                p.writes_per_txn = (p.ops_per_txn as f64 * ratio).round() as usize;
            })
            .each(&self.theta, |p, theta| p.distribution = Distribution::Zipfian { theta })
            .each(&self.read_only, |p, share| p.read_only = share)
            .each(&self.partition_theta, |p, theta| p.partition_theta = theta)
            .each(&self.multi_partition, |p, share| p.multi_partition = share)
            .each(&spread, |p, partitions| p.partitions_per_txn = partitions)
            .workloads(Ycsb::new)
    }

    fn alone(&self, nodes: usize) -> YcsbKnobs {
        YcsbKnobs {
            records: self.records / nodes as u64,
            multi_partition: vec![0.0],
            partitions_per_txn: Vec::new(),
            ..self.clone()
        }
    }
}
