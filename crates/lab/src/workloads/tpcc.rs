//! `ordain bench tpcc`.

use std::sync::Arc;

use anyhow::bail;
use ordain_workload::Workload;
use ordain_workload::tpcc::{Mix, Parameters, Remote, Scale, Tpcc};

use super::{Knobs, Settings};

/// The knobs of TPC-C.
#[derive(Clone, Debug, clap::Args)]
pub struct TpccKnobs {
    /// Number of warehouses: about 600,000 records each
    #[arg(long, value_delimiter = ',', default_value = "1")]
    pub warehouses: Vec<u32>,
    /// The transactions: full, new-order, payment, halves (NewOrder and Payment), read-only:PERCENT, or the five
    /// percentages of NewOrder/Payment/OrderStatus/Delivery/StockLevel
    #[arg(long, value_delimiter = ',', default_value = "full")]
    pub mix: Vec<Mix>,
    /// Share of NewOrders and Payments with a second warehouse, in another partition if there is one (the Calvin
    /// paper: 0.1, the Q-Store paper: 0.15) [default: as the specification has it: 1% of order lines, 15% of payments]
    #[arg(long, value_delimiter = ',')]
    pub remote: Vec<f64>,
    /// Divide the specification's customers, items and orders by this: for a quick try only
    #[arg(long, default_value_t = 1)]
    pub scale_down: u32,
}

/// Beyond this a database is no TPC-C any more: a handful of customers.
const SCALE_DOWN_MAX: u32 = 300;

impl Knobs for TpccKnobs {
    fn workloads(&self, partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        if !(1..=SCALE_DOWN_MAX).contains(&self.scale_down) {
            bail!("--scale-down must be 1 to {SCALE_DOWN_MAX}, not {}", self.scale_down);
        }
        let full = Scale::default();
        let scale = Scale {
            customers: full.customers / self.scale_down,
            items: full.items / self.scale_down,
            orders: full.orders / self.scale_down,
            undelivered: full.undelivered / self.scale_down,
            ..full
        };
        let remote = match &self.remote[..] {
            [] => vec![Remote::Standard],
            shares => shares.iter().copied().map(Remote::Share).collect(),
        };
        Settings::of(Parameters { scale, partitions, ..Parameters::default() })
            .each(&self.warehouses, |p, warehouses| p.warehouses = warehouses)
            .each(&self.mix, |p, mix| p.mix = mix)
            .each(&remote, |p, remote| p.remote = remote)
            .workloads(Tpcc::new)
    }

    fn alone(&self, nodes: usize) -> TpccKnobs {
        // A second warehouse is on the same node then.
        let warehouses =
            self.warehouses.iter().map(|warehouses| (warehouses / nodes as u32).max(1)).collect();
        TpccKnobs { warehouses, ..self.clone() }
    }
}
