//! `ordain bench bank`.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::bank::{Bank, Parameters};
use ordain_workload::choice::Distribution;

use super::{Knobs, Settings};

/// The knobs of the bank.
#[derive(Clone, Debug, clap::Args)]
pub struct BankKnobs {
    /// Number of accounts
    #[arg(long, default_value_t = 100_000)]
    pub accounts: u64,
    /// Initial balance of each account
    #[arg(long, default_value_t = 1_000)]
    pub balance: u64,
    /// A transfer moves 1 to so much; it aborts where the funds are missing
    #[arg(long, default_value_t = 100)]
    pub amount_max: u64,
    /// Zipfian skew of the choice of accounts
    #[arg(long, value_delimiter = ',', default_value = "0")]
    pub theta: Vec<f64>,
    /// Share of transactions that read the balances of some accounts
    #[arg(long, value_delimiter = ',', default_value = "0.1")]
    pub balances: Vec<f64>,
    /// Number of accounts of such a read
    #[arg(long, default_value_t = 10)]
    pub accounts_per_read: usize,
    /// Share of transactions that add up all accounts: a scan each, whose every answer is checked
    #[arg(long, default_value_t = 0.0)]
    pub totals: f64,
}

impl Knobs for BankKnobs {
    fn workloads(&self, _partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        let parameters = Parameters {
            accounts: self.accounts,
            balance: self.balance,
            amount_max: self.amount_max,
            accounts_per_read: self.accounts_per_read,
            totals: self.totals,
            ..Parameters::default()
        };
        Settings::of(parameters)
            .each(&self.theta, |p, theta| p.distribution = Distribution::Zipfian { theta })
            .each(&self.balances, |p, share| p.balances = share)
            .workloads(Bank::new)
    }

    fn alone(&self, nodes: usize) -> BankKnobs {
        BankKnobs { accounts: self.accounts / nodes as u64, ..self.clone() }
    }

    fn has_partitions(&self) -> bool {
        false
    }
}
