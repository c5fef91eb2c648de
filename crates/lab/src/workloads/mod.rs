//! The workloads' knobs on the command line, with the papers' names: one file a workload.
//!
//! A knob that takes several values, separated by commas, is swept: each combination is a setting of its own, and
//! all of them run in turns.

pub mod append;
pub mod bank;
pub mod micro;
pub mod tpcc;
pub mod ycsb;

use std::fmt::Debug;
use std::sync::Arc;

use ordain_workload::Workload;

/// The knobs of one workload.
pub trait Knobs: clap::Args + Clone + Debug {
    /// Each combination of the values that were given, for data in so many partitions.
    ///
    /// # Errors
    /// A value that makes no sense, by the name of its flag.
    fn workloads(&self, partitions: usize) -> anyhow::Result<Vec<Arc<dyn Workload>>>;

    /// The same for one of so many nodes that do not know each other: its share of the data, and no transaction that
    /// needs a second partition.
    #[must_use]
    fn alone(&self, nodes: usize) -> Self;

    /// Whether it matters to the workload how many partitions its data are in.
    fn has_partitions(&self) -> bool {
        true
    }
}

/// Every combination of two lists, the second changing fastest.
pub(crate) fn each<A: Clone, B: Clone>(a: &[A], b: &[B]) -> Vec<(A, B)> {
    a.iter().flat_map(|a| b.iter().map(|b| (a.clone(), b.clone()))).collect()
}
