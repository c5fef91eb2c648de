//! `ordain bench ycsb`.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::{Knobs, each};

/// The knobs of YCSB. Where nothing is said, the Q-Store paper's setting.
#[derive(Clone, Debug, clap::Args)]
pub struct YcsbKnobs {
    /// How many records there are (the Q-Store paper: 16 million a node)
    #[arg(long, default_value_t = 1_000_000)]
    pub records: u64,
    /// The length of a record, at least 8
    #[arg(long, default_value_t = 100)]
    pub record_bytes: usize,
    /// How many different records a transaction uses
    #[arg(long, value_delimiter = ',', default_value = "16")]
    pub ops_per_txn: Vec<usize>,
    /// Which share of them it increments, an exact count in every transaction; the others it reads
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
    /// How many partitions such a transaction uses [default: 2, or all if there are fewer]
    #[arg(long, value_delimiter = ',')]
    pub partitions_per_txn: Vec<usize>,
    /// Share of transactions that only read (FW-KV: 0.2, 0.5, 0.8)
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub read_only: Vec<f64>,
    /// How many records a read-only transaction reads [default: as --ops-per-txn]
    #[arg(long)]
    pub read_only_ops: Option<usize>,
    /// How many records of each partition are hot (PaxFlow: 10)
    #[arg(long, default_value_t = 0)]
    pub hot_records: u64,
    /// How many of a transaction's records are hot
    #[arg(long, default_value_t = 0)]
    pub hot_ops: usize,
    /// How many of a read-only transaction's are [default: as --hot-ops]
    #[arg(long)]
    pub read_only_hot_ops: Option<usize>,
}

impl Knobs for YcsbKnobs {
    fn workloads(&self, partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        let spread = match &self.partitions_per_txn[..] {
            [] => vec![partitions.min(2)],
            given => given.to_vec(),
        };
        let mut workloads: Vec<Arc<dyn Workload>> = Vec::new();
        for ((ops, write_ratio), (theta, read_only)) in
            each(&each(&self.ops_per_txn, &self.write_ratio), &each(&self.theta, &self.read_only))
        {
            if !(0.0..=1.0).contains(&write_ratio) {
                anyhow::bail!("--write-ratio must be from 0 to 1, not {write_ratio}");
            }
            let several = each(&self.multi_partition, &spread);
            for (partition_theta, (multi_partition, partitions_per_txn)) in
                each(&self.partition_theta, &several)
            {
                let parameters = Parameters {
                    records: self.records,
                    record_bytes: self.record_bytes,
                    distribution: Distribution::Zipfian { theta },
                    ops_per_txn: ops,
                    writes_per_txn: (ops as f64 * write_ratio).round() as usize,
                    read_only,
                    read_only_ops: self.read_only_ops,
                    partitions,
                    partition_theta,
                    multi_partition,
                    partitions_per_txn,
                    hot_records: self.hot_records,
                    hot_ops: self.hot_ops,
                    read_only_hot_ops: self.read_only_hot_ops,
                };
                workloads.push(Arc::new(Ycsb::new(parameters)?));
            }
        }
        Ok(workloads)
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
