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

    /// The knobs for one of so many nodes that do not know each other: its share of the data, and no transaction that
    /// needs a second partition.
    #[must_use]
    fn alone(&self, nodes: usize) -> Self;

    /// True if the workload depends on the number of partitions.
    fn has_partitions(&self) -> bool {
        true
    }
}

/// The parameters of a workload with every combination of the values of swept knobs, the last knob changing fastest.
pub(crate) struct Settings<P>(Vec<P>);

impl<P: Clone> Settings<P> {
    /// One setting, before any knob is swept.
    pub fn of(parameters: P) -> Settings<P> {
        Settings(vec![parameters])
    }

    /// Sweeps a knob.
    #[must_use]
    pub fn each<V: Clone>(self, values: &[V], set: impl Fn(&mut P, V)) -> Settings<P> {
        let with = |parameters: &P, value: &V| {
            let mut parameters = parameters.clone();
            set(&mut parameters, value.clone());
            parameters
        };
        Settings(
            self.0.iter().flat_map(|parameters| values.iter().map(|value| with(parameters, value))).collect(),
        )
    }

    /// The workload of each setting.
    pub fn workloads<W: Workload + 'static, E: Into<anyhow::Error>>(
        self,
        new: impl Fn(P) -> Result<W, E>,
    ) -> anyhow::Result<Vec<Arc<dyn Workload>>> {
        let workload = |parameters| -> anyhow::Result<Arc<dyn Workload>> {
            Ok(Arc::new(new(parameters).map_err(E::into)?))
        };
        self.0.into_iter().map(workload).collect()
    }
}
