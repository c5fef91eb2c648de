//! Clusters whose nodes keep no value in memory that nobody uses.

use std::cell::Cell;

use ordain_family::NodeSettings;
use ordain_model::Micros;
use ordain_role::{DiskOp, DiskRequest};

use super::World;

thread_local! {
    static ON_DISK: Cell<bool> = const { Cell::new(false) };
}

/// Has the clusters that a script builds keep no value in memory that nobody uses.
pub fn on_disk<T>(script: impl FnOnce() -> T) -> T {
    ON_DISK.set(true);
    let result = script();
    ON_DISK.set(false);
    result
}

pub(super) fn settings(settings: NodeSettings) -> NodeSettings {
    NodeSettings { memory_budget: ON_DISK.get().then_some(0), evicted_above: 0, ..settings }
}

/// True if a request reads values.
pub(super) fn is_of_values(request: &DiskRequest) -> bool {
    let is_of_values = |op: &DiskOp| matches!(op, DiskOp::Read { file, .. } if file.starts_with("values-"));
    request.ops.iter().any(is_of_values)
}

impl World {
    /// Sets how long disks take to read values from now on.
    pub fn set_values_after(&mut self, time: Micros) {
        self.values_after = time;
    }
}
