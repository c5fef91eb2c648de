//! `ordain bench append`.

use std::sync::Arc;

use anyhow::bail;
use ordain_workload::Workload;
use ordain_workload::append::{Append, Parameters};
use ordain_workload::choice::Distribution;

use super::Knobs;

/// The knobs of list-append, whose answers prove isolation: transactions append unique numbers to lists and read them.
#[derive(Clone, Debug, clap::Args)]
pub struct AppendKnobs {
    /// Lists in use at a time
    #[arg(long, default_value_t = 10)]
    pub lists: u64,
    /// Zipfian skew of the choice of lists
    #[arg(long, default_value_t = 0.0)]
    pub theta: f64,
    /// A transaction has 1 to so many operations
    #[arg(long, default_value_t = 4)]
    pub ops_max: usize,
    /// Share of transactions that only read
    #[arg(long, default_value_t = 0.2)]
    pub read_only: f64,
    /// Share of the others that fail when all has been done
    #[arg(long, default_value_t = 0.05)]
    pub fails: f64,
    /// A list is given up for a fresh one when it has got about so many appends
    #[arg(long, default_value_t = 64)]
    pub appends_per_list: u64,
    /// Transactions of each thread of clients that are kept to be judged
    #[arg(long, default_value_t = 20_000)]
    pub history: u64,
}

impl Knobs for AppendKnobs {
    fn workloads(&self, _partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        if self.history == 0 {
            bail!("--history must be at least 1: nothing is proved where nothing is judged");
        }
        Ok(vec![Arc::new(Append::new(Parameters {
            lists: self.lists,
            distribution: Distribution::Zipfian { theta: self.theta },
            ops_max: self.ops_max,
            read_only: self.read_only,
            fails: self.fails,
            appends_per_list: self.appends_per_list,
            history: self.history,
        })?)])
    }

    fn alone(&self, _nodes: usize) -> AppendKnobs {
        self.clone()
    }

    fn has_partitions(&self) -> bool {
        false
    }
}
