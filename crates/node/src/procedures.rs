//! Every procedure that a node has, under the numbers that its log knows them by.

use std::sync::Arc;

use ordain_model::{Registry, system};

/// The system's procedures and the Redis commands.
pub fn all() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_commands::register(&mut registry);
    Arc::new(registry)
}
