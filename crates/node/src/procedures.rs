//! Every procedure that a node has, under the numbers that its log knows them by.

use std::sync::Arc;

use ordain_model::{Registry, system};

/// The system's procedures, the Redis commands, and the workloads, which clients call with FCALL.
pub fn all() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_commands::register(&mut registry);
    ordain_workload::register(&mut registry);
    Arc::new(registry)
}
