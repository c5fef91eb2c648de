//! Deterministic locking: lock queues per record, and the scheduler that grants transactions by them (the Calvin paper,
//! section 3.2).

mod scheduler;
mod table;

pub use scheduler::LockScheduler;
pub use table::LockTable;
