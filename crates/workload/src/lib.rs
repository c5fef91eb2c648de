//! Workloads: transactions as procedures with native fragments, and the seeded streams of them that clients send.
//!
//! A workload is three things: procedures that load, run and check, to be [registered](register) in a node; a
//! [`Source`] for each client population, which makes up one transaction after the other; and what must hold of
//! the data afterwards. It knows procedures and plans, and no engine, driver or protocol, so that every engine is
//! given the very same transactions.
//!
//! [`random`] and [`choice`] are the generators: everything that is drawn is a function of a seed.

pub mod bank;
pub mod choice;
pub mod random;
pub mod ycsb;

use ordain_model::{ArgsBuilder, ProcedureId, Registry};

/// Adds the procedures of all workloads, which have the numbers 1000 to 1099.
pub fn register(registry: &mut Registry) {
    ycsb::register(registry);
    bank::register(registry);
}

/// A population of clients: makes up transactions, first those that load the data, then those that are measured.
///
/// Making one up and writing it down are two steps, so that the arguments are written once, where they will be
/// logged.
pub trait Source: Send {
    /// Makes up the next transaction of loading; `None` when this population has loaded its share.
    fn load(&mut self) -> Option<ProcedureId>;

    /// Makes up the next transaction of the run.
    fn next(&mut self) -> ProcedureId;

    /// Writes the arguments of the transaction made up last.
    fn write_args(&self, args: &mut ArgsBuilder<'_>);
}
